//! What a database held at one moment: its own snapshot, and the unflushed rows of then laid over it.
//!
//! Both are taken under the lock under which rows are written and handed over, so that together they are one moment's content. A
//! reader of theirs takes none that is held for long: whoever writes, flushes or compacts goes on. Of the copies of flushed rows that there
//! were some may be given up meanwhile, the oldest first; then the database is asked.

use super::flushed::Flushed;
use super::merge;
use super::options::Shared;
use super::unflushed::Layers;
use super::{REMOVED_AT_ONCE_MAX, at_once};
use crate::engine::{Direction, EngineError, KeyRange, RowVisitor, Snapshot};
use bytes::Bytes;
use rocksdb::{DB, ReadOptions};
use self_cell::self_cell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

type Stored<'a> = rocksdb::Snapshot<'a>;

self_cell!(
    /// A snapshot with the database that it is of.
    struct Held {
        owner: Arc<DB>,
        #[not_covariant]
        dependent: Stored,
    }
);

pub(super) struct RocksSnapshot {
    layers: Layers,
    /// Copies of what the database has, as far as they are still kept.
    flushed: Flushed,
    stored: Held,
    dir: Arc<Path>,
    /// Behind `stored`, since fields are dropped in their order.
    _settling: Settling,
}

impl RocksSnapshot {
    /// Of unflushed rows, copies of flushed ones, and the database, all of the same moment.
    pub(super) fn new(db: Arc<DB>, memory: (Layers, Flushed), dir: Arc<Path>, shared: Arc<Shared>) -> Self {
        let settling = Settling { db: Arc::clone(&db), shared };
        let (layers, flushed) = memory;
        Self { layers, flushed, stored: Held::new(db, |db| db.snapshot()), dir, _settling: settling }
    }

    /// What is known of `key` without the database: `Some(None)` = it is removed.
    fn get_in_memory(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.layers.get(key).map(|row| row.cloned()).or_else(|| self.flushed.get(key))
    }

    /// What memory has of `keys`, and the places of those that the database is to be asked for.
    fn get_all_in_memory(&self, keys: &[Vec<u8>]) -> (Vec<Option<Bytes>>, Vec<usize>) {
        let mut rows: Vec<Option<Bytes>> = Vec::with_capacity(keys.len());
        let mut asked = Vec::new();
        for (position, key) in keys.iter().enumerate() {
            let row = self.get_in_memory(key);
            asked.extend(row.is_none().then_some(position));
            rows.push(row.flatten());
        }
        (rows, asked)
    }

    fn scan_with(
        &self,
        range: KeyRange<'_>,
        (options, removed_max): (ReadOptions, u64),
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let layers = self.layers.ranges(range.start, range.end);
        self.stored.with_dependent(|_, stored| {
            merge::scan(&self.dir, layers, stored.raw_iterator_opt(options), direction, removed_max, visit)
        })
    }
}

/// A database compacts what a snapshot has held back once that is released; this waits for it where that is asked for.
struct Settling {
    db: Arc<DB>,
    shared: Arc<Shared>,
}

impl Drop for Settling {
    fn drop(&mut self) {
        // The next flush says what has failed.
        drop(self.shared.settle(&self.db));
    }
}

impl fmt::Debug for RocksSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksSnapshot").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Snapshot for RocksSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if let Some(row) = self.get_in_memory(key) {
            return Ok(row);
        }
        let value = self.stored.with_dependent(|_, stored| stored.get(key));
        Ok(value.map_err(|error| super::read_failed(&self.dir, error))?.map(Bytes::from))
    }

    /// The database looks many up at once for less than one after the other.
    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        let (mut rows, asked) = self.get_all_in_memory(keys);
        if asked.is_empty() {
            return Ok(rows);
        }
        let wanted = asked.iter().map(|at| &keys[*at]);
        let stored = self.stored.with_dependent(|_, stored| stored.multi_get(wanted));
        for (position, row) in asked.into_iter().zip(stored) {
            rows[position] = row.map_err(|error| super::read_failed(&self.dir, error))?.map(Bytes::from);
        }
        Ok(rows)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.scan_with(range, (merge::options(range), u64::MAX), direction, visit)
    }

    /// One after the other: where RocksDB looks many up without a disk, a block that is not in memory is one that may have the key, and it
    /// answers with an empty value.
    fn get_all_at_once(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        let (mut rows, asked) = self.get_all_in_memory(keys);
        for position in asked {
            let options = at_once(ReadOptions::default());
            let row = self.stored.with_dependent(|_, stored| stored.get_opt(&keys[position], options));
            rows[position] = row.map_err(|error| super::read_failed(&self.dir, error))?.map(Bytes::from);
        }
        Ok(rows)
    }

    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        self.scan_with(range, (at_once(merge::options(range)), REMOVED_AT_ONCE_MAX), direction, visit)
    }
}
