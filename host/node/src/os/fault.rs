//! Faults made on purpose: what this node sends leaves later, what clients send arrives later, the node stands still, or
//! computes for a share of the time only.
//!
//! Bytes that are to leave later wait in one queue, in the order of their times; a task wakes for the first of them. To one
//! destination nothing overtakes, also when a delay becomes shorter. While nothing is switched on, each call here is one
//! branch.
//!
//! All that a node does in its thread, it does between two drives; so a node with a share of a core rests after a drive,
//! as long as what it has computed costs at its share.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts the task of the delayed bytes, and sleeps in order to stall or to compute less"
)]

use super::Host;
use super::peer::Lane;
use crate::config::PEER_BACKLOG_MAX;
use crate::{ConnectionId, Event};
use bytes::{Bytes, BytesMut};
use hedgerow_env::Clock;
use hedgerow_env::fault::{Action, Allowance, Shaper, Stall, Switches};
use hedgerow_env::os::{OsClock, thread_cpu_time};
use hedgerow_env::timer::AsyncTimer;
use hedgerow_types::{Instant, NodeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Delayed bytes above which nothing more is read from clients.
const HELD_MAX: usize = 512 << 20;

/// The fault layer of a node.
pub(crate) struct Faults {
    /// Whether anything may be late: switches that are on, or bytes that wait.
    is_on: Cell<bool>,
    /// The share of a core that the node's thread keeps to.
    allowance: Cell<Option<Allowance>>,
    /// The highest number of a stall so far.
    last_stall: Cell<u64>,
    held: RefCell<Held>,
    /// Set to the time of the first delayed bytes. `None` where no faults are allowed.
    timer: Option<AsyncTimer>,
}

/// Who delayed bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Peer(NodeId),
    /// The same over the connection for what is large.
    Bulk(NodeId),
    Client(ConnectionId),
    /// This node, from a client.
    Node(ConnectionId),
}

/// What is delayed.
enum Parcel {
    Bytes(BytesMut),
    Request(Bytes),
    Close,
}

impl Parcel {
    fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Request(bytes) => bytes.len(),
            Self::Close => 0,
        }
    }
}

#[derive(Default)]
struct Held {
    switches: Switches,
    /// Both directions of each link in `switches`.
    shapers: Vec<(Shaper, Shaper)>,
    /// Where clients connect from, and over which link that is.
    clients: BTreeMap<ConnectionId, (Option<IpAddr>, Option<usize>)>,
    queue: BTreeMap<(Instant, u64), (Destination, Parcel)>,
    last: u64,
    /// Who waits for how many parcels, and when the last of them leaves.
    waiting: BTreeMap<Destination, (usize, Instant)>,
    size: usize,
}

impl Held {
    fn set(&mut self, switches: Switches) {
        let shaper = |link: &hedgerow_env::fault::Link| (Shaper::new(link.outgoing), Shaper::new(link.incoming));
        self.shapers = switches.links.iter().map(shaper).collect();
        for (address, link) in self.clients.values_mut() {
            *link = address.and_then(|address| switches.client_link(address));
        }
        self.switches = switches;
    }

    fn is_on(&self) -> bool {
        self.switches.delays() || !self.queue.is_empty()
    }

    /// When `size` bytes for `destination` may leave; never before others for it.
    fn leaves_at(&mut self, destination: Destination, size: usize, now: Instant) -> Instant {
        let link = match destination {
            Destination::Peer(node) | Destination::Bulk(node) => self.switches.node_link(node.0),
            Destination::Client(id) | Destination::Node(id) => self.clients.get(&id).and_then(|(_, link)| *link),
        };
        let shapers = link.and_then(|link| self.shapers.get_mut(link));
        let at = match destination {
            Destination::Node(_) => shapers.map_or(now, |(_, incoming)| incoming.leaves_at(now, size)),
            Destination::Peer(_) | Destination::Bulk(_) | Destination::Client(_) => {
                let at = shapers.map_or(now, |(outgoing, _)| outgoing.leaves_at(now, size));
                at + Duration::from_micros(self.switches.slow_us)
            }
        };
        self.waiting.get(&destination).map_or(at, |(_, last)| at.max(*last))
    }

