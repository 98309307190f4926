//! The messages of RFC 5802, section 7, from bytes, and what stands in them.

use crate::error::Failure;
use crate::{MESSAGE_SIZE_MAX, USER_SIZE_MAX};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The kind of binding that RFC 9266 gives connections of TLS 1.3.
pub(crate) const BINDING_NAME: &str = "tls-exporter";

/// What a client says about how the login is bound to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// It cannot.
    Unable,
    /// It could, and takes it that the server cannot.
    Unused,
    /// It is, by [`BINDING_NAME`].
    Bound,
}

/// A client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientFirst<'a> {
    pub(crate) flag: Flag,
    /// Up to the second comma, which it ends with.
    pub(crate) header: &'a str,
    /// What comes after it.
    pub(crate) bare: &'a str,
    pub(crate) user: String,
    pub(crate) nonce: &'a str,
}

/// The text of a message, if it may be one.
pub(crate) fn text(message: &[u8]) -> Option<&str> {
    let text = (message.len() <= MESSAGE_SIZE_MAX).then(|| str::from_utf8(message).ok()).flatten()?;
    (!text.contains('\0')).then_some(text)
}

impl<'a> ClientFirst<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, Failure> {
        let text = text(message).ok_or(Failure::Malformed)?;
        let (flag, rest) = text.split_once(',').ok_or(Failure::Malformed)?;
        let flag = match flag {
            "n" => Flag::Unable,
            "y" => Flag::Unused,
            _ if flag.strip_prefix("p=") == Some(BINDING_NAME) => Flag::Bound,
            // Another kind of binding.
            _ if flag.starts_with("p=") => return Err(Failure::OtherConnection),
            _ => return Err(Failure::Malformed),
        };
        // Nobody acts for somebody else, so that nobody is named here.
        let bare = rest.strip_prefix(',').ok_or(Failure::Malformed)?;
        let header = &text[..text.len() - bare.len()];
        let mut parts = bare.split(',');
        let user = parts.next().and_then(|part| part.strip_prefix("n=")).and_then(unescaped);
        let user = user.filter(|user| (1..=USER_SIZE_MAX).contains(&user.len())).ok_or(Failure::Malformed)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r="));
        let nonce = nonce.filter(|nonce| is_nonce(nonce)).ok_or(Failure::Malformed)?;
        Ok(Self { flag, header, bare, user, nonce })
    }
}

/// A server's first message.
pub(crate) struct ServerFirst<'a> {
    pub(crate) nonce: &'a str,
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
}

impl<'a> ServerFirst<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut parts = text(message)?.split(',');
        let nonce = parts.next()?.strip_prefix("r=").filter(|nonce| is_nonce(nonce))?;
        let salt = STANDARD.decode(parts.next()?.strip_prefix("s=")?).ok().filter(|salt| !salt.is_empty())?;
        let iterations = parts.next()?.strip_prefix("i=")?.parse().ok()?;
        Some(Self { nonce, salt, iterations })
    }
}

/// A client's last message.
pub(crate) struct ClientFinal<'a> {
    pub(crate) binding: Vec<u8>,
    pub(crate) nonce: &'a str,
    pub(crate) proof: Vec<u8>,
    /// What stands before the proof, without the comma between.
    pub(crate) unproven: &'a str,
}

impl<'a> ClientFinal<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        let (unproven, proof) = text(message)?.rsplit_once(",p=")?;
        let mut parts = unproven.split(',');
        let binding = STANDARD.decode(parts.next()?.strip_prefix("c=")?).ok()?;
        let nonce = parts.next()?.strip_prefix("r=")?;
        Some(Self { binding, nonce, proof: STANDARD.decode(proof).ok()?, unproven })
    }
}

/// A name as it stands in a message.
pub(crate) fn escaped(user: &str) -> String {
    user.replace('=', "=3D").replace(',', "=2C")
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut user = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (None, Some(rest)) => ('=', rest),
            (None, None) => return None,
        };
        user.push(sign);
        user.push_str(rest);
    }
    Some(user)
}

fn is_nonce(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}
