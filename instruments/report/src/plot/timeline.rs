//! Throughput and p99 over time, with the faults as lanes above and shades behind the lines.

use super::Part;
use super::axis::{Axis, log};
use super::canvas::{self, Emphasis, Frame, Heading, Legend, MARGIN, PANEL_RIGHT, Panel, Sheet, WIDTH, broken};
use super::style::{self, look};
use crate::schema::{FaultMark, Run, Second};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::collections::BTreeSet;

const PANEL_HEIGHT: i32 = 230;
const ERRORS_HEIGHT: i32 = 130;
const TIME_LABELS: i32 = 44;
const LEFT: i32 = 84;
/// Lanes of faults; further faults share the last one.
const LANES_MAX: usize = 8;
const LANE_HEIGHT: i32 = 28;
const LANE_BAR: i32 = 9;
/// Faults that begin and end this near to each other in two runs are one.
const SAME_S: f64 = 0.5;
/// Markers are at least so many pixels apart.
const MARKER_GAP: f64 = 45.0;

/// The faults of one label.
struct Lane {
    label: String,
    marks: Vec<FaultMark>,
}

/// One repetition: the runs of some variants, each with its variant's name.
pub(super) fn draw(workload: &str, repetition: usize, part: &Part, runs: &[(&str, &Run)]) -> Result<String> {
    let label = |(name, run): &(&str, &Run)| {
        if run.void.is_some() { format!("{name} (VOID)") } else { (*name).to_owned() }
    };
    let legend = Legend::new(&runs.iter().map(label).collect::<Vec<_>>());
    let lanes = lanes(runs);
    let mut remarks = vec!["Each point is one second; requests count in the second in which they were due.".to_owned()];
    if !lanes.is_empty() {
        remarks[0].push_str(" Grey: a fault is active.");
    }
    let void = |(name, run): &(&str, &Run)| run.void.as_ref().map(|why| format!("VOID: {name}: {why}"));
    let alarms = runs.iter().filter_map(void).collect();
    let title = format!("Throughput and p99 over time: {workload}, repetition {repetition}{}", part.remark());
    let heading = Heading { title, remarks, alarms };

    let seconds = || runs.iter().flat_map(|(_, run)| &run.timeline);
    let end = runs.iter().map(|(_, run)| run.duration_s.max(run.timeline.len() as f64)).fold(1.0, f64::max);
    let has_errors = seconds().any(|second| second.errors > 0);
    let x = Axis::seconds(end);
    let top_rate = seconds().map(successes).fold(0.0, f64::max);
    let answered = seconds().filter(|second| second.count > 0);
    let most_errors = seconds().map(|second| second.errors as f64).fold(0.0, f64::max);
    let mut rows = vec![
        Row::new(PANEL_HEIGHT, Axis::from_zero("successes per second", top_rate, 4), |second| Some(successes(second))),
        Row::new(PANEL_HEIGHT, Axis::latency("p99 (logarithmic)", answered.map(|second| second.p99_us)), |second| {
            (second.count > 0).then(|| log(second.p99_us))
        }),
    ];
    if has_errors {
        let axis = Axis::from_zero("errors per second", most_errors, 3);
        rows.push(Row::new(ERRORS_HEIGHT, axis, |second| Some(second.errors as f64)));
    }
    let lanes_height = LANE_HEIGHT * lanes.len() as i32 + if lanes.is_empty() { 0 } else { 6 };
    let height = lanes_height + rows.iter().map(|row| row.height).sum::<i32>() + TIME_LABELS + MARGIN;
    canvas::draw(&heading, &legend, height, |sheet, top| {
        draw_lanes(sheet, top, &lanes, end)?;
        let mut top = top + lanes_height;
        for (index, row) in rows.iter().enumerate() {
            let labels_below = if index + 1 == rows.len() { TIME_LABELS } else { 0 };
            let (width, height) = (WIDTH - MARGIN, row.height + labels_below);
            let place = Frame { left: MARGIN, top, width, height, labels_left: LEFT, labels_below };
            row.draw(sheet, place, &x, runs, &lanes)?;
            top += row.height;
        }
        Ok(())
    })
}

