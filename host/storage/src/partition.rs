//! The state machine of one replica: applies log entries, each exactly once, and remembers how far it came.

use crate::batch::Batch;
use crate::engine::{Engine, EngineError};
use crate::journal::Journal;
use crate::layout::{APPLIED_KEY, Applied, MEMBERSHIP_KEY};
use crate::read::{Moment, ReadBudget, Reader};
use crate::session::{Known, SWEEP_INTERVAL, Sessions};
use crate::write::Writer;
use bytes::Bytes;
use hedgerow_types::codec::{Malformed, bounds_sessions, decode_proposal};
use hedgerow_types::journal::{EXPIRED_SECONDS, Stamp};
use hedgerow_types::log::{Entry, EntryKind, LogPosition};
use hedgerow_types::op::{Proposal, Read, ReadReply, Write, WriteReply};
use hedgerow_types::time::{LOG_TIME_AHEAD_MAX, log_time_after};
use hedgerow_types::{Index, Sequence};
use std::sync::Arc;

/// A batch that has grown beyond this many bytes is written before the next entry is applied.
const BATCH_SIZE_MAX: usize = 8 << 20;
/// Seconds by which the time must have passed a row's expiry before the row may be dropped for good. The log's time is never
/// set back by a right clock to where such a row lives again, so that replicas which dropped it and others stay equal.
const DROP_DELAY: u32 = 2 * LOG_TIME_AHEAD_MAX;

/// What an entry costs to apply, as bytes that are looked at or written in the time that it takes.
const ENTRY_COST: u64 = 1 << 10;
/// The same for a row that a write looks up. It may have to come from the disk.
pub(crate) const LOOKUP_COST: u64 = 8 << 10;

/// One replica's storage as a state machine. One owner applies; [`Partition::moment`] gives other threads the means to
/// read.
#[derive(Debug)]
pub struct Partition {
    engine: Arc<dyn Engine>,
    reader: Reader,
    applied: Applied,
    membership: Option<Bytes>,
    sessions: Sessions,
    journal: Journal,
    batch: Batch,
    /// What the engine holds: position and membership as of the last batch written.
    written: (Applied, Option<Bytes>),
    /// The time that the engine may drop records by which had expired then.
    drops_until: u32,
    /// Set while a call to `apply` runs: if it fails for good, memory may be ahead of the engine.
    is_broken: bool,
}

/// What became of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// The write ran, now, with this result.
    Reply(WriteReply),
    /// The write had run before; this is the result of then.
    Repeated(WriteReply),
    /// The write did not run now: whether it ran before cannot be told, or its result is not kept, or its number is too far
    /// ahead. Numbers above `floor` and up to `ceiling` are in range.
    SessionWindow {
        /// The number.
        sequence: Sequence,
        /// Numbers up to this one may have been forgotten.
        floor: Sequence,
        /// Numbers above this one are too far ahead.
        ceiling: Sequence,
    },
    /// The entry is no write: a new leader's first entry, or a change of membership.
    Empty,
}

/// Why entries could not be applied. Unless [`ApplyError::is_taken_back`], the partition is of no use then: drop it.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The storage failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A committed entry cannot be understood: damaged, or of a later version.
    #[error("entry {index} of the log cannot be applied")]
    Entry {
        /// Its index.
        index: Index,
        /// Why.
        #[source]
        source: Malformed,
    },
    /// An earlier call failed.
    #[error("the partition failed before")]
    Broken,
}

impl ApplyError {
    /// Whether the partition is at the last entry that it has applied, and takes the next one again: the engine has failed.
    pub fn is_taken_back(&self) -> bool {
        matches!(self, Self::Engine(_))
    }

    /// Whether there is a lack that passes, of space, descriptors or memory.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Engine(error) if error.kind().may_pass())
    }
}

/// A moment in a partition's life, taken before a flush and handed back after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPoint(Applied);

impl FlushPoint {
    /// What was applied then.
    pub const fn position(&self) -> LogPosition {
        self.0.position
    }
}

impl Partition {
    /// The state machine over `engine`, as the engine's content says. The exactly-once table is read when it is first needed,
    /// or handed over before by [`Partition::adopt_sessions`].
    pub fn open(engine: Arc<dyn Engine>) -> Result<Self, EngineError> {
        let applied = engine.get(APPLIED_KEY)?.map_or(Ok(Applied::default()), |row| Applied::decode(&row))?;
        let membership = engine.get(MEMBERSHIP_KEY)?;
        let reader = Reader::new(Arc::clone(&engine), applied.now);
        let sessions = Sessions::default();
        let journal = Journal::open(&*engine)?;
        let written = (applied, membership.clone());
        Ok(Self {
            engine,
            reader,
            applied,
            membership,
            sessions,
            journal,
            batch: Batch::new(),
            written,
            drops_until: 0,
            is_broken: false,
        })
    }

