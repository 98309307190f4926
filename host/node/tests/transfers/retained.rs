//! What the log is kept for.

use crate::{SECOND, Stage};
use serde_json::json;
use std::time::Duration;

#[test]
fn m1_a_follower_that_lags_while_flushes_happen_catches_up_from_the_log() {
    let mut stage = Stage::new(|_| {});
    let lagging = stage.followers[0];
    stage.world.cut_off(lagging);
    // Twenty flushes.
    stage.write(320);
    stage.world.run(2 * SECOND);
    let kept = stage.node(stage.leader, stage.leader)["log_bytes"][0].as_u64().unwrap();
    assert!(kept >= 320 << 10, "{kept}");
    let before = stage.checkpoints();
    stage.world.cut.clear();
    stage.run_until_whole(stage.leader, 10);
    assert_eq!(stage.checkpoints(), before);
    // It needs nothing any more, and the next flushes let the log go.
    stage.write(64);
    stage.world.run(3 * SECOND);
    stage.write(64);
    stage.world.run(3 * SECOND);
    let kept = stage.node(stage.leader, stage.leader)["log_bytes"][0].as_u64().unwrap();
    assert!(kept < 128 << 10, "{kept}");
}

#[test]
fn m1_beyond_the_limit_the_furthest_behind_is_given_up() {
    let mut stage = Stage::new(|config| config.log_retained_bytes = 128 << 10);
    let lagging = stage.followers[0];
    stage.world.cut_off(lagging);
    stage.write(640);
    stage.world.run(3 * SECOND);
    let node = stage.node(stage.leader, stage.leader);
    assert_eq!((&node["log_bytes_max"], &node["log_bytes_allowed"][0]), (&json!(128 << 10), &json!(128 << 10)));
    let kept = node["log_bytes"][0].as_u64().unwrap();
    assert!(kept <= 192 << 10, "{kept}");
    let before = stage.checkpoints();
    stage.world.cut.clear();
    stage.run_until_whole(stage.leader, 30);
    assert_eq!(stage.checkpoints(), before + 1);
}

/// A kept entry costs memory, however small it is.
#[test]
fn m1_beyond_the_limit_in_entries_the_furthest_behind_is_given_up() {
    let mut stage = Stage::new(|config| config.log_retained_entries = 400);
    let lagging = stage.followers[0];
    stage.world.cut_off(lagging);
    stage.write(300);
    stage.world.run(3 * SECOND);
    let node = stage.node(stage.leader, stage.leader);
    let (kept, allowed) = (node["log_bytes"][0].as_u64().unwrap(), node["log_bytes_allowed"][0].as_u64().unwrap());
    assert!(kept >= 300 << 10 && allowed > kept && allowed < 1 << 20, "{kept} of {allowed}");
    stage.write(340);
    stage.world.run(3 * SECOND);
    let kept = stage.node(stage.leader, stage.leader)["log_bytes"][0].as_u64().unwrap();
    assert!(kept < 128 << 10, "{kept}");
    let before = stage.checkpoints();
    stage.world.cut.clear();
    stage.run_until_whole(stage.leader, 30);
    assert_eq!(stage.checkpoints(), before + 1);
}

#[test]
fn m1_the_status_shows_the_limit_that_a_small_disk_leaves() {
    let mut stage = Stage::new(|config| config.free_disk_min = Some(3 << 20));
    let node = stage.leader;
    stage.world.machines[&node].disk.set_capacity(Some(64 << 20));
    stage.world.run(3 * SECOND);
    let shown = stage.node(node, node);
    let (allowed, set) = (shown["log_bytes_allowed"][0].as_u64().unwrap(), shown["log_bytes_max"].as_u64().unwrap());
    assert!(allowed > 0 && allowed <= 32 << 20 && set == 4 << 30, "{allowed} of {set}");
}

#[test]
fn m1_a_follower_keeps_what_its_leader_keeps() {
    let mut stage = Stage::new(|_| {});
    let (lagging, next) = (stage.followers[0], stage.followers[1]);
    stage.world.cut_off(lagging);
    stage.write(320);
    stage.world.run(3 * SECOND);
    let before = stage.checkpoints();
    // The leader goes, and the one that lagged comes back: only the third has what it lacks.
    stage.world.cut.clear();
    stage.world.cut_off(stage.leader);
    stage.world.run(10 * SECOND);
    let replicas = stage.replicas(next);
    let applied =
        |node: hedgerow_types::NodeId| replicas.iter().find(|it| it["node"] == node.0).unwrap()["applied"].clone();
    assert_eq!(applied(lagging), applied(next));
    assert_eq!(stage.checkpoints(), before);
}

#[test]
fn m1_a_wiped_node_is_whole_again_under_continuous_writes() {
    // So slow that each checkpoint takes longer than several flushes.
    let mut stage = Stage::new(|config| config.snapshot_bytes_per_second = 512 << 10);
    stage.write(1_000);
    let wiped = stage.followers[0];
    let before = stage.checkpoints();
    stage.world.wipe(wiped);
    // What it answers takes so long that hundreds of entries are always on the way.
    stage.world.late.insert(wiped, Duration::from_millis(400));
    for _ in 0..60 {
        stage.write(1_000);
        let replicas = stage.replicas(stage.leader);
        let is_whole = replicas.iter().all(|it| it["state"] == "ok" && it["role"] == "voter");
        if is_whole && replicas.len() == 3 {
            // One for each of the two partitions and the metadata.
            assert!(stage.checkpoints() <= before + 3, "{}", stage.checkpoints() - before);
            return;
        }
    }
    panic!("not whole: {:#?}", stage.replicas(stage.leader));
}

/// On a disk that is smaller than the limit, writes go on while a follower is away.
#[test]
fn m1_on_a_small_disk_a_follower_is_given_up_before_writes_are_refused() {
    const MIB: u64 = 1 << 20;
    let mut stage = Stage::new(|config| config.free_disk_min = Some(4 * MIB));
    stage.world.cut_off(stage.followers[0]);
    for node in [stage.leader, stage.followers[1]] {
        stage.world.machines[&node].disk.set_capacity(Some(20 * MIB));
    }
    for _ in 0..1_500 {
        stage.world.write(&stage.key, stage.leader, &"v".repeat(16_000));
        stage.world.run(Duration::from_millis(20));
    }
    let node = stage.node(stage.leader, stage.leader);
    assert_eq!(node["disks"][0]["state"], "ok");
    stage.world.cut.clear();
    stage.run_until_whole(stage.leader, 60);
}

/// Its checkpoint is on its way for longer than a dozen flushes take, and the log after it is still there when it has come.
#[test]
fn m1_the_log_is_kept_for_a_checkpoint_on_its_way() {
    let mut stage = Stage::new(|config| {
        config.log_retained_bytes = 1 << 20;
        config.snapshot_bytes_per_second = 1 << 20;
    });
    let (table, partition, leader) = (stage.key.table, stage.key.partition, stage.leader);
    let keys = (0..).map(|number| crate::Key::new(table, 2, &format!("k{number}")));
    for key in keys.filter(|key| key.partition == partition).take(160) {
        stage.world.write(&key, leader, &"v".repeat(64_000));
    }
    // Until it is given up, so that nobody but its checkpoint claims the log.
    stage.world.cut_off(stage.followers[0]);
    stage.write(2_000);
    stage.world.run(3 * SECOND);
    let before = stage.checkpoints();
    stage.world.cut.clear();
    for _ in 0..20 {
        stage.write(32);
        stage.world.run(SECOND);
    }
    stage.run_until_whole(leader, 30);
    assert_eq!(stage.checkpoints(), before + 1);
}
