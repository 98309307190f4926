//! A file that was read in is in the system's memory: who reads it waits for no disk.
#![allow(clippy::disallowed_methods, reason = "a test")]

use hedgerow_env::os::begin_read_in;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// More than a disk reads ahead at once.
const SIZE: usize = 24 << 20;

/// Bytes that the calling thread has had read from disks.
fn fetched() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").expect("Linux shows it");
    let line = counts.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("what was fetched");
    line.parse().expect("a number")
}

/// Has the system forget what it holds of the file.
fn drop_from_memory(path: &Path) {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", path.display())).args(["iflag=nocache", "count=0", "status=none"]);
    assert!(command.status().expect("coreutils").success());
}

fn fetched_by(work: impl FnOnce()) -> u64 {
    let before = fetched();
    work();
    fetched() - before
}

#[test]
fn what_was_read_in_is_not_fetched_again() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("table");
    fs::write(&path, vec![7; SIZE]).expect("writes");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("syncs");
    let read = || assert_eq!(fs::read(&path).expect("reads").len(), SIZE);
    // Nothing where files are kept in memory anyhow.
    drop_from_memory(&path);
    let on_disk = fetched_by(read);
    drop_from_memory(&path);
    assert!(fetched_by(|| begin_read_in(&path).expect("begins")) >= on_disk);
    assert_eq!(fetched_by(read), 0);
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let root = tempfile::tempdir().expect("a directory");
    let error = begin_read_in(&root.path().join("table")).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
