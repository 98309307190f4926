//! What hedging would bring a service whose latencies are known, before anybody switches it on.
//!
//! The first attempt's latency X is as measured. The second one's, Y, is drawn from the same distribution (or from another
//! one: [`Distribution::with_second`]), independently, but for the share `correlation` of slow requests that are slow wherever they run, whose second attempt never comes
//! first. So
//!
//! ```text
//! P(request > t) = P(X > t) * (1 - q * (1 - correlation) * P(Y <= t - delay))
//! extra load     = q * P(X > delay)
//! ```
//!
//! That is the truth for replicas that stall at different times and an upper bound for others: load that the second
//! attempts add slows nothing here.

use crate::curve::{Curve, Pair, Second, Sent, Single};
use crate::policy::{Exact, Policy};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

/// Most different latencies that are told apart; more are merged, longer ones last.
const STEPS_MAX: usize = 2_048;

/// Measured latencies of requests that were not hedged.
#[derive(Clone, Debug)]
pub struct Distribution {
    curve: Curve,
    second: Option<Curve>,
    count: u64,
}

impl Distribution {
    /// From (nanoseconds, how many took so long) in ascending order of nanoseconds, for example the buckets of an
    /// HdrHistogram. `None` if nothing was counted, or the order is broken.
    pub fn from_buckets(buckets: impl IntoIterator<Item = (u64, u64)>) -> Option<Self> {
        let counted: Vec<(u64, u64)> = buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        if counted.windows(2).any(|pair| pair[0].0 > pair[1].0) {
            return None;
        }
        let count = counted.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count))?;
        // A value stands for what lies between it and the one before; at most 3 % below it, lest a gap counts as filled.
        let mut start = 0.0;
        let mut steps: Vec<(f64, f64, f64, f64)> = Vec::new();
        let merge_below = (counted.len() / STEPS_MAX) as f64 * 1e-3;
        for (nanos, count) in counted {
            let end = nanos as f64;
            match steps.last_mut() {
                Some(last) if last.1 >= end || end - last.0 < last.0 * merge_below => {
                    (last.1, last.2) = (end, last.2 + count as f64);
                }
                _ => steps.push((f64::max(start, end * 0.97), end, count as f64, 0.0)),
            }
            start = end;
        }
        Some(Self { curve: Curve::from_buckets(steps.into_iter())?, second: None, count })
    }

    /// The same, with second attempts that take as long as `second` says: where they go elsewhere, or queue behind others.
    #[must_use]
    pub fn with_second(self, second: &Self) -> Self {
        Self { second: Some(second.curve.clone()), ..self }
    }

    /// How many requests were measured.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What a share of `percentile` / 100 of the requests stayed below.
    pub fn percentile(&self, percentile: f64) -> Duration {
        duration(self.curve.quantile(percentile / 100.0).unwrap_or_else(|| self.curve.end()))
    }

    fn pair(&self, correlation: f64) -> Pair<'_> {
        let correlation = if correlation.is_nan() { 0.0 } else { correlation.clamp(0.0, 1.0) };
        let second = self.second.as_ref().unwrap_or(&self.curve);
        Pair { first: &self.curve, second: Second { curve: second, seen_after: None, correlation } }
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Extra attempts per first attempt, 0 to 1. Default 0.02.
    pub max_extra_load: f64,
    /// The share of slow requests that are slow wherever they run, 0 to 1. Default 0.
    pub correlation: f64,
    /// The percentile to make best, above 50 and below 100. Default 99.9.
    pub percentile: f64,
}

impl Default for Goal {
    fn default() -> Self {
        Self { max_extra_load: Policy::MAX_EXTRA_LOAD, correlation: 0.0, percentile: 99.9 }
    }
}

/// Latencies of whole requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Half of the requests stay below.
    pub p50: Duration,
    /// 99 %.
    pub p99: Duration,
    /// 99.9 %.
    pub p999: Duration,
    /// 99.99 %.
    pub p9999: Duration,
}

