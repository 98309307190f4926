//! A node that only pretends: it speaks the protocol over loopback, and a closure decides what it answers.
#![allow(dead_code, reason = "each file of tests uses a part")]

pub(crate) mod group;

use bytes::{Bytes, BytesMut};
use hedgerow_types::{Refusal, key};
use hedgerow_wire::message::{
    Cancel, ClusterInfoReply, GetReply, PartitionConfig, QueryConfigReply, ScanReply, UpdateReply,
};
use hedgerow_wire::{
    Address, Body, ErrorName, PartitionId, Reply, ReplyExtension, Request, Text, decode_request, encode_reply,
    frame_size,
};
use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What a fake node does with a request.
pub(crate) enum Action {
    Reply(Reply),
    /// With these fields of the server's own.
    ReplyWith(Reply, ReplyExtension),
    /// After a time, by the runtime's clock; requests that come later need not wait for it.
    ReplyAfter(Duration, Reply),
    /// No answer, ever.
    Silence,
    /// Close the connection.
    Close,
    /// Keep the connection, and read nothing from it ever again.
    Stall,
    /// These bytes instead of a reply.
    Raw(&'static [u8]),
    /// Keep the request; when so many are kept on this connection, answer all of them, the last one first.
    KeepUntil(usize, Reply),
}

type Handler = dyn Fn(&Request) -> Action + Send + Sync;

/// A fake node. It lives as long as the test's runtime.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    requests: Vec<Request>,
}

impl Fake {
    pub(crate) async fn start(handler: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve_on(listener, handler)
    }

    /// As `start`, for tests whose handler has to know the address.
    pub(crate) fn serve_on(
        listener: TcpListener,
        handler: impl Fn(&Request) -> Action + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (shared, handler): (_, Arc<Handler>) = (seen.clone(), Arc::new(handler));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(stream, shared.clone(), handler.clone()));
            }
        });
        Self { address, seen }
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// The requests to partitions so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let seen = self.seen.lock().unwrap();
        seen.requests.iter().filter(|request| request.header.app_id > 0).cloned().collect()
    }

    /// What was taken back so far.
    pub(crate) fn cancels(&self) -> Vec<Cancel> {
        let seen = self.seen.lock().unwrap();
        let cancel = |request: &Request| match &request.body {
            Body::HedgerowCancel(cancel) => Some(cancel.clone()),
            _ => None,
        };
        seen.requests.iter().filter_map(cancel).collect()
    }

    /// How often the map was asked for.
    pub(crate) fn queries(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.requests.iter().filter(|request| matches!(request.body, Body::QueryConfig(_))).count()
    }
}

async fn serve(stream: TcpStream, seen: Arc<Mutex<Seen>>, handler: Arc<Handler>) {
    let (mut stream, writer) = stream.into_split();
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(write(writer, receiver));
    let mut buffer = BytesMut::new();
    let mut kept = Vec::new();
    loop {
        while let Some(size) = frame_size(&buffer).unwrap().filter(|size| *size <= buffer.len()) {
            let request = decode_request(buffer.split_to(size).freeze()).unwrap();
            seen.lock().unwrap().requests.push(request.clone());
            let mut out = BytesMut::new();
            if request.body.method().is_one_way() {
                continue;
            }
            match handler(&request) {
                Action::Reply(reply) => write_reply(&mut out, &request, &reply, ReplyExtension::default()),
                Action::ReplyWith(reply, extension) => write_reply(&mut out, &request, &reply, extension),
                Action::ReplyAfter(delay, reply) => {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        write_reply(&mut out, &request, &reply, ReplyExtension::default());
                        let _ = sender.send(out);
                    });
                    continue;
                }
                Action::Silence => {}
                Action::Stall => return std::future::pending().await,
                Action::Close => {
                    let _ = sender.send(BytesMut::new());
                    return;
                }
                Action::Raw(bytes) => out.extend_from_slice(bytes),
                Action::KeepUntil(count, reply) => {
                    kept.push((request, reply));
                    if kept.len() == count {
                        let kept = kept.drain(..).rev();
                        kept.for_each(|(request, reply)| {
                            write_reply(&mut out, &request, &reply, ReplyExtension::default());
                        });
                    }
                }
            }
            if !out.is_empty() && sender.send(out).is_err() {
                return;
            }
        }
        if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// Writes what is sent; nothing means to close.
