//! Several attempts of one write: whichever node they reach, the leader gets them, applies the write once, and gives all the
//! same result.
//!
//! ```text
//! client ──attempt 2──> node 2, follower ──Forward──> node 1, leader: joins attempt 1, or proposes
//!        <───reply────                   <─Forwarded─
//! ```
//!
//! An extra attempt of a write that reaches a replica that does not lead is sent on, over one hop at most: a node that
//! takes it and does not lead says so. First attempts are told who leads, so that clients learn it. At the leader an extra
//! attempt joins the write that it repeats while that one waits for its outcome. Before and after, it is proposed, and the
//! session table makes sure that it is applied once (`host/storage/src/session.rs`).
//!
//! What is sent on, and its answer, may be lost with a connection between the nodes, of which nobody tells. So the node that
//! sent it on does not wait for it to the end: it says after a while that it does not know, and the client asks again.

use crate::config::{FORWARDS_BYTES_MAX, FORWARDS_MAX, JOIN_SEARCH_MAX, JOINED_MAX};
use crate::ids::Numbers;
use crate::outbox::ConnectionId;
use crate::peer::{Forward, Forwarded, Frame};
use crate::replica::{Origin, PendingWrite};
use crate::requests::Serving;
use crate::requests::caller::Caller;
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::waiting::Waiting;
use bytes::BytesMut;
use hedgerow_env::Now;
use hedgerow_replication::Role;
use hedgerow_types::{ClientId, GroupId, Instant, NodeId, Refusal, ReplicaId, Sequence};
use hedgerow_wire::{Body, Class, Header, Reply, ReplyExtension, call};
use serde_json::{Value, json};
use std::time::Duration;

/// How long another node's answer is waited for. Much longer than a leader takes that is well, and much shorter than callers
/// wait: what is left of their time is for another attempt.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// Stands for the connection of a request that came from another node.
const NO_CONNECTION: ConnectionId = ConnectionId(u64::MAX);

/// Writes that were sent on, and counts since the node started.
#[derive(Debug)]
pub(crate) struct Forwards {
    waiting: Waiting<SentOn>,
    /// Numbers begin anywhere: an answer that was for this node's former life finds nothing.
    numbers: Numbers,
    sent: u64,
    answered: u64,
    taken: u64,
    joined: u64,
}

/// A write that waits for another node's answer.
#[derive(Debug)]
struct SentOn {
    to: NodeId,
    id: RequestId,
}

impl Forwards {
    /// Nothing was sent on.
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self { waiting: Waiting::default(), numbers, sent: 0, answered: 0, taken: 0, joined: 0 }
    }

    /// When the first one has been waited for long enough.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.waiting.first()
    }

    /// A request came that a client, or another node for one, has sent.
    pub(super) fn note_taken(&mut self, caller: &Caller) {
        self.taken += u64::from(caller.forwarded_for.is_some());
    }

    /// Takes a write back that was sent on. It may still take effect.
    pub(crate) fn remove(&mut self, number: u64) {
        self.waiting.remove(number);
    }

    /// What the operator is told: writes that wait for another node, were sent to one, came back, were taken from one, and
    /// joined the write that they repeat.
    pub(crate) fn told(&self) -> Value {
        json!({
            "waiting": self.waiting.len(),
            "waiting_bytes": self.waiting.bytes(),
            "sent": self.sent,
            "answered": self.answered,
            "taken": self.taken,
            "joined": self.joined,
        })
    }
}

/// What node `from` sent on for a client, as a request that was let through there. Nothing if it is no write.
pub(crate) fn taken_from(from: NodeId, forward: Forward, now: Now) -> Option<(Caller, Header, Body)> {
    let frame_bytes = forward.request.len();
    let request = match hedgerow_wire::decode_request(forward.request) {
        Ok(request) if request.body.method().class() == Class::Write => request,
        Ok(_) | Err(_) => {
            tracing::warn!(%from, "what was sent on is not a write");
            return None;
        }
    };
    #[cfg(feature = "mutations")]
    let request = hedgerow_wire::Request { header: crate::mutation::sent_on(request.header), ..request };
    let method = request.body.method();
    let mut caller = Caller::of(NO_CONNECTION, &request.header, request.sequence_id, method, now);
    caller.frame_bytes = frame_bytes;
    caller.forwarded_for = Some((from, forward.id));
    // Only the client's own connection takes it back, and that is at the other node.
    caller.name = None;
    Some((caller, request.header, request.body))
}

