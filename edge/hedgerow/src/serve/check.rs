//! `hedgerow config`: whether a node could be started with a configuration, and what it would be told. The file is read as `serve` reads
//! it.

use super::config::is_local;
use super::{FromFile, days_until, directories, read_startable};
use crate::exit::Exit;
use crate::output::{columns, counted, print};
use anyhow::Result;
use clap::Subcommand;
use hedgerow_node::config::{AuditFile, RightsMode, UserLimits};
use hedgerow_node::{Config, LogLayout};
use hedgerow_storage::RocksSettings;
use hedgerow_tls::Mode;
use hedgerow_types::NodeId;
use hedgerow_wal::Durability;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `free_disk_min_mib` is where it is not given.
const FREE_BY_SIZE: &str = "a twentieth of each disk, 1024 MiB at most (what the log and a flush need at least)";

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
    let read = read_startable(file)?;
    print(&text(file, &read))?;
    Ok(Exit::Done)
}

/// Every setting by its name in the file, with what it is without being given too.
fn text(file: &Path, read: &FromFile) -> String {
    let FromFile { storage, config, clusters } = read;
    let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    let mut rows = vec![
        ("node", config.node.0.to_string()),
        ("address", config.address.clone()),
        ("listen", config.listen.clone()),
        ("meta_nodes", numbers(&config.meta_nodes)),
    ];
    let peers = config.peers.iter().map(|(node, address)| format!("node {}: {address}", node.0));
    rows.extend(once_named("peers", peers));
    let data = config.data.iter().zip(directories::remarks(&config.data));
    rows.extend(once_named("data", data.map(|(directory, remark)| format!("{}{remark}", directory.display()))));
    if config.labels.is_empty() {
        rows.push(("labels", "none".to_owned()));
    }
    rows.extend(once_named("labels", config.labels.iter().map(|(name, value)| format!("{name} = {value}"))));
    rows.extend(disk_and_memory(storage, config));
    rows.extend(limits(config));
    rows.extend(user_limits(config));
    rows.extend(security(config));
    rows.extend(audit(config));
    if clusters.is_empty() {
        rows.push(("clusters", "none: this node duplicates no table".to_owned()));
    }
    rows.extend(once_named(
        "clusters",
        clusters.iter().map(|(name, it)| format!("{name}: {}", it.addresses.join(", "))),
    ));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let note = open_door(config).map(|note| format!("note: {note}\n")).unwrap_or_default();
    format!("{}\n\n{note}{} is right.", columns(&["setting", "value"], &rows), file.display())
}

/// Who may do everything with the node without saying who they are, if anybody may: the file says so, or nobody else reaches the node.
fn open_door(config: &Config) -> Option<String> {
    let is_open = config.tls.as_ref().is_none_or(|tls| {
        let asks = tls.has_client_certificates() || config.rights == RightsMode::Required;
        tls.mode() == Mode::Permissive || !asks
    });
    let listen = &config.listen;
    let who = if is_local(listen) { ": all users and programs of this machine" } else { "" };
    is_open.then(|| {
        format!(
            "everybody who reaches {listen} can read, change and remove everything{who} (docs/operations.md, Certificates and Rights)"
        )
    })
}

/// The values of a setting that has several, with its name at the first.
fn once_named(
    name: &'static str,
    values: impl Iterator<Item = String>,
) -> impl Iterator<Item = (&'static str, String)> {
    std::iter::once(name).chain(std::iter::repeat("")).zip(values)
}

