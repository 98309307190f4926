//! The third judge: what each group's committed log says, and who was shown how much of it when.
//!
//! Whatever a replica applies first is taken from its log and run through the same plain rules by which `linear.rs` judges.
//! So the content of every record at every index is known, and so is the true time at which an index first was applied,
//! and first was acknowledged or shown to any client. A reply tells at which index it was served, which makes the promise of
//! each read level a comparison of indices:
//!
//! | level | the reply's index is not smaller than |
//! |---|---|
//! | all | nothing; but the content is what the log says for that index |
//! | linearizable | every index of a write of the record that anybody was shown before the attempt was sent |
//! | session, and any with a token | what the session was shown |
//! | bounded | every index that anybody was shown longer ago than the bound when it was served, and than the reply says |
//!
//! A replica that applies something, answers from it and is removed in one step takes what it applied with it. Its answers are
//! judged when somebody else has applied as much.
//!
//! A write's index is larger than everything shown before it was asked for. With the first two lines this proves the order
//! of the log to be one that explains the history; `linear.rs` looks for an order without knowing of a log.

use crate::clock::{SECOND, WallTime};
use crate::history::{Answer, Call, Content, Operation, Outcome, Seen, Time, seconds};
use crate::linear;
use crate::machine::Process;
use crate::protocol::Table;
use crate::tap::Begun;
use bytes::Bytes;
use hedgerow_env::sim::SimDisk;
use hedgerow_storage::{ApplyOutcome, EngineError, Engines, MemoryEngines, Partition};
use hedgerow_types::codec::decode_proposal;
use hedgerow_types::limit::SESSION_BYTES_MAX;
use hedgerow_types::log::{Entry, EntryKind, LogPosition};
use hedgerow_types::op::Write;
use hedgerow_types::time::is_expired;
use hedgerow_types::{GroupId, Index, ReadLevel, ReplicaId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A write of a partition by the id of its client and its number there.
pub type WriteId = (u64, u64);

/// For so long after a machine gave up a replica an answer may be of that replica.
const LEFT_FOR: Time = SECOND;

/// A linearizable read sees nothing any more that expired so long ago.
const EXPIRES_WITHIN: Time = 3 * SECOND;

/// The index at which a group's log begins, with nothing in it.
const BEGINNING: Index = 1;

/// What is true of all groups of the table.
#[derive(Debug)]
pub struct Oracle {
    /// What partitions remember of their clients' writes, bytes.
    session_bytes_max: u64,
    groups: BTreeMap<GroupId, Truth>,
    /// What a right wall clock shows.
    wall: WallTime,
    /// The replicas that each machine had after its last step.
    hosted: FxHashMap<usize, Vec<(GroupId, ReplicaId)>>,
    /// Who writes rows that no client uses, by the ids.
    strangers: FxHashSet<u64>,
}

#[derive(Debug)]
struct Truth {
    applied: Index,
    /// Every write that a client has begun.
    calls: FxHashMap<WriteId, (u32, Call)>,
    /// By key: what it holds from an index on.
    versions: FxHashMap<u32, Vec<(Index, Content)>>,
    /// By key and value: when it expires, in expiry-epoch seconds.
    expiries: FxHashMap<(u32, i64), u32>,
    /// What stands at an index.
    writes: FxHashMap<Index, WriteId>,
    done: FxHashSet<WriteId>,
    /// Whose writes are not judged.
    strangers: FxHashSet<u64>,
    /// Applies the log from its beginning, without ever restarting: says which entries are refused because they may have
    /// been applied and forgotten.
    reference: Option<Partition>,
    session_bytes_max: u64,
    heads: Timeline,
    shown: Timeline,
    /// When a machine last gave up a replica.
    left: FxHashMap<usize, Time>,
    /// Answers of such replicas, until what they applied is known.
    early: Vec<Operation>,
}

impl Default for Truth {
    fn default() -> Self {
        Self {
            applied: BEGINNING,
            calls: FxHashMap::default(),
            versions: FxHashMap::default(),
            expiries: FxHashMap::default(),
            writes: FxHashMap::default(),
            done: FxHashSet::default(),
            strangers: FxHashSet::default(),
            reference: None,
            session_bytes_max: SESSION_BYTES_MAX,
            heads: Timeline::default(),
            shown: Timeline::default(),
            left: FxHashMap::default(),
            early: Vec::new(),
        }
    }
}

/// An index that rises in the course of time, with the client to whom each rise is due.
#[derive(Debug, Default)]
struct Timeline {
    rises: Vec<(Time, Index, u32)>,
}

impl Timeline {
    fn rise(&mut self, at: Time, index: Index, client: u32) {
        if self.rises.last().is_none_or(|last| last.1 < index) {
            self.rises.push((at, index, client));
        }
    }

    /// The index at `at`, and when and to whom it came.
    fn at(&self, at: Time) -> (Time, Index, u32) {
        let after = self.rises.partition_point(|rise| rise.0 <= at);
        after.checked_sub(1).map_or((0, BEGINNING, 0), |last| self.rises[last])
    }
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new(SESSION_BYTES_MAX)
    }
}

