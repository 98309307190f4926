//! A checksum of all live rows that does not depend on the order in which they are read.

use super::View;
use crate::engine::{Direction, EngineError, KeyRange};
use crate::layout::{self, APPLIED_KEY, Applied, DATA};
use crc32c::{crc32c, crc32c_append};
use hedgerow_types::op::ReadReply;
use hedgerow_types::random::Random;
use hedgerow_types::time::is_expired;
use std::ops::ControlFlow;

/// First key behind the applied position, which stands behind the data.
const RANGE_END: &[u8] = b"mb";

impl View<'_> {
    pub(super) fn checksum(&self) -> Result<ReadReply, EngineError> {
        let (mut checksum, mut rows) = (0u64, 0u64);
        let mut applied = Applied::default();
        let mut outcome = Ok(());
        let mut look = |key: &[u8], row: &[u8]| {
            self.look(row.len())?;
            if key == APPLIED_KEY {
                applied = Applied::decode(row)?;
            } else if let [DATA, storage_key @ ..] = key {
                let (expire_at, value) = layout::split_row(row)?;
                if !is_expired(expire_at, self.now) {
                    checksum = checksum.wrapping_add(row_checksum(storage_key, expire_at, value));
                    rows += 1;
                }
            }
            Ok(())
        };
        // The applied position is read by the same scan, hence as of the same moment.
        let range = KeyRange { start: &[DATA], end: Some(RANGE_END), is_bulk: true };
        self.rows.scan(range, Direction::Ascending, &mut |key, row| match look(key, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        })?;
        outcome.map(|()| ReadReply::Checksum { checksum, rows, index: applied.position.index })
    }
}

/// Key, expiry and value of a row in 64 bits, whether it has a stamp or not: two clusters are compared by it too. CRCs are linear, and a sum of them could cancel out what was exchanged
/// between two rows; mixing keeps that from happening.
fn row_checksum(storage_key: &[u8], expire_at: u32, value: &[u8]) -> u64 {
    let key = crc32c(storage_key);
    let all = crc32c_append(crc32c_append(key, &layout::row_header(expire_at)), value);
    Random::new(u64::from(key) << 32 | u64::from(all)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_exchanged_between_keys_change_the_sum() {
        let sum = |rows: &[(&[u8], &[u8])]| {
            rows.iter().fold(0u64, |sum, (key, value)| sum.wrapping_add(row_checksum(key, 0, value)))
        };
        assert_eq!(sum(&[(b"a", b"1"), (b"b", b"2")]), sum(&[(b"b", b"2"), (b"a", b"1")]));
        assert_ne!(sum(&[(b"a", b"1"), (b"b", b"2")]), sum(&[(b"a", b"2"), (b"b", b"1")]));
        assert_ne!(sum(&[(b"a", b"1")]), sum(&[(b"a1", b"")]));
    }
}
