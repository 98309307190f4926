//! What can happen to the replicas of the model of the group: each action at any moment at which it is possible.

use super::Group;
use super::course::{REPLICAS_MAX, Set};
use super::state::{Link, Message, Read, Replica, Stage, State};
use crate::lease::state::{Handover, Stale};
use crate::log::{ENTRIES_MAX, Log};
use crate::rule::Rule;

/// One step. In brackets: the functions of `pure/replication` that it stands for, and of the crate `raft` below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// So much time passes that an echo of `of` gives `leader` no lease any more: the one that it counts on or, if it counts on
    /// none, the one that is on its way. (`Group::lease_runs` with a later `now`.)
    Expire {
        /// The leader.
        leader: usize,
        /// Whose echo.
        of: usize,
    },
    /// A leader sends what it has; what it sent there before is lost if it has not arrived. (`Group::poll_ready`: appends,
    /// heartbeats, and snapshots for a replica that holds nothing.)
    Send {
        /// The leader.
        from: usize,
        /// The replica.
        to: usize,
    },
    /// A message arrives. (`Group::handle_message`, `Contact::hear`; `Group::handle_snapshot_received`.)
    Hear {
        /// The leader that sent it.
        from: usize,
        /// The replica.
        at: usize,
    },
    /// The echo arrives at the leader. (`Group::handle_message`, `Contact::take_echo`.)
    Echo {
        /// The leader.
        at: usize,
        /// The replica that it comes from.
        from: usize,
    },
    /// A replica campaigns in the next term and is elected. (`Group::campaign`, `Group::admits`; `Raft::hup`.)
    Elect {
        /// The new leader.
        leader: usize,
        /// Who votes for it.
        voters: Set,
    },
    /// A leader orders another replica to campaign. (`Group::transfer_leader`.)
    HandOver {
        /// The leader.
        from: usize,
        /// Its successor.
        to: usize,
    },
    /// The successor campaigns and is elected, whatever anybody promised to refuse. (`Group::admits_timeout_now`, `Raft::hup`.)
    Succeed {
        /// Who votes for it.
        voters: Set,
    },
    /// A leader appends a client's write. (`Group::propose`.)
    Write {
        /// The leader.
        at: usize,
    },
    /// A leader appends the next change of the membership, or the end of a joint one. (`Group::propose_membership`,
    /// `Group::tick`; `Raft::commit_apply` for the end.)
    Propose {
        /// The leader.
        at: usize,
    },
    /// A replica applies the next change that it knows to be committed. (`Group::handle_membership_applied`.)
    Apply {
        /// Which one.
        at: usize,
    },
    /// A replica stops and starts. (`Group::new` with `Start::is_restart`.)
    Restart {
        /// Which one.
        at: usize,
        /// Whether its storage holds all that it had applied, or only what it began with.
        is_flushed: bool,
    },
    /// A replica that lost its data comes back empty under its old id: only without the rule.
    ComeBackEmpty {
        /// Which one.
        at: usize,
    },
    /// A read arrives at a leader that has no lease. (`Group::read`.)
    ReadWaits {
        /// The leader.
        at: usize,
    },
    /// A read arrives at a replica that does not lead. (`Group::read`.)
    Arrive {
        /// Which one.
        at: usize,
    },
    /// A later read joins the question of the one that is there: only without the rule.
    Join,
    /// The question leaves. (`Group::ask`.)
    Ask,
    /// The question arrives at the leader of its term. (`Group::handle_question`.)
    Question {
        /// The leader.
        at: usize,
    },
    /// The answer arrives, and the read is served once its index is applied. (`Group::handle_answer`, `Group::poll_reads`.)
    Answer,
}

impl Group {
    /// Lists what can happen in `state`.
    pub(super) fn propose(&self, state: &State, actions: &mut Vec<Action>) {
        let count = self.course.replicas;
        for one in 0..count {
            for other in (0..count).filter(|&other| other != one) {
                self.propose_between(state, one, other, actions);
            }
            self.propose_at(state, one, actions);
            self.propose_elections(state, one, actions);
        }
        self.propose_reads(state, actions);
    }

