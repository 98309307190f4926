//! The bytes that reads keep in memory while they wait for an index or a majority, at all replicas of a node together.
//!
//! What is kept is given back when the read's [`Held`] is dropped, which goes with the read: however that ends, nobody else has to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads of so many bytes find room in twice the bound, so that large ones do not turn them away.
const SMALL_READ: usize = 4 << 10;

/// Where reads that wait have room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    kept: Arc<AtomicUsize>,
    /// What did not find room.
    refused: u64,
}

/// The room of one read. That of nothing by default.
#[derive(Debug, Default)]
pub(crate) struct Held {
    size: usize,
    of: Arc<AtomicUsize>,
}

impl Room {
    /// Room for a read of `size` bytes, if that is not more than there is where `size_max` bytes may be kept.
    pub(crate) fn take(&mut self, size: usize, size_max: usize) -> Option<Held> {
        let size_max = if size <= SMALL_READ { size_max.saturating_mul(2) } else { size_max };
        if self.size().saturating_add(size) > size_max {
            self.refused += 1;
            return None;
        }
        self.kept.fetch_add(size, Ordering::Relaxed);
        Some(Held { size, of: Arc::clone(&self.kept) })
    }

    /// Bytes that are kept now.
    pub(crate) fn size(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// How many reads found no room since the node started.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n4n_small_reads_find_room_where_large_ones_do_not() {
        let mut room = Room::default();
        let large = room.take(90_000, 100_000);
        assert!(large.is_some() && room.take(20_000, 100_000).is_none());
        let small: Vec<_> = (0..30).map_while(|_| room.take(4_000, 100_000)).collect();
        assert_eq!((small.len(), room.refused()), (27, 2), "twice the bound");
        drop((large, small));
        assert_eq!(room.size(), 0);
    }
}