    /// The last entry applied. After a crash and a new open: where to go on applying the log.
    pub const fn applied(&self) -> LogPosition {
        self.applied.position
    }

    /// The membership stored last.
    pub const fn membership(&self) -> Option<&Bytes> {
        self.membership.as_ref()
    }

    /// Begins the life of a new group's replica: nothing is stored yet, and the log will go on after `position`. Durable
    /// after the engine's next flush.
    ///
    /// # Panics
    /// If something was applied already.
    pub fn initialise(&mut self, position: LogPosition, membership: Bytes) -> Result<(), EngineError> {
        assert_eq!(self.applied.position, LogPosition::default(), "only an empty partition is initialised");
        self.applied.position = position;
        self.keep_membership(Some(&membership));
        self.write_batch()
    }

    /// The engine below.
    pub const fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Reads the exactly-once table now, if it is not in memory yet.
    pub fn load_sessions(&mut self) -> Result<(), EngineError> {
        self.sessions.load(&*self.engine, true)
    }

    /// Takes over the exactly-once table that was read from the engine by another thread. Has no effect if it was needed
    /// meanwhile: then it was here already, and may have changed.
    pub fn adopt_sessions(&mut self, sessions: Sessions) {
        self.sessions.adopt(sessions);
    }

    /// Whether the exactly-once table is in memory.
    pub const fn has_sessions(&self) -> bool {
        self.sessions.is_loaded()
    }

    /// Whether `entries` need the exactly-once table, and it was not read since the partition was opened: applying them would read all of it
    /// first.
    pub fn awaits_sessions(&self, entries: &[Entry]) -> bool {
        !self.sessions.was_loaded() && entries.iter().any(needs_sessions)
    }

    /// Bounds the exactly-once table by another number of bytes than [`hedgerow_types::limit::SESSION_BYTES_MAX`]. All
    /// replicas of a group must have the same bound, and must always have had it.
    pub const fn set_session_bytes_max(&mut self, bytes_max: u64) {
        self.sessions.set_bytes_max(bytes_max);
    }

    /// Clients whose results are kept, as far as the exactly-once table is in memory.
    pub fn session_count(&self) -> usize {
        self.sessions.client_count()
    }

    /// Bytes that the exactly-once table counts, as far as it is in memory.
    pub const fn session_bytes(&self) -> u64 {
        self.sessions.bytes()
    }

    /// Applies `entries`, which follow the applied position without a gap, and appends one outcome for each to
    /// `outcomes`. Everything is in the engine when it returns, and durable after the engine's next flush; a crash
    /// before it goes back to an earlier applied position with all that belongs to it. `membership`, if given, is what
    /// holds after the last membership entry among them (or after all, if there is none).
    ///
    /// Entries share one batch up to a size limit. After an error of the engine ([`ApplyError::is_taken_back`]) those with an
    /// outcome are applied, and the others are as if they had never been seen: they can be applied by another call. After any other
    /// error nothing is known of `entries` but that each is applied wholly or not at all; `outcomes` is then meaningless.
    pub fn apply(
        &mut self,
        entries: &[Entry],
        membership: Option<&Bytes>,
        outcomes: &mut Vec<(Index, ApplyOutcome)>,
    ) -> Result<(), ApplyError> {
        self.apply_some(entries, membership, outcomes, u64::MAX).map(|_| ())
    }

    /// As [`Partition::apply`], and stops once what is applied has cost `cost_max`: those with an outcome are applied, at least
    /// one and all up to the last membership entry, and the others as if they had never been seen. Returns the cost, about the
    /// bytes that were looked at and written.
    pub fn apply_some(
        &mut self,
        entries: &[Entry],
        membership: Option<&Bytes>,
        outcomes: &mut Vec<(Index, ApplyOutcome)>,
        cost_max: u64,
    ) -> Result<u64, ApplyError> {
        if std::mem::replace(&mut self.is_broken, true) {
            return Err(ApplyError::Broken);
        }
        let (begun, before) = (outcomes.len(), self.applied.position.index);
        let result = self.apply_entries(entries, membership, outcomes, cost_max);
        match &result {
            Ok(_) => self.is_broken = false,
            Err(error) if error.is_taken_back() => {
                self.take_back();
                outcomes.truncate(begun + (self.applied.position.index - before) as usize);
                self.is_broken = false;
            }
            Err(_) => {}
        }
        result
    }

