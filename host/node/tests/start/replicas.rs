//! Which replicas go on after a start, and what happens to the others.

use crate::world::{self, Ask, Key, Machine, World, files_of, running};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_node::peer::{Frame, ReplicaReport, ReplicaState, Report};
use hedgerow_node::{Config, Event, Job, Node, OpenError};
use hedgerow_storage::{Engine, EngineError, Engines, MemoryEngines};
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub const TWO: NodeId = NodeId(2);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Engines that cannot open anything.
#[derive(Debug)]
struct Closed {
    disk: SimDisk,
    errno: i32,
}

impl Engines for Closed {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        let source = Box::new(io::Error::from_raw_os_error(self.errno));
        Err(EngineError::Open { dir: dir.to_path_buf(), source })
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        self.open(dir).map(drop)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }
}

/// Whether a node can start with that.
pub fn open(config: &Config, disk: &SimDisk, engines: Arc<dyn Engines>, world: &World) -> Result<(), OpenError> {
    Node::open(config.clone(), Arc::new(disk.clone()), engines, world.clock()).map(drop)
}

/// Ends the node's process. Gives what it was started with.
pub fn kill(world: &mut World, node: NodeId) -> (Config, SimDisk) {
    let machine = world.machines.remove(&node).unwrap();
    let (config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    (config, disk)
}

#[test]
fn d3_what_is_not_damage_ends_the_start_and_removes_nothing() {
    let (mut world, _) = world_with_a_row();
    let before = running(&world, TWO);
    let (config, disk) = kill(&mut world, TWO);
    let replicas = files_of(&disk, Path::new("/data/replicas"));
    // No space, no descriptors, a device that does not answer, no permission, and a read-only file system.
    for errno in [28, 24, 5, 13, 30] {
        let closed = Arc::new(Closed { disk: disk.clone(), errno });
        let error = open(&config, &disk, closed, &world).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("cannot be opened in /data/replicas/"), "{said}");
        assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        disk.kill_process();
        assert_eq!(files_of(&disk, Path::new("/data/replicas")), replicas);
    }
    for (set, unset) in [
        (SimDisk::set_full as fn(&SimDisk, bool), SimDisk::set_full as fn(&SimDisk, bool)),
        (SimDisk::set_read_only, SimDisk::set_read_only),
    ] {
        set(&disk, true);
        // A node may be able to start like that; what it must not do is take its replicas for lost.
        drop(open(&config, &disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world));
        unset(&disk, false);
        disk.kill_process();
        assert_eq!(files_of(&disk, Path::new("/data/replicas")), replicas);
    }
    world.machines.insert(TWO, world::start(config, disk, world.now));
    world.settle(TWO);
    assert_eq!(running(&world, TWO), before);
}

/// A directory that cannot be looked at is not one that is gone.
#[test]
fn d3_a_directory_that_cannot_be_listed_ends_the_start_and_removes_nothing() {
    let (mut world, _) = world_with_a_row();
    let before = running(&world, TWO);
    let (config, disk) = kill(&mut world, TWO);
    let replicas = files_of(&disk, Path::new("/data/replicas"));
    let directory = replicas.keys().find(|path| path.to_string_lossy().contains("/1.0-")).unwrap().parent().unwrap();
    for errno in [24, 5, 13] {
        disk.fail_opens(directory, Some(errno));
        let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
        let said = open(&config, &disk, engines, &world).unwrap_err().to_string();
        assert!(said.contains("cannot be opened in /data/replicas/"), "{said}");
        disk.fail_opens(directory, None);
        disk.kill_process();
        assert_eq!(files_of(&disk, Path::new("/data/replicas")), replicas);
    }
    world.machines.insert(TWO, world::start(config, disk, world.now));
    world.settle(TWO);
    assert_eq!(running(&world, TWO), before);
}

