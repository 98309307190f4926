//! Reads a log as a crash left it: which segments count, and what every group's log is. Writes nothing.

use crate::files::{Name, noted_epochs, read_mark, segment_path};
use crate::format::{
    HeadError, Link, Listed, LogPlace, Mark, RecordHead, RecordKind, SegmentHead, State, epoch_of, first_after,
};
use crate::index::Slot;
use crate::log::{OpenError, Recovered};
use crate::scan::{Event, Scanned, Segment};
use hedgerow_env::{Disk, OpenMode, is_unreadable, read_what_is_readable};
use hedgerow_types::log::{EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Everything that reading a log tells.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The segments that count, by id.
    pub(crate) segments: BTreeMap<u64, Found>,
    /// Segments whose files are there and do not count.
    pub(crate) garbage: Vec<u64>,
    /// What the groups' logs are.
    pub(crate) groups: BTreeMap<GroupId, Replay>,
    /// Where a removal of a group without a log was recorded, and the last segment that may hold its records.
    pub(crate) tombstones: BTreeMap<GroupId, (LogPlace, u64)>,
    /// The newest segment's last round.
    pub(crate) last_round: Option<LastRound>,
    pub(crate) next_segment: u64,
    pub(crate) next_batch: u64,
    /// The highest place at which bytes were lost that tell not even whose they were.
    pub(crate) lost: Option<LogPlace>,
    /// The newest segment ends there and its file is shorter than it was made.
    pub(crate) cut_short: Option<LogPlace>,
    /// Where that file should end.
    pub(crate) made_size: u64,
    /// A write was cut off there, after the end of the newest segment.
    pub(crate) torn_at: Option<LogPlace>,
    /// What the mark says, if it can be used.
    pub(crate) mark: Option<Mark>,
    /// Why the mark could not be used, if there were segments and it should have been there.
    pub(crate) mark_problem: Option<String>,
}

/// A segment that counts.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) end: u64,
    /// Size of the file; `None` if it is gone.
    pub(crate) size: Option<u64>,
}

/// Bytes that may not be durable although they can be read: nobody saw the sync succeed.
#[derive(Debug)]
pub(crate) struct LastRound {
    pub(crate) place: LogPlace,
    pub(crate) bytes: Vec<u8>,
    /// Where in the segment its link belongs; `None` if the file does not reach so far or records stand there.
    pub(crate) link_at: Option<u64>,
}

/// One group's log while its records pass by.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    state: Option<(LogPlace, State)>,
    slots: BTreeMap<Index, (Slot, bool)>,
    last: Index,
    /// A state was lost since the latest one.
    is_state_bad: bool,
    /// The highest place at which an entry of the group was lost, nobody knows which.
    lost: Option<LogPlace>,
}

