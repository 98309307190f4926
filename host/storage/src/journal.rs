//! What a partition keeps for other clusters, and what it is told by them.
//!
//! The *journal* holds, for each write since a duplication began, the rows as the write left them: entries with numbers in turn, written in
//! the batch of the write itself, so that every replica has the same ones, one that began from a checkpoint too. A duplication *has
//! reached* a number up to which the other cluster was told. What all have reached is removed, some entries with each write,
//! so that no write costs much.
//!
//! From a partition's first duplication on, in either direction, its rows have stamps, and removed rows are remembered for a time
//! ([`hedgerow_types::journal`]). All of it is a function of the log.

use crate::batch::Batch;
use crate::engine::{Engine, EngineError};
use crate::layout::{DATA, JOURNAL, JOURNAL_KEY, TOMBSTONE, split_stamped, split_tombstone};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_types::codec::encode_changes;
use hedgerow_types::error::Status;
use hedgerow_types::journal::{
    Change, DUPLICATION_COUNT_MAX, JournalWrite, Phase, Position, STAMP_AHEAD_MAX, Stamp, stamp_after, stamp_seconds,
};
use hedgerow_types::op::Mutation;
use hedgerow_types::time::is_expired;
use std::collections::BTreeMap;

const VERSION: u8 = 1;
/// Bytes of a journal entry before its changes.
pub(crate) const ENTRY_HEADER_SIZE: usize = 9;
/// Numbers of duplications that have ended which are kept: what begins late does not begin them again.
const ENDED_MAX: usize = 16;
/// Entries that a write removes at most, of those that nobody needs any more. More than one, so that the journal shrinks.
const TRIMMED_BY_WRITE_MAX: u64 = 64;
/// The same of a write that says how far a duplication is. Many more than a page of a duplication can have entries of some size.
const TRIMMED_BY_REACHED_MAX: u64 = 4_096;

/// The journal of one partition.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// `None` = the partition was never duplicated.
    state: Option<State>,
    /// As the engine holds it.
    written: Option<State>,
}

/// What is known of the journal beside its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The latest stamp given, or seen in a foreign change.
    pub(crate) clock: Stamp,
    /// When the first duplication of the partition began: rows without stamps count as changed then. 0 = none has.
    pub(crate) base: Stamp,
    /// Number of the cluster.
    pub(crate) cluster: u64,
    /// Number of the last entry; entries count from 1.
    pub(crate) entries: u64,
    /// Bytes of all entries that there ever were.
    pub(crate) bytes: u64,
    /// Entries up to this one are removed.
    pub(crate) trimmed: u64,
    /// By their numbers.
    pub(crate) duplications: Vec<Duplication>,
    /// Those that ended last.
    pub(crate) ended: Vec<u64>,
}

/// One duplication, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Duplication {
    pub(crate) id: u64,
    pub(crate) round: u32,
    pub(crate) target: u64,
    pub(crate) bytes_max: u64,
    pub(crate) phase: Phase,
    /// While rows are copied: up to this engine key they are.
    pub(crate) copied: Bytes,
    /// The entry up to which all is told; while rows are copied, the last one of when that began.
    pub(crate) entry: u64,
    /// Bytes of the journal up to that entry.
    pub(crate) bytes: u64,
}

impl Duplication {
    pub(crate) fn position(&self) -> Position {
        match self.phase {
            Phase::Copying => Position::Copying(self.copied.clone()),
            Phase::Following | Phase::Absent | Phase::Overrun => self.behind_copy(),
        }
    }

    /// Where it goes on once all rows are copied.
    pub(crate) const fn behind_copy(&self) -> Position {
        Position::Following { entry: self.entry, bytes: self.bytes }
    }

    /// Whether entries are kept for it.
    fn needs_entries(&self) -> bool {
        matches!(self.phase, Phase::Copying | Phase::Following)
    }
}

impl Journal {
    /// As the engine's content says.
    pub(crate) fn open(engine: &dyn Engine) -> Result<Self, EngineError> {
        let state = engine.get(JOURNAL_KEY)?.map(State::decode).transpose()?;
        Ok(Self { written: state.clone(), state })
    }

    /// The stamp of a write at `now`; `None` if rows have none. The same again until it is [recorded](Self::record): a write that an
    /// engine's error ends is run once more, and other replicas run it once.
    pub(crate) fn stamp(&self, now: u32) -> Option<Stamp> {
        self.state.as_ref().map(|state| stamp_after(state.clock, now))
    }

