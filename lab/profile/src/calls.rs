//! System calls by name, of the servers and of the client: counted by the kernel for perf, or else by strace.

use crate::load::Window;
use crate::perf;
use crate::process::Process;
use anyhow::{Context as _, Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long perf watches to find out which calls there are.
const DISCOVERY: Duration = Duration::from_secs(1);
/// How many names are counted on their own: each costs a little at every switch between threads.
const NAMES_MAX: usize = 16;
/// Where the kernel lists the calls that it can count.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events/syscalls", "/sys/kernel/debug/tracing/events/syscalls"];
/// Calls of all names.
const ALL: &str = "raw_syscalls:sys_enter";
/// What the name of a call becomes as an event.
const ENTER: &str = "syscalls:sys_enter_";

/// The calls of one phase.
#[derive(Debug)]
pub(crate) struct Calls {
    /// When they were counted.
    pub(crate) window: Window,
    /// Calls of the servers by name.
    pub(crate) servers: BTreeMap<String, u64>,
    /// Calls of the client by name.
    pub(crate) client: BTreeMap<String, u64>,
    /// How they were counted, for the summary.
    pub(crate) source: &'static str,
}

/// Counts for `phase`.
pub(crate) fn count(processes: &[Process], phase: Duration, is_perf_missing: bool) -> Result<Calls> {
    let counted = if is_perf_missing { Err(anyhow!("it is not to be used")) } else { count_by_perf(processes, phase) };
    counted.or_else(|perf| count_by_strace(processes, phase).map_err(|strace| anyhow!("perf: {perf:#}; {strace:#}")))
}

/// Servers and client.
fn sides(processes: &[Process]) -> [Vec<&Process>; 2] {
    let (servers, client) = processes.iter().partition(|process| process.role.is_server());
    [servers, client]
}

// --- perf -----------------------------------------------------------------------------------------------------------

fn count_by_perf(processes: &[Process], phase: Duration) -> Result<Calls> {
    let mut trace = Command::new("perf");
    trace.args(["trace", "--summary", "--pid", &perf::ids(processes)]);
    let names = names_in_trace(&perf::run_for(&mut trace, DISCOVERY)?.1);
    let mut events = vec![ALL.to_owned()];
    events.extend(names.iter().filter(|name| is_event(name)).map(|name| format!("{ENTER}{name}")));
    let children = sides(processes).map(|side| stat(&side, &events, phase));
    let [servers, client] = children.map(|child| child.and_then(|child| counts_of(&ended(child)?)));
    let end = Instant::now();
    // Both attach before they begin to count, and end together.
    let window = Window { begin: end - phase, end };
    Ok(Calls { window, servers: servers?, client: client?, source: "perf stat" })
}

/// The names in the tables of `perf trace --summary`, the most frequent ones.
fn names_in_trace(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(count)) = (words.next(), words.next()) else { continue };
        if let (true, Ok(count)) = (is_name(name), count.parse::<u64>()) {
            *counts.entry(name).or_default() += count;
        }
    }
    let mut names: Vec<_> = counts.into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    names.into_iter().take(NAMES_MAX).map(|(name, _)| name.to_owned()).collect()
}

fn is_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_lowercase())
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Whether the kernel can count calls of this name. An unknown event would make perf refuse all of them.
fn is_event(name: &str) -> bool {
    EVENTS.iter().any(|folder| Path::new(folder).join(format!("sys_enter_{name}")).exists())
}

/// Counts for `phase` from now on.
fn stat(side: &[&Process], events: &[String], phase: Duration) -> Result<Child> {
    let mut command = Command::new("perf");
    command.args(["stat", "--field-separator", ",", "--event", &events.join(",")]);
    command.args(["--pid", &perf::ids(side.iter().copied())]);
    command.args(["--", "sleep", &phase.as_secs_f64().to_string()]);
    spawn(&mut command)
}

/// Reads what `perf stat` prints: `COUNT,UNIT,EVENT,...` per line.
fn counts_of(text: &str) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',');
        let (Some(count), _, Some(event)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if let Ok(count) = count.parse::<u64>() {
            counts.insert(event.strip_prefix(ENTER).unwrap_or(event).to_owned(), count);
        }
    }
    let all = counts.remove(ALL).with_context(|| format!("perf stat counted nothing: {}", text.trim()))?;
    let named: u64 = counts.values().sum();
    counts.insert("others".to_owned(), all.saturating_sub(named));
    counts.retain(|_, count| *count > 0);
    Ok(counts)
}

// --- strace ---------------------------------------------------------------------------------------------------------

