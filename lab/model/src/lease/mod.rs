//! The model of elections, leases and the proof of leadership: a leader never gives away an index that misses anything known.
//!
//! What it consists of stands in [`state`], what can happen in [`action`]. Time is a step that every clock makes at a rate
//! of its own; timers run down or up with it and stop at their ends, so that the model needs no end of time.
//!
//! Everything that anybody knows to be committed counts as acknowledged and as shown to somebody at once: that is the worst
//! environment that a read can meet. So a promise is kept if the index that a leader gives away is at least [`State::known`]
//! of the moment when the read, or the question of another replica, arrived.

pub mod action;
pub mod state;

use crate::clock::Rates;
use crate::log::Log;
use crate::product;
use crate::rule::{Rule, Rules};
use action::Action;
use state::{Exchange, Replica, State, VOTERS_MAX};
use stateright::{Model, Property};

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Voters: 2 or 3. A majority is the leader and one more.
    pub voters: usize,
    /// The last term.
    pub terms: u8,
    /// Entries in a log at most; every leader begins with one.
    pub entries: u8,
    /// Restarts of a replica.
    pub restarts: u8,
    /// Transfers of the leadership.
    pub transfers: u8,
    /// Whether reads wait for a majority.
    pub reads: bool,
    /// The bounds of the clocks' rates. Each clock may change its rate with every step.
    pub rates: Rates,
    /// How long a voter refuses to vote, in units of its own clock.
    pub refusal: u8,
    /// How long a lease lasts, in units of the leader's clock.
    pub lease: u8,
    /// The rules in force.
    pub rules: Rules,
    /// Whether states that differ only in the names of the replicas count as one; no promise depends on the names.
    pub is_symmetric: bool,
    /// Whether to look only for a broken promise.
    pub hunts: bool,
}

impl Lease {
    /// A model with all rules and clocks within their bounds.
    pub fn new(voters: usize, terms: u8, entries: u8) -> Self {
        assert!((2..=VOTERS_MAX).contains(&voters), "a majority must be the leader and one more");
        Self {
            voters,
            terms,
            entries,
            restarts: 0,
            transfers: 0,
            reads: true,
            rates: Rates::declared(),
            refusal: product::refusal(),
            lease: product::lease(),
            rules: Rules::ALL,
            is_symmetric: true,
            hunts: false,
        }
    }

    /// The same model without a rule, looking for a broken promise.
    pub fn without(self, rule: Rule) -> Self {
        let lease = if rule == Rule::LeaseAllowsForRates { product::lease_of_exact_clocks() } else { self.lease };
        Self { rules: Rules::without(rule), lease, ..self.hunting() }
    }

    /// The same model, looking for a broken promise on the shortest way.
    pub fn hunting(self) -> Self {
        Self { hunts: true, ..self }
    }

    /// How one gets from each of these states to the next, with every replica keeping its name on the way.
    pub fn retrace(&self, states: &[State]) -> Vec<(Action, State)> {
        let named = Self { is_symmetric: false, ..*self };
        let mut steps: Vec<(Action, State)> = Vec::new();
        for &target in states.iter().skip(1) {
            let state = steps.last().map_or_else(|| self.start(), |&(_, state)| state);
            let leads_there = |step: &(Action, State)| step.1.is_like(target);
            let step = named.next_steps(&state).into_iter().find(leads_there);
            steps.push(step.expect("what the symmetric model can do, the other can do under some names"));
        }
        steps
    }

    /// The value of [`Replica::contact`] from which on it gives no lease. Any older contact counts as none.
    pub fn no_contact(&self) -> u8 {
        if self.rules.has(Rule::LeaseEnds) { self.lease } else { self.lease + 1 }
    }

    fn start(&self) -> State {
        let mut replicas = [Replica::default(); VOTERS_MAX];
        replicas[..self.voters].fill(Replica { term: 1, contact: self.no_contact(), ..Replica::default() });
        replicas[0].leads = true;
        replicas[0].log.push(1);
        State {
            replicas,
            exchanges: [[None; VOTERS_MAX]; VOTERS_MAX],
            handover: None,
            read: None,
            restarts_left: self.restarts,
            transfers_left: self.transfers,
            stale: None,
        }
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.stale.is_none() {
            self.propose(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        next.take(self, action);
        next.forget_dead(self);
        let next = if self.is_symmetric { next.sorted(self.voters) } else { next };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let promise =
            Property::always("no read misses what was acknowledged or shown before it", |_, state: &State| {
                state.stale.is_none()
            });
        if self.hunts {
            return vec![promise];
        }
        let mut properties = vec![
            promise,
            Property::always("committed entries are the same everywhere", |_, state: &State| state.agrees()),
            Property::always("whoever a lease counts on refuses", |model, state: &State| state.keeps_promises(model)),
            Property::sometimes("a leader serves by its lease", |model, state: &State| {
                (0..model.voters).any(|replica| state.has_lease(model, replica))
            }),
            Property::sometimes("a later leader serves by its lease", |model, state: &State| {
                (0..model.voters).any(|replica| state.replicas[replica].term > 1 && state.has_lease(model, replica))
            }),
        ];
        // Of two voters, the one that leads must vote for the other, and so learns of it.
        if self.voters > 2 {
            properties.push(Property::sometimes("two replicas believe that they lead", |_, state: &State| {
                state.replicas.iter().filter(|replica| replica.leads).count() > 1
            }));
        }
        if self.reads {
            properties.push(Property::sometimes("a majority proves a read", |_, state: &State| {
                state.read.is_some_and(|read| read.is_confirmed)
            }));
        }
        properties
    }
}

impl State {
    /// Whether every follower whose echo gives, or could still give, its leader a lease refuses to vote: all that the
    /// model of the group ([`crate::group`]) knows of time.
    fn keeps_promises(&self, model: &Lease) -> bool {
        (0..model.voters).filter(|&leader| self.replicas[leader].leads).all(|leader| {
            let followers = || (0..model.voters).filter(move |&follower| follower != leader);
            let refuses = |follower: usize| self.replicas[follower].refusal > 0;
            let gives_lease =
                |echo: &Exchange| echo.is_heard && echo.age < model.lease && echo.term == self.replicas[leader].term;
            let is_counted = self.replicas[leader].contact < model.lease;
            (!is_counted || followers().any(refuses))
                && followers().all(|it| refuses(it) || !self.exchanges[leader][it].as_ref().is_some_and(gives_lease))
        })
    }

    /// Whether no two replicas know different entries to be committed.
    fn agrees(&self) -> bool {
        let committed = |replica: &Replica| replica.log.prefix(replica.commit);
        let longest = self.replicas.iter().max_by_key(|replica| replica.commit).map(committed).unwrap_or_default();
        self.replicas.iter().all(|replica| longest.prefix(replica.commit) == committed(replica))
    }
}

/// A message that leaves a leader now.
fn sending(leader: &Replica, follows_read: bool) -> Exchange {
    Exchange { term: leader.term, log: leader.log, commit: leader.commit, is_heard: false, age: 0, follows_read }
}

/// The log that a new leader of `term` begins with.
fn begun(mut log: Log, term: u8) -> Log {
    log.push(term);
    log
}
