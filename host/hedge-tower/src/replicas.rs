//! The replicas behind a service: where a request begins, and which of them is ready.
//!
//! ```text
//! Replicas     shared by all clones of a service and by its requests: the services themselves, never polled
//!    │ clone, when one is asked for the first time
//! Candidates   of one clone of the service, or of one request's extra attempts: asked until the first one is ready
//! ```
//!
//! A clone that is asked may hold a place in somebody's queue from then on. So those that were asked in vain are dropped
//! as soon as another one is ready.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tower::Service;

/// What attempts of one request go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Each to a replica of its own.
    Distinct,
    /// Each to another clone of the one service, which finds the replica.
    Clones,
}

/// The services, which are only cloned here.
#[derive(Debug)]
pub(crate) struct Replicas<S> {
    /// Behind a lock, as a service need not be `Sync`. At least one.
    services: Mutex<Vec<S>>,
    count: usize,
    spread: Spread,
    /// Where the next request begins, modulo `count`.
    cursor: AtomicUsize,
}

impl<S> Replicas<S> {
    /// `services` has at least one.
    pub(crate) fn new(services: Vec<S>, spread: Spread) -> Self {
        let count = services.len();
        Self { services: Mutex::new(services), count, spread, cursor: AtomicUsize::new(0) }
    }

    /// Where a request begins: the next one after that of the last request, whichever clone of the service had that.
    pub(crate) fn next(&self) -> usize {
        self.cursor.fetch_add(1, Ordering::Relaxed) % self.count
    }

    /// Whether a request that begins at one of them can have a second attempt.
    pub(crate) fn has_second(&self) -> bool {
        self.count > 1 || self.spread == Spread::Clones
    }
}

impl<S: Clone> Replicas<S> {
    fn service(&self, index: usize) -> S {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)[index].clone()
    }
}

/// Clones of the replicas that one caller asks for readiness.
#[derive(Debug)]
pub(crate) struct Candidates<S> {
    replicas: Arc<Replicas<S>>,
    states: Vec<Candidate<S>>,
}

#[derive(Debug)]
enum Candidate<S> {
    /// There is no clone of it.
    Unasked,
    /// There is one. If it was not ready when it was asked last, it wakes the caller.
    Asked { service: S, is_waiting: bool },
    /// It is not asked: it has failed, or has an attempt of this request.
    Out,
}

impl<S> Candidates<S> {
    pub(crate) fn all(replicas: Arc<Replicas<S>>) -> Self {
        let states = (0..replicas.count).map(|_| Candidate::Unasked).collect();
        Self { replicas, states }
    }

    /// For further attempts of a request whose first one went to `first`.
    pub(crate) fn beside(replicas: Arc<Replicas<S>>, first: usize) -> Self {
        let mut candidates = Self::all(replicas);
        candidates.note_attempt(first);
        candidates
    }

    /// Whether there is one left to ask.
    pub(crate) fn has_any(&self) -> bool {
        self.states.iter().any(|state| !matches!(state, Candidate::Out))
    }

    /// An attempt of this request went to the one at `index`.
    pub(crate) fn note_attempt(&mut self, index: usize) {
        self.states[index] = match self.replicas.spread {
            Spread::Distinct => Candidate::Out,
            Spread::Clones => Candidate::Unasked,
        };
    }

    /// Keeps a clone that was called, for the next request.
    pub(crate) fn put_back(&mut self, index: usize, service: S) {
        self.states[index] = Candidate::Asked { service, is_waiting: false };
    }

    /// Drops the clones that were not ready, and with them their places in queues.
    fn drop_waiting(&mut self) {
        for state in &mut self.states {
            if matches!(state, Candidate::Asked { is_waiting: true, .. }) {
                *state = Candidate::Unasked;
            }
        }
    }
}

impl<S: Clone> Candidates<S> {
    /// The first one that is ready, in their order from `start`. One that fails is left out from then on. Fails with the
    /// last one's error when none is left. While it is pending, each of those that are left wakes the caller.
    pub(crate) fn poll_ready<Request>(
        &mut self,
        start: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, S::Error>>
    where
        S: Service<Request>,
    {
        let count = self.states.len();
        let mut failure = None;
        for index in (start..count).chain(0..start) {
            let state = &mut self.states[index];
            if matches!(state, Candidate::Unasked) {
                *state = Candidate::Asked { service: self.replicas.service(index), is_waiting: false };
            }
            let Candidate::Asked { service, is_waiting } = state else { continue };
            match service.poll_ready(context) {
                Poll::Ready(Ok(())) => {
                    *is_waiting = false;
                    self.drop_waiting();
                    return Poll::Ready(Ok(index));
                }
                Poll::Ready(Err(error)) => {
                    *state = Candidate::Out;
                    failure = Some(error);
                }
                Poll::Pending => *is_waiting = true,
            }
        }
        match failure {
            Some(error) if !self.has_any() => Poll::Ready(Err(error)),
            Some(_) | None => Poll::Pending,
        }
    }

    /// The one at `index`, to be called: the very clone that was ready, if it was asked.
    pub(crate) fn take(&mut self, index: usize) -> S {
        match mem::replace(&mut self.states[index], Candidate::Unasked) {
            Candidate::Asked { service, .. } => service,
            Candidate::Unasked | Candidate::Out => self.replicas.service(index),
        }
    }
}
