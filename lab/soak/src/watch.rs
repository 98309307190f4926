//! The lines of progress: what has been done, what went wrong on purpose, and what each node takes.

use crate::usage::{Trend, Usage};
use crate::worker::{Shared, lock};
use anyhow::{Context as _, Result};
use hedgerow_env::os::spawn_thread;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(10);
/// What memory may grow by beyond a tenth: an allocator and caches of this size settle late.
const RESIDENT_ALLOWED: u64 = 24 << 20;
/// The same for descriptors, which follow the number of table files, and for threads.
const DESCRIPTORS_ALLOWED: u64 = 24;
const THREADS_ALLOWED: u64 = 4;

/// What is told to the one who watches.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    /// The processes of nodes 1 to n.
    pub(crate) pids: Arc<Mutex<Vec<Option<u32>>>>,
    pub(crate) directories: Vec<Vec<PathBuf>>,
    /// Faults since the last line.
    pub(crate) faults: Arc<Mutex<Vec<String>>>,
}

/// A thread that prints.
pub(crate) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<()>,
    samples: Arc<Mutex<Vec<Vec<Usage>>>>,
}

impl Watch {
    pub(crate) fn start(shared: &Arc<Shared>, watched: Watched) -> Result<Self> {
        let (stop, stopped) = channel();
        let samples = Arc::new(Mutex::new(vec![Vec::new(); watched.directories.len()]));
        let (kept, shared) = (Arc::clone(&samples), Arc::clone(shared));
        let body = move || {
            let mut before = 0;
            let mut at = shared.now();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(EVERY) {
                let now = shared.now();
                before = print_line(&shared, &watched, (before, Duration::from_nanos(now - at)), &mut lock(&kept));
                at = now;
            }
        };
        let thread = spawn_thread("watch", body).context("starting the watching thread")?;
        Ok(Self { stop, thread, samples })
    }

    /// Prints nothing more. Whether something grows, having said what does.
    pub(crate) fn finish(self) -> bool {
        drop(self.stop);
        drop(self.thread.join());
        let mut grows = false;
        for (number, samples) in (1..).zip(lock(&self.samples).iter()) {
            let of = |figure: fn(&Usage) -> u64, allowed| {
                Trend::of(&samples.iter().map(figure).collect::<Vec<_>>(), allowed)
            };
            let resident = of(|usage| usage.resident, RESIDENT_ALLOWED);
            let descriptors = of(|usage| usage.descriptors, DESCRIPTORS_ALLOWED);
            let threads = of(|usage| usage.threads, THREADS_ALLOWED);
            let words = (resident.words(1 << 20), descriptors.words(1), threads.words(1));
            println!("node {number}: memory in MiB {}; descriptors {}; threads {}", words.0, words.1, words.2);
            grows |= [resident, descriptors, threads].iter().any(|trend| trend.is_growth());
        }
        grows
    }
}

/// Prints what has happened in `time`, in which `before` requests had ended before. Gives how many have by now.
fn print_line(shared: &Shared, watched: &Watched, (before, time): (u64, Duration), samples: &mut [Vec<Usage>]) -> u64 {
    let (counts, mut times) = {
        let mut book = shared.book();
        (book.counts, book.take_times())
    };
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    let rate = (counts.all() - before) as f64 / time.as_secs_f64();
    let faults = std::mem::take(&mut *lock(&watched.faults));
    let faults = if faults.is_empty() { "no new fault".to_owned() } else { faults.join("; ") };
    println!(
        "{:>5.0} s  {rate:>5.0} op/s  p99 {:>6.1} ms  {} judged  {faults}",
        Duration::from_nanos(shared.now()).as_secs_f64(),
        p99.as_secs_f64() * 1e3,
        counts.judged,
    );
    let pids = lock(&watched.pids).clone();
    for (index, (pid, directories)) in pids.iter().zip(&watched.directories).enumerate() {
        let usage = pid.and_then(|pid| Usage::read(pid, directories));
        match usage {
            Some(usage) => {
                println!("         node {}  {usage}", index + 1);
                samples[index].push(usage);
            }
            None => println!("         node {}  down", index + 1),
        }
    }
    counts.all()
}
