//! Reads that wait for their turn.
//!
//! ```text
//!   frames of all connections                       Node::drive
//!   ───────────┬────────────> first attempts ──┐
//!              │ refused at once:              ├──> up to `reads_per_turn`: first attempts first, oldest first
//!              │ NotLeader, BusyFor, Busy  ┌───┘
//!              └────────────> extra attempts       what is left waits for the next turn; connections are read before it
//! ```
//!
//! What is refused whatever the load is refused on arrival, however long the queue: a full queue hides nothing that the node
//! knows (R1). What is queued is checked again when its turn comes, by the clock of that moment.
//!
//! A request is small and its reply may be large, so that bytes bound a turn too, and what its caller's connection has no room for
//! is refused ([`Serving::refuse_unread`]): whoever asks for more than it reads takes no more memory than it was granted.

use crate::config::{EXTRA_READS_QUEUED_MAX, READS_QUEUED_BYTES_MAX, READS_QUEUED_MAX};
use crate::outbox::ConnectionId;
use crate::replica::{Caller, Hosted};
use crate::requests::Requests;
use crate::requests::Serving;
use crate::requests::read_jobs::list_size;
use crate::requests::reads::Terms;
use crate::requests::tie::Tied;
use hedgerow_env::Now;
use hedgerow_placement::Settings;
use hedgerow_types::op::Read;
use hedgerow_types::{GroupId, Refusal};
use hedgerow_wire::Header;
use serde_json::{Value, json};
use std::time::Duration;

/// A read in a larger frame does not keep it while it waits.
const FRAME_KEPT_MAX: usize = 4 << 10;
/// Reads that have waited for a job's place and are served in one turn, beside others.
const WAITING_PER_TURN: usize = 32;

/// A read that waits for its turn.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) caller: Caller,
    pub(crate) read: Read,
    pub(crate) terms: Terms,
    /// The other attempt, if this one is tied to one.
    pub(crate) tie: Option<Box<Tied>>,
    /// What it keeps in memory.
    pub(crate) bytes: usize,
}

/// Where a read waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// First attempts.
    First,
    /// Attempts beside others; they wait until there are no first ones.
    Extra,
}

impl Lane {
    pub(crate) fn of(caller: &Caller) -> Self {
        if caller.is_extra { Self::Extra } else { Self::First }
    }
}

/// The place of a read in the queue, until it has left it; then another may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

const NONE: u32 = u32::MAX;

/// Two lanes over common places. A read can leave from the middle; its place is free at once.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Vec<Place>,
    /// First free place; the others follow by `after`.
    free: u32,
    lanes: [Ends; 2],
    /// What all keep in memory.
    bytes: usize,
}

#[derive(Debug)]
struct Place {
    before: u32,
    after: u32,
    lane: Lane,
    queued: Option<Queued>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    count: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { places: Vec::new(), free: NONE, lanes: [Ends { oldest: NONE, newest: NONE, count: 0 }; 2], bytes: 0 }
    }
}

impl Queue {
    pub(crate) fn count(&self, lane: Lane) -> usize {
        self.lanes[lane as usize].count
    }

    fn total(&self) -> usize {
        self.lanes.iter().map(|ends| ends.count).sum()
    }

    /// Whether one more read that keeps so many bytes is too much.
    fn is_full(&self, bytes: usize) -> bool {
        let total = self.total();
        total >= READS_QUEUED_MAX || (total > 0 && self.bytes + bytes > READS_QUEUED_BYTES_MAX)
    }

    /// Adds a read behind all others of its lane.
    #[inline]
    pub(crate) fn push(&mut self, lane: Lane, queued: Queued) -> Slot {
        let before = self.lanes[lane as usize].newest;
        self.bytes += queued.bytes;
        let at = if self.free == NONE {
            self.places.push(Place { before, after: NONE, lane, queued: Some(queued) });
            self.places.len() as u32 - 1
        } else {
            let at = self.free;
            let place = &mut self.places[at as usize];
            self.free = place.after;
            (place.before, place.after, place.lane) = (before, NONE, lane);
            place.queued = Some(queued);
            at
        };
        let ends = &mut self.lanes[lane as usize];
        ends.newest = at;
        ends.count += 1;
        if before == NONE {
            ends.oldest = at;
        } else {
            self.places[before as usize].after = at;
        }
        Slot(at)
    }

