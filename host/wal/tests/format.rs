//! The bytes on the medium: a log written once, which must stay readable, and arbitrary bytes, which must do no harm.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Event, Log, OpenError, Options, Recovered, inspect};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR: &str = "/log";
/// It lies beside the directory.
const MARK: &str = "log.mark";
/// What [`write_every_kind`] wrote: segments without the zeros at their ends.
type Fixture = &'static [(&'static str, &'static [u8])];
const VERSION_1: Fixture = &[
    ("0000000000000001.seg", include_bytes!("fixtures/version-1/0000000000000001.seg")),
    ("0000000000000002.seg", include_bytes!("fixtures/version-1/0000000000000002.seg")),
];
const VERSION_2: Fixture = &[
    ("0000000000000001.seg", include_bytes!("fixtures/version-2/0000000000000001.seg")),
    ("0000000000000002.seg", include_bytes!("fixtures/version-2/0000000000000002.seg")),
];
/// As segments are written since they name the one that comes next.
const VERSION_2_LINKED: Fixture = &[
    ("0000000000000001.seg", include_bytes!("fixtures/version-2-linked/0000000000000001.seg")),
    ("0000000000000002.seg", include_bytes!("fixtures/version-2-linked/0000000000000002.seg")),
    (MARK, include_bytes!("fixtures/version-2-linked/log.mark")),
];
const VERSION_3: Fixture = &[
    ("0000000000000001.seg", include_bytes!("fixtures/version-3/0000000000000001.seg")),
    ("0000000000000002.seg", include_bytes!("fixtures/version-3/0000000000000002.seg")),
    (MARK, include_bytes!("fixtures/version-3/log.mark")),
];

fn options() -> Options {
    Options { segment_size: 20 << 10, ..Options::default() }
}

fn group(number: u32) -> GroupId {
    GroupId::new(3, number)
}

fn entries(first: u64, count: u64, term: u64) -> Vec<Entry> {
    let kind = |index| if index % 4 == 0 { EntryKind::Membership } else { EntryKind::Normal };
    let entry = |index| Entry { index, term, kind: kind(index), data: vec![index as u8; 50 * index as usize].into() };
    (first..first + count).map(entry).collect()
}

fn append(number: u32, entries: Vec<Entry>) -> Append {
    let hard_state = Some(HardState { term: 4, vote: Some(ReplicaId(65_537)), commit: 2 });
    Append { group: group(number), replica: ReplicaId(65_538), reset: None, entries, hard_state }
}

/// Writes one record of every kind that does not depend on when segments become full, over several segments.
fn write_every_kind(disk: &SimDisk) {
    let (mut log, _) = Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap();
    log.write(&[append(1, entries(1, 8, 3)), append(2, entries(1, 5, 4)), append(3, entries(1, 2, 4))]).unwrap();
    log.sync().unwrap();
    let reset = LogPosition { term: 4, index: 40 };
    log.write(&[append(1, entries(6, 1, 4)), Append { reset: Some(reset), ..append(2, Vec::new()) }]).unwrap();
    log.truncate_prefix(group(1), 2);
    log.remove_group(group(3));
    log.write(&[append(4, Vec::new())]).unwrap();
    log.sync().unwrap();
    log.write(&[append(4, entries(1, 20, 4))]).unwrap();
    log.sync().unwrap();
    log.mark();
    assert!(log.segments().count() > 1);
}

fn path_of(name: &str) -> PathBuf {
    if name == MARK { Path::new(DIR).with_extension("mark") } else { Path::new(DIR).join(name) }
}

fn put(disk: &SimDisk, name: &str, bytes: &[u8]) {
    disk.create_dir_all(Path::new(DIR)).unwrap();
    let file = disk.open(&path_of(name), OpenMode::Create).unwrap();
    file.write_at(0, bytes).unwrap();
}

fn segments(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let mut bytes = read_file(disk, &path_of(&name)).unwrap();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        (name, bytes)
    };
    let mark = disk.exists(&path_of(MARK)).then(|| MARK.to_owned());
    disk.list(Path::new(DIR)).unwrap().into_iter().chain(mark).map(read).collect()
}

/// With the zeros that a segment's file ends with.
fn whole(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut whole = bytes.to_vec();
    if !name.ends_with(".seg") {
        return whole;
    }
    whole.resize(bytes.len().next_multiple_of(4096).max(options().segment_size as usize), 0);
    whole
}

