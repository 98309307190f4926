//! Who takes the next token when the budget was empty, and that none is lost on the way.

use hedgerow_hedge::{Budget, BudgetOptions, Ticket, Time, TokenQueue};
use proptest::prelude::*;

fn budget(ratio: f64) -> Budget {
    let budget = Budget::new(BudgetOptions { ratio, burst: Some(4.0) });
    while budget.try_take() {}
    budget
}

/// Serves the queue, and says who is woken.
fn woken(queue: &mut TokenQueue<u32>, budget: &Budget) -> Vec<u32> {
    let mut woken = Vec::new();
    queue.serve(budget, |waker| woken.push(waker));
    woken
}

#[test]
fn h06_the_youngest_takes_the_next_token() {
    let (budget, mut queue) = (budget(1.0), TokenQueue::default());
    let [third, second, first] = [(); 3].map(|()| queue.join());
    for (ticket, waker) in [(third, 3), (first, 1), (second, 2)] {
        assert!(!queue.poll_take(ticket, waker), "nobody has one yet");
    }
    budget.note_first(Time(0));
    assert_eq!(woken(&mut queue, &budget), [1]);
    // Who has left is passed over.
    queue.leave(second, &budget);
    budget.note_first(Time(0));
    assert_eq!(woken(&mut queue, &budget), [3]);
    assert!(queue.poll_take(first, 1) && !queue.poll_take(first, 1), "it is taken once");
    assert!(!queue.poll_take(second, 2));
    assert!(!queue.is_waited_for() && budget.tokens() == 0.0);
    // What was granted and not taken goes back.
    queue.leave(third, &budget);
    assert_eq!(budget.tokens(), 1.0);
    let fourth = queue.join();
    assert_eq!(woken(&mut queue, &budget), [], "it has no waker yet, and a token all the same");
    assert!(queue.poll_take(fourth, 4));
}

#[test]
fn where_too_many_wait_the_oldest_make_room() {
    let (budget, mut queue) = (budget(1.0), TokenQueue::<u32>::default());
    let most = TokenQueue::<u32>::WAITING_MAX;
    let tickets: Vec<Ticket> = (0..most + 2).map(|_| queue.join()).collect();
    assert_eq!(tickets.iter().position(|ticket| queue.holds(*ticket)), Some(2));
    for _ in 0..most {
        budget.note_first(Time(0));
        queue.serve(&budget, |_| ());
    }
    budget.note_first(Time(0));
    assert!(!queue.is_waited_for() && budget.tokens() == 1.0, "the two oldest are granted nothing");
    assert!(!queue.holds(tickets[1]) && queue.holds(tickets[2]), "what is granted is held until it is taken");
    let granted: Vec<bool> = tickets.iter().map(|ticket| queue.poll_take(*ticket, 0)).collect();
    assert_eq!(granted.iter().position(|it| *it), Some(2));
    assert!(granted[2..].iter().all(|it| *it));
    queue.leave(tickets[0], &budget);
    assert_eq!(budget.tokens(), 1.0, "and give nothing back");
    assert!(!queue.holds(tickets[2]), "it has been taken");
    let again = queue.join();
    queue.serve(&budget, |_| ());
    assert!(queue.poll_take(again, 0), "whoever has made room may join again");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Requests come, wait, end, take: every token is in the budget, granted or spent.
    #[test]
    fn h06_no_token_is_lost(events in prop::collection::vec((0..6_u8, 0..8_usize), 0..500)) {
        let (budget, mut queue) = (budget(1.0), TokenQueue::default());
        let mut open: Vec<Ticket> = Vec::new();
        let (mut earned, mut spent) = (0.0, 0.0);
        for (event, index) in events {
            match event {
                0 if earned - spent < 4.0 => {
                    budget.note_first(Time(0));
                    earned += 1.0;
                }
                1 => open.push(queue.join()),
                2 if index < open.len() => queue.leave(open.remove(index), &budget),
                3 if index < open.len() && queue.poll_take(open[index], 0) => {
                    spent += 1.0;
                    open.remove(index);
                }
                _ => queue.serve(&budget, |_| ()),
            }
        }
        queue.serve(&budget, |_| ());
        prop_assert!(!queue.is_waited_for() || budget.tokens() < 1.0);
        let granted: Vec<bool> = open.iter().map(|ticket| queue.poll_take(*ticket, 0)).collect();
        let granted = granted.iter().filter(|is_granted| **is_granted).count() as f64;
        prop_assert_eq!(budget.tokens() + granted + spent, earned);
    }
}
