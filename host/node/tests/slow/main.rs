//! Slow nodes, in a cluster in memory with a clock of its own: leaders leave them and return.
//!
//! The scores themselves are tested in `hedgerow-placement`, with the rest of R15.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../reads/world.rs"]
mod world;

use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::Reply;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::{Ask, Key, MS, World};

const SECOND: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_millis(250);

/// Three nodes and a table of eight partitions, led by all of them.
struct Stage {
    world: World,
    table: i32,
}

impl Stage {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(count: u16) -> Self {
        let mut world = World::new(count);
        let table = world.create_table(8, &json!({}));
        world.run(20 * SECOND);
        Self { world, table }
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.world.machines.keys().copied().collect()
    }

    /// What `asked` says of all nodes and groups.
    fn status(&mut self, asked: NodeId) -> Value {
        self.world.admin(asked, "status", &json!({})).unwrap()
    }

    /// How many groups each node leads, those of the metadata and of the table, by what `asked` has heard.
    fn leaders(&mut self, asked: NodeId) -> BTreeMap<u16, usize> {
        let status = self.status(asked);
        let partitions =
            status["tables"].as_array().unwrap().iter().flat_map(|it| it["partitions"].as_array().unwrap());
        let mut led = BTreeMap::new();
        for partition in partitions.chain([&status["metadata"]]) {
            let address: std::net::SocketAddr = partition["leader"].as_str().unwrap().parse().unwrap();
            let std::net::IpAddr::V4(ip) = address.ip() else { panic!("{address}") };
            *led.entry(u16::from(ip.octets()[3])).or_default() += 1;
        }
        led
    }

    /// Who is slow, as `asked` sees it.
    fn slow(&mut self, asked: NodeId) -> Vec<u64> {
        let status = self.world.admin(asked, "slow", &json!({})).unwrap();
        let nodes = status["nodes"].as_array().unwrap().iter().filter(|node| node["is_slow"] == true);
        nodes.map(|node| node["node"].as_u64().unwrap()).collect()
    }

    /// Time until `node` leads nothing, by what `asked` hears.
    fn left_after(&mut self, node: NodeId, asked: NodeId, most: Duration) -> Option<Duration> {
        let since = self.world.now;
        while self.world.now.since(since) <= most {
            if !self.leaders(asked).contains_key(&node.0) {
                return Some(self.world.now.since(since));
            }
            self.world.run(10 * MS);
        }
        None
    }

    fn keys(&self) -> Vec<Key> {
        (0..24).map(|number| Key::new(self.table, 8, &format!("key{number}"))).collect()
    }

    /// Writes to the leader, wherever that is; the latest of several attempts counts.
    fn write(&mut self, key: &Key, asked: NodeId, value: &str) {
        for _ in 0..100 {
            let status = self.status(asked);
            let leader = status["tables"][0]["partitions"][key.partition as usize]["leader"].as_str().unwrap();
            let ip = leader.parse::<std::net::SocketAddr>().unwrap().ip().to_string();
            let leader = NodeId(ip.rsplit('.').next().unwrap().parse().unwrap());
            let number = self.world.send_write(key, leader, value);
            self.world.run_until(12 * SECOND, |world| world.has_answer(number));
            let (at, frame) = self.world.answer(number).unwrap();
            self.world.run(at.since(self.world.now));
            if matches!(&frame.reply, Reply::Update(update) if update.error == 0) {
                return;
            }
            // An election takes its time.
            self.world.run(20 * MS);
        }
        panic!("{key:?} cannot be written");
    }

    fn make_late(&mut self, node: NodeId, late: Duration) {
        self.world.late.insert(node, late);
    }

    fn heal(&mut self) {
        self.world.late.clear();
    }
}

fn other(node: NodeId) -> NodeId {
    NodeId(node.0 % 3 + 1)
}

