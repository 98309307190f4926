//! Acting on the catalogue: creating the replicas that belong here, removing those that do not, and, where this node
//! leads, changing memberships step by step to what the catalogue says.

use crate::debt::PushBack;
use crate::errands::Errand;
use crate::heavy::HeavyWrites;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::node::Node;
use crate::pace::Pace;
use crate::replica::{Flush, Hosted, Replica, Shape, directory_of};
use crate::retain::Kept;
use crate::slow::is_ready_to_lead;
use crate::snapshot::Sending;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, ReplicaRole};
use hedgerow_replication::{Group, Membership, MembershipChange, Role, Start, TailIndex};
use hedgerow_storage::Partition;
use hedgerow_types::log::{Entry, HardState, LogPosition};
use hedgerow_types::{GroupId, NodeId, Refusal, ReplicaId};
use hedgerow_wal::Append;
use hedgerow_wire::serve::TableKind;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the log of a new group begins. It is not 0, so that a replica that joins later always receives a checkpoint,
/// which holds the membership that the log does not.
pub(crate) const FIRST_POSITION: LogPosition = LogPosition { term: 1, index: 1 };
/// How long a group must have been led from elsewhere before its preferred leader takes over.
const PREFERRED_LEADER_AFTER: Duration = Duration::from_secs(10);

/// Replicas that are made or removed in one turn. Each has the data directories looked through for what is left of it.
const RECONCILED_PER_TURN: usize = 64;

impl Node {
    /// Creates this node's replica of the metadata group if it is a founder of the cluster and has none.
    pub(crate) fn host_metadata_founder(&mut self) {
        let own = (u32::from(self.config.node.0), self.identity.incarnation().0);
        let is_founder = self.identity.founders.iter().any(|one| (one.node, one.incarnation) == own);
        // Once a log has been written to it holds the group, or the group has gone elsewhere since.
        let may_be_new = !self.identity.has_any_log();
        if !is_founder || !may_be_new || self.view.catalogue.is_some() || self.shards.hosted(GroupId::META).is_some() {
            return;
        }
        let replicas = founding_replicas(&self.identity.founders);
        let own = replicas.iter().find(|replica| replica.node() == self.config.node).copied();
        let Some(replica) = own else { return };
        let membership = Membership { voters: replicas, ..Membership::default() };
        self.create(ReplicaKey { group: GroupId::META, replica }, Some(membership));
    }

    /// Makes what belongs here and removes what does not, a bounded number in each turn; the tick goes on with the rest.
    pub(crate) fn reconcile_hosting(&mut self, now: Now) {
        let (mut steps, keeps_given_up) = self.steps_to_catalogue();
        self.keeps_given_up = keeps_given_up;
        self.has_unreconciled = steps.len() > RECONCILED_PER_TURN;
        steps.truncate(RECONCILED_PER_TURN);
        for step in steps {
            match step {
                Step::Remove(group) => self.remove_hosted(group, now),
                Step::RemoveFormer(owner, directory) => self.remove_former(owner, directory),
                Step::Create(owner, initial) => {
                    self.make_way(owner.group, now);
                    self.create(owner, initial);
                }
                Step::Lose(owner) => self.note_lost(owner, self.choose_directory(), "it was never made"),
            }
        }
    }

