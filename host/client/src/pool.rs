//! Connections by node address: made on first use, made again after a pause when they end.

use crate::connection::{Clock, Outgoing, Shared, Waiting};
use crate::driver::{self, Opening};
use crate::lock::lock;
use crate::lost::{CLOSED, Lost};
use crate::options::ClientOptions;
use crate::recording::NodeMetrics;
use crate::runtime::{now, spawn};
use hedgerow_hedge::{Silence, Time};
use hedgerow_types::random::Random;
use hedgerow_wire::Class;
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after the first failed connection; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// However short attempts are: a connection is not replaced for a silence that any machine may have at times.
const SILENCE_MIN: Duration = Duration::from_millis(200);
/// How soon another one may be: a node may be slow with what it is asked for, and answer nothing for long on a path that is well.
const REPLACE_PAUSE: Duration = Duration::from_secs(5);

/// All connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    nodes: Mutex<FxHashMap<SocketAddr, Arc<Node>>>,
    connections_per_node: usize,
    clock: Clock,
    limits: Limits,
    opening: Opening,
    random: Mutex<Random>,
    is_released: Arc<AtomicBool>,
}

/// How long connections may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    connect: Duration,
    /// How long a peer may be silent while requests wait, before another connection is made.
    silence: Duration,
}

impl Pool {
    pub(crate) fn new(options: &ClientOptions, clock: Clock, seed: u64) -> Self {
        let silence = options.timeouts().attempt.max(SILENCE_MIN);
        Self {
            nodes: Mutex::new(FxHashMap::default()),
            connections_per_node: options.connections_per_node,
            clock,
            limits: Limits { connect: options.connect_timeout, silence },
            opening: Opening { tls: options.tls.clone(), credentials: options.credentials.clone() },
            random: Mutex::new(Random::new(seed)),
            is_released: Arc::default(),
        }
    }

    /// Sends `request` to the node at `address`, connecting first where needed.
    pub(crate) fn submit(&self, address: SocketAddr, request: &Outgoing<'_>) -> Result<Waiting, Lost> {
        self.node(address).submit(request, self.limits)
    }

    /// Whether a request to `address` would fail at once because connecting has just failed.
    pub(crate) fn is_resting(&self, address: SocketAddr) -> bool {
        let node = lock(&self.nodes).get(&address).cloned();
        node.is_some_and(|node| node.lanes.iter().all(|lane| lock(lane).rests_until.is_some_and(|until| now() < until)))
    }

    /// Whether a first attempt at `now`, which would be hedged after `delay`, is better sent elsewhere than to the node at `address`: it is
    /// silent, and was just asked. `held_up` is how long the client has been held up in all.
    pub(crate) fn is_spared(&self, address: SocketAddr, delay: Duration, held_up: Duration, now: Time) -> bool {
        let Some(node) = lock(&self.nodes).get(&address).cloned() else { return false };
        let connections = node.lanes.iter().filter_map(|lane| Some(lock(lane).connection.as_ref()?.silence()));
        Silence::is_spared(connections, delay, held_up, now)
    }

    /// Whether no connection is made any more.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// Ends all connections, for good.
    pub(crate) fn release(&self) {
        // Whoever has a lane's lock after this sees it, and whoever had it before has left the connection there.
        self.is_released.store(true, Ordering::SeqCst);
        for node in lock(&self.nodes).values() {
            for lane in &node.lanes {
                if let Some(connection) = lock(lane).connection.take() {
                    connection.release();
                }
            }
        }
    }

    fn node(&self, address: SocketAddr) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(address).or_insert_with(|| {
            Arc::new(Node {
                address,
                clock: self.clock.clone(),
                opening: self.opening.clone(),
                lanes: (0..self.connections_per_node).map(|_| Mutex::new(Lane::default())).collect(),
                turn: AtomicUsize::new(0),
                random: Mutex::new(lock(&self.random).fork()),
                is_released: self.is_released.clone(),
                metrics: Arc::new(NodeMetrics::of(address)),
            })
        });
        node.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Debug)]
