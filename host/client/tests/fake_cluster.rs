//! The client against nodes that misbehave on purpose: routing, retries, deadlines, connections.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, answer, ms, pass};
use fake::{Action, Fake, Records, done, listen, map, metadata, no_table, not_leader, page, refused, single, value};
use hedgerow_client::{Client, ClientOptions, ErrorKind, HedgeOptions, Range, ScanOptions, Table, TableSpec};
use hedgerow_types::limit::{SESSION_AHEAD_MICROS, SESSION_WINDOW};
use hedgerow_types::{Refusal, key};
use hedgerow_wire::message::{AdminCommandReply, SCAN_DONE, ScanReply};
use hedgerow_wire::value::Binary;
use hedgerow_wire::{Body, ErrorName, Reply, Request, Text};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpSocket;

/// Far more than any test takes: whoever waits for it fails by hanging, not by chance.
const LONG: Duration = Duration::from_secs(60);

fn patient() -> ClientOptions {
    ClientOptions { operation_timeout: LONG, ..ClientOptions::default() }
}

async fn open(seed: SocketAddr, options: ClientOptions) -> Table {
    let client = Client::connect_with(&[seed.to_string()], options).await.unwrap();
    client.open_table("t").await.unwrap()
}

/// An address at which nobody listens, as long as the socket is held.
fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// True for the first call only.
fn once() -> impl Fn() -> bool + Send + Sync {
    let calls = AtomicUsize::new(0);
    move || calls.fetch_add(1, Ordering::SeqCst) == 0
}

/// False three times, then true.
fn fourth() -> impl Fn() -> bool + Send + Sync {
    let count = AtomicUsize::new(0);
    move || count.fetch_add(1, Ordering::Relaxed) >= 3
}

/// The map of a table with this number.
fn numbered(id: i32, map: Reply) -> Reply {
    let Reply::QueryConfig(mut reply) = map else { panic!("it is a map") };
    reply.app_id = id;
    Reply::QueryConfig(reply)
}

fn session(request: &Request) -> (u64, u64, i32) {
    let extension = request.header.extension.clone().unwrap();
    (extension.client_id.unwrap(), extension.sequence.unwrap(), extension.attempt.unwrap())
}

#[tokio::test]
async fn what_was_set_is_read_back() {
    let records = Records::default();
    let node = single(move |request| Action::Reply(records.answer(&request.body))).await;
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap(), None);
    table.set("h", "s", "value").await.unwrap();
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"value"[..]));
    table.del("h", "s").await.unwrap();
    assert_eq!(table.get("h", "s").await.unwrap(), None);
}

#[tokio::test]
async fn a_request_goes_to_the_partition_of_its_hash_key() {
    let node = single(|_| Action::Reply(value(b""))).await;
    let table = open(node.address, patient()).await;
    for hash_key in ["a", "b", "c", "d", "hello"] {
        table.get(hash_key, "s").await.unwrap();
        let header = node.requests().pop().unwrap().header;
        let hash = key::crc64(hash_key.as_bytes());
        assert_eq!((header.app_id, header.partition_hash), (1, hash));
        assert_eq!(header.partition_index as u64, hash % 2);
    }
}

#[tokio::test]
async fn a_named_leader_is_asked_and_remembered() {
    let leader = single(|_| Action::Reply(value(b"v"))).await;
    let leader_address = leader.address;
    let (listener, follower_address) = listen().await;
    let follower = Fake::serve_on(listener, move |request| {
        // The map that this node hands out is old: it knows of itself only.
        metadata(request, || map(&[follower_address; 2], &[follower_address], 1))
            .unwrap_or_else(|| not_leader(Some(leader_address)))
    });
    let table = open(follower.address, patient()).await;
    for _ in 0..3 {
        assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
    }
    assert_eq!((follower.requests().len(), leader.requests().len()), (1, 3));
    assert_eq!(follower.queries(), 1, "a hint needs no new map");
}

