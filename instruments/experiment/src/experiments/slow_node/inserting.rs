//! One turn: inserts one after the other, reads beside them, and what came of both.
#![allow(clippy::disallowed_methods, reason = "it reads beside its inserts, and counts the sockets of its own process")]

use super::WORKLOAD;
use crate::clock::now;
use crate::experiment::Context;
use crate::stage::Stage;
use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use hedgerow_client::{Attempt, AttemptEvent, AttemptObserver, Client, ClientOptions, Expiry, HedgeOptions, Table};
use hedgerow_faults::Plan;
use hedgerow_report::{Latency, LoopKind, Operation, Run, Second, merge_histograms};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// The table.
pub(super) const TABLE: &str = "slow";
/// Time in which a slow node may show: reads count from then on.
const FIRST: Duration = Duration::from_secs(1);
/// No request takes longer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Inserts before the measurement, so that connections and the table's map are there.
const WARM_UP: u64 = 200;
/// Rows are read in this order: prime, so that all of them come.
const ROW_STEP: u64 = 7_919;
/// A request that took so long waited for the slow node.
const LATE_MIN: Duration = Duration::from_millis(200);
/// Latencies are kept up to this.
const LATENCY_MAX: u64 = 60_000_000_000;

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    pub(super) inserts: u64,
    /// Rows that are read.
    pub(super) rows: u64,
    pub(super) reads_per_s: f64,
}

/// What the rows say after the run: how often each insert was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    once: u64,
    never: u64,
    otherwise: u64,
}

impl Counts {
    pub(super) fn exactly_once(pace: &Pace) -> Self {
        Self { once: pace.inserts, ..Self::default() }
    }
}

/// What was measured.
pub(super) struct Measured {
    pub(super) counts: Counts,
    took: Duration,
    inserts: Samples,
    reads: Samples,
    reads_later: Samples,
    tally: Tally,
    sockets: (u64, u64),
    /// The address of the slow node.
    slow: Option<String>,
}

/// Latencies of one kind of request.
struct Samples {
    latency: Histogram<u64>,
    /// By second.
    seconds: BTreeMap<u32, Histogram<u64>>,
    errors: u64,
    last_error: Option<String>,
}

impl Samples {
    fn new() -> Self {
        Self { latency: histogram(), seconds: BTreeMap::new(), errors: 0, last_error: None }
    }

    fn take<T>(&mut self, due: Duration, took: Duration, result: hedgerow_client::Result<T>) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
        let second = u32::try_from(due.as_secs()).unwrap_or(u32::MAX);
        self.seconds.entry(second).or_insert_with(histogram).saturating_record(nanos);
        if let Err(error) = result {
            self.errors += 1;
            self.last_error = Some(error.to_string());
        }
    }
}

impl Samples {
    /// Seconds that went into requests of more than [`LATE_MIN`].
    fn late_s(&self) -> f64 {
        let late =
            self.latency.iter_recorded().filter(|step| u128::from(step.value_iterated_to()) >= LATE_MIN.as_nanos());
        // A sum of none would be a negative zero.
        late.map(|step| step.value_iterated_to() as f64 * step.count_since_last_iteration() as f64 / 1e9)
            .fold(0.0, |sum, late| sum + late)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, LATENCY_MAX, 3).expect("the bounds are valid")
}

/// Attempts of inserts as an observer sees them.
#[derive(Clone, Debug, Default)]
struct Tally {
    sent: BTreeMap<String, u64>,
    won: BTreeMap<String, u64>,
    /// Won after the first second.
    won_later: BTreeMap<String, u64>,
    extra: u64,
}

#[derive(Clone, Default)]
struct Observed(Arc<Mutex<(Tally, Option<Instant>)>>);

impl Observed {
    fn observe(&self, attempt: &Attempt<'_>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (tally, began) = &mut *inner;
        let Some(began) = *began else { return };
        let node = attempt.node.to_string();
        match attempt.event {
            AttemptEvent::Start => {
                *tally.sent.entry(node).or_default() += 1;
                tally.extra += u64::from(attempt.number > 1);
            }
            AttemptEvent::Success { .. } => {
                if now() - began >= FIRST {
                    *tally.won_later.entry(node.clone()).or_default() += 1;
                }
                *tally.won.entry(node).or_default() += 1;
            }
            AttemptEvent::Error { .. } | AttemptEvent::Cancelled { .. } => {}
        }
    }
}

