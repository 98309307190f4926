//! What follows an attempt that failed in a way that does not decide its request.

use crate::error::Error;
use hedgerow_hedge::RequestInfo;
use hedgerow_routing::Address;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Decides what follows a failed attempt.
///
/// It decides about nothing else. Whatever it says: a retry keeps the request's level and its write's number, is sent before the
/// deadline, to a replica without an attempt of the request under way, and as the 64th attempt at the latest; it costs a token where the
/// attempt that it follows may still be under way; and what may have run is never sent again if the request is not idempotent. It is not
/// asked where there is nothing to decide: after an error that every attempt would have, and after a refusal that says who is the
/// right one to ask, which is followed.
///
/// ```
/// use hedgerow_client::{ErrorKind, FailedAttempt, Profile, RequestInfo, Retry, RetryDecision, RetryPolicy};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// /// Other replicas, as long as there is time for one, and nothing else than reads.
/// #[derive(Debug)]
/// struct WhileThereIsTime;
///
/// impl RetryPolicy for WhileThereIsTime {
///     fn decide(&self, request: RequestInfo<'_>, failed: &FailedAttempt<'_>) -> RetryDecision {
///         let is_read = matches!(request.operation, "GET" | "MULTI_GET" | "BATCH_GET" | "TTL" | "SORTKEY_COUNT");
///         match is_read && failed.left > Duration::from_millis(5) && failed.error.kind() != ErrorKind::Protocol {
///             true => RetryDecision::NextReplica,
///             false => RetryDecision::Rethrow,
///         }
///     }
/// }
///
/// let profile = Profile::default().retry(Retry::Custom(Arc::new(WhileThereIsTime)));
/// ```
pub trait RetryPolicy: fmt::Debug + Send + Sync {
    /// What follows the failure of attempt number [`RequestInfo::attempt`]. Asked when an attempt is late, and when it fails. It is
    /// called on the way of a request with no lock held: it should be quick, and a panic is that request's alone, whose other attempts
    /// are taken back.
    fn decide(&self, request: RequestInfo<'_>, failed: &FailedAttempt<'_>) -> RetryDecision;
}

/// An attempt that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedAttempt<'a> {
    /// Who was asked; `None` = nobody was known.
    pub node: Option<Address>,
    /// What the request would fail with.
    pub error: &'a Error,
    /// Whether it may have run, or may still.
    pub may_have_run: bool,
    /// Whether the request may run more than once: [`crate::HedgeOptions::is_idempotent`].
    pub is_idempotent: bool,
    /// How long is left until the deadline.
    pub left: Duration,
}

/// What follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryDecision {
    /// The error is the request's. Other attempts that are under way may still win.
    Rethrow,
    /// It is sent again to the same replica after a pause, as long as that one is the right one.
    SameReplica,
    /// It is sent on as a plain request is; and at once, to another replica, where one may serve it and the plan of the request
    /// allows a further attempt.
    #[default]
    NextReplica,
}

/// The policies that there are: each of the first three decides so every time.
#[derive(Clone, Debug, Default)]
pub enum Retry {
    /// [`RetryDecision::Rethrow`].
    Rethrow,
    /// [`RetryDecision::SameReplica`].
    SameReplica,
    /// [`RetryDecision::NextReplica`].
    #[default]
    NextReplica,
    /// The caller's own.
    Custom(Arc<dyn RetryPolicy>),
}

impl RetryPolicy for Retry {
    fn decide(&self, request: RequestInfo<'_>, failed: &FailedAttempt<'_>) -> RetryDecision {
        match self {
            Self::Rethrow => RetryDecision::Rethrow,
            Self::SameReplica => RetryDecision::SameReplica,
            Self::NextReplica => RetryDecision::NextReplica,
            Self::Custom(policy) => policy.decide(request, failed),
        }
    }
}
