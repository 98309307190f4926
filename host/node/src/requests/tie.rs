//! Two attempts that know of each other: whoever begins tells the other's node, which drops its copy if that has not begun.
//!
//! ```text
//!   client ── attempt 1, tied to 2 at B ──> A: queued ... begins ── Began(2) ──┐
//!        └─── attempt 2, tied to 1 at A ──> B: queued ────────── Withdrawn <───┘
//! ```
//!
//! Nothing that has begun is ever dropped. So somebody always runs: a copy is dropped only for another that has begun, and two
//! that begin within the message's flight time both run (H16, H17). Nobody waits for the message either: where it is lost, both
//! run. Only the node that a queued copy names can have it dropped (H19).

use crate::peer::{Began, Frame};
use crate::requests::Serving;
use crate::requests::caller::Caller;
use crate::requests::cancel::AttemptName;
use crate::requests::queue::Slot;
use hedgerow_env::Now;
use hedgerow_types::{Instant, NodeId, Refusal};
use hedgerow_wire::{Header, Tie};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time for which it is remembered that an attempt began, here or elsewhere. The other copy comes a stagger later, which is
/// about two flights of a message.
const MEMORY: Duration = Duration::from_secs(1);
/// Attempts that are remembered at most, the oldest forgotten first. At worst both copies of a request run.
const REMEMBERED_MAX: usize = 4_096;

/// What an attempt knows of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tied {
    /// The attempt itself.
    name: AttemptName,
    /// Where the other one is.
    peer: NodeId,
    /// The other one's number.
    other: i32,
}

/// The tied attempts that are queued, and those that began lately.
#[derive(Debug, Default)]
pub(crate) struct Ties {
    /// A tree, like that of [`Recent`], since clients choose the names and could have all of them collide in a hash map (N9).
    queued: BTreeMap<AttemptName, Slot>,
    /// Attempts that need not begin here, with the node that said so: they may be on their way.
    early: Recent,
    /// Attempts that have begun here.
    begun: Recent,
    begun_count: u64,
    told: u64,
    in_time: u64,
    on_arrival: u64,
    too_late: u64,
}

impl Ties {
    /// The tied attempt waits for its turn.
    pub(crate) fn list(&mut self, tie: &Tied, slot: Slot) {
        self.queued.entry(tie.name).or_insert(slot);
    }

    /// It does so no more.
    pub(crate) fn unlist(&mut self, tie: Option<&Tied>) {
        if let Some(tie) = tie {
            self.queued.remove(&tie.name);
        }
    }

    /// Whether the other attempt is known to have begun before this one came.
    pub(crate) fn take_early(&mut self, tie: &Tied, now: Instant) -> bool {
        let is_early = self.early.take(tie.name, tie.peer, now);
        self.on_arrival += u64::from(is_early);
        is_early
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "begun": self.begun_count,
            "cancels_sent": self.told,
            "cancels_in_time": self.in_time,
            "cancels_on_arrival": self.on_arrival,
            "cancels_too_late": self.too_late,
        })
    }
}

impl Serving<'_> {
    /// What `caller`'s request says of the other attempt, if it is tied to one at a node that is known.
    pub(crate) fn tie_of(&self, header: &Header, caller: &Caller) -> Option<Box<Tied>> {
        let tie = header.extension.as_ref()?.tie.clone()?;
        let (name, tie) = (caller.name?, Tie::decode(tie).ok()?);
        let peer = self.view.node_at(tie.peer.as_str())?;
        Some(Box::new(Tied { name, peer, other: tie.attempt }))
    }

    /// A tied attempt has begun here.
    pub(crate) fn begin_tied(&mut self, tie: &Tied, now: Now) {
        self.requests.ties.begun_count += 1;
        self.requests.ties.begun.insert(tie.name, tie.peer, now.instant);
        let AttemptName { client, request, .. } = tie.name;
        let began = Began { client_id: client, request_id: request, attempt: tie.other };
        if tie.peer == self.config.node {
            return self.handle_began(tie.peer, began, now);
        }
        self.requests.ties.told += 1;
        self.send(tie.peer, &Frame::Began(began));
    }

    /// Another node has begun the other attempt of a tied request: `began` names the one that need not begin here.
    pub(crate) fn handle_began(&mut self, from: NodeId, began: Began, now: Now) {
        let Began { client_id, request_id, attempt } = began;
        let name = AttemptName { client: client_id, request: request_id, attempt };
        if let Some(slot) = self.requests.ties.queued.get(&name).copied() {
            let is_named =
                self.requests.queue.get(slot).and_then(|it| it.tie.as_ref()).is_some_and(|tie| tie.peer == from);
            if is_named && let Some(queued) = self.requests.queue.take(slot) {
                self.requests.ties.in_time += 1;
                self.refuse_queued(queued, &Refusal::Withdrawn, now);
            }
        } else if self.requests.ties.begun.take(name, from, now.instant) {
            self.requests.ties.too_late += 1;
            #[cfg(feature = "mutations")]
            self.drop_begun(name, now.instant);
        } else {
            self.requests.ties.early.insert(name, from, now.instant);
        }
    }
}

