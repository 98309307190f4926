//! What a node is told when it starts, and the limits it works within.

use crate::ids::DirectoryId;
use crate::layout::LogLayout;
use hedgerow_placement::carrying::Carriers;
use hedgerow_placement::limit::{LABEL_COUNT_MAX, LABEL_SIZE_MAX};
use hedgerow_placement::{CLOCK_SKEW_MAX, Holder, SlowLimits};
use hedgerow_replication::Settings;
use hedgerow_storage::ReadBudget;
use hedgerow_tls::{Mode, NodeTls};
use hedgerow_types::NodeId;
use hedgerow_types::limit::{CREATION_PER_PARTITION, SESSION_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Writes of one partition that may wait for their outcome; the next is refused as busy.
pub const PENDING_WRITES_MAX: usize = 8_192;
/// Reads of one partition that may wait for an index; the next is refused as busy.
pub const PENDING_READS_MAX: usize = 8_192;
/// Clients' reads of one node that may wait for their turn. Beyond it the newest extra attempt is refused as busy, and where
/// there is none, the newest read of a connection that has much more than the newcomer, or else the newcomer. About 5 MiB, and at 3 us
/// each a twentieth of a second.
pub const READS_QUEUED_MAX: usize = 16_384;
/// Bytes that these may keep in memory together; the same beyond it. One read may be larger.
pub const READS_QUEUED_BYTES_MAX: usize = 64 << 20;
/// Of these, extra attempts; the next one is refused as busy.
pub const EXTRA_READS_QUEUED_MAX: usize = 1_024;
/// Default of [`Config::reads_per_turn`]: about a millisecond of reads, after which connections and the log are looked at.
pub const READS_PER_TURN: usize = 256;
/// Default of [`Config::reads_at_once`]: about a third of a millisecond.
pub const READS_AT_ONCE: ReadBudget = ReadBudget { rows: 512, bytes: 256 << 10 };
/// Default of [`Config::shared_rows`].
pub const SHARED_ROWS: u64 = 16;
/// Most parts that [`Config::shards`] may be.
pub const SHARDS_MAX: usize = 16;
/// Most threads that [`Config::io_threads`] may be.
pub const IO_THREADS_MAX: usize = 64;
/// Most threads that [`Config::workers`] may be.
pub const WORKERS_MAX: usize = 256;
/// Short reads of one data directory that run at a time beside the node's thread: they wait for the disk, which takes several at once.
pub const SHORT_READS_MAX: usize = 8;
/// Long ones: they take the processor from others.
pub const LONG_READS_MAX: usize = 2;
/// Reads of clients that may run or wait beside the node's thread, of which a quarter may be extra attempts; the next is refused as busy.
pub const READ_JOBS_MAX: usize = 4_096;
/// Bytes of keys that those which wait may ask for together; the same beyond it.
pub const READ_JOBS_BYTES_MAX: usize = 64 << 20;
/// Default of [`Config::waiting_read_bytes_max`]: one of the largest requests.
pub const WAITING_READ_BYTES_MAX: usize = 64 << 20;
/// Default of [`Config::read_bytes_per_turn`]: about a millisecond of large reads.
pub const READ_BYTES_PER_TURN: usize = 1 << 20;
/// Bytes of clients' requests that are taken before the log and other nodes are looked at: a few milliseconds of lists of empty keys, which
/// take longest for their size.
pub const REQUEST_BYTES_PER_TURN: usize = 1 << 20;
/// What a request counts there beside its bytes.
pub const FRAME_COST: usize = 256;
/// Default of [`Config::apply_bytes_per_turn`]: one or two milliseconds.
pub const APPLY_BYTES_PER_TURN: u64 = 1 << 20;
/// Default of [`Config::unread_bytes_max`].
pub const UNREAD_BYTES_MAX: usize = 512 << 20;
/// Default of [`Config::unfinished_bytes_max`]: four of the largest frames.
pub const UNFINISHED_BYTES_MAX: usize = 256 << 20;
/// Default of [`Config::unread_for`].
pub const UNREAD_FOR: Duration = Duration::from_secs(30);
/// Reads that waited for an index may become ready all at once. Beyond so many times [`Config::read_bytes_per_turn`] they are
/// refused as busy.
pub const READY_TURNS_MAX: usize = 256;
/// Extra attempts that a table's limit may hold back on one node at a time; the next is dropped.
pub const DELAYED_MAX: usize = 4_096;
/// A larger one is not held back but dropped: what is held back keeps its whole frame in memory.
pub const DELAYED_FRAME_MAX: usize = 4 << 10;
/// Writes that one node may have sent on to leaders; the next is told who leads instead.
pub const FORWARDS_MAX: usize = 8_192;
/// Bytes of these together; the same beyond it. They share the way to their leader with the log, which is not to wait behind them.
pub const FORWARDS_BYTES_MAX: usize = 4 << 20;
/// Attempts that may join one write that waits for its outcome; the next is proposed by itself.
pub const JOINED_MAX: usize = 8;
/// Writes of a partition that are looked at, from the newest, for the one that an extra attempt repeats.
pub const JOIN_SEARCH_MAX: usize = 1_024;
/// Scans that may be open on one node; beyond it the oldest is forgotten and its client starts again from its last row.
pub const OPEN_SCANS_MAX: usize = 65_536;
/// Bytes that their bounds and patterns may take; the same beyond it.
pub const OPEN_SCANS_BYTES_MAX: usize = 64 << 20;
/// Time after its last use for which a scan is kept (Pegasus' value).
pub const SCAN_IDLE: Duration = Duration::from_secs(300);
/// Time a request may wait where its caller named no deadline. Pegasus' Go client sends a wrong one, so that the
/// header's timeout is not used.
pub const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time that the creation of a table of `partition_count` partitions may take.
pub fn creation_wait(partition_count: u32) -> Duration {
    WAIT_MAX + CREATION_PER_PARTITION * partition_count
}
/// How long after a table serves the same creation, through another node, counts as the one that made it: Pegasus' clients
/// wait 5 seconds for one node before they ask the next.
pub const CREATION_REPEATED_FOR: Duration = Duration::from_secs(5);
/// How often a node reports what it hosts to the others.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(1_000);
/// Time without a report after which a node counts as dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Time without a report after which a node's read-only replicas go to other nodes.
pub const GONE_AFTER: Duration = Duration::from_secs(600);
/// How often nodes that belong to no cluster yet ask each other.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Default of [`Config::log_retained_bytes`].
pub const LOG_RETAINED_BYTES: u64 = 4 << 30;
/// Default of [`Config::log_retained_entries`]: what the log's index has room for in 256 MiB of memory.
pub const LOG_RETAINED_ENTRIES: u64 = (256 << 20) / hedgerow_wal::ENTRY_MEMORY;
/// Default of [`Config::drop_reserve_seconds`]: Pegasus' seven days.
pub const DROP_RESERVE_SECONDS: u64 = 7 * 24 * 3_600;
/// Most seconds for which a dropped table can be kept: ten years.
pub const DROP_RESERVE_SECONDS_MAX: u64 = 10 * 365 * 24 * 3_600;
/// Bytes in one piece of a streamed checkpoint.
pub const SNAPSHOT_CHUNK_SIZE: u64 = 1 << 20;
/// Default of [`Config::replay_bytes_max`].
pub const REPLAY_BYTES_MAX: usize = 64 << 20;
/// Bytes buffered for one other node that does not take them; beyond it they are dropped, as a broken link would.
pub const PEER_BACKLOG_MAX: usize = 64 << 20;

/// Whether clients may do only what their users have been given ([`hedgerow_placement::Rights`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RightsMode {
    /// Every client may do everything.
    #[default]
    Off,
    /// The same, and it is counted and logged what would be refused.
    Permissive,
    /// What a user has not been given is refused.
    Required,
}

