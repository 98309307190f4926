//! The client: connects to a cluster and opens tables.

use crate::cluster::{ANY_NODE_PATIENCE, Cluster, Question, Sort};
use crate::error::{ErrorKind, Result};
use crate::handle::Handle;
use crate::hedging::{HedgeMetrics, TableOptions};
use crate::lock::lock;
use crate::options::ClientOptions;
use crate::ordered::{OrderedTable, wrong_kind};
use crate::resolve::{check_form, resolve};
use crate::routes::Routes;
use crate::runtime::now;
use crate::session::Session;
use crate::table::Table;
use hedgerow_routing::{Address, TableKind};
use hedgerow_wire::Body;
use hedgerow_wire::message::ClusterInfo;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The least time that opening a table and admin operations get: they may have to wait for an election.
const ADMIN_TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// A connection to a cluster. Cheap to clone; all clones share their connections and their identity.
///
/// Must be used inside a Tokio runtime, of either kind. Dropping the last clone, with the last table handle, closes the
/// connections.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) cluster: Arc<Cluster>,
    tables: Arc<Mutex<BTreeMap<String, Arc<Routes>>>>,
}

impl Client {
    /// Connects to the cluster that the nodes at `addresses` ("host:port") belong to. One reachable node is enough.
    ///
    /// Fails with [`ErrorKind::Unreachable`] or [`ErrorKind::Timeout`] if none of them answers.
    pub async fn connect<A: AsRef<str>>(addresses: &[A]) -> Result<Self> {
        Self::connect_with(addresses, ClientOptions::default()).await
    }

    /// As [`Client::connect`], with settings. Fails with [`ErrorKind::NotAllowed`] if no node lets in who [`ClientOptions::credentials`] says.
    pub async fn connect_with<A: AsRef<str>>(addresses: &[A], options: ClientOptions) -> Result<Self> {
        options.check()?;
        let seeds = resolve(addresses, options.connect_timeout).await?;
        let client = Self::of(seeds, addresses, options);
        client.ping().await?;
        Ok(client)
    }

    /// As [`Client::connect_with`], and asks nobody yet: names are looked up, and connections made, when a table is opened or something else
    /// is asked for. To open a table waits up to ten seconds for a node that answers, and may be tried again. Fails with
    /// [`ErrorKind::Invalid`] if an address is not of the form host:port.
    pub fn lazy<A: AsRef<str>>(addresses: &[A], options: ClientOptions) -> Result<Self> {
        check_form(addresses)?;
        options.check()?;
        let seeds = addresses.iter().filter_map(|address| address.as_ref().trim().parse().ok()).collect();
        Ok(Self::of(seeds, addresses, options))
    }

    fn of<A: AsRef<str>>(seeds: Vec<Address>, addresses: &[A], options: ClientOptions) -> Self {
        let names = addresses.iter().map(|address| address.as_ref().trim().to_owned()).collect();
        let cluster = Arc::new(Cluster::new(seeds, options).with_names(names));
        Self { cluster, tables: Arc::new(Mutex::new(BTreeMap::new())) }
    }

    /// Opens the hash table `name`. Fails with [`ErrorKind::NoTable`] if there is none, with [`ErrorKind::Invalid`] if it
    /// is an ordered table.
    pub async fn open_table(&self, name: &str) -> Result<Table> {
        let routes = self.routes(name).await?;
        match routes.with_map(|map| map.kind()) {
            TableKind::Hash => Ok(Table { handle: Handle::new(routes) }),
            TableKind::Ordered => Err(wrong_kind(name, true)),
        }
    }

    /// Opens the ordered table `name`. Fails with [`ErrorKind::NoTable`] if there is none, with [`ErrorKind::Invalid`] if
    /// it is a hash table.
    pub async fn open_ordered_table(&self, name: &str) -> Result<OrderedTable> {
        let routes = self.routes(name).await?;
        match routes.with_map(|map| map.kind()) {
            TableKind::Ordered => Ok(OrderedTable { handle: Handle::new(routes) }),
            TableKind::Hash => Err(wrong_kind(name, false)),
        }
    }

