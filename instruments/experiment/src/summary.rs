//! Several repetitions as one figure: the median, and how far they lie apart.

use hedgerow_report::Run;
use std::fmt;

/// The median of some values with the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` without values. Values that are no numbers are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values.get(middle.checked_sub(1)?)? + values[middle]) / 2.0
        } else {
            values[middle]
        };
        Some(Self { median, min: values[0], max: values[values.len() - 1] })
    }

    /// A figure of the runs that are not void, or of all of them if none is sound.
    pub fn of_runs(runs: &[&Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<Self> {
        let sound = || runs.iter().filter(|run| run.void.is_none());
        if sound().next().is_some() {
            Self::of(sound().filter_map(|run| figure(run)))
        } else {
            Self::of(runs.iter().filter_map(|run| figure(run)))
        }
    }

    /// This median against that of `base`; `None` against nothing.
    #[must_use]
    pub fn ratio(self, base: Self) -> Option<f64> {
        let ratio = self.median / base.median;
        ratio.is_finite().then_some(ratio)
    }
}

/// As many digits as mean something: `median (min-max)`, the median alone if all are the same.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(number);
        if min == max { f.write_str(&median) } else { write!(f, "{median} ({min}-{max})") }
    }
}

/// A figure for people: three significant digits, and all digits before the point.
#[must_use]
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = if size >= 100.0 || size == 0.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    let digits = format!("{value:.decimals$}");
    if size >= 1_000.0 { thousands(&digits) } else { digits }
}

fn thousands(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A figure that may be missing.
#[must_use]
pub(crate) fn or_na(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "n/a".to_owned(), |value| value.to_string())
}

/// `x1.25`, or `n/a`.
#[must_use]
pub(crate) fn times(ratio: Option<f64>) -> String {
    or_na(ratio.map(|ratio| format!("x{ratio:.2}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
    }

    #[test]
    fn void_runs_count_only_among_themselves() {
        let run =
            |rate, void: Option<&str>| Run { achieved_per_s: rate, void: void.map(str::to_owned), ..Run::default() };
        let runs = [run(1.0, None), run(9.0, Some("lag"))];
        let median = |runs: &[&Run]| Spread::of_runs(runs, |run| Some(run.achieved_per_s)).unwrap().median;
        assert_eq!(median(&[&runs[0], &runs[1]]), 1.0);
        assert_eq!(median(&[&runs[1]]), 9.0);
    }

    #[test]
    fn ratios_are_of_medians() {
        let (one, two) = (Spread::of([1.0]).unwrap(), Spread::of([2.0]).unwrap());
        assert_eq!(two.ratio(one), Some(2.0));
        assert_eq!(two.ratio(Spread::of([0.0]).unwrap()), None);
    }

    #[test]
    fn figures_have_the_digits_that_mean_something() {
        let texts = [0.0, 0.0704, 1.234, 12.34, 123.4, 1234.0, -1_234_567.8].map(number);
        assert_eq!(texts, ["0", "0.070", "1.23", "12.3", "123", "1,234", "-1,234,568"]);
        assert_eq!(Spread::of([14_223.0, 18_943.0, 15_000.0]).unwrap().to_string(), "15,000 (14,223-18,943)");
        assert_eq!(Spread::of([2.0, 2.001]).unwrap().to_string(), "2.00");
    }
}
