//! What `status` and `describe` show: the catalogue beside what the nodes report. It is as long as the cluster is large, so that a job writes it
//! down, once for all who ask for the same at the time.

use crate::admin::Asker;
use crate::job::Job;
use crate::node::Node;
use crate::outbox::ConnectionId;
use crate::peer::{DiskReport, PeerReport, ReplicaReport, ReplicaState};
use crate::replica::Hosted;
use crate::standing::Standing;
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, Replica, ReplicaRole, Table, TableKind, TableState};
use hedgerow_types::{GroupId, NodeId, Refusal, ReplicaId, TableId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Bytes per second below which a transfer stands still, so that nobody knows how long it takes.
const STANDSTILL: u64 = 1 << 10;
/// Callers who may wait for the state to be written down, and those who are given the same one: all at once, and of a large cluster it has
/// megabytes.
const WAITING_MAX: usize = 512;
const TOLD_AT_ONCE_MAX: usize = 8;
/// Those of one connection, and bytes of answers that are given in one turn.
const WAITING_EACH_MAX: usize = 8;
const TOLD_BYTES_MAX: usize = 8 << 20;

/// What is to be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The cluster, of its tables this one or all.
    Cluster(Option<TableId>),
    /// A table.
    Table(TableId),
    /// The cluster in a few figures, a line for each.
    Figures,
}

/// What is known of the state, for the job that writes it down.
#[derive(Debug)]
pub struct State {
    standing: Standing,
    subject: Subject,
    nodes: Vec<NodeFacts>,
    clock_word: &'static str,
}

/// What this node knows of a node beside its reports.
#[derive(Debug)]
struct NodeFacts {
    node: NodeId,
    address: Option<String>,
    slow_score: u8,
    is_slow: bool,
    clock_ahead_ms: Option<i64>,
    is_clock_off: bool,
}

/// Who waits for what.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    waiting: VecDeque<(Subject, Asker)>,
    /// What a job writes down, and for whom. There is one at a time.
    running: Option<(Subject, Vec<Asker>)>,
}

impl Telling {
    fn is_full(&self, asker: &Asker) -> bool {
        let connection = asker.client_connection();
        let of_it = self.waiting.iter().filter(|(_, other)| other.client_connection() == connection);
        self.waiting.len() >= WAITING_MAX || (connection.is_some() && of_it.count() >= WAITING_EACH_MAX)
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.waiting.retain(|(_, asker)| asker.client_connection() != Some(connection));
        if let Some(running) = &mut self.running {
            running.1.retain(|asker| asker.client_connection() != Some(connection));
        }
    }
}

impl State {
    /// Writes it down.
    pub(crate) fn tell(&self) -> String {
        let catalogue = &*self.standing.catalogue;
        match self.subject {
            Subject::Table(id) => catalogue.tables.get(&id).map_or(Value::Null, |it| self.table_status(it)).to_string(),
            Subject::Figures => lines(&self.figures()),
            Subject::Cluster(only) => {
                let tables = catalogue.tables_in_use().filter(|table| only.is_none_or(|only| table.id == only));
                json!({
                    "cluster": format!("{:016x}", catalogue.cluster),
                    "catalogue_version": catalogue.version,
                    "summary": self.figures(),
                    "metadata": self.partition_status(GroupId::META),
                    "time": self.clock_word,
                    "nodes": self.nodes.iter().map(|node| self.node_status(node)).collect::<Vec<_>>(),
                    "tables": tables.map(|table| self.table_status(table)).collect::<Vec<_>>(),
                    "dropped_tables": catalogue.tables.values().filter_map(|it| self.dropped_status(it)).collect::<Vec<_>>(),
                })
                .to_string()
            }
        }
    }

    /// The cluster in a few figures: who only wants to know whether all of it serves need not look further.
    fn figures(&self) -> Value {
        let standing = &self.standing;
        let groups = standing.catalogue.groups().map(|(group, _)| group);
        let groups: Vec<GroupId> = groups.filter(|group| !standing.catalogue.is_kept(*group)).collect();
        json!({
            "nodes": self.nodes.len(),
            "nodes_up": self.nodes.iter().filter(|it| standing.is_up_to_date(it.node)).count(),
            "partitions": groups.len(),
            "without_leader": groups.iter().filter(|group| standing.confirmed_leader(**group).is_none()).count(),
            "in_repair": groups.iter().filter(|group| standing.is_in_repair(**group)).count(),
            "metadata_has_leader": standing.confirmed_leader(GroupId::META).is_some(),
        })
    }

