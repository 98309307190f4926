//! The table that is told.

use crate::duplicator::Connect;
use futures_util::future::try_join_all;
use hedgerow_client::TableKind;
use hedgerow_client::duplication::Journals;
use hedgerow_types::journal::DUPLICATE_CHANGES_MAX;
use hedgerow_wire::message::RowChange;
use std::collections::BTreeMap;

/// Bytes of keys and values that one request has, but for the last row.
const REQUEST_SIZE: usize = 512 << 10;

/// A table of another cluster. Connected when it is first told something, and anew after an error.
pub(crate) struct Remote {
    connect: Connect,
    cluster: String,
    table: String,
    open: Option<Open>,
}

struct Open {
    journals: Journals,
    /// The number of its cluster.
    number: u64,
}

impl Remote {
    pub(crate) fn new(connect: Connect, cluster: &str, table: &str) -> Self {
        Self { connect, cluster: cluster.to_owned(), table: table.to_owned(), open: None }
    }

    /// Has `changes` done there, those of each of its partitions in their order. An error does not tell which were.
    pub(crate) async fn tell(&mut self, kind: TableKind, changes: Vec<RowChange>) -> Result<(), String> {
        if changes.is_empty() {
            return Ok(());
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => self.connect(kind).await?,
        };
        open.tell(changes).await?;
        // Only what has answered is kept: what was renewed, a password or the table itself, is then looked at anew.
        self.open = Some(open);
        Ok(())
    }

    async fn connect(&self, kind: TableKind) -> Result<Open, String> {
        let client = (self.connect)(&self.cluster).await?;
        let of = |error: hedgerow_client::Error| error.to_string();
        let number = client.cluster_number().await.map_err(of)?;
        let journals = client.open_journals(&self.table).await.map_err(of)?;
        if journals.kind() != kind {
            return Err(format!("table {:?} there is not of the same kind, hash or ordered", self.table));
        }
        Ok(Open { journals, number })
    }
}

impl Open {
    async fn tell(&self, changes: Vec<RowChange>) -> Result<(), String> {
        let mut by_partition: BTreeMap<u32, Vec<RowChange>> = BTreeMap::new();
        for change in changes {
            let partition = self.journals.partition_of(&change.key).map_err(|error| error.to_string())?;
            by_partition.entry(partition).or_default().push(change);
        }
        let told = by_partition.into_iter().map(|(partition, changes)| self.tell_partition(partition, changes));
        try_join_all(told).await.map(drop)
    }

    async fn tell_partition(&self, partition: u32, changes: Vec<RowChange>) -> Result<(), String> {
        let (mut some, mut size) = (Vec::new(), 0);
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            size += change.key.len() + change.value.len();
            some.push(change);
            if size >= REQUEST_SIZE || some.len() >= DUPLICATE_CHANGES_MAX || changes.peek().is_none() {
                size = 0;
                let told = self.journals.duplicate(partition, self.number, std::mem::take(&mut some)).await;
                told.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
