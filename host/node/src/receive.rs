//! Receiving a checkpoint: in order, at the pace of this node's disk, and going on where it stopped, whichever side restarted.
//!
//! Pieces come in order unless one is lost; then the receiver says from where it wants them again, also when it hears nothing, so
//! that a broken connection costs one window. Files get their names once they are whole and synced.
//!
//! **After a restart of the receiver** the whole files of the same checkpoint are not asked for again.
//!
//! **After a restart of the sender** its next checkpoint is another one, but has most tables of the one before: a table never
//! changes once it is written, and they are sent in the order of their numbers, later ones last. So tables of a former checkpoint *of
//! the same replica*, of the same name and size, are taken over. If one is not what its name says, because the sender's storage was
//! replaced meanwhile, that is found before the checkpoint is used: it is verified whole, and its manifest knows the unique
//! number of each table. Then everything is received anew.
//!
//! **If another replica leads by then**, its files are of no use beside those that are here, for each replica flushes and compacts by
//! itself. The receiver names the former sender for [`FORMER_AWAITED`], and the leader leaves the lead to it if it can;
//! after that time the new leader's checkpoint is received from its beginning. The time counts from the last table that was received, so
//! that a sender that does not stay up is waited for once.
//!
//! What nobody goes on with is removed after [`GIVE_UP_AFTER`].

use crate::config::SNAPSHOT_CHUNK_SIZE;
use crate::errands::Errand;
use crate::ids::ReplicaKey;
use crate::job::Job;
use crate::peer::{Frame, SnapshotBegin, SnapshotChunk, SnapshotFile, SnapshotProgress};
use crate::received::{Announced, Found, Looked};
use crate::replica::Hosted;
use crate::shard::Shard;
use crate::snapshot::{GIVE_UP_AFTER, REPEAT_AFTER, STALLED_AFTER, WINDOW};
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_replication::{Message, SnapshotMeta};
use hedgerow_storage::FailureKind;
use hedgerow_types::{GroupId, Instant, ReplicaId};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

/// Checkpoints that a node receives at a time.
const RECEIVING_MAX: usize = 2;
/// Most files of one checkpoint.
const FILES_MAX: usize = 100_000;
/// For so long a receiver that has part of a replica's checkpoint waits for that replica to lead again. A process that was
/// restarted leads long before.
const FORMER_AWAITED: Duration = Duration::from_secs(20);
/// For so long if the group takes no writes without this replica.
const FORMER_AWAITED_IF_NEEDED: Duration = Duration::from_secs(4);

/// A checkpoint that a leader offers a replica, while it is looked through what is here of it (`received.rs`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    sender: ReplicaId,
    id: u64,
    since: Instant,
}

/// A checkpoint that a replica is receiving.
#[derive(Debug)]
pub(crate) struct Receiving {
    from: ReplicaId,
    id: u64,
    /// Where it is gathered.
    pub(crate) directory: PathBuf,
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

/// Why a checkpoint is not taken now.
#[derive(Clone, Copy, Debug)]
enum Busy {
    /// There are others on their way.
    Soon,
    /// This replica is to lead again, whose checkpoint is here in part.
    AwaitsFormer(ReplicaId),
    /// The disk lacks so many bytes.
    Lacks(u64),
}

/// A piece that waits to be written.
#[derive(Debug)]
struct Piece {
    offset: u64,
    data: Bytes,
}

impl Shard {
    fn receiving_count(&self, now: Now) -> usize {
        let is_recent = |at: Instant| now.instant.since(at) < STALLED_AFTER;
        let receiving = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => {
                replica.receiving.as_ref().is_some_and(|receiving| is_recent(receiving.last_heard))
                    || replica.offer.is_some_and(|offer| is_recent(offer.since))
            }
            Hosted::Starting { .. } | Hosted::Lost { .. } => false,
        };
        self.replicas.hosted.values().filter(|hosted| receiving(hosted)).count()
    }

