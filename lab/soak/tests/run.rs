//! One run in which each kind of fault is made once: no promise is broken, and everything is there in the end.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that starts a process")]

use std::process::Command;

#[test]
fn each_fault_once_breaks_no_promise() {
    let output = Command::new(env!("CARGO_BIN_EXE_hedgerow-soak")).args(["--seed", "1"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    assert!(out.contains("soak: 1 passed, 0 failed"), "{out}{err}");
}
