//! The judge of reads that may be old: from the times and the values alone, without knowing of a log.
//!
//! No value is written twice, so a read tells which write it saw. A write is *overwritten since T* if another one of the key
//! began after the first was known to have happened, and was acknowledged before T. Whatever a read promises is then a T before which
//! nothing may be missing:
//!
//! | level | T |
//! |---|---|
//! | bounded | the read's beginning less the bound |
//! | any, in a session | the latest beginning of what the session saw of the partition before: its writes, and the writes whose values it read. Each is behind everything that was acknowledged before it began. A linearizable read says that of its own record only, since a majority may have vouched for no more (`docs/decisions/018-reads-from-a-majority.md`) |
//! | eventual | none; but the value was written, and not after the read |
//!
//! All times are readings of one steady clock of one machine, the nodes' too, so that no error of clocks is allowed for.

use hedgerow_sim::history::{Answer, Call, Content, Operation, Outcome, Time, seconds};
use hedgerow_sim::once;
use hedgerow_types::ReadLevel;
use std::collections::BTreeMap;

use crate::workload::is_counter;

/// An operation, and what the judges of sessions know besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its client is the session, if it was in one.
    pub(crate) operation: Operation,
    pub(crate) partition: u32,
    pub(crate) is_in_session: bool,
}

/// A write that can be what a read saw.
#[derive(Clone, Copy)]
struct Candidate {
    start: Time,
    /// When it had happened at the latest; the end of time if nobody knows.
    known: Time,
}

/// A write that surely happened.
#[derive(Clone, Copy)]
struct Overwrite {
    start: Time,
    end: Time,
    operation: Operation,
}

/// What is known of one key.
struct Key {
    /// By what they leave there.
    candidates: BTreeMap<Content, Vec<Candidate>>,
    overwrites: Vec<Overwrite>,
    increments: Vec<Operation>,
}

/// What a session has seen.
#[derive(Default)]
struct Seen {
    /// By partition: nothing from before may be missing.
    since: BTreeMap<u32, Time>,
    /// By key: nothing of it from before may be missing either.
    checked: BTreeMap<u32, Time>,
    /// By key: when the latest write of it began that the session made or read.
    latest: BTreeMap<u32, Time>,
    /// By counter: the increments that the session was shown.
    sums: BTreeMap<u32, i64>,
}

/// Judges all reads that are not linearizable, and what replies say of their own age. `records` are all of an episode.
pub(crate) fn check(records: &[Record]) -> Result<(), String> {
    let keys = learn(records);
    let mut order: Vec<&Record> = records.iter().collect();
    order.sort_by_key(|record| record.operation.start);
    let mut sessions: BTreeMap<u32, Seen> = BTreeMap::new();
    for record in order {
        let Record { operation, partition, is_in_session } = record;
        let key = &keys[&operation.key];
        let seen = sessions.entry(operation.client).or_default();
        judge(record, key, seen).map_err(|why| format!("{why}\n  {operation}"))?;
        if *is_in_session {
            seen.note(operation, *partition, key);
        }
    }
    Ok(())
}

fn judge(record: &Record, key: &Key, seen: &Seen) -> Result<(), String> {
    let operation = &record.operation;
    let (Call::Get(level), Outcome::Ok(Answer::Content(content))) = (operation.call, operation.outcome) else {
        return Ok(());
    };
    key.judge_written(operation, content)?;
    if let ReadLevel::Bounded(bound) = level {
        let bound = bound.as_nanos() as Time;
        if let Some(staleness) = operation.seen.and_then(|seen| seen.staleness)
            && staleness > bound
        {
            return Err(format!("a bounded read says that it is {:.3} s old", seconds(staleness)));
        }
        let since = operation.start.saturating_sub(bound);
        key.judge_since(operation, content, since, 0).map_err(|why| format!("a bounded read is too old: {why}"))?;
    }
    if record.is_in_session {
        judge_in_session(record, content, key, seen).map_err(|why| format!("a session went back: {why}"))?;
    }
    Ok(())
}

/// Whatever the level, a session is shown nothing older than before.
fn judge_in_session(record: &Record, content: Content, key: &Key, seen: &Seen) -> Result<(), String> {
    let Record { operation, partition, .. } = record;
    if let Some(told) = operation.seen
        && told.index.is_some_and(|index| index < told.floor)
    {
        return Err(format!("it is at index {:?}, its session saw {}", told.index, told.floor));
    }
    let at = |times: &BTreeMap<u32, Time>, number| times.get(number).copied().unwrap_or(0);
    let since = at(&seen.since, partition).max(at(&seen.checked, &operation.key));
    let latest = at(&seen.latest, &operation.key);
    key.judge_since(operation, content, since, latest)?;
    let shown = seen.sums.get(&operation.key).copied().unwrap_or(0);
    if is_counter(operation.key) && content.unwrap_or(0) & shown != shown {
        return Err(format!("it was shown increments that add up to {shown}"));
    }
    Ok(())
}

fn learn(records: &[Record]) -> BTreeMap<u32, Key> {
    let mut keys: BTreeMap<u32, Key> = BTreeMap::new();
    for Record { operation, .. } in records {
        let key = keys.entry(operation.key).or_default();
        if operation.outcome != Outcome::Failed {
            key.learn_write(operation);
        }
    }
    for Record { operation, .. } in records {
        let key = keys.get_mut(&operation.key).expect("it was made above");
        if let Outcome::Ok(Answer::Content(content) | Answer::Swapped { previous: content, .. }) = operation.outcome
            && content.is_some()
        {
            // Whoever saw the only write of a value knows that it has happened.
            let writes = key.candidates.get_mut(&content).into_iter().flatten();
            writes.for_each(|write| write.known = write.known.min(operation.end));
        }
    }
    keys
}

