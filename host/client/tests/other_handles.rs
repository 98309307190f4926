//! Several handles of one table, and a table that is dropped and created anew under its handles: no two writes have one number in
//! one partition, and nothing is looked for in a partition that it is not in.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails where it fails, and listens by itself"
)]

mod fake;

use fake::{Action, Fake, done, listen, map, metadata, page, refused};
use hedgerow_client::{
    Client, ClientOptions, ErrorKind, HedgeOptions, Range, ScanOptions, Table, TableOptions, TableSpec,
};
use hedgerow_types::{Refusal, key};
use hedgerow_wire::message::{AdminCommandReply, BatchGetReply, QueryConfigReply, SCAN_DONE};
use hedgerow_wire::{Body, ErrorName, Reply, Request, Text};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const OLD: i32 = 1;
const NEW: i32 = 7;

async fn client_of(address: SocketAddr) -> Client {
    let options = ClientOptions { operation_timeout: Duration::from_secs(60), ..ClientOptions::default() };
    Client::connect_with(&[address.to_string()], options).await.unwrap()
}

/// The map of the later table of the name.
fn new_map(address: SocketAddr, partitions: usize) -> Reply {
    let Reply::QueryConfig(map) = map(&vec![address; partitions], &[address], 1) else { panic!("not a map") };
    Reply::QueryConfig(QueryConfigReply { app_id: NEW, ..map })
}

/// 300 writes by each of two handles, all at once.
async fn write_all(one: Table, other: Table) {
    let mut writes = Vec::new();
    for number in 0..300 {
        for (name, table) in [("one", one.clone()), ("other", other.clone())] {
            writes.push(tokio::spawn(async move { table.set("h", format!("{name}{number}"), "v").await.unwrap() }));
        }
    }
    for write in writes {
        write.await.unwrap();
    }
}

/// No two rows of `table` were written in one partition under one number.
fn assert_numbers_differ(requests: &[Request], table: i32) {
    let mut rows = BTreeMap::new();
    let mut count = 0;
    for request in requests.iter().filter(|request| request.header.app_id == table) {
        let Body::Put(put) = &request.body else { continue };
        let extension = request.header.extension.as_ref().unwrap();
        let number = (request.header.partition_index, extension.client_id.unwrap(), extension.sequence.unwrap());
        let row = rows.entry(number).or_insert_with(|| put.key.clone());
        assert_eq!(*row, put.key, "{number:?} is the number of two writes");
        count += 1;
    }
    assert!(count >= 600, "{count} writes");
}

#[tokio::test]
async fn d17_two_tasks_that_open_a_table_at_once_share_its_numbers() {
    let (listener, address) = listen().await;
    let node = Fake::serve_on(listener, move |request| {
        metadata(request, || map(&[address; 2], &[address], 1)).unwrap_or_else(|| Action::Reply(done()))
    });
    let client = client_of(address).await;
    let (one, other) = tokio::join!(client.open_table("t"), client.open_table("t"));
    write_all(one.unwrap(), other.unwrap()).await;
    assert_numbers_differ(&node.requests(), OLD);
}

#[tokio::test]
async fn d17_a_handle_from_before_a_creation_shares_the_numbers_of_those_after_it() {
    let (listener, address) = listen().await;
    let node = Fake::serve_on(listener, move |request| match &request.body {
        Body::HedgerowAdmin(_) => {
            let text = Text::from_static("{\"created\":1}");
            Action::Reply(Reply::HedgerowAdmin(AdminCommandReply { err: ErrorName::Ok, text }))
        }
        _ => metadata(request, || map(&[address; 2], &[address], 1)).unwrap_or_else(|| Action::Reply(done())),
    });
    let client = client_of(address).await;
    let one = client.open_table("t").await.unwrap();
    client.create_table("t", &TableSpec { if_not_exists: true, ..TableSpec::default() }).await.unwrap();
    write_all(one, client.open_table("t").await.unwrap()).await;
    assert_numbers_differ(&node.requests(), OLD);
}

/// The first table refuses each of its writes as they come, and the name is a smaller table's then.
async fn write_over_a_change(options: TableOptions) {
    let (listener, address) = listen().await;
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refusals);
    let node = Fake::serve_on(listener, move |request| {
        let current = || match count.load(Ordering::SeqCst) {
            0 => map(&[address; 4], &[address], 1),
            _ => new_map(address, 2),
        };
        metadata(request, current).unwrap_or_else(|| match request.header.app_id {
            OLD => {
                count.fetch_add(1, Ordering::SeqCst);
                Action::ReplyAfter(Duration::from_millis(100), Reply::refused(&Refusal::NoTable, None))
            }
            _ => Action::Reply(done()),
        })
    });
    let table = client_of(address).await.open_table_with("t", options).await.unwrap();
    let set = |number| {
        let table = table.clone();
        tokio::spawn(async move { table.set(format!("h{number}"), "s", "v").await.unwrap() })
    };
    for write in (0..600).map(set).collect::<Vec<_>>() {
        write.await.unwrap();
    }
    assert!(refusals.load(Ordering::SeqCst) > 500, "they began in the first table");
    assert_numbers_differ(&node.requests(), NEW);
}

#[tokio::test]
async fn d18_a_write_takes_no_number_along_to_another_table() {
    write_over_a_change(TableOptions::default()).await;
}

#[tokio::test]
async fn d18_a_speculated_write_takes_no_number_along_to_another_table() {
    let hedge = HedgeOptions { writes: "50ms".parse().unwrap(), ..HedgeOptions::default() };
    write_over_a_change(TableOptions { hedge, ..TableOptions::default() }).await;
}

#[tokio::test]
async fn d18_what_was_grouped_by_an_old_map_is_not_asked_of_another_tables_partitions() {
    let (listener, address) = listen().await;
    let is_new = Arc::new(AtomicBool::new(false));
    let new = Arc::clone(&is_new);
    let node = Fake::serve_on(listener, move |request| {
        let current =
            || if new.load(Ordering::SeqCst) { new_map(address, 8) } else { map(&[address; 2], &[address], 1) };
        metadata(request, current).unwrap_or_else(|| match (request.header.app_id, &request.body) {
            (OLD, _) => {
                new.store(true, Ordering::SeqCst);
                refused(&Refusal::NoTable)
            }
            (_, Body::BatchGet(_)) => Action::Reply(Reply::BatchGet(BatchGetReply::default())),
            _ => Action::Reply(page(&[], SCAN_DONE)),
        })
    });
    let table = client_of(address).await.open_table("t").await.unwrap();
    let mut of_old =
        [table.scan("h", &Range::default(), ScanOptions::default()).unwrap(), table.scan_all(ScanOptions::default())];
    let keys: Vec<String> = (0..40).map(|number| format!("h{number}")).collect();
    assert_eq!(table.batch_get(keys.iter().map(|key| (key, "s"))).await.unwrap(), vec![None; 40]);
    let mut looked_for = BTreeMap::new();
    for request in node.requests().iter().filter(|request| request.header.app_id == NEW) {
        let Body::BatchGet(batch) = &request.body else { panic!("{request:?}") };
        looked_for.extend(batch.keys.iter().map(|key| (key.hash_key.clone(), request.header.partition_index as u64)));
    }
    assert_eq!(looked_for.len(), 40);
    for (hash_key, partition) in looked_for {
        assert_eq!(partition, key::crc64(&hash_key) % 8, "where {hash_key:?} was looked for last");
    }
    for scan in &mut of_old {
        assert_eq!(scan.next_page().await.unwrap_err().kind(), ErrorKind::NoTable);
    }
}
