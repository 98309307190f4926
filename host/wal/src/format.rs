//! The bytes of a log, one by one.
//!
//! A log is a directory of segments named `<id, 16 hex digits>.seg`, with ids that rise and are never reused. All
//! numbers are little-endian. A segment is preallocated and filled with zeros or with a former segment's bytes.
//!
//! ```text
//! segment   [head, padded to 4096][batch][batch]...[zeros or stale bytes]
//! batch     [batch head, 40 bytes][record][record]...[padding to 8]      one write
//! record    [record head, 40 bytes][payload]
//! ```
//!
//! Every checksum is CRC-32C started from `seed(segment id)`, so that the stale bytes of a recycled segment never pass.
//!
//! ```text
//! segment head
//!    0   8  magic "HEDGEWAL"
//!    8   2  version of everything here: 1
//!   10   2  its complement, so that a flipped bit is damage and not another version; every version keeps these two
//!   12   4  CRC of bytes 16.. up to the end of the list
//!   16   8  id of this segment
//!   24   8  size of this segment
//!   32   8  number of its first batch
//!   40   8  count of the list
//!   48  16  ... of the segments that count besides this one, each its id and its end, 8 bytes each
//! ```
//! A new segment is complete and durable under its name before its first batch is written, and the segment before it was
//! synced before that. So the list in the newest head is exact: another segment counts up to its end, where any bad byte
//! is corruption; one that is not listed is garbage; one that is listed but not there is lost, unless a `freed` record
//! in the newest segment says that it went.
//!
//! ```text
//! batch head
//!    0   4  magic "BTCH"
//!    4   4  CRC of bytes 8..40
//!    8   8  number, one higher than the batch before it
//!   16   8  synced: every batch with a lower number than this was durable before this one was written
//!   24   8  where in the segment this head stands
//!   32   4  size of the records
//!   36   4  count of the records
//! ```
//! Batches with the same `synced` are a round: no sync came between them. Bad bytes in batch `n` of the newest segment
//! are a torn tail if no batch with `synced > n` follows, for then nobody was told that `n` was durable. Otherwise they
//! are corruption.
//!
//! ```text
//! record head
//!    0   4  CRC of bytes 4..40
//!    4   4  CRC of the payload
//!    8   4  size of the payload
//!   12   1  what: 1 entry, 2 moved, 3 state, 4 removed, 5 freed
//!   13   1  detail, see below
//!   14   2  zero
//!   16   8  group
//!   24   8  index
//!   32   8  term
//! ```
//! The head has a checksum of its own, so that a damaged payload still tells whose it was.
//!
//! | what | index, term | detail | payload | meaning |
//! |---|---|---|---|---|
//! | entry | of the entry | its kind | its data | replaces everything of the group at and above its index |
//! | moved | of the entry | its kind | its data | a copy of the entry in force, from a segment about to go; replaces only itself |
//! | state | where the log begins, exclusive | 1: has a vote, 2: damaged | below | the group's whole state but for its entries |
//! | removed | the last segment that may hold records of it, 0 | 0 | none | the group is gone |
//! | freed | first segment, count | 0 | none | these segments count no more |
//!
//! ```text
//! payload of a state
//!    0   8  replica
//!    8   8  segment, and
//!   16   8  offset of the record that began this life of the group's log: what stands before it is void
//!   24   8  index of the last entry: what lies above is void
//!   32   8  hard state: term
//!   40   8  vote
//!   48   8  commit
//! ```
//! States are absolute: the latest one, and the entries in force, are all that recovery needs of a group. That is what
//! allows any segment to go as soon as no such record is in it, wherever it stands in the order.

use hedgerow_types::log::{EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, ReplicaId, Term};

/// Version of the format.
pub const VERSION: u32 = 1;

pub(crate) const BATCH_HEAD_SIZE: usize = 40;
pub(crate) const RECORD_HEAD_SIZE: usize = 40;
/// Batches start at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;
const SEGMENT_MAGIC: [u8; 8] = *b"HEDGEWAL";
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"BTCH");
const SEGMENT_HEAD_FIXED_SIZE: usize = 48;
/// Heads, and segments as a whole, are multiples of this.
pub(crate) const SEGMENT_UNIT: usize = 4096;
const STATE_SIZE: usize = 56;
const HAS_VOTE: u8 = 1;
const IS_DAMAGED: u8 = 2;

/// A place in the whole log. Later records stand at higher places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Id of the segment.
    pub segment: u64,
    /// Byte within it.
    pub offset: u64,
}

