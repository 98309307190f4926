//! Three nodes with TLS, on real sockets: who shows the right certificate is served, everybody else gets nowhere and holds nobody up.
#![allow(clippy::unwrap_used, reason = "a test fails where it fails")]
#![allow(clippy::disallowed_methods, reason = "a test writes an operator's files and talks to the network by itself")]

#[path = "../ports/mod.rs"]
mod ports;

mod audit;
mod limits;
mod passwords;
mod revoked;
mod rights;

use bytes::BytesMut;
use hedgerow_client::{Client, ClientOptions, ClientTls, ClientTlsFiles, ClusterName, Table, TableSpec};
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_node::Config;
use hedgerow_node::config::{AuditFile, RightsMode, UserLimits};
use hedgerow_node::os::{Running, State, start};
use hedgerow_node::peer::{Frame, Greeting, take};
use hedgerow_placement::Life;
use hedgerow_storage::{Engines, MemoryEngines};
use hedgerow_tls::{Authority, Issued, Mode, NodeTls, NodeTlsFiles, Stream};
use hedgerow_types::{Incarnation, NodeId};
use ports::reserved_address;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;

const NODES: u16 = 3;
const DAYS: u32 = 30;

/// A cluster, its authority, and a folder with everybody's files.
struct Stage {
    folder: tempfile::TempDir,
    authority: Authority,
    peers: BTreeMap<NodeId, String>,
    nodes: BTreeMap<NodeId, (Running, Option<Arc<NodeTls>>)>,
    rights: RightsMode,
    limits: UserLimits,
    asks_certificates: bool,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (authority, issued) = Authority::create(&cluster(), DAYS, SystemTime::now()).unwrap();
        write(folder.path(), "ca", &issued);
        let peers = (1..=NODES).map(|node| (NodeId(node), reserved_address())).collect();
        let (nodes, rights, limits) = (BTreeMap::new(), RightsMode::Off, UserLimits::default());
        let stage = Self { folder, authority, peers, nodes, rights, limits, asks_certificates: true };
        stage.issue_all();
        stage
    }

    /// New certificates for all nodes and for a client.
    fn issue_all(&self) {
        let now = SystemTime::now();
        for node in 1..=NODES {
            self.write(&format!("node-{node}"), &self.authority.node(node, &[], DAYS, now).unwrap());
        }
        self.write("client", &self.authority.client("app", DAYS, now).unwrap());
    }

    fn write(&self, name: &str, issued: &Issued) {
        write(self.folder.path(), name, issued);
    }

    fn files(&self, node: u16, name: &str) -> NodeTlsFiles {
        let (certificate, key) = pair(self.folder.path(), name);
        let revoked = Some(self.folder.path().join("revoked.pem")).filter(|path| path.exists());
        NodeTlsFiles { cluster: cluster(), node, ca: self.folder.path().join("ca.pem"), certificate, key, revoked }
    }

    fn tls(&self, node: u16, mode: Mode) -> Arc<NodeTls> {
        Arc::new(NodeTls::load(self.files(node, &format!("node-{node}")), mode, self.asks_certificates).unwrap())
    }

    fn start(&mut self, node: u16, mode: Option<Mode>) {
        let data = vec![self.folder.path().join(format!("data-{node}"))];
        let mut config = Config::new(NodeId(node), self.peers.clone(), data, random_u64());
        config.wal.segment_size = 1 << 20;
        config.tls = mode.map(|mode| self.tls(node, mode));
        // What clients see is the same with one and with several.
        config.shards = 1 + usize::from(node) % 3;
        config.io_threads = 1 + usize::from(node + 1) % 3;
        config.rights = self.rights;
        config.user_limits = self.limits;
        config.administrators.insert("root".to_owned());
        let audit = AuditFile { path: self.audit_path(node), size_max: 1 << 20, files: 2 };
        config.audit = (self.rights != RightsMode::Off).then_some(audit);
        let tls = config.tls.clone();
        let engines: Arc<dyn Engines> = Arc::new(MemoryEngines::new(Arc::new(OsDisk)));
        self.nodes.insert(NodeId(node), (start(config, Arc::new(OsDisk), engines).unwrap(), tls));
    }

    fn started(mode: Option<Mode>) -> Self {
        let mut stage = Self::new();
        (1..=NODES).for_each(|node| stage.start(node, mode));
        stage
    }

    async fn wait_until_serving(&self) {
        for (node, _) in self.nodes.values() {
            let state = node.state().wait_for(|it| *it != State::Starting).await.unwrap().clone();
            assert_eq!(state, State::Serving);
        }
    }

    fn stop(&mut self, node: u16) {
        let (running, _) = self.nodes.remove(&NodeId(node)).unwrap();
        running.stop();
        running.join().unwrap();
    }

    fn end(mut self) {
        self.nodes.values().for_each(|(node, _)| node.stop());
        std::mem::take(&mut self.nodes).into_values().for_each(|(node, _)| node.join().unwrap());
    }

    fn client_files(&self, identity: Option<&str>) -> ClientTls {
        let identity = identity.map(|name| pair(self.folder.path(), name));
        ClientTls::load(&ClientTlsFiles {
            cluster: cluster(),
            ca: self.folder.path().join("ca.pem"),
            identity,
            revoked: None,
        })
        .unwrap()
    }

    async fn client(&self, tls: Option<ClientTls>) -> hedgerow_client::Result<Client> {
        let addresses: Vec<&String> = self.peers.values().collect();
        let operation_timeout = Duration::from_secs(60);
        Client::connect_with(&addresses, ClientOptions { operation_timeout, tls, ..ClientOptions::default() }).await
    }

    async fn table(&self, tls: Option<ClientTls>) -> Table {
        let client = self.client(tls).await.unwrap();
        let spec = TableSpec { partition_count: 4, ..TableSpec::default() };
        client.create_table("t", &spec).await.unwrap();
        client.open_table("t").await.unwrap()
    }

    /// A connection with node 1 that shows what `name` has, as a node dials; and what became of it.
    async fn dial(&self, tls: &NodeTls) -> io::Result<Stream> {
        let tcp = TcpStream::connect(&self.peers[&NodeId(1)]).await?;
        let mut handshake = tls.dial(tcp, 1)?;
        while !handshake.is_over() {
            handshake.receive().await?;
            handshake.compute()?;
        }
        handshake.receive().await?;
        Ok(handshake.into_stream())
    }
}

