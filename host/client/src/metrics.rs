//! What hedged requests share: latencies and counters of one hedging handle, the budget, and what a whole client did.

use crate::error::Error;
use crate::hedging::{Attempt, AttemptEvent, HedgeMetrics, HedgeOptions, HostMetrics, LateAlarms};
use crate::lock::lock;
use crate::lost::Lost;
use crate::tokens::Tokens;
use hedgerow_hedge::{
    AttemptEnd, BudgetOptions, Class, Counters, Ended, Hedger, Kind, Plan, Policy, RequestInfo, Time,
};
use hedgerow_routing::{Address, LARGE_REPLY_SIZE};
use hedgerow_types::{PartitionIndex, ReadLevel};
use hedgerow_wire::Body;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Most nodes that metrics are kept of; what others do is counted for all tables only.
const HOSTS_MAX: usize = 1_024;
/// How many classes of requests are told apart.
const CLASSES: usize = 64;

/// How a handle's requests are hedged, and what they are decided by.
#[derive(Debug)]
pub(crate) struct Hedging {
    pub(crate) options: HedgeOptions,
    /// Whether requests are plain ones.
    pub(crate) is_off: bool,
    pub(crate) tokens: Arc<Tokens>,
    learned: Arc<Learned>,
}

/// What is known of latencies, and what was done: shared by a hedging handle, its clones, and the handles that profiles make
/// of them.
#[derive(Debug)]
pub(crate) struct Learned {
    state: Mutex<State>,
    metrics: Arc<ClientMetrics>,
}

#[derive(Debug)]
struct State {
    reads: Hedger,
    writes: Hedger,
    hosts: FxHashMap<Address, HostMetrics>,
    plans: [LastPlan; CLASSES],
}

/// The last plan of a class.
#[derive(Clone, Copy, Debug, Default)]
struct LastPlan {
    requests: u64,
    delay: Option<Duration>,
}

/// What all hedging handles of one client have in common.
#[derive(Debug)]
pub(crate) struct ClientMetrics {
    tokens: Arc<Tokens>,
    state: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    learned: Vec<Weak<Learned>>,
    /// What handles did that are gone.
    past: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    counters: Counters,
    hosts: BTreeMap<Address, HostMetrics>,
}

/// Who an attempt asks, and as what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) request: u64,
    pub(crate) operation: &'static str,
    /// Its number within its request, from 1.
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) node: Address,
    pub(crate) partition: PartitionIndex,
}

/// Whose latencies a request is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    pub(crate) class: Class,
    pub(crate) is_write: bool,
}

/// How an attempt is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over<'a> {
    /// It succeeded; whether it decided the request.
    Success { has_won: bool },
    /// It failed.
    Error(&'a Error),
    /// No reply came in its time.
    TimedOut(&'a Error),
    /// It was dropped unrun by its server.
    Dropped(&'a Error),
    /// It was given up.
    Cancelled,
}

impl<'a> Over<'a> {
    /// It was lost so, which is the `error`.
    pub(crate) fn lost(lost: &Lost, error: &'a Error) -> Self {
        if *lost == Lost::Late { Self::TimedOut(error) } else { Self::Error(error) }
    }
}

impl ClientMetrics {
    pub(crate) fn new(options: BudgetOptions) -> Arc<Self> {
        Arc::new(Self { tokens: Arc::new(Tokens::new(options)), state: Mutex::default() })
    }

    /// A handle's share; `None` if `options` ask for nothing, so that its requests cost what plain ones do.
    pub(crate) fn open(self: &Arc<Self>, options: HedgeOptions, seed: u64) -> Option<Arc<Hedging>> {
        // A budget of its own does nothing by itself, but counts for what profiles make of the handle.
        if options.is_off() && options.budget.is_none() {
            return None;
        }
        let tokens = options.budget.map_or_else(|| self.tokens.clone(), |own| Arc::new(Tokens::new(own)));
        Some(Hedging::new(options, tokens, self.learn(seed)))
    }

    /// A share that asks for nothing, for others to be made [`Hedging::with`] it.
    pub(crate) fn base(self: &Arc<Self>, seed: u64) -> Arc<Hedging> {
        Hedging::new(HedgeOptions::default(), self.tokens.clone(), self.learn(seed))
    }

    /// Statistics that begin now.
    fn learn(self: &Arc<Self>, seed: u64) -> Arc<Learned> {
        let state = State {
            reads: Hedger::new(Policy::None, seed),
            writes: Hedger::new(Policy::None, !seed),
            hosts: FxHashMap::default(),
            plans: [LastPlan::default(); CLASSES],
        };
        let learned = Arc::new(Learned { state: Mutex::new(state), metrics: self.clone() });
        let mut entries = lock(&self.state);
        entries.learned.retain(|learned| learned.strong_count() > 0);
        entries.learned.push(Arc::downgrade(&learned));
        learned
    }

    pub(crate) fn metrics(&self, late_alarms: LateAlarms) -> HedgeMetrics {
        let entries = lock(&self.state);
        let learned: Vec<_> = entries.learned.iter().filter_map(Weak::upgrade).collect();
        let mut totals = Totals::default();
        totals.add(&entries.past.counters, &mut entries.past.hosts.iter());
        // A handle that is dropped here, last, enters what it did.
        drop(entries);
        let mut most = LastPlan::default();
        for learned in &learned {
            let state = lock(&learned.state);
            state.add_to(&mut totals);
            most = state
                .plans
                .iter()
                .copied()
                .fold(most, |most, plan| if plan.requests > most.requests { plan } else { most });
        }
        HedgeMetrics {
            counters: totals.counters,
            hosts: totals.hosts.into_iter().collect(),
            budget_tokens: self.tokens.budget().tokens(),
            late_alarms,
            hedge_delay: most.delay,
        }
    }
}

impl State {
    fn add_to(&self, totals: &mut Totals) {
        totals.add(&self.reads.counters(), &mut self.hosts.iter());
        totals.add(&self.writes.counters(), &mut [].into_iter());
    }

    fn hedger(&mut self, is_write: bool) -> &mut Hedger {
        if is_write { &mut self.writes } else { &mut self.reads }
    }

    fn host(&mut self, address: Address) -> Option<&mut HostMetrics> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&address) {
            return None;
        }
        Some(self.hosts.entry(address).or_default())
    }
}