struct Node {
    address: SocketAddr,
    clock: Clock,
    opening: Opening,
    lanes: Vec<Mutex<Lane>>,
    turn: AtomicUsize,
    random: Mutex<Random>,
    /// The client's.
    is_released: Arc<AtomicBool>,
    metrics: Arc<NodeMetrics>,
}

/// One of the connections to a node, over its successive lives.
#[derive(Debug, Default)]
struct Lane {
    connection: Option<Arc<Shared>>,
    failures: u32,
    rests_until: Option<Instant>,
    /// Why the last connection was of no use.
    failed_by: Option<Lost>,
    /// When a connection that was silent may be replaced again.
    keeps_until: Option<Instant>,
}

impl Node {
    fn submit(self: &Arc<Self>, request: &Outgoing<'_>, limits: Limits) -> Result<Waiting, Lost> {
        let index = match self.lanes.len() {
            1 => 0,
            // A node keeps a scan for the connection that began it.
            _ if request.body.method().class() == Class::Scan => 0,
            count => self.turn.fetch_add(1, Ordering::Relaxed) % count,
        };
        let submitted = self.connection(index, limits).and_then(|connection| connection.submit(request));
        submitted.inspect_err(|_| self.metrics.note_unsent())
    }

    fn connection(self: &Arc<Self>, index: usize, limits: Limits) -> Result<Arc<Shared>, Lost> {
        let mut lane = lock(&self.lanes[index]);
        if let Some(connection) = &lane.connection {
            if !connection.is_silent() || lane.keeps_until.is_some_and(|until| now() < until) {
                return Ok(connection.clone());
            }
            // Whoever waits on it may still have an answer.
            connection.retire(now());
            lane.keeps_until = Some(now() + REPLACE_PAUSE);
        }
        if lane.rests_until.is_some_and(|until| now() < until) {
            let why = lane.failed_by.as_ref().map(Lost::for_later);
            return Err(why.unwrap_or_else(|| Lost::NotConnected(String::new())));
        }
        if self.is_released.load(Ordering::SeqCst) {
            return Err(Lost::NotConnected(CLOSED.to_owned()));
        }
        let connection = Shared::new(self.clock.clone(), limits.silence, self.metrics.clone());
        lane.connection = Some(connection.clone());
        drop(lane);
        let life = Life { node: self.clone(), index, shared: connection.clone(), was_useful: None };
        spawn(life.run(limits.connect));
        Ok(connection)
    }

    fn handle_end(&self, index: usize, connection: &Arc<Shared>, was_useful: bool) {
        let mut lane = lock(&self.lanes[index]);
        // One that was silent has been replaced before.
        if !lane.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            return;
        }
        lane.connection = None;
        if was_useful {
            lane.failures = 0;
            lane.rests_until = None;
        } else {
            let pause = BACKOFF_MIN.saturating_mul(1 << lane.failures.min(10)).min(BACKOFF_MAX);
            let jitter = lock(&self.random).below(pause.as_micros() as u64 / 4 + 1);
            lane.failures = lane.failures.saturating_add(1);
            lane.failed_by = connection.ended_by();
            lane.rests_until = Some(now() + pause + Duration::from_micros(jitter));
        }
    }
}

/// One life of a lane's connection. It ends with its driver, and also if the driver's runtime is dropped: clients may outlive the
/// runtime that they were first used on.
struct Life {
    node: Arc<Node>,
    index: usize,
    shared: Arc<Shared>,
    /// What the driver said when it ended.
    was_useful: Option<bool>,
}

impl Life {
    async fn run(mut self, connect_timeout: Duration) {
        let was_useful = driver::run(&self.shared, self.node.address, connect_timeout, &self.node.opening).await;
        self.was_useful = Some(was_useful);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.was_useful.is_none() {
            let text = format!("the runtime that the connection to {} was made on has ended", self.node.address);
            self.shared.end(Lost::Broken(text));
        }
        // Whoever uses another runtime connects at once.
        self.node.handle_end(self.index, &self.shared, self.was_useful.unwrap_or(true));
    }
}
