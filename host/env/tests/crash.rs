//! What the simulated disk loses in a crash, and what it must not lose; and that its faults are those of Linux.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, OpenMode, create_dir_durably, read_file, write_file_durably};
use hedgerow_types::random::Random;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

const PAGE: usize = 4096;

fn path(name: &str) -> &Path {
    Path::new(name)
}

/// Every distinct result of `outcome` after a crash of the disk that `prepare` makes, over many seeds.
fn outcomes<T: Ord>(prepare: impl Fn(&SimDisk), outcome: impl Fn(&SimDisk) -> T) -> BTreeSet<T> {
    let once = |seed| {
        let disk = SimDisk::new();
        create_dir_durably(&disk, path("/d")).unwrap();
        prepare(&disk);
        disk.crash(&mut Random::new(seed));
        outcome(&disk)
    };
    (0..300).map(once).collect()
}

fn durable_file(disk: &SimDisk, byte: u8, size: usize) -> Box<dyn hedgerow_env::File> {
    write_file_durably(disk, path("/d/f"), &vec![byte; size]).unwrap();
    disk.open(path("/d/f"), OpenMode::Write).unwrap()
}

#[test]
fn what_was_synced_stays() {
    let seen = outcomes(
        |disk| {
            let file = durable_file(disk, 1, 3 * PAGE);
            file.write_at(100, &[2; 5000]).unwrap();
            file.sync_data().unwrap();
        },
        |disk| read_file(disk, path("/d/f")).unwrap(),
    );
    let mut expected = vec![1; 3 * PAGE];
    expected[100..5100].fill(2);
    assert_eq!(seen, BTreeSet::from([expected]));
}

#[test]
fn unsynced_pages_are_kept_lost_or_torn_each_on_its_own() {
    let seen = outcomes(
        |disk| durable_file(disk, 0, 2 * PAGE).write_at(0, &[1; 2 * PAGE]).unwrap(),
        |disk| {
            let bytes = read_file(disk, path("/d/f")).unwrap();
            let fate = |page: &[u8]| match page.iter().map(|byte| usize::from(*byte)).sum::<usize>() {
                0 => 'l',
                PAGE => 'k',
                sum => {
                    assert_eq!(sum % 512, 0, "torn between sectors");
                    't'
                }
            };
            (fate(&bytes[..PAGE]), fate(&bytes[PAGE..]))
        },
    );
    assert_eq!(seen.len(), 9, "{seen:?}");
}

#[test]
fn an_unsynced_length_may_be_lost_while_bytes_are_kept() {
    let seen = outcomes(
        |disk| durable_file(disk, 7, 100).write_at(100, &[8; 10_000]).unwrap(),
        |disk| read_file(disk, path("/d/f")).unwrap().len(),
    );
    assert!(seen.contains(&100) && seen.contains(&10_100) && seen.len() > 2, "{seen:?}");
}

#[test]
fn names_survive_for_sure_only_after_a_sync_of_their_directory() {
    let create = |disk: &SimDisk| {
        let file = disk.open(path("/d/f"), OpenMode::Create).unwrap();
        file.write_at(0, b"x").unwrap();
        file.sync_all().unwrap();
    };
    assert_eq!(outcomes(create, |disk| disk.exists(path("/d/f"))).len(), 2);
    let create_durably = |disk: &SimDisk| {
        create(disk);
        disk.sync_dir(path("/d")).unwrap();
    };
    assert_eq!(outcomes(create_durably, |disk| read_file(disk, path("/d/f")).unwrap()).len(), 1);
    let remove = |disk: &SimDisk| {
        create_durably(disk);
        disk.remove_file(path("/d/f")).unwrap();
    };
    assert_eq!(outcomes(remove, |disk| disk.exists(path("/d/f"))).len(), 2);
}

#[test]
fn a_directorys_changes_are_lost_from_the_end_and_a_rename_never_in_half() {
    let seen = outcomes(
        |disk| {
            create_dir_durably(disk, path("/e")).unwrap();
            durable_file(disk, 1, 1);
            disk.rename(path("/d/f"), path("/d/g")).unwrap();
            disk.rename(path("/d/g"), path("/e/h")).unwrap();
        },
        |disk| (disk.list(path("/d")).unwrap(), disk.list(path("/e")).unwrap()),
    );
    let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (d, e) in &seen {
        assert_eq!(d.len() + e.len(), 1, "{seen:?}");
    }
    assert!(seen.contains(&(files(&["f"]), files(&[]))) && seen.contains(&(files(&[]), files(&["h"]))));
}

#[test]
fn syncing_either_directory_makes_a_rename_between_them_durable() {
    for synced in ["/d", "/e"] {
        let seen = outcomes(
            |disk| {
                create_dir_durably(disk, path("/e")).unwrap();
                durable_file(disk, 1, 1);
                disk.rename(path("/d/f"), path("/e/h")).unwrap();
                disk.sync_dir(path(synced)).unwrap();
            },
            |disk| (disk.exists(path("/d/f")), disk.exists(path("/e/h"))),
        );
        assert_eq!(seen, BTreeSet::from([(false, true)]));
    }
}

#[test]
fn replacing_a_file_durably_shows_the_old_or_the_new_content() {
    let disk = SimDisk::new();
    create_dir_durably(&disk, path("/d")).unwrap();
    write_file_durably(&disk, path("/d/f"), b"old").unwrap();
    disk.fail_syncs(path("/d/f.tmp"), true);
    assert!(write_file_durably(&disk, path("/d/f"), b"new").is_err());
    disk.crash(&mut Random::new(1));
    assert_eq!(read_file(&disk, path("/d/f")).unwrap(), b"old");
}

