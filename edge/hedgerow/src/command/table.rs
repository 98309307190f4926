//! `hedgerow table`: create, drop, recall, list, describe, transfer, set-option.

use crate::cluster::ClusterArguments;
use crate::command::status;
use crate::duration::seconds;
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::output::{Output, columns, print, print_result, say};
use crate::runtime;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::{Subcommand, ValueEnum};
use hedgerow_client::{DroppedTable, Kept, Reserve, TableKind, TableSpec};
use hedgerow_report::rfc3339;
use serde_json::{Value, json};
use std::time::Duration;

/// Time for all nodes to say what became of a table's extra attempts.
const THROTTLED_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a partition to be given another preferred leader.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Whether it leads is looked at so often.
const LOOKED_EVERY: Duration = Duration::from_millis(200);

/// What to do with tables.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Create a table and wait until it serves.
    Create {
        /// Its name: letters, digits, `_`, `-`, `.`, `:`; at most 128 bytes.
        name: String,
        /// How its keys are spread over its partitions.
        #[arg(long, value_enum, default_value_t = Kind::Hash)]
        kind: Kind,
        /// How many partitions; a power of two of at least 2 for a hash table.
        #[arg(long, default_value_t = 8)]
        partitions: u32,
        /// How many replicas each partition has [default: 3, or as many as there are nodes].
        #[arg(long)]
        replicas: Option<u32>,
        /// An option of the table; can be repeated.
        #[arg(long = "option", value_name = "NAME=VALUE", value_parser = name_and_value)]
        options: Vec<(String, String)>,
        /// Of an ordered table: where its second and later partitions begin [default: evenly over the first two bytes].
        #[arg(long, value_name = "KEY,...", value_delimiter = ',')]
        split: Vec<String>,
        /// How the keys of --split are written.
        #[arg(long, value_enum, default_value_t = Encoding::Text)]
        encoding: Encoding,
        /// A table of the same name is no error.
        #[arg(long)]
        if_not_exists: bool,
    },
    /// Drop a table. It is kept for a while, so that it can be recalled; its name is free at once.
    Drop {
        /// Its name.
        name: String,
        /// A missing table is no error.
        #[arg(long)]
        if_exists: bool,
        /// How long it is kept: 90s, 30min, 12h, 7d [default: the cluster's drop.reserve_seconds, 7 days].
        #[arg(long, value_name = "DURATION", value_parser = reserve, conflicts_with = "now")]
        reserve: Option<u64>,
        /// Do not keep it: all its data is gone, and its room is free at once.
        #[arg(long)]
        now: bool,
    },
    /// Put a dropped table back into use, with all its data.
    Recall {
        /// Its number, as `table list --dropped` shows it.
        id: u64,
        /// Its name from now on [default: the one that it had].
        name: Option<String>,
    },
    /// List the tables.
    List {
        /// Those that are dropped and can be recalled.
        #[arg(long)]
        dropped: bool,
    },
    /// Show a table, its partitions and its replicas.
    Describe {
        /// Its name.
        name: String,
    },
    /// Have a node lead a partition from now on, whenever it can, and wait until it does.
    Transfer {
        /// The table's name.
        name: String,
        /// The partition's number, as `table describe` shows it.
        partition: u32,
        /// The node's number; it has a voting replica of the partition.
        node: u16,
        /// How long to wait until it leads.
        #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
        wait: Duration,
    },
    /// Set an option of a table.
    SetOption {
        /// The table's name.
        name: String,
        /// The option's name, or NAME=VALUE.
        option: String,
        /// Its new value, unless it was given with the name; empty = back to its default.
        value: Option<String>,
    },
}

/// How keys are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// By the hash of the hash key.
    Hash,
    /// By ranges of the key.
    Ordered,
}

impl From<Kind> for TableKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Hash => Self::Hash,
            Kind::Ordered => Self::Ordered,
        }
    }
}

/// Whole seconds, from a number with a unit.
fn reserve(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("min", 60), ("s", 1), ("h", 3_600), ("d", 86_400)];
    let seconds = UNITS.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*seconds)
    });
    let seconds = seconds.ok_or_else(|| {
        format!("{text:?} is not a duration: a whole number with s, min, h or d behind it is, for example 7d")
    })?;
    if seconds == 0 { Err("to keep nothing, say --now".to_owned()) } else { Ok(seconds) }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// An option and its value, written as one word or as two.
