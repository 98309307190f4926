//! How partitions and nodes stand at one moment: the catalogue, beside what the nodes have told. Whoever looks through all of it takes it to
//! another thread.

use crate::config::DEAD_AFTER;
use crate::peer::{ReplicaReport, ReplicaState, Report};
use hedgerow_placement::{Catalogue, Replica, ReplicaRole};
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A read-only replica that lacks no more entries than that is named to clients.
const LEARNER_LAG_MAX: u64 = 4_096;

/// The newest word of every node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// By node: its last complete report and when a word of it last came.
    pub(crate) nodes: BTreeMap<NodeId, (Arc<Report>, Instant)>,
    /// Nodes whose connection has begun or ended since their last complete report: it may be a former process's.
    pub(crate) outdated: BTreeSet<NodeId>,
    /// The leader of each group in the newest term that anybody told of.
    pub(crate) leaders: BTreeMap<GroupId, (Term, ReplicaId)>,
    /// Groups whose leader, since it was told of, has said itself that it does not lead, and that nobody else is known to lead.
    pub(crate) stepped_down: BTreeSet<GroupId>,
}

impl Told {
    /// The leader of `group` and its term, as far as this node has heard.
    pub(crate) fn leader_of(&self, group: GroupId) -> Option<(Term, ReplicaId)> {
        self.leaders.get(&group).copied()
    }

    /// What the last report of `node` says of a replica.
    pub(crate) fn replica_report(&self, group: GroupId, replica: u64, node: NodeId) -> Option<&ReplicaReport> {
        let (report, _) = self.nodes.get(&node)?;
        report.replica_of(group).filter(|one| one.replica == replica)
    }

    /// Whether a word of `node` came lately.
    pub(crate) fn is_heard(&self, node: NodeId, now: Instant) -> bool {
        self.nodes.get(&node).is_some_and(|(_, heard)| now.since(*heard) < DEAD_AFTER)
    }

    /// Whether a replica's node says that it is damaged and kept.
    pub(crate) fn is_damaged(&self, group: GroupId, replica: ReplicaId) -> bool {
        self.replica_report(group, replica.0, replica.node()).is_some_and(|report| report.is_damaged)
    }

    /// Whether a replica's node says that it does not have it, and knows that it should, or has other data than those that it was
    /// `assigned` to.
    pub(crate) fn is_without(&self, group: GroupId, replica: ReplicaId, assigned: Option<&Replica>) -> bool {
        if let Some(report) = self.replica_report(group, replica.0, replica.node()) {
            return ReplicaState::from_code(report.state) == Some(ReplicaState::Lost);
        }
        let Some((report, _)) = self.nodes.get(&replica.node()) else { return false };
        let is_of_another_life = assigned.is_some_and(|it| it.incarnation.0 != report.incarnation);
        report.next_replica > replica.counter() || is_of_another_life
    }
}

/// The catalogue that a node acts on, and what the nodes have told it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) told: Arc<Told>,
    /// The node that looks: it is always there.
    pub(crate) own: NodeId,
    pub(crate) now: Instant,
}

impl Standing {
    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        node == self.own || self.told.is_heard(node, self.now)
    }

    /// Whether a node is there, and has reported since its connection began.
    pub(crate) fn is_up_to_date(&self, node: NodeId) -> bool {
        self.is_alive(node) && !self.told.outdated.contains(&node)
    }

    /// The leader of `group` and its term, if it is up, has not said since that it does not lead, and a majority of the voters is up with it and takes
    /// what it writes. What the others say of the leader does not count: reports are a second apart.
    pub(crate) fn confirmed_leader(&self, group: GroupId) -> Option<(Term, ReplicaId)> {
        let (term, leader) = self.told.leader_of(group)?;
        let partition = self.catalogue.group(group)?;
        let is_up = |replica: ReplicaId| self.is_alive(replica.node()) && !self.is_without(group, replica);
        let counts = |voter: ReplicaId| is_up(voter) && !self.needs_checkpoint(group, leader, voter);
        let up = partition.voters().filter(|voter| counts(*voter)).count();
        let has_stepped_down = self.told.stepped_down.contains(&group);
        (is_up(leader) && !has_stepped_down && up > partition.voters().count() / 2).then_some((term, leader))
    }

    /// Whether `replica` takes nothing before it has a checkpoint, by the word of its `leader`.
    fn needs_checkpoint(&self, group: GroupId, leader: ReplicaId, replica: ReplicaId) -> bool {
        let report = self.told.replica_report(group, leader.0, leader.node());
        let peer = report.and_then(|report| report.peers.iter().find(|peer| peer.replica == replica.0));
        peer.is_some_and(|peer| peer.needs_checkpoint)
    }

    /// As [`Told::is_without`].
    pub(crate) fn is_without(&self, group: GroupId, replica: ReplicaId) -> bool {
        let assigned = self.catalogue.group(group).and_then(|it| it.replica(replica));
        self.told.is_without(group, replica, assigned)
    }

    /// Whether a replica of `group` is lost or damaged on a node that is up, or needs a checkpoint, or its successor does not vote yet.
    pub(crate) fn is_in_repair(&self, group: GroupId) -> bool {
        let leader = self.told.leader_of(group);
        let is_bad = |replica: &Replica| {
            let is_joining = matches!(replica.role, ReplicaRole::Joining { .. });
            let is_behind = leader.is_some_and(|(_, leader)| self.needs_checkpoint(group, leader, replica.id));
            let is_lost = self.is_without(group, replica.id) || self.told.is_damaged(group, replica.id) || is_behind;
            is_joining || (self.is_alive(replica.id.node()) && is_lost)
        };
        self.catalogue.group(group).is_some_and(|partition| partition.replicas.iter().any(is_bad))
    }

    /// Whether `learner`, by its own report and its leader's, is there and has nearly everything. One that is listed too
    /// early, or lags later, says so itself.
    pub(crate) fn is_serving_learner(&self, group: GroupId, learner: ReplicaId) -> bool {
        let Some(report) = self.told.replica_report(group, learner.0, learner.node()) else { return false };
        let is_up = self.is_alive(learner.node()) && report.state == ReplicaState::Learner as u32;
        let leader = self.told.leader_of(group);
        let leader = leader.and_then(|(_, leader)| self.told.replica_report(group, leader.0, leader.node()));
        // The two reports are up to a second apart; what the leader knows of the learner is as old as its own commit index.
        let held =
            leader.and_then(|it| it.peers.iter().find(|peer| peer.replica == learner.0)).map(|peer| peer.matched);
        let commit = leader.map_or(0, |leader| leader.commit);
        is_up && report.is_settled && report.applied.max(held.unwrap_or(0)) + LEARNER_LAG_MAX >= commit
    }
}
