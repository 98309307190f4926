//! `hedgerow-crash`: takes down every file operation of the real engine and the real log, builds the directories that a
//! crash may leave at each moment, opens each and checks that nothing is missing. `docs/crash.md` says more.
//!
//! Exit code 1 if a state fails.

mod disk;
mod flaw;
mod image;
mod recorder;
mod replica;
mod run;
mod scenario;
mod storage;
mod trace;
mod wal;

use clap::Parser;
use run::{Plan, State};
use scenario::Scenario;
use std::path::PathBuf;
use std::process::ExitCode;

/// Builds what power failures and kills can leave of the engine's and the log's files, opens each and checks it.
#[derive(Debug, Parser)]
#[command(name = "hedgerow-crash", version)]
struct Arguments {
    /// What is driven; everything without it.
    #[arg(long, value_enum)]
    scenario: Option<Scenario>,
    /// Chooses the states and how writes are torn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// States that are chosen in each scenario. Equal ones are looked at once; all are chosen if there are no more.
    #[arg(long, default_value_t = 3_000)]
    samples: usize,
    /// So many of the states are lived on in by another recorded process, of which every crash is looked at in turn, with
    /// as many samples for each.
    #[arg(long, default_value_t = 10)]
    again: usize,
    /// How long the recorded process works: a round is a flush, or a write of the log.
    #[arg(long)]
    rounds: Option<u64>,
    /// Uses this trace, kept by a run that failed, instead of a new one. Say the same scenario, rounds and seed.
    #[arg(long, value_name = "FILE", requires = "scenario")]
    trace: Option<PathBuf>,
    /// Looks only at this state, as a failing run named it.
    #[arg(long, value_name = "MOMENT.CHOICE", requires = "trace")]
    state: Option<State>,
    /// Where the traces of failing runs are kept; a place for temporary files without it.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Only for the process that is recorded: its trace and the directory that it works in.
    #[arg(long, hide = true, num_args = 2, value_names = ["FILE", "DIR"], requires = "scenario")]
    record: Option<Vec<PathBuf>>,
    /// Only for a process that is recorded when it goes on after a crash: what others had been told before.
    #[arg(long, hide = true, requires = "record")]
    told: Vec<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let scenarios = arguments.scenario.map_or(Scenario::ALL.to_vec(), |scenario| vec![scenario]);
    let rounds = |scenario: Scenario| arguments.rounds.unwrap_or_else(|| scenario.usual_rounds());
    if let (Some([trace, root]), [scenario]) = (arguments.record.as_deref(), &scenarios[..]) {
        recorder::begin(root, trace, &arguments.told)?;
        if arguments.told.is_empty() {
            scenario.drive(root, rounds(*scenario))?;
        } else {
            scenario.live_on(root)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (mut passed, mut failed) = (0, 0);
    for scenario in scenarios {
        let plan = Plan {
            seed: arguments.seed,
            samples: arguments.samples,
            again: arguments.again,
            rounds: rounds(scenario),
            trace: arguments.trace.clone(),
            state: arguments.state,
            keep: arguments.keep.clone().unwrap_or_else(|| std::env::temp_dir().join("hedgerow-crash")),
        };
        if run::run(scenario, &plan)? { passed += 1 } else { failed += 1 }
    }
    println!("crash: {passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_understood() {
        for call in hedgerow_testkit::calls_of_x("crash").expect("documents") {
            // To ask for help is an "error" that ends well.
            if let Err(error) = Arguments::try_parse_from(&call).map_err(|it| (it.exit_code(), it)) {
                assert_eq!(error.0, 0, "{call:?}: {}", error.1);
            }
        }
    }
}
