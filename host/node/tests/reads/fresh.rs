//! How fresh what is read is: indices, tokens, proofs, and what is done where there is none.

use crate::world::{Ask, Key, MS, World, bounded};
use hedgerow_node::config::PENDING_READS_MAX;
use hedgerow_types::{GroupId, ReadLevel, Refusal, SessionToken};
use serde_json::json;
use std::time::Duration;

fn world() -> (World, Key, crate::world::Places) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    (world, key, places)
}

fn token(key: &Key, index: u64) -> Vec<u8> {
    SessionToken::of(GroupId::new(key.table as u32, key.partition as u32), index).encode()
}

/// A follower that has not heard of a write yet serves it all the same once a reader asks.
#[test]
fn c08_a_linearizable_read_at_a_follower_sees_what_was_acknowledged_before_it() {
    let (mut world, key, places) = world();
    for round in 0..50 {
        let value = format!("v{round}");
        world.write(&key, places.leader, &value);
        for follower in &places.followers {
            let asked = world.now;
            let (read, extension) = world.get(&key, *follower, &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
            assert_eq!((read.as_str(), extension.staleness_ms), (value.as_str(), Some(0)), "at {follower}");
            assert!(world.now.since(asked) <= 2 * MS, "one round trip, not a heartbeat: {:?}", world.now.since(asked));
            assert_eq!(u128::from(extension.queue_us.unsigned_abs()), world.now.since(asked).as_micros());
        }
    }
}

/// Reads wait where a write is not there yet: the token says for which.
#[test]
fn s14_a_session_never_goes_back_whichever_replica_it_reads_from() {
    let (mut world, key, places) = world();
    let mut index = world.write(&key, places.leader, "0");
    for round in 1..40 {
        let value = round.to_string();
        index = index.max(world.write(&key, places.leader, &value));
        for level in [ReadLevel::Session, bounded(60_000), ReadLevel::Eventual] {
            for node in [places.followers[1], places.leader, places.followers[0]] {
                let ask = Ask::anywhere(level).with_token(&token(&key, index));
                let (read, extension) = world.get(&key, node, &ask).unwrap();
                assert_eq!(read, value, "{level} at {node}");
                assert!(extension.index >= index);
                index = extension.index;
            }
        }
    }
}

/// As many reads wait for an index as may: those that have to wait are refused, and no others.
#[test]
fn n4p_reads_that_wait_keep_nobody_from_reads_that_need_not() {
    let (mut world, key, places) = world();
    let index = world.write(&key, places.leader, "0");
    world.run(500 * MS);
    let ahead = Ask::anywhere(ReadLevel::Session).with_token(&token(&key, index + 1_000));
    for node in [places.leader, places.followers[0]] {
        let waiting: Vec<i32> = (0..PENDING_READS_MAX).map(|_| world.send_get(&key, node, &ahead)).collect();
        let refused = world.get(&key, node, &ahead).unwrap_err();
        assert!(format!("{refused:?}").contains("reads of the partition wait"), "{refused:?}");
        for level in [ReadLevel::Eventual, ReadLevel::Linearizable] {
            // A follower has to ask its leader first.
            let level = if node == places.leader { level } else { ReadLevel::Eventual };
            assert_eq!(world.get(&key, node, &Ask::anywhere(level)).unwrap().0, "0", "{level} at {node}");
        }
        assert!(waiting.iter().all(|number| !world.has_answer(*number)));
    }
}

/// Nobody has read with a bound here, and a follower serves such a read at once: heartbeats have told it how fresh it is.
#[test]
fn a_follower_that_nobody_has_asked_has_a_proof() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    world.run(1_000 * MS);
    for follower in &places.followers {
        let asked = world.now;
        let (value, extension) = world.get(&key, *follower, &Ask::anywhere(bounded(300))).unwrap();
        assert_eq!((value.as_str(), world.now), ("0", asked), "at {follower}");
        assert!(extension.staleness_ms.is_some_and(|ms| ms <= 250), "{extension:?}");
    }
}

/// A replica that has what the session saw may still be older than the bound.
#[test]
fn s14_a_bounded_read_of_a_session_waits_for_its_floor_and_for_its_bound() {
    let (mut world, key, places) = world();
    let follower = places.followers[0];
    world.run(500 * MS);
    world.machines.get_mut(&follower).unwrap().is_log_stuck = true;
    let index = world.write(&key, places.leader, "new");
    // It learns that the entry is committed, and cannot apply it.
    world.run(500 * MS);
    let ask = Ask::anywhere(bounded(20)).with_token(&token(&key, index));
    let read = world.send_get(&key, follower, &ask);
    world.run(50 * MS);
    assert!(world.answer(read).is_none());
    world.unstick(follower);
    let (value, extension) = crate::world::value_of(world.wait(read).1).unwrap();
    assert_eq!(value, "new");
    assert!(extension.staleness_ms.is_some_and(|ms| ms <= 20), "{extension:?}");
}

#[test]
fn a_token_ahead_of_the_group_is_refused_with_the_lag_and_not_waited_for() {
    let (mut world, key, places) = world();
    let index = world.write(&key, places.leader, "0");
    for node in [places.leader, places.followers[0]] {
        let ask = Ask::anywhere(ReadLevel::Session).with_token(&token(&key, index + 50)).with_deadline(5_000 * MS);
        let refused = world.get(&key, node, &ask).unwrap_err();
        assert!(matches!(refused.refusal, Some(Refusal::Lagging(_))), "{refused:?}");
        assert!(refused.after < 1_000 * MS, "{refused:?}");
    }
}

