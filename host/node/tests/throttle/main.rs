//! Extra attempts at the nodes they reach: the table's limit on them, writes that are sent on to the leader, and what Pegasus'
//! clients see of both.
//!
//! Pitfalls of which only a part is the server's:
//! - H20: the caller's own limit is the client's business; the table's limit is neither charged nor asked for first attempts.
//! - H23: no write is refused or let through by a flag: what has a number may be speculated, whatever it does.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod forward;
mod limit;
mod pegasus;
mod users;
#[path = "../reads/world.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod world;

use bytes::{Bytes, BytesMut};
use hedgerow_node::{ConnectionId, Event};
use hedgerow_types::NodeId;
use hedgerow_wire::message::Cancel;
use hedgerow_wire::{Body, Cause, Extension, Header, call};
use serde_json::{Value, json};
use world::{Key, Places, World};

/// A client on a connection of its own, whose attempts have names.
struct Client {
    id: u64,
    connection: ConnectionId,
    request_id: u64,
}

impl Client {
    fn new(id: u64) -> Self {
        Self { id, connection: ConnectionId(100 + id), request_id: 0 }
    }

    /// The next request.
    fn next(&mut self) -> u64 {
        self.request_id += 1;
        self.request_id
    }

    /// What attempt `attempt` of the request says of itself.
    fn attempt(&self, attempt: i32, cause: Option<Cause>) -> Extension {
        Extension {
            attempt: Some(attempt),
            client_id: Some(self.id),
            request_id: Some(self.request_id),
            cause: cause.map(Cause::code),
            ..Extension::default()
        }
    }

    fn cancel(&self, world: &mut World, node: NodeId, attempt: i32) {
        let cancel =
            Cancel { client_id: self.id, request_id: self.request_id, attempt: Some(attempt), ..Cancel::default() };
        world.put_on(self.connection, node, &Header::default(), &Body::HedgerowCancel(cancel));
        world.settle(node);
    }
}

/// A frame as it comes from a client, with a number of the caller's choice.
fn frame(header: &Header, sequence_id: i32, body: &Body) -> Bytes {
    let mut out = BytesMut::new();
    call::encode_request(&mut out, header, sequence_id, body);
    out.freeze()
}

/// Gives `node` a frame, and drives it.
fn deliver(world: &mut World, connection: ConnectionId, node: NodeId, frame: Bytes) {
    world.handle(node, Event::Client(connection, frame));
    world.settle(node);
}

/// What a node tells of the tables' limits and of writes sent on.
fn told(world: &mut World, node: NodeId) -> Value {
    world.admin(node, "throttle", &json!({})).unwrap()
}

/// The requests that a node has taken and not answered, this question not counted.
fn in_flight(world: &mut World, node: NodeId) -> i64 {
    world.counts(node)["requests_in_flight"].as_i64().unwrap() - 1
}

/// Three nodes and a table of two partitions, two of its six replicas on each.
fn setting(options: &Value) -> (World, Key, Places) {
    let mut world = World::new(3);
    let table = world.create_table(2, options);
    let key = Key::new(table, 2, "a");
    let places = world.replicas(key.partition);
    world.write(&key, places.leader, "0");
    world.run(1_000 * world::MS);
    (world, key, places)
}
