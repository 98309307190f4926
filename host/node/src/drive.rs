//! Carrying out what a group asks for: messages, log writes, checkpoints. Application is in `apply.rs`, reads that waited in
//! `reads.rs`.

use crate::debt::PushBack;
use crate::heavy::HeavyWrites;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::{Job, JobDone, JobKind, JobResult};
use crate::node::Node;
use crate::replica::{Hosted, PendingInstall, Replica, checkpoint_directory};
use crate::retain::Kept;
use hedgerow_env::Now;
use hedgerow_replication::{Persist, Ready, Role, RoleChange};
use hedgerow_storage::Partition;
use hedgerow_types::time::expiry_seconds;
use hedgerow_types::{GroupId, Refusal};
use hedgerow_wal::Append;
use std::collections::{BTreeMap, BTreeSet};

/// A node that holds so many times what it should flush at refuses writes: its disk does not keep up.
const UNFLUSHED_FACTOR_MAX: u64 = 4;
/// Flushes that run at the same time in one data directory. They keep a pace, and other jobs need threads too.
const FLUSHES_MAX: usize = 2;

impl Node {
    /// Does everything that `group` wants done now.
    pub(crate) fn drive_group(&mut self, group: GroupId, now: Now) {
        loop {
            let Some(replica) = self.shard.running(group) else { return };
            if replica.storage.is_none() {
                return self.start_install(group);
            }
            let Some(ready) = replica.group.poll_ready(now.instant) else { return };
            self.carry_out(group, ready, now);
        }
    }

    fn carry_out(&mut self, group: GroupId, ready: Ready, now: Now) {
        let Some(replica) = self.shard.running(group) else { return };
        let owner = replica.owner;
        if let Some(change) = ready.role {
            self.handle_role(group, change, now);
        }
        for (to, mut message) in ready.messages {
            self.shard.keep_what_is_taken(group, to, &mut message);
            let buffer = self.shard.outbox.peer(to.node());
            crate::peer::put_replication(buffer, group, owner.replica, to, |out| message.encode(out));
        }
        if let Some(persist) = ready.persist {
            self.persist(owner, persist);
        }
        if !ready.committed.is_empty() {
            self.apply(group, &ready.committed, now);
        }
        for (ticket, outcome) in ready.reads {
            match self.shard.serving().finish_read(group, ticket, outcome, now) {
                Some((ticket, Ok(()))) => self.load_catalogue(ticket, now),
                Some((ticket, Err(refusal))) => self.metadata.handle_failed(ticket, &refusal),
                None => {}
            }
        }
        if !ready.answers.is_empty() {
            self.shard.gather_read_index_replies(owner, ready.answers);
        }
        if let Some(meta) = ready.install
            && let Some(replica) = self.shard.running(group)
        {
            let former = replica.take_storage();
            let from = replica.receiving.as_ref().map(|receiving| receiving.directory.clone()).unwrap_or_default();
            replica.install = Some(PendingInstall { meta, from, former, is_running: false });
            let refusal = Refusal::NotReady("a checkpoint is being installed".into());
            self.refuse_waiting_reads(group, &refusal, now);
            self.shard.serving().end_reads_of(owner, &refusal, now);
        }
        if ready.wants_checkpoint {
            self.start_checkpoint(group, now);
        }
        for send in ready.snapshots {
            self.start_sending(group, send, now);
        }
        let directory = self.shard.running(group).map_or(DirectoryId(0), |replica| replica.directory);
        let log = self.config.log_of(directory);
        self.shard.outbox.jobs.extend(ready.fetch.into_iter().map(|fetch| Job::Fetch { owner, log, fetch }));
    }

    /// Refuses every read that waits at `replica`, which will not serve them.
    fn refuse_waiting_reads(&mut self, group: GroupId, refusal: &Refusal, now: Now) {
        let Some(replica) = self.shard.running(group) else { return };
        let reads = std::mem::take(&mut replica.reads);
        reads.keys().for_each(|ticket| replica.group.cancel_read(*ticket));
        reads.into_values().for_each(|read| self.shard.refuse(read.origin, refusal, now));
    }

