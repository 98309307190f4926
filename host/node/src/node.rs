//! The node: takes every event, keeps what it hosts, and fills the outbox. It does no I/O and reads no clock.
//!
//! Whoever owns a node calls `handle_*` with what happened, [`Node::drive`] after each batch of events, and then empties
//! [`Node::outbox`]. The operating system's host (`os.rs`) and the simulation do the same, so that both run this code.
//!
//! What a caller passes as `now` is what its clocks show. Inside, wall time is what a majority of the nodes agrees on, 0 if
//! that is not known: each entry point takes it from `clock.rs` first.

use crate::admin::AdminCalls;
use crate::config::Config;
use crate::creations::Creations;
use crate::failure::Failures;
use crate::founding::Founding;
use crate::identity::{Identity, Missing};
use crate::ids::{DirectoryId, LogId, ReplicaKey};
use crate::job::{Job, JobDone};
use crate::lives::Lives;
use crate::loads::Loads;
use crate::metadata::Metadata;
use crate::outbox::{ConnectionId, Outbox};
use crate::peer::Frame;
use crate::rate::Limiter;
use crate::read_indexes::ReadIndexes;
use crate::removals::Removals;
use crate::replica::{Hosted, Origin, PendingWrite, Replica};
use crate::replicas::Replicas;
use crate::report::Reports;
use crate::requests::{Requests, Serving};
use crate::room::Room;
use crate::slow::Speeds;
use crate::strangers::Strangers;
use crate::view::View;
use bytes::{Bytes, BytesMut};
use hedgerow_env::{DirLock, Disk, Now};
use hedgerow_storage::Engines;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant, NodeId, Refusal, ReplicaId};
use hedgerow_wal::{Append, Round, Submission};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What an entry takes of a log besides its data, at most, bytes.
const ENTRY_OVERHEAD: u64 = 128;

/// One node of the cluster.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) engines: Arc<dyn Engines>,
    pub(crate) random: Random,
    pub(crate) identity: Identity,
    pub(crate) founding: Founding,
    /// What those go by who serve. Only what is not theirs changes it.
    pub(crate) view: View,
    pub(crate) requests: Requests,
    pub(crate) replicas: Replicas,
    pub(crate) metadata: Metadata,
    pub(crate) reports: Reports,
    /// How fast the nodes are.
    pub(crate) speeds: Speeds,
    pub(crate) admin: AdminCalls,
    pub(crate) limiter: Limiter,
    pub(crate) log_writes: LogWrites,
    pub(crate) failures: Failures,
    /// Data directories that were configured and are out of use, and why.
    pub(crate) room: Room,
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
    pub(crate) removals: Removals,
    pub(crate) loads: Loads,
    pub(crate) read_indexes: ReadIndexes,
    pub(crate) outbox: Outbox,
    pub(crate) last_tick: Instant,
    /// When it was last looked at which parts of the logs may go.
    pub(crate) retained_at: Instant,
}

/// Log writes of the current batch of events, and those under way.
#[derive(Debug, Default)]
pub(crate) struct LogWrites {
    /// By log.
    gathering: BTreeMap<LogId, Gathering>,
    /// By log and submission ticket: whom to tell.
    under_way: BTreeMap<(LogId, u64), UnderWay>,
    /// Logs that something was written to since the start.
    begun: BTreeSet<LogId>,
    /// Logs that take nothing more.
    failed: BTreeSet<LogId>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct Gathering {
    appends: Vec<Append>,
    truncations: Vec<(GroupId, u64)>,
    removals: Vec<GroupId>,
    waiting: Vec<(ReplicaKey, u64)>,
}

/// A submission that is not durable.
#[derive(Debug)]
struct UnderWay {
    waiting: Vec<(ReplicaKey, u64)>,
    /// About so many bytes of entries.
    bytes: u64,
}

impl LogWrites {
    pub(crate) fn append(&mut self, log: LogId, owner: ReplicaKey, ticket: Option<u64>, append: Append) {
        let gathering = self.gathering.entry(log).or_default();
        gathering.appends.push(append);
        gathering.waiting.extend(ticket.map(|ticket| (owner, ticket)));
    }

