//! Streaming checkpoints to replicas that the log can no longer help: piece by piece, at the receiver's pace and within
//! a rate, and going on where it stopped. This is the sender's half; the receiver's is [`crate::receive`].
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
//! written. Few checkpoints are on their way at a time, at either end: a receiver that has enough to do, or no room, says so, and
//! is asked again after a while. One that has much of another sender's says that too, and is left to it ([`crate::receive`]).

use crate::config::SNAPSHOT_CHUNK_SIZE;
use crate::doubt::Doubt;
use crate::ids::ReplicaKey;
use crate::job::Job;
use crate::notice::Notice;
use crate::peer::{Frame, SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress};
use crate::rate::Progress;
use crate::replica::{Hosted, checkpoint_directory};
use crate::shard::Shard;
use bytes::{Bytes, BytesMut};
use hedgerow_env::Now;
use hedgerow_replication::{SnapshotMeta, SnapshotSend};
use hedgerow_types::{GroupId, Index, Instant, NodeId, ReplicaId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A receiver that cannot take a checkpoint now is asked again after this.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(3);
/// One that has no room for it is asked more and more seldom, to this: it says so itself when it has, or begins another process. Each time a checkpoint is made and kept
/// for [`CHECKPOINT_IDLE_MAX`].
const ASK_AGAIN_MAX: Duration = Duration::from_secs(600);
/// A receiver that has heard nothing for this long says again what it wants.
pub(crate) const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// A transfer that has not moved for this long is given up.
pub(crate) const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// A checkpoint that nobody has been sent for this long is removed. Longer than its last receiver takes to install it, so
/// that the log after it is still there then.
const CHECKPOINT_IDLE_MAX: Duration = Duration::from_secs(60);
/// Checkpoints that a node sends at a time, those being made included; the others wait for their turn.
const SENDING_MAX: usize = 2;
/// A checkpoint of which nothing was heard for this long does not keep others from being received.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(10);
/// Bytes that are sent before the receiver has written them; it holds as many in memory.
pub(crate) const WINDOW: u64 = 8 * SNAPSHOT_CHUNK_SIZE;

/// Checkpoints that a replica's node is sending.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    checkpoint: Option<Checkpoint>,
    transfers: BTreeMap<ReplicaId, Transfer>,
    /// While a checkpoint is being made: an index that it will not be below.
    making: Option<Index>,
    /// Receivers that cannot take it now.
    put_off: BTreeMap<ReplicaId, PutOff>,
    /// Whether checkpoints are read before they are sent.
    pub(crate) doubt: Doubt,
}

/// A receiver that has put off a checkpoint.
#[derive(Clone, Copy, Debug)]
struct PutOff {
    /// Until then it is not asked.
    until: Instant,
    /// For so long it was not.
    pause: Duration,
    /// Its disk has no room: nothing is kept for it.
    lacks_room: bool,
}

impl Sending {
    /// `to` has put off what it was to be sent; `lacks_room` if its disk has no room for it.
    fn note_put_off(&mut self, to: ReplicaId, lacks_room: bool, now: Instant) {
        let before = self.put_off.get(&to).filter(|before| lacks_room && before.lacks_room);
        let pause = before.map_or(ASK_AGAIN_AFTER, |before| (before.pause * 2).min(ASK_AGAIN_MAX));
        self.put_off.insert(to, PutOff { until: now + pause, pause, lacks_room });
        if !lacks_room && let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.idle = Duration::ZERO;
        }
    }

    fn is_put_off(&self, to: ReplicaId, now: Instant) -> bool {
        self.put_off.get(&to).is_some_and(|put_off| now < put_off.until)
    }

    fn lacks_room(&self, to: ReplicaId) -> bool {
        self.put_off.get(&to).is_some_and(|put_off| put_off.lacks_room)
    }

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

impl Shard {
    pub(crate) fn handle_checkpoint(
        &mut self,
        owner: ReplicaKey,
        meta: SnapshotMeta,
        files: Vec<(String, u64)>,
        now: Now,
    ) {
        let Some(replica) = self.running_as(owner) else { return };
        let (directory, is_doubted) = (replica.directory, replica.sending.doubt.has_refusal());
        if is_doubted {
            let path = checkpoint_directory(self.config.path_of(directory), owner, meta.id);
            return self.job(Job::VerifyOwn { owner, directory: path, meta, files });
        }
        self.adopt_checkpoint(owner, meta, files, now);
    }

