//! What is known of one class of requests: the latencies of the recent past, and what follows from them.

use crate::curve::{Curve, Pair, Second, Sent};
use crate::histogram::{Histogram, nanos};
use crate::policy::Latencies;
use crate::time::Time;
use core::cell::Cell;
use core::time::Duration;

/// Completed first attempts below which nothing is known. With 100 the 99th percentile is the longest but one.
pub(crate) const SAMPLES_MIN: u32 = 100;
/// Completed second attempts from which on they stand for second attempts; before, first ones do.
const SECONDS_MIN: u32 = 50;
/// A window is closed when it is so old ...
const WINDOW: Duration = Duration::from_secs(15);
/// ... and has enough completed attempts, or when it is so old, so that a caller with few requests keeps what it knows.
const WINDOW_MAX: Duration = Duration::from_secs(300);
/// How old what follows from the latencies may be, in time ...
const SOLUTION_AGE_MAX: Duration = Duration::from_millis(250);
/// ... and in attempts.
const SOLUTION_ATTEMPTS_MAX: u32 = 4_096;
/// The trigger is at most this many times the percentile of the attempts that completed.
const BEYOND_COMPLETED_MAX: f64 = 1.5;
/// What the adaptive policy makes best: the highest of these with [`TAIL_MIN`] samples above it that a second attempt helps.
const GOALS: [f64; 4] = [0.999, 0.99, 0.95, 0.9];
const TAIL_MIN: f64 = 5.0;

/// Latencies of a window that fills and of the one before.
#[derive(Debug)]
struct Windows {
    now: Histogram,
    before: Histogram,
    /// When the present window began.
    start: Time,
    samples_min: u32,
}

impl Windows {
    fn new(start: Time, samples_min: u32) -> Self {
        Self { now: Histogram::new(), before: Histogram::new(), start, samples_min }
    }

    fn rotate(&mut self, now: Time) {
        let age = now.since(self.start);
        if age < WINDOW || (age < WINDOW_MAX && self.now.done_count < self.samples_min) {
            return;
        }
        core::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
        self.start = now;
    }

    fn done_count(&self) -> u32 {
        self.now.done_count.saturating_add(self.before.done_count)
    }

    fn curve(&self, is_cut_counted: bool) -> Option<Curve> {
        Curve::from_histograms([&self.now, &self.before], is_cut_counted)
    }
}

/// One class.
#[derive(Debug)]
pub(crate) struct Recent {
    first: Windows,
    /// Hedges: attempts that were sent because the first one was slow, so their latency is that of a second attempt given
    /// a slow first one.
    second: Windows,
    solution: Solution,
    /// After how long the adaptive policy last sent second attempts, nanoseconds.
    sent_after: Option<f64>,
    solved_at: Time,
    /// Attempts since.
    fresh: u32,
}

/// What follows from the latencies. It is solved a few times a second, and what is asked of it is kept.
#[derive(Debug, Default)]
struct Solution {
    done_count: u32,
    first: Option<Curve>,
    /// Of the attempts that completed only.
    completed: Option<Curve>,
    /// With the delay that they were sent after.
    second: Option<(Curve, f64)>,
    percentile: Kept<Duration>,
    best: Kept<(Duration, f64)>,
}

/// The question that was asked last, and the answer.
type Kept<T> = Cell<Option<(f64, Option<T>)>>;

fn answer<T: Copy>(kept: &Kept<T>, question: f64, solve: impl FnOnce() -> Option<T>) -> Option<T> {
    match kept.get() {
        Some((asked, answer)) if asked == question => answer,
        _ => {
            let answer = solve();
            kept.set(Some((question, answer)));
            answer
        }
    }
}

impl Recent {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            first: Windows::new(now, SAMPLES_MIN),
            second: Windows::new(now, SECONDS_MIN),
            solution: Solution::default(),
            sent_after: None,
            solved_at: now,
            fresh: 0,
        }
    }

    pub(crate) fn note_first(&mut self, latency: Duration, is_done: bool) {
        self.first.now.add(latency, is_done);
        self.fresh += 1;
        if is_done && self.solution.first.is_none() && self.first.done_count() >= SAMPLES_MIN {
            self.fresh = SOLUTION_ATTEMPTS_MAX;
        }
    }

    pub(crate) fn note_second(&mut self, latency: Duration, is_done: bool) {
        self.second.now.add(latency, is_done);
        self.fresh += 1;
    }

    /// Brings up to date what follows from the latencies, if that is due.
    pub(crate) fn refresh(&mut self, now: Time) {
        let is_due = self.fresh >= SOLUTION_ATTEMPTS_MAX || now.since(self.solved_at) >= SOLUTION_AGE_MAX;
        if is_due {
            self.solve(now);
        }
    }

    #[cold]
    fn solve(&mut self, now: Time) {
        self.first.rotate(now);
        self.second.rotate(now);
        (self.solved_at, self.fresh) = (now, 0);
        if let Some((_, Some((delay, _)))) = self.solution.best.get() {
            self.sent_after = Some(nanos(delay) as f64);
        }
        self.solution = Solution::default();
        if self.first.done_count() < SAMPLES_MIN {
            return;
        }
        self.solution = Solution {
            done_count: self.first.done_count(),
            first: self.first.curve(true),
            completed: self.first.curve(false),
            second: if self.second.done_count() < SECONDS_MIN {
                None
            } else {
                self.second.curve(true).zip(self.sent_after)
            },
            ..Solution::default()
        };
    }
}

