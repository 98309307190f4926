//! Duplication of a partition to another cluster: what the source keeps, what the target makes of it, and that both agree in the end.
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

pub(crate) use common::suite;

#[path = "duplication/journal.rs"]
mod journal;
#[path = "duplication/one_way.rs"]
mod one_way;
#[path = "duplication/replicas.rs"]
mod replicas;
#[path = "duplication/rows.rs"]
mod rows;
#[path = "duplication/two_way.rs"]
mod two_way;

use bytes::Bytes;
use common::{Fixture, Store, anonymous, bytes, entry};
use hedgerow_storage::{ApplyOutcome, Partition};
use hedgerow_types::error::Status;
use hedgerow_types::journal::{Change, Duplicate, JournalPage, JournalRead, JournalWrite, Position, STAMP_COUNT_BITS};
use hedgerow_types::op::{Check, Mutation, Read, ReadReply, Write};

/// Numbers of two clusters.
const HERE: u64 = 1;
const THERE: u64 = 2;
/// The duplication that most tests have.
const ID: u64 = 7;
/// The log's time where tests begin.
const NOW: u32 = 100_000;
const NO_LIMIT: u64 = u64::MAX;

/// A storage key under the prefix `k`.
fn key(suffix: &str) -> Bytes {
    Bytes::from(format!("k{suffix}"))
}

fn put(suffix: &str, value: &str, expire_at: u32) -> Write {
    Write::Put { key: key(suffix), value: bytes(value), expire_at }
}

fn remove(suffix: &str) -> Write {
    Write::Remove { key: key(suffix) }
}

fn multi_put(rows: &[(&str, &str)], expire_at: u32) -> Write {
    let rows = rows.iter().map(|(suffix, value)| (bytes(suffix), bytes(value))).collect();
    Write::MultiPut { prefix: bytes("k"), rows, expire_at }
}

fn multi_remove(suffixes: &[&str]) -> Write {
    Write::MultiRemove { prefix: bytes("k"), suffixes: suffixes.iter().map(|suffix| bytes(suffix)).collect() }
}

fn incr(suffix: &str, by: i64, expire_at: i32) -> Write {
    Write::Incr { key: key(suffix), by, expire_at }
}

/// Changes rows if the row `suffix` is there (`None`: is not there).
fn check_and_mutate(suffix: &str, is_there: bool, mutations: Vec<Mutation>) -> Write {
    let check = Check { suffix: bytes(suffix), kind: if is_there { 3 } else { 1 }, operand: Bytes::new() };
    Write::CheckAndMutate { prefix: bytes("k"), check, mutations, return_check_value: false }
}

fn set(suffix: &str, value: &str, expire_at: u32) -> Mutation {
    Mutation::Put { suffix: bytes(suffix), value: bytes(value), expire_at }
}

fn unset(suffix: &str) -> Mutation {
    Mutation::Remove { suffix: bytes(suffix) }
}

/// A change of another cluster at a time, under the prefix `k` too.
fn foreign(seconds: u32, origin: u64, mutation: Mutation) -> Change {
    let mutation = match mutation {
        Mutation::Put { suffix, value, expire_at } => {
            Mutation::Put { suffix: [b"k", &suffix[..]].concat().into(), value, expire_at }
        }
        Mutation::Remove { suffix } => Mutation::Remove { suffix: [b"k", &suffix[..]].concat().into() },
    };
    Change { stamp: u64::from(seconds) << STAMP_COUNT_BITS, origin, mutation }
}

fn begin(id: u64, round: u32, cluster: u64, bytes_max: u64) -> Write {
    Write::Journal(JournalWrite::Begin { id, round, cluster, target: 1, bytes_max })
}

fn reached(id: u64, page: &JournalPage) -> Write {
    let position = page.position.clone().expect("a position");
    Write::Journal(JournalWrite::Reached { id, round: page.round, position })
}

fn duplicate(here: u64, changes: &[Change]) -> Write {
    Write::Duplicate(Duplicate { here, changes: changes.to_vec() })
}

/// A page for the duplication `id`, `from` a position of `round` on.
fn page_of(partition: &Partition, id: u64, round: u32, from: Option<Position>, bytes_max: u32) -> JournalPage {
    let read = Read::Journal(JournalRead { id, round, from, bytes_max });
    match partition.read(&read, 0).expect("reads") {
        ReadReply::Journal(page) => page,
        reply => panic!("{reply:?}"),
    }
}

impl<F: Fixture> Store<F> {
    fn write(&mut self, now: u32, write: Write) -> Status {
        let index = self.partition().applied().index + 1;
        let mut outcomes = Vec::new();
        self.partition_mut().apply(&[entry(index, &anonymous(now, write))], None, &mut outcomes).expect("applies");
        match outcomes.remove(0).1 {
            ApplyOutcome::Reply(reply) => reply.status,
            outcome => panic!("{outcome:?}"),
        }
    }

    /// The same of writes that succeed.
    fn write_all(&mut self, now: u32, writes: impl IntoIterator<Item = Write>) {
        for write in writes {
            assert_eq!(self.write(now, write.clone()), Status::Ok, "{write:?}");
        }
    }

    /// What the duplication [`ID`] is to tell next.
    fn page(&self, bytes_max: u32) -> JournalPage {
        page_of(self.partition(), ID, 0, None, bytes_max)
    }

    fn value(&self, suffix: &str, now: u32) -> Option<Bytes> {
        match self.partition().read(&Read::Get { key: key(suffix) }, now).expect("reads") {
            ReadReply::Value(value) => value.ok(),
            reply => panic!("{reply:?}"),
        }
    }

    /// Checksum and number of all live rows.
    fn checksum(&self, now: u32) -> (u64, u64) {
        match self.partition().read(&Read::Checksum, now).expect("reads") {
            ReadReply::Checksum { checksum, rows, .. } => (checksum, rows),
            reply => panic!("{reply:?}"),
        }
    }

    /// Rows whose engine keys begin with `first`.
    fn rows_of(&self, first: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.rows().into_iter().filter(|(key, _)| key[0] == first).collect()
    }

    /// All rows but the applied position, and that sessions have a bound.
    fn content(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.rows().into_iter().filter(|(key, _)| key != b"ma" && key != b"mf").collect()
    }

    fn entry_count(&self) -> usize {
        self.rows_of(b'n').len()
    }

    fn compact(&mut self) {
        self.flush();
        self.partition().engine().compact().expect("compacts");
    }
}

/// Tells the cluster [`THERE`] all that [`HERE`] has for it, in pages of so many bytes. Returns them.
fn carry<F: Fixture, G: Fixture>(
    source: &mut Store<F>,
    target: &mut Store<G>,
    now: u32,
    bytes_max: u32,
) -> Vec<JournalPage> {
    let mut pages = Vec::new();
    loop {
        let page = source.page(bytes_max);
        target.write_all(now, [duplicate(THERE, &page.changes)]);
        source.write_all(now, [reached(ID, &page)]);
        let has_more = page.has_more;
        pages.push(page);
        if !has_more {
            return pages;
        }
        assert!(pages.len() < 10_000, "a page makes no progress");
    }
}
