//! The node: takes every event, keeps what it hosts, and fills the outbox. It does no I/O and reads no clock.
//!
//! Whoever owns a node calls `handle_*` with what happened, [`Node::drive`] after each batch of events, and then empties
//! [`Node::outbox`]. The operating system's host (`os.rs`) and the simulation do the same, so that both run this code.
//!
//! What a caller passes as `now` is what its clocks show. Inside, wall time is what a majority of the nodes agrees on, 0 if
//! that is not known: each entry point takes it from `clock.rs` first.

use crate::admin::AdminCalls;
use crate::adopt::Adoption;
use crate::config::Config;
use crate::creations::Creations;
use crate::failure::Failures;
use crate::founding::Founding;
use crate::identity::{Identity, Missing};
use crate::ids::{DirectoryId, LogId, ReplicaKey};
use crate::inbox::Handed;
use crate::job::JobDone;
use crate::lives::Lives;
use crate::looks::Looks;
use crate::metadata::Metadata;
use crate::outbox::{ConnectionId, Outbox};
use crate::peer::Frame;
use crate::read_index_frame::ReadIndexRequests;
use crate::replica::Hosted;
use crate::report::Reports;
use crate::requests::forward::taken_from;
use crate::requests::front::{Front, Taken};
use crate::shard::Shard;
use crate::shards::{OneByOne, Shards, Turns};
use crate::slow::Speeds;
use crate::strangers::Strangers;
use crate::tail_frame::TailRequests;
use crate::view::View;
use bytes::Bytes;
use hedgerow_env::{DirLock, Disk, Now};
use hedgerow_storage::Engines;
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId};
use hedgerow_wal::Round;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One node of the cluster.
#[derive(Debug)]
pub struct Node {
    /// What takes in clients' frames.
    pub(crate) front: Front,
    /// What serves.
    pub(crate) shards: Shards,
    /// What they go by. Changed by [`Node::change_view`] alone.
    pub(crate) view: Arc<View>,
    pub(crate) config: Arc<Config>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) engines: Arc<dyn Engines>,
    pub(crate) identity: Identity,
    pub(crate) founding: Founding,
    pub(crate) metadata: Metadata,
    /// Catalogues that are not durable here yet.
    pub(crate) adoption: Adoption,
    pub(crate) reports: Reports,
    /// How fast the nodes are.
    pub(crate) speeds: Speeds,
    pub(crate) admin: AdminCalls,
    pub(crate) failures: Failures,
    pub(crate) looks: Looks,
    /// Data directories that were configured and are out of use, and why.
    pub(crate) missing: Vec<Missing>,
    /// They keep other processes out of the data directories.
    pub(crate) locks: Arc<Vec<DirLock>>,
    pub(crate) strangers: Strangers,
    pub(crate) lives: Lives,
    pub(crate) creations: Creations,
    /// A replica that the catalogue wants replaced is still here. See [`Node::reconsider_given_up`].
    pub(crate) keeps_given_up: bool,
    /// Not all that the catalogue wants here is made, and not all that it does not want is removed.
    pub(crate) has_unreconciled: bool,
    /// Lost replicas whose successors are made and do not vote yet, and where their storage is.
    pub(crate) former: BTreeMap<ReplicaKey, DirectoryId>,
    /// Logs that something was written to since the start.
    pub(crate) begun: BTreeSet<LogId>,
    pub(crate) last_tick: Instant,
}

impl Node {
    /// What is to be done. Empty it after each [`Node::drive`].
    pub fn outbox(&mut self) -> &mut Outbox {
        self.shards.outbox()
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.config.node
    }

    /// The cluster that the node belongs to; 0 = none yet.
    pub fn cluster(&self) -> u64 {
        self.identity.cluster
    }

