//! An ordered table: records with one key, in ranges of partitions.

use crate::error::{Error, ErrorKind, Result};
use crate::handle::{Handle, table_handle};
use crate::pages::{Leg, PARTITION_END, Pages};
use crate::record::{check_size, incr_body, read_checked, read_get, read_incr, read_ttl, read_update};
use crate::routes::Destination;
use crate::served::Role;
use crate::time::{expire_at, time_to_live};
use crate::types::{Checked, Condition, Expiry, Life, OrderedRow, Range, ScanOptions};
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _, try_unfold};
use hedgerow_routing::Address;
use hedgerow_types::key;
use hedgerow_types::limit::SORT_KEY_SIZE_MAX;
use hedgerow_wire::Body;
use hedgerow_wire::message::{CheckAndSet, KeyValue, Put};
use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

/// A handle on an ordered table: one byte string as key, range scans over all partitions in the order of the keys.
///
/// The promises are those of [`crate::Table`].
#[derive(Clone, Debug)]
pub struct OrderedTable {
    pub(crate) handle: Handle,
}

table_handle!(OrderedTable);

impl OrderedTable {
    /// The nodes that have a replica of a record, the leader first; see [`crate::Table::replicas_of`].
    pub fn replicas_of(&self, key: impl AsRef<[u8]>) -> Vec<(Address, Role)> {
        self.handle.routes.replicas(Destination::Key(key.as_ref()))
    }

    /// The value of a record, if there is one.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let key = key.as_ref();
        let body = Body::Get(full_key(key)?);
        read_get(self.handle.call(Destination::Key(key), &body).await?)
    }

    /// Sets a record, which then never expires.
    pub async fn set(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        self.put(key.as_ref(), value.into(), None).await
    }

    /// Sets a record that expires after `time_to_live`, counted in whole seconds by the clock of this machine.
    pub async fn set_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        time_to_live: Duration,
    ) -> Result<()> {
        self.put(key.as_ref(), value.into(), Some(time_to_live)).await
    }

    async fn put(&self, key: &[u8], value: Bytes, time_to_live: Option<Duration>) -> Result<()> {
        let expire_ts_seconds = expire_at(time_to_live) as i32;
        let body = Body::Put(Put { key: full_key(key)?, value, expire_ts_seconds });
        read_update(self.handle.call(Destination::Key(key), &body).await?, "set")
    }

    /// Deletes a record; that it did not exist is no error.
    pub async fn del(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        let body = Body::Remove(full_key(key)?);
        read_update(self.handle.call(Destination::Key(key), &body).await?, "del")
    }

    /// Whether a record exists.
    pub async fn exist(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.ttl(key).await?.is_some())
    }

    /// How long a record has to live; `None` if there is no such record.
    pub async fn ttl(&self, key: impl AsRef<[u8]>) -> Result<Option<Life>> {
        let key = key.as_ref();
        let body = Body::Ttl(full_key(key)?);
        read_ttl(self.handle.call(Destination::Key(key), &body).await?)
    }

    /// Adds `by` to a record that holds a decimal number, and returns the sum; see [`crate::Table::incr`].
    pub async fn incr(&self, key: impl AsRef<[u8]>, by: i64, expiry: Expiry) -> Result<i64> {
        let key = key.as_ref();
        let body = incr_body(full_key(key)?, by, expiry);
        read_incr(self.handle.call(Destination::Key(key), &body).await?)
    }

    /// Sets a record if `condition` holds of its present value, as one atomic step. With `return_value` the result says
    /// what the value was.
    pub async fn check_and_set(
        &self,
        key: impl AsRef<[u8]>,
        condition: Condition,
        value: impl Into<Bytes>,
        time_to_live: Option<Duration>,
        return_value: bool,
    ) -> Result<Checked> {
        let key = key.as_ref();
        check_size("key", key, SORT_KEY_SIZE_MAX)?;
        let (check_type, check_operand) = condition.to_wire();
        let body = Body::CheckAndSet(CheckAndSet {
            check_sort_key: Bytes::copy_from_slice(key),
            check_type,
            check_operand,
            set_value: value.into(),
            set_expire_ts_seconds: expire_at(time_to_live) as i32,
            return_check_value: return_value,
            ..CheckAndSet::default()
        });
        read_checked(self.handle.call(Destination::Key(key), &body).await?, "check_and_set")
    }

    /// Scans `range` in the order of the keys, over all partitions that it touches. Not a snapshot: a row that is
    /// written meanwhile may or may not be seen.
    pub fn scan(&self, range: &Range, options: ScanOptions) -> Result<OrderedScanner> {
        check_size("key", &range.start, SORT_KEY_SIZE_MAX)?;
        check_size("key", &range.stop, SORT_KEY_SIZE_MAX)?;
        let start = match (range.start.is_empty() && range.start_inclusive, range.start_inclusive) {
            (true, _) => Bound::Unbounded,
            (false, true) => Bound::Included(&range.start[..]),
            (false, false) => Bound::Excluded(&range.start[..]),
        };
        let stop = match (range.stop.is_empty(), range.stop_inclusive) {
            (true, _) => Bound::Unbounded,
            (false, true) => Bound::Included(&range.stop[..]),
            (false, false) => Bound::Excluded(&range.stop[..]),
        };
        let bounds = Range {
            start: key::full_key(b"", &range.start),
            start_inclusive: range.start_inclusive,
            stop: if range.stop.is_empty() {
                Bytes::from_static(PARTITION_END)
            } else {
                key::full_key(b"", &range.stop)
            },
            stop_inclusive: range.stop_inclusive && !range.stop.is_empty(),
        };
        let partitions = self.handle.routes.with_map(|map| map.partitions_for_range(start, stop));
        let legs = partitions.map(|partition| Leg { partition, bounds: bounds.clone() }).collect();
        Ok(OrderedScanner { pages: Pages::new(self.handle.clone(), legs, options), rows: VecDeque::new() })
    }
}

