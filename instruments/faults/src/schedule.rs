//! From a plan to what happens when. The same seed gives the same events; a longer run begins like a shorter one.

use crate::draw::{Draw, fraction};
use crate::plan::{Fault, Kind, Nodes, Plan};
use crate::units;
use hedgerow_env::fault::{DELAY_MAX, Shape};
use hedgerow_types::random::Random;
use std::fmt;
use std::time::Duration;

/// No occurrence follows the one before it sooner, whatever is drawn.
const GAP_MIN: Duration = Duration::from_millis(1);
/// How many events a schedule has at most, on average.
const EVENTS_MAX: f64 = 500_000.0;
/// The longest run.
const RUN_MAX: Duration = Duration::from_secs(7 * 86_400);
/// The longest time between two occurrences or that one lasts.
const SPAN_MAX: Duration = Duration::from_secs(86_400);

/// One occurrence of a fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it begins, from the beginning of the run.
    pub at: Duration,
    /// How long it goes on.
    pub lasts: Duration,
    /// Which fault of the plan it is, from 0.
    pub fault: usize,
    /// What it happens to.
    pub place: Where,
    /// What is switched on at its beginning and off at its end.
    pub switch: Switch,
}

/// What an occurrence happens to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    /// A node.
    Node(u16),
    /// The link between two places, by their names.
    Link(String, String),
}

/// What is switched, with everything drawn that was to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Switch {
    /// The node stops serving.
    Stall,
    /// What the node sends leaves so much later.
    Slow(Duration),
    /// The link's two directions: from the first place to the second, and back.
    Link(Shape, Shape),
    /// The node's thread keeps to so many percent of one core.
    Share(u8),
    /// A process competes with the node.
    Compete(Competitor),
    /// The node is killed, and started again at the end.
    Kill,
}

/// A process that competes with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Competitor {
    /// It writes beside the node's data and calls fsync.
    Disk {
        /// Bytes between two calls.
        write_size: u64,
        /// Time between two writes.
        pause: Duration,
    },
    /// It computes.
    Cpu {
        /// Its threads.
        threads: u16,
        /// How much of its time each computes, in percent.
        percent: u8,
    },
}

impl Event {
    /// When it ends.
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }

    /// The node that it happens to, if it is one.
    pub fn node(&self) -> Option<u16> {
        match self.place {
            Where::Node(node) => Some(node),
            Where::Link(..) => None,
        }
    }

    /// What happens where, without the details: `stall node 2`.
    pub fn label(&self) -> String {
        let kind = match self.switch {
            Switch::Stall => "stall",
            Switch::Slow(_) => "slow",
            Switch::Link(..) => "link",
            Switch::Share(_) => "share",
            Switch::Compete(Competitor::Disk { .. }) => "disk",
            Switch::Compete(Competitor::Cpu { .. }) => "cpu",
            Switch::Kill => "kill",
        };
        format!("{kind} {}", self.place)
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Link(a, b) => write!(f, "{a} - {b}"),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = |shape: &Shape| match shape.bytes_per_second {
            Some(rate) => format!("{} later at {}", units::show(shape.delay()), units::show_bandwidth(rate)),
            None => format!("{} later", units::show(shape.delay())),
        };
        match self {
            Self::Stall => write!(f, "serves nothing"),
            Self::Slow(delay) => write!(f, "sends everything {} later", units::show(*delay)),
            Self::Link(there, back) if there == back => write!(f, "{} each way", shape(there)),
            Self::Link(there, _) => write!(f, "{} one way", shape(there)),
            Self::Share(percent) => write!(f, "computes {percent} % of the time at most"),
            Self::Compete(Competitor::Disk { write_size, pause }) => {
                write!(f, "another process writes {write_size} bytes with fsync, {} between", units::show(*pause))
            }
            Self::Compete(Competitor::Cpu { threads, percent }) => {
                write!(f, "another process computes with {threads} threads at {percent} %")
            }
            Self::Kill => write!(f, "killed, then started again"),
        }
    }
}

impl Plan {
    /// The longest run on `nodes` nodes for which a schedule is made: a week, or less if the faults come so often that their
    /// list would become too long.
    pub fn duration_max(&self, nodes: u16) -> Duration {
        let rate = |fault: &Fault| {
            let count = match (&fault.kind, &fault.nodes) {
                (Kind::Link { .. }, _) | (_, Nodes::Any) => 1,
                (_, Nodes::Every) => usize::from(nodes),
                (_, Nodes::These(these)) => these.len(),
            };
            fault.every.map_or(0.0, |every| count as f64 / every.middle().max(GAP_MIN).as_secs_f64())
        };
        let per_second: f64 = self.faults.iter().map(rate).sum();
        if per_second * RUN_MAX.as_secs_f64() <= EVENTS_MAX {
            return RUN_MAX;
        }
        Duration::from_secs_f64(EVENTS_MAX / per_second)
    }

