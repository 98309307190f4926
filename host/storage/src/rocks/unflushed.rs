//! Rows that no flush has written yet: the newest ones, those that snapshots hold, and those of a flush under way.
//!
//! ```text
//! recent      written to
//! layers      what `recent` was when a snapshot was taken, newest first; never written to again
//! flushing    all of these when the last flush began, newest first
//! ```
//!
//! A younger row hides an older one. A snapshot holds all three as they were, and costs no copy of a row; a small layer is laid over the
//! one below it when the next one comes, so that they stay few. Without snapshots there is no layer.
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
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

/// Layers of up to so many rows together become one, which takes some milliseconds at most. A key is looked for in each layer.
const LAYER_ROWS_MAX: usize = 32_768;
/// What a row takes in memory beside its key and value, bytes: keys, lengths and its share of the tree's nodes.
const ROW_OVERHEAD: u64 = 112;

/// Rows in key order; `None` removes the row below.
pub(super) type Rows = BTreeMap<Key, Option<Bytes>>;

/// A key whose first bytes lie in the tree's nodes, so that most comparisons follow no pointer.
#[derive(Clone, Debug)]
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

/// Rows of several ages, the youngest first: those of a flush, or of a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers(Vec<Arc<Rows>>);

impl Layers {
    /// What is known of `key` here: `Some(None)` = it is removed, `None` = ask the database.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        let wanted: &dyn AsKey = &Wanted::new(key);
        self.0.iter().find_map(|rows| rows.get(wanted)).map(Option::as_ref)
    }

    /// The rows of `start..end` in key order, by layer.
    pub(super) fn ranges(&self, start: &[u8], end: Option<&[u8]>) -> Vec<Range<'_, Key, Option<Bytes>>> {
        self.0.iter().map(|rows| range(rows, start, end)).collect()
    }

    /// Every row once, the youngest of each key, in key order.
    pub(super) fn for_each<E>(&self, mut visit: impl FnMut(&Key, Option<&Bytes>) -> Result<(), E>) -> Result<(), E> {
        if let [rows] = &self.0[..] {
            return rows.iter().try_for_each(|(key, value)| visit(key, value.as_ref()));
        }
        let mut rest: Vec<_> = self.0.iter().map(|rows| rows.iter().peekable()).collect();
        while let Some(first) = rest.iter_mut().filter_map(|rows| rows.peek().map(|(key, _)| *key)).min() {
            let of_first = rest.iter_mut().filter_map(|rows| rows.next_if(|(key, _)| *key == first));
            // All are taken, and the youngest of them counts.
            let rows: Vec<_> = of_first.collect();
            if let Some((key, value)) = rows.first() {
                visit(key, value.as_ref())?;
            }
        }
        Ok(())
    }

    /// The same rows in one layer, for those that are looked at for long. Takes its time if there are several.
    pub(super) fn together(&self) -> Self {
        if self.0.len() <= 1 {
            return self.clone();
        }
        let mut rows = Vec::with_capacity(self.count());
        let Ok(()) = self.for_each(|key, value| {
            rows.push((key.clone(), value.cloned()));
            Ok::<(), Infallible>(())
        });
        Self(vec![Arc::new(rows.into_iter().collect())])
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn count(&self) -> usize {
        self.0.iter().map(|rows| rows.len()).sum()
    }

    /// Lays `rows` over the others. Small layers become one with it; returns the bytes of those rows that nobody can see any more.
    fn lay(&mut self, mut rows: Rows) -> u64 {
        let mut hidden = 0;
        while let Some(below) = self.0.first()
            && below.len() <= 2 * rows.len()
            && below.len() + rows.len() <= LAYER_ROWS_MAX
        {
            let below = self.0.remove(0);
            let mut all = Arc::try_unwrap(below).unwrap_or_else(|shared| Rows::clone(&shared));
            for (key, value) in rows {
                let size = key.bytes.len();
                hidden += all.insert(key, value).map_or(0, |old| row_size(size, old.as_deref()));
            }
            rows = all;
        }
        self.0.insert(0, Arc::new(rows));
        hidden
    }
}

