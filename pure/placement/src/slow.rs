//! Which nodes are slow: a score from 1 to 100 for each, from what all nodes measure of each other and of their own disks.
//!
//! Every node sends its row (round trips to the others, its own log writes) to all others, so each holds the matrix:
//!
//! ```text
//!            to 1    to 2    to 3         node 1 is slow: both links to it are, and the link that
//! from 1       -     250     251          remains between the others is not.
//! from 2     250       -     0.2          Only the link 1-2 slow: node 3 reaches both well, and
//! from 3     250     0.2       -          nobody is slow. All links slow: nobody is.
//! ```
//!
//! A node's round trip is the lower median over its links, so that more than half of them must be slow. Its ratio is that
//! over a limit: some milliseconds, or a multiple of what the other nodes have among themselves, whichever is more. The
//! score rises while the ratio is above 1, the faster the higher it is, and falls while it is below a half; a node becomes
//! slow high up and ceases to be far below, so that it takes seconds of health to be trusted again. Fewer than half of the
//! nodes are slow at any time: the others have to take over.
//!
//! Time is an argument; rows carry no times of other clocks.

use core::time::Duration;
use hedgerow_types::{Instant, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The lowest score.
pub const SCORE_MIN: u8 = 1;
/// The highest score.
pub const SCORE_MAX: u8 = 100;
/// From this score on a node is slow.
pub const SCORE_SLOW: u8 = 80;
/// Down to this score a node that was slow still is.
pub const SCORE_RECOVERED: u8 = 20;

/// Scores are kept in thousandths, so that short updates add up.
const UNIT: u64 = 1_000;
/// Rows come more often than this.
const ROW_INTERVAL_MAX: Duration = Duration::from_millis(150);
/// A row that is older says nothing any more.
const ROW_AGE_MAX: Duration = Duration::from_millis(1_000);
/// Time that one update counts for at most: whoever computed nothing for longer knows nothing of it.
const UPDATE_MAX: Duration = Duration::from_millis(150);
/// Points per second while the round trip is above its limit by [`RATIO_FULL_PERCENT`] or more: a node that answers a
/// quarter of a second late is slow after 0.3 s.
const RISE_NETWORK: u64 = 300;
/// The same for the disk. Slower: a single sync of a second is nothing unusual, and writes wait for a majority only.
const RISE_DISK: u64 = 60;
/// Points per second while all is well: from 100 to the score of a node that has recovered it takes 10 s.
const FALL: u64 = 8;
/// The ratio at which a score rises at full speed.
const RATIO_FULL_PERCENT: u64 = 250;
/// The ratio below which a score falls.
const RATIO_WELL_PERCENT: u64 = 50;

/// What counts as slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowLimits {
    /// A shorter round trip is never slow, whatever the others have. Default 50 ms: far above what a busy machine makes of
    /// it. Nodes that are so far apart count as slow.
    pub round_trip: Duration,
    /// A faster durable log write is never slow. Default 100 ms.
    pub log_write: Duration,
    /// So many times what the other nodes have is slow. Default 5.
    pub factor: u32,
}

impl Default for SlowLimits {
    fn default() -> Self {
        Self { round_trip: Duration::from_millis(50), log_write: Duration::from_millis(100), factor: 5 }
    }
}

/// What one node has measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowRow {
    /// Round trips to other nodes; what waits for an answer counts with its age. Not in it: who has never answered.
    pub round_trips: BTreeMap<NodeId, Duration>,
    /// Its own durable log writes; `None` if there were none lately.
    pub log_write: Option<Duration>,
    /// How late it came, compared with the node's other rows lately.
    pub late: Duration,
    /// Its scores: of other nodes what it finds itself, of itself what it acts on.
    pub scores: BTreeMap<NodeId, u8>,
}

/// The scores as one node has them.
#[derive(Clone, Debug)]
pub struct SlowScores {
    own: NodeId,
    limits: SlowLimits,
    rows: BTreeMap<NodeId, (SlowRow, Instant)>,
    nodes: BTreeMap<NodeId, State>,
    updated: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// In thousandths of a point.
    score: u64,
    ratio_percent: u64,
    is_slow: bool,
}

