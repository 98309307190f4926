//! Rows that the last flushes have written, kept as they were in memory: what was written lately is read next, and the table that has it is
//! not in the block cache yet. Nothing is copied for it, unless snapshots have cut the rows into layers, which are laid together first.
//!
//! *Invariant.* What a database keeps is its newest flushes without a gap, so that the newest of them that has a key has what the database
//! has. The room is shared by all databases of a process, and whoever needs it takes it from the oldest flush of all: of one
//! database the older flush always goes first, so that who looks from the newest on finds none that is newer than an older one it finds, also
//! without a lock.

use super::unflushed::Layers;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// Flushes that are kept of one database: a key that none of them has is looked for in each. They are many where few rows are written over
/// and over, and hold little.
const KEPT_MAX: usize = 8;

/// The rows of one flush, until their room is needed.
#[derive(Debug)]
struct Flush(RwLock<Option<Layers>>);

impl Flush {
    /// As [`Layers::get`].
    fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let rows = self.0.read().unwrap_or_else(PoisonError::into_inner);
        rows.as_ref()?.get(key).map(|row| row.cloned())
    }

    fn is_kept(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn give_up(&self) -> Option<Layers> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The last flushes of one database, newest first. A clone has those of its moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Flushed(VecDeque<Arc<Flush>>);

impl Flushed {
    /// What is known of `key` here: `Some(None)` = it is removed, `None` = ask the database.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.0.iter().find_map(|flush| flush.get(key))
    }

    /// Keeps `rows` of `bytes` bytes, which the database has now. Returns what had to give way, to be dropped where that may take its
    /// time.
    #[must_use]
    pub(super) fn keep(&mut self, rows: Layers, bytes: u64, room: &Room) -> Vec<Layers> {
        let flush = Arc::new(Flush(RwLock::new(Some(rows))));
        let mut gone = room.take(bytes, &flush);
        self.0.push_front(flush);
        self.0.retain(|flush| flush.is_kept());
        // Emptied while the room still has it: snapshots look without a lock, and nobody may empty a newer flush before it.
        for flush in self.0.drain(KEPT_MAX.min(self.0.len())..).rev() {
            gone.extend(flush.give_up());
            room.give_back(&flush);
        }
        gone
    }
}

/// What all databases of a process may keep together.
#[derive(Debug)]
pub(super) struct Room {
    size: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// Oldest first. Those of a database that was closed count until it is their turn.
    flushes: VecDeque<(u64, Weak<Flush>)>,
}

impl Room {
    /// For `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, taken: Mutex::default() }
    }

    /// `flush` is not kept any more.
    fn give_back(&self, flush: &Arc<Flush>) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let place = taken.flushes.iter().position(|(_, kept)| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(flush)));
        if let Some((bytes, _)) = place.and_then(|place| taken.flushes.remove(place)) {
            taken.bytes -= bytes;
        }
    }

    /// Makes room for a flush; one that is larger than all the room gives way itself.
    fn take(&self, bytes: u64, flush: &Arc<Flush>) -> Vec<Layers> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes;
        taken.flushes.push_back((bytes, Arc::downgrade(flush)));
        let mut gone = Vec::new();
        while taken.bytes > self.size
            && let Some((bytes, oldest)) = taken.flushes.pop_front()
        {
            taken.bytes -= bytes;
            gone.extend(oldest.upgrade().and_then(|oldest| oldest.give_up()));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::super::unflushed::Unflushed;
    use super::*;
    use crate::batch::Batch;

    /// A flush of `k` with this value, and of a key of its own.
    fn rows(value: u8) -> Layers {
        let mut batch = Batch::new();
        batch.put(&[b"k"], &[&[value]]);
        batch.put(&[&[value]], &[&[value]]);
        let mut unflushed = Unflushed::default();
        unflushed.write(&batch);
        unflushed.begin_flush().expect("rows")
    }

    fn value(flushed: &Flushed, key: &[u8]) -> Option<u8> {
        flushed.get(key).map(|row| row.expect("not removed")[0])
    }

    #[test]
    fn the_oldest_flush_of_all_databases_gives_way_and_never_hides_a_newer_one() {
        let room = Room::new(3);
        let [mut one, mut other] = [Flushed::default(), Flushed::default()];
        assert!(one.keep(rows(1), 1, &room).is_empty());
        assert!(one.keep(rows(2), 1, &room).is_empty());
        assert!(other.keep(rows(3), 1, &room).is_empty());
        assert_eq!([value(&one, b"k"), value(&one, &[1]), value(&other, b"k")], [Some(2), Some(1), Some(3)]);
        assert_eq!(other.keep(rows(4), 2, &room).len(), 2, "both of the first database go");
        assert_eq!([value(&one, b"k"), value(&one, &[1]), value(&other, b"k")], [None, None, Some(4)]);
        assert_eq!(value(&other, &[3]), Some(3));
        assert_eq!(other.keep(rows(5), 4, &room).len(), 3, "one that is too large is not kept, nor what is older");
        assert_eq!([value(&other, b"k"), value(&other, &[3])], [None, None]);
        assert!(one.keep(rows(6), 3, &room).is_empty(), "all the room is free again");
        assert_eq!(one.0.len(), 1, "nothing is left of what gave way");
    }

    /// A snapshot looks at copies without a lock: the oldest is empty before a newer one may be emptied by whoever needs its room.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a reader that stays while another thread writes")]
    fn what_is_not_empty_yet_still_stands_before_newer_ones() {
        let room = Room::new(1 << 20);
        let mut flushed = Flushed::default();
        (0..KEPT_MAX as u8).for_each(|number| assert!(flushed.keep(rows(number), 1, &room).is_empty()));
        let oldest = Arc::clone(flushed.0.back().expect("the first one"));
        let is_in_room = || {
            let taken = room.taken.lock().expect("sound");
            taken.flushes.iter().any(|(_, kept)| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(&oldest)))
        };
        std::thread::scope(|scope| {
            let reader = oldest.0.read().expect("sound");
            let writer = scope.spawn(|| flushed.keep(rows(9), 1, &room).len());
            for _ in 0..50 {
                assert!(is_in_room(), "it has rows that a reader may find");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            drop(reader);
            assert_eq!(writer.join().expect("keeps"), 1);
        });
        assert!(!is_in_room() && !oldest.is_kept());
    }

    #[test]
    fn few_flushes_are_kept_of_a_database_however_small_they_are() {
        let room = Room::new(1 << 20);
        let mut flushed = Flushed::default();
        let count = KEPT_MAX as u8 + 3;
        let gone: usize = (1..=count).map(|number| flushed.keep(rows(number), 1, &room).len()).sum();
        assert_eq!((gone, flushed.0.len()), (3, KEPT_MAX));
        assert_eq!([value(&flushed, b"k"), value(&flushed, &[3]), value(&flushed, &[4])], [Some(count), None, Some(4)]);
        assert_eq!(room.taken.lock().expect("sound").bytes, KEPT_MAX as u64, "what is left out takes no room");
    }

    #[test]
    fn a_database_that_is_closed_leaves_its_room_in_turn() {
        let room = Room::new(2);
        let mut one = Flushed::default();
        assert!(one.keep(rows(1), 2, &room).is_empty());
        drop(one);
        let mut other = Flushed::default();
        assert!(other.keep(rows(2), 2, &room).is_empty());
        assert_eq!(value(&other, b"k"), Some(2));
    }
}
