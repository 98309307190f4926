//! How a load's requests are hedged, in a form that generator processes can be told, and what the clients counted of it.

use anyhow::{Result, ensure};
use hedgerow_client::{
    BudgetOptions, Fallback, HedgeMetrics, HedgeOptions, HostMetrics, InvalidPolicy, Kind, Policy, TieMode,
};
use hedgerow_client::{Client, ReadLevel};
use hedgerow_report::{ExtraAttempts, HeldUp, NodeAttempts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How requests are hedged. The default is not at all.
///
/// Each connection to the nodes is a client of its own with its own budget and its own knowledge of latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hedging {
    reads: Written,
    writes: Written,
    tie: Tie,
    fallback: Option<(Duration, Duration)>,
    busy_threshold: Option<Duration>,
    /// Share and burst; `None` = that is measured.
    budget: Option<(f64, Option<f64>)>,
}

/// A policy in the form that people write, which is its form for other processes too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Written(String);

impl TryFrom<String> for Written {
    type Error = InvalidPolicy;

    fn try_from(text: String) -> Result<Self, InvalidPolicy> {
        text.parse::<Policy>().map(|_| Self(text))
    }
}

impl From<Written> for String {
    fn from(written: Written) -> Self {
        written.0
    }
}

impl Default for Written {
    fn default() -> Self {
        Self(Policy::None.to_string())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tie {
    #[default]
    Never,
    Auto,
    Always,
}

impl Written {
    fn of(policy: &Policy) -> Result<Self> {
        ensure!(!matches!(policy, Policy::Custom(_)), "a generator process cannot be told a policy that is a function");
        Ok(Self::try_from(policy.to_string())?)
    }

    fn policy(&self) -> Policy {
        // It was parsed when it was made.
        self.0.parse().unwrap_or_default()
    }
}

impl Hedging {
    /// What `options` say, but for observers and traces, of which a generator makes no use. Fails for policies that are
    /// functions.
    pub fn of(options: &HedgeOptions) -> Result<Self> {
        Ok(Self {
            reads: Written::of(&options.reads)?,
            writes: Written::of(&options.writes)?,
            tie: match options.tie {
                TieMode::Never => Tie::Never,
                TieMode::Auto => Tie::Auto,
                TieMode::Always => Tie::Always,
            },
            fallback: options.fallback.map(|fallback| (fallback.after, fallback.bound)),
            busy_threshold: options.busy_threshold,
            budget: options.budget.map(|budget| (budget.ratio, budget.burst)),
        })
    }

    /// Whether nothing is hedged, so that tables are opened as by a client that knows nothing of it.
    pub(crate) fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// What the client is told.
    pub(crate) fn options(&self) -> HedgeOptions {
        HedgeOptions {
            reads: self.reads.policy(),
            writes: self.writes.policy(),
            tie: match self.tie {
                Tie::Never => TieMode::Never,
                Tie::Auto => TieMode::Auto,
                Tie::Always => TieMode::Always,
            },
            fallback: self.fallback.map(|(after, bound)| Fallback { after, bound }),
            busy_threshold: self.busy_threshold,
            budget: self.budget.map(|(ratio, burst)| BudgetOptions { ratio, burst }),
            ..HedgeOptions::default()
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some((after, bound)) = self.fallback {
            let allowed = ReadLevel::BOUND_MIN..=ReadLevel::BOUND_MAX;
            ensure!(allowed.contains(&bound), "a bound of {bound:?} is not allowed; there are {}", ReadLevel::FORMS);
            ensure!(!after.is_zero(), "a fallback at once is a bounded read");
        }
        Ok(())
    }
}

/// What clients have counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    pub(crate) first: u64,
    pub(crate) kinds: BTreeMap<String, ExtraAttempts>,
    pub(crate) cancelled: u64,
    pub(crate) dropped: u64,
    pub(crate) wasted_ms: f64,
    pub(crate) held_up: HeldUp,
    pub(crate) nodes: BTreeMap<String, NodeAttempts>,
}

/// The kinds of extra attempts with their names in results.
const KINDS: [(Kind, &str); 4] =
    [(Kind::Hedge, "hedge"), (Kind::Tie, "tie"), (Kind::Retry, "retry"), (Kind::Fallback, "fallback")];

impl Counts {
    /// What all of `clients` have counted since they were made.
    pub(crate) fn of(clients: &[Client]) -> Self {
        let mut all = Self::default();
        clients.iter().for_each(|client| all.add(&Self::from(&client.hedge_metrics())));
        all
    }

    /// Adds what others counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |own, other| own + other, |own, other| own + other);
    }

    /// What was counted since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.combine(before, u64::saturating_sub, |own, before| (own - before).max(0.0));
        self
    }

