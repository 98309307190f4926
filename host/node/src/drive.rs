//! Messages of a group, and carrying out what it asks for: messages, log writes, checkpoints. Application is in `apply.rs`, reads that
//! waited in `requests/reads.rs`.

use crate::debt::PushBack;
use crate::heavy::HeavyWrites;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::notice::Notice;
use crate::replica::{Hosted, PendingInstall, Replica, checkpoint_directory};
use crate::retain::Kept;
use crate::shard::Shard;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_replication::{Fetch, Message, Persist, Ready, Role, RoleChange, SnapshotMeta};
use hedgerow_storage::{Engine, Partition, Sessions};
use hedgerow_types::log::Entry;
use hedgerow_types::{GroupId, Refusal, ReplicaId};
use hedgerow_wal::Append;
use std::path::PathBuf;
use std::sync::Arc;

impl Shard {
    /// A message of a group came from another replica.
    pub(crate) fn handle_replication(&mut self, owner: ReplicaKey, from: ReplicaId, message: Bytes, now: Now) {
        match Message::decode(message) {
            Ok(message) if self.has_no_room_for(owner.group, &message) => {}
            Ok(mut message) => {
                self.keep_what_fits(owner.group, &mut message);
                let Some(replica) = self.running_as(owner) else { return };
                replica.group.handle_message(from, message, now.instant);
                self.mark_dirty(owner.group);
            }
            Err(error) => tracing::warn!(%from, group = %owner.group, %error, "a replication message was dropped"),
        }
    }

    /// Has `group`, which was marked, looked at.
    pub(crate) fn drive_marked(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        replica.is_dirty = false;
        self.drive_group(group, now);
        self.gather_read_index_request(group, now);
        self.gather_tail_request(group);
        self.update_wake(group);
    }

    /// Does everything that `group` wants done now.
    fn drive_group(&mut self, group: GroupId, now: Now) {
        loop {
            let Some(replica) = self.running(group) else { return };
            if replica.storage.is_none() {
                return self.start_install(group);
            }
            let Some(ready) = replica.group.poll_ready(now.instant) else { return };
            if !self.carry_out(group, ready, now) {
                return;
            }
        }
    }

    /// Returns whether the group goes on.
    fn carry_out(&mut self, group: GroupId, ready: Ready, now: Now) -> bool {
        let Some(replica) = self.running(group) else { return false };
        let owner = replica.owner;
        if let Some(change) = ready.role {
            self.handle_role(group, change, now);
        }
        for (to, mut message) in ready.messages {
            self.keep_what_is_taken(group, to, &mut message);
            let buffer = self.outbox.peer(to.node());
            crate::peer::put_replication(buffer, group, owner.replica, to, |out| message.encode(out));
        }
        if let Some(persist) = ready.persist {
            self.persist(owner, persist);
        }
        if !ready.answers.is_empty() {
            self.gather_read_index_replies(owner, ready.answers);
        }
        if !ready.committed.is_empty() && !self.apply(group, &ready.committed, now) {
            return false;
        }
        for (ticket, outcome) in ready.reads {
            let ended = self.serving().finish_read(group, ticket, outcome, now);
            self.notices.extend(ended.map(|(ticket, result)| match result {
                Ok(()) => Notice::MetadataRead(ticket),
                Err(refusal) => Notice::MetadataFailed(ticket, refusal),
            }));
        }
        if let Some(meta) = ready.install
            && let Some(replica) = self.running(group)
        {
            let former = replica.take_storage();
            let from = replica.receiving.as_ref().map(|receiving| receiving.directory.clone()).unwrap_or_default();
            replica.install = Some(PendingInstall { meta, from, former, is_running: false });
            let refusal = Refusal::NotReady("a checkpoint is being installed".into());
            self.refuse_waiting_reads(group, &refusal, now);
            self.serving().end_reads_of(owner, &refusal, now);
        }
        if ready.wants_checkpoint {
            self.start_checkpoint(group, now);
        }
        for send in ready.snapshots {
            self.start_sending(group, send, now);
        }
        let directory = self.running(group).map_or(DirectoryId(0), |replica| replica.directory);
        let log = self.config.log_of(directory);
        self.outbox.jobs.extend(ready.fetch.into_iter().map(|fetch| Job::Fetch { owner, log, fetch }));
        true
    }

    /// Refuses every read that waits at `replica`, which will not serve them.
    fn refuse_waiting_reads(&mut self, group: GroupId, refusal: &Refusal, now: Now) {
        let Some(replica) = self.running(group) else { return };
        let reads = std::mem::take(&mut replica.reads);
        reads.keys().for_each(|ticket| replica.group.cancel_read(*ticket));
        reads.into_values().for_each(|read| self.refuse(read.origin, refusal, now));
    }

