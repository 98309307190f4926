//! What a node holds for clients that have asked for much, and ask for nothing now.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that starts processes, and waits for them")]

use hedgerow_client::{Client, Table};
use hedgerow_testkit::{Cluster, DataPlace, Settings};
use std::time::{Duration, Instant};

/// What each connection has asked for and was answered comes to 1.6 MB: 240 MB for all.
const CONNECTIONS: usize = 150;
/// What the node may hold for them once they are idle.
const HELD_MAX: u64 = 64 << 20;

/// The table through a client of its own, with a connection of its own.
async fn open(address: &str) -> Table {
    Client::connect(&[address]).await.unwrap().open_table("t").await.unwrap()
}

/// A large request with a small reply, and the reverse.
async fn ask(table: &Table, absent: &[String]) {
    let found = table.multi_get("k", absent.iter().cloned()).await.unwrap();
    assert!(found.rows.is_empty());
    assert_eq!(table.get("k", "s").await.unwrap().unwrap().len(), 1_000_000);
}

#[tokio::test]
async fn n4a_idle_connections_give_back_the_room_of_large_requests_and_replies() {
    let settings = Settings::under_test(&[DataPlace::Folder]).unwrap();
    let mut cluster = Cluster::start_with(settings).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2", "--replicas", "1"]).unwrap();
    let address = cluster.addresses()[0].to_owned();
    let first = open(&address).await;
    first.set("k", "s", "v".repeat(1_000_000)).await.unwrap();
    let absent: Vec<String> = (0..9_000).map(|number| format!("{number:060}")).collect();
    ask(&first, &absent).await;
    let before = cluster.node(1).unwrap().resident_bytes().unwrap();
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let table = open(&address).await;
        ask(&table, &absent).await;
        idle.push(table);
    }
    // The allocator gives back what is free a little later.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let held = cluster.node(1).unwrap().resident_bytes().unwrap().saturating_sub(before);
        if held <= HELD_MAX {
            break;
        }
        assert!(Instant::now() < end, "{held} bytes are held for {CONNECTIONS} idle connections");
        ask(&first, &absent).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(idle);
    cluster.stop().unwrap();
}
