//! What a node's process takes: memory, descriptors, threads and bytes on the disk, over time, and whether that grows.
#![allow(
    clippy::disallowed_methods,
    reason = "it reads what the kernel tells of processes, and the sizes of their files"
)]

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What one process takes at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes of memory that it occupies.
    pub(crate) resident: u64,
    /// Open descriptors.
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Bytes of its files.
    pub(crate) data: u64,
}

impl Usage {
    /// Of process `pid`, which keeps its data in `directories`; `None` if there is no such process.
    pub(crate) fn read(pid: u32, directories: &[PathBuf]) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            resident: number("VmRSS:")? << 10,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
            threads: number("Threads:")?,
            data: directories.iter().map(|directory| size_of(directory)).sum(),
        })
    }
}

/// Bytes of all files below `directory`. What goes while it is counted does not count.
fn size_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(of_entry).sum()
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, descriptors, threads, data } = self;
        write!(f, "{:>4} MiB {descriptors:>4} fd {threads:>3} thr {:>5} MiB data", resident >> 20, data >> 20)
    }
}

/// What became of one figure between the second third of a run and the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trend {
    /// There are too few samples.
    TooShort,
    /// Medians of the two thirds that differ by no more than is usual.
    Flat(u64, u64),
    /// The last third's median is more than that above the second's.
    Grows(u64, u64),
}

impl Trend {
    /// Of samples in the order of time. It grows if the last third's median is more than a tenth and `allowed` above.
    pub(crate) fn of(samples: &[u64], allowed: u64) -> Self {
        /// Samples of a third at least.
        const LEAST: usize = 6;
        let third = samples.len() / 3;
        if third < LEAST {
            return Self::TooShort;
        }
        let median = |part: &[u64]| {
            let mut sorted = part.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        let (second, last) = (median(&samples[third..2 * third]), median(&samples[2 * third..]));
        if last > second + second / 10 + allowed { Self::Grows(second, last) } else { Self::Flat(second, last) }
    }

    pub(crate) const fn is_growth(self) -> bool {
        matches!(self, Self::Grows(..))
    }

    /// In words, with figures in units of `unit`.
    pub(crate) fn words(self, unit: u64) -> String {
        match self {
            Self::TooShort => "too short a run to tell".to_owned(),
            Self::Flat(second, last) => format!("flat ({} -> {})", second / unit, last / unit),
            Self::Grows(second, last) => {
                format!("GROWS by {} ({} -> {})", (last - second) / unit, second / unit, last / unit)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_from_noise() {
        let noisy: Vec<u64> = (0..60).map(|at| 100 + at % 7).collect();
        assert_eq!(Trend::of(&noisy, 5), Trend::Flat(103, 103));
        let growing: Vec<u64> = (0..60).map(|at| 100 + at).collect();
        assert_eq!(Trend::of(&growing, 5), Trend::Grows(130, 150));
        assert!(Trend::of(&growing, 5).words(1).contains("GROWS by 20 (130 -> 150)"));
        // What fills up in the beginning has grown, and grows no more.
        let filling: Vec<u64> = (0..60).map(|at: u64| 100 + at.min(18) * 10).collect();
        assert_eq!(Trend::of(&filling, 5), Trend::Flat(280, 280));
        assert_eq!(Trend::of(&noisy[..17], 5), Trend::TooShort);
    }

    #[test]
    fn a_process_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deeper")).unwrap();
        fs::write(folder.path().join("deeper/file"), [0; 1_000]).unwrap();
        let usage = Usage::read(std::process::id(), &[folder.path().to_path_buf()]).expect("this process runs");
        assert!(usage.resident > 0 && usage.descriptors > 0 && usage.threads > 0, "{usage:?}");
        assert_eq!(usage.data, 1_000);
        assert_eq!(Usage::read(u32::MAX, &[]), None);
    }
}
