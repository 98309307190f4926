//! What changes of the catalogue answer while their leader is cut off, hands over, or is asked for more than it can pass on.

use crate::world::{MS, Meddler, World};
use bytes::BytesMut;
use hedgerow_node::Job;
use hedgerow_types::NodeId;
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

pub fn ask(world: &mut World, to: NodeId, command: &str, argument: &Value) -> i32 {
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let body = AdminCommand { command: Text::from(command), argument: Text::from(argument.to_string()) };
    world.send(to, &header, &Body::HedgerowAdmin(body))
}

/// Who leads the metadata, by the word of all.
pub fn leader(world: &mut World) -> NodeId {
    let status = world.admin(NodeId(1), "status", &json!({})).unwrap();
    let address = status["metadata"]["leader"].as_str().unwrap().to_owned();
    NODES.into_iter().find(|node| world.machines[node].config.peers[node] == address).unwrap()
}

pub fn others(leader: NodeId) -> Vec<NodeId> {
    NODES.into_iter().filter(|node| *node != leader).collect()
}

fn creation(name: &str, partition_count: u32) -> Value {
    json!({ "name": name, "partition_count": partition_count, "replica_count": 3, "options": {} })
}

fn is_there(world: &mut World, name: &str) -> bool {
    world.admin(NodeId(1), "describe", &json!({ "table": name })).is_ok()
}

pub fn is_acknowledged(world: &mut World, number: i32) -> bool {
    world.answer(number).is_some_and(|(_, frame)| matches!(frame.reply, Reply::HedgerowAdmin(_)))
}

/// Calls that were passed on are on their way for long. Meanwhile the table is dropped, and another one gets its name.
#[test]
fn d15_a_late_call_does_not_reach_a_later_table_of_the_name() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let leader = leader(&mut world);
    let other = others(leader)[0];
    world.late.insert(other, 2_000 * MS);
    let calls = [
        ("drop_table", json!({ "name": "t", "reserve_seconds": 0 })),
        ("set_options", json!({ "name": "t", "options": { "business.info": "old" } })),
        ("delete_options", json!({ "name": "t", "keys": ["business.info"] })),
        ("clear_options", json!({ "name": "t", "prefix": "business" })),
        ("prefer_leader", json!({ "table": "t", "partition": 0, "node": 2 })),
    ];
    let late = calls.map(|(command, argument)| ask(&mut world, other, command, &argument));
    world.run(100 * MS);
    world.admin(leader, "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    let mut creation = creation("t", 2);
    creation["options"] = json!({ "business.info": "new" });
    let created = world.admin(leader, "create_table", &creation).unwrap();
    world.run(4_000 * MS);
    world.late.clear();
    let table = world.admin(leader, "describe", &json!({ "table": "t" })).unwrap();
    assert_eq!((&table["id"], &table["options"]["business.info"]), (&created["created"], &json!("new")));
    // It is said in a way that no client takes for "ask again": it would ask by the name.
    for number in late {
        let (_, answer) = world.answer(number).unwrap();
        let said = ErrorName::InvalidParameters;
        assert!(matches!(&answer.reply, Reply::Failed(failure) if failure.name == said), "{answer:?}");
    }
    // A node that knows the newer one passes on what is meant for it.
    world.admin(other, "set_options", &json!({ "name": "t", "options": { "business.info": "newer" } })).unwrap();
}

/// What is passed on gets the number of its table written in, which an array has no place for.
#[test]
fn n17_an_argument_that_is_no_object_is_refused_by_every_node() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let arguments = [json!(["t"]), json!(["t", null, 0, 2]), json!("t"), json!(null)];
    for node in 1..=3 {
        for command in [
            "drop_table",
            "set_options",
            "delete_options",
            "clear_options",
            "prefer_leader",
            "create_table",
            "recall_table",
        ] {
            for argument in &arguments {
                let refusal = world.admin(NodeId(node), command, argument).unwrap_err();
                assert!(format!("{refusal:?}").contains("JSON object"), "{command} {argument}: {refusal:?}");
            }
        }
    }
}

