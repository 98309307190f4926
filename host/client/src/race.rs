//! One request of a hedging handle: sends its attempts, takes the first success, and takes the others back.
//!
//! [`Race`] decides what happens when; this carries it out. Where nothing is slow that is one attempt, a look at the
//! clock, and a moment in the alarm clock that never comes.
//!
//! ```text
//!   round: First ──> Hedge, Tie, Retry, Fallback   each to a replica that was not asked yet, for a token
//!     │ success: the others are cancelled
//!     │ failure and nothing under way: pause, a fresh map (as every request does), next round
//!     └ failure while attempts are late: they are waited for; beside them one more, for a token
//! ```

mod attempt;

use self::attempt::{Attempt, Attempts, Failed, What, cause};
use crate::alarm::Bell;
use crate::call::{Answer, Call, Limits, ServedBy, refuse_older};
use crate::cluster::{lost_error, partition_refusal_of};
use crate::connection::Lost;
use crate::error::Result;
use crate::hedging::{RetryPolicy, TieMode};
use crate::ledger::{Asked, Hedging, Over, Sort};
use crate::routes::{Target, Want};
use crate::runtime::now;
use crate::selection::size_hint;
use crate::session::Floor;
use bytes::Bytes;
use hedgerow_hedge::{Action, Kind, Outcome, Plan, Race, TieRule, Time};
use hedgerow_routing::{ATTEMPTS_MAX, Address, BACKOFF_FIRST, Failure, Reaction, ReplicaRead};
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::call::ReplyFrame;
use hedgerow_wire::message::Cancel;
use hedgerow_wire::value::Binary;
use hedgerow_wire::{Cause, Extension, Reply, ReplyExtension, Text, Tie};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
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

/// Runs the request to its end.
pub(crate) async fn run<'a>(call: Call<'a>, hedging: &'a Hedging, target: Target) -> Result<Answer> {
    let mut racing = Racing::new(call, hedging, target);
    loop {
        match poll_fn(|context| racing.poll(context)).await {
            End::Answer(answer) => return Ok(answer),
            End::Failed(failed) => racing.recover(failed).await?,
        }
    }
}

/// A request, and the round that it is in.
struct Racing<'a> {
    race: Race,
    /// Whether the round has ended, and only attempts that are late are waited for.
    is_round_over: bool,
    field: Field<'a>,
}

/// Everything about the request that its [`Race`] does not know.
struct Field<'a> {
    call: Call<'a>,
    hedging: &'a Hedging,
    bell: Bell<'a>,
    sort: Sort,
    plan: Plan,
    request_id: u64,
    attempts: Attempts<'a>,
    /// Attempts of earlier rounds.
    base: u32,
    /// Attempts so far.
    sent: u32,
    /// What was admitted and is to be sent.
    next: Option<Next>,
    /// Who gets the second copy of a tied request.
    tied: Option<Address>,
    is_fallback_sent: bool,
    /// The failure that counts so far.
    failed: Option<Failed>,
    won: Option<Won>,
    /// When another attempt may be sent beside those that are late.
    retry_at: Option<Instant>,
    /// The one that would have let the read wait for the shortest time, of those that refused it for that.
    least_busy: Option<(u32, Address)>,
    /// The kinds of attempts that a token was missing for: each counts once, however often it would have been due.
    suppressed: u8,
    /// Whether the caller's limit on waiting still holds. It does not once everybody was asked.
    has_threshold: bool,
}

/// An attempt that is to be sent.
#[derive(Clone, Copy, Debug)]
struct Next {
    target: Target,
    /// Whether it has a token.
    is_extra: bool,
    any_replica: bool,
}

struct Won {
    index: usize,
    reply: Reply,
    extension: ReplyExtension,
}

enum End {
    Answer(Answer),
    Failed(Failed),
}

