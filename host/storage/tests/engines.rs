//! The suite that every engine passes: an ordered map with atomic batches, flushes that last and checkpoints.
#![allow(clippy::disallowed_methods, reason = "a test")]

mod common;

use common::{Fixture, Memory, Rocks};
use hedgerow_storage::{Batch, Direction, Engine, EngineError, KeyRange};
use std::ops::ControlFlow;
use std::sync::Arc;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn batch(changes: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(&[key.as_bytes()], &[value.as_bytes()]),
            None => batch.remove(&[key.as_bytes()]),
        }
    }
    batch
}

fn rows(engine: &dyn Engine, start: &str, end: Option<&str>, direction: Direction, count_max: usize) -> Rows {
    let mut rows = Vec::new();
    let range = KeyRange { start: start.as_bytes(), end: end.map(str::as_bytes), is_bulk: false };
    let visit = &mut |key: &[u8], value: &[u8]| {
        rows.push((key.to_vec(), value.to_vec()));
        if rows.len() == count_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    engine.scan(range, direction, visit).expect("scans");
    rows
}

fn all(engine: &dyn Engine) -> Rows {
    rows(engine, "", None, Direction::Ascending, usize::MAX)
}

fn keys(rows: &Rows) -> Vec<&str> {
    rows.iter().map(|(key, _)| std::str::from_utf8(key).expect("text")).collect()
}

fn data_row(expire_at: u32) -> Vec<u8> {
    [&[1][..], &expire_at.to_be_bytes(), b"value"].concat()
}

fn later_changes_of_a_batch_win<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    engine.write(&batch(&[("a", Some("1")), ("b", Some("1"))])).expect("writes");
    engine.write(&batch(&[("a", Some("2")), ("a", None), ("b", None), ("b", Some("3")), ("c", None)])).expect("writes");
    assert_eq!(engine.get(b"a").expect("reads"), None);
    assert_eq!(engine.get(b"b").expect("reads").as_deref(), Some(&b"3"[..]));
    assert_eq!(all(&*engine), [(b"b".to_vec(), b"3".to_vec())]);
}

fn a_scan_stays_in_its_range_both_ways<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    engine.write(&batch(&["a", "b", "ba", "c", "d"].map(|key| (key, Some(""))))).expect("writes");
    let scan = |start, end, direction, max| rows(&*engine, start, end, direction, max);
    assert_eq!(keys(&scan("b", Some("d"), Direction::Ascending, 9)), ["b", "ba", "c"]);
    assert_eq!(keys(&scan("b", Some("d"), Direction::Descending, 9)), ["c", "ba", "b"]);
    assert_eq!(keys(&scan("b", Some("d"), Direction::Descending, 2)), ["c", "ba"]);
    assert_eq!(keys(&scan("aa", None, Direction::Ascending, 2)), ["b", "ba"]);
    assert_eq!(keys(&scan("c", None, Direction::Descending, 9)), ["d", "c"]);
    assert!(scan("c", Some("c"), Direction::Ascending, 9).is_empty());
    assert!(scan("d", Some("a"), Direction::Descending, 9).is_empty());
}

/// Whatever happens to the engine meanwhile. One in two rounds is flushed, some while older rows are still in memory.
fn a_snapshot_stays_what_it_was<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    let mut random = hedgerow_types::random::Random::new(3);
    let mut snapshots = Vec::new();
    for round in 0..60 {
        let changes: Vec<(String, String)> =
            (0..20).map(|_| (format!("k{:02}", random.below(40)), format!("{round}"))).collect();
        let changes: Vec<(&str, Option<&str>)> = changes
            .iter()
            .map(|(key, value)| (key.as_str(), (!random.chance(1, 4)).then_some(value.as_str())))
            .collect();
        engine.write(&batch(&changes)).expect("writes");
        if round % 2 == 1 {
            snapshots.push((engine.snapshot().expect("a snapshot"), all(&*engine)));
        }
        if random.chance(1, 2) {
            engine.flush().expect("flushes");
        }
        if round == 40 {
            engine.compact().expect("compacts");
        }
    }
    for (snapshot, expected) in snapshots {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut seen = Vec::new();
            let range = KeyRange { start: b"", end: None, is_bulk: false };
            let visit = &mut |key: &[u8], value: &[u8]| {
                seen.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            };
            snapshot.scan(range, direction, visit).expect("scans");
            if direction == Direction::Descending {
                seen.reverse();
            }
            assert_eq!(seen, expected);
        }
        let asked: Vec<Vec<u8>> = (0..45).rev().map(|key| format!("k{key:02}").into_bytes()).collect();
        let row_of =
            |key: &Vec<u8>| expected.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone().into());
        assert_eq!(snapshot.get_all(&asked).expect("reads"), asked.iter().map(row_of).collect::<Vec<_>>());
        for key in 0..40 {
            let key = format!("k{key:02}").into_bytes();
            let row = expected.iter().find(|(known, _)| *known == key).map(|(_, value)| &value[..]);
            assert_eq!(snapshot.get(&key).expect("reads").as_deref(), row);
        }
    }
}

