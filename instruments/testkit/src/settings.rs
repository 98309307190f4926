//! What a cluster of processes is made of.

use crate::binary;
use anyhow::Result;
use std::path::PathBuf;

/// Data directories per node under test: more than one, so that groups of a node live in several logs.
const TEST_DATA_DIRECTORIES: usize = 2;

/// What an acknowledgement of the cluster stands for; `durability` in docs/configuration.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The disk.
    #[default]
    Fsync,
    /// The operating system's memory.
    Os,
}

impl Durability {
    /// As the configuration file spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Os => "os",
        }
    }
}

/// Where a node keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// In the cluster's temporary folder: it survives restarts of the node.
    Folder,
    /// On a file system of this many bytes that only the node sees. It begins empty at every start of the node.
    SmallDisk(u64),
    /// As [`DataPlace::Folder`], but the node cannot write to it.
    ReadOnlyFolder,
}

/// Everything that can differ between clusters.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `hedgerow` binary that serves.
    pub binary: PathBuf,
    /// One node per place, from number 1.
    pub places: Vec<DataPlace>,
    /// Where the cluster's own folder is made, which is removed in the end; the system's temporary folder by default.
    pub base: Option<PathBuf>,
    /// Data directories of each node.
    pub data_directories: usize,
    /// What an acknowledgement stands for.
    pub durability: Durability,
    /// Shards of each node; its default if it is `None`.
    pub shards: Option<usize>,
    /// Threads that have to do with clients' sockets in each node.
    pub io_threads: Option<usize>,
    /// Threads of each node that serve reads; its default if it is `None`.
    pub workers: Option<usize>,
    /// Tables of the configuration file that every node gets besides, for example `[memory]\nblock_cache_mib = 64`.
    pub further_config: String,
    /// What nodes log (`HEDGEROW_LOG`); their default if it is `None`.
    pub log: Option<String>,
    /// Whether the nodes and [`crate::Cluster::run`] have certificates, and speak with nobody else.
    pub has_tls: bool,
    /// With certificates: whether the nodes go by rights. Somebody has to be given some, by [`crate::Cluster::run_as`] the user [`crate::ROOT`].
    pub has_rights: bool,
    /// With certificates: whether clients need none, so that they may log in by a password.
    pub has_passwords: bool,
    /// Whether each node is in a process group of its own, so that Ctrl-C in a terminal ends only who started it.
    pub has_own_group: bool,
}

impl Settings {
    /// Nodes at `places` that run the binary under test (see [`binary()`]).
    pub fn under_test(places: &[DataPlace]) -> Result<Self> {
        let settings = Self::of_binary(binary()?, places.len());
        Ok(Self { places: places.to_vec(), data_directories: TEST_DATA_DIRECTORIES, log: None, ..settings })
    }

    /// `count` durable nodes that run `binary`, with one data directory each. They print errors only.
    #[must_use]
    pub fn of_binary(binary: PathBuf, count: usize) -> Self {
        Self {
            binary,
            places: vec![DataPlace::Folder; count],
            base: None,
            data_directories: 1,
            durability: Durability::Fsync,
            shards: None,
            io_threads: None,
            workers: None,
            further_config: String::new(),
            log: Some("error".to_owned()),
            has_tls: false,
            has_rights: false,
            has_passwords: false,
            has_own_group: false,
        }
    }
}
