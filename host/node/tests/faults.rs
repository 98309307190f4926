//! Faults that are made on purpose: what a node that allows them does when it is told to, with real sockets and clocks.
//!
//! Times are checked from below, which holds however busy the machine is. That something is not delayed is seen by one answer that
//! comes sooner than the delay lets any come, however many it takes until then.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that talks to the network and reads the clock by itself"
)]

#[path = "ports/mod.rs"]
mod ports;

use bytes::BytesMut;
use hedgerow_env::fault::{Action, Clients, Command, Link, Shape, Stall, Switches};
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_node::Config;
use hedgerow_node::os::{Running, State, start};
use hedgerow_storage::{Engines, RocksEngines, RocksSettings};
use hedgerow_types::NodeId;
use hedgerow_types::key::full_key;
use hedgerow_wire::message::{AdminCommand, ClusterInfo, CreateOptions, CreateTable, Put, QueryConfig};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, Text, call};
use ports::reserved_address;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// A minute, which is longer than [`PATIENCE`]: whatever is answered at all was not held up by it.
const FOR_EVER: Duration = Duration::from_secs(60);
/// Ends what would otherwise hang.
const PATIENCE: Duration = Duration::from_secs(50);
/// Number of a node, and of nodes before it, that no other test here has: its thread is found by its name.
const SHARED: u16 = 4;

struct Connection(TcpStream, i32);

