//! Finding again what an earlier life of the node hosted: which of the replicas that the logs know go on, and from where.
//!
//! A replica votes with everything that it ever acknowledged, so it starts with the whole log or not at all. Whatever keeps
//! the node from reading it (no space, no descriptors, a disk that does not answer) ends the start and changes nothing; only
//! damage makes a replica a lost one, which is replaced.

use crate::drive::chain;
use crate::failure::is_device_failure;
use crate::hosting::FromLog;
use crate::ids::{DirectoryId, LogId, ReplicaKey};
use crate::layout::{Moves, Shelf};
use crate::node::Node;
use crate::open::OpenError;
use crate::replica::directory_of;
use crate::retain::{Kept, MARK_DISTANCE};
use hedgerow_env::Now;
use hedgerow_replication::{Group, Membership, Start, makes_voter};
use hedgerow_storage::{ApplyError, EngineError, Partition};
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Log, Recovered};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Why a replica does not go on.
enum Unfit {
    /// What is on the disk is not what was written, or not all of it.
    Lost(String),
    /// What is on the disk is not known: it could not be looked at.
    Unknown(Box<dyn std::error::Error + Send + Sync>),
    /// It is in none of the data directories that are there, and one is left out.
    Away,
}

/// A replica that a log knows.
#[derive(Clone, Debug)]
struct Candidate {
    owner: ReplicaKey,
    /// The log that has it, or has it from now on.
    log: LogId,
    /// Where its storage is.
    directory: DirectoryId,
    /// Whether it was seen there.
    is_seen: bool,
    found: Recovered,
}

impl From<EngineError> for Unfit {
    fn from(error: EngineError) -> Self {
        if error.is_damage() { Self::Lost(chain(&error)) } else { Self::Unknown(error.into()) }
    }
}

impl From<ApplyError> for Unfit {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Engine(error) => error.into(),
            ApplyError::Entry { .. } | ApplyError::Broken => Self::Unknown(error.into()),
        }
    }
}

/// A read of the log or of a directory.
impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Lost(format!("its log cannot be read: {error}")),
            _ => Self::Unknown(error.into()),
        }
    }
}

impl Node {
    /// Starts every replica that the logs know and that is whole, each from the log where it belongs. `recovered` says in which log each one is;
    /// `ids` are the numbers of all logs. Returns those that are forgotten for others of their groups.
    pub(crate) fn recover_all(
        &mut self,
        (shelf, ids): (&mut Shelf, &[u64]),
        recovered: Vec<(LogId, Recovered)>,
        now: Now,
    ) -> Result<BTreeSet<ReplicaKey>, OpenError> {
        let (mut dropped, mut moves, mut chosen) = (BTreeSet::new(), Moves::default(), Vec::new());
        let (mut found, mut unsure): (BTreeMap<GroupId, Vec<Candidate>>, _) = (BTreeMap::new(), Vec::new());
        for (log, one) in recovered {
            let owner = ReplicaKey { group: one.group, replica: one.replica };
            let (directory, is_seen) = self.place_of(owner, shelf.home_of(log));
            found.entry(one.group).or_default().push(Candidate { owner, log, directory, is_seen, found: one });
        }
        for (group, candidates) in found {
            let generation = candidates.iter().map(|one| one.found.generation).max().unwrap_or(0) + 1;
            let (mut current, outdated) = newest_copies(candidates);
            outdated.iter().for_each(|one| moves.strike(group, one.log));
            let best = if current.len() > 1 { self.choose(&shelf.logs, &current)? } else { 0 };
            let best = current.remove(best);
            let is_alone = outdated.iter().all(|one| one.owner != best.owner);
            if best.found.is_pending && is_alone && !shelf.is_whole {
                moves.strike(group, best.log);
                unsure.push(best);
                continue;
            }
            let may_stay = best.log.0 < self.config.log_count() && !best.is_seen;
            let log = if may_stay { best.log } else { self.config.log_of(best.directory) };
            for other in current {
                if !(self.is_kept_beside(&other, best.owner.replica) && other.log != log) {
                    self.forget(&other, shelf.home_of(other.log), log, &mut moves);
                    dropped.insert(other.owner);
                }
            }
            if log != best.log {
                moves.copy(group, best.log, log, generation);
            } else if best.found.is_pending {
                moves.settle(group, log);
            }
            chosen.push(Candidate { log, ..best });
        }
        self.forget_dropped(&dropped)?;
        let left: Vec<u64> = moves.left().map(|log| ids[log.0]).collect();
        if !left.is_empty() {
            self.identity.note_moved_from(&left);
            self.identity.save_to_each(&*self.disk, &self.config.data)?;
        }
        shelf.carry_out(moves, &*self.disk, &self.config)?;
        for one in chosen {
            self.recover(&one, &shelf.logs[one.log.0], now)?;
        }
        for one in unsure {
            self.note_lost(one.owner, one.directory, "the log that its log was copied from may be away");
        }
        Ok(dropped)
    }

