//! Several attempts of one write, over the same node or another one: applied once, all answered alike, each to its own client.

use crate::world::{Ask, FOREIGN, Key, MS, Places, World};
use crate::{Client, deliver, frame, in_flight, setting, told};
use bytes::{Bytes, BytesMut};
use hedgerow_node::Event;
use hedgerow_node::config::FORWARDS_BYTES_MAX;
use hedgerow_node::peer::{self, Forward, Frame};
use hedgerow_types::random::Random;
use hedgerow_types::{NodeId, Refusal};
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::{CheckAndSet, Incr, IncrReply, Put};
use hedgerow_wire::{Body, Cause, Extension, Header, Method, Reply};
use serde_json::json;
use std::collections::BTreeMap;

fn incr(key: &Key) -> Body {
    Body::Incr(Incr { key: key.full(), increment: 1, expire_ts_seconds: 0 })
}

/// Attempt `attempt` of the client's write; its number is that of the request.
fn header(key: &Key, client: &Client, attempt: i32, deadline_ms: i64) -> Header {
    let cause = (attempt > 1).then_some(Cause::Hedge);
    let extension = Extension {
        sequence: Some(client.request_id),
        deadline_ms: Some(deadline_ms),
        ..client.attempt(attempt, cause)
    };
    key.header(&Ask { extension: Some(extension), is_backup: false })
}

fn send(world: &mut World, key: &Key, client: &Client, attempt: i32, node: NodeId) -> i32 {
    let number = world.put_on(client.connection, node, &header(key, client, attempt, 5_000), &incr(key));
    world.settle(node);
    number
}

