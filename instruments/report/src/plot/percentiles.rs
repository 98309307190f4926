//! Latency by percentile: a line for each variant over all samples of its repetitions, and a band from the lowest to the
//! highest repetition.
//!
//! A line is thin where fewer than 100 samples lie above it: the rule of the tables, drawn.

use super::Part;
use super::axis::{Axis, log, percentile};
use super::canvas::{self, Emphasis, Frame, Heading, Legend, MARGIN, Panel, WIDTH};
use super::style::{Look, look};
use crate::histogram::{SAMPLES_ABOVE_MIN, merge_histograms};
use crate::units::count;
use crate::variants::{Variant, failures};
use anyhow::Result;
use hdrhistogram::Histogram;

const HEIGHT: i32 = 480;
/// Points of a line for each factor of ten that fewer samples lie above.
const POINTS_PER_DECADE: f64 = 50.0;
/// Quantiles with a marker.
const MARKED: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 0.9999];

/// What is drawn of one variant. Places are those of the axes.
struct Curve {
    samples: u64,
    /// Whether the line comes from the summary, because the histogram's log is missing.
    is_coarse: bool,
    sound: Vec<(f64, f64)>,
    /// Where few samples lie above. It begins where `sound` ends.
    unsound: Vec<(f64, f64)>,
    band: Option<Band>,
}

struct Band {
    low: Vec<(f64, f64)>,
    high: Vec<(f64, f64)>,
}

pub(super) fn draw(workload: &str, operation: &str, part: &Part, variants: &[Variant<'_>]) -> Result<String> {
    let curves = variants.iter().map(|variant| curve(variant, operation)).collect::<Result<Vec<_>>>()?;
    let labels: Vec<String> = variants.iter().map(Variant::label).collect();
    let legend = Legend::new(&labels);
    let samples = curves.iter().map(|curve| curve.samples);
    let (fewest, most) = (samples.clone().min().unwrap_or(0), samples.max().unwrap_or(0));
    let range = if fewest == most { count(most) } else { format!("{} to {}", count(fewest), count(most)) };
    let mut remarks =
        vec![format!("{range} samples each, errors and timeouts among them. Thin: fewer than 100 samples lie above.")];
    if curves.iter().any(|curve| curve.band.is_some()) {
        remarks[0].push_str(" Bands: from the lowest to the highest repetition.");
    }
    if curves.iter().any(|curve| curve.is_coarse) {
        remarks.push("Histogram logs are missing; lines connect the percentiles of the summary.".to_owned());
    }
    let title = format!("Latency of {operation} by percentile: {workload}{}", part.remark());
    let heading = Heading { title, remarks, alarms: failures(variants, operation).into_iter().collect() };
    canvas::draw(&heading, &legend, HEIGHT + MARGIN, |sheet, top| {
        let x = Axis::percentiles(most);
        let points = curves.iter().flat_map(|curve| curve.sound.iter().chain(&curve.unsound));
        let y = Axis::latency("latency (logarithmic)", points.map(|(_, y)| 10_f64.powf(*y)));
        let (width, height) = (WIDTH - MARGIN, HEIGHT);
        let place = Frame { left: MARGIN, top, width, height, labels_left: 84, labels_below: 48 };
        let panel = Panel::new(sheet, place, &x, &y)?;
        for (index, curve) in curves.iter().enumerate() {
            if let Some(band) = &curve.band {
                panel.band(&within(&band.low, &x), &within(&band.high, &x), &look(index))?;
            }
        }
        curves.iter().enumerate().try_for_each(|(index, curve)| paint(&panel, curve, &look(index), &x))
    })
}

fn paint(panel: &Panel<'_, '_>, curve: &Curve, look: &Look, x: &Axis) -> Result<()> {
    panel.line(&within(&curve.unsound, x), look, Emphasis::Weak)?;
    let sound = within(&curve.sound, x);
    panel.line(&sound, look, Emphasis::Full)?;
    let nearest = |quantile: f64| {
        let at = percentile(quantile);
        let near = |point: &&(f64, f64)| (point.0 - at).abs() <= 0.5 / POINTS_PER_DECADE;
        sound.iter().find(near).copied()
    };
    let mut marks: Vec<(f64, f64)> = MARKED.into_iter().filter_map(nearest).collect();
    // A line that is nowhere sound must be found in the legend too.
    if marks.is_empty() {
        marks.extend(within(&curve.unsound, x).last());
    }
    marks.into_iter().try_for_each(|mark| panel.mark(mark, look))
}

/// What the axis shows of a line.
fn within(points: &[(f64, f64)], x: &Axis) -> Vec<(f64, f64)> {
    points.iter().copied().filter(|(at, _)| *at <= x.range.end + 1e-9).collect()
}

fn curve(variant: &Variant<'_>, operation: &str) -> Result<Curve> {
    let histograms = variant.histograms(operation)?;
    if histograms.is_empty() {
        return Ok(coarse_curve(variant, operation));
    }
    let merged = merge_histograms(&histograms);
    let samples = merged.len();
    let split = decades(samples as f64 / SAMPLES_ABOVE_MIN as f64);
    let sound = points(&merged, 0.0, split);
    let unsound = points(&merged, split, decades(samples as f64));
    let band = (histograms.len() > 1).then(|| band(&histograms));
    Ok(Curve { samples, is_coarse: false, sound, unsound, band })
}

/// The coordinate above which one of `samples` lies.
fn decades(samples: f64) -> f64 {
    samples.max(1.0).log10()
}

fn points(histogram: &Histogram<u64>, begin: f64, end: f64) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let whole = (begin * POINTS_PER_DECADE).ceil() as u32..=(end * POINTS_PER_DECADE).floor() as u32;
    let between = whole.map(|index| f64::from(index) / POINTS_PER_DECADE).filter(|at| *at > begin && *at < end);
    let all = std::iter::once(begin).chain(between).chain([end]);
    all.map(|at| (at, value(histogram, at))).collect()
}

