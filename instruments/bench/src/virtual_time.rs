//! Tests' own world: time that only passes when everybody waits, and a server that pauses at known moments.
//!
//! The runtime's paused clock knows milliseconds, so the moments here are whole ones and the assertions exact.

use crate::arrivals::Arrivals;
use crate::engine::{Engine, Source, Times, Watched};
use crate::mix::{Mix, Part, Request};
use crate::pace::Pace;
use crate::record::Record;
use crate::reply::{Found, Reply};
use crate::workload::Workload;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// The runtime's clock, from when this was made.
pub(crate) struct VirtualPace {
    origin: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl VirtualPace {
    pub(crate) fn new(origin: Instant) -> Self {
        Self { origin, sleep: Box::pin(tokio::time::sleep_until(origin)) }
    }
}

impl Pace for VirtualPace {
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn poll_until(&mut self, at: u64, context: &mut Context<'_>) -> Poll<()> {
        let at = self.origin + Duration::from_nanos(at);
        if self.sleep.deadline() != at {
            self.sleep.as_mut().reset(at);
        }
        self.sleep.as_mut().poll(context)
    }
}

/// A server that answers at once, except that it stops for `pause` at the beginning of every `period`, the first one left
/// out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PausingServer {
    pub(crate) origin: Instant,
    pub(crate) period: Duration,
    pub(crate) pause: Duration,
}

impl PausingServer {
    /// 100 ms every 10 s.
    pub(crate) fn new(origin: Instant) -> Self {
        Self { origin, period: Duration::from_secs(10), pause: Duration::from_millis(100) }
    }

    pub(crate) async fn serve(self, _request: Request) -> Reply {
        let elapsed = self.origin.elapsed();
        let into = Duration::from_nanos((elapsed.as_nanos() % self.period.as_nanos()) as u64);
        if elapsed >= self.period && into < self.pause {
            tokio::time::sleep(self.pause - into).await;
        }
        Ok(Found::All)
    }
}

/// Runs the engine in virtual time.
pub(crate) async fn drive<F>(
    arrivals: Arrivals,
    operations: Option<u64>,
    times: Times,
    origin: Instant,
    serve: impl Fn(usize, Request) -> F + Send + Unpin + 'static,
) -> (u64, Arc<Watched>, Record)
where
    F: Future<Output = Reply> + Send + 'static,
{
    let watched = Watched::new();
    let workload = Workload::named("get").expect("a built-in workload");
    let mix = Mix::new(&workload, 1, Part { index: 0, count: 1 });
    let source = Source::new(arrivals, operations, 0.0, 1);
    let engine = Engine::new(serve, VirtualPace::new(origin), times, mix, source, watched.clone());
    let end = tokio::spawn(tokio::task::unconstrained(engine)).await.expect("the engine does not panic");
    let record = watched.record().clone();
    (end, watched, record)
}