    /// What is to be done so that the replicas here are those that the catalogue wants, removals first; and whether one stays that is to be
    /// replaced.
    fn steps_to_catalogue(&self) -> (Vec<Step>, bool) {
        let (mut steps, mut keeps_given_up) = (Vec::new(), false);
        let Some(catalogue) = &self.view.catalogue else { return (steps, keeps_given_up) };
        let gone = self.shards.all_hosted().filter(|(_, hosted)| self.is_gone(hosted.owner()));
        steps.extend(gone.map(|(group, _)| Step::Remove(*group)));
        let former = self.former.iter().filter(|(owner, _)| self.is_gone(**owner));
        steps.extend(former.map(|(owner, directory)| Step::RemoveFormer(*owner, *directory)));
        for (group, replica) in catalogue.hosted_by(self.config.node) {
            let owner = ReplicaKey { group, replica: replica.id };
            let hosted = self.shards.hosted(group).filter(|hosted| !self.is_gone(hosted.owner()));
            if hosted.is_some_and(|hosted| hosted.owner() == owner) {
                continue;
            }
            let is_new = replica.incarnation == self.identity.incarnation();
            // Only the first membership of a group is created from nothing; whoever comes later learns it. Nor is a replica
            // made that was there and is given up: it may have voted.
            let whole = catalogue.group(group).filter(|partition| partition.replacement_of(replica.id).is_none());
            let first = whole.filter(|_| replica.role == ReplicaRole::Voter).and_then(|it| it.first_voters());
            let initial = first.map(|voters| Membership { voters: voters.collect(), ..Membership::default() });
            let may_create = is_new && (initial.is_some() || replica.role != ReplicaRole::Voter);
            match hosted {
                Some(hosted) if may_create && hosted.owner().replica.counter() < replica.id.counter() => {
                    if self.is_needed(hosted) {
                        keeps_given_up = true;
                    } else {
                        steps.push(Step::Create(owner, initial));
                    }
                }
                None if may_create => steps.push(Step::Create(owner, initial)),
                // A voter of a group that the node never made, and others have joined the group since: it must not be made
                // from nothing any more, and will be replaced.
                None if is_new => steps.push(Step::Lose(owner)),
                Some(_) | None => {}
            }
        }
        (steps, keeps_given_up)
    }

    /// Whether the catalogue says that a replica is none any more. One that it is too old to know is not gone.
    pub(crate) fn is_gone(&self, owner: ReplicaKey) -> bool {
        self.view.catalogue.as_ref().is_some_and(|catalogue| {
            catalogue.was_dropped(owner.group) || was_removed(catalogue, owner.group, owner.replica)
        })
    }

    /// Whether a replica that is to be replaced runs again, and votes as far as its group's leader is known to say. Until the
    /// leader says otherwise its group may have no majority without it; the metadata takes the replacement back.
    fn is_needed(&self, hosted: &Hosted) -> bool {
        let ReplicaKey { group, replica } = hosted.owner();
        let reports = self.reports.told().nodes.values().filter_map(|(report, _)| report.replica_of(group));
        let newest = reports.filter(|it| !it.voters.is_empty()).max_by_key(|it| it.term);
        matches!(hosted, Hosted::Running(_)) && newest.is_none_or(|it| it.voters.contains(&replica.0))
    }

    /// Looks again at what is kept although it is to be replaced, after a word of another node.
    pub(crate) fn reconsider_given_up(&mut self, now: Now) {
        if self.keeps_given_up {
            self.reconcile_hosting(now);
        }
    }

    fn create(&mut self, owner: ReplicaKey, initial: Option<Membership>) {
        let directory = self.choose_directory();
        tracing::debug!(group = %owner.group, replica = %owner.replica, "creating a replica");
        self.shards.of(owner.group).replicas.hosted.insert(owner.group, Hosted::Starting { owner, directory });
        // What lies there is not set aside any more: it is made anew. What an earlier start has made elsewhere would be taken for it.
        self.former.remove(&owner);
        for other in self.usable_directories().filter(|other| *other != directory).collect::<Vec<_>>() {
            self.shards.of(owner.group).send_on_errand(other, Errand::Clear(owner, None));
        }
        let data = self.config.path_of(directory).to_owned();
        let initial = initial.map(|membership| (FIRST_POSITION, membership));
        self.enqueue_creation(owner.group, Job::Create { owner, data, initial });
    }

