//! A node on a real machine: one thread with a single-threaded runtime that drives the node and owns the sockets, but for those of clients if
//! there are threads for these.
//!
//! Everything that blocks is elsewhere: the logs of a device have a committer's threads, jobs run on a small pool, and reads
//! that need the disk on threads of their own, and so is a part of those that do not, if the node may use several cores. Their results come
//! back through a channel and are events like any other. Requests that arrive together are handled together: connection
//! tasks only hand frames to the node, and the driving task, which runs after them, carries the outcome to sockets, logs
//! and jobs in one go.
#![allow(clippy::disallowed_methods, reason = "this file is where the node meets the runtime: it spawns its tasks")]

mod address;
mod audit;
mod client;
mod connections;
mod crew;
mod fault;
mod io_threads;
mod line;
mod logs;
mod peer;
mod reading;
mod security;
mod unsent;

use crate::{Config, ConnectionId, Event, JobContext, Node, OpenError, Opened, ReadSize};
use audit::AuditLog;
use bytes::BytesMut;
use client::Newcomers;
use connections::{Buffers, Connections};
use crew::Crew;
use fault::Faults;
use hedgerow_env::os::{OsClock, give_way, spawn_thread};
use hedgerow_env::{Clock, Disk, Now};
use hedgerow_storage::Engines;
use hedgerow_types::{GroupId, Instant};
use io_threads::IoThreads;
use logs::Committers;
use peer::{Lane, Peers};
use reading::Readers;
use security::Security;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;

/// How often the node is told that time passes.
const TICK: Duration = Duration::from_millis(50);
/// Jobs that run at the same time, long reads and errands aside: flushes of two directories, removals, creations and loads at their limits leave
/// two, and the state is written down by one.
const JOBS_MAX: usize = 13;
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;
/// Time after which a silent connection's other end is asked whether it is there.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often a starting node says which partitions it waits for, and how many of them at most.
const WAITING_TOLD_EVERY: Duration = Duration::from_secs(10);
const LEADERLESS_TOLD_MAX: usize = 5;
/// Time that a stopping node gives its leaderships to move.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// How a running node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being founded, or opens its replicas, or is not known to the metadata, or does not know every leader yet.
    Starting,
    /// It serves, may be given replicas, and knows a leader for every partition.
    Serving,
    /// It has stopped: `Ok` because it was told to, `Err` because it could not go on.
    Stopped(Result<(), String>),
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The audit log cannot be written.
    #[error("cannot write the audit log {}", path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The node cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A node that runs on a thread of its own.
#[derive(Debug)]
pub struct Running {
    state: watch::Receiver<State>,
    stop: mpsc::UnboundedSender<Arrival>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// How the node is; changes can be waited for.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Asks the node to hand over what it leads and to stop.
    pub fn stop(&self) {
        // The receiver is gone only once the node has stopped by itself.
        let _ = self.stop.send(Arrival::Stop);
    }

    /// Waits until the node has stopped. Blocks.
    pub fn join(mut self) -> Result<(), String> {
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| "the node's thread panicked".to_owned())?;
        }
        match &*self.state.borrow() {
            State::Stopped(result) => result.clone(),
            State::Starting | State::Serving => Err("the node's thread ended without a word".to_owned()),
        }
    }
}

/// What comes from other threads.
#[allow(clippy::large_enum_variant, reason = "nearly all are events")]
enum Arrival {
    Event(Event),
    Stop,
    /// What panicked.
    Panicked(&'static str),
}

/// Lives where something of the node runs, and tells the node if that panics: a node never goes on in part.
struct PanicGuard {
    what: &'static str,
    arrivals: mpsc::UnboundedSender<Arrival>,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The receiver is gone once the node has stopped.
            let _ = self.arrivals.send(Arrival::Panicked(self.what));
        }
    }
}

