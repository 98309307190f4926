//! Applying what is committed, a bounded piece in each turn of the node.
//!
//! A write of a hundred bytes may look up a row of a megabyte, and thousands may be committed at once. So a turn applies only so
//! much, and leaves the rest for the next one: clients and other nodes are heard in between, and what writes looked up leaves for
//! their callers before more is looked up. Nothing else of a group waits for that: its messages leave, and its log is written.
//! Whoever got nothing in a turn is first in the next.

use crate::drive::chain;
use crate::failure::is_device_failure;
use crate::ids::ReplicaKey;
use crate::notice::Notice;
use crate::replica::Origin;
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_storage::{ApplyError, ApplyOutcome};
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::{GroupId, Index, Refusal};
use std::collections::BTreeSet;

/// What the current turn has applied, and who waits for the next.
#[derive(Debug, Default)]
pub(crate) struct Applying {
    /// Of [`crate::Config::apply_bytes_per_turn`].
    spent: u64,
    /// Replicas with something left, in the order of the next turn.
    put_off: Vec<ReplicaKey>,
    /// The same; they come after the others, since they have had something of this turn.
    served: Vec<ReplicaKey>,
}

impl Applying {
    pub(crate) const fn has_rest(&self) -> bool {
        self.rest() > 0
    }

    /// How many replicas have something left.
    pub(crate) const fn rest(&self) -> usize {
        self.put_off.len() + self.served.len()
    }
}

impl Shard {
    /// A turn begins: whoever was put off goes on, before those that have something to do for another reason.
    pub(crate) fn take_up_applying(&mut self, now: Now) {
        let Applying { put_off, served, .. } = std::mem::take(&mut self.replicas.applying);
        if put_off.is_empty() && served.is_empty() {
            return;
        }
        let others = std::mem::take(&mut self.replicas.dirty);
        for owner in put_off.into_iter().chain(served) {
            if let Some(replica) = self.running_as(owner) {
                replica.group.take_up(now.instant);
                replica.is_dirty = true;
                self.replicas.dirty.push(owner.group);
            }
        }
        let first: BTreeSet<GroupId> = self.replicas.dirty.iter().copied().collect();
        self.replicas.dirty.extend(others.into_iter().filter(|group| !first.contains(group)));
    }

    /// Applies committed entries of a group, as far as this turn may. Returns whether the group goes on.
    pub(crate) fn apply(&mut self, group: GroupId, entries: &[Entry], now: Now) -> bool {
        let left = self.config.apply_bytes_per_turn.saturating_sub(self.replicas.applying.spent);
        let Some(replica) = self.running(group) else { return false };
        let owner = replica.owner;
        if !replica.reads_table_itself && replica.storage.as_ref().is_some_and(|it| it.awaits_sessions(entries)) {
            replica.group.put_off();
            self.hasten_load(owner);
            return true;
        }
        if left == 0 {
            replica.group.put_off();
            self.replicas.applying.put_off.push(owner);
            return true;
        }
        // A membership counts at once, also where storage takes nothing. It is stored with its own entry, which begins a piece.
        let mut first = None;
        for entry in entries.iter().filter(|entry| is_change(entry)) {
            match replica.group.handle_membership_applied(entry) {
                Ok(membership) if entry.index == entries[0].index => first = Some(membership.encode()),
                Ok(_) => {}
                Err(error) => {
                    let reason = format!("membership entry {} cannot be applied: {error}", entry.index);
                    self.notices.push(Notice::Unusable(owner, reason));
                    return false;
                }
            }
        }
        let piece = entries.iter().skip(1).position(is_change).map_or(entries, |before| &entries[..=before]);
        let Some(storage) = &mut replica.storage else { return true };
        let mut outcomes = Vec::new();
        let result = storage.apply_some(piece, first.as_ref(), &mut outcomes, left);
        if let Err(error) = &result
            && !error.is_taken_back()
        {
            self.handle_apply_failed(group, error, now);
            return true;
        }
        let applied = outcomes.len();
        self.finish_apply(group, &piece[..applied], outcomes, now);
        match result {
            Ok(cost) => {
                self.replicas.applying.spent += cost;
                if applied < entries.len() {
                    self.leave_rest(owner, applied < piece.len(), now);
                }
            }
            Err(error) => self.handle_apply_failed(group, &error, now),
        }
        if first.is_some() {
            self.update_stop(group);
        }
        true
    }

    /// A group's log cannot be applied for now, or not at all: it is told at once, so that it hands out nothing before it has paused.
    fn handle_apply_failed(&mut self, group: GroupId, error: &ApplyError, now: Now) {
        // What is applied goes to memory, so that a device which fails then has not given back what is stored.
        let is_unreadable = matches!(error, ApplyError::Engine(cause) if cause.is_damage() || is_device_failure(cause));
        if error.may_pass() {
            self.notices.push(Notice::ApplyHeld(group, chain(error)));
        } else if is_unreadable || self.is_storage_gone(group) {
            // It has its log, and applies of it what it can.
            self.lose_for_good(group, chain(error), now);
        } else {
            return self.outbox.fail(format!("group {group} cannot apply its log: {}", chain(error)));
        }
        if let Some(replica) = self.running(group) {
            replica.group.handle_not_applied(now.instant);
        }
    }

    /// A replica has more to apply: in the next turn, or at once.
    fn leave_rest(&mut self, owner: ReplicaKey, is_for_next_turn: bool, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        replica.group.put_off();
        if is_for_next_turn {
            self.replicas.applying.served.push(owner);
        } else {
            replica.group.take_up(now.instant);
        }
    }

    /// `entries` are applied, with these outcomes.
    fn finish_apply(&mut self, group: GroupId, entries: &[Entry], outcomes: Vec<(Index, ApplyOutcome)>, now: Now) {
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        let Some(replica) = self.running(group) else { return };
        let bytes = entries.iter().map(|entry| entry.data.len() as u64 + 64).sum::<u64>();
        replica.flush.bytes_since += bytes;
        replica.kept.note_applied(bytes, last);
        replica.heavy.note_applied(last);
        replica.group.handle_applied(last, now.instant);
        if !replica.writes.is_empty() {
            for (entry, (index, outcome)) in entries.iter().zip(outcomes) {
                self.finish_write(group, entry, index, outcome, now);
            }
        }
    }

    fn finish_write(&mut self, group: GroupId, entry: &Entry, index: Index, outcome: ApplyOutcome, now: Now) {
        let Some(write) = self.running(group).and_then(|replica| replica.writes.remove(&index)) else { return };
        let result = match outcome {
            _ if write.term != entry.term => Err(Refusal::Unresolved),
            ApplyOutcome::Reply(reply) | ApplyOutcome::Repeated(reply) => Ok(reply),
            ApplyOutcome::SessionWindow { sequence, floor, ceiling } => {
                Err(Refusal::SessionWindow { sequence, floor, ceiling })
            }
            ApplyOutcome::Empty => Err(Refusal::Unresolved),
        };
        let reply = match result {
            Ok(reply) => reply,
            Err(refusal) => return self.refuse_writes([write], &refusal, now),
        };
        for other in write.others {
            if let Origin::Client { id, .. } = other {
                self.serving().answer_write(id, reply.clone(), index, now);
            }
        }
        match write.origin {
            Origin::Client { id, .. } => self.serving().answer_write(id, reply, index, now),
            Origin::Metadata(ticket) => self.notices.push(Notice::MetadataWritten(ticket, reply)),
        }
    }
}

fn is_change(entry: &Entry) -> bool {
    entry.kind == EntryKind::Membership
}
