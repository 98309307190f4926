//! What is kept from the consensus core: messages it would fail on, and those that the rules of the lease forbid.
//!
//! The core was written for peers that it trusts and stops the process at some contradictions. A damaged or foreign
//! message must not be able to do that, so each such place has its check here.

use crate::group::Group;
use crate::message::{Message, TRANSFER_CONTEXT, is_sent};
use crate::ready::FIRST;
use hedgerow_types::Instant;
use raft::eraftpb::{self, MessageType};

impl Group {
    /// Whether the core may see `message`.
    pub(crate) fn admits(&self, message: &Message, now: Instant) -> bool {
        let core = &message.core;
        let is_addressed = core.to == self.replica.0 && core.from != 0 && core.from != core.to;
        // Without a term the core would take the message for a local one.
        if !is_addressed || core.term == 0 || !is_sent(message.kind()) {
            return false;
        }
        match message.kind() {
            MessageType::MsgAppend => {
                let has_room = core.entries.is_empty() || !self.holds_too_much();
                has_room && self.admits_leader(core) && self.admits_append(core)
            }
            MessageType::MsgHeartbeat => self.admits_leader(core) && core.commit <= self.last_index(),
            MessageType::MsgSnapshot => {
                // The snapshot must be one that the sender's term allows; its membership was checked when it was decoded.
                self.admits_leader(core) && core.get_snapshot().get_metadata().term <= core.term
            }
            MessageType::MsgAppendResponse => core.reject || core.index <= self.last_index(),
            MessageType::MsgHeartbeatResponse => true,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                core.context == TRANSFER_CONTEXT || !self.is_fenced(now)
            }
            // Votes are asked for only once everything is on disk, so nobody can have granted one before.
            MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => self.is_fully_persisted(),
            MessageType::MsgTimeoutNow => self.admits_timeout_now(core),
            _ => false,
        }
    }

    /// There is one leader per term, and it is not this replica.
    fn admits_leader(&self, core: &eraftpb::Message) -> bool {
        core.term != self.term() || [0, core.from].contains(&self.core.raft.leader_id)
    }

    /// An append must be consistent in itself, and must not contradict what is committed here.
    fn admits_append(&self, core: &eraftpb::Message) -> bool {
        let mut term = core.log_term;
        let is_consistent = core.entries.iter().zip(core.index + 1..).all(|(entry, index)| {
            let is_next = entry.index == index && entry.term >= term && entry.term <= core.term;
            term = entry.term;
            is_next
        });
        // The log of a leader holds what is committed, so its terms from there on are not smaller. The core would search
        // below its own committed entries otherwise, and fail.
        let is_after_first = core.index >= FIRST.index || core.entries.is_empty();
        let commit = self.commit();
        let covers_committed = core.index < commit
            || self.core.raft.raft_log.term(commit).is_ok_and(|committed| core.log_term >= committed);
        is_after_first && is_consistent && covers_committed
    }

    /// The leader asks to be succeeded at once.
    fn admits_timeout_now(&self, core: &eraftpb::Message) -> bool {
        let is_from_leader = core.term != self.term() || self.core.raft.leader_id == core.from;
        let could_win_alone = self.core.raft.prs().is_singleton();
        is_from_leader && self.can_hup() && (self.is_fully_persisted() || !could_win_alone)
    }
}
