//! What the log is kept for beyond this replica's own needs: followers that lag, and replicas that learn from a checkpoint.
//!
//! ```text
//!   cut        mark         mark            flush before last     last flush        last entry
//!    |----------|------------|---------------------|------------------|-----------------|
//!                  ^ a follower has it up to here: the log may be cut at the mark before it, no further
//! ```
//!
//! The leader knows what each replica lacks. It tells the others in its reports, so that all keep the same and a new leader
//! can go on. Each data directory has a limit in bytes, for the disk, and one in entries, for the memory that they take; above it, whoever is furthest behind is given up and learns from a
//! checkpoint instead. For checkpoints on their way the log is held up to a limit that is higher, since a transfer
//! that ends too late has to begin again. See decision 013.

use crate::config::GONE_AFTER;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::peer::{ReplicaReport, ReplicaState};
use crate::replica::{Hosted, Replica};
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_replication::Role;
use hedgerow_types::log::LogPosition;
use hedgerow_types::{GroupId, Index, Instant, ReplicaId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

/// How often it is looked at what may go.
const INTERVAL: Duration = Duration::from_secs(1);
/// For how long followers keep to what their leader said last.
const WORD_LASTS: Duration = Duration::from_secs(60);
/// Marks are at least so many bytes of log apart.
pub(crate) const MARK_DISTANCE: u64 = 1 << 20;
/// For checkpoints on their way the log is held up to so many times the limit.
const HARD_FACTOR: u64 = 2;

/// Somebody for whom the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claimant {
    /// A replica that follows, at the leader.
    Follower(ReplicaId),
    /// Replicas that learn from this one's checkpoint.
    Checkpoint,
    /// The leader's followers, at a replica that does not lead.
    LeadersFollowers,
    /// Those that learn from the leader's checkpoint.
    LeadersCheckpoint,
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follower(replica) => write!(f, "follower {replica}"),
            Self::Checkpoint => f.write_str("those that learn from a checkpoint"),
            Self::LeadersFollowers => f.write_str("the leader's followers"),
            Self::LeadersCheckpoint => f.write_str("those that learn from the leader's checkpoint"),
        }
    }
}

impl Claimant {
    /// Whether it is held on to above the limit.
    fn is_transfer(self) -> bool {
        match self {
            Self::Checkpoint | Self::LeadersCheckpoint => true,
            Self::Follower(_) | Self::LeadersFollowers => false,
        }
    }
}

/// A position at which the log may be cut.
#[derive(Clone, Copy, Debug)]
struct Mark {
    position: LogPosition,
    /// Bytes of the log from its beginning to here, as they are counted below.
    bytes: u64,
}

/// What is counted of the log.
#[derive(Clone, Copy, Debug)]
enum Measure {
    Bytes,
    Entries,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Entries => "entries",
        })
    }
}

/// What the leader said that its followers should keep.
#[derive(Clone, Copy, Debug)]
struct Word {
    at: Instant,
    followers: Option<Index>,
    checkpoint: Option<Index>,
}

/// The log of one replica, as far as keeping it goes. Bytes count what was applied, from an arbitrary beginning.
#[derive(Debug)]
pub(crate) struct Kept {
    cut: Mark,
    /// Positions before the last flush that storage holds durably, oldest first.
    marks: VecDeque<Mark>,
    /// What storage holds durably.
    flushed: Mark,
    /// Bytes up to where the running flush began.
    flushing_bytes: u64,
    /// Bytes up to the last entry that was applied.
    bytes: u64,
    /// That entry's index.
    last: Index,
    /// As a leader: when each replica answered last, or since when it is waited for.
    heard: BTreeMap<ReplicaId, Instant>,
    word: Option<Word>,
    /// Whoever was too far behind. They are no claimants before they have caught up.
    given_up: BTreeSet<Claimant>,
}

