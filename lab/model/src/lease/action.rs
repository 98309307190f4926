//! What can happen to the replicas of the model of the lease: each action at any moment at which it is possible.

use super::state::{Exchange, Handover, Read, Replica, Stale, State, VOTERS_MAX, Verdict};
use super::{Lease, begun, sending};
use crate::log::ENTRIES_MAX;
use crate::rule::Rule;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The true time goes on by one step, and each clock by so many units.
    Tick {
        /// The units of each replica's clock.
        units: [u8; VOTERS_MAX],
    },
    /// A leader appends a client's write.
    Write {
        /// The leader.
        at: usize,
    },
    /// A leader sends what it has; what it sent to that follower before is lost if it has not arrived.
    Send {
        /// The leader.
        from: usize,
        /// The follower.
        to: usize,
    },
    /// A message arrives at a follower.
    Hear {
        /// The leader that sent it.
        from: usize,
        /// The follower.
        at: usize,
    },
    /// The echo arrives at the leader.
    Echo {
        /// The leader.
        at: usize,
        /// The follower that it comes from.
        from: usize,
    },
    /// A replica campaigns in the next term and is elected by another.
    Elect {
        /// The new leader.
        leader: usize,
        /// Who votes for it.
        voter: usize,
    },
    /// A leader orders another replica to campaign.
    HandOver {
        /// The leader.
        from: usize,
        /// Its successor.
        to: usize,
    },
    /// The successor campaigns and is elected, whatever anybody promised to refuse.
    Succeed {
        /// Who votes for it.
        voter: usize,
    },
    /// A replica stops and starts.
    Restart {
        /// Which one.
        at: usize,
    },
    /// A read, or another replica's question, arrives at a leader that has a lease, and is served at once.
    ReadByLease {
        /// The leader.
        at: usize,
    },
    /// One arrives at a leader that has none.
    ReadWaits {
        /// The leader.
        at: usize,
    },
    /// The read that waits is served.
    Serve,
}

impl Lease {
    /// Lists what can happen in `state`.
    pub(super) fn propose(&self, state: &State, actions: &mut Vec<Action>) {
        let is_running = core::array::from_fn(|at| state.is_timed(self, at));
        if is_running.contains(&true) {
            actions.extend(self.rates.combinations(is_running).map(|units| Action::Tick { units }));
        }
        let pairs = (0..self.voters).flat_map(|one| (0..self.voters).map(move |other| (one, other)));
        for (one, other) in pairs.filter(|(one, other)| one != other) {
            self.propose_between(state, one, other, actions);
        }
        for at in 0..self.voters {
            let replica = &state.replicas[at];
            if replica.leads && !replica.hands_over && replica.log.last() < self.entries {
                actions.push(Action::Write { at });
            }
            if state.restarts_left > 0 {
                actions.push(Action::Restart { at });
            }
            if state.has_lease(self, at) {
                actions.push(Action::ReadByLease { at });
            } else if self.reads && replica.leads && state.read.is_none() {
                actions.push(Action::ReadWaits { at });
            }
        }
        if state.read.is_some_and(|read| state.may_serve(self, read)) {
            actions.push(Action::Serve);
        }
    }

    fn propose_between(&self, state: &State, one: usize, other: usize, actions: &mut Vec<Action>) {
        let leader = &state.replicas[one];
        if leader.leads {
            actions.push(Action::Send { from: one, to: other });
            if state.transfers_left > 0 {
                actions.push(Action::HandOver { from: one, to: other });
            }
        }
        match state.exchanges[one][other] {
            Some(exchange) if exchange.is_heard => actions.push(Action::Echo { at: one, from: other }),
            Some(_) => actions.push(Action::Hear { from: one, at: other }),
            None => {}
        }
        let is_free = !state.is_fenced(self, one) && !state.is_fenced(self, other);
        if is_free && state.may_elect(self, one, other, leader.term + 1) {
            actions.push(Action::Elect { leader: one, voter: other });
        }
        let is_ordered =
            |order: Handover| usize::from(order.to) == one && state.may_elect(self, one, other, order.term + 1);
        if state.handover.is_some_and(is_ordered) {
            actions.push(Action::Succeed { voter: other });
        }
    }
}

impl State {
    /// Whether `leader` can win `term` with the vote of `voter`, but for any refusal.
    fn may_elect(&self, model: &Lease, leader: usize, voter: usize, term: u8) -> bool {
        let (leader, voter) = (&self.replicas[leader], &self.replicas[voter]);
        let has_room = leader.log.last() < model.entries.min(ENTRIES_MAX as u8);
        term <= model.terms && term > voter.term && has_room && leader.log.is_up_to_date_with(voter.log)
    }

    /// Whether anything runs down or up with the clock of `at`.
    fn is_timed(&self, model: &Lease, at: usize) -> bool {
        let Replica { refusal, contact, .. } = self.replicas[at];
        let is_ageing = |exchange: &Exchange| exchange.age < model.lease;
        refusal > 0 || contact < model.lease || self.exchanges[at].iter().flatten().any(is_ageing)
    }

    fn may_serve(&self, model: &Lease, read: Read) -> bool {
        let at = usize::from(read.at);
        let is_proved = read.is_confirmed || self.has_lease(model, at) || !model.rules.has(Rule::QuorumCheck);
        let has_index = !matches!(read.verdict, Verdict::Open { .. });
        is_proved && has_index && self.replicas[at].leads
    }