impl Recovery {
    /// Reads the log in `dir`, passing every event to `visit` too.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path, visit: &mut dyn FnMut(Event<'_>)) -> Result<Self, OpenError> {
        let mut recovery = Self { next_segment: 1, next_batch: 1, ..Self::default() };
        let present = recovery.present(disk, dir)?;
        let newest = recovery.newest(disk, dir, &present, visit)?;
        let newest_id = newest.as_ref().map_or(0, |newest| newest.head.id);
        let epoch = recovery.epoch(disk, dir, &present)?;
        let mark = read_mark(disk, dir, epoch)?;
        recovery.mark_problem = mark.as_ref().err().filter(|_| !present.is_empty()).cloned();
        recovery.mark = mark.as_ref().ok().copied();
        let link = newest.as_ref().and_then(|newest| Link::decode(&newest.bytes, newest_id, newest.head.size));
        let named = link.map(|link| link.next).into_iter().chain(mark.as_ref().ok().map(|mark| mark.segment));
        for id in named.filter(|id| *id > newest_id && !present.contains(id)) {
            visit(Event::Unreadable(LogPlace { segment: id, offset: 0 }, 0));
            recovery.lose_segment(id, 0, None);
        }
        let Some(mut newest) = newest else { return Ok(recovery) };
        let marked = mark.ok().filter(|mark| mark.segment == newest_id).map_or(0, |mark| mark.batch);
        newest.durable = durable_by_freed(&newest, &present).max(marked);
        let freed = freed_in(&newest);
        for other in newest.head.others.iter().filter(|other| !freed.contains(&other.segment)) {
            recovery.sealed(disk, dir, *other, visit)?;
        }
        let scanned = newest.scan(&mut |event| {
            recovery.handle(&event);
            visit(event);
        });
        recovery.next_batch = scanned.next_batch;
        let id = newest.head.id;
        recovery.torn_at = scanned.is_torn.then_some(LogPlace { segment: id, offset: scanned.end as u64 });
        // What cannot be read where a torn tail would stand may have been durable. It counts as part of the segment, so that
        // it is missed again if the next segment gets its name and the machine stops before the loss is on record.
        let unreadable = newest.unreadable.iter().map(|lost| lost.end as u64).max().unwrap_or(0);
        let end = unreadable.max(scanned.end as u64);
        if end > scanned.end as u64 {
            let place = LogPlace { segment: id, offset: scanned.end as u64 };
            recovery.lose(place);
            visit(Event::Unreadable(place, end - place.offset));
        }
        if (newest.bytes.len() as u64) < newest.head.size {
            recovery.cut_short = Some(LogPlace { segment: id, offset: scanned.end as u64 });
            recovery.made_size = newest.head.size;
        }
        recovery.last_round = Some(LastRound {
            place: LogPlace { segment: id, offset: scanned.round_start as u64 },
            // A file cut short may end before its first batch.
            bytes: newest.bytes.get(scanned.round_start..scanned.end).unwrap_or_default().to_vec(),
            link_at: Some(Link::offset(newest.head.size))
                .filter(|at| end <= *at && newest.bytes.len() as u64 >= newest.head.size),
        });
        recovery.segments.insert(id, Found { end, size: Some(newest.bytes.len() as u64) });
        recovery.garbage = present.into_iter().filter(|id| !recovery.segments.contains_key(id)).collect();
        recovery.groups.values_mut().for_each(Replay::settle);
        Ok(recovery)
    }

    /// Whether something was lost that may have been any group's, or that said which replica of a group stood here: one that
    /// nobody remembers any more may have voted.
    pub(crate) fn has_unknown_loss(&self) -> bool {
        self.lost.is_some() || self.groups.values().any(|replay| replay.is_state_bad || replay.state.is_none())
    }

    fn present(&mut self, disk: &dyn Disk, dir: &Path) -> Result<BTreeSet<u64>, OpenError> {
        let present = present(disk, dir)?;
        self.next_segment = present.last().map_or(1, |id| id.saturating_add(1));
        Ok(present)
    }

    /// The epoch of the log whose segments are there or, where none is, of the one that is gone, behind which a new one begins.
    fn epoch(&mut self, disk: &dyn Disk, dir: &Path, present: &BTreeSet<u64>) -> Result<u64, OpenError> {
        let failed = |source| OpenError::Io { path: dir.to_owned(), source };
        if let Some((first, last)) = present.first().zip(present.last()) {
            let epoch = epoch_of(*last);
            if epoch_of(*first) != epoch {
                let newer = present.iter().find(|id| epoch_of(**id) == epoch).copied().unwrap_or(*last);
                return Err(OpenError::Mixed { dir: dir.to_owned(), older: *first, newer });
            }
            return Ok(epoch);
        }
        let gone = noted_epochs(disk, dir).map_err(failed)?.last().copied();
        self.next_segment = gone.map_or(self.next_segment, first_after);
        Ok(gone.unwrap_or_default())
    }

    /// The newest segment with a sound head. Ones above it are lost, for a segment has its head before its name.
    fn newest(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        present: &BTreeSet<u64>,
        visit: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Loaded>, OpenError> {
        for id in present.iter().rev().copied() {
            let size = match load(disk, dir, id)? {
                Some(Read { bytes, unreadable, head: Some(head), .. }) => {
                    return Ok(Some(Loaded { bytes, unreadable, head, durable: 0 }));
                }
                Some(Read { bytes, .. }) => Some(bytes.len() as u64),
                None => None,
            };
            visit(Event::Unreadable(LogPlace { segment: id, offset: 0 }, size.unwrap_or(0)));
            self.lose_segment(id, size.unwrap_or(0), size);
        }
        Ok(None)
    }

    /// Replays a segment whose end is known.
    fn sealed(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        end: LogPlace,
        visit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), OpenError> {
        if !disk.exists(&segment_path(dir, end.segment)) {
            visit(Event::Unreadable(LogPlace { segment: end.segment, offset: 0 }, end.offset));
            self.lose_segment(end.segment, end.offset, None);
            return Ok(());
        }
        let loaded = load_sealed(disk, dir, end)?;
        let size = loaded.as_ref().map(|read| read.size);
        let Some(Read { bytes, head: Some(head), .. }) = loaded else {
            visit(Event::Unreadable(LogPlace { segment: end.segment, offset: 0 }, end.offset));
            self.lose_segment(end.segment, end.offset, size);
            return Ok(());
        };
        scan(&head, &bytes, Some(end.offset as usize), 0, &mut |event| {
            self.handle(&event);
            visit(event);
        });
        self.segments.insert(end.segment, Found { end: end.offset, size });
        Ok(())
    }

    /// No crash cuts the newest segment's file short where making it is synced: what stood there is lost.
    pub(crate) fn lose_what_was_cut(&mut self) {
        let Some(place) = self.cut_short else { return };
        self.lose(place);
        if let Some(found) = self.segments.get_mut(&place.segment) {
            found.end = self.made_size;
        }
    }

    fn lose_segment(&mut self, id: u64, end: u64, size: Option<u64>) {
        self.lose(LogPlace { segment: id, offset: 0 });
        self.segments.insert(id, Found { end, size });
        self.next_segment = self.next_segment.max(id.saturating_add(1));
    }

    fn lose(&mut self, place: LogPlace) {
        self.lost = self.lost.max(Some(place));
    }

    fn handle(&mut self, event: &Event<'_>) {
        match *event {
            Event::Batch(..) => {}
            Event::Record(place, head, payload) => self.handle_record(place, &head, payload),
            Event::BadPayload(place, head) => self.handle_bad_payload(place, &head),
            Event::BadHead(place, listed) => self.handle_bad_head(place, &listed),
            Event::Unreadable(place, _) => self.lose(place),
        }
    }

    fn handle_record(&mut self, place: LogPlace, head: &RecordHead, payload: &[u8]) {
        match (head.kind, slot(place, head)) {
            (RecordKind::Entry, Some(slot)) => self.replay(head).put(head.index, slot, true),
            (RecordKind::Moved, Some(slot)) => self.replay(head).put_moved(head.index, slot, true),
            (RecordKind::State, _) => match State::decode(head, payload) {
                Some(state) => self.replay(head).set_state(place, state),
                None => self.replay(head).is_state_bad = true,
            },
            (RecordKind::Removed, _) => {
                self.bury(head.group, place, head.index);
                return;
            }
            (RecordKind::Freed, _) => return,
            // A sound record of a kind of entry that this version does not know is as bad as an unreadable one.
            (RecordKind::Entry | RecordKind::Moved, None) => self.replay(head).lose(place),
        }
        self.tombstones.remove(&head.group);
    }

    fn bury(&mut self, group: GroupId, place: LogPlace, through: u64) {
        self.groups.remove(&group);
        self.tombstones.insert(group, (place, through));
    }

    fn handle_bad_payload(&mut self, place: LogPlace, head: &RecordHead) {
        match (head.kind, slot(place, head)) {
            (RecordKind::Entry, Some(slot)) => self.replay(head).put(head.index, slot, false),
            (RecordKind::Moved, Some(slot)) => self.replay(head).put_moved(head.index, slot, false),
            (RecordKind::State, _) => self.replay(head).is_state_bad = true,
            (RecordKind::Entry | RecordKind::Moved, None) => self.replay(head).lose(place),
            (RecordKind::Removed | RecordKind::Freed, _) => self.lose(place),
        }
    }

    /// Only the owner of the record is concerned, but for a freed one: with it goes what no longer counts.
    fn handle_bad_head(&mut self, place: LogPlace, listed: &Listed) {
        let replay = match listed.kind {
            RecordKind::Freed => return self.lose(place),
            // Whatever it ends stands before it.
            RecordKind::Removed => return self.bury(listed.group, place, place.segment),
            RecordKind::Entry | RecordKind::Moved | RecordKind::State => self.groups.entry(listed.group).or_default(),
        };
        match listed.kind {
            RecordKind::State => replay.is_state_bad = true,
            RecordKind::Entry | RecordKind::Moved | RecordKind::Removed | RecordKind::Freed => replay.lose(place),
        }
        self.tombstones.remove(&listed.group);
    }

    fn replay(&mut self, head: &RecordHead) -> &mut Replay {
        self.groups.entry(head.group).or_default()
    }
}