    /// Foreign changes up to `stamp` came to this cluster, which has the number `here`: later writes get later stamps.
    pub(crate) fn note_foreign(&mut self, stamp: Stamp, here: u64) {
        let state = self.state.get_or_insert_default();
        state.cluster = here;
        state.clock = state.clock.max(stamp);
    }

    /// What rows without stamps count as.
    pub(crate) fn base(&self) -> Stamp {
        self.state.as_ref().map_or(0, |state| state.base)
    }

    /// The log's time was far ahead and is set back to `now`: stamps go back as well, since the other side would take none of that time.
    pub(crate) fn set_back(&mut self, now: u32) {
        if let Some(state) =
            self.state.as_mut().filter(|it| stamp_seconds(it.clock) > now.saturating_add(STAMP_AHEAD_MAX))
        {
            state.clock = stamp_after(0, now);
        }
    }

    /// Whether rows have stamps.
    pub(crate) fn is_kept(&self) -> bool {
        self.state.is_some()
    }

    /// Number of this cluster, if the partition has heard of it.
    pub(crate) fn cluster(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.cluster).filter(|cluster| *cluster != 0)
    }

    /// A write has run. If it has a stamp, keeps what the changes of `batch` from number `from` on have made of rows, if anybody needs it.
    pub(crate) fn record(&mut self, stamp: Option<Stamp>, from: usize, batch: &mut Batch) -> Result<(), EngineError> {
        let Some(state) = self.state.as_mut() else { return Ok(()) };
        if let Some(stamp) = stamp {
            state.clock = stamp;
            state.record(stamp, from, batch)?;
        }
        state.trim(TRIMMED_BY_WRITE_MAX, batch);
        Ok(())
    }

    /// Changes what is kept, at `now`.
    pub(crate) fn change(&mut self, write: &JournalWrite, now: u32, batch: &mut Batch) -> Status {
        let status = match write {
            JournalWrite::Begin { cluster: 0, .. } => Status::InvalidArgument,
            JournalWrite::Begin { id, round, cluster, target, bytes_max } => {
                let state = self.state.get_or_insert_default();
                let begun = Duplication {
                    id: *id,
                    round: *round,
                    target: *target,
                    bytes_max: *bytes_max,
                    phase: Phase::Copying,
                    copied: Bytes::new(),
                    entry: state.entries,
                    bytes: state.bytes,
                };
                state.begin(begun, *cluster, now)
            }
            JournalWrite::Reached { id, round, position } => match self.state.as_mut() {
                Some(state) => state.reach(*id, *round, position),
                None => Status::NotFound,
            },
            JournalWrite::End { id } => {
                if let Some(state) = self.state.as_mut() {
                    state.end(*id);
                }
                Status::Ok
            }
        };
        if let Some(state) = self.state.as_mut() {
            state.trim(TRIMMED_BY_REACHED_MAX, batch);
        }
        status
    }

    /// Adds the state to a batch that is about to be written.
    pub(crate) fn put(&self, batch: &mut Batch) {
        if let Some(state) = self.state.as_ref().filter(|_| self.state != self.written) {
            batch.put(&[JOURNAL_KEY], &[&state.encode()]);
        }
    }

    /// The batch is written.
    pub(crate) fn note_written(&mut self) {
        if self.state != self.written {
            self.written.clone_from(&self.state);
        }
    }

    /// Goes back to what the engine holds.
    pub(crate) fn take_back(&mut self) {
        self.state.clone_from(&self.written);
    }
}

impl State {
    /// `begun` is kept from now on, if nothing is that goes before it.
    fn begin(&mut self, begun: Duplication, cluster: u64, now: u32) -> Status {
        if self.cluster == 0 {
            self.cluster = cluster;
        }
        if self.cluster != cluster {
            return Status::InvalidArgument;
        }
        let position = match self.duplications.binary_search_by_key(&begun.id, |it| it.id) {
            Ok(position) => position,
            Err(_) if self.duplications.len() >= DUPLICATION_COUNT_MAX => return Status::InvalidArgument,
            Err(_) if self.ended.contains(&begun.id) => return Status::InvalidArgument,
            Err(position) => {
                if self.base == 0 {
                    self.clock = stamp_after(self.clock, now);
                    self.base = self.clock;
                }
                self.duplications.insert(position, begun);
                return Status::Ok;
            }
        };
        let known = &mut self.duplications[position];
        known.bytes_max = begun.bytes_max;
        // What is copied to a table that is not there any more is copied to the one that is.
        let is_moved = begun.round == known.round && known.phase == Phase::Copying && begun.target != known.target;
        if begun.round > known.round || is_moved {
            *known = begun;
        }
        Status::Ok
    }