/// What the addition gave, and at which log position.
fn sum(frame: &ReplyFrame) -> Result<(i64, u64), Refusal> {
    match &frame.reply {
        Reply::Incr(reply) if reply.error == 0 => Ok((reply.new_value, frame.extension.as_ref().unwrap().index)),
        Reply::Failed(failure) => Err(failure.refusal().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn wait(world: &mut World, number: i32) -> Result<(i64, u64), Refusal> {
    let (_, frame) = world.wait(number);
    sum(&frame)
}

fn now(world: &mut World, number: i32) -> Result<(i64, u64), Refusal> {
    let (_, frame) = world.answer(number).expect("it is answered at once");
    sum(&frame)
}

fn forwards(world: &mut World, node: NodeId) -> BTreeMap<String, u64> {
    serde_json::from_value(told(world, node)["forwards"].clone()).unwrap()
}

fn nothing_waits(world: &mut World) {
    for node in [NodeId(1), NodeId(2), NodeId(3)] {
        assert_eq!((forwards(world, node)["waiting"], in_flight(world, node)), (0, 0), "at {node}");
        assert_eq!(world.counts(node)["queue"]["cancels"]["listed"], 0, "at {node}");
    }
}

#[test]
fn an_extra_attempt_at_a_follower_is_answered_by_the_leader_and_a_first_one_is_told_who_that_is() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let mut client = Client::new(1);
    client.next();
    let first = send(&mut world, &key, &client, 1, followers[0]);
    let (_, refused) = world.answer(first).unwrap();
    let Reply::Failed(failure) = refused.reply else { panic!("{refused:?}") };
    assert_eq!(failure.detail.unwrap().leader.as_str(), format!("127.0.0.{}:34601", leader.0));
    let sent = world.now;
    let extra = send(&mut world, &key, &client, 2, followers[0]);
    let (at, answer) = world.wait(extra);
    assert_eq!(sum(&answer).unwrap().0, 1);
    let said = answer.extension.unwrap();
    assert_eq!((said.served_by.as_str(), said.attempt), (&*format!("127.0.0.{}:34601", leader.0), Some(2)));
    assert!(at.since(sent) <= MS, "one hop there and back, and a write: {:?}", at.since(sent));
    assert_eq!(forwards(&mut world, followers[0])["answered"], 1);
    assert_eq!(forwards(&mut world, leader)["taken"], 1);
    // Without a number it is not a write that may be sent on.
    client.next();
    let mut unnumbered = header(&key, &client, 2, 5_000);
    unnumbered.extension.as_mut().unwrap().sequence = None;
    let number = world.put_on(client.connection, followers[0], &unnumbered, &incr(&key));
    world.settle(followers[0]);
    assert!(matches!(now(&mut world, number), Err(Refusal::NotLeader { .. })));
    nothing_waits(&mut world);
}

/// The repetition comes before, while, or after the write it repeats, at the leader or at another node. What must not be
/// applied twice adds up.
#[test]
fn h23_speculated_writes_by_number() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let mut client = Client::new(1);
    let mut expected = 0;
    for (turn, other) in [leader, followers[0], followers[1]].into_iter().cycle().take(30).enumerate() {
        let answers = match turn / 3 % 4 {
            // After it: the leader has the result of then.
            0 => {
                client.next();
                let first = send(&mut world, &key, &client, 1, leader);
                let first = wait(&mut world, first).unwrap();
                let second = send(&mut world, &key, &client, 2, other);
                let second = wait(&mut world, second).unwrap();
                assert!(second.1 >= first.1, "what is repeated is there where it is repeated");
                vec![first.0, second.0]
            }
            // Before it.
            1 => {
                client.next();
                let second = send(&mut world, &key, &client, 2, other);
                if turn % 2 == 0 {
                    world.run(MS);
                }
                let first = send(&mut world, &key, &client, 1, leader);
                vec![wait(&mut world, first).unwrap().0, wait(&mut world, second).unwrap().0]
            }
            // While it waits for a majority: all join it, and get the very same answer.
            2 => {
                client.next();
                world.cut.extend(followers.iter().map(|follower| (leader, *follower)));
                let joined = forwards(&mut world, leader)["joined"];
                let first = send(&mut world, &key, &client, 1, leader);
                let second = send(&mut world, &key, &client, 2, other);
                let third = send(&mut world, &key, &client, 3, leader);
                world.run(MS);
                assert_eq!(forwards(&mut world, leader)["joined"], joined + 2);
                world.cut.clear();
                let answers = [first, second, third].map(|number| wait(&mut world, number).unwrap());
                assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
                answers.iter().map(|(sum, _)| *sum).collect()
            }
            // In one batch of events, so that nothing of it has left yet.
            _ => {
                client.next();
                let header = |attempt| header(&key, &client, attempt, 5_000);
                let numbers: Vec<i32> =
                    (1..=4).map(|it| world.put_on(client.connection, leader, &header(it), &incr(&key))).collect();
                world.settle(leader);
                numbers.into_iter().map(|number| wait(&mut world, number).unwrap().0).collect()
            }
        };
        expected += 1;
        assert!(answers.iter().all(|sum| *sum == expected), "turn {turn}: {answers:?}, not {expected}");
        world.run(20 * MS);
    }
    nothing_waits(&mut world);
}

/// A check-and-set that holds once: its repetition finds its own value there, and still says that it held.
#[test]
fn h23_a_speculated_check_and_set_has_one_result() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let mut client = Client::new(1);
    client.next();
    let swap = CheckAndSet {
        hash_key: Bytes::from(key.hash_key.clone()),
        check_sort_key: "once".into(),
        // It must not exist.
        check_type: 1,
        set_sort_key: "once".into(),
        set_value: "mine".into(),
        return_check_value: true,
        ..CheckAndSet::default()
    };
    let mut run = |attempt, node| {
        let number = world.put_on(
            client.connection,
            node,
            &header(&key, &client, attempt, 5_000),
            &Body::CheckAndSet(swap.clone()),
        );
        world.settle(node);
        match world.wait(number).1.reply {
            Reply::Check(reply) => (reply.error, reply.check_value_exist),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([run(1, leader), run(2, followers[0]), run(3, leader)], [(0, false); 3]);
    // Another client's has another number.
    client = Client::new(2);
    client.next();
    let header = header(&key, &client, 1, 5_000);
    let number = world.put_on(client.connection, leader, &header, &Body::CheckAndSet(swap));
    world.settle(leader);
    assert!(matches!(world.wait(number).1.reply, Reply::Check(reply) if reply.error == 13 && reply.check_value_exist));
}

/// Every write is sent twice or three times, to any nodes, while leadership moves and messages are lost.
#[test]
fn h23_ten_thousand_additions_with_every_one_speculated_add_up() {
    let (mut world, key, places) = setting(&json!({}));
    let nodes = [NodeId(1), NodeId(2), NodeId(3)];
    let mut random = Random::new(7);
    let mut client = Client::new(1);
    let (mut unknown, mut redirected, mut leader) = (0, 0, places.leader);
    for round in 0..10_000 {
        client.next();
        if round % 500 == 250 {
            let to = nodes[random.next_u64() as usize % 3];
            let transfer = json!({ "table": "t", "partition": key.partition, "to_node": to.0 });
            // The answer does not matter: it may lead already.
            drop(world.admin(leader, "transfer", &transfer));
        }
        if round % 700 == 300 {
            world.cut.insert((leader, nodes[random.next_u64() as usize % 3]));
        }
        if round % 700 == 320 {
            world.cut.clear();
        }
        let mut attempt = 1;
        let mut open = vec![send(&mut world, &key, &client, attempt, leader)];
        // As hedges do, whatever becomes of the first one.
        for _ in 0..1 + random.next_u64() % 2 {
            attempt += 1;
            open.push(send(&mut world, &key, &client, attempt, nodes[random.next_u64() as usize % 3]));
        }
        let mut result = None;
        let mut tries = 0;
        while result.is_none() {
            let Some(number) = open.pop() else {
                tries += 1;
                assert!(tries < 100, "round {round}");
                world.run(10 * MS);
                attempt += 1;
                leader = nodes[random.next_u64() as usize % 3];
                open.push(send(&mut world, &key, &client, attempt, leader));
                continue;
            };
            match wait(&mut world, number) {
                Ok((sum, _)) => result = Some(sum),
                Err(Refusal::Unresolved | Refusal::Expired) => unknown += 1,
                Err(Refusal::NotLeader { .. } | Refusal::NotReady(_)) => redirected += 1,
                Err(other) => panic!("round {round}: {other}"),
            }
        }
        assert_eq!(result, Some(round + 1));
        // The others may still be under way: they say the same, or nothing of it.
        for number in open {
            let answer = wait(&mut world, number);
            assert!(answer.is_err() || answer.is_ok_and(|(sum, _)| sum == round + 1), "round {round}");
        }
    }
    assert!(redirected > 0 && unknown > 0, "{redirected} redirected, {unknown} unknown: nothing moved");
    world.cut.clear();
    world.run(5_000 * MS);
    let leader = world.replicas(key.partition).leader;
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "10000");
    nothing_waits(&mut world);
}

/// The leader that was asked lost its leadership: the one hop is used up, and whoever asks learns who leads now.
#[test]
fn r04_a_write_is_sent_on_over_one_hop() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let (from, next) = (followers[0], followers[1]);
    let mut client = Client::new(1);
    client.next();
    // What the follower hears of the change of leaders is lost on the way, and so it asks the old one.
    world.cut.insert((next, from));
    let transfer = json!({ "table": "t", "partition": key.partition, "to_node": next.0 });
    world.admin(leader, "transfer", &transfer).unwrap();
    world.run(20 * MS);
    let extra = send(&mut world, &key, &client, 2, from);
    world.run(MS);
    let (_, refused) = world.answer(extra).expect("it is not sent around");
    let Reply::Failed(failure) = refused.reply else { panic!("{refused:?}") };
    assert_eq!(failure.refusal(), Some(Refusal::NotLeader { leader: None }));
    assert_eq!(failure.detail.unwrap().leader.as_str(), format!("127.0.0.{}:34601", next.0));
    assert_eq!((forwards(&mut world, leader)["taken"], forwards(&mut world, leader)["sent"]), (1, 0));
    world.cut.clear();
    world.run(3_000 * MS);
    let extra = send(&mut world, &key, &client, 3, from);
    assert_eq!(wait(&mut world, extra).unwrap().0, 1);
    nothing_waits(&mut world);
}

