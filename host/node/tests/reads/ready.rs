//! Replicas that step back: starting, stopping, installing, on a node whose disk does not keep up.

use crate::world::{Ask, Key, MS, Places, World, bounded};
use hedgerow_node::Job;
use hedgerow_types::{GroupId, NodeId, ReadLevel, Refusal, SessionToken};
use serde_json::json;
use std::time::Duration;

fn world(nodes: u16, options: &serde_json::Value) -> (World, Key, Places) {
    world_of(World::new(nodes), options)
}

fn world_of(mut world: World, options: &serde_json::Value) -> (World, Key, Places) {
    let table = world.create_table(2, options);
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "value");
    (world, key, places)
}

fn assert_not_ready(world: &mut World, key: &Key, node: NodeId) {
    for level in [ReadLevel::Linearizable, ReadLevel::Session, bounded(1_000), ReadLevel::Eventual] {
        let refused = world.get(key, node, &Ask::anywhere(level)).unwrap_err();
        assert!(matches!(refused.refusal, Some(Refusal::NotReady(_))), "{level}: {refused:?}");
        assert_eq!(refused.after, Duration::ZERO, "{level}: {refused:?}");
    }
    let backup = world.get(key, node, &Ask { extension: None, is_backup: true }).unwrap_err();
    assert_eq!((backup.name.as_str(), backup.after), ("ERR_INVALID_STATE", Duration::ZERO));
}

#[test]
fn r11_a_draining_node_leaves_reads_to_others_and_serves_what_it_leads() {
    let (mut world, key, places) = world(3, &json!({}));
    let now = world.clock();
    world.machines.get_mut(&places.followers[0]).unwrap().node.hand_over(now);
    assert_not_ready(&mut world, &key, places.followers[0]);
    // A leader that nobody takes over from goes on serving.
    let (mut world, key, places) = self::world(3, &json!({}));
    let now = world.clock();
    world.cut_off(places.leader);
    world.machines.get_mut(&places.leader).unwrap().node.hand_over(now);
    world.settle(places.leader);
    assert!(world.get(&key, places.leader, &Ask::anywhere(ReadLevel::Eventual)).is_ok());
}

#[test]
fn r11_a_node_that_has_just_started_leaves_reads_to_others_until_it_has_caught_up() {
    let (mut world, key, places) = world(3, &json!({}));
    let follower = places.followers[0];
    world.run(500 * MS);
    world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap();
    world.cut_off(follower);
    let index = world.write(&key, places.leader, "newer");
    world.cut.clear();
    world.restart(follower);
    assert_not_ready(&mut world, &key, follower);
    let started = world.now;
    world.run_until(Duration::from_secs(5), |world| {
        world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).is_ok()
    });
    let (value, extension) = world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap();
    assert!(value == "newer" && extension.index >= index, "the first thing that it serves is not old");
    assert!(world.now.since(started) <= 2_000 * MS, "{:?}", world.now.since(started));
}

/// Where there is no leader to hear of, the replica is not kept back for ever: reads of any state are better than none.
#[test]
fn a_restarted_replica_without_a_leader_serves_what_it_has_after_a_while() {
    let (mut world, key, places) = world(3, &json!({}));
    let follower = places.followers[0];
    // The next entry makes durable that the one before is committed.
    world.write(&key, places.leader, "newer");
    world.run(500 * MS);
    world.cut_off(follower);
    world.restart(follower);
    assert_not_ready(&mut world, &key, follower);
    world.run(11_000 * MS);
    assert_eq!(world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap().0, "value");
    assert!(world.get(&key, follower, &Ask::anywhere(ReadLevel::Linearizable)).is_err());
}

/// R9: a node whose log cannot be written stops altogether; one whose flushes do not keep up leaves reads to others.
#[test]
fn r09_a_node_whose_disk_does_not_keep_up_leaves_reads_to_others() {
    let small = |config: &mut hedgerow_node::Config| {
        (config.flush_replica_bytes, config.flush_node_bytes) = (1_000, 1_000);
    };
    let (mut world, key, places) = world_of(World::configured(3, small), &json!({}));
    let follower = places.followers[0];
    world.machines.get_mut(&follower).unwrap().holds = |job| matches!(job, Job::Flush { .. });
    for _ in 0..10 {
        world.write(&key, places.leader, &"x".repeat(1_000));
    }
    world.run(500 * MS);
    assert_not_ready(&mut world, &key, follower);
    assert!(world.get(&key, places.leader, &Ask::default()).is_ok());
    world.let_go(follower);
    world.run(500 * MS);
    assert!(world.get(&key, follower, &Ask::anywhere(ReadLevel::Linearizable)).is_ok());
}

