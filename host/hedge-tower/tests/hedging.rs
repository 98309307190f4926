//! Hedged services in paused time: who answers, when, what is cancelled, and what it cost.

use hedgerow_hedge_tower::{
    Budget, BudgetOptions, Class, Classify, HedgeAll, HedgeLayer, HedgeService, Outcome, Policy,
};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt};

/// What a replica does with its attempts, and what it saw of them.
#[derive(Clone)]
struct Replica {
    name: usize,
    takes: Duration,
    /// Replies with this instead.
    error: Option<&'static str>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: Mutex<Vec<usize>>,
    running: AtomicUsize,
    finished: AtomicUsize,
}

/// Counts an attempt as running until it is dropped.
struct Running(Arc<Seen>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<&'static str> for Replica {
    type Response = usize;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<usize, &'static str>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: &'static str) -> Self::Future {
        self.seen.calls.lock().expect("no panic").push(self.name);
        self.seen.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&self.seen));
        let Self { name, takes, error, .. } = self.clone();
        Box::pin(async move {
            let running = running;
            sleep(takes).await;
            running.0.finished.fetch_add(1, Ordering::SeqCst);
            error.map_or(Ok(name), Err)
        })
    }
}

fn replicas(takes: [u64; 3], seen: &Arc<Seen>) -> Vec<Replica> {
    let replica =
        |(name, takes)| Replica { name, takes: Duration::from_millis(takes), error: None, seen: Arc::clone(seen) };
    takes.into_iter().enumerate().map(replica).collect()
}

fn policy(text: &str) -> Policy {
    text.parse().expect("a policy")
}

async fn ask<C>(service: &mut HedgeService<Replica, C>) -> Result<usize, &'static str>
where
    C: Classify<&'static str, usize, &'static str> + Clone,
{
    service.ready().await?.call("what?").await
}

/// Runs it, and says how long that took in paused time.
async fn timed<T>(future: impl Future<Output = T>) -> (T, u128) {
    let start = tokio_now();
    let output = future.await;
    (output, (tokio_now() - start).as_millis())
}

#[allow(clippy::disallowed_methods, reason = "the paused clock")]
fn tokio_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

#[tokio::test(start_paused = true)]
async fn the_first_success_wins_and_the_loser_is_dropped() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("10ms"), HedgeAll);
    let mut service = layer.over(replicas([500, 3, 3], &seen));
    assert_eq!(timed(ask(&mut service)).await, (Ok(1), 13));
    assert_eq!((seen.running.load(Ordering::SeqCst), seen.finished.load(Ordering::SeqCst)), (0, 1));
    let counters = layer.counters();
    let hedge = |counts: [u64; 5]| counts.iter().sum::<u64>();
    assert_eq!((counters.first, hedge(counters.sent), hedge(counters.won), counters.cancelled), (1, 1, 1, 1));
    assert_eq!(counters.wasted_us, 13_000);
    // The next one begins at the next replica, which is fast.
    assert_eq!(timed(ask(&mut service)).await, (Ok(1), 3));
    assert_eq!(*seen.calls.lock().expect("no panic"), [0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn attempts_go_to_distinct_replicas_and_no_further() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("10ms x9"), HedgeAll);
    let mut service = layer.over(replicas([500, 500, 500], &seen));
    assert_eq!(timed(ask(&mut service)).await, (Ok(0), 500));
    assert_eq!(*seen.calls.lock().expect("no panic"), [0, 1, 2]);
    let mut alone = HedgeLayer::new(policy("10ms x9"), HedgeAll).over(replicas([500, 0, 0], &seen).into_iter().take(1));
    assert_eq!(timed(ask(&mut alone)).await, (Ok(0), 500), "H3: nobody else to ask");
    let mut clones = HedgeLayer::new(policy("10ms x4"), HedgeAll).layer(replicas([500, 0, 0], &seen).remove(0));
    assert_eq!(timed(ask(&mut clones)).await, (Ok(0), 500));
    assert_eq!(seen.calls.lock().expect("no panic").len(), 3 + 1 + 4, "clones: as many as the policy allows");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_another_replicas_chance() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("100ms x3"), HedgeAll);
    let mut all = replicas([5, 5, 5], &seen);
    all[0].error = Some("busy");
    all[1].error = Some("stopping");
    assert_eq!(timed(ask(&mut layer.over(all.clone()))).await, (Ok(2), 15));
    all[2].error = Some("lost");
    assert_eq!(timed(ask(&mut layer.over(all.clone()))).await, (Err("lost"), 15), "the last error is told");
    // H1: the hedge fails at once, the first attempt is slow and good.
    let mut slow = replicas([500, 0, 0], &seen);
    slow[1].error = Some("nobody here");
    assert_eq!(timed(ask(&mut HedgeLayer::new(policy("10ms"), HedgeAll).over(slow))).await, (Ok(0), 500));
}

