//! What becomes of a log whose bytes are not what was written.

use crate::layout::{DIR, Layout, append, at, entries, find, group, hard_state, options, read_back};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk as _, OpenMode, read_file};
use hedgerow_types::log::Entry;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::OpenError;
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

pub(crate) fn m3_a_flipped_record_head_names_its_victim_only(layout: &dyn Layout) {
    for byte in 0..40 {
        let disk = three_groups(layout);
        let (path, offset) = record_of(&disk, 2, 6);
        disk.flip_byte(&path, offset + byte).unwrap();
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [false, true, false], "{byte}");
        assert_eq!(read_back(&*logs, find(&recovered, 1)), entries(1, 12, 1));
        assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(1, 13, 1), "what stands after it is found");
        assert!(!logs.has_unknown_loss());
    }
}

/// A process was killed in the middle of a round, and the next one went on in another segment. The end of the first is known since, and stands
/// in the middle of a batch, whose list stands behind it.
pub(crate) fn m3f_a_flipped_head_in_a_torn_batch_names_its_victim_only(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.write(&[1, 2, 3].map(|number| append(number, entries(if number == 1 { 13 } else { 14 }, 4, 2)))).unwrap();
    drop(logs);
    let (path, torn) = record_of(&disk, 3, 17);
    disk.flip_byte(&path, torn + 50).unwrap();
    let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
    assert_eq!(find(&recovered, 3).last, at(2, 16), "the batch is torn");
    logs.commit(&[append(4, entries(1, 1, 1))]);
    drop(logs);
    let (_, record) = record_of(&disk, 1, 15);
    let mut heads = Vec::new();
    inspect(&disk, Path::new(DIR), &mut |event| {
        if let Event::Batch(place, _) = event {
            heads.push(place.offset);
        }
    })
    .unwrap();
    let head = heads.into_iter().filter(|head| *head < record).max().unwrap();
    for (byte, is_damaged) in
        (record..record + 40).map(|byte| (byte, true)).chain((head..head + 40).map(|byte| (byte, false)))
    {
        disk.flip_byte(&path, byte).unwrap();
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        let damaged: Vec<bool> = recovered.iter().map(|found| found.is_damaged).collect();
        assert_eq!(damaged, [is_damaged, false, false, false], "{byte}");
        assert!(!logs.has_unknown_loss(), "{byte}");
        assert_eq!(find(&recovered, 3).last, at(2, 16));
        drop(logs);
        disk.flip_byte(&path, byte).unwrap();
    }
}

/// Every file of `disk`, on another one.
fn copy(files: &[(PathBuf, Vec<u8>)]) -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    for (path, bytes) in files {
        let file = disk.open(path, OpenMode::Create).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync_all().unwrap();
    }
    ["/", "/data", DIR].iter().for_each(|dir| disk.sync_dir(Path::new(dir)).unwrap());
    disk
}

fn files_of_log(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let names = disk.list(Path::new(DIR)).unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    paths.map(|path| (path.clone(), read_file(disk, &path).unwrap())).collect()
}

fn mark_path() -> PathBuf {
    Path::new(DIR).with_extension("mark")
}

/// Several segments, one of them freed by the newest, with records of every kind. The last round is of group 9 alone.
fn every_kind(layout: &dyn Layout) -> SimDisk {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, Options { segments_max: 3, recycle_max: 0, ..options() }).unwrap();
    logs.commit(&[append(1, entries(1, 4, 1)), append(2, entries(1, 3, 1)), append(3, entries(1, 2, 1))]);
    logs.commit(&[append(4, entries(1, 2, 1)), append(5, entries(1, 40, 1))]);
    logs.truncate_prefix(group(1), 1);
    logs.commit(&[append(2, entries(3, 2, 2)), append(5, entries(41, 160, 1))]);
    logs.remove_group(group(4));
    logs.truncate_prefix(group(5), 200);
    logs.commit(&[append(3, entries(3, 2, 2)), append(5, entries(201, 2, 2))]);
    assert!(logs.collect().unwrap().freed_segments > 0);
    logs.commit(&[Append { reset: Some(at(3, 9)), ..append(6, Vec::new()) }, append(2, entries(5, 1, 2))]);
    logs.commit(&[append(9, entries(1, 2, 2))]);
    disk
}