#[test]
fn d3_damage_is_still_a_loss_of_one_replica() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let before = running(&world, TWO);
    let mut machine = world.machines.remove(&TWO).unwrap();
    machine.config.seed += 1;
    machine.disk.kill_process();
    let files = files_of(&machine.disk, Path::new("/data/replicas"));
    let rows = files.keys().find(|path| path.to_string_lossy().contains("/1.0-")).unwrap();
    machine.disk.flip_byte(rows, 12).unwrap();
    let (config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    world.machines.insert(TWO, world::start(config, disk, world.now));
    world.settle(TWO);
    let group = GroupId::new(1, 0);
    assert!(!running(&world, TWO).contains_key(&group));
    assert_eq!(running(&world, TWO).len() + 1, before.len());
    world.run_until(MINUTE, |world| running(world, TWO).get(&group).is_some_and(|id| *id != before[&group]));
}

/// Copies the files below `from` to the same places below `to`, which is emptied first.
pub fn restore(disk: &SimDisk, files: &BTreeMap<PathBuf, Vec<u8>>, from: &str, to: &str) {
    disk.remove_dir_all(Path::new(to)).unwrap();
    for (path, content) in files {
        let path = Path::new(to).join(path.strip_prefix(from).unwrap());
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        disk.open(&path, OpenMode::Create).unwrap().write_at(0, content).unwrap();
    }
}

/// Three nodes that hold `value`, and its key.
fn world_with_a_row() -> (World, Key) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
    (world, key)
}

pub fn assert_has_row(world: &mut World, key: &Key) {
    let leader = world.replicas(key.partition).leader;
    assert_eq!(world.get(key, leader, &Ask::default()).unwrap().0, "value");
}

