//! What an unmodified client of Pegasus sees when it sends backup requests: frames byte by byte, replies and silence.
//!
//! Its Java client sets the flag on get, multi_get and ttl, and takes the first reply of either attempt for the answer.
//! Pegasus' server looks at the flag of every read and of no write.

use crate::world::{Ask, FOREIGN, Key, MS, Places, World};
use crate::{deliver, in_flight, told};
use bytes::Bytes;
use hedgerow_node::config::EXTRA_READS_QUEUED_MAX;
use hedgerow_node::{ConnectionId, Event};
use hedgerow_types::NodeId;
use hedgerow_types::key::full_key;
use hedgerow_wire::message::{BatchGet, FullKey, GetScanner, Put, Scan};
use hedgerow_wire::{Body, Reply};
use serde_json::json;

const JAVA: ConnectionId = FOREIGN;
/// Table 2, partition 4 of 8, 1000 ms, the hash of "a", backup.
const BACKUP_META: &str = "08000100000002 08000200000004 080003000003e8 0a00048c2f8445b4cbfc3c 02000501 00";
const META: &str = "08000100000002 08000200000004 080003000003e8 0a00048c2f8445b4cbfc3c 02000500 00";
const GET: &str = r#"80010001 00000011 "RPC_RRDB_RRDB_GET" 00000007 | 0c0001 00000004 00016162 | 00"#;
const TTL: &str = r#"80010001 00000011 "RPC_RRDB_RRDB_TTL" 00000007 | 0c0001 00000004 00016162 | 00"#;
/// As Java sends it: what is null is left out.
const MULTI_GET: &str = r#"80010001 00000017 "RPC_RRDB_RRDB_MULTI_GET" 00000007
    | 0c0001 (0c0001 00000001 "a" 0f0002 0c 00000001 00000001 "b" 080003 00000064 080004 000003e8 020005 00
    020008 01 020009 00 08000a 00000000 02000c 00 00) | 00"#;

/// Reads hexadecimal digits; `"..."` stands for its text.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, part) in text.split('"').enumerate() {
        if i % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        out.extend(digits.chunks(2).map(pair));
    }
    out
}

fn frame(meta: &str, body: &str) -> Bytes {
    let (meta, body) = (bytes(meta), bytes(body));
    let sizes = bytes(&format!("54484654 00000001 {:08x} {:08x}", meta.len(), body.len()));
    [sizes, meta, body].concat().into()
}

/// A reply without its size.
fn reply(text: &str) -> Bytes {
    let body = bytes(text);
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat().into()
}

/// Three nodes, and a table whose partition 4 holds "c" under the key of the frames above.
fn setting() -> (World, Key, Places) {
    let mut world = World::new(3);
    let first = json!({ "name": "first", "partition_count": 2, "replica_count": 3 });
    world.admin(NodeId(1), "create_table", &first).unwrap();
    let table = world.create_table(8, &json!({}));
    let key = Key::new(table, 8, "a");
    assert_eq!((key.table, key.partition), (2, 4));
    let places = world.replicas(key.partition);
    let put = Put { key: full_key(b"a", b"b"), value: "c".into(), expire_ts_seconds: 0 };
    let number = world.send(places.leader, &key.header(&Ask::default()), &Body::Put(put));
    world.wait(number);
    world.run(1_000 * MS);
    (world, key, places)
}

/// The bytes that Java gets for `frame`, after how many milliseconds; none if there is nothing within a minute.
fn ask(world: &mut World, node: NodeId, frame: Bytes) -> Option<(u128, Bytes)> {
    let (sent, before) = (world.now, world.replies.len());
    deliver(world, JAVA, node, frame);
    for _ in 0..60_000 {
        if let Some((_, _, reply)) = world.replies[before..].iter().find(|(at, to, _)| (*at, *to) == (node, JAVA)) {
            return Some((world.now.since(sent).as_millis(), reply.clone()));
        }
        world.run(MS);
    }
    None
}

