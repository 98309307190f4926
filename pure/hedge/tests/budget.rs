//! The promise of the budget: extra attempts are at most burst + ratio x first attempts, in every order of events.

use hedgerow_hedge::{Budget, BudgetOptions};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn extra_attempts_stay_within_burst_and_ratio(
        ratio in 0.0..1.0_f64,
        burst in 0.0..30.0_f64,
        events in prop::collection::vec(0..8_u8, 0..2_000),
    ) {
        let budget = Budget::new(BudgetOptions { ratio, burst });
        let (mut first, mut extra) = (0.0, 0.0);
        for event in events {
            match event {
                0 if extra > 0.0 => {
                    budget.give_back();
                    extra -= 1.0;
                }
                1..=4 => extra += f64::from(u8::from(budget.try_take())),
                _ => {
                    budget.note_first();
                    first += 1.0;
                }
            }
            prop_assert!(extra <= burst + ratio * first + 1e-6, "{extra} of {first}");
            prop_assert!((0.0..=burst + 1e-6).contains(&budget.tokens()));
        }
    }
}

/// It is not so strict that nothing is sent: what the ratio allows is there to be taken.
#[test]
fn the_whole_ratio_can_be_spent() {
    let budget = Budget::new(BudgetOptions { ratio: 0.05, burst: 20.0 });
    let extra = (0..100_000).filter(|_| {
        budget.note_first();
        budget.try_take()
    });
    let extra = extra.count();
    assert!((5_018..=5_020).contains(&extra), "{extra}");
}

#[test]
fn values_out_of_range_count_as_the_nearest_allowed() {
    for (ratio, burst, tokens) in [(f64::NAN, f64::NAN, 0.0), (9.0, -1.0, 0.0), (-1.0, 1e12, 1e6), (2.0, 3.0, 3.0)] {
        let budget = Budget::new(BudgetOptions { ratio, burst });
        budget.note_first();
        assert_eq!(budget.tokens(), tokens);
    }
}

#[test]
fn without_a_burst_nothing_extra_is_ever_sent() {
    let budget = Budget::new(BudgetOptions { ratio: 1.0, burst: 0.0 });
    for _ in 0..1_000 {
        budget.note_first();
        assert!(!budget.try_take());
    }
}

#[test]
fn a_budget_is_read_as_people_write_it() {
    let of = |text: &str| text.parse::<BudgetOptions>();
    assert_eq!(of("1%"), Ok(BudgetOptions { ratio: 0.01, burst: 20.0 }));
    assert_eq!(of("0.02:50"), Ok(BudgetOptions { ratio: 0.02, burst: 50.0 }));
    for text in ["", "%", "0%", "-1%", "101%", "NaN", "inf", "2%:", "2%:0", "2%:1e9", "2%:NaN", "2%:5:5"] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{text:?} is not a budget; give a share")), "{error}");
    }
}