impl Kept {
    /// A log that begins after `start`, of which storage holds everything up to `applied` durably; its `stretches` are as [`hedgerow_wal::Reader::stretches`] tells them, up to
    /// there.
    pub(crate) fn new(start: LogPosition, applied: LogPosition, stretches: &[(LogPosition, u64)]) -> Self {
        let all = stretches.iter().map(|(position, bytes)| Mark { position: *position, bytes: *bytes });
        let bytes = stretches.last().map_or(0, |(_, bytes)| *bytes);
        Self {
            cut: Mark { position: start, bytes: 0 },
            marks: all.filter(|mark| mark.position.index < applied.index).collect(),
            flushed: Mark { position: applied, bytes },
            flushing_bytes: bytes,
            bytes,
            last: applied.index,
            heard: BTreeMap::new(),
            word: None,
            given_up: BTreeSet::new(),
        }
    }

    /// Entries of so many bytes were applied, up to index `last`.
    pub(crate) fn note_applied(&mut self, bytes: u64, last: Index) {
        self.bytes += bytes;
        self.last = self.last.max(last);
    }

    pub(crate) fn note_flush_begun(&mut self) {
        self.flushing_bytes = self.bytes;
    }

    /// Storage holds everything up to `position`.
    pub(crate) fn note_flushed(&mut self, position: LogPosition) {
        let new = Mark { position, bytes: self.flushing_bytes };
        let before = std::mem::replace(&mut self.flushed, new);
        if before.position.index <= self.cut.position.index {
            return;
        }
        // A mark that is near the one before it takes its place.
        let base = self.marks.iter().rev().nth(1).unwrap_or(&self.cut).bytes;
        if self.marks.back().is_some_and(|last| last.bytes - base < MARK_DISTANCE) {
            self.marks.pop_back();
        }
        self.marks.push_back(before);
    }

    /// Bytes of log that are kept.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.after(&self.cut, Measure::Bytes)
    }

    /// How much log there is after `mark`.
    fn after(&self, mark: &Mark, measure: Measure) -> u64 {
        match measure {
            Measure::Bytes => self.bytes - mark.bytes,
            Measure::Entries => self.last.saturating_sub(mark.position.index),
        }
    }

    /// The last mark that leaves everything above `floor`; the present cut if there is none.
    fn mark_at(&self, floor: Index) -> Mark {
        let count = self.marks.partition_point(|mark| mark.position.index <= floor);
        count.checked_sub(1).map_or(self.cut, |last| self.marks[last])
    }

    /// The index up to which the log may go if nobody claims it.
    fn free_index(&self) -> Index {
        self.marks.back().map_or(self.cut.position.index, |mark| mark.position.index)
    }
}

impl Replica {
    /// Who needs which part of the log: everything above the index.
    fn claims(&self, now: Instant) -> Vec<(Claimant, Index)> {
        let checkpoint = self.sending.held_from().map(|index| (Claimant::Checkpoint, index));
        if self.group.role() != Role::Leader {
            let word = self.kept.word.filter(|word| now.since(word.at) < WORD_LASTS);
            let followers = word.and_then(|word| word.followers).map(|index| (Claimant::LeadersFollowers, index));
            let others = word.and_then(|word| word.checkpoint).map(|index| (Claimant::LeadersCheckpoint, index));
            return followers.into_iter().chain(others).chain(checkpoint).collect();
        }
        let mut claims: Vec<(Claimant, Index)> = checkpoint.into_iter().collect();
        let cut = self.kept.cut.position.index;
        for peer in self.group.progress() {
            let heard = self.kept.heard.get(&peer.replica).copied().unwrap_or(now);
            if peer.replica == self.id() || now.since(heard) >= GONE_AFTER {
                continue;
            }
            // A leader does not know of a silent replica what it has: perhaps all that the log still holds. One that
            // answers and has less than the log holds needs a checkpoint, which makes a claim of its own.
            let is_unknown = peer.matched == 0 && !peer.is_active;
            if is_unknown || peer.matched >= cut {
                claims.push((Claimant::Follower(peer.replica), peer.matched.max(cut)));
            }
        }
        claims
    }

    /// The claims that count.
    fn standing_claims(&self, now: Instant) -> Vec<(Claimant, Index)> {
        let mut claims = self.claims(now);
        claims.retain(|(claimant, _)| !self.kept.given_up.contains(claimant));
        claims
    }

