//! Which nodes get no first attempt that another one may serve, for how long, and when they are asked again.

use hedgerow_hedge::{Silence, Time};
use std::time::Duration;

/// The hedge delay of these tests.
const DELAY: Duration = ms(10);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn sent(ms: &[u64]) -> Silence {
    let mut silence = Silence::default();
    ms.iter().for_each(|ms| silence.handle_sent(at(*ms), Duration::ZERO));
    silence
}

fn is_spared(connections: &[Silence], now_ms: u64) -> bool {
    Silence::is_spared(connections.iter().copied(), DELAY, Duration::ZERO, at(now_ms))
}

#[test]
fn a_node_is_spared_once_a_request_has_waited_for_a_whole_delay() {
    let silence = sent(&[0, 5]);
    let spared: Vec<u64> = (0..30).filter(|now| is_spared(&[silence], *now)).collect();
    // From 15 ms on nothing was sent there for a delay: it is asked again.
    assert_eq!(spared, [10, 11, 12, 13, 14]);
    assert!(!is_spared(&[], 20) && !is_spared(&[Silence::default()], 20), "nothing waits for it");
}

#[test]
fn one_first_attempt_per_delay_looks_whether_it_answers_again() {
    let mut silence = sent(&[0]);
    let mut asked = Vec::new();
    for now in 1..=50 {
        if !is_spared(&[silence], now) && now >= 9 {
            silence.handle_sent(at(now), Duration::ZERO);
            asked.push(now);
        }
    }
    assert_eq!(asked, [9, 19, 29, 39, 49]);
    silence.handle_heard(at(50));
    silence.handle_sent(at(50), Duration::ZERO);
    assert!(!is_spared(&[silence], 51) && !is_spared(&[silence], 59), "one word is enough");
    assert!(is_spared(&[sent(&[50, 55])], 60));
}

/// A hedge that wins takes its first attempt back. Then nothing waits any more, and the node is as silent as before.
#[test]
fn what_was_waited_for_counts_also_after_it_was_taken_back() {
    let mut silence = sent(&[0]);
    silence.handle_idle(at(11));
    assert_eq!(silence.waits_since(), None);
    silence.handle_sent(at(12), Duration::ZERO);
    assert!(is_spared(&[silence], 13));
    // Who gives up sooner than that says nothing of the node.
    let mut silence = Silence::default();
    for now in [0, 100, 200, 300] {
        silence.handle_sent(at(now), Duration::ZERO);
        silence.handle_idle(at(now + 1));
    }
    assert!(!is_spared(&[silence], 305), "it was waited for 4 ms in all");
    // One word, and all of it is forgotten.
    silence.handle_sent(at(306), Duration::ZERO);
    silence.handle_heard(at(307));
    silence.handle_idle(at(400));
    silence.handle_sent(at(401), Duration::ZERO);
    assert!(!is_spared(&[silence], 405));
}

#[test]
fn a_word_over_another_connection_is_one() {
    let silent = sent(&[0, 12]);
    let mut other = Silence::default();
    assert!(is_spared(&[silent, other], 13));
    other.handle_heard(at(4));
    assert!(!is_spared(&[silent, other], 13) && is_spared(&[silent, other], 14));
    // What was sent over the other one looks for it just as well.
    other.handle_sent(at(20), Duration::ZERO);
    assert!(!is_spared(&[silent], 25) && is_spared(&[silent, other], 25));
}

/// Pitfall H26: replies may lie unread in the sockets of a client that was held up.
#[test]
fn h26_time_for_which_the_client_was_held_up_does_not_count() {
    let mut silence = Silence::default();
    silence.handle_sent(at(0), ms(100));
    silence.handle_sent(at(30), ms(100));
    let is_spared = |held_up, now| Silence::is_spared([silence].into_iter(), DELAY, held_up, at(now));
    assert!(is_spared(ms(100), 31), "what was before does not matter");
    // A delay, and half of one to read.
    assert!(is_spared(ms(116), 31) && !is_spared(ms(117), 31) && is_spared(ms(117), 32));
    // And never longer than 20 ms.
    silence.handle_sent(at(500), ms(110));
    let is_spared = |now| Silence::is_spared([silence].into_iter(), Duration::from_secs(1), ms(110), at(now));
    assert!(!is_spared(1_029) && is_spared(1_030));
}

/// Hedges that are taken back, many in each delay, keep nobody from looking whether the node answers.
#[test]
fn extra_attempts_are_no_look_whether_a_node_answers() {
    let mut silence = Silence::default();
    silence.handle_heard(at(0));
    silence.handle_sent(at(1), Duration::ZERO);
    for now in (10..60).step_by(2) {
        silence.handle_extra_sent(at(now), Duration::ZERO);
        silence.handle_idle(at(now + 1));
    }
    let is_spared = |silence: Silence, now| Silence::is_spared([silence].into_iter(), ms(10), Duration::ZERO, at(now));
    assert!(!is_spared(silence, 60), "nobody has looked for long");
    silence.handle_sent(at(60), Duration::ZERO);
    assert!(is_spared(silence, 61) && !is_spared(silence, 70), "once in each delay");
}
