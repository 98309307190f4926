//! What can happen in the model of quorum reads: each action at any moment at which it is possible.

use super::Quorum;
use super::state::{Message, Read, Replica, State};
use crate::group::course::{REPLICAS_MAX, Set};
use crate::log::{ENTRIES_MAX, Log};
use crate::rule::Rule;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A leader sends the beginning of its log; what it sent there before is lost if it has not arrived.
    Send {
        /// The leader.
        from: usize,
        /// The replica.
        to: usize,
        /// How many entries.
        count: u8,
    },
    /// A message arrives. What is durable of it is acknowledged at once; the leader may take notice at any time.
    Hear {
        /// The leader that sent it.
        from: usize,
        /// The replica.
        at: usize,
    },
    /// What a replica has in its log becomes durable.
    Sync {
        /// Which one.
        at: usize,
    },
    /// A leader learns that one more entry, and what is before it, is committed.
    Commit {
        /// The leader.
        at: usize,
        /// The entry.
        index: u8,
    },
    /// A replica campaigns in the next term and is elected. Nobody ever refuses for having heard a leader.
    Elect {
        /// The new leader.
        leader: usize,
        /// Who votes for it.
        voters: Set,
    },
    /// A leader appends a write of the key.
    Write {
        /// The leader.
        at: usize,
    },
    /// A leader appends the next change of the membership, or the end of a joint one.
    Propose {
        /// The leader.
        at: usize,
    },
    /// A replica applies the next change that it knows to be committed.
    Apply {
        /// Which one.
        at: usize,
    },
    /// A replica drops from its log what it has applied.
    Cut {
        /// Which one.
        at: usize,
    },
    /// A replica stops and starts, and has what is on its disk.
    Restart {
        /// Which one.
        at: usize,
        /// Whether its storage holds all changes that it had applied, or only what it began with.
        is_flushed: bool,
    },
    /// A read arrives at a replica that does not lead, and its question leaves for all voters.
    Arrive {
        /// Which one.
        at: usize,
    },
    /// A later read takes the question of the one that is there for its own: only without the rule.
    Join,
    /// A voter answers the question.
    Answer {
        /// Which one.
        at: usize,
        /// Whether it goes by its disk and not by all of its log.
        is_by_disk: bool,
    },
    /// A new replica at the node of this voter answers instead of it, with nothing in its log: only without the rule.
    AnswerForOther {
        /// Whose place it takes.
        at: usize,
    },
}

impl Quorum {
    /// Lists what can happen in `state`.
    pub(super) fn propose(&self, state: &State, actions: &mut Vec<Action>) {
        let count = self.course.replicas;
        for one in 0..count {
            for other in (0..count).filter(|&other| other != one) {
                self.propose_between(state, one, other, actions);
            }
            if state.replicas[one].leads {
                self.propose_leading(state, one, actions);
            } else {
                self.propose_elections(state, one, actions);
            }
            self.propose_at(state, one, actions);
        }
        self.propose_reads(state, actions);
    }

    fn propose_between(&self, state: &State, one: usize, other: usize, actions: &mut Vec<Action>) {
        let leader = &state.replicas[one];
        if leader.leads && state.config(self, one).contains(other) {
            let last = leader.log.last();
            let first = if self.sends_parts { leader.cut.max(1) } else { last };
            actions.extend((first..=last).map(|count| Action::Send { from: one, to: other, count }));
        }
        if state.links[one][other].message.is_some() {
            actions.push(Action::Hear { from: one, at: other });
        }
    }

    fn propose_leading(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let Replica { log, term, commit, .. } = state.replicas[at];
        let has_room = usize::from(log.last()) < self.room();
        if has_room && state.writes_left > 0 {
            actions.push(Action::Write { at });
        }
        if has_room && self.may_propose(state, at) {
            actions.push(Action::Propose { at });
        }
        let is_committed = |&index: &u8| {
            let has = |other: &usize| match *other == at {
                true => state.durable(at) >= index || !self.rules.has(Rule::SyncedAcknowledgement),
                false => state.links[at][*other].matched >= index,
            };
            let set = (0..self.course.replicas).filter(has).fold(0, |set, other| set | 1 << other);
            log.term(index) == term && state.config(self, at).is_majority(set)
        };
        let committed = (commit + 1..=log.last()).filter(is_committed);
        actions.extend(committed.map(|index| Action::Commit { at, index }));
    }

