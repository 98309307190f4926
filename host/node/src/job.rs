//! Slow work, taken off the node's own thread: opening, flushing and copying storage, reading old log entries.
//!
//! A job is data with everything it needs inside; running it touches nothing of the node. Its result comes back through
//! [`crate::Event::Job`]. A result for a replica that is gone by then is ignored.

use crate::adopt::{Unadopted, Unsaved};
use crate::config::READS_AT_ONCE;
use crate::errands::{Errand, ErrandsDone, Trash};
use crate::ids::{DirectoryId, LogId, ReplicaKey, ShardId};
use crate::install::{install, open_at};
use crate::replica::{directories_of_replica, directory_of};
use crate::requests::read_jobs::{ReadSize, Wanted};
use crate::status::State;
use bytes::Bytes;
use hedgerow_env::{Disk, OpenMode, Space};
use hedgerow_placement::Catalogue;
use hedgerow_replication::{Fetch, Membership, SnapshotMeta};
use hedgerow_storage::{Debt, Engine, Engines, FailureKind, FlushPoint, Moment, Partition, Sessions};
use hedgerow_types::ReplicaId;
use hedgerow_types::log::{Entry, LogPosition};
use hedgerow_types::op::{Read, ReadReply};
use hedgerow_wal::Reader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What jobs work with.
#[derive(Clone, Debug)]
pub struct JobContext {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The storage engines.
    pub engines: Arc<dyn Engines>,
    /// Readers of the logs, by number.
    pub readers: Vec<Reader>,
}

