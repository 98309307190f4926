//! What only a look inside can show: compactions that are held back.

use super::*;

fn engine_in(dir: &Path) -> RocksEngine {
    let engines = RocksEngines::new(&RocksSettings::default()).expect("engines");
    RocksEngine::open(&engines.shared, &OsDisk, dir).expect("opens")
}

fn flush_row(engine: &RocksEngine, value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(&[b"k"], &[value]);
    engine.write(&batch).expect("writes");
    engine.flush().expect("flushes");
}

/// Flushes pass RocksDB's own limits by: without somebody who looks, level 0 would grow without end.
#[test]
fn n2_level_0_that_grows_is_a_debt_until_compactions_have_caught_up() {
    let root = tempfile::tempdir().expect("a directory");
    let engine = engine_in(&root.path().join("e"));
    // The first table overlaps nothing and goes to the lowest level.
    flush_row(&engine, b"first");
    let set_held = |is_held: &str| {
        let db = engine.db().expect("open");
        db.set_options(&[("disable_auto_compactions", is_held)]).expect("an option that may be changed");
    };
    set_held("true");
    let refused: Vec<u32> = (0..300_u32)
        .map(|round| {
            flush_row(&engine, &round.to_be_bytes());
            engine.debt().parts_refused()
        })
        .collect();
    assert_eq!(engine.debt().files, 300, "the database takes every table");
    let expected: Vec<u32> = (1..=300_u32).map(|files| (files.saturating_sub(128) / 8).min(16)).collect();
    assert_eq!(refused, expected);
    set_held("false");
    engine.db().expect("open").wait_for_compact(&WaitForCompactOptions::default()).expect("compacts");
    assert_eq!((engine.debt().parts_refused(), engine.debt().files), (0, 0), "nothing needs to be written for that");
    // Fewer files than compactions begin with stay where they are, and are no debt.
    (0..3).for_each(|round| flush_row(&engine, &[round]));
    engine.db().expect("open").wait_for_compact(&WaitForCompactOptions::default()).expect("compacts");
    assert_eq!((engine.debt().parts_refused(), engine.debt().files), (0, 3));
}

/// Whoever waited for compactions that have stopped would wait for good.
#[test]
fn n2_compactions_that_have_stopped_are_no_debt() {
    let root = tempfile::tempdir().expect("a directory");
    let dir = root.path().join("e");
    let engine = engine_in(&dir);
    let db = engine.db().expect("open");
    db.set_options(&[("disable_auto_compactions", "true")]).expect("an option that may be changed");
    for _ in 0..140 {
        let mut batch = Batch::new();
        (0..100_u8).for_each(|row| batch.put(&[&[row]], &[&[row; 1_000]]));
        engine.write(&batch).expect("writes");
        engine.flush().expect("flushes");
    }
    assert!(engine.debt().parts_refused() > 0);
    let tables = OsDisk.list(&dir).expect("files").into_iter().filter(|name| is_table(name));
    for table in tables {
        let file = OsDisk.open(&dir.join(table), hedgerow_env::OpenMode::Write).expect("opens");
        // Not the first block: a flush looks for overlaps there.
        file.write_at(50_000, &[0x55; 16]).expect("writes");
    }
    db.set_options(&[("disable_auto_compactions", "false")]).expect("an option that may be changed");
    db.wait_for_compact(&WaitForCompactOptions::default()).expect_err("a damaged table");
    assert!(engine.background_failure().is_some());
    assert_eq!(engine.debt(), Debt::default());
}

/// Engines whose flushes write a byte per second where nobody waits for them.
fn slow_engines() -> RocksEngines {
    RocksEngines::new(&RocksSettings { flush_rate: 1, ..RocksSettings::default() }).expect("engines")
}

