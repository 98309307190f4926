//! The demonstration's second act: the same load twice, with the same node stalling at the same moments, hedging off and on.
//!
//! The loop is open: requests are due at fixed times, and latency counts from then, so that whoever waits behind a stall
//! shows. Writes are additions to counters, as in the first act.

use super::load::{hash_key_of, sort_key_of, value_of};
use super::say;
use crate::{files, runtime};
use anyhow::{Context as _, Result, ensure};
use hedgerow_client::{
    BudgetOptions, Client, ClientOptions, Expiry, HedgeOptions, Kind, Policy, ReadLevel, ReadOptions, ReplicaRead,
    Table,
};
use hedgerow_faults::{Cluster, Plan};
use hedgerow_report::{Act, Folder, draw_acts};
use hedgerow_types::random::Random;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Requests due per second.
const RATE: u64 = 1_500;
/// One request of so many is a write.
const WRITE_EVERY: u64 = 10;
/// Requests in flight at most; beyond, the cluster is down and not slow.
const IN_FLIGHT_MAX: usize = 20_000;
/// Time before the measurement, in which connections are made.
const WARM_UP: Duration = Duration::from_secs(1);
/// Counters that the writes add to.
const COUNTERS: u64 = 64;
const COUNTERS_KEY: &str = "counters-of-the-second-act";
/// When a further attempt is sent. A fixed delay helps from the first stall on; `adaptive` would have to see some first.
const POLICY: &str = "10ms";
/// What all extra attempts together may cost. A stall makes a burst of them, of the requests that the node holds.
const BUDGET: BudgetOptions = BudgetOptions { ratio: 0.02, burst: Some(100.0) };
/// What goes wrong: the same in both acts, as all that is drawn comes from the seed.
const FAULTS: &str = r#"
name = "second-act"
about = "node 3 stops serving for 100 to 150 ms about every two seconds"
seed = 3
[[fault]]
kind = "stall"
nodes = [3]
begin = "1s"
every = "1800ms..2200ms"
lasts = "100ms..150ms"
"#;

/// One request that has ended.
struct Done {
    /// From the beginning of the measurement; negative in the warm-up.
    due_s: f64,
    took: Duration,
    is_read: bool,
    has_succeeded: bool,
}

/// Additions to one counter.
#[derive(Clone, Copy, Default)]
struct Additions {
    acknowledged: u64,
    unknown: u64,
}

/// What one of the two measurements has brought.
struct Measured {
    name: String,
    done: Vec<Done>,
    faults: Vec<(f64, f64)>,
    /// Share of extra requests.
    extra: f64,
}

/// What the second act has brought.
pub(super) struct Outcome {
    acts: Vec<Measured>,
    additions: Vec<Additions>,
    kept: Kept,
}

/// Where things are kept.
struct Kept {
    picture: PathBuf,
    /// The latencies without hedging.
    histogram: PathBuf,
}

/// What both measurements have in common.
pub(super) struct Setting<'a> {
    pub(super) addresses: &'a [String],
    pub(super) table: &'a str,
    /// Rows that there are to read.
    pub(super) rows: u64,
    pub(super) duration: Duration,
    /// Below which the folder with the picture is made.
    pub(super) results: &'a Path,
}

/// Plays both and draws the picture.
pub(super) async fn play(setting: &Setting<'_>) -> Result<Outcome> {
    let seconds = setting.duration.as_secs();
    say(&format!(
        "second act: {RATE} requests/s, one in {WRITE_EVERY} a write, while node 3 stalls now and then: {seconds} s without \
         hedging, {seconds} s with it"
    ));
    say(
        "reads show the latest (linearizable, the default) and ask the leader; a hedge goes to another replica, which may answer \
         without the stalled leader if the logs of a majority hold nothing newer for the row",
    );
    let additions = Arc::new(Mutex::new(vec![Additions::default(); COUNTERS as usize]));
    let policy: Policy = POLICY.parse().context("the demonstration's policy")?;
    let mut acts = Vec::new();
    for (name, reads) in [("hedging off".to_owned(), Policy::None), (format!("hedging on: after {POLICY}"), policy)] {
        acts.push(measure(setting, name, reads, &additions).await?);
    }
    let kept = keep(setting, &acts)?;
    let additions = lock(&additions).clone();
    Ok(Outcome { acts, additions, kept })
}

