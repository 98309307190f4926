//! What each read returns, and the handles that it is read with.
//!
//! | handle | reads | for |
//! |---|---|---|
//! | [`crate::Partition::read_at_once`] | what is in memory and small; says so if it is not | the thread that serves: no disk, and a slice of work |
//! | [`Moment::read`] | anything, as of the moment at which it was taken | other threads, however long it takes |
//! | [`Moment::read_at_once`] | of that moment what is in memory and small | other threads that serve |
//! | [`crate::Partition::read`] | anything, as of now | who may wait |

mod checksum;
mod journal;
mod page;
mod range;

use crate::engine::{Direction, Engine, EngineError, KeyRange, RowVisitor, Snapshot};
use crate::layout;
use bytes::Bytes;
use hedgerow_types::error::Status;
use hedgerow_types::limit::READ_SIZE_MAX;
use hedgerow_types::op::{ExpireAt, MultiGet, Read, ReadReply, Row, Selection};
use hedgerow_types::time::log_time_after;
use page::Limits;
use std::cell::Cell;
use std::sync::Arc;

/// Rows after which a long read looks whether it is still wanted.
const WANTED_INTERVAL: u64 = 256;

/// How much a read may look at where others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBudget {
    /// Rows, expired and filtered ones included.
    pub rows: u64,
    /// Bytes of keys and values. Looked at before each row, so that the last one may exceed it.
    pub bytes: u64,
}

impl ReadBudget {
    const WITHOUT: Self = Self { rows: u64::MAX, bytes: u64::MAX };

    /// Whether a read asks for more rows than this, by what it says.
    fn is_exceeded_by(self, read: &Read) -> bool {
        let keys = match read {
            Read::Checksum => return true,
            Read::BatchGet { keys } => keys.len(),
            Read::MultiGet(MultiGet { selection: Selection::Suffixes(suffixes), .. }) => suffixes.len(),
            Read::MultiGet(_) | Read::Get { .. } | Read::Ttl { .. } | Read::SortKeyCount { .. } | Read::Scan(_) => 0,
            Read::Journal(_) => 0,
        };
        keys as u64 > self.rows
    }
}

/// Reads one replica's records.
#[derive(Debug)]
pub(crate) struct Reader {
    engine: Arc<dyn Engine>,
    /// The latest log time that is in the engine, expiry-epoch seconds.
    log_now: u32,
}

impl Reader {
    pub(crate) fn new(engine: Arc<dyn Engine>, log_now: u32) -> Self {
        Self { engine, log_now }
    }

    pub(crate) const fn advance(&mut self, log_now: u32) {
        self.log_now = log_now;
    }

    /// As [`crate::Partition::read`].
    pub(crate) fn read(&self, read: &Read, now: u32) -> Result<ReadReply, EngineError> {
        let rows = Rows::Now(&*self.engine);
        View::new(rows, log_time_after(self.log_now, now, true), ReadBudget::WITHOUT, &|| true).read(read)
    }

    /// As [`crate::Partition::read_at_once`].
    pub(crate) fn read_at_once(
        &self,
        read: &Read,
        now: u32,
        budget: ReadBudget,
    ) -> Result<Option<ReadReply>, EngineError> {
        at_once(Rows::AtOnce(&*self.engine), read, log_time_after(self.log_now, now, true), budget)
    }

    /// As [`crate::Partition::moment`].
    pub(crate) fn moment(&self) -> Result<Moment, EngineError> {
        Ok(Moment { rows: self.engine.snapshot()?, log_now: self.log_now })
    }
}

/// A replica's records as they were at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    rows: Arc<dyn Snapshot>,
    log_now: u32,
}

impl Moment {
    /// Answers `read` as it would have been answered at that moment. Ends early, with [`EngineError::NotAtOnce`], once `is_wanted` says
    /// that nobody waits for it any more.
    pub fn read(&self, read: &Read, now: u32, is_wanted: &dyn Fn() -> bool) -> Result<ReadReply, EngineError> {
        if !is_wanted() {
            return Err(EngineError::NotAtOnce);
        }
        let now = log_time_after(self.log_now, now, true);
        View::new(Rows::Then(&*self.rows), now, ReadBudget::WITHOUT, is_wanted).read(read)
    }

    /// The same within `budget` and without a disk: `None` if that is not enough.
    pub fn read_at_once(&self, read: &Read, now: u32, budget: ReadBudget) -> Result<Option<ReadReply>, EngineError> {
        at_once(Rows::ThenAtOnce(&*self.rows), read, log_time_after(self.log_now, now, true), budget)
    }
}

