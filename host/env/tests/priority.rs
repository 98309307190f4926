//! A preferred thread is one only while it is wanted, and it alone; one that gives way does so for good.
#![allow(clippy::disallowed_methods, reason = "a test")]

use hedgerow_env::os::{PreferredThread, give_way};
use std::fs;

/// The niceness of the calling thread, as the system shows it.
fn niceness() -> i32 {
    let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux shows it");
    let fields = stat.rsplit_once(')').expect("a name in brackets").1;
    fields.split_whitespace().nth(16).expect("a niceness").parse().expect("a number")
}

#[test]
fn it_ends_with_the_guard_and_concerns_one_thread() {
    let before = niceness();
    let Some(preferred) = PreferredThread::new() else {
        // Whoever may not raise priorities goes on as before.
        assert_eq!(niceness(), before);
        return;
    };
    assert!(niceness() < before);
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
