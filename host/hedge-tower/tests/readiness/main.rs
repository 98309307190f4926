//! Which replicas are asked, which one is called, and what an attempt that is not sent leaves behind: with services that
//! are ready when the test says so, and panic if they are called without having been ready.

mod extra;
mod first;

use hedgerow_hedge_tower::{Budget, BudgetOptions, HedgeAll, HedgeFuture, HedgeLayer, HedgeService};
use std::sync::Arc;
use std::task::Poll;
use tower_test::mock::{self, SendResponse};

pub(crate) type Mock = mock::Mock<&'static str, &'static str>;
pub(crate) type Handle = mock::Handle<&'static str, &'static str>;
pub(crate) type Service = HedgeService<Mock, HedgeAll>;
pub(crate) type Reply = HedgeFuture<Mock, HedgeAll, &'static str>;

/// As many replicas, and what plays their part.
pub(crate) fn pairs<const COUNT: usize>() -> ([Mock; COUNT], [Handle; COUNT]) {
    let mut handles = Vec::new();
    let mocks = std::array::from_fn(|_| {
        let (mock, handle) = mock::pair();
        handles.push(handle);
        mock
    });
    (mocks, handles.try_into().expect("one handle for each mock"))
}

pub(crate) fn layer(policy: &str, burst: f64) -> (HedgeLayer<HedgeAll>, Arc<Budget>) {
    let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.0, burst: Some(burst) }));
    (HedgeLayer::with_budget(policy.parse().expect("a policy"), HedgeAll, Arc::clone(&budget)), budget)
}

/// The request that a replica was called with.
pub(crate) fn called(handle: &mut Handle) -> SendResponse<&'static str> {
    match handle.poll_request() {
        Poll::Ready(Some((_, reply))) => reply,
        Poll::Ready(None) | Poll::Pending => panic!("the replica was not called"),
    }
}

pub(crate) fn is_uncalled(handle: &mut Handle) -> bool {
    !matches!(handle.poll_request(), Poll::Ready(Some(_)))
}
