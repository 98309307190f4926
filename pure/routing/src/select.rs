//! Which replica a read goes to.
//!
//! ```text
//! mode            ──> ranks      the preferred replicas, then the next ones, down to the leader
//! backoffs        ──> state      ready; held back (not known yet, or on probation); set back
//! statistics      ──> cost       what a request is expected to take
//!
//! untried before tried, then by state, then by rank; within these two at random, and of those the cheaper more likely
//! ```
//!
//! - *Two at random* (Mitzenmacher) and *more likely* instead of *always*: clients that heard the same do not all move
//!   to the same replica (pitfall R13). A replica that costs a tenth gets a thousand times as many of the choices.
//! - *Held back.* A replica that too few replies are known of would look best and be flooded (Elasticsearch #147579),
//!   so each client has few requests there at once, as long as another replica is known (pitfall R12).
//! - *Overflow.* Where a mode prefers some replicas (prefer-leader and the closest modes), part of the requests leaves
//!   them when they cost clearly more than the best of the others, a larger part the clearer (pitfall R7).
//! - *Never nobody.* With all replicas set back, the one that is so for the shortest time is asked.
//!
//! TiDB's closest-adaptive sends small requests to the leader, because its replicas ask the leader in any case. Here
//! only linearizable reads do, and many of them share one question, so that small requests may stay near too; what
//! size decides is how readily they leave.

use crate::backoff::{Backoff, Scope, scope};
use crate::labels::Labels;
use crate::map::{Address, PartitionRoute};
use crate::reaction::Failure;
use crate::replica_read::ReplicaRead;
use crate::statistics::{Expected, ReplicaLoad, Statistics};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant};

/// Most requests of one client at a replica that it does not know yet.
pub const UNKNOWN_IN_FLIGHT_MAX: u32 = 2;
/// Replies, expected size, from which a long way costs more than some waiting.
pub const LARGE_REPLY_SIZE: usize = 16 << 10;
/// Most nodes remembered; beyond it those without requests are forgotten.
const NODES_MAX: usize = 1_024;
/// Most replicas remembered as having failed; beyond it those whose time is over are forgotten, then all.
const SETBACKS_MAX: usize = 4_096;
/// What an idle node is taken to cost while nothing is known of any, ns.
const IDLE_COST_UNKNOWN: f64 = 1e6;

/// A read that looks for a replica.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The partition's group.
    pub group: GroupId,
    /// Its replicas.
    pub route: &'a PartitionRoute,
    /// Who leads, as far as known; see [`crate::TableMap::leader`].
    pub leader: Option<Address>,
    /// Whom to prefer.
    pub mode: ReplicaRead,
    /// Who was asked already and is not to be asked again while there are others.
    pub tried: &'a [Address],
    /// Who is never asked, whoever else there is.
    pub excluded: &'a [Address],
    /// Bytes that the reply is expected to have; 0 = not known.
    pub size_hint: usize,
}

/// When a mode's preferred replicas are left: if they cost more than the best of the others times `factor` plus
/// `margin`.
struct Patience {
    factor: f64,
    margin: Duration,
}

/// Ranks replicas for one client, over all its tables. Deterministic: times and random numbers are arguments.
///
/// Every request that it chose for is reported: [`Selector::note_sent`], then exactly one of the other notes.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Labels,
    nodes: BTreeMap<Address, Node>,
    replicas: BTreeMap<(GroupId, Address), Backoff>,
    /// Room for the candidates of one choice, kept between choices.
    candidates: Vec<Candidate>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// How many labels it shares with the client.
    nearness: usize,
    backoff: Backoff,
    statistics: Statistics,
}

/// A replica that may be chosen, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Where it is.
    pub address: Address,
    /// Whether it leads, as far as known.
    pub is_leader: bool,
    /// Whether it may be asked as usual.
    pub state: State,
    /// 0 = preferred by the mode; the greater, the less.
    pub rank: usize,
    /// This client's unanswered requests at its node.
    pub in_flight: u32,
    is_tried: bool,
    is_known: bool,
    cost: f64,
    idle_cost: f64,
    back_at: Instant,
}

/// What speaks against asking a replica; the less, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nothing.
    Ready,
    /// It has failed lately or is not known yet, and has as many requests as it may have then.
    HeldBack,
    /// It has just failed.
    BackedOff,
}

impl Candidate {
    /// How long a request there is expected to take; of a replica that is not known yet, as long as at the best of the others.
    pub fn cost(&self) -> Duration {
        Duration::from_nanos(self.cost as u64)
    }
}

impl Selector {
    /// For a client that stands at `labels`.
    pub fn new(labels: Labels) -> Self {
        Self { labels, ..Self::default() }
    }

