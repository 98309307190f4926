//! A request without a reply: why it has none, and what that means.

use crate::error::{Error, ErrorKind};
use hedgerow_routing::Failure;
use hedgerow_tls::{is_disbelief, is_disbelief_of_this_end};
use hedgerow_types::Refusal;
use hedgerow_types::limit::FRAME_SIZE_MAX;
use std::io;

/// Why nothing is sent any more.
pub(crate) const CLOSED: &str = "the client was closed";

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Connecting failed: the request was never sent.
    NotConnected(String),
    /// The node did not let this client's user in, or did not show that it knows it: the request was never sent.
    LoginRefused(String),
    /// One end does not believe the other's certificate: nothing that was sent has been looked at.
    Disbelieved {
        what: String,
        /// Whether it is this end's that the node does not believe.
        is_own: bool,
    },
    /// The connection ended after the request may have been sent.
    Broken(String),
    /// No reply before the attempt's deadline.
    Late,
    /// The peer sent bytes that are not the protocol.
    Malformed(String),
    /// The same, and nothing before: another service listens there.
    Foreign(String),
    /// Too many requests wait on this connection: this one was not sent.
    Full,
    /// The request has so many bytes: it was not sent, since a node ends a connection over it.
    TooLarge(usize),
}

impl Lost {
    /// A connection on which nothing could be asked, for this error.
    pub(crate) fn before_asking(error: &io::Error, what: String) -> Self {
        if is_disbelief(error) {
            Self::Disbelieved { what, is_own: is_disbelief_of_this_end(error) }
        } else {
            Self::NotConnected(what)
        }
    }

    /// A connection that ended with this error. Nodes look at certificates before they look at anything that was asked.
    pub(crate) fn after_asking(error: &io::Error, what: String, has_replied: bool) -> Self {
        if !has_replied && is_disbelief_of_this_end(error) {
            Self::Disbelieved { what, is_own: true }
        } else {
            Self::Broken(what)
        }
    }

    /// What ended a connection, for requests that come afterwards.
    pub(crate) fn for_later(&self) -> Self {
        match self {
            Self::LoginRefused(_) | Self::Disbelieved { .. } => self.clone(),
            _ => Self::NotConnected(lost_error(self).message().to_owned()),
        }
    }

    /// What a lost request is to those who decide what follows.
    pub(crate) fn failure(&self) -> Failure<'static> {
        match self {
            Self::NotConnected(_) | Self::Foreign(_) | Self::Disbelieved { .. } => Failure::Unreachable,
            Self::Full => Failure::Refused(&FULL),
            Self::TooLarge(_) => Failure::Refused(&TOO_LARGE),
            Self::LoginRefused(_) => Failure::Refused(&NOT_ALLOWED),
            Self::Broken(_) | Self::Malformed(_) => Failure::ConnectionLost,
            Self::Late => Failure::NoReply,
        }
    }

    /// Whether the request may have reached its server.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::NotConnected(_)
            | Self::LoginRefused(_)
            | Self::Disbelieved { .. }
            | Self::Full
            | Self::TooLarge(_) => false,
            // What says a thing that this client does not understand may be a node all the same.
            Self::Broken(_) | Self::Late | Self::Malformed(_) | Self::Foreign(_) => true,
        }
    }
}

/// How a full connection is answered.
static FULL: Refusal = Refusal::Busy(String::new());

/// How a request of a user is answered whom no node lets in.
static NOT_ALLOWED: Refusal = Refusal::NotAllowed(String::new());

/// How a request is answered that no node takes.
static TOO_LARGE: Refusal = Refusal::TooLarge(String::new());

/// The error of an operation whose last attempt was lost.
pub(crate) fn lost_error(lost: &Lost) -> Error {
    match lost {
        Lost::NotConnected(what) | Lost::Broken(what) | Lost::Foreign(what) | Lost::Disbelieved { what, .. } => {
            Error::new(ErrorKind::Unreachable, what.clone())
        }
        Lost::LoginRefused(what) => Error::new(ErrorKind::NotAllowed, what.clone()),
        Lost::Late => Error::new(ErrorKind::Timeout, "no reply in time"),
        Lost::Malformed(what) => Error::protocol(what.clone()),
        Lost::TooLarge(size) => {
            let text = format!("the request has {size} bytes, {FRAME_SIZE_MAX} are allowed");
            Error::new(ErrorKind::TooLarge, text)
        }
        Lost::Full => Error::new(ErrorKind::Unavailable, "too many requests wait for a reply on this connection"),
    }
}