/// A piece of slow work.
#[derive(Debug)]
pub enum Job {
    /// Makes the storage of a new replica; `initial` is what it begins with, nothing for one that will learn.
    Create {
        /// For whom.
        owner: ReplicaKey,
        /// In which data directory.
        data: PathBuf,
        /// Log position and membership of a group that is being founded.
        initial: Option<(LogPosition, Membership)>,
    },
    /// Makes everything up to `position` durable in storage.
    Flush {
        /// For whom.
        owner: ReplicaKey,
        /// Its storage.
        engine: Arc<dyn Engine>,
        /// The moment before the flush began.
        point: FlushPoint,
        /// Whether it is to write as fast as it can.
        is_pressing: bool,
    },
    /// Makes a checkpoint for learners.
    Checkpoint {
        /// For whom.
        owner: ReplicaKey,
        /// Its storage.
        engine: Arc<dyn Engine>,
        /// Where.
        into: PathBuf,
        /// The checkpoint's id.
        id: u64,
    },
    /// Reads a piece of a checkpoint's file.
    ReadChunk {
        /// For whom.
        owner: ReplicaKey,
        /// Who receives it.
        to: ReplicaId,
        /// The checkpoint's id.
        id: u64,
        /// The file.
        path: PathBuf,
        /// Index of the file in the checkpoint.
        file: u32,
        /// Where in the file.
        offset: u64,
        /// How much.
        size: usize,
    },
    /// Writes a piece of a received checkpoint.
    WriteChunk {
        /// For whom.
        owner: ReplicaKey,
        /// The checkpoint's id.
        id: u64,
        /// The file, under its temporary name.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// The bytes.
        data: Bytes,
        /// Once the file is whole: its final name. It is then synced and renamed.
        complete_as: Option<PathBuf>,
    },
    /// Looks whether a received checkpoint is one, is what was said, and is sound: all of it is read once
    /// ([`Engines::verify`]), for a damaged block that is installed has a vote.
    Verify {
        /// For whom.
        owner: ReplicaKey,
        /// The checkpoint's id.
        id: u64,
        /// The received checkpoint.
        directory: PathBuf,
        /// What it should contain: the group goes on from this position, with this membership.
        meta: SnapshotMeta,
    },
    /// Reads all of a checkpoint that was just made, for its receiver has found the one before damaged: the tables in it are those
    /// of the storage.
    VerifyOwn {
        /// For whom.
        owner: ReplicaKey,
        /// The checkpoint.
        directory: PathBuf,
        /// What it contains.
        meta: SnapshotMeta,
        /// Its files: name and size.
        files: Vec<(String, u64)>,
    },
    /// Puts a received checkpoint, which was verified, in the place of the storage.
    Install {
        /// For whom.
        owner: ReplicaKey,
        /// The storage, which nobody uses any more.
        former: Option<Box<Partition>>,
        /// The received checkpoint.
        from: PathBuf,
        /// The storage directory.
        directory: PathBuf,
        /// Where the former storage goes, to be removed.
        trash: PathBuf,
        /// What it contains.
        meta: SnapshotMeta,
    },
    /// Reads log entries that are no longer in memory.
    Fetch {
        /// For whom.
        owner: ReplicaKey,
        /// The log's number.
        log: LogId,
        /// Which entries.
        fetch: Fetch,
    },
    /// Runs a read that takes long, for a client or for who compares replicas.
    Read {
        /// For whom.
        owner: ReplicaKey,
        /// The place that it has, if it is a client's.
        place: Option<(DirectoryId, ReadSize)>,
        /// What it reads.
        moment: Moment,
        /// The node's number for it.
        ticket: u64,
        /// The read.
        read: Read,
        /// Expiry-epoch seconds.
        now: u32,
        /// Whether it may end early.
        wanted: Wanted,
    },
    /// Asks what compactions have still to do.
    Debt {
        /// For whom.
        owner: ReplicaKey,
        /// Its storage.
        engine: Arc<dyn Engine>,
    },
    /// Looks how much room there is, and whether storage is there.
    Space {
        /// Which data directory.
        directory: DirectoryId,
        /// Where it is.
        path: PathBuf,
        /// Storage that should be there.
        storage: Vec<(ReplicaKey, PathBuf)>,
        /// Bytes of room to be kept for a start; 0 = as it is.
        reserve: usize,
    },
    /// Makes a catalogue durable.
    SaveCatalogue {
        /// The catalogue.
        unsaved: Box<Unsaved>,
        /// The cluster that it is to be of.
        cluster: u64,
        /// The version that the node acts on.
        known: u64,
        /// Its files: one of them is enough.
        places: Vec<PathBuf>,
    },
    /// Puts away what nobody needs in a data directory, and looks through what was received there.
    Errands {
        /// Who asked for them.
        shard: ShardId,
        /// Which data directory.
        directory: DirectoryId,
        /// Where it is.
        data: PathBuf,
        /// Names for what is put away.
        trash: Trash,
        /// What is to be done, in this order.
        errands: Vec<Errand>,
    },
    /// Writes down how all stands, for whoever asks.
    Tell {
        /// What is known.
        state: Box<State>,
    },
    /// Reads what keeps writes from being applied twice, so that the node does not have to when the first one comes.
    LoadSessions {
        /// For whom.
        owner: ReplicaKey,
        /// Its storage.
        engine: Arc<dyn Engine>,
    },
    /// Closes a storage and deletes directories.
    Remove {
        /// Who asked for it.
        shard: ShardId,
        /// What nobody uses any more; its directory is one of those, under another name.
        storage: Option<Box<Partition>>,
        /// Which.
        directories: Vec<PathBuf>,
    },
}

/// The result of a [`Job`].
#[derive(Debug)]
pub struct JobDone {
    /// For whom it was, where it was for a replica.
    pub owner: Option<ReplicaKey>,
    /// What it was.
    pub kind: JobKind,
    /// Whether it held the replica's storage open until now.
    pub holds_storage: bool,
    /// What came out.
    pub result: Result<JobResult, JobFailure>,
}

