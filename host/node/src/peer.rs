//! What nodes say to each other: length-prefixed frames on connections of their own.
//!
//! Frame: `u32 LE length of the rest | u8 kind | body`. Replication messages (kind 1) are the hot ones and have a fixed
//! head, `u64 LE group | u64 LE from | u64 LE to`, followed by the message's own form; questions and answers (kinds 10 and
//! 11) are in `read_index_frame.rs`; everything else is protobuf.
//! Frames are lost with their connection and are never repeated by the transport: whoever needs an answer asks again.

pub use crate::greeting_frame::{GREETING_HEAD_SIZE, Greeting};
use crate::read_index_frame::{self, GroupReply, ReadIndexRequests};
use crate::sparse;
use crate::tail_frame::{self, TailReplies, TailRequests};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_types::{GroupId, ReplicaId};
use std::collections::BTreeMap;

/// The first bytes of a connection between nodes; the byte after them is the version.
pub const MAGIC: [u8; 4] = *b"HGRW";
/// Version of everything in this file, and of the entries that are replicated.
pub const VERSION: u8 = 11;
/// Largest frame, bytes: an entry of the largest write with room for its neighbours, or a snapshot chunk.
pub const FRAME_SIZE_MAX: usize = 32 << 20;
/// Bytes of a frame before its kind.
pub const LENGTH_SIZE: usize = 4;

/// A frame that does not have the form it should; the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame from a peer: {0}")]
pub struct Malformed(pub String);

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A message of a group, still encoded.
    Replication {
        /// The group.
        group: GroupId,
        /// The replica that sent it.
        from: ReplicaId,
        /// The replica it is for.
        to: ReplicaId,
        /// Encoded `hedgerow_replication::Message`.
        message: Bytes,
    },
    /// Who is there, and what it knows of the cluster's birth.
    Probe(Probe),
    /// What a node hosts and how it is; sent to every node.
    Report(Report),
    /// The whole catalogue.
    Catalogue(CataloguePush),
    /// An administrative request for the metadata leader.
    AdminRequest(AdminRequest),
    /// The answer to it.
    AdminReply(AdminReply),
    /// A checkpoint is about to be streamed.
    SnapshotBegin(SnapshotBegin),
    /// A piece of it.
    SnapshotChunk(SnapshotChunk),
    /// How far the receiver is.
    SnapshotProgress(SnapshotProgress),
    /// Replicas ask their leaders what is committed.
    ReadIndexRequests(ReadIndexRequests),
    /// What the leaders answer.
    ReadIndexReplies(Vec<GroupReply>),
    /// Replicas ask the logs of voters what they hold for some keys.
    TailRequests(TailRequests),
    /// What the logs hold.
    TailReplies(TailReplies),
    /// A client's write for the leader, from a node that does not lead.
    Forward(Forward),
    /// The reply to it.
    Forwarded(Forwarded),
    /// An attempt of a tied request has begun: the other one need not.
    Began(Began),
    /// How fast the sender finds the other nodes and itself.
    Pulse(Pulse),
    /// The only frame that comes from whoever was dialled: the process that dialled is not listened to.
    Refused(Refused),
}

/// See [`Frame::Refused`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Refused {
    /// 1 = a process that was started later is known, 2 = another one has used its count, 3 = its data is from before the
    /// node began anew, 4 = another process is there, 5 = it is another cluster's, 6 = its logs have forgotten something,
    /// 7 = the receiver is not the node that the sender wants to reach.
    #[prost(uint32, tag = "1")]
    pub reason: u32,
    /// The count of the process that is known, where the reason is 1 or 4; how far its logs were, where it is 6.
    #[prost(uint64, tag = "2")]
    pub known: u64,
    /// Whether the sender leads the metadata.
    #[prost(bool, tag = "3")]
    pub leads: bool,
    /// The sender's cluster, where the reason is 5.
    #[prost(uint64, tag = "4")]
    pub cluster: u64,
}

/// See [`Frame::Forward`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Forward {
    /// The sender's number for it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The client's request, header and message, with the time that the client still waits.
    #[prost(bytes = "bytes", tag = "2")]
    pub request: Bytes,
}

/// See [`Frame::Forwarded`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Forwarded {
    /// The number of the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The reply as the client is to have it.
    #[prost(bytes = "bytes", tag = "2")]
    pub reply: Bytes,
}

