//! What the model of the group consists of: replicas, what each leader knows of the others and has on its way to them, and one
//! read.

use super::Group;
use super::course::{Config, REPLICAS_MAX, Set, is_half};
use crate::lease::state::{Handover, Stale};
use crate::links::Links;
use crate::log::Log;
use crate::rule::Rule;

/// A replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// Its term; durable.
    pub term: u8,
    /// Its log; durable. Empty until a new replica has taken its first snapshot.
    pub log: Log,
    /// What it knows to be committed.
    pub commit: u8,
    /// How many changes of the membership it has applied: the last decides which membership counts for it.
    pub changes: u8,
    /// Whether it leads, as far as it knows.
    pub leads: bool,
    /// As a leader: whether it began to hand over in this term.
    pub hands_over: bool,
    /// Whether it broke its word by forgetting it: only without some rule.
    pub forgot: bool,
}

/// A leader's message to a replica, or its echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// The leader's term.
    pub term: u8,
    /// The leader's log when it sent; empty when heard.
    pub log: Log,
    /// The leader's commit index when it sent; when heard, the index up to which the logs are the same.
    pub index: u8,
    /// Whether the replica has heard it, so that the echo is on its way.
    pub is_heard: bool,
    /// Whether it was sent so lately that its echo gives a lease.
    pub is_fresh: bool,
    /// Whether it was sent after the waiting read arrived.
    pub follows_read: bool,
}

/// What a leader knows of another replica, and what is on its way between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The latest message, or its echo.
    pub message: Option<Message>,
    /// Up to where the logs are known to be the same; 0 if that is below the leader's commit index.
    pub matched: u8,
    /// Whether the leader counts on the replica's refusal to vote: what it echoed was sent lately.
    pub counts: bool,
    /// Whether the replica echoed what was sent after the waiting read arrived.
    pub proves: bool,
}

/// How far the read has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// It waits at another replica for a question to leave.
    Gathered,
    /// The question is on its way to the leader of this term.
    Asked {
        /// The term that the asking replica was in.
        term: u8,
    },
    /// It, or its question, waits at a leader.
    Waits {
        /// Where.
        at: u8,
        /// What was committed when it arrived, or at the first commit of the leader's term.
        index: Option<u8>,
        /// Whether a majority has echoed what was sent after it arrived, or a lease was there since.
        is_proved: bool,
    },
    /// The answer is on its way back.
    Answered {
        /// The index.
        index: u8,
    },
}

/// A read for the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Read {
    /// The replica that it arrived at, if that does not lead.
    pub asker: Option<u8>,
    /// The largest index that was known to be committed anywhere when it arrived.
    pub floor: u8,
    /// How far it has got.
    pub stage: Stage,
}

/// A state of the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The replicas.
    pub replicas: [Replica; REPLICAS_MAX],
    /// What each leader knows of each replica.
    pub links: Links<Link>,
    /// The longest log that anybody ever knew to be committed: acknowledged, perhaps, and shown.
    pub committed: Log,
    /// The order to campaign that is on its way.
    pub handover: Option<Handover>,
    /// The read.
    pub read: Option<Read>,
    /// Restarts that may still happen.
    pub restarts_left: u8,
    /// Writes of clients that may still be appended.
    pub writes_left: u8,
    /// Transfers of the leadership that may still be begun.
    pub transfers_left: u8,
    /// Set once a read broke its promise; nothing happens after it.
    pub stale: Option<Stale>,
    /// Set once different entries were committed; nothing happens after it.
    pub is_forked: bool,
}

impl State {
    /// The largest index that anybody ever knew to be committed.
    pub fn known(&self) -> u8 {
        self.committed.last()
    }

    /// The membership that counts for `replica`.
    pub fn config(&self, model: &Group, replica: usize) -> Config {
        model.course.config(self.replicas[replica].changes)
    }

    /// The replicas of which `holds` is true for `leader`'s link, and `leader` itself.
    pub(super) fn those(&self, model: &Group, leader: usize, holds: impl Fn(&Link) -> bool) -> Set {
        let links = self.links[leader][..model.course.replicas].iter().enumerate();
        links.filter(|(_, link)| holds(link)).fold(1 << leader, |set, (at, _)| set | 1 << at)
    }

