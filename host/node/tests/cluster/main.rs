//! Three nodes on this machine, with real sockets, files and threads: what a client writes to one is read and kept.
#![allow(clippy::unwrap_used, reason = "a test fails where it fails")]
#![allow(clippy::disallowed_methods, reason = "a test may talk to the network by itself")]

mod log;
#[path = "../ports/mod.rs"]
mod ports;
mod repair;
mod unflushed;

use bytes::{Bytes, BytesMut};
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_node::Config;
use hedgerow_node::os::{Running, State, start};
use hedgerow_node::peer::{Frame, Greeting, Probe, take};
use hedgerow_placement::Life;
use hedgerow_storage::{Engines, RocksEngines, RocksSettings};
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_types::{Incarnation, NodeId};
use hedgerow_wire::message::{ClusterInfo, CreateOptions, CreateTable, Put, QueryConfig};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, Text, call};
use ports::reserved_address;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Connection(TcpStream, i32);

impl Connection {
    fn open(address: &str) -> Self {
        Self(TcpStream::connect(address).unwrap(), 0)
    }

    fn call(&mut self, app_id: i32, partition_index: i32, body: &Body) -> Reply {
        self.1 += 1;
        let extension = Some(Extension::default());
        let header = Header { app_id, partition_index, timeout_ms: 5_000, extension, ..Header::default() };
        let mut out = BytesMut::new();
        call::encode_request(&mut out, &header, self.1, body);
        self.0.write_all(&out).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> Reply {
        self.reply_unless_ended().unwrap()
    }

    fn reply_unless_ended(&mut self) -> std::io::Result<Reply> {
        let mut size = [0; 4];
        self.0.read_exact(&mut size)?;
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        frame[..4].copy_from_slice(&size);
        self.0.read_exact(&mut frame[4..])?;
        Ok(call::decode_reply(frame.into()).unwrap().reply)
    }
}

/// Clients are held up by nobody, whether the node's own thread has their sockets or others do.
const IO_THREADS: [usize; 2] = [1, 3];

fn peers(count: u16) -> BTreeMap<NodeId, String> {
    (1..=count).map(|node| (NodeId(node), reserved_address())).collect()
}

fn start_all(peers: &BTreeMap<NodeId, String>, root: &Path) -> Vec<Running> {
    let engines = new_engines();
    let start_one = |node: &NodeId| {
        let data = vec![root.join(format!("{}a", node.0)), root.join(format!("{}b", node.0))];
        start_node(*node, peers, data, &engines).unwrap()
    };
    peers.keys().map(start_one).collect()
}

fn start_node(
    node: NodeId,
    peers: &BTreeMap<NodeId, String>,
    data: Vec<PathBuf>,
    engines: &Arc<dyn Engines>,
) -> Result<Running, String> {
    start_configured(node, peers, data, engines, |_| {})
}

fn start_configured(
    node: NodeId,
    peers: &BTreeMap<NodeId, String>,
    data: Vec<PathBuf>,
    engines: &Arc<dyn Engines>,
    configure: impl Fn(&mut Config),
) -> Result<Running, String> {
    let mut config = Config::new(node, peers.clone(), data, random_u64());
    config.wal.segment_size = 1 << 20;
    // Every few writes are flushed.
    config.flush_replica_bytes = 64 << 10;
    configure(&mut config);
    start(config, Arc::new(OsDisk), Arc::clone(engines)).map_err(|error| error.to_string())
}

/// The only node of its cluster, and its address.
fn start_alone(root: &Path, configure: impl FnOnce(&mut Config)) -> (Running, String) {
    let peers = peers(1);
    let address = peers[&NodeId(1)].clone();
    let mut config = Config::new(NodeId(1), peers, data_of(root, 1), random_u64());
    configure(&mut config);
    (start(config, Arc::new(OsDisk), new_engines()).unwrap(), address)
}

/// No rows of the last flushes stay in memory, where nobody would notice that their table is damaged.
fn new_engines() -> Arc<dyn Engines> {
    Arc::new(RocksEngines::new(&RocksSettings { write_buffer_size: 0, ..RocksSettings::default() }).unwrap())
}

fn wait_until_serving(nodes: &[Running]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for node in nodes {
        let state =
            runtime.block_on(async { node.state().wait_for(|it| *it != State::Starting).await.unwrap().clone() });
        assert_eq!(state, State::Serving);
    }
}

fn stop_all(nodes: Vec<Running>) {
    nodes.iter().for_each(Running::stop);
    nodes.into_iter().for_each(|node| node.join().unwrap());
}

/// As clients do: it is asked again while too few nodes are known to be alive.
fn create_table(any: &mut Connection, partition_count: i32, replica_count: i32) -> i32 {
    let options = CreateOptions { partition_count, replica_count, is_stateful: true, ..CreateOptions::default() };
    let create = Body::CreateTable(CreateTable { app_name: Text::from("t"), options });
    loop {
        match any.call(0, 0, &create) {
            Reply::CreateTable(created) => return created.appid,
            Reply::Failed(failure) if failure.name == ErrorName::InvalidState => std::thread::yield_now(),
            reply => panic!("{reply:?}"),
        }
    }
}

fn primaries(connection: &mut Connection, table: &str) -> (i32, Vec<SocketAddr>) {
    let query = QueryConfig { app_name: Text::from(table), partition_indices: Vec::new() };
    let Reply::QueryConfig(reply) = connection.call(0, 0, &Body::QueryConfig(query)) else { panic!("not a map") };
    let addresses = reply.partitions.iter().map(|it| it.primary.socket().unwrap().into()).collect();
    (reply.app_id, addresses)
}

/// As clients do: the map is asked for again where the node that it names leads no more.
fn call_leader(any: &mut Connection, partition: u32, body: &Body) -> Reply {
    loop {
        let (table, leaders) = primaries(any, "t");
        // It may have gone just now.
        let Ok(stream) = TcpStream::connect(leaders[partition as usize]) else { continue };
        match Connection(stream, 0).call(table, partition as i32, body) {
            Reply::Failed(failure) if failure.name == ErrorName::InvalidState => {}
            reply => return reply,
        }
    }
}

#[test]
fn three_nodes_keep_what_is_written_through_a_restart_of_all() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);

    let mut any = Connection::open(&peers[&NodeId(2)]);
    let created = create_table(&mut any, 4, 3);
    let (table, leaders) = primaries(&mut any, "t");
    assert_eq!((created, leaders.len()), (table, 4));

    for number in 0..200 {
        let (hash_key, value) = (format!("key{number}"), format!("value{number}"));
        let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), 4);
        let key = full_key(hash_key.as_bytes(), b"s");
        let put = Put { key: key.clone(), value: Bytes::from(value.clone()), expire_ts_seconds: 0 };
        let reply = call_leader(&mut any, partition, &Body::Put(put));
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        let reply = call_leader(&mut any, partition, &Body::Get(key));
        assert!(matches!(&reply, Reply::Get(get) if get.error == 0 && get.value == value), "{reply:?}");
    }
    stop_all(nodes);

    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);
    let mut any = Connection::open(&peers[&NodeId(1)]);
    for number in 0..200 {
        let hash_key = format!("key{number}");
        let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), 4);
        let get = Body::Get(full_key(hash_key.as_bytes(), b"s"));
        let reply = call_leader(&mut any, partition, &get);
        assert!(matches!(&reply, Reply::Get(get) if get.value == format!("value{number}")), "{reply:?}");
    }
    stop_all(nodes);
}