fn cluster() -> ClusterName {
    ClusterName::new("test").unwrap()
}

fn pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.pem")), folder.join(format!("{name}-key.pem")))
}

fn write(folder: &Path, name: &str, issued: &Issued) {
    let (certificate, key) = pair(folder, name);
    std::fs::write(certificate, &issued.certificate).unwrap();
    let _ = std::fs::remove_file(&key);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(key).unwrap();
    io::Write::write_all(&mut file, issued.key.as_bytes()).unwrap();
}

/// What node 2 says when it dials node 1.
fn greeting() -> Vec<u8> {
    greeting_of(2)
}

fn greeting_of(node: u16) -> Vec<u8> {
    let life = Life { incarnation: Incarnation(7), boot: 7, start: 7 };
    Greeting { node, to: 1, cluster: 0, life, logs: Vec::new(), ancestors: Vec::new() }.encode()
}

/// Sends `bytes`, and waits until the other end has closed. What it said before that.
async fn said_before_closing(stream: &Stream, bytes: &[u8]) -> io::Result<BytesMut> {
    assert_eq!(stream.try_write(bytes)?, bytes.len());
    let mut said = BytesMut::new();
    loop {
        if stream.read(&mut said).await? == 0 {
            return Ok(said);
        }
    }
}

/// The other end says nothing and closes, or breaks the connection off.
async fn assert_turned_away(stream: io::Result<Stream>, bytes: &[u8]) {
    let Ok(stream) = stream else { return };
    if let Ok(said) = said_before_closing(&stream, bytes).await {
        assert!(said.is_empty(), "{said:?}");
    }
}

async fn assert_served(table: &Table, value: &str) {
    table.set(value, "s", value.to_owned()).await.unwrap();
    assert_eq!(table.get(value, "s").await.unwrap().unwrap(), value);
}

#[tokio::test]
async fn who_shows_a_certificate_is_served() {
    let mut stage = Stage::started(Some(Mode::Required));
    stage.wait_until_serving().await;
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    let large = vec![7; 1 << 19];
    for number in 0..20 {
        let (small, key) = (format!("value{number}"), format!("k{number}"));
        table.set(&key, "small", small.clone()).await.unwrap();
        table.set(&key, "large", large.clone()).await.unwrap();
        assert_eq!(table.get(&key, "small").await.unwrap().unwrap(), small);
    }
    // Replies that no socket takes at once.
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let reads = keys.iter().map(|key| table.get(key, "large"));
    for read in join_all(reads).await {
        assert!(read.unwrap().unwrap() == large);
    }
    stage.stop(3);
    stage.start(3, Some(Mode::Required));
    stage.wait_until_serving().await;
    assert_served(&table, "after a restart").await;
    stage.end();
}

