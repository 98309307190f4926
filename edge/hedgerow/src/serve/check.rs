//! `hedgerow config`: whether a node could be started with a configuration, and what it would be told. The file is read as `serve` reads
//! it.

use super::read_config;
use crate::exit::Exit;
use crate::files::is_directory;
use crate::output::{columns, print};
use anyhow::Result;
use clap::Subcommand;
use hedgerow_node::Config;
use hedgerow_storage::RocksSettings;
use hedgerow_wal::Durability;
use std::path::{Path, PathBuf};

/// What is done with a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether a node could be started with a file, and with which settings. Nothing is started or changed.
    Check {
        /// The configuration of `hedgerow serve`, TOML; docs/configuration.md has every setting.
        file: PathBuf,
    },
}

/// `hedgerow config`.
pub(crate) fn run(command: &ConfigCommand) -> Result<Exit> {
    let ConfigCommand::Check { file } = command;
    let (storage, config) = read_config(file)?;
    print(&text(file, &storage, &config))?;
    Ok(Exit::Done)
}

fn text(file: &Path, storage: &RocksSettings, config: &Config) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let numbers =
        |nodes: &[hedgerow_types::NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    let mut rows = vec![
        ("node".to_owned(), config.node.0.to_string()),
        ("address".to_owned(), config.address.clone()),
        ("listens on".to_owned(), config.listen.clone()),
        ("metadata on nodes".to_owned(), numbers(&config.meta_nodes)),
    ];
    let peers = config.peers.iter().filter(|(node, _)| **node != config.node);
    rows.extend(peers.map(|(node, address)| (format!("node {}", node.0), address.clone())));
    for data in &config.data {
        let found = if is_directory(data).unwrap_or(false) { "" } else { " (not there yet)" };
        rows.push(("data directory".to_owned(), format!("{}{found}", data.display())));
    }
    rows.extend(config.labels.iter().map(|(name, value)| (format!("label {name}"), value.clone())));
    let durability = match config.wal.durability {
        Durability::Fsync => "fsync: acknowledged writes survive a power failure of all nodes",
        Durability::Os => "os: a power failure of a majority loses what was acknowledged last",
    };
    rows.extend([
        ("durability".to_owned(), durability.to_owned()),
        ("memory for rows not flushed".to_owned(), mib(config.flush_node_bytes)),
        ("memory for hot rows".to_owned(), mib(storage.hot_rows_size as u64)),
        ("memory for blocks of tables".to_owned(), mib(storage.cache_size as u64)),
        ("log kept for others".to_owned(), mib(config.log_retained_bytes)),
        ("dropped tables are kept for".to_owned(), format!("{} s", config.drop_reserve_seconds)),
        ("faults on request".to_owned(), if config.may_fault { "allowed" } else { "refused" }.to_owned()),
    ]);
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name, value]).collect();
    format!("{}\n\n{} is right.", columns(&["setting", "value"], &rows), file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(settings: &str) -> Result<String> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("n1.toml");
        let peers = "peers = [{ node = 1, address = \"127.0.0.1:34601\" }, { node = 2, address = \"b:34601\" }]";
        let written = format!("node = 1\ndata = [\"/nowhere/d\"]\n{peers}\n{settings}\n");
        crate::files::replace(&file, written.as_bytes())?;
        let (storage, config) = read_config(&file)?;
        Ok(text(&file, &storage, &config))
    }

    #[test]
    fn a_right_configuration_is_shown() {
        let text = checked("labels = { zone = \"a\" }\nmemory.hot_rows_mib = 7").unwrap();
        for line in
            ["node 2", "b:34601", "/nowhere/d (not there yet)", "label zone", "7 MiB", "fsync: ", "n1.toml is right."]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn what_a_node_would_refuse_is_refused() {
        for (settings, reason) in [
            ("meta_nodes = [3]", "metadata node 3 is not among the nodes of the cluster"),
            ("labels = { \"a=b\" = \"c\" }", "labels: there can be"),
            ("durabillity = \"os\"", "unknown field `durabillity`"),
            ("log.retained_mib = 1", "log.retained_mib: at least 64 are needed"),
        ] {
            let error = format!("{:#}", checked(settings).unwrap_err());
            assert!(error.contains(reason) && error.contains("n1.toml"), "{error}");
        }
    }
}
