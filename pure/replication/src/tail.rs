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
    /// the membership changes there: whoever asks has to ask again when it has applied more.
    pub fn look_up(&mut self, group: &Group, after: Index, reads: &[Vec<Span>]) -> Option<Touches> {
        if !group.answers_for_tail() {
            return None;
        }
        let window = group.core.store();
        let is_same_log = window.known_term(self.through.index) == Some(self.through.term);
        let is_near = (self.begin..=self.through.index).contains(&after) && !self.is_far_behind(window.last());
        if !is_same_log || !is_near {
            *self = Self { begin: after, through: LogPosition { index: after, term: 0 }, ..Self::default() };
        }
        if window.last() > self.through.index && !self.read_on(group) {
            *self = Self::default();
            return None;
        }
        if self.change > after && !group.ignores_changes_in_tail() {
            return None;
        }
        let reads = reads.iter().map(|spans| self.last_touch(spans)).map(|index| if index > after { index } else { 0 });
        let of_entries = self.times.range(after.saturating_add(1)..).map(|(_, now)| Some((*now, *now)));
        let touches = Touches { reads: reads.collect(), times: of_entries.fold(None, Touches::join) };
        if self.size > KEPT_MAX {
            *self = Self::default();
        }
        Some(touches)
    }

    fn is_far_behind(&self, last: Index) -> bool {
        last.saturating_sub(self.through.index) > ENTRIES_MAX
    }

    /// Takes in the entries behind those that it knows. Returns whether it could.
    fn read_on(&mut self, group: &Group) -> bool {
        let window = group.core.store();
        if self.is_far_behind(window.last()) {
            return false;
        }
        let Some(entries) = window.tail(self.through.index + 1, group.ignores_cut_tail()) else { return false };
        for entry in entries {
            self.through = LogPosition { index: entry.index, term: entry.term };
            match kind_of(entry) {
                EntryKind::Membership => self.change = entry.index,
                EntryKind::Normal => self.take(entry.index, data_of(entry)),
            }
            if self.size > SIZE_MAX {
                return false;
            }
        }
        true
    }

    fn take(&mut self, index: Index, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        // What cannot be read touches everything.
        let proposal = codec::decode_proposal(data.clone()).ok();
        if let Some(now) = proposal.as_ref().map(|proposal| proposal.now).filter(|now| *now != 0) {
            self.times.insert(index, now);
            self.size += KEY_OVERHEAD;
        }
        match proposal.and_then(|proposal| proposal.write.keys()) {
            Some(keys) => {
                self.size += keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum::<usize>();
                self.keys.extend(keys.into_iter().map(|key| (key, index)));
            }
            None => self.any = index,
        }
    }

    /// The last index that touches any of `spans`; 0 = none does.
    fn last_touch(&self, spans: &[Span]) -> Index {
        let of_span = |span: &Span| match span {
            Span::Key(key) => self.keys.get(key).copied(),
            Span::Range { start, end } => {
                let end = end.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let is_empty = matches!(end, Bound::Excluded(end) if end <= start);
                if is_empty {
                    None
                } else {
                    self.keys.range::<Bytes, _>((Bound::Included(start), end)).map(|it| *it.1).max()
                }
            }
        };
        spans.iter().filter_map(of_span).max().unwrap_or_default().max(self.any)
    }
}
