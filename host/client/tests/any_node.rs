//! Questions that any node can answer, beside nodes that are silent, know less, or are none.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::{Action, Fake, listen, map, metadata, no_table, single, value};
use hedgerow_client::{Client, ClientOptions, ErrorKind};
use hedgerow_wire::message::{ListNodesReply, QueryConfigReply};
use hedgerow_wire::{Body, ErrorName, Reply, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a node says of a table that the one at `leader` knows.
fn forward_to(leader: SocketAddr) -> Reply {
    let Reply::QueryConfig(map) = map(&[leader; 2], &[leader], 1) else { panic!("it is a map") };
    let partitions = map.partitions;
    Reply::QueryConfig(QueryConfigReply { err: ErrorName::ForwardToOthers, partitions, ..QueryConfigReply::default() })
}

/// A node that never answers, and counts how often it is asked for the list of nodes.
fn counting(asked: Arc<AtomicUsize>) -> impl Fn(&Request) -> Action + Send + Sync {
    move |request| {
        asked.fetch_add(usize::from(matches!(request.body, Body::ListNodes(_))), Ordering::SeqCst);
        Action::Silence
    }
}

/// A node that answers what any node can.
fn listing(request: &Request) -> Action {
    match &request.body {
        Body::ListNodes(_) => Action::Reply(Reply::ListNodes(ListNodesReply::default())),
        _ => metadata(request, no_table).unwrap_or(Action::Close),
    }
}

/// Whoever connects to another service is told so at once, and not when the time is over.
#[tokio::test]
async fn another_service_is_named_at_once() {
    let fake = Fake::start(|_| Action::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let started = tokio::time::Instant::now();
    let options = ClientOptions { operation_timeout: Duration::from_secs(60), ..ClientOptions::default() };
    let error = match Client::connect_with(&[fake.address.to_string()], options).await {
        Ok(client) => client.open_table("t").await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("is no Hedgerow node"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// What any node can say, another one is asked for too, long before anybody loses patience with the first: that would take 5 s.
#[tokio::test]
async fn a_node_that_never_answers_holds_up_no_question() {
    let asked = Arc::new(AtomicUsize::new(0));
    let silent = Fake::start(counting(asked.clone())).await;
    let node = Fake::start(listing).await;
    let client = Client::connect(&[silent.address, node.address].map(|address| address.to_string())).await.unwrap();
    let started = tokio::time::Instant::now();
    for _ in 0..4 {
        client.list_nodes().await.unwrap();
    }
    // A question that was answered elsewhere does not have the next one begin at the silent node again.
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..=2).contains(&asked), "nodes are asked in turn: {asked}");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

/// Questions share the turn of the nodes: another one had the healthy node next, so that the first asked the silent one again, and waited for 5 s.
#[tokio::test]
async fn the_second_node_is_another_one_whatever_others_ask() {
    let asked = Arc::new(AtomicUsize::new(0));
    let silent = Fake::start(counting(asked.clone())).await;
    let node = Fake::start(listing).await;
    let client = Client::connect(&[silent.address, node.address].map(|address| address.to_string())).await.unwrap();
    let started = tokio::time::Instant::now();
    let waiting = loop {
        let client = client.clone();
        let question = tokio::spawn(async move { client.list_nodes().await });
        while !question.is_finished() && asked.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        if !question.is_finished() {
            break question;
        }
    };
    client.list_nodes().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

/// The second of three nodes is only starting: the third is asked, and nobody waits for 5 s for the first, which is silent.
#[tokio::test]
async fn a_third_node_is_asked_where_the_second_knows_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let silent = Fake::start(counting(asked.clone())).await;
    let starting = Fake::start(|request| match &request.body {
        Body::ListNodes(_) => {
            let err = ErrorName::ServiceNotActive;
            Action::Reply(Reply::ListNodes(ListNodesReply { err, ..ListNodesReply::default() }))
        }
        _ => metadata(request, no_table).unwrap_or(Action::Close),
    })
    .await;
    let node = Fake::start(listing).await;
    let addresses = [silent.address, starting.address, node.address].map(|address| address.to_string());
    let client = Client::connect(&addresses).await.unwrap();
    let started = tokio::time::Instant::now();
    // One of three begins at the silent node, in whose turn the one that is starting comes next.
    for _ in 0..3 {
        client.list_nodes().await.unwrap();
    }
    assert!(asked.load(Ordering::SeqCst) > 0, "nodes are asked in turn");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

/// What is no node ended the question beside a node that was silent for a while, as if there were none.
#[tokio::test]
async fn a_silent_node_beside_another_service_is_a_node() {
    let calls = AtomicUsize::new(0);
    let (listener, address) = listen().await;
    let node = Fake::serve_on(listener, move |request| match &request.body {
        Body::QueryConfig(_) if calls.fetch_add(1, Ordering::SeqCst) < 2 => Action::Silence,
        _ => metadata(request, || map(&[address; 2], &[address], 1)).unwrap_or_else(|| Action::Reply(value(b"v"))),
    });
    let other = Fake::start(|_| Action::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let client = Client::connect(&[node.address, other.address].map(|address| address.to_string())).await.unwrap();
    let table = client.open_table("t").await.unwrap();
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
}

/// A node that does not know the table says who does, while another one is silent.
#[tokio::test]
async fn who_is_named_beside_a_silent_node_is_asked() {
    let silent = Fake::start(|_| Action::Silence).await;
    let leader = single(|_| Action::Reply(value(b"v"))).await;
    let leader_address = leader.address;
    let node =
        Fake::start(move |request| metadata(request, || forward_to(leader_address)).unwrap_or(Action::Close)).await;
    // One of any two questions begins at the silent one.
    for _ in 0..2 {
        let client = Client::connect(&[silent.address, node.address].map(|address| address.to_string())).await.unwrap();
        for _ in 0..2 {
            let table = client.open_table("t").await.unwrap();
            assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
        }
    }
}

/// Forwards that follow other refusals are no circle: those in a row count, and not all attempts before.
#[tokio::test]
async fn a_forward_is_followed_however_late_it_comes() {
    let leader = single(|_| Action::Reply(value(b"v"))).await;
    let (leader_address, calls) = (leader.address, AtomicUsize::new(0));
    let starting = QueryConfigReply { err: ErrorName::ServiceNotActive, ..QueryConfigReply::default() };
    let node = Fake::start(move |request| {
        let answer = || match calls.fetch_add(1, Ordering::SeqCst) {
            0..3 => Reply::QueryConfig(starting.clone()),
            _ => forward_to(leader_address),
        };
        metadata(request, answer).unwrap_or(Action::Close)
    })
    .await;
    let client = Client::connect(&[node.address.to_string()]).await.unwrap();
    let table = client.open_table("t").await.unwrap();
    assert_eq!(table.get("h", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
}
