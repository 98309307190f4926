//! Exactly once: the results of each client's last writes, so that a repeated write is answered and not applied.
//!
//! A result lies in the slot `sequence % SESSION_WINDOW` of its client. Its row is written in the same batch as the
//! write itself. Memory holds only which sequence each slot has; the replies stay in the engine, since they are
//! needed rarely and can be large. The table is a function of the log alone: forgetting idle sessions goes by the log's
//! own times, at fixed indices, in a fixed order.

use crate::batch::Batch;
use crate::engine::{Direction, Engine, EngineError, KeyRange};
use crate::layout::{self, SESSION, SESSION_END, SessionHeader};
use bytes::{Bytes, BytesMut};
use hedgerow_types::codec::{decode_write_reply, encode_write_reply};
use hedgerow_types::limit::{SESSION_IDLE_SECONDS, SESSION_WINDOW};
use hedgerow_types::op::{Proposal, WriteReply};
use hedgerow_types::{ClientId, Index, Sequence};
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;

/// Idle sessions are looked for at the indices divisible by this.
pub(crate) const SWEEP_INTERVAL: Index = 4_096;
/// A sweep stops after the session with which it has removed this many results. More than `SWEEP_INTERVAL`, so that
/// sweeps remove results faster than writes can add them.
const SWEEP_RESULTS_MAX: usize = 8_192;

/// What the table knows of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nothing: apply it.
    New,
    /// It was applied, with this result.
    Repeated(WriteReply),
    /// A later write took its slot.
    Overwritten,
}

/// The table of one replica.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    clients: FxHashMap<ClientId, Session>,
    scratch: BytesMut,
}

#[derive(Debug, Default)]
struct Session {
    /// Log time of the latest write.
    last: u32,
    /// Slots in use.
    count: usize,
    /// Sequence in each slot, 0 = none; as long as the highest slot in use needs.
    slots: Vec<Sequence>,
}

impl Session {
    fn record(&mut self, slot: u16, header: SessionHeader) {
        let slot = usize::from(slot);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, 0);
        }
        self.count += usize::from(self.slots[slot] == 0);
        self.slots[slot] = header.sequence;
        self.last = self.last.max(header.now);
    }
}

impl Sessions {
    /// Reads the table from `engine`.
    pub(crate) fn open(engine: &dyn Engine) -> Result<Self, EngineError> {
        let mut sessions = Self::default();
        let mut outcome = Ok(());
        let range = KeyRange { start: &[SESSION], end: Some(&[SESSION_END]), is_bulk: true };
        engine.scan(range, Direction::Ascending, &mut |key, row| match sessions.restore(key, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        })?;
        outcome.map(|()| sessions)
    }

    fn restore(&mut self, key: &[u8], row: &[u8]) -> Result<(), EngineError> {
        let (client, slot) = layout::split_session_key(key)?;
        let (header, _) = SessionHeader::split(row)?;
        if u64::from(slot) != slot_of(header.sequence).into() || header.sequence == 0 {
            return Err(EngineError::damaged("a session row lies in the wrong slot"));
        }
        self.clients.entry(ClientId(client)).or_default().record(slot, header);
        Ok(())
    }

    /// What is known of `proposal`, with the changes in `batch` counted in.
    pub(crate) fn look_up(
        &self,
        proposal: &Proposal,
        engine: &dyn Engine,
        batch: &mut Batch,
    ) -> Result<Known, EngineError> {
        if !is_recorded(proposal) || is_forgetful() {
            return Ok(Known::New);
        }
        let slot = slot_of(proposal.sequence);
        let session = self.clients.get(&proposal.client);
        let held = session.and_then(|session| session.slots.get(usize::from(slot)).copied()).unwrap_or(0);
        if held != proposal.sequence {
            return Ok(if held > proposal.sequence { Known::Overwritten } else { Known::New });
        }
        let key = layout::session_key(proposal.client.0, slot);
        let row = match batch.find(&key) {
            Some(change) => change.map(Bytes::copy_from_slice),
            None => engine.get(&key)?,
        };
        let row = row.ok_or_else(|| EngineError::damaged("a session row is missing"))?;
        let (header, reply) = SessionHeader::split(&row)?;
        if header.sequence != proposal.sequence {
            return Err(EngineError::damaged("a session row holds another sequence"));
        }
        let reply =
            decode_write_reply(row.slice_ref(reply)).map_err(|error| EngineError::damaged(error.to_string()))?;
        Ok(Known::Repeated(reply))
    }

    /// Notes in `batch` and in memory that `proposal` was applied at log time `now` with this `reply`.
    pub(crate) fn record(&mut self, proposal: &Proposal, now: u32, reply: &WriteReply, batch: &mut Batch) {
        if !is_recorded(proposal) {
            return;
        }
        let slot = slot_of(proposal.sequence);
        let header = SessionHeader { sequence: proposal.sequence, now };
        self.scratch.clear();
        encode_write_reply(reply, &mut self.scratch);
        batch.put(&[&layout::session_key(proposal.client.0, slot)], &[&header.encode(), &self.scratch]);
        self.clients.entry(proposal.client).or_default().record(slot, header);
    }

    /// Forgets sessions that are idle at log time `now`, lowest client first, up to a limit.
    pub(crate) fn sweep(&mut self, now: u32, batch: &mut Batch) {
        let idle = |session: &Session| now.saturating_sub(session.last) > SESSION_IDLE_SECONDS;
        let mut clients: Vec<ClientId> =
            self.clients.iter().filter(|(_, session)| idle(session)).map(|(client, _)| *client).collect();
        clients.sort_unstable();
        let mut removed = 0;
        for client in clients {
            if removed >= SWEEP_RESULTS_MAX {
                break;
            }
            let Some(session) = self.clients.remove(&client) else { continue };
            removed += session.count;
            for (slot, _) in (0u16..).zip(&session.slots).filter(|(_, sequence)| **sequence != 0) {
                batch.remove(&[&layout::session_key(client.0, slot)]);
            }
        }
    }

    /// Clients that have a session.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.len()
    }
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
