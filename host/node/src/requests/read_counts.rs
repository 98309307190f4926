//! What reads a node has served and refused, and what it cost in messages between nodes: the admin command `reads`.

use crate::requests::reads::Basis;
use hedgerow_replication::Role;
use hedgerow_types::{Instant, ReadLevel, Refusal};
use serde_json::{Value, json};
use std::time::Duration;

/// Time between two lines of the log that say the same kind of thing of many requests.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

const LEVELS: [&str; 4] = ["linearizable", "session", "bounded", "eventual"];
const ROLES: [&str; 3] = ["leader", "follower", "learner"];
const REASONS: [&str; 7] = ["not_leader", "lagging", "not_ready", "not_hosted", "busy", "expired", "other"];

/// Counts since the node started.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    /// By level and role.
    served: [[u64; ROLES.len()]; LEVELS.len()],
    /// Of these, by the logs of a majority instead of the leader.
    served_by_quorum: u64,
    /// By reason.
    refused: [u64; REASONS.len()],
    lines: Lines,
    /// Refusals that a line of the log has told of.
    told: u64,
}

impl ReadCounts {
    pub(crate) fn note_served(&mut self, level: ReadLevel, role: Role, basis: Basis) {
        self.served_by_quorum += u64::from(basis == Basis::Quorum);
        let role = match role {
            Role::Leader => 0,
            Role::Follower | Role::Candidate => 1,
            Role::Learner => 2,
        };
        self.served[level_number(level)][role] += 1;
    }

    pub(crate) fn note_refused(&mut self, refusal: &Refusal) {
        let reason = match refusal {
            Refusal::NotLeader { .. } => 0,
            Refusal::Lagging(_) => 1,
            Refusal::NotReady(_) => 2,
            Refusal::NotHosted => 3,
            Refusal::Busy(_) | Refusal::BusyFor { .. } => 4,
            Refusal::Expired => 5,
            Refusal::Unresolved
            | Refusal::Throttled
            | Refusal::Withdrawn
            | Refusal::SessionWindow { .. }
            | Refusal::Invalid(_)
            | Refusal::TooLarge(_)
            | Refusal::DiskFull(_)
            | Refusal::NotAllowed(_)
            | Refusal::NoTable
            | Refusal::Creating
            | Refusal::TableExists
            | Refusal::FailedPrecondition(_)
            | Refusal::Stopping(_)
            | Refusal::Unknown => 6,
        };
        self.refused[reason] += 1;
    }

    /// Writes a line to the log if many reads were refused for what this node should see to, at most one in ten seconds,
    /// however many there are (R21).
    pub(crate) fn tick(&mut self, now: Instant) {
        let [_, lagging, not_ready, _, busy, expired, _] = self.refused;
        let count = lagging + not_ready + busy + expired;
        if count > self.told && self.lines.poll(now).is_some() {
            let refused = count - std::mem::replace(&mut self.told, count);
            tracing::warn!(refused, lagging, not_ready, busy, expired, "reads were refused");
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let by = |names: &[&str], counts: &[u64]| -> Value {
            names.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect()
        };
        let levels: Value =
            LEVELS.iter().zip(&self.served).map(|(level, roles)| ((*level).to_owned(), by(&ROLES, roles))).collect();
        json!({ "served": levels, "served_by_quorum": self.served_by_quorum, "refused": by(&REASONS, &self.refused) })
    }
}

/// The number of a level in [`LEVELS`], and in requests and replies.
pub(crate) const fn level_number(level: ReadLevel) -> usize {
    match level {
        ReadLevel::Linearizable => 0,
        ReadLevel::Session => 1,
        ReadLevel::Bounded(_) => 2,
        ReadLevel::Eventual => 3,
    }
}

/// Keeps the log from getting a line for every request.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    last: Option<Instant>,
    left_out: u64,
}

impl Lines {
    /// Whether a line may be written now: then how many were not since the last one.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.since(last) < LINE_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::Lag;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the lines that reach the log.
    struct Log(Arc<AtomicU64>);

    impl tracing::Subscriber for Log {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    fn at(millis: u64) -> Instant {
        Instant((1_000 + millis) * 1_000_000)
    }

    #[test]
    fn r21_a_flood_of_refusals_is_a_line_in_ten_seconds() {
        let lines = Arc::new(AtomicU64::new(0));
        tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
            let mut counts = ReadCounts::default();
            for millis in (0..30_000).step_by(50) {
                (0..100).for_each(|_| counts.note_refused(&Refusal::Lagging(Lag::default())));
                counts.tick(at(millis));
            }
            assert_eq!(counts.to_json()["refused"]["lagging"], 60_000);
            (30_000..90_000).step_by(50).for_each(|millis| counts.tick(at(millis)));
        });
        assert_eq!(lines.load(Ordering::Relaxed), 4, "three while it lasted, and one for the rest");
    }

    #[test]
    fn a_redirected_client_is_no_news() {
        let mut counts = ReadCounts::default();
        counts.note_refused(&Refusal::NotLeader { leader: None });
        counts.tick(at(0));
        assert_eq!(counts.lines.last, None);
    }

    #[test]
    fn lines_say_how_many_were_left_out() {
        let mut lines = Lines::default();
        assert_eq!(lines.poll(at(0)), Some(0));
        assert_eq!((lines.poll(at(1)), lines.poll(at(9_999))), (None, None));
        assert_eq!(lines.poll(at(10_000)), Some(2));
    }

    #[test]
    fn what_is_served_is_told_by_level_and_role() {
        let mut counts = ReadCounts::default();
        counts.note_served(ReadLevel::Bounded(Duration::from_secs(1)), Role::Learner, Basis::AtOnce);
        counts.note_served(ReadLevel::Linearizable, Role::Follower, Basis::Quorum);
        let told = counts.to_json();
        assert_eq!((&told["served"]["linearizable"]["follower"], &told["served_by_quorum"]), (&json!(1), &json!(1)));
        assert_eq!(told["served"]["bounded"]["learner"], 1);
        assert_eq!(told["served"]["linearizable"]["leader"], 0);
    }
}
