//! Which `hedgerow` binary is under test.

use anyhow::{Context, Result, ensure};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The binary that the tests start: the one that the environment variable `HEDGEROW_BIN` names, or else the one that
/// Cargo builds from this workspace with the profile of the running test. Building happens once per test process.
pub fn binary() -> Result<PathBuf> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(|| locate().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}

fn locate() -> Result<PathBuf> {
    if let Some(path) = env::var_os("HEDGEROW_BIN") {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "HEDGEROW_BIN names {}, which is no file", path.display());
        return Ok(path);
    }
    // A test runs from <target>/<profile>/deps, a program of the lab from the folder above.
    let test = env::current_exe().context("where this test runs from")?;
    let folder = test.parent().context("the test runs from outside a target folder")?;
    let above = folder.parent().context("the test runs from outside a target folder")?;
    let profile = if folder.ends_with("deps") { above } else { folder };
    build(profile)?;
    Ok(profile.join("hedgerow"))
}

fn build(profile: &Path) -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package", "hedgerow", "--target-dir"]).arg(profile.with_file_name(""));
    // As of now, not of the build: two checkouts may share a target folder.
    cargo.current_dir(env::var_os("CARGO_MANIFEST_DIR").context("the test was not started by cargo")?);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().context("running cargo build")?;
    ensure!(status.success(), "cargo build of the binary under test failed: {status}");
    Ok(())
}
