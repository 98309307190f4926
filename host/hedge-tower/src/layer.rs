//! The layer, and the service that it makes.

use crate::classify::{Classify, HedgeAll};
use crate::future::HedgeFuture;
use crate::shared::Shared;
use hedgerow_hedge::{Budget, BudgetOptions, Class, Counters, Plan, Policy, Race};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};

/// Hedges the requests of the services that it is put around. All of them, and all clones of the layer, share latencies,
/// counters and budget.
#[derive(Clone, Debug)]
pub struct HedgeLayer<C = HedgeAll> {
    shared: Arc<Shared>,
    classify: C,
}

impl HedgeLayer {
    /// With the default budget (5 %, bursts of 20), for requests that may all run twice.
    pub fn new(policy: Policy) -> Self {
        Self::with_budget(policy, Arc::new(Budget::new(BudgetOptions::default())))
    }

    /// With a budget that others may share: other layers, and the caller's own retries.
    pub fn with_budget(policy: Policy, budget: Arc<Budget>) -> Self {
        Self { shared: Arc::new(Shared::new(policy, budget)), classify: HedgeAll }
    }
}

impl<C> HedgeLayer<C> {
    /// The same with other knowledge of requests and replies.
    pub fn with_classify<D>(self, classify: D) -> HedgeLayer<D> {
        HedgeLayer { shared: self.shared, classify }
    }

    /// Decides by another policy from the next request on.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.hedger().set_policy(policy);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.shared.hedger().counters()
    }

    /// After how long a second attempt of a request of `class` is sent at present; `None` = not at all.
    pub fn hedge_delay(&self, class: Class) -> Option<Duration> {
        self.shared.hedger().hedge_delay(class)
    }

    /// The latency that `percentile` percent of the recent first attempts of `class` stay below; `None` while too few are
    /// known.
    pub fn latency(&self, class: Class, percentile: f64) -> Option<Duration> {
        self.shared.hedger().latency(class, percentile)
    }

    /// A service over several replicas: each request begins at the next one, and no two of its attempts go to the same.
    ///
    /// # Panics
    /// If there is no replica.
    pub fn over<S>(&self, replicas: impl IntoIterator<Item = S>) -> HedgeService<S, C>
    where
        C: Clone,
    {
        let replicas: Vec<S> = replicas.into_iter().collect();
        assert!(!replicas.is_empty(), "a service needs a replica");
        let (shared, classify) = (Arc::clone(&self.shared), self.classify.clone());
        HedgeService { shared, classify, replicas, next: 0, is_replicated: true }
    }
}

impl<S, C: Clone> Layer<S> for HedgeLayer<C> {
    type Service = HedgeService<S, C>;

    /// Each attempt goes to a clone of `inner`, which is to find different replicas for them (as a balancer does). For
    /// replicas that are known one by one: [`HedgeLayer::over`].
    fn layer(&self, inner: S) -> Self::Service {
        let (shared, classify) = (Arc::clone(&self.shared), self.classify.clone());
        HedgeService { shared, classify, replicas: vec![inner], next: 0, is_replicated: false }
    }
}

/// Hedges requests to the service below. Needs a tokio runtime with timers.
#[derive(Clone, Debug)]
pub struct HedgeService<S, C = HedgeAll> {
    shared: Arc<Shared>,
    classify: C,
    replicas: Vec<S>,
    /// Where the next request begins.
    next: usize,
    /// Each attempt has its own replica.
    is_replicated: bool,
}

impl<S: Clone, C> HedgeService<S, C> {
    /// Where up to `count` further attempts go after one at `first`, last one first.
    fn spares(&self, first: usize, count: usize) -> Vec<(usize, S)> {
        let most = if self.is_replicated { self.replicas.len() - 1 } else { count };
        let index = |step: usize| (first + step) % self.replicas.len();
        let steps = (1..=count.min(most)).rev();
        steps.map(|step| (index(step), self.replicas[index(step)].clone())).collect()
    }
}

impl<S, C, Request> Service<Request> for HedgeService<S, C>
where
    S: Service<Request> + Clone,
    Request: Clone,
    C: Classify<Request, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = HedgeFuture<S, C, Request>;

    /// Ready when the service that the first attempt goes to is. What further attempts go to is asked when they are sent.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.replicas[self.next].poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let may_hedge = self.classify.may_hedge(&request);
        let class = self.classify.class(&request);
        let now = self.shared.now();
        let plan = self.shared.hedger().begin(class, now);
        let plan = if may_hedge { plan } else { Plan::default() };
        self.shared.budget.note_first();

        let first = self.next;
        self.next = (self.next + 1) % self.replicas.len();
        // What further attempts may need, as this one uses up the request and the borrow.
        let spares = self.spares(first, usize::from(plan.max_executions).saturating_sub(1));
        let spare = (!spares.is_empty()).then(|| (spares, request.clone()));
        let running = self.replicas[first].call(request);
        let (shared, classify) = (Arc::clone(&self.shared), self.classify.clone());
        HedgeFuture::new(shared, classify, class, Race::new(plan, now), spare).with_first(first, running)
    }
}
