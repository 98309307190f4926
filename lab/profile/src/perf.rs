//! Stacks with `perf record`: kernel and user code, unwound by the debugger's tables, because RocksDB and the C library keep
//! no frame pointers.

use crate::load::Window;
use crate::process::Process;
use crate::stacks::Stacks;
use anyhow::{Context as _, Result, bail, ensure};
use inferno::collapse::Collapse as _;
use inferno::collapse::perf::{Folder, Options};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Samples per second and core. Not a round number, so that it does not beat with periodic work.
const SAMPLES_PER_SECOND: u32 = 499;
/// Bytes of each stack that are kept for unwinding.
const STACK_SIZE: u32 = 32 << 10;
/// The end of a stack that could be unwound to its beginning, as `perf script` writes it.
const STACK_END: &str = "ffffffffffffffff [unknown]";

/// Samples all `processes` for `phase`. The raw data is at `data` meanwhile and removed in the end, because it is large.
pub(crate) fn sample(processes: &[Process], phase: Duration, data: &Path) -> Result<(Window, Stacks)> {
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "--freq", &SAMPLES_PER_SECOND.to_string()]);
    record.args(["--call-graph", &format!("dwarf,{STACK_SIZE}"), "--pid", &ids(processes), "--output"]).arg(data);
    let window = run_for(&mut record, phase)?.0;
    let stacks = fold(data).and_then(|folded| Stacks::of_perf(&folded, processes));
    fs::remove_file(data).context("removing perf's data")?;
    Ok((window, stacks?))
}

/// The ids of `processes` as perf takes them.
pub(crate) fn ids<'a>(processes: impl IntoIterator<Item = &'a Process>) -> String {
    processes.into_iter().map(|process| process.id.to_string()).collect::<Vec<_>>().join(",")
}

/// Runs one of perf's commands, which measures for as long as `sleep` runs; when that was, and its standard error.
pub(crate) fn run_for(command: &mut Command, phase: Duration) -> Result<(Window, String)> {
    command.args(["--", "sleep", &phase.as_secs_f64().to_string()]);
    let output = command.stdin(Stdio::null()).output().context("perf could not be started")?;
    let end = Instant::now();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "perf ended with {}: {}", output.status, error.trim());
    // It attaches before it starts the sleep, and what comes after that is short.
    Ok((Window { begin: end - phase, end }, error))
}

/// The samples of `data` as lines of the form `COMMAND-PROCESS;OUTER;...;INNER SAMPLES`.
fn fold(data: &Path) -> Result<String> {
    let mut script = Command::new("perf");
    // Finding out what was inlined takes perf a minute per thousand stacks.
    script.args(["script", "--no-inline", "--fields", "comm,pid,tid,time,event,ip,sym,dso", "--input"]).arg(data);
    script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = script.spawn().context("perf script could not be started")?;
    let stream = child.stdout.take().context("the output of perf script is a pipe")?;
    let mut text = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.context("reading from perf script")?;
        if !line.trim_start().starts_with(STACK_END) {
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
        }
    }
    let status = child.wait().context("waiting for perf script")?;
    if !status.success() {
        bail!("perf script ended with {status}");
    }
    collapse(&text)
}

fn collapse(text: &[u8]) -> Result<String> {
    let mut options = Options::default();
    options.include_pid = true;
    options.annotate_kernel = true;
    let mut folded = Vec::new();
    Folder::from(options).collapse(text, &mut folded).context("reading perf's samples")?;
    Ok(String::from_utf8_lossy(&folded).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_perf_become_folded_stacks() {
        let text = "\
node-1 28905/28920 11901.989671: cpu-clock:ppp:
	ffffffff8201c9c5 tcp_ack ([kernel.kallsyms])
	         104d3b9 std::io::read (/tmp/hedgerow)
	          fd0920 tokio::poll<T> (/tmp/hedgerow)

node-1 28905/28920 11901.999671: cpu-clock:ppp:
	ffffffff8201c9c5 tcp_ack ([kernel.kallsyms])
	         104d3b9 std::io::read (/tmp/hedgerow)
	          fd0920 tokio::poll<T> (/tmp/hedgerow)

";
        let folded = collapse(text.as_bytes()).unwrap();
        assert_eq!(folded, "node-1-28905;tokio::poll<T>;std::io::read;tcp_ack_[k] 2\n");
    }
}