    fn combine(&mut self, other: &Self, count: impl Fn(u64, u64) -> u64, time: impl Fn(f64, f64) -> f64) {
        self.first = count(self.first, other.first);
        self.cancelled = count(self.cancelled, other.cancelled);
        self.dropped = count(self.dropped, other.dropped);
        self.wasted_ms = time(self.wasted_ms, other.wasted_ms);
        self.held_up.count = count(self.held_up.count, other.held_up.count);
        self.held_up.total_ms = time(self.held_up.total_ms, other.held_up.total_ms);
        self.held_up.put_off = count(self.held_up.put_off, other.held_up.put_off);
        for (name, kind) in &other.kinds {
            let own = self.kinds.entry(name.clone()).or_default();
            own.sent = count(own.sent, kind.sent);
            own.won = count(own.won, kind.won);
            own.suppressed = count(own.suppressed, kind.suppressed);
            own.sent_late = count(own.sent_late, kind.sent_late);
        }
        for (name, node) in &other.nodes {
            let own = self.nodes.entry(name.clone()).or_default();
            own.attempts = count(own.attempts, node.attempts);
            own.extra = count(own.extra, node.extra);
            own.successes = count(own.successes, node.successes);
            own.errors = count(own.errors, node.errors);
            own.cancelled = count(own.cancelled, node.cancelled);
            own.latency_ms = time(own.latency_ms, node.latency_ms);
        }
    }

    /// In the form of results.
    pub(crate) fn report(&self) -> hedgerow_report::Hedging {
        let has_any = |kind: &ExtraAttempts| kind.sent + kind.suppressed > 0;
        hedgerow_report::Hedging {
            first: self.first,
            kinds: self.kinds.iter().filter(|(_, kind)| has_any(kind)).map(|(name, it)| (name.clone(), *it)).collect(),
            cancelled: self.cancelled,
            dropped: self.dropped,
            wasted_ms: self.wasted_ms,
            held_up: (self.held_up.count + self.held_up.put_off > 0).then_some(self.held_up),
            nodes: self.nodes.clone(),
            ..hedgerow_report::Hedging::default()
        }
    }
}

