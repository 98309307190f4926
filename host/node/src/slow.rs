//! Which nodes are slow, and who should lead meanwhile.
//!
//! Nodes send each other pulses, which are answered at once. A pulse carries what its sender has measured, so that every
//! node holds what all of them measured and computes the scores by itself ([`SlowScores`]):
//!
//! ```text
//! y  -- pulse(sent 70, what y measured) -->  x      every 100 ms, to every other node
//! y  <-- pulse(echo 70) -------------------  x      at once; until it comes, the link is as slow as it is late
//! ```
//!
//! Pulses also carry what their sender's wall clock shows (`clock.rs`) and how far its logs are (`lives.rs`).
//!
//! A node that is slow hands over what it leads, at once and although its messages are late; it leaves elections to
//! others, and gets nothing back before it is well again (`hosting.rs`). One whose disk is full (`room.rs`) hands over
//! what others have room for in the same way.

use crate::ids::LogId;
use crate::node::Node;
use crate::peer::{Frame, Pulse, PulseOf};
use crate::replica::{Hosted, Replica};
use hedgerow_env::Now;
use hedgerow_placement::{SCORE_MAX, SlowRow, SlowScores};
use hedgerow_replication::Role;
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often a node sends pulses; a little less than two ticks, so that jitter does not make it three.
const PULSE_INTERVAL: Duration = Duration::from_millis(90);
/// Pulses without an answer that are remembered for one link.
const UNANSWERED_MAX: usize = 64;
/// A node that was not called for so long stood still itself: what waited meanwhile says nothing of the others.
const AWAY_MIN: Duration = Duration::from_millis(150);
/// Time after its start in which a node judges nobody: everything is opened, replayed and connected then (R15).
const START_GRACE: Duration = Duration::from_secs(3);
/// Time between two attempts to hand over the same group: a leader whose messages are a second late needs it.
const LEAVE_AGAIN_AFTER: Duration = Duration::from_secs(3);
/// Time without a log write after which the last ones say nothing any more.
const LOG_WRITE_FORGOTTEN: Duration = Duration::from_secs(5);
/// Clocks that differ in rate by half a percent drift apart by a twentieth of this.
const AHEAD_PERIOD: Duration = Duration::from_secs(5);
/// A log write counts for one part in so many of the average.
const LOG_WRITE_SMOOTHING: u32 = 4;

/// What a node knows of the speed of all.
#[derive(Debug)]
pub(crate) struct Speeds {
    scores: SlowScores,
    links: BTreeMap<NodeId, Link>,
    log_writes: LogWriteTimes,
    /// When the node was first called, and last.
    ticked: Option<(Instant, Instant)>,
    /// Until when it last stood still itself.
    away_until: Instant,
    sent: Option<Instant>,
    /// Groups that are being handed over because this node is slow or without room, and since when.
    leaving: BTreeMap<GroupId, Instant>,
}

/// The link to another node.
#[derive(Debug, Default)]
struct Link {
    /// The newest pulse of the other: its own time, and when it came.
    theirs: Option<(u64, Instant)>,
    /// When the other started, by its own clock.
    started: u64,
    /// How much this node's clock is ahead of the other's, as pulses that travelled fast show it.
    ahead: Ahead,
    /// When pulses left that have no answer.
    unanswered: VecDeque<Instant>,
    /// The last two round trips; the shorter one counts, so that a single late answer counts only while it is awaited.
    round_trips: Option<(Duration, Duration)>,
}

/// The least difference between two clocks that pulses showed: in the present period, and in it and the one before. Clocks
/// drift, so that older ones say nothing.
#[derive(Debug, Default)]
struct Ahead {
    period: Option<(Instant, i128)>,
    least: i128,
}

/// How long log writes take until they are durable. One write at a time is watched.
#[derive(Debug, Default)]
struct LogWriteTimes {
    watched: Option<LogWrite>,
    average: Option<(Duration, Instant)>,
}

