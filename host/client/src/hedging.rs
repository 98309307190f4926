//! How a handle hedges: which further attempts a slow or failed request gets, what they may cost, and who is told.

use crate::error::Error;
use crate::reading::ReadOptions;
use crate::retry::Retry;
use hedgerow_hedge::{BudgetOptions, Counters, Kind, Policy};
use hedgerow_routing::Address;
use hedgerow_types::PartitionIndex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How requests are hedged. The default is not at all.
///
/// ```
/// use hedgerow_client::{HedgeOptions, Policy};
///
/// let options = HedgeOptions { reads: "adaptive=2%".parse()?, ..HedgeOptions::default() };
/// # Ok::<(), hedgerow_client::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HedgeOptions {
    /// Further attempts of reads.
    pub reads: Policy,
    /// Further attempts of writes. Each is applied once, whatever it does: all attempts carry the write's number.
    pub writes: Policy,
    /// Whether reads are sent to two replicas that know of each other.
    pub tie: TieMode,
    /// What follows a failed attempt.
    pub retry: Retry,
    /// After how long a linearizable read also accepts older data.
    pub fallback: Option<Fallback>,
    /// Replicas that expect to let a read wait for longer are to say so at once.
    pub busy_threshold: Option<Duration>,
    /// What extra attempts of these requests may cost; `None` = the client's budget, which all its tables share.
    pub budget: Option<BudgetOptions>,
    /// Whether requests may be sent more than once: `None` = as the operation permits, and all do, since writes carry
    /// numbers; `Some(false)` = no copy is sent while another may be under way.
    pub is_idempotent: Option<bool>,
    /// Who is told about each attempt.
    pub observer: Option<AttemptObserver>,
    /// Whether nodes should tell how they came to their answers ([`crate::Served::mode`]).
    pub wants_trace: bool,
}

impl HedgeOptions {
    /// Pegasus' backup request: a read without a reply after `delay` is sent to one more replica. Zero = off.
    pub fn backup_request(delay: Duration) -> Self {
        Self { reads: Policy::Constant { delay, max_executions: 2 }, ..Self::default() }
    }

    /// Whether nothing of this makes a request any different from a plain one.
    pub(crate) fn is_off(&self) -> bool {
        self.reads.is_off()
            && self.writes.is_off()
            && self.tie == TieMode::Never
            && matches!(self.retry, Retry::NextReplica)
            && self.fallback.is_none()
            && self.busy_threshold.is_none()
            && self.is_idempotent != Some(false)
            && self.observer.is_none()
            && !self.wants_trace
    }
}

/// Linearizable within a time, or else bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// From the start of the request.
    pub after: Duration,
    /// How old the data may then be.
    pub bound: Duration,
}

/// When a read is sent to two replicas that know of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TieMode {
    /// Never.
    #[default]
    Never,
    /// When the queue at the first replica is expected to take longer than about two network delays.
    Auto,
    /// Always.
    Always,
}

/// How a table is opened. `TableOptions::from(delay)`, with milliseconds, is Pegasus' backup request delay; 0 or less is
/// off.
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    /// How it is read; `None` = as the client's options say.
    pub read: Option<ReadOptions>,
    /// How its requests are hedged.
    pub hedge: HedgeOptions,
}

impl From<i64> for TableOptions {
    fn from(backup_request_delay_ms: i64) -> Self {
        let delay = Duration::from_millis(u64::try_from(backup_request_delay_ms).unwrap_or(0));
        Self { hedge: HedgeOptions::backup_request(delay), ..Self::default() }
    }
}

impl From<HedgeOptions> for TableOptions {
    fn from(hedge: HedgeOptions) -> Self {
        Self { hedge, ..Self::default() }
    }
}

/// A function that is called for each attempt of a request, when it starts and when it ends. It runs in the task of the
/// request and should be quick. A table of [`HedgeOptions`] with an observer and without a policy sends further attempts only where one
/// fails or is late. Of a scan the first page of each partition is told.
#[derive(Clone)]
pub struct AttemptObserver(Arc<dyn Fn(&Attempt<'_>) + Send + Sync>);

impl AttemptObserver {
    /// An observer that calls `observe`.
    pub fn new(observe: impl Fn(&Attempt<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn tell(&self, attempt: &Attempt<'_>) {
        (self.0)(attempt);
    }
}

impl fmt::Debug for AttemptObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptObserver")
    }
}

/// What an observer is told.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The number of its request among those of this client that are observed or hedged.
    pub request: u64,
    /// What the request is to do, as the protocol names it: `GET`, `PUT`, `MULTI_GET`, ...
    pub operation: &'static str,
    /// Its number within its request, from 1.
    pub number: u32,
    /// Why it was sent.
    pub kind: Kind,
    /// Who was asked.
    pub node: Address,
    /// The partition.
    pub partition: PartitionIndex,
    /// What happens with it.
    pub event: AttemptEvent<'a>,
}

/// What happens with an attempt.
#[derive(Clone, Copy, Debug)]
pub enum AttemptEvent<'a> {
    /// It is sent.
    Start,
    /// It succeeded.
    Success {
        /// How long after it was sent.
        took: Duration,
    },
    /// It failed.
    Error {
        /// How.
        error: &'a Error,
        /// How long after it was sent.
        took: Duration,
    },
    /// It was given up, as another attempt has decided the request or its caller no longer waits.
    Cancelled {
        /// How long after it was sent.
        took: Duration,
    },
}

/// What one node did with a client's attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMetrics {
    /// Attempts sent there, of which [`HostMetrics::extra`] were not the first of their request.
    pub attempts: u64,
    /// Extra ones.
    pub extra: u64,
    /// Attempts that succeeded.
    pub successes: u64,
    /// Attempts that failed.
    pub errors: u64,
    /// Attempts that were given up.
    pub cancelled: u64,
    /// Time that all of them took together.
    pub latency: Duration,
}

/// Moments of hedged requests that the client noticed two milliseconds late or more, since its process was held up: by other work on its
/// threads, or by a machine that had no core for it. Not the nodes are slow then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateAlarms {
    /// How many.
    pub count: u64,
    /// How late they were together.
    pub total: Duration,
    /// How late the latest was.
    pub longest: Duration,
    /// Attempts that were put off, so that replies were read first.
    pub put_off: u64,
}

/// What a client's hedged tables have done so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HedgeMetrics {
    /// By kind of attempt, for all tables.
    pub counters: Counters,
    /// By node.
    pub hosts: Vec<(Address, HostMetrics)>,
    /// Extra attempts that the client's budget would allow now.
    pub budget_tokens: f64,
    /// How often this process was held up itself when something of a request was due.
    pub late_alarms: LateAlarms,
    /// The delay after which the last request of the most frequent class was to be hedged, if it was.
    pub hedge_delay: Option<Duration>,
}
