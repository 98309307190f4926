//! The torn end of a database's manifest, which RocksDB takes for damage.
//!
//! RocksDB appends a record for each change of its tables and syncs it. A power failure in between may keep some sectors of
//! the record and not others. It accepts a record that ends too early, but not one of which a part in the middle or at the
//! beginning is missing. Nobody was told that such a record was durable: it is cut off here.
//!
//! What was torn can be told from what was damaged: a sector that never reached the medium reads as zeros behind the former
//! end of the file, and nothing sound follows, since every record was synced before the next one.
//!
//! ```text
//! block    32 KiB of records; the last bytes, fewer than a head, are zeros
//! record   CRC-32C of all behind it from the type on, masked, 4 bytes; size, 2; type, 1; data
//! ```
//! Numbers are little-endian. A type is 1 for a whole record, 2 to 4 for the first, a middle and the last part of one.

use hedgerow_env::{Disk, OpenMode, read_file_if_exists};
use std::io;
use std::path::Path;

const BLOCK_SIZE: usize = 32 << 10;
const HEAD_SIZE: usize = 7;
/// What a power failure tears no further.
const SECTOR_SIZE: usize = 512;
/// Of a file's number, which has 64 bits.
const DIGITS_MAX: usize = 20;
const WHOLE: u8 = 1;
const LAST_PART: u8 = 4;

/// Cuts the manifest that the file `current` in `dir` names, if its end is torn; whether it was. Nobody may have the
/// database open.
pub(super) fn cut_torn_end(disk: &dyn Disk, dir: &Path, current: &str) -> io::Result<bool> {
    let Some(content) = read_file_if_exists(disk, &dir.join(current))? else { return Ok(false) };
    let Some(name) = manifest_name(&content) else { return Ok(false) };
    let path = dir.join(name);
    let Some(bytes) = read_file_if_exists(disk, &path)? else { return Ok(false) };
    let end = sound_size(&bytes);
    if !is_torn(&bytes, end) {
        return Ok(false);
    }
    tracing::info!(manifest = %path.display(), from = bytes.len(), to = end, "a torn end is cut off");
    let file = disk.open(&path, OpenMode::Write)?;
    file.set_len(end as u64)?;
    file.sync_all()?;
    Ok(true)
}

/// The file that a database's `CURRENT` names with this content, if it is one that RocksDB writes: a name, a number and a line
/// feed. Anything else is damage, and no path to be opened.
fn manifest_name(content: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(content.strip_suffix(b"\n")?).ok()?;
    let number = name.strip_prefix("MANIFEST-")?;
    let is_number = (1..=DIGITS_MAX).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(name)
}

/// Where the last whole record ends, of those before the first that is not sound.
fn sound_size(bytes: &[u8]) -> usize {
    let (mut at, mut end) = (0, 0);
    while at < bytes.len() {
        let left = BLOCK_SIZE - at % BLOCK_SIZE;
        if left < HEAD_SIZE {
            at += left;
            continue;
        }
        let Some((kind, size)) = record(bytes, at) else { break };
        at += size;
        if matches!(kind, WHOLE | LAST_PART) {
            end = at;
        }
    }
    end
}

/// The type and the whole size of the record at `at`, if it is sound.
fn record(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let head = bytes.get(at..at + HEAD_SIZE)?;
    let (checksum, rest) = head.split_first_chunk::<4>()?;
    let &[low, high, kind] = rest else { return None };
    let size = HEAD_SIZE + usize::from(u16::from_le_bytes([low, high]));
    let covered = bytes.get(at + HEAD_SIZE - 1..at + size)?;
    let is_sound = masked(crc32c::crc32c(covered)) == u32::from_le_bytes(*checksum);
    (is_sound && (WHOLE..=LAST_PART).contains(&kind)).then_some((kind, size))
}

/// RocksDB stores a checksum in this form, so that checksums of data with checksums in it stay good.
const fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Whether a sector is missing behind `end`, while something is there, and nothing sound.
fn is_torn(bytes: &[u8], end: usize) -> bool {
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
    let tail = &bytes[end..];
    let (first, others) = tail.split_at(tail.len().min(SECTOR_SIZE - end % SECTOR_SIZE));
    let has_missing = std::iter::once(first).chain(others.chunks(SECTOR_SIZE)).any(is_zero);
    let is_followed = || (end + 1..bytes.len()).any(|at| record(bytes, at).is_some());
    !tail.is_empty() && has_missing && !is_zero(tail) && !is_followed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(bytes: &mut Vec<u8>, size: usize) {
        let covered: Vec<u8> = std::iter::once(WHOLE).chain((0..size).map(|at| at as u8 | 1)).collect();
        bytes.extend_from_slice(&masked(crc32c::crc32c(&covered)).to_le_bytes());
        bytes.extend_from_slice(&(size as u16).to_le_bytes());
        bytes.extend_from_slice(&covered);
    }

    #[test]
    fn what_was_torn_is_told_from_what_was_damaged() {
        let mut bytes = Vec::new();
        append(&mut bytes, 400);
        let sound = bytes.len();
        append(&mut bytes, 1_000);
        assert_eq!(sound_size(&bytes), bytes.len());
        assert!(!is_torn(&bytes, bytes.len()));
        // Each of the sectors that hold the second record, but not all of them.
        for lost in [sound..512, 512..1024, 1024..bytes.len(), sound..1024, 512..bytes.len()] {
            let mut torn = bytes.clone();
            torn[lost.clone()].fill(0);
            assert_eq!(sound_size(&torn), sound);
            assert!(is_torn(&torn, sound), "{lost:?}");
        }
        let mut flipped = bytes.clone();
        flipped[700] ^= 4;
        assert_eq!(sound_size(&flipped), sound);
        assert!(!is_torn(&flipped, sound), "no sector is missing");
        let mut cut = bytes.clone();
        cut.truncate(700);
        assert!(!is_torn(&cut, sound), "that is accepted as it is");
        let mut followed = bytes.clone();
        followed[512..1024].fill(0);
        append(&mut followed, 100);
        assert!(!is_torn(&followed, sound), "the second record was durable before the third one was written");
    }

    #[test]
    fn records_go_around_the_ends_of_blocks() {
        let mut bytes = Vec::new();
        append(&mut bytes, BLOCK_SIZE - HEAD_SIZE - 3 - HEAD_SIZE);
        append(&mut bytes, 0);
        bytes.extend_from_slice(&[0; 3]);
        append(&mut bytes, 50);
        assert_eq!(sound_size(&bytes), bytes.len());
    }
}
