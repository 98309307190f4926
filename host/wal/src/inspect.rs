//! Looks at a log at rest, record by record, without changing it.

use crate::files::segment_path;
use crate::format::{Listed, LogPlace, RECORD_HEAD_SIZE, RecordHead, RecordKind, State};
use crate::log::{Durability, OpenError, Recovered};
use crate::recover::{Found, RecoveredGroup, Recovery, present};
use crate::scan::Event;
use hedgerow_env::{Disk, OpenMode};
use hedgerow_types::{GroupId, Index};
use std::collections::BTreeMap;
use std::path::Path;

/// Places of damage that are listed; all of them are counted.
const DAMAGE_LISTED_MAX: usize = 1_000;
/// A log that changes while it is read is read so many times at most.
const ATTEMPTS: usize = 8;

/// What the log as a whole is.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The segments that count, oldest first.
    pub segments: Vec<SegmentView>,
    /// Segments that are there and do not count.
    pub garbage_segments: Vec<u64>,
    /// The groups as [`crate::Log::open`] would recover them.
    pub groups: Vec<Recovered>,
    /// As [`crate::Log::has_unknown_loss`] would say.
    pub has_unknown_loss: bool,
    /// How the newest segment ends.
    pub end: End,
    /// What is not what was written, in the order of the log, up to a thousand places.
    pub damage: Vec<Damage>,
    /// How many such places there are.
    pub damage_count: u64,
    /// Which batches are noted to be durable: those below the second number in the segment with the first. Beside the log,
    /// and not part of it.
    pub mark: Option<(u64, u64)>,
    /// As [`crate::Log::mark_problem`] would say.
    pub mark_problem: Option<String>,
}

/// A segment that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Its id, which is the name of its file.
    pub id: u64,
    /// Where its records end, in bytes from its beginning.
    pub end: u64,
    /// Bytes of its file; `None` if the file is gone.
    pub size: Option<u64>,
    /// Numbers of its first and its last batch; `None` if it has none.
    pub batches: Option<(u64, u64)>,
    /// How many rounds its batches were written in: no sync came between the batches of a round.
    pub rounds: u64,
    /// Bytes of the sound records of each group, in use or not.
    pub records: BTreeMap<GroupId, u64>,
    /// Bytes of the records that each group needs: they hold the segment. Groups that were removed count too, as long as
    /// their removal has to be remembered.
    pub in_use: BTreeMap<GroupId, u64>,
}

/// How the newest segment ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// After a whole batch.
    #[default]
    Clean,
    /// A write was cut off there. Nobody was told that it was durable: an opening goes on before it.
    Torn(LogPlace),
    /// Its file is shorter than it was made, and ends after this place. With [`Durability::Fsync`] no crash leaves that.
    CutShort(LogPlace),
}

/// Bytes that are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where they begin.
    pub place: LogPlace,
    /// What stood there.
    pub what: Damaged,
}

/// What stood where bytes are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// An entry of this group, with this index.
    Entry(GroupId, Index),
    /// Another record of this group, or one of which only the group is known.
    Record(GroupId),
    /// So many bytes, nobody knows whose.
    Unknown(u64),
}

impl Damage {
    /// The damage that `event` shows, if it shows any.
    pub fn of(event: &Event<'_>) -> Option<Self> {
        let (place, what) = match *event {
            Event::Batch(..) | Event::Record(..) => return None,
            Event::BadPayload(place, RecordHead { kind: RecordKind::Entry | RecordKind::Moved, group, index, .. }) => {
                (place, Damaged::Entry(group, index))
            }
            Event::BadPayload(place, RecordHead { group, .. }) | Event::BadHead(place, Listed { group, .. }) => {
                (place, Damaged::Record(group))
            }
            Event::Unreadable(place, size) => (place, Damaged::Unknown(size)),
        };
        Some(Self { place, what })
    }
}

impl Inspection {
    /// Whether nothing is missing of what was durable: an opening would find no group damaged.
    pub fn is_sound(&self) -> bool {
        self.damage_count == 0 && !self.has_unknown_loss && !self.groups.iter().any(|group| group.is_damaged)
    }

    /// Bytes of records in use of `group`.
    pub fn bytes_in_use(&self, group: GroupId) -> u64 {
        self.segments.iter().filter_map(|segment| segment.in_use.get(&group)).sum()
    }

    /// The oldest segment that `group` holds.
    pub fn oldest_held(&self, group: GroupId) -> Option<u64> {
        self.segments.iter().find(|segment| segment.in_use.contains_key(&group)).map(|segment| segment.id)
    }

    fn note(&mut self, event: &Event<'_>) {
        if let Some(damage) = Damage::of(event) {
            self.damage_count += 1;
            if self.damage.len() < DAMAGE_LISTED_MAX {
                self.damage.push(damage);
            }
        }
    }
}

/// What a walk over the log tells of one segment.
#[derive(Debug, Default)]
struct Walked {
    batches: Option<(u64, u64)>,
    rounds: u64,
    synced: Option<u64>,
    records: BTreeMap<GroupId, u64>,
}

