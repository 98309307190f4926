//! What replicas of a group tell each other, and its encoding.
//!
//! The consensus core brings a protobuf parser of its own; it never sees a byte from outside. All numbers are
//! little-endian:
//!
//! ```text
//! version 1 | kind 1 | flags 1 | from 8 | to 8 | term 8 | stamp 8 | echo 8 | body
//! append             index 8 | log term 8 | commit 8 | count 4 | count x (term 8 | kind 1 | length 4 | data)
//! append response    index 8 | log term 8 | commit 8 | hint 8
//! vote, pre-vote     index 8 | log term 8 | commit 8 | commit term 8        and their responses
//! heartbeat          commit 8 | index 8
//! heartbeat response commit 8
//! snapshot           index 8 | term 8 | id 8 | membership
//! time out now       nothing
//! ```
//!
//! `stamp` is the sender's clock when it sent: of a leader in whatever it sends to followers, of a follower in its response to a heartbeat. `echo`
//! is the latest stamp that the sender of a response got from the leader it answers, in the term it answers in. In a heartbeat it is the stamp
//! of the receiver's latest response, and `index` is the leader's commit index afterwards; both are 0 if the leader is not sure that it leads. Indices of entries are not sent, they follow `index`.

use crate::membership::{Malformed, Membership};
use crate::ready::SnapshotMeta;
use crate::settings::NUMBER_MAX;
use crate::window::ENTRY_OVERHEAD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_types::log::{EntryKind, LogPosition};
use hedgerow_types::{Index, ReplicaId, Term};
use raft::eraftpb::{self, EntryType, MessageType};
use raft::prelude::Snapshot;

const VERSION: u8 = 2;
const HEADER_SIZE: usize = 43;
const ENTRY_HEADER_SIZE: usize = 13;

const FLAG_REJECT: u8 = 1;
const FLAG_TRANSFER: u8 = 2;

/// The context by which the core marks the vote requests of a leadership transfer.
pub(crate) const TRANSFER_CONTEXT: &[u8] = b"CampaignTransfer";

/// A message from one replica to another of the same group. The group itself is not in it: whatever carries the message
/// names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub(crate) core: eraftpb::Message,
    /// Clock of the sender, of a leader or of who answers a heartbeat; otherwise 0.
    pub(crate) stamp: u64,
    /// The latest stamp heard from the one that this is for; 0 if none.
    pub(crate) echo: u64,
}

/// The kinds with their numbers on the wire and their names.
const KINDS: [(MessageType, u8, &str); 11] = [
    (MessageType::MsgAppend, 1, "append"),
    (MessageType::MsgAppendResponse, 2, "append_response"),
    (MessageType::MsgRequestVote, 3, "vote"),
    (MessageType::MsgRequestVoteResponse, 4, "vote_response"),
    (MessageType::MsgRequestPreVote, 5, "pre_vote"),
    (MessageType::MsgRequestPreVoteResponse, 6, "pre_vote_response"),
    (MessageType::MsgHeartbeat, 7, "heartbeat"),
    (MessageType::MsgHeartbeatResponse, 8, "heartbeat_response"),
    (MessageType::MsgSnapshot, 9, "snapshot"),
    (MessageType::MsgTimeoutNow, 10, "timeout_now"),
    // Sent by nobody: the core forwards these only if asked to, which this crate never does.
    (MessageType::MsgTransferLeader, 0, "none"),
];

/// Whether replicas send messages of this kind to each other.
pub(crate) fn is_sent(kind: MessageType) -> bool {
    code(kind) != 0
}

fn code(kind: MessageType) -> u8 {
    KINDS.iter().find(|known| known.0 == kind).map_or(0, |known| known.1)
}

impl Message {
    pub(crate) fn new(core: eraftpb::Message) -> Self {
        Self { core, stamp: 0, echo: 0 }
    }

    pub(crate) fn kind(&self) -> MessageType {
        self.core.get_msg_type()
    }

