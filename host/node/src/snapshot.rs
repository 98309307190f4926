//! Streaming checkpoints to replicas that the log can no longer help: piece by piece, at the receiver's pace and within
//! a rate, and going on where it stopped.
//!
//! ```text
//! leader's node                                receiver's node
//!   checkpoint (job)
//!   SnapshotBegin(files, message)  ---------->  notes the files; those it has whole are not asked for again
//!                    <----------  SnapshotProgress(file, offset): what it wants next
//!   SnapshotChunk(file, offset, bytes) ------>  writes it (job), syncs and renames a whole file
//!                        ...
//!                    <----------  SnapshotProgress(number of files): everything is there
//!   handle_snapshot_sent                        handle_snapshot_received, then install (job)
//! ```
//!
//! A receiver that hears nothing repeats what it wants, so that a broken connection costs one piece; a receiver that
//! restarts keeps its whole files. Neither end waits for the other with anything held.

use crate::config::SNAPSHOT_CHUNK_SIZE;
use crate::job::{Job, Owner};
use crate::node::Node;
use crate::peer::{Frame, SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress};
use crate::replica::{Hosted, checkpoint_directory, incoming_directory};
use bytes::{Bytes, BytesMut};
use hedgerow_env::{Now, OpenMode};
use hedgerow_replication::{SnapshotMeta, SnapshotSend};
use hedgerow_types::{GroupId, Index, Instant, ReplicaId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A receiver that has heard nothing for this long says again what it wants.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// A transfer that has not moved for this long is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A checkpoint that nobody has been sent for this long is removed. Longer than its last receiver takes to install it, so
/// that the log after it is still there then.
const CHECKPOINT_IDLE_MAX: Duration = Duration::from_secs(60);
/// Most files of one checkpoint.
const FILES_MAX: usize = 100_000;

/// Checkpoints that a replica's node is sending.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    checkpoint: Option<Checkpoint>,
    transfers: BTreeMap<ReplicaId, Transfer>,
    /// While a checkpoint is being made: an index that it will not be below.
    making: Option<Index>,
}

impl Sending {
    pub(crate) fn note_making(&mut self, from: Index) {
        self.making = Some(from);
    }

    /// The index after which whoever learns from the checkpoint will need the log.
    pub(crate) fn held_from(&self) -> Option<Index> {
        let made = self.checkpoint.as_ref().map(|checkpoint| checkpoint.meta.position.index);
        made.into_iter().chain(self.making).min()
    }
}

#[derive(Debug)]
struct Checkpoint {
    meta: SnapshotMeta,
    files: Vec<(String, u64)>,
    directory: PathBuf,
    /// Time since it was made or used.
    idle: Duration,
}

#[derive(Debug)]
struct Transfer {
    id: u64,
    /// What began it, to be said again while the receiver says nothing.
    begin: Frame,
    /// Time since it was said last.
    since_begin: Duration,
    /// What the receiver wants and has not been sent.
    wanted: Option<(u32, u64)>,
    idle: Duration,
}

/// A checkpoint that a replica is receiving.
#[derive(Debug)]
pub(crate) struct Receiving {
    from: ReplicaId,
    id: u64,
    message: Bytes,
    files: Vec<SnapshotFile>,
    file: usize,
    offset: u64,
    /// Or being verified.
    is_writing: bool,
    /// All files are here, and what they should be.
    is_verified: bool,
    /// Bytes of the piece being written.
    writing: u64,
    last_heard: Instant,
    last_progress: Instant,
}

/// Bytes that checkpoints may still take of the network.
#[derive(Debug)]
pub(crate) struct Limiter {
    bytes_per_second: u64,
    tokens: u64,
}

impl Limiter {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, tokens: SNAPSHOT_CHUNK_SIZE }
    }

    fn refill(&mut self, elapsed: Duration) {
        let fresh = (u128::from(self.bytes_per_second) * elapsed.as_nanos() / 1_000_000_000) as u64;
        self.tokens = (self.tokens + fresh).min(self.bytes_per_second.max(SNAPSHOT_CHUNK_SIZE));
    }

    fn take(&mut self, bytes: u64) -> bool {
        let has_enough = self.tokens >= bytes;
        if has_enough {
            self.tokens -= bytes;
        }
        has_enough
    }
}

