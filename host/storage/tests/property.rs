//! Both engines and a naive model live through the same random life: writes of several clients with repetitions, reads,
//! flushes, compactions, crashes with replay, and moves to a checkpoint. They must agree at every step.
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

use bytes::Bytes;
use common::model::Model;
use common::{Fixture, Memory, Rocks, Store, bytes, empty_entry, entry};
use hedgerow_storage::ApplyOutcome;
use hedgerow_types::key::hash_storage_prefix;
use hedgerow_types::limit::SESSION_IDLE_SECONDS;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::op::{
    Check, Filter, FilterKind, MultiGet, Mutation, Proposal, Read, ReadReply, Scan, Selection, Write,
};
use hedgerow_types::{ClientId, Index};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Entries before the random ones, so that the sweep of idle sessions comes within reach.
const FILLER: Index = 4_070;
/// The log's time where the random part begins.
const EPOCH: u32 = 100_000;

#[derive(Clone, Debug)]
enum Step {
    Apply { entries: Vec<Option<Proposal>>, membership: Option<Bytes> },
    Read { read: Read, now: u32 },
    Flush,
    Compact,
    Crash { chunk: usize },
    MoveToCheckpoint,
}

fn suffix() -> impl Strategy<Value = Bytes> {
    select(vec![&b""[..], b"0", b"1", b"12", b"b", b"\x7f", b"\xff", b"\xff\xff"]).prop_map(Bytes::from_static)
}

fn prefix(is_hash_table: bool) -> BoxedStrategy<Bytes> {
    if is_hash_table {
        select(vec!["a", "bb"]).prop_map(|hash_key| hash_storage_prefix(hash_key.as_bytes())).boxed()
    } else {
        select(vec![&b""[..], b"1", b"k", b"\xff"]).prop_map(Bytes::from_static).boxed()
    }
}

fn key(is_hash_table: bool) -> BoxedStrategy<Bytes> {
    (prefix(is_hash_table), suffix()).prop_map(|(prefix, suffix)| [&prefix[..], &suffix].concat().into()).boxed()
}

fn value() -> impl Strategy<Value = Bytes> {
    select(vec!["", "0", "7", "-3", "9223372036854775807", "x", "7x", "x7"]).prop_map(bytes)
}

fn expiry() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 4 => EPOCH..EPOCH + 60, 1 => Just(u32::MAX)]
}

/// After everything but the jumps of the log's time.
const NOW: u32 = EPOCH + 50;

fn time() -> impl Strategy<Value = u32> {
    prop_oneof![20 => EPOCH..NOW, 1 => Just(EPOCH + SESSION_IDLE_SECONDS + 40)]
}

