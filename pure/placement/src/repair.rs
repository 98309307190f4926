//! Replacing replicas whose data is gone: found by incarnation, replaced on the same node under a new id.
//!
//! ```text
//! node says another incarnation -> lost_replicas() -> replace_lost() : the lost one stays listed, a joining one is added
//!                                                   ... it learns, the group makes it a voter in the lost one's place ...
//!                                                     finish_replacement() : voter; the lost one is gone for good
//! the lost one runs again, and still votes  ->        withdraw_replacement() : as before it was given up
//! most are lost before anybody was served   ->        begin_anew() : other voters, with nothing
//! ```

use crate::catalogue::Catalogue;
use crate::error::CatalogueError;
use crate::limit::REPLICAS_LISTED_MAX;
use crate::model::{Partition, Replica, ReplicaRole, TableState};
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use std::collections::BTreeSet;

impl Catalogue {
    /// The replicas whose node is in another incarnation than the one they were assigned in, and for which no
    /// replacement has been assigned yet.
    pub fn lost_replicas(&self) -> Vec<(GroupId, ReplicaId)> {
        let mut lost = Vec::new();
        for (group, partition) in self.groups() {
            let open = partition.replicas.iter().filter(|replica| partition.replacement_of(replica.id).is_none());
            lost.extend(open.filter(|replica| self.is_lost(replica)).map(|replica| (group, replica.id)));
        }
        lost
    }

    /// Whether the replica's node has begun another life since the replica was assigned.
    pub fn is_lost(&self, replica: &Replica) -> bool {
        self.nodes.get(&replica.id.node()).is_none_or(|node| node.incarnation != replica.incarnation)
    }

    /// Assigns a new replica in the place of `lost`, of which the caller knows that it is: its node is in another
    /// incarnation and no longer has it, or says that the replica's data is damaged. The new one is on the same node, in
    /// the node's current incarnation. Returns its id; the same one when it is asked again. A learner is replaced by a
    /// learner at once, any other by a joining one, while the lost one stays listed until
    /// [`Catalogue::finish_replacement`].
    pub fn replace_lost(&mut self, group: GroupId, lost: ReplicaId) -> Result<ReplicaId, CatalogueError> {
        let partition = self.group(group).ok_or(CatalogueError::NoGroup(group))?;
        let old = *partition.replica(lost).ok_or(CatalogueError::NoReplica { group, replica: lost })?;
        if let Some(new) = partition.replacement_of(lost) {
            return Ok(new);
        }
        let refuse = |reason| Err(CatalogueError::ReplicaState { group, replica: lost, reason });
        if partition.replicas.len() >= REPLICAS_LISTED_MAX {
            self.shorten(group, lost)?;
        }
        let partition = self.group(group).ok_or(CatalogueError::NoGroup(group))?;
        let listed = partition.replicas.len() - partition.learners().count();
        if old.role != ReplicaRole::Learner && listed >= REPLICAS_LISTED_MAX {
            return refuse("cannot be replaced before other replacements of its group are finished");
        }
        let Some(incarnation) = self.nodes.get(&lost.node()).map(|node| node.incarnation) else {
            return refuse("was on a node that does not exist");
        };
        let id = self.next_replica_on(lost.node());
        let partition = self.group_mut(group)?;
        let role = match old.role {
            ReplicaRole::Learner => {
                partition.replicas.retain(|replica| replica.id != lost);
                ReplicaRole::Learner
            }
            ReplicaRole::Voter | ReplicaRole::Joining { .. } => ReplicaRole::Joining { replaces: Some(lost) },
        };
        partition.replicas.push(Replica { id, incarnation, role });
        partition.replicas.sort_by_key(rank);
        partition.version += 1;
        self.version += 1;
        Ok(id)
    }

    /// Strikes out what stands between `lost` and the voter that it is to replace in the end: joining replicas whose nodes have
    /// begun another life since, as where a node loses its data again and again. Should one of them vote, it has removed that voter,
    /// its own data is gone, and the group removes it as one that is not listed.
    fn shorten(&mut self, group: GroupId, lost: ReplicaId) -> Result<(), CatalogueError> {
        let partition = self.group(group).ok_or(CatalogueError::NoGroup(group))?;
        let is_between = |id: &ReplicaId| {
            let replica = partition.replica(*id);
            replica.is_some_and(|it| matches!(it.role, ReplicaRole::Joining { .. }) && self.is_lost(it))
        };
        let chain = partition.replaced_by(lost);
        let between: BTreeSet<ReplicaId> = chain.iter().copied().filter(is_between).collect();
        let root = chain.difference(&between).next().copied();
        if chain.len() != between.len() + usize::from(root.is_some()) {
            return Ok(());
        }
        let partition = self.group_mut(group)?;
        partition.replicas.retain(|replica| !between.contains(&replica.id));
        for replica in partition.replicas.iter_mut().filter(|replica| replica.id == lost) {
            replica.role = ReplicaRole::Joining { replaces: root };
        }
        Ok(())
    }