    /// Carries `action` out.
    pub(super) fn take(&mut self, model: &Lease, action: Action) {
        match action {
            Action::Tick { units } => self.tick(model, units),
            Action::Write { at } => {
                let term = self.replicas[at].term;
                self.replicas[at].log.push(term);
            }
            Action::Send { from, to } => {
                let follows_read = self.read.is_some_and(|read| usize::from(read.at) == from && !read.is_confirmed);
                self.exchanges[from][to] = Some(sending(&self.replicas[from], follows_read));
            }
            Action::Hear { from, at } => self.hear(model, from, at),
            Action::Echo { at, from } => self.take_echo(model, at, from),
            Action::Elect { leader, voter } => {
                let term = self.replicas[leader].term + 1;
                self.elect(model, leader, voter, term);
            }
            Action::HandOver { from, to } => {
                self.transfers_left -= 1;
                self.replicas[from].hands_over = true;
                self.handover = Some(Handover { to: to as u8, term: self.replicas[from].term });
            }
            Action::Succeed { voter } => {
                if let Some(Handover { to, term }) = self.handover.take() {
                    self.elect(model, usize::from(to), voter, term + 1);
                }
            }
            Action::Restart { at } => {
                self.restarts_left -= 1;
                self.end_leadership(model, at);
                self.read = self.read.filter(|read| usize::from(read.at) != at);
                self.replicas[at].refusal = if model.rules.has(Rule::RestartFence) { model.refusal } else { 0 };
            }
            Action::ReadByLease { at } => {
                let (served, floor) = (self.replicas[at].commit, self.known());
                self.stale = (served < floor).then_some(Stale { served, floor });
            }
            Action::ReadWaits { at } => self.add_read(model, at),
            Action::Serve => {
                if let Some(Read { verdict: Verdict::Misses(stale), .. }) = self.read.take() {
                    self.stale = Some(stale);
                }
            }
        }
    }

    fn tick(&mut self, model: &Lease, units: [u8; VOTERS_MAX]) {
        for (at, units) in units.into_iter().enumerate() {
            let replica = &mut self.replicas[at];
            replica.refusal = replica.refusal.saturating_sub(units);
            // A contact that gives no lease by its age still gives one to a leader that does not look at the age.
            if replica.contact < model.lease {
                replica.contact = (replica.contact + units).min(model.lease);
            }
            for exchange in self.exchanges[at].iter_mut().flatten() {
                exchange.age = (exchange.age + units).min(model.lease);
            }
        }
    }

    fn hear(&mut self, model: &Lease, from: usize, at: usize) {
        let Some(message) = self.exchanges[from][at] else { return };
        if message.term > self.replicas[at].term {
            self.end_leadership(model, at);
        }
        let follower = &mut self.replicas[at];
        follower.term = message.term;
        follower.log.follow(message.log);
        follower.commit = follower.commit.max(message.commit);
        if model.rules.has(Rule::VoteFence) {
            follower.refusal = model.refusal;
        }
        self.exchanges[from][at] = Some(Exchange { is_heard: true, commit: 0, ..message });
    }

    fn take_echo(&mut self, model: &Lease, at: usize, from: usize) {
        let Some(echo) = self.exchanges[at][from].take() else { return };
        let leader = &mut self.replicas[at];
        let age = if model.rules.has(Rule::LeaseFromSending) { echo.age } else { 0 };
        leader.contact = leader.contact.min(age);
        let matched = echo.log.last();
        if matched > leader.commit && leader.log.term(matched) == leader.term {
            leader.commit = matched;
        }
        let commit = leader.commit;
        if self.has_own_commit(model, at) {
            self.give_index(at, commit);
        }
        if let Some(read) = self.read.as_mut().filter(|_| echo.follows_read) {
            read.is_confirmed = true;
        }
    }

    fn elect(&mut self, model: &Lease, leader: usize, voter: usize, term: u8) {
        self.end_leadership(model, voter);
        self.end_leadership(model, leader);
        self.replicas[voter].term = term;
        let replica = &mut self.replicas[leader];
        replica.term = term;
        replica.leads = true;
        replica.log = begun(replica.log, term);
    }

    fn end_leadership(&mut self, model: &Lease, at: usize) {
        let replica = &mut self.replicas[at];
        replica.leads = false;
        replica.hands_over = false;
        replica.contact = model.no_contact();
        if model.rules.has(Rule::ReadsEndWithLeadership) {
            self.read = self.read.filter(|read| usize::from(read.at) != at);
        }
    }

    fn add_read(&mut self, model: &Lease, at: usize) {
        let verdict = Verdict::Open { floor: self.known() };
        self.read = Some(Read { at: at as u8, verdict, is_confirmed: false });
        if self.has_own_commit(model, at) {
            self.give_index(at, self.replicas[at].commit);
        }
    }

    /// A read that waits at `at` without an index gets `served`.
    fn give_index(&mut self, at: usize, served: u8) {
        let Some(read) = self.read.as_mut().filter(|read| usize::from(read.at) == at) else { return };
        if let Verdict::Open { floor } = read.verdict {
            read.verdict = if served < floor { Verdict::Misses(Stale { served, floor }) } else { Verdict::Covers };
        }
    }
}
