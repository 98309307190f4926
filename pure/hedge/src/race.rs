//! One request and its attempts.
//!
//! ```text
//!            poll: Send 1                 poll: Send 2 (delay, tie, fallback, or at once after a failure that says
//!   new ──────────────────> racing ─────> nothing about other replicas)
//!                             │ handle_end(attempt, outcome)
//!                             ▼
//!                poll: Finish { attempt, losers }     the first success; or the last failure, when nothing is open and
//!                                                     nothing more may be sent; or a failure that is final
//! ```
//!
//! Invariants: attempts are numbered from 1 without gaps; at most [`ATTEMPTS_MAX`] are sent; every extra one was admitted
//! (that is where the budget is asked); after `Finish` nothing is sent; a note about a dropped attempt never ends the race
//! while another attempt is open.

use crate::policy::Plan;
use crate::time::Time;
use core::time::Duration;

/// Most attempts of one race.
pub const ATTEMPTS_MAX: u8 = 16;

/// Why an attempt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It is the first one.
    First,
    /// The others are slow.
    Hedge,
    /// It is tied to the first one.
    Tie,
    /// One failed in a way that says nothing about other replicas.
    Retry,
    /// The others are slow, and this one asks for less.
    Fallback,
}

impl Kind {
    /// How many kinds there are.
    pub const COUNT: usize = 5;

    /// A number below [`Kind::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How an attempt ended, as far as it concerns the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the answer.
    Success,
    /// With an error that every attempt would end with.
    Fatal,
    /// With an error that says nothing about other replicas: the next one is asked at once.
    NonFatal,
    /// Without having been run, because another attempt runs or because the server drops extra ones. Nothing follows.
    Dropped,
}

/// Some attempts of a race.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts(u16);

impl Attempts {
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether attempt `number` is one of them.
    pub const fn contains(self, number: u8) -> bool {
        number >= 1 && number <= ATTEMPTS_MAX && self.0 & (1 << (number - 1)) != 0
    }

    /// Their numbers, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (1..=ATTEMPTS_MAX).filter(move |number| self.contains(*number))
    }

    fn insert(&mut self, number: u8) {
        self.0 |= 1 << (number - 1);
    }

    /// Whether it was there.
    fn remove(&mut self, number: u8) -> bool {
        let was_there = self.contains(number);
        if was_there {
            self.0 &= !(1 << (number - 1));
        }
        was_there
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send attempt `number`, and poll again.
    Send {
        /// Its number, from 1.
        number: u8,
        /// Why.
        kind: Kind,
    },
    /// Wait for [`Race::handle_end`], and poll again at `until` at the latest.
    Wait {
        /// `None` = nothing more will be sent unless an attempt fails.
        until: Option<Time>,
    },
    /// The request has ended as attempt `number` has.
    Finish {
        /// Whose end counts.
        number: u8,
        /// Whether that was a success.
        is_success: bool,
        /// Attempts without an end: to be cancelled.
        losers: Attempts,
    },
}

/// One request.
#[derive(Clone, Debug)]
pub struct Race {
    plan: Plan,
    start: Time,
    sent: u8,
    /// Of those sent, how many count for [`Plan::max_executions`].
    executions: u8,
    open: Attempts,
    /// When the next hedge is due; `None` = none is.
    hedge_at: Option<Time>,
    /// The gap that follows the next hedge.
    gap: Duration,
    is_tie_due: bool,
    fallback_at: Option<Time>,
    /// A failure asks for another attempt at once.
    is_retry_due: bool,
    /// The end that counts so far.
    last: Option<(u8, Outcome)>,
}

impl Race {
    /// A request that starts at `start`.
    pub fn new(plan: Plan, start: Time) -> Self {
        let may_hedge = plan.max_executions > 1;
        let is_tie_due = plan.tie.is_some() && may_hedge;
        let first = if is_tie_due { plan.tie } else { plan.delay };
        Self {
            plan,
            start,
            sent: 0,
            executions: 0,
            open: Attempts::default(),
            hedge_at: first.filter(|_| may_hedge).map(|delay| start + delay),
            gap: plan.gap,
            is_tie_due,
            fallback_at: plan.fallback.map(|delay| start + delay),
            is_retry_due: false,
            last: None,
        }
    }