impl Oracle {
    /// Of groups that remember so much of their clients' writes.
    pub fn new(session_bytes_max: u64) -> Self {
        Self {
            session_bytes_max,
            groups: BTreeMap::new(),
            wall: WallTime::default(),
            hosted: FxHashMap::default(),
            strangers: FxHashSet::default(),
        }
    }

    /// The writes of the client with this id are to rows that nobody else uses.
    pub fn note_stranger(&mut self, id: u64) {
        self.strangers.insert(id);
    }

    /// A client begins a write, so that it may appear in the log of its group.
    pub fn note_begin(&mut self, begun: &Begun) {
        let Begun { group, id, key, call, expire_at } = *begun;
        let truth = self.groups.entry(group).or_default();
        truth.calls.insert(id, (key, call));
        if let (Call::Put(value), 1..) = (call, expire_at) {
            truth.expiries.insert((key, value), expire_at);
        }
    }

    /// `micros` have passed that no steady clock has noticed.
    pub fn note_passed(&mut self, now: Time, micros: u64) {
        self.wall.pass(now, micros);
    }

    /// Follows what `process`, on `machine`, has applied of `table` and nobody before it. Before it is known there is no other. Called after each batch of its events, before
    /// its answers go out.
    pub fn follow(&mut self, machine: usize, process: &Process, table: Option<Table>, now: Time) -> Result<(), String> {
        let replicas = || process.node.replicas_for_inspection().map(|replica| (replica.id, replica.replica));
        self.note_hosted(machine, replicas, now);
        for replica in process.node.replicas_for_inspection() {
            let applied = replica.applied();
            let known = self.groups.get(&replica.id).map_or(BEGINNING, |truth| truth.applied);
            let is_ours = replica.id != GroupId::META && table.is_none_or(|table| table.has(replica.id));
            if !is_ours || applied <= known {
                continue;
            }
            let truth = self.groups.entry(replica.id).or_default();
            truth.session_bytes_max = self.session_bytes_max;
            truth.strangers.clone_from(&self.strangers);
            let failed = |why: String| format!("the log of {} ({}): {why}", replica.replica, replica.id);
            let entries = process.entries(&replica, known + 1, applied).map_err(failed)?;
            entries.iter().try_for_each(|entry| truth.apply(entry)).map_err(failed)?;
            if truth.applied != applied {
                return Err(failed(format!("it ends at {}, but {applied} is applied", truth.applied)));
            }
            truth.heads.rise(now, applied, 0);
            truth.judge_early(&self.wall)?;
        }
        Ok(())
    }

    fn note_hosted<R: Iterator<Item = (GroupId, ReplicaId)>>(
        &mut self,
        machine: usize,
        replicas: impl Fn() -> R,
        now: Time,
    ) {
        let before = self.hosted.entry(machine).or_default();
        if replicas().eq(before.iter().copied()) {
            return;
        }
        let before = std::mem::replace(before, replicas().collect());
        for (group, _) in before.iter().filter(|one| !replicas().any(|other| other == **one)) {
            self.groups.entry(*group).or_default().left.insert(machine, now);
        }
    }

