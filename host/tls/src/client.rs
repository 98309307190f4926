//! What a client needs for encrypted connections: the authority that the cluster's nodes are of, and its own certificate if it has one.

use crate::files::{self, FileError, unfit};
use crate::handshake::Handshake;
use crate::names::{ClusterName, asked};
use crate::provider;
use crate::stream::Stream;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Where a client's files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientTlsFiles {
    /// What the certificates call the cluster.
    pub cluster: ClusterName,
    /// Certificates of the authorities by which its nodes are known.
    pub ca: PathBuf,
    /// The client's certificate and its private key, for clusters that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Lists of nodes' certificates that count no more.
    #[serde(default)]
    pub revoked: Option<PathBuf>,
}

/// What a client makes connections with.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    node: ServerName<'static>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({})", self.node.to_str())
    }
}

impl ClientTls {
    /// Reads the files.
    pub fn load(files: &ClientTlsFiles) -> Result<Self, FileError> {
        let authorities = files::authorities(&files.ca)?;
        let nodes = files::nodes(&files.ca, &authorities, files.revoked.as_deref())?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unfit(&files.ca, &error))?
            .dangerous()
            .with_custom_certificate_verifier(nodes);
        let mut config = match &files.identity {
            Some((certificate, key)) => builder
                .with_client_auth_cert(files::certificates(certificate)?, files::key(key)?)
                .map_err(|error| unfit(certificate, &error))?,
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), node: asked(files.cluster.any_node()) })
    }

    /// Makes an encrypted connection of `tcp`, whose other end has to show that it is a node of the cluster.
    pub async fn connect(&self, tcp: TcpStream) -> io::Result<Stream> {
        Handshake::dial(tcp, &self.config, self.node.clone())?.finish().await
    }
}
