//! The fan-out under every policy, beside what was published, as a table and as CSV.

use super::{Measured, Selection, Setting, run, tied};
use hedgerow_hedge::{BudgetOptions, Policy};
use std::fmt::Write;
use std::time::Duration;

/// What all policies may spend: further copies as a share of the first ones.
const BUDGET: BudgetOptions = BudgetOptions { ratio: 0.0199, burst: Some(200.0) };
/// For policies that are meant to send every copy twice.
const NO_BUDGET: BudgetOptions = BudgetOptions { ratio: 1.0, burst: Some(1_000.0) };
/// "The Tail at Scale", section "Hedged requests": p99.9 of reading 1,000 keys from 100 servers, ms, and further requests.
const PUBLISHED: [(&str, f64, f64); 2] = [("none", 1_800.0, 0.0), ("constant 10 ms", 74.0, 0.02)];
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// A policy with what it may cost and whom it asks first.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Policy and selection.
    pub name: &'static str,
    policy: Policy,
    selection: Selection,
}

/// One variant's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Policy and selection.
    pub name: &'static str,
    /// What came of it.
    pub result: Measured,
}

const TIED: &str = "tied";

/// Every policy at the same budget, and the baselines.
pub fn variants() -> Vec<Variant> {
    let ms = Duration::from_millis;
    let constant = Policy::Constant { delay: ms(10), max_executions: 2 };
    let increasing = Policy::Increasing { delay: ms(10), step: ms(20), max_executions: 3 };
    let percentile = Policy::Percentile { percentile: 98.0, min_delay: ms(1), max_delay: ms(1_000), max_executions: 2 };
    let adaptive = Policy::Adaptive { max_extra_load: BUDGET.ratio, min_delay: ms(1), max_executions: 2 };
    let (random, least) = (Selection::Random, Selection::LeastInFlight);
    let variant = |name, policy, selection| Variant { name, policy, selection };
    vec![
        variant("none", Policy::None, random),
        variant("constant 10 ms", constant.clone(), random),
        variant("increasing 10 ms + 20 ms", increasing, random),
        variant("percentile 98", percentile, random),
        variant("adaptive 2 %", adaptive.clone(), random),
        variant(TIED, tied(), random),
        variant("none, least in flight", Policy::None, least),
        variant("constant 10 ms, least in flight", constant, least),
        variant("adaptive 2 %, least in flight", adaptive, least),
        variant("none, oracle", Policy::None, Selection::Oracle),
    ]
}

impl Variant {
    /// Simulates so many requests.
    pub fn run(self, seed: u64, requests: u64) -> Row {
        let is_tied = self.name == TIED;
        let budget = if is_tied { NO_BUDGET } else { BUDGET };
        let Self { name, policy, selection } = self;
        Row { name, result: run(Setting { seed, requests, policy, budget, selection, is_tied }) }
    }
}

impl Row {
    fn published(&self) -> Option<(f64, f64)> {
        PUBLISHED.iter().find(|published| published.0 == self.name).map(|published| (published.1, published.2))
    }

    fn percentiles_ms(&self) -> [f64; PERCENTILES.len()] {
        PERCENTILES.map(|percentile| self.result.percentile(percentile).as_secs_f64() * 1e3)
    }
}

/// For people.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "reading 1,000 keys from 100 servers, ms             p50      p90      p99    p99.9   p99.99   copies sent    begun   published\n",
    );
    for row in rows {
        let [p50, p90, p99, p999, p9999] = row.percentiles_ms();
        let (sent, begun) = (row.result.extra_sent() * 100.0, row.result.extra_begun() * 100.0);
        let published = row
            .published()
            .map_or(String::new(), |(p999, extra)| format!("   p99.9 {p999:.0} ms, +{:.0} %", extra * 100.0));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:<42} {p50:>12.1} {p90:>8.1} {p99:>8.1} {p999:>8.1} {p9999:>8.1}     +{sent:>6.2} % +{begun:>5.2} %{published}",
            row.name
        );
    }
    out
}

/// For programs: latencies in milliseconds, further copies as shares of the first ones.
pub fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "policy,p50_ms,p90_ms,p99_ms,p999_ms,p9999_ms,extra_sent,extra_begun,published_p999_ms,published_extra\n",
    );
    for row in rows {
        let latencies = row.percentiles_ms().map(|ms| format!("{ms:.3}")).join(",");
        let (sent, begun) = (row.result.extra_sent(), row.result.extra_begun());
        let published = row.published().map_or(",".to_owned(), |(p999, extra)| format!("{p999},{extra}"));
        let _ = writeln!(out, "\"{}\",{latencies},{sent:.5},{begun:.5},{published}", row.name);
    }
    out
}
