//! `hedgerow table`: create, drop, recall, list, describe, transfer, set-option, duplicate.

mod duplicate;
mod transfer;

use crate::cluster::ClusterArguments;
use crate::command::status;
use crate::duration::seconds;
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::number::{TIME_UNITS, count, with_unit};
use crate::output::{Output, columns, print, print_result, say};
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use duplicate::DuplicateCommand;
use hedgerow_client::{Client, DroppedTable, Error, ErrorKind, Kept, Reserve, TableKind, TableSpec};
use hedgerow_report::rfc3339;
use serde_json::{Value, json};
use std::time::Duration;

/// Time for all nodes to say what became of a table's extra attempts.
const THROTTLED_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a node to say why the cluster takes no changes.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// Partitions of a table if nobody says how many.
const PARTITIONS: u32 = 8;

/// What to do with tables.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Create a table and wait until it serves.
    Create {
        /// Its name: letters, digits, `_`, `-`, `.`, `:`; at most 128 bytes.
        name: String,
        #[command(flatten)]
        creation: CreateArguments,
    },
    /// Drop a table. It is kept for a while, so that it can be recalled; its name is free at once.
    #[command(visible_alias = "delete")]
    Drop {
        /// Its name.
        name: String,
        /// A missing table is no error.
        #[arg(long)]
        if_exists: bool,
        /// How long it is kept: 90s, 30m, 12h, 7d [default: the cluster's drop.reserve_seconds, 7 days].
        #[arg(long, value_name = "DURATION", value_parser = reserve, conflicts_with = "now")]
        reserve: Option<u64>,
        /// Do not keep it: all its data is gone, and its room is free at once.
        #[arg(long)]
        now: bool,
    },
    /// Put a dropped table back into use, with all its data.
    Recall {
        /// Its number, as `table list --dropped` shows it.
        #[arg(value_parser = number_of_dropped)]
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
        #[arg(value_parser = partition)]
        partition: u32,
        /// The node's number; it has a voting replica of the partition.
        #[arg(value_parser = node)]
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
    /// Copy a table to another cluster, and carry there what is written.
    #[command(subcommand)]
    Duplicate(DuplicateCommand),
}

/// What a new table should be like.
#[derive(Args, Debug)]
pub(crate) struct CreateArguments {
    /// How its keys are spread over its partitions.
    #[arg(long, value_enum, default_value_t = Kind::Hash)]
    kind: Kind,
    /// How many partitions; a power of two of at least 2 for a hash table [default: 8, or as many as --split makes].
    #[arg(long, value_parser = count)]
    partitions: Option<u32>,
    /// How many replicas each partition has [default: 3, or as many as there are nodes].
    #[arg(long, value_parser = count)]
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
}

impl CreateArguments {
    fn spec(self) -> Result<TableSpec> {
        let Self { kind, partitions, replicas, options, split, encoding, if_not_exists } = self;
        let split_key = |key: &String| encoding.decode(key.as_bytes()).map(Bytes::from).context("a key of --split");
        ensure!(
            split.is_empty() || kind == Kind::Ordered,
            "--split says where the partitions of an ordered table begin: add --kind ordered, or leave it out"
        );
        let made = split.len() as u32 + 1;
        ensure!(
            split.is_empty() || partitions.is_none_or(|count| count == made),
            "--split {} makes {made} partitions; leave --partitions out",
            split.join(",")
        );
        Ok(TableSpec {
            kind: kind.into(),
            partition_count: if split.is_empty() { partitions.unwrap_or(PARTITIONS) } else { made },
            replica_count: replicas,
            options: options.into_iter().collect(),
            if_not_exists,
            split_keys: split.iter().map(split_key).collect::<Result<_>>()?,
        })
    }
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
    let seconds = with_unit(text, &TIME_UNITS).ok_or_else(|| {
        format!("{text:?} is not a duration: a whole number with s, m, h or d behind it is, for example 7d")
    })?;
    if seconds == 0 { Err("to keep nothing, say --now".to_owned()) } else { Ok(seconds) }
}

fn number_of_dropped(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "give the number that `hedgerow table list --dropped` shows".to_owned())
}

fn partition(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give the partition's number, from 0, as `hedgerow table describe` shows it".to_owned())
}

