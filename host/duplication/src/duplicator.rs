//! Which partitions are carried where, looked at again and again.

use crate::carrier::{Carrier, Work};
use crate::remote::Remote;
use hedgerow_client::duplication::{pause, spawn};
use hedgerow_client::{Client, Error, TableStatus};
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the tables are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A client of another cluster, or why there is none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Client, String>> + Send>>;

/// Connects to the cluster of the name.
pub type Connect = Arc<dyn Fn(&str) -> Connecting + Send + Sync>;

/// Carries what one node leads to other clusters, for as long as it is not dropped.
pub struct Duplicator {
    source: Client,
    /// Where the node serves clients, as the cluster's status says it.
    own: String,
    connect: Connect,
    /// By table id, duplication and partition.
    carried: BTreeMap<(u64, u64, u32), Carried>,
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
    /// For the node that serves clients at `own`. `source` is a client of its cluster that may do everything with its tables.
    pub fn new(source: Client, own: String, connect: Connect) -> Self {
        Self { source, own, connect, carried: BTreeMap::new() }
    }

    /// Carries until it is dropped.
    pub async fn run(mut self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "the tables to duplicate are not known");
            }
            pause(LOOK_INTERVAL).await;
        }
    }

    /// Starts carriers for what is to be carried and is not, and ends the others.
    async fn look(&mut self) -> Result<(), Error> {
        let mut wanted = BTreeMap::new();
        for table in self.source.list_tables().await? {
            let duplications: Vec<_> = table.options.iter().filter_map(duplication_of).collect();
            if duplications.is_empty() || !table.is_available {
                continue;
            }
            let Ok(status) = self.source.describe_table(&table.name).await else {
                // What goes on there goes on.
                let known = self.carried.iter().filter(|(key, _)| key.0 == table.id);
                wanted.extend(known.map(|(key, carried)| (*key, carried.work.clone())));
                continue;
            };
            for (cluster, duplication) in duplications {
                if duplication.state == State::Removing {
                    if let Err(error) = self.remove(&status, cluster, &duplication).await {
                        tracing::warn!(table = table.name, cluster, %error, "a duplication is not removed yet");
                    }
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
                self.carry(key, work);
            }
        }
        Ok(())
    }

    fn carry(&mut self, key: (u64, u64, u32), work: Work) {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let remote = Remote::new(Arc::clone(&self.connect), &work.cluster, &work.duplication.table);
        let carrier = Carrier::new(self.source.clone(), remote, work.clone(), Arc::clone(&is_wanted));
        spawn(carrier.run());
        self.carried.insert(key, Carried { work, is_wanted });
    }

    /// Ends a duplication in all partitions, and then forgets it. Done by the node that leads the first one.
    async fn remove(&self, table: &TableStatus, cluster: &str, duplication: &Duplication) -> Result<(), Error> {
        let leads = table.partitions.first().is_some_and(|it| it.leader.as_deref() == Some(&self.own));
        if !leads {
            return Ok(());
        }
        let journals = self.source.open_journals(&table.name).await?;
        for partition in &table.partitions {
            journals.end(partition.index, duplication.id).await?;
        }
        self.source.set_option(&table.name, &format!("{OPTION_PREFIX}{cluster}"), "").await?;
        tracing::info!(table = table.name, cluster, "a duplication is removed");
        Ok(())
    }
}

/// What an option says of a duplication, and to which cluster, if it is about one.
fn duplication_of<'o>((name, value): (&'o String, &'o String)) -> Option<(&'o str, Duplication)> {
    let cluster = name.strip_prefix(OPTION_PREFIX)?;
    Some((cluster, value.parse().ok()?))
}
