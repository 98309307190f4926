//! Group commit: what is in a round, in which order, and what the committer's thread tells.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::os::{OsDisk, spawn_thread};
use hedgerow_env::read_file;
use hedgerow_env::sim::SimDisk;
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant, ReplicaId};
use hedgerow_wal::{Append, Begun, Committer, Log, Options, Recovered, Round, Rounds, Stopped, Submission};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};

const DIR: &str = "/log";

fn options() -> Options {
    Options { segment_size: 64 << 10, segments_max: 3, ..Options::default() }
}

fn append(number: u32, replica: u64, first: u64, count: u64) -> Append {
    let entry = |index| Entry { index, term: 1, kind: EntryKind::Normal, data: vec![index as u8; 1000].into() };
    let entries = (first..first + count).map(entry).collect();
    Append { group: GroupId::new(1, number), replica: ReplicaId(replica), reset: None, entries, hard_state: None }
}

fn submission(ticket: u64, appends: Vec<Append>) -> Submission {
    Submission { appends, ticket, ..Submission::default() }
}

/// A committer of one log, number 0.
fn start(log: Log, on_round: impl Fn(Round) + Send + Sync + 'static) -> Committer {
    Committer::start(BTreeMap::from([(0, log)]), Box::new(move |_, round| on_round(round))).unwrap()
}

fn open(disk: &SimDisk) -> (Log, Vec<Recovered>) {
    Log::open(Arc::new(disk.clone()), Path::new(DIR), options()).unwrap()
}

#[test]
fn all_that_waits_is_one_write_and_one_sync() {
    let disk = SimDisk::new();
    let mut rounds = Rounds::new(open(&disk).0);
    rounds.submit(submission(0, vec![append(1, 1, 1, 1)]));
    assert!(matches!(rounds.begin().unwrap(), Begun::Written));
    assert_eq!(rounds.finish().unwrap(), [0]);
    let (before, syncs) = (rounds.log().stats(), disk.sync_count());
    for number in 1..20 {
        rounds.submit(submission(u64::from(number), vec![append(number, 1, if number == 1 { 2 } else { 1 }, 1)]));
    }
    assert!(rounds.has_waiting() && matches!(rounds.begin().unwrap(), Begun::Written) && !rounds.has_waiting());
    assert_eq!(rounds.finish().unwrap(), (1..20).collect::<Vec<_>>());
    let after = rounds.log().stats();
    assert_eq!((after.batches - before.batches, disk.sync_count() - syncs), (1, 1));
    assert_eq!(after.entries, 20);
    assert!(matches!(rounds.begin().unwrap(), Begun::Nothing) && rounds.finish().unwrap().is_empty());
    assert_eq!(disk.sync_count() - syncs, 1, "nothing to sync");
}

/// Each start begins a segment; those before it hold little, and are given back though nothing is truncated.
#[test]
fn many_starts_leave_few_segments() {
    let disk = SimDisk::new();
    for start in 0..40 {
        let mut rounds = Rounds::new(open(&disk).0);
        rounds.submit(submission(start, vec![append(1, 1, 1 + start, 1)]));
        assert!(matches!(rounds.begin().unwrap(), Begun::Written));
        rounds.finish().unwrap();
        rounds.tend().unwrap();
        let segments = rounds.log().stats().segments;
        assert!(segments <= options().segments_max + 2, "{segments} after {} starts", start + 1);
    }
    let (_, recovered) = open(&disk);
    assert_eq!((recovered[0].start.index, recovered[0].last.index), (0, 40));
}

#[test]
fn a_removal_forgets_what_was_submitted_before_and_nothing_after() {
    let disk = SimDisk::new();
    let mut rounds = Rounds::new(open(&disk).0);
    let group = GroupId::new(1, 1);
    rounds.submit(submission(1, vec![append(1, 1, 1, 10)]));
    rounds.submit(Submission { truncations: vec![(group, 9)], ticket: 2, ..Submission::default() });
    let again = Submission { removals: vec![group], appends: vec![append(1, 2, 1, 3)], ..Submission::default() };
    rounds.submit(Submission { ticket: 3, ..again });
    rounds.submit(submission(4, vec![append(1, 2, 4, 2)]));
    rounds.begin().unwrap();
    assert_eq!(rounds.finish().unwrap(), [1, 2, 3, 4]);
    disk.crash(&mut Random::new(1));
    let (_, recovered) = open(&disk);
    assert_eq!(recovered[0].replica, ReplicaId(2));
    assert_eq!((recovered[0].start.index, recovered[0].last.index), (0, 5));
}