    pub(crate) fn truncate(&mut self, log: LogId, group: GroupId, through: u64) {
        self.gathering.entry(log).or_default().truncations.push((group, through));
    }

    /// A removal must not overtake appends of the same group that were gathered before it, nor follow those gathered
    /// after it, so that it closes the batch of its log.
    pub(crate) fn remove(&mut self, log: LogId, group: GroupId, outbox: &mut Outbox) {
        self.submit(log, outbox);
        self.gathering.entry(log).or_default().removals.push(group);
        self.submit(log, outbox);
    }

    pub(crate) fn submit_all(&mut self, outbox: &mut Outbox) {
        let logs: Vec<LogId> = self.gathering.keys().copied().collect();
        logs.into_iter().for_each(|log| self.submit(log, outbox));
    }

    fn submit(&mut self, log: LogId, outbox: &mut Outbox) {
        let Some(Gathering { appends, truncations, removals, waiting }) = self.gathering.remove(&log) else { return };
        if self.failed.contains(&log) {
            return;
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let entries = appends.iter().flat_map(|append| &append.entries);
        let bytes = entries.map(|entry| entry.data.len() as u64 + ENTRY_OVERHEAD).sum();
        self.under_way.insert((log, ticket), UnderWay { waiting, bytes });
        outbox.submissions.push((log, Submission { appends, truncations, removals, ticket }));
    }

    /// Bytes of entries on their way to a log, about.
    pub(crate) fn bytes_under_way(&self, log: LogId) -> u64 {
        self.under_way.range((log, 0)..=(log, u64::MAX)).map(|(_, submission)| submission.bytes).sum()
    }

    /// A log takes nothing more, and says nothing of what is under way to it.
    pub(crate) fn fail(&mut self, log: LogId) {
        self.under_way.retain(|(of, _), _| *of != log);
        self.failed.insert(log);
    }
}

impl Node {
    /// What is to be done. Empty it after each [`Node::drive`].
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
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
        self.view.alive = self.alive_nodes(now);
        self.tick_founding(now);
        self.replicas.begin_tick();
        self.tick_groups(now);
        self.tick_creations(now);
        self.tick_failures(now);
        self.tick_room(now);
        self.tick_storage();
        self.tick_debts(now);
        self.tick_retained(now);
        self.tick_sending(elapsed, now);
        self.tick_reports(now);
        self.tick_metadata(now);
        self.tick_slow(now);
        self.tick_hosting(now);
        self.tick_admin(now);
        self.note_leaderless();
        self.requests.tick(now.instant);
    }

    /// Has the next groups notice that time has passed. A node may host thousands, and others wait while it looks at them.
    fn tick_groups(&mut self, now: Now) {
        for group in self.replicas.next_to_tick() {
            let Some(replica) = self.running(group) else { continue };
            replica.group.handle_tick(now.instant);
            if replica.tick_settling(now.instant) {
                self.reports.urgent.insert(group);
            }
            self.mark_dirty(group);
            self.expire_waiting(group, now);
            self.tick_receiving(group, now);
        }
    }

    /// A whole frame came from a client. `now` must have been read after it came.
    pub(crate) fn handle_client(&mut self, connection: ConnectionId, frame: Bytes, now: Now) {
        let now = self.view.agreed(now);
        if let Some((caller, body)) = self.serving().handle_client(connection, frame, now) {
            self.serve_admin(caller, body, now);
        }
    }

