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

mod lines;

use crate::config::{EXTRA_READS_QUEUED_MAX, READS_QUEUED_BYTES_MAX, READS_QUEUED_MAX};
use crate::outbox::ConnectionId;
use crate::replica::Hosted;
use crate::requests::caller::Caller;
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::read_jobs::list_size;
use crate::requests::reads::Terms;
use crate::requests::tie::Tied;
use crate::requests::{Requests, Serving};
use crate::shared_bound::SharedBound;
use hedgerow_env::Now;
use hedgerow_placement::Settings;
use hedgerow_types::op::Read;
use hedgerow_types::{GroupId, Refusal};
use hedgerow_wire::Header;
use lines::Lines;
use serde_json::{Value, json};
use std::time::Duration;

/// A read in a larger frame does not keep it while it waits.
const FRAME_KEPT_MAX: usize = 4 << 10;
/// Reads that have waited for a job's place and are served in one turn, beside others.
const WAITING_PER_TURN: usize = 32;

/// A read that waits for its turn.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: RequestId,
    pub(crate) read: Read,
    pub(crate) terms: Terms,
    /// The other attempt, if this one is tied to one.
    pub(crate) tie: Option<Box<Tied>>,
    /// What it keeps in memory.
    pub(crate) bytes: usize,
    /// Whether another thread that serves has had it in vain.
    pub(crate) has_come_back: bool,
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

/// Two lanes. In each, connections have their turns one after the other, and of one connection the oldest read comes first. A read
/// can leave from the middle; its place is free at once.
#[derive(Debug)]
pub(crate) struct Queue {
    places: Vec<Place>,
    /// Places without a read.
    free: Vec<u32>,
    /// The reads of each lane as they came.
    lanes: [Ends; 2],
    /// The same by connection.
    lines: [Lines; 2],
    /// What all keep in memory.
    bytes: SharedBound,
}

#[derive(Debug)]
struct Place {
    lane: Lane,
    /// In which line of its lane.
    line: u32,
    /// In its lane, and in its line.
    neighbours: [Neighbours; 2],
    queued: Option<Queued>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

/// The ends of a list of places.
#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    count: usize,
}

impl Default for Ends {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE, count: 0 }
    }
}

/// Which neighbours of a place.
const IN_LANE: usize = 0;
const IN_LINE: usize = 1;

impl Ends {
    /// Puts place `at` behind all others.
    #[inline]
    fn push(&mut self, places: &mut [Place], which: usize, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        self.count += 1;
        places[at as usize].neighbours[which] = Neighbours { before, after: NONE };
        match places.get_mut(before as usize) {
            Some(before) => before.neighbours[which].after = at,
            None => self.oldest = at,
        }
    }

    /// Takes place `at` out.
    #[inline]
    fn unlink(&mut self, places: &mut [Place], which: usize, at: u32) {
        let Neighbours { before, after } = places[at as usize].neighbours[which];
        self.count -= 1;
        match places.get_mut(before as usize) {
            Some(before) => before.neighbours[which].after = after,
            None => self.oldest = after,
        }
        match places.get_mut(after as usize) {
            Some(after) => after.neighbours[which].before = before,
            None => self.newest = before,
        }
    }

    fn slot(end: u32) -> Option<Slot> {
        Some(end).filter(|end| *end != NONE).map(Slot)
    }
}

