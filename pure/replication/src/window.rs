//! The log as the consensus core sees it: the terms of all entries, and in memory the entries that are still needed.
//!
//! Older entries stay on disk only. When a follower needs them the core asks here, the request becomes a [`Fetch`], and
//! the answer is kept just long enough for the core to ask again.

use crate::membership::Membership;
use crate::message::core_snapshot;
use crate::ready::{Fetch, SnapshotMeta, StartError};
use hedgerow_types::log::{self, LogPosition};
use hedgerow_types::{Index, ReplicaId, Term};
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;

/// The term of entries whose term is known only on disk.
const UNKNOWN: Term = Term::MAX;
/// What an entry in memory costs besides its data, bytes.
pub(crate) const ENTRY_OVERHEAD: usize = 128;
/// Ticks after which an unanswered fetch may be asked again.
const FETCH_TICKS_MAX: u32 = 20;
/// Ticks after which a checkpoint that did not come may be asked for again.
const CHECKPOINT_TICKS_MAX: u32 = 10;
/// Appends that may wait for one fetch. More are dropped: heartbeats make the core try again.
const WAITING_APPENDS_MAX: usize = 16;

/// A stretch of entries of one term, from `first` to where the next one begins.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: Index,
    term: Term,
}

/// Entries read from disk for the append that waits for them.
struct Fetched {
    low: Index,
    entries: Vec<Entry>,
}

struct Waiting {
    fetch: Fetch,
    low: Index,
    ticks: u32,
    appends: Vec<GetEntriesContext>,
}

/// What the core asked for while it held the window by shared reference.
#[derive(Default)]
struct Asked {
    id_last: u64,
    waiting: Vec<Waiting>,
    new: Vec<Fetch>,
    wants_checkpoint: bool,
    /// Ticks until a checkpoint may be asked for (again).
    checkpoint_ticks: u32,
}

pub(crate) struct Window {
    hard_state: HardState,
    conf_state: ConfState,
    start: LogPosition,
    /// Not empty; the first begins at `start`.
    runs: VecDeque<Run>,
    /// The last entries of the log.
    entries: VecDeque<Entry>,
    size: usize,
    last: Index,
    checkpoint: Option<SnapshotMeta>,
    fetched: Option<Fetched>,
    /// The last entry whose term was learned from disk: an append names the one before its first.
    learned: LogPosition,
    fetch_size_max: u64,
    asked: RefCell<Asked>,
}

impl Window {
    /// The log that begins after `start`. `entries` as in [`crate::Start`].
    pub(crate) fn new(
        start: LogPosition,
        entries: Vec<log::Entry>,
        applied: LogPosition,
        fetch_size_max: u64,
    ) -> core::result::Result<Self, StartError> {
        let first = entries.first().map_or(start.index + 1, |entry| entry.index);
        if first <= start.index || first > applied.index.max(start.index) + 1 {
            return Err(StartError::Entries(first));
        }
        let mut runs = VecDeque::from([Run { first: start.index, term: start.term }]);
        if first > start.index + 1 {
            runs.push_back(Run { first: start.index + 1, term: UNKNOWN });
        }
        if first == applied.index + 1 && applied.index > start.index {
            if applied.index == start.index + 1 {
                runs.pop_back();
            }
            runs.push_back(Run { first: applied.index, term: applied.term });
        }
        let mut window = Self {
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            start,
            runs,
            entries: VecDeque::new(),
            size: 0,
            last: first - 1,
            checkpoint: None,
            fetched: None,
            learned: start,
            fetch_size_max,
            asked: RefCell::default(),
        };
        let mut term = start.term;
        for entry in entries {
            if entry.index != window.last + 1 || entry.term < term {
                return Err(StartError::Entries(entry.index));
            }
            term = entry.term;
            window.push(crate::message::core_entry(entry.position(), entry.kind, entry.data));
        }
        Ok(window)
    }

    pub(crate) fn set_initial(&mut self, hard_state: HardState, membership: &Membership) {
        self.hard_state = hard_state;
        self.conf_state = membership.to_core();
    }

    pub(crate) fn start(&self) -> LogPosition {
        self.start
    }

    pub(crate) fn last(&self) -> Index {
        self.last
    }

    /// The first index in memory; one above the last if none is.
    fn first_in_memory(&self) -> Index {
        self.last + 1 - self.entries.len() as u64
    }

