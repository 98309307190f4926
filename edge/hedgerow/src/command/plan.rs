//! `hedgerow plan`: from measured latencies and a budget, how to hedge, and what that would bring.

mod advice;
mod input;

use crate::exit::Exit;
use crate::files;
use crate::hedging::share;
use crate::output::{Output, columns, print_result, say};
use advice::{Advice, Target};
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_faults::units;
use hedgerow_hedge::tradeoff::{Distribution, Goal, Percentiles, Point};
use hedgerow_report::Tradeoff;
use input::{Choice, Samples, Unit};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hedgerow plan results/bench-get-20261122T101500Z
  hedgerow plan service.hlog --tag GET --unit us --budget 1% --target p99
  hedgerow plan latencies.txt --unit ms --correlation 0.3 --out plan
  hedgerow bench get --rate 2000 --hedge \"$(hedgerow plan run.hlog --output json | jq -r .policy)\"

Input, told apart by what is in it:
  a results folder of bench or experiment
  an HdrHistogram log (V2, base64), as any HdrHistogram library writes it; values in ns unless --unit says otherwise
  plain text: a latency a line, or a latency and how often it was seen; 12.5ms, or 12.5 with --unit ms";

/// Arguments of `plan`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArguments {
    /// Latencies of requests that were not hedged: a results folder, an HdrHistogram log, or plain text; - is standard input.
    latencies: PathBuf,
    /// Latencies of second attempts, where another kind of server answers those [default: the same].
    #[arg(long, value_name = "FILE")]
    hedge: Option<PathBuf>,
    /// What the numbers in the input are [default: ns in HdrHistogram logs; plain text has none].
    #[arg(long, value_enum)]
    unit: Option<Unit>,
    /// The tag of the intervals of a log, if it has several; (none) for those without.
    #[arg(long)]
    tag: Option<String>,
    /// The operation of a results folder [default: get, or the only one].
    #[arg(long)]
    operation: Option<String>,
    /// The variant of a results folder, if it has several.
    #[arg(long)]
    variant: Option<String>,
    /// Most extra requests, as a share of the first ones.
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = share)]
    budget: f64,
    /// The percentile that is to become as short as possible: p99, p99.9 or p99.99.
    #[arg(long, value_name = "PERCENTILE", default_value = "p99.9")]
    target: Target,
    /// The share, 0 to 1, of slow requests that are slow at whichever server: 0 where servers stall independently, 1 where the
    /// requests themselves are large.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = correlation)]
    correlation: f64,
    /// Draw what each budget would bring, as tradeoff.svg and tradeoff.png in this folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn correlation(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
}

/// `hedgerow plan`.
pub(crate) fn run(arguments: &PlanArguments) -> Result<Exit> {
    let choice = Choice {
        unit: arguments.unit,
        tag: arguments.tag.clone(),
        operation: arguments.operation.clone(),
        variant: arguments.variant.clone(),
    };
    let samples = input::read(&arguments.latencies, &choice)?;
    let mut distribution = distribution(&samples)?;
    if let Some(path) = &arguments.hedge {
        distribution = distribution.with_second(&self::distribution(&input::read(path, &choice)?)?);
    }
    let goal = Goal {
        max_extra_load: arguments.budget,
        correlation: arguments.correlation,
        percentile: arguments.target.percentile(),
    };
    let advice = Advice::of(&distribution, goal, arguments.target)?;
    let picture = arguments.out.as_deref().map(|folder| draw(&advice, &samples, folder)).transpose()?;
    print_result(arguments.output, || text(&advice, &samples), || json(&advice, &samples))?;
    if let Some(picture) = picture {
        say(&format!("picture: {} (and .png)", picture.display()));
    }
    Ok(Exit::Done)
}

fn distribution(samples: &Samples) -> Result<Distribution> {
    let buckets = samples.counts.iter().map(|(nanoseconds, count)| (*nanoseconds, *count));
    Distribution::from_buckets(buckets).context("all latencies are 0: is the unit right (--unit)?")
}

/// A latency of each percentile, or n/a where too few samples lie above.
fn cells(percentiles: Percentiles, count: u64) -> Vec<String> {
    let Percentiles { p50, p99, p999, p9999 } = percentiles;
    let cell = |(target, latency): (Target, Duration)| {
        if target.is_known_from(count) { show(latency) } else { "n/a".to_owned() }
    };
    let rest = [(Target::P99, p99), (Target::P999, p999), (Target::P9999, p9999)].map(cell);
    std::iter::once(show(p50)).chain(rest).collect()
}