const FRESH: State = State { score: SCORE_MIN as u64 * UNIT, ratio_percent: 0, is_slow: false };

impl SlowScores {
    /// Of the cluster's `nodes` as `own`, one of them, sees it: nobody is slow.
    pub fn new(own: NodeId, nodes: impl IntoIterator<Item = NodeId>, limits: SlowLimits) -> Self {
        let nodes = nodes.into_iter().map(|node| (node, FRESH)).collect();
        Self { own, limits, rows: BTreeMap::new(), nodes, updated: None }
    }

    /// A node has measured. Its older row is forgotten.
    pub fn handle_row(&mut self, from: NodeId, row: SlowRow, now: Instant) {
        if self.nodes.contains_key(&from) {
            self.rows.insert(from, (row, now));
        }
    }

    /// A node has just started: what was known of it is of its former life (R15).
    pub fn handle_restart(&mut self, node: NodeId) {
        self.rows.remove(&node);
        for (row, _) in self.rows.values_mut() {
            row.round_trips.remove(&node);
            row.scores.remove(&node);
        }
        if let Some(state) = self.nodes.get_mut(&node) {
            *state = FRESH;
        }
    }

    /// Computes the scores anew. Returns the nodes that became slow (`true`) or ceased to be.
    pub fn update(&mut self, now: Instant) -> Vec<(NodeId, bool)> {
        let elapsed = self.updated.map_or(Duration::ZERO, |then| now.since(then)).min(UPDATE_MAX);
        self.updated = Some(now);
        self.rows.retain(|_, (_, at)| now.since(*at) <= ROW_AGE_MAX);
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in &nodes {
            let (network, disk) = (self.network_percent(*node), self.disk_percent(*node));
            if let Some(state) = self.nodes.get_mut(node) {
                state.take(network, disk, elapsed);
            }
        }
        self.mark()
    }

