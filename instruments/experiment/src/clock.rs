//! The one place of this crate that reads a clock.
#![allow(clippy::disallowed_methods, reason = "experiments measure real time")]

use tokio::time::Instant;

/// The steady clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}