    /// Records that the joining replica `new` votes now and that the one it replaces (and whatever that one was to
    /// replace) has left the group. Returns whether that changed anything: a voter already is none.
    pub fn finish_replacement(&mut self, group: GroupId, new: ReplicaId) -> Result<bool, CatalogueError> {
        let partition = self.group_mut(group)?;
        let joined = partition.replica(new).ok_or(CatalogueError::NoReplica { group, replica: new })?;
        let gone = match joined.role {
            ReplicaRole::Voter => return Ok(false),
            ReplicaRole::Learner => {
                return Err(CatalogueError::ReplicaState { group, replica: new, reason: "is a learner and stays one" });
            }
            ReplicaRole::Joining { .. } => partition.replaced_by(new),
        };
        partition.replicas.retain(|replica| !gone.contains(&replica.id));
        for replica in partition.replicas.iter_mut().filter(|replica| replica.id == new) {
            replica.role = ReplicaRole::Voter;
        }
        partition.replicas.sort_by_key(rank);
        if gone.contains(&partition.preferred_leader) {
            partition.preferred_leader = new;
        }
        partition.version += 1;
        self.version += 1;
        Ok(true)
    }

    /// Whether a partition of a table that is being created has too few voters left to elect a leader. Where nodes begin another life
    /// in the moment of the creation, they never make what they were assigned in the former one.
    pub fn must_begin_anew(&self, group: GroupId) -> bool {
        let is_new = self.tables.get(&group.table).is_some_and(|table| table.state == TableState::Creating);
        let Some(partition) = self.group(group).filter(|_| is_new) else { return false };
        let voters = partition.replicas.iter().filter(|replica| replica.role == ReplicaRole::Voter);
        let (all, lost) = (voters.clone().count(), voters.filter(|voter| self.is_lost(voter)).count());
        all - lost <= all / 2
    }

    /// Gives such a partition new voters, on the nodes of the old ones. Returns whether that changed anything.
    ///
    /// Nothing is lost: nobody learns where the partitions of a table are before it is available, and that is decided in the same
    /// catalogue.
    pub fn begin_anew(&mut self, group: GroupId) -> bool {
        let Some(old) = self.group(group).filter(|_| self.must_begin_anew(group)).cloned() else { return false };
        let nodes: Vec<NodeId> =
            old.voters().map(ReplicaId::node).filter(|node| self.nodes.contains_key(node)).collect();
        if nodes.is_empty() {
            return false;
        }
        let new = self.new_partition(old.start, &nodes);
        let Ok(partition) = self.group_mut(group) else { return false };
        *partition = new;
        self.version += 1;
        true
    }

    /// Takes back that `back` was given up: whatever was to replace it, and whatever was to replace that, is no longer listed.
    /// The caller knows that its node runs it again, that its group counts its vote, and none of theirs. Returns whether that
    /// changed anything.
    pub fn withdraw_replacement(&mut self, group: GroupId, back: ReplicaId) -> Result<bool, CatalogueError> {
        let partition = self.group_mut(group)?;
        if partition.replica(back).is_none() {
            return Err(CatalogueError::NoReplica { group, replica: back });
        }
        let successors = partition.successors_of(back);
        if successors.is_empty() {
            return Ok(false);
        }
        partition.replicas.retain(|replica| !successors.contains(&replica.id));
        partition.version += 1;
        self.version += 1;
        Ok(true)
    }
}

impl Partition {
    /// The replicas that `id` replaces: directly, or because it replaces one that was to replace another.
    pub fn replaced_by(&self, id: ReplicaId) -> BTreeSet<ReplicaId> {
        let mut gone = BTreeSet::new();
        let mut next = Some(id);
        while let Some(replica) = next.and_then(|id| self.replica(id)) {
            next = match replica.role {
                ReplicaRole::Joining { replaces } => replaces.filter(|replaced| gone.insert(*replaced)),
                ReplicaRole::Voter | ReplicaRole::Learner => None,
            };
        }
        gone
    }

    /// The replicas that are to replace `id`, or one that is to replace it.
    pub fn successors_of(&self, id: ReplicaId) -> BTreeSet<ReplicaId> {
        let all = self.replicas.iter().map(|replica| replica.id);
        all.filter(|successor| self.replaced_by(*successor).contains(&id)).collect()
    }
}

/// Where a replica stands in its partition's list.
fn rank(replica: &Replica) -> u8 {
    match replica.role {
        ReplicaRole::Voter => 0,
        ReplicaRole::Joining { .. } => 1,
        ReplicaRole::Learner => 2,
    }
}

/// Checks the order of the list, and that no node has two replicas of the partition, other than one and those it is to replace.
pub(crate) fn check_replicas(partition: &Partition) -> Result<(), String> {
    if !partition.replicas.is_sorted_by_key(rank) {
        return Err("its replicas are not in order".to_owned());
    }
    let mut taken = BTreeSet::new();
    for replica in &partition.replicas {
        if let ReplicaRole::Joining { replaces: Some(replaced) } = replica.role {
            let known = partition.replica(replaced).is_some_and(|old| old.role != ReplicaRole::Learner);
            if !known || replaced.counter() >= replica.id.counter() {
                return Err(format!("{} replaces {replaced}, which cannot be", replica.id));
            }
        }
        let is_replaced = partition.replacement_of(replica.id).is_some();
        if !is_replaced && !taken.insert(replica.id.node()) {
            return Err(format!("two replicas are on {}", replica.id.node()));
        }
    }
    Ok(())
}
