//! What takes long beside the thread that serves: catalogues that are written, words of how all stands, directories that are put away. Nobody else
//! waits for it.

use crate::changes::{leader, others};
use crate::failing::key_in;
use crate::world::{Ask, MS, World};
use hedgerow_env::Disk;
use hedgerow_node::{ConnectionId, Event, Job};
use hedgerow_types::{GroupId, NodeId, ReadLevel};
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::path::Path;

fn is_save(job: &Job) -> bool {
    matches!(job, Job::SaveCatalogue { .. })
}

fn is_errand(job: &Job) -> bool {
    matches!(job, Job::Errands { .. })
}

fn is_tell(job: &Job) -> bool {
    matches!(job, Job::Tell { .. })
}

fn noted(text: &str) -> Value {
    json!({ "name": "t", "options": { "business.info": text } })
}

fn held(world: &World, node: NodeId) -> usize {
    world.machines[&node].held.len()
}

/// A world with a table, the leader of its metadata, and another node, at which catalogues are not written.
fn world_with_slow_follower() -> (World, NodeId, NodeId) {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let leader = leader(&mut world);
    let slow = others(leader)[0];
    world.machines.get_mut(&slow).unwrap().holds = is_save;
    (world, leader, slow)
}

/// Runs what is held, and goes on holding it.
fn run_held(world: &mut World, node: NodeId, holds: fn(&Job) -> bool) {
    let done = world.run_held(node);
    world.machines.get_mut(&node).unwrap().holds = holds;
    world.take_done(node, done);
    world.run(100 * MS);
}

/// The metadata's leader writes a catalogue for long. Rows are written and read there meanwhile, what is changed is told once the leader acts on it
/// itself, and the next changes go on together.
#[test]
fn n4r_a_catalogue_that_waits_for_its_disk_holds_up_no_request() {
    let mut world = World::new(3);
    let table = world.create_table(8, &json!({}));
    let leader = leader(&mut world);
    world.machines.get_mut(&leader).unwrap().holds = is_save;
    let first = world.send_admin(leader, "set_options", &noted("first"));
    world.run(100 * MS);
    let later: Vec<i32> = ["second", "third"].map(|it| world.send_admin(leader, "set_options", &noted(it))).into();
    for partition in 0..8 {
        let key = key_in(GroupId::new(table as u32, partition), 8);
        let to = world.replicas(key.partition).leader;
        world.write(&key, to, "value");
        world.run(100 * MS);
        assert_eq!(world.get(&key, leader, &Ask::anywhere(ReadLevel::Eventual)).unwrap().0, "value");
    }
    world.run(200 * MS);
    assert_eq!(held(&world, leader), 1, "one is written at a time");
    assert!(!world.has_answer(first) && later.iter().all(|it| !world.has_answer(*it)));
    run_held(&mut world, leader, is_save);
    assert!(world.has_answer(first), "it is told with the leader's own copy there");
    let table = world.admin(leader, "describe", &json!({ "table": "t" })).unwrap();
    assert_eq!((&table["options"]["business.info"], held(&world, leader)), (&json!("first"), 1));
    run_held(&mut world, leader, is_save);
    assert!(later.iter().all(|it| world.has_answer(*it)), "both were in one");
    assert_eq!(held(&world, leader), 0);
}

/// A follower's disk is slow while the catalogue changes: it takes up the newest one and leaves out those between.
#[test]
fn n4r_a_node_that_writes_a_catalogue_takes_up_the_newest_next() {
    let (mut world, leader, slow) = world_with_slow_follower();
    for text in ["first", "second", "third", "fourth"] {
        world.admin(leader, "set_options", &noted(text)).unwrap();
        world.run(2_000 * MS);
    }
    let info = |world: &mut World| {
        let table = world.admin(slow, "describe", &json!({ "table": "t" })).unwrap();
        table["options"]["business.info"].clone()
    };
    assert_eq!((info(&mut world), held(&world, slow)), (Value::Null, 1));
    run_held(&mut world, slow, is_save);
    assert_eq!((info(&mut world), held(&world, slow)), (json!("first"), 1));
    run_held(&mut world, slow, is_save);
    assert_eq!((info(&mut world), held(&world, slow)), (json!("fourth"), 0));
}

