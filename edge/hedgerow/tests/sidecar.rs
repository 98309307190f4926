//! `hedgerow sidecar` in front of nodes with certificates: clients without any are served, and what goes wrong costs one connection and is told.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use bytes::{Bytes, BytesMut};
use hedgerow_testkit::{Cluster, Node, ROOT, Settings, USER};
use hedgerow_wire::call::{ReplyFrame, decode_reply, encode_request_v0, reply_frame_size};
use hedgerow_wire::message::{GetReply, QueryConfig};
use hedgerow_wire::{Body, Header, Reply};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_hedgerow");
/// Far more than anything here needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);

fn cluster(nodes: usize) -> Cluster {
    Cluster::start_with(Settings { has_tls: true, ..Settings::of_binary(BINARY.into(), nodes) }).unwrap()
}

/// Certificates by their names among the options of a command.
fn options(folder: &Path, ca: &Path, client: &str) -> Vec<PathBuf> {
    let file = |name: &str| folder.join(format!("{name}.pem"));
    let words = ["--tls-ca", "--tls-certificate", "--tls-key"];
    let files = [ca.to_owned(), file(client), file(&format!("{client}-key"))];
    words.into_iter().zip(files).flat_map(|(word, file)| [word.into(), file]).collect()
}

/// Those of another authority, for a cluster of the same name.
fn make_certificates(folder: &Path) {
    for words in ["authority --cluster testkit", "client test"] {
        let mut command = Command::new(BINARY);
        let made = command.arg("certificate").args(words.split(' ')).arg("--directory").arg(folder).output();
        assert!(made.unwrap().status.success());
    }
}

struct Sidecar {
    process: Node,
    address: String,
}

impl Sidecar {
    /// In front of `cluster`, with its own client's certificate.
    fn start(cluster: &Cluster) -> Self {
        let files = cluster.client_tls().unwrap();
        Self::start_with(cluster, &options(files.ca.parent().unwrap(), &files.ca, USER))
    }

