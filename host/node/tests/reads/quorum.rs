//! Linearizable reads without their leader: by the logs of a majority (decision 018).

use crate::world::{Ask, Key, MS, Meddler, World, running};
use bytes::{Bytes, BytesMut};
use hedgerow_node::Event;
use hedgerow_node::peer::{Frame, take};
use hedgerow_node::tail_frame::{KeySpan, TailRead, TailReply, TailRequest, TailRequests};
use hedgerow_replication::QUORUM_READS_MAX;
use hedgerow_types::{GroupId, NodeId, ReadLevel};
use hedgerow_wire::message::{KeyValue, MultiPut};
use hedgerow_wire::{Body, Cause};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;

fn world() -> (World, Key, crate::world::Places) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "first");
    world.run(500 * MS);
    (world, key, places)
}

/// Another key of the same partition, which nobody has written.
fn neighbour(key: &Key) -> Key {
    let mut keys = (0..).map(|n| Key::new(key.table, 2, &format!("k{n}")));
    keys.find(|it| it.partition == key.partition).expect("there are many keys")
}

/// A hedge: somebody waits for it.
fn hedge() -> Ask {
    let mut ask = Ask::anywhere(ReadLevel::Linearizable);
    let extension = ask.extension.get_or_insert_default();
    extension.cause = Some(Cause::Hedge as i32);
    (extension.attempt, extension.wants_trace) = (Some(2), true);
    ask
}

/// Two nodes do not hear each other.
fn cut(world: &mut World, one: NodeId, other: NodeId) {
    world.cut.extend([(one, other), (other, one)]);
}

fn served_by_quorum(world: &mut World, node: NodeId) -> Value {
    world.counts(node)["served_by_quorum"].clone()
}

