//! The attempts of a request: how one is sent, wins, and is taken back.

use super::failed::What;
use super::request::Request;
use crate::call::{Answer, Call, Limits, ServedBy, refuse_older};
use crate::connection::Waiting;
use crate::lost::{Lost, lost_error};
use crate::metrics::{Asked, Over};
use crate::refusal::partition_refusal_of;
use crate::routes::Target;
use crate::runtime::now;
use crate::selection::Sent;
use crate::session::Floor;
use crate::time::millis;
use crate::tokens::Token;
use bytes::Bytes;
use hedgerow_hedge::Kind;
use hedgerow_routing::Address;
use hedgerow_types::{ReadLevel, SessionToken};
use hedgerow_wire::call::ReplyFrame;
use hedgerow_wire::message::Cancel;
use hedgerow_wire::value::Binary;
use hedgerow_wire::{Cause, Extension, Reply, ReplyExtension, Text, Tie};
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
    /// Whether it has cost a token.
    pub(super) is_extra: bool,
    /// Whether its replica was chosen for it, in whichever way its handle reads.
    is_chosen: bool,
}

/// An attempt that is to be sent.
#[derive(Debug)]
pub(super) struct Next<'a> {
    pub(super) target: Target,
    /// What makes it an extra one.
    pub(super) token: Option<Token<'a>>,
    pub(super) any_replica: bool,
}

/// The part that an attempt plays in its request.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) asked: Asked,
    /// Who has the other copy of a tied request, and as which attempt.
    pub(super) tie: Option<(Address, i32)>,
    /// Whether the caller's limit on waiting holds for it.
    pub(super) has_threshold: bool,
}

/// Attempts in the order in which they were sent: the first in place, since most requests have no other.
#[derive(Default)]
pub(super) struct Attempts<'a> {
    pub(super) first: Option<Attempt<'a>>,
    pub(super) others: Vec<Attempt<'a>>,
}

impl<'a> Attempt<'a> {
    /// Sends an attempt to `part.asked.node`; if it could not be sent, why.
    pub(super) fn send(
        request: Request<'a>,
        call: &Call<'a>,
        next: Next<'a>,
        part: Part,
        now: Instant,
    ) -> (Self, Option<Lost>) {
        let Part { asked, tie, .. } = part;
        tracing::debug!(node = %asked.node, attempt = asked.number, kind = ?asked.kind, "sends");
        let target = next.target;
        let floor = match call.reading {
            Some(reading) if !request.sort.is_write => reading.floor(target.group()),
            _ => Floor::default(),
        };
        let tie = tie.map(|(peer, attempt)| Tie { peer: Text::from(peer.to_string()), attempt }.encode());
        let mut extension = call.extension(target, floor, now);
        extension.tie.clone_from(&tie);
        let level = complete(request, &mut extension, &next, part, floor);
        let client = call.client_id();
        extension.client_id = Some(client);
        let late_at = call.late_at(now);
        let limits = Limits { now, deadline: late_at, give_up_at: call.deadline };
        let submitted = call.submit(target, asked.node, extension, limits);
        request.hedging.tell_start(asked);
        let is_told = request.is_told_to_selector(call, asked.number == 1);
        let sent = is_told.then(|| request.cluster.selection.send_at(target.group(), asked.node, now));
        let (waiting, lost) = match submitted {
            Ok(waiting) => (Some(waiting), None),
            Err(lost) => (None, Some(lost)),
        };
        let number = Some(asked.number as u8);
        let is_chosen = call.replicas.is_some() || asked.kind != Kind::First || next.any_replica;
        let is_extra = next.token.map(Token::spend).is_some();
        let attempt = Self {
            request,
            client,
            asked,
            target,
            number,
            waiting,
            sent,
            at: now,
            late_at,
            floor,
            level,
            tie,
            is_extra,
            is_chosen,
        };
        (attempt, lost)
    }

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

    /// Whether its node has answered anything since it was sent, or it is over.
    pub(super) fn has_heard(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.has_heard_since(self.at))
    }

    /// Whether it is late, and nothing at all has come over its connection since it was sent.
    pub(super) fn is_late_unheard(&self) -> bool {
        self.waiting.is_some() && self.number.is_none() && !self.has_heard()
    }

    /// Tells the selector that it was lost. One that was never sent costs no token.
    pub(super) fn note_lost(&mut self, lost: &Lost) {
        self.sent.take().into_iter().for_each(|sent| sent.lost(lost));
        if !lost.may_have_run() && std::mem::take(&mut self.is_extra) {
            self.request.hedging.tokens.give_back();
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
        Answer { reply, holder: Some(asked.node).filter(|_| self.is_chosen) }
    }

    /// Takes it back if it is open, and tells those who keep account how long it was waited for.
    pub(super) fn cancel(&mut self, now: Instant) {
        let Some(waiting) = self.waiting.take() else { return };
        tracing::debug!(node = %self.asked.node, attempt = self.asked.number, "takes back");
        let Request { hedging, sort, id, .. } = self.request;
        let cancel = Cancel {
            client_id: self.client,
            request_id: id,
            attempt: Some(self.asked.number as i32),
            tie: self.tie.clone().map(Binary),
            sequence_id: None,
        };
        let ended = waiting.cancel(&cancel);
        if let Some(Err(lost)) = &ended {
            self.note_lost(lost);
        }
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
            Some(Err(lost)) => note_over(Over::lost(&lost, &lost_error(&lost))),
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

    /// Whether the race counts on any that is open.
    pub(super) fn is_any_counted(&self) -> bool {
        self.iter().any(|attempt| attempt.waiting.is_some() && attempt.number.is_some())
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

/// Says in `extension` what is particular to this attempt; returns the level that it asks for.
fn complete(
    request: Request<'_>,
    extension: &mut Extension,
    next: &Next<'_>,
    part: Part,
    floor: Floor,
) -> Option<ReadLevel> {
    let options = &request.hedging.options;
    let asked = part.asked;
    extension.attempt = Some(asked.number as i32);
    extension.request_id = Some(request.id);
    extension.cause = cause(asked.kind).filter(|_| next.token.is_some()).map(Cause::code);
    extension.wants_trace = options.wants_trace;
    if request.sort.is_write {
        return None;
    }
    let threshold = options.busy_threshold.filter(|_| part.has_threshold);
    extension.busy_threshold_ms = threshold.map(|limit| millis(limit).max(1) as i32);
    extension.any_replica |= next.any_replica;
    let fallback = options.fallback.filter(|_| asked.kind == Kind::Fallback && !floor.is_uncertain);
    if let Some(fallback) = fallback {
        extension.set_read_level(ReadLevel::Bounded(fallback.bound));
        if floor.index > 0 {
            let token = SessionToken::of(next.target.group(), floor.index);
            extension.session_token = Some(Bytes::from(token.encode()));
        }
    }
    extension.read_level()
}

/// Why an attempt of this kind is sent, as its request says it.
fn cause(kind: Kind) -> Option<Cause> {
    match kind {
        Kind::First => None,
        Kind::Hedge => Some(Cause::Hedge),
        Kind::Tie => Some(Cause::Tie),
        Kind::Retry => Some(Cause::Retry),
        Kind::Fallback => Some(Cause::Fallback),
    }
}
