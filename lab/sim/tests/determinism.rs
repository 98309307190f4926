//! A run is a function of its seed: twice the same seed is twice the same history, to the last event.

use hedgerow_sim::run::{Request, run};
use hedgerow_sim::scenario::Scenario;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 1..=6 {
        let request = Request { seed, ..Request::default() };
        let (first, second) = (run(request), run(request));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.history.operations(), second.history.operations(), "seed {seed}");
        assert_eq!(first.stats, second.stats, "seed {seed}");
        assert_eq!(first.failure, None, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_histories() {
    let hashes: Vec<u64> = (1..=4)
        .map(|seed| {
            run(Request { seed, scenario: Some(Scenario::Calm), machine_count: Some(3), is_traced: false }).hash
        })
        .collect();
    assert!((1..4).all(|index| !hashes[..index].contains(&hashes[index])), "{hashes:x?}");
}
