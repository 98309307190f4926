//! Checkpoints on their way.

use crate::world::{Key, World, running};
use crate::{SECOND, Stage};
use bytes::Bytes;
use hedgerow_env::Disk;
use hedgerow_env::sim::SimDisk;
use hedgerow_node::peer::{Frame, SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress};
use hedgerow_node::{Event, Job};
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// What is on its way to whom, as a node knows it.
pub fn transfers(world: &mut World, asked: NodeId) -> Vec<Value> {
    let status = world.admin(asked, "status", &json!({})).unwrap();
    let partitions = status["tables"][0]["partitions"].as_array().unwrap().iter();
    let replicas = partitions.flat_map(|partition| partition["replicas"].as_array().unwrap());
    replicas.map(|replica| replica["transfer"].clone()).filter(|transfer| !transfer.is_null()).collect()
}

/// Three nodes with 13 MB in eight partitions, whose checkpoints travel slowly.
fn filled() -> World {
    let mut world = World::configured(3, |config| {
        config.flush_replica_bytes = 64 << 10;
        config.snapshot_bytes_per_second = 256 << 10;
    });
    let table = world.create_table(8, &json!({}));
    world.run(20 * SECOND);
    for number in 0..200 {
        let key = Key::new(table, 8, &format!("key{number}"));
        let leader = world.replicas(key.partition).leader;
        world.write(&key, leader, &"v".repeat(64_000));
    }
    world
}

#[test]
fn m2_few_checkpoints_are_on_their_way_at_a_time_and_the_status_tells_how_far() {
    let mut world = filled();
    let wiped = NodeId(3);
    world.wipe(wiped);
    let (mut most, mut seen) = (0, false);
    for _ in 0..1_200 {
        world.run(Duration::from_millis(250));
        let moving = transfers(&mut world, NodeId(1));
        let begun = moving.iter().filter(|it| it["bytes_done"].as_u64() > Some(0)).count();
        most = most.max(begun);
        seen |= moving
            .iter()
            .any(|it| it["seconds_left"].is_u64() && it["bytes_total"].as_u64() > it["bytes_done"].as_u64());
        let status = world.admin(NodeId(1), "status", &json!({})).unwrap();
        let partitions = status["tables"][0]["partitions"].as_array().unwrap().clone();
        let is_whole = |partition: &Value| {
            let replicas = partition["replicas"].as_array().unwrap();
            replicas.len() == 3 && replicas.iter().all(|it| it["state"] == "ok" && it["role"] == "voter")
        };
        if seen && partitions.iter().all(is_whole) {
            assert!((1..=2).contains(&most), "{most}");
            return;
        }
    }
    panic!("not whole: {:#?}", world.admin(NodeId(1), "status", &json!({})));
}

/// Everything else is repaired by it.
#[test]
fn m2_the_metadata_waits_for_no_other_checkpoint() {
    let mut world = filled();
    let status = world.admin(NodeId(1), "status", &json!({})).unwrap();
    let address = status["metadata"]["leader"].as_str().unwrap().to_owned();
    let leader = *world.machines.iter().find(|(_, it)| it.config.address == address).unwrap().0;
    let wiped = *world.machines.keys().rfind(|node| **node != leader).unwrap();
    // Its checkpoint comes when the others have taken every place.
    world.machines.get_mut(&leader).unwrap().holds =
        |job| matches!(job, Job::Checkpoint { owner, .. } if owner.group == GroupId::META);
    world.wipe(wiped);
    let begun = |world: &mut World| {
        let moving = transfers(world, leader);
        moving.iter().filter(|it| it["bytes_done"].as_u64() > Some(0)).count()
    };
    world.run_until(30 * SECOND, |world| begun(world) == 2);
    world.let_go(leader);
    world.run_until(2 * SECOND, |world| {
        let status = world.admin(leader, "status", &json!({})).unwrap();
        let replicas = status["metadata"]["replicas"].as_array().unwrap();
        let is_ok = |it: &Value| it["state"] == "ok" && it["role"] == "voter";
        replicas.len() == 3 && replicas.iter().all(is_ok)
    });
    assert!(begun(&mut world) > 0, "others are still on their way");
}

/// Writes 10 MB into both partitions.
fn fill(stage: &mut Stage) {
    for number in 0..160 {
        let key = Key::new(stage.key.table, 2, &format!("key{number}"));
        let leader = stage.world.replicas(key.partition).leader;
        stage.world.write(&key, leader, &"v".repeat(64_000));
    }
}

