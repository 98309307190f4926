//! The model of questions, answers and what a replica serves after them: no level breaks its promise, wherever it is served.
//!
//! Leaders do not appear: what the model of the lease ([`crate::lease`]) proves takes their place. A question that arrives is
//! answered with *any* index from the largest that anybody may know of at that moment to the last committed one. What can
//! happen stands in [`action`].
//!
//! Everything that is applied anywhere counts as acknowledged and as shown to somebody at once, as in the other model.

pub mod action;
pub mod state;

use crate::clock::Rates;
use crate::product;
use crate::rule::{Rule, Rules};
use action::Action;
use state::{ASKERS_MAX, Asker, QUESTIONS_MAX, READS_MAX, REPLICAS, State, WRITES_MAX};
use stateright::{Model, Property};

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Index {
    /// Replicas that ask: a follower, then a learner. They obey the same rules.
    pub askers: usize,
    /// The last index.
    pub writes: u8,
    /// Reads for the latest that wait at one time.
    pub reads: usize,
    /// Questions of one replica at one time.
    pub questions: usize,
    /// How old the data of a bounded read may be, in steps of the true time; `None` for a model without them.
    pub bound: Option<u8>,
    /// Whether a session reads at all replicas.
    pub has_session: bool,
    /// The bounds of the clocks' rates. Each clock may change its rate with every step.
    pub rates: Rates,
    /// The rules in force.
    pub rules: Rules,
    /// Whether to look only for a broken promise.
    pub hunts: bool,
}

impl Index {
    /// A model with all rules and clocks within their bounds, without bounded reads and sessions.
    pub fn new(askers: usize, writes: u8, reads: usize) -> Self {
        assert!((1..=ASKERS_MAX).contains(&askers) && usize::from(writes) <= WRITES_MAX && reads <= READS_MAX);
        Self {
            askers,
            writes,
            reads,
            questions: QUESTIONS_MAX,
            bound: None,
            has_session: false,
            rates: Rates::declared(),
            rules: Rules::ALL,
            hunts: false,
        }
    }

    /// The same model without a rule, looking for a broken promise.
    pub fn without(self, rule: Rule) -> Self {
        Self { rules: Rules::without(rule), ..self.hunting() }
    }

    /// The same model, looking for a broken promise on the shortest way.
    pub fn hunting(self) -> Self {
        Self { hunts: true, ..self }
    }

    /// The oldest proof that serves a bounded read, in units of the replica's clock. The clock may have run slow all the
    /// time; whoever forgets it takes the clock for one without error.
    pub fn proof_max(&self) -> u8 {
        let bound = self.bound.unwrap_or_default();
        match self.rules.has(Rule::AgeAllowsForRates) {
            true => product::proof_max(bound),
            false => product::proof_max_of_exact_clocks(bound),
        }
    }

    /// The age at which ages stop: too old to serve. Also the age of a proof that there is not.
    pub fn age_max(&self) -> u8 {
        self.proof_max() + 1
    }
}

impl Model for Index {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            committed: 0,
            applied: [0; REPLICAS],
            askers: [Asker { questions: [None; QUESTIONS_MAX], proof: self.age_max() }; ASKERS_MAX],
            reads: [None; READS_MAX],
            known_for: [0; WRITES_MAX],
            session: 0,
            stale: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.stale.is_none() {
            self.propose(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        next.take(self, action);
        next.settle(self);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties =
            vec![Property::always("no read breaks the promise of its level", |_, state: &State| state.stale.is_none())];
        if self.hunts {
            return properties;
        }
        if self.reads > 0 {
            properties
                .push(Property::sometimes("a follower serves the latest", |_, state: &State| state.serves_latest(0)));
            properties.push(Property::sometimes(
                "a question is asked while another is open",
                |model, state: &State| {
                    (0..model.askers).any(|asker| state.questions(asker).filter(|(_, it)| it.is_open).count() > 1)
                },
            ));
            if self.askers > 1 {
                properties.push(Property::sometimes("a learner serves the latest", |_, state: &State| {
                    state.serves_latest(1)
                }));
            }
        }
        if self.bound.is_some() {
            properties.push(Property::sometimes(
                "a replica serves old data within the bound",
                |model, state: &State| {
                    state.askers[0].proof <= model.proof_max() && state.applied_at(0) < state.known()
                },
            ));
        }
        if self.has_session {
            properties.push(Property::sometimes("a session has to wait at another replica", |_, state: &State| {
                state.session > state.applied_at(0)
            }));
        }
        properties
    }
}

impl State {
    /// Whether `asker` serves a read with more than it had at first.
    fn serves_latest(&self, asker: usize) -> bool {
        let applied = self.applied_at(asker);
        let is_served = |read: &state::Read| {
            let has_index = matches!(read.stage, state::Stage::Indexed { index } if index > 0 && index <= applied);
            usize::from(read.asker) == asker && has_index
        };
        self.reads.iter().flatten().any(is_served)
    }
}
