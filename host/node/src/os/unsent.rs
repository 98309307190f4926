//! Replies that wait for a client to read them, as they came: what waits is moved nowhere, however much it is.

use bytes::{Buf as _, BytesMut};
use hedgerow_types::Instant;
use std::collections::VecDeque;

/// Bytes that are put to others, where there is room, instead of being kept by themselves.
const SMALL: usize = 16 << 10;

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    pieces: VecDeque<Piece>,
    len: usize,
    held: usize,
}

/// Bytes that are kept by themselves: all of them, until the last one has left.
#[derive(Debug)]
struct Piece {
    bytes: BytesMut,
    /// How many there were.
    size: usize,
    /// Since when the first of them has waited.
    since: Instant,
}

impl Unsent {
    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What they take in memory, those of them included that have left before the last one of their piece.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Since when the first piece has waited.
    pub(super) fn since(&self) -> Option<Instant> {
        self.pieces.front().map(|piece| piece.since)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what is left of a piece of `size` bytes.
    pub(super) fn push(&mut self, bytes: BytesMut, size: usize, now: Instant) {
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if bytes.len() <= SMALL && last.bytes.capacity() - last.bytes.len() >= bytes.len() => {
                last.bytes.extend_from_slice(&bytes);
                last.size += bytes.len();
                self.held += bytes.len();
            }
            Some(_) | None => {
                self.pieces.push_back(Piece { bytes, size, since: now });
                self.held += size;
            }
        }
    }

    /// The first ones: at most `most`, and at least one if there is any.
    pub(super) fn first(&self, most: usize) -> &[u8] {
        let first = self.pieces.front().map_or(&[][..], |piece| &piece.bytes[..]);
        &first[..first.len().min(most)]
    }

    /// So many of [`Unsent::first`] are sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.len -= count;
        if let Some(first) = self.pieces.front_mut() {
            first.bytes.advance(count);
            if first.bytes.is_empty() {
                self.held -= first.size;
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_leaves_in_order() {
        let mut unsent = Unsent::default();
        let (mut pushed, mut sent) = (Vec::new(), Vec::new());
        for (number, size) in [1, 100, 20_000, 5, 40_000, 7].into_iter().enumerate() {
            let bytes = vec![number as u8; size];
            pushed.extend_from_slice(&bytes);
            unsent.push(BytesMut::from(&bytes[..]), size, Instant(number as u64));
        }
        assert_eq!((unsent.len(), unsent.held()), (pushed.len(), pushed.len()));
        while !unsent.is_empty() {
            let first = unsent.first(3_000).to_vec();
            assert!((1..=3_000).contains(&first.len()));
            sent.extend_from_slice(&first);
            unsent.advance(first.len());
        }
        assert_eq!((sent == pushed, unsent.pieces.len(), unsent.held()), (true, 0, 0));
        assert!(unsent.first(1).is_empty());
    }

    #[test]
    fn n4j_a_piece_counts_until_its_last_byte_has_left() {
        let mut unsent = Unsent::default();
        unsent.push(BytesMut::from(&[0; 60_000][..]), 100_000, Instant(1));
        unsent.push(BytesMut::from(&[1; 30_000][..]), 30_000, Instant(2));
        unsent.advance(59_999);
        assert_eq!((unsent.len(), unsent.held(), unsent.since()), (30_001, 130_000, Some(Instant(1))));
        unsent.advance(1);
        assert_eq!((unsent.len(), unsent.held(), unsent.since()), (30_000, 30_000, Some(Instant(2))));
    }
}
