//! One request of a hedging handle: sends its attempts, takes the first success, and takes the others back.
//!
//! [`Race`] decides what happens when; this carries it out. Where nothing is slow that is one attempt ([`First`]) and a
//! moment in the alarm clock that never comes; all the rest is made when something else is due.
//!
//! ```text
//!   round: First ──> Hedge, Tie, Retry, Fallback   each to a replica that was not asked yet, for a token
//!     │ success: the others are cancelled
//!     │ failure and nothing under way: pause, a fresh map (as every request does), next round
//!     └ failure while attempts are late: they are waited for; beside them one more, for a token if there is one
//! ```

mod attempt;
mod failed;
mod first;
mod request;

use self::attempt::{Attempt, Attempts, Next, Part};
use self::failed::{Failed, What};
use self::first::First;
use self::request::{Planned, Request, choose};
use crate::alarm::Bell;
use crate::call::{Answer, Call};
use crate::error::Result;
use crate::lost::Lost;
use crate::metrics::{Asked, Hedging, Over};
use crate::refusal::partition_refusal_of;
use crate::retry::{FailedAttempt, RetryDecision, RetryPolicy as _};
use crate::routes::Target;
use crate::runtime::now;
use crate::tokens::{Place, Token};
use hedgerow_hedge::{Action, Kind, Outcome, Plan, Race};
use hedgerow_routing::{ATTEMPTS_MAX, Address, BACKOFF_FIRST, Failure, Reaction};
use hedgerow_types::Refusal;
use hedgerow_wire::call::ReplyFrame;
use hedgerow_wire::{Reply, ReplyExtension};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Runs the request to its end.
pub(crate) async fn run<'a>(call: &mut Call<'a>, hedging: &'a Hedging, target: Target) -> Result<Answer> {
    let request = Request::new(call, hedging);
    let planned = request.plan(call, target);
    let Some(node) = planned.target.address else {
        return Box::pin(Racing::new(call, request, planned).run()).await;
    };
    let mut first = First::send(call, request, planned, node);
    if let Some(answer) = poll_fn(|context| first.poll(call, context)).await {
        return Ok(answer);
    }
    Box::pin(Racing::after(call, first).run()).await
}

/// A request, and the round that it is in.
struct Racing<'c, 'a> {
    race: Race,
    /// Whether the round has ended, and only attempts that are late are waited for.
    is_round_over: bool,
    field: Field<'c, 'a>,
}

/// Everything about the request that its [`Race`] does not know.
struct Field<'c, 'a> {
    call: &'c mut Call<'a>,
    request: Request<'a>,
    bell: Bell<'a>,
    plan: Plan,
    attempts: Attempts<'a>,
    /// Attempts of earlier rounds.
    base: u32,
    /// Attempts so far.
    sent: u32,
    /// What was admitted and is to be sent.
    next: Option<Next<'a>>,
    /// What was due without a token, and waits for one.
    denied: Option<Denied<'a>>,
    /// The token that it has waited for.
    token: Option<Token<'a>>,
    /// Who gets the second copy of a tied request.
    tied: Option<Address>,
    /// How long the client had been held up when an attempt was last sent or put off.
    held_up: Duration,
    is_fallback_sent: bool,
    /// The failure that counts so far.
    failed: Option<Failed>,
    won: Option<Won>,
    /// When another attempt may be sent beside those that are late.
    retry_at: Option<Instant>,
    /// The one that would have let the read wait for the shortest time, of those that refused it for that.
    least_busy: Option<(u32, Address)>,
    /// The kinds of attempts that a token was missing for: each counts once, however often it would have been due, until one is sent.
    suppressed: u8,
    /// Whether the caller's limit on waiting still holds. It does not once everybody was asked.
    has_threshold: bool,
}

/// An attempt that was due while the budget was empty.
struct Denied<'a> {
    kind: Kind,
    place: Place<'a>,
}

