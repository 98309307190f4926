//! Tables that are dropped and kept: nobody is served, the name is free, nothing is lost, and the time ends once.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod pegasus;
#[allow(dead_code, reason = "each test uses its part")]
#[path = "../reads/world.rs"]
mod world;

use hedgerow_env::Disk;
use hedgerow_node::Job;
use hedgerow_types::{GroupId, NodeId, Refusal};
use hedgerow_wire::message::Incr;
use hedgerow_wire::{Body, Extension, Header, Reply};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use world::{Ask, Key, World, running};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
const YEAR: i64 = 365 * 86_400;

fn ask() -> Ask {
    Ask { extension: Some(Extension::default()), is_backup: false }
}

/// Adds 1 to a number, as the client's call `sequence`; what it is then.
fn add(world: &mut World, key: &Key, sequence: u64) -> i64 {
    let to = world.replicas(key.partition).leader;
    let extension = Extension { client_id: Some(77), sequence: Some(sequence), ..Extension::default() };
    let header = Header { extension: Some(extension), ..key.header(&ask()) };
    let body = Body::Incr(Incr { key: key.full(), increment: 1, expire_ts_seconds: 0 });
    let number = world.send(to, &header, &body);
    match world.wait(number).1.reply {
        Reply::Incr(reply) if reply.error == 0 => reply.new_value,
        other => panic!("{other:?}"),
    }
}

/// A table with a row in each of its two partitions.
fn filled() -> (World, Vec<Key>) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let of = |partition| (0..).map(|it| Key::new(table, 2, &format!("key{it}"))).find(|key| key.partition == partition);
    let keys: Vec<Key> = [0, 1].map(|partition| of(partition).unwrap()).into();
    for key in &keys {
        let leader = world.replicas(key.partition).leader;
        world.write(key, leader, "value");
    }
    (world, keys)
}

fn drop_for(world: &mut World, seconds: u64) -> Value {
    let answer = world.admin(NodeId(1), "drop_table", &json!({ "name": "t", "reserve_seconds": seconds })).unwrap();
    world.run(SECOND);
    answer
}

fn recall(world: &mut World, id: i32) -> Result<Value, String> {
    let answer = world.admin(NodeId(2), "recall_table", &json!({ "id": id }));
    world.run(SECOND);
    answer
}

fn assert_rows(world: &mut World, keys: &[Key]) {
    for key in keys {
        let leader = world.replicas(key.partition).leader;
        assert_eq!(world.get(key, leader, &ask()).unwrap().0, "value");
    }
}

/// Whether `node` runs a replica of the table's first partition.
fn hosts(world: &World, node: NodeId, table: i32) -> bool {
    running(world, node).contains_key(&GroupId::new(table as u32, 0))
}

fn status(world: &mut World) -> Value {
    world.admin(NodeId(3), "status", &json!({})).unwrap()
}

#[test]
fn p10_a_dropped_table_serves_nobody_and_is_recalled_with_its_rows() {
    let (mut world, keys) = filled();
    let table = keys[0].table;
    let leader = world.replicas(0).leader;
    let before = world.clock().unix_micros / 1_000_000;
    let answer = drop_for(&mut world, 3_600);
    assert_eq!(answer["kept"], table);
    let until = answer["kept_until_unix_seconds"].as_u64().unwrap();
    assert!((before + 3_600..=before + 3_602).contains(&until), "{until}");
    // Nobody finds it by its name, and who knows where it was is told what a table that is gone says.
    assert_eq!(world.map(false).err.name(), "ERR_OBJECT_NOT_FOUND");
    for node in NODES {
        let refused = world.get(&keys[0], node, &ask()).unwrap_err();
        assert_eq!(refused.refusal, Some(Refusal::NoTable));
        let number = world.send_write(&keys[0], node, "late");
        assert!(
            matches!(world.wait(number).1.reply, Reply::Failed(failure) if failure.refusal() == Some(Refusal::NoTable))
        );
    }
    let refused = world.admin(NodeId(1), "drop_table", &json!({ "name": "t" })).unwrap_err();
    assert!(refused.contains("NoTable") || refused.contains("ObjectNotFound"), "{refused}");
    let shown = status(&mut world);
    assert_eq!(shown["tables"], json!([]));
    assert_eq!(shown["summary"]["partitions"], 1, "the metadata");
    let leaders: u64 = shown["nodes"].as_array().unwrap().iter().map(|node| node["leaders"].as_u64().unwrap()).sum();
    assert_eq!(leaders, 1, "a leader that serves nobody does not count");
    let kept = &shown["dropped_tables"][0];
    assert_eq!(
        (&kept["name"], &kept["id"], &kept["kept_until_unix_seconds"]),
        (&json!("t"), &json!(table), &json!(until))
    );
    assert!(NODES.iter().all(|node| hosts(&world, *node, table)));

    assert_eq!(recall(&mut world, table).unwrap()["recalled"], table);
    assert_rows(&mut world, &keys);
    assert_eq!(world.replicas(0).leader, leader);
    assert_eq!(status(&mut world)["dropped_tables"], json!([]));
    world.write(&keys[0], leader, "after");
}