impl<'a> Racing<'a> {
    fn new(call: Call<'a>, hedging: &'a Hedging, target: Target) -> Self {
        let level = call.reading.and_then(|reading| reading.options.level);
        let sort = Sort::of(call.body, level, size_hint(call.body));
        let cluster = &call.routes.cluster;
        let request_id = cluster.next_request_id();
        let bell = cluster.alarm.bell();
        let start = Time(call.start.saturating_duration_since(cluster.origin).as_nanos() as u64);
        let mut field = Field {
            sort,
            plan: hedging.begin(sort, target.address, start),
            request_id,
            bell,
            call,
            hedging,
            attempts: Attempts::default(),
            base: 0,
            sent: 0,
            next: Some(Next { target, is_extra: false, any_replica: false }),
            tied: None,
            is_fallback_sent: false,
            failed: None,
            won: None,
            retry_at: None,
            least_busy: None,
            suppressed: 0,
            has_threshold: true,
        };
        field.complete_plan(level, target);
        Self { race: Race::new(field.plan, start), is_round_over: false, field }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let Self { race, is_round_over, field } = self;
        let now = if field.sent == 0 { field.call.start } else { now() };
        loop {
            field.poll_attempts(race, now, context);
            if let Some(won) = field.won.take() {
                return Poll::Ready(End::Answer(field.finish(won, now)));
            }
            if *is_round_over {
                if field.may_go_on(now) {
                    *race = field.new_round(race.sent(), now);
                    *is_round_over = false;
                    continue;
                }
                return field.poll_late(now, context);
            }
            match race.poll(field.time(now), |kind| field.admit(kind, now)) {
                Action::Send { number, kind } => field.send(race, number, kind, now),
                Action::Wait { until } => {
                    if let Some(until) = until {
                        field.bell.set(field.moment(until), context);
                    }
                    return Poll::Pending;
                }
                Action::Finish { .. } => {
                    let is_final = field.failed.as_ref().is_some_and(|failed| failed.outcome() == Outcome::Fatal);
                    if is_final || !field.attempts.is_any_open() {
                        return Poll::Ready(End::Failed(field.take_failure(now)));
                    }
                    *is_round_over = true;
                    field.plan_retry(now);
                }
            }
        }
    }

    /// After a failure with nothing under way: what every request does, and a new round.
    async fn recover(&mut self, failed: Failed) -> Result<()> {
        let Self { race, is_round_over, field } = self;
        let next = field.recover(failed).await?;
        field.next = Some(next);
        *race = field.new_round(race.sent(), now());
        *is_round_over = false;
        Ok(())
    }
}

impl<'a> Field<'a> {
    /// Adds to the policy's plan what is not the policy's to decide.
    fn complete_plan(&mut self, level: Option<ReadLevel>, target: Target) {
        let options = &self.hedging.options;
        if options.is_idempotent == Some(false) {
            self.plan = Plan::default();
            return;
        }
        if self.sort.is_write {
            return;
        }
        let is_linearizable = matches!(level, None | Some(ReadLevel::Linearizable));
        let fallback = options.fallback.filter(|_| is_linearizable);
        self.plan.fallback = fallback.map(|fallback| fallback.after);
        if options.tie != TieMode::Never
            && let Some(first) = target.address
            && let Some(stagger) = self.stagger(first)
            && let Some(second) = self.choose(target, &[first])
        {
            self.tied = Some(second);
            self.plan.tie = Some(stagger);
            // Should both copies vanish, the policy's own attempts are still there.
            self.plan.max_executions = self.plan.max_executions.max(1) + 1;
        }
    }

    /// After how long the second copy of a tied read is sent; `None` = it is not worth one.
    fn stagger(&self, first: Address) -> Option<Duration> {
        let expected = self.call.routes.cluster.selection.expected(first, self.call.start);
        match self.hedging.options.tie {
            TieMode::Never => None,
            TieMode::Always => {
                let way = expected.map_or(STAGGER_UNKNOWN, |expected| expected.network);
                Some(way.max(TIES.stagger_min))
            }
            TieMode::Auto => expected.and_then(|expected| TIES.stagger(expected.queue, expected.network / 2)),
        }
    }

