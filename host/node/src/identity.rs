//! Who a node is: the small file in each of its data directories, and the incarnation that says whether its data is whole.
//!
//! All directories of a node carry the same incarnation. If one of them comes back empty, or one is missing, the node
//! draws a new incarnation: replicas that are still there go on, and nobody recreates empty, under their old names,
//! those that are not. That is what makes a lost disk safe for Raft (a replica never forgets a vote or an entry).

use crate::peer::Founder;
use hedgerow_env::{Disk, read_file, write_file_durably};
use hedgerow_types::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "identity.json";
const VERSION: u32 = 1;

/// The content of `identity.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    version: u32,
    node: u16,
    incarnation: u64,
    directories: usize,
    /// The cluster's id; 0 until it is founded.
    pub(crate) cluster: u64,
    /// The metadata nodes that founded it.
    pub(crate) founders: Vec<Founder>,
}

impl Identity {
    /// This life of the node's data.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    /// Begins another life, because something of this one is lost.
    pub(crate) fn renew(&mut self, random: u64, disk: &dyn Disk, directories: &[PathBuf]) -> io::Result<()> {
        self.incarnation = random | 1;
        self.save(disk, directories)
    }

    /// Writes the identity to every directory, durably.
    pub(crate) fn save(&self, disk: &dyn Disk, directories: &[PathBuf]) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        directories.iter().try_for_each(|directory| write_file_durably(disk, &directory.join(FILE_NAME), &text))
    }
}

/// Why a node's directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory cannot be read or written.
    #[error("cannot use data directory {}", directory.display())]
    Io {
        /// Which one.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The identity file is not one.
    #[error("{} is not an identity file of version {VERSION}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The directory was made by another node.
    #[error("{} belongs to node {found}, this is node {expected}", directory.display())]
    WrongNode {
        /// Which directory.
        directory: PathBuf,
        /// Whose it is.
        found: u16,
        /// Who we are.
        expected: u16,
    },
    /// The directories come from different clusters.
    #[error("{} belongs to another cluster than the directories before it", directory.display())]
    WrongCluster {
        /// Which directory.
        directory: PathBuf,
    },
}

/// Reads the identity that `directories` share, or draws a new incarnation from `random` where they do not agree; the
/// directories are created where they do not exist, and the result is durable in all of them.
pub(crate) fn open(
    disk: &dyn Disk,
    directories: &[PathBuf],
    node: NodeId,
    random: u64,
) -> Result<Identity, IdentityError> {
    let mut found: Vec<Identity> = Vec::new();
    for directory in directories {
        let io_error = |source| IdentityError::Io { directory: directory.clone(), source };
        hedgerow_env::create_dir_durably(disk, directory).map_err(io_error)?;
        let Some(identity) = read(disk, directory)? else { continue };
        if identity.node != node.0 {
            let (directory, found) = (directory.clone(), identity.node);
            return Err(IdentityError::WrongNode { directory, found, expected: node.0 });
        }
        if found.iter().any(|other| other.cluster != 0 && identity.cluster != 0 && other.cluster != identity.cluster) {
            return Err(IdentityError::WrongCluster { directory: directory.clone() });
        }
        found.push(identity);
    }
    let is_whole = found.len() == directories.len()
        && found.iter().all(|one| one.incarnation == found[0].incarnation && one.directories == directories.len());
    let founded = found.iter().find(|identity| identity.cluster != 0).or(found.first());
    let identity = Identity {
        version: VERSION,
        node: node.0,
        incarnation: if is_whole && !found.is_empty() { found[0].incarnation } else { random | 1 },
        directories: directories.len(),
        cluster: founded.map_or(0, |identity| identity.cluster),
        founders: founded.map_or_else(Vec::new, |identity| identity.founders.clone()),
    };
    if !is_whole || found.iter().any(|one| *one != identity) {
        let directory = directories.first().cloned().unwrap_or_default();
        identity.save(disk, directories).map_err(|source| IdentityError::Io { directory, source })?;
    }
    Ok(identity)
}

fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<Identity>, IdentityError> {
    let path = directory.join(FILE_NAME);
    if !disk.exists(&path) {
        return Ok(None);
    }
    let bytes =
        read_file(disk, &path).map_err(|source| IdentityError::Io { directory: directory.to_path_buf(), source })?;
    let identity: Identity = serde_json::from_slice(&bytes)
        .map_err(|error| IdentityError::Malformed { path: path.clone(), reason: error.to_string() })?;
    if identity.version != VERSION {
        return Err(IdentityError::Malformed { path, reason: format!("its version is {}", identity.version) });
    }
    Ok(Some(identity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;

    fn directories() -> Vec<PathBuf> {
        vec![PathBuf::from("/a"), PathBuf::from("/b")]
    }

    #[test]
    fn an_identity_is_drawn_once_and_kept() {
        let disk = SimDisk::new();
        let first = open(&disk, &directories(), NodeId(1), 10).expect("fresh");
        let second = open(&disk, &directories(), NodeId(1), 20).expect("known");
        assert_eq!(first, second);
        assert_eq!(first.incarnation(), Incarnation(11));
    }

    #[test]
    fn an_emptied_directory_means_a_new_incarnation_of_the_same_cluster() {
        let disk = SimDisk::new();
        let mut first = open(&disk, &directories(), NodeId(1), 10).expect("fresh");
        first.cluster = 7;
        first.save(&disk, &directories()).expect("writable");
        disk.remove_file(Path::new("/b/identity.json")).expect("there");
        let second = open(&disk, &directories(), NodeId(1), 20).expect("half known");
        assert_eq!((second.incarnation(), second.cluster), (Incarnation(21), 7));
        assert_eq!(open(&disk, &directories(), NodeId(1), 30).expect("whole again"), second);
    }

    #[test]
    fn fewer_directories_than_before_mean_a_new_incarnation() {
        let disk = SimDisk::new();
        open(&disk, &directories(), NodeId(1), 10).expect("fresh");
        let one = open(&disk, &directories()[..1], NodeId(1), 20).expect("fewer");
        assert_eq!(one.incarnation(), Incarnation(21));
    }

    #[test]
    fn another_nodes_directory_is_refused() {
        let disk = SimDisk::new();
        open(&disk, &directories(), NodeId(1), 10).expect("fresh");
        let error = open(&disk, &directories(), NodeId(2), 10).expect_err("not ours");
        assert_eq!(error.to_string(), "/a belongs to node 1, this is node 2");
    }
}
