//! A replica's view of its group: the state around the consensus core and the events that change it.
//!
//! What comes out is in `output.rs`, what is kept out in `guard.rs`, leases and reads are in `lease.rs`.

use crate::contact::Contact;
use crate::flow::Flow;
use crate::freshness::Freshness;
use crate::hold::Hold;
use crate::membership::{Change, Malformed, Membership, MembershipChange};
use crate::message::{Message, core_entry};
use crate::quorum::Quorum;
use crate::reads::Reads;
use crate::ready::{
    FIRST, Fetch, PeerProgress, ProposeError, ReadIndexReply, Role, RoleChange, SnapshotMeta, Start, StartError,
};
use crate::settings::{HELD_SIZE_MAX, Settings, UNCOMMITTED_SIZE_MAX};
use crate::waiting::Waiting;
use crate::window::Window;
use bytes::Bytes;
use core::time::Duration;
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Index, Instant, ReplicaId, Term};
use raft::eraftpb::{self, MessageType};
use raft::{Progress, ProgressState, RawNode, SnapshotStatus, StateRole};

/// Most ticks that one call of [`Group::handle_tick`] makes up for: after a pause the past does not happen all at once.
const TICKS_PER_CALL_MAX: u32 = 2;
/// A follower keeps this fraction of the leader's cache.
const FOLLOWER_CACHE_DIVISOR: usize = 16;
/// Election timeouts that a reluctant replica lets pass.
const RELUCTANCE: u32 = 4;

/// One replica's view of one Raft group. See the crate's documentation for how to drive it.
pub struct Group {
    pub(crate) settings: Settings,
    pub(crate) lease: Duration,
    group: GroupId,
    pub(crate) replica: ReplicaId,
    pub(crate) core: RawNode<Window>,
    pub(crate) membership: Membership,
    /// The entry with which it came into force.
    pub(crate) membership_at: Index,
    random: Random,
    /// The latest time seen: time never goes back, whatever the caller says.
    clock: Instant,
    /// Up to where ticks have been given to the core.
    ticked: Instant,
    /// Since when the replica waits for a leader, and for how long it will.
    election_since: Instant,
    election_timeout: Duration,
    pub(crate) contact: Contact,
    /// What the core was when it was last looked at.
    seen: Seen,
    /// As a leader: the index of the first entry of its own term.
    pub(crate) own_first: Index,
    /// As a leader: whether a transfer was ever begun in this term. A delayed message of it may still elect another.
    pub(crate) is_transfer_begun: bool,
    /// Whether it leaves elections to the others.
    is_reluctant: bool,
    /// Whether somebody campaigns, since a leader was last heard, who lacks what this replica has.
    is_asked_in_vain: bool,
    /// Proposals that the core gets all at once at the next chance.
    pub(crate) proposals: Vec<eraftpb::Entry>,
    proposals_size: usize,
    /// Reads that wait for this replica's own leadership to be confirmed.
    pub(crate) reads: Reads<u64>,
    /// Questions of other replicas that wait for the same: who asks, with which id.
    pub(crate) questions: Reads<(ReplicaId, u64)>,
    pub(crate) answers: Vec<(ReplicaId, ReadIndexReply)>,
    /// Reads that wait for something else.
    pub(crate) waiting: Waiting,
    /// Of those that wait for the leader's word, and where there is none, those that ask the other voters.
    pub(crate) quorum: Quorum,
    pub(crate) freshness: Freshness,
    pub(crate) wants_ping: bool,
    announced_commit: Index,
    pub(crate) flow: Flow,
    pub(crate) hold: Hold,
    pub(crate) reported: Option<RoleChange>,
    /// Whether something happened since [`Group::poll_ready`] last had nothing to say.
    pub(crate) is_dirty: bool,
    #[cfg(feature = "mutations")]
    pub(crate) mutations: crate::Mutations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    term: Term,
    vote: u64,
    is_leader: bool,
    leader: u64,
}