    /// Where the log may be cut now.
    fn may_cut_at(&self, now: Instant) -> Mark {
        let claims = self.standing_claims(now);
        self.kept.mark_at(claims.iter().map(|(_, index)| *index).min().unwrap_or(Index::MAX))
    }

    /// Notes who answers, and forgets who was given up once it needs nothing special any more.
    fn note_members(&mut self, now: Instant) {
        if self.group.role() == Role::Leader {
            let progress = self.group.progress();
            self.kept.heard.retain(|replica, _| progress.iter().any(|peer| peer.replica == *replica));
            for peer in progress {
                let heard = self.kept.heard.entry(peer.replica).or_insert(now);
                if peer.is_active {
                    *heard = now;
                }
            }
        } else {
            self.kept.heard.clear();
        }
        let claims = self.claims(now);
        let free = self.kept.free_index();
        let lacks = |claimant: &Claimant| claims.iter().any(|(one, index)| one == claimant && *index < free);
        self.kept.given_up.retain(lacks);
    }

    /// What a leader's followers should keep, for its report: the index after which they need the log, for replicas that
    /// lag and for those that learn from a checkpoint.
    pub(crate) fn log_needed(&self, now: Instant) -> (Option<Index>, Option<Index>) {
        let claims = self.standing_claims(now);
        let least = |is_transfer: bool| {
            let meant = claims.iter().filter(|(claimant, _)| claimant.is_transfer() == is_transfer);
            meant.map(|(_, index)| *index).min()
        };
        (least(false), least(true))
    }
}

/// How much log the replicas of a data directory keep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeptLog {
    pub(crate) bytes: u64,
    entries: u64,
}

impl Shard {
    /// A leader told what its followers should keep.
    pub(crate) fn note_log_needed(&mut self, report: &ReplicaReport, now: Now) {
        let Some(replica) = self.running(GroupId::from_u64(report.group)) else { return };
        let is_leaders = report.state == ReplicaState::Leader as u32 && report.term >= replica.group.term();
        if is_leaders && report.replica != replica.id().0 {
            let (followers, checkpoint) = (report.log_needed, report.log_held);
            replica.kept.word = Some(Word { at: now.instant, followers, checkpoint });
        }
    }

    /// Cuts what nobody needs any more, and gives up whoever is too far behind.
    pub(crate) fn tick_retained(&mut self, now: Now) {
        if now.instant.since(self.retained_at) < INTERVAL {
            return;
        }
        self.retained_at = now.instant;
        let groups: Vec<GroupId> = self.replicas.hosted.keys().copied().collect();
        for group in &groups {
            if let Some(replica) = self.running(*group) {
                replica.note_members(now.instant);
            }
        }
        let kept = self.kept_logs();
        for directory in self.config.directories() {
            self.give_up_furthest(directory, Measure::Bytes, self.retained_limit(directory, &kept), now);
            let entries_max = self.config.share_of(self.config.log_retained_entries);
            self.give_up_furthest(directory, Measure::Entries, entries_max, now);
        }
        for group in groups {
            if let Some(owner) = self.running(group).map(|replica| replica.owner) {
                self.cut_log(owner, now);
            }
        }
    }

    /// How much log is kept for the replicas of each data directory. Looks at all of them, once.
    pub(crate) fn kept_logs(&self) -> Vec<KeptLog> {
        let mut kept = vec![KeptLog::default(); self.config.data.len()];
        for hosted in self.replicas.hosted.values() {
            if let Hosted::Running(replica) = hosted
                && let Some(one) = kept.get_mut(replica.directory.0)
            {
                one.bytes += replica.kept.kept_bytes();
                one.entries += replica.kept.after(&replica.kept.cut, Measure::Entries);
            }
        }
        kept
    }

    pub(crate) fn replicas_in(&self, directory: DirectoryId) -> impl Iterator<Item = &Replica> {
        self.replicas.hosted.values().filter_map(move |hosted| match hosted {
            Hosted::Running(replica) if replica.directory == directory => Some(&**replica),
            Hosted::Running(_) | Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        })
    }

