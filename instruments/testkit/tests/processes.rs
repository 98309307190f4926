//! Nodes as real processes that are killed, frozen and starved of disk while clients write: nothing acknowledged is lost,
//! nothing is applied twice, and a node that cannot go on says why and stops.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes and threads")]

#[path = "processes/load.rs"]
mod load;

use hedgerow_testkit::{Cluster, DataPlace, Settings};
use load::{Record, Writers};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Acknowledged writes before, during and after each fault.
const STEP: u64 = 300;
/// What `hedgerow serve` documents for a node whose storage failed.
const STORAGE_EXIT_CODE: i32 = 6;
/// Large enough to start on, small enough to fill: each of the two logs takes whole segments of 64 MiB.
const SMALL_DISK_SIZE: u64 = 400 << 20;
/// More than what the log keeps ready and a compaction take of what is freed, and the watermark.
const BALLAST_SIZE: usize = 150 << 20;
/// Rows written to a cluster with small disks before giving up.
const FILL_ROWS_MAX: u64 = 20_000;
/// Bytes of one value while filling a disk.
const FILL_VALUE_SIZE: usize = 64 << 10;

/// Each test has a cluster of its own, but two cores carry only one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster of three that prints what its nodes said if the test fails.
struct Watched(Cluster);

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.output());
        }
    }
}

fn three() -> Watched {
    Watched(Cluster::start(3).unwrap())
}

/// Checks the whole record while each node in turn is down, so that the others alone must have everything.
fn verify_without_each(cluster: &mut Cluster, record: &Record) {
    for down in 1..=3 {
        cluster.kill(down).unwrap();
        load::verify(&cluster.addresses(), record);
        cluster.restart(down).unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_the_kill_of_each_node_in_turn() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    for victim in 1..=3 {
        load.wait_for_more(STEP);
        cluster.kill(victim).unwrap();
        load.wait_for_more(STEP);
        cluster.restart(victim).unwrap();
    }
    load.wait_for_more(STEP);
    let record = load.stop();
    load::verify(&cluster.addresses(), &record);
    verify_without_each(cluster, &record);
}

#[test]
fn acknowledged_writes_survive_the_kill_of_all_nodes_at_once() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    load.wait_for_more(STEP);
    for victim in 1..=3 {
        cluster.kill(victim).unwrap();
    }
    cluster.restart_all(&[1, 2, 3]).unwrap();
    load.wait_for_more(STEP);
    let record = load.stop();
    load::verify(&cluster.addresses(), &record);
}

#[test]
fn a_frozen_node_stops_nobody_and_comes_back_with_no_stale_answer() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    for victim in 1..=3 {
        load.wait_for_more(STEP);
        cluster.node(victim).unwrap().pause().unwrap();
        load.wait_for_more(STEP);
        cluster.node(victim).unwrap().resume().unwrap();
    }
    load.wait_for_more(STEP);
    let record = load.stop();
    load::verify(&cluster.addresses(), &record);
}

#[test]
fn a_node_that_is_asked_to_stop_ends_well_and_comes_back() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    load.wait_for_more(STEP);
    let status = cluster.terminate(2).unwrap();
    assert!(status.success(), "{status}:\n{}", cluster.output());
    load.wait_for_more(STEP);
    cluster.restart(2).unwrap();
    load.wait_for_more(STEP);
    let record = load.stop();
    verify_without_each(cluster, &record);
}

/// Whether a node has a log in its second data directory.
fn has_second_log(cluster: &Cluster, number: usize) -> bool {
    let log = cluster.data_directories(number)[1].join("log");
    std::fs::read_dir(log).is_ok_and(|mut names| names.next().is_some())
}

/// Each node in turn gets one log for both of its data directories, and two again, after a kill and after a stop; the first start with the
/// other layout is killed somewhere on its way.
#[test]
fn d3l_nodes_change_the_layout_of_their_logs_under_load_and_lose_nothing() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    for (round, layout) in (0..).zip(["node", "disk", "node"]) {
        for victim in 1..=3 {
            load.wait_for_more(STEP);
            if (round + victim) % 2 == 0 {
                cluster.kill(victim).unwrap();
            } else {
                assert!(cluster.terminate(victim).unwrap().success());
            }
            cluster.set_further_config(victim, &format!("[log]\nlayout = {layout:?}\n")).unwrap();
            cluster.spawn(victim).unwrap();
            std::thread::sleep(Duration::from_millis(15 * (round as u64 * 3 + victim as u64)));
            cluster.kill(victim).unwrap();
            cluster.restart(victim).unwrap();
            assert_eq!(has_second_log(cluster, victim), layout == "disk", "node {victim}");
        }
    }
    load.wait_for_more(STEP);
    let record = load.stop();
    load::verify(&cluster.addresses(), &record);
    let status = cluster.run(&["status"]).unwrap();
    assert!(status.contains("one log for several data directories (log.layout = node)"), "{status}");
    verify_without_each(cluster, &record);
}

