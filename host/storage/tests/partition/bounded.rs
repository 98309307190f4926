//! The bound of the exactly-once table (pitfall D9).

use crate::common::{Fixture, Memory, Rocks, Store, bytes, empty_entry, entry};
use crate::{key, suite};
use bytes::Bytes;
use hedgerow_storage::{ApplyOutcome, Partition, Sessions};
use hedgerow_types::ClientId;
use hedgerow_types::limit::{SESSION_AHEAD_MICROS, SESSION_IDLE_SECONDS, SESSION_REPLY_SIZE_MAX, SESSION_WINDOW};
use hedgerow_types::log::Entry;
use hedgerow_types::op::{Check, Mutation, Proposal, Write, WriteReply};
use hedgerow_types::time::unix_micros;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a session with one result of [`add`] counts.
const SESSION_SIZE: u64 = 128 + 64 + 11;

fn add(client: u64, sequence: u64) -> Proposal {
    let write = Write::Incr { key: key("n"), by: 1, expire_at: 0 };
    Proposal { client: ClientId(client), sequence, now: 0, is_agreed: false, write }
}

fn bounded<F: Fixture>(sessions: u64) -> Store<F> {
    let mut store = Store::<F>::new();
    store.partition_mut().set_session_bytes_max(sessions * SESSION_SIZE);
    store
}

/// As a node proposed it that knows of no bound.
fn first_version(mut entry: Entry) -> Entry {
    let mut data = entry.data.to_vec();
    data[0] = 1;
    entry.data = data.into();
    entry
}

fn d9_a_full_table_forgets_the_sessions_that_wrote_longest_ago<F: Fixture>() {
    let mut store = bounded::<F>(10);
    for client in 1..=10 {
        assert!(matches!(store.propose(&add(client, 100 + client)), ApplyOutcome::Reply(_)));
    }
    assert_eq!((store.partition().session_count(), store.partition().session_bytes()), (10, 10 * SESSION_SIZE));
    // The first one writes again: the second one wrote longest ago. Two sessions make room for two results and one of them.
    store.propose(&add(1, 102));
    store.propose(&add(11, 111));
    assert_eq!(store.partition().session_count(), 9);
    let refused =
        ApplyOutcome::SessionWindow { sequence: 103, floor: 103, ceiling: unix_micros(0) + SESSION_AHEAD_MICROS };
    assert_eq!(store.propose(&add(3, 103)), refused, "it was applied");
    assert_eq!(store.propose(&add(99, 103)), refused, "whoever asks");
    for client in [1, 4, 11] {
        assert!(matches!(store.propose(&add(client, 100 + client)), ApplyOutcome::Repeated(_)), "{client} is kept");
    }
    assert_eq!(store.value("n", 0), Ok("12".into()));
    assert!(matches!(store.propose(&add(3, 104)), ApplyOutcome::Reply(_)), "above the floor");
}

fn d9_a_session_goes_on_below_the_floor<F: Fixture>() {
    let mut store = bounded::<F>(12);
    for sequence in 1..20 {
        assert!(matches!(store.propose(&add(1, sequence)), ApplyOutcome::Reply(_)), "{sequence}");
        store.propose(&add(1_000 + sequence, 1_000 * sequence));
    }
    assert!(matches!(store.propose(&add(2, 20)), ApplyOutcome::SessionWindow { .. }), "another client has no session");
}