/// Every byte in turn, of heads, lists, records and what is between them: all groups but the one whose record has the
/// byte are as they were. That one is damaged, or misses nothing, or lost the last round.
pub(crate) fn m3_any_flipped_byte_damages_at_most_the_group_that_stood_there(layout: &dyn Layout) {
    let original = every_kind(layout);
    let records = records(&original);
    let names = original.list(Path::new(DIR)).unwrap();
    let files: Vec<(PathBuf, Vec<u8>)> = names
        .iter()
        .filter(|name| name.ends_with(".seg"))
        .map(|name| Path::new(DIR).join(name))
        .map(|path| (path.clone(), read_file(&original, &path).unwrap()))
        .collect();
    assert!(files.len() > 1);
    let look = |disk: &SimDisk| inspect(disk, Path::new(DIR), &mut |_| {}).unwrap();
    let before = look(&original).groups;
    let disk = copy(&files);
    for (path, bytes) in &files {
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for offset in (0..100).chain(4096..4196).chain(8192..end as u64) {
            let stands = records
                .iter()
                .find(|record| record.0 == *path && (record.1..record.1 + 40 + record.2).contains(&offset));
            let owner = stands.map(|record| record.3);
            // One byte of an entry's data is like another.
            if stands.is_some_and(|record| offset > record.1 + 40 && record.2 == 100 && !offset.is_multiple_of(32)) {
                continue;
            }
            disk.flip_byte(path, offset).unwrap();
            let found = look(&disk);
            // A state that went may have been the first of another replica.
            let is_state = stands.is_some_and(|record| record.2 == 64);
            assert!(!found.has_unknown_loss || is_state, "{path:?} {offset} {owner:?}");
            for was in before.iter().filter(|was| Some(was.group) != owner) {
                let is = found.groups.iter().find(|is| is.group == was.group);
                assert_eq!(is, Some(was), "{path:?} {offset} of {owner:?}");
            }
            for is in found.groups.iter().filter(|is| Some(is.group) == owner && !is.is_damaged) {
                let is_same = before.contains(is);
                assert!(is_same || is.group == group(9), "{path:?} {offset} {is:?}");
            }
            disk.flip_byte(path, offset).unwrap();
        }
    }
    assert_eq!(look(&disk).groups, before, "every byte was flipped back");
}

/// A segment goes only when it is on record that it does: its absence proves that this round is no torn tail.
pub(crate) fn m3_a_flip_in_the_round_that_frees_a_segment_is_no_torn_tail(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 4, 1)), append(2, entries(1, 3, 1)), append(3, entries(1, 300, 1))]);
    logs.truncate_prefix(group(1), 2);
    logs.truncate_prefix(group(3), 290);
    assert!(logs.collect().unwrap().freed_segments > 0);
    let (path, offset, ..) = records(&disk).into_iter().rfind(|record| record.3 == group(1)).unwrap();
    disk.flip_byte(&path, offset + 20).unwrap();
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(read_back(&*logs, find(&recovered, 2)), entries(1, 3, 1));
    assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(291, 10, 1));
}

/// Another replica may have begun with that state, and have voted.
pub(crate) fn m3_a_lost_state_leaves_it_open_which_replica_stood_there(layout: &dyn Layout) {
    for byte in [20, 60] {
        let disk = three_groups(layout);
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        logs.commit(&[Append { replica: ReplicaId(99), ..append(2, Vec::new()) }]);
        logs.commit(&[append(1, entries(13, 1, 1))]);
        let (path, offset, ..) = records(&disk).into_iter().rfind(|record| record.3 == group(2)).unwrap();
        disk.flip_byte(&path, offset + byte).unwrap();
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert_eq!(recovered.iter().map(|found| found.is_damaged).collect::<Vec<_>>(), [false, true, false]);
        assert!(logs.has_unknown_loss());
    }
}

