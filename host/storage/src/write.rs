//! What each write does: a function of the record it finds, the operation and the log's time.

use crate::batch::Batch;
use crate::check;
use crate::engine::{Engine, EngineError};
use crate::journal::Journal;
use crate::layout::{self, DATA, Stamped, TOMBSTONE};
use crate::partition::LOOKUP_COST;
use bytes::Bytes;
use hedgerow_types::error::Status;
use hedgerow_types::journal::{
    Change, Duplicate, EXPIRED_SECONDS, STAMP_AHEAD_MAX, Stamp, TOMBSTONE_SECONDS, is_later, stamp_seconds,
};
use hedgerow_types::op::{Check, ExpireAt, Mutation, Write, WriteDetail, WriteReply};
use hedgerow_types::time::is_expired;
use std::collections::BTreeMap;

/// Turns writes into changes of `batch`. What it reads is the engine with the batch laid over it.
pub(crate) struct Writer<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) batch: &'a mut Batch,
    /// Log time: records that expired at or before it do not exist.
    pub(crate) now: u32,
    /// The write's stamp; `None` if the rows have none, or foreign ones.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) journal: &'a mut Journal,
    /// What was looked up, see [`LOOKUP_COST`].
    pub(crate) cost: u64,
}

/// The parts of a storage key.
type Key<'a> = (&'a [u8], &'a [u8]);

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
            Write::Duplicate(duplicate) => self.duplicate(duplicate),
            Write::Journal(write) => Ok(reply(self.journal.change(write, self.now, self.batch), WriteDetail::None)),
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
            // Of several changes of one row the last one stands. It is the only one that is made, since all would have one stamp.
            let last: BTreeMap<_, _> = mutations.iter().map(|it| (it.suffix(), it)).collect();
            for mutation in last.into_values() {
                match mutation {
                    Mutation::Put { suffix, value, expire_at } => self.put(prefix, suffix, value, *expire_at),
                    Mutation::Remove { suffix } => self.remove(prefix, suffix),
                }
            }
        }
        Ok(reply(status, WriteDetail::Checked(return_check_value.then_some(value))))
    }

    fn put(&mut self, prefix: &[u8], suffix: &[u8], value: &[u8], expire_at: ExpireAt) {
        match self.stamp {
            None => self.batch.put(&[&[DATA], prefix, suffix], &[&layout::row_header(expire_at), value]),
            Some(stamp) => self.put_stamped((prefix, suffix), value, expire_at, (stamp, 0)),
        }
    }

    fn remove(&mut self, prefix: &[u8], suffix: &[u8]) {
        match self.stamp {
            None => self.batch.remove(&[&[DATA], prefix, suffix]),
            Some(stamp) => self.remove_stamped((prefix, suffix), (stamp, 0)),
        }
    }

    fn put_stamped(&mut self, (prefix, suffix): Key<'_>, value: &[u8], expire_at: ExpireAt, stamped: Stamped) {
        self.batch.put(&[&[DATA], prefix, suffix], &[&layout::stamped_header(expire_at, stamped), value]);
    }

    fn remove_stamped(&mut self, (prefix, suffix): Key<'_>, stamped: Stamped) {
        self.batch.remove(&[&[DATA], prefix, suffix]);
        let drop_at = self.now.saturating_add(TOMBSTONE_SECONDS);
        self.batch.put(&[&[TOMBSTONE], prefix, suffix], &[&layout::tombstone(drop_at, stamped)]);
    }

    /// Does what was done elsewhere, where nothing later was done here. All of it or, if a stamp or a cluster cannot be right, nothing.
    fn duplicate(&mut self, duplicate: &Duplicate) -> Result<WriteReply, EngineError> {
        let Duplicate { here, changes } = duplicate;
        let ahead = |change: &Change| stamp_seconds(change.stamp) > self.now.saturating_add(STAMP_AHEAD_MAX);
        let is_wrong = *here == 0 || self.journal.cluster().is_some_and(|cluster| cluster != *here);
        if is_wrong || changes.iter().any(|change| change.origin == 0 || ahead(change)) {
            return Ok(reply(Status::InvalidArgument, WriteDetail::None));
        }
        for Change { stamp, origin, mutation } in changes {
            let suffix = mutation.suffix();
            let known = self.last_change(suffix)?;
            let known = known.map(|(stamp, cluster)| (stamp, if cluster == 0 { *here } else { cluster }));
            if known.is_some_and(|known| !is_later((*stamp, *origin), known)) {
                continue;
            }
            // What comes back is this cluster's own again.
            let stamped = (*stamp, if origin == here { 0 } else { *origin });
            match mutation {
                Mutation::Put { value, expire_at, .. } => {
                    self.put_stamped((&[], suffix), value, *expire_at, stamped);
                    // It comes so late that the row is forgotten at once. What is told again after it is not.
                    if is_expired(*expire_at, self.now) {
                        let forget_at = self.now.saturating_add(EXPIRED_SECONDS);
                        self.batch.put(&[&[TOMBSTONE], suffix], &[&layout::tombstone(forget_at, stamped)]);
                    }
                }
                Mutation::Remove { .. } => self.remove_stamped((&[], suffix), stamped),
            }
        }
        // Last, since an engine's error before it must leave no trace.
        if let Some(stamp) = changes.iter().map(|change| change.stamp).max() {
            self.journal.note_foreign(stamp, *here);
        }
        Ok(reply(Status::Ok, WriteDetail::None))
    }

    /// When the row was changed last, as far as that is still known: what may be gone from a replica's disk by now is as if it had never
    /// been, whether it is still on this one's or not.
    fn last_change(&mut self, suffix: &[u8]) -> Result<Option<Stamped>, EngineError> {
        let row = self.find(&layout::data_key(&[suffix]))?;
        let base = self.journal.base();
        let row = row.map(|row| layout::remembered(&row, base)).transpose()?;
        let removed =
            self.find(&[&[TOMBSTONE], suffix].concat())?.map(|row| layout::split_tombstone(&row)).transpose()?;
        let known = |it: Option<(u32, Stamped)>| it.filter(|(until, _)| !is_expired(*until, self.now)).map(|it| it.1);
        Ok(known(row).max(known(removed)))
    }

    /// A stored row, with the batch laid over the engine.
    fn find(&mut self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let row = match self.batch.find(key) {
            Some(change) => change.map(Bytes::copy_from_slice),
            None => self.engine.get(key)?,
        };
        self.cost += LOOKUP_COST + row.as_ref().map_or(0, Bytes::len) as u64;
        Ok(row)
    }

    fn live(&mut self, prefix: &[u8], suffix: &[u8]) -> Result<Option<Record>, EngineError> {
        let row = self.find(&layout::data_key(&[prefix, suffix]))?;
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
