//! Storage that refuses what a node does while it applies its log: a device that no longer gives back what is stored, and a
//! process that lacks descriptors, space or memory for a while.

use crate::device::{DAMAGE, Switch, restart_on_device};
use crate::failing::{first, key_of_first};
use crate::world::{Ask, Key, World, running};
use hedgerow_node::Job;
use hedgerow_types::{GroupId, NodeId, ReadLevel, ReplicaId};
use hedgerow_wire::message::Incr;
use hedgerow_wire::{Body, Reply};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EMFILE: i32 = 24;
const ENOENT: i32 = 2;
pub const ENOSPC: i32 = 28;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn increment(world: &mut World, key: &Key, to: NodeId) -> i32 {
    let increment = Body::Incr(Incr { key: key.full(), increment: 1, ..Incr::default() });
    let ask = Ask { extension: Some(hedgerow_wire::Extension::default()), is_backup: false };
    world.send(to, &key.header(&ask.with_deadline(MINUTE)), &increment)
}

/// What the increment gave, unless it was refused.
fn incremented(world: &mut World, number: i32) -> Option<i64> {
    match world.wait(number).1.reply {
        Reply::Incr(reply) if reply.error == 0 => Some(reply.new_value),
        _ => None,
    }
}

fn applied(world: &World, node: NodeId, group: GroupId) -> u64 {
    let mut replicas = world.machines[&node].node.replicas_for_inspection();
    replicas.find(|replica| replica.id == group).map_or(0, |replica| replica.applied())
}

/// A cluster whose nodes' storage fails when told to, a table of two partitions, and a key of the first one.
fn world_on_devices(count: u16) -> (World, BTreeMap<NodeId, Arc<Switch>>, Key) {
    let mut world = World::new(count);
    let table = world.create_table(2, &json!({}));
    let nodes: Vec<NodeId> = world.machines.keys().copied().collect();
    let switches = nodes.into_iter().map(|node| (node, restart_on_device(&mut world, node, "/data"))).collect();
    (world, switches, key_of_first(table))
}

/// An increment has to read before it writes. Where a sector is gone, that costs the replica and not the process, which has no
/// other directory and would read the same sector at its next start.
#[test]
fn m3_a_device_that_refuses_a_read_while_a_write_is_applied_takes_only_its_replica_along() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let (key, group) = (key_of_first(table), first(table));
    let node = world.replicas(0).followers[0];
    let before = running(&world, node);
    let switch = restart_on_device(&mut world, node, format!("/data/replicas/{group}-{:x}", before[&group].0));
    switch.fail_reads(EIO);
    let leader = world.replicas(0).leader;
    let number = increment(&mut world, &key, leader);
    assert_eq!(incremented(&mut world, number), Some(1));
    world.run_until(MINUTE, |world| running(world, node).get(&group).is_some_and(|replica| *replica != before[&group]));
    assert!(switch.failures() > 0);
    let kept = running(&world, node);
    assert!(before.iter().all(|(other, replica)| *other == group || kept[other] == *replica), "{kept:?}");
}

/// A table that was not open is not there any more, nor is its directory. The node goes on without the replica.
#[test]
fn m3_a_write_that_cannot_be_applied_to_storage_that_was_removed_costs_the_replica() {
    let mut world = World::new(3);
    let key = key_of_first(world.create_table(2, &json!({})));
    let group = GroupId::new(key.table as u32, 0);
    let node = world.replicas(0).followers[0];
    let id = running(&world, node)[&group];
    let directory = Path::new("/data/replicas").join(format!("{}.0-{:x}", key.table, id.0));
    let switch = restart_on_device(&mut world, node, &directory);
    hedgerow_env::Disk::remove_dir_all(&world.machines[&node].disk, &directory).unwrap();
    switch.fail_reads(ENOENT);
    let leader = world.replicas(0).leader;
    let number = increment(&mut world, &key, leader);
    assert_eq!(incremented(&mut world, number), Some(1));
    world.run_until(MINUTE, |world| running(world, node).get(&group).is_some_and(|new| *new != id));
    assert!(switch.failures() > 0);
}

