//! Hedged, tied and retried requests as decisions: when to send another copy of a slow request, how many, which reply
//! wins, what to cancel, and what all of that may cost. No clock, no socket, no thread: times are arguments, and whoever
//! owns the request carries the decisions out.
//!
//! ```text
//! Hedger   per kind of request: its policy, latencies, counters     begin ──> Plan
//! Race     per request: attempts, and which one wins                poll  ──> Send, Wait, Finish
//! Budget   per client: what extra attempts of every kind may cost   try_take
//! ```
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod budget;
mod hedger;
mod policy;
mod race;
mod time;

pub use budget::{Budget, BudgetOptions};
pub use hedger::{AttemptEnd, Class, Counters, Ended, Hedger};
pub use policy::{InvalidPolicy, Latencies, Plan, Policy, SpeculativeExecutionPolicy};
pub use race::{ATTEMPTS_MAX, Action, Attempts, Kind, Outcome, Race};
pub use time::Time;