fn option_and_value(option: String, value: Option<String>) -> Result<(String, String)> {
    match value {
        Some(value) => Ok((option, value)),
        None => name_and_value(&option).ok().with_context(|| format!("the new value of {option} is missing")),
    }
}

/// Runs a command about tables.
pub(crate) async fn run(command: TableCommand, cluster: &ClusterArguments) -> Result<Exit> {
    let client = cluster.connect().await?;
    match command {
        TableCommand::Create { name, kind, partitions, replicas, options, split, encoding, if_not_exists } => {
            let split_key = |key: &String| encoding.decode(key.as_bytes()).map(Bytes::from).context("a key of --split");
            ensure!(
                split.is_empty() || kind == Kind::Ordered,
                "--split says where the partitions of an ordered table begin: add --kind ordered, or leave it out"
            );
            let split_keys: Vec<Bytes> = split.iter().map(split_key).collect::<Result<_>>()?;
            let spec = TableSpec {
                kind: kind.into(),
                partition_count: if split_keys.is_empty() { partitions } else { split_keys.len() as u32 + 1 },
                replica_count: replicas,
                options: options.into_iter().collect(),
                if_not_exists,
                split_keys,
            };
            let id = client.create_table(&name, &spec).await?;
            say(&format!("table {name} is ready"));
            print_result(cluster.output, String::new, || json!({ "name": name, "id": id }))?;
        }
        TableCommand::Drop { name, if_exists, reserve, now } => {
            let reserve = if now { Some(0) } else { reserve };
            let reserve = reserve.map_or(Reserve::ByDefault, Reserve::Seconds);
            let kept = client.drop_table(&name, if_exists, reserve).await?;
            say(&dropped_text(&name, kept, if_exists));
            print_result(cluster.output, String::new, || {
                let (id, until) = (kept.map(|kept| kept.id), kept.map(|kept| kept.until_unix_seconds));
                json!({ "name": name, "id": id, "kept_until_unix_seconds": until })
            })?;
        }
        TableCommand::Recall { id, name } => {
            let name = client.recall_table(id, name.as_deref()).await?;
            say(&format!("table {id} is in use again, as {name}"));
            print_result(cluster.output, String::new, || json!({ "name": name, "id": id }))?;
        }
        TableCommand::List { dropped: true } => list_dropped(&client, cluster.output).await?,
        TableCommand::List { dropped: false } => list(&client, cluster.output).await?,
        TableCommand::Describe { name } => {
            let answer = client.describe_table_json(&name).await?;
            let throttled = throttled(&client, &name).await;
            match cluster.output {
                Output::Json => print(&status::describe_json(&answer, throttled.as_ref())?)?,
                Output::Text => print(&status::describe_text(&answer, throttled.as_ref())?)?,
            }
        }
        TableCommand::Transfer { name, partition, node, wait } => {
            transfer(&client, &name, (partition, node), wait).await?;
            print_result(
                cluster.output,
                String::new,
                || json!({ "name": name, "partition": partition, "leader": node }),
            )?;
        }
        TableCommand::SetOption { name, option, value } => {
            let (option, value) = option_and_value(option, value)?;
            client.set_option(&name, &option, &value).await?;
            say(&format!("option {option} of table {name} is set"));
            print_result(cluster.output, String::new, || json!({ "name": name, "option": option, "value": value }))?;
        }
    }
    Ok(Exit::Done)
}

/// Has a node lead a partition, and waits until it does.
async fn transfer(
    client: &hedgerow_client::Client,
    name: &str,
    (partition, node): (u32, u16),
    wait: Duration,
) -> Result<()> {
    let argument = json!({ "table": name, "partition": partition, "node": node }).to_string();
    client.admin("prefer_leader", &argument, TRANSFER_TIMEOUT).await?;
    say(&format!("node {node} is to lead partition {partition} of table {name} whenever it can"));
    let until = runtime::now() + wait;
    loop {
        let status = client.status().await?;
        let address = status.nodes.iter().find(|it| it.node == node).map(|it| &it.address);
        let table = status.tables.iter().find(|it| it.name == name);
        let leader = table.and_then(|it| it.partitions.get(partition as usize)?.leader.as_ref());
        if leader.is_some() && leader == address {
            say(&format!("node {node} leads it"));
            return Ok(());
        }
        ensure!(
            runtime::now() < until,
            "node {node} does not lead partition {partition} of table {name} yet: it takes over once it is up, has caught up and is not \
             slow (`hedgerow table describe {name}`)"
        );
        runtime::sleep(LOOKED_EVERY).await;
    }
}