fn row_size(key_size: usize, value: Option<&[u8]>) -> u64 {
    (key_size + value.map_or(0, <[u8]>::len)) as u64 + ROW_OVERHEAD
}

fn range<'a>(rows: &'a Rows, start: &[u8], end: Option<&[u8]>) -> Range<'a, Key, Option<Bytes>> {
    let (first, last) = (Wanted::new(start), end.map(Wanted::new));
    let bounds: (Bound<&dyn AsKey>, Bound<&dyn AsKey>) = (
        Bound::Included(&first),
        match &last {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        },
    );
    rows.range::<dyn AsKey, _>(bounds)
}

/// The rows of one database that it does not have yet.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    recent: Rows,
    recent_bytes: u64,
    layers: Layers,
    layer_bytes: u64,
    /// Rows that a flush is writing, or that the last one failed to write. Older than the others.
    flushing: Layers,
    flushing_bytes: u64,
}

impl Unflushed {
    /// Takes all changes of `batch`.
    pub(super) fn write(&mut self, batch: &Batch) {
        for (key, value) in batch.iter() {
            self.recent_bytes += row_size(key.len(), value);
            let replaced = self.recent.insert(Key::new(key), value.map(Bytes::copy_from_slice));
            if let Some(old) = replaced {
                self.recent_bytes -= row_size(key.len(), old.as_deref());
            }
        }
    }

