//! What decoders take of memory, for inputs that promise much and hold little.

mod counting;

use bytes::{Bytes, BytesMut};
use counting::peak_of;
use hedgerow_fuzz::{File, as_file, mutate, reply_around, request_around, seeds};
use hedgerow_node::peer;
use hedgerow_placement::Catalogue;
use hedgerow_replication::Message;
use hedgerow_types::SessionToken;
use hedgerow_types::codec::{decode_proposal, decode_write_reply};
use hedgerow_types::random::Random;
use hedgerow_wire::{Method, call, decode_request};
use std::collections::BTreeMap;

/// A decoder, and what it may take: so many times the input's length, and a constant.
struct Decoder {
    name: &'static str,
    run: fn(Bytes),
    factor: usize,
    constant: usize,
}

/// A list of up to 4,096 elements in a frame of a peer may be sparse, and a megabyte is reserved for a frame that comes.
const PEER: Decoder =
    Decoder { name: "peer", run: |data| drop(peer::take(&mut BytesMut::from(data))), factor: 32, constant: 3 << 20 };
const MESSAGE: Decoder =
    Decoder { name: "message", run: |data| drop(Message::decode(data)), factor: 16, constant: 1 << 10 };
const REQUEST: Decoder =
    Decoder { name: "request", run: |data| drop(decode_request(data)), factor: 40, constant: 16 << 10 };
/// Lists in its lists may be sparse too: replies come from servers.
const REPLY: Decoder =
    Decoder { name: "reply", run: |data| drop(call::decode_reply(data)), factor: 40, constant: 32 << 10 };
const PROPOSAL: Decoder =
    Decoder { name: "proposal", run: |data| drop(decode_proposal(data)), factor: 20, constant: 1 << 10 };
const WRITE_REPLY: Decoder =
    Decoder { name: "write reply", run: |data| drop(decode_write_reply(data)), factor: 2, constant: 1 << 10 };
const TOKEN: Decoder =
    Decoder { name: "token", run: |data| drop(SessionToken::decode(&data)), factor: 16, constant: 1 << 10 };
const HEADER_ROW: Decoder = row_decoder("header", |data| row(b"header", data));
const META_ROW: Decoder = row_decoder("meta", |data| row(b"meta", data));
const NODE_ROW: Decoder = row_decoder("node", |data| row(b"node/00001", data));
const TABLE_ROW: Decoder = row_decoder("table", |data| row(b"table/0000000001", data));
/// A node starts with it.
const IDENTITY: Decoder = file_decoder("identity", |data| as_file(File::Identity, &data));
const CATALOGUE: Decoder = file_decoder("catalogue", |data| as_file(File::Catalogue, &data));

const fn row_decoder(name: &'static str, run: fn(Bytes)) -> Decoder {
    Decoder { name, run, factor: 16, constant: 16 << 10 }
}

const fn file_decoder(name: &'static str, run: fn(Bytes)) -> Decoder {
    Decoder { name, run, factor: 48, constant: 256 << 10 }
}

impl Decoder {
    #[track_caller]
    fn check(&self, input: impl Into<Bytes>, what: &str) {
        let input = input.into();
        let (length, most) = (input.len(), self.factor * input.len() + self.constant);
        let peak = peak_of(|| (self.run)(input));
        assert!(peak <= most, "{} takes {peak} bytes for {length}, of {what}", self.name);
    }
}

