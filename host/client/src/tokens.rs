//! The tokens of a budget: each is spent on one extra attempt or goes back, and requests wait for the next one. Of those who wait the
//! youngest has it.

use crate::lock::lock;
use hedgerow_hedge::{Budget, BudgetOptions, Ticket, Time, TokenQueue};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Waker};

/// A budget, and who waits for its tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    budget: Budget,
    queue: Mutex<TokenQueue<Waker>>,
    /// Whether anybody waits, so that nobody takes the lock as long as nobody does.
    is_waited_for: AtomicBool,
}

impl Tokens {
    pub(crate) fn new(options: BudgetOptions) -> Self {
        Self { budget: Budget::new(options), queue: Mutex::default(), is_waited_for: AtomicBool::new(false) }
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether there may ever be one.
    pub(crate) fn may_come(&self) -> bool {
        self.budget.burst() >= 1.0
    }

    /// A first attempt is sent.
    pub(crate) fn note_first(&self, now: Time) {
        self.budget.note_first(now);
        self.hand_out();
    }

    /// `None` if there is none.
    pub(crate) fn take(&self) -> Option<Token<'_>> {
        // Made only where there is one: it gives a token back when it is dropped.
        self.budget.try_take().then(|| Token { tokens: self, is_late: false })
    }

    /// A place among those who wait for one; `None` if none ever comes.
    pub(crate) fn wait(&self) -> Option<Place<'_>> {
        if !self.may_come() {
            return None;
        }
        let place = Place { tokens: self, ticket: lock(&self.queue).join() };
        self.is_waited_for.store(true, Ordering::Relaxed);
        // A token may have come before anybody could see that it is waited for.
        self.hand_out();
        Some(place)
    }

    pub(crate) fn give_back(&self) {
        self.budget.give_back();
        self.hand_out();
    }

    /// Gives those who wait the tokens that there are.
    fn hand_out(&self) {
        // Whoever has just begun to wait sees the token that has just come, or is seen here.
        fence(Ordering::SeqCst);
        if !self.is_waited_for.load(Ordering::Relaxed) {
            return;
        }
        let mut wakers = Vec::new();
        let mut queue = lock(&self.queue);
        queue.serve(&self.budget, |waker| wakers.push(waker));
        self.is_waited_for.store(queue.is_waited_for(), Ordering::Relaxed);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A token for an extra attempt. It goes back when it is dropped, unless the attempt was sent.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    tokens: &'a Tokens,
    /// Whether it came later than it was wanted.
    is_late: bool,
}

impl Token<'_> {
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// The attempt is sent.
    pub(crate) fn spend(self) {
        std::mem::forget(self);
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.tokens.give_back();
    }
}

/// A request's place among those who wait. Dropped, it is free, and what was granted to it goes to the next.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    tokens: &'a Tokens,
    ticket: Ticket,
}

impl<'a> Place<'a> {
    /// Whether a token may still come here. Where too many wait, the oldest loses its place.
    pub(crate) fn is_kept(&self) -> bool {
        lock(&self.tokens.queue).holds(self.ticket)
    }

    /// The token, once it is there. Otherwise the task of `context` is woken when it comes.
    pub(crate) fn poll_take(&self, context: &Context<'_>) -> Option<Token<'a>> {
        let is_there = lock(&self.tokens.queue).poll_take(self.ticket, context.waker().clone());
        is_there.then(|| Token { tokens: self.tokens, is_late: true })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.tokens.queue).leave(self.ticket, &self.tokens.budget);
        self.tokens.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ratio: f64) -> Tokens {
        Tokens::new(BudgetOptions { ratio, burst: Some(1.0) })
    }

    /// Pitfall H14: whatever becomes of an attempt that was admitted, it costs a token only if it was sent.
    #[test]
    fn h14_a_token_that_is_not_spent_goes_back() {
        let tokens = tokens(0.0);
        drop(tokens.take().expect("there is one"));
        assert_eq!(tokens.budget.tokens(), 1.0);
        tokens.take().expect("it has come back").spend();
        assert!(tokens.take().is_none() && tokens.budget.tokens() == 0.0);
    }

    /// Where too many wait, the oldest has no place any more, and may take another one.
    #[test]
    fn h06_a_place_may_be_lost_to_younger_ones() {
        let tokens = tokens(1.0);
        let context = Context::from_waker(Waker::noop());
        tokens.take().expect("there is one").spend();
        let wait = || tokens.wait().expect("there may be a token");
        let oldest = wait();
        let others: Vec<Place<'_>> = (0..TokenQueue::<Waker>::WAITING_MAX).map(|_| wait()).collect();
        assert!(!oldest.is_kept() && others.iter().all(Place::is_kept));
        let again = wait();
        tokens.note_first(Time(0));
        assert!(again.is_kept() && again.poll_take(&context).is_some() && !again.is_kept());
        assert!(oldest.poll_take(&context).is_none() && !others[0].is_kept());
    }

    /// Pitfall H6: a request that has ended is granted nothing, and what was granted to it before goes to the next.
    #[test]
    fn h06_a_place_that_is_left_keeps_no_token() {
        let tokens = tokens(1.0);
        let context = Context::from_waker(Waker::noop());
        tokens.take().expect("there is one").spend();
        let [second, first, gone] = [(); 3].map(|()| tokens.wait().expect("there is room"));
        assert!(second.poll_take(&context).is_none());
        drop(gone);
        tokens.note_first(Time(0));
        assert!(tokens.take().is_none(), "it is the youngest one's that waits");
        drop(first);
        let token = second.poll_take(&context).expect("the first has passed it on");
        assert!(token.is_late() && second.poll_take(&context).is_none());
        drop(token);
        drop(second);
        assert!(tokens.budget.tokens() == 1.0 && !tokens.is_waited_for.load(Ordering::Relaxed));
        assert!(tokens.take().is_some_and(|token| !token.is_late()));
        assert!(Tokens::new(BudgetOptions { ratio: 1.0, burst: Some(0.0) }).wait().is_none());
    }
}
