//! What experiments about extra attempts have in common: a rate that the machine can bear, percentiles over all
//! repetitions, budgets.

use crate::experiment::{Context, Size};
use crate::stage::Stage;
use anyhow::Result;
use hdrhistogram::Histogram;
use hedgerow_bench::{Arrivals, Load, Measurement, Operation};
use hedgerow_client::{BudgetOptions, HedgeOptions, Policy, ReadLevel};
use hedgerow_report::{Latency, Run, merge_histograms, read_histogram};
use std::path::Path;
use std::time::Duration;

/// The bound of bounded reads.
pub(crate) const BOUND: Duration = Duration::from_secs(1);
/// The level of bounded reads.
pub(crate) const BOUNDED: ReadLevel = ReadLevel::Bounded(BOUND);
/// The part of the closed loop's throughput that a quick run takes untried.
const SHARE_QUICK: f64 = 0.2;
/// The lowest quantile that open loops beside nodes on the same machine are about. The generator sleeps between requests: one
/// that stays awake takes a core from the nodes, and then it is waiting for a processor that is measured. One that sleeps is
/// late by more than a p99 bears, but by little beside a p99.9.
pub(crate) const JUDGED: f64 = 0.999;
/// How long a stall may be for which a budget has tokens at once.
const STALL_BORNE_S: f64 = 0.2;

/// An open loop that the machine bears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offered {
    /// Requests per second.
    pub(crate) per_s: f64,
    /// What that is of the closed loop's throughput.
    pub(crate) share: f64,
}

impl Offered {
    /// `load` as an open loop with Poisson arrivals.
    pub(crate) fn apply(self, load: Load) -> Load {
        Load { arrivals: Arrivals::poisson(self.per_s), judged: JUDGED, ..load }
    }

    /// A budget of `ratio`, which each of `clients` has for itself: with tokens for all reads that one of `nodes` nodes gets
    /// in the longest stall.
    pub(crate) fn budget(self, ratio: f64, clients: u32, nodes: usize) -> BudgetOptions {
        let burst = self.per_s / nodes as f64 * STALL_BORNE_S / f64::from(clients);
        BudgetOptions { ratio, burst: Some(burst.ceil().max(1.0)) }
    }
}

/// What a rate is looked for with.
pub(crate) struct Trials {
    /// Parts of what the closed loop reached, in the order in which they are tried. An open loop gathers less into one system
    /// call, so that a request costs more than in the closed one.
    pub(crate) shares: &'static [f64],
    /// How long each takes.
    pub(crate) duration: Duration,
    /// The p99.9 above which a rate is too high: what is ordinary must stay far below what is made slow on purpose.
    pub(crate) ordinary_max: Duration,
    /// A quick experiment takes any rate.
    pub(crate) size: Size,
}

/// Finds a rate for `load`, a closed loop without extra attempts: the highest of a few shares of its throughput at which the
/// generator keeps up and the p99.9 of `read` is ordinary, or else the one with the lowest. The figures of the trials are not
/// kept.
pub(crate) async fn calibrate(
    stage: &mut Stage,
    context: &Context<'_>,
    load: &Load,
    read: Operation,
    trials: &Trials,
) -> Result<Offered> {
    let load = Load { duration: trials.duration, ..load.clone() };
    let closed = stage.measure(context, load.clone()).await?.achieved_per_s();
    let of = |share: f64| Offered { per_s: (closed * share).max(1.0), share };
    if trials.size == Size::Quick {
        return Ok(of(SHARE_QUICK));
    }
    let mut best: Option<(Duration, Offered)> = None;
    for offered in trials.shares.iter().map(|share| of(*share)) {
        let measurement = stage.measure(context, offered.apply(load.clone())).await?;
        let Some(p999) = p999(&measurement, read).filter(|_| measurement.void().is_none()) else { continue };
        if p999 <= trials.ordinary_max {
            return Ok(offered);
        }
        if best.is_none_or(|(lowest, _)| p999 < lowest) {
            best = Some((p999, offered));
        }
    }
    // Where the generator never kept up, the runs will say so.
    let last = || of(trials.shares.last().copied().unwrap_or(SHARE_QUICK));
    Ok(best.map_or_else(last, |(_, offered)| offered))
}

fn p999(measurement: &Measurement, operation: Operation) -> Option<Duration> {
    let latency = measurement.latency(operation)?;
    (!latency.is_empty()).then(|| Duration::from_nanos(latency.value_at_quantile(0.999)))
}

/// The p99.9 of an operation of a run, also of fewer samples than a table would show one of.
pub(crate) fn p999_of(folder: &Path, run: &Run, operation: &str) -> Option<Duration> {
    let latency = merged(folder, &[run], operation)?;
    Some(Duration::from_nanos(latency.value_at_quantile(0.999)))
}

/// Those of `runs` that are not void, or all of them if none is sound.
fn counted<'a>(runs: &[&'a Run]) -> impl Iterator<Item = &'a Run> {
    let has_sound = runs.iter().any(|run| run.void.is_none());
    runs.iter().copied().filter(move |run| !has_sound || run.void.is_none())
}

/// The largest p99 of the send lag of the runs that [`merged`] counts, in microseconds; 0 without an open loop.
pub(crate) fn lag_p99_max_us(runs: &[&Run]) -> f64 {
    counted(runs).filter_map(|run| run.send_lag_us.as_ref()).map(|lag| lag.p99).fold(0.0, f64::max)
}

/// All samples of an operation in those of `runs` that are not void, or in all of them if none is sound. `None` without any.
pub(crate) fn merged(folder: &Path, runs: &[&Run], operation: &str) -> Option<Histogram<u64>> {
    let operations = counted(runs).flat_map(|run| &run.operations).filter(|it| it.name == operation);
    let logs: Vec<_> = operations.filter_map(|it| read_histogram(&folder.join(&it.histogram)).ok()).collect();
    let all = merge_histograms(&logs);
    (!all.is_empty()).then_some(all)
}

/// The summary of all samples of an operation, see [`merged`].
pub(crate) fn latency(folder: &Path, runs: &[&Run], operation: &str) -> Option<Latency> {
    merged(folder, runs, operation).map(|all| Latency::of(&all))
}

/// One further attempt after a fixed time.
pub(crate) fn once_after(delay: Duration) -> Policy {
    Policy::Constant { delay, max_executions: 2 }
}

/// The adaptive policy at a share of extra attempts, with a budget of the same share.
pub(crate) fn adaptive(percent: f64, offered: Offered, clients: u32, nodes: usize) -> HedgeOptions {
    HedgeOptions {
        reads: format!("adaptive={percent}%").parse().expect("it is one of the forms"),
        budget: Some(offered.budget(percent / 100.0, clients, nodes)),
        ..HedgeOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_bears_the_longest_stall_of_one_node() {
        let offered = Offered { per_s: 90_000.0, share: 0.5 };
        let budget = offered.budget(0.02, 3, 3);
        assert_eq!((budget.ratio, budget.burst), (0.02, Some(2_000.0)));
    }
}
