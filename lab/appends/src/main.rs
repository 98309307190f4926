//! `./x appends`: what a durable append costs, the write-ahead log beside the crate raft-engine and beside `fio`, which writes and syncs
//! and does nothing else.
//!
//! Two shapes. *Writers*: so many threads, each with a group of its own, append one entry, wait until it is durable, and go on. *Rounds*: one
//! thread appends one entry to each of so many groups and waits until all are durable, as a node does. All that is compared runs in
//! turn, so that a disk whose speed changes meanwhile changes it for all; ratios are those of runs that followed each other.
#![allow(clippy::disallowed_methods, reason = "this program measures the real operating system")]

mod figures;
mod fio;
mod hedgerow;
mod raft_engine;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum, value_parser};
use figures::{Figures, Spread};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `./x appends`.
#[derive(Debug, Parser)]
#[command(name = "appends", bin_name = "./x appends", max_term_width = 110)]
/// Compares durable appends: Hedgerow's log, raft-engine, and fio
struct Arguments {
    /// A directory on the disk to measure; a folder is made there and removed again
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Threads that append, for each row of the first table
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_parser = value_parser!(u16).range(1..=1_024))]
    writers: Vec<u16>,
    /// Groups that one thread serves, for each row of the second table
    #[arg(long, value_delimiter = ',', default_values_t = [4, 16, 64], value_parser = value_parser!(u16).range(1..=1_024))]
    groups: Vec<u16>,
    /// What an append waits for: its sync, or no more than that the operating system has it
    #[arg(long, value_enum, default_value = "fsync")]
    durability: Durability,
    /// Seconds that each run is measured, after two that are not
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How many times everything runs
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    repetitions: u32,
}

/// Bytes of an entry.
const ENTRY_SIZE: usize = 1_000;
/// How long each run goes before it is measured: segments are used again by then.
const WARM_UP: Duration = Duration::from_secs(2);
/// Entries of a group that stay when the older ones are cut off.
const KEPT: u64 = 256;

/// What an append waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Durability {
    Fsync,
    Os,
}

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    /// So many threads, one entry each at a time.
    Writers(u16),
    /// One thread, one entry for each of so many groups at a time.
    Rounds(u16),
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contender {
    Hedgerow,
    RaftEngine,
    /// Only writers: each job has a file of its own.
    Fio,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Hedgerow, Self::RaftEngine, Self::Fio];

    const fn name(self) -> &'static str {
        match self {
            Self::Hedgerow => "Hedgerow",
            Self::RaftEngine => "raft-engine",
            Self::Fio => "fio",
        }
    }

    const fn takes(self, shape: Shape) -> bool {
        !matches!((self, shape), (Self::Fio, Shape::Rounds(_)))
    }

    /// What Hedgerow should reach of it where all wait for their syncs.
    const fn target(self, shape: Shape) -> Option<f64> {
        match (self, shape) {
            (Self::Fio, Shape::Writers(1 | 4)) => Some(0.85),
            (Self::Fio, Shape::Writers(16)) => Some(0.9),
            (Self::RaftEngine, Shape::Writers(16)) => Some(1.3),
            (Self::RaftEngine, Shape::Rounds(_)) => Some(1.5),
            _ => None,
        }
    }

    fn run(self, shape: Shape, arguments: &Arguments) -> Result<Figures> {
        let directory = tempfile::Builder::new().prefix("appends-").tempdir_in(&arguments.directory)?;
        let (durability, measured) = (arguments.durability, Duration::from_secs(arguments.seconds));
        match self {
            Self::Hedgerow => hedgerow::run(shape, directory.path(), durability, measured),
            Self::RaftEngine => raft_engine::run(shape, directory.path(), durability, measured),
            Self::Fio => fio::run(shape, directory.path(), durability, measured),
        }
        .with_context(|| format!("{}, {shape:?}", self.name()))
    }
}

type Results = BTreeMap<(Shape, Contender), Vec<Figures>>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.directory.is_dir(), "{} is no directory", arguments.directory.display());
    let writers = arguments.writers.iter().map(|count| Shape::Writers(*count));
    let shapes: Vec<Shape> = writers.chain(arguments.groups.iter().map(|count| Shape::Rounds(*count))).collect();
    let runs: Vec<(Shape, Contender)> = shapes
        .iter()
        .flat_map(|shape| Contender::ALL.map(|one| (*shape, one)))
        .filter(|(shape, one)| one.takes(*shape))
        .collect();
    let bar = ProgressBar::new(runs.len() as u64 * u64::from(arguments.repetitions));
    bar.set_style(ProgressStyle::with_template("{pos} of {len} runs, {eta} left: {msg}")?);
    let mut results = Results::new();
    for _ in 0..arguments.repetitions {
        for (shape, contender) in &runs {
            bar.set_message(format!("{}, {shape:?}", contender.name()));
            let figures = contender.run(*shape, &arguments)?;
            results.entry((*shape, *contender)).or_default().push(figures);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let waits_for = match arguments.durability {
        Durability::Fsync => "each synced before it counts",
        Durability::Os => "each given to the operating system before it counts",
    };
    println!("Appends of {ENTRY_SIZE} bytes, {waits_for}; median (least-most) of {} runs.\n", arguments.repetitions);
    println!("| who | what | per second | p50 us | p99 us | Hedgerow / it | target |");
    println!("|---|---|---|---|---|---|---|");
    for (shape, contender) in runs {
        let target = contender.target(shape).filter(|_| arguments.durability == Durability::Fsync);
        println!("{}", row(&results, shape, contender, target));
    }
    Ok(())
}

fn row(results: &Results, shape: Shape, contender: Contender, target: Option<f64>) -> String {
    let figures = &results[&(shape, contender)];
    let who = match shape {
        Shape::Writers(count) => format!("{count} writers"),
        Shape::Rounds(count) => format!("rounds of {count} groups"),
    };
    let spread = |of: fn(&Figures) -> f64| Spread::of(figures.iter().map(of));
    let ours = &results[&(shape, Contender::Hedgerow)];
    let ratio = Spread::of(ours.iter().zip(figures).map(|(ours, it)| ours.per_second / it.per_second));
    let target = target.map_or(String::new(), |target| {
        format!(">= {target}: {}", if ratio.median >= target { "met" } else { "MISSED" })
    });
    let ratio = if contender == Contender::Hedgerow { String::new() } else { format!("{ratio:.2}") };
    let (p50, p99) = (spread(|it| it.p50_us), spread(|it| it.p99_us));
    format!(
        "| {who} | {} | {:.0} | {p50:.0} | {p99:.0} | {ratio} | {target} |",
        contender.name(),
        spread(|it| it.per_second)
    )
}
