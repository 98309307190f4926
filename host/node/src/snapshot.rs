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
//!                                               reads all of it once (job), saying that it is alive
//!                    <----------  SnapshotProgress(number of files): everything is there
//!   handle_snapshot_sent                        handle_snapshot_received, then install (job)
//! ```
//!
//! A damaged checkpoint is never installed: it would be a second replica with the same bad block. What the receiver refuses,
//! the sender forgets; the next one it reads itself before it sends it ([`crate::doubt`]).
//!
//! Pieces travel on a connection of their own, several at a time: the sender is up to [`WINDOW`] ahead of what the receiver has
//! written. They come in order unless one is lost; then the receiver says from where it wants them again, also when it
//! hears nothing, so that a broken connection costs one window. A receiver that restarts keeps its whole files. Few
//! checkpoints are on their way at a time, at either end: a receiver that has enough to do, or no room, says so, and is asked
//! again after a while.

use crate::config::SNAPSHOT_CHUNK_SIZE;
use crate::doubt::Doubt;
use crate::hosting::incoming_of;
use crate::job::{Job, Owner};
use crate::node::Node;
use crate::peer::{Frame, SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress};
use crate::rate::Progress;
use crate::replica::{Hosted, checkpoint_directory, incoming_directory};
use bytes::{Bytes, BytesMut};
use hedgerow_env::{Now, OpenMode};
use hedgerow_replication::{Message, SnapshotMeta, SnapshotSend};
use hedgerow_storage::FailureKind;
use hedgerow_types::{GroupId, Index, Instant, ReplicaId};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A receiver that cannot take a checkpoint now is asked again after this.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(3);
/// A receiver that has heard nothing for this long says again what it wants.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// A transfer that has not moved for this long is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A checkpoint that nobody has been sent for this long is removed. Longer than its last receiver takes to install it, so
/// that the log after it is still there then.
const CHECKPOINT_IDLE_MAX: Duration = Duration::from_secs(60);
/// Checkpoints that a node sends at a time, those being made included; the others wait for their turn.
const SENDING_MAX: usize = 2;
/// Checkpoints that a node receives at a time.
const RECEIVING_MAX: usize = 2;
/// A checkpoint of which nothing was heard for this long does not keep others from being received.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// Bytes that are sent before the receiver has written them; it holds as many in memory.
const WINDOW: u64 = 8 * SNAPSHOT_CHUNK_SIZE;
/// Most files of one checkpoint.
const FILES_MAX: usize = 100_000;

/// Checkpoints that a replica's node is sending.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    checkpoint: Option<Checkpoint>,
    transfers: BTreeMap<ReplicaId, Transfer>,
    /// While a checkpoint is being made: an index that it will not be below.
    making: Option<Index>,
    /// When receivers last said that they cannot take it now.
    put_off: BTreeMap<ReplicaId, Instant>,
    /// Whether checkpoints are read before they are sent.
    pub(crate) doubt: Doubt,
}

impl Sending {
    /// The piece that is being read for `to` comes no more.
    pub(crate) fn end_reading(&mut self, to: ReplicaId) {
        self.transfers.get_mut(&to).into_iter().for_each(|transfer| transfer.is_reading = false);
    }

    pub(crate) fn note_making(&mut self, from: Index) {
        self.making = Some(from);
        self.doubt.note_making();
    }

    /// The replica leads no longer, or in another term: nobody takes what it began to send. Whoever leads sends its own, and two
    /// that send at the same time would have the receiver begin anew with each of their words.
    pub(crate) fn end_transfers(&mut self) {
        self.transfers.clear();
    }

    /// What was being made came to nothing.
    pub(crate) fn end_making(&mut self) {
        self.making = None;
        self.doubt.end_verification();
    }

    /// Whether a change of leaders would end what gets on: a checkpoint is made, or somebody who answers is being sent one.
    pub(crate) fn gets_on(&self) -> bool {
        let is_heard = |transfer: &Transfer| transfer.is_taken && transfer.idle < STALLED_AFTER;
        self.making.is_some() || self.transfers.values().any(is_heard)
    }

    fn is_busy(&self) -> bool {
        self.making.is_some() || !self.transfers.is_empty()
    }

