//! Follows a log from outside: shows its records in their order, one segment in memory at a time, and goes on where it stopped while
//! another process writes. Changes nothing.
//!
//! What is half written when it is looked at is not shown before it is whole. Bytes that stay bad are shown as damage once something
//! proves that they were durable: a batch of a later round, or the next segment.

use crate::files::segment_path;
use crate::format::{ALIGNMENT, BATCH_HEAD_SIZE, BatchHead, LogPlace, SegmentHead, seed};
use crate::log::OpenError;
use crate::recover::{Read, freed_by, load, present};
use crate::scan::{Event, Scanned, Segment};
use hedgerow_env::{Disk, File, OpenMode};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads a log at its own pace.
#[derive(Debug)]
pub struct Follower {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Segments below it are not read.
    first: u64,
    at: Option<Position>,
    newest: Option<Newest>,
}

/// What a look at the log met besides records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// So many batches came and went since the look before.
    pub skipped_batches: u64,
    /// Segments that should be there and are not: they were given back while this was read, or are lost.
    pub missing_segments: Vec<u64>,
}

/// Everything before it was shown.
#[derive(Clone, Copy, Debug)]
struct Position {
    segment: u64,
    offset: usize,
    next_batch: u64,
}

/// The segment that is written to. Of its bytes those are filled in that were needed so far.
#[derive(Debug)]
struct Newest {
    head: SegmentHead,
    file: Box<dyn File>,
    bytes: Vec<u8>,
}

