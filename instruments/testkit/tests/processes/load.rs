//! Clients that write while nodes fail, a record of what was acknowledged, and the check of the cluster against it.
//!
//! Every step of a writer makes three writes: a row of its own, +1 on a counter of the writer, and +1 on a counter that
//! nobody ever touches again. The last kind shows every doubled write: such a counter is 1 or absent, never 2.

use bytes::Bytes;
use hedgerow_client::{
    Client, ClientOptions, Error, ErrorKind, Expiry, ReadOptions, ReplicaRead, Result, Table, TableSpec,
};
use hedgerow_types::random::Random;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const TABLE: &str = "load";
const WRITER_COUNT: usize = 8;
/// Records that one read of the check asks for.
const PAGE: usize = 1_000;
/// One operation, with all its retries: longer than an election and a restart take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(20);
/// Any number of steps must succeed within this, or the cluster is stuck.
const PROGRESS_WITHIN: Duration = Duration::from_secs(90);

/// So many hash keys leave no partition of a table without one.
const KEYS_IN_EVERY_PARTITION: u64 = 64;
/// Before what a full disk refused is tried again.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is in the cluster, once.
    Acknowledged,
    /// It may have happened, once.
    Unknown,
    /// It did not happen.
    Refused,
}

/// What one writer did, by step.
#[derive(Default)]
struct Steps {
    rows: Vec<Outcome>,
    totals: Vec<Outcome>,
    markers: Vec<Outcome>,
}

/// What all writers did.
pub(crate) struct Record(Vec<Steps>);

#[derive(Default)]
struct Progress {
    steps: Mutex<u64>,
    changed: Condvar,
    must_stop: AtomicBool,
    has_ended: AtomicBool,
}

/// Tells those who wait for progress that none will come any more, also when a writer panics.
struct Ending(Arc<Progress>);

impl Drop for Ending {
    fn drop(&mut self) {
        // Under the lock, so that nobody begins to wait between the change and the signal.
        let _steps = self.0.steps.lock();
        self.0.has_ended.store(true, Ordering::Relaxed);
        self.0.changed.notify_all();
    }
}

/// Running writers.
pub(crate) struct Writers {
    progress: Arc<Progress>,
    thread: JoinHandle<Vec<Steps>>,
}

impl Writers {
    /// Creates a table and writes to it.
    pub(crate) fn start(addresses: &[&str]) -> Self {
        let addresses: Vec<_> = addresses.iter().map(|address| (*address).to_owned()).collect();
        let progress = Arc::new(Progress::default());
        let shared = progress.clone();
        let thread = std::thread::spawn(move || {
            let _ending = Ending(shared.clone());
            runtime().block_on(async {
                let table = create(&addresses).await;
                let writers =
                    (0..WRITER_COUNT).map(|writer| tokio::spawn(write(table.clone(), writer, shared.clone())));
                let mut steps = Vec::new();
                for writer in writers.collect::<Vec<_>>() {
                    steps.push(writer.await.unwrap());
                }
                steps
            })
        });
        Self { progress, thread }
    }

    /// Waits until `count` more steps were acknowledged in full.
    pub(crate) fn wait_for_more(&self, count: u64) {
        let steps = self.progress.steps.lock().unwrap();
        let goal = *steps + count;
        let has_ended = || self.progress.has_ended.load(Ordering::Relaxed);
        let is_short = |steps: &mut u64| *steps < goal && !has_ended();
        let (steps, waited) = self.progress.changed.wait_timeout_while(steps, PROGRESS_WITHIN, is_short).unwrap();
        assert!(!waited.timed_out(), "only {steps} of {goal} steps were acknowledged within {PROGRESS_WITHIN:?}");
        assert!(!has_ended(), "a writer failed");
    }

    /// Lets every writer finish its step.
    pub(crate) fn stop(self) -> Record {
        self.progress.must_stop.store(true, Ordering::Relaxed);
        Record(self.thread.join().unwrap())
    }
}

/// Writes rows without end into a table of their own until the disks are full: how many there are. Panics at `most`.
pub(crate) fn fill(addresses: &[String], value_size: usize, most: u64) -> u64 {
    runtime().block_on(async {
        let client = connect(addresses).await;
        let spec = TableSpec { if_not_exists: true, ..TableSpec::default() };
        client.create_table("fill", &spec).await.unwrap();
        let table = client.open_table("fill").await.unwrap();
        for number in 0..most {
            match table.set(format!("fill-{number}"), "", fill_value(number, value_size)).await {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::DiskFull => return number,
                Err(error) => panic!("write {number}: {error}"),
            }
        }
        panic!("{most} writes of {value_size} bytes did not fill the disks");
    })
}

