//! What a client knows: where a key lives, which replica to ask, and what to do when that fails.
//!
//! - [`TableMap`] finds the partition of a key and the address to ask, and learns from refusals.
//! - [`reaction`] decides whether and when a failed attempt is followed by another.
//!
//! Deliberately absent: sockets, clocks and the request itself. Addresses, times and random numbers are arguments.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod map;
mod reaction;

pub use map::{Address, InvalidMap, Mark, PartitionRoute, TableKind, TableMap};
pub use reaction::{ATTEMPTS_MAX, BACKOFF_FIRST, BACKOFF_MAX, Failure, Reaction, reaction};
