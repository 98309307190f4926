//! The checker finds the mistakes that it is there for, and nothing where there is none. The short run of the real engine
//! and the real log is `./x crash`.
#![allow(clippy::disallowed_methods, reason = "a test that starts processes")]

use std::path::Path;
use std::process::{Command, Output};

fn run(scenario: &str, keep: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow-crash"));
    command.args(["--rounds", "5", "--samples", "100000", "--scenario", scenario, "--keep"]).arg(keep);
    command.output().expect("runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn care_passes_in_every_state() {
    let keep = tempfile::tempdir().expect("a directory");
    let output = run("flawless", keep.path());
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("crash: 1 passed, 0 failed"), "{}", text(&output));
}

fn assert_found(scenario: &str) -> (tempfile::TempDir, String) {
    let keep = tempfile::tempdir().expect("a directory");
    let output = run(scenario, keep.path());
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("crash: 0 passed, 1 failed"), "{text}");
    (keep, text)
}

#[test]
fn a_file_that_was_not_synced_is_found() {
    assert_found("unsynced-file");
}

#[test]
fn a_name_that_was_not_synced_is_found() {
    assert_found("unsynced-name");
}

/// D1 in small: a leftover name leads to a live file.
#[test]
fn d1_a_shared_name_is_found_and_its_state_can_be_looked_at_again() {
    let (keep, text) = assert_found("shared-name");
    let again = text.lines().find_map(|line| line.split_once("hedgerow-crash ")).expect("how to see it again").1;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hedgerow-crash"));
    let output = command.args(again.split_whitespace()).arg("--keep").arg(keep.path()).output().expect("runs");
    let text = self::text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1 different states, 1 failed"), "{text}");
}