    /// Whether `node` is slow, so that it should not lead.
    pub fn is_slow(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|state| state.is_slow)
    }

    /// The nodes that are slow: fewer than half.
    pub fn slow(&self) -> BTreeSet<NodeId> {
        self.nodes.iter().filter(|(_, state)| state.is_slow).map(|(node, _)| *node).collect()
    }

    /// What this node alone finds of `node`, 1 to 100.
    pub fn own_score(&self, node: NodeId) -> u8 {
        self.nodes.get(&node).map_or(SCORE_MIN, |state| u8::try_from(state.score / UNIT).unwrap_or(SCORE_MAX))
    }

    /// The score that is acted on, 1 to 100. A node that stood still did not see itself do so; and nobody gives leaders back
    /// to a node that still thinks badly of itself.
    pub fn score(&self, node: NodeId) -> u8 {
        let heard = if node == self.own {
            let others = self.rows.iter().filter(|(from, _)| **from != node);
            lower_median(others.filter_map(|(_, (row, _))| row.scores.get(&node).copied()).collect())
        } else {
            self.rows.get(&node).and_then(|(row, _)| row.scores.get(&node).copied())
        };
        self.own_score(node).max(heard.unwrap_or(SCORE_MIN).min(SCORE_MAX))
    }

    /// The scores as this node's own row carries them.
    pub fn scores_to_tell(&self) -> BTreeMap<NodeId, u8> {
        let told = |node: &NodeId| if *node == self.own { self.score(*node) } else { self.own_score(*node) };
        self.nodes.keys().map(|node| (*node, told(node))).collect()
    }

    /// The round trip of `node`: the lower median over its links; `None` if no link is measured.
    pub fn round_trip(&self, node: NodeId) -> Option<Duration> {
        let others = self.nodes.keys().filter(|other| **other != node);
        lower_median(others.filter_map(|other| self.link(node, *other)).collect())
    }

    /// The last that `node` told of its durable log writes.
    pub fn log_write(&self, node: NodeId) -> Option<Duration> {
        self.rows.get(&node).and_then(|(row, _)| row.log_write)
    }

    /// The worse of what both ends measure.
    fn link(&self, one: NodeId, other: NodeId) -> Option<Duration> {
        let measured = |from: NodeId, to: NodeId| self.rows.get(&from).and_then(|(row, _)| row.round_trips.get(&to));
        measured(one, other).max(measured(other, one)).copied()
    }

    /// How late the words of `node` are now.
    fn late(&self, node: NodeId) -> Duration {
        let now = self.updated.unwrap_or(Instant::ZERO);
        let silent = |at: Instant| now.since(at).saturating_sub(ROW_INTERVAL_MAX);
        self.rows.get(&node).map_or(Duration::ZERO, |(row, at)| row.late.max(silent(*at)))
    }

    /// The round trip of `node` in percent of its limit.
    fn network_percent(&self, node: NodeId) -> u64 {
        let Some(own) = self.round_trip(node) else { return 0 };
        // All pairs of nodes are looked at only where it matters.
        if own * 2 < self.limits.round_trip {
            return percent(own, self.limits.round_trip);
        }
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|other| *other != node).collect();
        let mut links = Vec::new();
        for (place, one) in others.iter().enumerate() {
            for other in &others[place + 1..] {
                // What this node measures is new, what others tell may be old: while they fall silent or their words come
                // late, their links cannot be better than that.
                let late = self.late(*one).max(self.late(*other));
                links.extend(self.link(*one, *other).map(|link| link.max(late)));
            }
        }
        // Without the others there is nothing to tell this node's fault from theirs by.
        let Some(usual) = lower_median(links) else { return 0 };
        percent(own, self.limits.round_trip.max(usual * self.limits.factor))
    }

    /// The log writes of `node` in percent of their limit.
    fn disk_percent(&self, node: NodeId) -> u64 {
        let Some(own) = self.log_write(node) else { return 0 };
        let others = self.nodes.keys().filter(|other| **other != node);
        let usual = lower_median(others.filter_map(|other| self.log_write(*other)).collect()).unwrap_or_default();
        percent(own, self.limits.log_write.max(usual * self.limits.factor))
    }

    /// Who is slow: those whose score says so, those with the highest first, as many as are a minority.
    fn mark(&mut self) -> Vec<(NodeId, bool)> {
        let minority = self.nodes.len().saturating_sub(1) / 2;
        let mut wanted: Vec<(u8, bool, u64, NodeId)> = Vec::new();
        for (node, state) in &self.nodes {
            let (score, least) = (self.score(*node), if state.is_slow { SCORE_RECOVERED + 1 } else { SCORE_SLOW });
            if score >= least {
                wanted.push((score, state.is_slow, state.ratio_percent, *node));
            }
        }
        wanted.sort_unstable_by(|one, other| other.cmp(one));
        let slow: BTreeSet<NodeId> = wanted.iter().take(minority).map(|(.., node)| *node).collect();
        let mut changes = Vec::new();
        for (node, state) in &mut self.nodes {
            let is_slow = slow.contains(node);
            if core::mem::replace(&mut state.is_slow, is_slow) != is_slow {
                changes.push((*node, is_slow));
            }
        }
        changes
    }
}

impl State {
    fn take(&mut self, network_percent: u64, disk_percent: u64, elapsed: Duration) {
        self.ratio_percent = network_percent.max(disk_percent);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let rise = |ratio: u64, speed: u64| {
            let part = ratio.saturating_sub(100).min(RATIO_FULL_PERCENT - 100);
            speed * millis * part / (RATIO_FULL_PERCENT - 100)
        };
        // Points per second are thousandths per millisecond.
        let risen = rise(network_percent, RISE_NETWORK).max(rise(disk_percent, RISE_DISK));
        let fallen = if self.ratio_percent < RATIO_WELL_PERCENT { FALL * millis } else { 0 };
        let (least, most) = (u64::from(SCORE_MIN) * UNIT, u64::from(SCORE_MAX) * UNIT);
        self.score = (self.score + risen).saturating_sub(fallen).clamp(least, most);
    }
}

fn percent(part: Duration, whole: Duration) -> u64 {
    u64::try_from(part.as_micros() * 100 / whole.as_micros().max(1)).unwrap_or(u64::MAX)
}

/// The middle one, or the lower of the two.
fn lower_median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
#[path = "slow_tests.rs"]
mod tests;
