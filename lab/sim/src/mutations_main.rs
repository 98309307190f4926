//! `hedgerow-sim-mutations`: takes away one safety rule after the other and checks that the simulation fails each time.
//!
//! Prints for each rule the number of seeds until the first failure. Exit code 1 if a rule's absence went unnoticed.

use clap::Parser;
use hedgerow_sim::batch::{Batch, run_all};
use hedgerow_sim::mutation::Mutation;
use std::ops::ControlFlow;
use std::process::ExitCode;

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
    let batch = Batch { start: arguments.start, count: arguments.seeds, scenario: None, machine_count: None, jobs };
    let mut unnoticed = 0;
    for mutation in Mutation::ALL {
        mutation.set(true);
        let (mut runs, mut found) = (0, None);
        run_all(&batch, |report| {
            runs += 1;
            match report.failure {
                Some(failure) => {
                    found = Some((report.request.seed, report.plan.scenario.name(), failure));
                    ControlFlow::Break(())
                }
                None => ControlFlow::Continue(()),
            }
        })?;
        mutation.set(false);
        match found {
            Some((seed, scenario, failure)) => {
                let what = failure.lines().next().unwrap_or_default();
                println!(
                    "without {:<14} noticed after {runs} seeds: seed {seed} ({scenario}): {what}",
                    mutation.name()
                );
            }
            None => {
                unnoticed += 1;
                println!("without {:<14} NOT NOTICED in {runs} seeds", mutation.name());
            }
        }
    }
    Ok(if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
