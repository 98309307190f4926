//! Reads of the latest at a replica that does not lead, served without the leader: because a majority of the voters' logs says
//! that nothing which touches their keys is missing here. Decision 018 has the rules, and why they are safe.
//!
//! ```text
//! gathered --questions leave--> asked --a majority says "nowhere", or an index that is applied here--> served
//!     ^                           |
//!     +------ask again------------+
//! ```
//!
//! The leader is asked as well wherever there is one (`waiting.rs`); what comes first serves the read.

use crate::group::Group;
use crate::ready::FIRST;
use crate::round_trip::RoundTrip;
use crate::tail::Touches;
use crate::waiting::End;
use core::time::Duration;
use hedgerow_types::{Index, Instant, ReplicaId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reads in one question; more of them wait for the next one.
pub const QUORUM_READS_MAX: usize = 1_024;
/// Questions of one group that may be unanswered; above it reads wait until one is answered or given up.
const QUESTIONS_MAX: usize = 64;

/// A leader that takes this many usual round trips for an answer, and half a tick, is silent. Half of what a read waits for it at least
/// ([`RoundTrip::patience`], a tick), so that there is time left to ask others.
const USUAL_ROUND_TRIPS: u32 = 4;

/// A question that leaves now: it goes to all of `voters`, and the asking replica answers it itself, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailQuestion {
    /// What touches the keys of the reads after this index?
    pub after: Index,
    /// Who is asked, besides the asking replica.
    pub voters: Vec<ReplicaId>,
    /// The reads, in the order in which the answers are to speak of them.
    pub tickets: Vec<u64>,
}

/// A read that waits for answers.
#[derive(Clone, Copy, Debug)]
struct Read {
    ticket: u64,
    /// When it was first gathered.
    since: Instant,
    /// Where the answers speak of it.
    place: usize,
}

/// A question that has left.
#[derive(Debug)]
struct Asked {
    id: u64,
    after: Index,
    /// Which membership was in force at `after`.
    membership_at: Index,
    sent: Instant,
    voters: Vec<ReplicaId>,
    /// How many reads it spoke of,
    count: usize,
    /// and those of them that may still wait.
    reads: Vec<Read>,
    /// `None` = to be asked again.
    answers: BTreeMap<ReplicaId, Option<Touches>>,
}

/// Reads that a majority of the voters may serve.
#[derive(Debug)]
pub(crate) struct Quorum {
    patience: (Duration, Duration),
    round_trip: RoundTrip,
    /// The reads that wait. Others may still stand below, so that to end one costs nothing.
    tickets: BTreeSet<u64>,
    gathered: VecDeque<(u64, Instant)>,
    /// In the order in which they left.
    asked: VecDeque<Asked>,
    /// Everything that waits for the answers to questions which left until then asks a majority, since the leader owes them.
    owed_until: Option<Instant>,
    /// Nobody answered a question, and nothing has changed since: a replica that is cut off need not wait to find that out again.
    pub(crate) is_unanswered: bool,
}

impl Quorum {
    pub(crate) fn new(patience_min: Duration, patience_max: Duration) -> Self {
        Self {
            patience: (patience_min, patience_max),
            round_trip: RoundTrip::default(),
            tickets: BTreeSet::new(),
            gathered: VecDeque::new(),
            asked: VecDeque::new(),
            owed_until: None,
            is_unanswered: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.tickets.len()
    }

    pub(crate) fn holds(&self, ticket: u64) -> bool {
        self.tickets.contains(&ticket)
    }

    /// The reads that wait.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = u64> {
        self.tickets.iter().copied()
    }

    fn gather(&mut self, ticket: u64, since: Instant) {
        self.tickets.insert(ticket);
        self.gathered.push_back((ticket, since));
    }

    /// A read joins the last question that has left. Never right; for a test.
    fn join_last(&mut self, ticket: u64, since: Instant) -> bool {
        let Some(last) = self.asked.back_mut() else { return false };
        last.reads.push(Read { ticket, since, place: 0 });
        self.tickets.insert(ticket)
    }

