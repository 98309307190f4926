//! What nodes tell each other about what they host, and what follows from it: who is alive and who leads what.

use crate::config::REPORT_INTERVAL;
use crate::ids::DirectoryId;
use crate::node::Node;
use crate::peer::{DiskReport, Frame, PeerReport, ReplicaReport, ReplicaState, Report, TransferReport};
use crate::replica::{Hosted, Replica};
use crate::retain::KeptLog;
use crate::shard::Shard;
use crate::standing::{Standing, Told};
use hedgerow_env::Now;
use hedgerow_replication::Role;
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId, Term};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the nodes tell each other.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// What they have told. Whoever looks through all of it may hold on to it.
    told: Arc<Told>,
    /// Groups whose leader changed here, or whose replica has begun to serve, and that the others should hear of at once.
    pub(crate) urgent: BTreeSet<GroupId>,
    /// When the last complete report left; `None` = one is due.
    pub(crate) last_sent: Option<Instant>,
}

impl Reports {
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    fn told_mut(&mut self) -> &mut Told {
        Arc::make_mut(&mut self.told)
    }
}

impl Node {
    /// How all stands now, where a catalogue is known.
    pub(crate) fn standing(&self, now: Now) -> Option<Standing> {
        let catalogue = Arc::clone(self.view.catalogue.as_ref()?);
        Some(Standing { catalogue, told: Arc::clone(&self.reports.told), own: self.config.node, now: now.instant })
    }

    pub(crate) fn tick_reports(&mut self, now: Now) {
        let is_due = self.reports.last_sent.is_none_or(|last| now.instant.since(last) >= REPORT_INTERVAL);
        if self.identity.cluster == 0 || (!is_due && self.reports.urgent.is_empty()) {
            return;
        }
        let urgent = std::mem::take(&mut self.reports.urgent);
        let wanted = |group: &GroupId| is_due || urgent.contains(group);
        let mut replicas: Vec<ReplicaReport> = self
            .shards
            .all_hosted()
            .filter(|(group, _)| wanted(group))
            .map(|(_, hosted)| self.report_of(hosted, now))
            .collect();
        replicas.sort_by_key(|replica| replica.group);
        let kept: Vec<Vec<KeptLog>> = self.shards.iter().map(Shard::kept_logs).collect();
        let by_directory = |of: &dyn Fn(&Shard, DirectoryId, &[KeptLog]) -> u64| -> Vec<u64> {
            let sum = |directory| self.shards.iter().zip(&kept).map(|(shard, kept)| of(shard, directory, kept)).sum();
            self.config.directories().map(sum).collect()
        };
        let report = Report {
            incarnation: self.identity.incarnation().0,
            address: self.config.address.clone(),
            catalogue_version: self.catalogue_version(),
            next_replica: self.view.catalogue.as_ref().map_or(0, |catalogue| catalogue.next_replica),
            replicas,
            is_complete: is_due,
            labels: self.config.labels.clone(),
            replicas_max: self.config.replicas_max().max(1),
            disks: self.disk_reports(),
            log_bytes: by_directory(&|_, directory, kept| kept[directory.0].bytes),
            log_bytes_max: self.config.log_retained_bytes,
            log_bytes_allowed: by_directory(&|shard, directory, kept| shard.log_bytes_allowed(directory, kept)),
            missing_directories: self
                .missing
                .iter()
                .map(|(directory, reason)| format!("{}: {reason}", directory.display()))
                .collect(),
            is_behind: self.view.is_storage_behind,
            process: self.identity.start(),
            log_layout: self.config.log_layout.name().to_owned(),
            rights: self.config.rights.name().to_owned(),
            certificates_expire_at: self.config.tls.as_ref().map_or(0, |tls| tls.first_expires_at().max(1) as u64),
        };
        if is_due {
            self.reports.last_sent = Some(now.instant);
        }
        self.shards.first().send_to_all(&Frame::Report(report.clone()));
        self.handle_report(self.config.node, report, now);
    }