    /// Takes the read whose turn it is.
    #[inline]
    fn pop(&mut self) -> Option<Queued> {
        let oldest = self.lanes.iter().map(|ends| ends.oldest).find(|oldest| *oldest != NONE)?;
        self.take(Slot(oldest))
    }

    /// The read that came last to `lane`.
    fn newest(&self, lane: Lane) -> Option<Slot> {
        Some(self.lanes[lane as usize].newest).filter(|newest| *newest != NONE).map(Slot)
    }

    /// The read that has waited longest in `lane`.
    fn oldest(&self, lane: Lane) -> Option<Slot> {
        Some(self.lanes[lane as usize].oldest).filter(|oldest| *oldest != NONE).map(Slot)
    }

    /// Every read, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.places.iter().filter_map(|place| place.queued.as_ref())
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Queued> {
        self.places.get(slot.0 as usize)?.queued.as_ref()
    }

    /// Takes the read in `slot` out.
    #[inline]
    pub(crate) fn take(&mut self, slot: Slot) -> Option<Queued> {
        let place = self.places.get_mut(slot.0 as usize)?;
        let queued = place.queued.take()?;
        self.bytes -= queued.bytes;
        let Place { before, after, lane, .. } = *place;
        place.after = std::mem::replace(&mut self.free, slot.0);
        let ends = &mut self.lanes[lane as usize];
        ends.count -= 1;
        match before {
            NONE => ends.oldest = after,
            before => self.places[before as usize].after = after,
        }
        match after {
            NONE => self.lanes[lane as usize].newest = before,
            after => self.places[after as usize].before = before,
        }
        Some(queued)
    }

    /// Takes everything out that came over `connection`.
    pub(crate) fn take_of(&mut self, connection: ConnectionId) -> Vec<Queued> {
        if self.total() == 0 {
            return Vec::new();
        }
        let is_of = |place: &Place| place.queued.as_ref().is_some_and(|it| it.caller.connection == connection);
        let slots = (0..).zip(&self.places).filter(|(_, place)| is_of(place)).map(|(at, _)| Slot(at));
        let slots: Vec<Slot> = slots.collect();
        slots.into_iter().filter_map(|slot| self.take(slot)).collect()
    }
}

/// What became of reads that waited for their turn, since the node started. By lane.
#[derive(Debug, Default)]
pub(crate) struct QueueCounts {
    /// Refused because the queue was full.
    shed: [u64; 2],
    /// Refused because their deadline had passed.
    expired: [u64; 2],
    /// Refused because the wait was expected to be longer than their callers would have it.
    busy_for: [u64; 2],
    /// Served, or begun to wait for an index.
    run: [u64; 2],
    /// What extra attempts have cost, by the average cost of a request.
    extra_run: Duration,
}

impl QueueCounts {
    fn to_json(&self) -> Value {
        let of = |lane: Lane| {
            let lane = lane as usize;
            json!({
                "run": self.run[lane],
                "shed": self.shed[lane],
                "expired": self.expired[lane],
                "busy_for": self.busy_for[lane],
            })
        };
        json!({ "first": of(Lane::First), "extra": of(Lane::Extra), "extra_run_us": self.extra_run.as_micros() as u64 })
    }
}