/// A row among sound ones.
fn row(key: &'static [u8], value: Bytes) {
    let mut rows = BTreeMap::from(
        [
            ("version", "1"),
            ("header", r#"{"format":1,"cluster":2,"next_table":1,"next_replica":2}"#),
            ("meta", r#"{"hosts":[[1,11]],"partition":{"version":1,"leader":1,"voters":[[0,1]]}}"#),
            ("node/00001", r#"{"address":"a:1","incarnation":11}"#),
        ]
        .map(|(key, value)| (Bytes::from(key), Bytes::from(value))),
    );
    assert!(Catalogue::from_rows(&rows).is_ok());
    rows.insert(Bytes::from_static(key), value);
    drop(Catalogue::from_rows(&rows));
}

const SIZE: usize = 32 << 10;

#[test]
fn mutated_seeds_take_no_more_memory_than_they_may() {
    let corpus = seeds();
    let mut random = Random::new(1);
    for number in 0..10_000 {
        let (what, seed) = &corpus[number % corpus.len()];
        let mut input = seed.clone();
        mutate(&mut input, &corpus[random.below(corpus.len() as u64) as usize].1, &mut random);
        for decoder in [PEER, MESSAGE, REQUEST, REPLY, PROPOSAL, WRITE_REPLY, TOKEN, HEADER_ROW] {
            decoder.check(input.clone(), what);
        }
    }
}

/// Every kind and every field: those that are lists take elements of nothing.
#[test]
fn n4c_frames_of_peers_that_are_lists_of_nothing_take_little() {
    for (kind, field) in (1..=20_u8).flat_map(|kind| (1..=45_u8).map(move |field| (kind, field))) {
        let key =
            |wire: u8| if field < 16 { vec![field << 3 | wire] } else { vec![(field << 3 | wire) | 128, field >> 4] };
        for element in [[&key(2)[..], &[0]].concat(), [&key(0)[..], &[1]].concat()] {
            let list = element.repeat(SIZE / element.len());
            let inside = [
                &key(2)[..],
                &[0x80 | (list.len() & 127) as u8, 0x80 | (list.len() >> 7 & 127) as u8],
                &[(list.len() >> 14) as u8],
                &list,
            ];
            for body in [list.clone(), inside.concat()] {
                let mut frame = (body.len() as u32 + 1).to_le_bytes().to_vec();
                frame.push(kind);
                frame.extend(body);
                // What is long enough to be all of it is not reserved for.
                let decoder = Decoder { constant: 2 << 20, ..PEER };
                decoder.check(frame, &format!("kind {kind}, field {field}"));
            }
        }
    }
    PEER.check(&[0, 0, 0, 2, 8][..], "a length alone");
}

/// The same of clients' calls: lists of structs, of strings and of numbers, and maps.
#[test]
fn n4c_calls_that_are_lists_of_nothing_take_little() {
    for (method, field) in Method::ALL.iter().flat_map(|method| (1..=24_u8).map(move |field| (*method, field))) {
        for (list, element, size) in [(15_u8, &[12_u8][..], 1), (15, &[11], 4), (15, &[8], 4), (13, &[11, 11], 8)] {
            let head = [&[list, 0, field][..], element, &((SIZE / size) as u32).to_be_bytes()].concat();
            let body = [&head[..], &[0; SIZE], &[0, 0]].concat();
            let what = format!("{method:?}, field {field}, {list} of {element:?}");
            REQUEST.check(request_around(method, &[&[12, 0, 1], &body[..]].concat()), &what);
            REPLY.check(reply_around(method, &body), &what);
        }
    }
}

#[test]
fn n4c_proposals_that_are_lists_of_nothing_take_little() {
    for (kind, fields, item) in [(3_u8, 4, 8), (4, 4, 4), (6, 16, 5)] {
        for count in [SIZE / item, SIZE] {
            let head = [&[2][..], &[0; 20], &[kind], &[0; 16][..fields], &(count as u32).to_le_bytes()].concat();
            PROPOSAL.check([&head[..], &[0; SIZE]].concat(), &format!("kind {kind}, {count} items"));
        }
    }
}

#[test]
fn json_that_is_long_lists_takes_little() {
    let table = r#"{"name":"a","kind":"hash","replica_count":1,"state":"creating","created_unix_seconds":1,"hosts":[[1,11]],"partitions":[{"version":1,"leader":1,"voters":[[0,1]]}"#;
    let meta = r#"{"hosts":[[1,11]],"partition":{"version":1,"leader":1,"voters":[[0,1]"#;
    let identity = r#"{"version":1,"node":1,"incarnation":1,"directories":1,"cluster":2,"founders":["#;
    for (decoder, start, middle, end) in [
        (META_ROW, meta, ",[0,1]", "]}}"),
        (META_ROW, r#"{"hosts":[[1,11]"#, ",[1,1]", r#"],"partition":{"version":1,"leader":1,"voters":[[0,1]]}}"#),
        (NODE_ROW, r#"{"address":"a:1","incarnation":1,"retired":[1"#, ",1", "]}"),
        (NODE_ROW, r#"{"address":"a:1","incarnation":1,"labels":{"a":"""#, r#","b":"""#, "}}"),
        (NODE_ROW, "", "[", ""),
        (TABLE_ROW, table, r#",{"version":1,"leader":1,"voters":[[0,1]]}"#, "]}"),
        (TABLE_ROW, table, r#",{"version":1,"leader":1,"voters":[]}"#, "]}"),
        (IDENTITY, identity, r#"{"node":1,"incarnation":1},"#, r#"{"node":1,"incarnation":1}]}"#),
        (IDENTITY, identity, "", r#"],"logs":["/data"]}"#),
        (IDENTITY, &[identity, r#"],"logs":["""#].concat(), r#","""#, "]}"),
        (IDENTITY, &[identity, r#"],"mounted":["""#].concat(), r#","""#, "]}"),
        (IDENTITY, "", "[", ""),
        (CATALOGUE, r#"{"a":"""#, r#","b":"""#, "}"),
        (CATALOGUE, "", "[", ""),
    ] {
        let input = format!("{start}{}{end}", middle.repeat(SIZE / middle.len().max(1)));
        decoder.check(input, &format!("{middle} after {start}"));
    }
}