    /// Whether a leader may append the next change: those before it are applied, and so is everything that it had in its log
    /// when it was elected.
    fn may_propose(&self, state: &State, at: usize) -> bool {
        let Replica { log, term, .. } = state.replicas[at];
        let appended = log.changes();
        let inherited = (1..=log.last()).rev().find(|&index| log.term(index) < term).unwrap_or_default();
        let pending = log.index_of_change(appended).max(inherited);
        usize::from(appended) + 1 < self.course.configs.len() && state.applied(at) >= pending
    }

    fn propose_at(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let Replica { log, disk, cut, commit, changes, .. } = state.replicas[at];
        if log.last() == 0 {
            return;
        }
        if changes < log.prefix(commit.min(state.durable(at))).changes() {
            actions.push(Action::Apply { at });
        }
        if self.cuts && cut < state.applied(at) {
            actions.push(Action::Cut { at });
        }
        if state.restarts_left == 0 {
            return;
        }
        if disk != log {
            actions.push(Action::Sync { at });
        }
        actions.push(Action::Restart { at, is_flushed: true });
        if changes > self.course.joins(at) && log.index_of_change(self.course.joins(at) + 1) > cut {
            actions.push(Action::Restart { at, is_flushed: false });
        }
    }

    fn propose_elections(&self, state: &State, candidate: usize, actions: &mut Vec<Action>) {
        let Replica { term, log, commit, changes, .. } = state.replicas[candidate];
        let config = state.config(self, candidate);
        let may_campaign = log.last() > 0
            && config.is_voter(candidate)
            && usize::from(log.last()) < self.room()
            && term < self.terms
            && changes == log.prefix(commit).changes();
        if !may_campaign {
            return;
        }
        let own = 1 << candidate;
        let others = (config.voters | config.outgoing) & !own;
        for set in (0..1 << REPLICAS_MAX).filter(|set: &Set| set & !others == 0) {
            let is_enough = |set: Set| config.is_majority(set | own);
            let mut members = (0..self.course.replicas).filter(|at| set >> at & 1 == 1);
            // A vote that is not needed only makes its voter deaf to the old leader.
            if !is_enough(set) || members.clone().any(|at| is_enough(set & !(1 << at))) {
                continue;
            }
            let would_vote =
                |at: usize| term + 1 > state.replicas[at].term && log.is_up_to_date_with(state.replicas[at].log);
            if members.all(would_vote) {
                actions.push(Action::Elect { leader: candidate, voters: set });
            }
        }
    }

    fn propose_reads(&self, state: &State, actions: &mut Vec<Action>) {
        let replicas = 0..self.course.replicas;
        let Some(Read { asker, floor, changes, answers, .. }) = state.read else {
            let may_ask = |at: &usize| !state.replicas[*at].leads && state.replicas[*at].log.last() > 0;
            actions.extend(replicas.filter(may_ask).map(|at| Action::Arrive { at }));
            return;
        };
        let config = self.course.config(changes);
        for at in replicas.filter(|&at| answers[at].is_none() && state.replicas[at].log.last() > 0) {
            let counts_itself = at == usize::from(asker) && !self.rules.has(Rule::LearnerAsksMajority);
            if !config.is_voter(at) && !counts_itself {
                continue;
            }
            actions.push(Action::Answer { at, is_by_disk: false });
            if state.restarts_left > 0 && state.replicas[at].disk != state.replicas[at].log {
                actions.push(Action::Answer { at, is_by_disk: true });
            }
            if !self.rules.has(Rule::AnswerById) && at != usize::from(asker) {
                actions.push(Action::AnswerForOther { at });
            }
        }
        if !self.rules.has(Rule::AnswerAfterArrival) && floor < state.committed.key() {
            actions.push(Action::Join);
        }
    }

    /// Entries in a log at most.
    fn room(&self) -> usize {
        usize::from(self.entries).min(ENTRIES_MAX)
    }
}

