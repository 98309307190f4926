//! The client's selector: shared by all its tables, and told about every request that it chose for.

use crate::lock::lock;
use crate::lost::Lost;
use crate::runtime::now;
use crate::time::micros;
use hedgerow_routing::{Address, Candidate, Choice, Expected, Failure, Labels, ReplicaLoad, Selector};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Refusal};
use hedgerow_wire::{Body, ReplyExtension};
use std::sync::Mutex;
use tokio::time::Instant;

/// Bytes that a row is taken to have while nothing was read.
const ROW_SIZE: usize = 256;

#[derive(Debug)]
pub(crate) struct Selection {
    /// The zero of the selector's clock.
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    selector: Selector,
    random: Random,
}

impl Selection {
    pub(crate) fn new(labels: Labels, random: Random) -> Self {
        Self { origin: now(), state: Mutex::new(State { selector: Selector::new(labels), random }) }
    }

    pub(crate) fn set_places(&self, places: impl Iterator<Item = (Address, Labels)>) {
        let mut state = lock(&self.state);
        for (address, labels) in places {
            state.selector.set_node_labels(address, &labels);
        }
    }

    pub(crate) fn choose(&self, choice: &Choice<'_>, now: Instant) -> Option<Address> {
        let now = self.at(now);
        let state = &mut *lock(&self.state);
        state.selector.choose(choice, now, &mut state.random)
    }

    /// As [`Selection::choose`], and all that it has chosen from.
    pub(crate) fn offer(&self, choice: &Choice<'_>, now: Instant) -> (Option<Address>, Vec<Candidate>) {
        let now = self.at(now);
        let State { selector, random } = &mut *lock(&self.state);
        (selector.choose(choice, now, random), selector.candidates(choice, now))
    }

    /// A read leaves for `address`. What becomes of it is to be told to the result; dropped, it counts as given up.
    pub(crate) fn send(&self, group: GroupId, address: Address) -> Sent<'_> {
        self.send_at(group, address, now())
    }

    /// As [`Selection::send`], for a caller who knows the time.
    pub(crate) fn send_at(&self, group: GroupId, address: Address, at: Instant) -> Sent<'_> {
        lock(&self.state).selector.note_sent(address, self.at(at));
        Sent { selection: self, group, address, at, is_over: false }
    }

    pub(crate) fn expected(&self, address: Address, now: Instant) -> Option<Expected> {
        lock(&self.state).selector.expected(address, self.at(now))
    }

    fn at(&self, now: Instant) -> hedgerow_types::Instant {
        hedgerow_types::Instant::ZERO + now.saturating_duration_since(self.origin)
    }
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    selection: &'a Selection,
    group: GroupId,
    address: Address,
    at: Instant,
    is_over: bool,
}

impl Sent<'_> {
    pub(crate) fn served(mut self, extension: Option<&ReplyExtension>) {
        self.is_over = true;
        let load = extension.map(|extension| ReplicaLoad {
            in_flight: u32::try_from(extension.requests_in_flight).unwrap_or(0),
            service: micros(extension.service_us),
            queue: micros(extension.queue_us),
        });
        let now = now();
        let latency = now.saturating_duration_since(self.at);
        let selector = &mut lock(&self.selection.state).selector;
        selector.note_reply(self.group, self.address, latency, load, self.selection.at(now));
    }

    pub(crate) fn refused(mut self, refusal: &Refusal) {
        self.failed(Failure::Refused(refusal));
    }

    pub(crate) fn lost(mut self, lost: &Lost) {
        self.failed(lost.failure());
    }

    fn failed(&mut self, failure: Failure<'_>) {
        self.is_over = true;
        let now = self.selection.at(now());
        lock(&self.selection.state).selector.note_failed(self.group, self.address, failure, now);
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let now = now();
            let waited = now.saturating_duration_since(self.at);
            lock(&self.selection.state).selector.note_cancelled(self.address, waited, self.selection.at(now));
        }
    }
}

/// Roughly how many bytes the reply to `body` will have.
pub(crate) fn size_hint(body: &Body) -> usize {
    let rows = match body {
        Body::GetScanner(scan) => usize::try_from(scan.batch_size).unwrap_or(1),
        Body::MultiGet(get) if get.sort_keys.is_empty() => usize::try_from(get.max_kv_count).unwrap_or(1),
        Body::MultiGet(get) => get.sort_keys.len(),
        Body::BatchGet(get) => get.keys.len(),
        _ => 1,
    };
    rows.saturating_mul(ROW_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pitfalls R14 and R17: whichever way a read ends, also when its caller no longer waits.
    #[tokio::test]
    async fn r14_a_read_that_is_dropped_is_counted_as_over() {
        let selection = Selection::new(Labels::default(), Random::new(1));
        let address: Address = "127.0.0.1:1".parse().expect("an address");
        let in_flight = || lock(&selection.state).selector.in_flight(address);
        let ends: [fn(Sent<'_>); 4] = [
            |sent| drop(sent),
            |sent| sent.served(None),
            |sent| sent.refused(&Refusal::Expired),
            |sent| sent.lost(&Lost::Late),
        ];
        for end in ends {
            let sent = selection.send(GroupId::new(1, 0), address);
            assert_eq!(in_flight(), 1);
            end(sent);
            assert_eq!(in_flight(), 0);
        }
    }
}
