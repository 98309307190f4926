//! What a caller may set about a client; the defaults suit a cluster within one building.

use crate::credentials::Credentials;
use crate::error::{Error, Result};
use crate::profile::Profile;
use crate::reading::ReadOptions;
use hedgerow_hedge::BudgetOptions;
use hedgerow_routing::Labels;
use hedgerow_tls::ClientTls;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shortest operation timeout.
const OPERATION_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Settings of a [`crate::Client`]. Every field has a default, so name only what differs:
///
/// ```
/// use hedgerow_client::ClientOptions;
/// use std::time::Duration;
///
/// let options = ClientOptions { operation_timeout: Duration::from_millis(200), ..ClientOptions::default() };
/// assert_eq!(options.connections_per_node, 1);
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long one operation may take, retries included. Range 1 ms to 1 h; default 1 s, as in Pegasus' clients.
    pub operation_timeout: Duration,
    /// How long one attempt may wait for its reply before the client asks for a fresh map and sends the request again.
    /// It bounds what a node that neither answers nor hangs up can cost. `None` (default): half of `operation_timeout`. On
    /// hedged tables the late attempt goes on and may still win, and another one is sent beside it.
    pub attempt_timeout: Option<Duration>,
    /// Connections to each node, 1 to 64; default 1. Requests are pipelined, so more help only where one connection's
    /// kernel work is the limit.
    pub connections_per_node: usize,
    /// How long connecting may take. Default 1 s.
    pub connect_timeout: Duration,
    /// How this client is known to the exactly-once table of the cluster. `None` (default): drawn from the operating
    /// system. Two clients must never share one.
    pub client_id: Option<u64>,
    /// How tables are read that are not told otherwise; default: at the leader, at the table's level.
    pub read: ReadOptions,
    /// What extra attempts of all kinds may cost together, over all tables: hedges, ties, fallbacks, and retries of what
    /// may still be under way. A table may have a budget of its own ([`crate::HedgeOptions::budget`]). Plain tables, which
    /// are not hedged, neither add to it nor take from it. Default: 5 extra attempts for 100 requests, and 20 at
    /// once, or what the first attempts of about ten seconds add where that is more.
    pub budget: BudgetOptions,
    /// Ways to make requests that differ from these settings, by name: [`crate::Table::profile`]. Default: none.
    pub profiles: BTreeMap<String, Profile>,
    /// Where this client stands, in the words of the nodes' own labels, for modes that prefer near replicas. Default:
    /// none.
    pub labels: Labels,
    /// What connections are encrypted with, for clusters that want it: [`ClientTls::load`] reads it from files. `None` (default): they
    /// are not encrypted.
    pub tls: Option<ClientTls>,
    /// The user that this client logs in as on each new connection, and its password. Needs `tls` (else [`crate::ErrorKind::Invalid`]) that shows no
    /// certificate (else nodes offer no login: [`crate::ErrorKind::NotAllowed`]). A password that was changed needs a new client; one that was refused
    /// is not tried again for 5 s, and longer each time, a minute at most. `None` (default): whoever the certificate of `tls` says, if it has one.
    pub credentials: Option<Credentials>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            operation_timeout: Duration::from_secs(1),
            attempt_timeout: None,
            connections_per_node: 1,
            connect_timeout: Duration::from_secs(1),
            client_id: None,
            read: ReadOptions::default(),
            budget: BudgetOptions::default(),
            profiles: BTreeMap::new(),
            labels: Labels::default(),
            tls: None,
            credentials: None,
        }
    }
}

impl ClientOptions {
    /// Most connections to one node.
    pub const CONNECTIONS_PER_NODE_MAX: usize = 64;
    /// The longest operation timeout.
    pub const OPERATION_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

    /// Whether they go together.
    pub(crate) fn check(&self) -> Result<()> {
        if self.credentials.is_some() && self.tls.is_none() {
            return Err(Error::invalid("a password is proven on encrypted connections only: set what TLS needs"));
        }
        Ok(())
    }

    /// The settings with every value moved into its range.
    pub(crate) fn clamped(mut self) -> Self {
        let least = OPERATION_TIMEOUT_MIN;
        self.operation_timeout = self.operation_timeout.clamp(least, Self::OPERATION_TIMEOUT_MAX);
        self.attempt_timeout = self.attempt_timeout.map(|timeout| timeout.clamp(least, self.operation_timeout));
        self.connections_per_node = self.connections_per_node.clamp(1, Self::CONNECTIONS_PER_NODE_MAX);
        self.connect_timeout = self.connect_timeout.clamp(least, Self::OPERATION_TIMEOUT_MAX);
        self
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        let operation = self.operation_timeout;
        Timeouts { operation, attempt: self.attempt_timeout.unwrap_or(operation / 2) }
    }

    /// Those of an operation that may take `timeout` instead.
    pub(crate) fn timeouts_within(&self, timeout: Duration) -> Timeouts {
        let operation = timeout.clamp(OPERATION_TIMEOUT_MIN, Self::OPERATION_TIMEOUT_MAX);
        let half = operation / 2;
        Timeouts { operation, attempt: self.attempt_timeout.map_or(half, |attempt| attempt.min(half)) }
    }
}

/// How long an operation, and one attempt of it, may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) operation: Duration,
    pub(crate) attempt: Duration,
}
