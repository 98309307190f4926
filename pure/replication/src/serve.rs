//! How a read starts, waits and ends at any kind of replica, and how a leader answers those of others.
//!
//! What a leader may promise alone is in `lease.rs`, who waits for what in `reads.rs` and `waiting.rs`, how old the data may
//! be in `freshness.rs`. Decision 008 has the argument why it is safe.

use crate::freshness::age;
use crate::group::Group;
use crate::ready::{FIRST, Proof, ReadIndexReply, ReadIndexRequest, ReadNeed, ReadOutcome, ReadStart, Ready, Served};
use crate::settings::{LAG_MAX, NUMBER_MAX, QUESTIONS_WAITING_MAX, READS_WAITING_MAX};
use crate::waiting::End;
use core::time::Duration;
use hedgerow_types::log::LogPosition;
use hedgerow_types::{Index, Instant, Lag, ReplicaId};

const TOO_MANY: ReadStart = ReadStart::NotReady("too many reads wait in this group");

impl Group {
    /// Begins a read that arrived just now and may be served here, at whatever kind of replica this is. `ticket` names it if
    /// it has to wait; tickets must differ.
    pub fn read(&mut self, ticket: u64, need: ReadNeed, now: Instant) -> ReadStart {
        let now = self.advance(now);
        if need == ReadNeed::Latest && self.leads() {
            return self.read_latest_as_leader(ticket, now);
        }
        if self.applied() < FIRST.index {
            return ReadStart::NotReady("the replica waits for its first snapshot");
        }
        if self.flow.is_installing() {
            return ReadStart::NotReady("the replica installs a snapshot");
        }
        match need {
            ReadNeed::Latest => self.read_latest_as_follower(ticket, now),
            ReadNeed::AtLeast(index) => self.read_at_least(ticket, index, now),
            ReadNeed::Within(bound) => self.read_within(ticket, bound, now),
            ReadNeed::Anything => ReadStart::Serve(Served::aged(self.staleness(now))),
        }
    }

    fn read_latest_as_leader(&mut self, ticket: u64, now: Instant) -> ReadStart {
        if self.reads.len() >= READS_WAITING_MAX {
            return TOO_MANY;
        }
        let commit = self.commit();
        let has_lease = self.lease_holds(now);
        if has_lease && (commit <= self.applied() || self.skips_apply_wait()) {
            return ReadStart::Serve(Served::LATEST);
        }
        self.reads.push(ticket, now, self.has_own_commit().then_some(commit));
        if has_lease {
            self.reads.confirm(now);
        } else {
            self.wants_ping = true;
        }
        self.is_dirty = true;
        ReadStart::Wait
    }

    fn read_latest_as_follower(&mut self, ticket: u64, now: Instant) -> ReadStart {
        if self.entries_behind() > LAG_MAX {
            return ReadStart::Lagging(self.lag(now));
        }
        if self.waiting.count().max(self.quorum.count()) >= READS_WAITING_MAX {
            return TOO_MANY;
        }
        let asks_quorum = self.gather_for_quorum(ticket, now);
        if self.followed().is_none() {
            return if asks_quorum { ReadStart::Wait } else { ReadStart::NotLeader { leader: None } };
        }
        if !(self.joins_sent_request() && self.waiting.join_last(ticket)) {
            self.waiting.gather(ticket, now);
        }
        ReadStart::Wait
    }

    fn read_at_least(&mut self, ticket: u64, index: Index, now: Instant) -> ReadStart {
        if index <= self.applied() || self.ignores_session_floor() {
            return ReadStart::Serve(Served::aged(self.staleness(now)));
        }
        if !self.leads() && self.followed().is_none() {
            return ReadStart::NotLeader { leader: None };
        }
        if self.entries_behind().max(index - self.applied()) > LAG_MAX {
            return ReadStart::Lagging(self.lag(now));
        }
        if self.waiting.count() >= READS_WAITING_MAX {
            return TOO_MANY;
        }
        // The answer brings the commit index, which a follower would otherwise learn with the next append or heartbeat.
        self.waiting.wants_question |= !self.is_leader() && index > self.commit();
        self.waiting.push_indexed(ticket, index, false, now);
        ReadStart::Wait
    }

