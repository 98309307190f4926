//! Reading a database once, to see that the disk gives back what was written.

use super::failure::classify;
use super::options::Shared;
use super::pace::STEP;
use crate::engine::{Cause, EngineError};
use hedgerow_env::Disk;
use rocksdb::{DB, ReadOptions};
use std::io;
use std::path::Path;

/// How much is read ahead, bytes.
const READAHEAD: usize = 1 << 20;

/// See [`crate::Engines::verify`]. Every data block is read, since a scan over all keys has to look at each of them; the
/// filters and the indices are read when a table is opened. RocksDB compares each with its checksum.
pub(super) fn verify(shared: &Shared, disk: &dyn Disk, dir: &Path) -> Result<(), EngineError> {
    let read_failed = |error| classify(error, disk, dir, |source: Cause| EngineError::Read { source });
    // Read-only, so that neither compactions nor a new manifest change what is verified.
    let db = DB::open_for_read_only(&shared.verified(), dir, false).map_err(read_failed)?;
    let mut options = ReadOptions::default();
    options.set_verify_checksums(true);
    options.fill_cache(false);
    options.set_readahead_size(READAHEAD);
    let mut rows = db.raw_iterator_opt(options);
    rows.seek_to_first();
    let mut fresh = 0;
    while let Some((key, value)) = rows.item() {
        fresh += (key.len() + value.len()) as u64;
        if fresh >= STEP {
            shared.verify_pacer().wait_after(std::mem::take(&mut fresh), || false);
            if shared.verify_pacer().is_ending() {
                let source = io::Error::new(io::ErrorKind::Interrupted, "the verification ends with the node");
                return Err(EngineError::Read { source: source.into() });
            }
        }
        rows.next();
    }
    rows.status().map_err(read_failed)
}
