//! Mutations: what a fuzzer does to an input, from a seed.

use hedgerow_types::random::Random;
use serde_json::Value;

/// Lengths and counts that sit on the edges of what a decoder accepts.
const EDGES: &[u32] =
    &[0, 1, 2, 47, 48, 49, 127, 128, 255, 65_534, 65_535, 65_536, 65_537, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Bytes that mean something to a decoder: type tags, and the extremes.
const MARKS: &[u8] = &[0, 1, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 0x7f, 0x80, 0xff];

/// Changes `data` in one to four places. `other` is a second input to take a piece from.
pub fn mutate(data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() as u64 + 1) as usize;
        match random.below(8) {
            0 => data.truncate(at),
            1 => data.insert(at, random.next_u64() as u8),
            2 => data.insert(at, MARKS[random.below(MARKS.len() as u64) as usize]),
            3 if at < data.len() => drop(data.remove(at)),
            4 if at < data.len() => data[at] ^= 1 << random.below(8),
            5 if at < data.len() => data[at] = MARKS[random.below(MARKS.len() as u64) as usize],
            6 if at + 4 <= data.len() => {
                let edge = EDGES[random.below(EDGES.len() as u64) as usize];
                let bytes = if random.below(2) == 0 { edge.to_be_bytes() } else { edge.to_le_bytes() };
                data[at..at + 4].copy_from_slice(&bytes);
            }
            7 => {
                let from = random.below(other.len() as u64 + 1) as usize;
                let piece = other[from..].iter().take(random.below(40) as usize).copied();
                drop(data.splice(at..at, piece.collect::<Vec<_>>()));
            }
            _ => {}
        }
    }
}

/// Numbers on the edges of what stored numbers may be, as JSON.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "7",
    "4096",
    "65535",
    "65536",
    "4294967295",
    "281474976710655",
    "281474976710656",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.5",
    "1e9",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
];

/// Changes one to three values in JSON `text`; within strings that are JSON themselves too. What is no JSON stays as it is.
pub fn mutate_json(text: &mut Vec<u8>, random: &mut Random) {
    let Ok(mut value) = serde_json::from_slice::<Value>(text) else { return };
    for _ in 0..=random.below(3) {
        mutate_value(&mut value, random);
    }
    *text = value.to_string().into_bytes();
}

fn mutate_value(value: &mut Value, random: &mut Random) {
    match value {
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len() as u64) as usize;
            match random.below(8) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                2 => items.swap(0, at),
                _ => mutate_value(&mut items[at], random),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len() as u64) as usize;
            let Some(key) = fields.keys().nth(at).cloned() else { return };
            match random.below(12) {
                0 => drop(fields.remove(&key)),
                1 => fields.extend(fields.get(&key).cloned().map(|value| (format!("{key}0"), value))),
                _ => fields.get_mut(&key).into_iter().for_each(|field| mutate_value(field, random)),
            }
        }
        Value::String(inner) if random.below(6) != 0 => match serde_json::from_str::<Value>(inner) {
            Ok(mut value) if value.is_object() => {
                mutate_value(&mut value, random);
                *inner = value.to_string();
            }
            Ok(_) | Err(_) => inner.push_str(["0", "/", ".", "\u{0}", "a"][random.below(5) as usize]),
        },
        Value::Number(number) if random.below(2) == 0 => {
            // A neighbour: ids and counts that are one off.
            let near = number.as_u64().unwrap_or(0).wrapping_add(random.below(3)).wrapping_sub(1);
            *value = Value::from(near);
        }
        _ => {
            let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
            *value = serde_json::from_str(number).unwrap_or(Value::Null);
        }
    }
}