    /// Sends from now on a checkpoint that was made, and verified where that was needed.
    pub(crate) fn adopt_checkpoint(
        &mut self,
        owner: ReplicaKey,
        meta: SnapshotMeta,
        files: Vec<(String, u64)>,
        now: Now,
    ) {
        let Some(directory) = self.running_as(owner).map(|replica| replica.directory) else { return };
        let path = checkpoint_directory(self.config.path_of(directory), owner, meta.id);
        let Some(replica) = self.running_as(owner) else { return };
        replica.sending.end_making();
        replica.group.handle_checkpoint(meta.clone(), now.instant);
        // Whoever was being sent the one before gets this one: pieces of the two must never be mixed.
        for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
            replica.group.handle_snapshot_sent(to, false, now.instant);
        }
        let before =
            replica.sending.checkpoint.replace(Checkpoint { meta, files, directory: path, idle: Duration::ZERO });
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
        let is_early = replica.sending.is_put_off(to, now.instant);
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
        replica.sending.transfers.insert(to, transfer);
        tracing::debug!(%group, %to, index = meta.position.index, bytes = total, "a checkpoint is offered");
        self.send_bulk(to.node(), &begin);
    }

    pub(crate) fn handle_snapshot_progress(&mut self, progress: SnapshotProgress, now: Now) {
        let group = GroupId::from_u64(progress.group);
        let to = ReplicaId(progress.from);
        let Some(replica) = self.running(group) else { return };
        let owner = replica.owner;
        if progress.has_room {
            replica.sending.put_off.remove(&to);
            return self.mark_dirty(group);
        }
        let Some(transfer) = replica.sending.transfers.get_mut(&to).filter(|it| it.id == progress.id) else { return };
        transfer.idle = Duration::ZERO;
        if progress.is_busy {
            // Its place goes to others meanwhile.
            replica.sending.transfers.remove(&to);
            replica.sending.note_put_off(to, progress.lacking > 0, now.instant);
            replica.group.handle_snapshot_sent(to, false, now.instant);
            self.mark_dirty(group);
            return self.notices.push(Notice::AwaitsFormer(group, ReplicaId(progress.former)));
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
        if !std::mem::replace(&mut transfer.is_taken, true) {
            tracing::info!(%group, %to, bytes = transfer.progress.total, "sending a checkpoint");
            replica.sending.put_off.remove(&to);
        }
        let Some(transfer) = replica.sending.transfers.get_mut(&to) else { return };
        transfer.progress.done = checkpoint.bytes_before(written).min(transfer.progress.total);
        self.send_wanted(group);
    }

    /// `node` runs in another process: what the one before it has put off it does not know of, and would not say when it has room.
    pub(crate) fn forget_put_off(&mut self, node: NodeId) {
        let mut asked = Vec::new();
        for hosted in self.replicas.hosted.values_mut() {
            let Hosted::Running(replica) = hosted else { continue };
            let before = replica.sending.put_off.len();
            replica.sending.put_off.retain(|to, _| to.node() != node);
            if replica.sending.put_off.len() < before {
                asked.push(replica.owner.group);
            }
        }
        asked.into_iter().for_each(|group| self.mark_dirty(group));
    }

    pub(crate) fn tick_sending(&mut self, elapsed: Duration, now: Now) {
        self.limiter.refill(elapsed);
        self.tick_checkpoints(elapsed, now);
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
    pub(crate) fn end_outdated_transfers(&mut self, owner: ReplicaKey, cut: Index, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        if replica.sending.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.meta.position.index < cut) {
            self.withdraw_checkpoint(owner, now);
        }
    }

    /// Removes the checkpoint that a replica made for others, and ends its transfers.
    pub(crate) fn withdraw_checkpoint(&mut self, owner: ReplicaKey, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        for to in std::mem::take(&mut replica.sending.transfers).into_keys() {
            replica.group.handle_snapshot_sent(to, false, now.instant);
        }
        self.forget_checkpoint(owner);
    }

    /// Removes the checkpoint that a replica made for others.
    fn forget_checkpoint(&mut self, owner: ReplicaKey) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(checkpoint) = replica.sending.checkpoint.take() else { return };
        replica.group.forget_checkpoint(checkpoint.meta.id);
        self.mark_dirty(owner.group);
        self.enqueue_removal(None, vec![checkpoint.directory]);
    }

    /// A checkpoint that nobody has wanted for a while goes: it pins files, and the log after it. Whoever has no room for it does not count.
    fn tick_checkpoints(&mut self, elapsed: Duration, now: Now) {
        let mut unused = Vec::new();
        for hosted in self.replicas.hosted.values_mut() {
            let Hosted::Running(replica) = hosted else { continue };
            let is_used = replica.sending.transfers.keys().any(|to| !replica.sending.lacks_room(*to));
            let Some(checkpoint) = &mut replica.sending.checkpoint else { continue };
            checkpoint.idle = if is_used { Duration::ZERO } else { checkpoint.idle + elapsed };
            if checkpoint.idle >= CHECKPOINT_IDLE_MAX {
                unused.push(replica.owner);
            }
        }
        unused.into_iter().for_each(|owner| self.withdraw_checkpoint(owner, now));
    }

    /// Reads the pieces that are wanted, as far as the rate allows.
    fn send_wanted(&mut self, group: GroupId) {
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else { return };
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
        owner: ReplicaKey,
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
        self.replicas.hosted.iter().filter(|(_, hosted)| is_busy(hosted)).map(|(group, _)| *group).collect()
    }

    /// The metadata never waits for others: it is small, and everything else is repaired by it.
    fn may_send_another(&self, group: GroupId) -> bool {
        let groups = self.sending_groups();
        group == GroupId::META || groups.contains(&group) || groups.len() < SENDING_MAX
    }

    /// Whether a checkpoint may be made of this group's replica: not while another is made or sent, since whoever is being
    /// sent one must not begin again, and not for those alone that have no room for it.
    pub(crate) fn may_make_checkpoint(&self, group: GroupId, now: Now) -> bool {
        !self.sending_groups().contains(&group)
            && self.may_send_another(group)
            && self.may_verify_own(group, now)
            && !self.lacks_takers(group, now)
    }

    /// Whether all that need a checkpoint of the group lack room for it, and are not to be asked yet.
    fn lacks_takers(&self, group: GroupId, now: Now) -> bool {
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get(&group) else { return false };
        let sending = &replica.sending;
        let progress = replica.group.progress();
        let mut needing = progress.iter().filter(|peer| peer.needs_snapshot).map(|peer| peer.replica).peekable();
        let is_without = |to: ReplicaId| sending.lacks_room(to) && sending.is_put_off(to, now.instant);
        needing.peek().is_some() && needing.all(is_without)
    }
}
