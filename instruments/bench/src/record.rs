//! What one generator counts: latencies by operation, seconds, send lag, errors.

use crate::hedging::Counts;
use crate::operation::Operation;
use crate::reading::Reads;
use crate::reply::{Failure, Found, Reply};
use hdrhistogram::Histogram;
use hedgerow_report::Second;
use std::collections::BTreeMap;

/// The longest time that is told apart, in nanoseconds: longer ones count as this.
const NANOS_MAX: u64 = 1_000_000_000_000;
/// Significant digits of latencies.
const DIGITS: u8 = 3;
/// Of the seconds' latencies: there is a histogram for each second.
const SECOND_DIGITS: u8 = 2;
const MICROSECOND: f64 = 1e3;

/// Everything that was counted.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) operations: BTreeMap<Operation, Counted>,
    pub(crate) seconds: Vec<SecondCounted>,
    /// From when a request was due to when it had been handed to its socket; empty in a closed loop.
    pub(crate) lag: Histogram<u64>,
    /// Errors by kind, timeouts not among them.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Reads that found less than they asked for.
    pub(crate) missing: u64,
    /// Requests that were due but not sent before the end.
    pub(crate) unsent: u64,
    /// Requests that were due while as many as allowed were in flight.
    pub(crate) held_back: u64,
    /// What replicas served; nothing where the load says nothing of levels and replicas.
    pub(crate) reads: Reads,
    /// What extra attempts were sent; `None` where the load sends none.
    pub(crate) hedging: Option<Counts>,
    /// Reads sent from the beginning of the warm-up on.
    pub(crate) reads_sent: u64,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) latency: Histogram<u64>,
    pub(crate) errors: u64,
    pub(crate) timeouts: u64,
}

/// One second, all operations together.
#[derive(Clone, Debug)]
pub(crate) struct SecondCounted {
    pub(crate) latency: Histogram<u32>,
    pub(crate) failures: u64,
}

/// A histogram of nanoseconds with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("the bounds and the digits are in range")
}

pub(crate) fn second_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, NANOS_MAX, SECOND_DIGITS).expect("the bounds and the digits are in range")
}

impl Default for Counted {
    fn default() -> Self {
        Self { latency: histogram(), errors: 0, timeouts: 0 }
    }
}

impl Default for SecondCounted {
    fn default() -> Self {
        Self { latency: second_histogram(), failures: 0 }
    }
}

impl SecondCounted {
    pub(crate) fn summary(&self, second: u32) -> Second {
        Second {
            second,
            count: self.latency.len(),
            errors: self.failures,
            p50_us: self.latency.value_at_quantile(0.5) as f64 / MICROSECOND,
            p99_us: self.latency.value_at_quantile(0.99) as f64 / MICROSECOND,
            max_us: self.latency.max() as f64 / MICROSECOND,
        }
    }
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            operations: BTreeMap::new(),
            seconds: Vec::new(),
            lag: histogram(),
            errors: BTreeMap::new(),
            missing: 0,
            unsent: 0,
            held_back: 0,
            reads: Reads::default(),
            hedging: None,
            reads_sent: 0,
        }
    }

    /// A request of the second `second`, counted by when it was due, has ended after `nanos`.
    pub(crate) fn note_end(&mut self, operation: Operation, second: usize, nanos: u64, reply: Reply) {
        let counted = self.operations.entry(operation).or_default();
        counted.latency.saturating_record(nanos);
        if second >= self.seconds.len() {
            self.seconds.resize_with(second + 1, SecondCounted::default);
        }
        let in_second = &mut self.seconds[second];
        in_second.latency.saturating_record(nanos);
        match reply {
            Ok(Found::All) => return,
            Ok(Found::NotAll) => {
                self.missing += 1;
                return;
            }
            Err(Failure::Timeout) => counted.timeouts += 1,
            Err(Failure::Error(kind)) => {
                counted.errors += 1;
                match self.errors.get_mut(kind) {
                    Some(count) => *count += 1,
                    None => drop(self.errors.insert(kind.to_owned(), 1)),
                }
            }
        }
        in_second.failures += 1;
    }

    /// A request was handed over so long after it was due.
    pub(crate) fn note_lag(&mut self, nanos: u64) {
        self.lag.saturating_record(nanos);
    }

    /// The second `second` as far as it has been counted.
    pub(crate) fn second(&self, second: u32) -> Second {
        match self.seconds.get(second as usize) {
            Some(counted) => counted.summary(second),
            None => Second { second, ..Second::default() },
        }
    }

    /// Adds what another generator counted at the same time.
    pub(crate) fn merge(&mut self, other: &Self) {
        const SAME: &str = "histograms of one kind have the same bounds";
        for (operation, counted) in &other.operations {
            let own = self.operations.entry(*operation).or_default();
            own.latency.add(&counted.latency).expect(SAME);
            own.errors += counted.errors;
            own.timeouts += counted.timeouts;
        }
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize_with(other.seconds.len(), SecondCounted::default);
        }
        for (own, second) in self.seconds.iter_mut().zip(&other.seconds) {
            own.latency.add(&second.latency).expect(SAME);
            own.failures += second.failures;
        }
        self.lag.add(&other.lag).expect(SAME);
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        self.missing += other.missing;
        self.unsent += other.unsent;
        self.held_back += other.held_back;
        self.reads.merge(&other.reads);
        if let Some(counts) = &other.hedging {
            self.hedging.get_or_insert_default().add(counts);
        }
        self.reads_sent += other.reads_sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_samples_and_are_told_apart() {
        let mut record = Record::new();
        record.note_end(Operation::Get, 0, 1_000, Ok(Found::All));
        record.note_end(Operation::Get, 0, 2_000, Ok(Found::NotAll));
        record.note_end(Operation::Get, 2, 3_000, Err(Failure::Timeout));
        record.note_end(Operation::Get, 2, 4_000, Err(Failure::Error("storage")));
        let counted = &record.operations[&Operation::Get];
        assert_eq!((counted.latency.len(), counted.errors, counted.timeouts), (4, 1, 1));
        assert_eq!((record.missing, record.errors["storage"]), (1, 1));
        assert_eq!([0, 1, 2, 3].map(|second| record.second(second).count), [2, 0, 2, 0]);
        assert_eq!(record.second(2).errors, 2);
    }

    #[test]
    fn merged_records_count_what_both_counted() {
        let (mut a, mut b) = (Record::new(), Record::new());
        a.note_end(Operation::Get, 0, 1_000, Ok(Found::All));
        b.note_end(Operation::Get, 1, 9_000, Err(Failure::Timeout));
        b.note_end(Operation::Set, 1, 9_000, Err(Failure::Error("storage")));
        b.note_lag(7);
        a.merge(&b);
        assert_eq!(a.operations[&Operation::Get].latency.len(), 2);
        assert_eq!(a.operations[&Operation::Set].errors, 1);
        assert_eq!((a.seconds.len(), a.second(1).errors), (2, 2));
        assert_eq!((a.lag.len(), a.errors["storage"]), (1, 1));
    }
}
