//! A bound that several parts of a node have in common, shards or threads: each adds to one sum, and has at least its part.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What one of the parts keeps, and how much all of them may.
#[derive(Debug)]
pub(crate) struct SharedBound {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
    most: usize,
    /// What one may keep whatever the others do.
    part: usize,
}

impl SharedBound {
    /// One of `parts`, which add to `all` and may keep `most` together. As every part has room for its own, they keep less than twice as much
    /// where one has taken up all that was free before.
    pub(crate) fn new(all: &Arc<AtomicUsize>, most: usize, parts: usize) -> Self {
        Self { own: AtomicUsize::new(0), all: Arc::clone(all), most, part: most / parts }
    }

    /// What this one keeps.
    pub(crate) fn own(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    /// What all of them keep.
    pub(crate) fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// So much more is kept.
    pub(crate) fn add(&self, size: usize) {
        self.own.fetch_add(size, Ordering::Relaxed);
        self.all.fetch_add(size, Ordering::Relaxed);
    }

    /// So much is not kept any more.
    pub(crate) fn subtract(&self, size: usize) {
        self.own.fetch_sub(size, Ordering::Relaxed);
        self.all.fetch_sub(size, Ordering::Relaxed);
    }

    /// Whether there is room for so much more.
    pub(crate) fn has_room(&self, size: usize) -> bool {
        self.has_room_within(size, 1)
    }

    /// The same where so many times as much may be kept.
    pub(crate) fn has_room_within(&self, size: usize, factor: usize) -> bool {
        let fits = |kept: usize, most: usize| kept.saturating_add(size) <= most.saturating_mul(factor);
        fits(self.all(), self.most) || fits(self.own(), self.part)
    }

    /// Whether there would be room for so much if this one kept nothing.
    pub(crate) fn may_have(&self, size: usize) -> bool {
        size <= self.part || (self.all() - self.own()).saturating_add(size) <= self.most
    }

    /// Whether all keep more than `percent` of what they may, and this one more than that of its part: where another one has too much, that
    /// one sees to it.
    pub(crate) fn is_beyond(&self, percent: usize) -> bool {
        let of = |most: usize| most.saturating_mul(percent) / 100;
        self.all() > of(self.most) && self.own() > of(self.part)
    }
}

/// What is gone keeps nothing.
impl Drop for SharedBound {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own(), Ordering::Relaxed);
    }
}

/// What the shards of a node keep together, each kind with its bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Bytes of reads that wait for their turn.
    pub(crate) queued: Arc<AtomicUsize>,
    /// Bytes of reads that wait for an index or a majority.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Bytes of reads that wait for the disk.
    pub(crate) aside: Arc<AtomicUsize>,
    /// Open scans, and their bytes.
    pub(crate) scans: Arc<AtomicUsize>,
    pub(crate) scan_bytes: Arc<AtomicUsize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_may_keep_all() {
        let share = SharedBound::new(&Arc::default(), 100, 1);
        assert!(share.has_room(100) && !share.has_room(101) && share.has_room_within(200, 2));
        share.add(100);
        assert!(!share.has_room(1) && share.has_room_within(100, 2) && !share.is_beyond(100) && share.is_beyond(99));
        share.subtract(1);
        assert!(share.has_room(1) && !share.has_room(2));
    }

    #[test]
    fn n4u_parts_have_one_bound_and_each_has_its_part() {
        let all = Arc::default();
        let [heavy, light] = [(); 2].map(|()| SharedBound::new(&all, 100, 2));
        heavy.add(90);
        assert!(heavy.has_room(10) && !heavy.has_room(11), "what the other one leaves");
        assert!(light.has_room(50) && !light.has_room(51), "its part, whatever the other one keeps");
        light.add(20);
        assert!(light.may_have(50) && !light.may_have(51) && heavy.may_have(80) && !heavy.may_have(81));
        assert!(heavy.is_beyond(100) && !light.is_beyond(100), "who has more than its part gives way");
        heavy.subtract(10);
        assert!(!heavy.is_beyond(100) && !heavy.has_room(1) && light.has_room(30));
        drop(heavy);
        assert!((light.all(), light.own()) == (20, 20) && light.has_room(80));
    }
}