    /// Time has passed. Called every 50 ms or more often; irregular calls are harmless.
    pub(crate) fn handle_tick(&mut self, now: Now) {
        let now = self.judge_clock(now);
        let elapsed = now.instant.since(self.last_tick);
        self.last_tick = now.instant;
        let alive = self.alive_nodes(now);
        if self.view.alive != alive {
            self.change_view(|view| view.alive = alive);
        }
        self.tick_founding(now);
        for shard in self.shards.iter_mut() {
            // Time has not passed before what came before.
            shard.take_inbox();
            shard.replicas.begin_tick();
            shard.tick_groups(now);
        }
        self.tick_creations(now);
        self.tick_failures(now);
        self.measure_replicas();
        self.tick_room(now);
        for shard in self.shards.iter_mut() {
            shard.tick_storage();
            shard.tick_debts(now);
            shard.tick_retained(now);
            shard.tick_sending(elapsed, now);
        }
        self.take_notices(now);
        self.tick_reports(now);
        self.tick_metadata(now);
        self.tick_slow(now);
        self.tick_hosting(now);
        self.tick_admin(now);
        self.note_leaderless();
        self.shards.iter_mut().for_each(|shard| shard.requests.tick(now.instant));
        self.front.tick(&mut self.shards.first().serving(), now.instant);
    }

    /// A whole frame came from a client. `now` must have been read after it came.
    pub(crate) fn handle_client(&mut self, connection: ConnectionId, frame: Bytes, now: Now) {
        let now = self.view.agreed(now);
        match self.front.take(&mut self.shards.first().serving(), connection, frame, now) {
            Some(Taken::Data(caller, header, body)) => {
                self.shards.of(caller.group()).hand(Handed::Data(caller, header, body), now);
            }
            // Which group it is about, it does not say.
            Some(Taken::Cancel(cancel)) => {
                self.shards.hand_to_all(|| Handed::Cancel(connection, cancel.clone()), now);
            }
            Some(Taken::Admin(caller, body)) => self.serve_admin(caller, body, now),
            None => {}
        }
    }

    /// A frame came from another node.
    pub(crate) fn handle_peer(&mut self, from: NodeId, frame: Frame, now: Now) {
        let now = self.view.agreed(now);
        match frame {
            Frame::Replication { group, from, to, message } => {
                let owner = ReplicaKey { group, replica: to };
                self.shards.of(group).hand(Handed::Replication(owner, from, message), now);
            }
            Frame::Probe(probe) => self.handle_probe(from, probe, now),
            Frame::Report(report) => self.handle_report(from, report, now),
            Frame::Catalogue(push) => self.handle_catalogue(push),
            Frame::AdminRequest(request) => self.handle_admin_request(from, request, now),
            Frame::AdminReply(reply) => self.handle_admin_reply(reply),
            Frame::SnapshotBegin(begin) => {
                let owner = ReplicaKey { group: GroupId::from_u64(begin.group), replica: ReplicaId(begin.to) };
                let is_needed = self.is_needed_to_write(owner);
                self.shards.of(owner.group).hand(Handed::SnapshotBegin(begin, is_needed), now);
            }
            Frame::SnapshotChunk(chunk) => {
                self.shards.of(GroupId::from_u64(chunk.group)).hand(Handed::SnapshotChunk(chunk), now);
            }
            Frame::SnapshotProgress(progress) => {
                self.shards.of(GroupId::from_u64(progress.group)).hand(Handed::SnapshotProgress(progress), now);
            }
            Frame::ReadIndexRequests(ReadIndexRequests { id, requests }) => {
                for (shard, requests) in self.shards.divide(requests, |one| one.group) {
                    shard.hand(Handed::ReadIndexRequests(from, ReadIndexRequests { id, requests }), now);
                }
            }
            Frame::ReadIndexReplies(replies) => {
                for (shard, replies) in self.shards.divide(replies, |one| one.group) {
                    shard.hand(Handed::ReadIndexReplies(from, replies), now);
                }
            }
            Frame::TailRequests(TailRequests { id, requests }) => {
                for (shard, requests) in self.shards.divide(requests, |one| GroupId::from_u64(one.group)) {
                    shard.hand(Handed::TailRequests(from, TailRequests { id, requests }), now);
                }
            }
            Frame::TailReplies(replies) => {
                self.shards.that_gave(replies.id).hand(Handed::TailReplies(from, replies), now);
            }
            Frame::Forward(forward) => {
                if let Some((caller, header, body)) = taken_from(from, forward, now) {
                    self.shards.of(caller.group()).hand(Handed::Data(caller, header, body), now);
                }
            }
            Frame::Forwarded(forwarded) => {
                self.shards.that_gave(forwarded.id).hand(Handed::Forwarded(from, forwarded), now);
            }
            // Which group it is about, it does not say.
            Frame::Began(began) => self.shards.hand_to_all(|| Handed::Began(from, began), now),
            Frame::Pulse(pulse) => self.handle_pulse(from, &pulse, now),
            // Comes only from whoever was dialled, and not here: anybody can dial this node.
            Frame::Refused(_) => {}
        }
    }

