//! The rows: keys that lie in no order, as hashed ones do, and values of which half can be compressed.

/// Bytes of a key.
pub(crate) const KEY_SIZE: usize = 16;

/// Mixes a number so that different ones stay different (the finalizer of splitmix64).
const fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The key of row `index`.
pub(crate) fn key(index: u64) -> [u8; KEY_SIZE] {
    let mut key = *b"........-records";
    key[..8].copy_from_slice(&mix(index).to_be_bytes());
    key
}

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// Fills the first half of `value`; the second stays as it is.
    pub(crate) fn fill_half(&mut self, value: &mut [u8]) {
        let half = value.len() / 2;
        for piece in value[..half].chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            piece.copy_from_slice(&bytes[..piece.len()]);
        }
    }
}
