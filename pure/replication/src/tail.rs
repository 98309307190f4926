//! Which keys the end of a log touches, for replicas that ask whether they miss anything (decision 018).
//!
//! An index is made when somebody asks, from the entries in memory, and goes on from there when somebody asks again: a group
//! that nobody asks pays nothing.

use crate::group::Group;
use crate::message::{data_of, kind_of};
use bytes::Bytes;
use core::ops::Bound;
use hedgerow_types::log::{EntryKind, LogPosition};
use hedgerow_types::{Index, Span, codec};
use std::collections::BTreeMap;

/// Entries behind what is asked for that are looked at; of a longer tail it is said that the question has to be asked again.
const ENTRIES_MAX: u64 = 1_024;
/// Bytes of an index with which it goes on when somebody asks again; a larger one is made anew, so that groups at rest hold little.
const KEPT_MAX: usize = 64 << 10;
/// Bytes of an index. With more nothing can be said.
const SIZE_MAX: usize = 2 << 20;
/// What a key counts beside itself, bytes.
const KEY_OVERHEAD: usize = 64;
/// Steps of a look-up by itself: a few milliseconds.
const STEPS_MAX: usize = 1 << 19;
/// What a span costs, and an entry and each of its keys when it is taken in, in steps.
const STEPS_EACH: usize = 16;
/// Bytes of a write of too many keys that cost a step.
const BYTES_A_STEP: usize = 16;

/// What a voter's log says of the entries after an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// For each read the last index that touches one of its keys; 0 = none does.
    pub reads: Vec<Index>,
    /// The smallest and the largest time of leaders in these entries, in expiry-epoch seconds; `None` = they carry none.
    pub times: Option<(u32, u32)>,
}

impl Touches {
    /// Times that hold those of both.
    pub(crate) fn join(one: Option<(u32, u32)>, other: Option<(u32, u32)>) -> Option<(u32, u32)> {
        match (one, other) {
            (Some((least, most)), Some((least_too, most_too))) => Some((least.min(least_too), most.max(most_too))),
            (one, other) => one.or(other),
        }
    }
}

/// The keys that one log's entries touch, from one entry on to its end.
#[derive(Debug, Default)]
pub struct TailIndex {
    /// It tells of the entries after this one,
    begin: Index,
    /// and up to this one. The same position in the log later means the same entries before it.
    through: LogPosition,
    /// The last index that touches a key,
    keys: BTreeMap<Bytes, Index>,
    /// one of `keys`,
    latest: Index,
    /// any key,
    any: Index,
    /// and the membership.
    change: Index,
    /// The times of leaders in the entries that carry one.
    times: BTreeMap<Index, u32>,
    /// Bytes that were taken for keys.
    size: usize,
}

impl TailIndex {
    /// What the log of `group` holds after the index `after` that touches the keys of `reads`. `None` = it cannot be said, or
    /// not soon, or the membership changes there: whoever asks has to ask again when it has applied more.
    pub fn look_up(&mut self, group: &Group, after: Index, reads: &[Vec<Span>]) -> Option<Touches> {
        self.look_up_within(group, after, reads, &mut { STEPS_MAX })
    }

    /// The same with what is left of a budget of several look-ups. A step is a key that is passed by, about ten nanoseconds. What is taken in
    /// before it is used up is not lost.
    pub fn look_up_within(
        &mut self,
        group: &Group,
        after: Index,
        reads: &[Vec<Span>],
        steps: &mut usize,
    ) -> Option<Touches> {
        if !group.answers_for_tail() {
            return None;
        }
        let window = group.core.store();
        let is_same_log = window.known_term(self.through.index) == Some(self.through.term);
        let is_near = (self.begin..=self.through.index).contains(&after) && !self.is_far_behind(window.last());
        if !is_same_log || !is_near {
            *self = Self { begin: after, through: LogPosition { index: after, term: 0 }, ..Self::default() };
        }
        if window.last() > self.through.index && !self.read_on(group, steps) {
            *self = Self::default();
            return None;
        }
        let has_all = window.last() <= self.through.index;
        if has_all && self.change > after && !group.ignores_changes_in_tail() {
            return None;
        }
        let mut of_read = |spans: &Vec<Span>| self.last_touch(spans, after, steps);
        let reads: Option<Vec<Index>> = if has_all { reads.iter().map(&mut of_read).collect() } else { None };
        let touches = reads.map(|reads| Touches { reads, times: self.times_after(after) });
        if self.size > KEPT_MAX {
            *self = Self::default();
        }
        touches
    }

