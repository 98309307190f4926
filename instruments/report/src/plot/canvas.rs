//! What all pictures share: the sheet with its heading and legend, and panels with axes, lines and markers.

use super::axis::Axis;
use super::style::{self, Look, Marker};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::ops::Range;

/// Where a picture, or a part of it, is drawn. Places are pixels.
pub(super) type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Pixel = (i32, i32);

/// Width of every picture in pixels.
pub(super) const WIDTH: i32 = 1_100;
/// Free space at the edges of a picture.
pub(super) const MARGIN: i32 = 18;
const WEAK_OPACITY: f64 = 0.65;
const BAND_OPACITY: f64 = 0.13;
const SHADE_OPACITY: f64 = 0.30;
/// Free space right of a panel, for half a label.
pub(super) const PANEL_RIGHT: i32 = 30;
/// Free space above a panel.
const PANEL_GAP: i32 = 6;
const LEGEND_ROW: i32 = 22;
const LEGEND_SAMPLE: i32 = 40;
const LEGEND_GAP: i32 = 26;

/// The text above a picture.
pub(super) struct Heading {
    pub(super) title: String,
    pub(super) remarks: Vec<String>,
    pub(super) alarms: Vec<String>,
}

impl Heading {
    /// In pixels.
    pub(super) fn height(&self) -> i32 {
        MARGIN + 28 + 18 * (self.remarks.len() + self.alarms.len()) as i32 + 6
    }

    fn draw(&self, sheet: &Sheet<'_>) -> Result<()> {
        let title = style::bold(19.0, style::INK);
        let width = WIDTH - 2 * MARGIN;
        sheet.draw_text(&style::fit(&title, &self.title, width), &title, (MARGIN, MARGIN)).map_err(broken)?;
        let remarks = self.remarks.iter().map(|remark| (remark, style::PALE_INK));
        let lines = remarks.chain(self.alarms.iter().map(|alarm| (alarm, style::ALARM)));
        for (index, (line, colour)) in lines.enumerate() {
            let text = style::text(13.0, colour);
            let at = (MARGIN, MARGIN + 28 + 18 * index as i32);
            sheet.draw_text(&style::fit(&text, line, width), &text, at).map_err(broken)?;
        }
        Ok(())
    }
}

/// The names of series with how they look, in rows.
pub(super) struct Legend {
    /// Each with its left end and its row.
    entries: Vec<(i32, i32, String, Look)>,
}

impl Legend {
    pub(super) fn new(names: &[String]) -> Self {
        let text = style::text(13.0, style::INK);
        let width_max = WIDTH - 2 * MARGIN;
        let mut entries = Vec::new();
        let (mut left, mut row) = (0, 0);
        for (index, name) in names.iter().enumerate() {
            let name = style::fit(&text, name, width_max - LEGEND_SAMPLE - 8);
            let width = LEGEND_SAMPLE + 8 + style::width(&text, &name);
            if left > 0 && left + width > width_max {
                (left, row) = (0, row + 1);
            }
            entries.push((left, row, name, style::look(index)));
            left += width + LEGEND_GAP;
        }
        Self { entries }
    }

    /// In pixels.
    pub(super) fn height(&self) -> i32 {
        self.entries.last().map_or(0, |(_, row, _, _)| (row + 1) * LEGEND_ROW + 6)
    }

    fn draw(&self, sheet: &Sheet<'_>, top: i32) -> Result<()> {
        let text = style::anchored(style::text(13.0, style::INK), HPos::Left, VPos::Center);
        for (left, row, name, look) in &self.entries {
            let (left, middle) = (MARGIN + left, top + row * LEGEND_ROW + LEGEND_ROW / 2);
            stroke(sheet, vec![(left, middle), (left + LEGEND_SAMPLE, middle)], look, Emphasis::Full)?;
            mark(sheet, (left + LEGEND_SAMPLE / 2, middle), look)?;
            sheet.draw_text(name, &text, (left + LEGEND_SAMPLE + 8, middle)).map_err(broken)?;
        }
        Ok(())
    }
}

/// Draws a picture: the heading, the legend below it, and `paint` for the rest, which is told where the rest begins.
pub(super) fn draw(
    heading: &Heading,
    legend: &Legend,
    body_height: i32,
    paint: impl FnOnce(&Sheet<'_>, i32) -> Result<()>,
) -> Result<String> {
    let top = heading.height() + legend.height();
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, (top + body_height) as u32);
        let sheet = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        sheet.fill(&WHITE).map_err(broken)?;
        heading.draw(&sheet)?;
        legend.draw(&sheet, heading.height())?;
        paint(&sheet, top)?;
        sheet.present().map_err(broken)?;
    }
    Ok(described(&svg, &heading.title))
}

/// The picture with a name for people who hear it.
fn described(svg: &str, title: &str) -> String {
    let name = crate::page::escape(title);
    match svg.split_once('>') {
        Some((tag, rest)) => format!("{tag} role=\"img\"><title>{name}</title>{rest}"),
        None => svg.to_owned(),
    }
}

/// How strongly a line is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Emphasis {
    /// What counts.
    Full,
    /// What is shown with reservation.
    Weak,
}

/// Draws a series' line.
fn stroke(sheet: &Sheet<'_>, points: Vec<Pixel>, look: &Look, emphasis: Emphasis) -> Result<()> {
    let line = match emphasis {
        Emphasis::Full => look.colour.stroke_width(2),
        Emphasis::Weak => look.colour.mix(WEAK_OPACITY).stroke_width(1),
    };
    match look.dash {
        None => sheet.draw(&PathElement::new(points, line)),
        Some((size, gap)) => sheet.draw(&DashedPathElement::new(points, size, gap, line)),
    }
    .map_err(broken)
}

