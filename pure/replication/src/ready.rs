//! What goes into a group when it starts and what comes out of it: plain data that the host carries out.

use crate::membership::Membership;
use crate::message::Message;
use core::time::Duration;
use hedgerow_types::log::{Entry, HardState, LogPosition};
use hedgerow_types::{GroupId, Index, Lag, ReplicaId, Term};

/// Where the log of every group begins. The replicas that found a group hold this position from the start, as if an empty
/// entry stood there, and the first membership with it. One that joins later holds nothing and so always begins with a
/// snapshot: it could not understand a change of a membership that it does not know.
pub const FIRST: LogPosition = LogPosition { term: 1, index: 1 };

/// What a replica has on its disk when it starts, as [`crate::Group::new`] takes it.
#[derive(Clone, Debug)]
pub struct Start {
    /// The group.
    pub group: GroupId,
    /// This replica.
    pub replica: ReplicaId,
    /// The membership as of `applied`; without voters for a replica that waits for its first snapshot.
    pub membership: Membership,
    /// The last durable hard state, as it was found. A commit index or term below what `applied` implies is put right.
    pub hard_state: HardState,
    /// Where the log begins: its entries have larger indices.
    pub log_start: LogPosition,
    /// The durable entries after `log_start`, up to the last. They may begin later, but not after `applied.index + 1`: the
    /// rest is then asked for with [`Ready::fetch`] when a follower needs it. If `log_start.index + 1` is not there and
    /// `entries` is empty, the log is empty after `log_start`.
    pub entries: Vec<Entry>,
    /// The last entry that the storage holds the effect of. If the log does not hold it (a snapshot was installed and the
    /// log not yet reset), the first [`Ready::persist`] resets the log to here.
    pub applied: LogPosition,
    /// Whether the replica may have voted or heard a leader before. False only for one created just now.
    pub is_restart: bool,
    /// Campaign at the first tick instead of after an election timeout: for one replica of a new group. Without effect
    /// on a restart.
    pub may_campaign_now: bool,
    /// Seed of the election timeouts.
    pub seed: u64,
}

impl Start {
    /// One of the replicas that found a group, created just now. The storage must hold `membership` as of [`FIRST`], durably,
    /// before the group is started; the first [`Ready::persist`] sets up the log.
    pub fn founding(group: GroupId, replica: ReplicaId, membership: Membership, seed: u64) -> Self {
        Self { membership, applied: FIRST, ..Self::joining(group, replica, seed) }
    }

    /// A replica created just now that waits for the leader to send it a snapshot.
    pub fn joining(group: GroupId, replica: ReplicaId, seed: u64) -> Self {
        Self {
            group,
            replica,
            membership: Membership::default(),
            hard_state: HardState::default(),
            log_start: LogPosition::default(),
            entries: Vec::new(),
            applied: LogPosition::default(),
            is_restart: false,
            may_campaign_now: false,
            seed,
        }
    }
}

/// Why a group cannot start from what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A setting is out of its range.
    #[error("settings: {0}")]
    Settings(&'static str),
    /// The membership contradicts itself.
    #[error("membership: {0}")]
    Membership(&'static str),
    /// The storage is older than the log's beginning: entries between them are lost, and the replica must learn again.
    #[error("storage is at index {applied}, but the log begins after {log_start}")]
    LogGap {
        /// Last index in the storage.
        applied: Index,
        /// The log's entries come after this index.
        log_start: Index,
    },
    /// The entries are not consecutive, or begin too late, or their terms fall.
    #[error("entries are not consecutive at index {0}")]
    Entries(Index),
    /// The consensus core refused.
    #[error("consensus core: {0}")]
    Core(String),
}

/// The part a replica plays in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Takes proposals and serves reads.
    Leader,
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Follows without a vote (or is no member at all, as far as it knows).
    Learner,
}

