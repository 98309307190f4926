//! The store's own engine over RocksDB, with its rows in memory, at the settings that the other one is given too.

use crate::Settings;
use crate::store::Store;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use hedgerow_storage::{Batch, Engine, EngineError, Engines as _, RocksEngines, RocksSettings};
use std::path::Path;
use std::sync::Arc;

/// The engine.
pub(crate) struct Rocks(Arc<dyn Engine>);

impl Rocks {
    pub(crate) fn open(directory: &Path, settings: &Settings) -> Result<Self> {
        let engines = RocksEngines::new(&RocksSettings {
            cache_size: settings.cache_size,
            // The other engine has no such caches of rows above it.
            hot_rows_size: 1 << 16,
            write_buffer_size: 1 << 20,
            flush_size: settings.flush_size as usize,
            ..RocksSettings::default()
        })?;
        Ok(Self(engines.open(directory)?))
    }
}

impl Store for Rocks {
    fn write(&self, batch: &Batch) -> Result<()> {
        Ok(self.0.write(batch)?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.0.get_at_once(key) {
            Err(EngineError::NotAtOnce) => Ok(self.0.snapshot()?.get(key)?),
            result => Ok(result?),
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(self.0.flush()?)
    }

    fn unflushed_bytes(&self) -> u64 {
        self.0.unflushed_bytes()
    }

    fn is_settled(&self) -> Result<bool> {
        self.0.background_failure().map_or(Ok(()), Err)?;
        let debt = self.0.debt();
        Ok(debt.files < 4 && debt.bytes == 0)
    }

    fn files_at_level_zero(&self) -> u64 {
        self.0.debt().files
    }

    fn compact(&self) -> Result<()> {
        Ok(self.0.compact()?)
    }

    fn checkpoint(&self, into: &Path) -> Result<()> {
        self.0.checkpoint(into).context("a checkpoint by RocksDB")
    }
}