    fn propose_between(&self, state: &State, one: usize, other: usize, actions: &mut Vec<Action>) {
        let leader = &state.replicas[one];
        let config = state.config(self, one);
        let link = &state.links[one][other];
        if leader.leads && config.contains(other) {
            actions.push(Action::Send { from: one, to: other });
        }
        if leader.leads && state.transfers_left > 0 && config.is_voter(other) {
            actions.push(Action::HandOver { from: one, to: other });
        }
        if link.counts || link.message.is_some_and(|message| message.is_fresh) {
            actions.push(Action::Expire { leader: one, of: other });
        }
        match link.message {
            Some(message) if message.is_heard => actions.push(Action::Echo { at: one, from: other }),
            Some(_) => actions.push(Action::Hear { from: one, at: other }),
            None => {}
        }
    }

    fn propose_at(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let replica = &state.replicas[at];
        if replica.leads && !replica.hands_over && self.may_propose(replica) {
            actions.push(Action::Propose { at });
        }
        if replica.leads
            && !replica.hands_over
            && state.writes_left > 0
            && usize::from(replica.log.last()) < self.room()
        {
            actions.push(Action::Write { at });
        }
        if replica.changes < replica.log.prefix(replica.commit).changes() {
            actions.push(Action::Apply { at });
        }
        if state.restarts_left == 0 || replica.log.last() == 0 {
            return;
        }
        actions.push(Action::Restart { at, is_flushed: true });
        if replica.changes > self.course.joins(at) {
            actions.push(Action::Restart { at, is_flushed: false });
        }
        if !self.rules.has(Rule::NewId) {
            actions.push(Action::ComeBackEmpty { at });
        }
    }

    /// Whether a leader may append the next change: those before it are applied, and so is everything that it had in its log
    /// when it was elected (`Raft::has_pending_conf`).
    fn may_propose(&self, leader: &Replica) -> bool {
        let Replica { log, term, commit, changes, .. } = *leader;
        let appended = log.changes();
        let has_room = usize::from(appended) + 1 < self.course.configs.len() && usize::from(log.last()) < self.room();
        let applied = match log.index_of_change(changes + 1) {
            unapplied if unapplied != 0 && unapplied <= commit => unapplied - 1,
            _ => commit,
        };
        let inherited = (1..=log.last()).rev().find(|&index| log.term(index) < term).unwrap_or_default();
        let pending = log.index_of_change(appended).max(inherited);
        has_room && (applied >= pending || !self.rules.has(Rule::OneChangeAtATime))
    }

    fn propose_elections(&self, state: &State, candidate: usize, actions: &mut Vec<Action>) {
        let replica = &state.replicas[candidate];
        let config = state.config(self, candidate);
        let has_pending = replica.changes < replica.log.prefix(replica.commit).changes();
        let may_campaign = !replica.leads
            && replica.log.last() > 0
            && config.is_voter(candidate)
            && usize::from(replica.log.last()) < self.room()
            && !(has_pending && self.rules.has(Rule::CampaignAfterApplying));
        if !may_campaign {
            return;
        }
        let ordered = state.handover.filter(|order| usize::from(order.to) == candidate).map(|order| order.term + 1);
        let own = 1 << candidate;
        let others = (config.voters | config.outgoing) & !own;
        let free = replica.term + 1;
        for set in (0..1 << REPLICAS_MAX).filter(|set: &Set| set & !others == 0) {
            let is_enough = |set: Set| state.may_elect(self, candidate, set | own);
            let mut members = (0..self.course.replicas).filter(|at| set >> at & 1 == 1);
            // A vote that is not needed only makes its voter deaf to the old leader.
            if !is_enough(set) || members.clone().any(|at| is_enough(set & !(1 << at))) {
                continue;
            }
            let would_vote = |term: u8, at: usize| {
                let voter = &state.replicas[at];
                term > voter.term && replica.log.is_up_to_date_with(voter.log)
            };
            if free <= self.terms
                && !state.is_bound(self, candidate)
                && members.clone().all(|at| would_vote(free, at) && !state.is_bound(self, at))
            {
                actions.push(Action::Elect { leader: candidate, voters: set });
            }
            if let Some(term) = ordered
                && term <= self.terms
                && members.all(|at| would_vote(term, at))
            {
                actions.push(Action::Succeed { voters: set });
            }
        }
    }

