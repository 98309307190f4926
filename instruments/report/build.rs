//! Tells the crate which commit it is built on, so that every figure can be traced to its code.
#![allow(clippy::disallowed_methods, reason = "a build script asks the file system")]

use std::path::Path;
use std::process::Command;

fn main() {
    // The log of the branch grows with every commit and switch. Outside a checkout there is none, and no commit.
    let log = Path::new("../../.git/logs/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
        println!("cargo::rustc-env=HEDGEROW_COMMIT={}", commit().unwrap_or_default());
    }
}

fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
