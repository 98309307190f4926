//! The time of day, as it stands in results and in the names of folders.
#![allow(clippy::disallowed_methods, reason = "results tell when they were measured; nothing is decided by it")]

use ::time::OffsetDateTime;
use ::time::format_description::well_known::Rfc3339;

/// Now, in UTC, to the second: RFC 3339, for example `2026-11-22T10:15:00Z`.
pub fn utc_now() -> String {
    let now = OffsetDateTime::now_utc();
    written(now.replace_nanosecond(0).unwrap_or(now))
}

/// The second of the Unix era `seconds`, UTC, in RFC 3339. The last one of the year 9999 stands for those after it, which have no such form.
pub fn rfc3339(seconds: u64) -> String {
    const LAST: i64 = 253_402_300_799;
    let seconds = i64::try_from(seconds).map_or(LAST, |seconds| seconds.min(LAST));
    OffsetDateTime::from_unix_timestamp(seconds).map(written).unwrap_or_default()
}

fn written(time: OffsetDateTime) -> String {
    time.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_342_500), "2026-11-22T10:15:00Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(utc_now().len(), "2026-11-22T10:15:00Z".len());
    }
}