    /// What is known of `key` here: `Some(None)` = it is removed, `None` = ask the database.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        let wanted: &dyn AsKey = &Wanted::new(key);
        let recent = self.recent.get(wanted).map(Option::as_ref);
        recent.or_else(|| self.layers.get(key)).or_else(|| self.flushing.get(key))
    }

    /// The rows of `start..end` in key order, newest and older ones.
    pub(super) fn ranges(&self, start: &[u8], end: Option<&[u8]>) -> Vec<Range<'_, Key, Option<Bytes>>> {
        let mut ranges = vec![range(&self.recent, start, end)];
        ranges.extend(self.layers.ranges(start, end));
        ranges.extend(self.flushing.ranges(start, end));
        ranges
    }

    /// All rows as they are now.
    pub(super) fn snapshot(&mut self) -> Layers {
        self.freeze();
        Layers(self.layers.0.iter().chain(&self.flushing.0).cloned().collect())
    }

    /// `recent` becomes a layer.
    fn freeze(&mut self) {
        if !self.recent.is_empty() {
            let hidden = self.layers.lay(std::mem::take(&mut self.recent));
            self.layer_bytes += std::mem::take(&mut self.recent_bytes);
            self.layer_bytes -= hidden;
        }
    }

    /// What the next flush has to write: what the last one failed to, or else everything there is. It goes on being read
    /// here until [`Unflushed::forget_flushed`]. `None`: nothing.
    pub(super) fn begin_flush(&mut self) -> Option<Layers> {
        if self.flushing.is_empty() {
            self.freeze();
            self.flushing = std::mem::take(&mut self.layers);
            self.flushing_bytes = std::mem::take(&mut self.layer_bytes);
        }
        Some(self.flushing.clone()).filter(|rows| !rows.is_empty())
    }

    /// The database has what [`Unflushed::begin_flush`] gave. Returns its bytes.
    pub(super) fn forget_flushed(&mut self) -> u64 {
        self.flushing = Layers::default();
        std::mem::take(&mut self.flushing_bytes)
    }

    /// Whether a flush is under way or has failed.
    pub(super) fn is_flushing(&self) -> bool {
        !self.flushing.is_empty()
    }

    /// Bytes in memory, roughly. What only snapshots hold does not count.
    pub(super) const fn bytes(&self) -> u64 {
        self.recent_bytes + self.layer_bytes + self.flushing_bytes
    }

    /// Changes of rows. A row that is here twice counts twice.
    pub(super) fn count(&self) -> u64 {
        (self.recent.len() + self.layers.count() + self.flushing.count()) as u64
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
        assert!(Arc::ptr_eq(&first.0[0], &unflushed.begin_flush().expect("the same again").0[0]));
        assert_eq!(unflushed.count(), 2);
        unflushed.forget_flushed();
        assert_eq!(unflushed.begin_flush().expect("the newer row").count(), 1);
        unflushed.forget_flushed();
        assert_eq!((unflushed.count(), unflushed.bytes(), unflushed.get(b"k")), (0, 0, None));
    }

    fn one(key: u64, value: u64) -> Batch {
        let mut batch = Batch::new();
        batch.put(&[&key.to_be_bytes()], &[&value.to_be_bytes()]);
        batch
    }

    #[test]
    fn a_snapshot_stays_as_it_was_and_few_layers_hold_the_rows_of_many() {
        let mut unflushed = Unflushed::default();
        let value = |layers: &Layers, key: u64| {
            let row = layers.get(&key.to_be_bytes()).flatten();
            row.map(|row| u64::from_be_bytes(row[..].try_into().expect("a number")))
        };
        let mut snapshots = Vec::new();
        for round in 0..3_000 {
            unflushed.write(&one(round % 700, round));
            snapshots.push(unflushed.snapshot());
            if round == 1_000 {
                unflushed.begin_flush().expect("rows");
            }
            if round == 2_000 {
                unflushed.forget_flushed();
            }
        }
        for (round, snapshot) in (0u64..).zip(&snapshots).filter(|(round, _)| !(2_000..).contains(round)) {
            for key in (0..700).step_by(50).filter(|key| *key <= round) {
                let newest = round - (round - key) % 700;
                assert_eq!(value(snapshot, key), Some(newest), "key {key} after round {round}");
            }
        }
        let most = snapshots.iter().map(|snapshot| snapshot.0.len()).max();
        assert!(most <= Some(26), "{most:?} layers");
        drop(snapshots);
        let all = unflushed.begin_flush().expect("rows");
        let mut seen = Vec::new();
        let visited: Result<(), ()> = all.for_each(|key, value| {
            seen.push((key.bytes().to_vec(), value.cloned()));
            Ok(())
        });
        visited.expect("visits");
        assert_eq!(seen.len(), 700);
        assert!(seen.is_sorted_by(|one, other| one.0 < other.0));
        assert!(seen.iter().all(|(key, row)| all.get(key) == Some(row.as_ref())));
    }

    /// Somebody writes some thousand rows, has a snapshot taken, and again: a key is looked for in few trees all the same, and in one of
    /// those that are kept after the flush.
    #[test]
    fn n4q_snapshots_between_many_rows_leave_few_layers() {
        const ROUNDS: u64 = 120;
        const EACH: u64 = 2_100;
        let mut unflushed = Unflushed::default();
        for round in 0..ROUNDS {
            let mut batch = Batch::new();
            for key in 0..EACH {
                // A tenth of them replaces a row of the round before.
                let key = round * EACH + key - if key < EACH / 10 && round > 0 { EACH } else { 0 };
                batch.put(&[&key.to_be_bytes()], &[&round.to_be_bytes()]);
            }
            unflushed.write(&batch);
            drop(unflushed.snapshot());
        }
        let layers = unflushed.begin_flush().expect("rows");
        assert!(layers.0.len() <= 24, "{} layers", layers.0.len());
        let together = layers.together();
        assert_eq!(together.0.len(), 1);
        for key in (0..ROUNDS * EACH).step_by(97) {
            assert_eq!(together.get(&key.to_be_bytes()), layers.get(&key.to_be_bytes()), "key {key}");
        }
        let count = |layers: &Layers| {
            let mut count = 0;
            let Ok(()) = layers.for_each(|_, _| {
                count += 1;
                Ok::<(), Infallible>(())
            });
            count
        };
        assert_eq!((count(&together), together.count()), (count(&layers), count(&layers)));
    }

    #[test]
    fn n2_rows_that_layers_hide_do_not_count() {
        let mut unflushed = Unflushed::default();
        for round in 0..1_000 {
            unflushed.write(&one(7, round));
            drop(unflushed.snapshot());
        }
        assert_eq!(unflushed.bytes(), row_size(8, Some(&[0; 8])));
    }
}
