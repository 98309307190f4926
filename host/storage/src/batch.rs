//! A list of changes that an engine writes as one, kept in a single buffer.
//!
//! A batch can be asked for the keys it holds, so that a write that depends on another of the same batch sees it. The
//! index for that is built only when somebody asks: plain puts never pay for it.

use std::collections::BTreeMap;

/// Buffers above this many bytes are given back when the batch is emptied.
const CAPACITY_KEPT: usize = 256 << 10;

/// Puts and removals in the order in which they take effect.
#[derive(Debug, Default)]
pub struct Batch {
    data: Vec<u8>,
    changes: Vec<Change>,
    /// Last change of each key among the first `indexed` changes. A tree, since clients choose the keys and could have all of
    /// them collide in a hash map (N9).
    index: BTreeMap<Box<[u8]>, usize>,
    indexed: usize,
}

/// Where a change lies in the buffer; a removal has no value.
#[derive(Clone, Copy, Debug)]
struct Change {
    start: usize,
    key_end: usize,
    value_end: Option<usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key that `key`'s parts make up to the value that `value`'s parts make up.
    pub fn put(&mut self, key: &[&[u8]], value: &[&[u8]]) {
        let start = self.data.len();
        key.iter().for_each(|part| self.data.extend_from_slice(part));
        let key_end = self.data.len();
        value.iter().for_each(|part| self.data.extend_from_slice(part));
        self.changes.push(Change { start, key_end, value_end: Some(self.data.len()) });
    }

    /// Removes the key that `key`'s parts make up.
    pub fn remove(&mut self, key: &[&[u8]]) {
        let start = self.data.len();
        key.iter().for_each(|part| self.data.extend_from_slice(part));
        self.changes.push(Change { start, key_end: self.data.len(), value_end: None });
    }

    /// What the batch does to `key`: `None` = nothing, `Some(None)` = removes it, `Some(Some(value))` = sets it.
    pub fn find(&mut self, key: &[u8]) -> Option<Option<&[u8]>> {
        for (position, change) in self.changes.iter().enumerate().skip(self.indexed) {
            self.index.insert(self.data[change.start..change.key_end].into(), position);
        }
        self.indexed = self.changes.len();
        let change = self.changes[*self.index.get(key)?];
        Some(change.value_end.map(|end| &self.data[change.key_end..end]))
    }

    /// The changes in order: key, and value or `None` for a removal.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.iter_from(0)
    }

    /// The same without the first `count` changes, which cost nothing.
    pub(crate) fn iter_from(&self, count: usize) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes[count..].iter().map(|change| {
            let value = change.value_end.map(|end| &self.data[change.key_end..end]);
            (&self.data[change.start..change.key_end], value)
        })
    }

    /// How many changes there are.
    pub fn count(&self) -> usize {
        self.changes.len()
    }

    /// Bytes of all keys and values.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Forgets all changes.
    pub fn clear(&mut self) {
        if self.data.capacity() > CAPACITY_KEPT {
            *self = Self::default();
            return;
        }
        self.data.clear();
        self.changes.clear();
        self.index.clear();
        self.indexed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_hash::FxBuildHasher;
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    #[test]
    fn the_last_change_of_a_key_is_found() {
        let mut batch = Batch::new();
        batch.put(&[b"a", b"b"], &[b"1", b"2"]);
        assert_eq!(batch.find(b"ab"), Some(Some(&b"12"[..])));
        assert_eq!(batch.find(b"a"), None);
        batch.remove(&[b"ab"]);
        assert_eq!(batch.find(b"ab"), Some(None));
        batch.put(&[b"ab"], &[b""]);
        assert_eq!(batch.find(b"ab"), Some(Some(&b""[..])));
        let changes: Vec<_> = batch.iter().collect();
        assert_eq!(changes, [(&b"ab"[..], Some(&b"12"[..])), (b"ab", None), (b"ab", Some(b""))]);
    }

    #[test]
    fn an_emptied_batch_knows_nothing() {
        let mut batch = Batch::new();
        batch.put(&[b"k"], &[b"v"]);
        assert!(batch.find(b"k").is_some());
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.find(b"k"), None);
        batch.put(&[b"k"], &[&vec![7; CAPACITY_KEPT + 1]]);
        batch.clear();
        assert_eq!((batch.count(), batch.size(), batch.find(b"k")), (0, 0, None));
    }

    /// Looking each of these keys up before it is written took a hash map 20 billion comparisons. No clock is looked at: with
    /// such a map this test takes minutes.
    #[test]
    fn n9_keys_that_collide_under_a_known_hash_cost_a_batch_no_more_than_others() {
        const COUNT: u64 = 200_000;
        /// What `rustc_hash` combines the last 16 bytes of such a key with: it multiplies by zero, whatever else the key holds.
        const SECOND_SEED: u64 = 0x1319_8a2e_0370_7344;
        let key = |number: u64| {
            let parts = [number.to_be_bytes(), [b'k'; 8], SECOND_SEED.to_le_bytes(), [b'k'; 8]];
            parts.concat()
        };
        let hashes: BTreeSet<u64> = (0..1_000).map(|number| FxBuildHasher.hash_one(&*key(number))).collect();
        assert_eq!(hashes.len(), 1, "the keys collide");
        let mut batch = Batch::new();
        for number in 0..COUNT {
            assert_eq!(batch.find(&key(number)), None);
            batch.put(&[&key(number)], &[b"v"]);
        }
        assert!((0..COUNT).all(|number| batch.find(&key(number)) == Some(Some(b"v"))));
    }
}