#[tokio::test]
async fn without_a_named_leader_the_map_is_fetched_again() {
    let leader = single(|_| Action::Reply(value(b"v"))).await;
    let leader_address = leader.address;
    let (listener, old) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let current = || if is_first() { map(&[old; 2], &[old], 1) } else { map(&[leader_address; 2], &[old], 2) };
        metadata(request, current).unwrap_or_else(|| not_leader(None))
    });
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!((node.requests().len(), leader.requests().len()), (1, 1));
}

#[tokio::test]
async fn many_who_lack_a_leader_share_one_query() {
    let leader = single(|_| Action::Reply(value(b"v"))).await;
    let leader_address = leader.address;
    let (listener, old) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let current = || if is_first() { map(&[old; 2], &[old], 1) } else { map(&[leader_address; 2], &[old], 2) };
        metadata(request, current).unwrap_or_else(|| match &request.body {
            Body::Get(_) => Action::KeepUntil(50, Reply::refused(&Refusal::NotHosted, None)),
            _ => Action::Silence,
        })
    });
    let table = open(node.address, patient()).await;
    let gets: Vec<_> = (0..50)
        .map(|index| {
            let table = table.clone();
            tokio::spawn(async move { table.get(format!("h{index}"), "s").await })
        })
        .collect();
    for get in gets {
        get.await.unwrap().unwrap();
    }
    assert_eq!(leader.requests().len(), 50);
    assert!(node.queries() + leader.queries() <= 4, "{} queries", node.queries() + leader.queries());
}

#[tokio::test]
async fn a_retried_write_keeps_its_number_and_the_next_gets_another() {
    let is_first = once();
    let node = single(move |_| if is_first() { refused(&Refusal::Unresolved) } else { Action::Reply(done()) }).await;
    let table = open(node.address, patient()).await;
    table.set("h", "s", "1").await.unwrap();
    table.set("h", "s", "2").await.unwrap();
    let sent: Vec<_> = node.requests().iter().map(session).collect();
    let [(client, first, 1), again, (same_client, next, 1)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((again, same_client), ((client, first, 2), client));
    assert!(next > first, "{sent:?}");
}

/// A partition's refusal of a number, with the range that it takes.
fn out_of_range(request: &Request, floor: u64, ceiling: u64) -> Action {
    refused(&Refusal::SessionWindow { sequence: session(request).1, floor, ceiling })
}

/// Plain and hedged requests go different ways through the client.
async fn open_both(node: &Fake) -> [Table; 2] {
    let client = Client::connect_with(&[node.address.to_string()], patient()).await.unwrap();
    let hedge = HedgeOptions { writes: "10000ms".parse().unwrap(), ..HedgeOptions::default() };
    [open(node.address, patient()).await, client.open_table_with("t", hedge).await.unwrap()]
}

/// Pitfall D9: a client whose clock is far behind goes on above the floor, and one whose clock is far ahead under another
/// name. The one attempt was judged, and not applied.
#[tokio::test]
async fn d9_a_write_whose_number_is_out_of_range_is_sent_again_within_it() {
    for [floor, ceiling] in [[u64::MAX - 2 * SESSION_AHEAD_MICROS, u64::MAX - SESSION_AHEAD_MICROS], [0, 5_000_000_000]]
    {
        let takes = floor + 1..=ceiling;
        let node = single(move |request| match session(request).1 {
            number if takes.contains(&number) => Action::Reply(done()),
            _ => out_of_range(request, floor, ceiling),
        })
        .await;
        for table in open_both(&node).await {
            let before = node.requests().len();
            table.set("h", "s", "1").await.unwrap();
            table.set("h", "s", "2").await.unwrap();
            let sent: Vec<_> = node.requests()[before..].iter().map(session).collect();
            assert_eq!(sent.len(), 3, "only the first number was refused: {sent:?}");
            assert_eq!((sent[0].0 == sent[1].0, sent[1].0), (floor > 0, sent[2].0), "{sent:?}");
            assert!(sent[1].1 < sent[2].1, "{sent:?}");
        }
    }
}

/// Pitfall D9: with another attempt that may have been applied, the caller has to know.
#[tokio::test]
async fn d9_a_write_that_may_have_been_applied_keeps_its_number() {
    for doubtful in [Refusal::Unresolved, Refusal::Stopping("a full disk".into())] {
        let node = single(move |request| match session(request).2 {
            1 => refused(&doubtful),
            _ => out_of_range(request, u64::MAX - 2 * SESSION_AHEAD_MICROS, u64::MAX - SESSION_AHEAD_MICROS),
        })
        .await;
        for table in open_both(&node).await {
            let before = node.requests().len();
            let error = table.set("h", "s", "1").await.unwrap_err();
            assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Forgotten, true));
            let sent: Vec<_> = node.requests()[before..].iter().map(session).collect();
            assert!(sent.len() == 2 && sent[0].1 == sent[1].1, "{sent:?}");
        }
    }
}

