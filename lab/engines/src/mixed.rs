//! Gets and puts from several threads, beside flushes and compactions.

use crate::rows::{Numbers, key};
use crate::store::Store;
use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::Histogram;
use hedgerow_storage::Batch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Threads that read and write.
pub(crate) const THREADS: u32 = 2;
/// How often the flushing thread looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// With so many times the usual flush in memory, writers wait.
const BEHIND_AT: u64 = 4;
/// A prime.
const STRIDE: u64 = 7_368_787;
/// And with so many tables that no compaction has merged: as the store refuses.
const FILES_MAX: u64 = 128;

/// What is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) gets: u64,
    pub(crate) puts: u64,
    /// Per second, of all threads together. `None`: as fast as it goes.
    pub(crate) rate: Option<u32>,
    pub(crate) lasts: Duration,
}

/// How long each took, nanoseconds. At a fixed rate, from when it was due.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) gets: Histogram<u64>,
    pub(crate) puts: Histogram<u64>,
}

impl Waits {
    fn new() -> Result<Self> {
        Ok(Self { gets: Histogram::new(3)?, puts: Histogram::new(3)? })
    }
}

/// What rows there are, and when they are flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: u64,
    pub(crate) value_size: usize,
    pub(crate) flush_size: u64,
}

/// Waits until the store may take more.
fn wait_for_room(store: &dyn Store, flush_size: u64, has_failed: &AtomicBool) {
    while store.unflushed_bytes() >= BEHIND_AT * flush_size && !has_failed.load(Ordering::Acquire) {
        sleep(LOOK_EVERY);
    }
}

/// Runs `work` while a thread beside it flushes.
pub(crate) fn with_flushes<T>(
    store: &dyn Store,
    flush_size: u64,
    work: impl FnOnce(&AtomicBool) -> Result<T>,
) -> Result<T> {
    let (is_over, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|threads| {
        let flusher = threads.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                if store.unflushed_bytes() < flush_size || store.files_at_level_zero() >= FILES_MAX {
                    sleep(LOOK_EVERY);
                } else if let Err(error) = store.flush() {
                    has_failed.store(true, Ordering::Release);
                    return Err(error);
                }
            }
            Ok(())
        });
        let result = work(&has_failed);
        is_over.store(true, Ordering::Release);
        flusher.join().map_err(|_| anyhow!("the flushing thread panicked"))??;
        result
    })
}

/// Writes all rows once, in batches as the loop does that applies entries, in an order that `seed` gives. How long each batch took.
pub(crate) fn load(store: &dyn Store, shape: Shape, batch_rows: u64, seed: u64) -> Result<Histogram<u64>> {
    with_flushes(store, shape.flush_size, |has_failed| {
        let (mut numbers, mut value) = (Numbers::new(seed), vec![0; shape.value_size]);
        let (mut batch, mut waits) = (Batch::new(), Histogram::new(3)?);
        let first = numbers.below(shape.rows);
        // Has no factor in common with the number of rows, so that none is left out.
        let stride = if seed == 0 || shape.rows.is_multiple_of(STRIDE) { 1 } else { STRIDE };
        for written in (0..shape.rows).step_by(usize::try_from(batch_rows)?) {
            batch.clear();
            for index in written..(written + batch_rows).min(shape.rows) {
                numbers.fill_half(&mut value);
                batch.put(&[&key((first + index * stride) % shape.rows)], &[&value]);
            }
            let begun = Instant::now();
            wait_for_room(store, shape.flush_size, has_failed);
            store.write(&batch)?;
            waits.record(begun.elapsed().as_nanos() as u64)?;
        }
        Ok(waits)
    })
}

/// Does `mix` and tells how long each took.
pub(crate) fn run(store: &dyn Store, shape: Shape, mix: Mix, seed: u64) -> Result<Waits> {
    with_flushes(store, shape.flush_size, |has_failed| {
        let begun = Instant::now();
        scope(|threads| {
            let workers: Vec<_> = (0..THREADS)
                .map(|number| {
                    let numbers = Numbers::new(seed ^ (u64::from(number) << 32));
                    threads.spawn(move || worker(store, shape, mix, begun, numbers, has_failed))
                })
                .collect();
            let mut all = Waits::new()?;
            for worker in workers {
                let waits = worker.join().map_err(|_| anyhow!("a thread panicked"))??;
                all.gets.add(&waits.gets)?;
                all.puts.add(&waits.puts)?;
            }
            Ok(all)
        })
    })
}

fn worker(
    store: &dyn Store,
    shape: Shape,
    mix: Mix,
    begun: Instant,
    mut numbers: Numbers,
    has_failed: &AtomicBool,
) -> Result<Waits> {
    let (mut waits, mut batch, mut value) = (Waits::new()?, Batch::new(), vec![0; shape.value_size]);
    let interval = mix.rate.map(|rate| Duration::from_secs(1) * THREADS / rate.max(1));
    let mut due = begun;
    loop {
        let key = key(numbers.below(shape.rows));
        let is_get = numbers.below(mix.gets + mix.puts) < mix.gets;
        if !is_get {
            numbers.fill_half(&mut value);
            batch.clear();
            batch.put(&[&key], &[&value]);
        }
        let since = match interval {
            // What is late waits for those before it; what is early begins when its thread has woken up.
            Some(interval) => {
                due += interval;
                sleep(due.saturating_duration_since(Instant::now()));
                let now = Instant::now();
                if now.duration_since(due) > interval { due } else { now }
            }
            None => Instant::now(),
        };
        if since.duration_since(begun) > mix.lasts {
            return Ok(waits);
        }
        if is_get {
            store.get(&key)?.context("a row is missing")?;
            waits.gets.record(since.elapsed().as_nanos() as u64)?;
        } else {
            wait_for_room(store, shape.flush_size, has_failed);
            store.write(&batch)?;
            waits.puts.record(since.elapsed().as_nanos() as u64)?;
        }
    }
}
