//! How many files a node may have open, and what of them is for replicas, for its log and peers, and for clients.
//!
//! Nothing on a node can go on once its process has no descriptor left, so each use has a bound, and the bounds together are below the
//! limit: a table that does not fit is refused, and so are clients above what is left for them.

use crate::config::Config;

/// What a replica is counted as. An idle one has six open; its database may keep ten table files open, and more where the
/// process may have many (`RocksSettings::spare_files`).
pub const FILES_PER_REPLICA: u64 = 16;
/// Connections of clients that a node always has room for.
const CLIENTS_MIN: u64 = 64;
/// For standard streams, the runtime, jobs (copies, compactions, checkpoints), and what nobody thought of.
const OTHERS: u64 = 96;
/// Connections with each other node, two each way, with those that replace others, and one that says not who it is.
const PER_PEER: u64 = 6;
/// What a thread for clients' sockets opens for itself.
const PER_IO_THREAD: u64 = 4;
/// Log files beside those that are in use: being created, being read, spare.
const LOG_SPARE: u64 = 16;
/// Log that is kept for others may need files for so many times its limit: twice that while checkpoints are on their way, in files that
/// are half full at least.
const LOG_FILES_FACTOR: u64 = 4;
/// The share of what replicas may have open that the log may take for it: one in so many.
const LOG_SHARE: u64 = 8;
/// The share of what replicas may have open that large ones divide among themselves: one in so many.
const SPARE_SHARE: u64 = 8;

impl Config {
    /// Files that are for neither replicas nor clients.
    fn files_of_node(&self) -> u64 {
        self.files_of_node_alone() + self.files_of_kept_log()
    }

    /// The same without those of the log that is kept for others.
    fn files_of_node_alone(&self) -> u64 {
        let log = self.wal.segments_max as u64 + LOG_SPARE;
        let io_threads = (self.io_threads as u64).saturating_sub(1) * PER_IO_THREAD;
        OTHERS + io_threads + self.data.len() as u64 * log + self.peers.len() as u64 * PER_PEER
    }

    /// Files that all data directories together may need beyond [`hedgerow_wal::Options::segments_max`] for what they keep for others, as far as there
    /// are enough.
    fn files_of_kept_log(&self) -> u64 {
        let left = self.files_max.saturating_sub(self.files_of_node_alone() + CLIENTS_MIN);
        let needed = self.log_retained_bytes.saturating_mul(LOG_FILES_FACTOR).div_ceil(self.wal.segment_size.max(1));
        let beyond = needed.saturating_sub(self.wal.segments_max as u64);
        beyond.saturating_mul(self.data.len() as u64).min(left / LOG_SHARE)
    }

    /// Bytes of log that a data directory may keep for others: what is configured, or as much as there are files for.
    pub(crate) fn log_retained_max(&self) -> u64 {
        let files = self.wal.segments_max as u64 + self.files_of_kept_log() / self.data.len().max(1) as u64;
        self.log_retained_bytes.min(files.saturating_mul(self.wal.segment_size) / LOG_FILES_FACTOR)
    }

    fn files_of_replicas(&self) -> u64 {
        self.files_max.saturating_sub(self.files_of_node() + CLIENTS_MIN)
    }

    /// Table files beyond the fewest that the node's databases may keep open together.
    pub fn spare_files(&self) -> u64 {
        self.files_of_replicas() / SPARE_SHARE
    }

    /// Most replicas that the node may host.
    pub fn replicas_max(&self) -> u64 {
        (self.files_of_replicas() - self.spare_files()) / FILES_PER_REPLICA
    }

    /// Most connections of clients while the node hosts so many replicas.
    pub(crate) fn clients_max(&self, replica_count: usize) -> u64 {
        let others = self.files_of_node() + self.spare_files() + replica_count as u64 * FILES_PER_REPLICA;
        self.files_max.saturating_sub(others).max(CLIENTS_MIN)
    }

    /// Most connections that have not said yet whether they are a client's or another node's, beside those of clients.
    pub(crate) fn newcomers_max(&self) -> u64 {
        self.peers.len() as u64 * PER_PEER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::NodeId;

    fn config(files_max: u64) -> Config {
        let peers = (1..=3).map(|node| (NodeId(node), format!("127.0.0.1:{node}"))).collect();
        Config { files_max, ..Config::new(NodeId(1), peers, vec!["a".into()], 1) }
    }

    #[test]
    fn everything_fits_at_the_same_time() {
        for files_max in [512, 1_024, 4_096, 20_000, 1 << 20] {
            let config = config(files_max);
            let replicas = config.replicas_max();
            let needed = config.files_of_node() + config.spare_files() + replicas * FILES_PER_REPLICA;
            assert!(needed + config.clients_max(replicas as usize) <= files_max, "{files_max}");
            assert!(config.clients_max(0) + config.files_of_node() <= files_max, "{files_max}");
        }
    }

    #[test]
    fn n4_the_log_keeps_no_more_for_others_than_there_are_files_for() {
        const MIB: u64 = 1 << 20;
        let kept = |files_max: u64, segment_size: u64| {
            let mut config = config(files_max);
            config.data = vec!["a".into(), "b".into()];
            config.wal.segment_size = segment_size;
            // Twice the limit, in segments that are half full.
            let files = 4 * config.log_retained_max() / segment_size * 2;
            let counted = config.files_of_node() - OTHERS - 3 * PER_PEER - 2 * LOG_SPARE;
            assert!(files <= counted && counted <= files_max, "{files} of {counted}");
            assert!(config.files_of_node() + CLIENTS_MIN <= files_max);
            config.log_retained_max() / MIB
        };
        assert_eq!([1_024, 4_096, 20_000].map(|files_max| kept(files_max, 64 * MIB)), [1_024, 4_096, 4_096]);
        assert_eq!([1_024, 20_000, 1 << 20].map(|files_max| kept(files_max, MIB)), [16, 312, 4_096]);
    }

    #[test]
    fn what_a_limit_has_room_for() {
        assert_eq!([64, 256, 1_024, 20_000].map(|limit| config(limit).replicas_max()), [0, 2, 39, 1_069]);
    }
}