    /// A replica is forgotten for another one of its group, whose log is `chosen`.
    fn forget(&mut self, other: &Candidate, home: DirectoryId, chosen: LogId, moves: &mut Moves) {
        let (ReplicaKey { group, replica }, directory) = (other.owner, self.config.path_of(home).display());
        tracing::warn!(%group, %replica, %directory, "a replica that was replaced while its directory was away is removed");
        if other.log.0 >= self.config.log_count() {
            moves.strike(group, other.log);
        } else if other.log != chosen {
            // With the node's other writes: a full disk ends no start.
            self.shards.of(group).forget_log(other.log, group);
        }
    }

    /// The data directory where a replica's storage is, whose log lies in `home`, and whether that is certain: one that cannot be looked at may
    /// have it. Where it is nowhere, `home`.
    fn place_of(&self, owner: ReplicaKey, home: DirectoryId) -> (DirectoryId, bool) {
        let others = self.config.directories().filter(|directory| *directory != home);
        let directories: Vec<DirectoryId> = std::iter::once(home).chain(others).collect();
        let mut unseen = None;
        // What is whole before what an installation has not put in its place.
        for is_arriving in [false, true] {
            for directory in &directories {
                let storage = directory_of(self.config.path_of(*directory), owner);
                let path = if is_arriving { crate::install::arriving_at(&storage) } else { storage };
                match self.disk.list(&path) {
                    Ok(_) => return (*directory, true),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(_) => _ = unseen.get_or_insert(*directory),
                }
            }
        }
        unseen.map_or((home, true), |directory| (directory, false))
    }

    /// Which of several replicas of one group goes on, the newest of which is the first. It may have been made while the directory
    /// of an older one was away, and been withdrawn since, or never have got beyond learning: then the older one is the
    /// voter, and has what it acknowledged. So the newest one wins that knows that it votes.
    ///
    /// Why that is safe: a newer one votes from a change on that the others committed, and knows it with the first entry for which its
    /// word alone can count; until then everything acknowledged is on a majority without it. One that votes has all that an older
    /// one could have acknowledged as a voter. Where none knows that it votes, nothing rests on any of them.
    fn choose(&self, logs: &[Log], candidates: &[Candidate]) -> Result<usize, OpenError> {
        for (position, Candidate { owner, log, directory, found, .. }) in candidates.iter().enumerate() {
            let directory = directory_of(self.config.path_of(*directory), *owner);
            match self.knows_that_it_votes(*owner, &directory, &logs[log.0], found) {
                Ok(true) => return Ok(position),
                Ok(false) | Err(Unfit::Lost(_) | Unfit::Away) => {}
                Err(Unfit::Unknown(source)) => {
                    let ReplicaKey { group, replica } = *owner;
                    return Err(OpenError::Replica { group, replica, directory, source });
                }
            }
        }
        Ok(0)
    }

