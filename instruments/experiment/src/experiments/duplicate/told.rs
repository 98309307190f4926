//! The turns: writes that are told or not, and copies.
#![allow(clippy::disallowed_methods, reason = "clients write beside what is measured, and are waited for")]

use super::pair::{OTHER, Pair};
use super::{Way, figure};
use crate::clock::now;
use crate::experiment::Context;
use anyhow::{Context as _, Result, ensure};
use hedgerow_bench::{Arrivals, Load};
use hedgerow_client::{Client, Expiry, ScanOptions, Table};
use hedgerow_report::Run;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use tokio::sync::watch;

/// The table of the rows that are watched.
const PROBED: &str = Way::Carried.table();
/// Rows that are watched on their way beside a load: so often, and how often it is looked whether one is there.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
const PROBE_LOOK: Duration = Duration::from_millis(1);
/// Clients that write beside a copy, each to rows and numbers of its own.
const WRITERS: u64 = 4;
const NUMBERS: u64 = 8;
/// A write may wait for elections, and has to have an outcome that is known.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// A run of `load`; of a table that is carried also how soon single rows are there, and how long it takes until all are.
pub(super) async fn measure_writes(
    pair: &mut Pair,
    context: &Context<'_>,
    (variant, table, is_carried): (String, &str, bool),
    load: Load,
) -> Result<Run> {
    let cpu = |pair: &mut Pair| Ok::<f64, anyhow::Error>(pair.there.cpu_of_threads()?.values().sum());
    let before = cpu(pair)?;
    let (here, there) = (pair.here.client().await?, pair.there.client().await?);
    let (stop, stopped) = watch::channel(false);
    let is_probed = is_carried && matches!(load.arrivals, Arrivals::Open { .. });
    let probes = tokio::spawn(async move {
        if !is_probed {
            return Ok(Vec::new());
        }
        probe(&here.open_table(PROBED).await?, &there.open_table(PROBED).await?, stopped).await
    });
    let run = pair.here.run(context, variant, load).await;
    let ended = now();
    stop.send_replace(true);
    let mut probes = probes.await.context("watching rows")??;
    let mut run = run?;
    if is_carried {
        pair.wait_until_told(table).await?;
        run.extra.insert(figure::CAUGHT_UP.to_owned(), (now() - ended).as_secs_f64());
        let requests = run.achieved_per_s * run.duration_s;
        run.extra.insert(figure::CPU_THERE.to_owned(), (cpu(pair)? - before) * 1e6 / requests.max(1.0));
    }
    probes.sort_by(f64::total_cmp);
    if let (Some(p50), Some(p99), Some(most)) = (at(&probes, 0.5), at(&probes, 0.99), probes.last()) {
        run.extra.extend(figure::VISIBLE.map(str::to_owned).into_iter().zip([p50, p99, *most]));
    }
    Ok(run)
}

fn at(sorted: &[f64], share: f64) -> Option<f64> {
    sorted.get((sorted.len() as f64 * share) as usize).copied()
}

/// Sets a row and looks for it there, again and again. Milliseconds from before the set until it is read there.
async fn probe(here: &Table, there: &Table, stopped: watch::Receiver<bool>) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    for number in 0_u64.. {
        let began = now();
        here.set("probe", "s", number.to_string()).await?;
        while there.get("probe", "s").await?.as_deref() != Some(number.to_string().as_bytes()) {
            tokio::time::sleep(PROBE_LOOK).await;
        }
        took.push((now() - began).as_secs_f64() * 1e3);
        if *stopped.borrow() {
            break;
        }
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
    Ok(took)
}

/// Copies a table that is made for it. With a pause, while clients write, and with the other cluster killed after it, and after it again. Fails
/// unless both clusters then have the same rows, and each number is as large as additions to it were acknowledged.
pub(super) async fn measure_copy(
    pair: &mut Pair,
    load: &Load,
    pause: Option<Duration>,
) -> Result<BTreeMap<String, f64>> {
    let table = load.table.clone();
    pair.here.write_rows(load, &table).await?;
    pair.here.rest().await?;
    let began = now();
    pair.duplicate(&table).await?;
    let mut added = BTreeMap::new();
    if let Some(pause) = pause {
        let (stop, stopped) = watch::channel(false);
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let opened = pair.here.client_within(OPERATION_TIMEOUT).await?.open_table(&table).await?;
            writers.push(tokio::spawn(write(opened, writer, stopped.clone())));
        }
        let killed = kill_twice(pair, pause).await;
        stop.send_replace(true);
        for writer in writers {
            added.extend(writer.await.context("a writer")??);
        }
        killed?;
    }
    pair.wait_until_told(&table).await?;
    let took = (now() - began).as_secs_f64();
    let (here, there) = (pair.here.client().await?, pair.there.client().await?);
    let (one, other) = tokio::try_join!(digest(&here, &table), digest(&there, &table))?;
    ensure!(one == other, "{table}: {one:?} here, {other:?} there");
    let copy = there.open_table(&table).await?;
    for (key, sum) in &added {
        let found = copy.get(key, "n").await?;
        ensure!(
            found.as_deref() == Some(sum.to_string().as_bytes()),
            "{key} is {found:?}, and was added to {sum} times"
        );
    }
    pair.here.command(&["table", "duplicate", "remove", &table, OTHER])?;
    for stage in [&pair.here, &pair.there] {
        stage.command(&["table", "drop", &table, "--now"])?;
    }
    let sum: u64 = added.values().sum();
    let figures = [
        (figure::COPIED, took),
        (figure::ROWS, one.rows as f64),
        (figure::MIB, one.bytes as f64 / f64::from(1 << 20)),
        (figure::ADDED, sum as f64),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Kills all nodes of the other cluster and starts them again, twice.
async fn kill_twice(pair: &mut Pair, pause: Duration) -> Result<()> {
    for _ in 0..2 {
        tokio::time::sleep(pause).await;
        pair.there.stop()?;
        tokio::time::sleep(pause).await;
        pair.there.start().await?;
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Sets, deletes and adds until it is told to stop. Returns how often each number was added to.
async fn write(table: Table, writer: u64, stopped: watch::Receiver<bool>) -> Result<BTreeMap<String, u64>> {
    let mut added = BTreeMap::new();
    for count in 0_u64.. {
        if *stopped.borrow() {
            break;
        }
        let key = format!("writer-{writer}-{}", count % 997);
        match count % 4 {
            0 => {
                let number = format!("number-{writer}-{}", count / 4 % NUMBERS);
                table.incr(&number, "n", 1, Expiry::Keep).await?;
                *added.entry(number).or_default() += 1;
            }
            1 if count % 20 == 1 => table.del(&key, "s").await?,
            _ => table.set(&key, "s", count.to_string()).await?,
        }
    }
    Ok(added)
}

/// What stands for all rows of a table, in any order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Digest {
    rows: u64,
    bytes: u64,
    sum: u64,
}

async fn digest(client: &Client, table: &str) -> Result<Digest> {
    let mut scanner = client.open_table(table).await?.scan_all(ScanOptions::default());
    let mut digest = Digest::default();
    while let Some(row) = scanner.next().await? {
        let mut hasher = DefaultHasher::new();
        (&row.hash_key, &row.sort_key, &row.value).hash(&mut hasher);
        digest.rows += 1;
        digest.bytes += (row.hash_key.len() + row.sort_key.len() + row.value.len()) as u64;
        digest.sum = digest.sum.wrapping_add(hasher.finish());
    }
    Ok(digest)
}
