//! The journal is a function of the log: however it is applied, and whatever fails meanwhile.

use crate::common::{Fixture, Memory, Store, anonymous, bytes, entry};
use crate::*;
use hedgerow_storage::{Batch, Direction, Engine, EngineError, EngineStats, KeyRange, RowVisitor};
use hedgerow_types::ClientId;
use hedgerow_types::journal::Phase;
use hedgerow_types::log::Entry;
use hedgerow_types::op::Proposal;
use hedgerow_types::random::Random;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

crate::suite! {
    replicas_are_equal_however_the_log_is_cut
    a_journal_survives_a_crash_and_goes_on
    a_replica_that_begins_from_a_checkpoint_has_the_same_journal
    a_repeated_write_of_a_session_is_answered_and_not_done_again
}

/// Any write that a partition with duplications may have, good or not.
fn any_write(random: &mut Random) -> Write {
    let suffix = random.below(5).to_string();
    let expire_at = if random.chance(1, 2) { 0 } else { NOW + random.below(100) as u32 };
    let id = ID + random.below(3);
    let mutation = |random: &mut Random| match random.below(3) {
        0 => unset(&random.below(5).to_string()),
        _ => set(&random.below(5).to_string(), "1", expire_at),
    };
    match random.below(16) {
        0..3 => put(&suffix, "7", expire_at),
        3 => remove(&suffix),
        4 => multi_put(&[(&suffix, "1"), ("x", "2"), (&suffix, "3")], expire_at),
        5 => multi_remove(&[&suffix, "x"]),
        6..8 => incr(&suffix, 1, 0),
        8 => check_and_mutate(&suffix, random.chance(1, 2), (0..3).map(|_| mutation(random)).collect()),
        9..12 => {
            let change = |random: &mut Random| {
                let (seconds, origin) = (NOW - 50 + random.below(200) as u32, THERE + random.below(2));
                foreign(seconds, origin, mutation(random))
            };
            duplicate(HERE, &(0..1 + random.below(3)).map(|_| change(random)).collect::<Vec<_>>())
        }
        12 => begin(id, 1 + random.below(3) as u32, HERE, [300, NO_LIMIT][random.below(2) as usize]),
        13 => {
            let entry = random.below(20);
            // Sizes that fit are rare: all but the beginning of a copy is refused mostly.
            let position = match random.below(2) {
                0 => Position::Copying(key(&suffix)),
                _ => Position::Following { entry, bytes: entry * 60 },
            };
            Write::Journal(JournalWrite::Reached { id, round: 1 + random.below(3) as u32, position })
        }
        14 => Write::Journal(JournalWrite::End { id }),
        _ => Write::Nothing,
    }
}

fn any_log(seed: u64, count: u64) -> Vec<Entry> {
    let mut random = Random::new(seed);
    let one = |index| {
        let write = any_write(&mut random);
        let (client, sequence) = (ClientId(random.below(3)), 1 + random.below(30));
        let proposal = Proposal { client, sequence, ..anonymous(NOW + index as u32 / 2, write) };
        entry(index, &proposal)
    };
    (1..=count).map(one).collect()
}

fn apply(partition: &mut Partition, entries: &[Entry], outcomes: &mut Vec<ApplyOutcome>) {
    let mut some = Vec::new();
    partition.apply(entries, None, &mut some).expect("applies");
    outcomes.extend(some.into_iter().map(|(_, outcome)| outcome));
}

fn replicas_are_equal_however_the_log_is_cut<F: Fixture>() {
    for seed in 0..20 {
        let log = any_log(seed, 150);
        let (mut whole, mut single, mut cut) = (Store::<F>::new(), Store::<F>::new(), Store::<F>::new());
        let (mut expected, mut outcomes) = (Vec::new(), Vec::new());
        apply(whole.partition_mut(), &log, &mut expected);
        log.chunks(1).for_each(|entries| apply(single.partition_mut(), entries, &mut outcomes));
        assert_eq!(outcomes, expected, "seed {seed}");
        let mut done = Vec::new();
        while done.len() < log.len() {
            let cost_max = 1 + seed * 2_000;
            cut.partition_mut().apply_some(&log[done.len()..], None, &mut done, cost_max).expect("applies");
        }
        assert_eq!(single.rows(), whole.rows(), "seed {seed}");
        assert_eq!(cut.rows(), whole.rows(), "seed {seed}");
        assert!(whole.rows().iter().any(|(key, _)| key == b"mj"), "seed {seed}");
    }
}

fn pages(partition: &Partition) -> Vec<JournalPage> {
    (ID..ID + 3).map(|id| page_of(partition, id, 0, None, 1 << 20)).collect()
}

fn a_journal_survives_a_crash_and_goes_on<F: Fixture>() {
    for seed in 100..106 {
        let log = any_log(seed, 200);
        let (mut expected, mut store) = (Store::<F>::new(), Store::<F>::new());
        apply(expected.partition_mut(), &log, &mut Vec::new());
        apply(store.partition_mut(), &log[..80], &mut Vec::new());
        let before = (pages(store.partition()), store.rows());
        store.flush_at(0);
        apply(store.partition_mut(), &log[80..120], &mut Vec::new());
        store.crash();
        if store.partition().applied().index == 80 {
            assert_eq!((pages(store.partition()), store.rows()), before, "seed {seed}");
        }
        let applied = store.partition().applied().index as usize;
        assert!(applied >= 80, "what was flushed is there");
        apply(store.partition_mut(), &log[applied..], &mut Vec::new());
        assert_eq!(store.rows(), expected.rows(), "seed {seed}");
        assert_eq!(pages(store.partition()), pages(expected.partition()), "seed {seed}");
    }
}

