//! What is taken back, wherever it waits, and what is not.

use crate::named::{CLIENT, CONNECTION, Small, extra, first, tied};
use crate::world::{MS, value_of};
use hedgerow_node::ConnectionId;
use hedgerow_types::random::Random;
use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::message::Put;
use hedgerow_wire::{Body, Extension};
use serde_json::json;
use std::collections::BTreeMap;

pub const OTHER: ConnectionId = ConnectionId(9);

/// A cancel that races its request, from every side.
#[test]
fn h15_a_cancel_at_any_time_leaves_one_answer_or_none_and_nothing_behind() {
    let mut small = Small::new();
    let node = small.places.leader;
    // Before the request: it is not known, and the request runs.
    small.cancel(CONNECTION, node, CLIENT, 1, Some(1));
    let early = small.put(node, first(1, ReadLevel::Eventual));
    // In the queue: it never runs, and there is no answer. Twice is once.
    let queued = small.put(node, first(2, ReadLevel::Eventual));
    small.cancel(CONNECTION, node, CLIENT, 2, Some(1));
    small.cancel(CONNECTION, node, CLIENT, 2, Some(1));
    // Another attempt of a request is another attempt, unless all are meant.
    let [kept, dropped] =
        [first(3, ReadLevel::Eventual), extra(3, ReadLevel::Eventual)].map(|attempt| small.put(node, attempt));
    small.cancel(CONNECTION, node, CLIENT, 3, Some(2));
    let both = [first(4, ReadLevel::Eventual), extra(4, ReadLevel::Eventual)].map(|attempt| small.put(node, attempt));
    small.cancel(CONNECTION, node, CLIENT, 4, None);
    small.world.settle(node);
    // After the answer.
    small.cancel(CONNECTION, node, CLIENT, 1, Some(1));
    small.world.run(100 * MS);
    for number in [early, kept] {
        assert!(value_of(small.world.answer(number).unwrap().1).is_ok());
    }
    for number in [queued, dropped, both[0], both[1]] {
        assert!(small.world.answer(number).is_none());
    }
    let told = small.told(node);
    assert_eq!((&told["cancels"]["queued"], &told["cancels"]["unknown"]), (&json!(4), &json!(3)), "{told}");
    small.assert_idle(node);
}

#[test]
fn h15_a_name_that_is_used_again_after_a_reconnect_is_another_attempt() {
    let mut small = Small::new();
    let node = small.places.leader;
    let before = small.put(node, first(1, ReadLevel::Eventual));
    small.close(CONNECTION, node);
    let after = small.put_on(OTHER, node, first(1, ReadLevel::Eventual));
    // What the old connection still brings is about the old one.
    small.cancel(CONNECTION, node, CLIENT, 1, Some(1));
    small.world.settle(node);
    assert!(small.world.answer(before).is_none(), "its connection is gone");
    assert!(value_of(small.world.answer(after).unwrap().1).is_ok());
    let told = small.told(node);
    assert_eq!((&told["cancels"]["connection_closed"], &told["cancels"]["unknown"]), (&json!(1), &json!(1)));
    small.assert_idle(node);
}

#[test]
fn h19_a_cancel_never_reaches_what_another_connection_or_client_sent() {
    let mut small = Small::new();
    let node = small.places.leader;
    let number = small.put(node, first(1, ReadLevel::Eventual));
    let nameless = small.put(node, Extension { request_id: None, ..first(0, ReadLevel::Eventual) });
    small.cancel(OTHER, node, CLIENT, 1, Some(1));
    small.cancel(OTHER, node, CLIENT, 1, None);
    small.cancel(CONNECTION, node, CLIENT + 1, 1, Some(1));
    small.cancel(CONNECTION, node, CLIENT, 0, None);
    small.cancel(CONNECTION, node, 0, 0, None);
    small.world.settle(node);
    for number in [number, nameless] {
        assert!(value_of(small.world.answer(number).unwrap().1).is_ok());
    }
    assert_eq!(small.told(node)["cancels"]["unknown"], 5);
}

