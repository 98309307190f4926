//! Whether, when and how many further attempts a request gets.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// What one request may do to be fast, fixed when it starts. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// When the second attempt is sent if there is no reply by then, from the start of the request; `None` = never.
    pub delay: Option<Duration>,
    /// The gap between two further attempts. Each gap is longer than the one before by `step`.
    pub gap: Duration,
    /// By how much the gaps grow.
    pub step: Duration,
    /// Most attempts, the first included, of those that `delay` and failures cause. 0 and 1 mean the first only.
    pub max_executions: u8,
    /// Send the second attempt, tied to the first, after this time instead of after `delay`.
    pub tie: Option<Duration>,
    /// When an attempt is sent that asks for less (for example for less fresh data), beside the others; `None` = never.
    pub fallback: Option<Duration>,
}

/// Decides about requests of one class by what is known of their latency.
pub trait SpeculativeExecutionPolicy: fmt::Debug + Send + Sync {
    /// The plan for the next request. `draw` is uniform in 0..1, drawn for this request.
    fn plan(&self, latencies: &dyn Latencies, draw: f64) -> Plan;
}

/// What is known of the latency of one class of requests: of its first attempts, cancelled ones counted as at least as long
/// as they were waited for.
pub trait Latencies {
    /// The latency that a share of `percentile` / 100 of the attempts stay below; `None` while too few are known.
    fn percentile(&self, percentile: f64) -> Option<Duration>;

    /// The delay and the probability of a second attempt with which the latency is best at most at `max_extra_load` (a
    /// share of the first attempts, for example 0.02) extra ones; `None` while too little is known.
    fn best_within(&self, max_extra_load: f64) -> Option<(Duration, f64)>;
}

/// The policies that there are by name.
///
/// | form | meaning |
/// |---|---|
/// | `none` | never |
/// | `10ms` | a further attempt every 10 ms |
/// | `10ms+50ms` | after 10 ms, then each gap 50 ms longer than the one before |
/// | `99p` | after the 99th percentile of recent latency |
/// | `min(99p,10ms)` | after the shorter of the two |
/// | `adaptive` or `adaptive=2%` | solved for the given share of extra attempts |
#[derive(Clone, Debug, Default)]
pub enum Policy {
    /// Never.
    #[default]
    None,
    /// A further attempt each time that `delay` has passed without a reply. A delay of zero is the same as [`Policy::None`].
    Constant {
        /// From the start, and between further attempts.
        delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// As [`Policy::Constant`], with gaps that grow.
    Increasing {
        /// From the start.
        delay: Duration,
        /// By how much each gap is longer than the one before.
        step: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// After a percentile of the recent latency of the request's class.
    Percentile {
        /// 0 to 100, for example 99.9.
        percentile: f64,
        /// The delay is not shorter than this.
        min_delay: Duration,
        /// The delay is not longer than this, also while too little is known.
        max_delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// Delay and probability are solved from the recent latency of the request's class, so that the latency is best at this
    /// share of extra attempts.
    Adaptive {
        /// Extra attempts per first attempt, for example 0.02.
        max_extra_load: f64,
        /// The delay is not shorter than this.
        min_delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// The caller's own.
    Custom(Arc<dyn SpeculativeExecutionPolicy>),
}

/// A text that is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPolicy(pub String);

impl core::str::FromStr for Policy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        if text == "none" { Ok(Self::None) } else { Err(InvalidPolicy(text.into())) }
    }
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a policy", self.0)
    }
}

impl core::error::Error for InvalidPolicy {}
