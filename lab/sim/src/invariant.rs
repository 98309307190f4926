//! What must hold at every moment, whatever clients see: checked after each batch of events of a machine.
//!
//! - Election safety: one leader per group and term.
//! - State machine safety: replicas that applied the same index applied an entry of the same term there, and hold the same
//!   rows.
//! - What is applied is committed, and neither goes back while the process lives.
//! - Log matching (at the end of a run): logs hold the same entries where they overlap.
//! - Lease: at one true instant, whatever the clocks show, at most one replica of a group holds the lease.
//!
//! A group whose nodes lost what they had of it before its table was available begins anew with other replicas, and counts its terms and
//! indices from the beginning. Each such life is looked at for itself; what was acknowledged in the one before would be missed by the judge
//! of answers.

use crate::history::Time;
use crate::machine::Machine;
use crate::scenario::META_REPLICA_COUNT;
use crate::stats::Stats;
use hedgerow_node::inspect::ReplicaView;
use hedgerow_types::log::Entry;
use hedgerow_types::op::{Read, ReadReply};
use hedgerow_types::{GroupId, Index, ReplicaId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Positions remembered per group; older ones have been compared by then.
const POSITIONS_MAX: usize = 4_096;
/// One in so many applied positions is compared row by row.
const CHECKSUM_INTERVAL: u64 = 8;

/// What has been seen so far.
#[derive(Debug, Default)]
pub struct Invariants {
    /// The replicas that each group has had in its present life.
    lives: BTreeMap<GroupId, BTreeSet<ReplicaId>>,
    leaders: BTreeMap<(GroupId, Term), ReplicaId>,
    last_leader: BTreeMap<GroupId, ReplicaId>,
    applied: BTreeMap<GroupId, BTreeMap<Index, Applied>>,
    /// By machine and group: commit and applied index when last seen.
    progress: BTreeMap<(usize, GroupId), (ReplicaId, Index, Index)>,
}

#[derive(Clone, Copy, Debug)]
struct Applied {
    term: Term,
    checksum: Option<u64>,
    seen_at: usize,
}

impl Invariants {
    /// The process of `machine` is gone: its indices may go back.
    pub fn forget(&mut self, machine: usize) {
        self.progress.retain(|(one, _), _| *one != machine);
    }

    /// Checks what may have changed with `machine`.
    pub fn check(&mut self, machines: &[Machine], machine: usize, stats: &mut Stats) -> Result<(), String> {
        let Some(process) = &machines[machine].process else { return Ok(()) };
        for replica in process.node.replicas_for_inspection() {
            if self.is_of_present_life(&replica) {
                self.check_leader(&replica, stats)?;
                self.check_progress(&replica, machine)?;
            }
        }
        Ok(())
    }

    /// Replicas of one life know each other through those between them; none of another life does, and its ids are higher.
    fn is_of_present_life(&mut self, replica: &ReplicaView<'_>) -> bool {
        let membership = replica.group.membership();
        let members = [&membership.voters, &membership.voters_outgoing, &membership.learners].into_iter().flatten();
        let life = self.lives.entry(replica.id).or_default();
        // Whoever has learnt nothing yet, and so knows no members, is of whatever life.
        if members.clone().all(|id| life.contains(id)) {
            return true;
        }
        if !members.clone().any(|id| life.contains(id)) {
            let oldest = members.clone().map(|id| id.counter()).min();
            if life.iter().any(|known| Some(known.counter()) > oldest) {
                return false;
            }
            life.clear();
            self.leaders.retain(|(group, _), _| *group != replica.id);
            self.applied.remove(&replica.id);
        }
        life.extend(members);
        true
    }

    fn check_leader(&mut self, replica: &ReplicaView<'_>, stats: &mut Stats) -> Result<(), String> {
        let Some(term) = replica.leads() else { return Ok(()) };
        let (group, id) = (replica.id, replica.replica);
        match self.leaders.insert((group, term), id) {
            Some(other) if other != id => {
                Err(format!("group {group} has two leaders in term {term}: {other} and {id}"))
            }
            Some(_) => Ok(()),
            None => {
                stats.elections += 1;
                if self.last_leader.insert(group, id).is_some_and(|last| last != id) {
                    stats.failovers += 1;
                }
                Ok(())
            }
        }
    }

    fn check_progress(&mut self, replica: &ReplicaView<'_>, machine: usize) -> Result<(), String> {
        let Some(storage) = replica.storage else { return Ok(()) };
        let (group, id) = (replica.id, replica.replica);
        let (commit, applied) = (replica.group.commit(), storage.applied());
        let known = self.progress.insert((machine, group), (id, commit, applied.index));
        if let Some((known, commit_before, applied_before)) = known
            && known == id
        {
            if commit < commit_before || applied.index < applied_before {
                return Err(format!(
                    "{id} of group {group} went back: commit {commit_before} to {commit}, applied {applied_before} to {}",
                    applied.index
                ));
            }
            if applied.index == applied_before {
                return Ok(());
            }
        }
        if applied.index > commit {
            return Err(format!("{id} of group {group} applied {} beyond its commit index {commit}", applied.index));
        }
        let checksum = if applied.index.is_multiple_of(CHECKSUM_INTERVAL) { Some(checksum(replica)?) } else { None };
        let positions = self.applied.entry(group).or_default();
        let before =
            *positions.entry(applied.index).or_insert(Applied { term: applied.term, checksum, seen_at: machine });
        if positions.len() > POSITIONS_MAX {
            positions.pop_first();
        }
        let differs =
            before.term != applied.term || matches!((before.checksum, checksum), (Some(a), Some(b)) if a != b);
        if differs {
            return Err(format!(
                "group {group} differs at applied index {}: m{} holds term {} checksum {:?}, m{} term {} checksum {:?}",
                applied.index,
                before.seen_at + 1,
                before.term,
                before.checksum,
                machine + 1,
                applied.term,
                checksum
            ));
        }
        Ok(())
    }
}

/// Replicas that each group should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Groups of the table.
    pub partitions: usize,
    /// Voters of each.
    pub voters: usize,
    /// Learners of each.
    pub learners: usize,
}