impl core::fmt::Debug for Group {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group")
            .field("group", &self.group)
            .field("replica", &self.replica)
            .field("role", &self.role())
            .field("term", &self.term())
            .field("commit", &self.commit())
            .field("applied", &self.applied())
            .field("last_index", &self.last_index())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// The replica as it was on its disk.
    pub fn new(settings: &Settings, start: Start, now: Instant) -> Result<Self, StartError> {
        settings.check().map_err(StartError::Settings)?;
        start.membership.check().map_err(StartError::Membership)?;
        let applied = start.applied;
        if applied.index < FIRST.index && !start.membership.voters.is_empty() {
            return Err(StartError::Membership("a replica that holds nothing cannot know its membership"));
        }
        if start.log_start.index > applied.index {
            return Err(StartError::LogGap { applied: applied.index, log_start: start.log_start.index });
        }
        let (mut window, reset) = load(settings, &start)?;
        let known = if reset.is_none() { committed_by_changes(&start.entries) } else { 0 };
        let last = LogPosition { term: window.known_term(window.last()).unwrap_or(0), index: window.last() };
        let hard_state = restored(&start.hard_state, applied, known, last);
        window.set_initial(core_hard_state(&hard_state), &start.membership);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let core = RawNode::new(&core_config(settings, start.replica, applied.index), window, &logger)
            .map_err(|error| StartError::Core(error.to_string()))?;
        let mut random = Random::new(start.seed);
        let election_timeout = election_timeout(settings, &mut random);
        let is_eager = start.may_campaign_now && !start.is_restart;
        let mut group = Self {
            settings: settings.clone(),
            lease: settings.lease(),
            group: start.group,
            replica: start.replica,
            seen: Seen { term: core.raft.term, vote: core.raft.vote, is_leader: false, leader: 0 },
            flow: Flow::new(start.hard_state, hard_state, reset),
            hold: Hold::new(applied.index),
            core,
            contact: Contact::new(start.replica, settings.refusal(), start.is_restart, now),
            membership: start.membership,
            membership_at: applied.index,
            random,
            clock: now,
            ticked: now,
            election_since: now,
            election_timeout: if is_eager { Duration::ZERO } else { election_timeout },
            own_first: 0,
            is_transfer_begun: false,
            is_reluctant: false,
            is_asked_in_vain: false,
            proposals: Vec::new(),
            proposals_size: 0,
            reads: Reads::default(),
            questions: Reads::default(),
            answers: Vec::new(),
            waiting: Waiting::new(settings.tick, settings.refusal() / 2),
            quorum: Quorum::new(settings.tick, settings.refusal() / 2),
            freshness: Freshness::default(),
            wants_ping: false,
            announced_commit: 0,
            reported: None,
            is_dirty: true,
            #[cfg(feature = "mutations")]
            mutations: crate::Mutations::default(),
        };
        group.settle();
        Ok(group)
    }

    /// Switches safety rules off.
    #[cfg(feature = "mutations")]
    pub fn set_mutations(&mut self, mutations: crate::Mutations) {
        self.mutations = mutations;
        if mutations.forget_commit {
            // What the log told of it when the replica started.
            self.core.raft.raft_log.committed = self.core.raft.raft_log.applied;
        }
    }

    /// Time passed. To be called about every [`Settings::tick`]; early, late and missing calls do no harm.
    pub fn handle_tick(&mut self, now: Instant) {
        let now = self.advance(now);
        let due = now.since(self.ticked).as_nanos() / self.settings.tick.as_nanos();
        if due > u128::from(TICKS_PER_CALL_MAX) {
            self.ticked = now;
        } else {
            self.ticked = self.ticked + self.settings.tick * due as u32;
        }
        for _ in 0..due.min(u128::from(TICKS_PER_CALL_MAX)) {
            self.tick();
        }
        let patience = if self.is_reluctant && !self.is_asked_in_vain { RELUCTANCE } else { 1 };
        if now >= self.election_since + self.election_timeout * patience {
            self.campaign(now);
        }
        self.tick_reads(now);
        self.is_dirty |= self.hold.is_due(now);
    }

