//! A cluster of processes with one table, which runs only while it is measured.
#![allow(clippy::disallowed_methods, reason = "experiments start processes, wait for them and measure their files")]

use crate::clock::now;
use crate::experiment::Context;
use crate::read_counts::ReadCounts;
use anyhow::{Context as _, Result, ensure};
use hedgerow_bench::{Hedging, Label, Load, Measurement, ServerWork, cpu, prepare_with_rows};
use hedgerow_client::{Client, ClientOptions, ClientTls};
use hedgerow_env::fault::{Action, Command};
use hedgerow_faults::{Plan, Target as _, switches};
use hedgerow_report::Run;
use hedgerow_testkit::{Cluster, ROOT, Settings, USER};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long leaders may take to spread over the nodes: longer than a node waits before it hands a group to the replica that
/// should lead it.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// Time between two looks at the leaders.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
/// A spread is even if no node leads more groups than another by this number, and one for each so many that it leads.
const UNEVEN_MAX: u64 = 2;
const LEADERS_PER_UNEVEN: u64 = 8;

/// How long the nodes may take to come to rest, between two looks, and how much of a core all of them together use then.
const REST_MAX: Duration = Duration::from_secs(40);
const REST_LOOK: Duration = Duration::from_millis(500);
const RESTING_SHARE: f64 = 0.1;
/// Faults that are set and taken back by hand last as long as nobody does.
const FAULTS_LAST: Duration = Duration::from_secs(86_400);

/// The cluster.
pub(crate) struct Stage {
    cluster: Cluster,
}

impl Stage {
    /// A cluster that does not run yet.
    pub(crate) fn prepare(settings: Settings) -> Result<Self> {
        Ok(Self { cluster: Cluster::prepare(settings)? })
    }

    /// Has its nodes know another cluster by this name, from their next start on.
    pub(crate) fn introduce(&mut self, name: &str, other: &Self) -> Result<()> {
        self.cluster.introduce(name, &other.cluster)
    }

