//! What can happen in the model of the questions: each action at any moment at which it is possible.

use super::Index;
use super::state::{ASKERS_MAX, Asker, Message, Question, REPLICAS, Read, Stage, Stale, State};
use crate::rule::Rule;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The true time goes on by one step, and the clock of each asking replica by so many units.
    Tick {
        /// The units of each clock.
        units: [u8; ASKERS_MAX],
    },
    /// One more index is committed.
    Commit,
    /// A replica applies one more index, and may show it to anybody.
    Apply {
        /// Which replica; 0 is the leader's place.
        at: usize,
    },
    /// A read for the latest arrives at a replica that does not lead.
    Arrive {
        /// Which asker.
        asker: usize,
    },
    /// A question leaves.
    Ask {
        /// Which asker's.
        asker: usize,
    },
    /// A question arrives at a leader, which gives away an index as soon as it can prove that it led.
    Answer {
        /// Which asker's.
        asker: usize,
        /// Which of its questions.
        question: usize,
        /// The index.
        index: u8,
    },
    /// An answer arrives.
    Take {
        /// At which asker.
        asker: usize,
        /// To which of its questions.
        question: usize,
    },
    /// A replica gives a question up, having waited long enough or heard of a new term, and gathers its reads again.
    GiveUp {
        /// Which asker.
        asker: usize,
        /// Which of its questions.
        question: usize,
    },
    /// A read for the latest is served where it waited.
    Serve {
        /// Its place.
        read: usize,
    },
    /// A read for the latest is served by a leader that can prove that it leads.
    ReadAtLeader {
        /// What is committed as far as the leader knows.
        index: u8,
    },
    /// A bounded read arrives and is served.
    ReadWithin {
        /// Which asker.
        asker: usize,
    },
    /// The session reads.
    ReadInSession {
        /// At which replica; 0 is the leader's place.
        at: usize,
    },
}

impl Index {
    /// Lists what can happen in `state`.
    pub(super) fn propose(&self, state: &State, actions: &mut Vec<Action>) {
        self.propose_ticks(state, actions);
        if state.committed < self.writes {
            actions.push(Action::Commit);
        }
        for at in 0..=self.askers {
            let applied = state.applied[at];
            if applied < state.committed {
                actions.push(Action::Apply { at });
            }
            if self.has_session && (applied >= state.session || !self.rules.has(Rule::SessionFloor)) {
                actions.push(Action::ReadInSession { at });
            }
        }
        let may_serve = |index| state.applied[0] >= index || !self.rules.has(Rule::LeaderApplyWait);
        let indices = state.known()..=state.committed;
        actions.extend(indices.filter(|&index| may_serve(index)).map(|index| Action::ReadAtLeader { index }));
        (0..self.askers).for_each(|asker| self.propose_asker(state, asker, actions));
        for (place, read) in state.reads.iter().enumerate() {
            let Some(Read { asker, stage: Stage::Indexed { index }, .. }) = *read else { continue };
            if state.applied_at(usize::from(asker)) >= index || !self.rules.has(Rule::FollowerApplyWait) {
                actions.push(Action::Serve { read: place });
            }
        }
    }

    fn propose_ticks(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(bound) = self.bound else { return };
        let is_ageing = |age: u8| age < self.age_max();
        let is_running = core::array::from_fn(|asker| {
            let has_question = state.questions(asker).any(|(_, question)| is_ageing(question.age));
            has_question || is_ageing(state.askers[asker].proof)
        });
        let is_due = state.known_for[..usize::from(state.known())].iter().any(|&age| age <= bound);
        if is_due || is_running.contains(&true) {
            actions.extend(self.rates.combinations(is_running).map(|units| Action::Tick { units }));
        }
    }

    fn propose_asker(&self, state: &State, asker: usize, actions: &mut Vec<Action>) {
        let has_room = state.reads[..].iter().flatten().count() < self.reads;
        if has_room {
            actions.push(Action::Arrive { asker });
        }
        let is_gathered = |read: &Read| usize::from(read.asker) == asker && read.stage == Stage::Gathered;
        let wants = self.bound.is_some() || state.reads.iter().flatten().any(is_gathered);
        if wants && state.questions(asker).count() < self.questions {
            actions.push(Action::Ask { asker });
        }
        for (question, it) in state.questions(asker) {
            match it.message {
                Message::Asked => {
                    let indices = state.known()..=state.committed;
                    actions.extend(indices.map(|index| Action::Answer { asker, question, index }));
                }
                Message::Answered { .. } => actions.push(Action::Take { asker, question }),
                Message::Gone => {}
            }
            if it.is_open {
                actions.push(Action::GiveUp { asker, question });
            }
        }
        if self.bound.is_some() && state.askers[asker].proof <= self.proof_max() {
            actions.push(Action::ReadWithin { asker });
        }
    }
}

