//! A look inside a node, for tests and simulations that check what must always hold.

use crate::ids::LogId;
use crate::node::Node;
use crate::outbox::ConnectionId;
use crate::replica::Hosted;
use hedgerow_replication::{Group, Role};
use hedgerow_storage::Partition;
use hedgerow_types::{GroupId, Index, Instant, ReplicaId, Term};

/// One replica, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaView<'a> {
    /// Its group's id.
    pub id: GroupId,
    /// Itself.
    pub replica: ReplicaId,
    /// The log it uses. Another one may still hold what a former replica of the group has written.
    pub log: LogId,
    /// Its view of the group.
    pub group: &'a Group,
    /// Its storage; absent while a checkpoint is being installed.
    pub storage: Option<&'a Partition>,
}

impl ReplicaView<'_> {
    /// Whether it leads, and in which term.
    pub fn leads(&self) -> Option<Term> {
        (self.group.role() == Role::Leader).then(|| self.group.term())
    }

    /// The last index applied to storage.
    pub fn applied(&self) -> Index {
        self.storage.map_or(0, |storage| storage.applied().index)
    }

    /// Whether it would serve a read at `now` by its lease.
    pub fn holds_lease(&self, now: Instant) -> bool {
        self.group.lease_holds(now)
    }
}

impl Node {
    /// Every running replica.
    pub fn replicas_for_inspection(&self) -> impl Iterator<Item = ReplicaView<'_>> {
        self.shards.all_hosted().filter_map(|(id, hosted)| match hosted {
            Hosted::Running(replica) => Some(ReplicaView {
                id: *id,
                replica: replica.id(),
                log: self.config.log_of(replica.directory),
                group: &replica.group,
                storage: replica.storage.as_ref(),
            }),
            Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        })
    }

    /// The reads that wait for their turn or for a job: the connection of each, and its number on it. In no order.
    pub fn queued_for_inspection(&self) -> impl Iterator<Item = (ConnectionId, i32)> {
        self.shards.iter().flat_map(|shard| shard.requests.queued())
    }
}
