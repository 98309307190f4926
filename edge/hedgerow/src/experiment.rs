//! `hedgerow experiment`: named experiments that start their own clusters, and the list of them.

use crate::exit::Exit;
use crate::output::{Output, print, print_result, say};
use crate::runtime;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_experiment::{Ending, Entry, Event, Finished, Options, Size};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The name that asks for the list.
const LIST: &str = "list";

/// Arguments of `hedgerow experiment`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExperimentArguments {
    /// The experiment, by its name or its short one such as X1; `list` shows what there is, what each needs and how long it takes.
    name: String,
    /// A smoke run of less than a minute. Its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Turns of each variant [default: 3, with --quick 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Rows of the table, for experiments on one large table [default: the experiment's own].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    rows: Option<u64>,
    /// Only these groups of variants.
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder that gets a folder of results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
    /// Where the clusters keep their data while the experiment runs [default: the system's temporary folder].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How tables are printed.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// `hedgerow experiment NAME` and `hedgerow experiment list`.
pub(crate) fn run(arguments: ExperimentArguments) -> Result<Exit> {
    let options = Options {
        size: if arguments.quick { Size::Quick } else { Size::Full },
        repetitions: arguments.repetitions,
        rows: arguments.rows,
        seed: arguments.seed,
        only: arguments.only,
        results: arguments.results,
        data: arguments.data,
        binary: std::env::current_exe().context("finding this binary")?,
        command: std::env::args().collect(),
    };
    if arguments.name == LIST {
        let entries = hedgerow_experiment::list(&options);
        print_result(arguments.output, || list_text(&entries), || entries.iter().map(entry_json).collect())?;
        return Ok(Exit::Done);
    }
    let finished = runtime::block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let interrupted = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        hedgerow_experiment::run(&arguments.name, &options, interrupted, |event| show(&event)).await
    })?;
    print_outcome(&finished, arguments.output)?;
    Ok(exit(&finished, options.size))
}

fn show(event: &Event) {
    match event {
        Event::Step { what, done, total, left } => {
            say(&format!("[{}/{total}, {} left] {what}", done + 1, duration_text(*left)));
        }
        Event::Remark(remark) => say(remark),
    }
}

fn print_outcome(finished: &Finished, output: Output) -> Result<()> {
    let outcome = &finished.outcome;
    match output {
        Output::Text => {
            let figures = outcome.figures();
            for table in figures.iter().chain(&outcome.tables).filter(|table| !table.rows.is_empty()) {
                print(&format!("{}\n", table.text()))?;
            }
        }
        Output::Json => print(&serde_json::to_string(outcome).context("an outcome has a JSON form")?)?,
    }
    for check in &outcome.checks {
        say(&format!("{}: {} ({})", if check.has_passed { "ok" } else { "NOT SO" }, check.name, check.detail));
    }
    say(&format!("results: {}", finished.folder.path().display()));
    Ok(())
}

/// A quick run only has to get to its end: on a busy machine its short runs are often void.
fn exit(finished: &Finished, size: Size) -> Exit {
    match &finished.ending {
        Ending::Failed(_) => Exit::Refused,
        Ending::Interrupted => Exit::Partial,
        Ending::Complete if size == Size::Full && finished.outcome.runs.iter().any(|run| run.void.is_some()) => {
            Exit::Void
        }
        Ending::Complete => Exit::Done,
    }
}

fn list_text(entries: &[Entry]) -> String {
    let text = |entry: &Entry| {
        let about = &entry.description;
        format!(
            "{}{}: {}\n  needs   {}\n  takes   about {}; with --quick about {}\n  groups  {}",
            about.name,
            entry.identifier.map_or_else(String::new, |identifier| format!(" ({identifier})")),
            about.question,
            about.needs,
            duration_text(entry.expected),
            duration_text(entry.expected_quick),
            entry.groups.join(", ")
        )
    };
    entries.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

fn entry_json(entry: &Entry) -> Value {
    json!({
        "name": entry.description.name,
        "identifier": entry.identifier,
        "question": entry.description.question,
        "needs": entry.description.needs,
        "expected_s": entry.expected.as_secs(),
        "expected_quick_s": entry.expected_quick.as_secs(),
        "groups": entry.groups,
    })
}

/// A time for people, to the second.
fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_for_people() {
        let texts = [0, 59, 61, 3_599, 7_380].map(|seconds| duration_text(Duration::from_secs(seconds)));
        assert_eq!(texts, ["0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 3 min"]);
    }

    #[test]
    fn the_list_says_what_is_needed_and_how_long_it_takes() {
        let options = Options {
            size: Size::Full,
            repetitions: None,
            rows: None,
            seed: 1,
            only: Vec::new(),
            results: PathBuf::new(),
            data: None,
            binary: PathBuf::new(),
            command: Vec::new(),
        };
        let text = list_text(&hedgerow_experiment::list(&options));
        assert!(text.contains("scale: what more partitions"), "{text}");
        for part in
            ["\n  needs   ", "\n  takes   about ", "with --quick about ", "\n  groups  partitions, rows, connections"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
