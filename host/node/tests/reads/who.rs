//! Who may be served where: levels, replicas, options, Pegasus' backup flag.

use crate::world::{Ask, Key, MS, Places, World, bounded};
use hedgerow_types::key::full_key;
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::message::{BatchGet, FullKey, GetScanner, MultiGet, Scan};
use hedgerow_wire::{Body, Extension, Reply};
use serde_json::json;
use std::time::Duration;

const LEVELS: [ReadLevel; 4] =
    [ReadLevel::Linearizable, ReadLevel::Session, ReadLevel::Bounded(Duration::from_secs(1)), ReadLevel::Eventual];

/// Four nodes; partition 0's replicas with a learner.
fn world(options: &serde_json::Value) -> (World, Key, Places) {
    let mut world = World::new(4);
    let table = world.create_table(2, options);
    let key = Key::new(table, 2, "a");
    world.run(3_000 * MS);
    let places = world.replicas(key.partition);
    (world, key, places)
}

#[test]
fn every_level_is_served_at_every_kind_of_replica() {
    let (mut world, key, places) = world(&json!({ "read_replicas": "1" }));
    assert_eq!((places.followers.len(), places.learners.len()), (2, 1), "{places:?}");
    let all = [places.leader].into_iter().chain(places.followers.clone()).chain(places.learners.clone());
    for (turn, node) in all.enumerate() {
        for level in LEVELS {
            let value = format!("{turn} {level}");
            let index = world.write(&key, places.leader, &value);
            // Two heartbeats, after which every replica has applied it.
            world.run(500 * MS);
            let (read, extension) = world.get(&key, node, &Ask::anywhere(level)).unwrap();
            assert_eq!(read, value, "{level} at {node}");
            assert_eq!(extension.served_by.as_str(), format!("127.0.0.{}:34601", node.0));
            assert!(extension.index >= index, "{level} at {node}: {extension:?}");
            match level {
                ReadLevel::Linearizable => assert_eq!(extension.staleness_ms, Some(0)),
                ReadLevel::Bounded(_) => assert!(extension.staleness_ms.is_some_and(|ms| (0..=1_000).contains(&ms))),
                ReadLevel::Session | ReadLevel::Eventual => {}
            }
        }
    }
    for (node, role) in [(places.leader, "leader"), (places.followers[0], "follower"), (places.learners[0], "learner")]
    {
        let counts = world.counts(node);
        for level in ["linearizable", "session", "bounded", "eventual"] {
            assert_eq!(counts["served"][level][role], 1, "{level} at {node}: {counts}");
        }
    }
}

#[test]
fn every_read_operation_is_served_at_a_follower() {
    let (mut world, key, places) = world(&json!({}));
    world.write(&key, places.leader, "value");
    let follower = places.followers[0];
    let hash_key = bytes::Bytes::from(key.hash_key.clone());
    let whole = (full_key(hash_key.as_ref(), b""), full_key(hash_key.as_ref(), b"z"));
    let multi_get = MultiGet { hash_key: hash_key.clone(), ..MultiGet::default() };
    let batch = BatchGet { keys: vec![FullKey { hash_key: hash_key.clone(), sort_key: "s".into() }] };
    let open = GetScanner { start_key: whole.0, stop_key: whole.1, start_inclusive: true, ..GetScanner::default() };
    let bodies = [
        Body::Get(key.full()),
        Body::Ttl(key.full()),
        Body::MultiGet(multi_get),
        Body::BatchGet(batch),
        Body::SortKeyCount(hash_key),
        Body::GetScanner(open),
    ];
    for level in LEVELS {
        for body in &bodies {
            let number = world.send(follower, &key.header(&Ask::anywhere(level)), body);
            let frame = world.wait(number).1;
            let has_it = match &frame.reply {
                Reply::Get(get) => get.value == "value",
                Reply::Ttl(ttl) => ttl.error == 0 && ttl.ttl_seconds == -1,
                Reply::MultiGet(rows) => rows.kvs.len() == 1,
                Reply::BatchGet(rows) => rows.data.len() == 1,
                Reply::Count(count) => count.count == 1,
                Reply::Scan(page) => page.kvs.len() == 1,
                _ => false,
            };
            assert!(has_it, "{level} {body:?}: {frame:?}");
            assert!(frame.extension.is_some_and(|extension| extension.index > 1), "{level} {body:?}");
        }
    }
}

