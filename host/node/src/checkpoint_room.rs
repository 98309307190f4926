//! Room on the disk for a checkpoint that a replica is to receive, and what happens where there is none.

use crate::ids::{DirectoryId, ReplicaKey};
use crate::notice::Notice;
use crate::peer::{Frame, SnapshotProgress};
use crate::receive::Receiving;
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_types::{GroupId, Instant};
use std::time::Duration;

/// For so long a replica keeps what is in the way of its checkpoint: room may come by itself.
const ROOM_AWAITED: Duration = Duration::from_secs(30);

/// A checkpoint that has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomWait {
    since: Instant,
    /// Bytes of it that are not here.
    missing: u64,
    /// Bytes that the disk lacked for them when it was asked last.
    pub(crate) lacking: u64,
}

impl Shard {
    /// Whether `missing` bytes of a checkpoint fit on the disk. The metadata is small and may use what is kept free.
    pub(crate) fn has_room_to_receive(&self, owner: ReplicaKey, directory: DirectoryId, missing: u64) -> bool {
        owner.group == GroupId::META
            || (!self.view.room.is_full(directory) && self.lacking(owner, directory, missing) == 0)
    }

    /// Bytes that the disk lacks for `missing` bytes of a checkpoint, beside what others on their way still need, without
    /// reaching into what is kept free.
    fn lacking(&self, owner: ReplicaKey, directory: DirectoryId, missing: u64) -> u64 {
        let Some((free, mark)) = self.free_and_mark(directory) else { return 0 };
        let others = self.replicas_in(directory).filter(|replica| replica.owner != owner);
        let promised = others.filter_map(|replica| replica.receiving.as_ref()).map(Receiving::missing);
        let promised = promised.fold(0, u64::saturating_add);
        // Of what is on its way to others a shard knows what it was at the last tick.
        let of_all = if self.config.shards > 1 { self.view.room.sizes(directory).promised } else { 0 };
        missing.saturating_add(mark).saturating_add(promised.max(of_all)).saturating_sub(free)
    }

    /// A checkpoint has no room, and room may come by itself: so many bytes of it are not here, and so many has the storage that it would replace,
    /// if that was asked. Returns the bytes that are lacking, at least 1.
    pub(crate) fn wait_for_room(
        &mut self,
        owner: ReplicaKey,
        directory: DirectoryId,
        (missing, own_size): (u64, u64),
        now: Now,
    ) -> u64 {
        // On a full disk something is lacking, though it be for others.
        let lacking = self.lacking(owner, directory, missing).max(1);
        let Some(replica) = self.running_as(owner) else { return lacking };
        if replica.waits_for_room.is_none() {
            let group = owner.group;
            tracing::warn!(%group, missing, lacking, "a checkpoint has to wait: the disk has no room for it");
        }
        let since = replica.waits_for_room.map_or(now.instant, |wait| wait.since);
        replica.waits_for_room = Some(RoomWait { since, missing, lacking });
        if now.instant.since(since) >= ROOM_AWAITED {
            self.notices.push(Notice::LacksRoom(owner, lacking, own_size));
        }
        lacking
    }

    /// Tells the leader when there is room for a checkpoint that had to wait: it asks seldom by then.
    pub(crate) fn tick_room_wait(&mut self, group: GroupId) {
        let Some(replica) = self.running(group) else { return };
        let (Some(wait), owner, directory) = (replica.waits_for_room, replica.owner, replica.directory) else { return };
        let leader = replica.group.leader();
        // Many may wait, and the second look is at all replicas.
        if !self.may_have_room(directory, wait.missing) || !self.has_room_to_receive(owner, directory, wait.missing) {
            return;
        }
        self.running(group).into_iter().for_each(|replica| replica.waits_for_room = None);
        if let Some(leader) = leader {
            let (group, from) = (group.to_u64(), owner.replica.0);
            let progress = SnapshotProgress { group, from, has_room: true, ..SnapshotProgress::default() };
            self.send(leader.node(), &Frame::SnapshotProgress(progress));
        }
    }
}
