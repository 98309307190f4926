//! The scores of small clusters whose links and disks are given.

use super::*;
use proptest::prelude::*;

const STEP: Duration = Duration::from_millis(50);

/// A cluster as one of its nodes sees it.
struct Seen {
    scores: SlowScores,
    count: u16,
    now: Instant,
    /// Added to each packet that a node sends, ms.
    late: BTreeMap<u16, u64>,
    /// Round trips that are not the sum of both, ms.
    links: BTreeMap<(u16, u16), u64>,
    disks: BTreeMap<u16, u64>,
    /// Nodes that send no rows.
    silent: BTreeSet<u16>,
    changes: Vec<(u64, u16, bool)>,
}

impl Seen {
    fn by(own: u16, count: u16) -> Self {
        let scores = SlowScores::new(NodeId(own), (1..=count).map(NodeId), SlowLimits::default());
        let (late, links, disks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (now, silent, changes) = (Instant(1_000_000_000), BTreeSet::new(), Vec::new());
        Self { scores, count, now, late, links, disks, silent, changes }
    }

    fn late(mut self, node: u16, ms: u64) -> Self {
        self.late.insert(node, ms);
        self
    }

    fn row(&self, from: u16) -> SlowRow {
        let late = |node: u16| self.late.get(&node).copied().unwrap_or(0);
        let trip = |to: u16| {
            let given = self.links.get(&(from.min(to), from.max(to))).copied();
            Duration::from_micros(300) + Duration::from_millis(given.unwrap_or(late(from) + late(to)))
        };
        SlowRow {
            round_trips: (1..=self.count).filter(|to| *to != from).map(|to| (NodeId(to), trip(to))).collect(),
            late: Duration::ZERO,
            log_write: self.disks.get(&from).map(|ms| Duration::from_millis(*ms)),
            scores: BTreeMap::new(),
        }
    }

    fn run(&mut self, ms: u64) -> Vec<u16> {
        let end = self.now + Duration::from_millis(ms);
        while self.now < end {
            self.now = self.now + STEP;
            for from in (1..=self.count).filter(|from| !self.silent.contains(from)) {
                let row = self.row(from);
                self.scores.handle_row(NodeId(from), row, self.now);
            }
            let at = self.now.since(Instant(1_000_000_000)).as_millis() as u64;
            let changed = self.scores.update(self.now);
            self.changes.extend(changed.into_iter().map(|(node, is_slow)| (at, node.0, is_slow)));
        }
        self.slow()
    }

    fn slow(&self) -> Vec<u16> {
        self.scores.slow().into_iter().map(|node| node.0).collect()
    }
}

#[test]
fn a_node_that_answers_late_is_slow_in_a_third_of_a_second_whoever_looks() {
    for own in 1..=3 {
        for slow in 1..=3 {
            let mut seen = Seen::by(own, 3).late(slow, 250);
            assert_eq!(seen.run(200), [0; 0], "{slow} seen by {own}");
            assert_eq!(seen.run(150), [slow], "seen by {own}");
        }
    }
}

#[test]
fn the_less_late_the_later_and_what_is_usual_never() {
    let found_after = |ms: u64| {
        let mut seen = Seen::by(1, 3).late(2, ms);
        seen.run(60_000);
        seen.changes.first().map(|change| change.0)
    };
    assert_eq!(found_after(250), Some(350));
    assert_eq!(found_after(100), Some(450));
    assert!(found_after(60).is_some_and(|ms| (1_000..6_000).contains(&ms)));
    assert_eq!(found_after(45), None);
    assert_eq!(found_after(10), None);
}

#[test]
fn one_bad_link_makes_nobody_slow() {
    let mut seen = Seen::by(3, 3);
    seen.links.insert((1, 2), 400);
    assert_eq!(seen.run(10_000), [0; 0]);
    let mut seen = Seen::by(1, 5);
    seen.links.extend([((1, 2), 400), ((1, 3), 400)]);
    assert_eq!(seen.run(10_000), [0; 0]);
    // Most links of a node are the node.
    seen.links.insert((1, 4), 400);
    assert_eq!(seen.run(1_000), [1]);
}

#[test]
fn what_is_slow_everywhere_is_nobodys_fault() {
    let mut seen = Seen::by(1, 3).late(1, 300).late(2, 300).late(3, 300);
    assert_eq!(seen.run(10_000), [0; 0]);
    // Two of three: the one link that is left between the others of any node is late too.
    let mut seen = Seen::by(1, 3).late(1, 300).late(2, 300);
    assert_eq!(seen.run(10_000), [0; 0]);
    let mut seen = Seen::by(1, 3);
    seen.disks.extend([(1, 900), (2, 700), (3, 800)]);
    assert_eq!(seen.run(10_000), [0; 0]);
}

#[test]
fn two_of_five_are_slow_and_of_three_candidates_the_two_slowest() {
    let mut seen = Seen::by(4, 5).late(1, 250).late(2, 250);
    assert_eq!(seen.run(1_000), [1, 2]);
    let mut seen = Seen::by(4, 5);
    seen.disks.extend([(1, 600), (2, 5_000), (3, 7_000), (4, 1), (5, 1)]);
    assert_eq!(seen.run(20_000), [2, 3]);
    assert_eq!((1..=3).map(|node| seen.scores.own_score(NodeId(node))).collect::<Vec<_>>(), [100; 3]);
}

#[test]
fn two_nodes_judge_nobody() {
    assert_eq!(Seen::by(1, 2).late(2, 500).run(10_000), [0; 0]);
}

#[test]
fn a_slow_disk_alone_is_enough_but_a_single_sync_is_not() {
    let mut seen = Seen::by(1, 3);
    seen.disks.extend([(1, 2), (2, 3), (3, 2)]);
    assert_eq!(seen.run(5_000), [0; 0]);
    seen.disks.insert(2, 1_000);
    assert_eq!(seen.run(1_000), [0; 0]);
    assert_eq!(seen.run(500), [2]);
}

#[test]
fn who_has_recovered_is_trusted_after_ten_seconds() {
    let mut seen = Seen::by(1, 3).late(3, 250);
    assert_eq!(seen.run(1_000), [3]);
    seen.late.clear();
    assert_eq!(seen.run(9_500), [3]);
    assert_eq!(seen.run(1_000), [0; 0]);
    assert_eq!(seen.changes.len(), 2);
}

#[test]
fn between_well_and_slow_nothing_changes() {
    let mut seen = Seen::by(1, 3).late(3, 250);
    seen.run(1_000);
    seen.late.insert(3, 35);
    assert_eq!(seen.run(60_000), [3]);
    let mut seen = Seen::by(1, 3).late(3, 35);
    assert_eq!(seen.run(60_000), [0; 0]);
}

#[test]
fn a_hiccup_is_forgiven_and_one_after_the_other_is_not() {
    let mut seen = Seen::by(1, 3);
    for _ in 0..20 {
        seen.late.insert(2, 200);
        assert_eq!(seen.run(150), [0; 0]);
        seen.late.clear();
        assert_eq!(seen.run(6_000), [0; 0]);
    }
    for _ in 0..3 {
        seen.late.insert(2, 200);
        seen.run(150);
        seen.late.clear();
        seen.run(500);
    }
    assert_eq!(seen.slow(), [2]);
}

#[test]
fn r15_slow_score_false_positive_after_recovery() {
    // Node 3 is dead: it sends nothing, and pulses to it stay without an answer.
    let mut seen = Seen::by(1, 3).late(3, 5_000);
    seen.silent.insert(3);
    assert_eq!(seen.run(5_000), [3]);
    // It starts again. What is known of its former life goes, other nodes' words of it too.
    seen.scores.handle_restart(NodeId(3));
    (seen.late, seen.silent) = Default::default();
    assert_eq!(seen.run(50), [0; 0]);
    assert_eq!((seen.run(20_000).len(), seen.scores.score(NodeId(3))), (0, SCORE_MIN));
}

#[test]
fn rows_that_no_longer_come_say_nothing() {
    let mut seen = Seen::by(1, 3).late(2, 250);
    assert_eq!(seen.run(1_000), [2]);
    // Without the rows of 2 and 3 there is no link left between others to compare with.
    seen.silent.extend([2, 3]);
    seen.late.clear();
    seen.run(5_000);
    assert_eq!(seen.scores.round_trip(NodeId(3)), Some(Duration::from_micros(300)));
    assert_eq!(seen.scores.log_write(NodeId(2)), None);
}

#[test]
fn a_node_believes_most_of_the_others_of_itself_and_others_believe_it() {
    let tell = |scores: &mut SlowScores, from: u16, of: u16, score: u8| {
        let row = SlowRow { scores: BTreeMap::from([(NodeId(of), score)]), ..SlowRow::default() };
        scores.handle_row(NodeId(from), row, Instant(5));
        scores.update(Instant(5))
    };
    let mut own = SlowScores::new(NodeId(1), (1..=3).map(NodeId), SlowLimits::default());
    assert_eq!(tell(&mut own, 2, 1, 90), [(NodeId(1), true)]);
    assert_eq!(tell(&mut own, 3, 1, 1), [(NodeId(1), false)], "half of the others are not most of them");
    assert_eq!((own.score(NodeId(1)), own.own_score(NodeId(1))), (1, 1));
    assert_eq!(tell(&mut own, 2, 3, 100), [], "what one thinks of another is its own affair");
    assert_eq!(tell(&mut own, 3, 3, 200), [(NodeId(3), true)], "what it thinks of itself is not");
    assert_eq!(own.score(NodeId(3)), SCORE_MAX);
    assert_eq!(own.scores_to_tell()[&NodeId(3)], 1);
}

proptest! {
    #[test]
    fn never_more_than_a_minority_and_always_the_same(
        count in 1_u16..8,
        own in 1_u16..8,
        steps in prop::collection::vec((1_u16..8, 1_u16..8, 0_u64..2_000, any::<bool>(), 0_u8..=255), 1..200),
    ) {
        let run = || {
            let mut seen = Seen::by(own.min(count), count);
            let mut history = Vec::new();
            for (node, other, ms, is_disk, told) in &steps {
                if *is_disk {
                    seen.disks.insert(*node, *ms);
                } else if node == other {
                    seen.late.insert(*node, *ms);
                } else {
                    seen.links.insert((*node.min(other), *node.max(other)), *ms);
                }
                seen.run(*ms / 4);
                let row = SlowRow { scores: BTreeMap::from([(NodeId(*other), *told)]), ..seen.row(*node) };
                seen.scores.handle_row(NodeId(*node), row, seen.now);
                seen.scores.update(seen.now);
                prop_assert!(seen.slow().len() * 2 < usize::from(count).max(1), "{:?} of {count}", seen.slow());
                let scores: Vec<u8> = (1..=count).map(|node| seen.scores.score(NodeId(node))).collect();
                prop_assert!(scores.iter().all(|score| (SCORE_MIN..=SCORE_MAX).contains(score)));
                history.push((seen.slow(), scores));
            }
            Ok(history)
        };
        prop_assert_eq!(run()?, run()?);
    }

    #[test]
    fn a_node_is_marked_high_up_and_cleared_far_below(lateness in prop::collection::vec((0_u64..400, 1_u64..40), 1..40)) {
        let mut seen = Seen::by(1, 3);
        for (ms, steps) in lateness {
            seen.late.insert(2, ms);
            for _ in 0..steps {
                let before = seen.slow() == [2];
                let after = seen.run(50) == [2];
                let score = seen.scores.score(NodeId(2));
                prop_assert!(after == before || (after && score >= SCORE_SLOW) || (before && score <= SCORE_RECOVERED));
            }
        }
    }
}
