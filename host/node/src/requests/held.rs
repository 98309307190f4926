//! The bytes that reads keep in memory while they wait for an index or a majority, at all replicas of a node together.
//!
//! What is kept is given back when the read's [`Held`] is dropped, which goes with the read: however that ends, nobody else has to know.

use crate::shared_bound::SharedBound;
use std::sync::Arc;

/// Reads of so many bytes find room in twice the bound, so that large ones do not turn them away.
const SMALL_READ: usize = 4 << 10;

/// Where reads that wait have room.
#[derive(Debug)]
pub(crate) struct Room {
    kept: Arc<SharedBound>,
    /// What did not find room.
    refused: u64,
}

/// The room of one read. That of nothing by default.
#[derive(Debug, Default)]
pub(crate) struct Held {
    size: usize,
    of: Option<Arc<SharedBound>>,
}

impl Room {
    /// Where nothing waits yet.
    pub(crate) fn new(kept: SharedBound) -> Self {
        Self { kept: Arc::new(kept), refused: 0 }
    }

    /// Room for a read of `size` bytes, if there is any.
    pub(crate) fn take(&mut self, size: usize) -> Option<Held> {
        if !self.kept.has_room_within(size, if size <= SMALL_READ { 2 } else { 1 }) {
            self.refused += 1;
            return None;
        }
        self.kept.add(size);
        Some(Held { size, of: Some(Arc::clone(&self.kept)) })
    }

    /// Bytes that are kept now.
    pub(crate) fn size(&self) -> usize {
        self.kept.own()
    }

    /// How many reads found no room since the node started.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(kept) = &self.of {
            kept.subtract(self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n4n_small_reads_find_room_where_large_ones_do_not() {
        let mut room = Room::new(SharedBound::new(&Arc::default(), 100_000, 1));
        let large = room.take(90_000);
        assert!(large.is_some() && room.take(20_000).is_none());
        let small: Vec<_> = (0..30).map_while(|_| room.take(4_000)).collect();
        assert_eq!((small.len(), room.refused()), (27, 2), "twice the bound");
        drop((large, small));
        assert_eq!(room.size(), 0);
    }
}