    /// The kind's name, for traces.
    pub fn kind_name(&self) -> &'static str {
        KINDS.iter().find(|known| known.0 == self.kind()).map_or("none", |known| known.2)
    }

    /// The names of all kinds that replicas send each other.
    pub fn kind_names() -> impl Iterator<Item = &'static str> {
        KINDS.iter().filter(|known| known.1 != 0).map(|known| known.2)
    }

    /// Bytes of the entries that it brings.
    pub fn entries_size(&self) -> usize {
        self.core.entries.iter().map(|entry| entry.data.len()).sum()
    }

    /// Leaves out the entries from the first one on that has more than `entry_size_max` bytes of data, or that does not fit
    /// into `size_max` bytes with those before it. What is left is an append like any other, if need be an empty one: its
    /// receiver answers for what it got, commits no more than that, and the sender sends the rest again as after a loss.
    pub fn keep_small(&mut self, entry_size_max: usize, size_max: usize) {
        let mut size = 0;
        let is_left_out = |entry: &eraftpb::Entry| {
            let data = data_of(entry).len();
            size += data + ENTRY_OVERHEAD;
            data > entry_size_max || size > size_max
        };
        if let Some(count) = self.core.entries.iter().position(is_left_out) {
            self.core.entries.truncate(count);
        }
    }

    /// Who sent it.
    pub fn from(&self) -> ReplicaId {
        ReplicaId(self.core.from)
    }

    /// Whom it is for.
    pub fn to(&self) -> ReplicaId {
        ReplicaId(self.core.to)
    }

    /// The term it speaks of: the sender's, or for a vote the one to be elected for.
    pub fn term(&self) -> Term {
        self.core.term
    }

    /// Entries it carries.
    pub fn entry_count(&self) -> usize {
        self.core.entries.len()
    }

    /// The index after the last entry it carries or speaks of (append messages and their responses).
    pub fn index(&self) -> Index {
        self.core.index
    }

    /// Whether a delay of this message can only delay, and its order among others does not matter for speed: heartbeats
    /// and their responses, which may overtake appends.
    pub fn is_heartbeat(&self) -> bool {
        matches!(self.kind(), MessageType::MsgHeartbeat | MessageType::MsgHeartbeatResponse)
    }

    /// What a snapshot message says about its snapshot; `None` for other kinds.
    pub fn snapshot(&self) -> Option<SnapshotMeta> {
        (self.kind() == MessageType::MsgSnapshot).then(|| meta_of(self.core.get_snapshot()))
    }

    /// Size of the encoded form, bytes.
    pub fn encoded_size(&self) -> usize {
        HEADER_SIZE
            + match self.kind() {
                MessageType::MsgAppend => {
                    28 + self.core.entries.iter().map(|e| ENTRY_HEADER_SIZE + data_of(e).len()).sum::<usize>()
                }
                MessageType::MsgSnapshot => {
                    let state = self.core.get_snapshot().get_metadata().get_conf_state();
                    let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
                    24 + 2 + lists.iter().map(|list| 4 + 8 * list.len()).sum::<usize>()
                }
                MessageType::MsgHeartbeat => 16,
                MessageType::MsgHeartbeatResponse => 8,
                MessageType::MsgTimeoutNow => 0,
                _ => 32,
            }
    }

    /// Appends the encoded form to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let core = &self.core;
        out.reserve(self.encoded_size());
        out.put_u8(VERSION);
        out.put_u8(code(self.kind()));
        let is_transfer = core.context == TRANSFER_CONTEXT;
        out.put_u8(if core.reject { FLAG_REJECT } else { 0 } | if is_transfer { FLAG_TRANSFER } else { 0 });
        for number in [core.from, core.to, core.term, self.stamp, self.echo] {
            out.put_u64_le(number);
        }
        match self.kind() {
            MessageType::MsgAppend => self.encode_append(out),
            MessageType::MsgAppendResponse => put_all(out, [core.index, core.log_term, core.commit, core.reject_hint]),
            MessageType::MsgHeartbeat => put_all(out, [core.commit, core.index]),
            MessageType::MsgHeartbeatResponse => out.put_u64_le(core.commit),
            MessageType::MsgSnapshot => {
                let meta = meta_of(core.get_snapshot());
                put_all(out, [meta.position.index, meta.position.term, meta.id]);
                meta.membership.encode_to(out);
            }
            MessageType::MsgTimeoutNow => {}
            _ => put_all(out, [core.index, core.log_term, core.commit, core.commit_term]),
        }
    }

    fn encode_append(&self, out: &mut BytesMut) {
        let core = &self.core;
        put_all(out, [core.index, core.log_term, core.commit]);
        out.put_u32_le(core.entries.len() as u32);
        for entry in core.entries.iter() {
            let data = data_of(entry);
            out.put_u64_le(entry.term);
            out.put_u8(kind_of(entry) as u8);
            out.put_u32_le(data.len() as u32);
            out.put_slice(data);
        }
    }

    /// The inverse of [`Message::encode`]. The data of entries are slices of `data`. Refuses other versions, unknown kinds,
    /// trailing bytes, numbers out of range and entries whose terms fall or exceed the message's.
    pub fn decode(data: Bytes) -> Result<Self, Malformed> {
        let mut input = Input(data);
        if input.u8()? != VERSION {
            return Err(MALFORMED);
        }
        let kind = input.u8()?;
        let kind = KINDS.iter().find(|known| known.1 == kind && kind != 0).ok_or(MALFORMED)?.0;
        let flags = input.u8()?;
        if flags & !(FLAG_REJECT | FLAG_TRANSFER) != 0 {
            return Err(MALFORMED);
        }
        let mut core = eraftpb::Message::default();
        core.set_msg_type(kind);
        core.reject = flags & FLAG_REJECT != 0;
        if flags & FLAG_TRANSFER != 0 {
            core.context = Bytes::from_static(TRANSFER_CONTEXT);
        }
        (core.from, core.to, core.term) = (input.u64()?, input.u64()?, input.number()?);
        let (stamp, echo) = (input.u64()?, input.u64()?);
        match kind {
            MessageType::MsgAppend => decode_append(&mut input, &mut core)?,
            MessageType::MsgAppendResponse => {
                (core.index, core.log_term) = (input.number()?, input.number()?);
                (core.commit, core.reject_hint) = (input.number()?, input.number()?);
            }
            MessageType::MsgHeartbeat => (core.commit, core.index) = (input.number()?, input.number()?),
            MessageType::MsgHeartbeatResponse => core.commit = input.number()?,
            MessageType::MsgSnapshot => decode_snapshot(&mut input, &mut core)?,
            MessageType::MsgTimeoutNow => {}
            _ => {
                (core.index, core.log_term) = (input.number()?, input.number()?);
                (core.commit, core.commit_term) = (input.number()?, input.number()?);
            }
        }
        if input.0.is_empty() { Ok(Self { core, stamp, echo }) } else { Err(MALFORMED) }
    }

    /// Whether the entries follow the message's index without a gap, as the encoded form takes for granted.
    pub(crate) fn is_consecutive(&self) -> bool {
        (self.core.index + 1..).zip(self.core.entries.iter()).all(|(index, entry)| entry.index == index)
    }

    /// Cuts an append message whose entries exceed `size_max` bytes; the parts replace it in order.
    pub(crate) fn split(mut self, size_max: usize, mut each: impl FnMut(Self)) {
        if self.kind() == MessageType::MsgAppend {
            let mut entries: Vec<_> = core::mem::take(&mut self.core.entries).into();
            while let Some(count) = cut(&entries, size_max) {
                let rest = entries.split_off(count);
                let mut part = self.clone();
                if let Some(last) = entries.last() {
                    (self.core.index, self.core.log_term) = (last.index, last.term);
                }
                part.core.set_entries(core::mem::replace(&mut entries, rest).into());
                each(part);
            }
            self.core.set_entries(entries.into());
        }
        each(self);
    }
}

