//! A replica as a node keeps it: entries are durable in the log before anybody is told, then applied, then flushed, and only
//! what two flushes have is cut off the log. Storage and log together have to give back everything.

use crate::scenario::{Told, Word, tell};
use crate::{storage, wal};
use anyhow::{Context, Result, ensure};
use hedgerow_env::os::OsDisk;
use hedgerow_storage::{Partition, RocksEngines};
use hedgerow_types::log::{Entry, HardState};
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Begun, Durability, Log, Options, Recovered, Rounds, Submission};
use std::path::Path;
use std::sync::Arc;

const ENTRIES_PER_ROUND: u64 = 8;
const FLUSH_EVERY: u64 = 3;
const OPEN_EVERY: u64 = 11;
/// Rounds of the life after the crash.
const LATER_ROUNDS: u64 = 4;
const GROUP: GroupId = GroupId::new(1, 0);
const OPTIONS: Options =
    Options { segment_size: 20 << 10, durability: Durability::Fsync, segments_max: 4, recycle_max: 2 };

struct Replica {
    log: Rounds,
    partition: Partition,
    /// What the last flush but one has.
    flushed_before: u64,
    flushed: u64,
    // Last: it outlives the partition.
    _engines: RocksEngines,
}

impl Replica {
    /// Opens both, and applies what the log has and the storage has not. What the log had, if anything.
    fn open(root: &Path) -> Result<(Self, Option<Recovered>)> {
        let engines = storage::engines()?;
        let mut partition = storage::open(&engines, &root.join("replica")).context("opening the storage")?;
        let (log, found) = Log::open(Arc::new(OsDisk), &root.join("log"), OPTIONS).context("opening the log")?;
        let applied = partition.applied().index;
        if let Some(found) = found.first() {
            ensure!(!found.is_damaged, "a crash is taken for damage of the log");
            let (start, last) = (found.start.index, found.last.index);
            ensure!(applied >= start, "the storage is at {applied} and the log begins after {start}");
            ensure!(applied <= last, "the storage is at {applied} and the log ends at {last}");
            let entries = log.reader().entries(GROUP, applied + 1, last + 1, usize::MAX)?;
            partition.apply(&entries, None, &mut Vec::new())?;
            ensure!(partition.applied().index == last, "not all entries were read");
        }
        let log = Rounds::new(log);
        let replica = Self { log, partition, flushed_before: applied, flushed: applied, _engines: engines };
        Ok((replica, found.into_iter().next()))
    }

    fn round(&mut self, round: u64) -> Result<()> {
        let first = self.partition.applied().index + 1;
        let last = first + ENTRIES_PER_ROUND - 1;
        tell(Word::Given, last);
        let entries: Vec<Entry> = (first..=last).map(storage::entry).collect();
        let hard_state = HardState { term: 1, vote: Some(ReplicaId(1)), commit: first - 1 };
        let (replica, hard_state) = (ReplicaId(1), Some(hard_state));
        let append = Append { group: GROUP, replica, reset: None, entries: entries.clone(), hard_state };
        let truncations = vec![(GROUP, self.flushed_before)];
        self.log.submit(Submission { appends: vec![append], truncations, ticket: round, ..Submission::default() });
        ensure!(matches!(self.log.begin()?, Begun::Written), "a round with something in it");
        ensure!(self.log.finish()? == [round], "the round is done");
        tell(Word::Durable, last);
        self.partition.apply(&entries, None, &mut Vec::new())?;
        self.log.tend()?;
        self.log.mark(wal::clock(round));
        if round.is_multiple_of(FLUSH_EVERY) {
            let point = self.partition.flush_point();
            self.partition.engine().flush()?;
            self.partition.mark_flushed(point, u32::MAX);
            self.flushed_before = std::mem::replace(&mut self.flushed, last);
        }
        Ok(())
    }
}

/// What is recorded.
pub(crate) fn drive(root: &Path, rounds: u64) -> Result<()> {
    let (mut replica, _) = Replica::open(root)?;
    for round in 1..=rounds {
        replica.round(round)?;
        if round.is_multiple_of(OPEN_EVERY) {
            drop(replica);
            replica = Replica::open(root)?.0;
        }
    }
    Ok(())
}

/// What is recorded after a crash.
pub(crate) fn live_on(root: &Path) -> Result<()> {
    for _ in 0..2 {
        let (mut replica, _) = Replica::open(root)?;
        for round in 1..=LATER_ROUNDS {
            replica.round(round)?;
        }
    }
    Ok(())
}

/// What must hold after a crash, and in the life after it.
pub(crate) fn check(root: &Path, told: &Told) -> Result<()> {
    let (durable, given) = (told.largest(Word::Durable), told.largest(Word::Given));
    let (mut replica, found) = Replica::open(root)?;
    let applied = replica.partition.applied().index;
    ensure!((durable..=given).contains(&applied), "at {applied}, not within {durable} to {given}");
    ensure!(found.is_some() || durable == 0, "the log does not know the group");
    storage::verify(&replica.partition).context("after opening")?;
    for round in 1..=LATER_ROUNDS {
        replica.round(round).context("going on")?;
    }
    drop(replica);
    let (replica, _) = Replica::open(root).context("opening after going on")?;
    ensure!(replica.partition.applied().index == applied + LATER_ROUNDS * ENTRIES_PER_ROUND, "the later rounds");
    storage::verify(&replica.partition).context("after going on and opening")
}
