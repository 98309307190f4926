//! Which partitions are carried where, looked at again and again.

use crate::carrier::{Carrier, Means, Work, turns};
use crate::remote::{Cluster, Remote};
use crate::sometimes::Sometimes;
use hedgerow_client::duplication::{pause, spawn};
use hedgerow_client::{Client, Error, ErrorKind, TableStatus};
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State, option_name};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How often the tables are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A client of another cluster, or why there is none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Client, String>> + Send>>;

/// Connects to the cluster of the name.
pub type Connect = Arc<dyn Fn(&str) -> Connecting + Send + Sync>;

/// Makes a client of the own cluster, by what is in its files now.
pub type Source = Box<dyn Fn() -> Result<Client, String> + Send + Sync>;

/// Carries what one node leads to other clusters, for as long as it is not dropped.
pub struct Duplicator {
    make_source: Source,
    /// `None` = to be made.
    source: Option<Client>,
    failures: Sometimes,
    /// Where the node serves clients, as the cluster's status says it.
    own: String,
    connect: Connect,
    /// By table id, duplication and partition.
    carried: BTreeMap<(u64, u64, u32), Carried>,
    /// How many there are.
    count: Arc<AtomicUsize>,
    /// By name: a cluster, and what those who carry there take turns by.
    clusters: BTreeMap<String, (Arc<Cluster>, Arc<Semaphore>)>,
}

struct Carried {
    work: Work,
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl Duplicator {
    /// For the node that serves clients at `own`. `make_source` gives clients of its cluster that may do everything with its tables.
    pub fn new(make_source: Source, own: String, connect: Connect) -> Self {
        Self {
            make_source,
            source: None,
            failures: Sometimes::default(),
            own,
            connect,
            carried: BTreeMap::new(),
            count: Arc::default(),
            clusters: BTreeMap::new(),
        }
    }

    /// Carries until it is dropped.
    pub async fn run(mut self) {
        loop {
            if let Err(error) = self.look_as_client().await
                && self.failures.is_due()
            {
                tracing::warn!(error, "the tables to duplicate are not known");
            }
            pause(LOOK_INTERVAL).await;
        }
    }

    /// Looks with the client there is, or another one where nodes do not believe that one any more.
    async fn look_as_client(&mut self) -> Result<(), String> {
        let source = match &self.source {
            Some(source) => source.clone(),
            None => (self.make_source)()?,
        };
        self.source = Some(source.clone());
        self.look(&source).await.map_err(|error| {
            if error.kind() == ErrorKind::NotAllowed {
                self.source = None;
                self.carried.clear();
            }
            error.to_string()
        })
    }

    /// Starts carriers for what is to be carried and is not, and ends the others.
    async fn look(&mut self, source: &Client) -> Result<(), Error> {
        let mut wanted = BTreeMap::new();
        let mut removed = Vec::new();
        for table in source.list_tables().await? {
            let duplications: Vec<_> = table.options.iter().filter_map(duplication_of).collect();
            if duplications.is_empty() || !table.is_available {
                continue;
            }
            let Ok(status) = source.describe_table(&table.name).await else {
                // What goes on there goes on.
                let known = self.carried.iter().filter(|(key, _)| key.0 == table.id);
                wanted.extend(known.map(|(key, carried)| (*key, carried.work.clone())));
                continue;
            };
            for (cluster, duplication) in duplications {
                if duplication.state == State::Removing {
                    removed.push((status.clone(), cluster.to_owned(), duplication));
                } else if duplication.state == State::Running {
                    let led = status.partitions.iter().filter(|it| it.leader.as_deref() == Some(&self.own));
                    for partition in led {
                        let work = Work {
                            table: table.name.clone(),
                            cluster: cluster.to_owned(),
                            duplication: duplication.clone(),
                            partition: partition.index,
                        };
                        wanted.insert((status.id, duplication.id, partition.index), work);
                    }
                }
            }
        }
        self.carried.retain(|key, carried| wanted.get(key) == Some(&carried.work));
        for (key, work) in wanted {
            if !self.carried.contains_key(&key) {
                self.carry(source, key, work);
            }
        }
        self.count.store(self.carried.len(), Ordering::Relaxed);
        for (table, cluster, duplication) in removed {
            if let Err(error) = self.remove(source, &table, &cluster, &duplication).await {
                tracing::warn!(table = table.name, cluster, %error, "a duplication is not removed yet");
            }
        }
        Ok(())
    }

    fn carry(&mut self, source: &Client, key: (u64, u64, u32), work: Work) {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let connect = Arc::clone(&self.connect);
        let made = || (Arc::new(Cluster::new(connect, &work.cluster)), turns());
        let (cluster, turns) = self.clusters.entry(work.cluster.clone()).or_insert_with(made);
        let remote = Remote::new(Arc::clone(cluster), &work.duplication.table);
        let means =
            Means { turns: Arc::clone(turns), count: Arc::clone(&self.count), is_wanted: Arc::clone(&is_wanted) };
        let carrier = Carrier::new(source.clone(), remote, work.clone(), means);
        spawn(carrier.run());
        self.carried.insert(key, Carried { work, is_wanted });
    }

    /// Ends a duplication in all partitions, and then forgets it. Done by the node that leads the first one.
    async fn remove(
        &self,
        source: &Client,
        table: &TableStatus,
        cluster: &str,
        duplication: &Duplication,
    ) -> Result<(), Error> {
        let leads = table.partitions.first().is_some_and(|it| it.leader.as_deref() == Some(&self.own));
        if !leads {
            return Ok(());
        }
        source.open_journals(&table.name).await?.end_everywhere(duplication.id).await?;
        // Another one may have its place by now.
        let option = option_name(cluster);
        let present = source.describe_table(&table.name).await?;
        if present.options.get(&option) != table.options.get(&option) {
            return Ok(());
        }
        source.set_option(&table.name, &option, "").await?;
        tracing::info!(table = table.name, cluster, "a duplication is removed");
        Ok(())
    }
}

/// What an option says of a duplication, and to which cluster, if it is about one.
fn duplication_of<'o>((name, value): (&'o String, &'o String)) -> Option<(&'o str, Duplication)> {
    let cluster = name.strip_prefix(OPTION_PREFIX)?;
    Some((cluster, value.parse().ok()?))
}