/// A follower was asked for a change, which the leader has made: it is told once the follower acts on it too, since whoever is told asks there.
#[test]
fn n4r_a_node_that_passes_a_change_on_tells_of_it_once_it_acts_on_it() {
    let (mut world, leader, other) = world_with_slow_follower();
    let asked = world.send_admin(other, "set_options", &noted("new"));
    world.run(1_000 * MS);
    let table = world.admin(leader, "describe", &json!({ "table": "t" })).unwrap();
    assert_eq!(table["options"]["business.info"], json!("new"), "it is made");
    assert!(!world.has_answer(asked));
    run_held(&mut world, other, is_save);
    assert!(world.has_answer(asked));
    let table = world.admin(other, "describe", &json!({ "table": "t" })).unwrap();
    assert_eq!(table["options"]["business.info"], json!("new"));
    // Nor is it waited for without an end.
    let asked = world.send_admin(other, "set_options", &noted("newer"));
    world.run(4_000 * MS);
    assert!(world.has_answer(asked) && held(&world, other) == 1);
}

/// The disk of the metadata's leader does not answer any more: changes are told all the same, and another node leads the metadata.
#[test]
fn n4r_a_leader_that_cannot_write_the_catalogue_leaves_the_metadata_to_another_node() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let first = leader(&mut world);
    world.machines.get_mut(&first).unwrap().holds = is_save;
    let asked = world.send_admin(first, "set_options", &noted("new"));
    world.run(10_000 * MS);
    assert!(world.has_answer(asked));
    let other = others(first)[0];
    let status = world.admin(other, "status", &json!({})).unwrap();
    let address = status["metadata"]["leader"].as_str().unwrap();
    assert_ne!(address, world.machines[&first].config.peers[&first]);
    world.admin(other, "set_options", &noted("newer")).unwrap();
}

/// A job that was under way when the node stopped had no effect; what it wrote is found by the next start.
#[test]
fn n4r_a_catalogue_that_was_written_and_not_acted_on_is_there_after_a_restart() {
    let (mut world, leader, slow) = world_with_slow_follower();
    world.admin(leader, "set_options", &noted("new")).unwrap();
    world.run(500 * MS);
    drop(world.run_held(slow));
    world.cut_off(slow);
    world.restart(slow);
    let table = world.admin(slow, "describe", &json!({ "table": "t" })).unwrap();
    assert_eq!(table["options"]["business.info"], json!("new"));
}

/// Asks for the state, on a connection of its own or another one's.
fn ask(world: &mut World, connection: u64) -> i32 {
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let command = AdminCommand { command: Text::from("status"), argument: Text::from("{}") };
    world.put_on(ConnectionId(1_000 + connection), NODE, &header, &Body::HedgerowAdmin(command))
}

const NODE: NodeId = NodeId(1);