    /// Judges an operation on `group` that ended just now, and takes note of what its client was shown. The error says which
    /// promise is broken.
    pub fn handle_operation(&mut self, group: GroupId, operation: &Operation) -> Result<(), String> {
        let judged = self.judge(group, operation);
        if let (Outcome::Ok(answer), Some(seen)) = (operation.outcome, operation.seen) {
            let truth = self.groups.entry(group).or_default();
            if let Some(index) = seen.index.or_else(|| truth.oldest_with(operation.key, answer)) {
                truth.shown.rise(operation.end, index, operation.client);
            }
        }
        judged
    }

    /// Judges an operation on `group`.
    pub fn judge(&mut self, group: GroupId, operation: &Operation) -> Result<(), String> {
        let truth = self.groups.entry(group).or_default();
        if operation.seen.is_some_and(|seen| truth.has_left(&seen) && seen.index > Some(truth.applied)) {
            truth.early.push(*operation);
            return Ok(());
        }
        truth.judge(operation, &self.wall)
    }

    /// An answer that rests on what nobody ever applied but a replica that was removed.
    pub fn find_unjudged(&self) -> Option<String> {
        let operation = self.groups.values().flat_map(|truth| &truth.early).next()?;
        Some(format!("nobody else has applied what {} saw\n  {operation}", kind_of(operation)))
    }
}

impl Truth {
    fn judge(&self, operation: &Operation, wall: &WallTime) -> Result<(), String> {
        let (Outcome::Ok(answer), Some(seen)) = (operation.outcome, operation.seen) else { return Ok(()) };
        let judged = match (operation.call, answer) {
            (Call::Get(level), Answer::Content(content)) => {
                self.judge_read((operation.key, level), content, &seen, wall)
            }
            (Call::Get(_), _) => Err("that is no answer to a read".into()),
            _ => self.judge_write(operation, &seen),
        };
        judged.map_err(|why| format!("{} is wrong: {why}\n  {operation}", kind_of(operation)))
    }

    /// Judges what waited for what is applied by now.
    fn judge_early(&mut self, wall: &WallTime) -> Result<(), String> {
        let is_due = |operation: &Operation| operation.seen.is_some_and(|seen| seen.index <= Some(self.applied));
        let (due, early) = std::mem::take(&mut self.early).into_iter().partition(is_due);
        self.early = early;
        let due: Vec<Operation> = due;
        due.iter().try_for_each(|operation| self.judge(operation, wall))
    }

    /// Whether the answer may come from a replica that its machine gave up in the step that answered. It may have waited a while
    /// for its connection.
    fn has_left(&self, seen: &Seen) -> bool {
        self.left.get(&seen.machine).is_some_and(|at| (*at..*at + LEFT_FOR).contains(&seen.served))
    }

    /// How much anybody had applied when the answer was given. What a replica that has left had applied is not known.
    fn head(&self, seen: &Seen) -> Index {
        if self.has_left(seen) { self.applied } else { self.heads.at(seen.served).1 }
    }

    fn apply(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.index != self.applied + 1 {
            return Err(format!("entry {} comes after {}", entry.index, self.applied));
        }
        self.applied = entry.index;
        let outcome = self.refer(entry)?;
        if entry.kind != EntryKind::Normal || entry.data.is_empty() {
            return Ok(());
        }
        let proposal = decode_proposal(entry.data.clone()).map_err(|error| error.to_string())?;
        let id = (proposal.client.0, proposal.sequence);
        // Of duplication, which changes no record of clients here: those that come back are theirs, as they were.
        if matches!(proposal.write, Write::Journal(_) | Write::Duplicate(_)) || self.strangers.contains(&id.0) {
            return Ok(());
        }
        let Some((key, call)) = self.calls.get(&id) else {
            return Err(format!("entry {} is a write that nobody asked for: {proposal:?}", entry.index));
        };
        self.writes.insert(entry.index, id);
        if matches!(outcome, ApplyOutcome::Repeated(_)) && !self.done.contains(&id) {
            return Err(format!("entry {} is taken for a repetition, but is none: {proposal:?}", entry.index));
        }
        if matches!(outcome, ApplyOutcome::Reply(_)) {
            if !self.done.insert(id) {
                return Err(format!("entry {} is applied, but was before: {proposal:?}", entry.index));
            }
            let versions = self.versions.entry(*key).or_default();
            let before = versions.last().and_then(|version| version.1);
            let after = linear::step(before, call, None).ok_or_else(|| format!("{call:?} cannot follow {before:?}"))?;
            versions.push((entry.index, after));
        }
        Ok(())
    }

