//! Keys of requests and their storage keys.

use super::{Denied, INVALID, TableKind};
use alloc::format;
use bytes::Bytes;
use hedgerow_types::Refusal;
use hedgerow_types::key;
use hedgerow_types::limit::{HASH_KEY_SIZE_MAX, SORT_KEY_SIZE_MAX};

impl TableKind {
    /// The storage key of the record with this full key. A record of a hash table may have an empty hash key: its place
    /// then comes from its sort key.
    pub(super) fn record_key(self, full_key: &Bytes) -> Result<Bytes, Denied> {
        let (hash_key, sort_key) = key::split_full_key(full_key).ok_or(INVALID)?;
        check_sizes(hash_key, sort_key)?;
        match self {
            Self::Hash => key::hash_storage_key(full_key).ok_or(INVALID),
            Self::Ordered => {
                require_no_hash_key(hash_key)?;
                Ok(full_key.slice(2..))
            }
        }
    }

    /// The same for a key in two parts.
    pub(super) fn joined_key(self, hash_key: &Bytes, sort_key: &Bytes) -> Result<Bytes, Denied> {
        check_sizes(hash_key, sort_key)?;
        match self {
            Self::Hash => key::hash_storage_key(&key::full_key(hash_key, sort_key)).ok_or(INVALID),
            Self::Ordered => {
                require_no_hash_key(hash_key)?;
                Ok(sort_key.clone())
            }
        }
    }

    /// What the storage keys of one hash key's rows begin with. In a hash table the rows of the empty hash key lie in
    /// all partitions, so that no operation can be about them together; in an ordered table they are the whole table.
    pub(super) fn prefix(self, hash_key: &Bytes) -> Result<Bytes, Denied> {
        check_sizes(hash_key, &[])?;
        match self {
            Self::Hash if hash_key.is_empty() => Err(INVALID),
            Self::Hash => Ok(key::hash_storage_prefix(hash_key)),
            Self::Ordered => {
                require_no_hash_key(hash_key)?;
                Ok(Bytes::new())
            }
        }
    }

    /// The full key of a storage key; `None` if the storage key has not the form that it must have.
    pub fn full_key(self, storage_key: &Bytes) -> Option<Bytes> {
        match self {
            Self::Hash => key::full_key_of_storage(storage_key),
            Self::Ordered => Some(key::full_key(&[], storage_key)),
        }
    }
}

/// A sort key as a suffix, if it is not too long.
pub(super) fn suffix(sort_key: &Bytes) -> Result<Bytes, Denied> {
    check_sizes(&[], sort_key)?;
    Ok(sort_key.clone())
}

fn check_sizes(hash_key: &[u8], sort_key: &[u8]) -> Result<(), Denied> {
    for (what, size, size_max) in
        [("hash", hash_key.len(), HASH_KEY_SIZE_MAX), ("sort", sort_key.len(), SORT_KEY_SIZE_MAX)]
    {
        if size > size_max {
            let text = format!("a {what} key of {size} bytes, above the limit of {size_max}");
            return Err(Denied::Refused(Refusal::Invalid(text)));
        }
    }
    Ok(())
}

fn require_no_hash_key(hash_key: &[u8]) -> Result<(), Denied> {
    if hash_key.is_empty() {
        return Ok(());
    }
    Err(Denied::Refused(Refusal::Invalid("keys of an ordered table have an empty hash key".into())))
}
