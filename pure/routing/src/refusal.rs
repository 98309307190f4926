//! What each refusal means to a client: the one table that retries, races and backoffs are decided by.

use crate::backoff::Scope;
use hedgerow_types::Refusal;

/// What a refusal means to the client that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// What has become of the attempt.
    pub effect: Effect,
    /// What it says about the request's other attempts.
    pub verdict: Verdict,
    /// Whether somebody else is the right one to ask, and this one has done no work for it.
    pub is_redirect: bool,
    /// What follows if no other attempt decides.
    pub(crate) next: Next,
    /// Whom it is about.
    pub(crate) scope: Scope,
}

/// What has become of a refused attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has had no effect and will have none.
    None,
    /// It may have had its effect, or may have it later.
    Unknown,
}

/// What a refused attempt says about the others of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every attempt would be refused so.
    Fatal,
    /// Nothing: another replica may serve it.
    NonFatal,
    /// It was not run because another runs, or because extra ones are limited: nothing follows while another is open.
    Dropped,
}

/// What follows a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The leader is asked at once, if one is named; otherwise the map is.
    AskLeader,
    /// A wait; after so many attempts the map as well.
    Wait {
        /// `u32::MAX` = the map has no part in it.
        patience: u32,
    },
    /// The map is asked, and after a wait the replica that it names.
    AskMap,
    /// As [`Next::AskMap`] for what may be run twice, and the end for anything else.
    AskMapIfIdempotent,
    /// The end.
    Fail,
}

/// Attempts after which a replica that is still not ready makes the client ask for the map.
const NOT_READY_PATIENCE: u32 = 3;
/// Attempts after which a node that is still busy makes the client ask for the map: a node that is too busy to say so may no
/// longer lead.
const BUSY_PATIENCE: u32 = 2;

/// The meaning of `refusal`.
pub const fn meaning(refusal: &Refusal) -> Meaning {
    use Effect::{None, Unknown};
    use Next::{AskLeader, AskMap, AskMapIfIdempotent, Fail, Wait};
    use Scope::{Node, NodeLife, Replica, Request};
    use Verdict::{Dropped, Fatal, NonFatal};
    const NEVER: u32 = u32::MAX;
    let (effect, verdict, is_redirect, next, scope) = match refusal {
        Refusal::NotLeader { .. } => (None, NonFatal, true, AskLeader, Replica),
        Refusal::NotHosted => (None, NonFatal, true, AskMap, Replica),
        Refusal::NotReady(_) => (None, NonFatal, true, Wait { patience: NOT_READY_PATIENCE }, Replica),
        Refusal::Lagging(_) => (None, NonFatal, true, Wait { patience: NEVER }, Replica),
        Refusal::Busy(_) | Refusal::BusyFor { .. } => (None, NonFatal, false, Wait { patience: BUSY_PATIENCE }, Node),
        Refusal::Creating => (None, NonFatal, false, AskMap, Replica),
        // A node may not have heard yet that the table was created, or recalled. That there is none, the map says.
        Refusal::NoTable => (None, NonFatal, false, AskMap, Replica),
        Refusal::Throttled | Refusal::Withdrawn => (None, Dropped, false, Wait { patience: NEVER }, Request),
        Refusal::Unresolved => (Unknown, NonFatal, false, AskMapIfIdempotent, Replica),
        Refusal::Stopping(_) => (Unknown, NonFatal, false, AskMapIfIdempotent, NodeLife),
        Refusal::Expired => (Unknown, Fatal, false, Fail, Request),
        // This attempt was not applied. What an earlier one did the partition cannot tell.
        Refusal::SessionWindow { .. }
        | Refusal::Invalid(_)
        | Refusal::FailedPrecondition(_)
        | Refusal::TooLarge(_)
        | Refusal::DiskFull(_)
        | Refusal::NotAllowed(_)
        | Refusal::TableExists
        | Refusal::Unknown => (None, Fatal, false, Fail, Request),
    };
    Meaning { effect, verdict, is_redirect, next, scope }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Reaction, reaction};
    use hedgerow_types::random::Random;

    fn all() -> [Refusal; 21] {
        [
            Refusal::NotLeader { leader: None },
            Refusal::NotReady("starting".into()),
            Refusal::Lagging(hedgerow_types::Lag::default()),
            Refusal::NotHosted,
            Refusal::Busy("full".into()),
            Refusal::BusyFor { estimated_wait_ms: 5 },
            Refusal::Throttled,
            Refusal::Withdrawn,
            Refusal::Unresolved,
            Refusal::Expired,
            Refusal::SessionWindow { sequence: 1, floor: 2, ceiling: 3 },
            Refusal::Invalid("so".into()),
            Refusal::FailedPrecondition("so".into()),
            Refusal::TooLarge("so".into()),
            Refusal::NoTable,
            Refusal::Creating,
            Refusal::TableExists,
            Refusal::Stopping("so".into()),
            Refusal::DiskFull("so".into()),
            Refusal::NotAllowed("so".into()),
            Refusal::Unknown,
        ]
    }

    #[test]
    fn what_ends_every_attempt_ends_the_request_and_what_may_run_is_not_repeated_unasked() {
        for refusal in all() {
            let meaning = meaning(&refusal);
            let react = |is_idempotent| reaction(Failure::Refused(&refusal), 1, is_idempotent, &mut Random::new(1));
            assert_eq!(meaning.verdict == Verdict::Fatal, react(true) == Reaction::Fail, "{refusal:?}");
            if meaning.effect == Effect::Unknown {
                assert_eq!(react(false), Reaction::Fail, "{refusal:?}");
            }
            if meaning.is_redirect {
                let is_clean = meaning.effect == Effect::None && meaning.verdict == Verdict::NonFatal;
                assert!(is_clean && meaning.scope == Scope::Replica, "{refusal:?}");
            }
        }
    }
}
