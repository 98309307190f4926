//! `hedgerow status` and the text of `hedgerow table describe`.

use crate::cluster::ClusterArguments;
use crate::command::carrying;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::output::{Output, columns, complain, counted, print, say};
use crate::runtime;
use crate::serve::EXPIRY_TOLD_DAYS;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_client::{
    ClusterStatus, DroppedTableStatus, ErrorKind, NodeStatus, PartitionStatus, Summary, TableStatus,
};
use hedgerow_env::Clock as _;
use hedgerow_env::os::OsClock;
use hedgerow_report::rfc3339;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;
use tokio::time::Instant;

/// A cluster that is waited for is looked at so often.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Who waits is told so often what is missing.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// And given so long to answer at least.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// And so long at most.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// The state of a node that is down.
pub(super) const DOWN: &str = "dead";
/// Puts the terminal's cursor into its first corner and removes what stands there.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Show every partition, not only each table.
    #[arg(long)]
    partitions: bool,
    /// Show it again every so many seconds, until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    watch: Option<Duration>,
    /// Wait for so many seconds at most until the cluster is healthy. It is shown then, and ends with code 4 if it is not.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "watch")]
    wait: Option<Duration>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What there is to say of the disks and the replicas of a cluster, beside its summary.
struct Trouble {
    /// Nodes with a disk that takes no more data.
    full: Vec<u16>,
    /// Nodes that do without a data directory.
    without_directory: Vec<u16>,
    /// Nodes without room for a checkpoint, each with the bytes that are lacking.
    without_room: BTreeMap<u16, u64>,
    /// So many replicas do not serve, as far as is known: a moment after they were made or lost, nobody repairs them yet.
    not_ok: usize,
}

impl Trouble {
    fn of(status: &ClusterStatus) -> Self {
        let (full, without_directory) = (status.full_nodes(), status.nodes_without_directory());
        let without_room = status.nodes_without_room();
        Self { full, without_directory, without_room, not_ok: status.replicas_not_ok() }
    }
}

/// The state in a few words.
fn state(summary: &Summary, trouble: &Trouble) -> &'static str {
    if !summary.is_whole() {
        "NOT WHOLE"
    } else if summary.nodes_up < summary.nodes {
        "serving with nodes down"
    } else if !trouble.full.is_empty() {
        "serving with full disks"
    } else if !trouble.without_directory.is_empty() {
        "serving, with data directories missing"
    } else if summary.in_repair > 0 {
        "serving and repairing"
    } else if trouble.not_ok > 0 {
        "serving, not all replicas yet"
    } else {
        "healthy"
    }
}

/// The same with its figures, and what is to be done.
fn summary_line(summary: &Summary, trouble: &Trouble) -> String {
    let Summary { nodes, nodes_up, partitions, without_leader, in_repair, .. } = summary;
    let state = state(summary, trouble);
    let metadata = if summary.metadata_has_leader { "" } else { ", the metadata has no leader" };
    let repair = if *in_repair > 0 { format!(", {in_repair} in repair") } else { String::new() };
    let not_ok = match trouble.not_ok {
        0 => String::new(),
        count => format!(", {} not ok", counted(count as u64, "replica")),
    };
    let full = on_nodes("disk full", &trouble.full, "");
    let what_to_do = " (mount it or put an empty directory in its place, and start the node again)";
    let missing = on_nodes("data directory missing", &trouble.without_directory, what_to_do);
    let room = |(node, bytes): (&u16, &u64)| {
        format!("; node {node} lacks {} MiB of disk for a checkpoint", bytes.div_ceil(1 << 20))
    };
    let room: String = trouble.without_room.iter().map(room).collect();
    let nodes = counted(*nodes, "node");
    format!(
        "{state}: {nodes_up} of {nodes} up, {without_leader} of {partitions} groups without a leader{repair}{metadata}{not_ok}{full}{missing}{room}"
    )
}

/// What is so on which nodes; nothing if on none.
fn on_nodes(what: &str, nodes: &[u16], remark: &str) -> String {
    match nodes {
        [] => String::new(),
        [one] => format!("; {what} on node {one}{remark}"),
        several => {
            let several: Vec<String> = several.iter().map(u16::to_string).collect();
            format!("; {what} on nodes {}{remark}", several.join(", "))
        }
    }
}

