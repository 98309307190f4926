//! The second judge: on a counter key every increment has a digit of its own, so the number itself tells which were
//! applied, and how often.
//!
//! Increment number `n` of a counter adds `4^n`. Applied once it shows as digit 1 in base 4, applied twice as 2, and
//! three applications still do not disturb the neighbour. The check knows nothing of the order of operations, so it does
//! not share a mistake with the search of `linear.rs`.

use crate::history::{Call, Content, Operation, Outcome};
use std::collections::BTreeMap;

/// Increments that one counter key can tell apart.
pub const INCREMENTS_MAX: u32 = 31;

/// What increment number `number` (below [`INCREMENTS_MAX`]) adds.
pub const fn amount(number: u32) -> i64 {
    debug_assert!(number < INCREMENTS_MAX);
    1 << (2 * number)
}

/// Counters, each of which is added to until its increments can no longer be told apart.
#[derive(Debug)]
pub struct Counters {
    key: u32,
    increments: u32,
}

impl Counters {
    /// The first is the record `key`, and every other one the record after the one before.
    pub const fn from(key: u32) -> Self {
        Self { key, increments: 0 }
    }

    /// The one that is added to now.
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// The next increment: of which counter, and what.
    pub fn increment(&mut self) -> (u32, Call) {
        if self.increments == INCREMENTS_MAX {
            self.key += 1;
            self.increments = 0;
        }
        self.increments += 1;
        (self.key, Call::Incr(amount(self.increments - 1)))
    }
}

/// Compares a counter's final content with the increments that were sent to it. `operations` are all of one counter
/// key. The error says which increment is missing, doubled or was never sent.
pub fn check(operations: &[Operation], last: Content) -> Result<(), String> {
    let mut sent: BTreeMap<u32, Operation> = BTreeMap::new();
    for operation in operations {
        if let Call::Incr(by) = operation.call
            && sent.insert(by.trailing_zeros() / 2, *operation).is_some()
        {
            return Err(format!("two increments share the amount {by}: {operation}"));
        }
    }
    let number = last.unwrap_or(0);
    if number < 0 {
        return Err(format!("the counter holds {number}, which no increments add up to"));
    }
    for place in 0..=INCREMENTS_MAX {
        let digit = (number >> (2 * place)) & 3;
        match (sent.get(&place).map(|operation| (operation, operation.outcome)), digit) {
            (None, 0) | (Some((_, Outcome::Ok(_))), 1) | (Some((_, Outcome::Failed)), 0) => {}
            (Some((_, Outcome::Unknown)), 0 | 1) => {}
            (None, _) => return Err(format!("the counter holds {number}: digit {place} was never added")),
            (Some((operation, Outcome::Ok(_))), 0) => {
                return Err(format!("an acknowledged write is lost: {operation}"));
            }
            (Some((operation, Outcome::Failed)), 1) => return Err(format!("a failed write took effect: {operation}")),
            (Some((operation, _)), times) => return Err(format!("applied {times} times: {operation}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Answer;

    fn incr(number: u32, outcome: Outcome) -> Operation {
        Operation { client: 1, key: 0, call: Call::Incr(amount(number)), start: 0, end: 1, outcome, seen: None }
    }

    const OK: Outcome = Outcome::Ok(Answer::Sum(0));

    #[test]
    fn each_increment_counts_once() {
        let sent = [incr(0, OK), incr(1, Outcome::Unknown), incr(2, OK), incr(3, Outcome::Failed)];
        assert_eq!(check(&sent, Some(1 + 16)), Ok(()));
        assert_eq!(check(&sent, Some(1 + 4 + 16)), Ok(()));
        for (wrong, why) in [
            (1 + 16 + 16, "applied 2 times"),
            (1 + 1 + 16, "applied 2 times"),
            (1 + 4 + 4 + 16, "applied 2 times"),
            (1 + 4 + 4 + 4 + 16, "applied 3 times"),
            (16, "lost"),
            (1 + 16 + 64, "failed write took effect"),
            (1 + 16 + 256, "never added"),
            (-1, "no increments"),
        ] {
            let error = check(&sent, Some(wrong)).expect_err("wrong");
            assert!(error.contains(why), "{wrong}: {error}");
        }
        assert!(check(&sent, None).is_err());
    }

    #[test]
    fn the_largest_counter_fits_its_type() {
        let sent: Vec<Operation> = (0..INCREMENTS_MAX).map(|number| incr(number, OK)).collect();
        let all = (0..INCREMENTS_MAX).map(amount).sum();
        assert_eq!(check(&sent, Some(all)), Ok(()));
    }
}
