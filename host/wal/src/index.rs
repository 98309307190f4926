//! Where every entry stands, in memory: shared by the log, which writes, and its readers.

use crate::format::LogPlace;
use hedgerow_env::File;
use hedgerow_types::log::EntryKind;
use hedgerow_types::{GroupId, Index, Term};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// One entry: where its record stands and what reading it must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) place: LogPlace,
    /// Bytes of its data.
    pub(crate) size: u32,
    pub(crate) term: Term,
    pub(crate) kind: EntryKind,
}

/// Bytes of memory that an entry in the log takes at most: the table of a group's entries grows by doubling.
pub const ENTRY_MEMORY: u64 = 2 * size_of::<Slot>() as u64;

/// A table with fewer entries than one in so many that it has room for gives memory back.
const ROOM_SHARE: usize = 4;

/// A group's entries, without gaps.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Index of the first one, or that the first one would have.
    first: Index,
    slots: VecDeque<Slot>,
}

/// All groups' entries and the files they stand in.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    pub(crate) groups: FxHashMap<GroupId, Slots>,
    pub(crate) files: BTreeMap<u64, Arc<dyn File>>,
}

impl Slots {
    pub(crate) fn new(first: Index, slots: Vec<Slot>) -> Self {
        Self { first, slots: slots.into() }
    }

    pub(crate) fn at(&self, index: Index) -> Option<&Slot> {
        self.slots.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    /// Puts the entry at `index`, after dropping it and all above; each dropped one is shown.
    pub(crate) fn put(&mut self, index: Index, slot: Slot, mut dropped: impl FnMut(&Slot)) {
        while self.end() > index
            && let Some(last) = self.slots.pop_back()
        {
            dropped(&last);
        }
        assert_eq!(self.end(), index, "entries leave no gap");
        self.slots.push_back(slot);
    }

    /// Gives the entry at `index` another place; returns the old one.
    pub(crate) fn replace(&mut self, index: Index, slot: Slot) -> Option<Slot> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        Some(std::mem::replace(self.slots.get_mut(at)?, slot))
    }

    /// Drops all entries below `first`.
    pub(crate) fn begin_at(&mut self, first: Index, mut dropped: impl FnMut(&Slot)) {
        while self.first < first
            && let Some(slot) = self.slots.pop_front()
        {
            dropped(&slot);
            self.first += 1;
        }
        self.first = self.first.max(first);
        if self.slots.len() < self.slots.capacity() / ROOM_SHARE {
            self.slots.shrink_to(2 * self.slots.len());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Index, &Slot)> {
        (self.first..).zip(&self.slots)
    }

    fn end(&self) -> Index {
        self.first + self.slots.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_the_index_takes_as_much_memory_as_it_says_and_gives_it_back() {
        let slot = |offset| Slot { place: LogPlace { segment: 1, offset }, size: 10, term: 1, kind: EntryKind::Normal };
        let mut slots = Slots::new(1, Vec::new());
        let taken = |slots: &Slots| (slots.slots.capacity() * size_of::<Slot>()) as u64;
        for index in 1..=100_000 {
            slots.put(index, slot(index), |_| {});
            assert!(index < 100 || taken(&slots) <= index * ENTRY_MEMORY, "{index}");
        }
        let mut dropped = 0;
        slots.begin_at(99_901, |_| dropped += 1);
        assert_eq!((dropped, slots.iter().count()), (99_900, 100));
        assert!(taken(&slots) <= 200 * ENTRY_MEMORY, "{}", taken(&slots));
        assert_eq!(slots.at(100_000), Some(&slot(100_000)));
    }
}
