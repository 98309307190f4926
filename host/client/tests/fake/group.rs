//! The replicas of one table on fake nodes, and time that passes only when a test says so.

use super::{Action, Fake, done, map, metadata, refused, value};
use hedgerow_client::{Client, ClientOptions, HedgeOptions, Policy, Table};
use hedgerow_types::Refusal;
use hedgerow_wire::message::{CheckReply, IncrReply};
use hedgerow_wire::{Body, Extension, Reply, Request};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Far more than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const LEADER: usize = 0;

type Answer = Arc<dyn Fn(&Request) -> Action + Send + Sync>;

/// A leader and followers, of a table of two partitions.
pub(crate) struct Group {
    pub(crate) nodes: Vec<Fake>,
    answers: Arc<Mutex<Vec<Answer>>>,
    /// Where the map says that each node is.
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
    leader: Arc<Mutex<usize>>,
    /// While it is there, the runtime's clock stands still unless it is moved.
    _clock: oneshot::Sender<()>,
}

impl Group {
    /// `count` nodes, each of which answers a read with its own number and a write with success. To be called in a runtime
    /// whose clock is paused.
    pub(crate) async fn start(count: usize) -> Self {
        // A paused clock would jump to the next timer whenever everybody waits for a socket, unless there is blocking work.
        let (clock, dropped) = oneshot::channel::<()>();
        tokio::task::spawn_blocking(move || dropped.blocking_recv());
        let mut listeners = Vec::new();
        for _ in 0..count {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let answers: Arc<Mutex<Vec<Answer>>> = Arc::new(Mutex::new((0..count).map(serving).collect()));
        let addresses = Arc::new(Mutex::new(addresses));
        let leader = Arc::new(Mutex::new(LEADER));
        let node = |(index, listener): (usize, TcpListener)| {
            let (addresses, answers, leader) = (addresses.clone(), answers.clone(), leader.clone());
            Fake::serve_on(listener, move |request| {
                let map = || {
                    let addresses = addresses.lock().unwrap();
                    map(&[addresses[*leader.lock().unwrap()]; 2], &addresses, 1)
                };
                let answer = answers.lock().unwrap()[index].clone();
                metadata(request, map).unwrap_or_else(|| answer(request))
            })
        };
        let nodes = listeners.into_iter().enumerate().map(node).collect();
        Self { nodes, answers, addresses, leader, _clock: clock }
    }

    pub(crate) fn answer(&self, node: usize, answer: impl Fn(&Request) -> Action + Send + Sync + 'static) {
        self.answers.lock().unwrap()[node] = Arc::new(answer);
    }

    pub(crate) fn refuse(&self, node: usize, refusal: Refusal) {
        self.answer(node, move |_| refused(&refusal));
    }

    pub(crate) fn serve(&self, node: usize) {
        self.answers.lock().unwrap()[node] = serving(node);
    }

    /// What the map says from now on.
    pub(crate) fn lead(&self, node: usize) {
        *self.leader.lock().unwrap() = node;
    }

    /// The map says from now on that `node` is at `address`, where somebody else listens.
    pub(crate) fn move_to(&self, node: usize, address: SocketAddr) {
        self.addresses.lock().unwrap()[node] = address;
    }

    pub(crate) fn silence(&self, node: usize) {
        self.answer(node, |_| Action::Silence);
    }

    /// A node that reads nothing from a connection any more once a request to a partition has come there. What is sent after that
    /// stays in the buffers of the two ends, until they are full.
    pub(crate) fn stall(&self, node: usize) {
        self.answer(node, |_| Action::Stall);
    }

    /// A node that answers as [`Group::start`] says, but late.
    pub(crate) fn slow(&self, node: usize, delay: Duration) {
        let serve = serving(node);
        self.answer(node, move |request| match serve(request) {
            Action::Reply(reply) => Action::ReplyAfter(delay, reply),
            other => other,
        });
    }

    pub(crate) async fn client(&self, options: ClientOptions) -> Client {
        let seed = self.nodes[0].address.to_string();
        Client::connect_with(&[seed], options).await.unwrap()
    }

    /// A table whose requests are hedged so, and its client.
    pub(crate) async fn open(&self, hedge: HedgeOptions) -> (Client, Table) {
        self.open_with(hedge, patient()).await
    }

    pub(crate) async fn open_with(&self, hedge: HedgeOptions, options: ClientOptions) -> (Client, Table) {
        let client = self.client(options).await;
        let table = client.open_table_with("t", hedge).await.unwrap();
        (client, table)
    }

    /// How many requests to partitions each node was sent.
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.requests().len()).collect()
    }

    pub(crate) fn sent(&self) -> usize {
        self.counts().iter().sum()
    }

    pub(crate) fn cancels(&self) -> usize {
        self.nodes.iter().map(|node| node.cancels().len()).sum()
    }

    /// Our fields of every request to a partition, by node.
    pub(crate) fn extensions(&self) -> Vec<(usize, Extension)> {
        let nodes = self.nodes.iter().enumerate();
        let requests = nodes.flat_map(|(index, node)| node.requests().into_iter().map(move |request| (index, request)));
        requests.map(|(index, request)| (index, request.header.extension.unwrap())).collect()
    }
}

