//! What `status` and `describe` show: the catalogue beside what the nodes report.

use crate::node::Node;
use crate::outbox::ConnectionId;
use crate::peer::{DiskReport, PeerReport, ReplicaReport, ReplicaState};
use crate::replica::Hosted;
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, Replica, ReplicaRole, Table, TableKind, TableState};
use hedgerow_types::{GroupId, Refusal, ReplicaId, Term};
use serde_json::{Value, json};

/// Bytes per second below which a transfer stands still, so that nobody knows how long it takes.
const STANDSTILL: u64 = 1 << 10;

impl Node {
    pub(crate) fn status(&self, command: &str, argument: &str, now: Now) -> Result<Value, Refusal> {
        let catalogue = self.shard.view.catalogue.as_ref().ok_or_else(|| self.shard.view.no_catalogue())?;
        let argument: Value = serde_json::from_str(argument).unwrap_or(Value::Null);
        let name = argument.get("table").or(argument.get("name")).and_then(Value::as_str);
        let tables: Vec<&Table> = match (command, name) {
            (_, Some(name)) => vec![catalogue.table_by_name(name).ok_or(Refusal::NoTable)?],
            ("describe", None) => return Err(Refusal::Invalid("describe needs the name of a table".into())),
            _ => catalogue.tables_in_use().collect(),
        };
        let tables: Vec<Value> = tables.into_iter().map(|table| self.table_status(table, now)).collect();
        if command == "describe" {
            return tables.into_iter().next().ok_or(Refusal::NoTable);
        }
        Ok(json!({
            "cluster": format!("{:016x}", catalogue.cluster),
            "catalogue_version": catalogue.version,
            "summary": self.summary(catalogue, now),
            "metadata": self.partition_status(GroupId::META, now),
            "time": self.clock_word(),
            "nodes": self.config.peers.keys().map(|node| self.node_status(*node, now)).collect::<Vec<_>>(),
            "tables": tables,
            "dropped_tables": catalogue.tables.values().filter_map(|table| self.dropped_status(table, now)).collect::<Vec<_>>(),
        }))
    }

    fn node_status(&self, node: hedgerow_types::NodeId, now: Now) -> Value {
        let report = self.reports.nodes.get(&node).map(|(report, _)| report);
        let replicas = report.map_or(&[][..], |report| &report.replicas);
        let is_leader = |replica: &&ReplicaReport| {
            let group = GroupId::from_u64(replica.group);
            !self.is_kept(group)
                && self.confirmed_leader(group, now).is_some_and(|(_, leader)| leader.0 == replica.replica)
        };
        let leaders = replicas.iter().filter(is_leader).count();
        let (slow_score, is_slow) = self.slow_score(node);
        let missing = report.map_or(&[][..], |report| &report.missing_directories);
        json!({
            "node": node.0,
            "address": self.shard.view.address_text(node).map_or_else(String::new, |text| text.to_string()),
            "state": if self.is_up_to_date(node, now) { "alive" } else { "dead" },
            "replicas": replicas.len(),
            "replicas_max": self.reports.nodes.get(&node).map(|(report, _)| report.replicas_max),
            "leaders": leaders,
            "log_layout": report.map(|report| &report.log_layout).filter(|layout| !layout.is_empty()),
            "rights": report.map(|report| &report.rights).filter(|mode| !mode.is_empty()),
            "log_bytes": report.map(|report| &report.log_bytes),
            "log_bytes_max": report.map(|report| report.log_bytes_max),
            "log_bytes_allowed": report.map(|report| &report.log_bytes_allowed),
            "slow_score": slow_score,
            "is_slow": is_slow,
            "disks": report.map(|report| report.disks.iter().map(disk_status).collect::<Vec<_>>()),
            "clock_ahead_ms": self.shard.view.clock.ahead_micros(node).map(|micros| micros / 1_000),
            "is_clock_off": self.shard.view.clock.is_off(node),
            "missing_directories": missing,
            "labels": self.shard.view.catalogue.as_ref().and_then(|it| it.nodes.get(&node)).map(|it| &it.labels),
        })
    }

