//! One request: its attempts run inside one future, which does what its race says.

use crate::classify::Classify;
use crate::shared::Shared;
use hedgerow_hedge::{Action, AttemptEnd, Attempts, Class, Ended, Kind, Outcome, Race, Time};
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Sleep;
use tower::Service;

/// The reply to a hedged request. Dropping it cancels all its attempts.
pub struct HedgeFuture<S: Service<Request>, C, Request> {
    shared: Arc<Shared>,
    classify: C,
    class: Class,
    race: Race,
    attempts: Vec<Attempt<S, Request>>,
    /// Where further attempts go, the last one first, and what they ask.
    spare: Option<(Vec<(usize, S)>, Request)>,
    sleep: Option<Pin<Box<Sleep>>>,
}

struct Attempt<S: Service<Request>, Request> {
    replica: usize,
    kind: Kind,
    sent_at: Time,
    state: State<S, Request>,
}

enum State<S: Service<Request>, Request> {
    /// Its service is not ready. Boxed, as few attempts are ever in this state.
    Waiting(Box<(S, Request)>),
    Running(Pin<Box<S::Future>>),
    /// The reply is kept until the race is over.
    Ended(Option<Result<S::Response, S::Error>>),
}

// Nothing is pinned in place: the futures are boxed.
impl<S: Service<Request>, C, Request> Unpin for HedgeFuture<S, C, Request> {}

impl<S: Service<Request>, C, Request> fmt::Debug for HedgeFuture<S, C, Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgeFuture").field("class", &self.class).field("race", &self.race).finish_non_exhaustive()
    }
}

impl<S: Service<Request>, C, Request> HedgeFuture<S, C, Request> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        classify: C,
        class: Class,
        race: Race,
        spare: Option<(Vec<(usize, S)>, Request)>,
    ) -> Self {
        Self { shared, classify, class, race, attempts: Vec::with_capacity(1), spare, sleep: None }
    }

    /// The first attempt is called already: it uses the readiness that was asked for.
    pub(crate) fn with_first(mut self, replica: usize, running: S::Future) -> Self {
        let sent_at = self.race.start();
        let action = self.race.poll(sent_at, |_| false);
        debug_assert_eq!(action, Action::Send { number: 1, kind: Kind::First });
        let state = State::Running(Box::pin(running));
        self.attempts.push(Attempt { replica, kind: Kind::First, sent_at, state });
        self
    }

    fn note(&self, attempt: &Attempt<S, Request>, ended: Ended, now: Time) {
        let took = now.since(attempt.sent_at);
        let (class, replica, kind) = (self.class, attempt.replica as u64, attempt.kind);
        self.shared.hedger().note_attempt(AttemptEnd { class, replica, kind, ended, took }, now);
    }

    /// Gives up what is open: drops it, and notes how long it was waited for.
    fn cancel(&mut self, losers: Attempts) {
        let now = self.shared.now();
        for number in losers.iter() {
            let attempt = &mut self.attempts[usize::from(number) - 1];
            let was = mem::replace(&mut attempt.state, State::Ended(None));
            let was_sent = matches!(was, State::Running(_));
            drop(was);
            if !was_sent {
                self.shared.budget.give_back();
            }
            let ended = if was_sent { Ended::Cancelled } else { Ended::Dropped };
            self.note(&self.attempts[usize::from(number) - 1], ended, now);
        }
    }
}

impl<S, C, Request> HedgeFuture<S, C, Request>
where
    S: Service<Request>,
    Request: Clone,
    C: Classify<Request, S::Response, S::Error>,
{
    /// Goes on with the attempts that are open, until one decides the race.
    fn poll_attempts(&mut self, context: &mut Context<'_>) {
        for index in 0..self.attempts.len() {
            let Poll::Ready(result) = self.attempts[index].poll(context) else { continue };
            let outcome = self.classify.outcome(&result);
            self.attempts[index].state = State::Ended(Some(result));
            self.race.handle_end(index as u8 + 1, outcome);
            let ended = match outcome {
                Outcome::Success => Ended::Won,
                Outcome::Fatal | Outcome::NonFatal => Ended::Failed,
                Outcome::Dropped => Ended::Dropped,
            };
            self.note(&self.attempts[index], ended, self.shared.now());
            if matches!(outcome, Outcome::Success | Outcome::Fatal) {
                return;
            }
        }
    }

    fn send(&mut self, kind: Kind, now: Time) {
        let (spares, request) = self.spare.as_mut().expect("an attempt is only admitted with a spare");
        let (replica, service) = spares.pop().expect("an attempt is only admitted with a spare");
        let state = State::Waiting(Box::new((service, request.clone())));
        self.attempts.push(Attempt { replica, kind, sent_at: now, state });
    }

    fn decide(&mut self, now: Time) -> Action {
        let has_spare = self.spare.as_ref().is_some_and(|(spares, _)| !spares.is_empty());
        let shared = &self.shared;
        self.race.poll(now, |kind| {
            let is_sent = has_spare && shared.budget.try_take();
            if has_spare {
                shared.hedger().note_extra(kind, is_sent);
            }
            is_sent
        })
    }

    /// Whether it is time to look again.
    fn poll_sleep(&mut self, until: Time, context: &mut Context<'_>) -> Poll<()> {
        let at = self.shared.instant(until);
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(context)
    }
}

impl<S: Service<Request>, Request> Attempt<S, Request> {
    /// Ready once, when it ends.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<S::Response, S::Error>> {
        if let State::Waiting(waiting) = &mut self.state {
            if let Err(error) = ready!(waiting.0.poll_ready(context)) {
                return Poll::Ready(Err(error));
            }
            let State::Waiting(waiting) = mem::replace(&mut self.state, State::Ended(None)) else {
                unreachable!("it was waiting just now")
            };
            let (mut service, request) = *waiting;
            self.state = State::Running(Box::pin(service.call(request)));
        }
        match &mut self.state {
            State::Running(future) => future.as_mut().poll(context),
            State::Waiting(_) | State::Ended(_) => Poll::Pending,
        }
    }
}

impl<S, C, Request> Future for HedgeFuture<S, C, Request>
where
    S: Service<Request>,
    Request: Clone,
    C: Classify<Request, S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            this.poll_attempts(context);
            let now = this.shared.now();
            match this.decide(now) {
                Action::Send { kind, .. } => this.send(kind, now),
                Action::Wait { until: None } => return Poll::Pending,
                Action::Wait { until: Some(until) } => ready!(this.poll_sleep(until, context)),
                Action::Finish { number, losers, .. } => {
                    this.cancel(losers);
                    let attempt = &mut this.attempts[usize::from(number) - 1];
                    let State::Ended(result) = &mut attempt.state else { unreachable!("a race ends by an end") };
                    return Poll::Ready(result.take().expect("a future is not polled after it was ready"));
                }
            }
        }
    }
}

impl<S: Service<Request>, C, Request> Drop for HedgeFuture<S, C, Request> {
    /// What is open when the caller gives up was waited for until now.
    fn drop(&mut self) {
        let is_open = |attempt: &Attempt<S, Request>| !matches!(attempt.state, State::Ended(_));
        if self.attempts.iter().any(is_open) {
            self.cancel(self.race.open());
        }
    }
}
