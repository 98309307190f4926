//! The model of quorum reads: a replica that does not lead serves a key by what a majority of logs says, without the leader.
//!
//! It asks the voters of the membership that it has applied whether the key is touched after the index that it has applied.
//! An answer says where it is touched last; a majority that says "nowhere", or at an index that is applied by now, lets it serve.
//! Decision 018 has the rule in words. What the model consists of stands in [`state`], what can happen in [`action`]; its
//! memberships are those of [`crate::group`].
//!
//! There are no leases and no clocks here: anybody who is up to date may be elected at any moment. Logs diverge, are cut and
//! replaced by snapshots, and lose at a restart what is not durable. As in the other models, what anybody knows to be committed
//! counts as shown. A question and its answer have no message of their own: a voter answers at any time after the question
//! left, and the asking replica serves at any time after that.
//!
//! States in which the read can miss nothing are not told from those without one, so the read is there only as long as it is in
//! danger; what quorum reads can do is a property of the states themselves.

pub mod action;
pub mod state;

use crate::group::course::{Course, REPLICAS_MAX, Set};
use crate::links::Links;
use crate::log::Log;
use crate::rule::{Rule, Rules};
use action::Action;
use state::{Replica, State};
use stateright::{Model, Property};

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Quorum {
    /// The memberships.
    pub course: Course,
    /// The last term.
    pub terms: u8,
    /// Entries in a log at most: every leader begins with one, and every change is one.
    pub entries: u8,
    /// Writes of the key. All other entries stand for writes of other keys.
    pub writes: u8,
    /// Restarts of a replica. With them there is a difference between what is in a log and what is durable.
    pub restarts: u8,
    /// Whether logs are cut.
    pub cuts: bool,
    /// Whether leaders send beginnings of their logs, too, and not only all of them.
    pub sends_parts: bool,
    /// Only states at most so many steps from the first; `None` for all.
    pub depth: Option<usize>,
    /// The rules in force.
    pub rules: Rules,
    /// Whether states that differ only in the names of replicas with the same part count as one.
    pub is_symmetric: bool,
    /// Whether to look only for a broken promise.
    pub hunts: bool,
}

impl Quorum {
    /// A model with all rules and one write.
    pub fn new(course: Course, terms: u8, entries: u8) -> Self {
        Self {
            course,
            terms,
            entries,
            writes: 1,
            restarts: 0,
            cuts: false,
            sends_parts: false,
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

    /// Whether the answers of `set` are enough for `asker`, which has applied so many changes: a majority of the voters, of both
    /// halves in a joint membership, each counted by its own answer.
    pub fn is_quorum(&self, changes: u8, asker: usize, set: Set) -> bool {
        let config = self.course.config(changes);
        let counts_itself = !self.rules.has(Rule::LearnerAsksMajority) && !config.is_voter(asker);
        let itself = if counts_itself { set >> asker & 1 } else { 0 };
        let missing = u8::from(!self.rules.has(Rule::MajorityAsked));
        let is_enough =
            |voters: Set| (voters & set).count_ones() + u32::from(itself + missing) > voters.count_ones() / 2;
        if !self.rules.has(Rule::OthersAsked) && set >> asker & 1 == 1 {
            return true;
        }
        let skips_old = config.outgoing == 0 || !self.rules.has(Rule::JointOldAsked);
        set != 0 && is_enough(config.voters) && (skips_old || is_enough(config.outgoing))
    }

    fn start(&self) -> State {
        let is_founder = |at: &usize| self.course.config(0).is_voter(*at);
        let mut log = Log::default();
        log.push(1);
        let mut replicas = [Replica::default(); REPLICAS_MAX];
        for at in (0..self.course.replicas).filter(is_founder) {
            replicas[at] = Replica { term: 1, log, disk: log, leads: at == 0, ..Replica::default() };
        }
        let mut state = State {
            replicas,
            links: Links::default(),
            committed: Log::default(),
            read: None,
            restarts_left: self.restarts,
            writes_left: self.writes,
            is_forked: false,
        };
        state.forget_dead(self);
        state
    }

    fn can_lose_its_leader(&self) -> bool {
        self.course.configs.iter().any(|config| config.voters.count_ones() > 2)
    }

    fn replicas(&self) -> core::ops::Range<usize> {
        0..self.course.replicas
    }
}

impl Model for Quorum {
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
            Property::always(
                "no quorum read misses what was acknowledged or shown before it",
                |model, state: &State| state.stale(model).is_none(),
            ),
            Property::always("no leader's read misses what was shown before it", |model, state: &State| {
                state.blind_leader(model).is_none()
            }),
            Property::always("committed entries are the same everywhere", |_, state: &State| !state.is_forked),
        ];
        if self.hunts {
            return properties;
        }
        properties.push(Property::sometimes(
            "a replica serves a write that a majority knows",
            |model, state: &State| {
                model.replicas().any(|at| {
                    state.serves(model, at, Set::MAX) && state.replicas[at].log.prefix(state.applied(at)).key() > 0
                })
            },
        ));
        properties.push(Property::sometimes("a replica must not serve by what others have", |model, state: &State| {
            model.replicas().any(|at| state.is_refused(model, at))
        }));
        if self.can_lose_its_leader() {
            properties
                .push(Property::sometimes("a read that must not be served yet has an answer", |_, state: &State| {
                    state.read.is_some_and(|read| read.answers.iter().flatten().count() > 0)
                }));
            properties.push(Property::sometimes("a replica serves without the leader", |model, state: &State| {
                model.replicas().any(|at| state.serves_without_leader(model, at))
            }));
            properties.push(Property::sometimes("a replica serves under two leaders", |model, state: &State| {
                let leaders = model.replicas().filter(|&at| state.replicas[at].leads).count();
                leaders > 1 && model.replicas().any(|at| state.serves(model, at, Set::MAX))
            }));
        }
        if self.depth.is_none() && self.course.configs.iter().any(|config| config.outgoing != 0) {
            properties.push(Property::sometimes("a replica serves in a joint membership", |model, state: &State| {
                let is_joint = |at: &usize| state.config(model, *at).outgoing != 0;
                model.replicas().filter(is_joint).any(|at| state.serves(model, at, Set::MAX))
            }));
        }
        if self.cuts {
            properties.push(Property::sometimes(
                "a log is cut above what another has applied",
                |model, state: &State| {
                    let applied =
                        model.replicas().filter(|&at| state.replicas[at].log.last() > 0).map(|at| state.applied(at));
                    let least = applied.min().unwrap_or_default();
                    model.replicas().any(|at| state.replicas[at].cut > least)
                },
            ));
        }
        properties
    }
}
