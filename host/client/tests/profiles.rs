//! How single requests are made: profiles, batches of writes, streams, and the end of a client.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use bytes::Bytes;
use fake::group::{Group, LEADER, LONG, answer, get, ms, pass, patient, settle, spawn_get};
use fake::{Action, Fake, Records, done, map, metadata, page, refused};
use futures_util::TryStreamExt as _;
use hedgerow_client::{
    AttemptEvent, AttemptObserver, BudgetOptions, Client, ClientOptions, ErrorKind, HedgeOptions, Kind, Profile, Range,
    ReadLevel, ReplicaRead, Role, Row, ScanOptions,
};
use hedgerow_types::Refusal;
use hedgerow_types::limit::SORT_KEY_SIZE_MAX;
use hedgerow_wire::message::SCAN_DONE;
use hedgerow_wire::{Body, Request};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// A node that leads one partition, and a client of it.
async fn node(handler: impl Fn(&Request) -> Action + Send + Sync + 'static, options: ClientOptions) -> (Fake, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Fake::serve_on(listener, move |request| {
        metadata(request, || map(&[address], &[address], 1)).unwrap_or_else(|| handler(request))
    });
    let client = Client::connect_with(&[address.to_string()], options).await.unwrap();
    (fake, client)
}

/// Until the first request to a partition has come.
async fn until_asked(node: &Fake) {
    while node.requests().is_empty() {
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_may_have_less_time_than_its_handle() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let table = group.client(patient()).await.open_table("t").await.unwrap();
    let short = table.within(ms(50));
    let failed = tokio::spawn(async move { short.get("h", "s").await.unwrap_err() });
    pass(ms(49)).await;
    assert!(!failed.is_finished());
    pass(ms(1)).await;
    settle().await;
    assert_eq!(failed.await.unwrap().kind(), ErrorKind::Timeout);
    // What is not allowed becomes the nearest that is.
    let none = table.within(Duration::ZERO);
    let failed = tokio::spawn(async move { none.get("h", "s").await.unwrap_err() });
    pass(ms(1)).await;
    settle().await;
    assert_eq!(failed.await.unwrap().kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_have_a_level_and_replicas_of_its_own() {
    let group = Group::start(3).await;
    let table = group.client(patient()).await.open_table("t").await.unwrap();
    let bound = ReadLevel::Bounded(Duration::from_secs(2));
    let stale = table.level(bound).replicas(ReplicaRead::Follower);
    assert_ne!(answer(spawn_get(&stale.clone())).await, LEADER);
    assert_eq!(answer(spawn_get(&table)).await, LEADER);
    assert_eq!(answer(spawn_get(&stale.replicas(ReplicaRead::Leader))).await, LEADER);
    let levels: Vec<_> = group.extensions().into_iter().map(|(_, extension)| extension.read_level_code).collect();
    // Two at the leader, and one at a follower.
    assert!(levels[0].is_none() && levels[1].is_some() && levels[1] == levels[2], "{levels:?}");
}

/// Each request has a handle of its own here, and yet the policy learns, and the client's counters count.
#[tokio::test(start_paused = true)]
async fn handles_of_single_requests_share_what_they_learn() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(5));
    let client = group.client(patient()).await;
    let table = client.open_table("t").await.unwrap();
    for _ in 0..120 {
        let get = spawn_get(&table.hedge("99p".parse().unwrap()));
        pass(ms(5)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    let metrics = client.hedge_metrics();
    assert_eq!(metrics.counters.first, 120);
    let delay = metrics.hedge_delay.unwrap();
    assert!((ms(4)..ms(10)).contains(&delay), "{delay:?}");
    // What may not have two copies has none.
    group.silence(LEADER);
    let (once, hedged) = (table.hedge("5ms".parse().unwrap()).idempotent(false), table.hedge("99p".parse().unwrap()));
    let (once, hedged) = (spawn_get(&once), spawn_get(&hedged));
    pass(delay + ms(1)).await;
    assert_ne!(answer(hedged).await, LEADER);
    assert!(!once.is_finished());
    assert_eq!(client.hedge_metrics().counters.sent[Kind::Hedge.index()], 1);
}

/// Somebody who takes no connection: the queue of those to be taken is full.
fn full_listener() -> (Vec<Socket>, SocketAddr) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = socket();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let waiting = socket();
        waiting.set_nonblocking(true).unwrap();
        // It is under way, and stays so.
        let _ = waiting.connect(&address);
        sockets.push(waiting);
    }
    (sockets, address.as_socket().unwrap())
}

/// A connection that is not made keeps nobody longer than the request may take.
#[tokio::test(start_paused = true)]
async fn a_request_ends_in_time_while_its_connection_is_being_made() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let (_full, address) = full_listener();
    group.move_to(LEADER, address);
    let client = group.nodes[1].address.to_string();
    let client = Client::connect_with(&[client], ClientOptions { connect_timeout: LONG, ..patient() }).await.unwrap();
    let moved = client.open_table("t").await.unwrap().within(ms(20));
    let write = tokio::spawn(async move { moved.set("h", "s", "v").await.unwrap_err() });
    pass(ms(30)).await;
    assert_eq!(answer(write).await.kind(), ErrorKind::Timeout);
}