/// The log of each data directory, such as `312 (4096)`, in MiB: what it keeps, and what it may keep for others.
fn log_text(node: &NodeStatus) -> String {
    let allowed = node.log_bytes_allowed.as_deref().unwrap_or_default();
    let one = |(directory, kept): (usize, &u64)| match allowed.get(directory) {
        Some(allowed) => format!("{} ({})", kept.div_ceil(1 << 20), allowed >> 20),
        None => kept.div_ceil(1 << 20).to_string(),
    };
    node.log_bytes.iter().flatten().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// `hedgerow status`.
pub(crate) async fn run(arguments: StatusArguments) -> Result<Exit> {
    if let Some(interval) = arguments.watch {
        return watch(&arguments, interval).await;
    }
    if let Some(time) = arguments.wait {
        return wait(&arguments, time).await;
    }
    let (answer, status) = look(&arguments).await?;
    show(&arguments, &answer, &status)?;
    // What is shown is so, whatever else cannot be told.
    if let Err(error) = tell_of_carriers(&arguments, &status).await {
        say(&format!("whether duplicated tables are carried is not known: {error:#}"));
    }
    let is_in_order = status.is_served() && status.nodes_without_directory().is_empty();
    Ok(if is_in_order { Exit::Done } else { Exit::Refused })
}

/// Says which tables are not carried to another cluster that should be.
async fn tell_of_carriers(arguments: &StatusArguments, status: &ClusterStatus) -> Result<()> {
    let of_table = |table: &'_ TableStatus| {
        carrying::clusters_of(&table.options)
            .map(|cluster| (table.name.clone(), cluster.to_owned()))
            .collect::<Vec<_>>()
    };
    let duplications: Vec<(String, String)> = status.tables.iter().flat_map(of_table).collect();
    if duplications.is_empty() {
        return Ok(());
    }
    let told = carrying::ask(&arguments.cluster.connect().await?, &arguments.cluster.access()?).await?;
    let lines = told.lines(duplications.iter().map(|(table, cluster)| (&table[..], &cluster[..])));
    lines.iter().for_each(|line| say(line));
    Ok(())
}

/// Shows the status until somebody has seen enough. A cluster that does not answer is asked again.
async fn watch(arguments: &StatusArguments, interval: Duration) -> Result<Exit> {
    let is_for_eyes = arguments.cluster.output == Output::Text && std::io::stdout().is_terminal();
    let show_again = async {
        let mut is_first = true;
        loop {
            match look(arguments).await {
                Ok((answer, status)) => {
                    if is_for_eyes {
                        print(CLEAR)?;
                    } else if arguments.cluster.output == Output::Text && !std::mem::take(&mut is_first) {
                        print("")?;
                    }
                    show(arguments, &answer, &status)?;
                }
                Err(error) => complain(&error),
            }
            runtime::sleep(interval).await;
        }
    };
    tokio::select! {
        shown = show_again => shown,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("waiting for the interrupt")?;
            Ok(Exit::Done)
        }
    }
}

/// Waits for a cluster that is healthy.
async fn wait(arguments: &StatusArguments, time: Duration) -> Result<Exit> {
    let deadline = runtime::now() + time;
    let mut next_told = runtime::now() + TELL_INTERVAL;
    let mut reason = None;
    loop {
        let left = deadline.saturating_duration_since(runtime::now());
        let looked = look_within(arguments, left.clamp(LOOK_MIN, LOOK_MAX)).await;
        let is_over = runtime::now() + LOOK_INTERVAL >= deadline;
        match looked {
            Ok((answer, status)) if status.is_healthy() => {
                show(arguments, &answer, &status)?;
                return Ok(Exit::Done);
            }
            Ok((answer, status)) if is_over => {
                show(arguments, &answer, &status)?;
                return Ok(Exit::Refused);
            }
            Err(error) if is_over => {
                complain(&telling(error, reason));
                return Ok(Exit::Unreachable);
            }
            Ok((_, status)) => {
                reason = None;
                let missing = status.summary.as_ref().map(|summary| summary_line(summary, &Trouble::of(&status)));
                tell_who_waits(
                    &mut next_told,
                    deadline,
                    missing.as_deref().unwrap_or("the cluster does not say how it is"),
                );
            }
            Err(error) => {
                let error = telling(error, reason);
                tell_who_waits(&mut next_told, deadline, &format!("{error:#}"));
                reason = Some(error);
            }
        }
        runtime::sleep(LOOK_INTERVAL).await;
    }
}

