//! What the benchmark prints.

use super::stats::{Interval, Measured, Stats, quantile};
use super::{BenchArguments, Workload};
use crate::arguments::Output;
use crate::output::{columns, print_result, say};
use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Duration;

/// The percentiles that are shown.
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// The result of a run.
pub(crate) struct Report<'a> {
    arguments: &'a BenchArguments,
    measured: Measured,
    elapsed: Duration,
}

impl<'a> Report<'a> {
    pub(crate) fn new(arguments: &'a BenchArguments, stats: &Stats, elapsed: Duration) -> Self {
        Self { arguments, measured: stats.measured(), elapsed }
    }

    /// Operations that succeeded.
    pub(crate) fn operations(&self) -> u64 {
        self.measured.get.len() + self.measured.put.len()
    }

    fn rate(&self, operations: u64) -> f64 {
        operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &Histogram<u64>)> {
        let parts = [("get", &self.measured.get), ("put", &self.measured.put)];
        parts.into_iter().filter(|(_, histogram)| !histogram.is_empty())
    }

    pub(crate) fn print(&self, output: Output) -> Result<()> {
        print_result(output, || self.text(), || self.json())?;
        if self.measured.missing > 0 {
            say(&format!("{} gets found no row", self.measured.missing));
        }
        for (kind, count) in &self.measured.errors {
            say(&format!("{count} operations failed: {kind}"));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let milliseconds = |nanos: u64| format!("{:.3}", nanos as f64 / 1e6);
        let row = |(name, histogram): (&str, &Histogram<u64>)| {
            let mut cells =
                vec![name.to_owned(), histogram.len().to_string(), format!("{:.0}", self.rate(histogram.len()))];
            cells.extend(
                QUANTILES
                    .iter()
                    .map(|(_, share)| quantile(histogram, *share).map_or_else(|| "n/a".to_owned(), milliseconds)),
            );
            cells.push(milliseconds(histogram.max()));
            cells
        };
        let mut header = vec!["operation", "count", "per second"];
        header.extend(QUANTILES.iter().map(|(name, _)| *name));
        header.push("max");
        let arguments = self.arguments;
        format!(
            "{} clients, {} in flight each, {}-byte values, {} rows, {:.1} s, {} errors; latencies in ms\n{}",
            arguments.clients,
            arguments.pipeline,
            arguments.value_size,
            arguments.rows,
            self.elapsed.as_secs_f64(),
            self.measured.errors.values().sum::<u64>(),
            columns(&header, &self.parts().map(row).collect::<Vec<_>>())
        )
    }

    fn json(&self) -> Value {
        let arguments = self.arguments;
        let latency = |(name, histogram): (&str, &Histogram<u64>)| {
            let mut part = json!({
                "count": histogram.len(),
                "per_second": self.rate(histogram.len()),
                "mean_us": histogram.mean() / 1e3,
                "min_us": micros(histogram.min()),
                "max_us": micros(histogram.max()),
            });
            for (name, share) in QUANTILES {
                part[format!("{}_us", name.replace('.', ""))] = quantile(histogram, share).map(micros).into();
            }
            (name.to_owned(), part)
        };
        json!({
            "workload": match arguments.workload {
                Workload::Put => "put",
                Workload::Get => "get",
                Workload::Mix => "mix",
            },
            "table": arguments.table,
            "clients": arguments.clients,
            "pipeline": arguments.pipeline,
            "connections": arguments.connections.unwrap_or(arguments.clients),
            "value_size": arguments.value_size,
            "rows": arguments.rows,
            "seconds": self.elapsed.as_secs_f64(),
            "operations": self.operations(),
            "per_second": self.rate(self.operations()),
            "errors": self.measured.errors,
            "missing": self.measured.missing,
            "latency": self.parts().map(latency).collect::<serde_json::Map<_, _>>(),
            "timeline": self.measured.timeline.iter().map(interval_json).collect::<Vec<_>>(),
        })
    }
}

fn interval_json(interval: &Interval) -> Value {
    json!({
        "operations": interval.operations,
        "errors": interval.errors,
        "p50_us": interval.p50_nanos.map(micros),
        "p99_us": interval.p99_nanos.map(micros),
        "p999_us": interval.p999_nanos.map(micros),
        "max_us": micros(interval.max_nanos),
    })
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}
