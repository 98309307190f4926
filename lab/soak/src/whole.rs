//! Whether every replica is there and serves, by what the cluster says of itself.

use crate::worker::{Shared, TABLE};
use anyhow::{Context as _, Result, bail};
use hedgerow_client::Client;
use hedgerow_sim::history::Time;
use serde_json::{Value, json};
use std::time::Duration;

/// How long repair may take. Generous: the machine may be busy, and a repair waits its turn behind others.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Looks in a row that must find everything there. A node that has just started may not have told yet what it misses.
const LOOKS: u32 = 5;
/// What one question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Waits until all nodes are up, every group has a leader and nothing is in repair, and every partition has all its replicas.
/// Returns early, without an error, when the run is to end at once.
pub(crate) fn wait_until_whole(shared: &Shared) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let until = shared.now() + WHOLE_WITHIN.as_nanos() as Time;
        let (mut client, mut looks) = (None, 0);
        loop {
            let missing = match look(shared, &mut client).await {
                Ok(missing) => missing,
                Err(error) => Some(format!("{error:#}")),
            };
            looks = if missing.is_none() { looks + 1 } else { 0 };
            if looks == LOOKS || shared.book().failure().is_some() {
                return Ok(());
            }
            if shared.now() > until {
                bail!(
                    "the cluster was not whole {WHOLE_WITHIN:?} after the last fault: {}",
                    missing.unwrap_or_default()
                );
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

/// What is missing.
async fn look(shared: &Shared, client: &mut Option<Client>) -> Result<Option<String>> {
    if client.is_none() {
        *client = Some(shared.connect().await?);
    }
    let client = client.as_ref().context("it was connected above")?;
    let status: Value = serde_json::from_str(&client.admin("status", "", ANSWER_WITHIN).await?)?;
    let summary = &status["summary"];
    let is = |name: &str, wanted: u64| summary[name].as_u64() == Some(wanted);
    let nodes = shared.addresses.len() as u64;
    if !is("nodes_up", nodes)
        || !is("without_leader", 0)
        || !is("in_repair", 0)
        || summary["metadata_has_leader"] != true
    {
        return Ok(Some(summary.to_string()));
    }
    let answer = client.admin("checksum", &json!({ "table": TABLE }).to_string(), ANSWER_WITHIN).await?;
    let checksums: Value = serde_json::from_str(&answer)?;
    let counts = |partition: &Value| partition["replicas"].as_array().map_or(0, Vec::len);
    let partitions = checksums["partitions"].as_array().context("checksums without partitions")?;
    let short = partitions.iter().find(|partition| counts(partition) < shared.replica_count);
    Ok(short.map(|partition| format!("replicas of a partition: {partition}")))
}
