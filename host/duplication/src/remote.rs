//! The other cluster, and the table there that is told.

use crate::duplicator::Connect;
use futures_util::future::try_join_all;
use hedgerow_client::duplication::{Instant, Journals, present};
use hedgerow_client::{Client, Error, ErrorKind, TableKind};
use hedgerow_types::journal::DUPLICATE_CHANGES_MAX;
use hedgerow_wire::message::RowChange;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Bytes of keys and values that one request has, but for the last row.
const REQUEST_SIZE: usize = 512 << 10;

/// For so long nobody tries again to connect with a cluster that could not be connected with: many wait for the same.
const FAILURE_LASTS: Duration = Duration::from_secs(1);

/// How often it is asked whether a table is there, and the same as before, where nothing is told to it.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Another cluster. All that carry something there share a client of it, which is made when it is first needed, and anew after an error.
pub(crate) struct Cluster {
    connect: Connect,
    name: String,
    member: Mutex<Option<Member>>,
    /// Why there was none when it was tried last, and when: those who waited meanwhile are told the same.
    failure: std::sync::Mutex<Option<(String, Instant)>>,
    /// By the tables' names.
    tables: Mutex<BTreeMap<String, Asked>>,
}

/// The number of a table there, or why it is not known, and when that was asked.
type Asked = (Result<u64, String>, Instant);

/// A client of another cluster.
#[derive(Clone)]
struct Member {
    client: Client,
    /// The cluster's number.
    number: u64,
}

impl Cluster {
    pub(crate) fn new(connect: Connect, name: &str) -> Self {
        Self {
            connect,
            name: name.to_owned(),
            member: Mutex::default(),
            failure: std::sync::Mutex::default(),
            tables: Mutex::default(),
        }
    }

    async fn member(&self) -> Result<Member, String> {
        let mut known = self.member.lock().await;
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let failure = self.failure().clone();
        if let Some((error, _)) = failure.filter(|(_, at)| present() - *at < FAILURE_LASTS) {
            return Err(error);
        }
        let made = self.connect().await;
        *self.failure() = made.as_ref().err().map(|error| (error.clone(), present()));
        Ok(known.insert(made?).clone())
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<(String, Instant)>> {
        self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Member, String> {
        let client = (self.connect)(&self.name).await?;
        let number = client.cluster_number().await.map_err(|error| self.said(&error))?;
        Ok(Member { client, number })
    }

    /// The number of the table that has the name now: as it was at most [`CHECK_INTERVAL`] ago.
    async fn number_of(&self, table: &str, member: &Member) -> Result<u64, String> {
        let mut tables = self.tables.lock().await;
        if let Some((known, at)) = tables.get(table)
            && present() - *at < CHECK_INTERVAL
        {
            return known.clone();
        }
        let asked = match member.client.describe_table(table).await {
            Ok(status) => Ok(status.id),
            Err(error) => {
                self.forget_after(&error, member).await;
                Err(self.said(&error))
            }
        };
        tables.insert(table.to_owned(), (asked.clone(), present()));
        asked
    }

    /// What is wrong there.
    fn said(&self, error: &Error) -> String {
        format!("in {}: {error}", self.name)
    }

    /// What was renewed, such as a password, is looked at anew by the next one where nodes do not answer, or not this client.
    async fn forget_after(&self, error: &Error, member: &Member) {
        if matches!(
            error.kind(),
            ErrorKind::NotAllowed | ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::FailedPrecondition
        ) {
            self.forget(member).await;
        }
    }

    /// The next one gets another client, which knows nothing yet.
    async fn forget(&self, member: &Member) {
        self.member.lock().await.take_if(|known| known.client.id() == member.client.id());
    }
}

/// A table of another cluster. Opened when it is first told something, and anew after an error.
pub(crate) struct Remote {
    cluster: Arc<Cluster>,
    table: String,
    open: Option<Open>,
}

struct Open {
    journals: Journals,
    member: Member,
    /// What stood for the table when it was opened: the client goes by its name, and may find another one that has it by now.
    target: u64,
}

impl Remote {
    pub(crate) fn new(cluster: Arc<Cluster>, table: &str) -> Self {
        Self { cluster, table: table.to_owned(), open: None }
    }

    /// What stands for the table that is told, which has to be of this kind.
    pub(crate) async fn target(&mut self, kind: TableKind) -> Result<u64, String> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.open(kind).await?,
        };
        let target = open.target;
        self.open = Some(open);
        Ok(target)
    }

    /// Has `changes` done there, those of each of its partitions in their order. An error does not tell which were. To be called after
    /// [`Remote::target`].
    pub(crate) async fn tell(&mut self, changes: Vec<RowChange>) -> Result<(), String> {
        let Some(open) = self.open.take() else { return Err("the table there is not open".to_owned()) };
        if let Err(error) = open.tell(changes).await {
            self.cluster.forget_after(&error, &open.member).await;
            return Err(self.cluster.said(&error));
        }
        if open.journals.target(open.member.number) != open.target {
            // What was told just now may have gone to that one, which was told nothing before.
            return Err(format!("in {}: table {} was made anew", self.cluster.name, self.table));
        }
        self.open = Some(open);
        Ok(())
    }

    /// An error if the table is not there any more, or another one has its name, which nobody would see where nothing is told.
    pub(crate) async fn check(&mut self) -> Result<(), String> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let number = self.cluster.number_of(&self.table, &open.member).await?;
        if number != u64::from(open.journals.table().0) {
            // The client goes by the one that it knows.
            self.cluster.forget(&open.member).await;
            return Err(format!("in {}: table {} was made anew", self.cluster.name, self.table));
        }
        self.open = Some(open);
        Ok(())
    }

    async fn open(&self, kind: TableKind) -> Result<Open, String> {
        let member = self.cluster.member().await?;
        let journals = match member.client.open_journals(&self.table).await {
            Ok(journals) => journals,
            Err(error) => {
                self.cluster.forget_after(&error, &member).await;
                return Err(self.cluster.said(&error));
            }
        };
        if journals.kind() != kind {
            // Another one may have its name by now, and the client goes by the one that it knows.
            self.cluster.forget(&member).await;
            let (there, here) = (journals.kind().name(), kind.name());
            return Err(format!(
                "in {}: table {} is {there}, and has to be {here}, as here",
                self.cluster.name, self.table
            ));
        }
        let target = journals.target(member.number);
        Ok(Open { journals, member, target })
    }
}

impl Open {
    async fn tell(&self, changes: Vec<RowChange>) -> Result<(), Error> {
        let mut by_partition: BTreeMap<u32, Vec<RowChange>> = BTreeMap::new();
        for change in changes {
            let partition = self.journals.partition_of(&change.key)?;
            by_partition.entry(partition).or_default().push(change);
        }
        let told = by_partition.into_iter().map(|(partition, changes)| self.tell_partition(partition, changes));
        try_join_all(told).await.map(drop)
    }

    async fn tell_partition(&self, partition: u32, changes: Vec<RowChange>) -> Result<(), Error> {
        let (mut some, mut size) = (Vec::new(), 0);
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            size += change.key.len() + change.value.len();
            some.push(change);
            if size >= REQUEST_SIZE || some.len() >= DUPLICATE_CHANGES_MAX || changes.peek().is_none() {
                size = 0;
                self.journals.duplicate(partition, self.member.number, std::mem::take(&mut some)).await?;
            }
        }
        Ok(())
    }
}