    fn read_within(&mut self, ticket: u64, bound: Duration, now: Instant) -> ReadStart {
        self.prove_leading(now);
        if !self.is_leader() {
            self.freshness.note_demand(bound, now);
        }
        if let Some(staleness) = self.staleness(now)
            && staleness <= bound
        {
            return ReadStart::Serve(Served::aged(Some(staleness)));
        }
        if self.entries_behind() > LAG_MAX || !self.may_prove_within(bound, now) {
            return ReadStart::Lagging(self.lag(now));
        }
        if self.waiting.count() >= READS_WAITING_MAX {
            return TOO_MANY;
        }
        if self.is_leader() {
            (self.wants_ping, self.is_dirty) = (true, true);
        } else if self.waiting.last_sent().is_none_or(|sent| now.since(sent) > bound / 2) {
            self.waiting.wants_question = true;
        }
        self.waiting.push_bounded(ticket, bound, now);
        ReadStart::Wait
    }

    /// Whether it makes sense to wait for a proof: a majority, or the leader, was heard lately, questions are answered, and
    /// faster than the bound. Otherwise a read would wait for nothing.
    fn may_prove_within(&self, bound: Duration, now: Instant) -> bool {
        let heard_at = match self.followed() {
            Some(leader) => self.contact.heard_at(self.term(), leader),
            None if self.leads() => self.contact.quorum(),
            None => None,
        };
        let is_fast = self.is_leader() || self.waiting.round_trip.smoothed().is_none_or(|known| known <= bound);
        is_fast
            && !self.waiting.is_unanswered
            && heard_at.is_some_and(|heard_at| now.since(heard_at) <= self.settings.missed_after())
    }

    /// The leader that this replica follows.
    pub(crate) fn followed(&self) -> Option<ReplicaId> {
        self.leader().filter(|&leader| leader != self.replica && !self.is_leader())
    }

    /// Committed entries, as far as known here, that are not applied.
    fn entries_behind(&self) -> u64 {
        self.commit().max(self.waiting.leader_commit).saturating_sub(self.applied())
    }

    /// How old the data here may be at most; `None` without a proof.
    fn staleness(&self, now: Instant) -> Option<Duration> {
        if self.leads() && self.applied() >= self.commit() && self.lease_holds(now) {
            return Some(Duration::ZERO);
        }
        let rate_error_ppm = if self.ignores_clock_rate() { 0 } else { self.settings.clock_rate_error_ppm };
        self.freshness.complete_at().map(|complete_at| age(complete_at, now, rate_error_ppm))
    }

    /// A leader's proof: at the time of its quorum contact, or now if the lease holds, no other can have led, so everything
    /// acknowledged until then is committed here.
    fn prove_leading(&mut self, now: Instant) {
        if !self.leads() || !self.has_own_commit() {
            return;
        }
        let is_sure = self.lease_holds(now) || self.proves_without_quorum();
        let led_at = if is_sure { Some(now) } else { self.contact.quorum().map(|time| time.min(now)) };
        if let Some(led_at) = led_at {
            self.freshness.prove(led_at, self.commit(), self.applied());
        }
    }

    /// How far behind this replica is, as far as it knows.
    pub fn lag(&self, now: Instant) -> Lag {
        Lag { entries: self.entries_behind(), staleness: self.staleness(now) }
    }

    /// Forgets a read that waits; nothing happens if it does not.
    pub fn cancel_read(&mut self, ticket: u64) {
        self.reads.cancel(&ticket);
        self.waiting.cancel(ticket);
        self.quorum.cancel(ticket);
    }

    /// The leader's node to ask on behalf of reads that wait here, if there is something to ask now. The host gathers the
    /// questions of all groups for one node into one message ([`crate::ReadIndexBatcher`]); just before that leaves, [`Group::ask`]
    /// makes the question.
    pub fn wants_to_ask(&self, now: Instant) -> Option<ReplicaId> {
        if self.waiting.wants_to_ask() || self.is_refresh_due(now) { self.followed() } else { None }
    }

