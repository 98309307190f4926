//! Variants side by side: a row for each, a column for each figure, bars with the median and the spread of the repetitions.

use super::Part;
use super::axis::Axis;
use super::canvas::{self, Heading, Legend, MARGIN, Sheet, WIDTH, broken};
use super::style;
use crate::schema::{Operation, Run};
use crate::units::{NONE, figure, latency};
use crate::variants::{Spread, Variant, failures};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

/// Variants in one picture.
pub(super) const VARIANTS_MAX: usize = 16;
const ROW: i32 = 34;
const HEAD: i32 = 44;
const FOOT: i32 = 26;
const BAR: i32 = 16;
const COLUMN_GAP: i32 = 14;
const NAME_WIDTH_MAX: i32 = 230;
/// Room for names, by their width in the font that was measured: a browser may have but a wider one.
const NAME_ROOM: f64 = 1.15;
/// The part of a column's width that is for bars; the rest is for the figure behind the longest.
const BAR_SHARE: f64 = 0.55;

/// A column.
struct Figure {
    title: &'static str,
    unit: &'static str,
    /// For the axis and behind the bars.
    text: fn(f64) -> String,
    value: fn(&Run, &Operation) -> Option<f64>,
}

const FIGURES: [Figure; 6] = [
    Figure { title: "throughput", unit: "successes/s", text: figure, value: |run, _| Some(run.achieved_per_s) },
    Figure { title: "p50", unit: "latency", text: latency, value: |_, operation| Some(operation.latency_us.p50) },
    Figure { title: "p99", unit: "latency", text: latency, value: |_, operation| Some(operation.latency_us.p99) },
    Figure { title: "p99.9", unit: "latency", text: latency, value: |_, operation| operation.latency_us.p999 },
    Figure {
        title: "CPU, servers",
        unit: "per request",
        text: latency,
        value: |run, _| run.server_cpu_us_per_request(),
    },
    Figure {
        title: "CPU, generator",
        unit: "per request",
        text: latency,
        value: |run, _| run.generator_cpu_us_per_request(),
    },
];

