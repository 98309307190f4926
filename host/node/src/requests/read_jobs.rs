//! Reads that the node's thread does not serve itself: what they look at is not in memory, or is much. A job runs each, on a snapshot, and
//! everybody else goes on meanwhile.
//!
//! ```text
//! serve_read, finish_read ── at once? ── yes ──> answered
//!                               │ no
//!                               ├── a place is free ──> snapshot, job ──> answered when it has ended
//!                               └── none is ──> waits; when it has a turn, it is served from the beginning
//! ```
//!
//! The lease, the proof or the index by which a read is served hold at the moment of its snapshot, which is the replica's state of that
//! moment, and the reply names that moment's index. So it is as good as an answer at once, however late it is read. While it waits for a place
//! it has no snapshot, which would keep what is written over in memory; so it is judged anew when it has one. A bounded read ages while
//! it runs, and is let go when its data would be too old.
//!
//! Where the node has further threads that serve ([`Config::workers`](crate::Config::workers)), they have a part of the reads of many rows
//! ([`shared`]).
//!
//! Each data directory has its own places, some for short reads and some for long ones, so that neither a slow disk nor many counts keep
//! others waiting; connections have them in turn.

mod shared;

use crate::config::{LONG_READS_MAX, READ_JOBS_BYTES_MAX, READ_JOBS_MAX, SHORT_READS_MAX};
use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::outbox::ConnectionId;
use crate::replica::Hosted;
use crate::requests::Serving;
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::queue::{Lane, Queued};
use crate::requests::reads::{Reflected, Terms};
use crate::requests::waiting::Waiting;
use crate::shared_bound::SharedBound;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_replication::age;
use hedgerow_storage::ReadBudget;
use hedgerow_types::journal::DUPLICATE_CHANGES_MAX;
use hedgerow_types::op::{MultiGet, Read, ReadReply, Selection};
use hedgerow_types::{Instant, ReadLevel, Refusal};
use serde_json::{Value, json};
use shared::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads that keep up to so many bytes in memory wait whatever others keep.
const SMALL_READ: usize = 4 << 10;

/// Which places a read has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadSize {
    /// It looks at a few rows, and waits for the disk.
    Short,
    /// It looks at many.
    Long,
    /// It looks at several that are in memory, and what serves beside the node's thread does that.
    Shared,
}

impl ReadSize {
    /// By what a read asks for.
    pub(crate) fn of(read: &Read, budget: ReadBudget) -> Self {
        if rows_asked(read) <= budget.rows.max(1) { Self::Short } else { Self::Long }
    }

    /// How many such reads of one data directory run at a time.
    pub const fn places(self) -> usize {
        match self {
            Self::Short => SHORT_READS_MAX,
            Self::Long => LONG_READS_MAX,
            // As many as are given away; `shared.rs` says which are.
            Self::Shared => usize::MAX,
        }
    }
}

/// How many rows a read looks at most, by what it says; `u64::MAX` where it does not.
fn rows_asked(read: &Read) -> u64 {
    let asked = |count: i32| u64::try_from(count).ok().filter(|count| *count > 0).unwrap_or(u64::MAX);
    match read {
        Read::Get { .. } | Read::Ttl { .. } => 1,
        Read::BatchGet { keys } => keys.len() as u64,
        Read::MultiGet(MultiGet { selection: Selection::Suffixes(suffixes), .. }) => suffixes.len() as u64,
        Read::MultiGet(multi_get) => asked(multi_get.count_max),
        Read::Scan(scan) => asked(i32::try_from(scan.rows_max).unwrap_or(i32::MAX)),
        Read::Journal(_) => DUPLICATE_CHANGES_MAX as u64,
        Read::SortKeyCount { .. } | Read::Checksum => u64::MAX,
    }
}

/// Whether anybody still waits for a read that runs elsewhere. Given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Wish(Arc<AtomicBool>);

