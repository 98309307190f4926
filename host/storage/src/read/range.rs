//! Reads of a range: multi get, sort-key count and scan.
//!
//! Rows are looked at in key order; expired ones and those that a filter excludes are skipped. A reply says that more
//! remains when a further row would have been returned but for a limit, or when the limit of rows to look at is reached.
//! So, that last limit aside, no reply depends on whether an expired row is still on this replica's disk.

use super::View;
use super::page::{Limits, Page};
use crate::engine::{Direction, EngineError, KeyRange};
use crate::layout::{self, DATA};
use bytes::Bytes;
use hedgerow_types::error::Status;
use hedgerow_types::key::{HASH_PREFIX_SIZE, prefix_end, split_full_key};
use hedgerow_types::limit::{READ_ROWS_MAX, READ_SIZE_MAX, SCAN_PAGE_ROWS_MAX};
use hedgerow_types::op::{ExpireAt, Filter, FilterKind, MultiGet, ReadReply, Scan, Selection};
use hedgerow_types::time::is_expired;
use std::ops::ControlFlow;

/// Most rows that a count looks at. Pegasus gives up after 30 seconds; this is as much work, without a clock.
const COUNT_ROWS_MAX: u64 = 20_000_000;

/// A range of engine keys, `[start, end)`.
struct Bounds {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Bounds {
    /// The data keys that start with `prefix`.
    fn of_prefix(prefix: &[u8]) -> Self {
        let start = layout::data_key(&[prefix]);
        let end = prefix_end(&start).map(Vec::from);
        Self { start, end }
    }

    /// Leaves the data keys from `key`'s parts on.
    fn raise_start(&mut self, key: &[&[u8]], inclusive: bool) {
        let mut start = layout::data_key(key);
        if !inclusive {
            // No key lies between a key and itself with a zero byte behind.
            start.push(0);
        }
        self.start = start.max(std::mem::take(&mut self.start));
    }

    /// Leaves the data keys up to `key`'s parts.
    fn lower_end(&mut self, key: &[&[u8]], inclusive: bool) {
        let mut end = layout::data_key(key);
        if inclusive {
            end.push(0);
        }
        self.lower_end_to(end);
    }

    /// Leaves the data keys that start with `prefix`'s parts.
    fn narrow_to_prefix(&mut self, prefix: &[&[u8]]) {
        let start = layout::data_key(prefix);
        if let Some(end) = prefix_end(&start) {
            self.lower_end_to(end.into());
        }
        self.raise_start(prefix, true);
    }

    fn lower_end_to(&mut self, end: Vec<u8>) {
        if self.end.as_ref().is_none_or(|old| end < *old) {
            self.end = Some(end);
        }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| self.start >= *end)
    }
}

/// A data row as a range read sees it.
struct Seen<'a> {
    storage_key: &'a [u8],
    value: &'a [u8],
    expire_at: ExpireAt,
    is_live: bool,
}