pub(super) fn draw(workload: &str, operation: &str, part: &Part, variants: &[Variant<'_>]) -> Result<String> {
    let repetitions = variants.iter().map(|variant| variant.runs.len()).max().unwrap_or(0);
    let mut remark = "Throughput and CPU are those of all operations together.".to_owned();
    if repetitions > 1 {
        remark = format!("Bars: median of {repetitions} repetitions; whiskers: lowest and highest. {remark}");
    }
    let void_count: usize = variants.iter().map(Variant::void_count).sum();
    let mut alarms: Vec<String> = failures(variants, operation).into_iter().collect();
    if void_count > 0 {
        alarms
            .push(format!("{void_count} VOID runs are left out; a variant that has no others is drawn as an outline."));
    }
    let title = format!("Comparison, {operation}: {workload}{}", part.remark());
    let heading = Heading { title, remarks: vec![remark], alarms };
    let height = HEAD + ROW * variants.len() as i32 + FOOT + MARGIN;
    let names: Vec<String> = variants.iter().map(Variant::label).collect();
    let name_text = style::anchored(style::text(13.0, style::INK), HPos::Right, VPos::Center);
    let name_width = names.iter().map(|name| style::width(&name_text, name)).max().unwrap_or(0).min(NAME_WIDTH_MAX);
    let name_width = (f64::from(name_width) * NAME_ROOM) as i32;
    canvas::draw(&heading, &Legend::new(&[]), height, |sheet, top| {
        for (row, name) in names.iter().enumerate() {
            let at = (MARGIN + name_width, middle(top, row));
            sheet.draw_text(&style::fit(&name_text, name, NAME_WIDTH_MAX), &name_text, at).map_err(broken)?;
        }
        let left = MARGIN + name_width + COLUMN_GAP;
        let pitch = (WIDTH - MARGIN - left) / FIGURES.len() as i32;
        for (index, figure) in FIGURES.iter().enumerate() {
            let column = Column { left: left + pitch * index as i32, top, width: pitch - COLUMN_GAP, figure };
            column.draw(sheet, operation, variants)?;
        }
        Ok(())
    })
}

fn middle(top: i32, row: usize) -> i32 {
    top + HEAD + ROW * row as i32 + ROW / 2
}

/// A figure's place on the sheet.
struct Column {
    left: i32,
    top: i32,
    width: i32,
    figure: &'static Figure,
}

impl Column {
    fn draw(&self, sheet: &Sheet<'_>, operation: &str, variants: &[Variant<'_>]) -> Result<()> {
        let value = self.figure.value;
        let figures: Vec<Option<Spread>> = variants
            .iter()
            .map(|variant| variant.spread(|run| run.operation(operation).and_then(|operation| value(run, operation))))
            .collect();
        let max = figures.iter().flatten().map(|spread| spread.max).fold(0.0, f64::max);
        let axis = Axis::from_zero("", max, 2);
        self.draw_frame(sheet, &axis, max, variants.len())?;
        for (row, (variant, figure)) in variants.iter().zip(figures).enumerate() {
            self.draw_bar(sheet, row, variant.is_void(), figure, max)?;
        }
        Ok(())
    }

    /// Where a value lies.
    fn at(&self, value: f64, max: f64) -> i32 {
        let share = if max > 0.0 { value / max } else { 0.0 };
        self.left + (f64::from(self.width) * BAR_SHARE * share).round() as i32
    }

    fn draw_frame(&self, sheet: &Sheet<'_>, axis: &Axis, max: f64, rows: usize) -> Result<()> {
        let title = style::bold(13.0, style::INK);
        sheet.draw_text(self.figure.title, &title, (self.left, self.top)).map_err(broken)?;
        let unit = style::text(12.0, style::PALE_INK);
        sheet.draw_text(self.figure.unit, &unit, (self.left, self.top + 18)).map_err(broken)?;
        let (top, bottom) = (self.top + HEAD - 2, self.top + HEAD + ROW * rows as i32 + 2);
        let tick_text = style::anchored(style::text(11.0, style::PALE_INK), HPos::Center, VPos::Top);
        for (value, _) in axis.ticks.iter().filter(|(value, _)| *value <= max) {
            let x = self.at(*value, max);
            let colour = if *value > 0.0 { style::PALE_GRID } else { style::INK };
            sheet.draw(&PathElement::new(vec![(x, top), (x, bottom)], colour)).map_err(broken)?;
            let label = if *value > 0.0 { (self.figure.text)(*value) } else { "0".to_owned() };
            sheet.draw_text(&label, &tick_text, (x, bottom + 3)).map_err(broken)?;
        }
        Ok(())
    }

    fn draw_bar(&self, sheet: &Sheet<'_>, row: usize, is_void: bool, figure: Option<Spread>, max: f64) -> Result<()> {
        let y = middle(self.top, row);
        let text = style::anchored(style::text(12.0, style::INK), HPos::Left, VPos::Center);
        let Some(spread) = figure else {
            return sheet.draw_text(NONE, &text, (self.left + 5, y)).map_err(broken);
        };
        let corners = [(self.left, y - BAR / 2), (self.at(spread.median, max), y + BAR / 2)];
        let fill = if is_void { WHITE.filled() } else { style::BAR.filled() };
        sheet.draw(&Rectangle::new(corners, fill)).map_err(broken)?;
        sheet.draw(&Rectangle::new(corners, style::BAR_EDGE.stroke_width(1))).map_err(broken)?;
        if spread.max > spread.min {
            let (low, high) = (self.at(spread.min, max), self.at(spread.max, max));
            let lines = [[(low, y), (high, y)], [(low, y - 4), (low, y + 4)], [(high, y - 4), (high, y + 4)]];
            for line in lines {
                sheet.draw(&PathElement::new(line.to_vec(), style::INK.stroke_width(2))).map_err(broken)?;
            }
        }
        let figure = (self.figure.text)(spread.median);
        sheet.draw_text(&figure, &text, (self.at(spread.max, max) + 6, y)).map_err(broken)
    }
}
