//! Where the logs are that a command is about, what their groups are called, and whether a node has them open.

use super::LogArguments;
use crate::files::absolute;
use crate::output::say;
use crate::serve::read_config;
use anyhow::{Context as _, Result, bail};
use hedgerow_env::{Disk, parent_of};
use hedgerow_node::DirectoryId;
use hedgerow_node::at_rest::{Groups, is_in_use, log_id, log_of};
use hedgerow_types::{GroupId, TableId};
use hedgerow_wal::{Durability, segment_sizes};
use std::path::{Path, PathBuf};

/// A log.
#[derive(Debug)]
pub(super) struct Place {
    /// Its directory.
    pub(super) log: PathBuf,
    /// Its number; `None` if it has none that can be read.
    pub(super) id: Option<u64>,
    /// A node has its data directory open, so that its end moves.
    pub(super) is_in_use: bool,
    /// What its groups are called.
    pub(super) groups: Groups,
}

/// The logs that `arguments` name, and what their node takes an acknowledged write for.
pub(super) fn find(disk: &dyn Disk, arguments: &LogArguments) -> Result<(Vec<Place>, Durability)> {
    let (directories, durability) = match &arguments.config {
        Some(file) => {
            let config = read_config(file)?.config;
            // Those of its layout, and another one where groups have not left it yet.
            let has_log = |directory: &DirectoryId| {
                config.home_of(config.log_of(*directory)) == *directory
                    || disk.is_dir(&log_of(config.path_of(*directory)))
            };
            let with_log = config.directories().filter(has_log);
            (with_log.map(|directory| config.path_of(directory).to_owned()).collect(), config.wal.durability)
        }
        None => (arguments.directories.clone(), Durability::Fsync),
    };
    let places = directories.iter().map(|directory| place(disk, directory)).collect::<Result<Vec<_>>>()?;
    for place in places.iter().filter(|place| place.is_in_use) {
        say(&format!("a node has {} open: its end may move", place.log.display()));
    }
    Ok((places, durability))
}

fn place(disk: &dyn Disk, directory: &Path) -> Result<Place> {
    let directory = &absolute(directory)?;
    let names = disk.list(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let below = log_of(directory);
    let (log, data) = if disk.is_dir(&below) {
        (below, directory.as_path())
    } else if names.iter().any(|name| name == "id") || !segment_sizes(disk, directory)?.is_empty() {
        (directory.clone(), parent_of(directory))
    } else {
        bail!(
            "{} is neither a data directory nor a log: it has no directory log, and no segments (0000000000000001.seg)",
            directory.display()
        );
    };
    disk.list(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let is_of_node = log_of(data) == log;
    Ok(Place {
        id: is_of_node.then(|| log_id(disk, data)).flatten(),
        is_in_use: is_of_node && is_in_use(disk, data),
        groups: if is_of_node { Groups::of(disk, data) } else { Groups::default() },
        log,
    })
}

/// The group that is called `name`, such as `users.3` or `1.3`. Table names are those of any of the logs' nodes.
pub(super) fn group(places: &[Place], name: &str) -> Result<GroupId> {
    let (table, partition) = name.rsplit_once('.').with_context(|| format!("{name:?} is not of the form users.3"))?;
    let partition = partition.parse().with_context(|| format!("{partition:?} is not the number of a partition"))?;
    let table = match table.parse() {
        Ok(number) => TableId(number),
        Err(_) => places.iter().find_map(|place| place.groups.table(table)).with_context(|| {
            format!("no catalogue beside these logs has a table {table:?}: give its number, which `table list` shows")
        })?,
    };
    Ok(GroupId { table, partition })
}
