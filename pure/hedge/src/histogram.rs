//! Counts of latencies in buckets of equal relative width, with those that were only seen to be *at least* so long apart.
//!
//! An octave has [`PER_OCTAVE`] buckets, so a bucket is at most 6.25 % wide and a value read from its inside is at most about
//! 3 % off. What is longer than the last bucket counts in the last one: no latency is an error, and none switches anything
//! off.

use alloc::boxed::Box;
use core::time::Duration;

const PER_OCTAVE_BITS: u32 = 4;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
/// Everything below 2^10 ns = 1.024 us counts in the first bucket.
const LOWEST_BIT: u32 = 10;
const OCTAVES: usize = 27;
/// From 1 us to 2^37 ns = 137 s.
pub(crate) const BUCKETS: usize = OCTAVES * PER_OCTAVE;

/// In which bucket a latency counts.
pub(crate) fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.max(1 << LOWEST_BIT);
    let bit = 63 - nanos.leading_zeros();
    let within = (nanos >> (bit - PER_OCTAVE_BITS)) as usize & (PER_OCTAVE - 1);
    let octave = (bit - LOWEST_BIT) as usize;
    (octave * PER_OCTAVE + within).min(BUCKETS - 1)
}

/// Where bucket `index` begins, nanoseconds; that of [`BUCKETS`] is where the last one ends.
pub(crate) fn bucket_start(index: usize) -> u64 {
    if index == 0 {
        return 0;
    }
    let octave = (index / PER_OCTAVE) as u32;
    let within = (index % PER_OCTAVE) as u64;
    (PER_OCTAVE as u64 + within) << (LOWEST_BIT - PER_OCTAVE_BITS + octave)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Latencies of one kind of attempt in one stretch of time.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    /// Attempts that took so long.
    pub(crate) done: Box<[u32; BUCKETS]>,
    /// Attempts that were given up after so long.
    pub(crate) cut: Box<[u32; BUCKETS]>,
    pub(crate) done_count: u32,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { done: Box::new([0; BUCKETS]), cut: Box::new([0; BUCKETS]), done_count: 0 }
    }

    pub(crate) fn add(&mut self, latency: Duration, is_done: bool) {
        let index = bucket_of(nanos(latency));
        let counts = if is_done { &mut self.done } else { &mut self.cut };
        counts[index] = counts[index].saturating_add(1);
        self.done_count = self.done_count.saturating_add(u32::from(is_done));
    }

    pub(crate) fn clear(&mut self) {
        self.done.fill(0);
        self.cut.fill(0);
        self.done_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_has_a_bucket_that_contains_it() {
        let mut value = 1_u64;
        while value < 137_000_000_000 {
            let index = bucket_of(value);
            assert!(bucket_start(index) <= value && value < bucket_start(index + 1), "{value} in {index}");
            let width = bucket_start(index + 1) - bucket_start(index);
            assert!(index == 0 || width as f64 <= 0.0625 * bucket_start(index) as f64, "{value}");
            value += 1 + value / 37;
        }
    }

    #[test]
    fn h13_beyond_the_range_counts_in_the_last_bucket() {
        let mut histogram = Histogram::new();
        for latency in [Duration::from_secs(138), Duration::from_secs(86_400 * 365), Duration::MAX] {
            histogram.add(latency, true);
        }
        histogram.add(Duration::ZERO, true);
        assert_eq!((histogram.done[BUCKETS - 1], histogram.done[0], histogram.done_count), (3, 1, 4));
        assert!(bucket_start(BUCKETS) > 60_000_000_000);
    }
}