impl Replay {
    fn put(&mut self, index: Index, slot: Slot, is_sound: bool) {
        self.cut(index);
        self.slots.insert(index, (slot, is_sound));
        self.last = index;
    }

    fn put_moved(&mut self, index: Index, slot: Slot, is_sound: bool) {
        self.slots.insert(index, (slot, is_sound));
        self.last = self.last.max(index);
    }

    fn lose(&mut self, place: LogPlace) {
        self.lost = self.lost.max(Some(place));
    }

    fn set_state(&mut self, place: LogPlace, state: State) {
        if self.state.as_ref().is_none_or(|(_, before)| before.born != state.born) {
            self.slots.retain(|_, (slot, _)| slot.place >= state.born);
        }
        while self.slots.first_key_value().is_some_and(|(index, _)| *index <= state.start.index) {
            self.slots.pop_first();
        }
        self.cut(state.last.saturating_add(1));
        self.last = state.last;
        self.state = Some((place, state));
        self.is_state_bad = false;
    }

    /// Drops the entries at and above `index`.
    fn cut(&mut self, index: Index) {
        while self.slots.last_key_value().is_some_and(|(last, _)| *last >= index) {
            self.slots.pop_last();
        }
    }

    /// Entries below the start can only come from damage.
    fn settle(&mut self) {
        let start = self.start();
        self.slots.retain(|index, _| *index > start);
    }

