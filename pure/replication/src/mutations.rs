//! Switches that remove one safety rule each: a test that does not notice one of them missing proves nothing.

/// The rules that a test may switch off. All are on by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutations {
    /// A restarted voter votes and campaigns at once.
    pub skip_restart_fence: bool,
    /// A voter that heard its leader votes for another one at once.
    pub skip_vote_fence: bool,
    /// Reads do not wait until the storage has applied what was committed when they arrived.
    pub skip_apply_wait: bool,
    /// The lease goes on while the leadership is handed over.
    pub lease_ignores_transfer: bool,
    /// The lease starts when an acknowledgement arrives instead of when the acknowledged message was sent.
    pub lease_from_receipt: bool,
    /// The lease never ends while the replica believes that it leads.
    pub lease_never_ends: bool,
    /// Reads without a lease are served without asking a majority.
    pub skip_quorum_check: bool,
    /// A new leader serves reads before an entry of its own term is committed.
    pub skip_own_term_commit: bool,
    /// Messages that must follow a write are sent before it is durable.
    pub send_before_persist: bool,
    /// The commit index is never written, nor told by the log: after a restart a replica may campaign among the voters of two changes ago.
    pub forget_commit: bool,
    /// Waiting reads survive a change of the leader.
    pub keep_reads_across_terms: bool,
    /// Reads at followers are served as soon as their index is known, applied or not.
    pub follower_skip_apply_wait: bool,
    /// A read at a follower joins a question that has already left.
    pub join_sent_question: bool,
    /// An answer counts for the newest question, whatever its id, its sender and its term.
    pub take_any_answer: bool,
    /// A leader answers questions without a lease and without asking a majority.
    pub answer_unconfirmed: bool,
    /// A new leader answers questions before an entry of its own term is committed.
    pub answer_before_own_commit: bool,
    /// The proof of freshness counts from the answer's arrival instead of from the question's leaving.
    pub prove_from_receipt: bool,
    /// The proof of freshness counts before its index is applied.
    pub prove_before_apply: bool,
    /// A leader's data counts as fresh as long as it believes that it leads.
    pub prove_without_quorum: bool,
    /// Session reads are served whatever is applied.
    pub ignore_session_floor: bool,
    /// The age of a proof is what the own clock says, as if that ran at the true rate.
    pub ignore_clock_rate: bool,
    /// A read without its leader is served by this replica's own log.
    pub ask_own_log_only: bool,
    /// A read without its leader is served whatever the other logs say of its keys.
    pub ignore_touches: bool,
    /// A read without its leader joins a question that has already left.
    pub join_sent_tail_question: bool,
    /// A voter does not say that the membership changes in its log's end.
    pub ignore_changes_in_tail: bool,
    /// A voter whose log is cut answers by what is left of it.
    pub ignore_cut_tail: bool,
}
