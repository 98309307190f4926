//! What a storage engine is: an ordered map of bytes, written in atomic batches that a flush makes durable.

use crate::batch::Batch;
use crate::debt::Debt;
use bytes::Bytes;
use hedgerow_env::Disk;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One replica's storage. Methods block until they are done. A crash loses a suffix of the batches written since the
/// last flush, never part of a batch.
pub trait Engine: Send + Sync + fmt::Debug {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Shows `visit` the rows of `range`, in key order or against it, until it breaks. What it sees is one moment's
    /// content, whatever is written meanwhile. `visit` must not write to the same engine.
    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError>;

    /// As [`Engine::get`] if no disk is needed for it, and [`EngineError::NotAtOnce`] otherwise.
    fn get_at_once(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.get(key)
    }

    /// As [`Engine::scan`] as long as no disk is needed for it. [`EngineError::NotAtOnce`] may come after some rows have been shown.
    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        self.scan(range, direction, visit)
    }

    /// What the engine holds now, for another thread to read however long that takes: nobody who writes waits for it. Cheap.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError>;

    /// Writes all of `batch` or, on an error, none of it. Later changes of a key in a batch override earlier ones.
    fn write(&self, batch: &Batch) -> Result<(), EngineError>;

    /// Makes durable what was written before the call.
    fn flush(&self) -> Result<(), EngineError>;

    /// As [`Engine::flush`], but at the pace that the engines' settings allow where nobody waits for it, so that others have
    /// the disk meanwhile.
    fn flush_at_pace(&self) -> Result<(), EngineError> {
        self.flush()
    }

    /// Puts a consistent, complete and synced copy into the directory `into`, which must not exist. A copy opens like
    /// any other directory of the same engine. It holds what was written before the call, and may hold batches that
    /// were written during it.
    fn checkpoint(&self, into: &Path) -> Result<(), EngineError>;

    /// Permits the engine to drop data rows that expired at or before `seconds` (expiry epoch). An earlier time than before
    /// takes back what was permitted; work under way may still go by it.
    fn set_expire_floor(&self, seconds: u32);

    /// The content is not wanted any more: what has not been flushed by now need not be when the last handle is dropped.
    fn give_up(&self) {}

    /// Drops for good what may be dropped and gives its space back. Takes as long as rewriting every row; nothing needs
    /// it to be called.
    fn compact(&self) -> Result<(), EngineError>;

    /// Why work that the engine does by itself, compactions above all, has stopped. Reads go on meanwhile, and so do
    /// flushes or not. Without space it begins again by itself once there is some; after anything else only a new open
    /// helps, or after damage another replica. Cheap enough to be asked often.
    fn background_failure(&self) -> Option<EngineError> {
        None
    }

    /// What compactions have still to do. Nothing while they have stopped ([`Engine::background_failure`]): to wait for them
    /// would not end. May wait for the database, so that it is asked where that may take its time.
    fn debt(&self) -> Debt {
        Debt::default()
    }

    /// Bytes of rows in memory that no flush has written yet, with what it costs to keep them. Cheap enough to be asked often.
    fn unflushed_bytes(&self) -> u64 {
        self.stats().unflushed_bytes
    }

    /// Sizes, for status and metrics.
    fn stats(&self) -> EngineStats;
}

/// The rows of one moment. Methods block until they are done. They keep the engine's files open: to be counted among its handles.
pub trait Snapshot: Send + Sync + fmt::Debug {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// The values of `keys`, in their order.
    fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Shows `visit` the rows of `range`, in key order or against it, until it breaks.
    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError>;

    /// As [`Snapshot::get_all`], if all that takes is in memory; otherwise [`EngineError::NotAtOnce`].
    fn get_all_at_once(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError>;

    /// As [`Snapshot::scan`] and [`Engine::scan_at_once`]: no disk, and few removed rows.
    fn scan_at_once(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>)
    -> Result<(), EngineError>;
}

/// Looks at a row, key and value, and says whether to go on.
pub type RowVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Opens engines that share memory and threads.
pub trait Engines: Send + Sync + fmt::Debug {
    /// Opens the engine in `dir`, creating it if it is absent. One `dir` is open once at a time: every handle of an
    /// engine must be gone before its directory is opened again, renamed or removed.
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError>;

    /// Reads every row of the engine in `dir`, past all caches, and compares what the disk gives back with its checksums: damage
    /// is found wherever it is, and not only where somebody happens to read. Costs one read of all that is stored, at a pace that
    /// leaves the disk to others (a gigabyte takes about 4 s); nothing is written, and nothing stays in a cache. `dir` must not be open, nor change meanwhile.
    /// After [`Engines::hurry`] it ends with an error that is no damage.
    fn verify(&self, dir: &Path) -> Result<(), EngineError>;

