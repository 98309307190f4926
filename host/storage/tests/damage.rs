//! Damaged, missing and leftover files below the real engine: what is damage says so, what is the machine's fault does
//! not, and neither ends the process.
#![allow(clippy::disallowed_methods, reason = "a test that damages files")]

mod common;

use common::{Fixture, Memory, Rocks, anonymous, bytes, entry};
use hedgerow_storage::{
    ApplyOutcome, Batch, Direction, Engine, EngineError, Engines, FailureKind, KeyRange, Partition, RocksEngines,
    RocksSettings,
};
use hedgerow_types::op::{Write, WriteDetail};
use hedgerow_types::random::Random;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Bytes that are made wrong in each file of a database, one at a time.
const BYTES_PER_FILE: u64 = 24;
/// Rows that one flush of these tests writes.
const ROWS: u32 = 200;

fn value(round: u32, row: u32) -> Vec<u8> {
    format!("{round}-{row}-").into_bytes().repeat(40)
}

fn key(row: u32) -> Vec<u8> {
    format!("key{row:05}").into_bytes()
}

fn write(engine: &dyn Engine, round: u32) {
    let mut batch = Batch::new();
    (0..ROWS).for_each(|row| batch.put(&[&key(row)], &[&value(round, row)]));
    engine.write(&batch).expect("writes");
}

fn assert_holds(engine: &dyn Engine, round: u32) {
    for row in 0..ROWS {
        let found = engine.get(&key(row)).unwrap_or_else(|error| panic!("row {row}: {error:?}"));
        assert!(found.is_some_and(|found| found == value(round, row)), "row {row} is not what was flushed");
    }
}

/// A database at rest whose rows are those of `rounds`, one table file for each.
fn database(dir: &Path, rounds: u32) {
    let fixture = Rocks::new();
    let engine = fixture.engines().open(dir).expect("opens");
    for round in 0..rounds {
        write(&*engine, round);
        engine.flush().expect("flushes");
    }
}

/// Opens with caches of its own: others have seen the files whole.
fn open(dir: &Path) -> (Rocks, Result<Arc<dyn Engine>, EngineError>) {
    let fixture = Rocks::new();
    let engine = fixture.engines().open(dir);
    (fixture, engine)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("files")
        .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

/// The files in `dir` whose names contain `part`, oldest first.
fn files(dir: &Path, part: &str) -> Vec<PathBuf> {
    names(dir).iter().filter(|name| name.contains(part)).map(|name| dir.join(name)).collect()
}

fn cut(path: &Path, keep: u64) {
    fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(keep)).expect("cuts");
}

fn flip_bytes(path: &Path, at: usize) {
    let mut content = fs::read(path).expect("reads");
    content[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(path, content).expect("writes");
}

fn assert_damage<T>(result: Result<T, EngineError>, what: &str) {
    match result {
        Ok(_) => panic!("{what} went unnoticed"),
        Err(error) => {
            assert!(error.is_damage(), "{what}: {error:?}");
            assert_eq!(error.kind(), FailureKind::Damage, "{what}");
        }
    }
}

fn scan(engine: &dyn Engine) -> Result<(), EngineError> {
    engine.scan(KeyRange::default(), Direction::Ascending, &mut |_, _| ControlFlow::Continue(()))
}

/// A flush file that outlived its flush is a second name of a live table: writing to it again would destroy the table.
#[test]
fn d1_a_leftover_flush_file_cannot_reach_a_live_table() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 1);
    let table = &files(&dir, ".sst")[0];
    let leftovers = ["flush.tmp", "flush-0000000000000000-0.tmp", "flush-00000000deadbeef-1.tmp"];
    leftovers.iter().for_each(|name| fs::hard_link(table, dir.join(name)).expect("links"));
    let (_fixture, engine) = open(&dir);
    let engine = engine.expect("opens");
    assert_eq!(files(&dir, "flush"), Vec::<PathBuf>::new(), "leftovers go when the engine opens");
    let mut batch = Batch::new();
    batch.put(&[b"other"], &[b"1"]);
    engine.write(&batch).expect("writes");
    engine.flush().expect("flushes");
    drop(engine);
    assert_eq!(files(&dir, "flush"), Vec::<PathBuf>::new(), "a flush leaves nothing");
    let (_fixture, engine) = open(&dir);
    let engine = engine.expect("the live table is whole");
    assert_holds(&*engine, 0);
    assert_eq!(engine.get(b"other").expect("reads").as_deref(), Some(&b"1"[..]));
}

