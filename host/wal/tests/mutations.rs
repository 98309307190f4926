//! The deliberate faults do what they say. A process of its own, for they are global.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::sim::SimDisk;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::mutation::SKIP_SYNC;
use hedgerow_wal::{Append, Log, Options};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many of 50 crashes lose something that a sync had promised.
fn losses() -> usize {
    let options = Options { segment_size: 64 << 10, ..Options::default() };
    let open = |disk: &SimDisk| Log::open(Arc::new(disk.clone()), Path::new("/log"), options).unwrap();
    let entry = |index| Entry { index, term: 1, kind: EntryKind::Normal, data: vec![7; 1000].into() };
    let entries: Vec<Entry> = (1..=20).map(entry).collect();
    let append = Append { group: GroupId::META, replica: ReplicaId(1), reset: None, entries, hard_state: None };
    let is_lost = |seed: &u64| {
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk);
        log.write(std::slice::from_ref(&append)).unwrap();
        log.sync().unwrap();
        disk.crash(&mut Random::new(*seed));
        open(&disk).1.first().is_none_or(|found| found.last.index < 20)
    };
    (0..50).filter(is_lost).count()
}

#[test]
fn skipping_the_sync_loses_what_was_called_durable() {
    assert_eq!(losses(), 0);
    SKIP_SYNC.store(true, Ordering::Relaxed);
    assert!(losses() > 40);
}
