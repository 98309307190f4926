//! What hedging costs a client when nothing is slow: the processor time of reads through a plain handle and through hedging
//! ones, against a node that only pretends, in a thread of its own.
//!
//! ```text
//! cargo run --release -p hedgerow-client --example hedging_cost
//! ```
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example that measures")]

#[path = "../tests/fake/mod.rs"]
#[allow(unreachable_pub, reason = "it is shared with the tests")]
mod fake;

use fake::{Action, Fake, map, metadata, value};
use hedgerow_client::{Client, ClientOptions, HedgeOptions, Policy, Table};
use hedgerow_env::os::thread_cpu_time;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// Requests under way at once.
const CLIENTS: usize = 64;
/// Requests of one measurement.
const REQUESTS: usize = 200_000;
/// Each handle is measured so often, in turns, and the least time counts.
const TURNS: usize = 5;

fn main() {
    let address = start_node();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(address));
}

/// Starts a node whose map names two more replicas, which nobody listens at.
fn start_node() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let others = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            let nodes = [address, others[0], others[1]];
            let _node = Fake::serve_on(listener, move |request| {
                metadata(request, || map(&[address; 2], &nodes, 1)).unwrap_or_else(|| Action::Reply(value(b"v")))
            });
            sender.send(address).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

async fn measure(address: SocketAddr) {
    let options = ClientOptions { operation_timeout: Duration::from_secs(60), ..ClientOptions::default() };
    let client = Client::connect_with(&[address.to_string()], options).await.unwrap();
    let plain = client.open_table("t").await.unwrap();
    let hedging = |reads: Policy| plain.hedging(HedgeOptions { reads, ..HedgeOptions::default() });
    let constant = hedging(Policy::Constant { delay: Duration::from_secs(1), max_executions: 2 });
    let percentile = hedging("99.9p >=500ms".parse().unwrap());
    let adaptive = hedging("adaptive=2% >=500ms".parse().unwrap());
    let handles = [("plain", &plain), ("1s", &constant), ("99.9p", &percentile), ("adaptive=2%", &adaptive)];
    let mut best = [f64::MAX; 4];
    for _ in 0..TURNS {
        for (best, (_, table)) in best.iter_mut().zip(&handles) {
            *best = best.min(run(table).await);
        }
    }
    for (best_of, (name, _)) in best.iter().zip(&handles) {
        println!("{name:12} {best_of:6.0} ns per request, {:+5.0} ns", best_of - best[0]);
    }
    println!("{:?}", client.hedge_metrics().counters);
}

/// Nanoseconds of this thread's processor time per request.
async fn run(table: &Table) -> f64 {
    let before = thread_cpu_time();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let table = table.clone();
            tokio::spawn(async move {
                for _ in 0..REQUESTS / CLIENTS {
                    table.get("h", "s").await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    (thread_cpu_time() - before).as_nanos() as f64 / (REQUESTS / CLIENTS * CLIENTS) as f64
}
