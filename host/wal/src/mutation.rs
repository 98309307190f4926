//! Deliberate faults, by which a simulation proves that it would notice them.

use std::sync::atomic::AtomicBool;

/// Whether [`crate::Log::sync`] says yes without syncing.
pub static SKIP_SYNC: AtomicBool = AtomicBool::new(false);
