//! The bytes of a log, one by one.
//!
//! A log is a directory of segments named `<id, 16 hex digits>.seg`, with ids that rise and are never reused. All
//! numbers are little-endian. A segment is preallocated and filled with zeros or with a former segment's bytes.
//!
//! The upper half of an id is the log's epoch. A log that begins where another one was and is gone has the next epoch, so that
//! what is said of one says nothing of the other, should that come back.
//!
//! ```text
//! segment   [head, padded to 4096][the same once more][batch][batch]...[zeros or stale bytes][link, padded to 512]
//! batch     [batch head, 40 bytes][record][record]...[padding to 8][list][padding to 8]      one write
//! record    [record head, 40 bytes][payload]
//! ```
//!
//! Every checksum in a segment is CRC-32C started from `seed(segment id)`, so that the stale bytes of a recycled segment never pass.
//! Numbers are below 2^62; what holds another one is damaged, whatever its checksum says.
//!
//! This is version 3. Versions 1 and 2 are read too, and each segment is of one version. In version 2 states have no generation: it is 0.
//! In version 1 also the second head, the lists and the payload of `freed` are missing, all else is the same. A log is written in
//! version 3 from the next segment on.
//!
//! What tells whose bytes are whose stands twice, so that a bad byte costs those who own it and nobody else: a segment's
//! head has a copy, a batch's head is repeated in its list, and the list names every record's group. Only where both are
//! bad it is unknown whose the bytes were.
//!
//! ```text
//! segment head
//!    0   8  magic "HEDGEWAL"
//!    8   2  version of everything here: 3
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
//! link, the last 512 bytes of a segment
//!    0   4  magic "LINK"
//!    4   4  CRC of bytes 8..16
//!    8   8  id of the segment that comes next
//! ```
//! It is written and synced when the next segment is durable under its name and has no batch yet. So where the newest
//! segment that is there has a link, the one that it names was lost, and with it what may have been acknowledged there. A
//! segment that was full before programs wrote links has none. Programs that know no links do not look there.
//!
//! ```text
//! mark, a file beside the log's directory, under its name with `.mark` (`log.mark` for `log`), from epoch 1 on with the
//! epoch before that (`log.1.mark`)
//!    0   8  magic "HEDGMARK"
//!    8   8  version of the mark: 1
//!   16   8  id of a segment
//!   24   8  batch: every batch of it with a lower number was durable before this was written
//!   32   4  CRC of the bytes before
//! ```
//! It is written over itself about once a second, without a sync, so that it may say less than is true, and never more.
//! While the segment that it names is the newest, bad bytes in a batch that it speaks of are corruption; if that segment is
//! above the newest, it was lost. A mark that is missing or damaged says nothing, and neither does one of segment 0, which stands where a
//! log has ended.
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
//! are corruption. So they are too if a batch from `n` on says that a segment is freed which is not there any more.
//!
//! ```text
//! list
//!    0   4  magic "LIST"
//!    4   4  CRC of bytes 8.. up to the end of the list
//!    8  32  as in the batch head: number, synced, where the batch head stands, size and count of the records
//!   40  13  ... of each record, in their order:
//!           0   4  size of its payload
//!           4   1  what it is
//!           5   8  group
//! ```
//! A batch counts if its head or its list is sound. It is a torn tail only by its records: a batch whose records are all
//! sound is whole, whatever became of its head or its list.
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
//! The head has a checksum of its own, so that a damaged payload still tells whose it was. If the head is damaged, the list
//! tells whose it was and where the next record begins.
//!
//! | what | index, term | detail | payload | meaning |
//! |---|---|---|---|---|
//! | entry | of the entry | its kind | its data | replaces everything of the group at and above its index |
//! | moved | of the entry | its kind | its data | a copy of the entry in force, from a segment about to go; replaces only itself |
//! | state | where the log begins, exclusive | 1: has a vote, 2: damaged, 4: incomplete, 8: pending | below | the group's whole state but for its entries |
//! | removed | the last segment that may hold records of it, 0 | 0 | none | the group is gone |
//! | freed | first segment, count | 0 | below | these segments count no more |
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
//!   56   8  generation: how often the group's log was copied from another log to this one or the one before it
//! ```
//! A group's log is copied whole, into the next generation, and struck out of the log where it was once the copy is durable. While it
//! is being copied its states are incomplete: such a log counts for nothing. Until the former one is struck out they are pending: both
//! say the same unless the copy was away meanwhile, and it may not be written to before. A pending one counts beside none that is not.
//!
//! ```text
//! payload of a freed, so that the record needs no head: that it went concerns every group
//!    0   8  first segment
//!    8   8  count
//!   16   4  CRC of these
//! ```
//! States are absolute: the latest one, and the entries in force, are all that recovery needs of a group. That is what
//! allows any segment to go as soon as no such record is in it, wherever it stands in the order.