/// The log of a node is gone and everything else is there: it has forgotten what it voted and acknowledged.
fn a_log_is_gone(and_the_catalogue: bool) {
    let (mut world, _) = world_with_a_row();
    let before = running(&world, TWO);
    let machine = world.machines.remove(&TWO).unwrap();
    let (mut config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    disk.remove_dir_all(Path::new("/data/log")).unwrap();
    if and_the_catalogue {
        disk.remove_dir_all(Path::new("/data/replicas")).unwrap();
        disk.remove_file(Path::new("/data/catalogue.json")).unwrap();
    }
    config.seed += 1;
    world.machines.insert(TWO, world::start(config, disk, world.now));
    let is_reborn = |world: &World| running(world, TWO).iter().any(|(group, id)| before.get(group) == Some(id));
    assert!(!is_reborn(&world));
    world.run_until(MINUTE, |world| {
        assert!(!is_reborn(world), "a replica began anew under the id of one that had voted");
        running(world, TWO).len() == before.len()
    });
}

#[test]
fn d3a_a_replica_whose_log_is_gone_does_not_begin_anew() {
    a_log_is_gone(false);
    a_log_is_gone(true);
}

/// The incarnation that the node's file in `directory` says.
fn incarnation(disk: &SimDisk, directory: &str) -> u64 {
    let text = read_file(disk, &Path::new(directory).join("identity.json")).unwrap();
    let identity: serde_json::Value = serde_json::from_slice(&text).unwrap();
    identity["incarnation"].as_u64().unwrap()
}

/// Starts node 2, whose directories were `before`, with the directories `after` once `change` is done to its disk. What
/// it ran, and the world with it.
fn with_other_directories(
    before: &[&str],
    after: &[&str],
    change: impl Fn(&SimDisk),
) -> (BTreeMap<GroupId, ReplicaId>, World) {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let mut world = World::configured(3, |config| config.data = paths(before));
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
    let ran = running(&world, TWO);
    let machine = world.machines.remove(&TWO).unwrap();
    let (mut config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    change(&disk);
    config.seed += 1;
    config.data = paths(after);
    world.machines.insert(TWO, world::start(config, disk, world.now));
    (ran, world)
}

pub fn move_directory(disk: &SimDisk, from: &str, to: &str) {
    disk.rename(Path::new(from), Path::new(to)).unwrap();
}

fn remove_log(disk: &SimDisk, directory: &str) {
    disk.remove_dir_all(&Path::new(directory).join("log")).unwrap();
    drop(disk.remove_file(&Path::new(directory).join("log.mark")));
}

#[test]
fn d3a_a_directory_that_was_moved_without_its_log_does_not_begin_anew() {
    for (before, after) in [(&["/a"][..], &["/moved"][..]), (&["/a", "/b"], &["/b", "/moved"])] {
        let (ran, mut world) = with_other_directories(before, after, |disk| {
            move_directory(disk, "/a", "/moved");
            remove_log(disk, "/moved");
        });
        let disk = world.machines[&TWO].disk.clone();
        let kept = disk.list(Path::new("/b/replicas")).unwrap_or_default();
        let stayed = |group: &GroupId| {
            kept.iter().any(|name| name.starts_with(&format!("{}.{}-", group.table.0, group.partition)))
        };
        let lost: Vec<_> = ran.iter().filter(|(group, _)| !stayed(group)).collect();
        assert!(!lost.is_empty());
        let is_reborn = |world: &World| lost.iter().any(|(group, id)| running(world, TWO).get(*group) == Some(*id));
        world.run_until(MINUTE, |world| {
            assert!(!is_reborn(world), "a replica began anew under the id of one that had voted");
            running(world, TWO).len() == ran.len()
        });
    }
}

#[test]
fn d3a_a_directory_that_was_moved_with_its_log_goes_on() {
    for (before, after) in [(&["/a"][..], &["/moved"][..]), (&["/a", "/b"], &["/moved", "/b"])] {
        let known = std::cell::Cell::new(0);
        let (ran, world) = with_other_directories(before, after, |disk| {
            known.set(incarnation(disk, "/a"));
            move_directory(disk, "/a", "/moved");
        });
        assert_eq!(running(&world, TWO), ran);
        assert_eq!(incarnation(&world.machines[&TWO].disk, "/moved"), known.get());
    }
}

/// The directories that a node has are what changes, once; at the starts after it nothing is missed.
#[test]
fn d3a_a_directory_that_is_retired_or_new_is_no_lost_log() {
    for (before, after) in
        [(&["/a", "/b"][..], &["/a"][..]), (&["/a"], &["/a", "/new"]), (&["/a", "/b"], &["/a", "/new"])]
    {
        let (ran, mut world) =
            with_other_directories(before, after, |disk| disk.create_dir_all(Path::new("/new")).unwrap());
        let went_on = running(&world, TWO);
        assert!(!went_on.is_empty() && went_on.iter().all(|(group, id)| ran.get(group) == Some(id)));
        let known = incarnation(&world.machines[&TWO].disk, "/a");
        world.restart(TWO);
        assert_eq!(incarnation(&world.machines[&TWO].disk, "/a"), known);
        assert!(went_on.iter().all(|(group, id)| running(&world, TWO).get(group) == Some(id)));
    }
}

/// Ends all nodes; their configurations for the next start, and their disks.
fn stop_all(world: &mut World) -> Vec<(Config, SimDisk)> {
    let stopped = std::mem::take(&mut world.machines).into_values();
    let stopped: Vec<_> = stopped.map(|machine| (machine.config, machine.disk)).collect();
    let renew = |(config, disk): (Config, SimDisk)| {
        disk.kill_process();
        (Config { seed: config.seed + 1_000, ..config }, disk)
    };
    stopped.into_iter().map(renew).collect()
}

fn start_all(world: &mut World, nodes: &[(Config, SimDisk)]) {
    for (config, disk) in nodes {
        world.machines.insert(config.node, world::start(config.clone(), disk.clone(), world.now));
    }
}

/// What was in `/data/log` of `from` is in that of `to`.
fn give_log(from: &BTreeMap<PathBuf, Vec<u8>>, to: &SimDisk) {
    restore(to, from, "/data/log", "/data/log");
}

#[test]
fn d3c_a_log_of_another_node_ends_the_start_and_removes_nothing() {
    let (mut world, key) = world_with_a_row();
    let nodes = stop_all(&mut world);
    let logs: Vec<_> = nodes.iter().map(|(_, disk)| files_of(disk, Path::new("/data/log"))).collect();
    let replicas = |disk: &SimDisk| files_of(disk, Path::new("/data/replicas"));
    let (one, two) = (&nodes[0], &nodes[1]);
    give_log(&logs[0], &two.1);
    give_log(&logs[1], &one.1);
    for ((config, disk), owner) in [(one, "node 2, this is node 1"), (two, "node 1, this is node 2")] {
        let before = replicas(disk);
        let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
        let said = open(config, disk, engines, &world).unwrap_err().to_string();
        assert!(said.contains(&format!("the log in /data/log is of {owner}")), "{said}");
        disk.kill_process();
        assert_eq!(replicas(disk), before);
    }
    give_log(&logs[0], &one.1);
    give_log(&logs[1], &two.1);
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert_has_row(&mut world, &key);
}

/// A file system that holds the logs is not there at a start of all nodes, and is at the next.
#[test]
fn d3d_storage_whose_log_is_away_stays_until_it_is_replaced() {
    let (mut world, key) = world_with_a_row();
    let nodes = stop_all(&mut world);
    let (log, away) = (Path::new("/data/log"), Path::new("/data/away"));
    nodes.iter().for_each(|(_, disk)| disk.rename(log, away).unwrap());
    let names = |disk: &SimDisk| disk.list(Path::new("/data/replicas")).unwrap();
    let before: Vec<_> = nodes.iter().map(|(_, disk)| names(disk)).collect();
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert!(nodes.iter().zip(&before).all(|((_, disk), before)| names(disk) == *before));
    let nodes = stop_all(&mut world);
    for (_, disk) in &nodes {
        disk.remove_dir_all(log).unwrap();
        disk.rename(away, log).unwrap();
    }
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert_has_row(&mut world, &key);
    assert!(nodes.iter().zip(&before).all(|((_, disk), before)| names(disk) == *before));
}

/// Where the catalogue is away too nobody knows what is needed.
#[test]
fn d3d_storage_stays_where_neither_log_nor_catalogue_says_whose_it_is() {
    let (mut world, _) = world_with_a_row();
    let nodes = stop_all(&mut world);
    let (config, disk) = &nodes[1];
    let before = files_of(disk, Path::new("/data/replicas"));
    disk.remove_dir_all(Path::new("/data/log")).unwrap();
    disk.remove_file(Path::new("/data/catalogue.json")).unwrap();
    open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world).unwrap();
    disk.kill_process();
    assert_eq!(files_of(disk, Path::new("/data/replicas")), before);
}

#[test]
fn d3e_storage_of_another_group_ends_the_start_and_removes_nothing() {
    let (mut world, key) = world_with_a_row();
    let nodes = stop_all(&mut world);
    let (config, disk) = &nodes[1];
    let replicas = Path::new("/data/replicas");
    let names = disk.list(replicas).unwrap();
    let of = |group: &str| replicas.join(names.iter().find(|name| name.starts_with(group)).unwrap());
    let (one, other, aside) = (of("1.0-"), of("1.1-"), Path::new("/data/aside"));
    let swap = || {
        disk.rename(&one, aside).unwrap();
        disk.rename(&other, &one).unwrap();
        disk.rename(aside, &other).unwrap();
    };
    swap();
    let before = files_of(disk, replicas);
    let error = open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "it holds the storage of group 1.1");
    disk.kill_process();
    assert_eq!(files_of(disk, replicas), before);
    swap();
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert_has_row(&mut world, &key);
}

