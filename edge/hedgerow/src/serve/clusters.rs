//! Other clusters that this node's tables may be duplicated to: the sections `[clusters.NAME]` of its configuration.

use super::config::check_address;
use crate::access::cluster_name;
use anyhow::{Context as _, Result, bail, ensure};
use hedgerow_client::{ClientOptions, ClientTls, ClientTlsFiles, Credentials};
use hedgerow_placement::duplication::check_cluster_name;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterSection {
    meta_nodes: Vec<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    tls: Option<TlsSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    ca: PathBuf,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    revoked: Option<PathBuf>,
    cluster: Option<String>,
}

/// Another cluster, and how its nodes are believed and asked.
#[derive(Clone, Debug)]
pub(crate) struct RemoteCluster {
    /// Some of its nodes, `host:port`.
    pub(crate) addresses: Vec<String>,
    tls: Option<ClientTlsFiles>,
    /// A user, and the file with its password.
    user: Option<(String, PathBuf)>,
}

impl RemoteCluster {
    /// What a client of it is made with: by what is in the files now.
    pub(crate) fn options(&self) -> Result<ClientOptions> {
        let tls = self.tls.as_ref().map(ClientTls::load).transpose()?;
        let credentials = self.user.as_ref().map(|(user, file)| Credentials::from_file(user, file)).transpose()?;
        Ok(ClientOptions { tls, credentials, ..ClientOptions::default() })
    }
}

/// The clusters of these sections.
pub(super) fn checked(sections: BTreeMap<String, ClusterSection>) -> Result<BTreeMap<String, RemoteCluster>> {
    let named = |(name, section): (String, ClusterSection)| {
        check_cluster_name(&name).context("clusters")?;
        let cluster = section.into_cluster().with_context(|| format!("clusters.{name}"))?;
        Ok((name, cluster))
    };
    sections.into_iter().map(named).collect()
}

impl ClusterSection {
    fn into_cluster(self) -> Result<RemoteCluster> {
        let Self { meta_nodes, user, password_file, tls } = self;
        ensure!(!meta_nodes.is_empty(), "meta_nodes: the address of at least one of its nodes is needed");
        meta_nodes.iter().try_for_each(|address| check_address("meta_nodes", address))?;
        let user = match (user, password_file) {
            (Some(user), Some(file)) => Some((user, file)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => bail!("user and password_file go together"),
        };
        let tls = tls.map(TlsSection::into_files).transpose()?;
        if user.is_some() {
            let tls =
                tls.as_ref().context("user: a password is proven on encrypted connections only: tls is missing")?;
            ensure!(
                tls.identity.is_none(),
                "user and tls.certificate both say who this node is there: give one of them"
            );
        }
        Ok(RemoteCluster { addresses: meta_nodes, tls, user })
    }
}

impl TlsSection {
    fn into_files(self) -> Result<ClientTlsFiles> {
        let Self { ca, certificate, key, revoked, cluster } = self;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => bail!("tls.certificate and tls.key go together"),
        };
        let cluster = cluster_name(cluster.as_deref(), &ca, ("tls.cluster", "tls.ca"))?;
        Ok(ClientTlsFiles { cluster, ca, identity, revoked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RemoteCluster, String> {
        let section: ClusterSection = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut clusters =
            checked(BTreeMap::from([("west".to_owned(), section)])).map_err(|error| format!("{error:#}"))?;
        Ok(clusters.remove("west").expect("the one"))
    }

    #[test]
    fn the_nodes_of_another_cluster_are_enough() {
        let west = read("meta_nodes = [\"10.1.0.1:34601\", \"node-1.west:34601\"]").unwrap();
        assert_eq!(west.addresses, ["10.1.0.1:34601", "node-1.west:34601"]);
        let options = west.options().unwrap();
        assert!(options.tls.is_none() && options.credentials.is_none());
    }

    #[test]
    fn what_cannot_be_is_told_with_the_place() {
        for (text, reason) in [
            ("meta_nodes = []", "clusters.west: meta_nodes: the address of at least one"),
            ("meta_nodes = [\"a\"]", "clusters.west: meta_nodes: \"a\" is not of the form"),
            ("meta_nodes = [\"a:1\"]\nuser = \"u\"", "clusters.west: user and password_file go together"),
            ("meta_nodes = [\"a:1\"]\nuser = \"u\"\npassword_file = \"p\"", "on encrypted connections only"),
            ("meta_nodes = [\"a:1\"]\nca = \"c\"", "unknown field `ca`"),
            ("meta_nodes = [\"a:1\"]\n[tls]\nca = \"/absent/ca.pem\"", "clusters.west: tls.ca"),
            ("meta_nodes = [\"a:1\"]\n[tls]\nca = \"c\"\nkey = \"k\"", "tls.certificate and tls.key go together"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let section: ClusterSection = toml::from_str("meta_nodes = [\"a:1\"]").unwrap();
        let error = checked(BTreeMap::from([("a.b".to_owned(), section)])).unwrap_err();
        assert!(format!("{error:#}").contains("cluster name \"a.b\" is not allowed"), "{error:#}");
    }
}
