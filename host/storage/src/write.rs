//! What each write does: a function of the record it finds, the operation and the log's time.

use crate::batch::Batch;
use crate::check;
use crate::engine::{Engine, EngineError};
use crate::layout::{self, DATA};
use crate::partition::LOOKUP_COST;
use bytes::Bytes;
use hedgerow_types::error::Status;
use hedgerow_types::op::{Check, ExpireAt, Mutation, Write, WriteDetail, WriteReply};

/// Turns writes into changes of `batch`. What it reads is the engine with the batch laid over it.
pub(crate) struct Writer<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) batch: &'a mut Batch,
    /// Log time: records that expired at or before it do not exist.
    pub(crate) now: u32,
    /// What was looked up, see [`LOOKUP_COST`].
    pub(crate) cost: u64,
}

/// A live record.
struct Record {
    expire_at: ExpireAt,
    value: Bytes,
}

impl Writer<'_> {
    /// Runs `write`. A reply with an error status has changed nothing.
    pub(crate) fn run(&mut self, write: &Write) -> Result<WriteReply, EngineError> {
        match write {
            Write::Nothing => Ok(reply(Status::Ok, WriteDetail::None)),
            Write::Put { key, value, expire_at } => {
                self.put(&[], key, value, *expire_at);
                Ok(reply(Status::Ok, WriteDetail::None))
            }
            Write::Remove { key } => {
                self.remove(&[], key);
                Ok(reply(Status::Ok, WriteDetail::None))
            }
            Write::MultiPut { prefix, rows, expire_at } => {
                rows.iter().for_each(|(suffix, value)| self.put(prefix, suffix, value, *expire_at));
                Ok(reply(ok_unless_empty(rows), WriteDetail::None))
            }
            Write::MultiRemove { prefix, suffixes } => {
                suffixes.iter().for_each(|suffix| self.remove(prefix, suffix));
                Ok(reply(ok_unless_empty(suffixes), WriteDetail::Removed(suffixes.len() as i64)))
            }
            Write::Incr { key, by, expire_at } => self.incr(key, *by, *expire_at),
            Write::CheckAndMutate { prefix, check, mutations, return_check_value } => {
                self.check_and_mutate(prefix, check, mutations, *return_check_value)
            }
        }
    }

    fn incr(&mut self, key: &[u8], by: i64, expire_at: i32) -> Result<WriteReply, EngineError> {
        let record = self.live(&[], key)?;
        let (kept_expiry, old) = match &record {
            Some(record) if record.value.is_empty() => (record.expire_at, Some(0)),
            Some(record) => (record.expire_at, check::parse_number(&record.value)),
            None => (0, Some(0)),
        };
        let Some(old) = old else { return Ok(reply(Status::InvalidArgument, WriteDetail::Value(0))) };
        let Some(new) = old.checked_add(by) else {
            return Ok(reply(Status::InvalidArgument, WriteDetail::Value(old)));
        };
        let expire_at = match expire_at {
            0 => kept_expiry,
            ..0 => 0,
            1.. => expire_at.unsigned_abs(),
        };
        self.put(&[], key, new.to_string().as_bytes(), expire_at);
        Ok(reply(Status::Ok, WriteDetail::Value(new)))
    }

    fn check_and_mutate(
        &mut self,
        prefix: &[u8],
        check: &Check,
        mutations: &[Mutation],
        return_check_value: bool,
    ) -> Result<WriteReply, EngineError> {
        if mutations.is_empty() || !check::is_known(check.kind) {
            return Ok(reply(Status::InvalidArgument, WriteDetail::Checked(None)));
        }
        let value = self.live(prefix, &check.suffix)?.map(|record| record.value);
        let status = match check::holds(check.kind, value.as_deref(), &check.operand) {
            Ok(true) => Status::Ok,
            Ok(false) => Status::TryAgain,
            Err(status) => status,
        };
        if status == Status::Ok {
            for mutation in mutations {
                match mutation {
                    Mutation::Put { suffix, value, expire_at } => self.put(prefix, suffix, value, *expire_at),
                    Mutation::Remove { suffix } => self.remove(prefix, suffix),
                }
            }
        }
        Ok(reply(status, WriteDetail::Checked(return_check_value.then_some(value))))
    }

    fn put(&mut self, prefix: &[u8], suffix: &[u8], value: &[u8], expire_at: ExpireAt) {
        self.batch.put(&[&[DATA], prefix, suffix], &[&layout::row_header(expire_at), value]);
    }

    fn remove(&mut self, prefix: &[u8], suffix: &[u8]) {
        self.batch.remove(&[&[DATA], prefix, suffix]);
    }

    fn live(&mut self, prefix: &[u8], suffix: &[u8]) -> Result<Option<Record>, EngineError> {
        let key = layout::data_key(&[prefix, suffix]);
        let row = match self.batch.find(&key) {
            Some(change) => change.map(Bytes::copy_from_slice),
            None => self.engine.get(&key)?,
        };
        self.cost += LOOKUP_COST + row.as_ref().map_or(0, Bytes::len) as u64;
        let live = row.map(|row| layout::live(row, self.now)).transpose()?.flatten();
        Ok(live.map(|(expire_at, value)| Record { expire_at, value }))
    }
}

fn reply(status: Status, detail: WriteDetail) -> WriteReply {
    WriteReply { status, detail }
}

fn ok_unless_empty<T>(items: &[T]) -> Status {
    if items.is_empty() { Status::InvalidArgument } else { Status::Ok }
}
