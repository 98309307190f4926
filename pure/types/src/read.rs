//! How fresh a read must be, and how far behind a replica is that cannot be fresh enough.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// How fresh a read must be, whichever replica answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadLevel {
    /// The latest value that was acknowledged, or shown to anybody, before the read began.
    #[default]
    Linearizable,
    /// Not older than anything that the caller's session saw or wrote; see [`crate::SessionToken`].
    Session,
    /// At most this old: nothing is missing that was acknowledged so long before the read was served.
    Bounded(Duration),
    /// Some committed state.
    Eventual,
}

impl ReadLevel {
    /// The smallest bound. A shorter one would be met by the leader only, which serves linearizable reads as fast.
    pub const BOUND_MIN: Duration = Duration::from_millis(1);
    /// The largest bound.
    pub const BOUND_MAX: Duration = Duration::from_secs(86_400);
    /// What [`ReadLevel::from_str`] takes, for error messages and help.
    pub const FORMS: &str = "linearizable, session, bounded=DURATION (1ms to 24h, for example bounded=2s) or eventual";
}

/// Written as [`ReadLevel::FORMS`] says.
impl fmt::Display for ReadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable => f.write_str("linearizable"),
            Self::Session => f.write_str("session"),
            Self::Bounded(bound) if bound.as_millis().is_multiple_of(1_000) => {
                write!(f, "bounded={}s", bound.as_secs())
            }
            Self::Bounded(bound) => write!(f, "bounded={}ms", bound.as_millis()),
            Self::Eventual => f.write_str("eventual"),
        }
    }
}

/// A text that names no read level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no read level; there are {forms}", forms = ReadLevel::FORMS)]
pub struct InvalidLevel(String);

impl FromStr for ReadLevel {
    type Err = InvalidLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLevel> {
        match text {
            "linearizable" => Some(Self::Linearizable),
            "session" => Some(Self::Session),
            "eventual" => Some(Self::Eventual),
            _ => text.strip_prefix("bounded=").and_then(parse_bound).map(Self::Bounded),
        }
        .ok_or_else(|| InvalidLevel(text.into()))
    }
}

/// A whole number with a unit: ms, s, m or h.
fn parse_bound(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let bound = Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(unit_ms)?);
    (ReadLevel::BOUND_MIN..=ReadLevel::BOUND_MAX).contains(&bound).then_some(bound)
}

/// How far a replica is behind, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lag {
    /// Committed log entries that it has not applied.
    pub entries: u64,
    /// How old its data may be; `None` if it has no proof of any age.
    pub staleness: Option<Duration>,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("no leader answers it, so that nobody knows by how much");
        }
        match self.entries {
            0 => {}
            1 => f.write_str("1 entry behind, ")?,
            entries => write!(f, "{entries} entries behind, ")?,
        }
        match self.staleness {
            Some(staleness) => write!(f, "at most {} ms old", staleness.as_millis()),
            None => f.write_str("of unknown age"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn levels_are_read_as_they_are_written() {
        let bounded = |ms| ReadLevel::Bounded(Duration::from_millis(ms));
        let levels = [ReadLevel::Linearizable, ReadLevel::Session, ReadLevel::Eventual, bounded(1), bounded(2_000)];
        for level in levels.into_iter().chain([bounded(1_500), ReadLevel::Bounded(ReadLevel::BOUND_MAX)]) {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert_eq!("bounded=2m".parse(), Ok(bounded(120_000)));
        assert_eq!("bounded=1h".parse(), Ok(bounded(3_600_000)));
    }

    #[test]
    fn a_lag_tells_what_is_missing() {
        let lag = |entries, ms: Option<u64>| Lag { entries, staleness: ms.map(Duration::from_millis) }.to_string();
        assert_eq!(lag(2, Some(40)), "2 entries behind, at most 40 ms old");
        assert_eq!(lag(1, None), "1 entry behind, of unknown age");
        assert_eq!(lag(0, Some(1_500)), "at most 1500 ms old");
        assert_eq!(lag(0, None), "no leader answers it, so that nobody knows by how much");
    }

    #[test]
    fn what_is_no_level_is_refused_with_the_forms() {
        let long = "bounded=99999999999999999999s";
        for text in
            ["", "Linearizable", "bounded", "bounded=", "bounded=2", "bounded=0s", "bounded=25h", long, "strong"]
        {
            let error = text.parse::<ReadLevel>().expect_err(text);
            assert!(error.to_string().contains("bounded=2s"), "{error}");
        }
    }
}
