//! Bytes as people type and read them: text, text with escapes, hexadecimal, base64.

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use std::borrow::Cow;
use std::fmt::Write as _;

/// How keys and values are written on the command line, in files and in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    /// As it stands; in the output, what cannot be printed appears as \xNN, \t, \n, \r and \\.
    #[default]
    Text,
    /// Like text, and escapes are understood in the input too.
    Escaped,
    /// Two hexadecimal digits per byte.
    Hex,
    /// Base64 with padding (RFC 4648, section 4).
    Base64,
}

impl Encoding {
    /// The bytes that `input` stands for.
    pub(crate) fn decode(self, input: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Text => Ok(input.to_vec()),
            Self::Escaped => unescape(input),
            Self::Hex => decode_hex(input),
            Self::Base64 => decode_base64(input),
        }
    }

    /// How `bytes` are shown. Decoding the result with the same encoding (`Escaped` for `Text`) gives the bytes again.
    pub(crate) fn encode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Text | Self::Escaped => escape(bytes),
            Self::Hex => Cow::Owned(bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
                let _ = write!(out, "{byte:02x}");
                out
            })),
            Self::Base64 => Cow::Owned(encode_base64(bytes)),
        }
    }
}

/// Replaces what a terminal or a line-based format cannot hold by escapes.
pub(crate) fn escape(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.chars().any(|c| c == '\\' || c.is_control())
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                c if c.is_control() => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(out, "\\x{byte:02x}");
                    }
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// The inverse of [`escape`].
pub(crate) fn unescape(input: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, used) = match rest.get(at + 1) {
            Some(b'\\') => (b'\\', 2),
            Some(b't') => (b'\t', 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b'0') => (0, 2),
            Some(b'x') => {
                let digits = rest.get(at + 2..at + 4).context("\\x needs two hexadecimal digits")?;
                (decode_hex(digits)?[0], 4)
            }
            Some(other) => bail!("unknown escape \\{}", other.escape_ascii()),
            None => bail!("a single \\ at the end"),
        };
        out.push(byte);
        rest = &rest[at + used..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

fn decode_hex(input: &[u8]) -> Result<Vec<u8>> {
    if !input.len().is_multiple_of(2) {
        bail!("an odd number of hexadecimal digits");
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).context("not a hexadecimal digit");
    input.chunks_exact(2).map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

const BASE64_DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = BASE64_DIGITS[(group >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

fn decode_base64(input: &[u8]) -> Result<Vec<u8>> {
    if !input.len().is_multiple_of(4) {
        bail!("the length of base64 is a multiple of 4");
    }
    let padding = input.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        bail!("too much base64 padding");
    }
    let mut out = Vec::with_capacity(input.len() / 4 * 3);
    for chunk in input[..input.len() - padding].chunks(4) {
        let mut group = 0;
        for byte in chunk {
            let digit = BASE64_DIGITS.iter().position(|digit| digit == byte).context("not a base64 digit")?;
            group = group << 6 | digit as u32;
        }
        let bytes = (group << (6 * (4 - chunk.len())) << 8).to_be_bytes();
        out.extend_from_slice(&bytes[..chunk.len() * 3 / 4]);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_published_values() {
        let pairs =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (plain, coded) in pairs {
            assert_eq!(Encoding::Base64.encode(plain.as_bytes()), coded);
            assert_eq!(Encoding::Base64.decode(coded.as_bytes()).unwrap(), plain.as_bytes());
        }
    }

    #[test]
    fn every_encoding_gives_every_byte_back() {
        let all: Vec<u8> = (0..=255).chain("ä\\n\t€".bytes()).collect();
        for encoding in [Encoding::Escaped, Encoding::Hex, Encoding::Base64] {
            let shown = encoding.encode(&all).into_owned();
            assert!(!shown.chars().any(char::is_control), "{encoding:?} shows control characters");
            assert_eq!(encoding.decode(shown.as_bytes()).unwrap(), all, "{encoding:?}");
        }
    }

    #[test]
    fn plain_text_is_shown_as_it_is() {
        assert_eq!(escape("grün".as_bytes()), "grün");
        assert_eq!(escape(b"a\tb\x00\xff\\"), "a\\tb\\x00\\xff\\\\");
    }

    #[test]
    fn bad_input_is_an_error() {
        for bad in ["\\", "\\q", "\\x1", "\\xzz"] {
            assert!(Encoding::Escaped.decode(bad.as_bytes()).is_err(), "{bad}");
        }
        for bad in ["1", "zz"] {
            assert!(Encoding::Hex.decode(bad.as_bytes()).is_err(), "{bad}");
        }
        for bad in ["A", "A===", "====", "Zm9*"] {
            assert!(Encoding::Base64.decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