impl Solution {
    fn percentile(&self, percentile: f64) -> Option<Duration> {
        let share = percentile / 100.0;
        let most = self.completed.as_ref()?.quantile(share)? * BEYOND_COMPLETED_MAX;
        let known = self.first.as_ref()?.quantile(share).unwrap_or(most);
        Some(Duration::from_nanos(known.min(most) as u64))
    }

    fn best_within(&self, max_extra_load: f64) -> Option<(Duration, f64)> {
        let first = self.first.as_ref()?;
        let second = match &self.second {
            Some((curve, after)) => Second { curve, seen_after: Some(*after), correlation: 0.0 },
            None => Second { curve: first, seen_after: None, correlation: 0.0 },
        };
        let pair = Pair { first, second };
        let has_tail = |goal: &f64| (1.0 - goal) * f64::from(self.done_count) >= TAIL_MIN;
        let is_known = |goal: &f64| first.quantile(*goal).is_some();
        let mut goals = GOALS.into_iter().filter(has_tail);
        // Before half have completed, a second attempt says nothing of the first one's being slow.
        let earliest = self.completed.as_ref()?.quantile(0.5)?;
        // Whoever is not drawn waits for the whole stall: with fewer stalls than tokens nobody has to be left out, and with a few
        // more it is better to wait a little longer for all. A draw is for when that brings nothing.
        let best_of = |sent| goals.clone().find_map(|goal| pair.best(goal, max_extra_load, earliest, sent));
        let best = best_of(Sent::Always).or_else(|| best_of(Sent::ByDraw));
        let single = match best {
            Some(best) => best,
            // So many were given up that the goal itself is unknown, as when a replica is dead: what completes decides
            // when an attempt is late, unless second attempts were seen not to help.
            None if goals.any(|goal| !is_known(&goal)) => {
                let late = self.completed.as_ref()?.quantile(GOALS[1])? * BEYOND_COMPLETED_MAX;
                (second.curve.above(late) < 0.5).then(|| pair.within(late, max_extra_load))?
            }
            None => return None,
        };
        Some((Duration::from_nanos(single.delay as u64), single.probability))
    }
}

impl Latencies for Recent {
    fn percentile(&self, percentile: f64) -> Option<Duration> {
        answer(&self.solution.percentile, percentile, || self.solution.percentile(percentile))
    }

    fn best_within(&self, max_extra_load: f64) -> Option<(Duration, f64)> {
        answer(&self.solution.best, max_extra_load, || self.solution.best_within(max_extra_load))
    }
}

/// The mean time that a replica takes, by the attempts that were given up too: all time waited by the attempts that
/// completed (the estimate of greatest likelihood for exponential times). Older attempts count less and less.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaMean {
    waited_nanos: f64,
    done: f64,
    attempts: f64,
    pub(crate) noted_at: Time,
}

/// After at most so many attempts the weight of those before has halved.
const REPLICA_MEMORY: f64 = 256.0;

impl ReplicaMean {
    pub(crate) fn note(&mut self, latency: Duration, is_done: bool, now: Time) {
        if self.attempts >= REPLICA_MEMORY {
            self.waited_nanos /= 2.0;
            self.done /= 2.0;
            self.attempts /= 2.0;
        }
        self.waited_nanos += nanos(latency) as f64;
        self.done += f64::from(u8::from(is_done));
        self.attempts += 1.0;
        self.noted_at = now;
    }

    /// `None` before anything was waited for. With less than one completion it is what was waited for in all.
    pub(crate) fn mean(&self) -> Option<Duration> {
        (self.attempts > 0.0).then(|| Duration::from_nanos((self.waited_nanos / self.done.max(1.0)) as u64))
    }
}
