//! What nodes say to each other: every kind of frame, the messages of groups in them, greetings and the catalogue.

use bytes::{Bytes, BytesMut};
use hedgerow_node::peer::{
    AdminReply, AdminRequest, Began, CataloguePush, CatalogueRow, DiskReport, Forward, Forwarded, Founder, Frame,
    Greeting, LogAt, PeerReport, Principal, Probe, Pulse, PulseOf, Refused, ReplicaReport, ReplicaState, Report,
    SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress, TransferReport, put, take,
};
use hedgerow_node::read_index_frame::{GroupReply, GroupRequest, ReadIndexRequests};
use hedgerow_node::tail_frame::{KeySpan, TailRead, TailReplies, TailReply, TailRequest, TailRequests};
use hedgerow_placement::{Ancestor, Catalogue, Life, Node, TableSpec};
use hedgerow_replication::{Message, ReadIndexReply};
use hedgerow_types::log::LogPosition;
use hedgerow_types::{GroupId, Incarnation, NodeId, ReplicaId, Span};
use std::collections::BTreeMap;

/// Frame after frame until one is broken or incomplete, and what is in them.
pub(crate) fn as_peer(data: &[u8]) {
    let first = &data[..data.len().min(Greeting::size(data))];
    if let Ok(greeting) = Greeting::decode(first) {
        assert_eq!(greeting.encode(), first);
    }
    as_message(Bytes::copy_from_slice(data));
    let mut stream = BytesMut::from(data);
    while let Ok(Some(frame)) = take(&mut stream) {
        let mut again = BytesMut::new();
        put(&mut again, &frame);
        match &frame {
            Frame::Replication { message, .. } => as_message(message.clone()),
            Frame::SnapshotBegin(begin) => as_message(begin.message.clone()),
            Frame::Catalogue(push) => as_catalogue(push),
            _ => {}
        }
        assert_eq!(take(&mut again), Ok(Some(frame)));
        assert!(again.is_empty());
    }
}

/// Every form that is accepted is the one in which it is written.
fn as_message(data: Bytes) {
    let Ok(message) = Message::decode(data.clone()) else { return };
    let mut again = BytesMut::new();
    message.encode(&mut again);
    assert_eq!((message.encoded_size(), again.freeze()), (data.len(), data));
}

fn as_catalogue(push: &CataloguePush) {
    let rows: BTreeMap<Bytes, Bytes> = push.rows.iter().map(|row| (row.key.clone(), row.value.clone())).collect();
    let Ok(catalogue) = Catalogue::from_rows(&rows) else { return };
    assert_eq!(Catalogue::from_rows(&catalogue.rows()), Ok(catalogue));
}

/// A greeting, one frame of every kind, and one message of every kind.
pub(crate) fn frames() -> Vec<(String, Vec<u8>)> {
    let life = Life { incarnation: Incarnation(7), boot: 8, start: 9 };
    let greeting = Greeting {
        node: 2,
        to: 1,
        cluster: 3,
        life,
        logs: vec![LogAt { log: 4, batch: 5 }],
        ancestors: vec![Ancestor { boot: 6, start: 7 }],
    };
    let mut seeds = vec![("peer-greeting".to_owned(), greeting.encode().to_vec())];
    for (name, frame) in every_kind() {
        let mut out = BytesMut::new();
        put(&mut out, &frame);
        seeds.push((format!("peer-{name}"), out.to_vec()));
    }
    seeds.extend(messages().map(|(name, message)| (format!("message-{name}"), message)));
    seeds
}

fn group() -> GroupId {
    GroupId::new(3, 4)
}

fn from() -> ReplicaId {
    ReplicaId::new(5, NodeId(1))
}

fn to() -> ReplicaId {
    ReplicaId::new(6, NodeId(2))
}

fn answer(commit: Option<LogPosition>) -> GroupReply {
    GroupReply { group: group(), from: from(), to: to(), reply: ReadIndexReply { term: 2, id: 7, commit } }
}

fn spans() -> Vec<KeySpan> {
    let key = |text: &'static [u8]| Bytes::from_static(text);
    let range = |end: Option<&'static [u8]>| Span::Range { start: key(b"a"), end: end.map(key) };
    [Span::Key(key(b"key")), range(Some(b"b")), range(None)].map(KeySpan::of).to_vec()
}

