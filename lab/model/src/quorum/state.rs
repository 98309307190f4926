//! What the model of quorum reads consists of: replicas, what is on its way from leaders to them, and one read.

use super::Quorum;
use crate::group::course::{Config, REPLICAS_MAX, Set};
use crate::lease::state::Stale;
use crate::links::Links;
use crate::log::Log;
use crate::rule::Rule;

/// A replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// Its term; durable.
    pub term: u8,
    /// Its log, whether durable or not. Empty until a new replica has taken its first snapshot.
    pub log: Log,
    /// The log on its disk. Empty, and taken to be the same, once nothing restarts any more.
    pub disk: Log,
    /// Up to where its log is cut: what stands there is only in its storage.
    pub cut: u8,
    /// What it knows to be committed.
    pub commit: u8,
    /// How much of that its disk knows; 0 once nothing restarts any more.
    pub kept: u8,
    /// How many changes of the membership it has applied: the last decides which membership counts for it.
    pub changes: u8,
    /// Whether it leads, as far as it knows.
    pub leads: bool,
}

/// A leader's message to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// The leader's term.
    pub term: u8,
    /// The leader's log when it sent, or its beginning.
    pub log: Log,
    /// Up to where it was cut then: a replica that lacks some of that takes a snapshot.
    pub cut: u8,
    /// The leader's commit index when it sent.
    pub commit: u8,
}

/// What a leader knows of another replica, and what is on its way to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The latest message.
    pub message: Option<Message>,
    /// Up to where the replica has acknowledged the leader's log; 0 if that is below the leader's commit index.
    pub matched: u8,
}

/// A read of the key that asks a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Read {
    /// The replica that it arrived at.
    pub asker: u8,
    /// The key's value as of what was known to be committed anywhere when it arrived.
    pub floor: u8,
    /// What the replica had applied when its question left.
    pub after: u8,
    /// How many changes of the membership were in that.
    pub changes: u8,
    /// What each replica has answered: the last index in its log at which the key is touched, 0 if none above `after` is.
    pub answers: [Option<u8>; REPLICAS_MAX],
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
    /// The read.
    pub read: Option<Read>,
    /// Restarts that may still happen.
    pub restarts_left: u8,
    /// Writes of the key that may still be appended.
    pub writes_left: u8,
    /// Set once different entries were committed; nothing happens after it.
    pub is_forked: bool,
}

impl State {
    /// The membership that counts for `replica`.
    pub fn config(&self, model: &Quorum, replica: usize) -> Config {
        model.course.config(self.replicas[replica].changes)
    }

    /// How many entries of `replica`'s log are durable.
    pub fn durable(&self, replica: usize) -> u8 {
        let Replica { log, disk, .. } = self.replicas[replica];
        if self.restarts_left == 0 { log.last() } else { log.common(disk) }
    }

    /// What `replica` has applied: all that it knows to be committed and has on its disk, up to a change that it has not
    /// applied.
    pub fn applied(&self, replica: usize) -> u8 {
        let Replica { log, commit, changes, .. } = self.replicas[replica];
        let ready = commit.min(self.durable(replica));
        match log.index_of_change(changes + 1) {
            unapplied if unapplied != 0 && unapplied <= ready => unapplied - 1,
            _ => ready,
        }
    }

    /// What `log`, cut up to `cut`, says of the key after the index `after`: the last index at which it is touched, and 0 if
    /// there is none. `None` if it may be touched anywhere.
    pub fn touched(&self, model: &Quorum, log: Log, cut: u8, after: u8) -> Option<u8> {
        if cut > after && model.rules.has(Rule::CutTouchesAll) {
            return None;
        }
        let after = after.max(cut);
        let key = if log.key() > after { log.key() } else { 0 };
        let change = log.index_of_change(log.changes());
        if change <= after || !model.rules.has(Rule::ChangeTouchesAll) {
            return Some(key);
        }
        (!model.rules.has(Rule::ChangeAsksAnew)).then_some(key.max(change))
    }

    /// The replicas that would answer `asker` now that the key is not touched after what it has applied.
    fn silent_about_key(&self, model: &Quorum, asker: usize) -> Set {
        let after = self.applied(asker);
        let says_no = |at: &usize| {
            let Replica { log, cut, .. } = self.replicas[*at];
            log.last() > 0 && self.touched(model, log, cut, after) == Some(0)
        };
        (0..model.course.replicas).filter(says_no).fold(0, |set, at| set | 1 << at)
    }

    /// Whether `asker` could serve the key now by the answers of replicas that do not lead.
    pub fn serves_without_leader(&self, model: &Quorum, asker: usize) -> bool {
        let leaders = (0..model.course.replicas).filter(|&at| self.replicas[at].leads).fold(0, |set, at| set | 1 << at);
        self.serves(model, asker, !leaders)
    }

    /// Whether `asker` could serve the key now by the answers of replicas in `set`.
    pub fn serves(&self, model: &Quorum, asker: usize, set: Set) -> bool {
        let Replica { log, leads, changes, .. } = self.replicas[asker];
        log.last() > 0 && !leads && model.is_quorum(changes, asker, self.silent_about_key(model, asker) & set)
    }

    /// Whether `asker` cannot serve the key now, although its own log would let it.
    pub fn is_refused(&self, model: &Quorum, asker: usize) -> bool {
        self.silent_about_key(model, asker) >> asker & 1 == 1 && !self.serves(model, asker, Set::MAX)
    }

