//! What writes do, rule by rule.

use crate::common::{Fixture, Memory, Store, anonymous, bytes, empty_entry, entry};
use crate::{key, suite};
use bytes::Bytes;
use hedgerow_storage::{
    ApplyError, ApplyOutcome, Batch, Direction, Engine, EngineError, EngineStats, KeyRange, Partition, RowVisitor,
};
use hedgerow_types::error::Status;
use hedgerow_types::log::{Entry, EntryKind, LogPosition};
use hedgerow_types::op::{Check, Mutation, Proposal, Read, Write, WriteDetail, WriteReply};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn ok(detail: WriteDetail) -> WriteReply {
    WriteReply { status: Status::Ok, detail }
}

fn incr<F: Fixture>(store: &mut Store<F>, now: u32, by: i64, expire_at: i32) -> WriteReply {
    store.write(now, Write::Incr { key: key("n"), by, expire_at })
}

fn put_and_remove_are_blind<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.put("a", "1", 0);
    store.put("a", "2", 0);
    assert_eq!(store.value("a", 0), Ok("2".into()));
    assert_eq!(store.write(0, Write::Remove { key: key("a") }), ok(WriteDetail::None));
    assert_eq!(store.write(0, Write::Remove { key: key("a") }), ok(WriteDetail::None), "absent is fine");
    assert_eq!(store.value("a", 0), Err(Status::NotFound));
}

fn multi_writes_refuse_an_empty_list_and_count_what_was_sent<F: Fixture>() {
    let mut store = Store::<F>::new();
    let prefix = Bytes::from_static(b"k");
    let put = |rows| Write::MultiPut { prefix: prefix.clone(), rows, expire_at: 50 };
    let remove = |suffixes| Write::MultiRemove { prefix: prefix.clone(), suffixes };
    assert_eq!(store.write(0, put(vec![])).status, Status::InvalidArgument);
    assert_eq!(store.write(0, put(vec![(bytes("a"), bytes("1")), (bytes("b"), bytes("2"))])), ok(WriteDetail::None));
    assert_eq!((store.value("b", 49), store.value("b", 50)), (Ok("2".into()), Err(Status::NotFound)));
    assert_eq!(store.write(0, remove(vec![])).status, Status::InvalidArgument);
    let reply = store.write(0, remove(vec![bytes("a"), bytes("absent"), bytes("a")]));
    assert_eq!(reply, ok(WriteDetail::Removed(3)));
    assert_eq!((store.value("a", 0), store.value("b", 0)), (Err(Status::NotFound), Ok("2".into())));
}

fn incr_counts_missing_expired_and_empty_as_zero<F: Fixture>() {
    let mut store = Store::<F>::new();
    assert_eq!(incr(&mut store, 0, -5, 0), ok(WriteDetail::Value(-5)));
    store.put("n", "", 90);
    assert_eq!(incr(&mut store, 0, 3, 0), ok(WriteDetail::Value(3)));
    assert_eq!(store.ttl("n", 0), Ok(90), "an empty value keeps its expiry");
    store.put("n", "100", 10);
    assert_eq!(incr(&mut store, 10, 7, 0), ok(WriteDetail::Value(7)));
    assert_eq!(store.ttl("n", 10), Ok(-1), "an expired record's expiry is not kept");
    assert_eq!(store.value("n", 10), Ok("7".into()));
}

fn incr_expiry_is_kept_set_or_cleared<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.put("n", "1", 90);
    incr(&mut store, 0, 1, 0);
    assert_eq!(store.ttl("n", 40), Ok(50));
    incr(&mut store, 0, 1, 60);
    assert_eq!(store.ttl("n", 40), Ok(20));
    incr(&mut store, 0, 1, -1);
    assert_eq!(store.ttl("n", 40), Ok(-1));
    store.write(0, Write::Remove { key: key("n") });
    incr(&mut store, 0, 1, -1);
    assert_eq!(store.ttl("n", 40), Ok(-1));
    store.write(0, Write::Remove { key: key("n") });
    incr(&mut store, 0, 1, 70);
    assert_eq!(store.ttl("n", 40), Ok(30));
}

