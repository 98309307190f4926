//! Creations that reach several nodes. Pegasus' clients send one to the next node when the first has not answered for a
//! second, and take whichever reply comes first.

use crate::world::{MS, World};
use crate::{ask, created, creation, node_of_metadata};
use hedgerow_node::Job;
use hedgerow_node::config::creation_wait;
use hedgerow_types::NodeId;
use hedgerow_wire::message::{CreateOptions, CreateTable};
use hedgerow_wire::{Body, ErrorName, Header};

#[test]
fn p1_a_creation_that_reaches_other_nodes_too_joins_the_one_under_way() {
    let mut world = World::new(3);
    world.delay = 50 * MS;
    let body = creation("t", 8, false);
    let mut numbers = Vec::new();
    for node in [2, 1, 3, 2] {
        numbers.push(world.send(NodeId(node), &Header::default(), &body));
        world.run(20 * MS);
    }
    for number in numbers {
        let reply = world.wait(number).1.reply;
        assert_eq!(created(reply), (ErrorName::Ok, 1));
    }
}

#[test]
fn p1_a_creation_that_comes_through_another_node_just_after_the_end_is_the_same_one() {
    let mut world = World::new(3);
    let leader = node_of_metadata(&mut world);
    let others: Vec<NodeId> = [1, 2, 3].map(NodeId).into_iter().filter(|node| *node != leader).collect();
    let body = creation("t", 8, false);
    assert_eq!(created(ask(&mut world, others[0], &body)), (ErrorName::Ok, 1));
    assert_eq!(created(ask(&mut world, others[1], &body)), (ErrorName::Ok, 1));
    // Whoever asks the same node again was answered there.
    assert_eq!(created(ask(&mut world, others[0], &body)).0, ErrorName::AppExist);
    assert_eq!(created(ask(&mut world, others[1], &body)).0, ErrorName::AppExist);
    // Another table of this name is another creation.
    assert_eq!(created(ask(&mut world, leader, &creation("t", 16, false))).0, ErrorName::AppExist);
    world.run(10_000 * MS);
    assert_eq!(created(ask(&mut world, leader, &body)).0, ErrorName::AppExist);
    assert_eq!(created(ask(&mut world, leader, &creation("t", 8, true))), (ErrorName::Ok, 1));
    assert_eq!(created(ask(&mut world, leader, &creation("t", 4, true))).0, ErrorName::InvalidParameters);
}

#[test]
fn p4_other_counts_of_partitions_are_refused_with_a_reason() {
    let mut world = World::new(3);
    for count in [1, 3] {
        assert_eq!(created(ask(&mut world, NodeId(1), &creation("t", count, false))).0, ErrorName::InvalidParameters);
        let argument = serde_json::json!({ "name": "t", "partition_count": count, "replica_count": 3 });
        let refused = world.admin(NodeId(1), "create_table", &argument).unwrap_err();
        assert!(refused.contains("because Pegasus' clients refuse tables with other counts"), "{refused}");
    }
}

#[test]
fn p5_options_that_do_nothing_here_are_stored_and_shown() {
    let mut world = World::new(3);
    let envs = vec![("rocksdb.usage_scenario".into(), "bulk_load".into()), ("business.info".into(), "team a".into())];
    let options = CreateOptions { partition_count: 2, replica_count: 3, envs, ..CreateOptions::default() };
    let body = Body::CreateTable(CreateTable { app_name: "t".into(), options });
    assert_eq!(created(ask(&mut world, NodeId(1), &body)), (ErrorName::Ok, 1));
    let shown = world.admin(NodeId(1), "describe", &serde_json::json!({ "table": "t" })).unwrap();
    assert_eq!(shown["options"]["rocksdb.usage_scenario"], "bulk_load");
    assert_eq!(shown["options"]["business.info"], "team a");
    world.set_option("manual_compact.once.trigger_time", "1700000000");
    let refused = world.admin(
        NodeId(1),
        "set_options",
        &serde_json::json!({ "name": "t", "options": { "replica.write_throttling": "100*delay*100" } }),
    );
    assert!(refused.is_err(), "{refused:?}");
}

/// Milliseconds until the creation of a table of `partitions` that node 1 is asked for has an answer.
fn time_to_create(world: &mut World, partitions: i32, meanwhile: impl FnOnce(&mut World)) -> u128 {
    let since = world.now;
    let number = world.send(NodeId(1), &Header::default(), &creation("t", partitions, false));
    meanwhile(world);
    let (at, frame) = world.wait(number);
    assert_eq!(created(frame.reply), (ErrorName::Ok, 1));
    at.since(since).as_millis()
}

#[test]
fn p9_a_leader_whose_followers_are_made_later_asks_for_votes_again_soon() {
    let mut world = World::new(3);
    for node in [2, 3] {
        world.machines.get_mut(&NodeId(node)).unwrap().holds = |job| matches!(job, Job::Create { .. });
    }
    let took = time_to_create(&mut world, 8, |world| {
        world.run(120 * MS);
        world.let_go(NodeId(2));
        world.let_go(NodeId(3));
    });
    assert!(took < 500, "{took} ms");
}

#[test]
fn p9_a_table_serves_as_soon_as_its_leaders_are_known() {
    let mut world = World::new(3);
    let took = time_to_create(&mut world, 8, |_| {});
    assert!(took < 150, "{took} ms");
}

#[test]
fn p9_replicas_are_made_a_few_at_a_time_in_order() {
    let mut world = World::new(3);
    let node = NodeId(2);
    world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Create { .. });
    let took = time_to_create(&mut world, 64, |world| {
        world.run(300 * MS);
        let partitions = world.machines[&node].held.iter().map(|job| match job {
            Job::Create { owner, .. } => owner.group.partition,
            other => panic!("{other:?}"),
        });
        assert_eq!(partitions.collect::<Vec<_>>(), [0, 1]);
        world.let_go(node);
    });
    assert!(took < 1_000, "{took} ms");
}

#[test]
fn p9_the_wait_for_a_table_grows_with_its_partitions() {
    assert_eq!(creation_wait(8).as_millis(), 10_400);
    assert_eq!(creation_wait(1_024).as_millis(), 61_200);
}
