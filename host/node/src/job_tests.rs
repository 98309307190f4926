//! Jobs that fail, are interrupted or are tried again.

use super::*;
use crate::install::finish_install;
use hedgerow_env::os::OsDisk;
use hedgerow_env::sim::SimDisk;
use hedgerow_storage::{Batch, MemoryEngines, RocksEngines, RocksSettings};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, TableId};
use std::collections::BTreeSet;

const OWNER: ReplicaKey = ReplicaKey { group: GroupId { table: TableId(1), partition: 0 }, replica: ReplicaId(7) };
const OLD: LogPosition = LogPosition { term: 1, index: 1 };
const NEW: LogPosition = LogPosition { term: 2, index: 90 };

fn storage() -> &'static Path {
    Path::new("/data/replicas/1.0-7")
}

fn received() -> &'static Path {
    Path::new("/data/incoming/1.0-7-5")
}

fn context(disk: &SimDisk) -> JobContext {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    JobContext { engines: Arc::new(MemoryEngines::new(Arc::clone(&disk))), disk, readers: Vec::new() }
}

/// Storage at `position` in `directory`, durable.
fn make(context: &JobContext, directory: &Path, position: LogPosition) {
    make_of(context, directory, position, membership().encode());
}

fn make_of(context: &JobContext, directory: &Path, position: LogPosition, membership: Bytes) {
    let mut partition = Partition::open(context.engines.open(directory).unwrap()).unwrap();
    partition.initialise(position, membership).unwrap();
    partition.engine().flush().unwrap();
    context.disk.sync_dir(hedgerow_env::parent_of(directory)).unwrap();
}

fn membership() -> Membership {
    Membership::of_voters([ReplicaId(7), ReplicaId(8)])
}

fn meta() -> SnapshotMeta {
    SnapshotMeta { position: NEW, membership: membership(), id: 5 }
}

fn install_job() -> Job {
    let meta = meta();
    let trash = PathBuf::from("/data/trash/1");
    Job::Install {
        owner: OWNER,
        former: None,
        from: received().to_owned(),
        directory: storage().to_owned(),
        trash,
        meta,
    }
}

/// What the next start finds.
fn found(context: &JobContext) -> LogPosition {
    finish_install(&*context.disk, storage()).unwrap();
    assert!(context.disk.exists(storage()), "there is no storage");
    Partition::open(context.engines.open(storage()).unwrap()).unwrap().applied()
}

#[test]
fn d4_an_install_that_a_crash_interrupts_leaves_the_old_storage_or_the_new_one() {
    let mut seen = BTreeSet::new();
    for calls in 0..40 {
        for seed in 0..8 {
            let disk = SimDisk::new();
            let context = context(&disk);
            make(&context, storage(), OLD);
            make(&context, received(), NEW);
            disk.stop_after(calls);
            let done = install_job().run(&context);
            disk.crash(&mut Random::new(seed));
            let position = found(&context);
            assert!(done.result.is_err() || position == NEW, "an installation that was reported is gone");
            seen.insert((done.result.is_ok(), position));
        }
    }
    assert_eq!(seen, BTreeSet::from([(false, OLD), (false, NEW), (true, NEW)]));
}

#[test]
fn d4_an_install_that_failed_can_be_run_again() {
    for calls in 0..20 {
        let disk = SimDisk::new();
        let context = context(&disk);
        make(&context, storage(), OLD);
        make(&context, received(), NEW);
        disk.stop_after(calls);
        let done = install_job().run(&context);
        disk.kill_process();
        if let Err(failure) = done.result {
            failure.again.unwrap().run(&context).result.unwrap();
        }
        assert_eq!(found(&context), NEW);
    }
}

#[test]
fn d4_a_checkpoint_that_is_not_what_was_announced_replaces_nothing() {
    let disk = SimDisk::new();
    let context = context(&disk);
    make(&context, storage(), OLD);
    make(&context, received(), LogPosition { term: 2, index: 89 });
    let verify = || Job::Verify { owner: OWNER, id: 5, directory: received().to_owned(), meta: meta() };
    let failure = verify().run(&context).result.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Damage);
    for members in [membership(), Membership::of_voters([ReplicaId(7), ReplicaId(9)])] {
        disk.remove_dir_all(received()).unwrap();
        make_of(&context, received(), NEW, members.encode());
        let result = verify().run(&context).result;
        assert_eq!(
            result.map_err(|failure| failure.kind).err(),
            (members != membership()).then_some(FailureKind::Damage)
        );
    }
    disk.remove_dir_all(received()).unwrap();
    assert!(verify().run(&context).result.is_err(), "nothing is no checkpoint");
    assert_eq!(found(&context), OLD);
}