    /// Makes the question that [`Group::wants_to_ask`] spoke of, to be sent at once; `id` has never been used at this
    /// node. `None` if there is nothing to ask any more.
    pub fn ask(&mut self, id: u64, now: Instant) -> Option<(ReplicaId, ReadIndexRequest)> {
        let now = self.advance(now);
        let leader = self.wants_to_ask(now)?;
        let term = self.term();
        self.waiting.ask(id, term, leader, now);
        Some((leader, ReadIndexRequest { term, id }))
    }

    /// Whether the proof of freshness is to be renewed: one question at a time, and any that is under way will do.
    fn is_refresh_due(&self, now: Instant) -> bool {
        self.refresh_at().is_some_and(|due| now >= due)
    }

    fn refresh_at(&self) -> Option<Instant> {
        let is_asking = self.waiting.last_sent().is_some();
        self.freshness.refresh_at().filter(|_| !is_asking).map(|due| due.max(self.waiting.quiet_until))
    }

    /// The answer to a question came.
    pub fn handle_read_index_reply(&mut self, from: ReplicaId, answer: ReadIndexReply, now: Instant) {
        let now = self.advance(now);
        let takes_any = self.takes_any_answer();
        let asked = self.waiting.take_asked(|asked| takes_any || (asked.id == answer.id && asked.leader == from));
        let Some(asked) = asked else { return };
        self.is_dirty = true;
        let Some(commit) = answer.commit else {
            // Whoever leads now will be heard of; until then its predecessor is not asked again and again.
            self.waiting.quiet_until = now + self.waiting.patience();
            self.waiting.end(asked.tickets, End::Refused);
            return self.waiting.keep_from_ending(End::Refused, |ticket| self.quorum.holds(ticket));
        };
        let is_position = (1..=answer.term).contains(&commit.term) && commit.index < NUMBER_MAX;
        let is_sound = answer.term == asked.term && is_position;
        if !is_sound && !takes_any {
            return self.waiting.end(asked.tickets, End::Refused);
        }
        self.waiting.round_trip.take(now.since(asked.sent));
        self.waiting.is_unanswered = false;
        self.waiting.leader_commit = self.waiting.leader_commit.max(commit.index);
        let complete_at = if self.proves_from_receipt() { now } else { asked.sent };
        let applied = if self.proves_before_apply() { commit.index } else { self.applied() };
        self.freshness.prove(complete_at, commit.index, applied);
        for ticket in asked.tickets {
            self.waiting.push_indexed(ticket, commit.index, true, now);
        }
        self.learn_commit(commit);
    }

    /// What a heartbeat to `to` proves there: a response to an earlier one is a question, and this is its answer. It arrived before now, and the commit
    /// index of a leader that holds its lease now covers whatever was acknowledged until then.
    pub(crate) fn proof_for(&self, to: ReplicaId, now: Instant) -> Option<(u64, Index)> {
        let stamp = self.contact.stamp_of(to);
        (stamp != 0 && self.is_leader() && self.may_answer(now)).then(|| (stamp, self.commit()))
    }

    /// A heartbeat gave back the stamp of a response: everything acknowledged before that left is in the log up to `index`.
    pub(crate) fn take_proof(&mut self, stamp: Instant, index: Index, now: Instant) {
        if !self.freshness.has_stamp(stamp) {
            return;
        }
        let complete_at = if self.proves_from_receipt() { now } else { stamp };
        let applied = if self.proves_before_apply() { index } else { self.applied() };
        self.freshness.prove(complete_at, index, applied);
        // A response and a heartbeat have arrived as a question and its answer would.
        self.waiting.is_unanswered = false;
        // The leader has committed an entry of its own term, so that what stands at its commit index is of that term, too.
        self.learn_commit(LogPosition { index, term: self.term() });
    }

    /// The leader's log is committed up to there.
    fn learn_commit(&mut self, commit: LogPosition) {
        if commit.index > self.commit() && self.waiting.commit.is_none_or(|known| known.index < commit.index) {
            self.waiting.commit = Some(commit);
            self.carry_commit();
        }
    }

