//! Checkpoints that are damaged: where they are made, or on their way.

use crate::world::{self, Ask, World, running};
use crate::{SECOND, Stage};
use bytes::Bytes;
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, write_file_durably};
use hedgerow_node::Job;
use hedgerow_storage::{
    Batch, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, MemoryEngines, RowVisitor, Snapshot,
};
use hedgerow_types::{NodeId, ReadLevel};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A block that nobody reads, and that is not what was written: it is copied with the rest.
const ROT: &str = "rot";

/// Engines whose directories may have such a block.
#[derive(Debug)]
struct Rotting {
    engines: MemoryEngines,
}

#[derive(Debug)]
struct Rotten {
    engine: Arc<dyn Engine>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Engines for Rotting {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(Rotten { engine: self.engines.open(dir)?, disk: self.disk(), dir: dir.to_owned() }))
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        if self.disk().exists(&dir.join(ROT)) {
            return Err(EngineError::Damaged { what: "a block that nobody reads".into() });
        }
        self.engines.verify(dir)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.engines.disk()
    }
}

impl Engine for Rotten {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
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
        self.engine.checkpoint(into)?;
        if self.disk.exists(&self.dir.join(ROT)) {
            write_file_durably(&*self.disk, &into.join(ROT), b"x").unwrap();
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.engine.snapshot()
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

/// Starts a node anew over `disk`, with engines that may rot.
fn start(world: &mut World, node: NodeId, disk: SimDisk) {
    let mut config = world.machines.remove(&node).unwrap().config.clone();
    config.seed += 1_000;
    disk.kill_process();
    let engines = Arc::new(Rotting { engines: MemoryEngines::new(Arc::new(disk.clone())) });
    let clock = world.clock();
    world.machines.insert(node, world::start_with(config, disk, engines, clock));
    world.settle(node);
}

fn stage() -> Stage {
    let mut stage = Stage::new(|_| {});
    for node in [1, 2, 3].map(NodeId) {
        let disk = stage.world.machines[&node].disk.clone();
        start(&mut stage.world, node, disk);
        stage.world.run(5 * SECOND);
    }
    let (leader, partition) = (stage.leader, stage.key.partition);
    stage.world.run_until(60 * SECOND, |world| world.replicas(partition).leader == leader);
    stage.write(100);
    stage
}

/// Directories of the stage's partition in a folder of a node.
fn directories(stage: &Stage, node: NodeId, folder: &str) -> Vec<PathBuf> {
    let folder = Path::new("/data").join(folder);
    let prefix = format!("{}.{}-", stage.key.table, stage.key.partition);
    let names = stage.world.machines[&node].disk.list(&folder).unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with(&prefix)).map(|name| folder.join(name)).collect()
}

/// All of the partition, as the leader has it, and no replica with a damaged block.
fn assert_sound(stage: &mut Stage, asked: NodeId) {
    let leader = stage.world.replicas(stage.key.partition).leader;
    let read = stage.world.get(&stage.key.clone(), leader, &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
    assert_eq!(read.0, format!("{:01000}", stage.written));
    assert!(stage.is_whole(asked));
    for node in [1, 2, 3].map(NodeId) {
        let disk = &stage.world.machines[&node].disk;
        let rotten: Vec<PathBuf> =
            directories(stage, node, "replicas").into_iter().filter(|it| disk.exists(&it.join(ROT))).collect();
        assert_eq!(rotten, Vec::<PathBuf>::new(), "node {node}");
    }
}

/// Pitfall D4a: of three copies one is away and one has a block that nobody has read. The whole one is what all become.
#[test]
fn d4a_damage_is_not_copied_and_the_group_keeps_its_majority() {
    let mut stage = stage();
    let (leader, other) = (stage.leader, stage.followers[1]);
    let damaged = directories(&stage, leader, "replicas").remove(0);
    write_file_durably(&stage.world.machines[&leader].disk, &damaged.join(ROT), b"x").unwrap();
    start(&mut stage.world, stage.followers[0], SimDisk::new());
    stage.run_until_whole(other, 180);
    stage.world.run(60 * SECOND);
    stage.run_until_whole(other, 60);
    assert_sound(&mut stage, other);
    let disk = &stage.world.machines[&leader].disk;
    assert!(!disk.exists(&damaged), "the damaged replica was not replaced");
}

/// Lets time pass, while checkpoints of the partition are damaged on their way from `node`, the first `most` of them. Returns
/// the ids of all that were sent.
fn damage_on_the_way(stage: &mut Stage, node: NodeId, time: Duration, most: usize) -> Vec<u64> {
    let partition = stage.key.partition as u32;
    let mut seen: Vec<u64> = Vec::new();
    let end = stage.world.now + time;
    while stage.world.now < end {
        let machine = stage.world.machines.get_mut(&node).unwrap();
        machine.holds = |job| matches!(job, Job::ReadChunk { .. });
        stage.world.run(Duration::from_millis(50));
        let machine = &stage.world.machines[&node];
        for job in &machine.held {
            let Job::ReadChunk { owner, id, path, .. } = job else { continue };
            if owner.group.partition == partition && owner.group.table.0 != 0 && !seen.contains(id) {
                seen.push(*id);
                if seen.len() <= most {
                    machine.disk.flip_byte(path, 40).unwrap();
                }
            }
        }
        stage.world.let_go(node);
    }
    seen
}

/// Pitfall D4a: the sender's storage is sound, so that its replica stays, and the next checkpoint arrives.
#[test]
fn d4a_damage_on_the_way_costs_a_second_checkpoint() {
    let mut stage = stage();
    let leader = stage.leader;
    let before = running(&stage.world, leader);
    start(&mut stage.world, stage.followers[0], SimDisk::new());
    let sent = damage_on_the_way(&mut stage, leader, 60 * SECOND, 1);
    assert_eq!(sent.len(), 2);
    stage.run_until_whole(leader, 60);
    assert_sound(&mut stage, leader);
    assert_eq!(running(&stage.world, leader), before);
}

/// Pitfall D4a: a receiver's disk damages everything. Each checkpoint costs a read of all data, and they become rare.
#[test]
fn d4a_a_receiver_that_refuses_everything_is_sent_less_and_less() {
    let mut stage = stage();
    let leader = stage.leader;
    start(&mut stage.world, stage.followers[0], SimDisk::new());
    let first = damage_on_the_way(&mut stage, leader, 40 * SECOND, usize::MAX);
    let then = damage_on_the_way(&mut stage, leader, 100 * SECOND, usize::MAX);
    assert!((3..7).contains(&first.len()), "{first:?}");
    assert!((1..3).contains(&then.len()), "{then:?}");
    assert!(!stage.is_whole(leader));
}

/// Reading all of a large checkpoint takes minutes, in which its sender hears nothing else.
#[test]
fn d4a_a_long_verification_does_not_end_the_transfer() {
    let mut stage = stage();
    let (leader, wiped) = (stage.leader, stage.followers[0]);
    start(&mut stage.world, wiped, SimDisk::new());
    stage.world.machines.get_mut(&wiped).unwrap().holds = |job| matches!(job, Job::Verify { .. });
    for second in 0..90 {
        stage.world.run(SECOND);
        let moving = crate::moved::transfers(&mut stage.world, leader);
        assert!(second < 20 || !moving.is_empty() && moving.iter().all(|it| it["bytes_done"] == it["bytes_total"]));
    }
    let before = stage.checkpoints();
    stage.world.let_go(wiped);
    stage.run_until_whole(leader, 30);
    assert_eq!(stage.checkpoints(), before);
}

/// A checkpoint whose files are gone while it is sent is not offered for ever.
#[test]
fn m2_a_checkpoint_that_cannot_be_read_any_more_is_made_anew() {
    let mut stage = stage();
    let leader = stage.leader;
    start(&mut stage.world, stage.followers[0], SimDisk::new());
    stage.world.machines.get_mut(&leader).unwrap().holds = |job| matches!(job, Job::ReadChunk { .. });
    stage.world.run_until(60 * SECOND, |world| !world.machines[&leader].held.is_empty());
    let disk = stage.world.machines[&leader].disk.clone();
    for directory in directories(&stage, leader, "checkpoints") {
        for name in disk.list(&directory).unwrap() {
            disk.remove_file(&directory.join(name)).unwrap();
        }
    }
    stage.world.machines.get_mut(&leader).unwrap().holds = |_| false;
    stage.world.let_go(leader);
    stage.run_until_whole(leader, 60);
    assert_sound(&mut stage, leader);
}