/// See [`Frame::Began`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Began {
    /// Whose request.
    #[prost(uint64, tag = "1")]
    pub client_id: u64,
    /// Which of its requests.
    #[prost(uint64, tag = "2")]
    pub request_id: u64,
    /// The attempt that need not begin, at the receiver.
    #[prost(int32, tag = "3")]
    pub attempt: i32,
}

/// See [`Frame::Pulse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pulse {
    /// The sender's clock when it sent this, ns; comes back as `echo`. 0 = an answer, which wants none.
    #[prost(uint64, tag = "1")]
    pub sent: u64,
    /// `sent` of the newest pulse that came from the receiver; 0 = none.
    #[prost(uint64, tag = "2")]
    pub echo: u64,
    /// How long that one was held before it was echoed, ns.
    #[prost(uint64, tag = "3")]
    pub held: u64,
    /// What the sender measured.
    #[prost(message, repeated, tag = "4")]
    pub measured: Vec<PulseOf>,
    /// The sender's clock when it started, ns: another one means that it has started anew.
    #[prost(uint64, tag = "5")]
    pub started: u64,
    /// What the sender's wall clock shows, microseconds since 1970, however wrong; 0 = not told.
    #[prost(uint64, tag = "6")]
    pub unix_micros: u64,
    /// How far the sender's logs are durable.
    #[prost(message, repeated, tag = "7")]
    pub logs: Vec<LogAt>,
}

/// How far a log is.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LogAt {
    /// Which log, a random number.
    #[prost(fixed64, tag = "1")]
    pub log: u64,
    /// The number of the batch after the last durable one.
    #[prost(uint64, tag = "2")]
    pub batch: u64,
}

/// What a node measured of one node.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PulseOf {
    /// The node; the sender itself for its own disk.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Round trip of a pulse, or of the sender's own disk one durable log write, microseconds; `None` = not measured.
    #[prost(uint64, optional, tag = "2")]
    pub micros: Option<u64>,
    /// The sender's score for the node, 1 to 100.
    #[prost(uint32, tag = "3")]
    pub score: u32,
}

/// See [`Frame::Probe`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Probe {
    /// Whether the receiver should answer with a probe of its own.
    #[prost(bool, tag = "1")]
    pub wants_answer: bool,
    /// The sender's incarnation; 0 if it belongs to no cluster and is not empty.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The cluster the sender belongs to; 0 = none yet.
    #[prost(uint64, tag = "3")]
    pub cluster: u64,
    /// The metadata nodes that founded the cluster; empty while there is none.
    #[prost(message, repeated, tag = "4")]
    pub founders: Vec<Founder>,
    /// Where the sender is reached, by its own configuration: an empty node says so nowhere else. Empty = not told.
    #[prost(string, tag = "5")]
    pub address: String,
}

/// A node that founded the cluster.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Founder {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Its incarnation then.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// See [`Frame::Report`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The node's incarnation.
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    /// Where it serves.
    #[prost(string, tag = "2")]
    pub address: String,
    /// The version of the catalogue it acts on.
    #[prost(uint64, tag = "3")]
    pub catalogue_version: u64,
    /// Its replicas.
    #[prost(message, repeated, tag = "4")]
    pub replicas: Vec<ReplicaReport>,
    /// It knows of all replicas with a smaller counter.
    #[prost(uint64, tag = "21")]
    pub next_replica: u64,
    /// False in an extra report that lists only replicas whose leader changed, or that have begun to serve.
    #[prost(bool, tag = "5")]
    pub is_complete: bool,
    /// What the operator says about its place.
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: BTreeMap<String, String>,
    /// Most replicas that it may host; 0 from a node that does not say.
    #[prost(uint64, tag = "20")]
    pub replicas_max: u64,
    /// Its data directories.
    #[prost(message, repeated, tag = "30")]
    pub disks: Vec<DiskReport>,
    /// Bytes of log that its data directories keep, in their order.
    #[prost(uint64, repeated, tag = "31")]
    pub log_bytes: Vec<u64>,
    /// Bytes of log that each may keep for replicas that lag.
    #[prost(uint64, tag = "32")]
    pub log_bytes_max: u64,
    /// Bytes of log that each may keep now for replicas that lag, in their order: that, or less. Empty from a node that does not say.
    #[prost(uint64, repeated, tag = "34")]
    pub log_bytes_allowed: Vec<u64>,
    /// Data directories that are out of use, each with the reason.
    #[prost(string, repeated, tag = "40")]
    pub missing_directories: Vec<String>,
    /// Whether its flushes do not keep up with writes.
    #[prost(bool, tag = "33")]
    pub is_behind: bool,
    /// The node's process, a random number.
    #[prost(fixed64, tag = "41")]
    pub process: u64,
    /// Where its logs are, by the name in its configuration. Empty from a node that does not say.
    #[prost(string, tag = "42")]
    pub log_layout: String,
    /// Whether its clients may do only what their users have been given, by the name in its configuration. The same.
    #[prost(string, tag = "43")]
    pub rights: String,
    /// When the first of its certificates and authorities expires, seconds since 1970. 0 without TLS, and from a node that does not say.
    #[prost(uint64, tag = "44")]
    pub certificates_expire_at: u64,
}

