//! Every node in turn is stopped and started again while clients write and read at every level: nobody sees an error.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes and threads")]

use hedgerow_client::{Client, ClientOptions, ReadOptions, ReplicaRead, Session, Table, TableSpec};
use hedgerow_testkit::Cluster;
use hedgerow_types::ReadLevel;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than all that a stop and a start take of a cluster, however busy the machine is: only what nobody answers at all, or
/// answers with an error, fails.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests of each client that end between two restarts.
const STEP: u64 = 100;
const KEY_COUNT: u64 = 64;
/// What clients ask for, each of them one of these; `None` writes.
const LEVELS: [Option<ReadLevel>; 6] = [
    None,
    None,
    Some(ReadLevel::Linearizable),
    Some(ReadLevel::Session),
    Some(ReadLevel::Bounded(Duration::from_secs(60))),
    Some(ReadLevel::Eventual),
];

/// What one client has seen.
#[derive(Default)]
struct Seen {
    count: AtomicU64,
    errors: Mutex<Vec<String>>,
    took: Mutex<Vec<Duration>>,
}

/// Asks until it is told to stop.
async fn ask(table: Table, level: Option<ReadLevel>, seen: Arc<Seen>, must_stop: Arc<AtomicBool>) {
    let table = table.reading(ReadOptions { level, mode: ReplicaRead::LeaderAndFollower, ..ReadOptions::default() });
    for number in 0.. {
        if must_stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("key-{}", number % KEY_COUNT);
        let begin = Instant::now();
        let result = match level {
            None => table.set(&key, "", number.to_string()).await.map(|_| true),
            Some(_) => table.get(&key, "").await.map(|value| value.is_some()),
        };
        seen.took.lock().unwrap().push(begin.elapsed());
        match result {
            Ok(true) => {}
            Ok(false) => seen.errors.lock().unwrap().push(format!("request {number} of {level:?}: {key} is gone")),
            Err(error) => seen.errors.lock().unwrap().push(format!("request {number} of {level:?}: {error}")),
        }
        seen.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes a table and has a client for each level ask it, until they are told to stop. Every client goes on in a session that wrote
/// all keys: without one, a replica that has not applied them yet may say at the levels below linearizable that there is none.
async fn load(addresses: Vec<String>, all: [Arc<Seen>; LEVELS.len()], must_stop: Arc<AtomicBool>) {
    let options = ClientOptions { operation_timeout: OPERATION_TIMEOUT, ..ClientOptions::default() };
    let client = Client::connect_with(&addresses, options).await.unwrap();
    client.create_table("t", &TableSpec { if_not_exists: true, ..TableSpec::default() }).await.unwrap();
    let session = client.session();
    let table = client.open_table("t").await.unwrap().in_session(&session);
    for key in 0..KEY_COUNT {
        table.set(format!("key-{key}"), "", "0").await.unwrap();
    }
    let ask = |(level, seen)| {
        let table = table.in_session(&Session::from_token(session.token()));
        tokio::spawn(ask(table, level, seen, Arc::clone(&must_stop)))
    };
    for client in LEVELS.into_iter().zip(all).map(ask).collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

/// Waits until every client has ended [`STEP`] more requests. What hangs is ended by the requests' own deadlines.
fn wait_for_step(all: &[Arc<Seen>], load: &JoinHandle<()>) {
    let count = |seen: &Arc<Seen>| seen.count.load(Ordering::Relaxed);
    let goals: Vec<u64> = all.iter().map(|seen| count(seen) + STEP).collect();
    while all.iter().zip(&goals).any(|(seen, goal)| count(seen) < *goal) {
        assert!(!load.is_finished(), "a client panicked");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn r11_a_rolling_restart_under_load_fails_nothing() {
    let mut cluster = Cluster::start(3).unwrap();
    let addresses: Vec<String> = cluster.addresses().iter().map(|address| (*address).to_owned()).collect();
    let must_stop = Arc::new(AtomicBool::new(false));
    let all = LEVELS.map(|_| Arc::new(Seen::default()));
    let running = load(addresses, all.clone(), Arc::clone(&must_stop));
    let running = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(running);
    });
    wait_for_step(&all, &running);
    for node in cluster.numbers() {
        let status = cluster.terminate(node).unwrap();
        assert!(status.success(), "{status}:\n{}", cluster.output());
        wait_for_step(&all, &running);
        cluster.restart(node).unwrap();
        wait_for_step(&all, &running);
    }
    must_stop.store(true, Ordering::Relaxed);
    running.join().unwrap();
    for (level, seen) in LEVELS.iter().zip(&all) {
        let mut took = seen.took.lock().unwrap();
        took.sort_unstable();
        println!("{level:?}: {} requests, p99.9 {:?}", took.len(), took[took.len() * 999 / 1_000]);
        let errors = seen.errors.lock().unwrap();
        assert!(errors.is_empty(), "{} errors:\n{}\n{}", errors.len(), errors.join("\n"), cluster.output());
    }
}