#[test]
fn p10_a_write_repeated_after_the_recall_is_not_applied_twice() {
    let (mut world, keys) = filled();
    let counter = Key { hash_key: "counter".into(), ..Key::new(keys[0].table, 2, "counter") };
    assert_eq!(add(&mut world, &counter, 1), 1);
    drop_for(&mut world, 3_600);
    NODES.iter().for_each(|node| world.restart(*node));
    world.run(20 * SECOND);
    recall(&mut world, keys[0].table).unwrap();
    world.run(10 * SECOND);
    assert_eq!(add(&mut world, &counter, 1), 1);
    assert_eq!(add(&mut world, &counter, 2), 2);
}

#[test]
fn p10_the_name_is_free_at_once_and_two_tables_do_not_mix() {
    let (mut world, keys) = filled();
    drop_for(&mut world, 3_600);
    let new = world.create_table(2, &json!({}));
    assert_ne!(new, keys[0].table);
    let key = Key { table: new, ..keys[0].clone() };
    let leader = world.replicas(key.partition).leader;
    assert_eq!(world.get(&key, leader, &ask()).unwrap_err().name, "status 1");
    world.write(&key, leader, "new");
    let taken = recall(&mut world, keys[0].table).unwrap_err();
    assert!(taken.contains(&format!("table {new} is called")), "{taken}");
    let other = json!({ "id": keys[0].table, "name": "old" });
    assert_eq!(world.admin(NodeId(2), "recall_table", &other).unwrap()["name"], "old");
    world.run(SECOND);
    let mut found = NODES.iter().filter_map(|node| world.get(&keys[0], *node, &ask()).ok()).map(|(value, _)| value);
    assert_eq!(found.next().unwrap(), "value");
    drop(found);
    assert_eq!(world.get(&key, leader, &ask()).unwrap().0, "new");
    // One that is in use cannot be recalled, nor one that never was.
    assert!(recall(&mut world, new).is_err());
    assert!(recall(&mut world, 99).is_err());
}

#[test]
fn p10_a_dropped_table_outlives_restarts_and_is_repaired_like_any_other() {
    let (mut world, keys) = filled();
    let table = keys[0].table;
    drop_for(&mut world, 3 * 24 * 3_600);
    NODES.iter().for_each(|node| world.restart(*node));
    world.run(20 * SECOND);
    assert_eq!(world.map(false).err.name(), "ERR_OBJECT_NOT_FOUND");
    // Each node loses its disk, one after the other: what is kept is copied to it every time.
    for node in NODES {
        world.wipe(node);
        world.run(30 * SECOND);
        assert!(hosts(&world, node, table), "node {}", node.0);
    }
    recall(&mut world, table).unwrap();
    world.run(20 * SECOND);
    assert_rows(&mut world, &keys);
}

