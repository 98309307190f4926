//! One replicated group: events in, actions out.
//!
//! A [`Group`] is one replica's view of a Raft group. It reads no clock, disk or socket: the host calls `handle_*` with
//! what happened and the time, then [`Group::poll_ready`] until there is nothing left to do. The consensus core is the
//! crate `raft`; leases, linearizable reads, election timing, the encoding of messages and the checks of what arrives are
//! built around it here.
//!
//! # Time
//!
//! Every `now` must have been read from the local monotonic clock *after* the event it comes with happened: after the
//! message was received, after the read arrived, after the storage was read. A clock read once for a batch is right if it
//! was read after the whole batch had been collected. The safety of leases and reads rests on this.
//!
//! # Reads at replicas that do not lead
//!
//! A replica asks its leader on behalf of reads ([`Group::wants_to_ask`], [`Group::ask`], [`Group::handle_read_index_request`],
//! [`Group::handle_read_index_reply`]); [`ReadIndexBatcher`] says when the questions of many groups leave as one message. Questions and answers may
//! be lost, doubled, delayed and reordered. Why this is safe is in decision 008.
//!
//! Where the leader is silent, or somebody is in a hurry ([`Group::hasten_read`]), the other voters' logs are asked as well
//! ([`Group::ask_tails`], [`TailIndex::look_up`], [`Group::handle_tail_reply`]): decision 018.
//!
//! # Order
//!
//! The host may finish writes, applications and fetches late, twice or never: what is no longer of interest is ignored.
//! Only the writes of one group must become durable in the order of their tickets.

mod batcher;
mod contact;
mod flow;
mod freshness;
mod group;
mod guard;
mod hold;
mod lease;
mod membership;
mod message;
#[cfg(feature = "mutations")]
mod mutations;
mod output;
mod quorum;
mod reads;
mod ready;
mod round_trip;
mod serve;
mod settings;
mod tail;
mod waiting;
mod window;

pub use batcher::ReadIndexBatcher;
pub use freshness::age;
pub use group::Group;
pub use membership::{Malformed, Membership, MembershipChange, makes_voter};
pub use message::Message;
#[cfg(feature = "mutations")]
pub use mutations::Mutations;
pub use quorum::{QUORUM_READS_MAX, TailQuestion};
pub use ready::{
    FIRST, Fetch, PeerProgress, Persist, Proof, ProposeError, ReadIndexReply, ReadIndexRequest, ReadNeed, ReadOutcome,
    ReadStart, Ready, Role, RoleChange, Served, SnapshotMeta, SnapshotSend, Start, StartError,
};
pub use settings::Settings;
pub use tail::{TailIndex, Touches};
