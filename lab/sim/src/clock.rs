//! True time, and the clock that each machine has instead of it.

use crate::history::Time;
use hedgerow_env::Now;
use hedgerow_types::Instant;
use hedgerow_types::random::Random;
use hedgerow_types::time::expiry_seconds;

/// One microsecond of [`Time`].
pub const MICROSECOND: Time = 1_000;
/// One millisecond of [`Time`].
pub const MILLISECOND: Time = 1_000_000;
/// One second of [`Time`].
pub const SECOND: Time = 1_000_000_000;

/// What all wall clocks show when a run begins: 2024-01-01.
pub(crate) const UNIX_MICROS_AT_START: u64 = 1_704_067_200_000_000;

/// A machine's clock: its own zero, its own rate, and a wall clock that may step.
#[derive(Clone, Debug)]
pub struct LocalClock {
    /// True time of the last change of rate.
    anchor: Time,
    /// What the clock read then, nanoseconds.
    reading: u64,
    rate_error_ppm: i64,
    unix_offset_micros: i64,
}

impl LocalClock {
    /// A clock that reads `zero` nanoseconds when the run begins, and runs fast by `rate_error_ppm` parts per million.
    pub const fn new(zero: u64, rate_error_ppm: i64) -> Self {
        Self { anchor: 0, reading: zero, rate_error_ppm, unix_offset_micros: 0 }
    }

    /// What the clock shows at true time `at`, not earlier than the last change of rate.
    pub fn read(&self, at: Time) -> Now {
        let steady = self.steady(at);
        let unix = UNIX_MICROS_AT_START + at / MICROSECOND;
        Now { instant: Instant(steady), unix_micros: unix.saturating_add_signed(self.unix_offset_micros) }
    }

    /// Changes the rate from true time `at` on.
    pub fn set_rate(&mut self, at: Time, rate_error_ppm: i64) {
        self.reading = self.steady(at);
        self.anchor = at;
        self.rate_error_ppm = rate_error_ppm;
    }

    /// Steps the wall clock; the steady one does not notice.
    pub fn step_wall(&mut self, micros: i64) {
        self.unix_offset_micros += micros;
    }

    /// True time that passes while the clock advances by `elapsed` nanoseconds.
    pub fn true_duration(&self, elapsed: u64) -> Time {
        (u128::from(elapsed) * 1_000_000 / self.rate()) as Time
    }

    fn steady(&self, at: Time) -> u64 {
        self.reading + (u128::from(at - self.anchor) * self.rate() / 1_000_000) as u64
    }

    /// Parts per million of true time.
    const fn rate(&self) -> u128 {
        (1_000_000 + self.rate_error_ppm) as u128
    }
}

/// Every node has followed a majority of clocks that leapt so long ago.
const BELIEVED_WITHIN: Time = 320 * SECOND;

/// What a right wall clock shows: it goes ahead by hours while all machines stand still.
#[derive(Clone, Debug, Default)]
pub struct WallTime {
    /// When, and by how many microseconds altogether since the beginning.
    passed: Vec<(Time, u64)>,
}

impl WallTime {
    /// At `now`, so many microseconds pass at once.
    pub fn pass(&mut self, now: Time, micros: u64) {
        let before = self.passed.last().map_or(0, |last| last.1);
        self.passed.push((now, before + micros));
    }

    /// Whether nodes have had the time to believe it (decision 012: a majority that has leapt is followed after five minutes).
    pub fn is_believed(&self, at: Time) -> bool {
        self.passed.iter().rfind(|(since, _)| *since <= at).is_none_or(|(since, _)| since + BELIEVED_WITHIN <= at)
    }

    /// The time at `at`, in expiry-epoch seconds.
    pub fn expiry_seconds(&self, at: Time) -> u32 {
        let after = self.passed.partition_point(|(since, _)| *since <= at);
        let passed = after.checked_sub(1).map_or(0, |last| self.passed[last].1);
        expiry_seconds(UNIX_MICROS_AT_START + at / MICROSECOND + passed)
    }
}

/// Draws a rate error of at most `most` parts per million, and half of the time the largest, in either direction: rules that
/// allow for an error are put to the test by the largest.
pub fn draw_rate_error(most: u64, random: &mut Random) -> i64 {
    let drawn = random.below(2 * most + 1) as i64 - most as i64;
    if random.chance(1, 2) { drawn.signum() * most as i64 } else { drawn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_keeps_its_reading_when_its_rate_changes() {
        let mut clock = LocalClock::new(500, 100_000);
        assert_eq!(clock.read(1_000).instant, Instant(1_600));
        clock.set_rate(1_000, -500_000);
        assert_eq!(clock.read(1_000).instant, Instant(1_600));
        assert_eq!(clock.read(3_000).instant, Instant(2_600));
        assert_eq!(clock.true_duration(1_000), 2_000);
    }

    #[test]
    fn the_wall_clock_steps_alone() {
        let mut clock = LocalClock::new(0, 0);
        clock.step_wall(-3_600_000_000);
        let now = clock.read(SECOND);
        assert_eq!(now.instant, Instant(SECOND));
        assert_eq!(now.unix_micros, UNIX_MICROS_AT_START + 1_000_000 - 3_600_000_000);
    }
}
