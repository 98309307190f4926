//! An engine that lacks something for a while: what was applied stays, and the rest can be applied later.

use crate::common::{Memory, Store, anonymous, bytes, empty_entry, entry};
use crate::key;
use bytes::Bytes;
use hedgerow_storage::{
    ApplyOutcome, Batch, Direction, Engine, EngineError, EngineStats, FailureKind, KeyRange, Partition, RowVisitor,
    Sessions,
};
use hedgerow_types::ClientId;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::op::{Check, Mutation, Proposal, Write};
use hedgerow_types::random::Random;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

/// Fails some of its calls, each of them without effect.
#[derive(Debug)]
struct Poor {
    engine: Arc<dyn Engine>,
    random: Mutex<Random>,
    /// Calls of 100 that fail.
    failing: Mutex<u64>,
}

impl Poor {
    fn new(engine: &Arc<dyn Engine>, seed: u64) -> Arc<Self> {
        let random = Mutex::new(Random::new(seed));
        Arc::new(Self { engine: Arc::clone(engine), random, failing: Mutex::new(0) })
    }

    fn fail(&self, percent: u64) {
        *self.failing.lock().expect("a number") = percent;
    }

    fn check(&self, error: i32) -> Result<(), io::Error> {
        let failing = *self.failing.lock().expect("a number");
        match self.random.lock().expect("a generator").chance(failing, 100) {
            true => Err(io::Error::from_raw_os_error(error)),
            false => Ok(()),
        }
    }
}

impl Engine for Poor {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.check(EMFILE).map_err(|source| EngineError::Read { source: source.into() })?;
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.check(EMFILE).map_err(|source| EngineError::Read { source: source.into() })?;
        self.engine.scan(range, way, visit)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.check(ENOSPC).map_err(|source| EngineError::Write { source: source.into() })?;
        self.engine.write(batch)
    }

    crate::pass_on!();
}

fn rows(engine: &dyn Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    engine.scan(KeyRange::default(), Direction::Ascending, visit).expect("scans");
    rows
}

fn incr(suffix: &str) -> Write {
    Write::Incr { key: key(suffix), by: 1, expire_at: 0 }
}

/// Any entry that a log may have: blind writes, writes that read, repetitions, changes of membership.
fn any_entry(random: &mut Random, index: u64) -> Entry {
    let suffix = random.below(5).to_string();
    let write = match random.below(10) {
        0 => return empty_entry(index),
        1 => return Entry { kind: EntryKind::Membership, ..empty_entry(index) },
        2..4 => Write::Put { key: key(&suffix), value: bytes("7"), expire_at: 0 },
        4..7 => incr(&suffix),
        7 => Write::Remove { key: key(&suffix) },
        _ => {
            let check = Check { suffix: bytes(&suffix), kind: 1, operand: Bytes::new() };
            let mutations = vec![Mutation::Put { suffix: bytes(&suffix), value: bytes("1"), expire_at: 0 }];
            Write::CheckAndMutate { prefix: bytes("k"), check, mutations, return_check_value: true }
        }
    };
    let now = 1_000 + index as u32;
    if random.chance(1, 4) {
        return entry(index, &anonymous(now, write));
    }
    let (client, sequence) = (ClientId(1 + random.below(6)), 1 + random.below(20));
    entry(index, &Proposal { client, sequence, ..anonymous(now, write) })
}

/// What the node passes along: the membership after the last change among `entries`.
fn membership_after(entries: &[Entry]) -> Option<Bytes> {
    let last = entries.iter().rev().find(|entry| entry.kind == EntryKind::Membership)?;
    Some(bytes(&format!("members as of {}", last.index)))
}

