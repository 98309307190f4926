//! Making the replicas of new groups: a few at a time, in the order of the groups, so that a table of a thousand partitions
//! neither takes every job thread nor makes the nodes look slow; and leading each group as soon as it can be led.

use crate::job::{Job, JobKind};
use crate::node::Node;
use hedgerow_env::Now;
use hedgerow_placement::TableState;
use hedgerow_replication::Role;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Replicas that a node makes at a time. The other threads for jobs are for what serves.
const CREATIONS_MAX: usize = 2;
/// How long the first leader of a new group waits before it asks for votes again: the others may not have been made when it
/// asked, and an election timeout is a long time for whoever waits for a table. Doubled each time.
const CAMPAIGN_AGAIN_AFTER: Duration = Duration::from_millis(150);
/// Longest such pause. The group's own election timeout is not longer.
const CAMPAIGN_AGAIN_MAX: Duration = Duration::from_secs(1);
/// Least time between two reports of new leaders that somebody waits for.
const URGENT_INTERVAL: Duration = Duration::from_millis(10);

/// What is being made, and which new groups have no leader yet.
#[derive(Debug, Default)]
pub(crate) struct Creations {
    waiting: BTreeMap<GroupId, Job>,
    running: BTreeSet<GroupId>,
    /// New groups that this node is to lead first: when it asks for votes next, and how long it waits after that.
    campaigns: BTreeMap<GroupId, (Instant, Duration)>,
    reported: Option<Instant>,
}

impl Node {
    /// Makes a replica when it is its turn.
    pub(crate) fn enqueue_creation(&mut self, group: GroupId, job: Job) {
        self.creations.waiting.insert(group, job);
        self.start_creations();
    }

    fn start_creations(&mut self) {
        while self.creations.running.len() < CREATIONS_MAX
            && let Some((group, job)) = self.creations.waiting.pop_first()
        {
            self.creations.running.insert(group);
            self.shards.first().job(job);
        }
    }

    /// A job of `group` has ended, well or not.
    pub(crate) fn note_creation_ended(&mut self, group: GroupId, kind: &JobKind) {
        if matches!(kind, JobKind::Make) && self.creations.running.remove(&group) {
            self.start_creations();
        }
    }

    /// The replica is not wanted any more.
    pub(crate) fn forget_creation(&mut self, group: GroupId) {
        self.creations.waiting.remove(&group);
        self.creations.campaigns.remove(&group);
    }

    /// The replica of a new group, which is to lead it first, has started.
    pub(crate) fn note_first_leader(&mut self, group: GroupId, now: Now) {
        let first = now.instant + CAMPAIGN_AGAIN_AFTER;
        self.creations.campaigns.insert(group, (first, CAMPAIGN_AGAIN_AFTER));
    }

    /// Asks for votes again where nobody leads yet.
    pub(crate) fn tick_creations(&mut self, now: Now) {
        let due = |(_, (at, _)): &(&GroupId, &(Instant, Duration))| *at <= now.instant;
        let groups: Vec<GroupId> = self.creations.campaigns.iter().filter(due).map(|(group, _)| *group).collect();
        for group in groups {
            let is_led = |role, leader: Option<_>| role == Role::Leader || leader.is_some();
            let Some(replica) = self.shards.running(group).filter(|it| !is_led(it.group.role(), it.group.leader()))
            else {
                self.creations.campaigns.remove(&group);
                continue;
            };
            replica.group.campaign(now.instant);
            if let Some((at, pause)) = self.creations.campaigns.get_mut(&group) {
                *pause = (*pause * 2).min(CAMPAIGN_AGAIN_MAX);
                *at = now.instant + *pause;
            }
            self.shards.mark_dirty(group);
        }
    }

    /// Tells the others at once of new leaders of tables that somebody waits for. Returns whether it did.
    pub(crate) fn report_first_leaders(&mut self, now: Now) -> bool {
        let is_early = self.creations.reported.is_some_and(|last| now.instant.since(last) < URGENT_INTERVAL);
        let Some(catalogue) = self.view.catalogue.as_ref().filter(|_| !is_early && !self.reports.urgent.is_empty())
        else {
            return false;
        };
        let is_awaited = |group: &GroupId| {
            catalogue.tables.get(&group.table).is_some_and(|table| table.state == TableState::Creating)
        };
        if !self.reports.urgent.iter().any(is_awaited) {
            return false;
        }
        self.creations.reported = Some(now.instant);
        self.tick_reports(now);
        true
    }
}
