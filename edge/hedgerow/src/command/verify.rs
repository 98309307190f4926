//! `hedgerow verify`: compares the replicas of a table by checksum.

use crate::cluster::ClusterArguments;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::output::{columns, counted, print_result, say};
use crate::runtime::now;
use anyhow::Result;
use clap::Args;
use hedgerow_client::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(500);

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
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Checksums {
    partitions: Vec<Partition>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Partition {
    index: u64,
    replicas: Vec<Replica>,
}

/// One replica's checksum over all its live rows, at a log index.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Replica {
    node: u16,
    checksum: String,
    rows: u64,
    index: u64,
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

/// `hedgerow verify`.
pub(crate) async fn run(arguments: VerifyArguments) -> Result<Exit> {
    let client = arguments.cluster.connect().await?;
    let deadline = now() + arguments.wait;
    let replica_count = replica_count(&client, &arguments.table).await?;
    let mut says_waiting = true;
    loop {
        let result = checksums(&client, &arguments.table, deadline).await;
        let is_over = now() + PAUSE >= deadline;
        match result {
            Ok(mut checksums) => {
                checksums.sort();
                let verdict = judge(&checksums, replica_count);
                if verdict != Verdict::NotComparable || is_over {
                    return report(&arguments, &checksums, verdict);
                }
            }
            // A replica that is just being rebuilt has no checksum yet.
            Err(error) if error.may_retry() && !is_over => {}
            Err(error) => return Err(error.into()),
        }
        if std::mem::take(&mut says_waiting) {
            say("waiting until all replicas stand at the same log index");
        }
        sleep(PAUSE).await;
    }
}

async fn replica_count(client: &Client, table: &str) -> Result<usize> {
    Ok(client.describe_table(table).await?.replica_count as usize)
}

async fn checksums(client: &Client, table: &str, deadline: Instant) -> hedgerow_client::Result<Checksums> {
    let timeout = deadline.saturating_duration_since(now()).max(Duration::from_secs(5));
    let answer = client.admin("checksum", &json!({ "table": table }).to_string(), timeout).await?;
    serde_json::from_str(&answer).map_err(|error| {
        hedgerow_client::Error::new(hedgerow_client::ErrorKind::Protocol, format!("reading the checksums: {error}"))
    })
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

fn report(arguments: &VerifyArguments, checksums: &Checksums, verdict: Verdict) -> Result<Exit> {
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
        || json!({ "table": arguments.table, "verdict": name, "rows": rows, "partitions": checksums.partitions }),
    )?;
    Ok(match verdict {
        Verdict::Equal => {
            say(&format!("all replicas of {} are equal: {}", arguments.table, counted(rows, "row")));
            Exit::Done
        }
        Verdict::NotComparable => {
            say("the replicas could not be compared: some are missing, or the table is being written");
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
