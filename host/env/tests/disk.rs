//! What every disk promises while nothing fails: the operating system's and the simulated one run the same suite.
#![allow(clippy::unwrap_used, reason = "tests")]

use hedgerow_env::os::OsDisk;
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, OpenMode, create_dir_durably, read_file, write_file_durably};
use hedgerow_types::random::Random;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

#[test]
fn the_operating_system_keeps_the_promises() {
    let dir = tempfile::tempdir().unwrap();
    suite(&OsDisk, dir.path());
}

#[test]
fn the_simulated_disk_keeps_the_promises() {
    suite(&SimDisk::new(), Path::new("/data"));
}

#[test]
fn a_copy_of_a_simulated_disk_is_of_that_moment_and_survives_a_crash() {
    let (disk, path) = (SimDisk::new(), Path::new("/data/file"));
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.open(path, OpenMode::Create).unwrap().write_at(0, b"then").unwrap();
    let copy = disk.copy();
    suite(&copy, Path::new("/other"));
    write_file_durably(&disk, path, b"now").unwrap();
    copy.crash(&mut Random::new(1));
    assert_eq!(read_file(&copy, path).unwrap(), b"then");
    assert_eq!(read_file(&disk, path).unwrap(), b"now");
    assert!(!disk.exists(Path::new("/other")));
}

#[test]
fn a_simulated_mount_is_a_device_of_its_own() {
    let disk = SimDisk::new();
    let device = |dir: &str| disk.device(Path::new(dir)).unwrap();
    for dir in ["/one/data", "/one/inner/data", "/two/data"] {
        disk.create_dir_all(Path::new(dir)).unwrap();
    }
    assert!(device("/one/data") == device("/") && device("/two") == device("/"));
    for dir in ["/one", "/two", "/one/inner", "/one"] {
        disk.set_mounted(Path::new(dir), true);
    }
    let devices: BTreeSet<u64> = ["/", "/one", "/two", "/one/inner"].into_iter().map(device).collect();
    assert_eq!(devices.len(), 4);
    assert!(device("/one/data") == device("/one") && device("/one/inner/data") == device("/one/inner"));
    assert!(disk.is_on_root(Path::new("/")).unwrap() && !disk.is_on_root(Path::new("/one/inner/data")).unwrap());
    disk.set_mounted(Path::new("/one/inner"), false);
    assert_eq!(device("/one/inner/data"), device("/one"));
    disk.set_mounted(Path::new("/one"), false);
    assert!(disk.is_on_root(Path::new("/one/inner/data")).unwrap());
}

fn suite(disk: &dyn Disk, base: &Path) {
    directories(disk, &base.join("directories"));
    bytes(disk, &base.join("bytes"));
    names(disk, &base.join("names"));
    whole_files(disk, &base.join("whole"));
}

fn directories(disk: &dyn Disk, base: &Path) {
    assert!(!disk.exists(base));
    create_dir_durably(disk, &base.join("a/b")).unwrap();
    disk.create_dir_all(&base.join("a/b")).unwrap();
    disk.open(&base.join("file"), OpenMode::Create).unwrap();
    assert!(disk.is_dir(&base.join("a")) && !disk.is_dir(&base.join("file")) && disk.exists(&base.join("file")));
    assert_eq!(disk.list(base).unwrap(), ["a", "file"]);
    disk.remove_dir_all(&base.join("a")).unwrap();
    assert_eq!(disk.list(base).unwrap(), ["file"]);
    assert_eq!(disk.list(&base.join("a")).unwrap_err().kind(), ErrorKind::NotFound);
    disk.create_dir_all(&base.join("one/more")).unwrap();
    assert_eq!(disk.device(base).unwrap(), disk.device(&base.join("one/more")).unwrap());
    assert_eq!(disk.device(&base.join("a")).unwrap_err().kind(), ErrorKind::NotFound);
    disk.remove_dir_all(&base.join("one")).unwrap();
    assert!(disk.free_space(base).is_ok_and(|space| space.free > 0 && space.total >= space.free));
}

fn bytes(disk: &dyn Disk, base: &Path) {
    disk.create_dir_all(base).unwrap();
    let path = base.join("file");
    assert_eq!(disk.open(&path, OpenMode::Read).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(disk.open(&path, OpenMode::Write).unwrap_err().kind(), ErrorKind::NotFound);
    let file = disk.open(&path, OpenMode::Create).unwrap();
    assert!(file.is_empty().unwrap());
    file.write_at(3, b"hedge").unwrap();
    file.sync_data().unwrap();
    assert_eq!(read_file(disk, &path).unwrap(), b"\0\0\0hedge");
    let mut buffer = [9; 16];
    assert_eq!(file.read_at(5, &mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..4], b"dge\x09");
    assert_eq!(file.read_at(100, &mut buffer).unwrap(), 0);
    file.set_len(4).unwrap();
    file.set_len(6).unwrap();
    assert_eq!(read_file(disk, &path).unwrap(), b"\0\0\0h\0\0");
    let reader = disk.open(&path, OpenMode::Read).unwrap();
    assert!(reader.write_at(0, b"x").is_err());
    let writer = disk.open(&path, OpenMode::Write).unwrap();
    writer.write_at(0, b"abc").unwrap();
    writer.sync_all().unwrap();
    assert_eq!(reader.len().unwrap(), 6);
    assert_eq!(read_file(disk, &path).unwrap(), b"abch\0\0");
    disk.open(&path, OpenMode::Create).unwrap();
    assert!(read_file(disk, &path).unwrap().is_empty());
}

fn names(disk: &dyn Disk, base: &Path) {
    disk.create_dir_all(&base.join("other")).unwrap();
    let file = disk.open(&base.join("a"), OpenMode::Create).unwrap();
    file.write_at(0, b"one").unwrap();
    disk.hard_link(&base.join("a"), &base.join("b")).unwrap();
    assert!(disk.hard_link(&base.join("a"), &base.join("b")).is_err());
    disk.rename(&base.join("a"), &base.join("other/c")).unwrap();
    assert_eq!(disk.list(base).unwrap(), ["b", "other"]);
    file.write_at(0, b"two").unwrap();
    assert_eq!(read_file(disk, &base.join("b")).unwrap(), b"two");
    assert_eq!(read_file(disk, &base.join("other/c")).unwrap(), b"two");
    disk.remove_file(&base.join("b")).unwrap();
    disk.remove_file(&base.join("other/c")).unwrap();
    assert_eq!(disk.remove_file(&base.join("b")).unwrap_err().kind(), ErrorKind::NotFound);
    let mut buffer = [0; 3];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), 3);
    disk.rename(&base.join("other"), &base.join("moved")).unwrap();
    disk.sync_dir(base).unwrap();
    assert_eq!(disk.list(base).unwrap(), ["moved"]);
}

fn whole_files(disk: &dyn Disk, base: &Path) {
    disk.create_dir_all(base).unwrap();
    write_file_durably(disk, &base.join("f"), b"first").unwrap();
    write_file_durably(disk, &base.join("f"), b"second").unwrap();
    assert_eq!(disk.list(base).unwrap(), ["f"]);
    assert_eq!(read_file(disk, &base.join("f")).unwrap(), b"second");
}
