//! One process under measurement: its CPU time from the kernel, and its own count of allocations.

use anyhow::{Context as _, Result, ensure};
use hedgerow_bench::cpu;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};

/// What a process does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Serves, as the node of this number.
    Node(usize),
    /// Sends requests; the generator may be several processes.
    Client,
}

impl Role {
    pub(crate) fn is_server(self) -> bool {
        matches!(self, Self::Node(_))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node {number}"),
            Self::Client => f.write_str("client"),
        }
    }
}

/// What a process has used since its start, or in between.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// CPU seconds outside the kernel.
    pub(crate) user_s: f64,
    /// CPU seconds in the kernel.
    pub(crate) system_s: f64,
    /// Allocations and growths of blocks by Rust code.
    pub(crate) allocations: u64,
    /// Bytes of these.
    pub(crate) bytes: u64,
}

impl Usage {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
            allocations: self.allocations - before.allocations,
            bytes: self.bytes - before.bytes,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            user_s: self.user_s + other.user_s,
            system_s: self.system_s + other.system_s,
            allocations: self.allocations + other.allocations,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A running process, with a connection to the thread in it that answers the profiler.
pub(crate) struct Process {
    pub(crate) role: Role,
    pub(crate) id: u32,
    connection: BufReader<UnixStream>,
}

impl Process {
    /// Fails if the process was built without the feature `profiling`.
    pub(crate) fn open(role: Role, id: u32) -> Result<Self> {
        let connect = || UnixStream::connect_addr(&SocketAddr::from_abstract_name(format!("hedgerow-profile-{id}"))?);
        let connection = connect().with_context(|| {
            format!("asking {role}: is the binary built with the feature `profiling`, as ./x profile does?")
        })?;
        Ok(Self { role, id, connection: BufReader::new(connection) })
    }

    /// Sends a request of one line; the reply's first line.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String> {
        let mut ask = || {
            self.connection.get_mut().write_all(format!("{request}\n").as_bytes())?;
            self.read_line()
        };
        let line = ask().with_context(|| format!("asking {} for {request}", self.role))?;
        ensure!(!line.is_empty(), "{} has no answer to: {request}", self.role);
        Ok(line)
    }

    /// The next line of a reply, with its end.
    pub(crate) fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.connection.read_line(&mut line)?;
        Ok(line)
    }

    pub(crate) fn usage(&mut self) -> Result<Usage> {
        let reply = self.ask("allocations")?;
        let (allocations, bytes) = reply.trim().split_once(' ').context("allocations: two numbers were expected")?;
        let (user_s, system_s) = cpu::parts_of_process(self.id).with_context(|| self.role.to_string())?;
        Ok(Usage { user_s, system_s, allocations: allocations.parse()?, bytes: bytes.parse()? })
    }
}

/// A process and its children, and theirs.
pub(crate) fn family(id: u32) -> Result<Vec<u32>> {
    let mut all = vec![id];
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        next += 1;
        // A child may end at any time, and some kernels do not tell children: then they are left out.
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_begins_with_its_eldest() {
        let own = std::process::id();
        assert_eq!(family(own).unwrap()[0], own);
    }

    #[test]
    fn a_process_without_the_feature_is_named() {
        let error = Process::open(Role::Node(2), std::process::id()).err().unwrap();
        assert!(error.to_string().contains("node 2") && error.to_string().contains("profiling"), "{error}");
    }
}
