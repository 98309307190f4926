//! Rows in memory above tables on the disk, as the store has them: writes go to the first, flushes are sorted ingestions into the second.
//!
//! A thin layer, for measuring: keys have one size, a failed flush is not tried again, there are no snapshots.

use crate::rows::KEY_SIZE;
use crate::store::{Below, Map, Store};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use hedgerow_storage::Batch;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What a row takes beside its key and value, as the store counts it.
const ROW_OVERHEAD: u64 = 112;

#[derive(Default)]
struct Rows {
    recent: Map,
    recent_bytes: u64,
    flushing: Arc<Map>,
    flushing_bytes: u64,
}

/// Rows in memory above `B`.
pub(crate) struct Layered<B> {
    rows: RwLock<Rows>,
    /// Held during a flush.
    flushing: Mutex<()>,
    below: B,
}

fn head(key: &[u8]) -> Result<u128> {
    let key: [u8; KEY_SIZE] = key.try_into().context("a key of another size")?;
    Ok(u128::from_be_bytes(key))
}

impl<B: Below> Layered<B> {
    pub(crate) fn new(below: B) -> Self {
        Self { rows: RwLock::default(), flushing: Mutex::default(), below }
    }

    fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_mut(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_flush(&self) -> Arc<Map> {
        let mut rows = self.rows_mut();
        rows.flushing = Arc::new(std::mem::take(&mut rows.recent));
        rows.flushing_bytes = std::mem::take(&mut rows.recent_bytes);
        Arc::clone(&rows.flushing)
    }
}

impl<B: Below> Store for Layered<B> {
    fn write(&self, batch: &Batch) -> Result<()> {
        let mut rows = self.rows_mut();
        for (key, value) in batch.iter() {
            let size = |value: Option<&[u8]>| (KEY_SIZE + value.map_or(0, <[u8]>::len)) as u64 + ROW_OVERHEAD;
            rows.recent_bytes += size(value);
            if let Some(old) = rows.recent.insert(head(key)?, value.map(Bytes::copy_from_slice)) {
                rows.recent_bytes -= size(old.as_deref());
            }
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let wanted = head(key)?;
        {
            let rows = self.rows();
            if let Some(row) = rows.recent.get(&wanted).or_else(|| rows.flushing.get(&wanted)) {
                return Ok(row.clone());
            }
        }
        // What a flush has handed over meanwhile is found here.
        self.below.get(key)
    }

    fn flush(&self) -> Result<()> {
        let _turn = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = self.begin_flush();
        if !rows.is_empty() {
            self.below.ingest(&rows)?;
        }
        // Bound first: rows are dropped without the lock.
        let gone = {
            let mut rows = self.rows_mut();
            rows.flushing_bytes = 0;
            std::mem::take(&mut rows.flushing)
        };
        drop(gone);
        Ok(())
    }

    fn unflushed_bytes(&self) -> u64 {
        let rows = self.rows();
        rows.recent_bytes + rows.flushing_bytes
    }

    fn is_settled(&self) -> Result<bool> {
        self.below.is_settled()
    }

    fn files_at_level_zero(&self) -> u64 {
        self.below.files_at_level_zero()
    }

    fn compact(&self) -> Result<()> {
        self.flush()?;
        self.below.compact()
    }

    fn checkpoint(&self, into: &Path) -> Result<()> {
        self.flush()?;
        self.below.checkpoint(into)
    }
}
