//! Exactly once: the results of each client's last writes, so that a repeated write is answered and not applied.
//!
//! A result lies in the slot `sequence % SESSION_WINDOW` of its client. Its row is written in the same batch as the
//! write itself. Memory holds only which sequence each slot has; the replies stay in the engine, since they are
//! needed rarely. The table is a function of the log alone: what is forgotten, and when, goes by the log's own indices
//! and times, and can be told from the rows, so that a replica that begins from a checkpoint forgets the same.
//!
//! The table has a bound ([decision 011](../../../docs/decisions/011-bounded-exactly-once.md)). Above it the sessions
//! that wrote longest ago are forgotten, whole. The *floor* is the largest number of a write that was ever forgotten:
//! a write of an unknown client is new if its number lies above the floor, and is refused otherwise. So that the floor
//! does not run away, no number may be further ahead of the partition's present than [`SESSION_AHEAD_MICROS`]. The
//! present is the log's time in microseconds since 1970, or the floor if that is larger: there always is a number that a
//! client may take. Clients' numbers follow their clocks, so that fresh ones lie above the floor without being told.

use crate::batch::Batch;
use crate::engine::{Direction, Engine, EngineError, KeyRange};
use crate::layout::{self, FLOOR_KEY, SESSION, SESSION_END, SessionHeader};
use bytes::{Bytes, BytesMut};
use hedgerow_types::codec::{decode_write_reply, encode_write_reply};
use hedgerow_types::limit::{
    SESSION_AHEAD_MICROS, SESSION_BYTES_MAX, SESSION_IDLE_SECONDS, SESSION_REPLY_SIZE_MAX, SESSION_WINDOW,
};
use hedgerow_types::op::{Proposal, WriteReply};
use hedgerow_types::time::unix_micros;
use hedgerow_types::{ClientId, Index, Sequence};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

/// Idle sessions are looked for at the indices divisible by this.
pub(crate) const SWEEP_INTERVAL: Index = 4_096;
/// A sweep stops after the session with which it has removed this many results. More than `SWEEP_INTERVAL`, so that
/// sweeps remove results faster than writes can add them.
const SWEEP_RESULTS_MAX: usize = 8_192;
/// Above the bound, each write's entry has sessions forgotten until this many results are gone, and the last session whole.
/// They count several times as much as the largest result, so that a table that is far above its bound comes down to it.
const EVICTED_RESULTS_MAX: usize = 64;
/// How many of the sessions that wrote longest ago are looked for at a time.
const OLDEST_COUNT: usize = 4_096;
/// Results behind the newest one among which the next one's place is looked for first: they lie side by side.
const NEAR_MAX: usize = 32;
/// What a session counts beside its results, bytes: its place in the map.
const CLIENT_SIZE: u64 = 128;
/// What a result counts beside its reply, bytes: its place in its session, and its row's key and header.
const RESULT_SIZE: u64 = 64;

/// What the table knows of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: apply it.
    New,
    /// It was applied, with this result.
    Repeated(WriteReply),
    /// It may have been applied and forgotten, or its number is out of range. Numbers in this range are not.
    Refused { floor: Sequence, ceiling: Sequence },
}

/// The exactly-once table of one replica.
#[derive(Debug)]
pub struct Sessions {
    /// Whether the rows were read and are in memory.
    is_loaded: bool,
    /// Whether they ever were, here: what others read before is not the table any more.
    was_loaded: bool,
    /// A tree, since clients choose their ids and could have all of them collide in a hash map (N9).
    clients: BTreeMap<ClientId, Session>,
    /// The largest number of a write that was forgotten; `None` = the table has no bound yet, as before the log's first
    /// entry of a node that knows of one.
    floor: Option<Sequence>,
    /// What the table counts, bytes.
    bytes: u64,
    bytes_max: u64,
    /// The sessions that wrote longest ago, as of when they were looked for. Those that wrote since are younger than all
    /// of these. A cache: without it the same ones are found again.
    oldest: VecDeque<(LastWrite, ClientId)>,
    scratch: BytesMut,
}

/// A session's last write: its index, and its log time.
type LastWrite = (Index, u32);

#[derive(Debug, Default)]
struct Session {
    last: LastWrite,
    /// No result of a write with a larger number is kept: most writes need no look at the results.
    highest: Sequence,
    /// Results by slot, ascending.
    results: Vec<Held>,
    /// Where the newest one was put: the next one's place is mostly a little behind it, which spares each write a search, and so several
    /// misses of the processor's caches. A guess, since others may have been put before it.
    newest: u16,
}

/// A result that is kept.
#[derive(Clone, Copy, Debug)]
struct Held {
    sequence: Sequence,
    reply_size: u32,
}

