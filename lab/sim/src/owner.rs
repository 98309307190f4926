//! An application that owns tables besides the one that all clients use: it creates them, hash and ordered ones, fills and reads
//! them, changes an option, drops them, recalls some, and creates others under the same names, through the real client and while
//! faults go on. Nobody else uses them, so that it knows itself what each row may hold.

use crate::history::Content;
use crate::machine::address_of_machine;
use crate::progress::Progress;
use crate::protocol;
use hedgerow_client::simulation::{self, Task};
use hedgerow_client::{
    Client, ClientOptions, Error, ErrorKind, OrderedTable, Range, ReadLevel, ReadOptions, ReplicaRead,
};
use hedgerow_client::{Reserve, ScanOptions, Table, TableKind, TableSpec};
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// The executor's number for it; clients have small ones.
pub const OWNER: usize = usize::MAX;

/// Few, so that there was mostly a table of the name before. What was called by a name and has no known outcome may still come to
/// pass, at another table of that name; so a number is added after such a call.
const NAMES: [&str; 2] = ["first", "second"];
/// For so long, at most.
const CALLS_LAST: Duration = Duration::from_secs(20);
/// An option that the store keeps and shows, and that means nothing to it.
const OPTION: &str = "business.info";
const KEY_COUNT: u8 = 6;
/// Most that is done with a table between two of its larger changes.
const DEEDS_MAX: u64 = 10;
/// Tables that are kept for later at the same time.
const KEPT_MAX: usize = 2;
/// A dropped table that is not removed at once is kept for so many seconds: longer than any run.
const RESERVE: u64 = 40_000_000;
/// How long an option that was acknowledged may take until everybody shows it, and a name until nobody knows it, once there are no
/// faults any more; looked at so often.
const NEWS_MAX: u32 = 200;
const NEWS_INTERVAL: Duration = Duration::from_millis(50);

/// What a run knows of it.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    pub(crate) progress: Progress,
    counts: Arc<Mutex<Counts>>,
}

/// How often it did what.
type Counts = BTreeMap<&'static str, u64>;

/// What a row may hold.
#[derive(Clone, Debug, Default)]
struct Row {
    holds: Content,
    /// Writes of unknown outcome that were not seen yet.
    open: Vec<Content>,
}

impl Row {
    fn read(&mut self, found: Content) -> Result<(), String> {
        if found == self.holds {
            return Ok(());
        }
        let Some(at) = self.open.iter().position(|open| *open == found) else {
            return Err(format!(
                "{found:?} is read, but {:?} was written, and perhaps one of {:?}",
                self.holds, self.open
            ));
        };
        self.open.swap_remove(at);
        self.holds = found;
        Ok(())
    }