/// Has a flush that writes three steps wait after the first one, and then does what ends the waiting.
fn assert_ended_by(end: impl FnOnce(&RocksEngines, &RocksEngine, &Path)) {
    let root = tempfile::tempdir().expect("a directory");
    let engines = slow_engines();
    let engine = RocksEngine::open(&engines.shared, &OsDisk, &root.path().join("e")).expect("opens");
    let mut batch = Batch::new();
    (0..3 * 17_u8).for_each(|row| batch.put(&[&[row]], &[&vec![row; 64 << 10]]));
    engine.write(&batch).expect("writes");
    let engine = Arc::new(engine);
    let (flushing, done) = (Arc::clone(&engine), Arc::new(AtomicU32::new(0)));
    let has_ended = Arc::clone(&done);
    let body = move || {
        flushing.flush_at_pace().expect("flushes");
        has_ended.store(1, Ordering::Release);
    };
    let flush = hedgerow_env::os::spawn_thread("flush", body).expect("a thread");
    while engines.shared.pacer().waiting() == 0 {
        assert_eq!(done.load(Ordering::Acquire), 0, "it wrote everything at once");
        std::thread::yield_now();
    }
    assert!(engine.unflushed_bytes() > 0);
    end(&engines, &engine, root.path());
    flush.join().expect("ends");
    assert_eq!(engine.unflushed_bytes(), 0);
}

#[test]
fn n2_a_flush_keeps_its_pace_until_somebody_waits_for_it() {
    assert_ended_by(|_, engine, _| engine.flush().expect("flushes"));
    assert_ended_by(|_, engine, root| engine.checkpoint(&root.join("copy")).expect("copies"));
}

#[test]
fn n2_a_flush_keeps_no_pace_when_the_node_stops_or_memory_runs_short() {
    assert_ended_by(|engines, _, _| engines.hurry());
    let root = tempfile::tempdir().expect("a directory");
    let engine = RocksEngine::open(&slow_engines().shared, &OsDisk, &root.path().join("e")).expect("opens");
    let mut batch = Batch::new();
    (0..3 * 17_u8).for_each(|row| batch.put(&[&[row]], &[&vec![row; 64 << 10]]));
    engine.write(&batch).expect("writes");
    // Closing it waits for nothing.
    drop(engine);
    let settings = RocksSettings { flush_rate: 1, write_buffer_size: 1 << 20, ..RocksSettings::default() };
    let engines = RocksEngines::new(&settings).expect("engines");
    let engine = engines.open(&root.path().join("f")).expect("opens");
    engine.write(&batch).expect("writes");
    engine.flush_at_pace().expect("flushes");
    assert_eq!(engine.unflushed_bytes(), 0);
    assert_eq!(engines.shared.pacer().held(), 0);
    // Also where layers hide rows of each other.
    for _ in 0..3 {
        engine.write(&batch).expect("writes");
        drop(engine.snapshot().expect("a snapshot"));
    }
    assert_eq!(engines.shared.pacer().held(), engine.unflushed_bytes());
    engine.write(&batch).expect("writes");
    engine.flush_at_pace().expect("flushes");
    assert_eq!(engines.shared.pacer().held(), 0);
    engine.write(&batch).expect("writes");
    drop(engine);
    assert_eq!(engines.shared.pacer().held(), 0, "what is gone holds nothing");
}

/// A receiver takes tables over from a checkpoint that it had before by their names. One of another storage that is called so, and
/// that holds the very same, is found.
#[test]
fn m2_a_table_of_another_storage_is_found_by_its_unique_number() {
    let root = tempfile::tempdir().expect("a directory");
    let engines = RocksEngines::new(&RocksSettings::default()).expect("engines");
    let [first, second] = ["a", "b"].map(|name| {
        let dir = root.path().join(name);
        let engine = RocksEngine::open(&engines.shared, &OsDisk, &dir).expect("opens");
        flush_row(&engine, b"the same");
        drop(engine);
        dir
    });
    let tables = |dir: &Path| -> Vec<(String, u64)> {
        let names = OsDisk.list(dir).expect("files").into_iter().filter(|name| is_table(name));
        let open = |name: &str| OsDisk.open(&dir.join(name), hedgerow_env::OpenMode::Read);
        names.map(|name| (name.clone(), open(&name).and_then(|file| file.len()).expect("a length"))).collect()
    };
    assert_eq!((tables(&first), tables(&first).len()), (tables(&second), 1));
    engines.verify(&second).expect("its own");
    let (name, _) = &tables(&first)[0];
    OsDisk.rename(&first.join(name), &second.join(name)).expect("moved");
    let found = engines.open(&second).map(drop).and_then(|()| engines.verify(&second)).expect_err("another one's");
    assert_eq!(found.kind(), FailureKind::Damage, "{found}");
}
