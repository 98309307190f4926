//! The safety rules, each with a switch: a model that does not notice one of them missing proves nothing.

use std::fmt;
use std::str::FromStr;

/// Which model a rule belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Elections, leases and the proof of leadership.
    Lease,
    /// Questions, answers, and what a replica serves after them.
    Index,
    /// Memberships that change, majorities, and reads all the way.
    Group,
    /// Reads that ask a majority instead of the leader.
    Quorum,
}

macro_rules! rules {
    ($($name:ident, $key:literal, $part:ident, $text:literal;)*) => {
        /// A safety rule that can be taken away.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $text] $name,)*
        }

        impl Rule {
            /// Every rule, those of the lease first.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// The rule in words.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The model in which it is checked.
            pub fn part(self) -> Part {
                match self { $(Self::$name => Part::$part,)* }
            }
        }
    };
}

rules! {
    VoteFence, "vote-fence", Lease,
        "A voter that heard its leader neither votes nor campaigns for the time of refusal.";
    RestartFence, "restart-fence", Lease,
        "A restarted voter refuses as if it had just heard its leader.";
    LeaseFromSending, "lease-from-sending", Lease,
        "The lease counts from when the echoed message was sent, not from when its echo came.";
    LeaseEnds, "lease-ends", Lease,
        "The lease ends when its time is over, although nothing else was heard.";
    LeaseAllowsForRates, "lease-allows-for-rates", Lease,
        "The lease is shorter than the refusal by as much as the clocks' rates may differ.";
    LeaseEndsAtTransfer, "lease-ends-at-transfer", Lease,
        "The lease ends for the rest of the term before the leadership is handed over.";
    OwnTermCommit, "own-term-commit", Lease,
        "A leader gives an index away only after an entry of its own term is committed.";
    QuorumCheck, "quorum-check", Lease,
        "Without a lease a read waits until a majority has echoed what was sent after the read arrived.";
    ReadsEndWithLeadership, "reads-end-with-leadership", Lease,
        "Reads that wait at a leader are refused when its leadership ends.";
    LeaderApplyWait, "leader-apply-wait", Index,
        "A leader serves a read only after it has applied what was committed when the read arrived.";
    FollowerApplyWait, "follower-apply-wait", Index,
        "Another replica serves a read only after it has applied the answer's index.";
    FreshId, "fresh-id", Index,
        "Every attempt of a question has an id of its own, so that a late answer is not taken for a later one's.";
    JoinBeforeLeaving, "join-before-leaving", Index,
        "A read joins a question only before the question leaves.";
    ProofFromSending, "proof-from-sending", Index,
        "A proof of freshness is dated at the sending of its question, not at the answer's arrival.";
    ProofNeedsApplied, "proof-needs-applied", Index,
        "A proof of freshness counts only once the answer's index is applied.";
    AgeAllowsForRates, "age-allows-for-rates", Index,
        "The age of a proof is scaled up by as much as the clock may run slow.";
    SessionFloor, "session-floor", Index,
        "A session read waits until the index of its token is applied.";
    JointNewContact, "joint-new-contact", Group,
        "During a joint change a lease or a proof needs a majority of the new voters.";
    JointOldContact, "joint-old-contact", Group,
        "During a joint change a lease or a proof needs a majority of the old voters.";
    LearnersDoNotCount, "learners-do-not-count", Group,
        "Only the echoes of those that vote count for a lease or a proof.";
    LeaderIsNoVoter, "leader-is-no-voter", Group,
        "A leader counts itself only among voters that it is one of.";
    LeaseFollowsMembership, "lease-follows-membership", Group,
        "What a leader heard is counted again when the membership changes, without those that left.";
    RefusalOutlivesChange, "refusal-outlives-change", Group,
        "A voter goes on refusing when the membership changes, whoever leads in the new one.";
    JointElection, "joint-election", Group,
        "During a joint change a candidate needs a majority of the old voters, too.";
    JointCommit, "joint-commit", Group,
        "During a joint change an entry is committed by a majority of the old voters, too.";
    OneChangeAtATime, "one-change-at-a-time", Group,
        "A leader appends a change only after it has applied the one before and what it inherited.";
    CampaignAfterApplying, "campaign-after-applying", Group,
        "A replica campaigns only after it has applied the changes that it knows to be committed.";
    LogTellsChanges, "log-tells-changes", Group,
        "After a restart a replica takes all changes in its log but the last for committed.";
    NewId, "new-id", Group,
        "A replica that lost its data comes back as another one.";
    OthersAsked, "others-asked", Quorum,
        "A quorum read asks others, and does not go by its replica's own log alone.";
    MajorityAsked, "majority-asked", Quorum,
        "A quorum read is served by the answers of a majority, not of one replica less.";
    OwnLogAsked, "own-log-asked", Quorum,
        "The asking replica counts for the majority only by what its own log says.";
    LearnerAsksMajority, "learner-asks-majority", Quorum,
        "A learner that asks does not count for the majority.";
    JointOldAsked, "joint-old-asked", Quorum,
        "In a joint membership a quorum read needs a majority of the old voters, too.";
    AnswerAfterArrival, "answer-after-arrival", Quorum,
        "An answer counts only for reads that arrived before its question left.";
    AnswerById, "answer-by-id", Quorum,
        "An answer counts only if it comes from the replica that the membership names, not from a later one at its node.";
    CutTouchesAll, "cut-touches-all", Quorum,
        "A log that is cut above the asked index says that every key may be touched.";
    ChangeTouchesAll, "change-touches-all", Quorum,
        "A change of the membership above the asked index touches every key.";
    ChangeAsksAnew, "change-asks-anew", Quorum,
        "A read that met a change of the membership is asked again after it, and not served once the change is applied.";
    AppliedOnly, "applied-only", Quorum,
        "A quorum read is served with what is applied, whoever has more in a log.";
    SyncedAcknowledgement, "acknowledge-synced", Quorum,
        "A replica acknowledges only what is durable in its log.";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|rule| rule.name()).collect();
            format!("there is no rule '{name}'; the rules are {}", names.join(", "))
        })
    }
}

/// The rules that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    missing: Option<Rule>,
}

impl Rules {
    /// All of them.
    pub const ALL: Self = Self { missing: None };

    /// All but one.
    pub fn without(rule: Rule) -> Self {
        Self { missing: Some(rule) }
    }

    /// Whether `rule` is in force.
    pub fn has(self, rule: Rule) -> bool {
        self.missing != Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found_by_their_names() {
        for &rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
            assert!(Rules::ALL.has(rule) && !Rules::without(rule).has(rule));
        }
        assert!("no-such-rule".parse::<Rule>().is_err());
    }
}
