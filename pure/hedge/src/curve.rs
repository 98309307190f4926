//! How likely an attempt is to take longer than t, and the best moment for a second attempt that follows from it.
//!
//! A policy that sends one second attempt after a delay `d` with probability `q` is "SingleR" of Kaler, He and Elnikety,
//! "Optimal Reissue Policies for Reducing Tail Latency" (SPAA 2017), who show that for a given budget no policy with more
//! moments does better. With X the first attempt's latency and Y the second's,
//!
//! ```text
//! P(request > t) = (1 - q) * P(X > t) + q * P(X > t, Y > t - d)        extra attempts = q * P(X > d)
//! ```
//!
//! While no second attempts were seen, X and Y count as independent. Then Y is known of requests with X > d, and as the
//! loser's time is not known to its end, the two are taken to be slow together as often as they can be:
//! P(X > t, Y > t - d) <= P(X > d) * P(Y > t - d | X > d). Where a whole service stalls, and second attempts win by a hair
//! or lose by one, that is what happens, and no gain is promised.

use crate::histogram::{BUCKETS, Histogram, bucket_start};
use alloc::vec::Vec;

/// The share of attempts that take longer than t: pieces of straight lines from (0, 1) downwards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// Ascending; nanoseconds, and the share above.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// From buckets in ascending order: (start, end, completed, given up). The share follows Kaplan and Meier (1958): an
    /// attempt that was given up counts among those that take longer, up to when it was given up, and says nothing about
    /// later. `None` without any that completed.
    pub(crate) fn from_buckets(buckets: impl Iterator<Item = (f64, f64, f64, f64)> + Clone) -> Option<Self> {
        let mut at_risk: f64 = buckets.clone().map(|(_, _, done, cut)| done + cut).sum();
        let mut above = 1.0;
        let mut points = Vec::from([(0.0, 1.0)]);
        for (start, end, done, cut) in buckets {
            if done > 0.0 {
                if points.last().is_some_and(|(last, _)| *last < start) {
                    points.push((start, above));
                }
                above *= 1.0 - done / at_risk;
                // Rounding must not leave a tail of a billionth when all have completed.
                above = if above < 1e-12 { 0.0 } else { above };
                points.push((end, above));
            }
            at_risk -= done + cut;
        }
        (points.len() > 1).then_some(Self { points })
    }

    /// Of latencies that were counted in windows. `is_cut_counted` = attempts that were given up count.
    pub(crate) fn from_histograms(histograms: [&Histogram; 2], is_cut_counted: bool) -> Option<Self> {
        let [now, before] = histograms;
        Self::from_buckets((0..BUCKETS).map(|index| {
            let done = f64::from(now.done[index]) + f64::from(before.done[index]);
            let cut = f64::from(now.cut[index]) + f64::from(before.cut[index]);
            let cut = if is_cut_counted { cut } else { 0.0 };
            (bucket_start(index) as f64, bucket_start(index + 1) as f64, done, cut)
        }))
    }

    /// The share that takes longer than `nanos`.
    pub(crate) fn above(&self, nanos: f64) -> f64 {
        let after = self.points.partition_point(|(at, _)| *at <= nanos);
        let Some(before) = after.checked_sub(1) else { return 1.0 };
        let (left, high) = self.points[before];
        match self.points.get(after) {
            Some((right, low)) => high + (low - high) * (nanos - left) / (right - left),
            None => high,
        }
    }

    /// What a `share` (0 to 1) of the attempts stays below; `None` if it is not known, as too many were given up.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let above = 1.0 - share;
        let after = self.points.partition_point(|(_, height)| *height > above);
        let (right, low) = *self.points.get(after)?;
        let Some(before) = after.checked_sub(1) else { return Some(right) };
        let (left, high) = self.points[before];
        Some(left + (right - left) * (high - above) / (high - low))
    }

    /// The longest latency that anything is known of.
    pub(crate) fn end(&self) -> f64 {
        self.points.last().map_or(0.0, |(at, _)| *at)
    }

    fn moments(&self) -> impl DoubleEndedIterator<Item = f64> {
        self.points.iter().map(|(at, _)| *at)
    }
}

/// How a second attempt fares when the first one is slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second<'a> {
    pub(crate) curve: &'a Curve,
    /// Seen after first attempts that took longer than this; `None` = taken from first attempts.
    pub(crate) seen_after: Option<f64>,
    /// The share of slow requests that are slow wherever they run.
    pub(crate) correlation: f64,
}

/// When to send a second attempt, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Single {
    /// Nanoseconds.
    pub(crate) delay: f64,
    pub(crate) probability: f64,
}

/// Whose second attempts are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Such that every request gets that lasts so long.
    Always,
    /// Also such that the budget is not enough for all: who gets one is drawn.
    ByDraw,
}

/// A first attempt and what may follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) first: &'a Curve,
    pub(crate) second: Second<'a>,
}

/// A second attempt that shortens the percentile by less than this is not worth having.
const GAIN_MIN: f64 = 0.05;
/// Halvings when a percentile of the request is searched: to within 1e-6 of the longest latency, and further below.
const HALVINGS: usize = 40;

