//! Questions to the logs of other voters, for reads that do not wait for their leader: do you hold anything newer for these keys?
//!
//! ```text
//! node A                                                             nodes B, C
//!   reads wait in groups 1, 2, which A does not lead
//!   drive: a message may leave
//!          Group::ask_tails each, and TailIndex::look_up here
//!          ── TailRequests(id, 1 2) ──────────────────────────────>  TailIndex::look_up each
//!   Group::handle_tail_reply each  <─────────────── TailReplies ───
//!   drive: reads that a majority has nothing newer for are served
//! ```
//!
//! Why that is safe is in decision 018. Nothing is repeated here: what is lost ends with the patience of the read.

use crate::ids::ReplicaKey;
use crate::peer::Frame;
use crate::replica::{Hosted, Replica};
use crate::shard::Shard;
use crate::tail_frame::{Asked, KeySpan, TAIL_SPANS_MAX, TailRead, TailReplies, TailReply, TailRequest, TailRequests};
use hedgerow_env::Now;
use hedgerow_replication::{QUORUM_READS_MAX, TailQuestion};
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId, Span};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Bytes of keys in the questions that leave together. The reads beyond it ask for every key.
const KEY_BYTES_MAX: usize = 1 << 20;
/// What a span counts beside its keys, bytes: its head in the message.
const SPAN_OVERHEAD: usize = 16;
/// Spans of one group's reads in a message. The reads beyond it ask for every key, with one span each.
const NAMED_SPANS_MAX: usize = TAIL_SPANS_MAX - QUORUM_READS_MAX;
/// A message has no more than this, bytes, unless one group's questions do. The answer to it is at most three times as long, which is allowed
/// ([`crate::tail_frame::TAIL_FRAME_SIZE_MAX`]).
const MESSAGE_SIZE: usize = 1 << 20;

/// Steps that look-ups for others, or for this node's own reads, may take at once: some twenty milliseconds.
const STEPS_MAX: usize = 1 << 21;
/// Steps that are added in a microsecond: a third of the thread. What comes beyond it has to be asked again.
const STEPS_PER_MICRO: usize = 1 << 5;

/// What is left for look-ups in logs, so that many of them leave the thread to others.
#[derive(Debug)]
struct Steps {
    left: usize,
    filled: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        Self { left: STEPS_MAX, filled: Instant(0) }
    }
}

impl Steps {
    fn fill(&mut self, now: Instant) -> &mut usize {
        let micros = usize::try_from(now.since(self.filled).as_micros()).unwrap_or(usize::MAX);
        if micros > 0 {
            self.left = STEPS_MAX.min(self.left.saturating_add(micros.saturating_mul(STEPS_PER_MICRO)));
            self.filled = now;
        }
        &mut self.left
    }
}

/// What is left for this node's own reads, and for other nodes.
#[derive(Debug, Default)]
pub(crate) struct TailSteps {
    own: Steps,
    others: Steps,
}

/// Counts since the node started.
#[derive(Debug, Default)]
pub(crate) struct TailCounts {
    /// Reads that asked.
    reads_asked: u64,
    messages_sent: u64,
    messages_received: u64,
    /// What other voters said of reads here, one by one.
    nowhere: u64,
    touched: u64,
    ask_again: u64,
}

impl TailCounts {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "reads_asked": self.reads_asked,
            "messages_sent": self.messages_sent,
            "messages_received": self.messages_received,
            "nowhere": self.nowhere,
            "touched": self.touched,
            "ask_again": self.ask_again,
        })
    }
}

impl Replica {
    /// The keys of the reads that ask, of which `budget` bytes are left, and what this replica's own log says of them.
    fn ask_itself(
        &mut self,
        id: u64,
        question: &TailQuestion,
        budget: &mut usize,
        steps: &mut usize,
        now: Now,
    ) -> Vec<Vec<Span>> {
        let mut named = NAMED_SPANS_MAX;
        let spans = |ticket: &u64| {
            let Some(pending) = self.reads.get(ticket) else { return Vec::new() };
            let (count, size) = pending.read.spans_size();
            let bytes = budget.checked_sub(size + count * SPAN_OVERHEAD);
            let (Some(bytes), Some(rest)) = (bytes, named.checked_sub(count)) else { return vec![Span::ALL] };
            (*budget, named) = (bytes, rest);
            pending.read.spans()
        };
        let spans: Vec<_> = question.tickets.iter().map(spans).collect();
        let touches = self.tail.look_up_within(&self.group, question.after, &spans, steps);
        self.group.handle_tail_reply(self.owner.replica, id, touches, now.instant);
        spans
    }
}

