//! What lies where in an engine, byte by byte.
//!
//! | key | value |
//! |---|---|
//! | `d` storage key | `1`, u32 BE expiry (0 = never), user data |
//! | `ma` | `1`, u64 BE term, u64 BE index, u32 BE log time: the applied position |
//! | `mc` | the group's membership as the replication layer encoded it |
//! | `mf` | `1`, u64 BE: numbers of writes up to this one may have been forgotten; absent = sessions have no bound yet |
//! | `d` storage key, once the partition is duplicated | `2`, u32 BE expiry (0 = never), u64 BE stamp, u64 BE cluster that made it (0 = this one), user data |
//! | `mj` | the journal's state ([`crate::journal`]); absent = the partition was never duplicated |
//! | `n` u64 BE number | `1`, u64 BE bytes of the journal up to its end, encoded changes: an entry of the journal |
//! | `t` storage key | `1`, u32 BE time from which it may go, u64 BE stamp, u64 BE cluster: a row was removed |
//! | `s` u64 BE client, u16 BE slot | `1`, u64 BE sequence, u32 BE log time, encoded write reply |
//! | the same, once sessions have a bound | `2`, u64 BE sequence, u32 BE log time, u64 BE log index, encoded write reply; no reply = it was too large to be kept |
//!
//! The first byte is the version of the row. Log time and expiry count expiry-epoch seconds. Data rows come first in key
//! order and the applied position follows them, so that one scan sees both as of one moment.

use crate::engine::EngineError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_types::journal::{EXPIRED_SECONDS, Stamp, stamp_seconds};
use hedgerow_types::log::LogPosition;
use hedgerow_types::time::is_expired;

/// First byte of data keys.
pub(crate) const DATA: u8 = b'd';
/// Key of the applied position.
pub(crate) const APPLIED_KEY: &[u8] = b"ma";
/// Key of the membership.
pub(crate) const MEMBERSHIP_KEY: &[u8] = b"mc";
/// Key of the largest number of a write that may have been forgotten.
pub(crate) const FLOOR_KEY: &[u8] = b"mf";
/// Key of the journal's state.
pub(crate) const JOURNAL_KEY: &[u8] = b"mj";
/// First byte of the keys of the journal's entries.
pub(crate) const JOURNAL: u8 = b'n';
/// First byte of the keys of removed rows.
pub(crate) const TOMBSTONE: u8 = b't';
/// First byte of session keys.
pub(crate) const SESSION: u8 = b's';
/// First byte of the keys behind the sessions.
pub(crate) const SESSION_END: u8 = SESSION + 1;
/// Bytes before the user data in a data row without a stamp.
pub(crate) const ROW_HEADER_SIZE: usize = 5;
/// Bytes before the user data in a data row with a stamp, and of a removed row.
pub(crate) const STAMPED_HEADER_SIZE: usize = 21;

const VERSION: u8 = 1;
const APPLIED_SIZE: usize = 21;
const SESSION_KEY_SIZE: usize = 11;
/// Version of data rows with a stamp.
const VERSION_STAMPED: u8 = 2;
/// Version of the rows of sessions that have a bound.
const VERSION_BOUNDED: u8 = 2;
/// Bytes of a session row of the first version before its reply.
const SESSION_HEADER_SIZE: usize = 13;

