//! The cluster that a command talks to, and the connection to it.

use crate::duration::seconds;
use crate::output::Output;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_client::{Client, ClientOptions, Labels};
use std::time::Duration;

/// The operation timeout of commands for people.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The operation timeout of commands that keep the cluster busy.
pub(crate) const BULK_TIMEOUT: Duration = Duration::from_secs(10);

/// Which cluster, and how to print.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArguments {
    /// Addresses of nodes of the cluster; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "HEDGEROW_CLUSTER",
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        default_value = "127.0.0.1:34601,127.0.0.1:34602,127.0.0.1:34603"
    )]
    pub(crate) cluster: Vec<String>,
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// How long one operation may take, retries included, in seconds [default: 5; load and bench: 10]. What is asked of the cluster itself, such as
    /// tables and status, has 10 at least.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

impl ClusterArguments {
    /// Connects to the cluster.
    pub(crate) async fn connect(&self) -> Result<Client> {
        self.connect_with(TIMEOUT).await
    }

    /// Connects to the cluster from where `labels` say.
    pub(crate) async fn connect_near(&self, labels: Labels) -> Result<Client> {
        self.connect_as(ClientOptions { labels, ..self.options(TIMEOUT) }).await
    }

    /// Connects to the cluster, which takes `limit` at most or a second.
    pub(crate) async fn connect_within(&self, limit: Duration) -> Result<Client> {
        let options = self.options(TIMEOUT);
        let connect_timeout = options.connect_timeout.min(limit);
        self.connect_as(ClientOptions { connect_timeout, ..options }).await
    }

    /// Connects to the cluster; operations take at most `timeout` unless the command line says otherwise.
    pub(crate) async fn connect_with(&self, timeout: Duration) -> Result<Client> {
        self.connect_as(self.options(timeout)).await
    }

    fn options(&self, timeout: Duration) -> ClientOptions {
        ClientOptions { operation_timeout: self.timeout.unwrap_or(timeout), ..ClientOptions::default() }
    }

    async fn connect_as(&self, options: ClientOptions) -> Result<Client> {
        let addresses = &self.cluster;
        Client::connect_with(addresses, options)
            .await
            .with_context(|| format!("cannot connect to the cluster at {}", addresses.join(",")))
    }
}
