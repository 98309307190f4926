//! Safety rules that can be taken away, to see that the simulation notices.
//!
//! The switches hold for the whole process, so one mutation is tried at a time.

use crate::scenario::Scenario;
use hedgerow_replication::Mutations;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rules of replication groups that are away now, one bit each.
static AWAY: AtomicU64 = AtomicU64::new(0);

/// A rule to take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A restarted voter votes at once.
    RestartFence,
    /// A leader's read does not wait until what is committed is applied.
    ApplyWait,
    /// Log writes are acknowledged before they are durable.
    Fsync,
    /// A repeated write is applied again.
    Sessions,
    /// A write that may have been forgotten counts as new.
    Forgotten,
    /// A voter that heard its leader votes for another one at once.
    VoteFence,
    /// A lease goes on while the leadership is handed over.
    TransferEndsLease,
    /// A lease never ends while the replica believes that it leads.
    LeaseEnds,
    /// Reads without a lease ask nobody.
    QuorumCheck,
    /// A new leader reads before an entry of its own term is committed.
    OwnTermCommit,
    /// Messages overtake the writes that they rest on.
    PersistBeforeSend,
    /// A follower's read does not wait until its index is applied.
    FollowerApplyWait,
    /// A follower's read joins a question that has already left.
    JoinBeforeLeaving,
    /// An answer counts for the newest question, whatever it answers.
    OwnAnswer,
    /// A leader answers questions without having proved that it leads.
    AnswerConfirmed,
    /// A new leader answers questions before an entry of its own term is committed.
    AnswerAfterOwnCommit,
    /// A proof of freshness counts from the answer's arrival.
    ProofFromAsking,
    /// A proof of freshness counts before its index is applied.
    ProofAfterApply,
    /// A leader's data counts as fresh as long as it believes that it leads.
    ProofByQuorum,
    /// A session read is served whatever is applied.
    SessionFloor,
    /// The age of a proof is what a slow clock says.
    ClockRate,
    /// A read that waited for its turn is judged by the clock of its arrival.
    CheckAtTurn,
    /// A cancel takes back what any client sent under the same numbers.
    OwnCancel,
    /// A tied attempt that has begun is dropped when the other one begins.
    BegunStays,
    /// A write that is sent on to its leader loses its number.
    NumberOfSpeculated,
    /// A client sends hedges at a weaker level than its reads have.
    LevelOfHedge,
    /// A log is cut as far as it is applied, flushed or not.
    KeptUntilFlushed,
    /// Each node goes by its own wall clock.
    AgreedTime,
    /// A node whose data was put back from a copy is listened to.
    CopiesRefused,
    /// A read without its leader goes by its replica's own log alone.
    AskMajority,
    /// A read without its leader does not wait for what other logs say touches its keys.
    TouchedWaits,
    /// A read without its leader joins a question to other logs that has already left.
    AskAfterArrival,
    /// A log that is cut answers by what is left of it.
    CutAsksAgain,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 33] = [
        Self::RestartFence,
        Self::ApplyWait,
        Self::Fsync,
        Self::Sessions,
        Self::Forgotten,
        Self::VoteFence,
        Self::TransferEndsLease,
        Self::LeaseEnds,
        Self::QuorumCheck,
        Self::OwnTermCommit,
        Self::PersistBeforeSend,
        Self::FollowerApplyWait,
        Self::JoinBeforeLeaving,
        Self::OwnAnswer,
        Self::AnswerConfirmed,
        Self::AnswerAfterOwnCommit,
        Self::ProofFromAsking,
        Self::ProofAfterApply,
        Self::ProofByQuorum,
        Self::SessionFloor,
        Self::ClockRate,
        Self::CheckAtTurn,
        Self::OwnCancel,
        Self::BegunStays,
        Self::NumberOfSpeculated,
        Self::LevelOfHedge,
        Self::KeptUntilFlushed,
        Self::AgreedTime,
        Self::CopiesRefused,
        Self::AskMajority,
        Self::TouchedWaits,
        Self::AskAfterArrival,
        Self::CutAsksAgain,
    ];

    /// The name on the command line: the rule that is missing.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RestartFence => "restart-fence",
            Self::ApplyWait => "apply-wait",
            Self::Fsync => "fsync",
            Self::Sessions => "sessions",
            Self::Forgotten => "forgotten",
            Self::VoteFence => "vote-fence",
            Self::TransferEndsLease => "transfer-ends-lease",
            Self::LeaseEnds => "lease-ends",
            Self::QuorumCheck => "quorum-check",
            Self::OwnTermCommit => "own-term-commit",
            Self::PersistBeforeSend => "persist-before-send",
            Self::FollowerApplyWait => "follower-apply-wait",
            Self::JoinBeforeLeaving => "join-before-leaving",
            Self::OwnAnswer => "own-answer",
            Self::AnswerConfirmed => "answer-confirmed",
            Self::AnswerAfterOwnCommit => "answer-after-own-commit",
            Self::ProofFromAsking => "proof-from-asking",
            Self::ProofAfterApply => "proof-after-apply",
            Self::ProofByQuorum => "proof-by-quorum",
            Self::SessionFloor => "session-floor",
            Self::ClockRate => "clock-rate",
            Self::CheckAtTurn => "check-at-turn",
            Self::OwnCancel => "own-cancel",
            Self::BegunStays => "begun-stays",
            Self::NumberOfSpeculated => "number-of-speculated",
            Self::LevelOfHedge => "level-of-hedge",
            Self::KeptUntilFlushed => "kept-until-flushed",
            Self::AgreedTime => "agreed-time",
            Self::CopiesRefused => "copies-refused",
            Self::AskMajority => "ask-majority",
            Self::TouchedWaits => "touched-waits",
            Self::AskAfterArrival => "ask-after-arrival",
            Self::CutAsksAgain => "cut-asks-again",
        }
    }

    /// The mutation with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutation| mutation.name() == name)
    }

    /// The kind of run that is to notice; `None` = all as they come. A read queues at the very moment at which its leader
    /// stands still only where reads queue all the time.
    pub const fn scenario(self) -> Option<Scenario> {
        match self {
            Self::CheckAtTurn => Some(Scenario::Tied),
            // A write must be lost that others have long heard of: what a slow disk holds up.
            Self::PersistBeforeSend => Some(Scenario::Disks),
            // It is planted there most often.
            Self::CopiesRefused => Some(Scenario::Repair),
            _ => None,
        }
    }

    /// Takes the rule away, or gives it back.
    pub fn set(self, is_away: bool) {
        match self {
            Self::Fsync => hedgerow_wal::mutation::SKIP_SYNC.store(is_away, Ordering::SeqCst),
            Self::Sessions => hedgerow_storage::mutations::FORGET_SESSIONS.store(is_away, Ordering::SeqCst),
            Self::Forgotten => hedgerow_storage::mutations::FORGET_FLOOR.store(is_away, Ordering::SeqCst),
            Self::CheckAtTurn => hedgerow_node::mutation::CHECK_ON_ARRIVAL.store(is_away, Ordering::SeqCst),
            Self::OwnCancel => hedgerow_node::mutation::CANCEL_ANYBODYS.store(is_away, Ordering::SeqCst),
            Self::BegunStays => hedgerow_node::mutation::DROP_BEGUN.store(is_away, Ordering::SeqCst),
            Self::NumberOfSpeculated => hedgerow_node::mutation::FORGET_NUMBER.store(is_away, Ordering::SeqCst),
            Self::KeptUntilFlushed => hedgerow_node::mutation::CUT_EARLY.store(is_away, Ordering::SeqCst),
            Self::AgreedTime => hedgerow_node::mutation::TRUST_OWN_CLOCK.store(is_away, Ordering::SeqCst),
            Self::CopiesRefused => hedgerow_node::mutation::LISTEN_TO_COPIES.store(is_away, Ordering::SeqCst),
            _ if is_away => _ = AWAY.fetch_or(self.bit(), Ordering::SeqCst),
            _ => _ = AWAY.fetch_and(!self.bit(), Ordering::SeqCst),
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// Whether clients send hedges at a weaker level.
pub(crate) fn weakens_hedges() -> bool {
    AWAY.load(Ordering::SeqCst) & Mutation::LevelOfHedge.bit() != 0
}

/// What groups are to be started with.
pub(crate) fn of_groups() -> Mutations {
    let away = AWAY.load(Ordering::SeqCst);
    let is_away = |mutation: Mutation| away & mutation.bit() != 0;
    Mutations {
        skip_restart_fence: is_away(Mutation::RestartFence),
        skip_apply_wait: is_away(Mutation::ApplyWait),
        skip_vote_fence: is_away(Mutation::VoteFence),
        lease_ignores_transfer: is_away(Mutation::TransferEndsLease),
        lease_never_ends: is_away(Mutation::LeaseEnds),
        skip_quorum_check: is_away(Mutation::QuorumCheck),
        skip_own_term_commit: is_away(Mutation::OwnTermCommit),
        send_before_persist: is_away(Mutation::PersistBeforeSend),
        follower_skip_apply_wait: is_away(Mutation::FollowerApplyWait),
        join_sent_question: is_away(Mutation::JoinBeforeLeaving),
        take_any_answer: is_away(Mutation::OwnAnswer),
        answer_unconfirmed: is_away(Mutation::AnswerConfirmed),
        answer_before_own_commit: is_away(Mutation::AnswerAfterOwnCommit),
        prove_from_receipt: is_away(Mutation::ProofFromAsking),
        prove_before_apply: is_away(Mutation::ProofAfterApply),
        prove_without_quorum: is_away(Mutation::ProofByQuorum),
        ignore_session_floor: is_away(Mutation::SessionFloor),
        ignore_clock_rate: is_away(Mutation::ClockRate),
        ask_own_log_only: is_away(Mutation::AskMajority),
        ignore_touches: is_away(Mutation::TouchedWaits),
        join_sent_tail_question: is_away(Mutation::AskAfterArrival),
        ignore_cut_tail: is_away(Mutation::CutAsksAgain),
        ..Mutations::default()
    }
}
