//! SCRAM-SHA-256 (RFC 5802, RFC 7677), bound to its TLS connection (RFC 9266): a user proves to know a password, and the server to keep its
//! verifier, and neither tells the other anything that it could use elsewhere.
//!
//! ```text
//! client                                             server
//!   user, nonce, how it is bound       ------>
//!                                      <------  both nonces, salt, iterations
//!   (hashes the password)
//!   binding, both nonces, proof        ------>  checks the proof
//!   checks the signature               <------  signature
//! ```
//!
//! The costly hash ([`Password::salted`]) is the client's alone: a server computes a handful of HMACs for a login, whatever the iterations
//! are. [`Negotiation`] is the server's end, [`Login`] the client's. Both take bytes and give bytes.
//!
//! Deliberately absent: clocks, randomness (nonces and salts are arguments), the network, who keeps verifiers and who counts failures.
#![warn(missing_docs)]

mod client;
mod error;
mod keys;
mod message;
mod password;
mod server;
mod verifier;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;

pub use client::{Hashing, Login, Proven};
pub use error::{Failure, LoginError, PasswordError, VerifierError};
pub use password::{PASSWORD_CHARS_MIN, PASSWORD_SIZE_MAX, Password, Salted};
pub use server::{Answer, Asked, Challenge, Negotiation};
pub use verifier::{ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN, Mask, SALT_SIZE, Verifier};

/// The one mechanism that is offered: with channel binding, so that what is said on one connection proves nothing on another.
pub const MECHANISM: &str = "SCRAM-SHA-256-PLUS";
/// Bytes of randomness in a nonce.
pub const NONCE_SIZE: usize = 18;
/// Bytes that bind an exchange to its connection (RFC 9266, `tls-exporter`).
pub const BINDING_SIZE: usize = 32;
/// The largest message that is looked at, bytes.
pub const MESSAGE_SIZE_MAX: usize = 1_024;
/// The longest name of a user that is looked at, bytes.
pub const USER_SIZE_MAX: usize = 255;

/// What makes a login another one than all before it.
#[derive(Clone)]
pub struct Nonce(String);

impl Nonce {
    /// One of randomness.
    pub fn new(random: [u8; NONCE_SIZE]) -> Self {
        Self(STANDARD.encode(random))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce")
    }
}

/// What binds an exchange to its connection.
pub type Binding = [u8; BINDING_SIZE];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// RFC 7677, section 3, which has no channel binding.
    #[test]
    fn the_example_of_rfc_7677() {
        let server_first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let client_last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let password = Password::new("pencil").unwrap();
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let verifier = Verifier::new(&password, &salt[..].try_into().unwrap(), 4_096);
        let nonce = Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".to_owned());

        let (login, message) = Login::begin("user", &Nonce("rOprNGfwEbeRWgbNEkqO".to_owned()), None);
        assert_eq!(message, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let mut server = Negotiation::default();
        server.handle(Asked::Select(MECHANISM.as_bytes()), |_| unreachable!("nobody is named yet")).unwrap();
        let answer = server.handle(Asked::Initiate(message.as_bytes()), |user| {
            assert_eq!(user, "user");
            Challenge { verifier, is_known: true, nonce, binding: None }
        });
        assert_eq!(answer, Ok(Answer::Challenge(server_first.to_owned())));
        let hashing = login.handle_challenge(server_first.as_bytes()).unwrap();
        let (proven, message) = hashing.prove(&password.salted(&salt, 4_096));
        assert_eq!(*message, client_last);
        let answer = server.handle(Asked::Response(message.as_bytes()), |_| unreachable!("it is known who it is"));
        let message = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=".to_owned();
        assert_eq!(proven.handle_accepted(message.as_bytes()), Ok(()));
        assert_eq!(answer, Ok(Answer::Accepted { user: "user".to_owned(), message }));
    }
}