    /// The leader of `group` and its term, if it is up, has not said since that it does not lead, and a majority of the voters is up with it and takes
    /// what it writes. What the others say of the leader does not count: reports are a second apart.
    pub(crate) fn confirmed_leader(&self, group: GroupId, now: Now) -> Option<(Term, ReplicaId)> {
        let (term, leader) = self.leader_of(group)?;
        let voters: Vec<ReplicaId> = self.shard.view.catalogue.as_ref()?.group(group)?.voters().collect();
        let is_up = |replica: ReplicaId| self.is_alive(replica.node(), now) && !self.is_without(group, replica);
        let counts = |voter: &&ReplicaId| is_up(**voter) && !self.needs_checkpoint(group, leader, **voter);
        let up = voters.iter().filter(counts).count();
        (is_up(leader) && !self.has_stepped_down(group) && up > voters.len() / 2).then_some((term, leader))
    }

    /// Whether `replica` takes nothing before it has a checkpoint, by the word of its `leader`.
    fn needs_checkpoint(&self, group: GroupId, leader: ReplicaId, replica: ReplicaId) -> bool {
        let report = self.replica_report(group, leader.0, leader.node());
        let peer = report.and_then(|report| report.peers.iter().find(|peer| peer.replica == replica.0));
        peer.is_some_and(|peer| peer.needs_checkpoint)
    }

    /// Whether a replica's node says that it does not have it, and knows that it should, or has other data than those that it was
    /// assigned to.
    fn is_without(&self, group: GroupId, replica: ReplicaId) -> bool {
        let report = self.replica_report(group, replica.0, replica.node());
        if let Some(report) = report {
            return ReplicaState::from_code(report.state) == Some(ReplicaState::Lost);
        }
        let Some((report, _)) = self.reports.nodes.get(&replica.node()) else { return false };
        let assigned = self.shard.view.catalogue.as_ref().and_then(|it| it.group(group)?.replica(replica));
        let is_of_another_life = assigned.is_some_and(|it| it.incarnation.0 != report.incarnation);
        report.next_replica > replica.counter() || is_of_another_life
    }

    /// Notes how many of the voting replicas are up of groups here that know no leader.
    pub(crate) fn note_leaderless(&mut self) {
        let is_leaderless = |hosted: &Hosted| matches!(hosted, Hosted::Running(it) if it.group.leader().is_none());
        let leaderless = self.shard.replicas.hosted.iter().filter(|(_, hosted)| is_leaderless(hosted));
        let leaderless: Vec<GroupId> = leaderless.map(|(group, _)| *group).collect();
        self.shard.view.leaderless = leaderless.into_iter().map(|group| (group, self.voters_up(group))).collect();
    }

