//! CPU time of processes, as the kernel counts it.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;

/// Ticks of `/proc` per second: fixed by Linux for everything that user space sees.
const TICKS_PER_SECOND: f64 = 100.0;
/// By how much the difference of two readings of a process may be too large, CPU seconds: a tick in user space and one in the kernel.
pub(crate) const ERROR_S: f64 = 2.0 / TICKS_PER_SECOND;

/// CPU seconds of this process so far, as [`of_process`]; 0 where that cannot be read.
pub fn of_this_process() -> f64 {
    of_process(std::process::id()).unwrap_or(0.0)
}

/// CPU seconds of each process so far, in user space and in the kernel, by the given names. To a hundredth of a second.
/// Processes that have ended are left out.
pub fn of_processes(processes: &BTreeMap<String, u32>) -> BTreeMap<String, f64> {
    processes.iter().filter_map(|(name, id)| Some((name.clone(), of_process(*id).ok()?))).collect()
}

/// CPU seconds of process `id` so far.
pub fn of_process(id: u32) -> Result<f64> {
    parts_of_process(id).map(|(user, system)| user + system)
}

/// CPU seconds of process `id` so far, in user space and in the kernel.
pub fn parts_of_process(id: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{id}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse(&text).with_context(|| format!("{path} is not understood"))
}

/// CPU seconds of each thread of process `id` so far, by the kernel's number of it.
pub fn of_threads(id: u32) -> Result<BTreeMap<String, f64>> {
    let path = format!("/proc/{id}/task");
    let threads = std::fs::read_dir(&path).with_context(|| format!("reading {path}"))?;
    let used = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        // Threads that have ended meanwhile are left out.
        let (user, system) = parse(&std::fs::read_to_string(thread.path().join("stat")).ok()?)?;
        Some((thread.file_name().into_string().ok()?, user + system))
    });
    Ok(used.collect())
}

/// User space, kernel.
fn parse(stat: &str) -> Option<(f64, f64)> {
    // The second field is a name in brackets, which may hold blanks and brackets of its own.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / TICKS_PER_SECOND);
    Some((seconds()?, seconds()?))
}

/// What each process, or thread, used between two readings: those that were there all the time.
pub fn between(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let used = |(name, end): (&String, &f64)| Some((name.clone(), end - before.get(name)?));
    after.iter().filter_map(used).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_look_like_more_fields() {
        let stat = "17 (a) b (c) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(parse(stat).map(|(user, system)| user + system), Some(3.0));
        assert_eq!(parse("17 a"), None);
        let stat = "28905 (a) b (c) S 1 28905 28905 0 -1 4194560 1 2 3 4 1250 375 0 0 20 0 14 0 1190";
        assert_eq!(parse(stat), Some((12.5, 3.75)));
        assert_eq!(parse("28905 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_used_some() {
        let mut x = 1_u64;
        while of_this_process() == 0.0 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(of_process(std::process::id()).unwrap() > 0.0);
    }

    #[test]
    fn a_thread_has_used_no_more_than_its_process() {
        let busiest = || of_threads(std::process::id()).unwrap().into_values().fold(0.0, f64::max);
        let mut x = 1_u64;
        while busiest() == 0.0 {
            (0..1_000_000).for_each(|_| x = std::hint::black_box(x.wrapping_mul(3)));
        }
        assert!(busiest() <= of_process(std::process::id()).unwrap());
    }

    #[test]
    fn only_processes_that_lived_all_the_time_count() {
        let reading = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let used = between(&reading(&[("a", 1.0), ("b", 2.0)]), &reading(&[("a", 1.5), ("c", 9.0)]));
        assert_eq!(used, reading(&[("a", 0.5)]));
    }
}
