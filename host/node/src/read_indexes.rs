//! Read index requests and replies between nodes: replicas that do not lead ask what is committed, on behalf of the reads that wait
//! there, and one frame between two nodes carries what all their groups ask or reply.
//!
//! ```text
//! node A                                                       node B
//!   reads wait in groups 1, 2, 5, led from B
//!   drive: ReadIndexBatcher says that a message may leave
//!          Group::ask each  ── ReadIndexRequests(id, 1 2 5) ────────>  Group::handle_read_index_request each
//!                                                              drive: Ready::answers of all groups
//!   Group::handle_read_index_reply each  <────────────── ReadIndexReplies ──────
//!   drive: reads whose index is applied are served
//! ```
//!
//! Nothing is repeated here: what is lost is asked again, under another id, by groups that run out of patience.

use crate::ids::{Numbers, ReplicaKey};
use crate::peer::Frame;
use crate::read_index_frame::{GroupReply, GroupRequest, REQUESTS_MAX, ReadIndexRequests};
use crate::shard::Shard;
use crate::tails::{TailCounts, TailSteps};
use hedgerow_env::Now;
use hedgerow_replication::{ReadIndexBatcher, ReadIndexReply};
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What leaves with the next messages of requests and replies.
#[derive(Debug)]
pub(crate) struct ReadIndexes {
    /// When requests leave, by the node that they go to.
    pub(crate) batchers: BTreeMap<NodeId, ReadIndexBatcher>,
    /// When questions to voters' logs leave (`tails.rs`): to all nodes at the same time.
    pub(crate) tails: ReadIndexBatcher,
    /// Replies that leave with the current batch of events, by the node that they go to.
    replies: BTreeMap<NodeId, Vec<GroupReply>>,
    /// Of messages with requests.
    ids: Numbers,
    pub(crate) counts: ReadIndexCounts,
    pub(crate) tail_counts: TailCounts,
    pub(crate) tail_steps: TailSteps,
}

/// Counts since the node started.
#[derive(Debug, Default)]
pub(crate) struct ReadIndexCounts {
    /// Frames with requests or replies.
    messages_sent: u64,
    messages_received: u64,
    read_index_requests_sent: u64,
    read_index_requests_received: u64,
    read_index_replies_sent: u64,
    read_index_replies_received: u64,
}

impl ReadIndexCounts {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "messages_sent": self.messages_sent,
            "messages_received": self.messages_received,
            "read_index_requests_sent": self.read_index_requests_sent,
            "read_index_requests_received": self.read_index_requests_received,
            "read_index_replies_sent": self.read_index_replies_sent,
            "read_index_replies_received": self.read_index_replies_received,
        })
    }
}

impl ReadIndexes {
    /// The `ids` begin at a random place, so that no life of the node uses another's.
    pub(crate) fn new(ids: Numbers) -> Self {
        Self {
            batchers: BTreeMap::new(),
            tails: ReadIndexBatcher::to_many(),
            replies: BTreeMap::new(),
            ids,
            counts: ReadIndexCounts::default(),
            tail_counts: TailCounts::default(),
            tail_steps: TailSteps::default(),
        }
    }

    /// The messages that may leave now: to which node, under which id, with the requests of which groups. Costs next to
    /// nothing if there are none, as after most events.
    fn poll(&mut self, now: Instant) -> Vec<(NodeId, u64, Vec<GroupId>)> {
        let mut due = Vec::new();
        for (node, batcher) in &mut self.batchers {
            if let Some(groups) = batcher.poll(self.ids.peek(), now) {
                due.push((*node, self.ids.next(), groups));
            }
        }
        due
    }

    /// The message to voters' logs that may leave now: under which id, with the questions of which groups.
    pub(crate) fn poll_tails(&mut self, now: Instant) -> Option<(u64, Vec<GroupId>)> {
        let groups = self.tails.poll(self.ids.peek(), now)?;
        Some((self.ids.next(), groups))
    }

    /// When a message may leave although nothing else happens.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.batchers.values().chain([&self.tails]).filter_map(ReadIndexBatcher::wakes_at).min()
    }
}

impl Shard {
    /// Notes that `group` has a request, if it has one.
    pub(crate) fn gather_read_index_request(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        if let Some(leader) = replica.group.wants_to_ask(now.instant) {
            self.read_indexes.batchers.entry(leader.node()).or_default().handle_wanted(group);
        }
    }