/// Leftovers of a flush in whose middle the process died, while another one has the directory open.
#[test]
fn d1_a_second_process_removes_nothing_of_the_first() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    let (_fixture, engine) = open(&dir);
    fs::write(dir.join("flush-0000000000000007-3.tmp"), b"being written").expect("writes");
    let (_other, refused) = open(&dir);
    let error = refused.expect_err("the directory is in use");
    assert_eq!(error.kind(), FailureKind::Other, "{error:?}");
    assert_eq!(files(&dir, "flush").len(), 1);
    drop(engine);
}

#[test]
fn m3_flipped_bytes_are_damage_to_reads_scans_and_compactions() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 3);
    // Not the first block: a flush looks for overlaps there.
    flip_bytes(&files(&dir, ".sst")[2], 30_000);
    let (_fixture, engine) = open(&dir);
    let engine = engine.expect("blocks are looked at when they are read");
    assert_damage(engine.get(&key(115)), "a read");
    assert_damage(scan(&*engine), "a scan");
    assert!(engine.background_failure().is_none(), "nothing has happened behind the scenes yet");
    // The fourth file of level 0 has the four compacted, and that reads every block.
    write(&*engine, 3);
    engine.flush().expect("flushes: it need not read what is there");
    assert_damage(engine.compact(), "a compaction");
    let failure = engine.background_failure().expect("the engine's own work has failed");
    assert!(failure.is_damage(), "{failure:?}");
    write(&*engine, 4);
    assert_damage(engine.flush(), "a flush after it");
    assert_holds(&*engine, 4);
}

#[test]
fn m3_a_table_that_is_cut_short_is_damage() {
    for keep in [0, 100, 10_000] {
        let root = common::temporary_dir();
        let dir = root.path().join("e");
        database(&dir, 2);
        cut(&files(&dir, ".sst")[1], keep);
        assert_damage(open(&dir).1, "an open");
    }
}

#[test]
fn m3_a_table_that_is_cut_short_while_it_is_open_is_damage() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 2);
    let (_fixture, engine) = open(&dir);
    let engine = engine.expect("opens");
    cut(&files(&dir, ".sst")[1], 4_096);
    assert_damage(engine.get(&key(ROWS - 1)), "a read");
    assert_damage(scan(&*engine), "a scan");
    assert_damage(engine.compact(), "a compaction");
}

#[test]
fn m3_missing_files_are_damage() {
    for part in [".sst", "MANIFEST", "CURRENT"] {
        let root = common::temporary_dir();
        let dir = root.path().join("e");
        database(&dir, 2);
        fs::remove_file(&files(&dir, part)[0]).expect("removes");
        let before = names(&dir);
        assert_damage(open(&dir).1, &format!("without {part}"));
        assert!(before.iter().all(|name| dir.join(name).exists()), "what is left stays for whoever looks into it");
    }
}

#[test]
fn m3_a_damaged_catalogue_of_files_is_damage() {
    for part in ["MANIFEST", "CURRENT"] {
        for keep in [0, 5] {
            let root = common::temporary_dir();
            let dir = root.path().join("e");
            database(&dir, 2);
            let path = &files(&dir, part)[0];
            cut(path, keep);
            assert_damage(open(&dir).1, &format!("{part} of {keep} bytes"));
        }
    }
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 2);
    flip_bytes(&files(&dir, "MANIFEST")[0], 20);
    assert_damage(open(&dir).1, "a flipped MANIFEST");
}

/// `CURRENT` names the file that is opened next. A name that no file can have is no failure of the disk.
#[test]
fn m3_whatever_a_damaged_current_names_is_damage() {
    let long = format!("MANIFEST-{}\n", "1".repeat(300));
    let names = [
        "MANIFEST-0000\0\0\n",
        "MANIFEST-\0\0\0\0\0\0\0",
        "MANIFEST-00\x0000005\n",
        "MANIFEST-../../sound/MANIFEST-000005\n",
        "MANIFEST-000005/x\n",
        "/\n",
        "..\n",
        ".\n",
        "\n",
        "MANIFEST-\n",
        "MANIFEST-99999999999999999999\n",
        "IDENTITY\n",
        "MANIFEST-000005 \n\n",
        &long,
    ];
    for name in names {
        let root = common::temporary_dir();
        let dir = root.path().join("e");
        database(&dir, 2);
        fs::write(dir.join("CURRENT"), name).expect("writes");
        assert_damage(open(&dir).1, &format!("CURRENT with {name:?}"));
    }
}

