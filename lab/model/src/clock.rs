//! Clocks whose rates differ: how far each may go while the true time makes one step.

use crate::product;

/// The bounds of a clock's rate, in units of its own per step of the true time. A clock without error would go half of
/// their sum; in the terms of the settings, rho is (fast - slow) / (fast + slow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// The fewest units.
    pub slow: u8,
    /// The most units.
    pub fast: u8,
}

impl Rates {
    /// Clocks without error.
    pub const EQUAL: Self = Self { slow: product::STEP, fast: product::STEP };
    /// Clocks that stand still, for what can happen within no time.
    pub const STILL: Self = Self { slow: 0, fast: 0 };

    /// What the durations of the models allow for: a fast clock runs twice as fast as a slow one (rho = 1/3).
    pub fn declared() -> Self {
        let (slow, fast) = product::rates();
        Self { slow, fast }
    }

    /// Clocks outside what was declared: four times as fast.
    pub fn beyond() -> Self {
        let (slow, fast) = product::rates();
        Self { slow: slow / 2, fast }
    }

    /// What the clocks may go in one step, as all combinations of the extremes: every other rate lies between them. A clock
    /// that is not running, because nothing is timed with it, needs no second rate.
    pub fn combinations<const N: usize>(self, is_running: [bool; N]) -> impl Iterator<Item = [u8; N]> {
        let has_two = is_running.map(|is_running| is_running && self.fast != self.slow);
        let may_be_fast =
            has_two.iter().enumerate().fold(0_u32, |mask, (clock, &has_two)| mask | u32::from(has_two) << clock);
        let choices = (0..1_u32 << N).filter(move |choice| choice & !may_be_fast == 0);
        choices.map(move |choice| {
            core::array::from_fn(|clock| if choice >> clock & 1 == 1 { self.fast } else { self.slow })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_rates_is_there_once() {
        let all = |rates: Rates, is_running| rates.combinations(is_running).collect::<Vec<_>>();
        assert_eq!(all(Rates::EQUAL, [true, true]), [[3, 3]]);
        assert_eq!(all(Rates::declared(), [false, true]), [[2, 2], [2, 4]]);
        assert_eq!(all(Rates::declared(), [true, true]), [[2, 2], [4, 2], [2, 4], [4, 4]]);
    }
}