impl Report {
    /// What it says of its replica of `group`.
    pub(crate) fn replica_of(&self, group: GroupId) -> Option<&ReplicaReport> {
        self.place_of(group.to_u64()).ok().map(|place| &self.replicas[place])
    }

    /// Where its replica of `group` stands, or should: reports are in the order of the groups.
    pub(crate) fn place_of(&self, group: u64) -> Result<usize, usize> {
        self.replicas.binary_search_by_key(&group, |replica| replica.group)
    }

    /// Whether `replica` takes part in its group there.
    pub(crate) fn runs(&self, group: GroupId, replica: ReplicaId) -> bool {
        let state = |it: &ReplicaReport| ReplicaState::from_code(it.state);
        self.replica_of(group).filter(|it| it.replica == replica.0).and_then(state).is_some_and(|state| match state {
            ReplicaState::Leader | ReplicaState::Follower | ReplicaState::Learner => true,
            ReplicaState::Lost | ReplicaState::Starting => false,
        })
    }
}

/// The file system of a data directory in a [`Report`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DiskReport {
    /// Free bytes, if the node has looked.
    #[prost(uint64, optional, tag = "1")]
    pub free: Option<u64>,
    /// Its size.
    #[prost(uint64, tag = "2")]
    pub total: u64,
    /// Whether it takes no more data.
    #[prost(bool, tag = "3")]
    pub is_full: bool,
    /// Whether the log waits for a segment: nothing is written at all.
    #[prost(bool, tag = "4")]
    pub is_stalled: bool,
}

/// One replica in a [`Report`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReplicaReport {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// The replica.
    #[prost(uint64, tag = "2")]
    pub replica: u64,
    /// A [`ReplicaState`].
    #[prost(uint32, tag = "3")]
    pub state: u32,
    /// Its term.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// Its commit index.
    #[prost(uint64, tag = "5")]
    pub commit: u64,
    /// The last index it applied.
    #[prost(uint64, tag = "6")]
    pub applied: u64,
    /// The leader it knows; 0 = none.
    #[prost(uint64, tag = "7")]
    pub leader: u64,
    /// If it leads: the others as it sees them.
    #[prost(message, repeated, tag = "8")]
    pub peers: Vec<PeerReport>,
    /// If it leads: the voters of the group now (both halves while a change is under way).
    #[prost(uint64, repeated, tag = "9")]
    pub voters: Vec<u64>,
    /// If it does not lead and has proof: how old its data may be at most, milliseconds.
    #[prost(uint64, optional, tag = "10")]
    pub staleness_ms: Option<u64>,
    /// Whether it serves reads that another replica could serve too.
    #[prost(bool, tag = "11")]
    pub is_settled: bool,
    /// How many of sixteen writes its storage would have refused, so that compactions catch up.
    #[prost(uint32, tag = "12")]
    pub parts_refused: u32,
    /// Whether its disk takes no more data.
    #[prost(bool, tag = "30")]
    pub is_full: bool,
    /// Whether it is damaged, and votes on until its group can spare it.
    #[prost(bool, tag = "31")]
    pub is_damaged: bool,
    /// Whether its log is short of room: it takes no writes of clients at all.
    #[prost(bool, tag = "32")]
    pub is_short: bool,
    /// Bytes that its disk lacks for a checkpoint that it needs.
    #[prost(uint64, tag = "33")]
    pub lacking: u64,
    /// If it leads and somebody lags: the log is to be kept from the entry after this one, as far as the limits go.
    #[prost(uint64, optional, tag = "20")]
    pub log_needed: Option<u64>,
    /// The same for replicas that learn from a checkpoint; the limits go further for them.
    #[prost(uint64, optional, tag = "21")]
    pub log_held: Option<u64>,
}

