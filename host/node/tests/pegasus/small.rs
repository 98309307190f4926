//! Calls that there are not here, and reads at the wrong partition.

use crate::creation;
use crate::world::{Ask, Key, MS, World};
use bytes::{Bytes, BytesMut};
use hedgerow_node::ConnectionId;
use hedgerow_types::NodeId;
use hedgerow_types::key::full_key;
use hedgerow_wire::message::MultiGet;
use hedgerow_wire::{Body, ErrorName, Header, Reply, call};
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
    node.handle_client(ConnectionId(5), frame.freeze(), now);
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
    // A write there would be lost to everybody.
    let put = hedgerow_wire::message::Put { key: wrong.full(), value: "2".into(), expire_ts_seconds: 0 };
    let number = world.send(leader, &header, &Body::Put(put));
    match world.wait(number).1.reply {
        Reply::Failed(failure) => assert_eq!(failure.name, ErrorName::InvalidParameters),
        other => panic!("{other:?}"),
    }
}