#[test]
fn leaders_leave_a_slow_node_within_a_second_whichever_it_is_and_return() {
    for slow in [1, 2, 3].map(NodeId) {
        let mut stage = Stage::new();
        let asked = other(slow);
        for key in &stage.keys() {
            stage.write(key, asked, "before");
        }
        assert!(stage.leaders(asked).contains_key(&slow.0));
        stage.make_late(slow, LATE);
        let left = stage.left_after(slow, asked, 2 * SECOND).unwrap();
        assert!(left < SECOND, "{slow:?}: {left:?}");
        assert_eq!(stage.slow(asked), [u64::from(slow.0)]);
        let led = stage.leaders(asked);
        assert!(led.values().all(|count| *count <= 5), "spread over both others: {led:?}");
        for key in &stage.keys() {
            let since = stage.world.now;
            stage.write(key, asked, "while slow");
            assert!(stage.world.now.since(since) < 20 * MS, "writes are fast again");
        }

        // It is well again, and is not trusted at once.
        stage.heal();
        stage.world.run(8 * SECOND);
        assert!(!stage.leaders(asked).contains_key(&slow.0));
        stage.world.run(15 * SECOND);
        assert_eq!((stage.slow(asked), stage.slow(slow)), (vec![], vec![]));
        assert!(stage.leaders(asked)[&slow.0] >= 2, "{:?}", stage.leaders(asked));
        for key in &stage.keys() {
            let leader = stage.world.replicas(key.partition).leader;
            let read = stage.world.get(key, leader, &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
            assert_eq!(read.0, "while slow");
        }
    }
}

#[test]
fn leaders_leave_while_writes_come_and_nothing_acknowledged_is_lost() {
    let mut stage = Stage::new();
    let (slow, asked) = (NodeId(1), NodeId(2));
    stage.make_late(slow, LATE);
    let keys = stage.keys();
    let began = stage.world.now;
    for round in 0..20 {
        for key in &keys {
            stage.write(key, asked, &format!("{round}"));
        }
    }
    let took = stage.world.now.since(began);
    assert!(took < 4 * SECOND, "{took:?} for 480 writes");
    for key in &keys {
        let leader = stage.world.replicas(key.partition).leader;
        assert_eq!(stage.world.get(key, leader, &Ask::default()).unwrap().0, "19");
    }
}

#[test]
fn leaders_leave_a_node_that_is_a_little_slow_and_one_that_is_very_slow() {
    for (late, within) in [(70, 4), (600, 3), (1_500, 8)] {
        let mut stage = Stage::new();
        stage.make_late(NodeId(3), late * MS);
        let left = stage.left_after(NodeId(3), NodeId(1), within * SECOND);
        assert!(left.is_some(), "{late} ms");
        stage.world.run(30 * SECOND);
        assert!(!stage.leaders(NodeId(1)).contains_key(&3), "{late} ms");
    }
}

#[test]
fn a_node_with_a_slow_disk_is_slow() {
    let mut stage = Stage::new();
    stage.world.machines.get_mut(&NodeId(2)).unwrap().log_takes = 800 * MS;
    let keys = stage.keys();
    for round in 0..40 {
        stage.write(&keys[round % keys.len()], NodeId(1), "some");
        stage.world.run(100 * MS);
    }
    assert_eq!((stage.slow(NodeId(1)), stage.slow(NodeId(2))), (vec![2], vec![2]));
    assert!(!stage.leaders(NodeId(1)).contains_key(&2));
    stage.world.machines.get_mut(&NodeId(2)).unwrap().log_takes = Duration::ZERO;
    stage.world.run(40 * SECOND);
    assert_eq!(stage.slow(NodeId(1)), [0; 0]);
    assert!(stage.leaders(NodeId(1)).contains_key(&2));
}

#[test]
fn where_most_are_slow_nobody_is_and_leaders_stay() {
    let mut stage = Stage::new();
    let before = stage.leaders(NodeId(3));
    stage.make_late(NodeId(1), LATE);
    stage.make_late(NodeId(2), LATE);
    for _ in 0..100 {
        stage.world.run(100 * MS);
        for asked in stage.nodes() {
            assert_eq!(stage.slow(asked), [0; 0]);
        }
    }
    assert_eq!(stage.leaders(NodeId(3)), before);
}

#[test]
fn of_five_nodes_two_are_slow_at_most() {
    let mut stage = Stage::of(5);
    for slow in 1..=4 {
        stage.make_late(NodeId(slow), LATE * u32::from(slow));
        for _ in 0..50 {
            stage.world.run(100 * MS);
            for asked in stage.nodes() {
                assert!(stage.slow(asked).len() <= 2);
            }
        }
    }
}

#[test]
fn a_new_table_has_leaders_although_the_preferred_ones_are_slow() {
    let mut stage = Stage::new();
    stage.make_late(NodeId(3), LATE);
    stage.world.run(2 * SECOND);
    let since = stage.world.now;
    let argument = json!({ "name": "u", "partition_count": 16, "replica_count": 3, "options": {} });
    stage.world.admin(NodeId(1), "create_table", &argument).unwrap();
    let took = stage.world.now.since(since);
    assert!(took < 900 * MS, "nobody waits for an election timeout: {took:?}");
    assert!(!stage.leaders(NodeId(1)).contains_key(&3));
}

#[test]
fn r15_slow_score_false_positive_after_recovery() {
    let mut stage = Stage::new();
    stage.world.cut_off(NodeId(2));
    stage.world.run(10 * SECOND);
    assert_eq!(stage.slow(NodeId(1)), [2], "a dead node looks slow and not fast");
    stage.world.cut.clear();
    stage.world.restart(NodeId(2));
    stage.world.run(300 * MS);
    for _ in 0..200 {
        stage.world.run(100 * MS);
        for asked in stage.nodes() {
            assert_eq!(stage.slow(asked), [0; 0], "as {asked} sees it");
        }
    }
    // All of them at once.
    for node in stage.nodes() {
        stage.world.restart(node);
    }
    for _ in 0..200 {
        stage.world.run(100 * MS);
        for asked in stage.nodes() {
            assert_eq!(stage.slow(asked), [0; 0], "as {asked} sees it");
        }
    }
}

#[test]
fn r15_a_slow_node_is_not_elected() {
    for slow in [1, 2, 3].map(NodeId) {
        let mut stage = Stage::new();
        stage.make_late(slow, LATE);
        stage.world.run(3 * SECOND);
        let (leaving, staying) = (other(slow), other(other(slow)));
        stage.world.cut_off(leaving);
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            stage.world.run(100 * MS);
            seen.extend(stage.leaders(staying).into_keys());
        }
        assert!(!seen.contains(&slow.0), "{slow} was elected: {seen:?}");
        assert_eq!(stage.leaders(staying), BTreeMap::from([(staying.0, 9)]));
    }
}