/// Pitfall N1: it shares tables with the storage, which the disk gets back only without it.
#[test]
fn n1_a_checkpoint_that_cannot_be_used_does_not_stay() {
    let disk = SimDisk::new();
    let context = context(&disk);
    make_of(&context, storage(), OLD, Bytes::from_static(b"membership"));
    let engine = context.engines.open(storage()).unwrap();
    let into = PathBuf::from("/data/checkpoints/1.0-7-9");
    let done = Job::Checkpoint { owner: OWNER, engine, into: into.clone(), id: 9 }.run(&context);
    assert_eq!(done.result.unwrap_err().reason, "the membership is malformed");
    assert!(!disk.exists(&into));
}

/// Pitfall D9: what opens a checkpoint only to see its position reads nothing else, and what is to be used has everything.
#[test]
fn d9_sessions_are_read_by_jobs() {
    let context = context(&SimDisk::new());
    make(&context, storage(), OLD);
    make(&context, received(), NEW);
    let Ok(JobResult::Installed { partition, .. }) = install_job().run(&context).result else { panic!("installed") };
    assert!(partition.has_sessions());
    let engine = Arc::clone(partition.engine());
    let mut reopened = Partition::open(Arc::clone(&engine)).unwrap();
    assert!(!reopened.has_sessions());
    let done = Job::LoadSessions { owner: OWNER, engine }.run(&context);
    assert!(done.holds_storage && done.owner == Some(OWNER));
    let Ok(JobResult::Sessions { sessions, .. }) = done.result else { panic!("read") };
    reopened.adopt_sessions(*sessions);
    assert!(reopened.has_sessions());
}

/// Pitfall D4a: a byte of the sender's table that nobody has read. Its checkpoint opens and has the right position; whoever reads
/// all of it finds the byte, the receiver of the copy as well as the sender.
#[test]
fn d4a_a_damaged_block_is_found_before_a_checkpoint_is_used() {
    let root = tempfile::tempdir().unwrap();
    let (storage, sent, received) =
        (root.path().join("storage"), root.path().join("sent"), root.path().join("received"));
    let disk: Arc<dyn Disk> = Arc::new(OsDisk);
    let engines = Arc::new(RocksEngines::new(&RocksSettings { cache_size: 1 << 20, ..Default::default() }).unwrap());
    let context = JobContext { disk: Arc::clone(&disk), engines, readers: Vec::new() };
    let engine = context.engines.open(&storage).unwrap();
    let mut partition = Partition::open(Arc::clone(&engine)).unwrap();
    partition.initialise(NEW, Membership::of_voters([OWNER.replica]).encode()).unwrap();
    let mut batch = Batch::new();
    (0..50_u32).for_each(|row| batch.put(&[b"z", &row.to_be_bytes()], &[&[7; 2_000]]));
    engine.write(&batch).unwrap();
    engine.flush().unwrap();
    let tables = |directory: &Path| -> Vec<PathBuf> {
        let mut names = disk.list(directory).unwrap();
        names.retain(|name| name.ends_with(".sst"));
        names.into_iter().map(|name| directory.join(name)).collect()
    };
    let flip = |path: &Path| {
        let (file, mut byte) = (disk.open(path, OpenMode::Write).unwrap(), [0]);
        file.read_at(70_000, &mut byte).unwrap();
        file.write_at(70_000, &[!byte[0]]).unwrap();
    };
    flip(&tables(&storage)[0]);
    let done = Job::Checkpoint { owner: OWNER, engine, into: sent.clone(), id: 5 }.run(&context);
    let Ok(JobResult::Checkpoint { meta, files }) = done.result else { panic!("{:?}", done.result) };
    let copy = || {
        for (name, size) in &files {
            let data = read_piece(&*disk, &sent.join(name), 0, *size as usize).unwrap();
            write_piece(&*disk, &received.join(name), 0, &data, None).unwrap();
        }
    };
    let verify =
        || Job::Verify { owner: OWNER, id: 5, directory: received.clone(), meta: meta.clone() }.run(&context).result;
    copy();
    assert_eq!(verify().unwrap_err().kind, FailureKind::Damage);
    flip(&tables(&received)[0]);
    assert!(verify().is_ok(), "the copy is whole without the byte");
    let verify_own = || {
        let (meta, files) = (meta.clone(), files.clone());
        Job::VerifyOwn { owner: OWNER, directory: sent.clone(), meta, files }.run(&context)
    };
    // The tables are the storage's own.
    flip(&tables(&storage)[0]);
    assert!(matches!(verify_own().result, Ok(JobResult::OwnVerified { .. })));
    flip(&tables(&storage)[0]);
    let done = verify_own();
    assert!(!done.holds_storage, "an installation need not wait for it");
    assert_eq!(done.result.unwrap_err().kind, FailureKind::Damage);
    assert!(!disk.exists(&sent), "nobody would remove it");
}
