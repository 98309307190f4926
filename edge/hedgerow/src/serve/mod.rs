//! Running nodes: `dev`, a whole cluster in this process, and `serve`, one node of a cluster of processes.

pub(crate) mod check;
mod clusters;
mod config;
mod directories;
mod duplication;
mod refused;
mod taken;

use crate::cluster::CLUSTER_DEFAULT;
use crate::command::fault::read_plan;
use crate::exit::Exit;
use crate::files::{is_directory, is_regular};
use crate::output::counted;
use anyhow::{Context, ensure};
use clap::Args;
use clusters::RemoteCluster;
use config::ServeConfig;
use hedgerow_env::Clock as _;
use hedgerow_env::os::{OsClock, OsDisk, raise_file_limit, random_u64, survive_file_size_limit};
use hedgerow_faults::{Cluster, Plan};
use hedgerow_node::Config;
use hedgerow_node::config::RightsMode;
use hedgerow_node::os::{Running, State};
use hedgerow_storage::{Engines, RocksEngines, RocksSettings};
use hedgerow_tls::{Mode, NodeTls};
use hedgerow_types::NodeId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub(crate) use taken::Taken;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a process may open where nobody raised it.
const FILES_USUAL: u64 = 1_024;
/// Below so many replicas a node says that its limit of open files is low.
const REPLICAS_FEW: u64 = 100;
/// A certificate that is valid for fewer days than this is mentioned.
pub(crate) const EXPIRY_TOLD_DAYS: i64 = 30;

/// Arguments of `hedgerow dev`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DevArguments {
    /// Number of nodes; they take consecutive ports from that of --listen.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) nodes: u16,
    /// Where the nodes keep their data, one directory each. Without it the data is in a temporary directory that is
    /// removed when the cluster stops.
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Address of the first node.
    #[arg(long, default_value = "127.0.0.1:34601")]
    pub(crate) listen: SocketAddr,
    /// The nodes' label `zone`, given to them in turn: with `a,b` nodes 1 and 3 are in zone a, node 2 is in zone b.
    #[arg(long, value_name = "ZONE,...", value_delimiter = ',')]
    pub(crate) zones: Vec<String>,
    /// Faults to make from the start on: a plan's file, or the name of a plan that comes with the program.
    #[arg(long, value_name = "PLAN")]
    pub(crate) faults: Option<String>,
    /// Another seed than the plan's own.
    #[arg(long, requires = "faults")]
    pub(crate) fault_seed: Option<u64>,
}

/// Arguments of `hedgerow serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArguments {
    /// The node's configuration, TOML; docs/configuration.md has every setting.
    #[arg(long)]
    pub(crate) config: PathBuf,
}

/// Where the nodes of a cluster in this process are; an error where there are not as many ports.
pub(crate) fn dev_peers(arguments: &DevArguments) -> anyhow::Result<BTreeMap<NodeId, String>> {
    let (nodes, first) = (arguments.nodes, arguments.listen.port());
    ensure!(
        arguments.listen.ip().is_loopback(),
        "--listen {}: `hedgerow dev` asks nobody who they are, and listens on this machine only, such as at 127.0.0.1:{first}. \
         `hedgerow serve` with [tls] is for others",
        arguments.listen
    );
    let address = |number: u16| {
        let port = first.checked_add(number - 1).with_context(|| {
            let nodes = counted(nodes.into(), "node");
            format!("{nodes} with consecutive ports from {first} on go beyond port 65535: --listen takes a lower one")
        })?;
        Ok((NodeId(number), SocketAddr::new(arguments.listen.ip(), port).to_string()))
    };
    (1..=nodes).map(address).collect()
}

