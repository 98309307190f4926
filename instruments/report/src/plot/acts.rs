//! Two measurements of the same load side by side: every request over time, and below it the percentiles of both.

use super::axis::{Axis, log, percentile};
use super::canvas::{self, Emphasis, Frame, Heading, Legend, MARGIN, Panel, WIDTH};
use super::raster::png;
use super::style::look;
use crate::histogram::SAMPLES_ABOVE_MIN;
use anyhow::Result;
use std::collections::BTreeSet;

const TIME_HEIGHT: i32 = 330;
const PERCENTILES_HEIGHT: i32 = 360;
/// Requests this near to each other are one dot: seconds, and powers of ten of the latency.
const DOT: (f64, f64) = (0.01, 0.02);
/// Points of a line of percentiles for each factor of ten that fewer samples lie above.
const POINTS_PER_DECADE: f64 = 50.0;

/// One of the measurements.
#[derive(Clone, Debug, Default)]
pub struct Act {
    /// What tells it from the others.
    pub name: String,
    /// Each request: when it was due, in seconds from the beginning, and how long it then took, in microseconds.
    pub requests: Vec<(f64, f64)>,
    /// When faults were active, in seconds: begin and end.
    pub faults: Vec<(f64, f64)>,
}

/// Draws measurements of the same length side by side, as SVG and as PNG.
pub fn draw_acts(title: &str, remarks: &[String], acts: &[Act]) -> Result<(String, Vec<u8>)> {
    let svg = svg(title, remarks, acts)?;
    let png = png(&svg)?;
    Ok((svg, png))
}

fn svg(title: &str, remarks: &[String], acts: &[Act]) -> Result<String> {
    let names: Vec<String> = acts.iter().map(|act| act.name.clone()).collect();
    let mut remarks = remarks.to_vec();
    remarks.push(
        "Above: every request, at the time when it was due; grey: a fault is active. Below: percentiles.".to_owned(),
    );
    let heading = Heading { title: title.to_owned(), remarks, alarms: Vec::new() };
    let requests = || acts.iter().flat_map(|act| &act.requests);
    let end = requests().map(|(at, _)| *at).fold(1.0, f64::max).ceil();
    let latencies = || requests().map(|(_, latency)| *latency);
    let height = TIME_HEIGHT + PERCENTILES_HEIGHT + 2 * MARGIN;
    canvas::draw(&heading, &Legend::new(&names), height, |sheet, top| {
        let x = Axis { title: "time (s)".to_owned(), ..Axis::seconds(end) };
        let y = Axis::latency("latency (logarithmic)", latencies());
        let width = (WIDTH - MARGIN) / acts.len().max(1) as i32;
        for (index, act) in acts.iter().enumerate() {
            let left = MARGIN + width * index as i32;
            let place = Frame { left, top, width, height: TIME_HEIGHT, labels_left: 84, labels_below: 48 };
            let panel = Panel::new(sheet, place, &x, &y)?;
            act.faults.iter().try_for_each(|(begin, end)| panel.shade(*begin, end.min(x.range.end)))?;
            let look = look(index);
            dots(&act.requests).into_iter().try_for_each(|at| panel.dot(at, &look))?;
        }
        let most = acts.iter().map(|act| act.requests.len()).max().unwrap_or(0);
        let x = Axis::percentiles(most as u64);
        let place = Frame {
            left: MARGIN,
            top: top + TIME_HEIGHT + MARGIN,
            width: WIDTH - MARGIN,
            height: PERCENTILES_HEIGHT,
            labels_left: 84,
            labels_below: 48,
        };
        let panel = Panel::new(sheet, place, &x, &y)?;
        for (index, act) in acts.iter().enumerate() {
            let points = percentiles(act, x.range.end);
            let sound = (act.requests.len() as f64 / SAMPLES_ABOVE_MIN as f64).max(1.0).log10();
            let split = points.partition_point(|(at, _)| *at <= sound);
            panel.line(&points[split.saturating_sub(1)..], &look(index), Emphasis::Weak)?;
            panel.line(&points[..split], &look(index), Emphasis::Full)?;
            let marked = [0.5, 0.9, 0.99, 0.999]
                .map(percentile)
                .map(|at| points.iter().find(|point| (point.0 - at).abs() <= 0.5 / POINTS_PER_DECADE).copied());
            marked.into_iter().flatten().try_for_each(|point| panel.mark(point, &look(index)))?;
        }
        Ok(())
    })
}

/// One place for all requests that would cover each other.
fn dots(requests: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let cell = |(at, latency): &(f64, f64)| ((at / DOT.0) as u64, (log(*latency) / DOT.1) as i64);
    let cells: BTreeSet<(u64, i64)> = requests.iter().map(cell).collect();
    cells.into_iter().map(|(at, latency)| ((at as f64 + 0.5) * DOT.0, (latency as f64 + 0.5) * DOT.1)).collect()
}

fn percentiles(act: &Act, end: f64) -> Vec<(f64, f64)> {
    let mut latencies: Vec<f64> = act.requests.iter().map(|(_, latency)| *latency).collect();
    latencies.sort_by(f64::total_cmp);
    let Some(last) = latencies.len().checked_sub(1) else { return Vec::new() };
    let end = end.min((latencies.len() as f64).log10());
    let at = |index: u32| f64::from(index) / POINTS_PER_DECADE;
    let value = |at: f64| {
        let rank = ((1.0 - 10_f64.powf(-at)) * latencies.len() as f64).ceil() as usize;
        (at, log(latencies[rank.saturating_sub(1).min(last)]))
    };
    (0..=(end * POINTS_PER_DECADE).floor() as u32).map(at).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(name: &str, slow: f64) -> Act {
        let latency = |index: u32| if index % 100 == 7 { slow } else { 500.0 + f64::from(index % 13) };
        let requests = (0..8_000).map(|index| (f64::from(index) / 1e3, latency(index))).collect();
        Act { name: name.to_owned(), requests, faults: vec![(1.0, 1.25), (5.0, 5.25)] }
    }

    #[test]
    fn both_acts_are_in_the_picture_on_the_same_axes() {
        let acts = [act("hedging off", 250_000.0), act("hedging on", 5_000.0)];
        let (svg, png) = draw_acts("One node stalls", &["2 % extra".to_owned()], &acts).unwrap();
        for text in ["One node stalls", "hedging off", "hedging on", "2 % extra", "99.9", "100 ms"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(png.starts_with(b"\x89PNG"));
        assert!(draw_acts("empty", &[], &[Act::default(), Act::default()]).is_ok());
    }

    #[test]
    fn percentiles_are_those_of_the_requests() {
        let act = Act { requests: (1..=1_000).map(|index| (0.0, f64::from(index))).collect(), ..Act::default() };
        let points = percentiles(&act, 4.0);
        let at = |quantile: f64| {
            let near = points.iter().find(|point| (point.0 - percentile(quantile)).abs() < 0.011).unwrap();
            10_f64.powf(near.1)
        };
        assert!((at(0.9) - 900.0).abs() < 6.0 && (at(0.99) - 990.0).abs() < 2.0, "{} {}", at(0.9), at(0.99));
        assert!(points.last().unwrap().0 <= 3.0, "none lies above the last of 1,000");
    }

    #[test]
    fn requests_that_would_cover_each_other_are_one_dot() {
        assert_eq!(dots(&[(0.101, 500.0), (0.102, 501.0), (0.5, 500.0)]).len(), 2);
    }
}
