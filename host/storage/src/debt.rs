//! What compactions have still to do, and how much of what is written should be refused because of it.
//!
//! RocksDB slows its writers down and stops them when compactions fall behind, but a flush here hands whole tables over,
//! past all of that. So whoever takes writes has to go by [`Debt::parts_refused`].

/// What the refused share is counted in.
pub const PARTS: u32 = 16;
/// Files of level 0 from which on writes are refused, and how many more make a part: none is refused at 128 and all are at
/// 256, which are 2 and 4 GiB of usual flushes. RocksDB would slow its own writers at 20 and stop them at 36; but files of
/// a flush are small here, one compaction takes all that are there at once, and writing a table of some gigabytes in one
/// go must not end with refusals. What many files cost is reads: a filter is asked for each.
const FILES_MIN: u64 = 128;
const FILES_PER_PART: u64 = 8;
/// The same for bytes that compactions have to rewrite: from 64 GiB to 256 GiB, again as RocksDB has it.
const BYTES_MIN: u64 = 64 << 30;
const BYTES_PER_PART: u64 = 12 << 30;

/// What the compactions of one engine have still to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Table files that flushes have written and no compaction has merged yet.
    pub files: u64,
    /// Bytes that compactions have to rewrite until every level has its size, estimated.
    pub bytes: u64,
}

impl Debt {
    /// How many of [`PARTS`] writes should be refused, so that compactions catch up. It rises with the debt, from 0 to all.
    pub fn parts_refused(self) -> u32 {
        let by_files = self.files.saturating_sub(FILES_MIN) / FILES_PER_PART;
        let by_bytes = self.bytes.saturating_sub(BYTES_MIN) / BYTES_PER_PART;
        // It fits, being that small.
        by_files.max(by_bytes).min(u64::from(PARTS)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_what_is_refused_rises_with_the_debt() {
        let of_files = |files| Debt { files, bytes: 0 }.parts_refused();
        assert_eq!([0, 4, 128, 135, 136, 192, 256, 1_000].map(of_files), [0, 0, 0, 0, 1, 8, 16, 16]);
        let of_bytes = |gib: u64| Debt { files: 0, bytes: gib << 30 }.parts_refused();
        assert_eq!([0, 64, 75, 76, 160, 256, 1 << 20].map(of_bytes), [0, 0, 0, 1, 8, 16, 16]);
        assert_eq!(Debt { files: 136, bytes: 160 << 30 }.parts_refused(), 8, "the larger of both counts");
    }
}