    /// How far the checkpoint has got that `to` is being sent.
    pub(crate) fn progress_of(&self, to: ReplicaId) -> Option<Progress> {
        self.transfers.get(&to).map(|transfer| transfer.progress)
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

impl Checkpoint {
    /// Bytes before a place.
    fn bytes_before(&self, (file, offset): (u32, u64)) -> u64 {
        self.files.iter().take(file as usize).map(|(_, size)| size).sum::<u64>() + offset
    }
}

#[derive(Debug)]
struct Transfer {
    id: u64,
    /// What began it, to be said again while the receiver says nothing.
    begin: Frame,
    /// Time since it was said last.
    since_begin: Duration,
    /// Whether the receiver has said that it takes it.
    is_taken: bool,
    /// The piece to read next, file and offset.
    next: (u32, u64),
    /// A piece is being read.
    is_reading: bool,
    progress: Progress,
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
    /// Where the piece begins that is to come next; what is between here and what is written waits in `queue`.
    expected: (usize, u64),
    queue: VecDeque<Piece>,
    /// It was said that a piece is missing.
    has_asked_again: bool,
    /// Or being verified.
    is_writing: bool,
    /// All files are here, and what they should be.
    is_verified: bool,
    /// Bytes of the piece being written.
    writing: u64,
    last_heard: Instant,
    last_progress: Instant,
}

impl Receiving {
    /// Where the next piece is wanted from. Until everything is verified the end of the last file, so that the sender waits.
    fn said(&self) -> (usize, u64) {
        match self.files.last() {
            Some(last) if self.file >= self.files.len() && !self.is_verified => (self.files.len() - 1, last.size),
            Some(_) | None => (self.file, self.offset),
        }
    }

    /// Bytes that are still to be written.
    pub(crate) fn missing(&self) -> u64 {
        missing_bytes(&self.files, self.file).saturating_sub(self.offset)
    }
}

/// A piece that waits to be written.
#[derive(Debug)]
struct Piece {
    offset: u64,
    data: Bytes,
}

impl Node {
    pub(crate) fn handle_checkpoint(&mut self, owner: Owner, meta: SnapshotMeta, files: Vec<(String, u64)>, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        let (log, is_doubted) = (replica.log, replica.sending.doubt.has_refusal());
        if is_doubted {
            let directory = checkpoint_directory(&self.config.data[log], owner, meta.id);
            return self.job(Job::VerifyOwn { owner, directory, meta, files });
        }
        self.adopt_checkpoint(owner, meta, files, now);
    }

    /// Sends from now on a checkpoint that was made, and verified where that was needed.
    pub(crate) fn adopt_checkpoint(&mut self, owner: Owner, meta: SnapshotMeta, files: Vec<(String, u64)>, now: Now) {
        let Some(log) = self.running_as(owner).map(|replica| replica.log) else { return };
        let directory = checkpoint_directory(&self.config.data[log], owner, meta.id);
        let Some(replica) = self.running_as(owner) else { return };
        replica.sending.end_making();
        replica.group.handle_checkpoint(meta.clone(), now.instant);
        // Whoever was being sent the one before gets this one: pieces of the two must never be mixed.
        for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
            replica.group.handle_snapshot_sent(to, false, now.instant);
        }
        let before = replica.sending.checkpoint.replace(Checkpoint { meta, files, directory, idle: Duration::ZERO });
        self.mark_dirty(owner.group);
        if let Some(before) = before {
            self.enqueue_removal(None, vec![before.directory]);
        }
    }

    pub(crate) fn start_sending(&mut self, group: GroupId, send: SnapshotSend, now: Now) {
        let Some(replica) = self.running(group) else { return };
        let SnapshotSend { to, meta, message } = send;
        let from = replica.id();
        let is_made = replica.sending.checkpoint.as_ref().is_some_and(|it| it.meta.id == meta.id);
        let put_off = replica.sending.put_off.get(&to);
        let is_early = put_off.is_some_and(|at| now.instant.since(*at) < ASK_AGAIN_AFTER);
        if is_made && (is_early || !self.may_send_another(group)) {
            // The group tries again with the next heartbeat.
            let Some(replica) = self.running(group) else { return };
            replica.group.handle_snapshot_sent(to, false, now.instant);
            return self.mark_dirty(group);
        }
        let Some(replica) = self.running(group) else { return };
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
        let total = checkpoint.bytes_before((u32::MAX, 0));
        let transfer = Transfer {
            id: meta.id,
            begin: begin.clone(),
            since_begin: Duration::ZERO,
            is_taken: false,
            next: (0, 0),
            is_reading: false,
            progress: Progress::new(total),
            idle: Duration::ZERO,
        };
        replica.sending.put_off.remove(&to);
        replica.sending.transfers.insert(to, transfer);
        tracing::info!(%group, %to, index = meta.position.index, bytes = total, "sending a checkpoint");
        self.send_bulk(to.node(), &begin);
    }

    pub(crate) fn handle_snapshot_progress(&mut self, progress: SnapshotProgress, now: Now) {
        let group = GroupId::from_u64(progress.group);
        let to = ReplicaId(progress.from);
        let Some(replica) = self.running(group) else { return };
        let owner = replica.owner;
        let Some(transfer) = replica.sending.transfers.get_mut(&to).filter(|it| it.id == progress.id) else { return };
        transfer.idle = Duration::ZERO;
        if progress.is_busy {
            // Its place goes to others meanwhile.
            replica.sending.transfers.remove(&to);
            replica.sending.put_off.insert(to, now.instant);
            replica.sending.checkpoint.iter_mut().for_each(|checkpoint| checkpoint.idle = Duration::ZERO);
            replica.group.handle_snapshot_sent(to, false, now.instant);
            return self.mark_dirty(group);
        }
        let Some(checkpoint) = &replica.sending.checkpoint else { return };
        let file_count = checkpoint.files.len();
        if progress.is_refused {
            tracing::warn!(%group, %to, "a checkpoint was refused; the next one is verified here before it is sent");
            return self.doubt_checkpoint(owner, to, now);
        }
        if progress.file as usize >= file_count {
            replica.sending.transfers.remove(&to);
            replica.sending.doubt.note_taken(to);
            replica.group.handle_snapshot_sent(to, true, now.instant);
            return self.mark_dirty(group);
        }
        let written = (progress.file, progress.offset);
        if checkpoint.files.get(progress.file as usize).is_none_or(|(_, size)| progress.offset > *size) {
            return;
        }
        if !transfer.is_taken || progress.again || transfer.next < written {
            transfer.next = written;
        }
        transfer.is_taken = true;
        transfer.progress.done = checkpoint.bytes_before(written).min(transfer.progress.total);
        self.send_wanted(group);
    }

    pub(crate) fn tick_sending(&mut self, elapsed: Duration, now: Now) {
        self.limiter.refill(elapsed);
        self.tick_checkpoints(elapsed);
        let mut groups: Vec<GroupId> = self.sending_groups();
        self.limiter.turn = self.limiter.turn.wrapping_add(1);
        let first = self.limiter.turn % groups.len().max(1);
        groups.rotate_left(first);
        for group in groups {
            let Some(replica) = self.running(group).filter(|replica| !replica.sending.transfers.is_empty()) else {
                continue;
            };
            let mut again = Vec::new();
            for (to, transfer) in &mut replica.sending.transfers {
                transfer.idle += elapsed;
                transfer.since_begin += elapsed;
                transfer.progress.tick(elapsed);
                // A receiver that has begun repeats what it wants by itself; one that has not may have missed the
                // beginning. Hearing it twice does no harm.
                if transfer.idle >= REPEAT_AFTER && transfer.since_begin >= REPEAT_AFTER {
                    transfer.since_begin = Duration::ZERO;
                    again.push((*to, transfer.begin.clone()));
                }
            }
            // Somebody who was removed will not answer any more, and must not keep the place of others until then.
            let membership = replica.group.membership();
            let members =
                [&membership.voters, &membership.voters_outgoing, &membership.learners, &membership.learners_next];
            let is_over = |(to, transfer): &(&ReplicaId, &Transfer)| {
                transfer.idle >= GIVE_UP_AFTER || !members.iter().any(|some| some.contains(to))
            };
            let over: Vec<ReplicaId> = replica.sending.transfers.iter().filter(is_over).map(|(to, _)| *to).collect();
            for to in over {
                replica.sending.transfers.remove(&to);
                replica.group.handle_snapshot_sent(to, false, now.instant);
            }
            self.mark_dirty(group);
            again.into_iter().for_each(|(to, begin)| self.send_bulk(to.node(), &begin));
            self.send_wanted(group);
        }
    }

    /// The log was cut at `cut`: a checkpoint from before that is of no use any more.
    pub(crate) fn end_outdated_transfers(&mut self, owner: Owner, cut: Index, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        if replica.sending.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.meta.position.index < cut) {
            self.withdraw_checkpoint(owner, now);
        }
    }