fn a_flush_survives_a_crash_and_the_rest_is_lost<F: Fixture>() {
    let mut fixture = F::new();
    let dir = fixture.root().join("deep/er/e");
    let engine = fixture.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("a", Some("1"))])).expect("writes");
    engine.flush().expect("flushes");
    engine.write(&batch(&[("a", Some("2")), ("b", Some("2"))])).expect("writes");
    let dir = fixture.crash(&dir, engine);
    let engine = fixture.engines().open(&dir).expect("opens");
    assert_eq!(all(&*engine), [(b"a".to_vec(), b"1".to_vec())]);
    engine.write(&batch(&[("a", None)])).expect("writes");
    engine.flush().expect("flushes");
    let dir = fixture.crash(&dir, engine);
    let engine = fixture.engines().open(&dir).expect("opens");
    assert!(all(&*engine).is_empty());
}

fn a_checkpoint_is_a_durable_engine_of_its_own<F: Fixture>() {
    let mut fixture = F::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("a", Some("1"))])).expect("writes");
    let into = fixture.root().join("checkpoints/1");
    engine.checkpoint(&into).expect("a checkpoint");
    assert!(engine.checkpoint(&into).is_err(), "the place is taken");
    engine.write(&batch(&[("a", Some("2"))])).expect("writes");
    let names = fixture.engines().disk().list(&into).expect("its files");
    assert!(!names.is_empty() && names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
    let dir = fixture.crash(&dir, engine);
    let copy = fixture.engines().open(&into).expect("opens");
    assert_eq!(all(&*copy), [(b"a".to_vec(), b"1".to_vec())]);
    copy.write(&batch(&[("c", Some("3"))])).expect("writes");
    let engine = fixture.engines().open(&dir).expect("opens");
    assert_eq!(engine.get(b"c").expect("reads"), None);
}

/// Pitfall C15: a checkpoint takes the place of the storage, and what was read lately of it is not there any more.
fn c15_no_row_outlives_the_storage_that_it_was_read_from<F: Fixture>() {
    let fixture = F::new();
    let (dir, other, received) = (fixture.root().join("e"), fixture.root().join("o"), fixture.root().join("received"));
    for (place, value) in [(&other, "new"), (&dir, "old")] {
        let engine = fixture.engines().open(place).expect("opens");
        engine.write(&batch(&[("dk", Some(value)), ("mk", Some(value))])).expect("writes");
        engine.flush().expect("flushes");
        for key in [b"dk", b"mk"] {
            assert_eq!(engine.get(key).expect("reads").as_deref(), Some(value.as_bytes()));
        }
        if place == &other {
            engine.checkpoint(&received).expect("a checkpoint");
        }
    }
    let disk = fixture.engines().disk();
    disk.remove_dir_all(&dir).expect("removes");
    disk.rename(&received, &dir).expect("renames");
    let engine = fixture.engines().open(&dir).expect("opens");
    for key in [b"dk", b"mk"] {
        assert_eq!(engine.get(key).expect("reads").as_deref(), Some(&b"new"[..]));
    }
}

/// Pitfall C16: storage is removed and made anew in its place, as for a replica that is lost or a table that is dropped, while
/// somebody still holds what was read of it: nothing of it is served.
fn c16_nothing_outlives_a_removed_storage<F: Fixture>() {
    let fixture = F::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("dk", Some("flushed")), ("sk", Some("flushed"))])).expect("writes");
    engine.flush().expect("flushes");
    let kept = engine.get(b"dk").expect("reads");
    assert!(kept.is_some() && kept == engine.get(b"dk").expect("reads again"));
    engine.write(&batch(&[("du", Some("unflushed"))])).expect("writes");
    drop(engine);
    fixture.engines().disk().remove_dir_all(&dir).expect("removes");
    let engine = fixture.engines().open(&dir).expect("opens");
    for key in [b"dk", b"sk", b"du"] {
        assert_eq!(engine.get(key).expect("reads"), None);
    }
    assert_eq!(all(&*engine), []);
    // What is written after that is its own, and so is what was kept.
    engine.write(&batch(&[("dk", Some("later"))])).expect("writes");
    engine.flush().expect("flushes");
    assert_eq!(engine.get(b"dk").expect("reads").as_deref(), Some(&b"later"[..]));
    assert_eq!(kept.as_deref(), Some(&b"flushed"[..]));
}