/// How many entries from the front stay within `size_max`, at least one; `None` if all do.
fn cut(entries: &[eraftpb::Entry], size_max: usize) -> Option<usize> {
    let mut size = 0;
    entries.iter().enumerate().position(|(i, entry)| {
        size += ENTRY_HEADER_SIZE + data_of(entry).len();
        i > 0 && size > size_max
    })
}

const MALFORMED: Malformed = Malformed("message");

fn decode_append(input: &mut Input, core: &mut eraftpb::Message) -> Result<(), Malformed> {
    (core.index, core.log_term, core.commit) = (input.number()?, input.number()?, input.number()?);
    let count = input.u32()? as usize;
    if input.0.len() / ENTRY_HEADER_SIZE < count || core.log_term > core.term {
        return Err(MALFORMED);
    }
    let mut entries = Vec::with_capacity(count);
    let mut term = core.log_term;
    for i in 0..count {
        let entry_term = input.number()?;
        let kind = EntryKind::from_code(input.u8()?).ok_or(MALFORMED)?;
        if entry_term < term || entry_term == 0 || entry_term > core.term {
            return Err(MALFORMED);
        }
        term = entry_term;
        let length = input.u32()? as usize;
        let data = input.take(length)?;
        entries.push(core_entry(LogPosition { term, index: core.index + 1 + i as u64 }, kind, data));
    }
    core.set_entries(entries.into());
    Ok(())
}