impl Walked {
    fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::Batch(_, head) => {
                let first = self.batches.map_or(head.number, |(first, _)| first);
                self.batches = Some((first, head.number));
                self.rounds += u64::from(self.synced.replace(head.synced) != Some(head.synced));
            }
            Event::Record(_, head, _) if head.kind != RecordKind::Freed => {
                *self.records.entry(head.group).or_default() += RECORD_HEAD_SIZE as u64 + u64::from(head.size);
            }
            Event::Record(..) | Event::BadPayload(..) | Event::BadHead(..) | Event::Unreadable(..) => {}
        }
    }
}

/// The segments in `dir`, oldest first, and the bytes of their files. Some of them may not count.
pub fn segment_sizes(disk: &dyn Disk, dir: &Path) -> Result<Vec<(u64, u64)>, OpenError> {
    let mut sizes = Vec::new();
    for id in present(disk, dir)? {
        match disk.open(&segment_path(dir, id), OpenMode::Read).and_then(|file| file.len()) {
            Ok(size) => sizes.push((id, size)),
            // The log of a node that runs gives segments back.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(OpenError::Io { path: segment_path(dir, id), source }),
        }
    }
    Ok(sizes)
}

/// Shows everything in the log in `dir` to `visit`, in the order of the log. Nothing may be writing to it. Takes the memory of
/// the largest segment, and of an opened log's index.
pub fn inspect(disk: &dyn Disk, dir: &Path, visit: &mut dyn FnMut(Event<'_>)) -> Result<Inspection, OpenError> {
    inspect_as(disk, dir, Durability::Os, visit)
}

/// As [`inspect`], of a log that is opened with `durability`: with [`Durability::Fsync`] a newest segment that is cut short is a
/// loss.
pub fn inspect_as(
    disk: &dyn Disk,
    dir: &Path,
    durability: Durability,
    visit: &mut dyn FnMut(Event<'_>),
) -> Result<Inspection, OpenError> {
    let mut inspection = Inspection::default();
    let mut walked: BTreeMap<u64, Walked> = BTreeMap::new();
    let mut recovery = Recovery::read(disk, dir, &mut |event| {
        inspection.note(&event);
        walked.entry(event.place().segment).or_default().note(&event);
        visit(event);
    })?;
    if durability == Durability::Fsync {
        recovery.lose_what_was_cut();
    }
    inspection.has_unknown_loss = recovery.has_unknown_loss();
    inspection.end = match (recovery.cut_short, recovery.torn_at) {
        (Some(place), _) => End::CutShort(place),
        (None, Some(place)) => End::Torn(place),
        (None, None) => End::Clean,
    };
    inspection.mark = recovery.mark.map(|mark| (mark.segment, mark.batch));
    inspection.mark_problem = recovery.mark_problem;
    inspection.garbage_segments = recovery.garbage;
    let mut in_use: BTreeMap<u64, BTreeMap<GroupId, u64>> = BTreeMap::new();
    for (group, (at, _)) in recovery.tombstones {
        *in_use.entry(at.segment).or_default().entry(group).or_default() += RECORD_HEAD_SIZE as u64;
    }
    for (group, replay) in recovery.groups {
        let found = replay.into_group(group, recovery.lost);
        if found.is_incomplete {
            continue;
        }
        note_use(&found, &mut in_use);
        inspection.groups.push(found.recovered);
    }
    let view = |(id, Found { end, size }): (u64, Found)| {
        let Walked { batches, rounds, records, .. } = walked.remove(&id).unwrap_or_default();
        SegmentView { id, end, size, batches, rounds, records, in_use: in_use.remove(&id).unwrap_or_default() }
    };
    inspection.segments = recovery.segments.into_iter().map(view).collect();
    Ok(inspection)
}

fn note_use(found: &RecoveredGroup, in_use: &mut BTreeMap<u64, BTreeMap<GroupId, u64>>) {
    let entries = found.slots.iter().map(|slot| (slot.place.segment, slot.record_size()));
    let state = found.state_at.map(|at| (at.segment, State::RECORD_SIZE as u64));
    for (segment, size) in entries.chain(state) {
        *in_use.entry(segment).or_default().entry(found.recovered.group).or_default() += size;
    }
}

/// As [`inspect_as`], of a log that a node may be writing to: what is seen half written, or given back meanwhile, is no damage. Reads
/// again until the log is sound, or shows the same damage twice. `None` if it never does either.
pub fn inspect_running(
    disk: &dyn Disk,
    dir: &Path,
    durability: Durability,
    visit: &mut dyn FnMut(Event<'_>),
) -> Result<Option<Inspection>, OpenError> {
    let mut before: Option<Vec<Damage>> = None;
    for _ in 0..ATTEMPTS {
        let inspection = inspect_as(disk, dir, durability, visit)?;
        if inspection.is_sound() || before.as_ref() == Some(&inspection.damage) {
            return Ok(Some(inspection));
        }
        before = Some(inspection.damage);
    }
    Ok(None)
}
