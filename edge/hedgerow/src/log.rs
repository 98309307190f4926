//! What a node says goes to threads that only write it, so that no thread of the node waits for a reader of its log.
//!
//! A reader that stands still fills its pipe, one that ended makes every write fail. Neither may stop a node or end it: lines
//! wait in a bounded buffer, those that find no room are dropped and counted, and errors of the writer count its lines as lost.

use hedgerow_env::os::spawn_thread;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that may wait for the writer; the next line is dropped.
const WAITING_MAX: usize = 1 << 20;
/// How long an ending process waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The sinks of standard error and standard output, in a process that runs nodes.
static SINKS: OnceLock<(Sink, Sink)> = OnceLock::new();

/// Sends log lines of a client command to standard error: those of `level` and above, unless `HEDGEROW_LOG` says otherwise
/// (for example `debug`, or `warn,hedgerow_node=debug`).
pub(crate) fn to_standard_error(level: &str) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter(level)).with_ansi(io::stderr().is_terminal());
    // Otherwise a line that cannot be written would end the process.
    lines.log_internal_errors(false).with_writer(io::stderr).init();
}

/// As [`to_standard_error`] in a process that runs nodes: everything it says, its panics included, goes through a [`Sink`].
pub(crate) fn through_sinks(level: &str) -> io::Result<()> {
    let errors = Sink::start("log", clone_of(io::stderr().as_fd())?)?;
    let data = Sink::start("ready", clone_of(io::stdout().as_fd())?)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter(level)).with_ansi(io::stderr().is_terminal());
    lines.log_internal_errors(false).with_writer(errors.clone()).init();
    let panics = errors.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let mut text = format!("error: thread {:?} failed: {panic}\n", thread.name().unwrap_or("without a name"));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            text += &trace.to_string();
        }
        panics.put(text.as_bytes());
        // The process may end right after this.
        panics.flush();
    }));
    // This is called once.
    let _ = SINKS.set((errors, data));
    Ok(())
}

/// The sink of standard error, in a process that runs nodes.
pub(crate) fn errors() -> Option<&'static Sink> {
    SINKS.get().map(|(errors, _)| errors)
}

/// Prints a line on standard output without waiting for its reader, in a process that runs nodes.
pub(crate) fn announce(line: &str) {
    if let Some((_, data)) = SINKS.get() {
        data.put(format!("{line}\n").as_bytes());
    }
}

/// Waits a moment for what was said to be written, at the end of the process.
pub(crate) fn flush() {
    if let Some((errors, data)) = SINKS.get() {
        errors.flush();
        data.flush();
    }
}

fn filter(level: &str) -> EnvFilter {
    // What is not to be drawn, as a line of no length, is no concern of who reads the log.
    let drawing = "tiny_skia=error";
    EnvFilter::try_from_env("HEDGEROW_LOG").unwrap_or_else(|_| EnvFilter::new(format!("{level},{drawing}")))
}

/// A handle of the same stream that takes none of the standard library's locks.
fn clone_of(stream: BorrowedFd<'_>) -> io::Result<File> {
    Ok(stream.try_clone_to_owned()?.into())
}

/// Takes lines without ever waiting, and has a thread write them.
#[derive(Clone, Debug)]
pub(crate) struct Sink(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole lines.
    waiting: Vec<u8>,
    /// Lines that found no room or could not be written, and that nobody was told of.
    lost: u64,
    is_writing: bool,
}

impl Sink {
    fn start(name: &str, to: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        spawn_thread(name, move || theirs.run(to))?;
        Ok(Self(shared))
    }

    /// Has `line`, which ends with a line feed, written soon, or counts it as lost.
    pub(crate) fn put(&self, line: &[u8]) {
        let mut queue = self.0.queue();
        if queue.waiting.len() + line.len() > WAITING_MAX {
            queue.lost += 1;
            return;
        }
        queue.waiting.extend_from_slice(line);
        drop(queue);
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, or for [`FLUSH_MAX`].
    fn flush(&self) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.waiting.is_empty();
        drop(self.0.changed.wait_timeout_while(self.0.queue(), FLUSH_MAX, is_busy));
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut to: impl Write) {
        loop {
            let lines = self.next();
            // Nothing can be done about a reader that went away, but others may come: a named pipe can be opened again.
            let unwritten = if to.write_all(&lines).is_ok() { 0 } else { count(&lines) };
            let lost = std::mem::take(&mut self.queue().lost) + unwritten;
            let note = format!("{lost} lines of the log were lost: nobody took them\n");
            let is_told = lost == 0 || to.write_all(note.as_bytes()).is_ok();
            let mut queue = self.queue();
            queue.is_writing = false;
            queue.lost += if is_told { 0 } else { lost };
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits for lines and takes them all.
    fn next(&self) -> Vec<u8> {
        let queue = self.queue();
        let has_none = |queue: &mut Queue| queue.waiting.is_empty();
        let mut queue = self.changed.wait_while(queue, has_none).unwrap_or_else(PoisonError::into_inner);
        queue.is_writing = true;
        std::mem::take(&mut queue.waiting)
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// One line on its way into a [`Sink`]; the subscriber writes each event as a whole.
#[derive(Debug)]
pub(crate) struct Line<'a>(&'a Sink);

impl Write for Line<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.put(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A reader that takes a write for each permission, and refuses it where the permission says so.
    struct Reader {
        permissions: Receiver<bool>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            if self.permissions.recv().unwrap_or(false) {
                self.taken.send(buffer.to_vec()).map_err(io::Error::other)?;
                Ok(buffer.len())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sink() -> (Sink, Sender<bool>, Receiver<Vec<u8>>) {
        let (permit, permissions) = channel();
        let (taken, takes) = channel();
        (Sink::start("test", Reader { permissions, taken }).unwrap(), permit, takes)
    }

    #[test]
    fn a_reader_that_stands_still_loses_lines_and_is_told_how_many() {
        let (sink, permit, takes) = sink();
        let mut line = vec![b'x'; WAITING_MAX / 4];
        *line.last_mut().unwrap() = b'\n';
        sink.put(&line);
        // The first one is on its way to the reader before the others come, of which four fit into the buffer.
        while !sink.0.queue().waiting.is_empty() {
            std::thread::yield_now();
        }
        for _ in 0..9 {
            sink.put(&line);
        }
        permit.send(true).unwrap();
        let mut lines = takes.recv().unwrap();
        permit.send(true).unwrap();
        let note = loop {
            let next = takes.recv().unwrap();
            if next.len() < 100 {
                break String::from_utf8(next).unwrap();
            }
            lines.extend(next);
            permit.send(true).unwrap();
        };
        let lost: u64 = note.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(lost, 5, "{note}");
        // What was not lost before the note comes with it or after it.
        permit.send(true).unwrap();
        permit.send(true).unwrap();
        sink.flush();
        takes.try_iter().for_each(|more| lines.extend(more));
        assert_eq!(count(&lines) + lost, 10);
    }

    #[test]
    fn a_reader_that_went_away_costs_nothing_but_lines() {
        let (sink, permit, takes) = sink();
        permit.send(false).unwrap();
        permit.send(false).unwrap();
        sink.put(b"one\n");
        sink.flush();
        permit.send(true).unwrap();
        permit.send(true).unwrap();
        sink.put(b"two\n");
        sink.flush();
        assert_eq!(takes.recv().unwrap(), b"two\n");
        assert_eq!(takes.recv().unwrap(), b"1 lines of the log were lost: nobody took them\n");
    }
}
