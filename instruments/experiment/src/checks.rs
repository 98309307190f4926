//! What has to hold for the figures of an experiment to mean something.

use crate::summary::number;
use hedgerow_report::{Check, Run};

/// How an experiment ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every turn was taken.
    Complete,
    /// Somebody stopped it.
    Interrupted,
    /// Something did not work.
    Failed(String),
}

/// All of it was done.
pub(crate) fn is_complete(ending: &Ending, steps: usize, total: usize) -> Check {
    let detail = match ending {
        Ending::Complete => format!("{steps} of {total} steps"),
        Ending::Interrupted => format!("PARTIAL: interrupted after {steps} of {total} steps"),
        Ending::Failed(error) => format!("PARTIAL: failed after {steps} of {total} steps: {error}"),
    };
    Check { name: "the experiment is complete".to_owned(), has_passed: *ending == Ending::Complete, detail }
}

/// What is checked of every experiment's runs.
pub(crate) fn of_runs(runs: &[Run]) -> [Check; 2] {
    [generator_kept_up(runs), every_request_succeeded(runs)]
}

fn generator_kept_up(runs: &[Run]) -> Check {
    let void: Vec<_> = runs.iter().filter(|run| run.void.is_some()).map(name).collect();
    let detail = match void.as_slice() {
        [] => format!("none of {} runs is VOID", runs.len()),
        some => format!("{} of {} runs are VOID: {}", some.len(), runs.len(), some.join("; ")),
    };
    Check { name: "the generator was never the bottleneck".to_owned(), has_passed: void.is_empty(), detail }
}

fn every_request_succeeded(runs: &[Run]) -> Check {
    let failed = |run: &Run| run.operations.iter().map(|it| it.errors + it.timeouts).sum::<u64>();
    let requests: u64 = runs.iter().flat_map(|run| &run.operations).map(|it| it.count).sum();
    let all: u64 = runs.iter().map(failed).sum();
    let worst = runs.iter().max_by_key(|run| failed(run)).filter(|run| failed(run) > 0);
    let detail = match worst {
        None => format!("{} requests", number(requests as f64)),
        Some(run) => format!("{all} of {} failed or timed out, most in {}", number(requests as f64), name(run)),
    };
    Check { name: "every request succeeded".to_owned(), has_passed: all == 0, detail }
}

fn name(run: &Run) -> String {
    format!("{}, {}, repetition {}", run.variant, run.workload, run.repetition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_report::Operation;

    fn run(variant: &str, timeouts: u64, void: Option<&str>) -> Run {
        let operations = vec![Operation { count: 1_000, timeouts, ..Operation::default() }];
        let void = void.map(str::to_owned);
        Run { variant: variant.to_owned(), workload: "w".to_owned(), repetition: 1, operations, void, ..Run::default() }
    }

    #[test]
    fn clean_runs_pass() {
        let checks = of_runs(&[run("a", 0, None), run("b", 0, None)]);
        assert!(checks.iter().all(|check| check.has_passed), "{checks:?}");
    }

    #[test]
    fn void_runs_and_failed_requests_are_named() {
        let [void, failed] = of_runs(&[run("a", 1, None), run("b", 3, Some("slow"))]);
        assert_eq!((void.has_passed, failed.has_passed), (false, false));
        assert_eq!(void.detail, "1 of 2 runs are VOID: b, w, repetition 1");
        assert_eq!(failed.detail, "4 of 2,000 failed or timed out, most in b, w, repetition 1");
    }

    #[test]
    fn an_interruption_is_told() {
        let check = is_complete(&Ending::Interrupted, 7, 24);
        assert_eq!((check.has_passed, check.detail.as_str()), (false, "PARTIAL: interrupted after 7 of 24 steps"));
    }
}
