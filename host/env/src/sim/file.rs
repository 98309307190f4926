//! The bytes of a simulated file: what programs see, what is on the medium, and which pages differ.

use hedgerow_types::random::Random;
use std::collections::BTreeSet;

/// Unit of loss: each unsynced page fares on its own in a crash.
const PAGE_SIZE: usize = 4096;
/// A torn page is torn between sectors.
const SECTOR_SIZE: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Content {
    /// What programs see.
    current: Vec<u8>,
    /// What is on the medium for sure.
    durable: Vec<u8>,
    /// Pages written since the last sync.
    dirty: BTreeSet<usize>,
    /// Pages whose sync failed: thought clean, so that no later sync saves them, and on the medium only by luck.
    forgotten: BTreeSet<usize>,
}

impl Content {
    /// What programs see, written back.
    pub(super) fn copy(&self) -> Self {
        Self { current: self.current.clone(), durable: self.current.clone(), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.current.len()
    }

    pub(super) fn read(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let Some(rest) = self.current.get(offset..) else { return 0 };
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len();
        if end > self.current.len() {
            self.set_len(end);
        }
        self.current[offset..end].copy_from_slice(data);
        self.touch(offset, end);
    }

    pub(super) fn set_len(&mut self, len: usize) {
        let before = self.current.len();
        self.current.resize(len, 0);
        self.touch(before.min(len), before.max(len));
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for page in std::mem::take(&mut self.dirty) {
            let (start, end) = page_bounds(page, self.current.len());
            self.durable[start..end].copy_from_slice(&self.current[start..end]);
        }
    }

    /// What a failed sync leaves behind on Linux: the pages count as clean, and no later sync writes them.
    pub(super) fn forget_dirty(&mut self) {
        self.forgotten.append(&mut self.dirty);
    }

    pub(super) fn flip_byte(&mut self, offset: usize) {
        for bytes in [&mut self.current, &mut self.durable] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= 0x40;
            }
        }
    }

    pub(super) fn crash(&mut self, random: &mut Random) {
        let len = self.length_after_crash(random);
        let mut survived = std::mem::take(&mut self.durable);
        survived.resize(len, 0);
        self.dirty.append(&mut self.forgotten);
        for page in std::mem::take(&mut self.dirty) {
            let (start, end) = page_bounds(page, len.min(self.current.len()));
            let (kept_from, kept_to) = match random.below(3) {
                0 => (start, start),
                1 => (start, end),
                _ => torn(start, end, random),
            };
            survived[kept_from..kept_to].copy_from_slice(&self.current[kept_from..kept_to]);
        }
        self.current.clone_from(&survived);
        self.durable = survived;
    }

    fn length_after_crash(&self, random: &mut Random) -> usize {
        let (low, high) = (self.durable.len().min(self.current.len()), self.durable.len().max(self.current.len()));
        match random.below(3) {
            0 => self.durable.len(),
            1 => self.current.len(),
            _ => low + random.below((high - low) as u64 + 1) as usize / SECTOR_SIZE * SECTOR_SIZE,
        }
    }

    fn touch(&mut self, start: usize, end: usize) {
        for page in start / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
            self.forgotten.remove(&page);
            self.dirty.insert(page);
        }
    }
}

fn page_bounds(page: usize, len: usize) -> (usize, usize) {
    ((page * PAGE_SIZE).min(len), ((page + 1) * PAGE_SIZE).min(len))
}

fn torn(start: usize, end: usize, random: &mut Random) -> (usize, usize) {
    let sectors = PAGE_SIZE / SECTOR_SIZE;
    let cut = (start + SECTOR_SIZE * (1 + random.below(sectors as u64 - 1) as usize)).min(end);
    if random.chance(1, 2) { (start, cut) } else { (cut, end) }
}
