//! Pages of rows: ranges within partitions, one after the other, as scans of both kinds of tables read them.

use crate::call::Answer;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::Handle;
use crate::record::mismatch;
use crate::routes::Destination;
use crate::types::{Range, ScanOptions};
use hedgerow_routing::Address;
use hedgerow_types::limit::SCAN_PAGE_ROWS_MAX;
use hedgerow_types::{PartitionIndex, Status, TableId};
use hedgerow_wire::message::{GetScanner, KeyValue, SCAN_DONE, Scan, ScanReply};
use hedgerow_wire::{Body, Reply};
use std::collections::VecDeque;

/// Upper bound of a scan that goes to the end of its partition.
pub(crate) const PARTITION_END: &[u8] = &[0xff, 0xff];
/// How often in a row a scan is begun again without a row in between.
const RESTARTS_MAX: u32 = 8;

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
    /// The table that the ranges are of.
    table: TableId,
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
        let table = handle.routes.table();
        Self { handle, legs, options, table, open: None }
    }

    /// The next page that is not empty; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<KeyValue>>> {
        let mut restarts = 0;
        while let Some(leg) = self.legs.front_mut() {
            if restarts > RESTARTS_MAX {
                let message = "scan: the nodes that held it forgot it again and again";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            let place = Destination::Partition(leg.partition);
            let open = self.open;
            let body = match open {
                Some(Open { context_id, .. }) => Body::Scan(Scan { context_id }),
                None => Body::GetScanner(open_body(leg, &self.options)),
            };
            let answer = match open.and_then(|open| open.holder) {
                Some(holder) => self.handle.answer_at(place, &body, holder).await,
                None => Some(self.handle.answer(place, &body).await?),
            };
            // The partition may be another one's by now: its rows are not those that the scan began with.
            if self.handle.routes.table() != self.table {
                let message = "scan: the table was dropped, and another one has its name";
                return Err(Error::new(ErrorKind::NoTable, message));
            }
            self.open = None;
            // Without an answer the node that holds the scan is lost: begin again behind the last row, at another one.
            let Some(Answer { reply, holder }) = answer else {
                restarts += 1;
                continue;
            };
            let Reply::Scan(reply) = reply else { return Err(mismatch("scan")) };
            match Status::from_code(reply.error) {
                Some(Status::Ok) => {}
                // The node forgot the scan, or another leads now: begin again behind the last row.
                Some(Status::NotFound) if open.is_some() => {
                    restarts += 1;
                    continue;
                }
                status => return Err(Error::from_status(status, "scan")),
            }
            let ScanReply { kvs, context_id, .. } = reply;
            if let Some(last) = kvs.last() {
                leg.bounds.start = last.key.clone();
                leg.bounds.start_inclusive = false;
            }
            if context_id == SCAN_DONE {
                self.legs.pop_front();
                restarts = 0;
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