#[test]
fn p10_a_dropped_table_goes_when_its_time_is_over_and_not_before() {
    let (mut world, keys) = filled();
    let table = keys[0].table;
    drop_for(&mut world, 60);
    world.run(50 * SECOND);
    assert!(NODES.iter().all(|node| hosts(&world, *node, table)));
    world.run(15 * SECOND);
    assert!(!NODES.iter().any(|node| hosts(&world, *node, table)));
    for node in NODES {
        let left = world.machines[&node].disk.list(Path::new("/data/replicas")).unwrap();
        assert!(!left.iter().any(|name| name.starts_with(&format!("{table}."))), "{left:?}");
    }
    assert!(recall(&mut world, table).is_err());
    assert_eq!(status(&mut world)["dropped_tables"], json!([]));
}

#[test]
fn p10_one_wrong_clock_removes_nothing() {
    let (mut world, keys) = filled();
    let shown = status(&mut world);
    let address = shown["metadata"]["leader"].as_str().unwrap().to_owned();
    let leader = NODES.into_iter().find(|node| address == format!("127.0.0.{}:34601", node.0)).unwrap();
    drop_for(&mut world, 3_600);
    // The node that leads the metadata is the one whose clock is wrong, and it starts with it.
    world.wall_ahead.insert(leader, YEAR);
    world.restart(leader);
    world.run(MINUTE);
    // Alone it knows no time by which it might remove anything.
    let others: Vec<NodeId> = NODES.into_iter().filter(|node| *node != leader).collect();
    world.cut_off(others[0]);
    world.run(MINUTE);
    world.cut.clear();
    world.run(20 * SECOND);
    recall(&mut world, keys[0].table).unwrap();
    world.run(SECOND);
    assert_rows(&mut world, &keys);
}

#[test]
fn p10_without_a_time_a_table_is_dropped_for_good_or_not_at_all() {
    let (mut world, keys) = filled();
    world.wall_ahead.extend([(NodeId(1), YEAR), (NodeId(2), -YEAR)]);
    NODES.iter().for_each(|node| world.restart(*node));
    world.run(20 * SECOND);
    let refused = world.admin(NodeId(1), "drop_table", &json!({ "name": "t" })).unwrap_err();
    assert!(refused.contains("do not agree on the time"), "{refused}");
    assert_rows(&mut world, &keys);
    drop_for(&mut world, 0);
    assert!(!hosts(&world, NodeId(1), keys[0].table));
}

#[test]
fn p10_no_reserve_frees_the_room_at_once() {
    let (mut world, keys) = filled();
    let answer = drop_for(&mut world, 0);
    assert_eq!(answer["dropped_partitions"], 2);
    assert!(!NODES.iter().any(|node| hosts(&world, *node, keys[0].table)));
    assert!(recall(&mut world, keys[0].table).is_err());
    let too_long = json!({ "name": "t", "reserve_seconds": 400_000_000 });
    assert!(world.admin(NodeId(1), "drop_table", &too_long).unwrap_err().contains("at most"));
}

#[test]
fn p10_the_setting_says_how_long_when_the_call_does_not() {
    let mut world = World::configured(3, |config| config.drop_reserve_seconds = 30);
    let table = world.create_table(2, &json!({}));
    world.admin(NodeId(1), "drop_table", &json!({ "name": "t" })).unwrap();
    world.run(20 * SECOND);
    assert!(hosts(&world, NodeId(1), table));
    world.run(20 * SECOND);
    assert!(!hosts(&world, NodeId(1), table));
}

/// Closing a storage flushes it, which takes its time: a thousand of them stood in the way of everything else on the node.
#[test]
fn p9_the_replicas_of_a_dropped_table_are_closed_and_cleared_up_by_jobs_a_few_at_a_time() {
    let mut world = World::new(3);
    let table = world.create_table(64, &json!({}));
    let node = NodeId(2);
    world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Remove { .. });
    drop_for(&mut world, 0);
    assert!(!hosts(&world, node, table));
    let closes = |job: &Job| matches!(job, Job::Remove { storage: Some(_), directories, .. } if directories.len() == 1);
    let held = &world.machines[&node].held;
    assert_eq!((held.len(), held.iter().filter(|job| closes(job)).count()), (2, 2));
    assert_eq!(world.machines[&node].disk.list(Path::new("/data/trash")).unwrap().len(), 64);
    world.let_go(node);
    world.run(SECOND);
    assert_eq!(world.machines[&node].disk.list(Path::new("/data/trash")).unwrap().len(), 0);
}
