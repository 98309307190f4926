//! What another cluster is to be told next.

use super::View;
use crate::engine::{Direction, EngineError, KeyRange};
use crate::journal::{State, change_of, entry_key, split_entry};
use crate::layout::{DATA, JOURNAL, JOURNAL_KEY, TOMBSTONE, data_key, split_stamped, split_tombstone};
use bytes::Bytes;
use hedgerow_types::codec::decode_changes;
use hedgerow_types::journal::{
    Change, DUPLICATE_CHANGES_MAX, EXPIRED_SECONDS, JournalPage, JournalRead, Phase, Position, Stamp, stamp_seconds,
};
use hedgerow_types::op::Mutation;
use std::ops::ControlFlow;

impl View<'_> {
    /// A page of what the duplication is to be told: of the rows that were there when it began, and then of the journal.
    pub(super) fn journal(&self, read: &JournalRead) -> Result<JournalPage, EngineError> {
        let state = self.rows.get(JOURNAL_KEY)?.map(State::decode).transpose()?.unwrap_or_default();
        let mut page = JournalPage { unneeded: state.unneeded(), now: self.now, ..JournalPage::default() };
        let Some(duplication) = state.duplications.iter().find(|it| it.id == read.id) else { return Ok(page) };
        (page.phase, page.round, page.target) = (duplication.phase, duplication.round, duplication.target);
        page.entries_left = state.entries - duplication.entry;
        page.bytes_left = state.bytes - duplication.bytes;
        // What was said before it began anew, or is behind what it has reached, is of no use.
        let reached = duplication.position();
        let from =
            read.from.clone().filter(|from| read.round == duplication.round && *from >= reached).unwrap_or(reached);
        match duplication.phase {
            Phase::Absent | Phase::Overrun => return Ok(page),
            Phase::Copying | Phase::Following => {}
        }
        match from {
            Position::Copying(key) => {
                let end = self.copy(&key, (state.base, state.cluster), read, &mut page)?;
                page.has_more = end.is_some() || state.entries > duplication.entry;
                page.position = Some(end.map_or_else(|| duplication.behind_copy(), Position::Copying));
            }
            Position::Following { entry, bytes } => {
                let (entry, bytes) = self.follow((entry, bytes), read, &mut page)?;
                page.has_more = entry < state.entries;
                page.position = Some(Position::Following { entry, bytes });
            }
        }
        Ok(page)
    }

    /// Adds the rows behind the engine key `after`, live and removed ones. Returns the last one if there may be more.
    fn copy(
        &self,
        after: &[u8],
        unstamped: (Stamp, u64),
        read: &JournalRead,
        page: &mut JournalPage,
    ) -> Result<Option<Bytes>, EngineError> {
        let mut size = 0;
        for first in [DATA, TOMBSTONE] {
            let start = [after, &[0]].concat().max(vec![first]);
            let end = [first + 1];
            if start[..] >= end[..] {
                continue;
            }
            let range = KeyRange { start: &start, end: Some(&end), is_bulk: true };
            let mut last = None;
            self.rows_of(range, |key, value| {
                page.changes.extend(change_of(key, value, unstamped)?);
                size += key.len() + value.len();
                let is_full = size >= read.bytes_max as usize || page.changes.len() >= DUPLICATE_CHANGES_MAX;
                last = is_full.then(|| Bytes::copy_from_slice(key));
                Ok(is_full)
            })?;
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// Adds entries of the journal behind `position`. Returns how far they reach.
    fn follow(
        &self,
        mut position: (u64, u64),
        read: &JournalRead,
        page: &mut JournalPage,
    ) -> Result<(u64, u64), EngineError> {
        let mut size = 0;
        let start = entry_key(position.0.saturating_add(1));
        let range = KeyRange { start: &start, end: Some(&[JOURNAL + 1]), is_bulk: false };
        self.rows_of(range, |key, value| {
            let (entry, bytes, changes) = split_entry(key, value)?;
            let changes = decode_changes(Bytes::copy_from_slice(changes))
                .map_err(|error| EngineError::damaged(error.to_string()))?;
            page.changes.extend(changes);
            position = (entry, bytes);
            size += key.len() + value.len();
            Ok(size >= read.bytes_max as usize || page.changes.len() >= DUPLICATE_CHANGES_MAX)
        })?;
        // Also where it is so old that nothing of it is told any more.
        page.oldest = page.changes.first().map_or(0, |change| stamp_seconds(change.stamp));
        for change in std::mem::take(&mut page.changes) {
            page.changes.extend(self.still_told(change)?);
        }
        Ok(position)
    }

    /// What is told for `change`. One that is so old that a row which overruled it may be forgotten by now, at either side, is told only if it
    /// is what the row still is; what came after it is told by itself, and where there is no row any more, there was none to come.
    fn still_told(&self, change: Change) -> Result<Option<Change>, EngineError> {
        if stamp_seconds(change.stamp).saturating_add(EXPIRED_SECONDS) > self.now {
            return Ok(Some(change));
        }
        let suffix = change.mutation.suffix();
        let mut present =
            self.rows.get(&data_key(&[suffix]))?.map(|row| split_stamped(&row).map(|it| it.1)).transpose()?;
        if present.is_none() {
            let removed = self.rows.get(&[&[TOMBSTONE], &suffix[..]].concat())?;
            present = removed.map(|row| split_tombstone(&row).map(|it| it.1)).transpose()?;
        }
        self.look(suffix.len())?;
        Ok(match present {
            Some((stamp, _)) => (stamp == change.stamp).then_some(change),
            None => Some(Change { mutation: Mutation::Remove { suffix: suffix.clone() }, ..change }),
        })
    }

    /// Shows `visit` the rows of `range` until it has enough.
    fn rows_of(
        &self,
        range: KeyRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool, EngineError>,
    ) -> Result<(), EngineError> {
        let mut outcome = Ok(false);
        self.rows.scan(range, Direction::Ascending, &mut |key, value| {
            outcome = self.look(key.len() + value.len()).and_then(|()| visit(key, value));
            match outcome {
                Ok(false) => ControlFlow::Continue(()),
                Ok(true) | Err(_) => ControlFlow::Break(()),
            }
        })?;
        outcome.map(|_| ())
    }
}
