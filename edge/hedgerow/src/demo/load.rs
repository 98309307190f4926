//! The demonstration's load: a million rows first, then clients that read and write while a node dies and returns.
//!
//! Writes under load are additions to counters that only one client touches: in the end a counter must hold exactly what
//! was acknowledged, so that a lost write and a doubled one both show.

use crate::runtime;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use hedgerow_client::{Client, Expiry, Table};
use hedgerow_types::random::Random;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;

/// Clients of the mixed load.
pub(crate) const CLIENTS: usize = 32;
/// Rows of one hash key.
const ROWS_PER_KEY: u64 = 100;
/// Writers that load at the same time.
const LOADERS: u64 = 32;
/// Rows read back.
const SAMPLE: u64 = 10_000;
/// Counters of each client.
const COUNTERS: u64 = 16;

pub(super) fn value_of(row: u64) -> Bytes {
    let mut random = Random::new(row);
    let mut value = format!("row {row} ");
    while value.len() < 100 {
        value.push(char::from(b'a' + random.below(26) as u8));
    }
    Bytes::from(value)
}

pub(super) fn hash_key_of(row: u64) -> String {
    format!("group-{:08}", row / ROWS_PER_KEY)
}

pub(super) fn sort_key_of(row: u64) -> String {
    format!("{:03}", row % ROWS_PER_KEY)
}

/// Writes rows 0 to `count`, with a progress bar.
pub(crate) async fn generated(client: &Client, table: &str, count: u64) -> Result<()> {
    let bar = ProgressBar::new(count).with_style(
        ProgressStyle::with_template("loading {wide_bar} {human_pos} of {human_len} rows, {per_sec}")
            .context("the progress bar's template")?,
    );
    let start = runtime::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut loaders = Vec::new();
    for _ in 0..LOADERS {
        let (table, next, bar) = (client.open_table(table).await?, Arc::clone(&next), bar.clone());
        loaders.push(runtime::spawn(async move {
            loop {
                let first = next.fetch_add(ROWS_PER_KEY, Ordering::Relaxed);
                if first >= count {
                    return Ok::<(), hedgerow_client::Error>(());
                }
                let rows = (first..count.min(first + ROWS_PER_KEY)).map(|row| (sort_key_of(row), value_of(row)));
                table.multi_set(hash_key_of(first), rows, None).await?;
                bar.inc(ROWS_PER_KEY.min(count - first));
            }
        }));
    }
    for loader in loaders {
        loader.await.context("a loader ended")?.context("loading generated rows")?;
    }
    bar.finish_and_clear();
    let rate = count as f64 / start.elapsed().as_secs_f64();
    super::say(&format!("loaded {count} generated rows of 100 bytes, {rate:.0} rows/s"));
    Ok(())
}

/// Reads rows by random key and compares them with what was written.
pub(crate) async fn read_sample(client: &Client, table: &str, count: u64) -> Result<u64> {
    let table = client.open_table(table).await?;
    let mut random = Random::new(42);
    let sample = SAMPLE.min(count);
    for _ in 0..sample {
        let row = random.below(count);
        let value = table.get(hash_key_of(row), sort_key_of(row)).await.context("reading back")?;
        ensure!(value == Some(value_of(row)), "row {row} came back as {value:?}");
    }
    Ok(sample)
}

/// Where in the demonstration an operation falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Before = 0,
    During = 1,
    After = 2,
}

const PHASES: [(&str, Phase); 3] =
    [("before", Phase::Before), ("node killed", Phase::During), ("node back", Phase::After)];

/// What was measured in one phase.
struct Measured {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    seconds: f64,
}

struct Shared {
    phase: AtomicUsize,
    is_over: AtomicBool,
    failed: AtomicU64,
    histograms: Mutex<Vec<Measured>>,
    /// When the current phase began.
    began: Mutex<tokio::time::Instant>,
}

/// A load that runs.
pub(crate) struct MixedLoad {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Vec<(u64, u64)>>>,
}

/// What a load has brought.
pub(crate) struct Outcome {
    shared: Arc<Shared>,
    /// By client and counter: additions acknowledged, and additions whose outcome is not known.
    counters: Vec<Vec<(u64, u64)>>,
}

