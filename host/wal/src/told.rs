//! What the owner of a log hears of it beside what is done: each thing once, when it changes.

use crate::commit::Round;
use crate::log::Log;
use crate::rounds::Begun;

/// What the owner of one log was told last. [`crate::Committer`] has one for each log, and so has whoever drives [`crate::Rounds`] in its place.
#[derive(Debug, Default)]
pub struct Told {
    is_stalled: bool,
    left: Option<u64>,
}

impl Told {
    /// What is to be told after [`crate::Rounds::begin`]: that its round waits, unless that was said.
    pub fn begun(&mut self, begun: &Begun) -> Option<Round> {
        match begun {
            Begun::Nothing => None,
            Begun::Written => {
                self.is_stalled = false;
                None
            }
            Begun::Stalled(reason) => {
                let was_told = std::mem::replace(&mut self.is_stalled, true);
                (!was_told).then(|| Round::Stalled { reason: reason.clone() })
            }
        }
    }

    /// What is to be told after [`crate::Rounds::tend`]: what is left of the log, if that has changed.
    pub fn tended(&mut self, log: &Log) -> Option<Round> {
        let left = log.left();
        (std::mem::replace(&mut self.left, left) != left).then_some(Round::Room { left })
    }
}
