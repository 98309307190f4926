//! Messages: the round trip, the golden bytes, and what is refused.

use super::*;
use hedgerow_types::NodeId;
use proptest::prelude::*;

fn bytes_of(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    assert_eq!(out.len(), message.encoded_size());
    out.freeze()
}

fn append(entries: &[(u64, EntryKind, &[u8])]) -> Message {
    let mut core = eraftpb::Message::default();
    core.set_msg_type(MessageType::MsgAppend);
    (core.from, core.to, core.term, core.index, core.log_term, core.commit) = (1, 2, 9, 100, 3, 99);
    let entry = |(i, &(term, kind, data)): (usize, &(u64, EntryKind, &[u8]))| {
        core_entry(LogPosition { term, index: 101 + i as u64 }, kind, Bytes::copy_from_slice(data))
    };
    core.set_entries(entries.iter().enumerate().map(entry).collect::<Vec<_>>().into());
    Message { core, stamp: 7, echo: 0 }
}

fn kinds() -> impl Strategy<Value = MessageType> {
    proptest::sample::select(KINDS.iter().map(|known| known.0).filter(|&kind| is_sent(kind)).collect::<Vec<_>>())
}

fn entries() -> impl Strategy<Value = Vec<(u64, bool, Vec<u8>)>> {
    proptest::collection::vec((1..3_u64, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..20)), 0..5)
}

prop_compose! {
    fn messages()(
        kind in kinds(),
        numbers in proptest::array::uniform5(0..NUMBER_MAX - 100),
        (from, to, stamp, echo) in any::<(u64, u64, u64, u64)>(),
        (reject, is_transfer) in any::<(bool, bool)>(),
        entries in entries(),
        voters in proptest::collection::btree_set(1..99_u64, 1..5),
    ) -> Message {
        let mut core = eraftpb::Message::default();
        core.set_msg_type(kind);
        (core.from, core.to, core.reject) = (from, to, reject);
        if is_transfer {
            core.context = Bytes::from_static(TRANSFER_CONTEXT);
        }
        core.term = numbers[0];
        match kind {
            MessageType::MsgAppend => {
                (core.index, core.log_term, core.commit) = (numbers[1], 1, numbers[3]);
                (core.term, core.log_term) = (core.term + 10, 1);
                let mut term = 1;
                let entry = |(i, (more, is_change, data)): (usize, (u64, bool, Vec<u8>))| {
                    term = (term + more).min(core.term);
                    let kind = if is_change { EntryKind::Membership } else { EntryKind::Normal };
                    let data = if is_change { Bytes::from([&[1][..], &data].concat()) } else { Bytes::from(data) };
                    core_entry(LogPosition { term, index: core.index + 1 + i as u64 }, kind, data)
                };
                core.set_entries(entries.into_iter().enumerate().map(entry).collect::<Vec<_>>().into());
            }
            MessageType::MsgSnapshot => {
                core.term += 1;
                let position = LogPosition { term: core.term, index: numbers[1] + 1 };
                let membership = Membership::of_voters(voters.into_iter().map(ReplicaId));
                core.set_snapshot(core_snapshot(&SnapshotMeta { position, membership, id: stamp }));
            }
            MessageType::MsgAppendResponse => {
                (core.index, core.log_term, core.commit) = (numbers[1], numbers[2], numbers[3]);
                core.reject_hint = numbers[4];
            }
            MessageType::MsgHeartbeat => (core.commit, core.index) = (numbers[1], numbers[2]),
            MessageType::MsgHeartbeatResponse => core.commit = numbers[1],
            MessageType::MsgTimeoutNow => {}
            _ => {
                (core.index, core.log_term, core.commit) = (numbers[1], numbers[2], numbers[3]);
                core.commit_term = numbers[4];
            }
        }
        Message { core, stamp, echo }
    }
}

proptest! {
    #[test]
    fn a_message_survives_the_round_trip_and_every_cut_is_refused(message in messages()) {
        let data = bytes_of(&message);
        prop_assert_eq!(Message::decode(data.clone()), Ok(message));
        for cut in 0..data.len() {
            prop_assert!(Message::decode(data.slice(..cut)).is_err());
        }
        let longer = Bytes::from([&data[..], &[0]].concat());
        prop_assert!(Message::decode(longer).is_err());
    }

    #[test]
    fn any_bytes_decode_or_are_refused(kind: u8, flags in 0..4_u8, rest: Vec<u8>) {
        let data = [&[VERSION, kind % 12, flags][..], &rest].concat();
        for bytes in [data, rest] {
            // Numbers have several forms, of which only one is written.
            if let Ok(message) = Message::decode(Bytes::from(bytes)) {
                prop_assert_eq!(Message::decode(bytes_of(&message)), Ok(message));
            }
        }
    }

    #[test]
    fn a_damaged_byte_decodes_to_something_or_is_refused(message in messages(), at: usize, value: u8) {
        let mut data = bytes_of(&message).to_vec();
        let at = at % data.len();
        data[at] = value;
        if let Ok(message) = Message::decode(Bytes::from(data)) {
            prop_assert_eq!(Message::decode(bytes_of(&message)), Ok(message));
        }
    }
}

