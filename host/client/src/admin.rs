//! Tables and nodes: creating, dropping, describing.

use crate::client::Client;
use crate::cluster::{Question, Sort};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::now;
use crate::status::{ClusterStatus, TableStatus};
use bytes::Bytes;
use hedgerow_routing::TableKind;
use hedgerow_types::limit::{CREATION_PER_PARTITION, PARTITION_COUNT_MAX};
use hedgerow_wire::message::{AdminCommand, ListNodes, NodeInfo, node_status};
use hedgerow_wire::{Body, Reply, Text};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// The least time that one node gets for an admin request.
const ADMIN_PATIENCE_MIN: Duration = Duration::from_secs(5);

/// What a new table should be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// How its keys are spread.
    pub kind: TableKind,
    /// Number of partitions; a power of two of at least 2 for a hash table.
    pub partition_count: u32,
    /// Replicas of each partition, at most the number of nodes; `None` = the cluster's default.
    pub replica_count: Option<u32>,
    /// Table options by name.
    pub options: BTreeMap<String, String>,
    /// A table of the same name is no error.
    pub if_not_exists: bool,
    /// Of an ordered table: where its partitions begin, the first one left out. Empty = evenly over the first two bytes.
    pub split_keys: Vec<Bytes>,
}

impl Default for TableSpec {
    /// A hash table of 8 partitions.
    fn default() -> Self {
        Self {
            kind: TableKind::Hash,
            partition_count: 8,
            replica_count: None,
            options: BTreeMap::new(),
            if_not_exists: false,
            split_keys: Vec::new(),
        }
    }
}

/// How long a dropped table is kept, so that it can be recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// As long as the cluster is set to: `drop.reserve_seconds`, seven days by default.
    #[default]
    ByDefault,
    /// So many seconds; 0 = it is removed at once, and its room is free.
    Seconds(u64),
}

/// A table that is dropped and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTable {
    /// Its number, by which it is recalled.
    pub id: u64,
    /// The name that it had.
    pub name: String,
    /// How its keys are spread.
    pub kind: TableKind,
    /// Number of partitions.
    pub partition_count: u64,
    /// Replicas of each.
    pub replica_count: u64,
    /// When it was dropped, unix seconds.
    pub dropped_unix_seconds: u64,
    /// When it is removed for good, unix seconds.
    pub kept_until_unix_seconds: u64,
}

/// What became of a table that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its number, by which it is recalled.
    pub id: u64,
    /// When it is removed for good, unix seconds.
    pub until_unix_seconds: u64,
}

/// One table of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// How its keys are spread.
    pub kind: TableKind,
    /// Number of partitions.
    pub partition_count: u64,
    /// Replicas of each.
    pub replica_count: u64,
    /// Whether it is in use, and not still being created.
    pub is_available: bool,
    /// Options by name.
    pub options: BTreeMap<String, String>,
    /// When it was created, unix seconds; 0 = not known.
    pub created_unix_seconds: u64,
}

/// One node of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    /// Where it serves clients.
    pub address: SocketAddr,
    /// Whether the cluster reaches it.
    pub is_alive: bool,
}

impl Client {
    /// Creates a table and waits until it can be opened. Returns its id. With `if_not_exists` it is asked for again where the outcome is not
    /// known, also if somebody else has dropped the table of the name in between; without, such an error ends it
    /// ([`Error::is_outcome_unknown`]).
    pub async fn create_table(&self, name: &str, spec: &TableSpec) -> Result<u64> {
        let argument = json!({
            "name": name,
            "kind": match spec.kind {
                TableKind::Hash => "hash",
                TableKind::Ordered => "ordered",
            },
            "partition_count": spec.partition_count,
            "replica_count": spec.replica_count,
            "options": spec.options,
            "if_not_exists": spec.if_not_exists,
            "split_keys": spec.split_keys.iter().map(|key| hex(key)).collect::<Vec<_>>(),
        });
        self.forget(name);
        let timeout = self.admin_timeout() + CREATION_PER_PARTITION * spec.partition_count.min(PARTITION_COUNT_MAX);
        let sort = if spec.if_not_exists { Sort::Idempotent } else { Sort::Once };
        let answer = self.command_within("create_table", &argument, timeout, sort).await;
        let answer = answer.map_err(|error| of_table(name, error))?;
        let id = answer["created"].as_u64().unwrap_or(0);
        self.expect(name, id).await?;
        Ok(id)
    }

