//! Compactions that fall behind: what replicas tell of theirs, and which share of the writes is refused because of it.
//!
//! Every flush tells what compactions of its storage have still to do, and while that is a debt a job looks again each
//! second. A leader refuses the share of writes that its own debt asks for, and no less than a majority of the replicas
//! cannot do without. The share rises with the debt, so that writes become slower instead of stopping, and it comes back
//! to nothing by itself: a debt needs no further write to be worked off, one whose compactions have stopped is none, and
//! on a full disk only what `room.rs` says counts, for compactions may wait there for what deletes give back.

use crate::ids::ReplicaKey;
use crate::job::Job;
use crate::notice::Notice;
use crate::peer::Report;
use crate::replica::{Hosted, Replica};
use crate::room::Room;
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_replication::Role;
use hedgerow_storage::{Debt, PARTS};
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a debt is looked at while no flush tells of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What one replica's debt comes to.
#[derive(Debug, Default)]
pub(crate) struct PushBack {
    /// Of [`PARTS`] writes, how many its own storage would have refused.
    own: u32,
    /// How many this leader refuses.
    refused: u32,
    /// Parts of a refusal that have come together.
    gathered: u32,
    is_looking: bool,
}

impl PushBack {
    /// Whether the next write is refused. Of any [`PARTS`] in a row just as many are as should be.
    pub(crate) fn refuses_next(&mut self) -> bool {
        self.gathered += self.refused;
        let is_refused = self.gathered >= PARTS;
        self.gathered %= PARTS;
        is_refused
    }
}

/// What the node knows of debts elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Debts {
    /// Of [`PARTS`] writes, how many these replicas would have refused; not those that take all.
    elsewhere: Arc<BTreeMap<(GroupId, ReplicaId), u32>>,
}

impl Debts {
    /// A node has told how its replicas are. Whether that is news.
    pub(crate) fn note_elsewhere(&mut self, from: NodeId, report: &Report) -> bool {
        let before = Arc::clone(&self.elsewhere);
        let known = Arc::make_mut(&mut self.elsewhere);
        if report.is_complete {
            known.retain(|(_, replica), _| replica.node() != from);
        }
        for one in &report.replicas {
            let name = (GroupId::from_u64(one.group), ReplicaId(one.replica));
            match one.parts_refused.min(PARTS) {
                0 => known.remove(&name),
                parts => known.insert(name, parts),
            };
        }
        self.elsewhere != before
    }
}

impl Room {
    /// Of [`PARTS`] writes, how many a replica's own debt would have refused.
    pub(crate) fn parts_refused(&self, replica: &Replica) -> u32 {
        if self.is_full(replica.directory) { 0 } else { replica.push_back.own }
    }

    /// Decides how much a group that is led here refuses.
    pub(crate) fn update_push_back(&self, replica: &mut Replica) {
        let own = self.parts_refused(replica);
        replica.push_back.refused = if replica.group.role() == Role::Leader {
            let (id, group, membership) = (replica.id(), replica.owner.group, replica.group.membership());
            let of_voter = |voter: &ReplicaId| match self.debts.elsewhere.get(&(group, *voter)) {
                _ if *voter == id => own,
                parts => parts.copied().unwrap_or(0),
            };
            let halves = [&membership.voters, &membership.voters_outgoing];
            let of_halves = halves.map(|voters| of_majority(voters.iter().map(of_voter).collect()));
            of_halves.into_iter().fold(own, u32::max)
        } else {
            0
        };
    }
}

/// What the majority that asks for least asks for. Nothing where there are no voters.
fn of_majority(mut parts: Vec<u32>) -> u32 {
    parts.sort_unstable();
    parts.get(parts.len() / 2).copied().unwrap_or(0)
}

impl Shard {
    /// Has debts looked at: who refuses writes because of one may have nothing to flush.
    pub(crate) fn tick_debts(&mut self, now: Now) {
        if self.debts_looked_at.is_some_and(|looked| now.instant.since(looked) < LOOK_INTERVAL) {
            return;
        }
        self.debts_looked_at = Some(now.instant);
        for hosted in self.replicas.hosted.values_mut() {
            let Hosted::Running(replica) = hosted else { continue };
            let Some(storage) = &replica.storage else { continue };
            if replica.push_back.own > 0 && !replica.push_back.is_looking && !replica.flush.is_running {
                replica.push_back.is_looking = true;
                replica.storage_users += 1;
                let engine = Arc::clone(storage.engine());
                self.outbox.jobs.push(Job::Debt { owner: replica.owner, engine });
            }
        }
    }

    /// A job has found what compactions of a replica's storage have still to do.
    pub(crate) fn note_debt(&mut self, owner: ReplicaKey, debt: Debt, is_look: bool) {
        let Some(replica) = self.running_as(owner) else { return };
        replica.push_back.is_looking &= !is_look;
        // What was found in storage that is being replaced says nothing of the one that comes.
        let parts = if replica.storage.is_some() { debt.parts_refused() } else { 0 };
        if std::mem::replace(&mut replica.push_back.own, parts) != parts {
            tracing::debug!(group = %owner.group, ?debt, parts, "what compactions have still to do has changed");
            self.notices.push(Notice::Urgent(owner.group));
            self.update_stop(owner.group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_so_many_writes_are_refused_as_the_debt_asks_for() {
        for refused in 0..=PARTS {
            let mut push_back = PushBack { refused, ..PushBack::default() };
            let count = (0..10 * PARTS).filter(|_| push_back.refuses_next()).count();
            assert_eq!(count as u32, 10 * refused);
        }
    }

    #[test]
    fn n2_no_more_is_refused_than_the_best_majority_asks_for() {
        assert_eq!(of_majority(vec![]), 0);
        assert_eq!(of_majority(vec![7]), 7);
        assert_eq!(of_majority(vec![16, 0]), 16);
        assert_eq!(of_majority(vec![16, 0, 0]), 0);
        assert_eq!(of_majority(vec![16, 0, 3]), 3);
        assert_eq!(of_majority(vec![5, 16, 0, 3]), 5);
    }
}
