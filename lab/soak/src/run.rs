//! A run from beginning to end: nodes behind gates, clients, faults, the end of all faults, and the verdict.
#![allow(clippy::disallowed_methods, reason = "the one place that starts the clients")]

use crate::book::{Book, Counts};
use crate::closing::{Judges, Ledger, check_ledger, close_all};
use crate::gate::Gates;
use crate::nemesis::Nemesis;
use crate::plan::{Kind, Plan};
use crate::watch::{Watch, Watched};
use crate::whole::wait_until_whole;
use crate::worker::{Shared, TABLE, connect, lock, work};
use anyhow::{Context as _, Result, anyhow, ensure};
use hedgerow_client::TableSpec;
use hedgerow_env::Clock as _;
use hedgerow_env::os::OsClock;
use hedgerow_testkit::{Cluster, Settings, binary};
use hedgerow_types::random::Random;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet, spawn_local};

/// Exit code of a process that is told twice to end.
const INTERRUPTED_TWICE: i32 = 130;
const DATA_DIRECTORIES: usize = 2;
const PARTITIONS: u32 = 8;
const REPLICAS: u32 = 3;
/// In a long run, faults are made for so long, and then none for so long.
const TURN: Duration = Duration::from_secs(60);
/// Small caches and logs: what grows in the beginning has soon grown, and flushes, compactions and checkpoints happen all the time.
const NODE_SETTINGS: &str = "[memory]\nblock_cache_mib = 16\nhot_rows_mib = 8\nwrite_buffer_mib = 16\n\
    [log]\nsegment_mib = 8\nretained_mib = 64\n";

/// How some reads are served in every run that tests what it is to test.
const EVERY_WAY: [&str; 11] = [
    "first attempt",
    "hedge",
    "tie",
    "fallback",
    "linearizable",
    "session",
    "bounded",
    "eventual",
    "leader",
    "follower",
    "behind what its session saw",
];

/// What is to be run.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) seed: u64,
    /// How long; `None` = until each kind of fault was made once.
    pub(crate) time: Option<Duration>,
    pub(crate) nodes: usize,
    pub(crate) clients: u32,
    /// The longest pause between two requests of a client.
    pub(crate) think_max: Duration,
    /// Where nodes keep their data; a place for temporary files without it.
    pub(crate) base: Option<PathBuf>,
}

/// How a run ended in which every promise was kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    pub(crate) faults: BTreeMap<Kind, u64>,
    /// Reads by what was told of them.
    pub(crate) served: BTreeMap<&'static str, u64>,
    /// Records that were read once more in the end.
    pub(crate) remembered: usize,
    pub(crate) grows: bool,
    pub(crate) is_interrupted: bool,
}

/// A run that failed: why, and what the nodes printed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: anyhow::Error,
    pub(crate) output: String,
}

/// Runs `request`. Everything that is started ends with it.
pub(crate) fn run(request: &Request) -> Result<Outcome, Failure> {
    let failed = |why| Failure { why, output: String::new() };
    let mut nemesis = begin(request).map_err(failed)?;
    let result = go_on(request, &mut nemesis);
    result.map_err(|why| Failure { why, output: nemesis.cluster.output() })
}