    fn propose_reads(&self, state: &State, actions: &mut Vec<Action>) {
        let replicas = || 0..self.course.replicas;
        let Some(read) = state.read else {
            if self.reads {
                let waits = |at: &usize| state.replicas[*at].leads && !state.has_lease(self, *at);
                actions.extend(replicas().filter(waits).map(|at| Action::ReadWaits { at }));
            }
            if self.asks {
                let follows = |at: &usize| !state.replicas[*at].leads && state.replicas[*at].log.last() > 0;
                actions.extend(replicas().filter(follows).map(|at| Action::Arrive { at }));
            }
            return;
        };
        match read.stage {
            Stage::Gathered => actions.push(Action::Ask),
            Stage::Asked { term } => {
                let is_addressed = |at: &usize| state.replicas[*at].leads && state.replicas[*at].term == term;
                actions.extend(replicas().filter(is_addressed).map(|at| Action::Question { at }));
            }
            Stage::Waits { .. } => {}
            Stage::Answered { .. } => actions.push(Action::Answer),
        }
        let has_left = read.asker.is_some() && read.stage != Stage::Gathered;
        if has_left && !self.rules.has(Rule::JoinBeforeLeaving) && read.floor < state.known() {
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
    pub(super) fn take(&mut self, model: &Group, action: Action) {
        match action {
            Action::Expire { leader, of } => self.expire(leader, of),
            Action::Send { from, to } => self.send(from, to),
            Action::Hear { from, at } => self.hear(model, from, at),
            Action::Echo { at, from } => self.take_echo(model, at, from),
            Action::Elect { leader, voters } => {
                let term = self.replicas[leader].term + 1;
                self.elect(model, leader, voters, term);
            }
            Action::HandOver { from, to } => {
                self.transfers_left -= 1;
                self.replicas[from].hands_over = true;
                self.handover = Some(Handover { to: to as u8, term: self.replicas[from].term });
            }
            Action::Succeed { voters } => {
                if let Some(Handover { to, term }) = self.handover.take() {
                    self.elect(model, usize::from(to), voters, term + 1);
                }
            }
            Action::Write { at } => {
                self.writes_left -= 1;
                let leader = &mut self.replicas[at];
                leader.log.push(leader.term);
                self.commit(model, at);
            }
            Action::Propose { at } => {
                let leader = &mut self.replicas[at];
                leader.log.push_change(leader.term);
                self.commit(model, at);
            }
            Action::Apply { at } => self.apply(model, at),
            Action::Restart { at, is_flushed } => self.restart(model, at, is_flushed),
            Action::ComeBackEmpty { at } => {
                self.restarts_left -= 1;
                self.end_leadership(at);
                self.replicas[at] = Replica { forgot: true, ..Replica::default() };
            }
            Action::ReadWaits { at } => {
                let read = Read {
                    asker: None,
                    floor: self.known(),
                    stage: Stage::Waits { at: at as u8, index: None, is_proved: false },
                };
                self.read = Some(read);
            }
            Action::Arrive { at } => {
                self.read = Some(Read { asker: Some(at as u8), floor: self.known(), stage: Stage::Gathered });
            }
            Action::Join => {
                let floor = self.known();
                self.read = self.read.map(|read| Read { floor, ..read });
            }
            Action::Ask => {
                let replicas = &self.replicas;
                let asked = |asker: u8| Stage::Asked { term: replicas[usize::from(asker)].term };
                self.read = self.read.map(|read| Read { stage: read.asker.map_or(read.stage, asked), ..read });
            }
            Action::Question { at } => {
                let stage = Stage::Waits { at: at as u8, index: None, is_proved: false };
                self.read = self.read.map(|read| Read { stage, ..read });
            }
            Action::Answer => self.take_answer(model),
        }
        self.settle_read(model);
    }

    fn expire(&mut self, leader: usize, of: usize) {
        let Link { counts, message, .. } = &mut self.links[leader][of];
        // What it counts on was sent before what is on its way.
        if core::mem::take(counts) {
            return;
        }
        if let Some(message) = message {
            message.is_fresh = false;
        }
    }

    fn send(&mut self, from: usize, to: usize) {
        let Replica { term, log, commit, .. } = self.replicas[from];
        let message = Message { term, log, index: commit, is_heard: false, is_fresh: true, follows_read: true };
        self.links[from][to].message = Some(message);
    }

    fn hear(&mut self, model: &Group, from: usize, at: usize) {
        let Some(message) = self.links[from][at].message else { return };
        if message.term > self.replicas[at].term {
            self.end_leadership(at);
        }
        let replica = &mut self.replicas[at];
        replica.term = message.term;
        let is_empty = replica.log.last() == 0;
        replica.log.follow(message.log);
        if is_empty {
            // Its first snapshot, which may be as old as a snapshot for it can be. What it has not applied yet comes after it.
            replica.changes = model.course.joins(at);
            replica.commit = replica.log.index_of_change(replica.changes);
        }
        replica.commit = replica.commit.max(message.index);
        replica.forgot = false;
        self.note_committed(at);
        let heard = Message { is_heard: true, index: message.log.last(), log: Log::default(), ..message };
        self.links[from][at].message = Some(heard);
    }

    fn take_echo(&mut self, model: &Group, at: usize, from: usize) {
        let link = &mut self.links[at][from];
        let Some(echo) = link.message.take() else { return };
        link.matched = link.matched.max(echo.index);
        link.counts |= echo.is_fresh;
        link.proves |= echo.follows_read;
        self.commit(model, at);
    }

    fn elect(&mut self, model: &Group, leader: usize, voters: Set, term: u8) {
        for at in (0..model.course.replicas).filter(|&at| voters >> at & 1 == 1 || at == leader) {
            self.end_leadership(at);
            self.replicas[at].term = term;
        }
        let replica = &mut self.replicas[leader];
        replica.leads = true;
        replica.log.push(term);
        self.commit(model, leader);
    }

    fn apply(&mut self, model: &Group, at: usize) {
        let replica = &mut self.replicas[at];
        replica.changes += 1;
        replica.forgot |= !model.rules.has(Rule::RefusalOutlivesChange);
        if !self.replicas[at].leads {
            return;
        }
        if self.config(model, at).is_voter(at) {
            self.commit(model, at);
        } else {
            self.end_leadership(at);
        }
    }

    fn restart(&mut self, model: &Group, at: usize, is_flushed: bool) {
        self.restarts_left -= 1;
        self.end_leadership(at);
        if self.read.is_some_and(|read| read.asker == Some(at as u8)) {
            self.read = None;
        }
        let first = model.course.joins(at);
        let replica = &mut self.replicas[at];
        replica.changes = if is_flushed { replica.changes } else { first };
        let told = if model.rules.has(Rule::LogTellsChanges) { replica.log.changes().saturating_sub(1) } else { 0 };
        replica.commit = replica.log.index_of_change(replica.changes.max(told));
        replica.forgot |= !model.rules.has(Rule::RestartFence);
    }

    /// A leader commits what a majority has.
    fn commit(&mut self, model: &Group, at: usize) {
        let Replica { log, term, commit, .. } = self.replicas[at];
        let is_committed = |&index: &u8| {
            log.term(index) == term
                && self.is_committed_by(model, at, self.those(model, at, |link| link.matched >= index))
        };
        if let Some(index) = (commit + 1..=log.last()).rev().find(is_committed) {
            self.replicas[at].commit = index;
            self.note_committed(at);
        }
    }

    fn note_committed(&mut self, at: usize) {
        let Replica { log, commit, .. } = self.replicas[at];
        let committed = log.prefix(commit);
        if self.committed.is_prefix_of(committed) {
            self.committed = committed;
        } else if !committed.is_prefix_of(self.committed) {
            self.is_forked = true;
        }
    }

    fn end_leadership(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        replica.leads = false;
        replica.hands_over = false;
        if matches!(self.read, Some(Read { stage: Stage::Waits { at: waits_at, .. }, .. }) if usize::from(waits_at) == at)
        {
            self.read = None;
        }
    }

    /// A read that waits at a leader gets its index, and goes on once that is proved.
    fn settle_read(&mut self, model: &Group) {
        let Some(Read { asker, floor, stage: Stage::Waits { at, index, is_proved } }) = self.read else { return };
        let leader = usize::from(at);
        let own = self.has_own_commit(model, leader).then(|| self.replicas[leader].commit);
        let index = index.or(own);
        let is_proved = is_proved || self.has_lease(model, leader) || self.is_heard_by_majority(model, leader);
        self.read = match (asker, index) {
            (None, Some(index)) if is_proved => {
                self.judge(index, floor);
                None
            }
            (Some(_), Some(index)) if is_proved => Some(Read { asker, floor, stage: Stage::Answered { index } }),
            _ => Some(Read { asker, floor, stage: Stage::Waits { at, index, is_proved } }),
        };
    }

    fn take_answer(&mut self, model: &Group) {
        let Some(Read { asker: Some(asker), floor, stage: Stage::Answered { index } }) = self.read.take() else {
            return;
        };
        // It is served with the least that it may be.
        let served =
            if model.rules.has(Rule::FollowerApplyWait) { index } else { self.replicas[usize::from(asker)].commit };
        self.judge(served, floor);
    }

    fn judge(&mut self, served: u8, floor: u8) {
        self.stale = (served < floor).then_some(Stale { served, floor });
    }
}