fn fixture(fixture: Fixture) -> SimDisk {
    let disk = SimDisk::new();
    fixture.iter().for_each(|(name, bytes)| put(&disk, name, &whole(name, bytes)));
    disk
}

fn assert_is_what_was_written(log: &Log, recovered: &[Recovered]) {
    let read = |number, low| log.reader().entries(group(number), low, u64::MAX, usize::MAX).unwrap();
    assert_eq!(recovered.iter().map(|found| found.group).collect::<Vec<_>>(), [group(1), group(2), group(4)]);
    assert!(recovered.iter().all(|found| !found.is_damaged && found.replica == ReplicaId(65_538)));
    assert!(recovered.iter().all(|found| found.hard_state == append(1, Vec::new()).hard_state.unwrap()));
    assert_eq!(read(1, 3), [entries(3, 3, 3), entries(6, 1, 4)].concat());
    assert_eq!(recovered[0].start, LogPosition { term: 3, index: 2 });
    assert_eq!(recovered[1].last, LogPosition { term: 4, index: 40 });
    assert_eq!(read(4, 1), entries(1, 20, 4));
}

#[test]
fn logs_of_versions_1_to_3_stay_readable() {
    for version in [VERSION_1, VERSION_2, VERSION_2_LINKED, VERSION_3] {
        let (log, recovered) = Log::open(Arc::new(fixture(version)), Path::new(DIR), options()).unwrap();
        assert_is_what_was_written(&log, &recovered);
        assert_eq!(log.mark_problem().is_none(), version.len() > 2, "{:?}", log.mark_problem());
    }
}

#[test]
fn a_log_of_version_1_goes_on_in_version_3() {
    let disk = fixture(VERSION_1);
    let (mut log, _) = Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap();
    log.write(&[append(5, entries(1, 3, 4))]).unwrap();
    log.sync().unwrap();
    drop(log);
    let versions: Vec<u8> = segments(&disk).iter().map(|(_, bytes)| bytes[8]).collect();
    assert_eq!(versions, [1, 1, 3]);
    let (log, mut recovered) = Log::open(Arc::new(disk), Path::new(DIR), options()).unwrap();
    assert_eq!(log.reader().entries(group(5), 1, u64::MAX, usize::MAX).unwrap(), entries(1, 3, 4));
    assert!(recovered.pop().is_some_and(|found| found.group == group(5) && !found.is_damaged));
    assert_is_what_was_written(&log, &recovered);
}

/// Version 1 does not say whose a record is whose head is bad.
#[test]
fn a_flipped_record_head_of_version_1_damages_all_that_stand_before_it() {
    let disk = fixture(VERSION_1);
    let mut last = None;
    inspect(&disk, Path::new(DIR), &mut |event| {
        if let Event::Record(place, head, _) = event
            && head.index == 3
        {
            last = Some(place);
        }
    })
    .unwrap();
    let path = Path::new(DIR).join(format!("{:016x}.seg", last.unwrap().segment));
    disk.flip_byte(&path, last.unwrap().offset + 25).unwrap();
    let (log, recovered) = Log::open(Arc::new(disk), Path::new(DIR), options()).unwrap();
    assert!(log.has_unknown_loss() && recovered.iter().filter(|found| found.is_damaged).count() > 1, "{recovered:?}");
}

/// Set `WAL_WRITE_FIXTURES` to write the files anew: only for a new version, beside the old ones.
#[test]
#[allow(clippy::disallowed_methods, reason = "writes into the repository when told")]
fn the_writer_writes_version_3() {
    let disk = SimDisk::new();
    write_every_kind(&disk);
    let written = segments(&disk);
    if std::env::var_os("WAL_WRITE_FIXTURES").is_some() {
        let dir = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/fixtures/version-3");
        std::fs::create_dir_all(&dir).unwrap();
        written.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
    }
    assert_eq!(written.len(), VERSION_3.len());
    for ((name, bytes), (fixture, expected)) in written.iter().zip(VERSION_3) {
        assert!(name == *fixture && bytes == expected, "{name} differs");
    }
}

