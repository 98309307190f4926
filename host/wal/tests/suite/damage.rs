//! What becomes of a log whose bytes are not what was written.

use crate::layout::{DIR, Layout, append, at, entries, find, group, options, read_back};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk as _, OpenMode, read_file};
use hedgerow_types::log::Entry;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Event, Options, inspect};
use std::path::{Path, PathBuf};

/// Where every record stands: file, byte, bytes of the payload, group, index.
fn records(disk: &SimDisk) -> Vec<(PathBuf, u64, u64, GroupId, u64)> {
    let mut found = Vec::new();
    inspect(disk, Path::new(DIR), &mut |event| {
        if let Event::Record(place, head, _) = event {
            let path = Path::new(DIR).join(format!("{:016x}.seg", place.segment));
            found.push((path, place.offset, u64::from(head.size), head.group, head.index));
        }
    })
    .unwrap();
    found
}

/// Three groups, three rounds of entries, then one more round without the first group.
fn three_groups(layout: &dyn Layout) -> SimDisk {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    for round in 0..3 {
        logs.commit(&[1, 2, 3].map(|number| append(number, entries(1 + round * 4, 4, 1))));
    }
    logs.commit(&[append(2, entries(13, 1, 1)), append(3, entries(13, 1, 1))]);
    disk
}

fn record_of(disk: &SimDisk, number: u32, index: u64) -> (PathBuf, u64) {
    let records = records(disk);
    let is_it = |record: &&(PathBuf, u64, u64, GroupId, u64)| record.3 == group(number) && record.4 == index;
    let (path, offset, ..) = records.iter().find(is_it).unwrap();
    (path.clone(), *offset)
}

pub(crate) fn a_flipped_byte_of_an_entry_damages_its_group_alone(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (path, offset) = record_of(&disk, 2, 6);
    disk.flip_byte(&path, offset + 40 + 17).unwrap();
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(read_back(&*logs, find(&recovered, 1)), entries(1, 12, 1));
    assert_eq!(read_back(&*logs, find(&recovered, 2)), entries(1, 5, 1), "what is before it is sound");
    assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(1, 13, 1));
    assert!(!logs.has_unknown_loss());
}

pub(crate) fn a_flipped_byte_of_a_record_head_damages_every_group(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (path, offset) = record_of(&disk, 2, 6);
    disk.flip_byte(&path, offset + 25).unwrap();
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(recovered.len() == 3 && recovered.iter().all(|found| found.is_damaged) && logs.has_unknown_loss());
}

pub(crate) fn a_torn_tail_damages_nobody(layout: &dyn Layout) {
    for seed in 0..200 {
        let disk = three_groups(layout);
        disk.kill_process();
        let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
        let before = recovered;
        logs.commit(&[append(1, entries(13, 3, 2))]);
        logs.write(&[1, 2, 3].map(|number| append(number, entries(if number == 1 { 16 } else { 14 }, 40, 2)))).unwrap();
        disk.crash(&mut Random::new(seed));
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        for (found, before) in recovered.iter().zip(&before) {
            assert!(!found.is_damaged, "seed {seed}");
            assert!(found.last >= before.last);
            read_back(&*logs, found);
        }
        assert!(find(&recovered, 1).last >= at(2, 15));
    }
}

