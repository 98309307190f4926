//! The half of a node that serves: groups with their storage and their log writes, and the requests that wait for them.
//!
//! The other half, the rest of [`crate::Node`], decides what belongs here, who should lead, and what the catalogue says. This half cannot reach
//! it: what it goes by is in the [`View`], and what it has to tell leaves it as a [`Notice`] (decision 017).

use crate::config::Config;
use crate::ids::ReplicaKey;
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
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId, Refusal};
use std::sync::Arc;

/// What serves, of a node.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) config: Arc<Config>,
    pub(crate) random: Random,
    /// What it goes by. Only the rest of the node changes it.
    pub(crate) view: View,
    pub(crate) requests: Requests,
    pub(crate) replicas: Replicas,
    pub(crate) log_writes: LogWrites,
    pub(crate) read_indexes: ReadIndexes,
    /// How fast checkpoints leave.
    pub(crate) limiter: Limiter,
    pub(crate) removals: Removals,
    pub(crate) loads: Loads,
    pub(crate) outbox: Outbox,
    /// What the rest of the node has not been told yet, oldest first. See [`crate::Node::take_notices`].
    pub(crate) notices: Vec<Notice>,
}

impl Shard {
    /// It hosts nothing yet.
    pub(crate) fn new(config: Arc<Config>, mut random: Random) -> Self {
        Self {
            view: View::new(&config),
            requests: Requests::new(&config, random.next_u64()),
            replicas: Replicas::default(),
            log_writes: LogWrites::default(),
            read_indexes: ReadIndexes::new(random.next_u64()),
            limiter: Limiter::new(config.snapshot_bytes_per_second),
            removals: Removals::default(),
            loads: Loads::default(),
            outbox: Outbox::default(),
            notices: Vec::new(),
            config,
            random,
        }
    }

    /// Its requests, with what they are served from.
    pub(crate) fn serving(&mut self) -> Serving<'_> {
        let Self { config, view, requests, replicas, outbox, random, .. } = self;
        Serving { config, view, requests, replicas, outbox, random }
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

    pub(crate) fn send(&mut self, to: NodeId, frame: &Frame) {
        self.outbox.send(self.config.node, to, frame);
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
