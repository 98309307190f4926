//! What a layer must know of requests and replies: which may run twice, which are alike, and how an attempt ended.

use hedgerow_hedge::{Class, Outcome};

/// Knows the requests and replies of a service. Cloned with the service, so keep it small.
pub trait Classify<Request, Response, Error> {
    /// Whether the request may run more than once, and on another replica. Of an HTTP service: whether its method is
    /// idempotent. One that may not is passed on as it is.
    fn may_hedge(&self, request: &Request) -> bool;

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

impl<Request, Response, Error> Classify<Request, Response, Error> for HedgeAll {
    fn may_hedge(&self, _: &Request) -> bool {
        true
    }
}