    fn knows_that_it_votes(
        &self,
        owner: ReplicaKey,
        directory: &Path,
        log: &Log,
        found: &Recovered,
    ) -> Result<bool, Unfit> {
        crate::install::finish_install(&*self.disk, directory)?;
        match self.disk.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Unfit::Unknown(error.into())),
            Ok(_) => {}
        }
        let partition = self.engines.open(directory).and_then(Partition::open)?;
        let membership = partition.membership().cloned().map_or(Ok(Membership::default()), Membership::decode);
        if membership.is_ok_and(|it| it.voters.contains(&owner.replica) || it.voters_outgoing.contains(&owner.replica))
        {
            return Ok(true);
        }
        let (mut next, end) =
            (partition.applied().index.max(found.start.index) + 1, found.hard_state.commit.min(found.last.index));
        while next <= end {
            let piece = log.reader().entries(owner.group, next, end + 1, self.config.replay_bytes_max)?;
            let Some(last) = piece.last().map(|entry| entry.index) else { break };
            if piece.iter().any(|entry| makes_voter(entry, owner.replica).unwrap_or(false)) {
                return Ok(true);
            }
            next = last + 1;
        }
        Ok(false)
    }

    /// A directory that was away came back with a replica that has been replaced meanwhile, or with what was to replace another
    /// one. Both stay while the catalogue lists it and its successor is not the voter yet. Otherwise it is forgotten, and its storage goes with
    /// the other leftovers.
    fn is_kept_beside(&self, other: &Candidate, chosen: ReplicaId) -> bool {
        let ReplicaKey { group, replica } = other.owner;
        let partition = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(group));
        let is_listed = partition.is_some_and(|partition| partition.replica(replica).is_some());
        is_listed && replica.counter() < chosen.counter()
    }

    fn recover(&mut self, one: &Candidate, log: &Log, now: Now) -> Result<(), OpenError> {
        let Candidate { owner, directory: place, ref found, .. } = *one;
        let directory = directory_of(self.config.path_of(place), owner);
        if self.failures.has_failed(place) {
            self.note_lost(owner, place, "its data directory failed");
            return Ok(());
        }
        match self.reopen(owner, &directory, log, found, now) {
            Ok((partition, durable, entries)) => {
                let (hard_state, start, reader) = (found.hard_state, found.start, log.reader());
                let mut kept = Kept::new(
                    start,
                    durable,
                    &reader.stretches(owner.group, start.index, durable.index, MARK_DISTANCE),
                );
                let replayed = reader.stretches(owner.group, durable.index, partition.applied().index, u64::MAX);
                kept.note_applied(replayed.last().map_or(0, |(_, bytes)| *bytes), partition.applied().index);
                let from = FromLog { directory: place, hard_state, start, entries, kept, is_restart: true };
                self.start_replica(owner, partition, from, now);
            }
            Err(Unfit::Away) => self.note_lost(owner, place, "its data directory is away"),
            Err(Unfit::Lost(reason)) => self.note_damaged(owner, place, &reason),
            Err(Unfit::Unknown(source)) if self.config.data.len() > 1 && is_device_failure(&*source) => {
                self.fail_directory(place, &chain(&*source), now);
                self.note_lost(owner, place, "its data directory failed");
            }
            Err(Unfit::Unknown(source)) => {
                let ReplicaKey { group, replica } = owner;
                return Err(OpenError::Replica { group, replica, directory, source });
            }
        }
        Ok(())
    }

    /// The replica's storage, the last position that it is known to hold durably, and every entry that the log holds after
    /// it.
    fn reopen(
        &self,
        owner: ReplicaKey,
        directory: &Path,
        log: &Log,
        found: &Recovered,
        now: Now,
    ) -> Result<(Partition, LogPosition, Vec<Entry>), Unfit> {
        if found.is_damaged {
            return Err(Unfit::Lost("its log is damaged".into()));
        }
        crate::install::finish_install(&*self.disk, directory)?;
        // Not `exists`, which takes a directory that cannot be looked at for none.
        match self.disk.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It is in none of the others either (`place_of`).
                return Err(if self.missing.is_empty() {
                    Unfit::Lost("its storage is gone".into())
                } else {
                    Unfit::Away
                });
            }
            Err(error) => return Err(Unfit::Unknown(error.into())),
            Ok(_) => {}
        }
        let mut partition = self.engines.open(directory).and_then(Partition::open)?;
        partition.set_session_bytes_max(self.config.session_bytes_max);
        if let Some(other) = self.misplaced(owner, &partition) {
            return Err(Unfit::Unknown(format!("it holds the storage of group {other}").into()));
        }
        if partition.applied().index < found.start.index {
            return Err(Unfit::Lost("its storage is older than its log".into()));
        }
        let durable = partition.applied();
        let entries = self.read_entries(owner, &mut partition, log, found, now)?;
        Ok((partition, durable, entries))
    }

    /// The group whose storage lies where that of `owner` should: its membership names replicas of that group, and ids are never
    /// used twice. Nothing is damaged then, and whoever swapped the directories can put them back.
    fn misplaced(&self, owner: ReplicaKey, partition: &Partition) -> Option<GroupId> {
        let membership = Membership::decode(partition.membership()?.clone()).ok()?;
        let Membership { voters, learners, voters_outgoing, .. } = &membership;
        let is_member = |id: &ReplicaId| [voters, learners, voters_outgoing].iter().any(|list| list.contains(id));
        if is_member(&owner.replica) {
            return None;
        }
        let mut groups = self.view.catalogue.as_ref()?.groups();
        let is_of = |partition: &hedgerow_placement::Partition| partition.replicas.iter().any(|it| is_member(&it.id));
        groups.find(|(group, partition)| *group != owner.group && is_of(partition)).map(|(group, _)| group)
    }

    /// Reads what the log holds from the last applied entry on, piece by piece. Beyond the limit on memory, what is known to
    /// be committed is applied at once. The rest is what the replica had in memory before it stopped too.
    ///
    /// The last applied entry is among the result if the log holds it: only so the group knows that log and storage belong
    /// together, and keeps a log that may be all there is of what storage has not flushed.
    fn read_entries(
        &self,
        owner: ReplicaKey,
        partition: &mut Partition,
        log: &Log,
        found: &Recovered,
        now: Now,
    ) -> Result<Vec<Entry>, Unfit> {
        let (reader, last) = (log.reader(), found.last.index);
        let size_max = self.config.replay_bytes_max;
        let mut entries: Vec<Entry> = Vec::new();
        let mut next = partition.applied().index.max(found.start.index + 1);
        while next <= last {
            let piece = reader.entries(owner.group, next, last + 1, size_max)?;
            let Some(end) = piece.last().map(|entry| entry.index) else {
                return Err(Unfit::Lost(format!("its log does not hold entry {next}")));
            };
            next = end + 1;
            entries.extend(piece);
            if entries.iter().map(|entry| entry.data.len()).sum::<usize>() >= size_max {
                let committed = entries.partition_point(|entry| entry.index <= found.hard_state.commit);
                self.replay(owner, partition, found, entries[..committed].to_vec(), now)?;
                entries.drain(..committed.saturating_sub(1));
            }
        }
        Ok(entries)
    }

    /// Applies those of `entries`, all of which are committed, that are not applied yet. A group that talks to nobody says what they mean for the membership.
    fn replay(
        &self,
        owner: ReplicaKey,
        partition: &mut Partition,
        found: &Recovered,
        entries: Vec<Entry>,
        now: Now,
    ) -> Result<(), Unfit> {
        let applied = partition.applied();
        let Some(last) = entries.last().map(|entry| entry.index).filter(|last| *last > applied.index) else {
            return Ok(());
        };
        let lost = |reason: &dyn std::fmt::Display| Unfit::Lost(format!("its log cannot be applied: {reason}"));
        let membership = partition.membership().cloned().map_or(Ok(Membership::default()), Membership::decode);
        let start = Start {
            group: owner.group,
            replica: owner.replica,
            membership: membership.map_err(|error| lost(&error))?,
            hard_state: HardState { commit: last, ..found.hard_state },
            log_start: found.start,
            entries,
            applied,
            is_restart: true,
            may_campaign_now: false,
            seed: 0,
        };
        let mut group = Group::new(&self.config.replication, start, now.instant).map_err(|error| lost(&error))?;
        let mut outcomes = Vec::new();
        while partition.applied().index < last {
            let Some(ready) = group.poll_ready(now.instant) else {
                return Err(lost(&format_args!("it ends at entry {}", partition.applied().index)));
            };
            let Some(end) = ready.committed.last().map(|entry| entry.index) else { continue };
            let mut membership = None;
            for entry in ready.committed.iter().filter(|entry| entry.kind == EntryKind::Membership) {
                membership = Some(group.handle_membership_applied(entry).map_err(|error| lost(&error))?);
            }
            let encoded = membership.as_ref().map(Membership::encode);
            outcomes.clear();
            partition.apply(&ready.committed, encoded.as_ref(), &mut outcomes)?;
            group.handle_applied(end, now.instant);
        }
        let point = partition.flush_point();
        match partition.engine().flush() {
            Ok(()) => partition.mark_flushed(point, hedgerow_types::time::expiry_seconds(now.unix_micros)),
            Err(error) if error.is_damage() => return Err(error.into()),
            // It stays in memory and in the log until a later flush.
            Err(error) => tracing::warn!(group = %owner.group, error = chain(&error), "a flush has to wait"),
        }
        Ok(())
    }
}

