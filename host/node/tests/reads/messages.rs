//! What reads at replicas that do not lead cost in messages between nodes.

use crate::world::{Ask, Key, MS, World, value_of};
use hedgerow_types::random::Random;
use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::Body;
use serde_json::json;
use std::time::Duration;

const PARTITIONS: u32 = 64;

fn world(count: u32) -> (World, Vec<Key>) {
    let mut world = World::new(3);
    let table = world.create_table(count, &json!({}));
    // One key of each partition.
    let mut keys: Vec<Option<Key>> = vec![None; count as usize];
    for number in 0.. {
        let key = Key::new(table, count, &format!("k{number}"));
        let place = key.partition as usize;
        keys[place].get_or_insert(key);
        if keys.iter().all(Option::is_some) {
            break;
        }
    }
    let keys: Vec<Key> = keys.into_iter().flatten().collect();
    for key in &keys {
        let leader = world.replicas(key.partition).leader;
        world.write(key, leader, "value");
    }
    world.run(1_000 * MS);
    (world, keys)
}

/// Messages with questions or answers, sent by all nodes.
fn messages(world: &mut World) -> u64 {
    let nodes: Vec<NodeId> = world.machines.keys().copied().collect();
    nodes.into_iter().map(|node| world.counts(node)["read_index"]["messages_sent"].as_u64().unwrap()).sum()
}

/// 64 callers of one node, each with one linearizable read of some partition under way, as fast as they are answered.
/// Returns messages per read.
fn closed_loop(delay: Duration, pause_us_max: u64) -> f64 {
    let (mut world, keys) = world(PARTITIONS);
    world.delay = delay;
    let mut random = Random::new(5);
    let ask = Ask::anywhere(ReadLevel::Linearizable);
    // Partitions that one other node leads.
    let (node, leader) = (NodeId(2), NodeId(1));
    let places: Vec<_> = keys.iter().map(|key| world.replicas(key.partition)).collect();
    let keys: Vec<&Key> = keys.iter().zip(&places).filter(|(_, it)| it.leader == leader).map(|(key, _)| key).collect();
    assert!(keys.len() > 15);
    let before = messages(&mut world);
    let mut reads = 0;
    let mut waiting: Vec<(hedgerow_types::Instant, Option<i32>)> = (0..64).map(|_| (world.now, None)).collect();
    while reads < 6_400 {
        let mut has_sent = false;
        for (due, number) in &mut waiting {
            if let Some(sent) = *number
                && let Some((_, frame)) = world.answer(sent)
            {
                assert_eq!(value_of(frame).unwrap().0, "value");
                reads += 1;
                *number = None;
                *due = world.now + Duration::from_micros(random.below(pause_us_max + 1));
            }
            if number.is_none() && *due <= world.now {
                let key = keys[random.below(keys.len() as u64) as usize];
                *number = Some(world.put(node, &key.header(&ask), &Body::Get(key.full())));
                has_sent = true;
            }
        }
        if has_sent {
            world.settle(node);
        }
        world.run(Duration::from_micros(10));
    }
    (messages(&mut world) - before) as f64 / f64::from(reads)
}

#[test]
fn reads_of_many_groups_share_messages() {
    for (delay, pause_us) in [(50, 0), (50, 50), (250, 100)] {
        let per_read = closed_loop(Duration::from_micros(delay), pause_us);
        assert!(per_read <= 0.1, "{per_read} messages per read at {delay} us one way and pauses of {pause_us} us");
    }
}

#[test]
fn what_arrives_together_is_asked_together_and_answered_together() {
    let (mut world, keys) = world(PARTITIONS);
    let node = NodeId(3);
    let ask = Ask::anywhere(ReadLevel::Linearizable);
    let before = messages(&mut world);
    let numbers: Vec<i32> = keys.iter().map(|key| world.put(node, &key.header(&ask), &Body::Get(key.full()))).collect();
    world.settle(node);
    let asked = world.now;
    for number in numbers {
        let (at, frame) = world.wait(number);
        assert_eq!(value_of(frame).unwrap().0, "value");
        assert!(at.since(asked) <= MS);
    }
    assert!(messages(&mut world) - before <= 4, "a question to and an answer from each of two nodes");
    let counts = world.counts(node);
    let (sent, received) =
        (&counts["read_index"]["read_index_requests_sent"], &counts["read_index"]["read_index_replies_received"]);
    assert_eq!(sent, received);
}

/// Nothing is asked when nobody reads.
#[test]
fn freshness_is_renewed_only_while_there_is_demand() {
    let (mut world, keys) = world(2);
    let places = world.replicas(keys[0].partition);
    let follower = places.followers[0];
    let read = |world: &mut World| world.get(&keys[0], follower, &Ask::anywhere(crate::world::bounded(200))).unwrap();
    read(&mut world);
    // Six hundred times the bound, and some more.
    world.run(130_000 * MS);
    let idle = messages(&mut world);
    world.run(60_000 * MS);
    assert_eq!(messages(&mut world), idle);
    let mut waited = 0;
    for _ in 0..2_000 {
        let before = world.now;
        read(&mut world);
        waited += u32::from(world.now > before);
        world.run(5 * MS);
    }
    assert!(waited <= 1, "{waited} of 2000 reads had to wait for a proof");
    // 10 s at one question and one answer for each 100 ms.
    let per_second = (messages(&mut world) - idle) as f64 / 10.0;
    assert!((15.0..=25.0).contains(&per_second), "{per_second} messages per second");
}

/// A message that is lost is not repeated, and holds nobody up for long.
#[test]
fn c06_a_lost_question_is_asked_anew_under_another_id() {
    let (mut world, keys) = world(2);
    let places = world.replicas(keys[0].partition);
    let (leader, follower) = (places.leader, places.followers[0]);
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(5_000 * MS);
    world.get(&keys[0], follower, &ask).unwrap();
    world.cut.insert((follower, leader));
    let lost = world.send_get(&keys[0], follower, &ask);
    world.run(5 * MS);
    world.cut.clear();
    world.write(&keys[0], leader, "newer");
    let late = world.send_get(&keys[0], follower, &ask);
    let (at, frame) = world.wait(late);
    assert_eq!(value_of(frame).unwrap().0, "newer");
    assert!(at.since(world.now) <= 2 * MS);
    let (_, frame) = world.wait(lost);
    match value_of(frame) {
        Ok((value, _)) => assert_eq!(value, "newer"),
        Err((refusal, _)) => assert!(matches!(refusal, Some(hedgerow_types::Refusal::Lagging(_))), "{refusal:?}"),
    }
}
