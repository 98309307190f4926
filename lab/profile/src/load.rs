//! The load: `hedgerow bench` as a child, and how many operations it did from one moment to another.
//!
//! The generator prints a line per second with the rate of that second. From these lines the number of operations in any
//! window follows, so that each phase is divided by the operations of that phase.

use anyhow::{Context as _, Result, bail, ensure};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long preparing may take until the first line of progress.
const PREPARED_WITHIN: Duration = Duration::from_secs(600);
/// How long a line of progress may take.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// How `hedgerow bench` ends when it was interrupted; docs/cli.md.
const EXIT_INTERRUPTED: i32 = 5;
/// Workloads that are commands of `hedgerow bench` themselves.
const SHORTHANDS: [&str; 3] = ["put", "get", "mix"];

/// From one moment to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Window {
    pub(crate) fn seconds(self) -> f64 {
        self.end.duration_since(self.begin).as_secs_f64()
    }
}

/// How many operations were done at which moment, since the first line of progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    points: Vec<(Instant, u64)>,
    /// What was printed last, for errors.
    last_line: String,
}

impl Progress {
    fn add(&mut self, at: Instant, line: &str) {
        line.clone_into(&mut self.last_line);
        if let Some(rate) = rate_of(line) {
            // The first line's second began before anything could be measured.
            let sum = self.points.last().map_or(0, |(_, sum)| sum + rate);
            self.points.push((at, sum));
        }
    }

    /// Operations per second in `window`, from the seconds that lie in it as a whole: when a tool begins and ends, the rate
    /// changes within a second. Of a window that is too short for that, the rate is taken as constant within each second.
    pub(crate) fn rate_in(&self, window: Window) -> Result<f64> {
        let (begin, end) = (self.operations_until(window.begin)?, self.operations_until(window.end)?);
        ensure!(end > begin, "the load did nothing for {:.1} s", window.seconds());
        let is_inside = |(moment, _): &&(Instant, u64)| window.begin <= *moment && *moment <= window.end;
        let inside: Vec<_> = self.points.iter().filter(is_inside).collect();
        match inside.as_slice() {
            [(first, first_sum), .., (last, last_sum)] => {
                Ok((last_sum - first_sum) as f64 / last.duration_since(*first).as_secs_f64())
            }
            _ => Ok((end - begin) / window.seconds()),
        }
    }

    fn is_past(&self, moment: Instant) -> bool {
        self.points.last().is_some_and(|(last, _)| *last > moment)
    }

    fn operations_until(&self, at: Instant) -> Result<f64> {
        let after = self.points.partition_point(|(moment, _)| *moment <= at);
        ensure!(after > 0, "a measurement began before the load did");
        let (moment, sum) = self.points[after - 1];
        if moment == at {
            return Ok(sum as f64);
        }
        let Some((next, next_sum)) = self.points.get(after) else {
            bail!("the load ended too early; it printed last: {}", self.last_line);
        };
        let share = (at - moment).as_secs_f64() / next.duration_since(moment).as_secs_f64();
        Ok(sum as f64 + share * (next_sum - sum) as f64)
    }
}

/// The number before `ops/s`.
fn rate_of(line: &str) -> Option<u64> {
    let words: Vec<_> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| word.trim_end_matches([',', ';']) == "ops/s")?;
    let number: String = words[unit.checked_sub(1)?].chars().filter(|letter| *letter != ',').collect();
    number.parse::<f64>().ok().map(|rate| rate.round() as u64)
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// The running generator. Dropping it kills it.
pub(crate) struct Benchmark {
    child: Child,
    shared: Arc<Shared>,
    follower: Option<JoinHandle<()>>,
}