fn compaction_drops_only_what_expired_by_the_floor<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    let mut changes = Batch::new();
    for expire_at in [0, 9, 10, 11] {
        changes.put(&[format!("d{expire_at:02}").as_bytes()], &[&data_row(expire_at)]);
        changes.put(&[format!("s{expire_at:02}").as_bytes()], &[&data_row(expire_at)]);
    }
    changes.put(&[b"d_odd"], &[b"short"]);
    engine.write(&changes).expect("writes");
    engine.compact().expect("compacts");
    assert_eq!(all(&*engine).len(), 9, "nothing goes without a floor");
    engine.set_expire_floor(10);
    engine.set_expire_floor(0);
    engine.compact().expect("compacts");
    assert_eq!(all(&*engine).len(), 9, "a floor can be taken back");
    engine.set_expire_floor(10);
    engine.compact().expect("compacts");
    assert_eq!(keys(&all(&*engine)), ["d00", "d11", "d_odd", "s00", "s09", "s10", "s11"]);
}

fn stats_follow_writes_and_flushes<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    let large = "x".repeat(300_000);
    engine.write(&batch(&[("a", Some(&large)), ("b", Some(&large))])).expect("writes");
    let before = engine.stats();
    assert_eq!(before.rows, 2);
    assert!(before.unflushed_bytes >= 600_000, "{before:?}");
    engine.flush().expect("flushes");
    let after = engine.stats();
    assert!(after.unflushed_bytes < 600_000 && after.disk_bytes > 0, "{after:?}");
}

fn readers_see_whole_batches_while_one_thread_writes<F: Fixture>() {
    let fixture = F::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    engine.write(&batch(&[("a", Some("0")), ("z", Some("0"))])).expect("writes");
    let writer = Arc::clone(&engine);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..300 {
                let round = round.to_string();
                writer.write(&batch(&[("a", Some(&round)), ("z", Some(&round))])).expect("writes");
            }
        });
        for _ in 0..300 {
            let rows = all(&*engine);
            assert_eq!(rows[0].1, rows[1].1);
        }
    });
}

common::suite! {
    later_changes_of_a_batch_win
    a_scan_stays_in_its_range_both_ways
    a_flush_survives_a_crash_and_the_rest_is_lost
    a_snapshot_stays_what_it_was
    a_checkpoint_is_a_durable_engine_of_its_own
    c15_no_row_outlives_the_storage_that_it_was_read_from
    c16_nothing_outlives_a_removed_storage
    compaction_drops_only_what_expired_by_the_floor
    stats_follow_writes_and_flushes
    readers_see_whole_batches_while_one_thread_writes
}

mod memory_faults {
    use super::*;

    const DIR: &str = "/data/e";

    #[test]
    fn a_failed_flush_says_so_and_the_old_content_stays() {
        let mut fixture = Memory::new();
        let dir = std::path::Path::new(DIR);
        let engine = fixture.engines().open(dir).expect("opens");
        engine.write(&batch(&[("a", Some("1"))])).expect("writes");
        engine.flush().expect("flushes");
        engine.write(&batch(&[("a", Some("2"))])).expect("writes");
        fixture.disk.set_full(true);
        assert!(engine.flush().is_err());
        assert!(engine.flush().is_err(), "a second try does not pretend");
        let dir = fixture.crash(dir, engine);
        let engine = fixture.engines().open(&dir).expect("opens");
        assert_eq!(all(&*engine), [(b"a".to_vec(), b"1".to_vec())]);
    }

    #[test]
    fn a_flipped_bit_is_damage() {
        let mut fixture = Memory::new();
        let dir = std::path::Path::new(DIR);
        let engine = fixture.engines().open(dir).expect("opens");
        engine.write(&batch(&[("a", Some("1"))])).expect("writes");
        engine.flush().expect("flushes");
        let dir = fixture.crash(dir, engine);
        fixture.disk.flip_byte(&dir.join("rows"), 29).expect("a byte");
        let error = fixture.engines().open(&dir).expect_err("refused");
        assert!(error.is_damage(), "{error}");
    }
}

