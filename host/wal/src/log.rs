//! A log: what it is given, what it recovers, and what it keeps in memory about each group and segment.

use crate::files::{FileOptions, Files, segment_path};
use crate::format::{LISTED_SIZE, LogPlace, Mark, State, epoch_of};
use crate::index::{Positions, Slot, Slots};
use crate::reader::Reader;
use crate::recover::{Found, RecoveredGroup, Recovery};
use crate::write::Batch;
use hedgerow_env::{Disk, File, OpenMode, create_dir_durably, is_shortage, is_unreadable};
use hedgerow_types::log::{Entry, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, ReplicaId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bounds of [`Options::segment_size`].
const SEGMENT_SIZES: std::ops::RangeInclusive<u64> = (20 << 10)..=(1 << 30);

/// Bytes that one call of [`Log::prepare`] fills.
const PREPARE_SIZE: u64 = 1 << 20;

/// What `Ok` from [`Log::sync`] stands for. A batch calls others durable only if they were really synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The bytes survive a power failure.
    Fsync,
    /// The bytes survive the death of the process. A power failure may lose all that was written to the newest segment:
    /// nothing orders its rounds on the medium, and recovery cuts the log at the first hole. Segments are synced when
    /// they are full.
    Os,
}

/// How a log is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a segment, 20 KiB to 1 GiB; others are taken as the nearest of these. An entry that is larger gets a
    /// segment of its own size.
    pub segment_size: u64,
    /// What a sync stands for.
    pub durability: Durability,
    /// With more segments than this, collection moves the few records that hold some back.
    pub segments_max: usize,
    /// Most segments kept to be used again.
    pub recycle_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_size: 64 << 20, durability: Durability::Fsync, segments_max: 16, recycle_max: 4 }
    }
}

/// One change of one group's log: first the reset, then the entries, then the hard state.
#[derive(Clone, Debug)]
pub struct Append {
    /// The group.
    pub group: GroupId,
    /// Its replica here. Another one than before begins an empty log: the former replica's is void.
    pub replica: ReplicaId,
    /// The log now begins after this position and has no entries.
    pub reset: Option<LogPosition>,
    /// Entries without gaps. They replace everything at and above the first one's index, which is above the start of
    /// the log and at most one above its last entry.
    pub entries: Vec<Entry>,
    /// The hard state from now on.
    pub hard_state: Option<HardState>,
}

/// A group's log as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The group.
    pub group: GroupId,
    /// Its replica here.
    pub replica: ReplicaId,
    /// The hard state.
    pub hard_state: HardState,
    /// Entries begin after it.
    pub start: LogPosition,
    /// The last entry, or `start` if there is none.
    pub last: LogPosition,
    /// Something that had been durable was found damaged. The replica must neither vote nor serve from this log; a
    /// reset, a removal or another replica id ends it. The entries up to `last` are sound even so.
    pub is_damaged: bool,
    /// How often it was copied from one log to another, see [`Log::copy_groups`]: of two logs of one replica the higher one counts that is not pending.
    pub generation: u64,
    /// The log that it is a copy of may not have been struck out: nothing has been written for the group since, so that the two say the same.
    /// Nothing may be before [`Log::settle_groups`].
    pub is_pending: bool,
}

/// Why a write or a collection ended before its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Halt {
    /// There is no room for a segment yet. Nothing has failed: go on with what is left, later.
    #[error(transparent)]
    Stalled(Stalled),
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// A segment cannot be made, for want of space or of descriptors, which others may give back.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log in {} waits until it can make a new segment", dir.display())]
pub struct Stalled {
    /// The log's directory.
    pub dir: PathBuf,
    /// The disk's answer.
    pub source: Arc<io::Error>,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk refuses. Repair it, then open again.
    #[error("the log cannot be opened at {}", path.display())]
    Io {
        /// What was asked for.
        path: PathBuf,
        /// The disk's answer.
        source: io::Error,
    },
    /// The log is of another version. Use the program that wrote it.
    #[error("{} has version {version} of the log's format, this program reads versions {} to {}", path.display(), crate::format::VERSION_MIN, crate::format::VERSION)]
    Version {
        /// The segment.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Files of two logs lie together. Nothing was removed.
    #[error(
        "{} holds files of two logs, from {older:016x}.seg and from {newer:016x}.seg on: move those of one of them elsewhere",
        dir.display()
    )]
    Mixed {
        /// The directory.
        dir: PathBuf,
        /// The first segment of the older log that is there.
        older: u64,
        /// Of the newer one.
        newer: u64,
    },
}