/// Many ask for the state of a large cluster while it is written down: each is told, a few at once, by one job at a time; beyond a limit they are
/// refused, and other commands are answered.
#[test]
fn n4s_who_asks_for_the_state_waits_for_a_job_and_holds_up_nobody() {
    let mut world = World::new(1);
    world.create_table_of(1, 4, &json!({}));
    world.machines.get_mut(&NODE).unwrap().holds = is_tell;
    let asked: Vec<i32> = (0..600).map(|number| ask(&mut world, number)).collect();
    world.settle(NODE);
    assert!(world.admin(NODE, "whoami", &json!({})).is_ok());
    assert_eq!(held(&world, NODE), 1);
    let refused: Vec<i32> = asked.iter().copied().filter(|it| world.has_answer(*it)).collect();
    assert_eq!(refused.len(), 600 - 512 - 1, "one is written down, and 512 wait");
    assert!(matches!(world.answer(refused[0]).unwrap().1.reply, Reply::Failed(_)));
    let mut rounds = 0;
    while held(&world, NODE) > 0 {
        let before = asked.iter().filter(|it| world.has_answer(**it)).count();
        run_held(&mut world, NODE, is_tell);
        let told = asked.iter().filter(|it| world.has_answer(**it)).count() - before;
        assert!((1..=8).contains(&told), "{told}");
        rounds += 1;
    }
    assert_eq!(rounds, 1 + 512_usize.div_ceil(8));
    let last = world.wait_for_admin(asked[0]).unwrap();
    assert_eq!(last["summary"]["partitions"], json!(5));
    assert_eq!(last["tables"][0]["partitions"].as_array().unwrap().len(), 4);
}

/// One connection asks again and again, and closes; a table is dropped while somebody waits for its description.
#[test]
fn n4s_one_connection_has_few_places_and_leaves_them_when_it_closes() {
    let mut world = World::new(1);
    world.create_table_of(1, 2, &json!({}));
    world.machines.get_mut(&NODE).unwrap().holds = is_tell;
    let asked: Vec<i32> = (0..20).map(|_| ask(&mut world, 0)).collect();
    world.settle(NODE);
    assert_eq!(asked.iter().filter(|it| world.has_answer(**it)).count(), 20 - 1 - 8);
    let described = world.send_admin(NODE, "describe", &json!({ "table": "t" }));
    world.handle(NODE, Event::ClientClosed(ConnectionId(1_000)));
    world.admin(NODE, "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    run_held(&mut world, NODE, is_tell);
    assert_eq!(held(&world, NODE), 0, "nobody waits");
    let refused = world.wait_for_admin(described).unwrap_err();
    assert!(
        refused.contains("NoTable") || refused.contains("AppNotExist") || refused.contains("ObjectNotFound"),
        "{refused}"
    );
}

/// A disk does not answer while a table is dropped there: other tables are served, the next ones are made, and what is to be put away waits for one
/// job. Once it answers nothing is left.
#[test]
fn n4t_directories_are_put_away_by_a_job_and_nobody_waits_for_it() {
    let mut world = World::new(1);
    let kept = world.create_table_of(1, 2, &json!({}));
    let dropped = json!({ "name": "dropped", "partition_count": 128, "replica_count": 1 });
    world.admin(NODE, "create_table", &dropped).unwrap();
    world.run(2_000 * MS);
    let there = |world: &World| world.machines[&NODE].disk.list(Path::new("/data/replicas")).unwrap().len();
    assert_eq!(there(&world), 1 + 2 + 128);
    world.machines.get_mut(&NODE).unwrap().holds = is_errand;
    world.admin(NODE, "drop_table", &json!({ "name": "dropped", "reserve_seconds": 0 })).unwrap();
    world.run(1_000 * MS);
    assert_eq!((held(&world, NODE), there(&world)), (1, 131), "one job at a time, and nothing goes beside it");
    let key = key_in(GroupId::new(kept as u32, 1), 2);
    world.write(&key, NODE, "value");
    world.admin(NODE, "create_table", &json!({ "name": "next", "partition_count": 2, "replica_count": 1 })).unwrap();
    let mut rounds = 0;
    while held(&world, NODE) > 0 {
        run_held(&mut world, NODE, is_errand);
        rounds += 1;
    }
    assert!((3..=4).contains(&rounds), "{rounds}: so many are not put away in one turn");
    world.run(1_000 * MS);
    assert_eq!(there(&world), 1 + 2 + 2);
    let trash = world.machines[&NODE].disk.list(Path::new("/data/trash")).unwrap();
    assert!(trash.is_empty(), "{trash:?}");
}
