//! The requests that wait, each in one place: found by number, by connection, and by the name that cancels use.
//!
//! A request is listed here from the moment it waits for anything until it is answered, taken back, or nobody waits for it any more; it
//! leaves once. Whoever holds up a request knows its [`RequestId`] and nothing else of it, so that replicas know no client, and what a
//! cancel or a closed connection costs is what it removes.

use crate::outbox::ConnectionId;
use crate::requests::caller::Caller;
use crate::requests::cancel::AttemptName;
use crate::requests::queue::Slot;
use hedgerow_types::{GroupId, Index};
use hedgerow_wire::Class;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A request that waits. Never used again: what is known under it is that request, or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    place: u32,
    number: u64,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsIn {
    /// Nowhere: it is being served.
    Service,
    /// For its turn.
    Queued(Slot),
    /// In a replica, under this ticket.
    Read(GroupId, u64),
    /// In a replica, in the write at this index.
    Write(GroupId, Index),
    /// For a job that reads, under this ticket (`read_jobs.rs`).
    Aside(u64),
    /// For later, under this number (`throttle.rs`).
    Delayed(u64),
    /// For another node's answer, under this number (`forward.rs`).
    SentOn(u64),
}

/// What a request is to do. A connection's are kept apart: thousands of its writes may wait where its reads are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Read,
    Write,
}

impl Kind {
    fn of(caller: &Caller) -> Self {
        if caller.method.class() == Class::Write { Self::Write } else { Self::Read }
    }
}

const NONE: u32 = u32::MAX;
/// How many of a connection's reads are looked at for one that has a number: that costs less than serving a read. A list by number would
/// cost every read something, and few are taken back so.
const NUMBERED_LOOK_MAX: usize = 1_024;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    places: Vec<Place>,
    /// Places without a request.
    free: Vec<u32>,
    last: u64,
    /// The newest read and the newest write of each connection; the others follow by `older`. Connections are numbered by us, so that nobody
    /// can have them collide (N9).
    newest: FxHashMap<(ConnectionId, Kind), u32>,
    /// Those that have a name. A client that gives a name twice can cancel the first only. A tree, since clients choose the names and
    /// could have all of them collide in a hash map (N9).
    names: BTreeMap<(ConnectionId, AttemptName), RequestId>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    caller: Option<Caller>,
    waits_in: WaitsIn,
    /// Of the same connection and kind.
    older: u32,
    newer: u32,
}

impl Callers {
    /// Lists a request, and where it waits.
    #[inline]
    pub(crate) fn insert(&mut self, caller: Caller, waits_in: WaitsIn) -> RequestId {
        self.last += 1;
        let number = self.last;
        let place = self.free.pop().unwrap_or(self.places.len() as u32);
        let older = self.newest.insert((caller.connection, Kind::of(&caller)), place).unwrap_or(NONE);
        if let Some(older) = self.places.get_mut(older as usize) {
            older.newer = place;
        }
        let id = RequestId { place, number };
        if let Some(name) = caller.name {
            self.names.entry((caller.connection, name)).or_insert(id);
        }
        let listed = Place { number, caller: Some(caller), waits_in, older, newer: NONE };
        match self.places.get_mut(place as usize) {
            Some(free) => *free = listed,
            None => self.places.push(listed),
        }
        id
    }

    fn place(&self, id: RequestId) -> Option<&Place> {
        self.places.get(id.place as usize).filter(|place| place.number == id.number)
    }

    fn place_mut(&mut self, id: RequestId) -> Option<&mut Place> {
        self.places.get_mut(id.place as usize).filter(|place| place.number == id.number)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Caller> {
        self.place(id)?.caller.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Caller> {
        self.place_mut(id)?.caller.as_mut()
    }

    /// Notes where the request waits from now on.
    #[inline]
    pub(crate) fn note(&mut self, id: RequestId, waits_in: WaitsIn) {
        if let Some(place) = self.place_mut(id) {
            place.waits_in = waits_in;
        }
    }

    /// The request waits no more.
    #[inline]
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Caller> {
        let place = self.place_mut(id)?;
        let caller = place.caller.take()?;
        let (older, newer) = (place.older, place.newer);
        if let Some(older) = self.places.get_mut(older as usize) {
            older.newer = newer;
        }
        let list = (caller.connection, Kind::of(&caller));
        match self.places.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None if older == NONE => _ = self.newest.remove(&list),
            None => _ = self.newest.insert(list, older),
        }
        if let Some(name) = caller.name
            && let Entry::Occupied(known) = self.names.entry((caller.connection, name))
            && *known.get() == id
        {
            known.remove();
        }
        self.free.push(id.place);
        Some(caller)
    }

    /// The reads, or the writes, that came on a connection, the oldest first, and where each waits.
    pub(crate) fn of(&self, connection: ConnectionId, kind: Kind) -> Vec<(RequestId, WaitsIn)> {
        let newest = self.newest.get(&(connection, kind)).copied();
        let older = |place: &u32| Some(self.places[*place as usize].older).filter(|older| *older != NONE);
        let listed = |place: u32| {
            let Place { number, waits_in, .. } = self.places[place as usize];
            (RequestId { place, number }, waits_in)
        };
        let mut all: Vec<_> = std::iter::successors(newest, older).map(listed).collect();
        all.reverse();
        all
    }

    /// The read that came on a connection with this sequence id, and where it waits, if it is one of the newest there.
    pub(crate) fn numbered_read(&self, connection: ConnectionId, sequence_id: i32) -> Option<(RequestId, WaitsIn)> {
        let newest = self.newest.get(&(connection, Kind::Read)).copied();
        let older = |place: &u32| Some(self.places[*place as usize].older).filter(|older| *older != NONE);
        let is_meant = |place: &u32| {
            self.places[*place as usize].caller.as_ref().is_some_and(|caller| caller.sequence_id == sequence_id)
        };
        let place = std::iter::successors(newest, older).take(NUMBERED_LOOK_MAX).find(is_meant)?;
        let Place { number, waits_in, .. } = self.places[place as usize];
        Some((RequestId { place, number }, waits_in))
    }

    /// The request that a connection's client calls so, and where it waits.
    pub(crate) fn named(&self, connection: ConnectionId, name: AttemptName) -> Option<(RequestId, WaitsIn)> {
        let id = *self.names.get(&(connection, name))?;
        self.place(id).map(|place| (id, place.waits_in))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// How many can be cancelled.
    pub(crate) fn named_count(&self) -> usize {
        self.names.len()
    }

    /// Who can cancel what.
    #[cfg(feature = "mutations")]
    pub(crate) fn names(&self) -> impl Iterator<Item = (ConnectionId, AttemptName)> {
        self.names.keys().copied()
    }
}

#[cfg(test)]
#[path = "callers/tests.rs"]
mod tests;
