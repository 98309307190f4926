//! Replies that fit the log and the clock, and every way in which one may not.

use super::*;
use bytes::{Bytes, BytesMut};
use hedgerow_types::ClientId;
use hedgerow_types::codec::encode_proposal;
use hedgerow_types::op::{Proposal, Write};
use std::time::Duration;

const GROUP: GroupId = GroupId::new(1, 0);
const MS: Time = 1_000_000;
const BOUNDED: ReadLevel = ReadLevel::Bounded(Duration::from_millis(100));

/// The value of key 0 at index `10 * n` is `n`, applied at `n` seconds and, but for the last, shown to client 7 half a
/// second later.
fn oracle() -> Oracle {
    let mut oracle = Oracle::default();
    for index in 2..=40 {
        let is_write = index % 10 == 0;
        let (n, seconds) = ((index / 10) as i64, index / 10 * 1_000 * MS);
        let data = if is_write { proposal(n as u64, n) } else { Bytes::new() };
        if is_write {
            oracle.note_begin(&begun((9, n as u64), Call::Put(n)));
        }
        let kind = if index % 10 == 1 { EntryKind::Membership } else { EntryKind::Normal };
        let entry = Entry { index, term: 1, kind, data };
        let truth = oracle.groups.entry(GROUP).or_default();
        truth.apply(&entry).expect("a good log");
        truth.heads.rise(seconds, index, 0);
        if is_write && n < 4 {
            truth.shown.rise(seconds + 500 * MS, index, 7);
        }
    }
    oracle
}

fn begun(id: WriteId, call: Call) -> Begun {
    Begun { group: GROUP, id, key: 0, call, expire_at: 0 }
}

fn proposal(sequence: u64, value: i64) -> Bytes {
    let write = Write::Put { key: Bytes::new(), value: Bytes::from(value.to_string()), expire_at: 0 };
    let mut data = BytesMut::new();
    encode_proposal(&Proposal { client: ClientId(9), sequence, now: 0, is_agreed: false, write }, &mut data);
    data.freeze()
}

fn seen(index: Option<Index>, asked_ms: Time) -> Seen {
    Seen { machine: 1, index, staleness: None, asked: asked_ms * MS, served: (asked_ms + 10) * MS, floor: 0 }
}

fn read(level: ReadLevel, content: Content, seen: Seen) -> Result<(), String> {
    let operation = Operation {
        client: 3,
        key: 0,
        call: Call::Get(level),
        start: seen.asked,
        end: seen.served + MS,
        outcome: Outcome::Ok(Answer::Content(content)),
        seen: Some(seen),
    };
    oracle().handle_operation(GROUP, &operation)
}

fn complaint(level: ReadLevel, content: Content, seen: Seen) -> String {
    read(level, content, seen).expect_err("wrong")
}

#[test]
fn what_is_shown_is_what_the_log_says_at_that_index() {
    let level = ReadLevel::Eventual;
    for (index, content) in [(1, None), (9, None), (10, Some(1)), (19, Some(1)), (40, Some(4))] {
        assert_eq!(read(level, content, seen(Some(index), 4_990)), Ok(()), "index {index}");
    }
    let wrong = complaint(level, Some(2), seen(Some(19), 4_990));
    assert!(wrong.contains("at index 19 the record held Some(1)") && wrong.contains("client 3"), "{wrong}");
    assert!(wrong.contains("key 0") && wrong.contains("by m2"), "{wrong}");
    assert!(complaint(level, Some(4), seen(Some(40), 3_900)).contains("nobody had applied index 40"));
}

#[test]
fn a_linearizable_read_shows_all_that_was_shown_before_it_was_asked_for() {
    let level = ReadLevel::Linearizable;
    assert_eq!(read(level, Some(2), seen(Some(20), 3_499)), Ok(()), "index 30 was shown a moment later");
    let wrong = complaint(level, Some(2), seen(Some(29), 3_500));
    assert!(wrong.contains("a linearizable read") && wrong.contains("client 7 had been shown index 30"), "{wrong}");
    assert_eq!(read(level, Some(3), seen(Some(30), 3_500)), Ok(()));
}

