//! What may be promised because of the time: the leader's lease and the refusal to vote. What reads make of it is in
//! `serve.rs`.

use crate::group::Group;
use hedgerow_types::{Instant, ReplicaId};

impl Group {
    /// Whether no other replica can have been elected at `now`, so that everything committed anywhere until then is known
    /// here: this replica leads, has committed in its term, has not begun to hand over, and a majority heard it lately.
    pub fn lease_holds(&self, now: Instant) -> bool {
        self.has_own_commit() && self.lease_runs(now)
    }

    /// The lease but for the rule of the first commit.
    pub(crate) fn lease_runs(&self, now: Instant) -> bool {
        self.is_leader()
            && (!self.is_transfer_begun || self.lease_ignores_transfer())
            && (self.lease_never_ends() || self.contact.quorum().is_some_and(|sent| now < sent + self.lease))
    }

    /// A response of the leader's term gives back the stamp of something that the leader had sent; 0 = nothing yet.
    pub(crate) fn take_echo(&mut self, from: ReplicaId, echo: u64, now: Instant) {
        if echo != 0 {
            let echo = if self.lease_from_receipt() { now } else { Instant(echo).min(now) };
            self.contact.take_echo(from, echo, &self.membership);
        }
    }

    /// Whether the replica must not help to elect anyone, itself included: its leader may hold a lease that counts on it.
    pub fn is_fenced(&self, now: Instant) -> bool {
        let is_new_here = now < self.contact.start_fence() && !self.skips_restart_fence();
        let has_heard = now < self.contact.heard_fence() && !self.skips_vote_fence();
        is_new_here || has_heard || self.lease_holds(now)
    }

    /// Whether an entry of the leader's own term is committed, so that its commit index covers everything committed before.
    pub(crate) fn has_own_commit(&self) -> bool {
        self.commit() >= self.own_first || self.skips_own_term_commit()
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
    follower_skips_apply_wait => follower_skip_apply_wait,
    joins_sent_request => join_sent_question,
    takes_any_answer => take_any_answer,
    answers_unconfirmed => answer_unconfirmed,
    answers_before_own_commit => answer_before_own_commit,
    proves_from_receipt => prove_from_receipt,
    proves_before_apply => prove_before_apply,
    proves_without_quorum => prove_without_quorum,
    ignores_session_floor => ignore_session_floor,
    ignores_clock_rate => ignore_clock_rate,
    asks_own_log_only => ask_own_log_only,
    ignores_touches => ignore_touches,
    joins_sent_tail_question => join_sent_tail_question,
    ignores_changes_in_tail => ignore_changes_in_tail,
    ignores_cut_tail => ignore_cut_tail,
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
