//! What commands say where something is not as it should be, and the codes that they end with.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::{Cluster, Settings, reserve_port};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_hedgerow");
/// Far more than a node needs to start; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);

/// A wait that ended told of the time that was over instead of what was waited for.
#[test]
fn a_wait_for_a_cluster_that_is_not_founded_ends_with_the_reason() {
    let mut cluster = Cluster::prepare(Settings::of_binary(BINARY.into(), 3)).unwrap();
    cluster.spawn(1).unwrap();
    // The node may not listen yet: another wait begins then.
    let said = loop {
        let said = cluster.run(&["status", "--wait", "3"]).unwrap_err().to_string();
        if !said.contains("refused") {
            break said;
        }
    };
    assert!(said.contains("no answer yet from 2, 3 of meta_nodes"), "{said}");
    assert!(said.contains("exit status: 3") && !said.contains("elapsed"), "{said}");
    let said = cluster.run(&["table", "create", "t"]).unwrap_err().to_string();
    assert!(said.contains("no answer yet from 2, 3 of meta_nodes") && said.contains("exit status: 3"), "{said}");
}

/// The port of a node was an outgoing connection's for a moment, and the node ended with a code after which nobody started it again.
#[test]
fn a_node_waits_for_an_address_that_is_in_use() {
    let settings = Settings { log: None, ..Settings::of_binary(BINARY.into(), 1) };
    let mut cluster = Cluster::prepare(settings).unwrap();
    let other = TcpListener::bind(cluster.listen_address(1)).unwrap();
    cluster.spawn(1).unwrap();
    while !cluster.output().contains("the node's address is in use: waiting for it") {
        assert!(cluster.node(1).unwrap().is_running().unwrap(), "{}", cluster.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(other);
    cluster.node(1).unwrap().wait_ready(LIMIT).unwrap();
}

#[test]
fn a_cluster_to_try_things_out_does_not_wait_for_a_port() {
    let port = reserve_port().unwrap();
    let address = format!("127.0.0.1:{}", port.number);
    let _other = TcpListener::bind(&address).unwrap();
    let output = Command::new(BINARY).args(["dev", "--nodes", "1", "--listen", &address]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}")) && !said.contains("waiting"), "{said}");
    assert!(said.contains("another process listens there") && said.contains("ip_local_reserved_ports"), "{said}");
}

#[test]
fn ports_that_are_not_there_are_a_wrong_command_line() {
    let output = Command::new(BINARY).args(["dev", "--listen", "127.0.0.1:65535"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("go beyond port 65535"), "{said}");
}

#[test]
fn an_option_that_is_removed_is_not_said_to_be_set() {
    let cluster = Cluster::start_with(Settings::of_binary(BINARY.into(), 1)).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2"]).unwrap();
    let set = |value: &str| {
        let addresses = cluster.addresses().join(",");
        let arguments = ["table", "set-option", "t", "default_ttl", value, "--cluster", &addresses];
        let output = Command::new(BINARY).args(arguments).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(set("60").contains("option default_ttl of table t is set"));
    // Without a time to live of its own a record has the table's, and with 0 too.
    for ttl in [&[][..], &["--ttl", "0"]] {
        cluster.run(&[&["set", "t", "k", "s", "v"], ttl].concat()).unwrap();
        assert_ne!(cluster.run(&["ttl", "t", "k", "s"]).unwrap().trim(), "never expires", "{ttl:?}");
    }
    assert!(set("").contains("option default_ttl of table t is removed"));
}

/// Opening a pipe waits for whoever reads it.
#[test]
fn an_audit_log_that_is_no_regular_file_keeps_a_node_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, file) = (folder.path().join("pipe"), folder.path().join("n1.toml"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let audited = |audit: &Path| {
        let data = folder.path().join("data");
        let peers = "[[peers]]\nnode = 1\naddress = \"127.0.0.1:1\"";
        let text = format!("node = 1\ndata = [{data:?}]\naudit.file = {audit:?}\n{peers}\n");
        std::fs::write(&file, text).unwrap();
        let path = file.to_str().unwrap();
        for arguments in [&["config", "check", path][..], &["serve", "--config", path]] {
            let output = Command::new(BINARY).args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("n1.toml is not right: audit.file: "), "{said}");
            assert!(said.contains(&audit.display().to_string()) || said.contains("there is no folder"), "{said}");
        }
    };
    audited(&pipe);
    audited(Path::new("/dev/null"));
    audited(folder.path());
    audited(&folder.path().join("none").join("audit.log"));
}