impl MixedLoad {
    pub(crate) async fn start(client: &Client, table: &str, rows: u64) -> Result<Self> {
        let measured =
            || -> Result<Measured> { Ok(Measured { reads: histogram()?, writes: histogram()?, seconds: 0.0 }) };
        let shared = Arc::new(Shared {
            phase: AtomicUsize::new(Phase::Before as usize),
            is_over: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            histograms: Mutex::new(PHASES.iter().map(|_| measured()).collect::<Result<_>>()?),
            began: Mutex::new(runtime::now()),
        });
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let table = client.open_table(table).await?;
            clients.push(runtime::spawn(run_client(table, number, rows, Arc::clone(&shared))));
        }
        Ok(Self { shared, clients })
    }

    /// Counts what follows to another phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.end_phase();
        self.shared.phase.store(phase as usize, Ordering::Relaxed);
    }

    fn end_phase(&self) {
        let phase = self.shared.phase.load(Ordering::Relaxed);
        let mut began = lock(&self.shared.began);
        lock(&self.shared.histograms)[phase].seconds += began.elapsed().as_secs_f64();
        *began = runtime::now();
    }

    pub(crate) async fn stop(self) -> Result<Outcome> {
        self.end_phase();
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut counters = Vec::new();
        for client in self.clients {
            counters.push(client.await.context("a client ended")?);
        }
        Ok(Outcome { shared: self.shared, counters })
    }
}

/// Latencies of 1 microsecond to 100 seconds.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 100_000_000, 3)?)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counter_key(client: usize) -> String {
    format!("counters-{client:03}")
}

async fn run_client(table: Table, number: usize, rows: u64, shared: Arc<Shared>) -> Vec<(u64, u64)> {
    let mut random = Random::new(number as u64);
    let mut counters = vec![(0, 0); COUNTERS as usize];
    while !shared.is_over.load(Ordering::Relaxed) {
        let (is_read, row, counter) = (random.chance(1, 2), random.below(rows), random.below(COUNTERS));
        let began = runtime::now();
        let succeeded = if is_read {
            table.get(hash_key_of(row), sort_key_of(row)).await.is_ok_and(|value| value == Some(value_of(row)))
        } else {
            let result = table.incr(counter_key(number), counter.to_string(), 1, Expiry::Keep).await;
            let (acknowledged, unknown) = &mut counters[counter as usize];
            match &result {
                Ok(_) => *acknowledged += 1,
                Err(error) => *unknown += u64::from(error.is_outcome_unknown()),
            }
            result.is_ok()
        };
        let micros = began.elapsed().as_micros() as u64;
        if !succeeded {
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
        let mut histograms = lock(&shared.histograms);
        let measured = &mut histograms[shared.phase.load(Ordering::Relaxed)];
        let histogram = if is_read { &mut measured.reads } else { &mut measured.writes };
        histogram.saturating_record(micros);
    }
    counters
}

impl Outcome {
    pub(crate) fn reads(&self) -> u64 {
        lock(&self.shared.histograms).iter().map(|measured| measured.reads.len()).sum()
    }

    pub(crate) fn writes(&self) -> u64 {
        lock(&self.shared.histograms).iter().map(|measured| measured.writes.len()).sum()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Throughput and latency by phase, in milliseconds. The longest wait is the failover, which is too rare for p99.9.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("{:<12} {:>8}", "phase, ms", "ops/s");
        for operation in ["get", "incr"] {
            text += &format!(" | {operation:>4} p50 {:>7} {:>7} {:>7}", "p99", "p99.9", "max");
        }
        for (measured, (name, _)) in lock(&self.shared.histograms).iter().zip(PHASES) {
            let count = measured.reads.len() + measured.writes.len();
            let rate = count as f64 / measured.seconds.max(f64::EPSILON);
            text += &format!("\n{name:<12} {rate:>8.0}");
            for histogram in [&measured.reads, &measured.writes] {
                let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
                text += &format!(" | {:>8.2} {:>7.2} {:>7.2} {:>7.0}", at(0.5), at(0.99), at(0.999), at(1.0));
            }
        }
        text
    }
}

/// Compares the counters with what was acknowledged; how many additions that were.
pub(crate) async fn verify_counters(client: &Client, table: &str, outcome: &Outcome) -> Result<u64> {
    let table = client.open_table(table).await?;
    let mut total = 0;
    for (number, counters) in outcome.counters.iter().enumerate() {
        for (counter, (acknowledged, unknown)) in counters.iter().enumerate() {
            let value = table.get(counter_key(number), counter.to_string()).await.context("reading the counters")?;
            let value = value.map_or(Ok(0), |value| String::from_utf8_lossy(&value).parse::<u64>());
            let value = value.context("a counter that is no number")?;
            ensure!(
                (*acknowledged..=acknowledged + unknown).contains(&value),
                "counter {counter} of client {number} is {value}; {acknowledged} additions were acknowledged and {unknown} \
                 have an unknown outcome"
            );
            total += acknowledged;
        }
    }
    Ok(total)
}