/// Where a batch's head and its list are bad, nobody can say what it held; what came later is found again.
pub(crate) fn m3_a_block_with_a_head_and_no_list_bounds_what_is_unknown(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 1, 1))]);
    logs.commit(&[append(2, entries(1, 1, 1))]);
    logs.commit(&[append(3, entries(1, 2, 1))]);
    let (path, offset) = record_of(&disk, 2, 1);
    // A batch of a state and an entry: its head stands before these, its list after them.
    let (head, list) = (offset - 104 - 40, (offset + 140).next_multiple_of(8));
    disk.flip_byte(&path, head).unwrap();
    let (_, recovered) = layout.open(&disk, options()).unwrap();
    assert!(recovered.len() == 3 && recovered.iter().all(|found| !found.is_damaged), "the list is enough");
    disk.flip_byte(&path, list).unwrap();
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(logs.has_unknown_loss() && find(&recovered, 1).is_damaged && !find(&recovered, 3).is_damaged);
    assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(1, 2, 1));
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
    assert_all_are_lost(layout, &disk, "an end that cannot be read");
}

/// A segment's file has its full size before it has its name, so that a shorter one has lost something.
pub(crate) fn m3_a_segment_that_was_cut_short_is_not_a_torn_tail(layout: &dyn Layout) {
    let disk = three_groups(layout);
    let (path, offset) = record_of(&disk, 2, 13);
    let file = disk.open(&path, OpenMode::Write).unwrap();
    file.set_len(offset).unwrap();
    file.sync_all().unwrap();
    assert_all_are_lost(layout, &disk, "a segment that was cut short");
}

/// The newest segment with its end: where its last batch ends.
fn newest(disk: &SimDisk) -> (PathBuf, u64) {
    let newest = inspect(disk, Path::new(DIR), &mut |_| {}).unwrap().segments.pop().unwrap();
    (Path::new(DIR).join(format!("{:016x}.seg", newest.id)), newest.end)
}

fn fill_with_zeros(disk: &SimDisk, path: &Path, bytes: std::ops::Range<u64>) {
    let zeros = vec![0; (bytes.end - bytes.start) as usize];
    let file = disk.open(path, OpenMode::Write).unwrap();
    file.write_at(bytes.start, &zeros).unwrap();
    file.sync_all().unwrap();
}

/// Three groups with `rounds` rounds in the same life or, each of them, in a life of its own. Nothing is marked.
fn rounds_of_three(layout: &dyn Layout, rounds: u64, is_opened_anew: bool) -> SimDisk {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    for round in 0..rounds {
        if is_opened_anew {
            (logs, _) = layout.open(&disk, options()).unwrap();
        }
        logs.commit(&[1, 2, 3].map(|number| append(number, entries(1 + round * 4, 4, 1))));
    }
    disk
}

/// Nothing after the loss can be told apart from what was there, so everybody is damaged, and stays so whenever the
/// machine stops, until each group begins anew.
fn assert_all_are_lost(layout: &dyn Layout, disk: &SimDisk, note: &str) {
    for calls in 0..40 {
        let (mut logs, recovered) = layout.open(disk, options()).unwrap();
        assert!(logs.has_unknown_loss() || calls > 0, "{note}: nothing is missed");
        let is_damaged = recovered.len() == 3 && recovered.iter().all(|found| found.is_damaged);
        assert!(is_damaged, "{note}, {calls} calls: {recovered:?}");
        disk.stop_after(calls);
        drop(logs.write(&[append(4, entries(1, 1, 1))]).map(|()| logs.sync()));
        disk.crash(&mut Random::new(calls));
        if layout.open(disk, options()).unwrap().1.iter().any(|found| found.group == group(4)) {
            break;
        }
    }
    let (mut logs, _) = layout.open(disk, options()).unwrap();
    for number in [1, 2, 3] {
        logs.commit(&[Append { reset: Some(at(9, 90)), ..append(number, entries(91, 30, 9)) }]);
    }
    logs.collect().unwrap();
    logs.mark();
    disk.crash(&mut Random::new(1));
    let (mut logs, recovered) = layout.open(disk, options()).unwrap();
    assert!([1, 2, 3].iter().all(|number| !find(&recovered, *number).is_damaged), "{note}: it goes on");
    assert_eq!(read_back(&*logs, find(&recovered, 3)), entries(91, 30, 9));
    logs.remove_group(group(4));
    logs.commit(&[append(1, entries(121, 1, 9))]);
    logs.collect().unwrap();
    let (logs, _) = layout.open(disk, options()).unwrap();
    assert!(!logs.has_unknown_loss(), "{note}: the loss is dealt with once nobody needs what stood before it");
}

