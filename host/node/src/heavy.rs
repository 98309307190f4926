//! Writes that become much more in storage than they are in the log: rows that share a long hash key, which is stored with each.
//!
//! What waits to be committed is limited by its bytes in the log. Those of such a write say little of what it takes when it is
//! applied, so that the heavy ones are limited by that too.

use crate::replica::Hosted;
use crate::replicas::Replicas;
use hedgerow_types::{Index, Refusal};
use std::collections::VecDeque;

/// Bytes for storage from which a write is heavy.
const HEAVY: usize = 256 << 10;
/// Bytes for storage that the heavy writes of all groups that a node leads may come to together while they wait.
const WAITING_MAX: usize = 128 << 20;

/// Heavy writes of a group that are proposed here and not applied.
#[derive(Debug, Default)]
pub(crate) struct HeavyWrites {
    /// In order: where each stands, and its bytes for storage.
    waiting: VecDeque<(Index, usize)>,
    bytes: usize,
}

impl HeavyWrites {
    /// A write that comes to so many bytes in storage was proposed.
    pub(crate) fn note_proposed(&mut self, index: Index, stored: usize) {
        if stored >= HEAVY {
            self.waiting.push_back((index, stored));
            self.bytes += stored;
        }
    }

    /// All up to `index` are applied.
    pub(crate) fn note_applied(&mut self, index: Index) {
        let applied = self.waiting.partition_point(|(at, _)| *at <= index);
        self.bytes -= self.waiting.drain(..applied).map(|(_, stored)| stored).sum::<usize>();
    }
}

impl Replicas {
    /// Why no write is taken that comes to so many bytes in storage.
    pub(crate) fn why_too_heavy(&self, stored: usize) -> Option<Refusal> {
        if stored < HEAVY {
            return None;
        }
        let of = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => replica.heavy.bytes,
            Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
        };
        let waiting: usize = self.hosted.values().map(of).sum();
        (waiting + stored > WAITING_MAX)
            .then(|| Refusal::Busy(format!("writes that come to {waiting} bytes in storage wait for a majority")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_writes_count_until_they_are_applied() {
        let mut heavy = HeavyWrites::default();
        heavy.note_proposed(7, HEAVY - 1);
        assert_eq!(heavy.bytes, 0, "such a write is bounded by what the log may hold");
        heavy.note_proposed(8, HEAVY);
        heavy.note_proposed(10, 2 * HEAVY);
        heavy.note_applied(7);
        assert_eq!(heavy.bytes, 3 * HEAVY);
        heavy.note_applied(9);
        assert_eq!(heavy.bytes, 2 * HEAVY);
        heavy.note_applied(10);
        assert_eq!((heavy.bytes, heavy.waiting.len()), (0, 0));
    }
}
