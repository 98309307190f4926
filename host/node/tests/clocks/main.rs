//! D6: wall clocks that are wrong, in a cluster in memory with clocks of its own: rows live as long as they should.
//!
//! Whose word counts is tested in `hedgerow-placement`, setting the log's time back over both engines in `hedgerow-storage`.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../reads/world.rs"]
mod world;

use bytes::Bytes;
use hedgerow_types::time::expiry_seconds;
use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::message::{Incr, Put};
use hedgerow_wire::{Body, Extension, Reply};
use serde_json::{Value, json};
use std::time::Duration;
use world::{Ask, Key, World};

const SECOND: Duration = Duration::from_secs(1);
const YEAR: i64 = 365 * 86_400;
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// Three nodes and a table of one row's partition and another.
struct Stage {
    world: World,
    table: i32,
}

impl Stage {
    fn new(options: &Value) -> Self {
        let mut world = World::new(3);
        let table = world.create_table(2, options);
        world.run(2 * SECOND);
        Self { world, table }
    }

    fn key(&self, name: &str) -> Key {
        Key::new(self.table, 2, name)
    }

    fn leader(&mut self, name: &str) -> NodeId {
        let partition = self.key(name).partition;
        self.world.replicas(partition).leader
    }

    /// True time, as expiry counts it.
    fn seconds(&self) -> u32 {
        expiry_seconds(self.world.clock().unix_micros)
    }

    /// Writes a row to the leader that lives until `expire_at`; 0 = as the table says.
    fn put(&mut self, name: &str, expire_at: u32) {
        let leader = self.leader(name);
        self.put_at(leader, name, expire_at);
    }

    fn put_at(&mut self, leader: NodeId, name: &str, expire_at: u32) {
        let (key, value) = (self.key(name).full(), Bytes::from_static(b"100"));
        let reply = self.write(name, leader, &Body::Put(Put { key, value, expire_ts_seconds: expire_at as i32 }));
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
    }

    /// Adds 1 to a row at `leader`, at once. Returns what it is then.
    fn add(&mut self, name: &str, leader: NodeId) -> i64 {
        self.try_add(name, leader).unwrap()
    }

    fn try_add(&mut self, name: &str, leader: NodeId) -> Result<i64, String> {
        let key = self.key(name).full();
        match self.write(name, leader, &Body::Incr(Incr { key, increment: 1, expire_ts_seconds: 0 })) {
            Reply::Incr(reply) if reply.error == 0 => Ok(reply.new_value),
            other => Err(format!("{other:?}")),
        }
    }

    fn write(&mut self, name: &str, leader: NodeId, body: &Body) -> Reply {
        let header = self.key(name).header(&Ask { extension: Some(Extension::default()), is_backup: false });
        let number = self.world.send(leader, &header, body);
        self.world.wait(number).1.reply
    }

    /// How many replicas show the row.
    fn seen(&mut self, name: &str) -> usize {
        self.world.run(SECOND);
        let key = self.key(name);
        let eventual = Ask::anywhere(ReadLevel::Eventual);
        NODES.iter().filter(|node| self.world.get(&key, **node, &eventual).is_ok()).count()
    }

    /// The nodes whose clocks are off, and what is known of the time, by what `asked` says.
    fn off(&mut self, asked: NodeId) -> (Vec<u64>, String) {
        let status = self.world.admin(asked, "status", &json!({})).unwrap();
        let nodes = status["nodes"].as_array().unwrap().iter().filter(|node| node["is_clock_off"] == true);
        (nodes.map(|node| node["node"].as_u64().unwrap()).collect(), status["time"].as_str().unwrap().to_owned())
    }

    fn restart_all(&mut self) {
        NODES.iter().for_each(|node| self.world.restart(*node));
        self.world.run(20 * SECOND);
    }
}