    fn tick(&mut self) {
        self.core.mut_store().tick();
        let is_beat = self.core.tick();
        self.settle();
        self.is_dirty |= is_beat;
        if !self.is_leader() {
            return;
        }
        // Followers learn of a commit with the next append; when there is none for a while, with a heartbeat.
        let commit = self.commit();
        let is_news = core::mem::replace(&mut self.announced_commit, commit) != commit;
        let is_unconfirmed =
            self.reads.has_unconfirmed() || self.questions.has_unconfirmed() || self.waiting.has_bounded();
        if !is_beat && (is_news || is_unconfirmed) {
            (self.wants_ping, self.is_dirty) = (true, true);
        }
        let is_stuck = self.membership.auto_leave && !self.core.raft.has_pending_conf();
        if is_stuck && self.core.raft.lead_transferee.is_none() {
            self.propose_change(&Change::LEAVE);
        }
    }

    /// A message of another replica arrived from `from`. Whatever does not fit is dropped.
    pub fn handle_message(&mut self, from: ReplicaId, message: Message, now: Instant) {
        if message.kind() != MessageType::MsgSnapshot {
            self.step(from, message, now);
        }
    }

    /// A snapshot message arrived and all files of its checkpoint are here. Returns whether it is wanted: then
    /// [`crate::Ready::install`] follows, otherwise the files can go.
    pub fn handle_snapshot_received(&mut self, from: ReplicaId, message: Message, now: Instant) -> bool {
        if message.kind() != MessageType::MsgSnapshot || self.is_taking_snapshot() {
            return false;
        }
        self.step(from, message, now);
        self.core.snap().is_some()
    }

    fn step(&mut self, from: ReplicaId, message: Message, now: Instant) {
        let now = self.advance(now);
        if from != message.from() || !self.admits(&message, now) {
            return;
        }
        let Message { core, stamp, echo } = message;
        let (kind, term, commit, index) = (core.get_msg_type(), core.term, core.commit, core.index);
        self.is_dirty = true;
        self.is_asked_in_vain |= self.cannot_elect(&core);
        #[cfg(feature = "mutations")]
        self.blind_core_to_its_leader(kind);
        // An error means that the core ignored the message, which is what it is for.
        let _ = self.core.step(core);
        self.settle();
        let raft = &self.core.raft;
        if raft.term != term {
            return;
        }
        match kind {
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
                if raft.leader_id == from.0 =>
            {
                self.contact.hear(term, from, stamp, now);
                self.election_since = now;
                self.is_asked_in_vain = false;
                self.waiting.leader_commit = self.waiting.leader_commit.max(commit);
                if kind == MessageType::MsgHeartbeat {
                    self.take_proof(Instant(echo), index, now);
                }
                self.carry_commit();
            }
            MessageType::MsgAppendResponse if self.is_leader() => self.take_echo(from, echo, now),
            MessageType::MsgHeartbeatResponse if self.is_leader() => {
                self.contact.take_stamp(from, stamp, &self.membership);
                self.take_echo(from, echo, now);
            }
            _ => {}
        }
    }