/// Says what is missing, if nothing was said for a while.
fn tell_who_waits(next_told: &mut Instant, deadline: Instant, missing: &str) {
    let now = runtime::now();
    if now >= *next_told {
        *next_told = now + TELL_INTERVAL;
        say(&format!("waiting for {} s at most: {missing}", deadline.saturating_duration_since(now).as_secs()));
    }
}

/// The error that says more: the last one, unless that is silence and an earlier one was told by a node.
fn telling(last: anyhow::Error, earlier: Option<anyhow::Error>) -> anyhow::Error {
    let is_told = |error: &anyhow::Error| {
        let error = error.chain().find_map(|cause| cause.downcast_ref::<hedgerow_client::Error>());
        error.is_some_and(|error| !matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable))
    };
    match earlier {
        Some(earlier) if is_told(&earlier) && !is_told(&last) => earlier,
        _ => last,
    }
}

/// What the cluster says, and what that means. With a connection of its own: the cluster may not have been there before.
async fn look(arguments: &StatusArguments) -> Result<(String, ClusterStatus)> {
    read(arguments.cluster.connect().await?.status_json().await?)
}

/// As [`look`], within about `limit`: a cluster that does not answer is connected to for so long, and asked for so long. What a node
/// says of why it cannot answer is the error then.
async fn look_within(arguments: &StatusArguments, limit: Duration) -> Result<(String, ClusterStatus)> {
    let client = arguments.cluster.connect_within(limit).await?;
    read(client.admin("status", "{}", limit).await?)
}

fn read(answer: String) -> Result<(String, ClusterStatus)> {
    let status = serde_json::from_str(&answer).context("reading the cluster's status")?;
    Ok((answer, status))
}

fn show(arguments: &StatusArguments, answer: &str, status: &ClusterStatus) -> Result<()> {
    match arguments.cluster.output {
        Output::Json => print(&status_json(answer, status)?),
        Output::Text => print(&status_text(status, arguments.partitions)),
    }
}

/// The cluster's JSON, with what the last line of the text says under `summary`.
fn status_json(answer: &str, status: &ClusterStatus) -> Result<String> {
    let mut value: Value = serde_json::from_str(answer).context("reading the cluster's status")?;
    if let Some(summary) = &status.summary {
        let trouble = Trouble::of(status);
        value["summary"]["state"] = state(summary, &trouble).into();
        value["summary"]["replicas_not_ok"] = trouble.not_ok.into();
        value["summary"]["nodes_with_full_disks"] = trouble.full.into();
        value["summary"]["nodes_without_directory"] = trouble.without_directory.into();
    }
    Ok(value.to_string())
}

fn status_text(status: &ClusterStatus, shows_partitions: bool) -> String {
    let node = |node: &NodeStatus| {
        vec![
            node.node.to_string(),
            node.address.clone(),
            state_text(node),
            node.replicas.to_string(),
            node.leaders.to_string(),
            node.slow_score.to_string(),
            clock_text(node),
            log_text(node),
        ]
    };
    let nodes: Vec<_> = status.nodes.iter().map(node).collect();
    let header = ["node", "address", "state", "replicas", "leaders", "slow score", "clock", "log MiB (limit)"];
    let mut parts = vec![columns(&header, &nodes)];
    parts.extend(time_text(&status.time).map(str::to_owned));
    for node in &status.nodes {
        let missing = node.missing_directories.iter();
        parts.extend(missing.map(|directory| format!("node {} goes without data directory {directory}", node.node)));
    }
    parts.extend(shared_logs(status));
    parts.extend(different_rights(status));
    parts.extend(expiring(status, OsClock.unix_micros() / 1_000_000));
    let mut tables: Vec<_> = status.tables.iter().map(table_row).collect();
    tables.sort();
    if !tables.is_empty() {
        let header = ["table", "id", "kind", "state", "partitions", "with leader", "replicas", "not ok", "largest lag"];
        parts.push(columns(&header, &tables));
    }
    let dropped = status.dropped_tables.iter().map(dropped_row).collect::<Vec<_>>();
    if !dropped.is_empty() {
        parts.push(columns(&["dropped table", "id", "partitions", "kept until"], &dropped));
    }
    let mut transfers = transfer_rows("(metadata)", std::slice::from_ref(&status.metadata));
    transfers.extend(status.tables.iter().flat_map(|table| transfer_rows(&table.name, &table.partitions)));
    let of_dropped =
        |table: &DroppedTableStatus| transfer_rows(&format!("{} (dropped)", table.name), &table.partitions);
    transfers.extend(status.dropped_tables.iter().flat_map(of_dropped));
    if !transfers.is_empty() {
        let header = ["learning", "partition", "node", "MiB done", "of", "MiB/s", "seconds left"];
        parts.push(columns(&header, &transfers));
    }
    if shows_partitions {
        parts.extend(status.tables.iter().map(|table| format!("table {}\n{}", table.name, partitions_text(table))));
    }
    parts.extend(status.summary.as_ref().map(|summary| summary_line(summary, &Trouble::of(status))));
    parts.join("\n\n")
}