/// The segment before says that there is another one.
pub(crate) fn m3a_the_newest_segment_removed_is_damage(layout: &dyn Layout) {
    for (rounds, is_opened_anew) in [(20, false), (2, true), (3, true)] {
        for is_power_lost in [false, true] {
            let disk = rounds_of_three(layout, rounds, is_opened_anew);
            if is_power_lost {
                disk.crash(&mut Random::new(rounds));
            }
            disk.remove_file(&newest(&disk).0).unwrap();
            assert_all_are_lost(layout, &disk, &format!("{rounds} rounds, {is_opened_anew}, {is_power_lost}"));
        }
    }
}

/// A mark says that there was a log, and how far it went, whatever is left of it.
pub(crate) fn m3a_a_log_without_its_last_segments_is_damage(layout: &dyn Layout) {
    for left in 0..3 {
        let disk = rounds_of_three(layout, 4, true);
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        logs.commit(&[append(1, entries(17, 1, 1))]);
        logs.mark();
        drop(logs);
        let names = disk.list(Path::new(DIR)).unwrap();
        for name in names.iter().filter(|name| name.ends_with(".seg")).skip(left) {
            disk.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert!(logs.has_unknown_loss() && recovered.iter().all(|found| found.is_damaged), "{left}: {recovered:?}");
        let ids: Vec<String> = names.iter().filter(|name| name.ends_with(".seg")).cloned().collect();
        drop(logs);
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        logs.commit(&[append(5, entries(1, 1, 1))]);
        let newest = newest(&disk).0;
        assert!(
            ids.iter().all(|name| !newest.ends_with(name)),
            "{newest:?}: the id of a lost segment is not used again"
        );
    }
}

/// What the mark speaks of was durable: where it is missing it is no torn tail.
pub(crate) fn m3a_the_zeroed_end_of_the_log_is_damage(layout: &dyn Layout) {
    for rounds in [1, 3, 12] {
        let disk = rounds_of_three(layout, rounds, false);
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        logs.commit(&[append(1, entries(1 + rounds * 4, 1, 1))]);
        let (path, before) = newest(&disk);
        logs.commit(&[append(2, entries(1 + rounds * 4, 1, 1))]);
        logs.mark();
        drop(logs);
        let (_, end) = newest(&disk);
        let size = disk.open(&path, OpenMode::Read).unwrap().len().unwrap();
        for from in [8192, before, end - 100] {
            let mut files = files_of_log(&disk);
            files.push((mark_path(), read_file(&disk, &mark_path()).unwrap()));
            let disk = copy(&files);
            fill_with_zeros(&disk, &path, from..size);
            let note = format!("{rounds} rounds, zeros from {from} of {end}");
            if from < end - 100 {
                assert_all_are_lost(layout, &disk, &note);
            } else {
                // The batch's head is left, but neither its list nor all of its only entry.
                let (_, recovered) = layout.open(&disk, options()).unwrap();
                assert!(find(&recovered, 2).is_damaged, "{note}");
            }
        }
    }
}

/// Somebody puts back all files of the log, or only the newest segment, as they were earlier, in the same life of the node or
/// in one before. The mark is not among them.
pub(crate) fn m3b_a_log_put_back_to_an_older_state_is_damage(layout: &dyn Layout) {
    for (later, is_whole, is_opened_anew) in [
        (1, true, false),
        (1, false, false),
        (2, false, false),
        (8, true, false),
        (40, true, false),
        (1, true, true),
        (8, true, true),
    ] {
        let disk = SimDisk::new();
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        let round = |round: u64| [1, 2, 3].map(|number| append(number, entries(1 + round * 4, 4, 1)));
        (0..3).for_each(|number| logs.commit(&round(number)));
        let (older, was_newest) = (files_of_log(&disk), newest(&disk).0);
        if is_opened_anew {
            (logs, _) = layout.open(&disk, options()).unwrap();
        }
        (3..3 + later).for_each(|number| logs.commit(&round(number)));
        logs.mark();
        drop(logs);
        let mut files = if is_whole { Vec::new() } else { files_of_log(&disk) };
        for file in older.into_iter().filter(|(path, _)| is_whole || *path == was_newest) {
            files.retain(|(path, _)| *path != file.0);
            files.push(file);
        }
        files.push((mark_path(), read_file(&disk, &mark_path()).unwrap()));
        let note = format!("{later} rounds later, whole log {is_whole}, opened anew {is_opened_anew}");
        assert_all_are_lost(layout, &copy(&files), &note);
    }
}

/// A log is away, another one begins in its place, several times perhaps, and the first is back: what was noted of the others says
/// nothing of it, and what was noted of it still does.
pub(crate) fn d3g_a_log_that_comes_back_after_another_one_is_whole(layout: &dyn Layout) {
    let disk = rounds_of_three(layout, 3, false);
    let earlier = files_of_log(&disk);
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(13, 1, 1))]);
    logs.mark();
    drop(logs);
    let whole = files_of_log(&disk);
    let put_back = |disk: &SimDisk, files: &[(PathBuf, Vec<u8>)]| {
        for (path, _) in files_of_log(disk) {
            disk.remove_file(&path).unwrap();
        }
        for (path, bytes) in files {
            disk.open(path, OpenMode::Create).unwrap().write_at(0, bytes).unwrap();
        }
    };
    let marks = |disk: &SimDisk| {
        let beside = Path::new(DIR).parent().unwrap();
        let paths = disk.list(beside).unwrap().into_iter().map(|name| beside.join(name));
        let marks = paths.filter(|path| path.extension().is_some_and(|end| end == "mark"));
        marks.map(|path| (path.clone(), read_file(disk, &path).unwrap())).collect::<Vec<_>>()
    };
    for others in 1..=3 {
        put_back(&disk, &[]);
        let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
        assert!(logs.has_unknown_loss() && recovered.is_empty(), "the log is gone");
        // As many segments and batches as the first has, or more.
        (0..10 * others).for_each(|round| logs.commit(&[append(7, entries(1 + 4 * round, 4, 1))]));
        logs.mark();
        drop(logs);
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert_eq!((logs.mark_problem(), find(&recovered, 7).last), (None, at(1, 40 * others)));
        drop(logs);
        let other = files_of_log(&disk);

        put_back(&disk, &whole);
        let older = [&earlier[..], &marks(&disk)].concat();
        assert_all_are_lost(layout, &copy(&older), "it lacks what was noted of it");
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert_eq!((logs.mark_problem(), logs.has_unknown_loss()), (None, false));
        assert_eq!(find(&recovered, 1).last, at(1, 13));
        drop(logs);

        // The other one again.
        put_back(&disk, &other);
        let (logs, recovered) = layout.open(&disk, options()).unwrap();
        assert_eq!((logs.mark_problem(), find(&recovered, 7).last), (None, at(1, 40 * others)));
        drop(logs);
        put_back(&disk, &whole);

        // Files of both together.
        for (path, bytes) in &other {
            disk.open(path, OpenMode::Create).unwrap().write_at(0, bytes).unwrap();
        }
        let before = files_of_log(&disk);
        assert!(matches!(layout.open(&disk, options()), Err(OpenError::Mixed { .. })));
        assert_eq!(files_of_log(&disk), before);
        for (path, _) in &other {
            disk.remove_file(path).unwrap();
        }
    }
}

