//! Made-up outcomes of the kinds that occur, for looking at the pictures and for tests.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "samples for tests")]

use hdrhistogram::Histogram;
use hedgerow_report::{Check, FaultMark, Folder, Latency, LoopKind, Operation, Outcome, Run, Second, Table};
use std::path::Path;
use std::time::Duration;

/// A generator of numbers that is the same everywhere.
struct Draw(u64);

impl Draw {
    /// Evenly from 0 to 1, both excluded.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Log-normal around `median`.
    fn latency_ns(&mut self, median_us: f64, sigma: f64) -> u64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (median_us * 1e3 * (sigma * normal).exp()) as u64
    }
}

/// What a run is like.
#[derive(Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub(crate) variant: &'a str,
    pub(crate) workload: &'a str,
    pub(crate) operations: &'a [&'a str],
    pub(crate) rate: u64,
    pub(crate) seconds: u32,
    pub(crate) median_us: f64,
    /// Of the times in which a node stands still: how many of a thousand requests meet one.
    pub(crate) stalled_per_mille: f64,
    pub(crate) is_void: bool,
    pub(crate) is_failing: bool,
}

impl Default for Kind<'_> {
    fn default() -> Self {
        Self {
            variant: "hedging off",
            workload: "ycsb-b",
            operations: &["get"],
            rate: 8_000,
            seconds: 30,
            median_us: 240.0,
            stalled_per_mille: 0.0,
            is_void: false,
            is_failing: false,
        }
    }
}

