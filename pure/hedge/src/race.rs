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
//! while another attempt is open; however late a poll is, it sends one hedge and not all that were missed; a client that was
//! held up itself puts each attempt off once, by half of what the last one was waited for at most, and no fallback.

use crate::policy::Plan;
use crate::time::Time;
use core::time::Duration;

/// Most attempts of one race.
pub const ATTEMPTS_MAX: u8 = 16;

/// A client that does something so much later than it was due was held up itself. Timers alone may ring a millisecond late.
pub const LATE_MIN: Duration = Duration::from_millis(2);
/// What a client that was held up needs at least to read the replies that have come meanwhile.
const READING_MIN: Duration = Duration::from_millis(1);
/// The longest time by which a client that was held up puts a hedge off. Reading takes no longer.
pub const PUT_OFF_MAX: Duration = Duration::from_millis(20);

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
    /// Without having been run, because another attempt runs or because the server drops extra ones. Nothing follows while
    /// another attempt is open. If all are gone and none ran, one more is sent in their place.
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

    /// Bit 0 is attempt 1.
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
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
    /// When the last one was sent.
    sent_at: Time,
    /// What is due next was put off.
    is_put_off: bool,
    /// Of those sent, how many count for [`Plan::max_executions`].
    executions: u8,
    /// How many more hedges may fall due: a chance that is not admitted is gone, and the request waits for what is open.
    chances: u8,
    open: Attempts,
    /// When the next hedge is due; `None` = none is.
    hedge_at: Option<Time>,
    /// How many hedges fell due: so many gaps of the plan are over.
    gaps_over: u8,
    is_tie_due: bool,
    /// Two tied copies were sent, and neither was dropped.
    is_tied: bool,
    fallback_at: Option<Time>,
    /// A failure asks for another attempt at once.
    is_retry_due: bool,
    /// An attempt that was not admitted for want of a token, and from when on it has one.
    owed: Option<(Kind, Time)>,
    /// All attempts were dropped once, and one was sent in their place.
    is_replaced: bool,
    /// The end that counts so far.
    last: Option<(u8, Outcome)>,
    is_finished: bool,
}

impl Race {
    /// A request that starts at `start`.
    pub fn new(plan: Plan, start: Time) -> Self {
        let may_hedge = plan.max_executions > 1;
        let plan = Plan { delay: plan.delay.filter(|delay| !delay.is_zero()), ..plan };
        let is_tie_due = plan.tie.is_some() && may_hedge;
        let first = if is_tie_due { plan.tie } else { plan.delay };
        Self {
            plan,
            start,
            sent: 0,
            sent_at: start,
            is_put_off: false,
            executions: 0,
            chances: plan.max_executions.saturating_sub(1),
            open: Attempts::default(),
            hedge_at: first.filter(|_| may_hedge).map(|delay| start + delay),
            gaps_over: 0,
            is_tie_due,
            is_tied: false,
            fallback_at: plan.fallback.map(|delay| start + delay),
            is_retry_due: false,
            owed: None,
            is_replaced: false,
            last: None,
            is_finished: false,
        }
    }

    /// What is to be done at `now`. `admit` is asked for each extra attempt whether it may be sent: whether there is a
    /// replica to send it to that was not asked yet, and a token in the budget. One that is not admitted is not asked for
    /// again, but for [`Race::handle_token`]. After [`Action::Finish`] the same is given again, without losers that have ended since.
    pub fn poll(&mut self, now: Time, mut admit: impl FnMut(Kind) -> bool) -> Action {
        if self.sent == 0 {
            return self.send(Kind::First, now);
        }
        if self.is_decided() {
            return self.finish();
        }
        if let Some(kind) = self.due(now, &mut admit) {
            return self.send(kind, now);
        }
        if !self.open.is_empty() {
            return Action::Wait { until: self.next_at() };
        }
        match self.replacement(&mut admit) {
            Some(kind) => self.send(kind, now),
            None => self.finish(),
        }
    }

    /// What is sent at `now`.
    fn due(&mut self, now: Time, admit: &mut impl FnMut(Kind) -> bool) -> Option<Kind> {
        if core::mem::take(&mut self.is_retry_due) && self.may_execute() && admit(Kind::Retry) {
            return Some(Kind::Retry);
        }
        if let Some((kind, _)) = self.owed.take_if(|(_, at)| *at <= now)
            && (self.may_execute() || (kind == Kind::Fallback && self.sent < ATTEMPTS_MAX))
            && admit(kind)
        {
            // The next one is not to follow at once: its gap, which began when this one was due, begins again.
            self.hedge_at = self.hedge_at.map(|at| at.max(now + self.plan.gap(self.gaps_over.saturating_sub(1))));
            return Some(kind);
        }
        if self.may_hedge() && self.hedge_at.is_some_and(|at| at <= now) {
            let kind = if core::mem::take(&mut self.is_tie_due) { Kind::Tie } else { Kind::Hedge };
            self.schedule_hedge(now, kind);
            let is_admitted = admit(kind);
            // Without a tie there is still the policy's own delay.
            self.chances -= u8::from(is_admitted || kind == Kind::Hedge);
            if is_admitted {
                return Some(kind);
            }
        }
        if self.sent < ATTEMPTS_MAX && self.fallback_at.is_some_and(|at| at <= now) {
            self.fallback_at = None;
            if admit(Kind::Fallback) {
                return Some(Kind::Fallback);
            }
        }
        None
    }