fn write(is_hash_table: bool) -> BoxedStrategy<Write> {
    let key = || key(is_hash_table);
    let prefix = || prefix(is_hash_table);
    let by = prop_oneof![4 => -5i64..5, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let incr_expiry = prop_oneof![Just(0), Just(-1), (EPOCH as i32)..(EPOCH as i32 + 60)];
    let mutation = prop_oneof![
        (suffix(), value(), expiry()).prop_map(|(suffix, value, expire_at)| Mutation::Put { suffix, value, expire_at }),
        suffix().prop_map(|suffix| Mutation::Remove { suffix }),
    ];
    let check = (suffix(), -1i32..19, value()).prop_map(|(suffix, kind, operand)| Check { suffix, kind, operand });
    prop_oneof![
        1 => Just(Write::Nothing),
        6 => (key(), value(), expiry()).prop_map(|(key, value, expire_at)| Write::Put { key, value, expire_at }),
        2 => key().prop_map(|key| Write::Remove { key }),
        3 => (prefix(), vec((suffix(), value()), 0..4), expiry())
            .prop_map(|(prefix, rows, expire_at)| Write::MultiPut { prefix, rows, expire_at }),
        1 => (prefix(), vec(suffix(), 0..3)).prop_map(|(prefix, suffixes)| Write::MultiRemove { prefix, suffixes }),
        4 => (key(), by, incr_expiry).prop_map(|(key, by, expire_at)| Write::Incr { key, by, expire_at }),
        4 => (prefix(), check, vec(mutation, 0..3), any::<bool>()).prop_map(
            |(prefix, check, mutations, return_check_value)| Write::CheckAndMutate {
                prefix, check, mutations, return_check_value
            }
        ),
    ]
    .boxed()
}

fn proposal(is_hash_table: bool) -> impl Strategy<Value = Option<Proposal>> {
    // Few sequences in few slots, so that they repeat and overtake each other.
    let sequence = (0u64..3, 0u64..3).prop_map(|(slot, round)| slot + 1_024 * round);
    let proposal = (0u64..3, sequence, time(), write(is_hash_table)).prop_map(|(client, sequence, now, write)| {
        Proposal { client: ClientId(client), sequence, now, is_agreed: false, write }
    });
    proptest::option::weighted(0.95, proposal)
}

fn filter() -> impl Strategy<Value = Filter> {
    let kind = select(vec![FilterKind::None, FilterKind::Anywhere, FilterKind::Prefix, FilterKind::Postfix]);
    (kind, select(vec!["", "1", "a", "b", "2"])).prop_map(|(kind, pattern)| Filter { kind, pattern: bytes(pattern) })
}

fn multi_get(is_hash_table: bool) -> impl Strategy<Value = MultiGet> {
    let range = (suffix(), any::<bool>(), suffix(), any::<bool>(), filter(), any::<bool>()).prop_map(
        |(start, start_inclusive, stop, stop_inclusive, filter, reverse)| Selection::Range {
            start,
            start_inclusive,
            stop,
            stop_inclusive,
            filter,
            reverse,
        },
    );
    let selection = prop_oneof![3 => range, 1 => vec(suffix(), 0..5).prop_map(Selection::Suffixes)];
    (prefix(is_hash_table), selection, -1i32..4, -1i32..12, any::<bool>()).prop_map(
        |(prefix, selection, count_max, size_max, no_value)| MultiGet {
            prefix,
            selection,
            count_max,
            size_max,
            no_value,
        },
    )
}

fn scan(is_hash_table: bool) -> impl Strategy<Value = Scan> {
    let bound = || prop_oneof![1 => Just(Bytes::new()), 2 => key(is_hash_table)];
    let range = (bound(), any::<bool>(), bound(), any::<bool>());
    (range, filter(), filter(), 0u32..4, any::<[bool; 3]>()).prop_map(
        move |((start, start_inclusive, stop, stop_inclusive), hash_key_filter, sort_key_filter, rows_max, flags)| {
            Scan {
                start,
                start_inclusive,
                stop,
                stop_inclusive,
                is_hash_table,
                hash_key_filter,
                sort_key_filter,
                rows_max,
                no_value: flags[0],
                return_expire: flags[1],
                only_count: flags[2],
            }
        },
    )
}

fn read(is_hash_table: bool) -> BoxedStrategy<Read> {
    let key = || key(is_hash_table);
    prop_oneof![
        2 => key().prop_map(|key| Read::Get { key }),
        1 => key().prop_map(|key| Read::Ttl { key }),
        4 => multi_get(is_hash_table).prop_map(Read::MultiGet),
        1 => vec(key(), 0..4).prop_map(|keys| Read::BatchGet { keys }),
        1 => prefix(is_hash_table).prop_map(|prefix| Read::SortKeyCount { prefix }),
        4 => scan(is_hash_table).prop_map(Read::Scan),
        1 => Just(Read::Checksum),
    ]
    .boxed()
}

fn step(is_hash_table: bool) -> impl Strategy<Value = Step> {
    let membership = proptest::option::weighted(0.1, value());
    prop_oneof![
        10 => (vec(proposal(is_hash_table), 1..8), membership)
            .prop_map(|(entries, membership)| Step::Apply { entries, membership }),
        10 => (read(is_hash_table), time()).prop_map(|(read, now)| Step::Read { read, now }),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
        2 => (1usize..6).prop_map(|chunk| Step::Crash { chunk }),
        1 => Just(Step::MoveToCheckpoint),
    ]
}

fn life() -> impl Strategy<Value = Vec<Step>> {
    any::<bool>().prop_flat_map(|is_hash_table| vec(step(is_hash_table), 1..40))
}

/// The two engines, the model, and the log that all of them have applied.
struct World {
    memory: Store<Memory>,
    rocks: Store<Rocks>,
    model: Model,
    log: Vec<(Entry, Option<Bytes>, ApplyOutcome)>,
    checkpoints: usize,
}

impl World {
    fn new() -> Self {
        let (memory, rocks) = (Store::new(), Store::new());
        let mut world = Self { memory, rocks, model: Model::default(), log: Vec::new(), checkpoints: 0 };
        let filler: Vec<_> = (0..FILLER).map(|_| None).collect();
        world.apply(&filler, None);
        world
    }

    fn apply(&mut self, proposals: &[Option<Proposal>], membership: Option<Bytes>) {
        let mut entries = Vec::new();
        let mut expected = Vec::new();
        for proposal in proposals {
            let index = self.model.index + 1;
            entries.push(proposal.as_ref().map_or_else(|| empty_entry(index), |proposal| entry(index, proposal)));
            expected.push((index, self.model.apply(proposal.as_ref())));
        }
        if membership.is_some() {
            let index = self.model.index + 1;
            entries.push(Entry { kind: EntryKind::Membership, data: bytes("change"), ..empty_entry(index) });
            expected.push((index, self.model.apply(None)));
        }
        assert_eq!(apply(&mut self.memory, &entries, membership.as_ref()), expected, "memory");
        assert_eq!(apply(&mut self.rocks, &entries, membership.as_ref()), expected, "rocks");
        let last = entries.len().wrapping_sub(1);
        for (position, (entry, (_, outcome))) in entries.into_iter().zip(expected).enumerate() {
            self.log.push((entry, membership.clone().filter(|_| position == last), outcome));
        }
    }

    fn read(&self, read: &Read, now: u32) {
        // A log that has jumped is ahead of the readers' time, which is later than any flush.
        let has_jumped = self.memory.partition().log_time() > NOW;
        let now = if has_jumped { now.max(NOW) } else { now };
        let memory = self.memory.partition().read(read, now).expect("reads");
        assert_eq!(memory, self.rocks.partition().read(read, now).expect("reads"), "memory and rocks: {read:?}");
        match (memory, self.model.read(read, now)) {
            (ReadReply::Checksum { rows, index, .. }, ReadReply::Checksum { rows: expected, index: at, .. }) => {
                assert_eq!((rows, index), (expected, at));
            }
            (reply, expected) => assert_eq!(reply, expected, "memory and model: {read:?} at {now}"),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Apply { entries, membership } => self.apply(&entries, membership),
            Step::Read { read, now } => self.read(&read, now),
            Step::Flush => {
                self.memory.flush_at(NOW + 600);
                self.rocks.flush_at(NOW + 600);
            }
            Step::Compact => {
                self.memory.partition().engine().compact().expect("compacts");
                self.rocks.partition().engine().compact().expect("compacts");
            }
            Step::Crash { chunk } => {
                self.memory.crash();
                replay(&mut self.memory, &self.log, chunk);
                self.rocks.crash();
                replay(&mut self.rocks, &self.log, chunk);
            }
            Step::MoveToCheckpoint => {
                self.checkpoints += 1;
                self.memory.move_to_checkpoint(self.checkpoints);
                self.rocks.move_to_checkpoint(self.checkpoints);
            }
        }
        self.compare();
    }

    fn compare(&self) {
        let membership = self.log.iter().rev().find_map(|(_, membership, _)| membership.as_ref());
        for partition in [self.memory.partition(), self.rocks.partition()] {
            assert_eq!(partition.applied().index, self.model.index);
            assert_eq!(partition.membership(), membership);
            if partition.has_sessions() {
                assert_eq!(partition.session_count(), self.model.client_count());
            }
        }
        self.read(&Read::Checksum, EPOCH);
    }
}

fn apply<F: Fixture>(
    store: &mut Store<F>,
    entries: &[Entry],
    membership: Option<&Bytes>,
) -> Vec<(Index, ApplyOutcome)> {
    let mut outcomes = Vec::new();
    store.partition_mut().apply(entries, membership, &mut outcomes).expect("applies");
    outcomes
}

/// Applies the log from where `store` stands, `chunk` entries at a time: what was answered once is answered again.
fn replay<F: Fixture>(store: &mut Store<F>, log: &[(Entry, Option<Bytes>, ApplyOutcome)], chunk: usize) {
    let from = store.partition().applied().index as usize;
    for piece in log[from..].chunks(chunk) {
        let entries: Vec<Entry> = piece.iter().map(|(entry, ..)| entry.clone()).collect();
        let membership = piece.iter().rev().find_map(|(_, membership, _)| membership.as_ref());
        let outcomes = apply(store, &entries, membership);
        let expected: Vec<_> = piece.iter().map(|(entry, _, outcome)| (entry.index, outcome.clone())).collect();
        assert_eq!(outcomes, expected, "replay");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engines_and_model_agree_through_flushes_and_crashes(life in life()) {
        let mut world = World::new();
        for step in life {
            world.run(step);
        }
        world.run(Step::Crash { chunk: 3 });
    }
}
