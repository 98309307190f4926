//! What nodes count of reads, as the admin command `reads` tells it: how many were served by replicas that do not lead, and
//! how many messages the nodes exchanged for that.

use anyhow::{Context as _, Result};
use hedgerow_report::Run;
use serde_json::Value;

/// Messages between nodes per read that a follower or a learner served, among a run's further figures.
pub(crate) const MESSAGES_PER_READ: &str = "messages_per_read";
/// Linearizable reads that were served because the logs of a majority held nothing newer, among a run's further figures.
pub(crate) const SERVED_BY_QUORUM: &str = "served_by_quorum_count";
/// What other voters' logs said of such reads, one for each read and voter: nothing newer for its keys, or something.
pub(crate) const LOGS_NOWHERE: &str = "logs_nowhere_count";
/// The other of the two.
pub(crate) const LOGS_TOUCHED: &str = "logs_touched_count";

/// Counts of one node, or of several together, since they were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    /// Reads that followers and learners served, at all levels.
    pub(crate) served: u64,
    /// Frames with questions for an index, or with answers, that were sent.
    pub(crate) messages: u64,
    /// Reads that were refused because the replica lags.
    pub(crate) lagging: u64,
    /// Linearizable reads that were served without the leader's word.
    pub(crate) by_quorum: u64,
    /// Answers of logs that hold nothing newer for a read's keys.
    pub(crate) nowhere: u64,
    /// Answers of logs that hold something.
    pub(crate) touched: u64,
}

impl ReadCounts {
    /// Reads what one node answers.
    pub(crate) fn parse(answer: &str) -> Result<Self> {
        let told: Value = serde_json::from_str(answer).context("it is no JSON")?;
        let by_level = told["served"].as_object().context("it does not say how many were served")?;
        let by_role = by_level.values().filter_map(Value::as_object).flatten();
        let elsewhere = by_role.filter(|(role, _)| *role != "leader").filter_map(|(_, count)| count.as_u64());
        Ok(Self {
            served: elsewhere.sum(),
            messages: told["read_index"]["messages_sent"].as_u64().context("it does not tell of messages")?,
            lagging: told["refused"]["lagging"].as_u64().context("it does not tell of refusals")?,
            by_quorum: told["served_by_quorum"].as_u64().context("it does not tell of reads served by a quorum")?,
            nowhere: told["quorum"]["nowhere"].as_u64().context("it does not tell of a quorum's logs")?,
            touched: told["quorum"]["touched"].as_u64().context("it does not tell of a quorum's logs")?,
        })
    }

    /// Of both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            served: self.served + other.served,
            messages: self.messages + other.messages,
            lagging: self.lagging + other.lagging,
            by_quorum: self.by_quorum + other.by_quorum,
            nowhere: self.nowhere + other.nowhere,
            touched: self.touched + other.touched,
        }
    }

    /// Adds to `run` what was counted between `self` and `after`. Both were taken outside of the measurement, so that the
    /// warm-up counts too.
    pub(crate) fn tell(self, after: Self, run: &mut Run) {
        let served = after.served.saturating_sub(self.served);
        let messages = after.messages.saturating_sub(self.messages);
        if served > 0 {
            run.extra.insert(MESSAGES_PER_READ.to_owned(), messages as f64 / served as f64);
        }
        let counted = [
            ("refused_lagging_count", self.lagging, after.lagging),
            (SERVED_BY_QUORUM, self.by_quorum, after.by_quorum),
            (LOGS_NOWHERE, self.nowhere, after.nowhere),
            (LOGS_TOUCHED, self.touched, after.touched),
        ];
        for (name, before, after) in counted {
            let count = after.saturating_sub(before);
            if count > 0 {
                run.extra.insert(name.to_owned(), count as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_per_read_over_all_nodes() {
        let told = |served: u64, sent: u64| {
            let text = format!(
                r#"{{"node": 1, "served": {{"linearizable": {{"leader": 99, "follower": {served}}}, "eventual": {{"learner": 2}}}},
                   "served_by_quorum": {served}, "quorum": {{"nowhere": {sent}, "touched": 1}},
                   "refused": {{"lagging": 3, "busy": 1}}, "read_index": {{"messages_sent": {sent}, "messages_received": 9}}}}"#
            );
            ReadCounts::parse(&text).unwrap()
        };
        let before = told(7, 0).and(told(0, 5));
        let counted = ReadCounts { served: 11, messages: 5, lagging: 6, by_quorum: 7, nowhere: 5, touched: 2 };
        assert_eq!(before, counted);
        let mut run = Run::default();
        before.tell(told(97, 10).and(told(10, 5)), &mut run);
        assert_eq!(run.extra[MESSAGES_PER_READ], 0.1);
        assert!(!run.extra.contains_key("refused_lagging_count") && !run.extra.contains_key(LOGS_TOUCHED));
        assert_eq!((run.extra[SERVED_BY_QUORUM], run.extra[LOGS_NOWHERE]), (100.0, 10.0));
        assert!(ReadCounts::parse("{}").is_err());
    }
}
