//! The changes that people and nodes ask for: tables, their options, and the nodes themselves.
//!
//! Every change either does all of what it says and raises the version by one, or does nothing.

use crate::catalogue::Catalogue;
use crate::duplication;
use crate::error::CatalogueError;
use crate::learner::Presence;
use crate::limit::{
    ADDRESS_SIZE_MAX, LABEL_COUNT_MAX, LABEL_SIZE_MAX, NODE_COUNT_MAX, READ_REPLICA_COUNT_MAX, SPLIT_KEYS_SIZE_MAX,
    TABLES_SIZE_MAX,
};
use crate::model::{Dropped, Node, Partition, Replica, ReplicaRole, Table, TableKind, TableSpec, TableState};
use crate::option::{self, Settings};
use crate::row::size_of_options;
use crate::spread::{NoRoom, Spread, is_placeable};
use hedgerow_types::limit::{
    PARTITION_COUNT_MAX, PARTITION_COUNT_MIN, REPLICA_COUNT_MAX, TABLE_COUNT_MAX, TABLE_NAME_SIZE_MAX,
};
use hedgerow_types::{GroupId, NodeId, PartitionIndex, TableId};
use std::collections::{BTreeMap, BTreeSet};

impl Catalogue {
    /// Creates a table in state [`TableState::Creating`] and assigns its voters to nodes that are registered and in
    /// `alive`; its learners come by [`Catalogue::arrange_learners`]. With `if_not_exists`, a table that exists with the same kind and counts is success without a change.
    pub fn create_table(
        &mut self,
        spec: TableSpec,
        alive: &BTreeSet<NodeId>,
        unix_seconds: u64,
    ) -> Result<TableId, CatalogueError> {
        self.create_table_within(spec, &Presence { alive: alive.clone(), ..Presence::default() }, unix_seconds)
    }

    /// As [`Catalogue::create_table`], unless a node would host more replicas than it may.
    pub fn create_table_within(
        &mut self,
        spec: TableSpec,
        presence: &Presence,
        unix_seconds: u64,
    ) -> Result<TableId, CatalogueError> {
        check_name(&spec.name)?;
        Settings::from_options(&spec.options)?;
        let starts = starts(&spec)?;
        if let Some(existing) = self.table_by_name(&spec.name) {
            return existing_table(existing, &spec);
        }
        if self.tables.len() >= TABLE_COUNT_MAX {
            return Err(CatalogueError::TooManyTables(self.tables.len()));
        }
        check_replica_count(spec.replica_count, self.placeable(&presence.alive).count(), self.nodes.len())?;
        check_read_replica_count(&spec.options, spec.replica_count, self.nodes.len())?;

        let id = TableId(self.next_table);
        let mut spread = Spread::new(self, presence);
        let placed = spread.place(id, spec.partition_count, spec.replica_count);
        let placed = placed.map_err(|NoRoom { node, room }| CatalogueError::NoRoom {
            partition_count: spec.partition_count,
            replica_count: spec.replica_count,
            node,
            room,
        })?;
        let mut partitions = Vec::with_capacity(starts.len());
        for (start, nodes) in starts.into_iter().zip(placed) {
            partitions.push(self.new_partition(start, &nodes));
        }
        let TableSpec { name, kind, replica_count, options, .. } = spec;
        let (state, created_unix_seconds) = (TableState::Creating, unix_seconds);
        let dropped = None;
        let table = Table { id, name, kind, replica_count, options, partitions, state, created_unix_seconds, dropped };
        self.check_room(table.row_size())?;
        self.tables.insert(id, table);
        self.next_table += 1;
        self.version += 1;
        Ok(id)
    }

    /// Drops a table for good and returns the groups that it had. With `if_exists`, no table is success without a change.
    pub fn drop_table(&mut self, name: &str, if_exists: bool) -> Result<Vec<GroupId>, CatalogueError> {
        let Some(id) = self.table_by_name(name).map(|table| table.id) else {
            return if if_exists { Ok(Vec::new()) } else { Err(CatalogueError::NoTable(name.to_owned())) };
        };
        let partition_count = self.tables.remove(&id).map_or(0, |table| table.partitions.len() as u32);
        self.version += 1;
        Ok((0..partition_count).map(|partition| GroupId { table: id, partition }).collect())
    }