    /// The data directory with the fewest replicas, of those with room if there are any.
    fn choose_directory(&self) -> DirectoryId {
        let count = |directory| self.shards.each_hosted().filter(|hosted| hosted.directory() == directory).count();
        let order = |directory: &DirectoryId| (self.view.room.is_full(*directory), count(*directory));
        self.usable_directories().min_by_key(order).unwrap_or(DirectoryId(0))
    }

    pub(crate) fn handle_created(&mut self, owner: ReplicaKey, partition: Box<Partition>, now: Now) {
        let directory = match self.shards.hosted(owner.group) {
            Some(Hosted::Starting { owner: starting, directory }) if *starting == owner => *directory,
            Some(_) | None => return self.shards.of(owner.group).enqueue_removal(Some(partition), Vec::new()),
        };
        let position = partition.applied();
        let hard_state = HardState { term: position.term, vote: None, commit: position.index };
        // From here on the log knows the replica; the first thing written for it says where its log begins.
        let append = Append {
            group: owner.group,
            replica: owner.replica,
            reset: Some(position),
            entries: Vec::new(),
            hard_state: Some(hard_state),
        };
        self.shards.of(owner.group).log_writes.append(self.config.log_of(directory), owner, None, append);
        self.shards.of(owner.group).replicas.hosted.remove(&owner.group);
        let recovered = FromLog {
            directory,
            hard_state,
            start: position,
            entries: Vec::new(),
            kept: Kept::new(position, position, &[]),
            is_restart: false,
        };
        self.start_replica(owner, *partition, recovered, now);
        if self.should_lead_first(owner) {
            self.note_first_leader(owner.group, now);
        }
    }

    /// Starts the group over `partition` and what the log holds.
    pub(crate) fn start_replica(&mut self, owner: ReplicaKey, mut partition: Partition, from: FromLog, now: Now) {
        partition.set_session_bytes_max(self.config.session_bytes_max);
        let FromLog { directory, hard_state, start, entries, kept, is_restart } = from;
        let membership = partition.membership().cloned().map_or(Ok(Membership::default()), Membership::decode);
        let Ok(membership) = membership else {
            return self.note_lost(owner, directory, "its stored membership is malformed");
        };
        let group = Group::new(
            &self.config.replication,
            Start {
                group: owner.group,
                replica: owner.replica,
                membership,
                hard_state,
                log_start: start,
                entries,
                applied: partition.applied(),
                is_restart,
                may_campaign_now: self.should_lead_first(owner),
                seed: self.shards.first().random.next_u64(),
            },
            now.instant,
        );
        let group = match group {
            Ok(group) => group,
            Err(error) => return self.note_lost(owner, directory, &error.to_string()),
        };
        let mut group = group;
        group.set_reluctant(self.is_slow(self.config.node));
        #[cfg(feature = "mutations")]
        group.set_mutations(self.config.mutations);
        let shape = self.shape_of(owner.group);
        let applied = partition.applied();
        // What a replay could not flush is due as well.
        let bytes_since = partition.engine().unflushed_bytes();
        let flush = Flush { position: applied, bytes_since, ..Flush::default() };
        // A log that does not go with the storage begins anew.
        let is_same = group.first_index() == start.index + 1;
        let kept = if is_same { kept } else { Kept::new(applied, applied, &[]) };
        let replica = Replica {
            owner,
            directory,
            path: directory_of(self.config.path_of(directory), owner),
            shape,
            is_dropped: self.is_kept(owner.group),
            group,
            tail: TailIndex::default(),
            storage_users: 0,
            storage: Some(partition),
            reads_table_itself: false,
            takes: self.view.room.takes(directory),
            takes_here: self.view.room.takes(directory),
            is_outpaced: false,
            push_back: PushBack::default(),
            writes: BTreeMap::new(),
            heavy: HeavyWrites::default(),
            reads: BTreeMap::new(),
            is_dirty: false,
            flush,
            kept,
            pace: Pace::default(),
            sending: Sending::default(),
            offer: None,
            receiving: None,
            waits_for_room: None,
            may_have_received: Some(now.instant),
            waits_for_sender: None,
            install: None,
            given_up: None,
            led_since: None,
            started: now.instant,
            // A replica of a new group has nothing to catch up with.
            is_settled: !is_restart && start.index > 0,
            wake: None,
            may_wake: now.instant,
            first_deadline: None,
        };
        self.shards.of(owner.group).replicas.hosted.insert(owner.group, Hosted::Running(Box::new(replica)));
        self.shards.of(owner.group).enqueue_load(owner);
        self.shards.mark_dirty(owner.group);
    }

