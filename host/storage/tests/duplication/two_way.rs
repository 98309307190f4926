//! Two clusters that tell each other their changes, with writes at both of them.

use crate::common::{Memory, Store, bytes};
use crate::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
enum Step {
    /// A write at one side.
    Write { side: usize, write: Write },
    /// One side reads a page from an earlier position of this round (so many back), and tells it.
    Tell { side: usize, back: usize, bytes_max: u32 },
    /// What was told once comes again.
    Repeat { side: usize, number: usize },
    /// The side's partition is told how far it is.
    Reached { side: usize },
    /// A duplication begins anew.
    Anew { side: usize },
    /// Time goes on.
    Wait { seconds: u32 },
    /// Everything that may go from the disk goes.
    Compact { side: usize },
}

fn suffix() -> impl Strategy<Value = &'static str> {
    select(vec!["0", "1", "2"])
}

fn expiry() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 3 => NOW..NOW + 200]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (suffix(), select(vec!["x", "5"]), expiry())
            .prop_map(|(suffix, value, expire_at)| set(suffix, value, expire_at)),
        suffix().prop_map(unset),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let value = || select(vec!["1", "2", "x", ""]);
    let incr_expiry = prop_oneof![Just(0), Just(-1), (NOW as i32)..(NOW as i32 + 200)];
    prop_oneof![
        4 => (suffix(), value(), expiry()).prop_map(|(suffix, value, expire_at)| put(suffix, value, expire_at)),
        2 => suffix().prop_map(remove),
        2 => (vec((suffix(), value()), 1..4), expiry()).prop_map(|(rows, expire_at)| multi_put(&rows, expire_at)),
        1 => vec(suffix(), 1..3).prop_map(|suffixes| multi_remove(&suffixes)),
        2 => (suffix(), -3i64..3, incr_expiry).prop_map(|(suffix, by, expire_at)| incr(suffix, by, expire_at)),
        2 => (suffix(), any::<bool>(), vec(mutation(), 1..4))
            .prop_map(|(suffix, is_there, mutations)| check_and_mutate(suffix, is_there, mutations)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let side = || 0usize..2;
    let bytes_max = select(vec![1, 100, 1 << 20]);
    prop_oneof![
        10 => (side(), write()).prop_map(|(side, write)| Step::Write { side, write }),
        8 => (side(), prop_oneof![4 => Just(0usize), 1 => 1usize..5], bytes_max)
            .prop_map(|(side, back, bytes_max)| Step::Tell { side, back, bytes_max }),
        3 => (side(), any::<usize>()).prop_map(|(side, number)| Step::Repeat { side, number }),
        3 => side().prop_map(|side| Step::Reached { side }),
        1 => side().prop_map(|side| Step::Anew { side }),
        3 => (1u32..20).prop_map(|seconds| Step::Wait { seconds }),
        1 => side().prop_map(|side| Step::Compact { side }),
    ]
}

/// One of the clusters, and who carries its changes away.
struct Side {
    store: Store<Memory>,
    cluster: u64,
    round: u32,
    /// Positions of this round up to which all was told, at each time a page was.
    told: Vec<JournalPage>,
    /// All changes ever told.
    sent: Vec<Vec<Change>>,
}

struct Pair {
    sides: [Side; 2],
    now: u32,
    /// How much later the second cluster's clock is.
    skew: u32,
}

impl Pair {
    fn new(before: &[(usize, Write)], skew: u32) -> Self {
        let side = |cluster| Side { store: Store::new(), cluster, round: 0, told: Vec::new(), sent: Vec::new() };
        let mut pair = Self { sides: [side(HERE), side(THERE)], now: NOW, skew };
        before.iter().for_each(|(side, write)| pair.write(*side, write.clone()));
        (0..2).for_each(|side| pair.begin(side));
        pair
    }

    fn write(&mut self, side: usize, write: Write) {
        let now = self.now + side as u32 * self.skew;
        let is_local = !matches!(write, Write::Journal(_) | Write::Duplicate(_));
        let status = self.sides[side].store.write(now, write.clone());
        assert!(is_local || status == Status::Ok, "{status:?} to {write:?}");
    }

    fn begin(&mut self, side: usize) {
        let Side { cluster, round, told, .. } = &mut self.sides[side];
        *round += 1;
        told.clear();
        let begin = begin(ID, *round, *cluster, NO_LIMIT);
        self.write(side, begin);
    }

    fn tell(&mut self, side: usize, back: usize, bytes_max: u32) -> JournalPage {
        let Side { store, round, told, .. } = &self.sides[side];
        let from = told.iter().rev().nth(back).and_then(|page| page.position.clone());
        let page = page_of(store.partition(), ID, *round, from, bytes_max);
        let there = self.sides[1 - side].cluster;
        self.write(1 - side, duplicate(there, &page.changes));
        let Side { told, sent, .. } = &mut self.sides[side];
        // Whoever goes back tells all from there on in order.
        told.truncate(told.len().saturating_sub(back));
        told.push(page.clone());
        sent.push(page.changes.clone());
        page
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Write { side, write } => self.write(side, write),
            Step::Tell { side, back, bytes_max } => {
                self.tell(side, back, bytes_max);
            }
            Step::Repeat { side, number } => {
                let Side { sent, .. } = &self.sides[side];
                let Some(changes) = sent.get(number % sent.len().max(1)).cloned() else { return };
                let there = self.sides[1 - side].cluster;
                self.write(1 - side, duplicate(there, &changes));
            }
            Step::Reached { side } => {
                if let Some(page) = self.sides[side].told.last() {
                    let reached = reached(ID, page);
                    self.write(side, reached);
                }
            }
            Step::Anew { side } => self.begin(side),
            Step::Wait { seconds } => self.now += seconds,
            Step::Compact { side } => self.sides[side].store.compact(),
        }
    }

    /// Tells all, one side after the other, until there is nothing to tell.
    fn settle(&mut self) {
        for side in 0..2 {
            for count in 0.. {
                assert!(count < 1_000, "it never ends");
                let page = self.tell(side, 0, 50);
                self.run(Step::Reached { side });
                if !page.has_more {
                    break;
                }
            }
        }
        // What was told has given nobody anything to tell back.
        for side in 0..2 {
            let page = self.tell(side, 0, 50);
            assert!(page.changes.is_empty() && !page.has_more, "{page:?}");
            assert_eq!((page.entries_left, page.bytes_left), (0, 0));
            assert_eq!(self.sides[side].store.entry_count(), 0);
        }
    }

    fn assert_equal(&self) {
        let [one, other] = [&self.sides[0].store, &self.sides[1].store];
        for now in self.now + self.skew..NOW + 201 {
            assert_eq!(one.checksum(now), other.checksum(now), "at {now}");
        }
        let end = self.now + 1_000;
        assert_eq!(one.checksum(end), other.checksum(end));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows from before have no stamps, and none that expire: of those nothing is known once they have.
    #[test]
    fn both_sides_are_equal_once_each_has_told_all_and_then_are_quiet(
        before in vec((0usize..2, suffix(), select(vec!["a", "b"])), 0..6),
        steps in vec(step(), 1..60),
        skew in 0u32..30,
    ) {
        let before: Vec<_> = before.into_iter().map(|(side, suffix, value)| (side, put(suffix, value, 0))).collect();
        let mut pair = Pair::new(&before, skew);
        steps.into_iter().for_each(|step| pair.run(step));
        pair.settle();
        pair.assert_equal();
        pair.settle();
    }
}

#[test]
fn of_two_rows_without_stamps_one_stands_at_both_sides() {
    let mut pair = Pair::new(&[(0, put("a", "of 1", 0)), (1, put("a", "of 2", 0)), (0, put("b", "of 1", 0))], 0);
    pair.settle();
    pair.assert_equal();
    let [one, other] = &pair.sides;
    assert_eq!(one.store.value("a", NOW), other.store.value("a", NOW));
    for side in &pair.sides {
        assert_eq!(side.store.value("b", NOW), Some(bytes("of 1")));
    }
}

#[test]
fn a_write_is_later_than_every_foreign_change_that_was_applied_before_it() {
    // The first cluster's clock is behind.
    let mut pair = Pair::new(&[], 3_000);
    pair.settle();
    pair.write(1, put("a", "by a clock that is ahead", 0));
    pair.settle();
    pair.write(0, put("a", "after it", 0));
    pair.settle();
    for side in &pair.sides {
        assert_eq!(side.store.value("a", NOW), Some(bytes("after it")));
    }
}
