//! Clients' administrative calls: Pegasus' messages to our commands and back, and what is answered from the catalogue.

use crate::admin::Asker;
use crate::catalogue_change::Change;
use crate::node::Node;
use crate::requests::caller::Caller;
use crate::requests::reads::Reflected;
use crate::status::Subject;
use hedgerow_env::Now;
use hedgerow_placement::{Partition, Table, TableKind, TableState};
use hedgerow_types::limit::TABLE_NAME_SIZE_MAX;
use hedgerow_types::{GroupId, NodeId, Refusal, ReplicaId};
use hedgerow_wire::message::{
    APP_TYPE, AdminCommandReply, ClusterInfoReply, CommandLineReply, CreateTable, CreateTableReply, ListNodesReply,
    ListTables, ListTablesReply, NodeInfo, NodePlace, PartitionConfig, QueryConfig, QueryConfigReply, RecallTableReply,
    TableInfo, UpdateEnvs, app_status, env_operation, match_type, node_status,
};
use hedgerow_wire::value::Binary;
use hedgerow_wire::{Address, Body, ErrorName, HostPort, Method, PartitionId, PlainAddress, Reply, Text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Env of Pegasus' table creation that asks for an ordered table.
const KIND_ENV: &str = "hedgerow.kind";
/// Characters of an unknown command that are said again.
const TOLD_MAX: usize = 64;
/// Messages up to this size, bytes, are said as they are.
const MESSAGE_MAX: usize = 512;

impl Node {
    pub(crate) fn serve_admin(&mut self, caller: Caller, body: Body, now: Now) {
        if let Some(refusal) = self.front.why_not_call(&self.view, caller.connection, &body, now) {
            return self.answer_admin_refused(&caller, &refusal);
        }
        let asker = Asker::client;
        match body {
            Body::QueryConfig(query) => match self.query_config(&query, caller.is_extended, now) {
                Some(reply) => {
                    self.shards.first().requests.note_mapped(reply.partitions.len());
                    self.shards.first().serving().answer(&caller, &Reply::QueryConfig(reply), Reflected::default());
                }
                None => self.look_for_table(query.app_name.as_str(), caller, now),
            },
            Body::CreateTable(create) => {
                let argument = creation(&create);
                self.run_admin("create_table", &argument.to_string(), asker(caller), now);
            }
            Body::DropTable(drop) => {
                let argument = json!({
                    "name": drop.app_name.as_str(),
                    "if_exists": drop.options.success_if_not_exist,
                    "reserve_seconds": drop.options.reserve_seconds.filter(|seconds| *seconds > 0),
                });
                self.run_admin("drop_table", &argument.to_string(), asker(caller), now);
            }
            Body::RecallTable(recall) => {
                let name = Some(recall.new_app_name.as_str()).filter(|name| !name.is_empty());
                let argument = json!({ "id": recall.app_id.max(0), "name": name });
                self.run_admin("recall_table", &argument.to_string(), asker(caller), now);
            }
            Body::UpdateEnvs(update) => match options_command(&update) {
                Ok((command, argument)) => self.run_admin(command, &argument.to_string(), asker(caller), now),
                Err(refusal) => self.answer_admin(asker(caller), Err(refusal)),
            },
            Body::ListTables(list) => {
                let tables = self.view.catalogue.iter().flat_map(|it| it.tables.values());
                let seen = tables.filter(|it| self.front.may_see(&self.view, caller.connection, &it.name));
                let infos = seen.map(table_info).collect();
                let reply = listed(infos, &list);
                self.shards.first().serving().answer(&caller, &Reply::ListTables(reply), Reflected::default());
            }
            Body::ListNodes(list) => {
                let mut infos = self.node_infos(caller.is_extended, now);
                infos.retain(|info| list.status == 0 || list.status == info.status);
                let reply = ListNodesReply { err: ErrorName::Ok, infos };
                self.shards.first().serving().answer(&caller, &Reply::ListNodes(reply), Reflected::default());
            }
            Body::ClusterInfo(_) => {
                let reply = self.cluster_info();
                self.shards.first().serving().answer(&caller, &Reply::ClusterInfo(reply), Reflected::default());
            }
            Body::CommandLine(call) => self.run_command_line(call.command.as_str(), caller, now),
            Body::HedgerowAdmin(command) => {
                self.run_admin(command.command.as_str(), command.argument.as_str(), asker(caller), now);
            }
            _ => self.shards.first().serving().answer_refused(&caller, &Refusal::Unknown),
        }
    }

    /// Where the partitions of a table are; `None` if this node does not know it. Every node answers from its copy of the
    /// catalogue and what it has heard of leaders, so that no node is needed for it.
    fn query_config(&self, query: &QueryConfig, is_extended: bool, now: Now) -> Option<QueryConfigReply> {
        let Some(catalogue) = &self.view.catalogue else {
            return Some(unanswered(&self.view.no_catalogue()));
        };
        let table = catalogue.table_by_name(query.app_name.as_str())?;
        if table.state == TableState::Creating {
            return Some(unanswered(&Refusal::Creating));
        }
        let wanted: BTreeSet<i32> = query.partition_indices.iter().copied().collect();
        let numbered = wanted.into_iter().filter_map(|index| Some((index, table.partitions.get(index as usize)?)));
        let mut partitions: Vec<PartitionConfig> =
            numbered.map(|indexed| self.partition_config(table, indexed, is_extended, now)).collect();
        if partitions.is_empty() {
            let all = (0..).zip(&table.partitions);
            partitions = all.map(|indexed| self.partition_config(table, indexed, is_extended, now)).collect();
        }
        let is_ordered = table.kind == TableKind::Ordered;
        let start = |partition: &Partition| Binary(bytes::Bytes::copy_from_slice(&partition.start));
        Some(QueryConfigReply {
            err: ErrorName::Ok,
            app_id: table.id.0 as i32,
            partition_count: table.partitions.len() as i32,
            is_stateful: true,
            partitions,
            table_kind: is_extended.then_some(i32::from(is_ordered)),
            start_keys: (is_extended && is_ordered).then(|| table.partitions.iter().map(start).collect()),
            nodes: is_extended.then(|| self.node_places(table)),
        })
    }

    /// Answers about a table that this node does not know. That there is none only the metadata's leader can tell: others may be
    /// late, or cut off.
    fn look_for_table(&mut self, name: &str, caller: Caller, now: Now) {
        if name.len() > TABLE_NAME_SIZE_MAX {
            let reply = Reply::QueryConfig(unanswered(&Refusal::NoTable));
            return self.shards.first().serving().answer(&caller, &reply, Reflected::default());
        }
        let leader = self.leader_of(GroupId::META).map(|(_, leader)| leader.node());
        let reply = match leader.filter(|leader| self.is_alive(*leader, now)) {
            Some(leader) if leader != self.config.node => QueryConfigReply::forward(self.wire_address(leader)),
            Some(_) if self.has_no_table(name, now) => unanswered(&Refusal::NoTable),
            Some(_) if self.leads_metadata() => {
                return self.change(Change::Find { name: name.to_owned() }, Asker::client(caller), now);
            }
            Some(_) | None => unanswered(&Refusal::NotReady("the metadata has no leader at the moment".into())),
        };
        self.shards.first().serving().answer(&caller, &Reply::QueryConfig(reply), Reflected::default());
    }

    /// What operators say about the places of the nodes that have replicas of `table`.
    fn node_places(&self, table: &Table) -> Vec<NodePlace> {
        let nodes = self.view.hosts.get(&table.id).into_iter().flatten().copied();
        let known = self.view.catalogue.as_ref().map(|catalogue| &catalogue.nodes);
        let place = |id: NodeId| {
            let labels = &known?.get(&id)?.labels;
            let labels = labels.iter().map(|(key, value)| Text::from(format!("{key}={value}"))).collect();
            Some(NodePlace { address: PlainAddress(self.wire_address(id)), labels })
        };
        nodes.filter_map(place).collect()
    }

    fn partition_config(
        &self,
        table: &Table,
        (index, partition): (i32, &Partition),
        is_extended: bool,
        now: Now,
    ) -> PartitionConfig {
        let group = GroupId { table: table.id, partition: index as u32 };
        let known = self.leader_of(group).filter(|(_, leader)| partition.replica(*leader).is_some());
        // Go fails the whole table over one partition without a primary: a replica that may not lead is a better answer
        // than none, since it says so and the client asks again. One on a node that is down says nothing.
        let is_up = |replica: &ReplicaId| self.is_alive(replica.node(), now);
        let candidates = known.map(|(_, leader)| leader).into_iter().chain([partition.preferred_leader]);
        let leader = candidates.chain(partition.voters()).find(is_up).unwrap_or(partition.preferred_leader);
        let others: Vec<ReplicaId> =
            partition.voters().filter(|replica| *replica != leader && self.is_alive(replica.node(), now)).collect();
        let has_host_ports = self.has_host_ports(is_extended);
        PartitionConfig {
            pid: PartitionId { app_id: table.id.0 as i32, partition_index: index },
            ballot: known.map_or(1, |(term, _)| term as i64),
            max_replica_count: table.replica_count as i32,
            primary: self.wire_address(leader.node()),
            secondaries: others.iter().map(|replica| self.wire_address(replica.node())).collect(),
            last_drops: Vec::new(),
            last_committed_decree: 0,
            partition_flags: 0,
            hp_primary: has_host_ports.then(|| self.host_port(leader.node())),
            hp_secondaries: has_host_ports.then(|| others.iter().map(|it| self.host_port(it.node())).collect()),
            hp_last_drops: has_host_ports.then(Vec::new),
            // Pegasus' clients would take one for a secondary, which may become the primary.
            learners: is_extended.then(|| {
                let standing = self.standing(now);
                let is_serving =
                    |learner: &ReplicaId| standing.as_ref().is_some_and(|it| it.is_serving_learner(group, *learner));
                let serving = partition.learners().filter(is_serving);
                serving.map(|replica| self.wire_address(replica.node())).collect()
            }),
        }
    }

    fn wire_address(&self, node: NodeId) -> Address {
        let text = self.view.address_text(node);
        text.and_then(|text| text.as_str().parse().ok()).map_or(Address::NONE, Address::new)
    }

    fn node_infos(&self, is_extended: bool, now: Now) -> Vec<NodeInfo> {
        let status = |node| if self.is_alive(node, now) { node_status::ALIVE } else { node_status::UNALIVE };
        let nodes = self.config.peers.keys();
        nodes
            .map(|node| NodeInfo {
                status: status(*node),
                node: self.wire_address(*node),
                hp_node: self.has_host_ports(is_extended).then(|| self.host_port(*node)),
            })
            .collect()
    }

    /// Answers a command that an operator sends to this node with Pegasus' shells.
    fn run_command_line(&mut self, command: &str, caller: Caller, now: Now) {
        let output = match command {
            "help" => "help: what there is\nversion: of this node\nserver-info: the same\nstatus: the cluster in a few figures; \
                       `hedgerow status` says more\n"
                .to_owned(),
            "version" | "server-info" => format!("Hedgerow {}\n", env!("CARGO_PKG_VERSION")),
            "status" if self.view.catalogue.is_some() => {
                return self.tell_state(Subject::Figures, Asker::client(caller), now);
            }
            "status" => format!("{}\n", self.view.no_catalogue()),
            other => format!("there is no command {:?}; \"help\" says what there is\n", beginning(other)),
        };
        let reply = Reply::CommandLine(CommandLineReply { output: output.into() });
        self.shards.first().serving().answer(&caller, &reply, Reflected::default());
    }

    /// Whether replies say hosts and ports too; clients of ours have no use for them.
    fn has_host_ports(&self, is_extended: bool) -> bool {
        self.config.has_host_ports && !is_extended
    }

    fn host_port(&self, node: NodeId) -> HostPort {
        let text = self.view.address_text(node).map_or_else(String::new, |text| text.to_string());
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        parts.map_or_else(HostPort::default, |(host, port)| HostPort { host: Text::from(host), port, kind: 1 })
    }

    fn cluster_info(&self) -> ClusterInfoReply {
        let leader = self.leader_of(GroupId::META).and_then(|(_, leader)| self.view.address_text(leader.node()));
        let rows = [
            ("meta_servers", self.meta_addresses()),
            ("primary_meta_server", leader.map_or_else(String::new, |text| text.to_string())),
            ("cluster_id", format!("{:016x}", self.identity.cluster)),
            ("catalogue_version", self.catalogue_version().to_string()),
        ];
        ClusterInfoReply {
            err: ErrorName::Ok,
            keys: rows.iter().map(|(key, _)| Text::from(*key)).collect(),
            values: rows.iter().map(|(_, value)| Text::from(value.as_str())).collect(),
        }
    }

    fn meta_addresses(&self) -> String {
        let addresses = self.config.meta_nodes.iter().filter_map(|node| self.view.address_text(*node));
        addresses.map(|text| text.to_string()).collect::<Vec<_>>().join(",")
    }
}

/// As much of a text as somebody needs to know it again: each of its bytes may become several where it is said again.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(TOLD_MAX).collect()
}