    /// As [`Client::open_table`], with settings. A number is Pegasus' backup request delay, ms: a read without a reply
    /// after it is sent to one more replica; 0 or less = off, as [`Client::open_table`] is.
    pub async fn open_table_with(&self, name: &str, options: impl Into<TableOptions>) -> Result<Table> {
        Ok(Table { handle: self.open_table(name).await?.handle.opened_with(options.into()) })
    }

    /// As [`Client::open_ordered_table`], with settings; see [`Client::open_table_with`].
    pub async fn open_ordered_table_with(&self, name: &str, options: impl Into<TableOptions>) -> Result<OrderedTable> {
        Ok(OrderedTable { handle: self.open_ordered_table(name).await?.handle.opened_with(options.into()) })
    }

    /// Ends this client and its clones in order: later requests are refused as [`ErrorKind::Invalid`], those under way have `patience` to end,
    /// and then the connections are closed. What has not ended by then fails, a write with an outcome that is not known; of a batch, what
    /// had not begun fails as a later request does. Returns whether nothing was under way any more.
    ///
    /// Clients that are dropped, with their last table, close their connections at once.
    pub async fn close(&self, patience: Duration) -> bool {
        self.cluster.close(patience).await
    }

    /// What this client's hedged tables have done so far, those included whose handles are gone.
    pub fn hedge_metrics(&self) -> HedgeMetrics {
        self.cluster.metrics.metrics(self.cluster.alarm.late_alarms())
    }

    /// How the keys of the table `name` are spread.
    pub async fn table_kind(&self, name: &str) -> Result<TableKind> {
        Ok(self.routes(name).await?.with_map(|map| map.kind()))
    }

    /// A session that has seen nothing yet; see [`Session`].
    pub fn session(&self) -> Session {
        Session::new()
    }

    /// Asks until some node answers.
    async fn ping(&self) -> Result<()> {
        let body = Body::ClusterInfo(ClusterInfo {});
        let deadline = now() + self.cluster.options.connect_timeout.max(Duration::from_secs(1));
        let question = Question { body: &body, deadline, patience: ANY_NODE_PATIENCE, sort: Sort::Look };
        match self.cluster.ask(question).await {
            // A node that answers anything is a node.
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                // What was asked needs no right: the user was not let in.
                ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::NotAllowed => Err(error),
                ErrorKind::Invalid
                | ErrorKind::FailedPrecondition
                | ErrorKind::TooLarge
                | ErrorKind::NoTable
                | ErrorKind::TableExists
                | ErrorKind::Unavailable
                | ErrorKind::Forgotten
                | ErrorKind::DiskFull
                | ErrorKind::Storage
                | ErrorKind::Protocol => Ok(()),
            },
        }
    }

    /// The number by which the cluster knows this client's writes.
    pub fn id(&self) -> u64 {
        self.cluster.client_id
    }

    /// The table's routes, shared by all who open it. A known table is looked up again if its map could not be fetched
    /// lately: it may have been dropped and created anew.
    pub(crate) async fn routes(&self, name: &str) -> Result<Arc<Routes>> {
        let _under_way = self.cluster.begin()?;
        let known = lock(&self.tables).get(name).cloned();
        if let Some(routes) = known.filter(|routes| routes.failure().is_none()) {
            return Ok(routes);
        }
        let routes = Routes::open(self.cluster.clone(), name, now() + self.admin_timeout()).await?;
        lock(&self.tables).insert(name.to_owned(), routes.clone());
        Ok(routes)
    }

    /// Waits until the table that this client has created or recalled as number `id` can be opened.
    pub(crate) async fn expect(&self, name: &str, id: u64) -> Result<()> {
        self.forget(name);
        let routes = Routes::expect(self.cluster.clone(), name, id, now() + self.admin_timeout()).await?;
        lock(&self.tables).insert(name.to_owned(), routes);
        Ok(())
    }

    /// Forgets a table that this client has dropped or created.
    pub(crate) fn forget(&self, name: &str) {
        lock(&self.tables).remove(name);
    }

    pub(crate) fn admin_timeout(&self) -> Duration {
        self.cluster.options.operation_timeout.max(ADMIN_TIMEOUT_MIN)
    }
}
