//! How tests write frames down.

use bytes::Bytes;

/// Reads hexadecimal digits; `"..."` stands for its text, and spaces and bars are for the eye.
pub(crate) fn bytes(text: &str) -> Bytes {
    let mut out = Vec::new();
    for (i, part) in text.split('"').enumerate() {
        if i % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part.bytes().filter(u8::is_ascii_hexdigit).collect();
        out.extend(digits.chunks(2).map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("two hexadecimal digits")
        }));
    }
    out.into()
}