/// A message that may quote something long: its beginning and its end, if it is long itself.
pub(crate) fn shortened(message: String) -> String {
    if message.len() <= MESSAGE_MAX {
        return message;
    }
    let end: Vec<char> = message.chars().rev().take(TOLD_MAX).collect();
    format!("{} ... {}", beginning(&message), end.into_iter().rev().collect::<String>())
}

/// The tables that a request asks for by status and name.
fn listed(mut infos: Vec<TableInfo>, list: &ListTables) -> ListTablesReply {
    let pattern = list.pattern.as_ref().map_or("", Text::as_str);
    let is_named: fn(&str, &str) -> bool = match list.match_type.unwrap_or(match_type::ALL) {
        // A caller that says no type has no pattern.
        match_type::INVALID | match_type::ALL => |_, _| true,
        match_type::EXACT => |name, pattern| name == pattern,
        match_type::ANYWHERE => |name, pattern| name.contains(pattern),
        match_type::PREFIX => |name, pattern| name.starts_with(pattern),
        match_type::POSTFIX => |name, pattern| name.ends_with(pattern),
        match_type::REGEX => {
            let hint = Some(Text::from_static("regular expressions are not supported"));
            return ListTablesReply { err: ErrorName::NotImplemented, infos: Vec::new(), hint };
        }
        other => {
            let hint = Some(Text::from(format!("there is no match type {other}")));
            return ListTablesReply { err: ErrorName::InvalidParameters, infos: Vec::new(), hint };
        }
    };
    infos.retain(|info| [0, info.status].contains(&list.status) && is_named(info.app_name.as_str(), pattern));
    ListTablesReply { err: ErrorName::Ok, infos, hint: None }
}