    /// What becomes of `entry` on a replica that has applied all before it.
    fn refer(&mut self, entry: &Entry) -> Result<ApplyOutcome, String> {
        let reference = match &mut self.reference {
            Some(reference) => reference,
            none => none.insert(reference(entry, self.session_bytes_max).map_err(|error| error.to_string())?),
        };
        let mut outcomes = Vec::new();
        reference.apply(std::slice::from_ref(entry), None, &mut outcomes).map_err(|error| error.to_string())?;
        outcomes.pop().map(|(_, outcome)| outcome).ok_or_else(|| format!("entry {} has no outcome", entry.index))
    }

    fn content(&self, key: u32, at: Index) -> Content {
        let versions = self.versions.get(&key).map_or(&[][..], Vec::as_slice);
        let after = versions.partition_point(|version| version.0 <= at);
        after.checked_sub(1).and_then(|last| versions[last].1)
    }

    /// The last index at which the record of `key` is as it was at `index`.
    fn untouched_until(&self, key: u32, index: Index) -> Index {
        let versions = self.versions.get(&key).map_or(&[][..], Vec::as_slice);
        let after = versions.partition_point(|version| version.0 <= index);
        versions.get(after).map_or(self.applied, |next| next.0 - 1).max(index)
    }

    fn judge_read(
        &self,
        (key, level): (u32, ReadLevel),
        content: Content,
        seen: &Seen,
        wall: &WallTime,
    ) -> Result<(), String> {
        let Some(index) = seen.index else { return self.judge_silent((key, level), content, seen, wall) };
        let head = self.head(seen);
        if index > head {
            return Err(format!("nobody had applied index {index} then; the last one was {head}"));
        }
        let truth = self.content(key, index);
        if truth != content && !(content.is_none() && self.may_be_over(key, truth, seen.served, wall)) {
            return Err(format!("at index {index} the record held {truth:?}"));
        }
        if level == ReadLevel::Linearizable && self.is_long_over(key, content, seen.served, wall) {
            return Err("it had expired long before".into());
        }
        // A majority's logs vouch for the record and not for the whole partition (decision 018).
        let index = if level == ReadLevel::Linearizable { self.untouched_until(key, index) } else { index };
        let (floor, why) = self.floor(level, seen);
        if index < floor {
            return Err(why);
        }
        if index < seen.floor {
            return Err(format!("its session had been shown index {}", seen.floor));
        }
        self.judge_staleness(level, index, seen)
    }

    /// Whether `content` may count as expired at `at`: not before its time.
    fn may_be_over(&self, key: u32, content: Content, at: Time, wall: &WallTime) -> bool {
        is_expired(self.expiry(key, content), wall.expiry_seconds(at + SECOND))
    }

    /// Whether everybody knows at `at` that `content` has expired.
    fn is_long_over(&self, key: u32, content: Content, at: Time, wall: &WallTime) -> bool {
        let since = at.saturating_sub(EXPIRES_WITHIN);
        wall.is_believed(since) && is_expired(self.expiry(key, content), wall.expiry_seconds(since))
    }

    fn expiry(&self, key: u32, content: Content) -> u32 {
        content.and_then(|value| self.expiries.get(&(key, value))).copied().unwrap_or(0)
    }

    /// The answer says no index: some index will do that was not too old then.
    fn judge_silent(
        &self,
        (key, level): (u32, ReadLevel),
        content: Content,
        seen: &Seen,
        wall: &WallTime,
    ) -> Result<(), String> {
        let ((floor, why), head) = (self.floor(level, seen), self.head(seen));
        let versions = self.versions.get(&key).map_or(&[][..], Vec::as_slice);
        let later = versions.iter().filter(|version| (floor + 1..=head).contains(&version.0));
        let fits =
            |held: Content| held == content || content.is_none() && self.may_be_over(key, held, seen.served, wall);
        if fits(self.content(key, floor)) || later.into_iter().any(|version| fits(version.1)) {
            return Ok(());
        }
        Err(format!("the record held that at no index from {floor} to {head}; {why}"))
    }

