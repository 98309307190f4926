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
//! A cancelled attempt gets no reply. Only attempts that carry a client id and a request id are listed, under their connection,
//! from the moment they wait until they are answered: the list is never longer than what waits, and no cancel reaches what
//! another connection sent (H15, H18, H19).

use crate::outbox::ConnectionId;
use crate::replica::{Caller, Hosted, Origin, PendingWrite, Replica};
use crate::requests::Serving;
use crate::requests::queue::Slot;
use hedgerow_env::Now;
use hedgerow_types::{GroupId, Instant};
use hedgerow_wire::Extension;
use hedgerow_wire::message::Cancel;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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

/// Where an attempt waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsIn {
    /// For its turn.
    Queued(Slot),
    /// In a replica, under this ticket.
    Read(GroupId, u64),
    /// In a replica, in some write.
    Write(GroupId),
    /// For a job that reads, under this ticket (`read_jobs.rs`).
    Aside(u64),
    /// For later, under this number (`throttle.rs`).
    Delayed(u64),
    /// For another node's answer, under this number (`forward.rs`).
    SentOn(u64),
}

/// The attempts that wait and have names, and what cancels did.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// With the number of the request on its connection: a client that gives a name twice can cancel the first only. A tree, since
    /// clients choose the names and could have all of them collide in a hash map (N9).
    places: BTreeMap<(ConnectionId, AttemptName), (i32, WaitsIn)>,
    queued: u64,
    reads: u64,
    writes: u64,
    delayed: u64,
    unknown: u64,
    closed: u64,
}

impl Attempts {
    /// The attempt `name`, request `sequence_id` of its connection, waits at `place` now.
    pub(crate) fn list(&mut self, name: AttemptName, (connection, sequence_id): (ConnectionId, i32), place: WaitsIn) {
        match self.places.entry((connection, name)) {
            Entry::Vacant(vacant) => drop(vacant.insert((sequence_id, place))),
            Entry::Occupied(mut known) if known.get().0 == sequence_id => known.get_mut().1 = place,
            Entry::Occupied(_) => {}
        }
    }

    /// The same for one that has a name or not.
    pub(crate) fn list_caller(&mut self, caller: &Caller, place: WaitsIn) {
        if let Some(name) = caller.name {
            self.list(name, (caller.connection, caller.sequence_id), place);
        }
    }

    /// The attempt waits no more.
    pub(crate) fn forget(&mut self, caller: &Caller) {
        if let Some(name) = caller.name
            && let Entry::Occupied(known) = self.places.entry((caller.connection, name))
            && known.get().0 == caller.sequence_id
        {
            known.remove();
        }
    }

    /// Who has listed what.
    #[cfg(feature = "mutations")]
    pub(crate) fn names(&self) -> impl Iterator<Item = (ConnectionId, AttemptName)> {
        self.places.keys().copied()
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "listed": self.places.len(),
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
    fn into_caller(self) -> Option<Caller> {
        match self {
            Self::Client(caller) => Some(*caller),
            Self::Metadata(_) => None,
        }
    }

    fn is(&self, (connection, sequence_id): (ConnectionId, i32)) -> bool {
        match self {
            Self::Client(caller) => caller.connection == connection && caller.sequence_id == sequence_id,
            Self::Metadata(_) => false,
        }
    }
}

impl Replica {
    /// Takes out who waits for a write. The write itself stays, and so do others who wait for it.
    fn forget_writer(&mut self, writer: (ConnectionId, i32)) -> Option<Origin> {
        let is_waited_for = |write: &PendingWrite| write.origins().any(|origin| origin.is(writer));
        let (index, write) = self.writes.iter_mut().find(|(_, write)| is_waited_for(write))?;
        if let Some(at) = write.others.iter().position(|origin| origin.is(writer)) {
            return Some(write.others.swap_remove(at));
        }
        if let Some(next) = write.others.pop() {
            return Some(std::mem::replace(&mut write.origin, next));
        }
        let index = *index;
        self.writes.remove(&index).map(|write| write.origin)
    }
}

impl Serving<'_> {
    /// A client wants an attempt's answer no more, or those of all attempts of a request.
    pub(crate) fn handle_cancel(&mut self, connection: ConnectionId, cancel: &Cancel, now: Now) {
        let numbers = cancel.attempt.map_or(1..=ATTEMPTS_MAX, |attempt| attempt..=attempt);
        let name = |attempt| AttemptName { client: cancel.client_id, request: cancel.request_id, attempt };
        #[cfg(feature = "mutations")]
        let (connection, name) = {
            let (connection, mistaken) = self.cancelled(connection, name(cancel.attempt.unwrap_or(1)));
            (connection, move |attempt| AttemptName { attempt, ..mistaken })
        };
        let found = numbers.filter(|attempt| self.take_back(connection, name(*attempt), now.instant)).count();
        if found == 0 {
            self.requests.attempts.unknown += 1;
        }
    }