fn data_of(root: &Path, node: u16) -> Vec<PathBuf> {
    ["a", "b"].map(|name| root.join(format!("{node}{name}"))).into()
}

#[test]
fn n6_two_nodes_cannot_share_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (peers(1), peers(1));
    let engines = new_engines();
    let node = start_node(NodeId(1), &first, data_of(root.path(), 1), &engines).unwrap();
    let error = start_node(NodeId(1), &second, data_of(root.path(), 1), &engines).unwrap_err();
    assert!(error.contains("1a is in use by another process"), "{error}");
    stop_all(vec![node]);
    stop_all(vec![start_node(NodeId(1), &second, data_of(root.path(), 1), &engines).unwrap()]);
}

#[test]
fn n6_a_node_with_another_clusters_directory_says_so_and_stops() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (peers, elsewhere) = (peers(3), peers(3));
    for (root, peers) in [(&one, &peers), (&other, &elsewhere)] {
        let nodes = start_all(peers, root.path());
        wait_until_serving(&nodes);
        stop_all(nodes);
    }
    let engines = new_engines();
    let start_in = |node: u16, root: &Path| start_node(NodeId(node), &peers, data_of(root, node), &engines).unwrap();
    let whole = [start_in(2, one.path()), start_in(3, one.path())];
    let stranger = start_in(1, other.path());
    let error = stranger.join().unwrap_err();
    assert!(error.contains("belongs to cluster") && error.contains("the nodes 2 and 3 belong to cluster"), "{error}");
    // The others go on.
    wait_until_serving(&whole);
    stop_all(whole.into());
}

