//! The rules of leases and of reads at any replica as small models, each checked in every state that it can reach.
//!
//! Four models, because one would be too large. [`lease`] has voters, elections, clocks and transfers, and shows what an index
//! is worth that a leader gives away. [`index`] takes that for granted and has questions, answers and what other replicas
//! serve after them. [`group`] has memberships that change, majorities of any size, and reads all the way; of clocks it knows
//! only what the first shows. [`quorum`] has reads that ask a majority instead of the leader. `docs/model.md` puts them together. [`plan`] says which models are checked and how each rule's
//! absence is looked for.
//!
//! Absent: the code of the product. What stands here is what the code should do, small enough to look at all of it;
//! `lab/sim` runs the code itself.

pub mod check;
pub mod clock;
pub mod explain;
pub mod group;
pub mod index;
pub mod lease;
pub mod links;
pub mod log;
pub mod plan;
pub mod product;
pub mod quorum;
pub mod rule;
