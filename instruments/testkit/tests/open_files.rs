//! Nodes that may open few files: what does not fit is refused, and they go on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes and connections")]

use hedgerow_testkit::{Cluster, DataPlace, Settings, binary};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Files that a node may open, with no way to get more: room for the log, for clients, and for a few replicas.
const FILES: u32 = 400;

/// A program that runs the binary under test with few files.
fn wrapper(folder: &Path) -> PathBuf {
    let path = folder.join("hedgerow");
    fs::write(&path, format!("#!/bin/sh\nulimit -n {FILES}\nexec {} \"$@\"\n", binary().unwrap().display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn n4_a_table_that_needs_more_files_than_there_are_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    let mut cluster = Cluster::start_with(Settings { binary: wrapper(folder.path()), ..settings }).unwrap();
    let refused = cluster.run(&["table", "create", "large", "--partitions", "256"]).unwrap_err().to_string();
    assert!(refused.contains("do not fit: node ") && refused.contains("limit of open files"), "{refused}");
    cluster.run(&["table", "create", "small", "--partitions", "4"]).unwrap();
    cluster.run(&["incr", "small", "key", "count"]).unwrap();
    // Clients cannot take the files that the node needs, whether they say something or not.
    let address = cluster.addresses()[0].to_owned();
    let clients: Vec<TcpStream> = (0..2 * FILES).map(|_| TcpStream::connect(&address).unwrap()).collect();
    cluster.run(&["incr", "small", "key", "count"]).unwrap();
    cluster.kill(2).unwrap();
    cluster.restart(2).unwrap();
    drop(clients);
    assert_eq!(cluster.run(&["get", "small", "key", "count"]).unwrap().trim(), "2");
    cluster.stop().unwrap();
}
