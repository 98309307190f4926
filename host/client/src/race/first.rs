//! A request while nothing has happened but its first attempt: what nearly every request is from beginning to end, so that
//! it is to cost little more than one without hedging.

use super::attempt::{Attempt, Next, Part};
use super::request::{Planned, Request};
use crate::alarm::Bell;
use crate::call::{Answer, Call};
use crate::lost::Lost;
use crate::runtime::now;
use hedgerow_hedge::{Kind, Race};
use hedgerow_routing::Address;
use hedgerow_wire::Reply;
use hedgerow_wire::call::ReplyFrame;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// The first attempt, under way.
pub(super) struct First<'a> {
    pub(super) race: Race,
    pub(super) planned: Planned,
    pub(super) attempt: Attempt<'a>,
    /// Its end, if that is not the end of the request.
    pub(super) result: Option<Result<ReplyFrame, Lost>>,
    /// How long the client had been held up when it was sent.
    pub(super) held_up: Duration,
    /// When something else is due.
    due_at: Option<Instant>,
    bell: Bell<'a>,
    is_polled: bool,
}

impl<'a> First<'a> {
    /// Sends it to `node`.
    pub(super) fn send(call: &Call<'a>, request: Request<'a>, planned: Planned, node: Address) -> Self {
        let mut race = Race::new(planned.plan, request.time(call.start));
        let _ = race.poll(request.time(call.start), |_| false);
        // A write may have waited for its number: it begins now, and what was due before that is due now, and not late.
        let begun = if request.sort.is_write { now() } else { call.start };
        let due_at = race.next_at().map(|at| request.moment(at).max(begun));
        let Planned { target, is_moved: any_replica, .. } = planned;
        let asked = request.asked(1, Kind::First, node, target);
        let part = Part { asked, tie: planned.tied.map(|second| (second, 2)), has_threshold: true };
        let next = Next { target, token: None, any_replica };
        let (attempt, lost) = Attempt::send(request, call, next, part, begun);
        let (held_up, bell) = (request.cluster.alarm.held_up(), request.bell());
        Self { race, planned, attempt, result: lost.map(Err), held_up, due_at, bell, is_polled: false }
    }

    /// Gives the answer, or `None` as soon as the request needs more than this attempt.
    pub(super) fn poll(&mut self, call: &Call<'a>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let Some(waiting) = &mut self.attempt.waiting else { return Poll::Ready(None) };
        if let Poll::Ready(result) = Pin::new(waiting).poll(context) {
            self.attempt.waiting = None;
            return Poll::Ready(match result.map(|frame| self.attempt.check(frame)) {
                Ok(frame) if !matches!(frame.reply, Reply::Failed(_)) => {
                    self.attempt.note_served(frame.extension.as_ref());
                    let extension = frame.extension.unwrap_or_default();
                    Some(self.attempt.win(call, 1, frame.reply, &extension, now()))
                }
                result => {
                    self.result = Some(result);
                    None
                }
            });
        }
        // The moment at which it was sent is none at which anything else is due.
        if std::mem::replace(&mut self.is_polled, true) {
            let now = now();
            if now >= self.attempt.late_at || self.due_at.is_some_and(|due| now >= due) {
                return Poll::Ready(None);
            }
        }
        if let Some(due) = self.due_at {
            self.bell.set(due, context);
        }
        Poll::Pending
    }
}
