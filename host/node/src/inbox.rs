//! What a shard has been handed since its last turn, and what it does in a turn.
//!
//! Between two turns only the rest of the node runs, and in a turn a shard runs alone: it sees nothing of the rest but its view, nothing of another shard,
//! and says what the rest has to know as notices, which are taken after the turn. So turns of several shards at the same time come to the
//! same as one after the other.

use crate::ids::{ReplicaKey, ShardId};
use crate::outbox::ConnectionId;
use crate::peer::{Began, Forwarded, SnapshotBegin, SnapshotChunk, SnapshotProgress};
use crate::read_index_frame::{GroupReply, ReadIndexRequests};
use crate::requests::caller::Caller;
use crate::shard::Shard;
use crate::tail_frame::{TailReplies, TailRequests};
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_types::{NodeId, ReplicaId};
use hedgerow_wire::message::Cancel;
use hedgerow_wire::{Body, Header};
use std::time::Duration;

/// What is for a shard.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are of the largest kind")]
pub(crate) enum Handed {
    /// The time has come at which something waits to be looked at.
    Wake,
    /// A read or a write of a client, which was let through here or at the node that sent it on.
    Data(Caller, Header, Body),
    /// A client wants no more what it asked for.
    Cancel(ConnectionId, Cancel),
    /// A client's connection is gone.
    Closed(ConnectionId),
    /// A message of a group, to this replica here from another.
    Replication(ReplicaKey, ReplicaId, Bytes),
    /// A checkpoint is offered, and whether its receiver is needed to write.
    SnapshotBegin(SnapshotBegin, bool),
    SnapshotChunk(SnapshotChunk),
    SnapshotProgress(SnapshotProgress),
    ReadIndexRequests(NodeId, ReadIndexRequests),
    ReadIndexReplies(NodeId, Vec<GroupReply>),
    TailRequests(NodeId, TailRequests),
    TailReplies(NodeId, TailReplies),
    Forwarded(NodeId, Forwarded),
    Began(NodeId, Began),
}

/// What something to do costs at least.
const COST_MIN: Duration = Duration::from_micros(2);

impl Shard {
    /// Keeps it for the next turn, where others may have theirs at the same time; the only one takes it at once. It counts as of `now`.
    pub(crate) fn hand(&mut self, handed: Handed, now: Now) {
        if self.config.shards == 1 {
            self.take(handed, now);
        } else {
            self.inbox.push((handed, now));
        }
    }

    /// A turn: takes what it was handed, serves reads whose turn it is, and runs its groups until nothing is left to do.
    pub(crate) fn take_turn(&mut self, now: Now) {
        self.take_inbox();
        self.begin_turn(now);
        self.drive_all(now);
    }

    /// Takes what it was handed. Before its turn where something else must not overtake that.
    pub(crate) fn take_inbox(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.drain(..).for_each(|(handed, now)| self.take(handed, now));
        // Its room is for the next ones.
        self.inbox = inbox;
    }

    /// Runs its groups until nothing is left to do.
    pub(crate) fn drive_all(&mut self, now: Now) {
        while !self.replicas.dirty.is_empty() {
            let dirty = std::mem::take(&mut self.replicas.dirty);
            dirty.into_iter().for_each(|group| self.drive_marked(group, now));
        }
    }

    /// About how long a turn would take, by what requests have cost lately.
    pub(crate) fn backlog(&self) -> Duration {
        let Self { inbox, replicas, requests, .. } = self;
        let count = inbox.len() + replicas.dirty.len() + replicas.applying.rest() + requests.queued_count();
        requests.service().max(COST_MIN) * u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn take(&mut self, handed: Handed, now: Now) {
        match handed {
            Handed::Wake => self.handle_wake(now),
            Handed::Data(caller, header, body) => self.serving().take_data(caller, &header, &body, now),
            Handed::Cancel(connection, cancel) => {
                let has_found = self.serving().handle_cancel(connection, &cancel, now);
                self.requests.note_cancel(self.id == ShardId::default(), has_found);
            }
            Handed::Closed(connection) => {
                self.serving().drop_requests_of(connection);
                self.requests.forget_connection(connection);
                self.outbox.clients.remove(&connection);
            }
            Handed::Replication(owner, from, message) => self.handle_replication(owner, from, message, now),
            Handed::SnapshotBegin(begin, is_needed) => self.handle_snapshot_begin(begin, is_needed, now),
            Handed::SnapshotChunk(chunk) => self.handle_snapshot_chunk(chunk, now),
            Handed::SnapshotProgress(progress) => self.handle_snapshot_progress(progress, now),
            Handed::ReadIndexRequests(from, requests) => self.handle_read_index_requests(from, &requests, now),
            Handed::ReadIndexReplies(from, replies) => self.handle_read_index_replies(from, &replies, now),
            Handed::TailRequests(from, requests) => self.handle_tail_requests(from, requests, now),
            Handed::TailReplies(from, replies) => self.handle_tail_replies(from, &replies, now),
            Handed::Forwarded(from, forwarded) => self.serving().handle_forwarded(from, forwarded, now),
            Handed::Began(from, began) => self.serving().handle_began(from, began, now),
        }
    }
}
