//! The heavy client: what it keeps asking for, from a thread of its own.
#![allow(clippy::disallowed_methods, reason = "the noise is made by a thread and its sockets")]

use super::Case;
use crate::clock::now;
use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use hedgerow_client::{Client, Reserve, Table, TableSpec};
use hedgerow_env::os::give_way;
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_wire::message::CheckAndSet;
use hedgerow_wire::{Body, Header, call};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The table that the heavy client uses.
const TABLE: &str = "heavy";
const PARTITIONS: u32 = 8;
/// Rows of a kilobyte that share a hash key, and its name's beginning.
const COLD_ROWS_PER_KEY: u64 = 250;
/// Rows of one `batch_get`, the most that it may have.
const BATCH_ROWS: u64 = 10_000;
/// The hash key of many small rows, and how many are written at a time.
const WIDE: &str = "wide";
const WIDE_ROWS_PER_WRITE: u64 = 5_000;
/// The row of almost a mebibyte.
const LARGE: &str = "large";
const LARGE_SIZE: usize = 1_000_000;
const SORT_KEY: &str = "s";
/// Partitions of the tables that are made and dropped.
const DROPPED_PARTITIONS: u32 = 64;
/// Requests of the unread replies, half a gigabyte, and of conditional writes that are under way together.
const UNREAD_REQUESTS: i32 = 512;
const LOOKUPS_IN_FLIGHT: i32 = 2_000;
/// The time that the heavy client gives its requests.
const TIMEOUT_MS: i32 = 10_000;

/// How much there is to ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// Rows of a kilobyte.
    pub(super) cold_rows: u64,
    /// Rows of one hash key.
    pub(super) wide_rows: u64,
}

/// Writes what the heavy client asks for.
pub(super) async fn prepare(addresses: &[String], amount: Amount) -> Result<()> {
    let client = Client::connect(addresses).await?;
    client.create_table(TABLE, &TableSpec { partition_count: PARTITIONS, ..TableSpec::default() }).await?;
    let table = client.open_table(TABLE).await?;
    table.set(LARGE, SORT_KEY, vec![b'v'; LARGE_SIZE]).await?;
    let cold = Bytes::from(vec![b'v'; 1_000]);
    for key in 0..amount.cold_rows.div_ceil(COLD_ROWS_PER_KEY) {
        let rows = (0..COLD_ROWS_PER_KEY).map(|row| (row.to_string(), cold.clone()));
        table.multi_set(format!("cold{key}"), rows, None).await.context("writing cold rows")?;
    }
    for first in (0..amount.wide_rows).step_by(WIDE_ROWS_PER_WRITE as usize) {
        let rows = (first..first + WIDE_ROWS_PER_WRITE).map(|row| (format!("{row:08}"), Bytes::from_static(b"v")));
        table.multi_set(WIDE, rows, None).await.context("writing the rows to be counted")?;
    }
    Ok(())
}

/// A heavy client at work.
pub(super) struct Noise {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Noise {
    /// Begins; `None` where nobody makes any.
    pub(super) fn start(case: Case, addresses: Vec<String>, amount: Amount) -> Option<Self> {
        if case == Case::Alone {
            return None;
        }
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let maker = Maker { stop: Arc::clone(&stop), done: Arc::clone(&done), addresses, amount };
        let thread = std::thread::spawn(move || {
            // It is to take the nodes' time, as from another machine, and not that of who measures.
            give_way();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(maker.make(case)).with_context(|| format!("the heavy client: {case}"))
        });
        Some(Self { stop, done, thread })
    }

    /// Ends it: how often it got what it asked for. Fails if anything went wrong for it.
    pub(super) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the heavy client panicked"))??;
        Ok(self.done.load(Ordering::Relaxed))
    }
}

struct Maker {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    addresses: Vec<String>,
    amount: Amount,
}

