//! The judge of a history: is there an order of each key's operations that respects time and explains every answer?
//!
//! The search is Wing and Gong's as improved by Lowe ("Testing for linearizability", 2017): pick an operation that could
//! be next, go on, and step back when an operation has returned that cannot be placed; (set of placed operations,
//! content) pairs that were tried are remembered. Keys are independent, so each is judged alone. An operation with an
//! unknown outcome may be placed anywhere after its start, or not at all; long histories have hundreds of these for a key,
//! so they are placed only where no answer can be explained without, alike ones in one order only, and using more of them
//! is not tried where using fewer led nowhere.

use crate::history::{Answer, Call, Content, History, Operation, Outcome};
use hedgerow_types::ReadLevel;
use rustc_hash::{FxHashMap, FxHashSet};
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

/// The operations with an answer, which the search must place, as a doubly linked list of starts and ends in time order.
struct Events {
    events: Vec<Event>,
    next: Vec<usize>,
    previous: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Event {
    operation: usize,
    time: u64,
    is_end: bool,
    is_placed: bool,
    /// Position of the operation's end, for its start.
    end: usize,
}

impl Events {
    /// Position 0 is the list's head.
    fn new(operations: &[Operation], answered: &[usize]) -> Self {
        let mut order: Vec<(u64, bool, usize)> = Vec::with_capacity(answered.len() * 2);
        for &index in answered {
            order.push((operations[index].start, false, index));
            order.push((operations[index].end, true, index));
        }
        // At one instant starts come first: operations that touch count as concurrent.
        order.sort_unstable();
        let mut events = vec![Event { operation: usize::MAX, time: 0, is_end: true, is_placed: false, end: 0 }];
        let mut starts = vec![0; operations.len()];
        for (time, is_end, operation) in order {
            if is_end {
                let start: usize = starts[operation];
                events[start].end = events.len();
            } else {
                starts[operation] = events.len();
            }
            events.push(Event { operation, time, is_end, is_placed: false, end: 0 });
        }
        let count = events.len();
        Self {
            events,
            next: (1..=count).map(|next| next % count).collect(),
            previous: (0..count).map(|at| (at + count - 1) % count).collect(),
        }
    }

    /// The first operation that is not placed, 0 if all are.
    fn first(&self) -> usize {
        self.next[0]
    }

    /// The earliest end of an operation that is not placed.
    fn first_end(&self) -> usize {
        let mut at = self.first();
        while !self.events[at].is_end {
            at = self.next[at];
        }
        at
    }

    /// Which operations are placed, in few numbers: the first that is not, then those after it that are.
    fn placed(&self) -> Box<[usize]> {
        let (first, first_end) = (self.first(), self.first_end());
        let later = (first..first_end).filter(|at| self.events[*at].is_placed);
        std::iter::once(first).chain(later).collect()
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
        self.events[start].is_placed = true;
        self.unlink(start);
        self.unlink(self.events[start].end);
    }

    fn give_back(&mut self, start: usize) {
        self.events[start].is_placed = false;
        self.relink(self.events[start].end);
        self.relink(start);
    }
}

/// Writes of unknown outcome with the same call. They differ only in their starts and have no end, so if a later one is
/// placed before an earlier one, the two can change places: it is enough to place them in the order of their starts.
struct Alike {
    call: Call,
    starts: Vec<u64>,
    placed: usize,
}

/// What the search places next.
#[derive(Clone, Copy)]
enum Choice {
    /// The answered operation that starts at this position of the list, or, at an end, none of them any more.
    Answered(usize),
    /// The next write of these alike ones. They come last, when no answer can be explained without.
    Unknown(usize),
}

/// How many of each alike writes are placed.
type Used = Box<[usize]>;

struct Search<'a> {
    operations: &'a [Operation],
    events: Events,
    unknown: Vec<Alike>,
    are_increments_positive: bool,
    content: Content,
    /// What was placed, and the content before it.
    path: Vec<(Choice, Content)>,
    /// For each (placed answered operations, content) that was tried, how many of each alike unknown ones were used.
    tried: FxHashMap<(Box<[usize]>, Content), Vec<Used>>,
    pairs: usize,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Self {
        let (answered, open): (Vec<usize>, Vec<usize>) = worth_placing(operations)
            .into_iter()
            .partition(|index| matches!(operations[*index].outcome, Outcome::Ok(_)));
        let mut unknown: Vec<Alike> = Vec::new();
        for Operation { call, start, .. } in open.into_iter().map(|index| operations[index]) {
            match unknown.iter_mut().find(|alike| alike.call == call) {
                Some(alike) => alike.starts.push(start),
                None => unknown.push(Alike { call, starts: vec![start], placed: 0 }),
            }
        }
        unknown.iter_mut().for_each(|alike| alike.starts.sort_unstable());
        // The largest increments first: with the smaller ones that fit after it, each sum is reached once.
        unknown.sort_by_key(|alike| std::cmp::Reverse(if let Call::Incr(by) = alike.call { by } else { i64::MIN }));
        let events = Events::new(operations, &answered);
        let are_increments_positive = !operations.iter().any(|operation| matches!(operation.call, Call::Incr(..=0)));
        let (path, tried) = (Vec::new(), FxHashMap::default());
        Self { operations, events, unknown, are_increments_positive, content: None, path, tried, pairs: 0 }
    }