#[test]
fn d3f_a_catalogue_of_another_cluster_ends_the_start_and_removes_nothing() {
    let (mut world, key) = world_with_a_row();
    let mut other = World::configured(3, |config: &mut Config| config.seed += 100);
    other.create_table(2, &json!({}));
    let path = Path::new("/data/catalogue.json");
    let nodes = stop_all(&mut world);
    let (config, disk) = &nodes[1];
    let (own, foreign) = (read_file(disk, path).unwrap(), read_file(&other.machines[&TWO].disk, path).unwrap());
    let before = files_of(disk, Path::new("/data/replicas"));
    disk.open(path, OpenMode::Create).unwrap().write_at(0, &foreign).unwrap();
    let error = open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world).unwrap_err();
    assert!(error.to_string().starts_with("/data/catalogue.json is of cluster "), "{error}");
    disk.kill_process();
    assert_eq!(files_of(disk, Path::new("/data/replicas")), before);
    disk.open(path, OpenMode::Create).unwrap().write_at(0, &own).unwrap();
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert_has_row(&mut world, &key);
}

/// Two of three nodes have lost their storage of one group: all nodes are up, and nobody can lead it.
#[test]
fn n7_a_group_whose_majority_is_lost_has_no_leader() {
    let (mut world, _) = world_with_a_row();
    let without_leader = |world: &mut World| {
        let status = world.admin(NodeId(3), "status", &json!({})).unwrap();
        let leaders = &status["tables"][0]["partitions"];
        let named: Vec<bool> = (0..2).map(|partition| leaders[partition]["leader"].is_string()).collect();
        let count = |name: &str| status["summary"][name].as_u64().unwrap();
        (count("without_leader"), count("in_repair"), named)
    };
    assert_eq!(without_leader(&mut world), (0, 0, vec![true, true]));
    for node in [NodeId(1), TWO] {
        let machine = world.machines.remove(&node).unwrap();
        let (mut config, disk) = (machine.config.clone(), machine.disk.clone());
        drop(machine);
        disk.kill_process();
        let names = disk.list(Path::new("/data/replicas")).unwrap();
        let storage = names.iter().find(|name| name.starts_with("1.0-")).unwrap();
        disk.remove_dir_all(&Path::new("/data/replicas").join(storage)).unwrap();
        config.seed += 1;
        world.machines.insert(node, world::start(config, disk, world.now));
        world.settle(node);
    }
    let refused = world.admin(NodeId(3), "checksum", &json!({ "table": "t" })).unwrap_err();
    assert!([1, 2].iter().all(|node| refused.contains(&format!("partition 0 on node {node} is lost"))), "{refused}");
    for _ in 0..3 {
        world.run(MINUTE / 2);
        assert_eq!(without_leader(&mut world), (1, 1, vec![false, true]));
    }
}