    /// A replica for another copy that is not among `asked`; `None` if there is none.
    fn choose(&self, target: Target, asked: &[Address]) -> Option<Address> {
        let mode = self.call.replicas.unwrap_or(ReplicaRead::LeaderAndFollower);
        let want = Want { mode, tried: asked, size_hint: size_hint(self.call.body) };
        let chosen = self.call.routes.choose(self.call.place, &want);
        chosen.address.filter(|address| !asked.contains(address) && chosen.group() == target.group())
    }

    fn time(&self, now: Instant) -> Time {
        Time(now.saturating_duration_since(self.call.routes.cluster.origin).as_nanos() as u64)
    }

    fn moment(&self, time: Time) -> Instant {
        self.call.routes.cluster.origin + Duration::from_nanos(time.0)
    }

    /// A round after the first. What the plan allows in it counts from now, but for the fallback.
    fn new_round(&mut self, sent: u8, now: Instant) -> Race {
        self.base += u32::from(sent);
        self.failed = None;
        self.retry_at = None;
        self.attempts.forget_round();
        self.tied = None;
        self.plan.tie = None;
        let elapsed = now.saturating_duration_since(self.call.start);
        let fallback = self.plan.fallback.filter(|_| !self.is_fallback_sent);
        let plan = Plan { fallback: fallback.map(|after| after.saturating_sub(elapsed)), ..self.plan };
        Race::new(plan, self.time(now))
    }

    fn poll_attempts(&mut self, race: &mut Race, now: Instant, context: &mut Context<'_>) {
        for index in 0..self.attempts.len() {
            let attempt = self.attempts.at(index);
            let Some(waiting) = &mut attempt.waiting else { continue };
            match Pin::new(waiting).poll(context) {
                Poll::Ready(result) => {
                    attempt.waiting = None;
                    self.handle_result(race, index, result, now);
                    if self.won.is_some() {
                        return;
                    }
                }
                Poll::Pending if now >= attempt.late_at => self.handle_late(race, index),
                Poll::Pending => {}
            }
        }
    }

    fn handle_result(&mut self, race: &mut Race, index: usize, result: Result<ReplyFrame, Lost>, now: Instant) {
        let is_write = self.sort.is_write;
        let attempt = self.attempts.at(index);
        let (number, sent, target) = (attempt.number.take(), attempt.sent.take(), attempt.target);
        let what = match result {
            Ok(ReplyFrame { reply, extension, .. }) => {
                let reply = if is_write { reply } else { refuse_older(reply, extension.as_ref(), attempt.floor) };
                let Reply::Failed(failure) = &reply else {
                    sent.into_iter().for_each(|sent| sent.served(extension.as_ref()));
                    number.map(|number| race.handle_end(number, Outcome::Success));
                    self.won = Some(Won { index, reply, extension: extension.unwrap_or_default() });
                    return;
                };
                sent.into_iter().for_each(|sent| sent.refused(&partition_refusal_of(failure)));
                What::Refused(self.call.learn_refusal(target, failure))
            }
            Err(lost) => {
                sent.into_iter().for_each(|sent| sent.lost(&lost));
                self.call.learn_loss(target, &lost);
                What::Lost(lost)
            }
        };
        let (asked, took) = {
            let attempt = self.attempts.at(index);
            (attempt.asked, now.saturating_duration_since(attempt.at))
        };
        self.handle_failure(race, number, asked, Failed { target, what }, took, now);
    }

    fn handle_failure(
        &mut self,
        race: &mut Race,
        number: Option<u8>,
        asked: Asked,
        failed: Failed,
        took: Duration,
        now: Instant,
    ) {
        if let (What::Refused(Refusal::BusyFor { estimated_wait_ms }), false) = (&failed.what, self.sort.is_write) {
            let this = (*estimated_wait_ms, asked.node);
            self.least_busy = Some(self.least_busy.map_or(this, |least| least.min(this)));
        }
        let outcome = failed.outcome();
        let error = failed.error();
        let over = if outcome == Outcome::Dropped { Over::Dropped(&error) } else { Over::Error(&error) };
        self.hedging.note_over(asked, self.sort, over, took, self.time(now));
        self.count_failure(race, number, failed);
    }

