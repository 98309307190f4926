//! A history as JSON lines, for judging it again with porcupine (github.com/anishathalye/porcupine).
//!
//! One line per operation, in the order of their ends:
//!
//! ```text
//! {"client":3,"key":1,"call":{"kind":"swap","expected":4,"new":9},"start_ns":120,"end_ns":480,
//!  "outcome":"ok","answer":{"is_applied":true,"previous":4}}
//! ```
//!
//! | field | meaning | in `porcupine.Operation` |
//! |---|---|---|
//! | `client` | one operation at a time each | `ClientId` (a new one after every `unknown`) |
//! | `key` | partition the model by it (`Model.Partition`) | part of `Input` |
//! | `call.kind` | `get` (`level`; leave out all but `linearizable`), `put` (`value`), `remove`, `incr` (`by`), `swap` (`expected`, `new`) | `Input` |
//! | `machine`, `index` | who answered, from 1, and at which position of the partition's log; null if not known | |
//! | `start_ns`, `end_ns` | virtual nanoseconds; `end_ns` is null for an `unknown` outcome | `Call`, `Return` (null = the largest of the file + 1) |
//! | `outcome` | `ok`, `failed` (leave the line out), `unknown` (any output, or no effect) | |
//! | `answer` | `get`: `content`; `incr`: `sum`; `swap`: `is_applied`, `previous`; otherwise empty | `Output` |
//!
//! The model's state is one nullable integer per key, null at first: `put` sets it, `remove` makes it null, `incr` adds to it
//! (null counts as 0), `swap` sets it if it equals `expected`. `Step` of an `unknown` operation accepts with either state:
//! use `NondeterministicModel`, returning both.

use crate::history::{Answer, Call, History, Operation, Outcome};
use serde_json::{Value, json};

/// The whole history, one line per operation.
pub fn json_lines(history: &History) -> String {
    history.operations().iter().map(|operation| format!("{}\n", line(operation))).collect()
}

fn line(operation: &Operation) -> Value {
    let call = match operation.call {
        Call::Get(level) => json!({ "kind": "get", "level": level.to_string() }),
        Call::Put(value) => json!({ "kind": "put", "value": value }),
        Call::Remove => json!({ "kind": "remove" }),
        Call::Incr(by) => json!({ "kind": "incr", "by": by }),
        Call::Swap { expected, new } => json!({ "kind": "swap", "expected": expected, "new": new }),
    };
    let (outcome, end, answer) = match operation.outcome {
        Outcome::Ok(answer) => ("ok", Some(operation.end), answer_fields(answer)),
        Outcome::Failed => ("failed", Some(operation.end), json!({})),
        Outcome::Unknown => ("unknown", None, json!({})),
    };
    json!({
        "client": operation.client, "key": operation.key, "call": call, "start_ns": operation.start, "end_ns": end,
        "outcome": outcome, "answer": answer, "machine": operation.seen.map(|seen| seen.machine + 1),
        "index": operation.seen.and_then(|seen| seen.index),
    })
}

fn answer_fields(answer: Answer) -> Value {
    match answer {
        Answer::Done => json!({}),
        Answer::Content(content) => json!({ "content": content }),
        Answer::Sum(sum) => json!({ "sum": sum }),
        Answer::Swapped { is_applied, previous } => json!({ "is_applied": is_applied, "previous": previous }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Seen;

    #[test]
    fn the_form_is_fixed() {
        let mut history = History::default();
        let call = Call::Swap { expected: Some(4), new: 9 };
        let outcome = Outcome::Ok(Answer::Swapped { is_applied: false, previous: None });
        let seen = Seen { machine: 1, index: Some(7), staleness: None, asked: 130, served: 300, floor: 0 };
        let swap = Operation { client: 3, key: 1, call, start: 120, end: 480, outcome, seen: Some(seen) };
        history.push(swap);
        let (call, outcome) = (Call::Put(2), Outcome::Unknown);
        history.push(Operation { call, start: 500, end: 510, outcome, seen: None, ..swap });
        let (call, outcome) = (Call::GET, Outcome::Failed);
        history.push(Operation { call, start: 520, end: 530, outcome, seen: None, ..swap });
        let lines = json_lines(&history);
        let parsed: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let swap = json!({ "kind": "swap", "expected": 4, "new": 9 });
        let answer = json!({ "is_applied": false, "previous": null });
        assert_eq!(
            parsed[0],
            json!({ "client": 3, "key": 1, "call": swap, "start_ns": 120, "end_ns": 480, "outcome": "ok", "answer": answer,
                    "machine": 2, "index": 7 })
        );
        assert_eq!(parsed[1]["end_ns"], Value::Null);
        assert_eq!(parsed[1]["outcome"], "unknown");
        assert_eq!(parsed[2]["call"], json!({ "kind": "get", "level": "linearizable" }));
    }
}
