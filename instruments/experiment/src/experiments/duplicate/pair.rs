//! Two clusters, of which the first one knows the other.

use crate::clock::now;
use crate::stage::Stage;
use anyhow::{Context as _, Result, bail, ensure};
use hedgerow_testkit::Settings;
use serde_json::Value;
use std::time::Duration;

/// What the first cluster calls the other one.
pub(super) const OTHER: &str = "other";
/// How long it may take until everything is told.
const TOLD_MAX: Duration = Duration::from_secs(900);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// What partitions may keep: more than is written in any turn.
const JOURNAL_LIMIT: &str = "8GiB";

/// The clusters.
pub(super) struct Pair {
    pub(super) here: Stage,
    pub(super) there: Stage,
}

impl Pair {
    pub(super) async fn start(settings: &Settings) -> Result<Self> {
        let (mut here, mut there) = (Stage::prepare(settings.clone())?, Stage::prepare(settings.clone())?);
        here.introduce(OTHER, &there)?;
        there.start().await?;
        here.start().await?;
        Ok(Self { here, there })
    }

    /// Has a table told from now on, to one that is made for it.
    pub(super) async fn duplicate(&self, table: &str) -> Result<()> {
        let described: Value = serde_json::from_str(&self.here.client().await?.describe_table_json(table).await?)?;
        let partitions = described["partition_count"].as_u64().context("a table says how many partitions it has")?;
        self.there.command(&["table", "create", table, "--partitions", &partitions.to_string()])?;
        self.here.command(&["table", "duplicate", "add", table, OTHER, "--journal-limit", JOURNAL_LIMIT])?;
        Ok(())
    }

    /// Waits until nothing of the table is left to be told.
    pub(super) async fn wait_until_told(&self, table: &str) -> Result<()> {
        let began = now();
        loop {
            let (state, left) = self.look(table)?;
            if state == "following" && left == Some(0) {
                return Ok(());
            }
            ensure!(!state.starts_with("overrun"), "{table}: {state}");
            ensure!(now() - began < TOLD_MAX, "{table} is not told after {TOLD_MAX:?}: {state}, {left:?} left");
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Where the table's duplication is, and how many entries are left.
    pub(super) fn look(&self, table: &str) -> Result<(String, Option<u64>)> {
        let text = self.here.try_command(&["table", "duplicate", "list", table, "--output", "json"])?;
        let all: Value = serde_json::from_str(&text).with_context(|| format!("{text:?} is no JSON"))?;
        let Some(state) = all[0]["state"].as_str() else { bail!("{table} is not duplicated") };
        Ok((state.to_owned(), all[0]["entries_left"].as_u64()))
    }
}