#[test]
fn n4_silent_connections_make_room_for_newcomers() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let (node, address) =
            start_alone(root.path(), |config| (config.io_threads, config.files_max) = (io_threads, 256));
        let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let mut newcomer = Connection::open(&address);
        let query = QueryConfig { app_name: Text::from("t"), partition_indices: Vec::new() };
        newcomer.call(0, 0, &Body::QueryConfig(query));
        // The oldest one has been closed.
        silent[0].set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        assert_eq!((&silent[0]).read(&mut [0]).unwrap(), 0);
        stop_all(vec![node]);
    }
}

/// One node with a row of 1 MB.
struct LargeRow {
    nodes: Vec<Running>,
    address: String,
    table: i32,
    partition: i32,
    key: Bytes,
    /// A connection that is read.
    other: Connection,
}

impl LargeRow {
    fn new(root: &Path, configure: impl FnOnce(&mut Config)) -> Self {
        let (node, address) = start_alone(root, configure);
        let nodes = vec![node];
        wait_until_serving(&nodes);
        let mut other = Connection::open(&address);
        let table = create_table(&mut other, 2, 1);
        let (partition, key) = (partition_of_hash(partition_hash(b"k", b""), 2) as i32, full_key(b"k", b"s"));
        let write = Put { key: key.clone(), value: "v".repeat(1_000_000).into(), expire_ts_seconds: 0 };
        let reply = other.call(table, partition, &Body::Put(write));
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        Self { nodes, address, table, partition, key, other }
    }

    /// Another connection asks for the row so many times.
    fn ask_often(&self, count: i32) -> Connection {
        let mut greedy = Connection::open(&self.address);
        let (table, partition_index) = (self.table, self.partition);
        let header = Header { app_id: table, partition_index, timeout_ms: 60_000, ..Header::default() };
        let mut requests = BytesMut::new();
        let body = Body::Get(self.key.clone());
        (0..count).for_each(|number| call::encode_request(&mut requests, &header, number, &body));
        greedy.0.write_all(&requests).unwrap();
        greedy
    }

    /// Somebody else is served.
    fn count(&mut self) {
        let count = Body::SortKeyCount(Bytes::from_static(b"k"));
        let reply = self.other.call(self.table, self.partition, &count);
        assert!(matches!(&reply, Reply::Count(count) if count.error == 0), "{reply:?}");
    }
}

/// A client asks for 200 MB and reads nothing. What is beyond what may wait for it is refused, and the node goes on.
#[test]
fn n4a_who_reads_nothing_fills_no_memory() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let mut large = LargeRow::new(root.path(), |config| config.io_threads = io_threads);
        let mut greedy = large.ask_often(200);
        // Others have their turns meanwhile, in each of which one of the large reads is served or, from some point on, all are refused.
        (0..400).for_each(|_| large.count());
        let replies: Vec<Reply> = (0..200).map(|_| greedy.reply()).collect();
        let served = replies.iter().filter(|reply| matches!(reply, Reply::Get(get) if get.error == 0)).count();
        let refused = replies.iter().filter(|reply| matches!(reply, Reply::Failed(_))).count();
        assert!(served > 0 && refused > 0 && served + refused == 200, "{served} served, {refused} refused");
        stop_all(large.nodes);
    }
}

/// More clients than there is room for ask for much and read nothing. Those that have most to read are disconnected, and who reads is
/// served all the time.
#[test]
fn n4a_who_reads_nothing_holds_up_nobody() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let mut large =
            LargeRow::new(root.path(), |config| (config.io_threads, config.unread_bytes_max) = (io_threads, 8 << 20));
        let ask = |_| {
            let greedy = large.ask_often(16);
            large.count();
            greedy
        };
        let greedy: Vec<Connection> = (0..12).map(ask).collect();
        for _ in 0..20 {
            let reply = large.other.call(large.table, large.partition, &Body::Get(large.key.clone()));
            assert!(matches!(&reply, Reply::Get(get) if get.error == 0), "{reply:?}");
        }
        // Where a thread falls behind, some are refused, and not disconnected for them.
        let is_cut = |mut greedy: Connection| (0..16).any(|_| greedy.reply_unless_ended().is_err());
        assert!(greedy.into_iter().map(is_cut).filter(|is_cut| *is_cut).count() > 0, "nobody was disconnected");
        stop_all(large.nodes);
    }
}

