//! `hedgerow-sim-mutations`: takes away one safety rule after the other and checks that the simulation fails each time.
//!
//! Prints for each rule the number of seeds until the first failure. Exit code 1 if a rule's absence went unnoticed.

use clap::Parser;
use hedgerow_sim::batch::{Batch, run_all};
use hedgerow_sim::mutation::Mutation;
use hedgerow_sim::run::{Report, Request, run};
use std::ops::ControlFlow;
use std::process::ExitCode;

/// A history allocates and frees small buffers all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Checks that the simulation notices the absence of each safety rule.
#[derive(Debug, Parser)]
#[command(name = "hedgerow-sim-mutations", version)]
struct Arguments {
    /// Seeds within which each absence must show.
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "S")]
    start: u64,
    /// Threads; one per core if left out.
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = arguments.jobs.unwrap_or(cores);
    let mut unnoticed = 0;
    for mutation in Mutation::ALL {
        let request = Request { scenario: mutation.scenario(), ..Request::default() };
        let batch = Batch { before: &[], start: arguments.start, count: arguments.seeds, request, jobs };
        match first_failure(mutation, batch)? {
            Some(report) => {
                let (seed, scenario) = (report.request.seed, report.plan.scenario.name());
                let failure = report.failure.unwrap_or_default();
                let what = failure.lines().next().unwrap_or_default();
                let count = seed + 1 - arguments.start;
                println!(
                    "without {:<20} noticed within {count} seeds: seed {seed} ({scenario}): {what}",
                    mutation.name()
                );
            }
            None => {
                unnoticed += 1;
                println!("without {:<20} NOT NOTICED within {} seeds", mutation.name(), arguments.seeds);
            }
        }
    }
    println!("mutations: {} passed, {unnoticed} failed", Mutation::ALL.len() - unnoticed);
    Ok(if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first run that fails without the rule and is good with it.
fn first_failure(mutation: Mutation, mut batch: Batch) -> std::io::Result<Option<Report>> {
    loop {
        mutation.set(true);
        let mut found: Option<Report> = None;
        run_all(&batch, |report| {
            if report.failure.is_none() {
                return ControlFlow::Continue(());
            }
            found = Some(report);
            ControlFlow::Break(())
        })?;
        mutation.set(false);
        let Some(report) = found else { return Ok(None) };
        let seed = report.request.seed;
        if run(report.request).failure.is_none() {
            return Ok(Some(report));
        }
        println!("seed {seed} fails whether or not rule {} is there", mutation.name());
        batch.count = (batch.start + batch.count).saturating_sub(seed + 1);
        batch.start = seed + 1;
    }
}
