//! Rows that no flush has written yet: the newest ones, and those of a flush under way.
//!
//! RocksDB's own memtables are not used. The group's log makes writes durable, so that a database needs rows only when
//! they are flushed, and then sorted and all at once: as one table file, which it takes over as it is. A row costs one
//! insertion here instead of one into a skip list whose search misses the processor's cache at every level, and a second
//! walk through that list when it is flushed.

use crate::batch::Batch;
use bytes::Bytes;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;
use std::sync::Arc;

/// What a row takes in memory beside its key and value, bytes: keys, lengths and its share of the tree's nodes.
const ROW_OVERHEAD: u64 = 112;

/// Rows in key order; `None` removes the row below.
pub(super) type Rows = BTreeMap<Key, Option<Bytes>>;

/// A key whose first bytes lie in the tree's nodes, so that most comparisons follow no pointer.
#[derive(Debug)]
pub(super) struct Key {
    head: u128,
    bytes: Box<[u8]>,
}

/// What a stored key and one that is looked for have in common.
trait AsKey {
    fn head(&self) -> u128;
    fn bytes(&self) -> &[u8];
}

/// A key that is looked for.
struct Wanted<'a> {
    head: u128,
    bytes: &'a [u8],
}

/// The first 16 bytes as a number, missing ones as zeros: where the numbers of two keys differ, they are ordered as the
/// keys are. Enough for the whole key of a result, and for the hash and more of a record's.
fn head(bytes: &[u8]) -> u128 {
    match bytes.first_chunk() {
        Some(first) => u128::from_be_bytes(*first),
        None => {
            let mut first = [0; 16];
            first[..bytes.len()].copy_from_slice(bytes);
            u128::from_be_bytes(first)
        }
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Self {
        Self { head: head(bytes), bytes: bytes.into() }
    }

    /// The whole key.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsKey for Key {
    fn head(&self) -> u128 {
        self.head
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<'a> Wanted<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { head: head(bytes), bytes }
    }
}

impl AsKey for Wanted<'_> {
    fn head(&self) -> u128 {
        self.head
    }

    fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

fn compare<L: AsKey + ?Sized, R: AsKey + ?Sized>(left: &L, right: &R) -> Ordering {
    left.head().cmp(&right.head()).then_with(|| left.bytes().cmp(right.bytes()))
}

impl<'a> Borrow<dyn AsKey + 'a> for Key {
    fn borrow(&self) -> &(dyn AsKey + 'a) {
        self
    }
}

impl PartialEq for dyn AsKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        compare(self, other).is_eq()
    }
}

impl Eq for dyn AsKey + '_ {}

impl PartialOrd for dyn AsKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn AsKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self, other)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self, other)
    }
}

/// The rows of one database that it does not have yet.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    recent: Rows,
    recent_bytes: u64,
    /// Rows that a flush is writing, or that the last one failed to write. Older than `recent`.
    flushing: Option<Arc<Rows>>,
    flushing_bytes: u64,
}

impl Unflushed {
    /// Takes all changes of `batch`.
    pub(super) fn write(&mut self, batch: &Batch) {
        for (key, value) in batch.iter() {
            let size = (key.len() + value.map_or(0, <[u8]>::len)) as u64 + ROW_OVERHEAD;
            self.recent_bytes += size;
            let replaced = self.recent.insert(Key::new(key), value.map(Bytes::copy_from_slice));
            if let Some(old) = replaced {
                let old_size = (key.len() + old.map_or(0, |old| old.len())) as u64 + ROW_OVERHEAD;
                self.recent_bytes -= old_size;
            }
        }
    }

    /// What is known of `key` here: `Some(None)` = it is removed, `None` = ask the database.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        let wanted: &dyn AsKey = &Wanted::new(key);
        let row = self.recent.get(wanted).or_else(|| self.flushing.as_ref()?.get(wanted))?;
        Some(row.as_ref())
    }

    /// The rows of `start..end` in key order, newest and older ones.
    pub(super) fn range(&self, start: &[u8], end: Option<&[u8]>) -> [Range<'_, Key, Option<Bytes>>; 2] {
        let (first, last) = (Wanted::new(start), end.map(Wanted::new));
        let bounds: (Bound<&dyn AsKey>, Bound<&dyn AsKey>) = (
            Bound::Included(&first),
            match &last {
                Some(last) => Bound::Excluded(last),
                None => Bound::Unbounded,
            },
        );
        static NOTHING: Rows = Rows::new();
        let flushing = self.flushing.as_deref().unwrap_or(&NOTHING);
        [self.recent.range::<dyn AsKey, _>(bounds), flushing.range::<dyn AsKey, _>(bounds)]
    }

    /// What the next flush has to write: what the last one failed to, or else everything there is. It goes on being read
    /// here until [`Unflushed::forget_flushed`]. `None`: nothing.
    pub(super) fn begin_flush(&mut self) -> Option<Arc<Rows>> {
        if self.flushing.is_none() && !self.recent.is_empty() {
            self.flushing = Some(Arc::new(std::mem::take(&mut self.recent)));
            self.flushing_bytes = std::mem::take(&mut self.recent_bytes);
        }
        self.flushing.clone()
    }

    /// The database has what [`Unflushed::begin_flush`] gave. Returns it, to be dropped where that may take its time.
    pub(super) fn forget_flushed(&mut self) -> Option<Arc<Rows>> {
        self.flushing_bytes = 0;
        self.flushing.take()
    }

    /// Whether a flush is under way or has failed.
    pub(super) const fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Bytes in memory, roughly.
    pub(super) fn bytes(&self) -> u64 {
        self.recent_bytes + self.flushing_bytes
    }

    /// Changes of rows. A row that is here twice counts twice.
    pub(super) fn count(&self) -> u64 {
        (self.recent.len() + self.flushing.as_ref().map_or(0, |rows| rows.len())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_their_bytes() {
        let zeros = [0; 17];
        let full = [255; 17];
        let text = b"abcdefghijklmnopqr";
        let mut keys: Vec<&[u8]> = vec![b"a\0", b"b", b"abcdefghijklmnoq", b"abcdefghijklmnopr"];
        keys.extend((0..=17).flat_map(|size| [&zeros[..size], &full[..size], &text[..size]]));
        for left in &keys {
            for right in &keys {
                assert_eq!(Key::new(left).cmp(&Key::new(right)), left.cmp(right), "{left:?} {right:?}");
                assert_eq!(compare(&Key::new(left), &Wanted::new(right)), left.cmp(right), "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn a_failed_flush_keeps_its_rows_below_newer_ones() {
        let batch = |value: &[u8]| {
            let mut batch = Batch::new();
            batch.put(&[b"k"], &[value]);
            batch
        };
        let mut unflushed = Unflushed::default();
        assert!(unflushed.begin_flush().is_none());
        unflushed.write(&batch(b"1"));
        let first = unflushed.begin_flush().expect("a row");
        unflushed.write(&batch(b"2"));
        assert_eq!(unflushed.get(b"k"), Some(Some(&Bytes::from_static(b"2"))));
        assert!(Arc::ptr_eq(&first, &unflushed.begin_flush().expect("the same again")));
        assert_eq!(unflushed.count(), 2);
        unflushed.forget_flushed();
        assert_eq!(unflushed.begin_flush().expect("the newer row").len(), 1);
        unflushed.forget_flushed();
        assert_eq!((unflushed.count(), unflushed.bytes(), unflushed.get(b"k")), (0, 0, None));
    }
}