impl Node {
    pub(crate) fn handle_checkpoint(&mut self, owner: Owner, meta: SnapshotMeta, files: Vec<(String, u64)>, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        let log = replica.log;
        let directory = checkpoint_directory(&self.config.data[log], owner, meta.id);
        let Some(replica) = self.running_as(owner) else { return };
        replica.sending.making = None;
        replica.group.handle_checkpoint(meta.clone(), now.instant);
        // Whoever was being sent the one before gets this one: pieces of the two must never be mixed.
        for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
            replica.group.handle_snapshot_sent(to, false, now.instant);
        }
        let before = replica.sending.checkpoint.replace(Checkpoint { meta, files, directory, idle: Duration::ZERO });
        self.mark_dirty(owner.group);
        if let Some(before) = before {
            self.job(Job::Remove { directories: vec![before.directory] });
        }
    }

    pub(crate) fn start_sending(&mut self, group: GroupId, send: SnapshotSend, now: Now) {
        let Some(replica) = self.running(group) else { return };
        let SnapshotSend { to, meta, message } = send;
        let from = replica.id();
        let Some(checkpoint) = replica.sending.checkpoint.as_ref().filter(|it| it.meta.id == meta.id) else {
            replica.group.forget_checkpoint(meta.id);
            replica.group.handle_snapshot_sent(to, false, now.instant);
            return self.mark_dirty(group);
        };
        let mut encoded = BytesMut::new();
        message.encode(&mut encoded);
        let files = checkpoint.files.iter().map(|(name, size)| SnapshotFile { name: name.clone(), size: *size });
        let begin = Frame::SnapshotBegin(SnapshotBegin {
            group: group.to_u64(),
            from: from.0,
            to: to.0,
            id: meta.id,
            message: encoded.freeze(),
            files: files.collect(),
        });
        let (idle, since_begin) = (Duration::ZERO, Duration::ZERO);
        let transfer = Transfer { id: meta.id, begin: begin.clone(), since_begin, wanted: None, idle };
        replica.sending.transfers.insert(to, transfer);
        tracing::info!(%group, %to, index = meta.position.index, "sending a checkpoint");
        self.send(to.node(), &begin);
    }

    pub(crate) fn handle_snapshot_progress(&mut self, progress: SnapshotProgress, now: Now) {
        let group = GroupId::from_u64(progress.group);
        let to = ReplicaId(progress.from);
        let Some(replica) = self.running(group) else { return };
        let Some(transfer) = replica.sending.transfers.get_mut(&to).filter(|it| it.id == progress.id) else { return };
        transfer.idle = Duration::ZERO;
        let file_count = replica.sending.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.files.len());
        if progress.is_refused || progress.file as usize >= file_count {
            replica.sending.transfers.remove(&to);
            replica.group.handle_snapshot_sent(to, !progress.is_refused, now.instant);
            return self.mark_dirty(group);
        }
        transfer.wanted = Some((progress.file, progress.offset));
        self.send_wanted(group);
    }

    pub(crate) fn tick_sending(&mut self, elapsed: Duration, now: Now) {
        self.limiter.refill(elapsed);
        self.tick_checkpoints(elapsed);
        let groups: Vec<GroupId> = self.hosted.keys().copied().collect();
        for group in groups {
            let Some(replica) = self.running(group).filter(|replica| !replica.sending.transfers.is_empty()) else {
                continue;
            };
            let mut again = Vec::new();
            for (to, transfer) in &mut replica.sending.transfers {
                transfer.idle += elapsed;
                transfer.since_begin += elapsed;
                // A receiver that has begun repeats what it wants by itself; one that has not may have missed the
                // beginning. Hearing it twice does no harm.
                if transfer.idle >= REPEAT_AFTER && transfer.since_begin >= REPEAT_AFTER {
                    transfer.since_begin = Duration::ZERO;
                    again.push((*to, transfer.begin.clone()));
                }
            }
            let is_idle = |transfer: &Transfer| transfer.idle >= GIVE_UP_AFTER;
            let transfers = &replica.sending.transfers;
            let idle: Vec<ReplicaId> =
                transfers.iter().filter(|(_, transfer)| is_idle(transfer)).map(|(to, _)| *to).collect();
            for to in idle {
                replica.sending.transfers.remove(&to);
                replica.group.handle_snapshot_sent(to, false, now.instant);
            }
            self.mark_dirty(group);
            again.into_iter().for_each(|(to, begin)| self.send(to.node(), &begin));
            self.send_wanted(group);
        }
    }

    /// The log was cut at `cut`: a checkpoint from before that is of no use any more.
    pub(crate) fn end_outdated_transfers(&mut self, owner: Owner, cut: Index, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        if replica.sending.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.meta.position.index < cut) {
            for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
                replica.group.handle_snapshot_sent(to, false, now.instant);
            }
            self.forget_checkpoint(owner);
        }
    }

    /// Removes the checkpoint that a replica made for others.
    fn forget_checkpoint(&mut self, owner: Owner) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(checkpoint) = replica.sending.checkpoint.take() else { return };
        replica.group.forget_checkpoint(checkpoint.meta.id);
        self.mark_dirty(owner.group);
        self.job(Job::Remove { directories: vec![checkpoint.directory] });
    }

    /// A checkpoint that nobody has wanted for a while goes: it pins files, and the log after it.
    fn tick_checkpoints(&mut self, elapsed: Duration) {
        let mut unused = Vec::new();
        for hosted in self.hosted.values_mut() {
            let Hosted::Running(replica) = hosted else { continue };
            let is_used = !replica.sending.transfers.is_empty();
            let Some(checkpoint) = &mut replica.sending.checkpoint else { continue };
            checkpoint.idle = if is_used { Duration::ZERO } else { checkpoint.idle + elapsed };
            if checkpoint.idle >= CHECKPOINT_IDLE_MAX {
                unused.push(replica.owner);
            }
        }
        unused.into_iter().for_each(|owner| self.forget_checkpoint(owner));
    }

    /// Reads the pieces that are wanted, as far as the rate allows.
    fn send_wanted(&mut self, group: GroupId) {
        let Some(Hosted::Running(replica)) = self.hosted.get_mut(&group) else { return };
        let owner = replica.owner;
        let Some(checkpoint) = &replica.sending.checkpoint else { return };
        for (to, transfer) in &mut replica.sending.transfers {
            let Some((file, offset)) = transfer.wanted else { continue };
            let Some((name, size)) = checkpoint.files.get(file as usize) else { continue };
            let piece = size.saturating_sub(offset).min(SNAPSHOT_CHUNK_SIZE);
            if !self.limiter.take(piece) {
                return;
            }
            transfer.wanted = None;
            self.outbox.jobs.push(Job::ReadChunk {
                owner,
                to: *to,
                id: transfer.id,
                path: checkpoint.directory.join(name),
                file,
                offset,
                size: piece as usize,
            });
        }
    }

    pub(crate) fn send_chunk(
        &mut self,
        owner: Owner,
        (to, id): (ReplicaId, u64),
        (file, offset): (u32, u64),
        data: Bytes,
    ) {
        let crc = crc32c::crc32c(&data);
        let group = owner.group.to_u64();
        self.send(to.node(), &Frame::SnapshotChunk(SnapshotChunk { group, to: to.0, id, file, offset, data, crc }));
    }

    pub(crate) fn handle_snapshot_begin(&mut self, begin: SnapshotBegin, now: Now) {
        let owner = Owner { group: GroupId::from_u64(begin.group), replica: ReplicaId(begin.to) };
        let Some(replica) = self.running_as(owner) else { return };
        // A checkpoint that is there and about to be installed keeps its directory; the sender will ask again.
        if replica.storage.is_none() || replica.group.is_taking_snapshot() {
            return;
        }
        let log = replica.log;
        if let Some(receiving) = &mut replica.receiving
            && receiving.id == begin.id
        {
            receiving.last_heard = now.instant;
            let is_being_verified = receiving.file >= receiving.files.len() && !receiving.is_verified;
            if !is_being_verified {
                self.send_progress(owner, now);
            }
            return;
        }
        if begin.files.len() > FILES_MAX || !begin.files.iter().all(|file| is_plain_name(&file.name)) {
            tracing::warn!(group = %owner.group, "a checkpoint with forbidden file names was refused");
            return;
        }
        let before = replica.receiving.take().map(|receiving| receiving.id);
        let directory = incoming_directory(&self.config.data[log], owner, begin.id);
        let file = begin.files.iter().take_while(|file| self.has_whole(&directory, file)).count();
        if let Some(before) = before {
            self.discard(log, vec![incoming_directory(&self.config.data[log], owner, before)]);
        }
        let receiving = Receiving {
            from: ReplicaId(begin.from),
            id: begin.id,
            message: begin.message,
            files: begin.files,
            file,
            offset: 0,
            is_writing: false,
            is_verified: false,
            writing: 0,
            last_heard: now.instant,
            last_progress: now.instant,
        };
        if let Some(replica) = self.running_as(owner) {
            replica.receiving = Some(receiving);
        }
        self.continue_receiving(owner, now);
    }

    /// Whether a file of the checkpoint is there already, from before a restart. Files get their name once they are
    /// whole and synced.
    fn has_whole(&self, directory: &Path, file: &SnapshotFile) -> bool {
        let path = directory.join(&file.name);
        self.disk.exists(&path)
            && self.disk.open(&path, OpenMode::Read).and_then(|it| it.len()).is_ok_and(|size| size == file.size)
    }

    pub(crate) fn handle_snapshot_chunk(&mut self, chunk: SnapshotChunk, now: Now) {
        let owner = Owner { group: GroupId::from_u64(chunk.group), replica: ReplicaId(chunk.to) };
        let Some(log) = self.running_as(owner).map(|replica| replica.log) else { return };
        let data = self.config.data[log].clone();
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        let is_wanted = receiving.id == chunk.id
            && !receiving.is_writing
            && (receiving.file, receiving.offset) == (chunk.file as usize, chunk.offset);
        let Some(file) = receiving.files.get(receiving.file).filter(|_| is_wanted) else { return };
        let end = chunk.offset + chunk.data.len() as u64;
        if crc32c::crc32c(&chunk.data) != chunk.crc || end > file.size {
            tracing::warn!(group = %owner.group, "a damaged piece of a checkpoint was dropped");
            return;
        }
        let directory = incoming_directory(&data, owner, chunk.id);
        let complete_as = (end == file.size).then(|| directory.join(&file.name));
        let path = directory.join(format!("{}.part", file.name));
        receiving.is_writing = true;
        receiving.writing = chunk.data.len() as u64;
        receiving.last_heard = now.instant;
        let (id, offset, data) = (chunk.id, chunk.offset, chunk.data);
        self.job(Job::WriteChunk { owner, id, path, offset, data, complete_as });
    }

    pub(crate) fn handle_chunk_written(&mut self, owner: Owner, id: u64, now: Now) {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        if receiving.id != id || !receiving.is_writing {
            return;
        }
        receiving.is_writing = false;
        receiving.offset += receiving.writing;
        let size = receiving.files.get(receiving.file).map_or(0, |file| file.size);
        if receiving.offset >= size {
            receiving.file += 1;
            receiving.offset = 0;
        }
        self.continue_receiving(owner, now);
    }

    /// Asks for the next piece, or, if there is none, hands the checkpoint to the group.
    fn continue_receiving(&mut self, owner: Owner, now: Now) {
        if !self.is_verified(owner) {
            return;
        }
        self.send_progress(owner, now);
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.as_ref().filter(|it| it.file >= it.files.len()) else { return };
        match hedgerow_replication::Message::decode(receiving.message.clone()) {
            Ok(message) => {
                let (from, id, log) = (receiving.from, receiving.id, replica.log);
                let is_wanted = replica.group.handle_snapshot_received(from, message, now.instant);
                self.mark_dirty(owner.group);
                if !is_wanted {
                    // The log has brought what the checkpoint would have.
                    self.forget_receiving(owner, log, id);
                }
            }
            Err(error) => tracing::warn!(group = %owner.group, %error, "a checkpoint without a message was dropped"),
        }
    }

    /// Whether the next step may be taken. A checkpoint of which all files are here is verified first: nobody hears that it
    /// is here, and the group does not rest on it, before.
    fn is_verified(&mut self, owner: Owner) -> bool {
        let Some(replica) = self.running_as(owner) else { return false };
        let log = replica.log;
        let Some(receiving) = &mut replica.receiving else { return false };
        if receiving.file < receiving.files.len() || receiving.is_verified {
            return true;
        }
        let message = hedgerow_replication::Message::decode(receiving.message.clone()).ok();
        let Some(meta) = message.and_then(|message| message.snapshot()) else { return true };
        let id = receiving.id;
        if !std::mem::replace(&mut receiving.is_writing, true) {
            let directory = incoming_directory(&self.config.data[log], owner, id);
            self.job(Job::Verify { owner, id, directory, position: meta.position });
        }
        false
    }

    pub(crate) fn handle_verified(&mut self, owner: Owner, id: u64, now: Now) {
        let receiving = self.running_as(owner).and_then(|replica| replica.receiving.as_mut());
        let Some(receiving) = receiving.filter(|it| it.id == id) else { return };
        (receiving.is_writing, receiving.is_verified) = (false, true);
        self.continue_receiving(owner, now);
    }

    /// Has the leader begin anew.
    pub(crate) fn refuse_received(&mut self, owner: Owner, id: u64) {
        let Some(replica) = self.running_as(owner) else { return };
        let log = replica.log;
        let Some(receiving) = replica.receiving.as_ref().filter(|it| it.id == id) else { return };
        let progress = SnapshotProgress {
            group: owner.group.to_u64(),
            from: owner.replica.0,
            id,
            file: receiving.file as u32,
            offset: 0,
            is_refused: true,
        };
        let to = receiving.from.node();
        self.send(to, &Frame::SnapshotProgress(progress));
        self.forget_receiving(owner, log, id);
    }

    fn send_progress(&mut self, owner: Owner, now: Now) {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        receiving.last_progress = now.instant;
        let progress = SnapshotProgress {
            group: owner.group.to_u64(),
            from: owner.replica.0,
            id: receiving.id,
            file: receiving.file as u32,
            offset: receiving.offset,
            is_refused: false,
        };
        let to = receiving.from.node();
        self.send(to, &Frame::SnapshotProgress(progress));
    }

    pub(crate) fn tick_receiving(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        let (owner, log, is_installing) = (replica.owner, replica.log, replica.group.is_taking_snapshot());
        let Some(receiving) = replica.receiving.as_ref().filter(|_| !is_installing) else { return };
        let id = receiving.id;
        if now.instant.since(receiving.last_heard) >= GIVE_UP_AFTER {
            self.forget_receiving(owner, log, id);
        } else if !receiving.is_writing && now.instant.since(receiving.last_progress) >= REPEAT_AFTER {
            self.send_progress(owner, now);
        }
    }

    fn forget_receiving(&mut self, owner: Owner, log: usize, id: u64) {
        if let Some(replica) = self.running_as(owner) {
            replica.receiving = None;
        }
        self.discard(log, vec![incoming_directory(&self.config.data[log], owner, id)]);
    }

    /// A piece could not be read or written: both ends start over when the leader asks again.
    pub(crate) fn handle_copy_failed(&mut self, owner: Owner) {
        if let Some(replica) = self.running_as(owner) {
            replica.receiving = None;
            replica.sending.making = None;
        }
    }
}

/// Whether a file name stays inside its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 256 && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}