    /// The least index that a read of `level` may have been served at, and what is wrong with a smaller one.
    fn floor(&self, level: ReadLevel, seen: &Seen) -> (Index, String) {
        match level {
            ReadLevel::Linearizable => {
                let (at, index, client) = self.shown.at(seen.asked);
                let when = seconds(at);
                (index, format!("client {client} had been shown index {index} at {when:.6}, before it was asked"))
            }
            // Looked at apart, since other reads may carry a token too.
            ReadLevel::Session => (BEGINNING, String::new()),
            ReadLevel::Bounded(bound) => {
                let since = seen.served.saturating_sub(bound.as_nanos() as Time);
                let (at, index, client) = self.shown.at(since);
                let (age, bound) = (seconds(seen.served - at), bound.as_secs_f64());
                (index, format!("client {client} had been shown index {index} {age:.6} s before, bound {bound:.3} s"))
            }
            ReadLevel::Eventual => (BEGINNING, String::new()),
        }
    }

    /// What the reply says of its own age must be true. That of a linearizable read counts from its arrival.
    fn judge_staleness(&self, level: ReadLevel, index: Index, seen: &Seen) -> Result<(), String> {
        let Some(staleness) = seen.staleness else {
            let is_owed = matches!(level, ReadLevel::Bounded(_));
            return if is_owed { Err("the reply does not say how old it is".into()) } else { Ok(()) };
        };
        if let ReadLevel::Bounded(bound) = level
            && staleness > bound.as_nanos() as Time
        {
            let (staleness, bound) = (seconds(staleness), bound.as_secs_f64());
            return Err(format!("it says that it is {staleness:.3} s old, and the bound is {bound:.3} s"));
        }
        let from = if level == ReadLevel::Linearizable { seen.asked } else { seen.served };
        let (at, floor, client) = self.shown.at(from.saturating_sub(staleness));
        if index < floor {
            let (staleness, age) = (seconds(staleness), seconds(from - at));
            return Err(format!(
                "it says that it is at most {staleness:.3} s old, but client {client} was shown index {floor} {age:.6} s before"
            ));
        }
        Ok(())
    }

    fn judge_write(&self, operation: &Operation, seen: &Seen) -> Result<(), String> {
        let Some(index) = seen.index else { return Err("the reply does not say its index".into()) };
        let entry = self.writes.get(&index).and_then(|id| self.calls.get(id));
        if entry != Some(&(operation.key, operation.call)) {
            return Err(format!("index {index} holds {entry:?}"));
        }
        let (at, shown, client) = self.shown.at(operation.start);
        if index <= shown {
            let when = seconds(at);
            return Err(format!("client {client} had been shown index {shown} at {when:.6}, before it was asked for"));
        }
        Ok(())
    }

    /// The first index at which `key` held what was answered to a reader who was told no index.
    fn oldest_with(&self, key: u32, answer: Answer) -> Option<Index> {
        let Answer::Content(content @ Some(_)) = answer else { return None };
        self.versions.get(&key)?.iter().find(|version| version.1 == content).map(|version| version.0)
    }
}

/// A partition that has applied what comes before `first`, which is nothing.
fn reference(first: &Entry, session_bytes_max: u64) -> Result<Partition, EngineError> {
    let engines = MemoryEngines::new(Arc::new(SimDisk::new()));
    let mut partition = Partition::open(engines.open(Path::new("/reference"))?)?;
    partition.set_session_bytes_max(session_bytes_max);
    let beginning = LogPosition { term: 1, index: first.index - 1 };
    partition.initialise(beginning, Bytes::new())?;
    Ok(partition)
}

const fn kind_of(operation: &Operation) -> &'static str {
    match operation.call {
        Call::Get(ReadLevel::Linearizable) => "a linearizable read",
        Call::Get(ReadLevel::Session) => "a session read",
        Call::Get(ReadLevel::Bounded(_)) => "a bounded read",
        Call::Get(ReadLevel::Eventual) => "an eventual read",
        Call::Put(_) | Call::Remove | Call::Incr(_) | Call::Swap { .. } => "a write",
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