    /// Sends the requests whose time has come. Each is made at this moment, so that it covers every read that has arrived.
    pub(crate) fn send_read_index_requests(&mut self, now: Now) {
        let mut gathered: BTreeMap<(NodeId, u64), Vec<GroupRequest>> = BTreeMap::new();
        for (node, id, groups) in self.read_indexes.poll(now.instant) {
            for group in groups {
                let Some(replica) = self.running(group) else { continue };
                let from = replica.id();
                let asked = replica.group.ask(id, now.instant);
                self.update_wake(group);
                if let Some((to, request)) = asked {
                    // The leader may have changed since the group was noted: the request goes where the leader is.
                    let one = GroupRequest { group, from, to, term: request.term };
                    gathered.entry((to.node(), id)).or_default().push(one);
                }
            }
            if !gathered.contains_key(&(node, id))
                && let Some(batcher) = self.read_indexes.batchers.get_mut(&node)
            {
                batcher.handle_unsent(id);
            }
        }
        for ((node, id), requests) in gathered {
            self.read_indexes.counts.read_index_requests_sent += requests.len() as u64;
            for part in requests.chunks(REQUESTS_MAX) {
                self.read_indexes.counts.messages_sent += 1;
                self.send(node, &Frame::ReadIndexRequests(ReadIndexRequests { id, requests: part.to_vec() }));
            }
        }
    }

    pub(crate) fn handle_read_index_requests(&mut self, node: NodeId, requests: &ReadIndexRequests, now: Now) {
        self.read_indexes.counts.messages_received += 1;
        self.read_indexes.counts.read_index_requests_received += requests.requests.len() as u64;
        for one in &requests.requests {
            let owner = ReplicaKey { group: one.group, replica: one.to };
            let request = one.request(requests.id);
            match self.running_as(owner) {
                // A reply goes to the node of the replica that asks, which is the one that sent the request.
                _ if one.from.node() != node => {}
                Some(replica) => {
                    replica.group.handle_read_index_request(one.from, request, now.instant);
                    self.mark_dirty(one.group);
                }
                // It does not lead, whatever it was. The other one need not wait to find that out.
                None => {
                    let reply = ReadIndexReply { term: request.term, id: request.id, commit: None };
                    self.gather_read_index_replies(owner, [(one.from, reply)]);
                }
            }
        }
    }

    /// Notes what `owner` replies.
    pub(crate) fn gather_read_index_replies(
        &mut self,
        owner: ReplicaKey,
        replies: impl IntoIterator<Item = (ReplicaId, ReadIndexReply)>,
    ) {
        for (to, reply) in replies {
            let one = GroupReply { group: owner.group, from: owner.replica, to, reply };
            self.read_indexes.replies.entry(to.node()).or_default().push(one);
        }
    }

    /// Sends the replies of all groups, one frame to each node.
    pub(crate) fn send_read_index_replies(&mut self) {
        while let Some((node, replies)) = self.read_indexes.replies.pop_first() {
            self.read_indexes.counts.read_index_replies_sent += replies.len() as u64;
            for part in replies.chunks(REQUESTS_MAX) {
                self.read_indexes.counts.messages_sent += 1;
                self.send(node, &Frame::ReadIndexReplies(part.to_vec()));
            }
        }
    }

    pub(crate) fn handle_read_index_replies(&mut self, node: NodeId, replies: &[GroupReply], now: Now) {
        self.read_indexes.counts.messages_received += 1;
        self.read_indexes.counts.read_index_replies_received += replies.len() as u64;
        let mut last = None;
        for one in replies.iter().filter(|one| one.from.node() == node) {
            // Replies to one message come together, as a rule, and only the first says anything of the message.
            if last.replace(one.reply.id) != Some(one.reply.id)
                && let Some(batcher) = self.read_indexes.batchers.get_mut(&node)
            {
                batcher.handle_answered(one.reply.id, now.instant);
            }
            if let Some(replica) = self.running_as(ReplicaKey { group: one.group, replica: one.to }) {
                replica.group.handle_read_index_reply(one.from, one.reply, now.instant);
                self.mark_dirty(one.group);
            }
        }
    }
}
