//! The connections to a cluster, and how requests become calls of the client.

use crate::hedging::Counts;
use crate::keys::KeyForm;
use crate::load::Load;
use crate::mix::Request;
use crate::reading::{Counter, Reading};
use crate::reply::{Failure, Found, Reply};
use crate::workload::Kind;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use hedgerow_client::{
    Client, ClientOptions, ClientTls, Credentials, Error, Expiry, OrderedTable, Range, ReadLevel, ScanOptions, Select,
    Table,
};
use hedgerow_types::limit::SCAN_PAGE_ROWS_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sort key of a row's counter in a hash table, and the prefix of its key in an ordered one.
const COUNTER: &str = "counter";

/// A table through one or more connections to each node: each is a client of its own, as independent processes would be.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    handles: Vec<Handle>,
    form: KeyForm,
    counter: Arc<Counter>,
    /// Those whose extra attempts count; none where the load sends none.
    hedging: Vec<Client>,
    reads_sent: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
enum Handle {
    Hash(Table),
    Ordered(OrderedTable),
}

/// What all clients of a load have in common, its files read once: a password takes some milliseconds to hash.
fn options_of(load: &Load) -> Result<ClientOptions> {
    let labels = load.reading.labels.clone();
    let tls = load.tls.as_ref().map(ClientTls::load).transpose()?;
    let credentials = load.user.as_ref().map(|(user, file)| Credentials::from_file(user, file)).transpose()?;
    Ok(ClientOptions { operation_timeout: load.timeout, labels, tls, credentials, ..ClientOptions::default() })
}

/// Connects to the cluster at `addresses`.
pub(crate) async fn connect(addresses: &[String], load: &Load) -> Result<Client> {
    connect_with(addresses, options_of(load)?).await
}

async fn connect_with(addresses: &[String], options: ClientOptions) -> Result<Client> {
    let client = Client::connect_with(addresses, options).await;
    client.with_context(|| format!("cannot connect to the cluster at {}", addresses.join(",")))
}

impl Connections {
    /// Opens the load's table `count` times, to be read as the load says.
    pub(crate) async fn open(addresses: &[String], load: &Load, count: u32) -> Result<Self> {
        let counter = Arc::new(Counter::default());
        let (mut handles, mut hedging) = (Vec::with_capacity(count as usize), Vec::new());
        let (options, is_hedged) = (options_of(load)?, !load.hedging.is_off());
        for _ in 0..count.max(1) {
            let client = connect_with(addresses, options.clone()).await?;
            let handle = match load.workload.table.kind {
                Kind::Hash => Handle::Hash(client.open_table(&load.table).await?),
                Kind::Ordered => Handle::Ordered(client.open_ordered_table(&load.table).await?),
            };
            let is_plain = load.reading.is_plain();
            let handle = if is_plain { handle } else { handle.reading(&client, &load.reading, &counter) };
            handles.push(if is_hedged { handle.hedging(load) } else { handle });
            hedging.extend(is_hedged.then_some(client));
        }
        let form = KeyForm::of(&load.workload.table);
        Ok(Self { handles, form, counter, hedging, reads_sent: Arc::default() })
    }

    /// What is served counts from the moment `begin` of the machine's clock on.
    pub(crate) fn count_from(&self, begin: u64) {
        self.counter.begin_at(begin);
    }

    /// Whom to ask in the end what replicas have served.
    pub(crate) fn counter(&self) -> Arc<Counter> {
        Arc::clone(&self.counter)
    }

    /// What the clients have counted of extra attempts so far; `None` where the load sends none. Whom to ask later: the
    /// connections themselves are part of what sends the requests.
    pub(crate) fn hedge_counts(&self) -> impl Fn() -> Option<Counts> + Send + Sync + use<> {
        let clients = self.hedging.clone();
        move || (!clients.is_empty()).then(|| Counts::of(&clients))
    }

    /// Where reads are counted, those of the warm-up too.
    pub(crate) fn reads_sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reads_sent)
    }

    /// Carries out `request` on the connection of `client`.
    pub(crate) fn call(&self, client: usize, request: Request) -> impl Future<Output = Reply> + Send + use<> {
        let handle = self.handles[client % self.handles.len()].clone();
        let form = self.form;
        if request.is_read() {
            self.reads_sent.fetch_add(1, Ordering::Relaxed);
        }
        async move {
            match request {
                Request::Get { row } => Ok(found(handle.get(form, row).await?.is_some())),
                Request::Set { row, value } | Request::Insert { row, value } => {
                    handle.set(form, row, value).await?;
                    Ok(Found::All)
                }
                // In a box, so that the common requests do not carry the state of these.
                other => Box::pin(handle.call_rarer(form, other)).await.map_err(Failure::from),
            }
        }
    }

    /// The value of a row.
    pub(crate) async fn get(&self, row: u64) -> Result<Option<Bytes>, Error> {
        self.handles[0].get(self.form, row).await
    }
}