impl Serving<'_> {
    /// A client's read has arrived: it is refused, or queued.
    pub(crate) fn enqueue(&mut self, mut read: Read, header: &Header, mut caller: Caller, now: Now) {
        let group = caller.group();
        let terms = match self.check_read(group, &read, header) {
            Ok(terms) => terms,
            Err(refusal) => return self.refuse_client(caller, &refusal, now),
        };
        let tie = self.tie_of(header, &caller);
        if tie.as_ref().is_some_and(|tie| self.requests.ties.take_early(tie, now.instant)) {
            return self.refuse_client(caller, &Refusal::Withdrawn, now);
        }
        let bytes = kept_bytes(&mut read, &mut caller);
        if let Err(refusal) = self.find_room(&caller, header, bytes, now) {
            return self.refuse_client(caller, &refusal, now);
        }
        let (lane, name, ways) = (Lane::of(&caller), caller.name, (caller.connection, caller.sequence_id));
        let slot = self.requests.queue.push(lane, Queued { caller, read, terms, tie, bytes });
        if let Some(name) = name {
            self.requests.attempts.list(name, ways, crate::requests::cancel::WaitsIn::Queued(slot));
            if let Some(tie) = self.requests.queue.get(slot).and_then(|it| it.tie.as_ref()) {
                self.requests.ties.list(tie, slot);
            }
        }
    }

    /// The terms of a read, if they, the replica's role and its state allow it as things are.
    fn check_read(&self, group: GroupId, read: &Read, header: &Header) -> Result<Terms, Refusal> {
        let terms = match self.view.settings(group.table) {
            Some(settings) => Terms::of(header, settings, group),
            None => Terms::of(header, &Settings::default(), group),
        }?;
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get(&group) else { return Err(Refusal::NotHosted) };
        replica.check_serving(&terms, self.view.why_not_follow())?;
        // Pegasus' server looks its partition through and finds nothing. That hides no row from a client that computes
        // partitions as all do: a table's partitions never change, and no table gets the id of another.
        match crate::requests::reads::misplaced_read(replica, read).filter(|_| header.extension.is_some()) {
            Some(refusal) => Err(refusal),
            None => Ok(terms),
        }
    }

    /// Sees to it that one more read can wait, or says why it may not: its caller would not wait so long, or there is no room.
    /// Extra attempts have to go first.
    fn find_room(&mut self, caller: &Caller, header: &Header, bytes: usize, now: Now) -> Result<(), Refusal> {
        let lane = Lane::of(caller);
        let threshold = header.extension.as_ref().and_then(|extension| extension.busy_threshold_ms);
        if let Some(threshold) = threshold.and_then(|ms| u64::try_from(ms).ok()) {
            let ahead = match lane {
                Lane::First => self.requests.queue.count(Lane::First),
                Lane::Extra => self.requests.queue.total(),
            };
            let wait = self.requests.load.wait_behind(ahead, now.instant);
            if wait > Duration::from_millis(threshold) {
                self.requests.queue_counts.busy_for[lane as usize] += 1;
                let estimated_wait_ms = u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
                return Err(Refusal::BusyFor { estimated_wait_ms });
            }
        }
        if lane == Lane::Extra && self.requests.queue.count(Lane::Extra) >= EXTRA_READS_QUEUED_MAX {
            self.expire_extra(now);
        }
        while lane == Lane::First && self.requests.queue.is_full(bytes) && self.shed_extra(now) {}
        let is_full = lane == Lane::Extra && self.requests.queue.count(Lane::Extra) >= EXTRA_READS_QUEUED_MAX;
        if is_full || self.requests.queue.is_full(bytes) {
            self.requests.queue_counts.shed[lane as usize] += 1;
            return Err(too_many());
        }
        Ok(())
    }

    /// Refuses the newest extra attempt, if there is one.
    fn shed_extra(&mut self, now: Now) -> bool {
        let Some(queued) = self.requests.queue.newest(Lane::Extra).and_then(|slot| self.requests.queue.take(slot))
        else {
            return false;
        };
        self.requests.queue_counts.shed[Lane::Extra as usize] += 1;
        self.refuse_queued(queued, &too_many(), now);
        true
    }

    /// Refuses the oldest extra attempts whose deadline has passed: their turn may be far away.
    fn expire_extra(&mut self, now: Now) {
        while let Some(slot) = self.requests.queue.oldest(Lane::Extra)
            && self.requests.queue.get(slot).is_some_and(|queued| queued.caller.deadline <= now.instant)
        {
            let Some(queued) = self.requests.queue.take(slot) else { return };
            self.refuse_late(queued, now);
        }
    }

    /// Serves reads whose turn it is.
    pub(crate) fn serve_queued(&mut self, now: Now) {
        // Of those that waited for a place some can be served at once by now: they count as others do.
        for _ in 0..WAITING_PER_TURN {
            if self.requests.reply_bytes >= self.config.read_bytes_per_turn || !self.serve_waiting(now) {
                break;
            }
        }
        for number in 0..self.config.reads_per_turn.max(1) {
            // One at least, whatever else was answered.
            if number > 0 && self.requests.reply_bytes >= self.config.read_bytes_per_turn {
                break;
            }
            let Some(queued) = self.requests.queue.pop() else { return };
            if queued.caller.deadline <= now.instant {
                self.refuse_late(queued, now);
                continue;
            }
            self.requests.ties.unlist(queued.tie.as_deref());
            self.serve_read(queued, now);
        }
        self.expire_extra(now);
    }

    /// The client at `connection` leaves as many of its replies unread as it may: reads that wait here are refused as busy,
    /// which takes little room. Returns whether there were any.
    pub(crate) fn refuse_unread(&mut self, connection: ConnectionId, now: Now) -> bool {
        let refusal = Refusal::Busy("so many replies wait to be read".to_owned());
        let queued = self.requests.queue.take_of(connection);
        let waiting = self.take_waiting_reads(connection);
        let has_any = !queued.is_empty() || !waiting.is_empty();
        queued.into_iter().for_each(|queued| self.refuse_queued(queued, &refusal, now));
        waiting.into_iter().for_each(|caller| self.refuse_client(caller, &refusal, now));
        has_any
    }

    fn refuse_late(&mut self, queued: Queued, now: Now) {
        self.requests.queue_counts.expired[Lane::of(&queued.caller) as usize] += 1;
        self.refuse_queued(queued, &Refusal::Expired, now);
    }

    /// Refuses a read that was queued.
    pub(crate) fn refuse_queued(&mut self, queued: Queued, refusal: &Refusal, now: Now) {
        self.requests.ties.unlist(queued.tie.as_deref());
        self.refuse_client(queued.caller, refusal, now);
    }

    /// A read's turn came, and nothing was in its way.
    pub(crate) fn note_run(&mut self, lane: Lane) {
        self.requests.queue_counts.run[lane as usize] += 1;
        if lane == Lane::Extra {
            self.requests.queue_counts.extra_run += self.requests.load.service();
        }
    }
}

