//! One `hedgerow serve` process: its output, its end, and the signals it gets.

use crate::system::{self, Signal};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a node's line on standard output begins with once it serves.
const READY: &str = "ready:";
/// Time between two attempts to start a program that is still open somewhere.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// What the process has printed so far, on both streams.
#[derive(Default)]
struct Output {
    lines: Vec<String>,
    is_ready: bool,
    /// Streams that reached their end. Both have when the process is gone.
    closed: usize,
}

#[derive(Default)]
struct Shared {
    output: Mutex<Output>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(self: Arc<Self>, stream: impl Read + Send + 'static) {
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|size| size > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                let mut output = self.lock();
                output.is_ready |= text.starts_with(READY);
                output.lines.push(text);
                drop(output);
                self.changed.notify_all();
                line.clear();
            }
            self.lock().closed += 1;
            self.changed.notify_all();
        });
    }

    /// Waits until `is_done` or for `limit`; whether it is done.
    fn wait(&self, limit: Duration, is_done: impl Fn(&Output) -> bool) -> bool {
        let end = Instant::now() + limit;
        let mut output = self.lock();
        while !is_done(&output) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            output = self.changed.wait_timeout(output, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Follows a node's output from another thread.
pub(crate) struct Watch(Arc<Shared>);

impl Watch {
    /// As [`Node::wait_ready`].
    pub(crate) fn wait_ready(&self, limit: Duration) -> Result<()> {
        self.0.wait(limit, |output| output.is_ready || output.closed == 2);
        let output = self.0.lock();
        if output.is_ready {
            return Ok(());
        }
        bail!("the node did not become ready within {limit:?}; it printed:\n{}", output.lines.join("\n"))
    }
}

/// A running node, or one that ended and was not yet forgotten. Dropping it kills the process.
pub struct Node {
    child: Child,
    shared: Arc<Shared>,
}

/// Starts `command`. A program that was just written cannot be started while a process that another thread is about to start still
/// has it open, which takes milliseconds.
fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..100 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    command.spawn()
}

impl Node {
    /// Starts `command`. Its standard streams are taken over.
    pub fn spawn(mut command: Command) -> Result<Self> {
        system::die_with_parent(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(&mut command).with_context(|| format!("starting {command:?}"))?;
        let shared = Arc::new(Shared::default());
        if let Some(stream) = child.stdout.take() {
            shared.clone().follow(stream);
        }
        if let Some(stream) = child.stderr.take() {
            shared.clone().follow(stream);
        }
        Ok(Self { child, shared })
    }

    /// Waits until the node says that it serves. An error carries what it printed instead.
    pub fn wait_ready(&self, limit: Duration) -> Result<()> {
        self.watch().wait_ready(limit)
    }

    /// What follows the node's output from another thread.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.shared.clone())
    }

    /// The process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that the process occupies now.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most bytes of memory that the process has occupied since its start or [`Node::forget_peak`].
    pub fn peak_resident_bytes(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    /// The peak begins anew at what is occupied now.
    pub fn forget_peak(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.id());
        fs::write(&path, "5").with_context(|| format!("writing {path}"))
    }

    fn memory(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.id());
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let kib = |line: &str| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok();
        status.lines().find_map(kib).map(|kib| kib << 10).with_context(|| format!("{path} has no {name}"))
    }

    /// Waits until the process has ended by itself.
    pub fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        if !self.shared.wait(limit, |output| output.closed == 2) {
            bail!("the node still runs after {limit:?}; it printed:\n{}", self.output());
        }
        self.child.wait().context("waiting for a node")
    }

    /// Whether the process runs, frozen or not.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("asking for a node's state")?.is_none())
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().context("killing a node")?;
        self.child.wait().context("waiting for a killed node")
    }

    /// Asks the process to stop (SIGTERM) and waits for its end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.ask_to_stop()?;
        self.wait_exit(limit)
    }

    /// Asks the process to stop (SIGTERM), without waiting for anything.
    pub fn ask_to_stop(&mut self) -> Result<()> {
        self.send(Signal::Terminate)
    }

    /// Freezes the process (SIGSTOP): it keeps its sockets and does nothing.
    pub fn pause(&mut self) -> Result<()> {
        self.send(Signal::Stop)
    }

    /// Lets a frozen process go on.
    pub fn resume(&mut self) -> Result<()> {
        self.send(Signal::Continue)
    }

    /// Everything printed so far, both streams mixed in the order of arrival.
    pub fn output(&self) -> String {
        self.shared.lock().lines.join("\n")
    }

    fn send(&mut self, signal: Signal) -> Result<()> {
        // Without this check the id could belong to somebody else by now.
        if !self.is_running()? {
            bail!("the node has ended; it printed:\n{}", self.output());
        }
        system::send(self.child.id(), signal).with_context(|| format!("sending {signal:?} to a node"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Fails only if the process is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
