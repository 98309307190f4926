//! What is measured: latencies by operation, errors, and how it went from second to second.

use crate::runtime::now;
use hdrhistogram::Histogram;
use hedgerow_client::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The longest latency that is told apart, in nanoseconds: longer ones count as this.
const LATENCY_NANOS_MAX: u64 = 100_000_000_000;
/// Significant digits of latencies.
const DIGITS: u8 = 3;

/// The kinds of operations that are measured apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Put,
}

const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const FINISHED: u8 = 2;

/// What all workers write to. They run on one thread, so that the lock is always free.
#[derive(Debug)]
pub(crate) struct Stats {
    phase: AtomicU8,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug)]
struct State {
    get: Histogram<u64>,
    put: Histogram<u64>,
    interval: Histogram<u64>,
    interval_errors: u64,
    /// Operations still to be counted, where their number is limited.
    left: Option<u64>,
    done: u64,
    errors: BTreeMap<&'static str, u64>,
    missing: u64,
    timeline: Vec<Interval>,
    end: Option<Instant>,
}

/// One second of the measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interval {
    pub(crate) operations: u64,
    pub(crate) errors: u64,
    /// Latencies, where there were enough operations to tell.
    pub(crate) p50_nanos: Option<u64>,
    pub(crate) p99_nanos: Option<u64>,
    pub(crate) p999_nanos: Option<u64>,
    pub(crate) max_nanos: u64,
}

impl Interval {
    pub(crate) fn p99_text(&self) -> String {
        self.p99_nanos.map_or_else(|| "n/a".to_owned(), |nanos| format!("{:.2} ms", nanos as f64 / 1e6))
    }
}

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) get: Histogram<u64>,
    pub(crate) put: Histogram<u64>,
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// Gets that found no row.
    pub(crate) missing: u64,
    pub(crate) timeline: Vec<Interval>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, DIGITS).expect("the bounds and the digits are in range")
}

/// The latency that the share `quantile` of operations stayed within; `None` if there are too few to tell: fewer than ten
/// beyond it.
pub(crate) fn quantile(histogram: &Histogram<u64>, quantile: f64) -> Option<u64> {
    let beyond = histogram.len() as f64 * (1.0 - quantile);
    // A little less than ten, for the rounding of 1 - 0.9999.
    (beyond >= 9.999).then(|| histogram.value_at_quantile(quantile))
}

impl Stats {
    pub(crate) fn new() -> Self {
        let state = State {
            get: histogram(),
            put: histogram(),
            interval: histogram(),
            interval_errors: 0,
            left: None,
            done: 0,
            errors: BTreeMap::new(),
            missing: 0,
            timeline: Vec::new(),
            end: None,
        };
        Self { phase: AtomicU8::new(WARMING_UP), state: Mutex::new(state), ended: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on operations count; with a limit, so many of them.
    pub(crate) fn begin(&self, limit: Option<u64>) {
        self.lock().left = limit;
        self.phase.store(MEASURING, Ordering::Relaxed);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == FINISHED
    }

    /// Nothing counts any more.
    pub(crate) fn finish(&self) {
        self.lock().end.get_or_insert(now());
        self.phase.store(FINISHED, Ordering::Relaxed);
        self.ended.notify_waiters();
    }

    /// When the measurement ended.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.lock().end
    }

    pub(crate) async fn wait_for_end(&self) {
        let ended = self.ended.notified();
        if !self.is_finished() {
            ended.await;
        }
    }

    /// An operation succeeded after `latency`.
    pub(crate) fn succeeded(&self, operation: Operation, latency: Duration, is_missing: bool) {
        if self.phase.load(Ordering::Relaxed) != MEASURING {
            return;
        }
        let nanos = latency.as_nanos() as u64;
        let mut state = self.lock();
        match operation {
            Operation::Get => state.get.saturating_record(nanos),
            Operation::Put => state.put.saturating_record(nanos),
        }
        state.interval.saturating_record(nanos);
        state.missing += u64::from(is_missing);
        self.count(state);
    }

    /// An operation failed.
    pub(crate) fn failed(&self, error: &Error) {
        if self.phase.load(Ordering::Relaxed) != MEASURING {
            return;
        }
        let mut state = self.lock();
        *state.errors.entry(kind_name(error.kind())).or_default() += 1;
        state.interval_errors += 1;
        self.count(state);
    }

    fn count(&self, mut state: MutexGuard<'_, State>) {
        state.done += 1;
        if let Some(left) = &mut state.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                drop(state);
                self.finish();
            }
        }
    }

    /// Ends a second of the timeline; gives it with the number of operations since the beginning.
    pub(crate) fn take_interval(&self) -> (u64, Interval) {
        let mut state = self.lock();
        let interval = Interval {
            operations: state.interval.len(),
            errors: state.interval_errors,
            p50_nanos: quantile(&state.interval, 0.5),
            p99_nanos: quantile(&state.interval, 0.99),
            p999_nanos: quantile(&state.interval, 0.999),
            max_nanos: state.interval.max(),
        };
        state.interval.reset();
        state.interval_errors = 0;
        state.timeline.push(interval);
        (state.done, interval)
    }

    /// What was measured.
    pub(crate) fn measured(&self) -> Measured {
        let state = self.lock();
        Measured {
            get: state.get.clone(),
            put: state.put.clone(),
            errors: state.errors.clone(),
            missing: state.missing,
            timeline: state.timeline.clone(),
        }
    }
}

const fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::NoTable => "no_table",
        ErrorKind::TableExists => "table_exists",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Forgotten => "forgotten",
        ErrorKind::Storage => "storage",
        ErrorKind::Protocol => "protocol",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_needs_ten_samples_beyond_it() {
        let mut histogram = histogram();
        for latency in 1..=999 {
            histogram.record(latency).unwrap();
        }
        assert!(quantile(&histogram, 0.9).is_some());
        assert_eq!(quantile(&histogram, 0.99), None);
        histogram.record(1000).unwrap();
        assert_eq!(quantile(&histogram, 0.99), Some(990));
    }

    #[test]
    fn only_what_happens_between_begin_and_finish_counts() {
        let stats = Stats::new();
        let latency = Duration::from_micros(5);
        stats.succeeded(Operation::Get, latency, false);
        stats.begin(Some(2));
        stats.succeeded(Operation::Get, latency, true);
        stats.failed(&Error::new(ErrorKind::Timeout, "late"));
        assert!(stats.is_finished());
        stats.succeeded(Operation::Get, latency, false);
        let measured = stats.measured();
        assert_eq!((measured.get.len(), measured.missing, measured.errors["timeout"]), (1, 1, 1));
    }
}