impl Handle {
    fn reading(self, client: &Client, reading: &Reading, counter: &Arc<Counter>) -> Self {
        let options = reading.options(counter);
        let session = (reading.level == Some(ReadLevel::Session)).then(|| client.session());
        match self {
            Self::Hash(table) => {
                let table = table.reading(options);
                Self::Hash(session.map_or(table.clone(), |session| table.in_session(&session)))
            }
            Self::Ordered(table) => {
                let table = table.reading(options);
                Self::Ordered(session.map_or(table.clone(), |session| table.in_session(&session)))
            }
        }
    }

    fn hedging(self, load: &Load) -> Self {
        let options = load.hedging.options();
        match self {
            Self::Hash(table) => Self::Hash(table.hedging(options)),
            Self::Ordered(table) => Self::Ordered(table.hedging(options)),
        }
    }

    async fn get(&self, form: KeyForm, row: u64) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Hash(table) => {
                let key = form.hashed(row);
                table.get(key.hash_key, key.sort_key).await
            }
            Self::Ordered(table) => table.get(form.ordered(row)).await,
        }
    }

    async fn set(&self, form: KeyForm, row: u64, value: Bytes) -> Result<(), Error> {
        match self {
            Self::Hash(table) => {
                let key = form.hashed(row);
                table.set(key.hash_key, key.sort_key, value).await
            }
            Self::Ordered(table) => table.set(form.ordered(row), value).await,
        }
    }

    async fn call_rarer(&self, form: KeyForm, request: Request) -> Result<Found, Error> {
        match request {
            Request::Get { row } => Ok(found(self.get(form, row).await?.is_some())),
            Request::Set { row, value } | Request::Insert { row, value } => {
                self.set(form, row, value).await.map(|()| Found::All)
            }
            Request::ReadModifyWrite { row, value } => {
                let before = self.get(form, row).await?;
                self.set(form, row, value).await?;
                Ok(found(before.is_some()))
            }
            Request::MultiGet { row, count } => self.multi_get(form, row, count).await,
            Request::BatchSet { row, values } => self.batch_set(form, row, values).await,
            Request::Scan { row, count } => self.scan(form, row, count).await,
            Request::Incr { row } => self.incr(form, row).await,
        }
    }

    async fn multi_get(&self, form: KeyForm, row: u64, count: u32) -> Result<Found, Error> {
        let Self::Hash(table) = self else { return Err(needs_hash_table("multi_get")) };
        let rows = table.multi_get(form.hashed(row).hash_key, form.sort_keys(row, count)).await?;
        Ok(found(rows.rows.len() == count as usize))
    }

    async fn batch_set(&self, form: KeyForm, row: u64, values: Vec<Bytes>) -> Result<Found, Error> {
        let Self::Hash(table) = self else { return Err(needs_hash_table("batch_set")) };
        let sort_keys = form.sort_keys(row, values.len() as u32);
        table.multi_set(form.hashed(row).hash_key, sort_keys.zip(values), None).await?;
        Ok(Found::All)
    }

    /// In an ordered table the rows may lie in two partitions, and there may be fewer before its end: no row is missing then.
    async fn scan(&self, form: KeyForm, row: u64, count: u32) -> Result<Found, Error> {
        match self {
            Self::Hash(table) => {
                let start = form.hashed(form.first_of(row, count)).sort_key;
                let select = Select { range: Range::from(start), count_max: count, ..Select::default() };
                let rows = table.multi_get_range(form.hashed(row).hash_key, &select).await?;
                Ok(found(rows.rows.len() == count as usize))
            }
            Self::Ordered(table) => {
                let range = Range::from(form.ordered(row).to_vec());
                let options = ScanOptions { page_rows: page_rows(count), ..ScanOptions::default() };
                let mut scanner = table.scan(&range, options)?;
                let mut read = 0;
                while read < count as usize {
                    let Some(page) = scanner.next_page().await? else { break };
                    read += page.len();
                }
                Ok(found(read > 0))
            }
        }
    }

    async fn incr(&self, form: KeyForm, row: u64) -> Result<Found, Error> {
        match self {
            Self::Hash(table) => table.incr(form.hashed(row).hash_key, COUNTER, 1, Expiry::Keep).await?,
            Self::Ordered(table) => {
                let key = [COUNTER.as_bytes(), &form.ordered(row)].concat();
                table.incr(key, 1, Expiry::Keep).await?
            }
        };
        Ok(Found::All)
    }
}

/// Rows of each page of a scan of `count` rows: as few pages as are allowed, of about the same size, so that the last one
/// reads no more than is wanted.
fn page_rows(count: u32) -> u32 {
    count.div_ceil(count.div_ceil(SCAN_PAGE_ROWS_MAX as u32).max(1))
}

fn found(is_all: bool) -> Found {
    if is_all { Found::All } else { Found::NotAll }
}

fn needs_hash_table(operation: &str) -> Error {
    Error::new(hedgerow_client::ErrorKind::Invalid, format!("{operation} needs a hash table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_scan_have_no_row_too_many() {
        let rows = [1, 10, 1000, 1001, 1500, 2999].map(|count| {
            let rows = page_rows(count);
            assert!(rows <= 1000 && rows * count.div_ceil(rows) < count + 3, "{count}: {rows}");
            rows
        });
        assert_eq!(rows, [1, 10, 1000, 501, 750, 1000]);
    }
}
