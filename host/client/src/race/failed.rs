//! How an attempt failed, and what that says of its request.

use crate::error::{Error, ErrorKind};
use crate::lost::{Lost, lost_error};
use crate::retry::RetryDecision;
use crate::routes::Target;
use hedgerow_hedge::Outcome;
use hedgerow_routing::{Effect, Verdict, meaning};
use hedgerow_types::Refusal;

/// How an attempt failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) target: Target,
    pub(super) what: What,
    /// What follows, if that is not clear from what it is.
    pub(super) decision: RetryDecision,
}

#[derive(Debug)]
pub(super) enum What {
    Refused(Refusal),
    Lost(Lost),
}

impl Failed {
    pub(super) fn outcome(&self) -> Outcome {
        match &self.what {
            What::Refused(refusal) => match meaning(refusal).verdict {
                Verdict::Fatal => Outcome::Fatal,
                Verdict::NonFatal => Outcome::NonFatal,
                Verdict::Dropped => Outcome::Dropped,
            },
            // Every attempt would have it.
            What::Lost(Lost::TooLarge(_) | Lost::LoginRefused(_)) => Outcome::Fatal,
            What::Lost(_) => Outcome::NonFatal,
        }
    }

    /// Whether it was refused without any work, by one who is not the right one.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(&self.what, What::Refused(refusal) if meaning(refusal).is_redirect)
    }

    /// Whether nothing was sent, so that the next attempt takes its place.
    pub(super) fn was_never_sent(&self) -> bool {
        matches!(&self.what, What::Lost(lost) if !lost.may_have_run())
    }

    pub(super) fn may_be_under_way(&self) -> bool {
        match &self.what {
            What::Refused(refusal) => meaning(refusal).effect == Effect::Unknown,
            What::Lost(lost) => lost.may_have_run(),
        }
    }

    pub(super) fn error(&self) -> Error {
        self.what.error()
    }
}

impl What {
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Refused(refusal) => Error::new(ErrorKind::from(refusal), refusal.to_string()),
            Self::Lost(lost) => lost_error(lost),
        }
    }
}