#[test]
fn d6_a_leader_whose_clock_is_a_year_ahead_expires_nothing_and_is_named() {
    let mut stage = Stage::new(&json!({}));
    let expire_at = stage.seconds() + 3_600;
    stage.put("row", expire_at);
    let leader = stage.leader("row");
    stage.world.wall_ahead.insert(leader, YEAR);
    for _ in 0..25 {
        stage.put("row2", expire_at);
        stage.put("row", expire_at);
        stage.world.run(SECOND);
        assert_eq!(stage.leader("row"), leader, "a wrong clock does not cost the leadership");
    }
    assert_eq!((stage.seen("row"), stage.seen("row2")), (3, 3));
    for node in NODES {
        assert_eq!(stage.off(node), (vec![u64::from(leader.0)], "agreed".to_owned()));
    }
    stage.world.wall_ahead.clear();
    stage.restart_all();
    stage.put("new", stage.seconds() + 3_600);
    assert_eq!((stage.seen("row"), stage.seen("new")), (3, 3));
    assert_eq!(stage.off(NodeId(1)), (vec![], "agreed".to_owned()));
    // And they do end when their time has come, neither earlier nor much later.
    let short = stage.seconds() + 30;
    stage.put("short", short);
    stage.world.run(27 * SECOND);
    assert_eq!(stage.seen("short"), 3);
    stage.world.run(3 * SECOND);
    assert_eq!((stage.seen("short"), stage.seen("row")), (0, 3));
}

#[test]
fn d6_a_partition_that_was_a_year_ahead_heals_with_its_next_write_or_read() {
    let mut stage = Stage::new(&json!({}));
    let expire_at = stage.seconds() + 3_600;
    stage.put("row", expire_at);
    // All of them: a majority that is wrong from the start on is believed, and its partitions are a year ahead.
    stage.world.wall_ahead.extend(NODES.map(|node| (node, YEAR)));
    stage.restart_all();
    stage.put("row2", 0);
    assert_eq!((stage.seen("row"), stage.seen("row2")), (0, 3));
    stage.world.wall_ahead.clear();
    stage.restart_all();
    assert_eq!(stage.seen("row"), 3, "what was not dropped is there again");
    stage.put("new", stage.seconds() + 3_600);
    assert_eq!((stage.seen("row"), stage.seen("new")), (3, 3));
}

#[test]
fn d6_two_clocks_that_disagree_move_nothing() {
    let mut stage = Stage::new(&json!({}));
    let expire_at = stage.seconds() + 3_600;
    stage.put("row", expire_at);
    let leader = stage.leader("row");
    let gone = *NODES.iter().rev().find(|node| **node != leader).unwrap();
    stage.world.cut_off(gone);
    stage.world.wall_ahead.insert(leader, YEAR);
    stage.world.run(10 * SECOND);
    stage.put("row2", expire_at);
    assert_eq!(stage.off(leader), (vec![u64::from(leader.0)], "held".to_owned()));
    // Nobody knows the time after this, and the leader's own clock is wrong.
    let left: Vec<NodeId> = NODES.iter().copied().filter(|node| *node != gone).collect();
    left.iter().for_each(|node| stage.world.restart(*node));
    stage.world.run(20 * SECOND);
    stage.put("row3", expire_at);
    assert_eq!(stage.off(leader), (vec![], "unknown".to_owned()));
    // The node that is cut off serves nobody.
    assert_eq!([stage.seen("row"), stage.seen("row2"), stage.seen("row3")], [2, 2, 2]);
    stage.world.cut.clear();
    stage.world.run(10 * SECOND);
    assert_eq!(stage.off(leader), (vec![u64::from(leader.0)], "agreed".to_owned()));
    assert_eq!([stage.seen("row"), stage.seen("row2"), stage.seen("row3")], [3, 3, 3]);
}

/// A table's own time to live begins when the row is written, also while nobody knows the time, after a week without any
/// node.
#[test]
fn d6_a_tables_time_to_live_is_never_cut_short() {
    let mut stage = Stage::new(&json!({ "default_ttl": "60" }));
    stage.put("row", 0);
    stage.world.now = stage.world.now + 7 * 86_400 * SECOND;
    NODES.iter().for_each(|node| stage.world.restart(*node));
    stage.world.cut_off(NodeId(3));
    stage.world.wall_ahead.insert(NodeId(2), 60);
    stage.world.run(20 * SECOND);
    assert_eq!(stage.off(NodeId(2)).1, "unknown");
    stage.put("new", 0);
    stage.world.cut.clear();
    stage.world.run(35 * SECOND);
    assert_eq!(stage.off(NodeId(2)).1, "agreed");
    assert_eq!((stage.seen("row"), stage.seen("new")), (0, 3));
}

