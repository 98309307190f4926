//! Who waits for what: every request of a client from its frame to its reply. The fields are this folder's alone; the rest of the node
//! hands requests in and asks for what it has to know.
//!
//! | file | idea |
//! |---|---|
//! | `front.rs` | a client's frame: whose it is, whether they may ask for that now, and who goes on with it |
//! | `caller.rs`, `callers.rs` | who asked; all requests that wait, and where each does |
//! | `serve.rs`, `scan.rs` | clients' data operations |
//! | `queue.rs` | reads that wait for their turn: extra attempts behind first ones, connections in turn, deadlines |
//! | `cancel.rs` | attempts that are taken back |
//! | `tie.rs` | two attempts that know of each other: whoever begins tells the other |
//! | `throttle.rs` | the table's limit on extra attempts |
//! | `login.rs`, `attempts.rs` | logins by password, and those that fail again and again |
//! | `limits.rs` | what one user may ask for |
//! | `bucket.rs` | how fast something may come |
//! | `forward.rs` | writes for a leader elsewhere, and several attempts of one write |
//! | `waiting.rs` | what waits here for a time or another node |
//! | `reads.rs` | who may be served, and how fresh |
//! | `held.rs` | what reads that wait for an index keep in memory |
//! | `read_jobs.rs` | reads that need a disk, or look at much: other threads run them |
//! | `users.rs`, `permission.rs` | who asks, and whether they may |
//! | `audit.rs` | what the audit log is told of them |
//! | `load.rs`, `read_counts.rs`, `times.rs` | what replies and the operator are told of the node's work |

pub(crate) mod attempts;
pub(crate) mod audit;
pub(crate) mod bucket;
pub(crate) mod caller;
pub(crate) mod callers;
pub(crate) mod cancel;
pub(crate) mod forward;
pub(crate) mod front;
pub(crate) mod held;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod login;
pub(crate) mod permission;
pub(crate) mod queue;
pub(crate) mod read_counts;
pub(crate) mod read_jobs;
pub(crate) mod reads;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod throttle;
pub(crate) mod tie;
pub(crate) mod times;
pub(crate) mod users;
pub(crate) mod waiting;

use crate::config::{Config, FRAME_COST, READ_JOBS_BYTES_MAX, READS_QUEUED_BYTES_MAX, REQUEST_BYTES_PER_TURN};
use crate::ids::{Numbers, ShardId};
use crate::outbox::{ConnectionId, Outbox};
use crate::peer::Frame;
use crate::replicas::Replicas;
use crate::shared_bound::{Kept, SharedBound};
use crate::view::View;
use caller::Caller;
use callers::Callers;
#[cfg(feature = "mutations")]
use cancel::AttemptName;
use cancel::CancelCounts;
use forward::Forwards;
use hedgerow_types::{Instant, NodeId};
use load::NodeLoad;
use queue::{Queue, QueueCounts};
use read_counts::{Lines, ReadCounts};
use read_jobs::{Line, ReadJobs};
use scan::Scans;
use serde_json::{Value, json};
use std::time::Duration;
use throttle::Throttles;
use tie::Ties;
use times::{Times, WriteRefusals};

/// The requests of clients that wait, and what is counted of all of them.
#[derive(Debug)]
pub(crate) struct Requests {
    scans: Scans,
    /// Reads that wait for their turn.
    queue: Queue,
    queue_counts: QueueCounts,
    /// What reads keep that wait at replicas.
    room: held::Room,
    /// Reads that other threads run.
    read_jobs: ReadJobs,
    /// Bytes of replies to clients since the node was driven last.
    reply_bytes: usize,
    /// What their requests have taken since then, in bytes.
    taken_bytes: usize,
    callers: Callers,
    cancels: CancelCounts,
    ties: Ties,
    load: NodeLoad,
    read_counts: ReadCounts,
    write_refusals: WriteRefusals,
    times: Times,
    throttles: Throttles,
    forwards: Forwards,
    /// Replies that left since the front was told of them: on which connection, how many bytes, and when the request came. Only where users have
    /// limits.
    replied: Option<Vec<Replied>>,
    /// Lines about slow requests.
    slow_lines: Lines,
}

/// A reply that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replied {
    connection: ConnectionId,
    bytes: usize,
    /// When the request came.
    received: Instant,
}

/// Requests with what they are served from. They take notice of the rest of the node only by the view.
pub(crate) struct Serving<'a> {
    pub(crate) config: &'a Config,
    pub(crate) view: &'a View,
    pub(crate) requests: &'a mut Requests,
    pub(crate) replicas: &'a mut Replicas,
    pub(crate) outbox: &'a mut Outbox,
}

impl Serving<'_> {
    fn send(&mut self, to: NodeId, frame: &Frame) {
        self.outbox.send(self.config.node, to, frame);
    }
}

