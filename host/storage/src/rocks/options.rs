//! RocksDB's options: many small databases in one process, each of which may grow large.

use super::flushed::Room;
use super::hot::HotRows;
use super::pace::Pacer;
use crate::layout::is_droppable;
use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::{
    BlockBasedOptions, Cache, CompactionDecision, DB, DBCompressionType, Env, InfoLogger, LogLevel, Options,
    WaitForCompactOptions,
};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Table files are handed to the disk in pieces of this size, bytes.
const BYTES_PER_SYNC: u64 = 256 << 10;
/// How fast the compactions of one database may write, bytes per second.
const WRITE_RATE_MAX: i64 = 64 << 20;
/// How finely that is portioned out, and how often the less urgent are served first, one in so many times.
const WRITE_REFILL_MICROS: i64 = 5_000;
const WRITE_FAIRNESS: i32 = 10;

/// How fast verifications read, all of a process together, bytes per second: not what a transfer waits for (128 MiB by default).
const VERIFY_RATE: u64 = 256 << 20;

/// Which part of what unflushed rows should take rows may take that were just flushed.
const FLUSHED_SHARE: u64 = 4;

/// RocksDB keeps so many descriptors for other files than tables.
const OTHER_FILES: usize = 10;
/// Table files that every database may keep open: the fewest that RocksDB permits.
const TABLE_FILES_MIN: usize = 10;
/// Table files of one database that are kept open at most: some gigabytes; others are opened when they are read.
const TABLE_FILES_MAX: usize = 502;

/// How much the engines of one [`super::RocksEngines`] may use together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksSettings {
    /// Block cache, bytes: filled as blocks are read, never above. Default 512 MiB.
    pub cache_size: usize,
    /// Rows kept as they were read, bytes: a hit costs a tenth of a search in the block cache. Default 128 MiB.
    pub hot_rows_size: usize,
    /// What a flush usually writes, bytes, from 64 KiB: the sizes of the levels follow from it. Default 16 MiB.
    pub flush_size: usize,
    /// What the unflushed rows of all databases together should take in memory, bytes; a quarter as much more for those that the last
    /// flushes have written. Default 256 MiB.
    pub write_buffer_size: usize,
    /// Bytes per second that all flushes together write while nothing is unflushed; twice as many where unflushed rows take
    /// what they should, without limit from twice as much on. From 1. Default 32 MiB.
    pub flush_rate: u64,
    /// Threads that compact, for the whole process; from 1. Default 1, enough for a virtual SSD.
    pub background_threads: u16,
    /// Table files that all databases together may keep open beyond the ten that each of them may. Those that are opened first
    /// get more. Default 65,536.
    pub spare_files: usize,
    /// Whether whoever opens, flushes or lets go of a snapshot waits for the compactions that this causes, and removes himself
    /// what is obsolete, so that what lies on the disk follows from the calls alone: for simulations. Default false.
    pub waits_for_compactions: bool,
}

impl Default for RocksSettings {
    fn default() -> Self {
        Self {
            cache_size: 512 << 20,
            hot_rows_size: 128 << 20,
            flush_size: 16 << 20,
            write_buffer_size: 256 << 20,
            flush_rate: 32 << 20,
            background_threads: 1,
            spare_files: 1 << 16,
            waits_for_compactions: false,
        }
    }
}

/// What the databases share.
pub(super) struct Shared {
    env: Env,
    cache: Cache,
    hot_rows: HotRows,
    flushed_room: Room,
    pacer: Pacer,
    verify_pacer: Pacer,
    numbers: AtomicU64,
    settings: RocksSettings,
    /// What is left of [`RocksSettings::spare_files`].
    spare_files: AtomicUsize,
}

/// Table files that one database may keep open beyond the fewest; given back when it is dropped.
pub(super) struct SpareFiles {
    shared: Arc<Shared>,
    count: usize,
}

impl SpareFiles {
    /// A sixteenth of what is left, so that the databases that are opened next get their share too.
    pub(super) fn take(shared: &Arc<Shared>) -> Self {
        let share = |left: usize| (left / 16).min(TABLE_FILES_MAX - TABLE_FILES_MIN);
        let taken =
            shared.spare_files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left - share(left)));
        Self { shared: Arc::clone(shared), count: taken.map_or(0, share) }
    }

    /// Options of the database that keeps these files open, whose compactions drop what is expired at `expire_floor`.
    pub(super) fn database(&self, expire_floor: &Arc<AtomicU32>) -> Options {
        let mut options = self.shared.database(expire_floor);
        options.set_max_open_files((OTHER_FILES + TABLE_FILES_MIN + self.count) as i32);
        options
    }
}

