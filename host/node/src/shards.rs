//! The shards of a node. A group is in one of them for as long as its replica lives, which follows from its name alone: the partitions of a table
//! are spread over all.

use crate::ids::{Numbers, ReplicaKey, ShardId};
use crate::inbox::Handed;
use crate::outbox::Outbox;
use crate::replica::{Hosted, Replica};
use crate::replicas::Sizes;
use crate::requests::{Requests, sum_of};
use crate::shard::Shard;
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_types::GroupId;
use serde_json::{Value, json};
use std::sync::Arc;

/// All of them, and at least one.
#[derive(Debug)]
pub(crate) struct Shards {
    all: Vec<Shard>,
}

impl Shards {
    /// Takes `all`, by their numbers.
    pub(crate) fn new(all: Vec<Shard>) -> Self {
        assert!(!all.is_empty(), "a node has a shard");
        Self { all }
    }

    fn place_of(&self, group: GroupId) -> usize {
        shard_of(group, self.all.len()).0
    }

    /// The one that a group is in, or would be.
    pub(crate) fn of(&mut self, group: GroupId) -> &mut Shard {
        let place = self.place_of(group);
        &mut self.all[place]
    }

    /// The same, to look at.
    pub(crate) fn at(&self, group: GroupId) -> &Shard {
        &self.all[self.place_of(group)]
    }

    /// The one with this number.
    pub(crate) fn numbered(&mut self, shard: ShardId) -> Option<&mut Shard> {
        self.all.get_mut(shard.0)
    }

    /// The one that has given a number.
    pub(crate) fn that_gave(&mut self, number: u64) -> &mut Shard {
        let shard = Numbers::giver(number, self.all.len());
        &mut self.all[shard.0]
    }

    /// The one that does what is for no group.
    pub(crate) fn first(&mut self) -> &mut Shard {
        &mut self.all[0]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.all.iter_mut()
    }

    /// What the node has under a group's name.
    pub(crate) fn hosted(&self, group: GroupId) -> Option<&Hosted> {
        self.at(group).replicas.hosted.get(&group)
    }

    /// Whether what the node has under its group's name is this replica.
    pub(crate) fn has(&self, owner: ReplicaKey) -> bool {
        self.hosted(owner.group).is_some_and(|hosted| hosted.owner() == owner)
    }

    /// All that the node has. By shard, and there by group.
    pub(crate) fn all_hosted(&self) -> impl Iterator<Item = (&GroupId, &Hosted)> {
        self.all.iter().flat_map(|shard| &shard.replicas.hosted)
    }

    /// The same without names.
    pub(crate) fn each_hosted(&self) -> impl Iterator<Item = &Hosted> {
        self.all_hosted().map(|(_, hosted)| hosted)
    }

    /// The names.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        self.all_hosted().map(|(group, _)| *group).collect()
    }

    /// How many groups have something here.
    pub(crate) fn hosted_count(&self) -> usize {
        self.all.iter().map(|shard| shard.replicas.hosted.len()).sum()
    }

    pub(crate) fn running(&mut self, group: GroupId) -> Option<&mut Replica> {
        self.of(group).running(group)
    }

    /// The running replica that `owner` names; another replica of the same group is none.
    pub(crate) fn running_as(&mut self, owner: ReplicaKey) -> Option<&mut Replica> {
        self.of(owner.group).running_as(owner)
    }

    /// Has the group looked at before the turn ends.
    pub(crate) fn mark_dirty(&mut self, group: GroupId) {
        self.of(group).mark_dirty(group);
    }

    /// Has all of them go by `view`.
    pub(crate) fn show(&mut self, view: &Arc<View>) {
        self.all.iter_mut().for_each(|shard| shard.view = Arc::clone(view));
    }

    /// Looks at all replicas: what those in each data directory take of its disk.
    pub(crate) fn measure(&self) -> Vec<Sizes> {
        let measured = self.all.iter().map(Shard::measure_replicas);
        let add =
            |sum: Vec<Sizes>, more: Vec<Sizes>| sum.into_iter().zip(more).map(|(one, other)| one.plus(other)).collect();
        measured.reduce(add).unwrap_or_default()
    }

    /// The requests of each.
    pub(crate) fn requests(&self) -> Vec<&Requests> {
        self.all.iter().map(|shard| &shard.requests).collect()
    }

    /// What the operator is told of them all.
    pub(crate) fn told(&self) -> Value {
        let mut told = sum_of(self.all.iter().map(Shard::told));
        // A name that was given twice may be found twice.
        if let Some(unknown) = told.pointer_mut("/queue/cancels/unknown") {
            *unknown = json!(unknown.as_i64().unwrap_or(0).max(0));
        }
        // Which is no sum.
        told["service_us"] = json!(self.all.iter().map(|shard| shard.requests.service_us()).max());
        told
    }

    /// Gives each shard those of `items` that are for its groups.
    pub(crate) fn divide<T>(
        &mut self,
        items: Vec<T>,
        group: impl Fn(&T) -> GroupId,
    ) -> impl Iterator<Item = (&mut Shard, Vec<T>)> {
        let mut parts: Vec<Vec<T>> = self.all.iter().map(|_| Vec::new()).collect();
        if parts.len() == 1 {
            parts[0] = items;
        } else {
            items.into_iter().for_each(|item| parts[self.place_of(group(&item))].push(item));
        }
        self.all.iter_mut().zip(parts).filter(|(_, part)| !part.is_empty())
    }

    /// Hands the same to all of them.
    pub(crate) fn hand_to_all(&mut self, handed: impl Fn() -> Handed, now: Now) {
        self.all.iter_mut().for_each(|shard| shard.hand(handed(), now));
    }

    /// Whether groups have something to do.
    pub(crate) fn has_dirty(&self) -> bool {
        self.all.iter().any(|shard| !shard.replicas.dirty.is_empty())
    }

    /// What all of them want done.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        let (first, others) = self.all.split_at_mut(1);
        let outbox = &mut first[0].outbox;
        others.iter_mut().for_each(|shard| outbox.append(&mut shard.outbox));
        outbox
    }
}

/// How shards take their turns.
pub(crate) trait Turns {
    /// Has each of them take one.
    fn take(&self, shards: &mut Shards, turn: impl Fn(&mut Shard) + Sync);
}

/// One after the other.
#[derive(Debug)]
pub(crate) struct OneByOne;

impl Turns for OneByOne {
    fn take(&self, shards: &mut Shards, turn: impl Fn(&mut Shard) + Sync) {
        shards.iter_mut().for_each(turn);
    }
}

/// Which of `count` shards a group is in.
pub(crate) const fn shard_of(group: GroupId, count: usize) -> ShardId {
    ShardId((group.table.0 as usize).wrapping_add(group.partition as usize) % count)
}