/// The engine key of the record whose storage key `parts` make up.
pub(crate) fn data_key(parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(DATA);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// What stands before the user data of a record that expires at `expire_at`.
pub(crate) fn row_header(expire_at: u32) -> [u8; ROW_HEADER_SIZE] {
    let [a, b, c, d] = expire_at.to_be_bytes();
    [VERSION, a, b, c, d]
}

/// When a row was changed, and the cluster that did it; 0 = this one.
pub(crate) type Stamped = (Stamp, u64);

/// The same for a record with a stamp.
pub(crate) fn stamped_header(expire_at: u32, stamped: Stamped) -> [u8; STAMPED_HEADER_SIZE] {
    header(VERSION_STAMPED, expire_at, stamped)
}

/// What stands for a removed row until `drop_at`.
pub(crate) fn tombstone(drop_at: u32, stamped: Stamped) -> [u8; STAMPED_HEADER_SIZE] {
    header(VERSION, drop_at, stamped)
}

fn header(version: u8, time: u32, (stamp, cluster): Stamped) -> [u8; STAMPED_HEADER_SIZE] {
    let mut out = [version; STAMPED_HEADER_SIZE];
    out[1..5].copy_from_slice(&time.to_be_bytes());
    out[5..13].copy_from_slice(&stamp.to_be_bytes());
    out[13..].copy_from_slice(&cluster.to_be_bytes());
    out
}

fn split_header(header: &[u8; STAMPED_HEADER_SIZE]) -> (u32, Stamped) {
    let mut header = &header[1..];
    (header.get_u32(), (header.get_u64(), header.get_u64()))
}

/// Until when a removed row is remembered, and when it was removed.
pub(crate) fn split_tombstone(row: &[u8]) -> Result<(u32, Stamped), EngineError> {
    match row.split_first_chunk::<STAMPED_HEADER_SIZE>() {
        Some((header @ &[VERSION, ..], [])) => Ok(split_header(header)),
        Some(_) | None => Err(EngineError::damaged("a removed row has an unknown form")),
    }
}

/// When the record with the stored value `row` expires, and its user data.
pub(crate) fn split_row(row: &[u8]) -> Result<(u32, &[u8]), EngineError> {
    split_stamped(row).map(|(expire_at, _, data)| (expire_at, data))
}

/// The same with its stamp: 0 of a row without one.
pub(crate) fn split_stamped(row: &[u8]) -> Result<(u32, Stamped, &[u8]), EngineError> {
    match row.split_first_chunk::<ROW_HEADER_SIZE>() {
        Some((&[VERSION, a, b, c, d], data)) => return Ok((u32::from_be_bytes([a, b, c, d]), (0, 0), data)),
        Some((&[VERSION_STAMPED, ..], _)) => {}
        Some(_) | None => return Err(EngineError::damaged("a data row has an unknown form")),
    }
    match row.split_first_chunk::<STAMPED_HEADER_SIZE>() {
        Some((header, data)) => {
            let (expire_at, stamped) = split_header(header);
            Ok((expire_at, stamped, data))
        }
        None => Err(EngineError::damaged("a data row is cut off within its stamp")),
    }
}

/// Until when (0 = for ever) the record with the stored value `row` says when its key was changed last, and what it says: for a while after it
/// has expired, since an older change that comes late would put a dead value in its place. One without a stamp counts as changed at `base`,
/// when the partition's first duplication began; if it had expired by then, it says so no longer.
pub(crate) fn remembered(row: &[u8], base: Stamp) -> Result<(u32, Stamped), EngineError> {
    let (expire_at, stamped, _) = split_stamped(row)?;
    let is_forgotten = expire_at == 0 || (stamped.0 == 0 && is_expired(expire_at, stamp_seconds(base)));
    let until = if is_forgotten { expire_at } else { expire_at.saturating_add(EXPIRED_SECONDS) };
    Ok((until, if stamped.0 == 0 { (base, 0) } else { stamped }))
}

/// When the record with the stored value `row` expires and its user data, unless it is expired at `now`.
pub(crate) fn live(mut row: Bytes, now: u32) -> Result<Option<(u32, Bytes)>, EngineError> {
    let (expire_at, data) = split_row(&row)?;
    if is_expired(expire_at, now) {
        return Ok(None);
    }
    row.advance(row.len() - data.len());
    Ok(Some((expire_at, row)))
}

/// Whether an engine may drop the row `key` = `value` once everything up to log time `floor` is durable. Rows that it
/// does not understand stay.
pub(crate) fn is_droppable(key: &[u8], value: &[u8], floor: u32) -> bool {
    match key.first() {
        Some(&DATA) => split_row(value).is_ok_and(|(expire_at, _)| is_expired(expire_at, floor)),
        Some(&TOMBSTONE) => split_tombstone(value).is_ok_and(|(drop_at, _)| is_expired(drop_at, floor)),
        Some(_) | None => false,
    }
}

/// How far the log is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) position: LogPosition,
    /// The log's time, expiry-epoch seconds: see [`hedgerow_types::time::log_time_after`].
    pub(crate) now: u32,
}

