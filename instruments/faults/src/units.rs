//! Durations, bandwidths and sizes as people write them: `5ms`, `297mbit`, `64KiB`.

use std::time::Duration;

/// The longest duration that can be written: a day.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

const DURATIONS: [(&str, f64); 5] = [("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0), ("h", 3600.0)];
/// In bits per second, as networks are sold.
const BANDWIDTHS: [(&str, f64); 4] = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
const SIZES: [(&str, f64); 4] = [("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0), ("B", 1.0)];

/// Reads a duration: a number with `us`, `ms`, `s`, `min` or `h` behind it; `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let seconds = quantity(text, &DURATIONS).ok_or_else(|| {
        format!("{text:?} is not a duration: a number with us, ms, s, min or h behind it is, for example 20ms")
    })?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= DURATION_MAX => Ok(duration),
        Ok(_) | Err(_) => Err(format!("{text:?} is too long: at most 24h are allowed")),
    }
}

/// Reads a bandwidth in bytes per second: a number of bits per second with `kbit`, `mbit` or `gbit` behind it.
pub fn bandwidth(text: &str) -> Result<u64, String> {
    let allowed = "a number with kbit, mbit or gbit (per second) behind it is, from 8kbit to 1000gbit";
    let bytes = quantity(text, &BANDWIDTHS).map(|bits| bits / 8.0);
    let bytes = bytes.filter(|bytes| (1e3..=1.25e11).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| format!("{text:?} is not a bandwidth: {allowed}"))
}

/// Reads a size in bytes: a number with `B`, `KiB`, `MiB` or `GiB` behind it.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = quantity(text, &SIZES).filter(|bytes| (1.0..=1e12).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| {
        format!("{text:?} is not a size: a number with B, KiB, MiB or GiB behind it is, for example 64KiB")
    })
}

fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// A duration as people read it, at most three digits behind the point.
pub fn show(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (number, unit) = match seconds {
        0.0 => return "0s".to_owned(),
        _ if seconds < 1e-3 => (seconds * 1e6, "us"),
        _ if seconds < 1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let number = format!("{number:.3}");
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// A bandwidth as people read it.
pub fn show_bandwidth(bytes_per_second: u64) -> String {
    let bits = bytes_per_second as f64 * 8.0;
    let (number, unit) = match bits {
        _ if bits < 1e6 => (bits / 1e3, "kbit"),
        _ if bits < 1e9 => (bits / 1e6, "mbit"),
        _ => (bits / 1e9, "gbit"),
    };
    let number = format!("{number:.3}");
    format!("{}{unit}/s", number.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let read = |text| duration(text).unwrap();
        assert_eq!(read("20ms"), Duration::from_millis(20));
        assert_eq!(read("1.5 s"), Duration::from_millis(1_500));
        assert_eq!(read("250us"), Duration::from_micros(250));
        assert_eq!(read("2min"), Duration::from_secs(120));
        assert_eq!(read("0"), Duration::ZERO);
    }

    #[test]
    fn what_is_no_duration_says_what_is() {
        for text in ["", "5", "ms", "-1s", "5 days", "1e3", "NaNs", "infs"] {
            assert!(duration(text).unwrap_err().contains("20ms"), "{text}");
        }
        assert!(duration("25h").unwrap_err().contains("24h"));
    }

    #[test]
    fn bandwidths_and_sizes_are_read() {
        assert_eq!(bandwidth("297mbit"), Ok(37_125_000));
        assert_eq!(bandwidth("10gbit"), Ok(1_250_000_000));
        assert!(bandwidth("10MB").unwrap_err().contains("mbit"));
        assert!(bandwidth("1bit").unwrap_err().contains("8kbit"));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert!(size("64kb").unwrap_err().contains("KiB"));
    }

    #[test]
    fn quantities_are_shown_short() {
        assert_eq!(show(Duration::from_micros(20_500)), "20.5ms");
        assert_eq!(show(Duration::from_secs(100)), "100s");
        assert_eq!(show(Duration::ZERO), "0s");
        assert_eq!(show_bandwidth(37_125_000), "297mbit/s");
        assert_eq!(show_bandwidth(1_250_000_000), "10gbit/s");
    }
}