impl Maker {
    async fn make(&self, case: Case) -> Result<()> {
        let client = Client::connect(&self.addresses).await?;
        let table = client.open_table(TABLE).await?;
        let mut round = 0;
        while !self.stop.load(Ordering::Relaxed) {
            match case {
                Case::Alone => {}
                Case::Batch => self.read_batch(&table, round).await?,
                Case::Count => {
                    let count = table.sort_key_count(WIDE).await?;
                    ensure!(count == self.amount.wide_rows, "the count of rows was {count}");
                }
                Case::Drop => {
                    let name = format!("dropped{round}");
                    let spec = TableSpec { partition_count: DROPPED_PARTITIONS, ..TableSpec::default() };
                    client.create_table(&name, &spec).await?;
                    client.drop_table(&name, false, Reserve::Seconds(0)).await?;
                }
                Case::Unread => self.leave_unread(&client).await?,
                Case::Lookups => self.look_up(&client, round).await?,
            }
            round += 1;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// 10,000 rows in one request for each partition, other ones each time.
    async fn read_batch(&self, table: &Table, round: u64) -> Result<()> {
        let row = |number: u64| {
            let row = (round * BATCH_ROWS + number) * 7_919 % self.amount.cold_rows;
            (format!("cold{}", row / COLD_ROWS_PER_KEY), (row % COLD_ROWS_PER_KEY).to_string())
        };
        let values = table.batch_get((0..BATCH_ROWS).map(row)).await?;
        ensure!(values.iter().all(Option::is_some), "rows are missing");
        Ok(())
    }

    /// Half a gigabyte of replies, of which none is read until the node closes the connection or a second is over.
    async fn leave_unread(&self, client: &Client) -> Result<()> {
        let mut requests = BytesMut::new();
        let (mut stream, header) = self.connect_to_leader(client).await?;
        for number in 0..UNREAD_REQUESTS {
            call::encode_request(
                &mut requests,
                &header,
                number,
                &Body::Get(full_key(LARGE.as_bytes(), SORT_KEY.as_bytes())),
            );
        }
        // A node may close the connection of who does not read.
        let _ = stream.write_all(&requests).await;
        let until = now() + Duration::from_secs(1);
        while now() < until && !self.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Conditional writes, sent together, that each return the large row.
    async fn look_up(&self, client: &Client, round: u64) -> Result<()> {
        let (mut stream, header) = self.connect_to_leader(client).await?;
        let mut requests = BytesMut::new();
        for number in 0..LOOKUPS_IN_FLIGHT {
            let write = CheckAndSet {
                hash_key: Bytes::from_static(LARGE.as_bytes()),
                check_sort_key: Bytes::from_static(SORT_KEY.as_bytes()),
                check_type: 1,
                set_diff_sort_key: true,
                set_sort_key: Bytes::from_static(b"other"),
                set_value: Bytes::from(round.to_string()),
                return_check_value: true,
                ..CheckAndSet::default()
            };
            call::encode_request(&mut requests, &header, number, &Body::CheckAndSet(write));
        }
        let (mut reader, mut writer) = stream.split();
        let write = writer.write_all(&requests);
        let read = async {
            let (mut answered, mut buffer) = (0, BytesMut::with_capacity(4 << 20));
            while answered < LOOKUPS_IN_FLIGHT && !self.stop.load(Ordering::Relaxed) {
                if !matches!(reader.read_buf(&mut buffer).await, Ok(1..)) {
                    break;
                }
                while let Some(size) = call::reply_frame_size(&buffer)?.filter(|size| buffer.len() >= *size) {
                    buffer.advance(size);
                    answered += 1;
                }
            }
            anyhow::Ok(())
        };
        let (_, read) = tokio::join!(write, read);
        read
    }

    /// A connection to the node that leads the large row, and the head of requests for it.
    async fn connect_to_leader(&self, client: &Client) -> Result<(TcpStream, Header)> {
        let described: Value = serde_json::from_str(&client.describe_table_json(TABLE).await?)?;
        let hash = partition_hash(LARGE.as_bytes(), SORT_KEY.as_bytes());
        let partition = partition_of_hash(hash, PARTITIONS);
        let Some(leader) = described["partitions"][partition as usize]["leader"].as_str() else {
            bail!("nobody leads the partition of the large row")
        };
        let id = described["id"].as_i64().context("the description has no id")?;
        let header = Header {
            app_id: i32::try_from(id)?,
            partition_index: partition as i32,
            partition_hash: hash,
            timeout_ms: TIMEOUT_MS,
            ..Header::default()
        };
        Ok((TcpStream::connect(leader).await?, header))
    }
}