/// Why a job came to nothing.
#[derive(Debug)]
pub struct JobFailure {
    /// What went wrong, with its causes.
    pub reason: String,
    /// What that asks for.
    pub kind: FailureKind,
    /// Whether a device or its file system fails.
    pub is_device: bool,
    /// A log entry that cannot be read.
    pub unreadable: Option<LogPosition>,
    /// The same job, where it can be run again.
    pub again: Option<Box<Job>>,
}

impl JobFailure {
    /// Whether what is stored does not come back: it is damaged, or its device refuses. That costs the replica that was read,
    /// and not those beside it.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.kind == FailureKind::Damage || self.is_device
    }
}

/// What a job was for, once it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Making or replacing storage.
    Make,
    /// Making storage durable.
    Flush,
    /// Making a checkpoint: it is asked for again.
    Copy,
    /// Writing a piece of the received checkpoint with this id: likewise.
    Write(u64),
    /// Reading a piece of a checkpoint for this receiver.
    Send(ReplicaId),
    /// Verifying the received checkpoint with this id.
    Verify(u64),
    /// Verifying a checkpoint of the replica's own storage.
    VerifyOwn,
    /// Reading old log entries.
    Fetch(Fetch),
    /// A read with this number, which has this place.
    Read(u64, Option<(DirectoryId, ReadSize)>),
    /// Reading the exactly-once table.
    LoadSessions,
    /// Clearing up, for a shard.
    Remove(ShardId),
    /// Looking at the room on the disks.
    Space,
    /// Making a catalogue durable.
    Catalogue,
    /// Writing down how all stands.
    Tell,
    /// Putting away, and looking through, directories.
    Errands,
    /// Asking what compactions have still to do.
    Debt,
}

/// What a successful [`Job`] brings back.
#[derive(Debug)]
pub enum JobResult {
    /// Storage is open.
    Created(Box<Partition>),
    /// Storage is durable.
    Flushed {
        /// Up to here.
        point: FlushPoint,
        /// What compactions have still to do.
        debt: Debt,
    },
    /// What compactions have still to do.
    Debt(Debt),
    /// A checkpoint exists.
    Checkpoint {
        /// What it contains.
        meta: SnapshotMeta,
        /// Its files: name and size.
        files: Vec<(String, u64)>,
    },
    /// A piece of a file.
    Chunk {
        /// Who receives it.
        to: ReplicaId,
        /// The checkpoint's id.
        id: u64,
        /// Index of the file.
        file: u32,
        /// Where in the file.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A piece was written.
    Written {
        /// The checkpoint's id.
        id: u64,
    },
    /// A received checkpoint is what it was announced as.
    Verified {
        /// The checkpoint's id.
        id: u64,
    },
    /// All of a checkpoint of the own storage was read, and is sound.
    OwnVerified {
        /// What it contains.
        meta: SnapshotMeta,
        /// Its files: name and size.
        files: Vec<(String, u64)>,
    },
    /// A received checkpoint is in place and open.
    Installed {
        /// The storage.
        partition: Box<Partition>,
        /// What it contains.
        meta: SnapshotMeta,
        /// The former storage, to be removed.
        trash: PathBuf,
    },
    /// Log entries.
    Fetched {
        /// The request.
        fetch: Fetch,
        /// As many as there were.
        entries: Vec<Entry>,
    },
    /// The answer to a read.
    Read {
        /// The node's number for it.
        ticket: u64,
        /// The answer.
        reply: ReadReply,
    },
    /// A read whose rows are not in memory.
    NotAtOnce {
        /// The node's number for it.
        ticket: u64,
        /// The read.
        read: Read,
    },
    /// The room in a data directory.
    Space {
        /// The directory's number.
        directory: DirectoryId,
        /// `None` where it cannot be told.
        space: Option<Space>,
        /// Whose storage was not there.
        missed: Vec<ReplicaKey>,
        /// The node's identity was not there.
        is_away: bool,
    },
    /// A catalogue is durable.
    Catalogue(Arc<Catalogue>),
    /// How all stands.
    Told(String),
    /// What there was to do in a data directory is done.
    Errands {
        /// Who asked for them.
        shard: ShardId,
        /// Which data directory.
        directory: DirectoryId,
        /// What came of it.
        done: ErrandsDone,
    },
    /// The exactly-once table of a storage.
    Sessions {
        /// The table.
        sessions: Box<Sessions>,
        /// The storage.
        engine: Arc<dyn Engine>,
    },
    /// Directories are gone.
    Removed,
}

impl Job {
    /// What kind of place it has, if it is a client's read.
    pub const fn read_size(&self) -> Option<ReadSize> {
        match self {
            Self::Read { place: Some((_, size)), .. } => Some(*size),
            _ => None,
        }
    }