/// The logarithm of the latency at a coordinate of the percentiles.
fn value(histogram: &Histogram<u64>, at: f64) -> f64 {
    log(histogram.value_at_quantile(1.0 - 10_f64.powf(-at)) as f64 / 1e3)
}

/// As far as every repetition is sound.
fn band(histograms: &[Histogram<u64>]) -> Band {
    let samples = histograms.iter().map(Histogram::len).min().unwrap_or(0);
    let end = decades(samples as f64 / SAMPLES_ABOVE_MIN as f64);
    let lines: Vec<Vec<(f64, f64)>> = histograms.iter().map(|histogram| points(histogram, 0.0, end)).collect();
    let edge = |pick: fn(f64, f64) -> f64| {
        let first = lines.first().cloned().unwrap_or_default();
        lines
            .iter()
            .skip(1)
            .fold(first, |edge, line| edge.iter().zip(line).map(|(a, b)| (a.0, pick(a.1, b.1))).collect())
    };
    Band { low: edge(f64::min), high: edge(f64::max) }
}

/// Through the medians of the repetitions' summaries.
fn coarse_curve(variant: &Variant<'_>, operation: &str) -> Curve {
    let samples = variant.counted().filter_map(|run| run.operation(operation)).map(|it| it.count).sum();
    let at = |quantile: f64, pick: fn(&crate::Latency) -> Option<f64>| {
        let spread = variant.operation_spread(operation, |operation| pick(&operation.latency_us))?;
        Some((percentile(quantile), log(spread.median)))
    };
    let has_any = samples > 0;
    let points = [
        at(0.5, |it| Some(it.p50)),
        at(0.9, |it| Some(it.p90)),
        at(0.95, |it| Some(it.p95)),
        at(0.99, |it| Some(it.p99)),
        at(0.999, |it| it.p999),
        at(0.9999, |it| it.p9999),
    ];
    let sound = points.into_iter().flatten().filter(|_| has_any).collect();
    Curve { samples, is_coarse: has_any, sound, unsound: Vec::new(), band: None }
}