impl Follower {
    /// Of the log in `dir`, from the oldest segment on that is not below `first`.
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, first: u64) -> Self {
        Self { disk, dir: dir.to_owned(), first, at: None, newest: None }
    }

    /// Shows what has come since the look before; at first, everything. Ends before what is not whole yet.
    pub fn poll(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> Result<Seen, OpenError> {
        let mut seen = Seen::default();
        let present = present(&*self.disk, &self.dir)?;
        if let Some(last) = present.last().copied()
            && self.newest.as_ref().is_none_or(|newest| newest.head.id != last)
        {
            let newest = self.open_newest(&present)?;
            self.finish_others(&newest, &mut seen, visit)?;
            self.newest = Some(newest);
        }
        let (Some(newest), Some(at)) = (&mut self.newest, &mut self.at) else { return Ok(seen) };
        let path = segment_path(&self.dir, newest.head.id);
        newest.advance(at, visit).map_err(|source| OpenError::Io { path, source })?;
        Ok(seen)
    }

    /// After [`Follower::poll`], of a log that nobody writes to: shows what stands behind damaged bytes of the newest segment. Returns
    /// where a write was cut off, if one was.
    pub fn finish(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> Result<Option<LogPlace>, OpenError> {
        let Some(at) = &mut self.at else { return Ok(None) };
        let Some(Read { bytes, head: Some(head), .. }) = load(&*self.disk, &self.dir, at.segment)? else {
            return Ok(None);
        };
        let scanned = scan(&head, &bytes, *at, None, 0, visit);
        at.take(&scanned);
        Ok(scanned.is_torn.then_some(LogPlace { segment: at.segment, offset: at.offset as u64 }))
    }

    /// The newest segment with a sound head.
    fn open_newest(&self, present: &BTreeSet<u64>) -> Result<Newest, OpenError> {
        let mut bad = self.dir.clone();
        for id in present.iter().rev().copied() {
            let path = segment_path(&self.dir, id);
            let Some(Read { bytes, head: Some(head), .. }) = load(&*self.disk, &self.dir, id)? else {
                bad = path;
                continue;
            };
            let file = self.disk.open(&path, OpenMode::Read).map_err(|source| OpenError::Io { path, source })?;
            return Ok(Newest { head, file, bytes });
        }
        Err(OpenError::Io { path: bad, source: io::ErrorKind::InvalidData.into() })
    }

    /// Shows what is left of the segments before the newest one, whose ends that one tells.
    fn finish_others(
        &mut self,
        newest: &Newest,
        seen: &mut Seen,
        visit: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), OpenError> {
        let (is_first_look, from) = (self.at.is_none(), self.at.map_or(self.first, |at| at.segment));
        let gone = if is_first_look { newest.freed() } else { BTreeSet::new() };
        let mut others = newest.head.others.clone();
        others.sort_unstable();
        for LogPlace { segment, offset } in others.into_iter().filter(|it| it.segment >= from) {
            if gone.contains(&segment) {
                continue;
            }
            let found = match load(&*self.disk, &self.dir, segment) {
                Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
                found => found?,
            };
            let Some(Read { bytes, head: Some(head), .. }) = found else {
                seen.missing_segments.push(segment);
                continue;
            };
            let mut at = self.enter(&head, is_first_look, seen);
            at.take(&scan(&head, &bytes, at, Some(offset as usize), 0, visit));
            self.at = Some(at);
        }
        self.at = Some(self.enter(&newest.head, is_first_look, seen));
        Ok(())
    }

    /// Where reading goes on in the segment with this head.
    fn enter(&self, head: &SegmentHead, is_first_look: bool, seen: &mut Seen) -> Position {
        match self.at {
            Some(at) if at.segment == head.id => at,
            before => {
                let skipped = before.map_or(0, |at| head.first_batch.saturating_sub(at.next_batch));
                seen.skipped_batches += if is_first_look { 0 } else { skipped };
                Position { segment: head.id, offset: head.data_start(), next_batch: head.first_batch }
            }
        }
    }
}

impl Position {
    fn take(&mut self, scanned: &Scanned) {
        (self.offset, self.next_batch) = (scanned.end, scanned.next_batch);
    }
}

impl Newest {
    /// The segments that it says went since it began.
    fn freed(&self) -> BTreeSet<u64> {
        let start =
            Position { segment: self.head.id, offset: self.head.data_start(), next_batch: self.head.first_batch };
        let mut freed = BTreeSet::new();
        scan(&self.head, &self.bytes, start, None, 0, &mut |event| freed.extend(freed_by(&self.head, &event)));
        freed
    }

    /// Shows the batches after `at` that are whole, and moves `at` behind them.
    fn advance(&mut self, at: &mut Position, visit: &mut dyn FnMut(Event<'_>)) -> io::Result<()> {
        while let Some(end) = self.read_batch(at.offset, at.next_batch)? {
            let durable = if self.is_whole(*at, end) {
                0
            } else if self.read_batch(end, at.next_batch + 1)?.is_some() && self.synced_at(end) > at.next_batch {
                // What looked bad may have been half written then, and be whole now.
                self.read_batch(at.offset, at.next_batch)?;
                at.next_batch + 1
            } else {
                return Ok(());
            };
            let scanned = scan(&self.head, &self.bytes[..end], *at, None, durable, visit);
            *at = Position { offset: end, next_batch: scanned.next_batch, ..*at };
        }
        Ok(())
    }

    /// Reads the batch `number` that should begin at `start`. Where the next one would begin; `None` if it is not there.
    fn read_batch(&mut self, start: usize, number: u64) -> io::Result<Option<usize>> {
        self.read(start, start.saturating_add(BATCH_HEAD_SIZE))?;
        let head = BatchHead::decode(&self.bytes, seed(self.head.id), start).filter(|head| head.number == number);
        let Some(head) = head else { return Ok(None) };
        let past = if self.head.has_lists() {
            head.list_end(start)
        } else {
            start.saturating_add(BATCH_HEAD_SIZE).saturating_add(head.size as usize)
        };
        self.read(start, past)?;
        let end = past.next_multiple_of(ALIGNMENT);
        Ok((end <= self.bytes.len()).then_some(end))
    }

    fn read(&mut self, start: usize, end: usize) -> io::Result<()> {
        let end = end.min(self.bytes.len());
        match self.bytes.get_mut(start..end) {
            Some(bytes) => self.file.read_at(start as u64, bytes).map(drop),
            None => Ok(()),
        }
    }

    fn is_whole(&self, at: Position, end: usize) -> bool {
        let mut is_sound = true;
        let scanned = scan(&self.head, &self.bytes[..end], at, None, 0, &mut |event| {
            is_sound &= matches!(event, Event::Batch(..) | Event::Record(..));
        });
        is_sound && !scanned.is_torn && scanned.next_batch == at.next_batch + 1
    }

    /// What the batch at `start` says is durable.
    fn synced_at(&self, start: usize) -> u64 {
        BatchHead::decode(&self.bytes, seed(self.head.id), start).map_or(0, |head| head.synced)
    }
}

fn scan(
    head: &SegmentHead,
    bytes: &[u8],
    from: Position,
    end: Option<usize>,
    durable: u64,
    visit: &mut dyn FnMut(Event<'_>),
) -> Scanned {
    let (has_lists, first_batch) = (head.has_lists(), from.next_batch);
    Segment { id: head.id, bytes, data_start: from.offset, has_lists, first_batch, durable, end }.scan(visit)
}