#[test]
fn m2_a_broken_connection_costs_no_second_checkpoint() {
    let mut stage = Stage::new(|config| config.snapshot_bytes_per_second = 1 << 20);
    fill(&mut stage);
    let before = stage.checkpoints();
    let wiped = stage.wipe();
    let mut cuts = 0;
    for _ in 0..400 {
        stage.world.run(Duration::from_millis(200));
        let leader = stage.leader;
        let moving = transfers(&mut stage.world, leader);
        if cuts < 3 && moving.iter().any(|it| it["bytes_done"].as_u64() > Some(cuts << 20)) {
            cuts += 1;
            stage.world.cut_off(wiped);
            stage.world.run(3 * SECOND);
            stage.world.cut.clear();
        }
        if cuts > 0 && moving.is_empty() && stage.replicas(leader).iter().all(|it| it["state"] == "ok") {
            break;
        }
    }
    assert!(cuts > 0);
    stage.run_until_whole(stage.leader, 30);
    assert!(stage.checkpoints() <= before + 3, "{}", stage.checkpoints() - before);
}

/// A node loses its data while it is sent a checkpoint. The replica is gone, and its node says so: its successor needs a newer
/// checkpoint, of which none is made while another one is on its way.
#[test]
fn m2_a_replica_that_is_gone_does_not_keep_its_successor_waiting() {
    let mut stage = Stage::new(|config| {
        config.snapshot_bytes_per_second = 512 << 10;
        config.log_retained_bytes = 64 << 10;
    });
    fill(&mut stage);
    let (node, leader) = (stage.followers[0], stage.leader);
    stage.world.cut_off(node);
    stage.write(640);
    stage.world.run(3 * SECOND);
    stage.world.cut.clear();
    stage.world.run_until(20 * SECOND, |world| !transfers(world, leader).is_empty());
    assert_eq!(stage.wipe(), node);
    stage.run_until_whole(leader, 30);
}

/// The preferred leader waits for the end of a transfer, which would end with its sender's leadership. A leader that stops does
/// not; then the new one's arrives.
#[test]
fn m2_a_leader_moves_during_a_transfer_only_if_it_must() {
    let mut stage = Stage::new(|config| config.snapshot_bytes_per_second = 128 << 10);
    fill(&mut stage);
    let (preferred, partition) = (stage.leader, stage.key.partition);
    stage.world.restart(preferred);
    stage.world.run_until(60 * SECOND, |world| world.replicas(partition).leader != preferred);
    let before = stage.world.replicas(partition).leader;
    stage.followers.retain(|follower| *follower != before);
    stage.wipe();
    stage.world.run(30 * SECOND);
    assert_eq!(stage.world.replicas(partition).leader, before, "the preferred leader did not wait");
    let moving = transfers(&mut stage.world, before);
    assert!(moving.iter().any(|it| it["bytes_done"].as_u64() > Some(0)), "{moving:?}");
    let now = stage.world.clock();
    stage.world.machines.get_mut(&before).unwrap().node.hand_over(now);
    stage.world.settle(before);
    stage.world.run_until(10 * SECOND, |world| world.replicas(partition).leader == preferred);
    assert!(!stage.is_whole(preferred), "the leader did not move in the middle");
    stage.run_until_whole(preferred, 180);
}

#[test]
fn m2_pieces_that_cannot_be_are_dropped() {
    let mut stage = Stage::new(|_| {});
    let to = stage.followers[0];
    let replica = stage.replicas(to).into_iter().find(|it| it["node"] == to.0).unwrap();
    let text = replica["replica"].as_str().unwrap().to_owned();
    let counter: u64 = text.split(|c: char| !c.is_ascii_digit()).find(|it| !it.is_empty()).unwrap().parse().unwrap();
    let (group, own) = (GroupId::new(stage.key.table as u32, stage.key.partition as u32), ReplicaId::new(counter, to));
    let sender = ReplicaId::new(1, stage.leader);
    let file = |name: &str, size: u64| SnapshotFile { name: name.to_owned(), size };
    let begin = |files: Vec<SnapshotFile>| {
        Frame::SnapshotBegin(SnapshotBegin {
            group: group.to_u64(),
            from: sender.0,
            to: own.0,
            id: 5,
            message: Bytes::new(),
            files,
        })
    };
    let chunk = |number: u32, offset: u64, data: Vec<u8>| {
        let (crc, data) = (crc32c::crc32c(&data), Bytes::from(data));
        Frame::SnapshotChunk(SnapshotChunk { group: group.to_u64(), to: own.0, id: 5, file: number, offset, data, crc })
    };
    let progress = |number: u32, offset: u64| {
        let progress =
            SnapshotProgress { group: group.to_u64(), from: own.0, id: 5, file: number, offset, ..Default::default() };
        Frame::SnapshotProgress(progress)
    };
    let frames = [
        begin(vec![file("../up", 1)]),
        begin(vec![file("huge", 1 << 30), file("small", 4), file("empty", 0)]),
        chunk(0, 0, vec![1; 2 << 20]),
        chunk(0, 0, Vec::new()),
        chunk(0, u64::MAX, vec![1; 8]),
        chunk(7, 0, vec![1; 8]),
        chunk(u32::MAX, u64::MAX, Vec::new()),
        chunk(0, 0, vec![1; 100]),
        chunk(0, 100, vec![1; 1 << 20]),
        progress(u32::MAX, u64::MAX),
        progress(0, u64::MAX),
    ];
    for frame in frames {
        stage.world.handle(to, Event::Peer(stage.leader, frame));
        stage.world.settle(to);
    }
    stage.run_until_whole(stage.leader, 90);
}