    /// What is sent because nothing is open any more, and nobody has answered.
    fn replacement(&mut self, admit: &mut impl FnMut(Kind) -> bool) -> Option<Kind> {
        if self.sent == ATTEMPTS_MAX {
            return None;
        }
        // Dropped attempts have not run, so they take no place of one that may.
        let is_dropped = matches!(self.last, Some((_, Outcome::Dropped)));
        let may_replace = is_dropped && self.plan.max_executions > 1;
        if may_replace && !core::mem::replace(&mut self.is_replaced, true) && admit(Kind::Retry) {
            return Some(Kind::Retry);
        }
        // What asks for less need not wait for what can no longer come.
        let has_fallback = self.fallback_at.take().is_some();
        (has_fallback && admit(Kind::Fallback)).then_some(Kind::Fallback)
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
            Outcome::Dropped => {
                // Of two tied copies one is meant to be dropped. The policy's own attempt stays due, should the other's
                // server fail after it had begun.
                if core::mem::take(&mut self.is_tied) {
                    self.executions -= 1;
                    self.chances += 1;
                }
                // An error that is known says more than a note.
                self.last.get_or_insert((number, outcome));
            }
        }
        true
    }

    /// There is a token from `now` on for an attempt of `kind` that was due and not admitted for want of one. The next poll asks for it
    /// again, if the race is still open and the plan still allows it.
    pub fn handle_token(&mut self, kind: Kind, now: Time) {
        self.owed = Some((kind, now));
    }

    /// Whether the attempt that [`Race::handle_token`] told of is still to be asked for: its token is to be kept until then.
    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// To be called before a poll at `now` by a client that may have been held up itself, for `held` in all since the last attempt was
    /// sent. Then a hedge that is due says little about its server, whose reply may lie unread in the client's socket: it
    /// is put off by the time that the client was held up, until the replies are read at least. `has_heard` says whether the server of each
    /// open attempt has answered anything since that was sent. Where one has not, its replies are the ones that may be unread, or it stands
    /// still: then it is half of the time that the last attempt was waited for. It is never more than that, nor than [`PUT_OFF_MAX`], and
    /// once for each attempt. A fallback keeps its time, which the caller was promised. Returns whether something was put off.
    pub fn handle_late(&mut self, now: Time, held: Duration, has_heard: impl FnOnce() -> bool) -> bool {
        let hedge = self.hedge_at.filter(|_| self.may_hedge());
        let owed = self.owed.filter(|(kind, _)| *kind != Kind::Fallback).map(|(_, at)| at);
        let due = [hedge, owed].into_iter().flatten().filter(|due| *due <= now).min();
        let Some(due) = due.filter(|_| !self.is_put_off && !self.is_decided()) else { return false };
        let late = now.since(due).max(held);
        if late < LATE_MIN {
            return false;
        }
        let longest = (due.since(self.sent_at) / 2).min(PUT_OFF_MAX);
        let shortest = if has_heard() { READING_MIN.min(longest) } else { longest };
        let until = (due + late).max(now + shortest).min(now + longest);
        let put_off = |at: Time| if at <= now { until } else { at };
        self.is_put_off = true;
        self.hedge_at = self.hedge_at.map(put_off);
        self.owed = self.owed.map(|(kind, at)| (kind, if kind == Kind::Fallback { at } else { put_off(at) }));
        until > now
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

    /// When [`Race::poll`] is due at the latest, failures aside; `None` = nothing more will be sent unless an attempt fails.
    pub fn next_at(&self) -> Option<Time> {
        let hedge = self.hedge_at.filter(|_| self.may_hedge());
        let fallback = self.fallback_at.filter(|_| self.sent < ATTEMPTS_MAX);
        [hedge, fallback, self.owed.map(|(_, at)| at)].into_iter().flatten().min()
    }

    fn is_decided(&self) -> bool {
        self.is_finished || matches!(self.last, Some((_, Outcome::Success | Outcome::Fatal)))
    }

    fn may_execute(&self) -> bool {
        self.executions < self.plan.max_executions && self.sent < ATTEMPTS_MAX
    }

    fn may_hedge(&self) -> bool {
        self.chances > 0 && self.may_execute()
    }

    /// The attempt of `kind` that was due is dealt with at `now`: when is the next one due? After a tie it is the policy's
    /// own delay that counts, from the start. After a hedge the gap counts from now, so that a late poll does not make up
    /// for what it missed.
    fn schedule_hedge(&mut self, now: Time, kind: Kind) {
        let delay = self.plan.delay.map(|delay| self.start + delay);
        self.is_put_off = false;
        self.hedge_at = match kind {
            Kind::Tie if delay.is_some_and(|at| at > now) => delay,
            _ => {
                let gap = self.plan.gap(self.gaps_over);
                self.gaps_over = self.gaps_over.saturating_add(1);
                (delay.is_some() && !gap.is_zero()).then(|| now + gap)
            }
        };
    }

    fn send(&mut self, kind: Kind, now: Time) -> Action {
        self.sent += 1;
        (self.sent_at, self.is_put_off) = (now, false);
        if kind != Kind::Fallback {
            self.executions += 1;
        }
        self.is_tied |= kind == Kind::Tie;
        self.open.insert(self.sent);
        Action::Send { number: self.sent, kind }
    }

    /// The end of the last attempt that counted, or of the first if none did.
    fn finish(&mut self) -> Action {
        self.is_finished = true;
        let (number, outcome) = self.last.unwrap_or((1, Outcome::Dropped));
        Action::Finish { number, is_success: outcome == Outcome::Success, losers: self.open }
    }
}
