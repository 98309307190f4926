//! By what a start tells a copy of a data directory from the directory itself, and what must not be taken for one.

use crate::replicas::{kill, open};
use crate::world::{self, World, files_of, running};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, read_file, write_file_durably};
use hedgerow_node::{Config, OpenError};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::NodeId;
use hedgerow_types::random::Random;
use serde_json::{Value, json};
use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NODE: NodeId = NodeId(3);
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EMFILE: i32 = 24;

/// A node with two data directories that was killed, and the world that it is missing in.
fn killed() -> (World, Config, SimDisk) {
    let mut world = World::configured(3, |config| config.data = vec!["/a".into(), "/b".into()]);
    world.create_table(4, &json!({}));
    world.run(Duration::from_secs(5));
    let (config, disk) = kill(&mut world, NODE);
    (world, config, disk)
}

/// Whether it can start with what is on `disk`, where it is killed again.
fn start(world: &World, config: &Config, disk: &SimDisk) -> Result<(), OpenError> {
    let started = open(config, disk, Arc::new(MemoryEngines::new(Arc::new(disk.clone()))), world);
    disk.kill_process();
    started
}

/// Ends a start after each of its writes in turn, by a kill and by a power failure. The next one goes on.
fn assert_no_start_makes_a_copy(world: &World, config: &Config, disk: &SimDisk) {
    for calls in 0..10_000 {
        let disk = disk.copy();
        disk.stop_after(calls);
        let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
        let is_over = open(config, &disk, engines, world).is_ok();
        if calls % 2 == 0 {
            disk.kill_process();
        } else {
            disk.crash(&mut Random::new(calls));
        }
        let next = Config { seed: config.seed + 1 + calls, ..config.clone() };
        if let Err(error) = start(world, &next, &disk) {
            panic!("after {calls} calls: {error}");
        }
        if is_over {
            return assert!(calls > 20, "{calls}");
        }
    }
    panic!("it has no end");
}

#[test]
fn d7d_a_start_that_ends_anywhere_makes_no_directory_a_copy() {
    let (world, config, disk) = killed();
    assert_no_start_makes_a_copy(&world, &Config { seed: config.seed + 1_000, ..config.clone() }, &disk);
}

/// Nor does one that counts on where an identity was lost, with the catalogue beside it.
#[test]
fn d7g_a_start_that_ends_anywhere_counts_on_where_an_identity_was_lost() {
    let (world, config, disk) = killed();
    let config = Config { seed: config.seed + 1_000, ..config };
    for lost in ["/b/identity.json", "/a/identity.json"] {
        disk.remove_file(Path::new(lost)).unwrap();
        assert_no_start_makes_a_copy(&world, &config, &disk);
    }
}

/// A log that has lost something gets another number, under which the node must know it.
#[test]
fn d7e_a_start_that_ends_anywhere_knows_a_damaged_log_again() {
    let (world, config, disk) = killed();
    let mut damaged = 0;
    for directory in ["/a/log", "/b/log"] {
        for (path, bytes) in files_of(&disk, Path::new(directory)) {
            // The heads of a batch and of its list: nobody knows what it held.
            let is_mark = |at: &usize| [&b"BTCH"[..], b"LIST"].iter().any(|mark| bytes[*at..].starts_with(mark));
            let marks: Vec<usize> = (0..bytes.len()).step_by(8).filter(is_mark).take(2).collect();
            marks.iter().for_each(|at| disk.flip_byte(&path, *at as u64 + 8).unwrap());
            damaged += marks.len() / 2;
        }
    }
    assert!(damaged > 1, "{damaged}");
    assert_no_start_makes_a_copy(&world, &Config { seed: config.seed + 1_000, ..config.clone() }, &disk);
}

