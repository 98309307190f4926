//! Reads at every kind of replica: who may be served where, and how fresh what is read must be.
//!
//! | request | level | served at replicas that do not lead |
//! |---|---|---|
//! | our extension allows any replica | its own, or else the table's `read_level` | yes |
//! | Pegasus' backup flag | its own, or else the table's `backup_read_level` | yes |
//! | any other | its own, or else the table's `read_level` | if it has no extension and the table's `follower_reads` says so |
//!
//! The leader serves every level. A replica that does not lead steps back, with `NotReady` at once, while
//!
//! - its node is about to stop: from the moment it hands over what it leads (R11);
//! - its node's disk does not keep up with writes (R9; a node whose log cannot be written stops altogether);
//! - it has just started or joined ([`Replica::tick_settling`]; R11, R12), or waits for or installs a checkpoint (C18).
//!
//! **A read is served** in [`Serving::serve_read`], or, if it had to wait, in [`Serving::finish_read`].

use crate::clock::no_time;
use crate::config::{PENDING_READS_MAX, READY_TURNS_MAX};
use crate::propose::not_leader;
use crate::replica::{Hosted, Origin, PendingRead, Replica};
use crate::replicas::Replicas;
use crate::requests::Serving;
use crate::requests::caller::Caller;
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::held::Held;
use crate::requests::queue::{Lane, Queued};
use crate::requests::read_counts::level_number;
use crate::requests::read_jobs::{ReadSize, list_size};
use crate::requests::serve::misplaced;
use crate::requests::tie::Tied;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_placement::Settings;
use hedgerow_replication::{Proof, ReadNeed, ReadOutcome, ReadStart, Role, Served};
use hedgerow_storage::{Partition, ReadBudget};
use hedgerow_types::op::{MultiGet, Read, ReadReply, Selection};
use hedgerow_types::time::LOG_TIME_AHEAD_MAX;
use hedgerow_types::{GroupId, Index, Instant, ReadLevel, Refusal, SessionToken};
use hedgerow_wire::{Extension, Header};
use std::time::Duration;

/// A replica that has just started has settled when it has had a leader for so long and has applied all that it knows of.
/// By then it has heard what was committed while it was away.
const SETTLE_AFTER: Duration = Duration::from_millis(500);
/// After this time it serves in any case: where there is no leader, there may be nobody else to read from.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// On which terms a read is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How fresh it must be.
    pub(crate) level: ReadLevel,
    /// The highest index of the group that the caller's session has seen. Whatever the level, nothing older is shown (S14).
    pub(crate) floor: Index,
    /// Whether a replica that does not lead may serve it.
    pub(crate) may_follow: bool,
}

impl Terms {
    /// Those of the node's own reads of the metadata.
    pub(crate) const AT_LEADER: Self = Self { level: ReadLevel::Linearizable, floor: 0, may_follow: false };

    /// What a request and its table's options ask for.
    pub(crate) fn of(header: &Header, settings: &Settings, group: GroupId) -> Result<Self, Refusal> {
        let extension = header.extension.as_ref();
        let level = extension.and_then(Extension::read_level);
        let (default, may_follow) = match extension {
            Some(extension) if extension.any_replica => (settings.read_level, true),
            _ if header.is_backup => (settings.backup_read_level, true),
            Some(_) => (settings.read_level, false),
            None => (settings.read_level, settings.follower_reads),
        };
        let token = extension.and_then(|extension| extension.session_token.as_ref());
        let floor = token.map_or(Ok(0), |token| SessionToken::floor_in(token, group));
        let floor = floor.map_err(|error| Refusal::Invalid(error.to_string()))?;
        Ok(Self { level: level.unwrap_or(default), floor, may_follow })
    }

    /// What the read needs of a replica that has applied up to `applied`, and whether that is all it needs. What is applied
    /// stays applied, so that a bounded read of a session waits for the session's floor first and for freshness then.
    fn need(&self, applied: Index) -> (ReadNeed, bool) {
        match self.level {
            ReadLevel::Linearizable => (ReadNeed::Latest, true),
            ReadLevel::Session => (ReadNeed::AtLeast(self.floor), true),
            ReadLevel::Bounded(_) if applied < self.floor => (ReadNeed::AtLeast(self.floor), false),
            ReadLevel::Bounded(bound) => (ReadNeed::Within(bound), true),
            ReadLevel::Eventual if applied < self.floor => (ReadNeed::AtLeast(self.floor), true),
            ReadLevel::Eventual => (ReadNeed::Anything, true),
        }
    }
}

