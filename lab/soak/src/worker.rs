//! A client: one request after the other through the real Rust client, and what came of each.

use crate::book::Book;
use crate::fresh::Record;
use crate::value;
use crate::workload::{Manner, Wish, is_group};
use anyhow::Result;
use bytes::Bytes;
use hedgerow_client::{
    Before, BudgetOptions, Check, Checked, Client, ClientOptions, Error, ErrorKind, Expiry, Fallback, HedgeOptions,
    Kind, Observer, ReadLevel, ReadOptions, ReplicaRead, Role, Served, Session, Table, TieMode,
};
use hedgerow_env::Clock as _;
use hedgerow_env::os::OsClock;
use hedgerow_sim::history::{Answer, Call, Content, Operation, Outcome, Seen, Time};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Index, key};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The table.
pub(crate) const TABLE: &str = "soak";
/// The sort key of every record; its hash key tells its episode and its number.
const SORT_KEY: &str = "v";
/// One request with all its retries. Longer than an election takes, so that most faults leave few unknown outcomes.
const REQUEST_MAX: Duration = Duration::from_secs(3);
/// One request in so many is the last one of its client, which another one follows in the same session.
const RENEWAL_INTERVAL: u64 = 2_000;
/// One write in so many is read again at once, elsewhere.
const READ_AFTER_INTERVAL: u64 = 3;
/// The sort keys of a group's rows.
const GROUP_ROWS: [&str; 4] = ["v0", "v1", "v2", "v3"];
/// What some rows have to live: longer than it matters.
const LIFE: Duration = Duration::from_secs(1 << 20);

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) book: Mutex<Book>,
    pub(crate) addresses: Vec<String>,
    /// The table's number and its partitions.
    pub(crate) table_id: u32,
    pub(crate) partition_count: u32,
    /// Of each partition.
    pub(crate) replica_count: usize,
    /// When the run began; all times of operations count from here.
    pub(crate) begin: hedgerow_types::Instant,
    /// The longest pause between two requests of a client.
    pub(crate) think_max: Duration,
    pub(crate) must_stop: AtomicBool,
}

impl Shared {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Whether no further request is to be made.
    pub(crate) fn must_stop(&self) -> bool {
        self.must_stop.load(Ordering::Relaxed)
    }

    /// Time since the beginning, by the steady clock.
    pub(crate) fn now(&self) -> Time {
        OsClock.now().0 - self.begin.0
    }

    /// The hash key of a record.
    pub(crate) fn hash_key(episode: u64, key: u32) -> String {
        format!("{episode}-{key}")
    }

    /// A client with the settings that all have.
    pub(crate) async fn connect(&self) -> hedgerow_client::Result<Client> {
        connect(&self.addresses).await
    }

    fn partition(&self, hash_key: &str) -> u32 {
        let hash = key::partition_hash(hash_key.as_bytes(), SORT_KEY.as_bytes());
        key::partition_of_hash(hash, self.partition_count)
    }

    fn machine(&self, served: &Served) -> usize {
        let address = served.node.to_string();
        self.addresses.iter().position(|it| *it == address).unwrap_or(usize::MAX - 1)
    }
}

/// A client of the nodes at `addresses`.
pub(crate) async fn connect(addresses: &[String]) -> hedgerow_client::Result<Client> {
    // Extra attempts are what is tested, so that they are not rationed as in earnest.
    let budget = BudgetOptions { ratio: 0.5, burst: Some(100.0) };
    let options = ClientOptions {
        operation_timeout: REQUEST_MAX,
        attempt_timeout: Some(REQUEST_MAX / 3),
        budget,
        ..ClientOptions::default()
    };
    Client::connect_with(addresses, options).await
}

/// A client's handles of the table, by manner.
struct Handles {
    plain: Table,
    single: Table,
    hedged: Table,
    tied: Table,
    fallback: Table,
}

impl Handles {
    async fn open(shared: &Shared) -> Result<Self> {
        let client = shared.connect().await?;
        let single = client.open_table(TABLE).await?;
        let hedged = HedgeOptions { reads: "5ms".parse()?, writes: "20ms".parse()?, ..HedgeOptions::default() };
        let tied = HedgeOptions { tie: TieMode::Always, ..HedgeOptions::default() };
        let bound = Duration::from_millis(500);
        let fallback = Fallback { after: Duration::from_millis(3), bound };
        let fallback = HedgeOptions { fallback: Some(fallback), ..HedgeOptions::default() };
        Ok(Self {
            plain: single.clone(),
            hedged: single.hedging(hedged),
            tied: single.hedging(tied),
            fallback: single.hedging(fallback),
            single,
        })
    }

    fn of(&self, manner: Manner) -> &Table {
        match manner {
            Manner::Plain => &self.plain,
            Manner::Single => &self.single,
            Manner::Hedged => &self.hedged,
            Manner::Tied => &self.tied,
            Manner::Fallback => &self.fallback,
        }
    }
}

