//! The attempts of a request, and what their failures mean.

use crate::cluster::lost_error;
use crate::connection::{Lost, Waiting};
use crate::error::{Error, ErrorKind};
use crate::ledger::Asked;
use crate::routes::Target;
use crate::selection::Sent;
use crate::session::Floor;
use bytes::Bytes;
use hedgerow_hedge::{Kind, Outcome};
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::Cause;
use tokio::time::Instant;

/// An attempt that was sent.
pub(super) struct Attempt<'a> {
    pub(super) asked: Asked,
    pub(super) target: Target,
    /// Its number in the present round's race; `None` = the race no longer counts on it.
    pub(super) number: Option<u8>,
    /// `None` = it is over.
    pub(super) waiting: Option<Waiting>,
    /// Where the selector is to hear of it.
    pub(super) sent: Option<Sent<'a>>,
    pub(super) at: Instant,
    pub(super) late_at: Instant,
    pub(super) floor: Floor,
    pub(super) level: Option<ReadLevel>,
    pub(super) tie: Option<Bytes>,
}

/// Attempts in the order in which they were sent: the first in place, since most requests have no other.
#[derive(Default)]
pub(super) struct Attempts<'a> {
    pub(super) first: Option<Attempt<'a>>,
    pub(super) others: Vec<Attempt<'a>>,
}

/// How an attempt failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) target: Target,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Refused(Refusal),
    Lost(Lost),
}

impl Failed {
    pub(super) fn outcome(&self) -> Outcome {
        match &self.what {
            What::Refused(refusal) => match refusal {
                Refusal::Throttled | Refusal::Withdrawn => Outcome::Dropped,
                Refusal::Expired
                | Refusal::SessionWindow { .. }
                | Refusal::Invalid(_)
                | Refusal::TooLarge(_)
                | Refusal::TableExists
                | Refusal::Unknown => Outcome::Fatal,
                Refusal::NotLeader { .. }
                | Refusal::NotReady(_)
                | Refusal::Lagging(_)
                | Refusal::NotHosted
                | Refusal::Busy(_)
                | Refusal::BusyFor { .. }
                | Refusal::Unresolved
                | Refusal::NoTable
                | Refusal::Creating
                | Refusal::Stopping(_) => Outcome::NonFatal,
            },
            What::Lost(_) => Outcome::NonFatal,
        }
    }

    /// Whether it was refused without any work, by one who is not the right one.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(
            self.what,
            What::Refused(Refusal::NotLeader { .. } | Refusal::NotHosted | Refusal::NotReady(_) | Refusal::Lagging(_))
        )
    }

    pub(super) fn may_be_under_way(&self) -> bool {
        match &self.what {
            What::Refused(refusal) => matches!(refusal, Refusal::Unresolved | Refusal::Expired),
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

impl<'a> Attempts<'a> {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attempt<'a>> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn at(&mut self, index: usize) -> &mut Attempt<'a> {
        match (&mut self.first, index) {
            (Some(first), 0) => first,
            (Some(_), index) => &mut self.others[index - 1],
            (None, index) => &mut self.others[index],
        }
    }

    pub(super) fn push(&mut self, attempt: Attempt<'a>) {
        if self.len() == 0 {
            self.first = Some(attempt);
        } else {
            self.others.push(attempt);
        }
    }

    pub(super) fn is_any_open(&self) -> bool {
        self.iter().any(|attempt| attempt.waiting.is_some())
    }

    /// Those that are over may be asked again.
    pub(super) fn forget_ended(&mut self) {
        self.first = self.first.take().filter(|first| first.waiting.is_some());
        self.others.retain(|attempt| attempt.waiting.is_some());
    }

    /// A new race begins, which counts on none of them.
    pub(super) fn forget_round(&mut self) {
        self.forget_ended();
        self.first.iter_mut().chain(&mut self.others).for_each(|attempt| attempt.number = None);
    }
}

/// Why an attempt of this kind is sent, as its request says it.
pub(super) fn cause(kind: Kind) -> Option<Cause> {
    match kind {
        Kind::First => None,
        Kind::Hedge => Some(Cause::Hedge),
        Kind::Tie => Some(Cause::Tie),
        Kind::Retry => Some(Cause::Retry),
        Kind::Fallback => Some(Cause::Fallback),
    }
}
