//! Certificates that are revoked while their owners are connected.

use crate::{DAYS, Stage, assert_served, assert_turned_away, greeting};
use bytes::BytesMut;
use hedgerow_client::{Client, ClientOptions, ClientTlsFiles, ErrorKind};
use hedgerow_node::config::RightsMode;
use hedgerow_tls::{Authority, ClientTls, Mode, NodeTls, Stream};
use hedgerow_types::NodeId;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Far more than it takes; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(30);

impl Stage {
    fn list(&self) -> PathBuf {
        self.folder.path().join("revoked.pem")
    }

    /// Puts the certificates in these files on the list.
    fn revoke(&self, names: &[&str]) {
        let serial = |name: &&str| {
            let text = std::fs::read_to_string(self.folder.path().join(format!("{name}.pem"))).unwrap();
            self.authority.serials_of(name, &text).unwrap().remove(0)
        };
        let before = std::fs::read_to_string(self.list()).ok();
        let serials: Vec<Vec<u8>> = names.iter().map(serial).collect();
        let (list, ..) = self.authority.revoke(before.as_deref(), &serials, SystemTime::now()).unwrap();
        std::fs::write(self.list(), list).unwrap();
    }

    fn reload(&self, node: u16) -> Result<(), String> {
        self.nodes[&NodeId(node)].1.as_ref().unwrap().reload().map_err(|error| error.to_string())
    }

    fn client_with_list(&self) -> ClientTls {
        let files = ClientTlsFiles {
            cluster: crate::cluster(),
            ca: self.folder.path().join("ca.pem"),
            identity: Some(crate::pair(self.folder.path(), "client")),
            revoked: Some(self.list()),
        };
        ClientTls::load(&files).unwrap()
    }

    /// A connection with each node, on which nothing is said.
    async fn connections(&self, name: &str) -> Vec<Stream> {
        let tls = self.client_files(Some(name));
        let mut connections = Vec::new();
        for address in self.peers.values() {
            let stream = tls.connect(TcpStream::connect(address).await.unwrap()).await.unwrap();
            // Whoever says nothing makes room for others. This is the beginning of a frame.
            assert_eq!(stream.try_write(b"THFT").unwrap(), 4);
            connections.push(stream);
        }
        connections
    }
}

async fn assert_closed(stream: &Stream) {
    let closed = timeout(LIMIT, stream.read(&mut BytesMut::new())).await.expect("it is closed");
    assert!(closed.is_err() || closed.is_ok_and(|read| read == 0));
}

async fn started() -> Stage {
    let mut stage = Stage::new();
    stage.revoke(&[]);
    stage.write("other", &stage.authority.client("other", DAYS, SystemTime::now()).unwrap());
    (1..=3).for_each(|node| stage.start(node, Some(Mode::Required)));
    stage.wait_until_serving().await;
    stage
}

#[tokio::test]
async fn a_client_that_is_revoked_is_disconnected_and_others_are_not() {
    let stage = started().await;
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    let other = stage.client(Some(stage.client_files(Some("other")))).await.unwrap().open_table("t").await.unwrap();
    let revoked = stage.connections("client").await;
    let kept = stage.connections("other").await;
    assert_served(&table, "before").await;

    stage.revoke(&["client"]);
    (1..=3).for_each(|node| stage.reload(node).unwrap());
    for stream in &revoked {
        assert_closed(stream).await;
    }
    let error = stage.client(Some(stage.client_files(Some("client")))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAllowed);
    assert!(error.message().contains("this end's certificate has been revoked"), "{error}");
    // Its connections may be another thread's, which looks at its own a moment later.
    let answer = || timeout(Duration::from_secs(2), table.get("before", "s"));
    let is_refused = async { while matches!(answer().await, Ok(Ok(_))) {} };
    timeout(LIMIT, is_refused).await.expect("its connections are closed");
    assert_served(&other, "by somebody else").await;
    for stream in &kept {
        assert!(timeout(Duration::from_millis(100), stream.read(&mut BytesMut::new())).await.is_err(), "it is open");
    }
    // Another certificate of the same name.
    stage.write("client", &stage.authority.client("app", DAYS, SystemTime::now()).unwrap());
    let client = stage.client(Some(stage.client_files(Some("client")))).await.unwrap();
    assert_served(&client.open_table("t").await.unwrap(), "with a new one").await;
    stage.end();
}

