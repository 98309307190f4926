//! Disks and storage that fail at work: what is waited out, what costs a replica, and what nothing happens after.

use crate::world::{self, Ask, Key, World, files_of, running};
use hedgerow_env::Disk;
use hedgerow_node::{Config, Job, LogId};
use hedgerow_types::{GroupId, NodeId};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

pub fn key_of_first(table: i32) -> Key {
    key_in(GroupId::new(table as u32, 0), 2)
}

/// A key in this one of so many partitions.
pub fn key_in(group: GroupId, partitions: u32) -> Key {
    let mut keys = (0..).map(|number| Key::new(group.table.0 as i32, partitions, &format!("key{number}")));
    keys.find(|key| key.partition == group.partition as i32).unwrap()
}

pub fn first(table: i32) -> GroupId {
    GroupId::new(table as u32, 0)
}

fn applied(world: &World, node: NodeId, group: GroupId) -> u64 {
    let mut replicas = world.machines[&node].node.replicas_for_inspection();
    replicas.find(|replica| replica.id == group).map_or(0, |replica| replica.applied())
}

/// A world in which a node that was wiped is about to do what `holds` says, for the first partition's replica.
fn about_to(holds: fn(&Job) -> bool) -> (World, NodeId, Key) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = key_of_first(table);
    let places = world.replicas(0);
    world.write(&key, places.leader, "value");
    let node = places.followers[0];
    world.wipe(node);
    world.machines.get_mut(&node).unwrap().holds = holds;
    world.run_until(MINUTE, |world| world.machines[&node].held.iter().any(is_of_first));
    (world, node, key)
}

fn is_of_first(job: &Job) -> bool {
    match job {
        Job::Create { owner, .. }
        | Job::Verify { owner, .. }
        | Job::Install { owner, .. }
        | Job::WriteChunk { owner, .. }
        | Job::Flush { owner, .. } => owner.group == GroupId::new(1, 0),
        _ => false,
    }
}

fn assert_caught_up(world: &mut World, node: NodeId, key: &Key) {
    let group = first(key.table);
    let leader = world.replicas(0).leader;
    let index = world.write(key, leader, "later");
    world.run_until(MINUTE, |world| applied(world, node, group) >= index);
}

#[test]
fn d4_an_install_that_fails_is_tried_again() {
    let (mut world, node, key) = about_to(|job| matches!(job, Job::Install { .. }) && is_of_first(job));
    world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), true);
    world.let_go(node);
    world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), false);
    assert_caught_up(&mut world, node, &key);
}

#[test]
fn d4_a_received_checkpoint_that_is_damaged_is_asked_for_again() {
    let (mut world, node, key) = about_to(|job| matches!(job, Job::Verify { .. }) && is_of_first(job));
    let machine = &world.machines[&node];
    let received = files_of(&machine.disk, Path::new("/data/incoming"));
    let path = received.keys().find(|path| path.to_string_lossy().contains("/1.0-")).unwrap();
    machine.disk.flip_byte(path, 30).unwrap();
    world.let_go(node);
    assert_caught_up(&mut world, node, &key);
}

#[test]
fn d4_a_removal_that_waits_has_a_name_that_nobody_else_uses() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let node = world.replicas(0).followers[0];
    world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Remove { .. });
    world.admin(NodeId(1), "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    world.run_until(MINUTE, |world| !running(world, node).contains_key(&first(table)));
    let machine = &world.machines[&node];
    assert!(!machine.held.is_empty());
    for job in &machine.held {
        let Job::Remove { directories, .. } = job else { panic!("{job:?}") };
        assert!(directories.iter().all(|directory| directory.starts_with("/data/trash")), "{directories:?}");
    }
    assert!(!machine.disk.list(Path::new("/data/replicas")).unwrap().iter().any(|name| name.starts_with("1.0-")));
    // What was not removed before the node stopped goes when it starts.
    world.restart(node);
    assert!(world.machines[&node].disk.list(Path::new("/data/trash")).unwrap().is_empty());
}

