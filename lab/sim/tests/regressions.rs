//! What failed once is good now.

use hedgerow_sim::regressions::SEEDS;
use hedgerow_sim::run::{Request, run};

#[test]
fn n8_seeds_that_failed_once_are_good() {
    for seed in SEEDS {
        let report = run(Request { seed: *seed, ..Request::default() });
        assert_eq!(report.failure, None, "seed {seed} ({})", report.plan.scenario.name());
    }
}
