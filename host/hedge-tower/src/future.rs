//! One request: its attempts run inside one future, which does what its race says.
//!
//! ```text
//!   Running ── reply ──────────────────────────────> Ended       the first attempt: its replica was ready
//!   Waiting ── a replica is ready: sent ──> Running ──> Ended    an extra one: it holds a token until it is sent
//!      └────── all that are left fail, or nothing runs ─> Ended  it was dropped unrun
//! ```

use crate::classify::Classify;
use crate::replicas::{Candidates, Replicas};
use crate::shared::{Shared, Token};
use hedgerow_hedge::{Action, AttemptEnd, Class, Ended, Kind, Outcome, Race, Time};
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
    /// `None` for a request that may not be hedged: its latency is not noted.
    class: Option<Class>,
    race: Race,
    /// Attempt 1 first. At most one is waiting.
    attempts: Vec<Attempt<S, Request>>,
    extra: Option<Extra<S, Request>>,
    sleep: Option<Pin<Box<Sleep>>>,
}

struct Attempt<S: Service<Request>, Request> {
    /// `None` until it is sent.
    replica: Option<usize>,
    kind: Kind,
    due_at: Time,
    state: State<S, Request>,
}

enum State<S: Service<Request>, Request> {
    /// No replica was ready yet.
    Waiting(Token),
    Running(Pin<Box<S::Future>>),
    /// The reply is kept until the race is over. `None` if there is none, or it was given out.
    Ended(Option<Result<S::Response, S::Error>>),
}

/// How an attempt ended, and its reply.
type End<S, Request> = (Outcome, Result<<S as Service<Request>>::Response, <S as Service<Request>>::Error>);

/// What further attempts need.
pub(crate) struct Extra<S, Request> {
    replicas: Arc<Replicas<S>>,
    /// Where the first attempt went.
    first: usize,
    /// Made when the first of them is due.
    candidates: Option<Candidates<S>>,
    request: Request,
}

impl<S, Request> Extra<S, Request> {
    /// Of a request whose first attempt goes to `first`, with a copy of it.
    pub(crate) fn new(replicas: Arc<Replicas<S>>, first: usize, request: Request) -> Self {
        Self { replicas, first, candidates: None, request }
    }

    /// Whether there is a replica left to ask.
    fn has_candidate(&self) -> bool {
        self.candidates.as_ref().is_none_or(Candidates::has_any)
    }

    /// The first replica that is ready, in their order from the one behind the first attempt's.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, S::Error>>
    where
        S: Service<Request> + Clone,
    {
        let first = self.first;
        let candidates = self.candidates.get_or_insert_with(|| Candidates::beside(Arc::clone(&self.replicas), first));
        candidates.poll_ready(first, context)
    }
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
        class: Option<Class>,
        race: Race,
        extra: Option<Extra<S, Request>>,
    ) -> Self {
        Self { shared, classify, class, race, attempts: Vec::with_capacity(1), extra, sleep: None }
    }

    /// The first attempt is called already: it uses the readiness that was asked for.
    pub(crate) fn with_first(mut self, replica: usize, running: S::Future) -> Self {
        let due_at = self.race.start();
        let action = self.race.poll(due_at, |_| false);
        debug_assert_eq!(action, Action::Send { number: 1, kind: Kind::First });
        let state = State::Running(Box::pin(running));
        self.attempts.push(Attempt { replica: Some(replica), kind: Kind::First, due_at, state });
        self
    }

    fn note(&self, attempt: &Attempt<S, Request>, ended: Ended, now: Time) {
        let Some(class) = self.class else { return };
        let took = now.since(attempt.due_at);
        // What was not sent counts as dropped, and that at no replica.
        let (replica, kind) = (attempt.replica.unwrap_or_default() as u64, attempt.kind);
        self.shared.hedger().note_attempt(AttemptEnd { class, replica, kind, ended, took }, now);
    }

    /// Gives up what is open: drops it, and notes how long it was waited for.
    fn cancel_open(&mut self) {
        self.extra = None;
        for index in 0..self.attempts.len() {
            let ended = match mem::replace(&mut self.attempts[index].state, State::Ended(None)) {
                State::Waiting(_) => Ended::Dropped,
                State::Running(_) => Ended::Cancelled,
                was @ State::Ended(_) => {
                    self.attempts[index].state = was;
                    continue;
                }
            };
            self.note(&self.attempts[index], ended, self.shared.now());
        }
    }
}

