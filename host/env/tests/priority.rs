//! A preferred thread is one only while it is wanted, and it alone; one that gives way does so for good.
#![allow(clippy::disallowed_methods, reason = "a test")]

use hedgerow_env::os::{PreferredThread, give_way};
use std::fs;
use std::process::{Command, Stdio};

/// The niceness of a preferred thread.
const PREFERRED: i32 = -15;

/// The niceness of the calling thread, as the system shows it.
fn niceness() -> i32 {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux shows it");
    let fields = stat.rsplit_once(')').expect("a name in brackets").1;
    fields.split_whitespace().nth(16).expect("a niceness").parse().expect("a number")
}

/// Whether a process may have the niceness of a preferred thread here, as the system's own tool finds out.
fn may_be_preferred(before: i32) -> bool {
    let mut command = Command::new("nice");
    // The inner one prints what the outer one could do.
    command.args(["-n", &(PREFERRED - before).to_string(), "nice"]).stderr(Stdio::null());
    let printed = String::from_utf8(command.output().expect("coreutils").stdout).expect("a number");
    printed.trim().parse::<i32>().expect("a number") == PREFERRED
}

#[test]
fn it_ends_with_the_guard_and_concerns_one_thread() {
    let before = niceness();
    let may_be_preferred = may_be_preferred(before);
    let preferred = PreferredThread::new();
    assert_eq!(preferred.is_some(), may_be_preferred, "niceness {before}");
    assert_eq!(niceness() < before, preferred.is_some());
    let other = std::thread::spawn(move || drop(preferred));
    other.join().expect("no panic");
    assert_eq!(niceness(), before);
}

#[test]
fn giving_way_is_for_good_and_concerns_one_thread() {
    let before = niceness();
    let background = std::thread::spawn(|| {
        give_way();
        let once = niceness();
        give_way();
        (once, niceness())
    });
    let (once, twice) = background.join().expect("no panic");
    assert!(once == 10.max(before) && twice == once, "{before} {once} {twice}");
    assert_eq!(niceness(), before);
}