#[test]
fn backup_requests_are_served_at_a_follower_byte_by_byte() {
    let (mut world, _, places) = setting();
    for node in places.followers {
        let server = format!(r#"0000000f "127.0.0.{}:34601""#, node.0);
        let fields = format!("080003 00000002 080004 00000004 0b0006 {server} 00 00");
        let get = format!(
            r#"00000006 "ERR_OK" 80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007
            | 0c0000 080001 00000000 0c0002 00000001 "c" {fields}"#
        );
        let get_frame = frame(BACKUP_META, GET);
        assert_eq!(get_frame[..16], bytes("54484654 00000001 00000025 00000029")[..]);
        assert_eq!(ask(&mut world, node, get_frame).unwrap().1, reply(&get));
        assert_eq!(reply(&get)[..4], bytes("00000067")[..]);
        let ttl = format!(
            r#"00000006 "ERR_OK" 80010002 00000015 "RPC_RRDB_RRDB_TTL_ACK" 00000007
            | 0c0000 080001 00000000 080002 ffffffff {fields}"#
        );
        assert_eq!(ask(&mut world, node, frame(BACKUP_META, TTL)).unwrap().1, reply(&ttl));
        let multi_get = format!(
            r#"00000006 "ERR_OK" 80010002 0000001b "RPC_RRDB_RRDB_MULTI_GET_ACK" 00000007
            | 0c0000 080001 00000000 0f0002 0c 00000001 (0c0001 00000001 "b" 0c0002 00000001 "c" 00) {fields}"#
        );
        assert_eq!(ask(&mut world, node, frame(BACKUP_META, MULTI_GET)).unwrap().1, reply(&multi_get));
    }
}

/// Without the flag a replica that does not lead says so; the client asks for the map and tries again.
#[test]
fn without_the_flag_a_follower_refuses_and_the_leader_answers() {
    let (mut world, _, places) = setting();
    let refused = |name: &str, size: usize| {
        reply(&format!(r#"00000011 "ERR_INVALID_STATE" 80010002 {size:08x} "{name}_ACK" 00000007"#))
    };
    for (body, name) in [(GET, "RPC_RRDB_RRDB_GET"), (TTL, "RPC_RRDB_RRDB_TTL"), (MULTI_GET, "RPC_RRDB_RRDB_MULTI_GET")]
    {
        let (after, answer) = ask(&mut world, places.followers[0], frame(META, body)).unwrap();
        assert_eq!((after, answer), (0, refused(name, name.len() + 4)));
        assert!(!ask(&mut world, places.leader, frame(META, body)).unwrap().1.starts_with(&refused(name, 0)[..8]));
    }
    assert_eq!(refused("RPC_RRDB_RRDB_GET", 21)[..4], bytes("0000003a")[..]);
}

/// Every level that the table may ask for; what a follower cannot promise it refuses in the form that Java tries again for.
#[test]
fn the_tables_backup_read_level_decides_what_a_follower_serves() {
    let (mut world, key, places) = setting();
    let follower = places.followers[0];
    let is_ok = |reply: &Bytes| reply[8..14] == *b"ERR_OK";
    for level in ["linearizable", "session", "bounded=100ms", "eventual"] {
        world.set_option("backup_read_level", level);
        assert!(is_ok(&ask(&mut world, follower, frame(BACKUP_META, GET)).unwrap().1), "{level}");
    }
    world.cut_off(follower);
    world.run(3_000 * MS);
    assert!(is_ok(&ask(&mut world, follower, frame(BACKUP_META, GET)).unwrap().1), "eventual is what Pegasus does");
    world.cut.clear();
    world.set_option("backup_read_level", "bounded=100ms");
    world.run(3_000 * MS);
    world.cut_off(follower);
    world.run(3_000 * MS);
    let (after, refused) = ask(&mut world, follower, frame(BACKUP_META, GET)).unwrap();
    let expected = r#"00000011 "ERR_INVALID_STATE" 80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007"#;
    assert_eq!((after, refused), (0, reply(expected)), "at once, so that it costs no more than a round trip");
    // A learner that has no data yet, and a node without the partition.
    let mut elsewhere = key.clone();
    elsewhere.table = 9;
    let nowhere = frame(&BACKUP_META.replace("08000100000002", "08000100000009"), GET);
    let expected = r#"00000014 "ERR_OBJECT_NOT_FOUND" 80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007"#;
    assert_eq!(ask(&mut world, places.leader, nowhere).unwrap().1, reply(expected));
}

/// Above the limit there is no reply at all; between the two rates it comes later; below, at once. Replies have nothing of ours.
#[test]
fn throttled_backup_requests_get_no_reply_or_a_late_one() {
    let (mut world, _, places) = setting();
    let follower = places.followers[0];
    let options =
        json!({ "backup_read_level": "eventual", "replica.backup_request_throttling": "9*delay*300,24*reject*1" });
    world.admin(NodeId(1), "set_options", &json!({ "name": "t", "options": options })).unwrap();
    world.run(200 * MS);
    let counts = |world: &mut World| told(world, follower)["tables"][1].clone();
    assert_eq!(counts(&mut world)["replicas"], 24);
    let sent = world.now;
    (0..10).for_each(|_| deliver(&mut world, JAVA, follower, frame(BACKUP_META, GET)));
    let replies = |world: &World| world.replies.iter().filter(|(_, to, _)| *to == JAVA).count();
    assert_eq!(replies(&world), 3);
    world.run(299 * MS);
    assert_eq!(replies(&world), 3);
    world.run(MS);
    assert_eq!((replies(&world), world.now.since(sent)), (8, 300 * MS));
    world.run(60_000 * MS);
    assert_eq!(replies(&world), 8, "two were dropped without a word");
    let all: Vec<&Bytes> = world.replies.iter().filter(|(_, to, _)| *to == JAVA).map(|(.., reply)| reply).collect();
    assert!(all.iter().all(|reply| reply == &all[0] && reply[..4] == bytes("00000067")[..]));
    let counts = counts(&mut world);
    assert_eq!(counts["throttling_delayed_backup_requests"], 5);
    assert_eq!(counts["throttling_rejected_backup_requests"], 2);
    // What does not carry the flag is not limited.
    assert!(ask(&mut world, places.leader, frame(META, GET)).is_some());
}

/// The flag on calls that no client sends it with: Pegasus' server serves every read with it, and no write.
#[test]
fn the_flag_on_other_calls_means_what_it_means_to_pegasus() {
    let (mut world, key, places) = setting();
    let follower = places.followers[0];
    let header = key.header(&Ask { extension: None, is_backup: true });
    let hash_key = Bytes::from_static(b"a");
    let mut answer = |body: Body| {
        let number = world.send(follower, &header, &body);
        world.wait(number).1.reply
    };
    assert!(matches!(answer(Body::SortKeyCount(hash_key.clone())), Reply::Count(count) if count.count == 1));
    let batch = BatchGet { keys: vec![FullKey { hash_key, sort_key: "b".into() }] };
    assert!(matches!(answer(Body::BatchGet(batch)), Reply::BatchGet(rows) if rows.data.len() == 1));
    let open = GetScanner { batch_size: 1, start_inclusive: true, ..GetScanner::default() };
    let Reply::Scan(page) = answer(Body::GetScanner(open)) else { panic!("a page") };
    assert_eq!((page.error, page.kvs.len()), (0, 1));
    assert!(matches!(answer(Body::Scan(Scan { context_id: 12_345 })), Reply::Scan(page) if page.error == 1));
    let put = Put { key: full_key(b"a", b"b"), value: "d".into(), expire_ts_seconds: 0 };
    let Reply::Failed(failure) = answer(Body::Put(put)) else { panic!("a write at a follower") };
    assert_eq!(failure.name, hedgerow_wire::ErrorName::InvalidState);
}

/// The node has no room for more extra attempts. Java fails at once on the name that would say so, and so nothing is said.
#[test]
fn a_backup_request_that_there_is_no_room_for_gets_no_reply() {
    let (mut world, _, places) = setting();
    let follower = places.followers[0];
    let now = world.clock();
    let node = &mut world.machines.get_mut(&follower).unwrap().node;
    for _ in 0..EXTRA_READS_QUEUED_MAX + 10 {
        node.handle(Event::Client(JAVA, frame(BACKUP_META, GET)), now);
    }
    world.settle(follower);
    world.run(20_000 * MS);
    let replies: Vec<&Bytes> = world.replies.iter().filter(|(_, to, _)| *to == JAVA).map(|(.., reply)| reply).collect();
    assert_eq!(replies.len(), EXTRA_READS_QUEUED_MAX);
    assert!(replies.iter().all(|reply| reply[8..14] == *b"ERR_OK"));
    assert_eq!(world.counts(follower)["queue"]["extra"]["shed"], 10);
    assert_eq!(in_flight(&mut world, follower), 0);
}
