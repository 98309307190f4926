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

use crate::round_trip::RoundTrip;
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
    pub(crate) term: Term,
    pub(crate) leader: ReplicaId,
    pub(crate) sent: Instant,
    pub(crate) tickets: Vec<u64>,
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
    gathered: VecDeque<(u64, Instant)>,
    /// In the order in which they left.
    asked: VecDeque<Asked>,
    asked_tickets: usize,
    indexed: BTreeMap<(Index, u64), Indexed>,
    /// No read began to wait for its index earlier.
    indexed_since: Instant,
    bounded: Vec<Bounded>,
    /// No read that waits for a proof has an earlier limit.
    bounded_limit: Instant,
    ended: Vec<(u64, End)>,
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
            gathered: VecDeque::new(),
            asked: VecDeque::new(),
            asked_tickets: 0,
            indexed: BTreeMap::new(),
            indexed_since: Instant::ZERO,
            bounded: Vec::new(),
            bounded_limit: Instant::ZERO,
            ended: Vec::new(),
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
        self.gathered.len() + self.asked_tickets + self.indexed.len() + self.bounded.len()
    }

    /// Whether nothing waits and nothing has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0 && self.ended.is_empty()
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
        self.gathered.push_back((ticket, now));
    }

    /// A read joins the last question that has left. Never right; for a test.
    pub(crate) fn join_last(&mut self, ticket: u64) -> bool {
        let Some(last) = self.asked.back_mut() else { return false };
        last.tickets.push(ticket);
        self.asked_tickets += 1;
        true
    }

    /// The reads that wait here for anything but a proof.
    pub(crate) fn tickets(&self) -> BTreeSet<u64> {
        let awaiting = self.awaiting_leader().into_iter().map(|(ticket, _)| ticket);
        awaiting.chain(self.indexed.keys().map(|&(_, ticket)| ticket)).collect()
    }

    /// Whether any read waits for the leader's word.
    pub(crate) fn is_awaiting_leader(&self) -> bool {
        self.gathered.len() + self.asked_tickets > 0
    }

    /// Those that do, each with since when it has waited for its question to leave, or for the answer.
    pub(crate) fn awaiting_leader(&self) -> Vec<(u64, Instant)> {
        let of = |asked: &Asked| asked.tickets.iter().map(|ticket| (*ticket, asked.sent)).collect::<Vec<_>>();
        self.gathered.iter().copied().chain(self.asked.iter().flat_map(of)).collect()
    }

    /// Reads that have ended so here and are `kept` wait elsewhere, and go on doing so.
    pub(crate) fn keep_from_ending(&mut self, end: End, kept: impl Fn(u64) -> bool) {
        self.ended.retain(|&(ticket, ended)| ended != end || !kept(ticket));
    }

    /// A read waits until `index` is applied.
    pub(crate) fn push_indexed(&mut self, ticket: u64, index: Index, is_latest: bool, now: Instant) {
        if self.indexed.is_empty() {
            self.indexed_since = now;
        }
        self.indexed.insert((index, ticket), Indexed { since: now, is_latest });
    }

    /// A read waits until there is a proof that is not older than `bound`.
    pub(crate) fn push_bounded(&mut self, ticket: u64, bound: Duration, now: Instant) {
        let limit = now + bound.min(self.patience());
        self.bounded_limit = if self.bounded.is_empty() { limit } else { limit.min(self.bounded_limit) };
        self.bounded.push(Bounded { ticket, bound, limit });
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
        (self.wants_question || !self.gathered.is_empty()) && self.asked.len() < REQUESTS_MAX
    }

    /// A question leaves now, for everything that is gathered.
    pub(crate) fn ask(&mut self, id: u64, term: Term, leader: ReplicaId, now: Instant) {
        let tickets: Vec<_> = self.gathered.drain(..).map(|(ticket, _)| ticket).collect();
        self.wants_question = false;
        self.asked_tickets += tickets.len();
        self.asked.push_back(Asked { id, term, leader, sent: now, tickets });
    }

    /// Takes the question that `matches`.
    pub(crate) fn take_asked(&mut self, matches: impl Fn(&Asked) -> bool) -> Option<Asked> {
        let position = self.asked.iter().rposition(matches)?;
        let asked = self.asked.remove(position)?;
        self.asked_tickets -= asked.tickets.len();
        Some(asked)
    }

    /// These reads end.
    pub(crate) fn end(&mut self, tickets: Vec<u64>, end: End) {
        self.ended.extend(tickets.into_iter().map(|ticket| (ticket, end)));
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
        let mut latest: Vec<u64> = self.gathered.drain(..).map(|(ticket, _)| ticket).collect();
        latest.extend(self.asked.drain(..).flat_map(|asked| asked.tickets));
        self.asked_tickets = 0;
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
            self.gathered.extend(latest.into_iter().map(|ticket| (ticket, now)));
            return false;
        }
        self.wants_question = false;
        others.extend(self.bounded.drain(..).map(|read| read.ticket));
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
            serve(ticket, indexed.is_latest);
        }
    }

    /// Serves what allows data of this age.
    pub(crate) fn release_bounded(&mut self, age: Duration, mut serve: impl FnMut(u64)) {
        self.bounded.retain(|read| {
            if age <= read.bound {
                serve(read.ticket);
            }
            age > read.bound
        });
    }

    /// Takes the reads that ended in this way.
    pub(crate) fn take_ended(&mut self, wanted: End) -> Vec<u64> {
        let taken = self.ended.iter().filter(|(_, end)| *end == wanted).map(|&(ticket, _)| ticket).collect();
        self.ended.retain(|(_, end)| *end != wanted);
        taken
    }

    /// Forgets a read, wherever it waits.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        self.cancel_each(|other| other == ticket);
    }

    /// Forgets these reads, wherever they wait, in one walk.
    pub(crate) fn cancel_each(&mut self, is_cancelled: impl Fn(u64) -> bool) {
        if self.is_empty() {
            return;
        }
        self.gathered.retain(|&(waiting, _)| !is_cancelled(waiting));
        for asked in &mut self.asked {
            asked.tickets.retain(|&waiting| !is_cancelled(waiting));
        }
        self.asked_tickets = self.asked.iter().map(|asked| asked.tickets.len()).sum();
        self.indexed.retain(|&(_, waiting), _| !is_cancelled(waiting));
        self.bounded.retain(|read| !is_cancelled(read.ticket));
        self.ended.retain(|&(ended, _)| !is_cancelled(ended));
    }

    /// When [`Waiting::expire`] has something to do; not later, perhaps earlier.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let patience = self.patience();
        let gathered = self.gathered.front().map(|&(_, since)| since + patience);
        let asked = self.asked.front().map(|asked| asked.sent + patience);
        let indexed = (!self.indexed.is_empty()).then(|| self.indexed_since + patience);
        let bounded = (!self.bounded.is_empty()).then_some(self.bounded_limit);
        [gathered, asked, indexed, bounded].into_iter().flatten().min()
    }

    /// Ends what has waited long enough. Returns whether any read ended.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let patience = self.patience();
        while self.gathered.front().is_some_and(|&(_, since)| now >= since + patience) {
            self.ended.extend(self.gathered.pop_front().map(|(ticket, _)| (ticket, End::Lagging)));
        }
        while self.asked.front().is_some_and(|asked| now >= asked.sent + patience) {
            let Some(asked) = self.asked.pop_front() else { break };
            self.is_unanswered = true;
            self.asked_tickets -= asked.tickets.len();
            self.end(asked.tickets, End::Lagging);
        }
        let ended = &mut self.ended;
        if !self.indexed.is_empty() && now >= self.indexed_since + patience {
            let mut oldest = now;
            self.indexed.retain(|&(_, ticket), indexed| {
                let is_over = now >= indexed.since + patience;
                if is_over {
                    ended.push((ticket, End::Lagging));
                } else {
                    oldest = oldest.min(indexed.since);
                }
                !is_over
            });
            self.indexed_since = oldest;
        }
        if !self.bounded.is_empty() && now >= self.bounded_limit {
            let mut earliest = Instant(u64::MAX);
            self.bounded.retain(|read| {
                let is_over = now >= read.limit;
                if is_over {
                    ended.push((read.ticket, End::Lagging));
                } else {
                    earliest = earliest.min(read.limit);
                }
                !is_over
            });
            self.bounded_limit = earliest;
        }
        !self.ended.is_empty()
    }
}