/// Every byte in turn: the log opens; what is not called damaged is exactly what was written, or what was written without
/// the last round, whose loss cannot be told from a torn tail.
pub(crate) fn every_single_flipped_byte_is_survived(layout: &dyn Layout) {
    let original = three_groups(layout);
    let path = records(&original)[0].0.clone();
    let bytes = read_file(&original, &path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let last_round = record_of(&original, 2, 13).1 - 40;
    for offset in (0..200).chain(4096..end as u64) {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(0, &bytes).unwrap();
        disk.flip_byte(&path, offset).unwrap();
        let Ok((logs, recovered)) = layout.open(&disk, options()) else {
            assert!((8..12).contains(&offset), "only another version is refused: {offset}");
            continue;
        };
        let is_last = offset >= last_round;
        for found in recovered.iter().filter(|found| !found.is_damaged) {
            let full: &[u64] = if found.group == group(1) { &[12] } else { &[12, 13] };
            assert!(full.contains(&found.last.index), "{offset} {found:?}");
            assert!(found.last.index == 13 || is_last || found.group == group(1), "{offset} {found:?}");
            assert_eq!(read_back(&*logs, found), entries(1, found.last.index, 1));
        }
        assert!(recovered.len() == 3 || logs.has_unknown_loss(), "{offset}: a group is missing and nobody says so");
    }
}

pub(crate) fn damage_is_remembered_until_it_is_dealt_with(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (path, offset) = record_of(&disk, 2, 6);
    disk.flip_byte(&path, offset + 50).unwrap();
    let (mut logs, recovered) = layout.open(&disk, Options { segments_max: 1, ..options() }).unwrap();
    assert!(find(&recovered, 2).is_damaged);
    // The other groups go on until the damaged segment is gone. The mark stays.
    for first in (14..2000).step_by(20) {
        logs.commit(&[append(3, entries(first, 20, 1))]);
        logs.truncate_prefix(group(3), first);
        logs.truncate_prefix(group(1), 12);
        logs.collect().unwrap();
    }
    assert!(!disk.exists(&path));
    disk.crash(&mut Random::new(1));
    let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [false, true, false]);
    logs.commit(&[Append { reset: Some(at(3, 100)), ..append(2, Vec::new()) }]);
    disk.crash(&mut Random::new(1));
    let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(!find(&recovered, 2).is_damaged && find(&recovered, 2).last == at(3, 100));
    logs.commit(&[Append { replica: ReplicaId(99), ..append(2, entries(1, 1, 1)) }]);
    disk.crash(&mut Random::new(1));
    let (_, recovered) = layout.open(&disk, options()).unwrap();
    assert!(!find(&recovered, 2).is_damaged && find(&recovered, 2).replica == ReplicaId(99));
}

pub(crate) fn a_lost_segment_damages_every_group_that_needs_it(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 10, 1)), append(2, entries(1, 300, 1))]);
    // Group 3 begins in the last segment, after everything that will be lost.
    logs.commit(&[append(3, entries(1, 2, 1))]);
    let (path, _) = record_of(&disk, 2, 150);
    disk.remove_file(&path).unwrap();
    for _ in 0..2 {
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert!(find(&recovered, 1).is_damaged, "its records stand before the loss, which may have held more");
        assert!(find(&recovered, 2).is_damaged);
        assert!(!find(&recovered, 3).is_damaged && logs.has_unknown_loss());
        assert_eq!(read_back(&*logs, find(&recovered, 3)).last().map(Entry::position), Some(at(1, 2)));
    }
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(3, entries(3, 1, 1))]);
    logs.collect().unwrap();
    disk.crash(&mut Random::new(1));
    let (_, recovered) = layout.open(&disk, options()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [true, true, false]);
}

/// A device that does not give back a few kilobytes takes along those whose records stood there, and the node starts.
pub(crate) fn m3_an_unreadable_block_damages_those_whose_records_stood_there(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 300, 1))]);
    logs.commit(&[append(2, entries(1, 10, 1))]);
    logs.truncate_prefix(group(1), 200);
    logs.commit(&[append(3, entries(1, 10, 1))]);
    let (path, offset) = record_of(&disk, 1, 100);
    assert_ne!(path, record_of(&disk, 2, 1).0, "in another segment");
    let lost = offset / 4096 * 4096;
    disk.lose_bytes(&path, lost..lost + 4096);
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(recovered.iter().all(|found| !found.is_damaged), "nobody needs those records");
    assert_eq!(read_back(&*logs, find(&recovered, 1)), entries(201, 100, 1));
    drop(logs);
    let (path, offset) = record_of(&disk, 1, 250);
    disk.lose_bytes(&path, offset..offset + 1);
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(find(&recovered, 1).is_damaged);
    assert!(!find(&recovered, 2).is_damaged && !find(&recovered, 3).is_damaged, "what came later is sound");
    assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(1, 10, 1));
}

/// At the end of the newest segment a torn tail and lost bytes look alike: nobody may take the log for whole.
pub(crate) fn m3_an_unreadable_end_is_not_a_torn_tail(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (path, offset) = record_of(&disk, 2, 13);
    disk.lose_bytes(&path, offset..offset + 1);
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(recovered.iter().all(|found| found.is_damaged) && logs.has_unknown_loss());
}