/// Rows that [`fill`] wrote are there, wherever they are read (pitfall R9), and the first one can be removed.
pub(crate) fn read_filled(addresses: &[String], value_size: usize, rows: std::ops::Range<u64>) {
    runtime().block_on(async {
        let table = connect(addresses).await.open_table("fill").await.unwrap();
        let followers = table.reading(ReadOptions { mode: ReplicaRead::Follower, ..ReadOptions::default() });
        for number in rows.clone() {
            for (table, who) in [(&table, "leaders"), (&followers, "followers")] {
                let value = table.get(format!("fill-{number}"), "").await.unwrap();
                assert!(value.as_deref() == Some(&fill_value(number, value_size)[..]), "row {number} at {who}");
            }
        }
        table.del(format!("fill-{}", rows.start), "").await.unwrap();
    });
}

/// Writes to every partition return within the time that an operation has, tried again for as long as they are refused for
/// want of space: each disk is looked at by its own node.
pub(crate) fn wait_until_writable(addresses: &[String]) {
    runtime().block_on(async {
        let table = connect(addresses).await.open_table("fill").await.unwrap();
        let since = std::time::Instant::now();
        for key in 0..KEYS_IN_EVERY_PARTITION {
            while let Err(error) = table.set(format!("again-{key}"), "", "v").await {
                assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
                assert!(since.elapsed() < OPERATION_TIMEOUT, "{error}");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    });
}

/// No two values alike, so that compression saves nothing.
fn fill_value(number: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..size / 8).flat_map(|_| random.next_u64().to_be_bytes()).collect()
}

/// Every acknowledged write is in the cluster, and none more than once.
pub(crate) fn verify(addresses: &[&str], record: &Record) {
    let addresses: Vec<_> = addresses.iter().map(|address| (*address).to_owned()).collect();
    runtime().block_on(async {
        let table = connect(&addresses).await.open_table(TABLE).await.unwrap();
        for (writer, steps) in record.0.iter().enumerate() {
            verify_rows(&table, writer, steps).await;
            verify_markers(&table, writer, steps).await;
            let total = number(&table, &total_key(writer), "total").await;
            assert_between(total, &steps.totals, &format!("total of writer {writer}"));
        }
    });
}

async fn verify_rows(table: &Table, writer: usize, steps: &Steps) {
    let found = values(table, &row_key(writer), steps.rows.len()).await;
    for (step, (value, outcome)) in found.iter().zip(&steps.rows).enumerate() {
        match (value, outcome) {
            (Some(value), Outcome::Acknowledged | Outcome::Unknown) => {
                assert_eq!(value[..], row_value(writer, step)[..], "row {step} of writer {writer}");
            }
            (None, Outcome::Unknown | Outcome::Refused) => {}
            (None, Outcome::Acknowledged) => panic!("acknowledged row {step} of writer {writer} is lost"),
            (Some(_), Outcome::Refused) => panic!("refused row {step} of writer {writer} is there"),
        }
    }
    let count = i64::try_from(table.sort_key_count(row_key(writer)).await.unwrap()).unwrap();
    assert_between(count, &steps.rows, &format!("rows of writer {writer}"));
}

async fn verify_markers(table: &Table, writer: usize, steps: &Steps) {
    let found = values(table, &marker_key(writer), steps.markers.len()).await;
    for (step, (value, outcome)) in found.iter().zip(&steps.markers).enumerate() {
        let what = format!("marker {step} of writer {writer}");
        match outcome {
            Outcome::Acknowledged => assert_eq!(value.as_deref(), Some(&b"1"[..]), "{what} was acknowledged"),
            Outcome::Unknown => assert!(value.as_deref().is_none_or(|value| value == b"1"), "{what} is {value:?}"),
            Outcome::Refused => assert_eq!(*value, None, "{what} was refused"),
        }
    }
}

/// What is stored for the steps below `count`, in pages.
async fn values(table: &Table, hash_key: &str, count: usize) -> Vec<Option<Bytes>> {
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let page = found.len()..count.min(found.len() + PAGE);
        found.extend(table.batch_get(page.map(|step| (hash_key, step.to_string()))).await.unwrap());
    }
    found
}

