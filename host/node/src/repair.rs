//! Repair, as the metadata leader decides on it: what is lost is replaced, and a replacement ends.

use crate::catalogue_change::Change;
use crate::node::Node;
use crate::peer::{ReplicaState, Report};
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, Node as NodeEntry, Replica, ReplicaRole};
use hedgerow_types::{GroupId, Incarnation, Instant, NodeId, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A loss is known for so long before anything is done about it: others may be lost in the same moment.
const LOSS_TOLD: Duration = Duration::from_secs(2);
/// A node is there that has made its last complete report so lately.
const REPORT_FRESH: Duration = Duration::from_millis(1_500);

/// What nodes say they have lost.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Since when each loss is known here.
    since: BTreeMap<(GroupId, ReplicaId), Instant>,
    /// When the last complete report of each node came.
    reported: BTreeMap<NodeId, Instant>,
    /// When the last one of any node came.
    heard: Option<Instant>,
}

impl Losses {
    /// A complete report of `node` has come. If none came for long, not even this node's own, the process stood still, and what comes
    /// now was said before: nothing counts that was known then, and this only from [`LOSS_TOLD`] on.
    fn note_report(&mut self, node: NodeId, now: Instant) {
        if self.heard.is_some_and(|heard| now.since(heard) >= REPORT_FRESH) {
            *self = Self::default();
        }
        self.heard = Some(now);
        self.reported.insert(node, now);
    }

    /// `lost` is all that `node` has lost.
    fn note(&mut self, node: NodeId, lost: &BTreeSet<(GroupId, ReplicaId)>, now: Instant) {
        self.since.retain(|key, _| key.1.node() != node || lost.contains(key));
        for key in lost {
            self.since.entry(*key).or_insert(now);
        }
    }
}

impl Node {
    /// What a node's report says that the catalogue does not know yet: the node itself, replicas that it lost, and
    /// replacements that are complete, or that are no longer needed.
    pub(crate) fn repair_from_report(&mut self, from: NodeId, report: &Report, now: Now) {
        if report.is_complete {
            self.metadata.losses.note_report(from, now.instant);
        }
        if self.metadata.is_busy() {
            return;
        }
        let Some(current) = &self.metadata.current else { return };
        let incarnation = Incarnation(report.incarnation);
        let known = current.nodes.get(&from);
        if known.is_some_and(|known| known.retired.contains(&incarnation)) {
            return;
        }
        let mut entry =
            NodeEntry { labels: report.labels.clone(), ..NodeEntry::new(report.address.clone(), incarnation) };
        if let Some((life, logs)) = self.life_of(from, incarnation) {
            (entry.boot, entry.start, entry.logs) = (life.boot, life.start, logs);
        }
        if let Some(known) = known {
            entry = entry.after(known);
        }
        let mut changes = Vec::new();
        if known != Some(&entry) {
            changes.push(Change::Register { node: from, entry });
        } else if report.is_complete && report.catalogue_version >= current.version {
            let lost = lost_by(current, from, report);
            self.metadata.losses.note(from, &lost, now.instant);
            changes.extend(self.spared(lost, now));
        }
        changes.extend(completed_by(current, report));
        changes.extend(self.returned_by(current, from, report));
        for change in changes {
            tracing::info!(%change, "the catalogue changes");
            self.metadata.enqueue(change);
        }
        self.write_changes(now);
    }

    /// Of `lost` replicas those that are to be replaced: most of the voters of their groups are there without them.
    ///
    /// The node removes what it still has of a lost replica when it makes the successor, and that may be sound: the disk of its log
    /// was not mounted, or gave errors for a while. It is needed for as long as the others are no majority, and without one no
    /// successor could join.
    fn spared(&self, mut lost: BTreeSet<(GroupId, ReplicaId)>, now: Now) -> Vec<Change> {
        lost.retain(|key| {
            let since = self.metadata.losses.since.get(key);
            since.is_some_and(|since| self.is_spared(key.0, key.1, *since + LOSS_TOLD, now.instant))
        });
        lost.into_iter().map(|(group, lost)| Change::Replace { group, lost }).collect()
    }

    /// Whether most of the voters of `group` vote without the `lost` one, by what their nodes have just said, and not before `told`.
    fn is_spared(&self, group: GroupId, lost: ReplicaId, told: Instant, now: Instant) -> bool {
        let Some(partition) = self.metadata.current.as_ref().and_then(|current| current.group(group)) else {
            return false;
        };
        let is_there = |voter: ReplicaId| {
            let reported = self.metadata.losses.reported.get(&voter.node());
            let is_fresh = reported.is_some_and(|at| *at >= told && now.since(*at) < REPORT_FRESH);
            is_fresh && self.is_voting(group, voter)
        };
        let there = partition.voters().filter(|voter| *voter != lost && is_there(*voter));
        there.count() > partition.voters().count() / 2
    }