/// What a majority's logs vouch for is the record: index 25 will do until somebody was shown a write of it that comes later.
#[test]
fn a_linearizable_read_may_be_served_at_an_older_index_at_which_the_record_was_the_same() {
    let level = ReadLevel::Linearizable;
    let with_floor = |index, floor| Seen { floor, staleness: Some(0), ..seen(Some(index), 3_499) };
    assert_eq!(read(level, Some(2), with_floor(21, 29)), Ok(()));
    assert!(complaint(level, Some(2), with_floor(21, 30)).contains("its session had been shown index 30"));
    assert!(complaint(level, Some(1), with_floor(19, 0)).contains("had been shown index 20"));
}

#[test]
fn whatever_its_level_a_read_shows_what_its_session_saw() {
    for level in [ReadLevel::Session, ReadLevel::Eventual] {
        let with_floor = |index, floor| Seen { floor, ..seen(Some(index), 4_000) };
        assert_eq!(read(level, Some(2), with_floor(25, 25)), Ok(()));
        assert!(complaint(level, Some(2), with_floor(24, 25)).contains("its session had been shown index 25"));
    }
}

#[test]
fn a_bounded_read_shows_all_that_was_shown_so_long_before_it_was_served() {
    let aged = |index, asked| Seen { staleness: Some(100 * MS), ..seen(Some(index), asked) };
    assert_eq!(read(BOUNDED, Some(2), aged(20, 3_589)), Ok(()), "index 30 was shown 99 ms before");
    let wrong = complaint(BOUNDED, Some(2), aged(20, 3_590));
    assert!(wrong.contains("a bounded read") && wrong.contains("0.100000 s before, bound 0.100 s"), "{wrong}");
    assert!(complaint(BOUNDED, Some(3), seen(Some(30), 3_590)).contains("does not say how old"));
}

#[test]
fn what_a_reply_says_of_its_age_is_true_and_within_the_bound() {
    let aged = |ms: Time| Seen { staleness: Some(ms * MS), ..seen(Some(20), 3_540) };
    assert_eq!(read(BOUNDED, Some(2), aged(51)), Ok(()));
    assert!(complaint(BOUNDED, Some(2), aged(49)).contains("client 7 was shown index 30 0.050000 s before"));
    assert!(complaint(BOUNDED, Some(2), aged(101)).contains("0.101 s old, and the bound is 0.100 s"));
    assert_eq!(read(ReadLevel::Eventual, Some(2), aged(51)), Ok(()));
    assert!(complaint(ReadLevel::Eventual, Some(2), aged(49)).contains("at most 0.049 s old"));
    let latest = Seen { staleness: Some(0), ..seen(Some(20), 3_495) };
    assert_eq!(read(ReadLevel::Linearizable, Some(2), latest), Ok(()), "it counts from the asking");
}

#[test]
fn a_reply_without_an_index_needs_one_that_would_do() {
    for (content, asked, is_good) in
        [(Some(2), 3_400, true), (Some(3), 3_400, true), (Some(1), 3_400, false), (Some(2), 3_600, false)]
    {
        let read = read(BOUNDED, content, seen(None, asked));
        assert_eq!(read.is_ok(), is_good, "{content:?} at {asked}: {read:?}");
    }
    assert!(complaint(BOUNDED, Some(1), seen(None, 3_400)).contains("at no index from 20 to 39"));
    assert_eq!(read(ReadLevel::Eventual, None, seen(None, 3_400)), Ok(()));
    assert!(read(ReadLevel::Eventual, Some(4), seen(None, 3_400)).is_err(), "not yet");
}

/// Machine 1 gives up its replica at 4.2 s and answers in the same step from index 41, which nobody else has applied yet.
#[test]
fn an_answer_of_a_replica_that_left_is_judged_once_somebody_has_applied_as_much() {
    let early = |content, served: Time| {
        let mut oracle = oracle();
        oracle.note_hosted(1, || [(GROUP, ReplicaId(7))].into_iter(), 4_000 * MS);
        oracle.note_hosted(1, std::iter::empty, 4_200 * MS);
        let seen = Seen { served: served * MS, ..seen(Some(41), 4_190) };
        let (call, outcome) = (Call::GET, Outcome::Ok(Answer::Content(content)));
        let operation = Operation { client: 3, key: 0, call, start: 0, end: 5_000 * MS, outcome, seen: Some(seen) };
        (oracle.handle_operation(GROUP, &operation), oracle)
    };
    for (content, is_good) in [(Some(4), true), (Some(3), false)] {
        let (judged, mut oracle) = early(content, 4_200);
        assert_eq!(judged, Ok(()));
        assert!(oracle.find_unjudged().is_some_and(|why| why.contains("nobody else has applied")));
        let truth = oracle.groups.get_mut(&GROUP).expect("there");
        let entry = Entry { index: 41, term: 1, kind: EntryKind::Membership, data: Bytes::new() };
        truth.apply(&entry).expect("a good log");
        assert_eq!(truth.judge_early(&WallTime::default()).is_ok(), is_good);
        assert_eq!(oracle.find_unjudged(), None);
    }
    assert!(early(Some(4), 4_199).0.is_err_and(|why| why.contains("nobody had applied index 41")), "before it left");
}

