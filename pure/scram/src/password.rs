//! Passwords, which are never printed and are overwritten when they are dropped.

use crate::error::PasswordError;
use crate::keys::{Key, SIZE};
use sha2::Sha256;
use std::fmt;
use zeroize::Zeroizing;

/// Characters that a new password has at least.
pub const PASSWORD_CHARS_MIN: usize = 12;
/// Bytes that a password has at most.
pub const PASSWORD_SIZE_MAX: usize = 1_024;

/// A password, in the one form of those that look the same (SASLprep, RFC 4013).
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// A password that somebody has already.
    pub fn new(text: &str) -> Result<Self, PasswordError> {
        if text.len() > PASSWORD_SIZE_MAX {
            return Err(PasswordError::TooLong(text.len()));
        }
        let prepared = stringprep::saslprep(text).map_err(|_| PasswordError::Characters)?;
        let prepared = Zeroizing::new(prepared.into_owned());
        if prepared.is_empty() { Err(PasswordError::Empty) } else { Ok(Self(prepared)) }
    }

    /// A password that somebody is given now: of [`PASSWORD_CHARS_MIN`] characters and more.
    pub fn chosen(text: &str) -> Result<Self, PasswordError> {
        let password = Self::new(text)?;
        let count = password.0.chars().count();
        if count < PASSWORD_CHARS_MIN { Err(PasswordError::TooShort(count)) } else { Ok(password) }
    }

    /// The hash that login proves to know: PBKDF2, which takes `iterations` HMACs, some milliseconds for every 10,000.
    pub fn salted(&self, salt: &[u8], iterations: u32) -> Salted {
        let mut out = Key([0; SIZE]);
        pbkdf2::pbkdf2_hmac::<Sha256>(self.0.as_bytes(), salt, iterations, &mut out.0);
        Salted(out)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// A password hashed with a salt. Who has it can log in, and so it is kept as the password is.
#[derive(Clone)]
pub struct Salted(pub(crate) Key);

impl fmt::Debug for Salted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salted")
    }
}
