//! Plots: which pictures belong to outcomes. Each kind of picture has a file of its own below this one.
//!
//! A picture is drawn once, as SVG; the PNG is the same picture rasterised, with a font that the program carries.

mod acts;
mod axis;
mod bars;
mod canvas;
mod over;
mod percentiles;
mod raster;
mod style;
mod timeline;
mod tradeoff;

pub use acts::{Act, draw_acts};
pub(crate) use raster::png;
pub use tradeoff::Tradeoff;

use crate::schema::Outcome;
use crate::variants::{Comparison, Variant, comparisons};
use anyhow::Result;
use std::path::Path;

/// A drawn picture.
pub(crate) struct Picture {
    /// The stem of its file's name; it tells the pictures of one outcome apart.
    pub(crate) name: String,
    /// The workload whose runs it shows.
    pub(crate) workload: String,
    pub(crate) svg: String,
    /// Whether it repeats another picture for a further repetition, and may stand further back.
    pub(crate) is_further_repetition: bool,
}

/// All pictures of outcomes that are shown together, each with its folder.
pub(crate) fn pictures(outcomes: &[(&Path, &Outcome)]) -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    let comparisons = comparisons(outcomes);
    for row in over::rows(&comparisons) {
        for (part, variants) in parts(&row.variants(), style::SERIES_MAX) {
            let svg = row.draw(&part, variants)?;
            let (name, workload) = (format!("by-{}{}", row.name, part.suffix()), row.workload().to_owned());
            pictures.push(Picture { name, workload, svg, is_further_repetition: false });
        }
    }
    for comparison in comparisons {
        pictures.extend(operation_pictures(&comparison, "percentiles", style::SERIES_MAX, percentiles::draw)?);
        pictures.extend(operation_pictures(&comparison, "comparison", bars::VARIANTS_MAX, bars::draw)?);
        pictures.extend(timeline_pictures(&comparison)?);
    }
    Ok(pictures)
}

/// Draws variants of one workload and operation.
type Draw = fn(&str, &str, &Part, &[Variant<'_>]) -> Result<String>;

/// A picture, or more where there are many variants, of each operation.
fn operation_pictures(
    comparison: &Comparison<'_>,
    kind: &str,
    variants_max: usize,
    draw: Draw,
) -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    for operation in comparison.operations() {
        for (part, variants) in parts(&comparison.variants_with(&operation), variants_max) {
            let svg = draw(&comparison.workload, &operation, &part, variants)?;
            pictures.push(picture(comparison, &format!("{kind}-{operation}"), &part, svg));
        }
    }
    Ok(pictures)
}

fn timeline_pictures(comparison: &Comparison<'_>) -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    let repetitions = comparison.variants.iter().map(|variant| variant.runs.len()).max().unwrap_or(0);
    for index in 0..repetitions {
        for (part, variants) in parts(&comparison.variants, style::SERIES_MAX) {
            let runs = variants.iter().map(|variant| variant.runs.get(index).copied());
            let names = variants.iter().map(|variant| variant.name.as_str());
            let shown: Vec<_> = names.zip(runs).filter_map(|(name, run)| Some((name, run?))).collect();
            if shown.iter().all(|(_, run)| run.timeline.is_empty()) {
                continue;
            }
            let svg = timeline::draw(&comparison.workload, index + 1, &part, &shown)?;
            let picture = picture(comparison, &format!("timeline-{}", index + 1), &part, svg);
            pictures.push(Picture { is_further_repetition: index > 0, ..picture });
        }
    }
    Ok(pictures)
}

fn picture(comparison: &Comparison<'_>, kind: &str, part: &Part, svg: String) -> Picture {
    let name = format!("{}-{kind}{}", comparison.workload, part.suffix());
    Picture { name, workload: comparison.workload.clone(), svg, is_further_repetition: false }
}

/// One of several pictures over which variants are spread that would not fit into one.
pub(super) struct Part {
    index: usize,
    count: usize,
}

impl Part {
    /// For the name of a file.
    fn suffix(&self) -> String {
        if self.count == 1 { String::new() } else { format!("-part{}", self.index + 1) }
    }

    /// For a heading.
    fn remark(&self) -> String {
        if self.count == 1 { String::new() } else { format!(" (part {} of {})", self.index + 1, self.count) }
    }
}

/// The variants in groups of about the same size, of `size_max` at most.
fn parts<T>(variants: &[T], size_max: usize) -> Vec<(Part, &[T])> {
    let count = variants.len().div_ceil(size_max);
    let size = variants.len().div_ceil(count.max(1)).max(1);
    let count = variants.len().div_ceil(size);
    variants.chunks(size).enumerate().map(|(index, chunk)| (Part { index, count }, chunk)).collect()
}