fn node(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "give the node's number, from 1, as `hedgerow status` shows it".to_owned())
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
        TableCommand::Create { name, creation } => {
            let created = client.create_table(&name, &creation.spec()?).await;
            let id = match created {
                Ok(id) => id,
                Err(error) => return Err(with_reason(&client, error).await.into()),
            };
            say(&format!("table {name} is ready"));
            let tables = client.list_tables().await.unwrap_or_default();
            let made = tables.iter().find(|table| table.id == id);
            made.and_then(|table| remark_on_replicas(table.replica_count)).into_iter().for_each(say);
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
            transfer::run(&client, &cluster.access()?, &name, (partition, node), wait).await?;
            print_result(
                cluster.output,
                String::new,
                || json!({ "name": name, "partition": partition, "leader": node }),
            )?;
        }
        TableCommand::SetOption { name, option, value } => {
            let (option, value) = option_and_value(option, value)?;
            client.set_option(&name, &option, &value).await?;
            say(&option_text(&name, &option, &value));
            print_result(cluster.output, String::new, || json!({ "name": name, "option": option, "value": value }))?;
        }
        TableCommand::Duplicate(command) => return duplicate::run(command, &client, cluster).await,
    }
    Ok(Exit::Done)
}

/// What became of the table's extra attempts at the nodes that are up; nothing if one of them did not answer.
async fn throttled(client: &Client, name: &str) -> Option<Value> {
    let argument = json!({ "table": name }).to_string();
    let answer = client.admin("throttle_table", &argument, THROTTLED_TIMEOUT).await.ok()?;
    serde_json::from_str(&answer).ok()
}

/// `error` of a cluster that has no leader for its metadata, as the node that is asked explains it: it may wait to be founded.
async fn with_reason(client: &Client, error: Error) -> Error {
    if error.kind() != ErrorKind::Unavailable || error.is_outcome_unknown() {
        return error;
    }
    match client.admin("status", "{}", REASON_TIMEOUT).await {
        Err(reason) if reason.kind() == ErrorKind::Unavailable => reason,
        Ok(_) | Err(_) => error,
    }
}

/// What one should know of a table of so few replicas.
fn remark_on_replicas(count: u64) -> Option<&'static str> {
    match count {
        1 => Some(
            "with 1 replica each row is on one node: while that is down its rows are neither read nor written, and its disk is all there is",
        ),
        2 => Some(
            "with 2 replicas no node may be down, as both must confirm each write: 3 replicas bear the loss of one node",
        ),
        _ => None,
    }
}

/// What became of an option.
fn option_text(name: &str, option: &str, value: &str) -> String {
    if value.is_empty() {
        format!("option {option} of table {name} is removed: its default is in force again")
    } else {
        format!("option {option} of table {name} is set")
    }
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

async fn list_dropped(client: &Client, output: Output) -> Result<()> {
    let tables = client.dropped_tables().await?;
    let text = || {
        let row = |table: &DroppedTable| {
            vec![
                table.name.clone(),
                table.id.to_string(),
                table.kind.name().to_owned(),
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
                "kind": table.kind.name(),
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

async fn list(client: &Client, output: Output) -> Result<()> {
    let tables = client.list_tables().await?;
    let text = || {
        let row = |table: &hedgerow_client::TableSummary| {
            let state = if table.is_available { "available" } else { "creating" };
            vec![
                table.name.clone(),
                table.id.to_string(),
                table.kind.name().to_owned(),
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
                "kind": table.kind.name(),
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
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(subcommand)]
        command: TableCommand,
    }

    fn parse(words: &str) -> Result<TableCommand, String> {
        let words = format!("table {words}");
        Words::try_parse_from(words.split_whitespace()).map(|it| it.command).map_err(|error| error.to_string())
    }

    #[test]
    fn split_keys_say_how_many_partitions_there_are() {
        let spec = |words: &str| match parse(&format!("create t {words}")) {
            Ok(TableCommand::Create { creation, .. }) => creation.spec().map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        };
        assert_eq!(spec("").unwrap().partition_count, 8);
        assert_eq!(spec("--kind ordered --split m,t").unwrap().partition_count, 3);
        assert_eq!(spec("--kind ordered --split m,t --partitions 3").unwrap().partition_count, 3);
        let refused = "--split m,t makes 3 partitions; leave --partitions out";
        assert_eq!(spec("--kind ordered --split m,t --partitions 5").unwrap_err(), refused);
        assert!(spec("--split m").unwrap_err().contains("--kind ordered"));
    }

    #[test]
    fn what_is_no_number_is_told_which_number_is_meant() {
        for (words, expected) in [
            ("recall t1", "give the number that `hedgerow table list --dropped` shows"),
            ("transfer t one 2", "give the partition's number, from 0"),
            ("transfer t 0 n2", "give the node's number, from 1"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected) && !error.contains("invalid digit"), "{error}");
        }
    }

    #[test]
    fn p10_a_reserve_is_a_whole_number_with_a_unit() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("30min", 1_800), ("12h", 43_200), ("7d", 604_800)] {
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
