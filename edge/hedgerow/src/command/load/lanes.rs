//! Lanes: each sends its rows one request after the other, and takes what has gathered meanwhile as one request where the
//! rows have one hash key.

use super::tracker::{ChunkId, Tracker};
use crate::any_table::{AnyTable, Key};
use crate::rows::{Item, Row, Shape};
use crate::runtime::{now, spawn};
use hedgerow_client::{Error, ErrorKind};
use hedgerow_types::key::crc64;
use hedgerow_types::limit::WRITE_SIZE_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Rows that wait in one lane.
const LANE_ROWS_MAX: usize = 256;
/// Most rows of one request: what Pegasus' clients send at most.
const BATCH_ROWS_MAX: usize = 1000;
/// Most bytes of keys and values in one request; the rest of the limit is for what stands around them.
const BATCH_SIZE_MAX: usize = WRITE_SIZE_MAX / 2;
/// The pause before a request is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A row on its way.
#[derive(Debug)]
struct Sending {
    row: Row,
    line: u64,
    chunk: ChunkId,
}

/// All lanes of a load.
pub(crate) struct Lanes {
    queues: Vec<mpsc::Sender<Sending>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Lanes {
    /// Starts `count` lanes to `table`. A lane that could not send for `patience` fails the load.
    pub(crate) fn start(table: &AnyTable, count: usize, patience: Duration, tracker: &Arc<Tracker>) -> Self {
        let mut lanes = Self { queues: Vec::new(), tasks: Vec::new() };
        for _ in 0..count {
            let (sender, receiver) = mpsc::channel(LANE_ROWS_MAX);
            let lane = Lane { table: table.clone(), patience, tracker: tracker.clone() };
            lanes.queues.push(sender);
            lanes.tasks.push(spawn(lane.run(receiver)));
        }
        lanes
    }

    /// Deals out the rows of a chunk; waits while a lane is full.
    pub(crate) async fn deal(&mut self, items: Vec<Item>, shape: Shape, ttl: Option<u64>, tracker: &Tracker) {
        let Some(last) = items.last() else { return };
        let (line, offset) = (last.line, last.end);
        let rows = items.iter().filter(|item| item.row.is_ok()).count();
        let chunk = tracker.begin(rows, line, offset);
        for Item { line, row, .. } in items {
            match row {
                Ok(mut row) => {
                    row.ttl_seconds = row.ttl_seconds.or(ttl);
                    // Rows with an empty hash key have a place each, by their sort keys.
                    let place = match shape {
                        Shape::Hash if !row.hash_key.is_empty() => crc64(&row.hash_key),
                        Shape::Hash | Shape::Ordered => crc64(&row.sort_key),
                    };
                    // The high bits: the low ones decide the partition, and a lane should serve many.
                    let lane = (place >> 32) as usize % self.queues.len();
                    // A closed lane has failed the load already.
                    let _ = self.queues[lane].send(Sending { row, line, chunk }).await;
                }
                Err(reason) => tracker.bad(line, &format!("{reason:#}")),
            }
        }
    }

    /// Waits until every row is done.
    pub(crate) async fn finish(&mut self) {
        self.queues.clear();
        for task in self.tasks.drain(..) {
            // A lane that panicked has not finished its rows; the tracker shows it.
            let _ = task.await;
        }
    }
}

struct Lane {
    table: AnyTable,
    patience: Duration,
    tracker: Arc<Tracker>,
}

impl Lane {
    async fn run(self, mut queue: mpsc::Receiver<Sending>) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let Some(first) = queue.recv().await else { return };
                waiting.push_back(first);
            }
            while let Ok(next) = queue.try_recv() {
                waiting.push_back(next);
            }
            let batch = take_batch(&mut waiting, &self.table);
            if let Err(error) = self.send(&batch).await {
                self.tracker.fail(error);
                return;
            }
        }
    }

    /// Sends `batch` until it is in the table or refused; fails when patience is over.
    async fn send(&self, batch: &[Sending]) -> Result<(), Error> {
        let give_up = now() + self.patience;
        loop {
            match self.try_send(batch).await {
                Ok(()) => {
                    batch.iter().for_each(|sending| self.tracker.done(sending.chunk));
                    return Ok(());
                }
                Err(error) if may_be_taken_later(&error) && now() < give_up => sleep(RETRY_PAUSE).await,
                Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge) => {
                    return self.send_one_by_one(batch, &error).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Finds out which rows of a refused batch are to blame.
    async fn send_one_by_one(&self, batch: &[Sending], error: &Error) -> Result<(), Error> {
        if let [only] = batch {
            self.tracker.refused(only.chunk, only.line, error.message());
            return Ok(());
        }
        for place in 0..batch.len() {
            Box::pin(self.send(&batch[place..=place])).await?;
        }
        Ok(())
    }

    async fn try_send(&self, batch: &[Sending]) -> Result<(), Error> {
        let Some(Sending { row: first, .. }) = batch.first() else { return Ok(()) };
        let life = first.ttl_seconds.map(Duration::from_secs);
        match (&self.table, batch) {
            (AnyTable::Hash(table), [_, _, ..]) => {
                let rows = batch.iter().map(|sending| (sending.row.sort_key.clone(), sending.row.value.clone()));
                table.multi_set(&first.hash_key, rows, life).await
            }
            (table, _) => {
                let key = Key { hash_key: first.hash_key.clone(), sort_key: first.sort_key.clone() };
                table.set(&key, first.value.clone(), life).await
            }
        }
    }
}

/// Whether a row that was not taken may be taken yet: disks that are full may have room again.
fn may_be_taken_later(error: &Error) -> bool {
    error.may_retry() || error.kind() == ErrorKind::DiskFull
}

/// Takes the first row and those directly behind it that fit into one request with it.
fn take_batch(waiting: &mut VecDeque<Sending>, table: &AnyTable) -> Vec<Sending> {
    let Some(first) = waiting.pop_front() else { return Vec::new() };
    let (hash_key, ttl_seconds) = (first.row.hash_key.clone(), first.row.ttl_seconds);
    let mut size = size_of(&first.row);
    let mut batch = vec![first];
    // Rows with an empty hash key are spread over all partitions: no request takes several of them.
    let can_grow = matches!(table, AnyTable::Hash(_)) && !hash_key.is_empty();
    while can_grow && batch.len() < BATCH_ROWS_MAX {
        let fits = |next: &Sending| {
            let is_alike = next.row.hash_key == hash_key && next.row.ttl_seconds == ttl_seconds;
            is_alike && size + size_of(&next.row) <= BATCH_SIZE_MAX
        };
        if !waiting.front().is_some_and(fits) {
            break;
        }
        let Some(next) = waiting.pop_front() else { break };
        size += size_of(&next.row);
        batch.push(next);
    }
    batch
}

fn size_of(row: &Row) -> usize {
    row.sort_key.len() + row.value.len() + 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disks_are_waited_for_and_rows_that_are_wrong_are_not() {
        for (kind, may) in [
            (ErrorKind::DiskFull, true),
            (ErrorKind::Unavailable, true),
            (ErrorKind::Timeout, true),
            (ErrorKind::Invalid, false),
            (ErrorKind::NoTable, false),
        ] {
            assert_eq!(may_be_taken_later(&Error::new(kind, "so")), may, "{kind:?}");
        }
    }
}