/// A request between nodes is lost with their connection.
#[test]
fn n7_a_comparison_goes_on_after_a_lost_message() {
    let (mut world, _) = world_with_a_row();
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let argument = Text::from(json!({ "table": "t" }).to_string());
    let body = Body::HedgerowAdmin(AdminCommand { command: Text::from("checksum"), argument });
    for node in [NodeId(1), TWO, NodeId(3)] {
        world.cut_off(node);
        let number = world.send(node, &header, &body);
        world.run(Duration::from_millis(300));
        assert!(!world.has_answer(number), "nothing was lost");
        world.cut.clear();
        let Reply::HedgerowAdmin(answer) = world.wait(number).1.reply else { panic!("{node:?}: no answer") };
        let answer: Value = serde_json::from_str(answer.text.as_str()).unwrap();
        assert!(
            answer["partitions"].as_array().unwrap().iter().all(|it| it["replicas"].as_array().unwrap().len() == 3)
        );
    }
}

/// A leader says that it leads no more, and nobody else does: its group has no leader although all nodes are up.
#[test]
fn n7_a_leader_that_has_stepped_down_is_not_named() {
    let (mut world, key) = world_with_a_row();
    let group = GroupId::new(key.table as u32, key.partition as u32);
    let leader = world.replicas(key.partition).leader;
    let asked = *world.machines.keys().find(|node| **node != leader).unwrap();
    let replica = running(&world, leader)[&group];
    let term = |world: &mut World| {
        let status = world.admin(asked, "status", &json!({})).unwrap();
        let partition = &status["tables"][0]["partitions"][group.partition as usize];
        assert_eq!(partition["leader"].is_string(), status["summary"]["without_leader"] == 0, "{status}");
        partition["term"].as_u64().unwrap()
    };
    let led = term(&mut world);
    assert!(led > 0);
    let says = |world: &mut World, state: ReplicaState, at: u64| {
        let said = ReplicaReport {
            group: group.to_u64(),
            replica: replica.0,
            state: state as u32,
            term: at,
            ..ReplicaReport::default()
        };
        let report = Report { incarnation: 1, replicas: vec![said], ..Report::default() };
        world.handle(asked, Event::Peer(leader, Frame::Report(report)));
        term(world)
    };
    assert_eq!(says(&mut world, ReplicaState::Follower, led - 1), led, "that was before its election");
    assert_eq!(says(&mut world, ReplicaState::Follower, led), 0);
    assert_eq!(says(&mut world, ReplicaState::Leader, led), led);
    assert_eq!(says(&mut world, ReplicaState::Follower, led + 1), 0);
    assert_eq!(says(&mut world, ReplicaState::Starting, 0), 0);
    // It leads all the time, and its own next report says so.
    world.run(2 * SECOND);
    assert_eq!(term(&mut world), led);
}

