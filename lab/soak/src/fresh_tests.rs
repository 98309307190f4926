//! Small histories, each once as it may be and once wrong.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use hedgerow_sim::history::Seen as Told;
use std::time::Duration;

/// The key of most tests, and a counter.
const KEY: u32 = 1;
const COUNTER: u32 = 1_000;

fn record(client: u32, times: (Time, Time), call: Call, outcome: Outcome) -> Record {
    let (start, end) = (times.0 * 1_000_000, times.1 * 1_000_000);
    let key = if matches!(call, Call::Incr(_)) { COUNTER } else { KEY };
    let operation = Operation { client, key, call, start, end, outcome, seen: None };
    Record { operation, partition: 0, is_in_session: true }
}

fn put(client: u32, times: (Time, Time), value: i64) -> Record {
    record(client, times, Call::Put(value), Outcome::Ok(Answer::Done))
}

fn remove(client: u32, times: (Time, Time)) -> Record {
    record(client, times, Call::Remove, Outcome::Ok(Answer::Done))
}

fn read(client: u32, times: (Time, Time), level: ReadLevel, content: Content) -> Record {
    record(client, times, Call::Get(level), Outcome::Ok(Answer::Content(content)))
}

fn of(key: u32, record: Record) -> Record {
    Record { operation: Operation { key, ..record.operation }, ..record }
}

const BOUNDED: ReadLevel = ReadLevel::Bounded(Duration::from_millis(100));

fn assert_wrong(records: &[Record], why: &str) {
    let error = check(records).expect_err("it is wrong");
    assert!(error.contains(why), "{error}");
}

#[test]
fn a_bounded_read_sees_what_was_acknowledged_so_long_ago() {
    let before = [put(1, (10, 20), 1), put(1, (30, 40), 2)];
    let with = |read| [&before[..], &[read]].concat();
    check(&with(read(2, (139, 150), BOUNDED, Some(1)))).unwrap();
    assert_wrong(&with(read(2, (141, 150), BOUNDED, Some(1))), "overwritten");
    check(&with(read(2, (141, 150), BOUNDED, Some(2)))).unwrap();
    assert_wrong(&with(read(2, (141, 150), BOUNDED, None)), "overwritten");
    check(&with(read(2, (50, 150), BOUNDED, None))).unwrap();
}

#[test]
fn a_bounded_read_may_see_what_is_not_known_to_have_happened_before() {
    // The first write is acknowledged after the second one began: their order is open.
    let both = [put(1, (10, 35), 1), put(2, (30, 40), 2)];
    check(&[both[0], both[1], read(3, (500, 510), BOUNDED, Some(1))]).unwrap();
    // Somebody saw it before the second one began.
    let seen = read(3, (12, 20), ReadLevel::Eventual, Some(1));
    assert_wrong(&[both[0], both[1], seen, read(3, (500, 510), BOUNDED, Some(1))], "overwritten");
    // So may a write nobody heard of again, and any of several removals.
    let unknown = record(1, (10, 20), Call::Put(1), Outcome::Unknown);
    check(&[unknown, both[1], read(3, (500, 510), BOUNDED, Some(1))]).unwrap();
    let removals = [remove(1, (41, 45)), put(1, (50, 60), 3), remove(1, (70, 80))];
    check(&[&removals[..], &[read(3, (500, 510), BOUNDED, None)]].concat()).unwrap();
    assert_wrong(&[&removals[..2], &[read(3, (500, 510), BOUNDED, None)]].concat(), "overwritten");
}

#[test]
fn what_says_that_it_is_older_than_its_bound_is_wrong() {
    let mut told = read(2, (50, 60), BOUNDED, None);
    let seen = Told { machine: 0, index: Some(5), staleness: Some(100_000_000), asked: 0, served: 0, floor: 0 };
    told.operation.seen = Some(seen);
    check(&[told]).unwrap();
    told.operation.seen = Some(Told { staleness: Some(100_000_001), ..seen });
    assert_wrong(&[told], "says that it is");
}

#[test]
fn nobody_reads_what_was_never_written() {
    for level in [ReadLevel::Linearizable, ReadLevel::Session, BOUNDED, ReadLevel::Eventual] {
        assert_wrong(&[put(1, (10, 20), 1), read(2, (15, 30), level, Some(7))], "nobody had written");
        assert_wrong(&[put(1, (40, 50), 1), read(2, (15, 30), level, Some(1))], "nobody had written");
        let failed = record(1, (10, 20), Call::Put(1), Outcome::Failed);
        assert_wrong(&[failed, read(2, (15, 30), level, Some(1))], "nobody had written");
    }
}

