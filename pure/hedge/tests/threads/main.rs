//! H25: what several threads do to a request and to the budget, in all their orders.
//!
//! The shared words are compiled here once more, from the same files, over the atomics of loom, which runs every order of
//! their operations that the memory model allows (bounded to three preemptions).
#![allow(dead_code, unused_imports, unreachable_pub, reason = "these files are used in parts here")]

extern crate alloc;

#[path = "../../src/budget.rs"]
mod budget;
#[path = "../../src/claim.rs"]
mod claim;
mod race;
mod sync;
#[path = "../../src/time.rs"]
mod time;

use budget::{Budget, BudgetOptions};
use claim::{Claim, Claimed};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::spawn;
use race::Attempts;
use time::Time;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// What a thread has to do about a request.
#[derive(Debug, Default, PartialEq)]
struct Duties {
    sent: Vec<u8>,
    /// How often it answered the caller.
    answered: usize,
    cancelled: Vec<u8>,
    /// Attempts whose end it told.
    ended: Vec<u8>,
}

impl Duties {
    fn cancel(&mut self, losers: Attempts) {
        self.cancelled.extend(losers.iter());
    }

    fn end(&mut self, claim: &Claim, number: u8, is_final: bool) {
        self.ended.push(number);
        match claim.end(number, is_final) {
            Claimed::Won { losers } => {
                self.answered += 1;
                self.cancel(losers);
            }
            Claimed::Idle => self.answered += usize::from(claim.close_if_idle()),
            Claimed::Open | Claimed::Late => {}
        }
    }
}

fn check(all: Vec<Duties>) {
    assert_eq!(all.iter().map(|duties| duties.answered).sum::<usize>(), 1, "one answer: {all:?}");
    let mut sent: Vec<u8> = all.iter().flat_map(|duties| duties.sent.clone()).collect();
    sent.sort_unstable();
    assert_eq!(sent, (1..=sent.len() as u8).collect::<Vec<_>>(), "numbers are given out once: {all:?}");
    let cancelled: Vec<u8> = all.iter().flat_map(|duties| duties.cancelled.clone()).collect();
    for number in sent {
        let cancels = cancelled.iter().filter(|loser| **loser == number).count();
        let ends = all.iter().flat_map(|duties| &duties.ended).filter(|ended| **ended == number).count();
        assert!(cancels <= 1, "{number} is cancelled once: {all:?}");
        assert!(cancels + ends >= 1, "{number} is not forgotten: {all:?}");
    }
}

/// Timer, reply of the first attempt and the caller's giving up, all at once. The second attempt answers at once, or never:
/// then it must be cancelled, or not have been sent.
#[test]
fn h25_timer_commit_and_close() {
    for is_second_answered in [false, true] {
        model(move || timer_commit_and_close(is_second_answered));
    }
}

fn timer_commit_and_close(is_second_answered: bool) {
    let claim = Arc::new(Claim::new(3));
    let first = claim.open().expect("nothing was sent");
    let mut caller = Duties { sent: vec![first], ..Duties::default() };
    let timer = {
        let claim = Arc::clone(&claim);
        spawn(move || {
            let mut duties = Duties::default();
            duties.sent.extend(claim.open());
            if let Some(number) = duties.sent.first().copied().filter(|_| is_second_answered) {
                duties.end(&claim, number, true);
            }
            duties
        })
    };
    let reply = {
        let claim = Arc::clone(&claim);
        spawn(move || {
            let mut duties = Duties::default();
            duties.end(&claim, first, true);
            duties
        })
    };
    if let Some(losers) = claim.close() {
        caller.answered += 1;
        caller.cancel(losers);
    }
    let timer = timer.join().expect("no panic");
    let reply = reply.join().expect("no panic");
    assert!(claim.is_decided() && claim.open().is_none());
    check(vec![caller, timer, reply]);
}