    /// Where the node at `address` stands.
    pub fn set_node_labels(&mut self, address: Address, labels: &Labels) {
        let nearness = self.labels.equal_count(labels);
        self.node(address).nearness = nearness;
    }

    /// The replica to ask; `None` if the partition has none. One that was tried is chosen only if all were.
    pub fn choose(&mut self, choice: &Choice<'_>, now: Instant, random: &mut Random) -> Option<Address> {
        let mut candidates = core::mem::take(&mut self.candidates);
        self.gather(choice, now, &mut candidates);
        let chosen = pick(&candidates, patience(choice), random);
        candidates.clear();
        self.candidates = candidates;
        chosen
    }

    /// All between which [`Selector::choose`] would choose, for a caller who chooses: none that is excluded, and none that was tried while
    /// another is left.
    pub fn candidates(&self, choice: &Choice<'_>, now: Instant) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        self.gather(choice, now, &mut candidates);
        if candidates.iter().any(|candidate| !candidate.is_tried) {
            candidates.retain(|candidate| !candidate.is_tried);
        }
        candidates
    }

    /// A request leaves for `address`.
    pub fn note_sent(&mut self, address: Address, now: Instant) {
        self.node(address).statistics.note_sent(now);
    }

    /// The replica of `group` at `address` served a request, `latency` after it was sent.
    pub fn note_reply(
        &mut self,
        group: GroupId,
        address: Address,
        latency: Duration,
        load: Option<ReplicaLoad>,
        now: Instant,
    ) {
        let node = self.node(address);
        node.statistics.note_reply(latency, load, now);
        let sent = now - latency;
        node.backoff.note_success(sent);
        if let Some(backoff) = self.replicas.get_mut(&(group, address)) {
            backoff.note_success(sent);
            if !backoff.is_open() {
                self.replicas.remove(&(group, address));
            }
        }
    }

    /// The replica of `group` at `address` did not serve a request. How fast it refused says nothing about its speed.
    pub fn note_failed(&mut self, group: GroupId, address: Address, failure: Failure<'_>, now: Instant) {
        let node = self.node(address);
        node.statistics.note_over(now);
        match scope(failure) {
            Scope::Request => {}
            Scope::Node => node.backoff.note_failure(now),
            Scope::NodeLife => {
                node.backoff.note_failure(now);
                node.statistics.forget();
            }
            Scope::Replica => {
                self.make_room(now);
                self.replicas.entry((group, address)).or_default().note_failure(now);
            }
        }
    }

    /// The caller gave a request up that it had waited `waited` for.
    pub fn note_cancelled(&mut self, address: Address, waited: Duration, now: Instant) {
        self.node(address).statistics.note_abandoned(waited, now);
    }

    /// What a request to the node at `address` is expected to meet; `None` while too little is known of it.
    pub fn expected(&self, address: Address, now: Instant) -> Option<Expected> {
        self.nodes.get(&address)?.statistics.expected(now)
    }

    /// This client's unanswered requests at `address`.
    pub fn in_flight(&self, address: Address) -> u32 {
        self.nodes.get(&address).map_or(0, |node| node.statistics.in_flight)
    }

    fn node(&mut self, address: Address) -> &mut Node {
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&address) {
            self.nodes.retain(|_, node| node.statistics.in_flight > 0);
        }
        self.nodes.entry(address).or_default()
    }

    fn make_room(&mut self, now: Instant) {
        if self.replicas.len() >= SETBACKS_MAX {
            self.replicas.retain(|_, backoff| now < backoff.until());
        }
        if self.replicas.len() >= SETBACKS_MAX {
            self.replicas.clear();
        }
    }

    fn gather(&self, choice: &Choice<'_>, now: Instant, candidates: &mut Vec<Candidate>) {
        candidates.clear();
        let route = choice.route;
        let unknown = Node::default();
        let nearest =
            route.replicas().filter_map(|address| Some(self.nodes.get(&address)?.nearness)).max().unwrap_or(0);
        for address in choice.leader.into_iter().chain(route.replicas()) {
            if choice.excluded.contains(&address) || candidates.iter().any(|known| known.address == address) {
                continue;
            }
            let node = self.nodes.get(&address).unwrap_or(&unknown);
            let replica = self.replicas.get(&(choice.group, address)).copied().unwrap_or_default();
            candidates.push(Candidate {
                address,
                is_leader: choice.leader == Some(address),
                in_flight: node.statistics.in_flight,
                is_tried: choice.tried.contains(&address),
                state: state(node, replica, now),
                rank: rank(choice, address, nearest.saturating_sub(node.nearness)),
                is_known: node.statistics.is_known(now),
                cost: node.statistics.cost(now),
                idle_cost: node.statistics.idle_cost(),
                back_at: node.backoff.until().max(replica.until()),
            });
        }
        self.hold_back_unknown(candidates);
    }

    /// An unknown replica is taken to be as fast as the best known one when idle, and gets few requests at once;
    /// unless none is known, when all are equal.
    fn hold_back_unknown(&self, candidates: &mut [Candidate]) {
        let known = candidates.iter().filter(|candidate| candidate.is_known && candidate.state == State::Ready);
        let idle_cost = known.map(|candidate| candidate.idle_cost).reduce(f64::min);
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.is_known) {
            let unknown = Statistics::default();
            let statistics = self.nodes.get(&candidate.address).map_or(&unknown, |node| &node.statistics);
            candidate.cost = statistics.cost_like(idle_cost.unwrap_or(IDLE_COST_UNKNOWN));
            let is_full = statistics.in_flight >= UNKNOWN_IN_FLIGHT_MAX && idle_cost.is_some();
            if is_full {
                candidate.state = candidate.state.max(State::HeldBack);
            }
        }
    }
}