/// An error that would be the same everywhere, requests that must not run twice, and one that cannot be copied.
#[derive(Clone, Copy)]
struct Careful;

impl Classify<&'static str, usize, &'static str> for Careful {
    fn may_hedge(&self, request: &&'static str) -> bool {
        *request != "add one"
    }

    fn clone_request(&self, request: &&'static str) -> Option<&'static str> {
        (*request != "a stream").then_some(*request)
    }

    fn class(&self, request: &&'static str) -> Class {
        Class(request.len() as u8)
    }

    fn outcome(&self, result: &Result<usize, &'static str>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err("no such page") => Outcome::Fatal,
            Err(_) => Outcome::NonFatal,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_classifier_decides() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("10ms x3"), Careful);
    let mut all = replicas([50, 5, 5], &seen);
    all[1].error = Some("no such page");
    let mut service = layer.over(all);
    assert_eq!(timed(ask(&mut service)).await, (Err("no such page"), 15));
    assert_eq!(seen.running.load(Ordering::SeqCst), 0);
    seen.calls.lock().expect("no panic").clear();
    let first = layer.counters().first;
    let mut service = layer.over(replicas([50, 50, 50], &seen));
    let answer = timed(async { service.ready().await?.call("add one").await }).await;
    assert_eq!((answer, seen.calls.lock().expect("no panic").len()), ((Ok(0), 50), 1), "it must not run twice");
    assert_eq!(layer.counters().first, first, "and is none of those that are counted");
    let answer = timed(async { service.ready().await?.call("a stream").await }).await;
    assert_eq!((answer, seen.calls.lock().expect("no panic").len()), ((Ok(1), 50), 2), "there is no copy to send");
    let answer = timed(async { service.ready().await?.call("what?").await }).await;
    assert_eq!((answer, seen.calls.lock().expect("no panic").len()), ((Ok(2), 50), 5), "and another is sent thrice");
}

/// Requests that may not be hedged are often those that take longer.
#[tokio::test(start_paused = true)]
async fn the_latency_of_what_may_not_be_hedged_moves_no_trigger() {
    let seen = Arc::new(Seen::default());
    let reads_only = |request: &&'static str| request.starts_with("read");
    let layer = HedgeLayer::new(policy("min(99p,1s)"), reads_only);
    let mut fast = layer.over(replicas([20; 3], &seen));
    let mut slow = layer.over(replicas([700; 3], &seen));
    for _ in 0..200 {
        assert!(fast.ready().await.expect("ready").call("read").await.is_ok());
        assert!(slow.ready().await.expect("ready").call("write").await.is_ok());
    }
    let delay = layer.hedge_delay(Class(0)).expect("a delay").as_millis();
    assert!((19..=21).contains(&delay), "{delay}");
    assert_eq!(seen.calls.lock().expect("no panic").len(), 400);
}

#[tokio::test(start_paused = true)]
async fn h05_the_budget_binds_while_all_is_slow_but_good() {
    let seen = Arc::new(Seen::default());
    let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.1, burst: Some(5.0) }));
    let layer = HedgeLayer::with_budget(policy("10ms"), HedgeAll, budget);
    let mut service = layer.over(replicas([50, 50, 50], &seen));
    for _ in 0..1_000 {
        assert!(ask(&mut service).await.is_ok());
    }
    let calls = seen.calls.lock().expect("no panic").len();
    assert!((1_100..=1_105).contains(&calls), "{calls}");
    assert_eq!(layer.counters().suppressed.iter().sum::<u64>(), 2_000 - calls as u64);
}

/// tower#475: a latency beyond the histogram's range must neither fail nor switch hedging off.
#[tokio::test(start_paused = true)]
async fn h13_latency_beyond_the_range() {
    let seen = Arc::new(Seen::default());
    let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.0, burst: Some(1_000.0) }));
    let layer = HedgeLayer::with_budget(policy("min(99p,1s)"), HedgeAll, budget);
    let mut slow = layer.over(replicas([200_000; 3], &seen));
    let mut open = Vec::new();
    for _ in 0..150 {
        open.push(slow.ready().await.expect("ready").call("what?"));
    }
    for reply in open {
        assert!(reply.await.is_ok());
    }
    assert!(ask(&mut slow).await.is_ok());
    assert!(layer.latency(Class(0), 99.0).is_some_and(|latency| latency > Duration::from_secs(60)));
    assert_eq!(layer.hedge_delay(Class(0)), Some(Duration::from_secs(1)));
    let mut mixed = layer.over(replicas([1_000_000, 5, 5], &seen));
    assert_eq!(timed(ask(&mut mixed)).await, (Ok(1), 1_005));
}