/// What came after the mark may be a torn tail, and is treated as one.
pub(crate) fn what_the_mark_does_not_speak_of_may_be_torn(layout: &dyn Layout) {
    let disk = rounds_of_three(layout, 3, false);
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(13, 1, 1))]);
    logs.mark();
    let (path, marked) = newest(&disk);
    logs.write(&[append(2, entries(13, 1, 1))]).unwrap();
    let (_, end) = newest(&disk);
    fill_with_zeros(&disk, &path, marked..end);
    let (logs, recovered) = layout.open(&disk, options()).unwrap();
    assert!(!logs.has_unknown_loss() && recovered.iter().all(|found| !found.is_damaged), "{recovered:?}");
    assert_eq!((find(&recovered, 1).last, find(&recovered, 2).last), (at(1, 13), at(1, 12)));
}

/// Without a mark, or with one that is torn, the log opens and says what is wrong.
pub(crate) fn m3a_a_mark_that_cannot_be_used_says_nothing(layout: &dyn Layout) {
    let mark = mark_path();
    for kind in 0..4 {
        let disk = rounds_of_three(layout, 3, false);
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        assert!(logs.mark_problem().is_some(), "there was none");
        logs.commit(&[append(1, entries(13, 1, 1))]);
        logs.mark();
        drop(logs);
        let (logs, _) = layout.open(&disk, options()).unwrap();
        assert_eq!(logs.mark_problem(), None);
        match kind {
            0 => disk.remove_file(&mark).unwrap(),
            1 => disk.flip_byte(&mark, 17).unwrap(),
            2 => disk.open(&mark, OpenMode::Write).unwrap().set_len(20).unwrap(),
            _ => disk.lose_bytes(&mark, 0..1),
        }
        let (mut logs, recovered) = layout.open(&disk, options()).unwrap();
        assert!(logs.mark_problem().is_some() && !logs.has_unknown_loss(), "{kind}");
        assert!(recovered.iter().all(|found| !found.is_damaged));
        logs.commit(&[append(1, entries(14, 1, 1))]);
        logs.mark();
        let (logs, _) = layout.open(&disk, options()).unwrap();
        assert_eq!(logs.mark_problem().is_none(), kind < 3, "a new one is written");
    }
}

