//! What time it is, by the word of a majority: one node's wall clock moves nothing that all nodes go by.
//!
//! Every node tells the others what its wall clock shows, and bounds by the round trip how old that is:
//!
//! ```text
//!                 wall clock      within 5 s of each other, and a majority: nodes 2 and 3.
//! node 1      2027-11-22 16:00    Their median counts. Node 1 goes by it as well, and every
//! node 2      2026-11-22 16:00    node says that the clock of node 1 is off.
//! node 3      2026-11-22 16:00
//! ```
//!
//! Between two judgements the time goes on with the steady clock. It follows a majority smoothly while that is within the
//! bound, and never goes back then. A majority that jumps further is followed only after it has stayed there for minutes:
//! the steady clock says that it cannot be. As long as no majority agrees, the time goes on as it was; a node that has
//! just started, or was not called for long, has none then; of the latter it is still known what it had come to before.
//!
//! Clocks are compared as the wall time at this node's steady zero, so that they can be kept without being moved on.

use core::time::Duration;
use hedgerow_types::{Instant, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Default of how far clocks may differ.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(5);

/// A clock that was not heard of for so long says nothing any more.
const ROW_AGE_MAX: Duration = Duration::from_secs(3);
/// A node that was not called for so long does not know whether its steady clock is right, and forgets the time.
const AWAY_MAX: Duration = Duration::from_secs(5);
/// Clocks of which no majority agrees for so long may never do so.
const AWAITED_MAX: Duration = Duration::from_secs(10);
/// A majority that is out of bounds is followed after it has been there for so long.
const JUMP_AFTER: Duration = Duration::from_secs(300);
/// The time is corrected by one part in so many of what has passed: clocks that are 5 s apart meet in 20 s.
const SLEW_PARTS: i64 = 4;

/// What is known of another node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRow {
    /// What it showed in the middle of the round trip that ended now.
    pub unix_micros: u64,
    /// Half of that round trip: it may have shown so much more or less.
    pub error: Duration,
}

/// On whose word the time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockWord {
    /// A majority of the nodes agrees on it now.
    Agreed,
    /// None does now; one did, and the steady clock has gone on since.
    Held,
    /// There has been none since this node started or was away.
    Unknown,
}

/// The clock of one node: what it makes of its own wall clock and the others'.
#[derive(Clone, Debug)]
pub struct Clock {
    node: NodeId,
    node_count: usize,
    skew_max: Duration,
    /// Wall time at steady zero, microseconds, and when it was heard of. This node's own is always there.
    rows: BTreeMap<NodeId, (i64, Instant)>,
    /// The time at steady zero.
    time: Option<i64>,
    /// What it had come to when it was forgotten, microseconds since 1970; 0 = it never was.
    forgotten: u64,
    word: ClockWord,
    judged: Instant,
    /// Since when the time is not known.
    unknown: Option<Instant>,
    /// Since when a majority has been out of bounds.
    jumped: Option<Instant>,
    /// Nodes whose clocks are off.
    off: BTreeSet<NodeId>,
}

impl Clock {
    /// The clock of `node`, one of `node_count`, whose clocks may differ by `skew_max`. Nothing is known yet.
    pub const fn new(node: NodeId, node_count: usize, skew_max: Duration) -> Self {
        Self {
            node,
            node_count,
            skew_max,
            rows: BTreeMap::new(),
            time: None,
            forgotten: 0,
            word: ClockWord::Unknown,
            judged: Instant::ZERO,
            unknown: None,
            jumped: None,
            off: BTreeSet::new(),
        }
    }

    /// Another node told what its clock shows. A round trip that took too long tells nothing.
    pub fn handle_row(&mut self, node: NodeId, row: ClockRow, now: Instant) {
        if node != self.node && row.error <= self.skew_max / 2 {
            self.rows.insert(node, (at_zero(row.unix_micros, now), now));
        }
    }

    /// Judges anew; to be called every second or more often, with what this node's wall clock shows. Returns the nodes
    /// whose clocks began or ceased to be off, this one included, and by how many microseconds they are ahead.
    pub fn judge(&mut self, unix_micros: u64, now: Instant) -> Vec<(NodeId, bool, i64)> {
        let elapsed = now.since(self.judged);
        if elapsed > AWAY_MAX || now < self.judged {
            self.forgotten = self.at_least(now);
            (self.time, self.word, self.jumped, self.unknown) = (None, ClockWord::Unknown, None, None);
        }
        self.judged = now;
        self.unknown = self.time.is_none().then(|| self.unknown.unwrap_or(now));
        self.rows.insert(self.node, (at_zero(unix_micros, now), now));
        self.rows.retain(|_, (_, heard)| now.since(*heard) <= ROW_AGE_MAX);
        match self.majority() {
            Some(agreed) => self.follow(agreed, elapsed, now),
            None => {
                self.jumped = None;
                self.word = if self.time.is_some() { ClockWord::Held } else { ClockWord::Unknown };
            }
        }
        self.changes()
    }

