//! Nodes that come back somewhere else: they find each other, and clients find them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::Cluster;
use std::time::Duration;

const KEYS: u32 = 20;

fn write(cluster: &Cluster) {
    cluster.run(&["table", "create", "t", "--partitions", "4"]).unwrap();
    for key in 0..KEYS {
        cluster.run(&["incr", "t", &format!("key-{key}"), "count"]).unwrap();
    }
}

fn check(cluster: &Cluster) {
    for key in 0..KEYS {
        let count = cluster.run(&["get", "t", &format!("key-{key}"), "count"]).unwrap();
        assert_eq!(count.trim(), "1", "key {key}");
    }
}

#[test]
fn m4_all_nodes_may_come_back_at_other_addresses() {
    let mut cluster = Cluster::start(3).unwrap();
    write(&cluster);
    // New ports, then names in place of numbers.
    for host in ["127.0.0.1", "localhost"] {
        cluster.stop().unwrap();
        cluster.change_addresses(host).unwrap();
        let all: Vec<usize> = cluster.numbers().collect();
        cluster.restart_all(&all).unwrap();
        check(&cluster);
    }
}

#[test]
fn m4_a_node_that_moves_tells_the_others_itself() {
    let mut cluster = Cluster::start(3).unwrap();
    write(&cluster);
    cluster.terminate(2).unwrap();
    cluster.change_address(2, "127.0.0.1").unwrap();
    cluster.restart(2).unwrap();
    // Only with the moved node there is a majority.
    cluster.kill(3).unwrap();
    check(&cluster);
}

/// A machine is gone for good, and another one takes its number, somewhere else and with empty disks.
#[test]
fn m4_an_empty_machine_somewhere_else_takes_a_nodes_place() {
    let mut cluster = Cluster::start(3).unwrap();
    write(&cluster);
    cluster.kill(3).unwrap();
    for directory in cluster.data_directories(3) {
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
    }
    cluster.change_address(3, "127.0.0.1").unwrap();
    cluster.restart(3).unwrap();
    let began = std::time::Instant::now();
    while !cluster.run(&["status"]).is_ok_and(|status| status.contains("healthy: 3 of 3 nodes up")) {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", cluster.run(&["status"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    // Only with the new machine there is a majority.
    cluster.kill(1).unwrap();
    check(&cluster);
}