/// Without its number, or with another one, a copy would be a log of which nobody knows how far it was.
#[test]
fn d7e_a_log_without_its_number_ends_the_start() {
    let (mut world, config, disk) = killed();
    let path = Path::new("/b/log/id");
    let whole = read_file(&disk, path).unwrap();
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    let other = b"0123456789abcdef\n".to_vec();
    let cases: [(Option<Vec<u8>>, &str); 5] = [
        (None, "/b/log/id is not there, so that the log there cannot be told from a copy of it"),
        (Some(flipped), "/b/log/id cannot be used (it does not match its checksum)"),
        (Some(vec![0; 17]), "/b/log/id cannot be used"),
        (Some(Vec::new()), "/b/log/id cannot be used"),
        (Some(other), "/b/log/id says 0123456789abcdef, which is no log of the node"),
    ];
    for (content, expected) in cases {
        let copy = disk.copy();
        copy.remove_file(path).unwrap();
        content.into_iter().for_each(|content| write_file_durably(&copy, path, &content).unwrap());
        let error = start(&world, &config, &copy).unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.contains("move what is in /b elsewhere"), "{error}");
        copy.remove_file(path).unwrap_or_default();
        write_file_durably(&copy, path, &whole).unwrap();
        start(&world, &config, &copy).expect("it is put back");
    }
    // What the message says to do: the node goes on, and has everything again.
    let before = running(&world, NodeId(1)).len();
    disk.rename(Path::new("/b"), Path::new("/aside")).unwrap();
    disk.create_dir_all(Path::new("/b")).unwrap();
    world.machines.insert(NODE, world::start(config, disk, world.now));
    world.settle(NODE);
    world.run_until(Duration::from_secs(60), |world| running(world, NODE).len() == before);
}

/// A copy in which nothing says any more which log it has: the cluster could not tell how far that was, and it would vote again.
#[test]
fn d7i_a_log_with_neither_its_number_nor_an_identity_ends_the_start() {
    let (world, config, disk) = killed();
    let remove = |disk: &SimDisk, file: &str| {
        ["/a", "/b"].iter().for_each(|directory| disk.remove_file(&Path::new(directory).join(file)).unwrap());
    };
    let without_identity = disk.copy();
    remove(&without_identity, "identity.json");
    start(&world, &config, &without_identity).expect("by their numbers others know how far the logs were");
    remove(&disk, "identity.json");
    remove(&disk, "log/id");
    let error = start(&world, &config, &disk).unwrap_err().to_string();
    assert!(error.starts_with("/a/log/id is not there") && error.contains("move what is in /a elsewhere"), "{error}");
}

/// It may be whole: nobody is told to move the data away for an owner that is wrong, or because the system was short of something.
#[test]
fn d7h_a_number_that_cannot_be_read_is_not_called_a_wrong_one() {
    let (world, config, disk) = killed();
    let path = Path::new("/b/log/id");
    for errno in [EACCES, EMFILE, ENOMEM] {
        disk.fail_opens(path, Some(errno));
        let error = start(&world, &config, &disk).unwrap_err();
        assert_eq!(error.to_string(), "cannot use data directory /b");
        let why = error.source().unwrap().to_string();
        let reason = io::Error::from_raw_os_error(errno).to_string();
        assert_eq!(why, format!("/b/log/id: {reason}"));
    }
    disk.fail_opens(path, None);
    start(&world, &config, &disk).expect("it can be read again");
}

/// A file of a version before, without a checksum, and an identity of one that knew no numbers.
#[test]
fn d7e_what_versions_before_have_written_starts() {
    let (world, config, disk) = killed();
    let path = Path::new("/b/log/id");
    let number = read_file(&disk, path).unwrap();
    let former = disk.copy();
    write_file_durably(&former, path, &[&number[..16], b"\n"].concat()).unwrap();
    start(&world, &config, &former).expect("the number is enough");
    for directory in ["/a", "/b"] {
        let path = Path::new(directory).join("identity.json");
        let mut identity: Value = serde_json::from_slice(&read_file(&disk, &path).unwrap()).unwrap();
        let fields = identity.as_object_mut().unwrap();
        ["used", "log_ids", "ancestors", "crc32c"].iter().for_each(|field| drop(fields.remove(*field)));
        fields.insert("logs".into(), json!(["/a", "/b"]));
        write_file_durably(&disk, &path, identity.to_string().as_bytes()).unwrap();
        disk.remove_file(&Path::new(directory).join("log/id")).unwrap();
    }
    assert_no_start_makes_a_copy(&world, &Config { seed: config.seed + 1_000, ..config }, &disk);
}