/// Whatever fails and wherever, the engine holds a prefix of the log with the membership and results that belong to it, and in
/// the end what it would hold if nothing had failed.
#[test]
fn n4_what_an_engine_refuses_for_a_while_is_applied_later_and_once() {
    let mut refused = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let log: Vec<Entry> = (1..=120).map(|index| any_entry(&mut random, index)).collect();
        let (sound, poor) = (Store::<Memory>::new(), Store::<Memory>::new());
        let engine = Poor::new(poor.partition().engine(), seed);
        let mut expected = Partition::open(Arc::clone(sound.partition().engine())).expect("opens");
        let mut partition = Partition::open(Arc::clone(&engine) as Arc<dyn Engine>).expect("opens");
        // So few that some are forgotten.
        [&mut expected, &mut partition].into_iter().for_each(|it| it.set_session_bytes_max(1_000));
        let (mut outcomes, mut expected_outcomes) = (Vec::new(), Vec::new());
        engine.fail(1 + seed % 40);
        let mut rest = &log[..];
        while !rest.is_empty() {
            let chunk = &rest[..(1 + random.below(30) as usize).min(rest.len())];
            let before = outcomes.len();
            if let Err(error) = partition.apply(chunk, membership_after(chunk).as_ref(), &mut outcomes) {
                assert!(error.may_pass(), "{error:?}");
                refused += 1;
            }
            let applied = outcomes.len() - before;
            rest = &rest[applied..];
            let done = log.len() - rest.len();
            let stored = Partition::open(Arc::clone(&engine.engine)).expect("opens");
            assert_eq!((stored.applied(), stored.membership()), (partition.applied(), partition.membership()));
            assert_eq!(partition.applied().index, done as u64, "seed {seed}");
            assert_eq!(partition.membership(), membership_after(&log[..done]).as_ref(), "seed {seed}");
        }
        engine.fail(0);
        partition.load_sessions().expect("reads");
        expected.apply(&log, membership_after(&log).as_ref(), &mut expected_outcomes).expect("applies");
        assert_eq!(outcomes, expected_outcomes, "seed {seed}");
        assert_eq!(rows(&*engine.engine), rows(&**expected.engine()), "seed {seed}");
        assert_eq!(partition.session_count(), expected.session_count(), "seed {seed}");
        assert_eq!(partition.session_bytes(), expected.session_bytes(), "seed {seed}");
    }
    assert!(refused > 1_000, "{refused}");
}

/// What was read from the engine before is not the table any more, although none is in memory.
#[test]
fn n4_a_table_of_results_that_was_read_before_a_failure_is_not_taken_over() {
    let store = Store::<Memory>::new();
    let engine = Poor::new(store.partition().engine(), 1);
    let mut partition = Partition::open(Arc::clone(&engine) as Arc<dyn Engine>).expect("opens");
    let read_before = Sessions::read(&*engine.engine).expect("reads");
    let write = |sequence| Proposal { client: ClientId(1), sequence, ..anonymous(1_000, incr("a")) };
    let mut outcomes = Vec::new();
    partition.apply(&[entry(1, &write(1))], None, &mut outcomes).expect("applies");
    engine.fail(100);
    let put = Proposal { write: Write::Put { key: key("b"), value: bytes("1"), expire_at: 0 }, ..write(2) };
    let error = partition.apply(&[entry(2, &put)], None, &mut outcomes).expect_err("no space");
    assert!(error.may_pass() && !partition.has_sessions());
    partition.adopt_sessions(read_before);
    engine.fail(0);
    partition.apply(&[entry(2, &write(1))], None, &mut outcomes).expect("applies");
    assert!(matches!(&outcomes[..], [(1, ApplyOutcome::Reply(_)), (2, ApplyOutcome::Repeated(_))]), "{outcomes:?}");
}

#[test]
fn n4_lacks_are_told_from_what_does_not_pass() {
    let kind = |error| FailureKind::of(&io::Error::from_raw_os_error(error));
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EDQUOT, libc::ENOMEM];
    assert!(lacks.into_iter().all(|error| kind(error).may_pass()));
    assert!([libc::EIO, libc::EACCES, libc::EROFS].into_iter().all(|error| !kind(error).may_pass()));
    assert!(!FailureKind::Damage.may_pass());
}
