//! Two clusters of processes, of which one is told what is written in the other: under kills at both sides nothing is lost and nothing
//! doubled, and what the operator is told is true.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that runs processes")]

use hedgerow_client::{Client, ClientOptions, ClientTls, Expiry, ScanOptions, Table};
use hedgerow_testkit::{Cluster, DataPlace, Settings};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Until everything is told once nobody writes any more.
const TOLD_MAX: Duration = Duration::from_secs(90);
/// Longer than an election beside other tests: no write may have an outcome that is not known.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

fn prepare(has_tls: bool) -> Cluster {
    let mut settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    settings.has_tls = has_tls;
    Cluster::prepare(settings).unwrap()
}

/// Two clusters that serve. The first one knows the second as `west`, and the second the first as `east`.
fn start(has_tls: bool) -> (Cluster, Cluster) {
    let (mut east, mut west) = (prepare(has_tls), prepare(has_tls));
    east.introduce("west", &west).unwrap();
    west.introduce("east", &east).unwrap();
    for cluster in [&mut west, &mut east] {
        let all: Vec<usize> = cluster.numbers().collect();
        cluster.restart_all(&all).unwrap();
    }
    (east, west)
}

fn run(cluster: &Cluster, line: &str) -> String {
    cluster.run(&line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{line}: {error:#}"))
}

fn options(cluster: &Cluster) -> ClientOptions {
    let tls = cluster.client_tls().map(|files| ClientTls::load(&files).unwrap());
    ClientOptions { operation_timeout: OPERATION_TIMEOUT, tls, ..ClientOptions::default() }
}

async fn client(cluster: &Cluster) -> Client {
    Client::connect_with(&cluster.addresses(), options(cluster)).await.unwrap()
}

type Rows = BTreeMap<(Vec<u8>, Vec<u8>), (Vec<u8>, bool)>;

/// Every row with its value, and whether it expires.
async fn rows(table: &Table) -> Rows {
    let mut scanner = table.scan_all(ScanOptions { with_time_to_live: true, ..ScanOptions::default() });
    let mut rows = Rows::new();
    while let Some(row) = scanner.next().await.unwrap() {
        let expires = row.time_to_live.is_some();
        rows.insert((row.hash_key.to_vec(), row.sort_key.to_vec()), (row.value.to_vec(), expires));
    }
    rows
}

/// What `table duplicate list` says of the one duplication there is. It ends as what it says has to end.
fn told(cluster: &Cluster, table: &str) -> Value {
    let (code, text, errors) = cluster.try_run(&["table", "duplicate", "list", table, "--output", "json"]).unwrap();
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
    assert_eq!(all.len(), 1, "{text}");
    let found = all.remove(0);
    let is_amiss =
        ["overrun", "stopped", "not known"].iter().any(|it| found["state"].as_str().unwrap().starts_with(it));
    assert_eq!(code, if is_amiss { 4 } else { 0 }, "{text}{errors}");
    found
}

/// Waits until partitions do not go on for this reason, which also `status` tells.
fn wait_for_stop(cluster: &Cluster, table: &str, reason: &str) -> Value {
    let is_it = |found: &Value| {
        found["stopped"].as_array().unwrap().iter().any(|it| it["reason"].as_str().unwrap().contains(reason))
    };
    let found =
        wait_for(cluster, table, |found| is_it(found) && found["state"].as_str().unwrap().starts_with("stopped"));
    let (_, _, errors) = cluster.try_run(&["status"]).unwrap();
    assert!(errors.contains(&format!("table {table} is not carried to")), "{errors}");
    found
}

fn wait_for(cluster: &Cluster, table: &str, what: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let found = told(cluster, table);
        if what(&found) {
            return found;
        }
        assert!(begun.elapsed() < TOLD_MAX, "{found}\n{}", cluster.output());
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn is_told(found: &Value) -> bool {
    found["state"] == "following" && found["entries_left"] == 0
}

/// Writes to the table `t` by a client and a thread of its own: see [`load`].
fn start_load(cluster: &Cluster, seed: u64, stop: &Arc<AtomicBool>) -> JoinHandle<Vec<i64>> {
    let (options, stop) = (options(cluster), Arc::clone(stop));
    let addresses: Vec<String> = cluster.addresses().into_iter().map(str::to_owned).collect();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect_with(&addresses, options).await.unwrap();
            load(client.open_table("t").await.unwrap(), seed, stop).await
        })
    })
}