/// What another attempt costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Price {
    /// It takes the place of one that has not run, and nothing else is under way.
    Nothing,
    /// It is sent without a token if there is none: all others are late.
    TokenIfAny,
    Token,
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

impl<'c, 'a> Racing<'c, 'a> {
    /// A request that nothing was sent of.
    fn new(call: &'c mut Call<'a>, request: Request<'a>, planned: Planned) -> Self {
        let race = Race::new(planned.plan, request.time(call.start));
        let mut field = Field::new(call, request, planned);
        field.next = Some(Next { target: planned.target, token: None, any_replica: false });
        Self { race, is_round_over: false, field }
    }

    /// A request for which its first attempt is not enough.
    fn after(call: &'c mut Call<'a>, first: First<'a>) -> Self {
        let First { mut race, planned, attempt, result, held_up, .. } = first;
        let mut field = Field::new(call, attempt.request, planned);
        field.held_up = held_up;
        field.sent = 1;
        field.attempts.push(attempt);
        if let Some(result) = result {
            field.handle_result(&mut race, 0, result, now());
        }
        Self { race, is_round_over: false, field }
    }

    async fn run(mut self) -> Result<Answer> {
        loop {
            match poll_fn(|context| self.poll(context)).await {
                End::Answer(answer) => return Ok(answer),
                End::Failed(failed) => self.recover(failed).await?,
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let Self { race, is_round_over, field } = self;
        let now = now();
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
            field.put_off(race, now);
            match race.poll(field.request.time(now), |kind| field.admit(kind, now)) {
                Action::Send { number, kind } => field.send(race, number, kind, now),
                Action::Wait { until } => {
                    if let Some(kind) = field.poll_token(race.owes(), context) {
                        race.handle_token(kind, field.request.time(now));
                        continue;
                    }
                    if let Some(until) = until {
                        field.bell.set(field.request.moment(until), context);
                    }
                    return Poll::Pending;
                }
                Action::Finish { .. } => {
                    field.wait_no_more();
                    if field.is_settled() || !field.attempts.is_any_open() {
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
        field.call.renumber(next.target).await?;
        field.next = Some(next);
        *race = field.new_round(race.sent(), now());
        *is_round_over = false;
        Ok(())
    }
}

impl<'c, 'a> Field<'c, 'a> {
    fn new(call: &'c mut Call<'a>, request: Request<'a>, planned: Planned) -> Self {
        Self {
            call,
            request,
            bell: request.bell(),
            plan: planned.plan,
            attempts: Attempts::default(),
            base: 0,
            sent: 0,
            next: None,
            denied: None,
            token: None,
            tied: planned.tied,
            held_up: request.cluster.alarm.held_up(),
            is_fallback_sent: false,
            failed: None,
            won: None,
            retry_at: None,
            least_busy: None,
            suppressed: 0,
            has_threshold: true,
        }
    }

    /// A round after the first. What the plan allows in it counts from now, but for the fallback.
    fn new_round(&mut self, sent: u8, now: Instant) -> Race {
        self.base += u32::from(sent);
        self.failed = None;
        self.retry_at = None;
        self.attempts.forget_round();
        self.tied = None;
        self.plan.tie = None;
        if let Some(Next { target, .. }) = self.next
            && let Some(plan) = self.request.plan_again(self.call, target, self.base + 1, now)
        {
            self.plan = Plan { tie: None, fallback: self.plan.fallback, ..plan };
        }
        let elapsed = now.saturating_duration_since(self.call.start);
        let fallback = self.plan.fallback.filter(|_| !self.is_fallback_sent);
        let plan = Plan { fallback: fallback.map(|after| after.saturating_sub(elapsed)), ..self.plan };
        Race::new(plan, self.request.time(now))
    }

    /// Where the client itself was held up, replies are read before anything else is sent.
    fn put_off(&mut self, race: &mut Race, now: Instant) {
        let alarm = &self.request.cluster.alarm;
        let held_up = alarm.held_up();
        let held = held_up.saturating_sub(self.held_up);
        if race.handle_late(self.request.time(now), held, || self.attempts.iter().all(Attempt::has_heard)) {
            self.held_up = held_up;
            alarm.note_put_off();
        }
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
                Poll::Pending if now >= attempt.late_at => self.handle_late(race, index, now),
                Poll::Pending => {}
            }
        }
    }

    fn handle_result(&mut self, race: &mut Race, index: usize, result: Result<ReplyFrame, Lost>, now: Instant) {
        let attempt = self.attempts.at(index);
        let (number, target) = (attempt.number.take(), attempt.target);
        let what = match result.map(|frame| attempt.check(frame)) {
            Ok(ReplyFrame { reply: Reply::Failed(failure), .. }) => {
                let refusal = partition_refusal_of(&failure);
                attempt.sent.take().into_iter().for_each(|sent| sent.refused(&refusal));
                What::Refused(self.call.learn_refusal(target, &failure))
            }
            Ok(ReplyFrame { reply, extension, .. }) => {
                attempt.note_served(extension.as_ref());
                number.map(|number| race.handle_end(number, Outcome::Success));
                self.won = Some(Won { index, reply, extension: extension.unwrap_or_default() });
                return;
            }
            Err(lost) => {
                attempt.note_lost(&lost);
                self.call.learn_loss(target, &lost);
                What::Lost(lost)
            }
        };
        let (asked, took) = {
            let attempt = self.attempts.at(index);
            (attempt.asked, now.saturating_duration_since(attempt.at))
        };
        let failed = self.judge(asked.number, target, what, now);
        self.handle_failure(race, number, asked, failed, took, now);
    }

    /// Attempt `number` has failed so: asks the policy what follows, where that is to be decided.
    fn judge(&self, number: u32, target: Target, what: What, now: Instant) -> Failed {
        let mut failed = Failed { target, what, decision: RetryDecision::default() };
        if !failed.is_redirect() && failed.outcome() != Outcome::Fatal {
            let options = &self.request.hedging.options;
            let attempt = FailedAttempt {
                node: target.address,
                error: &failed.error(),
                may_have_run: failed.may_be_under_way(),
                is_idempotent: options.is_idempotent != Some(false),
                left: self.call.deadline.saturating_duration_since(now),
            };
            failed.decision = options.retry.decide(self.request.info(self.call, target, number), &attempt);
        }
        failed
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
        if let (What::Refused(Refusal::BusyFor { estimated_wait_ms }), false) =
            (&failed.what, self.request.sort.is_write)
        {
            let this = (*estimated_wait_ms, asked.node);
            self.least_busy = Some(self.least_busy.map_or(this, |least| least.min(this)));
        }
        let error = failed.error();
        let over = match &failed.what {
            What::Lost(lost) => Over::lost(lost, &error),
            What::Refused(_) if failed.outcome() == Outcome::Dropped => Over::Dropped(&error),
            What::Refused(_) => Over::Error(&error),
        };
        self.request.hedging.note_over(asked, self.request.sort, over, took, self.request.time(now));
        self.count_failure(race, number, failed);
    }

    /// An attempt has failed, or is so late that it counts as failed for the time being. What would end every attempt does not end
    /// one that is under way, and may have been applied or read before: nothing more is sent, and the others are waited for.
    fn count_failure(&mut self, race: &mut Race, number: Option<u8>, failed: Failed) {
        let mut outcome = failed.outcome();
        let is_settled = self.is_settled();
        // An error says more than a note, and one that is final most.
        if !is_settled && (outcome != Outcome::Dropped || self.failed.is_none()) {
            self.failed = Some(failed);
        }
        if self.is_settled() {
            outcome = if self.attempts.is_any_counted() { Outcome::Dropped } else { Outcome::Fatal };
        }
        if let Some(number) = number {
            race.handle_end(number, outcome);
        }
    }

    /// No reply came within the time of one attempt. The attempt goes on, and may still win; the race counts on it no more.
    fn handle_late(&mut self, race: &mut Race, index: usize, now: Instant) {
        let attempt = self.attempts.at(index);
        let Some(number) = attempt.number.take() else { return };
        let (target, asked_as) = (attempt.target, attempt.asked.number);
        if let Some(asked) = target.address {
            self.call.routes.with_map(|map| map.note_not_leader(target.partition, asked));
        }
        drop(self.call.routes.refresh());
        let failed = self.judge(asked_as, target, What::Lost(Lost::Late), now);
        self.count_failure(race, Some(number), failed);
    }

    /// Whether another attempt is sent; then it is in `next`.
    fn admit(&mut self, kind: Kind, now: Instant) -> bool {
        let is_free = kind == Kind::Retry
            && !self.attempts.is_any_open()
            && self.failed.as_ref().is_some_and(|failed| failed.is_redirect() || failed.was_never_sent());
        self.admit_at(kind, if is_free { Price::Nothing } else { Price::Token }, now)
    }

    fn admit_at(&mut self, kind: Kind, price: Price, now: Instant) -> bool {
        if now >= self.call.deadline || self.sent >= ATTEMPTS_MAX || self.is_settled() {
            return false;
        }
        let is_alone = !self.attempts.is_any_open();
        let is_redirect = kind == Kind::Retry && self.failed.as_ref().is_some_and(Failed::is_redirect);
        if !(is_alone || self.request.hedging.options.is_idempotent != Some(false))
            || (kind == Kind::Retry && !self.may_retry_at_once())
        {
            return false;
        }
        let Some((target, any_replica)) = self.find(kind, is_redirect, price) else { return false };
        let token = if price == Price::Nothing { None } else { self.take_token() };
        if token.is_none() && price == Price::Token {
            self.note_suppressed(kind);
            self.wait_for_token(kind);
            return false;
        }
        self.next = Some(Next { target, token, any_replica });
        true
    }

    fn take_token(&mut self) -> Option<Token<'a>> {
        self.token.take().or_else(|| self.request.hedging.tokens.take())
    }

    /// An attempt of `kind` was due without a token. A request has one place: what was due last is sent. The policy's own
    /// attempts follow a tie.
    fn wait_for_token(&mut self, kind: Kind) {
        if kind == Kind::Tie {
            return;
        }
        // A fallback is not due again.
        let has_fallback = self.denied.as_ref().is_some_and(|denied| denied.kind == Kind::Fallback);
        let kind = if has_fallback { Kind::Fallback } else { kind };
        match &mut self.denied {
            Some(denied) if denied.place.is_kept() => denied.kind = kind,
            // It has none, or has lost it to younger requests, of which it is one from now on.
            _ => self.denied = self.request.hedging.tokens.wait().map(|place| Denied { kind, place }),
        }
    }

    /// Takes the token that was waited for, and says for what. One that the race had no use for goes back, unless its attempt is owed: it
    /// was put off.
    fn poll_token(&mut self, is_owed: bool, context: &Context<'_>) -> Option<Kind> {
        if !is_owed {
            self.token = None;
        }
        let Denied { kind, place } = self.denied.as_ref()?;
        let (kind, token) = (*kind, place.poll_take(context)?);
        (self.denied, self.token) = (None, Some(token));
        Some(kind)
    }

    fn wait_no_more(&mut self) {
        (self.denied, self.token) = (None, None);
    }

    /// Whether an attempt was refused as every other one would be.
    fn is_settled(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.outcome() == Outcome::Fatal)
    }

    fn note_suppressed(&mut self, kind: Kind) {
        let bit = 1 << kind.index();
        if self.suppressed & bit == 0 {
            self.suppressed |= bit;
            self.request.hedging.note_suppressed(kind, self.request.sort.is_write);
        }
    }

    /// What is sent with a token that came late was told as suppressed, unless the token was another kind's. The next one that lacks a
    /// token is told again.
    fn note_sent_late(&mut self, kind: Kind) {
        let bit = 1 << kind.index();
        if self.suppressed & bit != 0 {
            self.suppressed &= !bit;
            self.request.hedging.note_sent_late(kind, self.request.sort.is_write);
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
            What::Refused(_) if self.request.sort.is_write => {
                matches!(&failed.what, What::Refused(Refusal::Stopping(_)))
            }
            What::Refused(_) | What::Lost(_) => true,
        };
        is_elsewhere_better && self.may_retry(failed) && failed.decision == RetryDecision::NextReplica
    }

    /// Whether the request may be sent again after this failure at all.
    fn may_retry(&self, failed: &Failed) -> bool {
        let options = &self.request.hedging.options;
        failed.is_redirect()
            || (failed.decision != RetryDecision::Rethrow
                && (options.is_idempotent != Some(false) || !failed.may_be_under_way()))
    }

    /// Who was asked and is not to be asked once more meanwhile: all but those of whom an attempt is late and whose connection has been
    /// silent since it was sent. They are asked over another connection, as a plain handle asks them.
    fn busy(&self) -> Vec<Address> {
        self.attempts.iter().filter(|attempt| !attempt.is_late_unheard()).map(|attempt| attempt.asked.node).collect()
    }

    /// Whom to ask for a copy of this kind, and whether as any replica.
    fn find(&mut self, kind: Kind, is_redirect: bool, price: Price) -> Option<(Target, bool)> {
        let asked: Vec<Address> = self.attempts.iter().map(|attempt| attempt.asked.node).collect();
        let target = self.call.routes.target(self.call.place);
        // Another table has the name by now: a copy would have a number of the one before.
        if !self.call.may_go_to(target) {
            return None;
        }
        let leads =
            self.call.replicas.is_none() && (is_redirect || (kind == Kind::Retry && self.request.sort.is_write));
        if leads && target.address.is_some_and(|address| !self.busy().contains(&address)) {
            return Some((target, false));
        }
        let number = self.sent + 1;
        let address = match kind {
            Kind::Tie => self.tied.filter(|second| self.sent == self.base + 1 && !asked.contains(second))?,
            // Asking for less, a replica that was asked for more may still answer at once; but not the first.
            Kind::Fallback => choose(self.call, target, &asked, number).or_else(|| {
                let first = asked.first().copied()?;
                choose(self.call, target, &[first], number)
            })?,
            Kind::First | Kind::Hedge | Kind::Retry => choose(self.call, target, &asked, number).or_else(|| {
                let may_repeat = price == Price::TokenIfAny;
                may_repeat.then(|| choose(self.call, target, &self.busy(), number)).flatten()
            })?,
        };
        Some((Target { address: Some(address), ..target }, !self.request.sort.is_write))
    }

    fn send(&mut self, race: &mut Race, number: u8, kind: Kind, now: Instant) {
        self.sent = self.base + u32::from(number);
        let kind = if self.base > 0 && kind == Kind::First { Kind::Retry } else { kind };
        let next = self.next.take();
        let Some((next, node)) = next.and_then(|next| next.target.address.map(|node| (next, node))) else {
            let what = What::Lost(Lost::NotConnected("no replica to ask is known".to_owned()));
            let target = self.call.routes.target(self.call.place);
            let failed = self.judge(self.sent, Target { address: None, ..target }, what, now);
            self.count_failure(race, Some(number), failed);
            return;
        };
        self.is_fallback_sent |= kind == Kind::Fallback;
        self.held_up = self.request.cluster.alarm.held_up();
        let asked = self.request.asked(self.sent, kind, node, next.target);
        let part = Part { asked, tie: self.tie(kind), has_threshold: self.has_threshold };
        if next.token.as_ref().is_some_and(Token::is_late) {
            self.note_sent_late(kind);
        }
        let (mut attempt, lost) = Attempt::send(self.request, self.call, next, part, now);
        attempt.number = Some(number);
        self.request.hedging.note_sent(asked, self.request.sort.is_write, attempt.is_extra && lost.is_none());
        self.attempts.push(attempt);
        if let Some(lost) = lost {
            self.handle_result(race, self.attempts.len() - 1, Err(lost), now);
        }
    }

    /// Who has the other copy of a tied request, as seen by an attempt of this kind.
    fn tie(&self, kind: Kind) -> Option<(Address, i32)> {
        if kind != Kind::Tie {
            return None;
        }
        Some((self.attempts.iter().next()?.asked.node, 1))
    }

    /// The request has its answer.
    fn finish(&mut self, won: Won, now: Instant) -> Answer {
        let Won { index, reply, extension } = won;
        let answer = self.attempts.at(index).win(self.call, self.sent, reply, &extension, now);
        self.cancel_open(now);
        answer
    }

    /// The failure that the round ended with. What is still open is taken back.
    fn take_failure(&mut self, now: Instant) -> Failed {
        self.call.is_outcome_unknown |= self.attempts.is_any_open();
        self.cancel_open(now);
        self.failed.take().unwrap_or_else(|| Failed {
            target: self.call.routes.target(self.call.place),
            what: What::Lost(Lost::Late),
            decision: RetryDecision::default(),
        })
    }

    fn cancel_open(&mut self, now: Instant) {
        (0..self.attempts.len()).for_each(|index| self.attempts.at(index).cancel(now));
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

    /// Whether another attempt is to be sent beside those that are late. A plain handle sends one, so that it needs no token
    /// either if there is none.
    fn may_go_on(&mut self, now: Instant) -> bool {
        if !self.attempts.is_any_open() || self.retry_at.is_none_or(|at| now < at) {
            return false;
        }
        self.retry_at = None;
        self.attempts.forget_ended();
        self.admit_at(Kind::Retry, Price::TokenIfAny, now)
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

    /// What follows where the same replica is asked again: never without a pause.
    fn reaction_in_place(&mut self, failed: &Failed) -> Reaction {
        self.call.attempt = self.sent;
        match &failed.what {
            What::Refused(refusal) => self.call.reaction_in_place(Failure::Refused(refusal)),
            What::Lost(lost) => self.call.reaction_in_place(lost.failure()),
        }
    }

    /// After a failure with nothing under way: waits as the failure asks for, and says what is sent next.
    async fn recover(&mut self, failed: Failed) -> Result<Next<'a>> {
        if let What::Refused(refusal) = &failed.what
            && self.call.renew_number(refusal)
        {
            return Ok(Next { target: self.call.target(), token: None, any_replica: false });
        }
        let is_redirect = failed.is_redirect();
        let error = failed.error();
        if !self.may_retry(&failed) {
            return Err(error.with_unknown_outcome(self.request.sort.is_write && self.call.is_outcome_unknown));
        }
        let stays = failed.decision == RetryDecision::SameReplica && !is_redirect;
        let mut reaction = if stays { self.reaction_in_place(&failed) } else { self.reaction(&failed) };
        let mut token = None;
        if let Reaction::Retry { after } | Reaction::RefreshAndRetry { after } = &mut reaction
            && after.is_zero()
            && !is_redirect
            && !failed.was_never_sent()
        {
            token = self.take_token();
            if token.is_none() {
                self.note_suppressed(Kind::Retry);
                // A request with little time left is sent again all the same.
                *after = BACKOFF_FIRST.min(self.call.deadline.saturating_duration_since(now()) / 2);
            }
        }
        if let Some(error) = self.call.react(reaction, error).await {
            return Err(error.with_unknown_outcome(self.request.sort.is_write && self.call.is_outcome_unknown));
        }
        self.call.attempt = self.sent + 1;
        let mut target = self.call.target();
        if target.address.is_none() {
            target = self.call.find_target().await?;
        }
        let mut any_replica = false;
        if let What::Refused(Refusal::BusyFor { .. }) = failed.what
            && let Some((_, least)) = self.least_busy.take()
        {
            (target.address, any_replica, self.has_threshold) = (Some(least), true, false);
        } else if stays {
            target.address = failed.target.address.or(target.address);
        }
        Ok(Next { target, token, any_replica })
    }
}