/// A latency to three digits, which is more than it is known to.
fn show(latency: Duration) -> String {
    let nanoseconds = latency.as_nanos() as u64;
    let scale = 10_u64.pow(nanoseconds.checked_ilog10().unwrap_or(0).saturating_sub(2));
    units::show(Duration::from_nanos((nanoseconds + scale / 2) / scale * scale))
}

fn percent(share: f64) -> String {
    let text = format!("{:.3}", 100.0 * share);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn text(advice: &Advice, samples: &Samples) -> String {
    let goal = &advice.goal;
    let mut lines = vec![
        format!("latencies: {}, {} samples", samples.source, samples.count()),
        format!(
            "goal: lowest {} at {} extra requests at most, correlation {}",
            advice.target.name(),
            percent(goal.max_extra_load),
            goal.correlation
        ),
        format!("recommended: --hedge {}", advice.best.policy),
    ];
    if !advice.best.delay.is_zero() {
        let share = match advice.best.probability {
            all if all >= 0.99 => String::new(),
            some => format!(", to {} of those that are open by then", percent(some)),
        };
        lines.push(format!("  a second request after {}{share}", show(advice.best.delay)));
    }
    lines.push(String::new());
    let row = |name: &str, extra_load: f64, percentiles: Percentiles| {
        let mut row = vec![name.to_owned(), percent(extra_load)];
        row.extend(cells(percentiles, samples.count()));
        row
    };
    let mut rows = vec![
        row("not hedged, as measured", 0.0, advice.best.before),
        row(&format!("recommended: {}", advice.best.policy), advice.best.extra_load, advice.best.after),
    ];
    rows.extend(advice.compared.iter().map(|(name, point)| row(name, point.extra_load, point.after)));
    lines.push(columns(&["expected", "extra", "p50", "p99", "p99.9", "p99.99"], &rows));
    if !advice.hints.is_empty() {
        lines.push(String::new());
    }
    lines.extend(advice.hints.iter().map(|hint| format!("note: {hint}")));
    lines.join("\n")
}

fn json(advice: &Advice, samples: &Samples) -> Value {
    let count = samples.count();
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    let percentiles = |it: Percentiles| {
        let known = |target: Target, latency: Duration| target.is_known_from(count).then(|| us(latency));
        json!({
            "p50_us": us(it.p50),
            "p99_us": known(Target::P99, it.p99),
            "p999_us": known(Target::P999, it.p999),
            "p9999_us": known(Target::P9999, it.p9999),
        })
    };
    let point = |point: &Point| {
        json!({
            "max_extra_load": point.max_extra_load,
            "extra_load": point.extra_load,
            "delay_us": us(point.delay),
            "probability": point.probability,
            "after": percentiles(point.after),
        })
    };
    let compared: Vec<Value> = advice
        .compared
        .iter()
        .map(|(name, compared)| {
            let mut json = point(compared);
            json["name"] = name.as_str().into();
            json
        })
        .collect();
    json!({
        "source": samples.source,
        "samples": count,
        "budget": advice.goal.max_extra_load,
        "target": advice.target.name(),
        "correlation": advice.goal.correlation,
        "policy": advice.best.policy,
        "delay_us": us(advice.best.delay),
        "probability": advice.best.probability,
        "extra_load": advice.best.extra_load,
        "before": percentiles(advice.best.before),
        "after": percentiles(advice.best.after),
        "compared": compared,
        "curve": advice.curve.iter().map(point).collect::<Vec<_>>(),
        "notes": advice.hints,
    })
}

/// Draws the trade-off into `folder`; where the picture is.
fn draw(advice: &Advice, samples: &Samples, folder: &Path) -> Result<PathBuf> {
    let tradeoff = Tradeoff {
        title: "What hedging costs and brings".to_owned(),
        remarks: vec![
            format!("{}, {} samples", samples.source, samples.count()),
            format!(
                "Expected, if for each budget the second request is sent when that makes {} lowest; correlation {}.",
                advice.target.name(),
                advice.goal.correlation
            ),
        ],
        lines: advice.lines(samples.count()),
        chosen: (!advice.best.delay.is_zero()).then_some(advice.best.extra_load),
        budget: advice.goal.max_extra_load,
    };
    let (svg, png) = tradeoff.draw()?;
    files::make_directory(folder)?;
    let path = folder.join("tradeoff.svg");
    files::replace(&path, svg.as_bytes())?;
    files::replace(&path.with_extension("png"), &png)?;
    Ok(path)
}

#[cfg(test)]
mod tests;