/// Opens the node, listens, and starts its thread. Blocks until the node's data is open.
pub fn start(config: Config, disk: Arc<dyn Disk>, engines: Arc<dyn Engines>) -> Result<Running, StartError> {
    let listener = listen(&config.listen)?;
    let name = format!("node-{}", config.node.0);
    let context = (Arc::clone(&disk), Arc::clone(&engines));
    let own = address::look_up(&config.address).ok().and_then(|found| found.into_iter().next());
    let own = own.or_else(|| listener.local_addr().ok());
    // Before what may take minutes.
    let losses = Arc::default();
    let audit = start_audit(&config, &disk, &losses)?;
    let mut opened = Node::open(config, disk, engines, OsClock.read())?;
    opened.node.begin_life();
    if let Some(own) = own {
        opened.node.note_address(opened.node.id(), own);
    }
    opened.node.front.audit().note_start();
    opened.node.front.audit().count_losses_in(losses);
    let (arrivals, inbox) = mpsc::unbounded_channel();
    let (state_sender, state) = watch::channel(State::Starting);
    let stop = arrivals.clone();
    let body = move || {
        let result = run(opened, context, listener, audit, (arrivals, inbox), &state_sender);
        state_sender.send_replace(State::Stopped(result));
    };
    let thread = spawn_thread(&name, body).map_err(StartError::Thread)?;
    Ok(Running { state, stop, thread: Some(thread) })
}

fn start_audit(config: &Config, disk: &Arc<dyn Disk>, losses: &Arc<AtomicU64>) -> Result<Option<AuditLog>, StartError> {
    let Some(file) = config.audit.clone() else { return Ok(None) };
    let path = file.path.clone();
    let log = AuditLog::start(Arc::clone(disk), file, config.node, Arc::clone(losses));
    Ok(Some(log.map_err(|source| StartError::Audit { path, source })?))
}

