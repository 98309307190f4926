//! What to say about a distribution of latencies: the recommendation, what it is compared with, and remarks.

use anyhow::{Result, ensure};
use hedgerow_hedge::tradeoff::{self, Distribution, Goal, Percentiles, Point, Recommendation};
use std::str::FromStr;
use std::time::Duration;

/// So many samples must lie above a percentile for it to mean something.
const SAMPLES_ABOVE_MIN: u64 = 100;
/// Budgets of the curve for each factor of ten, and the first and the last of them.
const BUDGETS_PER_DECADE: i32 = 10;
const FIRST_BUDGET_DECADE: i32 = -4;
const LAST_BUDGET: f64 = 0.3;
/// What makes the target so much shorter is worth being told of.
const WORTHWHILE: f64 = 0.8;
/// Requests over a network that are faster than this are rather in another unit than so fast.
const PLAUSIBLE: Duration = Duration::from_micros(1);
/// Delays that people choose by hand: at these percentiles of what was measured.
const BY_HAND: [f64; 3] = [95.0, 99.0, 99.9];

/// The percentile to make best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    P99,
    P999,
    P9999,
}

impl Target {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::P9999 => "p99.99",
        }
    }

    pub(crate) const fn percentile(self) -> f64 {
        match self {
            Self::P99 => 99.0,
            Self::P999 => 99.9,
            Self::P9999 => 99.99,
        }
    }

    const fn samples_min(self) -> u64 {
        match self {
            Self::P99 => 100 * SAMPLES_ABOVE_MIN,
            Self::P999 => 1_000 * SAMPLES_ABOVE_MIN,
            Self::P9999 => 10_000 * SAMPLES_ABOVE_MIN,
        }
    }

    /// Whether so many samples are enough for it.
    pub(crate) const fn is_known_from(self, samples: u64) -> bool {
        samples >= self.samples_min()
    }

    const fn of(self, percentiles: Percentiles) -> Duration {
        match self {
            Self::P99 => percentiles.p99,
            Self::P999 => percentiles.p999,
            Self::P9999 => percentiles.p9999,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::P99, Self::P999, Self::P9999];
        let found = all.into_iter().find(|target| target.name() == text || &target.name()[1..] == text);
        found.ok_or_else(|| format!("{text:?} is none of p99, p99.9, p99.99"))
    }
}

/// All that there is to say.
pub(crate) struct Advice {
    pub(crate) goal: Goal,
    pub(crate) target: Target,
    pub(crate) best: Recommendation,
    /// Fixed delays by name.
    pub(crate) compared: Vec<(String, Point)>,
    /// The best for each of many budgets.
    pub(crate) curve: Vec<Point>,
    /// Sentences for people.
    pub(crate) hints: Vec<String>,
}

impl Advice {
    /// Fails if there are too few samples for the target.
    pub(crate) fn of(distribution: &Distribution, goal: Goal, target: Target) -> Result<Self> {
        let count = distribution.count();
        let known = [Target::P999, Target::P99].into_iter().find(|target| target.is_known_from(count));
        let instead = known.map(|known| format!(", or take --target {}", known.name())).unwrap_or_default();
        ensure!(
            target.is_known_from(count),
            "{} needs {} samples, and there are {count}: measure for longer{instead}",
            target.name(),
            target.samples_min()
        );
        let best = tradeoff::recommend(distribution, goal);
        let compared = BY_HAND.map(|percentile| {
            let delay = distribution.percentile(percentile);
            let point = tradeoff::expect(distribution, delay, 1.0, goal.correlation);
            (format!("fixed delay at p{percentile}: {}", super::show(delay)), point)
        });
        let curve = tradeoff::curve(distribution, goal, &budgets(goal.max_extra_load));
        let hints = hints(distribution, goal, target, &best, &curve);
        Ok(Self { goal, target, best, compared: compared.to_vec(), curve, hints })
    }

    /// The curve of each percentile that is known from so many samples: budget, and microseconds.
    pub(crate) fn lines(&self, samples: u64) -> Vec<(String, Vec<(f64, f64)>)> {
        let us = |latency: Duration| latency.as_secs_f64() * 1e6;
        let line = |name: &str, of: &dyn Fn(Percentiles) -> Duration| {
            let mut line = vec![(0.0, us(of(self.best.before)))];
            line.extend(self.curve.iter().map(|point| (point.max_extra_load, us(of(point.after)))));
            (name.to_owned(), line)
        };
        let mut lines = vec![line("p50", &|it| it.p50)];
        let known = [Target::P99, Target::P999, Target::P9999].into_iter().filter(|it| it.is_known_from(samples));
        lines.extend(known.map(|target| line(target.name(), &|it| target.of(it))));
        lines
    }
}

/// Evenly spread budgets from 0.01 % to 30 %, or beyond what is asked for, and that one.
fn budgets(asked: f64) -> Vec<f64> {
    let last = LAST_BUDGET.max(3.0 * asked).min(1.0);
    let budget =
        |index: i32| 10_f64.powf(f64::from(FIRST_BUDGET_DECADE) + f64::from(index) / f64::from(BUDGETS_PER_DECADE));
    let mut budgets: Vec<f64> = (0..).map(budget).take_while(|budget| *budget <= last * 1.001).collect();
    let place = budgets.partition_point(|budget| *budget < asked);
    budgets.insert(place, asked);
    budgets
}

fn hints(
    distribution: &Distribution,
    goal: Goal,
    target: Target,
    best: &Recommendation,
    curve: &[Point],
) -> Vec<String> {
    let mut hints = Vec::new();
    if best.before.p50 < PLAUSIBLE {
        let p50 = super::show(best.before.p50);
        hints.push(format!("half of these latencies are below {p50}: is the unit right (--unit)?"));
    }
    let count = distribution.count();
    let before = target.of(best.before);
    let is_worthwhile = |after: Duration| after.as_secs_f64() <= WORTHWHILE * before.as_secs_f64();
    if !is_worthwhile(target.of(best.after)) {
        let independent = tradeoff::recommend(distribution, Goal { correlation: 0.0, ..goal });
        let larger = curve
            .iter()
            .find(|point| point.max_extra_load > goal.max_extra_load && is_worthwhile(target.of(point.after)));
        hints.push(match larger {
            _ if goal.correlation > 0.0 && is_worthwhile(target.of(independent.after)) => format!(
                "hedging helps little, as {} of the slow requests are slow at whichever server: look for what they have in \
                 common",
                super::percent(goal.correlation)
            ),
            Some(point) => format!(
                "the budget is too small for this tail: at {} of extra requests {} would be {} instead of {}",
                super::percent(point.max_extra_load),
                target.name(),
                super::show(target.of(point.after)),
                super::show(before)
            ),
            None => format!(
                "hedging will not help: {} ({}) is near what a second request would take, or the tail is common to all \
                 servers",
                target.name(),
                super::show(before)
            ),
        });
    }
    if goal.correlation == 0.0 && !best.delay.is_zero() {
        hints.push(
            "this assumes that servers are slow independently of each other, and that the extra requests slow nothing: it is \
             the best case (--correlation)"
                .to_owned(),
        );
    }
    let unknown = [Target::P999, Target::P9999].into_iter().filter(|target| !target.is_known_from(count));
    hints.extend(unknown.map(|target| {
        format!("{} is n/a: it needs {} samples, and there are {count}", target.name(), target.samples_min())
    }));
    hints
}
