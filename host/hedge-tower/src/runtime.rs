//! The only place where this crate reads a clock.

use tokio::time::Instant;

/// The runtime's clock, which a test can pause.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate reads steady time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