/// Which nodes lose every log with one of several disks.
fn shared_logs(status: &ClusterStatus) -> Option<String> {
    let has_one = |node: &&NodeStatus| {
        node.log_layout.as_deref() == Some("node") && node.disks.as_ref().is_some_and(|disks| disks.len() > 1)
    };
    let nodes: Vec<String> = status.nodes.iter().filter(has_one).map(|node| node.node.to_string()).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "one log for several data directories (log.layout = node), which is lost with the first: node {}",
            nodes.join(", ")
        )
    })
}

/// Which nodes nobody will believe soon, or believes no more.
fn expiring(status: &ClusterStatus, now: u64) -> Option<String> {
    let line = |node: &NodeStatus| {
        let at = node.certificates_expire_unix_seconds?;
        let days = at.saturating_sub(now) / 86_400;
        let when = if at <= now { "has expired".to_owned() } else { format!("expires in {}", counted(days, "day")) };
        (days < EXPIRY_TOLD_DAYS as u64).then(|| format!("a certificate of node {} {when}", node.node))
    };
    let lines: Vec<String> = status.nodes.iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Which nodes go by rights and which do not, where they differ: whoever is connected with one that does not may do everything.
fn different_rights(status: &ClusterStatus) -> Option<String> {
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in status.nodes.iter().filter(|node| node.state != DOWN) {
        if let Some(mode) = &node.rights {
            nodes.entry(mode).or_default().push(node.node.to_string());
        }
    }
    let by_mode: Vec<String> =
        nodes.iter().map(|(mode, nodes)| format!("{mode} at node {}", nodes.join(", "))).collect();
    (by_mode.len() > 1).then(|| format!("security.rights is not the same everywhere: {}", by_mode.join("; ")))
}

fn state_text(node: &NodeStatus) -> String {
    let mut text = up_or_down(&node.state).to_owned();
    // What it said of itself is over, and it is slow only in that it does not answer.
    if node.state == DOWN {
        return text;
    }
    for (holds, word) in [(node.is_slow, "slow"), (node.is_clock_off, "clock off"), (node.has_full_disk(), "disk full")]
    {
        if holds {
            text.push_str(", ");
            text.push_str(word);
        }
    }
    text
}

/// The word that the rest of the text has for it.
fn up_or_down(state: &str) -> &str {
    match state {
        "alive" => "up",
        DOWN => "down",
        other => other,
    }
}

/// How far the node's clock is off, with a sign; nothing if that is not known.
fn clock_text(node: &NodeStatus) -> String {
    node.clock_ahead_ms.map_or_else(String::new, |ms| format!("{:+.1} s", ms as f64 / 1e3))
}

/// What an operator should know of the time.
fn time_text(word: &str) -> Option<&'static str> {
    match word {
        "held" => Some(
            "No majority of the nodes is there whose clocks agree, or their clocks have jumped: the time goes on as it was, by \
             steady clocks.",
        ),
        "unknown" => Some(
            "No majority of the nodes' clocks agrees on the time since this node started: rows with a time to live do \
             not expire here before one does.",
        ),
        _ => None,
    }
}

fn dropped_row(table: &DroppedTableStatus) -> Vec<String> {
    let DroppedTableStatus { id, name, partition_count, kept_until_unix_seconds, .. } = table;
    vec![name.clone(), id.to_string(), partition_count.to_string(), rfc3339(*kept_until_unix_seconds)]
}