async fn measure(
    setting: &Setting<'_>,
    name: String,
    reads: Policy,
    additions: &Arc<Mutex<Vec<Additions>>>,
) -> Result<Measured> {
    // A client of its own: neither what the other one learned nor what it saved up of its budget helps this one.
    let options =
        ClientOptions { operation_timeout: Duration::from_secs(5), budget: BUDGET, ..ClientOptions::default() };
    let client = Client::connect_with(setting.addresses, options).await.context("connecting")?;
    let table = client.open_table(setting.table).await?;
    let level = Some(ReadLevel::Linearizable);
    let table = table.reading(ReadOptions { level, mode: ReplicaRead::Leader, ..ReadOptions::default() });
    let table = table.hedging(HedgeOptions { reads, ..HedgeOptions::default() });
    let plan = Plan::parse(FAULTS).context("the demonstration's faults")?;
    let target = Arc::new(Cluster::new(setting.addresses.to_vec()));
    let begin = runtime::now();
    let faults = hedgerow_faults::start(&plan, &target, WARM_UP + setting.duration, |_| {})?;
    let count = RATE * (WARM_UP + setting.duration).as_secs();
    let mut random = Random::new(2);
    let mut requests = JoinSet::new();
    let mut done = Vec::with_capacity(count as usize);
    for index in 0..count {
        let due = begin + Duration::from_secs(1) * index as u32 / RATE as u32;
        if due > runtime::now() {
            runtime::sleep_until(due).await;
        }
        while let Some(ended) = requests.try_join_next() {
            done.push(ended.context("a request's task ended")?);
        }
        ensure!(requests.len() < IN_FLIGHT_MAX, "the cluster does not answer: {IN_FLIGHT_MAX} requests are under way");
        let (row, counter) = (random.below(setting.rows), random.below(COUNTERS));
        let is_read = index % WRITE_EVERY != 0;
        let due_s = (due - begin).as_secs_f64() - WARM_UP.as_secs_f64();
        let (table, additions) = (table.clone(), Arc::clone(additions));
        requests.spawn(async move {
            let has_succeeded =
                if is_read { read_row(&table, row).await } else { add(&table, counter, &additions).await };
            Done { due_s, took: runtime::now() - due, is_read, has_succeeded }
        });
    }
    while let Some(ended) = requests.join_next().await {
        done.push(ended.context("a request's task ended")?);
    }
    let report = runtime::blocking(move || faults.finish()).await??;
    ensure!(report.failures.is_empty(), "node 3 could not be made to stall: {}", report.failures.join("; "));
    let faults = report.marks_from(WARM_UP).iter().map(|mark| (mark.begin_s, mark.end_s)).collect();
    done.retain(|done| done.due_s >= 0.0);
    let counters = client.hedge_metrics().counters;
    let extra = counters.sent.iter().sum::<u64>() - counters.sent[Kind::First.index()];
    Ok(Measured { name, done, faults, extra: extra as f64 / count as f64 })
}

async fn read_row(table: &Table, row: u64) -> bool {
    table.get(hash_key_of(row), sort_key_of(row)).await.is_ok_and(|value| value == Some(value_of(row)))
}

async fn add(table: &Table, counter: u64, additions: &Mutex<Vec<Additions>>) -> bool {
    let result = table.incr(COUNTERS_KEY, counter.to_string(), 1, Expiry::Keep).await;
    let mut additions = lock(additions);
    match &result {
        Ok(_) => additions[counter as usize].acknowledged += 1,
        Err(error) => additions[counter as usize].unknown += u64::from(error.is_outcome_unknown()),
    }
    result.is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws the picture, and keeps the latencies of the first measurement.
fn keep(setting: &Setting<'_>, measured: &[Measured]) -> Result<Kept> {
    let folder = Folder::create(setting.results, "demo")?;
    let act = |measured: &Measured| Act {
        name: measured.name.clone(),
        requests: measured.reads().map(|done| (done.due_s, done.took.as_secs_f64() * 1e6)).collect(),
        faults: measured.faults.clone(),
    };
    let acts: Vec<Act> = measured.iter().map(act).collect();
    let remark = format!(
        "Linearizable reads, first at leaders, {RATE} requests/s (a tenth writes). Latency counts from when they were due."
    );
    let (svg, png) = draw_acts("One of three nodes stalls: hedging off and on", &[remark], &acts)?;
    let picture = folder.path().join("hedging.svg");
    files::replace(&picture, svg.as_bytes())?;
    files::replace(&picture.with_extension("png"), &png)?;
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3)?;
    for done in measured.first().into_iter().flat_map(Measured::reads) {
        histogram.record(done.took.as_nanos() as u64).context("a latency is too long")?;
    }
    let histogram = folder.keep_histogram("hedging-off", "get", &histogram, setting.duration)?;
    Ok(Kept { picture, histogram: folder.path().join(histogram) })
}