/// The role, leader or term of a replica is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// The role now.
    pub role: Role,
    /// The leader now, if one is known; this replica itself if it leads.
    pub leader: Option<ReplicaId>,
    /// The term now.
    pub term: Term,
}

/// A write to the log. Order within one: `reset`, then `entries`, then `hard_state`. Writes must become durable in the
/// order of their tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persist {
    /// Rises with every write. [`crate::Group::handle_persisted`] takes it back.
    pub ticket: u64,
    /// The log now begins after this position and holds nothing.
    pub reset: Option<LogPosition>,
    /// Consecutive entries. They replace everything at and above the first one's index.
    pub entries: Vec<Entry>,
    /// The hard state, if it must be written.
    pub hard_state: Option<HardState>,
}

/// What a read needs of the replica that serves it. Read levels become this: a session read needs the index that its
/// session saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadNeed {
    /// Everything that was acknowledged, or shown to anybody, before the read arrived.
    Latest,
    /// Everything up to this index.
    AtLeast(Index),
    /// Everything that was acknowledged so long before the read is served.
    Within(Duration),
    /// Anything that was committed.
    Anything,
}

/// A read of the storage, now, is what was asked for. The host passes on to the caller how old it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// How old the data may be at most, in true time, by this replica's own proof; zero for a read that needed the latest,
    /// `None` if there is no proof (session and eventual reads do not need one).
    pub staleness: Option<Duration>,
    /// What else stands behind it.
    pub by: Proof,
}

/// Whose word a read is served by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// This replica's own, or its leader's.
    Leader,
    /// A majority's whose logs hold nothing that this replica lacks and that touches the keys.
    Quorum {
        /// The smallest and the largest leader's time in what these logs hold and this replica may lack, in expiry-epoch seconds; `None` =
        /// there is none. A row whose life depends on which of them is right must not be shown, nor be called expired.
        tail_times: Option<(u32, u32)>,
    },
}

impl Served {
    /// A read that needed the latest, by the leader's word.
    pub const LATEST: Self = Self::aged(Some(Duration::ZERO));

    /// A read of data that is so old.
    pub const fn aged(staleness: Option<Duration>) -> Self {
        Self { staleness, by: Proof::Leader }
    }
}

/// How a read that waited ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The storage is new enough: read it now. No further check is needed.
    Serve(Served),
    /// The replica's role, leader or term changed under the read, or it knows no leader: the caller should ask another
    /// replica.
    Refused,
    /// The replica is too far behind, or got no answer from its leader in time.
    Lagging(Lag),
}

/// How a read starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// Read the storage now. If the read needed the latest at a leader, check [`crate::Group::lease_holds`] with a newly
    /// read clock before the result is used, should anything have happened in between.
    Serve(Served),
    /// The ticket comes back in [`Ready::reads`].
    Wait,
    /// No leader is known, or this is not the leader and the read has to be there.
    NotLeader {
        /// The leader, if one is known.
        leader: Option<ReplicaId>,
    },
    /// Cannot be taken now; says why.
    NotReady(&'static str),
    /// The replica is too far behind.
    Lagging(Lag),
}

/// Asks the leader for its commit index on behalf of reads that wait at another replica. Each attempt has a fresh id, so
/// that an answer belongs to one question for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIndexRequest {
    /// The term that the asking replica is in.
    pub term: Term,
    /// Unique at the asking node, restarts included; questions of several groups in one message may share it.
    pub id: u64,
}

/// What the leader answers a [`ReadIndexRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadIndexReply {
    /// The answering replica's term.
    pub term: Term,
    /// The question's id.
    pub id: u64,
    /// What was committed when the question arrived, by a replica that has proved since that it led then; `None` if it does
    /// not lead.
    pub commit: Option<LogPosition>,
}

/// Which state of a group a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last entry whose effect it holds.
    pub position: LogPosition,
    /// The membership as of `position`.
    pub membership: Membership,
    /// Names the checkpoint at the node that made it.
    pub id: u64,
}

