//! How a load reads: how fresh, at which replicas, from where. And who served it.

use crate::pace::machine_now;
use crate::record::histogram;
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use hedgerow_client::{Labels, Observer, ReadLevel, ReadOptions, ReplicaRead, Role, Served};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a load reads. The default says nothing to the cluster: the leader is asked, at the table's level, and who serves is
/// not counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reading {
    /// How fresh reads must be; `None` = as the table says. Each connection is a session of its own.
    #[serde(with = "optional_text")]
    pub level: Option<ReadLevel>,
    /// Which replicas are asked.
    #[serde(with = "text")]
    pub mode: ReplicaRead,
    /// Where the clients stand, for the modes that prefer what is near.
    #[serde(with = "text")]
    pub labels: Labels,
    /// Whether who serves is left uncounted: counting takes some of the time of the generator.
    pub is_uncounted: bool,
}

impl Reading {
    /// Whether nothing is said, so that requests are those of a client that knows nothing of levels and replicas.
    pub(crate) fn is_plain(&self) -> bool {
        (self.level, self.mode) == (None, ReplicaRead::Leader)
    }

    /// What the client is told; `reads` counts what was served.
    pub(crate) fn options(&self, counter: &Arc<Counter>) -> ReadOptions {
        let counter = Arc::clone(counter);
        let observer = Observer::new(move |served| counter.note(served));
        ReadOptions {
            level: self.level,
            mode: self.mode,
            observer: (!self.is_uncounted).then_some(observer),
            ..ReadOptions::default()
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some(ReadLevel::Bounded(bound)) = self.level {
            let allowed = ReadLevel::BOUND_MIN..=ReadLevel::BOUND_MAX;
            ensure!(allowed.contains(&bound), "a bound of {bound:?} is not allowed; there are {}", ReadLevel::FORMS);
        }
        Ok(())
    }
}

/// What replicas served. A read that took several requests, such as a scan of two pages, counts as often.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    pub(crate) by_node: BTreeMap<SocketAddr, u64>,
    pub(crate) by_role: BTreeMap<&'static str, u64>,
    /// By the level at which they were served, where that was told.
    pub(crate) by_level: BTreeMap<&'static str, u64>,
    /// Attempts beyond the first: refusals of replicas that lag, and everything else that was tried again.
    pub(crate) repeated: u64,
    /// How old the data was at most, where that was told, nanoseconds.
    pub(crate) staleness: Histogram<u64>,
    /// From a request's arrival at its server to its reply, as far as the server tells it, nanoseconds.
    pub(crate) at_server: Histogram<u64>,
}

impl Default for Reads {
    fn default() -> Self {
        let (by_node, by_role, by_level) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { by_node, by_role, by_level, repeated: 0, staleness: histogram(), at_server: histogram() }
    }
}

impl Reads {
    fn note(&mut self, served: &Served) {
        *self.by_node.entry(served.node).or_default() += 1;
        *self.by_role.entry(served.role.map_or(UNKNOWN_ROLE, Role::name)).or_default() += 1;
        if let Some(level) = served.level {
            *self.by_level.entry(level_name(level)).or_default() += 1;
        }
        self.repeated += u64::from(served.attempts.saturating_sub(1));
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(staleness) = served.staleness {
            self.staleness.saturating_record(nanos(staleness));
        }
        if let Some(queue) = served.queue {
            self.at_server.saturating_record(nanos(queue + served.service.unwrap_or_default()));
        }
    }

    /// Adds what another generator counted at the same time.
    pub(crate) fn merge(&mut self, other: &Self) {
        const SAME: &str = "histograms of one kind have the same bounds";
        other.by_node.iter().for_each(|(node, count)| *self.by_node.entry(*node).or_default() += count);
        other.by_role.iter().for_each(|(role, count)| *self.by_role.entry(role).or_default() += count);
        other.by_level.iter().for_each(|(level, count)| *self.by_level.entry(level).or_default() += count);
        self.repeated += other.repeated;
        self.staleness.add(&other.staleness).expect(SAME);
        self.at_server.add(&other.at_server).expect(SAME);
    }
}

/// The role of a replica that the client's map does not name.
const UNKNOWN_ROLE: &str = "unknown";

