//! What a load needs before it can begin: its table, and the rows that it reads.

use crate::cluster::{Connections, connect};
use crate::keys::KeyForm;
use crate::lanes::Lanes;
use crate::load::Load;
use crate::mix::Request;
use crate::pace::machine_now;
use crate::reading::Reading;
use crate::reply::{Failure, Reply};
use crate::values::ValueSource;
use crate::workload::{Kind, Values, Workload};
use anyhow::{Context as _, Result, bail};
use hedgerow_client::{ErrorKind, TableKind, TableSpec};
use hedgerow_types::random::Random;
use std::future::poll_fn;
use std::task::Poll;

/// The comment of tables that are created here: what measures writes rows of its own into them.
pub const TABLE_COMMENT: &str = "made by hedgerow bench";
/// Requests in flight while rows are written.
const IN_FLIGHT: usize = 256;
/// Connections to each node that write them.
const CONNECTIONS: u32 = 8;
/// Rows that are looked up to see whether all have been written before.
const SAMPLE_ROWS: u64 = 200;
/// Most bytes of values in one request, and most rows.
const REQUEST_BYTES_MAX: u64 = 128 << 10;
const REQUEST_ROWS_MAX: u64 = 1000;
/// Time between two lines that tell how far the writing is, in nanoseconds.
const PROGRESS_INTERVAL: u64 = 5_000_000_000;

/// Creates the table if it does not exist, and writes its rows if the workload reads and a sample shows that they are not
/// there. `say` gets lines for people.
pub async fn prepare(cluster: &[String], load: &Load, mut say: impl FnMut(&str)) -> Result<()> {
    create(cluster, load, &mut say).await?;
    if load.workload.operations.needs_rows() { write_rows(cluster, load, say).await } else { Ok(()) }
}

/// As [`prepare`], and also writes the rows of a workload that does not read.
pub async fn prepare_with_rows(cluster: &[String], load: &Load, mut say: impl FnMut(&str)) -> Result<()> {
    create(cluster, load, &mut say).await?;
    write_rows(cluster, load, say).await
}

async fn create(cluster: &[String], load: &Load, say: &mut impl FnMut(&str)) -> Result<()> {
    load.check()?;
    let client = connect(cluster, load).await?;
    let wanted = &load.workload.table;
    let kind = match wanted.kind {
        Kind::Hash => TableKind::Hash,
        Kind::Ordered => TableKind::Ordered,
    };
    match client.table_kind(&load.table).await {
        Ok(found) if found == kind => Ok(()),
        Ok(_) => bail!("table {:?} is of another kind than workload {:?} needs", load.table, load.workload.name),
        Err(error) if error.kind() == ErrorKind::NoTable => {
            say(&format!("creating table {} with {} partitions", load.table, wanted.partitions));
            let comment = ("comment".to_owned(), TABLE_COMMENT.to_owned());
            let mut spec = TableSpec {
                kind,
                partition_count: wanted.partitions,
                if_not_exists: true,
                options: [comment].into(),
                ..TableSpec::default()
            };
            if wanted.kind == Kind::Ordered {
                spec.split_keys = KeyForm::of(wanted).split_keys(wanted.partitions);
            }
            client.create_table(&load.table, &spec).await.context("creating the table")?;
            Ok(())
        }
        Err(error) => Err(error).context("looking for the table"),
    }
}

async fn write_rows(cluster: &[String], load: &Load, mut say: impl FnMut(&str)) -> Result<()> {
    // Whether a row is there is asked of the leader, however the load itself reads.
    let plain = Load { reading: Reading::default(), ..load.clone() };
    let connections = Connections::open(cluster, &plain, CONNECTIONS).await?;
    let workload = &load.workload;
    if has_rows(&connections, workload, load.seed).await.context("looking for the rows")? {
        return Ok(());
    }
    let rows = workload.table.rows;
    say(&format!("writing {rows} rows of up to {} bytes", workload.values.size_max()));
    let mut random = Random::new(load.seed);
    let values = ValueSource::new(workload.values, &mut random);
    let mut next_row = 0;
    let mut lanes = Lanes::new();
    let mut said = machine_now();
    poll_fn(|context| {
        let mut failure = None;
        lanes.poll_woken(context, |reply: Reply, _: u64| failure = failure.or(reply.err()));
        while failure.is_none() && next_row < rows && lanes.len() < IN_FLIGHT {
            let count = rows_of_request(workload, next_row);
            let values = (0..count).map(|_| values.draw(&mut random)).collect();
            let request = write_request(next_row, values);
            if let Some((reply, _)) = lanes.start(connections.call((next_row / count) as usize, request), next_row) {
                failure = failure.or(reply.err());
            }
            next_row += count;
        }
        if machine_now() >= said + PROGRESS_INTERVAL {
            said = machine_now();
            say(&format!("{next_row} of {rows} rows"));
        }
        match failure {
            Some(failure) => Poll::Ready(Err(failure)),
            None if next_row == rows && lanes.len() == 0 => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
    .map_err(|failure| match failure {
        Failure::Timeout => anyhow::anyhow!("a write took longer than {:?}", load.timeout),
        Failure::Error(kind) => anyhow::anyhow!("a write failed: {kind}"),
    })
    .context("writing the rows")
}

/// How many rows from `row` on go into one request: those of its hash key, within limits.
fn rows_of_request(workload: &Workload, row: u64) -> u64 {
    let per_hash_key = workload.table.rows_per_hash_key;
    let by_size = REQUEST_BYTES_MAX / u64::from(workload.values.size_max()).max(1);
    (per_hash_key - row % per_hash_key).min(by_size.max(1)).min(REQUEST_ROWS_MAX)
}

fn write_request(row: u64, mut values: Vec<bytes::Bytes>) -> Request {
    match values.pop() {
        Some(value) if values.is_empty() => Request::Set { row, value },
        last => {
            values.extend(last);
            Request::BatchSet { row, values }
        }
    }
}

/// Whether a sample of rows is there, with values of the right size where all have one.
async fn has_rows(connections: &Connections, workload: &Workload, seed: u64) -> hedgerow_client::Result<bool> {
    let mut random = Random::new(seed);
    let rows = workload.table.rows;
    let ends = [0, rows - 1];
    for row in ends.into_iter().chain((0..SAMPLE_ROWS).map(|_| random.below(rows))) {
        let is_there = match (connections.get(row).await?, workload.values) {
            (Some(value), Values::Fixed { size }) => value.len() == size as usize,
            (Some(_), Values::Uniform { .. } | Values::Zipfian { .. } | Values::Lognormal { .. }) => true,
            (None, _) => false,
        };
        if !is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_hold_rows_of_one_hash_key_and_are_not_too_big() {
        let mut workload = Workload::named("put").unwrap();
        assert_eq!(rows_of_request(&workload, 7), 1);
        workload.table.rows_per_hash_key = 100;
        assert_eq!(rows_of_request(&workload, 700), 100);
        assert_eq!(rows_of_request(&workload, 730), 70);
        workload.values = Values::Fixed { size: 10_000 };
        assert_eq!(rows_of_request(&workload, 700), 13);
        workload.values = Values::Fixed { size: 1 << 19 };
        assert_eq!(rows_of_request(&workload, 700), 1);
    }
}