/// Who is not there is not waited for longer than the caller would, and not at all once it is known to be gone.
#[test]
fn r04_an_unreachable_leader_costs_no_more_than_the_deadline() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let mut client = Client::new(1);
    client.next();
    world.cut_off(leader);
    let sent = world.now;
    let header = header(&key, &client, 2, 30);
    let lost = world.put_on(client.connection, followers[0], &header, &incr(&key));
    world.settle(followers[0]);
    let (at, answer) = world.wait(lost);
    assert_eq!((at.since(sent), sum(&answer)), (30 * MS, Err(Refusal::Expired)));
    // A cut-off follower has no leader soon.
    world.cut.clear();
    world.run(3_000 * MS);
    let leader = world.replicas(key.partition).leader;
    let alone = followers.into_iter().find(|node| *node != leader).unwrap();
    world.cut_off(alone);
    world.run(5_500 * MS);
    let extra = send(&mut world, &key, &client, 3, alone);
    assert!(matches!(now(&mut world, extra), Err(Refusal::NotLeader { .. })));
    nothing_waits(&mut world);
}

/// The write is lost between the nodes, or its answer is: with a connection that broke, say. The client learns it in time
/// for another attempt, which has the same result.
#[test]
fn n8a_what_is_lost_between_two_nodes_is_not_waited_for_to_the_end() {
    for is_answer_lost in [false, true] {
        let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
        let mut client = Client::new(1);
        client.next();
        let lossy = if is_answer_lost { (leader, followers[0]) } else { (followers[0], leader) };
        world.cut.insert(lossy);
        let sent = world.now;
        let lost = send(&mut world, &key, &client, 2, followers[0]);
        world.run(10 * MS);
        world.cut.clear();
        let (at, answer) = world.wait(lost);
        assert_eq!((at.since(sent), sum(&answer)), (500 * MS, Err(Refusal::Unresolved)));
        let again = send(&mut world, &key, &client, 3, followers[0]);
        assert_eq!(wait(&mut world, again).unwrap().0, 1);
        let other = send(&mut world, &key, &client, 4, leader);
        assert_eq!(wait(&mut world, other).unwrap().0, 1);
        nothing_waits(&mut world);
    }
}

