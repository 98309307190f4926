//! Logs of one layout and of another: every start with another one finds all replicas, wherever the start before was interrupted.

use crate::failing::key_in;
use crate::replicas::{kill, move_directory, open};
use crate::unread::EIO;
use crate::world::{self, Ask, Key, World, running};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, read_file};
use hedgerow_node::LogLayout::{self, Disk as PerDisk, Node as PerNode};
use hedgerow_node::{Config, LogId, Node, OpenError};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const PARTITIONS: u32 = 8;
const NODE: NodeId = NodeId(3);

/// Three nodes with two data directories each, and a table with a row in each partition.
fn world_with_rows(layout: LogLayout) -> (World, Vec<Key>) {
    let mut world = World::configured(3, |config| {
        config.data = vec!["/a".into(), "/b".into()];
        config.log_layout = layout;
    });
    let table = world.create_table(PARTITIONS, &json!({}));
    let groups = (0..PARTITIONS).map(|partition| GroupId::new(table as u32, partition));
    let keys: Vec<Key> = groups.map(|group| key_in(group, PARTITIONS)).collect();
    write_all(&mut world, &keys, "value");
    world.run(Duration::from_secs(2));
    (world, keys)
}

fn write_all(world: &mut World, keys: &[Key], value: &str) {
    for key in keys {
        let leader = world.replicas(key.partition).leader;
        world.write(key, leader, value);
    }
}

/// Starts the node anew, otherwise configured, and lets the groups that it led have leaders.
fn restart_with(world: &mut World, node: NodeId, change: impl FnOnce(&mut Config)) {
    change(&mut world.machines.get_mut(&node).unwrap().config);
    world.restart(node);
    world.run(Duration::from_secs(5));
}

fn has_log(disk: &SimDisk, directory: &str) -> bool {
    disk.list(&Path::new(directory).join("log")).is_ok_and(|names| names.iter().any(|name| name.ends_with(".seg")))
}

fn identity_of(disk: &SimDisk, directory: &str) -> String {
    String::from_utf8(read_file(disk, &Path::new(directory).join("identity.json")).unwrap()).unwrap()
}

/// Waits until the rows of all partitions are there, with that value.
fn assert_has_all(world: &mut World, keys: &[Key], value: &str) {
    for key in keys {
        world.run_until(MINUTE, |world| {
            let leader = world.replicas(key.partition).leader;
            world.get(key, leader, &Ask::default()).is_ok_and(|(found, _)| found == value)
        });
    }
}

/// All nodes go from one layout to the other and back, one after the other, so that nodes with both are in one cluster.
#[test]
fn nodes_change_their_layout_and_go_back_with_all_that_they_have() {
    let (mut world, keys) = world_with_rows(PerDisk);
    let nodes = [NodeId(1), NodeId(2), NODE];
    let before = nodes.map(|node| running(&world, node));
    let incarnation = |world: &World, node: NodeId| world.machines[&node].node.greeting(NodeId(1)).life.incarnation;
    let lives = nodes.map(|node| incarnation(&world, node));
    for (round, layout) in [PerNode, PerDisk, PerNode].into_iter().enumerate() {
        for node in nodes {
            restart_with(&mut world, node, |config| config.log_layout = layout);
            let disk = &world.machines[&node].disk;
            assert_eq!(has_log(disk, "/b"), layout == PerDisk, "{node} {layout:?}");
            assert!(has_log(disk, "/a"));
            let identity = identity_of(disk, "/b");
            assert_eq!(identity.contains("\"version\":2") && identity.contains("log_layout"), layout == PerNode);
            write_all(&mut world, &keys, &format!("{round} {node}"));
        }
        assert_eq!(nodes.map(|node| running(&world, node)), before, "nobody is lost");
        assert_has_all(&mut world, &keys, &format!("{round} {NODE}"));
    }
    for node in nodes {
        world.restart(node);
    }
    assert_eq!(nodes.map(|node| running(&world, node)), before);
    assert_eq!(nodes.map(|node| incarnation(&world, node)), lives, "nothing counts as lost");
    assert_has_all(&mut world, &keys, &format!("2 {NODE}"));
}

/// What a start says of every replica: its group, itself, what its log and its storage hold.
fn recovered(config: &Config, disk: &SimDisk, world: &World) -> BTreeMap<GroupId, String> {
    let machine = world::start(config.clone(), disk.clone(), world.now);
    let replicas = machine.node.replicas_for_inspection().map(|one| {
        let entries = machine.jobs.readers[one.log.0].entries(one.id, one.applied() + 1, u64::MAX, usize::MAX).unwrap();
        (one.id, format!("{} applied {} and then {entries:?}", one.replica, one.applied()))
    });
    let replicas = replicas.collect();
    drop(machine);
    disk.kill_process();
    replicas
}

