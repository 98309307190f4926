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
    /// The commit index is never written: after a restart a replica may campaign among the voters of two changes ago.
    pub forget_commit: bool,
    /// Waiting reads survive a change of the leader.
    pub keep_reads_across_terms: bool,
}
