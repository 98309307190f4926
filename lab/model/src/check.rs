//! Runs the checker over a model and says what it found.
#![allow(clippy::disallowed_methods, reason = "says how long a check took; nothing is decided by it")]

use crate::explain::Explain;
use crate::plan::Subject;
use core::fmt;
use core::hash::Hash;
use stateright::{Checker, Expectation, HasDiscoveries};
use std::time::Instant;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every state was looked at: no promise is broken, and everything that should be possible is.
    Holds,
    /// This promise is broken.
    Broken(&'static str),
    /// This should be possible and is not, so the model proves nothing.
    Impossible(&'static str),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.write_str("holds"),
            Self::Broken(promise) => write!(f, "BROKEN: {promise}"),
            Self::Impossible(example) => write!(f, "IMPOSSIBLE: {example}"),
        }
    }
}

/// A check and its size.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// States that were generated, repetitions included.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// The most steps from the beginning to a state.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// What was found.
    pub verdict: Verdict,
    /// The way to the broken promise, a line for each step; the shortest if the model hunts for it.
    pub path: Vec<String>,
}

/// Looks at every state of `subject`, or until a promise is broken.
pub fn check(subject: Subject) -> Outcome {
    match subject {
        Subject::Lease(model) => shortest(model, model.hunts, None),
        Subject::Index(model) => shortest(model, model.hunts, None),
        Subject::Group(model) => shortest(model, model.hunts, model.depth),
        Subject::Quorum(model) => shortest(model, model.hunts, model.depth),
    }
}

/// Runs the checker, and if it hunts again with fewer steps until nothing is found: of the ways that it finds at about the same
/// time it keeps the last.
fn shortest<M>(model: M, hunts: bool, depth: Option<usize>) -> Outcome
where
    M: Explain + Copy + Send + Sync + 'static,
    M::State: Clone + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let mut best = run(model, hunts, depth);
    while hunts && matches!(best.verdict, Verdict::Broken(_)) {
        let again = run(model, hunts, (best.path.len() / 2).checked_sub(1));
        best.seconds += again.seconds;
        match again.verdict {
            Verdict::Broken(_) => best = Outcome { seconds: best.seconds, ..again },
            _ => break,
        }
    }
    best
}

fn run<M>(model: M, hunts: bool, depth: Option<usize>) -> Outcome
where
    M: Explain + Send + Sync + 'static,
    M::State: Clone + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Only one thread goes through the states strictly in the order of their distance, so that a way is the shortest.
    let threads = if hunts || depth.is_some() { 1 } else { cores };
    let started = Instant::now();
    let builder = model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    // The checker counts the states on a way, and looks at none from the target on.
    let builder = match depth {
        Some(steps) => builder.target_max_depth(steps + 2),
        None => builder,
    };
    let checker = builder.spawn_bfs().join();
    let seconds = started.elapsed().as_secs_f64();

    let properties = checker.model().properties();
    let is_found = |name: &'static str| checker.discovery(name).is_some();
    let broken = properties.iter().find(|it| it.expectation == Expectation::Always && is_found(it.name));
    let missing = properties.iter().find(|it| it.expectation == Expectation::Sometimes && !is_found(it.name));
    let verdict = match (broken, missing) {
        (Some(promise), _) => Verdict::Broken(promise.name),
        (None, Some(example)) => Verdict::Impossible(example.name),
        (None, None) => Verdict::Holds,
    };
    let path = broken.and_then(|promise| checker.discovery(promise.name));
    Outcome {
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        seconds,
        verdict,
        path: path.map(|path| checker.model().explain(&path.into_states())).unwrap_or_default(),
    }
}