fn at_once(rows: Rows<'_>, read: &Read, now: u32, budget: ReadBudget) -> Result<Option<ReadReply>, EngineError> {
    if budget.is_exceeded_by(read) {
        return Ok(None);
    }
    match View::new(rows, now, budget, &|| true).read(read) {
        Ok(reply) => Ok(Some(reply)),
        Err(EngineError::NotAtOnce) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whose rows are read, and how.
enum Rows<'a> {
    Now(&'a dyn Engine),
    AtOnce(&'a dyn Engine),
    Then(&'a dyn Snapshot),
    ThenAtOnce(&'a dyn Snapshot),
}

impl Rows<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        match self {
            Self::Now(engine) => engine.get(key),
            Self::AtOnce(engine) => engine.get_at_once(key),
            Self::Then(snapshot) => snapshot.get(key),
            Self::ThenAtOnce(snapshot) => {
                let rows = snapshot.get_all_at_once(&[key.to_vec()])?;
                Ok(rows.into_iter().next().flatten())
            }
        }
    }

    /// How many rows are best asked for together.
    const fn together(&self) -> usize {
        match self {
            Self::Now(_) | Self::AtOnce(_) => 1,
            Self::Then(_) | Self::ThenAtOnce(_) => 64,
        }
    }

    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        match self {
            Self::Now(_) | Self::AtOnce(_) => keys.iter().map(|key| self.get(key)).collect(),
            Self::Then(snapshot) => snapshot.get_all(keys),
            Self::ThenAtOnce(snapshot) => snapshot.get_all_at_once(keys),
        }
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        match self {
            Self::Now(engine) => engine.scan(range, direction, visit),
            Self::AtOnce(engine) => engine.scan_at_once(range, direction, visit),
            Self::Then(snapshot) => snapshot.scan(range, direction, visit),
            Self::ThenAtOnce(snapshot) => snapshot.scan_at_once(range, direction, visit),
        }
    }
}

/// The records as of `now`.
struct View<'a> {
    rows: Rows<'a>,
    now: u32,
    /// What may still be looked at.
    left: Cell<ReadBudget>,
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> View<'a> {
    fn new(rows: Rows<'a>, now: u32, budget: ReadBudget, is_wanted: &'a dyn Fn() -> bool) -> Self {
        Self { rows, now, left: Cell::new(budget), is_wanted }
    }

    fn read(&self, read: &Read) -> Result<ReadReply, EngineError> {
        match read {
            Read::Get { key } => {
                let record = self.live(&[key])?;
                Ok(ReadReply::Value(record.map(|(_, value)| value).ok_or(Status::NotFound)))
            }
            Read::Ttl { key } => {
                let record = self.live(&[key])?;
                Ok(ReadReply::Ttl(record.map(|(expire_at, _)| self.seconds_left(expire_at)).ok_or(Status::NotFound)))
            }
            Read::MultiGet(multi_get) => self.multi_get(multi_get),
            Read::BatchGet { keys } => self.batch_get(keys),
            Read::SortKeyCount { prefix } => self.sort_key_count(prefix),
            Read::Scan(scan) => self.scan(scan),
            Read::Checksum => self.checksum(),
            Read::Journal(read) => self.journal(read).map(ReadReply::Journal),
        }
    }

    /// A row of `size` bytes is looked at, if that is still allowed and wanted.
    fn look(&self, size: usize) -> Result<(), EngineError> {
        let ReadBudget { rows, bytes } = self.left.get();
        let is_over = rows == 0 || bytes == 0;
        if is_over || (rows.is_multiple_of(WANTED_INTERVAL) && !(self.is_wanted)()) {
            return Err(EngineError::NotAtOnce);
        }
        self.left.set(ReadBudget { rows: rows - 1, bytes: bytes.saturating_sub(size as u64) });
        Ok(())
    }

    /// Expiry and value of the record whose storage key `key`'s parts make up.
    fn live(&self, key: &[&[u8]]) -> Result<Option<(ExpireAt, Bytes)>, EngineError> {
        self.live_row(self.rows.get(&layout::data_key(key))?)
    }

    /// The same of a row that was read.
    fn live_row(&self, row: Option<Bytes>) -> Result<Option<(ExpireAt, Bytes)>, EngineError> {
        self.look(row.as_ref().map_or(0, Bytes::len))?;
        Ok(row.map(|row| layout::live(row, self.now)).transpose()?.flatten())
    }

    /// -1 = for ever.
    fn seconds_left(&self, expire_at: ExpireAt) -> i32 {
        match expire_at {
            0 => -1,
            _ => i32::try_from(expire_at.saturating_sub(self.now)).unwrap_or(i32::MAX),
        }
    }

    fn multi_get(&self, multi_get: &MultiGet) -> Result<ReadReply, EngineError> {
        match &multi_get.selection {
            Selection::Suffixes(suffixes) => {
                let limits = Limits::requested(multi_get.count_max, multi_get.size_max);
                let keys = suffixes.iter().map(|suffix| (&multi_get.prefix[..], suffix));
                self.listed(keys, limits, multi_get.no_value)
            }
            Selection::Range { .. } => self.multi_get_range(multi_get),
        }
    }

    fn batch_get(&self, keys: &[Bytes]) -> Result<ReadReply, EngineError> {
        if keys.is_empty() {
            return Ok(ReadReply::Rows { status: Status::InvalidArgument, rows: Vec::new() });
        }
        let limits = Limits { rows: usize::MAX, size: READ_SIZE_MAX };
        self.listed(keys.iter().map(|key| (&[][..], key)), limits, false)
    }

    /// The live records among `keys` (prefix and suffix each), in that order, absent ones left out. Rows carry the
    /// suffix. The size is looked at before a row is added: the last row may exceed it.
    fn listed<'k>(
        &self,
        keys: impl Iterator<Item = (&'k [u8], &'k Bytes)>,
        limits: Limits,
        no_value: bool,
    ) -> Result<ReadReply, EngineError> {
        let mut rows = Vec::new();
        let (mut keys, mut size) = (keys.peekable(), 0);
        while keys.peek().is_some() {
            let some: Vec<(&[u8], &Bytes)> = keys.by_ref().take(self.rows.together()).collect();
            let stored: Vec<Vec<u8>> =
                some.iter().map(|(prefix, suffix)| layout::data_key(&[prefix, suffix])).collect();
            for ((_, suffix), row) in some.into_iter().zip(self.rows.get_all(&stored)?) {
                let Some((_, value)) = self.live_row(row)? else { continue };
                if rows.len() >= limits.rows || size >= limits.size {
                    return Ok(ReadReply::Rows { status: Status::Incomplete, rows });
                }
                let value = if no_value { Bytes::new() } else { value };
                size += suffix.len() + value.len();
                rows.push(Row { key: suffix.clone(), value, expire_at: None });
            }
        }
        Ok(ReadReply::Rows { status: Status::Ok, rows })
    }
}
