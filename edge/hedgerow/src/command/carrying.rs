//! What the nodes say of the tables that they carry to other clusters.

use crate::access::Access;
use crate::output::counted;
use crate::runtime;
use anyhow::Result;
use hedgerow_client::Client;
use hedgerow_placement::duplication::OPTION_PREFIX;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a node may take to say it.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What all nodes say that answer.
#[derive(Debug, Default)]
pub(super) struct Told {
    nodes: Vec<NodeTold>,
    /// Of the others, why not.
    pub(super) silent: Vec<String>,
}

/// What one node says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeTold {
    node: u16,
    /// Those that its configuration names.
    clusters: BTreeSet<String>,
    duplications: Vec<OfNode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OfNode {
    table: String,
    cluster: String,
    reasons: Vec<Stopped>,
}

/// Why partitions of a table that a node leads are not carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Stopped {
    /// Which node: it is asked, and does not say it again with each reason.
    pub(super) node: u16,
    /// How many partitions, and one of them.
    pub(super) partitions: u32,
    pub(super) partition: u32,
    pub(super) reason: String,
    /// For how long.
    pub(super) seconds: u64,
}

/// Asks all nodes. Whoever may not know them is told by nobody.
pub(super) async fn ask(client: &Client, access: &Access) -> Result<Told> {
    let mut told = Told::default();
    let nodes = client.list_nodes().await.unwrap_or_else(|error| {
        told.silent.push(error.to_string());
        Vec::new()
    });
    let asked: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            let (access, address) = (access.clone(), node.address.to_string());
            runtime::spawn(async move { access.ask(&address, "duplications", ANSWER_MAX).await })
        })
        .collect();
    for one in asked {
        match one.await? {
            Ok(node) => told.nodes.push(node),
            Err(error) => told.silent.push(format!("{error:#}")),
        }
    }
    told.nodes.sort_by_key(|node| node.node);
    Ok(told)
}

impl Told {
    /// Why the table is not carried to the cluster, where it is not.
    pub(super) fn stopped(&self, table: &str, cluster: &str) -> Vec<Stopped> {
        let mut stopped = Vec::new();
        for node in &self.nodes {
            let of_it = node.duplications.iter().filter(|it| it.table == table && it.cluster == cluster);
            let reasons = of_it.flat_map(|it| it.reasons.iter().cloned());
            stopped.extend(reasons.map(|reason| Stopped { node: node.node, ..reason }));
        }
        stopped
    }

    /// A line for each of these duplications that does not go on.
    pub(super) fn lines<'t>(&self, duplications: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<String> {
        let line = |(table, cluster): (&str, &str)| {
            let stopped = self.stopped(table, cluster);
            let count: u32 = stopped.iter().map(|it| it.partitions).sum();
            let (count, first) = (counted(count.into(), "partition"), stopped.first()?);
            Some(format!(
                "table {table} is not carried to {cluster} in {count}, first on node {}: {} (`hedgerow table duplicate list {table}`)",
                first.node, first.reason
            ))
        };
        duplications.filter_map(line).collect()
    }

    /// The nodes whose configuration names the cluster, and those whose does not.
    pub(super) fn by_naming(&self, cluster: &str) -> (Vec<u16>, Vec<u16>) {
        let (naming, others): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|node| node.clusters.contains(cluster));
        (naming.iter().map(|it| it.node).collect(), others.iter().map(|it| it.node).collect())
    }
}

/// The clusters that a table with these options is duplicated to.
pub(super) fn clusters_of(options: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    options.keys().filter_map(|option| option.strip_prefix(OPTION_PREFIX))
}

impl Stopped {
    /// As a line of its own.
    pub(super) fn line(&self, table: &str, cluster: &str) -> String {
        let Self { node, partitions, partition, reason, seconds } = self;
        let which = match partitions {
            1 => format!("partition {partition}"),
            more => format!("{more} partitions, {partition} among them"),
        };
        let lasting = if *seconds > 0 { format!(", for {seconds} s by now") } else { String::new() };
        format!("{table} to {cluster}, node {node}, {which}: {reason}{lasting}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_say_is_told_by_table_and_cluster() {
        let node = |text: &str| serde_json::from_str::<NodeTold>(text).unwrap();
        let away = r#"{"reason": "away", "partitions": 2, "partition": 5, "seconds": 9}"#;
        let told = Told {
            nodes: vec![
                node(&format!(
                    r#"{{"node": 1, "clusters": ["west"], "duplications": [{{"table": "t", "cluster": "west", "reasons": [{away}]}},
                        {{"table": "u", "cluster": "west", "reasons": []}}], "later": 1}}"#
                )),
                node(r#"{"node": 2}"#),
            ],
            silent: Vec::new(),
        };
        let stopped = told.stopped("t", "west");
        assert_eq!(stopped.len(), 1);
        let line = stopped[0].line("t", "west");
        assert_eq!(line, "t to west, node 1, 2 partitions, 5 among them: away, for 9 s by now");
        let lines = told.lines([("t", "west"), ("u", "west")].into_iter());
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("table t is not carried to west in 2 partitions, first on node 1: away"),
            "{lines:?}"
        );
        assert!(told.stopped("u", "west").is_empty() && told.stopped("t", "east").is_empty());
        assert_eq!(told.by_naming("west"), (vec![1], vec![2]));
    }
}