    /// Removes the checkpoint that a replica made for others, and ends its transfers.
    pub(crate) fn withdraw_checkpoint(&mut self, owner: Owner, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
            replica.group.handle_snapshot_sent(to, false, now.instant);
        }
        self.forget_checkpoint(owner);
    }

    /// Removes the checkpoint that a replica made for others.
    fn forget_checkpoint(&mut self, owner: Owner) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(checkpoint) = replica.sending.checkpoint.take() else { return };
        replica.group.forget_checkpoint(checkpoint.meta.id);
        self.mark_dirty(owner.group);
        self.enqueue_removal(None, vec![checkpoint.directory]);
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
            let (file, offset) = transfer.next;
            let is_far = checkpoint.bytes_before(transfer.next) >= transfer.progress.done + WINDOW;
            if !transfer.is_taken || transfer.is_reading || is_far {
                continue;
            }
            let Some((name, size)) = checkpoint.files.get(file as usize) else { continue };
            let piece = size.saturating_sub(offset).min(SNAPSHOT_CHUNK_SIZE);
            if !self.limiter.take(piece) {
                return;
            }
            transfer.is_reading = true;
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
        let Some(replica) = self.running_as(owner) else { return };
        let size =
            replica.sending.checkpoint.as_ref().and_then(|it| it.files.get(file as usize)).map(|(_, size)| *size);
        let Some(transfer) = replica.sending.transfers.get_mut(&to).filter(|it| it.id == id) else { return };
        transfer.is_reading = false;
        // Another piece is wanted meanwhile.
        if transfer.next == (file, offset) {
            let end = offset + data.len() as u64;
            transfer.next = if size.is_none_or(|size| end >= size) { (file + 1, 0) } else { (file, end) };
            let (group, crc) = (owner.group.to_u64(), crc32c::crc32c(&data));
            let chunk = SnapshotChunk { group, to: to.0, id, file, offset, data, crc };
            self.send_bulk(to.node(), &Frame::SnapshotChunk(chunk));
        }
        self.send_wanted(owner.group);
    }

    /// Groups whose replicas here make or send checkpoints.
    fn sending_groups(&self) -> Vec<GroupId> {
        let is_busy = |hosted: &Hosted| matches!(hosted, Hosted::Running(replica) if replica.sending.is_busy());
        self.hosted.iter().filter(|(_, hosted)| is_busy(hosted)).map(|(group, _)| *group).collect()
    }

    fn may_send_another(&self, group: GroupId) -> bool {
        let groups = self.sending_groups();
        groups.contains(&group) || groups.len() < SENDING_MAX
    }

    /// Whether a checkpoint may be made of this group's replica: not while another is made or sent, since whoever is being
    /// sent one must not begin again.
    pub(crate) fn may_make_checkpoint(&self, group: GroupId, now: Now) -> bool {
        !self.sending_groups().contains(&group) && self.may_send_another(group) && self.may_verify_own(group, now)
    }

    fn receiving_count(&self, now: Now) -> usize {
        let is_alive = |receiving: &Receiving| now.instant.since(receiving.last_heard) < STALLED_AFTER;
        let receiving = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => replica.receiving.as_ref().is_some_and(is_alive),
            Hosted::Starting { .. } | Hosted::Lost { .. } => false,
        };
        self.hosted.values().filter(|hosted| receiving(hosted)).count()
    }

    pub(crate) fn handle_snapshot_begin(&mut self, begin: SnapshotBegin, now: Now) {
        let owner = Owner { group: GroupId::from_u64(begin.group), replica: ReplicaId(begin.to) };
        let has_enough = self.receiving_count(now) >= RECEIVING_MAX;
        let Some(replica) = self.running_as(owner) else { return };
        // A checkpoint that is there and about to be installed keeps its directory; the sender will ask again.
        if replica.storage.is_none() || replica.group.is_taking_snapshot() {
            return;
        }
        // Of a leader that is none any more and does not know it yet.
        let term = Message::decode(begin.message.clone()).map_or(0, |message| message.term());
        if term < replica.group.term() {
            return;
        }
        let log = replica.log;
        if let Some(receiving) = &mut replica.receiving
            && receiving.id == begin.id
        {
            receiving.last_heard = now.instant;
            // The same leader's in a later term, perhaps.
            receiving.message = begin.message;
            let is_being_verified = receiving.file >= receiving.files.len() && !receiving.is_verified;
            // The sender says this once it has heard nothing for a while: what it sent may be lost.
            if is_being_verified || receiving.is_writing {
                self.send_progress(owner, now);
            } else {
                self.ask_again(owner, now);
            }
            return;
        }
        if replica.receiving.is_none() && has_enough {
            return self.put_off(owner, ReplicaId(begin.from), begin.id);
        }
        if begin.files.len() > FILES_MAX || !begin.files.iter().all(|file| is_plain_name(&file.name)) {
            tracing::warn!(group = %owner.group, "a checkpoint with forbidden file names was refused");
            return;
        }
        replica.receiving = None;
        let directory = incoming_directory(&self.config.data[log], owner, begin.id);
        let file = begin.files.iter().take_while(|file| self.has_whole(&directory, file)).count();
        // What was received of others before, also in an earlier life.
        let mut others = incoming_of(&*self.disk, &self.config.data[log], owner);
        others.retain(|other| *other != directory);
        if !others.is_empty() {
            self.discard(log, others);
        }
        let missing = missing_bytes(&begin.files, file);
        if missing > 0 && !self.has_room_to_receive(owner, log, missing) {
            self.wait_for_room(owner, log, missing, now);
            return self.put_off(owner, ReplicaId(begin.from), begin.id);
        }
        let receiving = Receiving {
            from: ReplicaId(begin.from),
            id: begin.id,
            message: begin.message,
            files: begin.files,
            file,
            offset: 0,
            expected: (file, 0),
            queue: VecDeque::new(),
            has_asked_again: false,
            is_writing: false,
            is_verified: false,
            writing: 0,
            last_heard: now.instant,
            last_progress: now.instant,
        };
        if let Some(replica) = self.running_as(owner) {
            replica.receiving = Some(receiving);
            replica.waits_for_room = None;
        }
        self.continue_receiving(owner, now);
    }

    /// Asks a sender to come again later.
    fn put_off(&mut self, owner: Owner, sender: ReplicaId, id: u64) {
        let (group, from) = (owner.group.to_u64(), owner.replica.0);
        let progress = SnapshotProgress { group, from, id, is_busy: true, ..SnapshotProgress::default() };
        self.send(sender.node(), &Frame::SnapshotProgress(progress));
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
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        if receiving.id != chunk.id {
            return;
        }
        receiving.last_heard = now.instant;
        let place = (chunk.file as usize, chunk.offset);
        if receiving.expected != place {
            // One was lost, or comes a second time.
            if place > receiving.expected && !std::mem::replace(&mut receiving.has_asked_again, true) {
                self.ask_again(owner, now);
            }
            return;
        }
        let Some(file) = receiving.files.get(place.0) else { return };
        let length = chunk.data.len() as u64;
        let waiting: u64 = receiving.queue.iter().map(|piece| piece.data.len() as u64).sum();
        let is_sound = crc32c::crc32c(&chunk.data) == chunk.crc
            && length <= SNAPSHOT_CHUNK_SIZE.min(file.size - chunk.offset)
            && (length > 0 || file.size == 0);
        if !is_sound || waiting + length > WINDOW {
            tracing::warn!(group = %owner.group, "a piece of a checkpoint that cannot be was dropped");
            return;
        }
        let end = chunk.offset + length;
        receiving.expected = if end == file.size { (place.0 + 1, 0) } else { (place.0, end) };
        receiving.has_asked_again = false;
        receiving.queue.push_back(Piece { offset: chunk.offset, data: chunk.data });
        self.write_next(owner);
    }

    /// Writes the first piece that waits, one at a time: what a file is called once it is whole rests on their order.
    fn write_next(&mut self, owner: Owner) {
        let Some(log) = self.running_as(owner).map(|replica| replica.log) else { return };
        let data = self.config.data[log].clone();
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        if receiving.is_writing {
            return;
        }
        let Some(Piece { offset, data: bytes }) = receiving.queue.pop_front() else { return };
        let Some(file) = receiving.files.get(receiving.file) else { return };
        let id = receiving.id;
        let directory = incoming_directory(&data, owner, id);
        let is_last = offset + bytes.len() as u64 == file.size;
        let complete_as = is_last.then(|| directory.join(&file.name));
        let path = directory.join(format!("{}.part", file.name));
        receiving.is_writing = true;
        receiving.writing = bytes.len() as u64;
        self.job(Job::WriteChunk { owner, id, path, offset, data: bytes, complete_as });
    }

    /// Says from where the pieces are wanted again. Those that wait to be written are dropped with it: they come once more.
    fn ask_again(&mut self, owner: Owner, now: Now) {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        if receiving.is_writing {
            // What is being written counts as written: the answer comes later than that.
            receiving.has_asked_again = false;
            return;
        }
        receiving.queue.clear();
        receiving.expected = (receiving.file, receiving.offset);
        self.say_progress(owner, true, now);
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
        self.write_next(owner);
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
        // What was verified may be of a transfer before this one, of the same checkpoint.
        let Some(receiving) = receiving.filter(|it| it.id == id && it.file >= it.files.len()) else { return };
        (receiving.is_writing, receiving.is_verified) = (false, true);
        self.continue_receiving(owner, now);
    }

    /// A received checkpoint cannot be verified for now: what was received stays, and the leader asks again after a while.
    pub(crate) fn put_off_received(&mut self, owner: Owner, id: u64) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.take_if(|it| it.id == id) else { return };
        self.put_off(owner, receiving.from, id);
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
            ..SnapshotProgress::default()
        };
        let to = receiving.from.node();
        self.send(to, &Frame::SnapshotProgress(progress));
        self.forget_receiving(owner, log, id);
    }

    fn send_progress(&mut self, owner: Owner, now: Now) {
        self.say_progress(owner, false, now);
    }

    fn say_progress(&mut self, owner: Owner, again: bool, now: Now) {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        receiving.last_progress = now.instant;
        let (file, offset) = receiving.said();
        let progress = SnapshotProgress {
            group: owner.group.to_u64(),
            from: owner.replica.0,
            id: receiving.id,
            file: file as u32,
            offset,
            is_refused: false,
            again,
            is_busy: false,
        };
        let to = receiving.from.node();
        self.send(to, &Frame::SnapshotProgress(progress));
    }

    pub(crate) fn tick_receiving(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        let (owner, log, is_installing) = (replica.owner, replica.log, replica.group.is_taking_snapshot());
        let Some(receiving) = replica.receiving.as_ref().filter(|_| !is_installing) else { return };
        let (id, from, is_missing) = (receiving.id, receiving.from, receiving.missing() > 0);
        let is_silent = now.instant.since(receiving.last_heard) >= GIVE_UP_AFTER;
        let is_quiet = !receiving.is_writing && now.instant.since(receiving.last_progress) >= REPEAT_AFTER;
        if is_silent {
            self.forget_receiving(owner, log, id);
        } else if is_missing && group != GroupId::META && self.must_give_room(log) {
            tracing::warn!(%group, "what was received of a checkpoint makes room for what the node needs itself");
            self.put_off(owner, from, id);
            self.forget_receiving(owner, log, id);
        } else if is_quiet {
            self.ask_again(owner, now);
        }
    }

    fn forget_receiving(&mut self, owner: Owner, log: usize, id: u64) {
        if let Some(replica) = self.running_as(owner) {
            replica.receiving = None;
        }
        self.discard(log, vec![incoming_directory(&self.config.data[log], owner, id)]);
    }

    /// A checkpoint could not be made, or a piece not be written: it begins anew when the leader asks again.
    pub(crate) fn handle_copy_failed(&mut self, owner: Owner, kind: FailureKind) {
        let Some(replica) = self.running_as(owner) else { return };
        replica.sending.end_making();
        let (log, is_installing) = (replica.log, replica.group.is_taking_snapshot());
        let Some(receiving) = replica.receiving.take() else { return };
        if kind == FailureKind::NoSpace && !is_installing {
            // Deletes and the log need the place more.
            self.put_off(owner, receiving.from, receiving.id);
            self.forget_receiving(owner, log, receiving.id);
        }
    }
}

/// Bytes of all files from number `first` on.
fn missing_bytes(files: &[SnapshotFile], first: usize) -> u64 {
    files.iter().skip(first).map(|file| file.size).fold(0, u64::saturating_add)
}

/// Whether a file name stays inside its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 256 && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}
