//! The only place of the client commands that starts a task or reads a clock.

use anyhow::{Context as _, Result};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Runs a command on one thread: the work is in the cluster, and a second thread would only add hand-overs.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("starting the runtime")?.block_on(work)
}

/// Starts a task beside the caller.
#[allow(clippy::disallowed_methods, reason = "the one place where the client commands start tasks")]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// The steady clock.
#[allow(clippy::disallowed_methods, reason = "the one place where the client commands read the clock")]
#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits.
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits for `task`, but no longer than `limit`: then there is no result.
pub(crate) async fn timeout<T>(limit: Duration, task: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, task).await.ok()
}

/// Waits until `time`.
pub(crate) async fn sleep_until(time: Instant) {
    tokio::time::sleep_until(time).await;
}

/// Runs what blocks, on a thread of its own.
#[allow(clippy::disallowed_methods, reason = "the one place where the client commands start threads")]
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread ended")
}
