//! Small draws from a seeded stream.

use crate::workload::Spread;
use hedgerow_types::random::Random;

/// A number from 0 up to 1, not 1 itself.
pub(crate) fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// With a normal distribution of mean 0 and deviation 1 (Box and Muller 1958).
pub(crate) fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(random)).cos()
}

/// With an exponential distribution of mean 1: the time between arrivals that know nothing of each other.
pub(crate) fn exponential(random: &mut Random) -> f64 {
    -(1.0 - unit(random)).ln()
}

impl Spread {
    pub(crate) fn draw(self, random: &mut Random) -> u32 {
        self.min + random.below(u64::from(self.max - self.min) + 1) as u32
    }
}
