//! Three `hedgerow serve` processes in a temporary directory, killed and started again.

use crate::files;
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

const NODE_COUNT: u16 = 3;

/// The cluster. Dropping it kills its processes and removes its data.
pub(crate) struct Cluster {
    binary: PathBuf,
    directory: tempfile::TempDir,
    addresses: Vec<String>,
    nodes: Vec<Child>,
}

impl Cluster {
    /// Starts the processes and waits until all of them serve.
    pub(crate) async fn start() -> Result<Self> {
        let binary = std::env::current_exe().context("finding this binary")?;
        let directory = tempfile::Builder::new().prefix("hedgerow-demo-").tempdir()?;
        let addresses = free_addresses()?;
        let mut cluster = Self { binary, directory, addresses, nodes: Vec::new() };
        for node in 1..=NODE_COUNT {
            files::replace(&cluster.config(node), cluster.config_text(node).as_bytes())?;
            let child = cluster.spawn(node)?;
            cluster.nodes.push(child);
        }
        for node in 1..=NODE_COUNT {
            cluster.wait_until_ready(node).await?;
        }
        Ok(cluster)
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, node: u16) -> Result<()> {
        let child = &mut self.nodes[usize::from(node) - 1];
        child.kill().context("killing a node")?;
        child.wait().context("waiting for a killed node")?;
        Ok(())
    }

    pub(crate) async fn restart(&mut self, node: u16) -> Result<()> {
        self.nodes[usize::from(node) - 1] = self.spawn(node)?;
        self.wait_until_ready(node).await
    }

    /// Asks every node to stop and waits for it.
    pub(crate) fn stop(mut self) -> Result<()> {
        for child in &mut self.nodes {
            terminate(child.id());
        }
        for child in &mut self.nodes {
            let status = child.wait().context("waiting for a node to stop")?;
            ensure!(status.success(), "a node stopped with {status}");
        }
        self.nodes.clear();
        Ok(())
    }

    fn config(&self, node: u16) -> PathBuf {
        self.directory.path().join(format!("node{node}.toml"))
    }

    fn config_text(&self, node: u16) -> String {
        let data = self.directory.path().join(format!("node{node}"));
        let mut text = format!("node = {node}\ndata = [{:?}]\n", data.display().to_string());
        for (number, address) in (1..).zip(&self.addresses) {
            text += &format!("\n[[peers]]\nnode = {number}\naddress = \"{address}\"\n");
        }
        text
    }

    fn spawn(&self, node: u16) -> Result<Child> {
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(self.config(node)).stdin(Stdio::null()).stdout(Stdio::piped());
        // The demonstration talks; its nodes only when something is wrong.
        command.env("HEDGEROW_LOG", std::env::var("HEDGEROW_LOG").unwrap_or_else(|_| "error".to_owned()));
        command.spawn().with_context(|| format!("starting node {node}"))
    }

    /// Waits for the line with which a node says that it serves.
    async fn wait_until_ready(&mut self, node: u16) -> Result<()> {
        let child = &mut self.nodes[usize::from(node) - 1];
        let stdout = child.stdout.take().context("a node without standard output")?;
        let line = crate::runtime::blocking(move || first_line(stdout)).await?;
        ensure!(line.starts_with("ready:"), "node {node} did not start; its errors are above");
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.nodes {
            // A node that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn first_line(stdout: ChildStdout) -> String {
    let mut line = String::new();
    // An end without a line is an empty line, which the caller refuses.
    let _ = BufReader::new(stdout).read_line(&mut line);
    line
}

/// Addresses that nobody listens on now.
fn free_addresses() -> Result<Vec<String>> {
    let listeners = (0..NODE_COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

#[allow(unsafe_code, reason = "a signal to a child process of ours")]
fn terminate(process: u32) {
    // SAFETY: `kill` reads its two arguments and nothing else; the process is a child that has not been waited for.
    unsafe { libc::kill(process as libc::pid_t, libc::SIGTERM) };
}