/// How a replica is, in a [`ReplicaReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReplicaState {
    /// It leads its group.
    Leader = 1,
    /// It follows and votes.
    Follower = 2,
    /// It follows and does not vote.
    Learner = 3,
    /// Its log or data is damaged or gone: it neither votes nor serves.
    Lost = 4,
    /// It is being opened or is receiving a checkpoint.
    Starting = 5,
}

impl ReplicaState {
    /// The state with this number, if there is one.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Leader,
            2 => Self::Follower,
            3 => Self::Learner,
            4 => Self::Lost,
            5 => Self::Starting,
            _ => return None,
        })
    }
}

/// Another replica as its leader sees it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PeerReport {
    /// The replica.
    #[prost(uint64, tag = "1")]
    pub replica: u64,
    /// The last index it is known to hold.
    #[prost(uint64, tag = "2")]
    pub matched: u64,
    /// Whether it answered lately.
    #[prost(bool, tag = "3")]
    pub is_active: bool,
    /// Whether it takes nothing before it has a checkpoint.
    #[prost(bool, tag = "4")]
    pub needs_checkpoint: bool,
    /// The checkpoint that it is being sent.
    #[prost(message, optional, tag = "20")]
    pub transfer: Option<TransferReport>,
}

/// A checkpoint on its way, in a [`PeerReport`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TransferReport {
    /// Bytes that the receiver has written.
    #[prost(uint64, tag = "1")]
    pub bytes_done: u64,
    /// Bytes of the checkpoint.
    #[prost(uint64, tag = "2")]
    pub bytes_total: u64,
    /// Bytes per second of late.
    #[prost(uint64, tag = "3")]
    pub bytes_per_second: u64,
}

/// See [`Frame::Catalogue`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CataloguePush {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// The catalogue's version.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Its rows.
    #[prost(message, repeated, tag = "3")]
    pub rows: Vec<CatalogueRow>,
}

/// A row of a [`CataloguePush`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct CatalogueRow {
    /// Suffix of its key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// See [`Frame::AdminRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminRequest {
    /// The sender's number for it.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The command, as in `admin.rs`.
    #[prost(string, tag = "2")]
    pub command: String,
    /// Its argument, JSON.
    #[prost(string, tag = "3")]
    pub argument: String,
    /// The sender's process, a random number.
    #[prost(fixed64, tag = "4")]
    pub sender: u64,
    /// Of a repetition: the receiver's process that was to have it first. 0 = it is said for the first time.
    #[prost(fixed64, tag = "5")]
    pub repeated_to: u64,
    /// For whom the sender passes it on; absent where it asks by itself, and from older nodes.
    #[prost(message, optional, tag = "6")]
    pub principal: Option<Principal>,
}

/// Who has asked a node for what it passes on.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Principal {
    /// The user of this name; empty: somebody who has shown no certificate.
    #[prost(string, tag = "1")]
    pub user: String,
    /// The sender's configuration says that they may do everything.
    #[prost(bool, tag = "2")]
    pub is_administrator: bool,
    /// What the sender knows the password by that they have proven; empty: none, or the sender is of an earlier version.
    #[prost(bytes = "bytes", tag = "3")]
    pub password: Bytes,
}

/// See [`Frame::AdminReply`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminReply {
    /// The number of the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Number of the refusal as the client protocol has it; 0 = it went well.
    #[prost(int32, tag = "2")]
    pub refusal_kind: i32,
    /// The answer, JSON; of a refusal what it holds.
    #[prost(string, tag = "3")]
    pub answer: String,
}

/// See [`Frame::SnapshotBegin`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotBegin {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// The sending replica.
    #[prost(uint64, tag = "2")]
    pub from: u64,
    /// The receiving replica.
    #[prost(uint64, tag = "3")]
    pub to: u64,
    /// The checkpoint's id, unique at its sender.
    #[prost(uint64, tag = "4")]
    pub id: u64,
    /// The replication message to deliver when all files are there.
    #[prost(bytes = "bytes", tag = "5")]
    pub message: Bytes,
    /// The files.
    #[prost(message, repeated, tag = "6")]
    pub files: Vec<SnapshotFile>,
}

