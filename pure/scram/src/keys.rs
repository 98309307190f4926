//! The hashes of RFC 5802, section 3, and the one way in which secrets are compared.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a hash.
pub(crate) const SIZE: usize = 32;

/// A hash that others must not know. It is overwritten when it is dropped, and never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Key(pub(crate) [u8; SIZE]);

impl Key {
    /// Compared in the same time wherever they differ.
    pub(crate) fn is(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }

    /// Each bit of one against that of the other.
    pub(crate) fn xor(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] ^ other.0[at]))
    }
}

/// HMAC of `parts` one after the other.
pub(crate) fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of an HMAC may have any length");
    parts.iter().for_each(|part| mac.update(part));
    Key(mac.finalize().into_bytes().into())
}

/// The hash of a key.
pub(crate) fn hash(key: &Key) -> Key {
    Key(Sha256::digest(key.0).into())
}

/// Keys of a salted password: the client's, and the server's.
pub(crate) fn pair(salted: &Key) -> (Key, Key) {
    (hmac(&salted.0, &[b"Client Key"]), hmac(&salted.0, &[b"Server Key"]))
}
