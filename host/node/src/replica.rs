//! One replica that the node hosts: its group, its storage, and who waits for it.

use crate::checkpoint_room::RoomWait;
use crate::damage::GivenUp;
use crate::debt::PushBack;
use crate::heavy::HeavyWrites;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::install::arriving_at;
use crate::pace::Pace;
use crate::receive::{Offer, Receiving};
use crate::requests::callers::RequestId;
use crate::requests::held::Held;
use crate::requests::reads::{Basis, Terms};
use crate::retain::Kept;
use crate::room::Takes;
use crate::snapshot::Sending;
use bytes::Bytes;
use hedgerow_env::Disk;
use hedgerow_replication::{Group, TailIndex};
use hedgerow_storage::Partition;
use hedgerow_types::log::LogPosition;
use hedgerow_types::op::Read;
use hedgerow_types::{ClientId, GroupId, Index, Instant, ReplicaId, Sequence, Term};
use hedgerow_wire::serve::TableKind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the node has under a group's name.
#[derive(Debug)]
pub(crate) enum Hosted {
    /// Storage is being made.
    Starting {
        /// Who.
        owner: ReplicaKey,
        /// Where its storage will be.
        directory: DirectoryId,
    },
    /// It runs.
    Running(Box<Replica>),
    /// Its log or storage is damaged or incomplete. It neither votes nor serves, and waits to be replaced.
    Lost {
        /// Who.
        owner: ReplicaKey,
        /// Where files of it may be; the log there may still know it.
        directory: DirectoryId,
        /// Whether it was looked at and is of no use. Otherwise its log or its directory is away, and may be back.
        is_damaged: bool,
    },
}

impl Hosted {
    /// Which replica it is.
    pub(crate) fn owner(&self) -> ReplicaKey {
        match self {
            Self::Starting { owner, .. } | Self::Lost { owner, .. } => *owner,
            Self::Running(replica) => replica.owner,
        }
    }

    /// Where its storage is.
    pub(crate) fn directory(&self) -> DirectoryId {
        match self {
            Self::Starting { directory, .. } | Self::Lost { directory, .. } => *directory,
            Self::Running(replica) => replica.directory,
        }
    }
}

/// What a partition holds.
#[derive(Debug)]
pub(crate) struct Shape {
    /// How its keys are made.
    pub(crate) kind: TableKind,
    /// Its storage keys.
    pub(crate) range: (Bytes, Option<Bytes>),
}

impl Shape {
    /// Whether storage key `key` may lie in this partition.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= &self.range.0[..] && self.range.1.as_ref().is_none_or(|end| key < &end[..])
    }
}