/// Open files can still be read and written, so that the engine does not notice.
#[test]
fn m3_an_engine_whose_directory_or_current_was_removed_is_gone() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    let (fixture, engine) = open(&dir);
    let engine = engine.expect("opens");
    write(&*engine, 1);
    engine.flush().expect("flushes");
    assert!(!fixture.engines().is_gone(&dir));
    fs::rename(dir.join("CURRENT"), root.path().join("CURRENT")).expect("moves");
    assert!(fixture.engines().is_gone(&dir));
    fs::rename(root.path().join("CURRENT"), dir.join("CURRENT")).expect("moves");
    assert!(!fixture.engines().is_gone(&dir));
    fs::remove_dir_all(&dir).expect("removes");
    assert!(fixture.engines().is_gone(&dir));
    drop(engine);
    let file = root.path().join("file");
    fs::write(&file, b"").expect("writes");
    assert!(!fixture.engines().is_gone(&file.join("e")), "no directory, but nobody says that it was removed");
}

/// Whatever byte of whatever file is wrong: what is read is what was written, or it is called damage.
#[test]
fn m3_a_wrong_byte_anywhere_is_damage_or_does_no_harm() {
    let root = common::temporary_dir();
    let sound = root.path().join("sound");
    database(&sound, 2);
    let mut random = Random::new(3);
    let mut damage_count = 0;
    for name in names(&sound) {
        let content = fs::read(sound.join(&name)).expect("reads");
        for case in 0..BYTES_PER_FILE.min(content.len() as u64) {
            let dir = root.path().join(format!("{name}-{case}"));
            fs::create_dir(&dir).expect("a directory");
            names(&sound).iter().for_each(|name| fs::hard_link(sound.join(name), dir.join(name)).expect("links"));
            let mut content = content.clone();
            // Half of them at the end: there are the smallest and the most delicate parts.
            let from_end = random.below(content.len() as u64) / if case % 2 == 0 { 1 } else { 20 };
            let at = content.len() - 1 - from_end as usize;
            content[at] ^= 1 << random.below(8);
            fs::remove_file(dir.join(&name)).and_then(|()| fs::write(dir.join(&name), content)).expect("writes");
            let (_fixture, engine) = open(&dir);
            let result = engine.and_then(|engine| {
                for row in 0..ROWS {
                    let found = engine.get(&key(row))?;
                    assert!(found.is_some_and(|found| found == value(1, row)), "{name}, byte {at}: row {row}");
                }
                scan(&*engine)?;
                write(&*engine, 7);
                engine.flush()?;
                engine.compact()
            });
            if let Err(error) = result {
                assert!(error.is_damage(), "{name}, byte {at}: {error:?}");
                damage_count += 1;
            }
            fs::remove_dir_all(dir).expect("removes");
        }
    }
    assert!(damage_count > BYTES_PER_FILE, "{damage_count} cases of damage were found");
}

/// Pitfall D4a: what is there is opened and read in part, and says nothing about a block that nobody reads.
#[test]
fn d4a_a_verification_finds_a_wrong_byte_that_an_open_does_not() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 2);
    let fixture = Rocks::new();
    fixture.engines().verify(&dir).expect("it is whole");
    assert_eq!(files(&dir, "LOCK").len(), 1, "nothing of it is changed");
    let engine = fixture.engines().open(&dir).expect("opens");
    // Every block is in the cache from now on, and a verification asks the disk.
    scan(&*engine).expect("reads");
    drop(engine);
    for table in files(&dir, ".sst") {
        flip_bytes(&table, 30_000);
        let engine = fixture.engines().open(&dir).expect("the block is not looked at");
        drop(engine);
        assert_damage(fixture.engines().verify(&dir), "a verification");
        flip_bytes(&table, 30_000);
        fixture.engines().verify(&dir).expect("it is whole again");
    }
    fs::remove_file(&files(&dir, ".sst")[0]).expect("removes");
    assert_damage(fixture.engines().verify(&dir), "a verification without a table");
}