impl Serving<'_> {
    /// Brings an extra attempt of a write to where it belongs: to the write that it repeats, or to the leader's node. What
    /// this leaves over is served as any other write.
    pub(crate) fn place_extra_write(
        &mut self,
        group: GroupId,
        number: (ClientId, Sequence),
        header: &Header,
        body: &Body,
        caller: Caller,
        now: Now,
    ) -> Option<Caller> {
        if caller.extra_attempt.is_none() || number.0 == ClientId(0) {
            return Some(caller);
        }
        let Some(replica) = self.replicas.running(group) else { return Some(caller) };
        if replica.group.role() == Role::Leader {
            return self.join_write(group, number, caller);
        }
        match replica.group.leader().map(ReplicaId::node) {
            Some(leader) if caller.forwarded_for.is_none() && self.may_send_on(leader, caller.frame_bytes) => {
                self.send_on(leader, header, body, caller, now);
                None
            }
            Some(_) | None => Some(caller),
        }
    }

    fn join_write(&mut self, group: GroupId, number: (ClientId, Sequence), caller: Caller) -> Option<Caller> {
        let Some(replica) = self.replicas.running(group) else { return Some(caller) };
        let newest = replica.writes.iter_mut().rev().take(JOIN_SEARCH_MAX);
        let is_repeated = |write: &PendingWrite| write.number == number && write.others.len() < JOINED_MAX;
        let Some((index, write)) = newest.into_iter().find(|(_, write)| is_repeated(write)) else {
            return Some(caller);
        };
        let deadline = caller.deadline;
        let id = self.requests.callers.insert(caller, WaitsIn::Write(group, *index));
        write.others.push(Origin::Client { id, deadline });
        replica.note_deadline(deadline);
        self.requests.forwards.joined += 1;
        self.replicas.mark_dirty(group);
        None
    }

    fn may_send_on(&self, leader: NodeId, bytes: usize) -> bool {
        let waiting = &self.requests.forwards.waiting;
        leader != self.config.node
            && waiting.len() < FORWARDS_MAX
            && waiting.bytes() + bytes <= FORWARDS_BYTES_MAX
            && self.view.alive.contains(&leader)
    }

    fn send_on(&mut self, leader: NodeId, header: &Header, body: &Body, caller: Caller, now: Now) {
        self.requests.forwards.sent += 1;
        let number = self.requests.forwards.numbers.next();
        let mut header = header.clone();
        if let Some(extension) = &mut header.extension {
            let left = caller.deadline.since(now.instant);
            extension.deadline_ms = Some(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
        }
        let mut request = BytesMut::new();
        call::encode_request(&mut request, &header, caller.sequence_id, body);
        let (until, bytes) = (caller.deadline.min(now.instant + LOST_AFTER), caller.frame_bytes);
        let id = self.requests.callers.insert(caller, WaitsIn::SentOn(number));
        self.requests.forwards.waiting.insert(number, until, bytes, SentOn { to: leader, id });
        self.send(leader, &Frame::Forward(Forward { id: number, request: request.freeze() }));
    }

    /// Answers a write that another node sent on.
    pub(crate) fn answer_forwarded(&mut self, caller: &Caller, reply: &Reply, extension: Option<&ReplyExtension>) {
        let Some((node, id)) = caller.forwarded_for else { return };
        let mut out = BytesMut::new();
        hedgerow_wire::encode_reply(&mut out, caller.method, caller.sequence_id, reply, extension);
        self.send(node, &Frame::Forwarded(Forwarded { id, reply: out.freeze() }));
    }

    /// The answer to a write that was sent on. One that nobody waits for any more is dropped.
    pub(crate) fn handle_forwarded(&mut self, from: NodeId, forwarded: Forwarded, _now: Now) {
        let Forwarded { id: number, reply } = forwarded;
        if self.requests.forwards.waiting.get(number).is_none_or(|sent| sent.to != from) {
            return;
        }
        let sent = self.requests.forwards.waiting.remove(number);
        let Some(caller) = sent.and_then(|sent| self.requests.callers.remove(sent.id)) else { return };
        // Anything but one whole reply to this very request would garble the client's connection.
        let is_its_own = |frame: &call::ReplyFrame| frame.sequence_id == caller.sequence_id;
        let Some(frame) = call::decode_reply(reply.clone()).ok().filter(is_its_own) else {
            tracing::warn!(%from, "a reply to what was sent on is malformed");
            return self.answer_refused(&caller, &Refusal::Unresolved);
        };
        self.requests.forwards.answered += 1;
        match frame.reply {
            Reply::Failed(_) => self.requests.load.refuse(caller.is_data()),
            _ => {
                self.requests.load.answer(caller.is_data());
                self.requests.note_reply(&caller, reply.len());
            }
        }
        if caller.has_passed {
            self.requests.throttles.note_bytes(caller.group(), reply.len());
        }
        self.outbox.client(caller.connection).extend_from_slice(&reply);
    }

    /// Answers those whose deadline has come, and those for whom nothing has come back for so long that it counts as lost.
    /// Their writes may still take effect.
    pub(crate) fn expire_forwards(&mut self, now: Now) {
        while let Some(SentOn { id, .. }) = self.requests.forwards.waiting.pop_due(now.instant) {
            let Some(caller) = self.requests.callers.remove(id) else { continue };
            let is_late = caller.deadline <= now.instant;
            let refusal = if is_late { Refusal::Expired } else { Refusal::Unresolved };
            self.refuse_client(caller, &refusal, now);
        }
    }
}
