//! What `./x profile` asks a process about itself: how much it allocated, and where its time goes if perf cannot tell.
//!
//! Only with the feature `profiling`. The process listens on an abstract Unix socket, so that nothing has to be passed to
//! it and nothing stays behind. One connection at a time; a line asks, and a connection's end ends everything:
//!
//! ```text
//! allocations   ->  "COUNT BYTES\n": allocations and growths of blocks by Rust code since the start, and their bytes
//! sample        ->  "ok\n": stacks are sampled from now on, driven by the CPU time of the process
//! stacks        ->  sampling ends; one "THREAD;OUTER;...;INNER SAMPLES\n" per different stack, then an empty line
//! ```

use hedgerow_env::os::spawn_thread;
use mimalloc::MiMalloc;
use pprof::{Frames, ProfilerGuard};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads share this many pairs of counters, so that they seldom fight for a cache line.
const STRIPE_COUNT: usize = 64;
/// Samples per second of CPU time. Not a round number, so that it does not beat with periodic work.
const SAMPLES_PER_SECOND: i32 = 499;

/// Counters on a cache line of their own.
#[repr(align(64))]
struct Stripe {
    allocations: AtomicU64,
    bytes: AtomicU64,
}

static STRIPES: [Stripe; STRIPE_COUNT] =
    [const { Stripe { allocations: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; STRIPE_COUNT];

thread_local! {
    /// Index of the thread's stripe; `usize::MAX` before its first allocation. Needs no destructor, so that it can be
    /// used while a thread begins and ends.
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The allocator of the normal build, with a count of what it is asked for.
pub(crate) struct CountingAllocator;

#[allow(unsafe_code, reason = "an allocator; every call is handed on as it came")]
// SAFETY: all of it is MiMalloc's doing; counting touches nothing but atomics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.saturating_sub(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}

fn count(size: usize) {
    let stripe = &STRIPES[STRIPE.with(own_stripe)];
    stripe.allocations.fetch_add(1, Ordering::Relaxed);
    stripe.bytes.fetch_add(size as u64, Ordering::Relaxed);
}

fn own_stripe(index: &Cell<usize>) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if index.get() == usize::MAX {
        index.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPE_COUNT);
    }
    index.get()
}

/// Answers the profiler from now on, on a thread of its own.
pub(crate) fn listen() -> io::Result<()> {
    let name = format!("hedgerow-profile-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    spawn_thread("profiling", move || {
        for connection in listener.incoming().flatten() {
            if let Err(error) = answer(&connection) {
                tracing::warn!(%error, "a connection of the profiler ended");
            }
        }
    })?;
    Ok(())
}

fn answer(mut connection: &UnixStream) -> io::Result<()> {
    let mut sampler = None;
    for line in BufReader::new(connection).lines() {
        let reply = match line?.as_str() {
            "allocations" => allocations(),
            "sample" => {
                sampler = Some(ProfilerGuard::new(SAMPLES_PER_SECOND).map_err(io::Error::other)?);
                "ok\n".to_owned()
            }
            "stacks" => stacks(sampler.take())?,
            other => return Err(io::Error::other(format!("{other:?} is none of: allocations, sample, stacks"))),
        };
        connection.write_all(reply.as_bytes())?;
    }
    Ok(())
}

fn allocations() -> String {
    let sum = |counter: fn(&Stripe) -> &AtomicU64| -> u64 {
        STRIPES.iter().map(|stripe| counter(stripe).load(Ordering::Relaxed)).sum()
    };
    format!("{} {}\n", sum(|stripe| &stripe.allocations), sum(|stripe| &stripe.bytes))
}

/// The stacks that `sampler` saw, folded.
fn stacks(sampler: Option<ProfilerGuard<'_>>) -> io::Result<String> {
    let sampler = sampler.ok_or_else(|| io::Error::other("stacks were asked for before sampling began"))?;
    let report = sampler.report().build().map_err(io::Error::other)?;
    let mut text = String::new();
    for (frames, samples) in &report.data {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {samples}", folded(frames));
    }
    text.push('\n');
    Ok(text)
}

fn folded(frames: &Frames) -> String {
    let mut parts = vec![frames.thread_name.clone()];
    // Frames come innermost first, and so do the functions that were inlined into one.
    parts.extend(frames.frames.iter().rev().flat_map(|frame| frame.iter().rev().map(ToString::to_string)));
    parts.iter().map(|part| part.replace([';', '\n'], ":")).collect::<Vec<_>>().join(";")
}