/// A running replica.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) owner: ReplicaKey,
    /// Where its storage is,
    pub(crate) directory: DirectoryId,
    /// and the directory of its own below that.
    pub(crate) path: PathBuf,
    /// `None` = the node has not heard of the table yet: it takes part in its group, and serves nobody.
    pub(crate) shape: Option<Shape>,
    /// Its table is dropped and kept: it takes part in its group, and serves nobody.
    pub(crate) is_dropped: bool,
    pub(crate) group: Group,
    /// Which keys its log's end touches, for others that ask.
    pub(crate) tail: TailIndex,
    /// Absent while a received checkpoint is being put in its place; the group is not driven meanwhile.
    pub(crate) storage: Option<Partition>,
    /// No job could read its exactly-once table: a write that needs it does not wait for one.
    pub(crate) reads_table_itself: bool,
    /// Which writes the disks have room for, here and at a majority.
    pub(crate) takes: Takes,
    /// The same for the disk here alone.
    pub(crate) takes_here: Takes,
    /// Most of its voters' nodes do not flush as fast as it is written to.
    pub(crate) is_outpaced: bool,
    /// Writes that are refused because compactions do not keep up.
    pub(crate) push_back: PushBack,
    pub(crate) writes: BTreeMap<Index, PendingWrite>,
    /// Of these, and of those that nobody waits for any more, the ones that become large.
    pub(crate) heavy: HeavyWrites,
    pub(crate) reads: BTreeMap<u64, PendingRead>,
    pub(crate) is_dirty: bool,
    /// Jobs that hold the storage open.
    pub(crate) storage_users: u32,
    pub(crate) flush: Flush,
    pub(crate) kept: Kept,
    /// As a leader: how fast its log grows.
    pub(crate) pace: Pace,
    pub(crate) sending: Sending,
    /// A checkpoint that is offered to it, while it is looked through what is here of it.
    pub(crate) offer: Option<Offer>,
    pub(crate) receiving: Option<Receiving>,
    /// A checkpoint has no room on the disk.
    pub(crate) waits_for_room: Option<RoomWait>,
    /// When somebody last offered it a checkpoint, or it started, if there may be files of one.
    pub(crate) may_have_received: Option<Instant>,
    /// Since when it has put off a new sender for the sake of a former one, without having received anything whole.
    pub(crate) waits_for_sender: Option<Instant>,
    pub(crate) install: Option<PendingInstall>,
    /// It is damaged, or given up for another reason, and votes until its group can spare it.
    pub(crate) given_up: Option<GivenUp>,
    /// When the group last saw a leader.
    pub(crate) led_since: Option<Instant>,
    /// When it was started in this life of the node.
    pub(crate) started: Instant,
    /// Whether it may serve reads that another replica could serve too; see [`Replica::tick_settling`].
    pub(crate) is_settled: bool,
    /// When it is looked at although nothing happens; see `wake.rs`.
    pub(crate) wake: Option<Instant>,
    /// It is not looked at for that reason before this time.
    pub(crate) may_wake: Instant,
    /// No request that waits here is to be answered before this time; `None` if none waits.
    pub(crate) first_deadline: Option<Instant>,
}

/// A write that is in the log and not yet applied.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) term: Term,
    /// The client's number for it; client 0 = it has none.
    pub(crate) number: (ClientId, Sequence),
    pub(crate) origin: Origin,
    /// Other attempts of the same write, which get the same answer.
    pub(crate) others: Vec<Origin>,
}

impl PendingWrite {
    /// Everybody who waits for it.
    pub(crate) fn origins(&self) -> impl Iterator<Item = &Origin> {
        std::iter::once(&self.origin).chain(&self.others)
    }

    /// Everybody who waits for it.
    pub(crate) fn into_origins(self) -> impl Iterator<Item = Origin> {
        std::iter::once(self.origin).chain(self.others)
    }

    /// Lets those go whose deadline has come by `now`, into `late`. Returns whether somebody still waits; if not, one is
    /// left to be let go with the write itself.
    pub(crate) fn drop_late(&mut self, now: Instant, late: &mut Vec<Origin>) -> bool {
        late.extend(self.others.extract_if(.., |origin| origin.is_late(now)));
        if !self.origin.is_late(now) {
            return true;
        }
        let Some(next) = self.others.pop() else { return false };
        late.push(std::mem::replace(&mut self.origin, next));
        true
    }
}

/// A read that waits for an index.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub(crate) read: Read,
    pub(crate) terms: Terms,
    /// What it waits for.
    pub(crate) basis: Basis,
    pub(crate) origin: Origin,
    /// Room for what it keeps in memory.
    pub(crate) _held: Held,
}

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client.
    Client {
        /// Its request.
        id: RequestId,
        /// When that has to be answered.
        deadline: Instant,
    },
    /// The metadata leader itself, with this ticket.
    Metadata(u64),
}

impl Origin {
    /// When it has to be answered.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Client { deadline, .. } => Some(*deadline),
            Self::Metadata(_) => None,
        }
    }

    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}

