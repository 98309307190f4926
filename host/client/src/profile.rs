//! How requests are made where that differs from their handle: for one request, or under a name for many.

use crate::balancing::LoadBalancing;
use crate::hedging::{Fallback, HedgeOptions};
use crate::reading::ReadOptions;
use crate::retry::Retry;
use hedgerow_hedge::Policy;
use hedgerow_routing::{Address, ReplicaRead};
use hedgerow_types::ReadLevel;
use std::time::Duration;

/// What differs from how a handle makes requests; what is `None` stays as it is. What Cassandra's drivers call an execution profile.
///
/// ```
/// use hedgerow_client::{Profile, ReadLevel};
/// use std::time::Duration;
///
/// let fast = Profile::default()
///     .within(Duration::from_millis(20))
///     .level(ReadLevel::Bounded(Duration::from_secs(2)))
///     .hedge("5ms".parse()?);
/// assert_eq!(fast.within, Some(Duration::from_millis(20)));
/// # Ok::<(), hedgerow_client::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// How long one operation may take, retries included: see [`crate::ClientOptions::operation_timeout`]. One attempt may take half of it,
    /// and no longer than the client's options say.
    pub within: Option<Duration>,
    /// How fresh reads must be. It does not change who is asked, which is the leader unless `replicas` says otherwise.
    pub level: Option<ReadLevel>,
    /// Which replicas are asked.
    pub replicas: Option<ReplicaRead>,
    /// Who is chosen among these.
    pub balancing: Option<LoadBalancing>,
    /// Which nodes are asked for nothing that others can answer, instead of those that were excluded before: see
    /// [`ReadOptions::excluded`].
    pub excluded: Option<Vec<Address>>,
    /// When reads get further attempts. What is known of latencies is that of the handle.
    pub hedge: Option<Policy>,
    /// When writes do.
    pub hedge_writes: Option<Policy>,
    /// What follows a failed attempt.
    pub retry: Option<Retry>,
    /// Linearizable reads that take too long may be answered with less.
    pub fallback: Option<Fallback>,
    /// `Some(false)`: never two copies under way, nor one after another that may have run. `Some(true)` is the default: reads change nothing,
    /// and each write is applied once, however often it is sent.
    pub is_idempotent: Option<bool>,
}

impl Profile {
    /// One operation may take so long, retries included.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { within: Some(timeout), ..self }
    }

    /// Reads are as fresh as `level` says, at the leader unless [`Profile::replicas`] says otherwise.
    #[must_use]
    pub fn level(self, level: ReadLevel) -> Self {
        Self { level: Some(level), ..self }
    }

    /// Reads ask these replicas.
    #[must_use]
    pub fn replicas(self, mode: ReplicaRead) -> Self {
        Self { replicas: Some(mode), ..self }
    }

    /// Among the replicas that may be asked, `balancing` chooses.
    #[must_use]
    pub fn balancing(self, balancing: LoadBalancing) -> Self {
        Self { balancing: Some(balancing), ..self }
    }

    /// Nothing is asked of these nodes that others can answer: see [`ReadOptions::excluded`]. The list replaces the one before; name a host again
    /// to keep it excluded.
    #[must_use]
    pub fn without_hosts(self, hosts: impl IntoIterator<Item = Address>) -> Self {
        Self { excluded: Some(hosts.into_iter().collect()), ..self }
    }

    /// Reads get further attempts as `policy` says.
    #[must_use]
    pub fn hedge(self, policy: Policy) -> Self {
        Self { hedge: Some(policy), ..self }
    }

    /// Writes get further attempts as `policy` says; each is applied once.
    #[must_use]
    pub fn hedge_writes(self, policy: Policy) -> Self {
        Self { hedge_writes: Some(policy), ..self }
    }

    /// After a failed attempt, `retry` says what follows.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry: Some(retry), ..self }
    }

    /// A linearizable read that has no answer `after` its start may be answered with what is at most `bound` old; [`crate::Served::level`]
    /// says which it was.
    #[must_use]
    pub fn fallback(self, after: Duration, bound: Duration) -> Self {
        Self { fallback: Some(Fallback { after, bound }), ..self }
    }

    /// Whether requests may have two copies under way.
    #[must_use]
    pub fn idempotent(self, is_idempotent: bool) -> Self {
        Self { is_idempotent: Some(is_idempotent), ..self }
    }

    /// What reads become that were made as `options` say; `None` if nothing differs.
    pub(crate) fn reading(&self, options: impl FnOnce() -> ReadOptions) -> Option<ReadOptions> {
        let Self { level, replicas, balancing, excluded, .. } = self;
        if level.is_none() && replicas.is_none() && balancing.is_none() && excluded.is_none() {
            return None;
        }
        let mut options = options();
        options.level = level.or(options.level);
        options.mode = replicas.unwrap_or(options.mode);
        balancing.iter().for_each(|balancing| options.balancing = balancing.clone());
        excluded.iter().for_each(|excluded| options.excluded = excluded.clone());
        Some(options)
    }

    /// What becomes of requests that were hedged as `options` say; `None` if nothing differs.
    pub(crate) fn hedging(&self, options: impl FnOnce() -> HedgeOptions) -> Option<HedgeOptions> {
        let Self { hedge, hedge_writes, retry, fallback, is_idempotent, .. } = self;
        let is_same = hedge.is_none() && hedge_writes.is_none() && retry.is_none();
        if is_same && fallback.is_none() && is_idempotent.is_none() {
            return None;
        }
        let mut options = options();
        hedge.iter().for_each(|policy| options.reads = policy.clone());
        hedge_writes.iter().for_each(|policy| options.writes = policy.clone());
        retry.iter().for_each(|retry| options.retry = retry.clone());
        options.fallback = fallback.or(options.fallback);
        options.is_idempotent = is_idempotent.or(options.is_idempotent);
        Some(options)
    }
}
