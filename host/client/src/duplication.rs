//! What duplication between clusters needs of both of them. For the crate `hedgerow-duplication`, which does it; what a cluster duplicates
//! is said by a table's options.

use crate::client::Client;
use crate::cluster::{Question, Sort};
use crate::error::{Error, ErrorKind, Result};
use crate::handle::Handle;
use crate::record::{mismatch, read_update};
use crate::routes::{Destination, Routes};
use crate::runtime::{self, now};
use bytes::Bytes;
use hedgerow_routing::{Address, TableKind};
use hedgerow_types::{PartitionIndex, Status, TableId, key};
use hedgerow_wire::message::{ClusterInfo, Duplicate, JOURNAL_END, JournalRead, JournalReply, JournalWrite, RowChange};
use hedgerow_wire::{Body, Reply};
use std::sync::Arc;
use std::time::Duration;

pub use tokio::time::Instant;

/// The journals of a table's partitions, and the way for foreign changes into them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journals {
    handle: Handle,
}

impl Client {
    /// The number of the cluster that this client talks to.
    pub async fn cluster_number(&self) -> Result<u64> {
        let _under_way = self.cluster.begin()?;
        let timeout = self.admin_timeout();
        let body = Body::ClusterInfo(ClusterInfo {});
        let question = Question { body: &body, deadline: now() + timeout, patience: timeout, sort: Sort::Look };
        let Reply::ClusterInfo(reply) = self.cluster.ask(question).await? else {
            return Err(mismatch("cluster_info"));
        };
        let told = reply.keys.iter().zip(&reply.values).find(|(key, _)| key.as_str() == "cluster_id");
        let number = told.and_then(|(_, value)| u64::from_str_radix(value.as_str(), 16).ok());
        number.filter(|number| *number != 0).ok_or_else(|| Error::protocol("the cluster does not say its number"))
    }

    /// The journals of the table `name`.
    pub async fn open_journals(&self, name: &str) -> Result<Journals> {
        let routes = self.routes(name).await?;
        let timeouts = routes.cluster.options.timeouts();
        Ok(Journals { handle: Handle { routes, reading: None, hedging: None, timeouts } })
    }
}

impl Journals {
    fn routes(&self) -> &Arc<Routes> {
        &self.handle.routes
    }

    /// The table.
    pub fn table(&self) -> TableId {
        self.routes().table()
    }

    /// How its keys are spread.
    pub fn kind(&self) -> TableKind {
        self.routes().with_map(|map| map.kind())
    }

    /// How many partitions there are.
    pub fn partition_count(&self) -> u32 {
        self.routes().with_map(|map| map.partition_count())
    }

    /// Who leads a partition, as far as known. Has the map fetched again, in the background, if it is old.
    pub fn leader(&self, partition: PartitionIndex) -> Option<Address> {
        let replicas = self.routes().replicas(Destination::Partition(partition));
        replicas.first().filter(|(_, role)| *role == crate::served::Role::Leader).map(|(address, _)| *address)
    }

    /// The partition of the row with this full key.
    pub fn partition_of(&self, full_key: &[u8]) -> Result<PartitionIndex> {
        let (hash_key, sort_key) =
            key::split_full_key(full_key).ok_or_else(|| Error::protocol("a key has no full form"))?;
        Ok(self.routes().with_map(|map| match map.kind() {
            TableKind::Hash => key::partition_of_hash(key::partition_hash(hash_key, sort_key), map.partition_count()),
            TableKind::Ordered => map.partition_for_key(sort_key),
        }))
    }

    /// What the duplication `id` is to tell next of a partition: from `from` on, as a reply of `round` said it, or, if that is empty, from
    /// where it is.
    pub async fn read_from(
        &self,
        partition: PartitionIndex,
        id: u64,
        (round, from): (i32, Bytes),
        bytes_max: u32,
    ) -> Result<JournalReply> {
        let bytes_max = i32::try_from(bytes_max).unwrap_or(i32::MAX);
        let body = Body::HedgerowJournalRead(JournalRead { id, from, bytes_max, round });
        let Reply::Journal(reply) = self.handle.call(Destination::Partition(partition), &body).await? else {
            return Err(mismatch("journal"));
        };
        match Status::from_code(reply.error) {
            Some(Status::Ok) => Ok(reply),
            status => Err(Error::from_status(status, "journal")),
        }
    }

    /// The same from where the duplication is.
    pub async fn read(&self, partition: PartitionIndex, id: u64, bytes_max: u32) -> Result<JournalReply> {
        self.read_from(partition, id, (0, Bytes::new()), bytes_max).await
    }

    /// Changes a partition's journal. Fails with [`ErrorKind::FailedPrecondition`] if the cluster is another one than the write says, has as
    /// many duplications of the table as there may be, or never was where it says.
    pub async fn write(&self, partition: PartitionIndex, write: JournalWrite) -> Result<()> {
        let reply = self.handle.call(Destination::Partition(partition), &Body::HedgerowJournalWrite(write)).await?;
        taken(reply, "the journal does not take it: another cluster, too many duplications, or a place that never was")
    }

    /// Ends a duplication in all partitions, one after the other.
    pub async fn end_everywhere(&self, id: u64) -> Result<()> {
        for partition in 0..self.partition_count() {
            self.end(partition, id).await?;
        }
        Ok(())
    }

    /// Ends a duplication in a partition, and has it remove what it kept for it alone.
    pub async fn end(&self, partition: PartitionIndex, id: u64) -> Result<()> {
        loop {
            self.write(partition, JournalWrite { action: JOURNAL_END, id, ..JournalWrite::default() }).await?;
            if self.read(partition, id, 1).await?.unneeded == 0 {
                return Ok(());
            }
        }
    }

    /// What stands for the table in the cluster of this number: another number for a table that has the name after it.
    pub fn target(&self, cluster: u64) -> u64 {
        cluster.wrapping_add(u64::from(self.table().0).wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1
    }

    /// Does in a partition what was done in another cluster, where nothing later was done here. `cluster` is the number of this one. Fails
    /// with [`ErrorKind::FailedPrecondition`] if it is not, or if a change is more than an hour ahead of the partition's time.
    pub async fn duplicate(&self, partition: PartitionIndex, cluster: u64, changes: Vec<RowChange>) -> Result<()> {
        let body = Body::HedgerowDuplicate(Duplicate { cluster, changes });
        let reply = self.handle.call(Destination::Partition(partition), &body).await?;
        taken(reply, "the changes are not taken: of another cluster, or more than an hour ahead of its time")
    }
}

fn taken(reply: Reply, otherwise: &str) -> Result<()> {
    match read_update(reply, "duplicate") {
        Err(error) if error.kind() == ErrorKind::Invalid => Err(Error::failed_precondition(otherwise)),
        result => result,
    }
}

/// Runs `task` beside the caller, on what the client runs on.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    runtime::spawn(task);
}

/// Waits for `delay`, by the clock of what the client runs on.
pub async fn pause(delay: Duration) {
    runtime::sleep(delay).await;
}

/// The time of what the client runs on.
pub fn present() -> Instant {
    now()
}
