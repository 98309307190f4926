//! What operations mean, the same over both engines: Pegasus' rules one by one, and the exactly-once table.
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

pub(crate) use common::{pass_on, suite};

#[path = "partition/bounded.rs"]
mod bounded;
#[path = "partition/held.rs"]
mod held;
#[path = "partition/reads.rs"]
mod reads;
#[path = "partition/sessions.rs"]
mod sessions;
#[path = "partition/writes.rs"]
mod writes;

use bytes::Bytes;
use common::{Fixture, Store, anonymous, entry};
use hedgerow_storage::ApplyOutcome;
use hedgerow_types::error::Status;
use hedgerow_types::op::{Proposal, Read, ReadReply, Row, Write, WriteReply};

/// A storage key under the prefix `k`.
fn key(suffix: &str) -> Bytes {
    Bytes::from(format!("k{suffix}"))
}

impl<F: Fixture> Store<F> {
    fn propose(&mut self, proposal: &Proposal) -> ApplyOutcome {
        let index = self.partition().applied().index + 1;
        let mut outcomes = Vec::new();
        self.partition_mut().apply(&[entry(index, proposal)], None, &mut outcomes).expect("applies");
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].0, index);
        outcomes.remove(0).1
    }

    fn write(&mut self, now: u32, write: Write) -> WriteReply {
        match self.propose(&anonymous(now, write)) {
            ApplyOutcome::Reply(reply) => reply,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn put(&mut self, suffix: &str, value: &str, expire_at: u32) {
        let value = common::bytes(value);
        assert_eq!(self.write(0, Write::Put { key: key(suffix), value, expire_at }).status, Status::Ok);
    }

    fn read(&self, read: Read, now: u32) -> ReadReply {
        self.partition().read(&read, now).expect("reads")
    }

    fn value(&self, suffix: &str, now: u32) -> Result<String, Status> {
        match self.read(Read::Get { key: key(suffix) }, now) {
            ReadReply::Value(value) => value.map(|value| text(&value)),
            reply => panic!("{reply:?}"),
        }
    }

    fn ttl(&self, suffix: &str, now: u32) -> Result<i32, Status> {
        match self.read(Read::Ttl { key: key(suffix) }, now) {
            ReadReply::Ttl(ttl) => ttl,
            reply => panic!("{reply:?}"),
        }
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Rows as `key=value`.
fn pairs(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| format!("{}={}", text(&row.key), text(&row.value))).collect()
}