    /// An attempt has failed, or is so late that it counts as failed for the time being.
    fn count_failure(&mut self, race: &mut Race, number: Option<u8>, failed: Failed) {
        let outcome = failed.outcome();
        // An error says more than a note.
        if outcome != Outcome::Dropped || self.failed.is_none() {
            self.failed = Some(failed);
        }
        if let Some(number) = number {
            race.handle_end(number, outcome);
        }
    }

    /// No reply came within the time of one attempt. The attempt goes on, and may still win; the race counts on it no more.
    fn handle_late(&mut self, race: &mut Race, index: usize) {
        let attempt = self.attempts.at(index);
        let Some(number) = attempt.number.take() else { return };
        let target = attempt.target;
        if let Some(asked) = target.address {
            self.call.routes.with_map(|map| map.note_not_leader(target.partition, asked));
        }
        drop(self.call.routes.refresh());
        self.count_failure(race, Some(number), Failed { target, what: What::Lost(Lost::Late) });
    }

    /// Whether another attempt is sent; then it is in `next`.
    fn admit(&mut self, kind: Kind, now: Instant) -> bool {
        if now >= self.call.deadline || self.sent >= ATTEMPTS_MAX {
            return false;
        }
        let is_alone = !self.attempts.is_any_open();
        let is_redirect = kind == Kind::Retry && self.failed.as_ref().is_some_and(Failed::is_redirect);
        if !(is_alone || self.hedging.options.is_idempotent != Some(false))
            || (kind == Kind::Retry && !self.may_retry_at_once())
        {
            return false;
        }
        let Some((target, any_replica)) = self.find(kind, is_redirect) else { return false };
        // Refused without any work, and nothing else under way: it takes the refused one's place.
        let is_extra = !(is_alone && is_redirect);
        if is_extra && !self.hedging.budget.try_take() {
            self.note_suppressed(kind);
            return false;
        }
        self.next = Some(Next { target, is_extra, any_replica });
        true
    }

    fn note_suppressed(&mut self, kind: Kind) {
        let bit = 1 << kind.index();
        if self.suppressed & bit == 0 {
            self.suppressed |= bit;
            self.hedging.note_suppressed(kind, self.sort.is_write);
        }
    }

    /// Whether the last failure may be followed by another attempt without a pause.
    fn may_retry_at_once(&self) -> bool {
        let Some(failed) = &self.failed else { return false };
        if failed.is_redirect() {
            return true;
        }
        let is_elsewhere_better = match &failed.what {
            What::Refused(Refusal::NoTable | Refusal::Creating) => false,
            // Whoever is asked, the leader does it: what it refused it would refuse again.
            What::Refused(_) if self.sort.is_write => matches!(&failed.what, What::Refused(Refusal::Stopping(_))),
            What::Refused(_) | What::Lost(_) => true,
        };
        is_elsewhere_better && self.may_retry(failed) && self.hedging.options.retry == RetryPolicy::NextReplica
    }

    /// Whether the request may be sent again after this failure at all.
    fn may_retry(&self, failed: &Failed) -> bool {
        let options = &self.hedging.options;
        failed.is_redirect()
            || (options.retry != RetryPolicy::Rethrow
                && (options.is_idempotent != Some(false) || !failed.may_be_under_way()))
    }

    /// Whom to ask for a copy of this kind, and whether as any replica.
    fn find(&mut self, kind: Kind, is_redirect: bool) -> Option<(Target, bool)> {
        let asked: Vec<Address> = self.attempts.iter().map(|attempt| attempt.asked.node).collect();
        let target = self.call.routes.target(self.call.place);
        let leads = self.call.replicas.is_none() && (is_redirect || (kind == Kind::Retry && self.sort.is_write));
        if leads && target.address.is_some_and(|address| !asked.contains(&address)) {
            return Some((target, false));
        }
        let address = match kind {
            Kind::Tie => self.tied.filter(|second| self.sent == self.base + 1 && !asked.contains(second))?,
            // Asking for less, a replica that was asked for more may still answer at once; but not the first.
            Kind::Fallback => self.choose(target, &asked).or_else(|| {
                let first = asked.first().copied()?;
                self.choose(target, &[first])
            })?,
            Kind::First | Kind::Hedge | Kind::Retry => self.choose(target, &asked)?,
        };
        Some((Target { address: Some(address), ..target }, !self.sort.is_write))
    }