/// Pitfall D9: somebody who pushes the floor ahead of every number keeps nobody in a circle.
#[tokio::test]
async fn d9_a_write_is_renewed_a_few_times_only() {
    let node = single(|request| {
        let floor = session(request).1 + SESSION_WINDOW;
        out_of_range(request, floor, floor + SESSION_AHEAD_MICROS)
    })
    .await;
    for table in open_both(&node).await {
        let before = node.requests().len();
        let error = table.set("h", "s", "1").await.unwrap_err();
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Forgotten, false));
        assert_eq!(node.requests().len() - before, 4);
    }
}

#[tokio::test]
async fn reads_carry_no_number() {
    let node = single(|_| Action::Reply(value(b"v"))).await;
    open(node.address, patient()).await.get("h", "s").await.unwrap();
    let extension = node.requests()[0].header.extension.clone().unwrap();
    assert_eq!((extension.client_id, extension.sequence), (None, None));
    assert!(extension.deadline_ms.unwrap() > 0);
}

#[tokio::test]
async fn an_error_that_cannot_pass_is_returned_at_once() {
    let node = single(|_| refused(&Refusal::TooLarge("the value is above the limit".to_owned()))).await;
    let error = open(node.address, patient()).await.set("h", "s", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::TooLarge, false));
    assert_eq!(node.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_at_the_deadline() {
    let group = Group::start(1).await;
    group.silence(LEADER);
    let options = ClientOptions { operation_timeout: ms(40), ..ClientOptions::default() };
    let table = group.client(options).await.open_table("t").await.unwrap();
    for is_write in [false, true] {
        let table = table.clone();
        let request = tokio::spawn(async move {
            if is_write { table.set("h", "s", "v").await } else { table.get("h", "s").await.map(drop) }
        });
        pass(ms(39)).await;
        assert!(!request.is_finished());
        pass(ms(2)).await;
        let error = answer(request).await.unwrap_err();
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Timeout, is_write));
    }
}

#[tokio::test]
async fn a_silent_leader_is_left_for_the_one_that_took_over() {
    let leader = single(|_| Action::Reply(done())).await;
    let leader_address = leader.address;
    let (listener, silent) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let nodes = [silent, leader_address];
        let current = || map(&[if is_first() { silent } else { leader_address }; 2], &nodes, 1);
        metadata(request, current).unwrap_or(Action::Silence)
    });
    let options = ClientOptions { attempt_timeout: Some(Duration::from_millis(30)), ..patient() };
    open(node.address, options).await.set("h", "s", "v").await.unwrap();
    assert_eq!(session(&node.requests()[0]).1, session(&leader.requests()[0]).1);
}

#[tokio::test]
async fn requests_are_pipelined_and_replies_may_come_in_any_order() {
    let node = single(|request| match &request.body {
        Body::Get(key) => Action::KeepUntil(100, value(key)),
        _ => Action::Close,
    })
    .await;
    let table = open(node.address, patient()).await;
    let gets: Vec<_> = (0..100)
        .map(|index| {
            let table = table.clone();
            tokio::spawn(async move { (index, table.get("h", format!("{index}")).await) })
        })
        .collect();
    for get in gets {
        let (index, value) = get.await.unwrap();
        assert_eq!(value.unwrap().unwrap(), key::full_key(b"h", index.to_string().as_bytes()));
    }
    assert_eq!(node.connections(), 1);
}

