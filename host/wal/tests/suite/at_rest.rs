//! Logs that are looked at from outside, at rest and while they are written.

use crate::layout::{DIR, Layout, append, entries, group, options};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk as _, OpenMode, read_file};
use hedgerow_types::GroupId;
use hedgerow_types::random::Random;
use hedgerow_wal::{
    Damaged, Durability, End, Event, Follower, Inspection, Options, Seen, inspect, inspect_as, inspect_running,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn look(disk: &SimDisk) -> Inspection {
    inspect(disk, Path::new(DIR), &mut |_| {}).unwrap()
}

fn path_of(segment: u64) -> PathBuf {
    Path::new(DIR).join(format!("{segment:016x}.seg"))
}

fn follower(disk: &SimDisk) -> Follower {
    Follower::new(Arc::new(disk.clone()), Path::new(DIR), 0)
}

/// The entries that a look shows, and how many places of damage.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    entries: Vec<(GroupId, u64)>,
    bad: usize,
}

impl Shown {
    fn note(&mut self, event: Event<'_>) {
        match event {
            Event::Record(_, head, _) if head.entry_kind().is_some() && head.index > 0 && head.size == 100 => {
                self.entries.push((head.group, head.index));
            }
            Event::Record(..) | Event::Batch(..) => {}
            Event::BadPayload(..) | Event::BadHead(..) | Event::Unreadable(..) => self.bad += 1,
        }
    }
}

fn poll(follower: &mut Follower) -> (Shown, Seen) {
    let mut shown = Shown::default();
    let seen = follower.poll(&mut |event| shown.note(event)).unwrap();
    (shown, seen)
}

/// What inspection of the whole log shows, which is what a start would read.
fn walked(disk: &SimDisk) -> Shown {
    let mut shown = Shown::default();
    inspect(disk, Path::new(DIR), &mut |event| shown.note(event)).unwrap();
    shown
}

fn numbers(number: u32, indices: impl IntoIterator<Item = u64>) -> Vec<(GroupId, u64)> {
    indices.into_iter().map(|index| (group(number), index)).collect()
}

pub(crate) fn the_group_that_holds_the_oldest_segment_is_named(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, Options { segments_max: 100, ..options() }).unwrap();
    logs.commit(&[append(1, entries(1, 2, 1)), append(2, entries(1, 3, 1))]);
    logs.commit(&[append(2, entries(4, 400, 1))]);
    logs.truncate_prefix(group(2), 300);
    logs.commit(&[append(3, entries(1, 1, 1))]);
    logs.collect().unwrap();
    let found = look(&disk);
    assert!(found.is_sound() && found.end == End::Clean && found.segments.len() > 1, "{found:?}");
    let oldest = &found.segments[0];
    // Two entries and the state of its group; the other group's records there are out of use.
    assert_eq!(oldest.in_use.iter().collect::<Vec<_>>(), [(&group(1), &(2 * 140 + 104))]);
    assert!(oldest.records.contains_key(&group(2)));
    assert_eq!((found.oldest_held(group(1)), found.bytes_in_use(group(1))), (Some(oldest.id), 2 * 140 + 104));
    assert!(found.oldest_held(group(2)) > Some(oldest.id));
    let batches: Vec<(u64, u64)> = found.segments.iter().filter_map(|segment| segment.batches).collect();
    assert!(batches.iter().all(|(first, last)| first <= last) && batches.is_sorted(), "{batches:?}");
    assert!(found.segments.iter().all(|segment| segment.rounds > 0));
    // What the log itself says of it.
    let in_use: u64 = found.segments.iter().flat_map(|segment| segment.in_use.values()).sum();
    let (log, _) = hedgerow_wal::Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap();
    assert_eq!((log.stats().live_bytes, log.pins(oldest.id)), (in_use, oldest.in_use.clone()));
}

pub(crate) fn a_flipped_byte_is_found_with_its_place_and_its_victim(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 3, 1)), append(2, entries(1, 3, 1))]);
    logs.commit(&[append(1, entries(4, 1, 1))]);
    let mut places = Vec::new();
    inspect(&disk, Path::new(DIR), &mut |event| {
        if let Event::Record(place, head, _) = event
            && head.group == group(2)
            && head.size == 100
        {
            places.push(place);
        }
    })
    .unwrap();
    let place = places[1];
    for (byte, what) in [(60, Damaged::Entry(group(2), 2)), (20, Damaged::Record(group(2)))] {
        disk.flip_byte(&path_of(place.segment), place.offset + byte).unwrap();
        let found = look(&disk);
        assert_eq!(found.damage.iter().map(|damage| (damage.place, damage.what)).collect::<Vec<_>>(), [(place, what)]);
        assert!(!found.is_sound() && !found.has_unknown_loss && found.damage_count == 1);
        let victims: Vec<GroupId> =
            found.groups.iter().filter(|group| group.is_damaged).map(|found| found.group).collect();
        assert_eq!(victims, [group(2)]);
        let (shown, _) = poll(&mut follower(&disk));
        assert_eq!((shown.bad, shown.entries.len()), (1, 6), "what is sound is shown all the same");
        // Damage is no race: a second look says the same.
        assert_eq!(
            inspect_running(&disk, Path::new(DIR), Durability::Fsync, &mut |_| {}).unwrap().unwrap().damage_count,
            1
        );
        disk.flip_byte(&path_of(place.segment), place.offset + byte).unwrap();
    }
    assert!(look(&disk).is_sound());
}