    /// Drops a table and keeps it as `dropped` says. Returns its id. With `if_exists`, no table is success without a change.
    ///
    /// The replicas of a kept table stay in the catalogue and go on as members of their groups, so that what was acknowledged is as
    /// safe as in any other table: nodes that restart find it, lost replicas are replaced, logs are cut as always. What its
    /// leaders took before they heard of the drop commits and is there after a recall, and so is what is known of writes that are
    /// repeated. The drop, the recall and the removal are changes of one catalogue that is written with a condition on its version,
    /// so that they happen in one order.
    pub fn drop_and_keep(
        &mut self,
        name: &str,
        if_exists: bool,
        dropped: Dropped,
    ) -> Result<Option<TableId>, CatalogueError> {
        let Some(table) = self.tables.values_mut().find(|table| table.name == name && table.dropped.is_none()) else {
            return if if_exists { Ok(None) } else { Err(CatalogueError::NoTable(name.to_owned())) };
        };
        table.dropped = Some(dropped);
        self.version += 1;
        Ok(Some(table.id))
    }

    /// Puts a dropped table that is kept back into use, under its old name or another.
    pub fn recall_table(&mut self, id: TableId, name: Option<&str>) -> Result<(), CatalogueError> {
        let table = self.tables.get(&id).ok_or(CatalogueError::NotKept(id))?;
        if table.dropped.is_none() {
            return Err(CatalogueError::TableExists(table.name.clone()));
        }
        let name = name.unwrap_or(&table.name).to_owned();
        check_name(&name)?;
        if let Some(other) = self.table_by_name(&name) {
            return Err(CatalogueError::NameTaken { name, id: other.id });
        }
        self.tables.entry(id).and_modify(|table| (table.name, table.dropped) = (name, None));
        self.version += 1;
        Ok(())
    }

    /// The dropped tables whose time is over at `unix_seconds`.
    pub fn overdue(&self, unix_seconds: u64) -> impl Iterator<Item = &Table> {
        let is_over = move |dropped: &Dropped| dropped.until_unix_seconds <= unix_seconds;
        self.tables.values().filter(move |table| table.dropped.as_ref().is_some_and(is_over))
    }

    /// Removes the dropped tables whose time is over at `unix_seconds` for good, and returns their ids.
    pub fn remove_overdue(&mut self, unix_seconds: u64) -> Vec<TableId> {
        let over: Vec<TableId> = self.overdue(unix_seconds).map(|table| table.id).collect();
        if !over.is_empty() {
            self.tables.retain(|id, _| !over.contains(id));
            self.version += 1;
        }
        over
    }

    /// Sets one option. Returns whether that changed anything.
    pub fn set_option(&mut self, name: &str, key: &str, value: &str) -> Result<bool, CatalogueError> {
        self.set_options(name, [(key, value)])
    }