    /// Everything that happens in a run of `duration` to a cluster of nodes 1 to `nodes`, in the order of the beginnings.
    /// Nodes that the cluster does not have are left out; [`Plan::check_nodes`] tells of them.
    pub fn schedule(&self, nodes: u16, duration: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, fault) in self.faults.iter().enumerate() {
            let stream = |lane: u16| Random::new(self.seed ^ ((index as u64 + 1) << 32) ^ u64::from(lane)).fork();
            let mut add = |lane: u16, place: &dyn Fn(&mut Random) -> Where| {
                let mut random = stream(lane);
                let spans = spans(fault, &mut random, duration);
                events.extend(spans.into_iter().map(|(at, lasts)| {
                    let place = place(&mut random);
                    Event { at, lasts, fault: index, place, switch: switch(&fault.kind, &mut random) }
                }));
            };
            match (&fault.kind, &fault.nodes) {
                (Kind::Link { between: (a, b), .. }, _) => add(0, &|_| Where::Link(a.clone(), b.clone())),
                (_, Nodes::Any) if nodes > 0 => {
                    add(0, &|random| Where::Node(1 + random.below(u64::from(nodes)) as u16));
                }
                (_, Nodes::Any) => {}
                (_, Nodes::Every) => (1..=nodes).for_each(|node| add(node, &|_| Where::Node(node))),
                (_, Nodes::These(these)) => {
                    let there = these.iter().filter(|node| (1..=nodes).contains(*node));
                    there.for_each(|node| add(*node, &|_| Where::Node(*node)));
                }
            }
        }
        events.sort_by(|a, b| (a.at, a.fault, &a.place).cmp(&(b.at, b.fault, &b.place)));
        events
    }
}

/// Beginnings and lengths of a fault's occurrences at one place. They do not overlap.
fn spans(fault: &Fault, random: &mut Random, duration: Duration) -> Vec<(Duration, Duration)> {
    // Draws of their own for each purpose: what follows a cut at the end must not depend on where the end is.
    let (mut gaps, mut lengths) = (random.fork(), random.fork());
    let limit = fault.end.map_or(duration, |end| end.min(duration));
    let longest = if matches!(fault.kind, Kind::Stall) { DELAY_MAX } else { SPAN_MAX };
    let mut length = |at: Duration| {
        let left = limit.saturating_sub(at);
        fault.lasts.map_or(left, |lasts| lasts.draw(&mut lengths, longest).min(left))
    };
    let Some(every) = &fault.every else {
        return if fault.begin < limit { vec![(fault.begin, length(fault.begin))] } else { Vec::new() };
    };
    let mut gap = |every: &Draw| every.draw(&mut gaps, SPAN_MAX).max(GAP_MIN);
    let mut spans = Vec::new();
    // Somewhere within the first gap, so that nodes with a constant gap do not beat as one.
    let first = gap(every);
    let mut at = fault.begin + first.mul_f64(fraction(random));
    while at < limit {
        let lasts = length(at);
        spans.push((at, lasts));
        at += gap(every).max(lasts);
    }
    spans
}

fn switch(kind: &Kind, random: &mut Random) -> Switch {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    match kind {
        Kind::Stall => Switch::Stall,
        Kind::Slow { delay } => Switch::Slow(delay.draw(random, DELAY_MAX)),
        Kind::Link { delay, bandwidth, is_one_way, .. } => {
            let shape = Shape { delay_us: micros(delay.draw(random, DELAY_MAX)), bytes_per_second: *bandwidth };
            Switch::Link(shape, if *is_one_way { Shape::default() } else { shape })
        }
        Kind::Disk { write_size, pause } => {
            let pause = pause.draw(random, DELAY_MAX);
            Switch::Compete(Competitor::Disk { write_size: *write_size, pause })
        }
        Kind::Cpu { threads, percent } => Switch::Compete(Competitor::Cpu { threads: *threads, percent: *percent }),
        Kind::Share { percent } => Switch::Share(*percent),
        Kind::Kill => Switch::Kill,
    }
}