    /// Whether `message` asks for a vote that this replica cannot give, because its log holds more.
    fn cannot_elect(&self, message: &eraftpb::Message) -> bool {
        let log = &self.core.raft.raft_log;
        let asks = matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestVote);
        asks && (message.log_term, message.index) < (log.last_term(), log.last_index())
    }

    /// Appends `data` to the log if this replica leads. Returns the position at which it will stand if it commits: if an
    /// entry of another term is committed at that index, it never will. Nothing may be concluded from silence.
    pub fn propose(&mut self, data: Bytes, now: Instant) -> Result<LogPosition, ProposeError> {
        self.advance(now);
        self.check_leading()?;
        let waiting = self.core.raft.uncommitted_size() + self.proposals_size + data.len();
        if waiting > UNCOMMITTED_SIZE_MAX || self.holds_too_much() {
            return Err(ProposeError::Busy);
        }
        let index = self.core.raft.raft_log.last_index() + self.proposals.len() as u64 + 1;
        let position = LogPosition { term: self.core.raft.term, index };
        self.proposals_size += data.len();
        self.proposals.push(core_entry(LogPosition::default(), EntryKind::Normal, data));
        self.is_dirty = true;
        Ok(position)
    }

    /// Gives the waiting proposals to the core, in one step: one append message per follower carries them.
    pub(crate) fn flush_proposals(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        let entries = core::mem::take(&mut self.proposals);
        self.proposals_size = 0;
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.replica.0;
        message.set_entries(entries.into());
        // Refused only if this replica stopped leading, or began a transfer: both were checked or are reported.
        let _ = self.core.raft.step(message);
        self.settle();
    }

    /// Begins to change the membership, if this replica leads and no other change is in progress. The change is made when
    /// the returned position is applied; a joint one ends by itself some entries later.
    pub fn propose_membership(&mut self, change: &MembershipChange, now: Instant) -> Result<LogPosition, ProposeError> {
        self.advance(now);
        self.check_leading()?;
        if self.core.raft.has_pending_conf() || self.membership.is_joint() {
            return Err(ProposeError::ChangeInProgress);
        }
        let change = Change::new(change, &self.membership).map_err(ProposeError::Invalid)?;
        let index = self.propose_change(&change);
        Ok(LogPosition { term: self.core.raft.term, index })
    }

    fn propose_change(&mut self, change: &Change) -> Index {
        // What waits was told where it will stand, and comes first.
        self.flush_proposals();
        // The core reads back the protobuf bytes that it writes here; our form travels beside them. Refused only if this
        // replica stopped leading or began a transfer, which the callers have ruled out.
        let _ = self.core.propose_conf_change(change.encode().to_vec(), change.to_core());
        self.settle();
        self.is_dirty = true;
        self.core.raft.raft_log.last_index()
    }

    fn check_leading(&self) -> Result<(), ProposeError> {
        if !self.leads() {
            return Err(ProposeError::NotLeader { leader: self.leader() });
        }
        if self.core.raft.lead_transferee.is_some() {
            return Err(ProposeError::Transferring);
        }
        Ok(())
    }

    /// Begins to hand the leadership to `to`, a voter. The lease ends now and stays off for the rest of the term; proposals
    /// are refused until the transfer succeeded or an election timeout has passed.
    pub fn transfer_leader(&mut self, to: ReplicaId, now: Instant) -> Result<(), ProposeError> {
        self.advance(now);
        self.check_leading()?;
        if to == self.replica || !self.membership.is_voter(to) {
            return Err(ProposeError::Invalid("the leadership can go to another voter only"));
        }
        self.flush_proposals();
        self.is_transfer_begun = true;
        self.core.transfer_leader(to.0);
        self.settle();
        self.is_dirty = true;
        Ok(())
    }

    /// Like [`Group::transfer_leader`], but `to` is asked to campaign at once and not only when it is known to have the whole
    /// log, if what it lacks is on its way before the request. For a leader whose every message is late. If something on the
    /// way is lost, `to` is not elected, and the group has no leader for an election timeout or, where those that have its whole log are
    /// reluctant, for two.
    pub fn transfer_leader_at_once(&mut self, to: ReplicaId, now: Instant) -> Result<(), ProposeError> {
        self.transfer_leader(to, now)?;
        let last = self.last_index();
        // With the whole log it was asked already. While the leader is only finding out what it has, the rest is not on its way.
        let is_sent = |progress: &Progress| progress.state == ProgressState::Replicate && progress.next_idx > last;
        let progress = self.core.raft.prs().get(to.0);
        if progress.is_some_and(|progress| progress.matched != last && is_sent(progress)) {
            self.core.raft.send_timeout_now(to.0);
        }
        Ok(())
    }

    /// Whether this replica leaves elections to the others: it campaigns only when they have let several election timeouts
    /// pass, or one of them has tried that lacks what this one has. It still votes, and still follows a request to take over.
    pub fn set_reluctant(&mut self, is_reluctant: bool) {
        self.is_reluctant = is_reluctant;
    }

    /// Campaigns now, unless this replica has no vote or must not act yet (see [`Group::is_fenced`]).
    pub fn campaign(&mut self, now: Instant) {
        let now = self.advance(now);
        let is_ready = self.is_fully_persisted() || !self.core.raft.prs().is_singleton();
        if self.is_leader() || !self.core.raft.promotable() || self.is_fenced(now) || !is_ready || !self.can_hup() {
            return;
        }
        self.restart_election_timer(now);
        // Refused by the core only while a membership change waits to be applied: the next timeout tries again.
        let _ = self.core.campaign();
        self.settle();
        self.is_dirty = true;
    }

    /// Whether the core can look at everything that is committed and not applied, as it does when it campaigns.
    pub(crate) fn can_hup(&self) -> bool {
        !self.flow.is_installing() && self.applied() >= self.core.store().start().index
    }

    /// Whether everything in memory is on disk. A replica that could win at once must not campaign before.
    pub(crate) fn is_fully_persisted(&self) -> bool {
        let log = &self.core.raft.raft_log;
        log.persisted == log.last_index() && !self.flow.has_entries_in_flight()
    }

    /// What [`crate::Ready::persist`] asked for with `ticket`, and with all smaller ones, is durable.
    pub fn handle_persisted(&mut self, ticket: u64, now: Instant) {
        self.advance(now);
        let Some(done) = self.flow.take_persisted(ticket) else { return };
        self.core.on_persist_ready(done.number);
        if let Some(index) = done.installed
            && index > self.applied()
        {
            self.core.advance_apply_to(index);
        }
        self.freshness.apply(self.applied());
        self.settle();
        self.is_dirty = true;
        self.evict();
    }

    /// The storage holds the effect of everything up to `index`.
    pub fn handle_applied(&mut self, index: Index, now: Instant) {
        self.advance(now);
        let log = &self.core.raft.raft_log;
        if index <= log.applied || index > log.committed.min(log.persisted) {
            return;
        }
        self.hold.note_applied(index);
        self.flush_proposals();
        let last = self.last_index();
        self.core.advance_apply_to(index);
        if self.last_index() != last {
            // The core appended the end of a joint membership and leaves it to the next proposal to send it.
            self.core.raft.bcast_append();
        }
        self.freshness.apply(self.applied());
        self.settle();
        self.is_dirty = true;
        self.evict();
    }

    /// The storage cannot take, for the moment, what [`crate::Ready::committed`] handed out and [`Group::handle_applied`] has
    /// not been told of. All of that is handed out again, and nothing else before it, after a pause that grows from 100 ms to
    /// a second as long as nothing is applied. The host forgets what it has of it.
    pub fn handle_not_applied(&mut self, now: Instant) {
        let now = self.advance(now);
        self.hold.hold(self.applied(), now);
    }

    /// The host leaves for its next turn what [`crate::Ready::committed`] handed out and [`Group::handle_applied`] has not been told
    /// of: that is handed out again, and nothing else before it, after [`Group::take_up`]. The host forgets what it has of it.
    pub fn put_off(&mut self) {
        self.hold.put_off(self.applied());
    }

    /// The host goes on with what it has put off.
    pub fn take_up(&mut self, now: Instant) {
        let now = self.advance(now);
        self.hold.take_up();
        self.is_dirty |= self.hold.is_due(now);
    }

    /// Whether the storage could not take what was handed out last.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// Bytes of entries that are in memory because the storage could not take what was handed out last, or the host has not come
    /// to it.
    pub fn held_bytes(&self) -> usize {
        if self.is_held() || self.hold.has_rest() { self.core.store().size() } else { 0 }
    }

    /// Whether nothing more is taken into the log until something is applied.
    pub(crate) fn holds_too_much(&self) -> bool {
        self.held_bytes() > HELD_SIZE_MAX
    }

    /// Whether a snapshot has been accepted and not been installed: its files are needed until then. True from the return of
    /// [`Group::handle_snapshot_received`] on, so before [`crate::Ready::install`] says so.
    pub fn is_taking_snapshot(&self) -> bool {
        self.flow.is_installing() || self.core.snap().is_some()
    }

    /// To be called for each committed entry of kind Membership, in order, before it is stored as applied. Returns the
    /// membership to store with it. An error means that the entry cannot be understood: the replica must stop. An entry that
    /// is handed out again changes nothing again.
    pub fn handle_membership_applied(&mut self, entry: &Entry) -> Result<Membership, Malformed> {
        if let Some(known) = self.hold.membership(entry.index) {
            return Ok(known.clone());
        }
        let change = Change::decode(entry.data.clone())?;
        // A change that does not fit is refused by every replica alike and changes nothing.
        if let Ok(state) = self.core.apply_conf_change(&change.to_core()) {
            self.membership = Membership::from_core(&state);
        }
        self.membership_at = entry.index;
        let (term, has_vote) = (self.core.raft.term, self.core.raft.promotable());
        if self.is_leader() && !has_vote {
            self.core.raft.become_follower(term, 0);
        }
        self.contact.update(&self.membership);
        self.hold.note_membership(entry.index, self.membership.clone());
        // A replica that forgets in a restart that a change is over asks the voters from before it, too. Where these are lost, as
        // when they were the reason for the change, and nothing more was written since, nobody would ever be elected again.
        if !self.forgets_commit() {
            self.flow.write_commit(entry.index);
        }
        self.settle();
        self.is_dirty = true;
        Ok(self.membership.clone())
    }

    /// A checkpoint exists: the answer to [`crate::Ready::wants_checkpoint`], or one made for another reason. It must stay
    /// readable until a newer one is announced, it is forgotten, or the log is truncated past it.
    pub fn handle_checkpoint(&mut self, meta: SnapshotMeta, _now: Instant) {
        if meta.position.index <= self.applied() && meta.membership.check().is_ok() {
            self.core.mut_store().set_checkpoint(meta);
        }
    }

    /// The checkpoint with this id is no longer there; the next replica that needs one asks for a new one.
    pub fn forget_checkpoint(&mut self, id: u64) {
        self.core.mut_store().forget_checkpoint(id);
    }

    /// Sending a snapshot ended. `ok` means that the receiver took all of it and the message after it.
    pub fn handle_snapshot_sent(&mut self, to: ReplicaId, ok: bool, now: Instant) {
        self.advance(now);
        self.core.report_snapshot(to.0, if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure });
        self.settle();
        self.is_dirty = true;
    }

    /// The storage now is the checkpoint that [`crate::Ready::install`] named, durably.
    pub fn handle_snapshot_installed(&mut self, meta: &SnapshotMeta, now: Instant) {
        self.advance(now);
        self.is_dirty |= self.flow.handle_installed(meta.position);
    }

    /// The answer to one of [`crate::Ready::fetch`]: entries from `fetch.low` on. May be cut short, or empty if they cannot
    /// be read.
    pub fn handle_entries_fetched(&mut self, fetch: Fetch, entries: Vec<Entry>, now: Instant) {
        self.advance(now);
        for append in self.core.mut_store().set_fetched(&fetch, entries) {
            self.core.on_entries_fetched(append);
        }
        self.core.mut_store().forget_fetched();
        self.settle();
        self.is_dirty = true;
    }

    /// The host dropped the entries up to `through`, inclusive, all of which were applied and persisted.
    pub fn truncated(&mut self, through: LogPosition) {
        let log = &self.core.raft.raft_log;
        if through.index <= log.applied.min(log.persisted) {
            self.core.mut_store().truncate(through);
        }
    }

    /// Looks at what a call into the core changed.
    pub(crate) fn settle(&mut self) {
        let raft = &mut self.core.raft;
        // Elections are timed here, by the caller's clock and a seeded generator, never by the core.
        raft.set_randomized_election_timeout(ELECTION_TICKS_NEVER - 1);
        let is_leader = raft.state == StateRole::Leader;
        let seen = Seen { term: raft.term, vote: raft.vote, is_leader, leader: raft.leader_id };
        if seen == self.seen {
            return;
        }
        let before = core::mem::replace(&mut self.seen, seen);
        if seen.vote != before.vote && seen.vote != 0 && seen.vote != self.replica.0 {
            self.restart_election_timer(self.clock);
        }
        if (seen.term, seen.is_leader) != (before.term, before.is_leader) {
            self.own_first = self.last_index();
            self.is_transfer_begun = false;
            self.announced_commit = 0;
            (self.proposals_size, self.wants_ping) = (0, false);
            self.proposals.clear();
            if !self.keeps_reads() {
                self.reads.refuse_all();
            }
            self.questions.refuse_all();
            self.contact.begin_leading(&self.membership);
            self.restart_election_timer(self.clock);
        }
        let is_same = (seen.term, seen.is_leader, seen.leader) == (before.term, before.is_leader, before.leader);
        if !is_same && !self.takes_any_answer() {
            self.begin_reads_again();
        }
    }

    fn restart_election_timer(&mut self, now: Instant) {
        self.election_since = now;
        self.election_timeout = election_timeout(&self.settings, &mut self.random);
    }

    /// The latest time seen, `now` included.
    pub(crate) fn advance(&mut self, now: Instant) -> Instant {
        self.clock = self.clock.max(now);
        self.clock
    }

    /// The latest time seen.
    pub(crate) fn clock(&self) -> Instant {
        self.clock
    }

    /// Drops entries from memory that nobody needs there.
    fn evict(&mut self) {
        let raft = &self.core.raft;
        let evictable = raft.raft_log.applied.min(raft.raft_log.persisted);
        let cache = self.settings.cache_size_max;
        if self.core.store().size() <= cache / FOLLOWER_CACHE_DIVISOR {
            return;
        }
        let others = raft.prs().iter().filter(|(id, _)| **id != self.replica.0);
        let matched_by_all = others.map(|(_, progress)| progress.matched).min().unwrap_or(evictable);
        let needed_by_none = if self.is_leader() { evictable.min(matched_by_all) } else { evictable };
        let store = self.core.mut_store();
        store.evict(needed_by_none, cache / FOLLOWER_CACHE_DIVISOR);
        store.evict(evictable, cache);
    }

    /// The group this replica belongs to.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// This replica.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.core.raft.state == StateRole::Leader
    }

    /// Whether the replica leads for others to see. One that needs no other's vote is elected before its own is on disk, and
    /// a crash would undo that: until then it passes for a candidate.
    pub(crate) fn leads(&self) -> bool {
        self.is_leader() && self.flow.is_vote_durable(self.core.raft.term, self.replica)
    }

    /// The replica's role.
    pub fn role(&self) -> Role {
        match self.core.raft.state {
            StateRole::Leader if self.leads() => Role::Leader,
            StateRole::Leader | StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.core.raft.promotable() => Role::Follower,
            StateRole::Follower => Role::Learner,
        }
    }

    /// The leader, if one is known.
    pub fn leader(&self) -> Option<ReplicaId> {
        let leader = ReplicaId(self.core.raft.leader_id);
        let is_known = if leader == self.replica { self.leads() } else { leader.0 != 0 };
        is_known.then_some(leader)
    }

    /// The current term.
    pub fn term(&self) -> Term {
        self.core.raft.term
    }

    /// The highest index known to be committed.
    pub fn commit(&self) -> Index {
        self.core.raft.raft_log.committed
    }

    /// The highest index known to be applied.
    pub fn applied(&self) -> Index {
        self.core.raft.raft_log.applied
    }

    /// The last index of the log, whether durable or not. Proposals not yet polled are not counted.
    pub fn last_index(&self) -> Index {
        self.core.raft.raft_log.last_index()
    }

    /// The first index that the log still holds.
    pub fn first_index(&self) -> Index {
        self.core.store().start().index + 1
    }

    /// The membership as of the last Membership entry that was handed to [`Group::handle_membership_applied`].
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// How far every replica of the group is, sorted by id. Empty if this replica does not lead.
    pub fn progress(&self) -> Vec<PeerProgress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let of = |(id, progress): (&u64, &raft::Progress)| PeerProgress {
            replica: ReplicaId(*id),
            matched: progress.matched,
            is_active: progress.recent_active || *id == self.replica.0,
            is_learner: !self.membership.is_voter(ReplicaId(*id)),
            is_snapshotting: progress.state == ProgressState::Snapshot,
            needs_snapshot: progress.state == ProgressState::Snapshot || progress.next_idx < self.first_index(),
        };
        let mut all: Vec<_> = self.core.raft.prs().iter().map(of).collect();
        all.sort_unstable_by_key(|progress| progress.replica);
        all
    }
}

