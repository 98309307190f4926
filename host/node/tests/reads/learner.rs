//! Read-only replicas come and go under load.

use crate::world::{Ask, Key, MS, World, bounded, value_of};
use bytes::Bytes;
use hedgerow_node::ReplicaKey;
use hedgerow_node::peer::{Frame, SnapshotBegin, SnapshotFile};
use hedgerow_node::{Event, Job};
use hedgerow_types::{NodeId, ReadLevel, Refusal, ReplicaId};
use serde_json::{Value, json};
use std::time::Duration;

struct Setting {
    world: World,
    key: Key,
    leader: NodeId,
    /// The node without a voter of the key's partition.
    fourth: NodeId,
}

fn setting() -> Setting {
    let mut world = World::new(4);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "0");
    let fourth = world.machines.keys().copied().find(|node| *node != places.leader && !places.followers.contains(node));
    Setting { key, leader: places.leader, fourth: fourth.unwrap(), world }
}

fn hosted_replicas(world: &mut World, node: NodeId) -> u64 {
    let status = world.admin(NodeId(1), "status", &json!({})).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    let one = nodes.iter().find(|it| it["node"] == node.0).unwrap();
    one["replicas"].as_u64().unwrap()
}

fn learner_status(world: &mut World, key: &Key) -> Option<Value> {
    let table = world.admin(NodeId(1), "describe", &json!({ "name": "t" })).unwrap();
    let replicas = table["partitions"][key.partition as usize]["replicas"].as_array().unwrap().clone();
    replicas.into_iter().find(|replica| replica["role"] == "learner")
}

/// From the moment it is asked for until it is gone: writes succeed, no read is old, and none waits for long.
#[test]
fn r20_learners_come_and_go_under_load_and_nothing_is_lost_or_old() {
    let Setting { mut world, key, leader, fourth } = setting();
    let before = hosted_replicas(&mut world, fourth);
    let mut number = 0;
    let mut served = 0;
    for round in 0..6 {
        let count = if round % 2 == 0 { "1" } else { "0" };
        let argument = json!({ "name": "t", "options": { "read_replicas": count } });
        world.admin(NodeId(1), "set_options", &argument).unwrap();
        for _ in 0..400 {
            number += 1;
            let write = world.send_write(&key, leader, &number.to_string());
            let sent = world.now;
            let (at, _) = world.wait(write);
            assert!(at.since(sent) <= 5 * MS, "a write took {:?}", at.since(sent));
            for level in [ReadLevel::Linearizable, bounded(500)] {
                match world.get(&key, fourth, &Ask::anywhere(level)) {
                    Ok((value, extension)) => {
                        served += 1;
                        let value: u64 = value.parse().unwrap();
                        let allowed = if level == ReadLevel::Linearizable { 0 } else { 70 };
                        assert!(value + allowed >= number, "{level}: {value} after {number}, {extension:?}");
                    }
                    Err(refused) => {
                        let is_known = matches!(
                            refused.refusal,
                            Some(
                                Refusal::NotHosted
                                    | Refusal::NotReady(_)
                                    | Refusal::Lagging(_)
                                    | Refusal::NotLeader { .. }
                            )
                        );
                        assert!(is_known && refused.after <= 600 * MS, "{level}: {refused:?}");
                    }
                }
            }
            world.run(10 * MS);
        }
        let places = world.replicas(key.partition);
        assert_eq!((places.leader, places.learners.is_empty()), (leader, count == "0"), "round {round}");
        assert_eq!(learner_status(&mut world, &key).is_some(), count == "1");
    }
    assert!(served > 1_500, "{served} reads were served by the learner");
    world.run(2_000 * MS);
    assert_eq!(hosted_replicas(&mut world, fourth), before, "its data is gone");
    let value = world.get(&key, leader, &Ask::default()).unwrap().0;
    assert_eq!(value, number.to_string());
}