impl Session {
    fn find(&self, sequence: Sequence) -> Result<usize, usize> {
        if self.results.len() as u64 == SESSION_WINDOW {
            // Every slot is taken: each lies at its own place.
            return Ok(usize::from(slot_of(sequence)));
        }
        let slot = slot_of(sequence);
        let slot_at = |held: &Held| slot_of(held.sequence);
        let newest = usize::from(self.newest);
        let near = self.results.get(newest..).unwrap_or_default();
        if near.first().is_some_and(|before| slot_at(before) < slot) {
            let near = &near[..near.len().min(NEAR_MAX)];
            if let Some(position) = near.iter().position(|held| slot_at(held) >= slot) {
                let is_held = slot_at(&near[position]) == slot;
                return if is_held { Ok(newest + position) } else { Err(newest + position) };
            }
            if newest + near.len() == self.results.len() {
                return Err(self.results.len());
            }
        }
        self.results.binary_search_by_key(&slot, slot_at)
    }

    /// What is kept in the slot of `sequence`; nothing as well if all that is kept is below it.
    fn held(&self, sequence: Sequence) -> Option<Sequence> {
        if sequence > self.highest {
            return None;
        }
        self.find(sequence).ok().map(|position| self.results[position].sequence)
    }

    /// Whether a number below `sequence` is kept. The session's first write was new when it began, and so had a larger
    /// number than anything of the client that had been forgotten before. So have all that came after it.
    fn began_before(&self, sequence: Sequence) -> bool {
        self.results.iter().any(|held| held.sequence < sequence)
    }

    /// Puts `held` into its slot and returns what was there.
    fn put(&mut self, held: Held, last: LastWrite) -> Option<Held> {
        self.last = self.last.max(last);
        self.highest = self.highest.max(held.sequence);
        let found = self.find(held.sequence);
        self.newest = found.unwrap_or_else(|position| position) as u16;
        match found {
            Ok(position) => Some(std::mem::replace(&mut self.results[position], held)),
            Err(position) => {
                if self.results.len() == self.results.capacity() {
                    // Most sessions of a table that is full are small.
                    self.results.reserve_exact(self.results.len() / 2 + 1);
                }
                self.results.insert(position, held);
                None
            }
        }
    }
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            is_loaded: false,
            was_loaded: false,
            clients: BTreeMap::new(),
            floor: None,
            bytes: 0,
            bytes_max: SESSION_BYTES_MAX,
            oldest: VecDeque::new(),
            scratch: BytesMut::new(),
        }
    }
}

impl Sessions {
    /// Reads the table of the partition in `engine`, which nobody writes to meanwhile but in ways that leave the table as
    /// it is.
    pub fn read(engine: &dyn Engine) -> Result<Self, EngineError> {
        let mut sessions = Self::default();
        sessions.load(engine, true)?;
        Ok(sessions)
    }

    /// Reads the table from `engine` unless that was done.
    pub(crate) fn load(&mut self, engine: &dyn Engine, is_bulk: bool) -> Result<(), EngineError> {
        if self.is_loaded {
            return Ok(());
        }
        let floor = engine.get(FLOOR_KEY)?.map(|row| layout::decode_floor(&row)).transpose()?;
        let mut read = Self { floor, bytes_max: self.bytes_max, ..Self::default() };
        let mut outcome = Ok(());
        let range = KeyRange { start: &[SESSION], end: Some(&[SESSION_END]), is_bulk };
        engine.scan(range, Direction::Ascending, &mut |key, row| match read.restore(key, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        })?;
        outcome?;
        (read.is_loaded, read.was_loaded) = (true, true);
        *self = read;
        Ok(())
    }

    /// Forgets what is in memory. The engine has the table as of its last batch, and it is read again when it is needed.
    pub(crate) fn unload(&mut self) {
        *self = Self { bytes_max: self.bytes_max, was_loaded: self.was_loaded, ..Self::default() };
    }

    /// Takes over what [`Sessions::read`] has read, unless the table was in memory already.
    pub(crate) fn adopt(&mut self, read: Self) {
        if !self.was_loaded {
            *self = Self { bytes_max: self.bytes_max, ..read };
        }
    }

    /// Whether the table was in memory once.
    pub(crate) const fn was_loaded(&self) -> bool {
        self.was_loaded
    }

    pub(crate) const fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    pub(crate) const fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    fn restore(&mut self, key: &[u8], row: &[u8]) -> Result<(), EngineError> {
        let (client, slot) = layout::split_session_key(key)?;
        let (header, reply) = SessionHeader::split(row)?;
        if slot != slot_of(header.sequence) || header.sequence == 0 {
            return Err(EngineError::damaged("a session row lies in the wrong slot"));
        }
        self.put(ClientId(client), header, reply.len());
        Ok(())
    }

