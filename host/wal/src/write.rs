//! Turns changes into records and puts them on the medium: one buffer, one write per batch, a new segment when one is full.

use crate::format::{
    ALIGNMENT, BATCH_HEAD_SIZE, BatchHead, FREED_RECORD_SIZE, LINK_SPACE, Link, Listed, LogPlace, RECORD_HEAD_SIZE,
    RecordHead, RecordKind, SEGMENT_UNIT, SegmentHead, State, VERSION, seed,
};
use crate::index::{Slot, Slots};
use crate::log::{
    Active, Append, Failed, Group, Halt, Linkable, Log, Segment, Tombstone, add_live, lock, release, subtract_live,
};
use hedgerow_types::log::{Entry, HardState};
use hedgerow_types::{GroupId, Index};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The records of the batch being put together, and what they will mean once they are written.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    buffer: Vec<u8>,
    /// What the batch's list says of its records.
    listed: Vec<u8>,
    count: u32,
    seed: u32,
    effects: Vec<Effect>,
}

/// What a record changes in memory. Applied after the write, so that no reader looks for bytes that are not there.
#[derive(Debug)]
enum Effect {
    /// The group's entries are void; the first one will have this index.
    Begin(GroupId, Index),
    Entry(GroupId, Index, Slot),
    Moved(GroupId, Index, Slot),
    State(GroupId, LogPlace),
    Tombstone(GroupId, Tombstone),
}

impl Log {
    /// Writes the changes, in their order, to the system but not yet to the medium: [`Log::sync`] does that. What is
    /// written between two syncs is one round. Truncations and removals asked for before go first.
    ///
    /// After [`Halt::Stalled`] some of it may be written; [`Log::write_rest`] knows what.
    ///
    /// # Panics
    /// If an append's entries leave a gap or reach below the start of the log: its caller is broken.
    pub fn write(&mut self, appends: &[Append]) -> Result<(), Halt> {
        self.write_rest(&mut appends.iter().cloned().collect())
    }

    /// As [`Log::write`]. It takes from `appends` what is written, so that after [`Halt::Stalled`] the same call goes on.
    ///
    /// # Panics
    /// As [`Log::write`].
    pub fn write_rest(&mut self, appends: &mut VecDeque<Append>) -> Result<(), Halt> {
        self.check()?;
        self.encode_unwritten()?;
        while let Some(append) = appends.front_mut() {
            self.encode(append)?;
            appends.pop_front();
        }
        Ok(self.flush()?)
    }

    /// Puts on record what so far happened in memory only.
    pub(crate) fn encode_unwritten(&mut self) -> Result<(), Halt> {
        while let Some(group) = self.unwritten_removals.first().copied() {
            let place = self.reserve(RECORD_HEAD_SIZE)?;
            self.unwritten_removals.remove(&group);
            self.encode_tombstone(group, Tombstone { at: place, through: place.segment });
        }
        while let Some(group) = self.unwritten_states.first().copied() {
            if let Some(meta) = self.groups.get(&group).copied() {
                self.encode_state(group, &meta)?;
            }
            self.unwritten_states.remove(&group);
        }
        Ok(())
    }

    /// After a stall, `append` is what is left of it.
    fn encode(&mut self, append: &mut Append) -> Result<(), Halt> {
        let known = self.groups.get(&append.group).copied().filter(|meta| meta.replica == append.replica);
        let mut meta = match known {
            Some(meta) if append.reset.is_none() => meta,
            known => self.begin(append, known)?,
        };
        append.reset = None;
        let result = self.encode_onto(append, &mut meta);
        self.groups.insert(append.group, meta);
        result
    }

    fn encode_onto(&mut self, append: &mut Append, meta: &mut Group) -> Result<(), Halt> {
        if let Some(first) = append.entries.first() {
            let is_next = first.index > meta.start.index && first.index <= meta.last.index + 1;
            let (group, index, last) = (append.group, first.index, meta.last.index);
            assert!(is_next, "entry {index} of group {group} does not follow entry {last}");
        }
        let has_no_gap = append.entries.is_sorted_by(|left, right| left.index + 1 == right.index);
        assert!(has_no_gap, "the entries of group {} leave a gap", append.group);
        let mut written = 0;
        let mut encode_all = || {
            for entry in &append.entries {
                self.encode_entry(append.group, entry)?;
                meta.last = entry.position();
                written += 1;
            }
            if let Some(hard_state) = append.hard_state {
                self.encode_state(append.group, &Group { hard_state, ..*meta })?;
                meta.hard_state = hard_state;
            }
            Ok(())
        };
        let result = encode_all();
        self.stats.entries += written as u64;
        if result.is_err() {
            append.entries.drain(..written);
        }
        result
    }

