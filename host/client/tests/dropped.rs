//! What servers hear of requests whose futures are dropped, of handles that do not hedge.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, answer, get, ms, pass, patient, settle, spawn_get};
use fake::{Action, page};
use hedgerow_client::{ClientOptions, HedgeOptions, Table};
use hedgerow_wire::Body;
use hedgerow_wire::message::Cancel;
use std::collections::BTreeSet;

/// A plain table whose leader is silent.
async fn silent(options: ClientOptions) -> (Group, Table) {
    let group = Group::start(2).await;
    let (_, table) = group.open_with(HedgeOptions::default(), options).await;
    assert_eq!(get(&table).await, LEADER);
    group.silence(LEADER);
    (group, table)
}

fn taken_back(group: &Group) -> Vec<Cancel> {
    group.nodes[LEADER].cancels()
}

/// The read names nothing that it would be taken back by: what is not dropped costs nothing.
#[tokio::test(start_paused = true)]
async fn a_read_that_is_dropped_is_taken_back_by_its_number() {
    let (group, table) = silent(patient()).await;
    let (kept, dropped) = (spawn_get(&table), spawn_get(&table));
    settle().await;
    dropped.abort();
    settle().await;
    let requests = group.nodes[LEADER].requests();
    let number = requests[2].sequence_id;
    assert_eq!(taken_back(&group), [Cancel { sequence_id: Some(number), ..Cancel::default() }]);
    let sent = requests[2].header.extension.as_ref().unwrap();
    assert_eq!((sent.client_id, sent.request_id), (None, None));
    assert!(!kept.is_finished() && group.cancels() == 1);
    kept.abort();
}

#[tokio::test(start_paused = true)]
async fn all_that_are_dropped_together_are_taken_back() {
    let (group, table) = silent(patient()).await;
    let all = tokio::spawn(async move {
        let keys: Vec<String> = (0..50).map(|key| key.to_string()).collect();
        // One request for each of the two partitions.
        let batch = table.batch_get(keys.iter().map(|key| (key, "s")));
        let reads = futures_util::future::join_all((0..20).map(|_| get(&table)));
        futures_util::future::join(batch, reads).await.0.unwrap()
    });
    settle().await;
    all.abort();
    settle().await;
    let sent: BTreeSet<_> = group.nodes[LEADER].requests()[1..].iter().map(|request| request.sequence_id).collect();
    let cancelled: BTreeSet<_> = taken_back(&group).iter().filter_map(|cancel| cancel.sequence_id).collect();
    assert_eq!((sent.len(), taken_back(&group).len()), (22, 22));
    assert_eq!(sent, cancelled);
}

/// A page of a scan as well, and the node that holds the scan keeps it.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_dropped_is_taken_back() {
    let (group, table) = silent(patient()).await;
    group.answer(LEADER, |request| match &request.body {
        Body::GetScanner(_) => Action::Reply(page(&["1"], 7)),
        _ => Action::Silence,
    });
    let mut scanner = table.scan("h", &Default::default(), Default::default()).unwrap();
    let rows = tokio::spawn(async move { while scanner.next().await.unwrap().is_some() {} });
    settle().await;
    rows.abort();
    settle().await;
    let requests = group.nodes[LEADER].requests();
    assert!(matches!(requests[2].body, Body::Scan(_)));
    assert_eq!(taken_back(&group), [Cancel { sequence_id: Some(requests[2].sequence_id), ..Cancel::default() }]);
}

/// A write may have been applied by the time that its future is dropped, and goes on if it has begun.
#[tokio::test(start_paused = true)]
async fn nothing_is_said_of_writes_and_of_what_is_over() {
    let (group, table) = silent(ClientOptions { attempt_timeout: Some(ms(100)), ..patient() }).await;
    let write = {
        let table = table.clone();
        tokio::spawn(async move { table.set("h", "s", "v").await })
    };
    settle().await;
    write.abort();
    settle().await;
    // An attempt that is late is over for a plain handle.
    let late = spawn_get(&table);
    pass(ms(99)).await;
    group.serve(LEADER);
    pass(ms(50)).await;
    answer(late).await;
    get(&table).await;
    settle().await;
    assert_eq!(group.cancels(), 0);
}