    /// What is to be done at `now`. `admit` is asked for each extra attempt whether it may be sent: whether there is a
    /// replica to send it to that was not asked yet, and a token in the budget. One that is not admitted is not asked for
    /// again.
    pub fn poll(&mut self, now: Time, mut admit: impl FnMut(Kind) -> bool) -> Action {
        if self.sent == 0 {
            return self.send(Kind::First);
        }
        if let Some((number, outcome)) = self.last {
            let is_final = matches!(outcome, Outcome::Success | Outcome::Fatal);
            if is_final {
                return self.finish(number, outcome);
            }
        }
        if core::mem::take(&mut self.is_retry_due) && self.may_execute() && admit(Kind::Retry) {
            return self.send(Kind::Retry);
        }
        while let Some(at) = self.hedge_at.filter(|at| *at <= now) {
            let kind = if core::mem::take(&mut self.is_tie_due) { Kind::Tie } else { Kind::Hedge };
            self.schedule_hedge(at, kind);
            if self.may_execute() && admit(kind) {
                return self.send(kind);
            }
        }
        if self.fallback_at.is_some_and(|at| at <= now) {
            self.fallback_at = None;
            if self.sent < ATTEMPTS_MAX && admit(Kind::Fallback) {
                return self.send(Kind::Fallback);
            }
        }
        match self.last {
            Some((number, outcome)) if self.open.is_empty() => self.finish(number, outcome),
            _ => Action::Wait { until: self.next_at() },
        }
    }

    /// Attempt `number` has ended. What was told before, or was never sent, is passed over; returns whether it counted.
    pub fn handle_end(&mut self, number: u8, outcome: Outcome) -> bool {
        if !self.open.remove(number) || self.is_decided() {
            return false;
        }
        match outcome {
            Outcome::Success | Outcome::Fatal => self.last = Some((number, outcome)),
            Outcome::NonFatal => {
                self.last = Some((number, outcome));
                self.is_retry_due = true;
            }
            // An error that is known says more than a note.
            Outcome::Dropped => {
                self.last.get_or_insert((number, outcome));
            }
        }
        true
    }

    /// Attempts without an end.
    pub fn open(&self) -> Attempts {
        self.open
    }

    /// How many were sent.
    pub fn sent(&self) -> u8 {
        self.sent
    }

    /// When the request started.
    pub fn start(&self) -> Time {
        self.start
    }

    fn is_decided(&self) -> bool {
        matches!(self.last, Some((_, Outcome::Success | Outcome::Fatal)))
    }

    fn may_execute(&self) -> bool {
        self.executions < self.plan.max_executions && self.sent < ATTEMPTS_MAX
    }

    fn next_at(&self) -> Option<Time> {
        let hedge = self.hedge_at.filter(|_| self.may_execute());
        match (hedge, self.fallback_at) {
            (Some(hedge), Some(fallback)) => Some(hedge.min(fallback)),
            (hedge, fallback) => hedge.or(fallback),
        }
    }

    /// The attempt of `kind` that was due at `at` is dealt with: when is the next one due? After a tie it is the policy's
    /// own delay that counts, from the start.
    fn schedule_hedge(&mut self, at: Time, kind: Kind) {
        self.hedge_at = match (kind, self.plan.delay) {
            (Kind::Tie, delay) => delay.map(|delay| self.start + delay),
            (_, Some(_)) if !self.gap.is_zero() => {
                let next = at + self.gap;
                self.gap += self.plan.step;
                Some(next)
            }
            _ => None,
        };
    }

    fn send(&mut self, kind: Kind) -> Action {
        self.sent += 1;
        if kind != Kind::Fallback {
            self.executions += 1;
        }
        self.open.insert(self.sent);
        Action::Send { number: self.sent, kind }
    }

    fn finish(&self, number: u8, outcome: Outcome) -> Action {
        Action::Finish { number, is_success: outcome == Outcome::Success, losers: self.open }
    }
}