    /// How many of the voting replicas of a group are there, on nodes that are up.
    fn voters_up(&self, group: GroupId) -> usize {
        let partition = self.shard.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(group));
        let is_up = |voter: &ReplicaId| self.was_alive(voter.node()) && !self.is_without(group, *voter);
        partition.map_or(0, |partition| partition.voters().filter(is_up).count())
    }

    /// The cluster in a few figures: who only wants to know whether all of it serves need not look further.
    pub(crate) fn summary(&self, catalogue: &Catalogue, now: Now) -> Value {
        let groups: Vec<GroupId> =
            catalogue.groups().map(|(group, _)| group).filter(|group| !catalogue.is_kept(*group)).collect();
        let without_leader = groups.iter().filter(|group| self.confirmed_leader(**group, now).is_none()).count();
        let in_repair = groups.iter().filter(|group| self.is_in_repair(catalogue, **group, now)).count();
        json!({
            "nodes": self.config.peers.len(),
            "nodes_up": self.config.peers.keys().filter(|node| self.is_up_to_date(**node, now)).count(),
            "partitions": groups.len(),
            "without_leader": without_leader,
            "in_repair": in_repair,
            "metadata_has_leader": self.confirmed_leader(GroupId::META, now).is_some(),
        })
    }

    /// Whether a replica of `group` is lost or damaged on a node that is up, or needs a checkpoint, or its successor does not vote yet.
    fn is_in_repair(&self, catalogue: &Catalogue, group: GroupId, now: Now) -> bool {
        let leader = self.leader_of(group);
        let is_bad = |replica: &Replica| {
            let is_joining = matches!(replica.role, ReplicaRole::Joining { .. });
            let is_behind = leader.is_some_and(|(_, leader)| self.needs_checkpoint(group, leader, replica.id));
            let is_lost = self.is_without(group, replica.id) || self.is_damaged(group, replica.id) || is_behind;
            is_joining || (self.is_alive(replica.id.node(), now) && is_lost)
        };
        catalogue.group(group).is_some_and(|partition| partition.replicas.iter().any(is_bad))
    }

    /// The tables that the user of a connection may know of, without their partitions.
    pub(crate) fn tables_told(&self, connection: ConnectionId) -> Result<Value, Refusal> {
        let catalogue = self.shard.view.catalogue.as_ref().ok_or_else(|| self.shard.view.no_catalogue())?;
        let seen =
            catalogue.tables.values().filter(|it| self.shard.requests.may_see(&self.shard.view, connection, &it.name));
        let (dropped, in_use): (Vec<&Table>, Vec<&Table>) = seen.partition(|table| table.dropped.is_some());
        let told = |tables: Vec<&Table>| tables.into_iter().map(table_told).collect::<Vec<_>>();
        Ok(json!({ "tables": told(in_use), "dropped_tables": told(dropped) }))
    }

    fn table_status(&self, table: &Table, now: Now) -> Value {
        let mut status = table_told(table);
        status["partitions"] = json!(self.partitions_status(table, now));
        status
    }

    /// A table that is dropped and kept. Its replicas are repaired like others, so that it has transfers too.
    fn dropped_status(&self, table: &Table, now: Now) -> Option<Value> {
        table.dropped.map(|_| self.table_status(table, now))
    }

    fn partitions_status(&self, table: &Table, now: Now) -> Vec<Value> {
        let groups = (0..table.partitions.len() as u32).map(|partition| GroupId { table: table.id, partition });
        groups.map(|group| self.partition_status(group, now)).collect()
    }

    fn partition_status(&self, group: GroupId, now: Now) -> Value {
        let leader = self.confirmed_leader(group, now);
        let leader_report = leader.and_then(|(_, leader)| self.replica_report(group, leader.0, leader.node()));
        let replicas =
            self.shard.view.catalogue.as_ref().and_then(|it| it.group(group)).map_or(&[][..], |it| &it.replicas);
        let replicas: Vec<Value> =
            replicas.iter().map(|replica| self.replica_status(group, replica, leader_report, now)).collect();
        json!({
            "index": group.partition,
            "leader": leader.and_then(|(_, leader)| self.shard.view.address_text(leader.node())).map(|text| text.to_string()),
            "term": leader.map_or(0, |(term, _)| term),
            "commit": leader_report.map_or(0, |report| report.commit),
            "replicas": replicas,
        })
    }

    fn replica_status(&self, group: GroupId, replica: &Replica, leader: Option<&ReplicaReport>, now: Now) -> Value {
        let node = replica.id.node();
        let report = self.replica_report(group, replica.id.0, node);
        let commit = leader.map_or(0, |leader| leader.commit);
        let applied = report.map_or(0, |report| report.applied);
        let peer = leader.and_then(|leader| leader.peers.iter().find(|peer| peer.replica == replica.id.0));
        let state = match report.and_then(|report| ReplicaState::from_code(report.state)) {
            _ if !self.is_alive(node, now) => "down",
            Some(_) if report.is_some_and(|report| report.is_damaged) => "damaged",
            Some(_) if report.is_some_and(|report| report.lacking > 0) => "no room",
            Some(ReplicaState::Follower) if peer.is_some_and(|peer| peer.needs_checkpoint) => "learning",
            Some(ReplicaState::Leader | ReplicaState::Follower) => "ok",
            Some(ReplicaState::Learner)
                if replica.role == ReplicaRole::Learner && self.is_serving_learner(group, replica.id, now) =>
            {
                "ok"
            }
            Some(ReplicaState::Learner | ReplicaState::Starting) => "learning",
            Some(ReplicaState::Lost) => "lost",
            None if self.is_without(group, replica.id) => "missing",
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

    pub(crate) fn replica_report(
        &self,
        group: GroupId,
        replica: u64,
        node: hedgerow_types::NodeId,
    ) -> Option<&ReplicaReport> {
        let (report, _) = self.reports.nodes.get(&node)?;
        report.replica_of(group).filter(|one| one.replica == replica)
    }
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