    fn put(&mut self, destination: Destination, parcel: Parcel, at: Instant) {
        self.last += 1;
        self.size += parcel.size();
        let (count, last) = self.waiting.entry(destination).or_default();
        (*count, *last) = (*count + 1, at);
        self.queue.insert((at, self.last), (destination, parcel));
    }

    /// The first parcel, if it may leave at `now`.
    fn take(&mut self, now: Instant) -> Option<(Destination, Parcel)> {
        let first = self.queue.first_entry().filter(|first| first.key().0 <= now)?;
        let (destination, parcel) = first.remove();
        self.size -= parcel.size();
        if let Some((count, _)) = self.waiting.get_mut(&destination) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&destination);
            }
        }
        Some((destination, parcel))
    }
}

impl Faults {
    /// The layer of a node with nothing switched on. To be made within the node's runtime.
    pub(crate) fn new(may_fault: bool) -> io::Result<Self> {
        let timer = may_fault.then(AsyncTimer::new).transpose()?;
        Ok(Self {
            is_on: Cell::new(false),
            allowance: Cell::new(None),
            last_stall: Cell::new(0),
            held: RefCell::default(),
            timer,
        })
    }

    /// Whether clients may be read from.
    pub(crate) fn is_full(&self) -> bool {
        self.is_on.get() && self.held.borrow().size > HELD_MAX
    }

    /// Gives `bytes` back if they are to be sent to `node` now.
    #[inline]
    pub(crate) fn to_peer(&self, node: NodeId, bytes: BytesMut) -> Option<BytesMut> {
        if self.is_on.get() { self.pass(Destination::Peer(node), bytes, Parcel::Bytes) } else { Some(bytes) }
    }

    /// The same for the connection for what is large.
    #[inline]
    pub(crate) fn to_peer_in_bulk(&self, node: NodeId, bytes: BytesMut) -> Option<BytesMut> {
        if self.is_on.get() { self.pass(Destination::Bulk(node), bytes, Parcel::Bytes) } else { Some(bytes) }
    }

    /// Gives `bytes` back if they are to be sent to a client now.
    #[inline]
    pub(crate) fn to_client(&self, id: ConnectionId, bytes: BytesMut) -> Option<BytesMut> {
        if self.is_on.get() { self.pass(Destination::Client(id), bytes, Parcel::Bytes) } else { Some(bytes) }
    }

    /// Gives `frame` back if the node is to take it from a client now.
    #[inline]
    pub(crate) fn take_request(&self, id: ConnectionId, frame: Bytes) -> Option<Bytes> {
        if self.is_on.get() { self.pass(Destination::Node(id), frame, Parcel::Request) } else { Some(frame) }
    }

    /// Whether a connection is to be closed now; otherwise it is when what is delayed for it has left.
    pub(crate) fn may_close(&self, id: ConnectionId) -> bool {
        let mut held = self.held.borrow_mut();
        let destination = Destination::Client(id);
        let Some((_, last)) = held.waiting.get(&destination).copied() else { return true };
        held.put(destination, Parcel::Close, last);
        false
    }

    /// A client has connected.
    pub(crate) fn note_client(&self, id: ConnectionId, stream: &TcpStream) {
        if self.timer.is_some() {
            let address = stream.peer_addr().ok().map(|address| address.ip());
            let mut held = self.held.borrow_mut();
            let link = address.and_then(|address| held.switches.client_link(address));
            held.clients.insert(id, (address, link));
        }
    }

    /// A client has gone.
    pub(crate) fn forget_client(&self, id: ConnectionId) {
        if self.timer.is_some() {
            self.held.borrow_mut().clients.remove(&id);
        }
    }

