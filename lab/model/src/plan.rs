//! Which models are checked as a whole, and in which small one the absence of each rule is looked for.

use crate::check::{Outcome, Verdict, check};
use crate::clock::Rates;
use crate::group::Group;
use crate::group::course::Course;
use crate::index::Index;
use crate::lease::Lease;
use crate::quorum::Quorum;
use crate::rule::Rule;
use core::fmt;

/// A model with its bounds.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// Elections, leases and the proof of leadership.
    Lease(Lease),
    /// Questions, answers and what is served after them.
    Index(Index),
    /// Memberships that change, majorities, and reads all the way.
    Group(Group),
    /// Reads that ask a majority instead of the leader.
    Quorum(Quorum),
}

impl Subject {
    /// The name of the model.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lease(_) => "lease",
            Self::Index(_) => "read index",
            Self::Group(_) => "group",
            Self::Quorum(_) => "quorum",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease(model) => fmt_lease(model, f),
            Self::Index(model) => fmt_index(model, f),
            Self::Group(model) => fmt_group(model, f),
            Self::Quorum(model) => fmt_quorum(model, f),
        }
    }
}

fn fmt_lease(model: &Lease, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{} voters, {} terms, {} entries", model.voters, model.terms, model.entries)?;
    fmt_count(usize::from(model.restarts), "restart", f)?;
    fmt_count(usize::from(model.transfers), "transfer", f)?;
    f.write_str(if model.reads { ", a read waits" } else { "" })?;
    f.write_str(if model.rates == Rates::STILL { ", no time" } else { "" })
}

fn fmt_index(model: &Index, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(if model.askers > 1 { "follower, learner" } else { "follower" })?;
    fmt_count(usize::from(model.writes), "write", f)?;
    fmt_count(model.reads, "read", f)?;
    if model.reads > 0 || model.bound.is_some() {
        fmt_count(model.questions, "question", f)?;
    }
    f.write_str(if model.bound.is_some() { ", bounded reads" } else { "" })?;
    f.write_str(if model.has_session { ", a session" } else { "" })
}

fn fmt_group(model: &Group, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}, {} terms, {} entries", model.course.name, model.terms, model.entries)?;
    fmt_count(usize::from(model.writes), "write", f)?;
    fmt_count(usize::from(model.restarts), "restart", f)?;
    fmt_count(usize::from(model.transfers), "transfer", f)?;
    f.write_str(if model.reads { ", a read waits" } else { "" })?;
    f.write_str(if model.asks { ", a read asks" } else { "" })?;
    model.depth.map_or(Ok(()), |depth| write!(f, ", {depth} steps"))
}

fn fmt_quorum(model: &Quorum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}, {} terms, {} entries", model.course.name, model.terms, model.entries)?;
    fmt_count(usize::from(model.writes), "write", f)?;
    fmt_count(usize::from(model.restarts), "restart", f)?;
    f.write_str(if model.cuts { ", cuts" } else { "" })?;
    f.write_str(if model.sends_parts { ", parts" } else { "" })?;
    model.depth.map_or(Ok(()), |depth| write!(f, ", {depth} steps"))
}

fn fmt_count(count: usize, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match count {
        0 => Ok(()),
        1 => write!(f, ", 1 {what}"),
        _ => write!(f, ", {count} {what}s"),
    }
}