fn incr_refuses_overflow_with_the_old_value_and_no_number<F: Fixture>() {
    let mut store = Store::<F>::new();
    let refused = |value| WriteReply { status: Status::InvalidArgument, detail: WriteDetail::Value(value) };
    store.put("n", &i64::MAX.to_string(), 0);
    assert_eq!(incr(&mut store, 0, 1, 0), refused(i64::MAX));
    store.put("n", &i64::MIN.to_string(), 0);
    assert_eq!(incr(&mut store, 0, -1, 0), refused(i64::MIN));
    assert_eq!(store.value("n", 0), Ok(i64::MIN.to_string()));
    store.put("n", "1.5", 0);
    assert_eq!(incr(&mut store, 0, 1, 0), refused(0));
    assert_eq!(store.value("n", 0), Ok("1.5".into()));
}

fn cas(kind: i32, operand: &str, mutations: Vec<Mutation>) -> Write {
    let check = Check { suffix: bytes("c"), kind, operand: bytes(operand) };
    Write::CheckAndMutate { prefix: bytes("k"), check, mutations, return_check_value: true }
}

fn set(suffix: &str, value: &str) -> Mutation {
    Mutation::Put { suffix: bytes(suffix), value: bytes(value), expire_at: 0 }
}

fn a_check_guards_all_mutations_and_returns_the_value_from_before<F: Fixture>() {
    let mut store = Store::<F>::new();
    let checked =
        |status, value: Option<&str>| WriteReply { status, detail: WriteDetail::Checked(Some(value.map(bytes))) };
    let absent = 1;
    assert_eq!(store.write(0, cas(absent, "", vec![set("c", "1"), set("d", "2")])), checked(Status::Ok, None));
    assert_eq!(store.write(0, cas(absent, "", vec![set("c", "9")])), checked(Status::TryAgain, Some("1")));
    let mutations = vec![set("c", "2"), Mutation::Remove { suffix: bytes("d") }, set("c", "3")];
    assert_eq!(store.write(0, cas(10, "1", mutations)), checked(Status::Ok, Some("1")));
    assert_eq!((store.value("c", 0), store.value("d", 0)), (Ok("3".into()), Err(Status::NotFound)));
    assert_eq!(store.write(0, cas(15, "x", vec![set("c", "9")])), checked(Status::InvalidArgument, Some("3")));
    store.put("c", "5", 10);
    assert_eq!(store.write(10, cas(absent, "", vec![set("c", "6")])), checked(Status::Ok, None), "expired is absent");
}

fn a_check_without_mutations_or_of_unknown_kind_is_refused<F: Fixture>() {
    let mut store = Store::<F>::new();
    let refused = WriteReply { status: Status::InvalidArgument, detail: WriteDetail::Checked(None) };
    assert_eq!(store.write(0, cas(0, "", vec![])), refused);
    assert_eq!(store.write(0, cas(18, "", vec![set("c", "1")])), refused);
    assert_eq!(store.value("c", 0), Err(Status::NotFound));
}

fn a_write_sees_earlier_ones_of_the_same_call<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.put("n", "1", 0);
    let add = |by| anonymous(0, Write::Incr { key: key("n"), by, expire_at: 0 });
    let remove = anonymous(0, Write::Remove { key: key("n") });
    let set = anonymous(0, Write::Put { key: key("n"), value: bytes("40"), expire_at: 0 });
    let proposals = [add(1), add(1), remove, add(5), set, add(2)];
    let entries: Vec<Entry> = proposals.iter().zip(2..).map(|(proposal, index)| entry(index, proposal)).collect();
    let mut outcomes = Vec::new();
    store.partition_mut().apply(&entries, None, &mut outcomes).expect("applies");
    let values = outcomes.iter().filter_map(|(_, outcome)| match outcome {
        ApplyOutcome::Reply(WriteReply { detail: WriteDetail::Value(value), .. }) => Some(*value),
        _ => None,
    });
    assert_eq!(values.collect::<Vec<_>>(), [2, 3, 5, 42]);
    assert_eq!(store.value("n", 0), Ok("42".into()));
}

