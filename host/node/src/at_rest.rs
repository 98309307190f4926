//! What a node's data directory tells without the node: where its log is and which one, what its groups are called, and what the
//! entries of the log mean. Reads only, and never creates, repairs or puts aside anything.

use crate::adopt::cache_path;
use crate::log_id;
use crate::open::parse_catalogue;
use bytes::Bytes;
use hedgerow_env::{Disk, read_file};
use hedgerow_placement::Catalogue;
pub use hedgerow_replication::MembershipChange;
use hedgerow_types::codec::decode_proposal;
use hedgerow_types::log::EntryKind;
use hedgerow_types::op::Proposal;
use hedgerow_types::{GroupId, NodeId, ReplicaId, TableId};
use std::io;
use std::path::{Path, PathBuf};

/// Where the log of data directory `data` lies.
pub fn log_of(data: &Path) -> PathBuf {
    log_id::log_of(data)
}

/// The number of the log in data directory `data`; `None` if it has none that can be read.
pub fn log_id(disk: &dyn Disk, data: &Path) -> Option<u64> {
    log_id::read(disk, data).ok().flatten()
}

/// Whether a node has data directory `data` open. Asks for the lock and gives it back at once.
pub fn is_in_use(disk: &dyn Disk, data: &Path) -> bool {
    disk.lock_dir(data).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The groups by the catalogue that a node acted on last. It may lack what is newer, and names nothing where there is none.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    catalogue: Option<Catalogue>,
}

impl Groups {
    /// What is cached in data directory `data`. A catalogue that cannot be read is none.
    pub fn of(disk: &dyn Disk, data: &Path) -> Self {
        let text = read_file(disk, &cache_path(data)).ok();
        Self { catalogue: text.and_then(|text| parse_catalogue(&text).ok()) }
    }

    /// The name of the group's table; `None` if it is not known.
    pub fn table_name(&self, group: GroupId) -> Option<&str> {
        if group == GroupId::META {
            return Some("metadata");
        }
        self.catalogue.as_ref()?.tables.get(&group.table).map(|table| table.name.as_str())
    }

    /// The table called `name`, if it is known. A dropped one counts where no other has the name.
    pub fn table(&self, name: &str) -> Option<TableId> {
        let catalogue = self.catalogue.as_ref()?;
        let dropped = || catalogue.tables.values().find(|table| table.name == name);
        catalogue.table_by_name(name).or_else(dropped).map(|table| table.id)
    }

    /// The nodes with the other voters of the group that `replica` is in, if the group is known.
    pub fn other_voters(&self, group: GroupId, replica: ReplicaId) -> Option<Vec<NodeId>> {
        let partition = self.catalogue.as_ref()?.group(group)?;
        Some(partition.voters().filter(|voter| *voter != replica).map(ReplicaId::node).collect())
    }
}

/// What an entry of a log means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: the first entry of a new leader.
    Empty,
    /// A write to a partition.
    Write(Proposal),
    /// A write to the metadata: the rows of the catalogue that change.
    Catalogue(Proposal),
    /// A change of the group's membership. It names nobody where a joint change ends.
    Membership(MembershipChange),
    /// What this program does not understand.
    Unknown(String),
}

/// What the entry of `group` with this kind and data means.
pub fn meaning(group: GroupId, kind: EntryKind, data: Bytes) -> Meaning {
    match kind {
        EntryKind::Membership => MembershipChange::decode(data)
            .map_or_else(|malformed| Meaning::Unknown(malformed.to_string()), Meaning::Membership),
        EntryKind::Normal if data.is_empty() => Meaning::Empty,
        EntryKind::Normal => match decode_proposal(data) {
            Ok(proposal) if group == GroupId::META => Meaning::Catalogue(proposal),
            Ok(proposal) => Meaning::Write(proposal),
            Err(malformed) => Meaning::Unknown(malformed.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use hedgerow_env::sim::SimDisk;
    use hedgerow_env::{create_dir_durably, write_file_durably};
    use hedgerow_placement::Node;
    use hedgerow_types::codec::encode_proposal;
    use hedgerow_types::op::Write;
    use hedgerow_types::{ClientId, Incarnation};

    #[test]
    fn entries_mean_what_was_logged() {
        let write = Write::Remove { key: Bytes::from_static(b"k") };
        let proposal = Proposal { client: ClientId(7), sequence: 3, now: 4, is_agreed: true, write };
        let mut data = BytesMut::new();
        encode_proposal(&proposal, &mut data);
        let (data, user) = (data.freeze(), GroupId::new(1, 2));
        assert_eq!(meaning(user, EntryKind::Normal, data.clone()), Meaning::Write(proposal.clone()));
        assert_eq!(meaning(GroupId::META, EntryKind::Normal, data.clone()), Meaning::Catalogue(proposal));
        assert_eq!(meaning(user, EntryKind::Normal, Bytes::new()), Meaning::Empty);
        assert!(matches!(meaning(user, EntryKind::Membership, data.slice(1..)), Meaning::Unknown(_)));
    }

    #[test]
    fn groups_are_called_as_the_cached_catalogue_says_and_damage_is_none() {
        let (disk, data) = (SimDisk::new(), Path::new("/data"));
        create_dir_durably(&disk, data).expect("an empty disk");
        let nodes = [1, 2, 3].map(|node| (NodeId(node), Node::new(format!("a:{node}"), Incarnation(1))));
        let catalogue = Catalogue::bootstrap(5, &nodes, &[NodeId(1), NodeId(2), NodeId(3)]).expect("three nodes");
        let text = crate::open::write_catalogue(&catalogue).expect("it has a form");
        write_file_durably(&disk, &cache_path(data), &text).expect("writable");
        let others = |groups: &Groups| groups.other_voters(GroupId::META, ReplicaId::new(2, NodeId(2)));
        let groups = Groups::of(&disk, data);
        assert_eq!((groups.table_name(GroupId::META), groups.table("users")), (Some("metadata"), None));
        assert_eq!(others(&groups), Some(vec![NodeId(1), NodeId(3)]));
        disk.flip_byte(&cache_path(data), 20).expect("there");
        assert_eq!(others(&Groups::of(&disk, data)), None);
        assert!(disk.exists(&cache_path(data)), "nothing is put aside");
        let lock = disk.lock_dir(data).expect("nobody has it");
        assert!(is_in_use(&disk, data));
        drop(lock);
        assert!(!is_in_use(&disk, data));
    }
}