/// What `./x model` checks in every state that there is.
pub fn full() -> Vec<Subject> {
    vec![
        Subject::Lease(Lease { restarts: 1, transfers: 1, ..Lease::new(3, 2, 2) }),
        Subject::Lease(Lease::new(3, 2, 3)),
        Subject::Lease(Lease { restarts: 1, reads: false, ..Lease::new(3, 3, 3) }),
        Subject::Lease(Lease { transfers: 2, rates: Rates::STILL, ..Lease::new(3, 3, 3) }),
        Subject::Lease(Lease { restarts: 2, transfers: 2, ..Lease::new(2, 4, 4) }),
        Subject::Index(Index::new(2, 3, 2)),
        Subject::Index(Index { bound: Some(2), ..Index::new(1, 3, 0) }),
        Subject::Index(Index { bound: Some(2), questions: 1, ..Index::new(2, 2, 0) }),
        Subject::Index(Index { bound: Some(2), has_session: true, ..Index::new(1, 2, 1) }),
        Subject::Index(Index { has_session: true, ..Index::new(2, 3, 0) }),
        Subject::Group(Group { asks: true, ..Group::new(Course::THREE, 3, 3) }),
        Subject::Group(Group { restarts: 1, transfers: 1, asks: true, ..Group::new(Course::THREE, 2, 2) }),
        Subject::Group(Group { restarts: 2, transfers: 1, reads: true, ..Group::new(Course::MOVED, 4, 6) }),
        Subject::Group(Group { writes: 1, ..Group::new(Course::GROWN, 2, 5) }),
        Subject::Group(Group { restarts: 1, ..Group::new(Course::SHRUNK, 2, 4) }),
        Subject::Group(Group { restarts: 1, ..Group::new(Course::PAIR, 2, 5) }),
        Subject::Group(Group { depth: Some(13), ..Group::new(Course::REPLACED, 2, 4) }),
        Subject::Group(Group { depth: Some(12), ..Group::new(Course::TWO_REPLACED, 2, 4) }),
        Subject::Group(Group { depth: Some(13), ..Group::new(Course::SIMPLE, 2, 4) }),
        Subject::Group(Group { depth: Some(14), reads: true, ..Group::new(Course::FIVE, 2, 2) }),
        Subject::Group(Group { depth: Some(11), restarts: 1, transfers: 1, ..Group::new(Course::FIVE, 3, 3) }),
        Subject::Quorum(Quorum { restarts: 1, cuts: true, ..Quorum::new(Course::TWO, 3, 4) }),
        Subject::Quorum(Quorum::new(Course::THREE, 3, 4)),
        Subject::Quorum(Quorum { writes: 2, ..Quorum::new(Course::THREE, 2, 4) }),
        Subject::Quorum(Quorum { cuts: true, ..Quorum::new(Course::THREE, 2, 3) }),
        Subject::Quorum(Quorum { restarts: 1, ..Quorum::new(Course::THREE, 2, 3) }),
        Subject::Quorum(Quorum { sends_parts: true, ..Quorum::new(Course::THREE, 2, 3) }),
        Subject::Quorum(Quorum { restarts: 1, cuts: true, ..Quorum::new(Course::MOVED, 3, 6) }),
        Subject::Quorum(Quorum::new(Course::GROWN, 2, 5)),
        Subject::Quorum(Quorum::new(Course::SHRUNK, 2, 4)),
        Subject::Quorum(Quorum::new(Course::PAIR, 2, 5)),
        Subject::Quorum(Quorum { depth: Some(12), ..Quorum::new(Course::LEARNER, 2, 3) }),
        Subject::Quorum(Quorum { depth: Some(11), ..Quorum::new(Course::TWO_REPLACED, 2, 4) }),
        Subject::Quorum(Quorum { depth: Some(13), ..Quorum::new(Course::FIVE, 2, 3) }),
    ]
}

/// What `./x model --deep` checks besides: long, and with gigabytes of memory.
pub fn deep() -> Vec<Subject> {
    vec![
        Subject::Group(Group { restarts: 1, transfers: 1, reads: true, asks: true, ..Group::new(Course::THREE, 2, 3) }),
        Subject::Group(Group { restarts: 2, transfers: 2, reads: true, asks: true, ..Group::new(Course::MOVED, 4, 6) }),
        Subject::Group(Group { depth: Some(14), restarts: 1, ..Group::new(Course::REPLACED_WHOLE, 2, 5) }),
        Subject::Group(Group { depth: Some(16), ..Group::new(Course::REPLACED, 2, 4) }),
        Subject::Group(Group { depth: Some(14), ..Group::new(Course::TWO_REPLACED, 2, 4) }),
        Subject::Group(Group { depth: Some(15), ..Group::new(Course::SIMPLE, 2, 4) }),
        Subject::Group(Group { depth: Some(17), reads: true, ..Group::new(Course::FIVE, 2, 2) }),
    ]
}