#[test]
fn h15_cancels_and_closed_connections_leave_nothing_of_what_was_sent_on() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let follower = followers[0];
    let (mut one, mut other) = (Client::new(1), Client::new(2));
    world.cut.insert((follower, leader));
    for _ in 0..10 {
        one.next();
        other.next();
        send(&mut world, &key, &one, 2, follower);
        send(&mut world, &key, &other, 2, follower);
    }
    assert_eq!(forwards(&mut world, follower)["waiting"], 20);
    let before = world.replies.len();
    // Twice, for an attempt that there is not, and another client's.
    (0..2).for_each(|_| one.cancel(&mut world, follower, 2));
    one.cancel(&mut world, follower, 3);
    other.request_id = 99;
    other.cancel(&mut world, follower, 2);
    assert_eq!(forwards(&mut world, follower)["waiting"], 19);
    world.handle(follower, Event::ClientClosed(one.connection));
    assert_eq!(forwards(&mut world, follower)["waiting"], 10);
    let of_one = |world: &World| world.replies[before..].iter().filter(|(_, to, _)| *to == one.connection).count();
    world.run(6_000 * MS);
    assert_eq!(of_one(&world), 0);
    let of_other = world.replies[before..].iter().filter(|(_, to, _)| *to == other.connection).count();
    assert_eq!(of_other, 10, "the others are told that nobody knows");
    world.cut.clear();
    // One that joined another at the leader is taken back alone.
    let cut: Vec<_> = followers.iter().map(|from| (*from, leader)).collect();
    world.run(3_000 * MS);
    let leader_now = world.replicas(key.partition).leader;
    assert_eq!(leader_now, leader);
    world.cut.extend(cut);
    other.request_id = 500;
    let first = send(&mut world, &key, &other, 1, leader);
    let second = send(&mut world, &key, &other, 2, leader);
    other.cancel(&mut world, leader, 1);
    world.cut.clear();
    assert!(wait(&mut world, second).is_ok());
    assert!(world.answer(first).is_none());
    nothing_waits(&mut world);
}

