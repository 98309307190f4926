//! The cluster that a command talks to, and the connection to it.

use crate::access::{Access, cluster_name};
use crate::duration::seconds;
use crate::output::Output;
use crate::password::CredentialArguments;
use anyhow::{Result, bail, ensure};
use clap::Args;
use hedgerow_client::{Client, ClientOptions, ClientTls, ClientTlsFiles, ErrorKind, Labels};
use std::path::PathBuf;
use std::time::Duration;

/// Where the nodes are if nobody says so: where `hedgerow dev` has them.
pub(crate) const CLUSTER_DEFAULT: &str = "127.0.0.1:34601,127.0.0.1:34602,127.0.0.1:34603";
/// The operation timeout of commands for people.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The operation timeout of commands that keep the cluster busy.
pub(crate) const BULK_TIMEOUT: Duration = Duration::from_secs(10);

/// Which cluster, and how its nodes are believed.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodesArguments {
    /// Addresses of nodes of the cluster; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "HEDGEROW_CLUSTER",
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        default_value = CLUSTER_DEFAULT
    )]
    pub(crate) cluster: Vec<String>,
    #[command(flatten)]
    tls: TlsArguments,
}

/// Where TLS is read from, and a user and the file with its password.
pub(crate) type AccessFiles = (Option<ClientTlsFiles>, Option<(String, PathBuf)>);

/// Which cluster, and how to print.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArguments {
    #[command(flatten)]
    pub(crate) nodes: NodesArguments,
    #[command(flatten)]
    credentials: CredentialArguments,
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// How long one operation may take, retries included, in seconds [default: 5; load, dump and bench: 10]. What is asked of the cluster itself, such as
    /// tables and status, has 10 at least.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

/// What connections are encrypted with.
#[derive(Args, Clone, Debug)]
struct TlsArguments {
    /// Encrypts connections, with nodes that this authority has issued certificates for, PEM.
    #[arg(long, global = true, env = "HEDGEROW_TLS_CA", value_name = "FILE", hide_env_values = true)]
    tls_ca: Option<PathBuf>,
    /// This client's certificate, PEM; --tls-key has its key.
    #[arg(long, global = true, env = "HEDGEROW_TLS_CERTIFICATE", value_name = "FILE", hide_env_values = true)]
    tls_certificate: Option<PathBuf>,
    /// The private key of --tls-certificate, PEM; nobody but its owner may read it.
    #[arg(long, global = true, env = "HEDGEROW_TLS_KEY", value_name = "FILE", hide_env_values = true)]
    tls_key: Option<PathBuf>,
    /// Nodes' certificates that count no more, PEM: the list that `hedgerow certificate revoke` makes.
    #[arg(long, global = true, env = "HEDGEROW_TLS_REVOKED", value_name = "FILE", hide_env_values = true)]
    tls_revoked: Option<PathBuf>,
    /// What certificates call the cluster, where the authority's own does not say it (`hedgerow certificate` makes such that do).
    #[arg(long, global = true, env = "HEDGEROW_TLS_CLUSTER", value_name = "NAME", hide_env_values = true)]
    tls_cluster: Option<String>,
}

impl TlsArguments {
    fn files(&self) -> Result<Option<ClientTlsFiles>> {
        let identity = match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => bail!("--tls-certificate and --tls-key go together"),
        };
        let Some(ca) = self.tls_ca.clone() else {
            let has_other = identity.is_some() || self.tls_cluster.is_some() || self.tls_revoked.is_some();
            ensure!(!has_other, "with TLS, --tls-ca says who is believed");
            return Ok(None);
        };
        let cluster = cluster_name(self.tls_cluster.as_deref(), &ca, ("--tls-cluster", "--tls-ca"))?;
        Ok(Some(ClientTlsFiles { cluster, ca, identity, revoked: self.tls_revoked.clone() }))
    }
}

impl NodesArguments {
    /// What connections are encrypted with, if they are.
    pub(crate) fn tls(&self) -> Result<Option<ClientTls>> {
        Ok(self.tls.files()?.as_ref().map(ClientTls::load).transpose()?)
    }

    /// What nodes are asked with.
    pub(crate) fn access(&self, credentials: &CredentialArguments) -> Result<Access> {
        self.check(credentials)?;
        Ok(Access { tls: self.tls()?, credentials: credentials.credentials()? })
    }

    /// Whether a user can log in, if one is given.
    fn check(&self, credentials: &CredentialArguments) -> Result<()> {
        let has_user = credentials.have_user();
        ensure!(
            !has_user || self.tls.tls_ca.is_some(),
            "--user needs --tls-ca: a password is proven on encrypted connections only"
        );
        ensure!(
            !has_user || self.tls.tls_certificate.is_none(),
            "--user and --tls-certificate both say who you are: give one of them"
        );
        Ok(())
    }
}

impl ClusterArguments {
    /// The cluster for a command that prints no results and has times of its own.
    pub(crate) fn without_output(nodes: NodesArguments, credentials: CredentialArguments) -> Self {
        Self { nodes, credentials, output: Output::Text, timeout: None }
    }

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

    /// The same, with what is in the files now.
    pub(crate) fn read_anew(&self) -> Self {
        Self { credentials: self.credentials.read_anew(), ..self.clone() }
    }

    /// How single nodes are asked.
    pub(crate) fn access(&self) -> Result<Access> {
        self.nodes.access(&self.credentials)
    }

    /// Where what nodes are asked with is read from, for other processes: what connections are encrypted with, and the user and the file with its
    /// password.
    pub(crate) fn files(&self) -> Result<AccessFiles> {
        self.nodes.check(&self.credentials)?;
        Ok((self.nodes.tls.files()?, self.credentials.files()?))
    }

    fn options(&self, timeout: Duration) -> ClientOptions {
        ClientOptions { operation_timeout: self.timeout.unwrap_or(timeout), ..ClientOptions::default() }
    }

    async fn connect_as(&self, options: ClientOptions) -> Result<Client> {
        let addresses = &self.nodes.cluster;
        let Access { tls, credentials } = self.access()?;
        let options = ClientOptions { tls, credentials, ..options };
        Client::connect_with(addresses, options).await.map_err(|error| match error.kind() {
            // A node was reached, and has said why it lets this user do nothing.
            ErrorKind::NotAllowed => error.into(),
            _ => anyhow::Error::new(error).context(format!("cannot connect to the cluster at {}", addresses.join(","))),
        })
    }
}