/// Of each replica the copy of its log that counts, those of newer replicas first, since ids are never used twice, and grow; and the others. One
/// that is not pending may have been written to while a pending one was away, so that it counts beside that, whatever the generations are. Of
/// pending ones a sound one is as good as another.
fn newest_copies(mut candidates: Vec<Candidate>) -> (Vec<Candidate>, Vec<Candidate>) {
    candidates.sort_by_key(|Candidate { owner, found, .. }| {
        let is_sound_copy = found.is_pending && !found.is_damaged;
        std::cmp::Reverse((owner.replica.counter(), !found.is_pending, is_sound_copy, found.generation))
    });
    let mut seen = BTreeSet::new();
    candidates.into_iter().partition(|one| seen.insert(one.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pitfall D3: whatever keeps a start from reading ends it; only damage is loss.
    #[test]
    fn d3_only_damage_makes_a_replica_a_lost_one() {
        for errno in [2, 5, 12, 13, 23, 24, 28, 30, 116] {
            let of = || io::Error::from_raw_os_error(errno);
            assert!(matches!(of().into(), Unfit::Unknown(_)), "{errno}");
            let engine = EngineError::Open { dir: "d".into(), source: Box::new(of()) };
            assert!(matches!(engine.into(), Unfit::Unknown(_)), "{errno}");
        }
        assert!(matches!(io::Error::from(io::ErrorKind::InvalidData).into(), Unfit::Lost(_)));
    }
}
