//! The allocator of the binary, and when memory goes back to the system.

use std::ffi::{c_int, c_long};
use std::time::Duration;

/// Requests allocate and free small buffers on several threads, which the system's allocator is slow at.
#[cfg(not(feature = "profiling"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
/// The same, counted.
#[cfg(feature = "profiling")]
#[global_allocator]
static ALLOCATOR: crate::profiling::CountingAllocator = crate::profiling::CountingAllocator;

/// What is freed goes back to the system after so long. By itself the allocator gives it back after a second: a busy node takes the same
/// memory again at once, and the huge pages that it lay in are divided for good, which costs puts a tenth of their processor time.
const RETURN_AFTER: Duration = Duration::from_secs(600);
/// `mi_option_purge_delay`, milliseconds, as `mimalloc.h` numbers it.
const PURGE_DELAY: c_int = 15;

/// Settings of the allocator, before anything else. An environment variable (`MIMALLOC_PURGE_DELAY`) has the last word.
#[allow(unsafe_code, reason = "foreign calls that set a number")]
pub(crate) fn set_up() {
    let delay = RETURN_AFTER.as_millis() as c_long;
    // SAFETY: the option exists, and options may be set at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, delay) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number is that of no other option: its default is the one that the allocator documents.
    #[test]
    fn the_delay_is_what_is_set() {
        #[allow(unsafe_code, reason = "a foreign call that returns a number")]
        // SAFETY: the option exists.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1_000);
        set_up();
        assert_eq!(delay(), 600_000);
    }
}
