//! The real engine below a partition. The applied index determines every row.
#![allow(clippy::disallowed_methods, reason = "it removes checkpoints as an operator of the checker's own files")]

use crate::scenario::{Told, Word, tell};
use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use hedgerow_storage::{Engines, Partition, RocksEngines, RocksSettings};
use hedgerow_types::ClientId;
use hedgerow_types::codec::encode_proposal;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::op::{Proposal, Read, ReadReply, Write};
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Different keys.
const KEYS: u64 = 61;
/// Entries between two flushes.
const ENTRIES_PER_ROUND: u64 = 25;
/// One entry in so many removes its key.
const REMOVAL_EVERY: u64 = 7;
/// Every so many rounds there is a checkpoint, an opening, a compaction of everything.
const CHECKPOINT_EVERY: u64 = 3;
const OPEN_EVERY: u64 = 5;
const COMPACTION_EVERY: u64 = 7;

/// What entry `index` does: sets its key to a value, or removes it.
fn change(index: u64) -> (Bytes, Option<Bytes>) {
    let mut random = Random::new(index);
    let key = Bytes::from(format!("key{:03}", random.below(KEYS)));
    let size = 16 + random.below(900);
    let value = (!index.is_multiple_of(REMOVAL_EVERY))
        .then(|| (0..size).map(|at| (index.wrapping_mul(31) + at.wrapping_mul(index | 1)) as u8).collect());
    (key, value)
}

/// The entry at `index`, of which the storage's content follows.
pub(crate) fn entry(index: u64) -> Entry {
    let write = match change(index) {
        (key, Some(value)) => Write::Put { key, value, expire_at: 0 },
        (key, None) => Write::Remove { key },
    };
    let mut data = BytesMut::new();
    encode_proposal(&Proposal { client: ClientId(0), sequence: 0, now: 1, is_agreed: false, write }, &mut data);
    Entry { index, term: 1, kind: EntryKind::Normal, data: data.freeze() }
}

/// Every row once the entries up to `applied` are.
fn rows(applied: u64) -> BTreeMap<Bytes, Bytes> {
    let mut rows = BTreeMap::new();
    for index in 1..=applied {
        match change(index) {
            (key, Some(value)) => drop(rows.insert(key, value)),
            (key, None) => drop(rows.remove(&key)),
        }
    }
    rows
}

fn replica(root: &Path) -> PathBuf {
    root.join("replica")
}

fn checkpoint(root: &Path, number: u64) -> PathBuf {
    root.join("checkpoints").join(number.to_string())
}

pub(crate) fn engines() -> Result<RocksEngines> {
    // Of its own for each directory: what another one's files held must not be found in a cache.
    Ok(RocksEngines::new(&RocksSettings { cache_size: 1 << 20, hot_rows_size: 1 << 16, ..RocksSettings::default() })?)
}

pub(crate) fn open(engines: &RocksEngines, dir: &Path) -> Result<Partition> {
    Ok(Partition::open(engines.open(dir)?)?)
}

/// Applies the next `count` entries and makes them durable.
fn advance(partition: &mut Partition, count: u64) -> Result<u64> {
    let first = partition.applied().index + 1;
    let last = first + count - 1;
    tell(Word::Given, last);
    let entries: Vec<Entry> = (first..=last).map(entry).collect();
    let mut outcomes = Vec::new();
    for entries in entries.chunks(9) {
        partition.apply(entries, None, &mut outcomes)?;
    }
    let point = partition.flush_point();
    partition.engine().flush()?;
    partition.mark_flushed(point, u32::MAX);
    tell(Word::Durable, last);
    Ok(last)
}

/// What is recorded.
pub(crate) fn drive(root: &Path, rounds: u64) -> Result<()> {
    let engines = engines()?;
    let mut partition = open(&engines, &replica(root))?;
    for round in 1..=rounds {
        advance(&mut partition, ENTRIES_PER_ROUND)?;
        if round.is_multiple_of(CHECKPOINT_EVERY) {
            partition.engine().checkpoint(&checkpoint(root, round))?;
            tell(Word::Checkpoint, round);
            let former = round - CHECKPOINT_EVERY;
            if former > 0 {
                tell(Word::Removal, former);
                fs::remove_dir_all(checkpoint(root, former))?;
            }
        }
        if round.is_multiple_of(COMPACTION_EVERY) {
            partition.engine().compact()?;
        }
        if round.is_multiple_of(OPEN_EVERY) {
            drop(partition);
            partition = open(&engines, &replica(root))?;
        }
    }
    Ok(())
}

/// What is recorded after a crash.
pub(crate) fn live_on(root: &Path) -> Result<()> {
    for _ in 0..2 {
        let engines = engines()?;
        let mut partition = open(&engines, &replica(root))?;
        advance(&mut partition, ENTRIES_PER_ROUND)?;
        partition.engine().compact()?;
        advance(&mut partition, ENTRIES_PER_ROUND)?;
    }
    Ok(())
}

/// What must hold after a crash, and in the life after it.
pub(crate) fn check(root: &Path, told: &Told) -> Result<()> {
    let dir = replica(root);
    check_directory(&dir, told.largest(Word::Durable)..=told.largest(Word::Given)).context("the replica")?;
    for round in told.all(Word::Checkpoint).filter(|round| told.all(Word::Removal).all(|removed| removed != *round)) {
        let dir = checkpoint(root, round);
        ensure!(dir.is_dir(), "checkpoint {round} was reported complete and is gone");
        let applied = round * ENTRIES_PER_ROUND;
        check_directory(&dir, applied..=applied).with_context(|| format!("checkpoint {round}"))?;
    }
    Ok(())
}

fn check_directory(dir: &Path, applied: std::ops::RangeInclusive<u64>) -> Result<()> {
    let engines = engines()?;
    let mut partition = open(&engines, dir).context("opening")?;
    let index = partition.applied().index;
    ensure!(applied.contains(&index), "applied is {index}, not within {applied:?}");
    verify(&partition).context("after opening")?;
    advance(&mut partition, ENTRIES_PER_ROUND).context("going on")?;
    verify(&partition).context("after another flush")?;
    drop((partition, engines));
    // With caches of its own: the files themselves are asked.
    let engines = crate::storage::engines()?;
    let mut partition = open(&engines, dir).context("opening after another flush")?;
    verify(&partition).context("after another flush and opening")?;
    advance(&mut partition, ENTRIES_PER_ROUND).context("going on after another flush and opening")?;
    partition.engine().compact().context("compacting")?;
    verify(&partition).context("after a compaction")
}

/// Fails unless every row is what the entries up to the applied index made of it.
pub(crate) fn verify(partition: &Partition) -> Result<()> {
    let applied = partition.applied().index;
    let rows = rows(applied);
    for key in (0..KEYS).map(|key| Bytes::from(format!("key{key:03}"))) {
        let reply = partition.read(&Read::Get { key: key.clone() }, 1)?;
        let ReadReply::Value(found) = reply else { anyhow::bail!("an answer to another question: {reply:?}") };
        ensure!(found.ok().as_ref() == rows.get(&key), "{key:?} is not what the entries up to {applied} made of it");
    }
    let reply = partition.read(&Read::Checksum, 1)?;
    let ReadReply::Checksum { rows: count, index, .. } = reply else { anyhow::bail!("an answer to another question") };
    ensure!(count == rows.len() as u64, "{count} rows instead of {} at {applied}", rows.len());
    ensure!(index == applied, "a scan finds the applied index {index}, a reader {applied}");
    Ok(())
}