fn creation(create: &CreateTable) -> Value {
    let options = &create.options;
    let mut envs: BTreeMap<&str, &str> =
        options.envs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let kind = envs.remove(KIND_ENV).unwrap_or("hash");
    json!({
        "name": create.app_name.as_str(),
        "kind": kind,
        "partition_count": options.partition_count.max(0),
        "replica_count": (options.replica_count > 0).then_some(options.replica_count),
        "options": envs,
        "if_not_exists": options.success_if_exist,
        "may_repeat": true,
    })
}

fn options_command(update: &UpdateEnvs) -> Result<(&'static str, Value), Refusal> {
    let name = update.app_name.as_str();
    let keys: Vec<&str> = update.keys.iter().flatten().map(Text::as_str).collect();
    Ok(match update.op {
        env_operation::SET => {
            let values: Vec<&str> = update.values.iter().flatten().map(Text::as_str).collect();
            if keys.len() != values.len() {
                return Err(Refusal::Invalid(format!(
                    "each option needs a value: {} and {} were given",
                    keys.len(),
                    values.len()
                )));
            }
            let options: BTreeMap<&str, &str> = keys.into_iter().zip(values).collect();
            ("set_options", json!({ "name": name, "options": options }))
        }
        env_operation::DELETE => ("delete_options", json!({ "name": name, "keys": keys })),
        env_operation::CLEAR => {
            let prefix = update.clear_prefix.as_ref().map_or("", Text::as_str);
            ("clear_options", json!({ "name": name, "prefix": prefix }))
        }
        other => return Err(Refusal::Invalid(format!("there is no operation {other} on options"))),
    })
}

