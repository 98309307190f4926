//! The committer of several logs: what becomes of one of them is nothing to the others, and each is told of as soon as it is durable.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::os::{OsClock, spawn_thread};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Clock, Disk};
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId, TableId};
use hedgerow_wal::{Append, Committer, Log, OnRound, Options, Round, Stopped, Submission};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const GROUP: GroupId = GroupId { table: TableId(1), partition: 0 };

fn dir(number: usize) -> PathBuf {
    PathBuf::from(format!("/{number}/log"))
}

fn open(disk: &SimDisk, count: usize) -> BTreeMap<usize, Log> {
    let options = Options { segment_size: 64 << 10, segments_max: 3, ..Options::default() };
    let log = |number| Log::open(Arc::new(disk.clone()), &dir(number), options).unwrap().0;
    (0..count).map(|number| (number, log(number))).collect()
}

/// The last index in each log.
fn lasts(disk: &SimDisk, count: usize) -> Vec<u64> {
    let last = |number| {
        let (_, recovered) = Log::open(Arc::new(disk.clone()), &dir(number), Options::default()).unwrap();
        recovered.first().map_or(0, |group| {
            assert!(!group.is_damaged);
            group.last.index
        })
    };
    (0..count).map(last).collect()
}

/// It appends `count` entries from `ticket` on.
fn entries(ticket: u64, count: u64) -> Submission {
    let entry = |index| Entry { index, term: 1, kind: EntryKind::Normal, data: vec![7; 1000].into() };
    let entries = (ticket..ticket + count).map(entry).collect();
    let append = Append { group: GROUP, replica: ReplicaId(1), reset: None, entries, hard_state: None };
    Submission { appends: vec![append], ticket, ..Submission::default() }
}

/// A committer, and what it tells but for room.
fn start(logs: BTreeMap<usize, Log>) -> (Committer, mpsc::Receiver<(usize, Round)>) {
    let (sender, told) = mpsc::channel();
    let on_round: OnRound = Box::new(move |number, round| {
        if !matches!(round, Round::Room { .. }) {
            sender.send((number, round)).unwrap();
        }
    });
    (Committer::start(logs, on_round).unwrap(), told)
}

/// Writes one entry after the other to log `number`, and takes no word about another one.
fn write(committer: &Committer, told: &mpsc::Receiver<(usize, Round)>, number: usize, tickets: std::ops::Range<u64>) {
    for ticket in tickets {
        committer.submit(number, entries(ticket, 1)).unwrap();
        let (of, round) = told.recv().unwrap();
        assert!(
            matches!(&round, Round::Done { tickets, .. } if of == number && *tickets == [ticket]),
            "{of}: {round:?}"
        );
    }
}

#[test]
fn a_log_without_a_segment_holds_up_no_other() {
    let disk = SimDisk::new();
    let (committer, told) = start(open(&disk, 2));
    write(&committer, &told, 0, 1..2);
    write(&committer, &told, 1, 1..2);
    disk.set_full(true);
    committer.submit(0, entries(2, 400)).unwrap();
    assert!(matches!(told.recv().unwrap(), (0, Round::Stalled { .. })));
    committer.submit(0, entries(402, 1)).unwrap();
    write(&committer, &told, 1, 2..20);
    disk.set_full(false);
    let mut done = Vec::new();
    while done != [2, 402] {
        let (0, Round::Done { tickets, .. }) = told.recv().unwrap() else {
            panic!("it goes on, and nothing else does")
        };
        done.extend(tickets);
    }
    committer.stop();
    assert_eq!(lasts(&disk, 2), [402, 19]);
}

#[test]
fn a_log_that_fails_costs_no_other() {
    let disk = SimDisk::new();
    let (committer, told) = start(open(&disk, 3));
    (0..3).for_each(|number| write(&committer, &told, number, 1..2));
    disk.fail_syncs(&dir(1), true);
    committer.submit(1, entries(2, 1)).unwrap();
    let (1, Round::Failed { reason }) = told.recv().unwrap() else { panic!("it cannot be done") };
    assert_eq!(reason.dir, dir(1));
    assert_eq!(committer.submit(1, entries(3, 1)), Err(Stopped));
    write(&committer, &told, 0, 2..30);
    write(&committer, &told, 2, 2..30);
    assert_eq!(committer.submit(3, entries(1, 1)), Err(Stopped), "there is none");
    committer.stop();
    assert!(told.recv().is_err(), "nothing more is said");
    assert_eq!(committer.submit(0, entries(30, 1)), Err(Stopped));
}

