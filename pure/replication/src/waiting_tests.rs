//! Reads that are cancelled wherever they wait, and what that costs where many wait.

use super::*;

const MS: Duration = Duration::from_millis(1);
const STAGES: u64 = 5;

/// `count` reads at each stage: with an index, with a bound, ended, asked for, gathered. A ticket's rest by [`STAGES`] says which.
fn waiting(count: u64) -> Waiting {
    let mut waiting = Waiting::new(100 * MS, 100 * MS);
    for ticket in (0..count).map(|number| number * STAGES) {
        waiting.push_indexed(ticket, ticket + 1, false, Instant(1));
        waiting.push_bounded(ticket + 1, 100 * MS, Instant(1));
        waiting.end(vec![ticket + 2], End::Refused);
        waiting.gather(ticket + 3, Instant(1));
    }
    waiting.ask(1, 1, ReplicaId(1), Instant(2));
    (0..count).for_each(|number| waiting.gather(number * STAGES + 4, Instant(3)));
    waiting
}

fn served(waiting: &mut Waiting) -> Vec<u64> {
    let mut served = Vec::new();
    waiting.release(Index::MAX, |ticket, _| served.push(ticket));
    waiting.release_bounded(MS, |ticket| served.push(ticket));
    served
}

#[test]
fn what_is_cancelled_leaves_its_stage_and_all_others_their_places() {
    let mut waiting = waiting(4);
    assert_eq!((waiting.count(), waiting.places.len()), (16, 20));
    // The second and third of each stage, in no order, one of them twice, and one that does not wait.
    [14, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 99].into_iter().for_each(|ticket| waiting.cancel(ticket));
    assert_eq!((waiting.count(), waiting.places.len()), (8, 10));
    assert_eq!(waiting.awaiting_leader(), [(4, Instant(3)), (19, Instant(3)), (3, Instant(2)), (18, Instant(2))]);
    assert_eq!(waiting.take_ended(End::Refused), [2, 17]);
    assert_eq!(served(&mut waiting), [0, 15, 1, 16]);
    let taken = waiting.take_asked(|asked| asked.id == 1).map(|taken| taken.tickets);
    assert_eq!(taken, Some(vec![3, 18]));
    waiting.cancel_each(|ticket| ticket == 4);
    assert!(waiting.expire(Instant(3) + 100 * MS));
    assert_eq!(waiting.take_ended(End::Lagging), [19]);
    assert!(waiting.is_empty() && waiting.places.is_empty());
}

#[test]
fn a_read_waits_in_one_place() {
    let mut waiting = waiting(1);
    (0..STAGES).for_each(|ticket| waiting.push_indexed(ticket, 9, true, Instant(4)));
    assert_eq!((waiting.count(), waiting.ended.len(), waiting.places.len()), (5, 0, 5));
    assert_eq!(waiting.take_asked(|_| true).map(|taken| taken.tickets), Some(vec![]));
    assert!(waiting.begin_again(false, Instant(5)));
    assert_eq!(waiting.take_ended(End::Refused), [0, 1, 2, 3, 4]);
    assert!(waiting.is_empty());
}

#[test]
fn what_begins_again_is_asked_again_in_the_same_order() {
    let mut waiting = waiting(2);
    waiting.cancel(3);
    assert!(!waiting.begin_again(true, Instant(5)));
    let begun: Vec<(u64, Instant)> = [4, 9, 8].map(|ticket| (ticket, Instant(5))).into();
    assert_eq!(waiting.awaiting_leader(), begun);
    waiting.ask(2, 1, ReplicaId(2), Instant(6));
    assert!(!waiting.wants_to_ask());
    waiting.gather(20, Instant(7));
    assert_eq!(waiting.take_asked(|asked| asked.id == 2).map(|taken| taken.tickets), Some(vec![4, 9, 8]));
    assert_eq!(waiting.awaiting_leader(), [(20, Instant(7))]);
}

/// Each cancel walked over everything that waited, 25 billion reads here. No clock is looked at: done so, this test takes minutes.
#[test]
fn n11_a_cancel_costs_no_more_where_many_reads_wait() {
    const COUNT: u64 = 50_000;
    let mut waiting = waiting(COUNT);
    // The newest first, and each before another one comes, so that nothing can be put off to the end.
    for ticket in (0..STAGES * COUNT).rev() {
        waiting.cancel(ticket);
        let other = STAGES * COUNT;
        waiting.gather(other, Instant(4));
        waiting.cancel(other);
    }
    assert!(waiting.is_empty() && waiting.count() == 0);
    assert_eq!(waiting.take_asked(|_| true).map(|taken| taken.tickets), Some(vec![]));
}
