//! Which row is asked for next, and what its key looks like.

use crate::draw::unit;
use crate::workload::{Keys, Table};
use crate::zipf::Zipf;
use bytes::Bytes;
use hedgerow_types::random::Random;

/// The sort key of rows that have a hash key of their own.
const SINGLE_SORT_KEY: &[u8] = b"field0";

/// Draws rows. Row numbers are from 0.
#[derive(Clone, Debug)]
pub(crate) struct RowChooser {
    keys: Keys,
    zipf: Option<Zipf>,
}

impl RowChooser {
    pub(crate) fn new(keys: Keys) -> Self {
        let zipf = match keys {
            Keys::Zipfian { exponent } | Keys::Latest { exponent } => Some(Zipf::new(1, exponent)),
            Keys::Uniform {} | Keys::HotSet { .. } => None,
        };
        Self { keys, zipf }
    }

    /// One of the first `count` rows, of which there is at least one.
    pub(crate) fn draw(&mut self, count: u64, random: &mut Random) -> u64 {
        match self.keys {
            Keys::Uniform {} => random.below(count),
            Keys::Zipfian { .. } => scatter(self.rank(count, random), count),
            Keys::Latest { .. } => count - 1 - self.rank(count, random),
            Keys::HotSet { requests_percent, rows_percent } => {
                let hot = ((count as f64 * rows_percent / 100.0).round() as u64).clamp(1, count);
                let is_hot = unit(random) * 100.0 < requests_percent;
                let place = if is_hot || hot == count { random.below(hot) } else { hot + random.below(count - hot) };
                scatter(place, count)
            }
        }
    }

    /// A rank from 0 on.
    fn rank(&mut self, count: u64, random: &mut Random) -> u64 {
        let zipf = self.zipf.as_mut().expect("zipfian and latest keys have one");
        zipf.set_count(count);
        zipf.draw(random) - 1
    }
}

/// A permutation of `0..count`, so that rows wanted as often as each other lie nowhere near each other. Unlike a hash, it
/// leaves no row out. The same in every process.
fn scatter(place: u64, count: u64) -> u64 {
    let bits = u64::BITS - (count - 1).max(1).leading_zeros();
    let mask = u64::MAX >> (u64::BITS - bits);
    let half = bits.div_ceil(2);
    let mut x = place;
    // A permutation of the next power of two, walked until it is inside again: fewer than two steps on average.
    loop {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        x ^= x >> half;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93) & mask;
        x ^= x >> half;
        if x < count {
            return x;
        }
    }
}

/// A permutation of all 64-bit numbers (the last steps of SplitMix64), which spreads rows evenly over ranges of keys.
const fn mix(row: u64) -> u64 {
    let mut z = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How rows are called in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyForm {
    rows_per_hash_key: u64,
}

/// The key of a row in a hash table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HashedKey {
    pub(crate) hash_key: [u8; 16],
    pub(crate) sort_key: Bytes,
}

impl KeyForm {
    pub(crate) fn of(table: &Table) -> Self {
        Self { rows_per_hash_key: table.rows_per_hash_key }
    }

    /// The key of `row` in a hash table.
    pub(crate) fn hashed(self, row: u64) -> HashedKey {
        HashedKey { hash_key: hash_key(row / self.rows_per_hash_key), sort_key: self.sort_key(row) }
    }

    fn sort_key(self, row: u64) -> Bytes {
        if self.rows_per_hash_key == 1 {
            Bytes::from_static(SINGLE_SORT_KEY)
        } else {
            Bytes::copy_from_slice(&numbered(*b"000000", 0, row % self.rows_per_hash_key))
        }
    }

    /// The sort keys of `count` rows of one hash key, from `row` on or so much before that they all exist.
    pub(crate) fn sort_keys(self, row: u64, count: u32) -> impl Iterator<Item = Bytes> {
        let first = self.first_of(row, count);
        (first..first + u64::from(count)).map(move |row| self.sort_key(row))
    }

    /// The first of `count` rows of the hash key of `row`.
    pub(crate) fn first_of(self, row: u64, count: u32) -> u64 {
        let place = row % self.rows_per_hash_key;
        row - place + place.min(self.rows_per_hash_key - u64::from(count))
    }

    /// The key of `row` in an ordered table.
    pub(crate) fn ordered(self, row: u64) -> [u8; 16] {
        hex(mix(row))
    }