impl RightsMode {
    /// Its name in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Permissive => "permissive",
            Self::Required => "required",
        }
    }
}

/// Where a node keeps its audit log: who came in, what was refused, who changed what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFile {
    /// The file that is written now. The one before it has `.1` behind its name, and so on.
    pub path: PathBuf,
    /// Bytes that it has at most, unless one record is larger.
    pub size_max: u64,
    /// How many of them there are at most, at least 2.
    pub files: u32,
}

/// What one user may ask of a node. A user is the name in a client's certificate, or where there is none, a client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Reads and writes per second.
    pub requests: Option<NonZeroU64>,
    /// Bytes per second of these and of their replies together, whole MiB.
    pub bytes: Option<NonZeroU64>,
    /// Connections that may be open.
    pub connections: Option<NonZeroU64>,
}

impl UserLimits {
    /// Whether anything is limited.
    pub(crate) const fn is_any(&self) -> bool {
        self.requests.is_some() || self.bytes.is_some() || self.connections.is_some()
    }
}

/// Everything a node needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// `ip:port` or `name:port` at which clients and other nodes reach it.
    pub address: String,
    /// `ip:port` or `name:port` to listen on; the same, unless the machine is reached through another one.
    pub listen: String,
    /// `ip:port` or `name:port` of every node of the cluster, this one included.
    pub peers: BTreeMap<NodeId, String>,
    /// The nodes that hold the cluster's metadata.
    pub meta_nodes: Vec<NodeId>,
    /// What the operator says about the node's place, such as `zone` or `rack`: clients prefer replicas with the labels that
    /// they have themselves, and `zone` spreads replicas.
    pub labels: BTreeMap<String, String>,
    /// Data directories; replicas and their log are spread over them.
    pub data: Vec<PathBuf>,
    /// Elections, leases, message sizes.
    pub replication: Settings,
    /// The write-ahead logs.
    pub wal: hedgerow_wal::Options,
    /// Where they are. It may be another one at each start.
    pub log_layout: LogLayout,
    /// Bytes per second that all outgoing checkpoints of the node share.
    pub snapshot_bytes_per_second: u64,
    /// Bytes of log that each data directory keeps for replicas that lag; twice as many for checkpoints on their way.
    pub log_retained_bytes: u64,
    /// Entries of log that each data directory keeps so; twice as many for checkpoints on their way. Not a setting: it bounds memory.
    pub log_retained_entries: u64,
    /// Bytes of log that one replica may gather before its storage is flushed.
    pub flush_replica_bytes: u64,
    /// Bytes of log that all replicas may gather before the largest ones are flushed.
    pub flush_node_bytes: u64,
    /// Bytes of log that a replica reads into memory when it starts. Of what it has not applied beyond that, it applies what
    /// is committed before it takes part.
    pub replay_bytes_max: usize,
    /// Free bytes below which a disk takes no more data. `None`: a share of the disk, at most 1 GiB.
    pub free_disk_min: Option<u64>,
    /// Bytes that the exactly-once table of one partition may take. Not a setting: all replicas of a group must have, and
    /// always have had, the same, so that only simulations have another one.
    pub session_bytes_max: u64,
    /// Clients' reads that are served each time the node is driven; the others wait for the next time. Fewer let cancels and
    /// other nodes' messages come sooner under load, more cost less. At least 1.
    pub reads_per_turn: usize,
    /// Bytes of replies after which no further queued read is served before the node is driven again, however few they were.
    pub read_bytes_per_turn: usize,
    /// Bytes that writes may look at and write while they are applied, of all groups together, before the node is driven again.
    /// Small ones count as more, by the time that they take. At least one write of one group is applied.
    pub apply_bytes_per_turn: u64,
    /// What a read may look at on the node's thread. One that looks at more, or needs a disk, is run by a job.
    pub reads_at_once: ReadBudget,
    /// Into how many parts what serves is divided, from 1 to [`SHARDS_MAX`]: each has some of the groups. In [`crate::os`] there is a thread for each.
    pub shards: usize,
    /// Threads that have to do with clients' sockets, from 1 to [`IO_THREADS_MAX`]: with 1 the node's own, which has them all; with more, all
    /// the others, so that the node's own has none. For [`crate::os`].
    pub io_threads: usize,
    /// Threads that serve clients' reads, from 1 to [`WORKERS_MAX`]: the node's own, and others beside it that look for the rows of reads of
    /// many.
    pub workers: usize,
    /// Rows from which on these have a part in reads.
    pub shared_rows: u64,
    /// Bytes of replies that may wait for clients to read them. Beyond it the connection on which most wait is closed.
    pub unread_bytes_max: usize,
    /// Bytes of keys that the node's reads may keep while they wait for an index or a majority; the next one is refused as busy, a small one
    /// at twice as many.
    pub waiting_read_bytes_max: usize,
    /// Bytes of clients' frames of which more has to come. Beyond it the connection is closed whose frame comes most slowly.
    pub unfinished_bytes_max: usize,
    /// How long a client may take nothing of what waits for it, or send nothing more of a frame that it has begun. Its system acknowledges, or
    /// sends, nothing more meanwhile, so that it is no slow network that holds it up.
    pub unread_for: Duration,
    /// Files and connections that the node may have open together; see `files.rs`.
    pub files_max: u64,
    /// Whether replies to Pegasus' clients carry the `host_port` fields of its versions from 2.6 on, over which older clients
    /// stumble.
    pub has_host_ports: bool,
    /// Whether the node takes the admin command `fault`, which makes it slow or stand still.
    pub may_fault: bool,
    /// What connections are encrypted with; `None`: they are not, and everybody who connects is believed.
    pub tls: Option<Arc<NodeTls>>,
    /// Whether clients may do only what their users have been given.
    pub rights: RightsMode,
    /// The users that may do everything whatever they have been given, by the names in their certificates: who gives others their rights.
    pub administrators: BTreeSet<String>,
    /// Where the audit log is kept, if one is.
    pub audit: Option<AuditFile>,
    /// Who carries what the node leads to other clusters; `None` where its configuration names none.
    pub carriers: Option<Arc<dyn Carriers>>,
    /// What one user may ask of this node.
    pub user_limits: UserLimits,
    /// What counts as slow; slow nodes should not lead.
    pub slow: SlowLimits,
    /// How far the nodes' wall clocks may differ; from 100 ms to a minute. A clock that is further off does not count.
    pub clock_skew_max: Duration,
    /// Seconds for which a dropped table is kept if whoever drops it does not say how long; 0 = not at all. What counts is the setting
    /// of the node that leads the metadata.
    pub drop_reserve_seconds: u64,
    /// Where randomness comes from: incarnations, election timeouts, ids.
    pub seed: u64,
    /// Safety rules that a test of the tests leaves out.
    #[cfg(feature = "mutations")]
    pub mutations: hedgerow_replication::Mutations,
}