pub(crate) fn a_torn_tail_is_told_from_damage_and_both_from_a_clean_end(layout: &dyn Layout) {
    let (mut torn, mut clean) = (0, 0);
    for seed in 0..60 {
        let disk = SimDisk::new();
        let (mut logs, _) = layout.open(&disk, options()).unwrap();
        logs.commit(&[append(1, entries(1, 3, 1)), append(2, entries(1, 3, 1))]);
        logs.write(&[append(1, entries(4, 30, 1)), append(2, entries(4, 30, 1))]).unwrap();
        disk.crash(&mut Random::new(seed));
        let found = inspect_as(&disk, Path::new(DIR), Durability::Fsync, &mut |_| {}).unwrap();
        assert!(found.is_sound(), "{seed} {found:?}");
        match found.end {
            End::Torn(place) => {
                torn += 1;
                assert_eq!(Some(place.offset), found.segments.last().map(|segment| segment.end));
            }
            End::Clean => clean += 1,
            End::CutShort(_) => panic!("{seed} {found:?}"),
        }
        let mut follower = follower(&disk);
        let (mut shown, _) = poll(&mut follower);
        let end = follower.finish(&mut |event| shown.note(event)).unwrap();
        assert_eq!((end.is_some(), shown), (matches!(found.end, End::Torn(_)), walked(&disk)), "{seed}");
    }
    assert!(torn > 5 && clean > 5, "{torn} {clean}");
}

pub(crate) fn a_newest_segment_that_is_cut_short_is_a_loss_where_syncs_count(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 3, 1))]);
    let newest = look(&disk).segments.pop().unwrap();
    let file = disk.open(&path_of(newest.id), OpenMode::Write).unwrap();
    file.set_len(newest.end).unwrap();
    let as_with = |durability| inspect_as(&disk, Path::new(DIR), durability, &mut |_| {}).unwrap();
    let (synced, cached) = (as_with(Durability::Fsync), as_with(Durability::Os));
    assert!(matches!((synced.end, cached.end), (End::CutShort(_), End::CutShort(_))));
    assert!(!synced.is_sound() && synced.has_unknown_loss && synced.groups[0].is_damaged);
    assert!(cached.is_sound());
}

pub(crate) fn a_follower_shows_what_comes_once_and_in_order(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let mut follower = follower(&disk);
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    assert_eq!(poll(&mut follower), Default::default(), "there is no segment yet");
    let mut all = Shown::default();
    for round in 0..60 {
        logs.commit(&[append(1, entries(1 + 10 * round, 10, 1))]);
        let (shown, seen) = poll(&mut follower);
        assert_eq!((shown.bad, seen), (0, Seen::default()));
        all.entries.extend(shown.entries);
        // A second look without a write between.
        assert_eq!(poll(&mut follower).0, Shown::default());
    }
    assert!(logs.segment_count() > 3);
    assert_eq!(all.entries, numbers(1, 1..=600));
}

pub(crate) fn a_follower_says_what_was_collected_before_it_looked(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    let mut follower = follower(&disk);
    logs.commit(&[append(1, entries(1, 10, 1))]);
    assert_eq!(poll(&mut follower).0.entries, numbers(1, 1..=10));
    for round in 1..60 {
        logs.commit(&[append(1, entries(1 + 10 * round, 10, 1))]);
        logs.truncate_prefix(group(1), 10 * round);
        logs.collect().unwrap();
    }
    let (shown, seen) = poll(&mut follower);
    assert!(seen.skipped_batches > 0, "{seen:?}");
    assert_eq!((shown.entries.last(), shown.bad), (Some(&(group(1), 600)), 0));
    assert!(shown.entries.len() < 400);
}

/// The writer has put part of a batch there, or its head before its records: nothing is shown until it is whole.
pub(crate) fn a_follower_waits_for_what_is_half_written(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 2, 1))]);
    let before = look(&disk).segments.pop().unwrap();
    logs.commit(&[append(1, entries(3, 2, 1))]);
    let path = path_of(before.id);
    let whole = read_file(&disk, &path).unwrap();
    let file = disk.open(&path, OpenMode::Write).unwrap();
    let (start, end) = (before.end as usize, look(&disk).segments.pop().unwrap().end as usize);
    file.write_at(start as u64, &vec![0; end - start]).unwrap();
    let mut follower = follower(&disk);
    assert_eq!(poll(&mut follower).0.entries, numbers(1, 1..=2));
    for written in (start..end).step_by(64) {
        file.write_at(start as u64, &whole[start..written]).unwrap();
        let (shown, _) = poll(&mut follower);
        assert!(shown == Shown::default() || shown.entries == numbers(1, 3..=4), "{written} {shown:?}");
        if !shown.entries.is_empty() {
            return assert!(end - written < 128, "only its list may be missing");
        }
    }
    file.write_at(start as u64, &whole[start..end]).unwrap();
    assert_eq!(poll(&mut follower).0.entries, numbers(1, 3..=4));
}

pub(crate) fn looking_changes_nothing(layout: &dyn Layout) {
    let disk = SimDisk::new();
    let (mut logs, _) = layout.open(&disk, options()).unwrap();
    logs.commit(&[append(1, entries(1, 300, 1))]);
    logs.mark();
    logs.prepare();
    let files = |disk: &SimDisk| {
        let names = disk.list(Path::new(DIR)).unwrap();
        let paths = names.into_iter().map(|name| Path::new(DIR).join(name)).chain([PathBuf::from("/data/log.mark")]);
        paths.map(|path| (path.clone(), read_file(disk, &path).unwrap())).collect::<Vec<_>>()
    };
    let before = files(&disk);
    look(&disk);
    let mut follower = follower(&disk);
    poll(&mut follower);
    follower.finish(&mut |_| {}).unwrap();
    assert_eq!(files(&disk), before);
}