#[test]
fn a_log_whose_round_panics_costs_no_other() {
    let disk = SimDisk::new();
    let (sender, told) = mpsc::channel();
    let on_round: OnRound = Box::new(move |number, round| match (number, &round) {
        (0, Round::Done { .. }) => panic!("a defect"),
        (_, Round::Room { .. }) => {}
        _ => sender.send((number, round)).unwrap(),
    });
    // Fewer threads than logs.
    let committer = Committer::start(open(&disk, 20), on_round).unwrap();
    for _ in 0..20 {
        // Refused from the second time on.
        let _ = committer.submit(0, entries(1, 1));
    }
    let (0, Round::Failed { reason }) = told.recv().unwrap() else { panic!("it cannot be done") };
    assert_eq!((reason.dir, reason.operation), (dir(0), "go on"));
    (1..20).for_each(|number| write(&committer, &told, number, 1..5));
    assert_eq!(committer.submit(0, entries(2, 1)), Err(Stopped));
}

/// Whoever is told of a log takes as long as it likes: that is the log's own time.
#[test]
fn a_log_that_takes_long_holds_up_no_other() {
    let disk = SimDisk::new();
    let (sender, told) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let on_round: OnRound = Box::new(move |number, round| {
        if number == 0 {
            // Its sender goes with the test.
            let _ = released.lock().unwrap().recv();
        }
        sender.send((number, round)).unwrap();
    });
    let committer = Committer::start(open(&disk, 2), on_round).unwrap();
    committer.submit(0, entries(1, 1)).unwrap();
    write(&committer, &told, 1, 1..20);
    release.send(()).unwrap();
    assert!(matches!(told.recv().unwrap(), (0, Round::Done { .. })));
    drop(release);
    committer.stop();
}

/// More logs than threads, all of them busy: each one's rounds are in the order of submission, and the power fails when all is told.
#[test]
fn what_is_told_of_any_log_is_durable() {
    const LOGS: usize = 60;
    const ENTRIES: u64 = 40;
    for seed in 0..10 {
        let disk = SimDisk::new();
        let (committer, told) = start(open(&disk, LOGS));
        let committer = Arc::new(committer);
        let submitters: Vec<_> = (0..4)
            .map(|part| {
                let committer = Arc::clone(&committer);
                let submit = move || {
                    for ticket in 1..=ENTRIES {
                        (0..LOGS).filter(|number| number % 4 == part).for_each(|number| {
                            let truncations = vec![(GROUP, ticket / 2)];
                            let one = Submission { truncations, ..entries(ticket, 1) };
                            // Refused once the machine has stopped.
                            let _ = committer.submit(number, one);
                        });
                    }
                };
                spawn_thread("submitter", submit).unwrap()
            })
            .collect();
        let mut done = vec![0; LOGS];
        let mut missing = LOGS as u64 * ENTRIES / (1 + seed % 2);
        while missing > 0 {
            let (number, Round::Done { tickets, .. }) = told.recv().unwrap() else { panic!("nothing is wrong") };
            for ticket in tickets {
                assert_eq!(ticket, done[number] + 1, "in the order of submission");
                done[number] = ticket;
                missing = missing.saturating_sub(1);
            }
        }
        // Whoever is still at work finds that the machine has stopped.
        disk.crash(&mut Random::new(seed));
        submitters.into_iter().for_each(|thread| thread.join().unwrap());
        committer.stop();
        for (number, (last, told)) in lasts(&disk, LOGS).into_iter().zip(done).enumerate() {
            assert!(last >= told, "log {number} ends at {last}, and {told} was told");
        }
    }
}

#[test]
fn what_waits_when_it_is_stopped_is_committed() {
    let disk = SimDisk::new();
    let (committer, told) = start(open(&disk, 30));
    for ticket in 1..=5 {
        (0..30).for_each(|number| committer.submit(number, entries(ticket, 1)).unwrap());
    }
    committer.stop();
    let tickets = |(_, round)| if let Round::Done { tickets, .. } = round { tickets.len() } else { 0 };
    assert_eq!(told.iter().map(tickets).sum::<usize>(), 150);
    assert_eq!(lasts(&disk, 30), [5; 30]);
}

/// A round gives back few segments; the rest follow although nobody writes.
#[test]
fn a_log_at_rest_gives_back_all_that_it_does_not_need() {
    let disk = SimDisk::new();
    let (committer, told) = start(open(&disk, 1));
    committer.submit(0, entries(1, 4000)).unwrap();
    committer.submit(0, Submission { truncations: vec![(GROUP, 4000)], ..entries(4001, 1) }).unwrap();
    let mut done = 0;
    while done < 2 {
        let (_, Round::Done { tickets, .. }) = told.recv().unwrap() else { panic!("nothing is wrong") };
        done += tickets.len();
    }
    let count = || disk.list(&dir(0)).unwrap().iter().filter(|name| name.ends_with(".seg")).count();
    let until = OsClock.now() + Duration::from_secs(20);
    while count() > 2 {
        assert!(OsClock.now() < until, "{} segments are left", count());
        std::thread::yield_now();
    }
}
