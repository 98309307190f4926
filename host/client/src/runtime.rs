//! The only place where the client starts a task or reads a clock.

use hedgerow_env::{Clock, os::OsClock};
use hedgerow_types::time::expiry_seconds;
use std::time::Duration;
use tokio::time::Instant;

/// Starts a background task on the caller's runtime: the driver of a connection, the refresh of a table's map.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate spawns")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(task));
}

/// The runtime's clock, which a test can pause.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate reads steady time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Microseconds since 1970, by the wall clock.
pub(crate) fn unix_micros() -> u64 {
    OsClock.unix_micros()
}

/// When a record that is written now with `time_to_live` expires, in expiry-epoch seconds. Parts of a second count as a
/// whole one, so that no record dies early; a time to live of zero means "never expires" and gives 0.
pub(crate) fn expire_at(time_to_live: Option<Duration>) -> u32 {
    let Some(life) = time_to_live else { return 0 };
    if life.is_zero() {
        return 0;
    }
    let seconds = life.as_secs() + u64::from(life.subsec_nanos() > 0);
    let expire = u64::from(expiry_seconds(OsClock.unix_micros())).saturating_add(seconds);
    // The field travels as a signed number.
    expire.min(i32::MAX as u64) as u32
}

/// Seconds from now until `expire_at`, in expiry-epoch seconds; 0 if that is over.
pub(crate) fn seconds_until(expire_at: u32) -> u64 {
    u64::from(expire_at.saturating_sub(expiry_seconds(OsClock.unix_micros())))
}
