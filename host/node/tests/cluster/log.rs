//! Logs that are more than memory holds, or less than was acknowledged, under the real engine and with real sockets.

use super::repair::{ASKED_MAX, Stage, VICTIM, copy, names, try_admin};
use super::{data_of, wait_until_serving};
use hedgerow_node::Config;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The node that is down while rows are written: it cannot make up for what the victim forgets.
const AWAY: u16 = 1;
/// The node that has them beside the victim.
const WITNESS: u16 = 2;
/// What a start reads of a replica's log at once, bytes: a few dozen rows.
const REPLAY_BYTES_MAX: usize = 64 << 10;

/// What is written stays in memory and in the log.
fn never_flush(config: &mut Config) {
    config.flush_replica_bytes = u64::MAX;
    config.flush_node_bytes = u64::MAX;
    // Otherwise a disk should have room for what a flush writes.
    config.free_disk_min = Some(1 << 20);
    config.replay_bytes_max = REPLAY_BYTES_MAX;
}

/// Files and directories as they were.
struct Kept {
    root: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Kept {
    fn new(paths: Vec<PathBuf>) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (number, path) in paths.iter().enumerate() {
            let to = root.path().join(number.to_string());
            if path.is_dir() {
                copy(path, &to);
            } else {
                std::fs::copy(path, to).unwrap();
            }
        }
        Self { root, paths }
    }

    /// What is there now goes.
    fn put_back(self) {
        for (number, path) in self.paths.iter().enumerate() {
            let from = self.root.path().join(number.to_string());
            if from.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
                copy(&from, path);
            } else {
                std::fs::copy(from, path).unwrap();
            }
        }
    }
}

/// The victim's storage as a power failure would leave it now: a node that is told to stop flushes.
fn keep_storage(stage: &Stage) -> Kept {
    Kept::new(names(stage).into_iter().collect())
}

/// Tables of the engine in the victim's storage.
fn table_files(stage: &Stage) -> usize {
    let files = names(stage).into_iter().flat_map(|path| std::fs::read_dir(path).unwrap());
    files.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|it| it == "sst")).count()
}

/// The rows of the log are eight times what a start reads at once, and no other node that is up has them.
#[test]
fn d2_a_replica_with_a_log_larger_than_memory_starts_with_every_row() {
    let mut stage = Stage::new(never_flush);
    let storage = keep_storage(&stage);
    stage.ask(WITNESS);
    stage.stop_node(AWAY);
    stage.write(8 * 2 * REPLAY_BYTES_MAX / 2_000);
    stage.stop_node(VICTIM);
    stage.stop_node(WITNESS);
    storage.put_back();
    let before = table_files(&stage);
    stage.start_node(AWAY).unwrap();
    stage.start_node(VICTIM).unwrap();
    assert!(table_files(&stage) > before, "a part was applied and flushed before the next one was read");
    stage.nodes.values().for_each(|node| wait_until_serving(std::slice::from_ref(node)));
    stage.ask(AWAY);
    stage.read_all();
    stage.start_node(WITNESS).unwrap();
    stage.assert_same();
    stage.end();
}

/// The newest segment of each log below `data`.
fn newest_segments(data: &[PathBuf]) -> Vec<PathBuf> {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|it| it == "seg");
    let files = |log: &Path| std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    data.iter().filter_map(|data| files(&data.join("log")).filter(is_segment).max()).collect()
}

/// What is `kept` of the victim's logs is put back after `count` more rows were acknowledged. Whoever was away has none of them,
/// so that the two would lead, and forget them, if the victim voted. It does not, and is repaired once somebody has them.
fn put_back_after(count: usize, kept: fn(&[PathBuf]) -> Vec<PathBuf>) {
    let mut stage = Stage::new(never_flush);
    let before = names(&stage);
    let data = data_of(stage.root.path(), VICTIM);
    let storage = keep_storage(&stage);
    stage.ask(WITNESS);
    stage.stop_node(AWAY);
    let log = Kept::new(kept(&data));
    stage.write(count);
    stage.stop_node(VICTIM);
    stage.stop_node(WITNESS);
    storage.put_back();
    log.put_back();

    stage.start_node(AWAY).unwrap();
    stage.start_node(VICTIM).unwrap();
    stage.ask(AWAY);
    wait_until_lost(&mut stage);
    stage.start_node(WITNESS).unwrap();
    stage.assert_same();
    assert!(names(&stage).is_disjoint(&before), "all of them were replaced");
    // The repaired replicas are needed for a majority.
    stage.ask(WITNESS);
    stage.stop_node(AWAY);
    stage.write(20);
    stage.read_all();
    stage.end();
}

/// Waits until the victim says that its replicas are lost. Until then, too, nobody leads.
fn wait_until_lost(stage: &mut Stage) {
    let mut status = Value::Null;
    for _ in 0..ASKED_MAX {
        status = try_admin(&mut stage.any, "status", "{}").unwrap_or_default();
        let partitions = status["tables"][0]["partitions"].as_array().cloned().unwrap_or_default();
        assert!(partitions.iter().all(|it| it["leader"].is_null()), "a log that has forgotten rows votes: {status:#}");
        let is_lost = |partition: &Value| {
            let mut replicas = partition["replicas"].as_array().unwrap().iter();
            replicas.any(|it| it["node"] == VICTIM && it["state"] == "lost")
        };
        if !partitions.is_empty() && partitions.iter().all(is_lost) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("not lost: {status:#}");
}

#[test]
fn m3b_a_newest_segment_that_is_put_back_costs_the_replicas_and_no_row() {
    put_back_after(100, newest_segments);
}

/// Segments that are newer than the log that is put back go with it.
#[test]
fn m3b_a_whole_log_that_is_put_back_costs_the_replicas_and_no_row() {
    put_back_after(1_200, |data| data.iter().map(|data| data.join("log")).collect());
}