/// One run of `kind`, with its histogram logs in `folder`.
pub(crate) fn run(folder: &Folder, kind: Kind<'_>, repetition: u32, faults: &[FaultMark]) -> Run {
    let seed =
        kind.variant.bytes().fold(u64::from(repetition) + 99, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut draw = Draw(seed);
    let mut run = Run {
        variant: kind.variant.to_owned(),
        repetition,
        workload: kind.workload.to_owned(),
        begin_s: f64::from(repetition) * 40.0,
        duration_s: f64::from(kind.seconds),
        loop_kind: LoopKind::Open,
        offered_per_s: Some(kind.rate as f64),
        generator_cpu_s: f64::from(kind.seconds) * 0.31,
        faults: faults.to_vec(),
        ..Run::default()
    };
    for node in 1..=3 {
        run.server_cpu_s.insert(format!("node {node}"), f64::from(kind.seconds) * (0.2 + 0.03 * draw.unit()));
    }
    let mut histograms: Vec<Histogram<u64>> = kind.operations.iter().map(|_| Histogram::new(3).unwrap()).collect();
    for second in 0..kind.seconds {
        let is_faulty = faults.iter().any(|it| it.begin_s < f64::from(second) + 1.0 && it.end_s > f64::from(second));
        let mut of_second: Histogram<u64> = Histogram::new(3).unwrap();
        let count = (kind.rate as f64 * (0.99 + 0.02 * draw.unit())) as u64;
        for index in 0..count {
            let operation = index as usize % kind.operations.len();
            let drift = 1.0 + 0.15 * f64::from(repetition - 1);
            let median_us = drift * kind.median_us * (1.0 + 4.0 * operation as f64);
            let mut latency = draw.latency_ns(median_us, 0.35);
            if is_faulty && draw.unit() * 1_000.0 < kind.stalled_per_mille * 10.0 {
                latency += (draw.unit() * 150e6) as u64;
            }
            if kind.is_failing {
                latency = 5_000_000_000;
            }
            of_second.record(latency).unwrap();
            histograms[operation].record(latency).unwrap();
        }
        let summary = Latency::of(&of_second);
        let errors = if kind.is_failing { count } else { 0 };
        let (p50_us, p99_us, max_us) = (summary.p50, summary.p99, summary.max);
        run.timeline.push(Second { second, count, errors, p50_us, p99_us, max_us });
    }
    for (name, histogram) in kind.operations.iter().zip(&histograms) {
        let key = format!("{}-{}-{repetition}", kind.workload, kind.variant);
        let duration = Duration::from_secs(u64::from(kind.seconds));
        let path = folder.keep_histogram(&key, name, histogram, duration).unwrap();
        let timeouts = if kind.is_failing { histogram.len() } else { 0 };
        run.operations.push(Operation {
            name: (*name).to_owned(),
            count: histogram.len(),
            errors: 0,
            timeouts,
            latency_us: Latency::of(histogram),
            histogram: path,
        });
    }
    let successes: u64 = run.timeline.iter().map(|second| second.count - second.errors).sum();
    run.achieved_per_s = successes as f64 / run.duration_s;
    run.send_lag_us = Some(Latency { p50: 9.0, p99: 61.0, max: 900.0, ..Latency::default() });
    run.void = kind.is_void.then(|| "send lag p99 of 310 µs is above 5 % of the p99 of 1,180 µs".to_owned());
    run.extra.insert("hedges_sent_percent".to_owned(), 0.12 + 0.01 * draw.unit());
    run.extra.insert("resident_mib".to_owned(), 210.0 + 5.0 * draw.unit());
    run
}

/// Stalls of two nodes, the same ones for each call with the same `shift`.
pub(crate) fn stalls(seconds: u32, shift: f64) -> Vec<FaultMark> {
    let mut draw = Draw(5);
    let mut marks = Vec::new();
    for node in 1..=2 {
        let mut at = 2.0 * draw.unit();
        while at < f64::from(seconds) {
            let end_s = at + 0.02 + 0.18 * draw.unit() + shift;
            marks.push(FaultMark { label: format!("stall node {node}"), begin_s: at + shift, end_s });
            at += 2.0 + 3.0 * draw.unit();
        }
    }
    let slow = FaultMark { label: "slow node 3, 5 ms".to_owned(), begin_s: 8.0, end_s: 15.0 };
    marks.extend((seconds > 15).then_some(slow));
    marks
}

/// An outcome of runs that `make` makes for the folder `name` below `base`; everything is written.
pub(crate) fn outcome(
    base: &Path,
    name: &str,
    make: impl FnOnce(&Folder) -> Vec<Run>,
) -> (std::path::PathBuf, Outcome) {
    let folder = Folder::create(base, name).unwrap();
    let words = ["hedgerow", "bench", "run", "my workload.toml", "--rate", "8000", "--seed", "7"].map(str::to_owned);
    let mut outcome = Outcome::new(&format!("{name}: made-up figures"), words.to_vec(), 7);
    outcome.runs = make(&folder);
    for run in &outcome.runs {
        outcome
            .workloads
            .insert(run.workload.clone(), format!("# {} <b>&\nread = 0.95\nupdate = 0.05\n", run.workload));
    }
    let has_faults = outcome.runs.iter().any(|run| !run.faults.is_empty());
    outcome.fault_plan = has_faults.then(|| "name = \"stall\"\nseed = 7\n\n[[fault]]\nkind = \"stall\"\n".to_owned());
    outcome.tables.push(Table {
        title: "Ours beside the published figures".to_owned(),
        columns: ["case", "published p99.99 (µs)", "ours p99.99 (µs)", "ratio"].map(str::to_owned).to_vec(),
        rows: vec![["30:1, hedging off", "28,271", "4,120", "x6.9"].map(str::to_owned).to_vec()],
        notes: vec!["Published: Apache Pegasus, backup requests, case <3x30>.".to_owned()],
    });
    let check =
        |name: &str, has_passed: bool, detail: &str| Check { name: name.into(), has_passed, detail: detail.into() };
    outcome.checks.push(check("the generator kept up", true, "send lag p99 61 µs, 2 % of p99"));
    outcome.checks.push(check("every request was answered", !has_faults, "17 timeouts"));
    folder.write(&outcome).unwrap();
    (folder.path().to_owned(), outcome)
}
