//! How far a load is: up to which line everything is done, whatever order the replies come in.

use crate::output::say;
use hedgerow_client::Error;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The number of a chunk of rows, in the order of the file.
pub(crate) type ChunkId = u64;

/// Counts what is done.
#[derive(Debug)]
pub(crate) struct Tracker {
    state: Mutex<State>,
    failed: Notify,
    show_bad: u64,
}

#[derive(Debug)]
struct State {
    /// Chunks that are not done or stand behind one that is not.
    chunks: VecDeque<Chunk>,
    /// The number of the first of them.
    first: ChunkId,
    counts: Counts,
    failure: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    rows_left: usize,
    line: u64,
    offset: u64,
}

/// A summary of what is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Rows in the table, acknowledged by the cluster.
    pub(crate) rows: u64,
    /// Lines that are no rows or that the cluster does not take.
    pub(crate) bad: u64,
    /// Everything up to this line is done.
    pub(crate) line: u64,
    /// Where that line ends, bytes from the beginning of the file.
    pub(crate) offset: u64,
}

impl Tracker {
    /// Begins behind `line`, which ends at byte `offset`. Of the bad lines the first `show_bad` are shown.
    pub(crate) fn new(line: u64, offset: u64, show_bad: u64) -> Self {
        let counts = Counts { line, offset, ..Counts::default() };
        let state = State { chunks: VecDeque::new(), first: 0, counts, failure: None };
        Self { state: Mutex::new(state), failed: Notify::new(), show_bad }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of `rows` rows begins that ends with `line`, at byte `offset`.
    pub(crate) fn begin(&self, rows: usize, line: u64, offset: u64) -> ChunkId {
        let mut state = self.lock();
        state.chunks.push_back(Chunk { rows_left: rows, line, offset });
        let id = state.first + state.chunks.len() as u64 - 1;
        state.advance();
        id
    }

    /// A row of `chunk` is in the table.
    pub(crate) fn done(&self, chunk: ChunkId) {
        let mut state = self.lock();
        state.counts.rows += 1;
        state.leave(chunk);
    }

    /// A row of `chunk`, in `line`, cannot be put into the table.
    pub(crate) fn refused(&self, chunk: ChunkId, line: u64, reason: &str) {
        self.bad(line, reason);
        self.lock().leave(chunk);
    }

    /// `line` is not a row.
    pub(crate) fn bad(&self, line: u64, reason: &str) {
        let mut state = self.lock();
        state.counts.bad += 1;
        let is_shown = state.counts.bad <= self.show_bad;
        drop(state);
        if is_shown {
            say(&format!("line {line}: {reason}"));
        }
    }

    /// The cluster takes no more rows.
    pub(crate) fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.failed.notify_one();
    }

    /// Why no more rows are taken, if so.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Waits until no more rows are taken.
    pub(crate) async fn wait_for_failure(&self) -> Error {
        loop {
            let failed = self.failed.notified();
            if let Some(error) = self.failure() {
                return error;
            }
            failed.await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }
}

impl State {
    fn leave(&mut self, chunk: ChunkId) {
        if let Some(chunk) = chunk.checked_sub(self.first).and_then(|place| self.chunks.get_mut(place as usize)) {
            chunk.rows_left -= 1;
        }
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(chunk) = self.chunks.front().copied().filter(|chunk| chunk.rows_left == 0) {
            self.chunks.pop_front();
            self.first += 1;
            self.counts.line = chunk.line;
            self.counts.offset = chunk.offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_done_when_all_before_it_are() {
        let tracker = Tracker::new(10, 100, 0);
        let (a, b) = (tracker.begin(2, 12, 120), tracker.begin(1, 13, 130));
        tracker.done(b);
        tracker.done(a);
        assert_eq!((tracker.counts().line, tracker.counts().rows), (10, 2));
        tracker.refused(a, 12, "no");
        assert_eq!(tracker.counts(), Counts { rows: 2, bad: 1, line: 13, offset: 130 });
        tracker.begin(0, 20, 200);
        assert_eq!(tracker.counts().line, 20, "a chunk without rows is done at once");
    }
}
