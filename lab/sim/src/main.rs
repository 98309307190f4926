//! `hedgerow-sim`: runs simulated clusters by the seed and says what broke, with the command that replays it.
//!
//! Exit code 0: every run was good. 1: a run failed. 2: nothing could be run as asked, or a history not be written.

use anyhow::Context;
use clap::Parser;
use hedgerow_env::os::{OsClock, OsDisk};
use hedgerow_env::{Clock, Disk, OpenMode};
use hedgerow_sim::batch::{Batch, run_all};
use hedgerow_sim::engine::EngineKind;
use hedgerow_sim::export::json_lines;
use hedgerow_sim::fanout;
use hedgerow_sim::regressions::SEEDS;
use hedgerow_sim::run::{Report, Request, run};
use hedgerow_sim::scenario::Scenario;
use hedgerow_sim::stats::Stats;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A history allocates and frees small buffers all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs whole clusters in virtual time and judges what their clients saw.
#[derive(Debug, Parser)]
#[command(name = "hedgerow-sim", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100, value_name = "N")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, value_name = "S")]
    start: u64,
    /// Before them, runs all seeds that failed once.
    #[arg(long, conflicts_with_all = ["seed", "nodes", "scenario", "engine"])]
    regressions: bool,
    /// Runs this seed alone and prints its history hash.
    #[arg(long, value_name = "X", conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Machines: 3 to 5; drawn from the seed if left out. Where there are learners, at least 4.
    #[arg(long, value_parser = clap::value_parser!(u8).range(3..=5))]
    nodes: Option<u8>,
    /// The kind of run, by name; drawn from the seed if left out. `list` lists them.
    #[arg(long)]
    scenario: Option<String>,
    /// Makes every run one of 100,000 operations and more (otherwise one seed in 1,000 is).
    #[arg(long)]
    long: bool,
    /// The storage engine, `memory` or `rocksdb`; drawn from the seed if left out.
    #[arg(long)]
    engine: Option<String>,
    /// With --seed: prints everything that happens.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// With --seed: writes the history as JSON lines, in the form that src/export.rs describes.
    #[arg(long, value_name = "FILE", requires = "seed")]
    export_history: Option<PathBuf>,
    /// Threads; one per core if left out.
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Goes on after failures, until so many.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    failures_max: u64,
    /// Takes a safety rule away, by the name under which `hedgerow-sim-mutations` lists it (only in a build with the
    /// feature `mutations`).
    #[arg(long)]
    mutation: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads over 100 modelled servers, as in "The Tail at Scale", under every policy.
    Fanout {
        /// Everything follows from it.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Requests for each policy, 100 reads each.
        #[arg(long, default_value_t = 50_000, value_name = "N")]
        requests: u64,
        /// Writes the table as CSV, too.
        #[arg(long, value_name = "FILE")]
        csv: Option<PathBuf>,
    },
}

/// Exit code when nothing was judged.
const NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    attempt(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(NOT_RUN)
    })
}

fn attempt(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(Command::Fanout { seed, requests, csv }) = &arguments.command {
        return fan_out(*seed, *requests, csv.as_deref());
    }
    if arguments.scenario.as_deref() == Some("list") {
        Scenario::ALL.iter().for_each(|scenario| println!("{}", scenario.name()));
        return Ok(ExitCode::SUCCESS);
    }
    mutate(arguments)?;
    let scenario = match &arguments.scenario {
        Some(name) => Some(Scenario::from_name(name).with_context(|| format!("there is no scenario {name:?}"))?),
        None => None,
    };
    let machine_count = arguments.nodes.map(usize::from);
    let engine = match &arguments.engine {
        Some(name) => Some(EngineKind::from_name(name).with_context(|| format!("there is no engine {name:?}"))?),
        None => None,
    };
    let (is_long, is_traced) = (arguments.long, arguments.trace);
    let request = Request { scenario, machine_count, is_long, engine, is_traced, ..Request::default() };
    match arguments.seed {
        Some(seed) => run_one(Request { seed, ..request }, arguments),
        None => run_many(request, arguments),
    }
}