/// Starts the nodes and the gates, and makes the table.
fn begin(request: &Request) -> Result<Nemesis> {
    let settings = Settings {
        base: request.base.clone(),
        data_directories: DATA_DIRECTORIES,
        further_config: NODE_SETTINGS.to_owned(),
        log: Some("warn".to_owned()),
        has_own_group: true,
        ..Settings::of_binary(binary()?, request.nodes)
    };
    let mut cluster = Cluster::prepare(settings)?;
    let listening: Vec<_> = cluster.numbers().map(|number| cluster.listen_address(number).parse()).collect();
    let gates = Gates::start(&listening.into_iter().collect::<Result<Vec<_>, _>>()?)?;
    let addresses: Vec<String> = gates.addresses().iter().map(ToString::to_string).collect();
    cluster.set_fronts(&addresses)?;
    let all: Vec<usize> = cluster.numbers().collect();
    cluster.restart_all(&all)?;
    let replica_count = REPLICAS.min(u32::try_from(request.nodes)?);
    let spec = TableSpec { partition_count: PARTITIONS, replica_count: Some(replica_count), ..TableSpec::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let table_id = runtime.block_on(async {
        let client = connect(&addresses).await?;
        client.create_table(TABLE, &spec).await
    })?;
    let shared = Shared {
        book: Mutex::new(Book::new(Random::new(request.seed))),
        addresses,
        table_id: u32::try_from(table_id)?,
        partition_count: PARTITIONS,
        replica_count: replica_count as usize,
        begin: OsClock.now(),
        think_max: request.think_max,
        must_stop: AtomicBool::new(false),
    };
    let pids = Arc::new(Mutex::new(vec![None; request.nodes]));
    let mut nemesis = Nemesis { cluster, gates, shared: Arc::new(shared), pids };
    all.iter().for_each(|number| nemesis.note_pid(*number));
    Ok(nemesis)
}

fn go_on(request: &Request, nemesis: &mut Nemesis) -> Result<Outcome> {
    let shared = Arc::clone(&nemesis.shared);
    let numbers = nemesis.cluster.numbers();
    let directories = numbers.map(|number| nemesis.cluster.data_directories(number)).collect();
    let watched = Watched { pids: Arc::clone(&nemesis.pids), directories, faults: Arc::default() };
    let watch = Watch::start(&shared, watched.clone())?;
    let judges = Judges::start(&shared)?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let clients = start_clients(request, &shared, &judges, &is_interrupted);
    let made = make_faults(request, nemesis, &watched.faults);
    nemesis.gates.open();
    let whole = made.and_then(|faults| {
        wait_until_whole(&shared)?;
        Ok(faults)
    });
    shared.must_stop.store(true, Ordering::Relaxed);
    let served = clients.join().map_err(|_| anyhow!("the clients' thread panicked"));
    let ledger = judges.finish();
    // Growth counts only where every promise was kept.
    let grows = watch.finish();
    if let Some(why) = shared.book().failure() {
        return Err(anyhow!("{why}"));
    }
    let faults = whole?;
    served??;
    nemesis.check_running()?;
    let remembered = read_everything(&shared, ledger?)?;
    let verified = nemesis.cluster.run(&["verify", TABLE, "--wait", "120"])?;
    ensure!(verified.contains("partition"), "verify printed {verified:?}");
    nemesis.cluster.stop()?;
    let (counts, served) = shared.book().totals();
    let is_interrupted = is_interrupted.load(Ordering::Relaxed);
    let missing = EVERY_WAY.iter().find(|way| !served.contains_key(*way));
    ensure!(is_interrupted || missing.is_none(), "nothing was served in a way that is to be tested: {missing:?}");
    Ok(Outcome { counts, faults, served, remembered, grows, is_interrupted })
}

/// Makes faults until the time is over, or each was made once. How many of each kind there were.
fn make_faults(request: &Request, nemesis: &mut Nemesis, lines: &Mutex<Vec<String>>) -> Result<BTreeMap<Kind, u64>> {
    let (mut plan, mut made) = (Plan::new(request.seed, request.nodes), BTreeMap::new());
    let shared = Arc::clone(&nemesis.shared);
    let is_over = || {
        let is_late = request.time.is_some_and(|time| shared.now() >= time.as_nanos() as u64);
        is_late || shared.must_stop() || shared.book().failure().is_some()
    };
    let begin = shared.now();
    nemesis.wait(Duration::from_secs(1));
    while !is_over() && (request.time.is_some() || !plan.has_drawn_all()) {
        let turn = (shared.now() - begin) / TURN.as_nanos() as u64;
        if request.time.is_some() && turn % 2 == 1 {
            nemesis.wait(Duration::from_millis(200));
            continue;
        }
        let step = plan.draw();
        lock(lines).push(step.to_string());
        nemesis.make(&step).with_context(|| format!("{step}, at {:.3} s", shared.now() as f64 / 1e9))?;
        *made.entry(step.kind).or_default() += 1;
        nemesis.wait(step.calm);
        nemesis.check_running()?;
    }
    Ok(made)
}

/// Clients on a thread of their own, which ends when they must stop and everything they asked is with the judges.
fn start_clients(
    request: &Request,
    shared: &Arc<Shared>,
    judges: &Judges,
    is_interrupted: &Arc<AtomicBool>,
) -> JoinHandle<Result<()>> {
    let (shared, inbox, count) = (Arc::clone(shared), judges.inbox(), request.clients);
    let (is_interrupted, mut random) = (Arc::clone(is_interrupted), Random::new(!request.seed));
    std::thread::spawn(move || {
        on_one_thread(async {
            let interrupted = spawn_local(end_on_interrupt(Arc::clone(&shared), is_interrupted));
            let mut workers = JoinSet::new();
            for number in 1..=count {
                workers.spawn_local(work(Arc::clone(&shared), number, random.fork()));
            }
            let is_last = Rc::new(Cell::new(false));
            let closer = spawn_local(close_all(Arc::clone(&shared), inbox, Rc::clone(&is_last)));
            while workers.join_next().await.transpose()?.is_some() {}
            shared.book().turn();
            is_last.set(true);
            closer.await?;
            interrupted.abort();
            Ok(())
        })
    })
}

/// The first Ctrl-C ends the run early, and everything is judged; the second one ends the process, and the nodes with it.
async fn end_on_interrupt(shared: Arc<Shared>, is_interrupted: Arc<AtomicBool>) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    eprintln!("interrupted: ending the faults, and judging what there is; once more ends at once");
    is_interrupted.store(true, Ordering::Relaxed);
    shared.must_stop.store(true, Ordering::Relaxed);
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(INTERRUPTED_TWICE);
    }
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

fn read_everything(shared: &Arc<Shared>, ledger: Ledger) -> Result<usize> {
    on_one_thread(check_ledger(shared, ledger)).context("what was acknowledged is not there in the end")
}