    /// Takes the leader's word for what is committed, as soon as the log holds it: an entry with the same index and term
    /// stands in the same log.
    pub(crate) fn carry_commit(&mut self) {
        let Some(commit) = self.waiting.commit else { return };
        let log = &mut self.core.raft.raft_log;
        if log.maybe_commit(commit.index, commit.term) {
            self.is_dirty = true;
        }
        if log.committed >= commit.index {
            self.waiting.commit = None;
        }
    }

    /// Another replica of the group asks. The answer comes in [`Ready::answers`]: at once under the lease, otherwise when a
    /// majority has confirmed that this replica led when the question arrived.
    pub fn handle_read_index_request(&mut self, from: ReplicaId, question: ReadIndexRequest, now: Instant) {
        let now = self.advance(now);
        self.is_dirty = true;
        let is_addressed = self.leads() && question.term == self.term();
        if !is_addressed || self.questions.len() >= QUESTIONS_WAITING_MAX {
            return self.answer(from, question.id, None);
        }
        let commit = self.commit();
        if self.may_answer(now) {
            return self.answer(from, question.id, Some(commit));
        }
        self.questions.push((from, question.id), now, self.covers_all().then_some(commit));
        self.wants_ping = true;
    }

    /// Whether a leader's commit index covers whatever was committed before its term.
    fn covers_all(&self) -> bool {
        self.has_own_commit() || self.answers_before_own_commit()
    }

    /// Whether a leader may say at once what is committed.
    fn may_answer(&self, now: Instant) -> bool {
        self.covers_all() && (self.lease_runs(now) || self.answers_unconfirmed())
    }

    fn answer(&mut self, to: ReplicaId, id: u64, commit: Option<Index>) {
        let commit = commit.and_then(|index| self.position(index));
        self.answers.push((to, ReadIndexReply { term: self.term(), id, commit }));
    }

    /// The position at `index`, or of the commit index should the term at `index` be forgotten: a larger index is as good.
    fn position(&self, index: Index) -> Option<LogPosition> {
        let log = &self.core.raft.raft_log;
        let known = |index| log.term(index).ok().filter(|&term| term != 0).map(|term| LogPosition { term, index });
        known(index).or_else(|| known(log.committed))
    }

    /// The term, the leader or the role is new: what waits is asked anew, or refused.
    pub(crate) fn begin_reads_again(&mut self) {
        let has_leader = self.followed().is_some();
        self.quorum.is_unanswered = false;
        if self.is_leader() {
            // As a leader it answers them in another way, if they come again.
            let reads = self.quorum.take_all();
            self.waiting.cancel_each(|ticket| reads.contains(&ticket));
            self.waiting.end(reads.into_iter().collect(), End::Refused);
        } else if !has_leader {
            self.ask_quorum_for_all();
        }
        self.is_dirty |= self.waiting.begin_again(has_leader, self.clock());
        self.waiting.keep_from_ending(End::Refused, |ticket| self.quorum.holds(ticket));
        if has_leader {
            // Those that had no leader to ask have one now.
            let (asked, now) = (self.waiting.tickets(), self.clock());
            let others = self.quorum.tickets().filter(|ticket| !asked.contains(ticket));
            others.for_each(|ticket| self.waiting.gather(ticket, now));
        }
    }

    /// When the group wants [`Group::handle_tick`] to be called although no tick is due: a read has waited long enough, the leader that it
    /// waits for has become silent, or a proof of freshness is to be renewed.
    pub fn wakes_at(&self) -> Option<Instant> {
        let refresh = self.refresh_at().filter(|_| !self.waiting.wants_question && self.followed().is_some());
        [self.waiting.expires_at(), self.quorum.expires_at(), self.silent_at(), refresh].into_iter().flatten().min()
    }

    /// Ends reads that have waited long enough, and makes a refresh that is due something to ask.
    pub(crate) fn tick_reads(&mut self, now: Instant) {
        // Before anything expires, however late this comes.
        self.tick_silence(now);
        self.is_dirty |= self.waiting.expire(now);
        self.waiting.keep_from_ending(End::Lagging, |ticket| self.quorum.holds(ticket));
        self.tick_quorum(now);
        self.freshness.tick(now);
        // After what expired: a refresh that was given up is due again at once.
        if self.is_refresh_due(now) && self.followed().is_some() {
            self.waiting.wants_question = true;
        }
    }

