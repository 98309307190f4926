//! Open scans: what is left of a scan that has more pages, under a number that the client uses up with the next one.

use crate::config::{OPEN_SCANS_BYTES_MAX, OPEN_SCANS_MAX, SCAN_IDLE};
use crate::outbox::ConnectionId;
use crate::shared_bound::{Kept, SharedBound};
use hedgerow_types::op::Scan;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// The open scans of a node.
#[derive(Debug)]
pub(crate) struct Scans {
    open: BTreeMap<i64, Open>,
    /// The same by connection, so that one that closes costs no more than it had (N10).
    by_connection: BTreeSet<(ConnectionId, i64)>,
    /// How many they are, and what they hold.
    count: SharedBound,
    bytes: SharedBound,
    last: i64,
}

#[derive(Debug)]
struct Open {
    scan: Scan,
    group: GroupId,
    connection: ConnectionId,
    used: Instant,
}

impl Open {
    fn bytes(&self) -> usize {
        let Scan { start, stop, hash_key_filter, sort_key_filter, .. } = &self.scan;
        start.len() + stop.len() + hash_key_filter.pattern.len() + sort_key_filter.pattern.len()
    }
}

impl Scans {
    /// Numbers begin at a random place, so that one of another node, or of an earlier life, is not taken for ours.
    pub(crate) fn new(kept: &Kept, shards: usize, random: u64) -> Self {
        let count = SharedBound::new(&kept.scans, OPEN_SCANS_MAX, shards);
        let bytes = SharedBound::new(&kept.scan_bytes, OPEN_SCANS_BYTES_MAX, shards);
        let last = ((random >> 2) & !0xffff_ffff) as i64;
        Self { open: BTreeMap::new(), by_connection: BTreeSet::new(), count, bytes, last }
    }

    /// Keeps what is left of a scan; its number.
    pub(crate) fn keep(&mut self, mut scan: Scan, group: GroupId, connection: ConnectionId, now: Instant) -> i64 {
        self.last += 1;
        scan.detach();
        self.insert(self.last, Open { scan, group, connection, used: now });
        while (self.count.is_beyond(100) || self.bytes.is_beyond(100))
            && let Some((&oldest, _)) = self.open.first_key_value()
        {
            self.remove(oldest);
        }
        self.last
    }

    fn insert(&mut self, number: i64, open: Open) {
        self.remove(number);
        self.count.add(1);
        self.bytes.add(open.bytes());
        self.by_connection.insert((open.connection, number));
        self.open.insert(number, open);
    }

