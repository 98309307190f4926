//! The rows that a range read gathers, and the limits that end it.

use bytes::Bytes;
use hedgerow_types::limit::READ_SIZE_MAX;
use hedgerow_types::op::{ExpireAt, Row};

/// How much one read returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Rows.
    pub(super) rows: usize,
    /// Bytes of keys and values. Looked at before a row is added, so that the last one may exceed it.
    pub(super) size: usize,
}

impl Limits {
    /// As a request asks for, where 0 or less means no limit, within the server's own size limit.
    pub(super) fn requested(count_max: i32, size_max: i32) -> Self {
        let limit = |asked: i32| usize::try_from(asked).ok().filter(|asked| *asked > 0).unwrap_or(usize::MAX);
        Self { rows: limit(count_max), size: limit(size_max).min(READ_SIZE_MAX) }
    }
}

/// Rows gathered in one buffer, so that a page costs a few allocations and not two per row.
#[derive(Debug, Default)]
pub(super) struct Page {
    data: Vec<u8>,
    rows: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    key_end: usize,
    value_end: usize,
    expire_at: Option<ExpireAt>,
}

impl Page {
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], expire_at: Option<ExpireAt>) {
        self.data.extend_from_slice(key);
        let key_end = self.data.len();
        self.data.extend_from_slice(value);
        self.rows.push(Piece { key_end, value_end: self.data.len(), expire_at });
    }

    /// Bytes of keys and values.
    pub(super) fn size(&self) -> usize {
        self.data.len()
    }

    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn into_rows(self) -> Vec<Row> {
        let data = Bytes::from(self.data);
        let mut start = 0;
        let rows = self.rows.into_iter().map(|piece| {
            let key = data.slice(start..piece.key_end);
            let value = data.slice(piece.key_end..piece.value_end);
            start = piece.value_end;
            Row { key, value, expire_at: piece.expire_at }
        });
        rows.collect()
    }
}