/// Sets, deletes and adds, each key from one task, until it is told to stop. Returns how often each counter was added to.
async fn load(table: Table, seed: u64, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut added = vec![0; 8];
    let mut number = seed;
    while !stop.load(Ordering::Relaxed) {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("{seed}-{}", (number >> 33) % 500);
        match (number >> 20) % 10 {
            0 => table.del(&key, "s").await.unwrap(),
            1 => table.set_with_ttl(&key, "s", number.to_string(), Duration::from_secs(100_000)).await.unwrap(),
            2..4 => {
                let counter = (number >> 50) as usize % added.len();
                let sum = table.incr(format!("{seed}-counter-{counter}"), "c", 1, Expiry::Keep).await.unwrap();
                added[counter] += 1;
                assert_eq!(sum, added[counter]);
            }
            4 => {
                let rows = ["a", "b", "c"].map(|sort_key| (sort_key, format!("{number}-{sort_key}")));
                table.multi_set(&key, rows, None).await.unwrap();
            }
            _ => table.set(&key, "s", number.to_string()).await.unwrap(),
        }
    }
    added
}

#[tokio::test]
async fn a_table_is_carried_to_another_cluster_while_nodes_of_both_are_killed() {
    let (mut east, mut west) = start(true);
    run(&east, "table create t --partitions 4");
    run(&west, "table create copy --partitions 8");
    let here = client(&east).await.open_table("t").await.unwrap();
    for number in 0..2_000 {
        here.set(format!("before-{}", number / 4), format!("{}", number % 4), vec![b'v'; 100]).await.unwrap();
    }
    run(&east, "table duplicate add t west --as copy");
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = (1..=4).map(|seed| start_load(&east, seed, &stop)).collect();
    for victim in 1..=3 {
        std::thread::sleep(Duration::from_secs(2));
        east.kill(victim).unwrap();
        west.kill(1 + victim % 3).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        west.restart(1 + victim % 3).unwrap();
        east.restart(victim).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let added: Vec<Vec<i64>> = loads.into_iter().map(|load| load.join().unwrap()).collect();
    let found = wait_for(&east, "t", is_told);
    assert_eq!(
        (&found["cluster"], &found["table_there"], &found["lag_seconds"]),
        (&"west".into(), &"copy".into(), &0.into())
    );
    let there = client(&west).await.open_table("copy").await.unwrap();
    let (told, written) = (rows(&there).await, rows(&here).await);
    assert!(written.len() > 2_000, "{}", written.len());
    let differ: Vec<_> = written.iter().filter(|(key, row)| told.get(*key) != Some(row)).take(5).collect();
    assert!(differ.is_empty() && told.len() == written.len(), "{} and {}: {differ:?}", written.len(), told.len());
    for (seed, counters) in added.iter().enumerate() {
        for (counter, sum) in counters.iter().enumerate().filter(|(_, sum)| **sum > 0) {
            let key = format!("{}-counter-{counter}", seed + 1);
            assert_eq!(there.get(&key, "c").await.unwrap().unwrap(), sum.to_string(), "{key}");
        }
    }
    run(&east, "table duplicate remove t west");
    assert_eq!(run(&east, "table duplicate list --output json").trim(), "[]");
    here.set("later", "s", "v").await.unwrap();
    assert_eq!(there.get("later", "s").await.unwrap(), None);
    for (cluster, table) in [(&mut east, "t"), (&mut west, "copy")] {
        run(cluster, &format!("verify {table}"));
        cluster.stop().unwrap();
    }
}

#[tokio::test]
async fn two_clusters_that_both_write_become_equal() {
    let (mut east, mut west) = start(false);
    run(&east, "table create t --partitions 2");
    run(&west, "table create t --partitions 4");
    let (here, there) =
        (client(&east).await.open_table("t").await.unwrap(), client(&west).await.open_table("t").await.unwrap());
    here.set("old", "s", "east").await.unwrap();
    there.set("old", "s", "west").await.unwrap();
    run(&east, "table duplicate add t west");
    run(&west, "table duplicate add t east");
    // Both write the same rows.
    for number in 0..300 {
        let key = format!("row-{}", number % 20);
        let (a, b) =
            tokio::join!(here.set(&key, "s", format!("east-{number}")), there.set(&key, "s", format!("west-{number}")));
        a.unwrap();
        b.unwrap();
        if number % 7 == 0 {
            here.del(&key, "s").await.unwrap();
        }
    }
    wait_for(&east, "t", is_told);
    wait_for(&west, "t", is_told);
    wait_for(&east, "t", is_told);
    let (one, other) = (rows(&here).await, rows(&there).await);
    assert_eq!(one, other);
    assert!(one.len() > 10, "{one:?}");

    // Paused, nothing is carried, and nothing is lost by it.
    run(&east, "table duplicate pause t west");
    tokio::time::sleep(Duration::from_secs(3)).await;
    here.set("paused", "s", "v").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(there.get("paused", "s").await.unwrap(), None);
    let found = told(&east, "t");
    assert_eq!((&found["state"], &found["entries_left"]), (&"paused".into(), &1.into()));
    run(&east, "table duplicate start t west");
    wait_for(&east, "t", is_told);
    assert_eq!(there.get("paused", "s").await.unwrap().as_deref(), Some(&b"v"[..]));
    for cluster in [&mut east, &mut west] {
        cluster.stop().unwrap();
    }
}

#[tokio::test]
async fn a_journal_that_becomes_too_long_stops_no_write_and_is_begun_anew() {
    let (mut east, mut west) = start(false);
    run(&east, "table create t --partitions 2");
    run(&east, "table duplicate add t west --journal-limit 1MiB");
    // Nothing begins that cannot be told: to no table, or to one of another kind. That it was of another kind is not remembered.
    wait_for_stop(&east, "t", "in west: ");
    run(&west, "table create t --kind ordered");
    let found = wait_for_stop(&east, "t", "in west: table t is ordered, and has to be hash, as here");
    assert_eq!(found["state"], "stopped 2 of 2");
    run(&west, "table drop t --now");
    run(&west, "table create t");
    let here = client(&east).await.open_table("t").await.unwrap();
    for number in 0..20 {
        here.set(format!("row-{number}"), "s", "old").await.unwrap();
    }
    wait_for(&east, "t", is_told);
    for number in 1..=3 {
        west.kill(number).unwrap();
    }
    // Also where nobody writes.
    wait_for_stop(&east, "t", "in west: ");
    here.del("row-7", "s").await.unwrap();
    for number in 10..100 {
        here.set(format!("row-{number}"), "s", vec![b'v'; 50_000]).await.unwrap();
    }
    wait_for(&east, "t", |found| found["state"] == "overrun 2 of 2");
    let refused = east.run(&["table", "duplicate", "start", "t", "west"]).unwrap_err();
    assert!(format!("{refused:#}").contains("table duplicate start t west --copy"), "{refused:#}");
    west.restart_all(&[1, 2, 3]).unwrap();
    run(&east, "table duplicate start t west --copy");
    wait_for(&east, "t", is_told);
    let there = client(&west).await.open_table("t").await.unwrap();
    assert_eq!(rows(&there).await, rows(&here).await);
    // Another table of the name has been told nothing, and does not pass for the one before.
    run(&west, "table drop t --now");
    run(&west, "table create t");
    wait_for_stop(&east, "t", "`hedgerow table duplicate start t west --copy`");
    here.set("row-1", "s", "new").await.unwrap();
    wait_for(&east, "t", |found| found["entries_left"] == 1);
    // Their journals would be kept for nobody.
    let refused = east.run(&["table", "set-option", "t", "duplicate.west", ""]).unwrap_err();
    assert!(format!("{refused:#}").contains("`hedgerow table duplicate remove` ends a duplication"), "{refused:#}");
    run(&east, "table duplicate start t west --copy");
    wait_for(&east, "t", is_told);
    let there = client(&west).await.open_table("t").await.unwrap();
    assert_eq!(rows(&there).await, rows(&here).await);
    for cluster in [&mut east, &mut west] {
        cluster.stop().unwrap();
    }
}

#[tokio::test]
async fn what_nobody_carries_is_named() {
    let (mut east, mut west) = (prepare(false), prepare(false));
    // One of the nodes has not heard of the other cluster.
    east.introduce("west", &west).unwrap();
    east.set_further_config(2, "").unwrap();
    for cluster in [&mut west, &mut east] {
        cluster.restart_all(&[1, 2, 3]).unwrap();
        run(cluster, "table create t --partitions 8");
    }
    let refused = east.run(&["table", "duplicate", "add", "t", "north"]).unwrap_err();
    assert!(format!("{refused:#}").contains("no node that answers has a section [clusters.north]"), "{refused:#}");
    let (code, _, errors) = east.try_run(&["table", "duplicate", "add", "t", "west"]).unwrap();
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("these nodes will not carry what they lead: 2"), "{errors}");
    for partition in 0..8 {
        run(&east, &format!("table transfer t {partition} {}", 2 + partition % 2));
    }
    let found = wait_for(&east, "t", |found| found["state"] == "stopped 4 of 8");
    let stopped = found["stopped"].as_array().unwrap();
    assert_eq!(stopped.len(), 1, "{found}");
    assert_eq!((&stopped[0]["node"], &stopped[0]["partitions"]), (&2.into(), &4.into()));
    assert_eq!(stopped[0]["reason"], "this node's configuration has no [clusters.west]");
    assert!(east.output().contains("what this node leads of tables is not carried"), "{}", east.output());
    let counted = run(&east, "counters --over 1 --output json");
    assert!(counted.contains("\"duplication.stopped.west.t\":4"), "{counted}");
    for cluster in [&mut east, &mut west] {
        cluster.stop().unwrap();
    }
}