    /// Where the partitions of an ordered table begin, the first one left out, so that all have as many rows.
    pub(crate) fn split_keys(self, partitions: u32) -> Vec<Bytes> {
        let begin = |index: u32| ((u128::from(index) << 64) / u128::from(partitions)) as u64;
        (1..partitions).map(|index| Bytes::copy_from_slice(&hex(begin(index)))).collect()
    }
}

fn hash_key(group: u64) -> [u8; 16] {
    numbered(*b"user000000000000", 4, group)
}

/// `key` with the decimal digits of `number` at its end, not before the byte `from`.
fn numbered<const N: usize>(mut key: [u8; N], from: usize, number: u64) -> [u8; N] {
    let mut rest = number;
    for digit in key[from..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn hex(number: u64) -> [u8; 16] {
    std::array::from_fn(|place| b"0123456789abcdef"[(number >> (60 - 4 * place) & 15) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash_form(rows_per_hash_key: u64) -> KeyForm {
        KeyForm { rows_per_hash_key }
    }

    /// How often each of `count` rows came in `draws` draws.
    fn counts(keys: Keys, count: u64, draws: u64) -> Vec<u64> {
        let (mut chooser, mut random) = (RowChooser::new(keys), Random::new(11));
        let mut counts = vec![0; count as usize];
        (0..draws).for_each(|_| counts[chooser.draw(count, &mut random) as usize] += 1);
        counts
    }

    #[test]
    fn keys_are_numbered_and_equally_long() {
        let key = hash_form(1).hashed(1_234_567);
        assert_eq!((&key.hash_key, &key.sort_key[..]), (b"user000001234567", &b"field0"[..]));
        let key = hash_form(100).hashed(1_234_567);
        assert_eq!((&key.hash_key, &key.sort_key[..]), (b"user000000012345", &b"000067"[..]));
    }

    #[test]
    fn rows_of_one_request_are_of_one_hash_key_and_exist() {
        let form = hash_form(10);
        assert_eq!(form.first_of(23, 4), 23);
        assert_eq!(form.first_of(29, 4), 26);
        assert_eq!(form.first_of(29, 10), 20);
        let keys: Vec<_> = form.sort_keys(29, 2).collect();
        assert_eq!(keys, ["000008", "000009"]);
    }

    #[test]
    fn partitions_of_an_ordered_table_hold_as_many_rows() {
        let form = KeyForm { rows_per_hash_key: 1 };
        let splits = form.split_keys(8);
        assert_eq!(splits.len(), 7);
        assert_eq!(splits[3], "8000000000000000");
        let mut rows = [0; 8];
        for row in 0..80_000 {
            let key = form.ordered(row);
            rows[splits.iter().filter(|split| key[..] >= split[..]).count()] += 1;
        }
        assert!(rows.iter().all(|count| (9_500..10_500).contains(count)), "{rows:?}");
    }

    #[test]
    fn uniform_rows_come_equally_often() {
        let counts = counts(Keys::Uniform {}, 100, 100_000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipfian_rows_are_scattered_and_the_most_wanted_comes_as_often_as_it_should() {
        let counts = counts(Keys::Zipfian { exponent: 0.99 }, 1000, 100_000);
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let most = *counts.iter().max().unwrap() as f64 / 100_000.0;
        assert!((most * sum - 1.0).abs() < 0.05, "{most}");
        let low_half: u64 = counts[..500].iter().sum();
        assert!((25_000..75_000).contains(&low_half), "{low_half}");
    }

    #[test]
    fn the_latest_row_is_wanted_most() {
        let counts = counts(Keys::Latest { exponent: 0.99 }, 1000, 100_000);
        assert_eq!(counts.iter().max(), counts.last());
        assert!(counts[999] > counts[998] && counts[998] > counts[900]);
    }

    #[test]
    fn hot_rows_get_their_share() {
        let mut counts = counts(Keys::HotSet { requests_percent: 90.0, rows_percent: 10.0 }, 100, 100_000);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u64 = counts[..10].iter().sum();
        assert!((89_000..91_000).contains(&hot), "{hot}");
    }

    proptest! {
        #[test]
        fn scattering_leaves_no_row_out(count in 1_u64..3000) {
            let mut rows: Vec<_> = (0..count).map(|place| scatter(place, count)).collect();
            rows.sort_unstable();
            prop_assert!(rows.into_iter().eq(0..count));
        }
    }
}