impl Queue {
    /// Nobody waits.
    pub(crate) fn new(bytes: SharedBound) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            lanes: <[Ends; 2]>::default(),
            lines: <[Lines; 2]>::default(),
            bytes,
        }
    }

    pub(crate) fn count(&self, lane: Lane) -> usize {
        self.lanes[lane as usize].count
    }

    /// How many reads wait in both lanes.
    pub(crate) fn total(&self) -> usize {
        self.lanes.iter().map(|ends| ends.count).sum()
    }

    /// Whether one more read that keeps so many bytes is too much.
    fn is_full(&self, bytes: usize) -> bool {
        let total = self.total();
        total >= READS_QUEUED_MAX || (total > 0 && !self.bytes.has_room(bytes))
    }

    /// Adds a read behind all others of its lane and connection.
    #[inline]
    pub(crate) fn push(&mut self, lane: Lane, connection: ConnectionId, queued: Queued) -> Slot {
        self.bytes.add(queued.bytes);
        let (line, ends) = self.lines[lane as usize].join(connection, weight(queued.bytes));
        let neighbours = [Neighbours { before: NONE, after: NONE }; 2];
        let place = Place { lane, line, neighbours, queued: Some(queued) };
        let at = self.free.pop().unwrap_or(self.places.len() as u32);
        match self.places.get_mut(at as usize) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        ends.push(&mut self.places, IN_LINE, at);
        self.lanes[lane as usize].push(&mut self.places, IN_LANE, at);
        Slot(at)
    }

    /// Takes the read whose turn it is.
    #[inline]
    fn pop(&mut self) -> Option<Queued> {
        let slot = self.lines.iter_mut().find_map(Lines::next)?;
        self.take(slot)
    }

    /// The read that came last to `lane`.
    fn newest(&self, lane: Lane) -> Option<Slot> {
        Ends::slot(self.lanes[lane as usize].newest)
    }

    /// The read that has waited longest in `lane`.
    fn oldest(&self, lane: Lane) -> Option<Slot> {
        Ends::slot(self.lanes[lane as usize].oldest)
    }

    /// Who gives room to a read of `newcomer` that keeps so many bytes, in its lane, if anybody has that much more.
    fn find_heavy(&mut self, lane: Lane, newcomer: ConnectionId, bytes: usize) -> Option<ConnectionId> {
        self.lines[lane as usize].find_heavy(newcomer, weight(bytes))
    }

    /// The newest read of a connection in `lane`.
    fn newest_of(&self, lane: Lane, connection: ConnectionId) -> Option<Slot> {
        self.lines[lane as usize].newest_of(connection)
    }

    /// How many reads have their turn before another one of `connection`.
    fn ahead_of(&self, lane: Lane, connection: ConnectionId) -> usize {
        let in_lane = self.lines[lane as usize].ahead_of(connection, self.count(lane));
        match lane {
            Lane::First => in_lane,
            Lane::Extra => self.count(Lane::First) + in_lane,
        }
    }

    /// The reads of `connection` in `lane` cost so many bytes more of its turn.
    fn note_served(&mut self, lane: Lane, connection: ConnectionId, bytes: usize) {
        self.lines[lane as usize].note_served(connection, bytes);
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
        let (lane, line) = (place.lane as usize, place.line);
        self.bytes.subtract(queued.bytes);
        self.lanes[lane].unlink(&mut self.places, IN_LANE, slot.0);
        let lines = &mut self.lines[lane];
        lines.leave(line, weight(queued.bytes)).unlink(&mut self.places, IN_LINE, slot.0);
        lines.end_if_empty(line);
        self.free.push(slot.0);
        Some(queued)
    }
}