impl Shard {
    /// Notes that `group` has a question for other voters' logs, if it has one.
    pub(crate) fn gather_tail_request(&mut self, group: GroupId) {
        if let Some(Hosted::Running(replica)) = self.replicas.hosted.get(&group)
            && replica.group.wants_to_ask_tails()
        {
            self.read_indexes.tails.handle_wanted(group);
        }
    }

    /// Sends the questions whose time has come. Each is made at this moment, so that it covers every read that has arrived.
    pub(crate) fn send_tail_requests(&mut self, now: Now) {
        let Some((id, groups)) = self.read_indexes.poll_tails(now.instant) else { return };
        let mut budget = KEY_BYTES_MAX;
        let mut gathered: BTreeMap<NodeId, Vec<TailRequest>> = BTreeMap::new();
        for group in groups {
            let steps = self.read_indexes.tail_steps.own.fill(now.instant);
            let Some(replica) = self.replicas.running(group) else { continue };
            let from = replica.id();
            let Some(question) = replica.group.ask_tails(id, now.instant) else { continue };
            let spans = replica.ask_itself(id, &question, &mut budget, steps, now);
            self.read_indexes.tail_counts.reads_asked += spans.len() as u64;
            let of_read = |spans: Vec<Span>| TailRead { spans: spans.into_iter().map(KeySpan::of).collect() };
            let reads: Vec<_> = spans.into_iter().map(of_read).collect();
            for to in question.voters {
                let (group, after) = (group.to_u64(), question.after);
                let request = TailRequest { group, from: from.0, to: to.0, after, reads: reads.clone() };
                gathered.entry(to.node()).or_default().push(request);
            }
            self.update_wake(group);
        }
        if gathered.is_empty() {
            self.read_indexes.tails.handle_unsent(id);
        }
        for (node, requests) in gathered {
            let (mut part, mut asked) = (Vec::new(), Asked::default());
            for request in requests {
                let (one, all) = (Asked::by(&request), asked.and(Asked::by(&request)));
                asked = if all.fits() && all.size <= MESSAGE_SIZE {
                    all
                } else {
                    self.send_tail_part(node, id, std::mem::take(&mut part));
                    one
                };
                part.push(request);
            }
            self.send_tail_part(node, id, part);
        }
    }

    fn send_tail_part(&mut self, node: NodeId, id: u64, requests: Vec<TailRequest>) {
        if !requests.is_empty() {
            self.read_indexes.tail_counts.messages_sent += 1;
            self.send(node, &Frame::TailRequests(TailRequests { id, requests }));
        }
    }

    /// Another node asks; it is told at once, or that it has to ask again where that takes too long.
    pub(crate) fn handle_tail_requests(&mut self, node: NodeId, requests: TailRequests, now: Now) {
        self.read_indexes.tail_counts.messages_received += 1;
        let mut replies = Vec::with_capacity(requests.requests.len());
        for TailRequest { group, from, to, after, reads } in requests.requests {
            let owner = ReplicaKey { group: GroupId::from_u64(group), replica: ReplicaId(to) };
            // A reply goes to the node of the replica that asks, which is the one that sent the request.
            if ReplicaId(from).node() != node {
                continue;
            }
            let spans: Vec<_> = reads.iter().map(TailRead::spans).collect();
            let steps = self.read_indexes.tail_steps.others.fill(now.instant);
            let replica = self.replicas.running_as(owner);
            let touches = replica.and_then(|it| it.tail.look_up_within(&it.group, after, &spans, steps));
            replies.push(TailReply { group, from: to, to: from, ..TailReply::default() }.say(touches));
        }
        self.read_indexes.tail_counts.messages_sent += 1;
        self.send(node, &Frame::TailReplies(TailReplies { id: requests.id, replies }));
    }

    /// The answers to a message of this node's.
    pub(crate) fn handle_tail_replies(&mut self, node: NodeId, replies: &TailReplies, now: Now) {
        self.read_indexes.tail_counts.messages_received += 1;
        self.read_indexes.tails.handle_answered(replies.id, now.instant);
        for one in replies.replies.iter().filter(|one| ReplicaId(one.from).node() == node) {
            let group = GroupId::from_u64(one.group);
            let Some(replica) = self.running_as(ReplicaKey { group, replica: ReplicaId(one.to) }) else { continue };
            let touches = one.touches();
            if replica.group.handle_tail_reply(ReplicaId(one.from), replies.id, touches, now.instant) {
                self.mark_dirty(group);
                let counts = &mut self.read_indexes.tail_counts;
                let touched = one.touched.iter().filter(|index| **index != 0).count() as u64;
                counts.ask_again += u64::from(!one.is_known);
                counts.touched += touched;
                counts.nowhere += one.touched.len() as u64 - touched;
            }
        }
    }
}
