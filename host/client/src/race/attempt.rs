//! The attempts of a request, and what their ends mean.

use super::request::Request;
use crate::call::{Answer, Call, ServedBy, refuse_older};
use crate::connection::Waiting;
use crate::error::{Error, ErrorKind};
use crate::ledger::{Asked, Over};
use crate::lost::{Lost, lost_error};
use crate::refusal::partition_refusal_of;
use crate::routes::Target;
use crate::runtime::now;
use crate::selection::Sent;
use crate::session::Floor;
use bytes::Bytes;
use hedgerow_hedge::{Kind, Outcome};
use hedgerow_routing::{Effect, Verdict, meaning};
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::call::ReplyFrame;
use hedgerow_wire::message::Cancel;
use hedgerow_wire::value::Binary;
use hedgerow_wire::{Cause, Reply, ReplyExtension};
use tokio::time::Instant;

/// An attempt that was sent. Dropped while it is open it is taken back, so that whoever drops a request no longer has
/// servers work for it.
pub(super) struct Attempt<'a> {
    pub(super) request: Request<'a>,
    /// Whom it named as its client.
    pub(super) client: u64,
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
            What::Refused(refusal) => match meaning(refusal).verdict {
                Verdict::Fatal => Outcome::Fatal,
                Verdict::NonFatal => Outcome::NonFatal,
                Verdict::Dropped => Outcome::Dropped,
            },
            What::Lost(_) => Outcome::NonFatal,
        }
    }

    /// Whether it was refused without any work, by one who is not the right one.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(&self.what, What::Refused(refusal) if meaning(refusal).is_redirect)
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

impl<'a> Attempt<'a> {
    /// A reply that is older than what its session saw is as good as a refusal.
    pub(super) fn check(&self, mut frame: ReplyFrame) -> ReplyFrame {
        if !self.request.sort.is_write {
            frame.reply = refuse_older(frame.reply, frame.extension.as_ref(), self.floor);
        }
        frame
    }

    /// Tells the selector of its success.
    pub(super) fn note_served(&mut self, extension: Option<&ReplyExtension>) {
        if let Some(sent) = self.sent.take() {
            sent.served(extension);
        }
    }

    /// Its reply is the answer to the request, of which `attempts` were sent.
    pub(super) fn win(
        &self,
        call: &Call<'a>,
        attempts: u32,
        reply: Reply,
        extension: &ReplyExtension,
        now: Instant,
    ) -> Answer {
        let Self { request, asked, target, .. } = self;
        let took = now.saturating_duration_since(self.at);
        request.hedging.note_over(*asked, request.sort, Over::Success { has_won: true }, took, request.time(now));
        if let Some(reading) = call.reading {
            reading.observe_index(target.group(), extension.index);
            if !request.sort.is_write {
                let by =
                    ServedBy { target: *target, address: asked.node, attempts, kind: asked.kind, level: self.level };
                reading.tell(|| call.served(by, extension));
            }
        }
        let is_chosen = call.replicas.is_some() || asked.kind != Kind::First;
        Answer { reply, holder: Some(asked.node).filter(|_| is_chosen) }
    }

    /// Takes it back if it is open, and tells those who keep account how long it was waited for.
    pub(super) fn cancel(&mut self, now: Instant) {
        let Some(waiting) = self.waiting.take() else { return };
        let Request { hedging, sort, id, .. } = self.request;
        let cancel = Cancel {
            client_id: self.client,
            request_id: id,
            attempt: Some(self.asked.number as i32),
            tie: self.tie.clone().map(Binary),
        };
        let ended = waiting.cancel(&cancel);
        let sent = self.sent.take();
        let took = now.saturating_duration_since(self.at);
        let note_over = |over| hedging.note_over(self.asked, sort, over, took, self.request.time(now));
        match ended {
            // Dropped, `sent` says that it was given up.
            None => note_over(Over::Cancelled),
            Some(Ok(ReplyFrame { reply: Reply::Failed(failure), .. })) => {
                let refusal = partition_refusal_of(&failure);
                sent.into_iter().for_each(|sent| sent.refused(&refusal));
                note_over(Over::Error(&What::Refused(refusal).error()));
            }
            Some(Ok(frame)) => {
                sent.into_iter().for_each(|sent| sent.served(frame.extension.as_ref()));
                note_over(Over::Success { has_won: false });
            }
            Some(Err(lost)) => {
                sent.into_iter().for_each(|sent| sent.lost(&lost));
                note_over(Over::Error(&lost_error(&lost)));
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.waiting.is_some() {
            self.cancel(now());
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