#[test]
fn a_session_reads_its_own_writes_and_never_goes_back() {
    let writes = [put(1, (10, 20), 1), put(1, (30, 40), 2)];
    let with = |read| [&writes[..], &[read]].concat();
    assert_wrong(&with(read(1, (50, 60), ReadLevel::Session, Some(1))), "a session went back");
    check(&with(read(2, (50, 60), ReadLevel::Session, Some(1)))).unwrap();
    let twice = |first, second| {
        let first = read(2, (50, 60), ReadLevel::Eventual, first);
        [&with(first)[..], &[read(2, (70, 80), ReadLevel::Session, second)]].concat()
    };
    check(&twice(Some(1), Some(2))).unwrap();
    check(&twice(Some(2), Some(2))).unwrap();
    assert_wrong(&twice(Some(2), Some(1)), "a session went back");
    assert_wrong(&twice(Some(1), None), "a session went back");
    let first = read(2, (50, 60), ReadLevel::Session, Some(2));
    let weaker = |client| [&with(first)[..], &[read(client, (70, 80), ReadLevel::Eventual, Some(1))]].concat();
    assert_wrong(&weaker(2), "a session went back");
    check(&weaker(3)).unwrap();
}

#[test]
fn a_session_sees_of_a_partition_what_was_there_before_its_own_write() {
    // Another key of the same partition was overwritten before the session's write began.
    let others = [put(1, (10, 20), 1), put(1, (30, 40), 2)];
    let own = of(KEY + 1, put(2, (41, 45), 9));
    let with = |own: Record| [&others[..], &[own, read(2, (50, 60), ReadLevel::Session, Some(1))]].concat();
    assert_wrong(&with(own), "a session went back");
    check(&with(Record { partition: 1, ..own })).unwrap();
    check(&with(Record { is_in_session: false, ..own })).unwrap();
    check(&with(of(KEY + 1, put(2, (39, 45), 9)))).unwrap();
    check(&with(of(KEY + 1, read(2, (41, 45), BOUNDED, None)))).unwrap();
}

#[test]
fn a_linearizable_read_vouches_in_its_session_for_its_own_record_only() {
    let writes = [put(1, (10, 20), 1), remove(1, (30, 40))];
    let after = |first| [&writes[..], &[first, read(2, (50, 60), ReadLevel::Session, Some(1))]].concat();
    assert_wrong(&after(read(2, (41, 45), ReadLevel::Linearizable, None)), "a session went back");
    check(&after(of(KEY + 1, read(2, (41, 45), ReadLevel::Linearizable, None)))).unwrap();
    // The absence that it saw may be the one of the beginning.
    check(&after(read(2, (41, 45), ReadLevel::Eventual, None))).unwrap();
}

#[test]
fn a_session_read_is_at_the_index_that_its_session_saw() {
    let mut told = read(2, (50, 60), ReadLevel::Session, None);
    let seen = Told { machine: 0, index: Some(5), staleness: None, asked: 0, served: 0, floor: 5 };
    told.operation.seen = Some(seen);
    check(&[told]).unwrap();
    told.operation.seen = Some(Told { floor: 6, ..seen });
    assert_wrong(&[told], "its session saw 6");
}

#[test]
fn no_increment_is_missing_that_must_be_there() {
    let incr = |client, times, number| {
        record(client, times, Call::Incr(once::amount(number)), Outcome::Ok(Answer::Sum(once::amount(number))))
    };
    let sent = [incr(1, (10, 20), 0), incr(1, (30, 40), 1)];
    let with =
        |client, start, level, sum| [&sent[..], &[of(COUNTER, read(client, (start, start + 5), level, sum))]].concat();
    check(&with(2, 139, BOUNDED, Some(1))).unwrap();
    assert_wrong(&with(2, 141, BOUNDED, Some(1)), "this is missing");
    assert_wrong(&with(2, 141, BOUNDED, Some(4)), "this is missing");
    check(&with(2, 141, BOUNDED, Some(5))).unwrap();
    assert_wrong(&with(2, 141, BOUNDED, Some(6)), "do not add up");
    assert_wrong(&with(2, 141, BOUNDED, Some(21)), "do not add up");
    assert_wrong(&with(1, 50, ReadLevel::Session, Some(1)), "a session went back");
    check(&with(2, 50, ReadLevel::Session, None)).unwrap();
}
