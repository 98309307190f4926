//! Three nodes on this machine, with real sockets, files and threads: what a client writes to one is read and kept.
#![allow(clippy::unwrap_used, reason = "a test fails where it fails")]
#![allow(clippy::disallowed_methods, reason = "a test may talk to the network by itself")]

use bytes::{Bytes, BytesMut};
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_node::Config;
use hedgerow_node::os::{Running, State, start};
use hedgerow_storage::{Engines, RocksEngines, RocksSettings};
use hedgerow_types::NodeId;
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_wire::message::{CreateOptions, CreateTable, Put, QueryConfig};
use hedgerow_wire::{Body, Extension, Header, Reply, Text, call};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

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
        let mut size = [0; 4];
        self.0.read_exact(&mut size).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        frame[..4].copy_from_slice(&size);
        self.0.read_exact(&mut frame[4..]).unwrap();
        call::decode_reply(frame.into()).unwrap().reply
    }
}

fn peers(count: u16) -> BTreeMap<NodeId, String> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    (1..).map(NodeId).zip(listeners.iter().map(address)).collect()
}

fn start_all(peers: &BTreeMap<NodeId, String>, root: &Path) -> Vec<Running> {
    let engines: Arc<dyn Engines> = Arc::new(RocksEngines::new(&RocksSettings::default()).unwrap());
    let start_one = |node: &NodeId| {
        let data = vec![root.join(format!("{}a", node.0)), root.join(format!("{}b", node.0))];
        let mut config = Config::new(*node, peers.clone(), data, random_u64());
        config.wal.segment_size = 1 << 20;
        start(config, Arc::new(OsDisk), Arc::clone(&engines)).unwrap()
    };
    peers.keys().map(start_one).collect()
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

fn primaries(connection: &mut Connection, table: &str) -> (i32, Vec<SocketAddr>) {
    let query = QueryConfig { app_name: Text::from(table), partition_indices: Vec::new() };
    let Reply::QueryConfig(reply) = connection.call(0, 0, &Body::QueryConfig(query)) else { panic!("not a map") };
    let addresses = reply.partitions.iter().map(|it| it.primary.socket().unwrap().into()).collect();
    (reply.app_id, addresses)
}

#[test]
fn three_nodes_keep_what_is_written_through_a_restart_of_all() {
    let root = tempfile::tempdir().unwrap();
    let peers = peers(3);
    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);

    let mut any = Connection::open(&peers[&NodeId(2)]);
    let options = CreateOptions { partition_count: 4, replica_count: 3, is_stateful: true, ..CreateOptions::default() };
    let create = CreateTable { app_name: Text::from("t"), options };
    let Reply::CreateTable(created) = any.call(0, 0, &Body::CreateTable(create)) else { panic!("not created") };
    let (table, leaders) = primaries(&mut any, "t");
    assert_eq!((created.appid, leaders.len()), (table, 4));

    for number in 0..200 {
        let (hash_key, value) = (format!("key{number}"), format!("value{number}"));
        let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), 4);
        let mut leader = Connection::open(&leaders[partition as usize].to_string());
        let key = full_key(hash_key.as_bytes(), b"s");
        let put = Put { key: key.clone(), value: Bytes::from(value.clone()), expire_ts_seconds: 0 };
        let reply = leader.call(table, partition as i32, &Body::Put(put));
        assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        let reply = leader.call(table, partition as i32, &Body::Get(key));
        assert!(matches!(&reply, Reply::Get(get) if get.error == 0 && get.value == value), "{reply:?}");
    }
    stop_all(nodes);

    let nodes = start_all(&peers, root.path());
    wait_until_serving(&nodes);
    let mut any = Connection::open(&peers[&NodeId(1)]);
    let (table, leaders) = primaries(&mut any, "t");
    for number in 0..200 {
        let hash_key = format!("key{number}");
        let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), 4);
        let mut leader = Connection::open(&leaders[partition as usize].to_string());
        let reply = leader.call(table, partition as i32, &Body::Get(full_key(hash_key.as_bytes(), b"s")));
        assert!(matches!(&reply, Reply::Get(get) if get.value == format!("value{number}")), "{reply:?}");
    }
    stop_all(nodes);
}
