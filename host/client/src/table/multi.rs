//! Operations on several rows: of one hash key (atomic), or of many (a request for each partition to read, for each row to write).

use super::{Table, locate};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{check_size, mismatch, read_checked, read_update};
use crate::routes::Destination;
use crate::time::expire_at;
use crate::types::{Check, Checked, Mutation, Row, Select, SortRow, SortRows};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{StreamExt as _, iter};
use hedgerow_types::limit::{BATCH_READ_COUNT_MAX, HASH_KEY_SIZE_MAX, MULTI_WRITE_COUNT_MAX};
use hedgerow_types::{Status, key};
use hedgerow_wire::message::{
    BatchGet, CheckAndMutate, CheckAndSet, FullKey, KeyValue, MultiGet, MultiPut, MultiRemove, Mutate,
};
use hedgerow_wire::{Body, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often the keys of a batch are grouped anew because another table got the name meanwhile.
const REGROUPINGS_MAX: usize = 4;
/// Writes of one batch that are under way at a time.
const BATCH_IN_FLIGHT: usize = 256;

impl Table {
    /// The rows of `hash_key` with these sort keys, in this order; absent ones are left out.
    pub async fn multi_get(
        &self,
        hash_key: impl AsRef<[u8]>,
        sort_keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<SortRows> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let sort_keys: Vec<Bytes> = sort_keys.into_iter().map(Into::into).collect();
        if sort_keys.is_empty() {
            return Ok(SortRows { rows: Vec::new(), is_complete: true });
        }
        check_count("multi_get", sort_keys.len(), BATCH_READ_COUNT_MAX)?;
        let body = Body::MultiGet(MultiGet { hash_key, sort_keys, ..MultiGet::default() });
        read_multi_get(self.handle.call(place, &body).await?)
    }

    /// The rows of `hash_key` that `select` selects.
    pub async fn multi_get_range(&self, hash_key: impl AsRef<[u8]>, select: &Select) -> Result<SortRows> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let filter = select.filter();
        let body = Body::MultiGet(MultiGet {
            hash_key,
            sort_keys: Vec::new(),
            max_kv_count: clamp(select.count_max),
            max_kv_size: clamp(select.size_max),
            no_value: select.no_value,
            start_sortkey: select.range.start.clone(),
            stop_sortkey: select.range.stop.clone(),
            start_inclusive: select.range.start_inclusive,
            stop_inclusive: select.range.stop_inclusive,
            sort_key_filter_type: filter.kind as i32,
            sort_key_filter_pattern: filter.pattern,
            reverse: select.is_reverse,
        });
        read_multi_get(self.handle.call(place, &body).await?)
    }

    /// Sets rows (sort key, value) of one hash key: all of them or, on an error, none. With `time_to_live` they expire.
    pub async fn multi_set<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        hash_key: impl AsRef<[u8]>,
        rows: impl IntoIterator<Item = (K, V)>,
        time_to_live: Option<Duration>,
    ) -> Result<()> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let row = |(key, value): (K, V)| KeyValue { key: key.into(), value: value.into(), expire_ts_seconds: None };
        let kvs: Vec<KeyValue> = rows.into_iter().map(row).collect();
        if kvs.is_empty() {
            return Ok(());
        }
        check_count("multi_set", kvs.len(), MULTI_WRITE_COUNT_MAX)?;
        let body = Body::MultiPut(MultiPut { hash_key, kvs, expire_ts_seconds: expire_at(time_to_live) as i32 });
        read_update(self.handle.call(place, &body).await?, "multi_set")
    }

    /// Deletes rows of one hash key: all of them or, on an error, none. Absent rows are no error.
    pub async fn multi_del(
        &self,
        hash_key: impl AsRef<[u8]>,
        sort_keys: impl IntoIterator<Item = impl Into<Bytes>>,
    ) -> Result<()> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let sort_keys: Vec<Bytes> = sort_keys.into_iter().map(Into::into).collect();
        if sort_keys.is_empty() {
            return Ok(());
        }
        check_count("multi_del", sort_keys.len(), MULTI_WRITE_COUNT_MAX)?;
        let max_count = sort_keys.len() as i64;
        let body = Body::MultiRemove(MultiRemove { hash_key, sort_keys, max_count });
        let Reply::MultiRemove(reply) = self.handle.call(place, &body).await? else {
            return Err(mismatch("multi_del"));
        };
        expect_ok(reply.error, "multi_del")
    }

    /// How many live rows `hash_key` has.
    pub async fn sort_key_count(&self, hash_key: impl AsRef<[u8]>) -> Result<u64> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let Reply::Count(reply) = self.handle.call(place, &Body::SortKeyCount(hash_key)).await? else {
            return Err(mismatch("sort_key_count"));
        };
        expect_ok(reply.error, "sort_key_count")?;
        u64::try_from(reply.count)
            .map_err(|_| Error::new(ErrorKind::Timeout, "sort_key_count: the server gave up counting"))
    }

    /// The values of records (hash key, sort key) anywhere in the table, in the order of the keys; `None` where there is
    /// no such record. One request per partition, all at once; the values are not from one moment.
    pub async fn batch_get<H: AsRef<[u8]>, S: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = (H, S)>,
    ) -> Result<Vec<Option<Bytes>>> {
        let locate_record = |(hash_key, sort_key): (H, S)| {
            let (place, full) = locate(hash_key.as_ref(), sort_key.as_ref())?;
            let split = 2 + hash_key.as_ref().len();
            Ok((place, FullKey { hash_key: full.slice(2..split), sort_key: full.slice(split..) }))
        };
        let keys: Vec<(Destination<'static>, FullKey)> = keys.into_iter().map(locate_record).collect::<Result<_>>()?;
        check_count("batch_get", keys.len(), BATCH_READ_COUNT_MAX)?;
        for _ in 0..REGROUPINGS_MAX {
            let table = self.handle.routes.table();
            let values = self.batch_get_grouped(&keys).await;
            // Another table has the name by now, and other partitions: what was asked for together may not lie together there.
            if self.handle.routes.table() == table {
                return values;
            }
        }
        Err(Error::new(ErrorKind::NoTable, "batch_get: other tables got the name of the table again and again"))
    }

    /// The values of records, grouped by their partitions as they are known now.
    async fn batch_get_grouped(&self, keys: &[(Destination<'static>, FullKey)]) -> Result<Vec<Option<Bytes>>> {
        let mut parts: BTreeMap<u32, Vec<(usize, FullKey)>> = BTreeMap::new();
        for (index, (place, key)) in keys.iter().enumerate() {
            parts.entry(self.handle.routes.target(*place).partition).or_default().push((index, key.clone()));
        }
        let mut values = vec![None; keys.len()];
        // Each request is on its way before the first reply is waited for.
        let results = join_all(parts.into_values().map(|part| self.batch_get_part(part))).await;
        for result in results {
            for (index, value) in result? {
                values[index] = Some(value);
            }
        }
        Ok(values)
    }

    /// The values of those of `keys` that exist, with their places. All keys are of one partition.
    async fn batch_get_part(&self, keys: Vec<(usize, FullKey)>) -> Result<Vec<(usize, Bytes)>> {
        let Some((_, first)) = keys.first() else { return Ok(Vec::new()) };
        let place = Destination::Hash(key::partition_hash(&first.hash_key, &first.sort_key));
        let body = Body::BatchGet(BatchGet { keys: keys.iter().map(|(_, key)| key.clone()).collect() });
        let Reply::BatchGet(reply) = self.handle.call(place, &body).await? else {
            return Err(mismatch("batch_get"));
        };
        expect_ok(reply.error, "batch_get")?;
        let found: BTreeMap<(Bytes, Bytes), Bytes> =
            reply.data.into_iter().map(|data| ((data.hash_key, data.sort_key), data.value)).collect();
        let value_of =
            |(index, key): (usize, FullKey)| Some((index, found.get(&(key.hash_key, key.sort_key))?.clone()));
        Ok(keys.into_iter().filter_map(value_of).collect())
    }

    /// Sets many records, of any hash keys. Each is a request by itself, with the time that a request has, in no order, 256 of them at a
    /// time: this is no transaction, and of two rows with one key either may be the last. What came of each, in the order of `rows`; one
    /// that failed may have been written, see [`Error::is_outcome_unknown`].
    #[must_use = "each write may have failed by itself"]
    pub async fn batch_set(&self, rows: impl IntoIterator<Item = Row>) -> Vec<Result<()>> {
        let set = |(index, row): (usize, Row)| async move {
            let Row { hash_key, sort_key, value, time_to_live } = row;
            let result = match time_to_live {
                None => self.set(hash_key, sort_key, value).await,
                Some(time_to_live) => self.set_with_ttl(hash_key, sort_key, value, time_to_live).await,
            };
            (index, result)
        };
        run_all(rows.into_iter().enumerate().map(set)).await
    }

    /// Deletes many records by their hash and sort keys, as [`Table::batch_set`] sets them. That a record did not exist is no error.
    #[must_use = "each deletion may have failed by itself"]
    pub async fn batch_del(
        &self,
        keys: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
    ) -> Vec<Result<()>> {
        let del = |(index, (hash_key, sort_key))| async move { (index, self.del(hash_key, sort_key).await) };
        run_all(keys.into_iter().enumerate().map(del)).await
    }

    /// Sets the row `sort_key` if `check` holds of a row of the same hash key, as one atomic step.
    pub async fn check_and_set(
        &self,
        hash_key: impl AsRef<[u8]>,
        check: Check,
        sort_key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        time_to_live: Option<Duration>,
    ) -> Result<Checked> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let (check_type, check_operand) = check.condition.to_wire();
        let set_sort_key = sort_key.into();
        let body = Body::CheckAndSet(CheckAndSet {
            hash_key,
            check_type,
            check_operand,
            set_diff_sort_key: set_sort_key != check.sort_key,
            check_sort_key: check.sort_key,
            set_sort_key,
            set_value: value.into(),
            set_expire_ts_seconds: expire_at(time_to_live) as i32,
            return_check_value: check.return_value,
        });
        read_checked(self.handle.call(place, &body).await?, "check_and_set")
    }

    /// Makes all of `mutations` if `check` holds of a row of the same hash key, as one atomic step.
    pub async fn check_and_mutate(
        &self,
        hash_key: impl AsRef<[u8]>,
        check: Check,
        mutations: impl IntoIterator<Item = Mutation>,
    ) -> Result<Checked> {
        let (place, hash_key) = locate_all(hash_key.as_ref())?;
        let (check_type, check_operand) = check.condition.to_wire();
        let mutate_list: Vec<Mutate> = mutations.into_iter().map(to_wire).collect();
        if mutate_list.is_empty() {
            return Err(Error::invalid("check_and_mutate: there is nothing to do"));
        }
        check_count("check_and_mutate", mutate_list.len(), MULTI_WRITE_COUNT_MAX)?;
        let body = Body::CheckAndMutate(CheckAndMutate {
            hash_key,
            check_sort_key: check.sort_key,
            check_type,
            check_operand,
            mutate_list,
            return_check_value: check.return_value,
        });
        read_checked(self.handle.call(place, &body).await?, "check_and_mutate")
    }
}

/// What comes of each of `writes`, by their numbers. One that takes long does not keep others from beginning.
async fn run_all(writes: impl Iterator<Item = impl Future<Output = (usize, Result<()>)>>) -> Vec<Result<()>> {
    let mut results: Vec<_> = iter(writes).buffer_unordered(BATCH_IN_FLIGHT).collect().await;
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn to_wire(mutation: Mutation) -> Mutate {
    match mutation {
        Mutation::Set { sort_key, value, time_to_live } => {
            Mutate { operation: 0, sort_key, value, set_expire_ts_seconds: expire_at(time_to_live) as i32 }
        }
        Mutation::Delete { sort_key } => {
            Mutate { operation: 1, sort_key, value: Bytes::new(), set_expire_ts_seconds: 0 }
        }
    }
}

/// Where all rows of a hash key live. The empty hash key has no such place.
fn locate_all(hash_key: &[u8]) -> Result<(Destination<'static>, Bytes)> {
    check_size("hash key", hash_key, HASH_KEY_SIZE_MAX)?;
    if hash_key.is_empty() {
        return Err(Error::invalid("an operation on all rows of a hash key needs one that is not empty"));
    }
    Ok((Destination::Hash(key::crc64(hash_key)), Bytes::copy_from_slice(hash_key)))
}

fn check_count(operation: &str, count: usize, count_max: usize) -> Result<()> {
    if count > count_max {
        let message = format!("{operation}: {count} rows are more than {count_max}");
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    Ok(())
}

fn clamp(limit: u32) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

fn expect_ok(code: i32, operation: &'static str) -> Result<()> {
    match Status::from_code(code) {
        Some(Status::Ok) => Ok(()),
        status => Err(Error::from_status(status, operation)),
    }
}

fn read_multi_get(reply: Reply) -> Result<SortRows> {
    let Reply::MultiGet(reply) = reply else { return Err(mismatch("multi_get")) };
    let is_complete = match Status::from_code(reply.error) {
        Some(Status::Ok) => true,
        Some(Status::Incomplete) => false,
        status => return Err(Error::from_status(status, "multi_get")),
    };
    let rows = reply.kvs.into_iter().map(|row| SortRow { sort_key: row.key, value: row.value }).collect();
    Ok(SortRows { rows, is_complete })
}
