//! What is shared by all requests of one kind: policy, latencies by class and replica, counters.

use crate::policy::{Latencies, Plan, Policy, RequestInfo, SpeculativeExecutionPolicy};
use crate::race::Kind;
use crate::random::Random;
use crate::recent::{Recent, ReplicaMean};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

/// Most classes that are told apart; those that are used later share the last one's latencies.
const CLASSES_MAX: usize = 64;
/// Most replicas that are told apart; the one not heard of for longest makes room.
const REPLICAS_MAX: usize = 256;
/// How many extra attempts the adaptive policy may be ahead of its share, so that it can spend on a stall what it saved.
const ADAPTIVE_BURST: f64 = 1_000.0;

/// Which latencies are alike: operation, read level and size, numbered by the caller from 0. Up to 64 are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its reply decided the request.
    Won,
    /// It succeeded, and another had decided before.
    Late,
    /// It was given up: its latency is at least what is told.
    Cancelled,
    /// It was dropped unrun by its server, as another attempt had begun or as the server had too many.
    Dropped,
    /// It failed; how fast says nothing.
    Failed,
}

/// An attempt that is over, for [`Hedger::note_attempt`].
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd {
    /// Of which class its request is.
    pub class: Class,
    /// Who was asked, by a number of the caller's.
    pub replica: u64,
    /// Why it was sent.
    pub kind: Kind,
    /// How it ended.
    pub ended: Ended,
    /// How long after it was sent.
    pub took: Duration,
}

/// What happened so far. Extra attempts are counted by [`Kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First attempts.
    pub first: u64,
    /// Extra attempts sent, by [`Kind::index`].
    pub sent: [u64; Kind::COUNT],
    /// Of these: they decided their request.
    pub won: [u64; Kind::COUNT],
    /// Not sent when they were due, for want of budget.
    pub suppressed: [u64; Kind::COUNT],
    /// Of these: they were sent later, when there was a token.
    pub sent_late: [u64; Kind::COUNT],
    /// Attempts of any kind that were given up while they ran.
    pub cancelled: u64,
    /// Attempts of any kind that were dropped unrun: cancelled in time.
    pub dropped: u64,
    /// Time that attempts which decided nothing were waited for, microseconds: of those that came late and of those that
    /// were given up.
    pub wasted_us: u64,
}

/// Decides for all requests of one kind. Not shared between threads by itself: put it behind a lock.
#[derive(Debug)]
pub struct Hedger {
    policy: Policy,
    counters: Counters,
    wasted_nanos: u64,
    random: Random,
    /// In the order of first use, with their numbers.
    classes: Vec<(Class, Box<Recent>)>,
    /// With their keys, ascending.
    replicas: Vec<(u64, ReplicaMean)>,
    /// Extra attempts that the adaptive policy still has.
    adaptive_left: f64,
}

