//! The replicas in a shard, and which of them have something to do. It knows who waits for them only by what they carry.

use crate::apply::Applying;
use crate::ids::{Numbers, ReplicaKey};
use crate::replica::{Hosted, Replica};
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_storage::Partition;
use hedgerow_types::time::expiry_seconds;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// All of a shard.
#[derive(Debug)]
pub(crate) struct Replicas {
    pub(crate) hosted: BTreeMap<GroupId, Hosted>,
    /// Groups with something to do, each once.
    pub(crate) dirty: Vec<GroupId>,
    /// Groups that want to be looked at, by when. See `wake.rs`.
    pub(crate) wakes: BTreeSet<(Instant, GroupId)>,
    pub(crate) applying: Applying,
    /// Replicas whose storage was found damaged, and how. They are given up at the end of the turn.
    pub(crate) damaged: Vec<(GroupId, String)>,
    /// The first group that has not noticed yet that time has passed.
    to_tick: Option<GroupId>,
    tickets: Numbers,
}

/// What the replicas in a data directory take, or will, of its disk beside what is there: as of the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes that their rows take in memory because no flush has written them. The rows' log may be smaller, by what it costs to keep a row, or
    /// larger, where rows were replaced.
    pub(crate) unflushed: u64,
    /// Bytes of entries in memory because storage does not take them.
    pub(crate) held: u64,
    /// Bytes of checkpoints on their way to them that are not here.
    pub(crate) promised: u64,
}

impl Sizes {
    /// Both together.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            unflushed: self.unflushed + other.unflushed,
            held: self.held + other.held,
            promised: self.promised.saturating_add(other.promised),
        }
    }
}

/// Groups that notice in one turn that time has passed: about a quarter of a millisecond.
const TICKED_PER_TURN: usize = 256;

impl Replicas {
    /// None yet; what waits for them has one of `tickets`.
    pub(crate) fn new(tickets: Numbers) -> Self {
        Self {
            hosted: BTreeMap::new(),
            dirty: Vec::new(),
            wakes: BTreeSet::new(),
            applying: Applying::default(),
            damaged: Vec::new(),
            to_tick: None,
            tickets,
        }
    }

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

    /// Time has passed: all groups are to notice it. If some have not noticed yet that it did before, those are first.
    pub(crate) fn begin_tick(&mut self) {
        self.to_tick = self.to_tick.or_else(|| self.hosted.first_key_value().map(|(group, _)| *group));
    }

    /// Whether some have not.
    pub(crate) const fn is_ticking(&self) -> bool {
        self.to_tick.is_some()
    }

    /// Those that are to notice it in this turn.
    pub(crate) fn next_to_tick(&mut self) -> Vec<GroupId> {
        let Some(from) = self.to_tick.take() else { return Vec::new() };
        let mut rest = self.hosted.range(from..).map(|(group, _)| *group);
        let next = rest.by_ref().take(TICKED_PER_TURN).collect();
        self.to_tick = rest.next();
        next
    }

    /// A number for something that waits, which nothing has had.
    pub(crate) const fn ticket(&mut self) -> u64 {
        self.tickets.next()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DirectoryId, ShardId};
    use hedgerow_types::ReplicaId;

    fn starting(group: GroupId) -> (GroupId, Hosted) {
        let owner = ReplicaKey { group, replica: ReplicaId(1) };
        (group, Hosted::Starting { owner, directory: DirectoryId(0) })
    }

    /// Groups come and go meanwhile, and time passes again before all have noticed.
    #[test]
    fn all_groups_have_their_turn_and_no_turn_has_many() {
        let group = |number: usize| GroupId::new(1, number as u32);
        let mut replicas = Replicas::new(Numbers::new(ShardId(0), 1));
        replicas.hosted = (0..1_000).map(|it| starting(group(it))).collect();
        assert!(!replicas.is_ticking() && replicas.next_to_tick().is_empty());
        replicas.begin_tick();
        let mut seen = replicas.next_to_tick();
        assert_eq!(seen.len(), TICKED_PER_TURN);
        replicas.hosted.remove(&group(TICKED_PER_TURN));
        replicas.hosted.extend([starting(group(1_000))]);
        replicas.begin_tick();
        while replicas.is_ticking() {
            let next = replicas.next_to_tick();
            assert!((1..=TICKED_PER_TURN).contains(&next.len()));
            seen.extend(next);
        }
        let all = (0..=1_000).filter(|it| *it != TICKED_PER_TURN).map(group);
        assert_eq!(seen, all.collect::<Vec<_>>());
        let before = seen.len();
        replicas.begin_tick();
        assert_eq!((replicas.next_to_tick()[0], before), (group(0), 1_000), "and from the beginning");
    }
}
