//! What follows when a job has ended well; when it has not, see `failure.rs`.

use crate::ids::ReplicaKey;
use crate::job::{JobDone, JobKind, JobResult};
use crate::node::Node;
use hedgerow_env::Now;

impl Node {
    pub(crate) fn finish_job(&mut self, done: JobDone, now: Now) {
        let Some(owner) = done.owner else { return self.finish_own_job(done, now) };
        self.note_creation_ended(owner.group, &done.kind);
        let is_load = done.kind == JobKind::LoadSessions;
        let ended = match done.kind {
            JobKind::Read(_, place) => place,
            _ => None,
        };
        if done.holds_storage
            && let Some(replica) = self.shards.running_as(owner)
        {
            replica.storage_users = replica.storage_users.saturating_sub(1);
            self.shards.mark_dirty(owner.group);
        }
        let is_gone = !self.shards.has(owner);
        let makes_directories = matches!(
            done.kind,
            JobKind::Make | JobKind::Copy | JobKind::Write(_) | JobKind::Verify(_) | JobKind::VerifyOwn
        );
        let is_done = done.result.is_ok();
        match done.result {
            Ok(result) => self.take_result(owner, result, now),
            Err(failure) => self.handle_job_failed(owner, done.kind, failure, now),
        }
        if is_load {
            self.shards.of(owner.group).note_load_ended(owner, is_done, now);
        }
        if let Some(line) = ended {
            self.shards.of(owner.group).requests.note_read_ended(line);
        }
        if is_gone && makes_directories {
            self.clear_up(owner);
        }
    }

    /// A job that was for no replica has ended.
    fn finish_own_job(&mut self, done: JobDone, now: Now) {
        if let JobKind::Remove(shard) = done.kind
            && let Some(shard) = self.shards.numbered(shard)
        {
            shard.note_removal_ended();
        }
        match done.result {
            Ok(JobResult::Space { directory, space, missed, is_away }) => {
                self.handle_space(directory, space);
                self.handle_directory_away(directory, is_away, now);
                self.handle_storage_missed(missed, now);
            }
            Ok(JobResult::Errands { shard, directory, done }) => {
                if let Some(shard) = self.shards.numbered(shard) {
                    shard.handle_errands(directory, done, now);
                }
            }
            Ok(JobResult::Told(text)) => self.handle_told(&text, now),
            Ok(JobResult::Catalogue(catalogue)) => self.handle_catalogue_saved(Ok(catalogue), now),
            Err(failure) if done.kind == JobKind::Catalogue => self.handle_catalogue_saved(Err(failure.reason), now),
            Ok(_) => {}
            Err(failure) => tracing::warn!(reason = failure.reason, "directories could not be removed"),
        }
    }

    fn take_result(&mut self, owner: ReplicaKey, result: JobResult, now: Now) {
        match result {
            JobResult::Created(partition) => {
                self.failures.note_success(owner.group);
                self.handle_created(owner, partition, now);
            }
            JobResult::Verified { id } => self.shards.of(owner.group).handle_verified(owner, id, now),
            JobResult::OwnVerified { meta, files } => {
                self.shards.of(owner.group).handle_own_verified(owner, meta, files, now)
            }
            JobResult::Installed { partition, meta, trash } => {
                self.failures.note_success(owner.group);
                self.shards.of(owner.group).handle_installed(owner, (partition, trash), &meta, now);
            }
            JobResult::Flushed { point, debt } => {
                self.failures.note_success(owner.group);
                self.shards.of(owner.group).handle_flushed(owner, point, debt, now);
            }
            JobResult::Checkpoint { meta, files } => {
                self.shards.of(owner.group).handle_checkpoint(owner, meta, files, now)
            }
            JobResult::Chunk { to, id, file, offset, data } => {
                self.shards.of(owner.group).send_chunk(owner, (to, id), (file, offset), data)
            }
            JobResult::Written { id } => self.shards.of(owner.group).handle_chunk_written(owner, id, now),
            JobResult::Fetched { fetch, entries } => {
                self.shards.of(owner.group).handle_fetched(owner, fetch, entries, now)
            }
            JobResult::Read { ticket, reply } => self.handle_read(ticket, reply, now),
            JobResult::NotAtOnce { ticket, read } => {
                self.shards.of(owner.group).serving().serve_again(owner, ticket, read, now)
            }
            JobResult::Sessions { sessions, engine } => {
                self.shards.of(owner.group).handle_sessions(owner, *sessions, &engine)
            }
            JobResult::Debt(debt) => self.shards.of(owner.group).note_debt(owner, debt, true),
            JobResult::Removed
            | JobResult::Space { .. }
            | JobResult::Catalogue(_)
            | JobResult::Told(_)
            | JobResult::Errands { .. } => {}
        }
    }
}