#[tokio::test]
async fn a_dead_connection_fails_over_at_once() {
    let survivor = single(|_| Action::Reply(done())).await;
    let survivor_address = survivor.address;
    let (listener, dying) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let nodes = [dying, survivor_address];
        let current = || map(&[if is_first() { dying } else { survivor_address }; 2], &nodes, 1);
        metadata(request, current).unwrap_or(Action::Close)
    });
    // Neither the attempt nor the operation can time out within the test.
    let options = ClientOptions { attempt_timeout: Some(LONG), ..patient() };
    open(node.address, options).await.set("h", "s", "v").await.unwrap();
    assert_eq!(session(&node.requests()[0]).1, session(&survivor.requests()[0]).1);
    assert_eq!(session(&survivor.requests()[0]).2, 2, "the second attempt");
}

#[tokio::test]
async fn a_closed_connection_is_made_again() {
    let is_first = once();
    let node = single(move |_| if is_first() { Action::Close } else { Action::Reply(value(b"v")) }).await;
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(node.connections(), 2);
}

#[tokio::test]
async fn a_malformed_reply_ends_the_connection_and_the_operation() {
    let calls = AtomicUsize::new(0);
    let node = single(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Action::Raw(b"\0\0\0\x10 not a reply "),
        _ => Action::Reply(value(b"v")),
    })
    .await;
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
}