/// A file of a checkpoint.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotFile {
    /// Its name, without directories.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its size, bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

/// See [`Frame::SnapshotChunk`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotChunk {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// The receiving replica.
    #[prost(uint64, tag = "2")]
    pub to: u64,
    /// The checkpoint's id.
    #[prost(uint64, tag = "3")]
    pub id: u64,
    /// Index into the files.
    #[prost(uint32, tag = "4")]
    pub file: u32,
    /// Where in the file.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// The bytes.
    #[prost(bytes = "bytes", tag = "6")]
    pub data: Bytes,
    /// CRC-32C of the bytes.
    #[prost(uint32, tag = "7")]
    pub crc: u32,
}

/// See [`Frame::SnapshotProgress`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SnapshotProgress {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// The receiving replica.
    #[prost(uint64, tag = "2")]
    pub from: u64,
    /// The checkpoint's id.
    #[prost(uint64, tag = "3")]
    pub id: u64,
    /// The file that is wanted next; the number of files = everything arrived.
    #[prost(uint32, tag = "4")]
    pub file: u32,
    /// Where in it.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// The receiver does not want the checkpoint.
    #[prost(bool, tag = "6")]
    pub is_refused: bool,
    /// A piece is missing: they are to come again from here on.
    #[prost(bool, tag = "7")]
    pub again: bool,
    /// The receiver has enough to do with others and takes it later.
    #[prost(bool, tag = "8")]
    pub is_busy: bool,
    /// It is busy because it has part of this replica's checkpoint, and waits for it to lead again; 0 = for another reason.
    #[prost(uint64, tag = "9")]
    pub former: u64,
    /// It is busy because its disk lacks so many bytes for the checkpoint; 0 = for another reason.
    #[prost(uint64, tag = "10")]
    pub lacking: u64,
    /// Its disk lacked room for a checkpoint, and has it now: it says so of itself, and of no checkpoint.
    #[prost(bool, tag = "11")]
    pub has_room: bool,
}

/// Appends a replication frame; `encode` appends the message's own form.
pub fn put_replication(
    out: &mut BytesMut,
    group: GroupId,
    from: ReplicaId,
    to: ReplicaId,
    encode: impl FnOnce(&mut BytesMut),
) {
    put_framed(out, 1, |out| {
        out.put_u64_le(group.to_u64());
        out.put_u64_le(from.0);
        out.put_u64_le(to.0);
        encode(out);
    });
}

/// Appends `frame`.
pub fn put(out: &mut BytesMut, frame: &Frame) {
    match frame {
        Frame::Replication { group, from, to, message } => {
            put_replication(out, *group, *from, *to, |out| out.put_slice(message));
        }
        Frame::Probe(body) => put_body(out, 2, body),
        Frame::Report(body) => put_body(out, 3, body),
        Frame::Catalogue(body) => put_body(out, 4, body),
        Frame::AdminRequest(body) => put_body(out, 5, body),
        Frame::AdminReply(body) => put_body(out, 6, body),
        Frame::SnapshotBegin(body) => put_body(out, 7, body),
        Frame::SnapshotChunk(body) => put_body(out, 8, body),
        Frame::SnapshotProgress(body) => put_body(out, 9, body),
        Frame::ReadIndexRequests(questions) => {
            put_framed(out, 10, |out| read_index_frame::put_requests(out, questions))
        }
        Frame::ReadIndexReplies(answers) => put_framed(out, 11, |out| read_index_frame::put_replies(out, answers)),
        Frame::TailRequests(body) => put_body(out, 17, body),
        Frame::TailReplies(body) => put_body(out, 18, body),
        Frame::Forward(body) => put_body(out, 12, body),
        Frame::Forwarded(body) => put_body(out, 13, body),
        Frame::Began(body) => put_body(out, 14, body),
        Frame::Pulse(body) => put_body(out, 15, body),
        Frame::Refused(body) => put_body(out, 16, body),
    }
}

fn put_body(out: &mut BytesMut, kind: u8, body: &impl prost::Message) {
    put_framed(out, kind, |out| {
        out.reserve(body.encoded_len());
        body.encode(out).expect("the buffer grows as needed");
    });
}

fn put_framed(out: &mut BytesMut, kind: u8, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32_le(0);
    out.put_u8(kind);
    body(out);
    let length = (out.len() - start - LENGTH_SIZE) as u32;
    out[start..start + LENGTH_SIZE].copy_from_slice(&length.to_le_bytes());
}

