//! What a request costs the generator itself: the engine against a target in its own process that answers at once.

use crate::arrivals::{Arrivals, IN_FLIGHT_MAX_DEFAULT, Spacing};
use crate::cpu;
use crate::engine::{Engine, Source, Times, Watched};
use crate::mix::{Mix, Part, Request};
use crate::pace::{OsPace, machine_now};
use crate::reply::{Found, Reply};
use crate::workload::Workload;
use anyhow::{Context as _, Result};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Clients of the closed loop.
const CLIENTS: u32 = 64;
/// Requests per second of the open loop: so many that the processor's time is known well.
const RATE: f64 = 200_000.0;

/// CPU nanoseconds per request, the client library and the network left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overhead {
    pub(crate) closed_nanos: f64,
    pub(crate) open_nanos: f64,
}

impl Overhead {
    /// Measures both loops, for a second each.
    pub(crate) async fn measure() -> Result<Self> {
        let open = Arrivals::Open { rate: RATE, spacing: Spacing::Poisson, in_flight_max: IN_FLIGHT_MAX_DEFAULT };
        Ok(Self { closed_nanos: measure(Arrivals::clients(CLIENTS)).await?, open_nanos: measure(open).await? })
    }
}

async fn measure(arrivals: Arrivals) -> Result<f64> {
    let watched = Watched::new();
    let mix = Mix::new(&Workload::named("ycsb-a")?, 1, Part { index: 0, count: 1 });
    let start = machine_now();
    let times = Times { start, begin: start, end: start + SECOND, patience: SECOND };
    let pace = OsPace::new(Duration::ZERO).context("making a timer")?;
    let engine = Engine::new(answer, pace, times, mix, Source::new(arrivals, None, 0.0, 1), watched.clone());
    let before = cpu::of_this_process();
    tokio::spawn(tokio::task::unconstrained(engine)).await.context("the generator ended")?;
    let used = cpu::of_this_process() - before;
    let count: u64 = watched.record().operations.values().map(|counted| counted.latency.len()).sum();
    Ok(used * SECOND as f64 / count.max(1) as f64)
}

/// Answers in the next turn, as a connection would at best.
async fn answer(_client: usize, _request: Request) -> Reply {
    let mut is_woken = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_woken, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    Ok(Found::All)
}
