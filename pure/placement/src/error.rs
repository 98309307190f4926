//! Why a change of the catalogue is refused, and why stored rows are not a catalogue.

use crate::limit::{GRANTS_PER_HOLDER_MAX, PASSWORD_COUNT_MAX, RIGHTS_SIZE_MAX, TABLES_SIZE_MAX};
use crate::rights::{Grant, Holder};
use hedgerow_types::limit::REPLICA_COUNT_MAX;
use hedgerow_types::{GroupId, NodeId, Refusal, ReplicaId, TableId};

/// A request that cannot be done. The catalogue is unchanged. Nothing here goes away by sending the same request again,
/// except [`CatalogueError::OtherTable`], [`CatalogueError::ReplicaCount`] when more nodes come alive and [`CatalogueError::ReadReplicaCount`] when the
/// cluster gets more nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// The name is too long, empty or has a character that is not allowed.
    #[error("table name {0:?} is not allowed: 1 to 128 characters of A-Z a-z 0-9 _ . : -")]
    TableName(String),
    /// No table has the name.
    #[error("table {0:?} does not exist")]
    NoTable(String),
    /// The call meant a former table of the name. It may be late, or have come by way of a node that is.
    #[error("table {name:?} is table {} by now, and table {} was meant: nothing was changed; ask again if the new one is meant", id.0, meant.0)]
    OtherTable {
        /// The name.
        name: String,
        /// Who has it.
        id: TableId,
        /// Who had it.
        meant: TableId,
    },
    /// A table has the name already.
    #[error("table {0:?} exists already")]
    TableExists(String),
    /// A table has the name already and is not what was asked for.
    #[error("table {name:?} exists already with {exists}")]
    TableDiffers {
        /// The name.
        name: String,
        /// What the existing table is like.
        exists: String,
    },
    /// No dropped table with the id is kept, nor is one in use.
    #[error("table {} is not there: it was never made, or its time after the drop is over", .0.0)]
    NotKept(TableId),
    /// A dropped table cannot be recalled by a name that another one has.
    #[error("table {} is called {name:?}: recall under another name", id.0)]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        id: TableId,
    },
    /// The cluster has as many tables as it may.
    #[error("the cluster has {0} tables, dropped ones that are kept included, which is the limit")]
    TooManyTables(usize),
    /// All tables together would take more of the catalogue than they may.
    #[error(
        "the cluster's tables would take {size} bytes of its catalogue, of {TABLES_SIZE_MAX}: use fewer partitions or shorter options, or drop tables"
    )]
    CatalogueFull {
        /// What they would take.
        size: usize,
    },
    /// The number of partitions is not allowed.
    #[error("a partition count of {count} is not allowed: {rule}")]
    PartitionCount {
        /// What was asked for.
        count: u32,
        /// What is allowed.
        rule: String,
    },
    /// The number of replicas is not allowed, or the cluster has too few nodes for it.
    #[error("a replica count of {count} is not possible: {rule}")]
    ReplicaCount {
        /// What was asked for.
        count: u32,
        /// What is possible.
        rule: String,
    },
    /// The cluster has enough nodes, but too few of them are alive or known yet: those may come back.
    #[error("a replica count of {count} needs as many nodes that are alive, and {alive} of {nodes} are")]
    TooFewAlive {
        /// Replicas that were asked for.
        count: u32,
        /// Nodes that can be given replicas now.
        alive: usize,
        /// Nodes of the cluster.
        nodes: usize,
    },
    /// A node would host more replicas than the files that it may open allow.
    #[error(
        "a partition count of {partition_count} and a replica count of {replica_count} do not fit: node {} may host {room} in all. Use fewer \
         partitions, raise its limit of open files (`ulimit -Hn`, or LimitNOFILE= of systemd), or add nodes", node.0
    )]
    NoRoom {
        /// Partitions of the table.
        partition_count: u32,
        /// Replicas of each.
        replica_count: u32,
        /// The node.
        node: NodeId,
        /// Most replicas that it may host.
        room: u64,
    },
    /// There cannot be so many read-only replicas in this cluster.
    #[error("read_replicas={count} {rule}")]
    ReadReplicaCount {
        /// What was asked for.
        count: u32,
        /// What it needs.
        rule: String,
    },
    /// The split keys do not divide the key space into the partitions asked for.
    #[error("the split keys are not allowed: {0}")]
    SplitKeys(String),
    /// No option has this name.
    #[error("option {key:?} is not known; known options: {known}")]
    UnknownOption {
        /// The name.
        key: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// The option does not take this value.
    #[error("option {key} does not take {value:?}: {expected}")]
    OptionValue {
        /// The option.
        key: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// Two names of one option were set at once.
    #[error("{key} and {other} are two names of one option: set one of them")]
    SameOption {
        /// One.
        key: &'static str,
        /// The other.
        other: &'static str,
    },
    /// An option that says a duplication has a name or a value that is not allowed, or there cannot be another one.
    #[error("option {key:?} is not allowed: {reason}")]
    Duplication {
        /// The option.
        key: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// Something is wrong with a node's id, address, incarnation or labels.
    #[error("node {node} cannot be registered: {reason}")]
    Node {
        /// The node.
        node: NodeId,
        /// What is wrong.
        reason: String,
    },
    /// The nodes that shall keep the metadata are not a list of distinct known nodes.
    #[error("the metadata nodes are not allowed: {0}")]
    MetaNodes(String),
    /// No partition has this id.
    #[error("group {0} does not exist")]
    NoGroup(GroupId),
    /// The table has no such partition.
    #[error("table {table} has partitions 0 to {last}, and no {partition}")]
    NoPartition {
        /// The table's name.
        table: String,
        /// What was asked for.
        partition: u32,
        /// The last one that there is.
        last: usize,
    },
    /// The group has no such replica.
    #[error("group {group} has no replica {replica}")]
    NoReplica {
        /// The group.
        group: GroupId,
        /// The replica.
        replica: ReplicaId,
    },
    /// A node that shall lead a partition does not vote in it.
    #[error("node {} has no voting replica of partition {}; those are on: {voters}", node.0, group.partition)]
    NoVoter {
        /// The partition.
        group: GroupId,
        /// The node.
        node: NodeId,
        /// The nodes that have one, separated by commas.
        voters: String,
    },
    /// Nobody can be called so.
    #[error(
        "{0:?} is no name of a user or a role: a user is called as its certificate calls it, 1 to 56 of a-z, 0-9 and \"-\", which is neither first nor last; a role the same after \"@\""
    )]
    Holder(String),
    /// There is no such right.
    #[error(
        "{0:?} is no right: there are read:TABLES, write:TABLES and admin:TABLES, where TABLES is a table's name, the beginning of names with \"*\" \
         after it, or \"*\"; monitor; cluster-admin; and @ROLE, a role other than @everyone"
    )]
    Grant(String),
    /// Somebody has no rights.
    #[error("{0} has been given no rights")]
    NothingGranted(Holder),
    /// Somebody does not have a right that is to be taken.
    #[error("{from} has not been given {grant}: nothing was taken")]
    NotGranted {
        /// Who.
        from: Holder,
        /// What.
        grant: Grant,
    },
    /// Roles have no roles.
    #[error("{to} is a role, and cannot have role {role}: give it what that has")]
    RoleOfRole {
        /// Who.
        to: Holder,
        /// What.
        role: Holder,
    },
    /// Somebody would have more rights than one may.
    #[error(
        "{to} would have too many rights, {count} where {GRANTS_PER_HOLDER_MAX} are allowed: name several tables by the beginning of their names, or use roles"
    )]
    TooManyGrants {
        /// Who.
        to: Holder,
        /// How many.
        count: usize,
    },
    /// All rights together would take more of the catalogue than they may.
    #[error("the rights of all would take {size} bytes of the cluster's catalogue, of {RIGHTS_SIZE_MAX}: use roles")]
    RightsFull {
        /// What they would take.
        size: usize,
    },
    /// Only users have passwords.
    #[error("{0} is a role, and roles have no passwords")]
    PasswordOfRole(Holder),
    /// There is a password already.
    #[error("user {0} has a password already")]
    HasPassword(Holder),
    /// There is none.
    #[error("user {0} has no password")]
    NoPassword(Holder),
    /// There cannot be more.
    #[error("{PASSWORD_COUNT_MAX} users have a password: there cannot be more")]
    TooManyPasswords,
    /// The replica is not in the state that the request needs.
    #[error("replica {replica} of group {group} {reason}")]
    ReplicaState {
        /// The group.
        group: GroupId,
        /// The replica.
        replica: ReplicaId,
        /// What its state is.
        reason: &'static str,
    },
}

