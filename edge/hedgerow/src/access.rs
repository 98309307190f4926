//! How a command gets at single nodes: by what its connections are encrypted with, and by its user's password if it has one.

use crate::runtime;
use anyhow::{Context as _, Result, bail};
use hedgerow_client::{Client, ClientOptions, ClientTls, ClusterName, Credentials, ErrorKind};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// How long a node may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What a node is asked with.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) tls: Option<ClientTls>,
    pub(crate) credentials: Option<Credentials>,
}

/// What certificates call the cluster: as it is given or, if it is not, as the authority's own says. `settings` are called so where they are given.
pub(crate) fn cluster_name(
    given: Option<&str>,
    ca: &Path,
    settings: (&'static str, &'static str),
) -> Result<ClusterName> {
    match given {
        Some(name) => ClusterName::new(name).context(settings.0),
        None => ClusterName::of_authority(ca).context(settings.1),
    }
}

impl Access {
    /// Has the node at `address`, and no other one, run an administrative command.
    pub(crate) async fn call(&self, address: &str, command: &str, argument: &str) -> Result<String> {
        if self.credentials.is_none() {
            return hedgerow_faults::call(address, command, argument, self.tls.as_ref()).await;
        }
        let Self { tls, credentials } = self.clone();
        let options = ClientOptions { tls, credentials, ..ClientOptions::default() };
        let client = Client::connect_with(&[address], options).await?;
        match client.admin(command, argument, ANSWER_MAX).await {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotAllowed | ErrorKind::Invalid | ErrorKind::FailedPrecondition | ErrorKind::NoTable
                ) =>
            {
                bail!("{address} refuses: {error}")
            }
            answer => Ok(answer?),
        }
    }

    /// What the node at `address` answers to a command without arguments, if it does within `limit`.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, address: &str, command: &str, limit: Duration) -> Result<T> {
        let answer = runtime::timeout(limit, self.call(address, command, "{}")).await;
        let answer = answer.with_context(|| format!("{address}: no answer within {} s", limit.as_secs()))??;
        serde_json::from_str(&answer).with_context(|| format!("what {address} says"))
    }
}
