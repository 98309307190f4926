//! Calls that there are not here, and reads at the wrong partition.

use crate::world::{Ask, Key, MS, World};
use crate::{ask, creation};
use bytes::{Bytes, BytesMut};
use hedgerow_node::{ConnectionId, Event};
use hedgerow_types::NodeId;
use hedgerow_types::key::full_key;
use hedgerow_wire::message::{
    BatchGet, CheckAndSet, CommandLine, FullKey, KeyValue, ListNodes, ListTables, MultiGet, MultiPut, MultiRemove,
    app_status, match_type,
};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, Text, call};
use serde_json::json;

#[test]
fn p2_an_unknown_administrative_call_ends_with_an_error_inside_its_reply() {
    let mut world = World::new(3);
    let mut frame = BytesMut::new();
    call::encode_request_v0(&mut frame, &Header::default(), 9, &creation("t", 8, false));
    let known = b"RPC_CM_CREATE_APP";
    let at = frame.windows(known.len()).position(|window| window == known).unwrap();
    frame[at..at + known.len()].copy_from_slice(b"RPC_CM_CREATE_XYZ");
    let now = world.clock();
    let node = &mut world.machines.get_mut(&NodeId(1)).unwrap().node;
    node.handle(Event::Client(ConnectionId(5), frame.freeze()), now);
    let reply = node.outbox().clients.remove(&ConnectionId(5)).unwrap();
    let text = String::from_utf8_lossy(&reply).into_owned();
    assert!(text.contains("ERR_OK") && text.contains("RPC_CM_CREATE_XYZ_ACK"), "{text}");
    assert!(reply.ends_with(b"\x0c\0\0\x0c\0\x01\0\0\0\x13ERR_NOT_IMPLEMENTED\0\0"), "{text}");
}

#[test]
fn p3_a_read_at_the_wrong_partition_finds_nothing() {
    let mut world = World::new(3);
    let table = world.create_table(4, &json!({}));
    let key = Key::new(table, 4, "a");
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "1");
    let wrong = Key { partition: (key.partition + 1) % 4, ..key.clone() };
    let leader = world.replicas(wrong.partition).leader;
    world.run(1_000 * MS);
    let refused = world.get(&wrong, leader, &Ask::default()).unwrap_err();
    assert_eq!(refused.name, "status 1");
    let header = wrong.header(&Ask::default());
    let multi_get = MultiGet { hash_key: Bytes::from_static(b"a"), max_kv_count: 100, ..MultiGet::default() };
    for (body, expected) in [
        (Body::Ttl(full_key(b"a", b"s")), 1),
        (Body::SortKeyCount(Bytes::from_static(b"a")), 0),
        (Body::MultiGet(multi_get), 0),
    ] {
        let number = world.send(leader, &header, &body);
        let found = match world.wait(number).1.reply {
            Reply::Ttl(reply) => (reply.error, 0),
            Reply::Count(reply) => (reply.error, reply.count),
            Reply::MultiGet(reply) => (reply.error, reply.kvs.len() as i64),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, (expected, 0));
    }
    // Our own clients know better than to look there, so that their map must be another table's.
    let own = wrong.header(&Ask { extension: Some(Extension::default()), is_backup: false });
    let (hash_key, sort_key) = (Bytes::from_static(b"a"), Bytes::from_static(b"s"));
    for body in [
        Body::Get(full_key(b"a", b"s")),
        Body::BatchGet(BatchGet { keys: vec![FullKey { hash_key, sort_key }] }),
        Body::SortKeyCount(Bytes::from_static(b"a")),
    ] {
        let number = world.send(leader, &own, &body);
        let Reply::Failed(failure) = world.wait(number).1.reply else { panic!("{body:?} is answered") };
        assert_eq!(failure.name, ErrorName::InvalidParameters);
    }
    // A write there would be lost to everybody.
    let put = hedgerow_wire::message::Put { key: wrong.full(), value: "2".into(), expire_ts_seconds: 0 };
    let number = world.send(leader, &header, &Body::Put(put));
    match world.wait(number).1.reply {
        Reply::Failed(failure) => assert_eq!(failure.name, ErrorName::InvalidParameters),
        other => panic!("{other:?}"),
    }
}