/// Ends the start with another layout after each of its writes in turn, by a kill or by a power failure; the next one has the same layout,
/// or the one before: two changes in a row.
#[test]
fn d3l_a_change_of_layout_that_ends_anywhere_loses_and_doubles_nothing() {
    for (from, to) in [(PerDisk, PerNode), (PerNode, PerDisk)] {
        let (mut world, keys) = world_with_rows(from);
        write_all(&mut world, &keys, "later");
        let (config, disk) = kill(&mut world, NODE);
        let expected = recovered(&Config { seed: config.seed + 1, ..config.clone() }, &disk.copy(), &world);
        assert_eq!(expected.len(), PARTITIONS as usize + 1, "all groups, and the metadata");
        let (mut ends, mut has_ended) = (0, false);
        for calls in 0.. {
            let disk = disk.copy();
            disk.stop_after(calls);
            let next = Config { log_layout: to, seed: config.seed + 2, ..config.clone() };
            has_ended = open(&next, &disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world).is_ok();
            if calls % 2 == 0 {
                disk.kill_process();
            } else {
                disk.crash(&mut Random::new(calls));
            }
            let again = if calls % 3 == 0 { from } else { to };
            let next = Config { log_layout: again, seed: config.seed + 3, ..config.clone() };
            let found = recovered(&next, &disk, &world);
            assert_eq!(found, expected, "{from:?} to {to:?} ends after {calls} calls, then {again:?}");
            let next = Config { seed: config.seed + 4, ..next };
            assert_eq!(recovered(&next, &disk, &world), expected, "{from:?} to {to:?}, {calls} calls, once more");
            assert_eq!(has_log(&disk, "/b"), again == PerDisk);
            ends += 1;
            if has_ended {
                break;
            }
        }
        assert!(has_ended && ends > 40, "{ends}");
    }
}

/// The log of all replicas follows the first data directory.
#[test]
fn the_log_of_a_node_comes_along_where_another_directory_is_the_first() {
    let (mut world, keys) = world_with_rows(PerNode);
    let before = running(&world, NODE);
    restart_with(&mut world, NODE, |config| config.data.reverse());
    let disk = &world.machines[&NODE].disk;
    assert!(has_log(disk, "/b") && !has_log(disk, "/a"));
    write_all(&mut world, &keys, "later");
    assert_eq!(running(&world, NODE), before);
    restart_with(&mut world, NODE, |config| config.log_layout = PerDisk);
    assert_eq!(running(&world, NODE), before);
    assert_has_all(&mut world, &keys, "later");
}

/// A directory that is away while the layout changes takes its storage along, and what the log has of that stays until it is back.
#[test]
fn d3l_a_directory_that_is_away_while_the_layout_changes_comes_back_with_its_replicas() {
    for (from, to) in [(PerDisk, PerNode), (PerNode, PerDisk)] {
        let (mut world, keys) = world_with_rows(from);
        let before = running(&world, NODE);
        let (mut config, disk) = kill(&mut world, NODE);
        config.log_layout = to;
        move_directory(&disk, "/b", "/b-away");
        config.seed += 1_000;
        let left = recovered(&config, &disk, &world);
        assert!(!left.is_empty() && left.len() < before.len(), "{from:?} to {to:?}: {}", left.len());
        move_directory(&disk, "/b-away", "/b");
        config.seed += 1_000;
        world.machines.insert(NODE, world::start(config, disk, world.now));
        world.settle(NODE);
        assert_eq!(running(&world, NODE), before, "{from:?} to {to:?}");
        world.run(Duration::from_secs(5));
        write_all(&mut world, &keys, "later");
        world.run(MINUTE);
        assert_eq!(running(&world, NODE), before, "{from:?} to {to:?}");
        assert_has_all(&mut world, &keys, "later");
    }
}

