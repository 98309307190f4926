//! Hedged, tied and retried requests as decisions: when to send another copy of a slow request, how many, which reply
//! wins, what to cancel, and what all of that may cost. No clock, no socket, no thread: times are arguments, and whoever
//! owns the request carries the decisions out.
//!
//! ```text
//! Hedger   per kind of request: its policy, latencies, counters     begin ──> Plan
//! Race     per request: attempts, and which one wins                poll  ──> Send, Wait, Finish
//! Budget   per client: what extra attempts of every kind may cost   try_take
//! TokenQueue  per budget: who takes the next token if it is empty   join  ──> serve
//! Claim    per request, where several threads work on one           open  ──> end, close
//! Silence  per connection: whether its node answers at all          is_spared
//! TieRule  per request: whether to send it twice at once            stagger
//! TiedCopy per copy of a tied request at its server                 handle_*  ──> TieStep
//! tradeoff what hedging would bring, from measured latencies        recommend
//! ```
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod budget;
mod claim;
mod curve;
mod hedger;
mod histogram;
mod policy;
mod queue;
mod race;
mod random;
mod recent;
mod silence;
mod sync;
mod tie;
mod time;
pub mod tradeoff;

pub use budget::{Budget, BudgetOptions, InvalidBudget};
pub use claim::{Claim, Claimed};
pub use hedger::{AttemptEnd, Class, Counters, Ended, Hedger};
pub use policy::{Gaps, InvalidPolicy, Latencies, Plan, Policy, RequestInfo, SpeculativeExecutionPolicy};
pub use queue::{Ticket, TokenQueue};
pub use race::{ATTEMPTS_MAX, Action, Attempts, Kind, LATE_MIN, Outcome, PUT_OFF_MAX, Race};
pub use silence::Silence;
pub use tie::{TieRule, TieStep, TiedCopy};
pub use time::Time;

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
