//! Keys: Pegasus' full key, its partition hash, and the storage key whose byte order makes every partition one range.
//!
//! - Full key (what Pegasus clients send): `u16 BE length of hash key | hash key | sort key`.
//! - Storage key of a hash table: `u64 BE bit-reversed partition hash | full key`. Reversing puts Pegasus'
//!   `hash mod 2^k` into the top `k` bits, so that partition `i` of `2^k` is the range of keys whose top `k` bits,
//!   reversed, are `i`.
//! - Storage key of an ordered table: the key itself.

use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};

/// Bytes that a hash table's storage key puts before the full key.
pub const HASH_PREFIX_SIZE: usize = 8;

const CRC64_TABLE: [u64; 256] = crc64_table();

const fn crc64_table() -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x9a6c_9329_ac4b_c9b5 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// Pegasus' CRC-64: reflected, table polynomial `9a6c9329ac4bc9b5`, initial register and final complement all ones.
pub fn crc64(data: &[u8]) -> u64 {
    !data.iter().fold(!0u64, |crc, byte| CRC64_TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// The partition hash: of the hash key, or of the sort key where the hash key is empty.
pub fn partition_hash(hash_key: &[u8], sort_key: &[u8]) -> u64 {
    crc64(if hash_key.is_empty() { sort_key } else { hash_key })
}

/// The partition of `hash` among `partition_count` (at least 1).
pub fn partition_of_hash(hash: u64, partition_count: u32) -> u32 {
    (hash % u64::from(partition_count.max(1))) as u32
}

/// Splits a full key into hash key and sort key; `None` if it is shorter than it says.
pub fn split_full_key(full_key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = full_key.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Joins hash key (at most [`crate::limit::HASH_KEY_SIZE_MAX`] bytes, checked by the caller) and sort key.
pub fn full_key(hash_key: &[u8], sort_key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + hash_key.len() + sort_key.len());
    out.put_u16(hash_key.len() as u16);
    out.put_slice(hash_key);
    out.put_slice(sort_key);
    out.freeze()
}

/// The storage key of a hash table's record; `None` if `full_key` is malformed.
pub fn hash_storage_key(full_key: &[u8]) -> Option<Bytes> {
    let (hash_key, sort_key) = split_full_key(full_key)?;
    let mut out = BytesMut::with_capacity(HASH_PREFIX_SIZE + full_key.len());
    out.put_u64(partition_hash(hash_key, sort_key).reverse_bits());
    out.put_slice(full_key);
    Some(out.freeze())
}

/// The storage-key prefix that all records of a non-empty `hash_key` share.
pub fn hash_storage_prefix(hash_key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HASH_PREFIX_SIZE + 2 + hash_key.len());
    out.put_u64(crc64(hash_key).reverse_bits());
    out.put_u16(hash_key.len() as u16);
    out.put_slice(hash_key);
    out.freeze()
}

/// The full key inside a hash table's storage key; `None` if it is too short.
pub fn full_key_of_storage(storage_key: &Bytes) -> Option<Bytes> {
    (storage_key.len() >= HASH_PREFIX_SIZE + 2).then(|| storage_key.slice(HASH_PREFIX_SIZE..))
}

/// Hash key and sort key in a storage key that has the form of a hash table's: the hash in front is that of what follows. `None` for
/// others, which are an ordered table's.
pub fn split_storage_key(storage_key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (hash, full_key) = storage_key.split_first_chunk::<HASH_PREFIX_SIZE>()?;
    let (hash_key, sort_key) = split_full_key(full_key)?;
    (u64::from_be_bytes(*hash) == partition_hash(hash_key, sort_key).reverse_bits()).then_some((hash_key, sort_key))
}

/// The hash key in a prefix that [`hash_storage_prefix`] made; `None` for anything else.
pub fn hash_key_of_prefix(prefix: &[u8]) -> Option<&[u8]> {
    split_storage_key(prefix).and_then(|(hash_key, rest)| (!hash_key.is_empty() && rest.is_empty()).then_some(hash_key))
}

/// The smallest key above every key that starts with `prefix`; `None` if there is none (all bytes are 0xFF).
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut out = Vec::from(&prefix[..=last]);
    out[last] += 1;
    Some(out.into())
}

/// The storage-key range `[start, end)` of partition `partition` of a hash table with `partition_count = 2^k`
/// partitions; an `end` of `None` is the end of the key space.
pub fn hash_partition_range(partition: u32, partition_count: u32) -> (Bytes, Option<Bytes>) {
    debug_assert!(partition_count.is_power_of_two() && partition < partition_count);
    let bits = partition_count.trailing_zeros();
    if bits == 0 {
        return (Bytes::new(), None);
    }
    let rank = u64::from(partition).reverse_bits() >> (64 - bits);
    let start = Bytes::copy_from_slice(&(rank << (64 - bits)).to_be_bytes());
    let end = (rank + 1 < u64::from(partition_count))
        .then(|| Bytes::copy_from_slice(&((rank + 1) << (64 - bits)).to_be_bytes()));
    (start, end)
}

/// Where a range begins that holds all storage keys above `last`: a key, and whether it is one of them. Never the empty key,
/// which stands for no bound.
pub fn after(last: Bytes) -> (Bytes, bool) {
    if last.is_empty() { (Bytes::from_static(&[0]), true) } else { (last, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc64_has_the_published_check_values() {
        assert_eq!(crc64(b""), 0);
        assert_eq!(crc64(b"a"), 0x8c2f_8445_b4cb_fc3c);
        assert_eq!(crc64(b"hello"), 0x3377_8570_0652_4257);
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64(b"hash_key"), 0x6564_1f36_e9f6_a96d);
    }

    #[test]
    fn prefix_end_skips_trailing_ff() {
        assert_eq!(prefix_end(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(prefix_end(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    proptest! {
        #[test]
        fn a_full_key_splits_into_what_it_was_joined_from(hash: Vec<u8>, sort: Vec<u8>) {
            let joined = full_key(&hash, &sort);
            prop_assert_eq!(split_full_key(&joined), Some((&hash[..], &sort[..])));
            let storage = hash_storage_key(&joined).expect("well formed");
            prop_assert_eq!(split_storage_key(&storage), Some((&hash[..], &sort[..])));
            prop_assert_eq!(split_storage_key(&storage[1..]), None);
            prop_assert_eq!(full_key_of_storage(&storage), Some(joined));
            let prefix = hash_storage_prefix(&hash);
            prop_assert_eq!(hash_key_of_prefix(&prefix), (!hash.is_empty()).then_some(&hash[..]));
        }

        #[test]
        fn a_record_lies_in_the_range_of_its_partition(hash in proptest::collection::vec(any::<u8>(), 1..20), bits in 0u32..12) {
            let count = 1 << bits;
            let key = hash_storage_key(&full_key(&hash, b"s")).expect("well formed");
            let (start, end) = hash_partition_range(partition_of_hash(crc64(&hash), count), count);
            prop_assert!(key >= start);
            prop_assert!(end.is_none_or(|end| key < end));
        }

        #[test]
        fn doubling_splits_partition_i_into_i_and_i_plus_n(i in 0u32..64, bits in 6u32..11) {
            let n = 1u32 << bits;
            let (start, end) = hash_partition_range(i, n);
            let (low, high) = (hash_partition_range(i, 2 * n), hash_partition_range(i + n, 2 * n));
            prop_assert_eq!(low.0, start);
            prop_assert_eq!(low.1, Some(high.0));
            prop_assert_eq!(high.1, end);
        }
    }
}