#[test]
fn tending_gives_segments_back() {
    let disk = SimDisk::new();
    let mut rounds = Rounds::new(open(&disk).0);
    for round in 0..200 {
        let truncations = vec![(GroupId::new(1, 1), round * 10)];
        rounds.submit(Submission { truncations, ..submission(round, vec![append(1, 1, round * 10 + 1, 10)]) });
        rounds.begin().unwrap();
        rounds.finish().unwrap();
        rounds.tend().unwrap();
    }
    assert!(rounds.log().stats().segments <= 3, "{:?}", rounds.log().stats());
}

/// Whoever waits for a log of the same device has it sooner, however much falls out of use at once.
#[test]
fn tending_gives_back_few_segments_at_a_time() {
    let disk = SimDisk::new();
    let mut rounds = Rounds::new(open(&disk).0);
    rounds.submit(submission(1, vec![append(1, 1, 1, 3000)]));
    rounds.begin().unwrap();
    rounds.finish().unwrap();
    while rounds.tend().unwrap() {}
    let all = rounds.log().stats().segments;
    rounds.submit(Submission { truncations: vec![(GroupId::new(1, 1), 3000)], ticket: 2, ..Submission::default() });
    rounds.begin().unwrap();
    rounds.finish().unwrap();
    let mut counts = vec![all];
    while rounds.tend().unwrap() {
        counts.push(rounds.log().stats().segments);
    }
    counts.push(rounds.log().stats().segments);
    assert!(
        counts.len() > 3 && counts.windows(2).all(|pair| pair[1] < pair[0] && pair[0] - pair[1] <= 16),
        "{counts:?}"
    );
    assert_eq!(rounds.log().stats().segments, 1);
    drop(rounds);
    let (_, recovered) = open(&disk);
    assert_eq!((recovered[0].start.index, recovered[0].last.index, recovered[0].is_damaged), (3000, 3000, false));
}

#[test]
fn how_far_the_log_is_synced_is_noted_once_a_second_and_at_the_end() {
    let disk = SimDisk::new();
    let mut rounds = Rounds::new(open(&disk).0);
    let mark = || read_file(&disk, &Path::new(DIR).with_extension("mark")).ok();
    let second = |count: u64| Instant(count * 1_000_000_000);
    rounds.mark(second(1));
    assert_eq!(mark(), None, "nothing is synced");
    let mut marks = vec![mark()];
    for (round, now) in [second(2), Instant(second(3).0 - 1), second(3), second(9), second(9)].into_iter().enumerate() {
        rounds.submit(submission(0, vec![append(1, 1, 1 + round as u64, 1)]));
        rounds.begin().unwrap();
        rounds.finish().unwrap();
        assert!(!rounds.log().is_marked());
        let syncs = disk.sync_count();
        rounds.mark(now);
        assert_eq!(disk.sync_count() - syncs, u64::from(round == 0), "only for its name it waits");
        marks.push(mark());
    }
    rounds.close();
    assert!(rounds.log().is_marked());
    marks.push(mark());
    let is_new: Vec<bool> = marks.windows(2).map(|pair| pair[0] != pair[1]).collect();
    assert_eq!(is_new, [true, false, true, true, false, true]);
    let before = mark();
    rounds.mark(second(20));
    assert_eq!(mark(), before, "nothing has changed");
}

