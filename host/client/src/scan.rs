//! Scans of a hash table: of one hash key, or of everything.

use crate::error::{Error, Result};
use crate::pages::{Leg, PARTITION_END, Pages};
use crate::record::check_size;
use crate::routes::Destination;
use crate::table::Table;
use crate::time::time_to_live;
use crate::types::{Range, Row, ScanOptions};
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _, try_unfold};
use hedgerow_types::limit::HASH_KEY_SIZE_MAX;
use hedgerow_types::{PartitionIndex, key};
use hedgerow_wire::message::KeyValue;
use std::collections::VecDeque;

impl Table {
    /// Scans the rows of one hash key in the order of their sort keys.
    pub fn scan(&self, hash_key: impl AsRef<[u8]>, range: &Range, options: ScanOptions) -> Result<Scanner> {
        let hash_key = hash_key.as_ref();
        check_size("hash key", hash_key, HASH_KEY_SIZE_MAX)?;
        if hash_key.is_empty() {
            return Err(Error::invalid("a scan of one hash key needs one that is not empty"));
        }
        let whole = key::full_key(hash_key, b"");
        let bounds = Range {
            start: key::full_key(hash_key, &range.start),
            start_inclusive: range.start_inclusive,
            stop: if range.stop.is_empty() {
                key::prefix_end(&whole).unwrap_or_else(|| Bytes::from_static(PARTITION_END))
            } else {
                key::full_key(hash_key, &range.stop)
            },
            stop_inclusive: range.stop_inclusive && !range.stop.is_empty(),
        };
        let partition = self.handle.routes.target(Destination::Hash(key::crc64(hash_key))).partition;
        let legs = VecDeque::from([Leg { partition, bounds }]);
        Ok(Scanner { pages: Pages::new(self.handle.clone(), legs, options), rows: VecDeque::new() })
    }

    /// Scans the whole table, partition by partition; within a partition the order is of no meaning. Not a snapshot: a
    /// row that is written meanwhile may or may not be seen.
    pub fn scan_all(&self, options: ScanOptions) -> Scanner {
        let legs = (0..self.partition_count()).map(whole_partition).collect();
        Scanner { pages: Pages::new(self.handle.clone(), legs, options), rows: VecDeque::new() }
    }

    /// At most `count_max` scanners that together scan the whole table, to be driven at the same time.
    pub fn scanners(&self, count_max: usize, options: ScanOptions) -> Vec<Scanner> {
        let partition_count = self.partition_count();
        let count = count_max.clamp(1, partition_count as usize);
        let scanner = |first: usize| {
            let legs = (first as u32..partition_count).step_by(count).map(whole_partition).collect();
            Scanner { pages: Pages::new(self.handle.clone(), legs, options.clone()), rows: VecDeque::new() }
        };
        (0..count).map(scanner).collect()
    }
}

fn whole_partition(partition: PartitionIndex) -> Leg {
    Leg {
        partition,
        bounds: Range {
            start: Bytes::from_static(&[0, 0]),
            start_inclusive: true,
            stop: Bytes::from_static(PARTITION_END),
            stop_inclusive: false,
        },
    }
}

/// Reads rows of a hash table in pages.
///
/// A scanner that fails can be asked again: it goes on behind the last row it returned.
#[derive(Debug)]
pub struct Scanner {
    pages: Pages,
    rows: VecDeque<Row>,
}

impl Scanner {
    /// The next rows, at least one; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Row>>> {
        if !self.rows.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rows).into()));
        }
        let Some(rows) = self.pages.next().await? else { return Ok(None) };
        rows.into_iter().map(to_row).collect::<Result<Vec<Row>>>().map(Some)
    }

    /// The next row; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "it is asynchronous")]
    pub async fn next(&mut self) -> Result<Option<Row>> {
        if self.rows.is_empty()
            && let Some(page) = self.next_page().await?
        {
            self.rows = page.into();
        }
        Ok(self.rows.pop_front())
    }

    /// The rows as a stream, which ends after the last one, and after the first error; to go on after an error, ask a scanner instead.
    pub fn into_stream(self) -> BoxStream<'static, Result<Row>> {
        try_unfold(self, |mut scanner| async move { Ok(scanner.next().await?.map(|row| (row, scanner))) }).boxed()
    }
}

fn to_row(row: KeyValue) -> Result<Row> {
    let Some((hash_key, sort_key)) = key::split_full_key(&row.key) else {
        return Err(Error::protocol("scan: a row's key is malformed"));
    };
    Ok(Row {
        hash_key: row.key.slice_ref(hash_key),
        sort_key: row.key.slice_ref(sort_key),
        value: row.value,
        time_to_live: time_to_live(row.expire_ts_seconds),
    })
}