use hedgerow_types::log::{EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, ReplicaId, Term};

/// Version of the format: of what is written.
pub const VERSION: u32 = 3;
/// The oldest version that is read.
pub const VERSION_MIN: u32 = 1;
/// From this version on heads have a copy and batches have a list.
const VERSION_WITH_LISTS: u32 = 2;

/// How many bits of a segment's id stand below its epoch.
const EPOCH_SHIFT: u32 = 32;

pub(crate) const BATCH_HEAD_SIZE: usize = 40;
pub(crate) const RECORD_HEAD_SIZE: usize = 40;
/// Batches start at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;
const SEGMENT_MAGIC: [u8; 8] = *b"HEDGEWAL";
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"BTCH");
const LIST_MAGIC: u32 = u32::from_le_bytes(*b"LIST");
/// What a list says of each record.
pub(crate) const LISTED_SIZE: usize = 13;
const LINK_MAGIC: u32 = u32::from_le_bytes(*b"LINK");
/// What a link takes of the end of a segment: the device writes it apart from every record.
pub(crate) const LINK_SPACE: u64 = 512;
const LINK_SIZE: usize = 16;
const MARK_MAGIC: u64 = u64::from_le_bytes(*b"HEDGMARK");
const MARK_VERSION: u64 = 1;
const MARK_SIZE: usize = 36;
const SEGMENT_HEAD_FIXED_SIZE: usize = 48;
/// Heads, and segments as a whole, are multiples of this.
pub(crate) const SEGMENT_UNIT: usize = 4096;
const STATE_SIZE: usize = 64;
/// In versions before 3.
const STATE_SIZE_WITHOUT_GENERATION: usize = 56;
const FREED_SIZE: usize = 20;
/// Numbers of segments, batches and entries, and terms, are below this: no log counts so far. So adding to one cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
const HAS_VOTE: u8 = 1;
const IS_DAMAGED: u8 = 2;
const IS_INCOMPLETE: u8 = 4;
const IS_PENDING: u8 = 8;

/// A place in the whole log. Later records stand at higher places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPlace {
    /// Id of the segment.
    pub segment: u64,
    /// Byte within it.
    pub offset: u64,
}

/// The first bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// Version of the format that the segment is in.
    pub version: u32,
    /// Id of the segment, from 1.
    pub id: u64,
    /// Its size in bytes, the head included.
    pub size: u64,
    /// Number of its first batch.
    pub first_batch: u64,
    /// The other segments that counted when this one began, and where each ends.
    pub others: Vec<LogPlace>,
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

/// What a batch's list says of one of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What it is.
    pub kind: RecordKind,
    /// Whose it is.
    pub group: GroupId,
    /// Bytes of its payload.
    pub size: u32,
}

/// A batch's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchList<'a> {
    /// What the batch's head says.
    pub(crate) head: BatchHead,
    /// Where the batch's head stands.
    pub(crate) start: usize,
    items: &'a [u8],
}

/// The last bytes of a segment that is not the newest: which one comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) next: u64,
}