fn successes(second: &Second) -> f64 {
    second.count.saturating_sub(second.errors) as f64
}

/// One of the panels that share the axis of time.
struct Row {
    height: i32,
    axis: Axis,
    value: fn(&Second) -> Option<f64>,
}

impl Row {
    fn new(height: i32, axis: Axis, value: fn(&Second) -> Option<f64>) -> Self {
        Self { height, axis, value }
    }

    fn draw(&self, sheet: &Sheet<'_>, place: Frame, x: &Axis, runs: &[(&str, &Run)], lanes: &[Lane]) -> Result<()> {
        let panel = Panel::new(sheet, place, x, &self.axis)?;
        for mark in lanes.iter().flat_map(|lane| &lane.marks) {
            if let Some((begin, end)) = visible(mark, x.range.end) {
                panel.shade(begin, end)?;
            }
        }
        let pixels_per_second = f64::from(WIDTH - MARGIN - LEFT - PANEL_RIGHT) / x.range.end;
        let marker_step = (MARKER_GAP / pixels_per_second).ceil().max(1.0) as usize;
        for (index, (_, run)) in runs.iter().enumerate() {
            let look = look(index);
            let emphasis = if run.void.is_some() { Emphasis::Weak } else { Emphasis::Full };
            for stretch in stretches(&run.timeline, self.value) {
                panel.line(&stretch, &look, emphasis)?;
                // Markers of different series are moved against each other, so that none hides behind another.
                let first = (index * marker_step / runs.len()).min(stretch.len() - 1);
                stretch.iter().skip(first).step_by(marker_step).try_for_each(|at| panel.mark(*at, &look))?;
            }
        }
        Ok(())
    }
}

/// The points of a series, cut where seconds have no value. A second's point stands in its middle.
fn stretches(timeline: &[Second], value: fn(&Second) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
    let mut stretches = vec![Vec::new()];
    for second in timeline {
        match (value(second), stretches.last_mut()) {
            (Some(value), Some(stretch)) => stretch.push((f64::from(second.second) + 0.5, value)),
            _ => stretches.push(Vec::new()),
        }
    }
    stretches.retain(|stretch| !stretch.is_empty());
    stretches
}

/// The part of a fault that lies within the measurement.
fn visible(mark: &FaultMark, end: f64) -> Option<(f64, f64)> {
    let (begin, end) = (mark.begin_s.max(0.0), mark.end_s.min(end));
    (begin <= end).then_some((begin, end))
}

/// Faults by label. Runs that had the same ones share a lane, which tells whose it is unless it is everybody's.
fn lanes(runs: &[(&str, &Run)]) -> Vec<Lane> {
    let marks = runs.iter().flat_map(|(_, run)| &run.faults);
    let labels: BTreeSet<&str> = marks.map(|mark| mark.label.as_str()).collect();
    let mut lanes = Vec::new();
    for label in labels {
        let mut groups: Vec<(Vec<&str>, Vec<FaultMark>)> = Vec::new();
        for (name, run) in runs {
            let own: Vec<FaultMark> = run.faults.iter().filter(|mark| mark.label == label).cloned().collect();
            match groups.iter_mut().find(|(_, marks)| is_same(marks, &own)) {
                Some((names, _)) => names.push(name),
                None => groups.push((vec![name], own)),
            }
        }
        let is_everybodys = groups.len() == 1;
        lanes.extend(groups.into_iter().filter(|(_, marks)| !marks.is_empty()).map(|(names, marks)| {
            let whose = if is_everybodys { String::new() } else { format!(" ({})", names.join(", ")) };
            Lane { label: format!("{label}{whose}"), marks }
        }));
    }
    if lanes.len() > LANES_MAX {
        let rest = lanes.split_off(LANES_MAX - 1);
        let label = format!("{} more", rest.len());
        lanes.push(Lane { label, marks: rest.into_iter().flat_map(|lane| lane.marks).collect() });
    }
    lanes
}

