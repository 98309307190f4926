//! What certificates call nodes, clients and clusters: DNS names below `hedgerow.internal`, a suffix that nobody can register.

use crate::files::{self, FileError};
use crate::issue;
use rustls::pki_types::{DnsName, ServerName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Most characters of a cluster's name, and of a client's: what one part of a DNS name may have, less `client-`.
pub const CLUSTER_NAME_MAX: usize = 56;

/// The name of a cluster in its certificates: 1 to 56 lower-case letters, digits and `-`, none of them at an end being `-`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterName(String);

/// A name that a certificate cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for a certificate: allowed are 1 to 56 of a-z, 0-9 and \"-\", which is neither first nor last"
)]
pub struct NameError(String);

fn check(name: &str) -> Result<(), NameError> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=CLUSTER_NAME_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name { Ok(()) } else { Err(NameError(name.to_owned())) }
}

impl ClusterName {
    /// `name`, if a cluster can be called so.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check(name).map(|()| Self(name.to_owned()))
    }

    /// The one whose authority this is, if [`crate::Authority`] made it.
    pub fn of_authority(ca: &Path) -> Result<Self, FileError> {
        let certificates = files::certificates(ca)?;
        let reason = "does not say which cluster it is for: give tls.cluster, or --tls-cluster";
        issue::cluster_of(&certificates[0])
            .ok_or_else(|| FileError::Unfit { path: ca.to_path_buf(), reason: reason.to_owned() })
    }

    /// What every node's certificate says, so that clients can tell the cluster's nodes from others.
    pub fn any_node(&self) -> String {
        format!("{}.hedgerow.internal", self.0)
    }

    /// What only this node's certificate says.
    pub fn node(&self, number: u16) -> String {
        format!("node-{number}.{}.hedgerow.internal", self.0)
    }

    /// Whether `name`, which stands in a certificate, is one of this cluster's.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        let any = self.any_node();
        name.strip_suffix(&any).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }

    /// The client that `name` is of, if it stands in the certificate of one of this cluster's clients.
    pub(crate) fn client_in<'a>(&self, name: &'a str) -> Option<&'a str> {
        let client = name.strip_suffix(&self.any_node())?.strip_suffix('.')?.strip_prefix("client-")?;
        check(client).is_ok().then_some(client)
    }

    /// What a client's certificate says.
    pub fn client(&self, name: &str) -> Result<String, NameError> {
        check(name).map(|()| format!("client-{name}.{}.hedgerow.internal", self.0))
    }
}

impl TryFrom<String> for ClusterName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(&name)
    }
}

impl From<ClusterName> for String {
    fn from(name: ClusterName) -> Self {
        name.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The form in which a certificate is asked for one of the names above.
pub(crate) fn asked(name: String) -> ServerName<'static> {
    // All of them are DNS names: `check` sees to what varies.
    ServerName::DnsName(DnsName::try_from(name).expect("made of checked parts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_clusters_are_told_from_ones_own() {
        let (own, other) = (ClusterName::new("prod").unwrap(), ClusterName::new("pre-prod").unwrap());
        for name in [own.any_node(), own.node(7), own.client("app").unwrap()] {
            assert!(own.is_of(&name) && !other.is_of(&name), "{name}");
        }
        assert!(!own.is_of(&other.any_node()) && !own.is_of("example.com") && !own.is_of(""));
    }

    #[test]
    fn clients_are_known_by_their_names_in_this_cluster_alone() {
        let (own, other) = (ClusterName::new("prod").unwrap(), ClusterName::new("pre-prod").unwrap());
        assert_eq!(own.client_in(&own.client("app-1").unwrap()), Some("app-1"));
        assert_eq!(own.client_in(&own.client("client-x").unwrap()), Some("client-x"));
        let none =
            [own.any_node(), own.node(7), other.client("app").unwrap(), "client-a.b.prod.hedgerow.internal".into()];
        assert!(none.iter().all(|name| own.client_in(name).is_none()), "{none:?}");
    }

    #[test]
    fn names_are_what_dns_allows() {
        let longest = "a".repeat(CLUSTER_NAME_MAX);
        for name in ["a", "prod-2", "0", &longest] {
            let cluster = ClusterName::new(name).unwrap();
            asked(cluster.any_node());
            asked(cluster.node(u16::MAX));
            asked(cluster.client(name).unwrap());
        }
        let too_long = "a".repeat(CLUSTER_NAME_MAX + 1);
        for name in ["", "-a", "a-", "A", "a.b", "a b", "ä", "*", &too_long] {
            let error = ClusterName::new(name).unwrap_err().to_string();
            assert!(error.contains("allowed are 1 to 56"), "{error}");
            assert!(ClusterName::new("a").unwrap().client(name).is_err());
        }
    }
}
