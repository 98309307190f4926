//! The properties of the world that must hold at every step (Raft, figure 3, and linearizability of the register).
//!
//! The register's value is the index of the last write, so a read is linearizable if the index it returns is not below
//! the largest one that anybody knew when it began: from an acknowledged write or from a finished read.

use hedgerow_types::log::Entry;
use hedgerow_types::{Index, Term};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Check {
    leaders: BTreeMap<Term, u64>,
    committed: BTreeMap<Index, Entry>,
    /// The largest index that a client knows of.
    pub floor: Index,
    pub writes: u64,
    pub reads: u64,
    /// What the last read returned.
    pub read_last: Index,
    pub refused: u64,
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

    pub fn acknowledged(&mut self, _ticket: u64, index: Index) {
        self.writes += 1;
        self.floor = self.floor.max(index);
    }

    pub fn read_done(&mut self, id: u64, floor: Index, index: Index) {
        self.reads += 1;
        self.read_last = index;
        if index < floor {
            self.fail(format!("{id} answers a read with {index}, but {floor} was known when it began"));
        }
        self.floor = self.floor.max(index);
    }

    /// With a lease and everything applied, no read has a reason to wait.
    pub fn nothing_to_wait_for(&mut self, id: u64, reads_waiting: usize) {
        if reads_waiting > 0 {
            self.fail(format!("{id} lets {reads_waiting} read(s) wait, and nothing will end that"));
        }
    }

    pub fn last_committed(&self) -> Index {
        self.committed.keys().next_back().copied().unwrap_or(0)
    }
}
