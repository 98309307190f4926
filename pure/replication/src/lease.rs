//! What may be promised because of the time: the leader's lease, the refusal to vote, and the reads that rest on them.

use crate::group::Group;
use crate::ready::{Answer, Question, ReadNeed, ReadOutcome, ReadStart, Ready, Served};
use crate::settings::READS_WAITING_MAX;
use core::time::Duration;
use hedgerow_types::{Instant, Lag, ReplicaId};

impl Group {
    /// Begins a read that arrived just now and may be served here, at whatever kind of replica this is. `ticket` names it if
    /// it has to wait; tickets must differ.
    pub fn read(&mut self, ticket: u64, _need: ReadNeed, now: Instant) -> ReadStart {
        let now = self.advance(now);
        if !self.leads() {
            return ReadStart::NotLeader { leader: self.leader() };
        }
        if self.reads.len() >= READS_WAITING_MAX {
            return ReadStart::NotReady("too many reads wait in this group");
        }
        let commit = self.commit();
        let has_lease = self.lease_holds(now);
        if has_lease && (commit <= self.applied() || self.skips_apply_wait()) {
            return ReadStart::Serve(Served { staleness: Some(Duration::ZERO) });
        }
        self.reads.push(ticket, now, self.has_own_commit().then_some(commit));
        if has_lease {
            self.reads.confirm(now);
        } else {
            self.wants_ping = true;
        }
        self.is_dirty = true;
        ReadStart::Wait
    }

    /// The leader's node to ask on behalf of reads that wait here, if there is something to ask now. The host gathers the
    /// questions of all groups for one node into one message; just before that leaves, [`Group::ask`] makes the question.
    pub fn wants_to_ask(&self, _now: Instant) -> Option<ReplicaId> {
        None
    }

    /// Makes the question that [`Group::wants_to_ask`] spoke of, to be sent at once; `id` has never been used at this
    /// node. `None` if there is nothing to ask any more.
    pub fn ask(&mut self, _id: u64, _now: Instant) -> Option<(ReplicaId, Question)> {
        None
    }

    /// Another replica of the group asks. The answer comes in [`Ready::answers`].
    pub fn handle_question(&mut self, _from: ReplicaId, _question: Question, _now: Instant) {}

    /// The answer to a question came.
    pub fn handle_answer(&mut self, _from: ReplicaId, _answer: Answer, _now: Instant) {}

    /// When the group wants [`Group::handle_tick`] to be called although no tick is due: a read has waited long enough, or a
    /// proof of freshness is to be renewed.
    pub fn wakes_at(&self) -> Option<Instant> {
        None
    }

    /// How far behind this replica is, as far as it knows.
    pub fn lag(&self, _now: Instant) -> Lag {
        Lag::default()
    }

    /// Forgets a read that waits; nothing happens if it does not.
    pub fn cancel_read(&mut self, ticket: u64) {
        self.reads.cancel(ticket);
    }

    /// Whether no other replica can have been elected at `now`, so that everything committed anywhere until then is known
    /// here: this replica leads, has committed in its term, has not begun to hand over, and a majority heard it lately.
    pub fn lease_holds(&self, now: Instant) -> bool {
        self.is_leader()
            && self.has_own_commit()
            && (!self.is_transfer_begun || self.lease_ignores_transfer())
            && (self.lease_never_ends() || self.contact.quorum().is_some_and(|sent| now < sent + self.lease))
    }

    /// Whether the replica must not help to elect anyone, itself included: its leader may hold a lease that counts on it.
    pub fn is_fenced(&self, now: Instant) -> bool {
        let is_new_here = now < self.contact.start_fence() && !self.skips_restart_fence();
        let has_heard = now < self.contact.heard_fence() && !self.skips_vote_fence();
        is_new_here || has_heard || self.lease_holds(now)
    }

    /// Whether an entry of the leader's own term is committed, so that its commit index covers everything committed before.
    fn has_own_commit(&self) -> bool {
        self.commit() >= self.own_first || self.skips_own_term_commit()
    }

    /// Ends reads that waited: those of a lost leadership, and those whose time has come.
    pub(crate) fn poll_reads(&mut self, ready: &mut Ready, now: Instant) {
        let refused = self.reads.take_refused();
        ready.reads.extend(refused.into_iter().map(|ticket| (ticket, ReadOutcome::Refused)));
        if self.reads.is_empty() || !self.is_leader() || !ready.reads.is_empty() {
            return;
        }
        if self.has_own_commit() {
            self.reads.assign(self.commit());
        }
        if self.lease_holds(now) || self.skips_quorum_check() {
            self.reads.confirm(now);
        } else if let Some(sent) = self.contact.quorum() {
            self.reads.confirm(sent);
        }
        let applied = if self.skips_apply_wait() { u64::MAX } else { self.applied() };
        self.reads.release(applied, |ticket| {
            ready.reads.push((ticket, ReadOutcome::Serve(Served { staleness: Some(Duration::ZERO) })))
        });
    }
}

/// Defines the questions by which the code asks for a mutation; without the feature the answer is always no.
macro_rules! mutation_questions {
    ($($question:ident => $field:ident,)*) => {
        impl Group {
            $(
                pub(crate) fn $question(&self) -> bool {
                    #[cfg(feature = "mutations")]
                    return self.mutations.$field;
                    #[cfg(not(feature = "mutations"))]
                    false
                }
            )*
        }
    };
}

mutation_questions! {
    skips_restart_fence => skip_restart_fence,
    skips_vote_fence => skip_vote_fence,
    skips_apply_wait => skip_apply_wait,
    lease_ignores_transfer => lease_ignores_transfer,
    lease_from_receipt => lease_from_receipt,
    lease_never_ends => lease_never_ends,
    skips_quorum_check => skip_quorum_check,
    skips_own_term_commit => skip_own_term_commit,
    sends_before_persist => send_before_persist,
    forgets_commit => forget_commit,
    keeps_reads => keep_reads_across_terms,
}

#[cfg(feature = "mutations")]
impl Group {
    /// The core has a refusal of its own, counted in ticks. A mutation that removes ours must not hide behind it.
    pub(crate) fn blind_core_to_its_leader(&mut self, kind: raft::eraftpb::MessageType) {
        use raft::eraftpb::MessageType;
        let is_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        if is_vote && self.skips_vote_fence() && !self.is_leader() {
            self.core.raft.election_elapsed = self.core.raft.election_timeout();
        }
    }
}
