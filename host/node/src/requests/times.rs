//! How long the node took for the requests that it served, and what it refused of writes: the admin command `reads`.

use hedgerow_types::Refusal;
use hedgerow_wire::Class;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The upper ends of the ranges that requests are counted in, microseconds. What took longer is in one range more.
const BOUNDS_US: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];
/// What the range without an end is called.
const MORE: &str = "more";

/// Kinds of requests.
const KINDS: [&str; 3] = ["read", "scan", "write"];

/// Times since the node started, by kind: from when the node had read a request until it had its answer.
#[derive(Debug, Default)]
pub(crate) struct Times {
    kinds: [Histogram; KINDS.len()],
}

#[derive(Debug, Default)]
struct Histogram {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Times {
    /// A request was served.
    pub(crate) fn note(&mut self, class: Class, took: Duration) {
        let kind = match class {
            Class::Read => 0,
            Class::Scan => 1,
            Class::Write => 2,
            Class::Admin | Class::Connection => return,
        };
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let histogram = &mut self.kinds[kind];
        histogram.counts[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        histogram.sum_us = histogram.sum_us.saturating_add(us);
    }

    pub(crate) fn to_json(&self) -> Value {
        let of_kind = |(kind, histogram): (&&str, &Histogram)| {
            let names = BOUNDS_US.iter().map(u64::to_string).chain([MORE.to_owned()]);
            let ranges: Map<String, Value> = names.zip(histogram.counts.map(Value::from)).collect();
            ((*kind).to_owned(), json!({ "sum_us": histogram.sum_us, "up_to_us": ranges }))
        };
        Value::Object(KINDS.iter().zip(&self.kinds).map(of_kind).collect())
    }
}

/// Writes that were refused.
#[derive(Debug, Default)]
pub(crate) struct WriteRefusals {
    counts: [u64; REASONS.len()],
}

const REASONS: [&str; 7] = ["not_leader", "not_ready", "busy", "outcome_unknown", "disk_full", "not_allowed", "other"];

impl WriteRefusals {
    pub(crate) fn note(&mut self, refusal: &Refusal) {
        let reason = match refusal {
            Refusal::NotLeader { .. } | Refusal::NotHosted => 0,
            Refusal::NotReady(_) => 1,
            Refusal::Busy(_) | Refusal::BusyFor { .. } | Refusal::Throttled => 2,
            Refusal::Expired | Refusal::Unresolved => 3,
            Refusal::DiskFull(_) => 4,
            Refusal::NotAllowed(_) => 5,
            _ => 6,
        };
        self.counts[reason] += 1;
    }

    pub(crate) fn to_json(&self) -> Value {
        Value::Object(REASONS.iter().zip(self.counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_in_the_range_that_it_ends_in() {
        let mut times = Times::default();
        for us in [0, 50, 51, 1_000, 10_000_000, 10_000_001] {
            times.note(Class::Read, Duration::from_micros(us));
        }
        times.note(Class::Write, Duration::from_secs(7));
        let told = times.to_json();
        let (read, write) = (&told["read"], &told["write"]);
        for (range, count) in [("50", 2), ("100", 1), ("250", 0), ("1000", 1), ("10000000", 1), ("more", 1)] {
            assert_eq!(read["up_to_us"][range], count, "{range}");
        }
        assert_eq!(read["sum_us"], 20_001_102_u64);
        assert_eq!((&write["up_to_us"]["10000000"], &told["scan"]["sum_us"]), (&json!(1), &json!(0)));
    }

    #[test]
    fn refusals_of_writes_are_counted_by_reason() {
        let mut refusals = WriteRefusals::default();
        refusals.note(&Refusal::Busy("much".into()));
        refusals.note(&Refusal::Throttled);
        refusals.note(&Refusal::NoTable);
        let told = refusals.to_json();
        assert_eq!((&told["busy"], &told["other"], &told["outcome_unknown"]), (&json!(2), &json!(1), &json!(0)));
    }
}