    /// A frame came from another node.
    pub(crate) fn handle_peer(&mut self, from: NodeId, frame: Frame, now: Now) {
        let now = self.view.agreed(now);
        match frame {
            Frame::Replication { group, from, to, message } => {
                self.handle_replication(ReplicaKey { group, replica: to }, from, message, now);
            }
            Frame::Probe(probe) => self.handle_probe(from, probe, now),
            Frame::Report(report) => self.handle_report(from, report, now),
            Frame::Catalogue(push) => self.handle_catalogue(push, now),
            Frame::AdminRequest(request) => self.handle_admin_request(from, request, now),
            Frame::AdminReply(reply) => self.handle_admin_reply(reply),
            Frame::SnapshotBegin(begin) => self.handle_snapshot_begin(begin, now),
            Frame::SnapshotChunk(chunk) => self.handle_snapshot_chunk(chunk, now),
            Frame::SnapshotProgress(progress) => self.handle_snapshot_progress(progress, now),
            Frame::ReadIndexRequests(questions) => self.handle_read_index_requests(from, &questions, now),
            Frame::ReadIndexReplies(answers) => self.handle_read_index_replies(from, &answers, now),
            Frame::TailRequests(requests) => self.handle_tail_requests(from, requests, now),
            Frame::TailReplies(replies) => self.handle_tail_replies(from, &replies, now),
            Frame::Forward(forward) => self.serving().handle_forward(from, forward, now),
            Frame::Forwarded(forwarded) => self.serving().handle_forwarded(from, forwarded, now),
            Frame::Began(began) => self.serving().handle_began(from, began, now),
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
                if self.log_writes.begun.insert(log) {
                    // Before anything that it makes durable is acknowledged.
                    self.note_log_begun(log);
                }
                for ticket in tickets {
                    self.speeds.note_durable(ticket, now.instant);
                    let Some(done) = self.log_writes.under_way.remove(&(log, ticket)) else { continue };
                    // What is in the log comes to the storage of its replicas, wherever that is.
                    for directory in self.config.directories_of(log) {
                        self.room.note_written(directory, done.bytes);
                    }
                    for (owner, ticket) in done.waiting {
                        if let Some(replica) = self.running_as(owner) {
                            replica.group.handle_persisted(ticket, now.instant);
                            self.mark_dirty(owner.group);
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
        let now = self.view.agreed(now);
        self.tick_groups(now);
        self.take_up_applying(now);
        self.serving().serve_queued(now);
        loop {
            for group in std::mem::take(&mut self.replicas.dirty) {
                if let Some(replica) = self.running(group) {
                    replica.is_dirty = false;
                    self.drive_group(group, now);
                    self.gather_read_index_request(group, now);
                    self.gather_tail_request(group);
                    self.update_wake(group);
                }
            }
            if self.replicas.dirty.is_empty() && !self.report_first_leaders(now) {
                break;
            }
        }
        self.lose_damaged(now);
        self.send_read_index_replies();
        self.send_read_index_requests(now);
        self.send_tail_requests(now);
        self.log_writes.submit_all(&mut self.outbox);
        if let Some((log, submission)) = self.outbox.submissions.first() {
            self.speeds.note_log_write(*log, submission.ticket, now.instant);
        }
        self.requests.end_turn();
    }

    /// Whether reads, groups, or what is to be applied, wait for their turn. [`Node::drive`] has to be called again then, though nothing else happens; what has
    /// arrived meanwhile should be handed over before.
    pub fn has_queued(&self) -> bool {
        self.requests.has_queued() || self.replicas.applying.has_rest() || self.replicas.is_ticking()
    }

    /// The client at `connection` leaves as many of its replies unread as it may: reads that wait here are refused as busy,
    /// which takes little room. Whoever owns the sockets reads no further requests there meanwhile. Returns whether there were
    /// any.
    pub fn refuse_unread(&mut self, connection: ConnectionId, now: Now) -> bool {
        let now = self.view.agreed(now);
        self.serving().refuse_unread(connection, now)
    }

    /// Whether clients' requests may be handed over before the node is driven: those that came since it was driven last took, and were
    /// answered with, fewer bytes than a turn may be. Some requests are answered as they come, maps and reports of the state
    /// among them, and their answers are large; others are long to read, and not answered at all.
    pub const fn takes_requests(&self) -> bool {
        !self.requests.has_had_turn(self.config.read_bytes_per_turn)
    }

    /// Bytes that clients' requests have taken and were answered with since the node was driven last.
    pub const fn turn_bytes(&self) -> usize {
        self.requests.turn_bytes()
    }

    /// Handling a batch of events that clients' requests were part of, and carrying out what followed, took so long. For
    /// the load that replies tell of.
    pub fn note_work(&mut self, took: Duration, now: Instant) {
        self.requests.note_work(took, now);
    }

    /// Whether the node belongs to a cluster and everything it should host runs.
    pub fn is_serving(&self) -> bool {
        let Some(catalogue) = &self.view.catalogue else { return false };
        let has_none = self.replicas.hosted.is_empty() && catalogue.hosted_by(self.config.node).next().is_some();
        !has_none
            && !self.has_unreconciled
            && self.replicas.hosted.values().all(|hosted| !matches!(hosted, Hosted::Starting { .. }))
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

    /// Its requests, with what they are served from.
    pub(crate) fn serving(&mut self) -> Serving<'_> {
        let Self { config, view, requests, replicas, outbox, random, .. } = self;
        Serving { config, view, requests, replicas, outbox, random }
    }

    pub(crate) fn mark_dirty(&mut self, group: GroupId) {
        self.replicas.mark_dirty(group);
    }

    pub(crate) fn running(&mut self, group: GroupId) -> Option<&mut Replica> {
        self.replicas.running(group)
    }

    /// The running replica that `owner` names; another replica of the same group is none.
    pub(crate) fn running_as(&mut self, owner: ReplicaKey) -> Option<&mut Replica> {
        self.replicas.running_as(owner)
    }

    pub(crate) fn job(&mut self, job: Job) {
        self.outbox.jobs.push(job);
    }

    pub(crate) fn send(&mut self, to: NodeId, frame: &Frame) {
        self.outbox.send(self.config.node, to, frame);
    }

    /// The same to all others. What it takes to write it down, where it is long, it takes once.
    pub(crate) fn send_to_all(&mut self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        crate::peer::put(&mut bytes, frame);
        for node in self.config.peers.keys().filter(|node| **node != self.config.node) {
            self.outbox.peer(*node).extend_from_slice(&bytes);
        }
    }

    /// The same on a connection of its own, for what is large and may wait: nothing else is to queue behind it.
    pub(crate) fn send_bulk(&mut self, to: NodeId, frame: &Frame) {
        if to != self.config.node {
            crate::peer::put(self.outbox.bulk.entry(to).or_default(), frame);
        }
    }

    fn handle_replication(&mut self, owner: ReplicaKey, from: ReplicaId, message: Bytes, now: Now) {
        match hedgerow_replication::Message::decode(message) {
            Ok(message) if self.has_no_room_for(owner.group, &message) => {}
            Ok(mut message) => {
                self.keep_what_fits(owner.group, &mut message);
                let Some(replica) = self.running_as(owner) else { return };
                replica.group.handle_message(from, message, now.instant);
                self.mark_dirty(owner.group);
            }
            Err(error) => tracing::warn!(%from, group = %owner.group, %error, "a replication message was dropped"),
        }
    }

    /// Tells whoever asked that it will not be.
    pub(crate) fn refuse(&mut self, origin: Origin, refusal: &Refusal, now: Now) {
        match origin {
            Origin::Client { id, .. } => self.serving().refuse_waiting(id, refusal, now),
            Origin::Metadata(ticket) => self.metadata.handle_failed(ticket, refusal),
        }
    }

    /// Tells everybody who waits for `writes` that they will not know.
    pub(crate) fn refuse_writes(
        &mut self,
        writes: impl IntoIterator<Item = PendingWrite>,
        refusal: &Refusal,
        now: Now,
    ) {
        let origins = writes.into_iter().flat_map(PendingWrite::into_origins);
        origins.for_each(|origin| self.refuse(origin, refusal, now));
    }

    /// A client's connection is gone; its reads are dropped, its writes answered into nothing.
    pub(crate) fn handle_client_closed(&mut self, connection: ConnectionId) {
        self.serving().drop_requests_of(connection);
        self.requests.forget_connection(connection);
        self.outbox.clients.remove(&connection);
    }
}

pub(crate) fn not_leader(leader: Option<ReplicaId>) -> Refusal {
    Refusal::NotLeader { leader: leader.map(ReplicaId::node) }
}

pub(crate) fn storage_refusal(error: &hedgerow_storage::EngineError) -> Refusal {
    Refusal::Stopping(error.to_string())
}