/// Makes requests as client `number` until it must stop.
pub(crate) async fn work(shared: Arc<Shared>, number: u32, mut random: Random) {
    let (session, mut handles, mut written) = (Session::new(), None, None);
    while !shared.must_stop() {
        let open = match handles.take() {
            Some(open) => open,
            None => match Handles::open(&shared).await {
                Ok(open) => open,
                Err(_) => {
                    // Nobody can be reached at the moment.
                    tokio::time::sleep(REQUEST_MAX / 10).await;
                    continue;
                }
            },
        };
        let (episode, wish) = shared.book().begin(written.take());
        let record = request(&shared, &open, &session, (number, episode), wish).await;
        let Operation { key, call, outcome, .. } = record.operation;
        let is_hopeless = matches!(outcome, Outcome::Failed);
        let is_done = matches!(outcome, Outcome::Ok(_));
        written = (call.is_write() && is_done && random.chance(1, READ_AFTER_INTERVAL)).then_some((episode, key));
        shared.book().end(episode, record);
        if !random.chance(1, RENEWAL_INTERVAL) {
            handles = Some(open);
        }
        if written.is_some() {
            continue;
        }
        // What is refused at once is not asked for without end.
        let least = if is_hopeless { Duration::from_millis(20) } else { Duration::ZERO };
        let think = Duration::from_micros(random.below(shared.think_max.as_micros() as u64 + 1));
        tokio::time::sleep(think.max(least)).await;
    }
}

async fn request(
    shared: &Shared,
    handles: &Handles,
    session: &Session,
    (client, episode): (u32, u64),
    wish: Wish,
) -> Record {
    let Wish { key, mut call, manner, mode, .. } = wish;
    let hash_key = Shared::hash_key(episode, key);
    let partition = shared.partition(&hash_key);
    let is_in_session = manner != Manner::Plain;
    let told: Arc<Mutex<Option<Served>>> = Arc::default();
    let table = if is_in_session {
        let observer = Arc::clone(&told);
        let observer = Observer::new(move |served| *lock(&observer) = Some(served.clone()));
        let level = if let Call::Get(level) = call { Some(level) } else { None };
        let mode = if level.is_some() { mode } else { ReplicaRead::Leader };
        let options = ReadOptions { level, mode, observer: Some(observer), ..ReadOptions::default() };
        handles.of(manner).reading(options).in_session(session)
    } else {
        handles.of(manner).clone()
    };
    let floor = session.token().floor(GroupId::new(shared.table_id, partition));
    let start = shared.now();
    let result = send(&table, &hash_key, wish).await;
    let end = shared.now();
    let outcome = match result {
        Ok(Ok(answer)) => Outcome::Ok(answer),
        Ok(Err(why)) => {
            shared.book().fail(format!("client {client} read {why}: {hash_key}, {wish:?}"));
            Outcome::Failed
        }
        Err(error) => outcome_of(shared, &error, wish),
    };
    let seen = lock(&told).take();
    if let (Call::Get(asked), Some(served)) = (call, &seen) {
        call = Call::Get(served.level.unwrap_or(asked));
        check_level(shared, (asked, served), wish);
        count(shared, served, floor);
    }
    let seen = seen.map(|served| Seen {
        machine: shared.machine(&served),
        index: (served.index > 0).then_some(served.index),
        staleness: served.staleness.map(|age| age.as_nanos() as Time),
        asked: start,
        served: end,
        floor,
    });
    let operation = Operation { client, key, call, start, end, outcome, seen };
    Record { operation, partition, is_in_session }
}

/// Takes note of who serves what, so that a run in which nothing was hedged shows it.
fn count(shared: &Shared, served: &Served, floor: Index) {
    let kind = match served.kind {
        Kind::First => "first attempt",
        Kind::Retry => "retry",
        Kind::Hedge => "hedge",
        Kind::Tie => "tie",
        Kind::Fallback => "fallback",
    };
    let level = served.level.map_or("level not told", |level| match level {
        ReadLevel::Linearizable => "linearizable",
        ReadLevel::Session => "session",
        ReadLevel::Bounded(_) => "bounded",
        ReadLevel::Eventual => "eventual",
    });
    let role = served.role.map_or("unknown replica", Role::name);
    let has_floor = floor > 0 && served.index > 0 && served.level == Some(ReadLevel::Session);
    let floor = if has_floor { "behind what its session saw" } else { "behind nothing" };
    let mut book = shared.book();
    for name in [kind, level, role, floor] {
        *book.served.entry(name).or_default() += 1;
    }
}

/// Only a fallback may answer at another level than was asked for.
fn check_level(shared: &Shared, (asked, served): (ReadLevel, &Served), wish: Wish) {
    if served.level.is_some_and(|level| level != asked) && wish.manner != Manner::Fallback {
        shared.book().fail(format!("a read was served at another level than it asked for: {wish:?}, {served:?}"));
    }
}

