//! A table of either kind behind one face, for commands that only differ in how many keys a record has.

use crate::rows::{Row, Shape};
use anyhow::{Result, bail};
use bytes::Bytes;
use hedgerow_client::{
    Client, Expiry, HedgeOptions, Life, OrderedScanner, OrderedTable, Range, ReadOptions, ScanOptions, Scanner,
    Session, Table, TableKind,
};
use std::time::Duration;

/// An opened table.
#[derive(Clone, Debug)]
pub(crate) enum AnyTable {
    Hash(Table),
    Ordered(OrderedTable),
}

/// The key of a record. In an ordered table `hash_key` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) hash_key: Bytes,
    pub(crate) sort_key: Bytes,
}

impl AnyTable {
    pub(crate) async fn open(client: &Client, name: &str) -> Result<Self> {
        Ok(match client.table_kind(name).await? {
            TableKind::Hash => Self::Hash(client.open_table(name).await?),
            TableKind::Ordered => Self::Ordered(client.open_ordered_table(name).await?),
        })
    }

    /// The table, to be read as `options` say.
    pub(crate) fn reading(self, options: ReadOptions) -> Self {
        match self {
            Self::Hash(table) => Self::Hash(table.reading(options)),
            Self::Ordered(table) => Self::Ordered(table.reading(options)),
        }
    }

    /// The table, with requests hedged as `options` say.
    pub(crate) fn hedging(self, options: HedgeOptions) -> Self {
        match self {
            Self::Hash(table) => Self::Hash(table.hedging(options)),
            Self::Ordered(table) => Self::Ordered(table.hedging(options)),
        }
    }