fn drop_first_table(world: &mut World, node: NodeId) {
    world.admin(NodeId(1), "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    world.run(SECOND / 4);
    assert!(!running(world, node).contains_key(&first(1)));
}

/// What is on the disk for the first partition, and what waits to be removed.
fn left_of_first(world: &World, node: NodeId) -> Vec<String> {
    let list = |name: &str| world.machines[&node].disk.list(&Path::new("/data").join(name)).unwrap_or_default();
    let of_first = ["replicas", "incoming", "checkpoints"].iter().flat_map(|name| list(name));
    of_first.filter(|name| name.starts_with("1.0-")).chain(list("trash")).collect()
}

#[test]
fn d4_what_a_job_makes_for_a_replica_that_has_gone_meanwhile_is_removed() {
    let kinds: [fn(&Job) -> bool; 4] = [
        |job| matches!(job, Job::Create { .. }) && is_of_first(job),
        |job| matches!(job, Job::WriteChunk { .. }) && is_of_first(job),
        |job| matches!(job, Job::Verify { .. }) && is_of_first(job),
        |job| matches!(job, Job::Install { .. }) && is_of_first(job),
    ];
    for (number, holds) in kinds.into_iter().enumerate() {
        for runs_before in [false, true] {
            let (mut world, node, _) = about_to(holds);
            let mut done = if runs_before { world.run_held(node) } else { Vec::new() };
            drop_first_table(&mut world, node);
            done.extend(world.run_held(node));
            assert!(!done.is_empty());
            world.take_done(node, done);
            world.settle(node);
            assert_eq!(left_of_first(&world, node), [""; 0], "kind {number}, run before {runs_before}");
        }
    }
}

#[test]
fn d4_an_install_that_waits_to_be_tried_again_leaves_nothing_when_its_replica_goes() {
    // Before the former storage is put away, and after it.
    for attempts in [1, 2] {
        let (mut world, node, _) = about_to(|job| matches!(job, Job::Install { .. }) && is_of_first(job));
        world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), true);
        world.let_go(node);
        world.run(SECOND * (attempts - 1) + SECOND / 2);
        assert!(left_of_first(&world, node).iter().any(|name| name.ends_with(".new")));
        drop_first_table(&mut world, node);
        world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), false);
        world.run(MINUTE);
        assert_eq!(left_of_first(&world, node), [""; 0], "{attempts} attempts");
    }
}

#[test]
fn d3_a_replica_that_cannot_be_made_now_is_made_later() {
    let (mut world, node, key) = about_to(|job| matches!(job, Job::Create { .. }) && is_of_first(job));
    world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), true);
    world.let_go(node);
    world.machines[&node].disk.fail_syncs(Path::new("/data/replicas"), false);
    assert_caught_up(&mut world, node, &key);
}

#[test]
fn d3_a_flush_that_fails_is_tried_again_and_loses_nothing() {
    let mut world = World::configured(3, |config| config.flush_replica_bytes = 1_000);
    let table = world.create_table(2, &json!({}));
    let key = key_of_first(table);
    let leader = world.replicas(0).leader;
    world.machines[&leader].disk.fail_syncs(Path::new("/data/replicas"), true);
    let before = running(&world, leader);
    for number in 0..30 {
        world.write(&key, leader, &format!("{number:0200}"));
    }
    world.run(2 * SECOND);
    world.machines[&leader].disk.fail_syncs(Path::new("/data/replicas"), false);
    world.run(40 * SECOND);
    assert_eq!(running(&world, leader), before);
    let files = files_of(&world.machines[&leader].disk, Path::new("/data/replicas"));
    let is_flushed = |content: &Vec<u8>| content.windows(200).any(|window| window == format!("{:0200}", 29).as_bytes());
    let is_of_rows = |name: &str| name == "rows" || (name.starts_with("more-") && !name.ends_with(".tmp"));
    let whole =
        files.iter().filter(|(path, _)| path.file_name().and_then(|name| name.to_str()).is_some_and(is_of_rows));
    assert!(whole.map(|(_, content)| content).any(is_flushed), "it was not flushed when it could be");
}