    fn run(mut self) -> Found {
        let mut furthest = (0, 0, Vec::new());
        let mut choice = Choice::Answered(self.events.first());
        while self.events.first() != 0 {
            let is_placed = match choice {
                Choice::Answered(at) if self.events.events[at].is_end => {
                    choice = Choice::Unknown(0);
                    continue;
                }
                Choice::Unknown(alike) if alike == self.unknown.len() => {
                    // An operation has returned that cannot be placed: whatever was placed last was wrong.
                    let end = self.events.first_end();
                    note_stuck(&mut furthest, end, self.events.events[end].operation, self.content);
                    let Some(last) = self.step_back() else {
                        return Found::Nothing { culprit: furthest.1, reachable: furthest.2 };
                    };
                    choice = self.after(last);
                    continue;
                }
                Choice::Answered(at) => self.place_answered(at),
                Choice::Unknown(alike) => self.place_unknown(alike),
            };
            if self.pairs > PAIRS_MAX {
                return Found::TooLarge;
            }
            choice = if is_placed { Choice::Answered(self.events.first()) } else { self.after(choice) };
        }
        Found::Explained
    }

    fn after(&self, choice: Choice) -> Choice {
        match choice {
            Choice::Answered(at) => Choice::Answered(self.events.next[at]),
            Choice::Unknown(alike) => Choice::Unknown(alike + 1),
        }
    }

    fn place_answered(&mut self, at: usize) -> bool {
        let operation = &self.operations[self.events.events[at].operation];
        let Outcome::Ok(answer) = operation.outcome else { return false };
        let Some(after) = step(self.content, &operation.call, Some(answer)) else { return false };
        self.events.take(at);
        self.go_on(Choice::Answered(at), after)
    }

    fn place_unknown(&mut self, index: usize) -> bool {
        let until = self.events.events[self.events.first_end()].time;
        let alike = &self.unknown[index];
        let has_begun = alike.starts.get(alike.placed).is_some_and(|start| *start <= until);
        let Some(after) = step(self.content, &alike.call, None).filter(|_| has_begun) else { return false };
        if let Call::Incr(_) = alike.call
            && self.are_increments_positive
            && after > self.most_wanted()
        {
            return false;
        }
        self.unknown[index].placed += 1;
        self.go_on(Choice::Unknown(index), after)
    }

    /// The largest content that an operation needs which could be placed next. Above it an increment helps none of them:
    /// only a write brings the content down again, and that explains as much without the increment.
    fn most_wanted(&self) -> Content {
        let mut wanted = None;
        let mut at = self.events.first();
        while !self.events.events[at].is_end {
            let operation = &self.operations[self.events.events[at].operation];
            wanted = wanted.max(match (operation.call, operation.outcome) {
                (Call::Incr(by), Outcome::Ok(Answer::Sum(sum))) => Some(sum.saturating_sub(by)),
                (_, Outcome::Ok(Answer::Content(content) | Answer::Swapped { previous: content, .. })) => content,
                (_, _) => None,
            });
            at = self.events.next[at];
        }
        let swaps = self.unknown.iter().filter_map(|alike| match alike.call {
            Call::Swap { expected, .. } => expected,
            _ => None,
        });
        wanted.max(swaps.max())
    }

    /// Goes on with what was just placed, unless the same was tried before, or the same with no more of the unknown
    /// writes used: what could be placed from here could have been placed from there.
    fn go_on(&mut self, choice: Choice, after: Content) -> bool {
        self.path.push((choice, self.content));
        self.content = after;
        if self.events.first() == 0 {
            return true;
        }
        let used: Used = self.unknown.iter().map(|alike| alike.placed).collect();
        let tried = self.tried.entry((self.events.placed(), after)).or_default();
        if tried.iter().any(|before| before.iter().zip(&used).all(|(before, used)| before <= used)) {
            self.step_back();
            return false;
        }
        tried.push(used);
        self.pairs += 1;
        true
    }

    fn step_back(&mut self) -> Option<Choice> {
        let (last, before) = self.path.pop()?;
        match last {
            Choice::Answered(at) => self.events.give_back(at),
            Choice::Unknown(alike) => self.unknown[alike].placed -= 1,
        }
        self.content = before;
        Some(last)
    }
}

fn search(operations: &[Operation]) -> Found {
    Search::new(operations).run()
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