impl View<'_> {
    pub(super) fn multi_get_range(&self, multi_get: &MultiGet) -> Result<ReadReply, EngineError> {
        let Selection::Range { start, start_inclusive, stop, stop_inclusive, filter, reverse } = &multi_get.selection
        else {
            return Ok(ReadReply::Rows { status: Status::InvalidArgument, rows: Vec::new() });
        };
        let prefix = &multi_get.prefix[..];
        let mut bounds = Bounds::of_prefix(prefix);
        bounds.raise_start(&[prefix, start], *start_inclusive);
        if !stop.is_empty() {
            bounds.lower_end(&[prefix, stop], *stop_inclusive);
        }
        if filter.kind == FilterKind::Prefix && !filter.pattern.is_empty() {
            bounds.narrow_to_prefix(&[prefix, &filter.pattern]);
        }
        let direction = if *reverse { Direction::Descending } else { Direction::Ascending };
        let limits = Limits::requested(multi_get.count_max, multi_get.size_max);
        let mut page = Page::default();
        let mut looked_at = 0;
        let mut status = Status::Ok;
        self.visit(&bounds, direction, &mut |row| {
            let suffix = &row.storage_key[prefix.len()..];
            let is_selected = row.is_live && filter.matches(suffix);
            let is_full = page.count() >= limits.rows || page.size() >= limits.size;
            if looked_at >= READ_ROWS_MAX || is_selected && is_full {
                status = Status::Incomplete;
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if is_selected {
                page.push(suffix, if multi_get.no_value { &[] } else { row.value }, None);
            }
            ControlFlow::Continue(())
        })?;
        let mut rows = page.into_rows();
        if *reverse {
            rows.reverse();
        }
        Ok(ReadReply::Rows { status, rows })
    }

    pub(super) fn sort_key_count(&self, prefix: &[u8]) -> Result<ReadReply, EngineError> {
        let (mut looked_at, mut live) = (0, 0);
        self.visit(&Bounds::of_prefix(prefix), Direction::Ascending, &mut |row| {
            looked_at += 1;
            if looked_at > COUNT_ROWS_MAX {
                live = -1;
                return ControlFlow::Break(());
            }
            live += i64::from(row.is_live);
            ControlFlow::Continue(())
        })?;
        Ok(ReadReply::Count(Ok(live)))
    }

    pub(super) fn scan(&self, scan: &Scan) -> Result<ReadReply, EngineError> {
        let mut bounds = Bounds::of_prefix(&[]);
        bounds.raise_start(&[&scan.start], scan.start_inclusive || scan.start.is_empty());
        if !scan.stop.is_empty() {
            bounds.lower_end(&[&scan.stop], scan.stop_inclusive);
        }
        let rows_max = (scan.rows_max as usize).clamp(1, SCAN_PAGE_ROWS_MAX);
        let mut page = Page::default();
        let (mut looked_at, mut count) = (0, 0);
        let mut last = None;
        let mut goes_on = false;
        let mut malformed = false;
        self.visit(&bounds, Direction::Ascending, &mut |row| {
            let Some(passes) = selects(scan, row.storage_key) else {
                malformed = true;
                return ControlFlow::Break(());
            };
            let is_selected = passes && row.is_live;
            let is_full = count >= rows_max || page.size() >= READ_SIZE_MAX;
            goes_on = looked_at >= SCAN_PAGE_ROWS_MAX || is_selected && is_full;
            if goes_on {
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if is_selected {
                count += 1;
                if !scan.only_count {
                    let value = if scan.no_value { &[][..] } else { row.value };
                    page.push(row.storage_key, value, scan.return_expire.then_some(row.expire_at));
                }
            }
            let fills = is_selected && (count >= rows_max || page.size() >= READ_SIZE_MAX);
            if fills || looked_at >= SCAN_PAGE_ROWS_MAX {
                last = Some(Bytes::copy_from_slice(row.storage_key));
            }
            ControlFlow::Continue(())
        })?;
        if malformed {
            return Err(EngineError::damaged("a key does not have the form of a hash table's"));
        }
        let resume_after = last.filter(|_| goes_on);
        Ok(ReadReply::Page { status: Status::Ok, rows: page.into_rows(), count: count as u32, resume_after })
    }

    /// Shows `visit` the data rows of `bounds`.
    fn visit(
        &self,
        bounds: &Bounds,
        direction: Direction,
        visit: &mut dyn FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if bounds.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        let range = KeyRange { start: &bounds.start, end: bounds.end.as_deref(), is_bulk: false };
        let mut look = |key: &[u8], row: &[u8]| {
            self.look(key.len() + row.len())?;
            let (expire_at, value) = layout::split_row(row)?;
            let [DATA, storage_key @ ..] = key else { return Ok(ControlFlow::Break(())) };
            Ok(visit(Seen { storage_key, value, expire_at, is_live: !is_expired(expire_at, self.now) }))
        };
        self.rows.scan(range, direction, &mut |key, row| {
            look(key, row).unwrap_or_else(|error| {
                outcome = Err(error);
                ControlFlow::Break(())
            })
        })?;
        outcome
    }
}

/// Whether the record passes the scan's filters; `None` if it is not a hash table's key and should be one.
fn selects(scan: &Scan, storage_key: &[u8]) -> Option<bool> {
    let matches_all = |filter: &Filter| filter.kind == FilterKind::None || filter.pattern.is_empty();
    if matches_all(&scan.hash_key_filter) && matches_all(&scan.sort_key_filter) {
        return Some(true);
    }
    if !scan.is_hash_table {
        return Some(scan.sort_key_filter.matches(storage_key));
    }
    let (hash_key, sort_key) = split_full_key(storage_key.get(HASH_PREFIX_SIZE..)?)?;
    Some(scan.hash_key_filter.matches(hash_key) && scan.sort_key_filter.matches(sort_key))
}