    /// The leader's commit index covers what earlier leaders committed (`Group::has_own_commit`).
    pub fn has_own_commit(&self, model: &Group, replica: usize) -> bool {
        let Replica { log, commit, term, leads, .. } = self.replicas[replica];
        leads && (log.term(commit) == term || !model.rules.has(Rule::OwnTermCommit))
    }

    /// Whether `replica` may serve a read without asking anybody (`Group::lease_holds`).
    pub fn has_lease(&self, model: &Group, replica: usize) -> bool {
        let Replica { leads, hands_over, changes, .. } = self.replicas[replica];
        let is_whole = !hands_over || !model.rules.has(Rule::LeaseEndsAtTransfer);
        if !leads || !is_whole || !self.has_own_commit(model, replica) {
            return false;
        }
        let set = self.those(model, replica, |link| link.counts);
        // A quorum contact that is not computed again when the membership changes is that of the membership before.
        let is_old = !model.rules.has(Rule::LeaseFollowsMembership) && changes > 0;
        self.is_contact(model, replica, self.config(model, replica), set)
            || (is_old && self.is_contact(model, replica, model.course.config(changes - 1), set))
    }

    /// Whether a promise is broken.
    pub fn is_broken(&self, model: &Group) -> bool {
        let is_late = |at: usize| self.replicas[at].commit < self.known();
        let has_bad_lease = self.holders(model).count() > 1 || self.holders(model).any(is_late);
        self.stale.is_some() || self.is_forked || has_bad_lease
    }

    /// The replicas that have a lease.
    pub fn holders<'a>(&'a self, model: &'a Group) -> impl Iterator<Item = usize> + 'a {
        (0..model.course.replicas).filter(|&at| self.has_lease(model, at))
    }

    /// Whether `set`, the leader and those that it heard of, is enough for a lease or a proof (`Contact::update`).
    fn is_contact(&self, model: &Group, leader: usize, config: Config, set: Set) -> bool {
        let is_enough = |voters: Set| {
            let mut needed = voters.count_ones() / 2 + 1;
            let mut counted = if model.rules.has(Rule::LearnersDoNotCount) { set & voters } else { set };
            if !model.rules.has(Rule::LeaderIsNoVoter) && voters >> leader & 1 == 0 {
                needed -= 1;
                counted &= !(1 << leader);
            }
            counted.count_ones() >= needed
        };
        let (has_new, has_old) = (model.rules.has(Rule::JointNewContact), model.rules.has(Rule::JointOldContact));
        match config.outgoing {
            0 => is_enough(config.voters),
            outgoing => (is_enough(config.voters) || !has_new) && (is_enough(outgoing) || !has_old),
        }
    }

    /// Whether a majority has echoed what `leader` sent after the read arrived.
    pub(super) fn is_heard_by_majority(&self, model: &Group, leader: usize) -> bool {
        let set = self.those(model, leader, |link| link.proves);
        !model.rules.has(Rule::QuorumCheck) || self.is_contact(model, leader, self.config(model, leader), set)
    }

    /// Whether `set` may elect a candidate (`ProgressTracker::vote_result` of the crate).
    pub(super) fn may_elect(&self, model: &Group, candidate: usize, set: Set) -> bool {
        let config = self.config(model, candidate);
        config.is_majority(set) || (!model.rules.has(Rule::JointElection) && is_half(config.voters, set))
    }

    /// Whether entries that `set` has are committed (`ProgressTracker::maximal_committed_index` of the crate).
    pub(super) fn is_committed_by(&self, model: &Group, leader: usize, set: Set) -> bool {
        let config = self.config(model, leader);
        config.is_majority(set) || (!model.rules.has(Rule::JointCommit) && is_half(config.voters, set))
    }

    /// Whether some lease may count on it that `replica` helps to elect nobody (`Group::is_fenced`).
    pub fn is_bound(&self, model: &Group, replica: usize) -> bool {
        let is_counted = |leader: usize| {
            let link = &self.links[leader][replica];
            link.counts || link.message.is_some_and(|message| message.is_heard && message.is_fresh)
        };
        let is_promised = (0..model.course.replicas).any(|leader| leader != replica && is_counted(leader));
        (is_promised && !self.replicas[replica].forgot) || self.has_lease(model, replica)
    }