#[tokio::test]
async fn a_node_that_is_revoked_is_spoken_with_no_more() {
    let stage = started().await;
    let client = stage.client(Some(stage.client_files(Some("client")))).await.unwrap();
    let table = stage.table(Some(stage.client_files(Some("client")))).await;
    let third = stage.tls(3, Mode::Required);
    stage.revoke(&["node-3"]);
    for node in 1..=3 {
        stage.reload(node).unwrap();
        assert_eq!(stage.nodes[&NodeId(node)].1.as_ref().unwrap().is_own_revoked(), node == 3);
    }
    assert_turned_away(stage.dial(&third).await, &greeting()).await;
    let is_dead = async {
        loop {
            // The third says that the others are gone, or that it does not know.
            if let Ok(status) = client.status().await
                && status.nodes.iter().any(|node| node.node == 3 && node.state == "dead")
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LIMIT, is_dead).await.expect("its connections are closed");
    assert_served(&table, "by the two that are left").await;
    // A client that has the list believes it no more either.
    let tls = stage.client_with_list();
    let connect = |node: u16| TcpStream::connect(stage.peers[&NodeId(node)].clone());
    let error = tls.connect(connect(3).await.unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("the other end's certificate has been revoked"), "{error}");
    tls.connect(connect(1).await.unwrap()).await.unwrap();
    stage.end();
}

#[tokio::test]
async fn who_does_not_believe_the_leader_is_told_so() {
    let stage = started().await;
    stage.table(Some(stage.client_files(Some("client")))).await;
    stage.revoke(&["node-1", "node-2"]);
    // The nodes have not read it: they go on as before.
    let tls = stage.client_with_list();
    let options =
        ClientOptions { operation_timeout: Duration::from_secs(2), tls: Some(tls), ..ClientOptions::default() };
    let client = Client::connect_with(&[&stage.peers[&NodeId(3)]], options).await.unwrap();
    let table = client.open_table("t").await.unwrap();
    let mut served = 0;
    for key in 0..100 {
        match table.get(format!("key {key}"), "s").await {
            Ok(_) => served += 1,
            Err(error) => {
                assert!(error.message().contains("the other end's certificate has been revoked"), "{error}");
                return stage.end();
            }
        }
    }
    panic!("nodes that are not believed lead nothing: {served} reads were served");
}

#[test]
fn a_list_that_would_forbid_nothing_is_refused() {
    let stage = Stage { rights: RightsMode::Off, ..Stage::new() };
    let load = |node: u16| NodeTls::load(stage.files(node, &format!("node-{node}")), Mode::Required, true);
    let refused = |list: &str| {
        std::fs::write(stage.list(), list).unwrap();
        load(1).unwrap_err().to_string()
    };
    let now = SystemTime::now();
    let (other, _) = Authority::create(&crate::cluster(), DAYS, now).unwrap();
    let (foreign, ..) = other.revoke(None, &[vec![1]], now).unwrap();
    let (own, ..) = stage.authority.revoke(None, &[vec![1]], now).unwrap();
    assert!(refused("").ends_with("holds no list of revoked certificates in PEM form (\"-----BEGIN ...\")"));
    assert!(refused(&foreign).ends_with("holds no list of an authority that is given, and would forbid nothing"));
    // A signature with another last character.
    let end = own.find("\n-----END").unwrap();
    let place = own[..end].trim_end_matches('=').len() - 4;
    let changed = if &own[place..=place] == "A" { "B" } else { "A" };
    let error = refused(&format!("{}{changed}{}", &own[..place], &own[place + 1..]));
    assert!(error.ends_with("holds a list that its authority has not signed, or that was changed since"), "{error}");
    // A former authority's beside it, as while the authority is changed.
    for (lists, count) in [(own.clone(), 1), (format!("{own}{foreign}"), 2), (format!("{own}{own}"), 1)] {
        std::fs::write(stage.list(), lists).unwrap();
        assert_eq!(load(1).unwrap().revoked_count(), count);
    }
    std::fs::remove_file(stage.list()).unwrap();
    stage.revoke(&["node-1"]);
    assert!(load(1).unwrap_err().to_string().ends_with("node-1.pem has been revoked"));
    load(2).unwrap();
}
