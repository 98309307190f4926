//! A layout as the suite sees it, and a few words to write cases with.

use hedgerow_env::sim::SimDisk;
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, ReplicaId, Term};
use hedgerow_wal::{Append, Collected, Durability, Failed, Halt, Log, OpenError, Options, Recovered};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

pub(crate) const DIR: &str = "/data/log";

/// How a set of logs is opened.
pub(crate) trait Layout {
    fn open(&self, disk: &SimDisk, options: Options) -> Result<(Box<dyn Logs>, Vec<Recovered>), OpenError>;
}

/// An open set of logs.
pub(crate) trait Logs {
    fn write(&mut self, appends: &[Append]) -> Result<(), Halt>;
    fn write_rest(&mut self, appends: &mut VecDeque<Append>) -> Result<(), Halt>;
    fn sync(&mut self) -> Result<(), Failed>;
    fn truncate_prefix(&mut self, group: GroupId, through: Index);
    fn remove_group(&mut self, group: GroupId);
    fn collect(&mut self) -> Result<Collected, Halt>;
    fn prepare(&mut self);
    fn mark(&mut self);
    fn entries(&self, group: GroupId, low: Index, high: Index, size_max: usize) -> std::io::Result<Vec<Entry>>;
    fn segment_count(&self) -> usize;
    fn has_unknown_loss(&self) -> bool;
    fn mark_problem(&self) -> Option<&str>;

    fn commit(&mut self, appends: &[Append]) {
        self.write(appends).unwrap();
        self.sync().unwrap();
    }
}

/// One log for all groups of a data directory.
pub(crate) struct Disk;

impl Layout for Disk {
    fn open(&self, disk: &SimDisk, options: Options) -> Result<(Box<dyn Logs>, Vec<Recovered>), OpenError> {
        let (log, recovered) = Log::open(Arc::new(disk.clone()), Path::new(DIR), options)?;
        Ok((Box::new(log), recovered))
    }
}

impl Logs for Log {
    fn write(&mut self, appends: &[Append]) -> Result<(), Halt> {
        self.write(appends)
    }
    fn write_rest(&mut self, appends: &mut VecDeque<Append>) -> Result<(), Halt> {
        self.write_rest(appends)
    }
    fn sync(&mut self) -> Result<(), Failed> {
        self.sync()
    }
    fn truncate_prefix(&mut self, group: GroupId, through: Index) {
        self.truncate_prefix(group, through);
    }
    fn remove_group(&mut self, group: GroupId) {
        self.remove_group(group);
    }
    fn collect(&mut self) -> Result<Collected, Halt> {
        self.collect()
    }
    fn prepare(&mut self) {
        self.prepare();
    }
    fn mark(&mut self) {
        self.mark();
    }
    fn entries(&self, group: GroupId, low: Index, high: Index, size_max: usize) -> std::io::Result<Vec<Entry>> {
        self.reader().entries(group, low, high, size_max)
    }
    fn segment_count(&self) -> usize {
        self.segments().count()
    }
    fn has_unknown_loss(&self) -> bool {
        self.has_unknown_loss()
    }
    fn mark_problem(&self) -> Option<&str> {
        self.mark_problem()
    }
}

pub(crate) fn options() -> Options {
    Options { segment_size: 20 << 10, durability: Durability::Fsync, segments_max: 4, recycle_max: 2 }
}

pub(crate) fn group(number: u32) -> GroupId {
    GroupId::new(1, number)
}

pub(crate) fn entry(index: Index, term: Term, data: &[u8]) -> Entry {
    Entry { index, term, kind: EntryKind::Normal, data: data.to_vec().into() }
}

/// `count` entries from `first` on, of 100 bytes each.
pub(crate) fn entries(first: Index, count: u64, term: Term) -> Vec<Entry> {
    (first..first + count).map(|index| entry(index, term, &[index as u8; 100])).collect()
}

pub(crate) fn hard_state(term: Term, commit: Index) -> HardState {
    HardState { term, vote: Some(ReplicaId(term)), commit }
}

pub(crate) fn append(number: u32, entries: Vec<Entry>) -> Append {
    Append { group: group(number), replica: ReplicaId(7), reset: None, entries, hard_state: None }
}

pub(crate) fn at(term: Term, index: Index) -> LogPosition {
    LogPosition { term, index }
}

pub(crate) fn find(recovered: &[Recovered], number: u32) -> &Recovered {
    recovered.iter().find(|found| found.group == group(number)).unwrap()
}

/// All entries of a group as recovered, checked to be what the log says.
pub(crate) fn read_back(logs: &dyn Logs, found: &Recovered) -> Vec<Entry> {
    let (low, high) = (found.start.index + 1, found.last.index + 1);
    let entries = if low == high { Vec::new() } else { logs.entries(found.group, low, high, usize::MAX).unwrap() };
    assert!(entries.iter().map(|entry| entry.index).eq(low..high), "no gap");
    assert_eq!(entries.last().map_or(found.start, Entry::position), found.last);
    entries
}