    fn put(&mut self, client: ClientId, header: SessionHeader, reply_size: usize) {
        let bytes = &mut self.bytes;
        let session = self.clients.entry(client).or_insert_with(|| {
            *bytes += CLIENT_SIZE;
            Session::default()
        });
        let held = Held { sequence: header.sequence, reply_size: reply_size as u32 };
        *bytes += size_of_result(held);
        if let Some(before) = session.put(held, (header.index, header.now)) {
            *bytes -= size_of_result(before);
        }
    }

    /// From now on the table has a bound.
    pub(crate) fn bound(&mut self, batch: &mut Batch) {
        if self.floor.is_none() {
            self.floor = Some(0);
            batch.put(&[FLOOR_KEY], &[&layout::encode_floor(0)]);
        }
    }

    /// What is known of `proposal` at log time `now`, with the changes in `batch` counted in.
    pub(crate) fn look_up(
        &self,
        proposal: &Proposal,
        now: u32,
        engine: &dyn Engine,
        batch: &mut Batch,
    ) -> Result<Known, EngineError> {
        let Proposal { client, sequence, .. } = *proposal;
        if !is_recorded(proposal) || is_forgetful() {
            return Ok(Known::New);
        }
        let session = self.clients.get(&client);
        match session.and_then(|session| session.held(sequence)) {
            Some(held) if held == sequence => {
                let reply = read_reply(proposal, engine, batch)?;
                return Ok(reply.map_or_else(|| self.refused(now), Known::Repeated));
            }
            Some(held) if held > sequence => return Ok(self.refused(now)),
            Some(_) | None => {}
        }
        let Some(floor) = self.floor else { return Ok(Known::New) };
        let may_be_forgotten =
            sequence <= floor && !forgets_floor() && !session.is_some_and(|session| session.began_before(sequence));
        let is_new = !may_be_forgotten && sequence <= ceiling(floor, now);
        Ok(if is_new { Known::New } else { self.refused(now) })
    }

    fn refused(&self, now: u32) -> Known {
        let floor = self.floor.unwrap_or(0);
        Known::Refused { floor, ceiling: ceiling(floor, now) }
    }

    /// Notes in `batch` and in memory that `proposal` was applied at `index` and log time `now` with this `reply`.
    pub(crate) fn record(
        &mut self,
        proposal: &Proposal,
        (index, now): (Index, u32),
        reply: &WriteReply,
        batch: &mut Batch,
    ) {
        if !is_recorded(proposal) {
            return;
        }
        let is_bounded = self.floor.is_some();
        let header = SessionHeader { sequence: proposal.sequence, now, index: if is_bounded { index } else { 0 } };
        self.scratch.clear();
        header.encode(&mut self.scratch);
        let header_size = self.scratch.len();
        encode_write_reply(reply, &mut self.scratch);
        if is_bounded && self.scratch.len() - header_size > SESSION_REPLY_SIZE_MAX {
            self.scratch.truncate(header_size);
        }
        let key = layout::session_key(proposal.client.0, slot_of(proposal.sequence));
        batch.put(&[&key], &[&self.scratch]);
        let reply_size = self.scratch.len() - header_size;
        self.put(proposal.client, header, reply_size);
    }

    /// Forgets the sessions that wrote longest ago if the table is above its bound, as many as one entry's turn allows.
    pub(crate) fn trim(&mut self, batch: &mut Batch) {
        if self.bytes <= self.bytes_max || self.floor.is_none() {
            return;
        }
        let mut removed = 0;
        while self.bytes > self.bytes_max && removed < EVICTED_RESULTS_MAX {
            let Some(client) = self.next_oldest() else { break };
            removed += self.forget(client, batch);
        }
        self.write_floor(batch);
    }

    /// The session that wrote longest ago.
    fn next_oldest(&mut self) -> Option<ClientId> {
        loop {
            while let Some((last, client)) = self.oldest.pop_front() {
                if self.clients.get(&client).is_some_and(|session| session.last == last) {
                    return Some(client);
                }
            }
            if self.clients.is_empty() {
                return None;
            }
            let mut all: Vec<(LastWrite, ClientId)> =
                self.clients.iter().map(|(client, session)| (session.last, *client)).collect();
            if all.len() > OLDEST_COUNT {
                all.select_nth_unstable(OLDEST_COUNT);
                all.truncate(OLDEST_COUNT);
            }
            all.sort_unstable();
            self.oldest = all.into();
        }
    }

    /// Forgets a session, and returns how many results it had. Whoever calls it for a table with a bound writes the floor
    /// into the same batch.
    fn forget(&mut self, client: ClientId, batch: &mut Batch) -> usize {
        let Some(session) = self.clients.remove(&client) else { return 0 };
        self.bytes -= CLIENT_SIZE;
        for held in &session.results {
            self.bytes -= size_of_result(*held);
            self.floor = self.floor.map(|floor| floor.max(held.sequence));
            batch.remove(&[&layout::session_key(client.0, slot_of(held.sequence))]);
        }
        session.results.len()
    }