/// Whether every replica of every group is there, up to date and equal, and no other; the error says what is missing.
pub fn check_converged(machines: &[Machine], expected: &Expected) -> Result<(), String> {
    let mut groups: BTreeMap<GroupId, Vec<ReplicaView<'_>>> = BTreeMap::new();
    for (index, machine) in machines.iter().enumerate() {
        let process = machine.process.as_ref().ok_or_else(|| format!("m{} does not run", index + 1))?;
        for replica in process.node.replicas_for_inspection() {
            groups.entry(replica.id).or_default().push(replica);
        }
    }
    if groups.len() != expected.partitions + 1 {
        return Err(format!("{} groups of {} have replicas", groups.len(), expected.partitions + 1));
    }
    for (group, replicas) in &groups {
        let (voters, learners) =
            if *group == GroupId::META { (META_REPLICA_COUNT, 0) } else { (expected.voters, expected.learners) };
        converged(*group, replicas, voters, learners)?;
    }
    Ok(())
}

/// Whether all logs of each group hold the same entries where they overlap.
pub fn check_logs(machines: &[Machine]) -> Result<(), String> {
    let mut seen: BTreeMap<(GroupId, Index), (Entry, ReplicaId)> = BTreeMap::new();
    for process in machines.iter().filter_map(|machine| machine.process.as_ref()) {
        for replica in process.node.replicas_for_inspection() {
            let (low, last) = (replica.group.first_index(), replica.group.last_index());
            let entries = process.entries(&replica, low, last)?;
            if entries.len() as u64 != last + 1 - low {
                return Err(format!(
                    "the log of {} holds {} entries between {low} and {last}",
                    replica.replica,
                    entries.len()
                ));
            }
            for entry in entries {
                let (id, index) = (replica.replica, entry.index);
                let (known, other) = seen.entry((replica.id, index)).or_insert((entry.clone(), id));
                if *known != entry {
                    let group = replica.id;
                    return Err(format!("group {group}: the log of {other} holds {known:?}, that of {id} {entry:?}"));
                }
            }
        }
    }
    Ok(())
}

fn converged(group: GroupId, replicas: &[ReplicaView<'_>], voters: usize, learners: usize) -> Result<(), String> {
    if replicas.len() != voters + learners {
        return Err(format!("group {group} has {} replicas of {}", replicas.len(), voters + learners));
    }
    let mut leaders = 0;
    let mut states = Vec::new();
    for replica in replicas {
        let raft = replica.group;
        let Some(storage) = replica.storage else {
            return Err(format!("{} of group {group} is installing a checkpoint", replica.replica));
        };
        leaders += usize::from(replica.leads().is_some());
        let members = raft.membership();
        let is_member = members.voters.contains(&replica.replica) || members.learners.contains(&replica.replica);
        if members.voters.len() != voters || members.learners.len() != learners || !is_member {
            return Err(format!("{} of group {group} has the membership {members:?}", replica.replica));
        }
        if storage.applied().index != raft.last_index() {
            return Err(format!(
                "{} of group {group} applied {} of {} entries",
                replica.replica,
                storage.applied().index,
                raft.last_index()
            ));
        }
        states.push((storage.applied(), checksum(replica)?, replica.replica));
    }
    if leaders != 1 {
        return Err(format!("group {group} has {leaders} leaders"));
    }
    if let Some(behind) = states.iter().find(|state| state.0 != states[0].0) {
        return Err(format!(
            "{} of group {group} is at {:?}, {} at {:?}",
            behind.2, behind.0, states[0].2, states[0].0
        ));
    }
    let differs = states.iter().any(|state| state.1 != states[0].1);
    if differs { Err(format!("the replicas of group {group} differ: {states:?}")) } else { Ok(()) }
}

/// However far apart the clocks are, two leases of one group must not overlap in true time. Looks at the groups that
/// `machine` leads.
pub fn check_leases(machines: &[Machine], machine: usize, now: Time) -> Result<(), String> {
    let Some(process) = &machines[machine].process else { return Ok(()) };
    let led = process.node.replicas_for_inspection().filter(|replica| replica.leads().is_some());
    led.map(|replica| replica.id).try_for_each(|group| check_lease(machines, group, now))
}

fn check_lease(machines: &[Machine], group: GroupId, now: Time) -> Result<(), String> {
    let mut holder: Option<ReplicaId> = None;
    for machine in machines {
        let Some(process) = &machine.process else { continue };
        let local = machine.clock.read(now).instant;
        let mut replicas = process.node.replicas_for_inspection().filter(|replica| replica.id == group);
        if let Some(replica) = replicas.find(|replica| replica.holds_lease(local))
            && let Some(other) = holder.replace(replica.replica)
        {
            return Err(format!("group {group} has two leases at the same time: {other} and {}", replica.replica));
        }
    }
    Ok(())
}

fn checksum(replica: &ReplicaView<'_>) -> Result<u64, String> {
    let storage = replica.storage.ok_or_else(|| format!("{} has no storage", replica.replica))?;
    match storage.read(&Read::Checksum, 0) {
        Ok(ReadReply::Checksum { checksum, .. }) => Ok(checksum),
        Ok(other) => Err(format!("a checksum was answered {other:?}")),
        Err(error) => Err(format!("{} cannot read its storage: {error}", replica.replica)),
    }
}