/// `of` has a table of a checkpoint of the replica on `sender`.
fn leave_table(stage: &Stage, of: NodeId, sender: NodeId) {
    let group = GroupId::new(stage.key.table as u32, stage.key.partition as u32);
    let replica_on = |node: NodeId| running(&stage.world, node)[&group].0;
    let (own, sender) = (replica_on(of), replica_on(sender));
    let directory = format!("/data/incoming/{}.{}-{own:x}-{sender:x}-7", stage.key.table, stage.key.partition);
    let disk = &stage.world.machines[&of].disk;
    hedgerow_env::create_dir_durably(disk, Path::new(&directory)).unwrap();
    hedgerow_env::write_file_durably(disk, &Path::new(&directory).join("000008.sst"), b"rows").unwrap();
}

/// A follower that needs a checkpoint has a table of one of the other follower's. Gives both; the first is cut off.
fn lag_with_table_of_another(stage: &mut Stage) -> (NodeId, NodeId) {
    let (lagging, former) = (stage.followers[0], stage.followers[1]);
    stage.world.cut_off(lagging);
    stage.write(640);
    stage.world.run(3 * SECOND);
    leave_table(stage, lagging, former);
    (lagging, former)
}

fn applied_by(stage: &mut Stage, node: NodeId) -> u64 {
    let replicas = stage.replicas(stage.leader);
    replicas.iter().find(|it| it["node"] == node.0).unwrap()["applied"].as_u64().unwrap()
}

#[test]
fn m2_a_leader_leaves_the_lead_to_the_former_sender_of_a_checkpoint() {
    let mut stage = Stage::new(|config| config.log_retained_bytes = 128 << 10);
    let (_, former) = lag_with_table_of_another(&mut stage);
    stage.world.cut.clear();
    let partition = stage.key.partition;
    stage.world.run_until(15 * SECOND, |world| world.replicas(partition).leader == former);
    stage.run_until_whole(former, 30);
}

/// A full node does not lead.
#[test]
fn m2_a_former_sender_that_cannot_lead_is_not_waited_for_long() {
    let mut stage = Stage::new(|config| {
        config.log_retained_bytes = 128 << 10;
        config.free_disk_min = Some(1 << 20);
    });
    let (_, former) = lag_with_table_of_another(&mut stage);
    stage.world.cut.clear();
    stage.world.machines[&former].disk.leave_free(0);
    stage.world.run(15 * SECOND);
    let leader = stage.leader;
    assert!(!stage.is_whole(leader), "it waits");
    stage.run_until_whole(leader, 30);
    assert_eq!(stage.world.replicas(stage.key.partition).leader, leader);
    assert!(stage.below_incoming().is_empty(), "{:?}", stage.below_incoming());
}

/// The former sender is gone, and nothing can be written without the receiver.
#[test]
fn m2_a_receiver_that_its_group_needs_does_not_wait_long() {
    let mut stage = Stage::new(|config| config.log_retained_bytes = 128 << 10);
    let (lagging, former) = lag_with_table_of_another(&mut stage);
    let wanted = applied_by(&mut stage, former);
    stage.world.cut.clear();
    stage.world.cut_off(former);
    for _ in 0..14 {
        stage.world.run(SECOND);
        if applied_by(&mut stage, lagging) >= wanted {
            return;
        }
    }
    panic!("{:#?}", stage.replicas(stage.leader));
}

