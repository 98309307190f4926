//! The results folder: where everything that belongs to one outcome lies.
#![allow(clippy::disallowed_methods, reason = "results are a person's own files, not the store's")]

use crate::histogram::write_histogram;
use crate::outcome::RESULT_FILE;
use crate::plot::{pictures, png};
use crate::schema::Outcome;
use crate::time::utc_now;
use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

const HISTOGRAMS: &str = "histograms";
const WORKLOADS: &str = "workloads";
const PLOTS: &str = "plots";
const FAULT_PLAN: &str = "faults.toml";
/// Folders that may begin in the same second with the same name.
const FOLDERS_PER_SECOND_MAX: u32 = 1_000;

/// A results folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder `base/name-20261122T101500Z`, and `base` if need be. A folder that is there already is left
    /// alone: the new one's name then ends in `-2`, `-3` and so on.
    pub fn create(base: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(base).with_context(|| format!("making the folder {}", base.display()))?;
        let time = utc_now().replace(['-', ':'], "");
        let stem = format!("{}-{time}", file_name(name));
        for attempt in 1..=FOLDERS_PER_SECOND_MAX {
            let path = base.join(if attempt == 1 { stem.clone() } else { format!("{stem}-{attempt}") });
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("making the folder {}", path.display())),
            }
        }
        bail!("{} has more than {FOLDERS_PER_SECOND_MAX} folders {stem}", base.display())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the histogram log of an operation of a run belongs. `run` tells runs apart, for example by variant and
    /// repetition. The folder for it is made if that is possible; otherwise writing the log fails.
    pub fn histogram_path(&self, run: &str, operation: &str) -> PathBuf {
        let folder = self.path.join(HISTOGRAMS);
        // Whoever writes the log sees the error with the path.
        let _ = fs::create_dir_all(&folder);
        folder.join(format!("{}-{}.hlog", file_name(run), file_name(operation)))
    }

    /// Writes the log of an operation of a run, as [`Folder::histogram_path`] says, and returns what belongs into
    /// [`crate::Operation::histogram`].
    pub fn keep_histogram(
        &self,
        run: &str,
        operation: &str,
        histogram: &Histogram<u64>,
        duration: Duration,
    ) -> Result<String> {
        let path = self.histogram_path(run, operation);
        write_histogram(&path, histogram, duration)?;
        let relative = path.strip_prefix(&self.path).expect("histograms lie below the folder");
        Ok(relative.to_string_lossy().into_owned())
    }

    /// Writes `result.json`, the workloads, the fault plan and all plots, as SVG and as PNG. What an earlier call wrote is
    /// replaced.
    pub fn write(&self, outcome: &Outcome) -> Result<()> {
        self.write_result(outcome)?;
        let plots = self.path.join(PLOTS);
        match fs::remove_dir_all(&plots) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("replacing {}", plots.display()));
            }
            Ok(()) | Err(_) => {}
        }
        for picture in pictures(&[(&self.path, outcome)])? {
            let stem = format!("{PLOTS}/{}", file_name(&picture.name));
            self.put(&format!("{stem}.svg"), picture.svg.as_bytes())?;
            self.put(&format!("{stem}.png"), &png(&picture.svg)?)?;
        }
        Ok(())
    }

    /// Like [`Folder::write`] without the plots, which take their time: for an outcome that grows.
    pub fn write_result(&self, outcome: &Outcome) -> Result<()> {
        let json = serde_json::to_vec_pretty(outcome).context("an outcome cannot be serialized")?;
        self.put(RESULT_FILE, &[json.as_slice(), b"\n"].concat())?;
        for (name, text) in &outcome.workloads {
            self.put(&format!("{WORKLOADS}/{}.toml", file_name(name)), text.as_bytes())?;
        }
        if let Some(plan) = &outcome.fault_plan {
            self.put(FAULT_PLAN, plan.as_bytes())?;
        }
        Ok(())
    }

    /// Puts a whole file into the folder, in one step.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!("{name}.new"));
        let folder = path.parent().expect("a file lies in a folder");
        let write = || {
            fs::create_dir_all(folder)?;
            fs::write(&temporary, bytes)?;
            fs::rename(&temporary, &path)
        };
        write().with_context(|| format!("writing {}", path.display()))
    }
}

/// `name` as a part of a file's name. Different names stay different: what might not be part of one is written as the
/// numbers of its bytes.
pub(crate) fn file_name(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'=' | b'+');
    let part = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let plain: String = name.bytes().map(part).collect();
    // The names of the folder itself and of its parent.
    plain.strip_prefix('.').map_or_else(|| plain.clone(), |rest| format!("%2E{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_never_takes_anothers_place() {
        let base = tempfile::tempdir().unwrap();
        let folders: Vec<Folder> =
            (0..5).map(|_| Folder::create(&base.path().join("deep/results"), "scale").unwrap()).collect();
        let mut paths: Vec<&Path> = folders.iter().map(Folder::path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 5);
        let name = paths[0].file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!((name.len(), &name[..6], &name[14..15], &name[21..22]), (22, "scale-", "T", "Z"), "{name}");
    }

    #[test]
    fn names_cannot_leave_the_folder_or_meet() {
        assert_eq!(file_name("connections=64"), "connections=64");
        assert_eq!(file_name("a b/ü"), "a%20b%2F%C3%BC");
        assert_eq!(file_name(".."), "%2E.");
        assert_ne!(file_name("a b"), file_name("a%20b"));
    }

    #[test]
    fn an_outcome_is_written_again_and_again() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "bench").unwrap();
        let mut outcome = Outcome::new("bench", Vec::new(), 1);
        outcome.workloads.insert("ycsb-a".to_owned(), "read = 0.5\n".to_owned());
        outcome.fault_plan = Some("name = \"stall\"\n".to_owned());
        folder.write(&outcome).unwrap();
        outcome.title = "bench, finished".to_owned();
        folder.write(&outcome).unwrap();
        assert_eq!(Outcome::read(folder.path()).unwrap(), outcome);
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(text("workloads/ycsb-a.toml"), "read = 0.5\n");
        assert_eq!(text("faults.toml"), "name = \"stall\"\n");
    }

    #[test]
    fn histograms_lie_below_the_folder() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "bench").unwrap();
        let mut histogram = Histogram::new(3).unwrap();
        histogram.record(1_000).unwrap();
        let name = folder.keep_histogram("rate=1000/s-1", "get", &histogram, Duration::from_secs(1)).unwrap();
        assert_eq!(name, "histograms/rate=1000%2Fs-1-get.hlog");
        assert_eq!(crate::read_histogram(&folder.path().join(name)).unwrap(), histogram);
        assert!(folder.histogram_path("rate=1000/s-1", "get").exists());
    }
}
