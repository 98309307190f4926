//! Writes made-up results into a folder, to look at their pictures: `cargo run --example samples -- FOLDER`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example for the developers of the pictures")]

#[path = "../tests/samples/mod.rs"]
mod samples;

use samples::{Kind, outcome, run, stalls};
use std::path::PathBuf;

fn main() {
    let base = PathBuf::from(std::env::args().nth(1).expect("give a folder"));
    let one = outcome(&base, "one", |folder| vec![run(folder, Kind::default(), 1, &[])]);
    let two = outcome(&base, "two", |folder| {
        let off = Kind { operations: &["get", "set"], stalled_per_mille: 8.0, ..Kind::default() };
        let on = Kind { variant: "hedging after p99.9", stalled_per_mille: 1.5, median_us: 250.0, ..off };
        let pairs = (1..=3).flat_map(|repetition| [(off, repetition), (on, repetition)]);
        pairs
            .map(|(kind, repetition)| run(folder, kind, repetition, &stalls(30, 0.01 * f64::from(repetition))))
            .collect()
    });
    let six = outcome(&base, "six", |folder| {
        let names = ["connections=1", "connections=8", "connections=64", "connections=256", "connections=1024"];
        let kinds =
            names.iter().chain(&["connections=1024, with a name that is much too long for any picture to show"]);
        let kinds = kinds.enumerate().map(|(index, variant)| Kind {
            variant,
            median_us: 120.0 * 2_f64.powi(index as i32),
            rate: 3_000 * (index as u64 + 1),
            is_void: index == 3,
            stalled_per_mille: if index == 2 { 6.0 } else { 0.0 },
            ..Kind::default()
        });
        let kinds: Vec<Kind<'_>> = kinds.collect();
        let runs = (1..=2).flat_map(|repetition| kinds.iter().map(move |kind| (kind, repetition)));
        runs.map(|(kind, repetition)| {
            let faults = if kind.stalled_per_mille > 0.0 { stalls(30, 0.0) } else { Vec::new() };
            run(folder, *kind, repetition, &faults)
        })
        .collect()
    });
    let short = outcome(&base, "short", |folder| {
        let kind = Kind { rate: 90, seconds: 2, ..Kind::default() };
        vec![run(folder, kind, 1, &[]), run(folder, Kind { variant: "hedging on", median_us: 300.0, ..kind }, 1, &[])]
    });
    let failing = outcome(&base, "failing", |folder| {
        let kind = Kind { is_failing: true, rate: 50, ..Kind::default() };
        vec![run(folder, kind, 1, &stalls(30, 0.0))]
    });
    for (name, outcomes) in [("one", vec![one]), ("several", vec![two, six]), ("odd", vec![short, failing])] {
        let page = hedgerow_report::page(&outcomes).unwrap();
        std::fs::write(base.join(format!("{name}.html")), page).unwrap();
    }
}
