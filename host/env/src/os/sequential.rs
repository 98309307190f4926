//! A file that is written from front to back past the page cache.
//!
//! A log is written once and hardly ever read. Through the page cache each write costs a copy into memory that the
//! processor has long forgotten, and the search for its pages; here the device takes the bytes from one buffer that is
//! always the same.

use crate::disk::File;
use crate::os::OsFile;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Sizes, offsets and addresses of writes are multiples of this: the largest block that devices have.
const BLOCK: usize = 4096;
/// Buffers above this many bytes are given back.
const CAPACITY_KEPT: usize = 1 << 20;

/// Implements [`crate::Disk::open_sequential`].
#[derive(Debug)]
pub(super) struct SequentialFile {
    direct: fs::File,
    /// For everything but writing.
    cached: OsFile,
    tail: Mutex<Tail>,
}

/// The last block, if what was written ends in its middle: it is written again together with what follows.
#[derive(Debug, Default)]
struct Tail {
    /// Where the block begins.
    at: u64,
    /// Whether the buffer begins with all that the block holds, zeros behind what was written included: what follows may leave a gap.
    is_held: bool,
    buffer: Vec<u8>,
    /// Where the aligned part of the buffer begins.
    start: usize,
}

impl SequentialFile {
    pub(super) fn new(direct: fs::File, cached: OsFile) -> Self {
        Self { direct, cached, tail: Mutex::default() }
    }
}

fn is_aligned(offset: u64, data: &[u8]) -> bool {
    offset.is_multiple_of(BLOCK as u64)
        && data.len().is_multiple_of(BLOCK)
        && data.as_ptr().addr().is_multiple_of(BLOCK)
}

impl Tail {
    /// The aligned part of the buffer, at least `size` bytes, with what it held before.
    fn reserve(&mut self, size: usize) -> &mut [u8] {
        let room = self.buffer.len().saturating_sub(self.start);
        let is_lavish = room > CAPACITY_KEPT && size <= CAPACITY_KEPT;
        if room < size || is_lavish {
            let held = if self.is_held { BLOCK } else { 0 };
            let kept = self.buffer.get(self.start..self.start + held).unwrap_or_default().to_vec();
            self.buffer = vec![0; size.next_power_of_two() + BLOCK];
            self.start = self.buffer.as_ptr().align_offset(BLOCK);
            self.buffer[self.start..self.start + kept.len()].copy_from_slice(&kept);
        }
        &mut self.buffer[self.start..]
    }

    /// Puts `data`, which belongs at `offset`, behind what its block holds already. Gives where to write how much.
    fn put(&mut self, offset: u64, data: &[u8], file: &OsFile) -> io::Result<(u64, usize)> {
        let before = (offset % BLOCK as u64) as usize;
        let at = offset - before as u64;
        let size = (before + data.len()).next_multiple_of(BLOCK);
        let is_known = self.is_held && self.at == at;
        let buffer = self.reserve(size);
        if before > 0 && !is_known {
            let count = file.read_at(at, &mut buffer[..before])?;
            buffer[count..before].fill(0);
        }
        let end = before + data.len();
        buffer[before..end].copy_from_slice(data);
        buffer[end..size].fill(0);
        Ok((at, size))
    }

    /// Everything up to `end` is written, by a buffer that began at `at`: keeps the last block if it has room.
    fn keep(&mut self, at: u64, end: u64) {
        let used = end % BLOCK as u64;
        self.at = end - used;
        self.is_held = used > 0;
        if self.is_held {
            let from = self.start + (self.at - at) as usize;
            self.buffer.copy_within(from..from + BLOCK, self.start);
        }
    }
}

impl File for SequentialFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.cached.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let tail = &mut *self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if is_aligned(offset, data) {
            // Whole blocks that the device can take from where they are.
            tail.is_held = false;
            return self.direct.write_all_at(data, offset);
        }
        let (at, size) = tail.put(offset, data, &self.cached)?;
        let written = self.direct.write_all_at(&tail.buffer[tail.start..tail.start + size], at);
        match &written {
            Ok(()) => tail.keep(at, offset + data.len() as u64),
            // What the block holds now is not known.
            Err(_) => *tail = Tail::default(),
        }
        written
    }

    fn sync_data(&self) -> io::Result<()> {
        self.direct.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.direct.sync_all()
    }

    fn len(&self) -> io::Result<u64> {
        self.cached.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.cached.set_len(len)
    }
}
