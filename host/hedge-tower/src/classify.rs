//! What a layer must know of requests and replies: which may run twice, which are alike, and how an attempt ended.

use hedgerow_hedge::{Class, Outcome};

/// Knows the requests and replies of a service. Cloned with the service and for each request, so keep it small.
///
/// A function `Fn(&Request) -> bool` is one for requests that are `Clone`: it says which may be hedged.
pub trait Classify<Request, Response, Error> {
    /// Whether the request may run more than once, at the same time, and on another replica. Of an HTTP service: whether
    /// its method is safe. One that may not is passed on as it is, and its latency counts for nothing.
    fn may_hedge(&self, request: &Request) -> bool;

    /// A copy for a further attempt; `None` if there can be none, for example of a body that is a stream. The request is
    /// then sent once. Only asked for requests that may be hedged, as long as the policy allows a second attempt.
    fn clone_request(&self, request: &Request) -> Option<Request>;

    /// Which requests have similar latencies; up to 64 classes are told apart. All are alike unless told otherwise.
    fn class(&self, request: &Request) -> Class {
        let _ = request;
        Class(0)
    }

    /// How an attempt ended. A success decides the request, and so does an error that every attempt would end with
    /// ([`Outcome::Fatal`]). After [`Outcome::NonFatal`] another attempt is made at once, if the policy allows more than
    /// one and there is a token. By default an error is non-fatal.
    fn outcome(&self, result: &Result<Response, Error>) -> Outcome {
        if result.is_ok() { Outcome::Success } else { Outcome::NonFatal }
    }
}

/// Every request may run twice, every reply is a success, and every error is another replica's chance. For services that
/// only read.
#[derive(Clone, Copy, Debug, Default)]
pub struct HedgeAll;

impl<Request: Clone, Response, Error> Classify<Request, Response, Error> for HedgeAll {
    fn may_hedge(&self, _: &Request) -> bool {
        true
    }

    fn clone_request(&self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}

impl<MayHedge, Request, Response, Error> Classify<Request, Response, Error> for MayHedge
where
    MayHedge: Fn(&Request) -> bool,
    Request: Clone,
{
    fn may_hedge(&self, request: &Request) -> bool {
        self(request)
    }

    fn clone_request(&self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}