const LEVELS: [&str; 4] = ["linearizable", "session", "bounded", "eventual"];

/// A level's name without its bound.
fn level_name(level: ReadLevel) -> &'static str {
    match level {
        ReadLevel::Linearizable => LEVELS[0],
        ReadLevel::Session => LEVELS[1],
        ReadLevel::Bounded(_) => LEVELS[2],
        ReadLevel::Eventual => LEVELS[3],
    }
}

/// The same by its text.
pub(crate) fn level_named(name: &str) -> Option<&'static str> {
    LEVELS.into_iter().find(|level| *level == name)
}

/// A role's name by its text.
pub(crate) fn role_named(name: &str) -> &'static str {
    let roles = [Role::Leader, Role::Follower, Role::Learner].map(Role::name);
    roles.into_iter().find(|role| *role == name).unwrap_or(UNKNOWN_ROLE)
}

/// Counts what replicas serve from the beginning of the measurement on.
#[derive(Debug)]
pub(crate) struct Counter {
    /// Of the machine's clock, nanoseconds.
    begin: AtomicU64,
    reads: Mutex<Reads>,
}

impl Default for Counter {
    fn default() -> Self {
        Self { begin: AtomicU64::new(u64::MAX), reads: Mutex::default() }
    }
}

impl Counter {
    pub(crate) fn begin_at(&self, begin: u64) {
        self.begin.store(begin, Ordering::Relaxed);
    }

    fn note(&self, served: &Served) {
        if machine_now() >= self.begin.load(Ordering::Relaxed) {
            self.reads.lock().unwrap_or_else(PoisonError::into_inner).note(served);
        }
    }

    /// What was counted.
    pub(crate) fn reads(&self) -> Reads {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A value in its textual form.
mod text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// As [`text`], or nothing.
mod optional_text {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(T::to_string).serialize(serializer)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse()).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(node: &str, role: Role, attempts: u32, staleness_ms: Option<u64>) -> Served {
        Served {
            node: node.parse().unwrap(),
            role: Some(role),
            partition: 0,
            index: 7,
            staleness: staleness_ms.map(Duration::from_millis),
            attempts,
            queue: Some(Duration::from_micros(30)),
            service: Some(Duration::from_micros(12)),
            level: Some(ReadLevel::Bounded(Duration::from_secs(1))),
            kind: hedgerow_client::Kind::First,
            mode: None,
        }
    }

    #[test]
    fn a_reading_survives_its_form() {
        let level = Some(ReadLevel::Bounded(Duration::from_secs(2)));
        let labels = Labels::default().with("zone", "a");
        let other = Reading { level, mode: ReplicaRead::ClosestReplicas, labels, is_uncounted: true };
        for reading in [Reading::default(), other] {
            let text = serde_json::to_string(&reading).unwrap();
            assert_eq!(serde_json::from_str::<Reading>(&text).unwrap(), reading, "{text}");
        }
        assert!(
            serde_json::from_str::<Reading>(r#"{"level": "strong"}"#).unwrap_err().to_string().contains("bounded=2s")
        );
        assert!(Reading::default().is_plain());
    }

    #[test]
    fn reads_are_counted_by_node_and_role_from_the_beginning_on() {
        let counter = Counter::default();
        counter.note(&served("127.0.0.1:1", Role::Leader, 1, None));
        counter.begin_at(machine_now());
        counter.note(&served("127.0.0.1:1", Role::Leader, 1, None));
        counter.note(&served("127.0.0.1:2", Role::Follower, 3, Some(5)));
        let mut reads = counter.reads();
        reads.merge(&counter.reads());
        let by_node: Vec<_> = reads.by_node.iter().map(|(node, count)| (node.to_string(), *count)).collect();
        assert_eq!(by_node, [("127.0.0.1:1".to_owned(), 2), ("127.0.0.1:2".to_owned(), 2)]);
        assert_eq!((reads.by_role["leader"], reads.by_role["follower"], reads.repeated), (2, 2, 4));
        assert_eq!((reads.by_level["bounded"], level_named("bounded")), (4, Some("bounded")));
        assert_eq!((reads.staleness.len(), reads.at_server.len()), (2, 4));
        assert!((41_900..42_100).contains(&reads.at_server.max()), "{}", reads.at_server.max());
    }
}
