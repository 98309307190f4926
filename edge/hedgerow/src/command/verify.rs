//! `hedgerow verify`: compares the replicas of a table by checksum.

use super::status::DOWN;
use crate::access::Access;
use crate::cluster::ClusterArguments;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::output::{columns, counted, print_result, say};
use crate::runtime::{now, sleep, spawn};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use hedgerow_client::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(500);
/// What a node gets to answer at least.
const ANSWER_MIN: Duration = Duration::from_secs(5);
/// How often it is looked whether a node that has not answered yet is down.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How people are told.
const IS_DOWN: &str = "it is down";
/// What stands between a node's address and why it refuses.
const REFUSES: &str = " refuses: ";

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArguments {
    /// The table.
    table: String,
    /// How long to wait until all replicas stand at the same log index, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    wait: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// The checksums of a table's replicas.
#[derive(Debug, Default, Serialize)]
struct Checksums {
    partitions: Vec<Partition>,
}

#[derive(Debug, Default, Serialize)]
struct Partition {
    index: u64,
    replicas: Vec<Replica>,
}

/// One replica's checksum over all its live rows, at a log index.
#[derive(Debug, Default, Serialize)]
struct Replica {
    node: u16,
    checksum: String,
    rows: u64,
    index: u64,
}

/// The same, as its node tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Part {
    /// The partition.
    index: u64,
    node: u16,
    checksum: String,
    rows: u64,
    applied: u64,
}

impl From<Part> for Replica {
    fn from(Part { node, checksum, rows, applied, .. }: Part) -> Self {
        Self { node, checksum, rows, index: applied }
    }
}

impl Checksums {
    /// By partition and node: they come as nodes answer.
    fn sort(&mut self) {
        self.partitions.sort_by_key(|partition| partition.index);
        self.partitions.iter_mut().for_each(|partition| partition.replicas.sort_by_key(|replica| replica.node));
    }
}

/// What a comparison tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// All replicas are there, at one index, with one checksum.
    Equal,
    /// Some replica is missing or at another index: nothing can be said yet.
    NotComparable,
    /// Two replicas at one index have different rows.
    Differ,
}

/// What a look at all replicas of a table found.
struct Found {
    checksums: Checksums,
    /// Why some replica has no checksum here, each with its node.
    missing: Vec<String>,
    /// Whether nothing is missing but what was on nodes that are down: they are not waited for.
    is_all_there_is: bool,
}

/// `hedgerow verify`.
pub(crate) async fn run(arguments: VerifyArguments) -> Result<Exit> {
    let client = arguments.cluster.connect().await?;
    let access = arguments.cluster.access()?;
    let deadline = now() + arguments.wait;
    let replica_count = client.describe_table(&arguments.table).await?.replica_count as usize;
    let mut says_waiting = true;
    loop {
        let found = look(&client, &access, &arguments.table, deadline).await?;
        let verdict = match judge(&found.checksums, replica_count) {
            Verdict::Equal if !found.missing.is_empty() => Verdict::NotComparable,
            verdict => verdict,
        };
        let are_others_equal = judge(&found.checksums, 0) == Verdict::Equal;
        let is_over = now() + PAUSE >= deadline;
        if verdict != Verdict::NotComparable || is_over || (found.is_all_there_is && are_others_equal) {
            return report(&arguments, &found, verdict);
        }
        if std::mem::take(&mut says_waiting) {
            say("waiting until all replicas stand at the same log index");
        }
        sleep(PAUSE).await;
    }
}

/// Asks each node with replicas of `table` for their checksums, all at once. A node that is down is not asked.
async fn look(client: &Client, access: &Access, table: &str, deadline: Instant) -> Result<Found> {
    let status = client.status().await?;
    let Some(described) = status.tables.iter().find(|it| it.name == table) else {
        // Says that there is none, or that the node that was asked has not heard of it.
        client.describe_table(table).await?;
        bail!("the table {table} was dropped or made anew meanwhile");
    };
    let replicas = described.partitions.iter().flat_map(|partition| &partition.replicas);
    let hosts: BTreeSet<u16> = replicas.map(|replica| replica.node).collect();
    let limit = deadline.saturating_duration_since(now()).max(ANSWER_MIN);
    let mut found = Found { checksums: Checksums::default(), missing: Vec::new(), is_all_there_is: true };
    let mut asked = Vec::new();
    for host in hosts {
        match status.nodes.iter().find(|node| node.node == host) {
            Some(node) if node.state != DOWN && !node.address.is_empty() => {
                let (client, access) = (client.clone(), access.clone());
                let asking = checksums_of(client, access, node.address.clone(), host, table.to_owned(), limit);
                asked.push((host, spawn(asking)));
            }
            Some(_) | None => found.missing.push(not_answered(host, IS_DOWN)),
        }
    }
    let mut partitions: BTreeMap<u64, Vec<Replica>> = BTreeMap::new();
    for (host, answer) in asked {
        match answer.await.context("a question to a node ended")? {
            Ok(parts) => {
                for part in parts {
                    partitions.entry(part.index).or_default().push(part.into());
                }
            }
            Err(reason) => {
                found.is_all_there_is &= reason == not_answered(host, IS_DOWN);
                found.missing.push(reason);
            }
        }
    }
    found.missing.sort();
    found.checksums.partitions =
        partitions.into_iter().map(|(index, replicas)| Partition { index, replicas }).collect();
    found.checksums.sort();
    Ok(found)
}

