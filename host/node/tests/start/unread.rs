//! A device that no longer gives back what is stored, met where a node applies its log.

use crate::world::{self, Ask, Key, World, running};
use bytes::Bytes;
use hedgerow_env::Disk;
use hedgerow_node::Config;
use hedgerow_storage::{
    Batch, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, MemoryEngines, RowVisitor,
};
use hedgerow_wire::Body;
use hedgerow_wire::message::Incr;
use serde_json::json;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EIO: i32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// Engines on a device with two data directories, of which the first stops answering.
#[derive(Debug)]
struct Device {
    engines: MemoryEngines,
    is_failing: Arc<AtomicBool>,
}

#[derive(Debug)]
struct OnDevice {
    engine: Arc<dyn Engine>,
    is_failing: Option<Arc<AtomicBool>>,
}

impl Engines for Device {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        let is_failing = dir.starts_with("/a").then(|| Arc::clone(&self.is_failing));
        Ok(Arc::new(OnDevice { engine: self.engines.open(dir)?, is_failing }))
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.engines.disk()
    }
}

impl Engine for OnDevice {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if self.is_failing.as_ref().is_some_and(|it| it.load(Ordering::Relaxed)) {
            return Err(EngineError::Read { source: io::Error::from_raw_os_error(EIO).into() });
        }
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.engine.scan(range, way, visit)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.engine.write(batch)
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.engine.flush()
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        self.engine.checkpoint(into)
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.engine.set_expire_floor(seconds);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.engine.compact()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

/// An increment has to read before it writes. Where that fails, the directory is given up, and not the process.
#[test]
fn m3_a_device_that_refuses_a_read_while_a_write_is_applied_takes_only_its_directory_along() {
    let mut world = World::configured(3, |config: &mut Config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(4, &json!({}));
    let node = world.replicas(0).followers[0];
    let machine = world.machines.remove(&node).unwrap();
    let (config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    let is_failing = Arc::new(AtomicBool::new(false));
    let engines = Device { engines: MemoryEngines::new(Arc::new(disk.clone())), is_failing: Arc::clone(&is_failing) };
    let clock = world.clock();
    world.machines.insert(node, world::start_with(config, disk.clone(), Arc::new(engines), clock));
    world.settle(node);
    world.run(Duration::from_secs(3));
    let before = running(&world, node);
    is_failing.store(true, Ordering::Relaxed);
    let keys: Vec<Key> = (0..40).map(|number| Key::new(table, 4, &format!("k{number}"))).collect();
    for key in &keys {
        let leader = world.replicas(key.partition).leader;
        let increment = Body::Incr(Incr { key: key.full(), increment: 1, ..Incr::default() });
        let number = world.send(leader, &key.header(&Ask::default()), &increment);
        world.wait(number);
    }
    world.run(Duration::from_secs(2));
    is_failing.store(false, Ordering::Relaxed);
    // What is left was in the other directory, and what was lost is made there anew.
    world.run_until(MINUTE, |world| running(world, node).len() == before.len());
    let names = disk.list(Path::new("/b/replicas")).unwrap();
    let kept = running(&world, node);
    assert!(kept.iter().any(|(group, replica)| before[group] == *replica) && kept != before, "{kept:?}");
    assert_eq!(names.len(), before.len(), "{names:?}");
}
