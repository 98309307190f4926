//! The clients of the benchmark.

use super::stats::{Operation, Stats};
use super::{BenchArguments, Workload};
use crate::output::say;
use crate::runtime::{now, spawn};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use hedgerow_client::Table;
use hedgerow_types::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The sort key of every row; rows differ in their hash key.
const SORT_KEY: &[u8] = b"field0";
/// Different values, so that they do not compress to nothing.
const VALUES: usize = 64;
/// Requests in flight while rows are prepared.
const PREPARE_IN_FLIGHT: u64 = 256;
/// Rows that are looked up to see whether all have been prepared before.
const SAMPLE_ROWS: u64 = 200;
/// The pause after a failed request: a cluster without a leader must not be asked in a busy loop.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// The key of row `row`, as wide for every row.
fn hash_key(row: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut rest = row;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn values(arguments: &BenchArguments) -> Arc<[Bytes]> {
    let mut random = Random::new(arguments.seed);
    let value = |_| {
        let bytes: Vec<u8> = (0..arguments.value_size).map(|_| b' ' + random.below(95) as u8).collect();
        Bytes::from(bytes)
    };
    (0..VALUES).map(value).collect()
}

/// Writes all rows, unless a sample shows that they are there already.
pub(crate) async fn prepare(tables: &[Table], arguments: &BenchArguments) -> Result<()> {
    let Some(table) = tables.first() else { return Ok(()) };
    let mut random = Random::new(arguments.seed);
    let sample: Vec<_> = (0..SAMPLE_ROWS).map(|_| (hash_key(random.below(arguments.rows)), SORT_KEY)).collect();
    let found = table.batch_get(sample).await.context("looking for the rows")?;
    let is_there = |value: &Option<Bytes>| value.as_ref().is_some_and(|v| v.len() == arguments.value_size as usize);
    if found.iter().all(is_there) {
        return Ok(());
    }
    say(&format!("writing {} rows of {} bytes", arguments.rows, arguments.value_size));
    let (next, values) = (Arc::new(AtomicU64::new(0)), values(arguments));
    let writers: Vec<_> = (0..PREPARE_IN_FLIGHT)
        .map(|writer| {
            let table = tables[writer as usize % tables.len()].clone();
            let (next, values, rows) = (next.clone(), values.clone(), arguments.rows);
            spawn(async move {
                loop {
                    let row = next.fetch_add(1, Ordering::Relaxed);
                    if row >= rows {
                        return Ok(());
                    }
                    table.set(hash_key(row), SORT_KEY, values[row as usize % VALUES].clone()).await?;
                }
            })
        })
        .collect();
    for writer in writers {
        let result: hedgerow_client::Result<()> = writer.await.context("writing the rows")?;
        result.context("writing the rows")?;
    }
    Ok(())
}

/// The clients at work.
pub(crate) struct Workers {
    tasks: Vec<JoinHandle<()>>,
    stats: Arc<Stats>,
}

impl Workers {
    /// Starts all clients, spread evenly over `tables`.
    pub(crate) fn start(tables: &[Table], arguments: &BenchArguments, stats: &Arc<Stats>) -> Self {
        let mut random = Random::new(arguments.seed);
        let values = values(arguments);
        let count = arguments.clients as usize * arguments.pipeline as usize;
        let worker = |index: usize| {
            let client = index % arguments.clients as usize;
            let worker = Worker {
                table: tables[client % tables.len()].clone(),
                random: random.fork(),
                values: values.clone(),
                rows: arguments.rows,
                read_percent: match arguments.workload {
                    Workload::Put => 0,
                    Workload::Get => 100,
                    Workload::Mix => arguments.read_percent.into(),
                },
                stats: stats.clone(),
            };
            spawn(worker.run())
        };
        Self { tasks: (0..count).map(worker).collect(), stats: stats.clone() }
    }

    /// Ends all clients, without waiting for replies.
    pub(crate) async fn stop(self) {
        self.stats.finish();
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            // An aborted task ends with an error, which is what was asked for.
            let _ = task.await;
        }
    }
}

struct Worker {
    table: Table,
    random: Random,
    values: Arc<[Bytes]>,
    rows: u64,
    read_percent: u64,
    stats: Arc<Stats>,
}

impl Worker {
    async fn run(mut self) {
        while !self.stats.is_finished() {
            let key = hash_key(self.random.below(self.rows));
            let is_get = self.random.below(100) < self.read_percent;
            let start = now();
            let result = if is_get {
                self.table.get(key, SORT_KEY).await.map(|value| (Operation::Get, value.is_none()))
            } else {
                let value = self.values[self.random.below(VALUES as u64) as usize].clone();
                self.table.set(key, SORT_KEY, value).await.map(|()| (Operation::Put, false))
            };
            match result {
                Ok((operation, is_missing)) => self.stats.succeeded(operation, now() - start, is_missing),
                Err(error) => {
                    self.stats.failed(&error);
                    sleep(ERROR_PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_and_equally_long() {
        assert_eq!(&hash_key(0), b"user000000000000");
        assert_eq!(&hash_key(1_234_567), b"user000001234567");
    }
}
