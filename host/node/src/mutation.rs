//! Switches that take a safety rule away, so that tests can show that they would notice.

use crate::outbox::ConnectionId;
use crate::peer::Refused;
use crate::requests::Serving;
use crate::requests::cancel::AttemptName;
use hedgerow_env::Now;
use hedgerow_types::Instant;
use hedgerow_types::log::LogPosition;
use hedgerow_wire::Header;
use std::sync::atomic::{AtomicBool, Ordering};

/// While true, a read that waited for its turn is judged by the clock of its arrival.
pub static CHECK_ON_ARRIVAL: AtomicBool = AtomicBool::new(false);
/// While true, a cancel takes back what any client sent under the same numbers.
pub static CANCEL_ANYBODYS: AtomicBool = AtomicBool::new(false);
/// While true, a tied attempt that has begun is dropped when the other one begins.
pub static DROP_BEGUN: AtomicBool = AtomicBool::new(false);
/// While true, a write that is sent on to its leader loses its number.
pub static FORGET_NUMBER: AtomicBool = AtomicBool::new(false);

/// While true, a log is cut as far as its replica has applied it, flushed or not.
pub static CUT_EARLY: AtomicBool = AtomicBool::new(false);
/// While true, a copy of a node's data is listened to.
pub static LISTEN_TO_COPIES: AtomicBool = AtomicBool::new(false);
/// While true, each node goes by its own wall clock.
pub static TRUST_OWN_CLOCK: AtomicBool = AtomicBool::new(false);

fn is_set(switch: &AtomicBool) -> bool {
    switch.load(Ordering::SeqCst)
}

/// By which moment a read is judged whose turn has come `now`.
pub(crate) fn judged_at(now: Instant, arrival: Instant) -> Instant {
    if is_set(&CHECK_ON_ARRIVAL) { arrival } else { now }
}

/// The time for an event that came when this node's own clocks showed `own`.
pub(crate) fn agreed(agreed: Now, own: Now) -> Now {
    if is_set(&TRUST_OWN_CLOCK) { own } else { agreed }
}

/// Whether copies are listened to.
pub(crate) fn listens_to_copies() -> bool {
    is_set(&LISTEN_TO_COPIES)
}

/// What comes of a greeting, or of what follows it.
pub(crate) fn listened(met: Result<(), Refused>) -> Result<(), Refused> {
    if listens_to_copies() { Ok(()) } else { met }
}

/// Up to where the log of a replica is cut.
pub(crate) fn cut_at(mark: LogPosition, applied: LogPosition) -> LogPosition {
    if is_set(&CUT_EARLY) { applied } else { mark }
}

/// The header of a write that was sent on.
pub(crate) fn sent_on(mut header: Header) -> Header {
    if is_set(&FORGET_NUMBER)
        && let Some(extension) = &mut header.extension
    {
        extension.sequence = None;
    }
    header
}

impl Serving<'_> {
    /// Whom a cancel reaches.
    pub(crate) fn cancelled(&self, connection: ConnectionId, name: AttemptName) -> (ConnectionId, AttemptName) {
        let is_like = |other: &AttemptName| (other.request, other.attempt) == (name.request, name.attempt);
        let mut listed = self.requests.attempts().filter(|(_, other)| other.client != name.client && is_like(other));
        if is_set(&CANCEL_ANYBODYS) { listed.next().unwrap_or((connection, name)) } else { (connection, name) }
    }

    /// The other attempt has begun, and this one had before.
    pub(crate) fn drop_begun(&mut self, name: AttemptName, now: Instant) {
        let listed = self.requests.attempts().find(|(_, other)| *other == name);
        if is_set(&DROP_BEGUN)
            && let Some((connection, name)) = listed
        {
            self.take_back(connection, name, now);
        }
    }
}