fn table_info(table: &Table) -> TableInfo {
    TableInfo {
        status: match (table.dropped, table.state) {
            (Some(_), _) => app_status::DROPPED,
            (None, TableState::Available) => app_status::AVAILABLE,
            (None, TableState::Creating) => app_status::CREATING,
        },
        app_type: Text::from_static(APP_TYPE),
        app_name: Text::from(table.name.as_str()),
        app_id: table.id.0 as i32,
        partition_count: table.partitions.len() as i32,
        envs: table.options.iter().map(|(key, value)| (Text::from(key.as_str()), Text::from(value.as_str()))).collect(),
        is_stateful: true,
        max_replica_count: table.replica_count as i32,
        create_second: table.created_unix_seconds as i64,
        drop_second: table.dropped.map_or(0, |dropped| dropped.at_unix_seconds as i64),
        expire_second: table.dropped.map_or(0, |dropped| dropped.until_unix_seconds as i64),
        init_partition_count: -1,
        ..TableInfo::default()
    }
}

/// What a recall answers.
pub(crate) fn recalled(table: &Table) -> Value {
    json!({
        "recalled": table.id.0,
        "name": table.name,
        "partition_count": table.partitions.len(),
        "replica_count": table.replica_count,
        "options": table.options,
        "created_unix_seconds": table.created_unix_seconds,
    })
}