    /// Log writes are durable, or the log failed.
    pub(crate) fn handle_round(&mut self, log: LogId, round: Round, now: Now) {
        let now = self.view.agreed(now);
        match round {
            Round::Done { tickets, synced } => {
                self.note_synced(log, synced);
                if self.begun.insert(log) {
                    // Before anything that it makes durable is acknowledged.
                    self.note_log_begun(log);
                }
                for ticket in tickets {
                    self.speeds.note_durable(ticket, now.instant);
                    let Some(done) = self.shards.that_gave(ticket).log_writes.end(log, ticket) else { continue };
                    // What is in the log comes to the storage of its replicas, wherever that is.
                    for directory in self.config.directories_of(log) {
                        self.looks.note_written(directory, done.bytes);
                    }
                    for (owner, ticket) in done.waiting {
                        if let Some(replica) = self.shards.running_as(owner) {
                            replica.group.handle_persisted(ticket, now.instant);
                            self.shards.mark_dirty(owner.group);
                        }
                    }
                }
                self.handle_log_stalled(log, false);
            }
            Round::Stalled { reason } => {
                tracing::warn!(error = crate::drive::chain(&reason), "nothing is written to a log for the moment");
                self.handle_log_stalled(log, true);
            }
            Round::Room { left } => self.handle_log_room(log, left),
            Round::Failed { reason } => {
                self.fail_directory(self.config.home_of(log), &crate::drive::chain(&reason), now);
            }
        }
    }

    /// Remembers durably, once, that a data directory has a log: without it the node holds less than it has promised. One directory that
    /// says so is enough.
    fn note_log_begun(&mut self, log: LogId) {
        if let Some(id) = self.log_id(log)
            && self.identity.note_log_begun(id)
            && let Err(error) = self.identity.save_to_each(&*self.disk, &self.config.data)
        {
            tracing::warn!(
                error = crate::drive::chain(&error),
                "the beginning of a log could not be noted everywhere; the next start does it"
            );
        }
    }

    /// A job has ended.
    pub(crate) fn handle_job(&mut self, done: JobDone, now: Now) {
        let now = self.view.agreed(now);
        self.finish_job(done, now);
    }

    /// Serves reads whose turn it is and runs the groups until nothing is left to do. To be called after each batch of
    /// events, with a time read after them, and again while [`Node::has_queued`].
    pub fn drive(&mut self, now: Now) {
        self.drive_by(&OneByOne, now);
    }

    /// As [`Node::drive`], where `turns` are taken at the same time perhaps.
    pub(crate) fn drive_by(&mut self, turns: &impl Turns, now: Now) {
        let now = self.view.agreed(now);
        turns.take(&mut self.shards, |shard| shard.take_turn(now));
        self.take_notices(now);
        while self.shards.has_dirty() || self.report_first_leaders(now) {
            turns.take(&mut self.shards, |shard| shard.drive_all(now));
            self.take_notices(now);
        }
        self.shards.iter_mut().for_each(|shard| shard.lose_damaged(now));
        self.take_notices(now);
        self.shards.iter_mut().for_each(|shard| shard.send_gathered(now));
        if let Some((log, submission)) = self.shards.outbox().submissions.first() {
            self.speeds.note_log_write(*log, submission.ticket, now.instant);
        }
        self.shards.iter_mut().for_each(|shard| shard.requests.end_turn());
    }

    /// What all replicas take of the disks is noted, for all that is decided by it until the next tick.
    fn measure_replicas(&mut self) {
        let sizes = self.shards.measure();
        if !self.view.room.has_sizes(&sizes) {
            self.change_room(|room| room.note_sizes(sizes));
        }
    }