#[derive(Debug)]
struct LogWrite {
    log: LogId,
    ticket: u64,
    since: Instant,
}

impl Speeds {
    pub(crate) fn new(config: &crate::Config) -> Self {
        let nodes = config.peers.keys().copied();
        let links = nodes.clone().filter(|node| *node != config.node).map(|node| (node, Link::default()));
        Self {
            links: links.collect(),
            scores: SlowScores::new(config.node, nodes, config.slow),
            log_writes: LogWriteTimes::default(),
            ticked: None,
            away_until: Instant::ZERO,
            sent: None,
            leaving: BTreeMap::new(),
        }
    }

    /// What is written to `log` now has the number `ticket`.
    pub(crate) fn note_log_write(&mut self, log: LogId, ticket: u64, now: Instant) {
        self.log_writes.watched.get_or_insert(LogWrite { log, ticket, since: now });
    }

    /// What is under way to `log` never ends: it says nothing of how fast this node is.
    pub(crate) fn note_log_failed(&mut self, log: LogId) {
        self.log_writes.watched.take_if(|watched| watched.log == log);
    }

    /// It is durable.
    pub(crate) fn note_durable(&mut self, ticket: u64, now: Instant) {
        self.log_writes.end(ticket, now);
    }

    /// Whether the node has run for long enough. What the others say before is partly of its former life.
    fn may_judge(&self, now: Instant) -> bool {
        self.ticked.is_some_and(|(started, _)| now.since(started) >= START_GRACE)
    }

    fn own_row(&self, now: Instant) -> SlowRow {
        let trip = |(node, link): (&NodeId, &Link)| Some((*node, link.round_trip(self.away_until, now)?));
        SlowRow {
            round_trips: self.links.iter().filter_map(trip).collect(),
            late: Duration::ZERO,
            log_write: self.log_writes.lasts(now),
            scores: self.scores.scores_to_tell(),
        }
    }
}

impl Link {
    /// The round trip, or the time that the oldest pulse has been waiting for its answer if that is more. `None` before the
    /// first answer: who has never answered is absent rather than slow.
    fn round_trip(&self, away_until: Instant, now: Instant) -> Option<Duration> {
        let (last, before) = self.round_trips?;
        let waiting = self.unanswered.front().map(|sent| now.since(away_until.max(*sent)));
        Some(last.min(before).max(waiting.unwrap_or_default()))
    }

    /// An answer to the pulse that left at `sent`, and so to all before it.
    fn answer(&mut self, sent: Instant, held: Duration, away_until: Instant, now: Instant) {
        let count = self.unanswered.len();
        self.unanswered.retain(|one| *one > sent);
        let is_news = self.unanswered.len() < count;
        // What waited while this node stood still took longer than its way.
        if is_news && sent >= away_until {
            let trip = now.since(sent).saturating_sub(held);
            let before = self.round_trips.map_or(trip, |(last, _)| last);
            self.round_trips = Some((trip, before));
        }
    }
}

impl Ahead {
    /// A pulse that left at `sent` of the other's clock came at `now`: how late it was, compared with the fastest lately.
    fn lateness(&mut self, sent: u64, now: Instant) -> Duration {
        let difference = i128::from(now.0) - i128::from(sent);
        match &mut self.period {
            Some((since, least)) if now.since(*since) < AHEAD_PERIOD => *least = difference.min(*least),
            period => {
                let before = period.replace((now, difference));
                self.least = before.map_or(difference, |(_, least)| least);
            }
        }
        self.least = self.least.min(difference);
        Duration::from_nanos(u64::try_from(difference - self.least).unwrap_or(u64::MAX))
    }
}

impl LogWriteTimes {
    fn end(&mut self, ticket: u64, now: Instant) {
        let Some(watched) = self.watched.take_if(|watched| watched.ticket == ticket) else { return };
        let (took, weight) = (now.since(watched.since), LOG_WRITE_SMOOTHING);
        let average = self.average.map_or(took, |(average, _)| (average * (weight - 1) + took) / weight);
        self.average = Some((average, now));
    }

