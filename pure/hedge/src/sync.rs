//! The atomic words that threads share. The model in `tests/threads` brings others of the same names, which try all orders.

pub(crate) use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