/// It would keep a node that stops from ending, and what it says then is no damage.
#[test]
fn d4a_a_verification_ends_with_the_node() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    let fixture = Rocks::new();
    let engine = fixture.engines().open(&dir).expect("opens");
    let mut batch = Batch::new();
    (0..40).for_each(|row| batch.put(&[&key(row)], &[&[7; 50_000]]));
    engine.write(&batch).expect("writes");
    drop(engine);
    fixture.engines().verify(&dir).expect("it is whole");
    fixture.engines().hurry();
    let error = fixture.engines().verify(&dir).expect_err("it does not go on");
    assert_eq!(error.kind(), FailureKind::Other, "{error:?}");
}

/// A record of the manifest that was being written when the power failed: a part of it is there, and a part before it is not.
#[test]
fn m3_a_torn_end_of_the_manifest_is_no_damage() {
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 2);
    let path = &files(&dir, "MANIFEST")[0];
    let mut content = fs::read(path).expect("reads");
    let sound = content.len();
    // A record of 1,600 bytes, of which a sector in the middle is missing.
    content.extend_from_slice(&[13, 13, 13, 13, 0x40, 0x06, 1]);
    content.resize(sound + 7 + 1_600, 13);
    let missing = (sound + 7).next_multiple_of(512);
    content[missing..missing + 512].fill(0);
    fs::write(path, &content).expect("writes");
    for _ in 0..2 {
        let (_fixture, engine) = open(&dir);
        let engine = engine.expect("opens");
        assert_holds(&*engine, 1);
    }
    // Zeros alone: the size was written, and the bytes were not.
    let path = &files(&dir, "MANIFEST")[0];
    let mut content = fs::read(path).expect("reads");
    content.resize(content.len() + 13, 0);
    fs::write(path, &content).expect("writes");
    let (_fixture, engine) = open(&dir);
    assert_holds(&*engine.expect("opens"), 1);
}

/// Where the tests of limits work, for the process that runs under the limit.
const LIMITED: &str = "HEDGEROW_TEST_LIMITED";

/// Runs the test `name` again in a process that has `limit` set, with `dir` in its environment.
fn run_limited(name: &str, limit: &str, dir: &Path) {
    let script = format!("trap '' XFSZ; {limit}; exec \"$0\" --exact {name} --nocapture");
    let binary = std::env::current_exe().expect("a path");
    let output = Command::new("sh").arg("-c").arg(script).arg(binary).env(LIMITED, dir).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}

fn limited_dir() -> Option<PathBuf> {
    std::env::var_os(LIMITED).map(PathBuf::from)
}

/// No file may grow: as on a full disk, nothing can be flushed, and what was flushed stays.
#[test]
fn m3_a_full_disk_is_not_damage() {
    if let Some(dir) = limited_dir() {
        let (_fixture, engine) = open(&dir);
        let engine = engine.expect("opens");
        assert_holds(&*engine, 1);
        let mut batch = Batch::new();
        (0..200).for_each(|row| batch.put(&[&key(row)], &[&[7; 50_000]]));
        engine.write(&batch).expect("writes");
        for _ in 0..2 {
            let error = engine.flush().expect_err("there is no space");
            assert_eq!(error.kind(), FailureKind::NoSpace, "{error:?}");
            assert!(!error.is_damage());
        }
        assert_eq!(files(&dir, "flush"), Vec::<PathBuf>::new(), "a failed flush gives its space back");
        assert_eq!(engine.get(&key(0)).expect("reads").map(|value| value.len()), Some(50_000));
        return;
    }
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 2);
    run_limited("m3_a_full_disk_is_not_damage", "ulimit -f 2000", &dir);
    let (_fixture, engine) = open(&dir);
    assert_holds(&*engine.expect("opens"), 1);
}

#[test]
fn m3_running_out_of_descriptors_is_not_damage() {
    if let Some(dir) = limited_dir() {
        let (_fixture, engine) = open(&dir);
        match engine {
            // Some limits are just enough.
            Ok(engine) => assert_holds(&*engine, 2),
            Err(error) => assert_eq!(error.kind(), FailureKind::NoDescriptors, "{error:?}"),
        }
        return;
    }
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 3);
    for limit in 5..16 {
        run_limited("m3_running_out_of_descriptors_is_not_damage", &format!("ulimit -n {limit}"), &dir);
    }
    let (_fixture, engine) = open(&dir);
    assert_holds(&*engine.expect("opens"), 2);
}