impl Wish {
    /// For the one who waits, and for the one who reads.
    pub(crate) fn new() -> (Self, Wanted) {
        let is_given_up = Arc::default();
        (Self(Arc::clone(&is_given_up)), Wanted(is_given_up))
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The same for the one who reads.
#[derive(Clone, Debug, Default)]
pub struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// Whether somebody waits for the answer.
    pub fn is_wanted(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

/// Data directory and size.
pub(crate) type Line = (DirectoryId, ReadSize);

/// Where a read is.
#[derive(Debug)]
enum ReadJob {
    /// For a place.
    Waiting {
        line: Line,
        connection: ConnectionId,
        /// Of which replica.
        owner: ReplicaKey,
        queued: Box<Queued>,
        /// What it keeps in memory.
        bytes: usize,
    },
    Running {
        id: RequestId,
        /// Of which replica.
        owner: ReplicaKey,
        reflected: Reflected,
        begun: Instant,
        /// What it is judged by if it has to be served once more.
        terms: Terms,
        bytes: usize,
        _wish: Wish,
    },
}

/// The reads of one line.
#[derive(Debug, Default)]
struct Places {
    running: usize,
    /// Who waits, by connection, and how many.
    waiting: BTreeMap<ConnectionId, BTreeSet<u64>>,
    count: usize,
    /// Bytes that they keep in memory.
    bytes: usize,
    /// Which connection had the last turn.
    last: ConnectionId,
}

impl Places {
    fn insert(&mut self, connection: ConnectionId, ticket: u64, bytes: usize) {
        self.waiting.entry(connection).or_default().insert(ticket);
        (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
    }

    /// Returns how many bytes are given back.
    fn remove(&mut self, connection: ConnectionId, ticket: u64, bytes: usize) -> usize {
        let Some(tickets) = self.waiting.get_mut(&connection) else { return 0 };
        let given_back = if tickets.remove(&ticket) {
            self.count -= 1;
            bytes
        } else {
            0
        };
        self.bytes -= given_back;
        if tickets.is_empty() {
            self.waiting.remove(&connection);
        }
        given_back
    }

    /// The newest read of the connection that has most, if that is more than `count`.
    fn newest_of_heaviest(&self, count: usize) -> Option<u64> {
        let heaviest = self.waiting.values().max_by_key(|tickets| tickets.len())?;
        heaviest.last().filter(|_| heaviest.len() > count).copied()
    }

    /// Whose turn it is: the oldest read of the connection after the last one.
    fn next(&mut self) -> Option<(ConnectionId, u64)> {
        let after = (std::ops::Bound::Excluded(self.last), std::ops::Bound::Unbounded);
        let (connection, tickets) = self.waiting.range(after).next().or_else(|| self.waiting.first_key_value())?;
        let (connection, ticket) = (*connection, *tickets.first()?);
        self.last = connection;
        Some((connection, ticket))
    }
}

/// All of them, and counts since the node started.
#[derive(Debug)]
pub(crate) struct ReadJobs {
    reads: Waiting<ReadJob>,
    places: BTreeMap<Line, Places>,
    /// Bytes of those that wait, in all lines. A line has its part whatever the others keep.
    bytes: SharedBound,
    run: [u64; 3],
    shed: u64,
    expired: u64,
    shared: Shared,
}

impl ReadJobs {
    /// Nobody waits.
    pub(crate) fn new(bytes: SharedBound) -> Self {
        let (reads, places, shared) = (Waiting::default(), BTreeMap::new(), Shared::default());
        Self { reads, places, bytes, run: [0; 3], shed: 0, expired: 0, shared }
    }

    /// When the first one has to be let go.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.reads.first()
    }

    fn note_removed(&mut self, read: &ReadJob, ticket: u64) {
        if let ReadJob::Waiting { line, connection, bytes, .. } = read
            && let Some(places) = self.places.get_mut(line)
        {
            self.bytes.subtract(places.remove(*connection, ticket, *bytes));
        }
    }

    fn take(&mut self, ticket: u64) -> Option<ReadJob> {
        let read = self.reads.remove(ticket)?;
        self.note_removed(&read, ticket);
        Some(read)
    }

    /// Takes a read back. What runs of it ends soon, and nobody hears of it.
    pub(crate) fn remove(&mut self, ticket: u64) {
        drop(self.take(ticket));
    }

    fn note_begun(&mut self, line: Line) {
        self.places.entry(line).or_default().running += 1;
        self.run[line.1 as usize] += 1;
    }

    /// A job has ended: its place is for another read.
    pub(crate) fn note_ended(&mut self, line: Line) {
        if let Some(places) = self.places.get_mut(&line) {
            debug_assert!(places.running > 0, "a place is given back that was not taken");
            places.running = places.running.saturating_sub(1);
        }
    }

    /// Whether somebody waits and a place is free.
    pub(crate) fn has_turn(&self) -> bool {
        self.places.iter().any(|((_, size), places)| places.count > 0 && places.running < size.places())
    }

    /// The read whose turn it is to have a place, and of which replica it was.
    fn take_turn(&mut self) -> Option<(ReplicaKey, Box<Queued>)> {
        let has_place = |((_, size), places): &(&Line, &mut Places)| places.count > 0 && places.running < size.places();
        let (_, ticket) = self.places.iter_mut().find(has_place)?.1.next()?;
        match self.take(ticket)? {
            ReadJob::Waiting { owner, queued, .. } => Some((owner, queued)),
            ReadJob::Running { .. } => None,
        }
    }

    /// The requests.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.reads.values().map(ReadJob::id)
    }

    fn places_of(&self, size: ReadSize) -> impl Iterator<Item = &Places> {
        self.places.iter().filter(move |((_, of), _)| *of == size).map(|(_, places)| places)
    }

    /// How many such reads run, of all data directories.
    fn running(&self, size: ReadSize) -> usize {
        self.places_of(size).map(|places| places.running).sum()
    }

    /// What the operator is told.
    pub(crate) fn to_json(&self) -> Value {
        let of = |size: ReadSize| {
            json!({
                "run": self.run[size as usize],
                "running": self.running(size),
                "waiting": self.places_of(size).map(|places| places.count).sum::<usize>(),
            })
        };
        let mut shared = of(ReadSize::Shared);
        shared["in_vain"] = json!(self.shared.in_vain);
        json!({
            "short": of(ReadSize::Short),
            "long": of(ReadSize::Long),
            "shared": shared,
            "shed": self.shed,
            "expired": self.expired,
        })
    }
}

impl ReadJob {
    fn id(&self) -> RequestId {
        match self {
            Self::Waiting { queued, .. } => queued.id,
            Self::Running { id, .. } => *id,
        }
    }
}

/// What a list of keys takes beside their bytes.
pub(crate) fn list_size(read: &Read) -> usize {
    let count = match read {
        Read::BatchGet { keys } => keys.len(),
        Read::MultiGet(MultiGet { selection: Selection::Suffixes(suffixes), .. }) => suffixes.len(),
        Read::MultiGet(_) | Read::Get { .. } | Read::Ttl { .. } | Read::SortKeyCount { .. } => 0,
        Read::Scan(_) | Read::Checksum | Read::Journal(_) => 0,
    };
    count * size_of::<Bytes>()
}

impl Serving<'_> {
    /// Has another thread answer a read that may be served now: a job, or one that serves as well; if no place is free, when one is. Only
    /// then it counts as begun.
    pub(crate) fn read_aside(&mut self, queued: Queued, size: ReadSize, reflected: Reflected, now: Now) {
        let id = queued.id;
        if let Err(refusal) = self.try_aside(queued, size, reflected, now) {
            self.refuse_waiting(id, &refusal, now);
        }
    }

    /// Serves a read that has waited for a place, from the beginning. Returns whether there was one. Its replica may be another one by
    /// now, which knows nothing of what it was judged by before.
    pub(crate) fn serve_waiting(&mut self, now: Now) -> bool {
        let Some((owner, queued)) = self.requests.read_jobs.take_turn() else { return false };
        if self.replicas.running_as(owner).is_some() {
            self.serve_read(*queued, now);
        } else {
            self.refuse_waiting(queued.id, &Refusal::NotHosted, now);
        }
        true
    }

    fn try_aside(&mut self, queued: Queued, size: ReadSize, reflected: Reflected, now: Now) -> Result<(), Refusal> {
        let Some(caller) = self.requests.callers.get(queued.id) else { return Ok(()) };
        let (group, lane, deadline) = (caller.group(), Lane::of(caller), caller.deadline);
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else {
            return Err(Refusal::NotHosted);
        };
        let Some(storage) = &replica.storage else {
            return Err(Refusal::NotReady("a checkpoint is being installed".into()));
        };
        let (line, owner) = ((replica.directory, size), replica.owner);
        let places = self.requests.read_jobs.places.entry(line).or_default();
        if places.running >= size.places() {
            return self.wait_for_place(line, owner, queued, now);
        }
        let moment = storage.moment();
        let moment = moment.map_err(|error| crate::damage::note_read(&mut self.replicas.damaged, group, &error))?;
        self.requests.read_jobs.note_begun(line);
        replica.storage_users += 1;
        let index = storage.applied().index;
        let ticket = self.replicas.ticket();
        let Queued { id, read, terms, tie, bytes, .. } = queued;
        let until = match (terms.level, reflected.staleness) {
            (ReadLevel::Bounded(bound), Some(age)) => deadline.min(now.instant + bound.saturating_sub(age)),
            _ => deadline,
        };
        self.requests.callers.note(id, WaitsIn::Aside(ticket));
        let (wish, wanted) = Wish::new();
        let reflected = Reflected { index, ..reflected };
        let running = ReadJob::Running { id, owner, reflected, begun: now.instant, terms, bytes, _wish: wish };
        self.requests.read_jobs.reads.insert(ticket, until, 0, running);
        let seconds = self.replicas.expiry_time(self.view, owner.group, now);
        self.outbox.jobs.push(Job::Read { owner, place: Some(line), moment, ticket, read, now: seconds, wanted });
        self.note_begun(lane, tie.as_deref(), now);
        Ok(())
    }

    /// Where no more may wait, the newest read of the connection that has most goes. Extra attempts may be fewer.
    fn wait_for_place(&mut self, line: Line, owner: ReplicaKey, mut queued: Queued, now: Now) -> Result<(), Refusal> {
        let Some(caller) = self.requests.callers.get(queued.id) else { return Ok(()) };
        let (connection, deadline, is_extra) = (caller.connection, caller.deadline, caller.is_extra);
        let bytes = queued.read.detach() + list_size(&queued.read);
        let places = self.requests.read_jobs.places.entry(line).or_default();
        let has_room = if is_extra { places.count < READ_JOBS_MAX / 4 } else { places.count < READ_JOBS_MAX };
        let fits_line = places.bytes + bytes <= READ_JOBS_BYTES_MAX / self.config.shards;
        let has_bytes = bytes <= SMALL_READ || fits_line || self.requests.read_jobs.bytes.has_room(bytes);
        if !has_bytes {
            // Of the bytes that others keep, giving up their newest might free next to none.
            self.requests.read_jobs.shed += 1;
            let text = format!("reads with {READ_JOBS_BYTES_MAX} bytes of keys may wait for the disk");
            return Err(Refusal::Busy(text));
        }
        if !has_room {
            let text = format!("{READ_JOBS_MAX} reads may wait for the disk");
            let busy = Refusal::Busy(text);
            let own = places.waiting.get(&connection).map_or(0, BTreeSet::len);
            let other = if is_extra { None } else { places.newest_of_heaviest(own) };
            self.requests.read_jobs.shed += 1;
            let other = other.and_then(|ticket| self.requests.read_jobs.take(ticket));
            self.refuse_waiting(other.ok_or_else(|| busy.clone())?.id(), &busy, now);
        }
        let ticket = self.replicas.ticket();
        self.requests.callers.note(queued.id, WaitsIn::Aside(ticket));
        let jobs = &mut self.requests.read_jobs;
        jobs.places.entry(line).or_default().insert(connection, ticket, bytes);
        jobs.bytes.add(bytes);
        let waiting = ReadJob::Waiting { line, connection, owner, queued: Box::new(queued), bytes };
        jobs.reads.insert(ticket, deadline, bytes, waiting);
        Ok(())
    }

    /// What a job has read for a client, unless nobody waits for it any more.
    pub(crate) fn finish_read_job(&mut self, ticket: u64, result: Result<ReadReply, Refusal>, now: Now) {
        let Some(ReadJob::Running { id, reflected, begun, .. }) = self.requests.read_jobs.take(ticket) else {
            return;
        };
        let Some(caller) = self.requests.callers.get(id) else { return };
        // By a clock that may be slow.
        let took = age(begun, now.instant, self.config.replication.clock_rate_error_ppm);
        let staleness = reflected.staleness.map(|age| age + took);
        let is_too_old = match reflected.served {
            Some((ReadLevel::Bounded(bound), ..)) => staleness.is_some_and(|staleness| staleness > bound),
            Some(_) | None => false,
        };
        match result {
            Ok(_) if is_too_old || caller.deadline <= now.instant => self.let_go(id, now),
            Ok(reply) => {
                self.answer_read(id, reply, Reflected { staleness, ..reflected }, now);
            }
            Err(refusal) => self.refuse_waiting(id, &refusal, now),
        }
    }

    /// The storage of `owner` is to be let go of: reads of it end, and their clients ask elsewhere.
    pub(crate) fn end_reads_of(&mut self, owner: ReplicaKey, refusal: &Refusal, now: Now) {
        let runs = |read: &ReadJob| matches!(read, ReadJob::Running { owner: of, .. } if *of == owner);
        let reads = self.requests.read_jobs.reads.iter();
        let tickets: Vec<u64> = reads.filter(|(_, read)| runs(read)).map(|(ticket, _)| ticket).collect();
        for read in tickets.into_iter().filter_map(|ticket| self.requests.read_jobs.take(ticket)).collect::<Vec<_>>() {
            self.refuse_waiting(read.id(), refusal, now);
        }
    }

    /// Lets those go that have waited or run for too long.
    pub(crate) fn expire_read_jobs(&mut self, now: Now) {
        while let Some((ticket, read)) = self.requests.read_jobs.reads.pop_due_with(now.instant) {
            self.requests.read_jobs.note_removed(&read, ticket);
            self.let_go(read.id(), now);
        }
    }

    /// Its caller waits no longer, or its data would be older than it may be.
    fn let_go(&mut self, id: RequestId, now: Now) {
        self.requests.read_jobs.expired += 1;
        let Some(caller) = self.requests.callers.remove(id) else { return };
        let refusal = match self.replicas.hosted.get(&caller.group()) {
            _ if caller.deadline <= now.instant => Refusal::Expired,
            Some(Hosted::Running(replica)) => Refusal::Lagging(replica.group.lag(now.instant)),
            Some(Hosted::Starting { .. } | Hosted::Lost { .. }) | None => Refusal::NotHosted,
        };
        self.refuse_client(caller, &refusal, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_their_turns_one_after_the_other() {
        let mut places = Places::default();
        for (connection, ticket) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30)] {
            places.insert(ConnectionId(connection), ticket, 5);
        }
        assert_eq!((places.newest_of_heaviest(2), places.newest_of_heaviest(3)), (Some(12), None));
        let mut turns = Vec::new();
        while let Some((connection, ticket)) = places.next() {
            places.remove(connection, ticket, 5);
            places.remove(connection, ticket, 5);
            turns.push(ticket);
        }
        assert_eq!(turns, [10, 20, 30, 11, 12]);
        assert_eq!((places.waiting.len(), places.count, places.bytes), (0, 0, 0));
    }

    #[test]
    fn a_read_that_nobody_waits_for_learns_of_it() {
        let (wish, wanted) = Wish::new();
        assert!(wanted.is_wanted() && Wanted::default().is_wanted());
        drop(wish);
        assert!(!wanted.is_wanted());
    }
}
