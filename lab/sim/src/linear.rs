//! The judge of a history: is there an order of each key's operations that respects time and explains every answer?
//!
//! The search is Wing and Gong's as improved by Lowe ("Testing for linearizability", 2017): pick an operation that could
//! be next, go on, and step back when an operation has returned that cannot be placed; (set of placed operations,
//! content) pairs that were tried are remembered. Keys are independent, so each is judged alone. An operation with an
//! unknown outcome may be placed anywhere after its start, or not at all.

use crate::history::{Answer, Call, Content, History, Operation, Outcome};
use hedgerow_types::ReadLevel;
use rustc_hash::FxHashSet;
use std::fmt;

/// Most (set, content) pairs that the search of one key looks at before it gives up; some hundred megabytes.
const PAIRS_MAX: usize = 2_000_000;

/// A key whose operations no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: u32,
    /// The operations that cannot be explained together, in the order of their starts: the shortest prefix of the key's
    /// history that has no explanation, without the reads that are not needed for that.
    pub operations: Vec<Operation>,
    /// The first operation in time whose answer no order reaches.
    pub culprit: Operation,
    /// What the record held at the end of each longest explanation of the others, at most a few.
    pub reachable: Vec<Content>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "key {}: no order of these operations explains all answers:", self.key)?;
        for operation in &self.operations {
            let mark = if *operation == self.culprit { "  <- cannot be explained" } else { "" };
            writeln!(f, "  {operation}{mark}")?;
        }
        write!(f, "  before that answer the record can hold only one of {:?}", self.reachable)
    }
}

/// The verdict on a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Keys whose operations cannot be explained.
    pub violations: Vec<Violation>,
    /// Keys whose search was too large to finish. Treat as neither good nor bad, and make the history smaller.
    pub undecided: Vec<u32>,
}

/// Judges the writes and linearizable reads of every key of `history`; every record is absent at first.
pub fn check(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, mut operations) in history.by_key() {
        operations.retain(is_judged);
        match search(&operations) {
            Found::Explained => {}
            Found::TooLarge => verdict.undecided.push(key),
            Found::Nothing { culprit, reachable } => {
                let whole = Violation { key, culprit: operations[culprit], operations, reachable };
                verdict.violations.push(explain(whole));
            }
        }
    }
    verdict
}

/// Reads that may be old have no place in the order.
fn is_judged(operation: &Operation) -> bool {
    match operation.call {
        Call::Get(level) => level == ReadLevel::Linearizable,
        Call::Put(_) | Call::Remove | Call::Incr(_) | Call::Swap { .. } => true,
    }
}

/// The content after `call` on `content`, if `answer` (or any, for `None`) is what the call answers then.
pub(crate) fn step(content: Content, call: &Call, answer: Option<Answer>) -> Option<Content> {
    let (after, truth) = match *call {
        Call::Get(_) => (content, Answer::Content(content)),
        Call::Put(value) => (Some(value), Answer::Done),
        Call::Remove => (None, Answer::Done),
        Call::Incr(by) => {
            let sum = content.unwrap_or(0).checked_add(by)?;
            (Some(sum), Answer::Sum(sum))
        }
        Call::Swap { expected, new } => {
            let is_applied = content == expected;
            (if is_applied { Some(new) } else { content }, Answer::Swapped { is_applied, previous: content })
        }
    };
    answer.is_none_or(|answer| answer == truth).then_some(after)
}

enum Found {
    Explained,
    Nothing { culprit: usize, reachable: Vec<Content> },
    TooLarge,
}

/// The operations that the search must or may place, as a doubly linked list of starts and ends in time order.
struct Events {
    events: Vec<Event>,
    next: Vec<usize>,
    previous: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Event {
    operation: usize,
    is_end: bool,
    /// Position of the operation's end, for its start; 0 = none.
    end: usize,
}

impl Events {
    /// Position 0 is the list's head.
    fn new(operations: &[Operation], taken: &[usize]) -> Self {
        let mut order: Vec<(u64, bool, usize)> = Vec::with_capacity(taken.len() * 2);
        for &index in taken {
            order.push((operations[index].start, false, index));
            if let Outcome::Ok(_) = operations[index].outcome {
                order.push((operations[index].end, true, index));
            }
        }
        // At one instant starts come first: operations that touch count as concurrent.
        order.sort_unstable();
        let mut events = vec![Event { operation: usize::MAX, is_end: true, end: 0 }];
        let mut starts = vec![0; operations.len()];
        for (_, is_end, operation) in order {
            if is_end {
                let start: usize = starts[operation];
                events[start].end = events.len();
            } else {
                starts[operation] = events.len();
            }
            events.push(Event { operation, is_end, end: 0 });
        }
        let count = events.len();
        Self {
            events,
            next: (1..=count).map(|next| next % count).collect(),
            previous: (0..count).map(|at| (at + count - 1) % count).collect(),
        }
    }

    fn unlink(&mut self, at: usize) {
        let (before, after) = (self.previous[at], self.next[at]);
        self.next[before] = after;
        self.previous[after] = before;
    }

    fn relink(&mut self, at: usize) {
        let (before, after) = (self.previous[at], self.next[at]);
        self.next[before] = at;
        self.previous[after] = at;
    }

    fn take(&mut self, start: usize) {
        self.unlink(start);
        if self.events[start].end != 0 {
            self.unlink(self.events[start].end);
        }
    }