#[test]
fn n4a_who_reads_nothing_for_long_is_disconnected() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let (node, address) = start_alone(root.path(), |config| {
            (config.io_threads, config.unread_for) = (io_threads, std::time::Duration::from_millis(100))
        });
        wait_until_serving(std::slice::from_ref(&node));
        let (mut greedy, query) = (Connection::open(&address), Body::ClusterInfo(ClusterInfo {}));
        let mut requests = BytesMut::new();
        (0..1_000).for_each(|number| call::encode_request(&mut requests, &Header::default(), number, &query));
        greedy.0.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let end = std::iter::repeat_with(|| greedy.0.write_all(&requests)).find_map(Result::err);
        let kind = end.map(|error| error.kind());
        assert!(matches!(kind, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)), "{kind:?}");
        Connection::open(&address).call(0, 0, &query);
        stop_all(vec![node]);
    }
}

/// Connects to node 1 as a process of `node`, of `cluster` (0 = of none yet).
fn greet_as(node: u16, cluster: u64, address: &str) -> TcpStream {
    let life = Life { incarnation: Incarnation(1), boot: 1, start: 1 };
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(&Greeting { node, to: 1, cluster, life, logs: Vec::new(), ancestors: Vec::new() }.encode())
        .unwrap();
    stream
}

/// What the node at the other end answers until it closes the connection.
fn answer_of(mut stream: TcpStream) -> Option<Frame> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    take(&mut BytesMut::from(&answer[..])).unwrap()
}

/// Two of three nodes serve, and somebody sends without a pause what node 3 might: frames that are taken, or what is not listened to any
/// more. Others are served all the while.
#[test]
fn n4k_who_sends_a_node_frames_without_a_pause_holds_up_nobody() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let engines = new_engines();
    let nodes = [1, 2].map(|node| start_node(NodeId(node), &peers, data_of(root.path(), node), &engines).unwrap());
    let address = peers[&NodeId(1)].clone();
    let mut other = Connection::open(&address);
    let query = Body::ClusterInfo(ClusterInfo {});
    let mut empty = BytesMut::new();
    hedgerow_node::peer::put(&mut empty, &Frame::Probe(Probe { incarnation: 1, ..Probe::default() }));
    let many = empty.repeat(10_000);
    // Node 9 is nobody's, so that its connection is refused and drained.
    for node in [3, 9] {
        let mut stream = greet_as(node, 0, &address);
        let is_over = Arc::new(AtomicBool::new(false));
        let sender = std::thread::spawn({
            let (is_over, many) = (Arc::clone(&is_over), many.clone());
            move || while !is_over.load(Ordering::Relaxed) && stream.write_all(&many).is_ok() {}
        });
        for _ in 0..20 {
            other.call(0, 0, &query);
        }
        is_over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
    }
    stop_all(nodes.into());
}

/// A frame of a node that is never finished is not kept for ever, nor is anything of nodes that the configuration does not have.
#[test]
fn n4k_frames_of_nodes_that_are_never_finished_fill_no_memory() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let mut config = Config::new(NodeId(1), peers.clone(), data_of(root.path(), 1), random_u64());
    config.unread_for = std::time::Duration::from_millis(100);
    let node = start(config, Arc::new(OsDisk), new_engines()).unwrap();
    let mut stuck = greet_as(3, 0, &peers[&NodeId(1)]);
    stuck.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    stuck.write_all(&[0, 0, 0, 1, 7, 7]).unwrap();
    assert!(matches!(stuck.read(&mut [0]), Ok(0)), "the connection ends");
    let said = answer_of(greet_as(9, 0, &peers[&NodeId(1)]));
    assert!(matches!(&said, Some(Frame::Refused(refused)) if refused.reason == 8), "{said:?}");
    stop_all(vec![node]);
}