    fn write_floor(&self, batch: &mut Batch) {
        if let Some(floor) = self.floor {
            batch.put(&[FLOOR_KEY], &[&layout::encode_floor(floor)]);
        }
    }

    /// Forgets sessions that are idle at log time `now`, lowest client first, up to a limit. A session whose last write
    /// lies as far in the future is idle as well: the log's time was set back since, and nothing else would end it.
    pub(crate) fn sweep(&mut self, now: u32, batch: &mut Batch) {
        let idle = |session: &Session| now.abs_diff(session.last.1) > SESSION_IDLE_SECONDS;
        let clients: Vec<ClientId> =
            self.clients.iter().filter(|(_, session)| idle(session)).map(|(client, _)| *client).collect();
        if clients.is_empty() {
            return;
        }
        let mut removed = 0;
        for client in clients {
            if removed >= SWEEP_RESULTS_MAX {
                break;
            }
            removed += self.forget(client, batch);
        }
        self.write_floor(batch);
    }

    /// Clients that have a session.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// What the table counts, bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The result of the repeated write `proposal`, unless it was too large to be kept.
fn read_reply(proposal: &Proposal, engine: &dyn Engine, batch: &mut Batch) -> Result<Option<WriteReply>, EngineError> {
    let key = layout::session_key(proposal.client.0, slot_of(proposal.sequence));
    let row = match batch.find(&key) {
        Some(change) => change.map(Bytes::copy_from_slice),
        None => engine.get(&key)?,
    };
    let row = row.ok_or_else(|| EngineError::damaged("a session row is missing"))?;
    let (header, reply) = SessionHeader::split(&row)?;
    if header.sequence != proposal.sequence {
        return Err(EngineError::damaged("a session row holds another sequence"));
    }
    if reply.is_empty() {
        return Ok(None);
    }
    decode_write_reply(row.slice_ref(reply)).map(Some).map_err(|error| EngineError::damaged(error.to_string()))
}

const fn size_of_result(held: Held) -> u64 {
    RESULT_SIZE + held.reply_size as u64
}

/// The largest number that a write may have.
fn ceiling(floor: Sequence, now: u32) -> Sequence {
    unix_micros(now).max(floor).saturating_add(SESSION_AHEAD_MICROS)
}

fn is_recorded(proposal: &Proposal) -> bool {
    proposal.client.0 != 0 && proposal.sequence != 0
}

fn slot_of(sequence: Sequence) -> u16 {
    const { assert!(SESSION_WINDOW <= 1 << 16, "a slot's number has 16 bits") };
    (sequence % SESSION_WINDOW) as u16
}

#[cfg(feature = "mutations")]
fn is_forgetful() -> bool {
    crate::mutations::FORGET_SESSIONS.load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(feature = "mutations"))]
const fn is_forgetful() -> bool {
    false
}

#[cfg(feature = "mutations")]
fn forgets_floor() -> bool {
    crate::mutations::FORGET_FLOOR.load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(feature = "mutations"))]
const fn forgets_floor() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_hash::FxBuildHasher;
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    /// `rustc_hash` multiplies an id by this, and takes what is above the lowest bits.
    const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;
    /// The bits of its hashes that choose a place in a map of up to a million.
    const PLACE: u64 = 0xfe00_0000_000f_ffff;

    /// Five puts with each of so many ids, as after five restarts, took a hash map 100 billion comparisons. No clock is looked at:
    /// with such a map this test takes minutes.
    #[test]
    fn n9_ids_that_collide_under_a_known_hash_cost_no_more_than_others() {
        const COUNT: u64 = 200_000;
        // Each step doubles the number of right bits, of which there are three at first.
        let inverse = (0..5)
            .fold(MULTIPLIER, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse))));
        let ids = || (1..=COUNT).map(|number| ClientId(number.wrapping_mul(inverse)));
        let places: BTreeSet<u64> = ids().map(|id| FxBuildHasher.hash_one(id) & PLACE).collect();
        assert_eq!(places.len(), 1, "the ids collide");
        let mut sessions = Sessions::default();
        for sequence in 1..=5 {
            let header = SessionHeader { sequence, now: 0, index: 1 };
            ids().for_each(|id| sessions.put(id, header, 10));
        }
        assert_eq!(sessions.client_count() as u64, COUNT);
        let mut batch = Batch::new();
        assert_eq!(ids().map(|id| sessions.forget(id, &mut batch)).sum::<usize>() as u64, 5 * COUNT);
        assert_eq!((sessions.client_count(), sessions.bytes()), (0, 0));
    }
}
