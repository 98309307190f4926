//! Read-only replicas: each partition of a table gets as many learners as the table's option `read_replicas` says.
//!
//! The option is a wish, and arranging is a step towards it that changes nothing where nothing is to be done:
//!
//! ```text
//! read_replicas=N, nodes that come or stay away -> wants_arranging() -> arrange_learners() : learners listed or no longer
//!                                                                       ... their groups add and remove them ...
//! ```
//!
//! A learner goes where no other replica of its partition is, and otherwise where a voter would go ([`crate::spread`]).
//! There it never stands in a voter's way: a lost voter is replaced on the node that lost it, where no learner can be.
//! A table gets learners once it is available, because nodes found a group only at its partition's first version.
//! A learner whose data is lost is replaced like any lost replica ([`Catalogue::replace_lost`]); one whose node stays away
//! for long is moved, which is safe without asking anybody, since a learner has no vote.

use crate::catalogue::Catalogue;
use crate::model::{Partition, Replica, ReplicaRole, Table, TableState};
use crate::option;
use crate::spread::Spread;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Who of the nodes is up, as far as the caller knows. A node in neither set may come back soon: its learners wait for
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Heard of lately: these can be given learners.
    pub alive: BTreeSet<NodeId>,
    /// Silent for so long that their learners should be elsewhere. A node that is alive too counts as alive.
    pub gone: BTreeSet<NodeId>,
    /// Most replicas that a node may host. A node that is not in it may host any number.
    pub room: BTreeMap<NodeId, u64>,
}

impl Presence {
    fn is_gone(&self, node: NodeId) -> bool {
        self.gone.contains(&node) && !self.alive.contains(&node)
    }
}

impl Catalogue {
    /// Whether [`Catalogue::arrange_learners`] would change anything. Looks at every partition, and at nothing else.
    pub fn wants_arranging(&self, presence: &Presence) -> bool {
        let spread = Spread::new(self, presence);
        let placeable: Vec<NodeId> = spread.nodes_with_room().collect();
        self.tables.values().filter(|table| is_arranged(table)).any(|table| {
            let wanted = option::read_replicas(&table.options) as usize;
            table.partitions.iter().any(|partition| {
                let is_free = |node: &NodeId| !partition.is_on(*node);
                let has_too_many = partition.learners().count() > wanted;
                has_too_many || (present_learners(partition, presence) < wanted && placeable.iter().any(is_free))
            })
        })
    }

    /// Adds and removes learners until each partition has as many as its table asks for, or as many as there are nodes
    /// for that are alive and have no other replica of it. Returns whether that changed anything.
    ///
    /// Partitions with few learners get theirs first. Of learners that are too many, those on nodes that are gone go
    /// first, then those that cannot serve because they are lost or their node is not alive, then the newest: so lowering
    /// the option leaves what the lower value would have given.
    pub fn arrange_learners(&mut self, presence: &Presence) -> bool {
        if !self.wants_arranging(presence) {
            return false;
        }
        let mut changed = self.remove_surplus_learners(presence);
        self.add_missing_learners(presence, &mut changed);
        for group in &changed {
            let partition = self.group_mut(*group).expect("it was changed just now");
            partition.version += 1;
        }
        self.version += u64::from(!changed.is_empty());
        !changed.is_empty()
    }

    fn remove_surplus_learners(&mut self, presence: &Presence) -> BTreeSet<GroupId> {
        let mut surplus = BTreeMap::new();
        for table in self.tables.values().filter(|table| is_arranged(table)) {
            let wanted = option::read_replicas(&table.options) as usize;
            for (index, partition) in (0..).zip(&table.partitions) {
                let learners = partition.replicas.iter().filter(|replica| replica.role == ReplicaRole::Learner);
                let mut learners: Vec<&Replica> = learners.collect();
                learners.sort_by_key(|replica| self.dispensability(replica, presence));
                let of_partition: Vec<ReplicaId> = learners.iter().skip(wanted).map(|replica| replica.id).collect();
                if !of_partition.is_empty() {
                    surplus.insert(GroupId { table: table.id, partition: index }, of_partition);
                }
            }
        }
        for (group, ids) in &surplus {
            let partition = self.group_mut(*group).expect("it has learners");
            partition.replicas.retain(|replica| !ids.contains(&replica.id));
        }
        surplus.into_keys().collect()
    }

    /// Which of two learners can rather be spared: the one with the larger value.
    fn dispensability(&self, learner: &Replica, presence: &Presence) -> (bool, bool, u64) {
        let node = learner.id.node();
        let may_serve = presence.alive.contains(&node) && !self.is_lost(learner);
        (presence.is_gone(node), !may_serve, learner.id.counter())
    }

    fn add_missing_learners(&mut self, presence: &Presence, changed: &mut BTreeSet<GroupId>) {
        let mut spread = Spread::new(self, presence);
        // Another seed for every change, so that ties fall differently each time.
        let mut random = Random::new(self.next_replica);
        let mut missing = self.missing_learners(presence);
        while let Some((present, group)) = missing.pop_first() {
            let partition = self.group(group).expect("it misses a learner");
            let taken: Vec<NodeId> = partition.replicas.iter().map(|replica| replica.id.node()).collect();
            let Some(node) = spread.place_learner(&taken, &mut random) else { continue };
            self.add_learner(group, node, presence);
            changed.insert(group);
            let table = &self.tables[&group.table];
            if present + 1 < option::read_replicas(&table.options) as usize {
                missing.insert((present + 1, group));
            }
        }
    }

    /// The partitions that have too few learners on nodes that are not gone, with how many they have.
    fn missing_learners(&self, presence: &Presence) -> BTreeSet<(usize, GroupId)> {
        let mut missing = BTreeSet::new();
        for table in self.tables.values().filter(|table| is_arranged(table)) {
            let wanted = option::read_replicas(&table.options) as usize;
            for (index, partition) in (0..).zip(&table.partitions) {
                let present = present_learners(partition, presence);
                if present < wanted {
                    missing.insert((present, GroupId { table: table.id, partition: index }));
                }
            }
        }
        missing
    }

    /// Lists a learner on `node`, in the place of one whose node is gone if the partition has as many as it should.
    fn add_learner(&mut self, group: GroupId, node: NodeId, presence: &Presence) {
        let wanted = option::read_replicas(&self.tables[&group.table].options) as usize;
        let id = self.next_replica_on(node);
        let incarnation = self.nodes[&node].incarnation;
        let partition = self.group_mut(group).expect("it misses a learner");
        let gone = partition.learners().filter(|id| presence.is_gone(id.node())).min_by_key(|id| Reverse(id.counter()));
        if partition.learners().count() >= wanted {
            partition.replicas.retain(|replica| Some(replica.id) != gone);
        }
        partition.replicas.push(Replica { id, incarnation, role: ReplicaRole::Learner });
    }
}

fn is_arranged(table: &Table) -> bool {
    table.state == TableState::Available
}

/// How many learners of `partition` are on nodes that are not gone.
fn present_learners(partition: &Partition, presence: &Presence) -> usize {
    partition.learners().filter(|id| !presence.is_gone(id.node())).count()
}
