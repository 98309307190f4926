//! Times as they travel: numbers of milliseconds and microseconds, and the second at which a record expires.

use crate::runtime::unix_micros;
use hedgerow_types::time::expiry_seconds;
use std::time::Duration;

/// A duration as requests tell it, in milliseconds.
pub(crate) fn millis(duration: Duration) -> i64 {
    // A fraction counts as a whole millisecond, so that a short deadline never reads as none.
    duration.as_micros().div_ceil(1000).min(i32::MAX as u128) as i64
}

/// A duration as replies tell it, in microseconds.
pub(crate) fn micros(micros: i32) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// When a record that is written now with `time_to_live` expires, in expiry-epoch seconds. Parts of a second count as a
/// whole one, so that no record dies early; a time to live of zero means "never expires" and gives 0.
pub(crate) fn expire_at(time_to_live: Option<Duration>) -> u32 {
    let Some(life) = time_to_live else { return 0 };
    if life.is_zero() {
        return 0;
    }
    let seconds = life.as_secs() + u64::from(life.subsec_nanos() > 0);
    let expire = u64::from(expiry_seconds(unix_micros())).saturating_add(seconds);
    // The field travels as a signed number.
    expire.min(i32::MAX as u64) as u32
}

/// How long a row has to live that expires at `expire_ts_seconds`.
pub(crate) fn time_to_live(expire_ts_seconds: Option<i32>) -> Option<Duration> {
    let expire_at = expire_ts_seconds.filter(|seconds| *seconds != 0)? as u32;
    Some(Duration::from_secs(seconds_until(expire_at)))
}

/// Seconds from now until `expire_at`, in expiry-epoch seconds; 0 if that is over.
fn seconds_until(expire_at: u32) -> u64 {
    u64::from(expire_at.saturating_sub(expiry_seconds(unix_micros())))
}