/// H10, H11: the trigger comes from good replies, and only when there are enough of them.
#[tokio::test(start_paused = true)]
async fn a_percentile_is_learnt() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("min(99p,70ms)"), HedgeAll);
    let mut service = layer.over(replicas([20, 20, 20], &seen));
    for _ in 0..99 {
        ask(&mut service).await.expect("an answer");
    }
    assert_eq!(layer.hedge_delay(Class(0)), Some(Duration::from_millis(70)), "too little is known");
    for _ in 0..20 {
        ask(&mut service).await.expect("an answer");
    }
    let delay = layer.hedge_delay(Class(0)).expect("a delay").as_millis();
    assert!((19..=21).contains(&delay), "{delay}");
    layer.set_policy(Policy::None);
    assert_eq!(layer.hedge_delay(Class(0)), None);
}

/// A caller that gives up leaves no attempt behind, and what it waited for is not lost.
#[tokio::test(start_paused = true)]
async fn dropping_the_request_cancels_all_attempts() {
    let seen = Arc::new(Seen::default());
    let layer = HedgeLayer::new(policy("10ms"), HedgeAll);
    let mut service = layer.over(replicas([500, 500, 500], &seen));
    let given_up = timeout(Duration::from_millis(100), ask(&mut service)).await;
    assert!(given_up.is_err());
    assert_eq!((seen.running.load(Ordering::SeqCst), seen.finished.load(Ordering::SeqCst)), (0, 0));
    let counters = layer.counters();
    assert_eq!((counters.cancelled, counters.wasted_us), (2, 190_000));
}

/// A service with slots: readiness takes one, and the end of the call (or dropping an unused service) gives it back.
struct Slots {
    free: Arc<AtomicUsize>,
    taken_ever: Arc<AtomicUsize>,
    has_slot: bool,
    takes: Duration,
}

struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clone for Slots {
    fn clone(&self) -> Self {
        let (free, taken_ever) = (Arc::clone(&self.free), Arc::clone(&self.taken_ever));
        Self { free, taken_ever, has_slot: false, takes: self.takes }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.free.fetch_add(usize::from(self.has_slot), Ordering::SeqCst);
    }
}

impl Service<()> for Slots {
    type Response = ();
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<(), &'static str>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if !self.has_slot {
            let take = |free: usize| free.checked_sub(1);
            // Whoever finds none is not woken: nothing frees one in these tests while somebody waits.
            if self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                return Poll::Pending;
            }
            self.taken_ever.fetch_add(1, Ordering::SeqCst);
            self.has_slot = true;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(std::mem::take(&mut self.has_slot), "called without being ready");
        let (slot, takes) = (Slot(Arc::clone(&self.free)), self.takes);
        Box::pin(async move {
            let _slot = slot;
            sleep(takes).await;
            Ok(())
        })
    }
}

fn slots(count: usize, takes_ms: u64) -> Slots {
    let takes = Duration::from_millis(takes_ms);
    Slots { free: Arc::new(AtomicUsize::new(count)), taken_ever: Arc::default(), has_slot: false, takes }
}

/// tower#472: a request that needs no second attempt takes one slot, not two.
#[tokio::test(start_paused = true)]
async fn h14_no_slot_is_reserved_for_an_attempt_that_is_not_sent() {
    let inner = slots(2, 5);
    let mut service = HedgeLayer::new(policy("10ms"), HedgeAll).layer(inner.clone());
    for _ in 0..10 {
        service.ready().await.expect("ready").call(()).await.expect("an answer");
    }
    assert_eq!((inner.taken_ever.load(Ordering::SeqCst), inner.free.load(Ordering::SeqCst)), (10, 2));
}

/// A second attempt that waits for a slot when the first one answers was not sent: slot and token are free again.
#[tokio::test(start_paused = true)]
async fn h14_an_attempt_that_waits_for_a_slot_gives_up_cleanly() {
    let inner = slots(1, 50);
    let budget = Arc::new(Budget::new(BudgetOptions { ratio: 0.0, burst: Some(3.0) }));
    let layer = HedgeLayer::with_budget(policy("10ms"), HedgeAll, Arc::clone(&budget));
    let mut service = layer.layer(inner.clone());
    let (answer, took) = timed(async { service.ready().await?.call(()).await }).await;
    assert_eq!((answer, took), (Ok(()), 50));
    assert_eq!(inner.free.load(Ordering::SeqCst), 1);
    assert_eq!(budget.tokens(), 3.0, "nothing extra was sent");
    assert_eq!((layer.counters().dropped, layer.counters().cancelled), (1, 0));
    // The service is ready for the next one, and stays so while it is only asked.
    poll_fn(|context| service.poll_ready(context)).await.expect("ready");
    assert_eq!(inner.free.load(Ordering::SeqCst), 0, "the first attempt's own slot");
    drop(service);
    assert_eq!(inner.free.load(Ordering::SeqCst), 1);
}