fn table_row(table: &TableStatus) -> Vec<String> {
    let replicas = || table.partitions.iter().flat_map(|partition| &partition.replicas);
    vec![
        table.name.clone(),
        table.id.to_string(),
        table.kind.clone(),
        table.state.clone(),
        table.partition_count.to_string(),
        table.partitions.iter().filter(|partition| partition.leader.is_some()).count().to_string(),
        replicas().count().to_string(),
        table.replicas_not_ok().to_string(),
        replicas().map(|replica| replica.lag).max().unwrap_or(0).to_string(),
    ]
}

/// The checkpoints that are on their way to replicas of a table, or of what else has the `name`.
fn transfer_rows(name: &str, partitions: &[PartitionStatus]) -> Vec<Vec<String>> {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut rows = Vec::new();
    for partition in partitions {
        for replica in &partition.replicas {
            let Some(transfer) = &replica.transfer else { continue };
            rows.push(vec![
                name.to_owned(),
                partition.index.to_string(),
                replica.node.to_string(),
                mib(transfer.bytes_done),
                mib(transfer.bytes_total),
                mib(transfer.bytes_per_second),
                transfer.seconds_left.map_or_else(|| "?".to_owned(), |seconds| seconds.to_string()),
            ]);
        }
    }
    rows
}

/// The JSON of `table describe`: the cluster's, with what became of extra attempts under `extra_attempts`.
pub(crate) fn describe_json(answer: &str, throttled: Option<&Value>) -> Result<String> {
    let mut table: Value = serde_json::from_str(answer).context("reading the description of the table")?;
    table["extra_attempts"] = throttled.cloned().unwrap_or_default();
    Ok(table.to_string())
}

/// The text of `table describe`, from the cluster's JSON.
pub(crate) fn describe_text(answer: &str, throttled: Option<&Value>) -> Result<String> {
    let table: TableStatus = serde_json::from_str(answer).context("reading the description of the table")?;
    let mut text = format!(
        "table {} (id {}), {}, {}: {}, {} each",
        table.name,
        table.id,
        table.kind,
        table.state,
        counted(table.partition_count, "partition"),
        counted(table.replica_count, "replica"),
    );
    for (option, value) in &table.options {
        text.push_str(&format!("\noption {option} = {value}"));
    }
    if let Some(throttled) = throttled {
        let count = |name: &str| throttled[name].as_u64().unwrap_or(0);
        text.push_str(&format!(
            "\nextra attempts since the nodes started: {} served ({} of them delayed), {} dropped",
            count("backup_requests"),
            count("throttling_delayed_backup_requests"),
            count("throttling_rejected_backup_requests"),
        ));
    }
    Ok(format!("{text}\n\n{}", partitions_text(&table)))
}