    fn start(&self) -> Index {
        self.state.as_ref().map_or(0, |(_, state)| state.start.index)
    }

    /// Whether something of the log is missing, given that bytes were lost at `lost` that may have been anybody's.
    fn is_damaged(&self, lost: Option<LogPlace>) -> bool {
        let lost = lost.max(self.lost);
        let Some((place, state)) = &self.state else { return true };
        let is_missing = || self.slots.len() as u64 != self.last.saturating_sub(state.start.index);
        let is_bad = |slot: &Slot, is_sound: bool| !is_sound || lost.is_some_and(|lost| slot.place <= lost);
        state.is_damaged
            || self.is_state_bad
            || lost.is_some_and(|lost| *place <= lost)
            || is_missing()
            || self.slots.values().any(|(slot, is_sound)| is_bad(slot, *is_sound))
    }

    /// What recovery says of the group: its entries are those from the start up to the first missing or damaged one.
    pub(crate) fn into_group(self, group: GroupId, lost: Option<LogPlace>) -> RecoveredGroup {
        let is_damaged = self.is_damaged(lost);
        let (state_at, state) = self.state.unzip();
        let start = state.map_or(LogPosition::default(), |state| state.start);
        let slots: Vec<Slot> = self
            .slots
            .into_iter()
            .zip(start.index.saturating_add(1)..)
            .take_while(|((index, (_, is_sound)), expected)| index == expected && *is_sound)
            .map(|((_, (slot, _)), _)| slot)
            .collect();
        let last = match slots.last() {
            Some(slot) => LogPosition { term: slot.term, index: start.index + slots.len() as u64 },
            None => start,
        };
        let recovered = Recovered {
            group,
            replica: state.map_or(ReplicaId(0), |state| state.replica),
            hard_state: state.map_or(HardState::default(), |state| state.hard_state),
            start,
            last,
            is_damaged,
            generation: state.map_or(0, |state| state.generation),
            is_pending: state.is_some_and(|state| state.is_pending),
        };
        let born = state.map_or(LogPlace::default(), |state| state.born);
        // Where a later state was lost, that may have ended the copy.
        let is_incomplete = state.is_some_and(|state| state.is_incomplete) && !self.is_state_bad;
        RecoveredGroup { recovered, born, state_at, slots, is_incomplete }
    }
}

/// A group's log in full.
#[derive(Debug)]
pub(crate) struct RecoveredGroup {
    pub(crate) recovered: Recovered,
    pub(crate) born: LogPlace,
    pub(crate) state_at: Option<LogPlace>,
    pub(crate) slots: Vec<Slot>,
    /// It is a copy that has not come to its end.
    pub(crate) is_incomplete: bool,
}

