//! What becomes of requests whose connection has stopped working without having ended.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, LONG, answer, get, ms, pass, patient, settle, spawn_get, writes_after_10_ms};
use fake::{Action, Fake, map, metadata, value};
use hedgerow_client::{Client, ClientOptions, ErrorKind, HedgeOptions, Table};
use hedgerow_types::limit::FRAME_SIZE_MAX;
use hedgerow_wire::Request;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The leader reads nothing from the connection on which its `count`th request to a partition comes. On others it serves.
fn stall_at(group: &Group, count: usize) {
    let asked = AtomicUsize::new(0);
    group.answer(LEADER, move |_| match asked.fetch_add(1, Ordering::Relaxed) + 1 {
        asked if asked == count => Action::Stall,
        _ => Action::Reply(value(b"0")),
    });
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_replaced_when_an_attempt_is_late() {
    let group = Group::start(1).await;
    stall_at(&group, 2);
    let options = ClientOptions { attempt_timeout: Some(ms(500)), ..patient() };
    let (_, table) = group.open_with(HedgeOptions::default(), options).await;
    assert_eq!(get(&table).await, LEADER);
    let late = spawn_get(&table);
    pass(ms(499)).await;
    assert!(!late.is_finished() && group.nodes[LEADER].connections() == 1);
    pass(ms(200)).await;
    assert_eq!(answer(late).await, LEADER);
    for _ in 0..5 {
        assert_eq!(get(&table).await, LEADER);
    }
    assert_eq!(group.nodes[LEADER].connections(), 2);
}

/// A hedging handle does not give a late attempt up. It sends another one, over another connection also where nobody else is left to ask.
#[tokio::test(start_paused = true)]
async fn a_hedging_handle_asks_again_over_another_connection() {
    for hedge in [HedgeOptions::backup_request(ms(10)), writes_after_10_ms()] {
        let group = Group::start(1).await;
        stall_at(&group, 2);
        let options = ClientOptions { attempt_timeout: Some(ms(500)), ..patient() };
        let is_write = !hedge.writes.is_off();
        let (client, table) = group.open_with(hedge, options).await;
        let call = |table: Table| async move {
            if is_write { table.del("h", "s").await } else { table.get("h", "s").await.map(drop) }
        };
        call(table.clone()).await.unwrap();
        let late = tokio::spawn(call(table.clone()));
        pass(ms(499)).await;
        assert!(!late.is_finished() && group.nodes[LEADER].connections() == 1);
        pass(ms(200)).await;
        answer(late).await.unwrap();
        let sent: Vec<_> = group.extensions().into_iter().map(|(_, sent)| (sent.attempt, sent.sequence)).collect();
        assert_eq!((sent.len(), sent[1].0, sent[2].0), (3, Some(1), Some(2)));
        assert_eq!(sent[1].1, sent[2].1, "a write keeps its number");
        assert_eq!((group.nodes[LEADER].connections(), client.hedge_metrics().late_alarms.count), (2, 0));
    }
}

/// What waits on a connection that was replaced is still answered there.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_replaced_drains() {
    let group = Group::start(1).await;
    let asked = AtomicUsize::new(0);
    group.answer(LEADER, move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        1 => Action::ReplyAfter(ms(900), value(b"1")),
        2 => Action::ReplyAfter(ms(300), value(b"2")),
        _ => Action::Reply(value(b"0")),
    });
    // An attempt of the usual operations takes half a second at most, and that of one that may take a minute longer.
    let options = ClientOptions { operation_timeout: ms(1_000), ..ClientOptions::default() };
    let (_, table) = group.open_with(HedgeOptions::default(), options).await;
    assert_eq!(get(&table).await, 0);
    let first = spawn_get(&table.within(LONG));
    pass(ms(500)).await;
    // It finds that nothing has come for so long, and waits there too.
    let second = spawn_get(&table.within(LONG));
    pass(ms(1)).await;
    assert_eq!((answer(spawn_get(&table)).await, group.nodes[LEADER].connections()), (0, 2));
    pass(ms(299)).await;
    assert!(!first.is_finished());
    assert_eq!(answer(second).await, 2);
    pass(ms(100)).await;
    assert_eq!((answer(first).await, group.nodes[LEADER].connections()), (1, 2));
}