    fn end(&mut self, id: u64) {
        let count = self.duplications.len();
        self.duplications.retain(|it| it.id != id);
        if self.duplications.len() < count {
            let over = (self.ended.len() + 1).saturating_sub(ENDED_MAX);
            self.ended.drain(..over);
            self.ended.push(id);
        }
    }

    fn reach(&mut self, id: u64, round: u32, position: &Position) -> Status {
        let (entries, total) = (self.entries, self.bytes);
        let Some(known) = self.duplications.iter_mut().find(|it| it.id == id) else { return Status::NotFound };
        // Said late, of what is over: it changes nothing.
        if known.round != round || !known.needs_entries() || *position <= known.position() {
            return Status::Ok;
        }
        match position {
            // A copy: the key may be a piece of a whole message.
            Position::Copying(key) => known.copied = Bytes::copy_from_slice(key),
            Position::Following { entry, bytes } => {
                let (to_known, to_end) = (entry.cmp(&known.entry), entry.cmp(&entries));
                let is_entry = bytes.cmp(&known.bytes) == to_known && bytes.cmp(&total) == to_end;
                if to_known.is_lt() || to_end.is_gt() || !is_entry {
                    return Status::InvalidArgument;
                }
                (known.phase, known.copied) = (Phase::Following, Bytes::new());
                (known.entry, known.bytes) = (*entry, *bytes);
            }
        }
        Status::Ok
    }

    /// Keeps what the changes of `batch` from number `from` on have made of rows, if anybody needs it.
    fn record(&mut self, stamp: Stamp, from: usize, batch: &mut Batch) -> Result<(), EngineError> {
        if !self.duplications.iter().any(Duplication::needs_entries) {
            return Ok(());
        }
        // A write may change a row twice. Both changes would have one stamp, so that the other side took the first.
        let mut rows = BTreeMap::new();
        for (key, value) in batch.iter_from(from) {
            if let [DATA, suffix @ ..] = key {
                rows.insert(suffix, value);
            }
        }
        let origin = self.cluster;
        let change = |(suffix, value)| Ok(Change { stamp, origin, mutation: mutation_of(suffix, value)? });
        let changes: Vec<Change> = rows.into_iter().map(change).collect::<Result<_, EngineError>>()?;
        if !changes.is_empty() {
            self.append(&changes, batch);
        }
        Ok(())
    }

    fn append(&mut self, changes: &[Change], batch: &mut Batch) {
        let mut value = BytesMut::new();
        value.put_u8(VERSION);
        value.put_u64(0);
        encode_changes(changes, &mut value);
        self.entries += 1;
        self.bytes += (entry_key(0).len() + value.len()) as u64;
        value[1..ENTRY_HEADER_SIZE].copy_from_slice(&self.bytes.to_be_bytes());
        batch.put(&[&entry_key(self.entries)], &[&value]);
        for it in self.duplications.iter_mut().filter(|it| it.needs_entries()) {
            if self.bytes - it.bytes > it.bytes_max {
                (it.phase, it.copied) = (Phase::Overrun, Bytes::new());
            }
        }
    }

    /// Removes at most `count_max` entries that nobody needs.
    fn trim(&mut self, count_max: u64, batch: &mut Batch) {
        let until = self.trimmed + self.unneeded().min(count_max);
        for entry in self.trimmed + 1..=until {
            batch.remove(&[&entry_key(entry)]);
        }
        self.trimmed = until;
    }

    /// How many entries nobody needs which are not removed yet.
    pub(crate) fn unneeded(&self) -> u64 {
        let needed = self.duplications.iter().filter(|it| it.needs_entries()).map(|it| it.entry).min();
        needed.unwrap_or(self.entries).saturating_sub(self.trimmed)
    }

    fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        let numbers = [self.clock, self.base, self.cluster, self.entries, self.bytes, self.trimmed];
        numbers.into_iter().for_each(|it| out.put_u64(it));
        out.put_u8(self.duplications.len() as u8);
        for it in &self.duplications {
            out.put_u64(it.id);
            out.put_u32(it.round);
            out.put_u64(it.target);
            out.put_u64(it.bytes_max);
            out.put_u8(it.phase as u8);
            out.put_u64(it.entry);
            out.put_u64(it.bytes);
            out.put_u32(it.copied.len() as u32);
            out.put_slice(&it.copied);
        }
        out.put_u8(self.ended.len() as u8);
        self.ended.iter().for_each(|id| out.put_u64(*id));
        out
    }

    pub(crate) fn decode(mut row: Bytes) -> Result<Self, EngineError> {
        let decoded = Self::take(&mut row).filter(|state| row.is_empty() && state.is_sound());
        decoded.ok_or_else(|| EngineError::damaged("the state of the journal has an unknown form"))
    }

    /// What everything else takes for given.
    fn is_sound(&self) -> bool {
        let within = |it: &Duplication| {
            let is_needed = !it.needs_entries() || it.entry >= self.trimmed;
            is_needed && it.entry <= self.entries && it.bytes <= self.bytes && it.phase != Phase::Absent
        };
        let is_sorted = self.duplications.is_sorted_by(|a, b| a.id < b.id);
        let is_few = self.duplications.len() <= DUPLICATION_COUNT_MAX;
        self.cluster != 0 && self.trimmed <= self.entries && is_sorted && is_few && self.duplications.iter().all(within)
    }

    fn take(row: &mut Bytes) -> Option<Self> {
        if row.len() < 50 || row.get_u8() != VERSION {
            return None;
        }
        let mut number = || row.get_u64();
        let (clock, base, cluster) = (number(), number(), number());
        let (entries, bytes, trimmed) = (number(), number(), number());
        let count = row.get_u8();
        let duplications = (0..count).map(|_| Duplication::take(row)).collect::<Option<_>>()?;
        let count = usize::from(row.try_get_u8().ok()?);
        if count > ENDED_MAX || row.len() < 8 * count {
            return None;
        }
        let ended = (0..count).map(|_| row.get_u64()).collect();
        Some(Self { clock, base, cluster, entries, bytes, trimmed, duplications, ended })
    }
}

impl Duplication {
    fn take(row: &mut Bytes) -> Option<Self> {
        if row.len() < 49 {
            return None;
        }
        let (id, round, target, bytes_max) = (row.get_u64(), row.get_u32(), row.get_u64(), row.get_u64());
        let phase = Phase::from_code(row.get_u8())?;
        let (entry, bytes, copied_size) = (row.get_u64(), row.get_u64(), row.get_u32() as usize);
        let copied = if copied_size <= row.len() { row.split_to(copied_size) } else { return None };
        Some(Self { id, round, target, bytes_max, phase, copied, entry, bytes })
    }
}

/// The key of an entry of the journal.
pub(crate) fn entry_key(entry: u64) -> [u8; 9] {
    let mut key = [JOURNAL; 9];
    key[1..].copy_from_slice(&entry.to_be_bytes());
    key
}

/// The number of the entry with this key, and of its value the bytes of the journal up to its end and the encoded changes.
pub(crate) fn split_entry<'a>(key: &[u8], value: &'a [u8]) -> Result<(u64, u64, &'a [u8]), EngineError> {
    let number = key.split_first().and_then(|(_, number)| <[u8; 8]>::try_from(number).ok());
    match (number, value.split_first_chunk::<ENTRY_HEADER_SIZE>()) {
        (Some(number), Some((&[VERSION, ref bytes @ ..], changes))) => {
            Ok((u64::from_be_bytes(number), u64::from_be_bytes(*bytes), changes))
        }
        _ => Err(EngineError::damaged("an entry of the journal has an unknown form")),
    }
}

/// What made the row with the storage key `suffix` what it is.
fn mutation_of(suffix: &[u8], value: Option<&[u8]>) -> Result<Mutation, EngineError> {
    let suffix = Bytes::copy_from_slice(suffix);
    let Some(value) = value else { return Ok(Mutation::Remove { suffix }) };
    let (expire_at, _, data) = split_stamped(value)?;
    Ok(Mutation::Put { suffix, value: Bytes::copy_from_slice(data), expire_at })
}