/// Time that grows again gives attempts more time again.
#[tokio::test(start_paused = true)]
async fn the_last_word_on_time_counts() {
    let group = Group::start(1).await;
    group.slow(LEADER, ms(15));
    let options = ClientOptions { operation_timeout: LONG, ..ClientOptions::default() };
    let table = group.client(options).await.open_table("t").await.unwrap();
    let get = spawn_get(&table.within(ms(20)).within(LONG));
    pass(ms(15)).await;
    assert_eq!(answer(get).await, LEADER);
    assert_eq!(group.sent(), 1);
}

/// Linearizable within a time, or else bounded, for one request.
#[tokio::test(start_paused = true)]
async fn a_request_may_fall_back_by_itself() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let table = group.client(patient()).await.open_table("t").await.unwrap();
    let profile = Profile::default().fallback(ms(5), Duration::from_secs(1));
    let get = spawn_get(&table.with(&profile));
    pass(ms(4)).await;
    assert!(!get.is_finished());
    pass(ms(2)).await;
    assert_ne!(answer(get).await, LEADER);
    let bounded = group.extensions().into_iter().filter(|(_, extension)| extension.read_level_code.is_some());
    assert_eq!(bounded.count(), 1);
}

/// A table's own budget holds for what is made of it, also of a table that is not hedged.
#[tokio::test(start_paused = true)]
async fn a_budget_holds_for_handles_that_are_made_of_its_table() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let budget = Some(BudgetOptions { ratio: 0.0, burst: Some(1.0) });
    let (client, table) = group.open(HedgeOptions { budget, ..HedgeOptions::default() }).await;
    let gets: Vec<_> = (0..3).map(|_| spawn_get(&table.hedge("5ms".parse().unwrap()))).collect();
    pass(ms(10)).await;
    assert_eq!(gets.iter().filter(|get| get.is_finished()).count(), 1);
    assert_eq!(client.hedge_metrics().counters.suppressed[Kind::Hedge.index()], 2);
}

#[tokio::test]
async fn profiles_have_names() {
    let group = Group::start(1).await;
    let fast = Profile::default().within(ms(20)).level(ReadLevel::Eventual);
    let profiles = BTreeMap::from([("fast".to_owned(), fast), ("slow".to_owned(), Profile::default())]);
    let client = group.client(ClientOptions { profiles, ..patient() }).await;
    let table = client.open_table("t").await.unwrap();
    get(&table.profile("fast").unwrap()).await;
    assert!(group.extensions()[0].1.read_level_code.is_some());
    let error = table.profile("quick").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("\"quick\"") && error.message().contains("fast, slow"), "{error}");
}

#[tokio::test]
async fn a_batch_of_writes_says_what_came_of_each() {
    let records = Arc::new(Records::default());
    let answers = records.clone();
    let (_node, client) = node(move |request| Action::Reply(answers.answer(&request.body)), patient()).await;
    let table = client.open_table("t").await.unwrap();
    let mut rows: Vec<Row> = (0..1_000).map(|it| Row::new(format!("h{it}"), "s", format!("v{it}"))).collect();
    rows[500].sort_key = Bytes::from(vec![b'x'; SORT_KEY_SIZE_MAX + 1]);
    rows[1].time_to_live = Some(Duration::from_secs(100));
    // It can be spawned.
    let writer = table.clone();
    let results = tokio::spawn(async move { writer.batch_set(rows).await }).await.unwrap();
    assert_eq!(results.len(), 1_000);
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), number == 500, "{number}: {result:?}");
    }
    assert_eq!(table.get("h999", "s").await.unwrap().as_deref(), Some(&b"v999"[..]));
    let keys = ["h7", "h8"].map(|hash_key| (hash_key, "s"));
    assert_eq!(table.batch_del(keys).await, [Ok(()), Ok(())]);
    assert_eq!(table.get("h8", "s").await.unwrap(), None);
    assert!(table.batch_set([]).await.is_empty());
}

#[tokio::test]
async fn the_writes_of_a_batch_are_under_way_together() {
    // The node answers 256 at a time.
    let (node, client) = node(|_| Action::KeepUntil(256, done()), patient()).await;
    let table = client.open_table("t").await.unwrap();
    let results = table.batch_set((0..512).map(|it| Row::new("h", it.to_string(), "v"))).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(node.requests().len(), 512);
}

