//! The catalogue as a whole: how it is founded, what it answers, and what always holds of it.

use crate::error::CatalogueError;
use crate::model::{Node, Partition, Replica, ReplicaRole, Table, TableKind};
use crate::password::Passwords;
use crate::rights::Rights;
use bytes::Bytes;
use hedgerow_types::key::hash_partition_range;
use hedgerow_types::{GroupId, NodeId, ReplicaId, TableId};
use std::collections::{BTreeMap, BTreeSet};

/// Everything the cluster knows about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// The cluster's id, drawn at random when it was founded.
    pub cluster: u64,
    /// From 1, one more with every change.
    pub version: u64,
    /// The id of the next table, from 1.
    pub next_table: u32,
    /// The counter of the next replica (see [`ReplicaId`]), from 1.
    pub next_replica: u64,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The tables.
    pub tables: BTreeMap<TableId, Table>,
    /// The metadata group itself.
    pub meta: Partition,
    /// Who may do what.
    pub rights: Rights,
    /// Who proves by a password who they are.
    pub passwords: Passwords,
}

impl Catalogue {
    /// The first catalogue of the cluster with id `cluster`: these nodes, no table, and the metadata group on
    /// `meta_nodes` in their order, the first of them its preferred leader. The replicas have the counters 1, 2, ..., so
    /// that every node that is given the same list arrives at the same group.
    ///
    /// Fails if the nodes are not allowed ([`CatalogueError::Node`]) or `meta_nodes` is empty, has more than
    /// [`hedgerow_types::limit::REPLICA_COUNT_MAX`] or repeated members, or members that are not in `nodes`.
    pub fn bootstrap(cluster: u64, nodes: &[(NodeId, Node)], meta_nodes: &[NodeId]) -> Result<Self, CatalogueError> {
        let mut founded = BTreeMap::new();
        for (id, node) in nodes {
            crate::change::check_node(&founded, *id, node)?;
            if founded.insert(*id, node.clone()).is_some() {
                return Err(CatalogueError::Node { node: *id, reason: "it is listed twice".to_owned() });
            }
        }
        let mut replicas: Vec<Replica> = Vec::new();
        for id in meta_nodes {
            let known = founded.get(id).ok_or_else(|| CatalogueError::MetaNodes(format!("{id} is not a node")))?;
            if replicas.iter().any(|replica| replica.id.node() == *id) {
                return Err(CatalogueError::MetaNodes(format!("{id} is listed twice")));
            }
            let replica = ReplicaId::new(replicas.len() as u64 + 1, *id);
            replicas.push(Replica { id: replica, incarnation: known.incarnation, role: ReplicaRole::Voter });
        }
        let first = replicas.first().ok_or_else(|| CatalogueError::MetaNodes("none is listed".to_owned()))?;
        let replica_max = hedgerow_types::limit::REPLICA_COUNT_MAX as usize;
        if replicas.len() > replica_max {
            return Err(CatalogueError::MetaNodes(format!("there can be at most {replica_max}")));
        }
        let preferred_leader = first.id;
        let next_replica = replicas.len() as u64 + 1;
        let meta = Partition { start: Vec::new(), replicas, preferred_leader, version: 1 };
        let (tables, rights, passwords) = (BTreeMap::new(), Rights::default(), Passwords::default());
        Ok(Self { cluster, version: 1, next_table: 1, next_replica, nodes: founded, tables, meta, rights, passwords })
    }

    /// The partition of `group`, the metadata group included.
    pub fn group(&self, group: GroupId) -> Option<&Partition> {
        if group == GroupId::META {
            return Some(&self.meta);
        }
        self.tables.get(&group.table)?.partitions.get(group.partition as usize)
    }