fn is_same(a: &[FaultMark], b: &[FaultMark]) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= SAME_S;
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| near(a.begin_s, b.begin_s) && near(a.end_s, b.end_s))
}

/// A row for each lane: its label, and below that its faults as bars along the axis of time.
fn draw_lanes(sheet: &Sheet<'_>, top: i32, lanes: &[Lane], end: f64) -> Result<()> {
    let text = style::anchored(style::text(12.0, style::INK), HPos::Left, VPos::Bottom);
    let (left, right) = (MARGIN + LEFT, WIDTH - PANEL_RIGHT);
    let at = |second: f64| left + (f64::from(right - left) * second / end).round() as i32;
    for (index, lane) in lanes.iter().enumerate() {
        let bottom = top + LANE_HEIGHT * (index as i32 + 1) - 2;
        let label = style::fit(&text, &lane.label, right - left);
        rectangle(sheet, (left, bottom - LANE_BAR, right, bottom), style::PALE_GRID.filled())?;
        for (begin, end) in lane.marks.iter().filter_map(|mark| visible(mark, end)) {
            let bar = (at(begin), bottom - LANE_BAR, at(end).max(at(begin) + 2), bottom);
            rectangle(sheet, bar, style::SHADE.filled())?;
        }
        sheet.draw_text(&label, &text, (left, bottom - LANE_BAR - 2)).map_err(broken)?;
    }
    Ok(())
}

fn rectangle(sheet: &Sheet<'_>, (left, top, right, bottom): (i32, i32, i32, i32), style: ShapeStyle) -> Result<()> {
    sheet.draw(&Rectangle::new([(left, top), (right, bottom)], style)).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(faults: &[(&str, f64)]) -> Run {
        let mark = |(label, begin_s): &(&str, f64)| FaultMark {
            label: (*label).into(),
            begin_s: *begin_s,
            end_s: begin_s + 0.1,
        };
        Run { faults: faults.iter().map(mark).collect(), ..Run::default() }
    }

    #[test]
    fn runs_with_the_same_faults_share_a_lane() {
        let (a, b) = (run(&[("stall node 1", 1.0), ("cpu", 2.0)]), run(&[("stall node 1", 1.3), ("cpu", 9.0)]));
        let (c, none) = (run(&[("stall node 1", 0.9), ("cpu", 2.1)]), run(&[]));
        let labels = |runs: &[(&str, &Run)]| lanes(runs).into_iter().map(|lane| lane.label).collect::<Vec<_>>();
        assert_eq!(labels(&[("a", &a), ("b", &b), ("c", &c)]), ["cpu (a, c)", "cpu (b)", "stall node 1"]);
        assert_eq!(labels(&[("a", &a), ("d", &none)]), ["cpu (a)", "stall node 1 (a)"]);
        assert!(labels(&[("d", &none)]).is_empty());
    }

    #[test]
    fn many_lanes_become_few() {
        let many: Vec<String> = (10..40).map(|index| format!("fault {index}")).collect();
        let run = run(&many.iter().map(|label| (label.as_str(), 1.0)).collect::<Vec<_>>());
        let lanes = lanes(&[("a", &run)]);
        assert_eq!((lanes.len(), lanes[LANES_MAX - 1].label.as_str()), (LANES_MAX, "23 more"));
        assert_eq!(lanes[LANES_MAX - 1].marks.len(), 23);
    }

    #[test]
    fn seconds_without_answers_leave_a_gap() {
        let second = |second: u32, count: u64| Second { second, count, ..Second::default() };
        let timeline = [second(0, 1), second(1, 0), second(2, 5), second(3, 6)];
        let value = |second: &Second| (second.count > 0).then_some(second.count as f64);
        assert_eq!(stretches(&timeline, value), [vec![(0.5, 1.0)], vec![(2.5, 5.0), (3.5, 6.0)]]);
    }
}
