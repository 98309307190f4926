//! Exactly once.

use crate::common::{Fixture, Memory, Store, bytes, empty_entry, entry};
use crate::{key, suite};
use bytes::Bytes;
use hedgerow_storage::{ApplyOutcome, Batch, Partition};
use hedgerow_types::ClientId;
use hedgerow_types::error::Status;
use hedgerow_types::limit::{SESSION_IDLE_SECONDS, SESSION_WINDOW};
use hedgerow_types::log::Entry;
use hedgerow_types::op::{Check, Mutation, Proposal, Write, WriteDetail, WriteReply};
use std::sync::Arc;

fn add(client: u64, sequence: u64, now: u32) -> Proposal {
    let write = Write::Incr { key: key("n"), by: 1, expire_at: 0 };
    Proposal { client: ClientId(client), sequence, now, is_agreed: false, write }
}

fn value(value: i64) -> WriteReply {
    WriteReply { status: Status::Ok, detail: WriteDetail::Value(value) }
}

fn fill_up_to<F: Fixture>(store: &mut Store<F>, index: u64) {
    let from = store.partition().applied().index + 1;
    let entries: Vec<Entry> = (from..=index).map(empty_entry).collect();
    store.partition_mut().apply(&entries, None, &mut Vec::new()).expect("applies");
}

fn a_repeated_write_is_answered_and_not_applied<F: Fixture>() {
    let mut store = Store::<F>::new();
    assert_eq!(store.propose(&add(1, 5, 0)), ApplyOutcome::Reply(value(1)));
    assert_eq!(store.propose(&add(1, 5, 0)), ApplyOutcome::Repeated(value(1)));
    assert_eq!(store.propose(&add(2, 5, 0)), ApplyOutcome::Reply(value(2)), "another client");
    assert_eq!(store.propose(&add(1, 4, 0)), ApplyOutcome::Reply(value(3)), "an earlier number, late");
    assert_eq!(store.propose(&add(1, 5, 0)), ApplyOutcome::Repeated(value(1)), "with the result of then");
    assert_eq!(store.value("n", 0), Ok("3".into()));
}

fn a_repetition_in_the_same_call_is_recognised<F: Fixture>() {
    let mut store = Store::<F>::new();
    let entries = [entry(1, &add(1, 5, 0)), entry(2, &add(1, 5, 0))];
    let mut outcomes = Vec::new();
    store.partition_mut().apply(&entries, None, &mut outcomes).expect("applies");
    assert_eq!(outcomes, [(1, ApplyOutcome::Reply(value(1))), (2, ApplyOutcome::Repeated(value(1)))]);
}

fn refused_writes_are_remembered_too<F: Fixture>() {
    let mut store = Store::<F>::new();
    let check = Check { suffix: bytes("c"), kind: 3, operand: Bytes::new() };
    let mutations = vec![Mutation::Put { suffix: bytes("c"), value: bytes("new"), expire_at: 0 }];
    let write = Write::CheckAndMutate { prefix: bytes("k"), check, mutations, return_check_value: true };
    let proposal = Proposal { client: ClientId(9), sequence: 1, now: 0, is_agreed: false, write };
    let refused = WriteReply { status: Status::TryAgain, detail: WriteDetail::Checked(Some(None)) };
    assert_eq!(store.propose(&proposal), ApplyOutcome::Reply(refused.clone()));
    store.put("c", "there now", 0);
    assert_eq!(store.propose(&proposal), ApplyOutcome::Repeated(refused));
    assert_eq!(store.value("c", 0), Ok("there now".into()));
}

fn writes_without_client_or_number_are_not_remembered<F: Fixture>() {
    let mut store = Store::<F>::new();
    for (client, sequence) in [(0, 7), (7, 0)] {
        for _ in 0..2 {
            assert!(matches!(store.propose(&add(client, sequence, 0)), ApplyOutcome::Reply(_)));
        }
    }
    assert_eq!(store.partition().session_count(), 0);
}

fn a_number_whose_slot_was_taken_is_refused<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&add(1, 3, 0));
    assert_eq!(store.propose(&add(1, 3 + SESSION_WINDOW, 0)), ApplyOutcome::Reply(value(2)));
    assert!(matches!(store.propose(&add(1, 3, 0)), ApplyOutcome::SessionWindow { sequence: 3, .. }));
    assert_eq!(store.propose(&add(1, 3 + SESSION_WINDOW, 0)), ApplyOutcome::Repeated(value(2)));
    assert_eq!(store.value("n", 0), Ok("2".into()));
}

fn sessions_survive_a_flush_and_are_rebuilt_by_replay<F: Fixture>() {
    let mut store = Store::<F>::new();
    let log: Vec<Entry> = [add(1, 1, 0), add(1, 2, 0), add(1, 1, 0), add(2, 1, 0)]
        .iter()
        .zip(1..)
        .map(|(add, at)| entry(at, add))
        .collect();
    let mut outcomes = Vec::new();
    store.partition_mut().apply(&log[..2], None, &mut outcomes).expect("applies");
    store.flush();
    store.partition_mut().apply(&log[2..], None, &mut outcomes).expect("applies");
    store.crash();
    assert_eq!(store.partition().applied().index, 2);
    assert_eq!(store.value("n", 0), Ok("2".into()));
    let mut again = Vec::new();
    store.partition_mut().apply(&log[2..], None, &mut again).expect("applies");
    assert_eq!(again, outcomes[2..]);
    assert_eq!(again[0].1, ApplyOutcome::Repeated(value(1)));
    assert_eq!(store.propose(&add(2, 1, 0)), ApplyOutcome::Repeated(value(3)));
}

