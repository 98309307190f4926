//! Attempts that can be taken back: where each is, and what taking it back means there.
//!
//! | where it waits | what a cancel does |
//! |---|---|
//! | for its turn | it is gone, unrun |
//! | for an index, a quorum or an apply (reads) | the read is gone |
//! | for a job that reads | the read is gone, and the job ends soon |
//! | for its outcome (writes), here or at the leader's node | nobody is told; the write itself stays |
//! | for later, by the table's limit on extra attempts | it is gone, unrun |
//! | nowhere: unknown, answered, another connection's | nothing |
//!
//! A cancelled attempt gets no reply. Attempts that carry a client id and a request id can be cancelled by these, and reads and scans by
//! the sequence id that they came with: by their own connection, from the moment they wait until they are answered. So the list is
//! never longer than what waits, and no cancel reaches what another connection sent (H15, H18, H19). Where an attempt waits says `callers.rs`.

use crate::outbox::ConnectionId;
use crate::replica::{Origin, Replica};
use crate::requests::caller::Caller;
use crate::requests::callers::{Kind, RequestId, WaitsIn};
use crate::requests::{Requests, Serving};
use hedgerow_env::Now;
use hedgerow_types::{Index, Instant};
use hedgerow_wire::Extension;
use hedgerow_wire::message::Cancel;
use serde_json::{Value, json};

/// A cancel that names no attempt means those up to this number.
const ATTEMPTS_MAX: i32 = 16;

/// An attempt as its client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttemptName {
    pub(crate) client: u64,
    pub(crate) request: u64,
    pub(crate) attempt: i32,
}

impl AttemptName {
    /// The name that a request carries; one without a number is the first attempt.
    pub(crate) fn of(extension: &Extension) -> Option<Self> {
        let (client, request) = (extension.client_id?, extension.request_id?);
        Some(Self { client, request, attempt: extension.attempt.unwrap_or(1) })
    }
}

/// What cancels and closed connections did.
#[derive(Debug, Default)]
pub(crate) struct CancelCounts {
    queued: u64,
    reads: u64,
    writes: u64,
    delayed: u64,
    /// May be negative: all shards' together are not.
    unknown: i64,
    closed: u64,
}

impl CancelCounts {
    /// With how many requests can be cancelled now.
    pub(crate) fn to_json(&self, listed: usize) -> Value {
        json!({
            "listed": listed,
            "queued": self.queued,
            "waiting_reads": self.reads,
            "waiting_writes": self.writes,
            "delayed": self.delayed,
            "unknown": self.unknown,
            "connection_closed": self.closed,
        })
    }
}

impl Origin {
    fn is(&self, request: RequestId) -> bool {
        matches!(self, Self::Client { id, .. } if *id == request)
    }
}

impl Replica {
    /// `request` waits for the write at `index` no more. The write itself stays, and so do others who wait for it.
    fn forget_writer(&mut self, index: Index, request: RequestId) {
        let Some(write) = self.writes.get_mut(&index) else { return };
        if let Some(at) = write.others.iter().position(|origin| origin.is(request)) {
            write.others.swap_remove(at);
        } else if write.origin.is(request) {
            match write.others.pop() {
                Some(next) => write.origin = next,
                None => drop(self.writes.remove(&index)),
            }
        }
    }
}

impl Requests {
    /// A client took something back, which waits in one shard at most: one of them counts that, and whichever has found it.
    pub(crate) fn note_cancel(&mut self, counts: bool, has_found: bool) {
        self.cancels.unknown += i64::from(counts) - i64::from(has_found);
    }
}

