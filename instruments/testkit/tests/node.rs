//! A child process is followed to its end: what it prints, whether it is ready, and that it never outlives its owner.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::Node;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Far more than any step needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Node {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Node::spawn(command).unwrap()
}

/// The id of a process that runs `script` after having printed it.
fn ready_with_id(script: &str) -> (Node, String) {
    let node = shell(&format!("echo $$; echo 'ready: now'; {script}"));
    node.wait_ready(LIMIT).unwrap();
    let id = node.output().lines().next().unwrap().to_owned();
    (node, id)
}

fn state(id: &str) -> Option<String> {
    let status = std::fs::read_to_string(Path::new("/proc").join(id).join("status")).ok()?;
    status.lines().find(|line| line.starts_with("State:")).map(str::to_owned)
}

/// A signal arrives some time after it was sent.
fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}

#[test]
fn a_node_that_says_ready_is_ready() {
    let mut node = shell("echo starting >&2; echo 'ready: 127.0.0.1:1'; exec cat /dev/zero >/dev/null");
    node.wait_ready(LIMIT).unwrap();
    assert!(node.is_running().unwrap());
}

#[test]
fn a_node_that_ends_early_tells_why() {
    let mut node = shell("echo 'error: no disk' >&2; exit 7");
    let error = node.wait_ready(LIMIT).unwrap_err().to_string();
    assert!(error.contains("error: no disk"), "{error}");
    assert_eq!(node.wait_exit(LIMIT).unwrap().code(), Some(7));
    assert!(node.pause().is_err());
}

#[test]
fn a_node_that_never_gets_ready_is_given_up() {
    let node = shell("echo 'not ready:'; exec cat /dev/zero >/dev/null");
    assert!(node.wait_ready(Duration::from_millis(1)).is_err());
}

#[test]
fn a_killed_node_has_no_exit_code() {
    let (mut node, id) = ready_with_id("exec cat /dev/zero >/dev/null");
    assert_eq!(node.kill().unwrap().code(), None);
    assert_eq!(state(&id), None);
}

#[test]
fn a_node_that_is_asked_to_stop_can_tidy_up() {
    let mut node = shell("trap 'echo bye; exit 0' TERM; echo 'ready: now'; while :; do :; done");
    node.wait_ready(LIMIT).unwrap();
    assert_eq!(node.terminate(LIMIT).unwrap().code(), Some(0));
    assert!(node.output().ends_with("bye"));
}

#[test]
fn a_paused_node_is_frozen_until_it_is_resumed() {
    let (mut node, id) = ready_with_id("exec cat /dev/zero >/dev/null");
    node.pause().unwrap();
    until(|| state(&id).unwrap().contains("T (stopped)"));
    assert!(node.is_running().unwrap());
    node.resume().unwrap();
    until(|| !state(&id).unwrap().contains("T (stopped)"));
    drop(node);
    assert_eq!(state(&id), None);
}

#[test]
fn the_memory_of_a_process_can_be_asked_for() {
    // Eight megabytes that it holds when it is ready: nothing is starting any more, and what else a shell needs is less.
    let node = shell("held=$(head -c 8000000 /dev/zero | tr '\\0' x); echo 'ready: now'; while :; do :; done");
    node.wait_ready(LIMIT).unwrap();
    assert!((8_000_000..1 << 30).contains(&node.resident_bytes().unwrap()));
}

#[test]
fn a_dropped_node_is_gone() {
    let (node, id) = ready_with_id("trap '' TERM; exec cat /dev/zero >/dev/null");
    assert!(state(&id).is_some());
    drop(node);
    assert_eq!(state(&id), None);
}