    fn persist(&mut self, owner: ReplicaKey, persist: Persist) {
        let Some(replica) = self.shard.running_as(owner) else { return };
        let directory = replica.directory;
        let log = self.config.log_of(directory);
        let Persist { ticket, reset, entries, hard_state } = persist;
        let append = Append { group: owner.group, replica: owner.replica, reset, entries, hard_state };
        self.shard.log_writes.append(log, owner, Some(ticket), append);
    }

    fn handle_role(&mut self, group: GroupId, change: RoleChange, now: Now) {
        let Some(replica) = self.shard.running(group) else { return };
        replica.led_since = change.leader.map(|_| now.instant);
        replica.sending.end_transfers();
        tracing::debug!(%group, role = ?change.role, term = change.term, leader = ?change.leader, "role");
        // Whoever leads next decides what becomes of these writes; their callers may ask there with the same number.
        let writes = if change.role == Role::Leader {
            Default::default()
        } else {
            replica.heavy = HeavyWrites::default();
            std::mem::take(&mut replica.writes)
        };
        self.shard.refuse_writes(writes.into_values(), &Refusal::Unresolved, now);
        if group == GroupId::META {
            self.handle_metadata_role(change, now);
        }
        self.note_leader(group, change.term, change.leader);
        if change.role == Role::Leader {
            self.reports.urgent.insert(group);
            self.shard.update_stop(group);
        }
    }

    /// Starts what [`Ready::install`] asked for, once nothing else holds the storage open.
    fn start_install(&mut self, group: GroupId) {
        let Some(replica) = self.shard.running(group) else { return };
        let owner = replica.owner;
        let (directory, users, path) = (replica.directory, replica.storage_users, replica.path.clone());
        let Some(install) = &mut replica.install else { return };
        if install.is_running {
            return;
        }
        if users > 0 {
            return self.admin.comparing.end_reads_of(owner);
        }
        install.is_running = true;
        let (meta, from, former) = (install.meta.clone(), install.from.clone(), install.former.take());
        let trash = self.trash_path(directory);
        self.shard.job(Job::Install { owner, former, from, directory: path, trash, meta });
    }

    /// Flushes storage where much has gathered, so that the log can be cut: every replica above its own limit, and the
    /// largest one while the node is above its limit.
    pub(crate) fn tick_storage(&mut self) {
        let limit = UNFLUSHED_FACTOR_MAX.saturating_mul(self.config.flush_node_bytes);
        let held: u64 = self.shard.replicas.hosted.values().map(bytes_held).sum();
        self.note_behind(held > limit);
        let gathered = |(group, hosted): (&GroupId, &Hosted)| (bytes_since(hosted), *group);
        let mut by_size: Vec<(u64, GroupId)> = self.shard.replicas.hosted.iter().map(gathered).collect();
        let total: u64 = by_size.iter().map(|(bytes, _)| bytes).sum();
        let largest = by_size.iter().max().copied();
        by_size.retain(|(bytes, _)| *bytes > self.config.flush_replica_bytes);
        let may_hold = self.config.flush_node_bytes;
        if (total > may_hold || (held > may_hold && total > 0)) && by_size.is_empty() {
            by_size.extend(largest);
        }
        by_size.extend(
            self.shard
                .replicas
                .hosted
                .iter()
                .filter(|(_, hosted)| self.shard.is_due_on_full_disk(hosted))
                .map(gathered),
        );
        let due: BTreeSet<(u64, GroupId)> = by_size.into_iter().collect();
        let mut running = self.flushes_running();
        for (_, group) in due.into_iter().rev() {
            let directory = self.shard.replicas.hosted.get(&group).map_or(DirectoryId(0), Hosted::directory);
            let there = running.entry(directory).or_default();
            if *there < FLUSHES_MAX {
                *there += 1;
                self.start_flush(group);
            }
        }
    }

    /// How many flushes run, by data directory.
    fn flushes_running(&self) -> BTreeMap<DirectoryId, usize> {
        let mut running = BTreeMap::new();
        for hosted in self.shard.replicas.hosted.values() {
            let Hosted::Running(replica) = hosted else { continue };
            if replica.flush.is_running && !self.failures.has_flush_waiting(replica.owner) {
                *running.entry(replica.directory).or_default() += 1;
            }
        }
        running
    }