    /// A replica cannot go on. What it needs may be away, and come back.
    pub(crate) fn note_lost(&mut self, owner: ReplicaKey, directory: DirectoryId, reason: &str) {
        self.insert_lost(owner, directory, reason, false);
    }

    /// As [`Node::note_lost`], of one that was looked at and is of no use.
    pub(crate) fn note_damaged(&mut self, owner: ReplicaKey, directory: DirectoryId, reason: &str) {
        self.insert_lost(owner, directory, reason, true);
    }

    pub(crate) fn insert_lost(&mut self, owner: ReplicaKey, directory: DirectoryId, reason: &str, is_damaged: bool) {
        tracing::error!(group = %owner.group, replica = %owner.replica, %reason, "a replica is lost");
        self.shards.of(owner.group).replicas.hosted.insert(owner.group, Hosted::Lost { owner, directory, is_damaged });
    }

    /// Whether a replica of a new group is the one to campaign at once: the preferred leader, or, where that is on a slow
    /// node, the first that is not.
    fn should_lead_first(&self, owner: ReplicaKey) -> bool {
        let Some(partition) = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(owner.group)) else {
            return owner.replica.counter() == 1;
        };
        let preferred = partition.preferred_leader;
        let others = partition.voters().filter(|voter| *voter != preferred);
        let first = std::iter::once(preferred).chain(others).find(|voter| !self.is_slow(voter.node()));
        first.unwrap_or(preferred) == owner.replica
    }

    fn shape_of(&self, group: GroupId) -> Option<Shape> {
        if group == GroupId::META {
            return Some(Shape { kind: TableKind::Ordered, range: (Bytes::new(), None) });
        }
        let catalogue = self.view.catalogue.as_ref()?;
        let kind = match catalogue.tables.get(&group.table)?.kind {
            hedgerow_placement::TableKind::Hash => TableKind::Hash,
            hedgerow_placement::TableKind::Ordered => TableKind::Ordered,
        };
        Some(Shape { kind, range: catalogue.range(group)? })
    }

    /// A replica may be opened before its table is heard of: the catalogue that a node keeps is older than its replicas, perhaps.
    /// And tables are dropped and recalled.
    pub(crate) fn refresh_shapes(&mut self) {
        for group in self.shards.groups() {
            let shape = self.shape_of(group);
            let is_dropped = self.is_kept(group);
            if let Some(replica) = self.shards.running(group) {
                (replica.shape, replica.is_dropped) = (shape, is_dropped);
            }
        }
    }

    /// Whether the group's table is dropped and kept.
    pub(crate) fn is_kept(&self, group: GroupId) -> bool {
        self.view.catalogue.as_ref().is_some_and(|catalogue| catalogue.is_kept(group))
    }

    /// What the node hosts of `group` goes, for a successor. What is away is only set aside.
    fn make_way(&mut self, group: GroupId, now: Now) {
        match self.shards.hosted(group) {
            Some(Hosted::Lost { is_damaged: false, .. }) => self.set_aside(group),
            Some(_) => self.remove_hosted(group, now),
            None => {}
        }
    }

    /// A lost replica makes room for its successor. Its storage stays until that one votes: where others are lost before, its log may be
    /// put back.
    fn set_aside(&mut self, group: GroupId) {
        let hosted = self.end_hosting(group);
        self.former.extend(hosted.map(|hosted| (hosted.owner(), hosted.directory())));
    }

    /// Nobody needs what was set aside any more: its storage goes, and what the log there still holds of it.
    pub(crate) fn remove_former(&mut self, owner: ReplicaKey, directory: DirectoryId) {
        self.former.remove(&owner);
        let log = self.config.log_of(directory);
        let hosted = self.shards.hosted(owner.group);
        let is_free = hosted.is_none_or(|hosted| self.config.log_of(hosted.directory()) != log);
        if is_free && !self.failures.has_failed(directory) {
            // Elsewhere the log holds the successor's records instead of its own.
            self.shards.of(owner.group).forget_log(log, owner.group);
        }
        self.shards.of(owner.group).send_on_errand(directory, Errand::Clear(owner, None));
    }

    /// A checkpoint of `owner` has had no room for a while, and lacks so many bytes. Where the storage that it is to replace is all that is in
    /// its way, that would stay so for ever: the replica is given up like a damaged one, as soon as the others are a majority without it, and
    /// its successor learns in the room of both. It has nothing that they lack, since it takes nothing without the checkpoint.
    ///
    /// What was set aside for a successor goes first: its group has a leader, who sends, and so a majority without it.
    pub(crate) fn make_room(&mut self, owner: ReplicaKey, (lacking, own_size): (u64, u64), now: Now) {
        let Some(replica) = self.shards.running_as(owner) else { return };
        let directory = replica.directory;
        let is_in_the_way = |other: &ReplicaKey, at: DirectoryId| other.group == owner.group && at == directory;
        let former = self.former.iter().filter(|(other, at)| is_in_the_way(other, **at));
        let former: Vec<ReplicaKey> = former.map(|(other, _)| *other).collect();
        if !former.is_empty() {
            tracing::warn!(group = %owner.group, "what is left of a lost replica makes room for its successor's checkpoint");
            former.into_iter().for_each(|other| self.remove_former(other, directory));
        } else if lacking <= own_size {
            let reason = "its disk has no room for a newer checkpoint beside it";
            if self.shards.of(owner.group).give_up(owner.group, reason, now).is_some() {
                tracing::warn!(group = %owner.group, reason, "a replica is given up once the others are a majority without it");
            }
        }
    }

    /// The node hosts nothing of `group` any more, and its log knows nothing of it.
    fn end_hosting(&mut self, group: GroupId) -> Option<Hosted> {
        let hosted = self.shards.of(group).replicas.hosted.remove(&group)?;
        self.forget_creation(group);
        let log = self.config.log_of(hosted.directory());
        self.shards.of(group).forget_log(log, group);
        self.failures.note_success(group);
        Some(hosted)
    }

    fn remove_hosted(&mut self, group: GroupId, now: Now) {
        let Some(hosted) = self.end_hosting(group) else { return };
        let (owner, directory) = (hosted.owner(), hosted.directory());
        self.shards.of(group).serving().end_reads_of(owner, &Refusal::NotHosted, now);
        let mut storage = None;
        if let Hosted::Running(mut replica) = hosted {
            storage = replica.take_storage();
            // Its callers find another replica with the next map.
            self.shards.of(group).dismiss(*replica, &Refusal::NotHosted, now);
        }
        if self.view.catalogue.as_ref().is_none_or(|catalogue| catalogue.group(group).is_none()) {
            self.forget_leader(group);
        }
        tracing::debug!(%group, replica = %owner.replica, "removing a replica");
        self.shards.of(owner.group).send_on_errand(directory, Errand::Clear(owner, storage));
    }

    /// Nothing is to be left of a replica in any data directory. A job of one that is gone may have made something after its directories were put
    /// aside: nobody else would remove it before the next start, and ids of replicas are never used twice.
    pub(crate) fn clear_up(&mut self, owner: ReplicaKey) {
        for directory in self.usable_directories().collect::<Vec<_>>() {
            self.shards.of(owner.group).send_on_errand(directory, Errand::Clear(owner, None));
        }
    }

    /// The data directories that still work, with their logs.
    pub(crate) fn usable_directories(&self) -> impl Iterator<Item = DirectoryId> {
        self.config.directories().filter(|directory| !self.failures.has_failed(*directory))
    }

    /// Steps towards the memberships and leaders that the catalogue wants, for the groups that this node leads.
    pub(crate) fn tick_hosting(&mut self, now: Now) {
        if self.has_unreconciled {
            self.reconcile_hosting(now);
        }
        for hosted in self.shards.iter_mut().flat_map(|shard| shard.replicas.hosted.values_mut()) {
            let Hosted::Running(replica) = hosted else { continue };
            if replica.group.role() == Role::Leader {
                replica.pace.note(replica.group.last_index(), now.instant);
            } else {
                replica.pace = Pace::default();
            }
        }
        let Some(catalogue) = &self.view.catalogue else { return };
        let mut changes = Vec::new();
        let mut transfers = Vec::new();
        for (group, hosted) in self.shards.all_hosted() {
            let Hosted::Running(replica) = hosted else { continue };
            let Some(partition) = catalogue.group(*group) else { continue };
            if replica.group.role() != Role::Leader {
                continue;
            }
            let membership = replica.group.membership();
            let has_caught_up = |id| has_caught_up(replica, id);
            if let Some(change) = next_change(membership, partition, catalogue.next_replica, has_caught_up) {
                changes.push((*group, change));
            } else if let Some(to) = self.better_leader(replica, partition.preferred_leader, now) {
                transfers.push((*group, to));
            }
        }
        for (group, change) in changes {
            let Some(replica) = self.shards.running(group) else { continue };
            match replica.group.propose_membership(&change, now.instant) {
                Ok(_) => self.shards.mark_dirty(group),
                Err(error) => tracing::debug!(%group, %error, "a membership change has to wait"),
            }
        }
        for (group, to) in transfers {
            let Some(replica) = self.shards.running(group) else { continue };
            replica.led_since = Some(now.instant);
            match replica.group.transfer_leader(to, now.instant) {
                Ok(()) => self.shards.mark_dirty(group),
                Err(error) => tracing::debug!(%group, %error, "a leader cannot be moved"),
            }
        }
    }

    /// Gives every group that this node leads to the follower that has most of its log, before the node stops. From now on
    /// replicas that do not lead leave reads to other nodes.
    pub fn hand_over(&mut self, now: Now) {
        let now = self.view.agreed(now);
        self.change_view(|view| view.is_draining = true);
        self.engines.hurry();
        let mut transfers = Vec::new();
        for (group, hosted) in self.shards.all_hosted() {
            let Hosted::Running(replica) = hosted else { continue };
            if replica.group.role() != Role::Leader {
                continue;
            }
            transfers.extend(best_successor(self, replica).map(|best| (*group, best)));
        }
        for (group, to) in transfers {
            let Some(replica) = self.shards.running(group) else { continue };
            if let Err(error) = replica.group.transfer_leader(to, now.instant) {
                tracing::debug!(%group, %error, "a leader cannot be moved");
            }
            self.shards.mark_dirty(group);
        }
    }

    /// Whether no group is led from here.
    pub fn leads_nothing(&self) -> bool {
        let leads = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => replica.group.role() == Role::Leader,
            Hosted::Starting { .. } | Hosted::Lost { .. } => false,
        };
        !self.shards.each_hosted().any(leads)
    }

    /// The preferred leader, if it could lead at once, is not slow, has room, and this node has led in its place for a while. Not
    /// while a transfer gets on, which ends with its sender's leadership; one whose receiver is silent keeps nobody waiting.
    fn better_leader(&self, replica: &Replica, preferred: ReplicaId, now: Now) -> Option<ReplicaId> {
        let since = replica.led_since?;
        let is_late = now.instant.since(since) >= PREFERRED_LEADER_AFTER;
        let is_time = preferred != replica.id() && is_late && !replica.sending.gets_on();
        (is_time && self.may_lead(replica.owner.group, preferred, now) && is_ready_to_lead(replica, preferred))
            .then_some(preferred)
    }
}

