//! Reads that wait for something other than this replica's own leadership: for the leader's word, an index, or a proof.
//!
//! ```text
//! needs the latest     gathered --question leaves--> asked --answer--> indexed --applied--> served
//! needs an index                                                       indexed --applied--> served
//! needs a proof                                                        bounded --proof----> served
//! ```
//!
//! A read joins a question only before it leaves, so the index of the answer was taken after the read arrived. A change of
//! term, leader or role sends everything back to the start: it is gathered again, or refused if there is nobody to ask.
//! Each stage has its limit, and what exceeds it ends as lagging.
//!
//! A read is found by its ticket wherever it waits, so that to cancel one does not cost more where many wait (N11).

use crate::round_trip::RoundTrip;
use core::ops::Range;
use core::time::Duration;
use hedgerow_types::log::LogPosition;
use hedgerow_types::{Index, Instant, ReplicaId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Questions of one group that may be unanswered; above it reads stay gathered until one is answered or given up.
const REQUESTS_MAX: usize = 256;

/// A question that has left.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    term: Term,
    pub(crate) leader: ReplicaId,
    sent: Instant,
    /// The reads that joined it: their numbers in [`Waiting::awaiting`].
    reads: Range<u64>,
}

/// A question that is answered, or will not be.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) term: Term,
    pub(crate) sent: Instant,
    pub(crate) tickets: Vec<u64>,
}

/// Where a read waits, with its key there.
#[derive(Clone, Copy, Debug)]
enum Place {
    Awaiting(u64),
    Indexed(Index),
    Bounded(u64),
    Ended(u64),
}

/// A read that waits for its index to be applied.
#[derive(Clone, Copy, Debug)]
struct Indexed {
    since: Instant,
    /// Whether the index came from the leader, for a read that needs the latest.
    is_latest: bool,
}

/// A read that waits for a proof.
#[derive(Clone, Copy, Debug)]
struct Bounded {
    ticket: u64,
    bound: Duration,
    limit: Instant,
}

/// Why a read ended without being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Refused,
    Lagging,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    /// Limits of the patience with an answer.
    patience: (Duration, Duration),
    /// Where each read is that waits, or has ended.
    places: BTreeMap<u64, Place>,
    /// Reads are numbered anew at each stage, so that they stand there in the order in which they came to it.
    next: u64,
    /// The reads that wait for the leader's word, each with since when. A question that leaves takes all that are gathered, so
    /// that those of each stand side by side, and behind the last question's those that are gathered.
    awaiting: BTreeMap<u64, (u64, Instant)>,
    /// The first number that belongs to no question.
    gathered_from: u64,
    /// In the order in which they left.
    asked: VecDeque<Asked>,
    indexed: BTreeMap<(Index, u64), Indexed>,
    /// No read began to wait for its index earlier.
    indexed_since: Instant,
    bounded: BTreeMap<u64, Bounded>,
    /// No read that waits for a proof has an earlier limit.
    bounded_limit: Instant,
    ended: BTreeMap<u64, (u64, End)>,
    /// Whether a question is wanted although nothing is gathered: for an index or for a proof.
    pub(crate) wants_question: bool,
    pub(crate) round_trip: RoundTrip,
    /// Whether a question was given up, and none has been answered since.
    pub(crate) is_unanswered: bool,
    /// The replica that is asked does not lead: nothing is asked of our own accord before, only for reads.
    pub(crate) quiet_until: Instant,
    /// What the leader said is committed, and the log does not hold yet.
    pub(crate) commit: Option<LogPosition>,
    /// The highest commit index that the leader spoke of.
    pub(crate) leader_commit: Index,
}

impl Waiting {
    pub(crate) fn new(patience_min: Duration, patience_max: Duration) -> Self {
        Self {
            patience: (patience_min, patience_max),
            places: BTreeMap::new(),
            next: 0,
            awaiting: BTreeMap::new(),
            gathered_from: 0,
            asked: VecDeque::new(),
            indexed: BTreeMap::new(),
            indexed_since: Instant::ZERO,
            bounded: BTreeMap::new(),
            bounded_limit: Instant::ZERO,
            ended: BTreeMap::new(),
            wants_question: false,
            round_trip: RoundTrip::default(),
            is_unanswered: false,
            quiet_until: Instant::ZERO,
            commit: None,
            leader_commit: 0,
        }
    }

    /// How many reads wait.
    pub(crate) fn count(&self) -> usize {
        self.awaiting.len() + self.indexed.len() + self.bounded.len()
    }