impl Config {
    /// The data directories, in order.
    pub fn directories(&self) -> impl Iterator<Item = DirectoryId> + use<> {
        (0..self.data.len()).map(DirectoryId)
    }

    /// Where one of them is.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn path_of(&self, directory: DirectoryId) -> &Path {
        &self.data[directory.0]
    }

    /// What one shard may have of `whole`, which is for all of them.
    pub(crate) const fn share_of(&self, whole: u64) -> u64 {
        whole.div_ceil(self.shards as u64)
    }

    /// Whether it matters who is at the other end of a client's connection.
    pub(crate) const fn wants_to_know_clients(&self) -> bool {
        self.tls.is_some() || self.audit.is_some() || self.user_limits.is_any()
    }

    /// Why a node cannot be started with this, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        if self.data.is_empty() {
            return Err("there is no data directory".to_owned());
        }
        if !self.peers.contains_key(&self.node) {
            return Err(format!("node {} is not among the nodes of the cluster", self.node.0));
        }
        if self.meta_nodes.is_empty() {
            return Err("there is no node for the metadata".to_owned());
        }
        if let Some(unknown) = self.meta_nodes.iter().find(|node| !self.peers.contains_key(node)) {
            return Err(format!("metadata node {} is not among the nodes of the cluster", unknown.0));
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(format!("shards: allowed are 1 to {SHARDS_MAX}"));
        }
        if !(1..=IO_THREADS_MAX).contains(&self.io_threads) {
            return Err(format!("io_threads: allowed are 1 to {IO_THREADS_MAX}"));
        }
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(format!("workers: allowed are 1 to {WORKERS_MAX}"));
        }
        if self.rights != RightsMode::Off && self.tls.is_none() {
            return Err("security.rights: without tls nobody is known by name".to_owned());
        }
        let has_only_tls = self.tls.as_ref().is_some_and(|tls| tls.mode() == Mode::Required);
        if self.rights == RightsMode::Required && !has_only_tls {
            return Err(
                "security.rights: required only where tls.mode is: without TLS everybody who says so is a node"
                    .to_owned(),
            );
        }
        if let Some(data) =
            self.audit.as_ref().and_then(|audit| self.data.iter().find(|data| audit.path.starts_with(data)))
        {
            return Err(format!(
                "audit.file: not in a data directory, {}: a disk that is lost is to leave it",
                data.display()
            ));
        }
        for name in &self.administrators {
            if !name.parse::<Holder>().is_ok_and(|holder| !holder.is_role()) {
                let rule = "allowed are names as clients' certificates have them: 1 to 56 of a-z, 0-9 and \"-\", which is neither first nor last";
                return Err(format!("security.administrators: {name:?} is no user: {rule}"));
            }
        }
        check_labels(&self.labels)?;
        self.replication.check().map_err(|reason| format!("replication: {reason}"))
    }

    /// A node with default settings; the first three nodes hold the metadata.
    pub fn new(node: NodeId, peers: BTreeMap<NodeId, String>, data: Vec<PathBuf>, seed: u64) -> Self {
        Self {
            node,
            address: peers.get(&node).cloned().unwrap_or_default(),
            listen: peers.get(&node).cloned().unwrap_or_default(),
            meta_nodes: peers.keys().copied().take(3).collect(),
            labels: BTreeMap::new(),
            peers,
            data,
            replication: Settings::default(),
            wal: hedgerow_wal::Options::default(),
            log_layout: LogLayout::default(),
            snapshot_bytes_per_second: 128 << 20,
            log_retained_bytes: LOG_RETAINED_BYTES,
            log_retained_entries: LOG_RETAINED_ENTRIES,
            flush_replica_bytes: 16 << 20,
            flush_node_bytes: 256 << 20,
            replay_bytes_max: REPLAY_BYTES_MAX,
            free_disk_min: None,
            session_bytes_max: SESSION_BYTES_MAX,
            reads_per_turn: READS_PER_TURN,
            read_bytes_per_turn: READ_BYTES_PER_TURN,
            apply_bytes_per_turn: APPLY_BYTES_PER_TURN,
            reads_at_once: READS_AT_ONCE,
            shards: 1,
            io_threads: 1,
            workers: 1,
            shared_rows: SHARED_ROWS,
            unread_bytes_max: UNREAD_BYTES_MAX,
            waiting_read_bytes_max: WAITING_READ_BYTES_MAX,
            unfinished_bytes_max: UNFINISHED_BYTES_MAX,
            unread_for: UNREAD_FOR,
            files_max: 1 << 20,
            has_host_ports: false,
            may_fault: false,
            tls: None,
            rights: RightsMode::Off,
            administrators: BTreeSet::new(),
            audit: None,
            carriers: None,
            user_limits: UserLimits::default(),
            slow: SlowLimits::default(),
            clock_skew_max: CLOCK_SKEW_MAX,
            drop_reserve_seconds: DROP_RESERVE_SECONDS,
            seed,
            #[cfg(feature = "mutations")]
            mutations: hedgerow_replication::Mutations::default(),
        }
    }
}

/// Labels travel to clients as `key=value`.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    let fits = |text: &String| (1..=LABEL_SIZE_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    let is_allowed = |(key, value): (&String, &String)| fits(key) && !key.contains('=') && fits(value);
    if labels.len() <= LABEL_COUNT_MAX && labels.iter().all(is_allowed) {
        return Ok(());
    }
    Err(format!(
        "labels: there can be {LABEL_COUNT_MAX}, name and value of 1 to {LABEL_SIZE_MAX} bytes each without control \
         characters, and no = in a name"
    ))
}