/// The newest segment.
struct Loaded {
    bytes: Vec<u8>,
    unreadable: Vec<Range<usize>>,
    head: SegmentHead,
    /// Batches with a lower number are known to have been durable.
    durable: u64,
}

/// A segment's file.
pub(crate) struct Read {
    /// Of the file; more than there are bytes where not all of it was read.
    size: u64,
    pub(crate) bytes: Vec<u8>,
    /// Where the device gives nothing back; zeros there.
    unreadable: Vec<Range<usize>>,
    pub(crate) head: Option<SegmentHead>,
}

impl Loaded {
    fn scan(&self, visit: &mut dyn FnMut(Event<'_>)) -> Scanned {
        scan(&self.head, &self.bytes, None, self.durable, visit)
    }
}

fn scan(
    head: &SegmentHead,
    bytes: &[u8],
    end: Option<usize>,
    durable: u64,
    visit: &mut dyn FnMut(Event<'_>),
) -> Scanned {
    segment(head, bytes, end, durable).scan(visit)
}

fn segment<'a>(head: &SegmentHead, bytes: &'a [u8], end: Option<usize>, durable: u64) -> Segment<'a> {
    let (data_start, has_lists) = (head.data_start(), head.has_lists());
    Segment { id: head.id, bytes, data_start, has_lists, first_batch: head.first_batch, durable, end }
}

/// Number of the batch after the last one that tells that a segment went which is not there any more. It went only after
/// that was durable, so that bad bytes before are no torn tail, though nothing else may follow them.
fn durable_by_freed(newest: &Loaded, present: &BTreeSet<u64>) -> u64 {
    let others = &newest.head.others;
    let absent: Vec<u64> = others.iter().map(|other| other.segment).filter(|id| !present.contains(id)).collect();
    if absent.is_empty() {
        return 0;
    }
    let (mut durable, mut next) = (0, 0);
    scan(&newest.head, &newest.bytes, None, u64::MAX, &mut |event| match event {
        Event::Batch(_, head) => next = head.number + 1,
        Event::Record(_, head, _) if head.kind == RecordKind::Freed => {
            let range = head.index..head.index.saturating_add(head.term);
            if absent.iter().any(|id| range.contains(id)) {
                durable = next;
            }
        }
        Event::Record(..) | Event::BadPayload(..) | Event::BadHead(..) | Event::Unreadable(..) => {}
    });
    durable
}

/// The segments that the newest one says went after it began.
fn freed_in(newest: &Loaded) -> BTreeSet<u64> {
    let mut freed = BTreeSet::new();
    newest.scan(&mut |event| freed.extend(freed_by(&newest.head, &event)));
    freed
}

/// Which of the segments that `head` lists `event` says went. Only listed ones matter, and a list is bounded by its file.
pub(crate) fn freed_by(head: &SegmentHead, event: &Event<'_>) -> Vec<u64> {
    let range = match event {
        Event::Record(_, record, _) if record.kind == RecordKind::Freed => {
            record.index..record.index.saturating_add(record.term)
        }
        _ => return Vec::new(),
    };
    head.others.iter().map(|other| other.segment).filter(|id| range.contains(id)).collect()
}

/// The segments whose files are there.
pub(crate) fn present(disk: &dyn Disk, dir: &Path) -> Result<BTreeSet<u64>, OpenError> {
    let names = disk.list(dir).map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
    let segment = |name: &String| match Name::parse(name) {
        Name::Segment(id) => Some(id),
        Name::Spare | Name::Temporary | Name::Other => None,
    };
    Ok(names.iter().filter_map(segment).collect())
}

/// Reads a segment; `None` if the device gives nothing of it back.
pub(crate) fn load(disk: &dyn Disk, dir: &Path, id: u64) -> Result<Option<Read>, OpenError> {
    load_until(disk, dir, id, u64::MAX)
}

