//! The table's limit on extra attempts.

use crate::world::{Ask, Key, MS, Places, World, value_of};
use crate::{Client, deliver, frame, in_flight, setting, told};
use bytes::Bytes;
use hedgerow_node::config::{DELAYED_FRAME_MAX, DELAYED_MAX};
use hedgerow_node::{ConnectionId, Event};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::message::{MultiGet, UpdateEnvs, env_operation};
use hedgerow_wire::{Body, Cause, ErrorName, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::time::Duration;

/// One that nothing else uses.
const CONNECTION: u64 = 77;

fn get(key: &Key) -> Body {
    Body::Get(key.full())
}

/// The header of an attempt that any replica may serve as it is.
fn header(key: &Key, mut extension: Extension) -> Header {
    extension.any_replica = true;
    extension.set_read_level(ReadLevel::Eventual);
    key.header(&Ask { extension: Some(extension), is_backup: false })
}

fn backup(key: &Key) -> Header {
    key.header(&Ask { extension: None, is_backup: true })
}

/// The refusal of each request, or none; panics if one has no answer.
fn refusals(world: &mut World, requests: &[i32]) -> Vec<Option<Refusal>> {
    let answers = requests.iter().map(|number| world.answer(*number).expect("it is answered at once").1);
    answers.map(|frame| value_of(frame).map_or_else(|(refusal, name)| Some(refusal.expect(&name)), |_| None)).collect()
}

fn throttled(world: &mut World, requests: &[i32]) -> usize {
    refusals(world, requests).into_iter().filter(|it| matches!(it, Some(Refusal::Throttled))).count()
}

fn of_table(world: &mut World, node: NodeId) -> Value {
    told(world, node)["tables"][0].clone()
}

/// First attempts and retries are neither limited nor counted, however many there are; what is dropped takes nothing away
/// from what comes next.
#[test]
fn h20_hedges_do_not_consume_the_callers_limit() {
    let (mut world, key, places) = setting(&json!({ "backup_request_throttling": "30/s" }));
    let follower = places.followers[0];
    let mut client = Client::new(1);
    let mut send = |world: &mut World, count: usize, cause: Option<Cause>| -> Vec<i32> {
        let one = |_| {
            client.next();
            let header = header(&key, client.attempt(if cause.is_some() { 2 } else { 1 }, cause));
            world.put_on(client.connection, follower, &header, &get(&key))
        };
        let sent = (0..count).map(one).collect();
        world.settle(follower);
        sent
    };
    let firsts = send(&mut world, 2_000, None);
    let retries = send(&mut world, 500, Some(Cause::Retry));
    assert_eq!((throttled(&mut world, &firsts), throttled(&mut world, &retries)), (0, 0));
    // A third of the replicas is here, and so is a third of the limit.
    let hedges = send(&mut world, 15, Some(Cause::Hedge));
    assert_eq!(throttled(&mut world, &hedges), 5, "ten in the first moment, whatever came before");
    let firsts = send(&mut world, 2_000, None);
    assert!(refusals(&mut world, &firsts).iter().all(Option::is_none), "no first attempt pays for a hedge");
    let others = [send(&mut world, 1_000, Some(Cause::Tie)), send(&mut world, 1_000, Some(Cause::Fallback))];
    assert_eq!(throttled(&mut world, &others.concat()), 2_000);
    // A tenth of a second is a token, and three tenths are three, whatever was dropped meanwhile.
    world.run(300 * MS);
    let hedges = send(&mut world, 100, Some(Cause::Hedge));
    assert_eq!(throttled(&mut world, &hedges), 97);
    let counts = of_table(&mut world, follower);
    assert_eq!(counts["backup_requests"], 13);
    assert_eq!(counts["throttling_rejected_backup_requests"], 5 + 2_000 + 97);
}

/// The race as the client runs it: the first reply decides, except a note, which decides nothing. The first attempt waits for
/// its turn at a slow leader; the hedge is dropped; whoever asked gets its value in the end.
#[test]
fn a_throttled_hedge_never_turns_a_success_into_an_error() {
    let (mut world, key, places) = setting(&json!({ "backup_request_throttling": "0/s" }));
    let mut client = Client::new(1);
    for round in 0..100 {
        client.next();
        let latest = |mut extension: Extension| {
            extension.any_replica = true;
            extension.set_read_level(ReadLevel::Linearizable);
            key.header(&Ask { extension: Some(extension), is_backup: false })
        };
        // At a follower it takes a message to the leader and back.
        let first = world.put_on(client.connection, places.followers[0], &latest(client.attempt(1, None)), &get(&key));
        world.settle(places.followers[0]);
        let at = places.followers[1];
        let hedge = latest(client.attempt(2, Some(Cause::Hedge)));
        let hedge = world.put_on(client.connection, at, &hedge, &get(&key));
        world.settle(at);
        assert!(world.answer(first).is_none(), "round {round}: the first attempt is slow");
        let note = value_of(world.answer(hedge).unwrap().1).unwrap_err();
        assert_eq!(note.0, Some(Refusal::Throttled));
        assert_eq!(value_of(world.wait(first).1).unwrap().0, "0");
    }
    // Pegasus' client would take any reply for the end of the race, and so gets none.
    let before = world.replies.len();
    let first = world.put(places.leader, &key.header(&Ask::default()), &get(&key));
    let hedge = world.send(places.followers[0], &backup(&key), &get(&key));
    world.settle(places.leader);
    assert_eq!(value_of(world.wait(first).1).unwrap().0, "0");
    world.run(30_000 * MS);
    assert!(world.answer(hedge).is_none());
    assert_eq!(world.replies.len(), before + 1);
    assert_eq!(in_flight(&mut world, places.followers[0]), 0);
}

/// Half a minute of a flood at every node: what is let through is the table's rate, and a second's worth at the beginning.
#[test]
fn the_limit_is_for_the_whole_table() {
    let mut world = World::new(4);
    // Two partitions with three voters and one learner each: eight replicas on four nodes.
    let table = world.create_table(2, &json!({ "read_replicas": "1", "backup_request_throttling": "80/s" }));
    world.run(5_000 * MS);
    let keys: Vec<Key> = ["a", "b", "c", "d"].map(|key| Key::new(table, 2, key)).into_iter().collect();
    let nodes: Vec<NodeId> = world.machines.keys().copied().collect();
    let shares: Vec<(u64, u64)> = nodes
        .iter()
        .map(|node| of_table(&mut world, *node))
        .map(|it| (it["replicas_here"].as_u64().unwrap(), it["replicas"].as_u64().unwrap()))
        .collect();
    assert_eq!((shares.iter().map(|(here, _)| here).sum::<u64>(), shares[0].1), (8, 8), "{shares:?}");
    for millisecond in 0..10_000 {
        world.run(MS);
        for node in &nodes {
            let key = &keys[millisecond % keys.len()];
            world.send(*node, &backup(key), &get(key));
        }
    }
    // Twenty a second at each node, over 9,999 ms, and twenty that were there.
    let taken = |it: &Value| it["backup_requests"].as_u64().unwrap();
    let whole = world.admin(nodes[1], "throttle_table", &json!({ "table": "t" })).unwrap();
    assert_eq!((taken(&whole), whole["nodes"].as_array().unwrap().len()), (4 * 219, 4), "{whole}");
    assert_eq!(whole["throttling_rejected_backup_requests"], 4 * 9_781);
    let counts: Vec<Value> = nodes.iter().map(|node| of_table(&mut world, *node)).collect();
    let all: u64 = counts.iter().map(taken).sum();
    assert_eq!(all, 4 * 219, "{counts:?}");
    for counts in &counts {
        assert_eq!((taken(counts), counts["throttling_rejected_backup_requests"].clone()), (219, json!(9_781)));
    }
}

#[test]
fn a_changed_limit_holds_at_once_and_counters_stay() {
    let (mut world, key, places) = setting(&json!({ "backup_read_level": "eventual" }));
    let follower = places.followers[0];
    let flood = |world: &mut World| -> usize {
        let sent: Vec<i32> = (0..1_000).map(|_| world.put(follower, &backup(&key), &get(&key))).collect();
        world.settle(follower);
        sent.into_iter().filter(|number| world.answer(*number).is_some()).count()
    };
    assert_eq!(flood(&mut world), 1_000, "no limit unless somebody asks for one");
    world.set_option("backup_request_throttling", "300/s");
    assert_eq!(flood(&mut world), 100);
    // Pegasus' own call, under Pegasus' name, replaces ours. One second fills what it says now.
    pegasus_option(&mut world, &["replica.backup_request_throttling"], &["60*reject*100"]).unwrap();
    world.run(1_000 * MS);
    assert_eq!(flood(&mut world), 20);
    let options = world.admin(NodeId(1), "describe", &json!({ "name": "t" })).unwrap()["options"].clone();
    let set = json!({ "backup_read_level": "eventual", "replica.backup_request_throttling": "60*reject*100" });
    assert_eq!(options, set);
    world.set_option("backup_request_throttling", "0/s");
    assert_eq!(flood(&mut world), 0);
    world.admin(NodeId(1), "delete_options", &json!({ "name": "t", "keys": ["backup_request_throttling"] })).unwrap();
    world.run(200 * MS);
    assert_eq!(flood(&mut world), 1_000);
    let counts = of_table(&mut world, follower);
    assert_eq!(counts["backup_requests"], 2_120);
    assert_eq!(counts["throttling_rejected_backup_requests"], 2_880);
    // A value that means nothing is refused, and what was set stays.
    world.set_option("backup_request_throttling", "300/s");
    let refused = pegasus_option(&mut world, &["replica.backup_request_throttling"], &["many"]).unwrap_err();
    assert_eq!(refused, ErrorName::InvalidParameters);
    assert_eq!(of_table(&mut world, follower)["reject_above"], 300);
}

fn pegasus_option(world: &mut World, keys: &[&str], values: &[&str]) -> Result<(), ErrorName> {
    let texts = |texts: &[&str]| Some(texts.iter().map(|text| Text::from(*text)).collect());
    let update = UpdateEnvs {
        app_name: Text::from("t"),
        op: env_operation::SET,
        keys: texts(keys),
        values: texts(values),
        clear_prefix: None,
    };
    let number = world.send(NodeId(2), &Header::default(), &Body::UpdateEnvs(update));
    match world.wait(number).1.reply {
        Reply::UpdateEnvs(reply) if reply.err == ErrorName::Ok => Ok(()),
        Reply::UpdateEnvs(reply) => Err(reply.err),
        other => panic!("{other:?}"),
    }
}

/// Both of Pegasus' parts: beyond the first rate later, beyond the second not at all.
#[test]
fn what_is_delayed_is_served_so_much_later() {
    let (mut world, key, places) = setting(&json!({
        "replica.backup_request_throttling": "6*delay*250,15*reject*9",
        "backup_read_level": "eventual",
    }));
    let follower = places.followers[0];
    let sent = world.now;
    let one = |_| world.put_on(ConnectionId(CONNECTION), follower, &backup(&key), &get(&key));
    let requests: Vec<i32> = (0..20).map(one).collect();
    world.settle(follower);
    assert_eq!(told(&mut world, follower)["waiting"], 3);
    world.run(10_000 * MS);
    let answered: Vec<Option<Duration>> =
        requests.iter().map(|number| world.answer(*number).map(|(at, _)| at.since(sent))).collect();
    let at = |millis: u32| Some(millis * MS);
    assert_eq!(answered[..5], [at(0), at(0), at(250), at(250), at(250)]);
    assert!(answered[5..].iter().all(Option::is_none), "{answered:?}");
    let counts = of_table(&mut world, follower);
    assert_eq!(counts["backup_requests"], 5);
    assert_eq!(counts["throttling_delayed_backup_requests"], 3);
    assert_eq!(counts["throttling_rejected_backup_requests"], 15);
    assert_eq!(counts["partitions"].as_array().unwrap().len(), 1);
    assert_eq!(counts["partitions"][0]["partition"], key.partition);
    let bytes: usize =
        world.replies.iter().filter(|(node, ..)| *node == follower).map(|(.., it)| it.len()).take(5).sum();
    assert!(bytes > 0 && counts["backup_request_bytes"].as_u64().unwrap() > 5 * 90, "{counts}");
    assert_eq!((told(&mut world, follower)["waiting"].clone(), in_flight(&mut world, follower)), (json!(0), 0));
}

#[test]
fn nothing_is_delayed_beyond_its_deadline() {
    let (mut world, key, places) = setting(&json!({ "replica.backup_request_throttling": "3*delay*1000" }));
    let follower = places.followers[0];
    let mut client = Client::new(1);
    let mut send = |world: &mut World, deadline_ms| {
        client.next();
        let mut extension = client.attempt(2, Some(Cause::Hedge));
        extension.deadline_ms = Some(deadline_ms);
        world.send(follower, &header(&key, extension), &get(&key))
    };
    let sent = world.now;
    let (passed, late, later) = (send(&mut world, 100), send(&mut world, 70), send(&mut world, 1_001));
    assert!(value_of(world.answer(passed).unwrap().1).is_ok());
    let (at, answer) = world.wait(late);
    assert_eq!((at.since(sent), value_of(answer).unwrap_err().0), (70 * MS, Some(Refusal::Expired)));
    let (at, answer) = world.wait(later);
    assert_eq!((at.since(sent), value_of(answer).is_ok()), (1_000 * MS, true));
}

/// As many as there is room for wait; the others are dropped. Cancels and closed connections make room.
#[test]
fn r17_what_waits_is_bounded_and_leaves_nothing_behind() {
    let (mut world, key, places) = setting(&json!({ "replica.backup_request_throttling": "3*delay*5000" }));
    let follower = places.followers[0];
    let (mut one, mut other) = (Client::new(1), Client::new(2));
    for turn in 0..DELAYED_MAX + 101 {
        let client = if turn % 2 == 0 { &mut one } else { &mut other };
        client.next();
        let header = header(&key, client.attempt(2, Some(Cause::Hedge)));
        world.put_on(client.connection, follower, &header, &get(&key));
    }
    world.settle(follower);
    assert_eq!(told(&mut world, follower)["waiting"], DELAYED_MAX);
    let counts = of_table(&mut world, follower);
    assert_eq!(counts["throttling_delayed_backup_requests"], DELAYED_MAX);
    assert_eq!(counts["throttling_rejected_backup_requests"], 100);
    assert_eq!(in_flight(&mut world, follower), DELAYED_MAX as i64);
    // Another client's cancel of the same name, by number and connection, removes nothing (H19).
    one.request_id = 100;
    let mut stranger = Client::new(1);
    (stranger.connection, stranger.request_id) = (ConnectionId(1), 100);
    stranger.cancel(&mut world, follower, 2);
    assert_eq!(in_flight(&mut world, follower), DELAYED_MAX as i64);
    (0..2).for_each(|_| one.cancel(&mut world, follower, 2));
    assert_eq!(in_flight(&mut world, follower), DELAYED_MAX as i64 - 1);
    let before = world.replies.iter().filter(|(_, connection, _)| *connection == one.connection).count();
    world.handle(follower, Event::ClientClosed(one.connection));
    world.settle(follower);
    assert_eq!(in_flight(&mut world, follower), DELAYED_MAX as i64 / 2);
    world.run(6_000 * MS);
    assert_eq!((told(&mut world, follower)["waiting"].clone(), in_flight(&mut world, follower)), (json!(0), 0));
    let after = world.replies.iter().filter(|(_, connection, _)| *connection == one.connection).count();
    assert_eq!(after, before, "nobody is answered who took it back or has gone");
}

/// What is held back keeps its frame in memory, so that a large one is not.
#[test]
fn n13_a_large_attempt_is_not_held_back() {
    let (mut world, key, places) = setting(&json!({ "replica.backup_request_throttling": "3*delay*5000" }));
    let follower = places.followers[0];
    let mut client = Client::new(1);
    let mut send = |world: &mut World, size: usize| {
        client.next();
        let header = header(&key, client.attempt(2, Some(Cause::Hedge)));
        let sort_keys = vec![Bytes::from(vec![b's'; size])];
        let hash_key = Bytes::from(key.hash_key.clone());
        let body = Body::MultiGet(MultiGet { hash_key, sort_keys, ..MultiGet::default() });
        world.send(follower, &header, &body)
    };
    let (passes, waits, dropped) =
        (send(&mut world, 1), send(&mut world, DELAYED_FRAME_MAX / 2), send(&mut world, DELAYED_FRAME_MAX));
    assert!(world.has_answer(passes) && !world.has_answer(waits));
    let (_, reply) = world.answer(dropped).unwrap();
    assert_eq!(value_of(reply).unwrap_err().0, Some(Refusal::Throttled));
    let kept = told(&mut world, follower)["waiting_bytes"].as_u64().unwrap();
    assert!((DELAYED_FRAME_MAX as u64 / 2..DELAYED_FRAME_MAX as u64).contains(&kept), "{kept}");
    world.run(5_000 * MS);
    assert!(world.has_answer(waits));
    assert_eq!(told(&mut world, follower)["waiting_bytes"], 0);
}

/// The limit is for every kind of request, where the flag or the cause says that there is another attempt. The flag on a write
/// means nothing, as in Pegasus.
#[test]
fn writes_are_limited_by_their_cause_alone() {
    let (mut world, key, places) = setting(&json!({ "backup_request_throttling": "0/s" }));
    let Places { leader, .. } = places;
    let mut client = Client::new(1);
    let put = hedgerow_wire::message::Put { key: key.full(), value: "1".into(), expire_ts_seconds: 0 };
    let put = Body::Put(put);
    deliver(&mut world, ConnectionId(5), leader, frame(&backup(&key), 9_999, &put));
    world.run(10 * MS);
    assert!(world.answer(9_999).is_some_and(|(_, frame)| matches!(frame.reply, Reply::Update(_))));
    client.next();
    let mut extension = client.attempt(2, Some(Cause::Hedge));
    extension.sequence = Some(1);
    let hedged = world.put_on(
        client.connection,
        leader,
        &key.header(&Ask { extension: Some(extension), is_backup: false }),
        &put,
    );
    world.settle(leader);
    let (_, reply) = world.answer(hedged).unwrap();
    let Reply::Failed(failure) = reply.reply else { panic!("{reply:?}") };
    assert_eq!(failure.refusal(), Some(Refusal::Throttled));
}