/// What is refused is quoted: no more than its beginning, since answers to changes are kept at their leader.
#[test]
fn n4l_a_refusal_quotes_no_more_than_a_beginning() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let long = "\u{7f}".repeat(200_000);
    let calls = [
        ("set_options", json!({ "name": "t", "options": { long.as_str(): "a" } })),
        ("set_options", json!({ "name": "t", "options": { "read_level": long } })),
        ("delete_options", json!({ "name": "t", "keys": [long] })),
        ("recall_table", json!({ "id": 99, "name": long })),
    ];
    for node in NODES {
        for (command, argument) in &calls {
            let refusal = format!("{:?}", world.admin(node, command, argument).unwrap_err());
            assert!(refusal.len() < 1_500, "{command} at {node}: {} bytes", refusal.len());
        }
    }
    // Nobody has so many options: it is refused before they are read.
    let many: String = (0..30_000).map(|number| format!("\"a{number}\":\"\",")).collect();
    let refusal = world.admin(NODES[0], "set_options", &json!({ "name": "t", "options": many })).unwrap_err();
    assert!(format!("{refusal:?}").contains("262144 are allowed"), "{refusal:?}");
}

/// A table is recalled at the next leader; the one before it, which is cut off and does not know, has nothing to drop.
#[test]
fn d11_a_deposed_leader_does_not_say_that_there_is_nothing_to_change() {
    let mut world = World::new(3);
    let id = world.create_table(2, &json!({}));
    let old = leader(&mut world);
    world.admin(old, "drop_table", &json!({ "name": "t" })).unwrap();
    world.run(2_000 * MS);
    world.cut_off(old);
    let (mut recalls, mut is_recalled, mut told) = (Vec::new(), false, 0);
    for _ in 0..400 {
        if is_recalled {
            let drop = ask(&mut world, old, "drop_table", &json!({ "name": "t", "if_exists": true }));
            world.run(5 * MS);
            told += 1;
            assert!(!is_acknowledged(&mut world, drop), "what the next leader recalled is dropped by word only");
        } else {
            recalls.extend(
                others(old).into_iter().map(|node| ask(&mut world, node, "recall_table", &json!({ "id": id }))),
            );
            world.run(5 * MS);
            is_recalled = recalls.iter().any(|number| is_acknowledged(&mut world, *number));
        }
    }
    assert!(told > 50, "it was recalled, and asked for {told} times");
}

/// The first of two drops is never written: the second one is not refused because of it.
#[test]
fn d11_nothing_is_refused_because_of_a_change_that_is_never_made() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let leader = leader(&mut world);
    world.delay = 20 * MS;
    let options = json!({ "name": "t", "options": { "business.info": "a" } });
    let first = ask(&mut world, leader, "set_options", &options);
    let drops = [(); 2].map(|()| ask(&mut world, leader, "drop_table", &json!({ "name": "t" })));
    let creations = [2, 4].map(|count| ask(&mut world, leader, "create_table", &creation("u", count)));
    world.run(MS);
    // What is under way gets through, and what comes after it does not.
    world.cut.extend(others(leader).into_iter().map(|other| (leader, other)));
    world.run(100 * MS);
    assert!(is_acknowledged(&mut world, first));
    world.run(8_000 * MS);
    world.cut.clear();
    world.run(5_000 * MS);
    assert!(is_there(&mut world, "t") && !is_there(&mut world, "u"));
    for number in drops.into_iter().chain(creations) {
        let Some((_, frame)) = world.answer(number) else { panic!("no answer") };
        let Reply::Failed(failure) = &frame.reply else { panic!("{frame:?}") };
        assert_eq!(failure.name, ErrorName::Timeout, "{frame:?}");
    }
}