    fn send(&mut self, race: &mut Race, number: u8, kind: Kind, now: Instant) {
        self.sent = self.base + u32::from(number);
        let kind = if self.base > 0 && kind == Kind::First { Kind::Retry } else { kind };
        let next = self.next.take();
        let Some((Next { target, is_extra, any_replica }, node)) =
            next.and_then(|next| Some((next, next.target.address?)))
        else {
            let what = What::Lost(Lost::NotConnected("no replica to ask is known".to_owned()));
            let target = self.call.routes.target(self.call.place);
            self.count_failure(race, Some(number), Failed { target: Target { address: None, ..target }, what });
            return;
        };
        self.is_fallback_sent |= kind == Kind::Fallback;
        let asked = Asked { number: self.sent, kind, node, partition: target.partition };
        let floor = self.floor(target);
        let mut extension = self.call.extension(target, floor, now);
        let level = self.complete(&mut extension, asked, Next { target, is_extra, any_replica }, floor);
        let tie = extension.tie.clone();
        let late_at = self.call.deadline.min(now + self.call.routes.cluster.options.attempt_timeout());
        let limits = Limits { now, deadline: late_at, give_up_at: self.call.deadline };
        let is_first = self.sent == 1;
        let submitted = self.call.submit(target, node, extension, limits);
        let is_extra = is_extra
            && match &submitted {
                Ok(_) => true,
                Err(_) => {
                    self.hedging.budget.give_back();
                    false
                }
            };
        if !is_first {
            self.hedging.note_sent(asked, self.sort.is_write, is_extra);
        }
        self.hedging.tell_start(asked);
        let sent = self.is_told_to_selector(is_first).then(|| {
            let routes = self.call.routes;
            routes.cluster.selection.send_at(target.group(), node, now)
        });
        match submitted {
            Ok(waiting) => self.attempts.push(Attempt {
                asked,
                target,
                number: Some(number),
                waiting: Some(waiting),
                sent,
                at: now,
                late_at,
                floor,
                level,
                tie,
            }),
            Err(lost) => {
                sent.into_iter().for_each(|sent| sent.lost(&lost));
                self.attempts.push(Attempt {
                    asked,
                    target,
                    number: None,
                    waiting: None,
                    sent: None,
                    at: now,
                    late_at,
                    floor,
                    level,
                    tie,
                });
                self.call.learn_loss(target, &lost);
                let failed = Failed { target, what: What::Lost(lost) };
                self.handle_failure(race, Some(number), asked, failed, Duration::ZERO, now);
            }
        }
    }

    fn floor(&self, target: Target) -> Floor {
        match self.call.reading {
            Some(reading) if !self.sort.is_write => reading.floor(target.group()),
            _ => Floor::default(),
        }
    }

    /// Whether the selector is told about an attempt: of reads, where it chose or where its numbers are asked for.
    fn is_told_to_selector(&self, is_first: bool) -> bool {
        let is_asked_for = self.call.replicas.is_some() || self.hedging.options.tie != TieMode::Never || !is_first;
        is_asked_for && !self.sort.is_write
    }

