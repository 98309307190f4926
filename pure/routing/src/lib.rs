//! What a client knows: where a key lives, which replica to ask, and what to do when that fails.
//!
//! - [`TableMap`] finds the partition of a key and the leader's address, and learns from refusals.
//! - [`Selector`] chooses the replica for reads that need not go to the leader, by [`ReplicaRead`], place ([`Labels`]),
//!   load and failures.
//! - [`reaction`] and [`replica_reaction`] decide whether and when a failed attempt is followed by another.
//!
//! Deliberately absent: sockets, clocks and the request itself. Addresses, times and random numbers are arguments.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod backoff;
mod labels;
mod map;
mod reaction;
mod refusal;
mod replica_read;
mod select;
mod statistics;

pub use backoff::{REPLICA_BACKOFF_FIRST, REPLICA_BACKOFF_MAX};
pub use labels::{InvalidLabels, Labels};
pub use map::{Address, InvalidMap, Mark, PartitionRoute, TableKind, TableMap};
pub use reaction::{ATTEMPTS_MAX, BACKOFF_FIRST, BACKOFF_MAX, Failure, Reaction, reaction, replica_reaction};
pub use refusal::{Effect, Meaning, Verdict, meaning};
pub use replica_read::{InvalidReplicaRead, ReplicaRead};
pub use select::{Candidate, Choice, LARGE_REPLY_SIZE, Selector, State, UNKNOWN_IN_FLIGHT_MAX};
pub use statistics::{Expected, ReplicaLoad};
