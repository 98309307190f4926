//! Requests whose extra attempt was due while the budget was empty: the youngest takes the next token.
//!
//! Each token helps one request, whichever that is, by what it would still have to wait. The oldest are about to be answered, or to
//! end; were they served first, nobody would be served before that as long as there are too few tokens.
//!
//! ```text
//!   join ──> waiting ── serve: the youngest, for a token ──> granted ── take: the attempt is sent
//!               └── leave, or too many wait and it is the oldest ──> gone    └── leave: the token goes back
//! ```
//!
//! Invariants: at most [`TokenQueue::WAITING_MAX`] wait; every token that was taken out of the budget here is taken by the one
//! that it was granted to, or goes back; who has left is granted nothing.

use crate::budget::Budget;
use alloc::collections::{BTreeMap, BTreeSet};

/// A request's place in a [`TokenQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The queue of one budget. `W` is what wakes a request. Not shared between threads by itself: put it behind a lock.
#[derive(Debug)]
pub struct TokenQueue<W> {
    /// In the order in which they came.
    waiting: BTreeMap<Ticket, Option<W>>,
    /// Who has a token and has not taken it yet.
    granted: BTreeSet<Ticket>,
    joined: u64,
}

impl<W> Default for TokenQueue<W> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), granted: BTreeSet::new(), joined: 0 }
    }
}

impl<W> TokenQueue<W> {
    /// How many may wait. Where so many do, the budget is empty for long, and the oldest would be granted nothing in their time.
    pub const WAITING_MAX: usize = 1_024;

    /// A request waits from now on, before those that do already; where too many do, the oldest makes room and is granted nothing any
    /// more, but for another ticket ([`TokenQueue::holds`]). It is to leave when it ends.
    pub fn join(&mut self) -> Ticket {
        if self.waiting.len() >= Self::WAITING_MAX {
            self.waiting.pop_first();
        }
        let ticket = Ticket(self.joined);
        self.joined += 1;
        self.waiting.insert(ticket, None);
        ticket
    }

    /// Grants the tokens that `budget` has, the youngest first, and tells whom to wake. To be called when a token may have come,
    /// and after [`TokenQueue::join`].
    pub fn serve(&mut self, budget: &Budget, mut wake: impl FnMut(W)) {
        while !self.waiting.is_empty() && budget.try_take() {
            let Some((ticket, waker)) = self.waiting.pop_last() else { return };
            self.granted.insert(ticket);
            waker.into_iter().for_each(&mut wake);
        }
    }

    /// Takes the token that was granted; false if none was yet, and then `waker` is told when one is, unless it no longer waits.
    pub fn poll_take(&mut self, ticket: Ticket, waker: W) -> bool {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
            *waiting = Some(waker);
        }
        self.granted.remove(&ticket)
    }

    /// Whether the request still waits, or has a token that it has not taken. Otherwise it has to join again for another one.
    pub fn holds(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket) || self.granted.contains(&ticket)
    }

    /// The request has ended, or needs no token any more. One that was granted and not taken goes back: others are to be served.
    pub fn leave(&mut self, ticket: Ticket, budget: &Budget) {
        self.waiting.remove(&ticket);
        if self.granted.remove(&ticket) {
            budget.give_back();
        }
    }

    /// Whether somebody waits for a token.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }
}