fn a_replica_that_begins_from_a_checkpoint_has_the_same_journal<F: Fixture>() {
    for seed in 200..206 {
        let log = any_log(seed, 200);
        let (mut expected, mut store) = (Store::<F>::new(), Store::<F>::new());
        [&mut expected, &mut store].into_iter().for_each(|it| apply(it.partition_mut(), &log[..100], &mut Vec::new()));
        store.move_to_checkpoint(1);
        assert_eq!(pages(store.partition()), pages(expected.partition()), "seed {seed}");
        [&mut expected, &mut store].into_iter().for_each(|it| apply(it.partition_mut(), &log[100..], &mut Vec::new()));
        assert_eq!(store.rows(), expected.rows(), "seed {seed}");
    }
}

fn a_repeated_write_of_a_session_is_answered_and_not_done_again<F: Fixture>() {
    let mut store = Store::<F>::new();
    let change = foreign(NOW, THERE, set("a", "foreign", 0));
    let writes = [begin(ID, 1, HERE, NO_LIMIT), put("b", "v", 0), duplicate(HERE, &[change])];
    let propose = |store: &mut Store<F>, sequence: usize| {
        let write = writes[sequence - 1].clone();
        let proposal = Proposal { client: ClientId(1), sequence: sequence as u64, ..anonymous(NOW, write) };
        let index = store.partition().applied().index + 1;
        let mut outcomes = Vec::new();
        apply(store.partition_mut(), &[entry(index, &proposal)], &mut outcomes);
        outcomes.remove(0)
    };
    let replies = [1, 2, 3].map(|sequence| match propose(&mut store, sequence) {
        ApplyOutcome::Reply(reply) => reply,
        outcome => panic!("{outcome:?}"),
    });
    store.write_all(NOW, [Write::Journal(JournalWrite::End { id: ID }), put("a", "later", 0)]);
    let before = store.content();
    for (position, reply) in replies.into_iter().enumerate() {
        assert_eq!(propose(&mut store, position + 1), ApplyOutcome::Repeated(reply));
    }
    assert_eq!(store.content(), before);
    assert_eq!(store.page(1).phase, Phase::Absent);
}

/// Too many open files: a lack that passes.
const EMFILE: i32 = 24;

/// Fails one of its calls, the one with this number, without effect.
#[derive(Debug)]
struct FailingOnce {
    engine: Arc<dyn Engine>,
    calls_left: AtomicU64,
}

impl FailingOnce {
    fn check(&self) -> Result<(), EngineError> {
        let fails = self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0;
        if fails { Err(EngineError::Read { source: io::Error::from_raw_os_error(EMFILE).into() }) } else { Ok(()) }
    }
}

impl Engine for FailingOnce {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.check()?;
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, way: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.check()?;
        self.engine.scan(range, way, visit)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.check()?;
        self.engine.write(batch)
    }

    crate::common::pass_on!();
}

/// A replica whose engine fails once, at any call, has in the end what the others have, and meanwhile what its engine has.
#[test]
fn an_engine_that_fails_leaves_no_trace_in_the_journal() {
    const NEVER: u64 = u64::MAX / 2;
    let mut failed = 0;
    for seed in 300..320 {
        let log = any_log(seed, 60);
        let mut expected = Store::<Memory>::new();
        apply(expected.partition_mut(), &log, &mut Vec::new());
        for call in 0.. {
            let store = Store::<Memory>::new();
            let engine = Arc::new(FailingOnce {
                engine: Arc::clone(store.partition().engine()),
                calls_left: AtomicU64::new(NEVER),
            });
            let mut partition = Partition::open(Arc::clone(&engine) as Arc<dyn Engine>).expect("opens");
            engine.calls_left.store(call, Ordering::Relaxed);
            let (mut outcomes, mut has_failed) = (Vec::new(), false);
            while outcomes.len() < log.len() {
                let chunk = &log[outcomes.len()..(outcomes.len() + 20).min(log.len())];
                if let Err(error) = partition.apply(chunk, None, &mut outcomes) {
                    assert!(error.may_pass(), "{error:?}");
                    has_failed = true;
                    let stored = Partition::open(Arc::clone(&engine.engine)).expect("opens");
                    assert_eq!(stored.applied(), partition.applied());
                }
            }
            let rows = Store::<Memory>::rows_in(&*engine.engine);
            assert_eq!(rows, expected.rows(), "seed {seed}, call {call}");
            if !has_failed {
                break;
            }
            failed += 1;
        }
    }
    assert!(failed > 500, "{failed} failures");
}

/// What a page shows is as of one moment, and is what is asked for at once where it is in memory.
#[test]
fn a_moment_has_the_journal_of_its_time() {
    let mut store = Store::<Memory>::new();
    store.write_all(NOW, [put("a", "1", 0), begin(ID, 1, HERE, NO_LIMIT), put("b", "1", 0)]);
    let (moment, page) = (store.partition().moment().expect("a moment"), store.page(1 << 20));
    let read = Read::Journal(JournalRead { id: ID, round: 1, from: None, bytes_max: 1 << 20 });
    store.write_all(NOW, [put("c", &"1".repeat(9), 0)]);
    assert_eq!(moment.read(&read, 0, &|| true).expect("reads"), ReadReply::Journal(page));
    let budget = |rows| hedgerow_storage::ReadBudget { rows, bytes: 1 << 20 };
    let at_once = |rows| store.partition().read_at_once(&read, 0, budget(rows)).expect("reads");
    assert_eq!(at_once(100), Some(ReadReply::Journal(store.page(1 << 20))));
    assert_eq!(at_once(2), None, "more rows than that");
    assert_eq!(store.value("a", NOW), Some(bytes("1")));
}
