//! What a node needs for encrypted connections: its certificate, which says which node it is, and the authority that all nodes and clients are of.

use crate::files::{self, FileError, NodesVerifier, unfit};
use crate::handshake::Handshake;
use crate::issue;
use crate::names::{ClusterName, asked};
use crate::provider;
use crate::revoked::{Unrevoked, serial_of};
use crate::stream::Stream;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, ServerConfig, ServerConnection};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::net::TcpStream;

/// Whether connections have to be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both kinds are accepted, and other nodes are dialled with TLS first and then without: for the time in which a running cluster
    /// changes over. Protects against nothing.
    Permissive,
    /// Nothing is said on a connection that is not encrypted.
    Required,
}

/// Where a node's files are, and what for.
#[derive(Clone, Debug)]
pub struct NodeTlsFiles {
    /// What the certificates call the cluster.
    pub cluster: ClusterName,
    /// The number that the certificate must be for.
    pub node: u16,
    /// Certificates of the authorities by which nodes and clients are known.
    pub ca: PathBuf,
    /// The node's certificate, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key; nobody but the owner may read it.
    pub key: PathBuf,
    /// Lists of certificates that count no more.
    pub revoked: Option<PathBuf>,
}

/// What a node accepts and makes connections with.
pub struct NodeTls {
    files: NodeTlsFiles,
    mode: Mode,
    has_client_certificates: bool,
    loaded: RwLock<Arc<Loaded>>,
    /// How often the files were read anew.
    reloads: AtomicU64,
}

struct Loaded {
    accepting: Arc<ServerConfig>,
    dialling: Arc<ClientConfig>,
    nodes: Arc<NodesVerifier>,
    is_revoked: bool,
    expires_at: i64,
    authority_expires_at: i64,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever the library's types print, no key is part of it.
        let Self { files, mode, has_client_certificates, .. } = self;
        write!(f, "NodeTls({files:?}, {mode:?}, client certificates: {has_client_certificates})")
    }
}

impl NodeTls {
    /// Reads the files. `has_client_certificates`: whether clients must show a certificate too; nodes always must.
    pub fn load(files: NodeTlsFiles, mode: Mode, has_client_certificates: bool) -> Result<Self, FileError> {
        let loaded = load(&files, has_client_certificates)?;
        if loaded.is_revoked {
            return Err(unfit(&files.certificate, &rustls::Error::InvalidCertificate(CertificateError::Revoked)));
        }
        let loaded = RwLock::new(Arc::new(loaded));
        Ok(Self { files, mode, has_client_certificates, loaded, reloads: AtomicU64::new(0) })
    }