#[test]
fn rocksdb_reports_a_damaged_table_as_damage() {
    let mut fixture = Rocks::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("a", Some(&"x".repeat(100_000)))])).expect("writes");
    engine.flush().expect("flushes");
    let dir = fixture.crash(&dir, engine);
    let table = std::fs::read_dir(&dir).expect("files").map(|file| file.expect("a file").path());
    let table = table.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "sst")).expect("a table");
    let mut content = std::fs::read(&table).expect("reads");
    content[100] ^= 1;
    std::fs::write(&table, content).expect("writes");
    // With caches of its own: the others have seen the table whole.
    let restarted = Rocks::new();
    let engine = restarted.engines().open(&dir).expect("opens");
    let error = engine.get(b"a").expect_err("refused");
    assert!(error.is_damage(), "{error}");
}

#[test]
fn rocksdb_reads_at_once_only_what_is_in_memory() {
    let mut fixture = Rocks::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("a", Some("1")), ("b", Some("2"))])).expect("writes");
    assert_eq!(engine.get_at_once(b"a").expect("unflushed").as_deref(), Some(&b"1"[..]));
    engine.flush().expect("flushes");
    let dir = fixture.crash(&dir, engine);
    let restarted = Rocks::new();
    let engine = restarted.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("c", Some("3"))])).expect("writes");
    let range = KeyRange { start: b"", end: None, is_bulk: false };
    let scan = |seen: &mut Vec<u8>| {
        engine.scan_at_once(range, Direction::Ascending, &mut |key, _| {
            seen.extend_from_slice(key);
            ControlFlow::Continue(())
        })
    };
    let mut seen = Vec::new();
    assert!(matches!(engine.get_at_once(b"a"), Err(EngineError::NotAtOnce)));
    assert!(matches!(scan(&mut seen), Err(EngineError::NotAtOnce)));
    assert_eq!(seen, b"", "what stands behind a row that is not known is not shown");
    assert_eq!(engine.get_at_once(b"c").expect("unflushed").as_deref(), Some(&b"3"[..]));
    // Another thread fetches it.
    let snapshot = engine.snapshot().expect("a snapshot");
    let keys = [b"c".to_vec(), b"a".to_vec()];
    let scan_then = |seen: &mut Vec<u8>| {
        snapshot.scan_at_once(range, Direction::Ascending, &mut |key, _| {
            seen.extend_from_slice(key);
            ControlFlow::Continue(())
        })
    };
    assert!(matches!(snapshot.get_all_at_once(&keys), Err(EngineError::NotAtOnce)));
    assert!(matches!(scan_then(&mut seen), Err(EngineError::NotAtOnce)));
    assert_eq!(snapshot.get_all_at_once(&keys[..1]).expect("unflushed")[0].as_deref(), Some(&b"3"[..]));
    assert_eq!(snapshot.get(b"a").expect("reads").as_deref(), Some(&b"1"[..]));
    assert_eq!(engine.get_at_once(b"a").expect("cached").as_deref(), Some(&b"1"[..]));
    scan(&mut seen).expect("cached");
    assert_eq!(seen, b"abc");
    let rows = snapshot.get_all_at_once(&keys).expect("cached");
    assert_eq!(rows.iter().flatten().map(|row| row[0]).collect::<Vec<_>>(), b"31");
    scan_then(&mut seen).expect("cached");
    assert_eq!(seen, b"abcabc");
    // Neither what was read since nor what is newer is part of it.
    engine.write(&batch(&[("a", Some("9")), ("d", Some("4"))])).expect("writes");
    assert_eq!(engine.get(b"a").expect("reads").as_deref(), Some(&b"9"[..]));
    engine.flush().expect("flushes");
    assert_eq!(snapshot.get_all_at_once(&keys[1..]).expect("cached")[0].as_deref(), Some(&b"1"[..]));
    // Rows of the last flushes are in memory, though no block of their table is.
    let later = engine.snapshot().expect("a snapshot");
    let rows = later.get_all_at_once(&[b"a".to_vec(), b"d".to_vec()]).expect("kept");
    assert_eq!(rows.iter().flatten().map(|row| row[0]).collect::<Vec<_>>(), b"94");
}

