//! A replica starts with everything that its log holds, however little of it fits in memory.

use crate::world::{Ask, Key, World};
use hedgerow_node::Config;
use hedgerow_types::{GroupId, NodeId};
use serde_json::json;

const ONE: NodeId = NodeId(1);
const VALUE_SIZE: usize = 1_000;

/// Nothing is flushed, so that the log holds everything.
fn unflushed(config: &mut Config) {
    config.flush_replica_bytes = u64::MAX;
    config.flush_node_bytes = u64::MAX;
}

/// The group's first and last index in the log, and what is applied, at `node`.
fn log_of(world: &World, node: NodeId, group: GroupId) -> (u64, u64, u64) {
    let mut replicas = world.machines[&node].node.replicas_for_inspection();
    let replica = replicas.find(|replica| replica.id == group).unwrap();
    (replica.group.first_index(), replica.group.last_index(), replica.applied())
}

/// Keys of the first of two partitions.
fn keys_of_first(table: i32) -> impl Iterator<Item = Key> {
    (0..).map(move |number| Key::new(table, 2, &format!("key{number}"))).filter(|key| key.partition == 0)
}

fn value(number: u32) -> String {
    format!("{number:0VALUE_SIZE$}")
}

#[test]
fn d2_a_replica_starts_with_all_of_a_log_that_does_not_fit_in_memory() {
    let mut world = World::configured(1, unflushed);
    let argument = json!({ "name": "t", "partition_count": 2, "replica_count": 1 });
    let table = world.admin(ONE, "create_table", &argument).unwrap()["created"].as_i64().unwrap() as i32;
    let group = GroupId::new(table as u32, 0);
    let keys: Vec<Key> = keys_of_first(table).take(200).collect();
    for (key, number) in keys.iter().zip(0..) {
        world.write(key, ONE, &value(number));
    }
    let before = log_of(&world, ONE, group);
    assert!(before.1 > 200, "{before:?}");
    // The second time everything is in storage, and the log is still whole.
    for _ in 0..2 {
        world.machines.get_mut(&ONE).unwrap().config.replay_bytes_max = 200 * VALUE_SIZE / 4;
        world.restart(ONE);
        let after = log_of(&world, ONE, group);
        assert_eq!((after.0, after.1), (before.0, before.1));
    }
    world.run(std::time::Duration::from_secs(5));
    for (key, number) in keys.iter().zip(0..) {
        assert_eq!(world.get(key, ONE, &Ask::default()).unwrap().0, value(number));
    }
}

#[test]
fn d2_entries_that_are_not_committed_are_there_after_a_start_too() {
    let mut world = World::configured(3, unflushed);
    let table = world.create_table(2, &json!({}));
    let group = GroupId::new(table as u32, 0);
    let leader = world.replicas(0).leader;
    let key = keys_of_first(table).next().unwrap();
    world.write(&key, leader, "first");
    world.cut_off(leader);
    for number in 0..100 {
        world.send_write(&key, leader, &value(number));
    }
    let before = log_of(&world, leader, group);
    assert!(before.1 > before.2 + 90, "{before:?}");
    world.machines.get_mut(&leader).unwrap().config.replay_bytes_max = 100 * VALUE_SIZE / 4;
    world.restart(leader);
    assert_eq!(log_of(&world, leader, group).1, before.1);
}