    /// When [`crate::Event::Wake`] is due, by the clock that `now` is read from; `None` if nothing is waited for.
    /// Cheap. May change whenever the node is driven.
    pub fn wakes_at(&self) -> Option<Instant> {
        self.shards.iter().filter_map(Shard::wakes_at).min()
    }

    /// Whether reads, groups, or what is to be applied, wait for their turn. [`Node::drive`] has to be called again then, though nothing else happens; what has
    /// arrived meanwhile should be handed over before.
    pub fn has_queued(&self) -> bool {
        self.shards.iter().any(Shard::has_queued)
    }

    /// The client at `connection` leaves as many of its replies unread as it may: reads that wait here are refused as busy,
    /// which takes little room. Whoever owns the sockets reads no further requests there meanwhile. Returns whether there were
    /// any.
    pub fn refuse_unread(&mut self, connection: ConnectionId, now: Now) -> bool {
        let now = self.view.agreed(now);
        let refused = self.shards.iter_mut().map(|shard| shard.serving().refuse_unread(connection, now));
        refused.fold(false, |any, one| any | one)
    }

    /// Whether clients' requests may be handed over before the node is driven: those that came since it was driven last took, and were
    /// answered with, fewer bytes than a turn may be. Some requests are answered as they come, maps and reports of the state
    /// among them, and their answers are large; others are long to read, and not answered at all.
    pub fn takes_requests(&self) -> bool {
        !self.shards.iter().any(|shard| shard.requests.has_had_turn(self.config.read_bytes_per_turn))
    }

    /// Bytes that clients' requests have taken and were answered with since the node was driven last.
    pub fn turn_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.requests.turn_bytes()).sum()
    }

    /// Handling a batch of events that clients' requests were part of, and carrying out what followed, took so long. For
    /// the load that replies tell of.
    pub fn note_work(&mut self, took: Duration, now: Instant) {
        // By what each of them had to do.
        let all = self.shards.iter().map(|shard| shard.requests.touched()).sum::<u32>().max(1);
        for shard in self.shards.iter_mut() {
            let part = took.mul_f64(f64::from(shard.requests.touched()) / f64::from(all));
            shard.requests.note_work(part, now);
        }
    }

    /// Whether the node belongs to a cluster and everything it should host runs.
    pub fn is_serving(&self) -> bool {
        let Some(catalogue) = &self.view.catalogue else { return false };
        let has_none = self.shards.hosted_count() == 0 && catalogue.hosted_by(self.config.node).next().is_some();
        !has_none
            && !self.has_unreconciled
            && self.shards.each_hosted().all(|hosted| !matches!(hosted, Hosted::Starting { .. }))
    }

    /// Whether the catalogue has this node with the data that it has now: only then replicas are placed on it.
    pub fn is_registered(&self) -> bool {
        let known = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.nodes.get(&self.config.node));
        known.is_some_and(|known| known.incarnation == self.identity.incarnation())
    }

    /// Whether every partition in the catalogue, those of dropped tables aside, has a leader that this node knows, and there is a catalogue.
    pub fn knows_all_leaders(&self) -> bool {
        self.view.catalogue.is_some() && self.without_leader().next().is_none()
    }

    /// The partitions in the catalogue, those of dropped tables aside, that have no leader that this node knows.
    pub(crate) fn without_leader(&self) -> impl Iterator<Item = GroupId> {
        let catalogue = self.view.catalogue.as_ref();
        let groups = catalogue.into_iter().flat_map(|it| it.groups().map(move |(group, _)| (it, group)));
        groups.filter(|(it, group)| !it.is_kept(*group) && self.leader_of(*group).is_none()).map(|(_, group)| group)
    }

    /// A client's connection is gone; its reads are dropped, its writes answered into nothing.
    pub(crate) fn handle_client_closed(&mut self, connection: ConnectionId, now: Now) {
        self.shards.hand_to_all(|| Handed::Closed(connection), now);
        self.front.forget(connection);
        self.admin.telling.forget(connection);
    }
}
