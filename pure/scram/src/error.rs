//! What is wrong with a message, a login, a password or a verifier. None of them says what a secret was.

use crate::{ITERATIONS_MAX, ITERATIONS_MIN, PASSWORD_CHARS_MIN, PASSWORD_SIZE_MAX};

/// Why a server refuses a login. What it tells is [`Failure::word`]: the same for a wrong password and for a user that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A message is not of the form that it should be.
    #[error("a message of the login is malformed")]
    Malformed,
    /// Another mechanism than the one that is offered.
    #[error("the mechanism is not offered")]
    Mechanism,
    /// Not what comes next in a login.
    #[error("a message of the login is out of turn")]
    OutOfTurn,
    /// The client does not bind the login to its connection, and has to.
    #[error("the login is not bound to its connection")]
    NotBound,
    /// The client binds the login to another connection.
    #[error("the login is bound to another connection")]
    OtherConnection,
    /// The password is wrong, or there is no such user.
    #[error("the password is wrong, or there is no such user")]
    Proof,
}

impl Failure {
    /// In the words of RFC 5802, section 7.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Malformed => "invalid-encoding",
            Self::Mechanism | Self::OutOfTurn => "other-error",
            Self::NotBound => "server-does-support-channel-binding",
            Self::OtherConnection => "channel-bindings-dont-match",
            Self::Proof => "invalid-proof",
        }
    }
}

/// Why a client gives a login up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The server's message is not of the form that it should be.
    #[error("the server's answer to the login is malformed")]
    Malformed,
    /// The server's nonce does not go on from the client's.
    #[error("the server's answer is to another login")]
    OtherLogin,
    /// So few would help who guesses, and so many keep the client busy.
    #[error("the server asks for {0} iterations, allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}")]
    Iterations(u32),
    /// The server does not know the user's verifier, whatever else it says.
    #[error("the server has not shown that it knows the user: its signature is wrong")]
    Signature,
}

/// Why a text cannot be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// A new one is too short.
    #[error("the password has {0} characters; allowed are {PASSWORD_CHARS_MIN} and more")]
    TooShort(usize),
    /// It is empty.
    #[error("the password is empty")]
    Empty,
    /// It is too long.
    #[error("the password has {0} bytes; allowed are up to {PASSWORD_SIZE_MAX}")]
    TooLong(usize),
    /// It has characters that RFC 4013 does not allow.
    #[error("the password has characters that passwords cannot have (RFC 4013), such as control characters")]
    Characters,
}

/// Why a text is no verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// It has another form.
    #[error("it is no verifier of the form SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY with base64")]
    Form,
    /// Its iterations are out of bounds.
    #[error("it has {0} iterations, allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}")]
    Iterations(u32),
}
