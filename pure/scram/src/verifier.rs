//! What a server keeps of a password: enough to check a proof, and not enough to make one.

use crate::error::VerifierError;
use crate::keys::{self, Key, SIZE};
use crate::password::Password;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Iterations of the hash of a new password: some 10 ms of a client's time, once for each run of it.
pub const ITERATIONS: u32 = 32_768;
/// RFC 7677 asks for so many at least.
pub const ITERATIONS_MIN: u32 = 4_096;
/// More would let a server keep its clients busy.
pub const ITERATIONS_MAX: u32 = 1_000_000;
/// Bytes of a new salt.
pub const SALT_SIZE: usize = 16;
/// The most that are read of one.
const SALT_SIZE_MAX: usize = 64;
const SCHEME: &str = "SCRAM-SHA-256";

/// The verifier of one user's password (RFC 5802, section 3). It is not printed, and its keys are overwritten when it is dropped: whoever has one can
/// try passwords on it at home, and pretend to its user to be the server.
///
/// Its text is `SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`, with base64, as PostgreSQL's is.
#[derive(Clone)]
pub struct Verifier {
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
    pub(crate) stored_key: Key,
    pub(crate) server_key: Key,
}

impl Verifier {
    /// That of `password`. Takes as long as [`Password::salted`].
    pub fn new(password: &Password, salt: &[u8; SALT_SIZE], iterations: u32) -> Self {
        let iterations = iterations.clamp(ITERATIONS_MIN, ITERATIONS_MAX);
        let (client_key, server_key) = keys::pair(&password.salted(salt, iterations).0);
        Self { salt: salt.to_vec(), iterations, stored_key: keys::hash(&client_key), server_key }
    }

    /// By which another server tells whether it has the same one. Passwords can be tried by it as by the verifier, so that it is for servers only.
    pub fn fingerprint(&self) -> [u8; SIZE] {
        keys::hmac(&self.stored_key.0, &[&self.server_key.0, &self.salt, &self.iterations.to_le_bytes()]).0
    }

    /// As it is stored.
    pub fn to_text(&self) -> Zeroizing<String> {
        let [salt, stored, server] = [&self.salt[..], &self.stored_key.0, &self.server_key.0].map(encoded);
        Zeroizing::new(format!("{SCHEME}${}:{}${}:{}", self.iterations, *salt, *stored, *server))
    }
}

fn encoded(bytes: &[u8]) -> Zeroizing<String> {
    Zeroizing::new(STANDARD.encode(bytes))
}

impl FromStr for Verifier {
    type Err = VerifierError;

    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let parts = || {
            let (head, keys) = text.strip_prefix(SCHEME)?.strip_prefix('$')?.split_once('$')?;
            let (iterations, salt) = head.split_once(':')?;
            let (stored, server) = keys.split_once(':')?;
            let key = |text: &str| Some(Key(STANDARD.decode(text).map(Zeroizing::new).ok()?[..].try_into().ok()?));
            let salt = STANDARD.decode(salt).ok().filter(|salt| (1..=SALT_SIZE_MAX).contains(&salt.len()))?;
            let iterations = iterations.parse().ok()?;
            Some(Self { salt, iterations, stored_key: key(stored)?, server_key: key(server)? })
        };
        let verifier = parts().filter(|it| *it.to_text() == text).ok_or(VerifierError::Form)?;
        if (ITERATIONS_MIN..=ITERATIONS_MAX).contains(&verifier.iterations) {
            Ok(verifier)
        } else {
            Err(VerifierError::Iterations(verifier.iterations))
        }
    }
}

/// In the same time wherever they differ, but for salts.
impl PartialEq for Verifier {
    fn eq(&self, other: &Self) -> bool {
        let same_keys = self.stored_key.is(&other.stored_key) & self.server_key.is(&other.server_key);
        bool::from(same_keys) && self.salt == other.salt && self.iterations == other.iterations
    }
}

impl Eq for Verifier {}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

/// The secret of a cluster by which a name that nobody has gets the salt of somebody: always the same one, at every node.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Mask([u8; SIZE]);

impl Mask {
    /// One of randomness.
    pub const fn new(random: [u8; SIZE]) -> Self {
        Self(random)
    }

    /// What is shown for `user` when there is no such user. No password fits it.
    pub fn verifier(&self, user: &str) -> Verifier {
        let of = |what: &[u8]| keys::hmac(&self.0, &[what, user.as_bytes()]);
        let salt = of(b"salt:").0[..SALT_SIZE].to_vec();
        Verifier { salt, iterations: ITERATIONS, stored_key: of(b"stored:"), server_key: of(b"server:") }
    }

    /// As it is stored.
    pub fn to_text(&self) -> Zeroizing<String> {
        encoded(&self.0)
    }
}

impl FromStr for Mask {
    type Err = VerifierError;

    fn from_str(text: &str) -> Result<Self, VerifierError> {
        let bytes = STANDARD.decode(text).map(Zeroizing::new).map_err(|_| VerifierError::Form)?;
        bytes[..].try_into().map(Self).map_err(|_| VerifierError::Form)
    }
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        Key(self.0).is(&Key(other.0)).into()
    }
}

impl Eq for Mask {}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}