/// The checksums of the replicas of `table` on one node, or why there are none. A node that goes down meanwhile is not waited for.
async fn checksums_of(
    client: Client,
    access: Access,
    address: String,
    node: u16,
    table: String,
    limit: Duration,
) -> Result<Vec<Part>, String> {
    let argument = json!({ "table": table }).to_string();
    let call = tokio::time::timeout(limit, access.call(&address, "checksum_here", &argument));
    let answer = tokio::select! {
        answer = call => answer,
        () = goes_down(&client, node) => return Err(not_answered(node, IS_DOWN)),
    };
    match answer {
        Ok(Ok(answer)) => {
            serde_json::from_str(&answer).map_err(|error| format!("node {node} answers with no checksums: {error}"))
        }
        // A node that refuses says why, and which of its replicas it is.
        Ok(Err(error)) => Err(match error.to_string().split_once(REFUSES) {
            Some((_, reason)) => format!("node {node}: {reason}"),
            None => not_answered(node, &format!("{error:#}")),
        }),
        Err(_) => Err(not_answered(node, "its time is over")),
    }
}

/// Waits until the cluster says that `node` is down.
async fn goes_down(client: &Client, node: u16) {
    loop {
        sleep(LOOK_INTERVAL).await;
        let Ok(status) = client.status().await else { continue };
        if status.nodes.iter().any(|it| it.node == node && it.state == DOWN) {
            return;
        }
    }
}

fn not_answered(node: u16, reason: &str) -> String {
    format!("node {node} did not answer: {reason}")
}

fn judge(checksums: &Checksums, replica_count: usize) -> Verdict {
    checksums
        .partitions
        .iter()
        .map(|partition| judge_partition(partition, replica_count))
        .max()
        .unwrap_or(Verdict::Equal)
}

fn judge_partition(partition: &Partition, replica_count: usize) -> Verdict {
    let replicas = &partition.replicas;
    let differs =
        |a: &Replica| replicas.iter().any(|b| a.index == b.index && (&a.checksum, a.rows) != (&b.checksum, b.rows));
    let indices: BTreeSet<u64> = replicas.iter().map(|replica| replica.index).collect();
    if replicas.iter().any(differs) {
        Verdict::Differ
    } else if indices.len() > 1 || replicas.len() < replica_count {
        Verdict::NotComparable
    } else {
        Verdict::Equal
    }
}

fn report(arguments: &VerifyArguments, found: &Found, verdict: Verdict) -> Result<Exit> {
    let Found { checksums, missing, .. } = found;
    let row = |(partition, replica): (&Partition, &Replica)| {
        vec![
            partition.index.to_string(),
            replica.node.to_string(),
            replica.rows.to_string(),
            replica.index.to_string(),
            format!("{:0>16}", replica.checksum),
        ]
    };
    let pairs =
        checksums.partitions.iter().flat_map(|partition| partition.replicas.iter().map(move |r| (partition, r)));
    let text = || columns(&["partition", "node", "rows", "log index", "checksum"], &pairs.map(row).collect::<Vec<_>>());
    let name = match verdict {
        Verdict::Equal => "equal",
        Verdict::NotComparable => "not comparable",
        Verdict::Differ => "differ",
    };
    // Each partition's rows are counted once.
    let rows: u64 =
        checksums.partitions.iter().filter_map(|partition| partition.replicas.first()).map(|r| r.rows).sum();
    print_result(
        arguments.cluster.output,
        text,
        || json!({ "table": arguments.table, "verdict": name, "rows": rows, "partitions": checksums.partitions, "missing": missing }),
    )?;
    missing.iter().for_each(|reason| say(reason));
    Ok(match verdict {
        Verdict::Equal => {
            say(&format!("all replicas of {} are equal: {}", arguments.table, counted(rows, "row")));
            Exit::Done
        }
        Verdict::NotComparable => {
            say(match (missing.is_empty(), judge(checksums, 0)) {
                (false, Verdict::Equal) if checksums.partitions.iter().any(|it| it.replicas.len() > 1) => {
                    "not all replicas could be compared: those that could are equal"
                }
                (false, Verdict::Equal) if !checksums.partitions.is_empty() => {
                    "nothing could be compared: of each partition only one replica answered"
                }
                (false, _) => "the replicas could not be compared: some are missing",
                (true, _) => "the replicas could not be compared: some are missing, or the table is being written",
            });
            Exit::Unreachable
        }
        Verdict::Differ => {
            say("replicas DIFFER at the same log index");
            Exit::Refused
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(replicas: &[(u64, &str)]) -> Partition {
        let replica = |(index, checksum): &(u64, &str)| Replica {
            checksum: (*checksum).to_owned(),
            index: *index,
            ..Replica::default()
        };
        Partition { index: 0, replicas: replicas.iter().map(replica).collect() }
    }

    #[test]
    fn checksums_are_listed_by_partition_and_node() {
        let replica = |node| Replica { node, ..Replica::default() };
        let of = |index, nodes: [u16; 2]| Partition { index, replicas: nodes.map(replica).into() };
        let mut checksums = Checksums { partitions: vec![of(1, [2, 1]), of(0, [3, 1])] };
        checksums.sort();
        let listed = |it: &Partition| (it.index, it.replicas.iter().map(|replica| replica.node).collect::<Vec<_>>());
        assert_eq!(checksums.partitions.iter().map(listed).collect::<Vec<_>>(), [(0, vec![1, 3]), (1, vec![1, 2])]);
    }

    #[test]
    fn replicas_are_judged_at_equal_indices_only() {
        assert_eq!(judge_partition(&partition(&[(5, "a"), (5, "a"), (5, "a")]), 3), Verdict::Equal);
        assert_eq!(judge_partition(&partition(&[(5, "a"), (4, "b"), (5, "a")]), 3), Verdict::NotComparable);
        assert_eq!(judge_partition(&partition(&[(5, "a"), (5, "a")]), 3), Verdict::NotComparable);
        assert_eq!(judge_partition(&partition(&[(5, "a"), (4, "c"), (5, "b")]), 3), Verdict::Differ);
    }
}