fn listen(address: &str) -> Result<std::net::TcpListener, StartError> {
    let refused = |source| StartError::Listen { address: address.to_owned(), source };
    let mut failed = io::Error::other("it stands for no address");
    for socket in address::look_up(address).map_err(refused)? {
        match bind(socket) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(refused(failed))
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    // A node that was killed leaves connections behind that would keep the address for a minute.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG as i32)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The node and everything that its tasks share. One thread.
pub(crate) struct Host {
    pub(crate) newcomers: Newcomers,
    /// Clients' connections, if there are no threads for them.
    pub(crate) clients: Connections,
    pub(crate) io_threads: Option<IoThreads>,
    pub(crate) peers: Peers,
    pub(crate) faults: Faults,
    pub(crate) security: Security,
    /// Wakes the driving task.
    pub(crate) wake: Arc<Notify>,
    /// Time spent on clients' requests since the node was driven last.
    pub(crate) busy: Cell<Duration>,
    arrivals: mpsc::UnboundedSender<Arrival>,
    /// Dropped last: to close its storages takes a second or more, and nobody is to wait meanwhile for an answer that will not come.
    pub(crate) node: RefCell<Node>,
}

impl Host {
    /// Runs a task of the node beside the others, on its thread. The node ends if it panics.
    pub(crate) fn spawn(&self, what: &'static str, task: impl Future<Output = ()> + 'static) {
        spawn(what, self.arrivals.clone(), task);
    }

    /// Whether another client may be served.
    pub(crate) fn has_room_for_client(&self) -> bool {
        let node = self.node.borrow();
        self.newcomers.clients() < node.config.clients_max(node.shards.hosted_count())
    }

    fn has_room_for_newcomer(&self) -> bool {
        let node = self.node.borrow();
        let most = node.config.clients_max(node.shards.hosted_count()) + node.config.newcomers_max();
        self.newcomers.count() < most
    }

    /// Clients' requests have been taken since `begun`.
    fn note_busy(&self, begun: Now) {
        self.busy.set(self.busy.get() + OsClock.now().since(begun.instant));
    }

    /// A reply, which has left after [`Host::flush_to_clients`].
    fn send_to_client(&self, id: ConnectionId, bytes: BytesMut) {
        let is_full = match &self.io_threads {
            Some(threads) => threads.send(id, bytes),
            None => self.clients.send(id, bytes),
        };
        if is_full {
            refuse_unread(self, id);
        }
    }

    /// Closes a connection once what waits for it is written.
    fn close_client(&self, id: ConnectionId) {
        match &self.io_threads {
            Some(threads) => threads.close(id),
            None => self.clients.close(id),
        }
    }

    fn flush_to_clients(&self) {
        match &self.io_threads {
            Some(threads) => threads.flush(),
            None => self.clients.make_room(),
        }
    }
}

/// Runs a task beside the others of its thread. The node ends if it panics.
fn spawn(what: &'static str, arrivals: mpsc::UnboundedSender<Arrival>, task: impl Future<Output = ()> + 'static) {
    let guard = PanicGuard { what, arrivals };
    tokio::task::spawn_local(async move {
        let _guard = guard;
        task.await;
    });
}

/// What drives sockets on the thread that it is used by.
fn own_runtime() -> tokio::runtime::Builder {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().event_interval(61);
    runtime
}

type Context = (Arc<dyn Disk>, Arc<dyn Engines>);

/// Who takes turns, and who runs jobs.
struct Workers {
    crew: Crew,
    jobs: Arc<JobContext>,
    /// Where the audit log is written, if one is.
    audit: Option<AuditLog>,
    /// Reads that need the disk.
    readers: Readers,
    /// A part of those that do not.
    helpers: Readers,
    /// Catalogues, which must not wait for jobs whose disk does not answer.
    keeper: Readers,
}

fn run(
    opened: Opened,
    context: Context,
    listener: std::net::TcpListener,
    audit: Option<AuditLog>,
    (arrivals, inbox): (mpsc::UnboundedSender<Arrival>, mpsc::UnboundedReceiver<Arrival>),
    state: &watch::Sender<State>,
) -> Result<(), String> {
    // Let go behind all that writes: committers, jobs and the runtime are gone when this is dropped.
    let _locks = Arc::clone(&opened.node.locks);
    // Each shard has its limits.
    let (directories, shards) = (opened.node.config.data.len(), opened.node.config.shards);
    let runtime = own_runtime()
        .max_blocking_threads((JOBS_MAX + directories * (1 + ReadSize::Long.places())) * shards)
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let Opened { node, logs } = opened;
    let readers = logs.iter().map(hedgerow_wal::Log::reader).collect();
    let jobs = Arc::new(JobContext { disk: context.0, engines: context.1, readers });
    let start_readers = |name, count| {
        Readers::start(name, count, &jobs, &arrivals).map_err(|error| format!("cannot start a thread: {error}"))
    };
    let readers = start_readers("reader", directories * ReadSize::Short.places() * shards)?;
    let helpers = start_readers("worker", node.config.workers - 1)?;
    let keeper = start_readers("catalogue", 1)?;
    let committers = Committers::start(logs, &*jobs.disk, &arrivals);
    let committers = committers.map_err(|error| format!("cannot start a thread: {error}"))?;
    let crew = Crew::start(node.config.shards - 1).map_err(|error| format!("cannot start a thread: {error}"))?;
    let workers = Workers { crew, jobs, audit, readers, helpers, keeper };
    let result = LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let peers = Peers::new(&node);
        let faults = Faults::new(node.config.may_fault).map_err(|error| format!("cannot make faults: {error}"))?;
        let clients = Connections::new(&node.config, &Buffers::default(), 1);
        let (wake, busy) = (Arc::new(Notify::new()), Cell::default());
        let io_threads = IoThreads::start(node.config.io_threads - 1, &node.config, &wake, &arrivals)
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let security = Security::start(node.config.tls.clone(), node.config.audit.is_some())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        let (node, newcomers, arrivals_of_host) = (RefCell::new(node), Newcomers::default(), arrivals.clone());
        let host = Host {
            node,
            newcomers,
            clients,
            io_threads,
            peers,
            faults,
            security,
            wake,
            busy,
            arrivals: arrivals_of_host,
        };
        let host = Rc::new(host);
        fault::start(&host);
        host.spawn("the task that accepts connections", accept(Rc::clone(&host), listener));
        peer::start(&host);
        let result = drive(&host, &committers, &workers, arrivals, inbox, state).await;
        host.node.borrow_mut().front.audit().end(result.is_ok());
        write_audit(&host, &workers);
        result
    });
    committers.stop();
    result
}

