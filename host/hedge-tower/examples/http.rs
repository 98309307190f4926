//! Plain HTTP with hedging off and on: two servers on this machine, of which one stands still for 60 ms now and then.
//!
//! `cargo run --release -p hedgerow-hedge-tower --example http`
#![allow(clippy::disallowed_methods, reason = "an example starts its servers and reads the clock")]

use hedgerow_hedge_tower::{Classify, HedgeLayer, Outcome, Policy};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::{Client, Error, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tower::util::MapRequest;
use tower::{Service, ServiceExt};

const REQUESTS: usize = 4_000;
const INTERVAL: Duration = Duration::from_millis(1);
/// The server that stalls does so for this long in each of those periods: of all requests about 3 % meet it.
const STALL: Duration = Duration::from_millis(60);
const PERIOD: Duration = Duration::from_millis(1_000);

/// HTTP as its standard says: safe methods may run twice, and what a server says of itself says nothing about others.
#[derive(Clone, Copy)]
struct Http;

impl Classify<Request<()>, Response<Incoming>, Error> for Http {
    fn may_hedge(&self, request: &Request<()>) -> bool {
        request.method().is_safe()
    }

    fn clone_request(&self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }

    fn outcome(&self, result: &Result<Response<Incoming>, Error>) -> Outcome {
        match result {
            Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => Outcome::NonFatal,
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::NonFatal,
        }
    }
}

/// Serves until the process ends.
async fn serve(listener: TcpListener, start: Instant, is_stalling: bool) {
    while let Ok((stream, _)) = listener.accept().await {
        let answer = service_fn(move |_: Request<Incoming>| async move {
            let phase = Duration::from_nanos((start.elapsed().as_nanos() % PERIOD.as_nanos()) as u64);
            if is_stalling && phase < STALL {
                tokio::time::sleep(STALL - phase).await;
            }
            Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

type Http1 = Client<HttpConnector, Empty<Bytes>>;

/// One server as a service: the request gets the server's address and a body.
fn replica(address: SocketAddr) -> MapRequest<Http1, impl FnMut(Request<()>) -> Request<Empty<Bytes>> + Clone> {
    let client: Http1 = Client::builder(TokioExecutor::new()).build_http();
    client.map_request(move |request: Request<()>| {
        let (mut parts, ()) = request.into_parts();
        parts.uri = format!("http://{address}{}", parts.uri.path()).parse().expect("an address and a path");
        Request::from_parts(parts, Empty::new())
    })
}

async fn measure(policy: &str, addresses: [SocketAddr; 2]) {
    let policy: Policy = policy.parse().expect("a policy");
    let shown = policy.to_string();
    let layer = HedgeLayer::new(policy, Http);
    let mut service = layer.over(addresses.map(replica));
    let mut tasks = Vec::with_capacity(REQUESTS);
    let mut ticks = tokio::time::interval(INTERVAL);
    for _ in 0..REQUESTS {
        // From when it was due: a request that could not be sent in time has waited too.
        let due = ticks.tick().await;
        service.ready().await.expect("clients are always ready");
        let reply = service.call(Request::get("/").body(()).expect("a request"));
        tasks.push(tokio::spawn(async move {
            let response = reply.await.expect("an answer");
            assert!(response.status().is_success());
            due.elapsed()
        }));
    }
    let mut latencies = Vec::with_capacity(REQUESTS);
    for task in tasks {
        latencies.push(task.await.expect("no panic"));
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies[((REQUESTS - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let extra: u64 = layer.counters().sent.iter().sum();
    println!(
        "{shown:<16} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>11.2} %",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        extra as f64 / REQUESTS as f64 * 100.0
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let start = Instant::now();
    let mut addresses = Vec::new();
    for is_stalling in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        tokio::spawn(serve(listener, start, is_stalling));
    }
    println!("ms                     p50       p90       p99     p99.9   extra load");
    for policy in ["none", "5ms", "min(97p,20ms)"] {
        measure(policy, [addresses[0], addresses[1]]).await;
    }
    Ok(())
}