fn partitions_text(table: &TableStatus) -> String {
    let mut rows = Vec::new();
    for partition in &table.partitions {
        let leader = partition.leader.as_deref().unwrap_or("none");
        for (place, replica) in partition.replicas.iter().enumerate() {
            // What belongs to the partition stands beside its first replica only.
            let of_partition = |text: String| if place == 0 { text } else { String::new() };
            rows.push(vec![
                of_partition(partition.index.to_string()),
                of_partition(leader.to_owned()),
                of_partition(partition.term.to_string()),
                of_partition(partition.commit.to_string()),
                replica.replica.clone(),
                replica.node.to_string(),
                replica.role.clone(),
                replica.state.clone(),
                replica.matched.to_string(),
                replica.applied.to_string(),
                replica.lag.to_string(),
            ]);
        }
    }
    let header =
        ["partition", "leader", "term", "commit", "replica", "node", "role", "state", "matched", "applied", "lag"];
    columns(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_described_with_what_became_of_its_extra_attempts() {
        let throttled = serde_json::json!({
            "backup_requests": 7,
            "throttling_delayed_backup_requests": 2,
            "throttling_rejected_backup_requests": 5,
        });
        let (answer, option) = (r#"{"name":"t","options":{"a":"b"}}"#, "option a = b");
        let text = describe_text(answer, Some(&throttled)).unwrap();
        assert!(text.contains(option) && text.contains("7 served (2 of them delayed), 5 dropped"), "{text}");
        assert!(!describe_text(answer, None).unwrap().contains("served"), "what is not known is not told");
        let json: Value = serde_json::from_str(&describe_json(answer, Some(&throttled)).unwrap()).unwrap();
        assert_eq!((&json["options"]["a"], &json["extra_attempts"]), (&Value::from("b"), &throttled));
    }

    #[test]
    fn m2_the_status_shows_checkpoints_on_their_way() {
        let answer = r#"{"tables":[{"name":"t","partitions":[{"index":3,"replicas":[{"node":1,"state":"ok","transfer":null},
            {"node":2,"state":"learning","transfer":{"bytes_done":1048576,"bytes_total":5242880,"bytes_per_second":2097152,
            "seconds_left":2}}]}]}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        let row = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row, ["t", "3", "2", "1.0", "5.0", "2.0", "2"], "{text}");
        assert!(text.contains("seconds left"), "{text}");
    }

    #[test]
    fn m2_the_status_shows_checkpoints_of_the_metadata_and_of_dropped_tables() {
        let learning = r#"[{"index":0,"replicas":[{"node":2,"transfer":{"bytes_done":0,"bytes_total":1048576}}]}]"#;
        let metadata = &learning[1..learning.len() - 1];
        let answer =
            format!(r#"{{"metadata":{metadata},"dropped_tables":[{{"name":"old","partitions":{learning}}}]}}"#);
        let text = status_text(&serde_json::from_str(&answer).unwrap(), false);
        let rows: Vec<&str> = text.lines().rev().take(2).collect();
        assert!(rows[1].starts_with("(metadata)") && rows[0].starts_with("old (dropped)"), "{text}");
        assert!(rows.iter().all(|row| row.contains("1.0")), "{text}");
    }

    #[test]
    fn m1_the_status_shows_what_log_is_kept_and_what_may_be() {
        let answer = r#"{"nodes":[{"node":1,"log_bytes":[327155712,1],"log_bytes_allowed":[4294967296,536870912]},
            {"node":2,"log_bytes":[1048576],"log_bytes_max":4294967296},{"node":3,"log_bytes":null}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        let ends = ["log MiB (limit)", "312 (4096), 1 (512)", "1"];
        assert!(text.lines().zip(ends).all(|(line, end)| line.ends_with(end)), "{text}");
    }

    #[test]
    fn p10_the_status_shows_dropped_tables_that_still_take_room() {
        let answer =
            r#"{"dropped_tables":[{"id":3,"name":"old","partition_count":8,"kept_until_unix_seconds":1795342500}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["old", "3", "8", "2026-11-22T10:15:00Z"], "{text}");
    }

    #[test]
    fn the_status_says_which_certificates_expire_soon() {
        let day = 86_400;
        let nodes = [1, 2, 3]
            .map(|node| format!(r#"{{"node":{node},"certificates_expire_unix_seconds":{}}}"#, node * 20 * day));
        let answer = format!(r#"{{"nodes":[{},{{"node":4}}]}}"#, nodes.join(","));
        let said = |now| expiring(&serde_json::from_str(&answer).unwrap(), now);
        assert_eq!(said(0).unwrap(), "a certificate of node 1 expires in 20 days");
        let of_two = "a certificate of node 1 has expired\na certificate of node 2 expires in 19 days";
        assert_eq!(said(20 * day + 1).unwrap(), of_two);
        assert_eq!(expiring(&ClusterStatus::default(), 0), None);
    }

    #[test]
    fn the_status_says_where_rights_are_not_the_same() {
        let text = |modes: [&str; 3]| {
            let node = |(node, mode): (usize, &str)| format!(r#"{{"node":{node},"state":"alive","rights":{mode}}}"#);
            let nodes: Vec<String> = (1..).zip(modes).map(node).collect();
            status_text(&serde_json::from_str(&format!(r#"{{"nodes":[{}]}}"#, nodes.join(","))).unwrap(), false)
        };
        let differs = "security.rights is not the same everywhere: off at node 3; required at node 1, 2";
        assert!(text([r#""required""#, r#""required""#, r#""off""#]).contains(differs));
        // A node of an older version does not say.
        assert!(!text([r#""required""#, r#""required""#, "null"]).contains("security.rights"));
    }

    #[test]
    fn n1_the_status_names_the_nodes_whose_disks_are_full() {
        let answer = r#"{"summary":{"nodes":3,"nodes_up":3,"partitions":2,"metadata_has_leader":true},
            "nodes":[{"node":1,"disks":[{"state":"ok"},{"state":"full"}]},{"node":2,"disks":null}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        assert!(text.contains("serving with full disks: 3 of 3") && text.ends_with("; disk full on node 1"), "{text}");
        let json = status_json(answer, &serde_json::from_str(answer).unwrap()).unwrap();
        let summary: Value = serde_json::from_str::<Value>(&json).unwrap()["summary"].take();
        assert_eq!(
            (&summary["state"], &summary["partitions"]),
            (&Value::from("serving with full disks"), &Value::from(2))
        );
        assert_eq!(
            (&summary["nodes_with_full_disks"], &summary["replicas_not_ok"]),
            (&serde_json::json!([1]), &0.into())
        );
    }

    #[test]
    fn who_has_no_room_for_a_checkpoint_is_named_with_what_it_lacks() {
        let answer = r#"{"summary":{"nodes":3,"nodes_up":3,"partitions":2,"in_repair":1,"metadata_has_leader":true},
            "tables":[{"partitions":[{"replicas":[{"node":3,"state":"no room","lacking_bytes":3145729},{"node":1,"state":"ok"}]}]}]}"#;
        let status: ClusterStatus = serde_json::from_str(answer).unwrap();
        let text = status_text(&status, false);
        assert!(
            text.contains("serving and repairing") && text.ends_with("; node 3 lacks 4 MiB of disk for a checkpoint"),
            "{text}"
        );
    }

    #[test]
    fn a_cluster_with_a_directory_missing_is_not_called_healthy_and_says_what_to_do() {
        let answer = r#"{"summary":{"nodes":1,"nodes_up":1,"partitions":2,"metadata_has_leader":true},
            "nodes":[{"node":4,"missing_directories":["/b: it is not there"]}]}"#;
        let status: ClusterStatus = serde_json::from_str(answer).unwrap();
        assert!(!status.is_healthy() && status.is_served());
        let text = status_text(&status, false);
        assert!(text.contains("serving, with data directories missing: 1 of 1 node up"), "{text}");
        assert!(text.contains("; data directory missing on node 4 (mount it or put an empty directory"), "{text}");
        let json: Value = serde_json::from_str(&status_json(answer, &status).unwrap()).unwrap();
        assert_eq!(json["summary"]["nodes_without_directory"], serde_json::json!([4]));
    }

    #[test]
    fn n7_a_cluster_in_repair_is_not_called_healthy() {
        let answer = r#"{"summary":{"nodes":3,"nodes_up":3,"partitions":5,"in_repair":2,"metadata_has_leader":true}}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        let line = "serving and repairing: 3 of 3 nodes up, 0 of 5 groups without a leader, 2 in repair";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn n7_a_cluster_with_replicas_that_do_not_serve_is_not_called_healthy() {
        let answer = r#"{"summary":{"nodes":3,"nodes_up":3,"partitions":2,"metadata_has_leader":true},
            "tables":[{"name":"t","partitions":[{"replicas":[{"state":"ok"},{"state":"missing"}]}]}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        let line = "serving, not all replicas yet: 3 of 3 nodes up, 0 of 2 groups without a leader, 1 replica not ok";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn a_status_with_missing_and_unknown_fields_is_shown() {
        let answer = r#"{"nodes":[{"node":1,"address":"a:1","state":"alive","slow_score":93,"is_slow":true,"new":1,
            "missing_directories":["/b: it is not there"]}],
            "tables":[{"name":"t","partitions":[{"index":0,"leader":null,"replicas":[{"node":1,"state":"down","lag":7}]}]}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), true);
        assert!(text.contains("a:1") && text.contains("none") && text.contains('7'), "{text}");
        assert!(text.contains("up, slow") && text.contains("93"), "{text}");
        assert!(text.contains("node 1 goes without data directory /b: it is not there"), "{text}");
    }

    #[test]
    fn a_node_that_is_down_is_nothing_else() {
        let answer =
            r#"{"nodes":[{"node":1,"state":"dead","is_slow":true,"is_clock_off":true},{"node":2,"state":"alive"}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        assert!(text.contains("down ") && !text.contains("down,"), "{text}");
    }

    #[test]
    fn d6_status_names_the_node_whose_clock_is_off() {
        let answer = r#"{"time":"held","nodes":[{"node":1,"state":"alive","clock_ahead_ms":-40},
            {"node":2,"state":"alive","clock_ahead_ms":31536000000,"is_clock_off":true}]}"#;
        let text = status_text(&serde_json::from_str(answer).unwrap(), false);
        assert!(text.contains("up, clock off") && text.contains("+31536000.0 s") && text.contains("-0.0 s"), "{text}");
        assert!(text.contains("the time goes on as it was"), "{text}");
    }
}