    fn lasts(&self, now: Instant) -> Option<Duration> {
        let waiting = self.watched.as_ref().map(|watched| now.since(watched.since));
        let recent = self.average.filter(|(_, at)| now.since(*at) < LOG_WRITE_FORGOTTEN).map(|(average, _)| average);
        recent.max(waiting)
    }
}

impl Node {
    /// Measures, tells the others, and acts on what follows.
    pub(crate) fn tick_slow(&mut self, now: Now) {
        let (started, last) = self.speeds.ticked.unwrap_or((now.instant, now.instant));
        self.speeds.ticked = Some((started, now.instant));
        if now.instant.since(last) >= AWAY_MIN {
            self.speeds.away_until = now.instant;
        }
        if self.identity.cluster == 0 {
            return;
        }
        let row = self.speeds.own_row(now.instant);
        if self.speeds.sent.is_none_or(|sent| now.instant.since(sent) >= PULSE_INTERVAL) {
            self.speeds.sent = Some(now.instant);
            self.send_pulses(&row, started, now);
        }
        if !self.speeds.may_judge(now.instant) {
            return;
        }
        self.speeds.scores.handle_row(self.config.node, row, now.instant);
        for (node, is_slow) in self.speeds.scores.update(now.instant) {
            self.note_slow(node, is_slow);
        }
        self.leave_if_unfit(now);
    }

    fn send_pulses(&mut self, row: &SlowRow, started: Instant, now: Now) {
        let micros = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let of = |(node, score): (&NodeId, &u8)| {
            let measured = if *node == self.config.node { row.log_write.as_ref() } else { row.round_trips.get(node) };
            PulseOf { node: u32::from(node.0), micros: measured.map(micros), score: u32::from(*score) }
        };
        let measured: Vec<PulseOf> = row.scores.iter().map(of).collect();
        let (unix_micros, logs) = (self.view.clock.own_unix_micros(now.instant), self.logs_now());
        let mut frames = Vec::new();
        for (node, link) in &mut self.speeds.links {
            if link.unanswered.len() == UNANSWERED_MAX {
                // The oldest stays: it says how long nothing has come.
                link.unanswered.truncate(UNANSWERED_MAX / 2);
            }
            link.unanswered.push_back(now.instant);
            let (echo, held) = link.theirs.map_or((0, 0), |(sent, came)| (sent, now.instant.since(came).as_nanos()));
            let held = u64::try_from(held).unwrap_or(u64::MAX);
            frames.push((
                *node,
                Pulse {
                    sent: now.instant.0,
                    echo,
                    held,
                    measured: measured.clone(),
                    started: started.0,
                    unix_micros,
                    logs: logs.clone(),
                },
            ));
        }
        frames.into_iter().for_each(|(node, pulse)| self.shards.first().send(node, &Frame::Pulse(pulse)));
    }

    pub(crate) fn handle_pulse(&mut self, from: NodeId, pulse: &Pulse, now: Now) {
        if self.speeds.links.contains_key(&from) {
            self.note_clock(from, pulse, now.instant);
        }
        let may_judge = self.speeds.may_judge(now.instant);
        let Speeds { scores, links, away_until, .. } = &mut self.speeds;
        let Some(link) = links.get_mut(&from) else { return };
        if pulse.echo != 0 && pulse.echo <= now.instant.0 {
            link.answer(Instant(pulse.echo), Duration::from_nanos(pulse.held), *away_until, now.instant);
        }
        if pulse.sent == 0 {
            return;
        }
        self.lives.note_logs(from, &pulse.logs);
        if pulse.started != link.started {
            *link = Link { started: pulse.started, ..Link::default() };
            scores.handle_restart(from);
            // It knows nothing of this node yet, and should not have to call it dead until the next report is due.
            self.reports.last_sent = None;
        }
        link.theirs = Some((pulse.sent, now.instant));
        let late = link.ahead.lateness(pulse.sent, now.instant);
        if may_judge {
            scores.handle_row(from, SlowRow { late, ..row_of(from, &pulse.measured) }, now.instant);
        }
        let unix_micros = self.view.clock.own_unix_micros(now.instant);
        let answer = Pulse { echo: pulse.sent, unix_micros, ..Pulse::default() };
        self.shards.first().send(from, &Frame::Pulse(answer));
    }