/// A filter says of one row in a hundred that a table may have it which is in an older one; where that table's block is not in memory, nobody
/// knows, and nothing is answered.
#[test]
fn n4f_rocksdb_knows_nothing_at_once_of_a_row_whose_block_is_elsewhere() {
    let mut fixture = Rocks::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    let value = "v".repeat(9_000);
    let keys: Vec<String> = (0..4_000).map(|row| format!("k{row:04}")).collect();
    for first in [1, 0] {
        let rows: Vec<_> = keys.iter().skip(first).step_by(2).map(|key| (key.as_str(), Some(value.as_str()))).collect();
        engine.write(&batch(&rows)).expect("writes");
        engine.flush().expect("flushes");
    }
    let dir = fixture.crash(&dir, engine);
    let restarted = Rocks::new();
    let engine = restarted.engines().open(&dir).expect("opens");
    let snapshot = engine.snapshot().expect("a snapshot");
    // What says where the rows are is in memory then, and most rows are not.
    snapshot.get(b"k0000").expect("reads");
    let mut known = 0;
    for key in keys.iter().skip(1).step_by(2) {
        match snapshot.get_all_at_once(&[key.clone().into_bytes()]) {
            Ok(rows) => {
                assert_eq!(rows[0].as_ref().map(|row| row.len()), Some(value.len()), "{key}");
                known += 1;
            }
            Err(error) => assert!(matches!(error, EngineError::NotAtOnce), "{key}: {error:?}"),
        }
    }
    assert!(known < keys.len() / 4, "{known} rows were in memory, and the test shows nothing");
}

/// Removed rows, in memory and in the database, take time as others do.
#[test]
fn rocksdb_passes_few_removed_rows_at_once() {
    let fixture = Rocks::new();
    let engine = fixture.engines().open(&fixture.root().join("e")).expect("opens");
    let keys: Vec<String> = (0..3_000).map(|row| format!("k{row:04}")).collect();
    let of = |value: Option<&'static str>| batch(&keys.iter().map(|key| (key.as_str(), value)).collect::<Vec<_>>());
    let range = KeyRange { start: b"", end: None, is_bulk: false };
    let scan = || engine.scan_at_once(range, Direction::Ascending, &mut |_, _| ControlFlow::Continue(()));
    engine.write(&of(Some("v"))).expect("writes");
    engine.flush().expect("flushes");
    assert_eq!(all(&*engine).len(), 3_000);
    scan().expect("all of them are there, and in the cache");
    engine.write(&of(None)).expect("writes");
    assert!(matches!(scan(), Err(EngineError::NotAtOnce)), "in memory");
    engine.flush().expect("flushes");
    assert!(all(&*engine).is_empty());
    assert!(matches!(scan(), Err(EngineError::NotAtOnce)), "in the database");
}

/// A row of the database that cannot be read is no reason to show those behind it.
#[test]
fn rocksdb_shows_nothing_behind_a_damaged_table() {
    let mut fixture = Rocks::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    let values: Vec<String> = (0..20).map(|row| format!("k{row:02}")).collect();
    let large = "x".repeat(10_000);
    let rows: Vec<(&str, Option<&str>)> = values.iter().map(|key| (key.as_str(), Some(large.as_str()))).collect();
    engine.write(&batch(&rows)).expect("writes");
    engine.flush().expect("flushes");
    let dir = fixture.crash(&dir, engine);
    let table = std::fs::read_dir(&dir).expect("files").map(|file| file.expect("a file").path());
    let table = table.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "sst")).expect("a table");
    let mut content = std::fs::read(&table).expect("reads");
    content[100_000] ^= 1;
    std::fs::write(&table, content).expect("writes");
    let restarted = Rocks::new();
    let engine = restarted.engines().open(&dir).expect("opens");
    engine.write(&batch(&[("k99", Some("behind"))])).expect("writes");
    let range = KeyRange { start: b"", end: None, is_bulk: false };
    let mut last = Vec::new();
    // A reader that is content with the first row that it is shown behind the damage.
    let result = engine.scan(range, Direction::Ascending, &mut |key, _| {
        last = key.to_vec();
        if key == b"k99" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(result.expect_err("damage").is_damage());
    assert_ne!(last, b"k99");
}

#[test]
fn rocksdb_flushes_nothing_more_of_what_is_given_up() {
    let fixture = Rocks::new();
    let dir = fixture.root().join("e");
    for is_given_up in [false, true] {
        let engine = fixture.engines().open(&dir).expect("opens");
        engine.write(&batch(&[("a", Some(if is_given_up { "2" } else { "1" }))])).expect("writes");
        if is_given_up {
            engine.give_up();
        }
        drop(engine);
    }
    let engine = fixture.engines().open(&dir).expect("opens");
    assert_eq!(engine.get(b"a").expect("reads").as_deref(), Some(&b"1"[..]));
}

#[test]
fn rocksdb_opens_a_directory_once() {
    let fixture = Rocks::new();
    let dir = fixture.root().join("e");
    let engine = fixture.engines().open(&dir).expect("opens");
    assert!(fixture.engines().open(&dir).is_err());
    drop(engine);
    assert!(fixture.engines().open(&dir).is_ok());
}