    /// Lets go of an attempt, wherever it waits. Returns whether it did.
    pub(crate) fn take_back(&mut self, connection: ConnectionId, name: AttemptName, now: Instant) -> bool {
        let Some((sequence_id, place)) = self.requests.attempts.places.get(&(connection, name)).copied() else {
            return false;
        };
        let counts = &mut self.requests.attempts;
        let count = match place {
            WaitsIn::Queued(_) => &mut counts.queued,
            WaitsIn::Read(..) | WaitsIn::Aside(_) => &mut counts.reads,
            WaitsIn::Write(_) | WaitsIn::SentOn(_) => &mut counts.writes,
            WaitsIn::Delayed(_) => &mut counts.delayed,
        };
        *count += 1;
        let caller = match place {
            WaitsIn::Queued(slot) => self.requests.queue.take(slot).map(|queued| {
                self.requests.ties.unlist(queued.tie.as_deref());
                queued.caller
            }),
            WaitsIn::Read(group, ticket) => self.replicas.running(group).and_then(|replica| {
                replica.group.cancel_read(ticket);
                replica.reads.remove(&ticket).and_then(|read| read.origin.into_caller())
            }),
            WaitsIn::Write(group) => {
                let origin = self.replicas.running(group).and_then(|it| it.forget_writer((connection, sequence_id)));
                origin.and_then(Origin::into_caller)
            }
            WaitsIn::Aside(ticket) => self.requests.read_jobs.remove(ticket),
            WaitsIn::Delayed(number) => self.requests.throttles.remove(number),
            WaitsIn::SentOn(id) => self.requests.forwards.remove(id),
        };
        caller.map(|caller| self.leave_unanswered(caller, now)).is_some()
    }

    /// A client's request ends without an answer. A page of a scan can be asked for again.
    pub(crate) fn leave_unanswered(&mut self, mut caller: Caller, now: Instant) {
        self.put_back_page(&mut caller, now);
        self.requests.load.forget();
        self.requests.attempts.forget(&caller);
    }

    /// Takes the reads back that wait for an index or a job and came over `connection`.
    pub(crate) fn take_waiting_reads(&mut self, connection: ConnectionId) -> Vec<Caller> {
        let mut taken = self.requests.read_jobs.remove_of(connection);
        for hosted in self.replicas.hosted.values_mut() {
            let Hosted::Running(replica) = hosted else { continue };
            let is_of = |origin: &Origin| matches!(origin, Origin::Client(it) if it.connection == connection);
            let tickets = replica.reads.iter().filter(|(_, read)| is_of(&read.origin)).map(|(ticket, _)| *ticket);
            for ticket in tickets.collect::<Vec<u64>>() {
                replica.group.cancel_read(ticket);
                taken.extend(replica.reads.remove(&ticket).and_then(|read| read.origin.into_caller()));
            }
        }
        taken
    }

    /// A client's connection is gone: its reads need not be served. Its writes stay, and are answered into nothing.
    pub(crate) fn drop_reads_of(&mut self, connection: ConnectionId) {
        let mut gone: Vec<Caller> = Vec::new();
        for queued in self.requests.queue.take_of(connection) {
            self.requests.ties.unlist(queued.tie.as_deref());
            gone.push(queued.caller);
        }
        gone.extend(self.take_waiting_reads(connection));
        self.requests.attempts.closed += gone.len() as u64;
        for caller in gone {
            self.requests.load.forget();
            self.requests.attempts.forget(&caller);
        }
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

    /// A hash map compared each of these names with all others. No clock is looked at: with such a map this test takes
    /// minutes.
    #[test]
    fn n9_names_that_collide_under_a_known_hash_are_listed_as_fast_as_others() {
        const COUNT: u64 = 300_000;
        let mut attempts = Attempts::default();
        for name in colliding_names(COUNT) {
            attempts.list(name, (ConnectionId(1), 5), WaitsIn::Aside(3));
        }
        assert_eq!(attempts.to_json()["listed"], COUNT);
        for name in colliding_names(COUNT) {
            attempts.list(name, (ConnectionId(1), 5), WaitsIn::Aside(4));
        }
        assert_eq!(attempts.to_json()["listed"], COUNT);
        assert!(attempts.places.values().all(|place| *place == (5, WaitsIn::Aside(4))));
    }
}
