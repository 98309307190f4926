//! The times of the models, as the product computes them (pitfall H25): from its own [`Settings`] and by its own functions,
//! so that a mistake in its arithmetic breaks a model. Only the rate error is not one that may be configured: a third, where
//! the product allows a tenth at most, so that few coarse steps of time tell a fast clock from a slow one.

use hedgerow_replication::{Settings, age};
use hedgerow_types::Instant;
use std::time::Duration;

/// What a clock without error goes in one step of the true time, in units.
pub const STEP: u8 = 3;
/// A unit of a clock, fine enough for the product's rounding not to matter.
const UNIT: Duration = Duration::from_micros(1);
/// The units for which a voter refuses: two steps of the fastest clock, so that a lease may span one step and not two.
const REFUSAL: u32 = 8;
/// The error of the clocks' rates, in parts per million.
const RATE_ERROR: u32 = 333_333;
const MILLION: u32 = 1_000_000;

fn settings(rate_error: u32) -> Settings {
    Settings { tick: UNIT, election_ticks: REFUSAL, clock_rate_error_ppm: rate_error, ..Settings::default() }
}

/// The least number of whole units that is not less than `time`: integers below it are those below `time`.
fn units(time: Duration) -> u8 {
    u8::try_from(time.as_nanos().div_ceil(UNIT.as_nanos())).unwrap_or(u8::MAX)
}

/// The fewest and the most units that a clock within the error goes in one step.
pub fn rates() -> (u8, u8) {
    let of = |error: u32| u32::from(STEP) * error;
    ((of(MILLION - RATE_ERROR) / MILLION) as u8, of(MILLION + RATE_ERROR).div_ceil(MILLION) as u8)
}

/// For how long a voter refuses, in units of its own clock: [`Settings::refusal`].
pub fn refusal() -> u8 {
    units(settings(RATE_ERROR).refusal())
}

/// How long a lease lasts, in units of the leader's clock: [`Settings::lease`].
pub fn lease() -> u8 {
    units(settings(RATE_ERROR).lease())
}

/// The same by a product that takes clocks for exact.
pub fn lease_of_exact_clocks() -> u8 {
    units(settings(0).lease())
}

/// The oldest proof that serves a read with a bound of so many steps of the true time, in units of the replica's clock: the
/// product serves while [`age`] is within the bound.
pub fn proof_max(bound: u8) -> u8 {
    oldest(bound, RATE_ERROR)
}

/// The same by a product that takes clocks for exact.
pub fn proof_max_of_exact_clocks(bound: u8) -> u8 {
    oldest(bound, 0)
}

fn oldest(bound: u8, rate_error: u32) -> u8 {
    let bound = UNIT * u32::from(bound) * u32::from(STEP);
    let is_served = |units: &u8| age(Instant::ZERO, Instant::ZERO + UNIT * u32::from(*units), rate_error) <= bound;
    (0..=u8::MAX).take_while(is_served).last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Were these to change, the bounds of the models would have to be looked at again: a lease that spans no step, or a
    /// bound within which no proof is old, shows nothing.
    #[test]
    fn h25_the_times_of_the_models_are_those_of_the_product() {
        assert_eq!((rates(), refusal(), lease(), lease_of_exact_clocks()), ((2, 4), 8, 4, 8));
        assert_eq!((proof_max(2), proof_max_of_exact_clocks(2)), (4, 6));
        let (slow, fast) = rates();
        assert!(lease() > slow && lease() <= 2 * slow && 2 * fast <= refusal());
    }
}
