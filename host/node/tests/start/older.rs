//! Two replicas of one group on one node: one that was replaced, or was to be, and its directory is there again.

use crate::failing::key_in;
use crate::replicas::{TWO, assert_has_row, kill, move_directory, restore};
use crate::world::{self, Ask, Key, World, files_of, running};
use hedgerow_env::Disk;
use hedgerow_types::{GroupId, NodeId};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The other directory comes back as it was before its replica was replaced. `order` is that of the directories then.
fn a_replaced_replica_comes_back(order: [&str; 2]) {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(2, &json!({}));
    let key = Key::new(table, 2, "key");
    let group = GroupId::META;
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "value");
    let old = running(&world, TWO)[&group];

    let machine = world.machines.remove(&TWO).unwrap();
    let (mut config, disk) = (machine.config.clone(), machine.disk.clone());
    drop(machine);
    disk.kill_process();
    let stale = files_of(&disk, Path::new("/a"));
    assert!(stale.keys().any(|path| path.to_string_lossy().contains("/replicas/0.0-")), "{:?}", stale.keys());
    restore(&disk, &BTreeMap::new(), "/a", "/a");
    disk.create_dir_all(Path::new("/a")).unwrap();
    config.seed += 1;
    world.machines.insert(TWO, world::start(config.clone(), disk.clone(), world.now));
    world.settle(TWO);
    world.run_until(MINUTE, |world| running(world, TWO).get(&group).is_some_and(|new| *new != old));
    world.run(Duration::from_secs(10));
    let new = running(&world, TWO)[&group];

    world.machines.remove(&TWO).unwrap();
    disk.kill_process();
    restore(&disk, &stale, "/a", "/b");
    config.data = order.iter().map(PathBuf::from).collect();
    config.seed += 1;
    world.machines.insert(TWO, world::start(config.clone(), disk.clone(), world.now));
    world.settle(TWO);
    assert_eq!(running(&world, TWO)[&group], new);
    assert!(!disk.list(Path::new("/b/replicas")).unwrap().iter().any(|name| name.starts_with("0.0-")));

    // The log has forgotten it too.
    world.machines.remove(&TWO).unwrap();
    disk.kill_process();
    let log = hedgerow_wal::Log::open(Arc::new(disk.clone()), Path::new("/b/log"), config.wal).unwrap();
    assert!(log.1.iter().all(|found| found.group != group), "{:?}", log.1);
    drop(log);
    disk.kill_process();
    config.seed += 1;
    world.machines.insert(TWO, world::start(config, disk, world.now));
    world.settle(TWO);
    world.run(Duration::from_secs(10));
    assert_has_row(&mut world, &key);
}

#[test]
fn d5_a_replaced_replica_that_comes_back_on_another_directory_is_not_taken() {
    a_replaced_replica_comes_back(["/a", "/b"]);
    a_replaced_replica_comes_back(["/b", "/a"]);
}

/// A directory is away, and its replica is to be replaced by one in the other directory. Before that one has learnt anything it is
/// away and the first is back, so that the replacement is withdrawn: the first votes and acknowledges. When both are there, it
/// is the newer one that goes.
#[test]
fn d5_what_was_to_replace_a_replica_that_came_back_does_not_win_over_it() {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    let table = world.create_table(4, &json!({}));
    world.run(Duration::from_secs(2));
    let disk = world.machines[&TWO].disk.clone();
    let has = |directory: &str, group: GroupId| {
        let names = disk.list(&Path::new(directory).join("replicas")).unwrap_or_default();
        names.iter().any(|name| name.starts_with(&format!("{group}-")))
    };
    let (first, second) = if has("/a", GroupId::META) { ("/b", "/a") } else { ("/a", "/b") };
    let groups = (0..4).map(|partition| GroupId::new(table as u32, partition));
    let group = groups.into_iter().find(|group| has(first, *group)).unwrap();
    let key = key_in(group, 4);
    let old = running(&world, TWO)[&group];
    let start_without = |world: &mut World, there: Option<&str>, away: Option<&str>| {
        let (mut config, disk) = kill(world, TWO);
        config.seed += 1;
        if let Some(directory) = there {
            move_directory(&disk, &format!("{directory}-away"), directory);
        }
        if let Some(directory) = away {
            move_directory(&disk, directory, &format!("{directory}-away"));
        }
        world.machines.insert(TWO, world::start(config, disk, world.now));
        world.settle(TWO);
    };

    start_without(&mut world, None, Some(first));
    world.run_until(MINUTE, |world| running(world, TWO).get(&group).is_some_and(|new| *new != old));
    start_without(&mut world, Some(first), Some(second));
    assert_eq!(running(&world, TWO)[&group], old);
    world.run(Duration::from_secs(15));
    world.cut_off(NodeId(3));
    world.run(Duration::from_secs(5));
    let leader = world.replicas(key.partition).leader;
    world.write(&key, leader, "acknowledged");
    start_without(&mut world, Some(second), None);
    assert_eq!(running(&world, TWO)[&group], old);
    // Only this copy is left.
    world.cut.clear();
    world.cut_off(NodeId(1));
    let mut value = None;
    for _ in 0..60 {
        world.run(Duration::from_secs(1));
        value = value.or(world.get(&key, TWO, &Ask::default()).ok().map(|(value, _)| value));
    }
    assert_eq!(value.as_deref(), Some("acknowledged"));
}