one_of_each! {
    fn every_kind() -> Frame {
        Replication => Frame::Replication { group: group(), from: from(), to: to(), message: Bytes::from(append()) },
        Probe => Frame::Probe(Probe {
            wants_answer: true,
            incarnation: 1,
            cluster: 2,
            founders: vec![Founder { node: 1, incarnation: 7 }, Founder { node: 2, incarnation: 8 }],
            address: "10.0.0.1:34601".into(),
        }),
        Report => Frame::Report(report(group(), from(), to())),
        Catalogue => Frame::Catalogue(catalogue()),
        AdminRequest => Frame::AdminRequest(AdminRequest {
            id: 1,
            command: "status".into(),
            argument: "{}".into(),
            sender: 2,
            repeated_to: 3,
            principal: Some(Principal { user: "app".into(), is_administrator: true, password: b"0123456789abcdef"[..].into() }),
        }),
        AdminReply => Frame::AdminReply(AdminReply { id: 1, refusal_kind: 2, answer: "{\"a\":1}".into() }),
        SnapshotBegin => Frame::SnapshotBegin(SnapshotBegin {
            group: group().to_u64(),
            from: from().0,
            to: to().0,
            id: 9,
            message: messages().last().map(|(_, message)| Bytes::from(message)).unwrap_or_default(),
            files: vec![SnapshotFile { name: "000007.sst".into(), size: 3 }],
        }),
        SnapshotChunk => Frame::SnapshotChunk(SnapshotChunk {
            group: group().to_u64(),
            to: to().0,
            id: 9,
            file: 1,
            offset: 2,
            data: Bytes::from_static(b"abc"),
            crc: 0x364b_3fb7,
        }),
        SnapshotProgress => Frame::SnapshotProgress(SnapshotProgress {
            group: group().to_u64(),
            from: to().0,
            id: 9,
            file: 1,
            offset: 5,
            is_refused: true,
            again: true,
            is_busy: true,
            former: from().0,
            lacking: 6,
            has_room: true,
        }),
        ReadIndexRequests => Frame::ReadIndexRequests(ReadIndexRequests {
            id: 7,
            requests: vec![GroupRequest { group: group(), from: from(), to: to(), term: 2 }; 2],
        }),
        ReadIndexReplies => Frame::ReadIndexReplies(vec![answer(Some(LogPosition { index: 9, term: 2 })), answer(None)]),
        TailRequests => Frame::TailRequests(TailRequests {
            id: 7,
            requests: vec![TailRequest {
                group: group().to_u64(),
                from: from().0,
                to: to().0,
                after: 9,
                reads: vec![TailRead { spans: spans() }, TailRead::default()],
            }],
        }),
        TailReplies => Frame::TailReplies(TailReplies {
            id: 7,
            replies: vec![
                TailReply {
                    group: group().to_u64(),
                    from: to().0,
                    to: from().0,
                    is_known: true,
                    touched: vec![0, 11],
                    time_least: 5,
                    time_most: 6,
                },
                TailReply { group: group().to_u64(), from: to().0, to: from().0, ..TailReply::default() },
            ],
        }),
        Forward => Frame::Forward(Forward { id: 1, request: Bytes::from_static(b"request") }),
        Forwarded => Frame::Forwarded(Forwarded { id: 1, reply: Bytes::from_static(b"reply") }),
        Began => Frame::Began(Began { client_id: 77, request_id: 4, attempt: -1 }),
        Pulse => Frame::Pulse(Pulse {
            sent: 1,
            echo: 2,
            held: 3,
            measured: vec![
                PulseOf { node: 2, micros: Some(250), score: 100 },
                PulseOf { node: 3, ..PulseOf::default() },
            ],
            started: 4,
            unix_micros: 1_700_000_000_000_000,
            logs: vec![LogAt { log: 4, batch: 5 }],
        }),
        Refused => Frame::Refused(Refused { reason: 5, known: 3, leads: true, cluster: 9 }),
    }
}