/// The first bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// Id of the segment, from 1.
    pub id: u64,
    /// Its size in bytes, the head included.
    pub size: u64,
    /// Number of its first batch.
    pub first_batch: u64,
    /// The other segments that counted when this one began, and where each ends.
    pub others: Vec<Place>,
}

/// The first bytes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Its number.
    pub number: u64,
    /// Every batch with a lower number was durable before this one was written.
    pub synced: u64,
    /// Bytes of its records.
    pub size: u32,
    /// How many records.
    pub count: u32,
}

/// What a record is. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// An entry.
    Entry = 1,
    /// A copy of an entry in force.
    Moved = 2,
    /// A group's state.
    State = 3,
    /// The end of a group.
    Removed = 4,
    /// The end of some segments.
    Freed = 5,
}

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// What it is.
    pub kind: RecordKind,
    /// Depends on the kind.
    pub detail: u8,
    /// Whose it is; nobody's for [`RecordKind::Freed`].
    pub group: GroupId,
    /// Depends on the kind.
    pub index: Index,
    /// Depends on the kind.
    pub term: Term,
    /// Bytes of the payload.
    pub size: u32,
    payload_crc: u32,
}

/// A group's state as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The replica whose log it is.
    pub replica: ReplicaId,
    /// Where this life of the log began.
    pub born: Place,
    /// Where the entries begin, exclusive.
    pub start: LogPosition,
    /// Index of the last entry.
    pub last: Index,
    /// The hard state.
    pub hard_state: HardState,
    /// Whether something of the log was found damaged and nobody has dealt with it.
    pub is_damaged: bool,
}

/// Why a segment's head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// It has another version.
    Version(u32),
    /// It is damaged.
    Damaged,
}

/// What every checksum in segment `id` starts from.
pub(crate) fn seed(id: u64) -> u32 {
    crc32c::crc32c(&id.to_le_bytes())
}

