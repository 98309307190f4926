//! Requests with names, and a small cluster to send them to.

use crate::world::{Key, Places, World, value_of};
use bytes::BytesMut;
use hedgerow_node::{Config, ConnectionId, Event};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::header::Cause;
use hedgerow_wire::message::{AdminCommand, Cancel};
use hedgerow_wire::{Body, Extension, Header, Reply, ReplyExtension, Tie};
use serde_json::{Value, json};

pub const CLIENT: u64 = 0xc11e;
pub const CONNECTION: ConnectionId = ConnectionId(8);
const OPERATOR: ConnectionId = ConnectionId(99);

/// A cluster of three with one record, everything settled.
pub struct Small {
    pub world: World,
    pub key: Key,
    pub places: Places,
}

impl Small {
    pub fn new() -> Self {
        Self::configured(|_| {})
    }

    pub fn configured(configure: impl Fn(&mut Config)) -> Self {
        let mut world = World::configured(3, configure);
        let table = world.create_table(2, &json!({}));
        let key = Key::new(table, 2, "a");
        let places = world.replicas(key.partition);
        world.write(&key, places.leader, "0");
        world.run(crate::world::MS * 500);
        Self { world, key, places }
    }

    /// Hands a read to a node, which is not driven.
    pub fn put(&mut self, to: NodeId, extension: Extension) -> i32 {
        self.put_on(CONNECTION, to, extension)
    }

    pub fn put_on(&mut self, connection: ConnectionId, to: NodeId, extension: Extension) -> i32 {
        let header = self.header(extension);
        self.world.put_on(connection, to, &header, &Body::Get(self.key.full()))
    }

    /// Hands a cancel of a request's attempt to a node, which is not driven.
    pub fn cancel(&mut self, connection: ConnectionId, to: NodeId, client: u64, request: u64, attempt: Option<i32>) {
        let cancel = Cancel { client_id: client, request_id: request, attempt, ..Cancel::default() };
        self.world.put_on(connection, to, &Header::default(), &Body::HedgerowCancel(cancel));
    }

    /// The same by the number that the request has on its connection.
    pub fn cancel_number(&mut self, connection: ConnectionId, to: NodeId, number: i32) {
        let cancel = Cancel { sequence_id: Some(number), ..Cancel::default() };
        self.world.put_on(connection, to, &Header::default(), &Body::HedgerowCancel(cancel));
    }

    pub fn close(&mut self, connection: ConnectionId, node: NodeId) {
        self.world.handle(node, Event::ClientClosed(connection));
    }

    pub fn header(&self, extension: Extension) -> Header {
        Header { extension: Some(extension), ..self.key.header(&crate::world::Ask::default()) }
    }

    /// What `node` tells of its reads, without driving it.
    pub fn counts(&mut self, node: NodeId) -> Value {
        let body = AdminCommand { command: "reads".into(), argument: "{}".into() };
        let header = Header { extension: Some(Extension::default()), ..Header::default() };
        self.world.put_on(OPERATOR, node, &header, &Body::HedgerowAdmin(body));
        let outbox = self.world.machines.get_mut(&node).unwrap().node.outbox();
        let reply = outbox.clients.remove(&OPERATOR).unwrap().freeze();
        match call::decode_reply(reply).unwrap().reply {
            Reply::HedgerowAdmin(reply) => serde_json::from_str(reply.text.as_str()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// What of it is about the queue.
    pub fn told(&mut self, node: NodeId) -> Value {
        self.counts(node)["queue"].take()
    }

    /// Nothing waits at `node`, and nothing is remembered that could be cancelled.
    pub fn assert_idle(&mut self, node: NodeId) {
        // Replies that leave are still in flight.
        self.world.settle(node);
        let counts = self.counts(node);
        // The question itself is one.
        assert_eq!((&counts["waiting"], &counts["requests_in_flight"]), (&json!(0), &json!(1)), "{counts}");
        assert_eq!((&counts["waiting_bytes"]["kept"], &counts["requests_waiting"]), (&json!(0), &json!(0)), "{counts}");
        let queue = &counts["queue"];
        assert_eq!((&queue["first"]["queued"], &queue["extra"]["queued"]), (&json!(0), &json!(0)), "{counts}");
        assert_eq!(queue["cancels"]["listed"], 0, "{counts}");
    }

    /// Drives `node` once and gives the numbers of what it answers on the connection of these tests, in order.
    pub fn turn(&mut self, node: NodeId) -> Vec<i32> {
        let now = self.world.clock();
        let node = &mut self.world.machines.get_mut(&node).unwrap().node;
        node.drive(now);
        let mut replies = node.outbox().clients.remove(&CONNECTION).unwrap_or_default();
        numbers(&mut replies)
    }

    /// The value that answers a request, which must be there.
    pub fn value(&mut self, number: i32) -> (String, ReplyExtension) {
        value_of(self.world.answer(number).expect("it is answered").1).expect("a value")
    }

    /// The refusal that answers a request, which must be there.
    pub fn refusal(&mut self, number: i32) -> Option<Refusal> {
        refusal_of(&self.world.answer(number).expect("it is answered").1)
    }
}

fn numbers(replies: &mut BytesMut) -> Vec<i32> {
    let mut numbers = Vec::new();
    while let Some(size) = call::reply_frame_size(replies).unwrap() {
        numbers.push(call::decode_reply(replies.split_to(size).freeze()).unwrap().sequence_id);
    }
    numbers
}

pub fn refusal_of(frame: &ReplyFrame) -> Option<Refusal> {
    match &frame.reply {
        Reply::Failed(failure) => failure.refusal(),
        _ => None,
    }
}

/// A first attempt that any replica may serve at `level`.
pub fn first(request: u64, level: ReadLevel) -> Extension {
    let mut extension = Extension {
        client_id: Some(CLIENT),
        request_id: Some(request),
        attempt: Some(1),
        any_replica: true,
        deadline_ms: Some(5_000),
        ..Extension::default()
    };
    extension.set_read_level(level);
    extension
}

/// Its second attempt.
pub fn extra(request: u64, level: ReadLevel) -> Extension {
    Extension { attempt: Some(2), cause: Some(Cause::Hedge.code()), ..first(request, level) }
}

/// `extension` of an attempt that is tied to attempt `other` at `peer`.
pub fn tied(extension: Extension, peer: NodeId, other: i32) -> Extension {
    let peer = format!("127.0.0.{}:34601", peer.0);
    let tie = Tie { peer: peer.as_str().into(), attempt: other };
    Extension { tie: Some(tie.encode()), ..extension }
}