/// A page that is refused can be asked for again, and each page is read at the level of its own request.
#[test]
fn a_scan_goes_on_where_it_was_opened_although_a_page_was_refused() {
    let (mut world, key, places) = world(&json!({}));
    let follower = places.followers[0];
    for row in 0..5 {
        let put = hedgerow_wire::message::Put {
            key: full_key(key.hash_key.as_bytes(), &[row]),
            value: "v".into(),
            expire_ts_seconds: 0,
        };
        let ask = Ask { extension: Some(Extension::default()), is_backup: false };
        let number = world.send(places.leader, &key.header(&ask), &Body::Put(put));
        world.wait(number);
    }
    let page = |world: &mut World, body: Body, ask: &Ask| {
        let number = world.send(follower, &key.header(ask), &body);
        match world.wait(number).1.reply {
            Reply::Scan(page) => Ok((page.kvs.len(), page.context_id)),
            Reply::Failed(failure) => Err(failure.refusal()),
            other => panic!("{other:?}"),
        }
    };
    let open = GetScanner { batch_size: 2, start_inclusive: true, ..GetScanner::default() };
    let (rows, context_id) = page(&mut world, Body::GetScanner(open), &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
    assert_eq!(rows, 2);
    let next = Body::Scan(Scan { context_id });
    world.cut_off(follower);
    world.run(10_000 * MS);
    let refused = page(&mut world, next.clone(), &Ask::anywhere(bounded(100))).unwrap_err();
    assert!(matches!(refused, Some(Refusal::Lagging(_))), "{refused:?}");
    let refused = page(&mut world, next.clone(), &Ask::default().with_deadline(MS)).unwrap_err();
    assert!(matches!(refused, Some(Refusal::NotLeader { .. })), "{refused:?}");
    let (rows, context_id) = page(&mut world, next.clone(), &Ask::anywhere(ReadLevel::Eventual)).unwrap();
    assert_eq!(rows, 2);
    world.cut.clear();
    world.run(3_000 * MS);
    let last = Body::Scan(Scan { context_id });
    assert_eq!(page(&mut world, last.clone(), &Ask::anywhere(ReadLevel::Linearizable)).unwrap().0, 1);
    assert_eq!(page(&mut world, last, &Ask::anywhere(ReadLevel::Linearizable)).unwrap().0, 0, "it is used up");
}

#[test]
fn a_plain_read_at_a_follower_names_the_leader_unless_the_table_allows_it() {
    let (mut world, key, places) = world(&json!({ "read_replicas": "1" }));
    world.write(&key, places.leader, "value");
    for node in [places.followers[0], places.learners[0]] {
        let plain = world.get(&key, node, &Ask::default()).unwrap_err();
        assert_eq!((plain.name.as_str(), plain.refusal, plain.after), ("ERR_INVALID_STATE", None, Duration::ZERO));
        let ours = Ask { extension: Some(Extension::default()), is_backup: false };
        let refused = world.get(&key, node, &ours).unwrap_err();
        assert!(matches!(refused.refusal, Some(Refusal::NotLeader { .. })), "{refused:?}");
    }
    world.set_option("follower_reads", "true");
    for node in [places.followers[0], places.learners[0]] {
        assert_eq!(world.get(&key, node, &Ask::default()).unwrap().0, "value");
        let ours = Ask { extension: Some(Extension::default()), is_backup: false };
        assert!(world.get(&key, node, &ours).is_err(), "our clients say it if any replica will do");
    }
    let counts = world.counts(places.followers[0]);
    assert_eq!(counts["served"]["linearizable"]["follower"], 1, "at the table's level");
    assert_eq!(counts["refused"]["not_leader"], 3);
}

#[test]
fn a_backup_read_is_served_at_the_tables_level_by_every_replica() {
    let (mut world, key, places) = world(&json!({ "read_replicas": "1" }));
    world.write(&key, places.leader, "value");
    let backup = Ask { extension: None, is_backup: true };
    // At the table's level what is 200 ms old would do, too.
    world.run(300 * MS);
    for node in [places.leader, places.followers[0], places.learners[0]] {
        assert_eq!(world.get(&key, node, &backup).unwrap().0, "value");
    }
    let follower = places.followers[0];
    world.cut_off(follower);
    world.run(2_000 * MS);
    let stale = world.get(&key, follower, &backup).unwrap_err();
    assert_eq!((stale.name.as_str(), stale.after), ("ERR_INVALID_STATE", Duration::ZERO));
    world.cut.clear();
    world.run(5_000 * MS);
    world.set_option("backup_read_level", "eventual");
    world.cut_off(follower);
    world.run(2_000 * MS);
    assert_eq!(world.get(&key, follower, &backup).unwrap().0, "value", "what Pegasus does");
    let counts = world.counts(places.leader);
    assert_eq!(counts["served"]["bounded"]["leader"], 1);
}

#[test]
fn the_level_of_a_request_goes_before_the_tables() {
    let (mut world, key, places) = world(&json!({ "read_level": "eventual" }));
    world.write(&key, places.leader, "value");
    let follower = places.followers[0];
    let extension = Extension { any_replica: true, ..Extension::default() };
    let silent = Ask { extension: Some(extension), is_backup: false };
    world.run(500 * MS);
    world.get(&key, follower, &silent).unwrap();
    world.get(&key, follower, &Ask::anywhere(bounded(5_000))).unwrap();
    // A caller that says a level is never given a weaker one.
    let mut both = Ask::anywhere(ReadLevel::Linearizable);
    both.extension.as_mut().unwrap().any_replica = false;
    both.is_backup = true;
    world.get(&key, follower, &both).unwrap();
    let served = world.counts(follower)["served"].clone();
    let told = ["eventual", "bounded", "linearizable"].map(|level| served[level]["follower"].as_u64().unwrap());
    assert_eq!(told, [1, 1, 1]);
}

/// Pegasus' clients are not told of learners: they would take one for a secondary.
#[test]
fn learners_and_places_are_told_to_our_clients_only() {
    let label = |config: &mut hedgerow_node::Config| {
        config.labels.insert("zone".to_owned(), format!("z{}", config.node.0));
    };
    let mut world = World::configured(4, label);
    world.create_table(2, &json!({ "read_replicas": "1" }));
    world.run(3_000 * MS);
    let plain = world.map(false);
    assert!(plain.nodes.is_none() && plain.partitions.iter().all(|it| it.learners.is_none()));
    let ours = world.map(true);
    assert!(ours.partitions.iter().all(|it| it.learners.as_ref().is_some_and(|learners| learners.len() == 1)));
    let labels: Vec<String> = ours.nodes.unwrap().iter().map(|node| node.labels[0].to_string()).collect();
    assert_eq!(labels, ["zone=z1", "zone=z2", "zone=z3", "zone=z4"]);
}