/// A node that answers some requests and others not gets a few more connections, and not one for every attempt.
#[tokio::test(start_paused = true)]
async fn a_silent_node_is_not_connected_to_again_and_again() {
    let group = Group::start(1).await;
    let options = ClientOptions { attempt_timeout: Some(ms(300)), operation_timeout: ms(30_000), ..patient() };
    let (_, table) = group.open_with(HedgeOptions::default(), options).await;
    assert_eq!(get(&table).await, LEADER);
    group.silence(LEADER);
    let waiting = spawn_get(&table);
    for _ in 0..100 {
        pass(ms(200)).await;
    }
    assert!(!waiting.is_finished() && group.sent() > 10, "{}", group.sent());
    // The map is asked for after each, and answered.
    assert!((2..=6).contains(&group.nodes[LEADER].connections()), "{}", group.nodes[LEADER].connections());
    group.serve(LEADER);
    pass(ms(2_000)).await;
    assert_eq!(answer(waiting).await, LEADER);
}

/// Requests that are taken back are no reason to expect anything.
#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nobody_waits_is_not_silent() {
    let group = Group::start(1).await;
    let options = ClientOptions { attempt_timeout: Some(ms(500)), ..patient() };
    let (_, table) = group.open_with(HedgeOptions::default(), options).await;
    assert_eq!(get(&table).await, LEADER);
    group.silence(LEADER);
    for _ in 0..5 {
        let given_up = spawn_get(&table);
        pass(ms(10)).await;
        given_up.abort();
        pass(ms(1_000)).await;
    }
    group.serve(LEADER);
    assert_eq!(get(&table).await, LEADER);
    settle().await;
    assert_eq!(group.nodes[LEADER].connections(), 1);
}

/// No node takes it, and each would end the connection, with what others wait for there.
#[tokio::test(start_paused = true)]
async fn a_request_that_no_node_takes_is_not_sent() {
    let group = Group::start(1).await;
    let (_, table) = group.open_with(HedgeOptions::default(), patient()).await;
    assert_eq!(get(&table).await, LEADER);
    let sent = group.sent();
    let error = table.set("user", "photo", vec![7; FRAME_SIZE_MAX]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::TooLarge, false));
    assert!(error.to_string().contains(&FRAME_SIZE_MAX.to_string()), "{error}");
    assert_eq!(get(&table).await, LEADER);
    assert_eq!((group.sent(), group.nodes[LEADER].connections()), (sent + 1, 1));
}

/// A runtime on a thread of its own, until it is stopped.
struct Stoppable {
    handle: Handle,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Stoppable {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel());
        let thread = thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        Self { handle, stop, thread }
    }

    fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.handle.spawn(async move { sender.send(task.await) });
        receiver.recv_timeout(LONG).unwrap()
    }

    fn stop(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

/// The runtime on which a client connected is gone, and a request of another one waits on that connection.
#[test]
fn a_client_outlives_the_runtime_that_it_was_first_used_on() {
    let (nodes, first, second) = (Stoppable::start(), Stoppable::start(), Stoppable::start());
    let asked = Arc::new(AtomicUsize::new(0));
    let address: Arc<OnceLock<SocketAddr>> = Arc::default();
    let handler = {
        let (asked, address) = (asked.clone(), address.clone());
        move |request: &Request| {
            let address = *address.get().unwrap();
            metadata(request, || map(&[address; 2], &[address], 1)).unwrap_or_else(|| {
                // The second one is never answered.
                match asked.fetch_add(1, Ordering::Relaxed) {
                    1 => Action::Silence,
                    _ => Action::Reply(value(b"0")),
                }
            })
        }
    };
    let node = Arc::new(nodes.run(Fake::start(handler)));
    address.set(node.address).unwrap();
    let seed = node.address.to_string();
    let options = ClientOptions { operation_timeout: LONG, attempt_timeout: Some(LONG), ..ClientOptions::default() };
    let table = first.run(async move {
        let client = Client::connect_with(&[seed], options).await.unwrap();
        let table = client.open_table("t").await.unwrap();
        assert_eq!(get(&table).await, 0);
        table
    });
    let (sender, answered) = channel();
    second.handle.spawn(async move { sender.send(get(&table).await) });
    while asked.load(Ordering::Relaxed) < 2 {
        thread::sleep(ms(1));
    }
    first.stop();
    assert_eq!(answered.recv_timeout(LONG / 2), Ok(0), "it does not wait for what nobody serves any more");
    assert_eq!(node.connections(), 2);
    second.stop();
    nodes.stop();
}