impl<S, C, Request> HedgeFuture<S, C, Request>
where
    S: Service<Request> + Clone,
    C: Classify<Request, S::Response, S::Error>,
{
    /// Goes on with the attempts that are open, until one decides the race.
    fn poll_attempts(&mut self, context: &mut Context<'_>) {
        for index in 0..self.attempts.len() {
            let Poll::Ready((outcome, result)) = self.poll_attempt(index, context) else { continue };
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
        self.end_waiting_alone();
    }

    /// An attempt waits for a replica while another one runs. A request never waits for that alone: it then ends as the
    /// attempts did that ran, although a replica that is not ready now might have answered.
    fn end_waiting_alone(&mut self) {
        if self.attempts.iter().any(|attempt| matches!(attempt.state, State::Running(_))) {
            return;
        }
        let is_waiting = |attempt: &Attempt<S, Request>| matches!(attempt.state, State::Waiting(_));
        let Some(index) = self.attempts.iter().position(is_waiting) else { return };
        self.attempts[index].state = State::Ended(None);
        self.race.handle_end(index as u8 + 1, Outcome::Dropped);
        self.note(&self.attempts[index], Ended::Dropped, self.shared.now());
    }

    /// Ready once, when it ends. That no replica is left for an attempt ends only that attempt.
    fn poll_attempt(&mut self, index: usize, context: &mut Context<'_>) -> Poll<End<S, Request>> {
        if matches!(self.attempts[index].state, State::Waiting(_)) {
            let Some(extra) = &mut self.extra else { return Poll::Pending };
            match ready!(extra.poll_ready(context)) {
                Ok(replica) => self.send(index, replica),
                Err(error) => return Poll::Ready((Outcome::Dropped, Err(error))),
            }
        }
        let State::Running(future) = &mut self.attempts[index].state else { return Poll::Pending };
        let result = ready!(future.as_mut().poll(context));
        Poll::Ready((self.classify.outcome(&result), result))
    }

    /// Calls the replica, which is ready, for the attempt that waits.
    fn send(&mut self, index: usize, replica: usize) {
        let Some(Extra { replicas, first, candidates: Some(mut candidates), request }) = self.extra.take() else {
            return;
        };
        let mut service = candidates.take(replica);
        candidates.note_attempt(replica);
        // Without another copy this attempt is the last one.
        let copy = self.classify.clone_request(&request);
        self.extra = copy.map(|request| Extra { replicas, first, candidates: Some(candidates), request });

        let attempt = &mut self.attempts[index];
        if let State::Waiting(token) = mem::replace(&mut attempt.state, State::Ended(None)) {
            token.spend();
        }
        attempt.replica = Some(replica);
        self.shared.hedger().note_extra(attempt.kind, true);
        attempt.state = State::Running(Box::pin(service.call(request)));
    }

    /// What the race wants now, and the token of the attempt that it wants to be sent. While one attempt waits for a
    /// replica, there is none for another.
    fn decide(&mut self, now: Time) -> (Action, Option<Token>) {
        let is_waiting = |attempt: &Attempt<S, Request>| matches!(attempt.state, State::Waiting(_));
        let has_candidate = self.extra.as_ref().is_some_and(Extra::has_candidate);
        let may_send = has_candidate && !self.attempts.iter().any(is_waiting);
        let shared = &self.shared;
        let mut token = None;
        let action = self.race.poll(now, |kind| {
            if may_send {
                token = Token::take(&shared.budget);
                if token.is_none() {
                    shared.hedger().note_extra(kind, false);
                }
            }
            token.is_some()
        });
        (action, token)
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

impl<S, C, Request> Future for HedgeFuture<S, C, Request>
where
    S: Service<Request> + Clone,
    C: Classify<Request, S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            this.poll_attempts(context);
            let now = this.shared.now();
            match this.decide(now) {
                (Action::Send { kind, .. }, token) => {
                    let state = State::Waiting(token.expect("an extra attempt is admitted by its token"));
                    this.attempts.push(Attempt { replica: None, kind, due_at: now, state });
                }
                (Action::Wait { until: None }, _) => return Poll::Pending,
                (Action::Wait { until: Some(until) }, _) => ready!(this.poll_sleep(until, context)),
                (Action::Finish { number, .. }, _) => {
                    this.cancel_open();
                    let State::Ended(result) = &mut this.attempts[usize::from(number) - 1].state else {
                        unreachable!("a race ends by an end")
                    };
                    return Poll::Ready(result.take().expect("a future is not polled after it was ready"));
                }
            }
        }
    }
}

impl<S: Service<Request>, C, Request> Drop for HedgeFuture<S, C, Request> {
    /// What is open when the caller gives up was waited for until now.
    fn drop(&mut self) {
        self.cancel_open();
    }
}