    /// Begins a new life of a group's log, which voids everything before but the hard state of the same replica.
    fn begin(&mut self, append: &Append, known: Option<Group>) -> Result<Group, Halt> {
        let start = append.reset.unwrap_or_default();
        let meta = Group {
            replica: append.replica,
            born: self.reserve(State::RECORD_SIZE)?,
            start,
            last: start,
            hard_state: known.map_or(HardState::default(), |meta| meta.hard_state),
            is_damaged: false,
            generation: known.map_or(0, |meta| meta.generation),
            is_incomplete: false,
            is_pending: false,
        };
        self.encode_begin(append.group, &meta)?;
        Ok(meta)
    }

    /// The first state of a life of a group's log, which the caller has reserved the place for: `meta` was born there.
    pub(crate) fn encode_begin(&mut self, group: GroupId, meta: &Group) -> Result<(), Halt> {
        self.batch.effects.push(Effect::Begin(group, meta.start.index + 1));
        self.encode_state(group, meta)
    }

    pub(crate) fn encode_entry(&mut self, group: GroupId, entry: &Entry) -> Result<(), Halt> {
        let place = self.reserve(RECORD_HEAD_SIZE + entry.data.len())?;
        let head = RecordHead::new(RecordKind::Entry, entry.kind as u8, group, entry.index, entry.term);
        self.batch.put(&head, &entry.data);
        let slot = Slot { place, size: entry.data.len() as u32, term: entry.term, kind: entry.kind };
        self.batch.effects.push(Effect::Entry(group, entry.index, slot));
        Ok(())
    }

    /// Writes an entry in force at another place.
    pub(crate) fn encode_moved(&mut self, group: GroupId, index: Index, slot: Slot, data: &[u8]) -> Result<(), Halt> {
        let place = self.reserve(RECORD_HEAD_SIZE + data.len())?;
        let head = RecordHead::new(RecordKind::Moved, slot.kind as u8, group, index, slot.term);
        self.batch.put(&head, data);
        self.batch.effects.push(Effect::Moved(group, index, Slot { place, ..slot }));
        Ok(())
    }

    pub(crate) fn encode_state(&mut self, group: GroupId, meta: &Group) -> Result<(), Halt> {
        let place = self.reserve(State::RECORD_SIZE)?;
        meta.state().encode(group, self.batch.seed, &mut self.batch.buffer);
        self.batch.list(Listed { kind: RecordKind::State, group, size: State::SIZE });
        self.batch.effects.push(Effect::State(group, place));
        Ok(())
    }

    /// Records that `group` is gone; the caller has reserved the place.
    pub(crate) fn encode_tombstone(&mut self, group: GroupId, tombstone: Tombstone) {
        self.batch.put(&RecordHead::new(RecordKind::Removed, 0, group, tombstone.through, 0), &[]);
        self.batch.effects.push(Effect::Tombstone(group, tombstone));
    }

    /// Records that these segments, each range a first one and a count, count no more. All in one place: a new segment
    /// in between would list them again, and recovery believes the newest segment alone.
    pub(crate) fn encode_freed(&mut self, ranges: &[(u64, u64)]) -> Result<(), Halt> {
        self.reserve_for(ranges.len(), ranges.len() * FREED_RECORD_SIZE)?;
        for (first, count) in ranges {
            let head = RecordHead::freed(*first, *count);
            self.batch.put(&head, &head.freed_payload(self.batch.seed));
        }
        Ok(())
    }

    /// The place of the next record, which takes `size` bytes; makes room for it.
    pub(crate) fn reserve(&mut self, size: usize) -> Result<LogPlace, Halt> {
        self.reserve_for(1, size)
    }

    /// The same for `count` records, which take `size` bytes together.
    fn reserve_for(&mut self, count: usize, size: usize) -> Result<LogPlace, Halt> {
        if u32::try_from(size).is_err() {
            return Ok(self.or_fail("hold an entry of 4 GiB", Err(io::ErrorKind::InvalidInput.into()))?);
        }
        let used = self.batch.buffer.len().saturating_sub(BATCH_HEAD_SIZE);
        let needed = BatchHead::batch_size(used + size, self.batch.count as usize + count) as u64;
        let has_room = |active: &Active| active.end + needed <= active.limit;
        if self.is_rolling || !self.active.as_ref().is_some_and(has_room) {
            self.flush()?;
            self.roll(BatchHead::batch_size(size, count))?;
        }
        let active = self.active.as_ref().expect("rolling makes a segment active");
        if self.batch.buffer.is_empty() {
            self.batch.buffer.resize(BATCH_HEAD_SIZE, 0);
            self.batch.seed = seed(active.id);
        }
        Ok(LogPlace { segment: active.id, offset: active.end + self.batch.buffer.len() as u64 })
    }

