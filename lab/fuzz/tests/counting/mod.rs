//! How many bytes a thread has.
#![allow(unsafe_code, reason = "counting bytes needs an allocator, whose trait is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes that the thread has now, and the most that it had.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn take(size: usize) {
    HELD.with(|held| {
        let (now, most) = held.get();
        let now = now.saturating_add(size);
        held.set((now, most.max(now)));
    });
}

fn give(size: usize) {
    HELD.with(|held| held.set((held.get().0.saturating_sub(size), held.get().1)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's promise is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller's promise is ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `action` had at a time.
pub(crate) fn peak_of(action: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get).0;
    HELD.with(|held| held.set((before, before)));
    action();
    HELD.with(Cell::get).1 - before
}