fn idle_sessions_are_dropped_at_fixed_indices<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.propose(&add(1, 1, 10));
    store.propose(&add(2, 1, 20));
    store.propose(&Proposal { write: Write::Nothing, ..add(0, 0, 10 + SESSION_IDLE_SECONDS + 1) });
    assert_eq!(store.propose(&add(1, 1, 10)), ApplyOutcome::Repeated(value(1)), "idle, but not yet looked for");
    fill_up_to(&mut store, 4_095);
    assert_eq!(store.partition().session_count(), 2);
    fill_up_to(&mut store, 4_096);
    assert_eq!(store.partition().session_count(), 1, "the other is exactly as old as it may be");
    store.flush();
    store.crash();
    assert!(matches!(store.propose(&add(2, 1, 0)), ApplyOutcome::Repeated(_)));
    assert_eq!(store.partition().session_count(), 1);
    assert!(matches!(store.propose(&add(1, 1, 0)), ApplyOutcome::SessionWindow { sequence: 1, floor: 1, .. }));
    assert!(matches!(store.propose(&add(1, 2, 0)), ApplyOutcome::Reply(_)));
}

suite! {
    a_repeated_write_is_answered_and_not_applied
    a_repetition_in_the_same_call_is_recognised
    refused_writes_are_remembered_too
    writes_without_client_or_number_are_not_remembered
    a_number_whose_slot_was_taken_is_refused
    sessions_survive_a_flush_and_are_rebuilt_by_replay
    idle_sessions_are_dropped_at_fixed_indices
}

/// A sweep is limited; which sessions it takes must not depend on how the table came to be in memory.
#[test]
fn a_limited_sweep_takes_the_same_sessions_on_a_replica_that_restarted() {
    let mut lived = Store::<Memory>::new();
    let mut restarted = Store::<Memory>::new();
    let entries: Vec<Entry> = (1..=20_000u64)
        .map(|index| entry(index, &Proposal { client: ClientId(index * 7_919 % 20_011), ..add(0, 1, 10) }))
        .collect();
    for store in [&mut lived, &mut restarted] {
        store.partition_mut().apply(&entries, None, &mut Vec::new()).expect("applies");
    }
    restarted.flush();
    restarted.crash();
    for store in [&mut lived, &mut restarted] {
        store.propose(&Proposal { write: Write::Nothing, ..add(0, 0, 11 + SESSION_IDLE_SECONDS) });
        assert!(store.partition().has_sessions());
        let before = store.partition().session_count();
        fill_up_to(store, 20_480);
        let after = store.partition().session_count();
        assert!(after > 0 && after < before, "{before} to {after}");
    }
    let contents = [lived.rows(), restarted.rows()];
    assert!(contents[0] == contents[1]);
    let mut clients: Vec<u64> = (1..=20_000u64).map(|index| index * 7_919 % 20_011).collect();
    clients.sort_unstable();
    let left = contents[0].iter().filter(|(key, _)| key[0] == b's').map(|(key, _)| key[1..9].to_vec());
    let left: Vec<Vec<u8>> = left.collect();
    let highest = clients[clients.len() - left.len()..].iter().map(|client| client.to_be_bytes().to_vec());
    assert!(left == highest.collect::<Vec<_>>(), "the lowest clients go first");
}

#[test]
fn a_session_row_that_is_no_such_thing_is_damage() {
    for (key, row) in [
        (&b"s"[..], &[1; 13][..]),
        (b"s\0\0\0\0\0\0\0\x01\0\x01", b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0"),
        (b"s\0\0\0\0\0\0\0\x01\0\x01", b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0"),
        (b"mf", b"\x02\0\0\0\0\0\0\0\x01"),
    ] {
        let store = Store::<Memory>::new();
        let engine = Arc::clone(store.partition().engine());
        let mut batch = Batch::new();
        batch.put(&[key], &[row]);
        engine.write(&batch).expect("writes");
        let mut partition = Partition::open(engine).expect("the table is not looked at");
        assert!(partition.load_sessions().expect_err("refused").is_damage());
    }
}

#[cfg(feature = "mutations")]
mod mutations {
    use super::*;
    use hedgerow_storage::mutations::FORGET_SESSIONS;
    use std::process::Command;
    use std::sync::atomic::Ordering;

    /// The switch is global: the test that throws it runs in a process of its own.
    #[test]
    fn the_switch_makes_the_table_forget() {
        const CHILD: &str = "HEDGEROW_STORAGE_FORGETFUL_CHILD";
        if std::env::var_os(CHILD).is_none() {
            let test = std::env::current_exe().expect("this test");
            let name = "sessions::mutations::the_switch_makes_the_table_forget";
            let status = Command::new(test).args(["--exact", name]).env(CHILD, "1").status();
            assert!(status.expect("runs").success());
            return;
        }
        FORGET_SESSIONS.store(true, Ordering::Relaxed);
        let mut store = Store::<Memory>::new();
        store.propose(&add(1, 1, 0));
        assert_eq!(store.propose(&add(1, 1, 0)), ApplyOutcome::Reply(value(2)));
    }
}