/// One directory that refuses does not keep the others from knowing that the node has logs.
#[test]
fn d3a_the_beginning_of_a_log_is_noted_in_every_directory_that_takes_it() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    world.create_table(4, &json!({}));
    world.wipe(TWO);
    let disk = world.machines[&TWO].disk.clone();
    let noted = |directory: &str| {
        let text = read_file(&disk, &Path::new(directory).join("identity.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()
    };
    world.run_until(MINUTE, |_| noted("/a")["cluster"] != 0);
    disk.fail_opens(Path::new("/a/identity.json.tmp"), Some(28));
    world.run(MINUTE);
    let begun = |directory: &str| {
        let logs = noted(directory)["log_ids"].as_object().unwrap().clone();
        logs.values().filter(|log| log["begun"] == true).count()
    };
    assert_eq!((begun("/a"), begun("/b")), (0, 2), "one disk is full");
}

/// Every node ends, loses `files` of its data directory and starts again.
fn restart_all_without(world: &mut World, files: &[&str]) {
    let stopped: Vec<_> = std::mem::take(&mut world.machines).into_values().collect();
    let stopped: Vec<_> = stopped.into_iter().map(|machine| (machine.config, machine.disk)).collect();
    for (mut config, disk) in stopped {
        disk.kill_process();
        files.iter().for_each(|file| disk.remove_file(&Path::new("/data").join(file)).unwrap());
        config.seed += 1_000;
        world.machines.insert(config.node, world::start(config, disk, world.now));
    }
}

#[test]
fn d3b_nodes_without_identity_go_on_as_their_catalogue_says() {
    let (mut world, key) = world_with_a_row();
    let cluster = world.machines[&TWO].node.cluster();
    restart_all_without(&mut world, &["identity.json"]);
    world.run(MINUTE);
    assert_eq!(world.machines[&TWO].node.cluster(), cluster);
    assert_has_row(&mut world, &key);
}

#[test]
fn d3b_no_cluster_is_founded_over_replicas() {
    let (mut world, key) = world_with_a_row();
    let cluster = world.machines[&TWO].node.cluster();
    let path = Path::new("/data/catalogue.json");
    let catalogue = read_file(&world.machines[&TWO].disk, path).unwrap();
    restart_all_without(&mut world, &["identity.json", "catalogue.json"]);
    world.run(MINUTE);
    assert!(world.machines.values().all(|machine| machine.node.cluster() == 0));

    // One that is empty does not found one with them either.
    world.wipe(NodeId(1));
    world.run(MINUTE);
    assert!(world.machines.values().all(|machine| machine.node.cluster() == 0));

    world.machines[&TWO].disk.open(path, OpenMode::Create).unwrap().write_at(0, &catalogue).unwrap();
    world.restart(TWO);
    world.run(MINUTE);
    assert!(world.machines.values().all(|machine| machine.node.cluster() == cluster));
    assert_has_row(&mut world, &key);
}

/// What `damage` does to the log of a node that was stopped costs all of its replicas, whose log it was, and nothing else.
fn the_log_has_no_end(damage: impl Fn(&SimDisk, &Path, &BTreeMap<PathBuf, Vec<u8>>)) {
    let mut world = World::new(3);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let stop = |world: &mut World| {
        let machine = world.machines.remove(&TWO).unwrap();
        machine.disk.kill_process();
        (Config { seed: machine.config.seed + 1, ..machine.config.clone() }, machine.disk.clone())
    };
    let mut older = BTreeMap::new();
    // The node writes to another segment after each start.
    for value in ["one", "two"] {
        older = world::files_of(&world.machines[&TWO].disk, Path::new("/data/log"));
        let (config, disk) = stop(&mut world);
        world.machines.insert(TWO, world::start(config, disk, world.now));
        world.settle(TWO);
        world.run(Duration::from_secs(10));
        let leader = world.replicas(key.partition).leader;
        world.write(&key, leader, value);
        world.run(Duration::from_secs(3));
    }
    let before = running(&world, TWO);
    let (config, disk) = stop(&mut world);
    let segments = disk.list(Path::new("/data/log")).unwrap();
    let newest = segments.iter().rfind(|name| name.ends_with(".seg")).unwrap();
    damage(&disk, &Path::new("/data/log").join(newest), &older);
    world.machines.insert(TWO, world::start(config, disk, world.now));
    let is_reborn = |world: &World| running(world, TWO).iter().any(|(group, id)| before.get(group) == Some(id));
    assert!(!is_reborn(&world));
    world.run_until(MINUTE, |world| {
        assert!(!is_reborn(world), "a replica goes on that has forgotten what it acknowledged");
        running(world, TWO).len() == before.len()
    });
    let leader = world.replicas(key.partition).leader;
    assert_eq!(world.get(&key, leader, &Ask::default()).unwrap().0, "two");
}

#[test]
fn m3a_a_node_whose_newest_segment_is_gone_begins_anew() {
    the_log_has_no_end(|disk, newest, _| disk.remove_file(newest).unwrap());
}

#[test]
fn m3a_a_node_whose_log_ends_in_zeros_begins_anew() {
    the_log_has_no_end(|disk, newest, _| {
        let file = disk.open(newest, OpenMode::Write).unwrap();
        file.write_at(8192, &vec![0; file.len().unwrap() as usize - 8192]).unwrap();
    });
}

#[test]
fn m3b_a_node_whose_log_was_put_back_to_an_older_state_begins_anew() {
    the_log_has_no_end(|disk, _, older| {
        disk.remove_dir_all(Path::new("/data/log")).unwrap();
        disk.create_dir_all(Path::new("/data/log")).unwrap();
        for (path, content) in older {
            disk.open(path, OpenMode::Create).unwrap().write_at(0, content).unwrap();
        }
    });
}

#[test]
fn m3_a_damaged_catalogue_is_put_aside() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let before = running(&world, TWO);
    let (config, disk) = kill(&mut world, TWO);
    disk.flip_byte(Path::new("/data/catalogue.json"), 0).unwrap();
    world.machines.insert(TWO, world::start(config, disk.clone(), world.now));
    world.settle(TWO);
    assert_eq!(running(&world, TWO), before);
    world.run_until(MINUTE, |_| disk.exists(Path::new("/data/catalogue.json")));
    assert!(disk.exists(Path::new("/data/catalogue.json.damaged")));
}

