//! Two attempts that name each other, at two nodes.

use crate::named::{CLIENT, CONNECTION, Small, extra, first, tied};
use crate::world::{MS, value_of};
use hedgerow_node::Event;
use hedgerow_node::peer::{Began, Frame};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::Extension;
use std::time::Duration;

/// Two nodes with a replica each, and the two attempts of a request for them.
struct Pair {
    small: Small,
    one: NodeId,
    two: NodeId,
}

impl Pair {
    fn new() -> Self {
        let small = Small::new();
        let (one, two) = (small.places.followers[0], small.places.followers[1]);
        Self { small, one, two }
    }

    fn attempts(&self, request: u64, level: ReadLevel) -> (Extension, Extension) {
        (tied(first(request, level), self.two, 2), tied(extra(request, level), self.one, 1))
    }

    fn is_served(&mut self, number: i32) -> bool {
        value_of(self.small.world.answer(number).expect("it is answered").1).is_ok()
    }

    fn ties(&mut self, node: NodeId, what: &str) -> u64 {
        self.small.told(node)["ties"][what].as_u64().unwrap()
    }
}

const FLIGHT: Duration = Duration::from_micros(60);

#[test]
fn h16_the_copy_that_has_not_begun_when_the_other_has_is_dropped_unrun() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    let one = pair.small.put(pair.one, one);
    let two = pair.small.put(pair.two, two);
    pair.small.world.settle(pair.one);
    pair.small.world.run(FLIGHT);
    assert!(pair.is_served(one));
    assert_eq!(pair.small.refusal(two), Some(Refusal::Withdrawn));
    assert_eq!((pair.ties(pair.one, "begun"), pair.ties(pair.one, "cancels_sent")), (1, 1));
    assert_eq!((pair.ties(pair.two, "begun"), pair.ties(pair.two, "cancels_in_time")), (0, 1));
    assert_eq!(pair.small.told(pair.two)["extra"]["run"], 0);
    pair.small.assert_idle(pair.two);
}

/// Both begin within the message's flight: both run, both answer, and it is counted as waste.
#[test]
fn h16_copies_that_begin_within_the_flight_of_the_message_both_run() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    let one = pair.small.put(pair.one, one);
    let two = pair.small.put(pair.two, two);
    pair.small.world.settle(pair.one);
    pair.small.world.settle(pair.two);
    pair.small.world.run(FLIGHT);
    assert!(pair.is_served(one) && pair.is_served(two));
    for node in [pair.one, pair.two] {
        assert_eq!((pair.ties(node, "begun"), pair.ties(node, "cancels_too_late")), (1, 1));
        assert_eq!((pair.ties(node, "cancels_in_time"), pair.ties(node, "cancels_on_arrival")), (0, 0));
    }
}

/// The second copy leaves a stagger later: where the first begins at once, the word of it is there before the copy.
#[test]
fn h16_a_copy_that_comes_after_the_word_is_dropped_on_arrival() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    let one = pair.small.put(pair.one, one);
    pair.small.world.settle(pair.one);
    pair.small.world.run(2 * FLIGHT);
    let two = pair.small.put(pair.two, two);
    pair.small.world.settle(pair.two);
    assert!(pair.is_served(one));
    assert_eq!(pair.small.refusal(two), Some(Refusal::Withdrawn));
    assert_eq!((pair.ties(pair.two, "cancels_on_arrival"), pair.ties(pair.two, "begun")), (1, 0));
    // Once: a copy that comes again is run, whoever sent it.
    let again = pair.attempts(1, ReadLevel::Eventual).1;
    let again = pair.small.put(pair.two, again);
    pair.small.world.settle(pair.two);
    assert!(pair.is_served(again));
}

#[test]
fn h16_what_was_heard_long_ago_drops_nothing() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    pair.small.put(pair.one, one);
    pair.small.world.settle(pair.one);
    pair.small.world.run(1_100 * MS);
    let two = pair.small.put(pair.two, two);
    pair.small.world.settle(pair.two);
    assert!(pair.is_served(two));
}

/// Neither of two copies that cancel each other is dropped once it runs, whether it is done or waits for an index.
#[test]
fn h17_copies_that_cancel_each_other_are_both_answered() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Linearizable);
    let one = pair.small.put(pair.one, one);
    let two = pair.small.put(pair.two, two);
    pair.small.world.settle(pair.one);
    pair.small.world.settle(pair.two);
    assert_eq!(pair.small.counts(pair.one)["waiting"], 1);
    pair.small.world.run(10 * MS);
    assert!(pair.is_served(one) && pair.is_served(two));
}

