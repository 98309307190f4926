//! Switches that take a safety rule away, so that tests can show that they would notice.

use std::sync::atomic::AtomicBool;

/// While true, the exactly-once table recognises no repetition: a repeated write is applied again.
pub static FORGET_SESSIONS: AtomicBool = AtomicBool::new(false);

/// While true, a write of a session that was forgotten counts as new: a repetition of it is applied again.
pub static FORGET_FLOOR: AtomicBool = AtomicBool::new(false);