/// A catalogue is text, and one wrong digit in it makes another one, by which replicas are removed.
#[test]
fn d3f_a_digit_of_the_catalogue_that_is_wrong_is_damage() {
    let (mut world, key) = world_with_a_row();
    let path = Path::new("/data/catalogue.json");
    let nodes = stop_all(&mut world);
    let (config, disk) = &nodes[1];
    let text = read_file(disk, path).unwrap();
    let aside = Path::new("/data/catalogue.json.damaged");
    for place in (0..text.len()).filter(|place| text[*place].is_ascii_digit()).step_by(23) {
        let mut wrong = text.clone();
        wrong[place] = if wrong[place] == b'9' { b'0' } else { wrong[place] + 1 };
        disk.open(path, OpenMode::Create).unwrap().write_at(0, &wrong).unwrap();
        open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), &world).unwrap();
        disk.kill_process();
        assert_eq!(read_file(disk, aside).ok(), Some(wrong), "{}", String::from_utf8_lossy(&text[..=place]));
        disk.remove_file(aside).unwrap();
    }
    start_all(&mut world, &nodes);
    world.run(MINUTE);
    assert_has_row(&mut world, &key);
}

#[test]
fn only_configured_nodes_with_replicas_of_the_group_can_say_who_leads() {
    let mut world = World::new(4);
    let table = world.create_table(2, &json!({}));
    let group = GroupId { table: hedgerow_types::TableId(table as u32), partition: 0 };
    world.run(Duration::from_secs(3));
    let places = world.replicas(0);
    let false_leader = running(&world, places.followers[0])[&group];
    let outside = (1..=4).map(NodeId).find(|node| !running(&world, *node).contains_key(&group)).unwrap();
    let now = world.clock();
    for (from, replica) in [(NodeId(9), false_leader), (outside, false_leader)] {
        let said = ReplicaReport {
            group: group.to_u64(),
            replica: replica.0,
            term: 1 << 40,
            leader: false_leader.0,
            ..ReplicaReport::default()
        };
        let report = Report { replicas: vec![said], ..Report::default() };
        world.machines.get_mut(&NodeId(1)).unwrap().node.handle(Event::Peer(from, Frame::Report(report)), now);
    }
    assert_eq!(world.replicas(0).leader, places.leader);
}