impl Connection {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream, 0)
    }

    /// Connects from an address of the caller's choice.
    fn open_from(from: &str, to: &str) -> Self {
        let address = |text: &str| socket2::SockAddr::from(text.parse::<SocketAddr>().unwrap());
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&address(from)).unwrap();
        socket.connect(&address(to)).unwrap();
        socket.set_tcp_nodelay(true).unwrap();
        Self(socket.into(), 0)
    }

    fn send(&mut self, app_id: i32, body: &Body) {
        self.1 += 1;
        let header = Header { app_id, timeout_ms: 5_000, extension: Some(Extension::default()), ..Header::default() };
        let mut out = BytesMut::new();
        call::encode_request(&mut out, &header, self.1, body);
        self.0.write_all(&out).unwrap();
    }

    fn receive(&mut self) -> (i32, Reply) {
        let mut size = [0; 4];
        self.0.read_exact(&mut size).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        frame[..4].copy_from_slice(&size);
        self.0.read_exact(&mut frame[4..]).unwrap();
        let reply = call::decode_reply(frame.into()).unwrap();
        (reply.sequence_id, reply.reply)
    }

    fn call(&mut self, app_id: i32, body: &Body) -> Reply {
        self.send(app_id, body);
        self.receive().1
    }

    /// Sends the admin command `fault`; an error is what it was refused with.
    fn fault(&mut self, node: u16, action: Action) -> Result<(), String> {
        let argument = serde_json::to_string(&Command { node, action }).unwrap();
        let body = Body::HedgerowAdmin(AdminCommand { command: Text::from("fault"), argument: Text::from(argument) });
        match self.call(0, &body) {
            Reply::HedgerowAdmin(reply) if reply.err == ErrorName::Ok => Ok(()),
            Reply::Failed(failure) => Err(failure.refusal().unwrap().to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn set(&mut self, node: u16, switches: Switches) {
        self.fault(node, Action::Set(switches)).unwrap();
    }

    /// The shortest of `count` round trips.
    fn round_trip(&mut self, count: usize) -> Duration {
        let one = |_| {
            let begin = Instant::now();
            self.call(0, &Body::ClusterInfo(ClusterInfo {}));
            begin.elapsed()
        };
        (0..count).map(one).min().unwrap()
    }

    /// Waits for a round trip that is shorter than `delay`, which none is while the delay is there.
    fn expect_sooner_than(&mut self, delay: Duration) {
        let begin = Instant::now();
        while self.round_trip(1) >= delay {
            assert!(begin.elapsed() < PATIENCE, "nothing comes sooner than in {delay:?}");
        }
    }
}

/// Running nodes with everything that ends with them.
struct Nodes {
    running: Vec<Running>,
    peers: BTreeMap<NodeId, String>,
    _root: tempfile::TempDir,
}

impl Nodes {
    fn start(count: u16, may_fault: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let peers: BTreeMap<NodeId, String> = (1..=count).map(|node| (NodeId(node), reserved_address())).collect();
        let engines: Arc<dyn Engines> = Arc::new(RocksEngines::new(&RocksSettings::default()).unwrap());
        let start_one = |node: &NodeId| {
            let data = vec![root.path().join(node.0.to_string())];
            let mut config = Config::new(*node, peers.clone(), data, random_u64());
            config.wal.segment_size = 1 << 20;
            config.may_fault = may_fault;
            start(config, Arc::new(OsDisk), Arc::clone(&engines)).unwrap()
        };
        let running: Vec<Running> = peers.keys().map(start_one).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for node in &running {
            let mut state = node.state();
            let state = runtime.block_on(state.wait_for(|it| *it != State::Starting)).unwrap().clone();
            assert_eq!(state, State::Serving);
        }
        Self { running, peers, _root: root }
    }

    fn connect(&self, node: u16) -> Connection {
        Connection::open(&self.peers[&NodeId(node)])
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // The second time a node is asked, it does not wait for others to take over.
        (0..2).for_each(|_| self.running.iter().for_each(Running::stop));
        self.running.drain(..).for_each(|node| drop(node.join()));
    }
}

fn slow(by: Duration) -> Switches {
    Switches { slow_us: by.as_micros() as u64, ..Switches::default() }
}

fn shape(delay: Duration) -> Shape {
    Shape { delay_us: delay.as_micros() as u64, bytes_per_second: None }
}

#[test]
fn a_node_makes_no_faults_unless_it_was_started_so() {
    let nodes = Nodes::start(1, false);
    let mut connection = nodes.connect(1);
    let refusal = connection.fault(1, Action::Set(slow(FOR_EVER))).unwrap_err();
    assert!(refusal.contains("allowed = true"), "{refusal}");
    connection.round_trip(1);
}

#[test]
fn a_node_refuses_what_is_meant_for_another_and_what_makes_no_sense() {
    let nodes = Nodes::start(1, true);
    let mut connection = nodes.connect(1);
    assert!(connection.fault(2, Action::Set(slow(FOR_EVER))).unwrap_err().contains("meant for node 2"));
    assert!(connection.fault(1, Action::Set(slow(FOR_EVER + MS))).unwrap_err().contains("at most 60 s"));
    connection.round_trip(1);
}

#[test]
fn a_slow_node_answers_later_until_it_is_switched_off() {
    let nodes = Nodes::start(1, true);
    let (mut connection, mut other) = (nodes.connect(1), nodes.connect(1));
    connection.set(1, slow(5 * MS));
    let slowed = other.round_trip(10);
    assert!(slowed >= 5 * MS, "{slowed:?}");
    connection.set(1, Switches::default());
    other.expect_sooner_than(5 * MS);
}

#[test]
fn a_link_to_clients_is_shaped_in_both_directions_and_others_are_not() {
    let nodes = Nodes::start(1, true);
    let (mut connection, mut control) = (nodes.connect(1), nodes.connect(1));
    let link = |clients| Link { clients, outgoing: shape(3 * MS), incoming: shape(4 * MS), ..Link::default() };
    control.set(1, Switches { links: vec![link(Clients::Others)], ..Switches::default() });
    assert!(connection.round_trip(10) >= 7 * MS);
    let elsewhere = Clients::From(vec!["127.0.0.9".parse().unwrap()]);
    control.set(1, Switches { links: vec![link(elsewhere)], ..Switches::default() });
    connection.expect_sooner_than(7 * MS);
}

#[test]
fn bandwidth_holds_back_what_is_sent_at_once() {
    let nodes = Nodes::start(1, true);
    let mut connection = nodes.connect(1);
    let incoming = Shape { delay_us: 0, bytes_per_second: Some(100_000) };
    let link = Link { clients: Clients::Others, incoming, ..Link::default() };
    connection.set(1, Switches { links: vec![link], ..Switches::default() });
    let query =
        Body::QueryConfig(QueryConfig { app_name: Text::from("t".repeat(1_000)), partition_indices: Vec::new() });
    let begin = Instant::now();
    (0..20).for_each(|_| connection.send(0, &query));
    (0..20).for_each(|_| drop(connection.receive()));
    assert!(begin.elapsed() >= 200 * MS, "{:?}", begin.elapsed());
}

#[test]
fn nothing_overtakes_when_a_delay_becomes_shorter() {
    let nodes = Nodes::start(1, true);
    let mut control = nodes.connect(1);
    // From another address, so that the commands are not delayed with what they delay.
    let mut far = Connection::open_from("127.0.0.2:0", &nodes.peers[&NodeId(1)]);
    let place = || Clients::From(vec!["127.0.0.2".parse().unwrap()]);
    let delayed = |(incoming, outgoing)| {
        let (incoming, outgoing) = (shape(incoming), shape(outgoing));
        let link = Link { clients: place(), incoming, outgoing, ..Link::default() };
        Switches { links: vec![link], ..Switches::default() }
    };
    let delays = [(50 * MS, MS), (Duration::ZERO, 60 * MS), (MS, MS), (Duration::ZERO, Duration::ZERO)];
    for delay in delays {
        control.set(1, delayed(delay));
        for _ in 0..20 {
            far.send(0, &Body::ClusterInfo(ClusterInfo {}));
        }
        // When this is answered, the node has read what was sent before.
        control.round_trip(1);
    }
    for expected in 1..=80 {
        assert_eq!(far.receive().0, expected);
    }
}

#[test]
fn a_stall_stops_a_node_once_and_leaves_its_sockets_open() {
    let nodes = Nodes::start(1, true);
    let (mut connection, mut control) = (nodes.connect(1), nodes.connect(1));
    let begin = Instant::now();
    control.fault(1, Action::Stall(Stall { number: 7, lasts_us: 100_000 })).unwrap();
    // A connection that is made meanwhile waits, like those that are there already.
    let mut late = nodes.connect(1);
    late.send(0, &Body::ClusterInfo(ClusterInfo {}));
    connection.round_trip(1);
    late.receive();
    assert!(begin.elapsed() >= 100 * MS, "{:?}", begin.elapsed());
    // The same number is the same stall, whatever else it says.
    control.fault(1, Action::Stall(Stall { number: 7, lasts_us: FOR_EVER.as_micros() as u64 })).unwrap();
    connection.round_trip(1);
}

/// Nanoseconds that this process' thread `name` has computed.
fn computed_by(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_meant =
        |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim() == name);
    let task = tasks.into_iter().find(is_meant).unwrap();
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_node_with_a_share_of_a_core_computes_no_more_however_much_is_asked() {
    let nodes = Nodes::start(SHARED, true);
    let mut connection = nodes.connect(SHARED);
    connection.set(SHARED, Switches { cpu_percent: Some(10), ..Switches::default() });
    let name = format!("node-{SHARED}");
    let (begin, before) = (Instant::now(), computed_by(&name));
    while begin.elapsed() < 300 * MS {
        (0..64).for_each(|_| connection.send(0, &Body::ClusterInfo(ClusterInfo {})));
        (0..64).for_each(|_| drop(connection.receive()));
    }
    let share = (computed_by(&name) - before) as f64 / begin.elapsed().as_nanos() as f64;
    assert!(share < 0.15, "{share}");
    connection.set(SHARED, Switches::default());
    connection.round_trip(1);
}

#[test]
fn a_link_between_nodes_delays_what_needs_a_majority() {
    let nodes = Nodes::start(3, true);
    let mut any = nodes.connect(1);
    let options = CreateOptions { partition_count: 2, replica_count: 3, is_stateful: true, ..CreateOptions::default() };
    let create = Body::CreateTable(CreateTable { app_name: Text::from("t"), options });
    let created = loop {
        match any.call(0, &create) {
            Reply::CreateTable(created) => break created,
            // Too few nodes are known to be alive.
            Reply::Failed(failure) if failure.name == ErrorName::InvalidState => std::thread::yield_now(),
            reply => panic!("{reply:?}"),
        }
    };
    let query = Body::QueryConfig(QueryConfig { app_name: Text::from("t"), partition_indices: vec![0] });
    let Reply::QueryConfig(map) = any.call(0, &query) else { panic!("not a map") };
    let leader: SocketAddr = map.partitions[0].primary.socket().unwrap().into();
    let mut leader = Connection::open(&leader.to_string());
    // A hash key of the first of two partitions.
    let hash_key = (0..).map(|number: u32| format!("key{number}"));
    let of_first = |key: &String| {
        let hash = hedgerow_types::key::partition_hash(key.as_bytes(), b"");
        hedgerow_types::key::partition_of_hash(hash, 2) == 0
    };
    let hash_key = hash_key.into_iter().find(of_first).unwrap();
    let key = full_key(hash_key.as_bytes(), b"s");
    let body = Body::Put(Put { key, value: "v".into(), expire_ts_seconds: 0 });
    let mut put = || {
        let begin = Instant::now();
        let reply = leader.call(created.appid, &body);
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        begin.elapsed()
    };
    put();
    for node in 1..=3 {
        let others = (1..=3).filter(|other| *other != node).collect();
        let link = Link { place: "others".to_owned(), nodes: others, outgoing: shape(10 * MS), ..Link::default() };
        nodes.connect(node).set(node, Switches { links: vec![link], ..Switches::default() });
    }
    for _ in 0..5 {
        let delayed = put();
        assert!(delayed >= 20 * MS, "{delayed:?}");
    }
    for node in 1..=3 {
        nodes.connect(node).set(node, Switches::default());
    }
    let begin = Instant::now();
    while put() >= 20 * MS {
        assert!(begin.elapsed() < PATIENCE, "the delay stays");
    }
}
