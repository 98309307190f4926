//! What the process wrote and used, and what lies on the disk.

use anyhow::{Context as _, Result};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// Bytes that the process has had written to disks so far.
pub(crate) fn bytes_written() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<u64>().ok()).with_context(|| format!("no {name} in /proc/self/io"))
    };
    Ok(field("write_bytes:")?.saturating_sub(field("cancelled_write_bytes:")?))
}

/// Processor time of all threads so far.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Calls `visit` for each file below `directory`. A file may go meanwhile.
fn visit_files(directory: &Path, visit: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => visit_files(&entry.path(), visit)?,
            Ok(metadata) => visit(&entry.path(), metadata.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Bytes of all files below `directory`.
pub(crate) fn bytes_on_disk(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    visit_files(directory, &mut |_, size| bytes += size)?;
    Ok(bytes)
}

/// Has the system forget what it holds of the files below `directory`, so that reads need the disk.
pub(crate) fn forget_pages(directory: &Path) -> Result<()> {
    visit_files(directory, &mut |path, _| {
        if let Ok(file) = File::open(path) {
            // What is not forgotten is read faster, by either engine.
            drop(file.sync_all());
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
    })
}
