//! Reads that the node's thread leaves to others: who goes on meanwhile, what is answered, and how they end.

use crate::cancel::{OTHER, assert_freed};
use crate::named::{CLIENT, CONNECTION, Small, extra, first};
use crate::world::{MS, bounded};
use hedgerow_node::{Job, ReadSize};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use serde_json::json;

/// A cluster whose nodes serve no read themselves. Jobs that read at `node` stay where they are until they are let go.
fn aside() -> (Small, NodeId) {
    let mut small = Small::configured(|config| config.reads_at_once.rows = 0);
    let node = small.places.leader;
    hold(&mut small, node);
    (small, node)
}

fn hold(small: &mut Small, node: NodeId) {
    small.world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Read { .. });
}

fn running(small: &mut Small, node: NodeId) -> u64 {
    small.told(node)["aside"]["short"]["running"].as_u64().unwrap()
}

/// The snapshot is of the moment at which the read was served, and so is the index that the reply names.
#[test]
fn n4f_a_read_on_another_thread_shows_its_moment_and_holds_nobody_up() {
    let (mut small, node) = aside();
    let (key, places) = (small.key.clone(), small.places.leader);
    let before = small.put(node, first(1, ReadLevel::Linearizable));
    small.world.settle(node);
    assert_eq!((small.world.has_answer(before), running(&mut small, node)), (false, 1));
    let index = small.world.write(&key, places, "1");
    let after = small.put(node, first(2, ReadLevel::Linearizable));
    small.world.settle(node);
    small.world.let_go(node);
    let (old, old_extension) = small.value(before);
    let (new, new_extension) = small.value(after);
    assert_eq!((old.as_str(), new.as_str()), ("0", "1"));
    assert!(old_extension.index < index && new_extension.index >= index, "{old_extension:?} {new_extension:?}");
    assert_eq!(running(&mut small, node), 0);
    small.assert_idle(node);
}

#[test]
fn h21_the_read_on_another_thread_is_ended() {
    let (mut small, node) = aside();
    let number = small.put(node, first(1, ReadLevel::Linearizable));
    small.world.settle(node);
    assert_freed(&mut small, node, 1, number, "waiting_reads");
    // Its place is taken until the job has ended, which it does without reading.
    assert_eq!(running(&mut small, node), 1);
    let done = small.world.run_held(node);
    assert!(done[0].result.is_err(), "nobody wants it");
    small.world.take_done(node, done);
    assert_eq!(running(&mut small, node), 0);
}

#[test]
fn h21_the_wait_for_a_place_is_ended() {
    let (mut small, node) = aside();
    let places = ReadSize::Short.places() as u64;
    for request in 0..places {
        small.put(node, first(request, ReadLevel::Eventual));
    }
    small.world.settle(node);
    let number = small.put(node, first(99, ReadLevel::Eventual));
    small.world.settle(node);
    assert_eq!(small.told(node)["aside"]["short"], json!({ "run": places, "running": places, "waiting": 1 }));
    small.cancel(CONNECTION, node, CLIENT, 99, Some(1));
    assert_eq!(small.told(node)["aside"]["short"]["waiting"], 0);
    small.world.let_go(node);
    assert!(!small.world.has_answer(number));
    small.assert_idle(node);
}

/// One connection asks for much, and another one for little.
#[test]
fn n4f_connections_have_places_in_turn() {
    let (mut small, node) = aside();
    let places = ReadSize::Short.places();
    let many: Vec<i32> = (0..100).map(|request| small.put(node, first(request, ReadLevel::Eventual))).collect();
    let one = small.put_on(OTHER, node, first(1, ReadLevel::Eventual));
    small.world.settle(node);
    small.world.replies.clear();
    small.world.let_go(node);
    let order: Vec<_> = small.world.replies.iter().map(|(_, connection, _)| *connection).collect();
    let turn = order.iter().position(|connection| *connection == OTHER).expect("it is answered");
    // Replies of one batch are ordered by connection.
    assert!((places..2 * places).contains(&turn), "{turn}");
    assert!(many.into_iter().chain([one]).all(|number| small.world.has_answer(number)));
    small.assert_idle(node);
}

#[test]
fn n4f_a_bounded_read_is_not_answered_with_what_is_older_than_its_bound() {
    let (mut small, node) = aside();
    let number = small.put(node, first(1, bounded(50)));
    small.world.settle(node);
    small.world.run(40 * MS);
    assert!(!small.world.has_answer(number));
    small.world.run(20 * MS);
    assert!(matches!(small.refusal(number), Some(Refusal::Lagging(_))));
    small.world.let_go(node);
    // One that ends in time says how old it is by then.
    hold(&mut small, node);
    let number = small.put(node, first(2, bounded(50)));
    small.world.settle(node);
    small.world.run(30 * MS);
    small.world.let_go(node);
    let (_, extension) = small.value(number);
    assert!(extension.staleness_ms.is_some_and(|age| (30..=50).contains(&age)), "{extension:?}");
}

#[test]
fn who_leaves_takes_its_reads_along_and_who_waits_too_long_is_told() {
    let (mut small, node) = aside();
    let gone = small.put(node, first(1, ReadLevel::Eventual));
    let late = small.put_on(OTHER, node, first(2, ReadLevel::Eventual));
    small.world.settle(node);
    small.close(CONNECTION, node);
    small.world.run(5_100 * MS);
    assert_eq!((small.world.has_answer(gone), small.refusal(late)), (false, Some(Refusal::Expired)));
    small.world.let_go(node);
    assert_eq!(running(&mut small, node), 0);
    small.assert_idle(node);
}

#[test]
fn n4f_so_many_may_wait_and_fewer_of_them_are_extra_attempts() {
    let (mut small, node) = aside();
    let (most, places) = (hedgerow_node::config::READ_JOBS_MAX, ReadSize::Short.places());
    let refused =
        |small: &Small| small.world.replies.iter().filter(|(_, connection, _)| *connection == CONNECTION).count();
    small.world.replies.clear();
    let mut shed = |count: usize, attempt: fn(u64, ReadLevel) -> hedgerow_wire::Extension, from: u64| {
        let before = refused(&small);
        for request in 0..count as u64 {
            small.put(node, attempt(from + request, ReadLevel::Eventual));
            small.world.settle(node);
        }
        refused(&small) - before
    };
    // Beside those that have a place.
    assert_eq!(shed(places + most / 4 + 10, extra, 0), 10);
    assert_eq!(shed(most * 3 / 4 + 10, first, 1_000_000), 10);
    // Somebody who asks for little has the place of the newest of those that wait.
    let other = small.put_on(OTHER, node, first(1, ReadLevel::Eventual));
    small.world.settle(node);
    assert!(!small.world.has_answer(other));
    assert_eq!((&small.told(node)["aside"]["shed"], refused(&small)), (&json!(21), 21));
    small.world.let_go(node);
    assert!(small.value(other).0 == "0");
    small.assert_idle(node);
}