/// Of a replica that leads: the follower that has most of its log, if possible one with room on a node that is not slow.
pub(crate) fn best_successor(node: &Node, replica: &Replica) -> Option<ReplicaId> {
    let (progress, group) = (replica.group.progress(), replica.owner.group);
    let others = progress.iter().filter(|peer| peer.replica != replica.id() && peer.is_active && !peer.is_learner);
    let is_full = |replica: ReplicaId| node.view.room.is_full_elsewhere(group, replica);
    let fitness =
        |replica: ReplicaId| (!node.is_damaged(group, replica), !is_full(replica), !node.is_slow(replica.node()));
    others.max_by_key(|peer| (fitness(peer.replica), peer.matched)).map(|peer| peer.replica)
}

/// What is done for the catalogue's sake.
enum Step {
    Remove(GroupId),
    RemoveFormer(ReplicaKey, DirectoryId),
    /// What it begins with, if its group does. It takes the place of what is there.
    Create(ReplicaKey, Option<Membership>),
    Lose(ReplicaKey),
}

/// What the log holds of a replica.
pub(crate) struct FromLog {
    pub(crate) directory: DirectoryId,
    pub(crate) hard_state: HardState,
    pub(crate) start: LogPosition,
    pub(crate) entries: Vec<Entry>,
    /// What is known of its bytes.
    pub(crate) kept: Kept,
    pub(crate) is_restart: bool,
}