    /// Whether `node` counts as slow and should not lead.
    pub(crate) fn is_slow(&self, node: NodeId) -> bool {
        self.speeds.scores.is_slow(node)
    }

    fn note_slow(&mut self, node: NodeId, is_slow: bool) {
        let scores = &self.speeds.scores;
        let millis = |time: Option<Duration>| time.map(|time| (time.as_secs_f64() * 1e4).round() / 10.0);
        let (round_trip_ms, log_write_ms) = (millis(scores.round_trip(node)), millis(scores.log_write(node)));
        let score = scores.score(node);
        let node_id = node.0;
        if is_slow {
            tracing::warn!(node = node_id, score, round_trip_ms, log_write_ms, "a node is slow: it should not lead");
        } else {
            tracing::info!(node = node_id, score, round_trip_ms, log_write_ms, "a node is no longer slow");
        }
        if node == self.config.node {
            self.speeds.leaving.clear();
            for group in self.shards.groups() {
                if let Some(replica) = self.shards.running(group) {
                    replica.group.set_reluctant(is_slow);
                }
            }
        }
    }

    /// Hands over what this node leads while it is slow, what it leads from a disk without room where another leader could
    /// take data, and what it cannot apply for the moment: each group to a replica that could lead at once, on the node that leads least.
    fn leave_if_unfit(&mut self, now: Now) {
        let is_slow = self.is_slow(self.config.node);
        let is_late = self.adoption.is_late(now.instant);
        if !is_slow && !self.view.room.has_full_disk() && !self.failures.is_apply_held && !is_late {
            return;
        }
        // Looks at every group of the cluster: not before it is known that one is to move.
        let mut led = None;
        let mut moves = Vec::new();
        for (group, hosted) in self.shards.all_hosted() {
            let Hosted::Running(replica) = hosted else { continue };
            let tried = self.speeds.leaving.get(group);
            let is_due = tried.is_none_or(|tried| now.instant.since(*tried) >= LEAVE_AGAIN_AFTER);
            let is_unfit = is_slow
                || replica.group.is_held()
                || (is_late && *group == GroupId::META)
                || self.view.room.could_take_data_elsewhere(replica);
            if replica.group.role() != Role::Leader || !is_due || !is_unfit {
                continue;
            }
            let mut fit = self.fit_to_lead(replica, now);
            if fit.is_empty() {
                continue;
            }
            let led = led.get_or_insert_with(|| self.leaders_by_node());
            fit.sort_by_key(|replica| (led.get(&replica.node()).copied().unwrap_or(0), *replica));
            if let Some(to) = fit.first() {
                *led.entry(to.node()).or_default() += 1;
                moves.push((*group, *to));
            }
        }
        for (group, to) in moves {
            self.speeds.leaving.insert(group, now.instant);
            let Some(replica) = self.shards.running(group) else { continue };
            match replica.group.transfer_leader_at_once(to, now.instant) {
                Ok(()) => {
                    tracing::info!(%group, %to, is_slow, "this node is slow or lacks something: another one should lead")
                }
                Err(error) => tracing::debug!(%group, %error, "a leader cannot be moved"),
            }
            self.shards.mark_dirty(group);
        }
    }

    /// How many groups each node leads, as far as this one has heard.
    fn leaders_by_node(&self) -> BTreeMap<NodeId, usize> {
        let mut led = BTreeMap::new();
        let groups = self.view.catalogue.iter().flat_map(|catalogue| catalogue.groups());
        for (group, _) in groups {
            if let Some((_, leader)) = self.leader_of(group) {
                *led.entry(leader.node()).or_default() += 1;
            }
        }
        led
    }

