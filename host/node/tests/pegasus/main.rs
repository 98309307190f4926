//! What Pegasus' unmodified clients and shells see of a node, beside the operations themselves.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod create;
mod small;
#[path = "../reads/world.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod world;

use hedgerow_types::NodeId;
use hedgerow_wire::message::{CreateOptions, CreateTable};
use hedgerow_wire::{Body, ErrorName, Header, Reply};
use world::World;

/// As a shell sends it.
fn creation(name: &str, partition_count: i32, success_if_exist: bool) -> Body {
    let options = CreateOptions {
        partition_count,
        replica_count: 3,
        success_if_exist,
        app_type: "pegasus".into(),
        is_stateful: true,
        ..CreateOptions::default()
    };
    Body::CreateTable(CreateTable { app_name: name.into(), options })
}

fn node_of_metadata(world: &mut World) -> NodeId {
    let status = world.admin(NodeId(1), "status", &serde_json::json!({})).unwrap();
    let leader: std::net::SocketAddrV4 = status["metadata"]["leader"].as_str().unwrap().parse().unwrap();
    NodeId(u16::from(leader.ip().octets()[3]))
}

/// Sends `body` as a client of Pegasus, and waits for the reply.
fn ask(world: &mut World, to: NodeId, body: &Body) -> Reply {
    let number = world.send(to, &Header::default(), body);
    world.wait(number).1.reply
}

fn created(reply: Reply) -> (ErrorName, i32) {
    match reply {
        Reply::CreateTable(reply) => (reply.err, reply.appid),
        other => panic!("{other:?}"),
    }
}