    /// Sets several options, all or none. One that is set under its other name is replaced. Returns whether that changed
    /// anything.
    pub fn set_options<'a>(
        &mut self,
        name: &str,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<bool, CatalogueError> {
        let options: BTreeMap<&str, &str> = options.into_iter().collect();
        self.change_options(name, |all| {
            all.retain(|key, _| option::other_name(key).is_none_or(|other| !options.contains_key(other)));
            all.extend(options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            Settings::from_options(all).map(drop)
        })
    }

    /// Removes options, so that their defaults hold again. One that is not set is no error, one that is not known is.
    /// Returns whether that changed anything.
    pub fn delete_options<'a>(
        &mut self,
        name: &str,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Result<bool, CatalogueError> {
        self.change_options(name, |all| {
            for key in keys {
                // One that is set can be removed even if only a later version knows it, and by either of its names.
                if all.remove(key).is_none() && !option::is_without_effect(key) {
                    option::find(key)?;
                    option::other_name(key).and_then(|other| all.remove(other));
                }
            }
            Ok(())
        })
    }

    /// Removes every option whose name starts with `prefix`; all of them if it is empty. Returns whether that changed
    /// anything.
    pub fn clear_options(&mut self, name: &str, prefix: &str) -> Result<bool, CatalogueError> {
        self.change_options(name, |all| {
            all.retain(|key, _| !key.starts_with(prefix));
            Ok(())
        })
    }

    /// Has the replica on `node` lead a partition whenever it can. Returns whether that changed anything.
    pub fn prefer_leader(
        &mut self,
        name: &str,
        partition: PartitionIndex,
        node: NodeId,
    ) -> Result<bool, CatalogueError> {
        let table = self.table_by_name(name).ok_or_else(|| CatalogueError::NoTable(name.to_owned()))?;
        let last = table.partitions.len().saturating_sub(1);
        if partition as usize > last {
            return Err(CatalogueError::NoPartition { table: name.to_owned(), partition, last });
        }
        let group = GroupId { table: table.id, partition };
        let partition = self.group_mut(group)?;
        let Some(voter) = partition.voters().find(|voter| voter.node() == node) else {
            let nodes: Vec<String> = partition.voters().map(|voter| voter.node().0.to_string()).collect();
            return Err(CatalogueError::NoVoter { group, node, voters: nodes.join(", ") });
        };
        if partition.preferred_leader == voter {
            return Ok(false);
        }
        partition.preferred_leader = voter;
        partition.version += 1;
        self.version += 1;
        Ok(true)
    }

    /// Takes note of a node: of a new one, or of one that started again, perhaps at another address or in another
    /// incarnation. Returns whether that changed anything.
    ///
    /// A new incarnation makes the replicas that the node had lost ([`Catalogue::lost_replicas`]). The first incarnation
    /// of a node that the catalogue was founded with becomes that of the replicas assigned to it before.
    pub fn register_node(&mut self, id: NodeId, node: Node) -> Result<bool, CatalogueError> {
        check_node(&self.nodes, id, &node)?;
        if !node.is_registered() {
            return Err(CatalogueError::Node { node: id, reason: "incarnation 0 is not one".to_owned() });
        }
        let known = self.nodes.get(&id);
        if known == Some(&node) {
            return Ok(false);
        }
        let is_first = known.is_some_and(|known| !known.is_registered());
        if is_first {
            self.adopt(id, &node);
        }
        self.nodes.insert(id, node);
        self.version += 1;
        Ok(true)
    }

    /// Makes a table that is being created available once `has_leader` holds for each of its partitions, and none of them
    /// must begin anew. Returns whether that changed anything.
    pub fn mark_created(&mut self, id: TableId, has_leader: impl Fn(PartitionIndex) -> bool) -> bool {
        let must_wait = |partition| self.must_begin_anew(GroupId { table: id, partition }) || !has_leader(partition);
        let Some(table) = self.tables.get(&id) else { return false };
        let is_complete = !(0..table.partitions.len() as u32).any(must_wait);
        let Some(table) = self.tables.get_mut(&id) else { return false };
        if table.state == TableState::Available || !is_complete {
            return false;
        }
        table.state = TableState::Available;
        self.version += 1;
        true
    }

    /// The nodes that can be given a replica.
    pub(crate) fn placeable<'a>(&'a self, alive: &'a BTreeSet<NodeId>) -> impl Iterator<Item = NodeId> + 'a {
        self.nodes.iter().filter(|(id, node)| is_placeable(**id, node, alive)).map(|(id, _)| *id)
    }

    pub(crate) fn new_partition(&mut self, start: Vec<u8>, nodes: &[NodeId]) -> Partition {
        let replicas: Vec<Replica> = nodes
            .iter()
            .map(|node| Replica {
                id: self.next_replica_on(*node),
                incarnation: self.nodes[node].incarnation,
                role: ReplicaRole::Voter,
            })
            .collect();
        Partition { start, preferred_leader: replicas[0].id, replicas, version: 1 }
    }

    fn change_options(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> Result<(), CatalogueError>,
    ) -> Result<bool, CatalogueError> {
        let table = self.table_by_name(name);
        let table = table.ok_or_else(|| CatalogueError::NoTable(name.to_owned()))?;
        let mut options = table.options.clone();
        change(&mut options)?;
        duplication::check_change(&table.options, &options)?;
        check_read_replica_count(&options, table.replica_count, self.nodes.len())?;
        if options == table.options {
            return Ok(false);
        }
        let (id, more) = (table.id, size_of_options(&options).saturating_sub(size_of_options(&table.options)));
        if more > 0 {
            self.check_room(more)?;
        }
        self.tables.entry(id).and_modify(|table| table.options = options);
        self.version += 1;
        Ok(true)
    }

    /// Whether the tables may take so many bytes more.
    fn check_room(&self, more: usize) -> Result<(), CatalogueError> {
        let size = self.tables.values().map(Table::row_size).sum::<usize>() + more;
        if size > TABLES_SIZE_MAX { Err(CatalogueError::CatalogueFull { size }) } else { Ok(()) }
    }

    fn adopt(&mut self, id: NodeId, node: &Node) {
        for replica in &mut self.meta.replicas {
            if replica.id.node() == id && replica.incarnation == Node::UNREGISTERED {
                replica.incarnation = node.incarnation;
            }
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), CatalogueError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let has_length = (1..=TABLE_NAME_SIZE_MAX).contains(&name.len());
    if has_length && name.bytes().all(is_allowed) {
        return Ok(());
    }
    // It may be of any length, and longer where it is quoted.
    Err(CatalogueError::TableName(name.chars().take(TABLE_NAME_SIZE_MAX + 1).collect()))
}

fn check_replica_count(count: u32, alive: usize, nodes: usize) -> Result<(), CatalogueError> {
    let rule = if !(1..=REPLICA_COUNT_MAX).contains(&count) {
        format!("there can be 1 to {REPLICA_COUNT_MAX}")
    } else if count as usize > nodes {
        format!("each needs a node of its own, and the cluster has {nodes}")
    } else if count as usize > alive {
        return Err(CatalogueError::TooFewAlive { count, alive, nodes });
    } else {
        return Ok(());
    };
    Err(CatalogueError::ReplicaCount { count, rule })
}

/// Checks `read_replicas` against all nodes there are: those that are not alive may come back.
fn check_read_replica_count(
    options: &BTreeMap<String, String>,
    replica_count: u32,
    nodes: usize,
) -> Result<(), CatalogueError> {
    let count = option::read_replicas(options);
    let max = nodes.saturating_sub(replica_count as usize).min(READ_REPLICA_COUNT_MAX as usize);
    if count as usize <= max {
        return Ok(());
    }
    let needed = count + replica_count;
    let rule = format!("needs {needed} nodes: {replica_count} hold voting replicas and the cluster has {nodes}");
    Err(CatalogueError::ReadReplicaCount { count, rule })
}

impl Table {
    /// Whether a creation with `spec` could have made this table.
    pub fn is_of(&self, spec: &TableSpec) -> bool {
        let counts = (spec.partition_count as usize, spec.replica_count);
        let starts = || self.partitions.iter().skip(1).map(|partition| &partition.start);
        self.name == spec.name
            && self.kind == spec.kind
            && (self.partitions.len(), self.replica_count) == counts
            && self.options == spec.options
            && (spec.split_keys.is_empty() || starts().eq(&spec.split_keys))
    }
}

fn existing_table(existing: &Table, spec: &TableSpec) -> Result<TableId, CatalogueError> {
    let name = spec.name.clone();
    if !spec.if_not_exists {
        return Err(CatalogueError::TableExists(name));
    }
    let count = existing.partitions.len();
    let is_same = (existing.kind, count, existing.replica_count)
        == (spec.kind, spec.partition_count as usize, spec.replica_count);
    if is_same {
        return Ok(existing.id);
    }
    let kind = match existing.kind {
        TableKind::Hash => "hash",
        TableKind::Ordered => "ordered",
    };
    let exists = format!("kind {kind}, {count} partitions, {} replicas", existing.replica_count);
    Err(CatalogueError::TableDiffers { name, exists })
}

/// The lower bound of each partition that `spec` asks for.
fn starts(spec: &TableSpec) -> Result<Vec<Vec<u8>>, CatalogueError> {
    let count = spec.partition_count;
    let refuse = |rule: String| Err(CatalogueError::PartitionCount { count, rule });
    match spec.kind {
        TableKind::Hash => {
            if !count.is_power_of_two() || !(PARTITION_COUNT_MIN..=PARTITION_COUNT_MAX).contains(&count) {
                let range = format!("from {PARTITION_COUNT_MIN} to {PARTITION_COUNT_MAX}");
                return refuse(format!(
                    "a hash table has a power of two {range}, because Pegasus' clients refuse tables with other counts"
                ));
            }
            if !spec.split_keys.is_empty() {
                return Err(CatalogueError::SplitKeys("a hash table has none".to_owned()));
            }
            Ok(vec![Vec::new(); count as usize])
        }
        TableKind::Ordered => {
            if !(1..=PARTITION_COUNT_MAX).contains(&count) {
                return refuse(format!("an ordered table has 1 to {PARTITION_COUNT_MAX}"));
            }
            let splits = if spec.split_keys.is_empty() { even_splits(count) } else { spec.split_keys.clone() };
            check_splits(&splits, count)?;
            Ok(std::iter::once(Vec::new()).chain(splits).collect())
        }
    }
}

/// Bounds that divide the first two bytes of the key evenly.
fn even_splits(count: u32) -> Vec<Vec<u8>> {
    (1..count).map(|i| ((i * 65_536 / count) as u16).to_be_bytes().to_vec()).collect()
}

fn check_splits(splits: &[Vec<u8>], count: u32) -> Result<(), CatalogueError> {
    let size: usize = splits.iter().map(Vec::len).sum();
    let reason = if splits.len() + 1 != count as usize {
        format!("{count} partitions need {}, and {} were given", count - 1, splits.len())
    } else if size > SPLIT_KEYS_SIZE_MAX {
        format!("they have {size} bytes together, more than {SPLIT_KEYS_SIZE_MAX}")
    } else if splits.first().is_some_and(Vec::is_empty) || splits.windows(2).any(|pair| pair[0] >= pair[1]) {
        "they must not be empty and must ascend".to_owned()
    } else {
        return Ok(());
    };
    Err(CatalogueError::SplitKeys(reason))
}

/// Checks what a node says of itself against the limits and the other nodes.
pub(crate) fn check_node(nodes: &BTreeMap<NodeId, Node>, id: NodeId, node: &Node) -> Result<(), CatalogueError> {
    let same_address = nodes.iter().find(|(other, known)| **other != id && known.address == node.address);
    let fits = |text: &String| (1..=LABEL_SIZE_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    let reason = if id.0 == 0 {
        "ids begin at 1".to_owned()
    } else if !is_address(&node.address) {
        format!("{:?} is not an address of the form host:port", node.address)
    } else if let Some((other, _)) = same_address {
        format!("{other} has the address {}", node.address)
    } else if node.labels.len() > LABEL_COUNT_MAX || !node.labels.iter().all(|(key, value)| fits(key) && fits(value)) {
        format!("there can be {LABEL_COUNT_MAX} labels, name and value of 1 to {LABEL_SIZE_MAX} bytes each")
    } else if !nodes.contains_key(&id) && nodes.len() >= NODE_COUNT_MAX {
        format!("the cluster has {NODE_COUNT_MAX} nodes, which is the limit")
    } else {
        return Ok(());
    };
    Err(CatalogueError::Node { node: id, reason })
}

fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let has_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
    has_host && address.len() <= ADDRESS_SIZE_MAX && port.parse::<u16>().is_ok_and(|port| port != 0)
}