/// A read without a name is taken back by its number: from its own connection, and as often as one likes. A write is not.
#[test]
fn h15_a_read_is_taken_back_by_its_number() {
    let mut small = Small::new();
    let node = small.places.leader;
    let nameless = || Extension { request_id: None, client_id: None, ..first(0, ReadLevel::Eventual) };
    let [kept, dropped] = [(); 2].map(|()| small.put(node, nameless()));
    let header = small.header(Extension { client_id: Some(CLIENT), sequence: Some(1), ..Extension::default() });
    let put = Body::Put(Put { key: small.key.full(), value: "1".into(), expire_ts_seconds: 0 });
    let write = small.world.put_on(CONNECTION, node, &header, &put);
    small.cancel_number(OTHER, node, kept);
    small.cancel_number(CONNECTION, node, write);
    small.cancel_number(CONNECTION, node, dropped);
    small.cancel_number(CONNECTION, node, dropped);
    small.world.run(100 * MS);
    small.cancel_number(CONNECTION, node, kept);
    assert!(value_of(small.world.answer(kept).unwrap().1).is_ok());
    assert!(small.world.answer(dropped).is_none() && small.world.answer(write).is_some());
    let told = small.told(node);
    assert_eq!((&told["cancels"]["queued"], &told["cancels"]["unknown"]), (&json!(1), &json!(4)), "{told}");
    small.assert_idle(node);
}

/// The same for many, on one connection that stays.
#[test]
fn h18_a_connection_takes_any_number_of_cancels() {
    let mut small = Small::new();
    let node = small.places.leader;
    for request in 0..50_000 {
        small.put(node, first(request, ReadLevel::Eventual));
        small.cancel(CONNECTION, node, CLIENT, request, Some(1));
        small.cancel(CONNECTION, node, CLIENT, request + 1_000_000, None);
    }
    let told = small.told(node);
    assert_eq!((&told["cancels"]["queued"], &told["cancels"]["unknown"]), (&json!(50_000), &json!(50_000)));
    assert!(small.world.machines.get_mut(&node).unwrap().node.outbox().closed.is_empty());
    small.assert_idle(node);
    let number = small.put(node, first(1, ReadLevel::Eventual));
    small.world.settle(node);
    assert!(small.world.answer(number).is_some());
}

/// Cancels `name` where it waits, and looks that it is gone in the same moment and no answer comes.
pub fn assert_freed(small: &mut Small, node: NodeId, request: u64, number: i32, place: &str) {
    let now = small.world.now;
    assert!(small.world.answer(number).is_none(), "{place}: it waits");
    let before = small.told(node)["cancels"][place].as_u64();
    small.cancel(CONNECTION, node, CLIENT, request, Some(1));
    assert_eq!(small.told(node)["cancels"][place].as_u64(), before.map(|count| count + 1), "{place}");
    small.assert_idle(node);
    assert_eq!(small.world.now, now, "{place}: at once");
    small.world.run(200 * MS);
    small.world.cut.clear();
    small.world.run(6_000 * MS);
    assert!(small.world.answer(number).is_none(), "{place}: no answer comes later");
    small.assert_idle(node);
}

#[test]
fn h21_the_wait_for_a_turn_is_ended() {
    let mut small = Small::new();
    let node = small.places.leader;
    let number = small.put(node, first(1, ReadLevel::Linearizable));
    assert_freed(&mut small, node, 1, number, "queued");
}

#[test]
fn h21_the_wait_for_the_leaders_answer_is_ended() {
    let mut small = Small::new();
    let follower = small.places.followers[0];
    small.world.cut_off(follower);
    let number = small.put(follower, first(1, ReadLevel::Linearizable));
    small.world.settle(follower);
    assert_freed(&mut small, follower, 1, number, "waiting_reads");
}

#[test]
fn h21_the_wait_for_a_majority_is_ended() {
    let mut small = Small::new();
    let leader = small.places.leader;
    small.world.cut_off(leader);
    // Longer than its lease, and not so long that it steps down.
    small.world.run_until(5_000 * MS, |world| {
        let now = world.now;
        !world.machines[&leader].node.replicas_for_inspection().any(|it| it.id.partition < 2 && it.holds_lease(now))
    });
    let number = small.put(leader, first(1, ReadLevel::Linearizable));
    small.world.settle(leader);
    assert_freed(&mut small, leader, 1, number, "waiting_reads");
}

