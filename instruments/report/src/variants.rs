//! The runs of outcomes, grouped by what is compared: a workload's variants, each with its repetitions.
#![allow(clippy::disallowed_methods, reason = "histogram logs are files of the results folder")]

use crate::histogram::read_histogram;
use crate::schema::{Operation, Outcome, Run};
use crate::units::figure;
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use std::path::{Component, Path};

/// Pictures tell of failures from this share of the requests on.
const FAILURES_TOLD: f64 = 0.001;

/// What is shown together: the variants that ran one workload.
pub(crate) struct Comparison<'a> {
    /// Its name in [`Outcome::workloads`].
    pub(crate) workload: String,
    /// In the order in which they were first measured.
    pub(crate) variants: Vec<Variant<'a>>,
}

/// The repetitions of one variant.
#[derive(Clone)]
pub(crate) struct Variant<'a> {
    pub(crate) name: String,
    /// The folder with their histogram logs.
    folder: &'a Path,
    pub(crate) runs: Vec<&'a Run>,
}

/// A figure over repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The comparisons of outcomes, each with its folder. If there are several, their variants' names begin with their
/// letters ([`letter`]).
pub(crate) fn comparisons<'a>(outcomes: &[(&'a Path, &'a Outcome)]) -> Vec<Comparison<'a>> {
    let mut comparisons: Vec<Comparison<'a>> = Vec::new();
    for (index, (folder, outcome)) in outcomes.iter().copied().enumerate() {
        let prefix = if outcomes.len() > 1 { format!("{} ", letter(index)) } else { String::new() };
        for run in &outcome.runs {
            let at = comparisons.iter().position(|it| it.workload == run.workload).unwrap_or_else(|| {
                comparisons.push(Comparison { workload: run.workload.clone(), variants: Vec::new() });
                comparisons.len() - 1
            });
            let variants = &mut comparisons[at].variants;
            let name = format!("{prefix}{}", run.variant);
            match variants.iter_mut().find(|variant| variant.name == name) {
                Some(variant) => variant.runs.push(run),
                None => variants.push(Variant { name, folder, runs: vec![run] }),
            }
        }
    }
    comparisons
}

/// Says which of the variants had requests of an operation that failed, unless that were hardly any.
pub(crate) fn failures(variants: &[Variant<'_>], operation: &str) -> Option<String> {
    let share = |variant: &Variant<'_>| {
        let operations = || variant.counted().filter_map(|run| run.operation(operation));
        let failed: u64 = operations().map(|it| it.errors + it.timeouts).sum();
        failed as f64 / operations().map(|it| it.count).sum::<u64>().max(1) as f64
    };
    let shares = variants.iter().map(|variant| (variant, share(variant))).filter(|(_, share)| *share >= FAILURES_TOLD);
    let told: Vec<String> =
        shares.map(|(variant, share)| format!("{} {} %", variant.name, figure(share * 100.0))).collect();
    (!told.is_empty()).then(|| format!("Failed or timed out: {}.", told.join(", ")))
}

/// What stands for the outcome `index` where several are compared: A, B, ..., Z, A1, ...
pub(crate) fn letter(index: usize) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let letter = char::from(ALPHABET[index % ALPHABET.len()]);
    let round = index / ALPHABET.len();
    if round == 0 { letter.to_string() } else { format!("{letter}{round}") }
}

impl<'a> Comparison<'a> {
    /// The variants that have figures of an operation.
    pub(crate) fn variants_with(&self, operation: &str) -> Vec<Variant<'a>> {
        let has = |variant: &&Variant<'a>| variant.runs.iter().any(|run| run.operation(operation).is_some());
        self.variants.iter().filter(has).cloned().collect()
    }

    /// The names of all operations, in the order of their first appearance.
    pub(crate) fn operations(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for operation in self.variants.iter().flat_map(|variant| &variant.runs).flat_map(|run| &run.operations) {
            if !names.contains(&operation.name) {
                names.push(operation.name.clone());
            }
        }
        names
    }
}