impl Benchmark {
    /// Starts the generator in `folder`, where its output goes to `bench.txt` and its progress to `bench.log`.
    pub(crate) fn start(
        binary: &Path,
        addresses: &[&str],
        workload: &str,
        seconds: u64,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("bench").args(bench_words(workload)?).args(arguments);
        command.args(["--seconds", &seconds.to_string(), "--cluster", &addresses.join(",")]);
        let create = |name: &str| File::create(folder.join(name)).with_context(|| format!("making {name}"));
        command.current_dir(folder).stdin(Stdio::null()).stdout(create("bench.txt")?).stderr(Stdio::piped());
        let log = create("bench.log")?;
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let stream = child.stderr.take().context("the generator's standard error is a pipe")?;
        let shared = Arc::new(Shared::default());
        let follower = std::thread::spawn({
            let shared = shared.clone();
            move || follow(stream, log, &shared)
        });
        Ok(Self { child, shared, follower: Some(follower) })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns with the first line of progress.
    pub(crate) fn wait_until_measuring(&self) -> Result<()> {
        let progress = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waiting = |progress: &mut Progress| progress.points.is_empty() && !self.has_ended();
        let waited = self.shared.changed.wait_timeout_while(progress, PREPARED_WITHIN, is_waiting);
        let (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ensure!(!progress.points.is_empty(), "the load did not begin; it printed last: {}", progress.last_line);
        Ok(())
    }

    /// Returns with the next line of progress and when that came: a phase that begins and ends with a line is made of whole
    /// seconds.
    pub(crate) fn wait_for_line(&self) -> Instant {
        let progress = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let count = progress.points.len();
        let is_waiting = |progress: &mut Progress| progress.points.len() == count && !self.has_ended();
        let waited = self.shared.changed.wait_timeout_while(progress, TOLD_WITHIN, is_waiting);
        let (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        progress.points.last().map_or_else(Instant::now, |(moment, _)| *moment)
    }

    fn has_ended(&self) -> bool {
        self.follower.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Interrupts the load once it has told its progress past `end`, and waits for its own results.
    pub(crate) fn finish(mut self, end: Instant) -> Result<Progress> {
        let progress = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = |progress: &mut Progress| !progress.is_past(end) && !self.has_ended();
        drop(self.shared.changed.wait_timeout_while(progress, TOLD_WITHIN, is_behind));
        // The standard library has no call for a signal other than SIGKILL.
        let mut kill = Command::new("kill");
        kill.args(["-INT", &self.child.id().to_string()]).status().context("running kill")?;
        if let Some(follower) = self.follower.take() {
            ensure!(follower.join().is_ok(), "following the load failed");
        }
        let status = self.child.wait().context("waiting for the load")?;
        let progress = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The generator may judge its own figures as void; its rate is good enough here.
        if !matches!(status.code(), Some(0 | EXIT_INTERRUPTED)) {
            crate::say(&format!(
                "the load ended with {status}, see bench.log; it printed last: {}",
                progress.last_line
            ));
        }
        Ok(progress)
    }
}

impl Drop for Benchmark {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What comes after `hedgerow bench`.
fn bench_words(workload: &str) -> Result<Vec<String>> {
    if SHORTHANDS.contains(&workload) {
        return Ok(vec![workload.to_owned()]);
    }
    let is_file = Path::new(workload).extension().is_some_and(|extension| extension == "toml");
    let name = if is_file {
        // The generator runs in another folder.
        let path = Path::new(workload).canonicalize().with_context(|| format!("looking for {workload}"))?;
        path.to_str().context("the workload's path is not UTF-8")?.to_owned()
    } else {
        workload.to_owned()
    };
    Ok(vec!["run".to_owned(), name])
}

fn follow(stream: ChildStderr, mut log: File, shared: &Shared) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let at = Instant::now();
        // A log that cannot be written is no reason to lose the profile.
        let _ = writeln!(log, "{line}");
        shared.progress.lock().unwrap_or_else(PoisonError::into_inner).add(at, &line);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_line_of_progress() {
        assert_eq!(rate_of("   1 s  73765 ops/s, p99 2.40 ms, 0 errors"), Some(73_765));
        assert_eq!(rate_of("12 s: 1,234.6 ops/s"), Some(1_235));
        assert_eq!(rate_of("writing 100000 rows of 1000 bytes"), None);
        assert_eq!(rate_of("ops/s"), None);
    }

    #[test]
    fn the_rate_of_a_window() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut progress = Progress::default();
        for (millis, line) in [(0, "1 s 50 ops/s"), (1000, "2 s 100 ops/s"), (2000, "3 s 300 ops/s")] {
            progress.add(at(millis), line);
        }
        let rate = |begin: u64, end: u64| progress.rate_in(Window { begin: at(begin), end: at(end) }).unwrap();
        assert!((rate(500, 1500) - 200.0).abs() < 1e-6, "halves of two seconds");
        assert!((rate(900, 2000) - 300.0).abs() < 1e-6, "the whole second alone");
        let too_late = progress.rate_in(Window { begin: at(500), end: at(2001) }).unwrap_err();
        assert!(too_late.to_string().contains("3 s 300 ops/s"), "{too_late}");
        assert!(Progress::default().rate_in(Window { begin: at(0), end: at(1) }).is_err());
    }

    #[test]
    fn workloads_become_commands_of_bench() {
        assert_eq!(bench_words("get").unwrap(), ["get"]);
        assert_eq!(bench_words("ycsb-a").unwrap(), ["run", "ycsb-a"]);
        assert!(bench_words("no-such-file.toml").is_err());
    }
}