#[test]
fn m3_a_log_entry_that_cannot_be_read_sends_its_follower_a_checkpoint() {
    let mut world = World::configured(3, |config| {
        config.flush_replica_bytes = u64::MAX;
        config.flush_node_bytes = u64::MAX;
        config.replication.cache_size_max = 4_000;
    });
    let table = world.create_table(2, &json!({}));
    let key = key_of_first(table);
    let places = world.replicas(0);
    let follower = places.followers[0];
    world.cut_off(follower);
    for number in 0..60 {
        world.write(&key, places.leader, &format!("{number:01000}"));
    }
    let disk = world.machines[&places.leader].disk.clone();
    let damaged = format!("{:01000}", 20);
    let mut flipped = 0;
    for (path, content) in files_of(&disk, Path::new("/data/log")) {
        for at in content.windows(1_000).enumerate().filter(|(_, it)| *it == damaged.as_bytes()).map(|(at, _)| at) {
            disk.flip_byte(&path, at as u64 + 100).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1);
    world.cut.clear();
    let leader_has = applied(&world, places.leader, first(table));
    world.run_until(MINUTE, |world| applied(world, follower, first(table)) >= leader_has);
    assert_eq!(world.get(&key, places.leader, &Ask::default()).unwrap().0, format!("{:01000}", 59));
}

/// A world whose nodes have two data directories each, and a key in the first partition of its table.
fn with_two_directories() -> (World, Key) {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(2, &json!({}));
    (world, key_of_first(table))
}

/// Two data directories, and the second one's log fails.
#[test]
fn m3_a_directory_that_fails_takes_only_its_replicas_along() {
    let (mut world, key) = with_two_directories();
    let places = world.replicas(0);
    world.write(&key, places.leader, "value");
    let node = places.leader;
    let before = running(&world, node);
    world.fail_log(node, LogId(1));
    let kept = running(&world, node);
    assert!(!kept.is_empty() && kept.len() < before.len(), "{kept:?}");
    assert!(kept.iter().all(|(group, replica)| before[group] == *replica));
    // Everything is replaced in the other directory, and written to.
    world.run_until(MINUTE, |world| running(world, node).len() == before.len());
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "later");
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "later");
}

/// The replicas of a directory that failed are to be replaced; their node hears of that only after it has started again, with
/// all of them. They stay: meanwhile another one of their groups may be gone.
#[test]
fn m3_replicas_that_are_back_before_their_successors_are_made_stay() {
    let (mut world, key) = with_two_directories();
    let places = world.replicas(0);
    world.write(&key, places.leader, "value");
    let node = places.followers[0];
    let before = running(&world, node);
    let others = [places.leader, places.followers[1]];
    world.cut.extend(others.map(|other| (other, node)));
    let names = world.machines[&node].disk.list(Path::new("/b/replicas")).unwrap();
    let log = LogId(usize::from(names.iter().any(|name| name.starts_with("1.0-"))));
    world.fail_log(node, log);
    world.run(5 * SECOND);
    world.restart(node);
    // Now the group has no majority without it.
    world.cut.clear();
    let gone = places.followers[1];
    world.cut_off(gone);
    world.run(30 * SECOND);
    assert_eq!(running(&world, node), before);
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "later");
    world.cut.clear();
    world.run(MINUTE);
    assert_eq!(running(&world, node), before);
    let status = world.admin(places.leader, "status", &json!({})).unwrap();
    assert!(!status.to_string().contains("joining"), "{status}");
}

/// The disk of one directory hangs: flushes there do not end. Those of the other go on, and so do its writes.
#[test]
fn n2_flushes_that_hang_in_one_directory_hold_up_no_other() {
    let mut world = World::configured(1, |config| {
        config.data = vec!["/a".into(), "/b".into()];
        config.flush_replica_bytes = 1_000;
        config.flush_node_bytes = 20_000;
    });
    let node = NodeId(1);
    let argument = json!({ "name": "t", "partition_count": 8, "replica_count": 1, "options": {} });
    let table = world.admin(node, "create_table", &argument).unwrap()["created"].as_i64().unwrap() as i32;
    world.run(2 * SECOND);
    let names = world.machines[&node].disk.list(Path::new("/a/replicas")).unwrap();
    let is_in_first = |key: &Key| names.iter().any(|name| name.starts_with(&format!("{table}.{}-", key.partition)));
    let (hang, go_on): (Vec<Key>, Vec<Key>) =
        (0..400).map(|number| Key::new(table, 8, &format!("key{number}"))).partition(is_in_first);
    world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Flush { .. });
    for key in &hang[..20] {
        world.write(key, node, &"v".repeat(1_100));
    }
    world.run(SECOND);
    assert_eq!(world.machines[&node].held.len(), 2);
    world.machines.get_mut(&node).unwrap().holds = |_| false;
    for key in &go_on[..100] {
        world.write(key, node, &"v".repeat(1_000));
        world.run(SECOND);
    }
}