async fn accept(host: Rc<Host>, listener: TcpListener) {
    let mut last = 0;
    loop {
        match listener.accept().await {
            // Files are kept for the log, for replicas and for the other nodes. Who is silent makes room for who may not be.
            Ok((_, from)) if !host.has_room_for_newcomer() && !host.newcomers.close_silent() => {
                tracing::debug!(%from, "too many connections")
            }
            Ok((stream, _)) => {
                last += 1;
                let _ = stream.set_nodelay(true);
                // A machine that lost power closes nothing.
                let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&address::keepalive(IDLE_MAX, IDLE_MAX / 6));
                host.spawn("a connection's task", client::serve(Rc::clone(&host), stream, ConnectionId(last)));
            }
            Err(error) => {
                // Out of descriptors, most likely: others may be closed meanwhile.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// Takes events, drives the node, and carries out what it wants, until it is to stop.
async fn drive(
    host: &Rc<Host>,
    committers: &Committers,
    workers: &Workers,
    arrivals: mpsc::UnboundedSender<Arrival>,
    mut inbox: mpsc::UnboundedReceiver<Arrival>,
    state: &watch::Sender<State>,
) -> Result<(), String> {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stop_by: Option<tokio::time::Instant> = None;
    let mut alarm = Alarm::new();
    let mut told_at = OsClock.now();
    loop {
        tokio::select! {
            () = host.wake.notified() => {}
            () = alarm.wait() => host.node.borrow_mut().handle(Event::Wake, OsClock.read()),
            _ = tick.tick() => {
                host.node.borrow_mut().handle(Event::Tick, OsClock.read());
                host.clients.close_stuck(OsClock.now());
                host.security.tell_unencrypted(OsClock.now());
                host.security.tls().into_iter().for_each(|tls| host.peers.close_revoked(tls));
                note_state(host, state, &mut told_at);
                let is_done = stop_by.is_some_and(|by| tokio::time::Instant::now() >= by)
                    || (stop_by.is_some() && host.node.borrow().leads_nothing());
                if is_done {
                    return Ok(());
                }
            }
            Some(arrival) = inbox.recv() => {
                let mut arrival = Some(arrival);
                let mut node = host.node.borrow_mut();
                while let Some(next) = arrival {
                    match next {
                        Arrival::Event(event) => node.handle(event, OsClock.read()),
                        Arrival::Stop if stop_by.is_none() => {
                            stop_by = Some(tokio::time::Instant::now() + HAND_OVER_MAX);
                            node.hand_over(OsClock.read());
                        }
                        Arrival::Stop => return Ok(()),
                        Arrival::Panicked(what) => {
                            return Err(format!("{what} panicked, which is a defect of this program"));
                        }
                    }
                    arrival = inbox.try_recv().ok();
                }
            }
        }
        if let Some(threads) = &host.io_threads {
            threads.take_frames(host);
        }
        carry_out(host, committers, workers, &arrivals)?;
        let has_queued = host.node.borrow().has_queued();
        alarm.set(host.node.borrow().wakes_at());
        if has_queued {
            host.wake.notify_one();
        }
        // Connections are read first: what they bring may cancel what is queued. Other threads may give the word for the next turn before this one has
        // ended, each time, and neither nodes nor time would be heard of.
        if has_queued || host.io_threads.is_some() {
            tokio::task::yield_now().await;
        }
    }
}

/// Rings at the time at which the node wants to be woken, or earlier, which does no harm. By the runtime's timer, whose
/// milliseconds are fine enough: what wakes the node are deadlines, patience and pauses between messages.
struct Alarm {
    sleep: std::pin::Pin<Box<tokio::time::Sleep>>,
    at: Option<Instant>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), at: None }
    }

    /// Rings at `wanted`. An earlier time that it is set to stays: most reads are answered long before anybody loses
    /// patience, and setting it for each of them would cost more than ringing in vain now and then.
    fn set(&mut self, wanted: Option<Instant>) {
        let Some(wanted) = wanted.filter(|wanted| self.at.is_none_or(|at| *wanted < at)) else { return };
        self.at = Some(wanted);
        self.sleep.as_mut().reset(tokio::time::Instant::now() + wanted.since(OsClock.now()));
    }

    /// Ends when it rings, once.
    async fn wait(&mut self) {
        if self.at.is_none() {
            return std::future::pending().await;
        }
        self.sleep.as_mut().await;
        self.at = None;
    }
}

