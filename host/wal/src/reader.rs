//! Reads entries back while the log goes on, by the index in memory.

use crate::format::{LogPlace, RECORD_HEAD_SIZE, RecordHead, RecordKind, seed};
use crate::index::{Positions, Slot};
use bytes::Bytes;
use hedgerow_env::File;
use hedgerow_types::log::{Entry, LogPosition};
use hedgerow_types::{GroupId, Index};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries whose records stand at most this far apart are read together.
const GAP_SIZE_MAX: u64 = 4 << 10;
/// Most bytes read together, unless one record is larger.
const RUN_SIZE_MAX: u64 = 1 << 20;
/// Collection may move an entry while it is being read. It cannot do so often.
const ATTEMPTS: usize = 4;

/// Reads a log's entries. Clones are cheap; use one per thread.
#[derive(Clone, Debug)]
pub struct Reader {
    positions: Arc<Mutex<Positions>>,
}

/// An entry to read: its index, where it is and the file it is in.
struct Wanted {
    index: Index,
    slot: Slot,
    file: Arc<dyn File>,
}

impl Reader {
    pub(crate) fn new(positions: Arc<Mutex<Positions>>) -> Self {
        Self { positions }
    }

    /// The entries of `group` from `low` up to and without `high`, in order, without gaps, as many as fit in `size_max`
    /// bytes of data but at least one. Empty if the log does not hold `low`. Entries written and not yet synced are
    /// seen too. [`io::ErrorKind::InvalidData`] if what is read is not what was written.
    pub fn entries(&self, group: GroupId, low: Index, high: Index, size_max: usize) -> io::Result<Vec<Entry>> {
        let mut result = Ok(Vec::new());
        for _ in 0..ATTEMPTS {
            let wanted = self.wanted(group, low, high, size_max);
            result = read_all(group, &wanted);
            match &result {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(_) | Err(_) => break,
            }
        }
        result
    }

    /// The position of entry `index` of `group`, if the log holds it. Reads no file.
    pub fn position(&self, group: GroupId, index: Index) -> Option<LogPosition> {
        let positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = positions.groups.get(&group)?.at(index)?;
        Some(LogPosition { term: slot.term, index })
    }

    /// The entries of `group` after `from` up to and with `through`, in stretches of at least `size` bytes of records (the
    /// last one may be shorter): where each ends, and the bytes of all up to there. For a start: it looks at every entry.
    pub fn stretches(&self, group: GroupId, from: Index, through: Index, size: u64) -> Vec<(LogPosition, u64)> {
        let positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stretches = Vec::new();
        let Some(slots) = positions.groups.get(&group) else { return stretches };
        let (mut bytes, mut end) = (0, 0);
        for index in from + 1..=through {
            let Some(slot) = slots.at(index) else { break };
            bytes += slot.record_size();
            if bytes - end >= size || index == through {
                end = bytes;
                stretches.push((LogPosition { term: slot.term, index }, bytes));
            }
        }
        stretches
    }

    fn wanted(&self, group: GroupId, low: Index, high: Index, size_max: usize) -> Vec<Wanted> {
        let positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = Vec::new();
        let Some(slots) = positions.groups.get(&group) else { return wanted };
        let mut size = 0;
        for index in low..high {
            let Some(slot) = slots.at(index) else { break };
            size += slot.size as usize;
            if size > size_max && !wanted.is_empty() {
                break;
            }
            let Some(file) = positions.files.get(&slot.place.segment) else { break };
            wanted.push(Wanted { index, slot: *slot, file: Arc::clone(file) });
        }
        wanted
    }
}

fn read_all(group: GroupId, wanted: &[Wanted]) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::with_capacity(wanted.len());
    for run in wanted.chunk_by(is_near) {
        let mut run = run;
        while let Some(first) = run.first() {
            let start = first.slot.place.offset;
            let count = run.iter().take_while(|next| next.end() - start <= RUN_SIZE_MAX).count().max(1);
            read_run(group, &run[..count], &mut entries)?;
            run = &run[count..];
        }
    }
    Ok(entries)
}

impl Wanted {
    fn end(&self) -> u64 {
        self.slot.place.offset + RECORD_HEAD_SIZE as u64 + u64::from(self.slot.size)
    }
}

fn is_near(left: &Wanted, right: &Wanted) -> bool {
    let (from, to) = (left.slot.place, right.slot.place);
    from.segment == to.segment && to.offset >= left.end() && to.offset - left.end() <= GAP_SIZE_MAX
}

fn read_run(group: GroupId, run: &[Wanted], entries: &mut Vec<Entry>) -> io::Result<()> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    let start = first.slot.place.offset;
    let bytes = read_exactly(&*first.file, start, (last.end() - start) as usize)?;
    for wanted in run {
        let at = (wanted.slot.place.offset - start) as usize;
        let record = bytes.slice(at..at + RECORD_HEAD_SIZE + wanted.slot.size as usize);
        let data = payload(group, wanted.index, &wanted.slot, &record)
            .ok_or_else(|| changed(group, wanted.index, wanted.slot.place))?;
        entries.push(Entry { index: wanted.index, term: wanted.slot.term, kind: wanted.slot.kind, data });
    }
    Ok(())
}

/// The data of one entry, for moving it.
pub(crate) fn read_one(file: &dyn File, group: GroupId, index: Index, slot: &Slot) -> io::Result<Bytes> {
    let record = read_exactly(file, slot.place.offset, RECORD_HEAD_SIZE + slot.size as usize)?;
    payload(group, index, slot, &record).ok_or_else(|| changed(group, index, slot.place))
}

fn read_exactly(file: &dyn File, offset: u64, size: usize) -> io::Result<Bytes> {
    let mut buffer = vec![0; size];
    match file.read_at(offset, &mut buffer)? {
        count if count == size => Ok(buffer.into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The payload of `record` if it is the record that `slot` describes.
fn payload(group: GroupId, index: Index, slot: &Slot, record: &Bytes) -> Option<Bytes> {
    let seed = seed(slot.place.segment);
    let head = RecordHead::decode(record, seed)?;
    let is_same = matches!(head.kind, RecordKind::Entry | RecordKind::Moved)
        && (head.group, head.index, head.term, head.size) == (group, index, slot.term, slot.size);
    let payload = record.slice(RECORD_HEAD_SIZE..);
    (is_same && head.is_payload(seed, &payload)).then_some(payload)
}

fn changed(group: GroupId, index: Index, place: LogPlace) -> io::Error {
    let LogPlace { segment, offset } = place;
    let text = format!("entry {index} of group {group} is damaged (segment {segment:016x}, byte {offset})");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