    /// Whether so many checkpoints are received that one for `owner` has to wait.
    fn receives_enough(&self, owner: ReplicaKey, now: Now) -> bool {
        // The metadata is small, and everything else is repaired by it.
        owner.group != GroupId::META && self.receiving_count(now) >= RECEIVING_MAX.div_ceil(self.config.shards)
    }

    /// A leader offers a checkpoint to a replica here; `is_needed` if the group takes no writes without it.
    pub(crate) fn handle_snapshot_begin(&mut self, begin: SnapshotBegin, is_needed: bool, now: Now) {
        let owner = ReplicaKey { group: GroupId::from_u64(begin.group), replica: ReplicaId(begin.to) };
        let has_enough = self.receives_enough(owner, now);
        let is_starting = |hosted: &Hosted| matches!(hosted, Hosted::Starting { owner: new, .. } if *new == owner);
        if self.replicas.hosted.get(&owner.group).is_some_and(is_starting) {
            return;
        }
        let Some(replica) = self.running_as(owner) else {
            // It is gone, or not made. Its sender must not wait for it as for one that will answer: it has others to serve,
            // the replica that takes its place among them.
            return self.put_off(owner, ReplicaId(begin.from), begin.id);
        };
        replica.may_have_received = Some(now.instant);
        // A checkpoint that is there and about to be installed keeps its directory; the sender will ask again.
        if replica.storage.is_none() || replica.group.is_taking_snapshot() {
            return;
        }
        // Of a leader that is none any more and does not know it yet.
        let term = Message::decode(begin.message.clone()).map_or(0, |message| message.term());
        if term < replica.group.term() {
            return;
        }
        if let Some(receiving) = &mut replica.receiving
            && receiving.id == begin.id
        {
            let is_same = receiving.from.0 == begin.from
                && receiving.files == begin.files
                && announced(&receiving.message) == announced(&begin.message);
            if !is_same {
                // What was heard first, or this, is not what was sent: nothing would ever fit. It is said again, unless
                // it is this; what is being written or verified goes to its end first.
                if !receiving.is_writing {
                    tracing::warn!(group = %owner.group, "a checkpoint is announced in two ways: it is received anew");
                    self.forget_receiving(owner);
                }
                return;
            }
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
        if replica.offer.is_some_and(|offer| (offer.sender.0, offer.id) == (begin.from, begin.id)) {
            return;
        }
        if replica.receiving.is_none() && replica.offer.is_none() && has_enough {
            return self.put_off(owner, ReplicaId(begin.from), begin.id);
        }
        if begin.files.len() > FILES_MAX || !begin.files.iter().all(|file| is_plain_name(&file.name)) {
            tracing::warn!(group = %owner.group, "a checkpoint with forbidden file names was refused");
            return;
        }
        self.look_through(owner, begin, is_needed, now);
    }

    /// Has what is here of an offered checkpoint looked through. What is being received of another one pauses: nothing is to be installed from
    /// where tables are taken out. It goes on if its sender is awaited.
    fn look_through(&mut self, owner: ReplicaKey, begin: SnapshotBegin, is_needed: bool, now: Now) {
        let most = if is_needed { FORMER_AWAITED_IF_NEEDED } else { FORMER_AWAITED };
        let partition = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(owner.group));
        let voters: Vec<ReplicaId> = partition.into_iter().flat_map(|it| it.voters()).collect();
        let Some(replica) = self.running_as(owner) else { return };
        let may_wait = replica.waits_for_sender.is_none_or(|since| now.instant.since(since) < most);
        let offer = Offer { sender: ReplicaId(begin.from), id: begin.id, since: now.instant };
        replica.offer = Some(offer);
        let awaited = if may_wait { voters } else { Vec::new() };
        let wants_size = replica.waits_for_room.is_some();
        let directory = replica.directory;
        let announced = Announced { owner, begin, awaited, wants_size };
        self.send_on_errand(directory, Errand::LookThrough(Box::new(announced)));
    }