    fn start_flush(&mut self, group: GroupId) {
        let is_pressing =
            self.shard.view.is_storage_behind || self.shard.view.is_draining || self.shard.has_full_disk();
        let Some(replica) = self.shard.running(group) else { return };
        let Some(storage) = &replica.storage else { return };
        let job = Job::Flush {
            is_pressing,
            owner: replica.owner,
            engine: std::sync::Arc::clone(storage.engine()),
            point: storage.flush_point(),
        };
        replica.flush.is_running = true;
        replica.kept.note_flush_begun();
        replica.flush.bytes_running = std::mem::take(&mut replica.flush.bytes_since);
        replica.storage_users += 1;
        self.shard.job(job);
    }

    fn start_checkpoint(&mut self, group: GroupId, now: Now) {
        if !self.may_make_checkpoint(group, now) {
            // The group asks again.
            return;
        }
        let id = self.shard.random.next_u64() | 1;
        let Some(Hosted::Running(replica)) = self.shard.replicas.hosted.get_mut(&group) else { return };
        let Some(storage) = &replica.storage else { return };
        let owner = replica.owner;
        replica.sending.note_making(storage.applied().index);
        let into = checkpoint_directory(self.config.path_of(replica.directory), owner, id);
        let job = Job::Checkpoint { owner, engine: std::sync::Arc::clone(storage.engine()), into, id };
        replica.storage_users += 1;
        self.shard.job(job);
    }

    pub(crate) fn finish_job(&mut self, done: JobDone, now: Now) {
        let Some(owner) = done.owner else {
            if done.kind == JobKind::Remove {
                self.shard.note_removal_ended();
            }
            match done.result {
                Ok(JobResult::Space { directory, space, missed, is_away }) => {
                    self.handle_space(directory, space);
                    self.handle_directory_away(directory, is_away, now);
                    self.handle_storage_missed(missed, now);
                }
                Ok(_) => {}
                Err(failure) => tracing::warn!(reason = failure.reason, "directories could not be removed"),
            }
            return;
        };
        self.note_creation_ended(owner.group, &done.kind);
        if done.kind == JobKind::LoadSessions {
            self.shard.note_load_ended();
        }
        let ended = match done.kind {
            JobKind::Read(_, place) => place,
            _ => None,
        };
        if done.holds_storage
            && let Some(replica) = self.shard.running_as(owner)
        {
            replica.storage_users = replica.storage_users.saturating_sub(1);
            self.shard.mark_dirty(owner.group);
        }
        let is_gone = self.shard.replicas.hosted.get(&owner.group).is_none_or(|hosted| hosted.owner() != owner);
        let makes_directories = matches!(
            done.kind,
            JobKind::Make | JobKind::Copy | JobKind::Write(_) | JobKind::Verify(_) | JobKind::VerifyOwn
        );
        match done.result {
            Ok(result) => self.take_result(owner, result, now),
            Err(failure) => self.handle_job_failed(owner, done.kind, failure, now),
        }
        if let Some(line) = ended {
            self.shard.requests.note_read_ended(line);
        }
        if is_gone && makes_directories {
            self.clear_up(owner);
        }
    }