#[test]
fn p3_a_row_of_an_ordered_table_is_written_in_its_own_partition_only() {
    let mut world = World::new(3);
    let argument = json!({
        "name": "t", "kind": "ordered", "partition_count": 2, "replica_count": 3, "options": {}, "split_keys": ["6d"],
    });
    let created = world.admin(NodeId(1), "create_table", &argument).unwrap();
    world.run(2_000 * MS);
    let header = |partition_index| Header {
        app_id: created["created"].as_i64().unwrap() as i32,
        partition_index,
        timeout_ms: 5_000,
        ..Header::default()
    };
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let row = |key| KeyValue { key: text(key), value: text("v"), expire_ts_seconds: None };
    let put = |keys: &[&'static str]| {
        Body::MultiPut(MultiPut { kvs: keys.iter().map(|key| row(key)).collect(), ..MultiPut::default() })
    };
    let remove = |keys: &[&'static str]| {
        Body::MultiRemove(MultiRemove {
            sort_keys: keys.iter().map(|key| text(key)).collect(),
            ..MultiRemove::default()
        })
    };
    let swap = |check, set| {
        let (check_sort_key, set_sort_key) = (text(check), text(set));
        Body::CheckAndSet(CheckAndSet {
            check_sort_key,
            set_sort_key,
            set_diff_sort_key: true,
            ..CheckAndSet::default()
        })
    };
    let mut is_taken = |partition: i32, body: Body| {
        let leader = world.replicas(partition).leader;
        let number = world.send(leader, &header(partition), &body);
        match world.wait(number).1.reply {
            Reply::Failed(failure) => {
                assert_eq!(failure.name, ErrorName::InvalidParameters, "{body:?}");
                false
            }
            _ => true,
        }
    };
    assert!(is_taken(0, put(&["apple", "berry"])) && is_taken(1, put(&["m", "zebra"])));
    assert!(!is_taken(0, put(&["zebra"])) && !is_taken(0, put(&["apple", "zebra"])) && !is_taken(1, put(&[""])));
    assert!(is_taken(0, remove(&["apple"])) && !is_taken(0, remove(&["apple", "zebra"])));
    assert!(is_taken(0, swap("apple", "berry")) && !is_taken(0, swap("apple", "zebra")));
    assert!(!is_taken(0, swap("zebra", "apple")), "what is checked lies elsewhere");
}

fn names(reply: Reply) -> (ErrorName, Vec<String>) {
    let Reply::ListTables(reply) = reply else { panic!("{reply:?}") };
    (reply.err, reply.infos.into_iter().map(|info| info.app_name.to_string()).collect())
}

#[test]
fn p6_lists_are_by_status_and_name() {
    let mut world = World::new(3);
    for name in ["apple", "pineapple", "plum"] {
        ask(&mut world, NodeId(1), &creation(name, 2, false));
    }
    let mut list = |status, pattern: &'static str, match_type| {
        let pattern = (!pattern.is_empty()).then(|| Text::from_static(pattern));
        names(ask(&mut world, NodeId(1), &Body::ListTables(ListTables { status, pattern, match_type })))
    };
    let found = |names: &[&str]| (ErrorName::Ok, names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(list(0, "", None), found(&["apple", "pineapple", "plum"]));
    assert_eq!(list(app_status::AVAILABLE, "", Some(1)), found(&["apple", "pineapple", "plum"]));
    assert_eq!(list(app_status::DROPPED, "", None), found(&[]));
    assert_eq!(list(0, "apple", Some(match_type::EXACT)), found(&["apple"]));
    assert_eq!(list(0, "apple", Some(match_type::ANYWHERE)), found(&["apple", "pineapple"]));
    assert_eq!(list(0, "p", Some(match_type::PREFIX)), found(&["pineapple", "plum"]));
    assert_eq!(list(0, "um", Some(match_type::POSTFIX)), found(&["plum"]));
    assert_eq!(list(0, "a.*", Some(match_type::REGEX)).0, ErrorName::NotImplemented);
    assert_eq!(list(0, "a", Some(9)).0, ErrorName::InvalidParameters);
}

#[test]
fn p8_hosts_and_ports_are_told_where_that_is_configured() {
    for is_wanted in [false, true] {
        let mut world = World::configured(3, |config| config.has_host_ports = is_wanted);
        world.create_table(2, &json!({}));
        let map = world.map(false);
        for partition in &map.partitions {
            assert_eq!(partition.hp_primary.is_some(), is_wanted);
            let Some(primary) = &partition.hp_primary else { continue };
            assert_eq!(format!("{}:{}", primary.host, primary.port), partition.primary.socket().unwrap().to_string());
            assert_eq!(partition.hp_secondaries.as_ref().map(Vec::len), Some(partition.secondaries.len()));
            assert_eq!(partition.hp_last_drops, Some(Vec::new()));
        }
        assert!(world.map(true).partitions.iter().all(|partition| partition.hp_primary.is_none()));
        let Reply::ListNodes(nodes) = ask(&mut world, NodeId(1), &Body::ListNodes(ListNodes { status: 1 })) else {
            panic!("not a list of nodes");
        };
        assert_eq!(nodes.infos.iter().filter(|info| info.hp_node.is_some()).count(), if is_wanted { 3 } else { 0 });
        let Reply::ListNodes(dead) = ask(&mut world, NodeId(1), &Body::ListNodes(ListNodes { status: 2 })) else {
            panic!("not a list of nodes");
        };
        assert_eq!(dead.infos, []);
    }
}

#[test]
fn p7_a_shell_may_ask_a_node_for_help_its_version_and_the_status() {
    let mut world = World::new(3);
    let mut run = |command: &'static str| {
        let call = CommandLine { command: Text::from_static(command), arguments: Vec::new() };
        match ask(&mut world, NodeId(2), &Body::CommandLine(call)) {
            Reply::CommandLine(reply) => reply.output.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(run("help").contains("version"));
    assert!(run("version").starts_with("Hedgerow "));
    assert!(run("status").contains("nodes_up: 3\n"), "{}", run("status"));
    assert!(run("flush-log").contains("there is no command"));
}