/// All at once, in this task.
async fn join_all<T>(tasks: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut tasks: Vec<_> = tasks.map(|task| (Some(Box::pin(task)), None)).collect();
    std::future::poll_fn(|context| {
        for (task, result) in &mut tasks {
            if let Some(std::task::Poll::Ready(done)) = task.as_mut().map(|task| task.as_mut().poll(context)) {
                (*task, *result) = (None, Some(done));
            }
        }
        let is_pending = tasks.iter().any(|(task, _)| task.is_some());
        if is_pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    tasks.into_iter().map(|(_, result)| result.unwrap()).collect()
}

#[tokio::test]
async fn forgers_get_nowhere() {
    let stage = Stage::started(Some(Mode::Required));
    stage.wait_until_serving().await;
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    let now = SystemTime::now();
    let other = Stage::new();

    // Without TLS.
    let plain = TcpStream::connect(&stage.peers[&NodeId(1)]).await.map(Stream::plain);
    assert_turned_away(plain, &greeting()).await;
    let error = stage.client(None).await.unwrap_err().to_string();
    assert!(error.contains("does it want TLS?"), "{error}");

    // With another authority's certificate: the dialler would not believe this node either, so that it takes this one's word for that.
    let mixed = Stage { folder: tempfile::tempdir().unwrap(), ..Stage::new() };
    std::fs::copy(stage.folder.path().join("ca.pem"), mixed.folder.path().join("ca.pem")).unwrap();
    mixed.write("node-2", &other.authority.node(2, &[], DAYS, now).unwrap());
    let foreign = NodeTls::load(mixed.files(2, "node-2"), Mode::Required, true).unwrap_err().to_string();
    assert!(foreign.contains("was not issued by the authority that is given"), "{foreign}");
    let foreign = NodeTls::load(other.files(2, "node-2"), Mode::Required, true).unwrap();
    assert!(stage.dial(&foreign).await.is_err(), "it must not believe node 1");
    mixed.write("client", &other.authority.client("app", DAYS, now).unwrap());
    assert!(stage.client(Some(mixed.client_files(Some("client")))).await.is_err());

    // With no certificate, an expired one, another node's, a client's.
    let error = stage.client(Some(stage.client_files(None))).await.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    let long_ago = now - Duration::from_secs(3 * 24 * 3_600);
    stage.write("client-old", &stage.authority.client("old", 1, long_ago).unwrap());
    let error = stage.client(Some(stage.client_files(Some("client-old")))).await.unwrap_err().to_string();
    assert!(error.contains("CertificateExpired"), "{error}");
    stage.write("node-old", &stage.authority.node(2, &[], 1, long_ago).unwrap());
    let error = NodeTls::load(stage.files(2, "node-old"), Mode::Required, true).unwrap_err().to_string();
    assert!(error.ends_with("node-old.pem has expired"), "{error}");
    let third = stage.tls(3, Mode::Required);
    assert_turned_away(stage.dial(&third).await, &greeting()).await;
    let (tcp, client) =
        (TcpStream::connect(&stage.peers[&NodeId(1)]).await.unwrap(), stage.client_files(Some("client")));
    assert_turned_away(client.connect(tcp).await, &greeting()).await;

    // Of the cluster, and of a number that no node's configuration has: it is told so, and nothing that it says is kept.
    stage.write("node-9", &stage.authority.node(9, &[], DAYS, now).unwrap());
    let ninth = stage.tls(9, Mode::Required);
    let said = said_before_closing(&stage.dial(&ninth).await.unwrap(), &greeting_of(9)).await.unwrap();
    let answer = take(&mut BytesMut::from(&said[..])).unwrap();
    assert!(matches!(&answer, Some(Frame::Refused(refused)) if refused.reason == 8), "{answer:?}");

    // The right one is listened to, and told what is wrong with what it says.
    let second = stage.tls(2, Mode::Required);
    let said = said_before_closing(&stage.dial(&second).await.unwrap(), &greeting()).await.unwrap();
    assert!(!said.is_empty());

    assert_served(&table, "in spite of them").await;
    stage.end();
}

#[tokio::test]
async fn another_clusters_certificates_are_none_of_ours_whoever_issued_them() {
    let stage = Stage::started(Some(Mode::Required));
    stage.wait_until_serving().await;
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    let now = SystemTime::now();
    let (elsewhere, issued) = Authority::create(&ClusterName::new("elsewhere").unwrap(), DAYS, now).unwrap();
    // Both authorities are believed, as where two clusters have one.
    let ca = stage.folder.path().join("ca.pem");
    let both = std::fs::read_to_string(&ca).unwrap() + &issued.certificate;
    std::fs::write(&ca, both).unwrap();
    stage.nodes.values().for_each(|(_, tls)| tls.as_ref().unwrap().reload().unwrap());
    stage.write("client-of-others", &elsewhere.client("app", DAYS, now).unwrap());
    assert!(stage.client(Some(stage.client_files(Some("client-of-others")))).await.is_err());
    stage.write("node-of-others", &elsewhere.node(2, &[], DAYS, now).unwrap());
    let (certificate, key) = pair(stage.folder.path(), "node-of-others");
    let named = ClusterName::new("elsewhere").unwrap();
    let files = NodeTlsFiles { cluster: named, node: 2, ca, certificate, key, revoked: None };
    let other = NodeTls::load(files, Mode::Required, true).unwrap();
    assert_turned_away(stage.dial(&other).await, &greeting()).await;
    assert_served(&table, "own ones").await;
    stage.end();
}

#[tokio::test]
async fn a_running_cluster_changes_over_to_tls_and_back() {
    let mut stage = Stage::started(None);
    stage.wait_until_serving().await;
    let plain = stage.table(None).await;
    let mut before = None;
    for mode in [Some(Mode::Permissive), Some(Mode::Required), Some(Mode::Permissive), None] {
        for node in 1..=NODES {
            stage.stop(node);
            stage.start(node, mode);
            stage.wait_until_serving().await;
            if before != Some(Mode::Required) && mode != Some(Mode::Required) {
                assert_served(&plain, &format!("{mode:?} {node} without TLS")).await;
            }
        }
        before = mode;
        if mode.is_some() {
            let client = stage.client(Some(stage.client_files(Some("client")))).await.unwrap();
            assert_served(&client.open_table("t").await.unwrap(), &format!("{mode:?} with TLS")).await;
        }
    }
    assert_served(&plain, "at the end").await;
    stage.end();
}

#[tokio::test]
async fn certificates_change_without_a_failed_request() {
    let stage = Stage::started(Some(Mode::Required));
    stage.wait_until_serving().await;
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    for round in 0..3 {
        stage.issue_all();
        for (running, tls) in stage.nodes.values() {
            tls.as_ref().unwrap().reload().unwrap();
            assert_eq!(*running.state().borrow(), State::Serving);
            assert_served(&table, &format!("round {round}")).await;
        }
        let client = stage.client(Some(stage.client_files(Some("client")))).await.unwrap();
        assert_served(&client.open_table("t").await.unwrap(), &format!("round {round}, new connection")).await;
    }
    // What is wrong is not taken.
    stage.write("node-1", &stage.authority.node(2, &[], DAYS, SystemTime::now()).unwrap());
    let tls = stage.nodes[&NodeId(1)].1.clone().unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("not for node-1.test.hedgerow.internal"), "{error}");
    let client = stage.client(Some(stage.client_files(Some("client")))).await.unwrap();
    assert_served(&client.open_table("t").await.unwrap(), "with what there was").await;
    stage.end();
}

/// What a client says first.
async fn client_hello(stage: &Stage) -> Vec<u8> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let client = stage.client_files(Some("client"));
    let mut hello = BytesMut::new();
    let heard = Stream::plain(accepted);
    tokio::select! {
        _ = client.connect(tcp) => panic!("nobody answered"),
        read = heard.read(&mut hello) => drop(read.unwrap()),
    }
    hello.to_vec()
}

#[tokio::test]
async fn handshakes_that_never_end_hold_nobody_up() {
    let stage = Stage::started(Some(Mode::Required));
    stage.wait_until_serving().await;
    // The beginning of a handshake, nothing at all, and what is none.
    let begun: [&[u8]; 4] = [&[0x16], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc], b"", &[0x16, 3, 3, 0, 5, 9, 9, 9, 9, 9]];
    let mut held = Vec::new();
    for number in 0..400 {
        let stream = TcpStream::connect(&stage.peers[&NodeId(1 + number % NODES)]).await.unwrap();
        let _ = stream.try_write(begun[usize::from(number) % begun.len()]);
        held.push(stream);
    }
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    for number in 0..50 {
        assert_served(&table, &format!("value{number}")).await;
    }
    // Nor do those that are begun and given up, a hundred at a time.
    let hello = client_hello(&stage).await;
    for number in 0..2_000 {
        let stream = TcpStream::connect(&stage.peers[&NodeId(1)]).await.unwrap();
        let _ = stream.try_write(&hello);
        if number % 100 == 0 {
            assert_served(&table, &format!("after {number}")).await;
        }
    }
    drop(held);
    stage.end();
}
