//! What runs now, and how long the rest will take.

use std::time::Duration;

/// Something that the person at the terminal may want to see.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A step begins.
    Step {
        /// What it does, for example `connections: connections=64, repetition 2 of 3`.
        what: String,
        /// Steps before it.
        done: usize,
        /// All steps.
        total: usize,
        /// Time until the end of the last step, as far as can be told.
        left: Duration,
    },
    /// Something worth a line, for example why a turn is repeated.
    Remark(String),
}

/// Foretells the time left from what steps were expected to take and what they took.
///
/// A machine is about equally faster or slower than expected in all steps, so the rest is scaled by the steps so far. They
/// count together with one minute as expected, so that the first short steps do not swing the forecast.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    expected_left: Duration,
    expected_done: Duration,
    taken: Duration,
}

const STEADYING: Duration = Duration::from_secs(60);

impl Progress {
    /// Adds a step that is still to come.
    pub fn add(&mut self, expected: Duration) {
        self.expected_left += expected;
    }

    /// A step that was expected to take `expected` has taken `taken`.
    pub fn finish(&mut self, expected: Duration, taken: Duration) {
        self.expected_left = self.expected_left.saturating_sub(expected);
        self.expected_done += expected;
        self.taken += taken;
    }

    /// Time until the end of the last step.
    #[must_use]
    pub fn left(&self) -> Duration {
        let scale = (self.taken + STEADYING).as_secs_f64() / (self.expected_done + STEADYING).as_secs_f64();
        self.expected_left.mul_f64(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_time_left_follows_the_machine() {
        let mut progress = Progress::default();
        (0..10).for_each(|_| progress.add(MINUTE));
        assert_eq!(progress.left(), 10 * MINUTE);
        (0..3).for_each(|_| progress.finish(MINUTE, 3 * MINUTE));
        // Nine minutes and the steadying one against three and one.
        assert_eq!(progress.left(), (7 * MINUTE).mul_f64(2.5));
    }

    #[test]
    fn a_step_that_was_not_announced_does_no_harm() {
        let mut progress = Progress::default();
        progress.finish(MINUTE, MINUTE);
        assert_eq!(progress.left(), Duration::ZERO);
    }
}
