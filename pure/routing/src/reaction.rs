//! What a client does after a failed attempt, and how long it waits.
//!
//! What a refusal means says the table in `refusal.rs`. A node that cannot be reached is asked for nothing: the client asks for
//! the map and waits. After a connection that is lost, or no reply, the same, if the request may be run twice; otherwise that
//! is the end.
//!
//! A read that any replica may serve goes on to the next one at once ([`replica_reaction`]), whatever of this it was,
//! until each was asked; only then does it wait, and start over.

use crate::refusal::{Next, meaning};
use core::time::Duration;
use hedgerow_types::Refusal;
use hedgerow_types::random::Random;

/// Most attempts of one request, the first included.
pub const ATTEMPTS_MAX: u32 = 64;
/// The longest wait after the first attempt.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// The longest wait after any attempt.
pub const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Attempts whose waits come to a bit more than the time in which a group has another leader: until then they stop growing at
/// [`BACKOFF_ELECTION`], so that whoever waits for the new leader does not find it half a second late.
const ELECTION_ATTEMPTS: u32 = 18;
/// The longest wait after any of these.
const BACKOFF_ELECTION: Duration = Duration::from_millis(80);
/// Attempts after which the leader that a refusal names is asked without a wait. Three replicas need two steps.
const REDIRECTS_AT_ONCE_MAX: u32 = 3;
/// How an attempt failed.
#[derive(Clone, Copy, Debug)]
pub enum Failure<'a> {
    /// The node said why it did not run the request, or that it does not know how it ended. A refusal that names a
    /// leader which [`crate::TableMap::note_leader`] did not believe is passed as one that names none.
    Refused(&'a Refusal),
    /// The request was not sent: no connection could be made.
    Unreachable,
    /// The connection broke after the request was sent. The outcome is not known.
    ConnectionLost,
    /// No reply came within the time given to the attempt. The outcome is not known.
    NoReply,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Send it again after a while, to [`crate::TableMap::target`].
    Retry {
        /// How long to wait first; may be zero.
        after: Duration,
    },
    /// Fetch the map again while waiting, then send it again.
    RefreshAndRetry {
        /// How long to wait at least.
        after: Duration,
    },
    /// Give the failure to the caller.
    Fail,
}

/// What to do after attempt number `attempt` (from 1) failed. `is_idempotent` says that running the request twice is
/// harmless: reads, and writes that carry a client id and a sequence number. The caller's deadline goes before all of
/// this; without one, the request ends after [`ATTEMPTS_MAX`] attempts.
pub fn reaction(failure: Failure<'_>, attempt: u32, is_idempotent: bool, random: &mut Random) -> Reaction {
    let doubles = is_overload(failure);
    react(failure, attempt, is_idempotent, |attempt| backoff(attempt, doubles, random))
}

/// The same with another wait after each attempt.
fn react(failure: Failure<'_>, attempt: u32, is_idempotent: bool, mut wait: impl FnMut(u32) -> Duration) -> Reaction {
    if attempt >= ATTEMPTS_MAX {
        return Reaction::Fail;
    }
    let mut after = || wait(attempt);
    match failure {
        Failure::Refused(refusal) => match meaning(refusal).next {
            Next::AskLeader if is_leader_named(refusal) && attempt <= REDIRECTS_AT_ONCE_MAX => {
                Reaction::Retry { after: Duration::ZERO }
            }
            Next::Wait { patience } if attempt <= patience => Reaction::Retry { after: after() },
            Next::AskMapIfIdempotent if !is_idempotent => Reaction::Fail,
            Next::AskLeader | Next::Wait { .. } | Next::AskMap | Next::AskMapIfIdempotent => {
                Reaction::RefreshAndRetry { after: after() }
            }
            Next::Fail => Reaction::Fail,
        },
        Failure::Unreachable => Reaction::RefreshAndRetry { after: after() },
        Failure::ConnectionLost | Failure::NoReply if is_idempotent => Reaction::RefreshAndRetry { after: after() },
        Failure::ConnectionLost | Failure::NoReply => Reaction::Fail,
    }
}

/// Whether the node has too much to do: it is left alone for longer.
const fn is_overload(failure: Failure<'_>) -> bool {
    matches!(failure, Failure::Refused(Refusal::Busy(_) | Refusal::BusyFor { .. }))
}

const fn is_leader_named(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NotLeader { leader: Some(_) })
}

/// As [`reaction`], for a read that any replica may serve, after its attempt number `attempt`. `rounds` says how often
/// every replica was asked, 0 while one is left that was not: then that one is asked at once.
pub fn replica_reaction(failure: Failure<'_>, attempt: u32, rounds: u32, random: &mut Random) -> Reaction {
    if attempt >= ATTEMPTS_MAX {
        return Reaction::Fail;
    }
    // Each round takes as many of its attempts as there are replicas: short waits would use them up before another leader is there.
    let mut wait = |rounds| backoff(rounds, true, random);
    match (react(failure, rounds.max(1), true, &mut wait), rounds) {
        (Reaction::Fail, _) => Reaction::Fail,
        (Reaction::Retry { .. }, 0) => Reaction::Retry { after: Duration::ZERO },
        (Reaction::RefreshAndRetry { .. }, 0) => Reaction::RefreshAndRetry { after: Duration::ZERO },
        // Where the leader is has no part in it: it was asked too.
        (Reaction::Retry { after } | Reaction::RefreshAndRetry { after }, _) if after.is_zero() => {
            Reaction::RefreshAndRetry { after: wait(rounds) }
        }
        (later, _) => later,
    }
}

/// A wait that doubles with every attempt up to [`BACKOFF_MAX`], shortened at random by up to half, so that clients that failed together do
/// not come back together. Unless it `doubles` from the beginning, it is [`BACKOFF_ELECTION`] at most for the first [`ELECTION_ATTEMPTS`].
fn backoff(attempt: u32, doubles: bool, random: &mut Random) -> Duration {
    let doubled = |first: Duration, times: u32| first.saturating_mul(1 << times.min(16));
    let whole = match attempt.checked_sub(ELECTION_ATTEMPTS) {
        None | Some(0) if !doubles => doubled(BACKOFF_FIRST, attempt.saturating_sub(1)).min(BACKOFF_ELECTION),
        Some(later) if !doubles => doubled(BACKOFF_ELECTION, later),
        None | Some(_) => doubled(BACKOFF_FIRST, attempt.saturating_sub(1)),
    };
    let whole = whole.min(BACKOFF_MAX);
    let half = whole / 2;
    half + Duration::from_nanos(random.below(half.as_nanos() as u64 + 1))
}