/// Names of attempts, each with a node, for a while.
#[derive(Debug, Default)]
struct Recent {
    nodes: BTreeMap<AttemptName, (Instant, NodeId)>,
    order: VecDeque<(Instant, AttemptName)>,
}

impl Recent {
    fn insert(&mut self, name: AttemptName, node: NodeId, now: Instant) {
        self.expire(now);
        if self.order.len() >= REMEMBERED_MAX {
            self.drop_oldest();
        }
        self.nodes.insert(name, (now, node));
        self.order.push_back((now, name));
    }

    /// Whether `name` is there with `node`; it is not any more.
    fn take(&mut self, name: AttemptName, node: NodeId, now: Instant) -> bool {
        self.expire(now);
        let is_there = self.nodes.get(&name).is_some_and(|(_, known)| *known == node);
        is_there && self.nodes.remove(&name).is_some()
    }

    fn expire(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now.since(*at) > MEMORY) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((at, name)) = self.order.pop_front()
            && self.nodes.get(&name).is_some_and(|(known, _)| *known == at)
        {
            self.nodes.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::ConnectionId;
    use crate::requests::callers::{Callers, WaitsIn};
    use crate::requests::cancel::tests::colliding_names;
    use crate::requests::queue::{Lane, Queue, Queued};
    use crate::requests::reads::Terms;
    use crate::shared_bound::SharedBound;
    use bytes::Bytes;
    use hedgerow_types::op::Read;
    use hedgerow_wire::Method;
    use std::sync::Arc;

    fn name(request: u64) -> AttemptName {
        AttemptName { client: 7, request, attempt: 2 }
    }

    fn at(millis: u64) -> Instant {
        Instant((10_000 + millis) * 1_000_000)
    }

    #[test]
    fn what_began_is_remembered_for_a_second_and_taken_once() {
        let mut recent = Recent::default();
        recent.insert(name(1), NodeId(3), at(0));
        assert!(!recent.take(name(1), NodeId(4), at(1)), "another node's word");
        assert!(!recent.take(name(2), NodeId(3), at(1)));
        assert!(recent.take(name(1), NodeId(3), at(1_000)));
        assert!(!recent.take(name(1), NodeId(3), at(1_000)));
        recent.insert(name(1), NodeId(3), at(1_000));
        assert!(!recent.take(name(1), NodeId(3), at(2_001)));
        assert!(recent.order.is_empty() && recent.nodes.is_empty());
    }

    #[test]
    fn h18_a_million_ties_take_the_memory_of_a_few_thousand() {
        let mut recent = Recent::default();
        for request in 0..1_000_000 {
            recent.insert(name(request), NodeId(1), at(request / 100_000));
        }
        assert_eq!((recent.nodes.len(), recent.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(recent.order.capacity() <= 4 * REMEMBERED_MAX);
        assert!(recent.take(name(999_999), NodeId(1), at(10)));
    }

    /// A hash map compared each of these names with all others. No clock is looked at: with such a map this test takes
    /// minutes.
    #[test]
    fn n9_ties_whose_names_collide_under_a_known_hash_cost_no_more_than_others() {
        const COUNT: u64 = 300_000;
        let now = Now { instant: at(0), unix_micros: 1 };
        let connection = ConnectionId(1);
        let id = Callers::default()
            .insert(Caller::of(connection, &Header::default(), 1, Method::Get, now), WaitsIn::Service);
        let read = Read::Get { key: Bytes::new() };
        let queued = Queued { id, read, terms: Terms::AT_LEADER, tie: None, bytes: 7, has_come_back: false };
        let mut queue = Queue::new(SharedBound::new(&Arc::default(), 1_000, 1));
        let slot = queue.push(Lane::First, connection, queued);
        let (mut ties, mut recent) = (Ties::default(), Recent::default());
        let tied = |name| Tied { name, peer: NodeId(1), other: 1 };
        for name in colliding_names(COUNT) {
            ties.list(&tied(name), slot);
            recent.insert(name, NodeId(1), at(0));
        }
        assert_eq!((ties.queued.len() as u64, recent.nodes.len()), (COUNT, REMEMBERED_MAX));
        colliding_names(COUNT).for_each(|name| ties.unlist(Some(&tied(name))));
        assert!(ties.queued.is_empty());
        let taken = colliding_names(COUNT).filter(|name| recent.take(*name, NodeId(1), at(1))).count();
        assert_eq!((taken, recent.nodes.len()), (REMEMBERED_MAX, 0));
    }
}