/// Two clients number their requests alike, and their writes, and wait at the same node for the same leader.
#[test]
fn h19_replies_reach_the_client_that_asked() {
    let (mut world, key, Places { followers, .. }) = setting(&json!({}));
    let follower = followers[0];
    let mut clients: Vec<Client> = (0..4).map(Client::new).map(|it| Client { id: it.id + 1, ..it }).collect();
    for client in &mut clients {
        client.connection.0 = FOREIGN.0 + client.id;
        client.next();
    }
    for client in &clients {
        let by = Body::Incr(Incr { key: key.full(), increment: 10_i64.pow(client.id as u32), expire_ts_seconds: 0 });
        deliver(&mut world, client.connection, follower, frame(&header(&key, client, 2, 5_000), 7, &by));
    }
    world.run(100 * MS);
    let mut sum = 0;
    for client in &clients {
        let mine: Vec<_> = world.replies.iter().filter(|(_, to, _)| *to == client.connection).collect();
        let [(at, _, bytes)] = &mine[..] else { panic!("{} replies", mine.len()) };
        let frame = call::decode_reply(bytes.clone()).unwrap();
        let Reply::Incr(reply) = &frame.reply else { panic!("{frame:?}") };
        sum += 10_i64.pow(client.id as u32);
        assert_eq!((*at, frame.sequence_id, reply.new_value), (follower, 7, sum));
    }
}

/// An answer that comes to a node's next life, or from a node that was not asked, or that is none, is nobody's.
#[test]
fn h19_stray_answers_are_dropped() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let follower = followers[0];
    let mut client = Client::new(1);
    client.next();
    // The answer is slow, and comes to the node's next life, in which another client waits.
    world.delay = 20 * MS;
    send(&mut world, &key, &client, 2, follower);
    world.restart(follower);
    world.delay = MS / 20;
    world.run(3_000 * MS);
    let mut second = Client::new(2);
    second.next();
    world.cut.insert((follower, leader));
    let waits = send(&mut world, &key, &second, 2, follower);
    let clock = world.clock();
    let node = &mut world.machines.get_mut(&follower).unwrap().node;
    for id in 0..100 {
        for from in [leader, followers[1]] {
            let reply = peer::Forwarded { id, reply: Bytes::from_static(b"\0\0\0\x05x") };
            node.handle(Event::Peer(from, Frame::Forwarded(reply)), clock);
        }
    }
    world.settle(follower);
    assert_eq!(forwards(&mut world, follower)["waiting"], 1);
    world.cut.clear();
    assert_eq!(wait(&mut world, waits), Err(Refusal::Unresolved));
    assert_eq!(forwards(&mut world, follower)["answered"], 0);
}

/// Only the node that was asked answers, and only with a reply to what it was asked.
#[test]
fn h19_an_answer_counts_only_from_the_node_that_was_asked() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let follower = followers[0];
    let mut client = Client::new(1);
    let reply = |sequence_id| {
        let reply = Reply::Incr(IncrReply { new_value: 42, ..IncrReply::default() });
        let mut out = BytesMut::new();
        let extension = Some(&hedgerow_wire::ReplyExtension::default());
        hedgerow_wire::encode_reply(&mut out, Method::Incr, sequence_id, &reply, extension);
        out.freeze()
    };
    for (from, number, expected) in
        [(followers[1], 0, None), (leader, 1, Some(Err(Refusal::Unresolved))), (leader, 0, Some(Ok((42, 0))))]
    {
        client.next();
        let sent = world.put_on(client.connection, follower, &header(&key, &client, 2, 5_000), &incr(&key));
        let clock = world.clock();
        let node = &mut world.machines.get_mut(&follower).unwrap().node;
        node.drive(clock);
        let mut frames = std::mem::take(node.outbox()).peers.remove(&leader).unwrap();
        let Some(Frame::Forward(Forward { id, .. })) = peer::take(&mut frames).unwrap() else {
            panic!("it is sent on")
        };
        let reply = reply(sent + number);
        node.handle(Event::Peer(from, Frame::Forwarded(peer::Forwarded { id, reply })), clock);
        world.settle(follower);
        assert_eq!(world.answer(sent).map(|(_, frame)| sum(&frame)), expected);
    }
}