/// How far a log was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) segment: u64,
    /// Batches of the segment with a lower number are durable.
    pub(crate) batch: u64,
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
    pub born: LogPlace,
    /// Where the entries begin, exclusive.
    pub start: LogPosition,
    /// Index of the last entry.
    pub last: Index,
    /// The hard state.
    pub hard_state: HardState,
    /// Whether something of the log was found damaged and nobody has dealt with it.
    pub is_damaged: bool,
    /// How often this log of the group was copied from one log to another.
    pub generation: u64,
    /// Whether it is a copy that has not come to its end.
    pub is_incomplete: bool,
    /// Whether the log that it is a copy of may not have been struck out.
    pub is_pending: bool,
}

/// Why a segment's head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// It has another version.
    Version(u32),
    /// It is damaged.
    Damaged,
}

/// The epoch of the log that segment `id` is of.
pub(crate) const fn epoch_of(id: u64) -> u64 {
    id >> EPOCH_SHIFT
}

/// Whether another log can begin where one of `epoch` was.
pub(crate) const fn may_be_followed(epoch: u64) -> bool {
    epoch < epoch_of(NUMBER_MAX) - 1
}

/// The first segment of a log that begins where one of `epoch` was.
pub(crate) const fn first_after(epoch: u64) -> u64 {
    (epoch + 1) << EPOCH_SHIFT
}

/// What every checksum in segment `id` starts from.
pub(crate) fn seed(id: u64) -> u32 {
    crc32c::crc32c(&id.to_le_bytes())
}

impl SegmentHead {
    /// Bytes that one copy of the head takes, padding included.
    fn encoded_size(others: usize) -> usize {
        (SEGMENT_HEAD_FIXED_SIZE + 16 * others).next_multiple_of(SEGMENT_UNIT)
    }

    /// Where the first batch of a new segment stands.
    pub(crate) fn new_data_start(others: usize) -> usize {
        2 * Self::encoded_size(others)
    }

    /// Where the first batch stands.
    pub(crate) fn data_start(&self) -> usize {
        let size = Self::encoded_size(self.others.len());
        if self.has_lists() { 2 * size } else { size }
    }

    /// Whether the segment's batches have lists.
    pub(crate) const fn has_lists(&self) -> bool {
        self.version >= VERSION_WITH_LISTS
    }

    /// The head and its copy.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::new_data_start(self.others.len()));
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&(self.version | !self.version << 16).to_le_bytes());
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
        if self.has_lists() {
            out.extend_from_within(..);
        }
        out
    }

    /// The head of the segment `id`, whose bytes are (or begin with) `bytes`; its copy if the head itself is damaged.
    pub(crate) fn decode(bytes: &[u8], id: u64) -> Result<Self, HeadError> {
        let head = Self::decode_one(bytes, id);
        if head != Err(HeadError::Damaged) {
            return head;
        }
        let copy = |at: usize| {
            let head = Self::decode_one(&bytes[at..], id).ok()?;
            (head.has_lists() && Self::encoded_size(head.others.len()) == at).then_some(head)
        };
        (SEGMENT_UNIT..bytes.len()).step_by(SEGMENT_UNIT).find_map(copy).ok_or(HeadError::Damaged)
    }

    fn decode_one(bytes: &[u8], id: u64) -> Result<Self, HeadError> {
        let fixed = bytes.get(..SEGMENT_HEAD_FIXED_SIZE).ok_or(HeadError::Damaged)?;
        let (version, complement) = (u32_at(fixed, 8) & 0xffff, u32_at(fixed, 8) >> 16);
        if fixed[..8] != SEGMENT_MAGIC || version != !complement & 0xffff {
            return Err(HeadError::Damaged);
        }
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(HeadError::Version(version));
        }
        let count = usize::try_from(u64_at(fixed, 40)).map_err(|_| HeadError::Damaged)?;
        let end = count.checked_mul(16).and_then(|size| size.checked_add(SEGMENT_HEAD_FIXED_SIZE));
        let covered = end.and_then(|end| bytes.get(16..end)).ok_or(HeadError::Damaged)?;
        if u64_at(fixed, 16) != id || crc32c::crc32c_append(seed(id), covered) != u32_at(fixed, 12) {
            return Err(HeadError::Damaged);
        }
        let others: Vec<LogPlace> = covered[SEGMENT_HEAD_FIXED_SIZE - 16..]
            .chunks_exact(16)
            .map(|place| LogPlace { segment: u64_at(place, 0), offset: u64_at(place, 8) })
            .collect();
        let first_batch = u64_at(fixed, 32);
        if first_batch >= NUMBER_MAX || others.iter().any(|other| other.segment >= NUMBER_MAX) {
            return Err(HeadError::Damaged);
        }
        Ok(Self { version, id, size: u64_at(fixed, 24), first_batch, others })
    }
}