#[test]
fn what_a_reader_was_shown_binds_the_next_one() {
    let mut oracle = oracle();
    let mut read = |call, index, client| {
        let seen = seen(Some(index), 4_200);
        let (start, end, outcome) = (seen.asked, seen.served, Outcome::Ok(Answer::Content(Some(4))));
        let operation = Operation { client, key: 0, call, start, end, outcome, seen: Some(seen) };
        oracle.handle_operation(GROUP, &operation)
    };
    assert_eq!(read(Call::Get(ReadLevel::Eventual), 40, 1), Ok(()));
    let outcome = Outcome::Ok(Answer::Content(Some(3)));
    let seen = seen(Some(39), 4_211);
    let later = Operation { client: 2, key: 0, call: Call::GET, start: 0, end: 5_000 * MS, outcome, seen: Some(seen) };
    let broken = oracle.handle_operation(GROUP, &later).expect_err("older than what client 1 saw");
    assert!(broken.contains("client 1 had been shown index 40"), "{broken}");
}

#[test]
fn a_write_stands_at_its_index_after_all_that_was_shown_before() {
    let write = |value, index, start: Time| {
        let seen = seen(index, 4_990);
        let outcome = Outcome::Ok(Answer::Done);
        let (start, end) = (start * MS, seen.served);
        let operation = Operation { client: 3, key: 0, call: Call::Put(value), start, end, outcome, seen: Some(seen) };
        oracle().handle_operation(GROUP, &operation)
    };
    assert_eq!(write(4, Some(40), 4_400), Ok(()));
    assert_eq!(write(3, Some(30), 3_400), Ok(()));
    assert!(write(3, Some(30), 3_500).is_err_and(|why| why.contains("had been shown index 30")));
    assert!(write(3, Some(40), 4_400).is_err_and(|why| why.contains("index 40 holds")));
    assert!(write(4, Some(39), 4_400).is_err_and(|why| why.contains("index 39 holds None")));
    assert!(write(4, None, 4_400).is_err());
}

#[test]
fn a_repeated_write_changes_nothing_and_one_that_nobody_asked_for_is_found() {
    let mut oracle = oracle();
    let truth = oracle.groups.get_mut(&GROUP).expect("there");
    let entry = |index, data| Entry { index, term: 1, kind: EntryKind::Normal, data };
    truth.apply(&entry(41, proposal(2, 2))).expect("a repetition");
    assert_eq!(truth.content(0, 41), Some(4));
    assert!(truth.apply(&entry(43, Bytes::new())).is_err_and(|why| why.contains("entry 43 comes after 41")));
    let unknown = truth.apply(&entry(42, proposal(99, 2)));
    assert!(unknown.is_err_and(|why| why.contains("nobody asked for")));
}

/// What was written at index 30, and shown from 3.5 s on, expires five seconds after the run's beginning.
#[test]
fn a_record_is_there_until_it_expires_and_absent_soon_after() {
    let expire_at = WallTime::default().expiry_seconds(5 * SECOND);
    let read = |content: Content, at_ms: Time| {
        let mut oracle = oracle();
        oracle.note_begin(&Begun { expire_at, ..begun((9, 3), Call::Put(3)) });
        let seen = seen(Some(39), at_ms);
        oracle.groups.entry(GROUP).or_default().judge_read((0, ReadLevel::Linearizable), content, &seen, &oracle.wall)
    };
    assert_eq!(read(Some(3), 3_600), Ok(()));
    assert!(read(None, 3_600).is_err_and(|why| why.contains("the record held Some(3)")));
    assert_eq!(read(None, 4_000), Ok(()), "clocks may differ by a second");
    assert_eq!(read(None, 60_000), Ok(()));
    assert_eq!(read(Some(3), 7_900), Ok(()));
    assert!(read(Some(3), 8_000).is_err_and(|why| why.contains("expired long before")));
}
