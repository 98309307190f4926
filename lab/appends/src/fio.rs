//! What the disk gives: `fio` writes 4 KiB, the least that a record takes on a disk, into a file that is there, and syncs after each write.
//! Each of its jobs has a file of its own.

use crate::figures::Figures;
use crate::{Durability, Shape, WARM_UP};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) fn run(shape: Shape, directory: &Path, durability: Durability, measured: Duration) -> Result<Figures> {
    let Shape::Writers(jobs) = shape else { bail!("fio knows no rounds") };
    let output = Command::new("fio")
        .args(["--name=append", "--rw=write", "--bs=4k", "--size=64m", "--overwrite=1", "--ioengine=psync"])
        .args(["--time_based", "--group_reporting", "--thread", "--output-format=json"])
        .arg(format!("--fdatasync={}", u8::from(durability == Durability::Fsync)))
        .arg(format!("--directory={}", directory.display()))
        .arg(format!("--numjobs={jobs}"))
        .arg(format!("--ramp_time={}", WARM_UP.as_secs()))
        .arg(format!("--runtime={}", measured.as_secs()))
        .output()
        .context("fio could not be started (its Debian package is called fio)")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).context("fio's answer")?;
    let job = &told["jobs"][0];
    let number = |value: &Value| value.as_f64().with_context(|| format!("fio's answer lacks a figure: {job}"));
    // A write takes microseconds where a sync follows, and fio gives no quantiles of their sum.
    let waits = match durability {
        Durability::Fsync => &job["sync"]["lat_ns"]["percentile"],
        Durability::Os => &job["write"]["clat_ns"]["percentile"],
    };
    Ok(Figures {
        per_second: number(&job["write"]["iops"])?,
        p50_us: number(&waits["50.000000"])? / 1e3,
        p99_us: number(&waits["99.000000"])? / 1e3,
    })
}
