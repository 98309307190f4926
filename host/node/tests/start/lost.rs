//! Replicas that are lost and that their groups cannot spare: they stay as they are, and go on when what was away is back.

use crate::failing::{key_in, key_of_first};
use crate::replicas::{kill, move_directory, open, restore};
use crate::unread::{EIO, ENOSPC};
use crate::world::{self, Ask, Key, World, files_of, running};
use hedgerow_env::Disk;
use hedgerow_env::sim::SimDisk;
use hedgerow_node::{Config, LogId, OpenError};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::{GroupId, NodeId};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Starts `node` anew with what `change` makes of its disk.
fn start_with(world: &mut World, node: NodeId, change: impl FnOnce(&SimDisk)) {
    let (config, disk) = kill(world, node);
    change(&disk);
    start_killed(world, config, disk);
}

/// Starts a node again that was killed.
fn start_killed(world: &mut World, mut config: Config, disk: SimDisk) {
    let node = config.node;
    config.seed += 1_000;
    world.machines.insert(node, world::start(config, disk, world.now));
    world.settle(node);
}

/// Why a node that was killed cannot start.
fn refused_start(world: &World, config: &Config, disk: &SimDisk) -> OpenError {
    let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
    let refused = open(config, disk, engines, world).unwrap_err();
    disk.kill_process();
    refused
}

fn storage(world: &World, node: NodeId, directory: &str) -> Vec<String> {
    world.machines[&node].disk.list(&Path::new(directory).join("replicas")).unwrap()
}

fn is_there(world: &mut World, key: &Key) -> bool {
    let leader = world.replicas(0).leader;
    world.get(key, leader, &Ask::default()).is_ok_and(|(value, _)| value == "value")
}

/// Tables of one and of two replicas have no majority without one of them.
#[test]
fn d3g_a_replica_whose_log_is_away_stays_where_the_others_are_no_majority() {
    for replicas in [1, 2] {
        let mut world = World::new(3);
        let table = world.create_table_of(replicas, 2, &json!({}));
        let (key, node) = (key_of_first(table), world.replicas(0).leader);
        world.write(&key, node, "value");
        let group = GroupId::new(table as u32, 0);
        let before = running(&world, node)[&group];
        let name = format!("{group}-{:x}", before.0);
        start_with(&mut world, node, |disk| move_directory(disk, "/data/log", "/log-away"));
        world.run(MINUTE);
        assert!(!running(&world, node).contains_key(&group));
        assert!(running(&world, node).contains_key(&GroupId::META), "that of the metadata is replaced");
        assert!(storage(&world, node, "/data").contains(&name), "{name}: {:?}", storage(&world, node, "/data"));
        // What is made meanwhile is in the second log alone.
        let other = json!({ "name": "u", "partition_count": 2, "replica_count": 3, "options": {} });
        let made = world.admin(NodeId(1), "create_table", &other).unwrap();
        world.run(Duration::from_secs(5));
        let made = GroupId::new(made["created"].as_u64().unwrap() as u32, 0);
        let voter = running(&world, node)[&made];
        start_with(&mut world, node, |disk| {
            move_directory(disk, "/data/log", "/log-second");
            move_directory(disk, "/log-away", "/data/log");
        });
        assert_eq!(running(&world, node)[&group], before);
        world.run_until(MINUTE, |world| {
            assert_ne!(running(world, node).get(&made), Some(&voter), "it begins anew under the id of one that voted");
            running(world, node).contains_key(&made)
        });
        world.run_until(MINUTE, |world| is_there(world, &key));
        assert_eq!(running(&world, node)[&group], before);
        // The second log is forgotten: there is nothing to be lost at the next start.
        world.restart(node);
        assert_eq!(running(&world, node)[&group], before);
        assert!(running(&world, node).contains_key(&made));
    }
}