impl From<CatalogueError> for Refusal {
    fn from(error: CatalogueError) -> Self {
        match error {
            CatalogueError::NoTable(_) | CatalogueError::NotKept(_) => Self::NoTable,
            CatalogueError::TableExists(_) => Self::TableExists,
            CatalogueError::TooFewAlive { .. } => Self::NotReady(error.to_string()),
            CatalogueError::ReplicaCount { count, .. } if !(1..=REPLICA_COUNT_MAX).contains(&count) => {
                Self::Invalid(error.to_string())
            }
            // Whoever asks decides whether the other one is meant, too: nobody repeats it by himself.
            CatalogueError::OtherTable { .. }
            | CatalogueError::TableDiffers { .. }
            | CatalogueError::NameTaken { .. }
            | CatalogueError::TooManyTables(_)
            | CatalogueError::CatalogueFull { .. }
            | CatalogueError::ReplicaCount { .. }
            | CatalogueError::NoRoom { .. }
            | CatalogueError::ReadReplicaCount { .. }
            | CatalogueError::NothingGranted(_)
            | CatalogueError::NotGranted { .. }
            | CatalogueError::TooManyGrants { .. }
            | CatalogueError::RightsFull { .. }
            | CatalogueError::HasPassword(_)
            | CatalogueError::NoPassword(_)
            | CatalogueError::TooManyPasswords
            | CatalogueError::ReplicaState { .. } => Self::FailedPrecondition(error.to_string()),
            CatalogueError::TableName(_)
            | CatalogueError::PartitionCount { .. }
            | CatalogueError::SplitKeys(_)
            | CatalogueError::UnknownOption { .. }
            | CatalogueError::OptionValue { .. }
            | CatalogueError::SameOption { .. }
            | CatalogueError::Duplication { .. }
            | CatalogueError::Node { .. }
            | CatalogueError::MetaNodes(_)
            | CatalogueError::NoGroup(_)
            | CatalogueError::NoPartition { .. }
            | CatalogueError::NoReplica { .. }
            | CatalogueError::NoVoter { .. }
            | CatalogueError::Holder(_)
            | CatalogueError::Grant(_)
            | CatalogueError::RoleOfRole { .. }
            | CatalogueError::PasswordOfRole(_) => Self::Invalid(error.to_string()),
        }
    }
}

/// Rows that are not a catalogue: damaged, incomplete, or written by a later version. To be reported, not repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// There is no catalogue yet.
    #[error("the catalogue has not been founded: row {0:?} is missing")]
    Missing(&'static str),
    /// A later version of this program wrote the rows.
    #[error("the catalogue has format {found}; this version reads up to {supported}")]
    Format {
        /// What the rows say.
        found: u32,
        /// The newest that can be read.
        supported: u32,
    },
    /// A row is not of the form it should be.
    #[error("catalogue row {key:?} is malformed: {reason}")]
    Malformed {
        /// The row's key.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// Each row is well formed, and together they contradict each other.
    #[error("the catalogue contradicts itself: {0}")]
    Inconsistent(String),
}