#[tokio::test]
async fn a_reply_that_nobody_waits_for_is_dropped() {
    let node = single(|request| match &request.body {
        Body::Get(key) => Action::KeepUntil(2, value(key)),
        _ => Action::Close,
    })
    .await;
    let table = open(node.address, patient()).await;
    tokio::select! {
        biased;
        _ = table.get("h", "abandoned") => panic!("it cannot be answered yet"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(table.get("h", "2").await.unwrap().unwrap(), key::full_key(b"h", b"2"));
}

#[tokio::test]
async fn no_node_is_unreachable() {
    let (_nobody, address) = nobody();
    let options = ClientOptions { connect_timeout: Duration::from_millis(50), ..ClientOptions::default() };
    let error = Client::connect_with(&[address.to_string()], options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = Client::connect(&["no port"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn one_live_seed_is_enough() {
    let (_nobody, dead) = nobody();
    let node = single(|_| Action::Reply(value(b"v"))).await;
    let client = Client::connect(&[dead.to_string(), node.address.to_string()]).await.unwrap();
    client.open_table("t").await.unwrap().get("h", "s").await.unwrap();
}

#[tokio::test]
async fn an_unknown_table_is_its_own_kind_of_error() {
    let node = Fake::start(move |request| metadata(request, no_table).unwrap_or(Action::Close)).await;
    let client = Client::connect(&[node.address.to_string()]).await.unwrap();
    assert_eq!(client.open_table("t").await.unwrap_err().kind(), ErrorKind::NoTable);
}

/// Pitfall D13.
#[tokio::test]
async fn d13_a_node_that_has_not_heard_of_a_table_does_not_end_a_call() {
    let (listener, address) = listen().await;
    let knows_by_now = fourth();
    let node = Fake::serve_on(listener, move |request| {
        metadata(request, || map(&[address; 2], &[address], 1))
            .unwrap_or_else(|| if knows_by_now() { Action::Reply(value(b"v")) } else { refused(&Refusal::NoTable) })
    });
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(node.requests().len(), 4);
}

/// Pitfall D13: they answer until the map says so too, and not until the deadline.
#[tokio::test]
async fn d13_a_table_that_is_dropped_meanwhile_ends_a_call() {
    let (listener, address) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let current = || if is_first() { map(&[address; 2], &[address], 1) } else { no_table() };
        metadata(request, current).unwrap_or_else(|| refused(&Refusal::NoTable))
    });
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap_err().kind(), ErrorKind::NoTable);
}

/// Pitfall D13: the node that is asked knows the table that had the name before.
#[tokio::test]
async fn d13_what_was_created_can_be_opened() {
    let (listener, address) = listen().await;
    let knows_by_now = fourth();
    let node = Fake::serve_on(listener, move |request| {
        let current = || numbered(if knows_by_now() { 7 } else { 3 }, map(&[address; 2], &[address], 1));
        match &request.body {
            Body::HedgerowAdmin(_) => Action::Reply(Reply::HedgerowAdmin(AdminCommandReply {
                err: ErrorName::Ok,
                text: Text::from("{\"created\":7}"),
            })),
            _ => metadata(request, current).unwrap_or_else(|| Action::Reply(value(b"v"))),
        }
    });
    let client = Client::connect_with(&[node.address.to_string()], patient()).await.unwrap();
    assert_eq!(client.create_table("t", &TableSpec::default()).await.unwrap(), 7);
    let table = client.open_table("t").await.unwrap();
    table.get("h", "s").await.unwrap();
    assert_eq!(node.requests().last().unwrap().header.app_id, 7);
}

/// Pitfall D13: once the table is known, a node that names an older one by its name does not end a call.
#[tokio::test]
async fn d13_an_older_map_is_no_word_that_a_table_is_gone() {
    let (listener, address) = listen().await;
    let (knows_by_now, serves_by_now) = (fourth(), fourth());
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let current = || numbered(if is_first() || knows_by_now() { 7 } else { 3 }, map(&[address; 2], &[address], 1));
        let serve = || if serves_by_now() { Action::Reply(value(b"v")) } else { refused(&Refusal::NoTable) };
        metadata(request, current).unwrap_or_else(serve)
    });
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
}

/// Pitfall D13: the name is another table's by now, whose keys are made in another way.
#[tokio::test]
async fn d13_a_table_of_another_kind_is_not_taken_for_the_one_that_was_opened() {
    let (listener, address) = listen().await;
    let is_first = once();
    let node = Fake::serve_on(listener, move |request| {
        let current = || {
            let Reply::QueryConfig(mut reply) = map(&[address; 2], &[address], 1) else { panic!("it is a map") };
            if !is_first() {
                reply.app_id += 1;
                reply.table_kind = Some(1);
                reply.start_keys = Some(vec![Binary::default(), Binary(b"m".as_slice().into())]);
            }
            Reply::QueryConfig(reply)
        };
        metadata(request, current).unwrap_or_else(|| refused(&Refusal::NoTable))
    });
    let table = open(node.address, patient()).await;
    assert_eq!(table.get("h", "s").await.unwrap_err().kind(), ErrorKind::NoTable);
    let ids: BTreeSet<i32> = node.requests().iter().map(|request| request.header.app_id).filter(|id| *id > 0).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
}

#[tokio::test]
async fn a_table_opens_only_as_what_it_is() {
    let (listener, address) = listen().await;
    let ordered = move || {
        let Reply::QueryConfig(mut reply) = map(&[address; 2], &[address], 1) else { panic!("it is a map") };
        reply.table_kind = Some(1);
        reply.start_keys = Some(vec![Binary::default(), Binary(b"m".as_slice().into())]);
        Reply::QueryConfig(reply)
    };
    let node = Fake::serve_on(listener, move |request| {
        metadata(request, ordered).unwrap_or_else(|| Action::Reply(value(&[request.header.partition_index as u8])))
    });
    let client = Client::connect(&[node.address.to_string()]).await.unwrap();
    let error = client.open_table("t").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("open_ordered_table"), "{error}");
    let table = client.open_ordered_table("t").await.unwrap();
    let partition_of = async |key: &str| table.get(key).await.unwrap().unwrap()[0];
    assert_eq!((partition_of("").await, partition_of("lz").await, partition_of("m").await), (0, 0, 1));
}

