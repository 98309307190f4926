//! Nodes whose processes somebody else started, by their process ids: killed, and started again with the same command.
#![allow(unsafe_code, reason = "the standard library sends no signal to a process that is not its child")]
#![allow(clippy::disallowed_methods, reason = "it reads what the kernel tells of processes, and waits for their end")]

use crate::target::Processes;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often it is looked whether a killed process is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often at most.
const LOOKS_MAX: u32 = 2_000;

/// `hedgerow serve` processes of this machine.
#[derive(Debug)]
pub struct Pids {
    nodes: Mutex<BTreeMap<u16, Process>>,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    /// What it takes to start it again; known while it is dead.
    command: Option<Command>,
    /// Where this process has started it, so that its end is waited for.
    child: Option<Child>,
}

impl Pids {
    /// Processes by node. Refuses what is no `hedgerow serve`, so that a mistyped number kills nobody else.
    pub fn new(pids: &BTreeMap<u16, u32>) -> Result<Self> {
        for (node, pid) in pids {
            let is_serve = words(*pid, "cmdline")?.iter().any(|word| word == "serve");
            ensure!(is_serve, "process {pid}, given for node {node}, is no `hedgerow serve`");
        }
        let process = |(node, pid): (&u16, &u32)| (*node, Process { pid: *pid, command: None, child: None });
        Ok(Self { nodes: Mutex::new(pids.iter().map(process).collect()) })
    }

    fn with<T>(&self, node: u16, act: impl FnOnce(&mut Process) -> Result<T>) -> Result<T> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        act(nodes.get_mut(&node).with_context(|| format!("the process of node {node} is not known"))?)
    }
}

impl Processes for Pids {
    fn has(&self, node: u16) -> bool {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&node)
    }

    fn kill(&self, node: u16) -> Result<()> {
        self.with(node, |process| {
            process.command = Some(command_of(process.pid)?);
            kill(process.pid)?;
            if let Some(mut child) = process.child.take() {
                child.wait().context("waiting for a killed node")?;
                return Ok(());
            }
            for _ in 0..LOOKS_MAX {
                if has_ended(process.pid) {
                    return Ok(());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            bail!("process {} still runs although it was killed", process.pid)
        })
    }

    fn start(&self, node: u16) -> Result<()> {
        self.with(node, |process| {
            let mut command = process.command.take().with_context(|| format!("node {node} was not killed before"))?;
            let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
            process.pid = child.id();
            process.child = Some(child);
            Ok(())
        })
    }
}

fn kill(pid: u32) -> Result<()> {
    let number = libc::pid_t::try_from(pid).context("a process id is too large")?;
    // SAFETY: the call takes plain numbers.
    let status = unsafe { libc::kill(number, libc::SIGKILL) };
    let result = if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    result.with_context(|| format!("killing process {pid}"))
}

/// Whether a process is gone, or only its entry waits for its parent.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain anything but ends at the last bracket.
    stat.rsplit_once(')').is_none_or(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

/// The command of a running process, with its environment, directory and output.
fn command_of(pid: u32) -> Result<Command> {
    let context = |what: &str| format!("reading the {what} of process {pid}");
    let link = |what: &str| fs::read_link(format!("/proc/{pid}/{what}")).with_context(|| context(what));
    let mut command = Command::new(link("exe")?);
    command.args(words(pid, "cmdline")?.into_iter().skip(1)).current_dir(link("cwd")?);
    command.env_clear();
    for word in words(pid, "environ")? {
        let bytes = word.into_vec();
        if let Some(at) = bytes.iter().position(|byte| *byte == b'=') {
            command.env(OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec()));
        }
    }
    let output = |number: u8| {
        let file = File::options().append(true).open(PathBuf::from(format!("/proc/{pid}/fd/{number}")));
        file.map_or_else(|_| Stdio::null(), Stdio::from)
    };
    command.stdin(Stdio::null()).stdout(output(1)).stderr(output(2));
    // An interrupt at the terminal is meant for the plan, not for the node.
    command.process_group(0);
    Ok(command)
}

/// What the kernel tells of a process as words that end with a zero byte.
fn words(pid: u32, what: &str) -> Result<Vec<OsString>> {
    let bytes = fs::read(format!("/proc/{pid}/{what}")).with_context(|| format!("there is no process {pid}"))?;
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}