    /// Runs a command of `hedgerow` with this cluster. Returns what it printed.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.run(arguments)
    }

    /// The same, however it ends.
    pub(crate) fn try_command(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.try_run(arguments).map(|(_, out, _)| out)
    }

    /// Starts all nodes; how long it took until all of them serve.
    pub(crate) async fn start(&mut self) -> Result<Duration> {
        let began = now();
        let all: Vec<_> = self.cluster.numbers().collect();
        // Here, because processes end with the thread that starts them.
        for number in &all {
            self.cluster.spawn(*number)?;
        }
        let readiness = self.cluster.readiness(&all)?;
        tokio::task::spawn_blocking(move || readiness.wait()).await.context("waiting for the nodes")??;
        if self.cluster.settings().has_rights {
            self.cluster.run_as(ROOT, &["grant", USER, "read:*", "write:*", "admin:*", "monitor"])?;
        }
        Ok(now() - began)
    }

    /// Waits until leaders are spread evenly, so that no group moves during a measurement.
    pub(crate) async fn settle(&self) -> Result<()> {
        let client = self.client().await?;
        let began = now();
        loop {
            let status: Value = serde_json::from_str(&client.status_json().await?).context("the status is no JSON")?;
            let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
            let leaders: Vec<u64> = nodes.iter().filter_map(|node| node["leaders"].as_u64()).collect();
            if is_even(&leaders) {
                return Ok(());
            }
            ensure!(now() - began < SETTLE_MAX, "leaders are not spread after {SETTLE_MAX:?}; by node: {leaders:?}");
            tokio::time::sleep(SETTLE_INTERVAL).await;
        }
    }

    /// Kills all nodes; fails if one has ended by itself before. Killed, because a whole cluster that is asked to stop waits
    /// for somebody to hand its groups over to, and because the next start then includes a recovery.
    pub(crate) fn stop(&mut self) -> Result<()> {
        for number in self.cluster.numbers() {
            let node = self.cluster.node(number)?;
            ensure!(node.is_running()?, "node {number} has ended; it printed:\n{}", node.output());
            node.kill()?;
        }
        Ok(())
    }

    /// Kills one node.
    pub(crate) fn kill(&mut self, number: usize) -> Result<()> {
        self.cluster.kill(number)
    }

    /// Removes everything that a node which does not run has stored.
    pub(crate) fn wipe(&self, number: usize) -> Result<()> {
        for directory in self.cluster.data_directories(number) {
            fs::remove_dir_all(&directory).with_context(|| format!("wiping {}", directory.display()))?;
            fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        }
        Ok(())
    }

    /// Starts a node that does not run, and waits for nothing.
    pub(crate) fn spawn(&mut self, number: usize) -> Result<()> {
        self.cluster.spawn(number)
    }

    /// Makes the table of `load` with its rows; `what` names it where that fails.
    pub(crate) async fn write_rows(&self, load: &Load, what: impl Display) -> Result<()> {
        let load = Load { tls: self.cluster.client_tls(), ..load.clone() };
        let written = prepare_with_rows(&self.addresses(), &load, |_| ()).await;
        written.with_context(|| format!("writing the rows of {what}; the nodes printed:\n{}", self.output()))
    }

    /// One run of `load` as `variant`, with the CPU time of the nodes and the turn's seed; its histograms go into the
    /// turn's folder.
    pub(crate) async fn run(&mut self, context: &Context<'_>, variant: String, load: Load) -> Result<Run> {
        let tls = self.cluster.client_tls();
        let load = Load { seed: context.seed, server_processes: self.processes()?, tls, ..load };
        let begin_s = context.elapsed_s() + load.warm_up.as_secs_f64();
        let before = self.server_work(&load).await?;
        let measured = hedgerow_bench::run(&self.addresses(), &load, pending(), |_| ()).await;
        let mut measurement = measured.with_context(|| format!("{variant}; the nodes printed:\n{}", self.output()))?;
        if let (Some(before), Some(after)) = (before, self.server_work(&load).await?) {
            measurement.set_server_work(after.since(&before));
        }
        let label = Label { variant, repetition: context.repetition, workload: load.workload.name, begin_s };
        measurement.into_run(label, Some(context.folder))
    }

    /// As [`Stage::run`], while `plan` is carried out from the beginning of the warm-up on.
    pub(crate) async fn run_under(
        &mut self,
        context: &Context<'_>,
        variant: String,
        load: Load,
        plan: &Plan,
    ) -> Result<Run> {
        let target = Arc::new(hedgerow_faults::Cluster::new(self.addresses()));
        let lasts = load.warm_up + load.duration;
        let began_s = context.elapsed_s();
        let faults = hedgerow_faults::start(plan, &target, lasts, |_| ())?;
        let mut run = self.run(context, variant, load).await?;
        let report = tokio::task::spawn_blocking(move || faults.finish()).await.context("ending the faults")??;
        ensure!(report.failures.is_empty(), "the fault plan failed: {}", report.failures.join("; "));
        run.faults = report.marks_from(Duration::from_secs_f64((run.begin_s - began_s).max(0.0)));
        Ok(run)
    }

    /// One run of `load` of which nothing is kept.
    pub(crate) async fn measure(&mut self, context: &Context<'_>, load: Load) -> Result<Measurement> {
        let tls = self.cluster.client_tls();
        let load = Load { seed: context.seed, server_processes: self.processes()?, tls, ..load };
        let measured = hedgerow_bench::run(&self.addresses(), &load, pending(), |_| ()).await;
        measured.with_context(|| format!("a trial; the nodes printed:\n{}", self.output()))
    }

    /// What all nodes have done since they were started; `None` if that does not matter to `load`.
    async fn server_work(&self, load: &Load) -> Result<Option<ServerWork>> {
        if load.hedging == Hedging::default() {
            return Ok(None);
        }
        let mut work = ServerWork::default();
        for address in self.addresses() {
            let answer = hedgerow_faults::call(&address, "reads", "{}", None).await?;
            let told = ServerWork::parse(&answer).with_context(|| format!("what {address} says of reads"))?;
            work = work.and(&told);
        }
        Ok(Some(work))
    }

    /// A client of the cluster.
    pub(crate) async fn client(&self) -> Result<Client> {
        self.client_within(ClientOptions::default().operation_timeout).await
    }

    /// A client whose operations may take so long.
    pub(crate) async fn client_within(&self, operation_timeout: Duration) -> Result<Client> {
        let tls = self.cluster.client_tls().as_ref().map(ClientTls::load).transpose()?;
        let options = ClientOptions { tls, operation_timeout, ..ClientOptions::default() };
        let client = Client::connect_with(&self.addresses(), options).await;
        client.context("connecting to a cluster that is ready")
    }

    /// The numbers of the nodes with a partition's replicas: who leads, and who follows or learns. Waits until the node that
    /// is asked knows the leader: it may have heard of the partition only now.
    pub(crate) async fn replicas_of(&self, table: &str, partition: usize) -> Result<(u16, Vec<u16>)> {
        let client = self.client().await?;
        let began = now();
        let (leader, partition) = loop {
            let text = client.describe_table_json(table).await?;
            let described: Value = serde_json::from_str(&text).context("the description is no JSON")?;
            let partition = described["partitions"][partition].clone();
            let leader = partition["leader"].as_str().unwrap_or_default();
            let at = self.addresses().iter().position(|address| address == leader);
            if let Some(leader) = at.and_then(|at| u16::try_from(at + 1).ok()) {
                break (leader, partition);
            }
            ensure!(now() - began < SETTLE_MAX, "the partition has no leader after {SETTLE_MAX:?}");
            tokio::time::sleep(SETTLE_INTERVAL).await;
        };
        let replicas = partition["replicas"].as_array().map_or(&[][..], Vec::as_slice);
        let nodes = replicas.iter().filter_map(|replica| u16::try_from(replica["node"].as_u64()?).ok());
        Ok((leader, nodes.filter(|node| *node != leader).collect()))
    }

    /// Waits until so many read-only replicas serve each partition of `table`.
    pub(crate) async fn wait_for_learners(&self, table: &str, count: usize) -> Result<()> {
        let client = self.client().await?;
        let began = now();
        loop {
            let described: Value = serde_json::from_str(&client.describe_table_json(table).await?)?;
            let partitions = described["partitions"].as_array().map_or(&[][..], Vec::as_slice);
            let serves = |replica: &&Value| replica["role"] == "learner" && replica["state"] == "ok";
            let serving =
                |partition: &Value| partition["replicas"].as_array().map_or(0, |all| all.iter().filter(serves).count());
            if !partitions.is_empty() && partitions.iter().all(|partition| serving(partition) >= count) {
                return Ok(());
            }
            ensure!(now() - began < SETTLE_MAX, "{table} has not {count} read-only replicas after {SETTLE_MAX:?}");
            tokio::time::sleep(SETTLE_INTERVAL).await;
        }
    }

    /// Has all nodes make the faults of `plan` from now on, and none of those before. The plan's faults must be such that
    /// begin at once and last.
    pub(crate) async fn set_faults(&self, plan: &Plan) -> Result<()> {
        let target = hedgerow_faults::Cluster::new(self.addresses());
        let events = plan.schedule(target.nodes(), FAULTS_LAST);
        for node in 1..=target.nodes() {
            let action = Action::Set(switches(plan, node, events.iter()));
            target.command(&Command { node, action }).await.with_context(|| format!("the faults of node {node}"))?;
        }
        Ok(())
    }

    /// What all nodes have counted of reads since they were started.
    pub(crate) async fn read_counts(&self) -> Result<ReadCounts> {
        let mut counts = ReadCounts::default();
        for address in self.addresses() {
            let answer = hedgerow_faults::call(&address, "reads", "{}", None).await?;
            counts = counts.and(ReadCounts::parse(&answer).with_context(|| format!("what {address} says of reads"))?);
        }
        Ok(counts)
    }

    /// Waits until the nodes have done what they still had to do, such as writing tables of the storage engine anew. A node
    /// that goes on for very long is not waited for.
    pub(crate) async fn rest(&mut self) -> Result<()> {
        let began = now();
        while now() - began < REST_MAX {
            let before = cpu::of_processes(&self.processes()?);
            tokio::time::sleep(REST_LOOK).await;
            let after = cpu::of_processes(&self.processes()?);
            let used: f64 = after.values().sum::<f64>() - before.values().sum::<f64>();
            if used < REST_LOOK.as_secs_f64() * RESTING_SHARE {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.cluster.addresses().into_iter().map(str::to_owned).collect()
    }

    /// Process ids of running nodes by name.
    fn processes(&mut self) -> Result<BTreeMap<String, u32>> {
        let numbers = self.cluster.numbers();
        numbers.map(|number| Ok((format!("node {number}"), self.cluster.node(number)?.id()))).collect()
    }

    /// CPU seconds so far of each thread of the running nodes, by the kernel's number of it.
    pub(crate) fn cpu_of_threads(&mut self) -> Result<BTreeMap<String, f64>> {
        let mut all = BTreeMap::new();
        for id in self.processes()?.into_values() {
            all.extend(cpu::of_threads(id)?);
        }
        Ok(all)
    }

    /// By partition of `table`: in which term it is led.
    pub(crate) async fn terms(&self, table: &str) -> Result<Vec<u64>> {
        let described: Value = serde_json::from_str(&self.client().await?.describe_table_json(table).await?)?;
        let partitions = described["partitions"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(partitions.iter().map(|partition| partition["term"].as_u64().unwrap_or_default()).collect())
    }

    /// The most memory that any node has occupied since [`Stage::forget_peaks`], in MiB.
    pub(crate) fn peak_mib(&mut self) -> Result<f64> {
        let mut most = 0;
        for number in self.cluster.numbers() {
            most = most.max(self.cluster.node(number)?.peak_resident_bytes()?);
        }
        Ok(mib(most))
    }

    pub(crate) fn forget_peaks(&mut self) -> Result<()> {
        for number in self.cluster.numbers() {
            self.cluster.node(number)?.forget_peak()?;
        }
        Ok(())
    }

    /// Memory that all nodes occupy now, in MiB.
    pub(crate) fn resident_mib(&mut self) -> Result<f64> {
        let mut bytes = 0;
        for number in self.cluster.numbers() {
            bytes += self.cluster.node(number)?.resident_bytes()?;
        }
        Ok(mib(bytes))
    }

    /// Disk that the data of all nodes takes, logs included, in MiB.
    pub(crate) fn disk_mib(&self) -> f64 {
        let directories = self.cluster.numbers().flat_map(|number| self.cluster.data_directories(number));
        mib(directories.map(|directory| size_of(&directory)).sum())
    }

    /// What the nodes have printed.
    pub(crate) fn output(&self) -> String {
        self.cluster.output()
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Bytes of all files below `folder`. A file that goes while we look counts nothing.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn is_even(leaders: &[u64]) -> bool {
    let (Some(least), Some(most)) = (leaders.iter().min(), leaders.iter().max()) else { return false };
    most - least <= UNEVEN_MAX + most / LEADERS_PER_UNEVEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_means_that_nobody_leads_much_more() {
        assert!(!is_even(&[]));
        assert!(is_even(&[3, 3, 3]) && is_even(&[2, 3, 4]) && is_even(&[171, 170, 172]));
        assert!(!is_even(&[5, 3, 1]) && !is_even(&[0, 5, 4]));
    }

    #[test]
    fn files_below_folders_count() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), [0; 100]).unwrap();
        fs::write(folder.path().join("c"), [0; 10]).unwrap();
        assert_eq!(size_of(folder.path()), 110);
        assert_eq!(size_of(&folder.path().join("missing")), 0);
    }
}