/// Small writes that look up large rows: what such a write costs is what it looks at, whatever its own size.
fn n4_applying_stops_once_it_has_cost_so_much<F: Fixture>() {
    let mut store = Store::<F>::new();
    let value = Bytes::from(vec![7; 1 << 20]);
    store.write(0, Write::Put { key: key("c"), value, expire_at: 0 });
    let look = entries_of(&anonymous(0, cas(1, "", vec![set("d", "1")])), 2..12);
    let mut outcomes = Vec::new();
    let cost = store.partition_mut().apply_some(&look, None, &mut outcomes, 3 << 20).expect("applies");
    assert_eq!((outcomes.len(), store.partition().applied().index), (3, 4));
    assert!((3 << 20..4 << 20).contains(&cost), "{cost}");
    let rest = store.partition_mut().apply_some(&look[3..], None, &mut outcomes, u64::MAX).expect("applies");
    assert_eq!((outcomes.len(), store.partition().applied().index), (10, 11));
    assert!(rest > 7 << 20, "{rest}");
    // One is always applied, and a membership is stored with its own entry.
    let mut next = entries_of(&anonymous(0, Write::Nothing), 12..16);
    next[2].kind = EntryKind::Membership;
    for (membership, applied) in [(None, 12), (Some(bytes("third")), 14)] {
        outcomes.clear();
        let from = (store.partition().applied().index - 11) as usize;
        store.partition_mut().apply_some(&next[from..], membership.as_ref(), &mut outcomes, 1).expect("applies");
        assert_eq!(store.partition().applied().index, applied);
        assert_eq!(store.partition().membership(), membership.as_ref());
    }
}

fn entries_of(proposal: &Proposal, indices: std::ops::Range<u64>) -> Vec<Entry> {
    indices.map(|index| entry(index, proposal)).collect()
}

fn log_time_never_goes_back<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.put("n", "1", 100);
    store.write(100, Write::Nothing);
    assert_eq!(incr(&mut store, 50, 1, 0), ok(WriteDetail::Value(1)), "expired for an earlier leader, so for this one");
    store.put("m", "1", 100);
    assert_eq!(store.value("m", 50), Err(Status::NotFound), "a read does not see what a write would not");
}

/// Some day, and how long a year is, in seconds.
const TODAY: u32 = 300_000_000;
const YEAR: u32 = 365 * 86_400;

fn at(now: u32, is_agreed: bool, write: Write) -> Proposal {
    Proposal { is_agreed, ..anonymous(now, write) }
}

fn put_until(name: &str, expire_at: u32) -> Write {
    Write::Put { key: key(name), value: bytes("1"), expire_at }
}

/// One leader's clock was a year ahead for a moment. Replicas that flush, compact or restart meanwhile stay equal.
fn d6_a_partition_that_was_a_year_ahead_heals<F: Fixture>() {
    let mut replicas = [Store::<F>::new(), Store::<F>::new()];
    let checksum = |store: &Store<F>| store.read(Read::Checksum, TODAY + 20);
    for (store, is_restarted) in replicas.iter_mut().zip([false, true]) {
        store.propose(&at(TODAY, true, put_until("old", TODAY + 3_600)));
        store.propose(&at(TODAY + YEAR, false, Write::Nothing));
        assert_eq!(store.value("old", 0), Err(Status::NotFound), "by the log's time it has expired");
        assert_eq!(store.value("old", TODAY + 5), Ok("1".into()), "a node that knows the time sees it");
        if is_restarted {
            store.flush_at(TODAY + 5);
            store.partition().engine().compact().expect("compacts");
            store.crash();
        }
        // Without a majority's word, or without any, nothing is set back.
        store.propose(&at(TODAY + 8, false, Write::Nothing));
        store.propose(&at(0, false, Write::Nothing));
        assert_eq!(store.partition().log_time(), TODAY + YEAR);
        store.propose(&at(TODAY + 10, true, put_until("new", TODAY + 3_610)));
        assert_eq!(store.partition().log_time(), TODAY + 10);
        if is_restarted {
            store.flush_at(TODAY + 10);
            store.partition().engine().compact().expect("compacts");
            store.crash();
        }
        assert_eq!(store.value("new", 0), Ok("1".into()), "what is written now is visible at once");
        let counted = store.propose(&at(TODAY + 20, true, Write::Incr { key: key("old"), by: 1, expire_at: 0 }));
        assert_eq!(counted, ApplyOutcome::Reply(ok(WriteDetail::Value(2))), "and what was written before lives again");
    }
    assert_eq!(checksum(&replicas[0]), checksum(&replicas[1]));
}

