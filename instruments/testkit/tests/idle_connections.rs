//! What a node holds for clients that have asked for much, and ask for nothing now.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes and connections")]

use bytes::{Bytes, BytesMut};
use hedgerow_testkit::{Cluster, Place, Settings};
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_wire::message::{MultiGet, Put, QueryConfig};
use hedgerow_wire::{Body, Header, Reply, Text, call};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PARTITIONS: u32 = 2;
/// What each connection has asked for and was answered comes to 1.6 MB: 240 MB for all.
const CONNECTIONS: usize = 150;
/// What the node may hold for them once they are idle.
const HELD_MAX: u64 = 64 << 20;

struct Connection(TcpStream);

impl Connection {
    fn open(address: &str) -> Self {
        Self(TcpStream::connect(address).unwrap())
    }

    fn call(&mut self, table: i32, body: &Body) -> Reply {
        let partition_index = partition_of_hash(partition_hash(b"k", b""), PARTITIONS) as i32;
        let header = Header { app_id: table, partition_index, timeout_ms: 20_000, ..Header::default() };
        let mut out = BytesMut::new();
        call::encode_request_v0(&mut out, &header, 1, body);
        self.0.write_all(&out).unwrap();
        let mut size = [0; 4];
        self.0.read_exact(&mut size).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        frame[..4].copy_from_slice(&size);
        self.0.read_exact(&mut frame[4..]).unwrap();
        call::decode_reply(frame.into()).unwrap().reply
    }
}

#[test]
fn n4a_idle_connections_give_back_the_room_of_large_requests_and_replies() {
    let settings = Settings::under_test(&[Place::Folder]).unwrap();
    let mut cluster = Cluster::start_with(settings).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2", "--replicas", "1"]).unwrap();
    let address = cluster.addresses()[0].to_owned();
    let mut first = Connection::open(&address);
    let query = QueryConfig { app_name: Text::from_static("t"), partition_indices: Vec::new() };
    let Reply::QueryConfig(map) = first.call(0, &Body::QueryConfig(query)) else { panic!("not a map") };
    let row = Put { key: full_key(b"k", b"s"), value: "v".repeat(1_000_000).into(), expire_ts_seconds: 0 };
    let Reply::Update(put) = first.call(map.app_id, &Body::Put(row)) else { panic!("not a put") };
    assert_eq!(put.error, 0);
    // 9,000 sort keys that are not there.
    let sort_keys = (0..9_000).map(|number| Bytes::from(format!("{number:060}"))).collect();
    let large_request = Body::MultiGet(MultiGet { hash_key: "k".into(), sort_keys, ..MultiGet::default() });
    let large_reply = Body::Get(full_key(b"k", b"s"));
    let mut ask = |connection: &mut Connection| {
        let Reply::MultiGet(found) = connection.call(map.app_id, &large_request) else { panic!("not rows") };
        assert!(found.kvs.is_empty());
        let Reply::Get(found) = connection.call(map.app_id, &large_reply) else { panic!("not a row") };
        assert_eq!(found.value.len(), 1_000_000);
    };
    ask(&mut first);
    let before = cluster.node(1).unwrap().resident_bytes().unwrap();
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(|_| Connection::open(&address)).collect();
    connections.iter_mut().for_each(&mut ask);
    // The allocator gives back what is free a little later.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let held = cluster.node(1).unwrap().resident_bytes().unwrap().saturating_sub(before);
        if held <= HELD_MAX {
            break;
        }
        assert!(Instant::now() < end, "{held} bytes are held for {CONNECTIONS} idle connections");
        ask(&mut first);
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(connections);
    cluster.stop().unwrap();
}
