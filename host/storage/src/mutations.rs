//! Switches that take a safety rule away, so that tests can show that they would notice.

use std::sync::atomic::AtomicBool;

/// While true, the exactly-once table recognises no repetition: a repeated write is applied again.
pub static FORGET_SESSIONS: AtomicBool = AtomicBool::new(false);
