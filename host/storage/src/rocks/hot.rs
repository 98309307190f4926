//! Rows that were read lately, shared by the databases of a process: a hit spares RocksDB's search.
//!
//! A database reads and fills it under its lock for reading, and forgets what it writes under its lock for writing, so
//! that a row found here is always the one that the database would give.

use bytes::Bytes;
use hedgerow_env::os::random_u64;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, Weighter};
use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a row takes beside its key and value, bytes.
const ROW_OVERHEAD: u64 = 128;
/// The size that the number of rows is guessed by.
const ROW_SIZE_GUESS: u64 = 512;
/// Larger rows are not kept: one of them would displace many.
const ROW_SIZE_MAX: usize = 64 << 10;

/// A row's database and key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    database: u64,
    key: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Wanted<'a> {
    database: u64,
    key: &'a [u8],
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Wanted { database: self.database, key: &self.key }.hash(state);
    }
}

impl Hash for Wanted<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.database);
        state.write(self.key);
    }
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.database == key.database && *self.key == *key.key
    }
}

#[derive(Clone)]
struct Size;

impl Weighter<Key, Bytes> for Size {
    fn weight(&self, key: &Key, value: &Bytes) -> u64 {
        (key.key.len() + value.len()) as u64 + ROW_OVERHEAD
    }
}

/// Clients choose the keys: with a hash that anybody can compute they could have all of them in one place (N9).
#[derive(Clone)]
struct Secret([u64; 2]);

impl BuildHasher for Secret {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

type Rows = Cache<Key, Bytes, Size, Secret, DefaultLifecycle<Key, Bytes>>;

/// The cache.
pub(super) struct HotRows {
    rows: Mutex<Rows>,
}

impl HotRows {
    /// Keeps about `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        let count = (size as u64 / (ROW_SIZE_GUESS + ROW_OVERHEAD)).max(1) as usize;
        let secret = Secret([random_u64(), random_u64()]);
        let rows = Cache::with(count, size as u64, Size, secret, DefaultLifecycle::default());
        Self { rows: Mutex::new(rows) }
    }

    /// The value of `key`, if it is here.
    pub(super) fn get(&self, database: u64, key: &[u8]) -> Option<Bytes> {
        self.rows().get(&Wanted { database, key }).cloned()
    }

    /// Keeps a row that `database` has just given.
    pub(super) fn put(&self, database: u64, key: &[u8], value: &Bytes) {
        if key.len() + value.len() <= ROW_SIZE_MAX {
            self.rows().insert(Key { database, key: key.into() }, value.clone());
        }
    }

    /// Forgets rows that change.
    pub(super) fn forget<'a>(&self, database: u64, keys: impl Iterator<Item = &'a [u8]>) {
        let mut rows = self.rows();
        if !rows.is_empty() {
            keys.for_each(|key| drop(rows.remove(&Wanted { database, key })));
        }
    }

    // Whoever panicked here did so in the library; at worst the cache lacks rows.
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustc_hash::FxBuildHasher;
    use std::collections::BTreeSet;

    #[test]
    fn a_row_belongs_to_its_database_and_can_be_forgotten() {
        let rows = HotRows::new(1 << 20);
        rows.put(1, b"k", &Bytes::from_static(b"one"));
        rows.put(2, b"k", &Bytes::from_static(b"two"));
        assert_eq!(rows.get(1, b"k").as_deref(), Some(&b"one"[..]));
        rows.forget(1, [&b"k"[..], b"other"].into_iter());
        assert_eq!((rows.get(1, b"k"), rows.get(3, b"k")), (None, None));
        assert_eq!(rows.get(2, b"k").as_deref(), Some(&b"two"[..]));
    }

    #[test]
    fn its_size_is_bounded() {
        let rows = HotRows::new(1 << 20);
        for number in 0u32..10_000 {
            rows.put(1, &number.to_be_bytes(), &Bytes::from(vec![0; 1_000]));
        }
        rows.put(1, b"huge", &Bytes::from(vec![0; ROW_SIZE_MAX]));
        let kept = (0u32..10_000).filter(|number| rows.get(1, &number.to_be_bytes()).is_some()).count();
        assert!((500..1_000).contains(&kept), "{kept}");
        assert_eq!(rows.get(1, b"huge"), None);
    }

    /// Of 24,000 such rows each look-up took a hash map 24,000 comparisons. No clock is looked at: with such a map this test takes minutes.
    #[test]
    fn n9_keys_that_collide_under_a_known_hash_cost_no_more_than_others() {
        /// As in `batch.rs`.
        const SECOND_SEED: u64 = 0x1319_8a2e_0370_7344;
        let key = |number: u64| [number.to_be_bytes(), [b'k'; 8], SECOND_SEED.to_le_bytes(), [b'k'; 8]].concat();
        let hash = |number: u64| FxBuildHasher.hash_one(Wanted { database: 1, key: &key(number) });
        assert_eq!((0..1_000).map(hash).collect::<BTreeSet<u64>>().len(), 1, "the keys collide");
        let rows = HotRows::new(128 << 20);
        for number in 0..200_000 {
            rows.put(1, &key(number), &Bytes::from_static(b"v"));
        }
        assert!((0..200_000).all(|number| rows.get(1, &key(number)).is_some()));
    }
}
