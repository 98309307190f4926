//! What holds of a new cluster as soon as its nodes say that they serve.
#![allow(clippy::unwrap_used, reason = "tests that start processes")]

use hedgerow_testkit::Cluster;

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