impl State {
    /// Carries `action` out.
    pub(super) fn take(&mut self, model: &Index, action: Action) {
        match action {
            Action::Tick { units } => self.tick(model, units),
            Action::Commit => self.committed += 1,
            Action::Apply { at } => self.applied[at] += 1,
            Action::Arrive { asker } => self.arrive(model, asker),
            Action::Ask { asker } => self.ask(asker),
            Action::Answer { asker, question, index } => {
                self.set_message(asker, question, Message::Answered { index });
            }
            Action::Take { asker, question } => self.take_answer(model, asker, question),
            Action::GiveUp { asker, question } => self.close(asker, question, Stage::Gathered),
            Action::Serve { read } => {
                if let Some(Read { asker, floor, .. }) = self.reads[read].take() {
                    self.judge(self.applied_at(usize::from(asker)), floor);
                }
            }
            Action::ReadAtLeader { .. } => self.judge(self.applied[0], self.known()),
            Action::ReadWithin { asker } => {
                let bound = model.bound.unwrap_or_default();
                let is_old = |index: &u8| self.known_for[usize::from(*index) - 1] > bound;
                let floor = (1..=self.known()).rev().find(is_old).unwrap_or_default();
                self.judge(self.applied_at(asker), floor);
            }
            Action::ReadInSession { at } => {
                self.judge(self.applied[at], self.session);
                self.session = self.applied[at];
            }
        }
    }

    fn judge(&mut self, served: u8, floor: u8) {
        self.stale = (served < floor).then_some(Stale { served, floor });
    }

    fn tick(&mut self, model: &Index, units: [u8; ASKERS_MAX]) {
        let age_max = model.age_max();
        for (Asker { questions, proof }, units) in self.askers.iter_mut().zip(units) {
            let ages = questions.iter_mut().flatten().map(|question| &mut question.age);
            ages.chain([proof]).for_each(|age| *age = (*age + units).min(age_max));
        }
        let known = usize::from(self.known());
        let known_for_max = model.bound.unwrap_or_default() + 1;
        self.known_for[..known].iter_mut().for_each(|age| *age = (*age + 1).min(known_for_max));
    }

    fn arrive(&mut self, model: &Index, asker: usize) {
        let stage = match self.last_open(asker) {
            Some(place) if !model.rules.has(Rule::JoinBeforeLeaving) => Stage::Asked { question: place as u8 },
            _ => Stage::Gathered,
        };
        let read = Read { asker: asker as u8, floor: self.known(), stage };
        if let Some(room) = self.reads.iter_mut().find(|room| room.is_none()) {
            *room = Some(read);
        }
    }

    fn ask(&mut self, asker: usize) {
        let place = self.questions(asker).count();
        self.askers[asker].questions[place] =
            Some(Question { is_open: true, age: 0, message: Message::Asked, taken: None });
        self.move_reads(asker, Stage::Gathered, Stage::Asked { question: place as u8 });
    }

    fn take_answer(&mut self, model: &Index, asker: usize, place: usize) {
        let Some(Question { message: Message::Answered { index }, .. }) = self.askers[asker].questions[place] else {
            return;
        };
        self.set_message(asker, place, Message::Gone);
        // Without ids of their own, every answer looks like one to the last question.
        let answered = if model.rules.has(Rule::FreshId) { Some(place) } else { self.last_open(asker) };
        let Some(answered) = answered else { return };
        self.close(asker, answered, Stage::Indexed { index });
        if let Some(question) = &mut self.askers[asker].questions[answered] {
            question.taken = Some(index);
            if !model.rules.has(Rule::ProofFromSending) {
                question.age = 0;
            }
        }
    }

    /// The replica no longer waits for the answer to this question, and its reads go on with `stage`.
    fn close(&mut self, asker: usize, place: usize, stage: Stage) {
        if let Some(question) = &mut self.askers[asker].questions[place] {
            question.is_open = false;
        }
        self.move_reads(asker, Stage::Asked { question: place as u8 }, stage);
    }

    fn move_reads(&mut self, asker: usize, from: Stage, to: Stage) {
        let reads = self.reads.iter_mut().flatten();
        reads.filter(|it| usize::from(it.asker) == asker && it.stage == from).for_each(|read| read.stage = to);
    }

    fn set_message(&mut self, asker: usize, place: usize, message: Message) {
        if let Some(question) = &mut self.askers[asker].questions[place] {
            question.message = message;
        }
    }
}

const _: () = assert!(REPLICAS == ASKERS_MAX + 1);
