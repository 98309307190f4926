//! Both engines behind one fixture: somewhere to open them, and a way to crash them.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros, reason = "each test crate uses its part")]
#![allow(clippy::disallowed_methods, reason = "a crash of RocksDB is a copy of its files")]

pub mod model;

use bytes::{Bytes, BytesMut};
use hedgerow_env::sim::SimDisk;
use hedgerow_storage::{Direction, Engine, Engines, KeyRange, MemoryEngines, Partition, RocksEngines, RocksSettings};
use hedgerow_types::ClientId;
use hedgerow_types::codec::encode_proposal;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::op::{Proposal, Write};
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs each test in the list over both engines.
macro_rules! suite {
    ($($name:ident)*) => {
        mod memory {
            $(#[test] fn $name() { super::$name::<crate::common::Memory>(); })*
        }
        mod rocks {
            $(#[test] fn $name() { super::$name::<crate::common::Rocks>(); })*
        }
    };
}
pub(crate) use suite;

/// What an engine that stands before another one passes on as it is.
macro_rules! pass_on {
    () => {
        fn flush(&self) -> Result<(), EngineError> {
            self.engine.flush()
        }

        fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
            self.engine.checkpoint(into)
        }

        fn set_expire_floor(&self, seconds: u32) {
            self.engine.set_expire_floor(seconds);
        }

        fn snapshot(&self) -> Result<std::sync::Arc<dyn hedgerow_storage::Snapshot>, EngineError> {
            self.engine.snapshot()
        }

        fn compact(&self) -> Result<(), EngineError> {
            self.engine.compact()
        }

        fn stats(&self) -> EngineStats {
            self.engine.stats()
        }
    };
}
pub(crate) use pass_on;

/// An engine kind with its storage.
pub trait Fixture {
    fn new() -> Self;
    fn engines(&self) -> &dyn Engines;
    /// A place for files, of the engines' own disk.
    fn root(&self) -> &Path;
    /// The machine stops while the engine in `dir` is open. Returns where its remains are.
    fn crash(&mut self, dir: &Path, engine: Arc<dyn Engine>) -> PathBuf;
}

pub struct Memory {
    engines: MemoryEngines,
    pub disk: SimDisk,
    random: Random,
}

impl Fixture for Memory {
    fn new() -> Self {
        let disk = SimDisk::new();
        Self { engines: MemoryEngines::new(Arc::new(disk.clone())), disk, random: Random::new(1) }
    }

    fn engines(&self) -> &dyn Engines {
        &self.engines
    }

    fn root(&self) -> &Path {
        Path::new("/data")
    }

    fn crash(&mut self, dir: &Path, engine: Arc<dyn Engine>) -> PathBuf {
        self.disk.crash(&mut self.random);
        drop(engine);
        dir.to_path_buf()
    }
}

pub struct Rocks {
    engines: RocksEngines,
    root: tempfile::TempDir,
    crashes: u32,
}

impl Fixture for Rocks {
    fn new() -> Self {
        let settings = RocksSettings { cache_size: 1 << 20, write_buffer_size: 16 << 20, ..RocksSettings::default() };
        let engines = RocksEngines::new(&settings).expect("engines");
        Self { engines, root: temporary_dir(), crashes: 0 }
    }

    fn engines(&self) -> &dyn Engines {
        &self.engines
    }

    fn root(&self) -> &Path {
        self.root.path()
    }

    // Dropping a database flushes it, so the files are copied before: what a killed process leaves. Its threads may
    // still rename and remove files: the copy counts once the directory was the same before and after.
    fn crash(&mut self, dir: &Path, engine: Arc<dyn Engine>) -> PathBuf {
        for _ in 0..1_000 {
            self.crashes += 1;
            let remains = self.root.path().join(format!("crash{}", self.crashes));
            fs::create_dir(&remains).expect("a directory");
            let before = listing(dir);
            let copied = before.keys().all(|name| fs::copy(dir.join(name), remains.join(name)).is_ok());
            if copied && listing(dir) == before {
                drop(engine);
                return remains;
            }
        }
        panic!("the files in {} never came to rest", dir.display());
    }
}

/// In memory where the system has such a place: these tests sync often and never lose power.
pub fn temporary_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// Names and sizes of the files in `dir`.
fn listing(dir: &Path) -> BTreeMap<OsString, u64> {
    let files = fs::read_dir(dir).expect("a directory").map(|file| file.expect("a file"));
    files.map(|file| (file.file_name(), file.metadata().map_or(0, |metadata| metadata.len()))).collect()
}

/// A partition together with where it lives.
pub struct Store<F: Fixture> {
    // Dropped first: a database that finds its directory gone waits for it to come back.
    partition: Option<Partition>,
    pub fixture: F,
    pub dir: PathBuf,
}

impl<F: Fixture> Store<F> {
    pub fn new() -> Self {
        let fixture = F::new();
        let dir = fixture.root().join("replica");
        let mut store = Self { partition: None, fixture, dir };
        store.open();
        store
    }

    fn open(&mut self) {
        let engine = self.fixture.engines().open(&self.dir).expect("opens");
        self.partition = Some(Partition::open(engine).expect("opens"));
    }

    pub fn partition(&self) -> &Partition {
        self.partition.as_ref().expect("open")
    }

    pub fn partition_mut(&mut self) -> &mut Partition {
        self.partition.as_mut().expect("open")
    }

    /// Flushes; the node takes it for later than anything in the log.
    pub fn flush(&mut self) {
        self.flush_at(u32::MAX);
    }

    /// Flushes when it is `now`.
    pub fn flush_at(&mut self, now: u32) {
        let point = self.partition().flush_point();
        self.partition().engine().flush().expect("flushes");
        self.partition_mut().mark_flushed(point, now);
    }

    /// All rows.
    pub fn rows(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        Self::rows_in(&**self.partition().engine())
    }

    /// All rows of an engine.
    pub fn rows_in(engine: &dyn Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        engine.scan(KeyRange::default(), Direction::Ascending, &mut visit).expect("scans");
        rows
    }

    /// The exactly-once table as a replica reads it that has just begun.
    pub fn reload_sessions(&mut self) {
        let engine = Arc::clone(self.partition().engine());
        let mut partition = Partition::open(engine).expect("opens");
        partition.load_sessions().expect("reads");
        self.partition = Some(partition);
    }

    /// Loses what is not durable, and opens what remains.
    pub fn crash(&mut self) {
        let partition = self.partition.take().expect("open");
        let engine = Arc::clone(partition.engine());
        drop(partition);
        self.dir = self.fixture.crash(&self.dir, engine);
        self.open();
    }

    /// Goes on from a checkpoint instead.
    pub fn move_to_checkpoint(&mut self, number: usize) {
        let into = self.fixture.root().join(format!("checkpoints/{number}"));
        self.partition().engine().checkpoint(&into).expect("a checkpoint");
        self.partition = None;
        self.dir = into;
        self.open();
    }
}

/// The entry at `index` that holds `proposal`.
pub fn entry(index: u64, proposal: &Proposal) -> Entry {
    let mut data = BytesMut::new();
    encode_proposal(proposal, &mut data);
    Entry { index, term: 1, kind: EntryKind::Normal, data: data.freeze() }
}

/// A leader's first entry.
pub fn empty_entry(index: u64) -> Entry {
    Entry { index, term: 1, kind: EntryKind::Normal, data: Bytes::new() }
}

/// A proposal of no client.
pub fn anonymous(now: u32, write: Write) -> Proposal {
    Proposal { client: ClientId(0), sequence: 0, now, is_agreed: false, write }
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