#[test]
fn r15_a_slow_node_is_elected_where_nobody_else_can_be() {
    let mut stage = Stage::new();
    stage.make_late(NodeId(1), LATE);
    stage.world.run(3 * SECOND);
    // Node 3 misses a write that 1 and 2 have, and then 2 is gone: only 1 can lead.
    stage.world.cut_off(NodeId(3));
    let keys = stage.keys();
    for key in &keys {
        stage.write(key, NodeId(2), "only at 1 and 2");
    }
    stage.world.cut.clear();
    stage.world.cut_off(NodeId(2));
    stage.world.run(25 * SECOND);
    for key in &keys {
        stage.write(key, NodeId(3), "again");
    }
}

#[test]
fn pulses_say_what_is_slow_and_little_else() {
    let mut stage = Stage::new();
    stage.make_late(NodeId(2), LATE);
    stage.world.run(3 * SECOND);
    for asked in stage.nodes() {
        let told = stage.world.admin(asked, "slow", &json!({})).unwrap();
        let nodes = told["nodes"].as_array().unwrap().clone();
        assert_eq!(nodes.iter().map(|node| node["score"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 100, 1]);
        assert!((250_000..600_000).contains(&nodes[1]["round_trip_us"].as_u64().unwrap()), "{told}");
        assert!(nodes[0]["round_trip_us"].as_u64().unwrap() < 1_000, "{told}");
        let status = stage.status(asked);
        assert_eq!(
            (status["nodes"][1]["is_slow"].as_bool(), status["nodes"][1]["slow_score"].as_u64()),
            (Some(true), Some(100))
        );
    }
}