fn d9_large_results_are_not_kept<F: Fixture>() {
    let mut store = Store::<F>::new();
    for (sequence, size, is_kept) in [(1, SESSION_REPLY_SIZE_MAX - 7, true), (2, SESSION_REPLY_SIZE_MAX - 6, false)] {
        let value = Bytes::from(vec![b'x'; size]);
        store.write(0, Write::Put { key: key("c"), value, expire_at: 0 });
        let check = Check { suffix: bytes("c"), kind: 3, operand: Bytes::new() };
        let mutations = vec![Mutation::Put { suffix: bytes("c"), value: bytes("new"), expire_at: 0 }];
        let write = Write::CheckAndMutate { prefix: bytes("k"), check, mutations, return_check_value: true };
        let proposal = Proposal { write, ..add(1, sequence) };
        let ApplyOutcome::Reply(reply) = store.propose(&proposal) else { panic!("it is new") };
        match store.propose(&proposal) {
            ApplyOutcome::Repeated(again) => assert!(is_kept && again == reply),
            ApplyOutcome::SessionWindow { .. } => assert!(!is_kept),
            other => panic!("{other:?}"),
        }
        store.reload_sessions();
        assert_eq!(store.value("c", 0), Ok("new".into()));
    }
    let bytes = store.partition().session_bytes();
    assert!(bytes < 2 * SESSION_SIZE + SESSION_REPLY_SIZE_MAX as u64, "{bytes} bytes");
}

fn d9_a_number_too_far_ahead_is_refused<F: Fixture>() {
    let mut store = bounded::<F>(1);
    let at = |now, sequence| Proposal { now, ..add(sequence, sequence) };
    let mut ceiling = unix_micros(1_000) + SESSION_AHEAD_MICROS;
    for _ in 0..3 {
        let outcome = store.propose(&at(1_000, ceiling + 1));
        assert!(matches!(outcome, ApplyOutcome::SessionWindow { ceiling: told, .. } if told == ceiling), "{outcome:?}");
        assert!(matches!(store.propose(&at(1_000, u64::MAX)), ApplyOutcome::SessionWindow { .. }));
        assert!(matches!(store.propose(&at(1_000, ceiling)), ApplyOutcome::Reply(_)));
        // With another session there is room for one only, and the floor comes to the number that was just taken: whatever
        // the log's time, there are numbers above it.
        assert!(matches!(store.propose(&add(1, 1)), ApplyOutcome::Reply(_) | ApplyOutcome::SessionWindow { .. }));
        assert!(matches!(
            store.propose(&at(1_000, ceiling - 1)),
            ApplyOutcome::Reply(_) | ApplyOutcome::SessionWindow { .. }
        ));
        ceiling = match store.propose(&add(7, 1)) {
            ApplyOutcome::SessionWindow { floor, ceiling: told, .. } => {
                assert_eq!(told, floor + SESSION_AHEAD_MICROS);
                told
            }
            other => panic!("{other:?}"),
        };
    }
}

fn d9_a_table_from_before_the_bound_is_brought_down_step_by_step<F: Fixture>() {
    let mut store = bounded::<F>(10);
    let old: Vec<Entry> =
        (1..=3_000u64).map(|index| first_version(entry(index, &add(1 + index % 1_500, 1 + index / 1_500)))).collect();
    store.partition_mut().apply(&old, None, &mut Vec::new()).expect("applies");
    assert_eq!(store.partition().session_count(), 1_500, "no bound yet");
    assert!(store.rows().iter().all(|(key, row)| key != b"mf" && (key[0] != b's' || row[0] == 1)), "nor its rows");
    store.flush();
    store.crash();
    store.partition_mut().set_session_bytes_max(10 * SESSION_SIZE);
    assert!(matches!(store.propose(&add(7, 1)), ApplyOutcome::Repeated(_)));
    assert_eq!(store.partition().session_count(), 1_500 - 32, "a repetition has others forgotten as well");
    let mut steps = 0;
    while store.partition().session_bytes() > 10 * SESSION_SIZE {
        let before = store.partition().session_count();
        assert!(matches!(store.propose(&add(9_000 + steps, 1_000 + steps)), ApplyOutcome::Reply(_)));
        let after = store.partition().session_count();
        assert!((before.saturating_sub(64)..=before).contains(&after), "{before} to {after}");
        steps += 1;
    }
    assert!((40..60).contains(&steps), "{steps} steps");
    assert!(matches!(store.propose(&add(7, 1)), ApplyOutcome::SessionWindow { .. }));
}

