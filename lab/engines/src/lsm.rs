//! The crate `lsm-tree`, as it would stand behind `Engine`: flushes are sorted ingestions, and one thread compacts.
//!
//! What the crate cannot do stands in decision 030.

use crate::Settings;
use crate::store::{Below, Map};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BlockSizePolicy, CompressionPolicy};
use lsm_tree::{AbstractTree as _, AnyTree, Cache, CompressionType, Config, DescriptorTable, SeqNo};
use lsm_tree::{SequenceNumberCounter, Slice, Table};
use rustix::process::setpriority_process;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, spawn};

/// Reads what is newest.
const NEWEST: SeqNo = SeqNo::MAX;
/// Bytes of a block, before compression; table files that are kept open.
const BLOCK_SIZE: u32 = 8 << 10;
const OPEN_FILES: usize = 502;
/// The lowest priority: as RocksDB's compactions have it in the store.
const NICE: i32 = 19;

/// What the compacting thread and the others tell each other.
#[derive(Default)]
struct Work {
    state: Mutex<WorkState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkState {
    is_wanted: bool,
    is_busy: bool,
    is_over: bool,
    failure: Option<String>,
}

/// The engine.
pub(crate) struct Lsm {
    directory: PathBuf,
    tree: AnyTree,
    visible: SequenceNumberCounter,
    target_size: u64,
    work: Arc<Work>,
    compacting: Option<JoinHandle<()>>,
}

impl Work {
    fn state(&self) -> MutexGuard<'_, WorkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want(&self) {
        self.state().is_wanted = true;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Waits for work. False: it is over.
    fn begin(&self) -> bool {
        let mut state = self.state();
        while !state.is_wanted && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.is_wanted, state.is_busy) = (false, true);
        !state.is_over
    }

    fn finish(&self, result: lsm_tree::Result<()>) {
        let mut state = self.state();
        state.is_busy = false;
        state.failure = result.err().map(|error| error.to_string()).or(state.failure.take());
    }
}

/// Removes what no version but former ones has: by itself the crate keeps the last former one, tables and all, until the next comes. By a
/// part of it that its documentation hides.
fn forget_former(tree: &AnyTree, directory: &Path, visible: &SequenceNumberCounter) -> lsm_tree::Result<()> {
    tree.get_version_history_lock().maintenance(directory, visible.get())
}

/// Compacts until there is nothing to do.
fn compact_all(
    tree: &AnyTree,
    (directory, target_size): (&Path, u64),
    visible: &SequenceNumberCounter,
    work: &Work,
) -> lsm_tree::Result<()> {
    let strategy = Arc::new(Leveled::default().with_table_target_size(target_size));
    loop {
        let before = tree.current_version().id();
        tree.compact(Arc::<Leveled>::clone(&strategy), visible.get())?;
        if tree.current_version().id() == before || work.is_over() {
            return forget_former(tree, directory, visible);
        }
    }
}

impl Lsm {
    pub(crate) fn open(directory: &Path, settings: &Settings) -> Result<Self> {
        let (seqno, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let none = CompressionType::None;
        let tree = Config::new(directory, seqno.clone(), visible.clone())
            .use_cache(Arc::new(Cache::with_capacity_bytes(settings.cache_size as u64)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_FILES))))
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_SIZE))
            .data_block_compression_policy(CompressionPolicy::new([none, none, CompressionType::Lz4]))
            .open()?;
        // After a new start the numbers go on above those that are stored: the crate leaves that to its user.
        if let Some(highest) = tree.get_highest_seqno() {
            seqno.set(highest + 1);
            visible.set(highest + 1);
        }
        let work = Arc::new(Work::default());
        let compacting = {
            let (tree, visible, work) = (tree.clone(), visible.clone(), Arc::clone(&work));
            let (path, target_size) = (directory.to_path_buf(), settings.flush_size);
            spawn(move || {
                let _ = setpriority_process(Some(rustix::thread::gettid()), NICE);
                while work.begin() {
                    let result = compact_all(&tree, (&path, target_size), &visible, &work);
                    work.finish(result);
                }
            })
        };
        Ok(Self {
            directory: directory.to_path_buf(),
            tree,
            visible,
            target_size: settings.flush_size,
            work,
            compacting: Some(compacting),
        })
    }

    fn background_failure(&self) -> Result<()> {
        self.work.state().failure.as_ref().map_or(Ok(()), |failure| Err(anyhow!("a compaction failed: {failure}")))
    }

    /// What a copy of the newest version needs. If another one comes in between it is looked for again.
    fn newest_version(&self) -> Result<Moment> {
        for _ in 0..100 {
            let version = self.tree.current_version();
            let current = fs::read(self.directory.join("current"))?;
            let stored = current.first_chunk().map(|id| u64::from_le_bytes(*id));
            let Ok(content) = fs::read(self.directory.join(format!("v{}", version.id()))) else { continue };
            if stored == Some(version.id()) {
                return Ok(Moment {
                    id: version.id(),
                    current,
                    content,
                    tables: version.iter_tables().cloned().collect(),
                });
            }
        }
        Err(anyhow!("a new version comes too often"))
    }
}

/// One version of the tree.
struct Moment {
    id: u64,
    /// The content of the file that names it, and of its own.
    current: Vec<u8>,
    content: Vec<u8>,
    /// Their files stay as long as these are held.
    tables: Vec<Table>,
}

impl Below for Lsm {
    fn ingest(&self, rows: &Map) -> Result<()> {
        self.background_failure()?;
        let mut ingestion = self.tree.ingestion()?;
        for (key, value) in rows {
            let key = key.to_be_bytes();
            match value {
                Some(value) => ingestion.write(key, Slice::from(value.clone()))?,
                None => ingestion.write_tombstone(key)?,
            }
        }
        ingestion.finish()?;
        self.work.want();
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tree.get(key, NEWEST)?.map(Bytes::from))
    }

    fn is_settled(&self) -> Result<bool> {
        self.background_failure()?;
        let state = self.work.state();
        Ok(!state.is_wanted && !state.is_busy)
    }

    fn files_at_level_zero(&self) -> u64 {
        self.tree.l0_run_count() as u64
    }

    fn compact(&self) -> Result<()> {
        self.tree.major_compact(self.target_size, self.visible.get())?;
        Ok(forget_former(&self.tree, &self.directory, &self.visible)?)
    }

    /// The crate has no checkpoint; this one goes by parts of it that its documentation hides.
    fn checkpoint(&self, into: &Path) -> Result<()> {
        let Moment { id, current, content, tables } = self.newest_version()?;
        let (from, to) = (self.directory.join("tables"), into.join("tables"));
        fs::create_dir_all(&to)?;
        for name in tables.iter().map(|table| table.id().to_string()) {
            fs::hard_link(from.join(&name), to.join(&name))?;
        }
        for (name, content) in [(format!("v{id}"), content), ("current".to_owned(), current)] {
            fs::write(into.join(&name), content)?;
            File::open(into.join(&name))?.sync_all()?;
        }
        File::open(&to)?.sync_all()?;
        Ok(File::open(into)?.sync_all()?)
    }
}

impl Drop for Lsm {
    fn drop(&mut self) {
        self.work.end();
        if let Some(thread) = self.compacting.take() {
            // What it failed at was told before.
            drop(thread.join());
        }
    }
}