/// The same as Pegasus says it.
fn recalled_info(answer: &Value) -> TableInfo {
    let number = |name: &str| answer[name].as_i64().unwrap_or(0);
    let options = answer["options"].as_object().into_iter().flatten();
    let text = |value: &Value| Text::from(value.as_str().unwrap_or_default());
    TableInfo {
        status: app_status::AVAILABLE,
        app_type: Text::from_static(APP_TYPE),
        app_name: text(&answer["name"]),
        app_id: number("recalled") as i32,
        partition_count: number("partition_count") as i32,
        envs: options.map(|(key, value)| (Text::from(key.as_str()), text(value))).collect(),
        is_stateful: true,
        max_replica_count: number("replica_count") as i32,
        create_second: number("created_unix_seconds"),
        init_partition_count: -1,
        ..TableInfo::default()
    }
}

/// The answer to a query that does not say where a table is.
fn unanswered(refusal: &Refusal) -> QueryConfigReply {
    QueryConfigReply { err: ErrorName::of_query_refusal(refusal), ..QueryConfigReply::default() }
}

/// The reply to a call that went well.
pub(crate) fn reply_of(method: Method, answer: &Value) -> Reply {
    match method {
        Method::CreateTable => {
            let appid = answer.get("created").and_then(Value::as_i64).unwrap_or(0) as i32;
            Reply::CreateTable(CreateTableReply { err: ErrorName::Ok, appid })
        }
        Method::RecallTable => Reply::RecallTable(RecallTableReply { err: ErrorName::Ok, info: recalled_info(answer) }),
        Method::HedgerowAdmin => {
            Reply::HedgerowAdmin(AdminCommandReply { err: ErrorName::Ok, text: Text::from(answer.to_string()) })
        }
        // A table was found that this node does not know yet.
        Method::QueryConfig => Reply::QueryConfig(unanswered(&Refusal::NotReady("the table is new".into()))),
        // The other replies hold nothing but how it went.
        method => Reply::admin_failed(method, ErrorName::Ok, ""),
    }
}