    /// Says in `extension` what is particular to this attempt; returns the level that it asks for.
    fn complete(&self, extension: &mut Extension, asked: Asked, next: Next, floor: Floor) -> Option<ReadLevel> {
        let options = &self.hedging.options;
        extension.attempt = Some(asked.number as i32);
        extension.client_id = Some(self.call.routes.cluster.client_id);
        extension.request_id = Some(self.request_id);
        extension.cause = cause(asked.kind).filter(|_| next.is_extra).map(Cause::code);
        extension.wants_trace = options.wants_trace;
        extension.tie = self.tie(asked);
        if self.sort.is_write {
            return None;
        }
        let threshold = options.busy_threshold.filter(|_| self.has_threshold);
        extension.busy_threshold_ms = threshold.map(|limit| crate::cluster::millis(limit).max(1) as i32);
        extension.any_replica |= next.any_replica;
        let fallback = options.fallback.filter(|_| asked.kind == Kind::Fallback && !floor.is_uncertain);
        if let Some(fallback) = fallback {
            extension.set_read_level(ReadLevel::Bounded(fallback.bound));
            if floor.index > 0 {
                let token = hedgerow_types::SessionToken::of(next.target.group(), floor.index);
                extension.session_token = Some(Bytes::from(token.encode()));
            }
        }
        extension.read_level()
    }

    /// Who has the other copy of a tied request.
    fn tie(&self, asked: Asked) -> Option<Bytes> {
        let second = self.tied?;
        let (peer, attempt) = match asked.kind {
            Kind::First => (second, 2),
            Kind::Tie => (self.attempts.iter().next()?.asked.node, 1),
            Kind::Hedge | Kind::Retry | Kind::Fallback => return None,
        };
        Some(Tie { peer: Text::from(peer.to_string()), attempt }.encode())
    }

    /// The request has its answer.
    fn finish(&mut self, won: Won, now: Instant) -> Answer {
        let Won { index, reply, extension } = won;
        let Attempt { asked, target, at, level, .. } = *self.attempts.at(index);
        let took = now.saturating_duration_since(at);
        self.hedging.note_over(asked, self.sort, Over::Success { has_won: true }, took, self.time(now));
        if let Some(reading) = self.call.reading {
            reading.observe_index(target.group(), extension.index);
            if !self.sort.is_write {
                let by = ServedBy { target, address: asked.node, attempts: self.sent, kind: asked.kind, level };
                reading.tell(|| self.call.served(by, &extension));
            }
        }
        self.cancel_open(now);
        let is_chosen = self.call.replicas.is_some() || asked.kind != Kind::First;
        Answer { reply, holder: Some(asked.node).filter(|_| is_chosen) }
    }

    /// The failure that the round ended with. What is still open is taken back.
    fn take_failure(&mut self, now: Instant) -> Failed {
        self.call.is_outcome_unknown |= self.attempts.is_any_open();
        self.cancel_open(now);
        self.failed.take().unwrap_or_else(|| Failed {
            target: self.call.routes.target(self.call.place),
            what: What::Lost(Lost::Late),
        })
    }

    /// Takes back every attempt without an end, and tells those who keep account how long it was waited for.
    fn cancel_open(&mut self, now: Instant) {
        let client_id = self.call.routes.cluster.client_id;
        for index in 0..self.attempts.len() {
            let attempt = self.attempts.at(index);
            let Some(waiting) = attempt.waiting.take() else { continue };
            let (asked, sent) = (attempt.asked, attempt.sent.take());
            let took = now.saturating_duration_since(attempt.at);
            let cancel = Cancel {
                client_id,
                request_id: self.request_id,
                attempt: Some(asked.number as i32),
                tie: attempt.tie.clone().map(Binary),
            };
            let ended = waiting.cancel(&cancel);
            let (hedging, sort, time) = (self.hedging, self.sort, self.time(now));
            match ended {
                // Dropped, `sent` says that it was given up.
                None => hedging.note_over(asked, sort, Over::Cancelled, took, time),
                Some(Ok(ReplyFrame { reply: Reply::Failed(failure), .. })) => {
                    let refusal = partition_refusal_of(&failure);
                    sent.into_iter().for_each(|sent| sent.refused(&refusal));
                    let error = What::Refused(refusal).error();
                    hedging.note_over(asked, sort, Over::Error(&error), took, time);
                }
                Some(Ok(frame)) => {
                    sent.into_iter().for_each(|sent| sent.served(frame.extension.as_ref()));
                    hedging.note_over(asked, sort, Over::Success { has_won: false }, took, time);
                }
                Some(Err(lost)) => {
                    sent.into_iter().for_each(|sent| sent.lost(&lost));
                    hedging.note_over(asked, sort, Over::Error(&lost_error(&lost)), took, time);
                }
            }
        }
    }