#[test]
fn h21_the_wait_for_an_apply_is_ended() {
    let mut small = Small::new();
    let follower = small.places.followers[0];
    small.world.machines.get_mut(&follower).unwrap().is_log_stuck = true;
    let (key, leader) = (small.key.clone(), small.places.leader);
    let index = small.world.write(&key, leader, "1");
    let token =
        hedgerow_types::SessionToken::of(hedgerow_types::GroupId::new(key.table as u32, key.partition as u32), index);
    let read = Extension { session_token: Some(token.encode().into()), ..first(1, ReadLevel::Session) };
    let number = small.put(follower, read);
    small.world.settle(follower);
    assert_freed(&mut small, follower, 1, number, "waiting_reads");
    small.world.unstick(follower);
    small.assert_idle(follower);
}

/// A read of a session that waits for its floor first and then for its bound can be cancelled in both places.
#[test]
fn h21_the_second_wait_of_a_read_is_ended() {
    let mut small = Small::new();
    let follower = small.places.followers[0];
    small.world.machines.get_mut(&follower).unwrap().is_log_stuck = true;
    let (key, leader) = (small.key.clone(), small.places.leader);
    let index = small.world.write(&key, leader, "1");
    let group = hedgerow_types::GroupId::new(key.table as u32, key.partition as u32);
    let token = hedgerow_types::SessionToken::of(group, index);
    small.world.run(20 * MS);
    let level = ReadLevel::Bounded(2 * MS);
    let number = small.put(follower, Extension { session_token: Some(token.encode().into()), ..first(1, level) });
    small.world.settle(follower);
    small.world.run(10 * MS);
    // The floor is reached, and the answer that would prove the bound is lost.
    small.world.cut_off(follower);
    small.world.unstick(follower);
    assert_eq!(small.counts(follower)["waiting"], 1);
    assert_freed(&mut small, follower, 1, number, "waiting_reads");
}

/// Nobody is told of a write that was taken back. It may happen all the same, and here it does.
#[test]
fn h21_the_wait_for_a_writes_outcome_is_ended_and_the_write_stays() {
    let mut small = Small::new();
    let leader = small.places.leader;
    small.world.machines.get_mut(&leader).unwrap().is_log_stuck = true;
    let followers = small.places.followers.clone();
    followers.iter().for_each(|node| small.world.machines.get_mut(node).unwrap().is_log_stuck = true);
    let put = Put { key: small.key.full(), value: "1".into(), expire_ts_seconds: 0 };
    let extension = Extension { sequence: Some(1), ..first(1, ReadLevel::Linearizable) };
    let header = small.header(extension);
    let number = small.world.put_on(CONNECTION, leader, &header, &Body::Put(put));
    small.world.settle(leader);
    small.world.run(5 * MS);
    assert!(small.world.answer(number).is_none());
    small.cancel(CONNECTION, leader, CLIENT, 1, Some(1));
    assert_eq!(small.told(leader)["cancels"]["waiting_writes"], 1);
    small.assert_idle(leader);
    for node in followers.into_iter().chain([leader]) {
        small.world.unstick(node);
    }
    small.world.run(500 * MS);
    assert!(small.world.answer(number).is_none());
    let read = small.put(leader, first(2, ReadLevel::Linearizable));
    small.world.settle(leader);
    assert_eq!(value_of(small.world.wait(read).1).unwrap().0, "1");
    small.assert_idle(leader);
}

/// What a closed connection asked for is not looked for any more, wherever it waits.
#[test]
fn h21_a_closed_connection_frees_what_it_waited_for() {
    let mut small = Small::new();
    let follower = small.places.followers[0];
    let waits = small.put(follower, first(1, ReadLevel::Linearizable));
    let others = small.put_on(OTHER, follower, first(1, ReadLevel::Linearizable));
    small.world.settle(follower);
    let queued = small.put(follower, first(2, ReadLevel::Eventual));
    small.close(CONNECTION, follower);
    assert_eq!(small.told(follower)["cancels"]["connection_closed"], 2);
    assert_eq!(small.counts(follower)["waiting"], 1, "the other connection's");
    assert!(value_of(small.world.wait(others).1).is_ok());
    assert!(small.world.answer(waits).is_none() && small.world.answer(queued).is_none());
    small.assert_idle(follower);
}

