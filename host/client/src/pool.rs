//! Connections by node address: made on first use, made again after a pause when they end.

use crate::connection::{Outgoing, Shared, Waiting};
use crate::driver;
use crate::lock::lock;
use crate::lost::Lost;
use crate::runtime::{now, spawn};
use hedgerow_types::random::Random;
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after the first failed connection; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// All connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    nodes: Mutex<FxHashMap<SocketAddr, Arc<Node>>>,
    connections_per_node: usize,
    connect_timeout: Duration,
    random: Mutex<Random>,
}

impl Pool {
    pub(crate) fn new(connections_per_node: usize, connect_timeout: Duration, seed: u64) -> Self {
        Self {
            nodes: Mutex::new(FxHashMap::default()),
            connections_per_node,
            connect_timeout,
            random: Mutex::new(Random::new(seed)),
        }
    }

    /// Sends `request` to the node at `address`, connecting first where needed.
    pub(crate) fn submit(&self, address: SocketAddr, request: &Outgoing<'_>) -> Result<Waiting, Lost> {
        self.node(address).submit(request, self.connect_timeout)
    }

    /// Whether a request to `address` would fail at once because connecting has just failed.
    pub(crate) fn is_resting(&self, address: SocketAddr) -> bool {
        let node = lock(&self.nodes).get(&address).cloned();
        node.is_some_and(|node| node.lanes.iter().all(|lane| lock(lane).rests_until.is_some_and(|until| now() < until)))
    }

    fn node(&self, address: SocketAddr) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry(address).or_insert_with(|| {
            Arc::new(Node {
                address,
                lanes: (0..self.connections_per_node).map(|_| Mutex::new(Lane::default())).collect(),
                turn: AtomicUsize::new(0),
                random: Mutex::new(lock(&self.random).fork()),
            })
        });
        node.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for node in lock(&self.nodes).values() {
            for lane in &node.lanes {
                if let Some(connection) = lock(lane).connection.take() {
                    connection.release();
                }
            }
        }
    }
}

#[derive(Debug)]
struct Node {
    address: SocketAddr,
    lanes: Vec<Mutex<Lane>>,
    turn: AtomicUsize,
    random: Mutex<Random>,
}

/// One of the connections to a node, over its successive lives.
#[derive(Debug, Default)]
struct Lane {
    connection: Option<Arc<Shared>>,
    failures: u32,
    rests_until: Option<Instant>,
}

impl Node {
    fn submit(self: &Arc<Self>, request: &Outgoing<'_>, connect_timeout: Duration) -> Result<Waiting, Lost> {
        let index = match self.lanes.len() {
            1 => 0,
            count => self.turn.fetch_add(1, Ordering::Relaxed) % count,
        };
        let connection = self.connection(index, connect_timeout)?;
        connection.submit(request)
    }

    fn connection(self: &Arc<Self>, index: usize, connect_timeout: Duration) -> Result<Arc<Shared>, Lost> {
        let mut lane = lock(&self.lanes[index]);
        if let Some(connection) = &lane.connection {
            return Ok(connection.clone());
        }
        if lane.rests_until.is_some_and(|until| now() < until) {
            return Err(Lost::NotConnected(format!("connecting to {} failed a moment ago", self.address)));
        }
        let connection = Shared::new();
        lane.connection = Some(connection.clone());
        drop(lane);
        let (node, shared) = (self.clone(), connection.clone());
        spawn(async move {
            let was_useful = driver::run(&shared, node.address, connect_timeout).await;
            node.handle_end(index, was_useful);
        });
        Ok(connection)
    }

    fn handle_end(&self, index: usize, was_useful: bool) {
        let mut lane = lock(&self.lanes[index]);
        lane.connection = None;
        if was_useful {
            lane.failures = 0;
            lane.rests_until = None;
        } else {
            let pause = BACKOFF_MIN.saturating_mul(1 << lane.failures.min(10)).min(BACKOFF_MAX);
            let jitter = lock(&self.random).below(pause.as_micros() as u64 / 4 + 1);
            lane.failures = lane.failures.saturating_add(1);
            lane.rests_until = Some(now() + pause + Duration::from_micros(jitter));
        }
    }
}