    /// Runs the job to its end. Blocks.
    pub fn run(self, context: &JobContext) -> JobDone {
        let (owner, kind, holds_storage) = (self.owner(), self.kind(), self.holds_storage());
        let again = self.again();
        let result = self.attempt(context).map_err(|error| JobFailure {
            reason: crate::drive::chain(&error),
            kind: error.kind(),
            is_device: crate::failure::is_device_failure(&error),
            unreadable: error.unreadable(),
            again,
        });
        JobDone { owner, kind, holds_storage, result }
    }

    /// The job once more, where it is safe to run it twice and nobody would ask for it anew.
    fn again(&self) -> Option<Box<Self>> {
        Some(Box::new(match self {
            Self::Create { owner, data, initial } => {
                Self::Create { owner: *owner, data: data.clone(), initial: initial.clone() }
            }
            Self::Install { owner, former: _, from, directory, trash, meta } => Self::Install {
                owner: *owner,
                former: None,
                from: from.clone(),
                directory: directory.clone(),
                trash: trash.clone(),
                meta: meta.clone(),
            },
            Self::Flush { .. }
            | Self::Checkpoint { .. }
            | Self::ReadChunk { .. }
            | Self::WriteChunk { .. }
            | Self::Verify { .. }
            | Self::VerifyOwn { .. }
            | Self::Fetch { .. }
            | Self::Read { .. }
            | Self::Debt { .. }
            | Self::Space { .. }
            | Self::SaveCatalogue { .. }
            | Self::Tell { .. }
            | Self::Errands { .. }
            | Self::LoadSessions { .. }
            | Self::Remove { .. } => return None,
        }))
    }