fn disk_and_memory(storage: &RocksSettings, config: &Config) -> Vec<(&'static str, String)> {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let durability = match config.wal.durability {
        Durability::Fsync => "fsync: acknowledged writes survive a power failure of all nodes",
        Durability::Os => "os: a power failure of a majority loses what was acknowledged last",
    };
    let layout = match config.log_layout {
        LogLayout::Disk => "disk: a log in each data directory",
        LogLayout::Node => "node: one log, in the first data directory; with that one all of the node is lost",
    };
    let free = config.free_disk_min.map_or_else(|| FREE_BY_SIZE.to_owned(), mib);
    vec![
        ("io_threads", config.io_threads.to_string()),
        ("shards", config.shards.to_string()),
        ("workers", config.workers.to_string()),
        ("durability", durability.to_owned()),
        ("free_disk_min_mib", free),
        ("memory.block_cache_mib", mib(storage.cache_size as u64)),
        ("memory.hot_rows_mib", mib(storage.hot_rows_size as u64)),
        ("memory.write_buffer_mib", mib(config.flush_node_bytes)),
        ("log.layout", layout.to_owned()),
        ("log.segment_mib", mib(config.wal.segment_size)),
        ("log.segments_max", config.wal.segments_max.to_string()),
        ("log.retained_mib", mib(config.log_retained_bytes)),
        ("flush.mib_per_second", mib(storage.flush_rate)),
        ("snapshot.mib_per_second", mib(config.snapshot_bytes_per_second)),
    ]
}

fn limits(config: &Config) -> Vec<(&'static str, String)> {
    let ms = |duration: Duration| format!("{} ms", duration.as_millis());
    vec![
        ("slow.round_trip_ms", ms(config.slow.round_trip)),
        ("slow.log_write_ms", ms(config.slow.log_write)),
        ("slow.factor", config.slow.factor.to_string()),
        ("clock.skew_max_ms", ms(config.clock_skew_max)),
        ("drop.reserve_seconds", format!("{} s", config.drop_reserve_seconds)),
        ("pegasus.host_ports", config.has_host_ports.to_string()),
        ("faults.allowed", config.may_fault.to_string()),
    ]
}

fn user_limits(config: &Config) -> Vec<(&'static str, String)> {
    let UserLimits { requests, bytes, connections } = config.user_limits;
    let none = || "none".to_owned();
    vec![
        ("limits.user.requests_per_second", requests.map_or_else(none, |count| count.to_string())),
        ("limits.user.mib_per_second", bytes.map_or_else(none, |bytes| format!("{} MiB", bytes.get() >> 20))),
        ("limits.user.connections", connections.map_or_else(none, |count| count.to_string())),
    ]
}

fn security(config: &Config) -> Vec<(&'static str, String)> {
    let Some(tls) = &config.tls else {
        let unused = |name| (name, "not in use without [tls]".to_owned());
        let mut rows = vec![
            ("security.insecure", "whoever reaches the node can read, change and remove everything".to_owned()),
            ("security.rights", "off: every client may do everything".to_owned()),
            ("security.administrators", "none".to_owned()),
            ("tls.mode", "none: nothing is encrypted".to_owned()),
        ];
        rows.extend(
            ["tls.cluster", "tls.ca", "tls.certificate", "tls.key", "tls.revoked", "tls.client_certificates"]
                .map(unused),
        );
        return rows;
    };
    let mode = match tls.mode() {
        Mode::Required => "required",
        Mode::Permissive => "permissive: connections without TLS are accepted",
    };
    let expiring =
        |file: &Path, at: i64| format!("{} (expires in {})", file.display(), counted(days_until(at) as u64, "day"));
    let files = tls.files();
    let rights = match config.rights {
        RightsMode::Off if tls.has_client_certificates() => "off: every client with a certificate may do everything",
        RightsMode::Off => "off: everybody who reaches the node may do everything",
        RightsMode::Permissive if tls.has_client_certificates() => {
            "permissive: what would be refused is counted and logged"
        }
        RightsMode::Permissive => {
            "permissive: what would be refused is counted and logged; everybody who reaches the node may do everything"
        }
        RightsMode::Required => "required",
    };
    let revoked = files.revoked.as_ref().map_or_else(
        || "none: a certificate counts until it expires".to_owned(),
        |path| format!("{} ({} revoked)", path.display(), counted(tls.revoked_count() as u64, "certificate")),
    );
    let names: Vec<&str> = config.administrators.iter().map(String::as_str).collect();
    let administrators = match config.rights {
        _ if !names.is_empty() => names.join(", "),
        RightsMode::Off => "none".to_owned(),
        RightsMode::Permissive | RightsMode::Required => {
            "none: only who has been given cluster-admin can give rights".to_owned()
        }
    };
    vec![
        ("security.rights", rights.to_owned()),
        ("security.administrators", administrators),
        ("tls.mode", mode.to_owned()),
        ("tls.cluster", files.cluster.to_string()),
        ("tls.ca", expiring(&files.ca, tls.authority_expires_at())),
        ("tls.certificate", expiring(&files.certificate, tls.expires_at())),
        ("tls.key", files.key.display().to_string()),
        ("tls.revoked", revoked),
        ("tls.client_certificates", tls.has_client_certificates().to_string()),
    ]
}