/// The table is stored, and its replicas are being made, when the leader is told to hand over.
#[test]
fn d12_a_creation_that_is_made_is_not_refused_as_if_nothing_had_happened() {
    let mut world = World::new(3);
    let leader = leader(&mut world);
    for machine in world.machines.values_mut() {
        machine.holds = |job| matches!(job, Job::Create { .. });
    }
    let created = ask(&mut world, leader, "create_table", &creation("t", 2));
    world.run(500 * MS);
    let next = others(leader)[0];
    world.cut.insert((leader, next));
    world.admin(leader, "transfer", &json!({ "table": "", "partition": 0, "to_node": next.0 })).unwrap();
    let refused = ask(&mut world, leader, "create_table", &creation("u", 2));
    world.run(300 * MS);
    assert!(!world.has_answer(created), "{:?}", world.answer(created));
    assert!(world.has_answer(refused), "the change that met the handing over is refused");
    world.cut.clear();
    NODES.into_iter().for_each(|node| world.let_go(node));
    assert!(matches!(world.wait(created).1.reply, Reply::HedgerowAdmin(_)));
    assert!(is_there(&mut world, "t"));
}

/// Whoever is wanted leads within seconds, and goes on doing so.
#[test]
fn a_partition_is_led_by_the_node_that_is_wanted() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    for wanted in NODES {
        let argument = json!({ "table": "t", "partition": 1, "node": wanted.0 });
        world.admin(others(wanted)[0], "prefer_leader", &argument).unwrap();
        world.run(12_000 * MS);
        for _ in 0..3 {
            assert_eq!(world.replicas(1).leader, wanted);
            world.run(12_000 * MS);
        }
    }
    let argument = json!({ "table": "t", "partition": 1, "node": 9 });
    let refused = world.admin(NODES[0], "prefer_leader", &argument).unwrap_err();
    assert!(format!("{refused:?}").contains("node 9 has no voting replica of partition 1"), "{refused:?}");
}

/// Notes the largest of what nodes send each other.
struct Largest(Rc<Cell<usize>>);

impl Meddler for Largest {
    fn meddle(&mut self, _: (NodeId, NodeId), frames: BytesMut) -> BytesMut {
        self.0.set(self.0.get().max(frames.len()));
        frames
    }
}

#[test]
fn n4d_what_is_too_large_for_other_nodes_is_not_passed_on() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let largest = Rc::new(Cell::new(0));
    world.meddler = Some(Box::new(Largest(Rc::clone(&largest))));
    for node in NODES {
        for command in ["checksum", "create_table"] {
            let argument = format!("{{\"name\":\"t\"{}}}", " ".repeat(33 << 20));
            let header = Header { extension: Some(Extension::default()), ..Header::default() };
            let body = AdminCommand { command: Text::from(command), argument: Text::from(argument) };
            let number = world.send(node, &header, &Body::HedgerowAdmin(body));
            let reply = world.wait(number).1.reply;
            assert!(matches!(&reply, Reply::Failed(failure) if failure.name == ErrorName::InvalidData), "{reply:?}");
        }
    }
    world.run(5_000 * MS);
    assert!(largest.get() < 1 << 20, "{} bytes were sent to another node", largest.get());
}

#[test]
fn n4d_few_calls_wait_for_other_nodes() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    world.cut_off(NodeId(1));
    let asked: Vec<i32> = (0..1_000).map(|_| ask(&mut world, NodeId(1), "checksum", &json!({ "name": "t" }))).collect();
    world.run(10 * MS);
    let refused = asked.iter().filter(|number| world.has_answer(**number)).count();
    // Each one that is not waits for all nodes.
    assert!((500..1_000).contains(&refused), "{refused} were refused at once");
}

/// Somebody compares replicas all the time. Whoever looks at the cluster, or changes something, is answered all the same.
#[test]
fn n16_calls_that_only_look_leave_room_for_the_others() {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let leader = leader(&mut world);
    for other in others(leader) {
        world.late.insert(other, 100 * MS);
    }
    let looks: Vec<i32> = (0..1_200).map(|_| ask(&mut world, leader, "checksum", &json!({ "name": "t" }))).collect();
    world.run(10 * MS);
    let status = ask(&mut world, leader, "status", &json!({}));
    let change = ask(&mut world, leader, "set_options", &json!({ "name": "t", "options": { "business.info": "a" } }));
    world.run(10 * MS);
    assert!(is_acknowledged(&mut world, status));
    let refused = looks.iter().filter(|number| world.answer(**number).is_some()).count();
    assert!(refused > 600, "{refused} calls were refused");
    world.run(2_000 * MS);
    assert!(is_acknowledged(&mut world, change));
}