    fn wrote(&mut self, content: Content, outcome: Result<(), Error>) -> Result<(), Error> {
        match outcome {
            Ok(()) => self.holds = content,
            Err(error) if error.is_outcome_unknown() => self.open.push(content),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A table, as far as its owner knows.
#[derive(Debug)]
struct Owned {
    name: String,
    id: u64,
    kind: TableKind,
    rows: Vec<Row>,
    option: Row,
}

/// An open table of either kind.
enum Opened {
    Hash(Table),
    Ordered(OrderedTable),
}

impl Opened {
    async fn of(client: &Client, name: &str, kind: TableKind, mode: ReplicaRead) -> Result<Self, Error> {
        let reading = ReadOptions { level: Some(ReadLevel::Linearizable), mode, ..ReadOptions::default() };
        Ok(match kind {
            TableKind::Hash => Self::Hash(client.open_table(name).await?.reading(reading)),
            TableKind::Ordered => Self::Ordered(client.open_ordered_table(name).await?.reading(reading)),
        })
    }

    async fn get(&self, key: &[u8]) -> Result<Content, Error> {
        let value = match self {
            Self::Hash(table) => table.get(key, protocol::SORT_KEY).await?,
            Self::Ordered(table) => table.get(key).await?,
        };
        Ok(value.as_deref().and_then(protocol::number))
    }

    async fn write(&self, key: &[u8], content: Content) -> Result<(), Error> {
        match (self, content.map(protocol::text)) {
            (Self::Hash(table), Some(value)) => table.set(key, protocol::SORT_KEY, value).await,
            (Self::Hash(table), None) => table.del(key, protocol::SORT_KEY).await,
            (Self::Ordered(table), Some(value)) => table.set(key, value).await,
            (Self::Ordered(table), None) => table.del(key).await,
        }
    }

    /// All rows, in the order in which they come.
    async fn scan(&self, page_rows: u32) -> Result<Vec<(Vec<u8>, Content)>, Error> {
        let options = ScanOptions { page_rows, ..ScanOptions::default() };
        let mut rows = Vec::new();
        match self {
            Self::Hash(table) => {
                let mut scanner = table.scan_all(options);
                while let Some(row) = scanner.next().await? {
                    rows.push((row.hash_key.to_vec(), protocol::number(&row.value)));
                }
            }
            Self::Ordered(table) => {
                let mut scanner = table.scan(&Range::default(), options)?;
                while let Some(row) = scanner.next().await? {
                    rows.push((row.key.to_vec(), protocol::number(&row.value)));
                }
            }
        }
        Ok(rows)
    }
}

impl Owner {
    /// Its task, in a cluster of so many machines where tables have so many replicas.
    pub fn task(&self, machine_count: usize, replica_count: u32, mut random: Random) -> Task {
        let (progress, counts) = (self.progress.clone(), Arc::clone(&self.counts));
        let addresses: Vec<String> = (0..machine_count).map(address_of_machine).collect();
        let options = ClientOptions {
            operation_timeout: Duration::from_secs(1),
            client_id: Some(random.next_u64() | 1),
            ..ClientOptions::default()
        };
        Box::pin(async move {
            let client = loop {
                match Client::connect_with(&addresses, options.clone()).await {
                    Ok(client) => break client,
                    Err(_) => simulation::sleep(NEWS_INTERVAL).await,
                }
            };
            let names = NAMES.map(String::from);
            let (last_id, last_value, kept, spent) = (0, 0, Vec::new(), Vec::new());
            let mut life =
                Life { client, replica_count, random, progress, counts, names, spent, last_id, last_value, kept };
            let ended = life.run().await;
            life.progress.end(ended);
        })
    }

    /// How often it did what.
    pub fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Life {
    client: Client,
    replica_count: u32,
    random: Random,
    progress: Progress,
    counts: Arc<Mutex<Counts>>,
    names: [String; NAMES.len()],
    /// Names that are not used any more.
    spent: Vec<String>,
    last_id: u64,
    last_value: i64,
    /// Dropped, and to be recalled.
    kept: Vec<Owned>,
}

impl Life {
    async fn run(&mut self) -> Result<(), String> {
        while !self.is_stopped() {
            let table = self.create().await?;
            self.use_up(table).await?;
            while self.kept.len() > KEPT_MAX || !self.kept.is_empty() && self.random.chance(1, 3) {
                self.take_back().await?;
            }
        }
        while !self.kept.is_empty() {
            self.take_back().await?;
        }
        let spent = std::mem::take(&mut self.spent);
        if !spent.is_empty() {
            simulation::sleep(CALLS_LAST).await;
        }
        for name in &spent {
            self.remove(name).await?;
        }
        if !spent.is_empty() {
            self.remove_kept().await?;
        }
        for name in spent.iter().chain(&self.names.clone()) {
            self.expect_gone(name).await?;
        }
        Ok(())
    }

    /// Whether the call came to pass is not known.
    fn note_unknown(&mut self, name: &str, error: &Error) {
        let known = self.names.iter().position(|known| known == name).filter(|_| error.is_outcome_unknown());
        if let Some(at) = known {
            self.spent.push(std::mem::replace(&mut self.names[at], format!("{}-{}", NAMES[at], self.spent.len())));
        }
    }

    /// What a late call may have created.
    async fn remove(&mut self, name: &str) -> Result<(), String> {
        while let Err(error) = self.client.drop_table(name, true, Reserve::Seconds(0)).await {
            self.wait_after("removing", &error).await?;
        }
        Ok(())
    }

    /// What a late call may have created, and another one dropped so that it is kept: nobody else would recall it.
    async fn remove_kept(&mut self) -> Result<(), String> {
        let kept = loop {
            match self.client.dropped_tables().await {
                Ok(kept) => break kept,
                Err(error) => self.wait_after("listing", &error).await?,
            }
        };
        for table in kept {
            let name = format!("back-{}", table.id);
            while let Err(error) = self.client.recall_table(table.id, Some(&name)).await {
                // It is back already, or about to go by itself.
                if matches!(error.kind(), ErrorKind::FailedPrecondition | ErrorKind::NoTable | ErrorKind::TableExists) {
                    break;
                }
                self.wait_after("recalling", &error).await?;
            }
            self.remove(&name).await?;
        }
        Ok(())
    }

    async fn create(&mut self) -> Result<Owned, String> {
        let name = self.names[self.random.below(NAMES.len() as u64) as usize].clone();
        let kind = if self.random.chance(1, 2) { TableKind::Hash } else { TableKind::Ordered };
        let option = Row { holds: Some(self.value()), open: Vec::new() };
        let mut spec = TableSpec {
            kind,
            partition_count: 2 << self.random.below(2),
            replica_count: Some(self.replica_count),
            options: option.holds.map(|value| (OPTION.into(), value.to_string())).into_iter().collect(),
            ..TableSpec::default()
        };
        let id = loop {
            match self.client.create_table(&name, &spec).await {
                Ok(id) => break id,
                Err(error) if error.kind() == ErrorKind::TableExists => {
                    return Err(format!("{name} was dropped, or never created, and is there: {error}"));
                }
                Err(error) => {
                    spec.if_not_exists |= error.is_outcome_unknown();
                    self.note_unknown(&name, &error);
                    self.wait_after("creating", &error).await?;
                }
            }
        };
        let id = if spec.if_not_exists { self.find(&name).await? } else { id };
        if id <= self.last_id {
            return Err(format!("{name} was created as number {id}, and there was number {} before", self.last_id));
        }
        self.last_id = id;
        self.count("created");
        Ok(Owned { name, id, kind, rows: vec![Row::default(); KEY_COUNT.into()], option })
    }

    /// The number of a table that is there.
    async fn find(&mut self, name: &str) -> Result<u64, String> {
        loop {
            let listed = self.client.list_tables().await;
            match listed.map(|tables| tables.into_iter().find(|table| table.name == name && table.id > self.last_id)) {
                Ok(Some(table)) => return Ok(table.id),
                Ok(None) => simulation::sleep(NEWS_INTERVAL).await,
                Err(error) => self.wait_after("listing", &error).await?,
            }
        }
    }

    /// Does this and that with the table, and drops it.
    async fn use_up(&mut self, mut table: Owned) -> Result<(), String> {
        let opened = self.open(&table).await?;
        self.survey(&mut table, &opened).await?;
        for _ in 0..self.random.below(DEEDS_MAX) {
            self.pause().await;
            match self.random.below(8) {
                0 => self.survey(&mut table, &opened).await?,
                1 => self.set_option(&mut table).await?,
                2..5 => self.write(&mut table, &opened).await?,
                _ => self.read(&mut table, &opened).await?,
            }
        }
        if self.is_stopped() {
            self.expect_option(&mut table).await?;
        }
        let is_kept = !self.is_stopped() && self.random.chance(1, 2);
        self.drop_table(&mut table, &opened, if is_kept { RESERVE } else { 0 }).await?;
        if is_kept {
            self.kept.push(table);
        }
        Ok(())
    }

    async fn open(&mut self, table: &Owned) -> Result<Opened, String> {
        let mode = if self.random.chance(1, 2) { ReplicaRead::Leader } else { ReplicaRead::LeaderAndFollower };
        loop {
            match Opened::of(&self.client, &table.name, table.kind, mode).await {
                Ok(opened) => return Ok(opened),
                Err(error) => self.wait_after("opening", &error).await?,
            }
        }
    }

    async fn write(&mut self, table: &mut Owned, opened: &Opened) -> Result<(), String> {
        let number = self.number();
        let content = (!self.random.chance(1, 5)).then(|| self.value());
        let outcome = opened.write(&key(number), content).await;
        self.count("rows written");
        match table.rows[number].wrote(content, outcome) {
            Ok(()) => Ok(()),
            Err(error) => self.wait_after("writing", &error).await,
        }
    }

    async fn read(&mut self, table: &mut Owned, opened: &Opened) -> Result<(), String> {
        let number = self.number();
        match opened.get(&key(number)).await {
            Ok(found) => {
                self.count("rows read");
                table.rows[number].read(found).map_err(|why| format!("row {number} of {table:?}: {why}"))
            }
            Err(error) => self.wait_after("reading", &error).await,
        }
    }

    /// Every row is as it is to be, and there is no other.
    async fn survey(&mut self, table: &mut Owned, opened: &Opened) -> Result<(), String> {
        let page_rows = 1 + self.random.below(4) as u32;
        let found = match opened.scan(page_rows).await {
            Ok(found) => found,
            Err(error) => return self.wait_after("scanning", &error).await,
        };
        self.count("scanned");
        let keys: Vec<&[u8]> = found.iter().map(|row| &row.0[..]).collect();
        if table.kind == TableKind::Ordered && !keys.is_sorted_by(|a, b| a < b) {
            return Err(format!("a scan of {table:?} is out of order: {keys:?}"));
        }
        let mut rows: BTreeMap<Vec<u8>, Content> = found.into_iter().collect();
        for number in 0..table.rows.len() {
            let found = rows.remove(&key(number)[..]).flatten();
            table.rows[number].read(found).map_err(|why| format!("a scan, row {number} of {table:?}: {why}"))?;
        }
        if rows.is_empty() { Ok(()) } else { Err(format!("{table:?} has rows that nobody wrote: {rows:?}")) }
    }

    async fn set_option(&mut self, table: &mut Owned) -> Result<(), String> {
        let value = self.value();
        let outcome = self.client.set_option(&table.name, OPTION, &value.to_string()).await;
        self.count("options set");
        outcome.as_ref().err().into_iter().for_each(|error| self.note_unknown(&table.name, error));
        match table.option.wrote(Some(value), outcome) {
            Ok(()) => Ok(()),
            Err(error) => self.wait_after("setting an option", &error).await,
        }
    }

    /// What was acknowledged is shown in the end.
    async fn expect_option(&mut self, table: &mut Owned) -> Result<(), String> {
        let mut shown = Err("it was never listed".to_owned());
        for _ in 0..NEWS_MAX {
            if let Ok(tables) = self.client.list_tables().await {
                let listed = tables.into_iter().find(|listed| listed.id == table.id);
                let value = listed.and_then(|listed| listed.options.get(OPTION)?.parse().ok());
                shown = table.option.read(value);
                if shown.is_ok() {
                    return Ok(());
                }
            }
            simulation::sleep(NEWS_INTERVAL).await;
        }
        shown.map_err(|why| format!("{OPTION} of {table:?}: {why}"))
    }

    /// Drops it, perhaps while something is written.
    async fn drop_table(&mut self, table: &mut Owned, opened: &Opened, reserve: u64) -> Result<(), String> {
        let (number, value) = (self.number(), self.value());
        let mut is_writing = self.random.chance(1, 2);
        let mut may_be_gone = false;
        loop {
            let dropping = self.client.drop_table(&table.name, may_be_gone, Reserve::Seconds(reserve));
            let (dropped, wrote) = if std::mem::take(&mut is_writing) {
                let (dropped, wrote) = both(dropping, opened.write(&key(number), Some(value))).await;
                (dropped, Some(wrote))
            } else {
                (dropping.await, None)
            };
            match wrote.map(|wrote| table.rows[number].wrote(Some(value), wrote)) {
                Some(Err(error)) if error.kind() != ErrorKind::NoTable => self.wait_after("writing", &error).await?,
                Some(_) | None => {}
            }
            match dropped {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::NoTable && may_be_gone => break,
                Err(error) => {
                    may_be_gone |= error.is_outcome_unknown();
                    self.note_unknown(&table.name, &error);
                    self.wait_after("dropping", &error).await?;
                }
            }
        }
        self.count(if reserve > 0 { "dropped and kept" } else { "dropped" });
        Ok(())
    }

    /// Recalls a table that is kept, looks whether everything is there, and drops it for good.
    async fn take_back(&mut self) -> Result<(), String> {
        let turn = self.random.below(self.kept.len() as u64) as usize;
        let mut table = self.kept.swap_remove(turn);
        let name = format!("back-{}", table.id);
        let mut may_be_back = false;
        loop {
            match self.client.recall_table(table.id, Some(&name)).await {
                Ok(_) => break,
                Err(_) if may_be_back && self.client.table_kind(&name).await.is_ok() => break,
                Err(error) => {
                    may_be_back |= error.is_outcome_unknown();
                    self.wait_after("recalling", &error).await?;
                }
            }
        }
        table.name = name;
        self.count("recalled");
        let opened = self.open(&table).await?;
        self.survey(&mut table, &opened).await?;
        self.drop_table(&mut table, &opened, 0).await
    }

    /// Without faults nobody knows a dropped table for long.
    async fn expect_gone(&mut self, name: &str) -> Result<(), String> {
        for _ in 0..NEWS_MAX {
            match self.read_of(name).await {
                Err(error) if error.kind() == ErrorKind::NoTable => return Ok(()),
                Ok(_) | Err(_) => simulation::sleep(NEWS_INTERVAL).await,
            }
        }
        Err(format!("{name} was dropped, and can be read without end"))
    }

    /// What the client has opened once it opens again without asking anybody.
    async fn read_of(&self, name: &str) -> Result<Content, Error> {
        let kind = self.client.table_kind(name).await?;
        Opened::of(&self.client, name, kind, ReplicaRead::Leader).await?.get(&key(0)).await
    }

    /// Waits a little after an error that may come in spite of everything being right.
    async fn wait_after(&mut self, what: &str, error: &Error) -> Result<(), String> {
        tracing::debug!(what, %error, unknown = error.is_outcome_unknown(), "the owner of tables is told");
        match error.kind() {
            ErrorKind::Timeout
            | ErrorKind::Unreachable
            | ErrorKind::Unavailable
            | ErrorKind::Forgotten
            | ErrorKind::DiskFull
            | ErrorKind::NotAllowed
            | ErrorKind::Storage => self.pause().await,
            // A node that is late has passed on the call for a former table of the name, which its owner knows to be gone.
            ErrorKind::FailedPrecondition if error.message().contains("ask again if the new one is meant") => {
                self.pause().await
            }
            ErrorKind::Invalid
            | ErrorKind::FailedPrecondition
            | ErrorKind::TooLarge
            | ErrorKind::NoTable
            | ErrorKind::TableExists
            | ErrorKind::Protocol => return Err(format!("{what} a table of its own, its owner was told: {error}")),
        }
        Ok(())
    }

    async fn pause(&mut self) {
        simulation::sleep(Duration::from_millis(self.random.below(100))).await;
    }

    fn is_stopped(&self) -> bool {
        self.progress.is_stopped()
    }

    fn count(&self, what: &'static str) {
        *lock(&self.counts).entry(what).or_default() += 1;
    }

    fn number(&mut self) -> usize {
        self.random.below(KEY_COUNT.into()) as usize
    }

    fn value(&mut self) -> i64 {
        self.last_value += 1;
        self.last_value
    }
}

/// Its first byte spreads the keys over an ordered table's partitions.
fn key(number: usize) -> [u8; 2] {
    [(number * 255 / usize::from(KEY_COUNT)) as u8, b'k']
}

/// What both come to, which run at the same time.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(context)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(context)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (first, second) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_may_hold_what_was_written_and_what_may_have_been() {
        let lost = || Err(Error::new(ErrorKind::Timeout, "late"));
        let mut row = Row::default();
        assert!(row.read(None).is_ok() && row.read(Some(1)).is_err());
        row.wrote(Some(1), Ok(())).expect("written");
        assert!(row.wrote(Some(2), lost()).is_err(), "this one was not written");
        assert!(row.read(Some(1)).is_ok() && row.read(Some(2)).is_err() && row.read(None).is_err());
        row.open.push(Some(3));
        assert!(row.read(Some(1)).is_ok() && row.read(Some(3)).is_ok());
        assert!(row.read(Some(1)).is_err() && row.read(Some(3)).is_ok());
        row.wrote(Some(4), Ok(())).expect("written");
        assert!(row.read(Some(3)).is_err(), "it happened before");
    }
}
