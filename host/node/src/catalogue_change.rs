//! What is to change in the catalogue, and how the log tells of it.

use hedgerow_placement::{Catalogue, CatalogueError, Grant, Holder, Node as NodeEntry, TableSpec};
use hedgerow_scram::{Mask, Verifier};
use hedgerow_types::{GroupId, NodeId, PartitionIndex, ReplicaId, TableId};
use std::collections::BTreeMap;
use std::fmt;

/// A change of the catalogue.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Changes nothing: whether there is such a table is told as what a change comes to is.
    Find {
        name: String,
    },
    CreateTable {
        spec: TableSpec,
        /// The same creation may come again by way of another node.
        may_repeat: bool,
    },
    DropTable {
        of: Meant,
        if_exists: bool,
        /// How long it is kept; 0 = not at all.
        reserve_seconds: u64,
    },
    RecallTable {
        id: TableId,
        name: Option<String>,
    },
    /// Dropped tables whose time is over at `unix_seconds` are to go.
    RemoveOverdue {
        unix_seconds: u64,
    },
    SetOptions {
        of: Meant,
        options: BTreeMap<String, String>,
    },
    DeleteOptions {
        of: Meant,
        keys: Vec<String>,
    },
    ClearOptions {
        of: Meant,
        prefix: String,
    },
    /// A node is to lead a partition whenever it can.
    PreferLeader {
        of: Meant,
        partition: PartitionIndex,
        node: NodeId,
    },
    Register {
        node: NodeId,
        entry: NodeEntry,
    },
    MarkCreated {
        table: TableId,
    },
    BeginAnew {
        group: GroupId,
    },
    Replace {
        group: GroupId,
        lost: ReplicaId,
    },
    Finish {
        group: GroupId,
        joined: ReplicaId,
    },
    Withdraw {
        group: GroupId,
        back: ReplicaId,
    },
    /// Read-only replicas are to be added or removed.
    ArrangeLearners,
    Grant {
        to: Holder,
        grants: Vec<Grant>,
    },
    Revoke {
        from: Holder,
        /// Empty = all.
        grants: Vec<Grant>,
    },
    SetPassword {
        user: Holder,
        verifier: Verifier,
        /// The cluster's secret for names without a password, if it has none yet.
        mask: Mask,
        is_new: bool,
    },
    RemovePassword {
        user: Holder,
    },
}

/// The table that a change is meant for.
#[derive(Clone, Debug)]
pub(crate) struct Meant {
    pub(crate) name: String,
    /// The one that had the name when the node took the call that passed it on: a call may be on its way for as long as a
    /// connection lasts, and must not change, or drop, a later table of the name.
    pub(crate) id: Option<TableId>,
}

impl Meant {
    /// The name, if the table that has it is the one that was meant.
    pub(crate) fn name_in(self, draft: &Catalogue) -> Result<String, CatalogueError> {
        let Self { name, id: meant } = self;
        match (draft.table_by_name(&name).map(|table| table.id), meant) {
            (Some(id), Some(meant)) if id != meant => Err(CatalogueError::OtherTable { name, id, meant }),
            (_, _) => Ok(name),
        }
    }
}

impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {:?}", self.name)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Find { name } => write!(f, "table {name:?} is looked for"),
            Self::CreateTable { spec: TableSpec { name, partition_count, replica_count, options, .. }, .. } => {
                write!(f, "table {name:?} is made: partitions {partition_count}, replicas {replica_count}")?;
                write_options(f, options)
            }
            Self::DropTable { of, reserve_seconds: 0, .. } => write!(f, "{of} is dropped, and not kept"),
            Self::DropTable { of, reserve_seconds, .. } => {
                write!(f, "{of} is dropped, and kept for {reserve_seconds} s")
            }
            Self::RecallTable { id, name: None } => write!(f, "the dropped table of number {} is recalled", id.0),
            Self::RecallTable { id, name: Some(name) } => {
                write!(f, "the dropped table of number {} is recalled as {name:?}", id.0)
            }
            Self::RemoveOverdue { .. } => f.write_str("dropped tables whose time is over are removed"),
            Self::SetOptions { of, options } => {
                write!(f, "options of {of} are set")?;
                write_options(f, options)
            }
            Self::DeleteOptions { of, keys } => write!(f, "options of {of} are removed: {}", keys.join(", ")),
            Self::ClearOptions { of, prefix } => write!(f, "options of {of} that begin with {prefix:?} are removed"),
            Self::PreferLeader { of, partition, node } => {
                write!(f, "node {node} is to lead partition {partition} of {of}")
            }
            Self::Register { node, entry } => write!(f, "node {node} is registered at {}", entry.address),
            Self::MarkCreated { table } => write!(f, "the table of number {} is there", table.0),
            Self::BeginAnew { group } => write!(f, "partition {group} begins anew"),
            Self::Replace { group, lost } => write!(f, "replica {lost} of partition {group} is lost, and replaced"),
            Self::Finish { group, joined } => write!(f, "replica {joined} of partition {group} has joined"),
            Self::Withdraw { group, back } => write!(f, "replica {back} of partition {group} is back"),
            Self::ArrangeLearners => f.write_str("read-only replicas are added or removed"),
            Self::Grant { to, grants } => write!(f, "{to} is given {}", listed(grants)),
            Self::Revoke { from, grants } if grants.is_empty() => write!(f, "all rights are taken from {from}"),
            Self::Revoke { from, grants } => write!(f, "{} is taken from {from}", listed(grants)),
            Self::SetPassword { user, is_new: true, .. } => write!(f, "user {user} is given a password"),
            Self::SetPassword { user, is_new: false, .. } => write!(f, "user {user} is given another password"),
            Self::RemovePassword { user } => write!(f, "the password of user {user} is removed"),
        }
    }
}

fn listed(grants: &[Grant]) -> String {
    grants.iter().map(Grant::to_string).collect::<Vec<_>>().join(", ")
}

fn write_options(f: &mut fmt::Formatter<'_>, options: &BTreeMap<String, String>) -> fmt::Result {
    options.iter().try_for_each(|(key, value)| write!(f, ", {key} = {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_in_words() {
        let of = || Meant { name: "users".into(), id: None };
        let options = BTreeMap::from([("read_level".to_owned(), "session".to_owned())]);
        let spec = TableSpec { options: options.clone(), ..TableSpec::hash("users", 8, 3) };
        let told = [
            Change::CreateTable { spec, may_repeat: false },
            Change::DropTable { of: of(), if_exists: false, reserve_seconds: 60 },
            Change::SetOptions { of: of(), options },
        ];
        assert_eq!(
            told.map(|change| change.to_string()),
            [
                r#"table "users" is made: partitions 8, replicas 3, read_level = "session""#,
                r#"table "users" is dropped, and kept for 60 s"#,
                r#"options of table "users" are set, read_level = "session""#
            ]
        );
    }
}