impl Totals {
    fn add(&mut self, counters: &Counters, hosts: &mut dyn Iterator<Item = (&Address, &HostMetrics)>) {
        let sum = &mut self.counters;
        sum.first += counters.first;
        sum.cancelled += counters.cancelled;
        sum.dropped += counters.dropped;
        sum.wasted_us += counters.wasted_us;
        for index in 0..Kind::COUNT {
            sum.sent[index] += counters.sent[index];
            sum.won[index] += counters.won[index];
            sum.suppressed[index] += counters.suppressed[index];
            sum.sent_late[index] += counters.sent_late[index];
        }
        for (address, host) in hosts {
            let sum = self.hosts.entry(*address).or_default();
            sum.attempts += host.attempts;
            sum.extra += host.extra;
            sum.successes += host.successes;
            sum.errors += host.errors;
            sum.cancelled += host.cancelled;
            sum.latency += host.latency;
        }
    }
}

impl Hedging {
    fn new(options: HedgeOptions, tokens: Arc<Tokens>, learned: Arc<Learned>) -> Arc<Self> {
        Arc::new(Self { is_off: options.is_off(), options, tokens, learned })
    }

    /// Of the same statistics and budget, with other options.
    pub(crate) fn with(&self, options: HedgeOptions) -> Arc<Self> {
        Self::new(options, self.tokens.clone(), self.learned.clone())
    }

    fn policy(&self, is_write: bool) -> &Policy {
        if is_write { &self.options.writes } else { &self.options.reads }
    }

    /// A request starts, which will ask `first` first.
    pub(crate) fn begin(&self, sort: Sort, request: RequestInfo<'_>, first: Option<Address>, now: Time) -> Plan {
        let plan = {
            let mut state = lock(&self.learned.state);
            let plan = state.hedger(sort.is_write).begin_by(self.policy(sort.is_write), sort.class, request, now);
            let last = &mut state.plans[usize::from(sort.class.0) % CLASSES];
            *last = LastPlan { requests: last.requests + 1, delay: plan.delay };
            if let Some(host) = first.and_then(|address| state.host(address)) {
                host.attempts += 1;
            }
            plan
        };
        self.tokens.note_first(now);
        plan
    }

    /// The first attempt of a request that has begun goes to `to`, and not to `from`.
    pub(crate) fn note_moved(&self, from: Address, to: Address) {
        let mut state = lock(&self.learned.state);
        if let Some(host) = state.host(from) {
            host.attempts = host.attempts.saturating_sub(1);
        }
        if let Some(host) = state.host(to) {
            host.attempts += 1;
        }
    }

    /// A request starts over, all of whose attempts have failed; `None` = as it was planned at first.
    pub(crate) fn begin_again(&self, sort: Sort, request: RequestInfo<'_>, now: Time) -> Option<Plan> {
        let policy = self.policy(sort.is_write);
        // Other policies plan once, and need no lock here.
        if !matches!(policy, Policy::Custom(_)) {
            return None;
        }
        lock(&self.learned.state).hedger(sort.is_write).begin_again_by(policy, sort.class, request, now)
    }