/// An agreed time that is a little behind, as that of the next leader may be, changes nothing.
fn d6_small_differences_of_clocks_never_set_the_time_back<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&at(TODAY, true, put_until("a", TODAY)));
    store.propose(&at(TODAY - 300, true, Write::Nothing));
    assert_eq!(store.partition().log_time(), TODAY);
    assert_eq!(store.value("a", TODAY - 300), Err(Status::NotFound));
    store.propose(&at(TODAY - 301, true, Write::Nothing));
    assert_eq!(store.partition().log_time(), TODAY - 301);
}

fn membership_and_empty_entries_only_move_the_position<F: Fixture>() {
    let mut store = Store::<F>::new();
    let (first, second) = (bytes("first"), bytes("second"));
    store.partition_mut().apply(&[], Some(&first), &mut Vec::new()).expect("applies");
    assert_eq!(store.partition().membership(), Some(&first));
    let change = Entry { kind: EntryKind::Membership, term: 3, ..empty_entry(2) };
    let mut outcomes = Vec::new();
    let entries = [empty_entry(1), change, entry(3, &anonymous(0, Write::Nothing))];
    store.partition_mut().apply(&entries[..2], Some(&second), &mut outcomes).expect("applies");
    assert_eq!(outcomes, [(1, ApplyOutcome::Empty), (2, ApplyOutcome::Empty)]);
    assert_eq!(store.partition().applied(), LogPosition { term: 3, index: 2 });
    store.flush();
    store.partition_mut().apply(&entries[2..], None, &mut outcomes).expect("applies");
    store.crash();
    assert_eq!(store.partition().applied(), LogPosition { term: 3, index: 2 });
    assert_eq!(store.partition().membership(), Some(&second));
}

/// A founding replica begins as if it had installed a checkpoint: position and membership survive a crash once flushed,
/// and the log goes on behind them.
fn a_first_replica_begins_at_the_position_that_it_is_given<F: Fixture>() {
    let mut store = Store::<F>::new();
    let first = LogPosition { term: 1, index: 1 };
    store.partition_mut().initialise(first, bytes("voters")).expect("writes");
    store.flush();
    store.crash();
    assert_eq!(store.partition().applied(), first);
    assert_eq!(store.partition().membership(), Some(&bytes("voters")));
    let mut outcomes = Vec::new();
    store.partition_mut().apply(&[empty_entry(2)], None, &mut outcomes).expect("applies");
    assert_eq!(outcomes, [(2, ApplyOutcome::Empty)]);
}

/// Whether any data row is stored. By a scan: what was read before may be kept beside the tables.
fn has_rows<F: Fixture>(store: &Store<F>) -> bool {
    let mut has_any = false;
    let range = KeyRange { start: b"d", end: Some(b"e"), is_bulk: false };
    let visit = &mut |_: &[u8], _: &[u8]| {
        has_any = true;
        ControlFlow::Continue(())
    };
    store.partition().engine().scan(range, Direction::Ascending, visit).expect("scans");
    has_any
}

/// Only one entry is known to be durable, and by its time the row lives: were it dropped, an increment of the time between
/// would miss it when it is replayed.
fn d6_a_time_that_is_set_back_permits_nothing_more_to_be_dropped<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&at(TODAY, true, put_until("a", TODAY + 10)));
    let point = store.partition().flush_point();
    store.partition().engine().flush().expect("flushes");
    store.partition_mut().mark_flushed(point, TODAY + YEAR);
    store.propose(&at(TODAY + YEAR, false, Write::Nothing));
    store.propose(&at(TODAY + 10_000, true, Write::Nothing));
    assert_eq!(store.partition().log_time(), TODAY + 10_000);
    store.partition().engine().compact().expect("compacts");
    assert!(has_rows(&store));
}