    fn node_status(&self, facts: &NodeFacts) -> Value {
        let (node, Standing { catalogue, told, .. }) = (facts.node, &self.standing);
        let report = told.nodes.get(&node).map(|(report, _)| report);
        let replicas = report.map_or(&[][..], |report| &report.replicas);
        let is_leader = |replica: &&ReplicaReport| {
            let group = GroupId::from_u64(replica.group);
            !catalogue.is_kept(group)
                && self.standing.confirmed_leader(group).is_some_and(|(_, leader)| leader.0 == replica.replica)
        };
        let leaders = replicas.iter().filter(is_leader).count();
        let missing = report.map_or(&[][..], |report| &report.missing_directories);
        json!({
            "node": node.0,
            "address": facts.address.clone().unwrap_or_default(),
            "state": if self.standing.is_up_to_date(node) { "alive" } else { "dead" },
            "replicas": replicas.len(),
            "replicas_max": report.map(|report| report.replicas_max),
            "leaders": leaders,
            "log_layout": report.map(|report| &report.log_layout).filter(|layout| !layout.is_empty()),
            "rights": report.map(|report| &report.rights).filter(|mode| !mode.is_empty()),
            "certificates_expire_unix_seconds": report.map(|report| report.certificates_expire_at).filter(|at| *at > 0),
            "log_bytes": report.map(|report| &report.log_bytes),
            "log_bytes_max": report.map(|report| report.log_bytes_max),
            "log_bytes_allowed": report.map(|report| &report.log_bytes_allowed),
            "slow_score": facts.slow_score,
            "is_slow": facts.is_slow,
            "disks": report.map(|report| report.disks.iter().map(disk_status).collect::<Vec<_>>()),
            "clock_ahead_ms": facts.clock_ahead_ms,
            "is_clock_off": facts.is_clock_off,
            "missing_directories": missing,
            "labels": catalogue.nodes.get(&node).map(|it| &it.labels),
        })
    }

    fn address_of(&self, node: NodeId) -> Option<&String> {
        self.nodes.iter().find(|it| it.node == node)?.address.as_ref()
    }

    fn table_status(&self, table: &Table) -> Value {
        let mut status = table_told(table);
        status["partitions"] = json!(self.partitions_status(table));
        status
    }

    /// A table that is dropped and kept. Its replicas are repaired like others, so that it has transfers too.
    fn dropped_status(&self, table: &Table) -> Option<Value> {
        table.dropped.map(|_| self.table_status(table))
    }

    fn partitions_status(&self, table: &Table) -> Vec<Value> {
        let groups = (0..table.partitions.len() as u32).map(|partition| GroupId { table: table.id, partition });
        groups.map(|group| self.partition_status(group)).collect()
    }

    fn partition_status(&self, group: GroupId) -> Value {
        let leader = self.standing.confirmed_leader(group);
        let leader_report =
            leader.and_then(|(_, leader)| self.standing.told.replica_report(group, leader.0, leader.node()));
        let replicas = self.standing.catalogue.group(group).map_or(&[][..], |it| &it.replicas);
        let replicas: Vec<Value> =
            replicas.iter().map(|replica| self.replica_status(group, replica, leader_report)).collect();
        json!({
            "index": group.partition,
            "leader": leader.and_then(|(_, leader)| self.address_of(leader.node())),
            "term": leader.map_or(0, |(term, _)| term),
            "commit": leader_report.map_or(0, |report| report.commit),
            "replicas": replicas,
        })
    }