/// C17: what is malformed is the caller's own business; what else waits goes on.
#[test]
fn c17_a_malformed_token_is_refused_and_nothing_else() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    let follower = places.followers[0];
    let good = world.put(follower, &key.header(&Ask::anywhere(ReadLevel::Linearizable)), &get(&key));
    let bad = Ask::anywhere(ReadLevel::Session).with_token(&[9, 9, 9]);
    let bad = world.put(follower, &key.header(&bad), &get(&key));
    world.settle(follower);
    let (_, frame) = world.wait(bad);
    let refused = crate::world::value_of(frame).unwrap_err();
    assert!(matches!(refused.0, Some(Refusal::Invalid(_))), "{refused:?}");
    assert!(crate::world::value_of(world.wait(good).1).is_ok());
}

fn get(key: &Key) -> hedgerow_wire::Body {
    hedgerow_wire::Body::Get(key.full())
}

/// A follower that is cut off knows that it cannot prove anything, and says so instead of waiting.
#[test]
fn s08_a_cut_off_follower_refuses_at_once_with_its_lag() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    let follower = places.followers[0];
    // What is 200 ms old would do, too.
    world.run(300 * MS);
    let ask = Ask::anywhere(bounded(1_000)).with_deadline(5_000 * MS);
    let (_, extension) = world.get(&key, follower, &ask).unwrap();
    assert!(extension.staleness_ms.is_some_and(|ms| ms <= 1_000), "{extension:?}");
    world.cut_off(follower);
    let cut = world.now;
    let mut last_served = cut;
    let mut first_refused = None;
    for _ in 0..300 {
        match world.get(&key, follower, &ask) {
            Ok((_, extension)) => {
                assert!(extension.staleness_ms.is_some_and(|ms| ms <= 1_000), "{extension:?}");
                last_served = world.now;
            }
            Err(refused) => {
                let Some(Refusal::Lagging(lag)) = refused.refusal else { panic!("{refused:?}") };
                assert!(lag.staleness.is_some_and(|staleness| staleness > 990 * MS), "{lag}");
                assert!(refused.after <= 600 * MS, "{refused:?}");
                first_refused.get_or_insert((world.now, refused.after));
            }
        }
        world.run(10 * MS);
    }
    assert!(last_served.since(cut) <= 1_000 * MS);
    let (refused_at, after) = first_refused.unwrap();
    assert!(refused_at.since(cut) <= 1_600 * MS, "it refused after {:?}", refused_at.since(cut));
    let late = world.get(&key, follower, &ask).unwrap_err();
    assert_eq!(late.after, Duration::ZERO, "the first one took {after:?}");
}

/// The same for reads that need the latest: there is nobody to ask.
#[test]
fn s08_a_cut_off_follower_refuses_linearizable_reads_within_its_patience() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    let follower = places.followers[0];
    let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(20_000 * MS);
    world.get(&key, follower, &ask).unwrap();
    world.cut_off(follower);
    for _ in 0..40 {
        let refused = world.get(&key, follower, &ask).unwrap_err();
        let is_right = matches!(refused.refusal, Some(Refusal::Lagging(_) | Refusal::NotLeader { .. }));
        assert!(is_right && refused.after <= 1_000 * MS, "{refused:?}");
        world.run(100 * MS);
    }
    assert_eq!(world.get(&key, follower, &ask).unwrap_err().after, Duration::ZERO, "its leader is long gone");
    world.cut.clear();
    world.run(5_000 * MS);
    assert_eq!(world.get(&key, follower, &ask).unwrap().0, "0");
}

/// The 50 ms of a tick are not waited for.
#[test]
fn a_read_is_answered_when_its_deadline_comes() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    let follower = places.followers[0];
    world.cut_off(follower);
    for millis in [1, 3, 7, 20, 33] {
        let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(millis * MS);
        let refused = world.get(&key, follower, &ask).unwrap_err();
        assert_eq!(refused.refusal, Some(Refusal::Expired), "{refused:?}");
        assert!(refused.after >= millis * MS && refused.after <= (millis + 1) * MS, "{refused:?}");
    }
    // A leader that cannot reach anybody keeps its word too, for reads and for writes.
    world.cut.clear();
    world.run(5_000 * MS);
    let places = world.replicas(key.partition);
    world.cut_off(places.leader);
    world.run(1_200 * MS);
    let refused = world.get(&key, places.leader, &Ask::default().with_deadline(9 * MS)).unwrap_err();
    assert!(refused.after <= 10 * MS, "{refused:?}");
    let counts = world.counts(places.leader);
    assert_eq!(counts["waiting"], 0);
}

/// A group that has much to do is not always just about to be looked at.
#[test]
fn a_deadline_is_kept_while_the_group_is_busy() {
    let (mut world, key, places) = world();
    world.write(&key, places.leader, "0");
    let follower = places.followers[0];
    world.run(500 * MS);
    world.cut_off(follower);
    for millis in [7, 23, 41] {
        let ask = Ask::anywhere(ReadLevel::Linearizable).with_deadline(millis * MS);
        let sent = world.now;
        let waits = world.send_get(&key, follower, &ask);
        let (at, _) = loop {
            world.get(&key, follower, &Ask::anywhere(ReadLevel::Eventual)).unwrap();
            world.run(Duration::from_micros(100));
            if let Some(answer) = world.answer(waits) {
                break answer;
            }
        };
        assert!(at.since(sent) <= (millis + 1) * MS, "{millis} ms became {:?}", at.since(sent));
    }
}
