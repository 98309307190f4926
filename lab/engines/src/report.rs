//! What several runs gave: medians, the least and the most, and ratios of runs of one round.

use crate::{Arguments, Contender};
use anyhow::Result;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Of one run, by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Of all runs.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<Contender, Vec<Figures>>);

impl Results {
    pub(crate) fn add(&mut self, contender: Contender, figures: Figures) {
        self.0.entry(contender).or_default().push(figures);
    }

    /// All figures of all runs.
    pub(crate) fn json(&self, arguments: &Arguments) -> Result<String> {
        let of: BTreeMap<&str, &Vec<Figures>> = self.0.iter().map(|(one, runs)| (one.name(), runs)).collect();
        let Arguments { rows, value_size, cache_mib, flush_mib, rate, seconds, rounds, warm, read_ahead, .. } =
            arguments;
        Ok(serde_json::to_string_pretty(&json!({
            "rows": rows, "value_size": value_size, "cache_mib": cache_mib, "flush_mib": flush_mib, "rate": rate,
            "seconds": seconds, "rounds": rounds, "warm": warm, "read_ahead": read_ahead, "runs": of,
        }))?)
    }

    /// A line for each figure.
    pub(crate) fn table(&self, arguments: &Arguments) -> String {
        let Arguments { rows, value_size, cache_mib, flush_mib, rounds, .. } = arguments;
        let mut text = format!(
            "{rows} rows of {value_size} bytes, {cache_mib} MiB of block cache, flushes of {flush_mib} MiB; median (least-most) of \
             {rounds} rounds, and of the rounds' ratios.\n\n| what | RocksDB | lsm-tree | lsm-tree / RocksDB | the store's engine |\n|---|---|---|---|---|\n"
        );
        let names = self.0.values().flatten().flat_map(Figures::keys);
        let mut names: Vec<&String> = names.collect();
        names.sort();
        names.dedup();
        for name in names {
            let of = |one| -> Vec<f64> {
                self.0.get(&one).into_iter().flatten().filter_map(|run| run.get(name).copied()).collect()
            };
            let [rocks, lsm, store] = Contender::ALL.map(of);
            let ratios: Vec<f64> = rocks.iter().zip(&lsm).map(|(rocks, lsm)| lsm / rocks).collect();
            let cells = [spread(&rocks), spread(&lsm), spread(&ratios), spread(&store)];
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        text
    }
}

/// Median (least-most), with as many digits as say something.
fn spread(figures: &[f64]) -> String {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (figures.first(), figures.last()) else { return "-".to_owned() };
    let median = figures[figures.len() / 2];
    let digits = if median >= 100.0 {
        0
    } else if median >= 10.0 {
        1
    } else {
        2
    };
    format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
}