/// The metadata group's first replicas, the same on every node that is told the same founders.
pub(crate) fn founding_replicas(founders: &[crate::peer::Founder]) -> Vec<ReplicaId> {
    (1..).zip(founders).map(|(counter, founder)| ReplicaId::new(counter, NodeId(founder.node as u16))).collect()
}

/// Whether `replica` belonged to a partition that goes on without it. False for one that this catalogue has never heard of,
/// which a newer one may list.
pub(crate) fn was_removed(catalogue: &Catalogue, group: GroupId, replica: ReplicaId) -> bool {
    replica.counter() < catalogue.next_replica
        && catalogue.group(group).is_some_and(|partition| partition.replica(replica).is_none())
}

/// The next step of a group's membership towards its partition in the catalogue: first a joining replica learns, then it
/// votes in the place of the lost ones, in one joint change.
fn next_change(
    membership: &Membership,
    partition: &hedgerow_placement::Partition,
    next_replica: u64,
    has_caught_up: impl Fn(ReplicaId) -> bool,
) -> Option<MembershipChange> {
    let is_member = |id: &ReplicaId| membership.voters.contains(id) || membership.learners.contains(id);
    let is_known = membership.voters.iter().all(|id| id.counter() < next_replica);
    for wanted in &partition.replicas {
        let id = wanted.id;
        let is_to_vote = match wanted.role {
            // It was removed for one that was to replace it and then not listed any more.
            ReplicaRole::Voter => is_known && partition.replacement_of(id).is_none(),
            ReplicaRole::Joining { .. } => true,
            ReplicaRole::Learner => false,
        };
        if !is_member(&id) && (is_to_vote || wanted.role == ReplicaRole::Learner) {
            return Some(MembershipChange { add_learners: vec![id], ..MembershipChange::default() });
        }
        if is_to_vote && membership.learners.contains(&id) && has_caught_up(id) {
            // Whatever it replaces goes with the same change: one that was lost and stayed would be a voter too many.
            let remove = partition.replaced_by(id).into_iter().filter(is_member).collect();
            return Some(MembershipChange { promote: vec![id], remove, ..MembershipChange::default() });
        }
    }
    // A member that this catalogue is too old to know may be listed in a newer one.
    let is_unlisted = |id: &&ReplicaId| id.counter() < next_replica && partition.replica(**id).is_none();
    let unlisted = membership.learners.iter().chain(&membership.voters).find(is_unlisted);
    unlisted.map(|id| MembershipChange { remove: vec![*id], ..MembershipChange::default() })
}

