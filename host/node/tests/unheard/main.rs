//! Nodes that have not heard of a table: what they say of it, and what they do with its replicas.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../reads/world.rs"]
mod world;

use hedgerow_env::{read_file, write_file_durably};
use hedgerow_types::{GroupId, NodeId, ReadLevel, Refusal};
use hedgerow_wire::ErrorName;
use serde_json::json;
use std::time::Duration;
use world::{Ask, Key, World, running};

const SECOND: Duration = Duration::from_secs(1);
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// The node that leads the metadata.
fn metadata_leader(world: &World) -> NodeId {
    let leads = |node: &NodeId| {
        let mut replicas = world.machines[node].node.replicas_for_inspection();
        replicas.any(|replica| replica.id == GroupId::META && replica.leads().is_some())
    };
    NODES.into_iter().find(leads).unwrap()
}

/// Pitfall D13.
#[test]
fn d13_that_there_is_no_table_only_the_leader_of_the_metadata_says() {
    let mut world = World::new(3);
    let leader = metadata_leader(&world);
    for node in NODES {
        let told = world.map_of(node, false);
        if node == leader {
            assert_eq!(told.err, ErrorName::ObjectNotFound);
        } else {
            assert_eq!(told.err, ErrorName::ForwardToOthers);
            let named = told.partitions[0].primary.socket().unwrap();
            assert_eq!(u16::from(named.ip().octets()[3]), leader.0);
        }
    }
    // One that has lost the others does not know whether it still leads, nor who does.
    world.cut_off(leader);
    world.run(5 * SECOND);
    assert_eq!(world.map_of(leader, false).err, ErrorName::ServiceNotActive);
}

/// Pitfall D14: it took a hash table for an ordered one without bounds.
#[test]
fn d14_a_replica_of_a_table_that_its_node_has_not_heard_of_serves_nobody() {
    let mut world = World::new(3);
    let node = NodeId(3);
    let directory = world.machines[&node].config.data[0].clone();
    let path = directory.join("catalogue.json");
    let before = read_file(&world.machines[&node].disk, &path).unwrap();
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
    world.run(SECOND);
    let anywhere = Ask::anywhere(ReadLevel::Eventual);
    assert_eq!(world.get(&key, node, &anywhere).unwrap().0, "value");
    world.cut_off(node);
    write_file_durably(&world.machines[&node].disk, &path, &before).unwrap();
    world.restart(node);
    world.run(SECOND);
    assert!(running(&world, node).keys().any(|group| group.table.0 == table as u32), "it runs");
    let told = world.get(&key, node, &anywhere).unwrap_err();
    assert_eq!(told.refusal, Some(Refusal::NotHosted), "{told:?}");
    // It hears of the table, and serves it.
    world.cut.clear();
    world.run(5 * SECOND);
    assert_eq!(world.get(&key, node, &anywhere).unwrap().0, "value");
}
