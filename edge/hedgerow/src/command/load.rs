//! `hedgerow load`: puts the rows of a file into a table.
//!
//! ```text
//! thread: reads and parses ──chunks──► deals rows out by key ──► lanes: one request in flight each
//!                                              │                      │
//!                                              └──── tracker ◄────────┘  how far everything is done
//! ```
//!
//! All rows of a hash key go through one lane, in the order of the file, so that the last of several rows with one key
//! wins and loading a file again changes nothing. The tracker knows up to which line everything is done; that line is what
//! the progress file remembers.

mod lanes;
mod tracker;

use crate::any_table::AnyTable;
use crate::cluster::{BULK_TIMEOUT, ClusterArguments};
use crate::duration::seconds;
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::files;
use crate::number::time_to_live;
use crate::output::{counted, print_result, say};
use crate::rows::{Format, Item, Reader, Shape};
use crate::runtime::now;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lanes::Lanes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::interval;
use tracker::Tracker;

/// Rows that travel from the reader together.
const CHUNK_ROWS: usize = 256;
/// Chunks read ahead.
const CHUNKS_AHEAD: usize = 16;
/// How often progress is shown and remembered.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// How often progress is told in lines, where there is no terminal to draw on.
const PROGRESS_LINES: u32 = 10;

/// Arguments of `load`.
#[derive(Args, Debug)]
pub(crate) struct LoadArguments {
    /// The table.
    table: String,
    /// The file; - is standard input.
    file: PathBuf,
    /// The file's format [default: by its name; TSV for standard input].
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t = Encoding::Text)]
    encoding: Encoding,
    /// Let every row without a time to live of its own expire after so many seconds, or after a time such as 5m, 2h or 7d
    /// [default: the table's option default_ttl].
    #[arg(long, value_name = "SECONDS", value_parser = time_to_live)]
    ttl: Option<u64>,
    /// Go on where an interrupted load of the same file ended.
    #[arg(long)]
    resume: bool,
    /// Most requests in flight.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: u16,
    /// How long to go on trying while the cluster does not take rows, in seconds. The last request may take as long as
    /// --timeout says beside it, which is no longer than this by default.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
    /// Most bad lines to show one by one.
    #[arg(long, default_value_t = 20)]
    show_bad: u64,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What the progress file says. Loading may go on behind `line` and `offset`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    table: String,
    file_size: u64,
    line: u64,
    offset: u64,
    rows: u64,
    bad: u64,
}

/// `hedgerow load`.
pub(crate) async fn run(arguments: LoadArguments) -> Result<Exit> {
    let format = Format::choose(arguments.format, &arguments.file)?;
    let client = arguments.cluster.connect_with(BULK_TIMEOUT.min(arguments.patience)).await?;
    let table = AnyTable::open(&client, &arguments.table).await?;
    let start = starting_point(&arguments)?;
    let input = files::open(&arguments.file, start.offset)?;
    let size = input.size;
    let reader = Reader::new(input.reader, format, table.shape(), arguments.encoding, start.line, start.offset);
    let items = read_in_thread(reader)?;
    let tracker = Arc::new(Tracker::new(start.line, start.offset, arguments.show_bad));
    let lanes = Lanes::start(&table, arguments.concurrency.into(), arguments.patience, &tracker);
    let mut load = Loading { started: now(), start, size, tracker, arguments, bar: bar(size), ticks: 0 };
    let outcome = load.work(items, lanes, table.shape()).await;
    load.finish(outcome)
}

struct Loading {
    arguments: LoadArguments,
    /// Where this run began.
    start: Progress,
    size: Option<u64>,
    tracker: Arc<Tracker>,
    started: tokio::time::Instant,
    bar: ProgressBar,
    ticks: u32,
}

/// How the work ended.
enum Outcome {
    Finished,
    Interrupted,
    Failed(anyhow::Error),
}

impl Loading {
    async fn work(&mut self, mut items: mpsc::Receiver<io::Result<Vec<Item>>>, lanes: Lanes, shape: Shape) -> Outcome {
        let mut lanes = lanes;
        let mut tick = interval(PROGRESS_INTERVAL);
        let tracker = self.tracker.clone();
        let ttl = self.arguments.ttl.filter(|seconds| *seconds > 0);
        let dealing = async {
            while let Some(chunk) = items.recv().await {
                let chunk = chunk.context("reading the input")?;
                lanes.deal(chunk, shape, ttl, &tracker).await;
            }
            lanes.finish().await;
            Ok(())
        };
        tokio::pin!(dealing);
        loop {
            tokio::select! {
                result = &mut dealing => {
                    return match (result, self.tracker.failure()) {
                        (_, Some(error)) => Outcome::Failed(error.into()),
                        (Err(error), None) => Outcome::Failed(error),
                        (Ok(()), None) => Outcome::Finished,
                    };
                }
                failure = self.tracker.wait_for_failure() => return Outcome::Failed(failure.into()),
                _ = tick.tick() => self.show_progress(),
                _ = tokio::signal::ctrl_c() => return Outcome::Interrupted,
            }
        }
    }

    fn show_progress(&mut self) {
        let counts = self.tracker.counts();
        self.ticks += 1;
        if self.size.is_some() {
            self.bar.set_position(counts.offset);
        } else {
            self.bar.tick();
        }
        let elapsed = (now() - self.started).as_secs_f64().max(1e-3);
        let message = format!("{} rows, {:.0} rows/s, {} bad", counts.rows, counts.rows as f64 / elapsed, counts.bad);
        if !io::stderr().is_terminal() && self.ticks.is_multiple_of(PROGRESS_LINES) {
            say(&message);
        }
        self.bar.set_message(message);
        self.remember();
    }

