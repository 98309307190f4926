//! Counts over one run or many.

use crate::history::{Operation, Outcome, Time};
use hedgerow_node::job::Job;
use std::collections::BTreeMap;
use std::fmt;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs.
    pub runs: u64,
    /// Runs by scenario.
    pub scenarios: BTreeMap<&'static str, u64>,
    /// Virtual time.
    pub virtual_time: Time,
    /// Events.
    pub events: u64,
    /// Operations that were acknowledged.
    pub ok: u64,
    /// Operations that failed for sure, and reads without an answer.
    pub failed: u64,
    /// Writes whose outcome their client never learned.
    pub unknown: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Elections won.
    pub elections: u64,
    /// Elections won by another replica than the group's last leader.
    pub failovers: u64,
    /// Processes and machines that died.
    pub crashes: u64,
    /// Nodes that gave up because of their disk.
    pub node_failures: u64,
    /// Checkpoints installed on a learning replica.
    pub snapshots: u64,
    /// Storage flushes.
    pub flushes: u64,
    /// Reads of log entries that were no longer in memory.
    pub fetches: u64,
    /// Keys whose history was too large to judge.
    pub undecided: u64,
}

impl Stats {
    /// Counts a job.
    pub fn note_job(&mut self, job: &Job) {
        match job {
            Job::Install { .. } => self.snapshots += 1,
            Job::Flush { .. } => self.flushes += 1,
            Job::Fetch { .. } => self.fetches += 1,
            Job::Create { .. }
            | Job::Checkpoint { .. }
            | Job::ReadChunk { .. }
            | Job::WriteChunk { .. }
            | Job::Read { .. }
            | Job::Remove { .. } => {}
        }
    }

    /// Counts an operation.
    pub fn note_operation(&mut self, operation: &Operation) {
        match operation.outcome {
            Outcome::Ok(_) => self.ok += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
    }

    /// Counts a fault.
    pub fn note_fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.virtual_time += other.virtual_time;
        self.events += other.events;
        self.ok += other.ok;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.elections += other.elections;
        self.failovers += other.failovers;
        self.crashes += other.crashes;
        self.node_failures += other.node_failures;
        self.snapshots += other.snapshots;
        self.flushes += other.flushes;
        self.fetches += other.fetches;
        self.undecided += other.undecided;
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (name, count) in &other.scenarios {
            *self.scenarios.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<&'static str, u64>| {
            let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            parts.join(", ")
        };
        writeln!(
            f,
            "runs        {} ({:.0} s of virtual time, {} events)",
            self.runs,
            self.virtual_time as f64 / 1e9,
            self.events
        )?;
        writeln!(f, "scenarios   {}", list(&self.scenarios))?;
        writeln!(
            f,
            "operations  {} acknowledged, {} failed, {} of unknown outcome",
            self.ok, self.failed, self.unknown
        )?;
        writeln!(f, "elections   {}, of which {} moved the leadership", self.elections, self.failovers)?;
        writeln!(f, "crashes     {} by the nemesis, {} nodes gave up on a bad disk", self.crashes, self.node_failures)?;
        writeln!(
            f,
            "storage     {} flushes, {} snapshots installed, {} reads of old log entries",
            self.flushes, self.snapshots, self.fetches
        )?;
        write!(f, "faults      {}", list(&self.faults))?;
        if self.undecided > 0 {
            write!(f, "\nundecided   {} keys had too large a history to judge", self.undecided)?;
        }
        Ok(())
    }
}
