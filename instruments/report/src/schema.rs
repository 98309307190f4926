//! The form of `result.json`, version 3. Whoever changes a field's meaning or adds one raises the version. Version 2 has no
//! [`Hedging::held_up`] and no [`ExtraAttempts::sent_late`], version 1 no [`Run::hedging`]; they are the same otherwise.
//!
//! Latencies are in microseconds. A percentile is `None` where there are too few samples for it: p99.9 needs 100,000,
//! p99.99 needs 1,000,000. Requests that failed or timed out are samples like any other.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `schema` holds.
pub const SCHEMA: &str = "hedgerow-result";
/// The version that is written.
pub const VERSION: u32 = 3;
/// The oldest version that is read.
pub const VERSION_MIN: u32 = 1;

/// Everything a run of `hedgerow bench` or `hedgerow experiment` measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The version of the form; see [`VERSION`].
    pub version: u32,
    /// One line for headings, for example `scale: connections`.
    pub title: String,
    /// The command that gives this again, word by word.
    pub command: Vec<String>,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// What it ran on.
    pub machine: Machine,
    /// The seed of everything that was drawn.
    pub seed: u64,
    /// The text of the workload files, by the name that runs refer to.
    pub workloads: BTreeMap<String, String>,
    /// The text of the fault plan, if there was one.
    pub fault_plan: Option<String>,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// Tables for people: ours beside the published ones, ratios between variants.
    pub tables: Vec<Table>,
    /// What had to hold for the figures to mean something.
    pub checks: Vec<Check>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's own name.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// The version of Hedgerow, with the commit where it is known.
    pub hedgerow: String,
}

/// One measurement of one variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// What is compared, for example `connections=64`.
    pub variant: String,
    /// From 1.
    pub repetition: u32,
    /// The workload's name in [`Outcome::workloads`].
    pub workload: String,
    /// Seconds from the beginning of the whole outcome to the beginning of the measurement.
    pub begin_s: f64,
    /// Seconds measured, without warm-up.
    pub duration_s: f64,
    /// `open` or `closed`.
    pub loop_kind: LoopKind,
    /// Requests that were due per second; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Requests that were answered with success, per second.
    pub achieved_per_s: f64,
    /// Why the figures mean nothing, if they do: the generator was the bottleneck.
    pub void: Option<String>,
    /// How late requests were sent, against when they were due; `None` in a closed loop.
    pub send_lag_us: Option<Latency>,
    /// CPU seconds of the generator's processes during the measurement.
    pub generator_cpu_s: f64,
    /// CPU seconds of each server process during the measurement, by name; empty where it cannot be known.
    pub server_cpu_s: BTreeMap<String, f64>,
    /// Figures by operation: `get`, `set`, `multi_get`, `batch_set`, `scan`, ...
    pub operations: Vec<Operation>,
    /// One entry per second of the measurement.
    pub timeline: Vec<Second>,
    /// Faults that were switched during the measurement.
    pub faults: Vec<FaultMark>,
    /// Further figures by name with the unit last, for example `resident_mib` or `hedges_sent_percent`.
    pub extra: BTreeMap<String, f64>,
    /// Attempts beyond the first, where the load sends any; since version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedging: Option<Hedging>,
}

/// What extra attempts were sent during a measurement, as the clients counted them, and what became of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hedging {
    /// First attempts.
    pub first: u64,
    /// Extra attempts by kind: `hedge`, `tie`, `retry`, `fallback`.
    pub kinds: BTreeMap<String, ExtraAttempts>,
    /// Attempts of any kind that were given up because another had decided.
    pub cancelled: u64,
    /// Attempts of any kind that their servers dropped unrun.
    pub dropped: u64,
    /// Milliseconds that attempts which decided nothing were waited for, together.
    pub wasted_ms: f64,
    /// How often the clients themselves were held up; since version 3, and absent if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_up: Option<HeldUp>,
    /// Attempts by the address of the node that was asked.
    pub nodes: BTreeMap<String, NodeAttempts>,
    /// Reads by the level at which they were served, where replicas tell it.
    pub served_levels: BTreeMap<String, u64>,
    /// Reads that servers executed beyond those that were asked for, percent; `None` where servers were not asked. It counts
    /// from the beginning of the warm-up to the end of the last reply.
    pub extra_work_percent: Option<f64>,
    /// What servers count of extra attempts themselves, by its name, all servers together; as above.
    pub servers: BTreeMap<String, u64>,
}