/// The log has brought what a checkpoint would have.
#[test]
fn m2_what_nobody_goes_on_with_is_removed() {
    let mut stage = Stage::new(|_| {});
    leave_table(&stage, stage.followers[0], stage.followers[1]);
    assert_eq!(stage.below_incoming().len(), 1);
    stage.world.run(61 * SECOND);
    assert_eq!(stage.below_incoming(), Vec::<std::path::PathBuf>::new());
}

/// A dropped table that is kept is repaired like others, and so the status shows its checkpoints too.
#[test]
fn m2_the_status_shows_checkpoints_of_dropped_tables() {
    let mut stage = Stage::new(|config| config.snapshot_bytes_per_second = 256 << 10);
    fill(&mut stage);
    let asked = stage.leader;
    stage.world.admin(asked, "drop_table", &json!({ "name": "t", "reserve_seconds": 3_600 })).unwrap();
    stage.wipe();
    stage.world.run_until(60 * SECOND, |world| {
        let status = world.admin(asked, "status", &json!({})).unwrap();
        let partitions = status["dropped_tables"][0]["partitions"].as_array().unwrap();
        let mut replicas = partitions.iter().flat_map(|partition| partition["replicas"].as_array().unwrap());
        replicas.any(|replica| replica["transfer"]["bytes_done"].as_u64() > Some(0))
    });
}

/// A node that was wiped, and its disk, on which a checkpoint does not fit beside what is kept free.
fn without_room() -> (Stage, NodeId, SimDisk) {
    let mut stage = Stage::new(|config| {
        config.wal.segments_max = 3;
        config.free_disk_min = Some(3 * MIB);
    });
    fill(&mut stage);
    let wiped = stage.wipe();
    let disk = stage.world.machines[&wiped].disk.clone();
    disk.set_capacity(Some(7 * MIB));
    (stage, wiped, disk)
}

/// A receiver without room takes no checkpoint until it has some, and keeps free what it needs itself.
#[test]
fn m2_a_checkpoint_that_does_not_fit_waits_for_room() {
    let (mut stage, _, disk) = without_room();
    for _ in 0..600 {
        stage.world.run(Duration::from_millis(100));
        let free = disk.free_space(Path::new("/data")).unwrap().free;
        // The log may make segments meanwhile.
        assert!(free > 3 * MIB / 2, "{free}");
    }
    assert!(!stage.is_whole(stage.leader));
    disk.set_capacity(None);
    stage.run_until_whole(stage.leader, 60);
}

/// It waits for a long time: its leader does not keep a checkpoint, and with it old files and the log, for it, and tells why it is not
/// whole. As soon as there is room it is asked again.
#[test]
fn m2b_nothing_is_kept_for_long_for_a_receiver_without_room() {
    let (mut stage, wiped, disk) = without_room();
    stage.world.run(10 * SECOND);
    let (made, mut kept) = (stage.checkpoints(), 0);
    for _ in 0..900 {
        stage.world.run(SECOND);
        let disks = stage.world.machines.values().map(|machine| &machine.disk);
        let are_kept = |disk: &SimDisk| disk.list(Path::new("/data/checkpoints")).is_ok_and(|names| !names.is_empty());
        kept += u32::from(disks.clone().any(are_kept));
    }
    let asked = stage.leader;
    let replicas = stage.replicas(asked);
    let is_without = |it: &Value| it["state"] == "no room" && it["lacking_bytes"].as_u64() > Some(0);
    assert!(replicas.iter().any(|it| it["node"] == wiped.0 && is_without(it)), "{replicas:?}");
    let made = stage.checkpoints() - made;
    assert!(made <= 12 && kept < 450, "in 15 minutes {made} checkpoints were made, and kept for {kept} s");
    disk.set_capacity(None);
    stage.run_until_whole(asked, 60);
}

/// What it waits for it knows in memory alone. Its next process, which finds room, does not say so, and is asked because it is another one.
#[test]
fn m2c_a_receiver_that_starts_anew_with_room_is_asked_at_once() {
    let (mut stage, wiped, disk) = without_room();
    let asked = stage.leader;
    let greet = |stage: &mut Stage| {
        let node = &mut stage.world.machines.get_mut(&wiped).unwrap().node;
        node.begin_life();
        let greeting = node.greeting(asked);
        let leader = &mut stage.world.machines.get_mut(&asked).unwrap().node;
        let caller = leader.handle_greeting(&greeting, [127, 0, 0, 3].into()).unwrap();
        leader.handle_hangup(&caller);
    };
    greet(&mut stage);
    // By then it is asked every few minutes.
    stage.world.run(300 * SECOND);
    assert!(!stage.is_whole(asked));
    let made = stage.checkpoints();
    disk.set_capacity(None);
    stage.world.restart(wiped);
    greet(&mut stage);
    stage.run_until_whole(asked, 20);
    assert!(stage.checkpoints() > made);
}