    /// Replaces what can have no effect any more by nothing, so that states that differ only in it are one.
    pub(super) fn forget_dead(&mut self, model: &Group) {
        let waits_at = match self.read {
            Some(Read { stage: Stage::Waits { at, .. }, .. }) => Some(usize::from(at)),
            _ => None,
        };
        for leader in 0..model.course.replicas {
            let Replica { term, leads, commit, hands_over, .. } = self.replicas[leader];
            let config = self.config(model, leader);
            let has_lease = leads && !(hands_over && model.rules.has(Rule::LeaseEndsAtTransfer));
            for other in 0..model.course.replicas {
                let other_term = self.replicas[other].term;
                let link = &mut self.links[leader][other];
                let is_member = config.contains(other) || !model.rules.has(Rule::LeaseFollowsMembership);
                link.counts &= has_lease && is_member;
                link.proves &= leads && is_member && waits_at == Some(leader);
                link.matched = if leads && link.matched > commit { link.matched } else { 0 };
                let Some(message) = &mut link.message else { continue };
                let is_current = leads && term == message.term;
                message.is_fresh &= is_current && has_lease;
                message.follows_read &= is_current && waits_at == Some(leader) && !link.proves;
                let is_news = message.is_fresh || message.follows_read || message.index > commit;
                let is_dead = match message.is_heard {
                    false => message.term < other_term,
                    true => !is_current || !is_member || !is_news,
                };
                if is_dead {
                    link.message = None;
                }
            }
        }
        let is_late = |handover: Handover| self.replicas[usize::from(handover.to)].term > handover.term;
        self.handover = self.handover.filter(|&handover| !is_late(handover));
    }

    /// The same state with replicas that are alike in the order of what they are.
    pub(super) fn sorted(self, model: &Group) -> Self {
        let count = model.course.replicas;
        // What is on its way breaks ties between replicas that are alike.
        let key = |at: usize| {
            let mut sent = self.links[at];
            let mut heard: [_; REPLICAS_MAX] = core::array::from_fn(|leader| self.links[leader][at]);
            sent[..count].sort_unstable();
            heard[..count].sort_unstable();
            let is_named = |name: Option<u8>| name.is_some_and(|name| usize::from(name) == at);
            let waits_at = match self.read.map(|read| read.stage) {
                Some(Stage::Waits { at, .. }) => Some(at),
                _ => None,
            };
            let marks = [
                is_named(waits_at),
                is_named(self.read.and_then(|it| it.asker)),
                is_named(self.handover.map(|it| it.to)),
            ];
            (self.replicas[at], marks, sent, heard)
        };
        let order = model.course.sorted(|one, other| less(&self.replicas, one, other, &key));
        if order.is_sorted() { self } else { self.renamed(order) }
    }

    /// The same state with the replica that was at `order[i]` at `i`.
    pub(super) fn renamed(self, order: [usize; REPLICAS_MAX]) -> Self {
        let mut place = [0; REPLICAS_MAX];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new as u8);
        let moved = |old: u8| place[usize::from(old)];
        let moved_stage = |stage: Stage| match stage {
            Stage::Waits { at, index, is_proved } => Stage::Waits { at: moved(at), index, is_proved },
            other => other,
        };
        Self {
            replicas: order.map(|old| self.replicas[old]),
            links: Links(order.map(|leader| order.map(|other| self.links[leader][other]))),
            handover: self.handover.map(|it| Handover { to: moved(it.to), ..it }),
            read: self.read.map(|it| Read { asker: it.asker.map(moved), stage: moved_stage(it.stage), ..it }),
            ..self
        }
    }
}

/// Whether `one` comes before `other`: mostly the replicas themselves say so, without a look at what is on its way.
fn less<K: Ord>(replicas: &[Replica], one: usize, other: usize, key: &impl Fn(usize) -> K) -> bool {
    match replicas[one].cmp(&replicas[other]) {
        core::cmp::Ordering::Equal => key(one) < key(other),
        order => order.is_lt(),
    }
}