/// The log has failed, now or earlier, and takes nothing more. Stop the node; a restart reads what is really there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log in {} could not {operation} and takes nothing more", dir.display())]
pub struct Failed {
    /// The log's directory.
    pub dir: PathBuf,
    /// What it did.
    pub operation: &'static str,
    /// The disk's answer.
    pub source: Arc<io::Error>,
}

/// Figures of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segments that count.
    pub segments: usize,
    /// Segments waiting to be used again.
    pub spare_segments: usize,
    /// Bytes of the segments that count.
    pub segment_bytes: u64,
    /// Bytes in them of records in use.
    pub live_bytes: u64,
    /// Batches written since the log was opened.
    pub batches: u64,
    /// Syncs done since, those of segments becoming full included.
    pub syncs: u64,
    /// Entries appended since.
    pub entries: u64,
    /// Bytes of records written since.
    pub record_bytes: u64,
    /// Entries moved by collection since.
    pub moved_entries: u64,
    /// Groups.
    pub groups: usize,
}

/// A log. One writer; any number of [`Reader`]s.
#[derive(Debug)]
pub struct Log {
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) files: Files,
    pub(crate) segments: BTreeMap<u64, Segment>,
    pub(crate) active: Option<Active>,
    /// Where the newest segment will name the next one.
    pub(crate) linkable: Option<Linkable>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    /// Where each group's latest state stands.
    pub(crate) states: FxHashMap<GroupId, LogPlace>,
    /// Removed groups whose records may still be found in older segments.
    pub(crate) tombstones: BTreeMap<GroupId, Tombstone>,
    pub(crate) positions: Arc<Mutex<Positions>>,
    /// Groups whose state in memory is newer than the one written.
    pub(crate) unwritten_states: BTreeSet<GroupId>,
    pub(crate) unwritten_removals: BTreeSet<GroupId>,
    pub(crate) batch: Batch,
    pub(crate) next_segment: u64,
    pub(crate) next_batch: u64,
    /// Batches with a lower number are durable.
    pub(crate) synced: u64,
    /// A segment may have its name already and is not the active one yet: nothing may be written before it is, because its
    /// head says where the others end.
    pub(crate) is_rolling: bool,
    pub(crate) failed: Option<Failed>,
    pub(crate) stats: Stats,
    has_unknown_loss: bool,
    mark_problem: Option<String>,
}

/// A segment that counts.
#[derive(Debug)]
pub(crate) struct Segment {
    /// `None` if the file is gone or useless; kept on the list until every loss that follows is on record.
    pub(crate) file: Option<Arc<dyn File>>,
    pub(crate) size: u64,
    pub(crate) end: u64,
    /// Bytes of records in use.
    pub(crate) live: u64,
}

/// The segment being written.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) file: Arc<dyn File>,
    /// Batches end before it.
    pub(crate) limit: u64,
    pub(crate) end: u64,
}

/// A segment without a link that may have one, and where.
#[derive(Debug)]
pub(crate) struct Linkable {
    pub(crate) file: Arc<dyn File>,
    pub(crate) place: LogPlace,
}

/// A group as the writer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) replica: ReplicaId,
    pub(crate) born: LogPlace,
    pub(crate) start: LogPosition,
    pub(crate) last: LogPosition,
    pub(crate) hard_state: HardState,
    pub(crate) is_damaged: bool,
    pub(crate) generation: u64,
    pub(crate) is_incomplete: bool,
    pub(crate) is_pending: bool,
}

/// A removal on record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) at: LogPlace,
    /// The last segment that may hold records of the group.
    pub(crate) through: u64,
}

impl Group {
    pub(crate) fn state(&self) -> State {
        State {
            replica: self.replica,
            born: self.born,
            start: self.start,
            last: self.last.index,
            hard_state: self.hard_state,
            is_damaged: self.is_damaged,
            generation: self.generation,
            is_incomplete: self.is_incomplete,
            is_pending: self.is_pending,
        }
    }
}