/// Takes the turn, from `from` on at the earliest. `faults` are switched on as the first insert is sent.
pub(super) async fn measure(
    stage: &Stage,
    options: HedgeOptions,
    faults: Option<Plan>,
    slow: Option<String>,
    pace: &Pace,
    from: Instant,
) -> Result<Measured> {
    let sockets_before = sockets();
    let client_options = ClientOptions { operation_timeout: TIMEOUT, ..ClientOptions::default() };
    let client = Client::connect_with(&stage.addresses(), client_options.clone()).await.context("connecting")?;
    let observed = Observed::default();
    let observer = AttemptObserver::new({
        let observed = observed.clone();
        move |attempt| observed.observe(attempt)
    });
    let inserting = HedgeOptions { observer: Some(observer), ..options.clone() };
    let table = client.open_table_with(TABLE, inserting).await?;
    for row in 0..pace.rows {
        table.set(row_key(row), "", "value").await.context("writing the rows that are read")?;
    }
    for number in 0..WARM_UP {
        insert(&table, "warm-up", number).await.context("warming up")?;
    }
    let reader = Client::connect_with(&stage.addresses(), client_options).await.context("connecting")?;
    let read_table = reader.open_table_with(TABLE, options).await?;
    for row in 0..pace.rows {
        read_table.get(row_key(row), "").await.context("warming up")?;
    }
    sleep_until(from).await;

    let began = now();
    observed.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(began);
    let is_done = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read_beside(read_table, *pace, began, Arc::clone(&is_done)));
    let switching = async {
        match &faults {
            Some(plan) => stage.set_faults(plan).await,
            None => Ok(()),
        }
    };
    let ((inserts, took), switched) = tokio::join!(insert_all(&table, pace, began), switching);
    is_done.store(true, Ordering::Relaxed);
    let sockets_after = sockets();
    let (reads, reads_later) = reading.await.context("the reader ended early")?;
    switched?;
    let tally = observed.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
    if let Some(error) = inserts.last_error.as_ref().or(reads.last_error.as_ref()) {
        return Err(anyhow!("{} inserts and {} reads failed, the last: {error}", inserts.errors, reads.errors));
    }
    let counts = count(&table, pace).await?;
    let sockets = (sockets_before, sockets_after);
    Ok(Measured { counts, took, inserts, reads, reads_later, tally, sockets, slow })
}

fn row_key(row: u64) -> String {
    format!("row-{row}")
}

async fn insert(table: &Table, kind: &str, number: u64) -> hedgerow_client::Result<i64> {
    table.incr(format!("{kind}-{number}"), "", amount(number), Expiry::Keep).await
}

/// What an insert adds to its row: never 0.
fn amount(number: u64) -> i64 {
    number as i64 + 1
}

async fn insert_all(table: &Table, pace: &Pace, began: Instant) -> (Samples, Duration) {
    let mut samples = Samples::new();
    for number in 0..pace.inserts {
        let sent = now();
        let result = insert(table, "insert", number).await;
        samples.take(sent - began, now() - sent, result);
    }
    (samples, now() - began)
}

/// Reads at a fixed rate until the inserts are done; all, and those that were due after the first second.
async fn read_beside(table: Table, pace: Pace, began: Instant, is_done: Arc<AtomicBool>) -> (Samples, Samples) {
    let (mut all, mut later) = (Samples::new(), Samples::new());
    let mut under_way = JoinSet::new();
    let mut number = 0_u64;
    while !is_done.load(Ordering::Relaxed) {
        let due = began + Duration::from_secs_f64(number as f64 / pace.reads_per_s);
        sleep_until(due).await;
        let (table, row) = (table.clone(), number * ROW_STEP % pace.rows);
        under_way.spawn(async move {
            let result = table.get(row_key(row), "").await;
            (due - began, now() - due, result)
        });
        number += 1;
    }
    while let Some(read) = under_way.join_next().await {
        let Ok((due, took, result)) = read else { continue };
        if due >= FIRST {
            later.take(due, took, Ok(()));
        }
        all.take(due, took, result);
    }
    (all, later)
}