async fn number(table: &Table, hash_key: &str, sort_key: &str) -> i64 {
    let value = table.get(hash_key, sort_key).await.unwrap();
    value.map_or(0, |value| String::from_utf8(value.to_vec()).unwrap().parse().unwrap())
}

/// A count of writes that were applied lies between those acknowledged and those that may have happened.
fn assert_between(count: i64, outcomes: &[Outcome], what: &str) {
    let of = |wanted: Outcome| i64::try_from(outcomes.iter().filter(|outcome| **outcome == wanted).count()).unwrap();
    let (low, unknown) = (of(Outcome::Acknowledged), of(Outcome::Unknown));
    assert!((low..=low + unknown).contains(&count), "{what}: {count}, acknowledged {low}, unknown {unknown}");
}

fn row_key(writer: usize) -> String {
    format!("rows-{writer}")
}

fn row_value(writer: usize, step: usize) -> Vec<u8> {
    format!("{writer}/{step}/").repeat(20).into_bytes()
}

fn total_key(writer: usize) -> String {
    format!("totals-{writer}")
}

fn marker_key(writer: usize) -> String {
    format!("markers-{writer}")
}

async fn write(table: Table, writer: usize, progress: Arc<Progress>) -> Steps {
    let mut steps = Steps::default();
    for step in 0.. {
        if progress.must_stop.load(Ordering::Relaxed) {
            break;
        }
        let name = step.to_string();
        steps.rows.push(outcome(&table.set(row_key(writer), &name, row_value(writer, step)).await));
        steps.totals.push(outcome(&table.incr(total_key(writer), "total", 1, Expiry::Keep).await));
        let marker = table.incr(marker_key(writer), &name, 1, Expiry::Keep).await;
        assert!(marker.as_ref().is_ok_and(|count| *count == 1) || marker.is_err(), "marker {step}: {marker:?}");
        steps.markers.push(outcome(&marker));
        let last = [steps.rows[step], steps.totals[step], steps.markers[step]];
        if last.contains(&Outcome::Refused) {
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
        if last == [Outcome::Acknowledged; 3] {
            read_back(&table, writer, &steps).await;
            *progress.steps.lock().unwrap() += 1;
            progress.changed.notify_all();
        }
    }
    steps
}

/// A linearizable read right after the acknowledgement sees the write, whoever leads by then.
async fn read_back(table: &Table, writer: usize, steps: &Steps) {
    let step = steps.rows.len() - 1;
    match table.get(row_key(writer), step.to_string()).await {
        Ok(value) => assert_eq!(value.as_deref(), Some(&row_value(writer, step)[..]), "row {step} of writer {writer}"),
        Err(error) => assert!(error.may_retry(), "reading back: {error}"),
    }
    match table.get(total_key(writer), "total").await {
        Ok(value) => {
            let total: i64 = String::from_utf8(value.unwrap().to_vec()).unwrap().parse().unwrap();
            assert_between(total, &steps.totals, &format!("total of writer {writer}, read back"));
        }
        Err(error) => assert!(error.may_retry(), "reading back: {error}"),
    }
}

/// Panics on an error that neither a failing node nor a small disk excuses, on which a compaction may take for a while what
/// was just freed.
fn outcome<T>(result: &Result<T>) -> Outcome {
    match result {
        Ok(_) => Outcome::Acknowledged,
        Err(error) if error.is_outcome_unknown() || error.kind() == ErrorKind::Forgotten => Outcome::Unknown,
        Err(error) if error.may_retry() || error.kind() == ErrorKind::DiskFull => Outcome::Refused,
        Err(error) => panic!("a write failed in a way that no fault explains: {error}"),
    }
}

async fn create(addresses: &[String]) -> Table {
    let client = connect(addresses).await;
    let spec = TableSpec { if_not_exists: true, ..TableSpec::default() };
    client.create_table(TABLE, &spec).await.unwrap();
    client.open_table(TABLE).await.unwrap()
}

async fn connect(addresses: &[String]) -> Client {
    let options = ClientOptions {
        operation_timeout: OPERATION_TIMEOUT,
        attempt_timeout: Some(Duration::from_secs(2)),
        ..ClientOptions::default()
    };
    let connected: std::result::Result<Client, Error> = Client::connect_with(addresses, options).await;
    connected.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
