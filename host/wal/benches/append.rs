//! What an append costs: rounds of 1000-byte entries from many groups, on a real directory, with and without fsync.
//!
//! `cargo bench -p hedgerow-wal` prints, for each round size, entries per second and microseconds per entry and per
//! round. `WAL_BENCH_DIR` says where; the default is the system's temporary directory.
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use hedgerow_env::Clock;
use hedgerow_env::os::{OsClock, OsDisk};
use hedgerow_types::log::{Entry, EntryKind, HardState};
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Durability, Log, Options};
use std::sync::Arc;
use std::time::Duration;

const GROUPS: usize = 64;
const VALUE_SIZE: usize = 1000;
const KEPT: u64 = 1000;

fn main() {
    let base = std::env::var_os("WAL_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    println!("{:>10} {:>7} {:>12} {:>12} {:>12}", "durability", "entries", "entries/s", "us/entry", "us/round");
    for durability in [Durability::Os, Durability::Fsync] {
        for count in [1, 16, 64, 1024] {
            let dir = tempfile::tempdir_in(&base).unwrap();
            let options = Options { durability, ..Options::default() };
            let (mut log, _) = Log::open(Arc::new(OsDisk), &dir.path().join("log"), options).unwrap();
            let (rounds, elapsed) = run(&mut log, count);
            let per_round = elapsed.as_secs_f64() / rounds as f64;
            println!(
                "{:>10} {count:>7} {:>12.0} {:>12.3} {:>12.1}",
                format!("{durability:?}"),
                count as f64 / per_round,
                per_round * 1e6 / count as f64,
                per_round * 1e6,
            );
        }
    }
}

/// Writes rounds of `count` entries, spread over the groups, for two seconds after the segments have become recycled ones.
fn run(log: &mut Log, count: usize) -> (u64, Duration) {
    let value = bytes::Bytes::from(vec![7; VALUE_SIZE]);
    let mut next = [1; GROUPS];
    let mut group = 0;
    let mut round = |log: &mut Log| {
        let mut appends: Vec<Append> = Vec::with_capacity(count.min(GROUPS));
        for _ in 0..count.min(GROUPS) {
            group = (group + 1) % GROUPS;
            let first = next[group];
            next[group] += count.div_ceil(GROUPS) as u64;
            let entry = |index| Entry { index, term: 1, kind: EntryKind::Normal, data: value.clone() };
            appends.push(Append {
                group: GroupId::new(1, group as u32),
                replica: ReplicaId(1),
                reset: None,
                entries: (first..next[group]).map(entry).collect(),
                hard_state: Some(HardState { term: 1, vote: None, commit: first }),
            });
        }
        log.write(&appends).unwrap();
        log.sync().unwrap();
        for append in &appends {
            log.truncate_prefix(append.group, append.entries[0].index.saturating_sub(KEPT));
        }
        log.prepare();
    };
    let warm_up = OsClock.now();
    while log.stats().record_bytes < 400 << 20 && OsClock.now().since(warm_up) < Duration::from_secs(3) {
        (0..16).for_each(|_| round(log));
        log.collect().unwrap();
    }
    let begin = OsClock.now();
    let mut rounds = 0;
    while OsClock.now().since(begin) < Duration::from_secs(2) {
        (0..16).for_each(|_| round(log));
        log.collect().unwrap();
        rounds += 16;
    }
    (rounds, OsClock.now().since(begin))
}