/// With the first data directory, or its log, the node would have forgotten every vote.
#[test]
fn d3_a_node_without_the_directory_of_its_only_log_does_not_start() {
    let (mut world, _) = world_with_rows(PerNode);
    let before = running(&world, NODE);
    let (config, disk) = kill(&mut world, NODE);
    let engines = || Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
    move_directory(&disk, "/a", "/a-away");
    let config = Config { seed: config.seed + 1_000, ..config };
    let refused = open(&config, &disk, engines(), &world).unwrap_err();
    disk.kill_process();
    assert!(matches!(refused, OpenError::NoHome { .. }), "{refused:?}");
    assert!(refused.to_string().contains("the log of all replicas is in /a, which cannot be used"), "{refused}");
    // As the message says, where it is lost.
    let lost = disk.copy();
    lost.create_dir_all(Path::new("/a")).unwrap();
    assert!(recovered(&Config { seed: config.seed + 1, ..config.clone() }, &lost, &world).is_empty());
    move_directory(&disk, "/a-away", "/a");
    disk.fail_opens(Path::new("/a/log"), Some(EIO));
    assert!(open(&config, &disk, engines(), &world).is_err(), "a log that cannot be read is no empty one");
    disk.kill_process();
    disk.fail_opens(Path::new("/a/log"), None);
    assert_eq!(recovered(&config, &disk, &world).len(), before.len());
}

/// A disk that fails costs the replicas whose storage is there; with the log's disk the node ends.
#[test]
fn m3_with_one_log_a_directory_that_fails_takes_only_its_replicas_along() {
    let (mut world, keys) = world_with_rows(PerNode);
    let before = running(&world, NODE);
    let storage = |world: &World| world.machines[&NODE].disk.list(Path::new("/b/replicas")).unwrap().len();
    assert!(storage(&world) > 0);
    // As long as it is away, and by the second look it is believed to be.
    let disk = world.machines[&NODE].disk.clone();
    move_directory(&disk, "/b", "/b-away");
    world.run(Duration::from_secs(5));
    let kept = running(&world, NODE);
    assert!(!kept.is_empty() && kept.iter().any(|(group, replica)| before.get(group) == Some(replica)));
    world.run_until(MINUTE, |world| running(world, NODE).len() == before.len());
    write_all(&mut world, &keys, "later");
    assert_has_all(&mut world, &keys, "later");
    let status = world.admin(NODE, "status", &json!({})).unwrap();
    assert!(status.to_string().contains("/b"), "{status}");
    world.may_end = Some(NODE);
    world.fail_log(NODE, LogId(0));
    let end = world.end.take().unwrap();
    assert!(end.contains("data directory /a failed"), "{end}");
}

/// The directory that refuses has a smaller count of starts afterwards, and is no copy for that: the node comes back with it.
#[test]
fn m3_with_one_log_a_directory_that_refuses_the_start_is_there_at_the_next() {
    let (mut world, _) = world_with_rows(PerNode);
    let before = running(&world, NODE).len();
    let disk = world.machines[&NODE].disk.clone();
    disk.fail_syncs(Path::new("/b"), true);
    restart_with(&mut world, NODE, |_| ());
    let status = world.admin(NODE, "status", &json!({})).unwrap();
    assert!(status.to_string().contains("/b"), "{status}");
    disk.fail_syncs(Path::new("/b"), false);
    restart_with(&mut world, NODE, |_| ());
    world.run_until(MINUTE, |world| running(world, NODE).len() == before);
}

