//! At what pace flushes write, all of a process together, so that the log on the same disk does not wait behind a burst.
//!
//! The table writer of a flush goes past RocksDB's own limit on what is written, and leaves what it wrote to the system. So
//! a flush that nobody waits for stops after every [`STEP`]: it has the system write that out, and waits for its turn.
//! The less of the memory for unflushed rows is left, the faster flushes write. Without limit they do from twice the write
//! buffer on, and a node counts as behind at four times as much: what is written here at a pace never makes it so.

use hedgerow_env::Clock;
use hedgerow_env::os::OsClock;
use hedgerow_types::Instant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that a flush writes at once.
pub(super) const STEP: u64 = 1 << 20;

/// When the next bytes may be written. Time is an argument.
#[derive(Debug)]
struct Pace {
    /// Bytes per second while there are no unflushed rows.
    rate: u64,
    /// With so many bytes unflushed there is no limit.
    held_max: u64,
    /// What was written so far has its time until then.
    free_at: Instant,
}

impl Pace {
    fn new(rate: u64, write_buffer_size: u64) -> Self {
        Self { rate: rate.max(1), held_max: write_buffer_size.saturating_mul(2), free_at: Instant::ZERO }
    }

    /// When somebody who has just written `bytes` may go on, while `held` bytes are unflushed. Time in which nobody wrote is
    /// not saved up.
    fn note_written(&mut self, bytes: u64, held: u64, now: Instant) -> Instant {
        let left = self.held_max.saturating_sub(held);
        // As many seconds as bytes have at the rate, of which the share of the memory that is left counts.
        let nanos = u128::from(bytes) * u128::from(left) * 1_000_000_000
            / (u128::from(self.rate) * u128::from(self.held_max.max(1)));
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now) + time;
        if left == 0 { now } else { self.free_at }
    }
}

/// Has the flushes of a process wait for their turn.
#[derive(Debug)]
pub(super) struct Pacer {
    pace: Mutex<Pace>,
    hurried: Condvar,
    /// Bytes of unflushed rows.
    held: AtomicU64,
    is_ending: AtomicBool,
    /// How often a flush has begun to wait.
    #[cfg(test)]
    waiting: std::sync::atomic::AtomicU32,
}

impl Pacer {
    pub(super) fn new(rate: u64, write_buffer_size: u64) -> Self {
        Self {
            pace: Mutex::new(Pace::new(rate, write_buffer_size)),
            hurried: Condvar::new(),
            held: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            #[cfg(test)]
            waiting: Default::default(),
        }
    }

    /// The unflushed rows of one database took `before` bytes and now take `after`.
    pub(super) fn note_held(&self, before: u64, after: u64) {
        // Wraps around where it became less, and so comes out right.
        self.held.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Waits until a flush that has written `bytes` may go on, or until `is_urgent`. Blocks.
    pub(super) fn wait_after(&self, bytes: u64, is_urgent: impl Fn() -> bool) {
        let is_over = || is_urgent() || self.is_ending.load(Ordering::Acquire);
        if is_over() {
            return;
        }
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let until = pace.note_written(bytes, self.held.load(Ordering::Relaxed), OsClock.now());
        while !is_over() {
            let left = until.since(OsClock.now());
            if left.is_zero() {
                return;
            }
            #[cfg(test)]
            self.waiting.fetch_add(1, Ordering::Release);
            pace = self.hurried.wait_timeout(pace, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How often a flush has begun to wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Bytes of unflushed rows.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Has everybody look again whether it is urgent.
    pub(super) fn hurry(&self) {
        // Whoever has looked and does not wait yet holds the lock.
        drop(self.pace.lock().unwrap_or_else(PoisonError::into_inner));
        self.hurried.notify_all();
    }

    /// Whether [`Pacer::end`] was called.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// From now on nobody waits.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.hurry();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const START: Instant = Instant(5_000 * MS);
    const RATE: u64 = 32 << 20;
    const BUFFER: u64 = 256 << 20;

    fn waits(pace: &mut Pace, steps: u32, held: u64, now: Instant) -> Duration {
        let until = (0..steps).map(|_| pace.note_written(STEP, held, now)).last();
        until.map_or(Duration::ZERO, |until| until.since(now))
    }

    #[test]
    fn n2_flushes_together_write_no_faster_than_the_rate() {
        let mut pace = Pace::new(RATE, BUFFER);
        assert_eq!(waits(&mut pace, 32, 0, START), Duration::from_secs(1));
        // Whoever else writes comes after that, and what rested has saved nothing up.
        let later = START + Duration::from_millis(500);
        assert_eq!(waits(&mut pace, 16, 0, later), Duration::from_secs(1));
        let rested = START + Duration::from_secs(3_600);
        assert_eq!(waits(&mut pace, 32, 0, rested), Duration::from_secs(1));
    }

    #[test]
    fn n2_the_rate_rises_with_what_is_unflushed_and_ends_before_the_node_is_behind() {
        let wait_at = |held| waits(&mut Pace::new(RATE, BUFFER), 32, held, START);
        assert_eq!(wait_at(BUFFER / 2), Duration::from_millis(750));
        assert_eq!(wait_at(BUFFER), Duration::from_millis(500));
        assert_eq!(wait_at(BUFFER / 4 * 7), Duration::from_millis(125));
        assert_eq!(wait_at(2 * BUFFER), Duration::ZERO);
        assert_eq!(wait_at(u64::MAX), Duration::ZERO);
    }

    /// However fast writes come in, flushes at this pace come to write as fast before the limit is reached.
    #[test]
    fn n2_what_is_written_at_a_pace_keeps_up_with_what_comes_in() {
        for income_per_ms in [1 << 10, 64 << 10, 1 << 20, 16 << 20_u64] {
            let mut pace = Pace::new(RATE, BUFFER);
            let (mut held, mut free_at, mut highest) = (0, START, 0);
            for ms in 0..60_000 {
                let now = START + Duration::from_millis(ms);
                held += income_per_ms;
                while held >= STEP && free_at <= now {
                    held -= STEP;
                    free_at = pace.note_written(STEP, held, now);
                }
                highest = held.max(highest);
            }
            assert!(highest <= 2 * BUFFER + income_per_ms, "{highest} bytes with {income_per_ms} per millisecond");
        }
    }

    #[test]
    fn n2_when_no_limit_holds_others_wait_no_longer_either() {
        let mut pace = Pace::new(RATE, BUFFER);
        waits(&mut pace, 1_000, 2 * BUFFER, START);
        assert_eq!(waits(&mut pace, 32, 0, START), Duration::from_secs(1));
    }
}