/// A reader that waits at a learner when it is removed is sent elsewhere at once.
#[test]
fn r20_a_read_that_waits_at_a_removed_learner_is_told_at_once() {
    let Setting { mut world, key, leader, fourth } = setting();
    world.set_option("read_replicas", "1");
    world.run(3_000 * MS);
    world.get(&key, fourth, &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
    // Its questions are lost, so that the read is still waiting when the catalogue comes.
    world.cut.insert((fourth, leader));
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(10_000 * MS);
    let sent = world.now;
    let read = world.send_get(&key, fourth, &ask);
    let argument = json!({ "name": "t", "options": { "read_replicas": "0" } });
    world.admin(NodeId(1), "set_options", &argument).unwrap();
    let (at, frame) = world.wait(read);
    assert_eq!(value_of(frame).unwrap_err().0, Some(Refusal::NotHosted));
    assert!(at.since(sent) <= 50 * MS, "{:?}", at.since(sent));
    let next = world.get(&key, fourth, &ask).unwrap_err();
    assert_eq!((next.refusal, next.after), (Some(Refusal::NotHosted), Duration::ZERO));
}

/// Neither the map nor a read takes a learner for one that serves before it is.
#[test]
fn r20_a_learner_that_has_not_caught_up_is_neither_named_nor_serves() {
    let Setting { mut world, key, leader, fourth } = setting();
    world.machines.get_mut(&fourth).unwrap().holds = |job| matches!(job, hedgerow_node::Job::Install { .. });
    world.set_option("read_replicas", "1");
    world.run(3_000 * MS);
    assert!(world.replicas(key.partition).learners.is_empty());
    assert_eq!(learner_status(&mut world, &key).unwrap()["state"], "learning");
    world.write(&key, leader, "1");
    world.let_go(fourth);
    world.run(3_000 * MS);
    assert_eq!(world.replicas(key.partition).learners, [fourth]);
    let status = learner_status(&mut world, &key).unwrap();
    assert_eq!((&status["state"], &status["lag"]), (&json!("ok"), &json!(0)), "{status}");
    assert_eq!(world.get(&key, fourth, &Ask::anywhere(ReadLevel::Linearizable)).unwrap().0, "1");
    world.run(2_500 * MS);
    let staleness = learner_status(&mut world, &key).unwrap()["staleness_ms"].as_u64();
    assert!(staleness.is_some_and(|ms| (1..=250).contains(&ms)), "heartbeats tell it how fresh it is: {staleness:?}");
}

/// A learner has all of a checkpoint and is about to install it when the leader offers another one, in the same batch of
/// events. The files that the installation needs stay where they are.
#[test]
fn n8b_another_checkpoint_is_offered_while_one_is_about_to_be_installed() {
    let Setting { mut world, key, leader, fourth } = setting();
    let is_verification = |job: &Job| matches!(job, Job::Verify { .. });
    world.machines.get_mut(&fourth).unwrap().holds = is_verification;
    world.set_option("read_replicas", "1");
    world.run(2_000 * MS);
    let owner = |job: &Job| if let Job::Verify { owner, .. } = job { Some(*owner) } else { None };
    let owners: Vec<ReplicaKey> = world.machines[&fourth].held.iter().filter_map(owner).collect();
    assert_eq!(owners.len(), 2, "one learner of each partition");
    world.finish_held(fourth);
    for ReplicaKey { group, replica } in owners {
        let begin = SnapshotBegin {
            group: group.to_u64(),
            from: ReplicaId::new(1, leader).0,
            to: replica.0,
            id: 77,
            message: Bytes::new(),
            files: vec![SnapshotFile { name: "other".to_owned(), size: 1 }],
        };
        world.handle(fourth, Event::Peer(leader, Frame::SnapshotBegin(begin)));
    }
    world.settle(fourth);
    world.run(3_000 * MS);
    assert_eq!(world.replicas(key.partition).learners, [fourth]);
    assert_eq!(world.get(&key, fourth, &Ask::anywhere(ReadLevel::Linearizable)).unwrap().0, "0");
}

/// A learner that lost its data is given up for a new one on the same node.
#[test]
fn a_lost_learner_is_replaced() {
    let Setting { mut world, key, fourth, .. } = setting();
    world.set_option("read_replicas", "1");
    world.run(3_000 * MS);
    let first = learner_status(&mut world, &key).unwrap()["replica"].clone();
    world.wipe(fourth);
    world.run(15_000 * MS);
    let second = learner_status(&mut world, &key).unwrap();
    assert!(second["replica"] != first && second["state"] == "ok", "{second}");
    assert_eq!(world.get(&key, fourth, &Ask::anywhere(ReadLevel::Linearizable)).unwrap().0, "0");
}

/// Learners that there was no node for come when there is one.
#[test]
fn a_learner_comes_when_its_node_does() {
    let Setting { mut world, key, fourth, .. } = setting();
    world.cut_off(fourth);
    world.run(10_000 * MS);
    world.set_option("read_replicas", "1");
    world.run(3_000 * MS);
    assert_eq!(learner_status(&mut world, &key), None, "its node is not there");
    world.cut.clear();
    world.run(10_000 * MS);
    assert_eq!(world.replicas(key.partition).learners, [fourth]);
}

/// A voter that its node could not make when the table was created, and whose group has changed since, is replaced: what it
/// would begin with is no longer the group's beginning.
#[test]
fn a_voter_that_was_never_made_is_replaced_after_the_group_has_changed() {
    let mut world = World::new(4);
    let away = NodeId(4);
    world.run(3_000 * MS);
    world.cut_off(away);
    // The others still count it among the living, and give it voters.
    world.create_table(8, &json!({}));
    world.set_option("read_replicas", "1");
    world.run(3_000 * MS);
    let states = |world: &mut World| -> Vec<String> {
        let table = world.admin(NodeId(1), "describe", &json!({ "name": "t" })).unwrap();
        let partitions = table["partitions"].as_array().unwrap().clone();
        let replicas = partitions.iter().flat_map(|partition| partition["replicas"].as_array().unwrap());
        let here = replicas.filter(|replica| replica["node"] == away.0 && replica["role"] != "learner");
        here.map(|replica| replica["state"].as_str().unwrap().to_owned()).collect()
    };
    assert!(!states(&mut world).is_empty(), "no voter was given to it");
    world.cut.clear();
    world.run(20_000 * MS);
    let after = states(&mut world);
    assert!(after.iter().all(|state| state == "ok"), "{after:?}");
}