fn decode_snapshot(input: &mut Input, core: &mut eraftpb::Message) -> Result<(), Malformed> {
    let position = LogPosition { index: input.number()?, term: input.number()? };
    let id = input.u64()?;
    let membership = Membership::decode_from(&mut input.0)?;
    if position.index == 0 || position.term == 0 || position.term > core.term || membership.voters.is_empty() {
        return Err(MALFORMED);
    }
    core.set_snapshot(core_snapshot(&SnapshotMeta { position, membership, id }));
    Ok(())
}

fn put_all<const N: usize>(out: &mut BytesMut, numbers: [u64; N]) {
    numbers.into_iter().for_each(|number| out.put_u64_le(number));
}

/// The data of an entry in our own form. A membership change that this replica itself proposed has protobuf data, which
/// the core reads back, and our form beside it; the one by which the core leaves a joint membership has neither.
pub(crate) fn data_of(entry: &eraftpb::Entry) -> &Bytes {
    static LEAVE: Bytes = Bytes::from_static(&[1, 2, 0, 0, 0, 0]);
    match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
            if !entry.context.is_empty() {
                &entry.context
            } else if entry.data.is_empty() {
                &LEAVE
            } else {
                &entry.data
            }
        }
    }
}

pub(crate) fn kind_of(entry: &eraftpb::Entry) -> EntryKind {
    match entry.get_entry_type() {
        EntryType::EntryNormal => EntryKind::Normal,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => EntryKind::Membership,
    }
}

pub(crate) fn core_entry(position: LogPosition, kind: EntryKind, data: Bytes) -> eraftpb::Entry {
    let mut entry = eraftpb::Entry::default();
    entry.set_entry_type(match kind {
        EntryKind::Normal => EntryType::EntryNormal,
        EntryKind::Membership => EntryType::EntryConfChangeV2,
    });
    (entry.term, entry.index, entry.data) = (position.term, position.index, data);
    entry
}

pub(crate) fn core_snapshot(meta: &SnapshotMeta) -> Snapshot {
    let data = Bytes::copy_from_slice(&meta.id.to_le_bytes());
    let mut snapshot = Snapshot { data, ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    metadata.set_conf_state(meta.membership.to_core());
    (metadata.index, metadata.term) = (meta.position.index, meta.position.term);
    snapshot
}

pub(crate) fn meta_of(snapshot: &Snapshot) -> SnapshotMeta {
    let metadata = snapshot.get_metadata();
    SnapshotMeta {
        position: LogPosition { term: metadata.term, index: metadata.index },
        membership: Membership::from_core(metadata.get_conf_state()),
        id: <[u8; 8]>::try_from(&snapshot.data[..]).map_or(0, u64::from_le_bytes),
    }
}

struct Input(Bytes);

impl Input {
    fn need(&self, count: usize) -> Result<(), Malformed> {
        if self.0.len() < count { Err(MALFORMED) } else { Ok(()) }
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let number = self.u64()?;
        if number < NUMBER_MAX { Ok(number) } else { Err(MALFORMED) }
    }

    fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        self.need(count)?;
        Ok(self.0.split_to(count))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
