//! What goes wrong and when, from a seed: each kind of fault once in a drawn order, and then whatever is drawn.

use hedgerow_types::random::Random;
use std::fmt;
use std::time::Duration;

/// One end of a path through the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// All clients.
    Clients,
    /// The node of this number.
    Node(usize),
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `kill -9` of one node, and a restart.
    Kill,
    /// `kill -9` of all nodes at once.
    KillAll,
    /// `kill -9` of one node while another one is cut off: nobody has a majority.
    KillWithoutMajority,
    /// SIGSTOP and SIGCONT.
    Pause,
    /// One node after the other is stopped with SIGSTOP, each before the one before goes on.
    PauseEach,
    /// Two nodes do not hear each other.
    CutPair,
    /// One node does not hear another one, which hears it.
    CutPairOneWay,
    /// One node and all others do not hear each other; clients reach everybody.
    Isolate,
    /// One node hears no other, and is heard.
    Deaf,
    /// One node is heard by no other, and hears them.
    Mute,
    /// Connections of one node with the others break, and so do new ones.
    Break,
    /// Clients and one node do not hear each other.
    CutClients,
    /// `kill -9`, all data removed, and a restart.
    Wipe,
    /// `kill -9`, one of the data directories removed, and a restart.
    WipeOne,
    /// Every node in turn is asked to stop and started again.
    RollingRestart,
}

impl Kind {
    pub(crate) const ALL: [Self; 15] = [
        Self::Kill,
        Self::KillAll,
        Self::KillWithoutMajority,
        Self::Pause,
        Self::PauseEach,
        Self::CutPair,
        Self::CutPairOneWay,
        Self::Isolate,
        Self::Deaf,
        Self::Mute,
        Self::Break,
        Self::CutClients,
        Self::Wipe,
        Self::WipeOne,
        Self::RollingRestart,
    ];

    /// Whether nothing much happens before others have elected new leaders.
    const fn needs_time(self) -> bool {
        match self {
            Self::Pause | Self::Isolate | Self::Deaf | Self::Mute | Self::Break | Self::CutPair => true,
            Self::Kill
            | Self::KillAll
            | Self::KillWithoutMajority
            | Self::PauseEach
            | Self::CutPairOneWay
            | Self::CutClients
            | Self::Wipe
            | Self::WipeOne
            | Self::RollingRestart => false,
        }
    }
}

/// A fault, then calm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// To whom it happens, and who else takes part where there is somebody else: two numbers from 1.
    pub(crate) node: usize,
    pub(crate) other: usize,
    /// Time between the fault's beginning and its end.
    pub(crate) lasts: Duration,
    /// Time after its end.
    pub(crate) calm: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, node, other, lasts, .. } = self;
        match kind {
            Kind::KillAll => write!(f, "kill of all nodes")?,
            Kind::KillWithoutMajority => write!(f, "kill of node {node} while node {other} is cut off")?,
            Kind::PauseEach => write!(f, "pause of each node in turn")?,
            Kind::CutPair => write!(f, "cut between nodes {node} and {other}")?,
            Kind::CutPairOneWay => write!(f, "cut from node {node} to node {other}")?,
            Kind::CutClients => write!(f, "cut between clients and node {node}")?,
            Kind::Kill => write!(f, "kill of node {node}")?,
            Kind::Pause => write!(f, "pause of node {node}")?,
            Kind::Isolate => write!(f, "cut between node {node} and all others")?,
            Kind::Deaf => write!(f, "cut from all others to node {node}")?,
            Kind::Mute => write!(f, "cut from node {node} to all others")?,
            Kind::Break => write!(f, "broken connections of node {node}")?,
            Kind::Wipe => write!(f, "loss of all data of node {node}")?,
            Kind::WipeOne => write!(f, "loss of one data directory of node {node}")?,
            Kind::RollingRestart => write!(f, "restart of each node in turn")?,
        }
        write!(f, ", {:.1} s", lasts.as_secs_f64())
    }
}

/// Draws steps for nodes 1 to `nodes`.
#[derive(Debug)]
pub(crate) struct Plan {
    random: Random,
    nodes: usize,
    /// What every plan begins with, the next one last.
    first: Vec<Kind>,
}

impl Plan {
    /// The plan of `seed` for at least two nodes.
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let mut random = Random::new(seed);
        let mut first = Kind::ALL.to_vec();
        for left in (1..first.len()).rev() {
            first.swap(left, random.below(left as u64 + 1) as usize);
        }
        Self { random, nodes, first }
    }

    /// Whether every kind of fault has been drawn.
    pub(crate) fn has_drawn_all(&self) -> bool {
        self.first.is_empty()
    }

    /// What happens next. The first of each kind is short, so that a run of all kinds is.
    pub(crate) fn draw(&mut self) -> Step {
        let is_first = !self.first.is_empty();
        let any = Kind::ALL[self.random.below(Kind::ALL.len() as u64) as usize];
        let kind = self.first.pop().unwrap_or(any);
        let node = 1 + self.random.below(self.nodes as u64) as usize;
        let step = 1 + self.random.below(self.nodes as u64 - 1) as usize;
        let other = 1 + (node - 1 + step) % self.nodes;
        // Evenly over the orders of magnitude.
        let short = 100 << self.random.below(if is_first { 4 } else { 6 });
        let short = short + self.random.below(short + 1);
        let long = 1_600 + self.random.below(1_600);
        let lasts = match (is_first, kind.needs_time()) {
            (true, true) => long,
            (true, false) => short,
            (false, _) => short + self.random.below(1_600),
        };
        let calm = if is_first { 300 } else { 500 + self.random.below(3_000) };
        Step { kind, node, other, lasts: Duration::from_millis(lasts), calm: Duration::from_millis(calm) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_plan_follows_from_its_seed_and_begins_with_every_kind() {
        let draw = |seed| {
            let mut plan = Plan::new(seed, 3);
            (0..500).map(move |_| plan.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let first: BTreeSet<Kind> = draw(3).iter().take(Kind::ALL.len()).map(|step| step.kind).collect();
        assert_eq!(first.len(), Kind::ALL.len());
        for step in draw(4) {
            assert!(
                (1..=3).contains(&step.node) && (1..=3).contains(&step.other) && step.node != step.other,
                "{step:?}"
            );
            assert!((100..=8_000).contains(&step.lasts.as_millis()), "{step:?}");
        }
    }
}