    pub(crate) fn handle_report(&mut self, from: NodeId, mut report: Report, now: Now) {
        // Whoever is not configured can say anything, and a term that was believed stays.
        if !self.config.peers.contains_key(&from) {
            return;
        }
        // Nobody speaks of another node's replicas.
        report.replicas.retain(|replica| ReplicaId(replica.replica).node() == from);
        for replica in &report.replicas {
            let leader = (replica.leader != 0).then_some(ReplicaId(replica.leader));
            if self.may_tell_leader(replica) {
                self.note_leader(GroupId::from_u64(replica.group), replica.term, leader);
            }
            self.note_own_word(replica);
            self.shards.of(GroupId::from_u64(replica.group)).note_log_needed(replica, now);
        }
        if from != self.config.node {
            self.note_room_elsewhere(from, &report);
        }
        if !report.is_complete {
            self.handle_new_leaders(now);
        }
        self.offer_catalogue(from, report.catalogue_version, now);
        self.repair_from_report(from, &report, now);
        let (address, is_complete) = (&report.address, report.is_complete);
        if !self.view.addresses.is_as_reported(from, address, is_complete)
            && self.change_addresses(|addresses| addresses.note_reported(from, address, is_complete))
        {
            self.shards.first().outbox.moved.insert(from, report.address.clone());
        }
        if report.is_complete || self.reports.told.nodes.contains_key(&from) {
            self.note_heard_of(from);
        }
        if report.is_complete {
            let told = self.reports.told_mut();
            told.outdated.remove(&from);
            told.nodes.insert(from, (Arc::new(report), now.instant));
        } else if let Some((known, heard)) = self.reports.told_mut().nodes.get_mut(&from) {
            *heard = now.instant;
            let known = Arc::make_mut(known);
            for news in report.replicas {
                match known.place_of(news.group) {
                    Ok(place) => known.replicas[place] = news,
                    Err(place) => known.replicas.insert(place, news),
                }
            }
        }
        self.reconsider_given_up(now);
    }

    /// Whether a replica's node can know who leads its group: it is one of the group's as far as the catalogue is known here.
    fn may_tell_leader(&self, replica: &ReplicaReport) -> bool {
        let group = self.view.catalogue.as_ref().and_then(|it| it.group(GroupId::from_u64(replica.group)));
        group.is_none_or(|group| group.replica(ReplicaId(replica.replica)).is_some())
    }

    /// As [`report_of`], with whether it is damaged or its disk takes no more, and what its compactions would have refused.
    fn report_of(&self, hosted: &Hosted, now: Now) -> ReplicaReport {
        let (parts_refused, is_damaged) = match hosted {
            Hosted::Running(replica) => (self.view.room.parts_refused(replica), replica.given_up.is_some()),
            Hosted::Starting { .. } | Hosted::Lost { .. } => (0, false),
        };
        let directory = hosted.directory();
        let (is_full, is_short) = (self.view.room.is_full(directory), self.view.room.is_short(directory));
        ReplicaReport { is_full, is_short, is_damaged, parts_refused, ..report_of(hosted, now) }
    }

    fn disk_reports(&self) -> Vec<DiskReport> {
        let of = |directory| {
            let space = self.view.room.space(directory);
            DiskReport {
                free: space.map(|space| space.free),
                total: space.map_or(0, |space| space.total),
                is_full: self.view.room.is_full(directory),
                is_stalled: self.view.room.is_stalled(directory),
            }
        };
        self.config.directories().map(of).collect()
    }

    /// Remembers who leads `group`, unless a newer term is known.
    pub(crate) fn note_leader(&mut self, group: GroupId, term: Term, leader: Option<ReplicaId>) {
        let Some(leader) = leader else { return };
        let known = self.leader_of(group);
        // Most words are no news.
        if known.is_none_or(|known| term >= known.0 && known != (term, leader)) {
            let told = self.reports.told_mut();
            told.leaders.insert(group, (term, leader));
            told.stepped_down.remove(&group);
        }
    }

    /// Notes what a leader says of itself. What it said before it was known to lead does not count: it was a candidate then.
    fn note_own_word(&mut self, report: &ReplicaReport) {
        let group = GroupId::from_u64(report.group);
        let Some((term, _)) = self.leader_of(group).filter(|(_, leader)| leader.0 == report.replica) else { return };
        let leads = match ReplicaState::from_code(report.state) {
            Some(ReplicaState::Leader) => true,
            // A replica that is not open leads in no term.
            Some(ReplicaState::Starting | ReplicaState::Lost) => false,
            Some(ReplicaState::Follower | ReplicaState::Learner) if report.term >= term => false,
            Some(ReplicaState::Follower | ReplicaState::Learner) | None => return,
        };
        if leads == self.has_stepped_down(group) {
            let stepped_down = &mut self.reports.told_mut().stepped_down;
            _ = if leads { stepped_down.remove(&group) } else { stepped_down.insert(group) };
        }
    }

    /// Whether the leader that is known has said since that it does not lead.
    pub(crate) fn has_stepped_down(&self, group: GroupId) -> bool {
        self.reports.told.stepped_down.contains(&group)
    }

    /// The leader of `group` and its term, as far as this node has heard.
    pub(crate) fn leader_of(&self, group: GroupId) -> Option<(Term, ReplicaId)> {
        self.reports.told.leader_of(group)
    }