/// What to do, and what it would bring.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// When to send the second attempt; zero = never.
    pub delay: Duration,
    /// To what share of the requests that are open by then.
    pub probability: f64,
    /// The same as a policy, in the form that [`Policy`] is parsed from: a delay if the probability is 1, and otherwise
    /// `adaptive` with the budget, or `none`.
    pub policy: String,
    /// As measured.
    pub before: Percentiles,
    /// As expected.
    pub after: Percentiles,
    /// Extra attempts per first attempt, as expected.
    pub extra_load: f64,
}

/// One point of the trade-off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The budget: most extra attempts per first attempt.
    pub max_extra_load: f64,
    /// Extra attempts per first attempt, as expected.
    pub extra_load: f64,
    /// When the second attempt is sent; zero = never.
    pub delay: Duration,
    /// To what share of the requests that are open by then.
    pub probability: f64,
    /// As expected.
    pub after: Percentiles,
}

/// The second attempt with which the goal's percentile is lowest within its budget; none (`delay` zero, `policy` "none")
/// if no second attempt makes it at least 5 % shorter.
pub fn recommend(distribution: &Distribution, goal: Goal) -> Recommendation {
    let point = point(distribution, goal);
    let policy = match point {
        Point { delay: Duration::ZERO, .. } => Policy::None.to_string(),
        // A hundredth that the draw leaves out is below what the measured latencies can tell.
        Point { delay, probability, .. } if probability >= 0.99 => Exact(rounded(delay)).to_string(),
        _ => {
            let max_executions = Policy::MAX_EXECUTIONS;
            let min_delay = Policy::MIN_DELAY;
            Policy::Adaptive { max_extra_load: goal.max_extra_load, min_delay, max_executions }.to_string()
        }
    };
    Recommendation {
        delay: point.delay,
        probability: point.probability,
        policy,
        before: percentiles(&distribution.pair(goal.correlation), None),
        after: point.after,
        extra_load: point.extra_load,
    }
}

/// The best second attempt for each of `budgets` (shares of extra attempts), for the rest as in `goal`.
pub fn curve(distribution: &Distribution, goal: Goal, budgets: &[f64]) -> Vec<Point> {
    budgets.iter().map(|budget| point(distribution, Goal { max_extra_load: *budget, ..goal })).collect()
}

/// What a fixed delay (and probability) would bring, to compare with what is recommended.
pub fn expect(distribution: &Distribution, delay: Duration, probability: f64, correlation: f64) -> Point {
    let single = Single { delay: delay.as_nanos() as f64, probability };
    let pair = distribution.pair(correlation);
    let extra_load = probability * distribution.curve.above(single.delay);
    let after = percentiles(&pair, Some(single));
    Point { max_extra_load: extra_load, extra_load, delay, probability, after }
}

fn point(distribution: &Distribution, goal: Goal) -> Point {
    let pair = distribution.pair(goal.correlation);
    let budget = if goal.max_extra_load.is_nan() { 0.0 } else { goal.max_extra_load.clamp(0.0, 1.0) };
    let best = if budget > 0.0 { pair.best(goal.percentile / 100.0, budget, 1.0, Sent::ByDraw) } else { None };
    Point {
        max_extra_load: goal.max_extra_load,
        extra_load: best.map_or(0.0, |best| best.probability * distribution.curve.above(best.delay)),
        delay: best.map_or(Duration::ZERO, |best| duration(best.delay)),
        probability: best.map_or(0.0, |best| best.probability),
        after: percentiles(&pair, best),
    }
}

fn percentiles(pair: &Pair<'_>, single: Option<Single>) -> Percentiles {
    let at = |share: f64| {
        let without = || pair.first.quantile(share).unwrap_or_else(|| pair.first.end());
        duration(single.map_or_else(without, |single| pair.quantile(single, share)))
    };
    Percentiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), p9999: at(0.9999) }
}

fn duration(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

/// To three digits: what a person writes into a configuration.
fn rounded(delay: Duration) -> Duration {
    let nanos = crate::histogram::nanos(delay);
    let mut scale = 1;
    while nanos / scale >= 1_000 {
        scale *= 10;
    }
    Duration::from_nanos((nanos + scale / 2) / scale * scale)
}
