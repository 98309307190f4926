//! Two ends on this machine: what one writes the other reads, however slowly, and who does not fit is told.
#![allow(clippy::unwrap_used, reason = "a test fails where it fails")]
#![allow(clippy::disallowed_methods, reason = "a test writes an operator's files and talks to the network by itself")]

use bytes::BytesMut;
use hedgerow_tls::{
    Authority, ClientTls, ClientTlsFiles, ClusterName, Mode, NodeTls, NodeTlsFiles, Stream, is_disbelief,
    is_nothing_yet,
};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio::net::{TcpListener, TcpStream};

const SIZE: usize = 8 << 20;

/// Node 1 of a cluster, and a client with a certificate.
struct Two {
    _folder: tempfile::TempDir,
    node: NodeTls,
    client: ClientTls,
}

impl Two {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (cluster, now) = (ClusterName::new("test").unwrap(), SystemTime::now());
        let (authority, issued) = Authority::create(&cluster, 1, now).unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("ca"), &issued.certificate);
        let pair = |name: &str, issued: hedgerow_tls::Issued| -> (PathBuf, PathBuf) {
            let (certificate, key) = (path(name), path(&format!("{name}-key")));
            write(&certificate, &issued.certificate);
            write(&key, &issued.key);
            (certificate, key)
        };
        let (certificate, key) = pair("node", authority.node(1, &["127.0.0.1".to_owned()], 1, now).unwrap());
        let identity = Some(pair("client", authority.client("app", 1, now).unwrap()));
        let files = NodeTlsFiles { cluster: cluster.clone(), node: 1, ca: path("ca"), certificate, key, revoked: None };
        let node = NodeTls::load(files, Mode::Required, true).unwrap();
        let client = ClientTls::load(&ClientTlsFiles { cluster, ca: path("ca"), identity, revoked: None }).unwrap();
        Self { _folder: folder, node, client }
    }

    /// The client's end of a connection and the node's.
    async fn connect(&self) -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let (client, node) = tokio::join!(self.client.connect(tcp), self.node.accept(accepted).unwrap().finish());
        (client.unwrap(), node.unwrap())
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|index| (index * 31 + index / 4_096) as u8).collect()
}

/// Reads until it has `size` bytes, so many at a time at most.
async fn read(stream: &Stream, size: usize, at_a_time: usize) -> BytesMut {
    let mut read = BytesMut::new();
    while read.len() < size {
        stream.readable().await.unwrap();
        match stream.try_read(&mut read, at_a_time) {
            Ok(0) => panic!("it ended after {} bytes", read.len()),
            Err(error) if is_nothing_yet(&error) => {}
            result => assert!(result.unwrap() <= at_a_time),
        }
    }
    read
}

#[tokio::test]
async fn both_ends_write_megabytes_at_once_and_all_arrives_in_order() {
    let two = Two::new();
    let (client, node) = two.connect().await;
    assert!(client.is_secure() && node.certificates().len() == 1);
    let sent = pattern();
    for at_a_time in [1 << 20, 1_000] {
        let (to_node, to_client, first, second) = tokio::join!(
            client.write_all(&sent),
            node.write_all(&sent),
            read(&node, SIZE, at_a_time),
            read(&client, SIZE, at_a_time),
        );
        to_node.unwrap();
        to_client.unwrap();
        assert!(first == sent && second == sent);
    }
}

#[tokio::test]
async fn who_does_not_read_costs_a_bounded_part() {
    let two = Two::new();
    let (client, node) = two.connect().await;
    let sent = pattern();
    let mut count = 0;
    // Until the socket takes no more, as the node does it. What it says that it has taken is what arrives.
    let refused = loop {
        match node.try_write(&sent[count..]) {
            Ok(taken) => count += taken,
            Err(error) => break error,
        }
        assert!(count < SIZE, "the socket took everything");
    };
    assert!(refused.kind() == io::ErrorKind::WouldBlock && node.has_unsent());
    let before = count;
    assert_eq!(node.try_write(&sent[count..]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let (rest, got) = tokio::join!(node.write_all(&sent[before..]), read(&client, SIZE, 64 << 10));
    rest.unwrap();
    assert!(got == sent && !node.has_unsent());
}

#[tokio::test]
async fn an_end_is_an_end_whether_it_is_said_or_not() {
    let two = Two::new();
    for is_said in [true, false] {
        let (client, node) = two.connect().await;
        client.write_all(b"last words").await.unwrap();
        if is_said {
            client.say_end();
        } else {
            drop(client);
        }
        let mut heard = BytesMut::new();
        while node.read(&mut heard).await.unwrap() > 0 {}
        assert_eq!(&heard[..], b"last words");
        // What is asked again says the same, and waits for nothing.
        assert_eq!(node.read(&mut heard).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn what_is_no_handshake_is_told_and_a_changed_byte_ends_a_connection() {
    let two = Two::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    tcp.try_write(b"THFT is how a client's frame begins").unwrap();
    let error = two.node.accept(accepted).unwrap().finish().await.unwrap_err();
    assert!(is_disbelief(&error), "{error:?}");

    let (client, node) = two.connect().await;
    // Bytes that nobody encrypted, in the middle of a connection.
    client
        .tcp()
        .try_write(&[0x17, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
        .unwrap();
    let error = node.read(&mut BytesMut::new()).await.unwrap_err();
    assert!(is_disbelief(&error), "{error:?}");
}