    /// What is here of an offered checkpoint was looked through: the rest of it is received, if it is still wanted.
    pub(crate) fn handle_looked(&mut self, Looked { owner, begin, found }: Looked, now: Now) {
        let sender = ReplicaId(begin.from);
        let Some(replica) = self.running_as(owner) else { return };
        if replica.offer.take_if(|offer| (offer.sender, offer.id) == (sender, begin.id)).is_none() {
            return;
        }
        if replica.storage.is_none() || replica.group.is_taking_snapshot() {
            return;
        }
        let directory = replica.directory;
        let (path, file, goes_on, own_size) = match found {
            Found::Awaits(former) => {
                replica.waits_for_sender.get_or_insert(now.instant);
                self.say_busy(owner, sender, begin.id, Busy::AwaitsFormer(former));
                return self.resume_receiving(owner, now);
            }
            Found::Received { path, whole, goes_on, own_size } => (path, whole, goes_on, own_size),
        };
        replica.waits_for_sender.take_if(|_| !goes_on);
        replica.receiving = None;
        // Others have begun meanwhile, where a disk was slow.
        if self.receives_enough(owner, now) {
            return self.put_off(owner, sender, begin.id);
        }
        let missing = missing_bytes(&begin.files, file);
        if missing > 0 && !self.has_room_to_receive(owner, directory, missing) {
            let lacking = self.wait_for_room(owner, directory, (missing, own_size), now);
            return self.say_busy(owner, sender, begin.id, Busy::Lacks(lacking));
        }
        let receiving = Receiving {
            from: sender,
            id: begin.id,
            directory: path,
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

    /// Goes on with what was received before another checkpoint was offered.
    fn resume_receiving(&mut self, owner: ReplicaKey, now: Now) {
        let receiving = self.running_as(owner).and_then(|replica| replica.receiving.as_ref());
        let Some(is_writing) = receiving.map(|receiving| receiving.is_writing) else { return };
        if !is_writing {
            self.write_next(owner);
            self.continue_receiving(owner, now);
        }
    }

    /// Asks a sender to come again later.
    fn put_off(&mut self, owner: ReplicaKey, sender: ReplicaId, id: u64) {
        self.say_busy(owner, sender, id, Busy::Soon);
    }

    fn say_busy(&mut self, owner: ReplicaKey, sender: ReplicaId, id: u64, why: Busy) {
        let (former, lacking) = match why {
            Busy::Soon => (0, 0),
            Busy::AwaitsFormer(former) => (former.0, 0),
            Busy::Lacks(bytes) => (0, bytes),
        };
        let (group, from) = (owner.group.to_u64(), owner.replica.0);
        let progress =
            SnapshotProgress { group, from, id, is_busy: true, former, lacking, ..SnapshotProgress::default() };
        self.send(sender.node(), &Frame::SnapshotProgress(progress));
    }

    pub(crate) fn handle_snapshot_chunk(&mut self, chunk: SnapshotChunk, now: Now) {
        let owner = ReplicaKey { group: GroupId::from_u64(chunk.group), replica: ReplicaId(chunk.to) };
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
    fn write_next(&mut self, owner: ReplicaKey) {
        let running = self.running_as(owner).filter(|replica| replica.offer.is_none());
        let Some(receiving) = running.and_then(|replica| replica.receiving.as_mut()) else { return };
        if receiving.is_writing {
            return;
        }
        let Some(Piece { offset, data: bytes }) = receiving.queue.pop_front() else { return };
        let Some(file) = receiving.files.get(receiving.file) else { return };
        let id = receiving.id;
        let directory = &receiving.directory;
        let is_last = offset + bytes.len() as u64 == file.size;
        let complete_as = is_last.then(|| directory.join(&file.name));
        let path = directory.join(format!("{}.part", file.name));
        receiving.is_writing = true;
        receiving.writing = bytes.len() as u64;
        self.job(Job::WriteChunk { owner, id, path, offset, data: bytes, complete_as });
    }

    /// Says from where the pieces are wanted again. Those that wait to be written are dropped with it: they come once more.
    fn ask_again(&mut self, owner: ReplicaKey, now: Now) {
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

    pub(crate) fn handle_chunk_written(&mut self, owner: ReplicaKey, id: u64, now: Now) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.as_mut().filter(|it| it.id == id && it.is_writing) else { return };
        receiving.is_writing = false;
        receiving.offset += receiving.writing;
        let size = receiving.files.get(receiving.file).map_or(0, |file| file.size);
        if receiving.offset >= size {
            receiving.file += 1;
            receiving.offset = 0;
            replica.waits_for_sender = None;
        }
        self.write_next(owner);
        self.continue_receiving(owner, now);
    }

    /// Asks for the next piece, or, if there is none, hands the checkpoint to the group.
    fn continue_receiving(&mut self, owner: ReplicaKey, now: Now) {
        if self.running_as(owner).is_none_or(|replica| replica.offer.is_some()) || !self.is_verified(owner) {
            return;
        }
        self.send_progress(owner, now);
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.as_ref().filter(|it| it.file >= it.files.len()) else { return };
        match hedgerow_replication::Message::decode(receiving.message.clone()) {
            Ok(message) => {
                let from = receiving.from;
                let is_wanted = replica.group.handle_snapshot_received(from, message, now.instant);
                self.mark_dirty(owner.group);
                if !is_wanted {
                    // The log has brought what the checkpoint would have.
                    self.forget_receiving(owner);
                }
            }
            Err(error) => tracing::warn!(group = %owner.group, %error, "a checkpoint without a message was dropped"),
        }
    }

    /// Whether the next step may be taken. A checkpoint of which all files are here is verified first: nobody hears that it
    /// is here, and the group does not rest on it, before.
    fn is_verified(&mut self, owner: ReplicaKey) -> bool {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else {
            return false;
        };
        if receiving.file < receiving.files.len() || receiving.is_verified {
            return true;
        }
        let message = hedgerow_replication::Message::decode(receiving.message.clone()).ok();
        let Some(meta) = message.and_then(|message| message.snapshot()) else { return true };
        let id = receiving.id;
        if !std::mem::replace(&mut receiving.is_writing, true) {
            let directory = receiving.directory.clone();
            self.job(Job::Verify { owner, id, directory, meta });
        }
        false
    }

    pub(crate) fn handle_verified(&mut self, owner: ReplicaKey, id: u64, now: Now) {
        let receiving = self.running_as(owner).and_then(|replica| replica.receiving.as_mut());
        // What was verified may be of a transfer before this one, of the same checkpoint.
        let Some(receiving) = receiving.filter(|it| it.id == id && it.file >= it.files.len()) else { return };
        (receiving.is_writing, receiving.is_verified) = (false, true);
        self.continue_receiving(owner, now);
    }

    /// A received checkpoint cannot be verified for now: what was received stays, and the leader asks again after a while.
    pub(crate) fn put_off_received(&mut self, owner: ReplicaKey, id: u64) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.take_if(|it| it.id == id) else { return };
        self.put_off(owner, receiving.from, id);
    }

    /// Has the leader begin anew.
    pub(crate) fn refuse_received(&mut self, owner: ReplicaKey, id: u64) {
        let Some(replica) = self.running_as(owner) else { return };
        let Some(receiving) = replica.receiving.as_ref().filter(|it| it.id == id) else { return };
        if replica.offer.is_some() {
            // Tables may have been taken out of it for the other one.
            replica.receiving = None;
            return;
        }
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
        self.forget_receiving(owner);
    }

    fn send_progress(&mut self, owner: ReplicaKey, now: Now) {
        self.say_progress(owner, false, now);
    }

    fn say_progress(&mut self, owner: ReplicaKey, again: bool, now: Now) {
        let Some(receiving) = self.running_as(owner).and_then(|replica| replica.receiving.as_mut()) else { return };
        receiving.last_progress = now.instant;
        let (file, offset) = receiving.said();
        let progress = SnapshotProgress {
            group: owner.group.to_u64(),
            from: owner.replica.0,
            id: receiving.id,
            file: file as u32,
            offset,
            again,
            ..SnapshotProgress::default()
        };
        let to = receiving.from.node();
        self.send(to, &Frame::SnapshotProgress(progress));
    }

    pub(crate) fn tick_receiving(&mut self, group: GroupId, now: Now) {
        self.tick_room_wait(group);
        let Some(replica) = self.running(group) else { return };
        let (owner, directory, is_installing) = (replica.owner, replica.directory, replica.group.is_taking_snapshot());
        let is_over = |heard: &mut Instant| now.instant.since(*heard) >= GIVE_UP_AFTER;
        let is_idle = replica.receiving.is_none() && replica.offer.is_none() && !is_installing;
        if is_idle && replica.may_have_received.take_if(is_over).is_some() {
            return self.discard_received(owner);
        }
        let Some(receiving) = replica.receiving.as_ref().filter(|_| !is_installing) else { return };
        let (id, from, is_missing) = (receiving.id, receiving.from, receiving.missing() > 0);
        let is_silent = now.instant.since(receiving.last_heard) >= GIVE_UP_AFTER;
        let is_quiet = !receiving.is_writing && now.instant.since(receiving.last_progress) >= REPEAT_AFTER;
        if is_silent {
            self.forget_receiving(owner);
        } else if is_missing && group != GroupId::META && self.must_give_room(directory) {
            tracing::warn!(%group, "what was received of a checkpoint makes room for what the node needs itself");
            self.put_off(owner, from, id);
            self.forget_receiving(owner);
        } else if is_quiet {
            self.ask_again(owner, now);
        }
    }

    /// Removes what was received.
    fn forget_receiving(&mut self, owner: ReplicaKey) {
        let Some(replica) = self.running_as(owner) else { return };
        let directory = replica.directory;
        let Some(receiving) = replica.receiving.take() else { return };
        self.send_on_errand(directory, Errand::Discard(vec![receiving.directory]));
    }

    /// Removes all that was ever received for `owner`: it has what it needs, or nobody goes on with it.
    pub(crate) fn discard_received(&mut self, owner: ReplicaKey) {
        if let Some(directory) = self.running_as(owner).map(|replica| replica.directory) {
            self.send_on_errand(directory, Errand::DiscardReceived(owner));
        }
    }

    /// A piece of checkpoint `id` could not be written: it begins anew when the leader asks again. One that has become whole all the
    /// same, and one that came after it, are left alone.
    pub(crate) fn handle_write_failed(&mut self, owner: ReplicaKey, id: u64, kind: FailureKind) {
        let Some(replica) = self.running_as(owner).filter(|it| !it.group.is_taking_snapshot()) else { return };
        let directory = replica.directory;
        let Some(receiving) = replica.receiving.take_if(|it| it.id == id) else { return };
        if kind == FailureKind::NoSpace {
            // Deletes and the log need the place more.
            self.put_off(owner, receiving.from, id);
            self.send_on_errand(directory, Errand::Discard(vec![receiving.directory]));
        }
    }
}

/// What a message says of the checkpoint that comes with it.
fn announced(message: &Bytes) -> Option<SnapshotMeta> {
    Message::decode(message.clone()).ok()?.snapshot()
}

/// Bytes of all files from number `first` on.
fn missing_bytes(files: &[SnapshotFile], first: usize) -> u64 {
    files.iter().skip(first).map(|file| file.size).fold(0, u64::saturating_add)
}

/// Whether a file name stays inside its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 256 && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}
