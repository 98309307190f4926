//! Scans: pages of rows, one partition after the other.

use crate::call::Answer;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::Handle;
use crate::record::{check_size, mismatch};
use crate::routes::Place;
use crate::table::Table;
use crate::time::time_to_live;
use crate::types::{Range, Row, ScanOptions};
use bytes::Bytes;
use hedgerow_routing::Address;
use hedgerow_types::limit::{HASH_KEY_SIZE_MAX, SCAN_PAGE_ROWS_MAX};
use hedgerow_types::{PartitionIndex, Status, key};
use hedgerow_wire::message::{GetScanner, KeyValue, SCAN_DONE, Scan, ScanReply};
use hedgerow_wire::{Body, Reply};
use std::collections::VecDeque;

/// How often in a row a scan is begun again without a row in between.
const RESTARTS_MAX: u32 = 8;
/// Upper bound of a scan that goes to the end of its partition.
const PARTITION_END: &[u8] = &[0xff, 0xff];

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
        let partition = self.handle.routes.target(Place::Hash(key::crc64(hash_key))).partition;
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

/// A range of full keys within one partition.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) partition: PartitionIndex,
    pub(crate) bounds: Range,
}

/// Pages of several ranges, one after the other.
#[derive(Debug)]
pub(crate) struct Pages {
    handle: Handle,
    legs: VecDeque<Leg>,
    options: ScanOptions,
    /// The scan that a node keeps open.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// The node's number of it.
    context_id: i64,
    /// The node, if it was chosen for this scan; `None` = whoever leads.
    holder: Option<Address>,
}

impl Pages {
    pub(crate) fn new(handle: Handle, legs: VecDeque<Leg>, options: ScanOptions) -> Self {
        Self { handle, legs, options, open: None }
    }

    /// The next page that is not empty; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<KeyValue>>> {
        let mut restarts = 0;
        while let Some(leg) = self.legs.front_mut() {
            if restarts > RESTARTS_MAX {
                let message = "scan: the nodes that held it forgot it again and again";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            let place = Place::Partition(leg.partition);
            let open = self.open;
            let body = match open {
                Some(Open { context_id, .. }) => Body::Scan(Scan { context_id }),
                None => Body::GetScanner(open_body(leg, &self.options)),
            };
            let answer = match open.and_then(|open| open.holder) {
                Some(holder) => self.handle.answer_at(place, &body, holder).await,
                None => Some(self.handle.answer(place, &body).await?),
            };
            self.open = None;
            restarts += u32::from(open.is_some());
            // Without an answer the node that holds the scan is lost: begin again behind the last row, at another one.
            let Some(Answer { reply, holder }) = answer else { continue };
            let Reply::Scan(reply) = reply else { return Err(mismatch("scan")) };
            match Status::from_code(reply.error) {
                Some(Status::Ok) if open.is_some() => restarts = 0,
                Some(Status::Ok) => {}
                // The node forgot the scan, or another leads now: begin again behind the last row.
                Some(Status::NotFound) if open.is_some() => continue,
                status => return Err(Error::from_status(status, "scan")),
            }
            let ScanReply { kvs, context_id, .. } = reply;
            if let Some(last) = kvs.last() {
                leg.bounds.start = last.key.clone();
                leg.bounds.start_inclusive = false;
            }
            if context_id == SCAN_DONE {
                self.legs.pop_front();
            } else {
                self.open = Some(Open { context_id, holder });
            }
            if !kvs.is_empty() {
                return Ok(Some(kvs));
            }
        }
        Ok(None)
    }
}

fn open_body(leg: &Leg, options: &ScanOptions) -> GetScanner {
    GetScanner {
        start_key: leg.bounds.start.clone(),
        stop_key: leg.bounds.stop.clone(),
        start_inclusive: leg.bounds.start_inclusive,
        stop_inclusive: leg.bounds.stop_inclusive,
        batch_size: options.page_rows.clamp(1, SCAN_PAGE_ROWS_MAX as u32) as i32,
        no_value: options.no_value,
        hash_key_filter_type: options.hash_key_filter.kind as i32,
        hash_key_filter_pattern: options.hash_key_filter.pattern.clone(),
        sort_key_filter_type: options.sort_key_filter.kind as i32,
        sort_key_filter_pattern: options.sort_key_filter.pattern.clone(),
        validate_partition_hash: Some(true),
        return_expire_ts: Some(options.with_time_to_live),
        full_scan: None,
        only_return_count: None,
    }
}
