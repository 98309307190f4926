//! Figures as people read them: few digits, with a unit where the place has room for one.

/// Where there is no figure.
pub(crate) const NONE: &str = "n/a";

/// A latency in microseconds, with the unit that fits it: `850 µs`, `1.21 ms`, `2.5 s`.
pub(crate) fn latency(microseconds: f64) -> String {
    let (value, unit) = match microseconds {
        _ if microseconds < 1e3 => (microseconds, "µs"),
        _ if microseconds < 1e6 => (microseconds / 1e3, "ms"),
        _ => (microseconds / 1e6, "s"),
    };
    format!("{} {unit}", short(value))
}

/// A number for an axis: `850`, `2.5k`, `12k`, `1.5M`.
pub(crate) fn compact(value: f64) -> String {
    match value.abs() {
        size if size < 1e3 => short(value),
        size if size < 1e6 => format!("{}k", short(value / 1e3)),
        size if size < 1e9 => format!("{}M", short(value / 1e6)),
        _ => format!("{}G", short(value / 1e9)),
    }
}

/// Three significant digits at most, without zeros at the end; whole numbers from 100 on.
fn short(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let decimals = if value.abs() < 9.995 { 2 } else { usize::from(value.abs() < 99.95) };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number for a table: digits in groups of three; below 100 with as many decimals as give three digits.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let decimals = match value.abs() {
        size if size < 0.000_5 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let grouped = group(whole);
    fraction.map_or_else(|| grouped.clone(), |fraction| format!("{grouped}.{fraction}"))
}

/// A count for a table.
pub(crate) fn count(value: u64) -> String {
    group(&value.to_string())
}

/// The digits of a whole number in groups of three.
fn group(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_take_the_unit_that_fits() {
        let cases = [(0.0, "0 µs"), (0.25, "0.25 µs"), (849.6, "850 µs"), (1_210.0, "1.21 ms"), (138_495.0, "138 ms")];
        for (value, text) in cases.into_iter().chain([(2_500_000.0, "2.5 s"), (20_000.0, "20 ms")]) {
            assert_eq!(latency(value), text);
        }
    }

    #[test]
    fn axes_get_short_numbers() {
        let cases = [
            (0.0, "0"),
            (850.0, "850"),
            (2_500.0, "2.5k"),
            (12_000.0, "12k"),
            (152_300.0, "152k"),
            (1.5e6, "1.5M"),
            (2e9, "2G"),
        ];
        for (value, text) in cases {
            assert_eq!(compact(value), text);
        }
    }

    #[test]
    fn tables_get_grouped_digits() {
        let cases =
            [(0.0, "0"), (0.123, "0.12"), (9.996, "10.0"), (42.42, "42.4"), (999.6, "1,000"), (-1234.5, "-1,234")];
        for (value, text) in cases.into_iter().chain([(152_345.6, "152,346"), (f64::NAN, "n/a"), (100.0, "100")]) {
            assert_eq!(figure(value), text);
        }
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
