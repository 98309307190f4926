//! The model of the whole group: joint memberships and learners as `pure/replication` changes them, majorities of any size, and
//! reads all the way from the replica that they arrive at.
//!
//! What it consists of stands in [`state`], what can happen in [`action`], which memberships there are in [`course`]. Instead of
//! clocks it has what the model of the lease ([`crate::lease`]) shows of them: *whoever a lease counts on refuses to vote*. A
//! replica whose echo gives its leader a lease, or would if it came now, helps to elect nobody; when an echo grows too old, and
//! who refuses for longer than anybody counts on, is left open. So there is no time here, and a majority is a set of replicas.
//!
//! As in the product, a change of the membership counts for a replica once it has *applied* its entry, some time after it knows
//! it to be committed; so replicas have different memberships at one time, and what a restart forgets matters. A voter that is
//! lost for good is one that does nothing any more, which every replica may do at any time.

pub mod action;
pub mod course;
pub mod state;

use crate::links::Links;
use crate::log::Log;
use crate::rule::{Rule, Rules};
use action::Action;
use course::{Course, REPLICAS_MAX};
use state::{Replica, State};
use stateright::{Model, Property};

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The memberships.
    pub course: Course,
    /// The last term.
    pub terms: u8,
    /// Entries in a log at most: every leader begins with one, and every change is one.
    pub entries: u8,
    /// Writes of clients. Entries that begin a term or change the membership are writes, too.
    pub writes: u8,
    /// Restarts of a replica.
    pub restarts: u8,
    /// Transfers of the leadership.
    pub transfers: u8,
    /// Whether reads wait at leaders for a majority.
    pub reads: bool,
    /// Whether reads arrive at replicas that do not lead, and ask.
    pub asks: bool,
    /// Only states at most so many steps from the first; `None` for all.
    pub depth: Option<usize>,
    /// The rules in force.
    pub rules: Rules,
    /// Whether states that differ only in the names of replicas with the same part count as one.
    pub is_symmetric: bool,
    /// Whether to look only for a broken promise.
    pub hunts: bool,
}

impl Group {
    /// A model with all rules.
    pub fn new(course: Course, terms: u8, entries: u8) -> Self {
        Self {
            course,
            terms,
            entries,
            writes: 0,
            restarts: 0,
            transfers: 0,
            reads: false,
            asks: false,
            depth: None,
            rules: Rules::ALL,
            is_symmetric: true,
            hunts: false,
        }
    }

    /// The same model without a rule, looking for a broken promise.
    pub fn without(self, rule: Rule) -> Self {
        Self { rules: Rules::without(rule), hunts: true, ..self }
    }

    /// How one gets from each of these states to the next, with every replica keeping its name on the way.
    pub fn retrace(&self, states: &[State]) -> Vec<(Action, State)> {
        let named = Self { is_symmetric: false, ..*self };
        let orders = self.course.orders();
        let mut steps: Vec<(Action, State)> = Vec::new();
        for &target in states.iter().skip(1) {
            let state = steps.last().map_or_else(|| self.start(), |&(_, state)| state);
            let is_target = |state: State| orders.iter().any(|&order| state.renamed(order) == target);
            let step = named.next_steps(&state).into_iter().find(|&(_, state)| is_target(state));
            steps.push(step.expect("what the symmetric model can do, the other can do under some names"));
        }
        steps
    }

    /// Whether no change follows after so many.
    fn is_last(&self, changes: u8) -> bool {
        usize::from(changes) + 1 == self.course.configs.len()
    }

    fn start(&self) -> State {
        let mut replicas = [Replica::default(); REPLICAS_MAX];
        let founders =
            (0..self.course.replicas).filter(|&at| self.course.joins(at) == 0 && self.course.config(0).is_voter(at));
        founders.for_each(|at| replicas[at].term = 1);
        let mut log = Log::default();
        log.push(1);
        for (at, replica) in replicas.iter_mut().enumerate().filter(|(_, replica)| replica.term == 1) {
            replica.log = log;
            replica.leads = at == 0;
        }
        State {
            replicas,
            links: Links::default(),
            committed: Log::default(),
            handover: None,
            read: None,
            writes_left: self.writes,
            restarts_left: self.restarts,
            transfers_left: self.transfers,
            stale: None,
            is_forked: false,
        }
    }
}

impl Model for Group {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // After a broken promise nothing happens any more.
        if !state.is_broken(self) {
            self.propose(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        next.take(self, action);
        next.forget_dead(self);
        let next = if self.is_symmetric { next.sorted(self) } else { next };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("at most one replica has a lease", |model, state: &State| {
                state.holders(model).count() <= 1
            }),
            Property::always("whoever has a lease knows all that is known to be committed", |model, state: &State| {
                state.holders(model).all(|at| state.replicas[at].commit >= state.known())
            }),
            Property::always("no read misses what was acknowledged or shown before it", |_, state: &State| {
                state.stale.is_none()
            }),
            Property::always("committed entries are the same everywhere", |_, state: &State| !state.is_forked),
        ];
        if self.hunts {
            return properties;
        }
        properties.push(Property::sometimes("a later leader has a lease", |model, state: &State| {
            state.holders(model).any(|at| state.replicas[at].term > 1)
        }));
        if self.course.configs.iter().any(|config| config.outgoing != 0) {
            properties
                .push(Property::sometimes("a leader has a lease in a joint membership", |model, state: &State| {
                    state.holders(model).any(|at| state.config(model, at).outgoing != 0)
                }));
        }
        if self.course.configs.len() > 1 && self.depth.is_none() {
            properties
                .push(Property::sometimes("a leader has a lease in the last membership", |model, state: &State| {
                    state.holders(model).any(|at| model.is_last(state.replicas[at].changes))
                }));
        }
        if self.reads {
            properties.push(Property::sometimes("a read waits at a leader that was succeeded", |_, state: &State| {
                let at = match state.read.map(|read| read.stage) {
                    Some(state::Stage::Waits { at, .. }) => usize::from(at),
                    _ => return false,
                };
                state.replicas.iter().any(|other| other.leads && other.term > state.replicas[at].term)
            }));
        }
        if self.asks {
            properties.push(Property::sometimes("a question is answered", |_, state: &State| {
                state.read.is_some_and(|read| matches!(read.stage, state::Stage::Answered { .. }))
            }));
        }
        properties
    }
}