    /// The term of the entry at `index`, if it is known without reading the disk.
    pub(crate) fn known_term(&self, index: Index) -> Option<Term> {
        if index < self.start.index || index > self.last {
            return None;
        }
        let term = match self.runs.back() {
            Some(run) if run.first <= index => run.term,
            _ => self.runs[self.runs.partition_point(|run| run.first <= index) - 1].term,
        };
        if term != UNKNOWN {
            return Some(term);
        }
        if index == self.learned.index {
            return Some(self.learned.term);
        }
        let fetched = self.fetched.as_ref()?;
        fetched.entries.get(index.checked_sub(fetched.low)? as usize).map(|entry| entry.term)
    }

    fn push(&mut self, entry: Entry) {
        if self.runs.back().is_none_or(|run| run.term != entry.term) {
            self.runs.push_back(Run { first: entry.index, term: entry.term });
        }
        self.last = entry.index;
        self.size += cost(&entry);
        self.entries.push_back(entry);
    }

    /// Appends consecutive entries after dropping everything at and above the first one's index.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        assert!(self.first_in_memory() <= first && first <= self.last + 1, "entries must join those in memory");
        while self.last >= first {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= cost(&entry);
            self.last -= 1;
        }
        while self.runs.len() > 1 && self.runs.back().is_some_and(|run| run.first >= first) {
            self.runs.pop_back();
        }
        entries.into_iter().for_each(|entry| self.push(entry));
    }

    /// The log now begins after `position` and holds nothing.
    pub(crate) fn reset(&mut self, position: LogPosition) {
        self.start = position;
        self.runs = VecDeque::from([Run { first: position.index, term: position.term }]);
        self.entries.clear();
        (self.size, self.last) = (0, position.index);
        self.checkpoint = None;
        self.fetched = None;
        self.learned = position;
        self.asked.get_mut().waiting.clear();
        self.asked.get_mut().new.clear();
    }

    /// The disk no longer holds entries up to `through`.
    pub(crate) fn truncate(&mut self, through: LogPosition) {
        if through.index <= self.start.index || through.index > self.last {
            return;
        }
        while self.first_in_memory() <= through.index {
            let Some(entry) = self.entries.pop_front() else { break };
            self.size -= cost(&entry);
        }
        while self.runs.len() > 1 && self.runs[1].first <= through.index {
            self.runs.pop_front();
        }
        let is_unknown = self.runs[0].term == UNKNOWN;
        self.runs[0] = Run { first: through.index, term: through.term };
        let next = self.runs.get(1).map_or(self.last + 1, |run| run.first);
        if is_unknown && next > through.index + 1 {
            self.runs.insert(1, Run { first: through.index + 1, term: UNKNOWN });
        }
        self.start = through;
        if self.checkpoint.as_ref().is_some_and(|meta| meta.position.index < through.index) {
            self.checkpoint = None;
        }
    }

    /// Forgets the oldest entries up to `index` until at most `size_max` bytes are in memory.
    pub(crate) fn evict(&mut self, index: Index, size_max: usize) {
        while self.size > size_max && self.entries.front().is_some_and(|entry| entry.index <= index) {
            if let Some(entry) = self.entries.pop_front() {
                self.size -= cost(&entry);
            }
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The entries from `low` to `high`, both in memory, as far as `size_max` bytes go; at least one.
    pub(crate) fn held(&self, low: Index, high: Index, size_max: u64) -> Vec<Entry> {
        let first = self.first_in_memory();
        assert!(first <= low && low <= high && high <= self.last, "what is not applied stays in memory");
        limited(self.entries.range((low - first) as usize..=(high - first) as usize), size_max)
    }

    /// The entries from `first` on; `None` if they are not all in memory. `takes_rest` = those that are, in any case.
    pub(crate) fn tail(&self, first: Index, takes_rest: bool) -> Option<impl Iterator<Item = &Entry>> {
        let skipped = first.checked_sub(self.first_in_memory()).or(takes_rest.then_some(0))?;
        Some(self.entries.range((skipped as usize).min(self.entries.len())..))
    }

    pub(crate) fn set_checkpoint(&mut self, meta: SnapshotMeta) {
        let asked = self.asked.get_mut();
        (asked.wants_checkpoint, asked.checkpoint_ticks) = (false, 0);
        let is_newer = self.checkpoint.as_ref().is_none_or(|old| old.position.index <= meta.position.index);
        if is_newer && meta.position.index >= self.start.index {
            self.checkpoint = Some(meta);
        }
    }

    pub(crate) fn forget_checkpoint(&mut self, id: u64) {
        self.checkpoint.take_if(|meta| meta.id == id);
    }

    /// Lets requests grow old, so that one that was lost is made again.
    pub(crate) fn tick(&mut self) {
        let asked = self.asked.get_mut();
        asked.checkpoint_ticks = asked.checkpoint_ticks.saturating_sub(1);
        asked.waiting.iter_mut().for_each(|waiting| waiting.ticks += 1);
        asked.waiting.retain(|waiting| waiting.ticks < FETCH_TICKS_MAX);
    }

    /// Whether the core asked for something since the last call of the two below.
    pub(crate) fn has_requests(&mut self) -> bool {
        let asked = self.asked.get_mut();
        asked.wants_checkpoint || !asked.new.is_empty()
    }

    pub(crate) fn take_fetches(&mut self) -> Vec<Fetch> {
        core::mem::take(&mut self.asked.get_mut().new)
    }

    pub(crate) fn take_checkpoint_request(&mut self) -> bool {
        core::mem::take(&mut self.asked.get_mut().wants_checkpoint)
    }

    /// Takes the answer to a fetch; the appends that waited for it must be tried again, then
    /// [`Window::forget_fetched`]. Nothing waits if the fetch is unknown.
    pub(crate) fn set_fetched(&mut self, fetch: &Fetch, entries: Vec<log::Entry>) -> Vec<GetEntriesContext> {
        let waiting = &mut self.asked.get_mut().waiting;
        let Some(position) = waiting.iter().position(|waiting| waiting.fetch == *fetch) else { return Vec::new() };
        let Waiting { low, appends, .. } = waiting.swap_remove(position);
        let is_consecutive = entries.iter().zip(fetch.low..).all(|(entry, index)| entry.index == index);
        if !is_consecutive || low <= self.start.index {
            return Vec::new();
        }
        let mut entries: Vec<_> = entries
            .into_iter()
            .take_while(|entry| entry.index < fetch.high_exclusive)
            .map(|entry| crate::message::core_entry(entry.position(), entry.kind, entry.data))
            .collect();
        if entries.is_empty() {
            return Vec::new();
        }
        if fetch.low < low {
            let before = entries.remove(0);
            self.learned = LogPosition { term: before.term, index: before.index };
        }
        self.fetched = Some(Fetched { low, entries });
        appends
    }

    pub(crate) fn forget_fetched(&mut self) {
        if let Some(last) = self.fetched.take().and_then(|fetched| fetched.entries.into_iter().next_back()) {
            self.learned = LogPosition { term: last.term, index: last.index };
        }
    }

    fn request(&self, low: Index, high: Index, append: GetEntriesContext) {
        let mut asked = self.asked.borrow_mut();
        if let Some(waiting) = asked.waiting.iter_mut().find(|waiting| waiting.low == low) {
            if waiting.appends.len() < WAITING_APPENDS_MAX {
                waiting.appends.push(append);
            }
            return;
        }
        asked.id_last += 1;
        // The term before the first entry is part of an append message.
        let from = if self.known_term(low - 1).is_none() { low - 1 } else { low };
        let fetch = Fetch { id: asked.id_last, low: from, high_exclusive: high, size_max: self.fetch_size_max };
        asked.new.push(fetch);
        asked.waiting.push(Waiting { fetch, low, ticks: 0, appends: vec![append] });
    }
}

fn cost(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

fn limited<'a>(entries: impl Iterator<Item = &'a Entry>, size_max: u64) -> Vec<Entry> {
    let mut size = 0;
    let within = entries.enumerate().take_while(|(i, entry)| {
        size += cost(entry) as u64;
        *i == 0 || size <= size_max
    });
    within.map(|(_, entry)| entry.clone()).collect()
}

impl Storage for Window {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        size_max: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        let size_max = size_max.into().unwrap_or(u64::MAX);
        if low <= self.start.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let first = self.first_in_memory();
        if low >= first {
            let range = (low - first) as usize..(high - first) as usize;
            return Ok(limited(self.entries.range(range), size_max));
        }
        if let Some(fetched) = &self.fetched
            && let Some(skip) = low.checked_sub(fetched.low)
            && fetched.entries.len() as u64 > skip
        {
            let part = fetched.entries.iter().skip(skip as usize).take_while(|entry| entry.index < high);
            return Ok(limited(part, size_max));
        }
        if !context.can_async() {
            return Err(Error::Store(StorageError::Unavailable));
        }
        self.request(low, high.min(first), context);
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index < self.start.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        self.known_term(index).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.start.index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        if let Some(meta) = &self.checkpoint
            && meta.position.index >= self.start.index.max(request_index)
            && meta.position.index > 0
            && meta.membership.contains(ReplicaId(to))
        {
            return Ok(core_snapshot(meta));
        }
        let mut asked = self.asked.borrow_mut();
        if asked.checkpoint_ticks == 0 {
            (asked.wants_checkpoint, asked.checkpoint_ticks) = (true, CHECKPOINT_TICKS_MAX);
        }
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
