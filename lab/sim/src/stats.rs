//! Counts over one run or many.

use crate::history::{Call, Operation, Outcome, Time};
use hedgerow_hedge::Kind;
use hedgerow_node::job::Job;
use hedgerow_replication::Role;
use hedgerow_types::{ReadLevel, Refusal};
use std::collections::BTreeMap;
use std::fmt;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs.
    pub runs: u64,
    /// Runs by scenario.
    pub scenarios: BTreeMap<&'static str, u64>,
    /// Runs by storage engine.
    pub engines: BTreeMap<&'static str, u64>,
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
    /// Answered reads by level and by the role of the replica that answered.
    pub reads: BTreeMap<&'static str, u64>,
    /// Answers to reads that were no longer waited for, and judged all the same.
    pub late_reads: u64,
    /// Scans and batches, by what they are.
    pub surveys: BTreeMap<&'static str, u64>,
    /// Runs in which the clients' table was duplicated, by where it was.
    pub duplicated: BTreeMap<&'static str, u64>,
    /// What was done with other tables meanwhile.
    pub tables: BTreeMap<&'static str, u64>,
    /// Attempts of raced operations, by why they were sent.
    pub raced: BTreeMap<&'static str, u64>,
    /// Refused attempts by reason.
    pub refusals: BTreeMap<&'static str, u64>,
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
            | Job::Verify { .. }
            | Job::VerifyOwn { .. }
            | Job::WriteChunk { .. }
            | Job::Read { .. }
            | Job::Debt { .. }
            | Job::Space { .. }
            | Job::SaveCatalogue { .. }
            | Job::Tell { .. }
            | Job::Errands { .. }
            | Job::LoadSessions { .. }
            | Job::Remove { .. } => {}
        }
    }

    /// Counts an operation, answered by a replica of that role.
    pub fn note_operation(&mut self, operation: &Operation, role: Option<Role>) {
        match operation.outcome {
            Outcome::Ok(_) => self.ok += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Unknown => self.unknown += 1,
        }
        if let (Call::Get(level), Outcome::Ok(_), Some(role)) = (operation.call, operation.outcome, role) {
            *self.reads.entry(read_name(level, role)).or_default() += 1;
        }
    }

    /// Reads of `level` that replicas of `role` answered.
    pub fn reads_of(&self, level: ReadLevel, role: Role) -> u64 {
        self.reads.get(read_name(level, role)).copied().unwrap_or(0)
    }

    /// Counts an attempt of a raced operation.
    pub fn note_attempt(&mut self, kind: Kind, is_write: bool) {
        let name = match (kind, is_write) {
            (Kind::First, false) => "first read",
            (Kind::First, true) => "first write",
            (Kind::Hedge, false) => "hedged read",
            (Kind::Hedge, true) => "speculated write",
            (Kind::Tie, _) => "tied read",
            (Kind::Retry, false) => "retried read",
            (Kind::Retry, true) => "retried write",
            (Kind::Fallback, _) => "fallback",
        };
        *self.raced.entry(name).or_default() += 1;
    }

    /// Attempts of raced operations that were sent for this reason, by its name in the summary.
    pub fn raced_as(&self, name: &str) -> u64 {
        self.raced.get(name).copied().unwrap_or(0)
    }

    /// Counts an attempt that was refused.
    pub fn note_refusal(&mut self, refusal: &Refusal) {
        let name = match refusal {
            Refusal::NotLeader { .. } => "not leader",
            Refusal::NotReady(_) => "not ready",
            Refusal::Lagging(_) => "lagging",
            Refusal::NotHosted => "not hosted",
            Refusal::Busy(_) | Refusal::BusyFor { .. } => "busy",
            Refusal::Throttled => "throttled",
            Refusal::Withdrawn => "withdrawn",
            Refusal::Unresolved => "unresolved",
            Refusal::Expired => "expired",
            Refusal::Stopping(_) => "stopping",
            Refusal::SessionWindow { .. }
            | Refusal::Invalid(_)
            | Refusal::TooLarge(_)
            | Refusal::DiskFull(_)
            | Refusal::NotAllowed(_)
            | Refusal::NoTable
            | Refusal::Creating
            | Refusal::TableExists
            | Refusal::FailedPrecondition(_)
            | Refusal::Unknown => "other",
        };
        *self.refusals.entry(name).or_default() += 1;
    }

    /// Operations of clients that have ended. One that reads many records is one.
    pub fn operations(&self) -> u64 {
        self.ok + self.failed + self.unknown + self.surveys.values().sum::<u64>()
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
        self.late_reads += other.late_reads;
        add_all(&mut self.reads, &other.reads);
        add_all(&mut self.surveys, &other.surveys);
        add_all(&mut self.duplicated, &other.duplicated);
        add_all(&mut self.tables, &other.tables);
        add_all(&mut self.raced, &other.raced);
        add_all(&mut self.refusals, &other.refusals);
        add_all(&mut self.faults, &other.faults);
        add_all(&mut self.scenarios, &other.scenarios);
        add_all(&mut self.engines, &other.engines);
    }
}

fn add_all(counts: &mut BTreeMap<&'static str, u64>, others: &BTreeMap<&'static str, u64>) {
    for (name, count) in others {
        *counts.entry(name).or_default() += count;
    }
}

/// A replica that campaigns serves, if at all, as the follower that it was.
const fn read_name(level: ReadLevel, role: Role) -> &'static str {
    match (level, role) {
        (ReadLevel::Linearizable, Role::Leader) => "linearizable at leader",
        (ReadLevel::Linearizable, Role::Follower | Role::Candidate) => "linearizable at follower",
        (ReadLevel::Linearizable, Role::Learner) => "linearizable at learner",
        (ReadLevel::Session, Role::Leader) => "session at leader",
        (ReadLevel::Session, Role::Follower | Role::Candidate) => "session at follower",
        (ReadLevel::Session, Role::Learner) => "session at learner",
        (ReadLevel::Bounded(_), Role::Leader) => "bounded at leader",
        (ReadLevel::Bounded(_), Role::Follower | Role::Candidate) => "bounded at follower",
        (ReadLevel::Bounded(_), Role::Learner) => "bounded at learner",
        (ReadLevel::Eventual, Role::Leader) => "eventual at leader",
        (ReadLevel::Eventual, Role::Follower | Role::Candidate) => "eventual at follower",
        (ReadLevel::Eventual, Role::Learner) => "eventual at learner",
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
        writeln!(f, "engines     {}", list(&self.engines))?;
        writeln!(
            f,
            "operations  {} acknowledged, {} failed, {} of unknown outcome",
            self.ok, self.failed, self.unknown
        )?;
        writeln!(f, "reads       {}, answered too late {}", list(&self.reads), self.late_reads)?;
        writeln!(f, "surveys     {}", list(&self.surveys))?;
        writeln!(f, "duplicated  {}", list(&self.duplicated))?;
        writeln!(f, "tables      {}", list(&self.tables))?;
        writeln!(f, "raced       {}", list(&self.raced))?;
        writeln!(f, "refusals    {}", list(&self.refusals))?;
        writeln!(f, "elections   {}, of which {} moved the leadership", self.elections, self.failovers)?;
        writeln!(f, "crashes     {} by the nemesis, {} nodes gave up on a bad disk", self.crashes, self.node_failures)?;
        writeln!(
            f,
            "storage     {} flushes, {} snapshots installed, {} reads of old log entries",
            self.flushes, self.snapshots, self.fetches
        )?;
        write!(f, "faults      {}", list(&self.faults))
    }
}
