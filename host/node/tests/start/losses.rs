//! Nodes whose log is put back to what it was, so that replicas have forgotten in silence what they acknowledged.

use crate::replicas::restore;
use crate::world::{self, Ask, Key, Machine, World, files_of, running};
use hedgerow_env::Disk;
use hedgerow_types::{GroupId, NodeId, ReadLevel, ReplicaId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn log_of(world: &World, node: NodeId) -> Files {
    files_of(&world.machines[&node].disk, Path::new("/data/log"))
}

/// Stops `node`, lets `change` its disk, and starts it again.
fn changed(world: &mut World, node: NodeId, change: impl FnOnce(&hedgerow_env::sim::SimDisk)) {
    let Machine { mut config, disk, .. } = world.machines.remove(&node).unwrap();
    config.seed += 1_000;
    disk.kill_process();
    change(&disk);
    world.machines.insert(node, world::start(config, disk, world.now));
    world.settle(node);
}

fn roll_back(world: &mut World, node: NodeId, log: &Files) {
    changed(world, node, |disk| restore(disk, log, "/data/log", "/data/log"));
}

/// A follower's log forgets the second of two writes. A write that comes `before_heartbeats` is what tells the leader.
fn a_follower_forgets(before_heartbeats: bool) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let group = GroupId::new(table as u32, key.partition as u32);
    let places = world.replicas(key.partition);
    let follower = places.followers[0];
    world.write(&key, places.leader, "first");
    world.run(Duration::from_secs(1));
    let (log, before) = (log_of(&world, follower), running(&world, follower)[&group]);
    world.write(&key, places.leader, "second");
    world.run(Duration::from_secs(1));

    roll_back(&mut world, follower, &log);
    if before_heartbeats {
        world.write(&key, places.leader, "second");
    }
    world.run_until(MINUTE, |world| running(world, follower).get(&group).is_some_and(|id| *id != before));
    world.run_until(MINUTE, |world| {
        let status = world.admin(places.leader, "describe", &json!({ "name": "t" }));
        let replicas = status.unwrap()["partitions"][group.partition as usize]["replicas"].clone();
        replicas.as_array().unwrap().iter().filter(|replica| replica["state"] == "ok").count() == 3
    });
    world.run(Duration::from_secs(1));
    assert_eq!(world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap().0, "second");
}

#[test]
fn m5_a_replica_that_forgot_what_it_acknowledged_is_replaced() {
    a_follower_forgets(false);
}

#[test]
fn m5_a_replica_that_learned_again_what_it_had_acknowledged_is_replaced() {
    a_follower_forgets(true);
}

fn contradictions(world: &mut World, asked: NodeId) -> Vec<Value> {
    let status = world.admin(asked, "status", &json!({})).unwrap();
    status["summary"]["contradictions"].as_array().unwrap().clone()
}

#[test]
fn d10_a_replica_that_is_ahead_of_its_leader_serves_nothing_and_is_kept() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let group = GroupId::new(table as u32, key.partition as u32);
    let places = world.replicas(key.partition);
    let (ahead, forgetful, behind) = (places.leader, places.followers[0], places.followers[1]);
    world.write(&key, ahead, "first");
    world.run(Duration::from_secs(1));
    let log = log_of(&world, forgetful);
    world.cut_off(behind);
    world.write(&key, ahead, "second");
    world.write(&key, ahead, "third");
    world.cut.clear();
    world.cut_off(ahead);
    roll_back(&mut world, forgetful, &log);
    let leads = |world: &World, node: NodeId| {
        let mut replicas = world.machines[&node].node.replicas_for_inspection();
        replicas.any(|replica| replica.id == group && replica.leads().is_some())
    };
    world.run_until(MINUTE, |world| leads(world, forgetful) || leads(world, behind));
    world.cut.clear();

    let named = |said: &[Value]| said.iter().any(|one| one["table"] == "t" && one["partition"] == group.partition);
    world.run_until(MINUTE, |world| named(&contradictions(world, behind)));
    let ids = running(&world, ahead);
    let anywhere = Ask::anywhere(ReadLevel::Eventual);
    let refused = world.get(&key, ahead, &anywhere).unwrap_err();
    assert!(format!("{refused:?}").contains("lost entries"), "{refused:?}");
    // Nobody takes it for lost, and what it holds is kept.
    world.run(Duration::from_secs(30));
    assert_eq!(running(&world, ahead), ids);

    // What the message says that an operator may do.
    let said = contradictions(&mut world, behind);
    assert!(named(&said) && said.iter().all(|one| one["node"] == ahead.0), "{said:?}");
    let directories: Vec<PathBuf> = said
        .iter()
        .map(|one| {
            let known = ids.iter().find(|(_, id)| id.to_string() == one["replica"].as_str().unwrap());
            let (GroupId { table, partition }, ReplicaId(id)) = known.unwrap();
            Path::new("/data/replicas").join(format!("{}.{partition}-{id:x}", table.0))
        })
        .collect();
    changed(&mut world, ahead, |disk| directories.iter().for_each(|gone| disk.remove_dir_all(gone).unwrap()));
    world.run_until(MINUTE, |world| running(world, ahead).get(&group).is_some_and(|id| *id != ids[&group]));
    world.run_until(MINUTE, |world| contradictions(world, behind).is_empty());
}