/// Takes the first whole frame off `buffer`; `None` if there is none yet.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
    let Some(length) = buffer.first_chunk::<LENGTH_SIZE>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > FRAME_SIZE_MAX {
        return Err(Malformed(format!("a frame of {length} bytes; allowed are 1 to {FRAME_SIZE_MAX}")));
    }
    if sparse::wants_more(buffer) {
        return Ok(None);
    }
    buffer.advance(LENGTH_SIZE);
    decode(buffer.split_to(length).freeze()).map(Some)
}

fn decode(mut body: Bytes) -> Result<Frame, Malformed> {
    let kind = body.get_u8();
    sparse::check(kind, &body)?;
    Ok(match kind {
        1 => {
            if body.len() < 24 {
                return Err(Malformed("a replication frame without its head".into()));
            }
            Frame::Replication {
                group: GroupId::from_u64(body.get_u64_le()),
                from: ReplicaId(body.get_u64_le()),
                to: ReplicaId(body.get_u64_le()),
                message: body,
            }
        }
        2 => Frame::Probe(decode_body(body)?),
        3 => Frame::Report(decode_body(body)?),
        4 => Frame::Catalogue(decode_body(body)?),
        5 => Frame::AdminRequest(decode_body(body)?),
        6 => Frame::AdminReply(decode_body(body)?),
        7 => Frame::SnapshotBegin(decode_body(body)?),
        8 => Frame::SnapshotChunk(decode_body(body)?),
        9 => Frame::SnapshotProgress(decode_body(body)?),
        10 => Frame::ReadIndexRequests(read_index_frame::take_requests(body)?),
        11 => Frame::ReadIndexReplies(read_index_frame::take_replies(body)?),
        12 => Frame::Forward(decode_body(body)?),
        13 => Frame::Forwarded(decode_body(body)?),
        14 => Frame::Began(decode_body(body)?),
        15 => Frame::Pulse(decode_body(body)?),
        16 => Frame::Refused(decode_body(body)?),
        17 => Frame::TailRequests(decode_tail_requests(body)?),
        18 => {
            tail_frame::check_size(&body)?;
            Frame::TailReplies(decode_body(body)?)
        }
        _ => return Err(Malformed(format!("unknown kind {kind}"))),
    })
}

fn decode_body<T: prost::Message + Default>(body: Bytes) -> Result<T, Malformed> {
    T::decode(body).map_err(|error| Malformed(error.to_string()))
}

fn decode_tail_requests(body: Bytes) -> Result<TailRequests, Malformed> {
    tail_frame::check_requests(&body)?;
    let requests = decode_body(body)?;
    tail_frame::check_distinct(&requests)?;
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_a_stream_cut_anywhere() {
        let frames = [
            Frame::Replication {
                group: GroupId::new(3, 4),
                from: ReplicaId(5),
                to: ReplicaId(6),
                message: Bytes::from_static(b"message"),
            },
            Frame::Probe(Probe {
                wants_answer: true,
                founders: vec![Founder { node: 1, incarnation: 7 }],
                ..Probe::default()
            }),
            Frame::SnapshotProgress(SnapshotProgress {
                group: 1,
                from: 2,
                id: 3,
                file: 4,
                offset: 5,
                is_refused: true,
                ..SnapshotProgress::default()
            }),
        ];
        let mut stream = BytesMut::new();
        frames.iter().for_each(|frame| put(&mut stream, frame));
        for cut in 0..stream.len() {
            let mut buffer = BytesMut::from(&stream[..cut]);
            let mut seen = Vec::new();
            while let Some(frame) = take(&mut buffer).expect("well formed") {
                seen.push(frame);
            }
            buffer.extend_from_slice(&stream[cut..]);
            while let Some(frame) = take(&mut buffer).expect("well formed") {
                seen.push(frame);
            }
            assert_eq!(seen, frames);
        }
    }

    #[test]
    fn a_hostile_length_or_kind_is_refused() {
        for bytes in [&[0u8, 0, 0, 0][..], &[255, 255, 255, 255, 1], &[1, 0, 0, 0, 99], &[2, 0, 0, 0, 1, 1]] {
            assert!(take(&mut BytesMut::from(bytes)).is_err(), "{bytes:?}");
        }
    }
}