/// What a process has reported that is gone says nothing of the one in its place, which may have lost everything.
#[test]
fn a_node_whose_connection_is_new_is_up_when_it_has_reported() {
    let mut stage = Stage::new(|_| {});
    let (asked, other) = (stage.leader, stage.followers[0]);
    let up = |stage: &mut Stage| stage.status(asked)["summary"]["nodes_up"].as_u64().unwrap();
    let greet = |stage: &mut Stage| {
        let greeting = stage.world.machines.get_mut(&other).unwrap().node.greeting(asked);
        let node = &mut stage.world.machines.get_mut(&asked).unwrap().node;
        node.handle_greeting(&greeting, [127, 0, 0, 3].into()).unwrap()
    };
    assert_eq!(up(&mut stage), 3);
    let caller = greet(&mut stage);
    assert_eq!((up(&mut stage), &stage.node(asked, other)["state"]), (2, &json!("dead")));
    stage.world.run(2 * SECOND);
    assert_eq!(up(&mut stage), 3);
    // Nor does it when its connection has ended, and nobody has come in its place yet.
    stage.world.machines.get_mut(&asked).unwrap().node.handle_hangup(&caller);
    assert_eq!(up(&mut stage), 2);
    stage.world.run(2 * SECOND);
    assert_eq!((up(&mut stage), &stage.node(asked, other)["state"]), (3, &json!("alive")));
}

/// A follower lags so far that it needs a checkpoint, for which there is no room beside what it has.
#[test]
fn m2_a_checkpoint_that_fits_only_without_what_it_replaces_comes() {
    let mut stage = Stage::new(|config| {
        config.wal.segments_max = 3;
        config.log_retained_bytes = 128 << 10;
        config.free_disk_min = Some(MIB);
    });
    fill(&mut stage);
    stage.world.run(10 * SECOND);
    let lagging = stage.followers[0];
    stage.world.cut_off(lagging);
    let keys = (0..160).map(|number| Key::new(stage.key.table, 2, &format!("key{number}")));
    for key in keys.filter(|key| key.partition == stage.key.partition) {
        stage.world.write(&key, stage.leader, &"w".repeat(64_000));
    }
    // The log is cut where flushes begin.
    stage.write(200);
    stage.world.run(10 * SECOND);
    stage.world.machines[&lagging].disk.leave_free(2 * MIB);
    stage.world.cut.clear();
    stage.world.run(10 * SECOND);
    let asked = stage.leader;
    let replicas = stage.replicas(asked);
    let before = replicas.iter().find(|it| it["node"] == lagging.0).unwrap().clone();
    assert_eq!((&before["state"], &before["role"]), (&json!("no room"), &json!("voter")), "{replicas:?}");
    let summary = stage.status(asked)["summary"].clone();
    assert!(summary["in_repair"].as_u64() > Some(0), "{summary}");
    stage.run_until_whole(asked, 90);
    let replicas = stage.replicas(asked);
    let after = replicas.iter().find(|it| it["node"] == lagging.0).unwrap();
    assert_ne!(after["replica"], before["replica"], "it is another one");
}

/// The log of a follower is gone, and the disk holds what is left of its replicas or their successors' checkpoints, not both.
#[test]
fn m2_what_is_left_of_a_lost_replica_makes_room_for_its_successor() {
    let mut stage = Stage::new(|config| {
        config.wal.segments_max = 3;
        config.free_disk_min = Some(MIB);
    });
    fill(&mut stage);
    stage.world.run(10 * SECOND);
    let (lost, asked) = (stage.followers[0], stage.leader);
    let disk = stage.world.machines[&lost].disk.clone();
    disk.remove_dir_all(Path::new("/data/log")).unwrap();
    disk.leave_free(5 * MIB);
    stage.world.restart(lost);
    stage.world.run(20 * SECOND);
    assert!(!stage.is_whole(asked), "there is no room for both");
    stage.run_until_whole(asked, 120);
    assert_eq!(disk.list(Path::new("/data/replicas")).unwrap().len(), running(&stage.world, lost).len());
}