fn report(group: GroupId, from: ReplicaId, to: ReplicaId) -> Report {
    let transfer = Some(TransferReport { bytes_done: 1, bytes_total: 2, bytes_per_second: 3 });
    let leader = ReplicaReport {
        group: group.to_u64(),
        replica: from.0,
        state: ReplicaState::Leader as u32,
        term: 2,
        commit: 9,
        applied: 8,
        leader: from.0,
        peers: vec![PeerReport { replica: to.0, matched: 7, is_active: true, needs_checkpoint: true, transfer }],
        voters: vec![from.0, to.0],
        staleness_ms: Some(5),
        is_settled: true,
        is_full: true,
        is_damaged: true,
        is_short: true,
        lacking: 8,
        parts_refused: 3,
        log_needed: Some(4),
        log_held: Some(3),
    };
    Report {
        incarnation: 7,
        address: "127.0.0.1:34801".into(),
        catalogue_version: 3,
        next_replica: 8,
        replicas: vec![leader],
        is_complete: true,
        labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        replicas_max: 1_000,
        disks: vec![DiskReport { free: Some(1), total: 2, is_full: true, is_stalled: true }],
        log_bytes: vec![5],
        log_bytes_max: 6,
        log_bytes_allowed: vec![4],
        missing_directories: vec!["/b: it is not there".into()],
        is_behind: true,
        process: 12,
        log_layout: "node".into(),
        rights: "required".into(),
        certificates_expire_at: 1_795_342_500,
    }
}

/// Three nodes and a table of two partitions.
fn catalogue() -> CataloguePush {
    let node = |id: u16| (NodeId(id), Node::new(format!("127.0.0.1:{}", 34_800 + id), Incarnation(u64::from(id))));
    let nodes: Vec<_> = (1..=3).map(node).collect();
    let meta: Vec<_> = nodes.iter().map(|(id, _)| *id).collect();
    let mut catalogue = Catalogue::bootstrap(2, &nodes, &meta).expect("three nodes found a cluster");
    let options = BTreeMap::from([("read_level".to_owned(), "session".to_owned())]);
    let spec = TableSpec { options, ..TableSpec::hash("t", 2, 3) };
    catalogue.create_table(spec, &meta.iter().copied().collect(), 1).expect("it fits");
    let rows = catalogue.rows().into_iter().map(|(key, value)| CatalogueRow { key, value }).collect();
    CataloguePush { cluster: 2, version: catalogue.version, rows }
}

/// `version | kind | flags | from | to | term | stamp | echo`, and then what the kind has.
fn message(kind: u8, flags: u8, body: &[u64]) -> Vec<u8> {
    let mut out = vec![2, kind, flags];
    let head = [5_u64 << 16 | 1, 6 << 16 | 2, 2, 1_000, 900];
    head.iter().chain(body).for_each(|number| out.extend(number.to_le_bytes()));
    out
}

/// With an entry of each kind.
fn append() -> Vec<u8> {
    let mut out = message(1, 0, &[8, 1, 7]);
    out.extend(2_u32.to_le_bytes());
    for (kind, data) in [(0_u8, &b"entry"[..]), (1, &[1, 0, 1, 0, 0, 0, 2, 6, 0, 0, 0, 0, 0, 0, 0])] {
        out.extend(2_u64.to_le_bytes());
        out.push(kind);
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    out
}

/// By name, the snapshot last.
fn messages() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let mut snapshot = message(9, 0, &[8, 2, 77]);
    snapshot.extend([1, 1]);
    for list in [&[1_u64, 2][..], &[4], &[1, 3], &[3]] {
        snapshot.extend((list.len() as u32).to_le_bytes());
        list.iter().for_each(|replica| snapshot.extend(replica.to_le_bytes()));
    }
    [
        ("append", append()),
        ("append_response", message(2, 1, &[8, 2, 7, 3])),
        ("vote", message(3, 2, &[8, 2, 7, 2])),
        ("vote_response", message(4, 1, &[0, 0, 7, 2])),
        ("pre_vote", message(5, 0, &[8, 2, 7, 2])),
        ("pre_vote_response", message(6, 0, &[0, 0, 7, 2])),
        ("heartbeat", message(7, 0, &[7, 7])),
        ("heartbeat_response", message(8, 0, &[7])),
        ("timeout_now", message(10, 0, &[])),
        ("snapshot", snapshot),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The bytes are written by hand, because nothing outside `hedgerow_replication` makes messages: they must be what its
    /// encoder writes.
    #[test]
    fn there_is_a_message_of_every_kind_and_the_encoder_writes_the_same() {
        for (name, bytes) in messages() {
            let message = Message::decode(bytes.clone().into()).expect(name);
            let mut out = BytesMut::new();
            message.encode(&mut out);
            assert_eq!((message.kind_name(), &out[..]), (name, &bytes[..]));
        }
        let names: BTreeSet<&str> = messages().map(|(name, _)| name).collect();
        assert_eq!(names, Message::kind_names().collect());
    }

    #[test]
    fn the_catalogue_in_a_frame_is_one() {
        let rows = catalogue().rows.into_iter().map(|row| (row.key, row.value)).collect();
        assert!(Catalogue::from_rows(&rows).is_ok());
    }
}
