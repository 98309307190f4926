//! What follows each failure, and for how long.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_routing::{ATTEMPTS_MAX, BACKOFF_FIRST, BACKOFF_MAX, Failure, Reaction, reaction, replica_reaction};
use hedgerow_types::random::Random;
use hedgerow_types::{Lag, NodeId, Refusal};
use std::collections::BTreeSet;
use std::time::Duration;

/// What happens after attempts 1, 2, ... up to the first failure or 8: `r` retry, `0` retry at once, `m` map and retry,
/// `F` fail.
fn story(failure: Failure<'_>, is_idempotent: bool) -> String {
    let mut random = Random::new(1);
    let mut story = String::new();
    for attempt in 1..=8 {
        story.push(match reaction(failure, attempt, is_idempotent, &mut random) {
            Reaction::Retry { after: Duration::ZERO } => '0',
            Reaction::Retry { .. } => 'r',
            Reaction::RefreshAndRetry { .. } => 'm',
            Reaction::Fail => 'F',
        });
        if story.ends_with('F') {
            break;
        }
    }
    story
}

#[test]
fn each_failure_has_its_reaction() {
    let text = String::new;
    let refusals = [
        (Refusal::NotLeader { leader: Some(NodeId(1)) }, "000mmmmm", "000mmmmm"),
        (Refusal::NotLeader { leader: None }, "mmmmmmmm", "mmmmmmmm"),
        (Refusal::NotReady(text()), "rrrmmmmm", "rrrmmmmm"),
        (Refusal::NotHosted, "mmmmmmmm", "mmmmmmmm"),
        (Refusal::Busy(text()), "rrmmmmmm", "rrmmmmmm"),
        (Refusal::Lagging(Lag::default()), "rrrrrrrr", "rrrrrrrr"),
        (Refusal::Unresolved, "mmmmmmmm", "F"),
        (Refusal::Expired, "F", "F"),
        (Refusal::SessionWindow { sequence: 1, floor: 2, ceiling: 3 }, "F", "F"),
        (Refusal::Invalid(text()), "F", "F"),
        (Refusal::TooLarge(text()), "F", "F"),
        (Refusal::DiskFull(text()), "F", "F"),
        (Refusal::NotAllowed(text()), "F", "F"),
        (Refusal::NoTable, "mmmmmmmm", "mmmmmmmm"),
        (Refusal::Creating, "mmmmmmmm", "mmmmmmmm"),
        (Refusal::TableExists, "F", "F"),
        (Refusal::FailedPrecondition("so".into()), "F", "F"),
        (Refusal::Stopping(text()), "mmmmmmmm", "F"),
        (Refusal::Unknown, "F", "F"),
    ];
    for (refusal, idempotent, once_only) in &refusals {
        assert_eq!(story(Failure::Refused(refusal), true), *idempotent, "{refusal:?}");
        assert_eq!(story(Failure::Refused(refusal), false), *once_only, "{refusal:?}");
    }
    for (failure, idempotent, once_only) in [
        (Failure::Unreachable, "mmmmmmmm", "mmmmmmmm"),
        (Failure::ConnectionLost, "mmmmmmmm", "F"),
        (Failure::NoReply, "mmmmmmmm", "F"),
    ] {
        assert_eq!(story(failure, true), idempotent, "{failure:?}");
        assert_eq!(story(failure, false), once_only, "{failure:?}");
    }
}

/// Pitfall R1: a node too busy to say that it does not lead any more.
#[test]
fn r01_a_leader_that_stays_busy_makes_the_client_ask_who_leads() {
    assert_eq!(story(Failure::Refused(&Refusal::Busy(String::new())), true), "rrmmmmmm");
}

#[test]
fn no_request_is_sent_for_ever() {
    let mut random = Random::new(1);
    let refusal = Refusal::NotLeader { leader: Some(NodeId(1)) };
    for attempt in [ATTEMPTS_MAX, u32::MAX] {
        assert_eq!(reaction(Failure::Refused(&refusal), attempt, true, &mut random), Reaction::Fail);
        assert_eq!(reaction(Failure::Unreachable, attempt, true, &mut random), Reaction::Fail);
    }
}

#[test]
fn waits_double_up_to_a_limit_and_differ_between_clients() {
    let mut random = Random::new(1);
    let mut wait = |failure, attempt| match reaction(failure, attempt, true, &mut random) {
        Reaction::Retry { after } | Reaction::RefreshAndRetry { after } => after,
        Reaction::Fail => panic!("it is tried again"),
    };
    let busy = Refusal::Busy(String::new());
    for attempt in 1..ATTEMPTS_MAX {
        let doubled = BACKOFF_FIRST * 2u32.pow((attempt - 1).min(10));
        // Until another leader may be there, nobody waits for long.
        let until_election = match attempt {
            ..=18 => doubled.min(Duration::from_millis(80)),
            _ => Duration::from_millis(80) * 2u32.pow((attempt - 18).min(10)),
        };
        for (failure, whole) in [(Failure::Refused(&busy), doubled), (Failure::Unreachable, until_election)] {
            let whole = whole.min(BACKOFF_MAX);
            let waits: BTreeSet<Duration> = (0..50).map(|_| wait(failure, attempt)).collect();
            assert!(waits.len() > 40);
            assert!(waits.iter().all(|wait| (whole / 2..=whole).contains(wait)), "{attempt} {waits:?}");
            assert!(waits.last().unwrap() > &(whole * 9 / 10) && waits.first().unwrap() < &(whole * 6 / 10));
        }
    }
}

/// As long as a group needs for another leader, and a half more, whoever looks for it asks at least every 80 ms.
#[test]
fn a_new_leader_is_found_soon() {
    let mut random = Random::new(1);
    let mut waited = Duration::ZERO;
    for attempt in 1.. {
        let refusal = Refusal::NotLeader { leader: None };
        let Reaction::RefreshAndRetry { after } = reaction(Failure::Refused(&refusal), attempt, true, &mut random)
        else {
            panic!("it is tried again");
        };
        if after > Duration::from_millis(80) {
            break;
        }
        waited += after;
    }
    assert!(waited > Duration::from_millis(900), "{waited:?}");
}

/// A read that any replica may serve asks all of them in each round, and must not have used up its attempts before a group has another
/// leader.
#[test]
fn a_read_at_any_replica_waits_for_a_new_leader() {
    for replicas in [3, 5] {
        let (mut random, mut waited) = (Random::new(1), Duration::ZERO);
        let refusal = Refusal::NotLeader { leader: None };
        for attempt in 1.. {
            let rounds = if attempt % replicas == 0 { attempt / replicas } else { 0 };
            match replica_reaction(Failure::Refused(&refusal), attempt, rounds, &mut random) {
                Reaction::Retry { after } | Reaction::RefreshAndRetry { after } => waited += after,
                Reaction::Fail => break,
            }
        }
        assert!(waited > Duration::from_secs(2), "{replicas} replicas: {waited:?}");
    }
}