#[test]
fn another_version_is_refused_and_left_alone() {
    let disk = SimDisk::new();
    let mut bytes = VERSION_1[0].1.to_vec();
    bytes[8..12].copy_from_slice(&[4, 0, 0xfb, 0xff]);
    put(&disk, VERSION_1[0].0, &bytes);
    let error = Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).err().unwrap();
    assert!(matches!(error, OpenError::Version { version: 4, .. }), "{error}");
    assert!(error.to_string().contains("reads versions 1 to 3"), "{error}");
    assert_eq!(segments(&disk), [(VERSION_1[0].0.to_owned(), bytes)]);
}

#[test]
fn inspection_shows_every_record_and_changes_nothing() {
    let disk = SimDisk::new();
    write_every_kind(&disk);
    let before = segments(&disk);
    let mut count = 0;
    let inspection = inspect(&disk, Path::new(DIR), &mut |event| match event {
        Event::Record(..) => count += 1,
        Event::Batch(..) => {}
        Event::BadPayload(..) | Event::BadHead(..) | Event::Unreadable(..) => panic!("{event:?}"),
    })
    .unwrap();
    // Entries: 8 + 5 + 2 + 1 + 20. States: 2 for each new group or reset, 1 for each other append or truncation.
    assert_eq!(count, 36 + 2 * 5 + 3 + 1, "and one removal");
    assert_eq!((inspection.segments.len(), inspection.groups.len()), (2, 3));
    assert_eq!(segments(&disk), before);
}

fn damaged(fixture: Fixture, edits: &[(usize, usize, Vec<u8>)], cut: Option<usize>) -> SimDisk {
    let disk = SimDisk::new();
    for (number, (name, bytes)) in fixture.iter().enumerate() {
        let mut bytes = whole(name, bytes);
        for (_, at, patch) in edits.iter().filter(|edit| edit.0 % fixture.len() == number) {
            let at = at % bytes.len();
            let end = (at + patch.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&patch[..end - at]);
        }
        if let Some(cut) = cut.filter(|_| *name == "0000000000000002.seg") {
            bytes.truncate(cut % bytes.len());
        }
        put(&disk, name, &bytes);
    }
    disk
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_can_be_opened_and_written_to(
        edits in prop::collection::vec((any::<usize>(), any::<usize>(), prop::collection::vec(any::<u8>(), 1..60)), 0..5),
        cut in prop::option::of(any::<usize>()),
        fixture in prop::sample::select(vec![VERSION_1, VERSION_2, VERSION_2_LINKED, VERSION_3]),
    ) {
        let disk = damaged(fixture, &edits, cut);
        // Only a version that this program does not read is refused, and no byte alone makes one.
        let (mut log, recovered) = Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap();
        if edits.is_empty() && cut.is_none() {
            prop_assert!(!recovered.is_empty() && recovered.iter().all(|found| !found.is_damaged), "{:?}", recovered);
        }
        for found in &recovered {
            let (low, high) = (found.start.index + 1, found.last.index + 1);
            let entries = log.reader().entries(found.group, low, high, usize::MAX).unwrap();
            prop_assert_eq!(entries.len() as u64, high - low, "what is recovered can be read");
        }
        log.write(&[append(9, entries(1, 30, 5))]).unwrap();
        log.sync().unwrap();
        log.collect().unwrap();
        let (_, again) = Log::open(Arc::new(disk), Path::new(DIR), options()).unwrap();
        for found in &recovered {
            let same = again.iter().find(|same| same.group == found.group).unwrap();
            prop_assert_eq!(found, same, "opening again finds the same");
        }
        let written = again.iter().find(|found| found.group == group(9)).unwrap();
        prop_assert_eq!((written.start.index, written.last.index), (0, 30), "what was written is there");
    }

    #[test]
    fn any_file_can_be_a_segment(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        let disk = SimDisk::new();
        put(&disk, "0000000000000007.seg", &bytes);
        let (log, recovered) = Log::open(Arc::new(disk), Path::new(DIR), options()).unwrap();
        prop_assert!(recovered.is_empty() && log.has_unknown_loss());
    }
}

#[test]
fn what_is_not_ours_stays() {
    let disk = SimDisk::new();
    put(&disk, "notes.txt", b"mine");
    let (mut log, _) = Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap();
    log.write(&[append(1, entries(1, 1, 1))]).unwrap();
    assert_eq!(read_file(&disk, &PathBuf::from(DIR).join("notes.txt")).unwrap(), b"mine");
}