/// C18: before its first checkpoint, and while it installs one, a replica has nothing whole to serve.
#[test]
fn c18_a_replica_that_waits_for_or_installs_a_checkpoint_is_not_ready() {
    let (mut world, key, places) = world(4, &json!({}));
    let hosts = [vec![places.leader], places.followers.clone()].concat();
    let fourth = world.machines.keys().copied().find(|node| !hosts.contains(node)).unwrap();
    world.machines.get_mut(&fourth).unwrap().holds = |job| matches!(job, Job::Install { .. });
    world.set_option("read_replicas", "1");
    let mut has_waited = false;
    for _ in 0..200 {
        let refused = world.get(&key, fourth, &Ask::anywhere(ReadLevel::Eventual)).unwrap_err();
        has_waited |= matches!(refused.refusal, Some(Refusal::NotReady(_)));
        let is_right = matches!(refused.refusal, Some(Refusal::NotReady(_) | Refusal::NotHosted));
        assert!(is_right && refused.after == Duration::ZERO, "{refused:?}");
        world.run(20 * MS);
    }
    assert!(has_waited && !world.machines[&fourth].held.is_empty());
    assert_not_ready(&mut world, &key, fourth);
    world.let_go(fourth);
    world.run(3_000 * MS);
    for level in [ReadLevel::Linearizable, bounded(1_000), ReadLevel::Eventual] {
        assert_eq!(world.get(&key, fourth, &Ask::anywhere(level)).unwrap().0, "value");
    }
}

/// C19: a log that stands still holds up what needs it and nothing else: reads are served, or end with their deadline.
#[test]
fn c19_a_stuck_log_does_not_stop_reads() {
    let (mut world, key, places) = world(3, &json!({}));
    world.run(500 * MS);
    world.machines.get_mut(&places.leader).unwrap().is_log_stuck = true;
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(100 * MS);
    for node in [places.leader, places.followers[0]] {
        assert_eq!(world.get(&key, node, &ask).unwrap().0, "value");
    }
    world.send_write(&key, places.leader, "newer");
    world.run(500 * MS);
    // The others have it: it is committed, and the leader, which cannot apply it, does not serve what is older.
    let refused = world.get(&key, places.leader, &ask).unwrap_err();
    assert_eq!(refused.refusal, Some(Refusal::Expired));
    assert!(refused.after <= 101 * MS, "{refused:?}");
    assert_eq!(world.get(&key, places.followers[0], &ask).unwrap().0, "newer");
    assert_eq!(world.get(&key, places.leader, &Ask::anywhere(ReadLevel::Eventual)).unwrap().0, "value");
}

/// Nothing is left behind when everybody has been answered, however they were.
#[test]
fn r17_nothing_is_in_flight_when_everything_is_answered() {
    let (mut world, key, places) = world(3, &json!({}));
    let follower = places.followers[0];
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(5 * MS);
    for round in 0..20 {
        if round % 2 == 0 {
            world.cut_off(follower);
        } else {
            world.cut.clear();
        }
        let numbers: Vec<i32> = (0..10).map(|_| world.send_get(&key, follower, &ask)).collect();
        numbers.into_iter().for_each(|number| drop(world.wait(number)));
        world.send_get(&key, follower, &Ask::default());
    }
    world.set_option("replica.deny_client_request", "timeout*read");
    for _ in 0..5 {
        world.send_get(&key, follower, &ask);
    }
    let counts = world.counts(follower);
    // The call that asks is answered when the counts have been taken.
    assert_eq!((&counts["requests_in_flight"], &counts["waiting"]), (&json!(1), &json!(0)), "{counts}");
}

/// C18: what waits when a checkpoint comes is told at once: installing it may take long.
#[test]
fn c18_a_read_that_waits_when_a_checkpoint_comes_is_told_at_once() {
    let small = |config: &mut hedgerow_node::Config| {
        (config.flush_replica_bytes, config.log_retained_bytes) = (1_000, 1_000);
    };
    let (mut world, key, places) = world_of(World::configured(3, small), &json!({}));
    let follower = places.followers[0];
    world.run(500 * MS);
    world.machines.get_mut(&follower).unwrap().holds = |job| matches!(job, Job::Install { .. });
    world.cut_off(follower);
    // The others flush, and the log no longer has what the follower misses.
    let mut index = 0;
    for _ in 0..40 {
        index = world.write(&key, places.leader, &"x".repeat(1_000));
        world.run(100 * MS);
    }
    world.cut.clear();
    let token = SessionToken::of(GroupId::new(key.table as u32, key.partition as u32), index).encode();
    let ask = Ask::anywhere(ReadLevel::Session).with_token(&token).with_deadline(60_000 * MS);
    let mut reads = Vec::new();
    while world.machines[&follower].held.is_empty() {
        reads.push(world.send_get(&key, follower, &ask));
        world.run(MS);
        assert!(reads.len() < 2_000, "no checkpoint came");
    }
    let answers: Vec<_> = reads.iter().map(|read| world.answer(*read).expect("nobody waits any more").1).collect();
    let last = crate::world::value_of(answers.into_iter().next_back().unwrap()).unwrap_err().0;
    assert!(matches!(last, Some(Refusal::NotReady(_))), "{last:?}");
}

/// A node that no longer has the replica which led says so; the follower does not wait for an answer that never comes.
#[test]
fn a_question_to_a_replica_that_is_gone_is_answered() {
    let (mut world, key, places) = world(3, &json!({}));
    let follower = places.followers[0];
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(5_000 * MS);
    world.get(&key, follower, &ask).unwrap();
    world.wipe(places.leader);
    let refused = world.get(&key, follower, &ask).unwrap_err();
    assert!(matches!(refused.refusal, Some(Refusal::NotLeader { .. })), "{refused:?}");
    assert!(refused.after <= MS, "{refused:?}");
}