/// The beginning of a request with a value of 1 MB, of which half comes.
fn half_a_request(address: &str) -> (Connection, Bytes) {
    let put = Put { key: full_key(b"k", b"s"), value: "v".repeat(1_000_000).into(), expire_ts_seconds: 0 };
    let mut request = BytesMut::new();
    call::encode_request(&mut request, &Header::default(), 1, &Body::Put(put));
    let mut connection = Connection::open(address);
    connection.0.write_all(&request.split_to(request.len() / 2)).unwrap();
    (connection, request.freeze())
}

/// Clients send halves of large requests, together more than there is room for. Those whose requests came first, and then no more of them, are
/// disconnected; the others may end theirs.
#[test]
fn n4e_requests_that_are_never_finished_fill_no_memory() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let (node, address) =
            start_alone(root.path(), |config| (config.io_threads, config.unfinished_bytes_max) = (io_threads, 4 << 20));
        let mut begun: Vec<(Connection, Bytes)> = Vec::new();
        for _ in 0..20 {
            begun.push(half_a_request(&address));
            // An answer that comes after it: the half before it has been read.
            Connection::open(&address).call(0, 0, &Body::ClusterInfo(ClusterInfo {}));
        }
        let mut ended = begun.into_iter().map(|(mut connection, rest)| {
            connection.0.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            connection.0.write_all(&rest).is_ok() && connection.0.read_exact(&mut [0; 4]).is_ok()
        });
        let ended: Vec<bool> = ended.by_ref().collect();
        assert!(!ended[0] && ended[19], "{ended:?}");
        let answered = ended.iter().filter(|is_answered| **is_answered).count();
        assert!((4..=8).contains(&answered), "{ended:?}");
        stop_all(vec![node]);
    }
}

/// A client that stops in the middle of a request is disconnected after a while; one that waits between two of them is not.
#[test]
fn n4e_who_does_not_finish_a_request_is_disconnected() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let (node, address) = start_alone(root.path(), |config| {
            (config.io_threads, config.unread_for) = (io_threads, std::time::Duration::from_millis(100))
        });
        let query = Body::ClusterInfo(ClusterInfo {});
        let mut patient = Connection::open(&address);
        patient.call(0, 0, &query);
        let (mut stuck, _) = half_a_request(&address);
        stuck.0.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let kind = stuck.0.read_exact(&mut [0; 4]).map_err(|error| error.kind());
        assert!(matches!(kind, Err(ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)), "{kind:?}");
        patient.call(0, 0, &query);
        stop_all(vec![node]);
    }
}

/// Each answer of this node fills a turn: what came with its request waits for the next one, and is answered all the same.
#[test]
fn n4a_requests_that_came_together_are_answered_turn_by_turn() {
    for io_threads in IO_THREADS {
        let root = tempfile::tempdir().unwrap();
        let (node, address) =
            start_alone(root.path(), |config| (config.io_threads, config.read_bytes_per_turn) = (io_threads, 1));
        let mut client = Connection::open(&address);
        let mut requests = BytesMut::new();
        let query = Body::QueryConfig(QueryConfig { app_name: Text::from("t"), partition_indices: Vec::new() });
        (0..500).for_each(|number| call::encode_request(&mut requests, &Header::default(), number, &query));
        client.0.write_all(&requests).unwrap();
        for _ in 0..500 {
            assert!(matches!(client.reply(), Reply::QueryConfig(_) | Reply::Failed(_)));
        }
        stop_all(vec![node]);
    }
}

#[test]
fn n6_another_clusters_nodes_that_dial_a_node_do_not_stop_it() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);
    for stranger in [2, 3, 2, 3, 9] {
        let answer = answer_of(greet_as(stranger, 77, &peers[&NodeId(1)]));
        assert!(
            matches!(answer, Some(Frame::Refused(refused)) if refused.reason == 5 && refused.cluster != 0),
            "{answer:?}"
        );
    }
    assert!(nodes.iter().all(|node| *node.state().borrow() == State::Serving));
    stop_all(nodes);
}

fn put(connection: &mut Connection, table: i32, key: &Bytes, value: &str) -> bool {
    let put = Put { key: key.clone(), value: Bytes::from(value.to_owned()), expire_ts_seconds: 0 };
    matches!(connection.call(table, 0, &Body::Put(put)), Reply::Update(update) if update.error == 0)
}

/// Flips a byte in the middle of a file, unless it is empty: then it is being written.
fn damage(path: &Path) -> bool {
    let handle = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    let at = handle.metadata().unwrap().len() / 2;
    if at > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&handle, &mut byte, at).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&handle, &[byte[0] ^ 0x40], at).unwrap();
    }
    at > 0
}