#[tokio::test]
async fn a_scan_whose_context_is_lost_goes_on_behind_the_last_row() {
    let node = single(|request| {
        Action::Reply(match &request.body {
            Body::GetScanner(open) if open.start_inclusive => page(&["1", "2"], 7),
            Body::GetScanner(_) => page(&["3"], SCAN_DONE),
            _ => Reply::Scan(ScanReply { error: 1, ..ScanReply::default() }),
        })
    })
    .await;
    let table = open(node.address, patient()).await;
    let mut scanner = table.scan("h", &Range::default(), ScanOptions::default()).unwrap();
    let mut keys = Vec::new();
    while let Some(row) = scanner.next().await.unwrap() {
        keys.push(row.sort_key);
    }
    assert_eq!(keys, ["1", "2", "3"]);
    let Body::GetScanner(reopened) = &node.requests()[2].body else { panic!("the scan is opened again") };
    assert_eq!(reopened.start_key, key::full_key(b"h", b"2"));
    assert_eq!(reopened.stop_key, key::prefix_end(&key::full_key(b"h", b"")).unwrap());
}

#[tokio::test]
async fn batch_get_keeps_the_order_of_its_keys() {
    let node = single(|request| match &request.body {
        Body::BatchGet(batch) => {
            let data = |key: &hedgerow_wire::message::FullKey| hedgerow_wire::message::FullData {
                hash_key: key.hash_key.clone(),
                sort_key: key.sort_key.clone(),
                value: key.sort_key.clone(),
            };
            // Absent records are left out, and nothing is promised about the order.
            let data = batch.keys.iter().rev().filter(|key| key.sort_key != "absent").map(data).collect();
            Action::Reply(Reply::BatchGet(hedgerow_wire::message::BatchGetReply { data, ..Default::default() }))
        }
        _ => Action::Close,
    })
    .await;
    let table = open(node.address, patient()).await;
    let keys = [("a", "1"), ("b", "absent"), ("c", "2"), ("d", "3"), ("a", "4")];
    let values = table.batch_get(keys).await.unwrap();
    let texts: Vec<_> = values.iter().map(|value| value.as_deref().map(|v| std::str::from_utf8(v).unwrap())).collect();
    assert_eq!(texts, [Some("1"), None, Some("2"), Some("3"), Some("4")]);
}

/// The node that was asked passed the call on, and does not know what became of it. Asking again might drop a table that another
/// caller has created since, or undo what he has set.
#[tokio::test]
async fn d21_an_administrative_call_that_may_have_run_is_not_sent_again() {
    for refusal in [Refusal::Expired, Refusal::Stopping(String::new()), Refusal::Unresolved, Refusal::Creating] {
        let (said, count) = (refusal.clone(), Arc::new(AtomicUsize::new(0)));
        let asked = Arc::clone(&count);
        let node = Fake::start(move |request| match &request.body {
            Body::HedgerowAdmin(_) => {
                asked.fetch_add(1, Ordering::SeqCst);
                refused(&said)
            }
            _ => Action::Reply(value(b"")),
        })
        .await;
        let client = Client::connect_with(&[node.address.to_string()], patient()).await.unwrap();
        let drop = |if_exists| client.drop_table("t", if_exists, hedgerow_client::Reserve::Seconds(0));
        let prefer = client.admin_once("prefer_leader", "{}", Duration::from_secs(1));
        let errors = [
            drop(false).await.unwrap_err(),
            drop(true).await.unwrap_err(),
            client.set_option("t", "business.info", "a").await.unwrap_err(),
            client.set_option("t", "business.info", "").await.unwrap_err(),
            client.create_table("t", &TableSpec::default()).await.unwrap_err(),
            prefer.await.unwrap_err(),
        ];
        for (number, error) in errors.iter().enumerate() {
            assert!(error.is_outcome_unknown(), "call {number}, {refusal:?}: {error}");
        }
        assert_eq!(count.load(Ordering::SeqCst), errors.len(), "{refusal:?}");
    }
}

/// Users may await operations on any runtime, so that every future must be able to move between threads.
#[test]
fn operations_can_move_between_threads() {
    fn movable<T: Send>(_: &T) {}
    fn check(client: &Client, table: &Arc<Table>) {
        movable(&client.open_table("t"));
        movable(&table.get("h", "s"));
        movable(&table.set("h", "s", "v"));
        movable(&table.multi_set("h", [("s", "v")], None));
        movable(&table.batch_get([("h", "s")]));
        movable(&table.scan_all(ScanOptions::default()).next());
    }
    let _ = check;
}