    /// Has every flush of these engines, from now on and those under way, write as fast as it can: they are about to be
    /// closed.
    fn hurry(&self) {}

    /// Whether nothing can be opened in `dir` any more because it was removed, or the part of it without which an engine would begin
    /// anew. False where that cannot be told. May be asked while the engine is open.
    fn is_gone(&self, dir: &Path) -> bool {
        self.disk().list(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Where the engines' files are, for copying checkpoints.
    fn disk(&self) -> Arc<dyn Disk>;
}

/// A half-open range of engine keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyRange<'a> {
    /// The first key.
    pub start: &'a [u8],
    /// The first key that no longer belongs to the range; `None` = none.
    pub end: Option<&'a [u8]>,
    /// Whether the scan is large and its rows should not displace others from the cache.
    pub is_bulk: bool,
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the range's start.
    Ascending,
    /// From the range's end.
    Descending,
}

/// Sizes of an engine. Estimates, except for the memory engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Rows, bookkeeping included.
    pub rows: u64,
    /// Bytes of rows on disk.
    pub disk_bytes: u64,
    /// Bytes of rows in memory that no flush has written yet.
    pub unflushed_bytes: u64,
}

/// What an operating system or a library gave as the reason.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What a storage failure asks of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// What is stored is not what was stored, or parts of it are missing: learn it again from other replicas.
    Damage,
    /// There is no space, or a limit on space is reached. What is stored is sound, and what was not flushed can still be
    /// read here: flush again when there is space.
    NoSpace,
    /// The process or the system has too many files open. What is stored is sound: try again when there are fewer.
    NoDescriptors,
    /// The system has no memory to give. What is stored is sound: try again later.
    NoMemory,
    /// The disk or the system refuses for another reason: permissions, a device's error. What is stored may be sound.
    Other,
}

/// A storage failure. [`EngineError::kind`] says what to do; nothing but a lack is worth a retry ([`FailureKind::may_pass`]).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot be opened.
    #[error("cannot open the storage in {}", dir.display())]
    Open {
        /// Its directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: Cause,
    },
    /// Rows cannot be read.
    #[error("cannot read from the storage")]
    Read {
        /// Why.
        #[source]
        source: Cause,
    },
    /// A batch was not written.
    #[error("cannot write to the storage")]
    Write {
        /// Why.
        #[source]
        source: Cause,
    },
    /// What was written may not be durable.
    #[error("cannot flush the storage")]
    Flush {
        /// Why.
        #[source]
        source: Cause,
    },
    /// A checkpoint was not made. Parts of it may be on disk.
    #[error("cannot write a checkpoint into {}", into.display())]
    Checkpoint {
        /// Where it should have gone.
        into: PathBuf,
        /// Why.
        #[source]
        source: Cause,
    },
    /// What was to be read at once needs a disk, or is too much for that. Nothing is wrong: take a snapshot.
    #[error("what is to be read is not in memory, or too much to be read at once")]
    NotAtOnce,
    /// Stored bytes are not what was stored, or come from a later version.
    #[error("damaged storage: {what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
}

impl EngineError {
    /// [`EngineError::Damaged`].
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    /// Whether the stored data is at fault, not the attempt to reach it.
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// What is to be done about it.
    pub fn kind(&self) -> FailureKind {
        if self.is_damage() {
            return FailureKind::Damage;
        }
        match self.os_reason() {
            Some(reason) => FailureKind::of(reason),
            None => FailureKind::Other,
        }
    }

    /// What the operating system said, if it was asked.
    pub fn os_reason(&self) -> Option<&io::Error> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(reason) = error.downcast_ref::<io::Error>() {
                return Some(reason);
            }
            cause = error.source();
        }
        None
    }
}

impl FailureKind {
    /// What the operating system's answer asks for. Never [`FailureKind::Damage`].
    pub fn of(reason: &io::Error) -> Self {
        match (reason.kind(), reason.raw_os_error()) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge, _) => {
                Self::NoSpace
            }
            (_, Some(libc::EMFILE | libc::ENFILE)) => Self::NoDescriptors,
            (_, Some(libc::ENOMEM)) => Self::NoMemory,
            _ => Self::Other,
        }
    }

    /// Whether there is a lack of something, which passes, and nothing is wrong with what is stored or with where it is.
    pub const fn may_pass(self) -> bool {
        match self {
            Self::NoSpace | Self::NoDescriptors | Self::NoMemory => true,
            Self::Damage | Self::Other => false,
        }
    }
}