/// Damages every table file of the partition's replicas below `directory`. Returns how many.
fn damage_tables(directory: &Path, prefix: &str) -> usize {
    let mut count = 0;
    for replica in std::fs::read_dir(directory.join("replicas")).unwrap().map(|entry| entry.unwrap().path()) {
        if !replica.file_name().unwrap().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let files = std::fs::read_dir(&replica).unwrap().map(|entry| entry.unwrap().path());
        let tables = files.filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
        count += tables.filter(|table| damage(table)).count();
    }
    count
}

#[test]
fn m3_a_damaged_table_file_at_the_leader_costs_the_replica_and_not_its_rows() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);
    let mut any = Connection::open(&peers[&NodeId(1)]);
    create_table(&mut any, 2, 3);
    let (table, leaders) = primaries(&mut any, "t");
    let before = leaders[0].to_string();
    let keys: Vec<Bytes> = (0..)
        .map(|number| format!("key{number}"))
        .filter(|key| partition_of_hash(partition_hash(key.as_bytes(), b""), 2) == 0)
        .map(|key| full_key(key.as_bytes(), b"s"))
        .take(200)
        .collect();
    let mut leader = Connection::open(&before);
    let value = "v".repeat(2_000);
    assert!(keys.iter().all(|key| put(&mut leader, table, key, &value)));

    let (node, _) = peers.iter().find(|(_, address)| **address == before).unwrap();
    let directories = data_of(root.path(), node.0);
    let prefix = format!("{table}.0-");
    while directories.iter().map(|directory| damage_tables(directory, &prefix)).sum::<usize>() == 0 {
        // A flush is under way.
        std::thread::yield_now();
    }
    // Clients ask again, and the map when they are told to.
    let mut unread: Vec<&Bytes> = keys.iter().collect();
    while !unread.is_empty() {
        let mut leader = Connection::open(&primaries(&mut any, "t").1[0].to_string());
        unread.retain(|key| {
            let reply = leader.call(table, 0, &Body::Get((*key).clone()));
            !matches!(&reply, Reply::Get(get) if get.error == 0 && get.value == value.as_bytes())
        });
    }
    // Replaced: the directory has another replica of the partition, and the damaged one is gone.
    let replicas = || {
        let lists = directories.iter().map(|directory| std::fs::read_dir(directory.join("replicas")).unwrap());
        let names = lists.flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(&prefix)).collect::<Vec<_>>()
    };
    let mut leader = Connection::open(&primaries(&mut any, "t").1[0].to_string());
    while leader.0.peer_addr().unwrap().to_string() == before {
        leader = Connection::open(&primaries(&mut any, "t").1[0].to_string());
    }
    assert!(nodes.iter().all(|node| *node.state().borrow() == State::Serving));
    while replicas().len() != 1 {
        std::thread::yield_now();
    }
    stop_all(nodes);
}

/// Two nodes exchange their addresses, and the third one goes on as it was. It meets the wrong one of them, is told so, and finds
/// the other where it says that it is.
#[test]
fn m4_nodes_that_exchange_their_addresses_are_found_again() {
    let root = tempfile::tempdir().unwrap();
    let before = peers(3);
    let mut nodes = start_all(&before, root.path());
    wait_until_serving(&nodes);
    let (first, third) = (NodeId(1), NodeId(3));
    let second = nodes.remove(1);
    stop_all(nodes);
    let mut after = before.clone();
    after.insert(first, before[&third].clone());
    after.insert(third, before[&first].clone());
    let engines = new_engines();
    let start = |node: NodeId| {
        let data = data_of(root.path(), node.0);
        start_node(node, &after, data, &engines).unwrap()
    };
    let mut nodes = vec![start(first), start(third)];
    wait_until_serving(&nodes);
    nodes.push(second);
    let mut second = Connection::open(&before[&NodeId(2)]);
    create_table(&mut second, 2, 3);
    // It names them to clients by where they are now.
    for number in 0..20 {
        let key = full_key(format!("key{number}").as_bytes(), b"s");
        let partition = partition_of_hash(partition_hash(format!("key{number}").as_bytes(), b""), 2);
        let reply = call_leader(&mut second, partition, &Body::Get(key));
        assert!(matches!(&reply, Reply::Get(get) if get.error == 1), "{reply:?}");
    }
    stop_all(nodes);
}