impl Variant<'_> {
    /// Whether none of its runs means anything.
    pub(crate) fn is_void(&self) -> bool {
        self.runs.iter().all(|run| run.void.is_some())
    }

    pub(crate) fn void_count(&self) -> usize {
        self.runs.iter().filter(|run| run.void.is_some()).count()
    }

    /// Its name, with a remark if its figures mean nothing.
    pub(crate) fn label(&self) -> String {
        if self.is_void() { format!("{} (VOID)", self.name) } else { self.name.clone() }
    }

    /// The runs that count: those that are not void. Where all are, all are shown, as void.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Run> {
        let is_void = self.is_void();
        self.runs.iter().copied().filter(move |run| is_void || run.void.is_none())
    }

    /// A figure over the runs that count; `None` if none of them has it.
    pub(crate) fn spread(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.counted().filter_map(figure).filter(|value| value.is_finite()).collect())
    }

    /// A figure of one operation over the runs that count.
    pub(crate) fn operation_spread(
        &self,
        operation: &str,
        figure: impl Fn(&Operation) -> Option<f64>,
    ) -> Option<Spread> {
        self.spread(|run| run.operation(operation).and_then(&figure))
    }

    /// The histograms of an operation, one for each run that counts and whose log is there.
    pub(crate) fn histograms(&self, operation: &str) -> Result<Vec<Histogram<u64>>> {
        let operations = self.counted().filter_map(|run| run.operation(operation));
        let mut histograms = Vec::new();
        for operation in operations.filter(|operation| !operation.histogram.is_empty()) {
            let relative = Path::new(&operation.histogram);
            let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(is_below, "the histogram {:?} is not below the results folder", operation.histogram);
            let path = self.folder.join(relative);
            if path.exists() {
                histograms.push(read_histogram(&path)?);
            }
        }
        Ok(histograms)
    }
}

impl Run {
    /// The figures of an operation.
    pub(crate) fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// Requests that ended, in whatever way.
    pub(crate) fn request_count(&self) -> u64 {
        self.operations.iter().map(|operation| operation.count).sum()
    }

    /// CPU microseconds of all servers for each request; `None` where that is not known.
    pub fn server_cpu_us_per_request(&self) -> Option<f64> {
        let is_known = !self.server_cpu_s.is_empty() && self.request_count() > 0;
        is_known.then(|| self.server_cpu_s.values().sum::<f64>() * 1e6 / self.request_count() as f64)
    }

    /// CPU microseconds of the generator for each request.
    pub fn generator_cpu_us_per_request(&self) -> Option<f64> {
        (self.request_count() > 0).then(|| self.generator_cpu_s * 1e6 / self.request_count() as f64)
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(variant: &str, workload: &str, achieved_per_s: f64, void: bool) -> Run {
        let void = void.then(|| "the generator was late".to_owned());
        Run { variant: variant.into(), workload: workload.into(), achieved_per_s, void, ..Run::default() }
    }

    #[test]
    fn runs_are_grouped_and_void_ones_left_out() {
        let runs = vec![
            run("a", "get", 10.0, false),
            run("b", "get", 20.0, true),
            run("a", "put", 1.0, false),
            run("a", "get", 14.0, false),
            run("b", "get", 22.0, false),
            run("a", "get", 99.0, true),
        ];
        let outcome = Outcome { runs, ..Outcome::default() };
        let comparisons = comparisons(&[(Path::new(""), &outcome)]);
        let names: Vec<_> = comparisons.iter().map(|it| (it.workload.as_str(), it.variants.len())).collect();
        assert_eq!(names, [("get", 2), ("put", 1)]);
        let spread = |index: usize| comparisons[0].variants[index].spread(|run| Some(run.achieved_per_s)).unwrap();
        assert_eq!(spread(0), Spread { median: 12.0, min: 10.0, max: 14.0 });
        assert_eq!(spread(1), Spread { median: 22.0, min: 22.0, max: 22.0 });
        assert_eq!(comparisons[0].variants[1].void_count(), 1);
    }

    #[test]
    fn a_variant_of_void_runs_shows_them_and_says_so() {
        let outcome = Outcome { runs: vec![run("a", "get", 10.0, true)], ..Outcome::default() };
        let comparisons = comparisons(&[(Path::new(""), &outcome)]);
        let variant = &comparisons[0].variants[0];
        assert_eq!(variant.label(), "a (VOID)");
        assert_eq!(variant.spread(|run| Some(run.achieved_per_s)).map(|it| it.median), Some(10.0));
    }

    #[test]
    fn several_outcomes_keep_their_letters() {
        let outcome = Outcome { runs: vec![run("a", "get", 10.0, false)], ..Outcome::default() };
        let both = comparisons(&[(Path::new("x"), &outcome), (Path::new("y"), &outcome)]);
        assert_eq!(both[0].variants.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["A a", "B a"]);
        assert_eq!([letter(0), letter(25), letter(26)], ["A", "Z", "A1"]);
    }

    #[test]
    fn a_histogram_outside_the_folder_is_not_read() {
        let mut run = run("a", "get", 10.0, false);
        run.operations.push(Operation {
            name: "get".into(),
            histogram: "../other.hlog".into(),
            ..Operation::default()
        });
        let outcome = Outcome { runs: vec![run], ..Outcome::default() };
        let comparisons = comparisons(&[(Path::new("x"), &outcome)]);
        let error = comparisons[0].variants[0].histograms("get").unwrap_err().to_string();
        assert_eq!(error, r#"the histogram "../other.hlog" is not below the results folder"#);
    }
}