impl SegmentHead {
    /// Bytes that the head takes, padding included.
    pub(crate) fn encoded_size(others: usize) -> usize {
        (SEGMENT_HEAD_FIXED_SIZE + 16 * others).next_multiple_of(SEGMENT_UNIT)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::encoded_size(self.others.len()));
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&(VERSION | !VERSION << 16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for number in [self.id, self.size, self.first_batch, self.others.len() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for other in &self.others {
            out.extend_from_slice(&other.segment.to_le_bytes());
            out.extend_from_slice(&other.offset.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(seed(self.id), &out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out.resize(Self::encoded_size(self.others.len()), 0);
        out
    }

    /// The head of the segment `id`, whose bytes are (or begin with) `bytes`.
    pub(crate) fn decode(bytes: &[u8], id: u64) -> Result<Self, HeadError> {
        let fixed = bytes.get(..SEGMENT_HEAD_FIXED_SIZE).ok_or(HeadError::Damaged)?;
        let (version, complement) = (u32_at(fixed, 8) & 0xffff, u32_at(fixed, 8) >> 16);
        if fixed[..8] != SEGMENT_MAGIC || version != !complement & 0xffff {
            return Err(HeadError::Damaged);
        }
        if version != VERSION {
            return Err(HeadError::Version(version));
        }
        let count = usize::try_from(u64_at(fixed, 40)).map_err(|_| HeadError::Damaged)?;
        let end = count.checked_mul(16).and_then(|size| size.checked_add(SEGMENT_HEAD_FIXED_SIZE));
        let covered = end.and_then(|end| bytes.get(16..end)).ok_or(HeadError::Damaged)?;
        if u64_at(fixed, 16) != id || crc32c::crc32c_append(seed(id), covered) != u32_at(fixed, 12) {
            return Err(HeadError::Damaged);
        }
        let others = covered[SEGMENT_HEAD_FIXED_SIZE - 16..]
            .chunks_exact(16)
            .map(|place| Place { segment: u64_at(place, 0), offset: u64_at(place, 8) })
            .collect();
        Ok(Self { id, size: u64_at(fixed, 24), first_batch: u64_at(fixed, 32), others })
    }
}

impl BatchHead {
    /// Writes the head over the first bytes of `out`; it will stand at `offset` of its segment.
    pub(crate) fn encode(&self, seed: u32, offset: u64, out: &mut [u8]) {
        out[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.to_le_bytes());
        out[24..32].copy_from_slice(&offset.to_le_bytes());
        out[32..36].copy_from_slice(&self.size.to_le_bytes());
        out[36..40].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &out[8..BATCH_HEAD_SIZE]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The head at `offset` of a segment, if one is there.
    pub(crate) fn decode(segment: &[u8], seed: u32, offset: usize) -> Option<Self> {
        let head = segment.get(offset..offset.checked_add(BATCH_HEAD_SIZE)?)?;
        let is_valid = u32_at(head, 0) == BATCH_MAGIC
            && u64_at(head, 24) == offset as u64
            && crc32c::crc32c_append(seed, &head[8..]) == u32_at(head, 4);
        is_valid.then(|| Self {
            number: u64_at(head, 8),
            synced: u64_at(head, 16),
            size: u32_at(head, 32),
            count: u32_at(head, 36),
        })
    }
}

impl RecordHead {
    pub(crate) fn new(kind: RecordKind, detail: u8, group: GroupId, index: Index, term: Term) -> Self {
        Self { kind, detail, group, index, term, size: 0, payload_crc: 0 }
    }

    /// Appends the record with this head and `payload`, whose size fits 32 bits.
    pub(crate) fn encode(&self, seed: u32, payload: &[u8], out: &mut Vec<u8>) {
        let mut head = [0; RECORD_HEAD_SIZE];
        head[4..8].copy_from_slice(&crc32c::crc32c_append(seed, payload).to_le_bytes());
        head[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[12] = self.kind as u8;
        head[13] = self.detail;
        head[16..24].copy_from_slice(&self.group.to_u64().to_le_bytes());
        head[24..32].copy_from_slice(&self.index.to_le_bytes());
        head[32..40].copy_from_slice(&self.term.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &head[4..]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(payload);
    }

    /// The head at the start of `bytes`, if its checksum is right and this version knows its kind.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let head = bytes.get(..RECORD_HEAD_SIZE)?;
        if crc32c::crc32c_append(seed, &head[4..]) != u32_at(head, 0) {
            return None;
        }
        let kind = match head[12] {
            1 => RecordKind::Entry,
            2 => RecordKind::Moved,
            3 => RecordKind::State,
            4 => RecordKind::Removed,
            5 => RecordKind::Freed,
            _ => return None,
        };
        Some(Self {
            kind,
            detail: head[13],
            group: GroupId::from_u64(u64_at(head, 16)),
            index: u64_at(head, 24),
            term: u64_at(head, 32),
            size: u32_at(head, 8),
            payload_crc: u32_at(head, 4),
        })
    }

    pub(crate) fn is_payload(&self, seed: u32, payload: &[u8]) -> bool {
        crc32c::crc32c_append(seed, payload) == self.payload_crc
    }

    /// The kind of the entry that an entry or moved record holds.
    pub fn entry_kind(&self) -> Option<EntryKind> {
        EntryKind::from_code(self.detail)
    }
}

impl State {
    /// Bytes that the record of a state takes.
    pub(crate) const RECORD_SIZE: usize = RECORD_HEAD_SIZE + STATE_SIZE;

    pub(crate) fn encode(&self, group: GroupId, seed: u32, out: &mut Vec<u8>) {
        let vote = if self.hard_state.vote.is_some() { HAS_VOTE } else { 0 };
        let damaged = if self.is_damaged { IS_DAMAGED } else { 0 };
        let mut payload = [0; STATE_SIZE];
        let numbers = [
            self.replica.0,
            self.born.segment,
            self.born.offset,
            self.last,
            self.hard_state.term,
            self.hard_state.vote.map_or(0, |replica| replica.0),
            self.hard_state.commit,
        ];
        for (bytes, number) in payload.chunks_exact_mut(8).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        RecordHead::new(RecordKind::State, vote | damaged, group, self.start.index, self.start.term)
            .encode(seed, &payload, out);
    }

    /// The state in a record whose checksums are right; `None` if it makes no sense even so.
    pub(crate) fn decode(head: &RecordHead, payload: &[u8]) -> Option<Self> {
        if payload.len() != STATE_SIZE {
            return None;
        }
        let state = Self {
            replica: ReplicaId(u64_at(payload, 0)),
            born: Place { segment: u64_at(payload, 8), offset: u64_at(payload, 16) },
            start: LogPosition { term: head.term, index: head.index },
            last: u64_at(payload, 24),
            hard_state: HardState {
                term: u64_at(payload, 32),
                vote: (head.detail & HAS_VOTE != 0).then(|| ReplicaId(u64_at(payload, 40))),
                commit: u64_at(payload, 48),
            },
            is_damaged: head.detail & IS_DAMAGED != 0,
        };
        (state.last >= state.start.index && state.last < Index::MAX).then_some(state)
    }
}

/// The 32-bit number at `at`, which the caller has checked to be inside.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// The 64-bit number at `at`, which the caller has checked to be inside.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
