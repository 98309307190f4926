//! Times that are drawn from the seed: one value, a range, or a distribution.

use crate::units;
use hedgerow_types::random::Random;
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// How a time is drawn.
///
/// | written | drawn |
/// |---|---|
/// | `50ms` | always this |
/// | `20ms..200ms` | evenly between the two |
/// | `exponential(5s)` | exponentially with this mean: what happens independently of what happened before |
/// | `lognormal(50ms, 0.7)` | the median, and the standard deviation of the logarithm: mostly near, sometimes far above |
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum Draw {
    /// Always this.
    Constant(Duration),
    /// Evenly between the two.
    Uniform(Duration, Duration),
    /// Exponentially with this mean.
    Exponential(Duration),
    /// The median and the standard deviation of the logarithm.
    LogNormal(Duration, f64),
}

/// The largest sigma: 99.9 % of the values then lie within a factor of about 10,000 of the median.
const SIGMA_MAX: f64 = 3.0;

impl Draw {
    /// Reads one of the forms above.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some((low, high)) = text.split_once("..") {
            let (low, high) = (units::duration(low)?, units::duration(high)?);
            return if low < high {
                Ok(Self::Uniform(low, high))
            } else {
                Err(format!("{text:?}: the end of a range must be above its beginning"))
            };
        }
        let Some((name, inner)) = text.trim().strip_suffix(')').and_then(|text| text.split_once('(')) else {
            return units::duration(text).map(Self::Constant);
        };
        match (name, inner.split_once(',')) {
            ("exponential", None) => positive(inner).map(Self::Exponential),
            ("lognormal", Some((median, sigma))) => {
                let sigma = sigma.trim().parse().ok().filter(|sigma| (0.0..=SIGMA_MAX).contains(sigma));
                let sigma = sigma.ok_or_else(|| format!("{text:?}: sigma must be a number from 0 to {SIGMA_MAX}"))?;
                Ok(Self::LogNormal(positive(median)?, sigma))
            }
            _ => Err(format!(
                "{text:?} is not known: allowed are 50ms, 20ms..200ms, exponential(5s) and lognormal(50ms, 0.7)"
            )),
        }
    }

    /// Draws one, cut to `max`.
    pub fn draw(&self, random: &mut Random, max: Duration) -> Duration {
        let drawn = match *self {
            Self::Constant(value) => value,
            Self::Uniform(low, high) => low + (high - low).mul_f64(fraction(random)),
            Self::Exponential(mean) => mean.mul_f64(-positive_fraction(random).ln()),
            Self::LogNormal(median, sigma) => {
                // Box and Muller's way from two even numbers to a normal one. Far out it stays below 9.
                let radius = (-2.0 * positive_fraction(random).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * fraction(random)).cos();
                median.mul_f64((sigma * normal).exp())
            }
        };
        drawn.min(max)
    }

    /// The least that can be drawn.
    pub fn min(&self) -> Duration {
        match *self {
            Self::Constant(value) | Self::Uniform(value, _) => value,
            Self::Exponential(_) | Self::LogNormal(..) => Duration::ZERO,
        }
    }

    /// The middle: the mean, for a lognormal distribution the median.
    pub fn middle(&self) -> Duration {
        match *self {
            Self::Constant(value) | Self::Exponential(value) | Self::LogNormal(value, _) => value,
            Self::Uniform(low, high) => (low + high) / 2,
        }
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    let duration = units::duration(text)?;
    if duration.is_zero() { Err("the middle of a distribution must be above 0".to_owned()) } else { Ok(duration) }
}

/// Evenly in `0.0..1.0`.
pub(crate) fn fraction(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Evenly in what is above 0 and at most 1.
fn positive_fraction(random: &mut Random) -> f64 {
    1.0 - fraction(random)
}

impl TryFrom<String> for Draw {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = units::show;
        match *self {
            Self::Constant(value) => write!(f, "{}", show(value)),
            Self::Uniform(low, high) => write!(f, "{}..{}", show(low), show(high)),
            Self::Exponential(mean) => write!(f, "exponential({})", show(mean)),
            Self::LogNormal(median, sigma) => write!(f, "lognormal({}, {sigma})", show(median)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREVER: Duration = Duration::from_secs(1_000);

    fn sample(text: &str) -> Vec<f64> {
        let (draw, mut random) = (Draw::parse(text).unwrap(), Random::new(7));
        let mut values: Vec<f64> = (0..20_000).map(|_| draw.draw(&mut random, FOREVER).as_secs_f64()).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn every_form_is_read_and_written() {
        for text in ["50ms", "20ms..200ms", "exponential(5s)", "lognormal(50ms, 0.7)"] {
            assert_eq!(Draw::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_form_says_what_is() {
        let refused = |text| Draw::parse(text).unwrap_err();
        assert!(refused("normal(5ms)").contains("lognormal(50ms, 0.7)"));
        assert!(refused("200ms..20ms").contains("above its beginning"));
        assert!(refused("lognormal(50ms, 9)").contains("from 0 to 3"));
        assert!(refused("exponential(0)").contains("above 0"));
        assert!(refused("5").contains("20ms"));
    }

    #[test]
    fn a_range_is_drawn_evenly() {
        let values = sample("20ms..200ms");
        assert!(values[0] >= 0.020 && *values.last().unwrap() < 0.200);
        assert!((mean(&values) - 0.110).abs() < 0.002, "{}", mean(&values));
    }

    #[test]
    fn distributions_have_their_middle_and_their_tail() {
        let values = sample("exponential(5s)");
        assert!((mean(&values) - 5.0).abs() < 0.2, "{}", mean(&values));
        let beyond = values.iter().filter(|value| **value > 15.0).count() as f64 / values.len() as f64;
        assert!((beyond - (-3.0_f64).exp()).abs() < 0.01, "{beyond}");
        let values = sample("lognormal(50ms, 0.7)");
        assert!((values[values.len() / 2] - 0.050).abs() < 0.002);
        let p84 = values[values.len() * 8413 / 10_000];
        assert!((p84 / 0.050 - 0.7_f64.exp()).abs() < 0.1, "{p84}");
    }

    #[test]
    fn what_is_drawn_is_cut() {
        let draw = Draw::parse("exponential(5s)").unwrap();
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| draw.draw(&mut random, Duration::from_secs(6)) <= Duration::from_secs(6)));
    }
}