    fn give_back(&mut self, start: usize) {
        if self.events[start].end != 0 {
            self.relink(self.events[start].end);
        }
        self.relink(start);
    }
}

fn search(operations: &[Operation]) -> Found {
    let taken = worth_placing(operations);
    let mut events = Events::new(operations, &taken);
    let mut left = taken.iter().filter(|index| matches!(operations[**index].outcome, Outcome::Ok(_))).count();
    let mut placed = vec![0u64; operations.len().div_ceil(64)];
    let mut tried: FxHashSet<(Box<[u64]>, Content)> = FxHashSet::default();
    let mut path: Vec<(usize, Content)> = Vec::new();
    let mut content: Content = None;
    let mut furthest = (0, 0, Vec::new());
    let mut at = events.next[0];
    while left > 0 {
        let event = events.events[at];
        if event.is_end {
            // Operation `event.operation` has returned and is not placed: whatever was placed last was wrong.
            note_stuck(&mut furthest, at, event.operation, content);
            let Some((start, before)) = path.pop() else {
                return Found::Nothing { culprit: furthest.1, reachable: furthest.2 };
            };
            events.give_back(start);
            let operation = events.events[start].operation;
            placed[operation / 64] &= !(1 << (operation % 64));
            left += usize::from(events.events[start].end != 0);
            content = before;
            at = events.next[start];
            continue;
        }
        let operation = &operations[event.operation];
        let answer = match operation.outcome {
            Outcome::Ok(answer) => Some(answer),
            Outcome::Failed | Outcome::Unknown => None,
        };
        if let Some(after) = step(content, &operation.call, answer) {
            placed[event.operation / 64] |= 1 << (event.operation % 64);
            if tried.insert((placed.clone().into_boxed_slice(), after)) {
                if tried.len() > PAIRS_MAX {
                    return Found::TooLarge;
                }
                path.push((at, content));
                content = after;
                left -= usize::from(event.end != 0);
                events.take(at);
                at = events.next[0];
                continue;
            }
            placed[event.operation / 64] &= !(1 << (event.operation % 64));
        }
        at = events.next[at];
    }
    Found::Explained
}

/// Remembers the latest end at which the search was ever stuck, and what the record held there.
fn note_stuck(furthest: &mut (usize, usize, Vec<Content>), at: usize, operation: usize, content: Content) {
    const KEPT_MAX: usize = 6;
    if at > furthest.0 {
        *furthest = (at, operation, Vec::new());
    }
    if at == furthest.0 && furthest.2.len() < KEPT_MAX && !furthest.2.contains(&content) {
        furthest.2.push(content);
    }
}

/// Leaves out what can be left out without changing the verdict: failed operations, reads without an answer, and writes
/// of unknown outcome whose value nobody can have seen. The last would otherwise double the search, each.
fn worth_placing(operations: &[Operation]) -> Vec<usize> {
    let has_incr = operations.iter().any(|operation| matches!(operation.call, Call::Incr(_)));
    let mut seen: FxHashSet<i64> = FxHashSet::default();
    for operation in operations {
        if let Call::Swap { expected, .. } = operation.call {
            seen.extend(expected);
        }
        match operation.outcome {
            Outcome::Ok(Answer::Content(content) | Answer::Swapped { previous: content, .. }) => seen.extend(content),
            Outcome::Ok(Answer::Sum(_) | Answer::Done) | Outcome::Failed | Outcome::Unknown => {}
        }
    }
    let is_worth = |operation: &Operation| match (operation.outcome, operation.call) {
        (Outcome::Ok(_), _) => true,
        (Outcome::Failed, _) | (Outcome::Unknown, Call::Get(_)) => false,
        (Outcome::Unknown, Call::Put(value) | Call::Swap { new: value, .. }) => has_incr || seen.contains(&value),
        (Outcome::Unknown, Call::Remove | Call::Incr(_)) => true,
    };
    (0..operations.len()).filter(|index| is_worth(&operations[*index])).collect()
}

/// Makes a violation small enough to read.
fn explain(whole: Violation) -> Violation {
    let mut operations = whole.operations.clone();
    operations.sort_by_key(|operation| (operation.start, operation.end));
    let mut smallest = whole;
    let mut candidates = vec![shortest_prefix(operations)];
    while let Some(candidate) = candidates.pop() {
        let Found::Nothing { culprit, reachable } = search(&candidate) else { continue };
        // Dropping a read can only make a history easier to explain, so what is left is still a proof.
        candidates = (0..candidate.len())
            .filter(|index| !candidate[*index].call.is_write())
            .map(|index| [&candidate[..index], &candidate[index + 1..]].concat())
            .collect();
        smallest = Violation { culprit: candidate[culprit], operations: candidate, reachable, ..smallest };
    }
    smallest
}

/// Cuts the history at the earliest end up to which it has no explanation: what ends later is open, what starts later
/// is gone.
fn shortest_prefix(operations: Vec<Operation>) -> Vec<Operation> {
    let cut_at = |time: u64| -> Vec<Operation> {
        let begun = operations.iter().filter(|operation| operation.start <= time);
        begun
            .map(|operation| match operation.outcome {
                Outcome::Ok(_) if operation.end > time => Operation { outcome: Outcome::Unknown, ..*operation },
                Outcome::Ok(_) | Outcome::Failed | Outcome::Unknown => *operation,
            })
            .filter(|operation| operation.outcome != Outcome::Failed)
            .collect()
    };
    let mut ends: Vec<u64> = operations.iter().map(|operation| operation.end).collect();
    ends.sort_unstable();
    // A prefix of a history with an explanation has one, so the ends divide into good and bad ones.
    let first_bad = ends.partition_point(|end| !matches!(search(&cut_at(*end)), Found::Nothing { .. }));
    ends.get(first_bad).map_or_else(|| operations.clone(), |end| cut_at(*end))
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