/// A compaction that cannot open its file stops the database, which does not notice when there are descriptors again.
#[test]
fn m3_flushes_return_with_the_descriptors() {
    if let Some(dir) = limited_dir() {
        let (_fixture, engine) = open(&dir);
        let engine = engine.expect("opens");
        let mut taken = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            taken.push(file);
        }
        let error = engine.compact().expect_err("there are no descriptors");
        assert_eq!(error.kind(), FailureKind::NoDescriptors, "{error:?}");
        write(&*engine, 3);
        let error = engine.flush().expect_err("there are no descriptors");
        assert_eq!(error.kind(), FailureKind::NoDescriptors, "{error:?}");
        assert_holds(&*engine, 3);
        drop(taken);
        assert_eq!(engine.background_failure().map(|failure| failure.kind()), Some(FailureKind::NoDescriptors));
        engine.flush().expect("flushes again");
        assert!(engine.background_failure().is_none());
        engine.compact().expect("compacts again");
        assert_holds(&*engine, 3);
        return;
    }
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    database(&dir, 3);
    run_limited("m3_flushes_return_with_the_descriptors", "ulimit -n 64", &dir);
    let (_fixture, engine) = open(&dir);
    assert_holds(&*engine.expect("opens"), 3);
}

/// Rows as writes leave them, a table file for each: far more than stay open.
fn tables_of_one_row(dir: &Path) {
    let memory = Memory::new();
    let engine = memory.engines().open(memory.root()).expect("opens");
    let mut partition = Partition::open(Arc::clone(&engine)).expect("opens");
    let put = Write::Put { key: bytes("n"), value: bytes("1"), expire_at: 0 };
    partition.apply(&[entry(1, &anonymous(0, put))], None, &mut Vec::new()).expect("applies");
    let row = engine.get(b"dn").expect("reads").expect("a row");
    let (_fixture, engine) = open(dir);
    let engine = engine.expect("opens");
    for number in 0..60_u32 {
        let mut batch = Batch::new();
        batch.put(&[b"d", &key(number)], &[&row]);
        engine.write(&batch).expect("writes");
        engine.flush().expect("flushes");
    }
}

/// Writes are applied in memory, but an increment reads first, and that may have to open a table file.
#[test]
fn n4_an_increment_that_finds_no_descriptor_is_applied_when_there_is_one() {
    if let Some(dir) = limited_dir() {
        let settings = RocksSettings { spare_files: 0, ..RocksSettings::default() };
        let engine = RocksEngines::new(&settings).expect("engines").open(&dir).expect("opens");
        let mut partition = Partition::open(Arc::clone(&engine)).expect("opens");
        let mut taken = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            taken.push(file);
        }
        let increment = |number: u32| Write::Incr { key: key(number).into(), by: 1, expire_at: 0 };
        let log: Vec<_> =
            (0..60).map(|number| entry(1 + u64::from(number), &anonymous(0, increment(number)))).collect();
        let mut outcomes = Vec::new();
        let error = partition.apply(&log, None, &mut outcomes).expect_err("there are no descriptors");
        assert!(error.may_pass(), "{error:?}");
        let applied = outcomes.len();
        assert!(applied < 60 && partition.applied().index == applied as u64, "{applied}");
        let again = partition.apply(&log[applied..], None, &mut outcomes);
        assert!(again.is_err_and(|error| error.may_pass()) && outcomes.len() == applied);
        drop(taken);
        partition.apply(&log[applied..], None, &mut outcomes).expect("applies");
        assert!(engine.background_failure().is_none(), "reads stop nothing");
        for (_, outcome) in outcomes {
            let ApplyOutcome::Reply(reply) = outcome else { panic!("{outcome:?}") };
            assert_eq!(reply.detail, WriteDetail::Value(2));
        }
        return;
    }
    let root = common::temporary_dir();
    let dir = root.path().join("e");
    tables_of_one_row(&dir);
    run_limited("n4_an_increment_that_finds_no_descriptor_is_applied_when_there_is_one", "ulimit -n 64", &dir);
}