    /// Followers of a group led here that could lead at once, on nodes that are not slow and disks that have room.
    fn fit_to_lead(&self, replica: &Replica, now: Now) -> Vec<ReplicaId> {
        let fits = |to: &ReplicaId| {
            *to != replica.id() && self.may_lead(replica.owner.group, *to, now) && is_ready_to_lead(replica, *to)
        };
        replica.group.membership().voters.iter().copied().filter(fits).collect()
    }

    /// Gives the lead to `former`, if it could lead at once: the receiver has part of a checkpoint of it, and can use no file of
    /// anybody else's. Not while somebody else is being sent one from here.
    pub(crate) fn leave_to(&mut self, group: GroupId, former: ReplicaId, now: Now) {
        let Some(Hosted::Running(replica)) = self.shards.hosted(group) else { return };
        let is_fit = former != replica.id() && self.may_lead(group, former, now) && is_ready_to_lead(replica, former);
        if !is_fit || replica.sending.gets_on() {
            return;
        }
        let Some(replica) = self.shards.running(group) else { return };
        match replica.group.transfer_leader(former, now.instant) {
            Ok(()) => tracing::info!(%group, to = %former, "leaving the lead to the former sender of a checkpoint"),
            Err(error) => tracing::debug!(%group, %error, "a leader cannot be moved"),
        }
        self.shards.mark_dirty(group);
    }

    /// Whether the leadership of `group` may go to `replica` elsewhere, as far as its node goes.
    pub(crate) fn may_lead(&self, group: GroupId, replica: ReplicaId, now: Now) -> bool {
        let node = replica.node();
        let is_fit = !self.is_slow(node) && !self.view.room.is_full_elsewhere(group, replica);
        self.is_alive(node, now) && is_fit && !self.is_damaged(group, replica)
    }

    /// What is known of the speed of all nodes, for experiments.
    pub(crate) fn slow_status(&self) -> Value {
        let scores = &self.speeds.scores;
        let nodes = self.config.peers.keys().map(|node| {
            json!({
                "node": node.0,
                "score": scores.score(*node),
                "is_slow": scores.is_slow(*node),
                "round_trip_us": scores.round_trip(*node).map(as_micros),
                "log_write_us": scores.log_write(*node).map(as_micros),
            })
        });
        json!({ "node": self.config.node.0, "nodes": nodes.collect::<Vec<_>>() })
    }

    /// The score of a node and whether it is slow.
    pub(crate) fn slow_score(&self, node: NodeId) -> (u8, bool) {
        (self.speeds.scores.score(node), self.speeds.scores.is_slow(node))
    }
}

/// Whether `to`, a voter of the group that `replica` leads, has nearly all of its log.
pub(crate) fn is_ready_to_lead(replica: &Replica, to: ReplicaId) -> bool {
    let progress = replica.group.progress();
    let is_ready = |peer: &&hedgerow_replication::PeerProgress| {
        let has_log = peer.matched + crate::pace::ENTRIES_NEAR >= replica.group.last_index();
        peer.is_active && !peer.is_learner && !peer.is_snapshotting && has_log
    };
    progress.iter().find(|peer| peer.replica == to).is_some_and(|peer| is_ready(&peer))
}

fn row_of(from: NodeId, measured: &[PulseOf]) -> SlowRow {
    let mut row = SlowRow::default();
    for one in measured {
        let Ok(node) = u16::try_from(one.node).map(NodeId) else { continue };
        row.scores.insert(node, u8::try_from(one.score).unwrap_or(SCORE_MAX));
        let Some(time) = one.micros.map(Duration::from_micros) else { continue };
        if node == from {
            row.log_write = Some(time);
        } else {
            row.round_trips.insert(node, time);
        }
    }
    row
}

fn as_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
