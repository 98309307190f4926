//! The atomic words of loom, in the place of those of the machine.

pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
