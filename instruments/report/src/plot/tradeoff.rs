//! What hedging costs and brings: percentiles of the latency over the budget, a share of extra requests.

use super::axis::{Axis, log};
use super::canvas::{self, Emphasis, Frame, Heading, Legend, MARGIN, Panel, WIDTH};
use super::raster::png;
use super::style::look;
use anyhow::Result;

const HEIGHT: i32 = 460;
/// The least share of extra requests on the axis, percent. What is below, nothing above all, stands at the edge.
const LEAST_PERCENT: f64 = 0.01;
const PLACES_PERCENT: [f64; 13] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct Tradeoff {
    /// The heading.
    pub title: String,
    /// Lines below the heading.
    pub remarks: Vec<String>,
    /// A line for each percentile: its name, and what the latency is with which budget, as a share of extra requests (0.02 =
    /// 2 %), in microseconds, by growing budgets.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// The share of extra requests that what is recommended needs; marked on every line.
    pub chosen: Option<f64>,
    /// The budget that is asked about; what lies beyond is shaded.
    pub budget: f64,
}

impl Tradeoff {
    /// The picture as SVG and as PNG.
    pub fn draw(&self) -> Result<(String, Vec<u8>)> {
        let svg = self.svg()?;
        let png = png(&svg)?;
        Ok((svg, png))
    }

    fn svg(&self) -> Result<String> {
        let names: Vec<String> = self.lines.iter().map(|(name, _)| name.clone()).collect();
        let remarks = self.remarks.iter().cloned().chain(std::iter::once(
            "Left edge: without hedging. Shaded: beyond the budget. Markers: what is recommended.".to_owned(),
        ));
        let heading = Heading { title: self.title.clone(), remarks: remarks.collect(), alarms: Vec::new() };
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let most = points().map(|(share, _)| percent(*share)).fold(percent(2.0 * self.budget), f64::max);
        let x = shares(most);
        let y = Axis::latency("latency (logarithmic)", points().map(|(_, latency)| *latency));
        canvas::draw(&heading, &Legend::new(&names), HEIGHT + MARGIN, |sheet, top| {
            let (width, height) = (WIDTH - MARGIN, HEIGHT);
            let place = Frame { left: MARGIN, top, width, height, labels_left: 84, labels_below: 48 };
            let panel = Panel::new(sheet, place, &x, &y)?;
            panel.shade(log(percent(self.budget) * SCALE).min(x.range.end), x.range.end)?;
            for (index, (_, points)) in self.lines.iter().enumerate() {
                let look = look(index);
                let line: Vec<(f64, f64)> =
                    points.iter().map(|(share, latency)| (log(percent(*share) * SCALE), log(*latency))).collect();
                panel.line(&line, &look, Emphasis::Full)?;
                if let Some(at) = self.chosen.and_then(|share| latency_at(points, share).map(|at| (share, at))) {
                    panel.mark((log(percent(at.0) * SCALE), log(at.1)), &look)?;
                }
            }
            Ok(())
        })
    }
}

/// The axis' coordinates are those of latencies, whose least is 0.1: percentages are scaled to lie above it.
const SCALE: f64 = 100.0;

fn percent(share: f64) -> f64 {
    (100.0 * share).max(LEAST_PERCENT)
}

fn shares(most_percent: f64) -> Axis {
    let end = most_percent.clamp(1.0, 100.0);
    let ticks = PLACES_PERCENT.into_iter().filter(|place| *place <= end * 1.001);
    let ticks = ticks.map(|place| (log(place * SCALE), format!("{place} %"))).collect();
    let range = log(LEAST_PERCENT * SCALE)..log(end * SCALE) + 1e-9;
    Axis { title: "budget: extra requests at most (logarithmic)".to_owned(), range, ticks, lines: Vec::new() }
}

/// The latency at `share`: that of the nearest point.
fn latency_at(points: &[(f64, f64)], share: f64) -> Option<f64> {
    let distance = |point: &&(f64, f64)| (point.0 - share).abs();
    points.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).map(|(_, latency)| *latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trade_off_is_drawn_with_its_budget_and_what_is_recommended() {
        let line = |name: &str, factor: f64| {
            let points = (0..=50).map(|index| f64::from(index) / 1_000.0);
            (name.to_owned(), points.map(|share| (share, factor * 1e3 / (1.0 + 100.0 * share))).collect())
        };
        let tradeoff = Tradeoff {
            title: "What hedging costs and brings: a < b".to_owned(),
            lines: vec![line("p99", 5.0), line("p99.9", 80.0)],
            chosen: Some(0.02),
            budget: 0.02,
            ..Tradeoff::default()
        };
        let (svg, png) = tradeoff.draw().unwrap();
        for text in ["a &lt; b", "p99.9", "0.01 %", "5 %", "10 ms"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("20 %"), "the axis ends where the lines do");
        assert!(png.starts_with(b"\x89PNG"));
    }

    #[test]
    fn what_is_recommended_is_marked_at_the_nearest_point() {
        assert_eq!(latency_at(&[(0.0, 9.0), (0.01, 5.0), (0.02, 4.0)], 0.012), Some(5.0));
        assert_eq!(latency_at(&[], 0.012), None);
    }
}
