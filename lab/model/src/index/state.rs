//! What the model of the questions consists of: what is applied where, and at each asking replica its reads and questions.

use super::Index;
use crate::rule::Rule;

/// Replicas: the leader's place, and those that ask.
pub const REPLICAS: usize = 3;
/// Replicas that may ask.
pub const ASKERS_MAX: usize = REPLICAS - 1;
/// Indices that there is room for.
pub const WRITES_MAX: usize = 3;
/// Reads that there is room for.
pub const READS_MAX: usize = 2;
/// Questions of one replica that there is room for.
pub const QUESTIONS_MAX: usize = 2;

/// Where the message of a question is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// On its way to the leader.
    Asked,
    /// Its answer is on its way back.
    Answered {
        /// What the leader gave away.
        index: u8,
    },
    /// Nowhere any more.
    Gone,
}

/// A question that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    /// Whether the replica waits for the answer.
    pub is_open: bool,
    /// How long ago it left, on the clock of the replica; see [`Index::age_max`].
    pub age: u8,
    /// Where its message is.
    pub message: Message,
    /// The index of the answer that was taken, as long as it is not applied: a proof of freshness waits for that.
    pub taken: Option<u8>,
}

/// A replica that asks, apart from what it has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asker {
    /// Its questions in the order in which they left; no gaps.
    pub questions: [Option<Question>; QUESTIONS_MAX],
    /// As of how long ago, on its clock, it is provably complete; see [`Index::age_max`].
    pub proof: u8,
}

/// How far a read for the latest has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// It waits for a question to leave.
    Gathered,
    /// It waits for the answer to this one of the replica's questions.
    Asked {
        /// The place in [`Asker::questions`].
        question: u8,
    },
    /// It waits until this index is applied.
    Indexed {
        /// The index of the answer.
        index: u8,
    },
}

/// A read for the latest at a replica that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Read {
    /// Which replica, as a place in [`State::askers`].
    pub asker: u8,
    /// The largest index that was acknowledged or shown when it arrived.
    pub floor: u8,
    /// How far it has got.
    pub stage: Stage,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stale {
    /// What the read was served with.
    pub served: u8,
    /// What it had to cover.
    pub floor: u8,
}

/// A state of the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The last committed index.
    pub committed: u8,
    /// What each replica has applied: the leader's place first, then the askers.
    pub applied: [u8; REPLICAS],
    /// The replicas that ask.
    pub askers: [Asker; ASKERS_MAX],
    /// Reads for the latest.
    pub reads: [Option<Read>; READS_MAX],
    /// How long ago, in steps of the true time, each index was first acknowledged or shown; at most one more than the bound.
    pub known_for: [u8; WRITES_MAX],
    /// The largest index that the session has seen.
    pub session: u8,
    /// Set once a promise was broken; nothing happens after it.
    pub stale: Option<Stale>,
}

impl State {
    /// The largest index that anybody may have been told of: what is applied somewhere counts as acknowledged and as shown.
    pub fn known(&self) -> u8 {
        self.applied.into_iter().max().unwrap_or_default()
    }

    /// What the asker has applied.
    pub fn applied_at(&self, asker: usize) -> u8 {
        self.applied[asker + 1]
    }

    /// The questions of `asker` and their places.
    pub fn questions(&self, asker: usize) -> impl Iterator<Item = (usize, &Question)> {
        self.askers[asker].questions.iter().flatten().enumerate()
    }

    /// The place of the last question that `asker` waits for.
    pub fn last_open(&self, asker: usize) -> Option<usize> {
        self.questions(asker).filter(|(_, question)| question.is_open).map(|(place, _)| place).last()
    }

    /// Takes proofs whose index is applied, removes questions that can have no effect any more, and puts reads in order.
    pub(super) fn settle(&mut self, model: &Index) {
        for asker in 0..ASKERS_MAX {
            let applied = self.applied_at(asker);
            for place in (0..QUESTIONS_MAX).rev() {
                let Asker { questions, proof } = &mut self.askers[asker];
                let Some(question) = &mut questions[place] else { continue };
                if let Some(index) = question.taken
                    && (applied >= index || !model.rules.has(Rule::ProofNeedsApplied))
                {
                    *proof = question.age.min(*proof);
                    question.taken = None;
                }
                let has_proof = question.taken.is_some() && question.age < *proof && model.bound.is_some();
                let may_be_taken = model.rules.has(Rule::FreshId) || question.message == Message::Gone;
                if !question.is_open && !has_proof && may_be_taken {
                    self.remove_question(asker, place);
                }
            }
        }
        self.reads.sort_unstable();
    }

    fn remove_question(&mut self, asker: usize, place: usize) {
        let questions = &mut self.askers[asker].questions;
        questions[place] = None;
        questions[place..].rotate_left(1);
        for read in self.reads.iter_mut().flatten().filter(|read| usize::from(read.asker) == asker) {
            if let Stage::Asked { question } = &mut read.stage
                && usize::from(*question) > place
            {
                *question -= 1;
            }
        }
    }
}
