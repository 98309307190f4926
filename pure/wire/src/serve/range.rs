//! Ranges of a scan.
//!
//! Pegasus orders a partition by full key, which begins with the hash key's length; we order it by storage key, which
//! begins with the hash. The two agree within one hash key and on "everything", and these are the ranges that clients
//! ask for: a hash key's rows, a whole partition, and what is left of either after the last row seen. A range over
//! several hash keys has another meaning in the two orders and is refused.

use super::{Denied, INVALID, TableKind, filter};
use crate::message::GetScanner;
use bytes::Bytes;
use hedgerow_types::key;
use hedgerow_types::limit::SCAN_PAGE_ROWS_MAX;
use hedgerow_types::op::Scan;

/// Above every full key: no hash key is as long as this says.
const END_OF_KEYS: &[u8] = &[0xff, 0xff];

/// The same as Python 3 clients send it: as text, in UTF-8. As a full key it would need a hash key of 50,111 bytes that is
/// not there.
const END_OF_KEYS_AS_TEXT: &[u8] = &[0xc3, 0xbf, 0xc3, 0xbf];

/// One end of a range of storage keys; an empty key is the end of the partition on that side.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    key: Bytes,
    inclusive: bool,
}

impl Bound {
    const OPEN: Self = Self { key: Bytes::new(), inclusive: false };
}

/// The first page that `request` asks for.
pub(super) fn scan(request: &GetScanner, table: TableKind) -> Result<Scan, Denied> {
    let (start, stop) = match table {
        TableKind::Hash => hash_bounds(request)?,
        TableKind::Ordered => ordered_bounds(request)?,
    };
    let rows_max = u32::try_from(request.batch_size).ok().filter(|rows| *rows > 0).unwrap_or(u32::MAX);
    Ok(Scan {
        start: start.key,
        start_inclusive: start.inclusive,
        stop: stop.key,
        stop_inclusive: stop.inclusive,
        is_hash_table: table == TableKind::Hash,
        hash_key_filter: filter(request.hash_key_filter_type, &request.hash_key_filter_pattern)?,
        sort_key_filter: filter(request.sort_key_filter_type, &request.sort_key_filter_pattern)?,
        rows_max: rows_max.min(SCAN_PAGE_ROWS_MAX as u32),
        no_value: request.no_value,
        return_expire: request.return_expire_ts.unwrap_or(false),
        only_count: request.only_return_count.unwrap_or(false),
    })
}

fn hash_bounds(request: &GetScanner) -> Result<(Bound, Bound), Denied> {
    let (start_key, stop_key) = (&request.start_key[..], &request.stop_key[..]);
    let start = match start_key {
        [] | [0] => Bound::OPEN,
        // The smallest key there can be, in both orders.
        [0, 0] if request.start_inclusive => Bound::OPEN,
        _ => Bound { key: key::hash_storage_key(start_key).ok_or(INVALID)?, inclusive: request.start_inclusive },
    };
    if is_end(stop_key) {
        return Ok((start, Bound::OPEN));
    }
    let hash_key = match key::split_full_key(start_key) {
        Some((hash_key, _)) if !hash_key.is_empty() => hash_key,
        _ => return Err(INVALID),
    };
    let end_of_hash_key = key::prefix_end(&start_key[..2 + hash_key.len()]);
    let stop = if end_of_hash_key.is_some_and(|end| end == stop_key) {
        // Clients send this bound as exclusive. Inclusive, it could only add a row of another hash key.
        let end = key::prefix_end(&key::hash_storage_prefix(hash_key)).unwrap_or_default();
        Bound { key: end, inclusive: false }
    } else if key::split_full_key(stop_key).is_some_and(|(other, _)| other == hash_key) {
        Bound { key: key::hash_storage_key(stop_key).ok_or(INVALID)?, inclusive: request.stop_inclusive }
    } else {
        return Err(INVALID);
    };
    Ok((start, stop))
}

fn ordered_bounds(request: &GetScanner) -> Result<(Bound, Bound), Denied> {
    let start = match &request.start_key[..] {
        [] | [0] => Bound::OPEN,
        [0, 0, ..] if request.start_inclusive => Bound { key: request.start_key.slice(2..), inclusive: true },
        [0, 0, ..] => {
            let (key, inclusive) = key::after(request.start_key.slice(2..));
            Bound { key, inclusive }
        }
        _ => return Err(INVALID),
    };
    let stop = match &request.stop_key[..] {
        // `00 01` is where the rows of the empty hash key end: all of them.
        stop if is_end(stop) || *stop == [0, 1] => Bound::OPEN,
        // Up to the empty key: at most that key itself. An empty bound would say the opposite.
        [0, 0] => return Ok(up_to_empty_key(start, request.stop_inclusive)),
        [0, 0, ..] => Bound { key: request.stop_key.slice(2..), inclusive: request.stop_inclusive },
        _ => return Err(INVALID),
    };
    Ok((start, stop))
}

fn up_to_empty_key(start: Bound, inclusive: bool) -> (Bound, Bound) {
    // The smallest key above the empty one.
    let second = Bound { key: Bytes::from_static(&[0]), inclusive: false };
    if inclusive && start.key.is_empty() { (start, second) } else { (second.clone(), second) }
}

fn is_end(stop_key: &[u8]) -> bool {
    stop_key.is_empty() || stop_key.starts_with(END_OF_KEYS) || stop_key == END_OF_KEYS_AS_TEXT
}
