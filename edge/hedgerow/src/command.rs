//! Commands that talk to a cluster, or need none, one file each.

pub(crate) mod dump;
pub(crate) mod fault;
pub(crate) mod load;
pub(crate) mod plan;
pub(crate) mod proxy;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod verify;

use crate::arguments::{ClientCommand, ClusterArguments};
use crate::exit::Exit;
use crate::{bench, runtime};
use anyhow::{Context as _, Result};
use hedgerow_client::{Client, ClientOptions, Labels};
use std::time::Duration;

/// The operation timeout of commands for people.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The operation timeout of commands that keep the cluster busy.
pub(crate) const BULK_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a command on a runtime of its own.
pub(crate) fn run(command: ClientCommand) -> Result<Exit> {
    runtime::block_on(async move {
        match command {
            ClientCommand::Table { command, cluster } => table::run(command, &cluster).await,
            ClientCommand::Get(arguments) => record::get(arguments).await,
            ClientCommand::Set(arguments) => record::set(arguments).await,
            ClientCommand::Del(arguments) => record::del(arguments).await,
            ClientCommand::Incr(arguments) => record::incr(arguments).await,
            ClientCommand::Ttl(arguments) => record::ttl(arguments).await,
            ClientCommand::Scan(arguments) => record::scan(arguments).await,
            ClientCommand::MultiGet(arguments) => record::multi_get(arguments).await,
            ClientCommand::Load(arguments) => load::run(arguments).await,
            ClientCommand::Dump(arguments) => dump::run(arguments).await,
            ClientCommand::Status(arguments) => status::run(arguments).await,
            ClientCommand::Verify(arguments) => verify::run(arguments).await,
            ClientCommand::Fault { command } => fault::run(command).await,
            ClientCommand::Proxy(arguments) => proxy::run(arguments).await,
            ClientCommand::Bench(arguments) => bench::run(*arguments).await,
        }
    })
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