    fn apply_entries(
        &mut self,
        entries: &[Entry],
        membership: Option<&Bytes>,
        outcomes: &mut Vec<(Index, ApplyOutcome)>,
        cost_max: u64,
    ) -> Result<u64, ApplyError> {
        // Until this position nothing is written, so that no crash separates a change of membership from its record.
        let membership_at = match entries.iter().rposition(|entry| entry.kind == EntryKind::Membership) {
            Some(position) => position,
            None => entries.len().saturating_sub(1),
        };
        if entries.iter().any(needs_sessions) {
            self.sessions.load(&*self.engine, false)?;
        }
        let mut cost = 0;
        for (position, entry) in entries.iter().enumerate() {
            assert_eq!(entry.index, self.applied.position.index + 1, "entries are applied without a gap");
            let before = (self.applied, self.batch.count());
            let may_cut_before = position > 0 && (membership.is_none() || position > membership_at);
            match self.apply_one(entry, &mut cost) {
                Ok(outcome) => outcomes.push((entry.index, outcome)),
                Err(error) => {
                    // The table of results is kept in memory if nothing has to be taken back.
                    if error.may_pass() && may_cut_before && self.batch.count() == before.1 {
                        self.applied = before.0;
                        self.write_batch()?;
                    }
                    return Err(error);
                }
            }
            self.applied.position = entry.position();
            if entry.index.is_multiple_of(SWEEP_INTERVAL) {
                self.sessions.sweep(self.applied.now, &mut self.batch);
            }
            if position == membership_at {
                self.keep_membership(membership);
            }
            let may_cut = position + 1 < entries.len() && (membership.is_none() || position >= membership_at);
            if may_cut && cost >= cost_max {
                break;
            }
            if may_cut && self.batch.size() > BATCH_SIZE_MAX {
                self.write_batch()?;
            }
        }
        if entries.is_empty() {
            self.keep_membership(membership);
        }
        if !entries.is_empty() || membership.is_some() {
            self.write_batch()?;
        }
        Ok(cost)
    }

    /// Goes back to what the engine holds: what came after it is as if it had never been seen.
    fn take_back(&mut self) {
        if !self.batch.is_empty() {
            // Whatever changes the table of results changes a row too.
            self.sessions.unload();
        }
        self.batch.clear();
        self.journal.take_back();
        (self.applied, self.membership) = self.written.clone();
    }

    /// Answers `read` from what is applied. `now` is the caller's time in expiry-epoch seconds, 0 if it knows none; a record
    /// is expired if it would be for a write that came at that time, so that a read never sees what a write takes for
    /// expired.
    pub fn read(&self, read: &Read, now: u32) -> Result<ReadReply, EngineError> {
        self.reader.read(read, now)
    }

    /// The same if no disk is needed for it and it looks at no more than `budget` allows; otherwise `None`.
    pub fn read_at_once(&self, read: &Read, now: u32, budget: ReadBudget) -> Result<Option<ReadReply>, EngineError> {
        self.reader.read_at_once(read, now, budget)
    }

    /// What is applied now, to be read by another thread.
    pub fn moment(&self) -> Result<Moment, EngineError> {
        self.reader.moment()
    }

    /// To be taken before [`Engine::flush`] is called, and to be given to [`Partition::mark_flushed`] after it succeeded.
    pub const fn flush_point(&self) -> FlushPoint {
        FlushPoint(self.applied)
    }

    /// Tells that everything up to `point` is durable, and what time it is (expiry-epoch seconds, 0 = not known). Records
    /// that were expired by then may now be dropped for good: no replay of the log will judge them by an earlier time.
    /// Unless the log's time is wrong and will be set back; that is why the caller's time must be well past them too.
    pub fn mark_flushed(&mut self, point: FlushPoint, now: u32) {
        let until = point.0.now.min(now.saturating_sub(DROP_DELAY));
        // Where rows have stamps, expired ones are remembered for a time.
        let delay = if self.journal.is_kept() { EXPIRED_SECONDS } else { 0 };
        self.permit_drops(until.saturating_sub(delay));
    }