/// Smaller ones for the tests, of the same kinds.
pub fn quick() -> Vec<Subject> {
    vec![
        Subject::Lease(Lease::new(3, 2, 2)),
        Subject::Lease(Lease { restarts: 1, reads: false, ..Lease::new(3, 2, 2) }),
        Subject::Lease(Lease { transfers: 1, reads: false, ..Lease::new(3, 2, 2) }),
        Subject::Lease(Lease { transfers: 2, rates: Rates::STILL, ..Lease::new(3, 3, 3) }),
        Subject::Lease(Lease { restarts: 1, transfers: 1, ..Lease::new(2, 3, 3) }),
        Subject::Index(Index::new(2, 2, 2)),
        Subject::Index(Index { bound: Some(2), ..Index::new(1, 2, 0) }),
        Subject::Index(Index { has_session: true, ..Index::new(2, 3, 0) }),
        Subject::Group(Group { reads: true, asks: true, ..Group::new(Course::THREE, 2, 2) }),
        Subject::Group(Group { restarts: 1, transfers: 1, reads: true, ..Group::new(Course::MOVED, 3, 6) }),
        Subject::Group(Group::new(Course::GROWN, 2, 4)),
        Subject::Group(Group::new(Course::SHRUNK, 2, 4)),
        Subject::Group(Group { depth: Some(9), ..Group::new(Course::REPLACED, 2, 4) }),
        Subject::Group(Group { depth: Some(9), restarts: 1, ..Group::new(Course::FIVE, 2, 2) }),
        Subject::Quorum(Quorum { restarts: 1, cuts: true, ..Quorum::new(Course::TWO, 2, 3) }),
        Subject::Quorum(Quorum::new(Course::THREE, 2, 3)),
        Subject::Quorum(Quorum { cuts: true, ..Quorum::new(Course::MOVED, 2, 5) }),
    ]
}