    /// The read waits no more, or never did.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        self.tickets.remove(&ticket);
        self.forget_ended();
    }

    fn patience(&self) -> Duration {
        self.round_trip.patience(self.patience.0, self.patience.1)
    }

    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let patience = self.patience();
        let gathered = self.gathered.iter().map(|&(_, since)| since + patience);
        let asked = self.asked.front().map(|asked| asked.sent + patience);
        let reads = self.asked.iter().flat_map(|asked| &asked.reads).map(|read| read.since + 2 * patience);
        gathered.chain(asked).chain(reads).min()
    }

    /// Takes all reads.
    pub(crate) fn take_all(&mut self) -> BTreeSet<u64> {
        self.gathered.clear();
        self.asked.clear();
        core::mem::take(&mut self.tickets)
    }

    /// Takes the reads that have waited long enough: for their question to leave, for the answers, or, where it was asked again and
    /// again, for both.
    fn expire(&mut self, now: Instant) -> Vec<u64> {
        let patience = self.patience();
        let mut over = Vec::new();
        self.gathered.retain(|&(ticket, since)| {
            let is_over = now >= since + patience;
            over.extend(is_over.then_some(ticket));
            !is_over
        });
        for asked in &mut self.asked {
            let is_over = now >= asked.sent + patience;
            if is_over && asked.answers.keys().all(|voter| !asked.voters.contains(voter)) {
                self.is_unanswered = true;
            }
            let reads = asked.reads.extract_if(.., |read| is_over || now >= read.since + 2 * patience);
            over.extend(reads.map(|read| read.ticket));
        }
        self.asked.retain(|asked| !asked.reads.is_empty());
        over.retain(|ticket| self.tickets.remove(ticket));
        self.forget_ended();
        over
    }

    fn forget_ended(&mut self) {
        if self.tickets.is_empty() {
            self.gathered.clear();
            self.asked.clear();
        }
    }
}

impl Group {
    /// Whether this replica may answer what its log's end touches: not while its log goes with another state than its own.
    pub(crate) fn answers_for_tail(&self) -> bool {
        self.applied() >= FIRST.index && !self.is_taking_snapshot()
    }

    /// Whether a majority of the voters can be asked without the leader that this replica follows, by the membership that was in
    /// force at the applied index.
    fn has_other_majority(&self) -> bool {
        let leader = self.followed();
        !self.is_leader()
            && self.answers_for_tail()
            && self.membership_at <= self.applied()
            && self.membership.is_majority(|voter| Some(voter) != leader)
    }

    /// Whether the leader looks unreachable: nothing came from it for two heartbeats, or it owes an answer for longer than answers take. Or
    /// there is none.
    fn is_leader_silent(&self, now: Instant) -> bool {
        let heard_at = self.followed().and_then(|leader| self.contact.heard_at(self.term(), leader));
        let is_unheard = heard_at.is_none_or(|at| now.since(at) > self.settings.missed_after());
        let is_owed = self.waiting.first_sent_after(None).is_some_and(|sent| now.since(sent) >= self.silent_after());
        is_unheard || is_owed || self.waiting.is_unanswered
    }

    /// A leader that owes an answer for so long is silent.
    fn silent_after(&self) -> Duration {
        let usual = self.waiting.round_trip.smoothed().unwrap_or_default() * USUAL_ROUND_TRIPS;
        usual.max(self.settings.tick / 2)
    }

    /// When the leader counts as silent to reads that wait for its word; `None` = none does, or they have asked others for that reason.
    pub(crate) fn silent_at(&self) -> Option<Instant> {
        let sent = self.waiting.first_sent_after(self.quorum.owed_until)?;
        self.waiting.is_awaiting_leader().then(|| sent + self.silent_after())
    }

    /// A read of the latest has come that waits for the leader's word, or would: a majority is asked, too, if the leader is
    /// silent. Returns whether it is.
    pub(crate) fn gather_for_quorum(&mut self, ticket: u64, now: Instant) -> bool {
        let asks = !self.quorum.is_unanswered && self.is_leader_silent(now) && self.has_other_majority();
        if asks {
            self.push_for_quorum(ticket, now);
        }
        asks
    }

    fn push_for_quorum(&mut self, ticket: u64, since: Instant) {
        if !(self.joins_sent_tail_question() && self.quorum.join_last(ticket, since)) {
            self.quorum.gather(ticket, since);
        }
        self.is_dirty = true;
    }

    /// The read with `ticket` needs the latest, has just begun to wait, and is an extra attempt: somebody waits for it. The other voters are
    /// asked, too, without waiting for the leader to fall silent.
    pub fn hasten_read(&mut self, ticket: u64, now: Instant) {
        let now = self.advance(now);
        if !self.quorum.holds(ticket) && self.has_other_majority() {
            self.push_for_quorum(ticket, now);
        }
    }

    /// The leader has fallen silent, or is gone: everything that waits for its word asks a majority.
    pub(crate) fn ask_quorum_for_all(&mut self) {
        if self.quorum.is_unanswered || !self.has_other_majority() {
            return;
        }
        // Their patience goes on: nobody waits longer because there are two ways to be served.
        for (ticket, since) in self.waiting.awaiting_leader() {
            if !self.quorum.holds(ticket) {
                self.push_for_quorum(ticket, since);
            }
        }
    }

    /// Has what waits for a leader that has fallen silent ask a majority.
    pub(crate) fn tick_silence(&mut self, now: Instant) {
        if self.waiting.is_awaiting_leader() && self.is_leader_silent(now) {
            self.quorum.owed_until = self.waiting.last_sent();
            self.ask_quorum_for_all();
        }
    }