impl Requests {
    /// Whether reads wait for their turn, and could have it.
    pub(crate) fn has_queued(&self) -> bool {
        self.queue.total() > 0 || self.read_jobs.has_turn()
    }

    /// For the admin command `reads`: who waits, what became of those that did, and of cancels and ties.
    pub(super) fn queue_told(&self) -> Value {
        let mut told = self.queue_counts.to_json();
        told["first"]["queued"] = json!(self.queue.count(Lane::First));
        told["extra"]["queued"] = json!(self.queue.count(Lane::Extra));
        told["bytes"] = json!(self.queue.bytes);
        told["aside"] = self.read_jobs.to_json();
        told["cancels"] = self.attempts.to_json();
        told["ties"] = self.ties.to_json();
        told
    }
}

/// What a read keeps in memory while it waits. In a small frame its strings stay where they are.
fn kept_bytes(read: &mut Read, caller: &mut Caller) -> usize {
    let strings = match caller.frame_bytes {
        ..=FRAME_KEPT_MAX => caller.frame_bytes,
        _ => read.detach() + caller.detach(),
    };
    strings + list_size(read)
}

fn too_many() -> Refusal {
    Refusal::Busy(format!(
        "{READS_QUEUED_MAX} reads with {READS_QUEUED_BYTES_MAX} bytes, {EXTRA_READS_QUEUED_MAX} of them extra attempts, may wait"
    ))
}

#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