    /// What it may have left under a name that says nothing of its replica.
    pub(crate) fn leavings(self) -> Vec<PathBuf> {
        match self {
            Self::Install { trash, .. } => vec![trash],
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> JobKind {
        match self {
            Self::Create { .. } | Self::Install { .. } => JobKind::Make,
            Self::Flush { .. } => JobKind::Flush,
            Self::Checkpoint { .. } => JobKind::Copy,
            Self::WriteChunk { id, .. } => JobKind::Write(*id),
            Self::ReadChunk { to, .. } => JobKind::Send(*to),
            Self::Verify { id, .. } => JobKind::Verify(*id),
            Self::VerifyOwn { .. } => JobKind::VerifyOwn,
            Self::Fetch { fetch, .. } => JobKind::Fetch(*fetch),
            Self::Read { ticket, place, .. } => JobKind::Read(*ticket, *place),
            Self::LoadSessions { .. } => JobKind::LoadSessions,
            Self::Remove { shard, .. } => JobKind::Remove(*shard),
            Self::Space { .. } => JobKind::Space,
            Self::SaveCatalogue { .. } => JobKind::Catalogue,
            Self::Tell { .. } => JobKind::Tell,
            Self::Errands { .. } => JobKind::Errands,
            Self::Debt { .. } => JobKind::Debt,
        }
    }

    fn holds_storage(&self) -> bool {
        match self {
            Self::Flush { .. }
            | Self::Checkpoint { .. }
            | Self::Read { .. }
            | Self::Debt { .. }
            | Self::LoadSessions { .. } => true,
            Self::Create { .. }
            | Self::ReadChunk { .. }
            | Self::WriteChunk { .. }
            | Self::Verify { .. }
            | Self::VerifyOwn { .. }
            | Self::Install { .. }
            | Self::Fetch { .. }
            | Self::Space { .. }
            | Self::SaveCatalogue { .. }
            | Self::Tell { .. }
            | Self::Errands { .. }
            | Self::Remove { .. } => false,
        }
    }

    fn owner(&self) -> Option<ReplicaKey> {
        match self {
            Self::Create { owner, .. }
            | Self::Flush { owner, .. }
            | Self::Checkpoint { owner, .. }
            | Self::ReadChunk { owner, .. }
            | Self::WriteChunk { owner, .. }
            | Self::Verify { owner, .. }
            | Self::VerifyOwn { owner, .. }
            | Self::Install { owner, .. }
            | Self::Fetch { owner, .. }
            | Self::Read { owner, .. }
            | Self::Debt { owner, .. }
            | Self::LoadSessions { owner, .. } => Some(*owner),
            Self::Remove { .. }
            | Self::Space { .. }
            | Self::SaveCatalogue { .. }
            | Self::Tell { .. }
            | Self::Errands { .. } => None,
        }
    }

    fn attempt(self, context: &JobContext) -> Result<JobResult, JobError> {
        let disk = &*context.disk;
        Ok(match self {
            Self::Create { owner, data, initial } => {
                JobResult::Created(Box::new(create(context, (owner, &data), initial)?))
            }
            Self::Flush { engine, point, is_pressing, .. } => {
                if is_pressing { engine.flush() } else { engine.flush_at_pace() }?;
                JobResult::Flushed { point, debt: engine.debt() }
            }
            Self::Checkpoint { engine, into, id, .. } => checkpoint(context, &*engine, &into, id)?,
            Self::ReadChunk { to, id, path, file, offset, size, .. } => {
                let data = read_piece(disk, &path, offset, size)?;
                JobResult::Chunk { to, id, file, offset, data }
            }
            Self::WriteChunk { id, path, offset, data, complete_as, .. } => {
                write_piece(disk, &path, offset, &data, complete_as.as_deref())?;
                JobResult::Written { id }
            }
            Self::Verify { id, directory, meta, .. } => {
                let partition = open_at(context, &directory, meta.position)?;
                let membership = partition.membership().cloned().map(Membership::decode);
                if membership != Some(Ok(meta.membership)) {
                    return Err(JobError::WrongMembership);
                }
                drop(partition);
                context.engines.verify(&directory)?;
                JobResult::Verified { id }
            }
            Self::VerifyOwn { directory, meta, files, .. } => {
                if let Err(error) = context.engines.verify(&directory) {
                    // The next start removes what cannot be removed now.
                    drop(disk.remove_dir_all(&directory));
                    return Err(error.into());
                }
                JobResult::OwnVerified { meta, files }
            }
            Self::Install { former, from, directory, trash, meta, .. } => {
                drop(former);
                install(context, &from, &directory, trash, meta)?
            }
            Self::Fetch { log, fetch, owner } => {
                let reader = context.readers.get(log.0).ok_or(JobError::Other("the log does not exist"))?;
                let entries = reader
                    .entries(owner.group, fetch.low, fetch.high_exclusive, fetch.size_max as usize)
                    .map_err(|source| unreadable(reader, owner, fetch, source))?;
                JobResult::Fetched { fetch, entries }
            }
            Self::Read { place: Some((_, ReadSize::Shared)), moment, ticket, read, now, wanted, .. } => {
                let reply = if wanted.is_wanted() { moment.read_at_once(&read, now, READS_AT_ONCE)? } else { None };
                match reply {
                    Some(reply) => JobResult::Read { ticket, reply },
                    None => JobResult::NotAtOnce { ticket, read },
                }
            }
            Self::Read { moment, ticket, read, now, wanted, .. } => {
                let reply = moment.read(&read, now, &|| wanted.is_wanted())?;
                JobResult::Read { ticket, reply }
            }
            Self::Debt { engine, .. } => JobResult::Debt(engine.debt()),
            Self::Space { directory, path, storage, reserve } => {
                if reserve > 0
                    && let Err(error) = crate::reserve::keep(disk, &path, reserve)
                {
                    tracing::warn!(directory = %path.display(), %error, "no room can be kept for a start");
                }
                let space = disk.free_space(&path).ok();
                let missed = storage.into_iter().filter(|(_, storage)| context.engines.is_gone(storage));
                let missed = missed.map(|(owner, _)| owner).collect();
                JobResult::Space { directory, space, missed, is_away: crate::identity::is_away(disk, &path) }
            }
            Self::SaveCatalogue { unsaved, cluster, known, places } => {
                JobResult::Catalogue(crate::adopt::save(disk, *unsaved, (cluster, known), &places)?)
            }
            Self::Tell { state } => JobResult::Told(state.tell()),
            Self::Errands { shard, directory, data, trash, errands } => {
                JobResult::Errands { shard, directory, done: crate::errands::run(disk, &data, trash, errands) }
            }
            Self::LoadSessions { engine, .. } => {
                let sessions = Box::new(Sessions::read(&*engine)?);
                JobResult::Sessions { sessions, engine }
            }
            Self::Remove { storage, directories, .. } => {
                storage.iter().for_each(|storage| storage.engine().give_up());
                drop(storage);
                // One that stays for now must not keep the room of the others.
                let there = directories.iter().filter(|directory| disk.exists(directory));
                if let Some(error) = there.filter_map(|directory| disk.remove_dir_all(directory).err()).last() {
                    return Err(error.into());
                }
                JobResult::Removed
            }
        })
    }
}

/// Why a job comes to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Engine(#[from] hedgerow_storage::EngineError),
    #[error("{0}")]
    Other(&'static str),
    #[error(transparent)]
    Catalogue(#[from] Unadopted),
    #[error("a received checkpoint is not at the position it was announced with")]
    WrongPosition,
    #[error("a received checkpoint has another membership than it was announced with")]
    WrongMembership,
    #[error("entry {} of the log cannot be read", position.index)]
    Unreadable { position: LogPosition, source: std::io::Error },
}

impl JobError {
    fn kind(&self) -> FailureKind {
        match self {
            Self::Io(error) => FailureKind::of(error),
            Self::Engine(error) => error.kind(),
            Self::Other(_) | Self::Catalogue(_) => FailureKind::Other,
            Self::WrongPosition | Self::WrongMembership | Self::Unreadable { .. } => FailureKind::Damage,
        }
    }

    fn unreadable(&self) -> Option<LogPosition> {
        match self {
            Self::Unreadable { position, .. } => Some(*position),
            Self::Io(_)
            | Self::Engine(_)
            | Self::Other(_)
            | Self::Catalogue(_)
            | Self::WrongPosition
            | Self::WrongMembership => None,
        }
    }
}

/// Which entry of a fetch it is that cannot be read.
fn unreadable(reader: &Reader, owner: ReplicaKey, fetch: Fetch, source: std::io::Error) -> JobError {
    // It is among the first, for no more was read than fits into one answer.
    let is_bad = |index: &u64| reader.entries(owner.group, *index, *index + 1, usize::MAX).is_err();
    let bad = (fetch.low..fetch.high_exclusive).find(is_bad);
    match bad.and_then(|index| reader.position(owner.group, index)) {
        Some(position) => JobError::Unreadable { position, source },
        // It was cut off or could be read meanwhile: it is asked for again.
        None => JobError::Io(source),
    }
}

/// A new replica's storage starts from nothing, whatever an interrupted attempt left behind.
fn create(
    context: &JobContext,
    (owner, data): (ReplicaKey, &Path),
    initial: Option<(LogPosition, Membership)>,
) -> Result<Partition, JobError> {
    let (disk, storage) = (&*context.disk, directory_of(data, owner));
    for directory in directories_of_replica(disk, data, owner).into_iter().filter(|it| disk.exists(it)) {
        match disk.remove_dir_all(&directory) {
            Err(error) if directory == storage => return Err(error.into()),
            // The next start removes what nobody needs.
            Err(error) => tracing::warn!(directory = %directory.display(), %error, "a directory cannot be removed"),
            Ok(()) => {}
        }
    }
    let engine = context.engines.open(&storage)?;
    let mut partition = Partition::open(engine)?;
    partition.load_sessions()?;
    if let Some((position, membership)) = initial {
        partition.initialise(position, membership.encode())?;
        partition.engine().flush()?;
    }
    Ok(partition)
}

/// A checkpoint that cannot be used goes at once: the tables that it shares with the storage would keep their room when the
/// storage gives them up, and each attempt has a directory of its own.
fn checkpoint(context: &JobContext, engine: &dyn Engine, into: &Path, id: u64) -> Result<JobResult, JobError> {
    let made = make_checkpoint(context, engine, into, id);
    if made.is_err() {
        // The next start removes what cannot be removed now.
        drop(context.disk.remove_dir_all(into));
    }
    made
}

/// The exact position of a checkpoint is read from the checkpoint, because the replica applies on while it is made.
fn make_checkpoint(context: &JobContext, engine: &dyn Engine, into: &Path, id: u64) -> Result<JobResult, JobError> {
    let disk = &*context.disk;
    if disk.exists(into) {
        disk.remove_dir_all(into)?;
    }
    engine.checkpoint(into)?;
    let copy = Partition::open(context.engines.open(into)?)?;
    let position = copy.applied();
    let membership = copy.membership().cloned().ok_or(JobError::Other("the checkpoint has no membership"))?;
    let membership = Membership::decode(membership).map_err(|_| JobError::Other("the membership is malformed"))?;
    drop(copy);
    let mut files = Vec::new();
    for name in disk.list(into)? {
        if is_part_of_checkpoint(&name) {
            let size = disk.open(&into.join(&name), OpenMode::Read)?.len()?;
            files.push((name, size));
        }
    }
    // A receiver that has the first tables of one checkpoint has the first of the next one. Numbers grow longer.
    files.sort_by_cached_key(|(name, _)| (!hedgerow_storage::is_table(name), name.len(), name.clone()));
    Ok(JobResult::Checkpoint { meta: SnapshotMeta { position, membership, id }, files })
}

/// Opening a checkpoint leaves a lock and an information log behind, which say nothing about its content.
fn is_part_of_checkpoint(name: &str) -> bool {
    name != "LOCK" && !name.starts_with("LOG")
}

fn read_piece(disk: &dyn Disk, path: &Path, offset: u64, size: usize) -> Result<Bytes, JobError> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut buffer = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(offset + filled as u64, &mut buffer[filled..])? {
            0 => return Err(JobError::Other("the checkpoint's file is shorter than it was")),
            count => filled += count,
        }
    }
    Ok(buffer.into())
}

fn write_piece(
    disk: &dyn Disk,
    path: &Path,
    offset: u64,
    data: &[u8],
    complete_as: Option<&Path>,
) -> Result<(), JobError> {
    let directory = hedgerow_env::parent_of(path);
    disk.create_dir_all(directory)?;
    let mode = if offset == 0 { OpenMode::Create } else { OpenMode::Write };
    let file = disk.open(path, mode)?;
    file.write_at(offset, data)?;
    if let Some(name) = complete_as {
        file.sync_all()?;
        disk.rename(path, name)?;
        disk.sync_dir(directory)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
