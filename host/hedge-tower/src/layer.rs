//! The layer, and the service that it makes.

use crate::classify::Classify;
use crate::future::{Extra, HedgeFuture};
use crate::replicas::{Candidates, Replicas, Spread};
use crate::shared::Shared;
use hedgerow_hedge::{Budget, BudgetOptions, Class, Counters, Plan, Policy, Race};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower::{Layer, Service};

/// Hedges the requests of the services that it is put around. All of them, and all clones of the layer, share latencies,
/// counters and budget.
#[derive(Clone, Debug)]
pub struct HedgeLayer<C> {
    shared: Arc<Shared>,
    classify: C,
}

impl<C> HedgeLayer<C> {
    /// With the default budget (5 %, bursts of 20 or of what ten seconds add). Which requests may be hedged is for `classify` to say:
    /// [`HedgeAll`](crate::HedgeAll), a function of the request, or what implements [`Classify`].
    pub fn new(policy: Policy, classify: C) -> Self {
        Self::with_budget(policy, classify, Arc::new(Budget::new(BudgetOptions::default())))
    }

    /// With a budget that others may share: other layers, and the caller's own retries.
    pub fn with_budget(policy: Policy, classify: C, budget: Arc<Budget>) -> Self {
        Self { shared: Arc::new(Shared::new(policy, budget)), classify }
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

    /// A service over several replicas, of which no two attempts of a request go to the same. Each request begins at the
    /// next one, in turn for all clones of the service together, or at the first one behind it that is ready.
    ///
    /// # Panics
    /// If there is no replica.
    pub fn over<S>(&self, replicas: impl IntoIterator<Item = S>) -> HedgeService<S, C>
    where
        C: Clone,
    {
        let replicas: Vec<S> = replicas.into_iter().collect();
        assert!(!replicas.is_empty(), "a service needs a replica");
        self.service(Replicas::new(replicas, Spread::Distinct))
    }

    fn service<S>(&self, replicas: Replicas<S>) -> HedgeService<S, C>
    where
        C: Clone,
    {
        let replicas = Arc::new(replicas);
        let candidates = Candidates::all(Arc::clone(&replicas));
        let (shared, classify) = (Arc::clone(&self.shared), self.classify.clone());
        HedgeService { shared, classify, replicas, candidates, start: None }
    }
}

impl<S, C: Clone> Layer<S> for HedgeLayer<C> {
    type Service = HedgeService<S, C>;

    /// Each attempt goes to a clone of `inner`, which is to find different replicas for them (as a balancer does). For
    /// replicas that are known one by one: [`HedgeLayer::over`].
    fn layer(&self, inner: S) -> Self::Service {
        self.service(Replicas::new(vec![inner], Spread::Clones))
    }
}

/// Hedges requests to the services below, which it clones when it needs them. Needs a tokio runtime with timers.
///
/// It is ready when one of the replicas is, and the next request goes to that one. A replica whose `poll_ready` fails is
/// left out by this clone of the service; the error is returned when none is left, and then all are asked again.
#[derive(Debug)]
pub struct HedgeService<S, C> {
    shared: Arc<Shared>,
    classify: C,
    replicas: Arc<Replicas<S>>,
    /// This clone's own.
    candidates: Candidates<S>,
    /// Where the next request begins, from the first `poll_ready` on: the replica that is asked first, or the one that is
    /// ready.
    start: Option<usize>,
}

/// The clone is not ready: it has to be asked, and takes no readiness from this one.
impl<S, C: Clone> Clone for HedgeService<S, C> {
    fn clone(&self) -> Self {
        let (shared, classify, replicas) =
            (Arc::clone(&self.shared), self.classify.clone(), Arc::clone(&self.replicas));
        let candidates = Candidates::all(Arc::clone(&replicas));
        Self { shared, classify, replicas, candidates, start: None }
    }
}

impl<S, C, Request> Service<Request> for HedgeService<S, C>
where
    S: Service<Request> + Clone,
    C: Classify<Request, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = HedgeFuture<S, C, Request>;

    /// Ready when one of the replicas is. Those that further attempts go to are asked when such an attempt is due. Asked
    /// again before the call, it asks the one that was ready first, and the others if that one no longer is.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let start = *self.start.get_or_insert_with(|| self.replicas.next());
        match ready!(self.candidates.poll_ready(start, context)) {
            Ok(index) => {
                self.start = Some(index);
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.candidates = Candidates::all(Arc::clone(&self.replicas));
                Poll::Ready(Err(error))
            }
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let first = self.start.take().unwrap_or_else(|| self.replicas.next());
        let now = self.shared.now();
        self.shared.budget.note_first(now);
        let class = self.classify.may_hedge(&request).then(|| self.classify.class(&request));
        let plan = class.map_or_else(Plan::default, |class| self.shared.hedger().begin(class, now));
        // The copy is made now, as the first attempt uses up the request.
        let may_repeat = plan.max_executions > 1 && self.replicas.has_second();
        let copy = if may_repeat { self.classify.clone_request(&request) } else { None };
        let extra = copy.map(|request| Extra::new(Arc::clone(&self.replicas), first, request));

        let mut service = self.candidates.take(first);
        let running = service.call(request);
        self.candidates.put_back(first, service);
        let (shared, classify) = (Arc::clone(&self.shared), self.classify.clone());
        HedgeFuture::new(shared, classify, class, Race::new(plan, now), extra).with_first(first, running)
    }
}
