//! What all requests of a layer share: the hedger, the budget, and the clock that they decide by.

use crate::runtime;
use hedgerow_hedge::{Budget, Hedger, Policy, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// What all requests of a layer share.
#[derive(Debug)]
pub(crate) struct Shared {
    hedger: Mutex<Hedger>,
    pub(crate) budget: Arc<Budget>,
    origin: Instant,
}

impl Shared {
    pub(crate) fn new(policy: Policy, budget: Arc<Budget>) -> Self {
        Self { hedger: Mutex::new(Hedger::new(policy, 0)), budget, origin: runtime::now() }
    }

    /// The hedger does not panic, and its numbers stay usable if a caller's policy did.
    pub(crate) fn hedger(&self) -> MutexGuard<'_, Hedger> {
        self.hedger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        Time(0) + runtime::now().saturating_duration_since(self.origin)
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.origin + time.since(Time(0))
    }
}

/// A token of the budget for an extra attempt. It goes back when it is dropped, unless the attempt was sent.
pub(crate) struct Token {
    budget: Arc<Budget>,
    is_spent: bool,
}

impl Token {
    /// `None` if the budget has none.
    pub(crate) fn take(budget: &Arc<Budget>) -> Option<Self> {
        budget.try_take().then(|| Self { budget: Arc::clone(budget), is_spent: false })
    }

    /// The attempt is sent.
    pub(crate) fn spend(mut self) {
        self.is_spent = true;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !self.is_spent {
            self.budget.give_back();
        }
    }
}