    /// The limits in force as bytes: many small entries are given up by their number, and from half of it on it says how many bytes that
    /// is while they stay as they are.
    pub(crate) fn log_bytes_allowed(&self, directory: DirectoryId, kept: &[KeptLog]) -> u64 {
        let KeptLog { bytes, entries } = kept[directory.0];
        let entries_max = self.config.share_of(self.config.log_retained_entries);
        let limit = self.retained_limit(directory, kept);
        if entries <= entries_max / 2 {
            return limit;
        }
        let bytes = u128::from(bytes) * u128::from(entries_max) / u128::from(entries);
        limit.min(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Bytes of log that may be kept for others: what is configured, or less where there are few descriptors or the disk is small, so that
    /// whoever is behind is given up before writes are refused. A disk without room keeps nothing.
    fn retained_limit(&self, directory: DirectoryId, kept: &[KeptLog]) -> u64 {
        if self.view.room.is_full(directory) {
            return 0;
        }
        // Directories that share a log share what it may keep, and the room where it lies.
        let log = self.config.log_of(directory);
        let sharers = self.config.directories_of(log).count().max(1) as u64;
        let configured =
            self.config.share_of(self.config.log_retained_max().min(self.config.log_retained_bytes / sharers));
        let Some((free, mark)) = self.free_and_mark(self.config.home_of(log)) else { return configured };
        let kept: u64 = self.config.directories_of(log).map(|directory| kept[directory.0].bytes).sum();
        // No shard knows what others keep: each goes by its part of what is free.
        let (free, mark) = (self.config.share_of(free), self.config.share_of(mark));
        let room = kept.saturating_add(free).saturating_sub(mark.saturating_mul(2)) / sharers;
        // Less than a segment makes no room.
        configured.min((room / HARD_FACTOR).max(self.config.share_of(self.config.wal.segment_size)))
    }

    fn give_up_furthest(&mut self, directory: DirectoryId, measure: Measure, limit: u64, now: Now) {
        let after_cut = |replica: &Replica| replica.kept.after(&replica.may_cut_at(now.instant), measure);
        let mut total: u64 = self.replicas_in(directory).map(after_cut).sum();
        if total <= limit {
            return;
        }
        let mut claims = Vec::new();
        for replica in self.replicas_in(directory) {
            let free = replica.kept.free_index();
            let holding = replica.standing_claims(now.instant).into_iter().filter(|(_, index)| *index < free);
            claims.extend(holding.map(|(claimant, index)| {
                (replica.kept.after(&replica.kept.mark_at(index), measure), replica.owner.group, claimant)
            }));
        }
        claims.sort_unstable_by(|one, other| other.cmp(one));
        for (behind, group, claimant) in claims {
            let limit = if claimant.is_transfer() { limit.saturating_mul(HARD_FACTOR) } else { limit };
            let Some(replica) = self.running(group).filter(|_| total > limit) else { continue };
            let before = after_cut(replica);
            replica.kept.given_up.insert(claimant);
            total -= before - after_cut(replica);
            tracing::info!(%group, "for" = %claimant, behind, limit, unit = %measure, "the log is not kept any longer for who is so far behind");
        }
    }

    /// Cuts the log as far as nobody needs it, and below the flush before the last one: what came between the two stays for
    /// followers that are a little behind.
    pub(crate) fn cut_log(&mut self, owner: ReplicaKey, now: Now) {
        let Some(replica) = self.running_as(owner).filter(|replica| replica.storage.is_some()) else { return };
        let mark = replica.may_cut_at(now.instant);
        #[cfg(feature = "mutations")]
        let mark = match &replica.storage {
            Some(storage) => Mark { position: crate::mutation::cut_at(mark.position, storage.applied()), ..mark },
            None => mark,
        };
        if mark.position.index <= replica.kept.cut.position.index {
            return;
        }
        replica.kept.cut = mark;
        replica.kept.marks.retain(|one| one.position.index > mark.position.index);
        replica.group.truncated(mark.position);
        let directory = replica.directory;
        let log = self.config.log_of(directory);
        self.log_writes.truncate(log, owner.group, mark.position.index);
        self.end_outdated_transfers(owner, mark.position.index, now);
    }
}