#[test]
fn the_form_on_the_wire_is_fixed() {
    let message = append(&[(3, EntryKind::Normal, b"ab"), (9, EntryKind::Membership, b"c")]);
    let expected: Vec<u8> = [
        &[VERSION, 1, 0][..],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[100, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[99, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'],
        &[9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, b'c'],
    ]
    .concat();
    assert_eq!(bytes_of(&message), expected);

    let mut core = eraftpb::Message::default();
    core.set_msg_type(MessageType::MsgRequestVote);
    (core.from, core.to, core.term, core.index) = (ReplicaId::new(1, NodeId(2)).0, 3, 4, 5);
    (core.log_term, core.commit, core.commit_term) = (6, 7, 8);
    core.context = Bytes::from_static(TRANSFER_CONTEXT);
    let expected: Vec<u8> = [
        &[VERSION, 3, 2][..],
        &[2, 0, 1, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0],
        &[0; 16],
        &[5, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
        &[8, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes_of(&Message::new(core)), expected);
}

#[test]
fn data_of_entries_is_not_copied() {
    let data = bytes_of(&append(&[(3, EntryKind::Normal, b"some data")]));
    let message = Message::decode(data.clone()).unwrap();
    assert!(data.as_ptr_range().contains(&message.core.entries[0].data.as_ptr()));
}

#[test]
fn entries_whose_terms_fall_or_exceed_the_message_are_refused() {
    for terms in [[4, 3], [2, 3], [3, 10], [0, 1]] {
        let message = append(&[(terms[0], EntryKind::Normal, b""), (terms[1], EntryKind::Normal, b"")]);
        assert!(Message::decode(bytes_of(&message)).is_err(), "{terms:?}");
    }
}

#[test]
fn a_large_append_is_cut_into_parts_that_follow_each_other() {
    let whole = append(&[
        (3, EntryKind::Normal, &[0; 40]),
        (4, EntryKind::Normal, &[0; 40]),
        (4, EntryKind::Normal, &[0; 400]),
        (5, EntryKind::Normal, &[]),
        (6, EntryKind::Normal, &[]),
    ]);
    let mut parts = Vec::new();
    whole.split(120, |part| parts.push((part.core.index, part.core.log_term, part.entry_count())));
    assert_eq!(parts, [(100, 3, 2), (102, 4, 1), (103, 4, 2)]);
}

#[test]
fn a_change_made_here_is_sent_in_our_own_form() {
    let mut entry =
        core_entry(LogPosition { term: 1, index: 1 }, EntryKind::Membership, Bytes::from_static(b"protobuf"));
    entry.context = Bytes::from_static(b"ours");
    assert_eq!(data_of(&entry), &b"ours"[..]);
    entry.context = Bytes::new();
    entry.data = Bytes::new();
    assert_eq!(data_of(&entry), &crate::membership::Change::LEAVE.encode());
}

/// The core's batching once put entries behind an empty append with another index: they arrived under indices that were
/// not theirs, with matching terms, and replicas differed.
#[test]
fn entries_that_do_not_follow_their_message_are_noticed() {
    let mut message = append(&[(1, EntryKind::Normal, b"a"), (1, EntryKind::Normal, b"b")]);
    assert!(message.is_consecutive());
    message.core.index += 1;
    assert!(!message.is_consecutive());
}

#[test]
fn n1x_what_is_small_is_kept_up_to_the_first_entry_that_is_not() {
    let entries: [(u64, EntryKind, &[u8]); 3] =
        [(3, EntryKind::Normal, b"abc"), (3, EntryKind::Membership, b"d"), (9, EntryKind::Normal, b"efgh")];
    let kept = |entry_size_max: usize, size_max: usize| {
        let mut message = append(&entries);
        message.keep_small(entry_size_max, size_max);
        assert_eq!(message, append(&entries[..message.entry_count()]), "nothing else changes");
        message.entry_count()
    };
    assert_eq!(kept(4, usize::MAX), 3);
    assert_eq!(kept(3, usize::MAX), 2);
    assert_eq!(kept(1, usize::MAX), 0, "the small one after it does not count");
    assert_eq!(kept(4, 3 * ENTRY_OVERHEAD + 8), 3);
    assert_eq!(kept(4, 3 * ENTRY_OVERHEAD + 7), 2);
    assert_eq!(kept(4, ENTRY_OVERHEAD), 0);
}