/// The change that the row `key` = `value` stands for, a live or a removed one. One without a stamp was changed at `base`.
pub(crate) fn change_of(
    key: &[u8],
    value: &[u8],
    (base, cluster): (Stamp, u64),
) -> Result<Option<Change>, EngineError> {
    let (suffix, (stamp, origin), value) = match key {
        [DATA, suffix @ ..] => (suffix, split_stamped(value)?.1, Some(value)),
        [TOMBSTONE, suffix @ ..] => (suffix, split_tombstone(value)?.1, None),
        _ => return Ok(None),
    };
    let origin = if origin == 0 { cluster } else { origin };
    // A row without a stamp that had expired when the first duplication began is as if it had never been: nobody remembers it here.
    let has_ended = |row| Ok::<_, EngineError>(is_expired(split_stamped(row)?.0, stamp_seconds(base)));
    if stamp == 0 && value.map(has_ended).transpose()?.unwrap_or(false) {
        return Ok(None);
    }
    let stamp = if stamp == 0 { base } else { stamp };
    Ok(Some(Change { stamp, origin, mutation: mutation_of(suffix, value)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let following = Duplication {
            id: 3,
            round: 4,
            target: 7,
            bytes_max: 5,
            phase: Phase::Following,
            copied: Bytes::new(),
            entry: 6,
            bytes: 700,
        };
        let copying =
            Duplication { id: 4, phase: Phase::Copying, copied: Bytes::from_static(b"dkey"), ..following.clone() };
        let overrun = Duplication { id: 9, phase: Phase::Overrun, entry: 1, bytes: 0, ..following.clone() };
        let duplications = vec![following, copying, overrun];
        State { clock: 1 << 40, base: 9, cluster: 2, entries: 8, bytes: 900, trimmed: 5, duplications, ended: vec![1] }
    }

    #[test]
    fn the_stored_form_is_fixed() {
        let mut state = state();
        state.duplications.truncate(1);
        let numbers = [&[1][..], &(1u64 << 40).to_be_bytes(), &[0, 0, 0, 0, 0, 0, 0, 9], &[0, 0, 0, 0, 0, 0, 0, 2]];
        let entries = [0, 0, 0, 0, 0, 0, 0, 8];
        let counts = [&[0, 0, 0, 0, 0, 0, 3, 132][..], &[0, 0, 0, 0, 0, 0, 0, 5], &[1]];
        let it =
            [&[0, 0, 0, 0, 0, 0, 0, 3][..], &[0, 0, 0, 4], &[0, 0, 0, 0, 0, 0, 0, 7], &[0, 0, 0, 0, 0, 0, 0, 5], &[2]];
        let at = [&[0, 0, 0, 0, 0, 0, 0, 6][..], &[0, 0, 0, 0, 0, 0, 2, 188], &[0, 0, 0, 0]];
        let ended = [1, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(
            state.encode(),
            [&numbers.concat()[..], &entries, &counts.concat(), &it.concat(), &at.concat(), &ended].concat()
        );
        assert_eq!(entry_key(0x0102), [b'n', 0, 0, 0, 0, 0, 0, 1, 2]);
        let entry = [&[1, 0, 0, 0, 0, 0, 0, 0, 9][..], b"changes"].concat();
        assert_eq!(split_entry(&entry_key(7), &entry).expect("own form"), (7, 9, &b"changes"[..]));
    }

    #[test]
    fn a_state_survives_the_round_trip() {
        for count in 0..=3 {
            let mut state = state();
            state.duplications.truncate(count);
            assert_eq!(State::decode(state.encode().freeze()).expect("own form"), state);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = state().encode().freeze();
        for size in 0..good.len() {
            assert!(State::decode(good.slice(..size)).is_err(), "cut off after {size} bytes");
            assert!(State::decode(vec![0; size].into()).is_err());
            assert!(State::decode(vec![255; size].into()).is_err());
        }
        assert!(State::decode([&good[..], &[0]].concat().into()).is_err());
        let key = entry_key(1);
        for size in 0..ENTRY_HEADER_SIZE {
            assert!(split_entry(&key, &vec![1; size]).is_err());
            assert!(split_entry(&key[..size], &[1; 20]).is_err());
        }
        assert!(split_entry(&key, &[2; 20]).is_err());
    }

    /// Numbers that would have a subtraction overflow.
    #[test]
    fn a_state_that_cannot_be_is_refused() {
        let spoils: [fn(&mut State); 9] = [
            |it| it.cluster = 0,
            |it| it.trimmed = 9,
            |it| it.trimmed = 7,
            |it| it.duplications[0].entry = 9,
            |it| it.duplications[0].bytes = 901,
            |it| it.duplications[0].phase = Phase::Absent,
            |it| it.duplications[0].id = 4,
            |it| it.duplications.swap(1, 2),
            |it| {
                let last = it.duplications[2].clone();
                it.duplications.extend((10..12).map(|id| Duplication { id, ..last.clone() }));
            },
        ];
        for (number, spoil) in spoils.into_iter().enumerate() {
            let mut state = state();
            spoil(&mut state);
            assert!(State::decode(state.encode().freeze()).is_err(), "{number}");
        }
    }
}
