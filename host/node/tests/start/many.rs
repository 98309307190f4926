//! Nodes with many replicas: none of them holds up the others.

use crate::failing::key_in;
use crate::world::{self, Machine, World};
use hedgerow_env::Disk;
use hedgerow_node::{Config, Job};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const NODE: NodeId = NodeId(1);

/// Starts the node anew; what reads tables of results waits.
fn restart_with_loads_held(world: &mut World) {
    let Machine { config, disk, node: stopped, .. } = world.machines.remove(&NODE).unwrap();
    drop(stopped);
    disk.kill_process();
    let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
    let mut machine = world::start_with(config, disk, engines, world.clock());
    machine.holds = is_load;
    world.machines.insert(NODE, machine);
    world.settle(NODE);
}

fn is_load(job: &Job) -> bool {
    matches!(job, Job::LoadSessions { .. })
}

/// The groups whose tables are read now.
fn loading(world: &World) -> Vec<GroupId> {
    let of = |job: &Job| match job {
        Job::LoadSessions { owner, .. } => Some(owner.group),
        _ => None,
    };
    world.machines[&NODE].held.iter().filter_map(of).collect()
}

fn applied(world: &World, node: NodeId, group: GroupId) -> u64 {
    world.machines[&node].node.replicas_for_inspection().find(|it| it.id == group).map_or(0, |it| it.applied())
}

/// A table of results may have hundreds of thousands of rows: what needs it waits for the job that reads it, which comes before those that nobody
/// waits for, and the other groups go on.
#[test]
fn n2c_a_write_after_a_start_waits_for_its_table_and_nothing_else_waits() {
    let mut world = World::new(3);
    let table = world.create_table(16, &json!({}));
    let last = GroupId::new(table as u32, 15);
    let key = key_in(last, 16);
    restart_with_loads_held(&mut world);
    world.run(5 * SECOND);
    let leader = world.replicas(key.partition).leader;
    assert!(leader != NODE && !loading(&world).contains(&last), "{leader}, {:?}", loading(&world));
    let index = world.write(&key, leader, "value");
    world.run(SECOND);
    assert!(applied(&world, NODE, last) < index, "it waits for its table");
    let mut rounds = 0;
    while applied(&world, NODE, last) < index {
        rounds += 1;
        let done = world.run_held(NODE);
        world.machines.get_mut(&NODE).unwrap().holds = is_load;
        world.take_done(NODE, done);
        world.run(SECOND / 10);
    }
    assert!(rounds <= 2, "{rounds}: it came before those that nobody waits for");
    assert!(!loading(&world).is_empty(), "which are not read yet");
    while !world.machines[&NODE].held.is_empty() {
        let done = world.run_held(NODE);
        world.machines.get_mut(&NODE).unwrap().holds = is_load;
        world.take_done(NODE, done);
        world.settle(NODE);
    }
    world.write(&key, leader, "later");
}

/// A table has more partitions than a node makes or removes in one turn.
#[test]
fn p9_a_large_table_is_made_and_removed_turn_by_turn() {
    let mut world = World::new(3);
    world.create_table(256, &json!({}));
    let hosted = |world: &World| world.machines[&NODE].node.replicas_for_inspection().count();
    assert_eq!(hosted(&world), 257, "with the metadata");
    assert!(world.machines[&NODE].node.is_serving());
    world.admin(NODE, "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    world.run(2 * SECOND);
    assert_eq!(hosted(&world), 1);
}

/// A node has made the directories of a large table, and lost its power before its log knew of any: all are made at the next start, and none
/// counts as lost.
#[test]
fn p9_what_a_start_finds_half_made_is_made() {
    let last = NodeId(3);
    let mut world = World::new(3);
    world.machines.get_mut(&last).unwrap().is_log_stuck = true;
    world.create_table(128, &json!({}));
    world.run(5 * SECOND);
    let Machine { config, disk, node, .. } = world.machines.remove(&last).unwrap();
    drop(node);
    disk.crash(&mut Random::new(1));
    let made = disk.list(Path::new("/data/replicas")).unwrap();
    assert!(made.len() > 100, "{} of 128 were begun", made.len());
    let config = Config { seed: config.seed + 1, ..config };
    world.machines.insert(last, world::start(config, disk, world.now));
    world.settle(last);
    world.run(10 * SECOND);
    let name = |GroupId { table, partition }, replica: ReplicaId| format!("{}.{partition}-{:x}", table.0, replica.0);
    let running = world.machines[&last].node.replicas_for_inspection().map(|it| name(it.id, it.replica));
    let running: BTreeSet<String> = running.collect();
    let gone: Vec<&String> = made.iter().filter(|name| !running.contains(*name)).collect();
    assert!(running.len() == 129 && gone.is_empty(), "{} run, replaced were {gone:?}", running.len());
}