/// Two attempts fail while a timer sends a third: the request fails only if that one is not open.
#[test]
fn h25_the_last_failure_and_the_timer() {
    model(|| {
        let claim = Arc::new(Claim::new(3));
        let sent: Vec<u8> = (0..2).filter_map(|_| claim.open()).collect();
        let failing = sent.clone().into_iter().map(|number| {
            let claim = Arc::clone(&claim);
            spawn(move || {
                let mut duties = Duties::default();
                duties.end(&claim, number, false);
                duties
            })
        });
        let failing: Vec<_> = failing.collect();
        let mut timer = Duties { sent, ..Duties::default() };
        if let Some(number) = claim.open() {
            timer.sent.push(number);
            timer.end(&claim, number, true);
        }
        if timer.sent.len() == 3 {
            assert_eq!(timer.answered, 1, "a request does not fail while an attempt is open");
        }
        let mut all: Vec<Duties> = failing.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        all.push(timer);
        check(all);
    });
}

/// The same attempt's end is told twice at once, as by a reply and a lost connection.
#[test]
fn h25_one_attempt_ends_twice() {
    model(|| {
        let claim = Arc::new(Claim::new(1));
        let number = claim.open().expect("nothing was sent");
        let other = {
            let claim = Arc::clone(&claim);
            spawn(move || claim.end(number, true))
        };
        let own = claim.end(number, false);
        let closed = own == Claimed::Idle && claim.close_if_idle();
        let won = matches!(other.join().expect("no panic"), Claimed::Won { .. });
        assert!(closed != won, "{own:?}");
    });
}

/// One token, and several that want it.
#[test]
fn a_token_is_taken_once() {
    model(|| {
        let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.0, burst: Some(1.0) }));
        let other = {
            let budget = Arc::clone(&budget);
            spawn(move || usize::from(budget.try_take()))
        };
        let own = usize::from(budget.try_take());
        assert_eq!(own + other.join().expect("no panic"), 1);
        assert_eq!(budget.tokens(), 0.0);
    });
}

/// Two threads begin a window at once, and two take: a burst that is measured meanwhile makes no token.
#[test]
fn a_measured_budget_binds_across_threads() {
    model(|| {
        let budget = Arc::new(Budget::new(BudgetOptions { ratio: 1.0, burst: None }));
        while budget.try_take() {}
        let taken = Arc::new(AtomicUsize::new(0));
        let other = {
            let (budget, taken) = (Arc::clone(&budget), Arc::clone(&taken));
            spawn(move || {
                budget.note_first(Time(2_000_000_000));
                taken.fetch_add(usize::from(budget.try_take()), Ordering::SeqCst);
            })
        };
        budget.note_first(Time(1_000_000_000));
        other.join().expect("no panic");
        taken.fetch_add(usize::from(budget.try_take()), Ordering::SeqCst);
        assert_eq!(taken.load(Ordering::SeqCst), 2, "one for each first attempt");
        assert!(!budget.try_take() && budget.burst() == 20.0);
    });
}

/// Threads that take, refill and give back at once: never more than burst + ratio x first attempts.
#[test]
fn the_budget_binds_across_threads() {
    model(|| {
        let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.5, burst: Some(1.0) }));
        let taken = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (budget, taken) = (Arc::clone(&budget), Arc::clone(&taken));
                spawn(move || {
                    if budget.try_take() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                    budget.note_first(Time(0));
                })
            })
            .collect();
        if budget.try_take() {
            budget.give_back();
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
        let taken = taken.load(Ordering::SeqCst);
        // Two first attempts: at most 1 + 2 x 0.5.
        assert!(taken <= 2, "{taken}");
        assert!(budget.tokens() <= 1.0 && budget.tokens() >= 0.0);
        // No token is lost either: what was neither taken nor cut off at the burst is there.
        assert!(taken as f64 + budget.tokens() >= 1.0, "{taken} and {}", budget.tokens());
    });
}
