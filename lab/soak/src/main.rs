//! `hedgerow-soak`: real `hedgerow serve` processes under faults, real clients, and the simulator's judges.
//! `docs/testing-real-processes.md` says more.
//!
//! | file | idea |
//! |---|---|
//! | `run.rs` | a run from beginning to end |
//! | `plan.rs`, `nemesis.rs`, `gate.rs`, `whole.rs` | what goes wrong; doing it; partitions; whether all is well again |
//! | `workload.rs`, `worker.rs`, `value.rs` | what is asked, by whom, with which values |
//! | `book.rs`, `closing.rs` | requests under way, episodes and their ends |
//! | `judge.rs`, `fresh.rs` | verdicts |
//! | `watch.rs`, `usage.rs` | lines of progress; memory and descriptors over time |

mod book;
mod closing;
mod fresh;
mod gate;
mod judge;
mod nemesis;
mod plan;
mod run;
mod usage;
mod value;
mod watch;
mod whole;
mod worker;
mod workload;

use anyhow::{Context as _, Result};
use clap::Parser;
use run::{Failure, Outcome, Request};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Exit codes:
  0  every promise was kept
  1  a promise was broken, or the cluster did not come back; the history is kept
  2  the command line is not right
  3  every promise was kept, but memory, descriptors or threads grow
  5  interrupted; every promise was kept until then";

/// Loads real processes, kills, freezes and cuts them off, and judges all that clients see.
///
/// Faults are made for a minute and then none for a minute, in turns. Without MINUTES each kind of fault is made once.
#[derive(Debug, Parser)]
#[command(name = "hedgerow-soak", version, after_help = HELP)]
struct Arguments {
    /// How long.
    #[arg(value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: Option<u64>,
    /// Which faults happen when, and what is asked. Real processes do not repeat themselves, so that a seed finds a
    /// failure again only perhaps.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes, 3 replicas of each partition among them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=9))]
    nodes: u16,
    /// Clients, each with one request at a time.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// The longest pause between two requests of a client, in milliseconds.
    #[arg(long, default_value_t = 20)]
    think: u64,
    /// Where the nodes' data is, which is removed in the end; a place for temporary files without it.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where the history and the nodes' output of a run that failed are kept; a place for temporary files without it.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let request = Request {
        seed: arguments.seed,
        time: arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60)),
        nodes: usize::from(arguments.nodes),
        clients: arguments.clients,
        think_max: Duration::from_millis(arguments.think),
        base: arguments.data,
    };
    match run::run(&request) {
        Ok(outcome) => Ok(report(&outcome)),
        Err(failure) => {
            let keep = arguments.keep.unwrap_or_else(|| std::env::temp_dir().join("hedgerow-soak"));
            let path = keep_failure(&keep, arguments.seed, &failure)?;
            let why = format!("{:#}", failure.why);
            // A history is long; its verdict stands before the first empty line.
            eprintln!("FAILED: {}", why.split("\n\n").next().unwrap_or_default());
            eprintln!("the history and what the nodes printed: {}", path.display());
            println!("soak: 0 passed, 1 failed");
            Ok(ExitCode::from(1))
        }
    }
}

fn report(outcome: &Outcome) -> ExitCode {
    let Outcome { counts, faults, served, remembered, grows, is_interrupted } = outcome;
    let made: Vec<String> = faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
    println!("faults: {}", made.join(", "));
    let served: Vec<String> = served.iter().map(|(way, count)| format!("{way} {count}")).collect();
    println!("reads outside of plain handles: {}", served.join(", "));
    println!(
        "{} operations, {} failed and {} with an unknown outcome among them; {} episodes judged, {remembered} records read again in the \
         end, all replicas equal",
        counts.all(),
        counts.failed,
        counts.unknown,
        counts.judged,
    );
    println!("soak: 1 passed, 0 failed");
    ExitCode::from(match (grows, is_interrupted) {
        (_, true) => 5,
        (true, false) => 3,
        (false, false) => 0,
    })
}

#[allow(clippy::disallowed_methods, reason = "the one file that it writes")]
fn keep_failure(folder: &Path, seed: u64, failure: &Failure) -> Result<PathBuf> {
    let path = folder.join(format!("seed-{seed}.txt"));
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let text = format!("{:#}\n\n{}", failure.why, failure.output);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_understood() {
        for call in hedgerow_testkit::calls_of_x("soak").expect("documents") {
            // To ask for help is an "error" that ends well.
            if let Err(error) = Arguments::try_parse_from(&call).map_err(|it| (it.exit_code(), it)) {
                assert_eq!(error.0, 0, "{call:?}: {}", error.1);
            }
        }
    }
}
