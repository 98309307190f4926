//! Threads that own clients' sockets: they read, find frames, encrypt and write, and the node's own thread does none of that. What the two have
//! for each other goes through a pair of queues, by the batch.
//!
//! A connection stays with one thread. Its frames reach the node in the order in which they came, and before the news that it has ended; where
//! others wait, or a thread falls behind, what is left of a connection that has ended is thrown away. What is under way to the node is bounded for
//! each thread; beyond that its connections take turns, as they do before a busy node.

use super::connections::{Buffers, Connections, LOOK_INTERVAL, SHARE, Taker, converse};
use super::{Arrival, Host, OsClock, PanicGuard};
use crate::{Config, ConnectionId};
use bytes::{Bytes, BytesMut};
use hedgerow_env::os::spawn_thread;
use hedgerow_env::{Clock as _, Now};
use hedgerow_tls::{Detached, Stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{LocalSet, yield_now};

/// Bytes of frames that one thread may have under way to the node. One frame may be larger.
const UNDER_WAY_MAX: usize = 4 << 20;
/// Bytes of replies that may wait for a thread, at least.
const REPLIES_MIN: usize = 16 << 20;
/// What a frame takes beside its bytes.
const FRAME_COST: usize = 64;
/// Frames up to this size are copied: each would keep the room of the read that brought it, four times as much or more.
const COPIED_MAX: usize = 4 << 10;

/// The threads. When this is dropped they close their connections, and are waited for.
pub(crate) struct IoThreads {
    /// To and from each of them.
    ways: Vec<Arc<Way>>,
    threads: Vec<JoinHandle<()>>,
    /// Replies of this turn, by thread.
    orders: RefCell<Vec<Vec<Order>>>,
    waiting: RefCell<Waiting>,
}

/// What the node and a thread have for each other.
struct Way {
    orders: Mutex<Vec<Order>>,
    /// There are orders.
    ordered: Notify,
    reports: Mutex<Vec<Report>>,
    /// What the frames that the node has not taken yet take.
    under_way: AtomicUsize,
    /// There is room again for more.
    has_room: Notify,
    /// Bytes of replies that the thread has not got to yet, and how many may be before the node takes no more frames.
    replies: AtomicUsize,
    replies_max: usize,
}

/// From the node to a thread.
enum Order {
    Serve(Detached, ConnectionId, BytesMut, oneshot::Sender<()>),
    Send(ConnectionId, BytesMut),
    /// Once what waits for it is written.
    Close(ConnectionId),
    Stop,
}

/// From a thread to the node.
enum Report {
    /// This has come on a connection.
    Came(ConnectionId, Item),
    /// As many replies wait on it as may.
    Unread(ConnectionId),
}

/// What comes on a connection.
enum Item {
    Frame(Bytes),
    NoFrame,
}

impl Item {
    const fn cost(&self) -> usize {
        match self {
            Self::Frame(frame) => frame.len() + FRAME_COST,
            Self::NoFrame => FRAME_COST,
        }
    }

    fn hand_to(self, host: &Host, id: ConnectionId, now: Now) {
        match self {
            Self::Frame(frame) => host.take(id, frame, now),
            Self::NoFrame => host.refuse(id),
        }
    }
}

impl Way {
    fn new(replies_max: usize) -> Self {
        Self {
            orders: Mutex::default(),
            ordered: Notify::new(),
            reports: Mutex::default(),
            under_way: AtomicUsize::new(0),
            has_room: Notify::new(),
            replies: AtomicUsize::new(0),
            replies_max,
        }
    }

    /// Whether the thread falls behind: encrypting and writing may take it longer than the node takes for reading.
    fn is_behind(&self) -> bool {
        self.replies.load(Ordering::Relaxed) >= self.replies_max
    }

    /// The thread has got to so many bytes of replies. Returns whether it has caught up by that.
    fn note_sent(&self, bytes: usize) -> bool {
        let before = self.replies.fetch_sub(bytes, Ordering::Relaxed);
        before >= self.replies_max && before - bytes < self.replies_max
    }

    fn order(&self, orders: impl IntoIterator<Item = Order>) {
        lock(&self.orders).extend(orders);
        self.ordered.notify_one();
    }

    /// The node has taken frames of this cost.
    fn note_taken(&self, cost: usize) {
        let before = self.under_way.fetch_sub(cost, Ordering::Relaxed);
        if before >= UNDER_WAY_MAX && before - cost < UNDER_WAY_MAX {
            self.has_room.notify_waiters();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames that have come to the node and wait until it takes them: the connections have their turns one after the other.
#[derive(Default)]
struct Waiting {
    order: VecDeque<ConnectionId>,
    /// None of them is empty.
    frames: BTreeMap<ConnectionId, VecDeque<Item>>,
    /// Connections that have not ended, and those of them that the node has closed: their threads may not know yet, and nothing that comes there is
    /// taken.
    open: BTreeSet<ConnectionId>,
    closed: BTreeSet<ConnectionId>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn put(&mut self, id: ConnectionId, item: Item) {
        let queue = self.frames.entry(id).or_default();
        if queue.is_empty() {
            self.order.push_back(id);
        }
        queue.push_back(item);
    }

    /// Takes what has come on the connection whose turn it is. What is left of it comes last.
    fn take_turn(&mut self) -> Option<(ConnectionId, VecDeque<Item>)> {
        let id = self.order.pop_front()?;
        Some((id, self.frames.remove(&id)?))
    }

    fn put_back(&mut self, id: ConnectionId, left: VecDeque<Item>) {
        if !left.is_empty() {
            self.order.push_back(id);
            self.frames.insert(id, left);
        }
    }

    /// The node takes nothing more of a connection. Returns what waits of it.
    fn close(&mut self, id: ConnectionId) -> VecDeque<Item> {
        if self.open.contains(&id) {
            self.closed.insert(id);
        }
        self.take_of(id)
    }

    /// A connection has ended.
    fn forget(&mut self, id: ConnectionId) -> VecDeque<Item> {
        self.open.remove(&id);
        self.closed.remove(&id);
        self.take_of(id)
    }

    /// Takes what has come on a connection that is gone.
    fn take_of(&mut self, id: ConnectionId) -> VecDeque<Item> {
        let queue = self.frames.remove(&id).unwrap_or_default();
        if !queue.is_empty() {
            self.order.retain(|other| *other != id);
        }
        queue
    }
}

impl IoThreads {
    /// Starts `count` threads; none of them, and nothing, if that is 0.
    pub(super) fn start(
        count: usize,
        config: &Config,
        wake: &Arc<Notify>,
        arrivals: &mpsc::UnboundedSender<Arrival>,
    ) -> io::Result<Option<Self>> {
        if count == 0 {
            return Ok(None);
        }
        let buffers = Buffers::default();
        let replies_max = (config.unread_bytes_max / count).max(REPLIES_MIN);
        let ways: Vec<Arc<Way>> = (0..count).map(|_| Arc::new(Way::new(replies_max))).collect();
        let thread = |way: &Arc<Way>| {
            let (way, wake, buffers, config) = (Arc::clone(way), Arc::clone(wake), buffers.clone(), config.clone());
            let arrivals = arrivals.clone();
            let runtime = super::own_runtime().build()?;
            spawn_thread("io", move || {
                let _guard = PanicGuard { what: "a thread of clients' connections", arrivals: arrivals.clone() };
                let connections = Connections::new(&config, &buffers, count);
                let thread = IoThread { connections, way, wake, batch: RefCell::default(), cost: Cell::new(0) };
                run(&runtime, &Rc::new(thread), &arrivals);
            })
        };
        let orders = RefCell::new((0..count).map(|_| Vec::new()).collect());
        let mut all = Self { ways, threads: Vec::new(), orders, waiting: RefCell::default() };
        // Those that run are stopped where one cannot be started.
        for way in &all.ways {
            let started = thread(way)?;
            all.threads.push(started);
        }
        Ok(Some(all))
    }

    fn number_of(&self, id: ConnectionId) -> usize {
        id.0 as usize % self.ways.len()
    }

    fn way_of(&self, id: ConnectionId) -> &Way {
        &self.ways[self.number_of(id)]
    }

    /// Has a thread serve a connection until either end closes it, and the node take all that it can of what has come there.
    pub(super) async fn converse(&self, host: &Host, stream: Stream, id: ConnectionId, buffer: BytesMut) {
        let Ok(stream) = stream.detach() else { return };
        let (ended, wait) = oneshot::channel();
        self.waiting.borrow_mut().open.insert(id);
        self.way_of(id).order([Order::Serve(stream, id, buffer, ended)]);
        // Nobody says so where the thread ends with the node.
        let _ = wait.await;
        self.take_reports(host);
        let came = self.waiting.borrow_mut().forget(id);
        // A node that is busy does nothing for nobody.
        let is_idle = self.is_open(host) && self.waiting.borrow().is_empty();
        let left = if is_idle { self.take(host, id, came, usize::MAX) } else { came };
        self.throw_away(id, &left);
        host.wake.notify_one();
    }

    fn throw_away(&self, id: ConnectionId, items: &VecDeque<Item>) {
        self.way_of(id).note_taken(items.iter().map(Item::cost).sum());
    }

    /// A reply, which leaves with [`IoThreads::flush`]. Returns whether the connection's thread falls behind, and this is much of why.
    pub(super) fn send(&self, id: ConnectionId, bytes: BytesMut) -> bool {
        let way = self.way_of(id);
        way.replies.fetch_add(bytes.len(), Ordering::Relaxed);
        let is_full = bytes.len() >= SHARE && way.is_behind();
        self.orders.borrow_mut()[self.number_of(id)].push(Order::Send(id, bytes));
        is_full
    }

    /// Closes a connection, as [`Connections::close`]. The node hears no more of what waits there.
    pub(super) fn close(&self, id: ConnectionId) {
        let left = self.waiting.borrow_mut().close(id);
        self.throw_away(id, &left);
        self.orders.borrow_mut()[self.number_of(id)].push(Order::Close(id));
    }

    /// Gives the threads what is for them.
    pub(super) fn flush(&self) {
        for (way, orders) in self.ways.iter().zip(&mut *self.orders.borrow_mut()) {
            if !orders.is_empty() {
                way.order(orders.drain(..));
            }
        }
    }

    /// Hands the node what has come, as long as it takes any.
    pub(super) fn take_frames(&self, host: &Host) {
        self.take_reports(host);
        while self.is_open(host) && host.takes() {
            let next = self.waiting.borrow_mut().take_turn();
            let Some((id, items)) = next else { return };
            let share = if self.waiting.borrow().is_empty() { usize::MAX } else { SHARE };
            let left = self.take(host, id, items, share);
            self.waiting.borrow_mut().put_back(id, left);
        }
        if self.is_open(host) && !self.waiting.borrow().is_empty() {
            host.wake.notify_one();
        }
    }

    /// Whether the node takes frames. A thread that has caught up wakes it.
    fn is_open(&self, host: &Host) -> bool {
        host.is_open() && !self.ways.iter().any(|way| way.is_behind())
    }

    /// Takes what the threads have gathered. As long as nobody waits and the node takes frames, it has them at once.
    fn take_reports(&self, host: &Host) {
        // Not for each frame: all threads are asked.
        let is_open = self.is_open(host);
        for way in &self.ways {
            let reports = std::mem::take(&mut *lock(&way.reports));
            if reports.is_empty() {
                continue;
            }
            let (now, mut cost) = (OsClock.read(), 0);
            for report in reports {
                match report {
                    Report::Came(id, item) if self.waiting.borrow().closed.contains(&id) => cost += item.cost(),
                    Report::Came(id, item) if is_open && self.waiting.borrow().is_empty() && host.takes() => {
                        cost += item.cost();
                        item.hand_to(host, id, now);
                    }
                    Report::Came(id, item) => self.waiting.borrow_mut().put(id, item),
                    Report::Unread(id) => super::refuse_unread(host, id),
                }
            }
            way.note_taken(cost);
            host.note_busy(now);
        }
    }

    /// Has the node take `items`, until it takes no more or they have taken `share` bytes. Returns what is left of them.
    fn take(&self, host: &Host, id: ConnectionId, mut items: VecDeque<Item>, share: usize) -> VecDeque<Item> {
        let (now, begun) = (OsClock.read(), host.taken());
        let mut cost = 0;
        while host.takes() && host.taken() - begun < share {
            let Some(item) = items.pop_front() else { break };
            cost += item.cost();
            item.hand_to(host, id, now);
        }
        self.way_of(id).note_taken(cost);
        host.note_busy(now);
        items
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.ways.iter().for_each(|way| way.order([Order::Stop]));
        // What panicked has told the node.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// What the tasks of a thread share.
struct IoThread {
    connections: Connections,
    way: Arc<Way>,
    /// Wakes the node's driving task.
    wake: Arc<Notify>,
    /// What is handed over at present, and what it takes.
    batch: RefCell<Vec<Report>>,
    cost: Cell<usize>,
}

impl IoThread {
    fn came(&self, id: ConnectionId, item: Item) {
        self.cost.set(self.cost.get() + item.cost());
        self.batch.borrow_mut().push(Report::Came(id, item));
    }

    fn report(&self, reports: &mut Vec<Report>) {
        lock(&self.way.reports).append(reports);
        self.wake.notify_one();
    }
}

impl Taker for IoThread {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn is_open(&self) -> bool {
        true
    }

    fn takes(&self) -> bool {
        self.way.under_way.load(Ordering::Relaxed) + self.cost.get() < UNDER_WAY_MAX
    }

    fn taken(&self) -> usize {
        self.cost.get()
    }

    fn take(&self, id: ConnectionId, frame: Bytes, _: Now) {
        let is_small = frame.len() <= COPIED_MAX;
        self.came(id, Item::Frame(if is_small { Bytes::copy_from_slice(&frame) } else { frame }));
    }

    fn refuse(&self, id: ConnectionId) {
        self.came(id, Item::NoFrame);
    }

    fn end(&self, _: Now) {
        // Counted before the node can take it.
        self.way.under_way.fetch_add(self.cost.take(), Ordering::Relaxed);
        self.report(&mut self.batch.borrow_mut());
    }

    async fn turn(&self) {
        // Made before it is looked, so that it is not missed.
        let has_room = self.way.has_room.notified();
        if self.takes() { yield_now().await } else { has_room.await }
    }
}

/// Serves connections until it is told to stop.
fn run(runtime: &Runtime, thread: &Rc<IoThread>, arrivals: &mpsc::UnboundedSender<Arrival>) {
    LocalSet::new().block_on(runtime, async {
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        loop {
            tokio::select! {
                () = thread.way.ordered.notified() => {}
                _ = look.tick() => {}
            }
            let orders = std::mem::take(&mut *lock(&thread.way.orders));
            let mut replies = 0;
            for order in orders {
                match order {
                    Order::Serve(stream, id, buffer, ended) => {
                        let serve = serve(Rc::clone(thread), stream, id, buffer, ended);
                        super::spawn("a connection's task", arrivals.clone(), serve);
                    }
                    Order::Send(id, bytes) => {
                        replies += bytes.len();
                        if thread.connections.send(id, bytes) {
                            thread.report(&mut vec![Report::Unread(id)]);
                        }
                    }
                    Order::Close(id) => thread.connections.close(id),
                    Order::Stop => return,
                }
            }
            if thread.way.note_sent(replies) {
                thread.wake.notify_one();
            }
            // The connections' tasks write what the sockets did not take at once, before it is judged who does not read, and read more.
            yield_now().await;
            thread.connections.make_room();
            thread.connections.close_stuck(OsClock.now());
        }
    });
}

async fn serve(thread: Rc<IoThread>, stream: Detached, id: ConnectionId, buffer: BytesMut, ended: oneshot::Sender<()>) {
    if let Ok(stream) = stream.attach() {
        converse(&*thread, stream, id, buffer).await;
    }
    // Nobody waits where the node ends.
    let _ = ended.send(());
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::NodeId;

    fn frames(numbers: impl IntoIterator<Item = u8>) -> impl Iterator<Item = Item> {
        numbers.into_iter().map(|number| Item::Frame(Bytes::copy_from_slice(&[number])))
    }

    fn numbers(items: &VecDeque<Item>) -> Vec<u8> {
        let number = |item: &Item| match item {
            Item::Frame(frame) => frame[0],
            Item::NoFrame => u8::MAX,
        };
        items.iter().map(number).collect()
    }

    /// Whose frames are not all taken comes after the others, and goes on where it was.
    #[test]
    fn n15_connections_whose_frames_wait_have_their_turns_one_after_the_other() {
        let (mut waiting, [heavy, other]) = (Waiting::default(), [ConnectionId(1), ConnectionId(2)]);
        frames(1..=5).for_each(|item| waiting.put(heavy, item));
        frames([9]).for_each(|item| waiting.put(other, item));
        let (id, mut items) = waiting.take_turn().unwrap();
        assert_eq!((id, numbers(&items)), (heavy, vec![1, 2, 3, 4, 5]));
        items.drain(..2);
        waiting.put_back(id, items);
        assert_eq!(waiting.take_turn().map(|(id, items)| (id, numbers(&items))), Some((other, vec![9])));
        // What comes meanwhile comes after what is left.
        waiting.put(heavy, Item::NoFrame);
        assert_eq!(waiting.take_turn().map(|(id, items)| (id, numbers(&items))), Some((heavy, vec![3, 4, 5, 255])));
        assert!(waiting.take_turn().is_none() && waiting.frames.is_empty());
    }

    #[test]
    fn a_connection_that_the_node_has_closed_is_known_until_it_has_ended() {
        let (mut waiting, id) = (Waiting::default(), ConnectionId(1));
        waiting.open.insert(id);
        frames([1, 2]).for_each(|item| waiting.put(id, item));
        assert_eq!(numbers(&waiting.close(id)), [1, 2]);
        assert!(waiting.closed.contains(&id) && waiting.close(id).is_empty());
        assert!(waiting.forget(id).is_empty() && waiting.closed.is_empty() && waiting.open.is_empty());
        // It has ended by itself meanwhile.
        assert!(waiting.close(id).is_empty() && waiting.closed.is_empty());
    }

    #[test]
    fn a_connection_that_is_gone_leaves_nothing() {
        let mut waiting = Waiting::default();
        let ids = [ConnectionId(1), ConnectionId(2), ConnectionId(3)];
        ids.iter().for_each(|id| frames([1, 2]).for_each(|item| waiting.put(*id, item)));
        assert_eq!((numbers(&waiting.take_of(ids[1])), numbers(&waiting.take_of(ids[1]))), (vec![1, 2], vec![]));
        waiting.put(ids[1], Item::NoFrame);
        assert_eq!(waiting.order, [ids[0], ids[2], ids[1]]);
    }

    /// Replies that the thread does not get to as fast as the node answers.
    #[test]
    fn n4a_replies_that_wait_for_a_thread_have_a_bound() {
        let config = Config::new(NodeId(1), BTreeMap::new(), Vec::new(), 1);
        let (arrivals, _inbox) = mpsc::unbounded_channel();
        let threads = IoThreads::start(64, &config, &Arc::default(), &arrivals).unwrap().unwrap();
        let reply = |size| threads.send(ConnectionId(64), BytesMut::zeroed(size));
        assert!(!reply(REPLIES_MIN - 1) && !threads.ways[0].is_behind());
        assert!(!reply(1_000) && reply(SHARE) && threads.ways[0].is_behind(), "who asks for little is spared");
        threads.flush();
        // It throws them away: there is no such connection.
        while threads.ways[0].is_behind() {
            std::thread::yield_now();
        }
        assert!(!reply(SHARE));
    }

    /// A thread that has filled its way waits, and is told when there is room.
    #[tokio::test]
    async fn a_full_way_is_left_when_the_node_takes_something() {
        let way = Way::new(1);
        way.under_way.fetch_add(UNDER_WAY_MAX + 10, Ordering::Relaxed);
        let mut has_room = std::pin::pin!(way.has_room.notified());
        let mut is_told = || is_ready(has_room.as_mut());
        assert!(!is_told());
        way.note_taken(10);
        assert!(!is_told(), "it is as full as it may be");
        way.note_taken(1);
        assert!(is_told());
    }

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }
}