/// What is received goes on after a restart; what nobody receives any more takes no room.
#[test]
fn d5_what_was_received_for_a_replica_that_is_gone_is_removed_at_the_start() {
    let (mut world, _) = world_with_a_row();
    let (group, replica) = running(&world, TWO).into_iter().find(|(group, _)| *group != GroupId::META).unwrap();
    let kept = format!("{}.{}-{:x}-5", group.table.0, group.partition, replica.0);
    let disk = world.machines[&TWO].disk.clone();
    for name in [kept.as_str(), "9.0-20003-5", "1.0-ffff0002-6"] {
        let directory = Path::new("/data/incoming").join(name);
        disk.create_dir_all(&directory).unwrap();
        disk.open(&directory.join("rows"), OpenMode::Create).unwrap().write_at(0, b"rows").unwrap();
    }
    world.restart(TWO);
    assert_eq!(disk.list(Path::new("/data/incoming")).unwrap(), [kept]);
}

/// A node with many replicas has job threads left for what serves.
#[test]
fn n2_tables_of_results_are_read_two_at_a_time_after_a_start() {
    let mut world = World::new(3);
    world.create_table(16, &json!({}));
    let node = NodeId(1);
    let Machine { config, disk, node: stopped, .. } = world.machines.remove(&node).unwrap();
    drop(stopped);
    disk.kill_process();
    let engines = Arc::new(hedgerow_storage::MemoryEngines::new(Arc::new(disk.clone())));
    let mut machine = world::start_with(config, disk, engines, world.clock());
    let is_load: fn(&Job) -> bool = |job| matches!(job, Job::LoadSessions { .. });
    machine.holds = is_load;
    world.machines.insert(node, machine);
    world.settle(node);
    let mut read = 0;
    while !world.machines[&node].held.is_empty() {
        assert!(world.machines[&node].held.len() <= 2, "{:?}", world.machines[&node].held);
        let done = world.run_held(node);
        read += done.len();
        world.machines.get_mut(&node).unwrap().holds = is_load;
        world.take_done(node, done);
        world.settle(node);
    }
    assert_eq!(read, 17, "those of the table and of the metadata");
    let mut replicas = world.machines[&node].node.replicas_for_inspection();
    assert!(replicas.all(|replica| replica.storage.is_some_and(hedgerow_storage::Partition::has_sessions)));
}