fn fan_out(seed: u64, requests: u64, csv: Option<&Path>) -> anyhow::Result<ExitCode> {
    let rows: Vec<fanout::Row> = fanout::variants().into_iter().map(|variant| variant.run(seed, requests)).collect();
    print!("{}", fanout::table(&rows));
    if let Some(path) = csv {
        write(path, fanout::csv(&rows).as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_one(request: Request, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if request.is_traced {
        trace_nodes();
    }
    let report = run(request);
    if let Some(path) = &arguments.export_history {
        write(path, json_lines(&report.history).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", report.stats);
    println!("history     {} operations, hash {:016x}", report.history.operations().len(), report.hash);
    match &report.failure {
        Some(failure) => {
            println!("seed {} ({}) FAILED: {failure}", request.seed, report.plan.scenario.name());
            Ok(ExitCode::FAILURE)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Shows what the nodes log, between the lines of the simulation's own trace.
fn trace_nodes() {
    let filter = tracing_subscriber::EnvFilter::new("debug");
    tracing_subscriber::fmt().with_env_filter(filter).without_time().with_target(false).with_ansi(false).init();
}

/// Runs many seeds of what `request` says otherwise.
fn run_many(request: Request, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let jobs = match arguments.jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let before = if arguments.regressions { SEEDS } else { &[] };
    let batch = Batch { before, start: arguments.start, count: arguments.seeds, request, jobs };
    let clock = OsClock;
    let begin = clock.now();
    let (mut stats, mut failures) = (Stats::default(), 0);
    let mut next_progress = 10;
    run_all(&batch, |report| {
        stats.add(&report.stats);
        let elapsed = clock.now().since(begin).as_secs();
        if elapsed >= next_progress {
            next_progress = elapsed + 10;
            eprintln!("{} of {} seeds after {elapsed} s", stats.runs, batch.total());
        }
        if let Some(failure) = &report.failure {
            failures += 1;
            println!("seed {} ({}) FAILED: {failure}", report.request.seed, report.plan.scenario.name());
            println!("replay: {}", replay_command(&report, arguments));
        }
        if failures >= arguments.failures_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let seconds = clock.now().since(begin).as_secs_f64();
    println!("{stats}");
    println!("time        {seconds:.1} s, {:.1} seeds per second on {jobs} threads", stats.runs as f64 / seconds);
    println!("simulation: {} passed, {failures} failed", stats.runs - failures);
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay_command(report: &Report, arguments: &Arguments) -> String {
    let mut command = format!("./x sim --seed {}", report.request.seed);
    if let Some(scenario) = report.request.scenario {
        command += &format!(" --scenario {}", scenario.name());
    }
    if let Some(count) = report.request.machine_count {
        command += &format!(" --nodes {count}");
    }
    if report.request.is_long {
        command += " --long";
    }
    if let Some(engine) = report.request.engine {
        command += &format!(" --engine {}", engine.name());
    }
    if let Some(mutation) = &arguments.mutation {
        command += &format!(" --mutation {mutation}");
    }
    command + " --trace"
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    OsDisk.open(path, OpenMode::Create)?.write_at(0, bytes)
}

#[cfg(feature = "mutations")]
fn mutate(arguments: &Arguments) -> anyhow::Result<()> {
    use hedgerow_sim::mutation::Mutation;
    if let Some(name) = &arguments.mutation {
        Mutation::from_name(name).with_context(|| format!("there is no mutation {name:?}"))?.set(true);
    }
    Ok(())
}

#[cfg(not(feature = "mutations"))]
fn mutate(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.mutation {
        Some(_) => {
            anyhow::bail!("this build keeps all safety rules; build with `-p hedgerow-sim --features mutations`")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_understood() {
        for call in hedgerow_testkit::calls_of_x("sim").expect("documents") {
            // To ask for help is an "error" that ends well.
            if let Err(error) = Arguments::try_parse_from(&call).map_err(|it| (it.exit_code(), it)) {
                assert_eq!(error.0, 0, "{call:?}: {}", error.1);
            }
        }
    }
}
