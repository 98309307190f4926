//! The stream of requests: what a seed and a workload determine, whatever the replies are.

use crate::keys::RowChooser;
use crate::operation::Operation;
use crate::values::ValueSource;
use crate::workload::{Spread, Workload};
use bytes::Bytes;
use hedgerow_types::random::Random;
use std::collections::BTreeSet;

/// A request. Rows are numbers; the target knows their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get { row: u64 },
    Set { row: u64, value: Bytes },
    Insert { row: u64, value: Bytes },
    ReadModifyWrite { row: u64, value: Bytes },
    MultiGet { row: u64, count: u32 },
    BatchSet { row: u64, values: Vec<Bytes> },
    Scan { row: u64, count: u32 },
    Incr { row: u64 },
}

impl Request {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Self::Get { .. } => Operation::Get,
            Self::Set { .. } => Operation::Set,
            Self::Insert { .. } => Operation::Insert,
            Self::ReadModifyWrite { .. } => Operation::ReadModifyWrite,
            Self::MultiGet { .. } => Operation::MultiGet,
            Self::BatchSet { .. } => Operation::BatchSet,
            Self::Scan { .. } => Operation::Scan,
            Self::Incr { .. } => Operation::Incr,
        }
    }

    /// Whether replicas execute a read for it: one, but for scans that take several pages.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Self::Get { .. } | Self::MultiGet { .. } | Self::ReadModifyWrite { .. } | Self::Scan { .. } => true,
            Self::Set { .. } | Self::Insert { .. } | Self::BatchSet { .. } | Self::Incr { .. } => false,
        }
    }

    /// The row that it makes, if it makes one.
    pub(crate) fn inserted_row(&self) -> Option<u64> {
        match self {
            Self::Insert { row, .. } => Some(*row),
            _ => None,
        }
    }
}

/// Which of several generators this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// From 0.
    pub(crate) index: u32,
    pub(crate) count: u32,
}

/// Draws requests.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    random: Random,
    rows: Rows,
    chooser: RowChooser,
    values: ValueSource,
    /// Operations with the upper ends of their shares.
    shares: Vec<(u64, Operation)>,
    batch_rows: Spread,
    scan_rows: Spread,
}

