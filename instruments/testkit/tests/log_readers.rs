//! Nodes whose standard error nobody reads: they go on serving.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::{Cluster, DataPlace, Node, Settings, binary, reserve_port};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Far more than any step needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Standard error is a named pipe that stays open and that nobody reads. It is full already (Linux gives pipes 64 KiB), so that every
/// write waits.
const NEVER_READ: &str = r#"exec 2<>"$pipe"; head -c 65536 /dev/zero >&2"#;
/// Standard error is a pipe whose reader has gone: every write fails.
const CLOSED: &str = r#"exec 3<>"$pipe" 2>"$pipe"; exec 3>&-"#;
/// There is no standard error at all.
const NONE: &str = "exec 2>&-";

/// A program that runs the binary under test with its standard error as `redirection` leaves it. `$pipe` is a named pipe beside it, one
/// for each node.
fn wrapper(folder: &Path, redirection: &str) -> PathBuf {
    let path = folder.join("hedgerow");
    let (folder, binary) = (folder.display(), binary().unwrap());
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = serve ] || [ \"$1\" = dev ]; then\npipe={folder}/pipe$$\nmkfifo \"$pipe\"\n{redirection}\nfi\n\
         exec {} \"$@\"\n",
        binary.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn use_cluster(cluster: &Cluster) {
    cluster.run(&["table", "create", "t", "--partitions", "4"]).unwrap();
    for key in 0..20 {
        cluster.run(&["incr", "t", &format!("key-{key}"), "count"]).unwrap();
    }
    assert_eq!(cluster.run(&["get", "t", "key-7", "count"]).unwrap().trim(), "1");
}

fn start(folder: &Path, redirection: &str) -> Cluster {
    let settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    let log = Some("debug".to_owned());
    Cluster::start_with(Settings { binary: wrapper(folder, redirection), log, ..settings }).unwrap()
}

#[test]
fn n5_nodes_serve_while_the_reader_of_their_log_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = start(folder.path(), NEVER_READ);
    use_cluster(&cluster);
    cluster.stop().unwrap();
}

#[test]
fn n5_nodes_serve_after_the_reader_of_their_log_has_ended() {
    for redirection in [CLOSED, NONE] {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = start(folder.path(), redirection);
        use_cluster(&cluster);
        cluster.stop().unwrap();
    }
}

#[test]
fn n5_a_cluster_in_one_process_serves_while_the_reader_of_its_log_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(wrapper(folder.path(), NEVER_READ));
    let port = reserve_port().unwrap();
    let address = format!("127.0.0.1:{}", port.number);
    command.args(["dev", "--nodes", "1", "--listen", &address]).env("HEDGEROW_LOG", "debug");
    let mut node = Node::spawn(command).unwrap();
    node.wait_ready(LIMIT).unwrap();
    let created = Command::new(binary().unwrap())
        .args(["table", "create", "t", "--partitions", "4", "--cluster", &address])
        .output()
        .unwrap();
    assert!(created.status.success(), "{created:?}");
    assert_eq!(node.terminate(LIMIT).unwrap().code(), Some(0));
}