/// Nobody can lead better: the leader keeps what is committed, answers nothing of it, and tries again with pauses.
#[test]
fn n4_what_storage_lacks_the_means_to_apply_is_kept_and_applied_later() {
    for (error, of_writes) in [(EMFILE, false), (ENOSPC, true), (ENOMEM, false)] {
        let (mut world, switches, key) = world_on_devices(3);
        let leader = world.replicas(0).leader;
        world.write(&key, leader, "5");
        let (group, replicas) = (GroupId::new(key.table as u32, 0), running(&world, leader));
        world.run(SECOND);
        let before = applied(&world, leader, group);
        let fail = |error| {
            let set = if of_writes { Switch::fail_writes } else { Switch::fail_reads };
            switches.values().for_each(|switch| set(switch, error));
        };
        let lines = Arc::new(Mutex::new(Vec::new()));
        // A second one: with one alone, `tracing` asks the threads of other tests whether anybody listens.
        let _second = tracing::Dispatch::new(Log(Arc::default()));
        let numbers = tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
            fail(error);
            let numbers: Vec<i32> = (0..5).map(|_| increment(&mut world, &key, leader)).collect();
            world.run(10 * SECOND);
            numbers
        });
        assert!(
            numbers
                .iter()
                .all(|number| world.answer(*number).is_none_or(|(_, it)| matches!(it.reply, Reply::Failed(_))))
        );
        for node in world.machines.keys() {
            assert_eq!(applied(&world, *node, group), before, "what was applied stays, and nothing is added");
        }
        // 100, 200, 400, 800 ms, and then each second, for each of three replicas of the partition, and those of the metadata.
        let failures: u32 = switches.values().map(|switch| switch.failures()).sum();
        assert!((10..=150).contains(&failures), "{failures} attempts");
        let told = |lines: &[String], text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(told(&lines.lock().unwrap(), "takes no writes"), 3, "once for each node");
        fail(0);
        tracing::subscriber::with_default(Log(Arc::clone(&lines)), || world.run(5 * SECOND));
        assert_eq!(told(&lines.lock().unwrap(), "takes no writes"), 3);
        assert_eq!(told(&lines.lock().unwrap(), "takes writes again"), 3);
        assert_eq!(running(&world, leader), replicas, "no replica is lost");
        // Each increment was committed and is applied once.
        let leader = world.replicas(0).leader;
        let number = increment(&mut world, &key, leader);
        assert_eq!(incremented(&mut world, number), Some(5 + 5 + 1));
        world.run(SECOND);
        let ends: Vec<u64> = world.machines.keys().map(|node| applied(&world, *node, group)).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
    }
}

/// A follower that cannot apply serves nothing that it does not have, and catches up; a restart in between changes nothing.
#[test]
fn n4_a_follower_that_cannot_apply_shows_nothing_newer_and_catches_up() {
    let (mut world, switches, key) = world_on_devices(3);
    let places = world.replicas(0);
    let (leader, follower) = (places.leader, places.followers[0]);
    world.write(&key, leader, "1");
    world.run(SECOND);
    switches[&follower].fail_writes(EMFILE);
    let number = increment(&mut world, &key, leader);
    assert_eq!(incremented(&mut world, number), Some(2));
    let latest = Ask::anywhere(ReadLevel::Linearizable);
    world.get(&key, follower, &latest).unwrap_err();
    assert_eq!(world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap().0, "1");
    switches[&follower].fail_writes(0);
    world.run(2 * SECOND);
    assert_eq!(world.get(&key, follower, &latest).unwrap().0, "2");
    switches[&follower].fail_writes(EMFILE);
    let number = increment(&mut world, &key, leader);
    assert_eq!(incremented(&mut world, number), Some(3));
    world.restart(follower);
    world.run(5 * SECOND);
    assert_eq!(world.get(&key, follower, &latest).unwrap().0, "3");
}

/// Its group need not wait for it.
#[test]
fn n4_a_leader_that_cannot_apply_lets_another_one_lead() {
    let (mut world, switches, key) = world_on_devices(3);
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "1");
    switches[&leader].fail_reads(EMFILE);
    let number = increment(&mut world, &key, leader);
    world.run_until(8 * SECOND, |world| world.replicas(0).leader != leader);
    assert_eq!(incremented(&mut world, number), None, "its outcome is not known to the node that it was sent to");
    let next = world.replicas(0).leader;
    let number = increment(&mut world, &key, next);
    assert_eq!(incremented(&mut world, number), Some(3));
}