fn note_state(host: &Host, state: &watch::Sender<State>, told_at: &mut Instant) {
    let node = host.node.borrow();
    if *state.borrow() != State::Starting || !node.is_serving() || !node.is_registered() {
        return;
    }
    if node.knows_all_leaders() {
        state.send_replace(State::Serving);
    } else if OsClock.now().since(*told_at) >= WAITING_TOLD_EVERY {
        *told_at = OsClock.now();
        let table = |group: GroupId| node.view.catalogue.as_ref()?.tables.get(&group.table);
        let named = |group: GroupId| {
            let name = table(group).map_or("", |table| &table.name);
            format!("{name}.{}", group.partition)
        };
        let count = node.without_leader().count();
        let first: Vec<String> = node.without_leader().take(LEADERLESS_TOLD_MAX).map(named).collect();
        let text = "this node serves, but is not ready: partitions have no leader (`hedgerow status` says why)";
        tracing::warn!(count, first = first.join(", "), "{text}");
    }
}

/// Reads of a connection that wait in the node are refused: its client leaves so much unread.
fn refuse_unread(host: &Host, connection: ConnectionId) {
    if host.node.borrow_mut().refuse_unread(connection, OsClock.read()) {
        host.wake.notify_one();
    }
}

/// Hands on what the audit log is to say, if one is kept.
fn write_audit(host: &Host, workers: &Workers) {
    let Some(audit) = &workers.audit else { return };
    let mut node = host.node.borrow_mut();
    let (records, now) = (node.front.audit(), OsClock.read());
    for (from, reason) in host.security.take_refused() {
        records.note_login_refused(from, &reason, now.instant);
    }
    audit.put(records.take(), now.unix_micros);
}

/// Drives the node and empties its outbox.
fn carry_out(
    host: &Rc<Host>,
    committers: &Committers,
    workers: &Workers,
    arrivals: &mpsc::UnboundedSender<Arrival>,
) -> Result<(), String> {
    let mut node = host.node.borrow_mut();
    let begun = OsClock.read();
    node.drive_by(&workers.crew, begun);
    let outbox = std::mem::take(node.outbox());
    drop(node);
    let busy = host.busy.take();
    let is_for_clients = !busy.is_zero() || !outbox.clients.is_empty();
    for (log, submission) in outbox.submissions {
        committers.submit(log, submission);
    }
    for (peer, address) in outbox.moved {
        host.peers.note_moved(peer, &address);
    }
    for (peer, bytes) in outbox.peers {
        if let Some(bytes) = host.faults.to_peer(peer, bytes) {
            host.peers.send(peer, Lane::Main, bytes);
        }
    }
    for (peer, bytes) in outbox.bulk {
        if let Some(bytes) = host.faults.to_peer_in_bulk(peer, bytes) {
            host.peers.send(peer, Lane::Bulk, bytes);
        }
    }
    for (connection, bytes) in outbox.clients {
        if let Some(bytes) = host.faults.to_client(connection, bytes) {
            host.send_to_client(connection, bytes);
        }
    }
    outbox
        .closed
        .into_iter()
        .filter(|it| host.faults.may_close(*it))
        .for_each(|connection| host.close_client(connection));
    host.flush_to_clients();
    for job in outbox.jobs {
        let threads = match job.read_size() {
            Some(ReadSize::Short) => Some(&workers.readers),
            Some(ReadSize::Shared) => Some(&workers.helpers),
            None if matches!(job, crate::Job::SaveCatalogue { .. }) => Some(&workers.keeper),
            Some(ReadSize::Long) | None => None,
        };
        if let Some(threads) = threads {
            threads.run(job);
            continue;
        }
        let (jobs, arrivals) = (Arc::clone(&workers.jobs), arrivals.clone());
        // These threads do nothing else, so that none has to be made eager again.
        tokio::task::spawn_blocking(move || {
            let _guard = PanicGuard { what: "a job's thread", arrivals: arrivals.clone() };
            give_way();
            drop(arrivals.send(Arrival::Event(Event::Job(job.run(&jobs)))));
        });
    }
    write_audit(host, workers);
    if is_for_clients {
        let now = OsClock.now();
        host.node.borrow_mut().note_work(busy + now.since(begun.instant), now);
    }
    host.faults.obey(outbox.faults);
    outbox.failure.map_or(Ok(()), Err)
}