    /// Drops a table. With `if_exists` a missing table is no error. It is kept as `reserve` says, and can be recalled
    /// meanwhile; `None` = it is gone, or there was none. An error whose outcome is unknown ([`Error::is_outcome_unknown`]) means that
    /// it may have been dropped: it is not asked for again by itself, since another table may have the name by then.
    pub async fn drop_table(&self, name: &str, if_exists: bool, reserve: Reserve) -> Result<Option<Kept>> {
        let mut argument = json!({ "name": name, "if_exists": if_exists });
        if let Reserve::Seconds(seconds) = reserve {
            argument["reserve_seconds"] = json!(seconds);
        }
        let result = self.command("drop_table", &argument, Sort::Once).await;
        self.forget(name);
        let answer = result.map_err(|error| of_table(name, error))?;
        let kept = |id| Kept { id, until_unix_seconds: answer["kept_until_unix_seconds"].as_u64().unwrap_or(0) };
        Ok(answer["kept"].as_u64().map(kept))
    }

    /// Puts a dropped table that is kept back into use, as `name` or under the name that it had. Returns its name.
    pub async fn recall_table(&self, id: u64, name: Option<&str>) -> Result<String> {
        let answer = self.command("recall_table", &json!({ "id": id, "name": name }), Sort::Once).await;
        let answer = answer.map_err(|error| of_recall(id, error))?;
        let name = answer["name"].as_str().unwrap_or_default().to_owned();
        self.expect(&name, id).await?;
        Ok(name)
    }

    /// The tables that are dropped and kept, by number.
    pub async fn dropped_tables(&self) -> Result<Vec<DroppedTable>> {
        let told = self.command("tables", &json!({}), Sort::Look).await?;
        let tables = told["dropped_tables"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(tables.iter().map(to_dropped).collect())
    }

    /// All tables that are not dropped, by name; where users have rights, those that this one may do anything with.
    pub async fn list_tables(&self) -> Result<Vec<TableSummary>> {
        let told = self.command("tables", &json!({}), Sort::Look).await?;
        let tables = told["tables"].as_array().map_or(&[][..], Vec::as_slice);
        let mut tables: Vec<TableSummary> = tables.iter().map(to_summary).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tables)
    }

    /// Sets options of a table; an empty value takes an option back to its default. Where the outcome is unknown
    /// ([`Error::is_outcome_unknown`]) it is not asked for again by itself: somebody else may have set it since.
    pub async fn set_option(&self, table: &str, option: &str, value: &str) -> Result<()> {
        let result = if value.is_empty() {
            self.command("delete_options", &json!({ "name": table, "keys": [option] }), Sort::Once).await
        } else {
            self.command("set_options", &json!({ "name": table, "options": { option: value } }), Sort::Once).await
        };
        result.map(|_| ()).map_err(|error| of_table(table, error))
    }

    /// All nodes, by address.
    pub async fn list_nodes(&self) -> Result<Vec<NodeSummary>> {
        let body = Body::ListNodes(ListNodes { status: 0 });
        let Reply::ListNodes(reply) = self.ask(&body, self.admin_timeout(), Sort::Look).await? else {
            return Err(unexpected("list_nodes"));
        };
        let summary = |info: NodeInfo| {
            let address = info.node.socket()?.into();
            Some(NodeSummary { address, is_alive: info.status == node_status::ALIVE })
        };
        let mut nodes: Vec<NodeSummary> = reply.infos.into_iter().filter_map(summary).collect();
        nodes.sort_by_key(|node| node.address);
        self.cluster.note_nodes(nodes.iter().map(|node| node.address));
        Ok(nodes)
    }

    /// What the cluster says of its nodes, tables, partitions and replicas.
    pub async fn status(&self) -> Result<ClusterStatus> {
        read_json("status", &self.status_json().await?)
    }

    /// As [`Client::status`], as JSON: with everything that the node says, also what this version of the client does not know.
    pub async fn status_json(&self) -> Result<String> {
        self.run_command("status", "{}".into(), self.admin_timeout(), Sort::Look).await
    }

    /// What the cluster says of one table.
    pub async fn describe_table(&self, name: &str) -> Result<TableStatus> {
        read_json("describe", &self.describe_table_json(name).await?)
    }

    /// As [`Client::describe_table`], as JSON.
    pub async fn describe_table_json(&self, name: &str) -> Result<String> {
        let argument = json!({ "table": name }).to_string();
        let answer = self.run_command("describe", argument, self.admin_timeout(), Sort::Look).await;
        answer.map_err(|error| of_table(name, error))
    }