/// What a reply reflects, as its extension fields tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reflected {
    /// The log position; 0 = none.
    pub(crate) index: Index,
    /// How old it may be at most, if that is known.
    pub(crate) staleness: Option<Duration>,
    /// How long the request waited before it was served.
    pub(crate) waited: Duration,
    /// For a read: its level, who served it, and how that was found to be right.
    pub(crate) served: Option<(ReadLevel, Role, Basis)>,
}

/// What a replica went by when it served a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// It could be served as it came; at the leader under its lease.
    AtOnce,
    /// The leader had its lease, and what was committed had to be applied.
    Applied,
    /// It waited for a majority, the leader's answer, or an index.
    Waited,
    /// A majority's logs held nothing newer for its keys.
    Quorum,
}

impl Reflected {
    /// The staleness as replies carry it: whole milliseconds, rounded up, so that the promise stays true.
    pub(crate) fn staleness_ms(&self) -> Option<i64> {
        self.staleness.map(|staleness| i64::try_from(staleness.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
    }

    /// The level at which a read was served, as replies carry it.
    pub(crate) fn level_code(&self) -> Option<i32> {
        self.served.map(|(level, ..)| level_number(level) as i32)
    }

    /// How the node came to its answer, for people: who served by what, and how long the request was queued.
    pub(crate) fn mode(&self, caller: &Caller) -> String {
        let Some((level, role, basis)) = self.served else { return "write at the leader".to_owned() };
        let who = match role {
            Role::Leader => "leader",
            Role::Follower | Role::Candidate => "follower",
            Role::Learner => "learner",
        };
        let how = match (level, role, basis) {
            (ReadLevel::Linearizable, Role::Leader, Basis::AtOnce) => "lease".to_owned(),
            (ReadLevel::Linearizable, Role::Leader, Basis::Applied) => "lease and apply".to_owned(),
            (ReadLevel::Linearizable, Role::Leader, Basis::Waited) | (ReadLevel::Linearizable, _, Basis::Quorum) => {
                "quorum".to_owned()
            }
            (ReadLevel::Linearizable, ..) => "index".to_owned(),
            (ReadLevel::Session, ..) => "session".to_owned(),
            (ReadLevel::Bounded(_), ..) => format!("proof {} ms", self.staleness_ms().unwrap_or_default()),
            (ReadLevel::Eventual, ..) => "eventual".to_owned(),
        };
        let lane = if caller.is_extra { " extra" } else { "" };
        format!("{who} {how}, queued {} us{lane}", caller.queued.as_micros())
    }
}

impl Replica {
    /// Begins a read. `Some` if it is to be served now; `None` if `ticket` waits for [`Serving::finish_read`]. The floor of
    /// `terms` becomes 0 once nothing but what waits is needed. `ban` says why no replica of this node that does not lead
    /// should serve, if so.
    pub(crate) fn begin_read(
        &mut self,
        ticket: u64,
        terms: &mut Terms,
        ban: Option<&'static str>,
        now: Instant,
    ) -> Result<Option<Served>, Refusal> {
        self.check_serving(terms, ban)?;
        if self.storage.is_none() {
            return Err(Refusal::NotReady("a checkpoint is being installed".into()));
        }
        let (need, is_all) = terms.need(self.group.applied());
        if is_all {
            terms.floor = 0;
        }
        match self.group.read(ticket, need, now) {
            ReadStart::Serve(served) if is_all => Ok(Some(served)),
            ReadStart::Serve(_) => {
                terms.floor = 0;
                self.begin_read(ticket, terms, ban, now)
            }
            // Those that need not wait are served, however many do.
            ReadStart::Wait if self.reads.len() >= PENDING_READS_MAX => {
                self.group.cancel_read(ticket);
                Err(Refusal::Busy(format!("{PENDING_READS_MAX} reads of the partition wait")))
            }
            ReadStart::Wait => Ok(None),
            ReadStart::NotLeader { leader } => Err(not_leader(leader)),
            ReadStart::NotReady(reason) => Err(Refusal::NotReady(reason.into())),
            ReadStart::Lagging(lag) => Err(Refusal::Lagging(lag)),
        }
    }

    /// Whether a replica in this role and state may serve at all: known without asking anybody, and whatever the load.
    pub(crate) fn check_serving(&self, terms: &Terms, ban: Option<&'static str>) -> Result<(), Refusal> {
        if self.group.role() == Role::Leader {
            return Ok(());
        }
        if !terms.may_follow {
            return Err(not_leader(self.group.leader()));
        }
        self.check_following(ban)
    }

    fn check_following(&self, ban: Option<&'static str>) -> Result<(), Refusal> {
        let reason = match ban {
            Some(reason) => reason,
            None if self.group.applied() == 0 => "the replica has no data yet",
            None if !self.is_settled => "the replica has just started",
            None => return Ok(()),
        };
        Err(Refusal::NotReady(reason.into()))
    }

    /// Reads the storage as it is now, and says which log index that reflects: the storage's own, since the group hears of an
    /// installed checkpoint a little later. `None` = it takes too long for the node's thread.
    fn read_storage(
        &self,
        read: &Read,
        budget: ReadBudget,
        damaged: &mut Vec<(GroupId, String)>,
        expiry_time: u32,
    ) -> Result<Option<(ReadReply, Index)>, Refusal> {
        let storage =
            self.storage.as_ref().ok_or_else(|| Refusal::NotReady("a checkpoint is being installed".into()))?;
        let reply = storage.read_at_once(read, expiry_time, budget);
        let reply = reply.map_err(|error| crate::damage::note_read(damaged, self.owner.group, &error))?;
        Ok(reply.map(|reply| (reply, storage.applied().index)))
    }

    /// Whether it depends on entries that this replica may lack which rows have expired: one that somebody saw expired must not be shown as
    /// living any more, nor the other way round.
    fn doubts_expiry(&self, served: Served, expiry_time: u32) -> bool {
        let Proof::Quorum { tail_times: Some((least, most)) } = served.by else { return false };
        let own = expiry_time.max(self.storage.as_ref().map_or(0, Partition::log_time));
        most > own || own.saturating_sub(least) > LOG_TIME_AHEAD_MAX
    }

    /// Looks whether the replica has settled since it started: with a leader for a while and everything applied that it
    /// knows to be committed, or alone for long. Returns whether it has just now.
    pub(crate) fn tick_settling(&mut self, now: Instant) -> bool {
        if self.is_settled {
            return false;
        }
        let has_heard = self.led_since.is_some_and(|since| now.since(since) >= SETTLE_AFTER);
        let has_all = self.group.applied() > 0 && self.group.applied() >= self.group.commit();
        let is_old = self.group.applied() > 0 && now.since(self.started) >= SETTLE_MAX;
        self.is_settled = self.storage.is_some() && (has_heard && has_all || is_old);
        self.is_settled
    }
}

impl Serving<'_> {
    /// Reads for a client whose turn it is, at once if the replica is fresh enough as it is.
    pub(crate) fn serve_read(&mut self, mut queued: Queued, now: Now) {
        let is_for_others =
            self.requests.gives_away(&queued, self.config.workers, self.config.shared_rows, now.instant);
        let Queued { id, read, terms, .. } = &mut queued;
        let Some(caller) = self.requests.callers.get_mut(*id) else { return };
        caller.queued = now.instant.since(caller.received);
        let (group, lane) = (caller.group(), Lane::of(caller));
        let (ticket, ban, budget) = (self.replicas.ticket(), self.view.why_not_follow(), self.config.reads_at_once);
        let expiry_time = self.replicas.expiry_time(self.view, group, now);
        let lacks_time = terms.level != ReadLevel::Eventual && self.view.awaits_time(now);
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else {
            return self.refuse_waiting(queued.id, &Refusal::NotHosted, now);
        };
        let judged_at = now.instant;
        #[cfg(feature = "mutations")]
        let judged_at = crate::mutation::judged_at(judged_at, caller.received);
        let begun = replica.begin_read(ticket, terms, ban, judged_at);
        let role = replica.group.role();
        let is_told = terms.may_follow && role != Role::Leader;
        let outcome = match begun {
            Ok(Some(_)) if lacks_time => Err(no_time()),
            // `now` was read after the request had arrived, even if it was queued since, and nothing is applied between
            // here and the storage read: what is read is the state at `now`, when the lease held.
            Ok(Some(served)) => {
                let read = match is_for_others {
                    true => Ok(None),
                    false => replica.read_storage(read, budget, &mut self.replicas.damaged, expiry_time),
                };
                read.map(|read| {
                    let by = Some((terms.level, role, Basis::AtOnce));
                    let (reply, index) = read.map_or((None, 0), |(reply, index)| (Some(reply), index));
                    (reply, Reflected { index, staleness: served.staleness, waited: caller.queued, served: by })
                })
            }
            Ok(None) => {
                let bytes = caller.detach() + read.detach() + list_size(read);
                let Some(held) = self.requests.room.take(bytes) else {
                    replica.group.cancel_read(ticket);
                    let text = format!("reads with {} bytes of keys wait", self.requests.room.size());
                    return self.refuse_waiting(queued.id, &Refusal::Busy(text), now);
                };
                let has_lease = role == Role::Leader && replica.group.lease_holds(now.instant);
                let basis = if has_lease { Basis::Applied } else { Basis::Waited };
                replica.note_deadline(caller.deadline);
                let Queued { id, read, terms, tie, .. } = queued;
                let origin = Origin::Client { id, deadline: caller.deadline };
                self.requests.callers.note(id, WaitsIn::Read(group, ticket));
                replica.reads.insert(ticket, PendingRead { read, terms, basis, origin, _held: held });
                if lane == Lane::Extra && terms.level == ReadLevel::Linearizable {
                    replica.group.hasten_read(ticket, now.instant);
                }
                self.replicas.mark_dirty(group);
                return self.note_begun(lane, tie.as_deref(), now);
            }
            Err(refusal) => Err(refusal),
        };
        if is_told {
            // The group may want to ask its leader now, on behalf of reads to come.
            self.replicas.mark_dirty(group);
        }
        match outcome {
            Ok((Some(reply), reflected)) => {
                self.answer_read(queued.id, reply, reflected, now);
                self.note_begun(lane, queued.tie.as_deref(), now);
            }
            Ok((None, reflected)) => {
                let size = if is_for_others { ReadSize::Shared } else { ReadSize::of(&queued.read, budget) };
                self.read_aside(queued, size, reflected, now);
            }
            Err(refusal) => self.refuse_waiting(queued.id, &refusal, now),
        }
    }

    /// A queued read has been served, or has begun to wait for what it needs.
    pub(crate) fn note_begun(&mut self, lane: Lane, tie: Option<&Tied>, now: Now) {
        self.note_run(lane);
        if let Some(tie) = tie {
            self.begin_tied(tie, now);
        }
    }

    /// Ends a read that waited. One of the metadata's leader is handed back: its ticket there, and whether it may read now.
    pub(crate) fn finish_read(
        &mut self,
        group: GroupId,
        ticket: u64,
        outcome: ReadOutcome,
        now: Now,
    ) -> Option<(u64, Result<(), Refusal>)> {
        let (next, budget, expiry_time) =
            (self.replicas.ticket(), self.config.reads_at_once, self.replicas.expiry_time(self.view, group, now));
        let is_too_much = self.requests.reply_bytes >= READY_TURNS_MAX.saturating_mul(self.config.read_bytes_per_turn);
        let awaits_time = self.view.awaits_time(now);
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else { return None };
        let mut pending = replica.reads.remove(&ticket)?;
        let is_client = matches!(pending.origin, Origin::Client { .. });
        let served = match outcome {
            ReadOutcome::Serve(_) if awaits_time && is_client => Err(no_time()),
            ReadOutcome::Serve(_) if is_too_much && is_client => {
                Err(Refusal::Busy("too many bytes were asked for at once".to_owned()))
            }
            ReadOutcome::Serve(served) if replica.doubts_expiry(served, expiry_time) => {
                Err(Refusal::Lagging(replica.group.lag(now.instant)))
            }
            ReadOutcome::Serve(served) if pending.terms.floor == 0 => Ok(served),
            ReadOutcome::Serve(_) => {
                // The session's floor is reached; what remains is the bound.
                pending.terms.floor = 0;
                match replica.begin_read(next, &mut pending.terms, None, now.instant) {
                    Ok(Some(served)) => Ok(served),
                    Ok(None) => {
                        if let Origin::Client { id, .. } = pending.origin {
                            self.requests.callers.note(id, WaitsIn::Read(group, next));
                        }
                        replica.reads.insert(next, pending);
                        self.replicas.mark_dirty(group);
                        return None;
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            ReadOutcome::Refused => Err(not_leader(replica.group.leader())),
            ReadOutcome::Lagging(lag) => Err(Refusal::Lagging(lag)),
        };
        let role = replica.group.role();
        let reply = served.and_then(|served| {
            if served.by != Proof::Leader {
                pending.basis = Basis::Quorum;
            }
            let read = replica.read_storage(&pending.read, budget, &mut self.replicas.damaged, expiry_time);
            read.map(|read| (read, served.staleness))
        });
        match (reply, pending.origin) {
            (Ok((reply, staleness)), Origin::Client { id, .. }) => {
                let waited = now.instant.since(self.requests.callers.get(id)?.received);
                let served = Some((pending.terms.level, role, pending.basis));
                let reflected = Reflected { index: 0, staleness, waited, served };
                match reply {
                    Some((reply, index)) => {
                        self.answer_read(id, reply, Reflected { index, ..reflected }, now);
                    }
                    None => {
                        let (read, terms) = (pending.read, pending.terms);
                        let queued = Queued { id, read, terms, tie: None, bytes: 0, has_come_back: false };
                        let size = ReadSize::of(&queued.read, budget);
                        self.read_aside(queued, size, reflected, now);
                    }
                }
            }
            (Err(refusal), Origin::Client { id, .. }) => self.refuse_waiting(id, &refusal, now),
            (read, Origin::Metadata(ticket)) => return Some((ticket, read.map(|_| ()))),
        }
        None
    }

    /// Tells the client of a request that waits that it will not be.
    pub(crate) fn refuse_waiting(&mut self, id: RequestId, refusal: &Refusal, now: Now) {
        if let Some(caller) = self.requests.callers.remove(id) {
            self.refuse_client(caller, refusal, now);
        }
    }

    /// Tells a client that its request will not be. A page of a scan can be asked for again.
    pub(crate) fn refuse_client(&mut self, mut caller: Caller, refusal: &Refusal, now: Now) {
        self.put_back_page(&mut caller, now.instant);
        self.answer_refused(&caller, refusal);
    }

    /// Keeps the scan of a page that is not read.
    pub(crate) fn put_back_page(&mut self, caller: &mut Caller, now: Instant) {
        if let Some(page) = caller.page.take()
            && let Some(number) = page.number
        {
            self.requests.scans.put_back(number, page.scan, caller.group(), caller.connection, now);
        }
    }
}

impl Replicas {
    /// Begins a read of the metadata by its leader. `Some(true)` if it can be read now, `Some(false)` if it has to wait.
    pub(crate) fn begin_metadata_read(&mut self, ticket: u64, read: Read, now: Now) -> Option<bool> {
        let replica = self.running(GroupId::META)?;
        let mut terms = Terms::AT_LEADER;
        let begun = replica.begin_read(ticket, &mut terms, None, now.instant).ok()?;
        if begun.is_none() {
            let origin = Origin::Metadata(ticket);
            let held = Held::default();
            replica.reads.insert(ticket, PendingRead { read, terms, basis: Basis::Waited, origin, _held: held });
            self.mark_dirty(GroupId::META);
        }
        Some(begun.is_some())
    }
}

/// A refusal if the read's key lies outside the replica's partition.
pub(crate) fn misplaced_read(replica: &Replica, read: &Read) -> Option<Refusal> {
    let (prefix, keys): (&[u8], &[Bytes]) = match read {
        Read::Get { key } | Read::Ttl { key } => (&[], std::slice::from_ref(key)),
        Read::MultiGet(MultiGet { prefix, selection: Selection::Suffixes(suffixes), .. }) => (prefix, suffixes),
        Read::MultiGet(MultiGet { prefix, selection: Selection::Range { .. }, .. }) | Read::SortKeyCount { prefix } => {
            (prefix, &[])
        }
        Read::BatchGet { keys } => (&[], keys),
        // Pegasus' clients give bounds of the whole key space.
        Read::Scan(_) | Read::Checksum | Read::Journal(_) => (&[], &[]),
    };
    misplaced(replica, prefix, keys)
}
