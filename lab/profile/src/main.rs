//! `./x profile`: where the time of an operation goes, in the servers and in the client, and what it costs in CPU time,
//! allocations and system calls. docs/profiling.md says how to read the results.
//!
//! One run of `hedgerow bench` against three processes passes through phases, so that no measurement disturbs another:
//! first nothing is attached, then stacks are sampled, then system calls are counted.
#![allow(clippy::disallowed_methods, reason = "this program measures processes of the real operating system")]

mod calls;
mod folder;
mod load;
mod perf;
mod process;
mod sampler;
mod stacks;
mod summary;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use hedgerow_testkit::{Cluster, Settings};
use load::{Benchmark, Window};
use process::{Process, Role};
use stacks::Stacks;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use summary::{Cost, Summary};

const NODE_COUNT: usize = 3;
/// Seconds of load besides the phases, for what tools need to start and to attach on a busy machine. The load is ended when
/// it is no longer needed.
const SPARE_SECONDS: u64 = 120;

/// Arguments of `./x profile`.
#[derive(Debug, Parser)]
#[command(name = "profile", bin_name = "./x profile", max_term_width = 110)]
struct Arguments {
    /// What the client does: put, get, mix, another workload's name, or a workload's TOML file.
    workload: String,
    /// How long each of the three phases takes, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The folder for the results; must not exist [default: a new one below ./results].
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Do as if perf were missing.
    #[arg(long)]
    no_perf: bool,
    /// The `hedgerow` binary, built with the feature `profiling`.
    #[arg(long, env = "HEDGEROW_BIN", hide = true)]
    binary: PathBuf,
    /// Further arguments of `hedgerow bench`, after `--`.
    #[arg(last = true)]
    bench: Vec<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        !arguments.bench.iter().any(|argument| argument.starts_with("--seconds")),
        "--seconds is the profiler's own: it goes before the `--`"
    );
    let folder = folder::create(arguments.results.as_deref(), &arguments.workload)?;
    let summary = profile(&arguments, &folder)?;
    let text = summary.text();
    folder::write(&folder.join("summary.txt"), text.as_bytes())?;
    println!("{text}\nresults: {}", folder.display());
    Ok(())
}

fn profile(arguments: &Arguments, folder: &Path) -> Result<Summary> {
    let phase = Duration::from_secs(arguments.seconds);
    let binary = arguments.binary.canonicalize().context("looking for the binary that HEDGEROW_BIN names")?;
    say(&format!("starting {NODE_COUNT} nodes"));
    let mut cluster = Cluster::start_with(Settings::of_binary(binary.clone(), NODE_COUNT))?;
    let seconds = 3 * arguments.seconds + SPARE_SECONDS;
    say(&format!("{}: preparing the load", arguments.workload));
    let load = Benchmark::start(&binary, &cluster.addresses(), &arguments.workload, seconds, &arguments.bench, folder)?;
    load.wait_until_measuring()?;

    let mut processes = Vec::new();
    for number in cluster.numbers() {
        processes.push(Process::open(Role::Node(number), cluster.node(number)?.id())?);
    }
    for id in process::family(load.id())? {
        processes.push(Process::open(Role::Client, id)?);
    }

    say(&format!("{} s with nothing attached: CPU time and allocations", phase.as_secs()));
    let (quiet, costs) = measure_costs(&mut processes, &load, phase)?;
    say(&format!("{} s of sampling stacks", phase.as_secs()));
    let (sampling, stacks) = sample_stacks(&mut processes, phase, arguments.no_perf, folder)?;
    say(&format!("{} s of counting system calls", phase.as_secs()));
    let calls = calls::count(&processes, phase, arguments.no_perf);
    let progress = load.finish(Instant::now())?;
    cluster.stop()?;

    let calls = match calls {
        Ok(calls) => Ok((progress.rate_in(calls.window)? * calls.window.seconds(), calls)),
        Err(error) => Err(format!("{error:#}")),
    };
    stacks.draw(folder, &arguments.workload)?;
    Ok(Summary {
        workload: arguments.workload.clone(),
        quiet_seconds: quiet.seconds(),
        quiet_operations: progress.rate_in(quiet)? * quiet.seconds(),
        sampling_rate: progress.rate_in(sampling)?,
        costs,
        stacks,
        calls,
    })
}

/// What every process spends in at least `phase`.
fn measure_costs(processes: &mut [Process], load: &Benchmark, phase: Duration) -> Result<(Window, Vec<Cost>)> {
    let begin = load.wait_for_line();
    let before = processes.iter_mut().map(Process::usage).collect::<Result<Vec<_>>>()?;
    sleep(phase);
    let window = Window { begin, end: load.wait_for_line() };
    let mut costs = Vec::new();
    for (process, before) in processes.iter_mut().zip(before) {
        costs.push(Cost { role: process.role, usage: process.usage()?.since(before) });
    }
    Ok((window, costs))
}

/// With perf, or else with the sampler that the processes carry.
fn sample_stacks(
    processes: &mut [Process],
    phase: Duration,
    is_perf_missing: bool,
    folder: &Path,
) -> Result<(Window, Stacks)> {
    let recorded = if is_perf_missing {
        Err(anyhow!("it is not to be used"))
    } else {
        perf::sample(processes, phase, &folder.join("perf.data"))
    };
    recorded.or_else(|error| {
        say(&format!("without perf ({error:#}): the processes sample themselves"));
        sampler::sample(processes, phase)
    })
}

fn say(text: &str) {
    eprintln!("profile: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_understood() {
        for mut call in hedgerow_testkit::calls_of_x("profile").expect("documents") {
            // The script tells it by the environment.
            call.splice(1..1, ["--binary".to_owned(), "hedgerow".to_owned()]);
            Arguments::try_parse_from(&call).unwrap_or_else(|error| panic!("{call:?}: {error}"));
        }
    }
}