    /// The index whose state the read is served with: the least at which enough answers allow it, which may be less than what
    /// is applied by now. `None` as long as it waits.
    pub fn served_at(&self, model: &Quorum) -> Option<u8> {
        let Read { asker, after, changes, answers, .. } = self.read?;
        let asker = usize::from(asker);
        let is_enough = |&index: &u8| {
            let allows = |at: &usize| answers[*at].is_some_and(|touched| touched <= index);
            model.is_quorum(changes, asker, (0..REPLICAS_MAX).filter(allows).fold(0, |set, at| set | 1 << at))
        };
        let last =
            if model.rules.has(Rule::AppliedOnly) { self.applied(asker) } else { self.replicas[asker].log.last() };
        (after..=last).find(is_enough)
    }

    /// The promise of quorum reads, where it is broken.
    pub fn stale(&self, model: &Quorum) -> Option<Stale> {
        let Read { asker, floor, .. } = self.read?;
        let served = self.replicas[usize::from(asker)].log.prefix(self.served_at(model)?).key();
        (served < floor).then_some(Stale { served, floor })
    }

    /// A leader that a majority still follows, and that misses what anybody knows to be committed. Every read that arrives
    /// there now is served without it. (The proof of its leadership is in the model of the group, step by step.)
    pub fn blind_leader(&self, model: &Quorum) -> Option<usize> {
        let follows = |leader: usize, at: &usize| self.replicas[*at].term <= self.replicas[leader].term;
        (0..model.course.replicas).find(|&leader| {
            let Replica { log, term, commit, leads, .. } = self.replicas[leader];
            let set = (0..model.course.replicas).filter(|at| follows(leader, at)).fold(0, |set, at| set | 1 << at);
            leads
                && log.term(commit) == term
                && commit < self.committed.last()
                && self.config(model, leader).is_majority(set)
        })
    }

    /// Whether a promise is broken.
    pub fn is_broken(&self, model: &Quorum) -> bool {
        self.is_forked || self.stale(model).is_some() || self.blind_leader(model).is_some()
    }

    /// Replaces what can have no effect any more by nothing, so that states that differ only in it are one.
    pub(super) fn forget_dead(&mut self, model: &Quorum) {
        if self.restarts_left == 0 {
            self.replicas.iter_mut().for_each(|replica| (replica.disk, replica.kept) = (Log::default(), 0));
        }
        for leader in 0..model.course.replicas {
            let Replica { term, leads, commit, .. } = self.replicas[leader];
            for other in 0..model.course.replicas {
                let replica = &self.replicas[other];
                let link = &mut self.links[leader][other];
                link.matched = if leads && link.matched > commit { link.matched } else { 0 };
                link.message = link.message.filter(|message| {
                    let is_awaited = leads && term == message.term && message.log.last() > link.matched.max(commit);
                    let is_news = message.term > replica.term
                        || !message.log.is_prefix_of(replica.log)
                        || message.commit > replica.commit;
                    message.term >= replica.term && (is_news || is_awaited)
                });
            }
        }
        // Without the first rule another read may take the answers over, without the second more than what is applied is shown.
        if model.rules.has(Rule::AnswerAfterArrival) && model.rules.has(Rule::AppliedOnly) {
            self.forget_harmless();
        }
    }

    /// Forgets a read that can miss nothing any more, and answers that make no read miss anything: what is served by them
    /// covers what is due.
    fn forget_harmless(&mut self) {
        let Some(mut read) = self.read else { return };
        let Read { asker, floor, after, .. } = read;
        let log = self.replicas[usize::from(asker)].log;
        read.answers.iter_mut().for_each(|answer| *answer = answer.filter(|&touched| touched < floor));
        let is_safe = log.prefix(after).key() >= floor;
        self.read = (!is_safe).then_some(read);
    }

    /// The same state with replicas that are alike in the order of what they are.
    pub(super) fn sorted(self, model: &Quorum) -> Self {
        let count = model.course.replicas;
        // What is on its way breaks ties between replicas that are alike.
        let key = |at: usize| {
            let mut sent = self.links[at];
            let mut heard: [_; REPLICAS_MAX] = core::array::from_fn(|leader| self.links[leader][at]);
            sent[..count].sort_unstable();
            heard[..count].sort_unstable();
            let part = self.read.map(|read| (usize::from(read.asker) == at, read.answers[at]));
            (part, sent, heard)
        };
        let order = model.course.sorted(|one, other| {
            let (first, second) = (&self.replicas[one], &self.replicas[other]);
            first.cmp(second).then_with(|| key(one).cmp(&key(other))).is_lt()
        });
        if order.is_sorted() { self } else { self.renamed(order) }
    }

    /// The same state with the replica that was at `order[i]` at `i`.
    pub(super) fn renamed(self, order: [usize; REPLICAS_MAX]) -> Self {
        let mut place = [0; REPLICAS_MAX];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new as u8);
        let moved = |read: Read| Read {
            asker: place[usize::from(read.asker)],
            answers: order.map(|old| read.answers[old]),
            ..read
        };
        Self {
            replicas: order.map(|old| self.replicas[old]),
            links: Links(order.map(|leader| order.map(|other| self.links[leader][other]))),
            read: self.read.map(moved),
            ..self
        }
    }
}
