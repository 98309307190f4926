//! What servers say that they have done: the admin command `reads`, summed over nodes.

use anyhow::{Context as _, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Counts of all nodes together, since they were started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerWork {
    /// Reads that were begun.
    executed: u64,
    /// What there is to say about extra attempts, by its name.
    extra: BTreeMap<String, u64>,
}

impl ServerWork {
    /// Reads what one node answers to `reads`.
    pub fn parse(answer: &str) -> Result<Self> {
        let told: Value = serde_json::from_str(answer).context("it is no JSON")?;
        let by_level = told["served"].as_object().context("it does not say how many were served")?;
        let by_role = by_level.values().filter_map(Value::as_object).flatten();
        let answered = by_role.filter_map(|(_, count)| count.as_u64()).sum();
        let queue = &told["queue"];
        let run = |lane: &str| queue[lane]["run"].as_u64();
        // What was begun and not answered, because it was cancelled meanwhile, is work too.
        let executed = run("first").zip(run("extra")).map_or(answered, |(first, extra)| first + extra);
        let mut extra = BTreeMap::new();
        collect("", queue, &mut extra);
        // What waits now is no count, and what is ordinary says nothing here.
        extra.retain(|name, _| !name.ends_with("_queued") && name != "first_run");
        Ok(Self { executed, extra })
    }

    /// Of both together.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.executed += other.executed;
        other.extra.iter().for_each(|(name, count)| *self.extra.entry(name.clone()).or_default() += count);
        self
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        self.executed = self.executed.saturating_sub(before.executed);
        for (name, count) in &mut self.extra {
            *count = count.saturating_sub(before.extra.get(name).copied().unwrap_or(0));
        }
        self
    }

    /// Reads executed beyond the `asked` ones, in percent of these.
    pub(crate) fn extra_percent(&self, asked: u64) -> Option<f64> {
        (asked > 0).then(|| (self.executed as f64 - asked as f64).max(0.0) * 100.0 / asked as f64)
    }

    pub(crate) fn extra(&self) -> impl Iterator<Item = (String, u64)> {
        self.extra.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count))
    }
}

/// All counts below `value` by their path.
fn collect(path: &str, value: &Value, into: &mut BTreeMap<String, u64>) {
    if let Some(count) = value.as_u64() {
        into.insert(path.to_owned(), count);
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}_{name}") };
        collect(&path, value, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executed_reads_beyond_the_asked_ones_are_extra_work() {
        let told = |leader: u64, follower: u64, shed: u64| {
            let text = format!(
                r#"{{"served": {{"linearizable": {{"leader": {leader}}}, "bounded": {{"follower": {follower}}}}},
                   "queue": {{"first": {{"run": {leader}, "queued": 7}}, "extra": {{"run": {follower}, "shed": {shed}}}, "name": "x"}}}}"#
            );
            ServerWork::parse(&text).unwrap()
        };
        let before = told(10, 0, 1).and(&told(20, 5, 0));
        let after = told(1_010, 2, 4).and(&told(20, 5, 0));
        let work = after.since(&before);
        assert_eq!(work.extra_percent(1_000), Some(0.2));
        assert_eq!((work.extra_percent(2_000), work.extra_percent(0)), (Some(0.0), None));
        assert_eq!(work.extra().collect::<Vec<_>>(), [("extra_run".to_owned(), 2), ("extra_shed".to_owned(), 3)]);
        let older = ServerWork::parse(r#"{"served": {"eventual": {"leader": 4}}}"#).unwrap();
        assert_eq!((older.executed, older.extra.len()), (4, 0));
        assert!(ServerWork::parse("{}").is_err());
    }
}