impl Pair<'_> {
    /// The share of requests that take longer than `nanos`.
    pub(crate) fn above(&self, single: Single, nanos: f64) -> f64 {
        let first = self.first.above(nanos);
        let waited = nanos - single.delay;
        if waited <= 0.0 {
            return first;
        }
        let second = self.second.curve.above(waited);
        let both = match self.second.seen_after {
            Some(after) => first.min(self.first.above(after.min(single.delay)) * second),
            None => first * (1.0 - (1.0 - self.second.correlation) * (1.0 - second)),
        };
        first + single.probability * (both - first)
    }

    /// What a `share` of the requests stays below; the longest that is known if that is not known.
    pub(crate) fn quantile(&self, single: Single, share: f64) -> f64 {
        let (mut low, mut high) = (0.0, self.first.end().max(single.delay + self.second.curve.end()));
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if self.above(single, middle) > 1.0 - share {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// How often a second attempt may be sent after `delay` within the budget.
    pub(crate) fn within(&self, delay: f64, max_extra_load: f64) -> Single {
        let above = self.first.above(delay);
        let probability = if above > max_extra_load { max_extra_load / above } else { 1.0 };
        Single { delay, probability }
    }

    /// The second attempt that makes the quantile at `share` shortest within the budget; `None` if none makes it noticeably
    /// shorter. Of equally good ones it is the latest, which costs least.
    pub(crate) fn best(&self, share: f64, max_extra_load: f64, min_delay: f64, sent: Sent) -> Option<Single> {
        // Where it is not known, as those that it speaks of were given up, it is at least what is known.
        let without = self.first.quantile(share).unwrap_or_else(|| self.first.end());
        let mut best = None;
        let mut target = without * (1.0 - GAIN_MIN);
        // The delay that costs the whole budget with certainty is a candidate among the known moments, latest first.
        let spending = self.first.quantile(1.0 - max_extra_load);
        let is_later = |moment: &f64| spending.is_none_or(|spending| *moment > spending);
        let later = self.first.moments().rev().filter(is_later);
        let others = self.first.moments().rev().filter(|moment| sent == Sent::ByDraw && !is_later(moment));
        for delay in later.chain(spending).chain(others) {
            if delay >= target || delay < min_delay {
                continue;
            }
            let single = self.within(delay, max_extra_load);
            // One look tells most candidates from a better one.
            if self.above(single, target) <= 1.0 - share {
                target = self.quantile(single, share).min(target) * (1.0 - 1e-3);
                best = Some(single);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[(f64, f64, f64)]) -> Curve {
        let buckets = values.iter().map(|(at, done, cut)| (at - 1.0, *at, *done, *cut));
        Curve::from_buckets(buckets).expect("something completed")
    }

    #[test]
    fn without_censoring_it_is_the_empirical_share() {
        let curve = curve(&[(10.0, 90.0, 0.0), (100.0, 9.0, 0.0), (1000.0, 1.0, 0.0)]);
        assert!((curve.above(50.0) - 0.10).abs() < 1e-9);
        assert!((curve.above(500.0) - 0.01).abs() < 1e-9);
        assert_eq!(curve.above(2000.0), 0.0);
        assert!((curve.quantile(0.95).expect("known") - 99.5).abs() < 0.1);
        assert_eq!(curve.quantile(1.0), Some(1000.0));
    }

    /// Half of those that reach 10 are given up there. Of the others a tenth takes 100, so a tenth of all does.
    #[test]
    fn what_was_given_up_counts_as_the_others_that_came_so_far() {
        let given_up = curve(&[(5.0, 0.0, 0.0), (10.0, 0.0, 50.0), (20.0, 45.0, 0.0), (100.0, 5.0, 0.0)]);
        assert!((given_up.above(50.0) - 0.1).abs() < 1e-9);
        let naive = curve(&[(10.0, 50.0, 0.0), (20.0, 45.0, 0.0), (100.0, 5.0, 0.0)]);
        assert!((naive.above(50.0) - 0.05).abs() < 1e-9, "counting them as done would halve the tail");
    }

    #[test]
    fn a_tail_of_which_nothing_is_known_has_no_quantile() {
        let curve = curve(&[(10.0, 60.0, 0.0), (20.0, 0.0, 40.0)]);
        assert_eq!((curve.quantile(0.9), curve.end()), (None, 10.0));
        assert!((curve.above(1e9) - 0.4).abs() < 1e-9);
    }

    /// Fast is 1 to 2, slow is 100: 3 % are slow. With a budget of 2 % two thirds of the slow ones are rescued, and the
    /// quantile at 98 % falls to about 2 + 2.
    #[test]
    fn the_best_second_attempt_is_sent_when_the_fast_ones_are_through() {
        let first = curve(&[(2.0, 97.0, 0.0), (100.0, 3.0, 0.0)]);
        let pair = Pair { first: &first, second: Second { curve: &first, seen_after: None, correlation: 0.0 } };
        let best = pair.best(0.98, 0.02, 0.0, Sent::ByDraw).expect("hedging helps");
        assert!((1.9..=2.1).contains(&best.delay), "{best:?}");
        assert!((best.probability - 2.0 / 3.0).abs() < 0.05, "{best:?}");
        assert!(pair.quantile(best, 0.98) < 5.0);
        let all = Pair { second: Second { correlation: 1.0, ..pair.second }, ..pair };
        assert_eq!(all.best(0.98, 0.02, 0.0, Sent::ByDraw), None, "what is slow everywhere is not helped");
    }
}
