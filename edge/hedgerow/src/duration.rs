//! Durations on the command line.

use hedgerow_faults::units;
use std::time::Duration;

/// A positive number of seconds, fractions allowed, or a duration with its unit.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    if let Some(duration) = units::duration(text).ok().filter(|duration| has_unit && !duration.is_zero()) {
        return Ok(duration);
    }
    let seconds: f64 = text.parse().map_err(|_| {
        format!("{text:?} is not a number of seconds, such as 5 or 0.5, nor a duration, such as 500ms or 2min")
    })?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) | Err(_) => Err("the number of seconds must be above 0".to_owned()),
    }
}
