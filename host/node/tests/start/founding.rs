//! A cluster that is founded while its network and its logs are slow, or whose founder is killed meanwhile.

use crate::replicas::kill;
use crate::world::{self, MS, World};
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_types::NodeId;
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// By then everything is answered, and every group has a leader.
const PATIENCE: Duration = Duration::from_secs(15);
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
/// How long tables are asked for, a new one every few milliseconds.
const ASKED_FOR: Duration = Duration::from_millis(1_000);

/// Asks for the table `name`; the request's number.
fn ask_for(world: &mut World, name: &str) -> i32 {
    let argument = json!({ "name": name, "partition_count": 2, "replica_count": 1, "options": {} });
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let body = AdminCommand { command: Text::from("create_table"), argument: Text::from(argument.to_string()) };
    world.send(NodeId(1), &header, &Body::HedgerowAdmin(body))
}

/// Founds a cluster in which each message takes `delay` and each write to a log `log_takes`, and asks it for tables from the
/// first moment on. Those that it said to have created are there after a restart.
fn found(delay: Duration, log_takes: Duration) {
    let mut world = World::new(3);
    NODES.into_iter().for_each(|node| world.wipe(node));
    world.delay = delay;
    world.machines.values_mut().for_each(|machine| machine.log_takes = log_takes);
    let mut asked = Vec::new();
    let end = world.now + ASKED_FOR;
    while world.now < end {
        let name = format!("table{}", asked.len());
        asked.push((ask_for(&mut world, &name), name));
        world.run(10 * MS);
    }
    world.run(PATIENCE);
    let is_created = |(number, _): &(i32, String)| {
        world.answer(*number).is_some_and(|(_, frame)| matches!(frame.reply, Reply::HedgerowAdmin(_)))
    };
    asked.retain(is_created);
    assert!(!asked.is_empty(), "no table was created, messages took {delay:?} and logs {log_takes:?}");
    NODES.into_iter().for_each(|node| world.restart(node));
    world.run(PATIENCE);
    for (_, name) in asked {
        let shown = world.admin(NodeId(1), "describe", &json!({ "table": name }));
        assert!(shown.is_ok(), "{name} is lost: {shown:?}, messages took {delay:?} and logs {log_takes:?}");
    }
}

#[test]
fn d10_tables_that_are_created_while_a_slow_cluster_is_founded_are_kept() {
    for delay in [1, 25] {
        for log_takes in [5, 60] {
            found(delay * MS, log_takes * MS);
        }
    }
}

/// The node is killed when the first segment of its log has its name, and holds no batch yet.
#[test]
fn d3k_a_founder_that_ends_before_its_first_batch_founds_the_cluster_at_the_next_start() {
    let mut world = World::new(1);
    let node = NODES[0];
    world.wipe(node);
    let disk = world.machines[&node].disk.clone();
    let (log, identity) = (Path::new("/data/log"), Path::new("/data/identity.json"));
    let segment = |disk: &dyn Disk| disk.list(log).unwrap().into_iter().find(|name| name.ends_with(".seg"));
    let mut before = read_file(&disk, identity).unwrap();
    while segment(&disk).is_none() {
        before = read_file(&disk, identity).unwrap();
        world.run(MS / 10);
    }
    let (mut config, disk) = kill(&mut world, node);
    let path = log.join(segment(&disk).unwrap());
    let bytes = read_file(&disk, &path).unwrap();
    let batch = bytes.windows(4).position(|it| it == b"BTCH").unwrap();
    disk.open(&path, OpenMode::Write).unwrap().write_at(batch as u64, &vec![0; bytes.len() - batch]).unwrap();
    disk.open(identity, OpenMode::Create).unwrap().write_at(0, &before).unwrap();
    for mark in disk.list(Path::new("/data")).unwrap().iter().filter(|name| name.ends_with(".mark")) {
        disk.remove_file(&Path::new("/data").join(mark)).unwrap();
    }
    config.seed += 1;
    world.machines.insert(node, world::start(config, disk, world.now));
    world.run(Duration::from_secs(5));
    let table = json!({ "name": "t", "partition_count": 2, "replica_count": 1, "options": {} });
    world.admin(node, "create_table", &table).unwrap();
}
