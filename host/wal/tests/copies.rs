//! Groups that come from one log to another: whenever the machine stops, one complete log of each is there, with all that it held.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::Disk;
use hedgerow_env::sim::SimDisk;
use hedgerow_types::log::{Entry, EntryKind, HardState};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, CopyError, Durability, Halt, Log, Options, Recovered};
use std::path::Path;
use std::sync::Arc;

const FORMER: &str = "/one/log";
const NEXT: &str = "/two/log";
/// Groups that move.
const GROUPS: u32 = 3;

fn options(durability: Durability) -> Options {
    Options { segment_size: 20 << 10, durability, segments_max: 4, recycle_max: 2 }
}

fn group(number: u32) -> GroupId {
    GroupId::new(1, number)
}

fn moved() -> Vec<GroupId> {
    (0..GROUPS).map(group).collect()
}

fn open(disk: &SimDisk, dir: &str, durability: Durability) -> (Log, Vec<Recovered>) {
    Log::open(Arc::new(disk.clone()), Path::new(dir), options(durability)).unwrap()
}

fn append(number: u32, replica: u64, first: u64, count: u64) -> Append {
    let kind = |index| if index % 5 == 0 { EntryKind::Membership } else { EntryKind::Normal };
    let entry = |index| Entry { index, term: 3, kind: kind(index), data: vec![index as u8; 300].into() };
    let hard_state = Some(HardState { term: 4, vote: Some(ReplicaId(9)), commit: first });
    let entries = (first..first + count).map(entry).collect();
    Append { group: group(number), replica: ReplicaId(replica), reset: None, entries, hard_state }
}

/// Two logs: the groups that move are in the former one, more of each than a segment holds. The next one has a group of its own, and an
/// older replica of one that moves.
fn two_logs(durability: Durability) -> SimDisk {
    let disk = SimDisk::new();
    let (mut former, _) = open(&disk, FORMER, durability);
    for number in 0..GROUPS {
        former.write(&[append(number, 7, 1, 100)]).unwrap();
    }
    former.truncate_prefix(group(1), 40);
    former.write(&[append(1, 7, 90, 3)]).unwrap();
    former.sync().unwrap();
    let (mut next, _) = open(&disk, NEXT, durability);
    next.write(&[append(GROUPS, 7, 1, 20), append(0, 6, 1, 30)]).unwrap();
    next.strike_groups(&[]).unwrap();
    former.strike_groups(&[]).unwrap();
    disk
}

/// What of a group can be compared: all but how often it was copied.
fn content(log: &Log, found: &Recovered) -> (Recovered, Vec<Entry>) {
    let entries = log.reader().entries(found.group, found.start.index + 1, found.last.index + 1, usize::MAX).unwrap();
    (Recovered { generation: 0, is_pending: false, ..*found }, entries)
}

/// Of each group that moves, the copy that counts, and in how many logs its replica is.
fn winners(disk: &SimDisk, durability: Durability) -> Vec<(Recovered, Vec<Entry>, u64, usize)> {
    let logs = [FORMER, NEXT].map(|dir| open(disk, dir, durability));
    let of = |group: GroupId| {
        let mut found: Vec<(&Log, &Recovered)> = Vec::new();
        for (log, recovered) in &logs {
            found.extend(recovered.iter().filter(|it| it.group == group).map(|it| (log, it)));
        }
        found.sort_by_key(|(_, found)| (found.replica, found.generation));
        let (log, best) = *found.last().unwrap();
        let same = found.iter().filter(|(_, found)| found.replica == best.replica).count();
        let (recovered, entries) = content(log, best);
        (recovered, entries, best.generation, same)
    };
    moved().into_iter().map(of).collect()
}

/// Moves all groups that are in the former log, as far as the disk goes along.
fn move_all(disk: &SimDisk, durability: Durability) -> Result<(), CopyError> {
    let (mut former, recovered) = open(disk, FORMER, durability);
    let (mut next, _) = open(disk, NEXT, durability);
    let groups: Vec<GroupId> = recovered.iter().map(|found| found.group).collect();
    next.copy_groups(&former, &with_generation(&groups, 1))?;
    former.strike_groups(&groups)?;
    Ok(next.settle_groups(&moved())?)
}