    /// Replicas that were given up and run again: by the leader's word they vote, and none of their successors does. Their
    /// node says that it runs them although it knows of those, so that it has made none (see `reconcile_hosting`).
    fn returned_by(&self, current: &Catalogue, from: NodeId, report: &Report) -> Vec<Change> {
        let mut back = Vec::new();
        for leader in report.replicas.iter().filter(|replica| !replica.voters.is_empty()) {
            let group = GroupId::from_u64(leader.group);
            let Some(partition) = current.group(group) else { continue };
            let is_newest = self.leader_of(group).is_none_or(|(term, _)| term <= leader.term);
            let votes = |replica: &ReplicaId| leader.voters.contains(&replica.0);
            for replica in partition.replicas.iter().map(|replica| replica.id) {
                let successors = partition.successors_of(replica);
                if successors.is_empty() || !is_newest || !votes(&replica) || successors.iter().any(votes) {
                    continue;
                }
                let word = match replica.node() {
                    node if node == from => Some(report),
                    node => self.reports.told().nodes.get(&node).map(|(report, _)| &**report),
                };
                let runs = |report: &Report| report.is_complete && report.catalogue_version >= current.version;
                if word.filter(|report| runs(report)).is_some_and(|report| report.runs(group, replica)) {
                    back.push(Change::Withdraw { group, back: replica });
                }
            }
        }
        back
    }
}

/// Replicas that should be on `node`, have no successor and, by its own word, are lost.
fn lost_by(catalogue: &Catalogue, node: NodeId, report: &Report) -> BTreeSet<(GroupId, ReplicaId)> {
    let reported: BTreeMap<(u64, u64), u32> =
        report.replicas.iter().map(|replica| ((replica.group, replica.replica), replica.state)).collect();
    let is_lost = |group: GroupId, replica: &Replica| match reported.get(&(group.to_u64(), replica.id.0)) {
        Some(state) => ReplicaState::from_code(*state) == Some(ReplicaState::Lost),
        None => replica.incarnation.0 != report.incarnation,
    };
    catalogue
        .hosted_by(node)
        .filter(|(group, replica)| is_lost(*group, replica))
        .filter(|(group, replica)| {
            catalogue.group(*group).is_some_and(|partition| partition.replacement_of(replica.id).is_none())
        })
        .map(|(group, replica)| (group, replica.id))
        .collect()
}

/// Joining replicas that, by their leader's word, vote, while those they replace are gone.
fn completed_by(catalogue: &Catalogue, report: &Report) -> Vec<Change> {
    let mut done = Vec::new();
    for leader in report.replicas.iter().filter(|replica| !replica.voters.is_empty()) {
        let group = GroupId::from_u64(leader.group);
        let voters: BTreeSet<u64> = leader.voters.iter().copied().collect();
        let Some(partition) = catalogue.group(group) else { continue };
        for replica in &partition.replicas {
            if let ReplicaRole::Joining { replaces } = replica.role
                && voters.contains(&replica.id.0)
                && replaces.is_none_or(|lost| !voters.contains(&lost.0))
            {
                done.push(Change::Finish { group, joined: replica.id });
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::default() + Duration::from_millis(millis)
    }

    #[test]
    fn d3g_what_was_heard_before_the_process_stood_still_does_not_count() {
        let (one, two) = (NodeId(1), NodeId(2));
        let lost = BTreeSet::from([(GroupId::META, ReplicaId::new(1, two))]);
        let mut losses = Losses::default();
        for millis in (0..5_000).step_by(500) {
            losses.note_report(one, at(millis));
            losses.note_report(two, at(millis + 10));
            losses.note(two, &lost, at(millis + 10));
        }
        assert_eq!(losses.since.values().copied().collect::<Vec<_>>(), [at(10)]);
        assert_eq!(losses.reported, BTreeMap::from([(one, at(4_500)), (two, at(4_510))]));
        // What was on its way all the time comes at once.
        losses.note_report(two, at(9_000));
        losses.note(two, &lost, at(9_000));
        assert_eq!(losses.since.values().copied().collect::<Vec<_>>(), [at(9_000)]);
        assert_eq!(losses.reported, BTreeMap::from([(two, at(9_000))]));
    }
}
