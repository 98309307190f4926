//! What one user may ask of a node: who asks for more is refused and told so, and nobody else notices.

use crate::Client;
use crate::world::{Ask, Key, World, value_of};
use hedgerow_node::config::UserLimits;
use hedgerow_node::{ConnectionId, Event, Who};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::message::{AdminCommand, Put};
use hedgerow_wire::{Body, Cause, Extension, Header, Reply, Text};
use serde_json::json;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// 0 = no limit.
fn limits(requests: u64, mib: u64, connections: u64) -> UserLimits {
    let [requests, bytes, connections] = [requests, mib << 20, connections].map(NonZeroU64::new);
    UserLimits { requests, bytes, connections }
}

/// A cluster with such limits, a key, the node that leads it and one that does not.
fn limited(limits: UserLimits) -> (World, Key, NodeId, NodeId) {
    let mut world = World::configured(3, |config| {
        config.user_limits = limits;
        config.administrators.insert("root".to_owned());
    });
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "0");
    world.run(SECOND);
    (world, key, places.leader, places.followers[0])
}

fn open(world: &mut World, node: NodeId, connection: u64, user: &str) -> ConnectionId {
    let connection = ConnectionId(connection);
    world.handle(node, Event::ClientOpened(connection, Who::User(user.into()), Ipv4Addr::LOCALHOST.into(), None));
    connection
}

/// Reads so often at once; how many were served. The others were refused as over the limit that `text` ends with.
fn served(world: &mut World, (key, node): (&Key, NodeId), connection: ConnectionId, count: usize, text: &str) -> usize {
    let header = key.header(&Ask::anywhere(ReadLevel::Eventual));
    let sent: Vec<i32> = (0..count).map(|_| world.put_on(connection, node, &header, &Body::Get(key.full()))).collect();
    world.settle(node);
    let answers = sent.into_iter().map(|number| value_of(world.wait(number).1));
    let refused = |answer: &Result<_, (Option<Refusal>, String)>| {
        let Err((refusal, name)) = answer else { return false };
        let Some(Refusal::Busy(told)) = refusal else { panic!("{refusal:?}") };
        assert!(name == "ERR_BUSY" && told.ends_with(&format!("{text} at this node")), "{told}");
        true
    };
    answers.filter(|answer| !refused(answer)).count()
}

#[test]
fn who_floods_a_node_is_refused_and_others_are_not() {
    let (mut world, key, leader, _) = limited(limits(50, 0, 0));
    let at = (&key, leader);
    let (app, other) = (open(&mut world, leader, 200, "app"), open(&mut world, leader, 201, "other"));
    let root = open(&mut world, leader, 202, "root");
    // On two connections, which have one limit.
    let second = open(&mut world, leader, 203, "app");
    let text = r#"user "app" is over its limit of 50 requests per second"#;
    let mut flooded = 0;
    for _ in 0..20 {
        flooded += served(&mut world, at, app, 100, text) + served(&mut world, at, second, 100, text);
        assert_eq!(served(&mut world, at, other, 2, ""), 2);
        world.run(SECOND / 20);
    }
    assert!((95..=101).contains(&flooded), "{flooded} in a second, and what was saved before");
    assert_eq!(served(&mut world, at, root, 500, ""), 500, "who may do everything has no limit");
    // Commands pass.
    let body = AdminCommand { command: Text::from("tables"), argument: Text::from("{}") };
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let number = world.put_on(app, leader, &header, &Body::HedgerowAdmin(body));
    world.settle(leader);
    assert!(matches!(world.wait(number).1.reply, Reply::HedgerowAdmin(_)));
    let counts = world.counts(leader);
    let refused = 4_000 - flooded as u64;
    assert_eq!(counts["limits"], json!({ "requests": refused, "bytes": 0, "connections": 0 }));
    assert_eq!(counts["refused"]["busy"], 0, "the node has room");
    world.run(2 * SECOND);
    assert_eq!(served(&mut world, at, app, 100, text), 50);
}

