//! Values as they are stored: a number that tells which write it is of, and filler that shows a torn or mixed value.

use bytes::Bytes;
use hedgerow_types::random::Random;

/// Stands between the number and the filler.
const MARK: u8 = b'/';

/// The value of write `number`, `size` bytes long; at least its decimal digits, without filler if that is all.
pub(crate) fn encode(number: i64, size: usize) -> Bytes {
    let mut value = number.to_string().into_bytes();
    if value.len() < size {
        value.push(MARK);
        fill(&mut value, number, size);
    }
    value.into()
}

/// The number of a value that [`encode`] made, or that a counter holds. An error for everything else.
pub(crate) fn decode(value: &[u8]) -> Result<i64, String> {
    let digits = value.iter().position(|byte| *byte == MARK).unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..digits.min(30)]).into_owned();
    let number = text.parse().map_err(|_| format!("a value of {} bytes that begins with {text:?}", value.len()))?;
    if digits < value.len() && encode(number, value.len()) != value {
        return Err(format!("the value of write {number} is not what was written, {} bytes", value.len()));
    }
    Ok(number)
}

/// No two values alike, so that compression saves nothing.
fn fill(value: &mut Vec<u8>, number: i64, size: usize) {
    let mut random = Random::new(number.unsigned_abs());
    value.reserve(size + 8 - value.len());
    while value.len() < size {
        value.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    value.truncate(size);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_their_number_and_whether_they_are_whole() {
        for size in [0, 7, 8, 1_000, 1 << 20] {
            let value = encode(1_234_567, size);
            assert_eq!(value.len(), size.max(7));
            assert_eq!(decode(&value), Ok(1_234_567));
        }
        let mut torn = encode(5, 100).to_vec();
        torn[99] ^= 1;
        assert!(decode(&torn).is_err_and(|why| why.contains("not what was written")));
        assert!(decode(b"").is_err() && decode(b"x").is_err());
        assert!(decode(&encode(5, 100)[..99]).is_ok(), "length belongs to the write, not to the value");
    }
}
