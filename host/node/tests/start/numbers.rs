//! By what a start tells a copy of a data directory from the directory itself, and what must not be taken for one.

use crate::replicas::{kill, open};
use crate::world::World;
use hedgerow_env::sim::SimDisk;
use hedgerow_node::{Config, OpenError};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::NodeId;
use hedgerow_types::random::Random;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const NODE: NodeId = NodeId(3);

/// A node with two data directories that was killed, and the world that it is missing in.
fn killed() -> (World, Config, SimDisk) {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    world.create_table(4, &json!({}));
    world.run(Duration::from_secs(5));
    let (config, disk) = kill(&mut world, NODE);
    (world, config, disk)
}

/// Whether it can start with what is on `disk`, where it is killed again.
fn start(world: &World, config: &Config, disk: &SimDisk) -> Result<(), OpenError> {
    let started = open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), world);
    disk.kill_process();
    started
}

/// Ends a start after each of its writes in turn, by a kill and by a power failure. The next one goes on.
fn assert_no_start_makes_a_copy(world: &World, config: &Config, disk: &SimDisk) {
    for calls in 0..10_000 {
        let disk = disk.copy();
        disk.stop_after(calls);
        let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
        let is_over = open(config, &disk, engines, world).is_ok();
        if calls % 2 == 0 {
            disk.kill_process();
        } else {
            disk.crash(&mut Random::new(calls));
        }
        let next = Config { seed: config.seed + 1 + calls, ..config.clone() };
        if let Err(error) = start(world, &next, &disk) {
            panic!("after {calls} calls: {error}");
        }
        if is_over {
            return assert!(calls > 20, "{calls}");
        }
    }
    panic!("it has no end");
}

#[test]
fn d7d_a_start_that_ends_anywhere_makes_no_directory_a_copy() {
    let (world, config, disk) = killed();
    assert_no_start_makes_a_copy(&world, &Config { seed: config.seed + 1_000, ..config.clone() }, &disk);
}