#[test]
fn limits_are_those_that_a_node_was_started_with() {
    let (mut world, key, leader, _) = limited(limits(5, 0, 0));
    let at = (&key, leader);
    let app = open(&mut world, leader, 200, "app");
    let five = r#"user "app" is over its limit of 5 requests per second"#;
    assert_eq!(served(&mut world, at, app, 30, five), 5);
    for (requests, expected) in [(20, 20), (0, 30)] {
        world.machines.get_mut(&leader).unwrap().config.user_limits = limits(requests, 0, 0);
        world.restart(leader);
        world.run(10 * SECOND);
        let app = open(&mut world, leader, 200, "app");
        let text = format!(r#"user "app" is over its limit of {requests} requests per second"#);
        assert_eq!(served(&mut world, at, app, 30, &text), expected);
    }
}

#[test]
fn extra_attempts_and_writes_count_like_everything_and_once() {
    let (mut world, key, leader, follower) = limited(limits(3, 0, 0));
    let app = open(&mut world, follower, 101, "app");
    let mut client = Client::new(1);
    assert_eq!(client.connection, app);
    let mut write = |world: &mut World| {
        client.next();
        let mut attempt = client.attempt(2, Some(Cause::Hedge));
        attempt.sequence = Some(client.request_id);
        let put = Put { key: key.full(), value: "1".into(), expire_ts_seconds: 0 };
        let header = key.header(&Ask { extension: Some(attempt), is_backup: false });
        let number = world.put_on(app, follower, &header, &Body::Put(put));
        world.settle(follower);
        world.wait(number).1.reply
    };
    // They are sent on to the leader's node, where nobody counts them again.
    open(&mut world, leader, 101, "app");
    for _ in 0..3 {
        let reply = write(&mut world);
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
    }
    let reply = write(&mut world);
    let Reply::Failed(failure) = &reply else { panic!("{reply:?}") };
    assert!(matches!(failure.refusal(), Some(Refusal::Busy(text)) if text.contains("3 requests per second")));
    assert_eq!(world.counts(leader)["limits"]["requests"], 0);
    // A backup request of a client of Pegasus gets no answer, as where there is no room: the first attempt decides.
    let backup = key.header(&Ask { extension: None, is_backup: true });
    let number = world.put_on(app, follower, &backup, &Body::Get(key.full()));
    world.settle(follower);
    world.run(SECOND / 10);
    assert!(!world.has_answer(number));
    let in_flight = world.counts(follower)["requests_in_flight"].as_i64().unwrap();
    assert_eq!(in_flight, 1, "that question");
}

#[test]
fn large_replies_are_paid_for_afterwards() {
    let (mut world, key, leader, _) = limited(limits(0, 1, 0));
    let at = (&key, leader);
    world.write(&key, leader, &"x".repeat(900 << 10));
    let (app, other) = (open(&mut world, leader, 200, "app"), open(&mut world, leader, 201, "other"));
    let text = r#"user "app" is over its limit of 1 MiB per second"#;
    let one_by_one = |world: &mut World| (0..10).map(|_| served(world, at, app, 1, text)).sum::<usize>();
    assert_eq!(one_by_one(&mut world), 2);
    assert_eq!(served(&mut world, at, other, 1, ""), 1);
    world.run(SECOND / 2);
    assert_eq!(one_by_one(&mut world), 0, "it owes 800 KiB and more");
    world.run(10 * SECOND);
    assert_eq!(one_by_one(&mut world), 2);
    assert_eq!(world.counts(leader)["limits"]["bytes"], 26);
}

#[test]
fn the_newest_connections_are_closed_and_commands_have_a_few() {
    let (mut world, key, leader, _) = limited(limits(0, 0, 2));
    let at = (&key, leader);
    let text = r#"user "app" is over its limit of 2 connections"#;
    let connections: Vec<ConnectionId> = (0..11).map(|number| open(&mut world, leader, 200 + number, "app")).collect();
    let closed = |world: &mut World, connection, body: &Body| {
        world.put_on(connection, leader, &key.header(&Ask::default()), body);
        std::mem::take(&mut world.machines.get_mut(&leader).unwrap().node.outbox().closed)
    };
    for connection in &connections[..2] {
        assert_eq!(served(&mut world, at, *connection, 10, text), 10);
    }
    let command = AdminCommand { command: Text::from("tables"), argument: Text::from("{}") };
    let command = Body::HedgerowAdmin(command);
    assert_eq!(closed(&mut world, connections[2], &command), []);
    assert_eq!(closed(&mut world, connections[2], &Body::Get(key.full())), [connections[2]]);
    assert_eq!(closed(&mut world, connections[10], &command), [connections[10]]);
    world.settle(leader);
    assert_eq!(served(&mut world, at, connections[3], 1, text), 0);
    // Where one has ended there is a place.
    world.handle(leader, Event::ClientClosed(connections[0]));
    assert_eq!(served(&mut world, at, connections[4], 10, text), 10);
    assert_eq!(world.counts(leader)["limits"]["connections"], 3);
}