impl Hedger {
    /// With nothing known. `seed` decides the draws of policies that hedge with a probability.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self {
            policy,
            counters: Counters::default(),
            wasted_nanos: 0,
            random: Random(seed),
            classes: Vec::new(),
            replicas: Vec::new(),
            adaptive_left: ADAPTIVE_BURST,
        }
    }

    /// What it decides by.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Decides by another policy from the next request on. What is known of latencies stays.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.adaptive_left = ADAPTIVE_BURST;
    }

    /// A request of `class` starts. Policies that measure need 100 first attempts of the class that completed; before,
    /// [`Policy::Percentile`] waits for its longest delay, and [`Policy::Adaptive`] sends no second attempt.
    pub fn begin(&mut self, class: Class, now: Time) -> Plan {
        // A copy: one of the caller's own may panic, and is to be there for the next request.
        let policy = self.policy.clone();
        self.begin_by(&policy, class, RequestInfo::default(), now)
    }

    /// As [`Hedger::begin`], for one request that is decided by a policy of its own, with all that is known of latencies.
    pub fn begin_by(&mut self, policy: &Policy, class: Class, request: RequestInfo<'_>, now: Time) -> Plan {
        self.counters.first += 1;
        if let Policy::Adaptive { max_extra_load, .. } = policy {
            self.adaptive_left = (self.adaptive_left + max_extra_load).min(ADAPTIVE_BURST);
            // The solution is a promise about the average. When latency changes, what was sent counts.
            if self.adaptive_left < 0.0 {
                return Plan::default();
            }
        }
        self.plan_by(policy, class, request, now)
    }

    /// A request that [`Hedger::begin_by`] told of starts over. Only a policy of the caller's own plans anew; `None` = all else stays.
    pub fn begin_again_by(
        &mut self,
        policy: &Policy,
        class: Class,
        request: RequestInfo<'_>,
        now: Time,
    ) -> Option<Plan> {
        matches!(policy, Policy::Custom(_)).then(|| self.plan_by(policy, class, request, now))
    }

    fn plan_by(&mut self, policy: &Policy, class: Class, request: RequestInfo<'_>, now: Time) -> Plan {
        let draw = self.random.share();
        let index = self.class_index(class, now);
        let recent = &mut self.classes[index].1;
        recent.refresh(now);
        policy.plan(request, &**recent, draw)
    }

    /// An extra attempt is sent, or not, for want of budget.
    pub fn note_extra(&mut self, kind: Kind, is_sent: bool) {
        let policy = core::mem::take(&mut self.policy);
        self.note_extra_by(&policy, kind, is_sent);
        self.policy = policy;
    }

    /// As [`Hedger::note_extra`], of a request that [`Hedger::begin_by`] decided: only what an adaptive policy sends uses up its share.
    pub fn note_extra_by(&mut self, policy: &Policy, kind: Kind, is_sent: bool) {
        let counter = if is_sent { &mut self.counters.sent } else { &mut self.counters.suppressed };
        counter[kind.index()] += 1;
        if is_sent && kind == Kind::Hedge && matches!(policy, Policy::Adaptive { .. }) {
            self.adaptive_left -= 1.0;
        }
    }

    /// An extra attempt that was told as not sent has been sent after all, and is told as such too.
    pub fn note_sent_late(&mut self, kind: Kind) {
        self.counters.sent_late[kind.index()] += 1;
    }

    /// An attempt is over.
    pub fn note_attempt(&mut self, end: AttemptEnd, now: Time) {
        let is_done = match end.ended {
            Ended::Won | Ended::Late => true,
            Ended::Cancelled => false,
            // How fast somebody fails or refuses says nothing about how fast somebody answers.
            Ended::Dropped | Ended::Failed => {
                self.counters.dropped += u64::from(end.ended == Ended::Dropped);
                return;
            }
        };
        if end.ended == Ended::Won && end.kind != Kind::First {
            self.counters.won[end.kind.index()] += 1;
        }
        if end.ended != Ended::Won {
            self.counters.cancelled += u64::from(end.ended == Ended::Cancelled);
            self.wasted_nanos = self.wasted_nanos.saturating_add(crate::histogram::nanos(end.took));
        }
        match end.kind {
            Kind::First => {
                let index = self.class_index(end.class, now);
                self.classes[index].1.note_first(end.took, is_done);
            }
            Kind::Hedge => {
                let index = self.class_index(end.class, now);
                self.classes[index].1.note_second(end.took, is_done);
            }
            // A tied attempt is sent whether or not the first one is slow, a retry after a failure, and a fallback asks for
            // less: none of them says how long a first or a second attempt takes.
            Kind::Tie | Kind::Retry | Kind::Fallback => {}
        }
        self.note_replica(end, is_done, now);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters { wasted_us: self.wasted_nanos / 1_000, ..self.counters }
    }

    /// The latency that `percentile` percent of the recent first attempts of `class` stay below, given-up attempts counted
    /// as at least as long as they were waited for; `None` while too few are known.
    pub fn latency(&self, class: Class, percentile: f64) -> Option<Duration> {
        self.recent(class)?.percentile(percentile)
    }

    /// After how long the policy would send a second attempt of a request of `class` now; `None` = not at all.
    pub fn hedge_delay(&self, class: Class) -> Option<Duration> {
        self.policy.plan(RequestInfo::default(), self.recent(class)?, 0.0).delay
    }

    /// The mean time that attempts at `replica` take, given-up ones counted by what is known of them; `None` if nothing is.
    pub fn replica_latency(&self, replica: u64) -> Option<Duration> {
        let index = self.replicas.binary_search_by_key(&replica, |(key, _)| *key).ok()?;
        self.replicas[index].1.mean()
    }

    fn recent(&self, class: Class) -> Option<&Recent> {
        let found = self.classes.iter().find(|(known, _)| *known == class);
        let is_full = self.classes.len() == CLASSES_MAX;
        found.or_else(|| self.classes.last().filter(|_| is_full)).map(|(_, recent)| &**recent)
    }

    /// Where the latencies of `class` are; makes room for them if there is any left.
    fn class_index(&mut self, class: Class, now: Time) -> usize {
        if let Some(index) = self.classes.iter().position(|(known, _)| *known == class) {
            return index;
        }
        if self.classes.len() < CLASSES_MAX {
            self.classes.push((class, Box::new(Recent::new(now))));
        }
        self.classes.len() - 1
    }

    fn note_replica(&mut self, end: AttemptEnd, is_done: bool, now: Time) {
        let index = match self.replicas.binary_search_by_key(&end.replica, |(key, _)| *key) {
            Ok(index) => index,
            Err(_) if self.replicas.len() == REPLICAS_MAX => {
                let oldest = self.replicas.iter().enumerate().min_by_key(|(_, (_, mean))| mean.noted_at);
                let oldest = oldest.map_or(0, |(index, _)| index);
                self.replicas.remove(oldest);
                return self.note_replica(end, is_done, now);
            }
            Err(index) => {
                self.replicas.insert(index, (end.replica, ReplicaMean::default()));
                index
            }
        };
        self.replicas[index].1.note(end.took, is_done, now);
    }
}