/// The data directories of two nodes are away at once, and the third replica is no majority.
#[test]
fn d3g_replicas_that_two_nodes_lose_at_once_stay_until_they_are_back() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(4, &json!({}));
    world.run(Duration::from_secs(2));
    let on = |world: &World, node, directory, group: GroupId| {
        storage(world, node, directory).iter().any(|name| name.starts_with(&format!("{group}-")))
    };
    let (one, two) = (NodeId(1), NodeId(2));
    let of_meta = |world: &World, node| if on(world, node, "/a", GroupId::META) { "/a" } else { "/b" };
    let other = |directory| if directory == "/a" { "/b" } else { "/a" };
    let away = [one, two].map(|node| (node, other(of_meta(&world, node))));
    let mut groups = (0..4).map(|partition| GroupId::new(table as u32, partition));
    let group = groups.find(|group| away.iter().all(|(node, directory)| on(&world, *node, directory, *group))).unwrap();
    let key = key_in(group, 4);
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
    let before = away.map(|(node, _)| running(&world, node)[&group]);
    // The loss of the first is known when the other one loses its own, but not for long.
    let moved = |directory: &str| format!("{directory}-away");
    for (node, directory) in away {
        start_with(&mut world, node, |disk| move_directory(disk, directory, &moved(directory)));
        world.run(Duration::from_millis(2_500));
    }
    world.run(MINUTE);
    for (node, _) in away {
        assert!(!running(&world, node).contains_key(&group), "{node}");
    }
    for (node, directory) in away {
        start_with(&mut world, node, |disk| move_directory(disk, &moved(directory), directory));
    }
    world.run(Duration::from_secs(20));
    assert_eq!(away.map(|(node, _)| running(&world, node).get(&group).copied()), before.map(Some));
    let leader = world.replicas(key.partition).leader;
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "value");
}

/// The log of one data directory is away. The storage of the replica there stays until its successor votes, and then it goes.
#[test]
fn d3g_what_was_lost_stays_until_its_successor_votes() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(4, &json!({}));
    world.run(Duration::from_secs(2));
    let node = NodeId(2);
    let groups = (0..4).map(|partition| GroupId::new(table as u32, partition));
    let is_in = |world: &World, directory, name: &String| storage(world, node, directory).contains(name);
    let name_of = |world: &World, group: GroupId| format!("{group}-{:x}", running(world, node)[&group].0);
    let group = groups.into_iter().find(|group| is_in(&world, "/b", &name_of(&world, *group))).unwrap();
    let (name, before) = (name_of(&world, group), running(&world, node)[&group]);
    start_with(&mut world, node, |disk| move_directory(disk, "/b/log", "/log-away"));
    world.run_until(MINUTE, |world| running(world, node).get(&group).is_some_and(|new| *new != before));
    world.cut_off(node);
    assert!(is_in(&world, "/b", &name));
    world.run(MINUTE);
    assert!(is_in(&world, "/b", &name), "its successor has learnt nothing");
    start_with(&mut world, node, |_| ());
    assert!(is_in(&world, "/b", &name), "at a start too");
    world.cut.clear();
    world.run_until(MINUTE, |world| !is_in(world, "/b", &name));
    assert_ne!(running(&world, node)[&group], before);
}

/// Two nodes lose their data and the third creates a table before it hears of that: two of three voters are never made.
#[test]
fn d3g_a_table_that_is_created_while_nodes_lose_their_data_comes_into_being() {
    let mut world = World::new(5);
    for node in [NodeId(4), NodeId(5)] {
        world.cut_off(node);
        world.wipe(node);
    }
    let argument = json!({ "name": "t", "partition_count": 16, "replica_count": 3, "options": {} });
    let number = world.send_admin(NodeId(1), "create_table", &argument);
    world.run(Duration::from_millis(200));
    world.cut.clear();
    let created = world.wait_for_admin(number).unwrap();
    assert!(created["created"].is_u64(), "{created}");
    let table = created["created"].as_i64().unwrap() as i32;
    let key = Key::new(table, 16, "key");
    world.run(Duration::from_secs(2));
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
}