impl Mix {
    pub(crate) fn new(workload: &Workload, seed: u64, part: Part) -> Self {
        let mut random = Random::new(seed);
        let mut own = random.fork();
        (0..part.index).for_each(|_| own = random.fork());
        let mut end = 0;
        let mut shares = Vec::new();
        for operation in Operation::ALL {
            let share = u64::from(workload.operations.of(operation));
            if share > 0 {
                end += share;
                shares.push((end, operation));
            }
        }
        Self {
            rows: Rows::new(workload.table.rows, part),
            chooser: RowChooser::new(workload.keys),
            values: ValueSource::new(workload.values, &mut own),
            random: own,
            shares,
            batch_rows: workload.batch_rows,
            scan_rows: workload.scan_rows,
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Request {
        match self.operation() {
            Operation::Get => Request::Get { row: self.row() },
            Operation::Set => Request::Set { row: self.row(), value: self.value() },
            Operation::Insert => Request::Insert { row: self.rows.insert(), value: self.value() },
            Operation::ReadModifyWrite => Request::ReadModifyWrite { row: self.row(), value: self.value() },
            Operation::MultiGet => Request::MultiGet { row: self.row(), count: self.batch_rows.draw(&mut self.random) },
            Operation::BatchSet => {
                let (row, count) = (self.row(), self.batch_rows.draw(&mut self.random));
                Request::BatchSet { row, values: (0..count).map(|_| self.value()).collect() }
            }
            Operation::Scan => Request::Scan { row: self.row(), count: self.scan_rows.draw(&mut self.random) },
            Operation::Incr => Request::Incr { row: self.row() },
        }
    }

    /// The row of an insert exists from now on, and may be drawn.
    pub(crate) fn note_inserted(&mut self, row: u64) {
        self.rows.note_inserted(row);
    }

    fn operation(&mut self) -> Operation {
        if let [(_, only)] = self.shares[..] {
            return only;
        }
        let end = self.shares.last().map_or(1, |(end, _)| *end);
        let draw = self.random.below(end);
        let found = self.shares.iter().find(|(end, _)| draw < *end);
        found.expect("the draw lies below the end of the last share").1
    }

    fn row(&mut self) -> u64 {
        let place = self.chooser.draw(self.rows.known_count(), &mut self.random);
        self.rows.number(place)
    }

    fn value(&mut self) -> Bytes {
        self.values.draw(&mut self.random)
    }
}

/// The rows that a generator knows: those from before the load, and its own inserts. Generators insert side by side, each
/// taking every `count`-th number.
#[derive(Clone, Debug)]
struct Rows {
    before: u64,
    part: Part,
    /// Own inserts that were begun.
    begun: u64,
    /// Own inserts that succeeded without a gap.
    done: u64,
    /// Those behind a gap.
    done_later: BTreeSet<u64>,
}

impl Rows {
    fn new(before: u64, part: Part) -> Self {
        Self { before, part, begun: 0, done: 0, done_later: BTreeSet::new() }
    }

    fn known_count(&self) -> u64 {
        self.before + self.done
    }

    /// The number of the row at a place among the known ones.
    fn number(&self, place: u64) -> u64 {
        if place < self.before { place } else { self.own(place - self.before) }
    }

    fn own(&self, index: u64) -> u64 {
        self.before + index * u64::from(self.part.count) + u64::from(self.part.index)
    }

    fn insert(&mut self) -> u64 {
        self.begun += 1;
        self.own(self.begun - 1)
    }

    fn note_inserted(&mut self, row: u64) {
        let index = (row - self.before) / u64::from(self.part.count);
        self.done_later.insert(index);
        while self.done_later.remove(&self.done) {
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const ALONE: Part = Part { index: 0, count: 1 };

    fn requests(name: &str, count: usize) -> Vec<Request> {
        let mut mix = Mix::new(&Workload::named(name).unwrap(), 9, ALONE);
        (0..count).map(|_| mix.next()).collect()
    }

    #[test]
    fn the_same_seed_asks_for_the_same() {
        assert_eq!(requests("ycsb-a", 1000), requests("ycsb-a", 1000));
    }

    #[test]
    fn operations_come_in_their_shares() {
        let mut counts = BTreeMap::new();
        for request in requests("ycsb-b", 100_000) {
            *counts.entry(request.operation()).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 2);
        assert!((94_700..95_300).contains(&counts[&Operation::Get]), "{counts:?}");
    }

    #[test]
    fn parts_ask_for_different_rows_and_insert_different_ones() {
        let workload = Workload::named("ycsb-d").unwrap();
        let mut parts = [0, 1].map(|index| Mix::new(&workload, 9, Part { index, count: 2 }));
        let drawn = parts.each_mut().map(|mix| (0..1000).map(|_| mix.next()).collect::<Vec<_>>());
        assert_ne!(drawn[0], drawn[1]);
        let inserted: Vec<BTreeSet<_>> =
            drawn.iter().map(|part| part.iter().filter_map(Request::inserted_row).collect()).collect();
        assert!(inserted[0].is_disjoint(&inserted[1]));
        assert!(inserted.iter().flatten().all(|row| *row >= workload.table.rows));
    }

    #[test]
    fn an_insert_is_asked_for_only_when_all_before_it_are_there() {
        let mut rows = Rows::new(100, Part { index: 1, count: 3 });
        assert_eq!([rows.insert(), rows.insert(), rows.insert()], [101, 104, 107]);
        rows.note_inserted(104);
        assert_eq!(rows.known_count(), 100);
        rows.note_inserted(101);
        assert_eq!((rows.known_count(), rows.number(101)), (102, 104));
    }
}