#[test]
fn a_failed_sync_marks_pages_clean_so_that_a_later_success_does_not_save_them() {
    let seen = outcomes(
        |disk| {
            let file = durable_file(disk, 0, 2 * PAGE);
            file.write_at(0, &[1; PAGE]).unwrap();
            disk.fail_syncs(path("/d"), true);
            assert!(file.sync_data().is_err() && disk.sync_dir(path("/d")).is_err());
            disk.fail_syncs(path("/d"), false);
            file.write_at(PAGE as u64, &[2; PAGE]).unwrap();
            file.sync_data().unwrap();
        },
        |disk| {
            let bytes = read_file(disk, path("/d/f")).unwrap();
            (bytes[0] == 1 && bytes[PAGE - 1] == 1, bytes[PAGE] == 2 && bytes[2 * PAGE - 1] == 2)
        },
    );
    assert_eq!(seen, BTreeSet::from([(false, true), (true, true)]));
}

#[test]
fn handles_from_before_a_crash_are_dead() {
    let disk = SimDisk::new();
    disk.create_dir_all(path("/d")).unwrap();
    let file = durable_file(&disk, 1, 10);
    disk.kill_process();
    assert!(file.read_at(0, &mut [0; 4]).is_err() && file.write_at(0, b"x").is_err() && file.sync_data().is_err());
    assert_eq!(read_file(&disk, path("/d/f")).unwrap(), [1; 10], "the machine went on");
}

#[test]
fn a_full_disk_takes_overwrites_only_and_a_read_only_one_nothing() {
    let disk = SimDisk::new();
    disk.create_dir_all(path("/d")).unwrap();
    let file = durable_file(&disk, 1, 10);
    disk.set_full(true);
    assert_eq!(file.write_at(5, &[0; 10]).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.open(path("/d/g"), OpenMode::Create).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.free_space(path("/d")).unwrap().free, 0);
    file.write_at(0, &[2; 10]).unwrap();
    disk.set_full(false);
    disk.set_read_only(true);
    assert_eq!(file.write_at(0, &[3; 10]).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(disk.remove_file(path("/d/f")).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(read_file(&disk, path("/d/f")).unwrap(), [2; 10]);
}

#[test]
fn the_same_seed_loses_the_same_bytes() {
    let run = |seed| {
        let disk = SimDisk::new();
        create_dir_durably(&disk, path("/d")).unwrap();
        durable_file(&disk, 0, 50_000).write_at(0, &[1; 60_000]).unwrap();
        disk.crash(&mut Random::new(seed));
        read_file(&disk, path("/d/f")).unwrap()
    };
    assert_eq!(run(3), run(3));
    assert!((0..10).any(|seed| run(seed) != run(3)));
}

#[test]
fn a_machine_can_stop_in_the_middle_of_anything() {
    let disk = SimDisk::new();
    disk.create_dir_all(path("/d")).unwrap();
    write_file_durably(&disk, path("/d/f"), b"old").unwrap();
    let mut calls = 0;
    loop {
        disk.stop_after(calls);
        let result = write_file_durably(&disk, path("/d/f"), b"new");
        disk.crash(&mut Random::new(calls));
        if result.is_ok() {
            break;
        }
        let content = read_file(&disk, path("/d/f")).unwrap();
        assert!(content == b"old" || (content == b"new" && calls == 4), "after {calls} calls");
        write_file_durably(&disk, path("/d/f"), b"old").unwrap();
        calls += 1;
    }
    assert_eq!(calls, 5, "open, write, sync, rename, sync of the directory");
    assert_eq!(read_file(&disk, path("/d/f")).unwrap(), b"new");
}

/// A directory made just before a stop was taken for durable by the next start, and everything in it was lost later.
#[test]
fn a_directory_is_durable_even_if_an_earlier_attempt_stopped_half_way() {
    for calls in 0..10 {
        let disk = SimDisk::new();
        disk.stop_after(calls);
        let is_done = create_dir_durably(&disk, path("/a/b/c")).is_ok();
        disk.kill_process();
        create_dir_durably(&disk, path("/a/b/c")).unwrap();
        disk.crash(&mut Random::new(calls));
        assert!(disk.is_dir(path("/a/b/c")), "after {calls} calls, {is_done}");
    }
}

#[test]
fn a_disk_of_a_size_holds_so_many_bytes() {
    let disk = SimDisk::new();
    disk.create_dir_all(path("/d")).unwrap();
    disk.set_capacity(Some(100));
    let file = durable_file(&disk, 1, 60);
    file.write_at(20, &[2; 60]).unwrap();
    let space = disk.free_space(path("/d")).unwrap();
    assert_eq!((space.free, space.total), (20, 100));
    let other = disk.open(path("/d/g"), OpenMode::Create).unwrap();
    assert_eq!(other.write_at(0, &[3; 21]).unwrap_err().kind(), ErrorKind::StorageFull);
    other.write_at(0, &[3; 20]).unwrap();
    assert_eq!(file.set_len(81).unwrap_err().kind(), ErrorKind::StorageFull);
    file.write_at(0, &[4; 80]).unwrap();
    disk.remove_file(path("/d/f")).unwrap();
    assert_eq!(disk.free_space(path("/d")).unwrap().free, 80);
}

/// A limit on the size of files is set for a process, and can be raised.
#[test]
fn a_file_that_may_not_grow_is_a_shortage_and_a_device_that_fails_is_none() {
    let is_shortage = |errno| hedgerow_env::is_shortage(&std::io::Error::from_raw_os_error(errno));
    let (enospc, emfile, efbig, eio, erofs) = (28, 24, 27, 5, 30);
    assert!([enospc, emfile, efbig].into_iter().all(is_shortage));
    assert!(![eio, erofs].into_iter().any(is_shortage));
}
