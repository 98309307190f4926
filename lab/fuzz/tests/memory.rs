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

/// Kinds of frames between nodes, and numbers of fields in them, with a few that nobody has.
const KINDS: std::ops::RangeInclusive<u8> = 1..=20;
const FIELDS: std::ops::RangeInclusive<u8> = 1..=45;

fn key(field: u8, wire: u8) -> Vec<u8> {
    if field < 16 { vec![field << 3 | wire] } else { vec![(field << 3 | wire) | 128, field >> 4] }
}

/// A field with a length.
fn wrapped(field: u8, inside: &[u8]) -> Vec<u8> {
    let size = inside.len();
    let length = [0x80 | (size & 127) as u8, 0x80 | (size >> 7 & 127) as u8, (size >> 14) as u8];
    let length = if size < 128 { &[size as u8][..] } else { &length };
    [&key(field, 2)[..], length, inside].concat()
}

fn frame_of(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_le_bytes()[..], &[kind], body].concat()
}

/// Whether the decoder looks for a message there: the fields of `path`, each in the one before it. Nothing is one, and a field of wire
/// type 7 is in none.
fn is_message(kind: u8, path: &[u8]) -> bool {
    let is_taken = |inside: &[u8]| {
        let body = path.iter().rev().fold(inside.to_vec(), |inside, field| wrapped(*field, &inside));
        peer::take(&mut BytesMut::from(&frame_of(kind, &body)[..])).is_ok()
    };
    is_taken(&[]) && !is_taken(&[7])
}

/// Where the decoder looks for messages, up to `depth` in each other; a frame's body is in none.
fn message_paths(kind: u8, depth: usize) -> Vec<Vec<u8>> {
    let (mut all, mut from) = (vec![Vec::new()], 0);
    for _ in 0..depth {
        let last = all.split_off(from);
        let further = last.iter().flat_map(|path: &Vec<u8>| FIELDS.map(|field| [&path[..], &[field]].concat()));
        let further: Vec<_> = further.filter(|path| is_message(kind, path)).collect();
        all.extend(last);
        from = all.len();
        all.extend(further);
    }
    all
}

/// As many of the innermost `element` as `counts` says for each field of the path, from the outermost on, 0 = what makes `size` bytes.
fn nested(path: &[u8], counts: &[usize], element: &[u8], size: usize) -> Vec<u8> {
    let levels = path.iter().zip(counts).rev();
    levels.fold(element.to_vec(), |inside, (field, count)| {
        let one = wrapped(*field, &inside);
        one.repeat(if *count == 0 { (size / one.len()).max(1) } else { *count })
    })
}

/// Every kind and every field, in every message that a frame may have: those that are lists take elements of nothing.
#[test]
fn n4c_frames_of_peers_that_are_lists_of_nothing_take_little() {
    // What is long enough to be all of it is not reserved for.
    let decoder = Decoder { constant: 2 << 20, ..PEER };
    for (kind, path) in KINDS.flat_map(|kind| message_paths(kind, 2).into_iter().map(move |path| (kind, path))) {
        for field in FIELDS {
            for element in [[&key(field, 2)[..], &[0]].concat(), [&key(field, 0)[..], &[1]].concat()] {
                for count in [SIZE / element.len(), 33] {
                    let mut counts = vec![1; path.len()];
                    if count == 33 {
                        counts.iter_mut().take(1).for_each(|count| *count = 0);
                    }
                    let body = nested(&path, &counts, &element.repeat(count), SIZE);
                    let what = format!("{count} of kind {kind}, {path:?}, field {field}");
                    decoder.check(frame_of(kind, &body), &what);
                }
            }
        }
    }
    PEER.check(&[0, 0, 0, 2, 8][..], "a length alone");
}

/// The same of lists in lists in lists, however many elements each of them has.
#[test]
fn n4c_frames_of_peers_that_are_lists_in_lists_take_little() {
    let paths = |kind| message_paths(kind, 3).into_iter().filter(|path| path.len() > 1);
    let all: Vec<(u8, Vec<u8>)> = KINDS.flat_map(|kind| paths(kind).map(move |path| (kind, path))).collect();
    for deep in [(3, vec![4, 8, 20]), (17, vec![2, 5, 1])] {
        assert!(all.contains(&deep), "{deep:?} of {all:?}");
    }
    for (kind, path) in all {
        let few = [1_usize, 33, 1_024];
        for (fill, number) in
            (0..path.len()).flat_map(|fill| (0..few.len().pow(path.len() as u32 - 1)).map(move |it| (fill, it)))
        {
            let mut rest = number;
            let count = |level| {
                let count = few[rest % few.len()];
                rest /= if level == fill { 1 } else { few.len() };
                if level == fill { 0 } else { count }
            };
            let counts: Vec<usize> = (0..path.len()).map(count).collect();
            // No more than there is room for.
            if counts.iter().filter(|count| **count > 0).product::<usize>() > SIZE {
                continue;
            }
            for size in [SIZE, 8 * SIZE] {
                let body = nested(&path, &counts, &[], size);
                PEER.check(frame_of(kind, &body), &format!("kind {kind}, {path:?}, {counts:?}"));
            }
        }
    }
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
