//! Which storage engine the nodes of a run have: most have the one in memory, a share of the seeds has RocksDB.

mod mirror;
mod scratch;

use hedgerow_env::Disk;
use hedgerow_storage::{Engines, MemoryEngines};
use mirror::MirroredEngines;
use std::sync::Arc;

/// One seed in so many runs on RocksDB. Drawn from the seed alone, since what is drawn from the run's own randomness changes
/// all that is drawn after it. Prime to the other numbers by which seeds are told apart.
const ROCKSDB_INTERVAL: u64 = 11;

/// A storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// The reference engine, whose file lies on the simulated disk.
    Memory,
    /// The engine that ships, whose files do (`mirror.rs`).
    RocksDb,
}

impl EngineKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::RocksDb];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::RocksDb => "rocksdb",
        }
    }

    /// The engine with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The engine of `seed`, if none is asked for.
    pub const fn of_seed(seed: u64) -> Self {
        if seed.is_multiple_of(ROCKSDB_INTERVAL) { Self::RocksDb } else { Self::Memory }
    }
}

/// The engines of one machine: new ones for each life of its process.
#[derive(Debug)]
pub(crate) struct MachineEngines {
    kind: EngineKind,
    cold_interval: Option<u32>,
    running: Option<Arc<MirroredEngines>>,
}

impl MachineEngines {
    /// One in so many flushed rows counts as not being in memory, where all of them are.
    pub(crate) const fn new(kind: EngineKind, cold_interval: Option<u32>) -> Self {
        Self { kind, cold_interval, running: None }
    }

    /// The engines of a process that starts, on `disk`.
    pub(crate) fn begin_life(&mut self, disk: Arc<dyn Disk>) -> Result<Arc<dyn Engines>, String> {
        self.end_life();
        Ok(match self.kind {
            EngineKind::Memory => {
                let engines = MemoryEngines::new(disk);
                match self.cold_interval {
                    Some(interval) => Arc::new(engines.with_cold_rows(interval)),
                    None => Arc::new(engines),
                }
            }
            EngineKind::RocksDb => {
                let engines = Arc::new(MirroredEngines::new(disk).map_err(|error| error.to_string())?);
                self.running = Some(Arc::clone(&engines));
                engines
            }
        })
    }

    /// Whether it is the engine that ships.
    pub(crate) fn is_real(&self) -> bool {
        self.kind == EngineKind::RocksDb
    }

    /// The process dies: nothing that its engines do from now on reaches the disk. To be called before its handles are dropped.
    pub(crate) fn end_life(&mut self) {
        if let Some(engines) = self.running.take() {
            engines.die();
        }
    }
}
