//! A table with one replica of each partition loses one of them for good, while other groups are repaired.

use crate::world::World;
use hedgerow_types::NodeId;
use serde_json::{Value, json};
use std::time::Duration;

/// What somebody is told who asks for the status: groups without a leader, and whether a leader of partition 0 is named.
fn told(world: &mut World, asked: NodeId) -> (u64, bool) {
    let status = world.admin(asked, "status", &json!({})).unwrap();
    let partition = &status["tables"][0]["partitions"][0];
    (status["summary"]["without_leader"].as_u64().unwrap(), partition["leader"].is_string())
}

/// The metadata's leader among them: those who come back have heard of nothing, and say so of nothing.
#[test]
fn n7_two_nodes_that_lost_everything_lead_nothing_and_know_of_no_table() {
    for asked in [NodeId(1), NodeId(2), NodeId(3)] {
        let mut world = World::new(3);
        world.create_table(2, &json!({}));
        let wiped: Vec<NodeId> = world.machines.keys().copied().filter(|node| *node != asked).collect();
        wiped.iter().for_each(|node| world.wipe(*node));
        world.run(Duration::from_secs(15));
        let status = world.admin(asked, "status", &json!({})).unwrap();
        let summary = &status["summary"];
        assert_eq!((&summary["without_leader"], &summary["in_repair"]), (&json!(3), &json!(3)), "{status}");
        assert_eq!(summary["metadata_has_leader"], false, "{status}");
        let replicas = status["tables"][0]["partitions"][0]["replicas"].as_array().unwrap();
        let state_of = |node: NodeId| &replicas.iter().find(|it| it["node"] == node.0).unwrap()["state"];
        assert!(wiped.iter().all(|node| state_of(*node) == "missing") && state_of(asked) == "ok", "{replicas:?}");
        for node in wiped {
            let refused = world.admin(node, "checksum", &json!({ "table": "t" })).unwrap_err();
            let is_unknown = !refused.contains("ObjectNotFound");
            assert!(is_unknown, "{refused}");
        }
    }
}

/// Only the metadata's leader says that there is no such table, and whoever does not know it asks there.
#[test]
fn d13_who_does_not_know_a_table_asks_the_metadata() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    for node in [NodeId(1), NodeId(2), NodeId(3)] {
        for (command, name) in [("checksum", "table"), ("describe", "table"), ("throttle_table", "name")] {
            let refused = world.admin(node, command, &json!({ name: "absent" })).unwrap_err();
            assert!(refused.contains("ObjectNotFound"), "{command}: {refused}");
        }
        world.wipe(node);
        world.settle(node);
        let refused = world.admin(node, "checksum", &json!({ "table": "t" })).err().unwrap_or_default();
        assert!(!refused.contains("ObjectNotFound"), "{refused}");
        world.run(Duration::from_secs(30));
    }
}

#[test]
fn n7_a_partition_that_lost_its_only_replica_is_named_and_is_equal_to_nothing() {
    let mut world = World::new(3);
    let table = json!({ "name": "t", "partition_count": 2, "replica_count": 1, "options": {} });
    world.admin(NodeId(1), "create_table", &table).unwrap();
    world.run(Duration::from_secs(10));
    let status = world.admin(NodeId(1), "status", &json!({})).unwrap();
    let host_of = |partition: usize| {
        let replicas: &Value = &status["tables"][0]["partitions"][partition]["replicas"];
        NodeId(replicas[0]["node"].as_u64().unwrap() as u16)
    };
    let host = host_of(0);
    let lost = 1 + u64::from(host_of(1) == host);
    let asked = *world.machines.keys().find(|node| **node != host).unwrap();
    world.wipe(host);
    world.run_until(Duration::from_secs(30), |world| told(world, asked) == (lost, false));
    // The metadata's replica there is replaced meanwhile.
    for _ in 0..200 {
        assert_eq!(told(&mut world, asked), (lost, false));
        world.run(Duration::from_millis(100));
    }
    let refused = world.admin(asked, "checksum", &json!({ "table": "t" })).unwrap_err();
    assert!(refused.contains(&format!("partition 0 on node {} is lost", host.0)), "{refused}");
}
