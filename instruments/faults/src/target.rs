//! What a plan is carried out against.

use crate::control;
use crate::hog::Hog;
use crate::schedule::{Competitor, Event, Switch};
use anyhow::{Context as _, Result, bail};
use hedgerow_env::fault::Command;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A cluster whose nodes can be switched.
pub trait Target: Send + Sync + 'static {
    /// How many nodes there are; their numbers begin at 1.
    fn nodes(&self) -> u16;

    /// Whether it can do what `event` wants; the error says what is missing.
    fn check(&self, event: &Event) -> Result<()>;

    /// Sends a command to the node that it names, and waits until it has been obeyed.
    fn command(&self, command: &Command) -> impl Future<Output = Result<()>> + Send;

    /// Kills a node, as SIGKILL does, and waits until it is dead.
    fn kill(&self, node: u16) -> impl Future<Output = Result<()>> + Send;

    /// Starts a killed node again and waits until it serves.
    fn start(&self, node: u16) -> impl Future<Output = Result<()>> + Send;

    /// Starts a process that competes with a node.
    fn compete(&self, node: u16, competitor: &Competitor) -> Result<Hog>;
}

/// Control over the processes of a cluster's nodes. Both calls block.
pub trait Processes: Send + Sync + 'static {
    /// Whether this node's process is under control.
    fn has(&self, node: u16) -> bool;

    /// Kills a node's process (SIGKILL) and waits for its end.
    fn kill(&self, node: u16) -> Result<()>;

    /// Starts a killed node again and waits until it serves.
    fn start(&self, node: u16) -> Result<()>;
}

/// A cluster that is reached over the network; with what is known of its processes and directories, everything can be done
/// to it.
pub struct Cluster {
    addresses: Vec<String>,
    processes: Option<Arc<dyn Processes>>,
    data: BTreeMap<u16, PathBuf>,
    hogs: Option<PathBuf>,
}

impl Cluster {
    /// A cluster by the addresses of its nodes, that of node 1 first. The nodes must have been started with faults allowed.
    pub fn new(addresses: Vec<String>) -> Self {
        Self { addresses, processes: None, data: BTreeMap::new(), hogs: None }
    }

    /// With control over its processes: nodes can be killed.
    pub fn with_processes(mut self, processes: Arc<dyn Processes>) -> Self {
        self.processes = Some(processes);
        self
    }

    /// With directories of this machine in which its nodes keep their data: their disks can be competed for.
    pub fn with_data(mut self, data: BTreeMap<u16, PathBuf>) -> Self {
        self.data = data;
        self
    }

    /// With the program `hedgerow`, whose hidden command `hog` competes. Its nodes must run on this machine.
    pub fn with_hogs(mut self, binary: PathBuf) -> Self {
        self.hogs = Some(binary);
        self
    }

    fn address(&self, node: u16) -> Result<&str> {
        let address = node.checked_sub(1).and_then(|index| self.addresses.get(usize::from(index)));
        address.map(String::as_str).with_context(|| format!("there is no node {node}"))
    }

    async fn with_process(&self, node: u16, act: fn(&dyn Processes, u16) -> Result<()>) -> Result<()> {
        let processes = self.processes.clone().context("the processes of the nodes are not under control")?;
        crate::run::blocking(move || act(processes.as_ref(), node)).await
    }
}

impl Target for Cluster {
    fn nodes(&self) -> u16 {
        u16::try_from(self.addresses.len()).unwrap_or(u16::MAX)
    }

    fn check(&self, event: &Event) -> Result<()> {
        let node = event.node().unwrap_or_default();
        match &event.switch {
            Switch::Stall | Switch::Slow(_) | Switch::Link(..) | Switch::Share(_) => {}
            Switch::Kill if self.processes.as_ref().is_some_and(|processes| processes.has(node)) => {}
            Switch::Kill => bail!("the process of node {node} is not known, so that it cannot be killed and started"),
            Switch::Compete(_) if self.hogs.is_none() => {
                bail!(
                    "a process can compete only with nodes of this machine, and it is not known that node {node} is one"
                )
            }
            Switch::Compete(Competitor::Disk { .. }) if !self.data.contains_key(&node) => {
                bail!("where node {node} keeps its data is not known")
            }
            Switch::Compete(_) => {}
        }
        Ok(())
    }

    async fn command(&self, command: &Command) -> Result<()> {
        let address = self.address(command.node)?;
        let argument = serde_json::to_string(command).context("writing the command")?;
        control::call(address, "fault", &argument, None).await?;
        Ok(())
    }

    async fn kill(&self, node: u16) -> Result<()> {
        self.with_process(node, |processes, node| processes.kill(node)).await
    }

    async fn start(&self, node: u16) -> Result<()> {
        self.with_process(node, |processes, node| processes.start(node)).await?;
        // Whoever only starts it does not know when it serves.
        control::wait_until_it_answers(self.address(node)?).await
    }

    fn compete(&self, node: u16, competitor: &Competitor) -> Result<Hog> {
        let binary = self.hogs.as_deref().context("the program that competes is not known")?;
        Hog::start(binary, competitor, self.data.get(&node).map(PathBuf::as_path))
    }
}