#[test]
fn a_hedge_is_answered_without_the_leader_that_stands_still() {
    let (mut world, key, places) = world();
    world.cut_off(places.leader);
    let (at, other) = (places.followers[0], places.followers[1]);
    let asked = world.now;
    let (value, extension) = world.get(&key, at, &hedge()).unwrap();
    assert_eq!((value.as_str(), extension.staleness_ms), ("first", Some(0)));
    assert!(world.now.since(asked) <= 3 * MS, "a round trip: {:?}", world.now.since(asked));
    let mode = extension.mode.map(|mode| mode.to_string()).unwrap_or_default();
    assert!(mode.starts_with("follower quorum"), "{mode}");
    assert_eq!(served_by_quorum(&mut world, at), 1);
    let (here, there) = (world.counts(at)["quorum"].clone(), world.counts(other)["quorum"].clone());
    assert_eq!((&here["reads_asked"], &here["nowhere"], &here["touched"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!((&here["messages_sent"], &there["messages_sent"]), (&json!(1), &json!(1)));
}

/// Others wait until the leader has owed an answer for a tick.
#[test]
fn any_read_is_answered_without_a_leader_that_is_silent() {
    let (mut world, key, places) = world();
    world.cut_off(places.leader);
    let at = places.followers[0];
    let ask = Ask::anywhere(ReadLevel::Linearizable);
    let asked = world.now;
    assert_eq!(world.get(&key, at, &ask).unwrap().0, "first");
    assert!(world.now.since(asked) <= 120 * MS, "{:?}", world.now.since(asked));
    let asked = world.now;
    assert_eq!(world.get(&key, at, &ask).unwrap().0, "first");
    assert!(world.now.since(asked) <= 5 * MS, "now it is known to be silent: {:?}", world.now.since(asked));
}

/// The same at a replica that has asked its leader before and knows how fast it is: what waits when the leader falls silent loses patience soon.
#[test]
fn a_read_is_answered_without_a_leader_that_has_just_fallen_silent() {
    let (mut world, key, places) = world();
    let (at, ask) = (places.followers[0], Ask::anywhere(ReadLevel::Linearizable));
    assert_eq!(world.get(&key, at, &ask).unwrap().0, "first");
    world.cut_off(places.leader);
    let asked = world.now;
    assert_eq!(world.get(&key, at, &ask).unwrap().0, "first");
    assert!(world.now.since(asked) <= 50 * MS, "{:?}", world.now.since(asked));
}

/// A question in whose way a write stood says nothing of those that come minutes later.
#[test]
fn a_key_at_rest_is_read_long_after_a_write_to_another() {
    let (mut world, key, places) = world();
    let at = places.followers[0];
    let other = neighbour(&key);
    assert_eq!(world.get(&key, at, &hedge()).unwrap().0, "first");
    world.write(&other, places.leader, "other");
    // The write is in the follower's log, which does not know yet that it is committed.
    assert_eq!(world.get(&key, at, &hedge()).unwrap().0, "first");
    world.run(6 * 60_000 * MS);
    world.cut_off(places.leader);
    let before = served_by_quorum(&mut world, at).as_u64().unwrap();
    assert_eq!(world.get(&key, at, &hedge()).unwrap().0, "first");
    assert_eq!(served_by_quorum(&mut world, at), before + 1);
}

/// The leader has committed with the other follower what this one has not heard of: its log names the key.
#[test]
fn a_write_that_was_acknowledged_elsewhere_is_never_missed() {
    let (mut world, key, places) = world();
    let (at, other) = (places.followers[0], places.followers[1]);
    cut(&mut world, places.leader, at);
    world.write(&key, places.leader, "second");
    cut(&mut world, places.leader, other);
    let refused = world.get(&key, at, &hedge()).expect_err("it lacks the write");
    assert!(refused.after <= 700 * MS, "{refused:?}");
    assert_eq!(served_by_quorum(&mut world, at), 0);
    assert_eq!(world.counts(at)["quorum"]["touched"], 1);
    // A key that nobody wrote is read all the same.
    let quiet = neighbour(&key);
    assert_eq!(world.get(&quiet, at, &hedge()).expect_err("there is no such row").name, "status 1");
}

/// What logs say, as it leaves.
#[derive(Clone, Default)]
struct Listener(Rc<RefCell<Vec<TailReply>>>);

impl Meddler for Listener {
    fn meddle(&mut self, _: (NodeId, NodeId), frames: BytesMut) -> BytesMut {
        let mut copy = frames.clone();
        while let Some(frame) = take(&mut copy).unwrap() {
            if let Frame::TailReplies(said) = frame {
                self.0.borrow_mut().extend(said.replies);
            }
        }
        frames
    }
}

/// Somebody who speaks as a node asks for more than looks like a question: it has a part of the thread, and is told to ask again.
#[test]
fn n4m_questions_that_cost_much_have_to_be_asked_again() {
    let (mut world, key, places) = world();
    let (at, from) = (places.leader, places.followers[0]);
    for part in 0..5 {
        let row = |number| KeyValue { key: format!("{part:02}{number:04}").into(), ..KeyValue::default() };
        let kvs = (0..1_000).map(row).collect();
        let rows = Body::MultiPut(MultiPut { hash_key: key.hash_key.clone().into(), kvs, ..MultiPut::default() });
        let number = world.send(at, &key.header(&Ask::default()), &rows);
        world.wait(number);
    }
    let group = GroupId::new(key.table as u32, key.partition as u32);
    let [to, from_replica] = [at, from].map(|node| running(&world, node)[&group]);
    let replicas = world.machines[&at].node.replicas_for_inspection();
    let after = replicas.into_iter().find(|it| it.id == group).map_or(0, |it| it.applied()) - 5;
    let listener = Listener::default();
    world.meddler = Some(Box::new(listener.clone()));
    let ask = |world: &mut World, count| {
        let most = KeySpan { start: Bytes::from_static(&[0]), end: Bytes::new(), kind: 2 };
        let reads = vec![TailRead { spans: vec![most] }; count];
        let request = TailRequest { group: group.to_u64(), from: from_replica.0, to: to.0, after, reads };
        world.handle(at, Event::Peer(from, Frame::TailRequests(TailRequests { id: 1, requests: vec![request] })));
        world.settle(at);
        let said = listener.0.borrow_mut().pop().unwrap();
        said.is_known.then_some(said.touched)
    };
    let few = ask(&mut world, 3).expect("few are answered");
    assert!(few.len() == 3 && few[0] > after, "{few:?}");
    assert_eq!(ask(&mut world, QUORUM_READS_MAX), None);
    assert_eq!(ask(&mut world, 3), None, "nothing is left");
    world.run(100 * MS);
    assert_eq!(ask(&mut world, 3), Some(few));
}

/// Of two voters both are needed: there is nobody to ask but the leader.
#[test]
fn two_voters_ask_nobody() {
    let mut world = World::new(3);
    let table = world.create_table_of(2, 2, &json!({}));
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "first");
    world.run(500 * MS);
    world.cut_off(places.leader);
    let at = places.followers[0];
    world.get(&key, at, &hedge()).expect_err("the leader is a voter of any majority");
    assert_eq!(world.counts(at)["quorum"]["reads_asked"], 0);
}

/// N4: reads that wait cost each other nothing, however many there are, and all end.
#[test]
fn n4_a_flood_of_hedges_at_a_replica_that_nobody_answers_ends() {
    let (mut world, key, places) = world();
    let at = places.followers[0];
    world.cut_off(at);
    let numbers: Vec<i32> = (0..3_000).map(|_| world.send_get(&key, at, &hedge())).collect();
    let asked = world.now;
    for number in numbers {
        world.wait(number);
    }
    assert!(world.now.since(asked) <= 2_000 * MS, "{:?}", world.now.since(asked));
    assert_eq!(world.counts(at)["waiting"], 0);
}