fn expired_rows_go_only_once_the_log_behind_them_is_durable<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.write(10, Write::Put { key: key("a"), value: bytes("1"), expire_at: 15 });
    let point = store.partition().flush_point();
    assert_eq!(point.position().index, 1);
    store.write(20, Write::Nothing);
    store.partition().engine().flush().expect("flushes");
    store.partition_mut().mark_flushed(point, u32::MAX);
    store.partition().engine().compact().expect("compacts");
    assert!(has_rows(&store), "expired at 20, but only 10 is known to be durable");
    store.flush();
    store.partition().engine().compact().expect("compacts");
    assert!(!has_rows(&store));
}

fn an_entry_that_cannot_be_read_stops_the_partition<F: Fixture>() {
    let mut store = Store::<F>::new();
    let bad = Entry { data: bytes("\u{1}garbage"), ..empty_entry(1) };
    let partition = store.partition_mut();
    let error = partition.apply(&[bad], None, &mut Vec::new()).expect_err("refused");
    assert!(matches!(error, ApplyError::Entry { index: 1, .. }), "{error}");
    let error = partition.apply(&[empty_entry(1)], None, &mut Vec::new()).expect_err("refused");
    assert!(matches!(error, ApplyError::Broken), "{error}");
}

suite! {
    put_and_remove_are_blind
    multi_writes_refuse_an_empty_list_and_count_what_was_sent
    incr_counts_missing_expired_and_empty_as_zero
    incr_expiry_is_kept_set_or_cleared
    incr_refuses_overflow_with_the_old_value_and_no_number
    a_check_guards_all_mutations_and_returns_the_value_from_before
    a_check_without_mutations_or_of_unknown_kind_is_refused
    a_write_sees_earlier_ones_of_the_same_call
    n4_applying_stops_once_it_has_cost_so_much
    log_time_never_goes_back
    d6_a_partition_that_was_a_year_ahead_heals
    d6_small_differences_of_clocks_never_set_the_time_back
    d6_a_time_that_is_set_back_permits_nothing_more_to_be_dropped
    membership_and_empty_entries_only_move_the_position
    a_first_replica_begins_at_the_position_that_it_is_given
    expired_rows_go_only_once_the_log_behind_them_is_durable
    an_entry_that_cannot_be_read_stops_the_partition
}

/// Checks after each batch that the engine has the membership exactly if it has the entry that changes it.
#[derive(Debug)]
struct Witness {
    engine: Arc<dyn Engine>,
    change_at: u64,
    batches: AtomicUsize,
}

impl Engine for Witness {
    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.engine.write(batch)?;
        self.batches.fetch_add(1, Ordering::Relaxed);
        let partition = Partition::open(Arc::clone(&self.engine))?;
        assert_eq!(partition.membership().is_some(), partition.applied().index >= self.change_at);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.engine.scan(range, way, visit)
    }

    crate::pass_on!();
}

#[test]
fn large_calls_are_cut_but_never_before_the_membership() {
    let large = Bytes::from(vec![7; 1 << 20]);
    for (change_at, is_cut) in [(13, true), (40, false)] {
        let engine = Arc::clone(Store::<Memory>::new().partition().engine());
        let witness = Arc::new(Witness { engine, change_at, batches: AtomicUsize::new(0) });
        let mut partition = Partition::open(Arc::clone(&witness) as Arc<dyn Engine>).expect("opens");
        let mut entries: Vec<Entry> = (1..=40)
            .map(|index| {
                let key = key(&index.to_string());
                entry(index, &anonymous(0, Write::Put { key, value: large.clone(), expire_at: 0 }))
            })
            .collect();
        entries[change_at as usize - 1] = Entry { kind: EntryKind::Membership, ..empty_entry(change_at) };
        partition.apply(&entries, Some(&bytes("m")), &mut Vec::new()).expect("applies");
        assert_eq!(partition.applied().index, 40);
        let written = witness.batches.load(Ordering::Relaxed);
        assert_eq!(written > 1, is_cut, "{written} batches");
    }
}

#[test]
#[should_panic(expected = "without a gap")]
fn a_gap_in_the_log_is_a_broken_invariant() {
    let mut store = Store::<Memory>::new();
    let _ = store.partition_mut().apply(&[empty_entry(2)], None, &mut Vec::new());
}
