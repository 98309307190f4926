//! Durations on the command line.

use std::time::Duration;

/// A positive number of seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) | Err(_) => Err("the number of seconds must be above 0".to_owned()),
    }
}
