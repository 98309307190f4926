//! What this node leads is carried to other clusters by a thread of its own, as a client of both sides.

use crate::serve::clusters::RemoteCluster;
use anyhow::{Context as _, Result};
use hedgerow_client::{Client, ClientOptions, ClientTls, ClientTlsFiles};
use hedgerow_duplication::{Board, Connect, Duplicator, Source};
use hedgerow_env::os::spawn_thread;
use hedgerow_node::Config;
use hedgerow_tls::NodeTls;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long one request may take, at either side: an election, and the other side of the earth.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other cluster's nodes may take to be connected with.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Who carries. Ends when it is dropped: what was not told by then is told by whoever leads next.
pub(super) struct Carrying {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Carrying {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no result, and a panic ends the process.
            let _ = thread.join();
        }
    }
}

/// What will carry once the node runs.
pub(super) struct Prepared {
    duplicator: Duplicator,
}

/// Prepares to carry what the node of `config` leads to `clusters`, and has the node told how it goes; `None` if there are none.
pub(super) fn prepare(config: &mut Config, clusters: BTreeMap<String, RemoteCluster>) -> Result<Option<Prepared>> {
    if clusters.is_empty() {
        return Ok(None);
    }
    let own = config.peers.get(&config.node).context("the node is none of its own peers")?.clone();
    let addresses: Vec<String> = config.peers.values().cloned().collect();
    let files = config.tls.as_deref().map(client_files);
    // What is wrong with it ends the start.
    drop(source(&addresses, files.as_ref())?);
    let source: Source = Box::new(move || source(&addresses, files.as_ref()).map_err(|error| format!("{error:#}")));
    let board = Arc::new(Board::new(clusters.keys().cloned().collect()));
    config.carriers = Some(Arc::<Board>::clone(&board));
    let clusters = Arc::new(clusters);
    let connect: Connect = Arc::new(move |name| {
        let (clusters, name) = (Arc::clone(&clusters), name.to_owned());
        Box::pin(async move { connect(&clusters, &name).await.map_err(|error| format!("{error:#}")) })
    });
    Ok(Some(Prepared { duplicator: Duplicator::new(source, own, connect).with_board(board) }))
}

impl Prepared {
    pub(super) fn start(self) -> Result<Carrying> {
        let runtime = super::new_runtime()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = spawn_thread("duplication", move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = self.duplicator.run() => {}
                    // Also when the sender is gone.
                    _ = stopped => {}
                }
            });
            // Names that are being looked up are not waited for.
            runtime.shutdown_background();
        })
        .context("starting the thread for duplication")?;
        Ok(Carrying { stop: Some(stop), thread: Some(thread) })
    }
}

/// A client of the own cluster. A node is one by its certificate, and may do everything.
fn source(addresses: &[String], files: Option<&ClientTlsFiles>) -> Result<Client> {
    let tls = files.map(ClientTls::load).transpose().context("tls")?;
    let options = ClientOptions { operation_timeout: TIMEOUT, tls, ..ClientOptions::default() };
    Ok(Client::lazy(addresses, options)?)
}

fn client_files(tls: &NodeTls) -> ClientTlsFiles {
    let files = tls.files();
    ClientTlsFiles {
        cluster: files.cluster.clone(),
        ca: files.ca.clone(),
        identity: Some((files.certificate.clone(), files.key.clone())),
        revoked: files.revoked.clone(),
    }
}

async fn connect(clusters: &BTreeMap<String, RemoteCluster>, name: &str) -> Result<Client> {
    let cluster = clusters.get(name).with_context(|| {
        let known = clusters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("this node's configuration has no [clusters.{name}]; it has: {known}")
    })?;
    let options = ClientOptions { operation_timeout: TIMEOUT, connect_timeout: CONNECT_TIMEOUT, ..cluster.options()? };
    Ok(Client::connect_with(&cluster.addresses, options).await?)
}
