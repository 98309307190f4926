//! Many runs, on as many threads as wanted. Each run is single-threaded and knows nothing of the others.

use crate::history::History;
use crate::run::{Report, Request, run};
use crate::stats::Stats;
use hedgerow_env::os::spawn_thread;
use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Reports that may wait for the caller of [`run_all`].
const REPORTS_WAITING_MAX: usize = 64;

/// Which runs.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Seeds that are run before the others.
    pub before: &'static [u64],
    /// The first seed.
    pub start: u64,
    /// How many, one after the other.
    pub count: u64,
    /// What all runs have in common; its seed says nothing.
    pub request: Request,
    /// Threads, at least 1.
    pub jobs: usize,
}

impl Batch {
    /// How many runs it is.
    pub const fn total(&self) -> u64 {
        self.count.saturating_add(self.before.len() as u64)
    }

    /// The seed of run `number`, from 0.
    fn seed(&self, number: u64) -> Option<u64> {
        let before = usize::try_from(number).ok().and_then(|number| self.before.get(number));
        let later = || self.start.checked_add(number - self.before.len() as u64);
        if number < self.total() { before.copied().or_else(later) } else { None }
    }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs all of `batch`. `on_report` sees the reports as runs end, in any order, and may break off.
pub fn run_all(batch: &Batch, mut on_report: impl FnMut(Report) -> ControlFlow<()>) -> io::Result<()> {
    std::panic::set_hook(Box::new(|panic| {
        LAST_PANIC.with(|last| last.replace(format!("{panic}")));
    }));
    let (reports, workers) = start_workers(batch)?;
    for report in reports {
        if on_report(report).is_break() {
            break;
        }
    }
    // A run that nobody asks for any more ends too, and leaves nothing behind.
    for worker in workers {
        drop(worker.join());
    }
    drop(std::panic::take_hook());
    Ok(())
}

/// Workers end when there are no more seeds, or when nobody takes their reports any more.
fn start_workers(batch: &Batch) -> io::Result<(Receiver<Report>, Vec<JoinHandle<()>>)> {
    let (sender, receiver) = sync_channel(REPORTS_WAITING_MAX);
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for _ in 0..batch.jobs.max(1) {
        let (sender, next, batch) = (sender.clone(), Arc::clone(&next), *batch);
        workers.push(spawn_thread("sim", move || {
            loop {
                let Some(seed) = batch.seed(next.fetch_add(1, Ordering::Relaxed)) else { return };
                if sender.send(run_guarded(Request { seed, ..batch.request })).is_err() {
                    return;
                }
            }
        })?);
    }
    Ok((receiver, workers))
}

/// A run whose panic is a failure like any other.
fn run_guarded(request: Request) -> Report {
    catch_unwind(AssertUnwindSafe(|| run(request))).unwrap_or_else(|_| {
        let plan = request.plan();
        let failure = Some(LAST_PANIC.with(|last| last.take()));
        let stats = Stats { runs: 1, ..Stats::default() };
        Report { request, plan, history: History::default(), hash: 0, stats, failure }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_the_seeds_before_and_then_those_from_its_start() {
        let batch = Batch { before: &[7, 3], start: 10, count: 2, request: Request::default(), jobs: 1 };
        let seeds: Vec<Option<u64>> = (0..6).map(|number| batch.seed(number)).collect();
        assert_eq!((seeds, batch.total()), (vec![Some(7), Some(3), Some(10), Some(11), None, None], 4));
        assert_eq!(Batch { before: &[], start: u64::MAX, ..batch }.seed(1), None);
    }
}
