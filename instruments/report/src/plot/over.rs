//! Throughput and p99 over something that differs between workloads, such as the rows of a scan: a line for each variant
//! through the medians of its repetitions, with a band from the lowest to the highest.
//!
//! Runs ask for it with a figure `by_NAME` among their further ones: where the run lies on the axis.

use super::Part;
use super::axis::{Axis, log};
use super::canvas::{self, Emphasis, Frame, Heading, Legend, MARGIN, Panel, WIDTH};
use super::style::look;
use crate::schema::Run;
use crate::variants::{Comparison, Spread, Variant};
use anyhow::Result;

/// What a further figure's name begins with that says where a run lies.
const PREFIX: &str = "by_";
const PANEL_HEIGHT: i32 = 330;

/// A figure of a run.
type Figure = fn(&Run) -> Option<f64>;

/// What the panels show: the titles of their axes, and a figure.
const PANELS: [(&str, Figure); 2] = [
    ("successes per second (logarithmic)", |run| Some(run.achieved_per_s)),
    ("p99 (logarithmic)", |run| run.operations.iter().map(|it| it.latency_us.p99).reduce(f64::max)),
];

/// The workloads that lie on one axis.
pub(super) struct Row<'a, 'b> {
    /// What differs: the name without its beginning.
    pub(super) name: String,
    /// Places on the axis with the workloads there, in the order of the places.
    places: Vec<(f64, &'b Comparison<'a>)>,
}

/// All rows of at least two workloads.
pub(super) fn rows<'a, 'b>(comparisons: &'b [Comparison<'a>]) -> Vec<Row<'a, 'b>> {
    let mut rows: Vec<Row<'a, 'b>> = Vec::new();
    for comparison in comparisons {
        let runs = comparison.variants.iter().flat_map(|variant| &variant.runs);
        let told = runs.flat_map(|run| &run.extra).find_map(|(name, at)| Some((name.strip_prefix(PREFIX)?, *at)));
        let Some((name, at)) = told.filter(|(_, at)| at.is_finite() && *at > 0.0) else { continue };
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.places.push((at, comparison)),
            None => rows.push(Row { name: name.to_owned(), places: vec![(at, comparison)] }),
        }
    }
    rows.retain(|row| row.places.len() > 1);
    rows.iter_mut().for_each(|row| row.places.sort_by(|a, b| a.0.total_cmp(&b.0)));
    rows
}

impl Row<'_, '_> {
    /// The workload beside whose pictures this one stands.
    pub(super) fn workload(&self) -> &str {
        self.places.first().map_or("", |(_, comparison)| comparison.workload.as_str())
    }

    /// The names of all variants, in the order of their first appearance.
    pub(super) fn variants(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for variant in self.places.iter().flat_map(|(_, comparison)| &comparison.variants) {
            if !names.contains(&variant.name) {
                names.push(variant.name.clone());
            }
        }
        names
    }

    pub(super) fn draw(&self, part: &Part, variants: &[String]) -> Result<String> {
        let axis_name = self.name.replace('_', " ");
        let heading = Heading {
            title: format!("Throughput and p99 by {axis_name}{}", part.remark()),
            remarks: vec!["Medians of the repetitions; bands: lowest to highest. VOID runs are left out.".to_owned()],
            alarms: Vec::new(),
        };
        let x = Axis::places(&axis_name, self.places.iter().map(|(at, _)| *at));
        let height = PANEL_HEIGHT * PANELS.len() as i32 + MARGIN;
        canvas::draw(&heading, &Legend::new(variants), height, |sheet, top| {
            for (index, (title, figure)) in PANELS.iter().enumerate() {
                let lines: Vec<_> = variants.iter().map(|variant| self.line(variant, *figure)).collect();
                let values = lines.iter().flatten().flat_map(|(_, spread)| [spread.min, spread.max]);
                let y = if index == 0 { Axis::amount(title, values) } else { Axis::latency(title, values) };
                let top = top + PANEL_HEIGHT * index as i32;
                let (width, height) = (WIDTH - MARGIN, PANEL_HEIGHT);
                let place = Frame { left: MARGIN, top, width, height, labels_left: 84, labels_below: 48 };
                let panel = Panel::new(sheet, place, &x, &y)?;
                lines.iter().enumerate().try_for_each(|(variant, line)| paint(&panel, line, variant))?;
            }
            Ok(())
        })
    }

    /// A variant's figure at each place where it has one.
    fn line(&self, variant: &str, figure: Figure) -> Vec<(f64, Spread)> {
        let at = |(at, comparison): &(f64, &Comparison<'_>)| {
            let own = comparison.variants.iter().find(|it| it.name == variant).filter(|it| !Variant::is_void(it))?;
            Some((log(*at), own.spread(figure).filter(|spread| spread.min > 0.0)?))
        };
        self.places.iter().filter_map(at).collect()
    }
}

fn paint(panel: &Panel<'_, '_>, line: &[(f64, Spread)], variant: usize) -> Result<()> {
    let of = |pick: fn(&Spread) -> f64| line.iter().map(|(at, it)| (*at, log(pick(it)))).collect::<Vec<_>>();
    let look = look(variant);
    if line.len() > 1 && line.iter().any(|(_, spread)| spread.max > spread.min) {
        panel.band(&of(|it| it.min), &of(|it| it.max), &look)?;
    }
    let medians = of(|it| it.median);
    panel.line(&medians, &look, Emphasis::Full)?;
    medians.into_iter().try_for_each(|point| panel.mark(point, &look))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Latency, Operation, Outcome};
    use crate::variants::comparisons;
    use std::path::Path;

    fn run(variant: &str, rows: f64, per_s: f64) -> Run {
        let latency_us = Latency { p99: 1e6 / per_s, ..Latency::default() };
        Run {
            variant: variant.to_owned(),
            workload: format!("scan-{rows}"),
            achieved_per_s: per_s,
            operations: vec![Operation { name: "scan".to_owned(), count: 9, latency_us, ..Operation::default() }],
            extra: [("by_scan_rows".to_owned(), rows)].into(),
            ..Run::default()
        }
    }

    #[test]
    fn workloads_with_a_place_are_drawn_together_in_order() {
        let mut runs = vec![run("a", 100.0, 50.0), run("a", 10.0, 400.0), run("b", 10.0, 300.0), run("a", 10.0, 500.0)];
        runs.push(Run { workload: "get".to_owned(), variant: "a".to_owned(), ..Run::default() });
        let outcome = Outcome { runs, ..Outcome::default() };
        let comparisons = comparisons(&[(Path::new(""), &outcome)]);
        let rows = rows(&comparisons);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].name.as_str(), rows[0].workload()), ("scan_rows", "scan-10"));
        assert_eq!(rows[0].variants(), ["a", "b"]);
        let line = rows[0].line("a", PANELS[0].1);
        let medians: Vec<_> = line.iter().map(|(at, spread)| (*at, spread.median)).collect();
        assert_eq!(medians, [(1.0, 450.0), (2.0, 50.0)]);
        let part = Part { index: 0, count: 1 };
        let svg = rows[0].draw(&part, &rows[0].variants()).unwrap();
        assert!(svg.contains("Throughput and p99 by scan rows") && svg.contains("\n100\n"), "{svg}");
    }

    #[test]
    fn one_workload_is_no_row() {
        let outcome = Outcome { runs: vec![run("a", 10.0, 5.0)], ..Outcome::default() };
        assert!(rows(&comparisons(&[(Path::new(""), &outcome)])).is_empty());
    }
}
