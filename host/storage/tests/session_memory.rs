//! What sessions cost in memory (pitfall D9). The only test of its process, so that the process's memory is the test's.
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

use bytes::Bytes;
use common::{Rocks, Store, entry};
use hedgerow_types::ClientId;
use hedgerow_types::limit::SESSION_BYTES_MAX;
use hedgerow_types::op::{Proposal, Write};

const CLIENT_COUNT: u64 = 100_000;
/// As many as took nodes from 33 to 3,077 MiB.
const INVENTED_COUNT: u64 = 280_000;
/// Entries between two flushes: at 100 bytes or so in the log, as often as a node flushes.
const FLUSH_INTERVAL: u64 = 100_000;
const MIB: u64 = 1 << 20;

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4_096
}

/// Each of `clients` writes `count` times, in turn. Returns the most memory that the process had meanwhile.
fn write(store: &mut Store<Rocks>, clients: std::ops::Range<u64>, count: u64) -> u64 {
    let mut most = 0;
    let writes = (0..count).flat_map(|_| clients.clone());
    let mut entries = Vec::new();
    for client in writes {
        let index = store.partition().applied().index + 1 + entries.len() as u64;
        let write = Write::Put { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v"), expire_at: 0 };
        entries.push(entry(
            index,
            &Proposal { client: ClientId(client), sequence: index, now: 0, is_agreed: false, write },
        ));
        if entries.len() == 1_000 {
            store.partition_mut().apply(&entries, None, &mut Vec::new()).expect("applies");
            entries.clear();
            most = most.max(resident_bytes());
            if index.is_multiple_of(FLUSH_INTERVAL) {
                store.flush();
            }
        }
    }
    most
}

#[test]
fn d9_sessions_keep_within_their_memory() {
    let mut store = Store::<Rocks>::new();
    write(&mut store, 1..1_001, 1);
    store.flush();
    let before = resident_bytes();
    let grown = |most: u64| most.saturating_sub(before) / MIB;

    let grown_by_clients = grown(write(&mut store, 1..CLIENT_COUNT + 1, 1));
    assert_eq!(store.partition().session_count() as u64, CLIENT_COUNT, "all are remembered");
    assert!(grown_by_clients <= 64, "{CLIENT_COUNT} clients: {grown_by_clients} MiB");

    let grown_by_invented = grown(write(&mut store, 1 << 40..(1 << 40) + INVENTED_COUNT, 1));
    assert!(store.partition().session_bytes() <= SESSION_BYTES_MAX);
    assert!(grown_by_invented <= 96, "{INVENTED_COUNT} invented clients: {grown_by_invented} MiB");

    let grown_by_many = grown(write(&mut store, 1..CLIENT_COUNT + 1, 4));
    assert!(store.partition().session_bytes() <= SESSION_BYTES_MAX);
    assert!(grown_by_many <= 96, "{CLIENT_COUNT} clients, four writes each: {grown_by_many} MiB");
    println!("grown by {grown_by_clients}, {grown_by_invented} and {grown_by_many} MiB");
    println!("{} sessions of {} bytes", store.partition().session_count(), store.partition().session_bytes());
}