impl From<&HedgeMetrics> for Counts {
    fn from(metrics: &HedgeMetrics) -> Self {
        let counters = &metrics.counters;
        let kind = |(kind, name): (Kind, &str)| {
            let of = |counts: &[u64]| counts[kind.index()];
            let kind = ExtraAttempts {
                sent: of(&counters.sent),
                won: of(&counters.won),
                suppressed: of(&counters.suppressed),
                sent_late: of(&counters.sent_late),
            };
            (name.to_owned(), kind)
        };
        let node = |host: &HostMetrics| NodeAttempts {
            attempts: host.attempts,
            extra: host.extra,
            successes: host.successes,
            errors: host.errors,
            cancelled: host.cancelled,
            latency_ms: host.latency.as_secs_f64() * 1e3,
        };
        Self {
            first: counters.first,
            kinds: KINDS.map(kind).into(),
            cancelled: counters.cancelled,
            dropped: counters.dropped,
            wasted_ms: counters.wasted_us as f64 / 1e3,
            held_up: HeldUp {
                count: metrics.late_alarms.count,
                total_ms: metrics.late_alarms.total.as_secs_f64() * 1e3,
                put_off: metrics.late_alarms.put_off,
            },
            nodes: metrics.hosts.iter().map(|(address, host)| (address.to_string(), node(host))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn everything() -> HedgeOptions {
        HedgeOptions {
            reads: Policy::Adaptive { max_extra_load: 0.02, min_delay: Duration::from_micros(500), max_executions: 2 },
            writes: Policy::Constant { delay: Duration::from_millis(10), max_executions: 3 },
            tie: TieMode::Auto,
            fallback: Some(Fallback { after: Duration::from_millis(10), bound: Duration::from_secs(1) }),
            busy_threshold: Some(Duration::from_millis(5)),
            budget: Some(BudgetOptions { ratio: 0.02, burst: Some(500.0) }),
            ..HedgeOptions::default()
        }
    }

    #[test]
    fn a_hedging_survives_its_form() {
        let hedging = Hedging::of(&everything()).unwrap();
        let text = serde_json::to_string(&hedging).unwrap();
        let read: Hedging = serde_json::from_str(&text).unwrap();
        assert_eq!(read, hedging, "{text}");
        assert_eq!(format!("{:?}", read.options()), format!("{:?}", everything()));
        assert!(!read.is_off() && Hedging::of(&HedgeOptions::default()).unwrap().is_off());
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        #[derive(Debug)]
        struct Own;
        impl hedgerow_client::SpeculativeExecutionPolicy for Own {
            fn plan(
                &self,
                _: hedgerow_client::RequestInfo<'_>,
                _: &dyn hedgerow_client::Latencies,
                _: f64,
            ) -> hedgerow_client::Plan {
                hedgerow_client::Plan::default()
            }
        }
        let options = HedgeOptions { reads: Policy::Custom(Arc::new(Own)), ..HedgeOptions::default() };
        assert!(Hedging::of(&options).unwrap_err().to_string().contains("function"));
        let fallback = Some(Fallback { after: Duration::from_millis(1), bound: Duration::ZERO });
        let hedging = Hedging::of(&HedgeOptions { fallback, ..HedgeOptions::default() }).unwrap();
        assert!(hedging.check().unwrap_err().to_string().contains("bounded=2s"));
    }

    #[test]
    fn counts_are_those_between_two_looks_at_all_clients() {
        let at = |first, sent, latency_ms| {
            let mut metrics = HedgeMetrics::default();
            metrics.counters.first = first;
            metrics.counters.sent[Kind::Hedge.index()] = sent;
            metrics.counters.won[Kind::Tie.index()] = 1;
            let host =
                HostMetrics { attempts: first, latency: Duration::from_millis(latency_ms), ..HostMetrics::default() };
            metrics.hosts.push(("127.0.0.1:1".parse().unwrap(), host));
            Counts::from(&metrics)
        };
        let (before, mut after) = (at(100, 5, 20), at(1_100, 7, 50));
        after.add(&at(10, 3, 5));
        let counted = after.since(&before);
        let report = counted.report();
        assert_eq!((report.first, report.kinds["hedge"].sent, report.extra()), (1_010, 5, 5));
        assert_eq!((report.nodes["127.0.0.1:1"].attempts, report.nodes["127.0.0.1:1"].latency_ms), (1_010, 35.0));
        assert!(!report.kinds.contains_key("fallback"), "what did not happen is not told");
    }

    /// An attempt may be put off where no alarm rang late: the alarm rang in time, and the request ran late.
    #[test]
    fn what_was_put_off_is_told_without_a_late_alarm() {
        let mut metrics = HedgeMetrics::default();
        assert_eq!(Counts::from(&metrics).report().held_up, None);
        metrics.late_alarms.put_off = 3;
        let held_up = Counts::from(&metrics).report().held_up;
        assert_eq!(held_up, Some(HeldUp { put_off: 3, ..HeldUp::default() }));
    }
}
