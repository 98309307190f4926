//! Reads that wait for their turn, cancels and ties, in a cluster in memory with a clock of its own.
//!
//! Pitfalls that are the business of the node have tests here. Of the others:
//! - H15, H17: the client's half (one reply is used, a timer for what is never answered) is tested in `hedgerow-hedge`.
//! - H18: memory of the queue, of what can be cancelled and of ties is measured in the unit tests of `queue.rs` and `tie.rs`.
//! - H21: there is no place in the sending of replies to wait at: what is encoded goes with its connection.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod aside;
mod cancel;
mod named;
mod order;
mod room;
mod shared;
mod tie;
mod told;
#[allow(dead_code, reason = "the tests of reads use the rest of it")]
#[path = "../reads/world.rs"]
mod world;