/// Sends one request. The inner error says what is wrong with a value.
async fn send(table: &Table, hash_key: &str, wish: Wish) -> hedgerow_client::Result<Result<Answer, String>> {
    if is_group(wish.key) {
        return send_group(table, hash_key, wish).await;
    }
    let decoded = |value: Option<Bytes>| value.map(|value| value::decode(&value)).transpose();
    Ok(match wish.call {
        Call::Get(_) => decoded(table.get(hash_key, SORT_KEY).await?).map(Answer::Content),
        Call::Put(number) => {
            table.set(hash_key, SORT_KEY, value::encode(number, wish.size)).await?;
            Ok(Answer::Done)
        }
        Call::Remove => {
            table.del(hash_key, SORT_KEY).await?;
            Ok(Answer::Done)
        }
        Call::Incr(by) => Ok(Answer::Sum(table.incr(hash_key, SORT_KEY, by, Expiry::Keep).await?)),
        Call::Swap { expected, new } => {
            let equals = |number| Check::equals(SORT_KEY, value::encode(number, 0));
            let check = expected.map_or_else(|| Check::absent(SORT_KEY), equals).and_return_value();
            let Checked { is_applied, before } =
                table.check_and_set(hash_key, check, SORT_KEY, value::encode(new, 0), None).await?;
            if before == Before::NotAsked {
                return Ok(Err("nothing of what a swap replaced".to_owned()));
            }
            decoded(before.value().cloned()).map(|previous| Answer::Swapped { is_applied, previous })
        }
    })
}

/// As [`send`], for a group, which holds a number if all of its rows do.
async fn send_group(table: &Table, hash_key: &str, wish: Wish) -> hedgerow_client::Result<Result<Answer, String>> {
    match wish.call {
        Call::Put(number) => {
            let rows = GROUP_ROWS.map(|row| (row, value::encode(number, wish.size)));
            let life = (number % 2 == 0).then_some(LIFE);
            table.multi_set(hash_key, rows, life).await?;
        }
        Call::Remove => table.multi_del(hash_key, GROUP_ROWS).await?,
        Call::Get(_) | Call::Incr(_) | Call::Swap { .. } => {
            let found = table.multi_get(hash_key, GROUP_ROWS).await?;
            let values: Vec<Bytes> = found.rows.into_iter().map(|row| row.value).collect();
            return Ok(whole(&values).map(Answer::Content));
        }
    }
    Ok(Ok(Answer::Done))
}

/// What all rows of a group hold; an error if they do not hold the same.
fn whole(values: &[Bytes]) -> Result<Content, String> {
    let Some(first) = values.first() else { return Ok(None) };
    if values.len() != GROUP_ROWS.len() || values.iter().any(|value| value != first) {
        return Err(format!("a part of what was written together, {values:?}"));
    }
    value::decode(first).map(Some)
}

/// Takes note of an error that no fault explains.
fn outcome_of(shared: &Shared, error: &Error, wish: Wish) -> Outcome {
    if !error.may_retry() && error.kind() != ErrorKind::Forgotten {
        shared.book().fail(format!("a request failed in a way that no fault explains: {error}, {wish:?}"));
    }
    let is_open = error.is_outcome_unknown() || error.kind() == ErrorKind::Forgotten;
    if is_open && wish.call.is_write() { Outcome::Unknown } else { Outcome::Failed }
}

/// Reads a record at its leader, again and again until that works or `until` has come.
pub(crate) async fn read_surely(
    shared: &Shared,
    table: &Table,
    (client, episode): (u32, u64),
    key: u32,
    until: Time,
) -> Result<Record> {
    let hash_key = Shared::hash_key(episode, key);
    let partition = shared.partition(&hash_key);
    loop {
        let start = shared.now();
        let wish = Wish { key, call: Call::GET, manner: Manner::Plain, mode: ReplicaRead::Leader, size: 0 };
        match send(table, &hash_key, wish).await {
            Ok(Ok(answer)) => {
                let (end, outcome) = (shared.now(), Outcome::Ok(answer));
                let operation = Operation { client, key, call: Call::GET, start, end, outcome, seen: None };
                return Ok(Record { operation, partition, is_in_session: false });
            }
            Ok(Err(why)) => anyhow::bail!("{why}: {hash_key}"),
            Err(error) if error.may_retry() && shared.now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(anyhow::Error::new(error).context(format!("reading {hash_key}"))),
        }
    }
}

/// Removes a record that nobody needs any more.
pub(crate) async fn forget(table: &Table, episode: u64, key: u32) {
    // What cannot be removed now stays.
    let _ = table.del(Shared::hash_key(episode, key), SORT_KEY).await;
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_whole_or_wrong() {
        let rows = |numbers: &[i64]| numbers.iter().map(|number| value::encode(*number, 0)).collect::<Vec<_>>();
        assert_eq!(whole(&rows(&[])), Ok(None));
        assert_eq!(whole(&rows(&[7, 7, 7, 7])), Ok(Some(7)));
        for torn in [&[7, 7, 7][..], &[7, 7, 8, 7], &[8, 7, 7, 7]] {
            assert!(whole(&rows(torn)).is_err(), "{torn:?}");
        }
    }
}