/// Whether the leader's `replica` knows that `id` has about all that it has itself.
fn has_caught_up(replica: &Replica, id: ReplicaId) -> bool {
    replica.group.progress().iter().any(|peer| {
        // A member that was just added counts as active before it has said anything.
        peer.replica == id
            && peer.is_active
            && peer.matched >= FIRST_POSITION.index
            && !peer.is_snapshotting
            && replica.pace.is_near(peer.matched, replica.group.last_index())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::Incarnation;

    const ONE: ReplicaId = ReplicaId::new(1, NodeId(1));
    const TWO: ReplicaId = ReplicaId::new(2, NodeId(2));
    const THREE: ReplicaId = ReplicaId::new(3, NodeId(3));
    /// Was to replace the third.
    const FOUR: ReplicaId = ReplicaId::new(4, NodeId(3));
    const NEXT: u64 = 5;

    fn partition(listed: &[(ReplicaId, ReplicaRole)]) -> hedgerow_placement::Partition {
        let replica = |(id, role): &(ReplicaId, ReplicaRole)| hedgerow_placement::Replica {
            id: *id,
            incarnation: Incarnation(1),
            role: *role,
        };
        let replicas = listed.iter().map(replica).collect();
        hedgerow_placement::Partition { start: Vec::new(), replicas, preferred_leader: ONE, version: 1 }
    }

    /// The steps by which a group whose voters these are becomes what is listed, and its voters then.
    fn steps(voters: &[ReplicaId], listed: &[(ReplicaId, ReplicaRole)], next: u64) -> (usize, Vec<ReplicaId>) {
        let partition = partition(listed);
        let mut membership = Membership { voters: voters.to_vec(), ..Membership::default() };
        for step in 0.. {
            let Some(change) = next_change(&membership, &partition, next, |_| true) else {
                return (step, membership.voters);
            };
            membership.learners.extend(change.add_learners);
            membership.learners.retain(|id| !change.promote.contains(id) && !change.remove.contains(id));
            membership.voters.extend(change.promote);
            membership.voters.retain(|id| !change.remove.contains(id));
            membership.voters.sort_unstable();
        }
        unreachable!("the steps end")
    }

    #[test]
    fn d3g_a_listed_voter_that_was_removed_votes_again() {
        let voters = [ONE, TWO, THREE].map(|id| (id, ReplicaRole::Voter));
        assert_eq!(steps(&[ONE, TWO, THREE], &voters, NEXT), (0, vec![ONE, TWO, THREE]));
        assert_eq!(steps(&[ONE, TWO], &voters, NEXT), (2, vec![ONE, TWO, THREE]));
        assert_eq!(steps(&[ONE, TWO, FOUR], &voters, NEXT), (3, vec![ONE, TWO, THREE]));
        // A newer catalogue may list the fourth in its place.
        assert_eq!(steps(&[ONE, TWO, FOUR], &voters, 4), (0, vec![ONE, TWO, FOUR]));
    }

    #[test]
    fn a_replacement_votes_in_the_place_of_what_it_replaces() {
        let mut listed = [ONE, TWO, THREE].map(|id| (id, ReplicaRole::Voter)).to_vec();
        listed.push((FOUR, ReplicaRole::Joining { replaces: Some(THREE) }));
        assert_eq!(steps(&[ONE, TWO, THREE], &listed, NEXT), (2, vec![ONE, TWO, FOUR]));
        assert_eq!(steps(&[ONE, TWO, FOUR], &listed, NEXT), (0, vec![ONE, TWO, FOUR]));
    }
}