#[tokio::test]
async fn a_scan_is_a_stream() {
    let answer = |request: &Request| match &request.body {
        Body::GetScanner(open) if open.start_inclusive => Action::Reply(page(&["1", "2"], 7)),
        _ => Action::Reply(page(&["3"], SCAN_DONE)),
    };
    let (_node, client) = node(answer, patient()).await;
    let scanner = client.open_table("t").await.unwrap().scan("h", &Range::default(), ScanOptions::default()).unwrap();
    let rows: Vec<Row> = scanner.into_stream().try_collect().await.unwrap();
    let keys: Vec<&[u8]> = rows.iter().map(|row| &row.sort_key[..]).collect();
    assert_eq!(keys, [b"1", b"2", b"3"]);
}

#[tokio::test]
async fn the_replicas_of_a_record_are_told_the_leader_first() {
    let group = Group::start(3).await;
    let table = group.client(patient()).await.open_table("t").await.unwrap();
    let replicas = table.replicas_of("h", "s");
    let roles: Vec<Role> = replicas.iter().map(|(_, role)| *role).collect();
    assert_eq!(roles, [Role::Leader, Role::Follower, Role::Follower]);
    assert_eq!(replicas[0].0, group.nodes[LEADER].address);
}

#[tokio::test]
async fn plain_requests_can_be_observed() {
    let group = Group::start(1).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let observer = AttemptObserver::new(move |attempt| {
        let is_over = matches!(attempt.event, AttemptEvent::Success { .. });
        seen.lock().unwrap().push((attempt.request, attempt.operation, attempt.number, is_over));
    });
    let observed = HedgeOptions { observer: Some(observer), ..HedgeOptions::default() };
    let table = group.client(patient()).await.open_table_with("t", observed).await.unwrap();
    get(&table).await;
    get(&table).await;
    let told = told.lock().unwrap();
    let (first, second) = (told[0].0, told[2].0);
    assert_ne!(first, second);
    let expected = [(first, false), (first, true), (second, false), (second, true)];
    assert_eq!(*told, expected.map(|(request, is_over)| (request, "GET", 1, is_over)));
}

#[tokio::test]
async fn a_lazy_client_asks_nobody_before_it_has_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let by_name = format!("localhost:{}", address.port());
    let clients = [address.to_string(), by_name].map(|address| Client::lazy(&[address], patient()).unwrap());
    let fake = Fake::serve_on(listener, move |request| {
        metadata(request, || map(&[address], &[address], 1)).unwrap_or_else(|| Action::Reply(done()))
    });
    settle().await;
    assert_eq!((fake.connections(), fake.queries()), (0, 0));
    for client in clients {
        client.open_table("t").await.unwrap().set("h", "s", "v").await.unwrap();
    }
    assert_eq!(fake.requests().len(), 2);
    for wrong in [&["localhost"][..], &["localhost:99999"], &[":1"], &[]] {
        assert_eq!(Client::lazy(wrong, patient()).unwrap_err().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_client_is_closed_when_what_is_under_way_has_ended() {
    let slow = |request: &Request| match &request.body {
        Body::Put(_) => Action::ReplyAfter(ms(50), done()),
        _ => Action::Silence,
    };
    let (node, client) = node(slow, patient()).await;
    let table = client.open_table("t").await.unwrap();
    let writer = table.clone();
    let write = tokio::spawn(async move { writer.set("h", "s", "v").await });
    until_asked(&node).await;
    assert!(client.close(Duration::from_secs(60)).await);
    write.await.unwrap().unwrap();
    let error = table.set("h", "s", "v").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("closed"), "{error}");
    assert_eq!(client.open_table("other").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(node.requests().len(), 1);
}

/// What has no answer yet and waits to be sent again is under way, too; and when the patience is over, nothing is sent any more.
#[tokio::test]
async fn a_request_between_two_attempts_is_under_way() {
    let is_refusing = Arc::new(AtomicBool::new(true));
    let refuses = is_refusing.clone();
    let answer = move |_: &Request| match refuses.load(Ordering::Relaxed) {
        true => refused(&Refusal::NotReady("it starts".to_owned())),
        false => Action::Reply(done()),
    };
    let (node, client) = node(answer, patient()).await;
    let table = client.open_table("t").await.unwrap();
    let writer = table.clone();
    let write = tokio::spawn(async move { writer.set("h", "s", "v").await });
    until_asked(&node).await;
    assert!(!client.close(ms(50)).await, "it waits to be sent again");
    is_refusing.store(false, Ordering::Relaxed);
    let error = write.await.unwrap().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Timeout, "{error}");
    let sent = node.requests().len();
    tokio::time::sleep(ms(50)).await;
    assert_eq!(node.requests().len(), sent);
    assert!(client.close(Duration::MAX).await);
}

#[tokio::test]
async fn closing_waits_no_longer_than_it_may() {
    let (node, client) =
        node(|_| Action::Silence, ClientOptions { operation_timeout: Duration::from_secs(60), ..patient() }).await;
    let table = client.open_table("t").await.unwrap();
    let read = tokio::spawn(async move { table.get("h", "s").await });
    until_asked(&node).await;
    assert!(!client.close(ms(20)).await);
    read.abort();
}
