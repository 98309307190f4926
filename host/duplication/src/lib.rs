//! Carries the changes of tables to other clusters.
//!
//! Each node does it for the partitions that it leads. What is to be carried where, the tables' options say
//! ([`hedgerow_placement::duplication`]); how far it has come, each partition knows: whoever leads it next goes on from there. What is said
//! twice, by two nodes or after a crash, changes nothing ([`hedgerow_types::journal`]), so that nothing here has to be exact.
//!
//! ```text
//! Duplicator        looks at the tables each second, starts and ends carriers     duplicator.rs
//!   Carrier         of one partition to one cluster: read, tell, say how far      carrier.rs
//!     Remote        the other cluster's table                                     remote.rs
//!     Course        how a carrier goes                                            course.rs
//!   Board           how all of them go, for the node and its log                  board.rs
//! ```
#![warn(missing_docs)]

mod board;
mod carrier;
mod course;
mod duplicator;
mod remote;

pub use board::Board;
pub use duplicator::{Connect, Connecting, Duplicator, Source};
