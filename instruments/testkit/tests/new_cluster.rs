//! What holds of a new cluster as soon as its nodes say that they serve.
#![allow(clippy::unwrap_used, reason = "tests that start processes")]

use hedgerow_client::{Client, ClusterStatus, NodeStatus, TableSpec};
use hedgerow_testkit::Cluster;
use std::time::Duration;

#[test]
fn m5_a_table_that_is_made_at_once_is_spread_over_all_nodes() {
    let cluster = Cluster::start(5).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "8"]).unwrap();
    let described = cluster.run(&["table", "describe", "t", "--output", "json"]).unwrap();
    for node in cluster.numbers() {
        // 24 replicas on 5 nodes: none has fewer than four.
        let count = described.matches(&format!("@n{node}\"")).count();
        assert!(count >= 4, "node {node} has {count} replicas:\n{described}");
    }
}

/// What nodes say of themselves arrives as types, and nothing that the types have room for is missing in it.
#[test]
fn a_client_reads_the_status_of_a_cluster_as_types() {
    let cluster = Cluster::start(3).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&cluster.addresses()).await.unwrap();
        client.create_table("t", &TableSpec { partition_count: 4, ..TableSpec::default() }).await.unwrap();
        let mut status = client.status().await.unwrap();
        // What nodes report is a second old.
        let counts = |status: &ClusterStatus| {
            let count = |of: fn(&NodeStatus) -> u64| status.nodes.iter().map(of).sum::<u64>();
            (count(|node| node.replicas), count(|node| node.leaders))
        };
        for _ in 0..200 {
            if status.is_healthy() && counts(&status) == (15, 5) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            status = client.status().await.unwrap();
        }
        assert!(status.is_healthy(), "{status:?}");
        let summary = status.summary.unwrap();
        assert_eq!((summary.nodes, summary.partitions), (3, 5), "with the metadata");
        assert_eq!((status.cluster.len(), status.time.as_str()), (16, "agreed"));
        assert_eq!(counts(&status), (15, 5), "{:?}", status.nodes);
        for node in &status.nodes {
            let disks = node.disks.as_ref().unwrap();
            assert_eq!((node.state.as_str(), disks[0].state.as_str()), ("alive", "ok"));
            assert!(disks[0].total_bytes > 0 && !node.address.is_empty() && !node.is_slow, "{node:?}");
        }
        let table = client.describe_table("t").await.unwrap();
        assert_eq!((table.name.as_str(), table.kind.as_str(), table.state.as_str()), ("t", "hash", "available"));
        assert_eq!((table.partition_count, table.replica_count, table.partitions.len()), (4, 3, 4));
        for (partition, index) in table.partitions.iter().zip(0..) {
            assert_eq!((partition.index, partition.replicas.len()), (index, 3));
            assert!(partition.leader.is_some() && partition.term > 0 && partition.commit > 0, "{partition:?}");
            assert!(partition.replicas.iter().all(|it| it.role == "voter" && it.state == "ok"), "{partition:?}");
        }
        assert_eq!(status.tables.len(), 1);
        assert_eq!(status.metadata.replicas.len(), 3);
        let missing = client.describe_table("none").await.unwrap_err();
        assert!(missing.to_string().contains("table"), "{missing}");
    });
}