impl Requests {
    /// Nobody waits. Numbers of scans begin at a `random` place, and `numbers` are those of what is sent on.
    pub(crate) fn new(config: &Config, (shard, numbers): (ShardId, Numbers), kept: &Kept, random: u64) -> Self {
        let share = |all, most| SharedBound::new(all, most, config.shards);
        Self {
            scans: Scans::new(kept, config.shards, random),
            queue: Queue::new(share(&kept.queued, READS_QUEUED_BYTES_MAX)),
            queue_counts: QueueCounts::default(),
            room: held::Room::new(share(&kept.waiting, config.waiting_read_bytes_max)),
            read_jobs: ReadJobs::new(share(&kept.aside, READ_JOBS_BYTES_MAX)),
            reply_bytes: 0,
            taken_bytes: 0,
            callers: Callers::default(),
            cancels: CancelCounts::default(),
            ties: Ties::default(),
            load: NodeLoad::default(),
            read_counts: ReadCounts::default(),
            write_refusals: WriteRefusals::default(),
            times: Times::default(),
            throttles: Throttles::new((shard, config.shards)),
            forwards: Forwards::new(numbers.from(random >> 1)),
            replied: config.user_limits.is_any().then(Vec::new),
            slow_lines: Lines::default(),
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.scans.forget_idle(now);
        self.read_counts.tick(now);
    }

    /// When something that waits here is due.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        [self.throttles.wakes_at(), self.forwards.wakes_at(), self.read_jobs.wakes_at()].into_iter().flatten().min()
    }

    /// A turn of the node is over.
    pub(crate) fn end_turn(&mut self) {
        self.load.leave();
        (self.reply_bytes, self.taken_bytes) = (0, 0);
    }

    /// A client's frame of so many bytes is taken. Its place in the queues is not smaller for being empty.
    fn note_taken(&mut self, bytes: usize) {
        self.taken_bytes += bytes + FRAME_COST;
    }

    /// A client was told where so many partitions are, which takes a microsecond each, however few bytes it asked with.
    pub(crate) fn note_mapped(&mut self, partitions: usize) {
        self.taken_bytes += partitions * FRAME_COST;
    }

    /// No more is taken before the node is driven.
    fn fill_turn(&mut self) {
        self.taken_bytes = self.taken_bytes.max(REQUEST_BYTES_PER_TURN);
    }

    /// Whether clients' requests have taken, or were answered with, so many bytes since the node was driven last.
    pub(crate) const fn has_had_turn(&self, answered_max: usize) -> bool {
        self.reply_bytes >= answered_max || self.taken_bytes >= REQUEST_BYTES_PER_TURN
    }

    /// As [`Node::turn_bytes`].
    pub(crate) const fn turn_bytes(&self) -> usize {
        self.reply_bytes + self.taken_bytes
    }

    /// Handling requests took so long.
    pub(crate) fn note_work(&mut self, took: Duration, now: Instant) {
        self.load.note_work(took, now);
    }

    /// Reads and writes that were taken or answered since work was noted last.
    pub(crate) fn touched(&self) -> u32 {
        self.load.touched()
    }

    /// What a request costs, as far as that is known; otherwise nothing.
    pub(crate) fn service(&self) -> Duration {
        self.load.service()
    }

    /// What a request costs, microseconds; 0 = not known.
    pub(crate) fn service_us(&self) -> i32 {
        self.load.service_us()
    }

    /// A read that another thread ran has ended.
    pub(crate) fn note_read_ended(&mut self, line: Line) {
        self.read_jobs.note_ended(line);
    }

    /// A reply to a request for data left.
    fn note_reply(&mut self, caller: &Caller, bytes: usize) {
        if let Some(replied) = &mut self.replied {
            replied.push(Replied { connection: caller.connection, bytes, received: caller.received });
        }
    }

    /// The replies that have left since this was asked last, for those whose limits they count by.
    pub(crate) fn take_replied(&mut self) -> Vec<Replied> {
        self.replied.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A client's connection is gone, and its scans with it.
    pub(crate) fn forget_connection(&mut self, connection: ConnectionId) {
        self.scans.forget_connection(connection);
    }

    /// What the operator is told of them.
    pub(crate) fn told(&self) -> Value {
        let mut told = self.read_counts.to_json();
        told["refused_writes"] = self.write_refusals.to_json();
        told["latency"] = self.times.to_json();
        told["queue"] = self.queue_told();
        told["waiting_bytes"] = json!({ "kept": self.room.size(), "refused": self.room.refused() });
        told["requests_waiting"] = json!(self.callers.count());
        told["requests_in_flight"] = json!(self.load.in_flight());
        told
    }

    /// The reads that wait for their turn or for a job: the connection of each, and its number on it. In no order.
    pub(crate) fn queued(&self) -> impl Iterator<Item = (ConnectionId, i32)> {
        let ids = self.queue.iter().map(|queued| queued.id).chain(self.read_jobs.ids());
        let callers = ids.filter_map(|id| self.callers.get(id));
        callers.map(|caller| (caller.connection, caller.sequence_id))
    }

    /// The attempts that can be cancelled.
    #[cfg(feature = "mutations")]
    pub(crate) fn attempts(&self) -> impl Iterator<Item = (ConnectionId, AttemptName)> {
        self.callers.names()
    }
}

/// What several shards tell, each of itself, as one: numbers are added up.
pub(crate) fn sum_of(told: impl Iterator<Item = Value>) -> Value {
    told.reduce(sum).unwrap_or_default()
}

fn sum(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (name, value) in other {
                let before = one.remove(&name).unwrap_or_default();
                one.insert(name, sum(before, value));
            }
            Value::Object(one)
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            Value::Array(one.into_iter().zip(other).map(|(one, other)| sum(one, other)).collect())
        }
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => json!(one.saturating_add(other)),
            _ => json!(one.as_f64().unwrap_or(0.0) + other.as_f64().unwrap_or(0.0)),
        },
        (Value::Null, other) => other,
        (one, _) => one,
    }
}
