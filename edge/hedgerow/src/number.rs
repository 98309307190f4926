//! Numbers on the command line and in files. What is none is told what would be one.

/// The longest time to live that the command line takes, seconds: when a record expires is counted from 2016 in 31 bits.
const TTL_MAX: u64 = 1_000_000_000;

/// What stands behind whole numbers of seconds, minutes, hours and days.
pub(crate) const TIME_UNITS: [(&str, u64); 5] = [("min", 60), ("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// A time to live in seconds, as an option: a number of seconds, or one with a unit.
pub(crate) fn time_to_live(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().or_else(|| with_unit(text, &TIME_UNITS));
    seconds.filter(|seconds| *seconds <= TTL_MAX).ok_or_else(|| {
        format!(
            "{text:?} is not a whole number of seconds from 0 to {TTL_MAX}, nor one with s, m, h or d behind it, such as 7d; \
             0 = what the table says"
        )
    })
}

/// A time to live in seconds, in a file. It has no limit: a dump writes what a table's `default_ttl` has made, which may be longer than
/// what the command line takes.
pub(crate) fn time_to_live_of_row(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number of seconds; 0 = what the table says"))
}

/// What is added to a record.
pub(crate) fn addend(text: &str) -> Result<i64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a whole number, such as 1 or -5, from {} to {}", i64::MIN, i64::MAX))
}

/// Most rows that are shown.
pub(crate) fn limit(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number of rows; 0 = all"))
}

/// How many there shall be of something.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number, such as 8"))
}

/// A whole number with one of these units behind it, times what the unit stands for. A unit that others end with comes after them.
pub(crate) fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_told_what_is_allowed() {
        assert_eq!((time_to_live("0"), time_to_live("3600")), (Ok(0), Ok(3_600)));
        assert_eq!((addend("-5"), limit("0"), count("8")), (Ok(-5), Ok(0), Ok(8)));
        for (text, seconds) in [("60s", 60), ("5m", 300), ("5min", 300), ("2h", 7_200), ("7d", 604_800), ("0s", 0)] {
            assert_eq!(time_to_live(text), Ok(seconds), "{text}");
        }
        for wrong in ["1w", "1.5h", "-1", "-1h", "1000000001", "11575d", "300000000000000000d", "h", ""] {
            assert!(time_to_live(wrong).unwrap_err().contains("from 0 to 1000000000"), "{wrong}");
        }
        assert_eq!((time_to_live_of_row("0"), time_to_live_of_row("2147483647")), (Ok(0), Ok(2_147_483_647)));
        for wrong in ["1h", "-1", "1.5", "18446744073709551616"] {
            assert!(time_to_live_of_row(wrong).unwrap_err().contains("number of seconds; 0 = "), "{wrong}");
        }
        for wrong in ["one", "1.5", "9223372036854775808"] {
            assert!(addend(wrong).unwrap_err().contains("such as 1 or -5"), "{wrong}");
        }
        assert!(limit("all").unwrap_err().contains("0 = all"));
        assert!(count("-1").unwrap_err().contains("such as 8"));
    }
}