    pub(crate) fn forget_leader(&mut self, group: GroupId) {
        let told = self.reports.told_mut();
        told.leaders.remove(&group);
        told.stepped_down.remove(&group);
    }

    /// As [`Node::forget_leader`], of all groups whose leader `is_over`.
    pub(crate) fn forget_leaders(&mut self, is_over: impl Fn(GroupId, ReplicaId) -> bool) {
        let over = |(group, (_, leader)): (&GroupId, &(Term, ReplicaId))| is_over(*group, *leader).then_some(*group);
        let over: Vec<GroupId> = self.reports.told.leaders.iter().filter_map(over).collect();
        over.into_iter().for_each(|group| self.forget_leader(group));
    }

    pub(crate) fn is_alive(&self, node: NodeId, now: Now) -> bool {
        node == self.config.node || self.reports.told.is_heard(node, now.instant)
    }

    /// A node has just been heard of.
    fn note_heard_of(&mut self, node: NodeId) {
        if !self.view.alive.contains(&node) {
            self.change_view(|view| view.alive.insert(node));
        }
    }

    /// As [`Node::is_alive`] at the last tick, for where no time is at hand.
    pub(crate) fn was_alive(&self, node: NodeId) -> bool {
        self.view.alive.contains(&node)
    }

    /// A connection of `node` to this one has begun or ended: what it has reported may not be true of it any more.
    pub(crate) fn note_report_outdated(&mut self, node: NodeId) {
        self.reports.told_mut().outdated.insert(node);
        self.metadata.offers.forget(node);
    }

    /// What the last report of `node` says of a replica.
    pub(crate) fn replica_report(&self, group: GroupId, replica: u64, node: NodeId) -> Option<&ReplicaReport> {
        self.reports.told.replica_report(group, replica, node)
    }

    /// The nodes that have been heard of lately, this one included.
    pub(crate) fn alive_nodes(&self, now: Now) -> BTreeSet<NodeId> {
        self.config.peers.keys().copied().filter(|node| self.is_alive(*node, now)).collect()
    }
}

fn report_of(hosted: &Hosted, now: Now) -> ReplicaReport {
    let owner = hosted.owner();
    let plain = |state: ReplicaState| ReplicaReport {
        group: owner.group.to_u64(),
        replica: owner.replica.0,
        state: state as u32,
        ..ReplicaReport::default()
    };
    match hosted {
        Hosted::Starting { .. } => plain(ReplicaState::Starting),
        Hosted::Lost { .. } => plain(ReplicaState::Lost),
        Hosted::Running(replica) => {
            let state = match replica.group.role() {
                _ if replica.storage.is_none() => ReplicaState::Starting,
                Role::Leader => ReplicaState::Leader,
                Role::Follower | Role::Candidate => ReplicaState::Follower,
                Role::Learner => ReplicaState::Learner,
            };
            let is_leader = state == ReplicaState::Leader;
            let (log_needed, log_held) = if is_leader { replica.log_needed(now.instant) } else { (None, None) };
            let staleness = if is_leader { None } else { replica.group.lag(now.instant).staleness };
            ReplicaReport {
                term: replica.group.term(),
                commit: replica.group.commit(),
                applied: replica.storage.as_ref().map_or(0, |storage| storage.applied().index),
                leader: replica.group.leader().map_or(0, |leader| leader.0),
                peers: if is_leader { peers_of(replica) } else { Vec::new() },
                voters: if is_leader { voters_of(replica) } else { Vec::new() },
                staleness_ms: staleness.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
                is_settled: replica.is_settled,
                lacking: replica.waits_for_room.map_or(0, |wait| wait.lacking),
                log_needed,
                log_held,
                ..plain(state)
            }
        }
    }
}

fn peers_of(replica: &Replica) -> Vec<PeerReport> {
    let progress = replica.group.progress();
    progress
        .iter()
        .map(|peer| PeerReport {
            replica: peer.replica.0,
            matched: peer.matched,
            is_active: peer.is_active,
            needs_checkpoint: peer.needs_snapshot,
            transfer: replica.sending.progress_of(peer.replica).map(|progress| TransferReport {
                bytes_done: progress.done,
                bytes_total: progress.total,
                bytes_per_second: progress.rate,
            }),
        })
        .collect()
}

fn voters_of(replica: &Replica) -> Vec<u64> {
    let membership = replica.group.membership();
    let mut voters: Vec<u64> =
        membership.voters.iter().chain(&membership.voters_outgoing).map(|replica| replica.0).collect();
    voters.sort_unstable();
    voters.dedup();
    voters
}
