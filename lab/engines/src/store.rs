//! What is measured of an engine: the part of `hedgerow_storage::Engine` that all can be given.

use anyhow::{Result, bail};
use bytes::Bytes;
use hedgerow_storage::Batch;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long compactions may take to come to rest.
const SETTLE_MAX: Duration = Duration::from_secs(600);
/// How often is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One replica's rows. Keys have [`crate::rows::KEY_SIZE`] bytes.
pub(crate) trait Store: Send + Sync {
    /// Writes all of `batch`, to memory.
    fn write(&self, batch: &Batch) -> Result<()>;

    /// The value of `key`, as the node would come by it: without the disk if that can be, and otherwise with it.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Makes durable what was written.
    fn flush(&self) -> Result<()>;

    /// Bytes that no flush has written yet.
    fn unflushed_bytes(&self) -> u64;

    /// Whether compactions have nothing to do, by what the engine says of itself.
    fn is_settled(&self) -> Result<bool>;

    /// Tables of flushes that no compaction has merged.
    fn files_at_level_zero(&self) -> u64;

    /// Rewrites everything.
    fn compact(&self) -> Result<()>;

    /// Puts a copy into `into`, that opens as the original does. Tables are linked.
    fn checkpoint(&self, into: &Path) -> Result<()>;
}

/// Rows in key order; `None` is a removal.
pub(crate) type Map = BTreeMap<u128, Option<Bytes>>;

/// Tables on the disk, below rows in memory ([`crate::layer`]). As in [`Store`] unless said otherwise.
pub(crate) trait Below: Send + Sync {
    /// Makes one table or more of `rows`, durably, in one atomic step.
    fn ingest(&self, rows: &Map) -> Result<()>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    fn is_settled(&self) -> Result<bool>;

    fn files_at_level_zero(&self) -> u64;

    fn compact(&self) -> Result<()>;

    fn checkpoint(&self, into: &Path) -> Result<()>;
}

/// Flushes, and waits until compactions have come to rest; how long that took.
pub(crate) fn settle(store: &dyn Store) -> Result<Duration> {
    let begun = Instant::now();
    store.flush()?;
    let mut looks_at_rest = 0;
    while looks_at_rest < 3 {
        if begun.elapsed() > SETTLE_MAX {
            bail!("compactions did not come to rest within {SETTLE_MAX:?}");
        }
        sleep(LOOK_EVERY);
        looks_at_rest = if store.is_settled()? { looks_at_rest + 1 } else { 0 };
    }
    Ok(begun.elapsed())
}
