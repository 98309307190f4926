//! `./x engines`: RocksDB beside the pure Rust crate `lsm-tree`, at the same sizes, in turns on the same disk.
//!
//! Both stand below the same thin layer of rows in memory. The store's own engine, which is RocksDB below a layer that can more, runs
//! too, so that one sees what that layer changes.
//!
//! A run loads all rows, lets compactions come to rest, reads and writes in four mixes, writes all rows again, compacts everything, takes a
//! checkpoint, and opens what it has closed. The engines take turns, and who begins changes with every round; ratios are those of
//! runs of one round.
#![allow(clippy::disallowed_methods, reason = "this program measures the real operating system")]

mod bare;
mod layer;
mod lsm;
mod mixed;
mod report;
mod rocks;
mod rows;
mod run;
mod store;
#[cfg(test)]
mod tests;
mod usage;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum, value_parser};
use report::Results;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `./x engines`.
#[derive(Clone, Debug, Parser)]
#[command(name = "engines", bin_name = "./x engines", max_term_width = 110)]
/// Compares storage engines: RocksDB, the crate lsm-tree, and the store's own engine over RocksDB
struct Arguments {
    /// A directory on the disk to measure; a folder is made there and removed again. Needs three times the rows' size
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// How many rows there are
    #[arg(long, default_value_t = 300_000, value_parser = value_parser!(u64).range(10_000..=1_000_000_000))]
    rows: u64,
    /// Bytes of a value; half of them can be compressed
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(16..=1_000_000))]
    value_size: u32,
    /// Block cache of each engine, MiB
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u32).range(1..=65_536))]
    cache_mib: u32,
    /// What a flush writes, MiB
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=1_024))]
    flush_mib: u32,
    /// Gets and puts per second where the rate is fixed, of both threads together
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Seconds that each mix of gets and puts lasts
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// How many times everything runs
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Leave in the system's memory what it holds of the files; otherwise it is made to forget them before each mix
    #[arg(long)]
    warm: bool,
    /// Have the system read ahead of RocksDB's reads too, as it does for lsm-tree's; the store does not
    #[arg(long)]
    read_ahead: bool,
    /// Only these engines
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Contender>,
    /// A file for all figures of all runs
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Rows of a batch, as many as one of the node's rounds often applies.
const BATCH_ROWS: u64 = 32;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Contender {
    Rocksdb,
    LsmTree,
    Store,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Rocksdb, Self::LsmTree, Self::Store];

    const fn name(self) -> &'static str {
        match self {
            Self::Rocksdb => "RocksDB",
            Self::LsmTree => "lsm-tree",
            Self::Store => "the store's engine",
        }
    }
}

/// What both engines are given.
#[derive(Clone, Copy, Debug)]
struct Settings {
    cache_size: usize,
    flush_size: u64,
    /// Only for RocksDB: the system reads more than it is asked for.
    reads_ahead: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.directory.is_dir(), "{} is no directory", arguments.directory.display());
    let mut results = Results::default();
    for round in 0..arguments.rounds {
        let mut order = Contender::ALL;
        if round % 2 == 1 {
            order.reverse();
        }
        for contender in order.into_iter().filter(|one| arguments.only.is_empty() || arguments.only.contains(one)) {
            let begun = Instant::now();
            let figures = run::run(contender, &arguments, u64::from(round))?;
            eprintln!(
                "round {} of {}: {} took {:.0} s",
                round + 1,
                arguments.rounds,
                contender.name(),
                begun.elapsed().as_secs_f64()
            );
            results.add(contender, figures);
            // After each, so that what was measured is kept if a later run fails.
            if let Some(path) = &arguments.json {
                std::fs::write(path, results.json(&arguments)?)?;
            }
        }
    }
    println!("{}", results.table(&arguments));
    Ok(())
}
