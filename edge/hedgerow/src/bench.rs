//! `hedgerow bench`: a closed loop. Every client keeps a fixed number of requests in flight and sends the next one when a
//! reply comes, so that the rate is what the cluster gives.
//!
//! The load generator shares the machine with what it measures, so it is one thread, and between two requests it does
//! little more than draw a row and note a time.

mod clients;
mod report;
mod stats;

use crate::arguments::{ClusterArguments, seconds};
use crate::command::BULK_TIMEOUT;
use crate::exit::Exit;
use crate::output::say;
use crate::runtime::now;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use clients::Workers;
use hedgerow_client::{Client, Table, TableKind, TableSpec};
use hedgerow_types::limit::WRITE_SIZE_MAX;
use indicatif::{ProgressBar, ProgressStyle};
use report::Report;
use stats::Stats;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::interval;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Set rows.
    Put,
    /// Get rows that exist.
    Get,
    /// Both, at random.
    Mix,
}

/// Arguments of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArguments {
    /// What to measure.
    #[arg(value_enum)]
    workload: Workload,
    /// The table; created if it does not exist.
    #[arg(long, default_value = "bench")]
    table: String,
    /// Partitions of a table that is created.
    #[arg(long, default_value_t = 8)]
    partitions: u32,
    /// Clients at work at the same time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Requests that each client keeps in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pipeline: u32,
    /// Connections to each node, shared out among the clients [default: one per client].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Bytes of each value.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=(WRITE_SIZE_MAX as i64 - 4096)))]
    value_size: u32,
    /// Rows that requests draw from, evenly.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Share of gets in a mix, percent.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    read_percent: u8,
    /// How long to measure, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Stop after so many operations [default: when the time is over].
    #[arg(long)]
    operations: Option<u64>,
    /// How long to run before measuring, in seconds; 0 = not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warm_up: f64,
    /// Do not write the rows first that gets will ask for.
    #[arg(long)]
    no_prepare: bool,
    /// Seed of what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// `hedgerow bench`.
pub(crate) async fn run(arguments: BenchArguments) -> Result<Exit> {
    let Ok(warm_up) = Duration::try_from_secs_f64(arguments.warm_up) else { bail!("--warm-up must not be negative") };
    let client = arguments.cluster.connect_with(BULK_TIMEOUT).await?;
    open_or_create(&client, &arguments).await?;
    let tables = open_tables(client, &arguments).await?;
    if arguments.workload != Workload::Put && !arguments.no_prepare {
        clients::prepare(&tables, &arguments).await?;
    }
    let stats = Arc::new(Stats::new());
    let workers = Workers::start(&tables, &arguments, &stats);
    if !warm_up.is_zero() {
        tokio::time::sleep(warm_up).await;
    }
    stats.begin(arguments.operations);
    let started = now();
    let was_interrupted = watch(&arguments, &stats).await;
    let elapsed = stats.end().unwrap_or_else(now) - started;
    workers.stop().await;
    let report = Report::new(&arguments, &stats, elapsed);
    report.print(arguments.cluster.output)?;
    Ok(match (report.operations(), was_interrupted) {
        (0, _) => Exit::Unreachable,
        (_, true) => Exit::Partial,
        (_, false) => Exit::Done,
    })
}

async fn open_or_create(client: &Client, arguments: &BenchArguments) -> Result<()> {
    let spec = TableSpec { partition_count: arguments.partitions, if_not_exists: true, ..TableSpec::default() };
    match client.table_kind(&arguments.table).await {
        Ok(TableKind::Hash) => Ok(()),
        Ok(TableKind::Ordered) => bail!("bench needs a hash table, and {} is an ordered one", arguments.table),
        Err(error) if error.kind() == hedgerow_client::ErrorKind::NoTable => {
            say(&format!("creating table {} with {} partitions", arguments.table, arguments.partitions));
            client.create_table(&arguments.table, &spec).await?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// One handle per connection: each is a client of its own, as independent processes would be.
async fn open_tables(first: Client, arguments: &BenchArguments) -> Result<Vec<Table>> {
    let count = arguments.connections.unwrap_or(arguments.clients).min(arguments.clients);
    let mut tables = vec![first.open_table(&arguments.table).await?];
    for _ in 1..count {
        let client = arguments.cluster.connect_with(BULK_TIMEOUT).await?;
        tables.push(client.open_table(&arguments.table).await?);
    }
    Ok(tables)
}

/// Shows progress until the measurement is over; true if it was interrupted.
async fn watch(arguments: &BenchArguments, stats: &Stats) -> bool {
    let total = arguments.operations.unwrap_or(0);
    let bar = progress(arguments, total);
    let mut tick = interval(Duration::from_secs(1));
    tick.tick().await;
    let mut second = 0;
    let over = tokio::time::sleep(arguments.seconds);
    tokio::pin!(over);
    let was_interrupted = loop {
        tokio::select! {
            () = &mut over => break false,
            () = stats.wait_for_end() => break false,
            _ = tokio::signal::ctrl_c() => break true,
            _ = tick.tick() => {
                let (done, interval) = stats.take_interval();
                second += 1;
                bar.set_position(if total > 0 { done } else { second });
                let line = format!("{} ops/s, p99 {}, {} errors", interval.operations, interval.p99_text(), interval.errors);
                if !io::stderr().is_terminal() {
                    say(&format!("{second:>4} s  {line}"));
                }
                bar.set_message(line);
            }
        }
    };
    stats.finish();
    bar.finish_and_clear();
    was_interrupted
}

fn progress(arguments: &BenchArguments, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(if total > 0 { total } else { arguments.seconds.as_secs().max(1) });
    let template = if total > 0 { "{bar:30} {human_pos}/{human_len}  {msg}" } else { "{bar:30} {pos}/{len} s  {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