/// How far storage is durable, and what came since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flush {
    pub(crate) is_running: bool,
    /// It failed and waits to be tried again: nothing of it runs, though it counts as running.
    pub(crate) is_waiting: bool,
    /// The last position known to be durable in storage.
    pub(crate) position: LogPosition,
    /// Bytes of entries applied since the last flush began.
    pub(crate) bytes_since: u64,
    /// Bytes of entries that the running flush writes.
    pub(crate) bytes_running: u64,
}

/// A received checkpoint that waits for its turn.
#[derive(Debug)]
pub(crate) struct PendingInstall {
    pub(crate) meta: hedgerow_replication::SnapshotMeta,
    /// Where it is.
    pub(crate) from: PathBuf,
    /// What it takes the place of, until it runs.
    pub(crate) former: Option<Box<Partition>>,
    pub(crate) is_running: bool,
}

impl Replica {
    /// Its storage, which is closed by a job: that may take its time.
    pub(crate) fn take_storage(&mut self) -> Option<Box<Partition>> {
        let former = self.install.as_mut().and_then(|install| install.former.take());
        self.storage.take().map(Box::new).or(former)
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.owner.replica
    }
}

/// The directory of a replica's storage below data directory `data`.
pub(crate) fn directory_of(data: &Path, owner: ReplicaKey) -> PathBuf {
    data.join("replicas").join(name_of(owner))
}

/// The directory of a checkpoint that replica `owner` made.
pub(crate) fn checkpoint_directory(data: &Path, owner: ReplicaKey, id: u64) -> PathBuf {
    data.join("checkpoints").join(format!("{}-{id}", name_of(owner)))
}

/// The directory of a checkpoint that replica `owner` is receiving from `sender`.
pub(crate) fn incoming_directory(data: &Path, owner: ReplicaKey, sender: ReplicaId, id: u64) -> PathBuf {
    data.join("incoming").join(format!("{}-{:x}-{id}", name_of(owner), sender.0))
}

/// Who sends what is received in a directory.
pub(crate) fn sender_of(incoming: &Path) -> Option<ReplicaId> {
    let sender = incoming.file_name()?.to_str()?.rsplit('-').nth(1)?;
    u64::from_str_radix(sender, 16).ok().map(ReplicaId)
}

/// Whose storage is, or is being put, in the directory with this path; `None` if it is no replica's.
pub(crate) fn owner_of(directory: &Path) -> Option<ReplicaKey> {
    let name = directory.file_name()?.to_str()?;
    let (group, replica) = name.strip_suffix(".new").unwrap_or(name).split_once('-')?;
    let (table, partition) = group.split_once('.')?;
    let group = GroupId::new(table.parse().ok()?, partition.parse().ok()?);
    Some(ReplicaKey { group, replica: ReplicaId(u64::from_str_radix(replica, 16).ok()?) })
}

/// Where storage of `owner` is or is being installed, and checkpoints that it made or was receiving. Not all of them exist.
pub(crate) fn directories_of_replica(disk: &dyn Disk, data: &Path, owner: ReplicaKey) -> Vec<PathBuf> {
    let storage = directory_of(data, owner);
    let mut directories = vec![arriving_at(&storage), storage];
    directories.extend(directories_of(disk, data, "checkpoints", owner));
    directories.extend(incoming_of(disk, data, owner));
    directories
}

/// Directories of checkpoints that `owner` was receiving.
pub(crate) fn incoming_of(disk: &dyn Disk, data: &Path, owner: ReplicaKey) -> Vec<PathBuf> {
    directories_of(disk, data, "incoming", owner)
}

fn directories_of(disk: &dyn Disk, data: &Path, kind: &str, owner: ReplicaKey) -> Vec<PathBuf> {
    let replica = directory_of(data, owner);
    let Some(name) = replica.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let prefix = format!("{name}-");
    let directory = data.join(kind);
    let names = disk.list(&directory).unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with(&prefix)).map(|name| directory.join(name)).collect()
}

fn name_of(owner: ReplicaKey) -> String {
    let GroupId { table, partition } = owner.group;
    format!("{}.{}-{:x}", table.0, partition, owner.replica.0)
}