impl Applied {
    pub(crate) fn encode(self) -> [u8; APPLIED_SIZE] {
        let mut out = [VERSION; APPLIED_SIZE];
        out[1..9].copy_from_slice(&self.position.term.to_be_bytes());
        out[9..17].copy_from_slice(&self.position.index.to_be_bytes());
        out[17..].copy_from_slice(&self.now.to_be_bytes());
        out
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self, EngineError> {
        let damaged = || EngineError::damaged("the applied position has an unknown form");
        let [VERSION, rest @ ..] = row else { return Err(damaged()) };
        let (term, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (index, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        let now = <[u8; 4]>::try_from(rest).map_err(|_| damaged())?;
        let position = LogPosition { term: u64::from_be_bytes(*term), index: u64::from_be_bytes(*index) };
        Ok(Self { position, now: u32::from_be_bytes(now) })
    }
}

/// The key of a client's result slot.
pub(crate) fn session_key(client: u64, slot: u16) -> [u8; SESSION_KEY_SIZE] {
    let mut key = [SESSION; SESSION_KEY_SIZE];
    key[1..9].copy_from_slice(&client.to_be_bytes());
    key[9..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// Client and slot of a session key.
pub(crate) fn split_session_key(key: &[u8]) -> Result<(u64, u16), EngineError> {
    let damaged = || EngineError::damaged("a session key has an unknown form");
    let [SESSION, rest @ ..] = key else { return Err(damaged()) };
    let (client, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let slot = <[u8; 2]>::try_from(rest).map_err(|_| damaged())?;
    Ok((u64::from_be_bytes(*client), u16::from_be_bytes(slot)))
}

/// The stored floor of forgotten numbers.
pub(crate) fn encode_floor(floor: u64) -> [u8; 9] {
    let mut out = [VERSION; 9];
    out[1..].copy_from_slice(&floor.to_be_bytes());
    out
}

/// The inverse of [`encode_floor`].
pub(crate) fn decode_floor(row: &[u8]) -> Result<u64, EngineError> {
    match row.split_first_chunk::<9>() {
        Some((&[VERSION, ref floor @ ..], [])) => Ok(u64::from_be_bytes(*floor)),
        Some(_) | None => Err(EngineError::damaged("the floor of forgotten numbers has an unknown form")),
    }
}

/// What stands before the encoded reply in a session row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionHeader {
    pub(crate) sequence: u64,
    /// Log time of the write.
    pub(crate) now: u32,
    /// Log index of the write; 0 in rows of the first version, which do not hold it.
    pub(crate) index: u64,
}

impl SessionHeader {
    /// Appends the header to `out`, in the first version if it has no index.
    pub(crate) fn encode(self, out: &mut BytesMut) {
        out.put_u8(if self.index == 0 { VERSION } else { VERSION_BOUNDED });
        out.put_u64(self.sequence);
        out.put_u32(self.now);
        if self.index != 0 {
            out.put_u64(self.index);
        }
    }

    /// The header of a session row and the encoded reply behind it.
    pub(crate) fn split(row: &[u8]) -> Result<(Self, &[u8]), EngineError> {
        let damaged = || EngineError::damaged("a session row has an unknown form");
        let (header, rest) = row.split_first_chunk::<SESSION_HEADER_SIZE>().ok_or_else(damaged)?;
        let mut header = &header[..];
        let version = header.get_u8();
        let (sequence, now) = (header.get_u64(), header.get_u32());
        match version {
            VERSION => Ok((Self { sequence, now, index: 0 }, rest)),
            VERSION_BOUNDED => {
                let (index, reply) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
                Ok((Self { sequence, now, index: u64::from_be_bytes(*index) }, reply))
            }
            _ => Err(damaged()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_forms_are_fixed() {
        assert_eq!(data_key(&[b"a", b"b"]), b"dab");
        assert_eq!(row_header(0x0102_0304), [1, 1, 2, 3, 4]);
        let stamped = stamped_header(0x0102_0304, (5, 6));
        assert_eq!(stamped, [2, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(split_stamped(&[&stamped[..], b"v"].concat()).expect("own form"), (0x0102_0304, (5, 6), &b"v"[..]));
        assert_eq!(tombstone(0x0102_0304, (5, 6))[1..], stamped[1..]);
        assert_eq!(split_tombstone(&tombstone(4, (5, 6))).expect("own form"), (4, (5, 6)));
        let applied = Applied { position: LogPosition { term: 2, index: 3 }, now: 4 };
        assert_eq!(applied.encode(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!(Applied::decode(&applied.encode()).expect("own form"), applied);
        assert_eq!(session_key(5, 6), [b's', 0, 0, 0, 0, 0, 0, 0, 5, 0, 6]);
        assert_eq!(split_session_key(&session_key(5, 6)).expect("own form"), (5, 6));
        assert_eq!(encode_floor(5), [1, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(decode_floor(&encode_floor(5)).expect("own form"), 5);
        for (index, form) in [
            (0, &[1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8][..]),
            (9, &[2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9]),
        ] {
            let header = SessionHeader { sequence: 7, now: 8, index };
            let mut row = BytesMut::new();
            header.encode(&mut row);
            assert_eq!(row, form);
            row.put_slice(b"reply");
            assert_eq!(SessionHeader::split(&row).expect("own form"), (header, &b"reply"[..]));
        }
    }

    #[test]
    fn other_bytes_are_refused_and_never_dropped() {
        for size in 0..30 {
            let zeros = vec![0; size];
            assert!(split_row(&zeros).is_err());
            assert!(Applied::decode(&zeros).is_err());
            assert!(split_session_key(&zeros).is_err());
            assert!(SessionHeader::split(&zeros).is_err());
            assert!(decode_floor(&zeros).is_err());
            assert!(split_tombstone(&zeros).is_err());
            assert!(!is_droppable(b"dk", &zeros, u32::MAX));
            assert!(!is_droppable(b"tk", &zeros, u32::MAX));
        }
        for size in (0..21).chain(22..30) {
            assert!(Applied::decode(&vec![1; size]).is_err());
        }
        for size in (0..9).chain(10..12) {
            assert!(decode_floor(&vec![1; size]).is_err());
        }
        for size in 0..21 {
            assert!(SessionHeader::split(&vec![2; size]).is_err());
        }
    }

    #[test]
    fn only_data_rows_expired_at_the_floor_are_droppable() {
        let row = |expire_at| [&row_header(expire_at)[..], b"v"].concat();
        assert!(is_droppable(b"dk", &row(10), 10));
        assert!(!is_droppable(b"dk", &row(11), 10));
        assert!(!is_droppable(b"dk", &row(0), u32::MAX));
        let stamped = |expire_at| [&stamped_header(expire_at, (7, 8))[..], b"v"].concat();
        assert!(is_droppable(b"dk", &stamped(10), 10));
        assert!(!is_droppable(b"dk", &stamped(11), 10));
        assert!(!is_droppable(b"dk", &stamped(0), u32::MAX));
        assert!(is_droppable(b"tk", &tombstone(10, (7, 8)), 10));
        assert!(!is_droppable(b"tk", &tombstone(11, (7, 8)), 10));
        assert!(!is_droppable(b"mk", &row(10), 10));
        assert!(!is_droppable(b"sk", &row(10), 10));
    }
}