/// Runs a cluster in this process, with its nodes at `peers`, until it is told to stop.
pub(crate) fn dev(
    arguments: &DevArguments,
    peers: &BTreeMap<NodeId, String>,
    plan: Option<Plan>,
) -> anyhow::Result<Exit> {
    let (root, temporary) = match &arguments.data {
        Some(root) => (root.clone(), None),
        None => {
            let directory = tempfile::Builder::new().prefix("hedgerow-dev-").tempdir()?;
            (directory.path().to_path_buf(), Some(directory))
        }
    };
    let files = files_max() / u64::from(arguments.nodes);
    let mut nodes = Vec::new();
    let mut zones = arguments.zones.iter().cycle();
    for node in peers.keys() {
        let mut config = Config::new(*node, peers.clone(), vec![data_of(&root, node.0)], random_u64());
        config.files_max = files;
        // Each node has the memory that it would have as a process of its own.
        let engines = engines(RocksSettings::default(), &config)?;
        config.may_fault = true;
        config.labels.extend(zones.next().map(|zone| ("zone".to_owned(), zone.clone())));
        warn_of_few_files(&config);
        nodes.push(start(config, &engines)?);
    }
    let addresses: Vec<&str> = peers.values().map(String::as_str).collect();
    let kept = if temporary.is_some() { "temporary data in" } else { "data in" };
    let count = counted(nodes.len() as u64, "node");
    let (cluster, addresses) = (cluster_option(&addresses), addresses.join(","));
    let ready = format!(
        "ready: {count} at {addresses}; {kept} {}\n\
         next, in another terminal: hedgerow table create{cluster} users; hedgerow set{cluster} users user-17 name Ada; hedgerow \
         get{cluster} users user-17 name. Ctrl-C here ends the cluster",
        root.display()
    );
    let faults = plan.map(|plan| start_faults(&plan, peers, &root)).transpose()?;
    let exit = wait(&new_runtime()?, nodes, &ready, std::future::pending());
    // The nodes are gone, so that nothing can be switched off any more, and nobody is interested.
    drop(faults);
    exit
}

/// The plan that is to be carried out, if there is one.
pub(crate) fn read_faults(arguments: &DevArguments) -> anyhow::Result<Option<Plan>> {
    arguments.faults.as_deref().map(|plan| plan_without_kills(plan, arguments.fault_seed)).transpose()
}

/// What a command needs to find the nodes at `addresses`, if not nothing.
fn cluster_option(addresses: &[&str]) -> String {
    let is_known = CLUSTER_DEFAULT.split(',').any(|known| addresses.contains(&known));
    if is_known { String::new() } else { format!(" --cluster {}", addresses[0]) }
}

fn data_of(root: &Path, node: u16) -> PathBuf {
    root.join(format!("node{node}"))
}

/// Reads a plan for the nodes of this process. They are threads, which nobody can kill.
fn plan_without_kills(name: &str, seed: Option<u64>) -> anyhow::Result<Plan> {
    let plan = read_plan(name, seed)?;
    let is_kill = |fault: &hedgerow_faults::Fault| fault.kind == hedgerow_faults::Kind::Kill;
    ensure!(
        !plan.faults.iter().any(is_kill),
        "the nodes of `hedgerow dev` are threads of one process, which cannot be killed: start `hedgerow serve` processes \
         and use `hedgerow fault run --pid NODE=PID`"
    );
    Ok(plan)
}

/// Starts a plan against the nodes of this process.
fn start_faults(
    plan: &Plan,
    peers: &BTreeMap<NodeId, String>,
    root: &Path,
) -> anyhow::Result<hedgerow_faults::Running> {
    let data = peers.keys().map(|node| (node.0, data_of(root, node.0))).collect();
    let binary = std::env::current_exe().context("finding this program")?;
    let target = Cluster::new(peers.values().cloned().collect()).with_data(data).with_hogs(binary);
    hedgerow_faults::start(plan, &Arc::new(target), plan.duration_max(peers.len() as u16), crate::output::say)
}

/// What a configuration file says.
pub(crate) struct FromFile {
    /// What the storage engine is told.
    pub(crate) storage: RocksSettings,
    /// The node's own.
    pub(crate) config: Config,
    /// Where its tables may be duplicated to.
    pub(crate) clusters: BTreeMap<String, RemoteCluster>,
}

/// A configuration as it stands in a file.
pub(crate) fn read_config(path: &Path) -> anyhow::Result<FromFile> {
    let text = crate::files::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = || format!("{} is not right", path.display());
    let mut config: ServeConfig =
        toml::from_str(&text).map_err(|error| anyhow::anyhow!(refused::text(&error))).with_context(wrong)?;
    let (storage, clusters) = (config.storage(), config.take_clusters().with_context(wrong)?);
    let config = config.into_node(random_u64()).with_context(wrong)?;
    config.check().map_err(anyhow::Error::msg).with_context(wrong)?;
    directories::check(&config.data).with_context(wrong)?;
    Ok(FromFile { storage, config, clusters })
}