    fn take_result(&mut self, owner: ReplicaKey, result: JobResult, now: Now) {
        match result {
            JobResult::Created(partition) => {
                self.failures.note_success(owner.group);
                self.handle_created(owner, partition, now);
            }
            JobResult::Verified { id } => self.handle_verified(owner, id, now),
            JobResult::OwnVerified { meta, files } => self.handle_own_verified(owner, meta, files, now),
            JobResult::Installed { mut partition, meta, trash } => {
                self.failures.note_success(owner.group);
                partition.set_session_bytes_max(self.config.session_bytes_max);
                let Some(replica) = self.shard.running_as(owner) else {
                    return self.shard.enqueue_removal(Some(partition), vec![trash]);
                };
                replica.flush.position = partition.applied();
                replica.kept = Kept::new(partition.applied(), partition.applied(), &[]);
                replica.storage = Some(*partition);
                replica.install = None;
                replica.push_back = PushBack::default();
                replica.receiving = None;
                replica.group.handle_snapshot_installed(&meta, now.instant);
                self.shard.mark_dirty(owner.group);
                self.shard.enqueue_removal(None, vec![trash]);
                self.discard_received(owner);
            }
            JobResult::Flushed { point, debt } => {
                self.failures.note_success(owner.group);
                self.note_debt(owner, debt, false);
                let Some(replica) = self.shard.running_as(owner) else { return };
                replica.flush.is_running = false;
                replica.flush.bytes_running = 0;
                replica.flush.position = point.position();
                replica.kept.note_flushed(point.position());
                if let Some(storage) = &mut replica.storage {
                    storage.mark_flushed(point, expiry_seconds(now.unix_micros));
                }
                self.cut_log(owner, now);
            }
            JobResult::Checkpoint { meta, files } => self.handle_checkpoint(owner, meta, files, now),
            JobResult::Chunk { to, id, file, offset, data } => self.send_chunk(owner, (to, id), (file, offset), data),
            JobResult::Written { id } => self.handle_chunk_written(owner, id, now),
            JobResult::Fetched { fetch, entries } => {
                if let Some(replica) = self.shard.running_as(owner) {
                    replica.group.handle_entries_fetched(fetch, entries, now.instant);
                    self.shard.mark_dirty(owner.group);
                }
            }
            JobResult::Read { ticket, reply } => self.handle_read(ticket, reply, now),
            JobResult::NotAtOnce { ticket, read } => self.shard.serving().serve_again(owner, ticket, read, now),
            JobResult::Sessions { sessions, engine } => {
                let storage = self.shard.running_as(owner).and_then(|replica| replica.storage.as_mut());
                // It may have been replaced meanwhile.
                if let Some(storage) = storage.filter(|storage| std::sync::Arc::ptr_eq(storage.engine(), &engine)) {
                    storage.adopt_sessions(*sessions);
                }
            }
            JobResult::Debt(debt) => self.note_debt(owner, debt, true),
            JobResult::Removed | JobResult::Space { .. } => {}
        }
    }

    /// Stops a replica that cannot go on, being damaged or in a directory that failed; it is reported and will be replaced.
    pub(crate) fn lose(&mut self, group: GroupId, reason: &str, is_damaged: bool, now: Now) {
        self.step_down(group, now);
        let Some(Hosted::Running(mut replica)) = self.shard.replicas.hosted.remove(&group) else { return };
        let (owner, directory) = (replica.owner, replica.directory);
        self.shard.enqueue_removal(replica.take_storage(), Vec::new());
        self.dismiss(*replica, &Refusal::NotReady("the replica is damaged".into()), now);
        self.insert_lost(owner, directory, reason, is_damaged);
        // The others must know before they give up theirs.
        self.reports.urgent.insert(group);
    }

    /// Lets a replica go; whoever waits for it is told, readers with `refusal`.
    pub(crate) fn dismiss(&mut self, replica: Replica, refusal: &Refusal, now: Now) {
        replica.wake.map(|at| self.shard.replicas.wakes.remove(&(at, replica.owner.group)));
        replica.reads.into_values().for_each(|read| self.shard.refuse(read.origin, refusal, now));
        self.shard.refuse_writes(replica.writes.into_values(), &Refusal::Unresolved, now);
    }

    pub(crate) fn open_partition_of(&self, group: GroupId) -> Option<&Partition> {
        match self.shard.replicas.hosted.get(&group)? {
            Hosted::Running(replica) => replica.storage.as_ref(),
            Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        }
    }
}

/// What would be flushed of a replica now, in bytes of its log.
pub(crate) fn bytes_since(hosted: &Hosted) -> u64 {
    match hosted {
        // What is being installed takes the place of what would be flushed.
        Hosted::Running(replica) if !replica.flush.is_running && replica.storage.is_some() => replica.flush.bytes_since,
        Hosted::Running(_) | Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
    }
}

/// Bytes that a replica's rows take in memory because no flush has written them, and entries because storage does not take
/// them. The rows' log may be smaller, by what it costs to keep a row, or larger, where rows were replaced.
fn bytes_held(hosted: &Hosted) -> u64 {
    match hosted {
        Hosted::Running(replica) => {
            let unflushed = replica.storage.as_ref().map_or(0, |storage| storage.engine().unflushed_bytes());
            unflushed + replica.group.held_bytes() as u64
        }
        Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
    }
}

/// An error with all its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
