//! What the maths of `hedgerow plan` says, beside what a simulation of the same requests measures.

use hedgerow_hedge::Policy;
use hedgerow_hedge::tradeoff::{Distribution, Goal, curve, expect, recommend};
use std::time::Duration;

/// A seeded stream of numbers (xorshift64*).
struct Draws(u64);

impl Draws {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// 1 ms and an exponential part; 2 % are ten times as slow.
    fn nanos(&mut self) -> u64 {
        let fast = 1e6 - 3e5 * (1.0 - self.share()).ln();
        (if self.share() < 0.02 { fast * 10.0 } else { fast }) as u64
    }
}

fn measured(count: usize) -> Distribution {
    let mut draws = Draws(3);
    let mut values: Vec<u64> = (0..count).map(|_| draws.nanos()).collect();
    values.sort_unstable();
    Distribution::from_buckets(values.into_iter().map(|value| (value, 1))).expect("something was measured")
}

fn near(left: Duration, right: Duration, share: f64) -> bool {
    left.abs_diff(right) <= right.mul_f64(share)
}

#[test]
fn the_expectation_is_what_a_simulation_measures() {
    let distribution = measured(200_000);
    for (goal, correlation) in [(99.0, 0.0), (99.9, 0.0), (99.9, 0.02)] {
        let goal = Goal { max_extra_load: 0.03, correlation, percentile: goal };
        let plan = recommend(&distribution, goal);
        let mut draws = Draws(99);
        let (mut extra, count) = (0, 400_000);
        let mut latencies: Vec<u64> = (0..count)
            .map(|_| {
                let first = draws.nanos();
                let delay = plan.delay.as_nanos() as u64;
                if first <= delay || draws.share() >= plan.probability {
                    return first;
                }
                extra += 1;
                let second = draws.nanos();
                if draws.share() < correlation { first } else { first.min(delay + second) }
            })
            .collect();
        latencies.sort_unstable();
        let at = |share: f64| Duration::from_nanos(latencies[(count as f64 * share) as usize]);
        for (share, expected) in [(0.5, plan.after.p50), (0.99, plan.after.p99), (0.999, plan.after.p999)] {
            assert!(near(expected, at(share), 0.06), "{goal:?} {share}: {expected:?}, measured {:?}", at(share));
        }
        let extra = f64::from(extra) / count as f64;
        assert!((extra - plan.extra_load).abs() < 0.002 && extra <= 0.0315, "{extra}, expected {}", plan.extra_load);
    }
}

#[test]
fn a_recommendation_is_a_policy_that_can_be_used() {
    let distribution = measured(100_000);
    let plan = recommend(&distribution, Goal { max_extra_load: 0.05, ..Goal::default() });
    assert!(plan.after.p999 * 2 < plan.before.p999, "{plan:?}");
    assert!(plan.extra_load <= 0.0501);
    let policy: Policy = plan.policy.parse().expect("a policy");
    if let Policy::Constant { delay, .. } = policy {
        assert!(near(delay, plan.delay, 0.006), "{delay:?} for {:?}", plan.delay);
    }
    let same = expect(&distribution, plan.delay, plan.probability, 0.0);
    assert_eq!((same.after, same.delay), (plan.after, plan.delay));
}

#[test]
fn correlated_slowness_is_not_helped() {
    let distribution = measured(100_000);
    let plan = recommend(&distribution, Goal { correlation: 1.0, ..Goal::default() });
    assert_eq!((plan.delay, plan.policy.as_str(), plan.extra_load), (Duration::ZERO, "none", 0.0));
    assert_eq!(plan.before, plan.after);
}

#[test]
fn second_attempts_may_be_slower_or_faster_than_first_ones() {
    let distribution = measured(100_000);
    let constant = |millis: u64| Distribution::from_buckets([(millis * 1_000_000, 1)]).expect("one bucket");
    let [fast, same, slow] = [Some(1), None, Some(60)].map(|millis| match millis {
        Some(millis) => recommend(&distribution.clone().with_second(&constant(millis)), Goal::default()),
        None => recommend(&distribution, Goal::default()),
    });
    assert!(fast.after.p999 < same.after.p999 && fast.before == same.before);
    assert_eq!(slow.policy, "none", "a second attempt that takes longer than any first one");
}

#[test]
fn more_budget_is_never_worse() {
    let distribution = measured(100_000);
    let budgets: Vec<f64> = (0..=40).map(|step| f64::from(step) * 0.005).collect();
    let points = curve(&distribution, Goal::default(), &budgets);
    assert_eq!(points.len(), budgets.len());
    assert_eq!((points[0].extra_load, points[0].delay), (0.0, Duration::ZERO));
    for pair in points.windows(2) {
        assert!(pair[1].after.p999 <= pair[0].after.p999.mul_f64(1.002), "{pair:?}");
        assert!(pair[1].extra_load <= pair[1].max_extra_load + 1e-9, "{pair:?}");
    }
    assert!(points[40].after.p999 * 2 < points[0].after.p999);
}

#[test]
fn buckets_of_every_kind() {
    assert!(Distribution::from_buckets([]).is_none());
    assert!(Distribution::from_buckets([(5, 0)]).is_none());
    assert!(Distribution::from_buckets([(5, 1), (4, 1)]).is_none(), "not ascending");
    assert!(Distribution::from_buckets([(5, u64::MAX), (6, 1)]).is_none(), "more than can be counted");
    let one = Distribution::from_buckets([(1_000_000, 10)]).expect("one bucket");
    assert_eq!(recommend(&one, Goal::default()).policy, "none");
    assert_eq!(one.percentile(99.0), Duration::from_nanos(999_700));
    // A zero, equal values, and the longest there is.
    let odd = Distribution::from_buckets([(0, 3), (7, 1), (7, 1), (u64::MAX, 1)]).expect("six requests");
    assert_eq!(odd.count(), 6);
    for budget in [f64::NAN, f64::INFINITY, -1.0, 0.0, 2.0] {
        for percentile in [50.0, 99.9, 100.0, f64::NAN] {
            let goal = Goal { max_extra_load: budget, correlation: f64::NAN, percentile };
            assert!(recommend(&odd, goal).extra_load <= 1.0);
        }
    }
}
