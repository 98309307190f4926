//! The crate raft-engine: one engine for all groups, its segments filled beforehand and used again, which is its fastest setting.

use crate::figures::{Figures, histogram, repeat};
use crate::hedgerow::incompressible;
use crate::{Durability, KEPT, Shape, WARM_UP};
use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use raft::eraftpb::Entry;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the engine looks for files that are needed no more.
const PURGE_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

pub(crate) fn run(shape: Shape, directory: &Path, durability: Durability, measured: Duration) -> Result<Figures> {
    let is_synced = durability == Durability::Fsync;
    let config = Config {
        dir: directory.join("engine").to_str().context("the directory's name is not UTF-8")?.to_owned(),
        target_file_size: ReadableSize::mb(64),
        purge_threshold: ReadableSize::mb(256),
        enable_log_recycle: true,
        prefill_for_recycle: true,
        ..Config::default()
    };
    let engine = Engine::open(config)?;
    let data = incompressible();
    let is_over = AtomicBool::new(false);
    let mut waits = histogram();
    let (count, entries) = match shape {
        Shape::Writers(count) => (count, 1),
        Shape::Rounds(count) => (1, u64::from(count)),
    };
    thread::scope(|scope| {
        let (engine, is_over) = (&engine, &is_over);
        let purge = scope.spawn(move || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                engine.purge_expired_files()?;
                thread::sleep(PURGE_INTERVAL);
            }
            Ok(())
        });
        let writers: Vec<_> = (0..u64::from(count))
            .map(|first| {
                let (mut next, data) = (1, data.clone());
                scope.spawn(move || {
                    repeat(WARM_UP, measured, || {
                        next += 1;
                        append(engine, first + 1..=first + entries, next - 1, &data, is_synced)
                    })
                })
            })
            .collect();
        let joined: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        purge.join().map_err(|_| anyhow!("the purge panicked"))??;
        for writer in joined {
            waits.add(writer.map_err(|_| anyhow!("a writer panicked"))??)?;
        }
        anyhow::Ok(())
    })?;
    Ok(Figures::of(&waits, entries, measured))
}

/// One entry for each group, and a cut from time to time.
fn append(engine: &Engine, groups: RangeInclusive<u64>, index: u64, data: &Bytes, is_synced: bool) -> Result<()> {
    let mut batch = LogBatch::with_capacity(groups.clone().count());
    let cut = index.checked_sub(KEPT).filter(|cut| cut % KEPT == 0 && *cut > 0);
    for group in groups {
        let entry = Entry { index, term: 1, data: data.to_vec().into(), ..Entry::default() };
        batch.add_entries::<Entries>(group, &[entry])?;
        if let Some(cut) = cut {
            batch.add_command(group, Command::Compact { index: cut });
        }
    }
    engine.write(&mut batch, is_synced)?;
    Ok(())
}
