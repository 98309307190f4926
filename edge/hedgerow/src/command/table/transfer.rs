//! `hedgerow table transfer`: has a node lead a partition. What counts is the word of that node itself: what others say of it may be
//! some seconds old.

use crate::access::Access;
use crate::output::say;
use crate::runtime;
use anyhow::{Context as _, Result, anyhow};
use hedgerow_client::{Client, ClusterStatus, Error, ErrorKind};
use serde_json::json;
use std::time::Duration;

/// Time for a partition to be given another preferred leader.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a node to answer for itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Whether it leads is looked at so often.
const LOOKED_EVERY: Duration = Duration::from_millis(200);

/// Has a node lead a partition, and waits until it does.
pub(super) async fn run(
    client: &Client,
    access: &Access,
    name: &str,
    (partition, node): (u32, u16),
    wait: Duration,
) -> Result<()> {
    // A table that is not there is named.
    client.describe_table(name).await?;
    let address = address_of(&client.status().await?, node);
    if let Some(address) = &address {
        let asked = ask(address, access).await;
        let silent = asked.map_err(|error| Error::new(ErrorKind::Unreachable, format!("{error:#}")));
        silent.with_context(|| format!("node {node} is not up, and nothing was changed"))?;
    }
    let argument = json!({ "table": name, "partition": partition, "node": node }).to_string();
    client.admin_once("prefer_leader", &argument, TRANSFER_TIMEOUT).await?;
    say(&format!("node {node} is to lead partition {partition} of table {name} whenever it can"));
    let address = address.ok_or_else(|| unavailable(format!("nobody knows where node {node} is")))?;
    let until = runtime::now() + wait;
    loop {
        let asked = ask(&address, access).await;
        if asked.as_ref().is_ok_and(|status| leads(status, name, partition, node)) {
            say(&format!("node {node} leads it"));
            return Ok(());
        }
        if runtime::now() >= until {
            asked.map_err(|error| unavailable(format!("node {node} went down: {error:#}")))?;
            return Err(unavailable(format!(
                "node {node} does not lead partition {partition} of table {name} yet: it takes over once it is up, has caught up and is \
                 not slow (`hedgerow table describe {name}`)"
            ))
            .into());
        }
        runtime::sleep(LOOKED_EVERY).await;
    }
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

/// What the node at `address` says itself.
async fn ask(address: &str, access: &Access) -> Result<ClusterStatus> {
    let asked = tokio::time::timeout(ANSWER_TIMEOUT, access.call(address, "status", "{}")).await;
    let answer = asked.map_err(|_| anyhow!("{address} does not answer"))??;
    serde_json::from_str(&answer).with_context(|| format!("reading what {address} says"))
}

/// Where the node can be reached; `None` if it is not one of the cluster, or has never said.
fn address_of(status: &ClusterStatus, node: u16) -> Option<String> {
    let found = status.nodes.iter().find(|it| it.node == node)?;
    (!found.address.is_empty()).then(|| found.address.clone())
}

/// Whether `node` leads the partition, by this word.
fn leads(status: &ClusterStatus, name: &str, partition: u32, node: u16) -> bool {
    let table = status.tables.iter().find(|it| it.name == name);
    let leader = table.and_then(|it| it.partitions.get(partition as usize)?.leader.clone());
    leader.is_some() && leader == address_of(status, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_leads_what_is_led_at_its_address() {
        let status = r#"{"nodes":[{"node":1,"address":"a:1"},{"node":2,"address":"a:2"},{"node":3,"address":""}],
            "tables":[{"name":"t","partitions":[{"index":0,"leader":"a:2"},{"index":1,"leader":null}]}]}"#;
        let status: ClusterStatus = serde_json::from_str(status).unwrap();
        assert!(leads(&status, "t", 0, 2));
        for (table, partition, node) in [("t", 0, 1), ("t", 1, 2), ("t", 1, 3), ("t", 7, 2), ("u", 0, 2), ("t", 0, 4)] {
            assert!(!leads(&status, table, partition, node), "{table} {partition} {node}");
        }
    }
}