    /// Every group with its partition, the metadata group first, then by id.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &Partition)> {
        let of_tables = self.tables.values().flat_map(|table| {
            (0..).zip(&table.partitions).map(|(partition, it)| (GroupId { table: table.id, partition }, it))
        });
        std::iter::once((GroupId::META, &self.meta)).chain(of_tables)
    }

    /// The replicas that `node` should have, by group; a lost one stays listed until its replacement is finished.
    pub fn hosted_by(&self, node: NodeId) -> impl Iterator<Item = (GroupId, &Replica)> {
        self.groups().flat_map(move |(group, partition)| {
            let here = partition.replicas.iter().filter(move |replica| replica.id.node() == node);
            here.map(move |replica| (group, replica))
        })
    }

    /// The table called `name`. A dropped one is not found.
    pub fn table_by_name(&self, name: &str) -> Option<&Table> {
        self.tables_in_use().find(|table| table.name == name)
    }

    /// The tables that are not dropped, by id.
    pub fn tables_in_use(&self) -> impl Iterator<Item = &Table> {
        self.tables.values().filter(|table| table.dropped.is_none())
    }

    /// Whether `group` belongs to a table that is dropped and kept: nobody is served from it.
    pub fn is_kept(&self, group: GroupId) -> bool {
        self.tables.get(&group.table).is_some_and(|table| table.dropped.is_some())
    }

    /// Whether `group` belonged to a table that was dropped and is not kept any more. False for a group that this catalogue has never heard of,
    /// which a newer one may know: its data must not be deleted.
    pub fn was_dropped(&self, group: GroupId) -> bool {
        group != GroupId::META && group.table.0 < self.next_table && !self.tables.contains_key(&group.table)
    }

    /// The storage keys of `group`'s partition, `[start, end)`; an `end` of `None` is the end of the key space.
    pub fn range(&self, group: GroupId) -> Option<(Bytes, Option<Bytes>)> {
        if group == GroupId::META {
            return Some((Bytes::new(), None));
        }
        self.tables.get(&group.table)?.range(group.partition)
    }

    /// Checks everything that must hold of a catalogue; the error says what does not. Called on whatever is read and, in
    /// debug builds, on whatever is written.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut counters = BTreeSet::new();
        for (id, table) in &self.tables {
            ensure(table.id == *id && id.0 != 0 && id.0 < self.next_table, || {
                format!("table id {} is not allowed", id.0)
            })?;
            let is_alone = table.dropped.is_some() || names.insert(&table.name);
            ensure(is_alone, || format!("two tables are called {:?}", table.name))?;
            table.check()?;
        }
        for (group, partition) in self.groups() {
            let leader = partition.preferred_leader;
            ensure(partition.replica(leader).is_some(), || format!("{group} prefers {leader}, which it has not"))?;
            ensure(partition.learners().all(|id| id != leader), || format!("{group} prefers {leader}, which learns"))?;
            ensure(partition.voters().next().is_some(), || format!("{group} has no voter"))?;
            for replica in &partition.replicas {
                let id = replica.id;
                ensure((1..self.next_replica).contains(&id.counter()), || {
                    format!("{group} has {id}, not yet assigned")
                })?;
                ensure(counters.insert(id.counter()), || format!("the counter of {id} in {group} was used twice"))?;
                ensure(self.nodes.contains_key(&id.node()), || format!("{group} has {id} on an unknown node"))?;
            }
            crate::repair::check_replicas(partition).map_err(|reason| format!("{group}: {reason}"))?;
        }
        self.rights.check()?;
        self.passwords.check()
    }

    pub(crate) fn next_replica_on(&mut self, node: NodeId) -> ReplicaId {
        let id = ReplicaId::new(self.next_replica, node);
        self.next_replica += 1;
        id
    }

    pub(crate) fn group_mut(&mut self, group: GroupId) -> Result<&mut Partition, CatalogueError> {
        if group == GroupId::META {
            return Ok(&mut self.meta);
        }
        let table = self.tables.get_mut(&group.table);
        table.and_then(|table| table.partitions.get_mut(group.partition as usize)).ok_or(CatalogueError::NoGroup(group))
    }
}

impl Table {
    /// The storage keys of partition `index`, `[start, end)`; an `end` of `None` is the end of the key space. `None` if
    /// there is no such partition.
    pub fn range(&self, index: u32) -> Option<(Bytes, Option<Bytes>)> {
        let partition = self.partitions.get(index as usize)?;
        Some(match self.kind {
            TableKind::Hash => hash_partition_range(index, self.partitions.len() as u32),
            TableKind::Ordered => {
                let next = self.partitions.get(index as usize + 1);
                let end = next.map(|next| Bytes::copy_from_slice(&next.start));
                (Bytes::copy_from_slice(&partition.start), end)
            }
        })
    }

    /// The nodes that have replicas of the table, or are to have some.
    pub fn hosts(&self) -> BTreeSet<NodeId> {
        let replicas = self.partitions.iter().flat_map(|partition| &partition.replicas);
        replicas.map(|replica| replica.id.node()).collect()
    }

    fn check(&self) -> Result<(), String> {
        let (name, count) = (&self.name, self.partitions.len());
        match self.kind {
            TableKind::Hash => {
                ensure(count.is_power_of_two(), || format!("table {name} has {count} partitions"))?;
                ensure(self.partitions.iter().all(|it| it.start.is_empty()), || format!("table {name} has start keys"))
            }
            TableKind::Ordered => {
                let first = self.partitions.first().map(|it| it.start.as_slice());
                ensure(first == Some(b""), || format!("table {name} does not begin at the beginning"))?;
                let is_ascending = self.partitions.windows(2).all(|pair| pair[0].start < pair[1].start);
                ensure(is_ascending, || format!("the start keys of table {name} do not ascend"))
            }
        }
    }
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}