fn d9_an_idle_session_leaves_its_floor<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&add(1, 500));
    store.propose(&Proposal { write: Write::Nothing, now: SESSION_IDLE_SECONDS + 1, ..add(0, 0) });
    let from = store.partition().applied().index + 1;
    let entries: Vec<Entry> = (from..=4_096).map(empty_entry).collect();
    store.partition_mut().apply(&entries, None, &mut Vec::new()).expect("applies");
    assert_eq!(store.partition().session_count(), 0);
    store.flush();
    store.crash();
    assert!(matches!(store.propose(&add(1, 500)), ApplyOutcome::SessionWindow { floor: 500, .. }));
    assert!(matches!(store.propose(&add(1, 501)), ApplyOutcome::Reply(_)));
}

fn d9_the_table_is_read_when_it_is_needed<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&add(1, 1));
    store.flush();
    store.crash();
    assert!(!store.partition().has_sessions());
    let read = Sessions::read(&**store.partition().engine()).expect("reads");
    let index = store.partition().applied().index + 1;
    store.partition_mut().apply(&[empty_entry(index)], None, &mut Vec::new()).expect("applies");
    assert!(!store.partition().has_sessions(), "an empty entry needs no table");
    store.partition_mut().adopt_sessions(read);
    assert_eq!(store.partition().session_count(), 1);
    let read = Sessions::read(&**store.partition().engine()).expect("reads");
    store.propose(&add(2, 1));
    store.partition_mut().adopt_sessions(read);
    assert_eq!(store.partition().session_count(), 2, "what is here already is newer");
}

suite! {
    d9_a_full_table_forgets_the_sessions_that_wrote_longest_ago
    d9_a_session_goes_on_below_the_floor
    d9_large_results_are_not_kept
    d9_a_number_too_far_ahead_is_refused
    d9_a_table_from_before_the_bound_is_brought_down_step_by_step
    d9_an_idle_session_leaves_its_floor
    d9_the_table_is_read_when_it_is_needed
}

/// A client's attempt.
#[derive(Clone, Debug)]
struct Step {
    client: u64,
    /// The number of one of the last attempts, or else one near the present.
    repeats: Option<usize>,
    sequence: u64,
    now: u32,
    /// Empty entries before it.
    gap: u64,
    is_of_first_version: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let sequence = prop_oneof![
        4 => 0u64..30,
        4 => (0u64..4, 0u64..3).prop_map(|(slot, round)| slot + SESSION_WINDOW * round),
        1 => (unix_micros(0) + SESSION_AHEAD_MICROS - 5)..(unix_micros(0) + SESSION_AHEAD_MICROS + 5_000_000),
        1 => any::<u64>(),
    ];
    let now = prop_oneof![9 => 0u32..20, 1 => SESSION_IDLE_SECONDS..2 * SESSION_IDLE_SECONDS];
    let gap = prop_oneof![30 => Just(0u64), 1 => 1u64..3_000];
    (0u64..40, proptest::option::weighted(0.4, 0usize..60), sequence, now, gap, any::<bool>()).prop_map(
        |(client, repeats, sequence, now, gap, is_of_first_version)| Step {
            client,
            repeats,
            sequence,
            now,
            gap,
            is_of_first_version,
        },
    )
}

/// The log of a life: entries of nodes that know of no bound come first.
fn log_of(steps: &[Step], old: usize) -> Vec<(Entry, Option<(u64, u64)>)> {
    let mut log: Vec<(Entry, Option<(u64, u64)>)> = Vec::new();
    let mut asked: Vec<(u64, u64)> = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        for _ in 0..step.gap {
            log.push((empty_entry(log.len() as u64 + 1), None));
        }
        let repeated = step.repeats.and_then(|back| asked.len().checked_sub(back + 1)).map(|at| asked[at]);
        let (client, sequence) = repeated.unwrap_or((step.client, step.sequence));
        asked.push((client, sequence));
        let proposal = Proposal { now: step.now, ..add(client, sequence) };
        let made = entry(log.len() as u64 + 1, &proposal);
        let made = if position < old && step.is_of_first_version { first_version(made) } else { made };
        log.push((made, Some((client, sequence))));
    }
    log
}

