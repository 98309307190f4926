//! Mutations: what a fuzzer does to an input, from a seed.

use hedgerow_types::random::Random;

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