/// The same of a segment that is known to end there: behind that it may have room for a thousand times as much. Of a batch in whose middle
/// it ends, which was torn, the list is read too: it says whose record it was whose head is bad.
fn load_sealed(disk: &dyn Disk, dir: &Path, end: LogPlace) -> Result<Option<Read>, OpenError> {
    let read = load_until(disk, dir, end.segment, end.offset)?;
    let Some(Read { bytes, head: Some(head), .. }) = &read else { return Ok(read) };
    let offset = end.offset as usize;
    let past = segment(head, bytes, Some(offset), 0).end_of_last_list(offset) as u64;
    if past > end.offset { load_until(disk, dir, end.segment, past) } else { Ok(read) }
}

/// The same up to a place.
fn load_until(disk: &dyn Disk, dir: &Path, id: u64, end: u64) -> Result<Option<Read>, OpenError> {
    let path = segment_path(dir, id);
    let read = || Ok((disk.open(&path, OpenMode::Read)?.len()?, read_what_is_readable(disk, &path, end)?));
    let (size, (bytes, unreadable)) = match read() {
        Ok(found) => found,
        Err(error) if is_unreadable(&error) => return Ok(None),
        Err(source) => return Err(OpenError::Io { path, source }),
    };
    match SegmentHead::decode(&bytes, id) {
        Ok(head) => Ok(Some(Read { size, bytes, unreadable, head: Some(head) })),
        Err(HeadError::Version(version)) => Err(OpenError::Version { path, version }),
        Err(HeadError::Damaged) => Ok(Some(Read { size, bytes, unreadable, head: None })),
    }
}

fn slot(place: LogPlace, head: &RecordHead) -> Option<Slot> {
    let kind: EntryKind = head.entry_kind()?;
    Some(Slot { place, size: head.size, term: head.term, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BATCH_HEAD_SIZE, BatchHead, Mark, VERSION, seed};
    use hedgerow_env::sim::SimDisk;
    use hedgerow_env::{create_dir_durably, write_file_durably};

    #[test]
    fn entries_of_an_earlier_life_do_not_stand_in_for_missing_ones() {
        let place = |segment, offset| LogPlace { segment, offset };
        let slot = |at| Slot { place: at, size: 1, term: 1, kind: EntryKind::Normal };
        let state = State {
            replica: ReplicaId(1),
            born: place(2, 4096),
            start: LogPosition::default(),
            last: 2,
            hard_state: HardState::default(),
            is_damaged: false,
            generation: 0,
            is_incomplete: false,
            is_pending: false,
        };
        let mut replay = Replay::default();
        replay.put(1, slot(place(1, 4096)), true);
        replay.put(2, slot(place(1, 5000)), true);
        replay.set_state(place(3, 4096), state);
        assert!(replay.is_damaged(None));
        replay.put_moved(1, slot(place(3, 5000)), true);
        replay.put_moved(2, slot(place(3, 6000)), true);
        assert!(!replay.is_damaged(None));
        assert!(replay.is_damaged(Some(place(3, 5000))), "the loss may have replaced the first entry");
    }

    /// A checksum that is right says nothing of sense: adding to such a number would overflow.
    #[test]
    fn m3_numbers_that_no_log_reaches_are_damage() {
        let disk = SimDisk::new();
        let dir = Path::new("/log");
        let head = SegmentHead { version: VERSION, id: 1, size: 20 << 10, first_batch: u64::MAX, others: Vec::new() };
        let mut bytes = head.encode();
        let mut batch = vec![0; BATCH_HEAD_SIZE];
        let batch_head = BatchHead { number: u64::MAX, synced: 1, size: 0, count: 0 };
        batch_head.encode(seed(1), bytes.len() as u64, &[], &mut batch);
        bytes.extend(batch);
        bytes.resize(20 << 10, 0);
        create_dir_durably(&disk, dir).expect("an empty disk");
        write_file_durably(&disk, &segment_path(dir, 1), &bytes).expect("an empty disk");
        write_file_durably(&disk, &segment_path(dir, u64::MAX), &bytes).expect("an empty disk");
        let recovery = Recovery::read(&disk, dir, &mut |_| {}).expect("it can be read");
        assert!(recovery.has_unknown_loss());
        assert_eq!((recovery.next_segment, recovery.next_batch), (2, 1));
        assert_eq!(Mark::decode(&Mark { segment: u64::MAX, batch: 1 }.encode()), None);
        let link = Link { next: u64::MAX }.encode(seed(1));
        assert_eq!(Link::decode(&[&[0; 496][..], &link, &[0; 496]].concat(), 1, 1_008), None);
    }
}