async fn write(mut stream: OwnedWriteHalf, mut receiver: UnboundedReceiver<BytesMut>) {
    while let Some(bytes) = receiver.recv().await {
        if bytes.is_empty() || stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

fn write_reply(out: &mut BytesMut, request: &Request, reply: &Reply, extension: ReplyExtension) {
    let extension = request.header.extension.is_some().then_some(extension);
    encode_reply(out, request.body.method(), request.sequence_id, reply, extension.as_ref());
}

/// The map of a hash table: who leads each partition, and all nodes as the others.
pub(crate) fn map(leaders: &[SocketAddr], nodes: &[SocketAddr], ballot: i64) -> Reply {
    let partition = |(index, leader): (usize, &SocketAddr)| PartitionConfig {
        pid: PartitionId { app_id: 1, partition_index: index as i32 },
        ballot,
        max_replica_count: 3,
        primary: wire_address(leader),
        secondaries: nodes.iter().filter(|node| *node != leader).map(wire_address).collect(),
        ..PartitionConfig::default()
    };
    Reply::QueryConfig(QueryConfigReply {
        err: ErrorName::Ok,
        app_id: 1,
        partition_count: leaders.len() as i32,
        is_stateful: true,
        partitions: leaders.iter().enumerate().map(partition).collect(),
        table_kind: Some(0),
        start_keys: None,
        nodes: None,
    })
}

pub(crate) fn wire_address(address: &SocketAddr) -> Address {
    match address {
        SocketAddr::V4(address) => Address::new(SocketAddrV4::new(*address.ip(), address.port())),
        SocketAddr::V6(_) => Address::NONE,
    }
}

pub(crate) fn not_leader(leader: Option<SocketAddr>) -> Action {
    let leader = leader.map(|leader| Text::from(leader.to_string()));
    Action::Reply(Reply::refused(&Refusal::NotLeader { leader: None }, leader.as_ref()))
}

pub(crate) fn refused(refusal: &Refusal) -> Action {
    Action::Reply(Reply::refused(refusal, None))
}

/// The reply to a write that succeeded.
pub(crate) fn done() -> Reply {
    Reply::Update(UpdateReply { app_id: 1, decree: 1, ..UpdateReply::default() })
}

pub(crate) fn value(value: &[u8]) -> Reply {
    Reply::Get(GetReply { value: Bytes::copy_from_slice(value), app_id: 1, ..GetReply::default() })
}

/// The answer of a node that leads everything to what every client asks first; `None` for requests to partitions.
pub(crate) fn metadata(request: &Request, map: impl FnOnce() -> Reply) -> Option<Action> {
    match &request.body {
        Body::QueryConfig(_) => Some(Action::Reply(map())),
        Body::ClusterInfo(_) => Some(Action::Reply(Reply::ClusterInfo(ClusterInfoReply::default()))),
        _ => None,
    }
}

/// For nodes whose handler has to know the address.
pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// One node that leads everything and answers requests to partitions by `answer`.
pub(crate) async fn single(answer: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Fake {
    let (listener, address) = listen().await;
    Fake::serve_on(listener, move |request| {
        metadata(request, || map(&[address, address], &[address], 1)).unwrap_or_else(|| answer(request))
    })
}

/// What says that there is no such table.
pub(crate) fn no_table() -> Reply {
    Reply::QueryConfig(QueryConfigReply { err: ErrorName::ObjectNotFound, ..QueryConfigReply::default() })
}

/// The records of a fake that stores what it is told. Each request is answered by the map alone.
#[derive(Default)]
pub(crate) struct Records(Mutex<BTreeMap<Bytes, Bytes>>);

impl Records {
    pub(crate) fn answer(&self, body: &Body) -> Reply {
        let mut records = self.0.lock().unwrap();
        match body {
            Body::Put(put) => {
                records.insert(put.key.clone(), put.value.clone());
                done()
            }
            Body::Remove(key) => {
                records.remove(key);
                done()
            }
            Body::Get(key) => match records.get(key) {
                Some(found) => value(found),
                None => Reply::Get(GetReply { error: 1, ..GetReply::default() }),
            },
            other => panic!("the fake does not know {:?}", other.method()),
        }
    }
}

/// One page of a scan over `keys` of hash key `h`.
pub(crate) fn page(keys: &[&str], context_id: i64) -> Reply {
    let row = |key: &&str| hedgerow_wire::message::KeyValue {
        key: key::full_key(b"h", key.as_bytes()),
        value: Bytes::from_static(b"v"),
        expire_ts_seconds: None,
    };
    Reply::Scan(ScanReply { kvs: keys.iter().map(row).collect(), context_id, app_id: 1, ..ScanReply::default() })
}
