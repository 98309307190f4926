//! The client in a world of its own, instead of on Tokio and the operating system: the same code, for whoever simulates a
//! cluster. A world is entered by the thread that polls the client's futures; what they start, wait for, draw and connect to
//! is then the world's.

use crate::runtime;
use std::time::Duration;

pub use crate::world::{Entered, Pipe, Task, World, connect, enter};

/// Waits for `delay`, for a task of the world's own.
pub async fn sleep(delay: Duration) {
    runtime::sleep(delay).await;
}

/// Runs `task` for at most `limit`; `None` = it has not ended.
pub async fn timeout<T>(limit: Duration, task: impl Future<Output = T>) -> Option<T> {
    runtime::timeout(limit, task).await.ok()
}