    fn start_with(cluster: &Cluster, tls: &[PathBuf]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["sidecar", "--listen", "127.0.0.1:0", "--cluster", &cluster.addresses().join(",")]).args(tls);
        let process = Node::spawn(command).unwrap();
        process.wait_ready(LIMIT).unwrap();
        let said = process.output();
        let ready = said.lines().find_map(|line| line.strip_prefix("ready: ")).unwrap();
        let address = ready.split(' ').next().unwrap().to_owned();
        Self { process, address }
    }

    /// Waits until it has said `text`.
    fn wait_for(&self, text: &str) {
        let end = Instant::now() + LIMIT;
        while !self.process.output().contains(text) {
            assert!(Instant::now() < end, "it did not say {text:?}: {}", self.process.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A command of a client without certificates.
    fn run(&self, words: &[&str]) -> Output {
        Command::new(BINARY).args(words).args(["--cluster", &self.address]).output().unwrap()
    }

    fn printed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", self.process.output());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn connect(&self) -> TcpStream {
        connect(self.address.parse().unwrap())
    }

    /// Has it read its files anew.
    fn hang_up(&self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }

    fn end(mut self) {
        assert_eq!(self.process.terminate(LIMIT).unwrap().code(), Some(0));
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A call as Pegasus' Python and Go clients send it.
fn call(app_id: i32, partition_index: i32, body: &Body) -> BytesMut {
    let mut frame = BytesMut::new();
    encode_request_v0(
        &mut frame,
        &Header { app_id, partition_index, timeout_ms: 10_000, ..Header::default() },
        7,
        body,
    );
    frame
}

fn read_reply(stream: &mut TcpStream) -> ReplyFrame {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).unwrap();
    let size = reply_frame_size(&frame).unwrap().unwrap();
    frame.resize(size, 0);
    stream.read_exact(&mut frame[4..]).unwrap();
    decode_reply(frame.into()).unwrap()
}

fn query(table: &str) -> Body {
    Body::QueryConfig(QueryConfig { app_name: table.into(), ..QueryConfig::default() })
}

/// A full key: the hash key with its length before it, and the sort key.
fn get(hash_key: &str, sort_key: &str) -> Body {
    let length = u16::try_from(hash_key.len()).unwrap().to_be_bytes();
    Body::Get(Bytes::from([&length, hash_key.as_bytes(), sort_key.as_bytes()].concat()))
}

/// What clients are told of a table.
struct Map {
    app_id: i32,
    leaders: Vec<SocketAddr>,
    others: Vec<SocketAddr>,
}

impl Map {
    /// Every address in it.
    fn named(&self) -> BTreeSet<SocketAddr> {
        self.leaders.iter().chain(&self.others).copied().collect()
    }
}

fn map(sidecar: &Sidecar, table: &str) -> Map {
    let mut meta = sidecar.connect();
    meta.write_all(&call(0, 0, &query(table))).unwrap();
    let Reply::QueryConfig(map) = read_reply(&mut meta).reply else { panic!("no map") };
    let socket = |address: &hedgerow_wire::Address| SocketAddr::V4(address.socket().unwrap());
    let leaders = map.partitions.iter().map(|partition| socket(&partition.primary)).collect();
    let others = map.partitions.iter().flat_map(|partition| &partition.secondaries).map(socket).collect();
    Map { app_id: map.app_id, leaders, others }
}

#[test]
fn clients_without_tls_are_served_and_a_restart_is_survived() {
    let mut cluster = cluster(3);
    let sidecar = Sidecar::start(&cluster);
    sidecar.printed(&["table", "create", "t", "--partitions", "4"]);
    let keys: Vec<String> = (0..20).map(|number| format!("key{number}")).collect();
    for key in &keys {
        sidecar.printed(&["set", "t", key, "s", &format!("of {key}")]);
    }
    let check =
        || keys.iter().for_each(|key| assert_eq!(sidecar.printed(&["get", "t", key, "s"]), format!("of {key}")));
    check();
    assert_eq!(sidecar.printed(&["scan", "t"]).lines().count(), keys.len());

    // What a client is told lies on this machine, and is what the sidecar has said of the three nodes.
    let named = map(&sidecar, "t").named();
    assert_eq!(named.len(), 3, "{named:?}");
    let said = sidecar.process.output();
    let stands_for = |address: &SocketAddr, node: &str| said.contains(&format!("{address} stands for {node}"));
    for address in &named {
        assert_eq!(cluster.addresses().iter().filter(|node| stands_for(address, node)).count(), 1, "{address}: {said}");
    }

    cluster.kill(2).unwrap();
    check();
    cluster.restart(2).unwrap();
    cluster.run(&["status", "--wait", "60"]).unwrap();
    cluster.run(&["table", "transfer", "t", "0", "2"]).unwrap();
    check();
    assert_eq!(map(&sidecar, "t").named(), named, "ports stay");
    sidecar.end();
    cluster.stop().unwrap();
}

/// Who has a password and no certificate. When it is changed, the sidecar's connections end, and it reads the new one when it is told to.
#[test]
fn a_user_with_a_password_runs_one() {
    let settings = Settings { has_tls: true, ..Settings::of_binary(BINARY.into(), 3) };
    let cluster = Cluster::start_with(Settings { has_rights: true, has_passwords: true, ..settings }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let write = |text: &str| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("a long password\n");
    let path = file.display().to_string();
    let root = |words: &[&str]| cluster.run_as(ROOT, words).unwrap();
    root(&["table", "create", "t", "--partitions", "4"]);
    root(&["user", "add", "app", "--new-password-file", &path]);
    root(&["grant", "app", "read:t", "write:t"]);
    let ca = cluster.client_tls().unwrap().ca;
    let words = ["--tls-ca".into(), ca, "--user".into(), "app".into(), "--password-file".into(), file.clone()];
    let sidecar = Sidecar::start_with(&cluster, &words);
    sidecar.printed(&["set", "t", "h", "s", "v"]);
    assert_eq!(sidecar.printed(&["get", "t", "h", "s"]), "v");
    let refused = sidecar.run(&["table", "drop", "t"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("user \"app\" has not been given admin:t"), "its rights count: {said}");

    write("another password\n");
    root(&["user", "password", "app", "--new-password-file", &path]);
    // Told of by the node that is asked first as soon as its catalogue is new.
    while sidecar.run(&["get", "t", "h", "s"]).status.success() {}
    sidecar.wait_for("the password is wrong, or there is no such user");
    sidecar.hang_up();
    sidecar.wait_for("certificates and the password were read anew");
    assert_eq!(sidecar.printed(&["get", "t", "h", "s"]), "v");
    sidecar.end();
}

#[test]
fn who_does_not_read_or_speaks_nonsense_costs_one_connection() {
    let cluster = cluster(1);
    let sidecar = Sidecar::start(&cluster);
    sidecar.printed(&["table", "create", "t", "--partitions", "2", "--replicas", "1"]);
    let value = "x".repeat(100_000);
    sidecar.printed(&["set", "t", "h", "s", &value]);
    let Map { app_id, leaders, .. } = map(&sidecar, "t");

    // The partition is asked for by whoever knows the key; the other one has none.
    let question = |partition: i32| call(app_id, partition, &get("h", "s"));
    let found = |partition: i32| {
        let mut stream = connect(leaders[0]);
        stream.write_all(&question(partition)).unwrap();
        let reply = read_reply(&mut stream).reply;
        // A client that says no more has gone, for a node: it ends as well.
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        let Reply::Get(GetReply { value, .. }) = reply else { return 0 };
        value.len()
    };
    let partition = (0..2).find(|partition| found(*partition) == value.len()).unwrap();

    // 300 MB of replies that nobody reads.
    let mut greedy = connect(leaders[0]);
    greedy.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = greedy.write_all(&question(partition).repeat(3000));
    let mut nonsense = sidecar.connect();
    nonsense.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(matches!(nonsense.read(&mut [0]), Ok(0) | Err(_)));
    for _ in 0..20 {
        assert_eq!(found(partition), value.len());
    }
    let resident = sidecar.process.resident_bytes().unwrap();
    assert!(resident < 100 << 20, "{resident} bytes");
    // It gets them all the same.
    for _ in 0..100 {
        let Reply::Get(reply) = read_reply(&mut greedy).reply else { panic!("no value") };
        assert_eq!(reply.value.len(), value.len());
    }
    sidecar.end();
}

#[test]
fn certificates_that_are_not_believed_are_told_and_end_nothing_else() {
    let cluster = cluster(1);
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let files = cluster.client_tls().unwrap();
    let (home, foreign) = (files.ca.parent().unwrap(), folder.path());
    for (tls, expected) in [
        (
            options(foreign, &foreign.join("ca.pem"), "client-test"),
            "the other end's certificate is not of an authority that this end has",
        ),
        (options(foreign, &files.ca, "client-test"), "the other end does not believe this end's certificate"),
        (options(home, &files.ca, USER)[..2].to_vec(), "the other end wants a certificate"),
    ] {
        let sidecar = Sidecar::start_with(&cluster, &tls);
        let turned_away = sidecar.run(&["get", "t", "h", "s", "--timeout", "1"]);
        assert_eq!(turned_away.status.code(), Some(3), "{turned_away:?}");
        sidecar.wait_for(expected);
        sidecar.wait_for(cluster.addresses()[0]);
        sidecar.end();
    }
}

#[test]
fn certificates_are_read_anew_while_clients_are_served() {
    let cluster = cluster(1);
    cluster.run(&["table", "create", "t", "--partitions", "2", "--replicas", "1"]).unwrap();
    cluster.run(&["set", "t", "h", "s", "v"]).unwrap();
    let files = cluster.client_tls().unwrap();
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let (certificate, key) = files.identity.unwrap();
    let own = |name: &str| folder.path().join(name);
    let sidecar = Sidecar::start_with(&cluster, &options(folder.path(), &files.ca, "client-test"));
    assert_eq!(sidecar.run(&["get", "t", "h", "s", "--timeout", "1"]).status.code(), Some(3));
    std::fs::copy(certificate, own("client-test.pem")).unwrap();
    sidecar.hang_up();
    sidecar.wait_for("certificates and the password stay as they were");
    std::fs::copy(key, own("client-test-key.pem")).unwrap();
    sidecar.hang_up();
    sidecar.wait_for("certificates and the password were read anew");
    assert_eq!(sidecar.printed(&["get", "t", "h", "s"]), "v");
    sidecar.end();
}

#[test]
fn a_sidecar_that_is_open_or_of_no_use_does_not_start() {
    let cluster = cluster(1);
    let files = cluster.client_tls().unwrap();
    let tls = options(files.ca.parent().unwrap(), &files.ca, USER);
    let node = cluster.addresses()[0].to_owned();
    for (listen, tls, expected) in [
        ("127.0.0.1:0", &tls[..0], "without --tls-ca there is nothing to do"),
        ("0.0.0.0:0", &tls[..], "clients are told this address"),
        ("192.0.2.1:34601", &tls[..], "--insecure-listen says that you know"),
        (node.as_str(), &tls[..], "listening at"),
    ] {
        let mut command = Command::new(BINARY);
        let ended = command.args(["sidecar", "--listen", listen, "--cluster", &node]).args(tls).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(ended.status.code() == Some(2) && said.contains(expected), "{listen}: {said}");
    }
}

#[test]
fn a_node_that_is_down_is_told_and_does_not_hold_up_others() {
    let mut cluster = cluster(3);
    cluster.run(&["table", "create", "t", "--partitions", "2"]).unwrap();
    let sidecar = Sidecar::start(&cluster);
    sidecar.printed(&["set", "t", "h", "s", "v"]);
    // The first one is asked first by whoever looks for the meta server.
    cluster.kill(1).unwrap();
    assert_eq!(sidecar.printed(&["get", "t", "h", "s"]), "v");
    let node = cluster.addresses()[0].to_owned();
    let said = sidecar.process.output();
    let near = said.lines().find_map(|line| line.strip_suffix(&format!(" stands for {node}"))).unwrap();
    assert!(matches!(connect(near.parse().unwrap()).read(&mut [0]), Ok(0) | Err(_)));
    sidecar.wait_for(&format!("connecting to {node}: Connection refused"));
    sidecar.end();
}