/// Where there is no room for the groups in the log where they belong, nothing is begun, and the layout before goes on without a byte more.
#[test]
fn n1_a_change_of_layout_without_room_changes_nothing() {
    for (from, to) in [(PerDisk, PerNode), (PerNode, PerDisk)] {
        let (mut world, _) = world_with_rows(from);
        let (config, disk) = kill(&mut world, NODE);
        let config = Config { seed: config.seed + 1_000, ..config };
        let expected = recovered(&config, &disk.copy(), &world);
        let (mut refused, mut started) = (0, 0);
        let segment = config.wal.segment_size;
        for free in [3_000, 30_000, segment, 2 * segment, 3 * segment, 5 * segment] {
            let disk = disk.copy();
            let groups =
                |disk: &SimDisk, data: &str| has_log(disk, data).then(|| groups_of(disk, &format!("{data}/log")));
            let logs = |disk: &SimDisk| ["/a", "/b"].map(|data| groups(disk, data).unwrap_or_default());
            let before = logs(&disk);
            disk.leave_free(free);
            let next = Config { log_layout: to, seed: config.seed + 1, ..config.clone() };
            let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
            let start = open(&next, &disk, engines, &world);
            disk.kill_process();
            match start {
                Ok(_) => {
                    started += 1;
                    continue;
                }
                Err(OpenError::NoRoomToMove { needed, free: found, .. }) => {
                    refused += 1;
                    assert!(needed > found && found <= free);
                    assert_eq!(logs(&disk), before, "{from:?} to {to:?}, {free} bytes free");
                }
                // The log itself has no room for a segment.
                Err(OpenError::Log { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
            let next = Config { seed: config.seed + 2, ..config.clone() };
            assert_eq!(recovered(&next, &disk, &world), expected, "{from:?} to {to:?}, {free} bytes free, and back");
            disk.set_capacity(None);
            let next = Config { log_layout: to, seed: config.seed + 3, ..config.clone() };
            assert_eq!(recovered(&next, &disk, &world), expected, "{from:?} to {to:?}, with room again");
        }
        assert!(refused > 0 && started > 0, "{refused} refused, {started} started");
    }
}

/// What was in a log that is gone is in the one that its groups came to. So a copy is known by either, whatever its own start has made of its
/// layout and its directories.
#[test]
fn d7_a_process_tells_of_the_logs_that_its_groups_came_out_of() {
    let (mut world, _) = world_with_rows(PerDisk);
    let (mut config, disk) = kill(&mut world, NODE);
    let mut told = |log_layout: LogLayout, disk: &SimDisk| -> BTreeSet<u64> {
        config.seed += 1_000;
        let config = Config { log_layout, ..config.clone() };
        let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
        let mut node = Node::open(config, Arc::new(disk.clone()), engines, world.clock()).unwrap().node;
        node.begin_life();
        let logs = node.greeting(NodeId(1)).logs;
        drop(node);
        disk.kill_process();
        logs.into_iter().map(|at| at.log).collect()
    };
    let before = told(PerDisk, &disk);
    assert_eq!(before.len(), 2);
    assert_eq!(told(PerNode, &disk), before, "the second one's groups are in the first one");
    assert_eq!(told(PerNode, &disk), before);
    let back = told(PerDisk, &disk);
    assert!(before.is_subset(&back) && back.len() == 3, "{before:?}, {back:?}");
    disk.remove_dir_all(Path::new("/a")).unwrap();
    disk.create_dir_all(Path::new("/a")).unwrap();
    assert!(before.is_subset(&told(PerDisk, &disk)), "one directory is enough to know it");
}

/// A replica that one log says twice in one generation was copied by somebody.
#[test]
fn d7_a_log_that_was_copied_is_no_group_that_has_moved() {
    let (mut world, _) = world_with_rows(PerNode);
    let (config, disk) = kill(&mut world, NODE);
    let files = world::files_of(&disk, Path::new("/a/log"));
    disk.create_dir_all(Path::new("/b/log")).unwrap();
    crate::replicas::restore(&disk, &files, "/a/log", "/b/log");
    let config = Config { seed: config.seed + 1_000, ..config };
    let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
    let refused = open(&config, &disk, engines, &world).unwrap_err();
    assert!(matches!(refused, OpenError::Copied { .. }), "{refused:?}");
}

/// The groups in a log, and whether each is a copy that is pending.
fn groups_of(disk: &SimDisk, log: &str) -> BTreeMap<GroupId, bool> {
    let found = hedgerow_wal::inspect(disk, Path::new(log), &mut |_| {}).unwrap().groups;
    found.into_iter().map(|one| (one.group, one.is_pending)).collect()
}

/// Ends a start with one log for all after so many writes, by a power failure. Gives the disk as it is then, and whether the start was over.
fn interrupt(world: &World, config: &Config, whole: &SimDisk, calls: u64) -> (SimDisk, bool) {
    let disk = whole.copy();
    disk.stop_after(calls);
    let next = Config { log_layout: PerNode, seed: config.seed + 1, ..config.clone() };
    let is_over = open(&next, &disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), world).is_ok();
    disk.crash(&mut Random::new(calls));
    (disk, is_over)
}

/// A change is interrupted when groups have their copies and are not struck out yet, and the log that they are in is away at the next start.
/// Nothing is written for them then: it comes back, and says what they were.
#[test]
fn d3l_a_copy_does_not_go_on_where_what_it_is_a_copy_of_may_come_back() {
    let (mut world, _) = world_with_rows(PerDisk);
    let (config, disk) = kill(&mut world, NODE);
    let config = Config { seed: config.seed + 1_000, ..config };
    let expected = recovered(&config, &disk.copy(), &world);
    let mut interrupted = 0;
    for calls in 0.. {
        let (disk, is_over) = interrupt(&world, &config, &disk, calls);
        if is_over {
            break;
        }
        let copied = groups_of(&disk, "/a/log").into_iter().filter(|(_, is_pending)| *is_pending);
        let copied: Vec<GroupId> = copied.map(|(group, _)| group).collect();
        let source = groups_of(&disk, "/b/log");
        if copied.is_empty() || !copied.iter().all(|group| source.contains_key(group)) {
            continue;
        }
        interrupted += 1;
        move_directory(&disk, "/b/log", "/log-away");
        for _ in 0..2 {
            let next = Config { seed: config.seed + 2, ..config.clone() };
            let found = recovered(&next, &disk, &world);
            assert!(copied.iter().all(|group| !found.contains_key(group)), "{calls}: {found:?}");
        }
        disk.remove_dir_all(Path::new("/b/log")).unwrap();
        move_directory(&disk, "/log-away", "/b/log");
        let next = Config { seed: config.seed + 4, ..config.clone() };
        assert_eq!(recovered(&next, &disk, &world), expected, "{calls}");
    }
    assert!(interrupted > 0, "no start was interrupted between the copies and the strikes");
}

/// The whole directory is away that the copies come from, and what is there may be struck out already: nobody can tell, and no copy is removed.
#[test]
fn d3l_no_start_removes_copies_while_a_directory_is_away_that_they_may_come_from() {
    let (mut world, _) = world_with_rows(PerDisk);
    let (config, whole) = kill(&mut world, NODE);
    let config = Config { seed: config.seed + 1_000, ..config };
    let expected = recovered(&config, &whole.copy(), &world);
    let (mut before_strikes, mut after_strikes) = (0, 0);
    for calls in 0.. {
        let (disk, is_over) = interrupt(&world, &config, &whole, calls);
        if is_over {
            break;
        }
        let copied = groups_of(&disk, "/a/log");
        if !copied.values().any(|is_pending| *is_pending) {
            continue;
        }
        let is_struck = groups_of(&disk, "/b/log").is_empty();
        for (starts, back) in [(&[PerNode][..], PerDisk), (&[PerNode], PerNode), (&[PerDisk, PerNode], PerDisk)] {
            let disk = disk.copy();
            move_directory(&disk, "/b", "/away");
            let mut refused = 0;
            for log_layout in starts {
                let next = Config { log_layout: *log_layout, seed: config.seed + 2, ..config.clone() };
                let started = open(&next, &disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world);
                disk.kill_process();
                let left = groups_of(&disk, "/a/log");
                match started {
                    Err(OpenError::Unsettled { groups: 1.., .. }) => {
                        refused += 1;
                        assert_eq!(left, copied, "{calls}");
                    }
                    Err(other) => panic!("{calls}: {other:?}"),
                    Ok(()) => assert_eq!(refused, 0, "{calls}: what was refused once stays so"),
                }
            }
            *(if is_struck { &mut after_strikes } else { &mut before_strikes }) += refused;
            move_directory(&disk, "/away", "/b");
            let next = Config { log_layout: back, seed: config.seed + 4, ..config.clone() };
            assert_eq!(recovered(&next, &disk, &world), expected, "{calls}, {starts:?}, {back:?}");
        }
    }
    assert!(before_strikes > 0 && after_strikes > 0, "{before_strikes}, {after_strikes}");
}

/// The same, but the copies are away, and the groups go on where they were. The copies are outdated when they come back.
#[test]
fn d3l_a_copy_that_was_away_counts_beside_no_log_that_went_on() {
    let (mut world, keys) = world_with_rows(PerDisk);
    let (config, whole) = kill(&mut world, NODE);
    let mut config = Config { seed: config.seed + 1_000, ..config };
    let interrupted = |calls: u64| {
        let (disk, _) = interrupt(&world, &config, &whole, calls);
        let copied = groups_of(&disk, "/a/log").into_values().any(|is_pending| is_pending);
        (copied && !groups_of(&disk, "/b/log").is_empty()).then_some(disk)
    };
    let disk = (0..1_000).find_map(interrupted).unwrap();
    move_directory(&disk, "/a/log", "/log-away");
    config.seed += 10;
    world.machines.insert(NODE, world::start(config.clone(), disk, world.now));
    world.settle(NODE);
    world.run(Duration::from_secs(5));
    write_all(&mut world, &keys, "later");
    world.run(Duration::from_secs(2));
    let kept = running(&world, NODE);
    let (mut config, disk) = kill(&mut world, NODE);
    config.seed += 1;
    let in_second: Vec<GroupId> =
        groups_of(&disk, "/b/log").into_keys().filter(|group| kept.contains_key(group)).collect();
    let before = recovered(&config, &disk.copy(), &world);
    disk.remove_dir_all(Path::new("/a/log")).unwrap();
    move_directory(&disk, "/log-away", "/a/log");
    config.seed += 1;
    let after = recovered(&config, &disk, &world);
    assert!(!in_second.is_empty());
    for group in in_second {
        assert_eq!(after.get(&group), before.get(&group), "{group}");
    }
}
