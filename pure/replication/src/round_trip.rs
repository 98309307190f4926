//! How long an answer takes, smoothed, and how long to wait for one before it counts as lost.

use core::time::Duration;

/// A new sample counts for one part in this many.
const SMOOTHING: u32 = 8;
/// An answer that takes this many usual round trips is not worth waiting for.
const PATIENCE_ROUND_TRIPS: u32 = 8;

/// The smoothed round trip to one other replica or node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip(Option<Duration>);

impl RoundTrip {
    /// An answer took `sample`.
    pub(crate) fn take(&mut self, sample: Duration) {
        let smoothed = |known: Duration| (known * (SMOOTHING - 1) + sample) / SMOOTHING;
        self.0 = Some(self.0.map_or(sample, smoothed));
    }

    /// The smoothed round trip; `None` before the first answer.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.0
    }

    /// How long to wait for an answer: eight round trips, within the two limits; the longer one while nothing is known.
    pub(crate) fn patience(&self, least: Duration, most: Duration) -> Duration {
        self.0.map_or(most, |known| (known * PATIENCE_ROUND_TRIPS).max(least).min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patience_follows_the_round_trip_within_its_limits() {
        let ms = Duration::from_millis;
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.patience(ms(100), ms(500)), ms(500));
        round_trip.take(ms(1));
        assert_eq!(round_trip.patience(ms(100), ms(500)), ms(100));
        (0..100).for_each(|_| round_trip.take(ms(28)));
        assert!((ms(220)..ms(225)).contains(&round_trip.patience(ms(100), ms(500))), "{round_trip:?}");
        (0..100).for_each(|_| round_trip.take(ms(300)));
        assert_eq!(round_trip.patience(ms(100), ms(500)), ms(500));
    }
}
