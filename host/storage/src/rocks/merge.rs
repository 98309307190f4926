//! A scan over unflushed rows and a database's own, as one sequence of rows in key order or against it.

use super::read_failed;
use super::unflushed::Key;
use crate::engine::{Direction, EngineError, KeyRange, RowVisitor};
use bytes::Bytes;
use rocksdb::{DBRawIterator, ReadOptions};
use std::cmp::Ordering;
use std::collections::btree_map::Range;
use std::path::Path;

/// How much a bulk scan reads ahead, bytes.
const BULK_READAHEAD: usize = 1 << 20;

/// Shows `visit` rows until it breaks: those of `layers`, the youngest first, laid over those of the database in `dir`. Passes so many rows
/// of the layers that are removed, and after one more ends with [`EngineError::NotAtOnce`].
pub(super) fn scan(
    dir: &Path,
    layers: Vec<Range<'_, Key, Option<Bytes>>>,
    mut stored: DBRawIterator<'_>,
    direction: Direction,
    mut removed_max: u64,
    visit: RowVisitor<'_>,
) -> Result<(), EngineError> {
    let layers = layers.into_iter().map(|rows| Overlay::new(rows, direction));
    let mut layers: Vec<Overlay<'_>> = layers.filter(|layer| layer.current.is_some()).collect();
    match direction {
        Direction::Ascending => stored.seek_to_first(),
        Direction::Descending => stored.seek_to_last(),
    }
    loop {
        if !stored.valid() {
            // Where the database could not go on, nobody knows what follows.
            stored.status().map_err(|error| read_failed(dir, error))?;
        }
        let layered = layers.iter().filter_map(Overlay::key);
        let layered = layered.min_by(|left, right| in_direction(left.cmp(right), direction));
        let (first, order) = match (layered, stored.key()) {
            (None, None) => return Ok(()),
            (Some(layered), None) => (layered, Ordering::Less),
            (Some(layered), Some(stored)) if layered == stored => (layered, Ordering::Equal),
            (Some(layered), Some(stored)) if in_direction(layered.cmp(stored), direction).is_lt() => {
                (layered, Ordering::Less)
            }
            (_, Some(_)) => {
                if stored.item().is_some_and(|(key, value)| visit(key, value).is_break()) {
                    return Ok(());
                }
                step(&mut stored, direction);
                continue;
            }
        };
        let youngest = layers.iter().find(|layer| layer.key() == Some(first));
        match youngest.and_then(Overlay::value) {
            Some(value) if visit(first, value).is_break() => return Ok(()),
            Some(_) => {}
            None if removed_max == 0 => return Err(EngineError::NotAtOnce),
            None => removed_max -= 1,
        }
        if order.is_eq() {
            step(&mut stored, direction);
        }
        layers.iter_mut().filter(|layer| layer.key() == Some(first)).for_each(Overlay::advance);
    }
}

fn step(stored: &mut DBRawIterator<'_>, direction: Direction) {
    match direction {
        Direction::Ascending => stored.next(),
        Direction::Descending => stored.prev(),
    }
}

fn in_direction(order: Ordering, direction: Direction) -> Ordering {
    match direction {
        Direction::Ascending => order,
        Direction::Descending => order.reverse(),
    }
}

/// How the database's own rows of `range` are read.
pub(super) fn options(range: KeyRange<'_>) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(range.start);
    if let Some(end) = range.end {
        options.set_iterate_upper_bound(end);
    }
    if range.is_bulk {
        options.fill_cache(false);
        options.set_readahead_size(BULK_READAHEAD);
    }
    options
}

/// Where a scan is in one of the maps of unflushed rows.
struct Overlay<'a> {
    rest: Range<'a, Key, Option<Bytes>>,
    direction: Direction,
    current: Option<(&'a Key, &'a Option<Bytes>)>,
}

impl<'a> Overlay<'a> {
    fn new(rest: Range<'a, Key, Option<Bytes>>, direction: Direction) -> Self {
        let mut overlay = Self { rest, direction, current: None };
        overlay.advance();
        overlay
    }

