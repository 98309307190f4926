//! The configuration file of `hedgerow serve`. Every setting with its reason, range and default is in
//! docs/configuration.md.

use super::clusters::{self, ClusterSection, RemoteCluster};
use crate::access::cluster_name;
use anyhow::{Context, bail, ensure};
use hedgerow_node::config::{
    AuditFile, DROP_RESERVE_SECONDS, DROP_RESERVE_SECONDS_MAX, LOG_RETAINED_BYTES, RightsMode, UserLimits,
};
use hedgerow_node::{Config, LogLayout, SlowLimits};
use hedgerow_storage::RocksSettings;
use hedgerow_tls::{Mode, NodeTls, NodeTlsFiles};
use hedgerow_types::NodeId;
use hedgerow_wal::Durability;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeConfig {
    node: u16,
    listen: Option<String>,
    data: Vec<PathBuf>,
    peers: Vec<Peer>,
    #[serde(default)]
    meta_nodes: Vec<u16>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    durability: DurabilitySetting,
    io_threads: Option<usize>,
    shards: Option<usize>,
    workers: Option<usize>,
    /// MiB.
    free_disk_min_mib: Option<u32>,
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    flush: Flush,
    #[serde(default)]
    snapshot: Snapshot,
    #[serde(default)]
    slow: Slow,
    #[serde(default)]
    clock: Clock,
    #[serde(default)]
    drop: Drop,
    #[serde(default)]
    pegasus: Pegasus,
    #[serde(default)]
    faults: Faults,
    #[serde(default)]
    security: Security,
    audit: Option<Audit>,
    #[serde(default)]
    limits: Limits,
    tls: Option<Tls>,
    #[serde(default)]
    clusters: BTreeMap<String, ClusterSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    node: u16,
    address: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DurabilitySetting {
    #[default]
    Fsync,
    Os,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Memory {
    block_cache_mib: u32,
    hot_rows_mib: u32,
    write_buffer_mib: u32,
}

impl Default for Memory {
    fn default() -> Self {
        let storage = RocksSettings::default();
        Self {
            block_cache_mib: (storage.cache_size >> 20) as u32,
            hot_rows_mib: (storage.hot_rows_size >> 20) as u32,
            write_buffer_mib: 256,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    layout: LogLayout,
    segment_mib: u32,
    segments_max: usize,
    retained_mib: u32,
}

impl Default for Log {
    fn default() -> Self {
        let wal = hedgerow_wal::Options::default();
        Self {
            layout: LogLayout::default(),
            segment_mib: (wal.segment_size >> 20) as u32,
            segments_max: wal.segments_max,
            retained_mib: (LOG_RETAINED_BYTES >> 20) as u32,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Flush {
    mib_per_second: u32,
}

impl Default for Flush {
    fn default() -> Self {
        Self { mib_per_second: (RocksSettings::default().flush_rate >> 20) as u32 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Snapshot {
    mib_per_second: u32,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { mib_per_second: 128 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Slow {
    round_trip_ms: u32,
    log_write_ms: u32,
    factor: u32,
}

impl Default for Slow {
    fn default() -> Self {
        let limits = SlowLimits::default();
        Self {
            round_trip_ms: limits.round_trip.as_millis() as u32,
            log_write_ms: limits.log_write.as_millis() as u32,
            factor: limits.factor,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Clock {
    skew_max_ms: u32,
}

impl Default for Clock {
    fn default() -> Self {
        Self { skew_max_ms: hedgerow_node::CLOCK_SKEW_MAX.as_millis() as u32 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Drop {
    reserve_seconds: u64,
}

impl Default for Drop {
    fn default() -> Self {
        Self { reserve_seconds: DROP_RESERVE_SECONDS }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Pegasus {
    host_ports: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Faults {
    allowed: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Security {
    insecure: bool,
    rights: RightsSetting,
    administrators: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Audit {
    file: Option<PathBuf>,
    #[serde(default = "Audit::default_size")]
    max_mib: u32,
    #[serde(default = "Audit::default_files")]
    files: u32,
}

impl Audit {
    const fn default_size() -> u32 {
        64
    }

    const fn default_files() -> u32 {
        8
    }

    fn into_file(self) -> anyhow::Result<AuditFile> {
        let path = self.file.context(
            "audit.file: it has to be given where audit.max_mib or audit.files is: without it no audit log is kept",
        )?;
        ensure!(path.is_absolute(), "audit.file: it has to begin with /");
        ensure!((1..=1_048_576).contains(&self.max_mib), "audit.max_mib: allowed are 1 to 1048576");
        ensure!((2..=1_000).contains(&self.files), "audit.files: allowed are 2 to 1000");
        Ok(AuditFile { path, size_max: u64::from(self.max_mib) << 20, files: self.files })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    user: UserSetting,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserSetting {
    requests_per_second: Option<u32>,
    mib_per_second: Option<u32>,
    connections: Option<u32>,
}

impl UserSetting {
    fn into_limits(self) -> anyhow::Result<UserLimits> {
        let limit = |name: &str, value: Option<u32>, most: u32| {
            let is_allowed = value.is_none_or(|value| (1..=most).contains(&value));
            ensure!(is_allowed, "limits.user.{name}: allowed are 1 to {most}; without it there is no limit");
            Ok(value.map(u64::from))
        };
        let requests = limit("requests_per_second", self.requests_per_second, 1_000_000)?;
        let mib = limit("mib_per_second", self.mib_per_second, 1_048_576)?;
        let connections = limit("connections", self.connections, 1_000_000)?;
        Ok(UserLimits {
            requests: requests.and_then(NonZeroU64::new),
            bytes: mib.and_then(|mib| NonZeroU64::new(mib << 20)),
            connections: connections.and_then(NonZeroU64::new),
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RightsSetting {
    #[default]
    Off,
    Permissive,
    Required,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    #[serde(default)]
    mode: TlsMode,
    cluster: Option<String>,
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    revoked: Option<PathBuf>,
    #[serde(default = "always")]
    client_certificates: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TlsMode {
    Permissive,
    #[default]
    Required,
}

const fn always() -> bool {
    true
}

impl Tls {
    fn is_required(&self) -> bool {
        matches!(self.mode, TlsMode::Required)
    }

    fn load(self, node: u16) -> anyhow::Result<NodeTls> {
        let cluster = cluster_name(self.cluster.as_deref(), &self.ca, ("tls.cluster", "tls.ca"))?;
        let mode = match self.mode {
            TlsMode::Permissive => Mode::Permissive,
            TlsMode::Required => Mode::Required,
        };
        let Self { ca, certificate, key, revoked, client_certificates, .. } = self;
        let files = NodeTlsFiles { cluster, node, ca, certificate, key, revoked };
        NodeTls::load(files, mode, client_certificates).context("tls")
    }
}

/// Whether only programs of this machine reach an address.
pub(super) fn is_local(address: &str) -> bool {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    address.parse::<SocketAddr>().map_or(name == "localhost", |address| address.ip().is_loopback())
}

/// An address is `ip:port`, or `name:port`, which is looked up when it is needed.
pub(super) fn check_address(setting: &str, address: &str) -> anyhow::Result<()> {
    let is_name = |name: &str| !name.is_empty() && !name.contains([':', '/', ' ']);
    let is_address = address.parse::<SocketAddr>().is_ok()
        || address.rsplit_once(':').is_some_and(|(name, port)| is_name(name) && port.parse::<u16>().is_ok());
    ensure!(is_address, "{setting}: {address:?} is not of the form 10.0.0.1:34601 or node-1.example:34601");
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    ensure!(port != Some(0), "{setting}: {address:?} has port 0, at which nobody is reached: allowed are 1 to 65535");
    Ok(())
}

/// The nodes and their addresses. No two have one of either.
fn peers(listed: &[Peer]) -> anyhow::Result<BTreeMap<NodeId, String>> {
    let mut peers = BTreeMap::new();
    let mut nodes_by_address = BTreeMap::new();
    for Peer { node, address } in listed {
        ensure!(*node > 0, "peers: node numbers begin at 1");
        check_address("peers.address", address)?;
        let before = peers.insert(NodeId(*node), address.clone());
        ensure!(before.is_none(), "peers: node {node} is listed twice");
        if let Some(before) = nodes_by_address.insert(address, node) {
            bail!("peers: nodes {before} and {node} have one address, {address}");
        }
    }
    Ok(peers)
}

impl ServeConfig {
    /// What the storage engine is told.
    pub(crate) fn storage(&self) -> RocksSettings {
        RocksSettings {
            cache_size: (self.memory.block_cache_mib as usize) << 20,
            hot_rows_size: (self.memory.hot_rows_mib as usize) << 20,
            write_buffer_size: (self.memory.write_buffer_mib as usize) << 20,
            flush_rate: u64::from(self.flush.mib_per_second) << 20,
            ..RocksSettings::default()
        }
    }

    /// Whoever lets everybody in has to say that this is meant.
    fn check_openness(&self, address: &str) -> anyhow::Result<()> {
        let is_allowed = self.security.insecure || is_local(address);
        ensure!(
            self.tls.as_ref().is_some_and(Tls::is_required) || is_allowed,
            "tls.mode: unless it is required, everybody who reaches {address} can read, change and remove everything. `hedgerow certificate` makes what \
             it needs. In a network where nobody else is, security.insecure = true allows it"
        );
        let is_known = self.tls.as_ref().is_none_or(|tls| tls.client_certificates);
        ensure!(
            is_known || matches!(self.security.rights, RightsSetting::Required) || is_allowed,
            "tls.client_certificates: with false, everybody who reaches {address} can read, change and remove everything, unless security.rights \
             is \"required\". In a network where nobody else is, security.insecure = true allows it"
        );
        Ok(())
    }

    /// The clusters that tables may be duplicated to. To be asked once.
    pub(crate) fn take_clusters(&mut self) -> anyhow::Result<BTreeMap<String, RemoteCluster>> {
        clusters::checked(std::mem::take(&mut self.clusters))
    }

    /// The node's own configuration; `seed` is where its randomness comes from.
    pub(crate) fn into_node(self, seed: u64) -> anyhow::Result<Config> {
        let peers = peers(&self.peers)?;
        ensure!(!self.data.is_empty(), "data: at least one directory is needed");
        ensure!((1..=1_024).contains(&self.log.segment_mib), "log.segment_mib: allowed are 1 to 1024");
        ensure!(self.log.segments_max >= 2, "log.segments_max: at least 2 are needed");
        ensure!(self.log.retained_mib >= 64, "log.retained_mib: at least 64 are needed");
        ensure!(self.memory.write_buffer_mib >= 16, "memory.write_buffer_mib: at least 16 are needed");
        ensure!(self.flush.mib_per_second >= 1, "flush.mib_per_second: at least 1 is needed");
        ensure!(self.snapshot.mib_per_second >= 1, "snapshot.mib_per_second: at least 1 is needed");
        for (name, ms) in [("round_trip_ms", self.slow.round_trip_ms), ("log_write_ms", self.slow.log_write_ms)] {
            ensure!((1..=60_000).contains(&ms), "slow.{name}: allowed are 1 to 60000");
        }
        ensure!((2..=1_000).contains(&self.slow.factor), "slow.factor: allowed are 2 to 1000");
        ensure!((100..=60_000).contains(&self.clock.skew_max_ms), "clock.skew_max_ms: allowed are 100 to 60000");
        let reserve_seconds = self.drop.reserve_seconds;
        let is_allowed = reserve_seconds <= DROP_RESERVE_SECONDS_MAX;
        ensure!(is_allowed, "drop.reserve_seconds: allowed are 0 to {DROP_RESERVE_SECONDS_MAX}");
        let node = NodeId(self.node);
        let own = peers.get(&node).with_context(|| format!("peers: node {} itself is not listed", self.node))?;
        self.listen.iter().try_for_each(|listen| check_address("listen", listen))?;
        let address = self.listen.clone().unwrap_or_else(|| own.clone());
        self.check_openness(&address)?;
        ensure!(
            self.tls.is_none() || !self.faults.allowed,
            "faults.allowed: not with tls: faults are for experiments, and every client can make them"
        );
        let mut config = Config::new(node, peers, self.data, seed);
        config.tls = self.tls.map(|tls| tls.load(self.node)).transpose()?.map(Arc::new);
        config.rights = match self.security.rights {
            RightsSetting::Off => RightsMode::Off,
            RightsSetting::Permissive => RightsMode::Permissive,
            RightsSetting::Required => RightsMode::Required,
        };
        config.administrators = self.security.administrators;
        config.audit = self.audit.map(Audit::into_file).transpose()?;
        config.user_limits = self.limits.user.into_limits()?;
        config.listen = address;
        config.io_threads = self.io_threads.unwrap_or(config.io_threads);
        config.shards = self.shards.unwrap_or(config.shards);
        config.workers = self.workers.unwrap_or(config.workers);
        config.labels = self.labels;
        if !self.meta_nodes.is_empty() {
            config.meta_nodes = self.meta_nodes.into_iter().map(NodeId).collect();
        }
        config.wal.segment_size = u64::from(self.log.segment_mib) << 20;
        config.wal.segments_max = self.log.segments_max;
        config.log_layout = self.log.layout;
        config.log_retained_bytes = u64::from(self.log.retained_mib) << 20;
        config.wal.durability = match self.durability {
            DurabilitySetting::Fsync => Durability::Fsync,
            DurabilitySetting::Os => Durability::Os,
        };
        config.slow = SlowLimits {
            round_trip: Duration::from_millis(self.slow.round_trip_ms.into()),
            log_write: Duration::from_millis(self.slow.log_write_ms.into()),
            factor: self.slow.factor,
        };
        config.free_disk_min = self.free_disk_min_mib.map(|mib| u64::from(mib) << 20);
        config.clock_skew_max = Duration::from_millis(self.clock.skew_max_ms.into());
        config.drop_reserve_seconds = reserve_seconds;
        config.may_fault = self.faults.allowed;
        config.has_host_ports = self.pegasus.host_ports;
        config.flush_node_bytes = u64::from(self.memory.write_buffer_mib) << 20;
        config.snapshot_bytes_per_second = u64::from(self.snapshot.mib_per_second) << 20;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &str) -> anyhow::Result<Config> {
        let peers = "peers = [{ node = 1, address = \"127.0.0.1:1\" }]";
        let config: ServeConfig = toml::from_str(&format!("node = 1\ndata = [\"d\"]\n{peers}\n{settings}"))?;
        config.into_node(1)
    }

    #[test]
    fn m4_addresses_may_have_names() {
        assert_eq!(config("listen = \"localhost:34601\"").unwrap().listen, "localhost:34601");
        for wrong in ["localhost", "localhost:", ":1", "a b:1", "http://a:1", "a:70000"] {
            let error = config(&format!("listen = {wrong:?}")).unwrap_err().to_string();
            assert!(error.starts_with("listen: ") && error.contains("node-1.example:34601"), "{error}");
        }
    }

    #[test]
    fn each_node_has_an_address_of_its_own_at_which_it_can_be_reached() {
        let refused = |listed: &str| {
            let config: ServeConfig = toml::from_str(&format!("node = 1\ndata = [\"d\"]\npeers = [{listed}]")).unwrap();
            config.into_node(1).unwrap_err().to_string()
        };
        let error = refused("{ node = 1, address = \"a:1\" }, { node = 2, address = \"a:1\" }");
        assert_eq!(error, "peers: nodes 1 and 2 have one address, a:1");
        for address in ["a:0", "127.0.0.1:0", "[::1]:0"] {
            let error = refused(&format!("{{ node = 1, address = {address:?} }}"));
            assert!(error.contains("has port 0"), "{error}");
        }
        assert!(config("listen = \"a:0\"").unwrap_err().to_string().starts_with("listen: \"a:0\" has port 0"));
    }

    #[test]
    fn what_counts_as_slow_can_be_set() {
        assert_eq!(config("").unwrap().slow, SlowLimits::default());
        let slow = config("[slow]\nround_trip_ms = 200\nfactor = 3").unwrap().slow;
        assert_eq!(slow, SlowLimits { round_trip: Duration::from_millis(200), factor: 3, ..SlowLimits::default() });
        let refused = |settings: &str| config(settings).unwrap_err().to_string();
        assert_eq!(refused("slow.factor = 1"), "slow.factor: allowed are 2 to 1000");
        assert_eq!(refused("slow.log_write_ms = 0"), "slow.log_write_ms: allowed are 1 to 60000");
        assert!(refused("slow.round_trip = 5").contains("unknown field"));
    }

    #[test]
    fn how_many_threads_serve_can_be_set() {
        assert_eq!(config("").unwrap().workers, 1);
        assert_eq!(config("workers = 3").unwrap().workers, 3);
        assert_eq!((config("").unwrap().shards, config("shards = 3").unwrap().shards), (1, 3));
        for count in [0, 17] {
            let refused = config(&format!("shards = {count}")).unwrap().check().unwrap_err();
            assert_eq!(refused, "shards: allowed are 1 to 16");
        }
        assert_eq!((config("").unwrap().io_threads, config("io_threads = 3").unwrap().io_threads), (1, 3));
        for count in [0, 65] {
            let refused = config(&format!("io_threads = {count}")).unwrap().check().unwrap_err();
            assert_eq!(refused, "io_threads: allowed are 1 to 64");
        }
        for count in [0, 257] {
            let refused = config(&format!("workers = {count}")).unwrap().check().unwrap_err();
            assert_eq!(refused, "workers: allowed are 1 to 256");
        }
    }

    #[test]
    fn p10_how_long_dropped_tables_are_kept_can_be_set() {
        assert_eq!(config("").unwrap().drop_reserve_seconds, 604_800);
        assert_eq!(config("drop.reserve_seconds = 0").unwrap().drop_reserve_seconds, 0);
        let refused = config("drop.reserve_seconds = 315360001").unwrap_err().to_string();
        assert_eq!(refused, "drop.reserve_seconds: allowed are 0 to 315360000");
    }

    #[test]
    fn n2_the_pace_of_flushes_can_be_set() {
        let storage = |settings: &str| {
            let text = format!("node = 1\ndata = [\"d\"]\npeers = []\n{settings}");
            toml::from_str::<ServeConfig>(&text).unwrap().storage()
        };
        assert_eq!(storage(""), RocksSettings::default());
        let set = storage("flush.mib_per_second = 7\nmemory.write_buffer_mib = 64");
        assert_eq!((set.flush_rate, set.write_buffer_size), (7 << 20, 64 << 20));
        let refused = config("flush.mib_per_second = 0").unwrap_err().to_string();
        assert_eq!(refused, "flush.mib_per_second: at least 1 is needed");
    }

    #[test]
    fn who_can_be_reached_by_others_says_how_it_is_protected() {
        let others = |settings: &str| {
            let peers = "peers = [{ node = 1, address = \"10.0.0.1:1\" }]";
            let config: ServeConfig =
                toml::from_str(&format!("node = 1\ndata = [\"d\"]\n{peers}\n{settings}")).unwrap();
            config.into_node(1).map_err(|error| format!("{error:#}"))
        };
        let error = others("").unwrap_err();
        assert!(error.starts_with("tls.mode: unless it is required, everybody who reaches 10.0.0.1:1 can"), "{error}");
        assert!(others("security.insecure = true").unwrap().tls.is_none());
        assert!(config("listen = \"localhost:1\"").is_ok() && config("listen = \"0.0.0.0:1\"").is_err());
        let files = "tls = { ca = \"none.pem\", certificate = \"c.pem\", key = \"k.pem\"";
        let error = others(&format!("{files} }}")).unwrap_err();
        assert!(error.contains("cannot read none.pem"), "{error}");
        let open = format!("{files}, client_certificates = false }}");
        let error = others(&open).unwrap_err();
        assert!(
            error.starts_with("tls.client_certificates: with false, everybody who reaches 10.0.0.1:1 can"),
            "{error}"
        );
        for allowed in ["security.insecure = true", "security.rights = \"required\""] {
            let error = others(&format!("{open}\n{allowed}")).unwrap_err();
            assert!(error.contains("cannot read none.pem"), "{error}");
        }
        let error = others(&format!("{files}, cluster = \"A\" }}")).unwrap_err();
        assert!(error.starts_with("tls.cluster: \"A\" is no name"), "{error}");
        let error = others(&format!("{files} }}\nfaults.allowed = true")).unwrap_err();
        assert!(error.starts_with("faults.allowed: not with tls"), "{error}");
    }

    #[test]
    fn what_one_user_may_ask_for_can_be_set() {
        assert_eq!(config("").unwrap().user_limits, UserLimits::default());
        let set = "[limits.user]\nrequests_per_second = 1000\nmib_per_second = 3\nconnections = 1";
        let limits = config(set).unwrap().user_limits;
        assert_eq!([limits.requests, limits.bytes, limits.connections], [1_000, 3 << 20, 1].map(NonZeroU64::new));
        let refused = |settings: &str| config(settings).unwrap_err().to_string();
        for (name, most) in
            [("requests_per_second", 1_000_000), ("mib_per_second", 1_048_576), ("connections", 1_000_000)]
        {
            for wrong in [0, most + 1] {
                let allowed = format!("limits.user.{name}: allowed are 1 to {most}; without it there is no limit");
                assert_eq!(refused(&format!("limits.user.{name} = {wrong}")), allowed);
            }
            assert!(refused(&format!("limits.user.{name} = -1")).contains("invalid value"));
        }
        assert!(refused("limits.user.requests = 5").contains("unknown field"));
        assert!(refused("limits.requests_per_second = 5").contains("unknown field"));
    }

    #[test]
    fn what_an_audit_log_may_take_is_not_said_of_none() {
        for settings in ["audit.max_mib = 5", "audit.files = 3", "[audit]"] {
            let error = config(settings).unwrap_err().to_string();
            assert!(error.starts_with("audit.file: it has to be given where audit.max_mib or"), "{error}");
        }
        assert_eq!(config("audit.file = \"a\"").unwrap_err().to_string(), "audit.file: it has to begin with /");
    }

    #[test]
    fn how_far_clocks_may_differ_can_be_set() {
        assert_eq!(config("").unwrap().clock_skew_max, Duration::from_secs(5));
        assert_eq!(config("clock.skew_max_ms = 100").unwrap().clock_skew_max, Duration::from_millis(100));
        for ms in [99, 60_001] {
            let refused = config(&format!("clock.skew_max_ms = {ms}")).unwrap_err().to_string();
            assert_eq!(refused, "clock.skew_max_ms: allowed are 100 to 60000");
        }
    }
}