impl Measured {
    fn reads(&self) -> impl Iterator<Item = &Done> {
        self.done.iter().filter(|done| done.is_read)
    }

    /// A line of the table, latencies in milliseconds.
    fn line(&self) -> String {
        let mut took: Vec<Duration> = self.reads().map(|done| done.took).collect();
        took.sort();
        let at = |quantile: f64| {
            let rank = (quantile * took.len() as f64).ceil() as usize;
            took.get(rank.saturating_sub(1)).map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        let percentiles = [0.5, 0.99, 0.999, 1.0].map(|quantile| format!("{:>9.2}", at(quantile)));
        format!("{:<26} {} {:>9.2}", self.name, percentiles.join(" "), 100.0 * self.extra)
    }
}

impl Outcome {
    /// Latencies of the reads, side by side.
    pub(super) fn table(&self) -> String {
        let reads = self.acts.iter().map(|act| act.reads().count()).max().unwrap_or(0);
        let header = format!(
            "{:<26} {:>9} {:>9} {:>9} {:>9} {:>9}",
            format!("{reads} reads each, ms"),
            "p50",
            "p99",
            "p99.9",
            "max",
            "extra %"
        );
        let lines: Vec<String> = self.acts.iter().map(Measured::line).collect();
        let (picture, histogram) = (self.kept.picture.display(), self.kept.histogram.display());
        format!(
            "{header}\n{}\npicture: {picture} (and .png)\nhow to hedge for these latencies: hedgerow plan {histogram} --target p99",
            lines.join("\n")
        )
    }

    pub(super) fn failed(&self) -> usize {
        self.acts.iter().flat_map(|act| &act.done).filter(|done| !done.has_succeeded).count()
    }

    /// Compares the counters with what was acknowledged; how many additions that were.
    pub(super) async fn verify(&self, client: &Client, table: &str) -> Result<u64> {
        let table = client.open_table(table).await?;
        let mut total = 0;
        for (counter, Additions { acknowledged, unknown }) in self.additions.iter().enumerate() {
            let value = table.get(COUNTERS_KEY, counter.to_string()).await.context("reading the counters")?;
            let value = value.map_or(Ok(0), |value| String::from_utf8_lossy(&value).parse::<u64>());
            let value = value.context("a counter that is no number")?;
            ensure!(
                (*acknowledged..=acknowledged + unknown).contains(&value),
                "counter {counter} of the second act is {value}; {acknowledged} additions were acknowledged and {unknown} \
                 have an unknown outcome"
            );
            total += acknowledged;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_act_has_its_policy_and_its_faults() {
        let plan = Plan::parse(FAULTS).unwrap();
        let stalls = plan.schedule(3, Duration::from_secs(9));
        assert!(stalls.len() >= 3 && stalls.iter().all(|stall| stall.node() == Some(3)), "{stalls:?}");
        assert!(stalls.iter().all(|stall| stall.at >= WARM_UP));
        assert!(!matches!(POLICY.parse::<Policy>(), Ok(Policy::None) | Err(_)));
    }

    #[test]
    fn the_table_tells_both_acts_by_their_reads() {
        let done = |millis: u64, is_read| Done {
            due_s: 0.0,
            took: Duration::from_millis(millis),
            is_read,
            has_succeeded: millis < 500,
        };
        let act = |name: &str, extra| Measured {
            name: name.to_owned(),
            done: (1..=100).map(|millis| done(millis, true)).chain([done(900, false)]).collect(),
            faults: Vec::new(),
            extra,
        };
        let kept = Kept { picture: PathBuf::from("a/b.svg"), histogram: PathBuf::from("a/c.hlog") };
        let acts = vec![act("hedging off", 0.0), act("hedging on", 0.0123)];
        let outcome = Outcome { acts, additions: Vec::new(), kept };
        let table = outcome.table();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..2], ["100", "reads"]);
        assert_eq!(lines[1], ["hedging", "off", "50.00", "99.00", "100.00", "100.00", "0.00"]);
        assert_eq!(lines[2].last(), Some(&"1.23"));
        assert!(lines[3].contains(&"a/b.svg") && lines[4].contains(&"a/c.hlog"));
        assert_eq!(outcome.failed(), 2);
    }
}