    fn persist(&mut self, owner: ReplicaKey, persist: Persist) {
        let Some(replica) = self.running_as(owner) else { return };
        let directory = replica.directory;
        let log = self.config.log_of(directory);
        let Persist { ticket, reset, entries, hard_state } = persist;
        let append = Append { group: owner.group, replica: owner.replica, reset, entries, hard_state };
        self.log_writes.append(log, owner, Some(ticket), append);
    }

    fn handle_role(&mut self, group: GroupId, change: RoleChange, now: Now) {
        let Some(replica) = self.running(group) else { return };
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
        self.refuse_writes(writes.into_values(), &Refusal::Unresolved, now);
        self.notices.push(Notice::Role(group, change));
        if change.role == Role::Leader {
            self.update_stop(group);
        }
    }

    /// Starts what [`Ready::install`] asked for, once nothing else holds the storage open.
    fn start_install(&mut self, group: GroupId) {
        let Some(replica) = self.running(group) else { return };
        let owner = replica.owner;
        let (directory, users, path) = (replica.directory, replica.storage_users, replica.path.clone());
        let Some(install) = &mut replica.install else { return };
        if install.is_running {
            return;
        }
        if users > 0 {
            return self.notices.push(Notice::WantsStorage(owner));
        }
        install.is_running = true;
        let (meta, from, former) = (install.meta.clone(), install.from.clone(), install.former.take());
        let trash = self.trash(directory).name();
        self.job(Job::Install { owner, former, from, directory: path, trash, meta });
    }

    /// A checkpoint has taken the place of a replica's storage, which is in `trash` now.
    pub(crate) fn handle_installed(
        &mut self,
        owner: ReplicaKey,
        (mut partition, trash): (Box<Partition>, PathBuf),
        meta: &SnapshotMeta,
        now: Now,
    ) {
        partition.set_session_bytes_max(self.config.session_bytes_max);
        let Some(replica) = self.running_as(owner) else {
            return self.enqueue_removal(Some(partition), vec![trash]);
        };
        replica.flush.position = partition.applied();
        replica.kept = Kept::new(partition.applied(), partition.applied(), &[]);
        replica.storage = Some(*partition);
        replica.install = None;
        replica.push_back = PushBack::default();
        replica.receiving = None;
        replica.group.handle_snapshot_installed(meta, now.instant);
        // What waited for a table that is not needed any more.
        replica.group.take_up(now.instant);
        self.mark_dirty(owner.group);
        self.enqueue_removal(None, vec![trash]);
        self.discard_received(owner);
    }

    /// Old entries of a group's log were read.
    pub(crate) fn handle_fetched(&mut self, owner: ReplicaKey, fetch: Fetch, entries: Vec<Entry>, now: Now) {
        if let Some(replica) = self.running_as(owner) {
            replica.group.handle_entries_fetched(fetch, entries, now.instant);
            self.mark_dirty(owner.group);
        }
    }

    /// The exactly-once table of a replica was read from `engine`.
    pub(crate) fn handle_sessions(&mut self, owner: ReplicaKey, sessions: Sessions, engine: &Arc<dyn Engine>) {
        let storage = self.running_as(owner).and_then(|replica| replica.storage.as_mut());
        // It may have been replaced meanwhile.
        if let Some(storage) = storage.filter(|storage| Arc::ptr_eq(storage.engine(), engine)) {
            storage.adopt_sessions(sessions);
        }
    }

    fn start_checkpoint(&mut self, group: GroupId, now: Now) {
        if !self.may_make_checkpoint(group, now) {
            // The group asks again.
            return;
        }
        let id = self.random.next_u64() | 1;
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else { return };
        let Some(storage) = &replica.storage else { return };
        let owner = replica.owner;
        replica.sending.note_making(storage.applied().index);
        let into = checkpoint_directory(self.config.path_of(replica.directory), owner, id);
        let job = Job::Checkpoint { owner, engine: Arc::clone(storage.engine()), into, id };
        replica.storage_users += 1;
        self.job(job);
    }

    /// Lets a replica go; whoever waits for it is told, readers with `refusal`.
    pub(crate) fn dismiss(&mut self, replica: Replica, refusal: &Refusal, now: Now) {
        replica.wake.map(|at| self.replicas.wakes.remove(&(at, replica.owner.group)));
        replica.reads.into_values().for_each(|read| self.refuse(read.origin, refusal, now));
        self.refuse_writes(replica.writes.into_values(), &Refusal::Unresolved, now);
    }

    pub(crate) fn open_partition_of(&self, group: GroupId) -> Option<&Partition> {
        match self.replicas.hosted.get(&group)? {
            Hosted::Running(replica) => replica.storage.as_ref(),
            Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        }
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
