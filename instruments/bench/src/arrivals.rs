//! When requests are due.

use crate::draw::exponential;
use hedgerow_types::random::Random;
use serde::{Deserialize, Serialize};

/// Most requests that an open loop keeps in flight, unless the load says otherwise.
pub const IN_FLIGHT_MAX_DEFAULT: u32 = 16_384;
const SECOND: f64 = 1e9;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// The next one when a reply has come: a stall keeps requests from being sent, and hides them.
    Closed {
        /// Clients at work at the same time.
        clients: u32,
        /// Requests that each keeps in flight.
        in_flight: u32,
    },
    /// At times that are fixed beforehand; latency counts from then.
    Open {
        /// Requests per second.
        rate: f64,
        /// How far apart.
        spacing: Spacing,
        /// Most requests in flight. What is due while so many are is sent late, and counts from when it was due.
        in_flight_max: u32,
    },
}

/// How far apart requests of an open loop are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// All equally.
    Constant,
    /// As many clients that know nothing of each other would send: the gaps have an exponential distribution.
    #[default]
    Poisson,
}

/// The due times of an open loop, in nanoseconds from its beginning. They depend on nothing but the seed.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    random: Option<Random>,
    gap: f64,
    next: f64,
}

impl Schedule {
    /// `rate` requests per second. With constant gaps the first is due after `phase` gaps, so that several generators
    /// together keep their gaps constant.
    pub(crate) fn new(rate: f64, spacing: Spacing, phase: f64, seed: u64) -> Self {
        let gap = SECOND / rate;
        let mut schedule = match spacing {
            Spacing::Constant => Self { random: None, gap, next: phase * gap },
            Spacing::Poisson => Self { random: Some(Random::new(seed)), gap, next: 0.0 },
        };
        if schedule.random.is_some() {
            schedule.advance();
        }
        schedule
    }

    /// When the next request is due.
    pub(crate) fn next_due(&self) -> u64 {
        self.next as u64
    }

    /// Goes on to the one after.
    pub(crate) fn advance(&mut self) {
        let gaps = self.random.as_mut().map_or(1.0, exponential);
        self.next += gaps * self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dues(mut schedule: Schedule, until: u64) -> Vec<u64> {
        let mut dues = Vec::new();
        while schedule.next_due() < until {
            dues.push(schedule.next_due());
            schedule.advance();
        }
        dues
    }

    #[test]
    fn constant_requests_are_equally_far_apart() {
        let dues = dues(Schedule::new(1000.0, Spacing::Constant, 0.0, 1), 1_000_000_000);
        assert_eq!(dues.len(), 1000);
        assert!(dues.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{dues:?}");
    }

    #[test]
    fn two_halves_of_a_constant_rate_interleave() {
        let half = |phase| dues(Schedule::new(500.0, Spacing::Constant, phase, 1), 10_000_000);
        assert_eq!(half(0.0), [0, 2_000_000, 4_000_000, 6_000_000, 8_000_000]);
        assert_eq!(half(0.5), [1_000_000, 3_000_000, 5_000_000, 7_000_000, 9_000_000]);
    }

    #[test]
    fn poisson_gaps_have_an_exponential_distribution() {
        let dues = dues(Schedule::new(1000.0, Spacing::Poisson, 0.0, 3), 100_000_000_000);
        // The count has a deviation of the square root of its mean.
        assert!((99_000..101_000).contains(&dues.len()), "{}", dues.len());
        let gaps: Vec<_> = dues.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let above_mean = gaps.iter().filter(|gap| **gap > 1_000_000).count() as f64 / gaps.len() as f64;
        assert!((above_mean - (-1.0_f64).exp()).abs() < 0.01, "{above_mean}");
        let above_three = gaps.iter().filter(|gap| **gap > 3_000_000).count() as f64 / gaps.len() as f64;
        assert!((above_three - (-3.0_f64).exp()).abs() < 0.005, "{above_three}");
    }

    #[test]
    fn the_seed_fixes_the_times() {
        let times = |seed| dues(Schedule::new(1000.0, Spacing::Poisson, 0.0, seed), 1_000_000_000);
        assert_eq!(times(4), times(4));
        assert_ne!(times(4), times(5));
    }
}