    /// Reads the files anew, for connections that are made from now on. Where they are not right, what was read before stays. Whoever keeps
    /// connections asks [`NodeTls::may_have_revoked`] now and then, and ends those that are [`NodeTls::is_revoked`].
    pub fn reload(&self) -> Result<(), FileError> {
        let loaded = Arc::new(load(&self.files, self.has_client_certificates)?);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        self.reloads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether connections have to be encrypted.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether clients have to show a certificate.
    pub const fn has_client_certificates(&self) -> bool {
        self.has_client_certificates
    }

    /// When the node's certificate expires, seconds since 1970.
    pub fn expires_at(&self) -> i64 {
        self.loaded().expires_at
    }

    /// When the first of the authorities expires, seconds since 1970.
    pub fn authority_expires_at(&self) -> i64 {
        self.loaded().authority_expires_at
    }

    /// When the first of these expires, seconds since 1970.
    pub fn first_expires_at(&self) -> i64 {
        let loaded = self.loaded();
        loaded.expires_at.min(loaded.authority_expires_at)
    }

    /// Whether certificates of open connections may have been revoked since this was asked last with `seen`, which begins with 0.
    pub fn may_have_revoked(&self, seen: &Cell<u64>) -> bool {
        let reloads = self.reloads.load(Ordering::Acquire);
        seen.replace(reloads) != reloads && self.revoked_count() > 0
    }

    /// How many certificates have been revoked.
    pub fn revoked_count(&self) -> usize {
        self.loaded().nodes.revoked.count()
    }

    /// Whether this node's own certificate has been revoked, so that others refuse it.
    pub fn is_own_revoked(&self) -> bool {
        self.loaded().is_revoked
    }

    /// Whether a certificate that the other end has shown has been revoked, perhaps since.
    pub fn is_revoked(&self, stream: &Stream) -> bool {
        let loaded = self.loaded();
        loaded.nodes.revoked.count() > 0 && loaded.nodes.revoked.has_any(&stream.certificates())
    }

    /// Whose certificate the other end has shown, and its serial number, for people. Empty if it has shown none.
    pub fn shown_by(&self, stream: &Stream) -> String {
        let shown = stream.certificates();
        shown.first().map_or_else(String::new, |first| {
            format!("{} (serial number {})", issue::names(first).join(", "), serial_of(first))
        })
    }

    /// The files, and what they are for.
    pub const fn files(&self) -> &NodeTlsFiles {
        &self.files
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to agree on a connection that somebody else made.
    pub fn accept(&self, tcp: TcpStream) -> io::Result<Handshake> {
        let connection = ServerConnection::new(Arc::clone(&self.loaded().accepting)).map_err(io::Error::other)?;
        Ok(Handshake::new(tcp, connection.into()))
    }

    /// Begins to agree on a connection that was made to node `node`, which has to show that it is that one.
    pub fn dial(&self, tcp: TcpStream, node: u16) -> io::Result<Handshake> {
        Handshake::dial(tcp, &self.loaded().dialling, asked(self.files.cluster.node(node)))
    }

    /// Whether the other end may be a client: it has shown a certificate of this cluster, a client's or a node's, or need not.
    pub fn is_client(&self, stream: &Stream) -> bool {
        let is_of_cluster = |name: &str| self.files.cluster.is_of(name);
        !self.has_client_certificates
            || stream
                .certificates()
                .first()
                .is_some_and(|shown| issue::names(shown).iter().any(|name| is_of_cluster(name)))
    }

    /// The client's name in the certificate that the other end has shown, if it is one of this cluster's clients.
    pub fn client_name(&self, stream: &Stream) -> Option<String> {
        let shown = stream.certificates();
        let names = shown.first().map(issue::names).unwrap_or_default();
        names.iter().find_map(|name| self.files.cluster.client_in(name)).map(str::to_owned)
    }

    /// Whether the other end has shown the certificate of one of this cluster's nodes.
    pub fn is_any_node(&self, stream: &Stream) -> bool {
        let shown = stream.certificates();
        let Some((first, rest)) = shown.split_first() else { return false };
        is_for(&*self.loaded().nodes, first, rest, self.files.cluster.any_node()).is_ok()
    }

    /// Whether the other end has shown the certificate of node `node`.
    pub fn is_node(&self, stream: &Stream, node: u16) -> bool {
        let shown = stream.certificates();
        let Some((first, rest)) = shown.split_first() else { return false };
        is_for(&*self.loaded().nodes, first, rest, self.files.cluster.node(node)).is_ok()
    }
}

fn is_for(
    verifier: &impl ServerCertVerifier,
    first: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    name: String,
) -> Result<(), rustls::Error> {
    verifier.verify_server_cert(first, rest, &asked(name), &[], UnixTime::now()).map(drop)
}

fn load(files: &NodeTlsFiles, has_client_certificates: bool) -> Result<Loaded, FileError> {
    let authorities = files::authorities(&files.ca)?;
    let chain = files::certificates(&files.certificate)?;
    let provider = provider();
    let nodes = files::nodes(&files.ca, &authorities, files.revoked.as_deref())?;
    let revoked = Arc::clone(&nodes.revoked);
    let wrong_certificate = |error: rustls::Error| unfit(&files.certificate, &error);
    for name in [files.cluster.any_node(), files.cluster.node(files.node)] {
        // A node that is on its list refuses the others that are, too.
        is_for(&*nodes.verifier, &chain[0], &chain[1..], name).map_err(wrong_certificate)?;
    }
    let callers = WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities.roots), Arc::clone(&provider));
    // Who shows none is not taken for a node, in any case.
    let callers = if has_client_certificates { callers } else { callers.allow_unauthenticated() };
    let callers = callers.build().map_err(|error| files::not_built(&files.ca, &error))?;
    callers.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map_err(wrong_certificate)?;
    let key = files::key(&files.key)?;
    let versions = &[&TLS13];
    let mut accepting = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(wrong_certificate)?
        .with_client_cert_verifier(Arc::new(Unrevoked { revoked: Arc::clone(&revoked), verifier: callers }))
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(wrong_certificate)?;
    accepting.session_storage = Arc::new(NoServerSessionStorage {});
    accepting.send_tls13_tickets = 0;
    let mut dialling = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(wrong_certificate)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::<NodesVerifier>::clone(&nodes))
        .with_client_auth_cert(chain.clone(), key)
        .map_err(wrong_certificate)?;
    dialling.resumption = Resumption::disabled();
    let expires_at = issue::expires_at(&chain[0]).ok_or_else(|| FileError::Holds {
        path: files.certificate.clone(),
        expected: "certificate that says until when it is valid",
    })?;
    let authority_expires_at = authorities.expire_at.unwrap_or(expires_at);
    let (accepting, dialling) = (Arc::new(accepting), Arc::new(dialling));
    let is_revoked = revoked.has_any(&chain);
    Ok(Loaded { accepting, dialling, nodes, is_revoked, expires_at, authority_expires_at })
}
