//! What a run measured, and the spread of several.

use hdrhistogram::Histogram;
use std::fmt;
use std::time::{Duration, Instant};

/// Of one run. A time is that of one wait: for one entry of a writer, or for one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Figures {
    /// Of waits, each for `entries` entries, in so many seconds.
    pub(crate) fn of(waits: &Histogram<u64>, entries: u64, measured: Duration) -> Self {
        let micros = |quantile| waits.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            per_second: (waits.len() * entries) as f64 / measured.as_secs_f64(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
        }
    }
}

/// Nanoseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Calls `wait` until `warm_up` and then `measured` have passed; how long each call of the second part took.
pub(crate) fn repeat(
    warm_up: Duration,
    measured: Duration,
    mut wait: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Histogram<u64>> {
    let begun = Instant::now();
    let mut waits = histogram();
    loop {
        let before = Instant::now();
        if before - begun >= warm_up + measured {
            return Ok(waits);
        }
        wait()?;
        if before - begun >= warm_up {
            waits.record(before.elapsed().as_nanos() as u64)?;
        }
    }
}

/// The median of several figures, the least and the most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// There must be one at least.
    pub(crate) fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        Self { median: sorted[sorted.len() / 2], least: sorted[0], most: sorted[sorted.len() - 1] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$}-{:.digits$})", self.median, self.least, self.most)
    }
}