/// A stop that was decided: with the code that says why, no panic, no signal.
fn assert_clean_stop(status: ExitStatus, output: &str) {
    assert_eq!(status.code(), Some(STORAGE_EXIT_CODE), "{status}:\n{output}");
    assert!(!output.contains("panicked at"), "{output}");
}

/// Fills the disks of nodes at `places`, with `ballast` bytes of somebody else's on each small one. Reads and deletes go on,
/// and when the ballast is gone writes do too. Nobody ends.
fn fill_and_free(places: [DataPlace; 3], ballast: usize) {
    let _turn = alone();
    let mut watched = Watched(Cluster::prepare(Settings::under_test(&places).unwrap()).unwrap());
    let cluster = &mut watched.0;
    cluster.restart_all(&[1, 2, 3]).unwrap();
    let addresses: Vec<_> = cluster.addresses().into_iter().map(str::to_owned).collect();
    let small = (1..=3).filter(|number| places[number - 1] != DataPlace::Folder);
    let ballasts: Vec<_> = small
        .map(|number| {
            let disk = cluster.data_directories(number)[0].parent().unwrap().to_path_buf();
            // The mount is one that only the node sees.
            let seen = format!("/proc/{}/root{}/ballast", cluster.node(number).unwrap().id(), disk.display());
            std::fs::write(&seen, vec![7; ballast]).unwrap();
            seen
        })
        .collect();
    let rows = load::fill(&addresses, FILL_VALUE_SIZE, FILL_ROWS_MAX);
    load::read_filled(&addresses, FILL_VALUE_SIZE, 0..rows);
    for number in 1..=3 {
        assert!(cluster.node(number).unwrap().is_running().unwrap(), "node {number} has ended");
    }
    ballasts.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    load::wait_until_writable(&addresses);
    load::read_filled(&addresses, FILL_VALUE_SIZE, 1..rows);
    let load = Writers::start(&cluster.addresses());
    load.wait_for_more(STEP);
    let record = load.stop();
    load::verify(&cluster.addresses(), &record);
    for number in 1..=3 {
        assert!(cluster.node(number).unwrap().is_running().unwrap(), "node {number} has ended");
    }
}

#[test]
fn n1_three_full_disks_end_no_node_and_take_data_again() {
    fill_and_free([DataPlace::SmallDisk(SMALL_DISK_SIZE); 3], BALLAST_SIZE);
}

#[test]
fn n1_two_full_disks_of_three_end_no_node_and_take_data_again() {
    fill_and_free(
        [DataPlace::Folder, DataPlace::SmallDisk(SMALL_DISK_SIZE), DataPlace::SmallDisk(SMALL_DISK_SIZE)],
        BALLAST_SIZE,
    );
}

#[test]
fn a_read_only_data_directory_stops_its_node_with_a_clear_error_and_nobody_else() {
    let _turn = alone();
    let mut watched = three();
    let cluster = &mut watched.0;
    let load = Writers::start(&cluster.addresses());
    load.wait_for_more(STEP);
    cluster.terminate(3).unwrap();
    cluster.set_place(3, DataPlace::ReadOnlyFolder);
    cluster.spawn(3).unwrap();
    let status = cluster.wait_exit(3).unwrap();
    let output = cluster.node(3).unwrap().output();
    assert_clean_stop(status, &output);
    let directory = cluster.data_directories(3)[0].parent().unwrap().display().to_string();
    assert!(output.contains(&directory), "the error does not name the directory:\n{output}");
    let is_clear = output.to_lowercase().replace('-', " ").contains("read only");
    assert!(is_clear, "the error does not name its reason:\n{output}");

    load.wait_for_more(STEP);
    cluster.set_place(3, DataPlace::Folder);
    cluster.restart(3).unwrap();
    load.wait_for_more(STEP);
    let record = load.stop();
    verify_without_each(cluster, &record);
}

#[test]
fn a_load_of_two_generator_processes_is_counted_as_one() {
    let _turn = alone();
    let watched = three();
    let options = "--processes 2 --clients 4 --operations 400 --seconds 60 --warm-up 0 --rows 100 --no-results";
    let arguments: Vec<&str> = "bench mix".split(' ').chain(options.split(' ')).collect();
    let output = watched.0.run(&arguments).unwrap();
    // Of each operation: variant, operation, count, ..., errors, timeouts.
    let rows: Vec<Vec<&str>> = output.lines().map(|line| line.split_whitespace().collect()).collect();
    let of = |operation: &str| rows.iter().find(|row| row.get(1) == Some(&operation)).expect(&output);
    let counts = ["get", "set"].map(|operation| of(operation)[2].parse::<u64>().unwrap());
    assert_eq!(counts.iter().sum::<u64>(), 400, "{output}");
    assert!(counts.iter().all(|count| *count > 100), "{output}");
    assert!(["get", "set"].iter().all(|operation| of(operation).ends_with(&["0", "0"])), "{output}");
}
