//! The server's end of a login: which mechanism, who, and the proof.

use crate::error::Failure;
use crate::keys::{self, Key};
use crate::message::{ClientFinal, ClientFirst, Flag};
use crate::verifier::Verifier;
use crate::{Binding, MECHANISM, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use subtle::Choice;

/// What a client says, by the statuses of Pegasus' negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// Which mechanisms are there?
    Mechanisms,
    /// This one is to be used.
    Select(&'a [u8]),
    /// The mechanism's first message.
    Initiate(&'a [u8]),
    /// Its answer to a challenge.
    Response(&'a [u8]),
}

/// What a server answers, unless it fails.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// These mechanisms.
    Mechanisms(&'static str),
    /// The mechanism is the one.
    Selected,
    /// The mechanism's challenge.
    Challenge(String),
    /// The proof is right.
    Accepted {
        /// Whose it is.
        user: String,
        /// The server's own proof.
        message: String,
    },
}

/// What a server brings to a login of one user.
#[derive(Debug)]
pub struct Challenge {
    /// The user's, or [`crate::Mask::verifier`]'s where there is no such user.
    pub verifier: Verifier,
    /// Whether there is one. If not, everything goes as with a wrong password.
    pub is_known: bool,
    /// Of randomness, and never the same again.
    pub nonce: Nonce,
    /// What the connection is bound by, which the client then has to know. Without it the client must not claim to.
    pub binding: Option<Binding>,
}

/// How far a client's connection is with its login. Whatever does not come next ends it.
///
/// ```text
/// Mechanisms*  ->  Select  ->  Initiate  ->  Response  ->  over
/// ```
#[derive(Debug, Default)]
pub struct Negotiation(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Begun,
    Selected,
    /// Waits for the proof.
    Challenged(Box<Exchange>),
    Over,
}

struct Exchange {
    user: String,
    verifier: Verifier,
    is_known: bool,
    /// The client's header and the binding, as the client has to say it.
    binding: Vec<u8>,
    nonce: String,
    /// The messages so far, which both proofs are about.
    said: String,
}

/// No nonce and no verifier: only whose it is.
impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({:?})", self.user)
    }
}

impl Negotiation {
    /// Takes what the client says. `challenge` is asked once for each user that is named. After an error the login is over.
    pub fn handle(&mut self, asked: Asked<'_>, challenge: impl FnOnce(&str) -> Challenge) -> Result<Answer, Failure> {
        match (std::mem::replace(&mut self.0, State::Over), asked) {
            (State::Begun, Asked::Mechanisms) => {
                self.0 = State::Begun;
                Ok(Answer::Mechanisms(MECHANISM))
            }
            (State::Begun, Asked::Select(name)) if name == MECHANISM.as_bytes() => {
                self.0 = State::Selected;
                Ok(Answer::Selected)
            }
            (State::Begun, Asked::Select(_)) => Err(Failure::Mechanism),
            (State::Selected, Asked::Initiate(message)) => {
                let (exchange, text) = Exchange::begin(message, challenge)?;
                self.0 = State::Challenged(Box::new(exchange));
                Ok(Answer::Challenge(text))
            }
            (State::Challenged(exchange), Asked::Response(message)) => {
                let text = exchange.finish(message)?;
                Ok(Answer::Accepted { user: exchange.user, message: text })
            }
            (State::Begun | State::Selected | State::Challenged(_) | State::Over, _) => Err(Failure::OutOfTurn),
        }
    }

    /// Whom the client has named, and who has to prove it now.
    pub fn user(&self) -> Option<&str> {
        match &self.0 {
            State::Challenged(exchange) => Some(&exchange.user),
            State::Begun | State::Selected | State::Over => None,
        }
    }

    /// The verifier that the proof will be checked by.
    pub fn verifier(&self) -> Option<&Verifier> {
        match &self.0 {
            State::Challenged(exchange) => Some(&exchange.verifier),
            State::Begun | State::Selected | State::Over => None,
        }
    }
}

impl Exchange {
    fn begin(message: &[u8], challenge: impl FnOnce(&str) -> Challenge) -> Result<(Self, String), Failure> {
        let first = ClientFirst::parse(message)?;
        let Challenge { verifier, is_known, nonce, binding } = challenge(&first.user);
        match (first.flag, binding) {
            (Flag::Bound, Some(_)) | (Flag::Unable | Flag::Unused, None) => {}
            // Somebody between the two may have told the client that the server cannot.
            (Flag::Unable | Flag::Unused, Some(_)) => return Err(Failure::NotBound),
            (Flag::Bound, None) => return Err(Failure::OtherConnection),
        }
        let bound = [first.header.as_bytes(), binding.as_ref().map_or(&[], |binding| &binding[..])].concat();
        let nonce = format!("{}{}", first.nonce, nonce.0);
        let text = format!("r={nonce},s={},i={}", STANDARD.encode(&verifier.salt), verifier.iterations);
        let said = format!("{},{text}", first.bare);
        Ok((Self { user: first.user, verifier, is_known, binding: bound, nonce, said }, text))
    }

    fn finish(&self, message: &[u8]) -> Result<String, Failure> {
        let last = ClientFinal::parse(message).ok_or(Failure::Malformed)?;
        let proof = Key(last.proof[..].try_into().map_err(|_| Failure::Malformed)?);
        if last.nonce != self.nonce {
            return Err(Failure::Proof);
        }
        if last.binding != self.binding {
            return Err(Failure::OtherConnection);
        }
        let said = [self.said.as_bytes(), b",", last.unproven.as_bytes()];
        let signature = keys::hmac(&self.verifier.stored_key.0, &said);
        let is_proven = keys::hash(&proof.xor(&signature)).is(&self.verifier.stored_key);
        let answer = keys::hmac(&self.verifier.server_key.0, &said);
        // All of it was computed, so that the time does not tell which of the two it was.
        if bool::from(is_proven & Choice::from(u8::from(self.is_known))) {
            Ok(format!("v={}", STANDARD.encode(answer.0)))
        } else {
            Err(Failure::Proof)
        }
    }
}