    fn pass<B: AsRef<[u8]>>(&self, to: Destination, bytes: B, parcel: fn(B) -> Parcel) -> Option<B> {
        let mut held = self.held.borrow_mut();
        let (now, size) = (OsClock.now(), bytes.as_ref().len());
        let at = held.leaves_at(to, size, now);
        if at <= now && !held.waiting.contains_key(&to) {
            return Some(bytes);
        }
        if matches!(to, Destination::Peer(_) | Destination::Bulk(_)) && held.size + size > PEER_BACKLOG_MAX {
            tracing::warn!(?to, size, "a slow link has too much to carry: a message to another node is lost");
            return None;
        }
        let is_first = held.queue.first_key_value().is_none_or(|((first, _), _)| at < *first);
        held.put(to, parcel(bytes), at);
        if is_first {
            self.set_timer(at);
        }
        None
    }

    fn set_timer(&self, at: Instant) {
        if let Some(timer) = &self.timer {
            timer.set(at).expect("the time and the descriptor are valid");
        }
    }

    /// Does what was commanded, after a drive. Sleeps if it is a stall, which is what a stall is, or if the thread has
    /// used up its share of a core.
    pub(crate) fn obey(&self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Set(switches) => {
                    tracing::info!(?switches, "faults are switched");
                    let allowance = |percent| Allowance::new(percent, OsClock.now(), thread_cpu_time());
                    self.allowance.set(switches.cpu_percent.map(allowance));
                    let mut held = self.held.borrow_mut();
                    held.set(switches);
                    self.is_on.set(held.is_on());
                }
                Action::Stall(Stall { number, lasts_us }) if number > self.last_stall.get() => {
                    tracing::info!(lasts_us, "the node stalls, as it was told to");
                    self.last_stall.set(number);
                    std::thread::sleep(Duration::from_micros(lasts_us));
                }
                Action::Stall(_) => {}
            }
        }
        if let Some(mut allowance) = self.allowance.get() {
            let rest = allowance.rest(OsClock.now(), thread_cpu_time());
            self.allowance.set(Some(allowance));
            if let Some(rest) = rest {
                std::thread::sleep(rest);
            }
        }
    }
}

/// Starts the task that delivers what was delayed, if there can be any.
pub(crate) fn start(host: &Rc<Host>) {
    if host.faults.timer.is_some() {
        host.spawn("the task that delays messages", deliver(Rc::clone(host)));
    }
}

async fn deliver(host: Rc<Host>) {
    let faults = &host.faults;
    let Some(timer) = &faults.timer else { return };
    loop {
        if let Err(error) = timer.wait().await {
            // Bytes on their way are lost then, as on a link that breaks for good.
            tracing::error!(%error, "delayed bytes cannot be delivered");
            return;
        }
        loop {
            let now = OsClock.now();
            let next = faults.held.borrow_mut().take(now);
            let Some((destination, parcel)) = next else { break };
            hand_over(&host, destination, parcel);
        }
        host.flush_to_clients();
        let held = faults.held.borrow();
        faults.is_on.set(held.is_on());
        if let Some(((first, _), _)) = held.queue.first_key_value() {
            faults.set_timer(*first);
        }
    }
}

fn hand_over(host: &Host, destination: Destination, parcel: Parcel) {
    match (destination, parcel) {
        (Destination::Peer(node), Parcel::Bytes(bytes)) => host.peers.send(node, Lane::Main, bytes),
        (Destination::Bulk(node), Parcel::Bytes(bytes)) => host.peers.send(node, Lane::Bulk, bytes),
        (Destination::Client(id), Parcel::Bytes(bytes)) => host.send_to_client(id, bytes),
        (Destination::Client(id), Parcel::Close) => host.close_client(id),
        // The requests of a connection that is gone are gone with it, as they would be on the way.
        (Destination::Node(id), Parcel::Request(frame)) if host.faults.held.borrow().clients.contains_key(&id) => {
            host.node.borrow_mut().handle(Event::Client(id, frame), OsClock.read());
            host.wake.notify_one();
        }
        _ => {}
    }
}
