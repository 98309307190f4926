//! One server of the fan-out: one copy at a time, first come first served, and now and then it stands still.

use crate::clock::{MICROSECOND, MILLISECOND, SECOND};
use crate::history::Time;
use hedgerow_types::random::Random;
use std::collections::VecDeque;

/// Why a server stands still: how often, and for how long.
#[derive(Clone, Copy, Debug)]
struct Cause {
    /// Mean time between two.
    interval: Time,
    /// Shortest and longest.
    duration: (Time, Time),
}

/// Frequent short stalls, rarer longer ones, and very rare ones of seconds, chosen so that a request over a hundred servers
/// has the latency that "The Tail at Scale" reports without hedging: 2 % of the parts take longer than 10 ms, and one request
/// in a thousand about 1.8 s.
const CAUSES: [Cause; 3] = [
    Cause { interval: 1_250 * MILLISECOND, duration: (10 * MILLISECOND, 50 * MILLISECOND) },
    Cause { interval: 120 * SECOND, duration: (50 * MILLISECOND, 150 * MILLISECOND) },
    Cause { interval: 16_700 * SECOND, duration: (600 * MILLISECOND, 2_600 * MILLISECOND) },
];
/// Least and mean further time that a copy takes.
const SERVICE: (Time, Time) = (600 * MICROSECOND, 600 * MICROSECOND);

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartId {
    pub(super) request: usize,
    pub(super) home: usize,
}

/// A copy of a part, by its number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyId {
    pub(super) part: PartId,
    pub(super) number: u8,
}

#[derive(Debug)]
pub(super) struct Server {
    random: Random,
    /// Next stalls, one of each cause: when, and for how long.
    stalls: [(Time, Time); CAUSES.len()],
    /// Stands still until then.
    still_until: Time,
    queue: VecDeque<CopyId>,
    is_running: bool,
}

/// Exponentially distributed.
fn exponential(mean: Time, random: &mut Random) -> Time {
    let share = (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
    (-share.ln() * mean as f64) as Time
}

impl Server {
    pub(super) fn new(mut random: Random) -> Self {
        let stalls = CAUSES.map(|cause| Self::next_stall(cause, 0, &mut random));
        Self { random, stalls, still_until: 0, queue: VecDeque::new(), is_running: false }
    }

    fn next_stall(cause: Cause, after: Time, random: &mut Random) -> (Time, Time) {
        let (least, most) = cause.duration;
        (after + exponential(cause.interval, random), least + random.below(most - least + 1))
    }

    /// Lets the stalls begin that begin before `at`. Returns how long they last together.
    fn pass(&mut self, at: Time) -> Time {
        let mut total = 0;
        for (index, cause) in CAUSES.into_iter().enumerate() {
            while self.stalls[index].0 < at {
                let (start, duration) = self.stalls[index];
                self.still_until = self.still_until.max(start) + duration;
                self.stalls[index] = Self::next_stall(cause, start + duration, &mut self.random);
                total += duration;
            }
        }
        total
    }

    /// For how long the server will still stand still, as somebody would know who sees everything but the future.
    pub(super) fn stillness(&mut self, now: Time) -> Time {
        self.pass(now);
        self.still_until.saturating_sub(now)
    }

    /// Copies that wait or run.
    pub(super) fn length(&self) -> usize {
        self.queue.len() + usize::from(self.is_running)
    }

    pub(super) fn push(&mut self, copy: CopyId) {
        self.queue.push_back(copy);
    }

    /// Takes a copy out that has not begun. Returns whether it was there.
    pub(super) fn remove(&mut self, copy: CopyId) -> bool {
        let position = self.queue.iter().position(|other| *other == copy);
        position.map(|position| self.queue.remove(position)).is_some()
    }

    /// When the next copy could begin, if one waits and none runs.
    pub(super) fn may_begin(&mut self, now: Time) -> Option<Time> {
        if self.is_running || self.queue.is_empty() {
            return None;
        }
        self.pass(now);
        Some(self.still_until.max(now))
    }

    /// Begins the next copy at `now`: which one, and when it ends.
    pub(super) fn begin(&mut self, now: Time) -> Option<(CopyId, Time)> {
        let copy = self.queue.pop_front()?;
        self.is_running = true;
        let end = now + SERVICE.0 + exponential(SERVICE.1, &mut self.random);
        // A stall in the middle makes it longer.
        Some((copy, end + self.pass(end)))
    }

    pub(super) fn end(&mut self) {
        self.is_running = false;
    }
}