/// Draws a series' marker.
fn mark(sheet: &Sheet<'_>, at: Pixel, look: &Look) -> Result<()> {
    let filled = look.colour.filled();
    let around = |offsets: [Pixel; 4]| offsets.map(|(x, y)| (at.0 + x, at.1 + y));
    match look.marker {
        Marker::Disc => sheet.draw(&Circle::new(at, 4, filled)),
        Marker::Square => sheet.draw(&Rectangle::new([(at.0 - 4, at.1 - 4), (at.0 + 4, at.1 + 4)], filled)),
        Marker::Triangle => sheet.draw(&TriangleMarker::new(at, 6, filled)),
        Marker::Ring => {
            sheet.draw(&Circle::new(at, 4, WHITE.filled())).map_err(broken)?;
            sheet.draw(&Circle::new(at, 4, look.colour.stroke_width(2)))
        }
        Marker::Diamond => sheet.draw(&Polygon::new(around([(0, -6), (6, 0), (0, 6), (-6, 0)]), filled)),
        Marker::Cross => sheet.draw(&Cross::new(at, 4, look.colour.stroke_width(2))),
    }
    .map_err(broken)
}

/// An axis as the library asks for it.
struct Coordinate {
    range: Range<f64>,
    ticks: Vec<f64>,
    lines: Vec<f64>,
}

impl Coordinate {
    fn of(axis: &Axis) -> Self {
        let ticks = axis.ticks.iter().map(|(at, _)| *at).collect();
        Self { range: axis.range.clone(), ticks, lines: axis.lines.clone() }
    }
}

impl Ranged for Coordinate {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): Pixel) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        low + (f64::from(high - low) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.lines.clone() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// A part of a sheet with axes.
pub(super) struct Panel<'a, 'b> {
    sheet: &'a Sheet<'b>,
    chart: ChartContext<'a, SVGBackend<'b>, Cartesian2d<Coordinate, Coordinate>>,
}

/// Where a panel lies on its sheet: its upper left corner, and its size with the labels of its axes.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) width: i32,
    pub(super) height: i32,
    /// Pixels left of the axis, for its labels.
    pub(super) labels_left: i32,
    /// Pixels below the axis, for its labels; 0 leaves them out.
    pub(super) labels_below: i32,
}

impl<'a, 'b> Panel<'a, 'b> {
    /// Draws the axes.
    pub(super) fn new(sheet: &'a Sheet<'b>, place: Frame, x: &Axis, y: &Axis) -> Result<Self> {
        let part = sheet.clone().shrink((place.left, place.top), (place.width, place.height));
        let mut builder = ChartBuilder::on(&part);
        builder.x_label_area_size(place.labels_below).y_label_area_size(place.labels_left);
        builder.margin_right(PANEL_RIGHT).margin_top(PANEL_GAP);
        let mut chart = builder.build_cartesian_2d(Coordinate::of(x), Coordinate::of(y)).map_err(broken)?;
        let (label_x, label_y) = (|at: &f64| x.label(*at), |at: &f64| y.label(*at));
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(style::GRID)
            .light_line_style(style::PALE_GRID)
            .axis_style(style::INK)
            .x_label_formatter(&label_x)
            .y_label_formatter(&label_y)
            .label_style(style::text(13.0, style::INK))
            .axis_desc_style(style::text(13.0, style::INK))
            .set_all_tick_mark_size(4)
            .y_desc(&y.title);
        if place.labels_below > 0 {
            mesh.x_desc(&x.title);
        }
        mesh.draw().map_err(broken)?;
        Ok(Self { sheet, chart })
    }

    fn pixels(&self, points: &[(f64, f64)]) -> Vec<Pixel> {
        points.iter().map(|point| self.chart.backend_coord(point)).collect()
    }

    /// A series' line. One of a single point is not seen; its marker is.
    pub(super) fn line(&self, points: &[(f64, f64)], look: &Look, emphasis: Emphasis) -> Result<()> {
        stroke(self.sheet, self.pixels(points), look, emphasis)
    }

    /// The area between two lines over the same places, in a pale shade of the series' colour.
    pub(super) fn band(&self, low: &[(f64, f64)], high: &[(f64, f64)], look: &Look) -> Result<()> {
        let around: Vec<(f64, f64)> = low.iter().chain(high.iter().rev()).copied().collect();
        self.sheet.draw(&Polygon::new(self.pixels(&around), look.colour.mix(BAND_OPACITY))).map_err(broken)
    }

    /// A shade over the whole height, from one place of the horizontal axis to another; it is a pixel wide at least.
    pub(super) fn shade(&self, begin: f64, end: f64) -> Result<()> {
        let range = self.chart.y_range();
        let (left, top) = self.chart.backend_coord(&(begin, range.end));
        let (right, bottom) = self.chart.backend_coord(&(end, range.start));
        let corners = [(left, top), (right.max(left + 1), bottom)];
        self.sheet.draw(&Rectangle::new(corners, style::SHADE.mix(SHADE_OPACITY).filled())).map_err(broken)
    }

    /// One of very many points.
    pub(super) fn dot(&self, at: (f64, f64), look: &Look) -> Result<()> {
        let dot = Circle::new(self.chart.backend_coord(&at), 1, look.colour.filled());
        self.sheet.draw(&dot).map_err(broken)
    }

    /// A series' marker.
    pub(super) fn mark(&self, at: (f64, f64), look: &Look) -> Result<()> {
        mark(self.sheet, self.chart.backend_coord(&at), look)
    }
}

/// The library's errors are not fit for sending; drawing into memory has none that anybody could act on.
pub(super) fn broken(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing a plot: {error}")
}
