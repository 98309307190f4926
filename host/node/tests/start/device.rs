//! Engines whose calls fail while a switch says so, as those on a device that refuses, or in a process that lacks something.

use crate::world::{self, World};
use bytes::Bytes;
use hedgerow_env::Disk;
use hedgerow_storage::{
    Batch, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, MemoryEngines, RowVisitor, Snapshot,
};
use hedgerow_types::NodeId;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// See [`Switch::fail_reads`].
pub const DAMAGE: i32 = -1;

/// What fails, and how often it has.
#[derive(Debug, Default)]
pub struct Switch {
    /// The system's error; 0 = all goes well, [`DAMAGE`] = what comes back is not what was stored.
    reads: AtomicI32,
    writes: AtomicI32,
    background: AtomicI32,
    failures: AtomicU32,
}

impl Switch {
    pub fn fail_reads(&self, error: i32) {
        self.reads.store(error, Ordering::Relaxed);
    }

    pub fn fail_writes(&self, error: i32) {
        self.writes.store(error, Ordering::Relaxed);
    }

    pub fn fail_background(&self, error: i32) {
        self.background.store(error, Ordering::Relaxed);
    }

    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    fn check(&self, error: &AtomicI32) -> io::Result<()> {
        match error.load(Ordering::Relaxed) {
            0 => Ok(()),
            error => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }
}

/// Engines of which those below one directory go by the switch.
#[derive(Debug)]
struct Device {
    engines: MemoryEngines,
    below: PathBuf,
    switch: Arc<Switch>,
}

#[derive(Debug)]
struct OnDevice {
    engine: Arc<dyn Engine>,
    switch: Arc<Switch>,
}

/// Starts `node` anew with engines that go by the switch, those whose directories lie in `below`.
pub fn restart_on_device(world: &mut World, node: NodeId, below: impl Into<PathBuf>) -> Arc<Switch> {
    let machine = world.machines.remove(&node).unwrap();
    let (config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    let switch = Arc::new(Switch::default());
    let engines = MemoryEngines::new(Arc::new(disk.clone()));
    let engines = Device { engines, below: below.into(), switch: Arc::clone(&switch) };
    let clock = world.clock();
    world.machines.insert(node, world::start_with(config, disk, Arc::new(engines), clock));
    world.settle(node);
    world.run(Duration::from_secs(3));
    switch
}

impl Engines for Device {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        let engine = self.engines.open(dir)?;
        let switch = if dir.starts_with(&self.below) { Arc::clone(&self.switch) } else { Arc::default() };
        Ok(Arc::new(OnDevice { engine, switch }))
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        self.engines.verify(dir)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.engines.disk()
    }
}

impl Snapshot for OnDevice {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Engine::get(self, key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        Engine::scan(self, range, way, visit)
    }

    fn get_all_at_once(&self, _: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        Err(EngineError::NotAtOnce)
    }

    fn scan_at_once(&self, _: KeyRange<'_>, _: Direction, _: RowVisitor<'_>) -> Result<(), EngineError> {
        Err(EngineError::NotAtOnce)
    }
}

impl Engine for OnDevice {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if self.switch.reads.load(Ordering::Relaxed) == DAMAGE {
            return Err(EngineError::Damaged { what: "a block's checksum is another".into() });
        }
        self.switch.check(&self.switch.reads).map_err(|source| EngineError::Read { source: source.into() })?;
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.engine.scan(range, way, visit)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.switch.check(&self.switch.writes).map_err(|source| EngineError::Write { source: source.into() })?;
        self.engine.write(batch)
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.engine.flush()
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        self.engine.checkpoint(into)
    }

    /// As an engine whose rows are on the device, and not in memory.
    fn get_at_once(&self, _: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Err(EngineError::NotAtOnce)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        Ok(Arc::new(OnDevice { engine: Arc::clone(&self.engine), switch: Arc::clone(&self.switch) }))
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.engine.set_expire_floor(seconds);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.engine.compact()
    }

    fn background_failure(&self) -> Option<EngineError> {
        let failure = self.switch.check(&self.switch.background).err()?;
        Some(EngineError::Write { source: failure.into() })
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