/// Nobody submits anything more, and the log is noted all the same; what is stopped has noted all.
#[test]
fn the_committer_notes_how_far_the_log_is_synced() {
    for is_stopped in [false, true] {
        let disk = SimDisk::new();
        let (sender, rounds) = mpsc::channel();
        let committer = start(open(&disk).0, move |round| drop(sender.send(round)));
        let mut noted = BTreeSet::new();
        for index in 1..4 {
            committer.submit(0, submission(index, vec![append(1, 1, index, 1)])).unwrap();
            assert!(matches!(rounds.recv().unwrap(), Round::Done { .. }));
        }
        if is_stopped {
            committer.stop();
        }
        // All three batches are in the first segment: the fourth is not known to be durable.
        let all = 4_u64.to_le_bytes();
        while !noted.contains(&Some(all.to_vec())) {
            let mark = read_file(&disk, &Path::new(DIR).with_extension("mark")).ok();
            noted.insert(mark.and_then(|mark| Some(mark.get(24..32)?.to_vec())));
            assert!(!is_stopped || noted.contains(&Some(all.to_vec())), "a log that is stopped is noted at once");
        }
    }
}

#[test]
fn what_the_committer_calls_done_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(Arc::new(OsDisk), &dir.path().join("log"), options()).unwrap();
    let (sender, rounds) = mpsc::channel();
    let committer = Arc::new(start(log, move |round| sender.send(round).unwrap()));
    let submitters: Vec<_> = (0..4_u32)
        .map(|number| {
            let committer = Arc::clone(&committer);
            spawn_thread("submitter", move || {
                for index in 1..=300 {
                    let truncations = vec![(GroupId::new(1, number), index / 2)];
                    let one = submission(index * 4 + u64::from(number), vec![append(number, 1, index, 1)]);
                    committer.submit(0, Submission { truncations, ..one }).unwrap();
                }
            })
            .unwrap()
        })
        .collect();
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    committer.stop();
    assert_eq!(committer.submit(0, submission(9999, Vec::new())), Err(Stopped));
    let mut tickets: Vec<u64> = rounds
        .try_iter()
        .flat_map(|round| match round {
            Round::Done { tickets, .. } => tickets,
            Round::Stalled { reason } => panic!("{reason}"),
            Round::Room { .. } => panic!("the disk has room"),
            Round::Failed { reason } => panic!("{reason}"),
        })
        .collect();
    for number in 0..4 {
        assert!(tickets.iter().filter(|ticket| *ticket % 4 == number).is_sorted(), "in the order of submission");
    }
    tickets.sort_unstable();
    assert_eq!(tickets, (4..=1203).collect::<Vec<_>>());
    let (log, recovered) = Log::open(Arc::new(OsDisk), &dir.path().join("log"), options()).unwrap();
    assert_eq!(recovered.len(), 4);
    for found in recovered {
        assert_eq!((found.last.index, found.is_damaged), (300, false));
        let entries = log.reader().entries(found.group, found.start.index + 1, 301, usize::MAX).unwrap();
        assert_eq!(entries, append(found.group.partition, 1, found.start.index + 1, 300 - found.start.index).entries);
    }
}

#[test]
fn a_failed_committer_says_so_once_and_refuses() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let (sender, rounds) = mpsc::channel();
    let committer = start(log, move |round| sender.send(round).unwrap());
    committer.submit(0, submission(1, vec![append(1, 1, 1, 1)])).unwrap();
    assert!(matches!(rounds.recv().unwrap(), Round::Done { tickets, .. } if tickets == [1]));
    disk.fail_syncs(Path::new(DIR), true);
    committer.submit(0, submission(2, vec![append(1, 1, 2, 1)])).unwrap();
    let Round::Failed { reason } = rounds.recv().unwrap() else { panic!("it cannot be done") };
    assert!(reason.to_string().contains("could not sync"), "{reason}");
    assert_eq!(committer.submit(0, submission(3, Vec::new())), Err(Stopped));
    committer.stop();
    assert!(rounds.recv().is_err(), "nothing more is said");
}

#[test]
fn n3_a_committer_that_panics_fails_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(Arc::new(OsDisk), &dir.path().join("log"), options()).unwrap();
    let (sender, reasons) = mpsc::channel();
    let on_round = move |round| match round {
        Round::Done { .. } => panic!("a defect"),
        Round::Stalled { .. } | Round::Room { .. } => {}
        Round::Failed { reason } => sender.send(reason.to_string()).unwrap(),
    };
    let committer = start(log, on_round);
    committer.submit(0, submission(1, vec![append(1, 1, 1, 1)])).unwrap();
    let reason = reasons.recv().unwrap();
    assert!(reason.ends_with("could not go on and takes nothing more"), "{reason}");
    assert_eq!(committer.submit(0, submission(2, Vec::new())), Err(Stopped));
}