    fn advance(&mut self) {
        self.current = match self.direction {
            Direction::Ascending => self.rest.next(),
            Direction::Descending => self.rest.next_back(),
        };
    }

    fn key(&self) -> Option<&'a [u8]> {
        self.current.map(|(key, _)| key.bytes())
    }

    /// `None`: the row is removed.
    fn value(&self) -> Option<&'a [u8]> {
        self.current.and_then(|(_, value)| value.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::{Direction, Engine, Engines, KeyRange};
    use crate::rocks::{RocksEngine, RocksEngines, RocksSettings};
    use crate::{Batch, EngineError};
    use hedgerow_env::os::OsDisk;
    use hedgerow_types::random::Random;
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn write(engine: &RocksEngine, model: &mut Model, random: &mut Random) {
        let mut batch = Batch::new();
        for _ in 0..40 {
            let key = format!("key{:02}", random.below(60)).into_bytes();
            let value = random.next_u64().to_be_bytes();
            if random.below(3) == 0 {
                batch.remove(&[&key]);
                model.remove(&key);
            } else {
                batch.put(&[&key], &[&value]);
                model.insert(key, value.to_vec());
            }
        }
        engine.write(&batch).expect("writes");
    }

    fn check(engine: &RocksEngine, model: &Model) -> Result<(), EngineError> {
        for (start, end) in [("", None), ("key1", Some("key4")), ("key33", Some("key34")), ("l", None)] {
            let range = KeyRange { start: start.as_bytes(), end: end.map(str::as_bytes), is_bulk: false };
            let is_inside = |key: &[u8]| key >= range.start && range.end.is_none_or(|end| key < end);
            let mut expected: Vec<_> = model.iter().filter(|(key, _)| is_inside(key)).collect();
            for direction in [Direction::Ascending, Direction::Descending] {
                let mut seen = Vec::new();
                engine.scan(range, direction, &mut |key, value| {
                    seen.push((key.to_vec(), value.to_vec()));
                    ControlFlow::Continue(())
                })?;
                assert!(seen.iter().map(|(key, value)| (key, value)).eq(expected.iter().copied()), "{start} {end:?}");
                expected.reverse();
            }
        }
        for key in 0..60 {
            let key = format!("key{key:02}").into_bytes();
            // Twice: the second time it may be found among the hot rows.
            for _ in 0..2 {
                assert_eq!(engine.get(&key)?.as_deref(), model.get(&key).map(Vec::as_slice));
            }
        }
        Ok(())
    }

    /// Rows of four ages: in the database, in a flush that has not ended, and newer ones; and copies of those that were read, or of the
    /// last flushes, for which there is room, or for a few, or for none.
    #[test]
    fn younger_rows_hide_older_ones_in_every_place() {
        for write_buffer_size in [RocksSettings::default().write_buffer_size, 64 << 10, 0] {
            young_rows_hide_old_ones(RocksSettings { write_buffer_size, ..RocksSettings::default() });
        }
    }

    fn young_rows_hide_old_ones(settings: RocksSettings) {
        let root = tempfile::tempdir().expect("a directory");
        let engines = RocksEngines::new(&settings).expect("engines");
        let engine = RocksEngine::open(&engines.shared, &OsDisk, &root.path().join("e")).expect("opens");
        let (mut model, mut random) = (Model::new(), Random::new(7));
        for _ in 0..20 {
            write(&engine, &mut model, &mut random);
            check(&engine, &model).expect("reads");
            engine.flush().expect("flushes");
            check(&engine, &model).expect("reads");
            write(&engine, &mut model, &mut random);
            let rows = engine.state_mut().unflushed.begin_flush().expect("rows");
            check(&engine, &model).expect("reads");
            write(&engine, &mut model, &mut random);
            check(&engine, &model).expect("reads");
            drop(rows);
        }
        drop(engine);
        let engine = engines.open(&root.path().join("e")).expect("opens");
        assert_eq!(engine.stats().unflushed_bytes, 0, "the last handle flushes");
        assert!(model.iter().all(|(key, value)| engine.get(key).expect("reads").as_deref() == Some(value)));
    }
}