fn audit(config: &Config) -> Vec<(&'static str, String)> {
    let Some(AuditFile { path, size_max, files }) = &config.audit else {
        let unused = |name| (name, "not in use without audit.file".to_owned());
        return vec![("audit.file", "none".to_owned()), unused("audit.max_mib"), unused("audit.files")];
    };
    vec![
        ("audit.file", path.display().to_string()),
        ("audit.max_mib", format!("{} MiB", size_max >> 20)),
        ("audit.files", files.to_string()),
    ]
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
        Ok(text(&file, &read_startable(&file)?))
    }

    #[test]
    fn a_right_configuration_is_shown() {
        let text = checked("labels = { zone = \"a\" }\nmemory.hot_rows_mib = 7").unwrap();
        for line in
            ["node 2: b:34601", "/nowhere/d (not there yet)", "zone = a", "7 MiB", "fsync: ", "n1.toml is right."]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_door_that_is_open_is_noted() {
        let note = "note: everybody who reaches 127.0.0.1:34601 can read, change and remove everything: all users and programs of this machine";
        let text = checked("").unwrap();
        assert!(text.contains(note) && text.ends_with("n1.toml is right."), "{text}");
        let text = checked("listen = \"0.0.0.0:34601\"\nsecurity.insecure = true").unwrap();
        assert!(
            text.contains("note: everybody who reaches 0.0.0.0:34601 can") && !text.contains("of this machine"),
            "{text}"
        );
    }

    #[test]
    fn every_setting_of_the_documents_is_shown() {
        let page = include_str!("../../../../docs/configuration.md");
        let table = page.split_once("| setting |").unwrap().1.split_once("\n\n").unwrap().0;
        let settings: Vec<&str> =
            table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert!(settings.len() > 20, "{settings:?}");
        let text = checked("").unwrap();
        for setting in settings {
            assert!(text.lines().any(|line| line.split_whitespace().next() == Some(setting)), "{setting}: {text}");
        }
    }

    #[test]
    fn what_a_node_would_refuse_is_refused() {
        for (settings, reason) in [
            ("meta_nodes = [3]", "metadata node 3 is not among the nodes of the cluster"),
            ("labels = { \"a=b\" = \"c\" }", "labels: there can be"),
            ("durabillity = \"os\"", "unknown field `durabillity`"),
            ("log.retained_mib = 1", "log.retained_mib: at least 64 are needed"),
            ("listen = \"127.0.0.1:0\"", "has port 0"),
            ("limits.user.connections = 0", "limits.user.connections: allowed are 1 to 1000000"),
            ("limits.user.connection = 1", "unknown field `connection`"),
            ("audit.max_mib = 1", "audit.file: it has to be given where"),
            ("audit.file = \"/nowhere/audit/log\"", "audit.file: there is no folder /nowhere/audit: make it first"),
            ("audit.file = \"/dev/null\"", "audit.file: /dev/null is no regular file"),
            ("audit.file = \"/\"", "audit.file: / is no regular file"),
        ] {
            let error = format!("{:#}", checked(settings).unwrap_err());
            assert!(error.contains(reason) && error.contains("n1.toml"), "{error}");
        }
    }
}