/// Extra attempts of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraAttempts {
    /// Those that were sent.
    pub sent: u64,
    /// Of these, those that decided their request.
    pub won: u64,
    /// Those that were due and not sent then, for want of budget.
    pub suppressed: u64,
    /// Of these, those that were sent later, when there was budget again; since version 3.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_late: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl ExtraAttempts {
    /// The counts in words, each written as `number` does.
    pub fn told(&self, number: impl Fn(u64) -> String) -> String {
        let [sent, won, suppressed] = [self.sent, self.won, self.suppressed].map(&number);
        let text = format!("{sent} sent, {won} won, {suppressed} suppressed");
        if self.sent_late == 0 { text } else { format!("{text}, {} of these sent late", number(self.sent_late)) }
    }
}

/// Times at which what a client was to do came late because of its own process or machine: no node was slow then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldUp {
    /// How many.
    pub count: u64,
    /// How late it was, together, ms.
    pub total_ms: f64,
    /// Extra attempts that were put off, so that replies were read first.
    pub put_off: u64,
}

/// Attempts at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAttempts {
    /// All that were sent there.
    pub attempts: u64,
    /// Of these, those that were not the first of their request.
    pub extra: u64,
    /// Those that succeeded.
    pub successes: u64,
    /// Those that failed.
    pub errors: u64,
    /// Those that were given up.
    pub cancelled: u64,
    /// How long all of them took together, ms.
    pub latency_ms: f64,
}

impl Hedging {
    /// Extra attempts of all kinds.
    pub fn extra(&self) -> u64 {
        self.kinds.values().map(|kind| kind.sent).sum()
    }

    /// Extra attempts in percent of the first ones.
    pub fn extra_percent(&self) -> f64 {
        if self.first == 0 { 0.0 } else { self.extra() as f64 * 100.0 / self.first as f64 }
    }
}

/// How requests are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoopKind {
    /// At times fixed beforehand; latency counts from then.
    #[default]
    Open,
    /// The next one when a reply has come.
    Closed,
}

/// Figures of one kind of operation in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// All that ended, errors and timeouts included.
    pub count: u64,
    /// Those that ended with an error other than a timeout.
    pub errors: u64,
    /// Those that timed out.
    pub timeouts: u64,
    /// From when it was due (open loop) or sent (closed loop) to its end.
    pub latency_us: Latency,
    /// The histogram log with all samples in nanoseconds, as a path below the folder.
    pub histogram: String,
}

/// A summary of latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile, of at least 100,000 samples.
    pub p999: Option<f64>,
    /// 99.99th percentile, of at least 1,000,000 samples.
    pub p9999: Option<f64>,
    /// The largest.
    pub max: f64,
}

/// One second of a run, all operations together. Requests are counted in the second in which they were due.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Second {
    /// From 0.
    pub second: u32,
    /// Requests that ended.
    pub count: u64,
    /// Those without success.
    pub errors: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
}

/// A fault during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultMark {
    /// What, and where, for example `stall node 2`.
    pub label: String,
    /// Seconds from the beginning of the run's measurement; may be negative.
    pub begin_s: f64,
    /// As above.
    pub end_s: f64,
}

/// A table for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Headings of the columns, with units.
    pub columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// What a reader must know, sources included.
    pub notes: Vec<String>,
}

/// Something that had to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What had to hold.
    pub name: String,
    /// Whether it did.
    pub has_passed: bool,
    /// The figures that say so.
    pub detail: String,
}
