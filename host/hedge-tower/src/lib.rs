//! Hedged requests for [tower](https://docs.rs/tower) services: a request that is slow is sent once more, to another clone
//! of the service or another replica, the first success wins, and the other is cancelled by dropping its future.
//!
//! ```
//! use hedgerow_hedge_tower::{HedgeAll, HedgeLayer};
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let service = service_fn(|name: String| async move { Ok::<_, std::io::Error>(format!("hello {name}")) });
//! let layer = HedgeLayer::new("min(99p,10ms)".parse().unwrap(), HedgeAll);
//! let mut hedged = layer.layer(service);
//! let answer = hedged.ready().await.unwrap().call("world".to_owned()).await.unwrap();
//! assert_eq!(answer, "hello world");
//! assert_eq!(layer.counters().first, 1);
//! # });
//! ```
//!
//! When, how often and at what cost is decided by `hedgerow-hedge`; this crate carries it out on tokio's timers, without
//! starting tasks. **Hedge only what may run twice:** [`Classify::may_hedge`] says which requests those are.
//!
//! What it keeps to:
//! - A service is called only if its own `poll_ready` was ready, and the one that was ready is the one that is called.
//! - One replica that is not ready blocks nobody: the first attempt goes to the first that is ready, a further one to the
//!   first that is ready among those without an attempt. While none is, the further one waits, but only as long as another
//!   attempt runs.
//! - A replica whose `poll_ready` fails is left out while others are left.
//! - An extra attempt takes a token of the [`Budget`], which refills by a share of a token per request. Without one,
//!   the request waits for what it has sent. The token of an attempt that is not sent goes back, whatever ends the request.
//! - No place in a queue is kept for an attempt that is not sent: clones that are no longer needed are dropped.
//! - A cancelled attempt counts as at least as long as it was waited for, also when the caller drops the whole request.
//! - No latency is too long to be recorded, and none switches hedging off.

mod classify;
mod future;
mod layer;
mod replicas;
mod runtime;
mod shared;

pub use classify::{Classify, HedgeAll};
pub use future::HedgeFuture;
pub use hedgerow_hedge::{Budget, BudgetOptions, Class, Counters, InvalidBudget, InvalidPolicy, Kind, Outcome, Policy};
pub use hedgerow_hedge::{Gaps, Latencies, Plan, RequestInfo, SpeculativeExecutionPolicy};
pub use layer::{HedgeLayer, HedgeService};

/// The README's examples, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