/// A checkpoint has to go to a replica whose needs the log no longer covers.
#[derive(Clone, Debug)]
pub struct SnapshotSend {
    /// The receiver.
    pub to: ReplicaId,
    /// The checkpoint to stream, one that [`crate::Group::handle_checkpoint`] announced.
    pub meta: SnapshotMeta,
    /// To be delivered after all files with [`crate::Group::handle_snapshot_received`].
    pub message: Message,
}

/// Entries that a lagging follower needs and that are no longer in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Names the request.
    pub id: u64,
    /// First index wanted.
    pub low: Index,
    /// The first index no longer wanted.
    pub high_exclusive: Index,
    /// Bytes after which the answer may stop; it holds at least one entry if there is one.
    pub size_max: u64,
}

/// Everything a group wants done. The parts are independent of each other except where their description says so.
#[derive(Debug, Default)]
pub struct Ready {
    /// Messages that may be sent at once. What must follow a write is kept until the write is durable.
    pub messages: Vec<(ReplicaId, Message)>,
    /// To write to the log.
    pub persist: Option<Persist>,
    /// To apply in order; then [`crate::Group::handle_applied`] with the last index. They are durable here and committed. Those
    /// that cannot be applied now come again after [`crate::Group::handle_not_applied`].
    pub committed: Vec<Entry>,
    /// Reads that waited. Those refused come first, and none is served in a Ready that reports a role change which
    /// refuses them.
    pub reads: Vec<(u64, ReadOutcome)>,
    /// Answers to questions of other replicas, to be sent to them.
    pub answers: Vec<(ReplicaId, ReadIndexReply)>,
    /// Set if role, leader or term changed.
    pub role: Option<RoleChange>,
    /// Replace the storage durably by the received checkpoint, then call [`crate::Group::handle_snapshot_installed`]. The
    /// log is reset by a later `persist`, so that a crash between the two finds the newer storage and the older log.
    pub install: Option<SnapshotMeta>,
    /// Somebody needs a snapshot and there is no usable one: make a checkpoint, then call
    /// [`crate::Group::handle_checkpoint`].
    pub wants_checkpoint: bool,
    /// Snapshots to send.
    pub snapshots: Vec<SnapshotSend>,
    /// Entries to read from the log; answer with [`crate::Group::handle_entries_fetched`].
    pub fetch: Vec<Fetch>,
}

impl Ready {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.persist.is_none()
            && self.committed.is_empty()
            && self.reads.is_empty()
            && self.answers.is_empty()
            && self.role.is_none()
            && self.install.is_none()
            && !self.wants_checkpoint
            && self.snapshots.is_empty()
            && self.fetch.is_empty()
    }
}

/// How far the leader knows another replica to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The replica; the leader itself is listed too.
    pub replica: ReplicaId,
    /// Its log is known to equal the leader's up to here.
    pub matched: Index,
    /// Whether it answered lately (within one to two election timeouts).
    pub is_active: bool,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// Whether a snapshot is on its way to it.
    pub is_snapshotting: bool,
    /// Whether the log no longer has what it lacks: it takes nothing before it has a snapshot.
    pub needs_snapshot: bool,
}

/// Why a proposal, a membership change or a transfer was not taken. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This replica does not lead: ask the leader.
    #[error("not the leader")]
    NotLeader {
        /// The leader, if one is known.
        leader: Option<ReplicaId>,
    },
    /// Too much is waiting for its commit: try again later.
    #[error("too many uncommitted bytes")]
    Busy,
    /// The leadership is being handed over: try again at the new leader.
    #[error("leadership is being transferred")]
    Transferring,
    /// An earlier membership change is not finished: try again later.
    #[error("another membership change is in progress")]
    ChangeInProgress,
    /// The change or the target makes no sense in the present membership: fix the input.
    #[error("invalid: {0}")]
    Invalid(&'static str),
}
