//! Open scans: what is left of a scan that has more pages, under a number that the client uses up with the next one.

use crate::config::{OPEN_SCANS_MAX, SCAN_IDLE};
use crate::outbox::ConnectionId;
use hedgerow_types::op::Scan;
use hedgerow_types::{GroupId, Instant};
use std::collections::BTreeMap;

/// The open scans of a node.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    open: BTreeMap<i64, Open>,
    last: i64,
}

#[derive(Debug)]
struct Open {
    scan: Scan,
    group: GroupId,
    connection: ConnectionId,
    used: Instant,
}

impl Scans {
    /// Numbers begin at a random place, so that one of another node, or of an earlier life, is not taken for ours.
    pub(crate) fn new(random: u64) -> Self {
        Self { open: BTreeMap::new(), last: ((random >> 2) & !0xffff_ffff) as i64 }
    }

    /// Keeps what is left of a scan; its number.
    pub(crate) fn keep(&mut self, scan: Scan, group: GroupId, connection: ConnectionId, now: Instant) -> i64 {
        if self.open.len() >= OPEN_SCANS_MAX {
            self.open.pop_first();
        }
        self.last += 1;
        self.open.insert(self.last, Open { scan, group, connection, used: now });
        self.last
    }

    /// Takes the scan out, if it belongs to `group`.
    pub(crate) fn take(&mut self, number: i64, group: GroupId) -> Option<Scan> {
        if self.open.get(&number)?.group != group {
            return None;
        }
        self.open.remove(&number).map(|open| open.scan)
    }

    /// Puts a scan back that was taken out and not read.
    pub(crate) fn put_back(&mut self, number: i64, scan: Scan, group: GroupId, connection: ConnectionId, now: Instant) {
        self.open.insert(number, Open { scan, group, connection, used: now });
    }

    pub(crate) fn forget_idle(&mut self, now: Instant) {
        // Numbers rise, so that the oldest come first.
        while let Some(first) = self.open.first_entry() {
            if now.since(first.get().used) < SCAN_IDLE {
                return;
            }
            first.remove();
        }
    }

    pub(crate) fn forget_connection(&mut self, connection: ConnectionId) {
        self.open.retain(|_, open| open.connection != connection);
    }
}