impl Log {
    /// Opens the log in `dir`, making it if it is not there, and says what it holds, by group. What is said is durable. A copy that has
    /// not come to its end is not said, and removed.
    /// Nothing else may have the directory open.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: Options) -> Result<(Self, Vec<Recovered>), OpenError> {
        let io = |source| OpenError::Io { path: dir.to_owned(), source };
        let segment_size = options.segment_size.clamp(*SEGMENT_SIZES.start(), *SEGMENT_SIZES.end());
        let options = Options { segment_size, ..options };
        create_dir_durably(&*disk, dir).map_err(io)?;
        let mut recovery = Recovery::read(&*disk, dir, &mut |_| {})?;
        if options.durability == Durability::Fsync {
            recovery.lose_what_was_cut();
        }
        let file_options = FileOptions {
            segment_size,
            spare_max: options.recycle_max,
            is_synced: options.durability == Durability::Fsync,
        };
        let mut files = Files::new(Arc::clone(&disk), dir, file_options).map_err(io)?;
        let linkable = secure(&*disk, dir, &recovery).map_err(io)?;
        for id in &recovery.garbage {
            match disk.open(&segment_path(dir, *id), OpenMode::Read).and_then(|file| file.len()) {
                Ok(size) => files.free(*id, size).map_err(io)?,
                // It counts no more, and may stay if it does not even go.
                Err(error) if is_unreadable(&error) => drop(disk.remove_file(&segment_path(dir, *id))),
                Err(error) => return Err(io(error)),
            }
        }
        let mut log = Self {
            positions: Arc::default(),
            segments: open_segments(&*disk, dir, &recovery.segments).map_err(io)?,
            active: None,
            linkable,
            groups: BTreeMap::new(),
            states: FxHashMap::default(),
            tombstones: BTreeMap::new(),
            unwritten_states: BTreeSet::new(),
            unwritten_removals: BTreeSet::new(),
            batch: Batch::default(),
            next_segment: recovery.next_segment,
            next_batch: recovery.next_batch,
            synced: recovery.next_batch,
            is_rolling: false,
            failed: None,
            stats: Stats::default(),
            has_unknown_loss: recovery.has_unknown_loss(),
            mark_problem: recovery.mark_problem.clone(),
            dir: dir.to_owned(),
            options,
            files,
        };
        let recovered = log.adopt(recovery);
        Ok((log, recovered))
    }

    /// Takes over what recovery found.
    fn adopt(&mut self, recovery: Recovery) -> Vec<Recovered> {
        let mut recovered = Vec::new();
        let mut positions = Positions::default();
        for (id, segment) in &self.segments {
            positions.files.extend(segment.file.clone().map(|file| (*id, file)));
        }
        for (group, replay) in recovery.groups {
            let found = replay.into_group(group, recovery.lost);
            if found.is_incomplete {
                // What it is a copy of is there, or its disk is away.
                self.unwritten_removals.insert(group);
                continue;
            }
            positions.groups.insert(group, self.adopt_group(&found));
            recovered.push(found.recovered);
        }
        for (group, (at, through)) in recovery.tombstones {
            self.tombstones.insert(group, Tombstone { at, through });
            add_live(&mut self.segments, at.segment, crate::format::RECORD_HEAD_SIZE as u64);
        }
        self.positions = Arc::new(Mutex::new(positions));
        recovered
    }

    fn adopt_group(&mut self, found: &RecoveredGroup) -> Slots {
        let Recovered { group, replica, hard_state, start, last, is_damaged, generation, is_pending } = found.recovered;
        if is_damaged {
            self.unwritten_states.insert(group);
        }
        for slot in &found.slots {
            add_live(&mut self.segments, slot.place.segment, slot.record_size());
        }
        if let Some(at) = found.state_at {
            add_live(&mut self.segments, at.segment, State::RECORD_SIZE as u64);
            self.states.insert(group, at);
        }
        let (born, is_incomplete) = (found.born, false);
        let known = Group { replica, born, start, last, hard_state, is_damaged, generation, is_incomplete, is_pending };
        self.groups.insert(group, known);
        Slots::new(start.index + 1, found.slots.clone())
    }

    /// The entries of `group` up to and with `through` are needed no more. In memory at once; on the medium with a later
    /// round, so that a crash may bring them back. More than the log holds means all of it.
    pub fn truncate_prefix(&mut self, group: GroupId, through: Index) {
        let Some(meta) = self.groups.get_mut(&group) else { return };
        let through = through.min(meta.last.index);
        if through <= meta.start.index {
            return;
        }
        let mut positions = lock(&self.positions);
        let Some(slots) = positions.groups.get_mut(&group) else { return };
        let Some(term) = slots.at(through).map(|slot| slot.term) else { return };
        meta.start = LogPosition { term, index: through };
        self.unwritten_states.insert(group);
        slots.begin_at(through + 1, |slot| release(&mut self.segments, slot));
    }

    /// Forgets `group`. In memory at once; on the medium with a later round.
    pub fn remove_group(&mut self, group: GroupId) {
        if self.groups.remove(&group).is_none() {
            return;
        }
        if let Some(slots) = lock(&self.positions).groups.remove(&group) {
            slots.iter().for_each(|(_, slot)| release(&mut self.segments, slot));
        }
        if let Some(at) = self.states.remove(&group) {
            subtract_live(&mut self.segments, at.segment, State::RECORD_SIZE as u64);
        }
        self.unwritten_states.remove(&group);
        self.unwritten_removals.insert(group);
    }

    /// Makes everything written as durable as the options say. It is only after `Ok` that anything may be acknowledged.
    pub fn sync(&mut self) -> Result<(), Failed> {
        self.check()?;
        #[cfg(feature = "mutations")]
        if crate::mutation::SKIP_SYNC.load(std::sync::atomic::Ordering::Relaxed) {
            self.synced = self.next_batch;
            return Ok(());
        }
        match self.options.durability {
            Durability::Fsync => self.sync_active(),
            // The medium may hold none of it, and no batch may say otherwise: recovery takes its word for it.
            Durability::Os => Ok(()),
        }
    }

    /// Syncs whatever the durability.
    pub(crate) fn sync_active(&mut self) -> Result<(), Failed> {
        if let Some(active) = self.active.as_ref().filter(|_| self.synced < self.next_batch) {
            let result = active.file.sync_data();
            self.or_fail("sync", result)?;
            self.stats.syncs += 1;
        }
        self.synced = self.next_batch;
        Ok(())
    }

    /// Notes in a small file how far the log is synced, if that has changed since the last note, so that a later opening
    /// misses what is gone up to there. Waits for no sync and never fails: an older note says less, and is true.
    pub fn mark(&mut self) {
        #[cfg(feature = "mutations")]
        if crate::mutation::SKIP_SYNC.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        if let Some(mark) = self.unmarked() {
            // Where the disk refuses, the next call tries again.
            drop(self.files.mark(mark));
        }
    }

    /// Whether [`Log::mark`] would note something.
    pub fn is_marked(&self) -> bool {
        self.unmarked().is_none()
    }

    fn unmarked(&self) -> Option<Mark> {
        let active = self.active.as_ref().filter(|_| self.failed.is_none())?;
        Some(Mark { segment: active.id, batch: self.synced }).filter(|mark| !self.files.is_marked(*mark))
    }

    /// Nothing in the log is needed any more: its directory may go, and nothing will count as lost where another log begins in its place.
    pub fn end(mut self) -> io::Result<()> {
        let last = self.segments.keys().next_back().copied().unwrap_or(self.next_segment);
        self.files.unmark(epoch_of(last))
    }

    /// Why opening could not use the mark, where a log was there: without it a lost end looks like a torn tail.
    pub fn mark_problem(&self) -> Option<&str> {
        self.mark_problem.as_deref()
    }

    /// Uses idle time to make the next segment ready, a piece per call, so that rolling takes no time. It is also the log's
    /// reserve for a disk that has become full.
    pub fn prepare(&mut self) {
        if self.active.is_some() && self.failed.is_none() {
            self.files.prepare(PREPARE_SIZE);
        }
    }

    /// Bytes of records that can be written although the disk may be full: what is left of the active segment, and the
    /// segments that are ready.
    pub fn room(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, |active| active.limit.saturating_sub(active.end));
        active + self.files.ready_count() as u64 * self.options.segment_size
    }

    /// [`Log::room`] once the disk refuses another segment, until one can be made ready: what is less urgent should not
    /// take it. `None` while the disk gives more.
    pub fn left(&self) -> Option<u64> {
        (self.active.is_some() && self.files.is_refused()).then(|| self.room())
    }

    /// How far the log is known to be durable: every batch with a lower number is, and numbers never go back. Batches that no
    /// sync has reached do not count, so that it is less than what is acknowledged where acknowledging waits for no sync.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// A reader of this log.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.positions))
    }

    /// Whether bytes were lost at opening that may have been any group's, even one that is not among the recovered, or that
    /// said which replica of a group stood here. A replica that should be here and is not must then be taken as damaged.
    pub fn has_unknown_loss(&self) -> bool {
        self.has_unknown_loss
    }

    /// The log's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        Stats {
            segments: self.segments.len(),
            spare_segments: self.files.spare_count(),
            segment_bytes: self.segments.values().map(|segment| segment.size).sum(),
            live_bytes: self.segments.values().map(|segment| segment.live).sum(),
            groups: self.groups.len(),
            ..self.stats.clone()
        }
    }

    /// Bytes that it can take without asking the disk for room, about: those of segments that are made.
    pub fn ready_bytes(&self) -> u64 {
        let active = self.active.as_ref().map_or(0, |active| active.limit - active.end);
        active + self.files.ready_bytes()
    }

    /// Bytes of the records of `group`, about what a copy of its log takes. Looks at every entry.
    pub fn bytes_of(&self, group: GroupId) -> u64 {
        let positions = lock(&self.positions);
        let slots = positions.groups.get(&group).into_iter().flat_map(Slots::iter);
        slots.map(|(_, slot)| slot.record_size() + LISTED_SIZE as u64).sum::<u64>() + 2 * State::RECORD_SIZE as u64
    }

    /// Which groups hold `segment` back, and with how many bytes of records. Looks at every entry.
    pub fn pins(&self, segment: u64) -> BTreeMap<GroupId, u64> {
        let positions = lock(&self.positions);
        let mut pins = BTreeMap::new();
        for group in self.groups.keys() {
            let slots = positions.groups.get(group);
            let entries = slots.into_iter().flat_map(Slots::iter).filter(|(_, slot)| slot.place.segment == segment);
            let state =
                self.states.get(group).filter(|at| at.segment == segment).map_or(0, |_| State::RECORD_SIZE as u64);
            let bytes = state + entries.map(|(_, slot)| slot.record_size()).sum::<u64>();
            if bytes > 0 {
                pins.insert(*group, bytes);
            }
        }
        pins
    }

    /// Ids of the segments that count, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = u64> {
        self.segments.keys().copied()
    }

    pub(crate) fn or_stall<T>(&mut self, result: io::Result<T>) -> Result<T, Halt> {
        match result {
            Ok(made) => Ok(made),
            Err(error) if is_shortage(&error) => {
                Err(Halt::Stalled(Stalled { dir: self.dir.clone(), source: Arc::new(error) }))
            }
            Err(error) => Ok(self.or_fail("make a new segment", Err(error))?),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Failed> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn or_fail<T>(&mut self, operation: &'static str, result: io::Result<T>) -> Result<T, Failed> {
        result.map_err(|source| {
            let failed = Failed { dir: self.dir.clone(), operation, source: Arc::new(source) };
            self.failed.get_or_insert(failed).clone()
        })
    }
}

impl Slot {
    /// Bytes of its record.
    pub(crate) fn record_size(&self) -> u64 {
        crate::format::RECORD_HEAD_SIZE as u64 + u64::from(self.size)
    }
}

pub(crate) fn lock(positions: &Mutex<Positions>) -> MutexGuard<'_, Positions> {
    positions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes an entry's record out of use.
pub(crate) fn release(segments: &mut BTreeMap<u64, Segment>, slot: &Slot) {
    subtract_live(segments, slot.place.segment, slot.record_size());
}

pub(crate) fn add_live(segments: &mut BTreeMap<u64, Segment>, segment: u64, size: u64) {
    if let Some(segment) = segments.get_mut(&segment) {
        segment.live += size;
    }
}

pub(crate) fn subtract_live(segments: &mut BTreeMap<u64, Segment>, segment: u64, size: u64) {
    if let Some(segment) = segments.get_mut(&segment) {
        assert!(segment.live >= size, "a record goes out of use once");
        segment.live -= size;
    }
}

/// Makes durable what recovery read. The last round may be only in memory: the process may have died before its sync, or
/// the sync may have failed, after which the system thinks the pages clean; so its bytes are written once more. Gives where
/// the newest segment can have its link.
fn secure(disk: &dyn Disk, dir: &Path, recovery: &Recovery) -> io::Result<Option<Linkable>> {
    let Some(last) = &recovery.last_round else {
        disk.sync_dir(dir)?;
        return Ok(None);
    };
    let segment = last.place.segment;
    let file: Arc<dyn File> = Arc::from(disk.open(&segment_path(dir, segment), OpenMode::Write)?);
    file.write_at(last.place.offset, &last.bytes)?;
    file.sync_all()?;
    disk.sync_dir(dir)?;
    let place = last.link_at.map(|offset| LogPlace { segment, offset });
    Ok(place.map(|place| Linkable { file, place }))
}

fn open_segments(disk: &dyn Disk, dir: &Path, found: &BTreeMap<u64, Found>) -> io::Result<BTreeMap<u64, Segment>> {
    let open = |(id, found): (&u64, &Found)| {
        let file = match found.size {
            Some(_) => Some(Arc::from(disk.open(&segment_path(dir, *id), OpenMode::Read)?)),
            None => None,
        };
        Ok((*id, Segment { file, size: found.size.unwrap_or(0), end: found.end, live: 0 }))
    };
    found.iter().map(open).collect()
}
