//! What a database held at one moment: its own snapshot, and the unflushed rows of then laid over it.
//!
//! Both are taken under the lock under which rows are written and handed over, so that together they are one moment's content. A
//! reader of theirs takes no lock: whoever writes, flushes or compacts goes on.

use super::merge;
use super::options::Shared;
use super::unflushed::Layers;
use crate::engine::{Direction, EngineError, KeyRange, RowVisitor, Snapshot};
use bytes::Bytes;
use rocksdb::DB;
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
    stored: Held,
    dir: Arc<Path>,
    /// Behind `stored`, since fields are dropped in their order.
    _settling: Settling,
}

impl RocksSnapshot {
    pub(super) fn new(db: Arc<DB>, layers: Layers, dir: Arc<Path>, shared: Arc<Shared>) -> Self {
        let settling = Settling { db: Arc::clone(&db), shared };
        Self { layers, stored: Held::new(db, |db| db.snapshot()), dir, _settling: settling }
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
        if let Some(row) = self.layers.get(key) {
            return Ok(row.cloned());
        }
        let value = self.stored.with_dependent(|_, stored| stored.get(key));
        Ok(value.map_err(|error| super::read_failed(&self.dir, error))?.map(Bytes::from))
    }

    /// The database looks many up at once for less than one after the other.
    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        let mut rows: Vec<Option<Bytes>> = Vec::with_capacity(keys.len());
        let mut asked = Vec::new();
        for (position, key) in keys.iter().enumerate() {
            let layered = self.layers.get(key);
            asked.extend(layered.is_none().then_some(position));
            rows.push(layered.and_then(|row| row.cloned()));
        }
        let stored = self.stored.with_dependent(|_, stored| stored.multi_get(asked.iter().map(|at| &keys[*at])));
        for (position, row) in asked.into_iter().zip(stored) {
            rows[position] = row.map_err(|error| super::read_failed(&self.dir, error))?.map(Bytes::from);
        }
        Ok(rows)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let layers = self.layers.ranges(range.start, range.end);
        let scanned = self.stored.with_dependent(|_, stored| {
            merge::scan(layers, stored.raw_iterator_opt(merge::options(range)), direction, u64::MAX, visit)
        });
        scanned.map(drop).map_err(|error| super::read_failed(&self.dir, error))
    }
}