    /// Has some node carry out the admin command `command` with a JSON argument, within `timeout`; the result is JSON. The
    /// command must be harmless to repeat.
    pub async fn admin(&self, command: &str, argument: &str, timeout: Duration) -> Result<String> {
        self.run_command(command, argument.to_owned(), timeout, Sort::Idempotent).await
    }

    /// As [`Client::admin`], for a command that is not asked for again where its outcome is not known ([`Error::is_outcome_unknown`]).
    pub async fn admin_once(&self, command: &str, argument: &str, timeout: Duration) -> Result<String> {
        self.run_command(command, argument.to_owned(), timeout, Sort::Once).await
    }

    pub(crate) async fn command(&self, command: &str, argument: &Value, sort: Sort) -> Result<Value> {
        self.command_within(command, argument, self.admin_timeout(), sort).await
    }

    async fn command_within(&self, command: &str, argument: &Value, timeout: Duration, sort: Sort) -> Result<Value> {
        let text = self.run_command(command, argument.to_string(), timeout, sort).await?;
        read_json(command, &text)
    }

    pub(crate) async fn run_command(
        &self,
        command: &str,
        argument: String,
        timeout: Duration,
        sort: Sort,
    ) -> Result<String> {
        let body = Body::HedgerowAdmin(AdminCommand { command: Text::from(command), argument: Text::from(argument) });
        match self.ask(&body, timeout, sort).await? {
            Reply::HedgerowAdmin(reply) => Ok(reply.text.to_string()),
            _ => Err(unexpected(command)),
        }
    }

    async fn ask(&self, body: &Body, timeout: Duration, sort: Sort) -> Result<Reply> {
        let _under_way = self.cluster.begin()?;
        let patience = ADMIN_PATIENCE_MIN.max(timeout.saturating_sub(ADMIN_PATIENCE_MIN));
        self.cluster.ask(Question { body, deadline: now() + timeout, patience, sort }).await
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(command: &str, text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::protocol(format!("{command}: the answer cannot be read: {error}")))
}

/// The cluster does not repeat the name in its answer.
fn of_table(name: &str, error: Error) -> Error {
    if error.kind() == ErrorKind::NoTable {
        error.saying(format!("there is no table {name:?}"))
    } else if error.kind() == ErrorKind::TableExists {
        error.saying(format!("there is a table {name:?} already"))
    } else {
        error
    }
}

fn of_recall(id: u64, error: Error) -> Error {
    if error.kind() == ErrorKind::NoTable {
        error.saying(format!("no dropped table has the number {id}, or its time is over"))
    } else if error.kind() == ErrorKind::TableExists {
        error.saying(format!("table {id} is in use: there is nothing to recall"))
    } else {
        error
    }
}

fn to_dropped(table: &Value) -> DroppedTable {
    let number = |name: &str| table[name].as_u64().unwrap_or(0);
    DroppedTable {
        id: number("id"),
        name: table["name"].as_str().unwrap_or_default().to_owned(),
        kind: kind_of(table),
        partition_count: number("partition_count"),
        replica_count: number("replica_count"),
        dropped_unix_seconds: number("dropped_unix_seconds"),
        kept_until_unix_seconds: number("kept_until_unix_seconds"),
    }
}

fn kind_of(table: &Value) -> TableKind {
    if table["kind"] == "ordered" { TableKind::Ordered } else { TableKind::Hash }
}

fn to_summary(table: &Value) -> TableSummary {
    let number = |name: &str| table[name].as_u64().unwrap_or(0);
    let options = table["options"].as_object().into_iter().flatten();
    TableSummary {
        id: number("id"),
        name: table["name"].as_str().unwrap_or_default().to_owned(),
        kind: kind_of(table),
        partition_count: number("partition_count"),
        replica_count: number("replica_count"),
        is_available: table["state"] != "creating",
        options: options.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
        created_unix_seconds: number("created_unix_seconds"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unexpected(operation: &str) -> Error {
    Error::protocol(format!("{operation}: the reply is of another kind than the request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_tables_name_them() {
        let missing = || Error::new(ErrorKind::NoTable, "the table does not exist");
        let exists = || Error::new(ErrorKind::TableExists, "the table exists already").with_unknown_outcome(true);
        assert_eq!(of_table("users", missing()).to_string(), "there is no table \"users\"");
        let error = of_table("users", exists());
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::TableExists, true));
        assert_eq!(error.message(), "there is a table \"users\" already");
        assert!(of_recall(99, missing()).message().starts_with("no dropped table has the number 99"));
        assert!(of_recall(3, exists()).message().starts_with("table 3 is in use"));
        let other = Error::new(ErrorKind::Timeout, "late");
        assert_eq!(of_table("users", other.clone()), other);
    }
}
