//! All judges of one episode: an order of the linearizable operations, counters whose increments are told apart, and the reads
//! that may be old.

use crate::fresh::{self, Record};
use crate::workload::is_counter;
use hedgerow_sim::history::{Answer, History, Outcome};
use hedgerow_sim::{linear, once};

/// Judges an episode, whose `records` end with a linearizable read of every key by client `last_reader`. The error says which
/// promise is broken. A search that is too large to finish is an error too.
pub(crate) fn check(records: &[Record], last_reader: u32) -> Result<(), String> {
    let mut history = History::default();
    records.iter().for_each(|record| history.push(record.operation));
    let verdict = linear::check(&history);
    if let Some(violation) = verdict.violations.first() {
        return Err(format!("the history is not linearizable\n{violation}"));
    }
    if !verdict.undecided.is_empty() {
        return Err(format!("no verdict on the keys {:?}: their histories are too large to search", verdict.undecided));
    }
    for (key, operations) in history.by_key() {
        let last = operations.iter().rfind(|operation| operation.client == last_reader);
        let Some(Outcome::Ok(Answer::Content(content))) = last.map(|operation| operation.outcome) else {
            return Err(format!("key {key} was not read in the end"));
        };
        if is_counter(key) {
            once::check(&operations, content).map_err(|why| format!("counter {key}: {why}"))?;
        }
    }
    fresh::check(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_sim::history::{Call, Operation, Time};
    use hedgerow_types::ReadLevel;

    const LAST: u32 = 99;

    /// One operation after the other.
    fn records(operations: &[(u32, u32, Call, Outcome)]) -> Vec<Record> {
        let one = |(at, (client, key, call, outcome)): (usize, &(u32, u32, Call, Outcome))| {
            let (start, end) = (at as Time * 10 + 1, at as Time * 10 + 5);
            let operation =
                Operation { client: *client, key: *key, call: *call, start, end, outcome: *outcome, seen: None };
            Record { operation, partition: 0, is_in_session: true }
        };
        operations.iter().enumerate().map(one).collect()
    }

    const fn content(number: i64) -> Outcome {
        Outcome::Ok(Answer::Content(Some(number)))
    }

    fn good() -> Vec<(u32, u32, Call, Outcome)> {
        vec![
            (1, 0, Call::Put(1), Outcome::Ok(Answer::Done)),
            (2, 0, Call::GET, content(1)),
            (
                1,
                0,
                Call::Swap { expected: Some(1), new: 2 },
                Outcome::Ok(Answer::Swapped { is_applied: true, previous: Some(1) }),
            ),
            (2, 1_000, Call::Incr(once::amount(0)), Outcome::Ok(Answer::Sum(1))),
            (1, 1_000, Call::Incr(once::amount(1)), Outcome::Ok(Answer::Sum(5))),
            (1, 1_000, Call::Incr(once::amount(2)), Outcome::Unknown),
            (2, 0, Call::Get(ReadLevel::Session), content(2)),
            (1, 0, Call::Put(3), Outcome::Failed),
            (LAST, 0, Call::GET, content(2)),
            (LAST, 1_000, Call::GET, content(5)),
        ]
    }

    #[test]
    fn a_good_history_passes_and_each_judge_notices_what_is_wrong() {
        assert_eq!(check(&records(&good()), LAST), Ok(()));
        let with = |at: usize, outcome: Outcome| {
            let mut operations = good();
            operations[at].3 = outcome;
            check(&records(&operations), LAST).expect_err("it is wrong")
        };
        // A swapped value.
        assert!(with(1, content(2)).contains("not linearizable"));
        assert!(with(8, content(1)).contains("not linearizable"));
        // A write that failed is seen.
        assert!(with(8, content(3)).contains("not linearizable"));
        // A session that goes back from its own write.
        let mut back = good();
        back[6] = (1, 0, Call::Get(ReadLevel::Session), content(1));
        assert!(check(&records(&back), LAST).expect_err("it is wrong").contains("a session went back"));
        // Nothing is said about a key.
        assert!(with(9, Outcome::Failed).contains("was not read"));
    }

    /// Increments without any read between: the search for an order has nothing to compare with but the last sum.
    #[test]
    fn a_lost_and_a_doubled_increment_are_noticed() {
        let of = |last: i64| {
            let incr = |number| (1, 1_000, Call::Incr(once::amount(number)), Outcome::Unknown);
            let sure = (1, 1_000, Call::Incr(once::amount(2)), Outcome::Ok(Answer::Sum(21)));
            records(&[incr(0), incr(1), sure, (LAST, 1_000, Call::GET, content(last))])
        };
        assert_eq!(check(&of(21), LAST), Ok(()));
        for wrong in [5, 16, 22, 37] {
            assert!(check(&of(wrong), LAST).is_err(), "{wrong}");
            let history: Vec<Operation> = of(wrong).iter().map(|record| record.operation).collect();
            if wrong != 16 {
                // The counter alone says so, without the search.
                once::check(&history, Some(wrong)).expect_err("it is wrong");
            }
        }
    }
}