    /// An attempt that is not its request's first is sent. With a token it is an extra one.
    pub(crate) fn note_sent(&self, asked: Asked, is_write: bool, is_extra: bool) {
        let mut state = lock(&self.learned.state);
        if is_extra {
            state.hedger(is_write).note_extra_by(self.policy(is_write), asked.kind, true);
        }
        if let Some(host) = state.host(asked.node) {
            host.attempts += 1;
            host.extra += u64::from(is_extra);
        }
    }

    /// An attempt that [`Hedging::note_suppressed`] told of is sent now.
    pub(crate) fn note_sent_late(&self, kind: Kind, is_write: bool) {
        lock(&self.learned.state).hedger(is_write).note_sent_late(kind);
    }

    /// An attempt would have been sent if there were a token.
    pub(crate) fn note_suppressed(&self, kind: Kind, is_write: bool) {
        lock(&self.learned.state).hedger(is_write).note_extra_by(self.policy(is_write), kind, false);
    }

    /// Tells the observer that an attempt is sent.
    pub(crate) fn tell_start(&self, asked: Asked) {
        self.tell(asked, AttemptEvent::Start);
    }

    /// An attempt is over, `took` after it was sent.
    pub(crate) fn note_over(&self, asked: Asked, sort: Sort, over: Over<'_>, took: Duration, now: Time) {
        let ended = match over {
            Over::Success { has_won: true } => Ended::Won,
            Over::Success { has_won: false } => Ended::Late,
            Over::Error(_) => Ended::Failed,
            Over::Dropped(_) => Ended::Dropped,
            // How long it takes is not known, but that it takes longer.
            Over::TimedOut(_) | Over::Cancelled => Ended::Cancelled,
        };
        {
            let mut state = lock(&self.learned.state);
            let end = AttemptEnd { class: sort.class, replica: replica(asked.node), kind: asked.kind, ended, took };
            state.hedger(sort.is_write).note_attempt(end, now);
            if let Some(host) = state.host(asked.node) {
                match over {
                    Over::Success { .. } => host.successes += 1,
                    Over::Error(_) | Over::TimedOut(_) => host.errors += 1,
                    Over::Dropped(_) | Over::Cancelled => host.cancelled += 1,
                }
                host.latency += took;
            }
        }
        self.tell(
            asked,
            match over {
                Over::Success { .. } => AttemptEvent::Success { took },
                Over::Error(error) | Over::TimedOut(error) | Over::Dropped(error) => {
                    AttemptEvent::Error { error, took }
                }
                Over::Cancelled => AttemptEvent::Cancelled { took },
            },
        );
    }

    fn tell(&self, asked: Asked, event: AttemptEvent<'_>) {
        if let Some(observer) = &self.options.observer {
            let Asked { request, operation, number, kind, node, partition } = asked;
            observer.tell(&Attempt { request, operation, number, kind, node, partition, event });
        }
    }
}

impl Drop for Learned {
    fn drop(&mut self) {
        let state = lock(&self.state);
        state.add_to(&mut lock(&self.metrics.state).past);
    }
}

/// A number for a node, for whom addresses mean nothing.
fn replica(node: Address) -> u64 {
    let port = u64::from(node.port());
    match node.ip() {
        std::net::IpAddr::V4(ip) => u64::from(ip.to_bits()) << 16 | port,
        std::net::IpAddr::V6(ip) => (ip.to_bits() as u64).rotate_left(16) ^ port,
    }
}

impl Sort {
    /// By operation, read level and expected size.
    pub(crate) fn of(body: &Body, level: Option<ReadLevel>, size_hint: usize) -> Self {
        let (is_write, operation) = match body {
            Body::MultiGet(_) => (false, 1),
            Body::BatchGet(_) => (false, 2),
            Body::GetScanner(_) | Body::Scan(_) => (false, 3),
            Body::Put(_) | Body::Remove(_) => (true, 0),
            Body::MultiPut(_) | Body::MultiRemove(_) => (true, 1),
            Body::Incr(_) | Body::CheckAndSet(_) | Body::CheckAndMutate(_) => (true, 2),
            _ => (false, 0),
        };
        let level = match level {
            None | Some(ReadLevel::Linearizable) => 0,
            Some(ReadLevel::Session) => 1,
            Some(ReadLevel::Bounded(_)) => 2,
            Some(ReadLevel::Eventual) => 3,
        };
        let is_large = u8::from(size_hint >= LARGE_REPLY_SIZE);
        // 32 classes of reads, then those of writes.
        let class = if is_write { 32 + operation } else { (operation * 4 + level) * 2 + is_large };
        Self { class: Class(class), is_write }
    }
}