fn serving(node: usize) -> Answer {
    Arc::new(move |request| {
        Action::Reply(match &request.body {
            Body::Get(_) => value(node.to_string().as_bytes()),
            Body::MultiGet(_) => Reply::MultiGet(Default::default()),
            Body::Incr(_) => Reply::Incr(IncrReply { new_value: 7, app_id: 1, ..IncrReply::default() }),
            Body::CheckAndSet(_) | Body::CheckAndMutate(_) => {
                Reply::Check(CheckReply { app_id: 1, ..CheckReply::default() })
            }
            _ => done(),
        })
    })
}

/// Options with which neither an attempt nor an operation times out.
pub(crate) fn patient() -> ClientOptions {
    ClientOptions { operation_timeout: LONG, attempt_timeout: Some(LONG), ..ClientOptions::default() }
}

/// Reads are hedged once, after 10 ms.
pub(crate) fn after_10_ms() -> HedgeOptions {
    HedgeOptions::backup_request(ms(10))
}

/// Writes are hedged once, after 10 ms.
pub(crate) fn writes_after_10_ms() -> HedgeOptions {
    HedgeOptions { writes: Policy::Constant { delay: ms(10), max_executions: 2 }, ..HedgeOptions::default() }
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets everything happen that can happen without time passing.
pub(crate) async fn settle() {
    turns(300).await;
}

/// Everybody else's turns, the kernel's included. It carries the bytes, on a thread of its own where this machine has much to do,
/// and that one gets a core only when this thread sleeps.
async fn turns(count: usize) {
    for turn in 0..count {
        if turn % 32 == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        tokio::task::yield_now().await;
    }
}

/// What a task gives that needs no more time to pass.
pub(crate) async fn answer<T>(task: JoinHandle<T>) -> T {
    for _ in 0..1_000 {
        if task.is_finished() {
            return task.await.unwrap();
        }
        turns(100).await;
    }
    panic!("there is no answer yet");
}

/// Lets `time` pass, millisecond by millisecond.
pub(crate) async fn pass(time: Duration) {
    settle().await;
    for _ in 0..time.as_millis() {
        tokio::time::advance(ms(1)).await;
        turns(100).await;
    }
    settle().await;
}

/// The number of the node that a read of `table` is answered by.
pub(crate) async fn get(table: &Table) -> usize {
    let value = table.get("h", "s").await.unwrap().unwrap();
    std::str::from_utf8(&value).unwrap().parse().unwrap()
}

/// [`get`] as a task.
pub(crate) fn spawn_get(table: &Table) -> JoinHandle<usize> {
    let table = table.clone();
    tokio::spawn(async move { get(&table).await })
}
