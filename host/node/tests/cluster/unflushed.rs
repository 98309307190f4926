//! A load on nodes whose disks do not flush: writes are refused before unflushed rows fill their memory.

use super::repair::ASKED_MAX;
use super::{Connection, create_table, data_of, peers, primaries, start_configured, wait_until_serving};
use bytes::Bytes;
use hedgerow_client::{AttemptEvent, AttemptObserver, Client, ClientOptions, HedgeOptions, Table};
use hedgerow_env::Disk;
use hedgerow_node::Config;
use hedgerow_node::os::{Running, State};
use hedgerow_storage::{
    Batch, Debt, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, RocksEngines, RocksSettings,
    RowVisitor, Snapshot,
};
use hedgerow_types::NodeId;
use hedgerow_types::key::{partition_hash, partition_of_hash};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

const PARTITIONS: u32 = 2;
/// All rows are in its partition.
const HASH_KEY: &str = "k";
const ROW_SIZE: usize = 16 << 10;
const WRITE_BUFFER: u64 = 1 << 20;
/// Above so many unflushed bytes a node is behind. It looks every 50 ms, so that it may hold some more.
const HELD_MAX: u64 = 4 * WRITE_BUFFER;
/// Rows of a load that nobody refuses: eight times what a node may hold.
const ROWS_MAX: usize = 8 * HELD_MAX as usize / ROW_SIZE;
/// Rows that may be under way; the next ones come slowly.
const UNDER_WAY_MAX: usize = 64;
/// The load has met its limit when so many attempts were refused.
const REFUSED_ENOUGH: usize = 200;

/// RocksDB, on a disk whose flushes can be held up, with an eye on what is unflushed.
#[derive(Debug)]
struct Watched {
    rocks: RocksEngines,
    watch: Arc<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    engines: Mutex<Vec<Weak<dyn Engine>>>,
    /// The most bytes of unflushed rows that all engines ever held together.
    most: AtomicU64,
    holds_flushes: Mutex<bool>,
    /// Whether engines stay open when they are dropped.
    holds_closing: Mutex<bool>,
    let_go: Condvar,
}

impl Watch {
    /// Bytes of unflushed rows.
    fn held(&self) -> u64 {
        self.engines.lock().unwrap().iter().filter_map(Weak::upgrade).map(|engine| engine.unflushed_bytes()).sum()
    }

    fn hold_flushes(&self) {
        *self.holds_flushes.lock().unwrap() = true;
    }

    fn hold_closing(&self) {
        *self.holds_closing.lock().unwrap() = true;
    }

    fn let_go(&self) {
        *self.holds_flushes.lock().unwrap() = false;
        *self.holds_closing.lock().unwrap() = false;
        self.let_go.notify_all();
    }

    fn wait_for_disk(&self) {
        self.wait_while(&self.holds_flushes);
    }

    fn wait_while(&self, holds: &Mutex<bool>) {
        drop(self.let_go.wait_while(holds.lock().unwrap(), |holds| *holds).unwrap());
    }
}

impl Engines for Watched {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        let engine = self.rocks.open(dir)?;
        self.watch.engines.lock().unwrap().push(Arc::downgrade(&engine));
        Ok(Arc::new(WatchedEngine { engine, watch: Arc::clone(&self.watch) }))
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        self.rocks.verify(dir)
    }

    fn hurry(&self) {
        self.rocks.hurry();
    }

    fn is_gone(&self, dir: &Path) -> bool {
        self.rocks.is_gone(dir)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.rocks.disk()
    }
}

#[derive(Debug)]
struct WatchedEngine {
    engine: Arc<dyn Engine>,
    watch: Arc<Watch>,
}

impl Drop for WatchedEngine {
    fn drop(&mut self) {
        self.watch.wait_while(&self.watch.holds_closing);
    }
}

impl Engine for WatchedEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.engine.get(key)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.engine.scan(range, direction, visit)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.engine.write(batch)?;
        self.watch.most.fetch_max(self.watch.held(), Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.watch.wait_for_disk();
        self.engine.flush()
    }

    fn flush_at_pace(&self) -> Result<(), EngineError> {
        self.watch.wait_for_disk();
        self.engine.flush_at_pace()
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        self.engine.checkpoint(into)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.engine.snapshot()
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.engine.set_expire_floor(seconds);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.engine.compact()
    }

    fn background_failure(&self) -> Option<EngineError> {
        self.engine.background_failure()
    }

    fn debt(&self) -> Debt {
        self.engine.debt()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.engine.unflushed_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}

fn small_write_buffer(config: &mut Config) {
    config.flush_replica_bytes = WRITE_BUFFER / 4;
    config.flush_node_bytes = WRITE_BUFFER;
}

fn value(number: usize) -> String {
    format!("{number:0ROW_SIZE$}")
}

async fn set(table: Table, number: usize) -> hedgerow_client::Result<()> {
    table.set(HASH_KEY, number.to_string(), value(number)).await
}

/// A client that waits long, and counts in `refused` the attempts that were refused because flushes do not keep up.
async fn open_table(peers: &BTreeMap<NodeId, String>, refused: &Arc<AtomicUsize>) -> Table {
    let addresses: Vec<&String> = peers.values().collect();
    let options = ClientOptions { operation_timeout: Duration::from_secs(120), ..ClientOptions::default() };
    let client = Client::connect_with(&addresses, options).await.unwrap();
    let refused = Arc::clone(refused);
    let observer = AttemptObserver::new(move |attempt| {
        if matches!(attempt.event, AttemptEvent::Error { error, .. } if error.message().contains("not keep up")) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
    });
    let options = HedgeOptions { observer: Some(observer), ..HedgeOptions::default() };
    client.open_table_with("t", options).await.unwrap()
}