/// The same for a node that is to be started with it: what is there for its audit log, and what it shows to other clusters, is looked at as well. What is no regular file
/// would keep no log, or hold up the start.
pub(crate) fn read_startable(path: &Path) -> anyhow::Result<FromFile> {
    let read = read_config(path)?;
    if let Some(audit) = &read.config.audit {
        check_audit(&audit.path).with_context(|| format!("{} is not right", path.display()))?;
    }
    for (name, cluster) in &read.clusters {
        let wrong = || format!("{} is not right: clusters.{name}", path.display());
        cluster.options().map(drop).with_context(wrong)?;
    }
    Ok(read)
}

fn check_audit(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().unwrap_or(file);
    let has_folder = is_directory(folder).unwrap_or(false);
    ensure!(has_folder, "audit.file: there is no folder {}: make it first", folder.display());
    let is_right = is_regular(file).unwrap_or(true);
    ensure!(is_right, "audit.file: {} is no regular file", file.display());
    Ok(())
}

/// Runs one node until it is told to stop.
pub(crate) fn serve(read: FromFile) -> anyhow::Result<Exit> {
    let FromFile { storage, mut config, clusters } = read;
    config.files_max = files_max();
    let engines = engines(storage, &config)?;
    let ready = format!("ready: node {} at {}", config.node.0, config.address);
    let tls = config.tls.clone();
    warn_of_openness(tls.as_deref(), config.rights);
    // From now on SIGHUP ends nothing.
    let runtime = new_runtime()?;
    let hung_up = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup())?
    };
    // Before the node, so that what is wrong with it ends the start.
    let prepared = duplication::prepare(&mut config, clusters)?;
    warn_of_few_files(&config);
    let address = config.listen.clone();
    let pause = |time| runtime.block_on(crate::runtime::sleep(time));
    let node = taken::wait_for_address(&address, || start(config.clone(), &engines), pause)?;
    let carrying = prepared.map(duplication::Prepared::start).transpose()?;
    let exit = wait(&runtime, vec![node], &ready, reload(hung_up, tls.as_deref()));
    drop(carrying);
    exit
}

/// The log says at each start who may do what they like.
fn warn_of_openness(tls: Option<&NodeTls>, rights: RightsMode) {
    let Some(tls) = tls else {
        return tracing::warn!(
            "nothing is encrypted, and everybody who reaches this node can do everything (docs/configuration.md, TLS)"
        );
    };
    if tls.mode() == Mode::Permissive {
        tracing::warn!("tls.mode is permissive: everybody who reaches this node can do everything, without TLS");
    } else if !tls.has_client_certificates() && rights != RightsMode::Required {
        tracing::warn!(
            "tls.client_certificates is false: everybody who reaches this node can do everything that clients can"
        );
    }
    warn_of_expiry(tls);
}

/// Certificates are to be replaced before nobody believes them any more.
fn warn_of_expiry(tls: &NodeTls) {
    let files = tls.files();
    for (at, file) in [(tls.expires_at(), &files.certificate), (tls.authority_expires_at(), &files.ca)] {
        let days = days_until(at);
        if days < EXPIRY_TOLD_DAYS {
            tracing::warn!(days, file = %file.display(), "a certificate expires soon");
        }
    }
}

/// Whole days until then, seconds since 1970.
fn days_until(at: i64) -> i64 {
    let now = i64::try_from(OsClock.unix_micros() / 1_000_000).unwrap_or(i64::MAX);
    (at - now).max(0) / 86_400
}

/// Reads certificates anew whenever SIGHUP comes.
async fn reload(mut hung_up: Signal, tls: Option<&NodeTls>) {
    while hung_up.recv().await.is_some() {
        let before = tls.map_or(0, NodeTls::revoked_count);
        match tls.map(NodeTls::reload) {
            None => tracing::info!(
                "SIGHUP: this node has no certificates to read anew, and settings are read at a start only"
            ),
            Some(Ok(())) => {
                let revoked = tls.map_or(0, NodeTls::revoked_count);
                tracing::info!(
                    revoked,
                    "certificates were read anew from the files named at the start, for connections that are made from now on"
                );
                if revoked < before {
                    tracing::warn!(before, "fewer certificates are revoked than before: is it an older list?");
                }
                if tls.is_some_and(NodeTls::is_own_revoked) {
                    tracing::error!(
                        "this node's own certificate has been revoked: other nodes and clients refuse it, until it has another one"
                    );
                }
                tls.into_iter().for_each(warn_of_expiry);
            }
            Some(Err(error)) => {
                let error = anyhow::Error::new(error);
                tracing::error!(error = format!("{error:#}"), "certificates stay as they were");
            }
        }
    }
}