    /// Whether nothing waits and nothing has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn has_bounded(&self) -> bool {
        !self.bounded.is_empty()
    }

    /// How long a question may stay unanswered, and an index unapplied.
    pub(crate) fn patience(&self) -> Duration {
        self.round_trip.patience(self.patience.0, self.patience.1)
    }

    /// A read waits for a question that has not left.
    pub(crate) fn gather(&mut self, ticket: u64, now: Instant) {
        let number = self.take_number();
        self.put(ticket, Place::Awaiting(number));
        self.awaiting.insert(number, (ticket, now));
    }

    /// The read comes to `place`, and leaves where it was.
    fn put(&mut self, ticket: u64, place: Place) {
        self.cancel(ticket);
        self.places.insert(ticket, place);
    }

    const fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A read joins the last question that has left. Never right; for a test.
    pub(crate) fn join_last(&mut self, ticket: u64) -> bool {
        if self.gathered().next().is_some() || self.asked.is_empty() {
            return false;
        }
        self.gather(ticket, Instant::ZERO);
        self.gathered_from = self.next;
        self.asked.back_mut().into_iter().for_each(|last| last.reads.end = self.next);
        true
    }

    /// The reads that wait here for anything but a proof.
    pub(crate) fn tickets(&self) -> BTreeSet<u64> {
        let awaiting = self.awaiting_leader().into_iter().map(|(ticket, _)| ticket);
        awaiting.chain(self.indexed.keys().map(|&(_, ticket)| ticket)).collect()
    }

    /// Whether any read waits for the leader's word.
    pub(crate) fn is_awaiting_leader(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// The reads that wait for their question to leave.
    fn gathered(&self) -> impl Iterator<Item = (u64, Instant)> {
        self.awaiting.range(self.gathered_from..).map(|(_, read)| *read)
    }

    /// Takes those that wait for the leader's word under these numbers.
    fn take_awaiting(&mut self, numbers: Range<u64>) -> Vec<u64> {
        let taken: Vec<_> = self.awaiting.range(numbers).map(|(number, (ticket, _))| (*number, *ticket)).collect();
        for (number, ticket) in &taken {
            self.awaiting.remove(number);
            self.places.remove(ticket);
        }
        taken.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Those that do, each with since when it has waited for its question to leave, or for the answer.
    pub(crate) fn awaiting_leader(&self) -> Vec<(u64, Instant)> {
        let of = |asked: &Asked| {
            let sent = asked.sent;
            self.awaiting.range(asked.reads.clone()).map(move |(_, (ticket, _))| (*ticket, sent))
        };
        self.gathered().chain(self.asked.iter().flat_map(of)).collect()
    }

    /// Reads that have ended so here and are `kept` wait elsewhere, and go on doing so.
    pub(crate) fn keep_from_ending(&mut self, end: End, kept: impl Fn(u64) -> bool) {
        self.remove_ended(|ticket, ended| ended == end && kept(ticket));
    }

    /// A read waits until `index` is applied.
    pub(crate) fn push_indexed(&mut self, ticket: u64, index: Index, is_latest: bool, now: Instant) {
        if self.indexed.is_empty() {
            self.indexed_since = now;
        }
        self.put(ticket, Place::Indexed(index));
        self.indexed.insert((index, ticket), Indexed { since: now, is_latest });
    }

    /// A read waits until there is a proof that is not older than `bound`.
    pub(crate) fn push_bounded(&mut self, ticket: u64, bound: Duration, now: Instant) {
        let limit = now + bound.min(self.patience());
        self.bounded_limit = if self.bounded.is_empty() { limit } else { limit.min(self.bounded_limit) };
        let number = self.take_number();
        self.put(ticket, Place::Bounded(number));
        self.bounded.insert(number, Bounded { ticket, bound, limit });
    }

    /// When the last of the unanswered questions left.
    pub(crate) fn last_sent(&self) -> Option<Instant> {
        self.asked.back().map(|asked| asked.sent)
    }

    /// When the first of them left, of those that left after `since`.
    pub(crate) fn first_sent_after(&self, since: Option<Instant>) -> Option<Instant> {
        self.asked.iter().map(|asked| asked.sent).find(|sent| since.is_none_or(|since| *sent > since))
    }

    /// Whether a question may leave for what is gathered or wanted.
    pub(crate) fn wants_to_ask(&self) -> bool {
        (self.wants_question || self.gathered().next().is_some()) && self.asked.len() < REQUESTS_MAX
    }

    /// A question leaves now, for everything that is gathered.
    pub(crate) fn ask(&mut self, id: u64, term: Term, leader: ReplicaId, now: Instant) {
        self.wants_question = false;
        let reads = self.gathered_from..self.next;
        self.gathered_from = self.next;
        self.asked.push_back(Asked { id, term, leader, sent: now, reads });
    }

    /// Takes the question that `matches`.
    pub(crate) fn take_asked(&mut self, matches: impl Fn(&Asked) -> bool) -> Option<Taken> {
        let position = self.asked.iter().rposition(matches)?;
        let Asked { term, sent, reads, .. } = self.asked.remove(position)?;
        Some(Taken { term, sent, tickets: self.take_awaiting(reads) })
    }

    /// These reads end.
    pub(crate) fn end(&mut self, tickets: Vec<u64>, end: End) {
        for ticket in tickets {
            let number = self.take_number();
            self.put(ticket, Place::Ended(number));
            self.ended.insert(number, (ticket, end));
        }
    }

    /// The term, leader or role changed: nothing that was asked or answered before counts for what waits. Returns whether
    /// any read was refused.
    pub(crate) fn begin_again(&mut self, has_leader: bool, now: Instant) -> bool {
        (self.commit, self.leader_commit) = (None, 0);
        (self.is_unanswered, self.quiet_until) = (false, Instant::ZERO);
        if self.count() == 0 && self.asked.is_empty() {
            self.wants_question = false;
            return false;
        }
        let mut latest = self.take_awaiting(self.gathered_from..self.next);
        latest.extend(self.take_awaiting(0..self.gathered_from));
        self.asked.clear();
        let (mut kept, mut others) = (BTreeMap::new(), Vec::new());
        for ((index, ticket), indexed) in core::mem::take(&mut self.indexed) {
            match (indexed.is_latest, has_leader) {
                (true, _) => latest.push(ticket),
                (false, true) => drop(kept.insert((index, ticket), indexed)),
                (false, false) => others.push(ticket),
            }
        }
        self.indexed = kept;
        if has_leader {
            self.wants_question = true;
            latest.into_iter().for_each(|ticket| self.gather(ticket, now));
            return false;
        }
        self.wants_question = false;
        others.extend(core::mem::take(&mut self.bounded).into_values().map(|read| read.ticket));
        self.end(latest, End::Refused);
        self.end(others, End::Refused);
        !self.ended.is_empty()
    }

    /// Serves what has applied its index: `serve(ticket, whether it needed the latest)`.
    pub(crate) fn release(&mut self, applied: Index, mut serve: impl FnMut(u64, bool)) {
        while let Some(entry) = self.indexed.first_entry()
            && entry.key().0 <= applied
        {
            let ((_, ticket), indexed) = entry.remove_entry();
            self.places.remove(&ticket);
            serve(ticket, indexed.is_latest);
        }
    }

    /// Serves what allows data of this age.
    pub(crate) fn release_bounded(&mut self, age: Duration, mut serve: impl FnMut(u64)) {
        self.bounded.retain(|_, read| {
            if age <= read.bound {
                self.places.remove(&read.ticket);
                serve(read.ticket);
            }
            age > read.bound
        });
    }

    /// Takes the reads that ended in this way.
    pub(crate) fn take_ended(&mut self, wanted: End) -> Vec<u64> {
        self.remove_ended(|_, end| end == wanted)
    }

    fn remove_ended(&mut self, is_removed: impl Fn(u64, End) -> bool) -> Vec<u64> {
        let mut removed = Vec::new();
        self.ended.retain(|_, &mut (ticket, end)| {
            let is_removed = is_removed(ticket, end);
            removed.extend(is_removed.then_some(ticket));
            !is_removed
        });
        for ticket in &removed {
            self.places.remove(ticket);
        }
        removed
    }

    /// Forgets a read, wherever it waits.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        match self.places.remove(&ticket) {
            Some(Place::Awaiting(number)) => drop(self.awaiting.remove(&number)),
            Some(Place::Indexed(index)) => drop(self.indexed.remove(&(index, ticket))),
            Some(Place::Bounded(number)) => drop(self.bounded.remove(&number)),
            Some(Place::Ended(number)) => drop(self.ended.remove(&number)),
            None => {}
        }
    }

    /// Forgets these reads, wherever they wait, in one walk.
    pub(crate) fn cancel_each(&mut self, is_cancelled: impl Fn(u64) -> bool) {
        let cancelled: Vec<u64> = self.places.keys().copied().filter(|ticket| is_cancelled(*ticket)).collect();
        cancelled.into_iter().for_each(|ticket| self.cancel(ticket));
    }

    /// When [`Waiting::expire`] has something to do; not later, perhaps earlier.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let patience = self.patience();
        let gathered = self.gathered().next().map(|(_, since)| since + patience);
        let asked = self.asked.front().map(|asked| asked.sent + patience);
        let indexed = (!self.indexed.is_empty()).then(|| self.indexed_since + patience);
        let bounded = (!self.bounded.is_empty()).then_some(self.bounded_limit);
        [gathered, asked, indexed, bounded].into_iter().flatten().min()
    }

    /// Ends what has waited long enough. Returns whether any read ended.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let patience = self.patience();
        let mut over: Vec<u64> =
            self.gathered().take_while(|(_, since)| now >= *since + patience).map(|it| it.0).collect();
        while self.asked.front().is_some_and(|asked| now >= asked.sent + patience) {
            let Some(asked) = self.asked.pop_front() else { break };
            self.is_unanswered = true;
            over.extend(self.take_awaiting(asked.reads));
        }
        if !self.indexed.is_empty() && now >= self.indexed_since + patience {
            let mut oldest = now;
            self.indexed.retain(|&(_, ticket), indexed| {
                let is_over = now >= indexed.since + patience;
                if is_over {
                    over.push(ticket);
                } else {
                    oldest = oldest.min(indexed.since);
                }
                !is_over
            });
            self.indexed_since = oldest;
        }
        if !self.bounded.is_empty() && now >= self.bounded_limit {
            let mut earliest = Instant(u64::MAX);
            self.bounded.retain(|_, read| {
                let is_over = now >= read.limit;
                if is_over {
                    over.push(read.ticket);
                } else {
                    earliest = earliest.min(read.limit);
                }
                !is_over
            });
            self.bounded_limit = earliest;
        }
        self.end(over, End::Lagging);
        !self.ended.is_empty()
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