/// The logs of two data directories of one node are swapped: each names what lies in the other one, and its groups go there. Swapped once
/// more, they do so again.
#[test]
fn d3e_swapped_logs_of_one_node_lose_nothing() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table_of(1, 4, &json!({}));
    world.run(Duration::from_secs(2));
    let node = NodeId(2);
    let groups = running(&world, node).into_keys().filter(|group| *group != GroupId::META);
    let keys: Vec<Key> = groups.map(|group| key_in(group, 4)).collect();
    for key in &keys {
        world.write(key, node, "value");
    }
    let all = |world: &World| (running(world, node), storage(world, node, "/a"), storage(world, node, "/b"));
    let before = all(&world);
    assert!(table > 0 && !keys.is_empty() && !before.1.is_empty() && !before.2.is_empty(), "{before:?}");
    for _ in 0..3 {
        start_with(&mut world, node, |disk| {
            for (from, to) in [("/a/log", "/kept"), ("/b/log", "/a/log"), ("/kept", "/b/log")] {
                move_directory(disk, from, to);
            }
            for name in ["/a/log.mark", "/b/log.mark"] {
                drop(disk.remove_file(Path::new(name)));
            }
        });
        assert_eq!(all(&world), before);
        world.run(Duration::from_secs(5));
        for key in &keys {
            let (value, _) = world.get(key, node, &Ask::default()).unwrap();
            assert_eq!(value, "value");
            world.write(key, node, "value");
        }
    }
}

/// What changed while the first data directory was away is in the catalogue of another one.
#[test]
fn d3h_the_newest_catalogue_of_all_data_directories_counts() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let node = NodeId(2);
    start_with(&mut world, node, |disk| move_directory(disk, "/a", "/a-away"));
    world.run(Duration::from_secs(20));
    let table = world.create_table(2, &json!({}));
    world.cut_off(node);
    start_with(&mut world, node, |disk| move_directory(disk, "/a-away", "/a"));
    let disk = &world.machines[&node].disk;
    assert!(["/a", "/b"].iter().all(|directory| disk.exists(&Path::new(directory).join("catalogue.json"))));
    assert_eq!(world.map_of(node, true).app_id, table);
}

/// What is moved with a log.
#[derive(Clone, Copy, PartialEq)]
enum Moved {
    Log,
    /// And what is noted of it beside it.
    WithNotes,
    /// All there is in the data directory, the first time; then the log.
    Directory,
}

/// A log is away, another one is used in its place, and then the first again. When the other one is there once more, what was made
/// meanwhile does not begin anew: it has voted, in the first.
#[test]
fn d3g_a_log_that_was_used_before_the_last_one_is_not_taken_for_that() {
    for moved in [Moved::Log, Moved::WithNotes, Moved::Directory] {
        a_log_is_not_taken_for_the_last_one(moved);
    }
}

fn a_log_is_not_taken_for_the_last_one(moved: Moved) {
    let mut world = World::new(3);
    let node = NodeId(3);
    let swap_on = |disk: &SimDisk, out: &'static str, into: &'static str| {
        let is_log = |name: &String| name == "log" || moved == Moved::WithNotes && name.starts_with("log.");
        for (from, to) in [("/data", out), (into, "/data")] {
            disk.create_dir_all(Path::new(from)).unwrap();
            disk.create_dir_all(Path::new(to)).unwrap();
            for name in disk.list(Path::new(from)).unwrap().iter().filter(|name| is_log(name)) {
                disk.rename(&Path::new(from).join(name), &Path::new(to).join(name)).unwrap();
            }
        }
    };
    let swap = |world: &mut World, out: &'static str, into: &'static str| {
        start_with(world, node, |disk| swap_on(disk, out, into));
        world.run(Duration::from_secs(10));
    };
    if moved == Moved::Directory {
        start_with(&mut world, node, |disk| {
            move_directory(disk, "/data", "/other");
            disk.create_dir_all(Path::new("/data")).unwrap();
        });
        world.run(Duration::from_secs(10));
    } else {
        swap(&mut world, "/first", "/other");
        swap(&mut world, "/other", "/first");
    }
    let table = world.create_table_of(1, 4, &json!({}));
    world.run(Duration::from_secs(2));
    let group = (0..4).map(|partition| GroupId::new(table as u32, partition));
    let group = group.into_iter().find(|group| running(&world, node).contains_key(group)).unwrap();
    let key = key_in(group, 4);
    world.write(&key, node, "value");
    let voter = running(&world, node)[&group];
    if moved == Moved::Directory {
        // The node has forgotten that it had that one.
        let (config, disk) = kill(&mut world, node);
        swap_on(&disk, "/first", "/other");
        let refused = refused_start(&world, &config, &disk).to_string();
        assert!(refused.contains("which is no log of the node"), "{refused}");
        swap_on(&disk, "/other", "/first");
        start_killed(&mut world, config, disk);
    } else {
        swap(&mut world, "/first", "/other");
        assert!(!running(&world, node).contains_key(&group), "{:?}", running(&world, node));
        swap(&mut world, "/other", "/first");
    }
    assert_eq!(running(&world, node)[&group], voter);
    world.run_until(MINUTE, |world| world.get(&key, node, &Ask::default()).is_ok_and(|(value, _)| value == "value"));
}

