//! What all attempts of a hedged request have in common: what is planned for it, and how one attempt is sent.

use super::attempt::{Attempt, cause};
use crate::alarm::Bell;
use crate::call::{Call, Limits};
use crate::cluster::Cluster;
use crate::hedging::TieMode;
use crate::ledger::{Asked, Hedging, Sort};
use crate::lost::Lost;
use crate::routes::{Target, Want};
use crate::selection::size_hint;
use crate::session::Floor;
use crate::time::millis;
use bytes::Bytes;
use hedgerow_hedge::{Kind, Plan, TieRule, Time};
use hedgerow_routing::{Address, ReplicaRead};
use hedgerow_types::{ReadLevel, SessionToken};
use hedgerow_wire::{Cause, Extension, Text, Tie};
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
    /// What servers take its attempts back by.
    pub(super) id: u64,
}

/// What is to become of a request.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// Who gets the second copy of a tied request.
    pub(super) tied: Option<Address>,
}

/// An attempt that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) target: Target,
    /// Whether it has a token.
    pub(super) is_extra: bool,
    pub(super) any_replica: bool,
}

/// The part that an attempt plays in its request.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) asked: Asked,
    /// Who has the other copy of a tied request, and as which attempt.
    pub(super) tie: Option<(Address, i32)>,
    /// Whether the caller's limit on waiting holds for it.
    pub(super) has_threshold: bool,
}

impl<'a> Request<'a> {
    pub(super) fn new(call: &Call<'a>, hedging: &'a Hedging) -> Self {
        let level = call.reading.and_then(|reading| reading.options.level);
        let cluster = &call.routes.cluster;
        let sort = Sort::of(call.body, level, size_hint(call.body));
        Self { cluster, hedging, sort, id: cluster.next_request_id() }
    }

    /// By the policy, and by what is not the policy's to decide. The first attempt goes to `target`.
    pub(super) fn plan(self, call: &Call<'a>, target: Target) -> Planned {
        let plan = self.hedging.begin(self.sort, target.address, self.time(call.start));
        let options = &self.hedging.options;
        let mut planned = Planned { plan, tied: None };
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
            && let Some(second) = choose(call, target, &[first])
        {
            planned.tied = Some(second);
            planned.plan.tie = Some(stagger);
            // Should both copies vanish, the policy's own attempts are still there.
            planned.plan.max_executions = planned.plan.max_executions.max(1) + 1;
        }
        planned
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

    /// Sends an attempt to `part.asked.node`; if it could not be sent, why.
    pub(super) fn send(self, call: &Call<'a>, next: Next, part: Part, now: Instant) -> (Attempt<'a>, Option<Lost>) {
        let Part { asked, tie, .. } = part;
        let target = next.target;
        let floor = match call.reading {
            Some(reading) if !self.sort.is_write => reading.floor(target.group()),
            _ => Floor::default(),
        };
        let tie = tie.map(|(peer, attempt)| Tie { peer: Text::from(peer.to_string()), attempt }.encode());
        let mut extension = call.extension(target, floor, now);
        extension.tie.clone_from(&tie);
        let level = self.complete(&mut extension, next, part, floor);
        let client = call.client_id();
        extension.client_id = Some(client);
        let late_at = call.deadline.min(now + self.cluster.options.attempt_timeout());
        let limits = Limits { now, deadline: late_at, give_up_at: call.deadline };
        let submitted = call.submit(target, asked.node, extension, limits);
        self.hedging.tell_start(asked);
        let is_told = self.is_told_to_selector(call, asked.number == 1);
        let sent = is_told.then(|| self.cluster.selection.send_at(target.group(), asked.node, now));
        let (waiting, lost) = match submitted {
            Ok(waiting) => (Some(waiting), None),
            Err(lost) => (None, Some(lost)),
        };
        let number = Some(asked.number as u8);
        (
            Attempt {
                request: self,
                client,
                asked,
                target,
                number,
                waiting,
                sent,
                at: now,
                late_at,
                floor,
                level,
                tie,
            },
            lost,
        )
    }

    /// Whether the selector is told about an attempt: of reads, where it chose or where its numbers are asked for.
    fn is_told_to_selector(self, call: &Call<'a>, is_first: bool) -> bool {
        let is_asked_for = call.replicas.is_some() || self.hedging.options.tie != TieMode::Never || !is_first;
        is_asked_for && !self.sort.is_write
    }

    /// Says in `extension` what is particular to this attempt; returns the level that it asks for.
    fn complete(self, extension: &mut Extension, next: Next, part: Part, floor: Floor) -> Option<ReadLevel> {
        let options = &self.hedging.options;
        let asked = part.asked;
        extension.attempt = Some(asked.number as i32);
        extension.request_id = Some(self.id);
        extension.cause = cause(asked.kind).filter(|_| next.is_extra).map(Cause::code);
        extension.wants_trace = options.wants_trace;
        if self.sort.is_write {
            return None;
        }
        let threshold = options.busy_threshold.filter(|_| part.has_threshold);
        extension.busy_threshold_ms = threshold.map(|limit| millis(limit).max(1) as i32);
        extension.any_replica |= next.any_replica;
        let fallback = options.fallback.filter(|_| asked.kind == Kind::Fallback && !floor.is_uncertain);
        if let Some(fallback) = fallback {
            extension.set_read_level(ReadLevel::Bounded(fallback.bound));
            if floor.index > 0 {
                let token = SessionToken::of(next.target.group(), floor.index);
                extension.session_token = Some(Bytes::from(token.encode()));
            }
        }
        extension.read_level()
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

/// A replica for another copy that is not among `asked`; `None` if there is none.
pub(super) fn choose(call: &Call<'_>, target: Target, asked: &[Address]) -> Option<Address> {
    let mode = call.replicas.unwrap_or(ReplicaRead::LeaderAndFollower);
    let want = Want { mode, tried: asked, size_hint: size_hint(call.body) };
    let chosen = call.routes.choose(call.place, &want);
    chosen.address.filter(|address| !asked.contains(address) && chosen.group() == target.group())
}
