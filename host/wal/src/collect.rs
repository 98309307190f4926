//! Gives back segments without a record in use, and moves the few records that hold others back.
//!
//! No group can block this: an idle one's records are few and are moved; a lagging one's hold only the segments that
//! they stand in, whatever their place in the order.

use crate::format::{RECORD_HEAD_SIZE, State};
use crate::index::{Slot, Slots};
use crate::log::{Halt, Log, Segment, Tombstone, lock, subtract_live};
use crate::reader::read_one;
use hedgerow_types::{GroupId, Index};
use std::collections::{BTreeMap, BTreeSet};

/// A segment is worth emptying if at most one byte in this many is in use.
const LIVE_SHARE: u64 = 2;
/// Bytes that one collection moves at most, unless a single segment holds more: writes wait meanwhile.
const MOVED_SIZE_MAX: u64 = 16 << 20;

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Segments given back.
    pub freed_segments: usize,
    /// Entries moved to the end of the log.
    pub moved_entries: u64,
    /// Bytes of their records.
    pub moved_bytes: u64,
    /// Segments without a record in use are left, for the next call.
    pub has_more: bool,
}

impl Log {
    /// Gives back what nobody needs. If more than [`crate::Options::segments_max`] segments would stay, moves the records
    /// out of those that hold the fewest, as far as that gains more than it costs. Writes and syncs only if there is
    /// something to give back; nothing is given back before all that replaces it is durable. After [`Halt::Stalled`] the
    /// same call begins anew, without what is done already.
    pub fn collect(&mut self) -> Result<Collected, Halt> {
        self.collect_some(usize::MAX)
    }

    /// The same, but gives back only `most` of the segments without a record in use, and moves nothing before the last of these.
    pub(crate) fn collect_some(&mut self, most: usize) -> Result<Collected, Halt> {
        self.check()?;
        self.drop_tombstones();
        let mut victims = self.unused();
        let mut collected = Collected { has_more: victims.len() > most, ..Collected::default() };
        let movable = if collected.has_more {
            victims = victims.into_iter().take(most).collect();
            BTreeSet::new()
        } else {
            self.movable(self.segments.len() - victims.len())
        };
        if victims.is_empty() && movable.is_empty() {
            return Ok(collected);
        }
        self.move_records(&movable, &mut collected)?;
        self.encode_unwritten()?;
        self.flush()?;
        victims.extend(movable.into_iter().filter(|id| self.segments.get(id).is_some_and(|segment| segment.live == 0)));
        self.free(&victims)?;
        collected.freed_segments = victims.len();
        self.stats.moved_entries += collected.moved_entries;
        Ok(collected)
    }

    /// A removal need not be remembered once no older segment is there that could hold records of the group.
    fn drop_tombstones(&mut self) {
        let Some(oldest) = self.segments.keys().next().copied() else { return };
        let segments = &mut self.segments;
        self.tombstones.retain(|_, tombstone| {
            let is_needed = oldest <= tombstone.through && oldest < tombstone.at.segment;
            if !is_needed {
                subtract_live(segments, tombstone.at.segment, RECORD_HEAD_SIZE as u64);
            }
            is_needed
        });
    }

    /// Segments without a record in use, once the states that wait to be written have replaced the former ones.
    fn unused(&self) -> BTreeSet<u64> {
        let mut replaced: BTreeMap<u64, u64> = BTreeMap::new();
        for at in self.unwritten_states.iter().filter_map(|group| self.states.get(group)) {
            *replaced.entry(at.segment).or_default() += State::RECORD_SIZE as u64;
        }
        let active = self.active.as_ref().map(|active| active.id);
        let is_unused = |(id, segment): &(&u64, &Segment)| {
            Some(**id) != active && segment.live == replaced.get(*id).copied().unwrap_or(0)
        };
        self.segments.iter().filter(is_unused).map(|(id, _)| *id).collect()
    }