/// A node is started once with a copy of a data directory in its place, and then with the directory again.
#[test]
fn d3j_a_directory_whose_copy_was_used_instead_ends_the_start() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    world.create_table(4, &json!({}));
    world.run(Duration::from_secs(5));
    let node = NodeId(3);
    let (mut config, disk) = kill(&mut world, node);
    disk.create_dir_all(Path::new("/c")).unwrap();
    restore(&disk, &files_of(&disk, Path::new("/b")), "/b", "/c");
    config.data[1] = "/c".into();
    start_killed(&mut world, config, disk);
    world.run(Duration::from_secs(5));
    let (mut config, disk) = kill(&mut world, node);
    config.data[1] = "/b".into();
    let refused = refused_start(&world, &config, &disk).to_string();
    assert!(refused.starts_with("/b is older than the node's other directories"), "{refused}");
    config.data[1] = "/c".into();
    start_killed(&mut world, config, disk);
    assert_eq!(running(&world, node).len(), 5, "with the copy it goes on");
}

/// Which log is used cannot be noted: nothing is written to it.
#[test]
fn d3j_a_log_that_cannot_be_noted_ends_the_start() {
    let mut world = World::new(3);
    let node = NodeId(3);
    let (config, disk) = kill(&mut world, node);
    move_directory(&disk, "/data/log", "/log-away");
    disk.fail_opens(Path::new("/data/log/id.tmp"), Some(ENOSPC));
    let error = refused_start(&world, &config, &disk);
    assert!(error.to_string().starts_with("cannot use data directory /data"), "{error}");
    disk.fail_opens(Path::new("/data/log/id.tmp"), None);
    disk.remove_dir_all(Path::new("/data/log")).unwrap();
    move_directory(&disk, "/log-away", "/data/log");
    start_killed(&mut world, config, disk);
    assert!(running(&world, node).contains_key(&GroupId::META), "as if nothing had been");
}

/// One directory has an old catalogue, and is there without its log while the other one is away.
#[test]
fn d3h_an_old_catalogue_removes_nothing_that_it_cannot_know() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let node = NodeId(3);
    start_with(&mut world, node, |disk| move_directory(disk, "/a", "/a-away"));
    world.run(Duration::from_secs(5));
    start_with(&mut world, node, |disk| move_directory(disk, "/a-away", "/a"));
    world.run(Duration::from_secs(20));
    let table = world.create_table_of(1, 16, &json!({}));
    world.run(Duration::from_secs(2));
    let before = storage(&world, node, "/b");
    let group = (0..16).map(|partition| GroupId::new(table as u32, partition));
    let mut here = group.filter(|group| before.iter().any(|name| name.starts_with(&format!("{group}-"))));
    let key = key_in(here.next().expect("one of them"), 16);
    world.write(&key, node, "value");
    start_with(&mut world, node, |disk| {
        move_directory(disk, "/a", "/a-away");
        move_directory(disk, "/b/log", "/b-log-away");
    });
    world.run(Duration::from_secs(20));
    start_with(&mut world, node, |disk| {
        move_directory(disk, "/a-away", "/a");
        disk.remove_dir_all(Path::new("/b/log")).unwrap();
        move_directory(disk, "/b-log-away", "/b/log");
    });
    world.run_until(MINUTE, |world| world.get(&key, node, &Ask::default()).is_ok_and(|(value, _)| value == "value"));
}

