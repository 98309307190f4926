//! One run of one engine: what is measured, in order.

use crate::bare::Bare;
use crate::layer::Layered;
use crate::lsm::Lsm;
use crate::mixed::{self, Mix, Shape, THREADS};
use crate::report::Figures;
use crate::rocks::Rocks;
use crate::rows::{Numbers, key};
use crate::store::{Store, settle};
use crate::usage::{bytes_on_disk, bytes_written, forget_pages, processor_time};
use crate::{Arguments, BATCH_ROWS, Contender, Settings};
use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows that are compared after a checkpoint was opened.
const COMPARED: u64 = 1_000;
const MIB: u64 = 1 << 20;

/// What a run goes by.
struct Run<'a> {
    contender: Contender,
    directory: &'a Path,
    settings: Settings,
    /// Whether the system keeps what it holds of the files.
    is_warm: bool,
    shape: Shape,
    figures: Figures,
}

/// Runs `contender` from an empty directory.
pub(crate) fn run(contender: Contender, arguments: &Arguments, round: u64) -> Result<Figures> {
    let folder = tempfile::Builder::new().prefix("engines-").tempdir_in(&arguments.directory)?;
    let flush_size = u64::from(arguments.flush_mib) * MIB;
    let mut run = Run {
        contender,
        directory: folder.path(),
        settings: Settings {
            cache_size: (u64::from(arguments.cache_mib) * MIB) as usize,
            flush_size,
            reads_ahead: arguments.read_ahead,
        },
        is_warm: arguments.warm,
        shape: Shape { rows: arguments.rows, value_size: arguments.value_size as usize, flush_size },
        figures: Figures::default(),
    };
    run.measure(arguments, round).with_context(|| contender.name().to_owned())?;
    Ok(run.figures)
}

impl Run<'_> {
    fn open(&self, directory: &Path) -> Result<Box<dyn Store>> {
        Ok(match self.contender {
            Contender::Rocksdb => Box::new(Layered::new(Bare::open(directory, &self.settings)?)),
            Contender::LsmTree => Box::new(Layered::new(Lsm::open(directory, &self.settings)?)),
            Contender::Store => Box::new(Rocks::open(directory, &self.settings)?),
        })
    }

    fn note(&mut self, name: impl Into<String>, figure: f64) {
        self.figures.insert(name.into(), figure);
    }

    fn note_waits(&mut self, what: &str, waits: &Histogram<u64>) {
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("worst", 1.0)] {
            self.note(format!("{what} {name}, us"), waits.value_at_quantile(quantile) as f64 / 1e3);
        }
    }

    fn live_bytes(&self) -> u64 {
        self.shape.rows * (crate::rows::KEY_SIZE + self.shape.value_size) as u64
    }

    fn measure(&mut self, arguments: &Arguments, round: u64) -> Result<()> {
        let directory = self.directory.join("rows");
        let store = self.open(&directory)?;
        self.load(&*store, "load", 0)?;
        let lasts = Duration::from_secs(arguments.seconds);
        for (name, gets, puts) in [("1 get : 3 puts", 1, 3), ("30 gets : 1 put", 30, 1)] {
            for rate in [Some(arguments.rate), None] {
                let mix = Mix { gets, puts, rate, lasts };
                let at = rate.map_or("closed loop".to_owned(), |rate| format!("{rate}/s"));
                self.mix(&*store, &directory, &format!("{name}, {at}:"), mix, round)?;
            }
        }
        self.load(&*store, "overwrite", round + 1)?;
        let live = self.live_bytes() as f64;
        self.note("overwrite: bytes on disk per byte of rows", bytes_on_disk(&directory)? as f64 / live);
        let begun = Instant::now();
        store.compact()?;
        settle(&*store)?;
        self.note("full compaction, s", begun.elapsed().as_secs_f64());
        self.note("full compaction: bytes on disk per byte of rows", bytes_on_disk(&directory)? as f64 / live);
        self.checkpoint(&*store)?;
        drop(store);
        self.reopen(&directory)
    }

    /// Writes all rows, and waits for what follows.
    fn load(&mut self, store: &dyn Store, what: &str, seed: u64) -> Result<()> {
        let (written, begun, used) = (bytes_written()?, Instant::now(), processor_time());
        let waits = mixed::load(store, self.shape, BATCH_ROWS, seed)?;
        self.note(format!("{what}: rows per second"), self.shape.rows as f64 / begun.elapsed().as_secs_f64());
        self.note_waits(&format!("{what}: batch of {BATCH_ROWS}"), &waits);
        let rest = settle(store)?;
        self.note(format!("{what}: compactions at rest after another, s"), rest.as_secs_f64());
        let per_row = (processor_time() - used).as_secs_f64() * 1e6 / self.shape.rows as f64;
        self.note(format!("{what}: processor time per row, us"), per_row);
        let written = bytes_written()? - written;
        self.note(format!("{what}: bytes written per byte of rows"), written as f64 / self.live_bytes() as f64);
        Ok(())
    }

    fn mix(&mut self, store: &dyn Store, directory: &Path, what: &str, mix: Mix, round: u64) -> Result<()> {
        settle(store)?;
        if !self.is_warm {
            forget_pages(directory)?;
        }
        let (used, begun) = (processor_time(), Instant::now());
        let waits = mixed::run(store, self.shape, mix, round.wrapping_mul(0x1_0001) + mix.gets)?;
        let took = begun.elapsed().as_secs_f64();
        let done = waits.gets.len() + waits.puts.len();
        self.note(format!("{what} operations per second"), done as f64 / took);
        let per_operation = (processor_time() - used).as_secs_f64() * 1e6 / done as f64;
        self.note(format!("{what} processor time per operation, us"), per_operation);
        self.note_waits(&format!("{what} get"), &waits.gets);
        self.note_waits(&format!("{what} put"), &waits.puts);
        ensure!(THREADS > 0 && done > 0, "nothing was done");
        Ok(())
    }

    /// Takes one while rows are still in memory, and compares what it holds.
    fn checkpoint(&mut self, store: &dyn Store) -> Result<()> {
        let into = self.directory.join("copy");
        let begun = Instant::now();
        store.checkpoint(&into)?;
        self.note("checkpoint, ms", begun.elapsed().as_secs_f64() * 1e3);
        let copy = self.open(&into)?;
        let mut numbers = Numbers::new(1);
        for _ in 0..COMPARED {
            let key = key(numbers.below(self.shape.rows));
            let row = store.get(&key)?;
            ensure!(row.is_some() && row == copy.get(&key)?, "the copy has another row");
        }
        drop(copy);
        Ok(std::fs::remove_dir_all(&into)?)
    }

    /// From nothing to the first row, with and without the system's memory of the files.
    fn reopen(&mut self, directory: &Path) -> Result<()> {
        for what in ["reopen, ms", "reopen from the disk, ms"] {
            if what.contains("disk") {
                forget_pages(directory)?;
            }
            let begun = Instant::now();
            let store = self.open(directory)?;
            store.get(&key(0))?.context("the first row is missing")?;
            self.note(what, begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }
}
