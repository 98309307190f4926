//! The promise of the budget: extra attempts are at most what was saved + ratio x first attempts, in every order of events.

use hedgerow_hedge::{Budget, BudgetOptions, Time};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn extra_attempts_stay_within_burst_and_ratio(
        ratio in 0.0..1.0_f64,
        burst in 0.0..30.0_f64,
        events in prop::collection::vec(0..8_u8, 0..2_000),
    ) {
        let budget = Budget::new(BudgetOptions { ratio, burst: Some(burst) });
        let (mut first, mut extra) = (0.0, 0.0);
        for event in events {
            match event {
                0 if extra > 0.0 => {
                    budget.give_back();
                    extra -= 1.0;
                }
                1..=4 => extra += f64::from(u8::from(budget.try_take())),
                _ => {
                    budget.note_first(Time(0));
                    first += 1.0;
                }
            }
            prop_assert!(extra <= burst + ratio * first + 1e-6, "{extra} of {first}");
            prop_assert!((0.0..=burst + 1e-6).contains(&budget.tokens()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However the rate rises and falls: a measured burst grants nothing, it only leaves room for what first attempts add.
    #[test]
    fn a_measured_burst_grants_nothing(
        ratio in 0.0..1.0_f64,
        events in prop::collection::vec((0..8_u8, 0..400_u64), 0..2_000),
    ) {
        let budget = Budget::new(BudgetOptions { ratio, burst: None });
        let (mut now, mut first, mut extra) = (Time(0), 0.0, 0.0);
        for (event, gap_ms) in events {
            match event {
                0 => now = now + Duration::from_millis(gap_ms * gap_ms),
                1..=3 => extra += f64::from(u8::from(budget.try_take())),
                _ => {
                    now = now + Duration::from_micros(gap_ms);
                    let before = budget.tokens();
                    budget.note_first(now);
                    prop_assert!(budget.tokens() <= before + ratio + 1e-6);
                    first += 1.0;
                }
            }
            prop_assert!(extra <= 20.0 + ratio * first + 1e-6, "{extra} of {first}");
            prop_assert!(budget.burst() >= 20.0);
        }
    }
}

/// First attempts at `rate` a second for so many seconds from `now` on, without an extra one; returns when they end.
fn send(budget: &Budget, now: Time, rate: u64, seconds: u64) -> Time {
    let gap = Duration::from_nanos(1_000_000_000 / rate);
    (0..rate * seconds).fold(now, |now, _| {
        budget.note_first(now);
        now + gap
    })
}

/// H4: a stall at a high rate wants many copies at once. There is room for what the first attempts of ten seconds add, and it
/// takes them ten seconds to fill it.
#[test]
fn h04_the_burst_follows_the_measured_rate() {
    let budget = Budget::new(BudgetOptions { ratio: 0.02, burst: None });
    assert_eq!((budget.tokens(), budget.burst()), (20.0, 20.0));
    let now = send(&budget, Time(0), 5_000, 2);
    // 20 and what two seconds add, as far as there was room in the second of them.
    assert!((100.0..=220.0).contains(&budget.tokens()), "{}", budget.tokens());
    let now = send(&budget, now, 5_000, 30);
    let (tokens, burst) = (budget.tokens(), budget.burst());
    assert!((990.0..=1_000.0).contains(&burst) && tokens == burst, "{tokens} of {burst}");
    assert_eq!((0..10_000).filter(|_| budget.try_take()).count(), tokens as usize);
    // Callers that wait for a stall send less, and go on having what was saved.
    let now = send(&budget, now, 50, 5);
    assert!(budget.burst() > 800.0, "{}", budget.burst());
    // What a rate of before left room for is gone some minutes later.
    let now = send(&budget, now, 50, 600);
    assert_eq!((budget.tokens(), budget.burst()), (20.0, 20.0));
    // A pause is a rate too.
    let now = send(&budget, now, 5_000, 30);
    budget.note_first(now + Duration::from_secs(36_000));
    assert_eq!((budget.tokens(), budget.burst()), (20.0, 20.0));
}

/// A burst that was given stays what it is.
#[test]
fn a_fixed_burst_is_not_measured() {
    let budget = Budget::new("2%:50".parse().unwrap());
    send(&budget, Time(0), 5_000, 30);
    assert_eq!((budget.tokens(), budget.burst()), (50.0, 50.0));
}

/// It is not so strict that nothing is sent: what the ratio allows is there to be taken.
#[test]
fn the_whole_ratio_can_be_spent() {
    let budget = Budget::new(BudgetOptions { ratio: 0.05, burst: Some(20.0) });
    let extra = (0..100_000).filter(|_| {
        budget.note_first(Time(0));
        budget.try_take()
    });
    let extra = extra.count();
    assert!((5_018..=5_020).contains(&extra), "{extra}");
}

#[test]
fn values_out_of_range_count_as_the_nearest_allowed() {
    for (ratio, burst, tokens) in [(f64::NAN, f64::NAN, 0.0), (9.0, -1.0, 0.0), (-1.0, 1e12, 1e6), (2.0, 3.0, 3.0)] {
        let budget = Budget::new(BudgetOptions { ratio, burst: Some(burst) });
        budget.note_first(Time(0));
        assert_eq!(budget.tokens(), tokens);
    }
}

#[test]
fn without_a_burst_nothing_extra_is_ever_sent() {
    let budget = Budget::new(BudgetOptions { ratio: 1.0, burst: Some(0.0) });
    for _ in 0..1_000 {
        budget.note_first(Time(0));
        assert!(!budget.try_take());
    }
}

#[test]
fn a_budget_is_read_as_people_write_it() {
    let of = |text: &str| text.parse::<BudgetOptions>();
    assert_eq!(of("1%"), Ok(BudgetOptions { ratio: 0.01, burst: None }));
    assert_eq!(of("0.02:50"), Ok(BudgetOptions { ratio: 0.02, burst: Some(50.0) }));
    for text in ["", "%", "0%", "-1%", "101%", "NaN", "inf", "2%:", "2%:0", "2%:1e9", "2%:NaN", "2%:5:5"] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{text:?} is not a budget; give a share")), "{error}");
    }
}
