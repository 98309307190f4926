//! Where every entry stands, in memory: shared by the log, which writes, and its readers.

use crate::format::Place;
use hedgerow_env::File;
use hedgerow_types::log::EntryKind;
use hedgerow_types::{GroupId, Index, Term};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// One entry: where its record stands and what reading it must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) place: Place,
    /// Bytes of its data.
    pub(crate) size: u32,
    pub(crate) term: Term,
    pub(crate) kind: EntryKind,
}

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
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Index, &Slot)> {
        (self.first..).zip(&self.slots)
    }

    fn end(&self) -> Index {
        self.first + self.slots.len() as u64
    }
}
