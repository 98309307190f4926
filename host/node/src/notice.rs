//! What the shard tells the rest of the node, and what follows there.
//!
//! The rest takes a notice after the event in the course of which it was said, or after the group was driven. What a group must not do before
//! that, the shard itself sees to.

use crate::ids::ReplicaKey;
use crate::node::Node;
use hedgerow_env::Now;
use hedgerow_replication::{Role, RoleChange};
use hedgerow_types::op::WriteReply;
use hedgerow_types::{GroupId, Refusal, ReplicaId};

/// Something that the rest of the node has to know.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A replica here plays another part in its group, or knows another leader or term.
    Role(GroupId, RoleChange),
    /// The other nodes should hear at once how the replica of a group is.
    Urgent(GroupId),
    /// The metadata leader's read with this ticket may read its storage.
    MetadataRead(u64),
    /// The metadata leader's write with this ticket was applied.
    MetadataWritten(u64, WriteReply),
    /// The metadata leader's read or write with this ticket came to nothing.
    MetadataFailed(u64, Refusal),
    /// Storage of a group's replica takes nothing for the moment, for this reason: the group has paused, and tries again.
    ApplyHeld(GroupId, String),
    /// A replica was given up: it votes and applies what it can until its group can spare it, and makes no checkpoints.
    GivenUp(GroupId),
    /// A replica cannot go on, for this reason. Nothing more was done for its group in this turn.
    Unusable(ReplicaKey, String),
    /// A checkpoint waits to be installed until nobody reads the storage of this replica.
    WantsStorage(ReplicaKey),
    /// A checkpoint of this replica has had no room for a while, and lacks so many bytes; so many has the storage that it would replace.
    LacksRoom(ReplicaKey, u64, u64),
    /// A receiver of a group's checkpoint has part of one of this other replica, which should lead again if it can.
    AwaitsFormer(GroupId, ReplicaId),
    /// Whether flushes fall behind has changed.
    Behind(bool),
}

impl Node {
    /// Takes what the shards have said, of each in the order in which it was said, until nothing is left.
    pub(crate) fn take_notices(&mut self, now: Now) {
        loop {
            for replied in self.shards.iter_mut().flat_map(|shard| shard.requests.take_replied()) {
                self.front.note_reply(&replied);
            }
            let said: Vec<Notice> = self.shards.iter_mut().flat_map(|shard| shard.notices.drain(..)).collect();
            if said.is_empty() {
                return;
            }
            said.into_iter().for_each(|notice| self.handle_notice(notice, now));
        }
    }

    fn handle_notice(&mut self, notice: Notice, now: Now) {
        match notice {
            Notice::Role(group, change) => self.note_role(group, change, now),
            Notice::Urgent(group) => {
                self.reports.urgent.insert(group);
            }
            Notice::MetadataRead(ticket) => self.load_catalogue(ticket, now),
            Notice::MetadataWritten(ticket, reply) => self.handle_change_written(ticket, &reply, now),
            Notice::MetadataFailed(ticket, refusal) => self.metadata.handle_failed(ticket, &refusal),
            Notice::ApplyHeld(group, error) => self.note_apply_held(group, &error),
            Notice::GivenUp(group) => self.note_given_up(group, now),
            Notice::Unusable(owner, reason) => {
                if self.shards.running_as(owner).is_some() {
                    self.lose(owner.group, &reason, true, now);
                }
            }
            Notice::WantsStorage(owner) => self.admin.comparing.end_reads_of(owner),
            Notice::LacksRoom(owner, lacking, own_size) => self.make_room(owner, (lacking, own_size), now),
            Notice::AwaitsFormer(group, former) => self.leave_to(group, former, now),
            Notice::Behind(is_behind) => self.note_behind(is_behind),
        }
    }

    /// The leader of the metadata begins and ends its work, and the others hear of a new leader.
    fn note_role(&mut self, group: GroupId, change: RoleChange, now: Now) {
        if group == GroupId::META {
            self.handle_metadata_role(change, now);
        }
        self.note_leader(group, change.term, change.leader);
        if change.role == Role::Leader {
            self.reports.urgent.insert(group);
        }
    }
}