impl Link {
    /// Where the link of a segment of `size` bytes stands.
    pub(crate) fn offset(size: u64) -> u64 {
        size.saturating_sub(LINK_SPACE)
    }

    pub(crate) fn encode(self, seed: u32) -> [u8; LINK_SIZE] {
        let mut out = [0; LINK_SIZE];
        out[..4].copy_from_slice(&LINK_MAGIC.to_le_bytes());
        out[8..].copy_from_slice(&self.next.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The link at the end of the segment `id`, which was made `size` bytes long, if it has one.
    pub(crate) fn decode(segment: &[u8], id: u64, size: u64) -> Option<Self> {
        let at = usize::try_from(Self::offset(size)).ok()?;
        let link = segment.get(at..at.checked_add(LINK_SIZE)?)?;
        let is_valid = u32_at(link, 0) == LINK_MAGIC && crc32c::crc32c_append(seed(id), &link[8..]) == u32_at(link, 4);
        let next = u64_at(link, 8);
        (is_valid && next < NUMBER_MAX).then_some(Self { next })
    }
}

impl Mark {
    pub(crate) fn encode(self) -> [u8; MARK_SIZE] {
        let mut out = [0; MARK_SIZE];
        for (bytes, number) in out.chunks_exact_mut(8).zip([MARK_MAGIC, MARK_VERSION, self.segment, self.batch]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out[..MARK_SIZE - 4]);
        out[MARK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The mark in a file of these bytes, if it is one of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mark = bytes.get(..MARK_SIZE)?;
        let is_valid = u64_at(mark, 0) == MARK_MAGIC
            && u64_at(mark, 8) == MARK_VERSION
            && crc32c::crc32c(&mark[..MARK_SIZE - 4]) == u32_at(mark, MARK_SIZE - 4);
        let (segment, batch) = (u64_at(mark, 16), u64_at(mark, 24));
        (is_valid && segment.max(batch) < NUMBER_MAX).then_some(Self { segment, batch })
    }
}

impl BatchHead {
    /// Bytes of a batch with a list, of `count` records that take `size` bytes.
    pub(crate) fn batch_size(size: usize, count: usize) -> usize {
        (BATCH_HEAD_SIZE + size).next_multiple_of(ALIGNMENT) + BATCH_HEAD_SIZE + LISTED_SIZE * count
    }

    /// Where the list of the batch stands whose head stands at `start`.
    pub(crate) fn list_at(&self, start: usize) -> usize {
        start.saturating_add(BATCH_HEAD_SIZE).saturating_add(self.size as usize).next_multiple_of(ALIGNMENT)
    }

    /// Where that list ends.
    pub(crate) fn list_end(&self, start: usize) -> usize {
        start.saturating_add(Self::batch_size(self.size as usize, self.count as usize))
    }

    /// Writes the head over the first bytes of `out`, which has the records after it, and appends the list with these
    /// items. The head will stand at `offset` of its segment.
    pub(crate) fn encode(&self, seed: u32, offset: u64, items: &[u8], out: &mut Vec<u8>) {
        self.put(BATCH_MAGIC, offset, out);
        let crc = crc32c::crc32c_append(seed, &out[8..BATCH_HEAD_SIZE]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        let list = out.len().next_multiple_of(ALIGNMENT);
        out.resize(list + BATCH_HEAD_SIZE, 0);
        self.put(LIST_MAGIC, offset, &mut out[list..]);
        out.extend_from_slice(items);
        let crc = crc32c::crc32c_append(seed, &out[list + 8..]);
        out[list + 4..list + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Writes all but the checksum.
    fn put(&self, magic: u32, offset: u64, out: &mut [u8]) {
        out[..4].copy_from_slice(&magic.to_le_bytes());
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.to_le_bytes());
        out[24..32].copy_from_slice(&offset.to_le_bytes());
        out[32..36].copy_from_slice(&self.size.to_le_bytes());
        out[36..40].copy_from_slice(&self.count.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        Self { number: u64_at(bytes, 8), synced: u64_at(bytes, 16), size: u32_at(bytes, 32), count: u32_at(bytes, 36) }
    }

    /// The head at `offset` of a segment, if one is there.
    pub(crate) fn decode(segment: &[u8], seed: u32, offset: usize) -> Option<Self> {
        let head = segment.get(offset..offset.checked_add(BATCH_HEAD_SIZE)?)?;
        let is_valid = u32_at(head, 0) == BATCH_MAGIC
            && u64_at(head, 24) == offset as u64
            && crc32c::crc32c_append(seed, &head[8..]) == u32_at(head, 4)
            && u64_at(head, 8) < NUMBER_MAX;
        is_valid.then(|| Self::get(head))
    }
}

impl<'a> BatchList<'a> {
    /// The list at `offset` of a segment, if one is there.
    pub(crate) fn decode(segment: &'a [u8], seed: u32, offset: usize) -> Option<Self> {
        let fixed = segment.get(offset..offset.checked_add(BATCH_HEAD_SIZE)?)?;
        if u32_at(fixed, 0) != LIST_MAGIC {
            return None;
        }
        let (head, start) = (BatchHead::get(fixed), usize::try_from(u64_at(fixed, 24)).ok()?);
        if start >= offset || head.list_at(start) != offset || head.number >= NUMBER_MAX {
            return None;
        }
        let list = segment.get(offset..head.list_end(start))?;
        let is_valid = crc32c::crc32c_append(seed, &list[8..]) == u32_at(list, 4);
        is_valid.then(|| Self { head, start, items: &list[BATCH_HEAD_SIZE..] })
    }

    /// What it says of the record with this number in the batch.
    pub(crate) fn at(&self, number: usize) -> Option<Listed> {
        let item = self.items.chunks_exact(LISTED_SIZE).nth(number)?;
        let kind = RecordKind::decode(item[4])?;
        Some(Listed { kind, group: GroupId::from_u64(u64_at(item, 5)), size: u32_at(item, 0) })
    }
}

impl Listed {
    /// Appends what a list says.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_le_bytes());
        out.push(self.kind as u8);
        out.extend_from_slice(&self.group.to_u64().to_le_bytes());
    }
}

impl RecordKind {
    const fn decode(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Entry,
            2 => Self::Moved,
            3 => Self::State,
            4 => Self::Removed,
            5 => Self::Freed,
            _ => return None,
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

    /// The head at the start of `bytes`, if its checksum is right, its numbers can be and this version knows its kind.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let head = bytes.get(..RECORD_HEAD_SIZE)?;
        let is_valid = crc32c::crc32c_append(seed, &head[4..]) == u32_at(head, 0);
        if !is_valid || u64_at(head, 24).max(u64_at(head, 32)) >= NUMBER_MAX {
            return None;
        }
        Some(Self {
            kind: RecordKind::decode(head[12])?,
            detail: head[13],
            group: GroupId::from_u64(u64_at(head, 16)),
            index: u64_at(head, 24),
            term: u64_at(head, 32),
            size: u32_at(head, 8),
            payload_crc: u32_at(head, 4),
        })
    }

    /// The head of a freed record, for these segments.
    pub(crate) fn freed(first: u64, count: u64) -> Self {
        Self { size: FREED_SIZE as u32, ..Self::new(RecordKind::Freed, 0, GroupId::META, first, count) }
    }

    /// The payload that goes with it.
    pub(crate) fn freed_payload(&self, seed: u32) -> [u8; FREED_SIZE] {
        let mut payload = [0; FREED_SIZE];
        payload[..8].copy_from_slice(&self.index.to_le_bytes());
        payload[8..16].copy_from_slice(&self.term.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &payload[..16]);
        payload[16..].copy_from_slice(&crc.to_le_bytes());
        payload
    }

    /// The head that a freed record must have had by its payload.
    pub(crate) fn of_freed(payload: &[u8], seed: u32) -> Option<Self> {
        let is_sound =
            payload.len() == FREED_SIZE && crc32c::crc32c_append(seed, &payload[..16]) == u32_at(payload, 16);
        is_sound.then(|| Self::freed(u64_at(payload, 0), u64_at(payload, 8)))
    }

    pub(crate) fn is_payload(&self, seed: u32, payload: &[u8]) -> bool {
        crc32c::crc32c_append(seed, payload) == self.payload_crc
    }

    /// The kind of the entry that an entry or moved record holds.
    pub fn entry_kind(&self) -> Option<EntryKind> {
        EntryKind::from_code(self.detail)
    }
}

/// Bytes that a freed record takes.
pub(crate) const FREED_RECORD_SIZE: usize = RECORD_HEAD_SIZE + FREED_SIZE;

impl State {
    /// Bytes that the record of a state takes.
    pub(crate) const RECORD_SIZE: usize = RECORD_HEAD_SIZE + STATE_SIZE;
    /// Bytes of its payload.
    pub(crate) const SIZE: u32 = STATE_SIZE as u32;

    pub(crate) fn encode(&self, group: GroupId, seed: u32, out: &mut Vec<u8>) {
        let vote = if self.hard_state.vote.is_some() { HAS_VOTE } else { 0 };
        let damaged = if self.is_damaged { IS_DAMAGED } else { 0 };
        let incomplete = if self.is_incomplete { IS_INCOMPLETE } else { 0 };
        let pending = if self.is_pending { IS_PENDING } else { 0 };
        let detail = vote | damaged | incomplete | pending;
        let mut payload = [0; STATE_SIZE];
        let numbers = [
            self.replica.0,
            self.born.segment,
            self.born.offset,
            self.last,
            self.hard_state.term,
            self.hard_state.vote.map_or(0, |replica| replica.0),
            self.hard_state.commit,
            self.generation,
        ];
        for (bytes, number) in payload.chunks_exact_mut(8).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        RecordHead::new(RecordKind::State, detail, group, self.start.index, self.start.term)
            .encode(seed, &payload, out);
    }

    /// The state in a record whose checksums are right; `None` if it makes no sense even so.
    pub(crate) fn decode(head: &RecordHead, payload: &[u8]) -> Option<Self> {
        let generation = match payload.len() {
            STATE_SIZE => u64_at(payload, STATE_SIZE_WITHOUT_GENERATION),
            STATE_SIZE_WITHOUT_GENERATION => 0,
            _ => return None,
        };
        let state = Self {
            replica: ReplicaId(u64_at(payload, 0)),
            born: LogPlace { segment: u64_at(payload, 8), offset: u64_at(payload, 16) },
            start: LogPosition { term: head.term, index: head.index },
            last: u64_at(payload, 24),
            hard_state: HardState {
                term: u64_at(payload, 32),
                vote: (head.detail & HAS_VOTE != 0).then(|| ReplicaId(u64_at(payload, 40))),
                commit: u64_at(payload, 48),
            },
            is_damaged: head.detail & IS_DAMAGED != 0,
            generation,
            is_incomplete: head.detail & IS_INCOMPLETE != 0,
            is_pending: head.detail & IS_PENDING != 0,
        };
        let HardState { term, commit, .. } = state.hard_state;
        let highest = state.last.max(term).max(commit).max(generation);
        (state.last >= state.start.index && highest < NUMBER_MAX).then_some(state)
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