    fn remove(&mut self, number: i64) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.by_connection.remove(&(open.connection, number));
        self.count.subtract(1);
        self.bytes.subtract(open.bytes());
        Some(open)
    }

    /// Takes the scan out, if it belongs to `group` and `connection`.
    pub(crate) fn take(&mut self, number: i64, group: GroupId, connection: ConnectionId) -> Option<Scan> {
        let open = self.open.get(&number)?;
        if open.group != group || open.connection != connection {
            return None;
        }
        self.remove(number).map(|open| open.scan)
    }

    /// Puts a scan back that was taken out and not read.
    pub(crate) fn put_back(&mut self, number: i64, scan: Scan, group: GroupId, connection: ConnectionId, now: Instant) {
        self.insert(number, Open { scan, group, connection, used: now });
    }

    pub(crate) fn forget_idle(&mut self, now: Instant) {
        // Numbers rise, so that the oldest come first.
        while let Some((&number, first)) = self.open.first_key_value()
            && now.since(first.used) >= SCAN_IDLE
        {
            self.remove(number);
        }
    }

    pub(crate) fn forget_connection(&mut self, connection: ConnectionId) {
        let of_connection = self.by_connection.range((connection, i64::MIN)..=(connection, i64::MAX));
        let numbers: Vec<i64> = of_connection.map(|&(_, number)| number).collect();
        numbers.into_iter().for_each(|number| drop(self.remove(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hedgerow_types::op::Filter;

    const GROUP: GroupId = GroupId::META;
    const CONNECTION: ConnectionId = ConnectionId(1);

    fn scan(stop: Bytes) -> Scan {
        Scan {
            start: Bytes::new(),
            start_inclusive: true,
            stop,
            stop_inclusive: false,
            is_hash_table: false,
            hash_key_filter: Filter::default(),
            sort_key_filter: Filter::default(),
            rows_max: 1,
            no_value: false,
            return_expire: false,
            only_count: false,
        }
    }

    #[test]
    fn n4a_an_open_scan_does_not_keep_its_request() {
        let mut scans = Scans::new(&Kept::default(), 1, 7);
        let request = Bytes::from(vec![1; 1 << 20]);
        let number = scans.keep(scan(request.slice(..10)), GROUP, CONNECTION, Instant(0));
        assert!(request.is_unique());
        assert_eq!(scans.take(number, GROUP, ConnectionId(2)), None, "another one's");
        assert_eq!(scans.take(number, GROUP, CONNECTION), Some(scan(request.slice(..10))));
    }

    #[test]
    fn n4a_what_open_scans_hold_has_a_bound_and_the_oldest_go_first() {
        let mut scans = Scans::new(&Kept::default(), 1, 7);
        let large = |scans: &mut Scans| {
            scans.keep(scan(vec![1; OPEN_SCANS_BYTES_MAX / 4].into()), GROUP, CONNECTION, Instant(0))
        };
        let numbers: Vec<i64> = (0..6).map(|_| large(&mut scans)).collect();
        let is_open = |scans: &Scans, number: &i64| scans.open.contains_key(number);
        assert_eq!(
            numbers.iter().map(|number| is_open(&scans, number)).collect::<Vec<_>>(),
            [false, false, true, true, true, true]
        );
        let taken = scans.take(numbers[2], GROUP, CONNECTION).unwrap();
        scans.put_back(numbers[2], taken, GROUP, CONNECTION, Instant(0));
        assert_eq!(scans.bytes.own(), OPEN_SCANS_BYTES_MAX);
        scans.forget_connection(CONNECTION);
        large(&mut scans);
        scans.forget_idle(Instant(0) + SCAN_IDLE);
        assert_eq!((scans.bytes.own(), scans.open.len(), scans.by_connection.len()), (0, 0, 0));
    }

    /// Each close looked at all scans that were open, 13 billion of them here. No clock is looked at: done so, this test takes
    /// minutes.
    #[test]
    fn n10_a_connection_that_closes_costs_what_it_had() {
        const CONNECTIONS: u64 = 200_000;
        let mut scans = Scans::new(&Kept::default(), 1, 7);
        let scan = || scan(Bytes::from_static(b"stop"));
        let open = |scans: &mut Scans, connection| scans.keep(scan(), GROUP, ConnectionId(connection), Instant(0));
        for _ in 0..OPEN_SCANS_MAX - 3 {
            open(&mut scans, 0);
        }
        let pages = open(&mut scans, CONNECTIONS);
        for connection in 1..CONNECTIONS {
            let numbers = [open(&mut scans, connection), open(&mut scans, connection)];
            assert!(scans.open.len() == OPEN_SCANS_MAX && scans.by_connection.len() == OPEN_SCANS_MAX);
            scans.forget_connection(ConnectionId(connection));
            assert_eq!(scans.take(numbers[0], GROUP, ConnectionId(connection)), None, "it is forgotten");
        }
        assert_eq!(scans.take(pages, GROUP, ConnectionId(CONNECTIONS)), Some(scan()), "others stay");
        scans.put_back(pages, scan(), GROUP, ConnectionId(CONNECTIONS), Instant(0));
        scans.forget_connection(ConnectionId(CONNECTIONS));
        assert_eq!(scans.take(pages, GROUP, ConnectionId(CONNECTIONS)), None, "what was put back goes, too");
        assert_eq!(scans.open.len(), OPEN_SCANS_MAX - 3);
        scans.forget_connection(ConnectionId(0));
        assert_eq!((scans.bytes.own(), scans.open.len(), scans.by_connection.len()), (0, 0, 0));
    }
}