fn with_generation(groups: &[GroupId], generation: u64) -> Vec<(GroupId, u64)> {
    groups.iter().map(|group| (*group, generation)).collect()
}

#[test]
fn d3l_a_group_that_moves_has_one_complete_log_whenever_the_machine_stops() {
    for durability in [Durability::Fsync, Durability::Os] {
        let whole = two_logs(durability);
        let expected: Vec<(Recovered, Vec<Entry>)> =
            winners(&whole, durability).into_iter().map(|(found, entries, ..)| (found, entries)).collect();
        assert_eq!(expected[0].0.last.index, 100);
        let (mut ends, mut doubled) = (0, 0);
        for calls in 0..400 {
            let disk = whole.copy();
            // Opening, too, may be where it stops; what it says is durable.
            drop(winners(&disk, durability));
            disk.stop_after(calls);
            let has_ended = std::panic::catch_unwind(|| move_all(&disk, durability)).is_ok_and(|moved| moved.is_ok());
            disk.crash(&mut Random::new(calls));
            let after = winners(&disk, durability);
            for ((found, entries, generation, same), expected) in after.iter().zip(&expected) {
                assert_eq!((found, entries), (&expected.0, &expected.1), "{durability:?}, {calls} calls");
                assert!(!has_ended || (*generation, *same) == (1, 1), "{calls} calls");
                doubled += usize::from(*same > 1);
            }
            if has_ended {
                ends += 1;
                break;
            }
            // Another start ends it.
            move_all(&disk, durability).unwrap();
            disk.crash(&mut Random::new(calls));
            for ((found, entries, _, same), expected) in winners(&disk, durability).iter().zip(&expected) {
                assert_eq!((found, entries, same), (&expected.0, &expected.1, &1), "{durability:?}, {calls} calls");
            }
        }
        assert_eq!(ends, 1, "the move comes to its end");
        assert!(doubled > 0, "some stops leave two complete logs");
    }
}

#[test]
fn groups_go_back_and_forth_and_count_how_often() {
    let disk = two_logs(Durability::Fsync);
    let expected = winners(&disk, Durability::Fsync);
    for generation in 1..=4 {
        let (from, to) = if generation % 2 == 1 { (FORMER, NEXT) } else { (NEXT, FORMER) };
        let (mut source, _) = open(&disk, from, Durability::Fsync);
        let (mut target, _) = open(&disk, to, Durability::Fsync);
        target.copy_groups(&source, &with_generation(&moved(), generation)).unwrap();
        source.strike_groups(&moved()).unwrap();
        target.settle_groups(&moved()).unwrap();
        source.collect().unwrap();
        target.collect().unwrap();
        drop((source, target));
        for (after, before) in winners(&disk, Durability::Fsync).iter().zip(&expected) {
            assert_eq!((&after.0, &after.1, after.2, after.3), (&before.0, &before.1, generation, 1));
        }
    }
    let (log, recovered) = open(&disk, NEXT, Durability::Fsync);
    let bystander = recovered.iter().find(|found| found.group == group(GROUPS)).unwrap();
    assert_eq!((bystander.generation, content(&log, bystander).1.len()), (0, 20), "who does not move stays");
}

/// What goes on with a copy is in its generation; a life of another replica begins at none.
#[test]
fn a_copy_goes_on_in_its_generation() {
    let disk = two_logs(Durability::Fsync);
    move_all(&disk, Durability::Fsync).unwrap();
    let (mut log, _) = open(&disk, NEXT, Durability::Fsync);
    log.write(&[append(0, 7, 101, 30), append(1, 8, 1, 2)]).unwrap();
    log.truncate_prefix(group(0), 120);
    log.strike_groups(&[]).unwrap();
    drop(log);
    let (log, recovered) = open(&disk, NEXT, Durability::Fsync);
    let found = |number| *recovered.iter().find(|found| found.group == group(number)).as_ref().unwrap();
    assert_eq!((found(0).generation, content(&log, found(0)).1.len()), (1, 10));
    assert_eq!((found(1).replica, found(1).generation), (ReplicaId(8), 0));
}