/// Where the absence of `rule` must show.
pub fn without(rule: Rule) -> Subject {
    let small = Lease { reads: false, ..Lease::new(3, 2, 2) };
    let latest = Index::new(1, 2, 2);
    let bounded = Index { bound: Some(2), ..Index::new(1, 2, 0) };
    let lease = |model: Lease| Subject::Lease(model.without(rule));
    let index = |model: Index| Subject::Index(model.without(rule));
    let group = |model: Group| Subject::Group(model.without(rule));
    let quorum = |model: Quorum| Subject::Quorum(model.without(rule));
    let three = Quorum::new(Course::THREE, 2, 3);
    match rule {
        Rule::VoteFence | Rule::LeaseFromSending | Rule::LeaseEnds | Rule::LeaseAllowsForRates => lease(small),
        Rule::RestartFence => lease(Lease { restarts: 1, ..small }),
        Rule::LeaseEndsAtTransfer => lease(Lease { transfers: 1, ..small }),
        Rule::OwnTermCommit | Rule::QuorumCheck => lease(Lease { reads: true, ..small }),
        Rule::ReadsEndWithLeadership => lease(Lease { transfers: 2, rates: Rates::STILL, ..Lease::new(3, 3, 3) }),
        Rule::LeaderApplyWait | Rule::FollowerApplyWait | Rule::FreshId | Rule::JoinBeforeLeaving => index(latest),
        Rule::ProofFromSending | Rule::ProofNeedsApplied | Rule::AgeAllowsForRates => index(bounded),
        Rule::SessionFloor => index(Index { has_session: true, ..Index::new(1, 2, 0) }),
        Rule::JointNewContact => group(Group::new(Course::GROWN, 2, 4)),
        Rule::JointOldContact | Rule::JointCommit | Rule::CampaignAfterApplying => {
            group(Group::new(Course::SHRUNK, 2, 4))
        }
        Rule::LearnersDoNotCount => group(Group::new(Course::REPLACED, 2, 4)),
        Rule::LeaderIsNoVoter | Rule::LeaseFollowsMembership => group(Group::new(Course::MOVED, 2, 5)),
        Rule::RefusalOutlivesChange | Rule::OneChangeAtATime => group(Group::new(Course::MOVED, 2, 5)),
        Rule::JointElection => group(Group { writes: 1, ..Group::new(Course::MOVED, 2, 5) }),
        Rule::LogTellsChanges => group(Group { restarts: 1, ..Group::new(Course::MOVED, 3, 6) }),
        Rule::NewId => group(Group { restarts: 1, ..Group::new(Course::THREE, 2, 2) }),
        Rule::OthersAsked | Rule::OwnLogAsked | Rule::AnswerAfterArrival | Rule::AnswerById | Rule::AppliedOnly => {
            quorum(three)
        }
        Rule::MajorityAsked => quorum(Quorum::new(Course::FIVE, 2, 2)),
        Rule::LearnerAsksMajority => quorum(Quorum::new(Course::LEARNER, 2, 3)),
        Rule::CutTouchesAll => quorum(Quorum { cuts: true, ..three }),
        Rule::SyncedAcknowledgement => quorum(Quorum { restarts: 1, ..three }),
        Rule::JointOldAsked => quorum(Quorum::new(Course::MOVED, 2, 5)),
        Rule::ChangeTouchesAll | Rule::ChangeAsksAnew => quorum(Quorum::new(Course::SHRUNK, 1, 4)),
    }
}

/// The rules of the other models that the model of the group has too, each with where its absence must show there: it puts
/// the two together.
pub fn again() -> Vec<(Rule, Subject)> {
    let three = Group::new(Course::THREE, 2, 2);
    let asking = Group { asks: true, ..three };
    let models = [
        (Rule::RestartFence, Group { restarts: 1, ..three }),
        (Rule::LeaseEndsAtTransfer, Group { transfers: 1, ..three }),
        (Rule::OwnTermCommit, asking),
        (Rule::QuorumCheck, Group { reads: true, ..three }),
        (Rule::FollowerApplyWait, asking),
        (Rule::JoinBeforeLeaving, asking),
    ];
    models.map(|(rule, model)| (rule, Subject::Group(model.without(rule)))).to_vec()
}

/// Where clocks outside their bounds must show, although all rules are in force.
pub fn beyond() -> Vec<Subject> {
    let lease = Lease { reads: false, rates: Rates::beyond(), ..Lease::new(3, 2, 2) };
    let index = Index { bound: Some(2), rates: Rates::beyond(), ..Index::new(1, 2, 0) };
    vec![Subject::Lease(lease.hunting()), Subject::Index(index.hunting())]
}

/// The same durations as in the models without the allowance for clocks' rates, but clocks without error: what breaks those
/// must be the rates.
pub fn without_drift() -> Vec<Subject> {
    let lease = Lease { reads: false, ..Lease::new(3, 2, 2) }.without(Rule::LeaseAllowsForRates);
    let index = Index { bound: Some(2), ..Index::new(1, 2, 0) }.without(Rule::AgeAllowsForRates);
    vec![Subject::Lease(Lease { rates: Rates::EQUAL, ..lease }), Subject::Index(Index { rates: Rates::EQUAL, ..index })]
}

/// Looks for the shortest way to a broken promise in one of the models that must have one. `None` if there is none.
pub fn hunt(subject: Subject) -> Option<Outcome> {
    let outcome = check(subject);
    matches!(outcome.verdict, Verdict::Broken(_)).then_some(outcome)
}
