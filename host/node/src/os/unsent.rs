//! Replies that wait for a client to read them, as they came: what waits is moved nowhere, however much it is.

use bytes::{Buf as _, BytesMut};
use std::collections::VecDeque;

/// Bytes that are put to others, where there is room, instead of being kept by themselves.
const SMALL: usize = 16 << 10;

/// Bytes to be sent, in order.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    pieces: VecDeque<BytesMut>,
    len: usize,
}

impl Unsent {
    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, bytes: BytesMut) {
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if bytes.len() <= SMALL && last.capacity() - last.len() >= bytes.len() => {
                last.extend_from_slice(&bytes);
            }
            Some(_) | None => self.pieces.push_back(bytes),
        }
    }

    /// The first ones: at most `most`, and at least one if there is any.
    pub(super) fn first(&self, most: usize) -> &[u8] {
        let first = self.pieces.front().map_or(&[][..], |piece| &piece[..]);
        &first[..first.len().min(most)]
    }

    /// So many of [`Unsent::first`] are sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.len -= count;
        if let Some(first) = self.pieces.front_mut() {
            first.advance(count);
            if first.is_empty() {
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
            unsent.push(BytesMut::from(&bytes[..]));
        }
        assert_eq!(unsent.len(), pushed.len());
        while !unsent.is_empty() {
            let first = unsent.first(3_000).to_vec();
            assert!((1..=3_000).contains(&first.len()));
            sent.extend_from_slice(&first);
            unsent.advance(first.len());
        }
        assert_eq!((sent == pushed, unsent.pieces.len()), (true, 0));
        assert!(unsent.first(1).is_empty());
    }
}