/// A page of a scan that is taken back can be asked for again.
#[test]
fn h15_a_cancelled_page_is_not_lost() {
    let mut small = Small::new();
    let node = small.places.leader;
    let key = small.key.clone();
    for sort_key in 0..20 {
        let full = hedgerow_types::key::full_key(key.hash_key.as_bytes(), format!("s{sort_key}").as_bytes());
        let put = Put { key: full, value: "v".into(), expire_ts_seconds: 0 };
        let header = small.header(Extension::default());
        let number = small.world.send(node, &header, &Body::Put(put));
        small.world.wait(number);
    }
    let scanner = hedgerow_wire::message::GetScanner {
        start_inclusive: true,
        batch_size: 10,
        full_scan: Some(true),
        ..Default::default()
    };
    let header = small.header(first(1, ReadLevel::Linearizable));
    let number = small.world.put_on(CONNECTION, node, &header, &Body::GetScanner(scanner));
    small.world.settle(node);
    let page = |frame: hedgerow_wire::call::ReplyFrame| match frame.reply {
        hedgerow_wire::Reply::Scan(page) => page,
        other => panic!("{other:?}"),
    };
    let opened = page(small.world.wait(number).1);
    assert!(opened.context_id > 0, "{opened:?}");
    let next = Body::Scan(hedgerow_wire::message::Scan { context_id: opened.context_id });
    let header = small.header(first(2, ReadLevel::Linearizable));
    let cancelled = small.world.put_on(CONNECTION, node, &header, &next);
    small.cancel(CONNECTION, node, CLIENT, 2, Some(1));
    let header = small.header(first(3, ReadLevel::Linearizable));
    let again = small.world.put_on(CONNECTION, node, &header, &next);
    small.world.settle(node);
    assert!(small.world.answer(cancelled).is_none());
    let second = page(small.world.wait(again).1);
    assert!(!second.kvs.is_empty() && second.kvs != opened.kvs);
}

/// Whatever clients do, in the end nothing is left, and what nobody took back has one answer.
#[test]
fn r17_counters_return_to_zero_after_everything_that_can_happen() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut small = Small::configured(|config| config.reads_per_turn = 3);
        let nodes: Vec<NodeId> = small.world.machines.keys().copied().collect();
        // By number of the request: node, connection, name, and whether its client gave it up.
        let mut sent: BTreeMap<i32, (NodeId, ConnectionId, (u64, i32), bool)> = BTreeMap::new();
        for request in 0..400 {
            let node = nodes[random.below(3) as usize];
            let connection = ConnectionId(8 + random.below(3));
            match random.below(10) {
                0..=5 => {
                    let level = [ReadLevel::Linearizable, ReadLevel::Eventual, ReadLevel::Bounded(5 * MS)];
                    let level = level[random.below(3) as usize];
                    let attempt = 1 + random.below(2) as i32;
                    let mut extension = if attempt == 1 { first(request, level) } else { extra(request, level) };
                    extension.deadline_ms = Some(1 + random.below(50) as i64);
                    if random.chance(1, 3) {
                        extension = tied(extension, nodes[random.below(3) as usize], 3 - attempt);
                    }
                    let number = small.put_on(connection, node, extension);
                    sent.insert(number, (node, connection, (request, attempt), false));
                }
                6 | 7 => {
                    let before = sent.iter_mut().rev().nth(random.below(8) as usize);
                    if let Some((_, (node, connection, (request, attempt), is_given_up))) = before {
                        *is_given_up = true;
                        let (node, connection, request, attempt) = (*node, *connection, *request, *attempt);
                        small.cancel(connection, node, CLIENT, request, Some(attempt));
                    }
                }
                8 => match random.below(4) {
                    0 => {
                        small.close(connection, node);
                        let of =
                            |it: &&mut (NodeId, ConnectionId, (u64, i32), bool)| (it.0, it.1) == (node, connection);
                        sent.values_mut().filter(of).for_each(|it| it.3 = true);
                    }
                    1 => small.world.cut_off(node),
                    _ => small.world.cut.clear(),
                },
                _ if random.chance(1, 2) => small.world.settle(node),
                _ => small.world.run(random.below(10) as u32 * MS),
            }
        }
        nodes.iter().for_each(|node| small.world.settle(*node));
        small.world.cut.clear();
        small.world.run(3_000 * MS);
        nodes.iter().for_each(|node| small.assert_idle(*node));
        for (number, (_, _, name, is_given_up)) in sent {
            // The world itself looks that none is answered twice.
            assert!(is_given_up || small.world.answer(number).is_some(), "seed {seed}: {number} {name:?}");
        }
    }
}