    fn replica_status(&self, group: GroupId, replica: &Replica, leader: Option<&ReplicaReport>) -> Value {
        let node = replica.id.node();
        let report = self.standing.told.replica_report(group, replica.id.0, node);
        let commit = leader.map_or(0, |leader| leader.commit);
        let applied = report.map_or(0, |report| report.applied);
        let peer = leader.and_then(|leader| leader.peers.iter().find(|peer| peer.replica == replica.id.0));
        let state = match report.and_then(|report| ReplicaState::from_code(report.state)) {
            _ if !self.standing.is_alive(node) => "down",
            Some(_) if report.is_some_and(|report| report.is_damaged) => "damaged",
            Some(_) if report.is_some_and(|report| report.lacking > 0) => "no room",
            Some(ReplicaState::Follower) if peer.is_some_and(|peer| peer.needs_checkpoint) => "learning",
            Some(ReplicaState::Leader | ReplicaState::Follower) => "ok",
            Some(ReplicaState::Learner)
                if replica.role == ReplicaRole::Learner && self.standing.is_serving_learner(group, replica.id) =>
            {
                "ok"
            }
            Some(ReplicaState::Learner | ReplicaState::Starting) => "learning",
            Some(ReplicaState::Lost) => "lost",
            None if self.standing.is_without(group, replica.id) => "missing",
            // Its node has not spoken since it was assigned.
            None => "learning",
        };
        json!({
            "node": node.0,
            "replica": replica.id.to_string(),
            "role": match replica.role {
                ReplicaRole::Voter => "voter",
                ReplicaRole::Joining { .. } => "joining",
                ReplicaRole::Learner => "learner",
            },
            "matched": peer.map_or(applied, |peer: &PeerReport| peer.matched),
            "applied": applied,
            "lag": commit.saturating_sub(applied),
            "transfer": peer.and_then(|peer| peer.transfer).map(|transfer| json!({
                "bytes_done": transfer.bytes_done,
                "bytes_total": transfer.bytes_total,
                "bytes_per_second": transfer.bytes_per_second,
                "seconds_left": transfer.bytes_total.saturating_sub(transfer.bytes_done)
                    .checked_div(transfer.bytes_per_second)
                    .filter(|_| transfer.bytes_per_second >= STANDSTILL),
            })),
            "staleness_ms": report.and_then(|report| report.staleness_ms),
            "lacking_bytes": report.map_or(0, |report| report.lacking),
            "state": state,
        })
    }
}

impl Node {
    /// Has `subject` written down for whoever asks. Only where a catalogue is known.
    pub(crate) fn tell_state(&mut self, subject: Subject, asker: Asker, now: Now) {
        if self.admin.telling.is_full(&asker) {
            let text = format!(
                "as many callers wait for the state of the cluster as may: {WAITING_MAX} in all, and {WAITING_EACH_MAX} on a connection"
            );
            return self.answer_admin(asker, Err(Refusal::Busy(text)));
        }
        self.admin.telling.waiting.push_back((subject, asker));
        self.start_telling(now);
    }

    fn start_telling(&mut self, now: Now) {
        if self.admin.telling.running.is_some() {
            return;
        }
        let Some(standing) = self.standing(now) else { return };
        let Some(subject) = self.next_subject(&standing.catalogue) else { return };
        let (mut askers, mut others) = (Vec::new(), VecDeque::new());
        for (of, asker) in std::mem::take(&mut self.admin.telling.waiting) {
            if of == subject && askers.len() < TOLD_AT_ONCE_MAX {
                askers.push(asker);
            } else {
                others.push_back((of, asker));
            }
        }
        self.admin.telling = Telling { waiting: others, running: Some((subject, askers)) };
        let nodes = self.config.peers.keys().map(|node| self.facts_of(*node)).collect();
        let state = State { standing, subject, nodes, clock_word: self.clock_word() };
        self.shards.first().job(Job::Tell { state: Box::new(state) });
    }

    /// What whoever waits longest asks for. Those who ask for a table that was dropped meanwhile are told so.
    fn next_subject(&mut self, catalogue: &Catalogue) -> Option<Subject> {
        loop {
            let (subject, asker) = self.admin.telling.waiting.pop_front()?;
            match subject {
                Subject::Table(table) | Subject::Cluster(Some(table)) if !catalogue.tables.contains_key(&table) => {
                    self.answer_admin(asker, Err(Refusal::NoTable));
                }
                _ => {
                    self.admin.telling.waiting.push_front((subject, asker));
                    return Some(subject);
                }
            }
        }
    }