/// The other node is dead or cannot be reached: nobody waits for it.
#[test]
fn h17_a_copy_whose_peer_is_dead_runs_by_itself() {
    let mut pair = Pair::new();
    pair.small.world.cut_off(pair.two);
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    let (one, two) = (pair.small.put(pair.one, one), pair.small.put(pair.two, two));
    let now = pair.small.world.now;
    pair.small.world.settle(pair.one);
    assert!(pair.is_served(one));
    assert_eq!(pair.small.world.now, now);
    pair.small.world.run(10 * MS);
    pair.small.world.settle(pair.two);
    assert!(pair.is_served(two), "nor has it heard");
    // A node that nobody knows is no reason to refuse.
    let stranger = tied(first(2, ReadLevel::Eventual), NodeId(77), 2);
    let stranger = pair.small.put(pair.one, stranger);
    pair.small.world.settle(pair.one);
    assert!(pair.is_served(stranger));
}

/// A copy that is refused has not begun, and the other one is not told that it need not.
#[test]
fn h17_a_copy_that_is_refused_does_not_drop_the_other() {
    let mut pair = Pair::new();
    let (one, two) = pair.attempts(1, ReadLevel::Eventual);
    let misled = Extension { any_replica: false, ..one.clone() };
    let misled = pair.small.put(pair.one, misled);
    let late = Extension { request_id: Some(1), deadline_ms: Some(1), ..one };
    let late = pair.small.put(pair.one, late);
    let two = pair.small.put(pair.two, two);
    pair.small.world.now = pair.small.world.now + MS;
    pair.small.world.settle(pair.one);
    pair.small.world.run(FLIGHT);
    pair.small.world.settle(pair.two);
    assert!(matches!(pair.small.refusal(misled), Some(Refusal::NotLeader { .. })));
    assert_eq!(pair.small.refusal(late), Some(Refusal::Expired));
    assert!(pair.is_served(two));
    assert_eq!(pair.ties(pair.one, "cancels_sent"), 0);
}

/// Both copies at one node: the one whose turn comes first runs.
#[test]
fn h17_copies_at_one_node_run_once() {
    let mut pair = Pair::new();
    let node = pair.one;
    let one = pair.small.put(node, tied(first(1, ReadLevel::Eventual), node, 2));
    let two = pair.small.put(node, tied(extra(1, ReadLevel::Eventual), node, 1));
    pair.small.world.settle(node);
    assert!(pair.is_served(one));
    assert_eq!(pair.small.refusal(two), Some(Refusal::Withdrawn));
    pair.small.assert_idle(node);
}

/// Only the node that a copy names can have it dropped, and only under its own name; what is not tied cannot be dropped.
#[test]
fn h19_a_nodes_word_drops_only_the_copy_that_names_it() {
    let mut pair = Pair::new();
    let copy = pair.attempts(1, ReadLevel::Eventual).1;
    let copy = pair.small.put(pair.two, copy);
    let untied = pair.small.put(pair.two, extra(2, ReadLevel::Eventual));
    let leader = pair.small.places.leader;
    let mut hear = |from: NodeId, client_id: u64, request_id: u64, attempt: i32| {
        let frame = Frame::Began(Began { client_id, request_id, attempt });
        pair.small.world.handle(pair.two, Event::Peer(from, frame));
    };
    hear(leader, CLIENT, 1, 2);
    hear(pair.one, CLIENT + 1, 1, 2);
    hear(pair.one, CLIENT, 1, 1);
    hear(pair.one, CLIENT, 2, 2);
    pair.small.world.settle(pair.two);
    assert!(pair.is_served(copy) && pair.is_served(untied));
}

/// A cancel from the client and the word of the other node, in either order: no answer, or one.
#[test]
fn h15_a_cancel_and_a_withdrawal_of_one_copy_do_not_meet() {
    let mut pair = Pair::new();
    for (request, cancels_first) in [(1, true), (2, false)] {
        let (one, two) = pair.attempts(request, ReadLevel::Eventual);
        pair.small.put(pair.one, one);
        let two = pair.small.put(pair.two, two);
        if cancels_first {
            pair.small.cancel(CONNECTION, pair.two, CLIENT, request, Some(2));
        }
        pair.small.world.settle(pair.one);
        pair.small.world.run(FLIGHT);
        if !cancels_first {
            pair.small.cancel(CONNECTION, pair.two, CLIENT, request, Some(2));
        }
        pair.small.world.run(10 * MS);
        assert_eq!(pair.small.world.answer(two).is_some(), !cancels_first);
        pair.small.assert_idle(pair.two);
    }
}