impl State {
    /// Carries `action` out.
    pub(super) fn take(&mut self, model: &Quorum, action: Action) {
        match action {
            Action::Send { from, to, count } => {
                let Replica { term, log, cut, commit, .. } = self.replicas[from];
                let message = Message { term, log: log.prefix(count), cut, commit: commit.min(count) };
                self.links[from][to].message = Some(message);
            }
            Action::Hear { from, at } => self.hear(model, from, at),
            Action::Sync { at } => self.sync(at),
            Action::Commit { at, index } => {
                self.replicas[at].commit = index;
                self.note_known(self.replicas[at].log.prefix(index));
            }
            Action::Elect { leader, voters } => self.elect(model, leader, voters),
            Action::Write { at } => {
                self.writes_left -= 1;
                let leader = &mut self.replicas[at];
                leader.log.push_key(leader.term);
            }
            Action::Propose { at } => {
                let leader = &mut self.replicas[at];
                leader.log.push_change(leader.term);
            }
            Action::Apply { at } => {
                self.replicas[at].changes += 1;
                self.replicas[at].leads &= self.config(model, at).is_voter(at);
            }
            Action::Cut { at } => self.replicas[at].cut = self.applied(at),
            Action::Restart { at, is_flushed } => self.restart(model, at, is_flushed),
            Action::Arrive { at } => self.arrive(model, at),
            Action::Join => {
                let floor = self.committed.key();
                self.read = self.read.map(|read| Read { floor, ..read });
            }
            Action::Answer { at, is_by_disk } => {
                let Replica { log, disk, cut, .. } = self.replicas[at];
                self.answer(model, at, if is_by_disk { disk } else { log }, cut);
            }
            Action::AnswerForOther { at } => self.answer(model, at, Log::default(), 0),
        }
        if !model.rules.has(Rule::AppliedOnly)
            && let Some((read, index)) = self.read.zip(self.served_at(model))
        {
            self.note_known(self.replicas[usize::from(read.asker)].log.prefix(index));
        }
    }

    fn hear(&mut self, model: &Quorum, from: usize, at: usize) {
        let Some(message) = self.links[from][at].message.take() else { return };
        let replica = &mut self.replicas[at];
        replica.leads &= message.term == replica.term;
        replica.term = message.term;
        let is_empty = replica.log.last() == 0;
        if is_empty || replica.log.common(message.log) < message.cut {
            let first = if is_empty { message.log.index_of_change(model.course.joins(at)) } else { 0 };
            replica.cut = message.cut.max(first);
            replica.log = message.log;
            replica.disk = message.log;
            replica.commit = replica.commit.max(replica.cut);
            replica.changes = replica.changes.max(message.log.prefix(replica.cut).changes());
        }
        replica.log.follow(message.log);
        replica.commit = replica.commit.max(message.commit);
        self.note_known(self.replicas[at].log.prefix(self.replicas[at].commit));
        let is_durable = self.durable(at) >= message.log.last() || !model.rules.has(Rule::SyncedAcknowledgement);
        let leader = self.replicas[from];
        if is_durable && leader.leads && leader.term == message.term {
            let matched = &mut self.links[from][at].matched;
            *matched = message.log.last().max(*matched);
        }
    }

    /// What a replica writes, its vote too, comes after what it wrote before, and its commit index goes along.
    fn sync(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        (replica.disk, replica.kept) = (replica.log, replica.commit);
    }

    fn elect(&mut self, model: &Quorum, leader: usize, voters: Set) {
        let term = self.replicas[leader].term + 1;
        for at in (0..model.course.replicas).filter(|&at| voters >> at & 1 == 1 || at == leader) {
            self.sync(at);
            self.replicas[at].term = term;
            self.replicas[at].leads = at == leader;
        }
        self.replicas[leader].log.push(term);
    }

    fn restart(&mut self, model: &Quorum, at: usize, is_flushed: bool) {
        self.restarts_left -= 1;
        let first = model.course.joins(at);
        let replica = &mut self.replicas[at];
        replica.leads = false;
        replica.log = replica.disk;
        replica.changes = if is_flushed { replica.changes } else { first };
        replica.commit = replica.kept.max(replica.log.index_of_change(replica.changes)).max(replica.cut);
        self.read = self.read.filter(|read| usize::from(read.asker) != at);
        if self.restarts_left == 0 {
            (0..model.course.replicas).for_each(|at| self.sync(at));
        }
    }

    fn arrive(&mut self, model: &Quorum, at: usize) {
        let (after, changes) = (self.applied(at), self.replicas[at].changes);
        let mut answers = [None; REPLICAS_MAX];
        if !model.rules.has(Rule::OwnLogAsked) {
            answers[at] = Some(0);
        }
        self.read = Some(Read { asker: at as u8, floor: self.committed.key(), after, changes, answers });
    }

    fn answer(&mut self, model: &Quorum, at: usize, log: Log, cut: u8) {
        let Some(mut read) = self.read else { return };
        read.answers[at] = self.touched(model, log, cut, read.after);
        self.read = Some(read);
    }

    /// Somebody knows that `log` is committed, and may have shown it to anybody.
    fn note_known(&mut self, log: Log) {
        if self.committed.is_prefix_of(log) {
            self.committed = log;
        } else if !log.is_prefix_of(self.committed) {
            self.is_forked = true;
        }
    }
}