/// Bound of the core's own election timeout, which is kept at its largest value.
const ELECTION_TICKS_NEVER: usize = usize::MAX / 2;

fn core_config(settings: &Settings, replica: ReplicaId, applied: Index) -> raft::Config {
    raft::Config {
        id: replica.0,
        election_tick: settings.election_ticks as usize,
        heartbeat_tick: settings.heartbeat_ticks as usize,
        max_election_tick: ELECTION_TICKS_NEVER,
        applied,
        max_size_per_msg: settings.message_size_max,
        max_inflight_msgs: settings.inflight_max,
        check_quorum: true,
        pre_vote: true,
        // The core's own batching appends entries to an earlier message without looking whether they follow it, and our
        // form of messages counts indices from the message's. Proposals are gathered before they reach the core instead.
        batch_append: false,
        // Followers learn of a commit with the next append or tick: half as many messages for single writes.
        skip_bcast_commit: true,
        // Never reached, but a limit makes the core count.
        max_uncommitted_size: u64::MAX - 1,
        max_committed_size_per_ready: settings.committed_size_max(),
        ..raft::Config::default()
    }
}

/// The hard state to start with: the commit index may have been lost, and what is applied is committed, or `known` to be. The term
/// is behind what is applied only for a replica that has never been in one, and behind the `last` entry only where a write was torn
/// between that and the hard state behind it: a replica that has entries of a term has been in it. It did not vote in it, or that would
/// have been durable before it was told.
fn restored(state: &HardState, applied: LogPosition, known: Index, last: LogPosition) -> HardState {
    let term = state.term.max(applied.term).max(last.term);
    HardState {
        term,
        vote: state.vote.filter(|_| state.term >= term),
        commit: state.commit.max(known).min(last.index).max(applied.index),
    }
}