    /// The round has failed while attempts are late: when may another be sent beside them?
    fn plan_retry(&mut self, now: Instant) {
        let Some(failed) = self.failed.take() else { return };
        let reaction = if self.may_retry(&failed) { self.reaction(&failed) } else { Reaction::Fail };
        self.failed = Some(failed);
        self.retry_at = match reaction {
            Reaction::Fail => None,
            Reaction::Retry { after } => Some(now + after),
            Reaction::RefreshAndRetry { after } => {
                drop(self.call.routes.refresh());
                Some(now + after)
            }
        };
    }

    /// Whether another attempt is to be sent beside those that are late. Without a token there will be none: they are all
    /// that is waited for.
    fn may_go_on(&mut self, now: Instant) -> bool {
        if !self.attempts.is_any_open() || self.retry_at.is_none_or(|at| now < at) {
            return false;
        }
        self.retry_at = None;
        self.attempts.forget_ended();
        self.admit(Kind::Retry, now)
    }

    fn poll_late(&mut self, now: Instant, context: &Context<'_>) -> Poll<End> {
        if !self.attempts.is_any_open() {
            return Poll::Ready(End::Failed(self.take_failure(now)));
        }
        if let Some(at) = self.retry_at {
            self.bell.set(at, context);
        }
        Poll::Pending
    }

    fn reaction(&mut self, failed: &Failed) -> Reaction {
        self.call.attempt = self.sent;
        if self.call.replicas.is_some() {
            self.call.tried.extend(self.attempts.iter().map(|attempt| attempt.asked.node));
        }
        match &failed.what {
            What::Refused(refusal) => self.call.reaction(failed.target, Failure::Refused(refusal)),
            What::Lost(lost) => self.call.reaction_to_loss(failed.target, lost),
        }
    }

    /// After a failure with nothing under way: waits as the failure asks for, and says what is sent next.
    async fn recover(&mut self, failed: Failed) -> Result<Next> {
        let is_redirect = failed.is_redirect();
        let error = failed.error();
        if !self.may_retry(&failed) {
            return Err(error.with_unknown_outcome(self.sort.is_write && self.call.is_outcome_unknown));
        }
        let mut reaction = self.reaction(&failed);
        let mut is_extra = false;
        if let Reaction::Retry { after } | Reaction::RefreshAndRetry { after } = &mut reaction
            && after.is_zero()
            && !is_redirect
        {
            is_extra = self.hedging.budget.try_take();
            if !is_extra {
                self.note_suppressed(Kind::Retry);
                *after = BACKOFF_FIRST;
            }
        }
        if let Some(error) = self.call.react(reaction, error).await {
            if is_extra {
                self.hedging.budget.give_back();
            }
            return Err(error.with_unknown_outcome(self.sort.is_write && self.call.is_outcome_unknown));
        }
        let mut target = self.call.target();
        if target.address.is_none() {
            target = self.call.find_target().await?;
        }
        let mut any_replica = false;
        if let What::Refused(Refusal::BusyFor { .. }) = failed.what
            && let Some((_, least)) = self.least_busy.take()
        {
            (target.address, any_replica, self.has_threshold) = (Some(least), true, false);
        } else if self.hedging.options.retry == RetryPolicy::SameReplica && !is_redirect {
            target.address = failed.target.address.or(target.address);
        }
        Ok(Next { target, is_extra, any_replica })
    }
}

/// Whoever drops a request no longer waits for it.
impl Drop for Field<'_> {
    fn drop(&mut self) {
        if self.attempts.is_any_open() {
            self.cancel_open(now());
        }
    }
}