    pub(crate) fn tick_quorum(&mut self, now: Instant) {
        if self.quorum.is_empty() {
            return;
        }
        let mut expired = self.quorum.expire(now);
        if !expired.is_empty() {
            // Those that wait by the leader's word, too, end there.
            let waiting = self.waiting.tickets();
            expired.retain(|ticket| !waiting.contains(ticket));
            self.waiting.end(expired, End::Lagging);
            self.is_dirty = true;
        }
    }

    /// Whether reads wait here for a question to the voters' logs. The host gathers the questions of all groups
    /// ([`crate::ReadIndexBatcher`]), and makes each by [`Group::ask_tails`] just before they leave.
    pub fn wants_to_ask_tails(&self) -> bool {
        !self.quorum.gathered.is_empty() && self.quorum.asked.len() < QUESTIONS_MAX && self.has_other_majority()
    }

    /// Makes a question, to be sent at once. `id` has never been used at this node. The host answers for this replica at once.
    pub fn ask_tails(&mut self, id: u64, now: Instant) -> Option<TailQuestion> {
        let now = self.advance(now);
        if !self.wants_to_ask_tails() {
            return None;
        }
        let leader = self.followed();
        let is_asked = |voter: &ReplicaId| *voter != self.replica && Some(*voter) != leader;
        let voters = self.membership.replicas().into_iter().filter(|it| self.membership.is_voter(*it));
        let voters: Vec<_> = voters.filter(is_asked).collect();
        let Quorum { tickets: waiting, gathered, .. } = &mut self.quorum;
        gathered.retain(|(ticket, _)| waiting.contains(ticket));
        let count = gathered.len().min(QUORUM_READS_MAX);
        let reads = gathered.drain(..count).enumerate();
        let reads: Vec<_> = reads.map(|(place, (ticket, since))| Read { ticket, since, place }).collect();
        if reads.is_empty() {
            return None;
        }
        let tickets = reads.iter().map(|read| read.ticket).collect();
        let after = self.applied();
        self.quorum.asked.push_back(Asked {
            id,
            after,
            membership_at: self.membership_at,
            sent: now,
            voters: voters.clone(),
            count,
            reads,
            answers: BTreeMap::new(),
        });
        Some(TailQuestion { after, voters, tickets })
    }

    /// What the log of `from` says, this replica's own included; `None` = it has to be asked again. Returns whether somebody
    /// had waited for it.
    pub fn handle_tail_reply(&mut self, from: ReplicaId, id: u64, touches: Option<Touches>, now: Instant) -> bool {
        let now = self.advance(now);
        let own = self.replica;
        let Some(asked) = self.quorum.asked.iter_mut().find(|asked| asked.id == id) else { return false };
        let is_addressed = from == own || asked.voters.contains(&from);
        let is_whole = touches.as_ref().is_none_or(|touches| touches.reads.len() == asked.count);
        if !is_addressed || !is_whole || asked.answers.contains_key(&from) {
            return false;
        }
        asked.answers.insert(from, touches);
        if from != own {
            let sent = asked.sent;
            self.quorum.round_trip.take(now.since(sent));
            self.quorum.is_unanswered = false;
        }
        self.is_dirty = true;
        true
    }

    /// Takes the reads that are served now, each with the times of the logs that stand behind it; what has to be asked again is
    /// gathered.
    pub(crate) fn release_by_quorum(&mut self) -> BTreeMap<u64, Option<(u32, u32)>> {
        let mut served = BTreeMap::new();
        let (own, applied, membership_at) = (self.replica, self.applied(), self.membership_at);
        for mut asked in core::mem::take(&mut self.quorum.asked) {
            asked.reads.retain(|read| self.quorum.tickets.contains(&read.ticket));
            let Asked { after, ref voters, ref answers, .. } = asked;
            let is_same_membership = asked.membership_at == membership_at;
            let is_sure = |read: &Read| {
                let counts = |voter: ReplicaId| {
                    let touches = answers.get(&voter).and_then(Option::as_ref);
                    touches.is_some_and(|it| it.reads[read.place] <= applied || self.ignores_touches())
                };
                let is_enough = self.asks_own_log_only() && counts(own);
                is_enough || (is_same_membership && self.membership.is_majority(counts))
            };
            let times = answers.values().flatten().map(|touches| touches.times).fold(None, Touches::join);
            served.extend(asked.reads.extract_if(.., |read| is_sure(read)).map(|read| (read.ticket, times)));
            let may_count = |voter| (voter == own || voters.contains(&voter)) && answers.get(&voter) != Some(&None);
            // The same question would get the same answers.
            let is_in_vain = !is_same_membership || !self.membership.is_majority(may_count);
            if is_in_vain && applied > after {
                asked.reads.drain(..).for_each(|read| self.quorum.gather(read.ticket, read.since));
            }
            if !asked.reads.is_empty() {
                self.quorum.asked.push_back(asked);
            }
        }
        served.keys().for_each(|ticket| self.quorum.cancel(*ticket));
        served
    }
}