    /// Whether [`Group::poll_reads`] has anything to look at.
    pub(crate) fn has_reads(&self) -> bool {
        let is_waited_for = self.reads.is_empty() && self.waiting.is_empty() && self.quorum.is_empty();
        !(is_waited_for && self.questions.is_empty() && self.answers.is_empty())
    }

    /// Ends reads that waited: those of a lost leadership, and those whose time has come. Answers questions likewise.
    pub(crate) fn poll_reads(&mut self, ready: &mut Ready, now: Instant) {
        self.poll_answers(now);
        ready.answers = core::mem::take(&mut self.answers);
        let refused = self.reads.take_refused().into_iter().chain(self.waiting.take_ended(End::Refused));
        ready.reads.extend(refused.map(|ticket| (ticket, ReadOutcome::Refused)));
        if !ready.reads.is_empty() {
            return;
        }
        self.poll_waiting(ready, now);
        if self.reads.is_empty() || !self.is_leader() {
            return;
        }
        if self.has_own_commit() {
            self.reads.assign(self.commit());
        }
        if self.lease_holds(now) || self.skips_quorum_check() {
            self.reads.confirm(now);
        } else if let Some(sent) = self.contact.quorum() {
            self.reads.confirm(sent);
        }
        let applied = if self.skips_apply_wait() { u64::MAX } else { self.applied() };
        self.reads.release(applied, |ticket, _| ready.reads.push((ticket, ReadOutcome::Serve(Served::LATEST))));
    }

    /// Answers the questions whose confirmation has come, and those that a lost leadership leaves behind.
    fn poll_answers(&mut self, now: Instant) {
        if self.questions.is_empty() {
            return;
        }
        for (from, id) in self.questions.take_refused() {
            self.answer(from, id, None);
        }
        if !self.is_leader() {
            return;
        }
        if self.has_own_commit() {
            self.questions.assign(self.commit());
        }
        if self.lease_holds(now) {
            self.questions.confirm(now);
        } else if let Some(sent) = self.contact.quorum() {
            self.questions.confirm(sent);
        }
        let mut confirmed = Vec::new();
        self.questions.release(u64::MAX, |(from, id), index| confirmed.push((from, id, index)));
        for (from, id, index) in confirmed {
            self.answer(from, id, Some(index));
        }
    }

    /// Ends the reads that wait for an index or a proof.
    fn poll_waiting(&mut self, ready: &mut Ready, now: Instant) {
        let applied = if self.follower_skips_apply_wait() { u64::MAX } else { self.applied() };
        if self.waiting.is_empty() && self.quorum.is_empty() {
            return;
        }
        let lagging = self.waiting.take_ended(End::Lagging);
        if !lagging.is_empty() {
            let lag = self.lag(now);
            ready.reads.extend(lagging.into_iter().map(|ticket| (ticket, ReadOutcome::Lagging(lag))));
        }
        if self.flow.is_installing() {
            return;
        }
        if self.waiting.has_bounded() {
            self.prove_leading(now);
        }
        let staleness = self.staleness(now);
        let quorum = &mut self.quorum;
        self.waiting.release(applied, |ticket, is_latest| {
            let served = if is_latest { Served::LATEST } else { Served::aged(staleness) };
            quorum.cancel(ticket);
            ready.reads.push((ticket, ReadOutcome::Serve(served)));
        });
        if let Some(age) = staleness {
            self.waiting.release_bounded(age, |ticket| {
                ready.reads.push((ticket, ReadOutcome::Serve(Served::aged(staleness))));
            });
        }
        let served = self.release_by_quorum();
        if !served.is_empty() {
            self.waiting.cancel_each(|ticket| served.contains_key(&ticket));
        }
        for (ticket, tail_times) in served {
            let served = Served { by: Proof::Quorum { tail_times }, ..Served::LATEST };
            ready.reads.push((ticket, ReadOutcome::Serve(served)));
        }
    }
}
