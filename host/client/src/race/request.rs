//! What all attempts of a hedged request have in common: what is planned for it, and whom another one may ask.

use crate::alarm::Bell;
use crate::call::Call;
use crate::cluster::Cluster;
use crate::hedging::TieMode;
use crate::metrics::{Asked, Hedging, Sort};
use crate::routes::Target;
use crate::selection::size_hint;
use hedgerow_hedge::{Kind, Plan, RequestInfo, TieRule, Time};
use hedgerow_routing::Address;
use hedgerow_types::ReadLevel;
use std::time::Duration;
use tokio::time::Instant;

/// The stagger of a tied request while the way to its first replica is not known.
const STAGGER_UNKNOWN: Duration = Duration::from_micros(500);
/// When a read is worth two copies: when its wait takes longer than two ways there and back, four there, and is worth what
/// the second copy and the message that withdraws it cost, some ten microseconds of three machines. The least stagger is
/// about what a message between two nodes takes at best.
const TIES: TieRule = TieRule {
    wait_factor: 4.0,
    wait_min: Duration::from_micros(500),
    stagger_factor: 2.0,
    stagger_min: Duration::from_micros(100),
    stagger_max: Duration::MAX,
};

/// A request that may have several attempts.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) hedging: &'a Hedging,
    pub(super) sort: Sort,
    operation: &'static str,
    /// What servers take its attempts back by.
    pub(super) id: u64,
}

/// What is to become of a request.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// Where its first attempt goes.
    pub(super) target: Target,
    /// Whether that is asked in place of the replica that the handle would ask, and may be any.
    pub(super) is_moved: bool,
    /// Who gets the second copy of a tied request.
    pub(super) tied: Option<Address>,
}

impl<'a> Request<'a> {
    pub(super) fn new(call: &Call<'a>, hedging: &'a Hedging) -> Self {
        let level = call.reading.and_then(|reading| reading.options.level);
        let cluster = &call.routes.cluster;
        let sort = Sort::of(call.body, level, size_hint(call.body));
        Self { cluster, hedging, sort, operation: call.body.method().short_name(), id: cluster.next_request_id() }
    }

    /// By the policy, and by what is not the policy's to decide. The first attempt goes to `target`, unless that is silent.
    pub(super) fn plan(self, call: &Call<'a>, target: Target) -> Planned {
        let info = self.info(call, target, 1);
        let plan = self.hedging.begin(self.sort, info, target.address, self.time(call.start));
        let options = &self.hedging.options;
        let moved =
            plan.delay.filter(|delay| !delay.is_zero()).and_then(|delay| self.past_silence(call, target, delay));
        let target = Target { address: moved.or(target.address), ..target };
        // When a request is tied and when it asks for less say the caller's options.
        let plan = Plan { tie: None, fallback: None, ..plan };
        let mut planned = Planned { plan, target, is_moved: moved.is_some(), tied: None };
        if options.is_idempotent == Some(false) {
            planned.plan = Plan::default();
            return planned;
        }
        if self.sort.is_write {
            return planned;
        }
        let level = call.reading.and_then(|reading| reading.options.level);
        let is_linearizable = matches!(level, None | Some(ReadLevel::Linearizable));
        let fallback = options.fallback.filter(|_| is_linearizable);
        planned.plan.fallback = fallback.map(|fallback| fallback.after);
        if options.tie != TieMode::Never
            && let Some(first) = target.address
            && let Some(stagger) = self.stagger(call, first)
            && let Some(second) = choose(call, target, &[first], 2)
        {
            planned.tied = Some(second);
            planned.plan.tie = Some(stagger);
            // Should both copies vanish, the policy's own attempts are still there.
            planned.plan.max_executions = planned.plan.max_executions.max(1).saturating_add(1);
        }
        planned
    }

    /// Who is asked first instead of a silent replica: one that is not silent, of a read that any may serve. `None` = nobody. Who asks a
    /// policy of his own is left to it.
    fn past_silence(self, call: &Call<'a>, target: Target, delay: Duration) -> Option<Address> {
        let first = target.address?;
        let reading = call.reading.filter(|_| !self.sort.is_write)?;
        let is_free = matches!(reading.options.level, Some(ReadLevel::Bounded(_) | ReadLevel::Eventual))
            && reading.options.balancing.custom().is_none()
            && !reading.floor(target.group()).is_uncertain;
        let is_spared = |node| {
            let held_up = self.cluster.alarm.held_up_until(call.start);
            self.cluster.pool.is_spared(node, delay, held_up, self.time(call.start))
        };
        if !is_free || !is_spared(first) {
            return None;
        }
        let mut silent = vec![first];
        while let Some(other) = choose(call, target, &silent, 1) {
            if !is_spared(other) {
                self.hedging.note_moved(first, other);
                return Some(other);
            }
            silent.push(other);
        }
        None
    }

    /// What is planned for a request that starts over with attempt `number`, if its policy plans anew.
    pub(super) fn plan_again(self, call: &Call<'a>, target: Target, number: u32, now: Instant) -> Option<Plan> {
        if self.hedging.options.is_idempotent == Some(false) {
            return None;
        }
        self.hedging.begin_again(self.sort, self.info(call, target, number), self.time(now))
    }

    /// What policies are told of it when they decide about attempt `number`.
    pub(super) fn info<'c>(self, call: &'c Call<'a>, target: Target, number: u32) -> RequestInfo<'c>
    where
        'a: 'c,
    {
        let table = call.routes.name();
        RequestInfo { operation: self.operation, table, partition: target.partition, attempt: number }
    }

    /// After how long the second copy of a tied read is sent; `None` = it is not worth one.
    fn stagger(self, call: &Call<'a>, first: Address) -> Option<Duration> {
        let expected = self.cluster.selection.expected(first, call.start);
        match self.hedging.options.tie {
            TieMode::Never => None,
            TieMode::Always => {
                let way = expected.map_or(STAGGER_UNKNOWN, |expected| expected.network);
                Some(way.max(TIES.stagger_min))
            }
            TieMode::Auto => expected.and_then(|expected| TIES.stagger(expected.queue, expected.network / 2)),
        }
    }

    /// Whether the selector is told about an attempt: of reads, where it chose or where its numbers are asked for.
    pub(super) fn is_told_to_selector(self, call: &Call<'a>, is_first: bool) -> bool {
        let is_asked_for = call.replicas.is_some() || self.hedging.options.tie != TieMode::Never || !is_first;
        is_asked_for && !self.sort.is_write
    }

    /// An attempt of it that asks `node`.
    pub(super) fn asked(self, number: u32, kind: Kind, node: Address, target: Target) -> Asked {
        Asked { request: self.id, operation: self.operation, number, kind, node, partition: target.partition }
    }

    pub(super) fn bell(self) -> Bell<'a> {
        self.cluster.alarm.bell()
    }

    pub(super) fn time(self, now: Instant) -> Time {
        Time(now.saturating_duration_since(self.cluster.origin).as_nanos() as u64)
    }

    pub(super) fn moment(self, time: Time) -> Instant {
        self.cluster.origin + Duration::from_nanos(time.0)
    }
}

/// A replica for another copy, attempt number `attempt`, that is not among `asked`; `None` if there is none.
pub(super) fn choose(call: &Call<'_>, target: Target, asked: &[Address], attempt: u32) -> Option<Address> {
    let chosen = call.routes.choose(call.place, &call.want(asked, attempt));
    chosen.address.filter(|address| !asked.contains(address) && chosen.group() == target.group())
}