    /// The segments to empty of the `count` that would stay, those with the fewest bytes in use first. As many as
    /// `segments_max` stay in any case, and as many as are half full: a log that is kept on purpose, for a replica that
    /// lags, fills any number of segments, and writing it again would gain nothing.
    fn movable(&self, count: usize) -> BTreeSet<u64> {
        let active = self.active.as_ref().map(|active| active.id);
        let live: u64 = self.segments.values().map(|segment| segment.live).sum();
        let needed = live.saturating_mul(LIVE_SHARE) / self.options.segment_size;
        let enough = self.options.segments_max.max(1).max(usize::try_from(needed).unwrap_or(usize::MAX));
        let excess = count.saturating_sub(enough);
        let mut sparse: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|(id, segment)| Some(**id) != active && segment.live > 0)
            .filter(|(_, segment)| segment.live.saturating_mul(LIVE_SHARE) <= segment.size)
            .map(|(id, segment)| (segment.live, *id))
            .collect();
        sparse.sort_unstable();
        // Where the disk gives no more, what is left is not used up for it.
        let affordable = self.left().map_or(u64::MAX, |left| left / 2);
        let mut moved = 0;
        let fits = |(live, _): &(u64, u64)| {
            let is_first = moved == 0;
            moved += live;
            moved <= affordable && (is_first || moved <= MOVED_SIZE_MAX)
        };
        sparse.into_iter().take(excess).take_while(fits).map(|(_, id)| id).collect()
    }

    /// Writes every record in use in `movable` again, at the end of the log. An entry that cannot be read stays, and its
    /// segment with it: the next opening will call it damaged.
    fn move_records(&mut self, movable: &BTreeSet<u64>, collected: &mut Collected) -> Result<(), Halt> {
        if movable.is_empty() {
            return Ok(());
        }
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            let entries = self.entries_in(group, movable);
            // The copies say nothing about what follows them, so the state that bounds the log must come after.
            if !entries.is_empty() || self.states.get(&group).is_none_or(|at| movable.contains(&at.segment)) {
                self.unwritten_states.insert(group);
            }
            for (index, slot) in entries {
                let file = self.segments.get(&slot.place.segment).and_then(|segment| segment.file.clone());
                let Some(Ok(data)) = file.map(|file| read_one(&*file, group, index, &slot)) else { continue };
                self.encode_moved(group, index, slot, &data)?;
                collected.moved_entries += 1;
                collected.moved_bytes += slot.record_size();
            }
        }
        let buried: Vec<(GroupId, Tombstone)> = self
            .tombstones
            .iter()
            .filter(|(_, tombstone)| movable.contains(&tombstone.at.segment))
            .map(|(group, tombstone)| (*group, *tombstone))
            .collect();
        for (group, tombstone) in buried {
            let at = self.reserve(RECORD_HEAD_SIZE)?;
            self.encode_tombstone(group, Tombstone { at, ..tombstone });
        }
        Ok(())
    }

    fn entries_in(&self, group: GroupId, segments: &BTreeSet<u64>) -> Vec<(Index, Slot)> {
        let positions = lock(&self.positions);
        let slots = positions.groups.get(&group).into_iter().flat_map(Slots::iter);
        slots.filter(|(_, slot)| segments.contains(&slot.place.segment)).map(|(index, slot)| (index, *slot)).collect()
    }

    fn free(&mut self, victims: &BTreeSet<u64>) -> Result<(), Halt> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for id in victims {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == *id => *count += 1,
                Some(_) | None => ranges.push((*id, 1)),
            }
        }
        self.encode_freed(&ranges)?;
        self.flush()?;
        self.sync_active()?;
        for id in victims {
            lock(&self.positions).files.remove(id);
            let Some(segment) = self.segments.remove(id) else { continue };
            if segment.file.is_some() {
                let result = self.files.free(*id, segment.size);
                self.or_fail("give back a segment", result)?;
            }
        }
        Ok(())
    }
}