impl Drop for SpareFiles {
    fn drop(&mut self) {
        self.shared.spare_files.fetch_add(self.count, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn new(settings: &RocksSettings) -> Result<Self, rocksdb::Error> {
        let mut env = Env::new()?;
        let threads = i32::from(settings.background_threads.max(1));
        env.set_background_threads(threads);
        if !settings.waits_for_compactions {
            // Nobody waits for a compaction; requests have the processors first.
            env.lower_thread_pool_cpu_priority();
        }
        let cache = Cache::new_lru_cache(settings.cache_size);
        let hot_rows = HotRows::new(settings.hot_rows_size);
        let flushed_room = Room::new(settings.write_buffer_size as u64 / FLUSHED_SHARE);
        let spare_files = AtomicUsize::new(settings.spare_files);
        let pacer = Pacer::new(settings.flush_rate, settings.write_buffer_size as u64);
        // Nothing is unflushed for it, so that its rate stays what it is.
        let verify_pacer = Pacer::new(VERIFY_RATE, 1);
        let (numbers, settings) = (AtomicU64::new(0), settings.clone());
        Ok(Self { env, cache, hot_rows, flushed_room, pacer, verify_pacer, numbers, settings, spare_files })
    }

    pub(super) const fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    /// At what pace verifications read.
    pub(super) const fn verify_pacer(&self) -> &Pacer {
        &self.verify_pacer
    }

    pub(super) const fn hot_rows(&self) -> &HotRows {
        &self.hot_rows
    }

    /// Where rows that were just flushed are kept.
    pub(super) const fn flushed_room(&self) -> &Room {
        &self.flushed_room
    }

    /// Returns when `db` has nothing to compact, if that is asked for.
    pub(super) fn settle(&self, db: &DB) -> Result<(), rocksdb::Error> {
        if self.settings.waits_for_compactions {
            return db.wait_for_compact(&WaitForCompactOptions::default());
        }
        Ok(())
    }

    /// Never the same twice.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Options of the table files that flushes write.
    pub(super) fn flushed_table(&self) -> Options {
        let mut options = Options::default();
        options.set_env(&self.env);
        options.set_block_based_table_factory(&self.tables());
        options.set_compression_type(DBCompressionType::None);
        options
    }

    /// Options of one database, whose compactions drop what is expired at `expire_floor`.
    fn database(&self, expire_floor: &Arc<AtomicU32>) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_env(&self.env);
        options.set_block_based_table_factory(&self.tables());
        // What is young is rewritten soon.
        options.set_compression_per_level(&[DBCompressionType::None, DBCompressionType::None, DBCompressionType::Lz4]);
        options.set_compaction_filter_factory(ExpiryFactory { floor: Arc::clone(expire_floor) });
        self.set_levels(&mut options);
        set_small_footprint(&mut options);
        options.set_avoid_unnecessary_blocking_io(!self.settings.waits_for_compactions);
        options
    }

    /// Options of a database that is read once, without any cache: one may hold what the disk does not.
    pub(super) fn verified(&self) -> Options {
        let mut tables = BlockBasedOptions::default();
        tables.disable_cache();
        let mut options = Options::default();
        options.set_env(&self.env);
        options.set_block_based_table_factory(&tables);
        options.set_max_open_files((OTHER_FILES + TABLE_FILES_MIN) as i32);
        set_small_footprint(&mut options);
        options
    }

    fn tables(&self) -> BlockBasedOptions {
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&self.cache);
        tables.set_block_size(8 << 10);
        tables.set_bloom_filter(10.0, false);
        tables.set_optimize_filters_for_memory(true);
        // Filters and indices count against the cache, so that memory has one bound; hot ones stay in it.
        tables.set_cache_index_and_filter_blocks(true);
        tables.set_cache_index_and_filter_blocks_with_high_priority(true);
        tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
        tables.set_format_version(6);
        tables
    }

    fn set_levels(&self, options: &mut Options) {
        let flush = self.settings.flush_size.max(64 << 10) as u64;
        options.set_level_zero_file_num_compaction_trigger(4);
        options.set_max_bytes_for_level_base(4 * flush);
        options.set_target_file_size_base(flush.max(16 << 20));
        // Spreads what compactions write over time: the log on the same disk waits behind every burst of theirs. The table
        // writer of a flush goes by neither: see `pace.rs`.
        options.set_bytes_per_sync(BYTES_PER_SYNC);
        options.set_ratelimiter(WRITE_RATE_MAX, WRITE_REFILL_MICROS, WRITE_FAIRNESS);
    }
}

/// Keeps an idle database small: no log of its own doings, no statistics threads, no large preallocation.
fn set_small_footprint(options: &mut Options) {
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| {}));
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_skip_stats_update_on_db_open(true);
    options.set_manifest_preallocation_size(64 << 10);
    options.set_max_manifest_file_size(16 << 20);
    options.set_table_cache_num_shard_bits(2);
    options.set_max_file_opening_threads(1);
    // Memtables stay empty.
    options.set_write_buffer_size(64 << 10);
    options.set_arena_block_size(4 << 10);
    options.set_recycle_log_file_num(0);
}

/// Makes the filter of each compaction.
struct ExpiryFactory {
    floor: Arc<AtomicU32>,
}

impl CompactionFilterFactory for ExpiryFactory {
    type Filter = Expiry;

    fn create(&mut self, _: CompactionFilterContext) -> Expiry {
        Expiry { floor: self.floor.load(Ordering::Acquire) }
    }

    fn name(&self) -> &CStr {
        c"hedgerow.expiry"
    }
}

/// Drops rows that expired at or before the floor as it was when the compaction began.
struct Expiry {
    floor: u32,
}

impl CompactionFilter for Expiry {
    fn filter(&mut self, _level: u32, key: &[u8], value: &[u8]) -> CompactionDecision {
        if is_droppable(key, value, self.floor) { CompactionDecision::Remove } else { CompactionDecision::Keep }
    }

    fn name(&self) -> &CStr {
        c"hedgerow.expiry"
    }
}
