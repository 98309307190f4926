//! The fan-out of "The Tail at Scale": what is published there is reached or passed, at the same cost, and no policy spends more
//! than its budget.

use hedgerow_sim::fanout::{Measured, SERVER_COUNT, variants};

const REQUESTS: u64 = 10_000;
/// For variants of which only the cost is looked at.
const REQUESTS_FOR_COST: u64 = 1_000;
/// Published: 1,800 ms to 74 ms with 2 % more requests.
const FACTOR: f64 = 24.0;
const EXTRA_MAX: f64 = 0.02;
/// Tied copies of which both begin: the first one's server stands still after it has begun, or its word comes too late.
const BEGUN_TWICE_MAX: f64 = 0.03;

fn of(name: &str, requests: u64) -> Measured {
    let variant = variants().into_iter().find(|variant| variant.name == name).expect("there is such a variant");
    let result = variant.run(1, requests).result;
    assert_eq!(result.first, requests * SERVER_COUNT as u64, "{name}");
    result
}

fn tail(result: &Measured) -> f64 {
    result.percentile(99.9).as_secs_f64()
}

#[test]
fn the_published_factor_is_reached_at_the_published_cost() {
    let none = of("none", REQUESTS);
    assert!((1.5..2.2).contains(&tail(&none)), "the setting is the published one: {} s", tail(&none));
    assert_eq!(none.sent, 0);
    for name in ["constant 10 ms", "adaptive 2 %"] {
        let hedged = of(name, REQUESTS);
        assert!(hedged.extra_sent() <= EXTRA_MAX, "{name}: {}", hedged.extra_sent());
        assert!(tail(&none) / tail(&hedged) >= FACTOR, "{name}: {} s to {} s", tail(&none), tail(&hedged));
    }
    let tied = of("tied", REQUESTS);
    assert!(tail(&none) / tail(&tied) >= FACTOR, "{} s to {} s", tail(&none), tail(&tied));
    assert!(tied.extra_begun() < BEGUN_TWICE_MAX, "copies begin twice: {}", tied.extra_begun());
}

/// The budget's burst counts, too: 200 copies.
#[test]
fn no_policy_spends_more_than_its_budget() {
    for variant in variants().into_iter().filter(|variant| variant.name != "tied") {
        let (name, result) = (variant.name, variant.run(2, REQUESTS_FOR_COST).result);
        assert!(result.sent as f64 <= result.first as f64 * EXTRA_MAX + 200.0, "{name}: {}", result.sent);
    }
}