    fn facts_of(&self, node: NodeId) -> NodeFacts {
        let (slow_score, is_slow) = self.slow_score(node);
        NodeFacts {
            node,
            address: self.view.address_text(node).map(|text| text.to_string()),
            slow_score,
            is_slow,
            clock_ahead_ms: self.view.clock.ahead_micros(node).map(|micros| micros / 1_000),
            is_clock_off: self.view.clock.is_off(node),
        }
    }

    /// The state is written down. Those for whom it is too much in one turn wait for the next.
    pub(crate) fn handle_told(&mut self, text: &str, now: Now) {
        let Some((subject, askers)) = self.admin.telling.running.take() else { return };
        let mut askers = askers.into_iter();
        for asker in askers.by_ref().take((TOLD_BYTES_MAX / text.len().max(1)).max(1)) {
            self.answer_admin_with(asker, text);
        }
        askers.rev().for_each(|asker| self.admin.telling.waiting.push_front((subject, asker)));
        self.start_telling(now);
    }

    /// Notes how many of the voting replicas are up of groups here that know no leader.
    pub(crate) fn note_leaderless(&mut self) {
        let is_leaderless = |hosted: &Hosted| matches!(hosted, Hosted::Running(it) if it.group.leader().is_none());
        let leaderless = self.shards.all_hosted().filter(|(_, hosted)| is_leaderless(hosted));
        let leaderless: Vec<GroupId> = leaderless.map(|(group, _)| *group).collect();
        let leaderless: BTreeMap<_, _> = leaderless.into_iter().map(|group| (group, self.voters_up(group))).collect();
        if *self.view.leaderless != leaderless {
            self.change_view(|view| view.leaderless = leaderless.into());
        }
    }

    /// How many of the voting replicas of a group are there, on nodes that are up.
    fn voters_up(&self, group: GroupId) -> usize {
        let partition = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(group));
        let Some(partition) = partition else { return 0 };
        let is_without = |voter: &ReplicaId| self.reports.told().is_without(group, *voter, partition.replica(*voter));
        let is_up = |voter: &ReplicaId| self.was_alive(voter.node()) && !is_without(voter);
        partition.voters().filter(is_up).count()
    }

    /// The tables that the user of a connection may know of, without their partitions.
    pub(crate) fn tables_told(&self, connection: ConnectionId) -> Result<Value, Refusal> {
        let catalogue = self.view.catalogue.as_ref().ok_or_else(|| self.view.no_catalogue())?;
        let seen = catalogue.tables.values().filter(|it| self.front.may_see(&self.view, connection, &it.name));
        let (dropped, in_use): (Vec<&Table>, Vec<&Table>) = seen.partition(|table| table.dropped.is_some());
        let told = |tables: Vec<&Table>| tables.into_iter().map(table_told).collect::<Vec<_>>();
        Ok(json!({ "tables": told(in_use), "dropped_tables": told(dropped) }))
    }
}

/// An object of JSON, a line for each of its values.
fn lines(object: &Value) -> String {
    let rows = object.as_object().into_iter().flatten();
    rows.map(|(name, value)| format!("{name}: {value}\n")).collect()
}

const fn kind_name(kind: TableKind) -> &'static str {
    match kind {
        TableKind::Hash => "hash",
        TableKind::Ordered => "ordered",
    }
}

/// What a table is, without where it is.
fn table_told(table: &Table) -> Value {
    let mut told = json!({
        "id": table.id.0,
        "name": table.name,
        "kind": kind_name(table.kind),
        "partition_count": table.partitions.len(),
        "replica_count": table.replica_count,
        "options": table.options,
        "created_unix_seconds": table.created_unix_seconds,
    });
    if let Some(dropped) = table.dropped {
        told["dropped_unix_seconds"] = json!(dropped.at_unix_seconds);
        told["kept_until_unix_seconds"] = json!(dropped.until_unix_seconds);
    } else {
        told["state"] = json!(match table.state {
            TableState::Creating => "creating",
            TableState::Available => "available",
        });
    }
    told
}

fn disk_status(disk: &DiskReport) -> Value {
    let state = match (disk.is_stalled, disk.is_full) {
        (true, _) => "stalled",
        (false, true) => "full",
        (false, false) => "ok",
    };
    json!({ "state": state, "free_bytes": disk.free, "total_bytes": disk.total })
}