/// Reads every inserted row and counts how often its insert was applied.
async fn count(table: &Table, pace: &Pace) -> Result<Counts> {
    let mut counts = Counts::default();
    for number in 0..pace.inserts {
        let value = table.get(format!("insert-{number}"), "").await.context("reading what was inserted")?;
        let value = value.as_deref().map(|value| String::from_utf8_lossy(value).parse::<i64>());
        match value {
            Some(Ok(value)) if value == amount(number) => counts.once += 1,
            None => counts.never += 1,
            Some(_) => counts.otherwise += 1,
        }
    }
    Ok(counts)
}

/// Sockets that this process has open.
fn sockets() -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count() as u64
}

impl Measured {
    /// As a run of the results, with its histograms in the turn's folder.
    pub(super) fn run(&self, context: &Context<'_>, variant: String, begin_s: f64) -> Result<Run> {
        let name = format!("{variant}-{}", context.repetition);
        let mut operations = Vec::new();
        for (operation, samples) in [("insert", &self.inserts), ("get", &self.reads)] {
            let histogram = context.folder.keep_histogram(&name, operation, &samples.latency, self.took)?;
            operations.push(Operation {
                name: operation.to_owned(),
                count: samples.latency.len(),
                errors: samples.errors,
                timeouts: 0,
                latency_us: Latency::of(&samples.latency),
                histogram,
            });
        }
        let later = Latency::of(&self.reads_later.latency);
        let of_slow =
            |nodes: &BTreeMap<String, u64>| self.slow.as_ref().map(|slow| nodes.get(slow).copied().unwrap_or(0) as f64);
        let mut extra = BTreeMap::from([
            ("reads_after_1s_p99_us".to_owned(), later.p99),
            ("reads_after_1s_max_us".to_owned(), later.max),
            ("attempts_extra_count".to_owned(), self.tally.extra as f64),
            ("sockets_before_count".to_owned(), self.sockets.0 as f64),
            ("sockets_after_count".to_owned(), self.sockets.1 as f64),
            ("applied_once_count".to_owned(), self.counts.once as f64),
            ("insert_max_us".to_owned(), Latency::of(&self.inserts.latency).max),
            ("late_inserts_s".to_owned(), self.inserts.late_s()),
        ]);
        let by_slow = [
            ("slow_node_attempts_count", &self.tally.sent),
            ("slow_node_wins_count", &self.tally.won),
            ("slow_node_wins_after_1s_count", &self.tally.won_later),
        ];
        extra.extend(by_slow.into_iter().filter_map(|(name, nodes)| Some((name.to_owned(), of_slow(nodes)?))));
        let took = self.took.as_secs_f64();
        Ok(Run {
            variant,
            repetition: context.repetition,
            workload: WORKLOAD.to_owned(),
            begin_s,
            duration_s: took,
            loop_kind: LoopKind::Closed,
            achieved_per_s: self.inserts.latency.len() as f64 / took.max(1e-9),
            operations,
            timeline: self.timeline(),
            extra,
            ..Run::default()
        })
    }

    /// Inserts and reads together.
    fn timeline(&self) -> Vec<Second> {
        let last = self.inserts.seconds.keys().chain(self.reads.seconds.keys()).max().copied().unwrap_or(0);
        let of = |second: u32| {
            let parts = [&self.inserts, &self.reads].into_iter().filter_map(|samples| samples.seconds.get(&second));
            let all = merge_histograms(parts);
            let at = |quantile: f64| all.value_at_quantile(quantile) as f64 / 1e3;
            let max_us = all.max() as f64 / 1e3;
            Second { second, count: all.len(), errors: 0, p50_us: at(0.5), p99_us: at(0.99), max_us }
        };
        (0..=last).map(of).collect()
    }
}
