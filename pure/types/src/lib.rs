//! The words every other crate speaks: ids, keys and their order, operations, limits and errors.
//!
//! Nothing here reads a clock, a disk or a socket, and the crate is `no_std`: time and randomness arrive as arguments.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

pub mod codec;
pub mod error;
pub mod id;
pub mod journal;
pub mod key;
pub mod limit;
pub mod log;
pub mod op;
pub mod random;
pub mod read;
pub mod session;
pub mod span;
pub mod time;

pub use error::{Refusal, Status};
pub use id::{ClientId, GroupId, Incarnation, Index, NodeId, PartitionIndex, ReplicaId, Sequence, TableId, Term};
pub use read::{Lag, ReadLevel};
pub use session::SessionToken;
pub use span::Span;
pub use time::Instant;