/// Nothing that another node sends on is run but a write, and nothing malformed stops the node.
#[test]
fn only_writes_are_taken_from_other_nodes() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let client = Client::new(1);
    let get = frame(&header(&key, &client, 2, 5_000), 7, &Body::Get(key.full()));
    let write = frame(&header(&key, &client, 2, 5_000), 7, &incr(&key));
    let before = world.replies.len();
    for request in [Bytes::new(), get, write.slice(..write.len() - 1), Bytes::from_static(&[0xff; 64])] {
        let clock = world.clock();
        let node = &mut world.machines.get_mut(&leader).unwrap().node;
        node.handle(Event::Peer(followers[0], Frame::Forward(Forward { id: 5, request })), clock);
        world.settle(leader);
    }
    world.run(100 * MS);
    assert_eq!(world.replies.len(), before);
    assert_eq!(forwards(&mut world, leader)["taken"], 0);
    nothing_waits(&mut world);
}

/// Writes that are sent on share the way to their leader with what the log needs: only so many bytes of them are on it.
#[test]
fn n14_what_is_sent_on_has_a_bound_in_bytes() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({}));
    let follower = followers[0];
    world.cut.insert((leader, follower));
    let mut client = Client::new(1);
    let size = 900_000;
    let mut put = |world: &mut World| {
        client.next();
        let put = Put { key: key.full(), value: Bytes::from(vec![b'v'; size]), expire_ts_seconds: 0 };
        world.put_on(client.connection, follower, &header(&key, &client, 2, 5_000), &Body::Put(put))
    };
    let numbers: Vec<i32> = (0..8).map(|_| put(&mut world)).collect();
    world.settle(follower);
    let fitting = FORWARDS_BYTES_MAX / (size + 1_000);
    assert_eq!(forwards(&mut world, follower)["waiting"], fitting as u64);
    assert!(forwards(&mut world, follower)["waiting_bytes"] <= FORWARDS_BYTES_MAX as u64);
    for number in &numbers[fitting..] {
        assert!(matches!(now(&mut world, *number), Err(Refusal::NotLeader { .. })));
    }
    world.cut.clear();
    world.run(1_000 * MS);
    assert_eq!(forwards(&mut world, follower)["waiting_bytes"], 0);
}

/// The limit is asked once: at the node that the client sent it to.
#[test]
fn what_is_sent_on_is_charged_once() {
    let (mut world, key, Places { leader, followers, .. }) = setting(&json!({ "backup_request_throttling": "3/s" }));
    let mut client = Client::new(1);
    client.next();
    let other = Client { id: 9, connection: client.connection, request_id: 1 };
    // The leader's own token is gone.
    let taken = send(&mut world, &key, &other, 2, leader);
    assert!(wait(&mut world, taken).is_ok());
    let extra = send(&mut world, &key, &client, 2, followers[0]);
    assert!(wait(&mut world, extra).is_ok(), "another node's token");
    let extra = send(&mut world, &key, &client, 3, followers[0]);
    assert_eq!(now(&mut world, extra), Err(Refusal::Throttled));
    let counts = |world: &mut World, node| told(world, node)["tables"][0]["backup_requests"].clone();
    assert_eq!([counts(&mut world, leader), counts(&mut world, followers[0])], [json!(1), json!(1)]);
}
