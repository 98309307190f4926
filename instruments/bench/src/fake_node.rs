//! A node that only pretends: it speaks the protocol over loopback, answers every read at once, and stops for a while at
//! known moments. For checks of the generator itself.

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use hedgerow_env::os::spawn_thread;
use hedgerow_wire::message::{ClusterInfoReply, GetReply, PartitionConfig, QueryConfigReply};
use hedgerow_wire::{
    Address, Body, ErrorName, PartitionId, Reply, ReplyExtension, Request, decode_request, encode_reply, frame_size,
};
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Partitions of every table that it is asked for.
const PARTITIONS: i32 = 2;
/// The value of every row.
const VALUE: &[u8] = &[b'v'; 100];

/// When it stops: for `pause`, at `first` after its start and then every `period`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) period: Duration,
    pub(crate) pause: Duration,
}

/// A fake node on a thread of its own, so that its pauses are nobody else's. It ends when this is dropped.
pub(crate) struct FakeNode {
    address: SocketAddr,
    _running: oneshot::Sender<()>,
}

impl FakeNode {
    pub(crate) fn start(pauses: Option<Pauses>) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        listener.set_nonblocking(true).context("setting up a socket")?;
        let address = listener.local_addr().context("asking for the port")?;
        let (running, ended) = oneshot::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
        spawn_thread("fake-node", move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::spawn(accept(listener, address));
                if let Some(pauses) = pauses {
                    tokio::spawn(pause(pauses));
                }
                // Ends with an error when the sender is dropped, which is what is waited for.
                let _ = ended.await;
            });
        })
        .context("starting a thread")?;
        Ok(Self { address, _running: running })
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

/// Blocks the node's only thread, as a stalled process would.
async fn pause(pauses: Pauses) {
    let mut at = tokio::time::Instant::now() + pauses.first;
    loop {
        tokio::time::sleep_until(at).await;
        std::thread::sleep(pauses.pause);
        at += pauses.period;
    }
}

async fn accept(listener: TcpListener, address: SocketAddr) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, address));
    }
}

async fn serve(mut stream: TcpStream, address: SocketAddr) {
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    if stream.set_nodelay(true).is_err() {
        return;
    }
    loop {
        while let Ok(Some(size)) = frame_size(&input) {
            if size > input.len() {
                break;
            }
            let Ok(request) = decode_request(input.split_to(size).freeze()) else { return };
            let extension = request.header.extension.is_some().then(ReplyExtension::default);
            let reply = answer(&request, address);
            encode_reply(&mut output, request.body.method(), request.sequence_id, &reply, extension.as_ref());
        }
        if stream.write_all(&output).await.is_err() {
            return;
        }
        output.clear();
        if stream.read_buf(&mut input).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

fn answer(request: &Request, address: SocketAddr) -> Reply {
    match &request.body {
        Body::ClusterInfo(_) => Reply::ClusterInfo(ClusterInfoReply::default()),
        Body::QueryConfig(_) => map(address),
        Body::Get(_) => Reply::Get(GetReply { value: Bytes::from_static(VALUE), app_id: 1, ..GetReply::default() }),
        _ => Reply::refused(&hedgerow_types::Refusal::Unknown, None),
    }
}

/// The map of a hash table whose partitions are all here.
fn map(address: SocketAddr) -> Reply {
    let primary = match address {
        SocketAddr::V4(address) => Address::new(SocketAddrV4::new(*address.ip(), address.port())),
        SocketAddr::V6(_) => Address::NONE,
    };
    let partition = |partition_index| PartitionConfig {
        pid: PartitionId { app_id: 1, partition_index },
        ballot: 1,
        max_replica_count: 1,
        primary,
        ..PartitionConfig::default()
    };
    Reply::QueryConfig(QueryConfigReply {
        err: ErrorName::Ok,
        app_id: 1,
        partition_count: PARTITIONS,
        is_stateful: true,
        partitions: (0..PARTITIONS).map(partition).collect(),
        table_kind: Some(0),
        start_keys: None,
        nodes: None,
    })
}