    /// Writes the batch, if there is one.
    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        let Some(active) = self.active.as_ref().filter(|_| self.batch.count > 0) else { return Ok(()) };
        let (file, offset) = (Arc::clone(&active.file), active.end);
        let size = self.batch.buffer.len() - BATCH_HEAD_SIZE;
        let head =
            BatchHead { number: self.next_batch, synced: self.synced, size: size as u32, count: self.batch.count };
        head.encode(self.batch.seed, offset, &self.batch.listed, &mut self.batch.buffer);
        let result = file.write_at(offset, &self.batch.buffer);
        self.or_fail("write", result)?;
        self.next_batch += 1;
        self.stats.batches += 1;
        self.stats.record_bytes += size as u64;
        if let Some(active) = &mut self.active {
            active.end = (offset + self.batch.buffer.len() as u64).next_multiple_of(ALIGNMENT as u64);
        }
        self.batch.buffer.clear();
        self.batch.listed.clear();
        self.batch.count = 0;
        self.apply_effects();
        Ok(())
    }

    /// Makes a new segment the active one, with room for a batch of `size` bytes. What the former one holds is durable
    /// first: its end, as the new head has it, must be true. And it says durably that the new one is there before anything
    /// is written to that: its absence will be a loss.
    fn roll(&mut self, size: usize) -> Result<(), Halt> {
        self.sync_active()?;
        if let Some(active) = &self.active
            && let Some(segment) = self.segments.get_mut(&active.id)
        {
            segment.end = active.end;
        }
        let others: Vec<LogPlace> =
            self.segments.iter().map(|(id, segment)| LogPlace { segment: *id, offset: segment.end }).collect();
        let end = SegmentHead::new_data_start(others.len()) as u64;
        let needed = (end + size as u64 + LINK_SPACE).next_multiple_of(SEGMENT_UNIT as u64);
        let id = self.next_segment;
        let made = self.files.make(needed);
        let made = self.or_stall(made)?;
        let size = made.size;
        self.is_rolling = true;
        let head = SegmentHead { version: VERSION, id, size, first_batch: self.next_batch, others };
        let published = self.files.publish(made, &head);
        let file = self.or_stall(published)?;
        self.link(id)?;
        self.is_rolling = false;
        self.next_segment += 1;
        self.segments.insert(id, Segment { file: Some(Arc::clone(&file)), size, end, live: 0 });
        lock(&self.positions).files.insert(id, Arc::clone(&file));
        let limit = Link::offset(size);
        self.linkable = Some(Linkable { file: Arc::clone(&file), place: LogPlace { segment: id, offset: limit } });
        self.active = Some(Active { id, file, limit, end });
        Ok(())
    }

    /// Has the newest segment name the one that comes next.
    fn link(&mut self, next: u64) -> Result<(), Failed> {
        let Some(Linkable { file, place }) = self.linkable.take() else { return Ok(()) };
        let link = Link { next }.encode(seed(place.segment));
        let result = file.write_at(place.offset, &link).and_then(|()| file.sync_data());
        self.or_fail("link a segment to the next one", result)?;
        self.stats.syncs += 1;
        Ok(())
    }

    fn apply_effects(&mut self) {
        let positions = &mut *lock(&self.positions);
        let segments = &mut self.segments;
        for effect in self.batch.effects.drain(..) {
            match effect {
                Effect::Begin(group, first) => {
                    let before = positions.groups.insert(group, Slots::new(first, Vec::new()));
                    before.iter().flat_map(Slots::iter).for_each(|(_, slot)| release(segments, slot));
                    if let Some(tombstone) = self.tombstones.remove(&group) {
                        subtract_live(segments, tombstone.at.segment, RECORD_HEAD_SIZE as u64);
                    }
                }
                Effect::Entry(group, index, slot) => {
                    let slots = positions.groups.entry(group).or_default();
                    slots.put(index, slot, |dropped| release(segments, dropped));
                    add_live(segments, slot.place.segment, slot.record_size());
                }
                Effect::Moved(group, index, slot) => {
                    let before = positions.groups.get_mut(&group).and_then(|slots| slots.replace(index, slot));
                    before.iter().for_each(|before| release(segments, before));
                    add_live(segments, slot.place.segment, slot.record_size());
                }
                Effect::State(group, at) => {
                    if let Some(before) = self.states.insert(group, at) {
                        subtract_live(segments, before.segment, State::RECORD_SIZE as u64);
                    }
                    add_live(segments, at.segment, State::RECORD_SIZE as u64);
                }
                Effect::Tombstone(group, tombstone) => {
                    if let Some(before) = self.tombstones.insert(group, tombstone) {
                        subtract_live(segments, before.at.segment, RECORD_HEAD_SIZE as u64);
                    }
                    add_live(segments, tombstone.at.segment, RECORD_HEAD_SIZE as u64);
                }
            }
        }
    }
}

impl Batch {
    fn put(&mut self, head: &RecordHead, payload: &[u8]) {
        head.encode(self.seed, payload, &mut self.buffer);
        self.list(Listed { kind: head.kind, group: head.group, size: payload.len() as u32 });
    }

    fn list(&mut self, listed: Listed) {
        listed.encode(&mut self.listed);
        self.count += 1;
    }
}