fn new_runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}

/// Raises this process' limit of open files as far as it may; how many it may have open then.
fn files_max() -> u64 {
    raise_file_limit().unwrap_or_else(|error| {
        tracing::warn!(%error, "the limit of open files could not be raised");
        FILES_USUAL
    })
}

fn engines(settings: RocksSettings, config: &Config) -> anyhow::Result<Arc<dyn Engines>> {
    let spare_files = usize::try_from(config.spare_files()).unwrap_or(usize::MAX);
    Ok(Arc::new(RocksEngines::new(&RocksSettings { spare_files, ..settings })?))
}

fn warn_of_few_files(config: &Config) {
    if config.replicas_max() < REPLICAS_FEW {
        tracing::warn!(
            files = config.files_max,
            replicas = config.replicas_max(),
            "the limit of open files allows few replicas on this node; raise it (`ulimit -Hn`, or LimitNOFILE= of systemd)"
        );
    }
}

/// Starts a node. An error over an address that is in use is a [`Taken`].
fn start(config: Config, engines: &Arc<dyn Engines>) -> anyhow::Result<Running> {
    let node = config.node;
    survive_file_size_limit();
    let started = hedgerow_node::os::start(config, Arc::new(OsDisk), Arc::clone(engines));
    started.with_context(|| format!("node {} cannot start", node.0)).map_err(taken::explained)
}

/// Says when all nodes serve, and stops them all on a signal or when one of them fails.
fn wait(
    runtime: &Runtime,
    nodes: Vec<Running>,
    ready: &str,
    reloading: impl Future<Output = ()>,
) -> anyhow::Result<Exit> {
    runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let serving = async {
            for node in &nodes {
                // The sender goes only after the state has become `Stopped`.
                let _ = node.state().wait_for(|state| *state != State::Starting).await;
            }
        };
        let stopped = async {
            let mut waiting = tokio::task::JoinSet::new();
            for node in &nodes {
                let mut state = node.state();
                waiting.spawn_local(async move {
                    let _ = state.wait_for(|state| matches!(state, State::Stopped(_))).await;
                });
            }
            waiting.join_next().await;
        };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                tokio::pin!(serving, stopped, reloading);
                let mut is_ready = false;
                loop {
                    tokio::select! {
                        () = &mut serving, if !is_ready => {
                            is_ready = true;
                            if nodes.iter().all(|node| *node.state().borrow() == State::Serving) {
                                crate::log::announce(ready);
                            }
                        }
                        () = &mut stopped => break,
                        () = &mut reloading => break,
                        _ = interrupted.recv() => break,
                        _ = terminated.recv() => break,
                    }
                }
                anyhow::Ok(())
            })
            .await
    })?;
    tracing::info!("stopping");
    nodes.iter().for_each(Running::stop);
    let mut failed = None;
    for node in nodes {
        if let Err(reason) = node.join() {
            failed.get_or_insert(reason);
        }
    }
    match failed {
        None => Ok(Exit::Done),
        Some(reason) => {
            tracing::error!(%reason, "a node could not go on");
            Ok(Exit::NodeFailed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_needs_a_port_for_each_node() {
        let peers = |listen: &str| {
            let listen = listen.parse().unwrap();
            let zones = Vec::new();
            dev_peers(&DevArguments { nodes: 3, data: None, listen, zones, faults: None, fault_seed: None })
        };
        let last = peers("127.0.0.1:65533").unwrap().remove(&NodeId(3));
        assert_eq!(last.as_deref(), Some("127.0.0.1:65535"));
        let error = peers("0.0.0.0:34601").unwrap_err().to_string();
        assert!(error.contains("listens on this machine only"), "{error}");
        let error = peers("127.0.0.1:65534").unwrap_err().to_string();
        assert!(error.contains("3 nodes") && error.contains("--listen takes a lower one"), "{error}");
    }
}
