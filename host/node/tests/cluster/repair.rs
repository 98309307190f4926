//! Repair with the real engine, the real log and real sockets: a node was away, or something of it is gone or damaged.

use super::{
    Connection, call_leader, create_table, damage, data_of, new_engines, peers, start_configured, wait_until_serving,
};
use bytes::Bytes;
use hedgerow_node::Config;
use hedgerow_node::os::Running;
use hedgerow_types::NodeId;
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_wire::message::{AdminCommand, Put};
use hedgerow_wire::{Body, Reply, Text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const PARTITIONS: u32 = 2;
/// The node that goes and comes back.
pub(super) const VICTIM: u16 = 3;
/// How often the status is asked for before it is taken for one that does not change any more.
pub(super) const ASKED_MAX: usize = 2_400;

pub(super) struct Stage {
    pub(super) root: tempfile::TempDir,
    pub(super) peers: BTreeMap<NodeId, String>,
    configure: fn(&mut Config),
    pub(super) nodes: BTreeMap<u16, Running>,
    pub(super) any: Connection,
    written: usize,
}

impl Stage {
    pub(super) fn new(configure: fn(&mut Config)) -> Self {
        let (root, peers) = (tempfile::tempdir().unwrap(), peers(3));
        let started = |node: &NodeId| (node.0, started(root.path(), *node, &peers, configure).unwrap());
        let nodes: BTreeMap<u16, Running> = peers.keys().map(started).collect();
        nodes.values().for_each(|node| wait_until_serving(std::slice::from_ref(node)));
        let mut any = Connection::open(&peers[&NodeId(1)]);
        create_table(&mut any, PARTITIONS as i32, 3);
        let mut stage = Self { root, peers, configure, nodes, any, written: 0 };
        stage.write(100);
        stage.wait_until_whole();
        stage
    }

    fn start(&mut self) {
        self.start_node(VICTIM).unwrap();
    }

    pub(super) fn start_node(&mut self, number: u16) -> Result<(), String> {
        let node = started(self.root.path(), NodeId(number), &self.peers, self.configure)?;
        self.nodes.insert(number, node);
        Ok(())
    }

    fn stop(&mut self) {
        self.stop_node(VICTIM);
    }

    pub(super) fn stop_node(&mut self, number: u16) {
        let node = self.nodes.remove(&number).unwrap();
        node.stop();
        node.join().unwrap();
    }

    /// From now on this node is asked, as the one before is to stop.
    pub(super) fn ask(&mut self, number: u16) {
        self.any = Connection::open(&self.peers[&NodeId(number)]);
    }

    /// Writes so many rows of two kilobytes.
    pub(super) fn write(&mut self, count: usize) {
        for _ in 0..count {
            let (partition, key, value) = row(self.written);
            self.written += 1;
            let put = Put { key, value, expire_ts_seconds: 0 };
            let reply = call_leader(&mut self.any, partition, &Body::Put(put));
            assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        }
    }

    /// Reads every row that was written, at the leaders.
    pub(super) fn read_all(&mut self) {
        for number in 0..self.written {
            let (partition, key, value) = row(number);
            let reply = call_leader(&mut self.any, partition, &Body::Get(key));
            assert!(matches!(&reply, Reply::Get(get) if get.error == 0 && get.value == value), "{number}: {reply:?}");
        }
    }

    /// Writes so many rows while the victim is down, and waits until the log no longer has the first half of them.
    fn write_beyond_the_log(&mut self, count: usize) {
        self.write(count);
        let half = (count * 2_000 / PARTITIONS as usize / 2) as u64;
        for _ in 0..ASKED_MAX {
            let status = try_admin(&mut self.any, "status", "{}").unwrap();
            let others = status["nodes"].as_array().unwrap().iter().filter(|it| it["node"] != VICTIM);
            let kept: Vec<u64> =
                others.flat_map(|it| it["log_bytes"].as_array().unwrap()).filter_map(Value::as_u64).collect();
            if !kept.is_empty() && kept.iter().all(|bytes| *bytes < half) {
                // A cut is written down with what comes next: a node that is stopped before that has its whole log again.
                return self.write(2 * PARTITIONS as usize);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the log was not cut");
    }

    pub(super) fn wait_until_whole(&mut self) {
        let mut status = Value::Null;
        for _ in 0..ASKED_MAX {
            status = try_admin(&mut self.any, "status", "{}").unwrap();
            let partitions = status["tables"][0]["partitions"].as_array().cloned().unwrap_or_default();
            let is_whole = |partition: &Value| {
                let replicas = partition["replicas"].as_array().unwrap();
                let is_good = |it: &Value| it["role"] == "voter" && it["state"] == "ok" && it["lag"] == 0;
                let applied: BTreeSet<u64> = replicas.iter().filter_map(|it| it["applied"].as_u64()).collect();
                partition["leader"].is_string()
                    && replicas.len() == 3
                    && replicas.iter().all(is_good)
                    && applied.len() == 1
            };
            if partitions.len() == PARTITIONS as usize && partitions.iter().all(is_whole) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("not whole: {status:#}");
    }

    /// All replicas come to have the same rows, and all that were written. What the status says is up to a second old.
    pub(super) fn assert_same(&mut self) {
        let mut found = BTreeMap::new();
        for _ in 0..ASKED_MAX {
            self.wait_until_whole();
            found = self.checksums();
            let is_same =
                |replicas: &Vec<(String, u64)>| replicas.len() == 3 && replicas.iter().all(|it| *it == replicas[0]);
            let rows: u64 = found.values().map(|replicas| replicas[0].1).sum();
            if found.len() == PARTITIONS as usize && found.values().all(is_same) && rows == self.written as u64 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{} rows were written, and there are: {found:#?}", self.written);
    }

    /// Checksum and number of rows of each replica, by partition, as their nodes say.
    fn checksums(&self) -> BTreeMap<u64, Vec<(String, u64)>> {
        let mut found: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::new();
        for address in self.peers.values() {
            // One that has just started may not be asked yet.
            let Ok(stream) = TcpStream::connect(address) else { continue };
            let here = try_admin(&mut Connection(stream, 0), "checksum_here", r#"{"table":"t"}"#).unwrap_or_default();
            for replica in here.as_array().into_iter().flatten() {
                let (checksum, rows) = (replica["checksum"].to_string(), replica["rows"].as_u64().unwrap());
                found.entry(replica["index"].as_u64().unwrap()).or_default().push((checksum, rows));
            }
        }
        found
    }

    /// The storage of the victim's replicas of the table: a checkpoint that is installed comes as another directory.
    fn storage(&self) -> BTreeSet<(PathBuf, u64)> {
        let entries = self.below("replicas");
        entries.into_iter().map(|path| (path.clone(), std::fs::metadata(path).unwrap().ino())).collect()
    }

    /// What is in these directories of the victim, without what the metadata has there.
    fn below(&self, name: &str) -> Vec<PathBuf> {
        let is_metadata = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("0.0-");
        let lists =
            data_of(self.root.path(), VICTIM).into_iter().filter_map(|data| std::fs::read_dir(data.join(name)).ok());
        lists.flatten().map(|entry| entry.unwrap().path()).filter(|path| !is_metadata(path)).collect()
    }

    /// Stops these nodes in the middle of a checkpoint for the victim: these tables of it are there, and more are to come.
    fn stop_while_receiving(&mut self, nodes: &[u16]) -> Vec<PathBuf> {
        loop {
            let mut asked = 0;
            while self.received().is_empty() {
                assert!(
                    asked < 10 * ASKED_MAX,
                    "no checkpoint came: {:#}",
                    try_admin(&mut self.any, "status", "{}").unwrap()
                );
                asked += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            nodes.iter().for_each(|node| self.stop_node(*node));
            let received = self.received();
            if !received.is_empty() {
                return received;
            }
            // It was whole by then.
            self.start_nodes(nodes);
            self.wait_until_whole();
            self.stop();
            self.write_beyond_the_log(1_000);
            self.start();
        }
    }

    /// From now on these nodes flush for checkpoints only. No compaction replaces their tables for a while.
    fn leave_nothing_to_compact(&mut self, nodes: &[u16]) {
        self.configure = |config| {
            send_slowly(config);
            config.flush_replica_bytes = 64 << 20;
        };
        nodes.iter().for_each(|node| self.stop_node(*node));
        let data = nodes.iter().flat_map(|node| data_of(self.root.path(), *node));
        for replica in data.flat_map(|data| files_in(&data.join("replicas"))) {
            new_engines().open(&replica).unwrap().compact().unwrap();
        }
        self.start_nodes(nodes);
    }

    fn start_nodes(&mut self, nodes: &[u16]) {
        nodes.iter().for_each(|node| self.start_node(*node).unwrap());
        self.ask(1);
    }

    fn received(&self) -> Vec<PathBuf> {
        let paths = self.below("incoming").into_iter().flat_map(|directory| files_in(&directory));
        paths.filter(|path| path.extension().is_some_and(|it| it == "sst")).collect()
    }

    pub(super) fn end(self) {
        self.nodes.values().for_each(Running::stop);
        self.nodes.into_values().for_each(|node| node.join().unwrap());
    }
}

/// The partition, key and value of a row by its number. Values do not get smaller by compression.
fn row(number: usize) -> (u32, Bytes, Bytes) {
    let hash_key = format!("key{number}");
    let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), PARTITIONS);
    let state = |previous: &u64| Some(previous.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let value = std::iter::successors(Some(number as u64), state).skip(1).take(2_000).map(|state| (state >> 56) as u8);
    (partition, full_key(hash_key.as_bytes(), b"s"), value.collect())
}

/// The files of a directory, if it is there.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect()
}

pub(super) fn try_admin(connection: &mut Connection, command: &str, argument: &str) -> Option<Value> {
    let body = AdminCommand { command: Text::from(command), argument: Text::from(argument) };
    match connection.call(0, 0, &Body::HedgerowAdmin(body)) {
        Reply::HedgerowAdmin(answer) => Some(serde_json::from_str(answer.text.as_str()).unwrap()),
        _ => None,
    }
}

/// A node with engines of its own, as in a process of its own: when it ends, what they verify ends with it.
fn started(
    root: &Path,
    node: NodeId,
    peers: &BTreeMap<NodeId, String>,
    configure: fn(&mut Config),
) -> Result<Running, String> {
    start_configured(node, peers, data_of(root, node.0), &new_engines(), configure)
}

/// The log is kept for nobody who lags.
fn keep_no_log(config: &mut Config) {
    config.log_retained_bytes = 64 << 10;
}

/// The same, and checkpoints take a few seconds.
fn send_slowly(config: &mut Config) {
    keep_no_log(config);
    config.snapshot_bytes_per_second = 256 << 10;
}

#[test]
fn m1_a_node_that_was_away_catches_up_from_the_log() {
    let mut stage = Stage::new(|_| {});
    let before = stage.storage();
    stage.stop();
    stage.write(400);
    stage.start();
    stage.assert_same();
    assert_eq!(stage.storage(), before, "nothing was installed");
    stage.end();
}

#[test]
fn m2_a_node_that_was_away_too_long_learns_from_checkpoints() {
    let mut stage = Stage::new(keep_no_log);
    let before = stage.storage();
    // No later directory gets the number of one that is open: more than one checkpoint may be installed.
    let held: Vec<std::fs::File> = before.iter().map(|(path, _)| std::fs::File::open(path).unwrap()).collect();
    stage.stop();
    stage.write_beyond_the_log(1_000);
    stage.start();
    stage.assert_same();
    let both: Vec<_> = stage.storage().intersection(&before).cloned().collect();
    assert_eq!(both, [], "each was installed");
    drop(held);
    stage.end();
}

#[test]
fn m2_a_checkpoint_goes_on_after_its_receiver_has_started_anew() {
    let mut stage = Stage::new(send_slowly);
    stage.stop();
    stage.write_beyond_the_log(1_000);
    stage.start();
    stage.stop_while_receiving(&[VICTIM]);
    stage.start();
    stage.assert_same();
    stage.end();
}

/// These tables as files: a name may be that of another replica's table.
fn inodes(tables: &[PathBuf]) -> BTreeSet<u64> {
    tables.iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.ino())).collect()
}

/// Both others restart, so that each group has another leader or none for a while. What was received of a checkpoint is part of the
/// sender's next one.
#[test]
fn m2_a_checkpoint_goes_on_after_its_sender_has_started_anew() {
    let mut stage = Stage::new(send_slowly);
    stage.stop();
    stage.write_beyond_the_log(1_000);
    stage.leave_nothing_to_compact(&[1, 2]);
    // For the second table of each.
    stage.write(600);
    stage.start();
    let before = stage.stop_while_receiving(&[1, 2]);
    let received = inodes(&before);
    stage.start_nodes(&[1, 2]);
    // Another group's checkpoint may come before this one's, slowly as well.
    let mut taken = 0;
    let mut all = BTreeSet::new();
    for _ in 0..10 * ASKED_MAX {
        let others: Vec<PathBuf> = stage.received().into_iter().filter(|path| !before.contains(path)).collect();
        all.extend(others.iter().cloned());
        taken = inodes(&others).intersection(&received).count();
        if taken > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(taken > 0, "of {before:?} in {all:?}");
    stage.assert_same();
    stage.end();
}

/// What was received is damaged before the rest comes. It does not take the place of what is there.
#[test]
fn d4_a_damaged_checkpoint_is_not_installed() {
    let mut stage = Stage::new(send_slowly);
    stage.stop();
    stage.write_beyond_the_log(1_000);
    stage.start();
    let tables = stage.stop_while_receiving(&[VICTIM]);
    assert!(tables.iter().filter(|table| damage(table)).count() > 0);
    let before = names(&stage);
    stage.start();
    stage.assert_same();
    assert_eq!(names(&stage), before, "none was installed, found to be damaged and replaced");
    stage.end();
}

/// The victim's logs lose their newest segments while it is down.
fn cut_logs(stage: &Stage) {
    for data in data_of(stage.root.path(), VICTIM) {
        let segments = std::fs::read_dir(data.join("log")).unwrap().map(|entry| entry.unwrap().path());
        let newest = segments.filter(|path| path.extension().is_some_and(|it| it == "seg")).max();
        newest.into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

pub(super) fn names(stage: &Stage) -> BTreeSet<PathBuf> {
    stage.storage().into_iter().map(|(path, _)| path).collect()
}

#[test]
fn m3a_a_log_without_its_newest_segment_costs_the_replicas_and_no_row() {
    let mut stage = Stage::new(|_| {});
    let before = names(&stage);
    stage.stop();
    cut_logs(&stage);
    stage.write(100);
    stage.start();
    stage.assert_same();
    assert!(names(&stage).is_disjoint(&before), "all of them were replaced");
    stage.end();
}

#[test]
fn d3_storage_that_cannot_be_opened_now_stops_the_start_and_loses_nothing() {
    let mut stage = Stage::new(|_| {});
    let before = stage.storage();
    stage.stop();
    stage.write(100);
    let (directory, _) = before.first().unwrap();
    let held = new_engines().open(directory).unwrap();
    let error = stage.start_node(VICTIM).unwrap_err();
    assert!(error.contains("nothing of it was removed"), "{error}");
    drop(held);
    stage.start();
    stage.assert_same();
    assert_eq!(stage.storage(), before, "nothing was installed");
    stage.end();
}

/// Storage of replicas that were replaced comes back, in each of the directories.
#[test]
fn d5_what_was_replaced_does_not_win_over_its_successor() {
    let mut stage = Stage::new(|_| {});
    stage.stop();
    stage.write(100);
    let kept = tempfile::tempdir().unwrap();
    for path in names(&stage) {
        copy(&path, &kept.path().join(path.file_name().unwrap()));
    }
    cut_logs(&stage);
    stage.start();
    stage.assert_same();
    let after = names(&stage);
    stage.stop();
    stage.write(100);
    for data in data_of(stage.root.path(), VICTIM) {
        copy(kept.path(), &data.join("replicas"));
    }
    stage.start();
    stage.assert_same();
    assert_eq!(names(&stage), after, "the others are gone again");
    stage.end();
}

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