/// Ordered keys travel as the sort key of an empty hash key.
fn full_key(ordered_key: &[u8]) -> Result<Bytes> {
    check_size("key", ordered_key, SORT_KEY_SIZE_MAX)?;
    Ok(key::full_key(b"", ordered_key))
}

/// Reads rows of an ordered table in pages, in the order of their keys.
///
/// A scanner that fails can be asked again: it goes on behind the last row it returned.
#[derive(Debug)]
pub struct OrderedScanner {
    pages: Pages,
    rows: VecDeque<OrderedRow>,
}

impl OrderedScanner {
    /// The next rows, at least one; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<OrderedRow>>> {
        if !self.rows.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rows).into()));
        }
        let Some(rows) = self.pages.next().await? else { return Ok(None) };
        rows.into_iter().map(to_row).collect::<Result<Vec<OrderedRow>>>().map(Some)
    }

    /// The next row; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "it is asynchronous")]
    pub async fn next(&mut self) -> Result<Option<OrderedRow>> {
        if self.rows.is_empty()
            && let Some(page) = self.next_page().await?
        {
            self.rows = page.into();
        }
        Ok(self.rows.pop_front())
    }

    /// The rows as a stream, which ends after the last one, and after the first error; to go on after an error, ask a scanner instead.
    pub fn into_stream(self) -> BoxStream<'static, Result<OrderedRow>> {
        try_unfold(self, |mut scanner| async move { Ok(scanner.next().await?.map(|row| (row, scanner))) }).boxed()
    }
}

fn to_row(row: KeyValue) -> Result<OrderedRow> {
    match key::split_full_key(&row.key) {
        Some(([], ordered_key)) => Ok(OrderedRow {
            key: row.key.slice_ref(ordered_key),
            value: row.value,
            time_to_live: time_to_live(row.expire_ts_seconds),
        }),
        Some(_) | None => Err(Error::new(ErrorKind::Protocol, "scan: a row's key is malformed")),
    }
}

/// What an open of the wrong kind is told.
pub(crate) fn wrong_kind(name: &str, is_ordered: bool) -> Error {
    let (is, call) = if is_ordered { ("an ordered", "open_ordered_table") } else { ("a hash", "open_table") };
    Error::invalid(format!("{name:?} is {is} table: open it with {call}"))
}
