//! `hedgerow exporter`: what state a cluster is in and what its nodes count, for Prometheus.
//!
//! Nodes serve nothing but their protocol: they have no further port to be protected. This is a client like others, which asks when it is asked.

mod counted;
mod metrics;

use crate::access::Access;
use crate::cluster::{ClusterArguments, NodesArguments};
use crate::exit::Exit;
use crate::log::announce;
use crate::password::CredentialArguments;
use crate::runtime;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_client::{Client, ClusterStatus};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Found;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long the cluster, and then each of its nodes, may take to answer. Prometheus waits for 10 s unless it is told otherwise.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Who asks again within this time gets the same answer: however many ask, the cluster is not asked more often.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Connections at the same time. Beyond it the oldest is closed.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take to send the head of a request, and to read the answer, in all.
const HEAD_MAX: Duration = Duration::from_secs(2);
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// Time between two attempts to accept after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What the metrics are written in.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Arguments of `exporter`.
#[derive(Args, Debug)]
pub(crate) struct ExporterArguments {
    /// Where Prometheus gets the metrics, at /metrics, unencrypted. Everybody who reaches the address can read them; they name tables and users.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:34690")]
    listen: String,
    #[command(flatten)]
    nodes: NodesArguments,
    #[command(flatten)]
    credentials: CredentialArguments,
}

/// What the task is told that asks the cluster. Whoever wants a page may go before it is there.
enum Order {
    Page(oneshot::Sender<Bytes>),
    ReadAnew,
}

type Orders = mpsc::UnboundedSender<Order>;

/// Asks the cluster, one question at a time.
struct Asker {
    cluster: ClusterArguments,
    /// As what the cluster is asked. Made anew, with files read anew, after somebody did not answer.
    connected: Option<(Client, Access)>,
    told: Option<(Instant, Bytes)>,
}

/// `hedgerow exporter`.
pub(crate) fn run(arguments: ExporterArguments) -> Result<Exit> {
    let ExporterArguments { listen, nodes, credentials } = arguments;
    let cluster = ClusterArguments::without_output(nodes, credentials);
    // A file that is not right is told at once, and not by an empty page.
    cluster.access()?;
    runtime::block_on(serve(listen, cluster))
}

async fn serve(listen: String, cluster: ClusterArguments) -> Result<Exit> {
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hung_up = signal(SignalKind::hangup())?;
    let listener = TcpListener::bind(&listen).await.with_context(|| format!("listening at {listen}"))?;
    let listen = listener.local_addr()?;
    announce(&format!("ready: http://{listen}/metrics has what {} counts", cluster.nodes.cluster.join(",")));
    // There are no more of them than connections, and signals.
    let (orders, inbox) = mpsc::unbounded_channel();
    runtime::spawn(Asker { cluster, connected: None, told: None }.run(inbox));
    runtime::spawn(accept(orders.clone(), listener));
    loop {
        tokio::select! {
            Some(()) = hung_up.recv() => drop(orders.send(Order::ReadAnew)),
            _ = interrupted.recv() => break,
            _ = terminated.recv() => break,
        }
    }
    Ok(Exit::Done)
}

async fn accept(orders: Orders, listener: TcpListener) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                open.retain(|task| !task.is_finished());
                if open.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(runtime::spawn(answer(orders.clone(), connection)));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                runtime::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers one request: connections that are kept would take others' places.
async fn answer(orders: Orders, connection: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        let orders = orders.clone();
        async move { Ok::<_, Infallible>(respond(&orders, request.method(), request.uri().path()).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).keep_alive(false);
    let served = server.serve_connection(TokioIo::new(connection), service);
    match runtime::timeout(CONNECTION_MAX, served).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "a request was not answered"),
        None => tracing::debug!("a connection was closed: it took too long"),
    }
}

async fn respond(orders: &Orders, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let is_read = method == Method::GET || method == Method::HEAD;
    let (status, kind, body) = match path {
        "/metrics" | "/" if !is_read => (StatusCode::METHOD_NOT_ALLOWED, TEXT, Bytes::new()),
        "/metrics" => (StatusCode::OK, FORMAT, page(orders).await),
        "/" => (StatusCode::OK, TEXT, Bytes::from_static(b"hedgerow exporter: the metrics are at /metrics\n")),
        _ => (StatusCode::NOT_FOUND, TEXT, Bytes::from_static(b"there is /metrics, and nothing else\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

async fn page(orders: &Orders) -> Bytes {
    let (done, page) = oneshot::channel();
    drop(orders.send(Order::Page(done)));
    // The task lives as long as the process.
    page.await.unwrap_or_default()
}

impl Asker {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                // Who has gone wants nothing any more.
                Order::Page(done) if done.is_closed() => {}
                Order::Page(done) => drop(done.send(self.page().await)),
                Order::ReadAnew => match self.connect().await {
                    Ok(connected) => {
                        self.connected = Some(connected);
                        tracing::info!("certificates and the password were read anew");
                    }
                    Err(error) => {
                        tracing::error!(error = format!("{error:#}"), "certificates and the password stay as they were")
                    }
                },
            }
        }
    }

    async fn page(&mut self) -> Bytes {
        if let Some((at, told)) = &self.told
            && at.elapsed() < KEPT_FOR
        {
            return told.clone();
        }
        let found = self.ask().await.unwrap_or_else(|error| {
            tracing::warn!(error = format!("{error:#}"), "the cluster does not say what state it is in");
            Found::default()
        });
        let page = Bytes::from(metrics::page(&found));
        self.told = Some((runtime::now(), page.clone()));
        page
    }

    /// Connects by what is in the files now.
    async fn connect(&self) -> Result<(Client, Access)> {
        let cluster = self.cluster.read_anew();
        let access = cluster.access()?;
        Ok((cluster.connect_within(ANSWER_MAX).await?, access))
    }

    /// What the cluster says of itself, and each node of what it has counted.
    async fn ask(&mut self) -> Result<Found> {
        let (client, access) = match self.connected.take() {
            Some(connected) => connected,
            None => self.connect().await?,
        };
        let late = || format!("no answer within {} s", ANSWER_MAX.as_secs());
        let status = runtime::timeout(ANSWER_MAX, client.status()).await.with_context(late)??;
        let counted = count_all(&status, &access).await;
        if status.nodes.iter().all(|node| node.state != "alive" || counted.contains_key(&node.node)) {
            self.connected = Some((client, access));
        }
        Ok(Found { status: Some(status), counted })
    }
}

/// What each node that answers has counted.
async fn count_all(status: &ClusterStatus, access: &Access) -> BTreeMap<u16, Value> {
    let ask = |node: u16, address: String| {
        let access = access.clone();
        runtime::spawn(async move {
            let told = |error: anyhow::Error| {
                tracing::warn!(node, error = format!("{error:#}"), "a node does not say what it has counted");
            };
            access.ask(&address, "reads", ANSWER_MAX).await.map_err(told).ok().map(|counted| (node, counted))
        })
    };
    let nodes = status.nodes.iter().filter(|node| node.state == "alive" && !node.address.is_empty());
    let asked: Vec<_> = nodes.map(|node| ask(node.node, node.address.clone())).collect();
    let mut counted = BTreeMap::new();
    for answer in asked {
        counted.extend(answer.await.ok().flatten());
    }
    counted
}
