//! What a group wants done: the core's readies, put into our own terms and into the order that safety needs.

use crate::flow::Write;
use crate::group::Group;
use crate::hold::Hold;
use crate::message::{Message, data_of, kind_of, meta_of};
use crate::ready::{Ready, RoleChange, SnapshotSend};
use hedgerow_types::log::{Entry, HardState};
use hedgerow_types::{Index, Instant, ReplicaId};
use raft::eraftpb::{self, MessageType};

/// Entries that are handed out again at a time: the host may take few of them, and again.
const AGAIN_MAX: Index = 256;

impl Group {
    /// The next things to do; `None` if there is nothing. To be called after events until it is `None`; events may be
    /// collected before. Everything in it must be carried out, and leaves the group as if it had been.
    pub fn poll_ready(&mut self, now: Instant) -> Option<Ready> {
        if !self.is_dirty {
            return None;
        }
        let now = self.advance(now);
        self.flush_proposals();
        if core::mem::take(&mut self.wants_ping) {
            // One round of heartbeats confirms all reads that have arrived so far.
            self.core.ping();
        }
        let mut ready = Ready::default();
        self.poll_held(&mut ready, now);
        while ready.is_empty() && self.core.has_ready() {
            self.poll_core(&mut ready, now);
        }
        for (to, message) in self.flow.take_released() {
            self.send(&mut ready, to, message, now);
        }
        ready.persist = self.flow.take_persist();
        self.poll_role(&mut ready);
        if self.has_reads() {
            self.poll_reads(&mut ready, now);
        }
        let store = self.core.mut_store();
        if store.has_requests() {
            ready.fetch = store.take_fetches();
            ready.wants_checkpoint = store.take_checkpoint_request();
        }
        self.is_dirty = !ready.is_empty();
        self.is_dirty.then_some(ready)
    }

    /// Hands out again what could not be applied, and what has come after it since.
    fn poll_held(&mut self, ready: &mut Ready, now: Instant) {
        let Some((low, high)) = self.hold.due(now) else { return };
        let high = high.min(low + AGAIN_MAX - 1);
        let entries = self.core.store().held(low, high, self.settings.committed_size_max());
        ready.committed = entries.iter().map(from_core_entry).collect();
        self.hold.hand_out(ready.committed.last().map_or(low, |entry| entry.index));
    }

    fn poll_core(&mut self, ready: &mut Ready, now: Instant) {
        let mut from_core = self.core.ready();
        let number = from_core.number();
        let mut messages = from_core.take_messages();
        messages.append(&mut from_core.take_persisted_messages());
        let committed = from_core.take_committed_entries();
        if let Some(last) = committed.last()
            && self.hold.give(last.index)
        {
            ready.committed = committed.iter().map(from_core_entry).collect();
        }

        let mut reset = None;
        if !from_core.snapshot().is_empty() {
            let meta = meta_of(from_core.snapshot());
            self.core.mut_store().reset(meta.position);
            self.flow.begin_install(meta.position);
            self.hold = Hold::new(meta.position.index);
            (self.membership, self.membership_at) = (meta.membership.clone(), meta.position.index);
            self.contact.update(&self.membership);
            reset = Some(meta.position);
            ready.install = Some(meta);
        }
        let appended = from_core.take_entries();
        let entries = appended.iter().map(from_core_entry).collect();
        self.core.mut_store().append(appended);
        self.core.advance_append_async(from_core);

        let state = self.core.raft.hard_state();
        let vote = (state.vote != 0).then_some(ReplicaId(state.vote));
        let commit = if self.forgets_commit() { 0 } else { state.commit };
        let hard_state = HardState { term: state.term, vote, commit };
        self.flow.write(Write { number, reset, entries, hard_state });
        self.route(messages, ready, now);
        if self.flow.is_idle() {
            // Nothing of this ready, or of an earlier one, is on its way to the disk.
            self.core.on_persist_ready(number);
            self.settle();
        }
    }

    /// Sends messages at once or keeps them until what they rest on is durable.
    fn route(&mut self, messages: Vec<eraftpb::Message>, ready: &mut Ready, now: Instant) {
        let is_vote_durable = !self.flow.has_vote_in_flight();
        let is_free = self.flow.is_idle() || self.sends_before_persist() || (self.is_leader() && is_vote_durable);
        for core in messages {
            let to = ReplicaId(core.to);
            let mut message = Message::new(core);
            let kind = message.kind();
            let is_response = matches!(kind, MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse);
            if is_response {
                message.echo = self.contact.echo(message.term(), to);
            }
            // An answer to a heartbeat says nothing of the log, only that the sender is in the term.
            let is_harmless = kind == MessageType::MsgHeartbeatResponse && is_vote_durable;
            if is_free || is_harmless {
                self.send(ready, to, message, now);
            } else {
                self.flow.keep(to, message);
            }
        }
    }

    /// Puts a message into `ready`, stamped with the time at which it leaves.
    fn send(&mut self, ready: &mut Ready, to: ReplicaId, mut message: Message, now: Instant) {
        match message.kind() {
            MessageType::MsgSnapshot => {
                message.stamp = now.0;
                let Some(meta) = message.snapshot() else { return };
                ready.snapshots.push(SnapshotSend { to, meta, message });
            }
            // Entries that do not follow the message's index would arrive under other indices than their own. The core
            // makes no such message without batching; if it did, losing it costs a retransmission.
            MessageType::MsgAppend if !message.is_consecutive() => {}
            MessageType::MsgAppend => {
                message.stamp = now.0;
                let size_max = usize::try_from(self.settings.message_size_max).unwrap_or(usize::MAX);
                message.split(size_max, |part| ready.messages.push((to, part)));
            }
            MessageType::MsgHeartbeat => {
                message.stamp = now.0;
                if message.term() == self.term()
                    && let Some((stamp, index)) = self.proof_for(to, now)
                {
                    (message.echo, message.core.index) = (stamp, index);
                }
                ready.messages.push((to, message));
            }
            MessageType::MsgHeartbeatResponse => {
                message.stamp = self.freshness.stamp(now).0;
                ready.messages.push((to, message));
            }
            _ => ready.messages.push((to, message)),
        }
    }

    fn poll_role(&mut self, ready: &mut Ready) {
        let current = RoleChange { role: self.role(), leader: self.leader(), term: self.term() };
        if self.reported != Some(current) {
            self.reported = Some(current);
            ready.role = Some(current);
        }
    }
}

fn from_core_entry(entry: &eraftpb::Entry) -> Entry {
    Entry { index: entry.index, term: entry.term, kind: kind_of(entry), data: data_of(entry).clone() }
}