fn apply<F: Fixture>(store: &mut Store<F>, entries: &[Entry]) -> Vec<ApplyOutcome> {
    let mut outcomes = Vec::new();
    store.partition_mut().apply(entries, None, &mut outcomes).expect("applies");
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a model that remembers everything: nothing is applied twice, and what is answered again is answered the same.
    /// A replica that begins from a checkpoint, one that restarts all the time and one that does neither agree on every
    /// outcome, and on every row.
    #[test]
    fn d9_nothing_is_applied_twice_and_all_replicas_forget_the_same(
        steps in vec(step(), 1..250),
        limit in 1u64..12,
        chunk in 1usize..20,
        moves in any::<prop::sample::Index>(),
    ) {
        let log = log_of(&steps, 0);
        let mut lived = bounded::<Memory>(limit);
        let mut moved = bounded::<Rocks>(limit);
        let mut restarted = bounded::<Memory>(limit);
        let moves_at = moves.index(log.len());
        let mut applied: BTreeMap<(u64, u64), WriteReply> = BTreeMap::new();
        for (number, piece) in log.chunks(chunk).enumerate() {
            let entries: Vec<Entry> = piece.iter().map(|(entry, _)| entry.clone()).collect();
            let outcomes = apply(&mut lived, &entries);
            prop_assert_eq!(&outcomes, &apply(&mut moved, &entries));
            prop_assert_eq!(&outcomes, &apply(&mut restarted, &entries));
            restarted.reload_sessions();
            restarted.partition_mut().set_session_bytes_max(limit * SESSION_SIZE);
            if (number * chunk..(number + 1) * chunk).contains(&moves_at) {
                moved.move_to_checkpoint(1);
                moved.partition_mut().set_session_bytes_max(limit * SESSION_SIZE);
            }
            prop_assert!(lived.partition().session_bytes() <= limit * SESSION_SIZE);
            for ((_, id), outcome) in piece.iter().zip(outcomes) {
                let Some(id) = id.filter(|(client, sequence)| *client != 0 && *sequence != 0) else { continue };
                match outcome {
                    ApplyOutcome::Reply(reply) => prop_assert_eq!(applied.insert(id, reply), None, "{:?} ran twice", id),
                    ApplyOutcome::Repeated(reply) => prop_assert_eq!(applied.get(&id), Some(&reply)),
                    ApplyOutcome::SessionWindow { sequence, floor, ceiling } => {
                        prop_assert_eq!(sequence, id.1);
                        prop_assert!(floor < ceiling);
                    }
                    ApplyOutcome::Empty => prop_assert!(false, "{:?} is a write", id),
                }
            }
        }
        let rows = lived.rows();
        prop_assert_eq!(&rows, &moved.rows());
        prop_assert_eq!(&rows, &restarted.rows());
    }

    /// The same in a log that nodes of two versions wrote, but for what was applied before the bound began.
    #[test]
    fn d9_replicas_agree_on_where_the_bound_begins(steps in vec(step(), 2..80), limit in 1u64..12, old in 1usize..80) {
        let log: Vec<Entry> = log_of(&steps, old).into_iter().map(|(entry, _)| entry).collect();
        let mut lived = bounded::<Memory>(limit);
        let mut restarted = bounded::<Memory>(limit);
        for entry in &log {
            let outcomes = apply(&mut lived, std::slice::from_ref(entry));
            prop_assert_eq!(outcomes, apply(&mut restarted, std::slice::from_ref(entry)));
            restarted.reload_sessions();
            restarted.partition_mut().set_session_bytes_max(limit * SESSION_SIZE);
        }
        prop_assert_eq!(lived.rows(), restarted.rows());
    }
}

/// A checkpoint's job looks only at the applied position.
#[test]
fn d9_an_opened_partition_has_read_nothing_of_the_table() {
    let mut store = Store::<Memory>::new();
    store.propose(&add(1, 1));
    let engine = Arc::clone(store.partition().engine());
    let partition = Partition::open(engine).expect("opens");
    assert_eq!((partition.applied().index, partition.has_sessions()), (1, false));
}