    /// Writes the progress file. That it cannot be written must not stop the load.
    fn remember(&self) {
        let Some(file_size) = self.size else { return };
        let counts = self.tracker.counts();
        let progress = Progress {
            table: self.arguments.table.clone(),
            file_size,
            line: counts.line,
            offset: counts.offset,
            rows: self.start.rows + counts.rows,
            bad: self.start.bad + counts.bad,
        };
        let written = serde_json::to_vec(&progress).context("encoding the progress");
        let path = files::progress_path(&self.arguments.file);
        if let Err(error) = written.and_then(|bytes| files::replace(&path, &bytes)) {
            tracing::warn!("cannot remember the progress: {error:#}");
        }
    }

    fn finish(self, outcome: Outcome) -> Result<Exit> {
        self.bar.finish_and_clear();
        let counts = self.tracker.counts();
        let seconds = (now() - self.started).as_secs_f64();
        let rate = counts.rows as f64 / seconds.max(1e-3);
        if counts.bad > self.arguments.show_bad {
            let more = counts.bad - self.arguments.show_bad;
            say(&format!("not shown: {}", counted(more, "more bad line")));
        }
        if counts.rows == 0 && counts.bad > 0 && is_guessed(&self.arguments) {
            say(
                "standard input was read as TSV, with tabs between the columns: is it something else (--format csv, --format jsonl)?",
            );
        }
        let (rows, bad) = (counted(counts.rows, "row"), counted(counts.bad, "bad line"));
        say(&format!("{rows} loaded, {bad}, {seconds:.1} s, {rate:.0} rows/s"));
        let (name, exit) = match &outcome {
            Outcome::Finished if counts.bad == 0 => ("finished", Exit::Done),
            Outcome::Finished => ("finished", Exit::Partial),
            Outcome::Interrupted => ("interrupted", Exit::Partial),
            Outcome::Failed(_) => ("failed", Exit::Partial),
        };
        print_result(self.arguments.cluster.output, String::new, || {
            json!({
                "table": self.arguments.table,
                "outcome": name,
                "rows": counts.rows,
                "bad_lines": counts.bad,
                "line": counts.line,
                "seconds": seconds,
                "rows_per_second": rate,
            })
        })?;
        if matches!(outcome, Outcome::Finished) {
            if self.size.is_some() {
                files::remove(&files::progress_path(&self.arguments.file))?;
            }
            return Ok(exit);
        }
        self.remember();
        if self.size.is_some() {
            say(&format!("everything up to line {} is loaded; go on with --resume", counts.line));
        }
        match outcome {
            Outcome::Failed(error) => Err(error),
            Outcome::Finished | Outcome::Interrupted => Ok(exit),
        }
    }
}

/// Whether nobody said which format the input has.
fn is_guessed(arguments: &LoadArguments) -> bool {
    arguments.format.is_none() && files::is_standard(&arguments.file)
}

/// Where to begin: at the beginning, or with `--resume` where the progress file says.
fn starting_point(arguments: &LoadArguments) -> Result<Progress> {
    let beginning = Progress { table: arguments.table.clone(), ..Progress::default() };
    if files::is_standard(&arguments.file) {
        if arguments.resume {
            bail!("standard input cannot be resumed");
        }
        return Ok(beginning);
    }
    let path = files::progress_path(&arguments.file);
    let found = files::read_if_exists(&path)?;
    match (found, arguments.resume) {
        (None, false) => Ok(beginning),
        (None, true) => {
            say("there is no earlier load to resume: beginning at the first line");
            Ok(beginning)
        }
        (Some(_), false) => {
            say("an earlier load of this file was interrupted; beginning anew (--resume goes on where it ended)");
            Ok(beginning)
        }
        (Some(bytes), true) => resumed(arguments, &path, &bytes),
    }
}

fn resumed(arguments: &LoadArguments, path: &Path, bytes: &[u8]) -> Result<Progress> {
    let progress: Progress =
        serde_json::from_slice(bytes).with_context(|| format!("{} is not a progress file", path.display()))?;
    let size = files::open(&arguments.file, 0)?.size;
    if progress.table != arguments.table || Some(progress.file_size) != size {
        bail!("{} is about another table or the file has changed: load without --resume", path.display());
    }
    say(&format!("going on behind line {}", progress.line));
    Ok(progress)
}

/// Reads and parses on a thread of its own: a slow disk or pipe must not hold up replies.
fn read_in_thread(mut reader: Reader<Box<dyn io::Read + Send>>) -> Result<mpsc::Receiver<io::Result<Vec<Item>>>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let body = move || {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_ROWS);
            let mut end = Ok(false);
            while chunk.len() < CHUNK_ROWS {
                match reader.next() {
                    Ok(Some(item)) => chunk.push(item),
                    Ok(None) => end = Ok(true),
                    Err(error) => end = Err(error),
                }
                if !matches!(end, Ok(false)) {
                    break;
                }
            }
            if !chunk.is_empty() && sender.blocking_send(Ok(chunk)).is_err() {
                return;
            }
            match end {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => {
                    // If nobody listens any more, nobody misses it.
                    let _ = sender.blocking_send(Err(error));
                    return;
                }
            }
        }
    };
    hedgerow_env::os::spawn_thread("hedgerow-read", body).context("starting the reader")?;
    Ok(receiver)
}

fn bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => {
            (ProgressBar::new(size), "{bar:30} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {msg}  {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {msg}  {elapsed}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