fn state(node: &Node, replica: Backoff, now: Instant) -> State {
    if now < node.backoff.until().max(replica.until()) {
        State::BackedOff
    } else if (node.backoff.is_open() || replica.is_open()) && node.statistics.in_flight > 0 {
        // On probation: one request at a time.
        State::HeldBack
    } else {
        State::Ready
    }
}

/// How far from preferred `address` is, which is `distance` labels further away than the nearest.
fn rank(choice: &Choice<'_>, address: Address, distance: usize) -> usize {
    let is_leader = choice.leader == Some(address);
    match choice.mode {
        ReplicaRead::Leader | ReplicaRead::PreferLeader => usize::from(!is_leader),
        ReplicaRead::Follower => usize::from(is_leader),
        ReplicaRead::LeaderAndFollower => 0,
        ReplicaRead::ClosestReplicas | ReplicaRead::ClosestAdaptive => distance,
        ReplicaRead::Learner if is_leader => 2,
        ReplicaRead::Learner => usize::from(!choice.route.learners.contains(&address)),
    }
}

fn patience(choice: &Choice<'_>) -> Option<Patience> {
    let is_large = choice.size_hint >= LARGE_REPLY_SIZE;
    match choice.mode {
        ReplicaRead::ClosestAdaptive if is_large => Some(Patience { factor: 3.0, margin: Duration::from_millis(3) }),
        ReplicaRead::ClosestAdaptive => Some(Patience { factor: 1.5, margin: Duration::from_millis(1) }),
        ReplicaRead::PreferLeader | ReplicaRead::ClosestReplicas => {
            Some(Patience { factor: 3.0, margin: Duration::from_millis(10) })
        }
        ReplicaRead::Leader | ReplicaRead::Follower | ReplicaRead::LeaderAndFollower | ReplicaRead::Learner => None,
    }
}

fn pick(candidates: &[Candidate], patience: Option<Patience>, random: &mut Random) -> Option<Address> {
    let order = |candidate: &&Candidate| (candidate.is_tried, candidate.state, candidate.rank);
    let best = order(&candidates.iter().min_by_key(order)?);
    if best.1 == State::BackedOff {
        let set_back = candidates.iter().filter(|candidate| candidate.is_tried == best.0);
        return set_back.min_by_key(|candidate| (candidate.back_at, candidate.rank)).map(|least| least.address);
    }
    let preferred = cheap(candidates, |candidate| order(&candidate) == best, random)?;
    let Some(patience) = patience else { return Some(preferred.address) };
    let is_next = |candidate: &Candidate| {
        (candidate.is_tried, candidate.state) == (best.0, State::Ready) && candidate.rank > best.2
    };
    let Some(other) = cheap(candidates, is_next, random) else { return Some(preferred.address) };
    let limit = other.cost * patience.factor + patience.margin.as_nanos() as f64;
    // None leaves below the limit, half at twice the limit, nearly all far above it.
    let stays = limit / preferred.cost.max(limit);
    Some(if draw(random) < stays { preferred.address } else { other.address })
}

/// Two of those that `is_meant`, at random, and of these the cheaper more likely.
fn cheap(candidates: &[Candidate], is_meant: impl Fn(&Candidate) -> bool, random: &mut Random) -> Option<Candidate> {
    let count = candidates.iter().filter(|candidate| is_meant(candidate)).count();
    let nth = |index: usize| candidates.iter().filter(|candidate| is_meant(candidate)).nth(index).copied();
    if count < 2 {
        return nth(0);
    }
    let first = random.below(count as u64) as usize;
    let second = (first + 1 + random.below(count as u64 - 1) as usize) % count;
    let (first, second) = (nth(first)?, nth(second)?);
    let ratio = first.cost / second.cost.max(1.0);
    // One against the cube of the ratio.
    Some(if draw(random) * (1.0 + ratio * ratio * ratio) < 1.0 { first } else { second })
}

/// A number from 0 to below 1.
fn draw(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
