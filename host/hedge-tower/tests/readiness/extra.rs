//! Further attempts: to whom they are sent, whether they wait, and where their tokens are.

use super::{Reply, Service, called, is_uncalled, layer, pairs};
use hedgerow_hedge_tower::{Budget, Classify, HedgeAll, HedgeFuture, HedgeLayer, HedgeService};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio_test::task::{Spawn, spawn};
use tower::util::BoxCloneService;
use tower::{Service as _, ServiceExt};

/// A request whose first attempt is under way.
async fn begin(service: &mut Service) -> Spawn<Reply> {
    let mut reply = spawn(service.ready().await.expect("ready").call("what?"));
    assert!(reply.poll().is_pending());
    reply
}

async fn after_ms(ms: u64) {
    tokio::time::advance(Duration::from_millis(ms)).await;
}

fn answer(reply: &mut Spawn<Reply>) -> Result<&'static str, String> {
    match reply.poll() {
        Poll::Ready(result) => result.map_err(|error| error.to_string()),
        Poll::Pending => panic!("there is no answer"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_hedge_goes_to_a_replica_that_is_ready_then() {
    let (mocks, [mut a, mut b, mut c]) = pairs();
    let (layer, _) = layer("10ms", 9.0);
    let mut reply = begin(&mut layer.over(mocks)).await;
    let _first = called(&mut a);
    b.allow(0);
    after_ms(10).await;
    assert!(reply.is_woken());
    assert!(reply.poll().is_pending());
    assert!(is_uncalled(&mut b));
    called(&mut c).send_response("c");
    assert!(reply.is_woken());
    assert_eq!(answer(&mut reply), Ok("c"));
}

#[tokio::test(start_paused = true)]
async fn a_hedge_waits_for_the_first_that_is_ready_and_no_second_one_waits_beside_it() {
    let (mocks, [mut a, mut b, mut c, mut d]) = pairs();
    let (layer, budget) = layer("10ms x4", 9.0);
    let mut reply = begin(&mut layer.over(mocks)).await;
    let _first = called(&mut a);
    for handle in [&mut b, &mut c, &mut d] {
        handle.allow(0);
    }
    for _ in 0..2 {
        after_ms(10).await;
        assert!(reply.is_woken());
        assert!(reply.poll().is_pending());
        assert!(!reply.is_woken(), "a loop that waits busily");
    }
    assert_eq!(budget.tokens(), 8.0);
    c.allow(9);
    assert!(reply.is_woken());
    assert!(reply.poll().is_pending());
    let _second = called(&mut c);
    // What was not admitted while one waited is not made up for; the next one is sent when it is due.
    assert_eq!((budget.tokens(), layer.counters().sent.iter().sum::<u64>()), (8.0, 1));
    d.allow(9);
    after_ms(10).await;
    assert!(reply.poll().is_pending());
    called(&mut d).send_response("d");
    assert_eq!(answer(&mut reply), Ok("d"));
    assert!(is_uncalled(&mut b));
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_is_not_sent_gives_its_token_back() {
    let (mocks, [mut a, mut b]) = pairs();
    let (layer, budget) = layer("10ms", 1.0);
    let mut reply = begin(&mut layer.over(mocks)).await;
    b.allow(0);
    after_ms(10).await;
    assert!(reply.poll().is_pending());
    assert_eq!(budget.tokens(), 0.0);
    called(&mut a).send_response("a");
    assert_eq!(answer(&mut reply), Ok("a"));
    // The reply is there, so the token is, too: before the future is dropped.
    assert_eq!((budget.tokens(), layer.counters().dropped), (1.0, 1));
    assert_eq!(layer.counters().sent.iter().sum::<u64>(), 0);
    b.allow(9);
    assert!(is_uncalled(&mut b));
}

#[tokio::test(start_paused = true)]
async fn a_request_never_waits_for_readiness_alone() {
    let (mocks, [mut a, mut b]) = pairs();
    let (layer, budget) = layer("10ms", 1.0);
    let mut service = layer.over(mocks);
    b.allow(0);
    // The first attempt fails before the hedge is due, and while it waits.
    for wait_ms in [0, 10] {
        let mut reply = begin(&mut service).await;
        after_ms(wait_ms).await;
        assert!(reply.poll().is_pending());
        called(&mut a).send_error("a is broken");
        assert_eq!(answer(&mut reply), Err("a is broken".to_owned()));
        assert_eq!(budget.tokens(), 1.0);
    }
    // With a replica that is ready, the failure is its chance.
    b.allow(9);
    let mut reply = begin(&mut service).await;
    called(&mut a).send_error("a is broken");
    assert!(reply.poll().is_pending());
    called(&mut b).send_response("b");
    assert_eq!(answer(&mut reply), Ok("b"));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_to_be_ready_costs_no_token_and_no_request() {
    let (mocks, [mut a, mut b, mut c]) = pairs();
    let (layer, budget) = layer("10ms x9", 9.0);
    let mut service = layer.over(mocks.clone());
    // One fails: the hedge goes to the other.
    let mut reply = begin(&mut service).await;
    b.send_error("b is gone");
    after_ms(10).await;
    assert!(reply.poll().is_pending());
    let _first = called(&mut a);
    called(&mut c).send_response("c");
    assert_eq!((answer(&mut reply), budget.tokens()), (Ok("c"), 8.0));
    // Both fail: the first attempt decides, whether it answers or fails, and whether that is before or after.
    for (is_good, is_before) in [(true, false), (false, false), (false, true)] {
        let mut reply = begin(&mut layer.over(mocks.clone())).await;
        b.send_error("b is gone");
        c.send_error("c is gone");
        if !is_before {
            after_ms(10).await;
            assert!(reply.poll().is_pending());
            assert_eq!(budget.tokens(), 8.0);
        }
        let first = called(&mut a);
        if is_good {
            first.send_response("a")
        } else {
            first.send_error("a is broken")
        }
        let expected = if is_good { Ok("a") } else { Err("a is broken".to_owned()) };
        assert_eq!((answer(&mut reply), budget.tokens()), (expected, 8.0));
    }
}

/// Wherever a request is when its caller gives up, the budget lacks what was sent and no more.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_in_any_state_leaks_no_token() {
    let (mocks, [_a, mut b]) = pairs();
    let (layer, budget) = layer("10ms", 9.0);
    // A service for each request, so that each begins at the first replica.
    let service = || layer.over(mocks.clone());
    // Before it is polled.
    drop(service().ready().await.expect("ready").call("what?"));
    assert_eq!(budget.tokens(), 9.0);
    // Before the hedge is due.
    drop(begin(&mut service()).await);
    assert_eq!(budget.tokens(), 9.0);
    // When it is due, and nobody has looked.
    let reply = begin(&mut service()).await;
    after_ms(10).await;
    drop(reply);
    assert_eq!(budget.tokens(), 9.0);
    // While the hedge waits for a replica.
    b.allow(0);
    let mut reply = begin(&mut service()).await;
    after_ms(10).await;
    assert!(reply.poll().is_pending());
    assert_eq!(budget.tokens(), 8.0);
    drop(reply);
    assert_eq!(budget.tokens(), 9.0);
    // While the hedge runs, and after an answer.
    b.allow(9);
    for is_answered in [false, true] {
        let tokens = budget.tokens();
        let mut reply = begin(&mut service()).await;
        after_ms(10).await;
        assert!(reply.poll().is_pending());
        if is_answered {
            called(&mut b).send_response("b");
            assert_eq!(answer(&mut reply), Ok("b"));
        } else {
            called(&mut b);
        }
        drop(reply);
        assert_eq!(budget.tokens(), tokens - 1.0);
    }
    assert_eq!(layer.counters().sent.iter().sum::<u64>(), 2);
}

/// Whose copy fails in the middle of a hedge.
#[derive(Clone)]
struct PanicsAtCopy(Arc<AtomicUsize>);

impl Classify<&'static str, &'static str, tower::BoxError> for PanicsAtCopy {
    fn may_hedge(&self, _: &&'static str) -> bool {
        true
    }

    fn clone_request(&self, request: &&'static str) -> Option<&'static str> {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "the second copy");
        Some(*request)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_callers_code_leaks_no_token() {
    let (mocks, [mut a, mut b]) = pairs();
    let budget = Arc::new(Budget::new(Default::default()));
    let classify = PanicsAtCopy(Arc::default());
    let layer = HedgeLayer::with_budget("10ms".parse().expect("a policy"), classify, Arc::clone(&budget));
    let mut reply = spawn(layer.over(mocks).ready().await.expect("ready").call("what?"));
    assert!(reply.poll().is_pending());
    let _first = called(&mut a);
    after_ms(10).await;
    assert!(catch_unwind(AssertUnwindSafe(|| reply.poll().is_pending())).is_err());
    assert!(is_uncalled(&mut b));
    drop(reply);
    assert_eq!(budget.tokens(), 20.0);
}

/// Requests move between threads although their services cannot be shared.
#[test]
fn futures_are_send_if_services_and_their_futures_are() {
    fn assert_send<T: Send>() {}
    type Boxed = BoxCloneService<String, String, std::io::Error>;
    assert_send::<HedgeFuture<Boxed, HedgeAll, String>>();
    assert_send::<HedgeService<Boxed, HedgeAll>>();
}
