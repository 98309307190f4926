//! Reads at every kind of replica, in a cluster in memory with a clock of its own.
//!
//! Pitfalls that are the business of the node have tests here; those of one group are in `hedgerow-replication`, of choosing
//! a replica in `hedgerow-routing`, and histories are checked by the simulator.
//!
//! Pitfalls that do not apply to the node:
//! - R10 (hibernating leader): groups do not hibernate; leaders send heartbeats while they lead.
//! - R18, R19 (load split, hot detection): partitions are not split or moved by load.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod fresh;
mod learner;
mod messages;
mod quorum;
mod ready;
mod who;
#[allow(dead_code, reason = "the tests in other folders use the rest of it")]
mod world;
