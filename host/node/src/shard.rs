//! What serves, of a node: groups with their storage and their log writes, and the requests that wait for them. A node may have several; each
//! has some of its groups (`shards.rs`).
//!
//! The rest of [`crate::Node`] decides what is hosted here and who should lead. A shard has no way to reach it, nor another shard: what it goes
//! by is in the [`View`], and what it has to tell leaves as a [`Notice`] (decision 017).

use crate::config::Config;
use crate::errands::Errands;
use crate::ids::{LogId, Numbers, ReplicaKey, ShardId};
use crate::inbox::Handed;
use crate::job::Job;
use crate::loads::Loads;
use crate::log_writes::LogWrites;
use crate::notice::Notice;
use crate::outbox::Outbox;
use crate::peer::Frame;
use crate::rate::Limiter;
use crate::read_indexes::ReadIndexes;
use crate::removals::Removals;
use crate::replica::{Origin, PendingWrite, Replica};
use crate::replicas::Replicas;
use crate::requests::{Requests, Serving};
use crate::shared_bound::Kept;
use crate::view::View;
use bytes::BytesMut;
use hedgerow_env::{Disk, Now};
use hedgerow_storage::Engines;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant, NodeId, Refusal};
use serde_json::Value;
use std::sync::Arc;

/// Its methods are in the files that `lib.rs` lists as the shard's.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) id: ShardId,
    pub(crate) config: Arc<Config>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) engines: Arc<dyn Engines>,
    pub(crate) random: Random,
    /// What it goes by. The rest of the node makes it, and exchanges it for a newer one.
    pub(crate) view: Arc<View>,
    pub(crate) requests: Requests,
    pub(crate) replicas: Replicas,
    pub(crate) log_writes: LogWrites,
    pub(crate) read_indexes: ReadIndexes,
    /// How fast checkpoints leave.
    pub(crate) limiter: Limiter,
    pub(crate) removals: Removals,
    pub(crate) errands: Errands,
    pub(crate) loads: Loads,
    /// When it was last looked at which parts of the logs may go.
    pub(crate) retained_at: Instant,
    /// When it was last looked at what compactions have still to do.
    pub(crate) debts_looked_at: Option<Instant>,
    /// What it was handed since its last turn, and when.
    pub(crate) inbox: Vec<(Handed, Now)>,
    pub(crate) outbox: Outbox,
    /// What the rest of the node has not been told yet, oldest first. See [`crate::Node::take_notices`].
    pub(crate) notices: Vec<Notice>,
}

impl Shard {
    /// It hosts nothing yet.
    pub(crate) fn new(
        id: ShardId,
        config: Arc<Config>,
        disk: Arc<dyn Disk>,
        engines: Arc<dyn Engines>,
        (mut random, view, kept): (Random, Arc<View>, &Kept),
        now: Instant,
    ) -> Self {
        let numbers = Numbers::new(id, config.shards);
        Self {
            id,
            view,
            requests: Requests::new(&config, (id, numbers), kept, random.next_u64()),
            replicas: Replicas::new(numbers),
            log_writes: LogWrites::new(numbers),
            read_indexes: ReadIndexes::new(numbers.from(random.next_u64() >> 1)),
            limiter: Limiter::new(config.share_of(config.snapshot_bytes_per_second)),
            removals: Removals::default(),
            errands: Errands::default(),
            loads: Loads::default(),
            retained_at: now,
            debts_looked_at: None,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            notices: Vec::new(),
            config,
            disk,
            engines,
            random,
        }
    }

    /// A turn begins: whatever was left for it goes on.
    pub(crate) fn begin_turn(&mut self, now: Now) {
        self.tick_groups(now);
        self.take_up_applying(now);
        self.serving().serve_queued(now);
    }

    /// What the operator is told of it.
    pub(crate) fn told(&self) -> Value {
        let mut told = self.requests.told();
        told["read_index"] = self.read_indexes.counts.to_json();
        told["quorum"] = self.read_indexes.tail_counts.to_json();
        told
    }

    /// As [`crate::Node::has_queued`].
    pub(crate) fn has_queued(&self) -> bool {
        !self.inbox.is_empty()
            || self.requests.has_queued()
            || self.replicas.applying.has_rest()
            || self.replicas.is_ticking()
    }

    /// What the groups have asked and written in a turn leaves.
    pub(crate) fn send_gathered(&mut self, now: Now) {
        self.send_read_index_replies();
        self.send_read_index_requests(now);
        self.send_tail_requests(now);
        self.log_writes.submit_all(&mut self.outbox);
    }

    /// Its requests, with what they are served from.
    pub(crate) fn serving(&mut self) -> Serving<'_> {
        let Self { config, view, requests, replicas, outbox, .. } = self;
        Serving { config, view, requests, replicas, outbox }
    }

    /// Has the group looked at before the turn ends.
    pub(crate) fn mark_dirty(&mut self, group: GroupId) {
        self.replicas.mark_dirty(group);
    }

    pub(crate) fn running(&mut self, group: GroupId) -> Option<&mut Replica> {
        self.replicas.running(group)
    }

    /// The running replica that `owner` names; another replica of the same group is none.
    pub(crate) fn running_as(&mut self, owner: ReplicaKey) -> Option<&mut Replica> {
        self.replicas.running_as(owner)
    }

    pub(crate) fn job(&mut self, job: Job) {
        self.outbox.jobs.push(job);
    }

    /// A log is to know nothing of `group` any more.
    pub(crate) fn forget_log(&mut self, log: LogId, group: GroupId) {
        self.log_writes.remove(log, group, &mut self.outbox);
    }

    pub(crate) fn send(&mut self, to: NodeId, frame: &Frame) {
        self.outbox.send(self.config.node, to, frame);
    }

    /// The same to all others. What it takes to write it down, where it is long, it takes once.
    pub(crate) fn send_to_all(&mut self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        crate::peer::put(&mut bytes, frame);
        for node in self.config.peers.keys().filter(|node| **node != self.config.node) {
            self.outbox.peer(*node).extend_from_slice(&bytes);
        }
    }

    /// The same on a connection of its own, for what is large and may wait: nothing else is to queue behind it.
    pub(crate) fn send_bulk(&mut self, to: NodeId, frame: &Frame) {
        if to != self.config.node {
            crate::peer::put(self.outbox.bulk.entry(to).or_default(), frame);
        }
    }

    /// Tells whoever asked that it will not be.
    pub(crate) fn refuse(&mut self, origin: Origin, refusal: &Refusal, now: Now) {
        match origin {
            Origin::Client { id, .. } => self.serving().refuse_waiting(id, refusal, now),
            Origin::Metadata(ticket) => self.notices.push(Notice::MetadataFailed(ticket, refusal.clone())),
        }
    }

    /// Tells everybody who waits for `writes` that they will not know.
    pub(crate) fn refuse_writes(
        &mut self,
        writes: impl IntoIterator<Item = PendingWrite>,
        refusal: &Refusal,
        now: Now,
    ) {
        let origins = writes.into_iter().flat_map(PendingWrite::into_origins);
        origins.for_each(|origin| self.refuse(origin, refusal, now));
    }
}