/// What became of the table's extra attempts at the nodes that are up; nothing if one of them did not answer.
async fn throttled(client: &hedgerow_client::Client, name: &str) -> Option<Value> {
    let argument = json!({ "table": name }).to_string();
    let answer = client.admin("throttle_table", &argument, THROTTLED_TIMEOUT).await.ok()?;
    serde_json::from_str(&answer).ok()
}

/// Of a table that is not kept the cluster does not tell whether it was there.
fn dropped_text(name: &str, kept: Option<Kept>, may_be_missing: bool) -> String {
    match kept {
        Some(Kept { id, until_unix_seconds }) => format!(
            "table {name} is dropped; it is kept until {}: `hedgerow table recall {id}` puts it back",
            rfc3339(until_unix_seconds)
        ),
        None if may_be_missing => format!("there is no table {name} any more, if there was one"),
        None => format!("table {name} is dropped"),
    }
}

const fn kind_name(kind: TableKind) -> &'static str {
    match kind {
        TableKind::Hash => "hash",
        TableKind::Ordered => "ordered",
    }
}

async fn list_dropped(client: &hedgerow_client::Client, output: Output) -> Result<()> {
    let tables = client.dropped_tables().await?;
    let text = || {
        let row = |table: &DroppedTable| {
            vec![
                table.name.clone(),
                table.id.to_string(),
                kind_name(table.kind).to_owned(),
                table.partition_count.to_string(),
                table.replica_count.to_string(),
                rfc3339(table.dropped_unix_seconds),
                rfc3339(table.kept_until_unix_seconds),
            ]
        };
        let rows: Vec<_> = tables.iter().map(row).collect();
        columns(&["table", "id", "kind", "partitions", "replicas", "dropped", "kept until"], &rows)
    };
    let json = || {
        let table = |table: &DroppedTable| {
            json!({
                "name": table.name,
                "id": table.id,
                "kind": kind_name(table.kind),
                "partition_count": table.partition_count,
                "replica_count": table.replica_count,
                "dropped_unix_seconds": table.dropped_unix_seconds,
                "kept_until_unix_seconds": table.kept_until_unix_seconds,
            })
        };
        Value::Array(tables.iter().map(table).collect())
    };
    print_result(output, text, json)
}

async fn list(client: &hedgerow_client::Client, output: Output) -> Result<()> {
    let tables = client.list_tables().await?;
    let text = || {
        let row = |table: &hedgerow_client::TableSummary| {
            let state = if table.is_available { "available" } else { "creating" };
            vec![
                table.name.clone(),
                table.id.to_string(),
                kind_name(table.kind).to_owned(),
                table.partition_count.to_string(),
                table.replica_count.to_string(),
                state.to_owned(),
            ]
        };
        let rows: Vec<_> = tables.iter().map(row).collect();
        columns(&["table", "id", "kind", "partitions", "replicas", "state"], &rows)
    };
    let json = || {
        let table = |table: &hedgerow_client::TableSummary| {
            json!({
                "name": table.name,
                "id": table.id,
                "kind": kind_name(table.kind),
                "partition_count": table.partition_count,
                "replica_count": table.replica_count,
                "state": if table.is_available { "available" } else { "creating" },
                "options": table.options,
                "created_unix_seconds": table.created_unix_seconds,
            })
        };
        Value::Array(tables.iter().map(table).collect())
    };
    print_result(output, text, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_a_reserve_is_a_whole_number_with_a_unit() {
        for (text, seconds) in [("90s", 90), ("30min", 1_800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(reserve(text), Ok(seconds));
        }
        for wrong in ["7", "1.5h", "d", "", "7 weeks", "-1s", "99999999999999999999d"] {
            assert!(reserve(wrong).unwrap_err().contains("for example 7d"), "{wrong}");
        }
        assert!(reserve("0s").unwrap_err().contains("--now"));
    }

    #[test]
    fn p10_a_drop_says_until_when_it_can_be_taken_back_and_how() {
        let text = dropped_text("users", Some(Kept { id: 3, until_unix_seconds: 1_795_342_500 }), false);
        assert!(text.contains("until 2026-11-22T10:15:00Z") && text.contains("hedgerow table recall 3"), "{text}");
        assert_eq!(dropped_text("users", None, false), "table users is dropped");
    }
}
