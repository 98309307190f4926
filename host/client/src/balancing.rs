//! Which of the replicas that may serve a request is asked.

use hedgerow_hedge::RequestInfo;
use hedgerow_routing::{Address, Candidate};
use std::fmt;
use std::sync::Arc;

/// Chooses a replica where there is a choice: for reads of every mode but [`crate::ReplicaRead::Leader`], and for all further attempts
/// that are sent beside others.
///
/// Whom it is offered is not its decision: nobody on an excluded host, nobody who was asked in this round while another is left, and
/// never who has an attempt of the request under way. Nor are level, budget and deadline. A choice that was not offered counts as
/// none.
///
/// ```
/// use hedgerow_client::{Candidate, LoadBalancing, LoadBalancingPolicy, Profile, ReplicaRead, RequestInfo};
/// use std::sync::Arc;
///
/// /// Who has the fewest requests of this client, of those that may be asked as usual.
/// #[derive(Debug)]
/// struct FewestInFlight;
///
/// impl LoadBalancingPolicy for FewestInFlight {
///     fn choose(&self, _: RequestInfo<'_>, replicas: &[Candidate]) -> Option<usize> {
///         (0..replicas.len()).min_by_key(|index| (replicas[*index].state, replicas[*index].in_flight))
///     }
/// }
///
/// let balancing = LoadBalancing::Custom(Arc::new(FewestInFlight));
/// let profile = Profile::default().replicas(ReplicaRead::LeaderAndFollower).balancing(balancing);
/// ```
pub trait LoadBalancingPolicy: fmt::Debug + Send + Sync {
    /// The index in `replicas` of the one to ask, as attempt number [`RequestInfo::attempt`]; `None` = as [`LoadBalancing::TwoAtRandom`]
    /// would. There is at least one. A choice may also be made for an attempt that is not sent after all, for want of a token.
    ///
    /// It is called on the way of a request with no lock held: it should be quick, and a panic is that request's alone.
    fn choose(&self, request: RequestInfo<'_>, replicas: &[Candidate]) -> Option<usize>;
}

/// Who is chosen among the replicas that a mode prefers.
#[derive(Clone, Debug, Default)]
pub enum LoadBalancing {
    /// Two of the preferred ones at random, and of these the one that is expected to answer sooner more likely
    /// ([`hedgerow_routing::Selector`]).
    #[default]
    TwoAtRandom,
    /// The caller's own choice, among the preferred ones and all others ([`Candidate::rank`]).
    Custom(Arc<dyn LoadBalancingPolicy>),
}

impl LoadBalancing {
    /// The policy, if it is none of the built-in ones.
    pub(crate) fn custom(&self) -> Option<&dyn LoadBalancingPolicy> {
        match self {
            Self::TwoAtRandom => None,
            Self::Custom(policy) => Some(&**policy),
        }
    }
}

/// Who is asked of those that are `offered`: by `policy`, or else the `usual` one.
pub(crate) fn choose(
    policy: &dyn LoadBalancingPolicy,
    request: RequestInfo<'_>,
    offered: &[Candidate],
    usual: Option<Address>,
) -> Option<Address> {
    // Nobody to choose from: the policy is not asked.
    usual?;
    let chosen = policy.choose(request, offered).and_then(|index| offered.get(index));
    chosen.map(|candidate| candidate.address).or(usual)
}