/// By what it is judged which connection has most of the queue: what a read keeps and that it is one, in the relation of their limits.
fn weight(bytes: usize) -> usize {
    bytes + READS_QUEUED_BYTES_MAX / READS_QUEUED_MAX
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
        let (lane, connection) = (Lane::of(&caller), caller.connection);
        let id = self.requests.callers.insert(caller, WaitsIn::Service);
        let slot =
            self.requests.queue.push(lane, connection, Queued { id, read, terms, tie, bytes, has_come_back: false });
        self.requests.callers.note(id, WaitsIn::Queued(slot));
        if let Some(tie) = self.requests.queue.get(slot).and_then(|it| it.tie.as_ref()) {
            self.requests.ties.list(tie, slot);
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
            let wait =
                self.requests.load.wait_behind(self.requests.queue.ahead_of(lane, caller.connection), now.instant);
            if wait > Duration::from_millis(threshold) {
                self.requests.queue_counts.busy_for[lane as usize] += 1;
                let estimated_wait_ms = u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
                return Err(Refusal::BusyFor { estimated_wait_ms });
            }
        }
        if lane == Lane::Extra && self.requests.queue.count(Lane::Extra) >= EXTRA_READS_QUEUED_MAX {
            self.expire_extra(now);
        }
        if self.lacks_room(lane, bytes) {
            self.make_room(lane, caller.connection, bytes, now);
        }
        if self.lacks_room(lane, bytes) {
            self.requests.queue_counts.shed[lane as usize] += 1;
            return Err(too_many());
        }
        Ok(())
    }

    fn lacks_room(&self, lane: Lane, bytes: usize) -> bool {
        let queue = &self.requests.queue;
        let is_lane_full = lane == Lane::Extra && queue.count(Lane::Extra) >= EXTRA_READS_QUEUED_MAX;
        is_lane_full || queue.is_full(bytes)
    }

    /// Refuses reads for the sake of another one: extra attempts for that of a first one, the newest first, and then the newest of a
    /// connection that has much more in the same lane.
    fn make_room(&mut self, lane: Lane, newcomer: ConnectionId, bytes: usize, now: Now) {
        // What other shards keep is not given up here.
        let queue = &self.requests.queue;
        if queue.bytes.all() > queue.bytes.own() && !queue.bytes.may_have(bytes) {
            return;
        }
        while lane == Lane::First && self.lacks_room(lane, bytes) {
            let newest = self.requests.queue.newest(Lane::Extra);
            if !newest.is_some_and(|slot| self.shed(Lane::Extra, slot, now)) {
                break;
            }
        }
        if !self.lacks_room(lane, bytes) {
            return;
        }
        let Some(heavy) = self.requests.queue.find_heavy(lane, newcomer, bytes) else { return };
        while self.lacks_room(lane, bytes)
            && let Some(slot) = self.requests.queue.newest_of(lane, heavy)
            && self.shed(lane, slot, now)
        {}
    }

    fn shed(&mut self, lane: Lane, slot: Slot, now: Now) -> bool {
        let Some(queued) = self.requests.queue.take(slot) else { return false };
        self.requests.queue_counts.shed[lane as usize] += 1;
        self.refuse_queued(queued, &too_many(), now);
        true
    }

    /// Refuses the oldest extra attempts whose deadline has passed: their turn may be far away.
    fn expire_extra(&mut self, now: Now) {
        while let Some(slot) = self.requests.queue.oldest(Lane::Extra)
            && self.is_late(slot, now)
        {
            let Some(queued) = self.requests.queue.take(slot) else { return };
            self.refuse_late(Lane::Extra, queued, now);
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
            self.requests.ties.unlist(queued.tie.as_deref());
            let Some(caller) = self.requests.callers.get(queued.id) else { continue };
            let (lane, connection) = (Lane::of(caller), caller.connection);
            if caller.deadline <= now.instant {
                self.refuse_late(lane, queued, now);
                continue;
            }
            let before = self.requests.reply_bytes;
            self.serve_read(queued, now);
            let replied = self.requests.reply_bytes - before;
            self.requests.queue.note_served(lane, connection, replied);
        }
        self.expire_extra(now);
    }

    /// The client at `connection` leaves as many of its replies unread as it may: reads that wait here are refused as busy,
    /// which takes little room. Returns whether there were any.
    pub(crate) fn refuse_unread(&mut self, connection: ConnectionId, now: Now) -> bool {
        let refusal = Refusal::Busy("so many replies wait to be read".to_owned());
        let reads = self.take_reads_of(connection);
        let has_any = !reads.is_empty();
        reads.into_iter().for_each(|caller| self.refuse_client(caller, &refusal, now));
        has_any
    }

    fn is_late(&self, slot: Slot, now: Now) -> bool {
        let caller = self.requests.queue.get(slot).and_then(|queued| self.requests.callers.get(queued.id));
        caller.is_some_and(|caller| caller.deadline <= now.instant)
    }

    fn refuse_late(&mut self, lane: Lane, queued: Queued, now: Now) {
        self.requests.queue_counts.expired[lane as usize] += 1;
        self.refuse_queued(queued, &Refusal::Expired, now);
    }

    /// Refuses a read that was queued.
    pub(crate) fn refuse_queued(&mut self, queued: Queued, refusal: &Refusal, now: Now) {
        self.requests.ties.unlist(queued.tie.as_deref());
        self.refuse_waiting(queued.id, refusal, now);
    }

    /// A read that had its turn waits for another one.
    pub(crate) fn note_not_run(&mut self, lane: Lane) {
        let run = &mut self.requests.queue_counts.run[lane as usize];
        *run = run.saturating_sub(1);
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

    /// Reads that wait for their turn.
    pub(crate) fn queued_count(&self) -> usize {
        self.queue.total()
    }

    /// For the admin command `reads`: who waits, what became of those that did, and of cancels and ties.
    pub(super) fn queue_told(&self) -> Value {
        let mut told = self.queue_counts.to_json();
        told["first"]["queued"] = json!(self.queue.count(Lane::First));
        told["extra"]["queued"] = json!(self.queue.count(Lane::Extra));
        told["bytes"] = json!(self.queue.bytes.own());
        told["aside"] = self.read_jobs.to_json();
        told["cancels"] = self.cancels.to_json(self.callers.named_count());
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