/// A directory fails, and what replaces its replica learns in the other one. At the next start both are there, and the newer one,
/// which may have begun to vote without knowing it, is dropped.
#[test]
fn d3g_a_replica_that_was_dropped_at_a_start_does_not_begin_anew() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(4, &json!({}));
    world.run(Duration::from_secs(5));
    let node = NodeId(3);
    let before = running(&world, node);
    let names = storage(&world, node, "/a");
    let groups = (0..4).map(|partition| GroupId::new(table as u32, partition));
    let mut here = groups.filter(|group| names.iter().any(|name| name.starts_with(&format!("{group}-"))));
    let group = here.next().expect("one of them");
    let life = |world: &World| world.machines[&node].node.greeting(NodeId(1)).life.incarnation;
    let first = life(&world);
    world.fail_log(node, LogId(0));
    world.run_until(MINUTE, |world| running(world, node).get(&group).is_some_and(|new| *new != before[&group]));
    let successor = running(&world, node)[&group];
    assert_eq!(life(&world), first);
    world.cut_off(node);
    start_with(&mut world, node, |_| ());
    assert_eq!(running(&world, node)[&group], before[&group]);
    assert_ne!(life(&world), first, "nobody makes {successor} again");
}

/// The first data directory takes no catalogue.
#[test]
fn d3h_a_catalogue_that_one_directory_takes_is_acted_on() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let disk = world.machines[&NodeId(3)].disk.clone();
    disk.fail_opens(Path::new("/a/catalogue.json.tmp"), Some(ENOSPC));
    let table = world.create_table(4, &json!({}));
    world.run(Duration::from_secs(2));
    assert!(running(&world, NodeId(3)).contains_key(&GroupId::new(table as u32, 0)));
}

/// A data directory is copied, and the copy used beside it: each replica stands in two logs.
#[test]
fn d3i_a_copied_data_directory_ends_the_start_and_removes_nothing() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    world.create_table(4, &json!({}));
    world.run(Duration::from_secs(5));
    let (mut config, disk) = kill(&mut world, NodeId(3));
    disk.create_dir_all(Path::new("/c")).unwrap();
    restore(&disk, &files_of(&disk, Path::new("/a")), "/a", "/c");
    config.data.push("/c".into());
    let before = ["/a/replicas", "/b/replicas", "/c/replicas"].map(|path| files_of(&disk, Path::new(path)));
    let refused = refused_start(&world, &config, &disk);
    let text = refused.to_string();
    assert!(matches!(refused, OpenError::Copied { .. }) && text.contains("/a") && text.contains("/c"), "{text}");
    let after = ["/a/replicas", "/b/replicas", "/c/replicas"].map(|path| files_of(&disk, Path::new(path)));
    assert_eq!(before, after);
    config.data.pop();
    start_killed(&mut world, config, disk);
    assert_eq!(running(&world, NodeId(3)).len(), 5);
}

/// One of two catalogues, or the only one, is on a part of the disk that cannot be read.
#[test]
fn d3h_a_catalogue_that_cannot_be_read_ends_no_start() {
    for directories in [&["/a", "/b"][..], &["/a"]] {
        let mut world =
            World::configured(3, |config| config.data = directories.iter().map(|path| (*path).into()).collect());
        let table = world.create_table(4, &json!({}));
        let key = key_in(GroupId::new(table as u32, 0), 4);
        let leader = world.replicas(key.partition).leader;
        world.write(&key, leader, "value");
        let node = NodeId(3);
        let before = running(&world, node);
        start_with(&mut world, node, |disk| disk.fail_opens(Path::new("/a/catalogue.json"), Some(EIO)));
        assert_eq!(running(&world, node), before);
        let disk = world.machines[&node].disk.clone();
        disk.fail_opens(Path::new("/a/catalogue.json"), None);
        world.run(Duration::from_secs(5));
        assert!(is_there(&mut world, &key));
        assert_eq!(running(&world, node), before);
    }
}