/// An entry that went bad since the log was opened ends the copy. The next opening finds its group damaged, and that goes with the copy.
#[test]
fn m3_damage_goes_with_a_copy() {
    let disk = two_logs(Durability::Fsync);
    let (former, _) = open(&disk, FORMER, Durability::Fsync);
    let mut place = None;
    hedgerow_wal::inspect(&disk, Path::new(FORMER), &mut |event| {
        if let hedgerow_wal::Event::Record(at, head, _) = event
            && (head.group, head.index) == (group(2), 60)
        {
            place = Some(at);
        }
    })
    .unwrap();
    let place = place.unwrap();
    disk.flip_byte(&Path::new(FORMER).join(format!("{:016x}.seg", place.segment)), place.offset + 50).unwrap();
    let (mut next, _) = open(&disk, NEXT, Durability::Fsync);
    let error = next.copy_groups(&former, &with_generation(&moved(), 1)).unwrap_err();
    assert!(matches!(error, CopyError::Unreadable { .. }), "{error}");
    drop((former, next));
    move_all(&disk, Durability::Fsync).unwrap();
    let (_, recovered) = open(&disk, NEXT, Durability::Fsync);
    let damaged: Vec<GroupId> = recovered.iter().filter(|found| found.is_damaged).map(|found| found.group).collect();
    assert_eq!(damaged, [group(2)]);
}

/// Whoever finds a copy alone knows whether what it is a copy of may still be somewhere.
#[test]
fn d3l_a_copy_is_pending_until_the_former_log_is_struck_out() {
    let disk = two_logs(Durability::Fsync);
    let pending = |disk: &SimDisk| {
        let (_, recovered) = open(disk, NEXT, Durability::Fsync);
        moved().iter().filter(|group| recovered.iter().any(|it| it.group == **group && it.is_pending)).count()
    };
    assert_eq!(pending(&disk), 0);
    let (former, _) = open(&disk, FORMER, Durability::Fsync);
    let (mut next, _) = open(&disk, NEXT, Durability::Fsync);
    next.copy_groups(&former, &with_generation(&moved(), 1)).unwrap();
    drop((former, next));
    assert_eq!(pending(&disk), moved().len());
    move_all(&disk, Durability::Fsync).unwrap();
    disk.crash(&mut Random::new(1));
    assert_eq!(pending(&disk), 0);
}

#[test]
fn n1_a_copy_that_has_no_room_leaves_the_group_where_it_was() {
    let disk = two_logs(Durability::Fsync);
    let expected = winners(&disk, Durability::Fsync);
    let (former, _) = open(&disk, FORMER, Durability::Fsync);
    let (mut next, _) = open(&disk, NEXT, Durability::Fsync);
    disk.set_full(true);
    let error = next.copy_groups(&former, &with_generation(&moved(), 1)).unwrap_err();
    assert!(matches!(error, CopyError::Halt(Halt::Stalled(_))), "{error}");
    drop((former, next));
    disk.set_full(false);
    for (after, before) in winners(&disk, Durability::Fsync).iter().zip(&expected) {
        assert_eq!((&after.0, &after.1, after.2), (&before.0, &before.1, 0));
    }
}

/// Where a log has ended another one begins, and misses nothing; where one is gone, it does.
#[test]
fn a_log_that_has_ended_is_not_missed() {
    for has_ended in [true, false] {
        let disk = two_logs(Durability::Fsync);
        for _ in 0..3 {
            let (mut log, recovered) = open(&disk, FORMER, Durability::Fsync);
            assert_eq!(log.has_unknown_loss(), !has_ended && recovered.is_empty());
            log.write(&[append(GROUPS + 1, 7, 1, 3)]).unwrap();
            log.strike_groups(&moved()).unwrap();
            log.mark();
            if has_ended {
                log.end().unwrap();
            }
            disk.remove_dir_all(Path::new(FORMER)).unwrap();
            disk.sync_dir(Path::new("/one")).unwrap();
        }
    }
}