    /// The least and the largest time in the entries after `after`.
    fn times_after(&self, after: Index) -> Option<(u32, u32)> {
        let of_entries = self.times.range(after.saturating_add(1)..).map(|(_, now)| Some((*now, *now)));
        of_entries.fold(None, Touches::join)
    }

    fn is_far_behind(&self, last: Index) -> bool {
        last.saturating_sub(self.through.index) > ENTRIES_MAX
    }

    /// Takes in the entries behind those that it knows, as far as `steps` go. Returns whether it could.
    fn read_on(&mut self, group: &Group, steps: &mut usize) -> bool {
        let window = group.core.store();
        if self.is_far_behind(window.last()) {
            return false;
        }
        let Some(entries) = window.tail(self.through.index + 1, group.ignores_cut_tail()) else { return false };
        for entry in entries {
            if *steps == 0 {
                break;
            }
            self.through = LogPosition { index: entry.index, term: entry.term };
            match kind_of(entry) {
                EntryKind::Membership => self.change = entry.index,
                EntryKind::Normal => {
                    let cost = STEPS_EACH + self.take(entry.index, data_of(entry));
                    *steps = steps.saturating_sub(cost);
                }
            }
            if self.size > SIZE_MAX {
                return false;
            }
        }
        true
    }

    /// Returns how many steps that took.
    fn take(&mut self, index: Index, data: &Bytes) -> usize {
        if data.is_empty() {
            return 0;
        }
        // What cannot be read touches everything.
        let proposal = codec::decode_proposal(data.clone()).ok();
        if let Some(now) = proposal.as_ref().map(|proposal| proposal.now).filter(|now| *now != 0) {
            self.times.insert(index, now);
            self.size += KEY_OVERHEAD;
        }
        match proposal.and_then(|proposal| proposal.write.keys()) {
            Some(keys) => {
                let cost = keys.len() * STEPS_EACH;
                self.latest = if keys.is_empty() { self.latest } else { index };
                self.size += keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum::<usize>();
                self.keys.extend(keys.into_iter().map(|key| (key, index)));
                cost
            }
            None => {
                self.any = index;
                data.len() / BYTES_A_STEP
            }
        }
    }

    /// The last index after `after` that touches any of `spans`; 0 = none does, `None` = it takes more than `steps`.
    fn last_touch(&self, spans: &[Span], after: Index, steps: &mut usize) -> Option<Index> {
        let mut last = self.any;
        for span in spans {
            // No other one can be later.
            if last.max(after) >= self.latest {
                break;
            }
            *steps = steps.checked_sub(STEPS_EACH)?;
            last = last.max(match span {
                Span::Key(key) => self.keys.get(key).copied().unwrap_or_default(),
                Span::Range { start, end: None } if start.is_empty() => self.latest,
                Span::Range { start, end } => self.last_in(start, end.as_ref(), steps)?,
            });
        }
        Some(if last > after { last } else { 0 })
    }

    fn last_in(&self, start: &Bytes, end: Option<&Bytes>, steps: &mut usize) -> Option<Index> {
        if end.is_some_and(|end| end <= start) {
            return Some(0);
        }
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = 0;
        for (_, index) in self.keys.range::<Bytes, _>((Bound::Included(start), end)) {
            *steps = steps.checked_sub(1)?;
            last = last.max(*index);
            if last == self.latest {
                break;
            }
        }
        Some(last)
    }
}
