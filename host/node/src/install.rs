//! Putting a received checkpoint in the place of a replica's storage.

use crate::job::{JobContext, JobError, JobResult};
use hedgerow_env::{Disk, create_dir_durably};
use hedgerow_replication::SnapshotMeta;
use hedgerow_storage::Partition;
use hedgerow_types::log::LogPosition;
use std::path::{Path, PathBuf};

/// Replaces `directory` by `from`, which was verified.
///
/// ```text
/// from -> directory.new       verified, and in no incomplete state
/// directory -> trash          the log still goes with what was there
/// directory.new -> directory  the log is reset only after this has returned
/// ```
///
/// Each step is durable before the next, so that a crash leaves the former storage, or the new one under one of its two
/// names, of which [`finish_install`] makes the right one. Run again after a failure, it goes on where it ended.
pub(crate) fn install(
    context: &JobContext,
    from: &Path,
    directory: &Path,
    trash: PathBuf,
    meta: SnapshotMeta,
) -> Result<JobResult, JobError> {
    let disk = &*context.disk;
    let arriving = arriving_at(directory);
    if disk.exists(from) {
        if disk.exists(&arriving) {
            // Of an installation that a crash interrupted.
            disk.remove_dir_all(&arriving)?;
        }
        move_durably(disk, from, &arriving)?;
    }
    if disk.exists(&arriving) {
        if disk.exists(directory) {
            create_dir_durably(disk, hedgerow_env::parent_of(&trash))?;
            move_durably(disk, directory, &trash)?;
        }
        move_durably(disk, &arriving, directory)?;
    }
    let mut partition = open_at(context, directory, meta.position)?;
    partition.load_sessions()?;
    Ok(JobResult::Installed { partition: Box::new(partition), meta, trash })
}

/// What a checkpoint is called when nothing is left to do but to put it in the place of `directory`.
pub(crate) fn arriving_at(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Ends an installation that a crash interrupted when `directory` had no storage.
pub(crate) fn finish_install(disk: &dyn Disk, directory: &Path) -> std::io::Result<()> {
    let arriving = arriving_at(directory);
    if !disk.exists(directory) && disk.exists(&arriving) {
        move_durably(disk, &arriving, directory)?;
    }
    Ok(())
}

fn move_durably(disk: &dyn Disk, from: &Path, to: &Path) -> std::io::Result<()> {
    disk.rename(from, to)?;
    let (left, entered) = (hedgerow_env::parent_of(from), hedgerow_env::parent_of(to));
    disk.sync_dir(entered)?;
    if left == entered { Ok(()) } else { disk.sync_dir(left) }
}

pub(crate) fn open_at(context: &JobContext, directory: &Path, position: LogPosition) -> Result<Partition, JobError> {
    // An engine would make what is missing.
    context.disk.list(directory)?;
    let partition = Partition::open(context.engines.open(directory)?)?;
    if partition.applied() == position { Ok(partition) } else { Err(JobError::WrongPosition) }
}