#[test]
fn n1_the_committer_waits_for_space_and_says_so() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let (sender, rounds) = mpsc::channel();
    let committer = start(log, move |round| sender.send(round).unwrap());
    committer.submit(0, submission(1, vec![append(1, 1, 1, 1)])).unwrap();
    assert!(matches!(rounds.recv().unwrap(), Round::Done { tickets, .. } if tickets == [1]));
    disk.set_full(true);
    committer.submit(0, submission(2, vec![append(1, 1, 2, 400)])).unwrap();
    let next = || loop {
        match rounds.recv().unwrap() {
            Round::Room { .. } => {}
            other => return other,
        }
    };
    assert!(matches!(next(), Round::Stalled { .. }));
    disk.set_full(false);
    assert!(matches!(next(), Round::Done { tickets, .. } if tickets == [2]), "nothing was acknowledged meanwhile");
    disk.set_full(true);
    committer.submit(0, submission(3, vec![append(1, 1, 402, 400)])).unwrap();
    assert!(matches!(next(), Round::Stalled { .. }));
    committer.stop();
    assert!(rounds.iter().all(|round| matches!(round, Round::Room { .. })), "it ends without a word");
    let (_, recovered) = open(&disk);
    assert!(recovered[0].last.index >= 401 && !recovered[0].is_damaged);
}

/// There is always something to write: what is left is told all the same, so that those who write can stop in time.
#[test]
fn n1x_what_is_left_of_a_busy_log_is_told_before_it_ends() {
    let disk = SimDisk::new();
    let (log, _) = open(&disk);
    let committer: Arc<OnceLock<Committer>> = Arc::default();
    let (theirs, (sender, rounds)) = (Arc::clone(&committer), mpsc::channel());
    let on_round = move |round: Round| {
        if let (Some(committer), Round::Done { tickets, .. }) = (theirs.get(), &round) {
            let next = tickets.last().unwrap() + 1;
            // Stopped by then, perhaps.
            let _ = committer.submit(0, submission(next, vec![append(1, 1, next, 1)]));
        }
        sender.send(round).unwrap();
    };
    let committer = committer.get_or_init(|| start(log, on_round));
    committer.submit(0, submission(1, vec![append(1, 1, 1, 1)])).unwrap();
    assert!(matches!(rounds.recv().unwrap(), Round::Done { .. }));
    disk.set_full(true);
    let mut told = Vec::new();
    loop {
        match rounds.recv().unwrap() {
            Round::Room { left } => told.extend(left),
            Round::Stalled { .. } => break,
            Round::Done { .. } => {}
            Round::Failed { reason } => panic!("{reason}"),
        }
    }
    committer.stop();
    assert!(told.len() > 20 && told.is_sorted_by(|one, other| one > other), "{told:?}");
    assert!(told[0] > options().segment_size / 2);
}

/// Records are moved to gain segments; where the disk gives no more, moving must not cost the rest of the one there is.
#[test]
fn n1x_a_collection_leaves_room_on_a_full_disk() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    for segment in 0..5 {
        let (held, passing) = (append(10 + segment, 1, 1, 25), append(1, 1, 1 + u64::from(segment) * 30, 30));
        log.write(&[held, passing]).unwrap();
    }
    log.sync().unwrap();
    disk.set_full(true);
    log.prepare();
    let mut next = 1;
    while log.left().is_none_or(|left| left > 20 << 10) {
        log.write(&[append(2, 1, next, 1)]).unwrap();
        next += 1;
    }
    log.sync().unwrap();
    log.truncate_prefix(GroupId::new(1, 1), 150);
    assert!(log.stats().segments > options().segments_max, "some should be emptied");
    let before = log.left().unwrap();
    log.collect().unwrap();
    assert!(log.left().unwrap() > before / 2, "{before} bytes before, {:?} after", log.left());
    log.write(&[append(2, 1, next, 5)]).unwrap();
}