    fn permit_drops(&mut self, until: u32) {
        self.drops_until = until;
        self.engine.set_expire_floor(until);
    }

    /// The latest time in the log, expiry-epoch seconds.
    pub const fn log_time(&self) -> u32 {
        self.applied.now
    }

    fn apply_one(&mut self, entry: &Entry, cost: &mut u64) -> Result<ApplyOutcome, ApplyError> {
        *cost += ENTRY_COST;
        match entry.kind {
            EntryKind::Membership => return Ok(ApplyOutcome::Empty),
            EntryKind::Normal if entry.data.is_empty() => return Ok(ApplyOutcome::Empty),
            EntryKind::Normal => {}
        }
        let proposal =
            decode_proposal(entry.data.clone()).map_err(|source| ApplyError::Entry { index: entry.index, source })?;
        self.advance_log_time(&proposal);
        if bounds_sessions(&entry.data) {
            self.sessions.bound(&mut self.batch);
        }
        let written = self.batch.size();
        let outcome = self.apply_proposal(entry.index, &proposal, cost)?;
        *cost += self.batch.size().saturating_sub(written) as u64;
        self.sessions.trim(&mut self.batch);
        Ok(outcome)
    }

    /// Records that had expired only by a time that is set back here live again.
    fn advance_log_time(&mut self, proposal: &Proposal) {
        let before = self.applied.now;
        self.applied.now = log_time_after(before, proposal.now, proposal.is_agreed);
        if self.applied.now < before {
            tracing::warn!(seconds = before - self.applied.now, "the time of a log was ahead and is set back");
            self.journal.set_back(self.applied.now);
            // What was not durable before is not for that: this permits nothing more.
            self.permit_drops(self.drops_until.min(self.applied.now.saturating_sub(DROP_DELAY)));
        }
    }

    fn apply_proposal(
        &mut self,
        index: Index,
        proposal: &Proposal,
        cost: &mut u64,
    ) -> Result<ApplyOutcome, EngineError> {
        let now = self.applied.now;
        match self.sessions.look_up(proposal, now, &*self.engine, &mut self.batch)? {
            Known::Repeated(reply) => {
                *cost += LOOKUP_COST;
                return Ok(ApplyOutcome::Repeated(reply));
            }
            Known::Refused { floor, ceiling } => {
                return Ok(ApplyOutcome::SessionWindow { sequence: proposal.sequence, floor, ceiling });
            }
            Known::New => {}
        }
        let (begun, stamp) = (self.batch.count(), self.stamp_of(&proposal.write));
        let (engine, batch, journal) = (&*self.engine, &mut self.batch, &mut self.journal);
        let mut writer = Writer { engine, batch, now, stamp, journal, cost: 0 };
        let reply = writer.run(&proposal.write)?;
        *cost += writer.cost;
        self.journal.record(stamp, begun, &mut self.batch)?;
        self.sessions.record(proposal, (index, now), &reply, &mut self.batch);
        Ok(ApplyOutcome::Reply(reply))
    }

    /// The stamp that rows get by `write`; `None` if they get none, or have foreign ones.
    fn stamp_of(&self, write: &Write) -> Option<Stamp> {
        match write {
            Write::Nothing | Write::Duplicate(_) | Write::Journal(_) => None,
            Write::Put { .. }
            | Write::Remove { .. }
            | Write::MultiPut { .. }
            | Write::MultiRemove { .. }
            | Write::Incr { .. }
            | Write::CheckAndMutate { .. } => self.journal.stamp(self.applied.now),
        }
    }

    fn keep_membership(&mut self, membership: Option<&Bytes>) {
        if let Some(membership) = membership {
            self.batch.put(&[MEMBERSHIP_KEY], &[membership]);
            self.membership = Some(membership.clone());
        }
    }

    fn write_batch(&mut self) -> Result<(), EngineError> {
        self.batch.put(&[APPLIED_KEY], &[&self.applied.encode()]);
        self.journal.put(&mut self.batch);
        self.engine.write(&self.batch)?;
        self.batch.clear();
        self.journal.note_written();
        self.reader.advance(self.applied.now);
        self.written = (self.applied, self.membership.clone());
        Ok(())
    }
}

/// Whether applying `entry` looks at the exactly-once table.
fn needs_sessions(entry: &Entry) -> bool {
    let is_write = entry.kind == EntryKind::Normal && !entry.data.is_empty();
    is_write || entry.index.is_multiple_of(SWEEP_INTERVAL)
}