impl Default for Key {
    /// Absent from the beginning.
    fn default() -> Self {
        let absent = (None, vec![Candidate { start: 0, known: 0 }]);
        Self { candidates: BTreeMap::from([absent]), overwrites: Vec::new(), increments: Vec::new() }
    }
}

impl Key {
    fn learn_write(&mut self, operation: &Operation) {
        let content = match (operation.call, operation.outcome) {
            (Call::Get(_), _) | (_, Outcome::Ok(Answer::Swapped { is_applied: false, .. })) => return,
            (Call::Put(value) | Call::Swap { new: value, .. }, _) => Some(value),
            (Call::Remove, _) => None,
            (Call::Incr(_), _) => return self.increments.push(*operation),
        };
        let (start, end, is_sure) = (operation.start, operation.end, matches!(operation.outcome, Outcome::Ok(_)));
        let known = if is_sure { end } else { Time::MAX };
        self.candidates.entry(content).or_default().push(Candidate { start, known });
        if is_sure {
            self.overwrites.push(Overwrite { start, end, operation: *operation });
        }
    }

    /// Somebody has written what was read, before the read ended.
    fn judge_written(&self, read: &Operation, content: Content) -> Result<(), String> {
        if is_counter(read.key) {
            let sent = |by: i64| {
                let is_of = |it: &&Operation| it.call == Call::Incr(by) && it.start <= read.end;
                self.increments.iter().any(|it| is_of(&it))
            };
            let is_sent = content.is_none_or(|sum| sum > 0 && digits(sum).all(|(by, digit)| digit == 1 && sent(by)));
            return if is_sent { Ok(()) } else { Err("the increments that were sent do not add up to it".into()) };
        }
        let mut writes = self.candidates.get(&content).into_iter().flatten();
        if writes.any(|write| write.start <= read.end) { Ok(()) } else { Err("nobody had written that".into()) }
    }

    /// What was read had not been overwritten by what was acknowledged before `since`, nor had it happened before the write
    /// that began at `latest`.
    fn judge_since(&self, read: &Operation, content: Content, since: Time, latest: Time) -> Result<(), String> {
        if is_counter(read.key) {
            let sum = content.unwrap_or(0);
            let is_missing = |it: &&Operation| {
                let Call::Incr(by) = it.call else { return false };
                matches!(it.outcome, Outcome::Ok(_)) && it.end < since && sum & by == 0
            };
            return match self.increments.iter().find(is_missing) {
                Some(missing) => Err(format!("this is missing\n  {missing}")),
                None => Ok(()),
            };
        }
        let mut why = None;
        for write in self.candidates.get(&content).into_iter().flatten().filter(|write| write.start <= read.end) {
            let over = self.overwrites.iter().find(|over| write.known < over.start && over.end < since);
            why = match over {
                Some(over) => Some(format!("what it saw had been overwritten by\n  {}", over.operation)),
                None if write.known < latest => {
                    Some(format!("it had seen a write that began later, at {:.6}", seconds(latest)))
                }
                None => return Ok(()),
            };
        }
        why.map_or(Ok(()), Err)
    }
}

impl Seen {
    fn note(&mut self, operation: &Operation, partition: u32, key: &Key) {
        let Outcome::Ok(answer) = operation.outcome else { return };
        let start = operation.start;
        let (since, latest) = match (operation.call, answer) {
            (Call::Get(level), Answer::Content(content)) => {
                // Absence may be any of several removals.
                let write = content.and_then(|_| key.candidates.get(&content)?.first()).map_or(0, |write| write.start);
                let since = match level {
                    ReadLevel::Bounded(bound) => start.saturating_sub(bound.as_nanos() as Time),
                    ReadLevel::Linearizable | ReadLevel::Session | ReadLevel::Eventual => 0,
                };
                if level == ReadLevel::Linearizable {
                    raise(&mut self.checked, operation.key, start);
                }
                (since.max(write), write)
            }
            (Call::Swap { .. }, Answer::Swapped { is_applied: false, .. }) | (Call::Get(_), _) => (start, 0),
            (Call::Put(_) | Call::Remove | Call::Incr(_) | Call::Swap { .. }, _) => (start, start),
        };
        raise(&mut self.since, partition, since);
        raise(&mut self.latest, operation.key, latest);
        if let Answer::Sum(sum) | Answer::Content(Some(sum)) = answer {
            *self.sums.entry(operation.key).or_default() |= sum;
        }
    }
}

fn raise(times: &mut BTreeMap<u32, Time>, number: u32, to: Time) {
    let known = times.entry(number).or_default();
    *known = to.max(*known);
}

/// What each increment of `sum` added, and how often.
fn digits(sum: i64) -> impl Iterator<Item = (i64, i64)> {
    let digit = move |number: u32| (once::amount(number), sum >> (2 * number) & 3);
    (0..once::INCREMENTS_MAX).map(digit).filter(|(_, digit)| *digit > 0)
}

#[cfg(test)]
#[path = "fresh_tests.rs"]
mod tests;