/// Replacements that are lost before they vote go with those that they were to replace: a group never has more voters than
/// before, and the loss of the last one in the moment it votes costs nothing.
#[test]
fn m3d_a_node_that_is_wiped_again_and_again_costs_no_majority() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let (key, group) = (key_of_first(table), first(table));
    let places = world.replicas(0);
    let node = places.followers[0];
    world.write(&key, places.leader, "value");
    for _ in 0..2 {
        world.wipe(node);
        world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Install { .. }) && is_of_first(job);
        world.run_until(MINUTE, |world| world.machines[&node].held.iter().any(is_of_first));
    }
    world.wipe(node);
    let voters = |world: &World| {
        let mut replicas = world.machines[&places.leader].node.replicas_for_inspection();
        replicas.find(|replica| replica.id == group).unwrap().group.membership().voters.clone()
    };
    let before = voters(&world);
    world.run_until(2 * MINUTE, |world| voters(world) != before);
    world.wipe(node);
    world.run(10 * SECOND);
    assert_eq!(voters(&world).len(), 3, "as many as before");
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "later");
    assert_caught_up(&mut world, node, &key);
}

#[test]
fn m3_a_write_that_a_failed_log_never_ends_does_not_make_its_node_slow() {
    let (mut world, key) = with_two_directories();
    let places = world.replicas(0);
    let in_second = |node: &NodeId| {
        let names = world.machines[node].disk.list(Path::new("/b/replicas")).unwrap_or_default();
        names.iter().any(|name| name.starts_with("1.0-"))
    };
    let node = places.followers.iter().copied().find(in_second).unwrap();
    world.machines.get_mut(&node).unwrap().is_log_stuck = true;
    world.write(&key, places.leader, "value");
    world.run(SECOND / 10);
    world.fail_log(node, LogId(1));
    world.unstick(node);
    world.run(MINUTE);
    let slow = world.admin(node, "slow", &json!({})).unwrap();
    let own = &slow["nodes"][usize::from(node.0) - 1];
    assert!(own["log_write_us"].as_u64().unwrap_or(0) < 1_000_000, "{own}");
    assert_eq!(own["is_slow"], false, "{own}");
}

#[test]
fn m3_a_node_starts_without_a_directory_that_is_missing_and_takes_it_back() {
    let (mut world, key) = with_two_directories();
    let places = world.replicas(0);
    world.write(&key, places.leader, "value");
    let node = places.followers[0];
    let before = running(&world, node);
    let disk = world.machines[&node].disk.clone();
    // Not mounted: its content is elsewhere.
    disk.rename(Path::new("/b"), Path::new("/elsewhere")).unwrap();
    world.restart(node);
    let kept = running(&world, node);
    assert!(!kept.is_empty() && kept.len() < before.len(), "{kept:?}");
    world.run_until(MINUTE, |world| running(world, node).len() == before.len());
    assert!(!disk.exists(Path::new("/b")));
    let status = world.admin(node, "status", &json!({})).unwrap();
    let said = status["nodes"][usize::from(node.0) - 1]["missing_directories"][0].as_str().unwrap().to_owned();
    assert!(said.starts_with("/b: it is not there"), "{said}");

    disk.rename(Path::new("/elsewhere"), Path::new("/b")).unwrap();
    world.restart(node);
    world.run(10 * SECOND);
    world.run_until(MINUTE, |world| running(world, node).len() == before.len());
    let leader = world.replicas(0).leader;
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "value");
}

/// Its files stay open and take what is written, and the next start would find nothing of what was acknowledged.
#[test]
fn d20_a_data_directory_that_is_taken_away_under_its_node_takes_nothing_more() {
    let (mut world, key) = with_two_directories();
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "value");
    let node = world.replicas(0).followers[0];
    let before = running(&world, node);
    let disk = world.machines[&node].disk.clone();
    let missing = |world: &mut World| {
        let status = world.admin(node, "status", &json!({})).unwrap();
        status["nodes"][usize::from(node.0) - 1]["missing_directories"].clone()
    };
    // One look may be wrong.
    disk.rename(Path::new("/b"), Path::new("/elsewhere")).unwrap();
    world.run(SECOND);
    disk.rename(Path::new("/elsewhere"), Path::new("/b")).unwrap();
    world.run(10 * SECOND);
    assert_eq!((missing(&mut world), running(&world, node)), (json!([]), before.clone()));
    disk.rename(Path::new("/b"), Path::new("/elsewhere")).unwrap();
    world.run(4 * SECOND);
    let said = missing(&mut world)[0].as_str().unwrap().to_owned();
    assert!(said.starts_with("/b: its identity.json is not there any more"), "{said}");
    world.run_until(MINUTE, |world| running(world, node).len() == before.len());
    assert_ne!(running(&world, node), before, "what was there is learned again in the other one");
    let leader = world.replicas(0).leader;
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "value");
}