/// Keeps what every line says.
pub struct Log(pub Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => self.0 += &format!(" {name}={value:?}"),
        }
    }
}

/// Two of three replicas are damaged. The second one to be given up votes on until the first one's successor does, and does
/// not lead: the third one is whole, and what it has is copied.
fn two_are_damaged(is_found_at_once: bool) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let (key, group) = (key_of_first(table), first(table));
    let counter =
        (0..).map(|number| Key::new(table, 2, &format!("count{number}"))).find(|it| it.partition == 0).unwrap();
    let places = world.replicas(0);
    let [second, third] = places.followers[..] else { panic!("{places:?}") };
    let damaged = [places.leader, second];
    let before = damaged.map(|node| running(&world, node)[&group]);
    let directory = |replica: ReplicaId| format!("/data/replicas/{group}-{:x}", replica.0);
    let switches = [0, 1].map(|at| restart_on_device(&mut world, damaged[at], directory(before[at])));
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "value");
    switches.iter().for_each(|switch| switch.fail_reads(DAMAGE));
    for node in damaged {
        world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Install { .. });
    }
    let read = |world: &mut World, node| world.get(&key, node, &Ask::anywhere(ReadLevel::Bounded(MINUTE)));
    // What the leader is about to make durable when it leaves the lead to another one is not lost to it.
    world.machines.get_mut(&leader).unwrap().log_takes = SECOND / 100;
    let written: Vec<i32> = (0..5).map(|_| world.send_write(&key, leader, "under way")).collect();
    read(&mut world, damaged[0]).unwrap_err();
    world.run(SECOND);
    assert!(written.into_iter().all(|number| world.has_answer(number)));
    assert_eq!(applied(&world, damaged[0], group), applied(&world, third, group));
    if !is_found_at_once {
        world.run(10 * SECOND);
    }
    read(&mut world, damaged[1]).unwrap_err();
    world.run(10 * SECOND);
    let (gone, kept) = if is_found_at_once && before[1] < before[0] { (1, 0) } else { (0, 1) };
    assert_ne!(running(&world, damaged[gone]).get(&group), Some(&before[gone]), "it can be spared");
    assert_eq!(running(&world, damaged[kept])[&group], before[kept], "nobody else votes beside the third");
    assert_eq!(world.replicas(0).leader, third);
    world.write(&key, third, "later");
    // What it cannot apply costs it nothing more: an increment reads before it writes.
    let number = increment(&mut world, &counter, third);
    assert_eq!(incremented(&mut world, number), Some(1));
    world.run(2 * SECOND);
    assert_eq!(running(&world, damaged[kept])[&group], before[kept]);

    for node in damaged {
        world.machines.get_mut(&node).unwrap().holds = |_| false;
        world.let_go(node);
    }
    let is_replaced = |world: &World, at: usize| {
        running(world, damaged[at]).get(&group).is_some_and(|replica| *replica != before[at])
    };
    world.run_until(2 * MINUTE, |world| is_replaced(world, 0) && is_replaced(world, 1));
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "last");
    world.run(2 * SECOND);
    for node in damaged {
        assert_eq!(read(&mut world, node).unwrap().0, "last");
    }
}

/// A compaction meets a block that the device does not give back. That costs the replica, and neither its directory nor the node.
#[test]
fn m3_a_device_that_refuses_a_compaction_takes_only_its_replica_along() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let group = first(table);
    let node = world.replicas(0).followers[0];
    let before = running(&world, node);
    let directory = format!("/data/replicas/{group}-{:x}", before[&group].0);
    let switch = restart_on_device(&mut world, node, directory);
    assert_eq!(running(&world, node), before);
    switch.fail_background(EIO);
    world.run_until(MINUTE, |world| running(world, node).get(&group).is_some_and(|replica| *replica != before[&group]));
    let kept = running(&world, node);
    assert!(before.iter().all(|(other, replica)| *other == group || kept[other] == *replica), "{kept:?}");
}

#[test]
fn m3c_a_second_damaged_replica_stays_until_the_first_is_replaced() {
    two_are_damaged(false);
}

#[test]
fn m3c_of_two_that_are_found_damaged_at_once_one_stays() {
    two_are_damaged(true);
}