/// The last change of the membership in a log but one: it is committed, since a leader appends a change only after it has applied the one
/// before. A replica that does not know that after a restart could campaign among the voters of two changes ago. The hard state need not say it:
/// it is written behind the entries that it goes along with, and a write may be torn between them. 0 = there are not two.
fn committed_by_changes(entries: &[Entry]) -> Index {
    let changes = entries.iter().rev().filter(|entry| entry.kind == EntryKind::Membership);
    changes.map(|entry| entry.index).nth(1).unwrap_or(0)
}

fn core_hard_state(state: &HardState) -> eraftpb::HardState {
    let vote = state.vote.map_or(0, |replica| replica.0);
    eraftpb::HardState { term: state.term, vote, commit: state.commit, ..eraftpb::HardState::default() }
}

/// The log to start with, and the position to reset the one on disk to if it does not go with the storage.
fn load(settings: &Settings, start: &Start) -> Result<(Window, Option<LogPosition>), StartError> {
    let (applied, size) = (start.applied, settings.message_size_max);
    let found = start.entries.clone();
    let last = found.last().map_or(start.log_start, Entry::position);
    if last.index >= applied.index {
        let window = Window::new(start.log_start, found, applied, size)?;
        if window.known_term(applied.index).is_none_or(|term| term == applied.term) {
            return Ok((window, None));
        }
    }
    Ok((Window::new(applied, Vec::new(), applied, size)?, Some(applied)))
}

/// Between the refusal and half as much again: far enough apart for one candidate to be elected before the next one campaigns.
fn election_timeout(settings: &Settings, random: &mut Random) -> Duration {
    let least = settings.refusal();
    let spread = u64::try_from(least.as_nanos() / 2).unwrap_or(u64::MAX);
    least + Duration::from_nanos(random.below(spread.max(1)))
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