impl Serving<'_> {
    /// A client wants an attempt's answer no more, or those of all attempts of a request. Whether one of them waits here.
    pub(crate) fn handle_cancel(&mut self, connection: ConnectionId, cancel: &Cancel, now: Now) -> bool {
        if let Some(sequence_id) = cancel.sequence_id {
            let found = self.requests.callers.numbered_read(connection, sequence_id);
            return found.is_some_and(|(id, waits_in)| self.take_from(id, waits_in, now.instant));
        }
        let numbers = cancel.attempt.map_or(1..=ATTEMPTS_MAX, |attempt| attempt..=attempt);
        let name = |attempt| AttemptName { client: cancel.client_id, request: cancel.request_id, attempt };
        #[cfg(feature = "mutations")]
        let (connection, name) = {
            let (connection, mistaken) = self.cancelled(connection, name(cancel.attempt.unwrap_or(1)));
            (connection, move |attempt| AttemptName { attempt, ..mistaken })
        };
        numbers.filter(|attempt| self.take_back(connection, name(*attempt), now.instant)).count() > 0
    }

    /// Lets go of an attempt, wherever it waits. Returns whether it did.
    pub(crate) fn take_back(&mut self, connection: ConnectionId, name: AttemptName, now: Instant) -> bool {
        let found = self.requests.callers.named(connection, name);
        found.is_some_and(|(id, waits_in)| self.take_from(id, waits_in, now))
    }

    fn take_from(&mut self, id: RequestId, waits_in: WaitsIn, now: Instant) -> bool {
        let counts = &mut self.requests.cancels;
        match waits_in {
            WaitsIn::Service => return false,
            WaitsIn::Queued(_) => counts.queued += 1,
            WaitsIn::Read(..) | WaitsIn::Aside(_) => counts.reads += 1,
            WaitsIn::Write(..) | WaitsIn::SentOn(_) => counts.writes += 1,
            WaitsIn::Delayed(_) => counts.delayed += 1,
        }
        self.release(id, waits_in).map(|caller| self.leave_unanswered(caller, now)).is_some()
    }

    /// Takes a request from where it waits.
    fn release(&mut self, id: RequestId, waits_in: WaitsIn) -> Option<Caller> {
        match waits_in {
            WaitsIn::Service => {}
            WaitsIn::Queued(slot) => {
                if let Some(queued) = self.requests.queue.take(slot) {
                    self.requests.ties.unlist(queued.tie.as_deref());
                }
            }
            WaitsIn::Read(group, ticket) => {
                if let Some(replica) = self.replicas.running(group) {
                    replica.group.cancel_read(ticket);
                    replica.reads.remove(&ticket);
                }
            }
            WaitsIn::Write(group, index) => {
                if let Some(replica) = self.replicas.running(group) {
                    replica.forget_writer(index, id);
                }
            }
            WaitsIn::Aside(ticket) => self.requests.read_jobs.remove(ticket),
            WaitsIn::Delayed(number) => self.requests.throttles.remove(number),
            WaitsIn::SentOn(number) => self.requests.forwards.remove(number),
        }
        self.requests.callers.remove(id)
    }

    /// A client's request ends without an answer. A page of a scan can be asked for again.
    pub(crate) fn leave_unanswered(&mut self, mut caller: Caller, now: Instant) {
        self.put_back_page(&mut caller, now);
        self.requests.load.forget();
    }

    /// Takes the reads back that came over `connection` and wait, be it for their turn, an index or a job.
    pub(crate) fn take_reads_of(&mut self, connection: ConnectionId) -> Vec<Caller> {
        self.take_of(connection, Kind::Read, |waits_in| !matches!(waits_in, WaitsIn::Delayed(_)))
    }

    fn take_of(&mut self, connection: ConnectionId, kind: Kind, is_taken: impl Fn(WaitsIn) -> bool) -> Vec<Caller> {
        let listed = self.requests.callers.of(connection, kind);
        let taken = listed.into_iter().filter(|(_, waits_in)| is_taken(*waits_in));
        taken.filter_map(|(id, waits_in)| self.release(id, waits_in)).collect()
    }

    /// A client's connection is gone: what it asked for need not be done. Writes that are in a log stay, and are answered into nothing.
    pub(crate) fn drop_requests_of(&mut self, connection: ConnectionId) {
        let mut gone = self.take_of(connection, Kind::Read, |_| true);
        gone.extend(self.take_of(connection, Kind::Write, |waits_in| !matches!(waits_in, WaitsIn::Write(..))));
        self.requests.cancels.closed += gone.len() as u64;
        gone.iter().for_each(|_| self.requests.load.forget());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Names of attempts that clients can choose, all of which `rustc_hash` sends to the same place of a hash map: it multiplies
    /// a request's number twice by a constant, and these numbers are multiples of the inverse of its square.
    pub(crate) fn colliding_names(count: u64) -> impl Iterator<Item = AttemptName> {
        const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;
        // Each step doubles the number of right bits, of which there are three at first.
        let inverse = (0..5)
            .fold(MULTIPLIER, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse))));
        assert_eq!(inverse.wrapping_mul(MULTIPLIER), 1);
        let request = move |number: u64| number.wrapping_mul(inverse).wrapping_mul(inverse);
        (0..count).map(move |number| AttemptName { client: 7, request: request(number), attempt: 2 })
    }
}
