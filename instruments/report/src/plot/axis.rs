//! Axes: their ranges, where their labels stand and what these say.

use crate::units::{compact, latency};
use std::ops::Range;

/// Decades that an axis of latencies spans at least; below that, noise would look like a difference.
const DECADES_MIN: f64 = 0.5;
/// Labels that an axis of latencies aims at.
const LATENCY_LABELS_MIN: usize = 4;

/// With so many, the 99.999th percentile means something.
const MANY_SAMPLES: u64 = 10_000_000;

/// An axis. Its coordinates are linear: what is on a logarithmic one has been transformed.
pub(super) struct Axis {
    /// What it shows, with the unit.
    pub(super) title: String,
    /// In coordinates.
    pub(super) range: Range<f64>,
    /// Coordinates with a label.
    pub(super) ticks: Vec<(f64, String)>,
    /// Coordinates between labels that have a line of the grid.
    pub(super) lines: Vec<f64>,
}

impl Axis {
    /// Latencies on a logarithmic scale that covers `values`, in microseconds. See [`log`] for the coordinates.
    pub(super) fn latency(title: &str, values: impl Iterator<Item = f64>) -> Self {
        Self::logarithmic(title, values, latency)
    }

    /// Amounts on a logarithmic scale that covers `values`. See [`log`] for the coordinates.
    pub(super) fn amount(title: &str, values: impl Iterator<Item = f64>) -> Self {
        Self::logarithmic(title, values, compact)
    }

    /// A logarithmic scale with a label at each of these places. See [`log`] for the coordinates.
    pub(super) fn places(title: &str, places: impl Iterator<Item = f64>) -> Self {
        let ticks: Vec<(f64, String)> = places.map(|place| (log(place), compact(place))).collect();
        let (low, high) =
            ticks.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (at, _)| (low.min(*at), high.max(*at)));
        let padding = f64::max(0.04 * (high - low), 0.04);
        Self { title: title.to_owned(), range: low - padding..high + padding, ticks, lines: Vec::new() }
    }

    fn logarithmic(title: &str, values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Self {
        let logs = values.filter(|value| value.is_finite()).map(log);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| (low.min(it), high.max(it)));
        let (low, high) = if low <= high { (low, high) } else { (2.0, 3.0) };
        let padding = f64::max(0.04 * (high - low), (DECADES_MIN - (high - low)) / 2.0).max(0.04);
        let range = low - padding..high + padding;
        // The coarsest set of labels that gives enough of them.
        let sets: [&[f64]; 4] =
            [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]];
        let labelled = sets.map(|set| multiples(&range, set));
        let ticks = labelled.iter().find(|ticks| ticks.len() >= LATENCY_LABELS_MIN).unwrap_or(&labelled[3]);
        let ticks: Vec<(f64, String)> = ticks.iter().map(|at| (*at, label(10_f64.powf(*at)))).collect();
        let lines = multiples(&range, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        Self { title: title.to_owned(), range, ticks, lines }
    }

    /// From 0 to a little above `max`, with about `labels` labels.
    pub(super) fn from_zero(title: &str, max: f64, labels: u32) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = nice_step(max / f64::from(labels));
        let range = 0.0..max * 1.06;
        let count = (range.end / step).floor() as u32;
        let at = |index: u32| f64::from(index) * step;
        let ticks = (0..=count).map(|index| (at(index), compact(at(index)))).collect();
        Self { title: title.to_owned(), range, ticks, lines: Vec::new() }
    }

    /// Seconds up to `end`, at whole ones.
    pub(super) fn seconds(end: f64) -> Self {
        let end = end.max(1.0);
        let labels = end.clamp(1.0, 10.0) as u32;
        let axis = Self::from_zero("time since the measurement began (s)", end, labels);
        Self { range: 0.0..end, ticks: axis.ticks.into_iter().filter(|(at, _)| *at <= end).collect(), ..axis }
    }

    /// Percentiles as far as some of `samples` lie above; beyond 99.99 only for very many. See [`percentile`] for the
    /// coordinates.
    pub(super) fn percentiles(samples: u64) -> Self {
        let decades = (samples.max(1) as f64).log10().ceil() - 1.0;
        let end = decades.clamp(2.0, if samples < MANY_SAMPLES { 4.0 } else { 5.0 });
        let labels = [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];
        let ticks =
            labels.into_iter().chain([(0.99999, "99.999")]).map(|(at, label)| (percentile(at), label.to_owned()));
        let within = |at: &f64| *at <= end + 1e-6;
        let halves = [0.75, 0.95, 0.995, 0.9995, 0.99995].map(percentile);
        Self {
            title: "percentile (logarithmic towards 100)".to_owned(),
            range: 0.0..end,
            ticks: ticks.filter(|(at, _)| within(at)).collect(),
            lines: halves.into_iter().filter(within).collect(),
        }
    }

    /// What the label at a coordinate says.
    pub(super) fn label(&self, at: f64) -> String {
        let near = |tick: &&(f64, String)| (tick.0 - at).abs() < 1e-9 * self.range.end.abs().max(1.0);
        self.ticks.iter().find(near).map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// The coordinate of a latency in microseconds. Below 0.1 µs nothing is measured.
pub(super) fn log(microseconds: f64) -> f64 {
    microseconds.max(0.1).log10()
}

/// The coordinate of a quantile: 0 for 0, 1 for 0.9, 2 for 0.99 and so on.
pub(super) fn percentile(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

/// The logarithms of all values of the form `factor` times a power of ten within `range`.
fn multiples(range: &Range<f64>, factors: &[f64]) -> Vec<f64> {
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let all = decades.flat_map(|decade| factors.iter().map(move |factor| f64::from(decade) + factor.log10()));
    all.filter(|at| range.contains(at)).collect()
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= step * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn latencies_get_round_labels_for_any_range() {
        let axis = |low: f64, high: f64| Axis::latency("", [low, high].into_iter());
        assert_eq!(labels(&axis(80.0, 2_000_000.0)), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert_eq!(labels(&axis(90.0, 2_000.0)), ["100 µs", "200 µs", "500 µs", "1 ms", "2 ms"]);
        assert!(labels(&axis(1_000.0, 1_000.0)).len() >= 4);
        assert!(labels(&axis(0.0, 0.0)).len() >= 3);
        assert!(!labels(&Axis::latency("", std::iter::empty())).is_empty());
    }

    #[test]
    fn amounts_begin_at_zero() {
        assert_eq!(labels(&Axis::from_zero("", 43_000.0, 5)), ["0", "10k", "20k", "30k", "40k"]);
        assert_eq!(labels(&Axis::from_zero("", 0.0, 4)), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(labels(&Axis::seconds(3.0)).last(), Some(&"3"));
    }

    #[test]
    fn percentiles_end_where_samples_do() {
        assert_eq!(labels(&Axis::percentiles(9_000)), ["0", "50", "90", "99", "99.9"]);
        assert_eq!(labels(&Axis::percentiles(0)), ["0", "50", "90", "99"]);
        assert_eq!(labels(&Axis::percentiles(2_000_000)).last(), Some(&"99.99"));
        assert_eq!(labels(&Axis::percentiles(20_000_000)).last(), Some(&"99.999"));
    }
}