/// Node 2 of three, whose storage at `path` below its only data directory is removed while it runs, as its own replicas.
fn with_storage_removed(configure: fn(&mut Config), path: fn(GroupId, u64) -> String) -> (World, Key, u64) {
    let mut world = World::configured(3, configure);
    let table = world.create_table(2, &json!({}));
    let key = key_of_first(table);
    let leader = world.replicas(0).leader;
    world.write(&key, leader, "value");
    // Every replica that is there has been looked at.
    world.run(20 * SECOND);
    let id = running(&world, NodeId(2))[&first(table)];
    let path = Path::new("/data").join(path(first(table), id.0));
    world.machines[&NodeId(2)].disk.remove_dir_all(&path).unwrap();
    (world, key, id.0)
}

fn one_storage(group: GroupId, id: u64) -> String {
    format!("replicas/{}.{}-{id:x}", group.table.0, group.partition)
}

fn assert_is_replaced(mut world: World, key: &Key, id: u64) {
    let group = first(key.table);
    let is_replaced = |world: &mut World| running(world, NodeId(2)).get(&group).is_some_and(|new| new.0 != id);
    world.run_until(MINUTE, is_replaced);
    assert_caught_up(&mut world, NodeId(2), key);
    let leader = world.replicas(0).leader;
    assert_eq!(world.get(key, leader, &Ask::default()).unwrap().0, "later");
}

#[test]
fn m3_storage_that_is_removed_while_nothing_is_written_is_noticed() {
    let (world, key, id) = with_storage_removed(|_| (), one_storage);
    assert_is_replaced(world, &key, id);
    let (world, key, id) = with_storage_removed(|_| (), |_, _| "replicas".into());
    assert_is_replaced(world, &key, id);
}

#[test]
fn m3_a_flush_into_storage_that_was_removed_costs_the_replica_and_not_the_directory() {
    let (mut world, key, id) = with_storage_removed(|config| config.flush_replica_bytes = 1_000, one_storage);
    let group = first(key.table);
    let leader = world.replicas(0).leader;
    // Nothing looks at the directories meanwhile.
    world.machines.get_mut(&NodeId(2)).unwrap().holds = |job| matches!(job, Job::Space { .. });
    for number in 0..30 {
        world.write(&key, leader, &format!("{number:0200}"));
    }
    world.run_until(MINUTE, |world| running(world, NodeId(2)).get(&group).is_none_or(|now| now.0 != id));
    world.let_go(NodeId(2));
    assert_is_replaced(world, &key, id);
}

/// Without its identity a data directory is not there, its file system perhaps. Nothing of it counts as lost: a node with no other ends, and
/// goes on when it comes back.
#[test]
fn m3_storage_is_not_lost_where_the_whole_data_directory_is_away() {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let node = NodeId(2);
    let before = running(&world, node);
    let (config, disk) = (world.machines[&node].config.clone(), world.machines[&node].disk.clone());
    disk.rename(Path::new("/data/replicas"), Path::new("/away")).unwrap();
    disk.rename(Path::new("/data/identity.json"), Path::new("/identity.json")).unwrap();
    world.may_end = Some(node);
    world.run(30 * SECOND);
    let said = world.end.take().unwrap();
    assert!(said.starts_with("data directory /data failed: its identity.json is not there any more"), "{said}");
    disk.rename(Path::new("/identity.json"), Path::new("/data/identity.json")).unwrap();
    disk.rename(Path::new("/away"), Path::new("/data/replicas")).unwrap();
    world.machines.insert(node, world::start(Config { seed: config.seed + 1_000, ..config }, disk, world.now));
    world.settle(node);
    assert_caught_up(&mut world, node, &key_of_first(table));
    assert_eq!(running(&world, node), before);
}