/// All nodes stand still, as machines do that are suspended, and the first thing that they hear afterwards is a client. None of
/// them knows the time then, nor for long, since their clocks disagree. What they had shown as expired stays so: an addition to it
/// would be acknowledged, and be gone as soon as the time is known again.
#[test]
fn d6_what_was_shown_as_expired_does_not_come_back_after_a_pause() {
    let mut stage = Stage::new(&json!({}));
    let expire_at = stage.seconds() + 4;
    stage.put("row", expire_at);
    stage.world.run(6 * SECOND);
    let (key, leader) = (stage.key("row"), stage.leader("row"));
    assert_eq!(stage.world.get(&key, leader, &Ask::anywhere(ReadLevel::Linearizable)).unwrap_err().name, "status 1");
    stage.world.now = stage.world.now + 8 * SECOND;
    stage.world.wall_ahead.extend([(NODES[0], 60), (NODES[1], 120)]);
    stage.try_add("row", leader).unwrap_err();
    stage.world.run(15 * SECOND);
    assert_eq!(stage.off(leader).1, "unknown");
    let leader = stage.leader("row");
    assert_eq!(stage.add("row", leader), 1);
    stage.world.wall_ahead.clear();
    stage.world.run(5 * SECOND);
    assert_eq!(stage.off(leader).1, "agreed");
    let leader = stage.leader("row");
    assert_eq!(stage.add("row", leader), 2);
}

/// A follower stands still for ten minutes, and hears of what was written meanwhile before it knows the time again. What had
/// expired by then is gone for it too: its log says how late it was.
#[test]
fn d6_a_node_that_was_away_shows_nothing_that_has_expired_meanwhile() {
    let mut stage = Stage::new(&json!({}));
    let key = stage.key("row");
    let later =
        (0..).map(|number| format!("later{number}")).find(|it| stage.key(it).partition == key.partition).unwrap();
    let expire_at = stage.seconds() + 30;
    stage.put("row", expire_at);
    let (leader, away) = (stage.leader("row"), stage.world.replicas(key.partition).followers[0]);
    stage.world.cut_off(away);
    let until = stage.world.now + 700 * SECOND;
    stage.world.machines.get_mut(&away).unwrap().next_tick = until;
    stage.world.run(620 * SECOND);
    stage.put_at(leader, &later, 0);
    stage.world.cut.clear();
    stage.world.run(5 * SECOND);
    let eventual = Ask::anywhere(ReadLevel::Eventual);
    assert!(stage.world.get(&stage.key(&later), away, &eventual).is_ok(), "it has heard of what was written");
    assert_eq!(stage.world.get(&key, away, &eventual).unwrap_err().name, "status 1");
}

/// A node that has just started knows no time, and its log none of now: what the others show as expired would be alive there. Here
/// that takes seconds, since the clocks disagree at first.
#[test]
fn d6_a_node_that_has_just_started_shows_nothing_that_has_expired() {
    let mut stage = Stage::new(&json!({}));
    let key = stage.key("row");
    let expire_at = stage.seconds() + 4;
    stage.put("row", expire_at);
    stage.world.run(6 * SECOND);
    stage.world.wall_ahead.extend([(NODES[0], 60), (NODES[1], 120)]);
    NODES.iter().for_each(|node| stage.world.restart(*node));
    let latest = Ask::anywhere(ReadLevel::Linearizable);
    let (mut counted, mut without_time) = (0, 0);
    for round in 0..200 {
        if round == 150 {
            stage.world.wall_ahead.clear();
        }
        stage.world.run(SECOND / 20);
        for node in NODES {
            match stage.world.get(&key, node, &latest) {
                Ok((value, _)) => assert_eq!(value, counted.to_string(), "it has expired"),
                Err(failure) => without_time += i32::from(format!("{failure:?}").contains("what time")),
            }
            counted = stage.try_add("row", node).unwrap_or(counted);
        }
    }
    assert!(counted > 10 && without_time > 10, "{counted} {without_time}");
}
