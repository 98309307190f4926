//! What each read returns, and the handle that other threads read with.

mod checksum;
mod page;
mod range;

use crate::engine::{Engine, EngineError};
use crate::layout;
use bytes::Bytes;
use hedgerow_types::error::Status;
use hedgerow_types::limit::READ_SIZE_MAX;
use hedgerow_types::op::{ExpireAt, MultiGet, Read, ReadReply, Row, Selection};
use hedgerow_types::time::log_time_after;
use page::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Reads one replica's records, from any thread.
#[derive(Clone, Debug)]
pub struct Reader {
    engine: Arc<dyn Engine>,
    /// The latest log time that is in the engine, expiry-epoch seconds.
    log_now: Arc<AtomicU32>,
}

impl Reader {
    pub(crate) fn new(engine: Arc<dyn Engine>, log_now: u32) -> Self {
        Self { engine, log_now: Arc::new(AtomicU32::new(log_now)) }
    }

    pub(crate) fn advance(&self, log_now: u32) {
        self.log_now.store(log_now, Ordering::Release);
    }

    /// Answers `read`, as [`crate::Partition::read`] does.
    pub fn read(&self, read: &Read, now: u32) -> Result<ReadReply, EngineError> {
        let now = log_time_after(self.log_now.load(Ordering::Acquire), now, true);
        let view = View { engine: &*self.engine, now };
        match read {
            Read::Get { key } => {
                let record = view.live(&[key])?;
                Ok(ReadReply::Value(record.map(|(_, value)| value).ok_or(Status::NotFound)))
            }
            Read::Ttl { key } => {
                let record = view.live(&[key])?;
                Ok(ReadReply::Ttl(record.map(|(expire_at, _)| view.seconds_left(expire_at)).ok_or(Status::NotFound)))
            }
            Read::MultiGet(multi_get) => view.multi_get(multi_get),
            Read::BatchGet { keys } => view.batch_get(keys),
            Read::SortKeyCount { prefix } => view.sort_key_count(prefix),
            Read::Scan(scan) => view.scan(scan),
            Read::Checksum => view.checksum(),
        }
    }
}

/// The records as of `now`.
struct View<'a> {
    engine: &'a dyn Engine,
    now: u32,
}

impl View<'_> {
    /// Expiry and value of the record whose storage key `key`'s parts make up.
    fn live(&self, key: &[&[u8]]) -> Result<Option<(ExpireAt, Bytes)>, EngineError> {
        let row = self.engine.get(&layout::data_key(key))?;
        Ok(row.map(|row| layout::live(row, self.now)).transpose()?.flatten())
    }

    /// -1 = for ever.
    fn seconds_left(&self, expire_at: ExpireAt) -> i32 {
        match expire_at {
            0 => -1,
            _ => i32::try_from(expire_at.saturating_sub(self.now)).unwrap_or(i32::MAX),
        }
    }

    fn multi_get(&self, multi_get: &MultiGet) -> Result<ReadReply, EngineError> {
        match &multi_get.selection {
            Selection::Suffixes(suffixes) => {
                let limits = Limits::requested(multi_get.count_max, multi_get.size_max);
                let keys = suffixes.iter().map(|suffix| (&multi_get.prefix[..], suffix));
                self.listed(keys, limits, multi_get.no_value)
            }
            Selection::Range { .. } => self.multi_get_range(multi_get),
        }
    }

    fn batch_get(&self, keys: &[Bytes]) -> Result<ReadReply, EngineError> {
        if keys.is_empty() {
            return Ok(ReadReply::Rows { status: Status::InvalidArgument, rows: Vec::new() });
        }
        let limits = Limits { rows: usize::MAX, size: READ_SIZE_MAX };
        self.listed(keys.iter().map(|key| (&[][..], key)), limits, false)
    }

    /// The live records among `keys` (prefix and suffix each), in that order, absent ones left out. Rows carry the
    /// suffix. The size is looked at before a row is added: the last row may exceed it.
    fn listed<'k>(
        &self,
        keys: impl Iterator<Item = (&'k [u8], &'k Bytes)>,
        limits: Limits,
        no_value: bool,
    ) -> Result<ReadReply, EngineError> {
        let mut rows = Vec::new();
        let mut size = 0;
        for (prefix, suffix) in keys {
            let Some((_, value)) = self.live(&[prefix, suffix])? else { continue };
            if rows.len() >= limits.rows || size >= limits.size {
                return Ok(ReadReply::Rows { status: Status::Incomplete, rows });
            }
            let value = if no_value { Bytes::new() } else { value };
            size += suffix.len() + value.len();
            rows.push(Row { key: suffix.clone(), value, expire_at: None });
        }
        Ok(ReadReply::Rows { status: Status::Ok, rows })
    }
}