/// Writes rows, many at a time, until enough is refused. Those that wait for their outcome by then go on.
async fn load(table: &Table, refused: &AtomicUsize) -> Vec<tokio::task::JoinHandle<hedgerow_client::Result<()>>> {
    let mut writes = Vec::new();
    while writes.len() < ROWS_MAX && refused.load(Ordering::Relaxed) < REFUSED_ENOUGH {
        writes.push(tokio::spawn(set(table.clone(), writes.len())));
        let under_way = writes.iter().filter(|write| !write.is_finished()).count();
        tokio::time::sleep(Duration::from_millis(if under_way < UNDER_WAY_MAX { 1 } else { 50 })).await;
    }
    writes
}

/// Neither of the followers can flush. What is written meanwhile is refused and tried again, and nothing of it is lost.
#[test]
fn n2_a_load_beyond_what_followers_flush_is_refused_before_memory_ends() {
    let (root, peers) = (tempfile::tempdir().unwrap(), peers(3));
    let watches: BTreeMap<NodeId, Arc<Watch>> = peers.keys().map(|node| (*node, Arc::default())).collect();
    let started = |node: &NodeId| {
        let rocks = RocksEngines::new(&RocksSettings::default()).unwrap();
        let engines: Arc<dyn Engines> = Arc::new(Watched { rocks, watch: Arc::clone(&watches[node]) });
        let data = data_of(root.path(), node.0);
        (*node, start_configured(*node, &peers, data, &engines, small_write_buffer).unwrap())
    };
    let mut nodes: BTreeMap<NodeId, Running> = peers.keys().map(started).collect();
    nodes.values().for_each(|node| wait_until_serving(std::slice::from_ref(node)));
    let mut any = Connection::open(&peers[&NodeId(1)]);
    create_table(&mut any, PARTITIONS as i32, 3);
    let partition = partition_of_hash(partition_hash(HASH_KEY.as_bytes(), b""), PARTITIONS);
    let leader = primaries(&mut any, "t").1[partition as usize].to_string();
    let (leader, _) = peers.iter().find(|(_, address)| **address == leader).unwrap();
    let followers = || watches.iter().filter(|(node, _)| *node != leader).map(|(_, watch)| watch);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = Arc::default();
    let table = runtime.block_on(open_table(&peers, &refused));
    followers().for_each(|watch| watch.hold_flushes());
    let writes = runtime.block_on(load(&table, &refused));
    let most: Vec<u64> = watches.values().map(|watch| watch.most.load(Ordering::Relaxed)).collect();
    assert!(most.iter().all(|bytes| *bytes < 2 * HELD_MAX), "{most:?} bytes at most");
    assert!(refused.load(Ordering::Relaxed) >= REFUSED_ENOUGH && writes.len() < ROWS_MAX, "it was met");
    // One is enough if it has come to lead meanwhile.
    assert!(followers().any(|watch| watch.held() > HELD_MAX), "they were behind");

    followers().for_each(|watch| watch.let_go());
    let mut count = writes.len();
    runtime.block_on(async {
        for write in writes {
            write.await.unwrap().unwrap();
        }
        for _ in 0..20 {
            set(table.clone(), count).await.unwrap();
            count += 1;
        }
    });
    let is_flushed = || watches.values().all(|watch| watch.held() <= WRITE_BUFFER);
    let mut asked = 0;
    while !is_flushed() {
        asked += 1;
        assert!(asked < ASKED_MAX, "what is unflushed stays so");
        std::thread::sleep(Duration::from_millis(50));
    }
    // What the followers dropped while they were behind they have now.
    stop(nodes.remove(leader).unwrap());
    runtime.block_on(async {
        for number in 0..count {
            let found = table.get(HASH_KEY, number.to_string()).await.unwrap();
            assert!(found.is_some_and(|found| found == value(number)), "row {number}");
        }
    });
    nodes.into_values().for_each(stop);
}

/// A storage that takes its time to close keeps nobody waiting for an answer that will not come: clients look elsewhere at once.
#[test]
fn n4_a_node_that_stops_has_closed_its_connections_before_its_storages() {
    for io_threads in [1, 3] {
        let (root, peers, watch) = (tempfile::tempdir().unwrap(), peers(1), Arc::<Watch>::default());
        let rocks = RocksEngines::new(&RocksSettings::default()).unwrap();
        let engines: Arc<dyn Engines> = Arc::new(Watched { rocks, watch: Arc::clone(&watch) });
        let configure = |config: &mut Config| config.io_threads = io_threads;
        let node = start_configured(NodeId(1), &peers, data_of(root.path(), 1), &engines, configure).unwrap();
        wait_until_serving(std::slice::from_ref(&node));
        let mut client = Connection::open(&peers[&NodeId(1)]);
        create_table(&mut client, PARTITIONS as i32, 1);
        client.0.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        watch.hold_closing();
        node.stop();
        let closed = client.0.read(&mut [0]);
        assert!(
            closed.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |count| *count == 0),
            "{closed:?}"
        );
        assert!(!matches!(*node.state().borrow(), State::Stopped(_)), "it has not closed its storages");
        watch.let_go();
        node.join().unwrap();
    }
}

fn stop(node: Running) {
    node.stop();
    node.join().unwrap();
}