/// A mark that is there and cannot be opened is no damage: without what it says, a log whose end is gone would be opened as if it were whole.
pub(crate) fn d3_a_mark_that_cannot_be_opened_ends_the_opening(layout: &dyn Layout) {
    let disk = rounds_of_three(layout, 3, false);
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(13, 1, 1))]);
    logs.mark();
    drop(logs);
    // No descriptors, for the process or the system, and no permission.
    for errno in [24, 23, 13] {
        disk.fail_opens(&mark_path(), Some(errno));
        let error = layout.open(&disk, options()).err().unwrap().to_string();
        assert!(error.contains("cannot be opened at") && error.contains("log.mark"), "{error}");
    }
    // A device that does not give it back.
    disk.fail_opens(&mark_path(), Some(5));
    assert!(layout.open(&disk, options()).unwrap().0.mark_problem().is_some());
    disk.fail_opens(&mark_path(), None);
    assert_eq!(layout.open(&disk, options()).unwrap().0.mark_problem(), None);
}

/// With `durability = os` a mark speaks only of what was synced: a power failure may cut the rest.
pub(crate) fn d8_a_mark_speaks_of_no_round_that_was_not_synced(layout: &dyn Layout) {
    let options = Options { durability: hedgerow_wal::Durability::Os, ..options() };
    for seed in 0..60 {
        let disk = SimDisk::new();
        let (mut logs, _) = layout.open(&disk, options).unwrap();
        for round in 0..50 + seed % 10 {
            logs.commit(&[append(1, entries(1 + round, 1, 1)), append(2, entries(1 + round, 1, 1))]);
            logs.mark();
        }
        disk.crash(&mut Random::new(seed));
        let (logs, recovered) = layout.open(&disk, options).unwrap();
        assert!(!logs.has_unknown_loss() && recovered.iter().all(|found| !found.is_damaged), "seed {seed}");
    }
}

/// The entries of an append stand before its hard state. A segment that becomes full between the two is synced, and where the disk has no room for
/// the next one it stays so: who reads the log must not take the commit index for as new as the entries.
pub(crate) fn d19_an_entry_may_be_durable_without_the_hard_state_behind_it(layout: &dyn Layout) {
    let mut parted = 0;
    for fill in 0..60 {
        let disk = SimDisk::new();
        let (mut logs, _) = layout.open(&disk, Options { recycle_max: 0, ..options() }).unwrap();
        logs.commit(&[Append { hard_state: Some(hard_state(1, 3)), ..append(1, entries(1, 5, 1)) }]);
        disk.set_full(true);
        let filler = Entry { data: vec![1; 20 * fill].into(), ..entries(1, 1, 1).remove(0) };
        logs.commit(&[append(2, vec![filler])]);
        for index in 6.. {
            let along = Append { hard_state: Some(hard_state(1, index - 1)), ..append(1, entries(index, 1, 1)) };
            match logs.write(&[along]) {
                Ok(()) => logs.sync().unwrap(),
                Err(_) => break,
            }
        }
        drop(logs);
        disk.set_full(false);
        disk.crash(&mut Random::new(fill as u64));
        let (_, recovered) = layout.open(&disk, options()).unwrap();
        let found = find(&recovered, 1);
        assert!(!found.is_damaged, "{fill}: {found:?}");
        let behind = found.last.index - found.hard_state.commit;
        assert!((1..=2).contains(&behind), "{fill}: {found:?}");
        parted += usize::from(behind == 2);
    }
    assert!(parted > 0, "no segment became full between an entry and its hard state");
}
