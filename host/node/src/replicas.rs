//! The replicas that a node hosts, and which of them have something to do. It knows who waits for them only by what they carry.

use crate::apply::Applying;
use crate::ids::ReplicaKey;
use crate::replica::{Hosted, Replica};
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_storage::Partition;
use hedgerow_types::time::expiry_seconds;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// All of a node.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    pub(crate) hosted: BTreeMap<GroupId, Hosted>,
    /// Groups with something to do, each once.
    pub(crate) dirty: Vec<GroupId>,
    /// Groups that want to be looked at, by when. See `wake.rs`.
    pub(crate) wakes: BTreeSet<(Instant, GroupId)>,
    pub(crate) applying: Applying,
    /// Replicas whose storage was found damaged, and how. They are given up at the end of the turn.
    pub(crate) damaged: Vec<(GroupId, String)>,
    last_ticket: u64,
}

impl Replicas {
    pub(crate) fn running(&mut self, group: GroupId) -> Option<&mut Replica> {
        match self.hosted.get_mut(&group)? {
            Hosted::Running(replica) => Some(replica),
            Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        }
    }

    /// The running replica that `owner` names; another replica of the same group is none.
    pub(crate) fn running_as(&mut self, owner: ReplicaKey) -> Option<&mut Replica> {
        self.running(owner.group).filter(|replica| replica.owner == owner)
    }

    /// Has the group looked at before the turn ends.
    pub(crate) fn mark_dirty(&mut self, group: GroupId) {
        if let Some(Hosted::Running(replica)) = self.hosted.get_mut(&group)
            && !replica.is_dirty
        {
            replica.is_dirty = true;
            self.dirty.push(group);
        }
    }

    /// A number for something that waits, which nothing has had.
    pub(crate) const fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// By what time a read or a write of a group judges which rows have expired, in expiry-epoch seconds: the time, or what it had
    /// come to, here and in the log, before it was forgotten. What was shown as expired must not come back, and be written to.
    pub(crate) fn expiry_time(&self, view: &View, group: GroupId, now: Now) -> u32 {
        match now.unix_micros {
            0 => expiry_seconds(view.clock.at_least(now.instant)).max(self.log_time(group)),
            known => expiry_seconds(known),
        }
    }

    /// From when a time to live counts that begins now, in expiry-epoch seconds. While no time is known it is the later one of
    /// this node's clock and the log's time: a row may live longer then, and never shorter.
    pub(crate) fn life_begins(&self, view: &View, group: GroupId, now: Now) -> u32 {
        if now.unix_micros != 0 {
            return expiry_seconds(now.unix_micros);
        }
        self.log_time(group).max(expiry_seconds(view.clock.own_unix_micros(now.instant)))
    }

    fn log_time(&self, group: GroupId) -> u32 {
        match self.hosted.get(&group) {
            Some(Hosted::Running(replica)) => replica.storage.as_ref().map_or(0, Partition::log_time),
            Some(Hosted::Starting { .. } | Hosted::Lost { .. }) | None => 0,
        }
    }
}