    /// The time, microseconds since 1970. `None` = not known.
    pub fn unix_micros(&self, now: Instant) -> Option<u64> {
        // A steady clock that leaps is not believed before it is judged.
        let zero = self.time.filter(|_| now <= self.judged + AWAY_MAX)?;
        Some(from_zero(zero, now))
    }

    /// The same where it is known; otherwise no less than it ever was said to be, and no later than it is. 0 = nothing is known.
    /// What has expired by what was said before has expired by this.
    pub fn at_least(&self, now: Instant) -> u64 {
        match self.time {
            // Until then it was believed.
            Some(zero) => from_zero(zero, now.clamp(self.judged, self.judged + AWAY_MAX)),
            None => self.forgotten,
        }
    }

    /// Whether the time is not known, and will soon be if the clocks of a majority agree: what others take for expired by now
    /// looks alive here.
    pub fn is_awaited(&self, now: Instant) -> bool {
        let is_over = |unknown| now.since(unknown) >= AWAITED_MAX;
        self.unix_micros(now).is_none() && !(self.time.is_none() && self.unknown.is_some_and(is_over))
    }

    /// What this node's own wall clock shows, whatever the others say.
    pub fn own_unix_micros(&self, now: Instant) -> u64 {
        self.rows.get(&self.node).map_or(0, |(zero, _)| from_zero(*zero, now))
    }

    /// On whose word the time is known.
    pub const fn word(&self) -> ClockWord {
        self.word
    }

    /// By how many microseconds the clock of `node` is ahead of the time; `None` = one of the two is not known.
    pub fn ahead_micros(&self, node: NodeId) -> Option<i64> {
        let (zero, _) = self.rows.get(&node)?;
        Some(zero.saturating_sub(self.time?))
    }

    /// Whether the clock of `node` is off by more than is allowed.
    pub fn is_off(&self, node: NodeId) -> bool {
        self.off.contains(&node)
    }

    /// Whether a majority's clocks have jumped and are not followed yet.
    pub const fn has_jumped(&self) -> bool {
        self.jumped.is_some()
    }

    /// The median of the largest group of clocks that are within the bound of each other, if that is a majority of all nodes.
    /// Two such groups share a node, so that what two nodes take for the time differs by two bounds at most.
    fn majority(&self) -> Option<i64> {
        let mut zeros: Vec<i64> = self.rows.values().map(|(zero, _)| *zero).collect();
        zeros.sort_unstable();
        let bound = micros(self.skew_max);
        let group = |first: usize| {
            let count = zeros[first..].partition_point(|zero| zero.saturating_sub(zeros[first]) <= bound);
            &zeros[first..first + count]
        };
        // The first of those that are as large: every node decides alike.
        let largest = (0..zeros.len()).map(group).rev().max_by_key(|group| group.len())?;
        (2 * largest.len() > self.node_count).then(|| largest[(largest.len() - 1) / 2])
    }

    fn follow(&mut self, agreed: i64, elapsed: Duration, now: Instant) {
        self.word = ClockWord::Agreed;
        let Some(time) = self.time else {
            self.time = Some(agreed);
            return;
        };
        let behind = agreed.saturating_sub(time);
        if behind.unsigned_abs() <= micros(self.skew_max).unsigned_abs() {
            self.jumped = None;
            let most = micros(elapsed) / SLEW_PARTS;
            self.time = Some(time + behind.clamp(-most, most));
        } else if now.since(*self.jumped.get_or_insert(now)) >= JUMP_AFTER {
            self.jumped = None;
            self.time = Some(agreed);
        } else {
            self.word = ClockWord::Held;
        }
    }

    fn changes(&mut self) -> Vec<(NodeId, bool, i64)> {
        self.off.retain(|node| self.rows.contains_key(node));
        let mut changes = Vec::new();
        for node in self.rows.keys() {
            let Some(ahead) = self.ahead_micros(*node) else { continue };
            let (was_off, bound) = (self.off.contains(node), micros(self.skew_max).unsigned_abs());
            // Who was off is so until it is well within the bound, so that nobody comes and goes at the edge.
            let is_off = ahead.unsigned_abs() > if was_off { bound - bound / 4 } else { bound };
            if is_off != was_off {
                changes.push((*node, is_off, ahead));
            }
        }
        for (node, is_off, _) in &changes {
            if *is_off {
                self.off.insert(*node)
            } else {
                self.off.remove(node)
            };
        }
        changes
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn at_zero(unix_micros: u64, now: Instant) -> i64 {
    let unix = i64::try_from(unix_micros).unwrap_or(i64::MAX);
    unix.saturating_sub_unsigned(now.0 / 1_000)
}

/// Never 0, which says that nothing is known.
fn from_zero(zero: i64, now: Instant) -> u64 {
    u64::try_from(zero.saturating_add_unsigned(now.0 / 1_000)).unwrap_or(0).max(1)
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
