//! What each node was sent and how it answered, for the recorder of the facade [`metrics`] that the program has installed.
//!
//! The crate's documentation lists names and labels, which are an interface. A node's metrics are registered when it is first asked. An
//! attempt then costs two counters and a look at the clock; without the feature `metrics` nothing of this is compiled.

use crate::lost::Lost;
use hedgerow_wire::Reply;
use hedgerow_wire::call::ReplyFrame;

/// How an attempt is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Answered,
    Refused,
    Lost,
    Cancelled,
    Unsent,
}

impl Outcome {
    pub(crate) fn of(result: &Result<ReplyFrame, Lost>) -> Self {
        match result {
            Ok(frame) if matches!(frame.reply, Reply::Failed(_)) => Self::Refused,
            Ok(_) => Self::Answered,
            Err(lost) if lost.may_have_run() => Self::Lost,
            Err(_) => Self::Unsent,
        }
    }
}

#[cfg(feature = "metrics")]
mod recorded {
    use super::Outcome;
    use crate::runtime::now;
    use hedgerow_wire::{Cause, Extension};
    use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};
    use std::net::SocketAddr;
    use tokio::time::Instant;

    const SENT: &str = "hedgerow_client_attempts_total";
    const ENDED: &str = "hedgerow_client_attempts_ended_total";
    const LATENCY: &str = "hedgerow_client_attempt_seconds";
    /// In the order of the causes' numbers, behind those that have none.
    const KINDS: [&str; 1 + Cause::ALL.len()] = ["first", "hedge", "tie", "retry", "fallback"];
    /// In the order of [`Outcome`].
    const OUTCOMES: [&str; 5] = ["answered", "refused", "lost", "cancelled", "unsent"];

    /// What is counted of one node.
    #[derive(Debug)]
    pub(crate) struct NodeMetrics {
        sent: [Counter; KINDS.len()],
        ended: [Counter; OUTCOMES.len()],
        latency: Histogram,
    }

    /// When an attempt was sent.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Started(Instant);

    impl NodeMetrics {
        pub(crate) fn of(address: SocketAddr) -> Self {
            describe_counter!(SENT, Unit::Count, "Attempts sent, by node and kind");
            describe_counter!(ENDED, Unit::Count, "Attempts that are over, by node and outcome");
            describe_histogram!(LATENCY, Unit::Seconds, "Time until an attempt was answered, by node");
            let node = address.to_string();
            Self {
                sent: KINDS.map(|kind| counter!(SENT, "node" => node.clone(), "kind" => kind)),
                ended: OUTCOMES.map(|outcome| counter!(ENDED, "node" => node.clone(), "outcome" => outcome)),
                latency: histogram!(LATENCY, "node" => node),
            }
        }

        /// An attempt that says `extension` is sent.
        pub(crate) fn note_sent(&self, extension: Option<&Extension>, now: Instant) -> Started {
            let cause = extension.and_then(|extension| extension.cause).and_then(|code| usize::try_from(code).ok());
            let kind = cause.filter(|kind| *kind < KINDS.len()).unwrap_or(0);
            self.sent[kind].increment(1);
            Started(now)
        }

        /// One that was sent is over.
        pub(crate) fn note_end(&self, Started(at): Started, outcome: Outcome) {
            self.ended[outcome as usize].increment(1);
            if let Outcome::Answered = outcome {
                self.latency.record(now().saturating_duration_since(at).as_secs_f64());
            }
        }

        /// One could not be sent.
        pub(crate) fn note_unsent(&self) {
            self.ended[Outcome::Unsent as usize].increment(1);
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod recorded {
    use super::Outcome;
    use hedgerow_wire::Extension;
    use std::net::SocketAddr;
    use tokio::time::Instant;

    #[derive(Debug)]
    pub(crate) struct NodeMetrics;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Started;

    impl NodeMetrics {
        pub(crate) fn of(_: SocketAddr) -> Self {
            Self
        }

        pub(crate) fn note_sent(&self, _: Option<&Extension>, _: Instant) -> Started {
            Started
        }

        pub(crate) fn note_end(&self, _: Started, _: Outcome) {}

        pub(crate) fn note_unsent(&self) {}
    }
}

pub(crate) use recorded::{NodeMetrics, Started};
