//! The properties of the world that must hold at every step (Raft, figure 3, and linearizability of the register).
//!
//! The register's value is the index of the last write, so a read is linearizable if the index it returns is not below
//! the largest one that anybody knew when it began: from an acknowledged write or from a finished read. It is as fresh as it
//! says if the index is not below the largest one that anybody knew so long ago, in the world's own time.

use super::readers::{Read, data_of, is_of_register};
use hedgerow_replication::{FIRST, ReadNeed};
use hedgerow_types::log::Entry;
use hedgerow_types::{Index, Lag, Term};
use std::collections::BTreeMap;
use std::time::Duration;

/// Clocks count whole nanoseconds, so that two readings may be this much further apart than they say.
const ROUNDING: u64 = 5;

/// A read that was served.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub id: u64,
    pub read: Read,
    pub staleness: Option<Duration>,
    /// What the storage held, and what the read returned.
    pub applied: Index,
    pub value: Index,
}

#[derive(Default)]
pub struct Check {
    leaders: BTreeMap<Term, u64>,
    committed: BTreeMap<Index, Entry>,
    /// The largest index that a client knows of, and since when it and the ones before were known.
    pub floor: Index,
    floors: Vec<(u64, Index)>,
    pub writes: u64,
    pub reads: u64,
    /// What the last read returned.
    pub read_last: Index,
    /// How old the last read's data was said to be.
    pub staleness_last: Option<Duration>,
    /// Reads served by their need: the latest, an index, a bound, anything.
    pub served: [u64; 4],
    pub refused: u64,
    pub lagging: u64,
    pub lag_last: Lag,
    pub violation: Option<String>,
    /// Violations do not count: the replicas are lied to.
    pub is_lenient: bool,
}

impl Check {
    fn fail(&mut self, what: String) {
        if !self.is_lenient {
            self.violation.get_or_insert(what);
        }
    }

    /// One leader per term, and it holds everything that was committed.
    pub fn elected(&mut self, id: u64, term: Term, log: &BTreeMap<Index, Term>) {
        let leader = *self.leaders.entry(term).or_insert(id);
        if leader != id {
            self.fail(format!("{leader} and {id} both lead in term {term}"));
        }
        let begin = log.keys().next().copied().unwrap_or(0);
        let missing = self.committed.range(begin..).find(|(index, entry)| log.get(index) != Some(&entry.term));
        if let Some((index, entry)) = missing.filter(|(_, entry)| entry.term < term) {
            let what = format!("{id} leads in term {term} without entry {index} of term {}", entry.term);
            self.fail(what);
        }
    }

    /// All replicas apply the same entries.
    pub fn applied(&mut self, id: u64, entry: &Entry) {
        let known = self.committed.entry(entry.index).or_insert_with(|| entry.clone());
        if known != entry {
            let what = format!("{id} applies {entry:?}, another replica {known:?}");
            self.fail(what);
        }
    }

    /// At the position that the caller of write `ticket` was told stands that write.
    pub fn acknowledged(&mut self, time: u64, id: u64, ticket: u64, entry: &Entry) {
        let is_of_register = is_of_register(&entry.data);
        if entry.data != data_of(ticket, is_of_register) {
            self.fail(format!("{id} tells the caller of write {ticket} that it is {entry:?}"));
        }
        self.writes += 1;
        if is_of_register {
            self.raise(time, entry.index);
        }
    }

    fn raise(&mut self, time: u64, index: Index) {
        if index > self.floor {
            self.floor = index;
            self.floors.push((time, index));
        }
    }

    /// The largest index that a client knew before `time`.
    fn floor_before(&self, time: u64) -> Index {
        let known = self.floors.partition_point(|&(since, _)| since < time);
        known.checked_sub(1).map_or(0, |last| self.floors[last].1)
    }

    /// The read holds what its level promises, and what it says of its age is true.
    pub fn read_done(&mut self, time: u64, done: Done) {
        let Done { id, read, staleness, applied, value } = done;
        self.reads += 1;
        (self.read_last, self.staleness_last) = (value, staleness);
        if applied < FIRST.index {
            self.fail(format!("{id} answers a read before it holds anything"));
        }
        let kind = match read.need {
            ReadNeed::Latest => {
                if value < read.floor {
                    let floor = read.floor;
                    self.fail(format!("{id} answers a read with {value}, but {floor} was known when it began"));
                }
                0
            }
            ReadNeed::AtLeast(index) => {
                if applied < index {
                    self.fail(format!("{id} answers a session that saw {index} with {applied}"));
                }
                1
            }
            ReadNeed::Within(bound) => {
                if staleness.is_none_or(|staleness| staleness > bound) {
                    self.fail(format!("{id} answers with data of age {staleness:?} a read that wants {bound:?}"));
                }
                2
            }
            ReadNeed::Anything => 3,
        };
        self.served[kind] += 1;
        // A read that needed the latest is as old as its arrival when it is served.
        if let Some(staleness) = staleness.filter(|_| read.need != ReadNeed::Latest) {
            let back = u64::try_from(staleness.as_nanos()).unwrap_or(u64::MAX).saturating_add(ROUNDING);
            let floor = self.floor_before(time.saturating_sub(back));
            if value < floor {
                self.fail(format!("{id} says that {value} is at most {staleness:?} old, but {floor} was known then"));
            }
        }
        self.raise(time, value);
    }

    pub fn lagging(&mut self, lag: Lag) {
        self.lagging += 1;
        self.lag_last = lag;
    }

    /// With a lease and everything applied, no read has a reason to wait.
    pub fn nothing_to_wait_for(&mut self, id: u64, reads_waiting: usize) {
        if reads_waiting > 0 {
            self.fail(format!("{id} lets {reads_waiting} read(s) wait, and nothing will end that"));
        }
    }

    /// A replica that does not lead ends every read after a while.
    pub fn nothing_waits_long(&mut self, id: u64, waits_long: bool) {
        if waits_long {
            self.fail(format!("{id} lets a read wait for ever"));
        }
    }

    pub fn last_committed(&self) -> Index {
        self.committed.keys().next_back().copied().unwrap_or(0)
    }
}