fn count_by_strace(processes: &[Process], phase: Duration) -> Result<Calls> {
    let mut tracers = Vec::new();
    for side in sides(processes) {
        tracers.push(Tracer::start(&side)?);
    }
    // Attaching takes long on a busy machine.
    for tracer in &mut tracers {
        tracer.wait_until_attached()?;
    }
    let begin = Instant::now();
    sleep(phase);
    let window = Window { begin, end: Instant::now() };
    let mut counts = Vec::new();
    for tracer in &mut tracers {
        counts.push(counts_of_strace(&tracer.interrupt()?)?);
    }
    let [servers, client] = <[_; 2]>::try_from(counts).expect("there are two sides");
    Ok(Calls { window, servers, client, source: "strace, which slows the processes down" })
}

/// A running strace. Dropping it kills it; the processes go on.
struct Tracer {
    child: Child,
    output: BufReader<ChildStderr>,
    process_count: usize,
}

impl Tracer {
    fn start(side: &[&Process]) -> Result<Self> {
        let mut command = Command::new("strace");
        command.args(["-c", "-f"]);
        for process in side {
            command.args(["-p", &process.id.to_string()]);
        }
        let mut child = spawn(&mut command)?;
        let output = child.stderr.take().context("strace's standard error is a pipe")?;
        Ok(Self { child, output: BufReader::new(output), process_count: side.len() })
    }

    /// It says so of every process.
    fn wait_until_attached(&mut self) -> Result<()> {
        let mut left = self.process_count;
        while left > 0 {
            let mut line = String::new();
            self.output.read_line(&mut line).context("reading from strace")?;
            ensure!(line.ends_with('\n') && !line.contains("Operation not permitted"), "strace: {}", line.trim());
            left -= usize::from(line.contains(" attached"));
        }
        Ok(())
    }

    /// As a person would; what it prints then.
    fn interrupt(&mut self) -> Result<String> {
        // The standard library has no call for a signal other than SIGKILL.
        let mut kill = Command::new("kill");
        let status = kill.args(["-INT", &self.child.id().to_string()]).status().context("running kill")?;
        ensure!(status.success(), "strace could not be interrupted");
        let mut text = String::new();
        self.output.read_to_string(&mut text).context("reading from strace")?;
        Ok(text)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads the table of `strace -c`: the share, seconds, microseconds per call, calls, perhaps errors, and the name.
fn counts_of_strace(text: &str) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let (Some(share), Some(calls), Some(name)) = (words.first(), words.get(3), words.last()) else { continue };
        if let (Ok(_), Ok(calls), true) = (share.parse::<f64>(), calls.parse(), *name != "total" && is_name(name)) {
            counts.insert((*name).to_owned(), calls);
        }
    }
    ensure!(!counts.is_empty(), "strace counted nothing: {}", text.trim());
    Ok(counts)
}

// --- Tools ----------------------------------------------------------------------------------------------------------

fn spawn(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("{} could not be started", command.get_program().display()))
}

/// Waits for a tool and gives its standard error.
fn ended(child: Child) -> Result<String> {
    let output = child.wait_with_output().context("waiting for a tool to end")?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_tables_of_perf_trace() {
        let text = "
 node-3 (28915), 29557 events, 27.7%

   syscall            calls  errors  total       min       avg       max       stddev
                                     (msec)    (msec)    (msec)    (msec)        (%)
   --------------- --------  ------ -------- --------- --------- ---------     ------
   recvfrom            7000      1   200.016     0.000     0.008     0.016    100.00%
   epoll_wait          1500      0   500.016     0.000     0.008     0.016    100.00%
";
        assert_eq!(names_in_trace(text), BTreeSet::from(["recvfrom".to_owned(), "epoll_wait".to_owned()]));
    }

    #[test]
    fn counts_of_perf_stat_and_what_has_no_name() {
        let text = "151812,,raw_syscalls:sys_enter,1202254950,100.00,,
66352,,syscalls:sys_enter_recvfrom,1202477204,100.00,,
0,,syscalls:sys_enter_writev,1202628831,100.00,,
";
        let counts = counts_of(text).unwrap();
        assert_eq!(counts, BTreeMap::from([("recvfrom".to_owned(), 66_352), ("others".to_owned(), 85_460)]));
        assert!(counts_of("<not counted>,,raw_syscalls:sys_enter,0,0.00,,").is_err());
    }

    #[test]
    fn counts_of_strace_with_and_without_errors() {
        let text = "\
strace: Process 28905 attached with 14 threads
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.23    0.412000          12     34333       120 recvfrom
 38.77    0.261000           9     29000           sendto
------ ----------- ----------- --------- --------- ----------------
100.00    0.673000          10     63333       120 total
";
        let counts = counts_of_strace(text).unwrap();
        assert_eq!(counts, BTreeMap::from([("recvfrom".to_owned(), 34_333), ("sendto".to_owned(), 29_000)]));
    }
}
