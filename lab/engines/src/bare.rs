//! RocksDB itself, with the options that the store gives it (`host/storage/src/rocks/options.rs`), below the same layer as lsm-tree.

use crate::Settings;
use crate::store::{Below, Map};
use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::{BACKGROUND_ERRORS, ESTIMATE_PENDING_COMPACTION_BYTES, num_files_at_level};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Env, InfoLogger, IngestExternalFileOptions, LogLevel, Options,
    SstFileWriter,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// As in the store.
const WRITE_RATE_MAX: i64 = 64 << 20;
const WRITE_REFILL_MICROS: i64 = 5_000;
const WRITE_FAIRNESS: i32 = 10;
const BYTES_PER_SYNC: u64 = 256 << 10;
const OPEN_FILES: i32 = 512;

/// One database.
pub(crate) struct Bare {
    db: DB,
    directory: PathBuf,
    table_options: Options,
    flushes: AtomicU64,
}

fn tables(cache: &Cache) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    tables.set_block_cache(cache);
    tables.set_block_size(8 << 10);
    tables.set_bloom_filter(10.0, false);
    tables.set_optimize_filters_for_memory(true);
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_cache_index_and_filter_blocks_with_high_priority(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    tables.set_format_version(6);
    tables
}

fn database(env: &Env, tables: &BlockBasedOptions, settings: &Settings) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_env(env);
    options.set_block_based_table_factory(tables);
    options.set_compression_per_level(&[DBCompressionType::None, DBCompressionType::None, DBCompressionType::Lz4]);
    options.set_level_zero_file_num_compaction_trigger(4);
    options.set_max_bytes_for_level_base(4 * settings.flush_size);
    options.set_target_file_size_base(settings.flush_size.max(16 << 20));
    options.set_bytes_per_sync(BYTES_PER_SYNC);
    options.set_ratelimiter(WRITE_RATE_MAX, WRITE_REFILL_MICROS, WRITE_FAIRNESS);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| {}));
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_skip_stats_update_on_db_open(true);
    options.set_max_open_files(OPEN_FILES);
    options.set_max_file_opening_threads(1);
    options.set_write_buffer_size(64 << 10);
    options.set_avoid_unnecessary_blocking_io(true);
    options.set_advise_random_on_open(!settings.reads_ahead);
    options
}

impl Bare {
    pub(crate) fn open(directory: &Path, settings: &Settings) -> Result<Self> {
        let mut env = Env::new()?;
        env.set_background_threads(1);
        env.lower_thread_pool_cpu_priority();
        let tables = tables(&Cache::new_lru_cache(settings.cache_size));
        let db = DB::open(&database(&env, &tables, settings), directory)?;
        let mut table_options = Options::default();
        table_options.set_env(&env);
        table_options.set_block_based_table_factory(&tables);
        table_options.set_compression_type(DBCompressionType::None);
        Ok(Self { db, directory: directory.to_path_buf(), table_options, flushes: AtomicU64::new(0) })
    }

    fn property(&self, name: &rocksdb::properties::PropName) -> Result<u64> {
        self.db.property_int_value(name)?.context("a property is missing")
    }
}

impl Below for Bare {
    fn ingest(&self, rows: &Map) -> Result<()> {
        let path = self.directory.join(format!("flush-{}.tmp", self.flushes.fetch_add(1, Ordering::Relaxed)));
        let mut table = SstFileWriter::create(&self.table_options);
        table.open(&path)?;
        for (key, value) in rows {
            match value {
                Some(value) => table.put(key.to_be_bytes(), value)?,
                None => table.delete(key.to_be_bytes())?,
            }
        }
        table.finish()?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        Ok(self.db.ingest_external_file_opts(&options, vec![path])?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.db.get(key)?.map(Bytes::from))
    }

    fn is_settled(&self) -> Result<bool> {
        if self.property(BACKGROUND_ERRORS)? > 0 {
            return Err(anyhow!("a compaction failed"));
        }
        Ok(self.files_at_level_zero() < 4 && self.property(ESTIMATE_PENDING_COMPACTION_BYTES)? == 0)
    }

    fn files_at_level_zero(&self) -> u64 {
        self.db.property_int_value(num_files_at_level(0)).ok().flatten().unwrap_or(0)
    }

    fn compact(&self) -> Result<()> {
        self.db.compact_range::<&[u8], &[u8]>(None, None);
        Ok(())
    }

    fn checkpoint(&self, into: &Path) -> Result<()> {
        Ok(Checkpoint::new(&self.db)?.create_checkpoint(into)?)
    }
}
