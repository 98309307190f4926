//! The client's end of a login.

use crate::error::LoginError;
use crate::keys::{self, Key};
use crate::message::{BINDING_NAME, ServerFirst, escaped, text};
use crate::password::Salted;
use crate::{Binding, ITERATIONS_MAX, ITERATIONS_MIN, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use zeroize::Zeroizing;

/// A login that has begun.
pub struct Login {
    header: String,
    binding: Option<Binding>,
    bare: String,
    nonce: String,
}

/// The server has said how the password is to be hashed.
pub struct Hashing {
    salt: Vec<u8>,
    iterations: u32,
    unproven: String,
    said: String,
}

/// The password is proven; the server has to show that it knows the user.
pub struct Proven {
    signature: Key,
}

impl Login {
    /// Begins one, and says what is sent first. `binding` is of the connection; without it the login is not bound.
    pub fn begin(user: &str, nonce: &Nonce, binding: Option<Binding>) -> (Self, String) {
        let nonce = nonce.0.clone();
        let header = binding.map_or_else(|| "n,,".to_owned(), |_| format!("p={BINDING_NAME},,"));
        let bare = format!("n={},r={nonce}", escaped(user));
        let message = format!("{header}{bare}");
        (Self { header, binding, bare, nonce }, message)
    }

    /// Takes the server's challenge.
    pub fn handle_challenge(self, message: &[u8]) -> Result<Hashing, LoginError> {
        let first = ServerFirst::parse(message).ok_or(LoginError::Malformed)?;
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&first.iterations) {
            return Err(LoginError::Iterations(first.iterations));
        }
        if !first.nonce.starts_with(&self.nonce) || first.nonce.len() == self.nonce.len() {
            return Err(LoginError::OtherLogin);
        }
        let bound = [self.header.as_bytes(), self.binding.as_ref().map_or(&[], |binding| &binding[..])].concat();
        let unproven = format!("c={},r={}", STANDARD.encode(bound), first.nonce);
        let whole = text(message).ok_or(LoginError::Malformed)?;
        let said = format!("{},{whole},{unproven}", self.bare);
        Ok(Hashing { salt: first.salt, iterations: first.iterations, unproven, said })
    }
}

impl Hashing {
    /// What the password is to be hashed with: the salt, and how often.
    pub fn with(&self) -> (Vec<u8>, u32) {
        (self.salt.clone(), self.iterations)
    }

    /// Proves the password, which was hashed [`Hashing::with`] what the server said, and says what is sent for it.
    pub fn prove(self, salted: &Salted) -> (Proven, Zeroizing<String>) {
        let (client_key, server_key) = keys::pair(&salted.0);
        let signature = keys::hmac(&keys::hash(&client_key).0, &[self.said.as_bytes()]);
        let proof = client_key.xor(&signature);
        let message = Zeroizing::new(format!("{},p={}", self.unproven, STANDARD.encode(proof.0)));
        (Proven { signature: keys::hmac(&server_key.0, &[self.said.as_bytes()]) }, message)
    }
}

impl Proven {
    /// Takes the server's last word: whether it knows the user.
    pub fn handle_accepted(&self, message: &[u8]) -> Result<(), LoginError> {
        let shown = text(message).and_then(|text| text.strip_prefix("v=")).and_then(|text| STANDARD.decode(text).ok());
        let shown = shown.and_then(|shown| Some(Key(shown[..].try_into().ok()?))).ok_or(LoginError::Malformed)?;
        if bool::from(shown.is(&self.signature)) { Ok(()) } else { Err(LoginError::Signature) }
    }
}

/// No nonce, no salt: nothing that a log has use for.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

opaque!(Login, Hashing, Proven);