    /// The table, to be used in `session`.
    pub(crate) fn in_session(self, session: &Session) -> Self {
        match self {
            Self::Hash(table) => Self::Hash(table.in_session(session)),
            Self::Ordered(table) => Self::Ordered(table.in_session(session)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hash(table) => table.name(),
            Self::Ordered(table) => table.name(),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Hash(_) => Shape::Hash,
            Self::Ordered(_) => Shape::Ordered,
        }
    }

    /// The key that the words of a command line make: hash key and sort key, or the one key of an ordered table.
    pub(crate) fn key(&self, mut words: Vec<Bytes>) -> Result<Key> {
        match (self, words.len()) {
            (Self::Hash(_), 2) => {
                let sort_key = words.pop().unwrap_or_default();
                Ok(Key { hash_key: words.pop().unwrap_or_default(), sort_key })
            }
            (Self::Ordered(_), 1) => Ok(Key { hash_key: Bytes::new(), sort_key: words.pop().unwrap_or_default() }),
            (Self::Hash(table), count) => {
                let name = table.name();
                bail!(
                    "a record of the hash table {name} has two keys, a hash key and a sort key (which may be empty: \"\"): {count} given"
                )
            }
            (Self::Ordered(table), count) => {
                bail!("a record of the ordered table {} has one key: {count} given", table.name())
            }
        }
    }

    pub(crate) async fn get(&self, key: &Key) -> hedgerow_client::Result<Option<Bytes>> {
        match self {
            Self::Hash(table) => table.get(&key.hash_key, &key.sort_key).await,
            Self::Ordered(table) => table.get(&key.sort_key).await,
        }
    }

    pub(crate) async fn set(
        &self,
        key: &Key,
        value: Bytes,
        time_to_live: Option<Duration>,
    ) -> hedgerow_client::Result<()> {
        match (self, time_to_live) {
            (Self::Hash(table), None) => table.set(&key.hash_key, &key.sort_key, value).await,
            (Self::Hash(table), Some(life)) => table.set_with_ttl(&key.hash_key, &key.sort_key, value, life).await,
            (Self::Ordered(table), None) => table.set(&key.sort_key, value).await,
            (Self::Ordered(table), Some(life)) => table.set_with_ttl(&key.sort_key, value, life).await,
        }
    }

    pub(crate) async fn del(&self, key: &Key) -> hedgerow_client::Result<()> {
        match self {
            Self::Hash(table) => table.del(&key.hash_key, &key.sort_key).await,
            Self::Ordered(table) => table.del(&key.sort_key).await,
        }
    }

    pub(crate) async fn ttl(&self, key: &Key) -> hedgerow_client::Result<Option<Life>> {
        match self {
            Self::Hash(table) => table.ttl(&key.hash_key, &key.sort_key).await,
            Self::Ordered(table) => table.ttl(&key.sort_key).await,
        }
    }

    pub(crate) async fn incr(&self, key: &Key, by: i64) -> hedgerow_client::Result<i64> {
        match self {
            Self::Hash(table) => table.incr(&key.hash_key, &key.sort_key, by, Expiry::Keep).await,
            Self::Ordered(table) => table.incr(&key.sort_key, by, Expiry::Keep).await,
        }
    }

    /// Scans the rows of `hash_key` (hash tables; `None` = all rows, then without a range) or of an ordered table.
    pub(crate) fn scan(&self, hash_key: Option<&Bytes>, range: &Range, options: ScanOptions) -> Result<AnyScanner> {
        match (self, hash_key) {
            (Self::Hash(table), Some(hash_key)) if hash_key.is_empty() => {
                let name = table.name();
                bail!(
                    "rows with an empty hash key are spread over all partitions by their sort keys, so that they cannot be \
                     scanned by themselves: `hedgerow scan {name}` shows them among all rows"
                )
            }
            (Self::Hash(table), Some(hash_key)) => Ok(AnyScanner::Hash(table.scan(hash_key, range, options)?)),
            (Self::Hash(table), None) if *range == Range::default() => Ok(AnyScanner::Hash(table.scan_all(options))),
            (Self::Hash(_), None) => bail!("a range needs a hash key: the rows of a hash table have no other order"),
            (Self::Ordered(table), None) => Ok(AnyScanner::Ordered(table.scan(range, options)?)),
            (Self::Ordered(_), Some(_)) => bail!("an ordered table has no hash keys: use --start, --stop or --prefix"),
        }
    }

    /// Scanners that together scan everything: several for a hash table, one for an ordered table, to keep the order.
    pub(crate) fn scanners(&self, count_max: usize, options: ScanOptions) -> Result<Vec<AnyScanner>> {
        match self {
            Self::Hash(table) => Ok(table.scanners(count_max, options).into_iter().map(AnyScanner::Hash).collect()),
            Self::Ordered(table) => Ok(vec![AnyScanner::Ordered(table.scan(&Range::default(), options)?)]),
        }
    }
}

/// A scan of a table of either kind.
#[derive(Debug)]
pub(crate) enum AnyScanner {
    Hash(Scanner),
    Ordered(OrderedScanner),
}

impl AnyScanner {
    /// The next rows, at least one; `None` at the end.
    pub(crate) async fn next_page(&mut self) -> hedgerow_client::Result<Option<Vec<Row>>> {
        match self {
            Self::Hash(scanner) => {
                let to_row = |row: hedgerow_client::Row| Row {
                    hash_key: row.hash_key,
                    sort_key: row.sort_key,
                    value: row.value,
                    ttl_seconds: row.time_to_live.map(|life| life.as_secs()),
                };
                Ok(scanner.next_page().await?.map(|rows| rows.into_iter().map(to_row).collect()))
            }
            Self::Ordered(scanner) => {
                let to_row = |row: hedgerow_client::OrderedRow| Row {
                    hash_key: Bytes::new(),
                    sort_key: row.key,
                    value: row.value,
                    ttl_seconds: row.time_to_live.map(|life| life.as_secs()),
                };
                Ok(scanner.next_page().await?.map(|rows| rows.into_iter().map(to_row).collect()))
            }
        }
    }
}
